"""The builder in a thread of this process.

TensorRT releases the interpreter while it parses and builds, so the notebook stays responsive. A
build in a thread can be stopped at a callback only.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from trt_widget._memory import MemoryWatch
from trt_widget._wake import Wake
from trt_widget.executors.turn import InTurn, Turn
from trt_widget.executors.worker import Worker, broke_off

if TYPE_CHECKING:
    from trt_widget.backend import Backend
    from trt_widget.events import Event
    from trt_widget.executors import Hooks, Outcome
    from trt_widget.options import BuildOptions, Source

__all__ = ["ThreadExecutor"]


class _QuickTurns:
    """Shorter turns of the interpreter while builds run.

    TensorRT takes the interpreter for every callback and for every message, verbose ones included
    (17,744 in a build of ResNet-50). Beside a cell that runs pure Python each of them waits for up
    to one switch interval, 5 ms by default; with 1 ms such a build took 2.6 to 3.3 s instead of 6.2
    to 7.3 s (tensorrt-rtx 1.7.1, 2 cores). The interval that was set before comes back with the end
    of the last build, unless somebody has changed it in the meantime.
    """

    INTERVAL_S = 0.001

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builds = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._builds += 1
            if self._builds == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, self.INTERVAL_S))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._builds -= 1
            untouched = sys.getswitchinterval() == min(self._before, self.INTERVAL_S)
            if self._builds == 0 and untouched:
                sys.setswitchinterval(self._before)


_quick_turns = _QuickTurns()


class ThreadExecutor(InTurn):
    """Runs one build in a daemon thread; see :class:`~trt_widget.executors.Executor`.

    Parameters
    ----------
    source, options, backend
        What to build, how, and with which package; checked already.
    label
        What people call the build.
    """

    kind = "thread"

    def __init__(self, source: Source, options: BuildOptions, backend: Backend, label: str) -> None:
        self._source = source
        self._options = options
        self._backend = backend
        self._label = label
        self._outcome: Outcome | None = None
        self._wake = Wake()
        self._turn = Turn(options, label, self._wake, in_process=True)
        self._worker = Worker(options, backend, label)
        self._memory = MemoryWatch(os.getpid())
        self._thread = threading.Thread(
            target=self._run, name=f"trt_widget build {label}"[:60], daemon=True
        )
        self._hooks: Hooks

    # ------------------------------------------------------------------ the build's side

    def reset_origin(self) -> float:
        """Make now the time zero of the events."""
        return self._worker.set_origin()

    def drain(self) -> list[Event]:
        """Take what was recorded since the last call, ordered by time."""
        self._memory.sample()
        return self._worker.drain()

    @property
    def peak_memory_bytes(self) -> int | None:
        """The kernel's own memory: it cannot be told apart what of it the build uses."""
        return self._memory.peak_bytes

    def request_cancel(self, reason: str) -> None:
        """Set the flag that the next ``step_complete`` reads."""
        self._worker.monitor.request_cancel(reason)
        self._wake.set()

    def abandon(self) -> None:
        """Ask for a cancel: a thread cannot be ended."""
        self.request_cancel("closed")

    @property
    def cancel_reason(self) -> str | None:
        """Reason of the first request to cancel, or ``None``."""
        return self._worker.monitor.cancel_reason

    # ------------------------------------------------------------------ the builder's side

    def _run(self) -> None:
        try:
            if self._turn.wait(lambda: self._worker.monitor.cancel_requested):
                self._hooks.running()
                with _quick_turns:
                    outcome = self._worker.run(lambda: self._source)
                outcome = replace(outcome, notes=(*self._turn.notes, *outcome.notes))
            else:
                outcome = self._worker.cancelled("before build")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the build must not hang
            outcome = broke_off(error, self._worker.now())
        finally:
            self._turn.leave()
        self._outcome = outcome
        self._hooks.changed()
