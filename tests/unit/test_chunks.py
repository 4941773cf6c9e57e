"""What is told in chunks, and what is not, at which rate. The real builds are in tests/build."""

from __future__ import annotations

import inspect
import json
import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.traces import Trace, mnist_events, timed, traces
from trt_widget import Build, BuildWidget, OptionError
from trt_widget.chunks import (
    BURST,
    HEARTBEAT_S,
    INTERVAL_S,
    KEYS,
    LONG_S,
    _News,
    describe_error,
    stream,
)
from trt_widget.errors import BuildError
from trt_widget.events import (
    CancelDelivered,
    Event,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    StatusChanged,
    StepCompleted,
)
from trt_widget.phases import MAX_PATHS, PhaseTree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trt_widget.chunks import Chunk


class Scripted:
    """Stands in for a build, since the time of these tests is their own.

    It has what chunks are made of; the tree in it is a real one.
    """

    def __init__(self, interval: float = INTERVAL_S, heartbeat: float = math.inf) -> None:
        self.lock = threading.RLock()
        self.tree = PhaseTree()
        self.status = "running"
        self.entered_at = {"running": 0.0}
        self.waiting_for: str | None = None
        self.last_status = StatusChanged(0.0, "running")
        self.eta_s: float | None = None
        self.result: Any = None
        self.time = 0.0
        self.news = _News(interval, heartbeat)

    def now(self) -> float:
        return self.time

    def at(self, time: float, *events: Event) -> list[Chunk]:
        """Let things happen, look at ``time``, and read what is new."""
        self.tree.apply(events)
        self.time = time
        build: Any = self
        self.news.look(build, 1_000.0 + time)
        chunks = list(self.news.ready)
        self.news.ready.clear()
        return chunks

    def end(self, time: float, status: str = "succeeded") -> list[Chunk]:
        self.tree.close(status, time)
        self.status = status
        self.result = SimpleNamespace(
            status=status,
            duration_s=time,
            ended_by="completed",
            reason=None,
            output=None,
            engine_bytes=3,
            error=None,
            notes=(),
        )
        return self.at(time)


def told(chunks: Iterable[Chunk]) -> list[tuple[str | None, str]]:
    return [(chunk["phase"], chunk["status"]) for chunk in chunks]


def start(time: float, name: str, parent: str | None = None, steps: int = 4) -> PhaseStarted:
    return PhaseStarted(time, name, parent, steps)


def run(time: float, name: str, parent: str, count: int, each: float) -> PhasesCompleted:
    """Give a run of short phases that ends at ``time``."""
    starts = tuple(time - (count - index) * each for index in range(count))
    ends = tuple(at + each for at in starts)
    return PhasesCompleted(ends[-1], name, parent, 0, starts, ends, (-1,) * count, (1,) * count)


def test_phases_open_and_close_and_the_outcome_is_last() -> None:
    build = Scripted()
    build.eta_s = 2.5
    chunks = build.at(
        0.5,
        start(0.1, "Building engine", steps=6),
        start(0.2, "Optimizing graph", "Building engine"),
    )
    assert chunks[1] == {
        "phase": "Optimizing graph",
        "step": 0,
        "total": 4,
        "parent": "Building engine",
        "at_s": 0.2,
        "elapsed_s": 0.5,
        "eta_s": 2.5,
        "status": "running",
    }
    assert told(chunks) == [("Building engine", "running"), ("Optimizing graph", "running")]
    assert chunks[0]["parent"] is None
    assert build.at(0.6) == []
    chunks = build.at(
        0.9, StepCompleted(0.7, "Optimizing graph", 3), PhaseFinished(0.8, "Optimizing graph")
    )
    assert [(chunk["step"], chunk["total"], chunk["status"]) for chunk in chunks] == [
        (4, 4, "done")
    ]
    *chunks, last = build.end(1.0)
    assert told(chunks) == [("Building engine", "done")]
    assert last["status"] == "succeeded"
    assert last["engine_bytes"] == 3
    assert last["error"] is None
    assert last["phase"] is None
    assert last["duration_s"] == 1.0


def test_every_chunk_has_all_keys_and_is_json() -> None:
    build = Scripted(heartbeat=1.0)
    chunks = build.at(0.5, start(0.1, "a\nname\udc80" + "x" * 10_000, steps=-1))
    chunks += build.at(9.0)
    chunks += build.end(9.5)
    assert len(chunks) == 4
    for chunk in chunks:
        assert tuple(chunk)[: len(KEYS)] == KEYS
        assert json.loads(json.dumps(chunk, allow_nan=False)) == chunk
        assert len(json.dumps(chunk)) < 2_000
    assert chunks[0]["total"] is None  # TensorRT does not know
    assert "\n" not in chunks[0]["phase"]


