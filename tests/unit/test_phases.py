from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces import Trace, mnist_events, replay, timed, traces
from trt_widget import ProgressMonitor, phases
from trt_widget.events import (
    CancelDelivered,
    Event,
    LogMessage,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    StepCompleted,
    expand,
    from_json,
    to_json,
)
from trt_widget.phases import MAX_SILENCES, OTHER, SILENT_S, PhaseTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def folded(events: Sequence[Event], outcome: str | None = None, **bounds: int) -> PhaseTree:
    tree = PhaseTree(**bounds)
    tree.apply(events)
    if outcome:
        tree.close(outcome)
    return tree


def column(tree: PhaseTree, name: str) -> dict[str, object]:
    columns = tree.timing_columns()
    return dict(zip(columns["path"], columns[name], strict=True))


def start(time: float, phase: str, parent: str | None = None, steps: int = 1) -> PhaseStarted:
    return PhaseStarted(time, phase, parent, steps)


# ------------------------------------------------------------------ the recorded build


def test_the_recorded_build_of_full_tensorrt_is_rebuilt_exactly() -> None:
    """A recorded trace, since full TensorRT cannot run here."""
    events = timed(mnist_events())
    tree = folded(events, "succeeded")
    counts = Counter(event.phase for event in events if isinstance(event, PhaseStarted))
    columns = tree.timing_columns()

    assert sum(columns["count"]) == sum(counts.values()) == 1164
    assert len(columns["path"]) == len(set(columns["path"])) == 15
    assert max(columns["depth"]) == 7
    by_name: Counter[str] = Counter()
    for name, count in zip(columns["phase"], columns["count"], strict=True):
        by_name[name] += count
    assert by_name == counts
    assert columns["phase"].count("Evaluating tactic times") == 2
    assert set(columns["status"]) == {"done"}
    assert (columns["steps"][0], columns["num_steps"][0]) == (5, 6)
    assert not tree.anomalies
    assert not tree.open_phases
    assert sum(columns["self_s"]) == pytest.approx(columns["total_s"][0])
    spans = tree.span_columns()
    assert len(spans["phase"]) == 1164
    assert spans["start_s"] == sorted(spans["start_s"])
    assert sum(spans["self_s"]) == pytest.approx(columns["total_s"][0])


@pytest.mark.parametrize("cut", [1, 17, 500, 3210, 6438])
@pytest.mark.parametrize("outcome", [None, "cancelled", "failed"])
def test_cut_anywhere_the_self_times_add_up_to_the_root(cut: int, outcome: str | None) -> None:
    tree = folded(timed(mnist_events())[:cut], outcome)
    columns = tree.timing_columns()
    assert sum(columns["self_s"]) == pytest.approx(columns["total_s"][0])
    if outcome:
        assert columns["status"][0] == outcome


# ------------------------------------------------------------------ recorded builds with times

recorded = pytest.mark.parametrize("trace", traces(), ids=str)


def by_hand(trace: Trace) -> list[tuple[str, float, float, int]]:
    """Give path, start, end and completed steps of every instance, without any code of ours."""
    found: list[list[Any]] = []
    still_open: dict[tuple[int, str], list[Any]] = {}
    for event in trace.callbacks:
        at: Any = event
        if isinstance(event, PhaseStarted):
            above = f"{still_open[event.thread, event.parent][0]} > " if event.parent else ""
            instance = [above + event.phase, event.time, math.nan, 0]
            still_open[event.thread, event.phase] = instance
            found.append(instance)
        elif isinstance(event, StepCompleted):
            still_open[event.thread, event.phase][3] = event.step + 1
        else:
            still_open.pop((at.thread, at.phase))[2] = event.time
    assert not still_open
    return [(path, start, end, steps) for path, start, end, steps in found]


@recorded
def test_a_recorded_build_is_rebuilt_exactly(trace: Trace) -> None:
    tree = folded(trace.callbacks)
    assert not tree.open_phases  # every phase has ended by itself
    tree.close("succeeded", trace.duration_s)
    instances = by_hand(trace)
    spans, columns = tree.span_columns(), tree.timing_columns()
    assert not tree.anomalies
    assert tree.spans_dropped == 0
    assert set(spans["status"]) == set(columns["status"]) == {"done"}
    assert list(
        zip(spans["path"], spans["start_s"], spans["end_s"], spans["steps"], strict=True)
    ) == [pytest.approx(instance) for instance in instances]
    assert sum(columns["count"]) == len(instances)
    assert sum(columns["steps"]) == sum(steps for *_, steps in instances)
    for path, count, total, longest in zip(
        *(columns[name] for name in ("path", "count", "total_s", "max_s")), strict=True
    ):
        lasted = [end - start for name, start, end, _ in instances if name == path]
        assert (count, total, longest) == (
            len(lasted),
            pytest.approx(sum(lasted)),
            pytest.approx(max(lasted)),
        )
    roots = sum(end - start for path, start, end, _ in instances if " > " not in path)
    assert sum(columns["self_s"]) == pytest.approx(roots)
    assert sum(spans["self_s"]) == pytest.approx(roots)
    assert min(spans["self_s"]) >= 0.0
    shares = zip(columns["share"], columns["depth"], strict=True)
    assert sum(share for share, depth in shares if not depth) == pytest.approx(1.0)
    for parent, start, end in zip(spans["parent"], spans["start_s"], spans["end_s"], strict=True):
        assert 0.0 <= start <= end <= trace.duration_s
        if parent >= 0:
            assert spans["start_s"][parent] <= start
            assert end <= spans["end_s"][parent]


