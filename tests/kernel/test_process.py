"""The child process of a build in a real kernel: Interrupt, shutdown, death. Real builds."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from tests.kernel.conftest import only
from tests.kernel.harness import VERSIONS, Kernel
from tests.kernel.test_widget import show, shown_status, status

#: Callbacks for a third of a second, then seconds of silence.
SILENT = 'w = BuildWidget(models.light_model("densenet121")).start()\nw'
LATEST = VERSIONS[-1]
BUILDER = "from psutil import Process; print(Process().children()[0].pid)"


def builder_of(kernel: Kernel) -> psutil.Process:
    """Give the kernel's child once it is in the silent phase."""
    until = "while w.build.tree.paths < 9 or w.build.now() - w.build.tree.last_callback < 0.3:"
    kernel.run(f"{until}\n    time.sleep(0.01)")
    return psutil.Process(int(kernel.run(BUILDER).text))


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@only(LATEST)
def test_a_build_is_no_business_of_interrupt_unless_somebody_waits(kernel: Kernel) -> None:
    card = show(kernel, SILENT)
    builder = builder_of(kernel)
    busy = kernel.execute("while True:\n    time.sleep(0.05)")
    time.sleep(0.3)
    kernel.interrupt()
    busy.finish()
    assert "KeyboardInterrupt" in str(busy.error)
    assert builder.is_running()
    shown_status(kernel, card, "succeeded", timeout=60)
    assert int(kernel.run("print(w.result.engine_bytes)").text) > 100_000
    assert gone(builder)


@only(LATEST)
def test_interrupt_while_waiting_in_the_gap_ends_the_child(kernel: Kernel) -> None:
    card = show(kernel, SILENT)
    builder = builder_of(kernel)
    waiting = kernel.execute("w.wait()")
    time.sleep(0.3)
    kernel.interrupt()
    waiting.finish()
    assert "BuildCancelled" in str(waiting.error)
    shown_status(kernel, card, "cancelled")
    assert kernel.run("print(w.result.ended_by, w.result.reason)").text == "terminated interrupt\n"
    assert gone(builder)


@only(LATEST)
def test_a_crash_leaves_the_kernel_and_its_variables(kernel: Kernel) -> None:
    kernel.run("precious = list(range(1000))")
    card = show(kernel, SILENT)
    builder_of(kernel).kill()
    shown_status(kernel, card, "failed")
    assert kernel.run("print(len(precious), w.status, w.result.error.signal)").text == (
        "1000 failed SIGKILL\n"
    )
    again = show(kernel, "again = BuildWidget(models.mlp()).start()\nagain")
    shown_status(kernel, again, "succeeded")


@only(LATEST)
@pytest.mark.parametrize("how", ["shutdown", "restart", "SIGKILL"])
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_outlives_its_kernel(how: str, workers: int, version: str) -> None:
    with Kernel(version) as kernel:
        show(kernel, SILENT)
        builder = builder_of(kernel)
        if workers:
            # What keeps the pipes of a build open, and what joblib or torch may do as well.
            kernel.run(
                "import multiprocessing\n"
                "context = multiprocessing.get_context('fork')\n"
                "forked = [context.Process(target=time.sleep, args=(20,), daemon=True)\n"
                f"          for _ in range({workers})]\n"
                "for process in forked: process.start()"
            )
        if how == "SIGKILL":
            provisioner = kernel.manager.provisioner
            assert provisioner is not None
            os.kill(provisioner.pid, 9)  # type: ignore[attr-defined]  # of the local one
        elif how == "restart":
            # The half of a restart that ends the old kernel.
            kernel.manager.shutdown_kernel(now=False, restart=True)
        else:
            kernel.manager.shutdown_kernel(now=False)
        begun = time.monotonic()
        while not gone(builder):
            assert time.monotonic() < begun + 15, "it lives on"
            time.sleep(0.01)


@only(LATEST)
def test_the_card_shows_what_the_child_printed_and_where_it_runs(kernel: Kernel) -> None:
    kernel.run("def talk(*_): print('hello from the child')", "cell")
    card = show(kernel, "w = BuildWidget(models.mlp(), configure=talk).start()\nw")
    shown_status(kernel, card, "succeeded")
    assert card.state["header"]["executor"] == "process"
    assert kernel.run("print(w.build.printed)").text.strip() == "hello from the child"
    assert status(card) == "succeeded"
    failing = "def fail(*_): return undefined_name\n"
    kernel.run(f"{failing}v = BuildWidget(models.mlp(), configure=fail).start()")
    told = kernel.run("try: v.wait()\nexcept Exception as error: print(error)").text
    # The user's own line, though it lies in no file.
    assert "return undefined_name" in told
