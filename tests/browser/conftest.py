"""Fixtures: one browser, and one server of each kind that a test asks for, for all tests here.

Each test opens fresh notebooks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest
from playwright.sync_api import expect

from tests.browser.harness import Chromium, Lab, Notebook, Notebook7, ServedPage, Voila

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

Shown = TypeVar("Shown", bound=ServedPage)
FAILED = pytest.StashKey[bool]()


class Keep(Protocol):
    """Notes a page, so that it is closed when the test ends, and gives it back."""

    def __call__(self, page: Shown, /) -> Shown:
        """Note it."""


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


@pytest.fixture(autouse=True, scope="package")
def patience() -> Iterator[None]:
    """Wait for longer than playwright does by itself: builds of others take the machine, too."""
    expect.set_options(timeout=30_000)
    yield
    expect.set_options(timeout=5_000)  # its default


# Not for the session: playwright keeps an event loop running in this thread, and tests elsewhere
# have loops of their own.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Chromium]:
    """Give the running browser."""
    with Chromium() as running:
        yield running


@pytest.fixture(scope="package")
def lab(chromium: Chromium) -> Iterator[Lab]:
    """Give the running JupyterLab."""
    with Lab(chromium) as running:
        yield running


@pytest.fixture(scope="package")
def notebook7(chromium: Chromium) -> Iterator[Notebook7]:
    """Give the running Notebook 7."""
    with Notebook7(chromium) as running:
        yield running


@pytest.fixture(scope="package")
def voila(chromium: Chromium) -> Iterator[Voila]:
    """Give the running Voila."""
    with Voila(chromium) as running:
        yield running


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Iterator[Keep]:
    """Give a function that notes a page, so that it is closed when the test ends."""
    opened: list[ServedPage] = []

    def keep_one(page: Shown) -> Shown:
        opened.append(page)
        return page

    yield keep_one
    for number, page in enumerate(opened):
        if request.node.stash.get(FAILED, False) and not page.page.is_closed():
            name = re.sub(r"\W+", "-", request.node.name)
            page.screenshot_page(f"failed-{name}-{number}")
        page.close()


@pytest.fixture
def open_notebook(lab: Lab, keep: Keep) -> OpenNotebook:
    """Give a function that opens notebooks; they are closed when the test ends."""

    def open_one(cells: Sequence[str], *, name: str | None = None) -> Notebook:
        return keep(lab.open(cells, name=name))

    return open_one