@recorded
@pytest.mark.parametrize("part", [0.01, 0.3, 0.95, 0.999])
@pytest.mark.parametrize("outcome", [None, "cancelled", "failed"])
def test_a_recorded_build_cut_anywhere_adds_up(
    part: float, outcome: str | None, trace: Trace
) -> None:
    cut = max(1, int(part * len(trace.callbacks)))
    tree = folded(trace.callbacks[:cut], outcome)
    columns = tree.timing_columns()
    total = sum(
        t for t, depth in zip(columns["total_s"], columns["depth"], strict=True) if not depth
    )
    assert sum(columns["self_s"]) == pytest.approx(total)
    assert bool(tree.open_phases) == (outcome is None)
    if outcome:
        assert columns["status"][0] == outcome


@recorded
@pytest.mark.parametrize("tick", [0.02, 0.1, 5.0])
def test_a_recorded_build_is_the_same_whenever_it_is_drained(tick: float, trace: Trace) -> None:
    """What the monitor tells in batches, by the times of the recording."""
    whole, drained, late = folded(trace.callbacks), PhaseTree(), PhaseTree()
    for number, (_, events) in enumerate(trace.batches(tick)):
        assert [event.time for event in events] == sorted(event.time for event in events)
        drained.apply(events)
        if number == 0:
            late.apply([from_json(to_json(drained.snapshot()))])
        else:
            late.apply([from_json(to_json(event)) for event in events])
    for tree in (whole, drained, late):
        tree.close("succeeded", trace.duration_s)
    same(drained, late)
    ours, theirs = whole.timing_columns(), drained.timing_columns()
    for name, values in ours.items():
        exact = name not in {"total_s", "self_s", "mean_s", "max_s", "share"}
        assert theirs[name] == (values if exact else pytest.approx(values, abs=1e-9)), name
    assert repr(whole.span_columns()["end_s"]) == repr(drained.span_columns()["end_s"])


@recorded
def test_the_silences_of_a_recorded_build(trace: Trace) -> None:
    tree = folded(trace.callbacks, "succeeded")
    callbacks = [(event.time, later.time) for event, later in pairwise(trace.callbacks)]
    gaps = [gap for gap in callbacks if gap[1] - gap[0] > SILENT_S]
    columns = tree.silence_columns()
    found = sorted(set(zip(columns["start_s"], columns["end_s"], strict=True)))
    assert found == gaps
    names = {node.index: node for node in tree.walk()}
    for index, start, end in zip(*columns.values(), strict=True):
        node = names[index]
        assert node.started <= start
        assert node.ended is not None
        assert end <= node.ended
    # As the drain of a real build tells it: to a tenth of a second.
    drained = PhaseTree()
    for _, events in trace.batches():
        drained.apply(events)
    told = drained.silence_columns()
    near = {
        (start, end)
        for start, end in gaps
        if any(
            abs(start - a) <= 0.11 and abs(end - b) <= 0.11
            for a, b in zip(told["start_s"], told["end_s"], strict=True)
        )
    }
    assert {gap for gap in gaps if gap[1] - gap[0] > SILENT_S + 0.11} <= near


# ------------------------------------------------------------------ single facts


def test_times_steps_and_shares_of_a_small_tree() -> None:
    tree = folded(
        [
            start(1.0, "root", None, 4),
            start(2.0, "leaf", "root", 3),
            StepCompleted(2.5, "leaf", 2),
            StepCompleted(2.5, "root", 0),
            PhaseFinished(3.0, "leaf"),
            start(3.0, "leaf", "root", 3),
            PhaseFinished(7.0, "leaf"),
            PhaseFinished(9.0, "root"),
        ],
        "succeeded",
    )
    assert tree.timing_columns() == {
        "phase": ["root", "leaf"],
        "path": ["root", "root > leaf"],
        "depth": [0, 1],
        "count": [1, 2],
        "total_s": [8.0, 5.0],
        "self_s": [3.0, 5.0],
        "mean_s": [8.0, 2.5],
        "max_s": [8.0, 4.0],
        "share": [1.0, 0.625],
        "steps": [1, 3],
        "num_steps": [4, 6],
        "status": ["done", "done"],
    }
    spans = tree.span_columns()
    assert spans["parent"] == [-1, 0, 0]
    assert spans["duration_s"] == [8.0, 1.0, 4.0]
    assert spans["self_s"] == [3.0, 1.0, 4.0]
    assert spans["steps"] == [1, 3, 0]