def test_a_path_that_was_open_many_times_is_one_chunk_with_a_count() -> None:
    build = Scripted()
    build.at(0.1, start(0.0, "root"))
    (chunk,) = build.at(0.9, run(0.8, "tactic", "root", 500, 0.001))
    assert (chunk["phase"], chunk["status"], chunk["count"]) == ("tactic", "done", 500)
    (chunk,) = build.at(1.9, run(1.8, "tactic", "root", 20, 0.001), start(1.85, "tactic", "root"))
    assert (chunk["status"], chunk["count"]) == ("running", 21)


def flooded(seconds: int, paths: int, **keywords: Any) -> tuple[Scripted, list[Chunk]]:
    """Run a build that opens and closes phases of many paths all the time."""
    build = Scripted(**keywords)
    chunks = build.at(0.0, start(0.0, "root"), start(0.0, "inner", "root"))
    for tick in range(1, seconds * 10 + 1):
        now = tick / 10
        names = [f"layer {(tick * 20 + index) % paths}" for index in range(20)]
        events = [
            run(now - 0.09 + 0.004 * i, name, "inner", 4, 0.001) for i, name in enumerate(names)
        ]
        chunks += build.at(now, *events)
    return build, chunks


def test_a_flood_is_limited_to_the_rate() -> None:
    _, chunks = flooded(30, 300)
    assert len(chunks) <= BURST + 30 / INTERVAL_S
    assert len(chunks) >= 30 / INTERVAL_S  # and the rate is used
    times = [chunk["elapsed_s"] for chunk in chunks]
    assert times == sorted(times)


def test_without_a_limit_everything_is_told_at_every_look() -> None:
    _, chunks = flooded(5, 40, interval=0.0)
    assert len(chunks) == 2 + 5 * 10 * 20


def test_outermost_phases_go_first() -> None:
    build = Scripted(interval=1e9)
    chunks = build.at(
        0.1, start(0.0, "root"), *[run(0.05, f"early {i}", "root", 1, 0.0001) for i in range(50)]
    )
    assert len(chunks) == BURST
    assert ("root", "running") in told(chunks)
    deep = Scripted(interval=1e9)
    chunks = deep.at(
        0.1,
        start(0.0, "root"),
        start(0.0, "inner", "root"),
        *[run(0.02, f"deep {i}", "inner", 1, 0.0001) for i in range(BURST)],
        *[run(0.05, f"flat {i}", "root", 1, 0.0001) for i in range(BURST)],
    )
    assert [phase for phase, _ in told(chunks) if str(phase).startswith("deep")] == []


def test_long_phases_are_told_whatever_the_rate() -> None:
    build = Scripted(interval=1e9)
    chunks = build.at(0.0, start(0.0, "root"))
    wanted = []
    for number in range(30):
        begin = number * 2.0
        wanted += [(f"long {number}", "running"), (f"long {number}", "done")]
        chunks += build.at(begin + 0.1, start(begin, f"long {number}", "root"))
        for tick in range(1, 15):
            now = begin + 0.1 + tick / 10
            chunks += build.at(now, run(now, f"short {number} {tick}", "root", 3, 0.001))
        chunks += build.at(begin + 1.9, PhaseFinished(begin + 1.8, f"long {number}"))
    assert [entry for entry in told(chunks) if str(entry[0]).startswith("long")] == wanted
    # The short ones had to share what there was at the beginning.
    assert len(chunks) <= BURST + len(wanted) + 1


def test_a_long_phase_that_nobody_saw_open_is_told_to_have_opened() -> None:
    build = Scripted(interval=1e9)
    build.at(0.0, start(0.0, "root"))
    chunks = build.at(LONG_S + 1.0, start(0.1, "long", "root"), PhaseFinished(LONG_S + 0.2, "long"))
    assert told(chunks) == [("root", "running"), ("long", "running"), ("long", "done")][1:]


