"""The card in a real JupyterLab, with states made by hand: what a build would say, at will."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.browser.conftest import OpenNotebook
    from tests.browser.harness import Notebook

FAKE = Path(__file__).with_name("fake_card.py").read_text("utf-8")
HOSTILE = '<img src=x onerror="window.pwned = 1"><script>window.pwned = 2</script>'
BLUE, GREEN = "rgb(25, 118, 210)", "rgb(56, 142, 60)"


def card(notebook: Notebook, index: int) -> Locator:
    """Give the card that a cell shows."""
    return notebook.output(index).locator(".trt-build")


def row(view: Locator, path: str) -> Locator:
    """Give a row of a card."""
    return view.locator(f".trt-row[data-path='{path}']")


def colour(element: Locator) -> str:
    """Give the background that an element has in the end."""
    found: str = element.evaluate("element => getComputedStyle(element).backgroundColor")
    return found


def listeners(notebook: Notebook) -> int:
    """Count the listeners on all models behind the notebook, and their views.

    Without what ipywidgets itself leaves behind of every view: a listener for custom messages, and
    the view of the card's own layout.
    """
    count: int = notebook.page.evaluate(
        """async layout => {
            const find = widget => {
                const manager = widget._view?.model?.widget_manager;
                if (manager) return manager;
                for (const child of widget.children()) {
                    const found = find(child);
                    if (found) return found;
                }
            };
            let count = 0;
            for (const promise of Object.values(find(window.panel)._models)) {
                const model = await promise;
                if (model.model_id === layout) continue;
                const {'msg:custom': _, ...events} = model._events ?? {};
                count += Object.values(events).flat().length;
                count += Object.keys(model.views ?? {}).length;
            }
            return count;
        }""",
        notebook.kernel("print(c.layout.model_id)").strip(),
    )
    return count


def test_rows_and_outcomes(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree()); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view).to_have_attribute("data-status", "running")
    expect(view.locator(".trt-status")).to_have_text("Running")
    expect(view.locator(".trt-row")).to_have_count(5)
    # Real IntProgress bars, hidden from screen readers for ours, which have a role and values.
    expect(view.locator(".widget-hprogress .progress-bar")).to_have_count(5)
    bar = view.get_by_role("progressbar", name="Building engine", exact=True)
    expect(bar).to_have_attribute("aria-valuenow", "4")
    expect(bar).to_have_attribute("aria-valuemax", "6")
    expect(bar).to_have_attribute("aria-valuetext", "running, step 4 of 6")
    expect(view.locator(".trt-note")).to_contain_text("Determining refit engines")
    expect(row(view, "Cloning").locator(".trt-steps")).to_have_text("done")
    assert colour(row(view, "Building engine").locator(".progress-bar")) == BLUE
    assert colour(row(view, "Cloning").locator(".progress-bar")) != GREEN

    # The rows that stay keep their elements.
    view.locator(".trt-row").first.evaluate("element => { element.kept = true; }")
    notebook.kernel("extend(c)")
    expect(view.locator(".trt-row")).to_have_count(6)
    assert view.locator(".trt-row").first.evaluate("element => element.kept")

    outcomes = (("cancelled", "Cancelled"), ("failed", "Failed"), ("ended", "Ended"))
    for status, word in outcomes:
        notebook.kernel(f"finish(c, '{status}')")
        expect(view.locator(".trt-status")).to_have_text(word)
        expect(row(view, "Building engine").locator(".trt-steps")).to_have_text(status)
        expect(view.locator(".trt-cancel")).to_be_hidden()
        for each in view.locator(".progress-bar").all():
            assert colour(each) != GREEN
    notebook.kernel("finish(c, 'succeeded', engine_bytes=102_400_000)")
    expect(view.locator(".trt-note")).to_contain_text("Engine of 102.4 MB built in")
    for each in view.locator(".progress-bar").all():
        assert colour(each) == GREEN
    # TensorRT finished it after step 4 of 6: done all the same.
    whole = row(view, "Building engine")
    expect(whole.locator(".trt-steps")).to_have_text("done")
    assert whole.locator(".progress").evaluate(
        "element => element.clientWidth === element.firstElementChild.offsetWidth"
    )
    notebook.assert_clean()


def test_collapse_with_the_keyboard(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree()); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    toggle = view.get_by_role("button", name="Phases in Building engine", exact=True)
    expect(toggle).to_have_attribute("aria-expanded", "true")
    toggle.focus()
    notebook.page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    expect(view.locator(".trt-row:visible")).to_have_count(1)
    expect(row(view, "Building engine").locator(".trt-folded")).to_have_text("+4 phases")
    notebook.kernel("beat(c)")
    expect(view.locator(".trt-row:visible")).to_have_count(1)
    notebook.page.keyboard.press("Space")
    expect(view.locator(".trt-row:visible")).to_have_count(5)
    notebook.assert_clean()


def test_silence(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree(silent=3)); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    refit = row(view, "Determining refit engines")
    expect(refit.locator(".trt-bar")).to_have_attribute("data-indeterminate", "")
    # The rows above it know no more than it does.
    expect(row(view, "Building engine").locator(".trt-bar")).to_have_attribute(
        "data-indeterminate", ""
    )
    assert row(view, "Cloning").locator(".trt-bar").get_attribute("data-indeterminate") is None
    before = view.locator(".trt-elapsed").text_content()
    expect(view.locator(".trt-elapsed")).not_to_have_text(before or "")
    expect(view.locator(".trt-note")).to_contain_text(re.compile(r"no callback for \d"))
    notebook.kernel("touch(c)")
    expect(view.locator(".trt-bar[data-indeterminate]")).to_have_count(0, timeout=900)
    # A phase that does not say how many steps it has.
    notebook.kernel("touch(c, total=0, step=0)")
    expect(refit.locator(".trt-steps")).to_have_text("")
    expect(refit.locator(".trt-bar")).not_to_have_attribute("aria-valuenow", re.compile("."))
    notebook.assert_clean()


def test_cancel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree()); c", "c"])
    for index in range(3):
        notebook.run(index)
    view, other = card(notebook, 1), card(notebook, 2)
    button = view.get_by_role("button", name="Cancel", exact=True)
    button.focus()
    notebook.page.keyboard.press("Enter")
    # At once, in both views; the focus stays where it was.
    expect(view.locator(".trt-cancel")).to_have_text("Cancelling…", timeout=300)
    expect(view.locator(".trt-cancel")).to_have_attribute("aria-disabled", "true")
    expect(view.locator(".trt-cancel")).to_be_focused()
    expect(other.locator(".trt-status")).to_have_text("Cancelling…")
    notebook.page.keyboard.press("Enter")
    other.locator(".trt-cancel").click(force=True)
    assert notebook.kernel("print(asked)") == "[{'kind': 'cancel'}]\n"
    # Nobody answers.
    notebook.kernel("beat(c)")
    expect(view.locator(".trt-note")).to_have_text(
        "The kernel is busy; if this lasts, use Kernel ▸ Interrupt"
    )
    notebook.kernel("beat(c, status='cancelling', can_cancel=False)")
    expect(view.locator(".trt-note")).to_contain_text("stops at TensorRT's next callback")
    notebook.kernel("finish(c, 'cancelled', stop_latency_s=0.3)")
    expect(view.locator(".trt-note")).to_have_text("Stopped 0.30 s after Cancel")
    expect(view.locator(".trt-live")).to_contain_text("Cancelled")
    notebook.assert_clean()


def test_pending(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(status='pending', blocked_by='a.onnx'); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-note-text")).to_have_text("Waiting for a.onnx to finish")
    view.get_by_role("button", name="Cancel a.onnx").click()
    expect(view.locator(".trt-cancel-blocker")).to_have_text("Cancelling a.onnx…")
    expect(view.locator(".trt-cancel")).to_have_text("Cancel")
    assert notebook.kernel("print(asked)") == "[{'kind': 'cancel_blocker'}]\n"
    notebook.kernel("beat(c, status='running', blocked_by=None)")
    expect(view.locator(".trt-cancel-blocker")).to_be_hidden()
    notebook.assert_clean()


def test_kernel_gone(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree()); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-note")).to_contain_text("No sign of life", timeout=13_000)
    expect(view).to_have_attribute("data-lost", "")
    stopped = view.locator(".trt-elapsed").text_content()
    time.sleep(1.5)
    assert view.locator(".trt-elapsed").text_content() == stopped
    notebook.kernel("beat(c)")
    expect(view).not_to_have_attribute("data-lost", "")
    expect(view.locator(".trt-elapsed")).not_to_have_text(stopped or "")
    notebook.restart()
    expect(view.locator(".trt-note")).to_contain_text("The kernel is gone")
    expect(view.locator(".trt-cancel")).to_be_hidden()
    stopped = view.locator(".trt-elapsed").text_content()
    time.sleep(1.5)
    assert view.locator(".trt-elapsed").text_content() == stopped


def test_foreign_text(open_notebook: OpenNotebook) -> None:
    code = f"""