def test_open_phases_count_up_to_now() -> None:
    tree = folded([start(1.0, "root"), start(2.0, "leaf", "root")])
    columns = tree.timing_columns(now=5.0)
    assert columns["total_s"] == [4.0, 3.0]
    assert columns["self_s"] == [1.0, 3.0]
    assert columns["max_s"] == [4.0, 3.0]
    assert columns["status"] == ["running", "running"]
    spans = tree.span_columns(now=5.0)
    assert spans["self_s"] == [1.0, 3.0]
    assert spans["duration_s"] == [4.0, 3.0]
    assert all(math.isnan(end) for end in spans["end_s"])
    assert tree.open_phases == [("root",), ("root", "leaf")]


def test_equal_names_under_two_parents_are_two_paths() -> None:
    tree = folded(
        [
            start(0, "root"),
            start(0, "a", "root"),
            start(0, "x", "a"),
            PhaseFinished(1, "x"),
            PhaseFinished(1, "a"),
            start(1, "b", "root"),
            start(1, "x", "b"),
            PhaseFinished(4, "x"),
        ]
    )
    assert column(tree, "total_s")["root > a > x"] == 1
    assert column(tree, "total_s")["root > b > x"] == 3


def test_hierarchies_of_two_threads_do_not_mix() -> None:
    tree = folded(
        [
            PhaseStarted(0, "root", None, 2, thread=1),
            PhaseStarted(0, "other", None, 2, thread=2),
            PhaseStarted(0, "x", "root", 5, thread=1),
            PhaseStarted(0, "x", "other", 5, thread=2),
            StepCompleted(1, "x", 3, thread=1),
            PhaseFinished(2, "x", thread=1),
            PhaseFinished(2, "root", thread=1),
            StepCompleted(3, "x", 0, thread=2),
            PhaseFinished(4, "x", thread=2),
            PhaseFinished(6, "other", thread=2),
        ],
        "succeeded",
    )
    assert column(tree, "steps") == {"root": 0, "root > x": 4, "other": 0, "other > x": 1}
    assert column(tree, "total_s") == {"root": 2, "root > x": 2, "other": 6, "other > x": 4}
    assert sum(tree.timing_columns()["self_s"]) == 8
    assert not tree.anomalies


def test_children_that_overlap_share_the_time() -> None:
    tree = folded(
        [
            start(0, "root"),
            start(0, "a", "root"),
            start(0, "b", "root"),
            PhaseFinished(4, "a"),
            PhaseFinished(6, "b"),
            PhaseFinished(7, "root"),
        ]
    )
    assert column(tree, "self_s") == {"root": 1, "root > a": 2, "root > b": 4}


def test_a_number_of_steps_below_one_is_unknown_and_a_skipped_step_counts() -> None:
    tree = folded([start(0, "p", None, -3), StepCompleted(1, "p", 8), StepCompleted(1, "p", 2)])
    assert column(tree, "num_steps") == {"p": 0}
    assert column(tree, "steps") == {"p": 9}
    assert tree.span_columns()["num_steps"] == [-3]
    assert tree.anomalies == {"step that does not advance": 1}


def test_what_the_contract_excludes_is_counted_and_survived() -> None:
    tree = folded(
        [
            StepCompleted(0, "ghost", 1),
            PhaseFinished(0, "ghost"),
            start(1, "orphan", "ghost"),
            start(1, "root"),
            start(2, "child", "root"),
            PhaseFinished(3, "root"),
            PhaseFinished(4, "child"),
        ]
    )
    assert tree.anomalies == {
        "step of a phase that is not open": 1,
        "finish of a phase that is not open": 2,
        "phase below a parent that is not open": 1,
        "phase finished before its child": 1,
    }
    assert column(tree, "total_s") == {"orphan": 3, "root": 2, "root > child": 1}


def test_time_never_runs_backwards() -> None:
    tree = folded([start(5, "a"), start(3, "b", "a"), PhaseFinished(1, "b"), PhaseFinished(6, "a")])
    assert tree.span_columns()["start_s"] == [5, 5]
    assert column(tree, "total_s") == {"a": 1, "a > b": 0}


# ------------------------------------------------------------------ outcomes


def test_a_cancel_marks_what_was_unwound_and_nothing_before() -> None:
    events = [
        start(0, "root", None, 3),
        start(0, "first", "root"),
        PhaseFinished(1, "first"),
        start(1, "second", "root"),
        start(1, "inner", "second"),
        CancelDelivered(2),
        PhaseFinished(2, "inner"),
        PhaseFinished(2, "second"),
        StepCompleted(2, "root", 1),
        PhaseFinished(2, "root"),
    ]
    assert column(folded(events, "cancelled"), "status") == {
        "root": "cancelled",
        "root > first": "done",
        "root > second": "cancelled",
        "root > second > inner": "cancelled",
    }


