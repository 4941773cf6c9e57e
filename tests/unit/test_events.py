from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_widget import events
from trt_widget.events import (
    BuildEnded,
    EventError,
    PhaseFinished,
    PhasesCompleted,
    PhaseStarted,
    Snapshot,
    StepCompleted,
    expand,
    from_json,
    to_json,
)
from trt_widget.phases import MAX_PATHS, PhaseTree

TYPES = [getattr(events, name) for name in events.__all__ if hasattr(getattr(events, name), "kind")]
TEXT = st.text(max_size=30)
OBJECTS = st.dictionaries(TEXT, st.recursive(st.none() | st.booleans() | TEXT, st.lists))
VALUES = {
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "float | None": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "int | None": st.none() | st.integers(-(2**63), 2**63 - 1),
    "tuple[str, ...]": st.lists(TEXT, min_size=1, max_size=5).map(tuple),
    "dict[str, Any]": OBJECTS,
    "dict[str, Any] | None": st.none() | OBJECTS,
}


def any_event() -> st.SearchStrategy[Any]:
    special = {PhasesCompleted: any_run, Snapshot: any_snapshot}
    return st.one_of(
        special[cls]()
        if cls in special
        else st.builds(cls, **{field.name: VALUES[str(field.type)] for field in fields(cls)})
        for cls in TYPES
    )


def any_run() -> st.SearchStrategy[PhasesCompleted]:
    numbers, times = VALUES["int"], VALUES["float"]
    phases = st.lists(st.tuples(times, times, numbers, numbers), min_size=1, max_size=4)
    parents = VALUES["str | None"]
    return st.builds(
        lambda time, phase, parent, thread, columns: PhasesCompleted(
            time, phase, parent, thread, *zip(*columns, strict=True)
        ),
        times,
        TEXT,
        parents,
        numbers,
        phases,
    )


def any_snapshot() -> st.SearchStrategy[Snapshot]:
    def snapshot(times: list[float], names: list[str], *, spans: bool) -> Snapshot:
        tree = PhaseTree()
        for time, name in zip(times, names, strict=False):
            above = next(reversed(tree._open), None)
            tree.apply([PhaseStarted(time, name, above, 2), StepCompleted(time, name, 0)])
        tree.apply([PhaseFinished(9.0, name) for name in names[1::2]])
        return tree.snapshot(spans=spans)

    times = st.lists(st.floats(0, 10), max_size=6)
    return st.builds(snapshot, times, st.lists(TEXT, max_size=6), spans=st.booleans())


@given(any_event())
def test_every_event_survives_json(event: Any) -> None:
    line = to_json(event)
    assert "\n" not in line
    assert line.isascii()
    assert from_json(line) == event
    assert from_json(line.encode()) == event
    assert hash(from_json(line)) == hash(event)


def test_every_event_is_exported_under_a_kind_of_its_own() -> None:
    assert {cls.kind: cls for cls in TYPES} == events._TYPES
    assert len(TYPES) == len(events._TYPES) >= 12


def test_recordings_without_a_clock_and_newer_writers_are_read() -> None:
    line = json.dumps({"event": "step_complete", "phase": "p", "step": 3, "colour": "blue"})
    assert from_json(line) == StepCompleted(0.0, "p", 3)


RUN = PhasesCompleted(4.0, "leaf", "root", 7, (1.0, 3.0), (2.0, 4.0), (5, -1), (6, 0))


def run_line(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(RUN)), **changes})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "not a line of JSON"),
        ("[1]", "expected a JSON object"),
        ("{}", "unknown event None"),
        ('{"event": ["x"]}', "unknown event"),
        ('{"event": "phase_start"}', "incomplete event 'phase_start'"),
        ('{"event": "step_complete", "phase": "p", "step": "3"}', "'step'"),
        ('{"event": "step_complete", "phase": "p", "step": true}', "'step'"),
        ('{"event": "step_complete", "phase": 7, "step": 1}', "'phase'"),
        ('{"event": "phase_finish", "phase": "p", "time": NaN}', "'time'"),
        ('{"event": "phases_collapsed", "path": [], "count": 1}', "'path'"),
        ('{"event": "output", "text": null}', "'text'"),
        ('{"event": "end", "status": "failed"}', "incomplete event 'end'"),
        ('{"event": "end", "facts": []}', "'facts'"),
        ('{"event": "end", "facts": null}', "'facts'"),
        ('{"event": "end", "error": "boom"}', "'error'"),
        ('{"event": "end", "notes": [1]}', "'notes'"),
        ('{"event": "end", "notes": "note"}', "'notes'"),
        ('{"event": "end", "engine_bytes": 1.5}', "'engine_bytes'"),
        ('{"event": "end", "peak_memory_bytes": "7"}', "'peak_memory_bytes'"),
        ('{"event": "phase_finish", "phase": "p", "time": 1' + "0" * 400 + "}", "'time'"),
        (run_line(ends=[2.0, 4.0, 5.0]), r"columns of event 'phases' .* found \[2, 3, 2, 2\]"),
        (run_line(starts=[], ends=[], last_steps=[], num_steps=[]), "not empty"),
        (run_line(starts=[1, float("nan")]), "'starts'"),
        (run_line(ends=[1, float("inf")]), "'ends'"),
        (run_line(ends=[1, 10**400]), "'ends'"),
        (run_line(ends=[1, True]), "'ends'"),
        (run_line(ends="12"), "'ends'"),
        (run_line(last_steps=[1.0, 1]), "'last_steps'"),
        (run_line(num_steps=[False, 1]), "'num_steps'"),
        (run_line(num_steps=None), "'num_steps'"),
        ("[" * 100_000, "not a line of JSON"),
    ],
)
def test_what_is_no_event_is_refused_with_its_reason(line: str, complaint: str) -> None:
    with pytest.raises(EventError, match=complaint):
        from_json(line)


