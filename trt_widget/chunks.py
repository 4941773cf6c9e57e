"""A build as small chunks, for programs that read along: agents, services, scripts.

::

    for chunk in Build("model.onnx", timeout=600).stream():
        print(chunk["phase"], chunk["status"])

A chunk is a plain dict of JSON's types. The eight keys of :data:`KEYS` are in every one:

- ``phase``, ``parent``: names as TensorRT gives them; ``None`` where the chunk is about the build
- ``step``, ``total``: steps completed and announced by the latest phase of this name there;
  ``None`` where not known
- ``at_s``: when that happened, in seconds since the build began to run: the phase opened
  (``"running"``) or ended, the build entered its state
- ``elapsed_s``: seconds since the build began to run until now; ``eta_s``: seconds left, or
  ``None``
- ``status``: of a phase ``"running"``, ``"done"``, ``"cancelled"`` or ``"failed"``; of the build
  ``"pending"`` (with ``waiting_for``), ``"running"`` or ``"cancelling"``

In the last chunk ``status`` is the outcome, ``"succeeded"``, ``"cancelled"`` or ``"failed"``, and
``duration_s``, ``ended_by``, ``reason``, ``engine`` (where it was written, or ``None``),
``engine_bytes``, ``error`` (``None``, or its ``class``, ``cause``, ``remedy`` and ``evidence``) and
``notes`` are there as well. They are those of :class:`~trt_widget.build.BuildResult`, shortened.

**Rate.** A build can open and close tens of thousands of phases a second, and whoever reads chunks
may pay for each. So transitions are not queued: the tree of phases is compared with what was told
of it, and a path that was open more than once since is one chunk with a ``count``. On average there
is at most one chunk every ``interval`` seconds, and at most :data:`BURST` at once; where there are
more, the outermost phases go first. The limit does not hold back what takes time: of a path that
has been open for :data:`LONG_S` the opening and the closing are always told. Whatever was told to
run is told to have ended before the outcome comes, and nothing is told to have ended after the
phase around it has: what had no turn by then is not told. While nothing happens, the innermost
open phase is told again every ``heartbeat`` seconds, so that a reader can look at its own limits.

**Memory.** Nothing piles up for a slow reader, which holds nothing up either: a few numbers are
kept for each path, and the paths are bounded by :data:`trt_widget.phases.MAX_PATHS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time as clock
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._text import line
from trt_widget._wake import Wake
from trt_widget.errors import BuildStateError, OptionError
from trt_widget.phases import STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trt_widget.build import Build, BuildResult
    from trt_widget.errors import BuildError
    from trt_widget.phases import PhaseNode, PhaseTree

__all__ = [
    "BURST",
    "HEARTBEAT_S",
    "INTERVAL_S",
    "KEYS",
    "LONG_S",
    "Chunk",
    "ChunkStream",
    "describe_error",
    "stream",
]

#: What every chunk has.
KEYS: Final = ("phase", "step", "total", "parent", "at_s", "elapsed_s", "eta_s", "status")
#: Seconds between two chunks, on average.
INTERVAL_S: Final = 0.5
#: Chunks that may come at once after a pause.
BURST: Final = 12
#: Seconds after which a phase is told whatever the rate.
LONG_S: Final = 1.0
#: Seconds without a chunk after which one comes although nothing has happened.
HEARTBEAT_S: Final = 1.0

#: Seconds between two looks at the tree.
_LOOK_S: Final = 0.1
#: Seconds between two looks at a build that says nothing.
_IDLE_S: Final = 0.5
#: Characters of a name and of a sentence, and lines of evidence.
_NAME: Final = 200
_SENTENCE: Final = 2_000
_EVIDENCE: Final = 5
_NOTES: Final = 10

#: One chunk; see the module's text.
Chunk = dict[str, Any]


def stream(
    build: Build, *, interval: float = INTERVAL_S, heartbeat: float = HEARTBEAT_S
) -> ChunkStream:
    """Give a build's phases as they open and close, and at last its outcome.

    The first ``next()`` starts the build if it was not started. Leaving the loop (``break``, an
    exception, a cancelled task, ``close()``, or dropping it) cancels the build, and does not wait
    for it; one that is only followed (:meth:`~trt_widget.Build.follow`) goes on where it runs. A
    build that fails does not raise: its last chunk says why.

    Parameters
    ----------
    build
        The build.
    interval
        Seconds between two chunks on average; 0 for no limit.
    heartbeat
        Seconds without a chunk after which the phase that is open is told again.

    Returns
    -------
    ChunkStream
        For one ``for`` or ``async for`` loop.

    Raises
    ------
    OptionError
        ``interval`` or ``heartbeat`` is no such number.
    """
    return ChunkStream(build, _seconds("interval", interval), _seconds("heartbeat", heartbeat))


class ChunkStream:
    """Iterator and asynchronous iterator of a build's chunks; see :func:`stream`."""

    def __init__(self, build: Build, interval: float, heartbeat: float) -> None:
        self._build = build
        self._news = _News(interval, heartbeat)
        self._bell = _Bell()
        self._unsubscribe: Callable[[], None] | None = None
        self._looked = -math.inf
        #: Whether something happened since then.
        self._rung = False
        self._entered = False
        #: Whether no chunk will come any more.
        self._done = False

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> _Loop:
        """Begin a loop; the build is cancelled when it is left early."""
        return _Loop(self)

    def __aiter__(self) -> _Loop:
        """Begin a loop; the build is cancelled when it is left early."""
        return _Loop(self)

    def __next__(self) -> Chunk:
        """Wait for the next chunk; Ctrl-C meanwhile cancels the build.

        Raises
        ------
        BuildStateError
            The build would wait for the caller: a subscriber of its own, or ``configure=``.
        """
        try:
            self._enter()
            while (chunk := self._take()) is None and not self._done:
                self._build.check_waiting()
                self._rung |= self._bell.wait(self._pause())
        except KeyboardInterrupt:
            self._leave("interrupt")
            raise
        if chunk is None:
            raise StopIteration
        return chunk

    async def __anext__(self) -> Chunk:
        """Wait for the next chunk without blocking the loop; a cancelled task cancels the build."""
        try:
            self._enter()
            while (chunk := self._take()) is None and not self._done:
                self._build.check_waiting()
                self._rung |= await self._bell.wait_async(self._pause())
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._leave("interrupt")
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def _enter(self) -> None:
        if self._entered or self._done:
            return
        try:
            self._build.check_started()
        except BuildStateError:
            self._build.start()
        self._entered = True
        # Only the bell is referred to: a stream that is dropped has to vanish.
        self._unsubscribe = self._build.subscribe(self._bell.ring)

    def _take(self) -> Chunk | None:
        """Give a chunk if there is one."""
        news = self._news
        if not self._done and not news.ready and not news.complete and self._pause() <= 0.0:
            self._looked, self._rung = clock.monotonic(), False
            with self._build.lock:
                news.look(self._build, self._looked)
        if self._done or not news.ready:
            return None
        chunk = news.ready.popleft()
        if news.complete and not news.ready:
            self._finish()
        return chunk

    def _pause(self) -> float:
        """Seconds until the tree is worth a look."""
        if self._build.result is not None:
            return 0.0
        until_due = self._news.due - self._looked
        patience = _LOOK_S if self._rung else min(_IDLE_S, max(_LOOK_S, until_due))
        return max(0.0, self._looked + patience - clock.monotonic())

    # ------------------------------------------------------------------ leaving

    def close(self) -> None:
        """Leave: cancel the build if it has not ended."""
        self._leave("closed")

    async def aclose(self) -> None:
        """Leave, as :meth:`close` does."""
        self._leave("closed")

    def __enter__(self) -> ChunkStream:  # noqa: PYI034 - typing.Self came with Python 3.11
        """Take the stream for ``next()``; the build is cancelled when the block is left early."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave."""
        self._leave("closed")

    async def __aenter__(self) -> ChunkStream:  # noqa: PYI034 - typing.Self came with Python 3.11
        """Take the stream for ``anext()``; the build is cancelled when the block is left early."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave."""
        self._leave("closed")

    def _leave(self, reason: str) -> None:
        if not self._done:
            self._finish()
            self._build.request_cancel(reason)

    def _finish(self) -> None:
        self._done = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._bell.ring()

    def _drop(self) -> None:
        """Leave without a lock: a finalizer runs on any thread, whatever that one holds."""
        if self._entered and not self._done:
            self._done = True
            with contextlib.suppress(Exception):  # the interpreter may be on its way out
                self._build.signal_cancel("closed")

    def __del__(self) -> None:
        """Leave."""
        with contextlib.suppress(AttributeError):  # __init__ was not reached
            self._drop()

    def __repr__(self) -> str:
        return f"ChunkStream({self._build!r})"