evil = {HOSTILE!r}
names = (evil, "\u05e9\u05db\u05d1\u05d4", "long " * 60)
c = card([(depth, name, "running", 1, 3) for depth, name in enumerate(names)],
         name=evil, backend=evil, device=evil, detail=evil, blocked_by=evil,
         messages=[{{"time": 1.0, "severity": "error", "message": evil}}], errors=1)
c
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-label").first).to_have_text(HOSTILE)
    for status in ("pending", "running", "failed"):
        notebook.kernel(f"beat(c, status='{status}', explanation='why:\\n' + evil)")
        expect(view).to_have_attribute("data-status", status)
    view.locator(".trt-log summary").click()
    expect(view.locator(".trt-log-text")).to_have_text(HOSTILE)
    assert view.locator("img, script").count() == 0
    assert notebook.page.evaluate("window.pwned") is None
    # Nothing is wider than the cell.
    for width in (880, 320):
        view.evaluate("(element, width) => { element.style.maxWidth = `${width}px`; }", width)
        assert view.evaluate("element => element.scrollWidth <= element.clientWidth")
        for each in view.locator(".trt-row").all():
            assert each.evaluate("element => element.scrollWidth <= element.clientWidth")
    notebook.assert_clean()


def test_rows_without_a_model(open_notebook: OpenNotebook) -> None:
    code = "c = card(tree()); c.rows[1].close(); c"
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-row")).to_have_count(4)
    notebook.kernel("finish(c, 'succeeded')")
    expect(view.locator(".trt-status")).to_have_text("Succeeded")


