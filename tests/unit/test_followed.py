"""Streams that are hostile, odd or broken: nothing dies, all is counted, the end is right."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces import MNIST, mnist_events, timed
from trt_widget import Build, BuildCancelled, BuildFailed, StreamError, load_record
from trt_widget.broadcast import Broadcast, this_host
from trt_widget.events import (
    PROTOCOL_VERSION,
    BuildEnded,
    Estimate,
    Event,
    LogMessage,
    PhaseFinished,
    PhasesCompleted,
    PhaseStarted,
    StatusChanged,
    StepCompleted,
    StreamStarted,
    from_json,
    to_json,
)
from trt_widget.executors import followed
from trt_widget.executors.followed import MAX_BAD, NOTHING_BUT_NOISE, FollowedExecutor
from trt_widget.executors.foreign import clean
from trt_widget.executors.incoming import Lines
from trt_widget.phases import PhaseTree
from trt_widget.words import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

HELLO = StreamStarted(0.0, "net.onnx", "tensorrt", "10.16")
RUNNING = StatusChanged(0.0, "running")
PHASES: list[Event] = [
    PhaseStarted(0.1, "Building engine", None, 6),
    StepCompleted(0.5, "Building engine", 3),
    PhaseFinished(1.0, "Building engine"),
]
DONE = BuildEnded(1.5, "succeeded", "completed", engine="/there/net.engine", engine_bytes=4711)


def text(*events: Event) -> bytes:
    return "".join(f"{to_json(event)}\n" for event in events).encode("ascii")


def follow(data: bytes | Any, **more: Any) -> Build:
    """Follow bytes to their end; give the build, which has ended."""
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    build = Build.follow(source, **more).start()
    build.wait_ended(30)
    return build


def error_of(build: Build) -> StreamError:
    assert build.status == "failed"
    assert build.result is not None
    assert isinstance(build.result.error, StreamError)
    return build.result.error


def notes_of(build: Build) -> str:
    assert build.result is not None
    return "\n".join(build.result.notes)


def until(condition: Any, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.005)


# ---- what is read -------------------------------------------------------------------------------


def test_a_whole_stream() -> None:
    build = follow(text(HELLO, RUNNING, *PHASES, Estimate(1.0, 0.5, 3.0), DONE))
    assert build.wait() is None
    result = build.result
    assert result is not None
    assert (build.name, str(build.backend)) == ("net.onnx", "TensorRT 10.16")
    assert (result.status, result.duration_s, result.engine_bytes) == ("succeeded", 1.5, 4711)
    assert str(result.output) == str(Path("/there/net.engine"))
    assert (result.executor, build.executor, build.progress) == ("followed", "followed", 1.0)
    assert list(build.timings["total_s"]) == [0.9]
    assert build.history is None
    assert build.key is None
    assert pickle.loads(pickle.dumps(build.backend)) == build.backend  # noqa: S301 - our own


@pytest.mark.parametrize("kind", ["path", "str", "descriptor", "binary", "text", "raw", "gzip"])
def test_every_kind_of_source(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("s.jsonl.gz" if kind == "gzip" else "s.jsonl")
    data = text(HELLO, *PHASES, DONE)
    path.write_bytes(gzip.compress(data) if kind == "gzip" else data)
    if kind in {"path", "str", "gzip"}:
        assert follow(str(path) if kind == "str" else path).status == "succeeded"
    elif kind == "descriptor":
        descriptor = os.open(path, os.O_RDONLY)
        assert follow(descriptor).status == "succeeded"
        os.close(descriptor)  # it is the caller's, and still open
    else:
        more: dict[str, Any] = {"encoding": "utf-8"} if kind == "text" else {}
        with path.open("r" if kind == "text" else "rb", 0 if kind == "raw" else -1, **more) as file:
            assert follow(file).status == "succeeded"
            assert not file.closed


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_an_open_file_that_grows(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(text(HELLO, PHASES[0])[:-10])
    more: dict[str, Any] = {"encoding": "utf-8"} if mode == "r" else {}
    with path.open(mode, **more) as file, path.open("ab") as writer:
        build = Build.follow(file).start()
        until(lambda: build.name == "net.onnx")
        writer.write(text(PHASES[0])[-10:] + text(*PHASES[1:]))
        writer.flush()
        until(lambda: build.tree.paths == 1)
        writer.write(text(DONE))
        writer.flush()
        build.wait_ended(60)
    assert build.status == "succeeded"
    assert list(build.timings["total_s"]) == [0.9]
    assert notes_of(build) == ""


def test_a_zipped_recording_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress(text(HELLO, *PHASES[:2]) + os.urandom(200))[:-100])
    build = follow(path, wait=False)
    assert build.status == "ended"
    assert build.tree.paths == 1


def test_what_a_buffer_has_already_is_read_too() -> None:
    read, write = os.pipe()
    os.write(write, b"a banner\n" + text(HELLO, *PHASES, DONE))
    with os.fdopen(read, "rb") as file:
        assert file.readline() == b"a banner\n"
        assert follow(file).status == "succeeded"
    os.close(write)


def test_windows_shells_write_utf_16() -> None:
    data = text(HELLO, *PHASES, DONE)
    for encoding in ("utf-16", "utf-8-sig"):
        build = follow(data.decode("ascii").replace("\n", "\r\n").encode(encoding))
        assert build.status == "succeeded"
        assert notes_of(build) == ""


@pytest.mark.parametrize("source", [None, True, 1.5, object(), ["a"]])
def test_what_cannot_be_followed_is_refused_at_once(source: Any) -> None:
    with pytest.raises(TypeError, match="what is followed is a path"):
        Build.follow(source)
    with pytest.raises(TypeError, match="control= is a path"):
        Build.follow(io.BytesIO(), control=1.5)
    for wait in (-1, float("nan"), "yes", None):
        with pytest.raises(TypeError, match="wait= is True"):
            Build.follow(io.BytesIO(), wait=wait)  # type: ignore[arg-type]  # that is what is tested


def test_paths_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="is a folder"):
        Build.follow(tmp_path)
    with pytest.raises(StreamError, match=r"There is no stream /.*/nothing\.jsonl\."):
        Build.follow(tmp_path / "nothing.jsonl", wait=False)
    with pytest.raises(StreamError, match="cannot be opened"):
        Build.follow("a\0b")


def test_a_file_that_never_comes_and_one_that_stays_empty(tmp_path: Path) -> None:
    error = error_of(follow(tmp_path / "late.jsonl", wait=0.3))
    assert error.cause == f"There is no stream {tmp_path / 'late.jsonl'} after 0.3 s."
    (tmp_path / "empty.jsonl").touch()
    error = error_of(follow(tmp_path / "empty.jsonl", wait=0.3))
    assert error.cause == "empty.jsonl is no stream of a build: there is nothing in it."
    assert error_of(follow(b"")).cause == "stream is no stream of a build: there is nothing in it."


def test_starting_twice_is_no_harm_and_waiting_before_says_so() -> None:
    build = Build.follow(io.BytesIO(text(HELLO, DONE)))
    with pytest.raises(RuntimeError, match="was not started"):
        build.wait()
    assert build.start().start() is build
    assert build.wait() is None


# ---- lines that are none ------------------------------------------------------------------------


def test_bad_lines_are_counted_and_the_rest_is_shown() -> None:
    bad = [
        b"TensorRT: a line of a logger",
        b"{",
        b"[1,2]",
        b'{"event":"phase_started","phase":"x"}',
        b'{"event":"phase_start","phase":7,"parent":null,"num_steps":1}',
        b'{"event":"phase_start","phase":"x"}',
        b'{"event":"step_complete","phase":"x","step":1e400}',
        b'{"event":"phase_finish","time":1e300,"phase":"Building engine"}',
        b'{"event":"stream_start","time":0,"model":"x","version":0}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        text(PhasesCompleted(1.0, "x", None, 0, (1.0,), (), (0,), (1,))).strip(),
    ]
    data = text(HELLO, *PHASES[:2]) + b"\n".join(bad) + b"\n\n  \n" + text(*PHASES[2:], DONE)
    build = follow(data)
    assert build.status == "succeeded"
    assert list(build.timings["steps"]) == [4]
    assert f"{len(bad)} lines of the stream could not be read. The first: b'TensorRT: a" in (
        notes_of(build)
    )


def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "MAX_LINE", 100_000)
    long = json.dumps({"event": "log", "severity": "info", "message": "x" * 300_000}).encode()
    build = follow(text(HELLO, PHASES[0]) + long + b"\n" + text(*PHASES[1:], DONE))
    assert build.status == "succeeded"
    assert len(build.log) == 0
    assert "longer than 100,000 bytes" in notes_of(build)


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 40))
def test_lines_are_the_same_however_the_bytes_come(parts: list[bytes], longest: int) -> None:
    data = b"".join(parts)
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef")):
        return
    whole, pieces = Lines(longest), Lines(longest)
    expected = [*whole.feed(data), whole.rest()]
    found = [line for part in parts for line in pieces.feed(part)]
    assert [*found, pieces.rest()] == expected
    assert len(pieces.too_long) == len(whole.too_long)
    assert expected[:-1] == [line for line in data.split(b"\n")[:-1] if len(line) <= longest]


def test_nothing_but_noise_is_no_stream() -> None:
    error = error_of(follow(b"one\ntwo\nthree\n" * 2))
    assert "there is no event in it" in error.cause
    assert len(error.evidence) == MAX_BAD
    assert error.evidence[0].startswith("b'one'")
    assert "trt-widget build --events" in error.remedy
    # A large file of something else is not read to its end, nor waited at.
    endless = io.BytesIO(b"\x00\x01noise\n" * 20 * NOTHING_BUT_NOISE)
    assert "there is not even text in it" in error_of(follow(endless)).cause
    assert endless.tell() < len(endless.getvalue())


def test_an_old_file_of_other_lines_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "env.sh"
    path.write_bytes(b"export A=1\nexport B=2\n")
    os.utime(path, (time.time() - 60, time.time() - 60))
    error = error_of(follow(path))  # the test's patience is less than START_S
    assert error.cause == "env.sh is no stream of a build: there is no event in it."
    assert "export A=1" in error.evidence[0]


def test_what_is_no_text_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "e.bin"
    path.write_bytes(b"\x08\x00\xff\n" * 10)
    error = error_of(follow(path, wait=False))
    assert error.cause == "e.bin is no stream of a build: there is not even text in it."
    assert error.evidence == ()


def test_nothing_from_standard_input() -> None:
    code = "from trt_widget.cli import main\nraise SystemExit(main(['watch', '-']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"Nothing came from standard input.\n")
    assert done.stdout.strip().endswith(b"standard input: no build was seen")


def test_a_newer_version_is_refused() -> None:
    newer = StreamStarted(0.0, "net", version=PROTOCOL_VERSION + 1)
    error = error_of(follow(text(newer, *PHASES, DONE)))
    assert f"has version {PROTOCOL_VERSION + 1} of the protocol" in error.cause
    assert "Install" in error.remedy
    assert str(error).startswith(error.cause)


@pytest.mark.parametrize(
    "end",
    [
        BuildEnded(1.0, "exploded", "completed"),
        BuildEnded(1.0, "running", "completed"),
    ],
)
def test_an_end_that_cannot_be(end: BuildEnded) -> None:
    assert "ends in a state that there is not" in error_of(follow(text(HELLO, *PHASES, end))).cause


def test_an_end_with_odd_parts() -> None:
    facts = {"device": 7, "layers": "many", "timing_cache": [1], "stop_latency_s": "soon"}
    end = BuildEnded(
        1e300, "cancelled", "magic", "boredom", notes=("\ud800",), facts=facts, engine_bytes=-1
    )
    build = follow(text(HELLO, *PHASES, end))
    assert build.status == "cancelled"
    assert build.result is not None
    assert (build.result.ended_by, build.result.reason) == ("unknown", "user")
    assert (build.result.device, build.result.layers, build.result.engine_bytes) == (None,) * 3
    assert notes_of(build) == "\ufffd"
    assert build.result.duration_s <= 1e8
    with pytest.raises(BuildCancelled):
        build.wait()


def test_a_failure_without_a_reason_and_with_one_that_is_no_error() -> None:
    build = follow(text(HELLO, BuildEnded(1.0, "failed", "error")))
    with pytest.raises(BuildFailed, match="does not say why"):
        build.wait()
    build = follow(text(HELLO, BuildEnded(1.0, "failed", "error", error={"class": "SystemExit"})))
    with pytest.raises(BuildFailed, match="unknown class"):
        build.wait()


def test_names_that_are_endless_or_halves_of_characters() -> None:
    name = "x" * 100_000
    lines = (
        b'{"event":"stream_start","model":"' + b"m" * 10_000 + b'"}\n'
        b'{"event":"phase_start","time":0.1,"phase":"\\ud83d","parent":null,"num_steps":1}\n'
        b'{"event":"phase_start","time":0.1,"phase":"\xed\xa0\x80","parent":null,"num_steps":1}\n'
    ) + text(
        PhaseStarted(0.2, name, None, 2), StepCompleted(0.3, name, 1), PhaseFinished(0.4, name)
    )
    build = follow(lines, wait=False)
    columns = build.tree.timing_columns()
    assert columns["phase"][0] == "\ufffd"
    assert len(columns["phase"][-1]) == 2_000
    assert columns["steps"][-1] == 2
    assert len(build.name) == 200
    # What is left can be written and drawn.
    "".join(columns["phase"]).encode("utf-8")
    assert build.plot().svg


_NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.just(0), st.just(1.5))
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
_KINDS = [
    "stream_start",
    "phase_start",
    "step_complete",
    "phase_finish",
    "phases",
    "phases_collapsed",
    "snapshot",
    "network",
    "cancel_delivered",
    "log",
    "log_dropped",
    "output",
    "status",
    "estimate",
]
_FIELDS = {
    name
    for event in (HELLO, *PHASES, RUNNING, Estimate(0.0), DONE, PhaseTree().snapshot())
    for name in vars(event)
} | {"path", "count", "total_s", "max_s", "starts", "ends", "last_steps", "layers", "message"}
_OBJECTS = st.builds(
    lambda kind, values: {"event": kind, **values},
    st.sampled_from([*_KINDS, "end", "odd"]),
    st.dictionaries(st.sampled_from(sorted(_FIELDS)), _VALUES, max_size=6),
)
_PLAUSIBLE = st.one_of(
    st.builds(
        PhaseStarted,
        st.floats(-10, 1e9),
        st.sampled_from("abc"),
        st.none() | st.sampled_from("abc"),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2),
    ),
    st.builds(StepCompleted, st.floats(-10, 1e9), st.sampled_from("abc"), st.integers(-5, 2**40)),
    st.builds(PhaseFinished, st.floats(-10, 1e9), st.sampled_from("abc")),
    st.builds(
        StatusChanged,
        st.floats(0, 10),
        st.sampled_from(["pending", "running", "cancelling", "failed", "odd"]),
        st.none() | st.text(max_size=5),
        st.none() | st.text(max_size=5),
    ),
    st.builds(
        Estimate, st.floats(0, 10), st.none() | st.floats(-5, 5), st.none() | st.floats(-5, 5)
    ),
    st.just(HELLO),
).map(lambda event: to_json(event).encode("ascii"))
_LINES = st.one_of(
    st.binary(max_size=40),
    _OBJECTS.map(lambda value: json.dumps(value).encode("ascii")),
    _PLAUSIBLE,
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_LINES, max_size=12), st.booleans())
def test_any_bytes_never_raise(lines: list[bytes], tail: bool) -> None:
    told: list[Event] = []
    build = Build.follow(io.BytesIO(b"\n".join(lines)), wait=tail)
    build.subscribe(told.extend)
    build.start()
    build.wait_ended(60)
    assert build.status in {"failed", "ended", "succeeded", "cancelled"}
    result = build.result
    assert result is not None
    if result.error is not None:
        assert "defect" not in str(result.error)
    # Whatever it was, it can be shown, kept and sent on.
    describe(build)
    assert len(build.spans) >= 0
    for event in told:
        assert from_json(to_json(event)).kind == event.kind
    record = build.record()
    json.dumps(record.result.notes if record.result else None)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_snapshot_that_was_damaged_hurts_nobody(data: st.DataObject) -> None:
    tree = PhaseTree()
    tree.apply(timed(mnist_events()[:300]))
    record = json.loads(to_json(tree.snapshot()))
    table = data.draw(st.sampled_from(["paths", "open", "spans", "silences", "unwound"]))
    column = data.draw(st.sampled_from(sorted(record[table])))
    values = record[table][column]
    value = data.draw(_NUMBERS | st.text(max_size=3))
    if values and data.draw(st.booleans()):
        values[data.draw(st.integers(0, len(values) - 1))] = value
    else:
        values.append(value)
    lines = text(HELLO) + json.dumps(record).encode() + b"\n" + text(*PHASES, DONE)
    build = follow(lines)
    assert build.status == "succeeded"
    assert build.record().save is not None
    assert build.plot().svg


# ---- states and ends ----------------------------------------------------------------------------


def test_pending_until_it_runs_there() -> None:
    read, write = os.pipe()
    build = Build.follow(read).start()
    assert describe(build) == "Waits for its stream to begin, where it is built."
    os.write(write, text(HELLO, StatusChanged(0.0, "pending")))
    until(lambda: build.name == "net.onnx")
    assert build.status == "pending"
    waits = "waiting for other.onnx, which builds on the same device"
    os.write(write, text(StatusChanged(0.0, "pending", None, waits)))
    until(lambda: build.waiting_for == "other.onnx")
    assert describe(build) == "Waits for other.onnx, where it is built."
    os.write(write, text(RUNNING))
    until(lambda: build.status == "running")
    assert build.waiting_for is None
    os.write(write, text(StatusChanged(3.0, "cancelling", "deadline")))
    until(lambda: build.status == "cancelling")
    os.write(write, text(BuildEnded(4.0, "cancelled", "step", "deadline")))
    build.wait_ended(60)
    assert build.result is not None
    assert build.result.reason == "deadline"
    assert build.result.stop_latency_s == pytest.approx(1.0)
    assert build.entered_at["cancelled"] - build.entered_at["running"] == pytest.approx(4.0)
    os.close(read)
    os.close(write)


def test_a_pipe_that_ends_in_the_middle() -> None:
    message = LogMessage(0.3, "error", "out of memory")
    error = error_of(follow(text(HELLO, *PHASES[:2], message) + b'{"event":"phase_fin'))
    assert "broke off before the build ended" in error.cause
    assert error.phase == "Building engine"
    assert error.messages == ("out of memory",)
    assert error.evidence[0] == "The last event was 0.5 s after the start of the build."
    assert "phase_fin" in error.evidence[-1]


def test_only_phases_and_no_end_is_an_outcome_that_is_not_known() -> None:
    build = follow(text(*PHASES))
    assert build.status == "ended"
    assert "no end event" in (describe(build) or "")
    # One that says which process it is has promised an end.
    promised = StreamStarted(0.0, "net", pid=1, host="elsewhere")
    assert "No phase was open then." in error_of(follow(text(promised, *PHASES))).evidence


@pytest.mark.parametrize("how", ["to its end", "as it grows", "as a recording"])
def test_what_a_subscriber_has_written_ends_with_its_status(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(text(HELLO, RUNNING, *PHASES, StatusChanged(1.5, "succeeded")))
    more: dict[str, Any] = {"wait": False} if how == "as a recording" else {}
    build = follow(path.read_bytes() if how == "to its end" else path, **more)
    assert build.status == "succeeded"
    assert build.result is not None
    assert (build.result.duration_s, build.result.ended_by) == (1.5, "completed")
    message = LogMessage(0.3, "error", "out of memory")
    build = follow(text(HELLO, *PHASES[:2], message, StatusChanged(1.0, "failed", None, "No GPU.")))
    with pytest.raises(BuildFailed, match=r"No GPU\.") as caught:
        build.wait()
    assert not isinstance(caught.value, StreamError)
    assert caught.value.messages == ("out of memory",)


def test_a_recording_is_read_to_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text(HELLO, *PHASES[:2]))
    build = follow(path, wait=False)
    assert build.status == "ended"
    assert list(build.timings["status"]) == ["ended"]


def test_a_recording_without_times() -> None:
    build = follow(MNIST, wait=False)
    assert build.status == "ended"
    assert "The stream has no times" in notes_of(build)
    tree = PhaseTree()
    tree.apply(mnist_events())
    expected, found = tree.timing_columns(), build.tree.timing_columns()
    for column in ("path", "count", "steps", "num_steps"):
        assert found[column] == expected[column]
    assert build.result is not None
    assert 0.0 < build.result.duration_s < 60.0


def test_times_from_another_zero() -> None:
    zero = 1.7e9
    run = PhasesCompleted(zero + 3.0, "b", None, 1, (zero + 2.0,), (zero + 3.0,), (0,), (1,))
    lines = text(PhaseStarted(zero, "a", None, 1), PhaseFinished(zero + 1.0, "a"), run)
    build = follow(lines, wait=False)
    assert list(build.timings["total_s"]) == [1.0, 1.0]
    assert build.result is not None
    assert build.result.duration_s == pytest.approx(3.0)


def test_a_dead_producer_of_this_machine_is_noticed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        process = ended.pid
    path = tmp_path / "s.jsonl"
    hello = StreamStarted(0.0, "net", pid=process, host=this_host())
    path.write_bytes(text(hello, *PHASES[:2]))
    error = error_of(follow(path))
    assert f"The process {process} that wrote it does not run any more." in error.evidence
    # One of another machine may live; so may one whose number somebody else has got.
    path.write_bytes(text(StreamStarted(0.0, "net", pid=process, host="other"), *PHASES[:2]))
    build = Build.follow(path).start()
    time.sleep(1.5)
    assert build.status == "running"
    build.close()
    path.write_bytes(text(StreamStarted(0.0, "net", pid=os.getpid(), host=this_host()), PHASES[0]))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert "broke off" in error_of(follow(path)).cause


def test_a_file_that_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(text(StreamStarted(0.0, "first"), PhaseStarted(0.1, "old", None, 1)))
    build = Build.follow(path)
    seen: list[str] = []
    build.subscribe(lambda events: seen.extend(event.kind for event in events))
    build.start()
    until(lambda: build.tree.paths == 1)
    # Cut and written anew, as by a second run of the same command.
    path.write_bytes(text(HELLO))
    until(lambda: build.name == "net.onnx")
    assert build.tree.paths == 0
    with path.open("ab") as file:
        file.write(text(*PHASES))
    until(lambda: build.tree.paths == 1)
    # Replaced by another file.
    other = tmp_path / "other"
    other.write_bytes(text(StreamStarted(0.0, "third"), *PHASES, DONE))
    other.replace(path)
    build.wait_ended(60)
    assert (build.name, build.status) == ("third", "succeeded")
    assert list(build.timings["path"]) == ["Building engine"]
    assert seen.count("stream_start") >= 3


def test_what_ended_before_says_when_and_makes_way_for_a_new_build(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    old = text(HELLO, RUNNING, *PHASES, BuildEnded(1.5, "cancelled", "step", "user"))
    path.write_bytes(old)
    os.utime(path, (time.time() - 200, time.time() - 200))
    for wait in (True, False):
        build = follow(path, wait=wait)
        assert build.status == "cancelled"
        assert notes_of(build) == "Its stream ended 3 min ago, before it was followed."
    build = Build.follow(path).start()
    time.sleep(0.3)
    new = StreamStarted(0.0, "new.onnx", "tensorrt", "10.16")
    path.write_bytes(text(new, RUNNING))
    until(lambda: (build.status, build.name) == ("running", "new.onnx"))
    with path.open("ab") as file:
        file.write(text(*PHASES, DONE))
    build.wait_ended(60)
    assert (build.status, notes_of(build)) == ("succeeded", "")


def test_what_a_killed_build_has_left_makes_way_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    hello = StreamStarted(0.0, "old.onnx", "tensorrt", "10.16", pid=ended.pid, host=this_host())
    path.write_bytes(text(hello, RUNNING, *PHASES[:2]))
    os.utime(path, (time.time() - 200, time.time() - 200))
    build = Build.follow(path).start()
    time.sleep(0.3)
    path.write_bytes(text(HELLO, RUNNING, *PHASES, DONE))
    build.wait_ended(60)
    assert (build.name, build.status) == ("net.onnx", "succeeded")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5.2, "5 s"), (119, "119 s"), (121, "2 min"), (7300, "2 h"), (200_000, "2 days")],
)
def test_how_long_ago(seconds: float, said: str) -> None:
    assert followed._ago(seconds) == said


def test_a_stream_start_within_a_stream_starts_over() -> None:
    first: list[Event] = [
        StreamStarted(0.0, "a"),
        PhaseStarted(0.1, "old", None, 1),
        LogMessage(0.2, "error", "x"),
    ]
    build = follow(text(*first, HELLO, *PHASES, DONE))
    assert list(build.timings["path"]) == ["Building engine"]
    assert len(build.log) == 0


def test_phases_before_the_first_stream_start_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(text(PhaseStarted(0.1, "old", None, 1)))
    build = Build.follow(path).start()
    until(lambda: build.tree.paths == 1)
    with path.open("ab") as file:
        file.write(text(HELLO, *PHASES, DONE))
    build.wait_ended(60)
    assert list(build.timings["path"]) == ["Building engine"]


def test_the_producers_estimate_is_shown_and_never_falls() -> None:
    read, write = os.pipe()
    build = Build.follow(read).start()
    os.write(write, text(HELLO, RUNNING, Estimate(0.1, 0.4, 9.0)))
    until(lambda: (build.progress, build.eta_s) == (0.4, 9.0))
    os.write(write, text(Estimate(0.2, 0.3, 8.0, exceeded=True)))
    until(lambda: build.exceeded)
    assert build.progress == 0.4
    os.write(write, text(Estimate(0.3, 7.0, -4.0)))
    until(lambda: (build.progress, build.eta_s) == (0.999, None))
    os.close(write)
    build.wait_ended(60)
    os.close(read)


# ---- the other direction ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "binary", "text", "descriptor"])
def test_a_request_goes_to_control(tmp_path: Path, kind: str) -> None:
    into = tmp_path / "requests"
    read, write = os.pipe()
    os.write(write, text(HELLO, RUNNING))
    into.touch()
    more: dict[str, Any] = {"encoding": "utf-8"} if kind == "text" else {}
    with into.open("w" if kind == "text" else "wb", **more) as file:
        given = {"path": into, "descriptor": file.fileno()}.get(kind, file)
        build = Build.follow(read, control=given).start()
        until(lambda: build.status == "running")
        assert build.request_cancel("deadline") is True
        assert build.status == "cancelling"
        assert build.request_cancel() is True  # it is on its way; once is enough
        assert json.loads(into.read_text("ascii")) == {"request": "cancel", "reason": "deadline"}
        build.close()
        os.close(write)
    os.close(read)


def test_a_request_that_cannot_be_written() -> None:
    read, write = os.pipe()
    gone, into = os.pipe()
    os.close(gone)
    os.write(write, text(HELLO, RUNNING))
    build = Build.follow(read, control=into).start()
    until(lambda: build.status == "running")
    assert build.request_cancel() is False
    assert build.status == "running"
    assert "could not be asked to cancel" in build.notes[0]
    build.close()
    for descriptor in (read, write, into):
        os.close(descriptor)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links and FIFOs")
def test_the_file_beside_is_no_way_elsewhere(tmp_path: Path) -> None:
    path, other = tmp_path / "s.jsonl", tmp_path / "precious"
    path.write_bytes(text(StreamStarted(0.0, "net", listens=True), RUNNING))
    other.write_text("mine")
    (tmp_path / "s.jsonl.control").symlink_to(other)
    build = Build.follow(path).start()
    until(lambda: build.status == "running")
    assert build.request_cancel() is False
    assert other.read_text() == "mine"
    (tmp_path / "s.jsonl.control").unlink()
    os.mkfifo(tmp_path / "s.jsonl.control")  # type: ignore[attr-defined,unused-ignore]  # not on Windows
    assert build.request_cancel() is False  # nobody reads it, and nobody waits for that
    assert build.status == "running"
    (tmp_path / "s.jsonl.control").unlink()
    assert build.request_cancel() is True
    build.close()


def test_a_request_is_not_left_for_the_next_producer(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(text(StreamStarted(0.0, "net", listens=True), RUNNING))
    build = Build.follow(path).start()
    until(lambda: build.status == "running")
    assert build.request_cancel()
    assert (tmp_path / "s.jsonl.control").exists()
    with path.open("ab") as file:  # it had ended before it could read
        file.write(text(DONE))
    build.wait_ended(60)
    assert build.status == "succeeded"
    until(lambda: not (tmp_path / "s.jsonl.control").exists())


def test_another_producer_of_the_same_file_can_be_asked_too(tmp_path: Path) -> None:
    path, beside = tmp_path / "s.jsonl", tmp_path / "s.jsonl.control"
    path.write_bytes(text(StreamStarted(0.0, "net", listens=True), RUNNING))
    build = Build.follow(path).start()
    until(lambda: build.status == "running")
    assert build.request_cancel()
    beside.unlink()  # the producer has read it, and dies; it is started once more
    path.unlink()
    path.write_bytes(text(StreamStarted(0.0, "again", listens=True), RUNNING, PHASES[0]))
    until(lambda: build.tree.paths)
    assert not beside.exists()
    assert build.request_cancel()
    assert json.loads(beside.read_text("ascii"))["request"] == "cancel"
    build.close()


def test_the_phases_that_are_open_are_bounded() -> None:
    many = followed.MAX_OPEN + 5_000
    deep = [PhaseStarted(0.001 * i, f"p{i}", f"p{i - 1}" if i else None, 1) for i in range(many)]
    began = time.monotonic()
    build = Build.follow(io.BytesIO(text(HELLO, RUNNING, *deep, DONE))).start()
    build.wait_ended(30)
    assert build.status == "succeeded"
    assert time.monotonic() - began < 20  # it took the square of their number
    assert build.result is not None
    assert any(
        note.startswith("5,000 lines of the stream could not be read.")
        and "more than 10,000 phases are open" in note
        for note in build.result.notes
    )


def test_phases_that_end_make_room_for_others() -> None:
    more = followed.MAX_OPEN + 5_000
    flat: list[Event] = []
    for i in range(more):
        flat += [PhaseStarted(0.001 * i, "p", None, 1), PhaseFinished(0.001 * i, "p")]
    build = Build.follow(io.BytesIO(text(HELLO, RUNNING, *flat, DONE))).start()
    build.wait_ended(30)
    assert build.tree.roots["p"].count == more
    assert build.result is not None
    assert build.result.notes == ()


def test_a_request_that_nobody_reads_is_not_left(tmp_path: Path) -> None:
    path, control = tmp_path / "s.jsonl", tmp_path / "s.jsonl.control"
    path.write_bytes(text(StreamStarted(0.0, "net", listens=True), RUNNING))
    build = Build.follow(path).start()
    until(lambda: build.status == "running")
    assert build.request_cancel()
    build.close()
    assert control.exists()  # a producer that lives has a moment to read it
    until(lambda: not control.exists())


def test_a_file_beside_that_is_no_request_is_left_alone(tmp_path: Path) -> None:
    path, control = tmp_path / "s.jsonl", tmp_path / "s.jsonl.control"
    path.write_bytes(text(StreamStarted(0.0, "net", listens=True), RUNNING))
    control.write_text("precious")
    build = Build.follow(path).start()
    until(lambda: build.status == "running")
    assert build.request_cancel() is False
    assert "that is something else" in build.notes[0]
    assert control.read_text() == "precious"
    # That of somebody else who asks is added to, and is theirs.
    control.write_text('{"request":"cancel","reason":"user"}\n')
    assert build.request_cancel()
    assert len(control.read_text().splitlines()) == 2
    with path.open("ab") as file:
        file.write(text(DONE))
    build.wait_ended(60)
    assert build.status == "succeeded"
    build.close()
    until(
        lambda: (
            not any(
                t.name.startswith(("trt_widget stream", "trt_widget request"))
                for t in threading.enumerate()
            )
        )
    )
    assert control.exists()


def test_closing_before_the_start_and_while_a_read_cannot_be_ended() -> None:
    never = Build.follow(io.BytesIO(text(HELLO, DONE)))
    never.close()
    never.wait_ended(60)
    assert never.status == "ended"
    read, write = os.pipe()
    with os.fdopen(read, "r", encoding="utf-8") as file:
        build = Build.follow(file).start()
        time.sleep(0.2)
        build.close()
        build.wait_ended(60)
        assert build.status == "ended"
        os.close(write)
        until(
            lambda: not any(t.name.startswith("trt_widget stream") for t in threading.enumerate())
        )


# ---- bounds -------------------------------------------------------------------------------------


def flood(count: int) -> Iterable[Event]:
    yield HELLO
    yield RUNNING
    yield PhaseStarted(0.0, "root", None, 1)
    for index in range(count):
        yield PhaseStarted(index * 1e-5, f"phase {index % 7}", "root", 1)
        yield PhaseFinished(index * 1e-5 + 5e-6, f"phase {index % 7}")
    yield LogMessage(count * 1e-5, "warning", "kept")
    yield PhaseFinished(count * 1e-5, "root")
    yield DONE


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_reader_that_is_held_up_loses_nothing_and_holds_nobody_up(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "MAX_WAITING", 500)
    count = 5_000
    data = text(*flood(count))
    path = tmp_path / "s.jsonl"
    path.write_bytes(data)
    read, write = os.pipe()
    build = Build.follow(path if kind == "file" else read)
    held = threading.Event()
    most = 0

    build.subscribe(lambda _: held.wait(20))
    build.start()
    executor = build._executor
    assert isinstance(executor, FollowedExecutor)
    if kind == "pipe":
        # All of it goes through, though nothing is drained meanwhile.
        view = memoryview(data)
        while view:
            view = view[os.write(write, view) :]
            most = max(most, len(executor._waiting))
        os.close(write)
    else:
        time.sleep(0.5)
        most = len(executor._waiting)
    assert most <= 500 + 2_000  # with what one piece of it holds
    held.set()
    build.wait_ended(60)
    assert build.status == "succeeded"
    tree = PhaseTree()
    tree.apply(flood(count))
    tree.close("succeeded", 1.5)
    assert build.tree.timing_columns() == tree.timing_columns()
    assert build.tree.span_columns() == tree.span_columns()
    assert list(build.log["message"]) == ["kept"]
    os.close(read)


def test_a_record_of_a_followed_build_is_read_back(tmp_path: Path) -> None:
    build = follow(text(HELLO, RUNNING, *PHASES, DONE))
    build.record(tmp_path / "r.json")
    record = load_record(tmp_path / "r.json")
    assert (record.executor, record.backend, record.version) == ("followed", "tensorrt", "10.16")
    assert record.result is not None
    assert record.result.engine_bytes == 4711


# ---- views --------------------------------------------------------------------------------------


def test_the_views_of_a_stream_that_begins_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from trt_widget import BuildWidget

    path = tmp_path / "s.jsonl"
    path.write_bytes(text(StreamStarted(0.0, "first"), PhaseStarted(0.1, "old", None, 1)))
    widget = BuildWidget.follow(path)
    assert widget.timeline is not None
    feed = widget.timeline._feed
    assert feed is not None
    feed.take({"kind": "look", "view": "v", "spans": 0, "names": 0})
    until(lambda: widget.rows and feed._spans == 1)
    assert widget.rows[0].info["label"] == "old"
    path.write_bytes(text(HELLO, PhaseStarted(0.2, "Building engine", None, 2)))
    until(lambda: widget.rows and widget.rows[0].info["label"] == "Building engine")
    with path.open("ab") as file:
        file.write(text(StepCompleted(0.3, "Building engine", 0)))
    until(lambda: widget.rows[0].value == 1)
    with path.open("ab") as file:
        file.write(text(*PHASES[2:], DONE))
    widget.wait()
    assert (widget.header["name"], widget.header["where"]) == ("net.onnx", "elsewhere")
    assert "raised" not in caplog.text
    widget.close()


def test_a_followed_build_can_be_followed_in_its_turn() -> None:
    tree = PhaseTree()
    events = timed(mnist_events())
    tree.apply(events)
    tree.close("succeeded", 7.0)
    end = BuildEnded(7.0, "succeeded", "completed", engine_bytes=1)
    first = Build.follow(io.BytesIO(text(HELLO, RUNNING, *events, end)))
    reader = Broadcast(first).reader()
    first.start()
    relayed = "".join(batch.text for batch in reader).encode("ascii")
    second = follow(relayed)
    for build in (first, second):
        assert build.status == "succeeded"
        assert build.tree.span_columns() == tree.span_columns()
        assert build.result is not None
        assert (build.result.duration_s, build.result.engine_bytes) == (7.0, 1)


def test_the_chunks_of_a_followed_build() -> None:
    chunks = list(Build.follow(io.BytesIO(text(HELLO, RUNNING, *PHASES, DONE))).stream(interval=0))
    assert chunks[-1]["status"] == "succeeded"
    assert any(chunk["phase"] == "Building engine" for chunk in chunks)


def test_what_is_nested_without_end_is_cut() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    assert "…" in str(clean(deep))
    assert clean({"a": ["b", {"c": 1}]}) == {"a": ["b", {"c": 1}]}
