"""The harness shows with plain ipywidgets what is known of the three kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernel.conftest import only
from tests.kernel.harness import LATEST, WIDGET_VIEW, Kernel, KernelDiedError

if TYPE_CHECKING:
    from tests.kernel.harness import Comm

BUTTON = """
import time, ipywidgets
clicks = []
button = ipywidgets.Button(description="press")
button.on_click(lambda _: clicks.append(time.monotonic()))
button
"""
# The label tells the outside that the cell has come this far: a comm message comes at once.
SLEEP = "label = ipywidgets.Label('asleep'); time.sleep(3)"


def show_button(kernel: Kernel) -> Comm:
    shown = kernel.run(BUTTON)
    assert WIDGET_VIEW in shown.outputs[-1]["data"]
    return kernel.comms[shown.view_ids[0]]


def clicked_at(kernel: Kernel) -> float:
    return float(kernel.run("print(clicks[0])").text)


def click_during(kernel: Kernel, cell: str, *, main_shell: bool = False) -> tuple[float, float]:
    """Click while the cell sleeps; return delay of the callback and time the cell went on."""
    button = show_button(kernel)
    running = kernel.execute(cell)
    kernel.wait_for(lambda: kernel.widgets("LabelModel"), what="the cell to run")
    clicked = kernel.click(button.comm_id, main_shell=main_shell)
    ended = kernel.wait_for(lambda: running.done)
    return clicked_at(kernel) - clicked, ended - clicked


def test_click_while_idle(kernel: Kernel) -> None:
    button = show_button(kernel)
    clicked = kernel.click(button.comm_id)
    kernel.run("while not clicks: time.sleep(0.01)" if kernel.supports_subshells else "")
    assert clicked_at(kernel) > clicked


def test_subshells_since_7(kernel: Kernel) -> None:
    assert kernel.supports_subshells == (not kernel.version.startswith("6."))


@only("7.3.0")
def test_click_arrives_while_a_cell_sleeps(kernel: Kernel) -> None:
    delay, rest = click_during(kernel, SLEEP)
    assert delay < rest / 2


@only("6.31.0", "7.4.0")
def test_click_is_blocked_while_a_cell_sleeps(kernel: Kernel) -> None:
    delay, rest = click_during(kernel, SLEEP)
    assert delay > rest / 2


@only("7.3.0")
def test_click_over_the_main_shell_is_blocked(kernel: Kernel) -> None:
    delay, rest = click_during(kernel, SLEEP, main_shell=True)
    assert delay > rest / 2


@only("7.4.0")
def test_click_arrives_on_7_4_if_nothing_was_published(kernel: Kernel) -> None:
    """A comm that has forgotten the shell that it last published on is not called back there."""
    delay, rest = click_during(kernel, f"del button.comm._reply_subshell_id; {SLEEP}")
    assert delay < rest / 2


def test_interrupt_of_a_sleeping_cell(kernel: Kernel) -> None:
    show_button(kernel)
    running = kernel.execute("label = ipywidgets.Label('asleep'); time.sleep(60)")
    kernel.wait_for(lambda: kernel.widgets("LabelModel"))
    interrupted = kernel.interrupt()
    assert running.finish(50).error == "KeyboardInterrupt"
    assert kernel.messages[-1].time - interrupted < 50
    assert kernel.run("print('alive')").text == "alive\n"


def test_updates_from_a_thread_while_the_cell_is_busy(kernel: Kernel) -> None:
    cell = kernel.run(
        "import ipywidgets, threading, time\n"
        "bar = ipywidgets.IntProgress(max=5)\n"
        "def go():\n"
        "    for i in range(1, 6):\n"
        "        time.sleep(0.05); bar.value = i\n"
        "t = threading.Thread(target=go); t.start()\n"
        "display(bar); time.sleep(0.6); print('end', time.monotonic()); t.join()\n"
    )
    bar = kernel.comms[cell.view_ids[0]]
    assert bar.model == "IntProgressModel"
    assert bar.state["value"] == 5
    values = [m.content["data"]["state"]["value"] for m in bar.messages]
    assert values == [1, 2, 3, 4, 5]
    assert bar.messages[-1].time < float(cell.text.rsplit("end", 1)[1])


@only(LATEST)
def test_outputs_errors_and_cell_id(kernel: Kernel) -> None:
    meta = "get_ipython().kernel.get_parent()['metadata']['cellId']"
    assert kernel.run(f"print({meta}); 6 * 7", cell_id="cell-1").text == "cell-1\n42"
    failed = kernel.execute("1 / 0")
    assert failed.finish().error == "ZeroDivisionError"
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        failed.wait()
    with pytest.raises(TimeoutError):
        kernel.execute("import time; time.sleep(0.5)").wait(0.1)


@only(LATEST)
def test_closed_comm_is_noticed(kernel: Kernel) -> None:
    button = show_button(kernel)
    kernel.run("button.close()")
    assert button.closed is not None
    assert kernel.widgets("ButtonModel") == []
    assert kernel.widgets("ButtonModel", closed=True) == [button]


@only(LATEST)
def test_death_is_noticed(kernel: Kernel) -> None:
    with pytest.raises(KernelDiedError):
        kernel.execute("import os; os._exit(3)").wait()