def test_one_that_is_open_behind_one_that_has_ended_is_told() -> None:
    build = Scripted(interval=1e9)
    build.at(0.0, start(0.0, "root"), *[run(0.0, f"p{i}", "root", 1, 0.0) for i in range(BURST)])
    chunks = build.at(
        4.0, start(1.0, "long", "root"), PhaseFinished(2.5, "long"), start(2.6, "long", "root")
    )
    assert told(chunks) == [("long", "running"), ("long", "done")]
    assert told(build.at(4.1)) == [("long", "running")]
    assert told(build.end(5.0)) == [("long", "done"), ("root", "done"), (None, "succeeded")]


def test_the_oldest_of_those_that_are_open_makes_a_path_long() -> None:
    build = Scripted(interval=1e9)
    build.at(0.0, start(0.0, "root"), *[run(0.0, f"p{i}", "root", 1, 0.0) for i in range(BURST)])
    events: list[Event] = [PhaseStarted(0.1, "lane", "root", 1, thread=1)]
    for index in range(10):
        now = 0.2 + index * 0.1
        events += [
            PhaseStarted(now, "lane", "root", 1, thread=2),
            PhaseFinished(now + 0.05, "lane", thread=2),
        ]
    events.append(PhaseStarted(1.25, "lane", "root", 1, thread=2))
    (chunk,) = build.at(1.3, *events)
    assert (chunk["phase"], chunk["status"], chunk["count"]) == ("lane", "running", 11)


def test_what_was_told_to_run_is_told_to_have_ended() -> None:
    for seed in range(5):
        build, chunks = flooded(10, 37 + seed)
        chunks += build.end(11.0)
        running: set[str | None] = set()
        for chunk in chunks:
            if chunk["status"] == "running":
                assert chunk["phase"] not in running
                running.add(chunk["phase"])
            else:
                running.discard(chunk["phase"])
        assert running == set()
        assert chunks[-1]["status"] == "succeeded"


def nested(chunks: Iterable[Chunk]) -> bool:
    """Whether nothing has ended after its parent; names are used once in these trees."""
    over: set[str | None] = set()
    for chunk in chunks:
        if chunk["parent"] in over:
            return False
        (over.discard if chunk["status"] == "running" else over.add)(chunk["phase"])
    return True


def test_nothing_ends_after_its_parent() -> None:
    build = Scripted(interval=1.0)
    chunks = build.at(0.1, start(0.0, "root"))
    chunks += build.at(0.3, start(0.2, "around", "root"))
    short = [run(1.5, f"short {i}", "around", 3, 0.001) for i in range(2 * BURST)]
    chunks += build.at(1.6, *short, PhaseFinished(1.55, "around"))
    for tick in range(20):  # there is a turn for them now, and it is too late
        chunks += build.at(2.0 + tick)
    told_short = [phase for phase, _ in told(chunks) if str(phase).startswith("short")]
    assert 0 < len(told_short) < len(short)
    assert told(chunks)[-1] == ("around", "done")
    # Those that come again are told with those that were not.
    last = run(30.0, "short 23", "around", 1, 0.001)
    chunks += build.at(30.1, start(29.0, "around", "root"), last)
    assert (chunks[-1]["phase"], chunks[-1]["count"]) == ("short 23", 4)
    assert nested(chunks)
    _, chunks = flooded(20, 300)
    assert nested(chunks)


def test_what_is_told_is_told_with_what_is_around_it() -> None:
    """Of short phases that are long together, inside others that come as often."""

    def both(time: float) -> list[Event]:
        return [
            start(time, "around", "root"),
            start(time + 0.02, "inside", "around"),
            PhaseFinished(time + 0.38, "inside"),
            PhaseFinished(time + 0.4, "around"),
        ]

    build = Scripted(interval=1e9)
    others = [run(0.02, f"p{i}", "root", 1, 0.001) for i in range(BURST - 2)]
    chunks = build.at(0.5, start(0.0, "root"), *others, *both(0.05))
    assert told(chunks)[-1] == ("around", "done")
    assert "inside" not in {chunk["phase"] for chunk in chunks}
    assert build.at(1.0, *both(0.55)) == []
    chunks = build.at(1.5, *both(1.05))
    assert told(chunks) == [("inside", "running"), ("inside", "done"), ("around", "done")]
    assert [chunk.get("count") for chunk in chunks] == [None, 3, 2]


def test_what_was_only_counted_ends_before_its_parent() -> None:
    build = Scripted()
    build.at(0.1, start(0.0, "root"), start(0.0, "around", "root"))
    chunks = build.at(
        5.1,
        PhaseFinished(3.0, "around"),
        StepCompleted(5.0, "root", 1),
        PhasesCollapsed(5.0, ("root", "around", "counted"), 1_000, 2.5, 0.01, 0, 0),
    )
    assert told(chunks) == [("counted", "running"), ("counted", "done"), ("around", "done")]
    assert [chunk["at_s"] for chunk in chunks] == [2.5, 3.0, 3.0]