class _Loop:
    """One loop over a stream: dropped when the loop is left, however that comes about."""

    def __init__(self, chunks: ChunkStream) -> None:
        self._chunks = chunks

    def __iter__(self) -> _Loop:
        return self

    def __aiter__(self) -> _Loop:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    async def __anext__(self) -> Chunk:
        return await self._chunks.__anext__()

    def close(self) -> None:
        """Leave the loop."""
        self._chunks.close()

    async def aclose(self) -> None:
        """Leave the loop."""
        self._chunks.close()

    def __del__(self) -> None:
        self._chunks._drop()  # noqa: SLF001 - the same module


class _Bell:
    """Rung by the build's drain thread; one thread or task waits for it."""

    def __init__(self) -> None:
        # Not threading.Event: a finalizer may come in the middle of its set().
        self._wake = Wake()
        self._call: Callable[[], object] | None = None

    def ring(self, _events: object = ()) -> None:
        """Wake whoever waits."""
        self._wake.set()
        call = self._call
        if call is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                call()

    def wait(self, seconds: float) -> bool:
        """Wait; tell whether it was rung."""
        rung = self._wake.wait(seconds)
        self._wake.clear()
        return rung

    async def wait_async(self, seconds: float) -> bool:
        """Wait without blocking the event loop; tell whether it was rung."""
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        self._call = lambda: loop.call_soon_threadsafe(rung.set)
        try:
            if not self._wake.wait(0):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(rung.wait(), seconds)
        finally:
            self._call = None
        return self.wait(0)


