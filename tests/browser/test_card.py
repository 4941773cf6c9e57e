"""The card in a real JupyterLab, with states made by hand: what a build would say, at will."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

import trt_widget.widget
from tests.run import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.browser.conftest import OpenNotebook
    from tests.browser.harness import Lab, Notebook

FAKE = Path(__file__).with_name("fake_card.py").read_text("utf-8")
TOOLS = Path(__file__).with_name("page_tools.js").read_text("utf-8")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = '<img src=x onerror="window.pwned = 1"><script>window.pwned = 2</script>'
BLUE, GREEN = "rgb(25, 118, 210)", "rgb(56, 142, 60)"

MANAGER = """() => {
    const find = widget => {
        const manager = widget._view?.model?.widget_manager;
        if (manager) return manager;
        for (const child of widget.children()) {
            const found = find(child);
            if (found) return found;
        }
    };
    return find(window.panel);
}"""
"""Gives ipywidgets' manager of the notebook's models."""


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
        f"""async layout => {{
            let count = 0;
            for (const promise of Object.values(({MANAGER})()._models)) {{
                const model = await promise;
                if (model.model_id === layout) continue;
                const {{'msg:custom': _, ...events}} = model._events ?? {{}};
                count += Object.values(events).flat().length;
                count += Object.keys(model.views ?? {{}}).length;
            }}
            return count;
        }}""",
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
    # After a second it would be silent again.
    notebook.kernel("touch(c, ahead=60)")
    expect(view.locator(".trt-bar[data-indeterminate]")).to_have_count(0)
    # A phase that does not say how many steps it has.
    notebook.kernel("touch(c, total=0, step=0)")
    expect(refit.locator(".trt-steps")).to_have_text("")
    expect(refit.locator(".trt-bar")).not_to_have_attribute("aria-valuenow", re.compile("."))
    notebook.assert_clean()


ESTIMATE = (
    "progress=0.42, eta_s=112., basis='from 3 earlier builds of this network', usual_s=190., "
    "build_id='ab12'"
)


def test_progress_and_time_left(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, f"c = card(tree(), {ESTIMATE}); c", "d = card(tree()); d"])
    for index in range(3):
        notebook.run(index)
    view, unknown = card(notebook, 1), card(notebook, 2)
    whole = view.get_by_role("progressbar", name="Whole build")
    expect(whole).to_have_attribute("aria-valuenow", "42")
    expect(whole).to_have_attribute("aria-valuetext", "42 %, about 2 min left")
    expect(whole).to_have_accessible_description("from 3 earlier builds of this network")
    words = view.locator(".trt-outlook")
    expect(words).to_have_text("42 %about 2 min leftfrom 3 earlier builds of this network")

    # Between two messages it goes on here, and what another message says is no way back.
    notebook.kernel("beat(c, progress=0.5, eta_s=20)")
    expect(words).to_contain_text(re.compile(r"5[0-9] %about 20 s left"))
    expect(words).to_contain_text(re.compile(r"5[2-9] %about 15 s left"))
    before = int(whole.get_attribute("aria-valuenow") or "")
    notebook.kernel("beat(c, progress=0.4, eta_s=60)")
    expect(words).to_contain_text("about 1 min left")
    assert int(whole.get_attribute("aria-valuenow") or "") >= before
    # Before the end nothing is complete.
    notebook.kernel("beat(c, progress=1.0, eta_s=0.01)")
    expect(words).to_contain_text("99 %a few seconds left")
    time.sleep(1)
    expect(words).to_contain_text("99 %a few seconds left")

    notebook.kernel("beat(c, progress=0.93, eta_s=None, exceeded=True, usual_s=41.2)")
    expect(whole).to_have_attribute("aria-valuetext", "99 %, takes longer than the expected 41 s")
    expect(words).not_to_contain_text("left")
    notebook.kernel("beat(c, status='cancelling', can_cancel=False)")
    expect(whole).to_have_attribute("aria-valuetext", "99 %")
    for status in ("cancelled", "failed", "succeeded"):
        notebook.kernel(f"finish(c, '{status}')")
        expect(view).to_have_attribute("data-status", status)
        expect(whole).to_be_hidden()
        expect(words).to_be_hidden()

    # Without anything to go by: what runs and since when, no figure that is invented.
    whole = unknown.get_by_role("progressbar", name="Whole build")
    expect(whole).to_have_attribute("data-indeterminate", "")
    expect(whole).not_to_have_attribute("aria-valuenow", re.compile("."))
    expect(whole).to_have_attribute("aria-valuetext", "time left not known")
    expect(unknown.locator(".trt-elapsed")).to_have_text(re.compile(r"^\d+(\.\d)? s$"))
    expect(unknown.locator(".trt-note")).to_contain_text("Determining refit engines")
    expect(unknown).not_to_contain_text("%")
    # The first callback that tells more.
    notebook.kernel("beat(d, progress=0.004, eta_s=3000)")
    expect(whole).to_have_attribute("aria-valuetext", "0 %, about 50 min left")
    assert whole.get_attribute("data-indeterminate") is None
    notebook.assert_clean()


def test_progress_is_told_rarely(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree(), progress=0.2, eta_s=100); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-percent")).to_have_text("20 %")
    view.locator(".trt-live").evaluate(
        """live => {
            window.said = [];
            new MutationObserver(() => window.said.push([performance.now(), live.textContent]))
                .observe(live, {childList: true, characterData: true, subtree: true});
        }"""
    )
    # Three quarters in no time; what is told of them is told once, and says what is true then.
    for percent in (30, 55, 80):
        notebook.kernel(f"beat(c, progress={percent / 100}, eta_s={100 - percent})")
        time.sleep(0.4)
    for _ in range(8):
        notebook.kernel("beat(c, progress=0.81, eta_s=60)")
        time.sleep(3)
    said = notebook.page.evaluate("window.said")
    print(said)
    assert said
    assert all(later[0] - earlier[0] >= 19_900 for earlier, later in pairwise(said))
    assert re.fullmatch(r"resnet50\.onnx: 8\d %, about (1 min|[45]\d s) left", said[-1][1])
    notebook.kernel("finish(c, 'succeeded')")
    expect(view.locator(".trt-live")).to_contain_text("Succeeded")
    notebook.assert_clean()


def test_the_tree_folds_after_success(open_notebook: OpenNotebook) -> None:
    cells = [f"{name} = card(tree()); {name}" for name in "cde"]
    notebook = open_notebook([FAKE, *cells])
    for index in range(4):
        notebook.run(index)
    view, kept, failed = (card(notebook, index) for index in (1, 2, 3))
    expect(view.locator(".trt-row:visible")).to_have_count(5)
    summary = view.locator(".trt-tree > summary")
    expect(summary).to_have_text("5 phases")
    toggle = view.get_by_role("button", name="Phases in Building engine", exact=True)
    toggle.focus()
    notebook.kernel("finish(c, 'succeeded')")
    expect(view.locator(".trt-row:visible")).to_have_count(0)
    # What had the focus is folded away.
    expect(summary).to_be_focused()
    notebook.page.keyboard.press("Enter")
    expect(view.locator(".trt-row:visible")).to_have_count(5)
    # The last state comes twice: what the person chose stays.
    notebook.kernel("beat(c)")
    time.sleep(0.6)
    expect(view.locator(".trt-row:visible")).to_have_count(5)
    notebook.page.keyboard.press("Space")
    expect(view.locator(".trt-row:visible")).to_have_count(0)

    for _ in range(2):
        kept.locator(".trt-tree > summary").click()
    notebook.kernel("finish(d, 'succeeded')")
    expect(kept).to_have_attribute("data-status", "succeeded")
    expect(kept.locator(".trt-row:visible")).to_have_count(5)

    for status in ("cancelled", "failed", "ended"):
        notebook.kernel(f"finish(e, '{status}')")
        expect(failed).to_have_attribute("data-status", status)
        expect(failed.locator(".trt-row:visible")).to_have_count(5)
    notebook.assert_clean()


def test_the_slowest_phases(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, "c = card(tree(), slowest=SLOWEST); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-row")).to_have_count(5)
    slowest = view.get_by_role("list", name="Slowest phases")
    expect(slowest).to_have_count(0)
    notebook.kernel("finish(c, 'succeeded', warnings=2, engine_bytes=1_000_000)")
    expect(view.locator(".trt-note")).to_have_text("Engine of 1.0 MB built in 7.40 s · 2 warnings")
    expect(slowest.get_by_role("listitem")).to_have_text(
        [
            "Determining refit engines5.11 s69 %",
            "Optimizing graph1.32 s18 %",
            "Cloning0.41 s6 %",
            "Building engine0.31 s4 %",
            "Building engine from subgraph20 ms<1 %",
        ]
    )
    widths = slowest.locator(".trt-slow-bar").evaluate_all(
        "bars => bars.map(bar => bar.firstElementChild.offsetWidth / bar.offsetWidth)"
    )
    assert widths == sorted(widths, reverse=True)
    assert abs(widths[0] - 0.69) < 0.02
    # A failure has something else to say first.
    notebook.kernel("finish(c, 'failed', detail='why')")
    expect(slowest).to_have_count(0)
    # Whatever is in there.
    notebook.kernel(
        "finish(c, 'succeeded', slowest=[{}, dict(label='x', share=7, self_s=None), "
        "dict(label='y', share=float('nan'))])"
    )
    expect(slowest.get_by_role("listitem")).to_have_text(["0 %", "x100 %", "y0 %"])
    notebook.assert_clean()


def test_the_timeline_is_there_while_somebody_looks(open_notebook: OpenNotebook) -> None:
    code = """