def test_a_chunk_says_when_it_happened() -> None:
    build = Scripted(interval=1e9, heartbeat=1.0)
    assert build.at(1.0, start(0.25, "root"))[0]["at_s"] == 0.25
    (again,) = build.at(4.0)
    assert (again["status"], again["at_s"], again["elapsed_s"]) == ("running", 0.25, 4.0)
    chunks = build.at(9.0, start(4.5, "long", "root"), PhaseFinished(8.25, "long"))
    assert [(chunk["status"], chunk["at_s"]) for chunk in chunks] == [
        ("running", 4.5),
        ("done", 8.25),
    ]
    build.status, build.last_status = "cancelling", StatusChanged(9.5, "cancelling")
    (chunk,) = build.at(9.75)
    assert (chunk["status"], chunk["at_s"], chunk["elapsed_s"]) == ("cancelling", 9.5, 9.75)
    # The clock of the process that builds may be ahead of ours.
    build = Scripted()
    assert build.at(0.5, start(0.501, "root"))[0]["at_s"] == 0.5


def test_a_heartbeat_is_of_what_was_told() -> None:
    """Else it would be told to run, and not to have ended."""
    build = Scripted(interval=1e9, heartbeat=0.2)
    chunks = build.at(0.0, start(0.0, "root"), *[run(0, f"p{i}", "root", 1, 0) for i in range(20)])
    assert len(chunks) == BURST
    assert told(build.at(0.5, start(0.4, "brief", "root"))) == [("root", "running")]
    assert told(build.at(0.6, PhaseFinished(0.55, "brief"))) == []
    assert told(build.end(0.7)) == [("root", "done"), (None, "succeeded")]


def test_the_three_that_stream_agree() -> None:
    for method in (Build.stream, BuildWidget.stream, stream):
        parameters = inspect.signature(method).parameters
        assert parameters["interval"].default == INTERVAL_S
        assert parameters["heartbeat"].default == HEARTBEAT_S


def test_a_slow_reader_gets_a_bounded_number_of_chunks() -> None:
    build = Scripted()
    events: list[Event] = [start(0.0, "root")]
    for index in range(MAX_PATHS * 3):
        now = 1.0 + index * 2.0
        events += [start(now, f"phase {index}", "root"), PhaseFinished(now + 1.5, f"phase {index}")]
    chunks = build.at(now + 2.0, *events)
    # One more path stands for those past the bound.
    assert len(chunks) <= 2 * (MAX_PATHS + 1)
    assert len(build.news._told) <= MAX_PATHS + 1


def test_siblings_are_told_in_the_order_of_time() -> None:
    build = Scripted()
    chunks = build.at(
        5.0,
        start(0.0, "root"),
        start(0.1, "one", "root"),
        PhaseFinished(2.0, "one"),
        start(2.0, "two", "root"),
        start(2.0, "below", "two"),
        PhaseFinished(4.0, "below"),
        PhaseFinished(4.0, "two"),
    )
    assert told(chunks) == [
        ("root", "running"),
        ("one", "running"),
        ("one", "done"),
        ("two", "running"),
        ("below", "running"),
        ("below", "done"),
        ("two", "done"),
    ]


def test_silence_is_broken_by_a_heartbeat() -> None:
    build = Scripted(heartbeat=5.0)
    build.at(0.0, start(0.0, "root"), start(0.0, "inner", "root"), StepCompleted(0.0, "inner", 1))
    assert build.at(4.9) == []
    (chunk,) = build.at(5.0)
    assert (chunk["phase"], chunk["step"], chunk["status"]) == ("inner", 2, "running")
    assert build.at(9.9) == []
    assert len(build.at(10.0)) == 1


def test_a_build_without_phases_has_a_heartbeat_too() -> None:
    build = Scripted(heartbeat=5.0)
    build.at(0.0)
    (chunk,) = build.at(5.0)
    assert (chunk["phase"], chunk["status"]) == (None, "running")