def test_a_failure_marks_the_last_run_of_finishes_and_what_is_still_open() -> None:
    events = [
        start(0, "root", None, 3),
        start(0, "first", "root"),
        PhaseFinished(1, "first"),
        start(1, "second", "root"),
        start(1, "inner", "second"),
        PhaseFinished(2, "inner"),
    ]
    tree = folded(events, "failed")
    expected = {
        "root": "failed",
        "root > first": "done",
        "root > second": "failed",
        "root > second > inner": "failed",
    }
    assert column(tree, "status") == expected
    assert tree.span_columns()["status"] == ["failed", "done", "failed", "failed"]
    assert column(folded(events, "ended"), "status")["root"] == "ended"


def test_after_success_every_phase_is_done_also_one_that_ended_early() -> None:
    tree = folded([start(0, "root", None, 6), StepCompleted(1, "root", 4)], "succeeded")
    assert column(tree, "status") == {"root": "done"}
    assert column(tree, "steps") == {"root": 5}


# ------------------------------------------------------------------ bounds


def test_past_the_bound_spans_are_counted_in_their_path_only() -> None:
    events: list[Event] = [start(0, "root")]
    for index in range(50):
        events += [start(index, "x", "root"), PhaseFinished(index + 0.5, "x")]
    tree = folded(events, "succeeded", max_spans=10)
    assert len(tree.span_columns()["phase"]) == 10
    assert tree.spans_dropped == 41
    assert column(tree, "count") == {"root": 1, "root > x": 50}
    assert column(tree, "total_s")["root > x"] == 25


def test_past_the_bound_new_paths_are_counted_together() -> None:
    events: list[Event] = [start(0, "root")]
    for index in range(100):
        events += [
            start(index, f"layer {index}", "root"),
            start(index, "inner", f"layer {index}"),
            PhaseFinished(index + 1, "inner"),
            PhaseFinished(index + 1, f"layer {index}"),
        ]
    tree = folded(events, max_paths=11)
    assert tree.paths <= 12
    assert sum(tree.timing_columns()["count"]) == 201
    assert column(tree, "count")[f"root > {OTHER}"] == 190
    assert not tree.anomalies
    assert sum(tree.timing_columns()["self_s"]) == pytest.approx(100)


def test_collapsed_phases_take_their_time_from_the_parent() -> None:
    tree = folded(
        [
            start(0, "root"),
            PhasesCollapsed(8, ("root", "x"), 5, 6.0, 3.0, 10, 20),
            PhasesCollapsed(8, ("root", "x", "y"), 7, 1.0, 0.5),
            PhaseFinished(10, "root"),
        ],
        "succeeded",
    )
    assert column(tree, "self_s") == {"root": 4, "root > x": 5, "root > x > y": 1}
    assert column(tree, "count") == {"root": 1, "root > x": 5, "root > x > y": 7}
    assert column(tree, "max_s")["root > x"] == 3.0
    assert tree.spans_dropped == 12


# ------------------------------------------------------------------ any sequence of events

NAMES = st.sampled_from(["a", "b", "c", "d"])
EVENTS = st.lists(
    st.one_of(
        st.builds(
            PhaseStarted,
            st.floats(0, 100),
            NAMES,
            st.none() | NAMES,
            st.integers(-2, 9),
            st.integers(0, 2),
        ),
        st.builds(StepCompleted, st.floats(0, 100), NAMES, st.integers(-3, 9), st.integers(0, 2)),
        st.builds(PhaseFinished, st.floats(0, 100), NAMES, st.integers(0, 2)),
        st.builds(CancelDelivered, st.floats(0, 100)),
    ),
    max_size=80,
)


@settings(max_examples=400, deadline=None)
@given(EVENTS, st.sampled_from([None, "succeeded", "cancelled", "failed", "ended"]))
def test_any_sequence_leaves_a_sound_tree(events: list[Event], outcome: str | None) -> None:
    tree = folded(events, outcome)
    columns = tree.timing_columns()
    spans = tree.span_columns()
    starts = [event for event in events if isinstance(event, PhaseStarted)]

    assert sum(columns["count"]) == len(starts) == len(spans["phase"])
    assert len(set(columns["path"])) == len(columns["path"])
    roots = sum(t for t, d in zip(columns["total_s"], columns["depth"], strict=True) if d == 0)
    assert sum(columns["self_s"]) == pytest.approx(roots, abs=1e-6)
    assert sum(spans["self_s"]) == pytest.approx(roots, abs=1e-6)
    assert min([*columns["self_s"], *spans["self_s"], *spans["duration_s"]], default=0) >= 0
    assert spans["start_s"] == sorted(spans["start_s"])
    for row, parent in enumerate(spans["parent"]):
        if parent >= 0:
            assert parent < row
            assert spans["start_s"][parent] <= spans["start_s"][row]
            assert not spans["end_s"][parent] < spans["end_s"][row]
            assert spans["path"][row].startswith(spans["path"][parent])
            assert spans["depth"][row] == spans["depth"][parent] + 1
    if outcome:
        assert not tree.open_phases
        assert "running" not in columns["status"]
        assert "running" not in spans["status"]
    for name in ("total_s", "steps", "count"):
        by_path: Counter[str] = Counter()
        values = {"total_s": "duration_s", "steps": "steps"}.get(name)
        for row, path in enumerate(spans["path"]):
            by_path[path] += spans[values][row] if values else 1
        for path, value in zip(columns["path"], columns[name], strict=True):
            assert by_path[path] == pytest.approx(value, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.integers(0, 80))