c = card(tree())
p = Picture()
seen = []
p.on_msg(lambda _widget, content, _buffers: seen.append(content))
c
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".progress-bar")).to_have_count(5)
    fold = view.locator(".trt-timeline-fold")
    expect(fold).to_be_hidden()
    notebook.kernel("c.timeline = p")
    summary = fold.locator("summary")
    expect(summary).to_have_text("Timeline")
    before = listeners(notebook)
    assert notebook.kernel("print(seen)") == "[]\n"
    for _ in range(3):
        summary.focus()
        notebook.page.keyboard.press("Enter")
        expect(fold.locator(".trt-timeline-host")).to_have_text("the timeline")
        notebook.kernel("p.text = 'another'")
        expect(fold.locator(".trt-timeline-host")).to_have_text("another")
        notebook.kernel("p.text = 'the timeline'")
        notebook.page.keyboard.press("Enter")
        expect(fold.locator(".trt-timeline-host")).to_be_empty()
    # Folded again before it has come.
    notebook.page.evaluate(
        f"""() => {{
            const manager = ({MANAGER})(), create = manager.create_view;
            manager.create_view = async (...how) => {{
                await new Promise(resolve => setTimeout(resolve, 400));
                return create.apply(manager, how);
            }};
        }}"""
    )
    notebook.page.keyboard.press("Enter")
    expect(fold).to_have_attribute("open", "")
    time.sleep(0.1)
    notebook.page.keyboard.press("Enter")
    time.sleep(1)
    expect(fold.locator(".trt-timeline-host")).to_be_empty()
    assert listeners(notebook) == before
    opened = notebook.kernel("print(seen.count('opened'), seen.count('closed'))").split()
    assert int(opened[0]) >= 4
    assert opened[0] == opened[1]

    # It goes with the card, and one that is not there does no harm.
    summary.click()
    expect(fold.locator(".trt-timeline-host")).to_have_text("the timeline")
    notebook.kernel("p.close()")
    expect(fold.locator(".trt-timeline-host")).to_be_empty()
    summary.click()
    summary.click()
    expect(fold.locator(".trt-timeline-host")).to_have_text(
        "The kernel no longer has the timeline."
    )
    notebook.kernel("c.timeline = q = Picture(text='new')")
    expect(fold.locator(".trt-timeline-host")).to_have_text("new")
    # Without a phase there is nothing to see.
    notebook.kernel("rows, c.rows = c.rows, []")
    expect(fold).to_be_hidden()
    notebook.kernel("c.rows = rows")
    expect(fold.locator(".trt-timeline-host")).to_have_text("new")
    notebook.kernel("c.timeline = None")
    expect(fold).to_be_hidden()


