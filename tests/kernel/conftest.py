"""Fixtures: a real kernel of every version of ipykernel that users have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernel.harness import VERSIONS, Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator


def only(*versions: str) -> pytest.MarkDecorator:
    """Mark a test that says something of these versions of ipykernel only."""
    return pytest.mark.parametrize("version", [v for v in VERSIONS if v in versions])


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Give a version of ipykernel; the mark :func:`only` narrows it."""
    return str(request.param)


@pytest.fixture
def kernel(version: str) -> Iterator[Kernel]:
    """Give a fresh kernel of that version."""
    with Kernel(version) as running:
        yield running
