"""The one contact with ``trt.IProgressMonitor``.

TensorRT's callbacks only record. They run on the builder's threads, thousands in a burst, and each
of them holds up the build; so a callback reads the clock, stores a few words and reads the cancel
flag, and does nothing else: no rendering, nothing that grows with the number of steps, and no lock
(but for a moment where phases are only counted, see below).

How the record stays bounded
----------------------------
A step overwrites its phase's last step. The start and the finish of a phase go into a queue of at
most :data:`MAX_QUEUED` entries. While the queue is full (nobody drains, or the interpreter is
starved), new phases are only counted, per path, and come out as one
:class:`~trt_widget.events.PhasesCollapsed` a path; one that is still open at the next drain is
reported as if nothing had happened.

Facts this rests on, measured with tensorrt-rtx 1.7.1 and stated in ``NvInfer.h``: an exception in a
callback never reaches Python (in ``step_complete`` it cancels the build), several threads may call,
and returning None from ``step_complete`` cancels.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from math import inf
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trt_widget.backend import Backend, find_backend
from trt_widget.errors import BuildStateError, WrongBackendError, check_reason
from trt_widget.events import (
    CancelDelivered,
    Event,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.phases import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

    from tensorrt import IProgressMonitor

__all__ = ["MAX_QUEUED", "ProgressMonitor"]

#: Starts and finishes kept between two drains (about 100 bytes each).
MAX_QUEUED = 20_000
#: Paths that are told apart while phases are only counted.
MAX_COLLAPSED = 1_000
#: Phases that can be open at once; what starts past it is only counted. (TensorRT opens about ten.)
MAX_OPEN = 10_000


#: Characters kept of a phase's name: some versions of TensorRT put layer names into them, which a
#: model can make as long as it likes.
MAX_NAME = 500


def clip(name: str) -> str:
    """Shorten a name so that names that differ still differ, nearly always."""
    return f"{name[: MAX_NAME - 30]}… ({len(name)} characters, {hash(name) & 0xFFFFFFFF:08x})"


#: Names in the path of a phase that is only counted; deeper ones lose their outermost names.
_DEEPEST = 64


class _Phase:
    """One open phase, written by the callbacks and read by the drain."""

    __slots__ = (
        "end",
        "last",
        "name",
        "num_steps",
        "parent",
        "parent_name",
        "previous",
        "start",
        "thread",
    )

    end: float

    def __init__(  # noqa: PLR0917 - made in a callback, where keywords would cost time
        self,
        name: str,
        parent_name: str | None,
        num_steps: int,
        start: float,
        thread: int,
        parent: _Phase | None = None,
    ) -> None:
        self.name = name
        self.parent_name = parent_name
        self.num_steps = num_steps
        self.start = start
        self.thread = thread
        self.parent = parent
        self.previous: _Phase | None = None
        #: (step, time) of the last step: one object, so that a reader never sees half of it.
        self.last: tuple[int, float] | None = None

    def path(self) -> tuple[str, ...]:
        """Names from the root down."""
        names: list[str] = []
        phase: _Phase | None = self
        while phase is not None and len(names) < _DEEPEST:
            names.append(phase.name)
            phase = phase.parent
        return tuple(reversed(names))


class _Unopened(_Phase):
    """A phase that finished without a start."""

    __slots__ = ()


_time_of = attrgetter("time")
#: Ends the list of a drain.
_NOBODY = _Unopened("", None, 0, 0.0, 0)


class ProgressMonitor:
    """A ``trt.IProgressMonitor`` that records, and that can cancel the build.

    One monitor watches one build: a cancel stays, and would end the next build at its first step.
    Usable alone in anybody's own code::

        monitor = ProgressMonitor(backend="tensorrt_rtx")
        config.progress_monitor = monitor
        with monitor.cancel_on_interrupt():
            engine = builder.build_serialized_network(network, config)

    Parameters
    ----------
    backend
        ``"tensorrt"``, ``"tensorrt_rtx"`` or the module. A monitor must derive from the base class
        of the very package that builds (both bindings are module-local), so this must be the
        package of your builder. By default as for :class:`~trt_widget.Build`.

    Raises
    ------
    BackendNotFound
        No TensorRT package is installed, or not the one asked for.
    """

    def __new__(  # noqa: PYI034 - typing.Self came with Python 3.11
        cls, backend: str | ModuleType | Backend | None = None
    ) -> ProgressMonitor:
        """Give an instance of the subclass that derives from the backend's own base class."""
        found = backend if isinstance(backend, Backend) else find_backend(backend)
        bound = _bind(cls, found)
        # The C++ base class insists on making its own instances.
        monitor: ProgressMonitor = found.module.IProgressMonitor.__new__(bound)  # type: ignore[call-overload,unused-ignore] # where there are no stubs
        monitor._backend = found
        return monitor

    def __init__(self, backend: str | ModuleType | Backend | None = None) -> None:
        del backend  # taken by __new__
        self._backend: Backend
        self._backend.module.IProgressMonitor.__init__(self)
        self._origin = perf_counter()
        self._cancel = False
        self._delivered: float | None = None
        self._delivered_sent = False
        self._answered_by: str | None = None
        self._reason: str | None = None
        # A phase is put in when it starts, and again when it ends.
        self._queue: deque[_Phase] = deque()
        self._open: dict[tuple[int, str], _Phase] = {}
        self._stray: dict[str, tuple[int, float, int]] = {}
        self._sent: dict[_Phase, int] = {}
        # Phases that were not queued. Whoever removes an open one from ``_unqueued`` (the drain, to
        # report it after all, or its finish, to count it) owns it: dict.pop is atomic.
        self._unqueued: dict[_Phase, None] = {}
        self._counting = threading.Lock()
        self._counted: dict[tuple[str, ...], list[float]] = {}
        self._refused = 0
        self._refused_sent = 0
        self._others: tuple[Any, ...] = ()
        self._other_errors: deque[str] = deque(maxlen=10)

    # ------------------------------------------------------------------ called by TensorRT

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Record that a phase opened (called by TensorRT)."""
        now = perf_counter()
        thread = get_ident()
        open_ = self._open
        name = phase_name if len(phase_name) <= MAX_NAME else clip(phase_name)
        above = parent_phase
        if above is not None and len(above) > MAX_NAME:
            above = clip(above)
        parent = None if above is None else open_.get((thread, above))
        phase = _Phase(name, above, num_steps, now, thread, parent)
        key = (thread, name)
        if key in open_:
            phase.previous = open_[key]
        unqueued = self._unqueued
        if (
            (not unqueued or parent not in unqueued)
            and len(self._queue) < MAX_QUEUED
            and len(self._sent) < MAX_OPEN
        ):
            open_[key] = phase
            self._queue.append(phase)
        elif len(unqueued) < MAX_OPEN:
            open_[key] = phase
            unqueued[phase] = None
        else:
            self._refused += 1
        if self._others:
            self._tell_others("phase_start", phase_name, parent_phase, num_steps)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Record a step; answer False once a cancel was asked for (called by TensorRT)."""
        thread = get_ident()
        name = phase_name if len(phase_name) <= MAX_NAME else clip(phase_name)
        phase = self._open.get((thread, name))
        if phase is not None:
            phase.last = (step, perf_counter())
        else:
            self._step_elsewhere(name, step, thread)
        go_on = not self._others or self._tell_others("step_complete", phase_name, step)
        if self._cancel or not go_on:
            if self._delivered is None:
                self._delivered = perf_counter()
                self._answered_by = "cancel" if self._cancel else "monitor"
            return False
        return True

    def phase_finish(self, phase_name: str) -> None:
        """Record that a phase ended (called by TensorRT)."""
        now = perf_counter()
        name = phase_name if len(phase_name) <= MAX_NAME else clip(phase_name)
        key = (get_ident(), name)
        phase = self._open.pop(key, None)
        if phase is None:
            phase = self._finish_elsewhere(name)
        elif phase.previous is not None:
            self._open[key] = phase.previous
        if phase is None:
            if len(self._queue) < MAX_QUEUED:
                phase = _Unopened(name, None, 0, now, key[0])
                phase.end = now
                self._queue.append(phase)
        elif self._unqueued and phase in self._unqueued:
            self._count(phase, now)
        else:
            # Never refused: at most one finish for a queued start.
            phase.end = now
            self._queue.append(phase)
        if self._others:
            self._tell_others("phase_finish", phase_name)

    def _step_elsewhere(self, name: str, step: int, thread: int) -> None:
        """Take a step whose phase was opened by another thread, or never."""
        for (_, open_name), phase in list(self._open.items()):
            if open_name == name:
                phase.last = (step, perf_counter())
                return
        if len(self._stray) < MAX_COLLAPSED:
            self._stray[name] = (step, perf_counter(), thread)

    def _finish_elsewhere(self, name: str) -> _Phase | None:
        """Find the phase that another thread opened."""
        for key in reversed(list(self._open)):
            if key[1] == name:
                phase = self._open.pop(key, None)
                if phase is not None:
                    if phase.previous is not None:
                        self._open[key] = phase.previous
                    return phase
        return None

    def _count(self, phase: _Phase, now: float) -> None:
        with self._counting:
            if phase not in self._unqueued:  # the drain has just reported it
                phase.end = now
                self._queue.append(phase)
                return
            del self._unqueued[phase]
            path = phase.path()
            counted = self._counted.get(path)
            if counted is None:
                if len(self._counted) >= MAX_COLLAPSED:
                    path = (*path[:-1], OTHER) if len(path) > 1 else (OTHER,)
                    if path not in self._counted and len(self._counted) >= 2 * MAX_COLLAPSED:
                        path = (OTHER,)
                counted = self._counted.setdefault(path, [0, 0.0, 0.0, 0, 0])
            duration = now - phase.start
            counted[0] += 1
            counted[1] += duration
            counted[2] = max(counted[2], duration)
            counted[3] += phase.last[0] + 1 if phase.last else 0
            counted[4] += max(phase.num_steps, 0)

    def _tell_others(self, method: str, *arguments: Any) -> bool:
        """Call the chained monitors; a failing one is noted and counts as "go on"."""
        go_on = True
        for other in self._others:
            try:
                answer = getattr(other, method)(*arguments)
            except Exception as error:  # noqa: BLE001, PERF203 - never raise into C++; usually one
                self._other_errors.append(f"{type(other).__name__}.{method}: {error!r}")
            else:
                go_on = go_on and (method != "step_complete" or bool(answer))
        return go_on

    # ------------------------------------------------------------------ called by everybody else

    @property
    def backend(self) -> Backend:
        """The package this monitor belongs to."""
        return self._backend

    @property
    def origin(self) -> float:
        """Origin of the events' times, a reading of ``time.perf_counter()`` in seconds."""
        return self._origin

    def reset_origin(self, origin: float | None = None) -> float:
        """Set the time zero of the events, now by default; give it back.

        Parameters
        ----------
        origin
            A reading of ``time.perf_counter()``.
        """
        self._origin = perf_counter() if origin is None else origin
        return self._origin

    @property
    def cancel_requested(self) -> bool:
        """Whether :meth:`request_cancel` was called."""
        return self._cancel

    @property
    def cancel_reason(self) -> str | None:
        """Reason given with the first :meth:`request_cancel`, or ``None``."""
        return self._reason

    @property
    def answered_false(self) -> str | None:
        """Why a step was answered False: ``"cancel"``, ``"monitor"`` (a chained one), or None."""
        return self._answered_by

    def request_cancel(self, reason: str = "user") -> None:
        """Ask TensorRT to stop: from now on every ``step_complete`` answers False.

        Can be called from any thread and any number of times; the first reason stays.

        Raises
        ------
        ValueError
            ``reason`` is none of user, deadline, interrupt, closed, monitor.
        """
        check_reason(reason)
        if self._reason is None:
            self._reason = reason
        self._cancel = True

    def chain(self, other: Any) -> None:
        """Call ``other``, a monitor of the same package, after this one with every callback.

        A False of its ``step_complete`` cancels the build; an exception in it does not.
        """
        if other is not None and other is not self and other not in self._others:
            self._others = (*self._others, other)

    def other_errors(self) -> list[str]:
        """Take the exceptions that chained monitors raised since the last call (at most 10)."""
        errors = []
        with contextlib.suppress(IndexError):
            while True:
                errors.append(self._other_errors.popleft())
        return errors

    def drain(self) -> list[Event]:
        """Take what was recorded since the last call, in the order in which it happened.

        Call it from one thread only. Steps are coalesced: for each phase the last one comes out.

        Returns
        -------
        list of Event
            Times are seconds since :attr:`origin`.
        """
        origin = self._origin
        events = self._drain_phases(origin)
        add, sent = events.append, self._sent
        # An open phase whose start is not out yet has one in the queue, for the next drain.
        for phase, known in list(sent.items()):
            last = phase.last
            if last is not None and last[0] > known:
                sent[phase] = last[0]
                add(StepCompleted(last[1] - origin, phase.name, last[0], phase.thread))
        for name in list(self._stray):
            stray = self._stray.pop(name)
            add(StepCompleted(stray[1] - origin, name, stray[0], stray[2]))
        if self._delivered is not None and not self._delivered_sent:
            self._delivered_sent = True
            add(CancelDelivered(self._delivered - origin))
        events.sort(key=_time_of)  # stable: the order in the queue decides between equal times
        return events

    def _drain_phases(self, origin: float) -> list[Event]:
        """Take all starts and finishes, and the steps of what has finished."""
        runs_and_events, latest = self._drain_queue(origin)
        events: list[Event] = []
        if self._unqueued or self._counted:
            self._drain_counted(events)
        if events and min(map(_time_of, events)) < latest - origin:
            latest = inf
        for item in runs_and_events:
            if not isinstance(item, list):
                events.append(item)
            elif latest < inf:
                events.append(_completed(item, origin))
            else:
                for phase in item:
                    _add_whole(events, phase, origin)
        return events

    def _drain_queue(self, origin: float) -> tuple[list[Event | list[_Phase]], float]:
        """Take what is in the queue, phases that can be told as one run together in a list.

        Returns
        -------
        list
            Events, and lists of phases.
        float
            Time of the latest start or finish by the clock of the monitor. Infinite if they are not
            in the order of their times, as may be where threads record at the same moment: then
            all must be told singly and sorted.
        """
        queue, sent = self._queue, self._sent
        # Only what is in the queue now: a flood must not keep the drain from returning.
        taken = [queue.popleft() for _ in range(len(queue))]
        count = len(taken)
        taken.append(_NOBODY)
        items: list[Event | list[_Phase]] = []
        add = items.append
        run: list[_Phase] = []
        name = parent_name = thread = None
        latest, in_order = 0.0, True
        index = 0
        while index < count:
            phase = taken[index]
            index += 1
            if taken[index] is phase:  # nothing came between its start and its finish
                index += 1
                if phase.start < latest:
                    in_order = False
                latest = phase.end
                if (
                    run
                    and phase.name == name
                    and phase.parent_name == parent_name
                    and phase.thread == thread
                ):
                    run.append(phase)
                else:
                    name, parent_name, thread = phase.name, phase.parent_name, phase.thread
                    run = [phase]
                    add(run)
                continue
            run = []
            known = sent.pop(phase, None)
            if known is None and phase.__class__ is _Phase:
                sent[phase] = -1
                time = phase.start
                add(_started(phase, origin))
            else:
                time = phase.end
                last = phase.last
                if last is not None and known is not None and last[0] > known:
                    add(StepCompleted(last[1] - origin, phase.name, last[0], phase.thread))
                add(PhaseFinished(time - origin, phase.name, phase.thread))
            if time < latest:
                in_order = False
            latest = max(latest, time)
        return items, latest if in_order else inf

    def _drain_counted(self, events: list[Event]) -> None:
        with self._counting:
            room = max(0, MAX_OPEN - len(self._sent))
            adopted = sorted(self._unqueued, key=lambda phase: phase.start)[:room]
            for phase in adopted:
                del self._unqueued[phase]
            counted, self._counted = self._counted, {}
        for phase in adopted:
            self._sent[phase] = -1
            events.append(_started(phase, self._origin))
        now = perf_counter()
        for path, (count, total, longest, steps, num_steps) in counted.items():
            collapsed = PhasesCollapsed(
                now - self._origin, path, int(count), total, longest, int(steps), int(num_steps)
            )
            events.append(collapsed)
        if self._refused > self._refused_sent:
            refused = self._refused - self._refused_sent
            self._refused_sent += refused
            collapsed = PhasesCollapsed(now - self._origin, (OTHER,), refused, 0.0, 0.0)
            events.append(collapsed)

    @contextlib.contextmanager
    def cancel_on_interrupt(self) -> Iterator[ProgressMonitor]:
        """Turn Ctrl-C into a cancel while the block runs, from any phase of the build.

        Meant for scripts. An exception raised by Python's own handler inside a callback would be
        swallowed by TensorRT (always in ``phase_start`` and ``phase_finish``); this handler only
        sets the flag. A second Ctrl-C goes to the handler that was there before, and the old
        handler is back when the block is left.

        The flag is set as soon as the signal arrives, also while the main thread is inside
        TensorRT: a helper thread watches :func:`signal.set_wakeup_fd` where nobody else uses it.

        Raises
        ------
        BuildStateError
            Not called from the main thread, the only one that may set signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            raise BuildStateError(
                "Ctrl-C can be taken over in the main thread only.",
                remedy="Use cancel_on_interrupt() in the main thread, or call request_cancel().",
            )
        before = signal.getsignal(signal.SIGINT)

        def on_interrupt(signum: int, frame: FrameType | None) -> None:
            if not seen:
                seen.append(signum)
                self.request_cancel("interrupt")
            elif callable(before):
                before(signum, frame)
            elif before == signal.SIG_DFL:
                signal.signal(signum, before)
                signal.raise_signal(signum)

        seen: list[int] = []
        stop_watching = _watch_signal(signal.SIGINT, lambda: self.request_cancel("interrupt"))
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield self
        finally:
            # (None: a handler that was not set from Python, which cannot be put back.)
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
            stop_watching()

    def __repr__(self) -> str:
        state = f", cancel requested: {self._reason}" if self._cancel else ""
        return f"ProgressMonitor({self._backend.name!r}{state})"


def _started(phase: _Phase, origin: float) -> PhaseStarted:
    return PhaseStarted(
        phase.start - origin, phase.name, phase.parent_name, phase.num_steps, phase.thread
    )


def _completed(run: list[_Phase], origin: float) -> PhasesCompleted:
    first = run[0]
    ends = tuple([phase.end - origin for phase in run])
    return PhasesCompleted(
        ends[-1],
        first.name,
        first.parent_name,
        first.thread,
        tuple([phase.start - origin for phase in run]),
        ends,
        tuple([-1 if phase.last is None else max(-1, phase.last[0]) for phase in run]),
        tuple([phase.num_steps for phase in run]),
    )


def _add_whole(events: list[Event], phase: _Phase, origin: float) -> None:
    """Add the single events of a phase that has started and finished."""
    events.append(_started(phase, origin))
    last = phase.last
    if last is not None and last[0] > -1:
        events.append(StepCompleted(last[1] - origin, phase.name, last[0], phase.thread))
    events.append(PhaseFinished(phase.end - origin, phase.name, phase.thread))


if TYPE_CHECKING:

    class _Bound(ProgressMonitor, IProgressMonitor):
        """What :func:`_bind` makes; so the callbacks are checked against TensorRT's."""