def test_what_is_saved_is_not_seen_twice(open_notebook: OpenNotebook) -> None:
    code = """
display(c := card(tree(), build_id="ab12"))
saved("ab12")
saved("ab1")
saved("cd34", "")
display(d := card(tree(), build_id="cd34"))
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    output = notebook.output(1)
    ours, other, empty = (
        output.locator(f".trt-saved-{build}") for build in ("ab12", "ab1", "cd34")
    )
    expect(output.locator(".trt-build").first).to_have_attribute("data-build-id", "ab12")
    # While it runs only what is empty takes no room.
    expect(ours).to_be_visible()
    places = output.locator(".jp-OutputArea-child:visible")
    expect(places).to_have_count(4)
    assert empty.evaluate("each => getComputedStyle(each).display") == "none"
    notebook.kernel("finish(c, 'succeeded')")
    expect(ours).to_be_hidden()
    expect(places).to_have_count(3)
    expect(other).to_be_visible()
    # A browser that does not know `:has` hides it all the same.
    changed = output.locator(".trt-build > style").evaluate_all(
        """styles => styles.map(each => {
            each.textContent = each.textContent.replaceAll(':has(', ':no-such(');
            return each.textContent.includes(':no-such(');
        })"""
    )
    assert changed == [True, True]
    assert ours.evaluate("each => getComputedStyle(each).display") == "none"
    # Nothing is built from what is no such name.
    for bad in ("ab12,*", "}*{display:none", "AB12", "", None):
        notebook.kernel(f"beat(c, build_id={bad!r})")
        expect(ours).to_be_visible()
    notebook.kernel("beat(c, build_id='ab12')")
    expect(ours).to_be_hidden()
    # Where the card is gone, it is there.
    notebook.kernel("c.close()")
    expect(output.locator(".trt-build")).to_have_count(1)
    expect(ours).to_be_visible()
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
    expect(view.locator(".trt-cancel")).to_have_text("Cancelling…")
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
    expect(view.locator(".trt-note")).to_contain_text("waits for TensorRT's next callback")
    notebook.kernel("finish(c, 'cancelled', stop_latency_s=0.3, ending='at the next step')")
    expect(view.locator(".trt-note")).to_have_text("Stopped after 0.30 s (at the next step)")
    expect(view.locator(".trt-live")).to_contain_text("Cancelled")
    notebook.assert_clean()


def test_where_it_runs_and_how_it_stops(open_notebook: OpenNotebook) -> None:
    code = """
def placed(executor, where, **header):
    return card(tree(silent=3), executor=executor, where=where, **header)
