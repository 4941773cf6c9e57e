"""BuildWidget in real kernels, spoken to as JupyterLab does; real builds by tensorrt_rtx."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.kernel.conftest import only
from tests.kernel.harness import VERSIONS

if TYPE_CHECKING:
    from tests.kernel.harness import Comm, Kernel

WITH_SUBSHELLS = [version for version in VERSIONS if not version.startswith("6.")]
WITHOUT = [version for version in VERSIONS if version.startswith("6.")]

IMPORTS = """
import time, asyncio
import ipywidgets
from trt_widget import BuildWidget, BuildCancelled
from tests import models
RESNET = models.light_model("resnet50")
"""
#: A real build with callbacks for ten seconds: see models.slowly.
SLOW = "w = BuildWidget(RESNET, configure=models.slowly()).start()\nw"


def show(kernel: Kernel, cell: str = SLOW, cell_id: str | None = None) -> Comm:
    """Run a cell that shows a build; give the comm of its card."""
    if "BuildWidget" not in kernel.run("print(dir())").text:
        kernel.run(IMPORTS)
    # A short build may have put its result below the widget before the cell has ended.
    return kernel.comms[kernel.run(cell, cell_id).view_ids[-1]]


def cancel(kernel: Kernel, card: Comm, *, main_shell: bool = False) -> float:
    """Press Cancel: what build.js sends, on the comm that only receives."""
    channel = card.state["cancel_channel"].removeprefix("IPY_MODEL_")
    return kernel.click(channel, {"kind": "cancel"}, main_shell=main_shell)


def status(card: Comm) -> str:
    return str(card.state["header"]["status"])


def shown_status(kernel: Kernel, card: Comm, *wanted: str, timeout: float = 60) -> None:
    kernel.wait_for(lambda: status(card) in wanted, timeout, what=f"{wanted}")


def flag_delay(kernel: Kernel, clicked: float) -> float:
    """Seconds from the click to the flag (perf_counter and monotonic are one clock on Linux)."""
    at = kernel.run("print(w.build._asked[1] - time.perf_counter() + time.monotonic())").text
    return float(at) - clicked


def busy(loop: str, seconds: float = 8.0) -> str:
    """Give a cell that is busy for that long; it says through a widget that it has begun."""
    ends = f"ends = time.monotonic() + {seconds}"
    waits = {
        "sleep": f"time.sleep({seconds})",
        "python": f"{ends}\nwhile time.monotonic() < ends: sum(range(99))",
    }
    return f"begun = ipywidgets.Label('begun')\n{waits[loop]}"


# ------------------------------------------------------------------ Cancel


@pytest.mark.parametrize("version", WITH_SUBSHELLS)
@pytest.mark.parametrize("loop", ["sleep", "python"])
def test_cancel_takes_effect_while_another_cell_runs(kernel: Kernel, loop: str) -> None:
    card = show(kernel)
    kernel.wait_for(lambda: card.state["rows"], what="the first callbacks")
    running = kernel.execute(busy(loop))
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    clicked = cancel(kernel, card)
    shown_status(kernel, card, "cancelled")
    assert not running.done
    running.wait()
    print(f"the flag was set {flag_delay(kernel, clicked):.3f} s after the click")
    assert kernel.run("print(w.status, w.result.reason)").text == "cancelled user\n"


@pytest.mark.parametrize("wait", ["w.wait()", "await w"])
def test_a_click_gets_in_while_a_cell_waits_for_the_build(kernel: Kernel, wait: str) -> None:
    card = show(kernel)
    shown_status(kernel, card, "running")
    waiting = kernel.execute(f"begun = ipywidgets.Label('begun')\n{wait}")
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    time.sleep(0.3)  # the kernel is to be inside the wait, which nothing outside shows
    clicked = cancel(kernel, card)
    waiting.finish()
    assert "BuildCancelled" in str(waiting.error)
    shown_status(kernel, card, "cancelled")
    print(f"the flag was set {flag_delay(kernel, clicked):.3f} s after the click")
    assert kernel.run("print(w.result.reason)").text == "user\n"


@pytest.mark.parametrize("wait", ["w.wait()", "await w"])
def test_cells_that_were_sent_during_a_wait_run_after_it(kernel: Kernel, wait: str) -> None:
    show(kernel, "w = BuildWidget(RESNET).start()\nw")
    waiting = kernel.execute(f"order = ['waited']; x = {wait}; order.append('built'); len(x)")
    later = kernel.execute("order.append('later'); print(order)")
    waiting.wait()
    later.wait()
    assert later.text == "['waited', 'built', 'later']\n"
    assert int(waiting.outputs[-1]["data"]["text/plain"]) > 100_000


@pytest.mark.parametrize("wait", ["w.wait()", "await w"])
def test_interrupt_during_a_wait_cancels_the_build(kernel: Kernel, wait: str) -> None:
    card = show(kernel)
    shown_status(kernel, card, "running")
    waiting = kernel.execute(f"begun = ipywidgets.Label('begun')\n{wait}")
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    time.sleep(0.3)  # as above
    kernel.interrupt()
    waiting.finish()
    assert waiting.error is not None
    shown_status(kernel, card, "cancelled")
    assert kernel.run("print(w.status, w.result.reason)").text == "cancelled interrupt\n"


#: Where a click gets into a wait from a front end that knows no subshells (VS Code, Colab): on 6
#: because the wait polls, on 7.4 because ipykernel itself lets comm messages into an await.
INTO_WAITS = {"6.31.0": {"w.wait()", "await w"}, "7.3.0": set(), "7.4.0": {"await w"}}


@pytest.mark.parametrize("wait", ["w.wait()", "await w"])
def test_from_a_front_end_without_subshells(kernel: Kernel, wait: str) -> None:
    card = show(kernel)
    shown_status(kernel, card, "running")
    waiting = kernel.execute(f"begun = ipywidgets.Label('begun')\n{wait}")
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    time.sleep(0.3)  # as above
    cancel(kernel, card, main_shell=True)
    if wait not in INTO_WAITS[kernel.version]:
        time.sleep(1.5)  # nothing happens, which the view answers with "use Interrupt"
        assert status(card) == "running"
        kernel.interrupt()
    waiting.finish()
    shown_status(kernel, card, "cancelled")
    reason = "user" if wait in INTO_WAITS[kernel.version] else "interrupt"
    assert kernel.run("print(w.result.reason)").text == f"{reason}\n"


@pytest.mark.parametrize("version", WITHOUT)
def test_without_subshells_a_click_waits_for_the_cell(kernel: Kernel) -> None:
    """What the view says "use Interrupt" for; pinned, so that a change is noticed."""
    card = show(kernel)
    shown_status(kernel, card, "running")
    running = kernel.execute(busy("sleep", 4))
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    clicked = cancel(kernel, card)
    running.wait()
    shown_status(kernel, card, "cancelled")
    assert flag_delay(kernel, clicked) > 1.0


@pytest.mark.parametrize("version", WITH_SUBSHELLS)
def test_cancel_of_a_build_that_the_running_cell_itself_does(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    running = kernel.execute(
        """
