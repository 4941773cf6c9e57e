"""A build that the user's own code runs: only its callbacks reach us."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trt_widget.errors import BuildFailed, WrongBackendError
from trt_widget.executors import Outcome
from trt_widget.executors.gate import GATE, Ticket
from trt_widget.monitor import ProgressMonitor

if TYPE_CHECKING:
    from trt_widget.backend import Backend
    from trt_widget.events import Event
    from trt_widget.executors import Hooks

__all__ = ["AttachedExecutor"]


class AttachedExecutor:
    """Watches a build through a monitor; see :class:`~trt_widget.executors.Executor`.

    Parameters
    ----------
    backend
        The package of the user's builder.
    config
        Its builder config, or ``None`` where the user's code sets the monitor itself. A monitor
        that it has already is kept and called too, and is alone in it again after the end: a
        monitor is for one build, and the cancel of this one must not end the config's next.
    label
        What people call the build.

    Raises
    ------
    WrongBackendError
        The config does not take a monitor of this package.
    """

    kind = "attached"

    def __init__(self, backend: Backend, config: Any, label: str) -> None:
        self._label = label
        self._outcome: Outcome | None = None
        self._ticket: Ticket | None = None
        self.monitor = ProgressMonitor(backend)
        self._config = config
        self._previous: Any = None
        if config is not None:
            try:
                self._previous = config.progress_monitor
                self.monitor.chain(self._previous)
                config.progress_monitor = self.monitor
            except (AttributeError, TypeError) as error:
                raise WrongBackendError(
                    f"A {type(config).__module__}.{type(config).__name__} does not take a progress "
                    f"monitor of {backend.name}.",
                    remedy="Pass an IBuilderConfig of TensorRT 10.1 or newer, or of TensorRT-RTX.",
                ) from error

    def start(self, hooks: Hooks) -> None:
        """Begin to watch; other builds of this process wait for this one."""
        self._hooks = hooks
        self._ticket = Ticket(0, self._label, threading.Event(), hooks.cancel)
        try:
            GATE.pass_by(self._ticket)
            if self._outcome is not None:  # another thread has said so meanwhile
                GATE.leave(self._ticket)
            hooks.running()
        except BaseException:  # Ctrl-C: the caller is told, and will not say when it ends
            GATE.leave(self._ticket)
            raise

    def finish(self, engine: Any, error: BaseException | None = None) -> None:
        """Take the outcome: what the user's builder returned, or the exception it ended with."""
        time = perf_counter() - self.monitor.origin
        notes = tuple(self.monitor.other_errors())
        if engine is not None:
            self._end(Outcome("succeeded", engine, None, "completed", None, time, notes))
        elif self.monitor.answered_false:
            reason = self.monitor.cancel_reason or "monitor"
            self._end(Outcome("cancelled", None, None, "step", reason, time, notes))
        else:
            failure = BuildFailed(
                "TensorRT returned no engine."
                if error is None
                else f"The build ended with {type(error).__name__}: {error}",
                remedy="Its messages went to the logger that your builder was made with.",
            )
            failure.__cause__ = error
            self._end(Outcome("failed", None, failure, "error", None, time, notes))

    def leave(self) -> None:
        """End without an outcome, if there was none."""
        time = perf_counter() - self.monitor.origin
        self._end(Outcome("ended", time=time, notes=tuple(self.monitor.other_errors())))

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:
            config, self._config = self._config, None
            if config is not None and config.progress_monitor is self.monitor:
                config.progress_monitor = self._previous
            self._outcome = outcome
            if self._ticket is not None:
                GATE.leave(self._ticket)
                self._hooks.changed()

    def reset_origin(self) -> float:
        """Make now the time zero of the events."""
        return self.monitor.reset_origin()

    def drain(self) -> list[Event]:
        """Take what was recorded since the last call, ordered by time."""
        return self.monitor.drain()

    def request_cancel(self, reason: str) -> None:
        """Set the flag that the next ``step_complete`` reads."""
        self.monitor.request_cancel(reason)

    def abandon(self) -> None:
        """Ask for a cancel: a thread cannot be ended."""
        self.request_cancel("closed")

    @property
    def cancel_reason(self) -> str | None:
        """Reason of the first request to cancel, or ``None``."""
        reason: str | None = self.monitor.cancel_reason
        return reason

    @property
    def peak_memory_bytes(self) -> int | None:
        """Not known: the user's code decides what runs in this process."""
        return None

    def can_cancel_blocker(self) -> bool:
        """Say no: it waits for nobody."""
        return False

    def cancel_blocker(self) -> None:
        """Do nothing: it waits for nobody."""

    def alive(self) -> bool:
        """Say yes: the user's code decides when it ends."""
        return True

    def builds_on(self, thread: threading.Thread) -> bool:  # noqa: ARG002 - the protocol's
        """Say no: another thread of the user's may hand the engine in."""
        return False

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once there is one."""
        return self._outcome