c = placed("process", "in a child process", grace=6)
c
"""
    thread = "d = placed('thread', 'in a thread of this kernel', notes=['Built so: why.']); d"
    notebook = open_notebook([FAKE, code, thread])
    for index in range(3):
        notebook.run(index)
    view, other = card(notebook, 1), card(notebook, 2)
    expect(view.locator(".trt-meta")).to_have_text("TensorRT-RTX 1.7.1.116 · in a child process")
    expect(view.locator(".trt-notes")).to_be_hidden()
    button = view.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_have_accessible_description(
        "Asks TensorRT to stop; the build process is ended after 6 s"
    )
    expect(other.locator(".trt-meta")).to_contain_text("in a thread of this kernel")
    expect(other.locator(".trt-notes")).to_have_text("Built so: why.")
    expect(other.get_by_role("button", name="Cancel", exact=True)).to_have_accessible_description(
        "A build in this kernel itself can stop only at one of TensorRT's callbacks"
    )

    # The countdown ticks in the browser: one message for all of it.
    notebook.kernel("beat(c, status='cancelling', cancel_requested=time.time())")
    note = view.locator(".trt-note")
    left = re.compile(r"· asked TensorRT to stop; the build process is ended in (\d\.\d) s$")
    expect(note).to_have_text(left)
    seen = []
    for _ in range(3):
        found = left.search(note.text_content() or "")
        assert found
        seen.append(float(found[1]))
        time.sleep(0.6)
    assert 6 >= seen[0] > seen[1] > seen[2] > 0
    notebook.kernel("beat(c)")  # without any news the card would say just that
    expect(note).to_have_text(re.compile("the build process is being ended$"))
    notebook.kernel(
        "finish(c, 'cancelled', stop_latency_s=4.03, ending='build process terminated', "
        "peak_memory_bytes=612_300_000)"
    )
    expect(note).to_have_text(
        "Stopped after 4.03 s (build process terminated) · peak memory 612 MB"
    )

    notebook.kernel("beat(d, status='cancelling', cancel_requested=time.time())")
    expect(other.locator(".trt-note")).to_have_text(
        re.compile(r"^Determining refit engines · waits for TensorRT's next callback")
    )
    expect(other.locator(".trt-note")).to_contain_text(re.compile(r"the last one was \d.* ago"))
    notebook.kernel("finish(d, 'succeeded', engine_bytes=1_000_000, peak_memory_bytes=2_345e6)")
    expect(other.locator(".trt-note")).to_have_text(
        "Engine of 1.0 MB built in 7.40 s · peak memory of this kernel 2.35 GB"
    )
    notebook.assert_clean()


def test_a_crash_with_all_that_is_known(open_notebook: OpenNotebook) -> None:
    code = """
c = card(tree(), executor="process", where="in a child process", errors=1, messages=[
    {"time": 1.0, "severity": "error", "message": "Error Code 2: Internal"}])
c.printed = "[1] line\\n    <b>indented</b>"
finish(c, "failed", detail="The build process died with SIGSEGV.", failure={
    "cause": "The build process died with SIGSEGV.", "details": "",
    "facts": [["Signal", "SIGSEGV"], ["Phase", "Building engine > <i>x</i>"]],
    "evidence": ["It ended by itself.", "<u>2</u>"], "remedy": "Report it.",
    "words": ["said <s>this</s>"], "more": 3})
c
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-note")).to_have_text("The build process died with SIGSEGV.")
    expect(view.locator(".trt-facts dt")).to_have_text(["Signal", "Phase"])
    expect(view.locator(".trt-facts dd")).to_have_text(["SIGSEGV", "Building engine > <i>x</i>"])
    expect(view.locator(".trt-evidence li")).to_have_text(["It ended by itself.", "<u>2</u>"])
    expect(view.locator(".trt-explanation > .trt-sentences")).to_have_text("Report it.")
    words = view.locator(".trt-words")
    expect(words.locator(".trt-verbatim")).to_be_hidden()
    summary = words.locator("summary")
    expect(summary).to_have_text("TensorRT said (4 messages)")
    summary.focus()
    notebook.page.keyboard.press("Enter")
    expect(words.locator(".trt-verbatim")).to_have_text("said <s>this</s>")

    # What was printed is folded, too, as plain text with its white space.
    printed = view.get_by_role("group", name="Printed by the build process")
    expect(printed).to_be_hidden()
    log = view.locator(".trt-log > summary")
    expect(log).to_have_text("1 error from TensorRT, 2 lines printed")
    log.focus()
    notebook.page.keyboard.press("Enter")
    expect(printed).to_be_visible()
    # The text comes with the next frame; to_have_text would not see its white space.
    expect(printed).to_have_js_property("textContent", "[1] line\n    <b>indented</b>")
    assert "pre" in printed.evaluate("element => getComputedStyle(element).whiteSpace")
    assert view.locator("b, i, u, s").count() == 0
    notebook.kernel("c.printed = 'another'")
    expect(printed).to_have_text("another")
    notebook.kernel("c.messages = []; beat(c, errors=0)")
    expect(log).to_have_text("1 line printed")
    notebook.assert_clean()


def test_pending(open_notebook: OpenNotebook) -> None:
    pending = "PENDING = dict(status='pending', blocked_by='a.onnx', can_cancel_blocker=True)\n"
    notebook = open_notebook([FAKE, f"{pending}c = card(**PENDING); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-note-text")).to_have_text("Waiting for a.onnx to finish")
    view.get_by_role("button", name="Cancel a.onnx").click()
    expect(view.locator(".trt-cancel-blocker")).to_have_text("Cancelling a.onnx…")
    expect(view.locator(".trt-cancel")).to_have_text("Cancel")
    assert notebook.kernel("print(asked)") == "[{'kind': 'cancel_blocker'}]\n"
    # One of another process is not ours to cancel.
    elsewhere = "a.onnx in process 4711"
    notebook.kernel(f"beat(c, blocked_by={elsewhere!r}, can_cancel_blocker=False)")
    expect(view.locator(".trt-note-text")).to_have_text(f"Waiting for {elsewhere} to finish")
    expect(view.locator(".trt-cancel-blocker")).to_be_hidden()
    notebook.kernel("beat(c, can_cancel_blocker=True)")
    expect(view.locator(".trt-cancel-blocker")).to_be_visible()
    notebook.kernel("beat(c, status='running', blocked_by=None)")
    expect(view.locator(".trt-cancel-blocker")).to_be_hidden()
    notebook.assert_clean()