def test_a_build_that_waits_says_for_what() -> None:
    build = Scripted()
    build.status, build.entered_at = "pending", {}
    assert build.at(1.0) == []
    build.waiting_for = "other.onnx"
    (chunk,) = build.at(2.0)
    assert (chunk["status"], chunk["waiting_for"], chunk["elapsed_s"]) == (
        "pending",
        "other.onnx",
        0,
    )
    assert build.at(3.0) == []
    build.status, build.waiting_for, build.entered_at = "running", None, {"running": 3.0}
    assert build.at(3.1) == []


def test_what_unwinds_after_a_cancel_is_not_done() -> None:
    build = Scripted()
    build.at(0.1, start(0.0, "root"), start(0.0, "inner", "root"))
    build.status = "cancelling"
    assert told(build.at(0.2)) == [(None, "cancelling")]
    assert build.at(0.4, CancelDelivered(0.3), PhaseFinished(0.35, "inner")) == []
    chunks = build.end(0.5, "cancelled")
    assert told(chunks) == [("inner", "cancelled"), ("root", "cancelled"), (None, "cancelled")]


def test_what_ended_just_before_the_cancel_is_told_at_the_end() -> None:
    build = Scripted(interval=1e9)
    build.at(0.1, start(0.0, "root"), start(0.0, "inner", "root"))
    build.at(0.2, *[run(0.15, f"tactic {i}", "root", 1, 0.001) for i in range(BURST)])
    assert build.at(0.4, PhaseFinished(0.3, "inner"), CancelDelivered(0.35)) == []
    chunks = build.end(0.5, "cancelled")
    assert told(chunks) == [("inner", "done"), ("root", "cancelled"), (None, "cancelled")]


def test_a_stream_that_begins_anew_is_told_anew() -> None:
    build = Scripted()
    build.at(0.1, start(0.0, "root"))
    build.at(0.5, run(0.4, "tactic", "root", 9, 0.001))
    build.tree = PhaseTree()
    chunks = build.at(2.0, start(1.0, "root"), run(1.5, "tactic", "root", 2, 0.001))
    assert ("tactic", "done") in told(chunks)
    assert told(build.end(3.0))[0] == ("root", "done")


def test_a_recorded_build_of_tensorrt() -> None:
    """1,107 phases of one name and 4,600 in all are a handful of chunks."""
    build = Scripted()
    chunks = []
    events = timed(mnist_events())
    tick = 0.0
    waiting: list[Event] = []
    for event in events:
        while event.time > tick:
            chunks += build.at(tick, *waiting)
            waiting = []
            tick += 0.1
        waiting.append(event)
    chunks += build.at(tick, *waiting)
    chunks += build.end(tick)
    assert len(chunks) <= BURST + tick / INTERVAL_S + 2 * build.tree.paths
    columns = build.tree.timing_columns()
    rows = zip(columns["phase"], columns["max_s"], strict=True)
    long = {name for name, most in rows if most >= LONG_S}
    assert len(long) >= 3
    for name in long:
        assert {(name, "running"), (name, "done")} <= set(told(chunks))


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_a_recorded_build_with_its_times(trace: Trace) -> None:
    build = Scripted()
    chunks: list[Any] = []
    tick = 0.0
    for at, events in trace.batches():
        while tick + 0.1 < at:
            tick += 0.1
            chunks += build.at(tick)
        tick = at
        chunks += build.at(tick, *events)
    chunks += build.end(trace.duration_s)
    assert len(chunks) <= BURST + tick / INTERVAL_S + 2 * build.tree.paths
    assert nested(chunks)
    columns = build.tree.timing_columns()
    for name, most in zip(columns["phase"], columns["max_s"], strict=True):
        if most >= LONG_S:
            assert {(name, "running"), (name, "done")} <= set(told(chunks))
    assert told(chunks)[-1] == (None, "succeeded")
    times = [chunk["elapsed_s"] for chunk in chunks]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(trace.duration_s, abs=0.001)


def test_errors_in_few_words() -> None:
    error = BuildError("cause " * 10_000, "do\nthis", evidence=["line"] * 100)
    said = describe_error(error)
    assert said["class"] == "BuildError"
    assert said["remedy"] == "do this"
    assert len(json.dumps(said)) < 5_000


@pytest.mark.parametrize("wrong", [-1, "1", None, True, math.nan])
def test_no_number_of_seconds(wrong: Any) -> None:
    build = Build(b"never read")
    with pytest.raises(OptionError, match="interval="):
        build.stream(interval=wrong)
    with pytest.raises(OptionError, match="heartbeat="):
        build.stream(heartbeat=wrong)
    build.stream(heartbeat=math.inf)