def test_batches_make_no_difference(events: list[Event], cut: int) -> None:
    whole, parts = folded(events, "succeeded"), PhaseTree()
    parts.apply(events[:cut])
    parts.timing_columns(now=1000)
    parts.span_columns(now=1000)
    parts.apply(events[cut:])
    parts.close("succeeded")
    assert whole.timing_columns() == parts.timing_columns()
    assert whole.span_columns() == parts.span_columns()
    assert whole.silence_columns() == parts.silence_columns()


# ------------------------------------------------------------------ snapshots


def same(one: PhaseTree, other: PhaseTree, *, spans: bool = True) -> None:
    """Assert that two trees say the same; sums of times may be added up in another order."""
    ours, theirs = one.timing_columns(), other.timing_columns()
    for name, values in ours.items():
        exact = name not in {"total_s", "self_s", "mean_s", "max_s", "share"}
        assert theirs[name] == (values if exact else pytest.approx(values, rel=1e-12, abs=1e-12))
    assert one.silence_columns() == other.silence_columns()
    assert one.anomalies == other.anomalies
    assert one.open_phases == other.open_phases
    assert (one.now, one.last_callback) == (other.now, other.last_callback)
    assert one.cancel_delivered == other.cancel_delivered
    if spans:
        # NaN stands for an end that is not there, and is not equal to itself.
        assert str(one.span_columns()) == str(other.span_columns())
        assert one.spans_dropped == other.spans_dropped
    else:
        assert other.spans_dropped + len(other.span_columns()["path"]) == (
            one.spans_dropped + len(one.span_columns()["path"])
        )


@settings(max_examples=400, deadline=None)
@given(
    EVENTS,
    st.integers(0, 80),
    st.booleans(),
    st.sampled_from([None, "succeeded", "cancelled", "failed"]),
)
def test_a_reader_that_comes_late_sees_the_same(
    events: list[Event], cut: int, spans: bool, outcome: str | None
) -> None:
    whole, late = folded(events[:cut]), PhaseTree()
    late.apply([start(0.0, "something else"), start(1.0, "below", "something else")])
    late.apply([from_json(to_json(whole.snapshot(spans=spans)))])
    same(whole, late, spans=spans)
    for tree in (whole, late):
        tree.apply(events[cut:])
        if outcome:
            tree.close(outcome)
    same(whole, late, spans=spans)
    assert from_json(to_json(late.snapshot())) == late.snapshot()


@pytest.mark.parametrize("spans", [True, False])
@pytest.mark.parametrize("cut", [1, 500, 3210, 6438])
def test_a_snapshot_of_the_recorded_build(cut: int, spans: bool) -> None:
    """A recorded trace, since full TensorRT cannot run here."""
    events = timed(mnist_events())
    whole, late = folded(events[:cut]), PhaseTree()
    late.apply([from_json(to_json(whole.snapshot(spans=spans)))])
    for tree in (whole, late):
        tree.apply(events[cut:])
        tree.close("succeeded")
    same(whole, late, spans=spans)


def test_a_snapshot_keeps_what_was_folded_into_other_phases() -> None:
    events: list[Event] = [start(0.0, "root")]
    events += [start(index + 1.0, f"layer {index}", "root") for index in range(9)]
    whole, late = folded(events, max_paths=4), PhaseTree()
    late.apply([from_json(to_json(whole.snapshot()))])
    for tree in (whole, late):
        tree.apply([PhaseFinished(20.0 + index, f"layer {index}") for index in range(9)])
    same(whole, late)
    assert not late.anomalies


# ------------------------------------------------------------------ silences


def silences(tree: PhaseTree, now: float | None = None) -> list[tuple[str, float, float]]:
    columns = tree.silence_columns(now)
    names = {node.index: node.name for node in tree.walk()}
    rows = zip(columns["path"], columns["start_s"], columns["end_s"], strict=True)
    return [(names[path], start_s, end_s) for path, start_s, end_s in rows]


def test_a_silence_belongs_to_the_innermost_phase_and_a_step_ends_it() -> None:
    tree = folded(
        [
            start(3.0, "root", None, 4),  # nothing was open before it
            start(4.0, "a", "root", 9),  # a second is not more than a second
            StepCompleted(4.9, "a", 0),
            LogMessage(5.5, "info", "not a callback"),
            StepCompleted(7.0, "a", 5),
            StepCompleted(7.5, "root", 0),
            PhaseFinished(8.0, "a"),
            PhaseFinished(10.0, "root"),
            start(13.0, "next"),
        ]
    )
    assert silences(tree) == [("a", 4.9, 7.0), ("root", 8.0, 10.0)]