def test_no_news_is_no_verdict(open_notebook: OpenNotebook) -> None:
    waiting = "d = card(status='pending', beats=False); d"
    notebook = open_notebook([FAKE, "c = card(tree()); c", waiting])
    for index in range(3):
        notebook.run(index)
    view, unstarted = card(notebook, 1), card(notebook, 2)
    expect(view.locator(".trt-note")).to_have_text(
        re.compile(r"^No news from the kernel for .* s; it may be busy, restarted or gone$")
    )
    # The kernel was asked, and still has the comm: no verdict.
    time.sleep(1)
    expect(view).to_have_attribute("data-lost", "quiet")
    expect(view.locator(".trt-status")).to_have_text("No news")
    expect(view.get_by_role("button", name="Cancel", exact=True)).to_have_attribute(
        "aria-disabled", "false"
    )
    stopped = view.locator(".trt-elapsed").text_content()
    time.sleep(1.5)
    assert view.locator(".trt-elapsed").text_content() == stopped
    # One that was not started sends nothing.
    expect(unstarted).not_to_have_attribute("data-lost", re.compile("."))
    notebook.kernel("beat(c)")
    expect(view).not_to_have_attribute("data-lost", re.compile("."))
    expect(view.locator(".trt-elapsed")).not_to_have_text(stopped or "")
    notebook.assert_clean()


def test_a_kernel_that_was_restarted_behind_the_pages_back(open_notebook: OpenNotebook) -> None:
    """Only the kernel itself can tell then: it no longer has the comm."""
    notebook = open_notebook([FAKE, "c = card(tree()); c"])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    notebook.kernel("from comm import get_comm_manager; get_comm_manager().comms.clear()")
    expect(view.locator(".trt-note")).to_have_text("The kernel has gone; the build ended with it")
    expect(view).to_have_attribute("data-lost", "gone")
    # A header that comes after all is right.
    notebook.kernel("get_comm_manager().register_comm(c.comm); beat(c)")
    expect(view).not_to_have_attribute("data-lost", re.compile("."))
    expect(view.locator(".trt-status")).to_have_text("Running")
    notebook.assert_clean()


