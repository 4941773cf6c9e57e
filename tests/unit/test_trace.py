from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.traces import Trace, traces
from tests.unit.test_record import hostile_record, record_of, wide_and_deep
from trt_widget.errors import SaveError
from trt_widget.events import (
    CancelDelivered,
    LogMessage,
    PhaseFinished,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.trace import MAX_LANES, MAX_TEXT, lanes, to_chrome_trace

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.record import Record


def nano(micro: float) -> int:
    return round(micro * 1000)


def read_trace(text: str) -> dict[str, Any]:
    """Read a file as far as it is the same for all its events."""
    assert "\\u" not in text.replace(2 * "\\", "")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text)
    assert text.startswith('{"displayTimeUnit":"ms",')
    trace = json.loads(text, object_pairs_hook=_object)
    assert isinstance(trace, dict)
    assert list(trace) == ["displayTimeUnit", "otherData", "traceEvents"]
    assert all(isinstance(value, str) for value in trace["otherData"].values())
    return trace


def check_trace(content: bytes) -> dict[str, Any]:
    """Check a file against the rules of the Trace Event Format, as a viewer relies on them.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

    And against what Perfetto's own reader asks for beyond them (its trace_processor, as a program,
    is not on PyPI): the unit of time before the events, which it otherwise misses or misreads;
    an event's ``ts`` and ``dur`` before its texts; no escape in a text but the short ones; threads
    and processes in 32 bits; no value that is an array.
    """
    trace = read_trace(content.decode("utf-8"))
    named: dict[tuple[str, int], Any] = {}
    stacks: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    last = 0
    used = set()
    for event in trace["traceEvents"]:
        assert list(event)[:2] == ["ph", "ts"]
        assert isinstance(event["name"], str)
        assert 0 < len(event["name"]) <= MAX_TEXT
        for number in (event["pid"], event["tid"]):
            assert type(number) is int
            assert 0 < number < 2**32
        assert isinstance(event["args"], dict)
        assert not any(isinstance(value, (list, dict)) for value in event["args"].values())
        if event["ph"] == "M":
            assert set(event) == {"ph", "ts", "pid", "tid", "name", "args"}
            kinds = {
                "process_name": "name",
                "thread_name": "name",
                "thread_sort_index": "sort_index",
            }
            (value,) = event["args"].values()
            assert list(event["args"]) == [kinds[event["name"]]]
            assert type(value) is (int if event["name"].endswith("index") else str)
            key = (event["name"], event["tid"] if event["name"] != "process_name" else 0)
            assert named.setdefault(key, value) == value, "a thread has one name"
            continue
        used.add(event["tid"])
        assert isinstance(event["cat"], str)
        start = nano(event["ts"])
        assert start >= last, "sorted"
        last = start
        if event["ph"] == "i":
            assert set(event) == {"ph", "ts", "s", "pid", "tid", "cat", "name", "args"}
            assert event["s"] in {"g", "p", "t"}
            continue
        assert event["ph"] == "X"
        assert list(event) == ["ph", "ts", "dur", "pid", "tid", "cat", "name", "args"]
        assert event["dur"] >= 0
        end = start + nano(event["dur"])
        stack = stacks.setdefault(event["tid"], [])
        while stack and stack[-1][0] <= start and stack[-1][0] < end:
            stack.pop()
        assert not stack or end <= stack[-1][0], "overlaps without being held"
        if event["cat"] == "silence":
            assert stack[-1][1]["cat"] == "phase"
        stack.append((end, event))
    assert used <= {thread for kind, thread in named if kind == "thread_name"}
    assert ("process_name", 0) in named
    return trace


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a key stands twice"
    return found


def traced(record: Record, path: Path) -> dict[str, Any]:
    assert to_chrome_trace(record, path) == path
    return check_trace(path.read_bytes())


def phases(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == "phase"]


def test_the_recorded_build(tmp_path: Path) -> None:
    record = record_of()
    trace = traced(record, tmp_path / "trace.json")
    found = phases(trace)
    assert len(found) == 1164
    assert {event["tid"] for event in found} == {2}
    assert [nano(event["ts"]) for event in found] == [
        round(start * 1e9) for start in record.spans["start_s"]
    ]
    total = sum(nano(event["dur"]) for event in found) / 1e9
    assert total == pytest.approx(record.spans["duration_s"].sum())
    assert {event["args"]["status"] for event in found} == {"done"}
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("recorded", traces(), ids=str)
def test_a_recorded_build_with_its_times(recorded: Trace, tmp_path: Path) -> None:
    record = record_of(recorded.callbacks, name=str(recorded), now=recorded.duration_s)
    found = phases(traced(record, tmp_path / "trace.json"))
    starts = [event for event in recorded.callbacks if isinstance(event, PhaseStarted)]
    assert sorted(event["name"] for event in found) == sorted(event.phase for event in starts)
    assert [nano(event["ts"]) for event in found] == [round(event.time * 1e9) for event in starts]


