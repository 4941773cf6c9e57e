"""A build that runs elsewhere: only its stream reaches us.

The stream is JSON Lines, as :mod:`trt_widget.events` says: what ``trt-widget build --events``
writes, what a build process sends, what a C++ program writes, or a recording of any of them. It is
read by a thread of its own, as fast as it comes, and nothing in it is trusted: a line that is no
event is counted, and the build that is shown goes on.

Times are the producer's. The clock here only says how late it is there: it is set by the event that
arrived soonest after its time, and for a file that was there already by the time at which it was
last written. Events without times get those of their arrival.

A cancel is one line to whoever listens: to ``control=``, or for a stream in a file that says so to
the file beside it, with ``.control`` after its name. No path that a stream names is ever opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import sys
import threading
import time as clock
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget.backend import Backend
from trt_widget.errors import (
    CANCEL_REASONS,
    BuildFailed,
    OptionError,
    StreamError,
    from_record,
    to_record,
)
from trt_widget.events import (
    PROTOCOL_VERSION,
    BuildEnded,
    CancelDelivered,
    Estimate,
    Event,
    EventError,
    LogMessage,
    MessagesDropped,
    NetworkReady,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    Snapshot,
    StatusChanged,
    StepCompleted,
    StreamStarted,
    from_json,
)
from trt_widget.executors import Outcome
from trt_widget.executors.foreign import LATEST_S, MAX_NAME, MAX_SHORT, Times, clean, sound
from trt_widget.executors.incoming import CHUNK, LOOK_S, Lines, look_at, open_input
from trt_widget.options import BuildOptions
from trt_widget.phases import PATH_SEPARATOR, PhaseTree
from trt_widget.sinks.control import check_own

if TYPE_CHECKING:
    from trt_widget.build import BuildResult
    from trt_widget.executors import Hooks
    from trt_widget.executors.incoming import Input

__all__ = ["CONTROL", "MAX_LINE", "START_S", "FollowedExecutor", "options_of"]

#: After the name of a stream's file: the file from which its producer reads requests.
CONTROL: Final = ".control"
#: Bytes of the longest line that is read; a snapshot with all its spans takes up to ten million.
MAX_LINE: Final = 16 << 20
#: Seconds that a file may take to be there, and to have a first event in it.
START_S: Final = 60.0
#: Lines without a single event among them after which a stream is none.
NOTHING_BUT_NOISE: Final = 1_000
#: Seconds for which a file with nothing but such lines may be without a new one.
_NOISE_S = 5.0
#: Lines that could not be read and are kept, and characters of each.
MAX_BAD: Final = 5
MAX_BAD_LENGTH: Final = 300
#: Events that wait for the drain, and bytes of their lines. Past it a file is read later, and the
#: phases of anything else become one snapshot: a producer is never held up.
MAX_WAITING: Final = 50_000
MAX_WAITING_BYTES: Final = 64 << 20
#: Phases that can be open at once; those that start while so many are get counted as bad lines.
MAX_OPEN: Final = 10_000
#: Finishes after which the open ones are counted anew.
_RECOUNT = 100
#: Messages and printed pieces that are kept beside such a snapshot.
_KEPT_BESIDE = 1_000
#: Seconds between two looks at whether the producer still lives.
_ALIVE_S = 1.0
#: Seconds that an ``end`` may take to come after the status that says the same.
_END_S = 1.0
#: Seconds that a request may take to be written.
_ASK_S = 1.0
#: Seconds within which a producer that lives has read a request: it looks five times as often.
_HEARD_S = 1.0
#: Seconds for which the stream of an earlier build is taken to be about to be replaced: whoever
#: starts a build and looks at its stream at once means the new one.
_OLD_S = 2.0
_REPLACE_S = 2.0
#: A file that was written no longer ago than this was written now, in seconds.
_FRESH_S = 1.0

_STATUSES = ("succeeded", "cancelled", "failed", "ended")
_ENDED_BY = (
    "completed",
    "cached",
    "step",
    "before build",
    "terminated",
    "killed",
    "crashed",
    "error",
    "unknown",
)
_WAITING = re.compile(r"waiting for (.*), which builds on the same device", re.DOTALL)
_PHASES = (
    PhaseStarted,
    StepCompleted,
    PhaseFinished,
    PhasesCompleted,
    PhasesCollapsed,
    CancelDelivered,
    Snapshot,
)


class ToldBackend(Backend):
    """The package of a build elsewhere, as its stream names it; nothing of it is needed here."""

    __slots__ = ()

    def __init__(self, name: str = "", version: str = "") -> None:
        self.name = name
        self.module = None  # type: ignore[assignment] # nobody asks a build elsewhere for it
        self.version = version
        self.note = ""

    def __str__(self) -> str:
        known = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}
        return f"{known.get(self.name, self.name or 'TensorRT')} {self.version}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.name, self.version))


def options_of(backend: Backend) -> BuildOptions:
    """Give the options of a build of which nobody has said any."""
    return BuildOptions(
        output=None,
        profiles=(),
        timeout=None,
        flags=(),
        strongly_typed=True,
        network_flags=(),
        optimization_level=None,
        workspace=None,
        device=None,
        target=(),
        configure=None,
        config=None,
        backend=backend,
    )


class FollowedExecutor:
    """Reads the stream of a build elsewhere; see :class:`~trt_widget.executors.Executor`.

    Parameters
    ----------
    source
        Path of a file or FIFO, a descriptor, or an object that can be read (binary or text).
    control
        Where a request to cancel is written: a path, a descriptor or an object with ``write``.
        Without it, to the file beside ``source`` if the producer says that it listens there.
    wait
        Whether to wait for a file that is not there yet, and at its end for more; a number says for
        how many seconds it may be missing or empty, by default :data:`START_S`.

    Attributes
    ----------
    label
        What people call the stream.
    hello
        Its first event, or ``None``.
    running_at, cancelling_at
        The producer's times of these states, or ``None``.
    estimate
        The producer's latest, or ``None``.
    last_words
        The event that ended the stream, or ``None``.

    Raises
    ------
    TypeError
        ``source``, ``control`` or ``wait`` is nothing of that kind.
    StreamError
        ``source`` is a folder, or is missing and not waited for.
    """

    kind = "followed"

    def __init__(self, source: Any, *, control: Any = None, wait: bool | float = True) -> None:
        # Here and not when a thread comes to need it (as in process.py), nor for all: it is slow.
        import psutil  # noqa: F401

        _check_wait(wait)
        self._path = _checked_source(source, missing=wait is not False)
        self._source = source if self._path is None else self._path
        self._control = _checked_control(control)
        self._tail = wait is not False
        self._start_s = START_S if isinstance(wait, bool) else float(wait)
        self.label = _label(source)
        self.backend = ToldBackend()
        self.hello: StreamStarted | None = None
        self.running_at: float | None = None
        self.cancelling_at: float | None = None
        self._again: StreamStarted | None = None
        self._last_status: StatusChanged | None = None
        self._last_status_at = 0.0
        self.estimate: Estimate | None = None
        self.last_words: BuildEnded | None = None
        self._reason: str | None = None
        self._told = False
        #: When it was asked, and the file that was made for it.
        self._told_at = 0.0
        self._request: tuple[int, int] | None = None
        self._asking = threading.Lock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._outcome: Outcome | None = None
        self._lines = Lines(MAX_LINE)
        self._tree = PhaseTree()
        #: No fewer than the phases that are open, and the finishes since they were counted.
        self._opened = self._closed = 0
        self._words: deque[str] = deque(maxlen=100)
        self._bad: list[str] = []
        self._bad_count = 0
        self._is_text = True
        self._good = 0
        self._times = Times()
        self._told_running = self._caught_up = False
        self._settled = self._looked = 0.0
        self._ended_before: float | None = None
        #: Whether anything came after what was there.
        self._is_live = False
        self._host = ""
        self._thread = threading.Thread(
            target=self._run, name=f"trt_widget stream {self.label}"[:60], daemon=True
        )
        self._hooks: Hooks

    # ------------------------------------------------------------------ the build's side

    def start(self, hooks: Hooks) -> None:
        """Begin to read."""
        # Here, and not on the thread: the copy that a fork makes of a half-imported module can
        # never be imported.
        from trt_widget.broadcast import this_host

        self._host = this_host()
        self._hooks = hooks
        self._thread.start()

    def reset_origin(self) -> float:
        """Give the producer's time zero: it decides itself when that is."""
        return self._times.origin

    @property
    def origin(self) -> float:
        """Reading of ``time.perf_counter()`` at the producer's time zero, as far as it is known."""
        return self._times.origin

    def drain(self) -> list[Event]:
        """Take what has arrived since the last call, in the order of the stream."""
        with self._lock:
            events = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        return events

    def begins_again(self, hello: StreamStarted) -> bool:
        """Whether the stream had begun before this event."""
        return hello is self._again

    def told_backend(self, hello: StreamStarted) -> Backend:
        """Give the package that a stream names."""
        return ToldBackend(hello.backend, hello.backend_version)

    def read_estimate(self, now: float, before: Estimate) -> Estimate:
        """Give how far the producer says that it is, and never less than ``before``."""
        said = self.estimate
        if said is None:
            return before
        progress = said.progress
        if progress is not None:
            progress = max(before.progress or 0.0, min(progress, 0.999))
        return Estimate(now, progress, said.eta_s, said.exceeded)

    def complete(self, result: BuildResult) -> BuildResult:
        """Put in what only the producer knows."""
        end = self.last_words
        notes = tuple(dict.fromkeys(result.notes))
        if end is None or result.status == "failed":
            return dataclasses.replace(result, notes=notes)
        latency = _sound_facts(end.facts).get("stop_latency_s")
        if latency is None and self.cancelling_at is not None:
            latency = min(max(end.time, 0.0), LATEST_S) - self.cancelling_at
        return dataclasses.replace(
            result,
            notes=notes,
            engine_bytes=end.engine_bytes if (end.engine_bytes or 0) > 0 else None,
            output=Path(end.engine) if end.engine and result.status == "succeeded" else None,
            stop_latency_s=result.stop_latency_s if latency is None else max(0.0, float(latency)),
        )

    def request_cancel(self, reason: str) -> None:
        """Stop to read if it is closed; :meth:`ask` tells the producer."""
        if reason == "closed":
            self.abandon()

    def abandon(self) -> None:
        """Read no more; the build itself goes on."""
        first = not self._stop.is_set()
        self._stop.set()
        if first and self._request is not None:
            # The interpreter waits for this thread; while it is being left there can be none.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._remove_later, name="trt_widget request").start()
        rest = "had been asked to cancel it" if self._told else "went on with it"
        note = f"It was followed no longer; the process that builds {rest}."
        self._end(
            Outcome(
                "ended",
                time=max(self._times.latest, clock.perf_counter() - self.origin)
                if self.running_at is not None
                else 0.0,
                notes=(*self._all_notes(), note),
            )
        )

    @property
    def can_ask(self) -> bool:
        """Whether there is anybody to be asked to cancel, as far as it is known."""
        return self._control is not None or self._beside() is not None

    def ask(self, reason: str) -> str | None:
        """Ask the producer to cancel; wait a second at most.

        Returns
        -------
        str or None
            Why nobody could be asked, or ``None``: the request is on its way.
        """
        with self._asking:
            if self._told:
                return None
            target = self._control if self._control is not None else self._beside()
            if target is None:
                return (
                    "Nothing was heard of the build yet, so nobody could be asked to cancel it."
                    if self.hello is None and self._good == 0
                    else "The process that builds does not listen here, so nobody could be asked "
                    "to cancel it: cancel it where it runs, or say where it listens (control)."
                )
            line = json.dumps({"request": "cancel", "reason": reason}).encode("ascii") + b"\n"
            if self._control is not None:
                problem = _send(target, line)
            else:
                problem = _send(partial(self._append, target), line)
            self._told = problem is None
            self._told_at = clock.monotonic()
            return problem

    def _append(self, path: Path, line: bytes) -> None:
        """Write a request beside the stream: to a new file, or to one that has such already."""
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):
                self._request = _write_file(path, line, os.O_CREAT | os.O_EXCL)
                return
        check_own(path)
        _write_file(path, line)

    def _beside(self) -> Path | None:
        """Give the file from which the producer reads requests, if it says that it does."""
        if self._path is None or self.hello is None or not self.hello.listens:
            return None
        return self._path.with_name(self._path.name + CONTROL)

    @property
    def cancel_reason(self) -> str | None:
        """Why the producer is being cancelled, where it has said so."""
        return self._reason

    @property
    def peak_memory_bytes(self) -> int | None:
        """What the producer said at its end."""
        said = self.last_words.peak_memory_bytes if self.last_words is not None else None
        return said if said is not None and said > 0 else None

    def can_cancel_blocker(self) -> bool:
        """Say no: the one that it waits for is elsewhere, too."""
        return False

    def cancel_blocker(self) -> None:
        """Do nothing: the one that it waits for is elsewhere, too."""

    def alive(self) -> bool:
        """Whether an outcome can still come."""
        return self._outcome is not None or self._thread.is_alive()

    def builds_on(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` is the one that reads."""
        return thread is self._thread

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once there is one; everything that happened before it can be drained."""
        return self._outcome

    # ------------------------------------------------------------------ the thread that reads

    def _run(self) -> None:
        incoming: Input | None = None
        try:
            self._await_another()
            incoming = self._open()
            if incoming is not None:
                outcome = self._read(incoming)
                if outcome is not None:
                    self._end(outcome)
        except StreamError as error:
            self._end(self._failed(error))
        except Exception as error:  # noqa: BLE001 - a file object is the caller's, and may do anything
            self._end(
                self._failed(
                    StreamError(
                        f"The stream of {self.label} cannot be read: {type(error).__name__}: "
                        f"{error}",
                        "See that what is followed can be read, and follow it again.",
                        evidence=self._bad,
                    )
                )
            )
        finally:
            if incoming is not None:
                with contextlib.suppress(Exception):
                    incoming.close()
            if not self._stop.is_set():
                self._remove_request()

    def _open(self) -> Input | None:
        """Open the source as soon as it is there; ``None`` where it was closed before."""
        deadline = clock.monotonic() + self._start_s
        while True:
            try:
                return open_input(self._source, tail=self._tail)
            except FileNotFoundError as error:
                if not self._tail or clock.monotonic() >= deadline:
                    waited = f" after {self._start_s:g} s" if self._tail else ""
                    raise _missing(self._source, waited) from error
            except OSError as error:
                raise StreamError(
                    f"The stream {self.label} cannot be opened: {error}.",
                    "Follow a file or FIFO that may be read.",
                ) from error
            if self._stop.wait(LOOK_S):
                return None

    def _await_another(self) -> None:
        """Wait a moment for a new build where there is only the stream of an earlier one."""
        found = look_at(self._path) if self._tail and self._path is not None else None
        if found is None or found.age < _OLD_S:
            return
        if not (_is_end(found.last) or self._is_left_over()):
            return
        deadline = clock.monotonic() + min(_REPLACE_S, self._start_s)
        while clock.monotonic() < deadline and not self._stop.wait(LOOK_S):
            now = look_at(self._path)
            if now is None or now.identity != found.identity:
                return

    def _is_left_over(self) -> bool:
        """Say whether the file is that of a build whose process was ended."""
        with contextlib.suppress(OSError, EventError, TypeError):
            with open(self._source, "rb") as file:  # noqa: PTH123 - a path of any kind
                hello = from_json(file.readline(CHUNK))
            return isinstance(hello, StreamStarted) and self._is_gone(hello)
        return False

    def _note_age(self, incoming: Input) -> None:
        """Remember how long ago a stream ended that had ended before it was followed."""
        age = incoming.age()
        if not self._caught_up and incoming.growing and age > _OLD_S:
            self._ended_before = age

    def _read(self, incoming: Input) -> Outcome | None:
        """Read until the end of the build or of the stream; ``None`` where it was closed."""
        quiet_since = clock.monotonic()
        while not self._stop.is_set():
            data = incoming.read()
            if incoming.restarted:
                incoming.restarted = False
                self._lines.restart()
                self._start_over(None)
            if data == b"":
                if (rest := self._lines.rest()) and self._take_line(rest):
                    break
                self._note_age(incoming)
                self._settle(incoming)
                return self._broken_off()
            now = clock.monotonic()
            if data:
                quiet_since = now
                self._is_live = self._is_live or self._caught_up or not incoming.growing
                if self._take(data, incoming):
                    break
                if now - self._settled >= LOOK_S:  # one that never pauses
                    self._settle(incoming)
                continue
            self._settle(incoming)
            self._caught_up = True
            if self._is_nothing(incoming, now - quiet_since):
                raise self._nothing()
            if self._is_over(now):
                return self._left_behind(incoming)
        self._note_age(incoming)
        self._settle(incoming)
        return self._finished()

    def _is_nothing(self, incoming: Input, quiet: float) -> bool:
        """Say whether a file that had no event for so long will have none."""
        if self._good or not incoming.growing:
            return False
        # Lines that are no events may come before a stream; nobody writes to an old file.
        noise = self._bad_count > 0 and incoming.age() > _NOISE_S
        return noise or quiet > self._start_s

    def _is_over(self, now: float) -> bool:
        """Whether there will be no more, though the file does not say so."""
        if self._last_status is not None:  # what a subscriber has written has no other end
            return now - self._last_status_at > _END_S
        due = now - self._looked >= _ALIVE_S
        self._looked = now if due else self._looked
        return due and self._producer_is_gone()

    def _left_behind(self, incoming: Input) -> Outcome | None:
        """Take what the producer wrote between the last look and its own end."""
        parts: list[bytes] = []
        while (data := incoming.read()) and len(parts) * CHUNK < 4 * MAX_LINE:
            parts.append(data)
        ended = self._take(b"".join(parts), incoming)
        self._settle(incoming)
        return self._finished() if ended else self._broken_off()

    def _take(self, data: bytes, incoming: Input) -> bool:
        """Take some bytes; give whether the build has ended with them."""
        ended = False
        for line in self._lines.feed(data):
            ended = self._stop.is_set() or self._take_line(line)
            if ended:
                break
            self._make_room(incoming)
        for line in self._lines.too_long:
            self._count_bad(line, f"longer than {MAX_LINE:,} bytes")
            if not self._good:
                raise self._nothing()
        self._lines.too_long.clear()
        return ended

    def _make_room(self, incoming: Input) -> None:
        """Keep within bounds what waits for the drain."""
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            if incoming.growing:
                self._hooks.changed()
                if self._stop.wait(0.01):
                    return
                continue
            with self._lock:
                beside = [event for event in self._waiting if not isinstance(event, _PHASES)]
                kept = beside[-_KEPT_BESIDE:]
                if len(kept) < len(beside):
                    dropped = sum(isinstance(event, LogMessage) for event in beside) - sum(
                        isinstance(event, LogMessage) for event in kept
                    )
                    kept.append(MessagesDropped(self._times.latest, dropped))
                starts = [event for event in beside[:-_KEPT_BESIDE] if _begins(event)]
                self._waiting = deque([*starts, *kept, self._tree.snapshot()])
                self._waiting_bytes = sum(map(_size, kept))
            if self._waiting_bytes > MAX_WAITING_BYTES // 2:
                with self._lock:  # a few that are enormous
                    while self._waiting_bytes > MAX_WAITING_BYTES // 2 and len(self._waiting) > 1:
                        self._waiting_bytes -= _size(self._waiting.popleft())

    def _settle(self, incoming: Input) -> None:
        """All that there is has been read: set the clock, and tell the build."""
        if self._good == 0:
            return
        self._times.settle(0.0 if self._caught_up else incoming.age())
        self._settled = clock.monotonic()
        if self.running_at is not None and not self._told_running:
            self._told_running = True
            self._hooks.running()
        self._hooks.changed()

    def _take_line(self, line: bytes) -> bool:
        """Take one line; give whether it was the last."""
        if not line.strip():
            return False
        try:
            event = self._times.place(sound(from_json(line), line), line)
            if isinstance(event, _PHASES):
                self._check_open(event)
                self._tree.apply([event])
            if isinstance(event, Snapshot):
                self._opened, self._closed = len(self._tree.open_phases), 0
        except EventError as error:
            self._count_bad(line, str(error))
            return False
        except (ArithmeticError, LookupError, TypeError, ValueError):
            # A snapshot that looks well and cannot be.
            self._tree = PhaseTree()
            self._opened = self._closed = 0
            self._count_bad(line, "it contradicts itself")
            return False
        self._good += 1
        return self._keep(event, len(line))

    def _check_open(self, event: Event) -> None:
        """Refuse a start while too many phases are open: whatever looks at them takes its time."""
        if isinstance(event, PhaseFinished):
            self._closed += 1
        if not isinstance(event, PhaseStarted):
            return
        if self._opened >= MAX_OPEN and self._closed >= _RECOUNT:
            self._opened, self._closed = len(self._tree.open_phases), 0
        if self._opened >= MAX_OPEN:
            raise EventError(f"more than {MAX_OPEN:,} phases are open")
        self._opened += 1

    def _keep(self, event: Event, size: int) -> bool:
        if isinstance(event, BuildEnded):
            self.last_words = event
            return True
        if isinstance(event, StreamStarted):
            if event.version > PROTOCOL_VERSION:
                raise StreamError(
                    f"The stream of {self.label} has version {event.version} of the protocol; this "
                    f"trt_widget reads version {PROTOCOL_VERSION}.",
                    "Install the version of trt_widget that writes it, or a newer one, here, too.",
                    evidence=[f"stream_start: version {event.version}"],
                )
            if self._good > 1:
                self._start_over(event)
            else:
                self.hello = event
                self._put(event, size)
            return False
        if isinstance(event, StatusChanged):
            self._take_status(event)
            return False
        if isinstance(event, Estimate):
            self.estimate = event
            return False
        if isinstance(event, CancelDelivered):
            self._cancelling("user", event.time)
        if isinstance(event, LogMessage) and event.severity in {
            "internal_error",
            "error",
            "warning",
        }:
            self._words.append(event.message)
        if self.running_at is None:
            self.running_at = 0.0
        self._put(event, size)
        return False

    def _put(self, event: Event, size: int) -> None:
        with self._lock:
            self._waiting.append(event)
            self._waiting_bytes += size

    def _start_over(self, event: StreamStarted | None) -> None:
        """Begin again: what was before is no part of it any more."""
        if self.hello is not None:  # another producer, which was not asked for anything yet
            with self._asking:
                self._told = False
        self._tree = PhaseTree()
        self._opened = self._closed = 0
        self._words.clear()
        self.hello = event
        self.estimate = self._last_status = None
        self._times.restart(0.0 if event is None else event.time)
        if event is None:
            self._good = 0
        self._again = event or StreamStarted(0.0, "")
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0
        self._put(self._again, 0)

    def _take_status(self, event: StatusChanged) -> None:
        if event.status == "pending":
            if event.detail and self.running_at is None:
                found = _WAITING.fullmatch(event.detail)
                self._hooks.waiting((found[1] if found else event.detail)[:MAX_SHORT])
        elif event.status == "running":
            if self.running_at is None:
                # The producer's clock begins with it.
                self.running_at = event.time
                self._times.zero_is_near(event.time)
        elif event.status == "cancelling":
            self._cancelling(event.reason, event.time)
        elif event.status in _STATUSES:
            self._last_status = event
            self._last_status_at = clock.monotonic()

    def _cancelling(self, reason: str | None, time: float) -> None:
        if self._reason is None:
            self.cancelling_at = time
            self._reason = reason if reason in CANCEL_REASONS else "user"

    # ------------------------------------------------------------------ the end

    def _end(self, outcome: Outcome) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
        self._hooks.changed()

    def _failed(self, error: StreamError) -> Outcome:
        return Outcome(
            "failed",
            error=error,
            ended_by="error",
            time=self._times.latest,
            notes=self._all_notes(),
        )

    def _all_notes(self) -> tuple[str, ...]:
        notes = []
        if self._ended_before is not None:
            notes.append(
                f"Its stream ended {_ago(self._ended_before)} ago, before it was followed."
            )
        if self._times.told is False:
            notes.append("The stream has no times: those shown are when its lines arrived here.")
        if self._bad_count:
            lines = "One line" if self._bad_count == 1 else f"{self._bad_count:,} lines"
            notes.append(f"{lines} of the stream could not be read. The first: {self._bad[0]}")
        return tuple(notes)

    def _finished(self) -> Outcome | None:
        """Make the outcome of a build that has told its own."""
        end = self.last_words
        if end is None:  # it was closed
            return None
        status, error = end.status, None
        if status not in _STATUSES:
            return self._failed(
                StreamError(
                    f"The stream of {self.label} ends in a state that there is not: "
                    f"{status[:MAX_SHORT]!r}.",
                    "Install the version of trt_widget that writes it here, too.",
                    evidence=self._bad,
                )
            )
        if status == "failed":
            error = (
                BuildFailed(
                    "The build failed, and its stream does not say why.",
                    "See what the process that built it has printed.",
                    self._words,
                )
                if end.error is None
                else from_record(end.error)
            )
            if not isinstance(error, BuildFailed):
                error = BuildFailed(error.cause, error.remedy, error.messages)
        return Outcome(
            status,
            error=error,
            ended_by=end.ended_by if end.ended_by in _ENDED_BY else "unknown",
            reason=self._reason_of(end),
            time=min(max(end.time, 0.0), LATEST_S),
            notes=(*(note[:MAX_NAME] for note in end.notes[:100]), *self._all_notes()),
            facts=_sound_facts(end.facts),
        )

    def _reason_of(self, end: BuildEnded) -> str | None:
        if end.reason in CANCEL_REASONS:
            return end.reason
        return self._reason or ("user" if end.status == "cancelled" else None)

    def _end_of(self, last: StatusChanged) -> BuildEnded:
        """Give the end that the last status of a build stands for."""
        error = None
        if last.status == "failed":
            cause = last.detail or "The build failed, and its stream does not say why."
            error = to_record(BuildFailed(cause, messages=self._words))
        ended_by = {"succeeded": "completed", "failed": "error"}.get(last.status, "unknown")
        return BuildEnded(last.time, last.status, ended_by, last.reason, error)

    def _broken_off(self) -> Outcome | None:
        """Make the outcome of a stream that has an end, and no ``end`` in it."""
        if self._good == 0:
            raise self._nothing()
        last = self._last_status
        if last is not None:
            self.last_words = self._end_of(last)
            return self._finished()
        opened = self._tree.open_phases
        promised = self.hello is not None and self.hello.pid is not None
        if not self._tail or not (opened or promised):
            return Outcome(
                "ended",
                time=self._times.latest,
                notes=(
                    *self._all_notes(),
                    "The stream has no end event: what the build came to is not known.",
                ),
            )
        phase = PATH_SEPARATOR.join(opened[-1])[:MAX_NAME] if opened else None
        heard = [f"The last event was {self._times.latest:.1f} s after the start of the build."]
        if phase is None:
            heard.append("No phase was open then.")
        if self._producer_is_gone() and self.hello is not None:
            heard.append(f"The process {self.hello.pid} that wrote it does not run any more.")
        return Outcome(
            "failed",
            error=StreamError(
                f"The stream of {self.label} broke off before the build ended.",
                "The process that built was ended or has lost its output: see what it printed. "
                "A build that did end there is not known here.",
                self._words,
                evidence=[*heard, *self._bad],
                phase=phase,
            ),
            ended_by="crashed",
            # Views have counted on since the last event.
            time=max(self._times.latest, clock.perf_counter() - self.origin)
            if self._is_live
            else self._times.latest,
            notes=self._all_notes(),
        )

    def _nothing(self) -> StreamError:
        """Say that what was read is no stream."""
        if not self._bad_count and isinstance(self._source, int):
            cause = f"Nothing came from {self.label}."
        else:
            what = "no event in it" if self._is_text else "not even text in it"
            what = what if self._bad_count else "nothing in it"
            cause = f"{self.label} is no stream of a build: there is {what}."
        return StreamError(
            cause,
            "A stream is written by `trt-widget build --events FILE`, by a build's subscribers, or "
            "by a progress monitor that writes the same JSON Lines.",
            evidence=self._bad if self._is_text else (),
        )

    def _producer_is_gone(self) -> bool:
        """Whether the process that writes is one of this machine, and does not run any more."""
        return self.hello is not None and self._is_gone(self.hello)

    def _is_gone(self, hello: StreamStarted) -> bool:
        if hello.pid is None or hello.host != self._host or hello.pid <= 0:
            return False
        import psutil

        try:
            process = psutil.Process(hello.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            if self._path is None:
                return False
            # One that began after the last line was written has only got the same number.
            return process.create_time() > self._path.stat().st_mtime + _FRESH_S
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, OSError, OverflowError, ValueError):
            return False

    def _remove_later(self) -> None:
        """Remove it as soon as whoever listens has read it."""
        if self.hello is None or self.hello.host not in {"", self._host}:
            return  # a file may take its time from one machine to another
        clock.sleep(max(0.0, self._told_at + _HEARD_S - clock.monotonic()))
        self._remove_request()

    def _remove_request(self) -> None:
        """Leave no request behind for whoever writes to the same file next."""
        beside = self._beside()
        if self._request is None or beside is None:
            return
        with contextlib.suppress(OSError):
            found = beside.lstat()
            if (found.st_dev, found.st_ino) == self._request:
                beside.unlink()

    # ------------------------------------------------------------------ lines that are none

    def _count_bad(self, line: bytes, why: str) -> None:
        self._bad_count += 1
        if b"\0" in line or self._bad_count == 1:
            self._is_text = self._is_text and _is_text(line)
        if len(self._bad) < MAX_BAD:
            self._bad.append(f"{line[:150]!r} ({why[:150]})"[:MAX_BAD_LENGTH])
        if self._good == 0 and self._bad_count >= NOTHING_BUT_NOISE:
            raise self._nothing()


# ---- what is read --------------------------------------------------------------------------------


def _is_text(line: bytes) -> bool:
    """Say whether bytes can be what somebody wrote to be read."""
    return b"\0" not in line and "\ufffd" not in line[:1000].decode("utf-8", "replace").rstrip(
        "\ufffd"
    )


def _is_end(line: bytes) -> bool:
    """Say whether a line is the last of a build."""
    try:
        event = from_json(line)
    except EventError:
        return False
    return isinstance(event, BuildEnded) or (
        isinstance(event, StatusChanged) and event.status in _STATUSES
    )


def _ago(seconds: float) -> str:
    """Give a time in the largest unit of which there are two."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _begins(event: Event) -> bool:
    return isinstance(event, (StreamStarted, NetworkReady))


def _size(event: Event) -> int:
    """Give about the bytes of the texts in an event."""
    text = getattr(event, "message", None) or getattr(event, "text", None) or ""
    return 100 + len(text)


def _sound_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Give the facts of an end that are known here and of their type."""
    kinds: dict[str, Any] = {
        "device": str,
        "layers": int,
        "timing_cache": (str, dict),
        "stop_latency_s": (int, float),
    }
    return {
        name: value[:MAX_SHORT] if isinstance(value, str) else value
        for name, kind in kinds.items()
        if isinstance(value := facts.get(name), kind) and not isinstance(value, bool)
    }


# ---- what is given ------------------------------------------------------------------------------


def _checked_source(source: Any, *, missing: bool) -> Path | None:
    """Check what is to be followed; give it as an absolute path if it is one."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fsdecode(source)).expanduser()
        try:
            path = path.absolute()
            mode = path.stat().st_mode
        except FileNotFoundError:
            if not missing:
                raise _missing(path, "") from None
            return path
        except (OSError, ValueError) as error:
            raise StreamError(
                f"The stream {path.name} cannot be opened: {error}.",
                "Follow a file or FIFO that may be read.",
            ) from error
        if stat.S_ISDIR(mode):
            raise StreamError(
                f"{path.name} is a folder, not a stream.",
                "Give the file in it that has the events.",
            )
        return path
    if isinstance(source, bool) or not (
        isinstance(source, int) or hasattr(source, "read") or hasattr(source, "readline")
    ):
        raise TypeError(
            "what is followed is a path, a file object or a descriptor, not "
            f"{type(source).__name__}"
        )
    return None


def _check_wait(wait: object) -> None:
    if not (isinstance(wait, (int, float)) and 0.0 <= wait < LATEST_S):
        raise TypeError(f"wait= is True, False or a number of seconds, not {wait!r}")


def _missing(path: Any, waited: str) -> StreamError:
    name = clean(os.fsdecode(path), MAX_NAME)
    remedy = (
        "Start the build that writes it, or give another path."
        if waited
        else "Start the build that writes it, give another path, or wait for it."
    )
    return StreamError(f"There is no stream {name}{waited}.", remedy)


def _checked_control(control: Any) -> Any:
    if control is None:
        return None
    if isinstance(control, (str, os.PathLike)):
        return Path(os.fsdecode(control)).expanduser().absolute()
    if isinstance(control, bool) or not (isinstance(control, int) or hasattr(control, "write")):
        raise TypeError(
            "control= is a path, a file object that can be written, or a descriptor, not "
            f"{type(control).__name__}"
        )
    return control


def _label(source: Any) -> str:
    if isinstance(source, (str, os.PathLike)):
        return _named(os.fsdecode(source))
    if isinstance(source, int):
        return "standard input" if source == 0 else f"descriptor {source}"
    name = getattr(source, "name", None)
    return _named(name) if isinstance(name, str) else "stream"


def _named(path: str) -> str:
    return str(clean(Path(path).name, MAX_SHORT)) or "stream"


# ---- the other direction ------------------------------------------------------------------------


def _send(target: Any, line: bytes) -> str | None:
    """Write a request; give why it could not be, or ``None``. Waits a second at most."""
    problems: list[str] = []

    def write() -> None:
        try:
            _write(target, line)
        except OptionError as error:
            problems.append(f"The process that builds could not be asked to cancel: {error.cause}")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            problems.append(f"The process that builds could not be asked to cancel: {error}.")

    # What cannot be written at once (a full pipe) must not hold up who asks.
    thread = threading.Thread(target=write, name="trt_widget request", daemon=True)
    thread.start()
    thread.join(_ASK_S)
    return problems[0] if problems else None


def _write_file(path: Path, line: bytes, flags: int = 0) -> tuple[int, int]:
    """Append a line to a file; give what the file is known by."""
    flags |= os.O_WRONLY | os.O_APPEND
    if sys.platform != "win32":
        # A FIFO that nobody reads is an error; a link may point anywhere.
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        os.write(descriptor, line)
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_dev, found.st_ino


def _write(target: Any, line: bytes) -> None:
    if isinstance(target, partial):
        target(line)
    elif isinstance(target, Path):
        _write_file(target, line, os.O_CREAT)
    elif isinstance(target, int):
        os.write(target, line)
    else:
        try:
            target.write(line)
        except TypeError:
            target.write(line.decode("ascii"))
        flush = getattr(target, "flush", None)
        if flush is not None:
            flush()