# ---- what is told -------------------------------------------------------------------------------


class _Told:
    """What was told of a path."""

    __slots__ = ("closed", "ended", "held", "revision", "running", "total_s")

    def __init__(self) -> None:
        #: Instances of which it was told that they have ended, and the seconds that they took.
        self.closed = 0
        self.total_s = 0.0
        #: When the latest of them had ended.
        self.ended = -math.inf
        #: Whether the last thing told is that the path is open.
        self.running = False
        #: Whether something had to wait for its turn.
        self.held = False
        self.revision = -1


class _Change(NamedTuple):
    """A transition that was not told yet."""

    node: PhaseNode
    told: _Told
    time: float
    #: How many phases it stands for.
    number: int = 1
    #: Whether it is told whatever the rate.
    must: bool = False
    opening: bool = False


class _News:
    """Compares the tree with what was told of it; the caller holds the build's lock."""

    def __init__(self, interval: float, heartbeat: float) -> None:
        #: Chunks that are to be given.
        self.ready: deque[Chunk] = deque()
        #: Whether the outcome is among them, or was given.
        self.complete = False
        self._interval = interval
        self._heartbeat = heartbeat
        self._allowed = float(BURST)
        self._looked: float | None = None
        self._spoke = self._elapsed = 0.0
        self._status: tuple[str, str | None] = ("", None)
        self._told: dict[tuple[str, ...], _Told] = {}

    @property
    def due(self) -> float:
        """When a chunk comes although nothing has happened, by the clock of :meth:`look`."""
        return self._spoke + self._heartbeat

    def look(self, build: Build, moment: float) -> None:
        """Find out what is new; ``moment`` is the time by a monotonic clock."""
        if self._looked is None:
            self._spoke = self._looked = moment
        if self._interval > 0.0:
            earned = (moment - self._looked) / self._interval
            self._allowed = min(float(BURST), self._allowed + earned)
        self._looked = moment
        result = build.result
        now = build.now() if "running" in build.entered_at else 0.0
        self._elapsed = max(self._elapsed, now)
        clocks = {
            "elapsed_s": round(self._elapsed, 3),
            "eta_s": None if build.eta_s is None else round(build.eta_s, 3),
        }
        self._tell_status(build, clocks)
        for change in self._choose(self._compare(build.tree, now)):
            self.ready.append(_about_phase(change, clocks))
        if result is not None:
            self.ready.append(_outcome(result, clocks))
            self.complete = True
        elif not self.ready and moment >= self.due:
            self.ready.append(self._tell_again(build, clocks))
        if self.ready:
            self._spoke = moment

    def _tell_status(self, build: Build, clocks: dict[str, Any]) -> None:
        """Tell what a build waits for, and that it is being cancelled."""
        status = (build.status, build.waiting_for)
        if status == self._status:
            return
        self._status = status
        waits = build.status == "pending" and build.waiting_for is not None
        if build.status == "cancelling" or waits:
            self.ready.append(_state(build, clocks))

    def _tell_again(self, build: Build, clocks: dict[str, Any]) -> Chunk:
        """Tell the innermost of the phases that were told to run: the one heard of last."""
        opened = [
            node for node in build.tree.walk() if node.open_count and self._told[node.path].running
        ]
        if not opened:
            return _state(build, clocks)
        node = max(opened, key=lambda node: (node.last_event, node.depth))
        return _of_phase(node, "running", _since(node), clocks)

    def _compare(self, tree: PhaseTree, now: float) -> Iterator[_Change]:
        # While a build unwinds, phases finish that have not come to their end: that is known later.
        unwinding = tree.cancel_delivered is not None and tree.outcome is None
        for node in tree.walk():
            told = self._told.get(node.path)
            if told is None:
                told = self._told[node.path] = _Told()
            # What had to wait may have its turn now, or has grown long.
            if told.revision != node.revision or told.held:
                told.revision, told.held = node.revision, unwinding
                for change in _changes(node, told, unwinding=unwinding):
                    long = change.opening and now - change.time >= LONG_S
                    if told.running or not self._is_past(change):
                        yield change._replace(must=change.must or long)

    def _is_past(self, change: _Change) -> bool:
        """Whether a phase around it was told to have ended since."""
        # That a long one has opened is told with its end.
        time = change.time if not change.must else change.node.ended or 0.0
        for above in _around(change.node):
            told = self._told[above.path]
            over = not above.open_count and told.closed == above.count
            if not told.running and (over or time <= told.ended):
                return True
        return False

    def _choose(self, changes: Iterable[_Change]) -> list[_Change]:
        """Take what must be told, and of the rest what may: the outermost; in order of time."""
        every = list(changes)
        chosen = [change for change in every if change.must]
        # What is told is told with what is around it.
        around = {above.index for change in chosen for above in _around(change.node)}
        chosen += [one for one in every if one.node.index in around and not one.must]
        others = [one for one in every if one.node.index not in around and not one.must]
        if self._interval > 0.0:
            self._allowed = max(self._allowed - len(chosen), -float(BURST))
            # Stable: among equally deep ones in order of the tree.
            others.sort(key=lambda change: change.node.depth)
            allowed = max(0, math.floor(self._allowed))
            self._allowed -= min(allowed, len(others))
        else:
            allowed = len(others)
        chosen += others[:allowed]
        for change in others[allowed:]:
            change.told.held = True
        chosen = sorted(_within(chosen), key=_order)
        for change in chosen:
            node, told = change.node, change.told
            told.closed, told.total_s = node.count - node.open_count, node.total_s
            told.running = change.opening
            if not change.opening:
                told.ended = change.time
            # Another of that path may be open, and has its turn later.
            told.held = bool(node.open_count) and not change.opening
        return chosen