def test_foreign_text(open_notebook: OpenNotebook) -> None:
    code = f"""
evil = {HOSTILE!r}
names = (evil, "\u05e9\u05db\u05d1\u05d4", "long " * 60)
c = card([(depth, name, "running", 1, 3) for depth, name in enumerate(names)],
         name=evil, backend=evil, device=evil, detail=evil, blocked_by=evil, where=evil,
         can_cancel_blocker=True, notes=[evil], basis=evil, progress=0.5, usual_s=evil, eta_s=evil,
         slowest=[dict(label=evil, path=evil, self_s=evil, share=evil)], build_id=evil,
         messages=[{{"time": 1.0, "severity": "error", "message": evil}}], errors=1)
c.printed = evil
everything = dict(cause=evil, facts=[(evil, evil)], details=evil, evidence=[evil], remedy=evil,
                  words=[evil])
c
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".trt-label").first).to_have_text(HOSTILE)
    for status in ("pending", "running", "failed"):
        notebook.kernel(f"beat(c, status='{status}', failure=everything)")
        expect(view).to_have_attribute("data-status", status)
        if status == "running":
            expect(view.locator(".trt-basis")).to_have_text(HOSTILE)
    notebook.kernel("beat(c, status='cancelled')")
    expect(view.locator(".trt-slow-label")).to_have_text(HOSTILE)
    notebook.kernel("beat(c, status='failed')")
    view.locator(".trt-log summary").click()
    expect(view.locator(".trt-log-text")).to_have_text(HOSTILE)
    expect(view.locator(".trt-printed")).to_have_text(HOSTILE)
    expect(view.locator(".trt-explanation")).to_contain_text(HOSTILE)
    assert view.locator("img, script").count() == 0
    assert notebook.page.evaluate("window.pwned") is None
    # Nothing is wider than the cell.
    for width in (880, 320):
        view.evaluate("(element, width) => { element.style.maxWidth = `${width}px`; }", width)
        assert view.evaluate("element => element.scrollWidth <= element.clientWidth")
        for each in view.locator(".trt-row").all():
            assert each.evaluate("element => element.scrollWidth <= element.clientWidth")
    notebook.assert_clean()


BARE = """
async ([module, state]) => {
    const blob = new Blob([module], {type: 'text/javascript'});
    const {default: widget} = await import(URL.createObjectURL(blob));
    const listeners = {};
    const model = {
        get: key => state[key],
        on: (name, callback) => { (listeners[name] ??= new Set()).add(callback); },
        off: (name, callback) => { listeners[name]?.delete(callback); },
        send: () => {},
        widget_manager: {get_model: async id => { throw new Error(`Model not found: ${id}`); }},
    };
    window.change = changes => {
        Object.assign(state, changes);
        for (const name of Object.keys(changes)) {
            for (const callback of listeners[`change:${name}`] ?? []) callback();
        }
    };
    const {signal} = new AbortController(), {initialize, render} = widget();
    initialize({model, signal});
    render({model, signal, el: document.body});
}
"""


def test_a_front_end_without_views_of_other_widgets(lab: Lab) -> None:
    """So is marimo 0.25, which is not installed for the tests: this much its models offer."""
    page = lab.context.new_page()
    try:
        header = {"name": "m.onnx", "status": "running", "started": 1000, "now": 1001}
        state = {"header": header, "rows": [], "timeline": "IPY_MODEL_t"}
        module = Path(trt_widget.widget.__file__).parent / "static" / "build.js"
        page.evaluate(BARE, [module.read_text("utf-8"), state])
        view = page.locator(".trt-build")
        note = view.locator(".trt-note")
        expect(note).to_have_text("Reading the network; no phase yet")
        expect(view.locator(".trt-timeline-fold")).to_be_hidden()
        page.evaluate("change({rows: ['IPY_MODEL_a', 'IPY_MODEL_b']})")
        expect(note).to_have_text("This front end cannot show the phases' bars")
        # Of its callbacks the card itself knows.
        silent = {**header, "now": 1020, "last_callback": 1010}
        page.evaluate("header => change({header})", silent)
        expect(note).to_have_text(
            re.compile(r"^This front end cannot show the phases' bars · no callback for [1-5]\d s")
        )
        view.locator(".trt-timeline-fold > summary").click()
        expect(view.locator(".trt-timeline-host")).to_have_text(
            "This front end cannot show the timeline in the card; w.timeline in a cell shows it on "
            "its own."
        )
        page.evaluate("change({timeline: null})")
        expect(view.locator(".trt-timeline-fold")).to_be_hidden()
    finally:
        page.close()


def test_rows_without_a_model(open_notebook: OpenNotebook) -> None:
    code = "c = card(tree()); c.rows[1].close(); c"
    none = "d = card(tree()); [row.close() for row in d.rows]; d"
    notebook = open_notebook([FAKE, code, none])
    for index in range(3):
        notebook.run(index)
    view = card(notebook, 1)
    expect(view.locator(".trt-row")).to_have_count(4)
    expect(card(notebook, 2).locator(".trt-note")).to_have_text(
        re.compile("^The phases' bars cannot be loaded")
    )
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
    expect(view.locator(".trt-elapsed")).to_contain_text(re.compile(r"^[1-9]:\d\d$"))

    seen: set[int] = set()
    for _ in range(4):
        notebook.run(3)
        expect(card(notebook, 3).locator(".progress-bar")).to_have_count(5)
        seen.add(listeners(notebook))
    assert len(seen) == 1
    notebook.assert_clean()


def spoken(view: Locator) -> str:
    """Give what Chromium tells assistive technology of a card, a line for each thing.

    Times of callbacks and clocks are left out. Values as texts are not in there: Chromium gives
    them to the system only.
    """
    page = view.page
    view.evaluate("card => { window.spoken = card; }")
    session = page.context.new_cdp_session(page)
    try:
        session.send("Accessibility.enable")
        card = session.send("Runtime.evaluate", {"expression": "window.spoken"})["result"]
        found = session.send("Accessibility.queryAXTree", {"objectId": card["objectId"]})["nodes"]
    finally:
        session.detach()
    lines: list[str] = []
    for node in found:
        role = node["role"]["value"]
        if node["ignored"] or role in {"generic", "InlineTextBox"}:
            continue
        name = re.sub(r"^\d+(\.\d+)? m?s$", "(time)", node.get("name", {}).get("value", ""))
        if role == "StaticText":
            # The text of a button is its name.
            if f" {name}" not in lines[-1]:
                lines.append(name.strip())
            continue
        state = {each["name"]: each["value"].get("value") for each in node["properties"]}
        parts = [role, name, str(node["value"]["value"]) if "value" in node else ""]
        if "valuemax" in state and "value" in node:
            parts.append(f"of {state['valuemax']}")
        parts += ["" if "expanded" not in state else "open" if state["expanded"] else "folded"]
        parts += ["disabled" if state.get("disabled") else ""]
        lines.append(" ".join(part for part in parts if part))
    return "\n".join(lines)


TWO = "[(0, 'Building engine', 'running', 4, 6), (1, 'Cloning', 'running', 1, 3)]"
PHASES = """
list Phases
listitem
button Phases in Building engine open
progressbar Building engine 4 of 6
(time)
listitem
Cloning
progressbar Cloning 1 of 3
(time)
"""
SLOW = """
Slowest phases
list Slowest phases
listitem
Determining refit engines
(time)
69 %
listitem
Optimizing graph
(time)
18 %
"""
SPOKEN = {
    f"card({TWO}, {ESTIMATE})": f"""
group TensorRT build of resnet50.onnx
Running
resnet50.onnx
(time)
button Cancel
TensorRT-RTX 1.7.1.116
progressbar Whole build 42 of 100
42 %
about 2 min left
from 3 earlier builds of this network
Cloning
group
DisclosureTriangle 2 phases open
{PHASES}
status
resnet50.onnx: Running""",
    f"card({TWO})": f"""
group TensorRT build of resnet50.onnx
Running
resnet50.onnx
(time)
button Cancel
TensorRT-RTX 1.7.1.116
progressbar Whole build
time left not known
Cloning
group
DisclosureTriangle 2 phases open
{PHASES}
status
resnet50.onnx: Running""",
    f"card({TWO}, progress=0.93, exceeded=True, usual_s=41.0)": f"""
