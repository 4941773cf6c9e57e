"""The stream of one build for any number of readers, each as slow as it likes.

A :class:`Broadcast` keeps the build's latest batches once, for everybody: a reader is a place in
them. One that has fallen behind what is kept gets a snapshot instead of what it missed, so memory
is bounded by the ring, whoever reads and however slowly, and nobody holds up the build. What such
a reader loses is how it came to the state that it sees; the state is the same for all.

Batches are numbered from 1. The last one ends with :class:`~trt_widget.events.BuildEnded`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time as clock
import weakref
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trt_widget.build import FINAL
from trt_widget.errors import to_record
from trt_widget.events import (
    BuildEnded,
    Estimate,
    Event,
    LogMessage,
    MessagesDropped,
    NetworkReady,
    OutputCaptured,
    PhasesCompleted,
    StatusChanged,
    StreamStarted,
    to_json,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator

    from trt_widget.build import Build

__all__ = ["Batch", "Broadcast", "Reader", "ended_event", "this_host"]

#: What the ring keeps at most, in bytes of JSON as they are estimated before they are written.
RING_BYTES = 4 * 1024 * 1024
#: Warnings, errors, and characters of what was printed, in a snapshot that is not full.
FEW_MESSAGES = 50
FEW_PRINTED = 16_000
#: Seconds after which one that waits for a snapshot asks whether the build still lives.
_LOOK_S = 1.0


def this_host() -> str:
    """Name the machine, and the space in which its process ids count, as ``stream_start`` does.

    Containers may share a name, and still have process ids of their own; on Linux the number of the
    namespace tells them apart.
    """
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        return f"{name}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return name


def ended_event(build: Build) -> BuildEnded:
    """Say how a build ended, as the last event of its stream.

    Raises
    ------
    ValueError
        It has not ended.
    """
    result = build.result
    if result is None:
        raise ValueError(f"the build of {build.name} has not ended")
    facts = {
        "device": result.device,
        "layers": result.layers,
        "executor": result.executor,
        "stop_latency_s": result.stop_latency_s,
        "duration_s": result.duration_s,
        "timing_cache": result.timing_cache,
    }
    return BuildEnded(
        max(build.tree.now, build.last_status.time, 0.0),
        result.status,
        result.ended_by,
        result.reason,
        None if result.error is None else to_record(result.error),
        None if result.output is None else str(result.output),
        result.engine_bytes,
        result.peak_memory_bytes,
        tuple(result.notes),
        {name: value for name, value in facts.items() if value is not None},
    )


class Batch:
    """Some events that happened one after the other.

    Attributes
    ----------
    number
        Of the latest event in it, for who wants to go on from here; grows.
    events
        In order.
    snapshot
        Whether it starts over: its first event is a ``stream_start`` and it holds all that there
        was until now.
    last
        Whether nothing comes after it; then its last event is ``end``.
    """

    def __init__(
        self, number: int, events: tuple[Event, ...], *, snapshot: bool = False, last: bool = False
    ) -> None:
        self.number = number
        self.events = events
        self.snapshot = snapshot
        self.last = last

    @cached_property
    def text(self) -> str:
        """The events as JSON Lines, each ended by a line feed; written once, for all readers."""
        return "".join(f"{to_json(event)}\n" for event in self.events)

    def __repr__(self) -> str:
        kinds = [event.kind for event in self.events]
        return f"Batch({self.number}, {kinds[:8]}{'…' if len(kinds) > 8 else ''})"  # noqa: PLR2004 - enough to know it by


class Broadcast:
    """One build's stream for many readers; see the module's text.

    Parameters
    ----------
    build
        Best one that was not started yet: then its readers can have everything.
    ring_bytes
        How much is kept, in bytes of JSON.
    producer
        Whether ``stream_start`` says which process this is, for readers on the same machine.
    listens
        What ``stream_start`` says of that; see :class:`~trt_widget.events.StreamStarted`.
    """

    def __init__(
        self,
        build: Build,
        *,
        ring_bytes: int = RING_BYTES,
        producer: bool = False,
        listens: bool = False,
    ) -> None:
        self.build = build
        self._ring_bytes = ring_bytes
        self._start = StreamStarted(
            0.0,
            build.name,
            build.backend.name,
            build.backend.version,
            pid=os.getpid() if producer else None,
            host=this_host() if producer else "",
            listens=listens,
        )
        self._network: NetworkReady | None = None
        self._ready = threading.Condition()
        self._ring: deque[tuple[Batch, int]] = deque()
        self._size = 0
        self._number = 0
        self._ended = False
        self._snapshots: dict[bool, Batch] = {}
        self._wanted: set[bool] = set()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[None]] = (
            weakref.WeakKeyDictionary()
        )
        with build.lock:
            if build.told:
                self._ended = True
            else:
                build.subscribe(self._on_batch, every_tick=True)
            # What was told already is only in snapshots.
            self._number = 1 if build.told or build.started else 0

    def reader(self, after: int | None = None, *, full: bool = True) -> Reader:
        """Begin to read.

        Parameters
        ----------
        after
            Number of the last batch that this reader has had elsewhere: it gets a snapshot, and
            then what follows. ``None``: from the beginning, which is a snapshot too where the
            beginning is not kept any more.
        full
            Whether snapshots tell of each single phase instance and of all messages that are kept,
            or only of the phases' sums and of the latest messages.
        """
        return Reader(self, full=full, afresh=after is not None or self._number > 0)

    # ------------------------------------------------------------------ on the drain thread

    def _on_batch(self, events: list[Event]) -> None:
        """Keep a batch, make the snapshots that are asked for, and wake the readers."""
        told = list(events)
        for place, event in enumerate(told):
            if isinstance(event, NetworkReady):
                self._network = event
            elif isinstance(event, StreamStarted):
                told[place] = self._start = dataclasses.replace(
                    event, pid=self._start.pid, host=self._start.host, listens=self._start.listens
                )
        with self._ready:
            if self._ended or not (told or self._wanted):
                return
            if told:
                self._number += 1
                self._ended = self.build.status in FINAL and self.build.result is not None
                if self._ended:
                    told.append(ended_event(self.build))
                size = sum(map(_size, told))
                self._ring.append((Batch(self._number, tuple(told), last=self._ended), size))
                self._size += size
                while self._size > self._ring_bytes and len(self._ring) > 1:
                    self._size -= self._ring.popleft()[1]
                self._snapshots.clear()
            for full in self._wanted:
                self._snapshots[full] = self._snapshot(full=full)
            self._wanted.clear()
            self._ready.notify_all()
            for loop, future in list(self._loops.items()):
                _wake(loop, future)
            self._loops.clear()

    def _snapshot(self, *, full: bool) -> Batch:
        """Tell the state as it is after the latest batch.

        Only the drain thread changes the tree, so on it, and after its end, the two belong
        together.
        """
        build = self.build
        with build.lock:
            now = build.tree.now
            log, dropped = build.log_messages()
            if not full:
                log = build.messages[-FEW_MESSAGES:]
            printed = build.printed if full else build.printed[-FEW_PRINTED:]
            events: list[Event] = [self._start]
            if self._network is not None:
                events.append(self._network)
            events += log
            if dropped and full:
                events.append(MessagesDropped(now, dropped))
            if printed:
                events.append(OutputCaptured(now, printed))
            events.append(build.tree.snapshot(spans=full))
            events.append(Estimate(now, build.progress, build.eta_s, build.exceeded))
            events.append(build.last_status)
            if self._ended:
                events.append(ended_event(build))
        return Batch(self._number, tuple(events), snapshot=True, last=self._ended)

    # ------------------------------------------------------------------ for the readers

    def _next(self, reader: Reader) -> Batch | None:
        """Give what is next for a reader if it is there; the caller holds the lock."""
        if not self._ended and self.build.told:
            # The drain thread broke off, and has told nobody how it ended.
            self._ended = True
            self._number += 1
            self._snapshots.clear()
        if not reader.afresh:
            if reader.number >= self._number:
                return None
            place = reader.number + 1 - self._ring[0][0].number if self._ring else -1
            if 0 <= place < len(self._ring):
                batch = self._ring[place][0]
                reader.number = batch.number
                return batch
        snapshot = self._snapshots.get(reader.full)
        if snapshot is None:
            if not self._ended:
                self._wanted.add(reader.full)
                return None
            snapshot = self._snapshots[reader.full] = self._snapshot(full=reader.full)
        reader.number, reader.afresh = snapshot.number, False
        return snapshot

    def settle(self) -> None:
        """Keep only the end of a build that has ended: whoever comes gets that."""
        with self._ready:
            if self._ended:
                self._ring.clear()
                self._snapshots.clear()
                self._size = 0


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def done() -> None:
        if not future.done():
            future.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(done)


def _size(event: Event) -> int:
    """Estimate the length of an event's line."""
    if isinstance(event, PhasesCompleted):
        return 150 + 45 * len(event.starts)
    if isinstance(event, LogMessage):
        return 80 + len(event.message)
    if isinstance(event, OutputCaptured):
        return 60 + len(event.text)
    if isinstance(event, StatusChanged):
        return 100 + len(event.detail or "")
    return 250


