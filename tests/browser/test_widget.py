"""BuildWidget in a real JupyterLab, with real builds by tensorrt_rtx."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.run import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Locator

    from tests.browser.conftest import OpenNotebook
    from tests.browser.harness import Notebook

TOOLS = Path(__file__).with_name("page_tools.js").read_text("utf-8")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"

IMPORTS = """
import threading, time
import tensorrt_rtx
from trt_widget import BuildWidget
from tests import models
small, resnet = models.light_model("squeezenet"), models.light_model("resnet50")
# A real build with a pause at every step.
def slow(model=resnet, pause=0.01):
    return BuildWidget(model, configure=models.slowly(pause))
gate = threading.Event()
# A real build that stays at a step until the gate opens; the gate is here, so it builds here.
def held(model=small):
    def configure(builder, network, config):
        class Hold(tensorrt_rtx.IProgressMonitor):
            def phase_start(self, *_): pass
            def phase_finish(self, *_): pass
            def step_complete(self, phase, step):
                return phase != "Optimizing graph" or step != 4 or gate.wait(60)
        config.progress_monitor = Hold()
    return BuildWidget(model, configure=configure, executor="thread")
"""
SMALL, RESNET = "light_squeezenet.onnx", "light_resnet50.onnx"
HOSTILE = '<img src=x onerror="window.pwned=1">'
#: Scripts and images, but for the picture that a saved result brings along.
FOREIGN = "script, img:not(.trt-report .trt-image[src^='data:image/svg+xml;base64,'])"


def opened(open_notebook: OpenNotebook, cells: Sequence[str]) -> Notebook:
    """Open a notebook of IMPORTS, which has run, and these cells."""
    notebook = open_notebook([IMPORTS, *cells])
    notebook.page.evaluate(TOOLS)
    notebook.run(0)
    return notebook


def card(notebook: Notebook, index: int) -> Locator:
    """Give the card that a cell shows."""
    return notebook.output(index).locator(".trt-build")


def shown(notebook: Notebook, index: int, status: str, timeout: float = 60) -> Locator:
    """Wait until a cell's card is in this state; give it."""
    view = card(notebook, index)
    expect(view).to_have_attribute("data-status", status, timeout=timeout * 1000)
    return view


def running(notebook: Notebook, index: int) -> Locator:
    """Run a cell that starts a slow build; give its card once there are callbacks."""
    notebook.run(index)
    view = shown(notebook, index, "running")
    expect(view.locator(".trt-row[data-status='running']")).not_to_have_count(0)
    return view


def is_running(notebook: Notebook, index: int) -> bool:
    """Whether a cell that was started has not ended yet."""
    ended: bool = notebook.page.evaluate("index => Boolean(window.runs[index].ended)", index)
    return not ended


def events(notebook: Notebook, what: str) -> list[tuple[float, str]]:
    """Give what page_tools.js has noted of one thing: (time in ms, text)."""
    noted: list[tuple[float, str, str]] = notebook.page.evaluate("window.trt.events")
    return [(time, text) for time, kind, text in noted if kind == what]


def greens(view: Locator) -> list[str]:
    """Give everything in a card that is green."""
    found: list[str] = view.evaluate("card => window.trt.greens(card)")
    return found


def seconds(text: str | None) -> float:
    """Read a time as the card writes it."""
    assert text
    if " ms" in text:
        return float(text.split()[0]) / 1000
    if " s" in text:
        return float(text.split()[0])
    minutes, rest = text.split(":")
    return 60 * int(minutes) + int(rest)


# ------------------------------------------------------------------ the tree