group TensorRT build of resnet50.onnx
Running
resnet50.onnx
(time)
button Cancel
TensorRT-RTX 1.7.1.116
progressbar Whole build 93 of 100
93 %
takes longer than the expected 41 s
Cloning
group
DisclosureTriangle 2 phases open
{PHASES}
status
resnet50.onnx: Running""",
    f"""w = card({TWO}, messages=[{{"severity": "warning", "message": "w"}}])
w.timeline = Picture()
finish(w, "succeeded", engine_bytes=102_400_000, warnings=1, slowest=SLOWEST[:2])""": f"""
group TensorRT build of resnet50.onnx
Succeeded
resnet50.onnx
(time)
TensorRT-RTX 1.7.1.116
Engine of 102.4 MB built in 7.40 s
· 1 warning
{SLOW}
group
DisclosureTriangle 2 phases folded
group
DisclosureTriangle Timeline folded
group
DisclosureTriangle 1 warning from TensorRT folded
status""",
    f"finish(card({TWO}), 'failed', detail='It broke.', failure=dict(remedy='Mend it.'))": f"""
group TensorRT build of resnet50.onnx
Failed
resnet50.onnx
(time)
TensorRT-RTX 1.7.1.116
It broke.
group Explanation
What to do
Mend it.
group
DisclosureTriangle 2 phases open
{PHASES}
status""",
    f"finish(card({TWO}), 'cancelled', stop_latency_s=0.3, slowest=SLOWEST[:2])": f"""
