"""Builds that run elsewhere, followed by their streams. Real builds in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import models
from tests.interrupts import interrupt_wait
from tests.surfaces.producer import Producer
from trt_widget import Build, BuildCancelled, ParseFailed, StreamError
from trt_widget.broadcast import Broadcast
from trt_widget.events import StatusChanged
from trt_widget.executors.process import ProcessExecutor
from trt_widget.record import load_record
from trt_widget.sinks.control import control_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
RESNET = 'models.light_model("resnet50")'
SQUEEZENET = 'models.light_model("squeezenet")'
SILENT = "models.transformer(28)"


@pytest.fixture
def produce() -> Iterator[Callable[..., Producer]]:
    """Give a function that starts producers, which end with the test."""
    made: list[Producer] = []

    def start(target: Any, source: str, **more: Any) -> Producer:
        made.append(Producer(str(target), source, **more))
        return made[-1]

    yield start
    for producer in made:
        producer.process.kill()
        producer.process.wait()
        for pipe in (producer.process.stdin, producer.process.stdout, producer.process.stderr):
            assert pipe is not None
            pipe.close()


def until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


def statuses(build: Build) -> list[str]:
    """Give the list that a build's states are appended to."""
    seen: list[str] = []
    build.subscribe(
        lambda events: seen.extend(
            event.status for event in events if isinstance(event, StatusChanged)
        )
    )
    return seen


