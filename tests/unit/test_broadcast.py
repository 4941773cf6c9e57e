"""One stream for many readers. Builds are attached, so that a test decides what happens when."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.traces import Trace, mnist_events, replay, traces
from trt_widget import Build
from trt_widget.broadcast import Batch, Broadcast, ended_event
from trt_widget.events import BuildEnded, StatusChanged, StreamStarted, from_json
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trt_widget.broadcast import Reader


class Late:
    """What a reader in another process makes of a stream: only from its lines."""

    def __init__(self) -> None:
        self.tree = PhaseTree()
        self.statuses: list[str] = []
        self.kinds: list[str] = []
        self.end: BuildEnded | None = None

    def take(self, batch: Batch) -> None:
        for line in batch.text.splitlines():
            event = from_json(line)
            self.kinds.append(event.kind)
            if isinstance(event, StreamStarted):
                self.tree = PhaseTree()
            elif isinstance(event, StatusChanged):
                self.statuses.append(event.status)
            elif isinstance(event, BuildEnded):
                self.end = event
                self.tree.close(event.status, event.time)
            self.tree.apply([event])

    def read(self, reader: Iterable[Batch]) -> Late:
        for batch in reader:
            self.take(batch)
        return self


def sums(tree: PhaseTree) -> dict[str, list[Any]]:
    return tree.timing_columns()


def attached(**options: Any) -> tuple[Build, Broadcast]:
    build = Build.attach(backend="tensorrt_rtx", name="replayed")
    return build, Broadcast(build, **options)


def until(told: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not told():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_reader_sees_the_same_from_the_beginning() -> None:
    build, broadcast = attached()
    readers = [broadcast.reader(), broadcast.reader(full=False)]
    with build:
        replay(build.monitor, mnist_events())
        build.finish(b"engine")
    seen = [Late().read(reader) for reader in [*readers, broadcast.reader()]]
    for late in seen:
        assert late.kinds[0] == "stream_start"
        assert late.kinds[-1] == "end"
        assert sums(late.tree) == sums(build.tree)
        assert late.tree.span_columns() == build.tree.span_columns()
        assert late.end is not None
        assert (late.end.status, late.end.engine_bytes) == ("succeeded", 6)
    assert seen[0].kinds == seen[1].kinds
    assert seen[0].statuses == ["running", "succeeded"]
    assert all(reader.finished for reader in readers)
    assert readers[0].read(0.0) is None


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_every_reader_sees_a_recorded_build(trace: Trace) -> None:
    """The callbacks of a real build, without its silences."""
    build, broadcast = attached()
    readers = [broadcast.reader(), broadcast.reader(full=False)]
    half = len(trace.callbacks) // 2
    with build:
        replay(build.monitor, trace.callbacks[:half])
        until(lambda: build.tree.paths > 0)
        readers.append(broadcast.reader())
        replay(build.monitor, trace.callbacks[half:])
        build.finish(b"engine")
    steps = {event.phase: event.step for event in trace.callbacks if event.kind == "step_complete"}
    for reader in readers:
        late = Late().read(reader)
        assert late.kinds[-1] == "end"
        assert sums(late.tree) == sums(build.tree)
        assert not late.tree.anomalies
        assert {node.name for node in late.tree.walk() if node.steps} == set(steps)


def test_who_comes_in_the_middle_gets_a_snapshot_and_what_follows() -> None:
    build, broadcast = attached()
    events = mnist_events()
    with build:
        replay(build.monitor, events[:3000])
        until(lambda: build.tree.paths > 5)
        late = broadcast.reader(after=1)
        first = late.read(5.0)
        assert first is not None
        assert first.snapshot
        assert first.events[0].kind == "stream_start"
        assert first.events[-1] == build.last_status
        replay(build.monitor, events[3000:])
        build.finish(b"engine")
    reader = Late()
    reader.take(first)
    reader.read(late)
    assert sums(reader.tree) == sums(build.tree)
    assert reader.tree.span_columns() == build.tree.span_columns()


@pytest.mark.parametrize("full", [True, False])
def test_a_reader_that_falls_behind_ends_with_the_same_state(full: bool) -> None:
    build, broadcast = attached(ring_bytes=2_000)
    slow = broadcast.reader(full=full)
    with build:
        for _ in range(3):
            replay(build.monitor, mnist_events())
            time.sleep(0.25)
        build.finish(b"engine")
    late = Late().read(slow)
    assert "snapshot" in late.kinds
    assert sums(late.tree) == sums(build.tree)
    spans = len(late.tree.span_columns()["path"])
    assert spans + late.tree.spans_dropped == 3 * 1164
    assert bool(spans) == full or "phases" in late.kinds
    assert late.kinds[-1] == "end"


def test_memory_is_bounded_by_the_ring_however_many_do_not_read() -> None:
    build, broadcast = attached(ring_bytes=50_000)
    readers = [broadcast.reader() for _ in range(500)]
    with build:
        for _ in range(40):
            replay(build.monitor, mnist_events())
            time.sleep(0.02)
        until(lambda: sums(build.tree)["count"] and sum(sums(build.tree)["count"]) == 40 * 1164)
        kept = [len(batch.text) for batch, _ in list(broadcast._ring)]
        assert sum(kept) < 100_000 + max(kept)
        build.finish(b"engine")
    assert [Late().read(reader).end for reader in readers[::100]] == [ended_event(build)] * 5


def test_the_estimated_sizes_are_those_of_the_lines() -> None:
    build, broadcast = attached()
    with build:
        for _ in range(5):
            replay(build.monitor, mnist_events())
            time.sleep(0.15)
        until(lambda: sum(sums(build.tree)["count"]) == 5 * 1164)
        kept = list(broadcast._ring)
        written = sum(len(batch.text) for batch, _ in kept)
        assert 0.4 < sum(size for _, size in kept) / written < 2.5
        build.finish(b"engine")


def test_after_the_end_everything_is_one_snapshot() -> None:
    build = Build.attach(backend="tensorrt_rtx")
    with build:
        replay(build.monitor, mnist_events())
        build.finish(b"engine")
    until(lambda: build.told)
    broadcast = Broadcast(build)
    batches = list(broadcast.reader())
    assert [(batch.snapshot, batch.last) for batch in batches] == [(True, True)]
    assert sums(Late().read(batches).tree) == sums(build.tree)


def test_settling_gives_the_memory_back_and_still_tells_the_end() -> None:
    build, broadcast = attached()
    behind = broadcast.reader()
    with build:
        replay(build.monitor, mnist_events())
        broadcast.settle()  # not before the end
        build.finish(b"engine")
    until(lambda: build.told)
    assert broadcast._ring
    broadcast.settle()
    assert not broadcast._ring
    for reader in (behind, broadcast.reader(), broadcast.reader(after=3)):
        late = Late().read(reader)
        assert sums(late.tree) == sums(build.tree)
        assert late.kinds.count("end") == 1


def test_a_build_cancelled_before_its_start_has_an_end() -> None:
    build, broadcast = attached()
    build.request_cancel()
    late = Late().read(broadcast.reader())
    assert late.end is not None
    assert (late.end.status, late.end.ended_by) == ("cancelled", "before build")
    assert late.end.error is not None
    assert late.end.error["class"] == "BuildCancelled"


def test_a_reader_waits_no_longer_than_it_says_and_can_be_closed() -> None:
    build, broadcast = attached()
    with build:
        reader = broadcast.reader()
        until(lambda: reader.read(0.0) is None)
        begin = time.monotonic()
        while reader.read(0.3) is not None:
            pass
        assert 0.25 < time.monotonic() - begin < 5
        threading.Timer(0.2, reader.close).start()
        assert not any(batch.last for batch in reader)
        assert reader.finished
        build.finish(b"engine")


def test_an_event_loop_with_many_readers() -> None:
    build, broadcast = attached()

    async def one(reader: Reader) -> Late:
        late = Late()
        async for batch in reader:
            late.take(batch)
            await asyncio.sleep(0.01)
        return late

    async def everybody() -> list[Late]:
        reading = [asyncio.ensure_future(one(broadcast.reader(full=False))) for _ in range(20)]
        await asyncio.sleep(0.05)

        def work() -> None:
            with build:
                replay(build.monitor, mnist_events())
                build.finish(b"engine")

        await asyncio.to_thread(work)
        nothing = broadcast.reader(after=10**6)
        batch = await nothing.read_async(5.0)
        assert batch is not None
        assert batch.last
        assert await nothing.read_async(0.01) is None
        return await asyncio.gather(*reading)

    for late in asyncio.run(everybody()):
        assert sums(late.tree) == sums(build.tree)
    gc.collect()
    assert not list(broadcast._loops)


def test_a_build_that_breaks_off_has_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    build, broadcast = attached()
    reader = broadcast.reader()
    build.start()
    until(lambda: reader.read(0.1) is None)
    monkeypatch.setattr(build, "_tick", lambda: 1 / 0)  # a defect of ours, which nobody can order
    try:
        late = Late().read(reader)
    finally:
        build.__exit__(None, None, None)  # the user's code ends; other builds wait for it
    assert late.end is not None
    assert late.end.status == "failed"


def test_what_is_told_of_the_producer() -> None:
    build = Build.attach(backend="tensorrt_rtx")
    for producer in (True, False):
        first = Broadcast(build, producer=producer, listens=producer)
        assert (first._start.pid is not None, bool(first._start.host)) == (producer, producer)
        assert first._start.listens == producer
    with pytest.raises(ValueError, match="not ended"):
        ended_event(build)