def test_phases_at_the_same_time_have_threads_of_their_own(tmp_path: Path) -> None:
    events = [
        PhaseStarted(0.0, "a", None, 1, 1),
        PhaseStarted(1.0, "b", None, 1, 2),
        PhaseStarted(1.5, "b1", "b", 1, 2),
        PhaseFinished(2.0, "a", 1),
        PhaseFinished(3.0, "b1", 2),
        PhaseFinished(3.0, "b", 2),
        PhaseStarted(3.0, "c", None, 1, 1),
        PhaseFinished(3.0, "c", 1),
    ]
    record = record_of(events)
    assert lanes(record) == [0, 1, 1, 0]
    found = {event["name"]: event for event in phases(traced(record, tmp_path / "t.json"))}
    assert found["b"]["tid"] == found["b1"]["tid"] != found["a"]["tid"]
    # Two children of one parent that overlap, too.
    events = [
        PhaseStarted(0.0, "p", None, 1, 1),
        PhaseStarted(1.0, "a", "p", 1, 1),
        PhaseStarted(2.0, "b", "p", 1, 2),
        PhaseFinished(3.0, "a", 1),
        PhaseFinished(4.0, "b", 2),
        PhaseFinished(5.0, "p", 1),
    ]
    record = record_of(events)
    assert lanes(record) == [0, 0, 1]
    traced(record, tmp_path / "t.json")


def test_more_at_once_than_there_are_threads(tmp_path: Path) -> None:
    events = [PhaseStarted(float(n), f"p{n}", None, 1, n) for n in range(MAX_LANES + 5)]
    trace = traced(record_of(events, now=100.0), tmp_path / "t.json")
    assert len(phases(trace)) == MAX_LANES
    assert trace["otherData"]["phases_without_an_event"] == "5"


def test_messages_a_cancel_and_open_phases(tmp_path: Path) -> None:
    events = [
        PhaseStarted(0.0, "a", None, 1),
        LogMessage(0.25, "info", "not shown"),
        LogMessage(0.5, "warning", "look"),
        CancelDelivered(1.0),
        LogMessage(2.0, "error", "out"),
    ]
    trace = traced(record_of(events, "running", now=4.0), tmp_path / "t.json")
    assert [
        (event["ts"], event["name"]) for event in trace["traceEvents"] if event["ph"] == "i"
    ] == [
        (0.5e6, "warning: look"),
        (1e6, "cancel: step_complete said False"),
        (2e6, "error: out"),
    ]
    (phase,) = phases(trace)
    assert phase["dur"] == 4e6
    assert phase["args"]["status"] == "running"


def test_a_silence_lies_in_the_phase_that_was_open(tmp_path: Path) -> None:
    events = [
        PhaseStarted(0.0, "root", None, 2),
        PhaseStarted(2.0, "a", "root", 1, 0),
        PhaseStarted(2.0, "b", "root", 1, 1),
        PhaseFinished(2.0, "b", 1),
        StepCompleted(3.5, "a", 0),
        PhaseFinished(6.0, "a"),
        PhaseFinished(6.5, "root"),
    ]
    record = record_of(events)
    trace = traced(record, tmp_path / "t.json")
    silent = [event for event in trace["traceEvents"] if event.get("cat") == "silence"]
    assert [(event["ts"], event["dur"]) for event in silent] == [
        (0.0, 2e6),
        (2e6, 1.5e6),
        (3.5e6, 2.5e6),
    ]
    assert {event["name"] for event in silent} == {"no callback"}
    older = dataclasses.replace(record, silence_columns=None)
    trace = traced(older, tmp_path / "t.json")
    assert not [event for event in trace["traceEvents"] if event.get("cat") == "silence"]


@pytest.mark.parametrize(
    "name", ["\u00fc \u6f22 \U0001f600", "\\", 'a"b\\', "\\u00e9", "\x00\x85\u2028\ud800\n"]
)
def test_texts_are_as_they_are_and_need_no_escape(name: str, tmp_path: Path) -> None:
    events = [PhaseStarted(0.0, name, None, 1), LogMessage(0.5, "error", name)]
    record = record_of(events, name=name, now=1.0)
    trace = traced(dataclasses.replace(record, backend=name, executor=name), tmp_path / "t.json")
    (phase,) = phases(trace)
    if name.isprintable():
        assert phase["name"] == trace["otherData"]["build"] == name
        assert any(event["name"] == f"error: {name}" for event in trace["traceEvents"])


def test_an_empty_build_and_hostile_names(tmp_path: Path) -> None:
    assert not phases(traced(record_of([]), tmp_path / "t.json"))
    trace = traced(hostile_record(), tmp_path / "t.json")
    assert any("<img" in event["name"] for event in phases(trace))


def test_a_hundred_thousand_phases(tmp_path: Path) -> None:
    record = wide_and_deep()
    begin = time.perf_counter()
    trace = traced(record, tmp_path / "t.json")
    assert len(phases(trace)) == 100_000
    assert time.perf_counter() - begin < 60  # some 3 s, with reading and checking it


def test_what_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    target.mkdir()
    with pytest.raises(SaveError, match="The trace could not be saved"):
        to_chrome_trace(record_of(), target)
    assert list(tmp_path.iterdir()) == [target]
