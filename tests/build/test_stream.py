"""``Build.stream()`` over real builds: what comes, and that leaving the loop cancels."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests import models
from tests.bench.builds import make_flood
from trt_widget import Build, BuildStateError, BuildWidget
from trt_widget.broadcast import Broadcast
from trt_widget.chunks import BURST, HEARTBEAT_S, INTERVAL_S, KEYS
from trt_widget.events import BuildEnded, StatusChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trt_widget.chunks import Chunk

RESNET = models.light_model("resnet50")
#: Half a second of callbacks, then seconds of silence.
LARGE = models.transformer(48).SerializeToString()
SOON = 60.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + SOON
    while psutil.Process().children(recursive=True):
        assert time.monotonic() < deadline, "a build process is left behind"
        time.sleep(0.02)


def ended(build: Build) -> Any:
    """Wait for the end, whatever it is, and give the result."""
    build.wait_ended(SOON)
    assert build.result is not None
    return build.result


def nested(chunks: list[Chunk]) -> bool:
    """Whether nothing has ended after its parent; one that came again may be told just after."""
    over: set[str | None] = set()
    for place, chunk in enumerate(chunks[:-1]):
        if chunk["parent"] is not None and chunk["parent"] in over:
            later = itertools.takewhile(
                lambda one, now=chunk["elapsed_s"]: one["elapsed_s"] == now, chunks[place + 1 :]
            )
            if chunk["parent"] not in {one["phase"] for one in later}:
                return False
        (over.discard if chunk["status"] == "running" else over.add)(chunk["phase"])
    return True


def check(chunks: list[Chunk]) -> Chunk:
    """Check what holds for every whole stream, and give the outcome."""
    assert all(tuple(chunk)[: len(KEYS)] == KEYS for chunk in chunks)
    assert json.loads(json.dumps(chunks, allow_nan=False)) == chunks
    times = [chunk["elapsed_s"] for chunk in chunks]
    assert times == sorted(times)
    assert all(0.0 <= chunk["at_s"] <= chunk["elapsed_s"] for chunk in chunks)
    final = [chunk for chunk in chunks if chunk["status"] in {"succeeded", "failed", "cancelled"}]
    outcomes = [chunk for chunk in final if chunk["phase"] is None]
    assert outcomes == [chunks[-1]]
    opened: set[tuple[str, str]] = set()
    for chunk in chunks[:-1]:
        path = (chunk["parent"], chunk["phase"])
        (opened.add if chunk["status"] == "running" else opened.discard)(path)
    assert not {path for path in opened if path[1] is not None}
    assert nested(chunks)
    return chunks[-1]


async def collect(build: Build, **keywords: Any) -> list[Chunk]:
    return [chunk async for chunk in build.stream(**keywords)]


def as_list(build: Build, **keywords: Any) -> list[Chunk]:
    return list(build.stream(**keywords))


def as_task(build: Build, **keywords: Any) -> list[Chunk]:
    return asyncio.run(collect(build, **keywords))


BOTH = pytest.mark.parametrize("read", [as_list, as_task])


@BOTH
def test_a_build_from_its_first_phase_to_its_engine(
    read: Callable[..., list[Chunk]], tmp_path: Path
) -> None:
    build = Build(RESNET, output=tmp_path / "resnet50.engine")
    chunks = read(build)
    outcome = check(chunks)
    assert outcome["status"] == "succeeded"
    assert outcome["engine"] == str(tmp_path / "resnet50.engine")
    assert outcome["engine_bytes"] == (tmp_path / "resnet50.engine").stat().st_size
    assert outcome["duration_s"] > 0.1
    assert outcome["error"] is None
    phases = {chunk["phase"]: chunk for chunk in chunks}
    assert phases["Building engine"]["parent"] is None
    assert phases["Building engine"]["status"] == "done"
    assert phases["Optimizing graph"]["parent"] == "Building engine from subgraph"
    # And a heartbeat in each second at most.
    assert len(chunks) <= 2 * build.tree.paths + 1 + outcome["duration_s"]


@BOTH
def test_a_failure_is_the_last_chunk(read: Callable[..., list[Chunk]]) -> None:
    build = Build(models.unknown_operators("Nope").SerializeToString())
    outcome = check(read(build))
    assert outcome["status"] == "failed"
    assert outcome["error"]["class"] == "ParseFailed"
    assert "Nope" in outcome["error"]["cause"]
    assert outcome["error"]["remedy"]
    assert outcome["engine"] is None
    assert outcome["engine_bytes"] is None


@BOTH
def test_a_crash_is_the_last_chunk(read: Callable[..., list[Chunk]]) -> None:
    build = Build(models.mlp().SerializeToString(), configure=models.configure_crash)
    outcome = check(read(build))
    assert outcome["status"] == "failed"
    assert outcome["error"]["class"] == "BuildCrashed"
    assert "SIGSEGV" in outcome["error"]["cause"]


@BOTH
def test_the_timeout_is_the_budget(read: Callable[..., list[Chunk]]) -> None:
    build = Build(LARGE, timeout=1.0, grace=0.2)
    chunks = read(build)
    outcome = check(chunks)
    assert (outcome["status"], outcome["reason"]) == ("cancelled", "deadline")
    assert "1 s" in outcome["error"]["cause"]
    assert (None, "cancelling") in {(chunk["phase"], chunk["status"]) for chunk in chunks}
    assert outcome["duration_s"] >= 1.0


def test_heartbeats_in_the_silence() -> None:
    build = Build(LARGE, grace=0.1)
    silent = 0
    for chunk in build.stream(heartbeat=0.3):
        silent += chunk["phase"] == "Determining refit engines" and chunk["status"] == "running"
        if silent == 3:
            break
    else:
        pytest.fail("the loop ended by itself")
    assert ended(build).status == "cancelled"


def test_a_limit_of_ones_own_is_kept_in_the_silence() -> None:
    """With what is the default: one looks at the time in each chunk."""
    build = Build(LARGE, grace=0.1)
    for chunk in build.stream():
        if chunk["elapsed_s"] > 2.5:
            break
    assert chunk["status"] == "running"
    assert chunk["at_s"] < chunk["elapsed_s"] < 2.5 + 3 * HEARTBEAT_S
    assert ended(build).status == "cancelled"


def test_the_end_is_not_older_than_the_status_before_it() -> None:
    build = Build(LARGE, timeout=1.5, grace=0.2)
    broadcast = Broadcast(build)
    build.start()
    events = [event for batch in broadcast.reader() for event in batch.events]
    *_, status, end = (one for one in events if isinstance(one, (StatusChanged, BuildEnded)))
    assert (status.status, end.status) == ("cancelled", "cancelled")
    assert end.time >= status.time > 1.5


# ---- leaving ------------------------------------------------------------------------------------


def leave_by_break(build: Build) -> None:
    for chunk in build.stream():
        if chunk["phase"] is not None:
            break


def leave_a_named_stream(build: Build) -> None:
    chunks = build.stream()
    for chunk in chunks:
        if chunk["phase"] is not None:
            break
    assert list(chunks) == []  # it stays left


def leave_by_exception(build: Build) -> None:
    chunks = build.stream()

    def read() -> None:
        for chunk in chunks:
            1 / (chunk["phase"] is None)

    with pytest.raises(ZeroDivisionError):
        read()


def leave_by_return(build: Build) -> None:
    def first() -> Chunk:
        for chunk in build.stream():
            return chunk
        raise AssertionError

    first()


def leave_by_close(build: Build) -> None:
    chunks = build.stream()
    next(chunks)
    chunks.close()
    chunks.close()
    assert next(chunks, None) is None


def leave_by_with(build: Build) -> None:
    with build.stream() as chunks:
        next(chunks)


def leave_by_closing_a_generator(build: Build) -> None:
    def statuses() -> Iterator[str]:
        for chunk in build.stream():
            yield chunk["status"]

    generator = statuses()
    next(generator)
    generator.close()


def leave_by_slice(build: Build) -> None:
    assert len(list(itertools.islice(build.stream(), 2))) == 2


def leave_by_dropping(build: Build) -> None:
    chunks = build.stream()
    next(chunks)
    del chunks


def leave_in_a_cycle(build: Build) -> None:
    """Only the garbage collector finds it, on whatever thread it runs."""
    holder: dict[str, Any] = {"chunks": build.stream()}
    holder["holder"] = holder
    next(holder["chunks"])
    del holder
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


def leave_async_by_break(build: Build) -> None:
    async def main() -> None:
        chunks = build.stream()
        async for chunk in chunks:
            if chunk["phase"] is not None:
                break
        assert [chunk async for chunk in chunks] == []

    asyncio.run(main())


def leave_async_by_exception(build: Build) -> None:
    async def main() -> None:
        async for chunk in build.stream():
            1 / (chunk["phase"] is None)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def leave_by_aclose(build: Build) -> None:
    async def main() -> None:
        async with build.stream() as chunks:
            await chunks.__anext__()
        chunks = build.stream()
        await chunks.aclose()

    asyncio.run(main())


LEAVING = [value for name, value in sorted(globals().items()) if name.startswith("leave_")]


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_leaving_the_loop_cancels(leave: Callable[[Build], None]) -> None:
    build = Build(LARGE, grace=0.1)
    leave(build)
    assert build.status != "succeeded"
    result = ended(build)
    assert (result.status, result.reason) == ("cancelled", "closed")


def test_a_task_that_is_cancelled_in_the_silence_cancels() -> None:
    build = Build(LARGE, grace=0.1)

    async def main() -> None:
        silent = asyncio.Event()

        async def read() -> None:
            async for chunk in build.stream():
                if chunk["phase"] == "Determining refit engines":
                    silent.set()

        task = asyncio.ensure_future(read())
        await asyncio.wait_for(silent.wait(), SOON)
        await asyncio.sleep(0.5)  # it waits for the next chunk
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    result = ended(build)
    assert (result.status, result.reason) == ("cancelled", "interrupt")


@pytest.mark.skipif(os.name == "nt", reason="signals of its own cannot be sent there")
def test_ctrl_c_leaves_the_loop_and_cancels() -> None:
    build = Build(LARGE, grace=0.1)
    chunks = build.stream(heartbeat=1e9)

    def interrupt() -> None:
        while build.tree.last_callback == 0.0 or build.now() - build.tree.last_callback < 0.5:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    build.start()
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in chunks:
            pass
    thread.join()
    result = ended(build)
    assert (result.status, result.reason) == ("cancelled", "interrupt")


def test_a_stream_that_was_never_read_cancels_nothing() -> None:
    build = Build(models.mlp().SerializeToString())
    build.stream()
    with build.stream():
        pass
    assert build.status == "cancelled"  # this one was entered
    build = Build(models.mlp().SerializeToString()).start()
    build.stream()
    gc.collect()
    assert ended(build).status == "succeeded"


def test_a_stream_that_was_read_to_its_end_cancels_nothing() -> None:
    build = Build(models.mlp().SerializeToString())
    chunks = build.stream()
    first = list(chunks)
    assert list(chunks) == []
    chunks.close()
    assert ended(build).status == "succeeded"
    # A later reader is told the same end.
    assert check(list(build.stream()))["engine_bytes"] == check(first)["engine_bytes"]


def test_a_dropped_stream_leaves_nothing() -> None:
    build = Build(LARGE, grace=0.1)
    chunks = build.stream()
    next(chunks)
    gone = weakref.ref(chunks)
    del chunks
    assert gone() is None
    assert ended(build).status == "cancelled"


# ---- where else ---------------------------------------------------------------------------------


def test_a_build_in_a_thread() -> None:
    build = Build(RESNET, executor="thread")
    assert check(list(build.stream()))["status"] == "succeeded"
    slow = Build(RESNET, executor="thread", configure=models.configure_slowly)
    for _ in slow.stream():
        break
    assert ended(slow).ended_by == "step"


def test_a_build_that_was_started_and_one_that_waits() -> None:
    first = Build(LARGE, grace=0.1, exclusive=True).start()
    second = Build(models.mlp().SerializeToString(), exclusive=True)
    chunks = second.stream()
    waiting = next(chunks)
    assert (waiting["status"], waiting["elapsed_s"]) == ("pending", 0.0)
    assert waiting["waiting_for"]
    for _ in first.stream():
        break
    assert check([waiting, *chunks])["status"] == "succeeded"


def test_a_build_that_was_cancelled_before_its_start() -> None:
    build = Build(RESNET)
    build.request_cancel()
    (chunk,) = build.stream()
    assert (chunk["status"], chunk["reason"]) == ("cancelled", "user")


def test_a_build_cannot_be_read_by_its_own_subscriber() -> None:
    build = Build(models.mlp().SerializeToString())
    raised: list[BaseException] = []

    def read(_events: object) -> None:
        if build.status == "running" and not raised:
            try:
                list(build.stream())
            except BuildStateError as error:
                raised.append(error)

    build.subscribe(read)
    assert ended(build.start()).status in {"succeeded", "cancelled"}
    assert raised


def test_a_widget_streams_too() -> None:
    widget = BuildWidget(models.mlp().SerializeToString())
    assert check(list(widget.stream()))["status"] == "succeeded"
    widget.close()


# ---- a flood ------------------------------------------------------------------------------------

SENT = 100_000
RATE = 50_000.0


def flooded(**options: Any) -> Build:
    configure = partial(make_flood, RATE, SENT)
    return Build(models.mlp().SerializeToString(), configure=configure, **options)


@BOTH
def test_a_flood_is_a_handful_of_chunks(read: Callable[..., list[Chunk]]) -> None:
    build = flooded()
    chunks = read(build)
    outcome = check(chunks)
    assert outcome["status"] == "succeeded"
    taken = outcome["duration_s"]
    # Of the long ones both ends come in any case; there are few of them.
    columns = build.tree.timing_columns()
    long = sum(total // 1.0 + 1 for total in columns["total_s"] if total >= 1.0)
    assert len(chunks) <= 2 * BURST + taken / INTERVAL_S + 2 * long + 2
    assert sum(chunk.get("count", 1) for chunk in chunks) > len(chunks)


def test_a_slow_reader_of_a_flood_holds_nothing_up() -> None:
    fast = ended(flooded().start()).duration_s
    build = flooded()
    chunks = build.stream()
    first = [next(chunks)]
    while build.result is None:
        time.sleep(0.05)
    assert build.result.duration_s < 3 * fast + 5
    rest = [*first, *chunks]
    check(rest)
    assert len(rest) <= 2 * build.tree.paths + 2


def test_chunks_tell_what_the_tree_has() -> None:
    """Every path of a small build is told, with the parent that it has."""
    build = Build(RESNET)
    chunks = list(build.stream(interval=0.0))
    check(chunks)
    nodes = build.tree.walk()
    paths = {(node.parent.name if node.parent else None, node.name) for node in nodes}
    assert {(chunk["parent"], chunk["phase"]) for chunk in chunks[:-1]} == paths