def test_reload_and_no_leak(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree(), started=time.time() - 100)", "c", "c"])
    for index in range(3):
        notebook.run(index)
    expect(card(notebook, 2).locator(".progress-bar")).to_have_count(5)
    notebook.save()
    notebook.reload()
    notebook.kernel("beat(c)")
    view = card(notebook, 2)
    expect(view.locator(".progress-bar")).to_have_count(5)
    expect(view.locator(".trt-elapsed")).to_contain_text(re.compile(r"^1:[45]\d$"))

    seen: set[int] = set()
    for _ in range(4):
        notebook.run(3)
        expect(card(notebook, 3).locator(".progress-bar")).to_have_count(5)
        seen.add(listeners(notebook))
    assert len(seen) == 1
    notebook.assert_clean()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_looks(open_notebook: OpenNotebook, theme: Any) -> None:
    states = {
        "running": "card(tree(silent=2))",
        "cancelled": "finish(card(tree()), 'cancelled', stop_latency_s=0.3)",
        "failed": "finish(card(tree()), 'failed', detail='TensorRT ran out of memory.', errors=1)",
        "done": "finish(card(tree()), 'succeeded', engine_bytes=102_400_000)",
    }
    notebook = open_notebook([FAKE, *states.values()])
    notebook.theme(theme)
    for index, name in enumerate(["fake", *states]):
        notebook.run(index)
        if index:
            expect(card(notebook, index).locator(".progress-bar")).to_have_count(5)
            notebook.screenshot(index, f"card-{name}-{theme}")
    notebook.theme("light")
    notebook.assert_clean()