import tensorrt_rtx as trt
builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
network = builder.create_network()
parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
assert parser.parse_from_file(str(RESNET))
config = builder.create_builder_config()
models.slowly()(builder, network, config)
with BuildWidget.attach(config) as w:
    w.finish(builder.build_serialized_network(network, config))
"""
    )
    kernel.wait_for(lambda: running.view_ids, what="the view")
    card = kernel.comms[running.view_ids[0]]
    kernel.wait_for(lambda: len(card.state["rows"]) > 1, what="rows")
    cancel(kernel, card)
    running.finish()
    assert "BuildCancelled" in str(running.error)
    shown_status(kernel, card, "cancelled")


# ------------------------------------------------------------------ the view


@pytest.mark.parametrize("loop", ["sleep", "python"])
def test_the_view_goes_on_while_a_cell_runs(kernel: Kernel, loop: str) -> None:
    card = show(kernel)
    kernel.wait_for(lambda: card.state["rows"], what="the first callbacks")
    running = kernel.execute(busy(loop, 3))
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    began = time.monotonic()
    running.wait()
    ended = time.monotonic()
    bars = {reference.removeprefix("IPY_MODEL_") for reference in card.state["rows"]}
    times = [
        message.time
        for name in bars
        for message in kernel.comms[name].messages
        if began < message.time < ended
    ]
    # About ten ticks a second, of which each sends what has changed; fewer on a busy machine.
    assert len(times) > 5
    assert not [output for output in running.outputs if output.get("name") in {"stdout", "stderr"}]


def test_nothing_is_printed_and_the_view_ends_right(kernel: Kernel) -> None:
    card = show(kernel, "w = BuildWidget(RESNET).start()\nw")
    shown_status(kernel, card, "succeeded")
    rows = [kernel.comms[name.removeprefix("IPY_MODEL_")] for name in card.state["rows"]]
    assert all(row.model == "IntProgressModel" for row in rows)
    kernel.wait_for(lambda: {row.state["bar_style"] for row in rows} == {"success"})
    labels = [row.state["info"]["label"] for row in rows]
    assert kernel.run("print(list(w.timings.phase))").text == f"{labels}\n"
    again = len(card.messages)
    kernel.wait_for(lambda: len(card.messages) > again, what="the final state again")
    quiet = kernel.run("print('quiet')")
    assert quiet.text == "quiet\n"


def test_the_mime_bundle_has_text_and_html_too(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    data = kernel.run("w = BuildWidget(RESNET); w").outputs[-1]["data"]
    assert data["text/plain"] == "BuildWidget('light_resnet50.onnx')"
    # Not the state: it would be an old one in a saved notebook, beside the result.
    assert data["text/html"].startswith("<div><b>light_resnet50.onnx</b>: the live view needs")


def test_the_same_cell_again_replaces_its_earlier_view(kernel: Kernel) -> None:
    cell = "try: old = w\nexcept NameError: pass\nw = BuildWidget(RESNET).start()\nw"
    first = show(kernel, cell, "cell-1")
    shown_status(kernel, first, "succeeded")
    second = show(kernel, cell, "cell-1")
    kernel.wait_for(lambda: first.closed, what="the earlier view to close")
    bars = [kernel.comms[name.removeprefix("IPY_MODEL_")] for name in first.state["rows"]]
    assert all(bar.closed for bar in bars)
    assert int(kernel.run("print(len(old.timings))").text) > 5
    shown_status(kernel, second, "succeeded")
    other = show(kernel, cell, "cell-2")
    assert not second.closed
    shown_status(kernel, other, "succeeded")


@only("7.4.0")
def test_the_same_cell_again_does_not_cancel_a_running_build(kernel: Kernel) -> None:
    first = show(kernel, SLOW, "cell-1")
    kernel.wait_for(lambda: first.state["rows"], what="the first callbacks")
    kernel.run("old = w")
    second = show(kernel, SLOW, "cell-1")
    kernel.wait_for(lambda: second.state["header"]["blocked_by"] == "light_resnet50.onnx")
    assert status(second) == "pending"
    assert kernel.run("print(old.status, w.status)").text == "running pending\n"
    channel = second.state["cancel_channel"].removeprefix("IPY_MODEL_")
    kernel.click(channel, {"kind": "cancel_blocker"})
    shown_status(kernel, second, "running")
    kernel.wait_for(lambda: first.closed, what="the replaced view to close at its end")
    assert kernel.run("print(old.result.reason, len(old.timings) > 0)").text == "user True\n"
    kernel.run("w.request_cancel()")
    shown_status(kernel, second, "cancelled")


def test_close_leaves_no_comm_and_the_status_is_observed_from_a_cell(kernel: Kernel) -> None:
    card = show(
        kernel,
        "seen = []\nw = BuildWidget(RESNET)\nw.observe(lambda c: seen.append(c.new),"
        " 'status')\nw.start()\nw",
    )
    shown_status(kernel, card, "succeeded")
    assert kernel.run("w.wait(); w.close(); print(seen)").text == "['running', 'succeeded']\n"
    kernel.wait_for(lambda: card.closed)
    left = [
        comm
        for comm in kernel.comms.values()
        if not comm.closed and comm.target == "jupyter.widget"
    ]
    assert not left


def test_shutting_the_kernel_down_during_a_build_is_clean(kernel: Kernel) -> None:
    card = show(kernel)
    shown_status(kernel, card, "running")
    process = kernel.manager.provisioner.process
    kernel._send("control", "shutdown_request", {"restart": False})
    assert process.wait(8) == 0


HALF = "half of a pair: \\ud83d."


@only("7.4.0")
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_text_that_is_no_unicode_does_not_stop_the_view(kernel: Kernel, executor: str) -> None:
    """What a function raises may have half of a surrogate pair; Jupyter sends none."""
    cell = (
        f"def source():\n    raise ValueError('{HALF}')\n"
        f"w = BuildWidget(source, executor='{executor}').start()\nw"
    )
    card = show(kernel, cell)
    shown_status(kernel, card, "failed")
    assert "half of a pair: \ufffd." in card.state["header"]["failure"]["cause"]
    queue = "from trt_widget import BuildQueue\nq = BuildQueue({'one': source}).start()\nq"
    overview = kernel.comms[kernel.run(queue).view_ids[-1]]
    kernel.wait_for(lambda: overview.state["head"]["status"] == "failed", what="the queue's end")
    assert "half of a pair: \ufffd." in str(overview.state["table"]["rows"])
