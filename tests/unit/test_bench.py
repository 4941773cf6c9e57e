"""The arithmetic and the command line of tests/bench; nothing is measured here."""

from __future__ import annotations

from statistics import fmean

import pytest

from tests.bench import executors, figures, progress, timeline
from tests.bench.__main__ import NAMES, header, parse
from tests.bench.builds import FLOOD_ROOT, flood_events
from tests.bench.inside import calls, last_state, part_of_trace, steps
from tests.bench.stats import Row, busiest, differences, interval, ratios, spread, table
from tests.traces import mnist_events


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).long is False
    assert parse([]).only is None
    options = parse(["--long", "--only", "click", "--only", "import"])
    assert options.long is True
    assert options.only == ["click", "import"]
    with pytest.raises(SystemExit):
        parse(["--only", "nothing"])
    assert "click" in capsys.readouterr().err
    assert sorted(NAMES) == sorted(
        [*figures.FIGURES, *executors.FIGURES, *progress.FIGURES, *timeline.FIGURES]
    )
    assert "Python" in header()


def test_the_interval_of_a_median() -> None:
    assert interval([5.0]) == (5.0, 5.0)
    low, high = interval([float(value) for value in range(101)])
    assert 30 < low < 50 < high < 70
    assert interval([1.0, 2.0, 3.0]) == interval([1.0, 2.0, 3.0])
    # One outlier moves a mean and not a median.
    values = [1.0] * 50 + [100.0]
    assert interval(values) == (1.0, 1.0)
    assert interval(values, fmean)[1] > 2.0
    wide, narrow = interval(range(101), fmean), interval(range(101), fmean, confidence=0.5)
    assert wide[0] < narrow[0] < 50 < narrow[1] < wide[1]
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_the_busiest_second() -> None:
    assert busiest([]) == 0
    assert busiest([3.0]) == 1
    assert busiest([0.0, 0.5, 0.9, 1.0, 1.1]) == 4  # 0.5 to 1.5; a window's end is not in it
    assert busiest([0.0, 1.0, 2.0]) == 1
    assert busiest([0.0, 0.5, 2.0], [1.0, 2.0, 10.0]) == 10
    assert busiest([0.0, 0.1, 0.2, 5.0], window=0.15) == 2


def test_pairs() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert differences([2.0, 9.0], [1.0, 3.0]) == [1.0, 6.0]
    assert spread([2.0, 2.0]) == "2.00 [2.00, 2.00]"
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [])


def test_the_table() -> None:
    rows = [Row("a", "1", "< 2", met=True), Row("long name", "3", "< 2", met=False), Row("c", "4")]
    assert table(rows).splitlines() == [
        "| figure    | measured | target | met    |",
        "|-----------|----------|--------|--------|",
        "| a         | 1        | < 2    | yes    |",
        "| long name | 3        | < 2    | MISSED |",
        "| c         | 4        |        |        |",
    ]


def test_what_is_emitted() -> None:
    whole = len(mnist_events())
    assert len(part_of_trace(whole)) == whole
    cut = part_of_trace(whole + 1000)
    starts = sum(event.kind == "phase_start" for event in cut)
    finishes = sum(event.kind == "phase_finish" for event in cut)
    assert starts == finishes
    assert sum(count for count, _, _ in last_state(mnist_events()).values()) == 1164
    assert last_state(steps(5)) == {"root": [1, 0, 1], "root > long phase": [1, 5, 5]}


def test_the_calls_are_those_of_tensorrt() -> None:
    seen: list[tuple[object, ...]] = []

    class Monitor:
        def phase_start(self, *arguments: object) -> None:
            seen.append(arguments)

        step_complete = phase_finish = phase_start

    for method, arguments in calls(Monitor(), steps(1)):
        method(*arguments)
    assert seen == [
        ("root", None, 1),
        ("long phase", "root", 1),
        ("long phase", 0),
        ("long phase",),
        ("root",),
    ]


def test_what_floods_a_build_process() -> None:
    replayed = last_state(flood_events(len(mnist_events())))
    recorded = last_state(mnist_events())
    root = "Building engine"
    assert replayed == {FLOOD_ROOT + path[len(root) :]: state for path, state in recorded.items()}