def test_a_silence_lasts_until_now_and_until_the_end() -> None:
    tree = folded([start(0.0, "root"), start(0.5, "leaf", "root"), StepCompleted(1.0, "leaf", 0)])
    assert silences(tree) == []
    assert silences(tree, 2.0) == []
    assert silences(tree, 2.5) == [("leaf", 1.0, 2.5)]
    assert silences(tree) == []  # to look changes nothing
    tree.apply([LogMessage(4.0, "info", "text")])
    assert silences(tree) == [("leaf", 1.0, 4.0)]
    tree.close("cancelled", 5.0)
    assert silences(tree) == silences(tree, 50.0) == [("leaf", 1.0, 5.0)]


def test_a_silence_belongs_to_all_phases_that_are_innermost() -> None:
    tree = folded(
        [
            PhaseStarted(0.0, "root", None, 1, 1),
            PhaseStarted(0.0, "x", "root", 1, 1),
            PhaseStarted(0.0, "y", "root", 1, 2),
            PhaseStarted(0.0, "other", None, 1, 3),
            PhaseFinished(2.0, "x", 1),
            PhaseFinished(2.0, "y", 2),
            CancelDelivered(4.0),
        ]
    )
    both = [("root", 2.0, 4.0), ("other", 2.0, 4.0)]
    assert silences(tree) == [("x", 0.0, 2.0), ("y", 0.0, 2.0), ("other", 0.0, 2.0), *both]


def test_a_silence_in_a_run_and_between_its_phases() -> None:
    run = PhasesCompleted(9.0, "x", "root", 0, (2.0, 6.0), (4.0, 9.0), (0, -1), (1, 1))
    # A step of the parent comes before the run that it fell into.
    tree = folded([start(0.0, "root"), StepCompleted(7.5, "root", 2), run])
    assert silences(tree) == [
        ("root", 0.0, 2.0),
        ("x", 2.0, 4.0),
        ("root", 4.0, 6.0),
        ("x", 6.0, 7.5),
        ("x", 7.5, 9.0),
    ]


def test_steps_of_two_threads_may_come_in_disorder() -> None:
    events = [start(0.0, "a"), StepCompleted(5.0, "a", 0, 1), StepCompleted(3.0, "a", 1, 2)]
    tree = folded([*events, start(8.0, "b", "a")])
    assert silences(tree) == [("a", 0.0, 3.0), ("a", 3.0, 5.0), ("a", 5.0, 8.0)]


def test_no_silence_is_claimed_where_callbacks_were_only_counted() -> None:
    events = [
        start(0.0, "root"),
        StepCompleted(1.5, "root", 0),
        PhasesCollapsed(4.0, ("root", "x"), 5, 0.1, 0.1),
    ]
    tree = folded([*events, PhaseFinished(6.0, "root")])
    assert silences(tree) == [("root", 0.0, 1.5), ("root", 4.0, 6.0)]
    assert silences(folded(events), 4.9) == [("root", 0.0, 1.5)]


def test_the_longest_silences_are_kept() -> None:
    events: list[Event] = [start(0.0, "root")]
    time = 0.0
    for index in range(MAX_SILENCES + 500):
        time += 1.5 + (index * 7919 % 1500) / 1000
        events.append(start(time, f"{index % 5}", "root"))
        events.append(PhaseFinished(time, f"{index % 5}"))
    tree = folded(events)
    found = silences(tree, time + 9.0)
    assert len(found) == MAX_SILENCES
    assert found[-1] == ("root", time, time + 9.0)
    assert min(end_s - start_s for _, start_s, end_s in found) > 1.99
    assert found == sorted(found, key=lambda row: row[1])


@settings(max_examples=400, deadline=None)
@given(EVENTS, st.sampled_from([None, "succeeded"]))
def test_silences_of_any_stream_are_those_of_its_table(
    events: list[Event], outcome: str | None
) -> None:
    """Found once more, by looking at each gap which instances lie around it."""
    events = sorted(events, key=lambda event: event.time)
    tree = folded(events, outcome)
    spans = tree.span_columns()
    ends = [math.inf if math.isnan(end) else end for end in spans["end_s"]]
    times = [event.time for event in events]
    expected = set()
    for since, until in pairwise(times):
        if until - since > SILENT_S:
            around = {
                row
                for row, start_s in enumerate(spans["start_s"])
                if start_s <= since and ends[row] >= until
            }
            above = {spans["parent"][row] for row in around}
            expected |= {(spans["phase"][row], since, until) for row in around - above}
    assert set(silences(tree)) == expected


def test_steps_without_end_take_no_memory() -> None:
    tree = folded([start(0.0, "root", None, 10**6)])
    tree.apply(StepCompleted(index * 0.01, "root", index) for index in range(1, 200_000))
    assert silences(tree) == []
    assert len(tree._heard) < 5_000  # of 200,000
    tree.apply([start(5_000.0, "leaf", "root"), StepCompleted(5_000.5, "leaf", 0)])
    assert silences(tree) == [("root", pytest.approx(1_999.99), 5_000.0)]
    assert len(tree._heard) == 1


