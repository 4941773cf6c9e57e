"""The stream of a build process, however it is cut and whatever is in it."""

from __future__ import annotations

import random

import pytest

from tests.traces import mnist_events, timed
from trt_widget.errors import BuildFailed
from trt_widget.events import (
    BuildEnded,
    Event,
    LogMessage,
    NetworkReady,
    PhaseStarted,
    StreamStarted,
    to_json,
)
from trt_widget.executors import intake
from trt_widget.executors.intake import Intake, is_sound
from trt_widget.phases import PhaseTree


def lines(*events: Event) -> bytes:
    return b"".join(to_json(event).encode("ascii") + b"\n" for event in events)


def test_a_stream_in_pieces_of_any_size() -> None:
    events = timed(mnist_events())
    hello, end = StreamStarted(0.0, "model"), BuildEnded(9.0, "succeeded", "completed")
    data = lines(hello, *events, end)
    reader, pieces = Intake(), random.Random(0)  # noqa: S311 - a test's dice
    taken: list[Event] = []
    while data:
        size = pieces.choice([1, 7, 100, 5_000])
        reader._take_bytes(data[:size])
        data = data[size:]
        if pieces.random() < 0.1:
            taken += reader._take_waiting()
    taken += reader._take_waiting()
    assert taken == events
    assert (reader._hello, reader._end) == (hello, end)
    assert reader._bad_lines_note() == []
    expected = PhaseTree()
    expected.apply(events)
    assert reader._tree.open_phases == expected.open_phases


def test_what_a_crash_is_explained_by() -> None:
    reader = Intake()
    assert reader._open_phase is None
    assert not reader._parsed
    reader._take_bytes(
        lines(
            NetworkReady(0.0, 3),
            PhaseStarted(1.0, "outer", None, 2),
            PhaseStarted(2.0, "inner", "outer", 2),
            LogMessage(3.0, "error", "what it said"),
        )
    )
    assert reader._parsed
    assert reader._open_phase == "outer > inner"
    assert list(reader._words) == [("error", "what it said")]
    reader._begin_stream()
    assert reader._open_phase is None
    assert not reader._take_waiting()


def test_lines_that_are_none() -> None:
    reader = Intake()
    reader._take_bytes(b"nonsense\n" * 1_000 + lines(LogMessage(1.0, "info", "sense")))
    assert len(reader._take_waiting()) == 1
    (note,) = reader._bad_lines_note()
    assert note.startswith("1000 lines")
    assert "nonsense" in note
    reader._take_bytes(lines(StreamStarted(0.0, "model", version=99)))
    assert reader._hello is not None
    assert "1001 lines" in reader._bad_lines_note()[0]


def test_a_line_without_an_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_LINE", 1_000)
    reader = Intake()
    for _ in range(100):
        reader._take_bytes(b"x" * 600)
    assert sum(map(len, reader._rest)) <= 1_200
    reader._take_bytes(b"\n" + lines(LogMessage(1.0, "info", "after it")))
    assert len(reader._take_waiting()) == 1
    assert reader._bad_count == 1


def test_it_says_when_enough_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_WAITING", 10)
    reader = Intake()
    reader._take_bytes(lines(*[LogMessage(1.0, "info", "one")] * 11))
    assert reader._is_full
    reader._take_waiting()
    assert not reader._is_full
    monkeypatch.setattr(intake, "MAX_WAITING_BYTES", 100)
    reader._take_bytes(lines(LogMessage(1.0, "info", "a" * 200)))
    assert reader._is_full


@pytest.mark.parametrize(
    ("status", "engine", "error", "sound"),
    [
        ("succeeded", b"engine", None, True),
        ("succeeded", None, None, False),
        ("succeeded", b"engine", BuildFailed("why"), False),
        ("cancelled", None, None, True),
        ("cancelled", b"engine", None, False),
        ("failed", None, BuildFailed("why"), True),
        ("failed", b"engine", BuildFailed("why"), True),
        ("failed", None, None, False),
        ("running", None, None, False),
    ],
)
def test_ends_that_contradict_themselves(
    status: str, engine: bytes | None, error: BuildFailed | None, *, sound: bool
) -> None:
    assert is_sound(status, engine, error) is sound