def test_a_build_is_followed_from_before_it_begins_to_its_end(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream, engine, kept = tmp_path / "s.jsonl", tmp_path / "e.engine", tmp_path / "r.json"
    build = Build.follow(stream)
    seen = statuses(build)
    assert build.start() is build
    assert (build.status, build.executor) == ("pending", "followed")
    producer = produce(stream, SQUEEZENET, slowly=0.002, output=str(engine), record=str(kept))
    until(lambda: build.status == "running" and build.tree.paths > 1)
    assert build.progress is None or build.progress < 1.0
    assert build.wait(60) is None
    assert producer.end() == "succeeded"
    assert seen == ["running", "succeeded"]
    there = load_record(kept)
    assert build.name == there.name == "light_squeezenet.onnx"
    assert (build.backend.name, build.backend.version) == (there.backend, there.version)
    here = build.record()
    # All that the producer knew: every path, every instance, every silence, to the last digit.
    assert here.path_columns == there.path_columns
    assert here.span_columns == there.span_columns
    assert here.silence_columns == there.silence_columns
    result, theirs = build.result, there.result
    assert result is not None
    assert theirs is not None
    assert result.output == engine
    for name in ("status", "engine_bytes", "ended_by", "device", "layers", "notes"):
        assert getattr(result, name) == getattr(theirs, name), name
    # The stream's end comes after that of the build, when all is told.
    assert theirs.duration_s <= result.duration_s <= time.time() - build.entered_at["running"]
    assert result.peak_memory_bytes == theirs.peak_memory_bytes
    assert abs(build.entered_at["running"] - there.entered_at["running"]) < 1.0
    assert build.engine is None
    with pytest.raises(RuntimeError, match=r"result\.output"):
        build.save(tmp_path / "copy")
    assert build.report(tmp_path / "r.html").stat().st_size > 1000
    assert "Building engine" in build.plot().svg
    assert load_record(build.record(tmp_path / "f.json").save(tmp_path / "f.json")).executor == (
        "followed"
    )


def test_who_comes_late_has_the_right_clock(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream, kept = tmp_path / "s.jsonl", tmp_path / "r.json"
    producer = produce(stream, SILENT, record=str(kept))
    until(lambda: stream.exists() and stream.read_bytes().count(b"phase_start") > 3)
    time.sleep(1.5)
    build = Build.follow(stream).start()
    until(lambda: build.status == "running")
    # The phases that are open are as old as they are there, though the stream is silent.
    assert build.now() > 1.2
    with build.lock:
        columns = build.tree.timing_columns(build.now())
    assert max(columns["total_s"]) > 1.0
    build.wait(60)
    producer.end()
    there = load_record(kept)
    assert abs(build.entered_at["running"] - there.entered_at["running"]) < 1.0
    assert build.entered_at["pending"] <= build.entered_at["running"]


def test_a_cancel_here_reaches_the_producer(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream = tmp_path / "s.jsonl"
    build = Build.follow(stream)
    seen = statuses(build)
    build.start()
    assert build.request_cancel() is False  # there is nobody yet
    assert build.status == "pending"
    producer = produce(stream, RESNET, slowly=0.005)
    until(lambda: build.tree.paths > 1)
    assert build.can_cancel
    assert build.request_cancel() is True
    assert build.status == "cancelling"
    with pytest.raises(BuildCancelled) as caught:
        build.wait(60)
    assert caught.value.reason == "user"
    assert producer.end() == "cancelled"
    assert seen == ["running", "cancelling", "cancelled"]
    result = build.result
    assert result is not None
    assert (result.ended_by, result.reason) == ("step", "user")
    assert result.stop_latency_s is not None
    assert 0.0 <= result.stop_latency_s < result.duration_s
    assert not control_path(stream).exists()


def test_a_cancel_in_the_gap_ends_the_child_there(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream = tmp_path / "s.jsonl"
    producer = produce(stream, "models.transformer(60)", grace=0.5)
    build = Build.follow(stream).start()
    until(lambda: build.tree.paths > 6 and build.now() - build.tree.last_callback > 0.5)
    assert build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == "terminated"
    assert producer.end() == "cancelled"


def test_a_cancel_there_is_seen_here(tmp_path: Path, produce: Callable[..., Producer]) -> None:
    stream = tmp_path / "s.jsonl"
    produce(stream, RESNET, slowly=0.005, timeout=0.8)
    build = Build.follow(stream)
    seen = statuses(build)
    with pytest.raises(BuildCancelled) as caught:
        build.start().wait(60)
    assert caught.value.reason == "deadline"
    assert seen == ["running", "cancelling", "cancelled"]


def test_where_nobody_listens_the_status_stays_honest(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream = tmp_path / "s.jsonl"
    producer = produce(stream, RESNET, listens="no", slowly=0.005)
    build = Build.follow(stream).start()
    until(lambda: build.tree.paths > 1)
    assert not build.can_cancel
    assert build.request_cancel() is False
    build.signal_cancel()  # as the button does
    until(lambda: build.notes)
    assert build.status == "running"
    assert len(build.notes) == 1
    assert "does not listen" in build.notes[0]
    assert not control_path(stream).exists()
    build.close()
    build.wait_ended(5)
    assert build.status == "ended"
    assert build.result is not None
    assert "followed no longer" in build.result.notes[-1]
    assert producer.end() == "succeeded"


def test_interrupt_where_nobody_listens_leaves(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream = tmp_path / "s.jsonl"
    produce(stream, RESNET, listens="no", slowly=0.005)
    build = Build.follow(stream).start()
    until(lambda: build.tree.paths > 1)
    sender = interrupt_wait(build)
    with pytest.raises(KeyboardInterrupt):
        build.wait(60)
    sender.join()
    assert build.status == "running"
    build.close()


def test_through_a_pair_of_pipes(produce: Callable[..., Producer]) -> None:
    producer = produce("-", RESNET, listens="stdin", slowly=0.005)
    process = producer.process
    build = Build.follow(process.stdout, control=process.stdin, name="mine").start()
    until(lambda: build.tree.paths > 1)
    assert build.name == "mine"
    assert build.request_cancel("interrupt")
    with pytest.raises(BuildCancelled) as caught:
        build.wait(60)
    assert caught.value.reason == "user"  # nobody has interrupted the process that built


@pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs in its file system")
def test_through_a_fifo(tmp_path: Path, produce: Callable[..., Producer]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # type: ignore[attr-defined,unused-ignore]  # not on Windows
    build = Build.follow(fifo).start()
    time.sleep(0.3)
    assert build.status == "pending"
    producer = produce(fifo, "models.mlp()", listens="no")
    build.wait(60)
    assert build.status == "succeeded"
    assert producer.end() == "succeeded"


@pytest.mark.parametrize("through", ["a file", "a pipe"])
def test_a_producer_that_is_killed(
    tmp_path: Path, produce: Callable[..., Producer], through: str
) -> None:
    stream = tmp_path / "s.jsonl"
    producer = produce(stream if through == "a file" else "-", RESNET, listens="no", slowly=0.005)
    build = Build.follow(stream if through == "a file" else producer.process.stdout).start()
    until(lambda: build.tree.paths > 1)
    producer.process.kill()
    producer.process.wait(10)
    seen = build.now()
    with pytest.raises(StreamError) as caught:
        build.wait(60)
    error = caught.value
    assert build.status == "failed"
    assert error.phase is not None
    assert error.phase.startswith("Building engine")
    assert "The last event was" in error.evidence[0]
    if through == "a file":
        assert f"The process {producer.process.pid} that wrote it" in error.evidence[-1]
    assert build.result is not None
    assert build.result.ended_by == "crashed"
    # No view goes back at the end, but for what it counted on until it was told.
    assert build.result.duration_s >= seen - 0.5


def test_a_build_that_fails_has_its_own_error(
    tmp_path: Path, produce: Callable[..., Producer]
) -> None:
    stream = tmp_path / "s.jsonl"
    produce(stream, 'models.unknown_operators("Nope")')
    build = Build.follow(stream).start()
    with pytest.raises(ParseFailed) as caught:
        build.wait(60)
    assert [node.operator for node in caught.value.nodes] == ["Nope"]


def test_the_raw_stream_of_a_build_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[bytes] = []
    take = ProcessExecutor._take_line

    def spy(self: ProcessExecutor, line: bytes) -> None:
        lines.append(line + b"\n")
        take(self, line)

    monkeypatch.setattr(ProcessExecutor, "_take_line", spy)
    built = Build(models.light_model("squeezenet")).start()
    engine = built.wait()
    stream = tmp_path / "raw.jsonl"
    stream.write_bytes(b"".join(lines))
    build = Build.follow(stream).start()
    build.wait(60)
    assert build.tree.span_columns() == built.tree.span_columns()
    assert build.result is not None
    assert build.result.engine_bytes == len(engine)
    assert build.result.output is None


def test_a_stream_that_starts_over_with_a_snapshot(tmp_path: Path) -> None:
    built = Build(models.light_model("squeezenet"))
    broadcast = Broadcast(built)
    first = broadcast.reader()
    built.start()
    beginning = [first.read(5), first.read(5)]
    built.wait()
    late = "".join(batch.text for batch in broadcast.reader(after=1))
    stream = tmp_path / "s.jsonl"
    stream.write_text("".join(batch.text for batch in beginning if batch) + late, "utf-8")
    build = Build.follow(stream).start()
    build.wait(60)
    assert build.tree.timing_columns() == built.tree.timing_columns()
    assert build.tree.span_columns() == built.tree.span_columns()


def test_a_recording_is_followed_without_tensorrt(tmp_path: Path) -> None:
    built = Build(models.mlp())
    broadcast = Broadcast(built)
    built.start().wait()
    stream = tmp_path / "s.jsonl"
    stream.write_text("".join(batch.text for batch in broadcast.reader()), "utf-8")
    code = (
        "import sys\n"
        "for name in ('tensorrt', 'tensorrt_rtx'): sys.modules[name] = None\n"
        "from trt_widget import Build\n"
        "build = Build.follow(sys.argv[1]).start()\n"
        "print(build.wait(60), build.status, build.backend, build.timings['count'].sum() > 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(stream)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("None succeeded TensorRT for RTX 1.")
    assert done.stdout.endswith("True\n")


def test_leaving_python_does_not_wait_for_a_stream_that_goes_on() -> None:
    code = (
        "import os, sys\n"
        "from trt_widget import Build\n"
        "build = Build.follow(sys.stdin).start()\n"  # a text object: its read cannot be ended
        "print('leaving')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"leaving\n"
        process.wait(60)  # it would be for ever
        assert process.returncode == 0