# ------------------------------------------------------------------ runs


def singles(events: Sequence[Event]) -> list[Event]:
    return [single for event in events for single in expand(event)]


def assert_same(tree: PhaseTree, other: PhaseTree) -> None:
    """Equal in everything; sums of times may be rounded differently."""
    for name in (
        "now",
        "last_callback",
        "revision",
        "spans_dropped",
        "anomalies",
        "cancel_delivered",
        "outcome",
        "open_phases",
    ):
        assert getattr(tree, name) == getattr(other, name), name
    rounded = ("total_s", "self_s", "mean_s", "share")
    for columns, others in (
        (tree.timing_columns(), other.timing_columns()),
        (tree.span_columns(), other.span_columns()),
        (tree.silence_columns(tree.now + 5.0), other.silence_columns(tree.now + 5.0)),
    ):
        for name, values in columns.items():
            if name in rounded:
                assert values == pytest.approx(others[name], abs=1e-9), name
            else:
                assert repr(values) == repr(others[name]), name  # (NaN is NaN)
    for node, twin in zip(tree.walk(), other.walk(), strict=True):
        for name in ("path", "started", "ended", "step", "step_total", "last_event", "last_status"):
            assert getattr(node, name) == getattr(twin, name), (node, name)


@pytest.fixture(scope="module")
def threads() -> Iterator[list[ThreadPoolExecutor]]:
    executors = [ThreadPoolExecutor(1) for _ in range(2)]
    yield executors
    for executor in executors:
        executor.shutdown()


THREADS = st.sampled_from([0, 0, 0, 1])
LEAVES = st.tuples(
    st.just("leaf"), NAMES, st.none() | NAMES, st.integers(-1, 3), st.integers(1, 5), THREADS
)
CALLS = st.lists(
    st.one_of(
        LEAVES,
        LEAVES,
        st.tuples(st.just("start"), NAMES, st.none() | NAMES, st.integers(-2, 9), THREADS),
        st.tuples(st.just("step"), NAMES, st.integers(-3, 9), THREADS),
        st.tuples(st.just("finish"), NAMES, THREADS),
        st.tuples(st.just("drain")),
        st.tuples(st.just("cancel")),
    ),
    max_size=40,
)


def record(calls: list[tuple[Any, ...]], threads: list[ThreadPoolExecutor]) -> list[list[Event]]:
    """Make the calls, each in its thread; give what each drain gave."""
    monitor = ProgressMonitor("tensorrt_rtx")

    def leaves(name: str, parent: str | None, last: int, times: int) -> None:
        for index in range(times):
            monitor.phase_start(name, parent, index)
            for step in range(last + 1):
                monitor.step_complete(name, step)
            monitor.phase_finish(name)
            if parent is not None:
                monitor.step_complete(parent, index)

    does = {
        "leaf": leaves,
        "start": monitor.phase_start,
        "step": monitor.step_complete,
        "finish": monitor.phase_finish,
    }
    batches = []
    for call in calls:
        what, *arguments = call
        if what == "drain":
            batches.append(monitor.drain())
        elif what == "cancel":
            monitor.request_cancel()
        else:
            thread = threads[arguments.pop()]
            thread.submit(does[what], *arguments).result()
    return [*batches, monitor.drain()]


@settings(max_examples=300, deadline=None)
@given(
    calls=CALLS,
    outcome=st.sampled_from([None, "succeeded", "cancelled", "failed"]),
    max_spans=st.sampled_from([3, 1000]),
    max_paths=st.sampled_from([3, 1000]),
)
def test_runs_make_the_same_tree_as_their_single_events(
    threads: list[ThreadPoolExecutor],
    calls: list[tuple[Any, ...]],
    outcome: str | None,
    max_spans: int,
    max_paths: int,
) -> None:
    batches = record(calls, threads)
    tree, other = PhaseTree(max_spans, max_paths), PhaseTree(max_spans, max_paths)
    with pytest.MonkeyPatch.context() as patch:
        # These calls follow each other at once: some pauses between them are long, for them.
        patch.setattr(phases, "SILENT_S", 1e-5)
        for batch in batches:
            assert [event.time for event in batch] == sorted(event.time for event in batch)
            tree.apply(batch)
            other.apply(sorted(singles(batch), key=lambda event: event.time))
        if outcome:
            tree.close(outcome)
            other.close(outcome)
        assert_same(tree, other)


@pytest.mark.parametrize("every", [1, 7, 500, 10_000])
def test_the_recorded_build_is_the_same_in_runs(every: int) -> None:
    monitor = ProgressMonitor("tensorrt_rtx")
    tree, other = PhaseTree(), PhaseTree()
    callbacks = mnist_events()
    events = 0
    for index in range(0, len(callbacks), every):
        replay(monitor, callbacks[index : index + every])
        batch = monitor.drain()
        events += len(batch)
        tree.apply(batch)
        other.apply(sorted(singles(batch), key=lambda event: event.time))
    assert_same(tree, other)
    assert sum(tree.timing_columns()["count"]) == 1164
    if every == 10_000:
        assert events < 300