def test_run_all_with_a_wait_in_the_middle(open_notebook: OpenNotebook) -> None:
    cells = [
        "w = slow(small, 0.02).start()\nw",
        "engine = w.wait(); len(engine)",
        "BuildWidget(small).start()",
    ]
    notebook = opened(open_notebook, cells)
    page = notebook.page
    page.evaluate(
        """() => {
            window.all = window.jupyterapp.commands.execute('notebook:run-all-cells');
            window.all.then(() => { window.all.ended = true; });
        }"""
    )
    # The view is live while the second cell waits.
    view = shown(notebook, 1, "running")
    expect(notebook.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")
    bar = view.get_by_role("progressbar", name="Cloning network graph", exact=True)
    expect(bar).to_have_attribute("aria-valuetext", re.compile(r"running, step \d+ of 214"))
    expect(bar).to_have_attribute("aria-valuemax", "214")
    expect(bar).to_have_attribute("aria-valuenow", re.compile(r"^\d+$"))
    expect(notebook.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")
    assert not page.evaluate("Boolean(window.all.ended)")

    view = shown(notebook, 1, "succeeded")
    page.wait_for_function("window.all.ended")
    built = notebook.kernel("print(w.result.engine_bytes, w.result.duration_s)").split()
    expect(notebook.output(2)).to_contain_text(built[0])
    elapsed = view.locator(".trt-elapsed").text_content()
    assert abs(seconds(elapsed) - float(built[1])) < 0.1
    expect(view.locator(".trt-note")).to_have_text(
        re.compile(
            f"^Engine of {int(built[0]) / 1e6:.1f} MB built in {elapsed} · peak memory \\d+ MB$"
        )
    )
    expect(view.locator(".trt-cancel")).to_be_hidden()
    expect(view.locator(".trt-status")).to_have_text("Succeeded")

    # The rows are TensorRT's phases, nested as it nests them; real bars, all of them full and done.
    rows = view.locator(".trt-row")
    expect(rows).to_have_count(11)
    tree = notebook.kernel("print([(p, d + 1) for p, d in zip(w.timings.path, w.timings.depth)])")
    drawn = rows.evaluate_all("rows => rows.map(row => [row.dataset.path, row.ariaLevel])")
    assert str([(path, int(level)) for path, level in drawn]) == tree.strip()
    indents = rows.evaluate_all(
        "rows => rows.map(row => row.querySelector('.trt-label').getBoundingClientRect().left)"
    )
    levels = [int(level) for _, level in drawn]
    assert all(
        (a > b) == (i > j) and (a < b) == (i < j)
        for a, i in zip(indents, levels, strict=True)
        for b, j in zip(indents, levels, strict=True)
    )
    expect(rows.locator(".widget-hprogress .progress-bar")).to_have_count(11)
    expect(
        view.locator(".trt-row:has(.trt-icon:text-is('✓')) .trt-steps:text-is('done')")
    ).to_have_count(11)
    assert greens(view)
    # The bar moved in many steps, never back.
    whole = "Building engine"
    widths = [
        float(width.removesuffix("%"))
        for _, width in events(notebook, f"bar 1 {whole} > Cloning network graph")
    ]
    assert len(set(widths)) > 5
    assert widths == sorted(widths)

    # Only changes of the status are said aloud, while everything else has changed all the time.
    said = dict.fromkeys(text for _, text in events(notebook, "live 1"))
    assert list(said)[-1].startswith(f"{SMALL}: Succeeded. Engine of")
    assert set(said) <= {*list(said)[-1:], f"{SMALL}: Running"}
    assert len(events(notebook, "elapsed 1")) > 10
    expect(shown(notebook, 3, "succeeded").locator(".trt-note")).to_contain_text("Engine of")
    notebook.assert_clean()


def test_silence(open_notebook: OpenNotebook) -> None:
    cells = [
        "w = BuildWidget(models.transformer(72), executor='thread').start()\nw",
        """
v = BuildWidget.attach(backend="tensorrt_rtx", name="quiet")
v.__enter__()
v.monitor.phase_start("whole", None, 4)
v.monitor.step_complete("whole", 1)
v.monitor.phase_start("part", "whole", 3)
""",
    ]
    notebook = opened(open_notebook, cells)
    view = running(notebook, 1)
    notebook.run(2)
    refit = view.locator(".trt-row[data-path$='> Determining refit engines']")
    expect(refit.locator(".trt-bar")).to_have_attribute("data-indeterminate", "")
    # Whatever it is part of knows no more than it does; what is done knows that.
    bars = view.locator(".trt-row[data-status='running'] .trt-bar[data-indeterminate]")
    expect(bars).to_have_count(4)
    done = view.locator(".trt-row[data-status='done'] .trt-bar[data-indeterminate]")
    expect(done).to_have_count(0)
    for bar in bars.all():
        # Neither a width nor a value that stands still.
        assert not bar.locator(".progress-bar").is_visible()
    # The clock goes on by itself: several times between two messages of the kernel.
    notebook.page.wait_for_function(
        """() => {
            const times = what => trt.events.filter(e => e[1] === what).map(e => e[0]);
            const messages = times('message transformer'), ticks = times('elapsed 1');
            return messages.some((begin, i) =>
                messages[i + 1] > begin + 1000 &&
                ticks.filter(tick => begin < tick && tick < messages[i + 1]).length >= 3);
        }"""
    )
    view.locator(".trt-cancel").click()
    expect(view.locator(".trt-note")).to_contain_text("waits for TensorRT's next callback")

    quiet = card(notebook, 2)
    note = quiet.locator(".trt-note")
    expect(note).to_have_text(
        re.compile(r"^part · no callback for \d[\d.:]*( s)? \(normal: TensorRT is silent")
    )
    expect(quiet.locator(".trt-bar[data-indeterminate]")).to_have_count(2)
    quiet.locator(".trt-cancel").click()
    expect(note).to_have_text(
        re.compile(r"^part · waits for TensorRT's next callback \(the last one was .* s ago\)$")
    )
    notebook.kernel("assert not v.monitor.step_complete('part', 0)")
    expect(note).to_have_text("part · waits for TensorRT's next callback")
    notebook.kernel("try: v.finish(None)\nexcept Exception as e: assert e.reason == 'user'")
    expect(quiet).to_have_attribute("data-status", "cancelled")

    # In a thread it lasts as long as the gap does.
    shown(notebook, 1, "cancelled", timeout=70)
    expect(view.locator(".trt-note")).to_have_text(
        re.compile(
            r"^Stopped after \S+ s \(at the next step\) · peak memory of this kernel \d+ MB$"
        )
    )
    notebook.assert_clean()


def test_narrow_and_crowded(open_notebook: OpenNotebook) -> None:
    code = """
v = BuildWidget.attach(backend="tensorrt_rtx", name="n" * 300)
v.__enter__()
above = None
for depth in range(8):
    v.monitor.phase_start(f"phase at depth {depth}", above, 20)
    above = f"phase at depth {depth}"
    for index in range(10):
        v.monitor.phase_start(f"child {index}", above, 1)
        v.monitor.phase_finish(f"child {index}")
v.monitor.phase_start("p" * 300, above, 123456)
v.monitor.step_complete("p" * 300, 65432)
"""
    notebook = opened(open_notebook, [code])
    notebook.run(1)
    view = shown(notebook, 1, "running")
    expect(view.locator(".trt-row")).to_have_count(40)
    assert notebook.kernel("print(len(v.timings))") == "89\n"
    expect(view.locator(".trt-folded:not(:empty)")).not_to_have_count(0)
    expect(view.locator(".trt-row .trt-label").last).to_be_visible()
    for width in (320, 880):
        view.evaluate("(card, width) => { card.style.maxWidth = `${width}px`; }", width)
        assert view.evaluate("card => card.getBoundingClientRect().width") <= width
        wide = view.evaluate(
            """card => [card, ...card.querySelectorAll('.trt-head, .trt-note, .trt-rows, .trt-row')]
                .filter(each => each.scrollWidth > each.clientWidth).map(each => each.className)"""
        )
        assert wide == []
        # Nor is anything cut off that has to be there.
        parts = view.evaluate(
            """card => {
                const {left, right} = card.getBoundingClientRect();
                const names = ['cancel', 'pill', 'elapsed', 'time', 'bar', 'label'];
                const parts = card.querySelectorAll(names.map(name => `.trt-${name}`).join());
                return [...parts].map(part => {
                    const box = part.getBoundingClientRect();
                    const seen = Math.min(box.right, right) - Math.max(box.left, left);
                    return [part.className, box.width, seen];
                });
            }"""
        )
        assert len(parts) == 3 + 3 * 40
        for name, whole, seen in parts:
            assert seen > 20, name
            assert seen > whole - 0.1, name
    notebook.kernel("v.__exit__(None, None, None)")
    shown(notebook, 1, "ended")
    assert greens(view) == []
    notebook.assert_clean()


# ------------------------------------------------------------------ how long it takes


def test_a_network_that_was_built_before(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    code = "{0} = BuildWidget(models.light_model('densenet121')).start()\n{0}"
    # A history of its own: else the tests keep none.
    history = f"import os; os.environ['TRT_WIDGET_HISTORY'] = {str(tmp_path / 'history')!r}\n"
    notebook = opened(open_notebook, [history + code.format("a"), code.format("b")])
    running(notebook, 1)
    shown(notebook, 1, "succeeded", timeout=60)
    view = running(notebook, 2)
    words = view.locator(".trt-outlook")
    expect(words).to_contain_text(re.compile(r"^\d\d? %.*from 1 earlier build of this network$"))
    whole = view.get_by_role("progressbar", name="Whole build")
    expect(whole).to_have_accessible_description("from 1 earlier build of this network")
    expect(whole).to_have_attribute("aria-valuenow", re.compile(r"^\d+$"))
    shown(notebook, 2, "succeeded", timeout=60)
    expect(words).to_be_hidden()
    percents = [
        int(text.removesuffix(" %")) for _, text in events(notebook, "percent 2") if "%" in text
    ]
    left = [text for _, text in events(notebook, "left 2")]
    print(percents, dict.fromkeys(left))
    assert len(percents) > 10
    assert percents == sorted(percents)
    assert percents[-1] < 100
    assert any(text.endswith(" left") for text in left)
    assert not any(text.startswith(("0", "about 0")) for text in left)
    # What took longest comes first, the tree below is folded.
    slowest = view.get_by_role("list", name="Slowest phases").get_by_role("listitem")
    expect(slowest.first).to_contain_text("Determining refit engines")
    longest = notebook.kernel("print(*b.timings.self_s.sort_values().round(6)[::-1][:5])").split()
    assert len(longest) == slowest.count()
    for item, told in zip(slowest.all(), longest, strict=True):
        time_shown = seconds(item.locator(".trt-slow-time").text_content())
        assert time_shown == pytest.approx(float(told), rel=0.06, abs=0.006)
    expect(view.locator(".trt-row:visible")).to_have_count(0)
    notebook.assert_clean()


def test_the_timeline_in_the_card(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, ["w = held().start()\nw"])
    view = running(notebook, 1)
    fold = view.locator(".trt-timeline-fold")
    picture = fold.locator(".trt-timeline canvas")
    expect(picture).to_have_count(0)
    fold.locator("summary").first.click()
    expect(picture).to_be_visible()
    # What nobody sees is not sent.
    picture.scroll_into_view_if_needed()
    caption = fold.locator(".trt-t-caption")
    expect(caption).to_have_text(re.compile(r"\b\d+ phases in "))
    before = caption.text_content() or ""
    # It is live.
    expect(caption).not_to_have_text(before)
    fold.locator("summary").first.click()
    expect(picture).to_have_count(0)
    notebook.kernel("gate.set()")
    shown(notebook, 1, "succeeded")
    fold.locator("summary").first.click()
    expect(picture).to_be_visible()
    picture.scroll_into_view_if_needed()
    spans = notebook.kernel("print(len(w.spans))").strip()
    expect(caption).to_have_text(re.compile(rf"\b{spans} phases in "))
    for width in (320, 880):
        view.evaluate("(card, width) => { card.style.maxWidth = `${width}px`; }", width)
        assert view.evaluate("card => card.scrollWidth <= card.clientWidth")
        assert fold.evaluate("fold => fold.scrollWidth <= fold.clientWidth")
    notebook.page.evaluate(AXE.read_text("utf-8"))
    found = notebook.page.evaluate("async () => (await axe.run('.trt-build')).violations")
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in found] == []
    notebook.assert_clean()


# ------------------------------------------------------------------ Cancel


def test_cancel_with_mouse_and_keyboard(open_notebook: OpenNotebook) -> None:
    cells = ["w = slow().start()\nw", "w", "v = slow().start()\nv"]
    notebook = opened(open_notebook, cells)
    view = running(notebook, 1)
    notebook.run(2)
    other = shown(notebook, 2, "running")
    # Two views of one widget, both live.
    expect(other.locator(".widget-hprogress")).not_to_have_count(0)
    for each in (view, other):
        last = each.locator(".trt-row[data-status='running'] .trt-steps").last
        before = last.text_content()
        expect(last).not_to_have_text(before or "")

    # The browser answers the click itself, whatever the kernel does.
    kernel = int(notebook.kernel("import os; print(os.getpid())"))
    os.kill(kernel, signal.SIGSTOP)
    try:
        view.get_by_role("button", name="Cancel", exact=True).click()
        for each in (view, other):
            expect(each.locator(".trt-status")).to_have_text("Cancelling…")
            expect(each.locator(".trt-cancel")).to_have_text("Cancelling…")
    finally:
        os.kill(kernel, signal.SIGCONT)
    for each in (view, other):
        shown(notebook, 1 if each is view else 2, "cancelled")
        expect(each.locator(".trt-status")).to_have_text("Cancelled")
        expect(each.locator(".trt-cancel")).to_be_hidden()
        expect(each.locator(".trt-note")).to_have_text(
            re.compile(r"^Stopped after \S+ m?s \(at the next step\) · peak memory \d+ MB$")
        )
        assert each.locator(".trt-row[data-status='cancelled']").count() > 1
        assert greens(each) == []
    assert notebook.kernel("print(w.status, w.result.reason)") == "cancelled user\n"

    # The same with the keyboard.
    view = running(notebook, 3)
    view.evaluate("card => card.focus()")
    notebook.page.keyboard.press("Tab")
    expect(view.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    notebook.page.keyboard.press("Enter")
    expect(view.locator(".trt-status")).to_have_text("Cancelled")
    assert notebook.kernel("print(v.status, v.result.reason)") == "cancelled user\n"

    notebook.kernel("w.close()")
    expect(card(notebook, 1)).to_have_count(0)
    expect(card(notebook, 2)).to_have_count(0)
    expect(card(notebook, 3)).to_have_count(1)
    notebook.assert_clean()


def test_cancel_while_another_cell_runs(open_notebook: OpenNotebook) -> None:
    busy = ("time.sleep(60)", "while True: sum(range(99))")
    build = "w = slow().start()\nw"
    cells = [cell for code in busy for cell in (build, f"print('begun')\n{code}")]
    notebook = opened(open_notebook, cells)
    for index in (1, 3):
        view = running(notebook, index)
        notebook.wait_subshells()
        notebook.start(index + 1)
        expect(notebook.output(index + 1)).to_contain_text("begun")
        view.locator(".trt-cancel").click()
        shown(notebook, index, "cancelled")
        assert is_running(notebook, index + 1)
        notebook.interrupt()
        notebook.wait(index + 1)
        expect(notebook.output(index + 1)).to_contain_text("KeyboardInterrupt")
        assert notebook.kernel("print(w.status, w.result.reason)") == "cancelled user\n"
    notebook.assert_clean()


def test_pending_and_interrupt(open_notebook: OpenNotebook) -> None:
    cells = [
        "a = slow().start()\na",
        "b = BuildWidget(small).start()\nb",
        "c = slow().start()\nc",
        "print('begun')\nc.wait()",
    ]
    notebook = opened(open_notebook, cells)
    running(notebook, 1)
    notebook.run(2)
    view = shown(notebook, 2, "pending")
    expect(view.locator(".trt-note-text")).to_have_text(f"Waiting for {RESNET} to finish")
    view.get_by_role("button", name=f"Cancel {RESNET}", exact=True).click()
    shown(notebook, 1, "cancelled")
    shown(notebook, 2, "succeeded")
    # The phases are folded, with their buttons; no other one is left.
    expect(view.get_by_role("button")).to_have_count(0)
    view.locator(".trt-tree > summary").click()
    expect(view.get_by_role("button")).to_have_count(
        view.locator(".trt-toggle:not([data-leaf])").count()
    )
    assert notebook.kernel("print(a.result.reason, b.result.reason)") == "user None\n"

    view = running(notebook, 3)
    notebook.start(4)
    expect(notebook.output(4)).to_contain_text("begun")
    assert is_running(notebook, 4)
    notebook.interrupt()
    notebook.wait(4)
    expect(notebook.output(4)).to_contain_text("BuildCancelled")
    shown(notebook, 3, "cancelled")
    expect(view.locator(".trt-note")).to_contain_text("It was cancelled by Interrupt.")
    assert notebook.kernel("print(c.result.reason)") == "interrupt\n"
    notebook.assert_clean()


# ------------------------------------------------------------------ again, reload, restart


def test_the_same_cell_again(open_notebook: OpenNotebook) -> None:
    fast = "w = BuildWidget(small).start()\nw"
    notebook = opened(open_notebook, [fast, "s = held().start()\ns"])
    count = "w.wait()\nfrom comm import get_comm_manager; print(len(get_comm_manager().comms))"
    notebook.run(1)
    shown(notebook, 1, "succeeded")
    comms = notebook.kernel(count)
    notebook.kernel("old = w")
    notebook.run(1)
    shown(notebook, 1, "succeeded")
    assert notebook.kernel("print(old is w, old.comm, len(old.timings))") == "False None 11\n"
    assert notebook.kernel(count) == comms
    expect(card(notebook, 1)).to_have_count(1)

    # A build that runs is not cancelled: the new one waits for it.
    running(notebook, 2)
    notebook.kernel("first = s")
    notebook.run(2)
    view = shown(notebook, 2, "pending")
    expect(view.locator(".trt-note-text")).to_have_text(f"Waiting for {SMALL} to finish")
    assert notebook.kernel("print(first.status, s.status)") == "running pending\n"
    notebook.kernel("gate.set()")
    shown(notebook, 2, "succeeded")
    expect(view.locator(".trt-note")).to_contain_text("Engine of")
    assert notebook.kernel("print(first.status, first.comm)") == "succeeded None\n"
    notebook.assert_clean()


def test_reload_and_restart(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, ["w = held().start()\nw", "s = slow().start()\ns"])
    running(notebook, 1)
    notebook.save()
    before = seconds(card(notebook, 1).locator(".trt-elapsed").text_content())
    notebook.reload()
    notebook.page.evaluate(TOOLS)
    view = shown(notebook, 1, "running")
    expect(view.locator(".trt-row[data-status='running']")).not_to_have_count(0)
    assert seconds(view.locator(".trt-elapsed").text_content()) >= before
    expect(view.locator(".trt-row[data-status='running'] .trt-steps")).to_have_text(
        [re.compile("^./6$"), "0/1", "5/30"]
    )
    notebook.kernel("gate.set()")
    shown(notebook, 1, "succeeded")
    expect(view.locator(".trt-row[data-status='done'] .progress-bar")).to_have_count(11)
    expect(view.locator(".trt-note")).to_contain_text("Engine of")

    gone = running(notebook, 2)
    notebook.restart()
    assert_gone(gone)
    # What has ended has ended.
    expect(view.locator(".trt-status")).to_have_text("Succeeded")
    expect(view).not_to_have_attribute("data-lost", re.compile("."))
    notebook.assert_clean()


def assert_gone(view: Locator) -> None:
    """Assert that a card says that its kernel has gone, and claims nothing else."""
    expect(view).to_have_attribute("data-lost", "gone")
    expect(view.locator(".trt-status")).to_have_text("Kernel gone")
    expect(view.locator(".trt-note")).to_have_text("The kernel has gone; the build ended with it")
    button = view.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(view.locator(".trt-live")).to_contain_text("Kernel gone")
    # Nothing runs any more, no clock either.
    expect(view.locator(".trt-row[data-status='running']")).to_have_count(0)
    expect(view.locator(".trt-bar[data-indeterminate]")).to_have_count(0)
    before = [view.locator(".trt-elapsed").text_content()]
    before += view.locator(".trt-time").all_text_contents()
    time.sleep(1.5)
    after = [view.locator(".trt-elapsed").text_content()]
    assert before == after + view.locator(".trt-time").all_text_contents()
    assert greens(view) == []


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_kernel_that_is_killed(open_notebook: OpenNotebook, executor: str) -> None:
    code = f"w = BuildWidget(models.transformer(96), executor={executor!r}).start()\nw"
    notebook = opened(open_notebook, [code, "print('begun')\ntime.sleep(60)"])
    view = running(notebook, 1)
    kernel = int(notebook.kernel("import os; print(os.getpid())"))
    # In the middle of a cell, too.
    notebook.start(2)
    expect(notebook.output(2)).to_contain_text("begun")
    os.kill(kernel, signal.SIGKILL)
    # The card need not wait for heartbeats to be missing: JupyterLab is told of the restart.
    killed = time.monotonic()
    expect(view).to_have_attribute("data-lost", "gone")
    print(f"the card knew after {time.monotonic() - killed:.1f} s")
    notebook.page.get_by_role("dialog").get_by_role("button", name="Ok").click()
    assert_gone(view)
    notebook.wait_idle()
    expect(view).to_have_attribute("data-lost", "gone")
    notebook.page.evaluate(AXE.read_text("utf-8"))
    for theme in ("dark", "light"):
        notebook.theme(theme)
        notebook.screenshot(1, f"widget-kernel-gone-{executor}-{theme}")
        contrasts = view.evaluate("card => window.trt.textContrasts(card)")
        assert [
            text for text in contrasts if text[2] < (3 if text[0].endswith("icon") else 4.5)
        ] == []
        found = notebook.page.evaluate("async () => (await axe.run('.trt-build')).violations")
        assert [violation["id"] for violation in found] == []


def test_a_kernel_that_is_shut_down(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, ["w = slow().start()\nw"])
    view = running(notebook, 1)
    notebook.page.evaluate("window.panel.sessionContext.shutdown()")
    # A kernel that ends in order cancels its builds, and mostly there is time to say so.
    expect(view.locator(".trt-status")).to_have_text(re.compile("^(Cancelled|Kernel gone)$"))
    expect(view.locator(".trt-note")).to_have_text(
        re.compile("It was cancelled because it was closed.$|^The kernel has gone;")
    )
    assert greens(view) == []


def test_a_busy_kernel_is_not_accused(open_notebook: OpenNotebook) -> None:
    busy = (
        "print('begun')\nend = time.monotonic() + 13\nwhile time.monotonic() < end: sum(range(999))"
    )
    cells = ["w = slow(models.light_model('densenet121'), 0.02).start()\nw", busy]
    notebook = opened(open_notebook, cells)
    view = running(notebook, 1)
    view.evaluate(
        """card => {
            window.lost = [];
            new MutationObserver(() => window.lost.push(card.dataset.lost)).observe(
                card, {attributeFilter: ['data-lost']});
        }"""
    )
    notebook.start(2)
    expect(notebook.output(2)).to_contain_text("begun")
    notebook.wait(2)
    assert notebook.page.evaluate("window.lost") == []
    expect(view).to_have_attribute("data-status", "running")

    # A connection that breaks is not the kernel's end: the card says so, and comes back with it.
    notebook.page.evaluate("window.panel.sessionContext.session.kernel._ws.close()")
    notebook.page.wait_for_function("window.lost.length >= 2")
    lost = notebook.page.evaluate("window.lost")
    assert lost[0] == "lost"
    assert lost[-1] is None
    assert "gone" not in lost
    before = view.locator(".trt-elapsed").text_content()
    expect(view.locator(".trt-elapsed")).not_to_have_text(before or "")
    view.locator(".trt-cancel").click()
    shown(notebook, 1, "cancelled")


# ------------------------------------------------------------------ the child process


def test_cancel_inside_the_silent_gap(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, ["w = BuildWidget(models.transformer(96)).start()\nw"])
    view = running(notebook, 1)
    expect(view.locator(".trt-meta")).to_contain_text("in a child process")
    refit = view.locator(".trt-row[data-path$='> Determining refit engines']")
    # Silent for a second.
    expect(refit.locator(".trt-bar")).to_have_attribute("data-indeterminate", "")
    view.locator(".trt-cancel").click()
    note = view.locator(".trt-note")
    expect(note).to_contain_text(
        re.compile(r"asked TensorRT to stop; the build process is ended in [012]\.\d s$")
    )
    shown(notebook, 1, "cancelled")
    expect(view.locator(".trt-status")).to_have_text("Cancelled")
    expect(note).to_have_text(
        re.compile(r"^Stopped after \S+ s \(build process terminated\) · peak memory \d.* [MG]B$")
    )
    ended_by, latency, duration = notebook.kernel(
        "print(w.result.ended_by, w.result.stop_latency_s, w.result.duration_s)"
    ).split()
    ((clicked, _),) = events(notebook, "click 1")
    told = next(t for t, text in events(notebook, "status 1") if text == "Cancelled")
    print(f"{ended_by} after {float(latency):.2f} s of a build of {float(duration):.1f} s;")
    print(f"from the click to the word: {(told - clicked) / 1000:.2f} s")
    assert ended_by == "terminated"
    assert float(latency) > 1.9
    assert greens(view) == []
    # The kernel and the next build are as before.
    notebook.kernel("assert BuildWidget(small).start().wait()")
    notebook.assert_clean()


def test_a_crash_and_what_was_printed(open_notebook: OpenNotebook) -> None:
    code = """
import os, signal
def crash(builder, network, config):
    os.write(1, b"\\x1b[31mred\\x1b[0m <b>bold</b>\\n    indented\\n")
    os.kill(os.getpid(), signal.SIGSEGV)
w = BuildWidget(small, configure=crash).start()
w
"""
    notebook = opened(open_notebook, [code])
    notebook.run(1)
    view = shown(notebook, 1, "failed")
    expect(view.locator(".trt-facts dd").first).to_have_text("SIGSEGV")
    expect(view.locator(".trt-explanation")).to_contain_text("What to do")
    printed = view.get_by_role("group", name="Printed by the build process")
    expect(printed).to_be_hidden()
    view.locator(".trt-log > summary").click()
    expect(printed).to_contain_text("red <b>bold</b>")
    assert "\n    indented" in (printed.text_content() or "")
    assert greens(view) == []
    for theme in ("light", "dark"):
        notebook.theme(theme)
        notebook.screenshot(1, f"widget-crashed-{theme}")
    notebook.theme("light")
    # The kernel is unharmed.
    notebook.kernel("assert BuildWidget(small).start().wait()")
    notebook.assert_clean()


# ------------------------------------------------------------------ failures, foreign text, looks


def test_failure_and_foreign_text(open_notebook: OpenNotebook) -> None:
    cells = [
        f"""
import onnx
evil = {HOSTILE!r}
model = models.unknown_operators("NoSuchOp", "OtherOp")
model.graph.node[1].name = evil
onnx.save(model, evil + ".onnx")
w = BuildWidget(evil + ".onnx").start()
w
""",
        """
with BuildWidget.attach(backend="tensorrt_rtx", name=evil) as v:
    v.monitor.phase_start(evil, None, 3)
    v.monitor.phase_start(f"x {evil}", evil, 3)
    time.sleep(0.3)
""",
        "w.close(); v.close()\ndisplay(w)\nv",
    ]
    notebook = opened(open_notebook, cells)
    notebook.run(1)
    view = shown(notebook, 1, "failed")
    expect(view.locator(".trt-name")).to_have_text(f"{HOSTILE}.onnx")
    expect(view.locator(".trt-note")).to_contain_text(
        "TensorRT does not know the operators NoSuchOp, OtherOp"
    )
    table = view.locator(".trt-explanation .trt-verbatim").first
    expect(table).to_be_visible()
    expect(table).to_contain_text(re.compile(r"node +name +operator"))
    expect(table).to_contain_text(re.compile(rf"1 +{re.escape(HOSTILE)} +NoSuchOp"))
    # The columns of the table stand below each other.
    assert "mono" in table.evaluate("element => getComputedStyle(element).fontFamily")
    red, green, blue, _ = view.locator(".trt-status-icon").evaluate(
        "icon => window.trt.rgba(getComputedStyle(icon).color)"
    )
    assert red > 2 * max(green, blue)
    assert greens(view) == []
    # The messages are folded until somebody wants them.
    item = view.locator(".trt-log-item")
    expect(item).to_have_count(0)
    summary = view.locator(".trt-log summary")
    expect(summary).to_have_text(re.compile(r"^\d+ errors from TensorRT$"))
    summary.click()
    expect(item.first).to_be_visible()
    expect(item.filter(has_text=f"Node name: {HOSTILE}")).to_have_count(1)

    notebook.run(2)
    phases = shown(notebook, 2, "ended")
    expect(phases.locator(".trt-label")).to_have_text([HOSTILE, f"x {HOSTILE}"])
    expect(phases.locator(".trt-note")).to_contain_text("the outcome is not known")
    assert greens(phases) == []
    everything = notebook.page.locator(".jp-Notebook .jp-OutputArea")
    assert everything.locator(FOREIGN).count() == 0
    # Without a view: what is kept of them.
    notebook.run(3)
    kept = notebook.output(3).locator(".trt-report")
    expect(kept.locator("h2")).to_have_text([f"{HOSTILE}.onnx", HOSTILE])
    expect(kept.first).to_contain_text("✗ failed")
    expect(kept.last.get_by_role("rowheader").first).to_have_text(f"{HOSTILE} (ended)")
    assert everything.locator(FOREIGN).count() == 0
    assert notebook.page.evaluate("window.pwned") is None
    notebook.assert_clean()


def test_contrast_and_accessibility(open_notebook: OpenNotebook) -> None:
    cells = {
        "succeeded": "a = BuildWidget(small).start()\na",
        "cancelled": "b = slow().start()\nb",
        "failed": "c = BuildWidget(models.unknown_operators()).start()\nc",
        "running": "d = held().start()\nd",
        "pending": "e = BuildWidget(small).start()\ne",
    }
    notebook = opened(open_notebook, list(cells.values()))
    for index, status in enumerate(cells, 1):
        notebook.run(index)
        if status == "cancelled":
            expect(card(notebook, index).locator(".trt-row")).not_to_have_count(0)
            notebook.kernel("b.request_cancel()")
        view = shown(notebook, index, status)
    expect(view.locator(".trt-cancel-blocker")).to_be_visible()
    notebook.output(3).locator(".trt-log summary").click()
    expect(card(notebook, 4).locator(".trt-row[data-status='done']")).not_to_have_count(0)

    notebook.page.evaluate(AXE.read_text("utf-8"))
    faint: list[Any] = []
    for theme in ("light", "dark"):
        notebook.theme(theme)
        for index, status in enumerate(cells, 1):
            view = card(notebook, index)
            faint += [
                (theme, status, *text)
                for text in view.evaluate("card => window.trt.textContrasts(card)")
                # The signs only repeat what a word beside them says.
                if text[2] < (3 if text[0].endswith("icon") else 4.5)
            ]
            faint += [
                (theme, status, *bar)
                for bar in view.evaluate("card => window.trt.barContrasts(card)")
                if bar[2] < 3 and (bar[0] != "done" or status == "succeeded")
            ]
        found = notebook.page.evaluate("async () => (await axe.run('.trt-build')).violations")
        faint += [
            (theme, violation["id"], node["html"])
            for violation in found
            if violation["impact"] in {"serious", "critical"}
            for node in violation["nodes"]
        ]
    assert faint == []
    notebook.kernel("gate.set()")
    notebook.theme("light")
    notebook.assert_clean()