group TensorRT build of resnet50.onnx
Cancelled
resnet50.onnx
(time)
TensorRT-RTX 1.7.1.116
Stopped after 0.30 s
{SLOW}
group
DisclosureTriangle 2 phases open
{PHASES}
status""",
}


def test_what_a_screen_reader_finds(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([FAKE, *SPOKEN])
    notebook.run(0)
    for index, expected in enumerate(SPOKEN.values(), 1):
        notebook.run(index)
        view = card(notebook, index)
        expect(view.locator(".progress-bar")).to_have_count(2)
        notebook.page.evaluate("new Promise(requestAnimationFrame)")
        assert spoken(view).split("\n") == [line for line in expected.split("\n") if line]
    # What names or describes something is found by its id, in a page of many cards.
    ids = notebook.page.evaluate(
        "[...document.querySelectorAll('.trt-build [id]')].map(each => each.id)"
    )
    assert len(ids) > len(SPOKEN)
    assert len(ids) == len(set(ids))
    notebook.assert_clean()


PLACE = "executor='process', where='in a child process'"
CRASH = (
    "cause='The build process died with SIGSEGV.', details='', evidence=['It ended by itself.',"
    " 'The most memory that was seen: 612 MB.'], facts=[('Signal', 'SIGSEGV'), ('Phase', "
    "'Building engine > Determining refit engines')], remedy='Please report it.', "
    "words=['Internal error']"
)
RTL = "\u05e9\u05db\u05d1\u05d4 \u05e8\u05d0\u05e9\u05d5\u05e0\u05d4"
STATES = {
    "running": f"card(tree(silent=2), {PLACE}, grace=2)",
    "estimate": f"card(tree(silent=2), {PLACE}, grace=2, {ESTIMATE})",
    "exceeded": f"card(tree(silent=6), {PLACE}, grace=2, progress=0.93, exceeded=True, "
    "usual_s=41, basis='from 12 other networks, within a factor of 1.5')",
    "cancelling": f"card(tree(silent=6), {PLACE}, grace=200, status='cancelling', "
    f"can_cancel=False, cancel_requested=time.time(), {ESTIMATE})",
    "terminated": f"finish(card(tree(), {PLACE}), 'cancelled', stop_latency_s=2.03, "
    "ending='build process terminated', peak_memory_bytes=612e6, slowest=SLOWEST[:3])",
    "thread": "card(tree(silent=2), executor='thread', where='in a thread of this kernel', "
    "notes=['Built in a thread of this process: a live config cannot travel.'])",
    "crashed": f"d = finish(card(tree(), {PLACE}, messages=[dict(time=1., severity='error', "
    "message='Error Code 2: Internal Error')]), 'failed', errors=1, "
    f"detail='The build process died with SIGSEGV.', failure=dict({CRASH}))\n"
    "d.printed = 'Loading plugin …\\nSegmentation fault'\nd",
    "done": f"e = finish(card(tree(), {PLACE}, warnings=2, messages=[dict(time=1., "
    "severity='warning', message='TensorRT may use more memory.')] * 2), 'succeeded', "
    "engine_bytes=102_400_000, peak_memory_bytes=1_234e6, slowest=SLOWEST)\n"
    "e.timeline = Picture()\ne",
    "one": f"card([(0, 'Building engine', 'running', 1, 6)], name='{'n' * 300}', {ESTIMATE})",
    "crowded": f"card([(i % 6, f'{RTL} {{i}} ' * (1 + i % 4), 'running', i, 40) for i in "
    f"range(40)], name='{RTL}.onnx', {PLACE}, more_paths=12, progress=0.07, eta_s=9000, "
    f"basis='{RTL}')",
}
ROWS = {"one": 1, "crowded": 40}
#: Widths in points, and how far one has zoomed in.
WIDTHS = ((320, 1), (540, 1), (1000, 1), (320, 2))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_at_every_width(open_notebook: OpenNotebook, theme: Any) -> None:
    notebook = open_notebook([FAKE, *STATES.values()])
    notebook.theme(theme)
    notebook.page.evaluate(TOOLS)
    notebook.page.evaluate(AXE.read_text("utf-8"))
    for index in range(len(STATES) + 1):
        notebook.run(index)
    faint: list[Any] = []
    for index, name in enumerate(STATES, 1):
        view = card(notebook, index)
        view.scroll_into_view_if_needed()
        expect(view.locator(".progress-bar")).to_have_count(ROWS.get(name, 5))
        # All that is folded, too.
        view.evaluate(
            """card => {
                const folded = card.querySelectorAll('details:not([open], [hidden]) > summary');
                for (const summary of folded) summary.click();
            }"""
        )
        for width, zoom in WIDTHS:
            view.evaluate(
                """(card, [width, zoom]) => {
                    card.style.maxWidth = `${width}px`;
                    card.style.zoom = zoom;
                }""",
                [width, zoom],
            )
            wide = view.evaluate(
                """card => [card, ...card.querySelectorAll('*')].filter(each =>
                    each.checkVisibility() && !each.closest('.trt-label, .trt-name, .trt-live')
                    && each.getBoundingClientRect().right > card.getBoundingClientRect().right + 0.5
                ).map(each => each.className)"""
            )
            assert wide == [], (name, width, zoom)
            cut = view.locator(".trt-facts").evaluate_all(
                "lists => lists.filter(each => each.scrollHeight > each.clientHeight + 1).length"
            )
            assert cut == 0, (name, width)
            if width == 320 and name in {"cancelling", "crashed", "estimate", "done"}:
                notebook.screenshot(index, f"card-{name}-narrow-{zoom}-{theme}")
        faint += [
            (name, *text)
            for text in view.evaluate("card => window.trt.textContrasts(card)")
            if text[2] < (3 if text[0].endswith("icon") else 4.5)
        ]
        faint += [
            (name, *fill)
            for fill in view.evaluate("card => window.trt.fillContrasts(card)")
            if fill[1] < 3
        ]
        found = notebook.page.evaluate("async () => (await axe.run('.trt-build')).violations")
        faint += [
            (name, violation["id"], node["html"])
            for violation in found
            for node in violation["nodes"]
        ]
    assert faint == []
    notebook.theme("light")
    notebook.assert_clean()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_looks(open_notebook: OpenNotebook, theme: Any) -> None:
    notebook = open_notebook([FAKE, *STATES.values()])
    notebook.theme(theme)
    for index, name in enumerate(["fake", *STATES]):
        notebook.run(index)
        if index:
            expect(card(notebook, index).locator(".progress-bar")).to_have_count(ROWS.get(name, 5))
            if name == "crashed":
                card(notebook, index).locator(".trt-log > summary").click()
            notebook.screenshot(index, f"card-{name}-{theme}")
    notebook.theme("light")
    notebook.assert_clean()


def test_colours_of_the_system(open_notebook: OpenNotebook) -> None:
    names = ("estimate", "running", "done", "terminated")
    notebook = open_notebook([FAKE, *(STATES[name] for name in names)])
    notebook.page.emulate_media(forced_colors="active")
    try:
        notebook.page.evaluate(TOOLS)
        notebook.run(0)
        for index, name in enumerate(names, 1):
            notebook.run(index)
            view = card(notebook, index)
            expect(view.locator(".progress-bar")).to_have_count(5)
            notebook.screenshot(index, f"card-{name}-forced-colors")
            # What is filled is seen, whatever it is drawn in.
            for part in view.locator(".trt-whole-fill, .trt-slow-bar > span").all():
                seen = part.evaluate(
                    """part => [part, part.parentElement].map(
                        each => window.trt.rgba(getComputedStyle(each).backgroundColor))"""
                )
                assert seen[0] != seen[1], name
    finally:
        notebook.page.emulate_media(forced_colors="none")
    notebook.assert_clean()


def test_the_keyboard_goes_from_top_to_bottom(open_notebook: OpenNotebook) -> None:
    code = f"""
c = card(tree(), {ESTIMATE}, warnings=1, messages=[dict(severity="warning", message="w")])
c.timeline = Picture()
c
"""
    notebook = open_notebook([FAKE, code])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    expect(view.locator(".progress-bar")).to_have_count(5)
    view.evaluate("card => card.focus()")
    reached, tops = [], []
    for _ in range(6):
        notebook.page.keyboard.press("Tab")
        name, top, outline = notebook.page.evaluate(
            """() => {
                const {ariaLabel, textContent} = document.activeElement;
                const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement);
                const {top} = document.activeElement.getBoundingClientRect();
                return [ariaLabel ?? textContent, top, `${outlineStyle} ${outlineWidth}`];
            }"""
        )
        reached.append(name)
        tops.append(top)
        # Where the focus is, is seen.
        assert outline == "solid 2px", name
    assert reached == [
        "Cancel",
        "5 phases",
        "Phases in Building engine",
        "Phases in Building engine from subgraph",
        "Timeline",
        "1 warning from TensorRT",
    ]
    assert tops == sorted(tops)
    notebook.page.keyboard.press("Enter")
    notebook.page.keyboard.press("Tab")
    expect(view.get_by_role("list", name="Messages")).to_be_focused()
    notebook.assert_clean()