_bound: dict[tuple[type, str], type[_Bound]] = {}


def _bind(cls: type[ProgressMonitor], backend: Backend) -> type[_Bound]:
    """Give the subclass of ``cls`` that also derives from the backend's IProgressMonitor."""
    base = backend.module.IProgressMonitor
    if issubclass(cls, base):
        return cls  # type: ignore[return-value,unused-ignore] # one that is as those made below
    for other in cls.__mro__:
        if other.__name__ == "IProgressMonitor":
            raise WrongBackendError(
                f"{cls.__name__} derives from the IProgressMonitor of another package than "
                f"{backend.name}.",
                remedy="Pass the backend whose class it derives from.",
            )
    key = (cls, backend.name)
    if key not in _bound:
        _bound[key] = type(cls.__name__, (cls, base), {"__module__": cls.__module__})
    return _bound[key]


def _watch_signal(signum: int, action: Callable[[], None]) -> Callable[[], None]:
    """Run ``action`` when ``signum`` arrives, even while the main thread runs C++ code.

    Returns
    -------
    callable
        Ends the watch and gives the wake-up descriptor back.
    """
    import socket

    receiver, sender = socket.socketpair()
    sender.setblocking(False)  # noqa: FBT003 - the standard library's signature
    old = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    if old != -1:
        # Somebody (an event loop) is woken by it already: leave it to them.
        signal.set_wakeup_fd(old)
        receiver.close()
        sender.close()
        return lambda: None

    def watch() -> None:
        while True:
            received = receiver.recv(64)
            if not received:
                return
            if signum in received:
                action()

    watcher = threading.Thread(target=watch, name="trt_widget interrupt", daemon=True)
    watcher.start()

    def stop() -> None:
        signal.set_wakeup_fd(-1)
        sender.close()
        watcher.join(1)
        receiver.close()

    return stop
