"""Fixtures: one JupyterLab and one browser for all tests here, a fresh notebook for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.browser.harness import Lab, Notebook

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

FAILED = pytest.StashKey[bool]()


class OpenNotebook(Protocol):
    """Opens a notebook of these cells."""

    def __call__(self, cells: Sequence[str], *, name: str | None = None) -> Notebook:
        """Give it when its kernel is idle."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, so that the fixture can take a picture of it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


# Not for the session: playwright keeps an event loop running in this thread, and tests elsewhere
# have loops of their own.
@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    """Give the running JupyterLab."""
    with Lab() as running:
        yield running


@pytest.fixture
def open_notebook(lab: Lab, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """Give a function that opens notebooks; they are closed when the test ends."""
    opened: list[Notebook] = []

    def open_one(cells: Sequence[str], *, name: str | None = None) -> Notebook:
        opened.append(lab.open(cells, name=name))
        return opened[-1]

    yield open_one
    for number, notebook in enumerate(opened):
        if request.node.stash.get(FAILED, False):
            name = re.sub(r"\W+", "-", request.node.name)
            notebook.screenshot_page(f"failed-{name}-{number}")
        notebook.close()