def _changes(node: PhaseNode, told: _Told, *, unwinding: bool) -> Iterator[_Change]:
    """Give what was not told of a path: that it is open now, or that it has ended, or both."""
    closed = node.count - node.open_count
    if closed < told.closed:  # a stream that began anew
        told.closed, told.total_s, told.ended, told.running = 0, 0.0, -math.inf, False
    ended, spent = closed - told.closed, node.total_s - told.total_s
    if ended and not unwinding and (spent >= LONG_S or not node.open_count):
        time = node.ended or 0.0
        must = spent >= LONG_S
        if must and not told.running:
            yield _Change(node, told, time - spent, must=True, opening=True)
        yield _Change(node, told, time, ended, must=must or told.running)
    elif node.open_count and not told.running:
        yield _Change(node, told, _since(node), ended + 1, opening=True)


def _since(node: PhaseNode) -> float:
    """Give when the oldest of the open phases of a path has opened."""
    return min(instance.start for instance in node.instances)


def _around(node: PhaseNode) -> Iterator[PhaseNode]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _within(changes: list[_Change]) -> Iterator[_Change]:
    """Have everything end before what is around it does: what was only counted has no time.

    What may belong to a later phase around it, not told yet, is left for the next look.
    """
    ends = {change.node.path: change.time for change in changes if not change.opening}
    left: set[int] = set()
    for change in changes:
        for above in _around(change.node):
            if above.open_count and change.time > ends.get(above.path, math.inf):
                left.add(change.node.index)
                change.told.revision = -1
    for change in changes:
        if change.node.index not in left:
            around = [ends[above.path] for above in _around(change.node) if above.path in ends]
            yield change._replace(time=min([change.time, *around]))