class Reader:
    """One reader of a :class:`Broadcast`.

    Attributes
    ----------
    number
        Of the last batch that it has got; 0 before the first.
    full
        See :meth:`Broadcast.reader`.
    """

    def __init__(self, broadcast: Broadcast, *, full: bool, afresh: bool) -> None:
        self.number = 0
        self.full = full
        self.afresh = afresh
        self._broadcast = broadcast
        self._finished = False
        self._closed = False

    @property
    def finished(self) -> bool:
        """Whether it has got the last batch, or was closed."""
        return self._finished or self._closed

    def close(self) -> None:
        """Read no more; wakes who waits in :meth:`read`."""
        self._closed = True
        with self._broadcast._ready:  # noqa: SLF001 - the two belong together
            self._broadcast._ready.notify_all()  # noqa: SLF001 - as above

    def read(self, timeout: float | None = None) -> Batch | None:
        """Give the next batch; wait for it ``timeout`` seconds at most.

        Returns
        -------
        Batch or None
            ``None`` after the timeout, after the last batch, or once it was closed.
        """
        deadline = None if timeout is None else clock.monotonic() + timeout
        ready = self._broadcast._ready  # noqa: SLF001 - the two belong together
        with ready:
            while not self.finished:
                batch = self._take()
                if batch is not None:
                    return batch
                left = _LOOK_S if deadline is None else deadline - clock.monotonic()
                if left <= 0.0:
                    return None
                ready.wait(min(left, _LOOK_S))
        return None

    async def read_async(self, timeout: float | None = None) -> Batch | None:
        """Give the next batch without blocking the event loop; see :meth:`read`."""
        import asyncio

        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        broadcast = self._broadcast
        while not self.finished:
            with broadcast._ready:  # noqa: SLF001 - the two belong together
                batch = self._take()
                if batch is not None:
                    return batch
                waiter = broadcast._loops.get(loop)  # noqa: SLF001 - as above
                if waiter is None:
                    # One for all readers of this loop.
                    waiter = broadcast._loops[loop] = loop.create_future()  # noqa: SLF001 - as above
            left = _LOOK_S if deadline is None else deadline - loop.time()
            if left <= 0.0:
                return None
            await asyncio.wait([waiter], timeout=min(left, _LOOK_S))
        return None

    def _take(self) -> Batch | None:
        batch = self._broadcast._next(self)  # noqa: SLF001 - the two belong together
        if batch is not None and batch.last:
            self._finished = True
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches until the last one."""
        while not self.finished:
            batch = self.read()
            if batch is not None:
                yield batch

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches until the last one."""
        while not self.finished:
            batch = await self.read_async()
            if batch is not None:
                yield batch
