from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces import mnist_events, timed
from trt_widget.events import (
    CancelDelivered,
    Event,
    PhaseFinished,
    PhasesCollapsed,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.phases import OTHER, PhaseTree

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def test_closing_many_open_phases_takes_no_time_to_speak_of() -> None:
    names = [f"level {level}" for level in range(10_000)]
    tree = PhaseTree()
    tree.apply(
        PhaseStarted(float(level), name, names[level - 1] if level else None, 1)
        for level, name in enumerate(names)
    )
    begun = time.perf_counter()
    tree.close("cancelled", 20_000.0)
    assert time.perf_counter() - begun < 2.0  # it was 7 s when each one looked for the innermost
    columns = tree.timing_columns()
    assert sum(columns["self_s"]) == pytest.approx(columns["total_s"][0])
    assert set(columns["status"]) == {"cancelled"}
    assert not tree.anomalies
