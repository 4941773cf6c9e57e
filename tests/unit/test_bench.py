"""The arithmetic and the command line of tests/bench; nothing is measured here."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import pytest

from tests.bench import (
    executors,
    figures,
    fleet,
    overview,
    progress,
    queues,
    surfaces,
    surfaces_cost,
    surfaces_http,
    timeline,
)
from tests.bench.__main__ import NAMES, header, parse
from tests.bench.builds import FLOOD_ROOT, flood_events
from tests.bench.inside import calls, last_state, part_of_trace, steps
from tests.bench.networks import FAMILIES
from tests.bench.stats import Row, busiest, differences, interval, ratios, spread, table
from tests.traces import mnist_events, timed
from trt_widget.estimate import Estimator
from trt_widget.events import to_json

if TYPE_CHECKING:
    from pathlib import Path


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
        [
            *figures.FIGURES,
            *executors.FIGURES,
            *progress.FIGURES,
            *timeline.FIGURES,
            *surfaces.FIGURES,
            *queues.FIGURES,
            *overview.FIGURES,
            *fleet.FIGURES,
            *surfaces_cost.FIGURES,
            *surfaces_http.FIGURES,
        ]
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


# ------------------------------------------------------------------ progress


def recording(duration: float, number: int = 0, network: str = "gpt:1") -> progress.Recording:
    """Make a build of two phases, of which the second is silent."""
    start = {"event": "phase_start", "parent": None, "num_steps": 4, "thread": 1}
    inner = {**start, "parent": "root", "num_steps": 1}
    step = {"event": "step_complete", "phase": "root", "thread": 1}
    early, late = 0.2 * duration, 0.9 * duration
    batches: list[tuple[float, list[dict[str, Any]]]] = [
        (0.05, [{**start, "time": 0.05, "phase": "root"}]),
        (early, [{**inner, "time": early, "phase": "silent"}, {**step, "time": early, "step": 2}]),
        (late, [{"event": "phase_finish", "time": late, "phase": "silent", "thread": 1}]),
    ]
    return progress.Recording(
        network, {"layers": 100.0}, duration, batches, machine="here", finished_at=float(number)
    )


def test_recordings_come_back(tmp_path: Path) -> None:
    made = [recording(3.0, 2), recording(2.0, 1, "mlp:3")]
    progress.save(tmp_path / "some.jsonl.gz", made)
    found = progress.load(tmp_path / "some.jsonl.gz")
    assert [one.network for one in found] == ["mlp:3", "gpt:1"]
    assert found[1].record == made[0].record
    assert found[1].key == made[0].key
    assert list(progress.repeated(found)) == []
    assert "RTX" not in progress.label(found)
    assert "tensorrt_rtx on a CPU: here; 2 builds of 2 networks, 1970-01-01" in progress.label(
        found
    )


def test_the_ticks_are_those_of_the_product() -> None:
    one = recording(3.0)
    moments = [now for now, _ in one.ticks()]
    assert max(later - earlier for earlier, later in pairwise([0.0, *moments, 3.0])) < 0.11
    assert {now for now, _ in one.batches} <= set(moments)
    assert moments == sorted(moments)
    assert moments[-1] < 3.0
    assert [tree.paths for _, tree in one.ticks()][-1] == 2


def test_what_is_shown_is_held_against_the_truth() -> None:
    before = [recording(3.0, number) for number in range(3)]
    points = progress.course(recording(3.0), Estimator([one.record for one in before]))
    assert points[-1][0] == 1.0
    assert progress.largest((truth, shown) for truth, shown, _ in points) < 0.06
    # The top bar stands at 3 of 4 from a fifth of the time on.
    assert progress.largest((truth, steps) for truth, _, steps in points) == pytest.approx(0.55)
    # Nothing is shown without a history.
    points = progress.course(recording(3.0), Estimator())
    assert progress.largest((truth, shown) for truth, shown, _ in points) == 1.0
    many = [recording(duration, n) for n, duration in enumerate((3.0, 3.0, 3.0, 6.0))]
    errors = progress.differences(many)
    assert [ours < 0.06 for ours, _ in errors] == [True, True, False]
    assert len(progress.repeated_rows(many)) == 7


def test_bounds_and_scatter() -> None:
    assert progress.clock_error(2.0, 4.0) == progress.clock_error(4.0, 2.0) == 0.5
    assert progress.bound([2.0, 4.0, 4.0]) == [0.5, 0.0, 0.0]
    assert progress.scatter([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert progress.quartiles([1.0, 2.0, 3.0]) == "2.000 (1.500 to 2.500)"
    assert progress.quartiles([4.0]) == "4.000 (4.000 to 4.000)"


def test_a_new_network_is_predicted_from_all_others() -> None:
    made = []
    for number in range(9):
        layers = 100.0 * 1.5**number
        one = recording(layers / 30, number, f"{'gpt' if number % 2 else 'mlp'}:{number}")
        made.append(
            progress.Recording(**{**vars(one), "size": {"layers": layers}, "machine": "here"})
        )
    found = progress.left_out(made)
    assert set(found) == {one.network for one in made}
    assert all(factor < 1.6 for factors in found.values() for factor in factors)
    assert set(progress.left_out(made, lambda name: name == "gpt:3")) == {"gpt:3"}
    # Only four or five others are left: too few in half of the cases.
    alone = progress.left_out(made, whole_family=True)
    assert all(math.isinf(alone[name][0]) == name.startswith("mlp") for name in alone)


def test_traces_of_full_tensorrt_go_through_the_same_code() -> None:
    """The order is that of a real build on a GPU; the times are made: the log held none."""
    events = timed(mnist_events(), 0.001)
    batches = [
        (first / 1000 + 0.1, [json.loads(to_json(event)) for event in events[first : first + 100]])
        for first in range(0, len(events), 100)
    ]
    made = [
        progress.Recording("mnist", {}, len(events) / 1000 + 0.2, batches, "tensorrt", "10.16")
        for _ in range(4)
    ]
    rows = progress.repeated_rows(made)
    assert float(rows[0].measured.split()[0]) < 0.03


def test_the_recorded_builds_are_estimated_as_well_as_the_documentation_says() -> None:
    machines = progress.machines(progress.load(progress.DATA))
    assert len(machines) == 2
    *_, alone = machines.values()
    values = [
        ours for many in progress.repeated(alone).values() for ours, _ in progress.differences(many)
    ]
    assert len(values) == 60
    assert median(values) < 0.09
    networks = max(machines.values(), key=len)
    chosen = sorted({one.network for one in networks})[::8]
    found = progress.left_out(networks, chosen.__contains__)
    assert len(found) >= 10
    for place in range(3):
        assert median(factors[place] for factors in found.values()) < 1.6


def test_what_is_built_was_recorded() -> None:
    recorded = {one.network for one in progress.load(progress.DATA)}
    builds = progress.plan(progress.REPEATS, [])
    assert {name for name, _ in builds} <= recorded
    assert all(builds.count((name, None)) == progress.REPEATS for name in progress.REPEATED)
    assert set(progress.SIZES) == set(FAMILIES)