def test_an_end_may_have_nothing_to_add() -> None:
    line = json.dumps(
        {"event": "end", "time": 2, "status": "failed", "ended_by": "error", "notes": []}
    )
    end = from_json(line)
    assert end == BuildEnded(2.0, "failed", "error")
    assert isinstance(end, BuildEnded)
    assert end.facts == {}
    assert end.facts is not BuildEnded(2.0, "failed", "error").facts


def test_the_form_is_the_one_that_is_documented() -> None:
    assert json.loads(to_json(PhaseStarted(1.5, "Building engine", None, 6, 11))) == {
        "event": "phase_start",
        "time": 1.5,
        "phase": "Building engine",
        "parent": None,
        "num_steps": 6,
        "thread": 11,
    }


def test_a_run_is_written_in_columns() -> None:
    assert to_json(RUN) == (
        '{"event":"phases","time":4.0,"phase":"leaf","parent":"root","thread":7,'
        '"starts":[1.0,3.0],"ends":[2.0,4.0],"last_steps":[5,-1],"num_steps":[6,0]}'
    )
    assert from_json(run_line(starts=[1, 3])) == RUN


def test_a_run_expands_to_the_events_of_its_phases() -> None:
    assert expand(RUN) == [
        PhaseStarted(1.0, "leaf", "root", 6, 7),
        StepCompleted(2.0, "leaf", 5, 7),
        PhaseFinished(2.0, "leaf", 7),
        PhaseStarted(3.0, "leaf", "root", 0, 7),
        PhaseFinished(4.0, "leaf", 7),
    ]
    step = StepCompleted(1.0, "leaf", 1)
    assert expand(step) == [step]


# ------------------------------------------------------------------ snapshots


def whole_snapshot() -> dict[str, Any]:
    tree = PhaseTree()
    tree.apply(
        [
            PhaseStarted(0.0, "root", None, 3),
            PhaseStarted(1.0, "leaf", "root", 2),
            PhaseFinished(2.0, "leaf"),
            PhaseStarted(4.0, "leaf", "root", 2),
        ]
    )
    record: dict[str, Any] = json.loads(to_json(tree.snapshot()))
    from_json(json.dumps(record))
    return record


@pytest.mark.parametrize(
    ("table", "column", "value", "complaint"),
    [
        ("paths", "parent", [-1, 1], "do not fit together"),
        ("paths", "parent", [-1], "column 'parent' of 'paths'"),
        ("paths", "name", ["root", 7], "column 'name' of 'paths'"),
        ("paths", "status", ["done", "well"], "do not fit together"),
        ("paths", "total_s", [0.0, None], "column 'total_s' of 'paths'"),
        ("paths", "count", None, "column 'count' of 'paths'"),
        ("open", "path", [0, 2], "do not fit together"),
        ("open", "parent", [-1, 1], "do not fit together"),
        ("open", "span", [0, 3], "do not fit together"),
        ("open", "span", [2, 2], "do not fit together"),
        ("spans", "path", [0, 1, -1], "do not fit together"),
        ("spans", "parent", [-1, 0, 2], "do not fit together"),
        ("spans", "status", [0, 1, 5], "do not fit together"),
        ("spans", "path", [1, 0, 0], "do not fit together"),
        ("open", "path", [1, 0], "do not fit together"),
        ("silences", "path", [2], "do not fit together"),
        ("unwound", "path", [0], "column 'span' of 'unwound'"),
    ],
)
def test_snapshots_that_do_not_hold_together_are_refused(
    table: str, column: str, value: Any, complaint: str
) -> None:
    record = whole_snapshot()
    record[table][column] = value
    with pytest.raises(EventError, match=complaint):
        from_json(json.dumps(record))


def test_a_snapshot_has_no_more_paths_than_a_tree() -> None:
    record = whole_snapshot()
    for column, values in record["paths"].items():
        record["paths"][column] = values + values[-1:] * (2 * MAX_PATHS - 1)
    from_json(json.dumps(record))
    for column, values in record["paths"].items():
        record["paths"][column] = values + values[-1:] * 1_000
    with pytest.raises(EventError, match="fit"):
        from_json(json.dumps(record))


def test_counts_of_anomalies_are_counts() -> None:
    with pytest.raises(EventError, match="fit"):
        from_json(json.dumps({**whole_snapshot(), "anomalies": {"odd": "many"}}))