TIMES = st.floats(0, 100)
RUNS = st.builds(
    lambda phase, parent, thread, times, numbers, order: PhasesCompleted(
        (sorted(times) if order else times)[-1],
        phase,
        parent,
        thread,
        tuple((sorted(times) if order else times)[::2]),
        tuple((sorted(times) if order else times)[1::2]),
        tuple(last for last, _ in numbers[: len(times) // 2]),
        tuple(num_steps for _, num_steps in numbers[: len(times) // 2]),
    ),
    NAMES,
    st.none() | NAMES,
    st.integers(0, 2),
    st.integers(1, 3).flatmap(lambda n: st.lists(TIMES, min_size=2 * n, max_size=2 * n)),
    st.lists(
        st.tuples(st.integers(-2, 5) | st.just(2**63 - 1), st.integers(-2, 5) | st.just(2**70)),
        min_size=3,
        max_size=3,
    ),
    st.booleans(),
)
WITHOUT_CANCEL = EVENTS.map(
    lambda events: [event for event in events if not isinstance(event, CancelDelivered)]
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(RUNS | WITHOUT_CANCEL, max_size=6),
    st.sampled_from([None, "succeeded", "failed"]),
    st.booleans(),
)
def test_runs_of_any_stream_are_folded_as_their_single_events(
    parts: list[Any], outcome: str | None, in_order: bool
) -> None:
    """Also those that no monitor makes: times in disorder, numbers that fit nowhere."""
    events = [event for part in parts for event in (part if isinstance(part, list) else [part])]
    if in_order:
        events.sort(key=lambda event: event.time)
    tree, other = folded(events, outcome), folded(singles(events), outcome)
    assert_same(tree, other)
    assert [n.revision for n in tree.walk()] == [n.revision for n in other.walk()]


def test_a_run_beside_another_open_phase_shares_the_time_with_it() -> None:
    run = PhasesCompleted(6.0, "x", "root", 0, (2.0, 4.0), (3.0, 6.0), (0, -1), (1, 1))
    events = [start(0.0, "root"), PhaseStarted(0.0, "other", "root", 1, 1)]
    tree = folded([*events, run], "succeeded")
    assert_same(tree, folded([*events, *singles([run])], "succeeded"))
    assert column(tree, "self_s") == {"root": 0.0, "root > other": 4.5, "root > x": 1.5}


def test_what_fell_between_the_phases_of_a_run_may_come_before_it() -> None:
    run = PhasesCompleted(6.0, "x", "root", 0, (2.0, 4.0), (3.0, 6.0), (0, -1), (1, 1))
    between = [StepCompleted(3.5, "root", 2), LogMessage(5.0, "info", "text")]
    tree = folded([start(0.0, "root"), *between, run])
    true_order = sorted([*between, *singles([run])], key=lambda event: event.time)
    assert_same(tree, folded([start(0.0, "root"), *true_order]))
    assert tree.span_columns()["start_s"] == [0.0, 2.0, 4.0]
    assert column(tree, "self_s") == {"root": 3.0, "root > x": 3.0}


def test_only_what_ended_after_the_cancel_was_unwound() -> None:
    run = PhasesCompleted(
        7.0, "x", "root", 0, (1.0, 3.0, 5.0), (2.0, 4.0, 7.0), (-1, -1, -1), (1, 1, 1)
    )
    for parents in (["root"], ["root", "other"]):  # the second is folded phase by phase
        events = [start(0.0, "root"), *(start(0.5, name, "root") for name in parents[1:])]
        tree = folded([*events, CancelDelivered(4.0), run], "cancelled")
        statuses = tree.span_columns()["status"][len(parents) :]
        assert statuses == ["done", "done", "cancelled"]
        assert tree.span_columns()["start_s"][len(parents) :] == [1.0, 3.0, 5.0]


def test_closing_many_open_phases_takes_no_time_to_speak_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Counted, not timed: when each one looked for the innermost, it was all pairs of them.
    looked = 0
    sweep = PhaseTree._sweep

    def counting(root: Any) -> None:
        nonlocal looked
        looked += len(root.leaves)
        sweep(tree, root)

    names = [f"level {level}" for level in range(10_000)]
    tree = PhaseTree()
    tree.apply(
        PhaseStarted(float(level), name, names[level - 1] if level else None, 1)
        for level, name in enumerate(names)
    )
    monkeypatch.setattr(tree, "_sweep", counting)
    monkeypatch.setattr(tree, "_match", None)  # nobody is looked for by name
    tree.close("cancelled", 20_000.0)
    assert looked <= 20_000
    columns = tree.timing_columns()
    assert sum(columns["self_s"]) == pytest.approx(columns["total_s"][0])
    assert set(columns["status"]) == {"cancelled"}
    assert not tree.anomalies
