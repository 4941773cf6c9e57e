"""Waiting for the device: first behind the builds of this process, then behind those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_widget.executors.gate import GATE, Ticket
from trt_widget.executors.isolation import gpus_apart
from trt_widget.executors.lock import DeviceLock, device_key

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trt_widget._wake import Wake
    from trt_widget.executors import Hooks, Outcome
    from trt_widget.options import BuildOptions

__all__ = ["InTurn", "Turn"]

#: Seconds between two looks at whether another process has given the device up.
_LOOK_S = 0.25


class Turn:
    """The place of one build in the queues for its device.

    Parameters
    ----------
    options
        ``device=`` and ``exclusive=``.
    label
        What people call the build.
    wake
        Set when there may be something new: a turn that has come, a cancel.
    in_process
        Whether the builder runs in this process. Then it always queues behind the others here:
        TensorRT itself would let it wait, where nothing can be shown and nothing cancelled.
    """

    def __init__(self, options: BuildOptions, label: str, wake: Wake, *, in_process: bool) -> None:
        self._options = options
        self._label = label
        self._wake = wake
        self._queues = in_process or options.exclusive is not False
        self._ticket: Ticket | None = None
        self._lock: DeviceLock | None = None
        #: Sentences for people.
        self.notes: list[str] = []

    def queue(self, hooks: Hooks) -> None:
        """Take a place; :meth:`leave` gives it up, also where this was interrupted."""
        self._hooks = hooks
        if self._queues:
            self._ticket = Ticket(self._options.device or 0, self._label, self._wake, hooks.cancel)
            GATE.queue(self._ticket)

    def wait(self, cancelled: Callable[[], bool]) -> bool:
        """Wait; give whether the turn has come, or whether ``cancelled`` answered first."""
        shown = None
        while not cancelled():
            whom = self._who_is_first(cancelled)
            if whom is None:
                return not cancelled()
            if whom and whom != shown:
                shown = whom
                self._hooks.waiting(shown)
            self._wake.wait(_LOOK_S)
            self._wake.clear()
        return False

    def _who_is_first(self, cancelled: Callable[[], bool]) -> str | None:
        """Give the build that this one waits for ("" where it is just leaving), or ``None``."""
        ticket = self._ticket
        if ticket is not None and not ticket.my_turn:
            ahead = GATE.ahead(ticket)
            return ahead[0].label if ahead else ""
        if self._lock is None:
            if self._options.exclusive is False:
                return None
            if self._options.exclusive is None and not self._options.times_tactics:
                return None
            found = gpus_apart(cancelled)
            if self._options.exclusive is None and not found:
                return None  # nothing is timed on a device that others could disturb
            self._lock = DeviceLock(device_key(found, self._options.device), self._label)
        if not self._lock.try_acquire():
            return self._lock.holder() or "a build of another process"
        if self._lock.note:
            self.notes.append(self._lock.note)
        return None

    def leave(self) -> None:
        """Give the device and the place up. Leaving twice is harmless."""
        if self._lock is not None:
            self._lock.release()
        if self._ticket is not None:
            GATE.leave(self._ticket)

    def can_cancel_blocker(self) -> bool:
        """Whether the build that this one waits for is one of this process."""
        return self._ticket is not None and bool(GATE.ahead(self._ticket))

    def cancel_blocker(self) -> None:
        """Ask the build whose turn it is to stop, if it is one of this process."""
        for ticket in GATE.ahead(self._ticket)[:1] if self._ticket is not None else ():
            ticket.cancel("user")


class InTurn:
    """What the executors share that wait for their turn on a thread of their own."""

    _turn: Turn
    _thread: threading.Thread
    _hooks: Hooks
    _outcome: Outcome | None

    def start(self, hooks: Hooks) -> None:
        """Begin in the background."""
        self._hooks = hooks
        try:
            self._turn.queue(hooks)
            self._thread.start()
        except BaseException:  # no thread to be had, or Ctrl-C: nobody else would give the place up
            self._turn.leave()
            raise

    def can_cancel_blocker(self) -> bool:
        """Whether the build that this one waits for is one of this process."""
        return self._turn.can_cancel_blocker()

    def cancel_blocker(self) -> None:
        """Ask the build whose turn it is to stop, if it is one of this process."""
        self._turn.cancel_blocker()

    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def builds_on(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` is the one that builds, or that waits for the process that does."""
        return thread is self._thread

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once there is one."""
        return self._outcome
