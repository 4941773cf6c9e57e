from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_record import hostile_record, record_of, wide_and_deep
from trt_widget.errors import SaveError
from trt_widget.events import CancelDelivered, LogMessage, PhaseFinished, PhaseStarted
from trt_widget.trace import MAX_LANES, lanes, to_chrome_trace

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.record import Record


def nano(micro: float) -> int:
    return round(micro * 1000)


def check_trace(text: str) -> dict[str, Any]:
    """Check a file against the rules of the Trace Event Format, as a viewer relies on them.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    trace = json.loads(text)
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    assert all(isinstance(value, str) for value in trace["otherData"].values())
    named: set[int] = set()
    stacks: dict[int, list[int]] = {}
    last = 0
    used = set()
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "i", "M"}
        assert isinstance(event["name"], str)
        assert event["name"]
        event["name"].encode("utf-8")
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            kinds = {"process_name": "name", "thread_name": "name"}
            value = event["args"][kinds.get(event["name"], "sort_index")]
            assert isinstance(value, str if event["name"] in kinds else int)
            if event["name"] == "thread_name":
                assert event["tid"] not in named, "a thread has one name"
                named.add(event["tid"])
            continue
        used.add(event["tid"])
        assert isinstance(event["cat"], str)
        start = nano(event["ts"])
        assert start >= last, "sorted"
        last = start
        if event["ph"] == "i":
            assert event["s"] in {"g", "p", "t"}
            continue
        assert event["dur"] >= 0
        end = start + nano(event["dur"])
        stack = stacks.setdefault(event["tid"], [])
        while stack and stack[-1] <= start and stack[-1] < end:
            stack.pop()
        assert not stack or end <= stack[-1], "overlaps without being held"
        stack.append(end)
    assert used <= named
    return trace


def traced(record: Record, path: Path) -> dict[str, Any]:
    assert to_chrome_trace(record, path) == path
    return check_trace(path.read_text("ascii"))


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