def _order(change: _Change) -> tuple[float, bool, int]:
    """By time; at one moment first what ended, innermost first, then what opened."""
    depth = change.node.depth
    return change.time, change.opening, depth if change.opening else -depth


# ---- chunks -------------------------------------------------------------------------------------


def _about_build(status: str, at: float, clocks: dict[str, Any]) -> Chunk:
    return dict.fromkeys(KEYS) | clocks | {"status": status, "at_s": _at(at, clocks)}


def _state(build: Build, clocks: dict[str, Any]) -> Chunk:
    """Tell how the build itself stands."""
    chunk = _about_build(build.status, build.last_status.time, clocks)
    if build.status == "pending" and build.waiting_for is not None:
        chunk["waiting_for"] = line(build.waiting_for, _NAME)
    return chunk


def _of_phase(node: PhaseNode, status: str, at: float, clocks: dict[str, Any]) -> Chunk:
    return {
        "phase": line(node.name, _NAME),
        "step": node.step,
        "total": node.step_total if node.step_total > 0 else None,
        "parent": None if node.parent is None else line(node.parent.name, _NAME),
        "at_s": _at(at, clocks),
        **clocks,
        "status": status,
    }


def _at(time: float, clocks: dict[str, Any]) -> float:
    """Give a time that is not ahead of now, whatever the clocks of two processes say."""
    now: float = clocks["elapsed_s"]
    return min(max(round(time, 3), 0.0), now)


def _about_phase(change: _Change, clocks: dict[str, Any]) -> Chunk:
    status = "running" if change.opening else STATUSES[change.node.last_status]
    chunk = _of_phase(change.node, status, change.time, clocks)
    return {**chunk, "count": change.number} if change.number > 1 else chunk


def _outcome(result: BuildResult, clocks: dict[str, Any]) -> Chunk:
    return {
        **_about_build(result.status, result.duration_s, clocks),
        "duration_s": round(result.duration_s, 3),
        "ended_by": result.ended_by,
        "reason": result.reason,
        "engine": None if result.output is None else str(result.output),
        "engine_bytes": result.engine_bytes,
        "error": None if result.error is None else describe_error(result.error),
        "notes": [line(note, _SENTENCE) for note in result.notes[:_NOTES]],
    }


def describe_error(error: BuildError) -> dict[str, Any]:
    """Give an error in few words, as plain data.

    Returns
    -------
    dict
        ``class``, ``cause``, ``remedy``, and ``evidence``: the first lines of it.
    """
    return {
        "class": type(error).__name__,
        "cause": line(error.cause, _SENTENCE),
        "remedy": line(error.remedy, _SENTENCE) if error.remedy else "",
        "evidence": [line(text, _SENTENCE // 4) for text in error.evidence[:_EVIDENCE]],
    }


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, (bool, str)) or not seconds >= 0.0:
        raise OptionError(
            f"{name}={value!r} is not a number of seconds of at least zero.",
            "Give seconds; interval=0 is no limit, heartbeat=math.inf is no heartbeat.",
        )
    return seconds
