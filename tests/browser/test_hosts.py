"""The live card in Notebook 7 and in Voila, with real kernels and real builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
from playwright.sync_api import expect

from tests.browser.test_widget import AXE, IMPORTS, TOOLS, card, is_running, running, shown

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Keep
    from tests.browser.harness import Notebook, Notebook7, Voila

#: A build that lasts until someone cancels it, long before its end; then one that succeeds.
BUILDS = ("a = slow().start()\na", "b = BuildWidget(small).start()\nb")


def opened(notebook7: Notebook7, *cells: str) -> Notebook:
    """Open a notebook of IMPORTS, which has run, and these cells."""
    notebook = notebook7.open([IMPORTS, *cells])
    notebook.page.evaluate(TOOLS)
    notebook.run(0)
    return notebook


def widths(view: Locator) -> list[str]:
    """Give the widths of a card's bars."""
    found: list[str] = view.locator(".progress-bar").evaluate_all(
        "bars => bars.map(bar => bar.style.width)"
    )
    return found


def assert_moves(view: Locator) -> None:
    """Assert that bars grow in a card."""
    bar = view.locator(".trt-row[data-status='running']").last.locator(".progress-bar")
    before = bar.get_attribute("style")
    expect(bar).not_to_have_attribute("style", before or "")


def assert_accessible(page: Page, what: str = ".trt-build") -> None:
    """Assert that axe-core finds nothing serious in the cards of a page."""
    page.evaluate(AXE.read_text("utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "async what => (await axe.run(what)).violations", what
    )
    assert [
        (violation["id"], node["html"])
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ] == []


def test_a_build_in_notebook_7(notebook7: Notebook7, keep: Keep) -> None:
    notebook = keep(opened(notebook7, *BUILDS))
    view = running(notebook, 1)
    assert_moves(view)
    notebook.run(2)
    other = shown(notebook, 2, "pending")
    assert_accessible(notebook.page)
    view.get_by_role("button", name="Cancel", exact=True).click()
    shown(notebook, 1, "cancelled")
    expect(view.locator(".trt-note")).to_contain_text("at the next step")
    assert notebook.kernel("print(a.status, a.result.reason)") == "cancelled user\n"
    shown(notebook, 2, "succeeded")
    expect(other.locator(".trt-note")).to_contain_text("Engine of")
    assert widths(other) == ["100%"] * other.locator(".trt-row").count() != []
    assert_accessible(notebook.page)
    notebook.assert_clean()


def test_cancel_in_notebook_7_while_a_cell_runs(notebook7: Notebook7, keep: Keep) -> None:
    cells = [
        "a = slow().start()\na",
        "print('begun')\na.wait()",
        "print('begun')\nwhile True: pass",
    ]
    notebook = keep(opened(notebook7, *cells))
    for index in (2, 3):
        view = running(notebook, 1)
        # As JupyterLab does, Notebook 7 sends what comes from widgets over a subshell.
        notebook.wait_subshells()
        notebook.start(index)
        expect(notebook.output(index)).to_contain_text("begun")
        view.locator(".trt-cancel").click()
        shown(notebook, 1, "cancelled")
        if index == 3:
            assert is_running(notebook, index)
            notebook.interrupt()
        notebook.wait(index)
        assert notebook.kernel("print(a.status, a.result.reason)") == "cancelled user\n"
    notebook.assert_clean()


def test_reload_in_notebook_7(notebook7: Notebook7, keep: Keep) -> None:
    notebook = keep(opened(notebook7, "w = held().start()\nw"))
    running(notebook, 1)
    notebook.save()
    notebook.reload()
    view = shown(notebook, 1, "running")
    expect(view.locator(".trt-row[data-status='running']")).not_to_have_count(0)
    notebook.kernel("gate.set()")
    shown(notebook, 1, "succeeded")
    notebook.restart()
    expect(card(notebook, 1).locator(".trt-status")).to_have_text("Succeeded")
    notebook.assert_clean()


def test_a_build_in_voila(voila: Voila, keep: Keep) -> None:
    shown_page = keep(voila.open([IMPORTS, *BUILDS]))
    page = shown_page.page
    cards = page.locator(".trt-build")
    expect(cards).to_have_count(2, timeout=60_000)
    view, other = cards.nth(0), cards.nth(1)
    expect(view).to_have_attribute("data-status", "running")
    expect(other).to_have_attribute("data-status", "pending")
    assert_moves(view)
    assert_accessible(page)
    # Nothing of the kernel's start is in the way: all cells have run.
    view.get_by_role("button", name="Cancel", exact=True).click()
    expect(view).to_have_attribute("data-status", "cancelled")
    expect(view.locator(".trt-note")).to_contain_text("at the next step")
    expect(other).to_have_attribute("data-status", "succeeded")
    expect(other.locator(".trt-note")).to_contain_text("Engine of")
    assert widths(other) == ["100%"] * other.locator(".trt-row").count() != []
    assert_accessible(page)
    shown_page.assert_clean()


def test_closing_the_page_of_voila_ends_the_build(voila: Voila, keep: Keep) -> None:
    earlier = set(voila.family())
    opened = keep(voila.open([IMPORTS, BUILDS[0]]))
    view = opened.page.locator(".trt-build")
    expect(view.locator(".trt-row[data-status='running']")).not_to_have_count(0, timeout=60_000)
    mine = [process for process in voila.family() if process not in earlier]
    assert len(mine) >= 2, "the kernel, and the process that builds"
    opened.close()
    _, left = psutil.wait_procs(mine, 30)
    assert left == []
