from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import models
from tests.traces import mnist_events
from tests.unit.test_events import any_event
from trt_widget import Build
from trt_widget.broadcast import Broadcast
from trt_widget.events import Event, EventError, from_json, to_json
from trt_widget.schema import schema

VALIDATOR = jsonschema.Draft202012Validator(schema())


def is_valid(record: object) -> bool:
    return bool(VALIDATOR.is_valid(record))


def test_it_is_a_schema_and_plain_json() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()


def test_it_has_every_event_and_every_field() -> None:
    found = schema()
    kinds = get_args(Event)
    assert set(found["$defs"]) == {kind.kind for kind in kinds}
    for kind in kinds:
        names = {entry.name for entry in fields(kind)}
        assert set(found["$defs"][kind.kind]["properties"]) == {"event", *names}
        assert found["$defs"][kind.kind]["description"]
    start = found["$defs"]["stream_start"]["properties"]
    assert start["version"]["description"] == "PROTOCOL_VERSION of the writer."
    assert start["pid"]["description"] == start["host"]["description"]
    assert "`" not in json.dumps(found)


@given(any_event())
def test_what_is_written_is_valid(event: Event) -> None:
    record = json.loads(to_json(event))
    VALIDATOR.validate(record)
    # A newer writer may say more.
    VALIDATOR.validate({**record, "something": [1]})


@given(any_event(), st.data())
def test_what_is_not_valid_is_not_read(event: Event, data: st.DataObject) -> None:
    """And the other way round, apart from what only the columns of a table can tell."""
    record: dict[str, Any] = json.loads(to_json(event))
    name = data.draw(st.sampled_from([name for name in record if name != "event"]))
    odd: Any = data.draw(st.sampled_from([None, True, 2**63, 1.5, "text", [], [1], ["a"], {}]))
    record[name] = odd
    try:
        from_json(json.dumps(record))
    except EventError:
        if event.kind not in {"phases", "snapshot"}:
            assert not is_valid(record)
    else:
        assert is_valid(record)


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.kind)
def test_fields_without_a_default_are_required(kind: Any) -> None:
    required = {
        entry.name
        for entry in fields(kind)
        if entry.default is MISSING and entry.default_factory is MISSING
    } - {"time"}
    assert set(schema()["$defs"][kind.kind]["required"]) == {"event", *required}


@pytest.mark.parametrize("record", [{}, {"event": "nothing"}, [], "x", {"event": "phase_start"}])
def test_what_is_no_event(record: object) -> None:
    assert not is_valid(record)


def test_recorded_callbacks_are_valid() -> None:
    for event in mnist_events():
        VALIDATOR.validate(json.loads(to_json(event)))


@pytest.mark.parametrize("made", [models.mlp(), models.unknown_operators("Nope")])
def test_the_streams_of_real_builds_are_valid(made: Any) -> None:
    build = Build(made.SerializeToString())
    reader = Broadcast(build).reader()
    build.start().wait_ended()
    late = Broadcast(build).reader()
    kinds = set()
    for batch in [*reader, *late]:
        for text in batch.text.splitlines():
            record = json.loads(text)
            VALIDATOR.validate(record)
            kinds.add(record["event"])
    assert {"stream_start", "status", "estimate", "snapshot", "end"} <= kinds
