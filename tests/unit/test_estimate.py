"""Progress and time left: what always holds (hypothesis), and what is said of known courses."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.progress import Recording, clock_error
from tests.bench.recorder import recording
from tests.traces import Trace, mnist_events, timed, traces
from trt_widget.estimate import (
    MIN_NETWORKS,
    DurationModel,
    Estimator,
    PhaseState,
    Reading,
    phase_states,
)
from trt_widget.events import PhaseFinished, PhaseStarted
from trt_widget.forecast import Forecast
from trt_widget.history import BuildKey, BuildRecord, History, PhaseTimes, phase_times
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT, PARSE, SILENT = ("root",), ("root", "parse"), ("root", "silent")
# Ten seconds, of which TensorRT says nothing for eight.
COURSE = BuildRecord(
    10.0,
    {
        ROOT: PhaseTimes(0.5, 9.8, 9.3),
        PARSE: PhaseTimes(0.5, 1.5, 1.0),
        SILENT: PhaseTimes(1.5, 9.5, 8.0),
    },
    1.0,
)


def states_at(record: BuildRecord, now: float) -> dict[tuple[str, ...], PhaseState]:
    """Give what a build that goes like ``record`` shows at ``now``."""
    found = {}
    for path, times in record.phases.items():
        starts = [time for time in times.marks or (times.start_s,) if time <= now]
        if starts:
            ended = times.end_s <= now
            found[path] = PhaseState(
                len(starts), int(not ended), starts[-1], times.end_s if ended else None
            )
    return found


def slower(record: BuildRecord, factor: float) -> BuildRecord:
    phases = {
        path: PhaseTimes(
            times.start_s * factor,
            times.end_s * factor,
            times.total_s * factor,
            times.count,
            tuple(mark * factor for mark in times.marks),
        )
        for path, times in record.phases.items()
    }
    return BuildRecord(record.duration_s * factor, phases, record.finished_at)


def readings(estimator: Estimator, truth: BuildRecord, tick: float = 0.1) -> list[Reading]:
    many = int(truth.duration_s / tick)
    return [estimator.update(n * tick, states_at(truth, n * tick)) for n in range(many + 1)]


def worst(said: list[Reading], truth: BuildRecord, tick: float = 0.1) -> float:
    """Give the largest difference between the shown and the true fraction of the time."""
    shown = [reading.progress for reading in said]
    return max(abs((value or 0.0) - n * tick / truth.duration_s) for n, value in enumerate(shown))


# ---- what always holds --------------------------------------------------------------------------

any_float = st.floats(allow_nan=True, allow_infinity=True)
seconds = st.one_of(st.floats(0.0, 1e4), any_float)
counts = st.integers(-2, 2**63)
paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple)
times_ = st.builds(
    PhaseTimes, seconds, seconds, seconds, counts, st.lists(seconds, max_size=4).map(tuple)
)
records = st.builds(BuildRecord, seconds, st.dictionaries(paths, times_, max_size=5), any_float)
state = st.builds(PhaseState, counts, counts, seconds, st.none() | seconds)
courses = st.lists(st.tuples(seconds, st.dictionaries(paths, state, max_size=5)), max_size=12)
sizes = st.dictionaries(st.sampled_from(["layers", "parameters", "operators"]), any_float)


def check_course(
    estimator: Estimator, course: list[tuple[float, dict[tuple[str, ...], PhaseState]]]
) -> None:
    last = 0.0
    for elapsed, phases in course:
        reading = estimator.update(elapsed, phases)
        if reading.progress is not None:
            assert last <= reading.progress < 1.0
            last = reading.progress
        if reading.eta_s is not None:
            assert math.isfinite(reading.eta_s)
            assert reading.eta_s > 0.0
        if estimator.duration_s is None:
            assert reading == Reading()


@settings(deadline=None)
@given(st.lists(records, max_size=6), courses)
def test_it_is_monotone_bounded_and_finite_whatever_comes(
    known: list[BuildRecord],
    course: list[tuple[float, dict[tuple[str, ...], PhaseState]]],
) -> None:
    check_course(Estimator(known), course)


@settings(deadline=None)
@given(st.lists(st.tuples(sizes, records), min_size=4, max_size=8), sizes, courses)
def test_so_it_is_for_a_new_network(
    known: list[tuple[dict[str, float], BuildRecord]],
    size: dict[str, float],
    course: list[tuple[float, dict[tuple[str, ...], PhaseState]]],
) -> None:
    builds = [
        (BuildKey(str(number), "p", "1", size=of), record)
        for number, (of, record) in enumerate(known)
    ]
    check_course(Estimator.for_new_network(DurationModel(builds), size), course)


@settings(deadline=None)
@given(st.lists(st.tuples(sizes, seconds), max_size=12), sizes)
def test_a_model_gives_a_sensible_number_or_none(
    known: list[tuple[dict[str, float], float]], size: dict[str, float]
) -> None:
    builds = [
        (BuildKey(str(number), "p", "1", size=of), BuildRecord(duration, {}, 0.0))
        for number, (of, duration) in enumerate(known)
    ]
    predicted = DurationModel(builds).predict(size)
    if predicted is not None:
        assert math.isfinite(predicted.duration_s)
        assert predicted.duration_s >= 0.0
        assert predicted.factor > 1.0


@given(st.floats(0.3, 3.0), st.floats(0.05, 1.0))
def test_it_moves_at_every_tick_and_stands_nowhere(factor: float, tick: float) -> None:
    truth = slower(COURSE, factor)
    shown = [reading.progress or 0.0 for reading in readings(Estimator([COURSE]), truth, tick)]
    # One tick in which an anchor corrects it downwards may show the same twice.
    still = [a == b for a, b in itertools.pairwise(shown)]
    assert sum(still) <= len(COURSE.phases) * 2


# ---- the same network again ---------------------------------------------------------------------


def test_nothing_is_invented_without_a_history() -> None:
    estimator = Estimator()
    assert estimator.duration_s is None
    assert readings(estimator, COURSE) == [Reading()] * 101


def test_a_build_that_goes_as_before_is_shown_as_it_is() -> None:
    said = readings(Estimator([COURSE]), COURSE)
    assert worst(said, COURSE) < 0.06
    assert not any(reading.exceeded for reading in said)
    assert said[0].progress == 0.0
    assert said[0].eta_s == pytest.approx(10.0)
    assert said[50].eta_s == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_slower_or_faster_machine_is_noticed_at_the_anchors(factor: float) -> None:
    steady = BuildRecord(10.0, {("p", str(n)): PhaseTimes(n, n + 1.0, 1.0) for n in range(10)}, 1.0)
    truth = slower(steady, factor)
    said = readings(Estimator([steady]), truth, 0.05)
    half = said[len(said) // 2]
    # Where it was ahead before it knew, it stays so for a while: it never goes back.
    assert half.progress == pytest.approx(0.5, abs=0.1)
    assert half.eta_s == pytest.approx(truth.duration_s / 2, rel=0.25)
    assert worst(said, truth, 0.05) < 0.15


def test_an_estimate_that_is_exceeded_is_called_so_and_slows_visibly() -> None:
    longer = BuildRecord(30.0, {**COURSE.phases, SILENT: PhaseTimes(1.5, 29.5, 28.0)}, 1.0)
    longer = replace(longer, phases={**longer.phases, ROOT: PhaseTimes(0.5, 29.8, 29.3)})
    said = readings(Estimator([COURSE]), longer)
    assert not said[95].exceeded
    assert said[150].exceeded
    assert said[150].eta_s is None
    shown = [reading.progress or 0.0 for reading in said]
    assert shown[80] - shown[70] > 0.08  # in time
    assert 0.0 < shown[210] - shown[200] < 0.01  # slowly, and still moving
    assert 0.9 < shown[150] < shown[280] < 0.99


def test_the_median_counts_so_that_one_odd_build_does_not_spoil_it() -> None:
    known = [COURSE, slower(COURSE, 1.02), slower(COURSE, 9.0), slower(COURSE, 0.98), COURSE]
    assert Estimator(known).duration_s == 10.0
    assert worst(readings(Estimator(known), COURSE), COURSE) < 0.06


def test_only_the_newest_builds_count() -> None:
    known = [COURSE] * 5 + [slower(COURSE, 3.0)] * 15
    assert Estimator(known).duration_s == 10.0


def test_a_phase_that_opens_a_thousand_times_is_followed() -> None:
    marks = tuple(1.0 + n for n in range(9))
    tactics = BuildRecord(10.0, {("t",): PhaseTimes(1.0, 9.5, 8.0, 801, marks)}, 1.0)
    # Twice as slow: after 9 s, 401 of 801 instances.
    estimator = Estimator([tactics])
    for n in range(91):
        now = n * 0.1
        count = max(0, int((now - 1.0) * 50)) + 1
        said = estimator.update(now, {("t",): PhaseState(count, 1, now)} if now >= 1 else {})
    assert said.progress == pytest.approx(0.5, abs=0.1)
    assert said.eta_s == pytest.approx(9.0, rel=0.25)


def test_the_states_come_from_the_tree() -> None:
    tree = PhaseTree()
    tree.apply(
        [
            PhaseStarted(1.0, "root", None, 2),
            PhaseStarted(2.0, "leaf", "root", 2),
            PhaseFinished(3.0, "leaf"),
        ]
    )
    assert phase_states(tree) == {
        ("root",): PhaseState(1, 1, 1.0),
        ("root", "leaf"): PhaseState(1, 0, 2.0, 3.0),
    }


def test_strange_times_change_nothing() -> None:
    estimator = Estimator([COURSE])
    before = estimator.update(5.0, states_at(COURSE, 5.0))
    assert estimator.update(math.nan, {}) == before
    assert estimator.update(math.inf, {}) == before
    assert estimator.update(-1.0, {}).progress == before.progress


# ---- real builds --------------------------------------------------------------------------------

# Recorded with TensorRT for RTX 1.7 on a CPU that others used, too: builds of the same network
# differ by a tenth (resnet50) to a half (inception_v2). Duration, then start and end of each phase.
ENGINE = ("Building engine",)
SUBGRAPH = (*ENGINE, "Building engine from subgraph")
COSTS = (*SUBGRAPH, "Computing profile costs")
REAL_PATHS = (
    ENGINE,
    (*ENGINE, "Cloning network graph"),
    (*ENGINE, "Preparing graph for optimization"),
    SUBGRAPH,
    (*SUBGRAPH, "Optimizing graph"),
    COSTS,
    (*COSTS, "Timing tactics"),
    (*COSTS, "Determining refit engines"),
)
REAL = {
    "resnet50": (
        (
            1.828,
            (0.183, 1.772),
            (0.183, 0.197),
            (0.207, 0.236),
            (0.236, 1.771),
            (0.236, 0.259),
            (0.259, 1.771),
            (0.266, 0.266),
            (0.267, 1.669),
        ),
        (
            2.168,
            (0.317, 2.117),
            (0.317, 0.350),
            (0.357, 0.389),
            (0.389, 2.116),
            (0.389, 0.420),
            (0.420, 2.116),
            (0.427, 0.427),
            (0.428, 2.031),
        ),
        (
            1.906,
            (0.258, 1.862),
            (0.258, 0.268),
            (0.274, 0.296),
            (0.296, 1.860),
            (0.296, 0.315),
            (0.315, 1.859),
            (0.329, 0.329),
            (0.330, 1.733),
        ),
        (
            2.251,
            (0.341, 2.179),
            (0.341, 0.353),
            (0.374, 0.414),
            (0.414, 2.178),
            (0.414, 0.447),
            (0.447, 2.178),
            (0.464, 0.464),
            (0.465, 2.101),
        ),
    ),
    "inception_v2": (
        (
            6.119,
            (0.365, 6.063),
            (0.365, 0.389),
            (0.406, 0.486),
            (0.486, 6.061),
            (0.486, 0.575),
            (0.575, 6.061),
            (0.629, 0.629),
            (0.635, 5.904),
        ),
        (
            4.105,
            (0.422, 4.041),
            (0.422, 0.442),
            (0.454, 0.491),
            (0.491, 4.039),
            (0.491, 0.521),
            (0.521, 4.039),
            (0.536, 0.536),
            (0.539, 3.899),
        ),
        (
            7.444,
            (0.476, 7.377),
            (0.476, 0.521),
            (0.547, 0.626),
            (0.626, 7.374),
            (0.626, 0.710),
            (0.710, 7.374),
            (0.734, 0.734),
            (0.736, 7.124),
        ),
        (
            4.693,
            (0.270, 4.631),
            (0.270, 0.303),
            (0.320, 0.373),
            (0.373, 4.623),
            (0.373, 0.423),
            (0.423, 4.623),
            (0.446, 0.447),
            (0.448, 4.429),
        ),
    ),
}


def real(name: str) -> list[BuildRecord]:
    """Give the builds of one network, the oldest first."""
    return [
        BuildRecord(
            duration,
            {
                path: PhaseTimes(start, end, end - start)
                for path, (start, end) in zip(REAL_PATHS, spans, strict=True)
            },
            float(number),
        )
        for number, (duration, *spans) in enumerate(REAL[name])
    ]


@pytest.mark.parametrize(("name", "bound"), [("resnet50", 0.12), ("inception_v2", 0.30)])
def test_real_builds_are_shown_as_well_as_they_are_alike(name: str, bound: float) -> None:
    builds = real(name)
    for number in range(1, len(builds)):
        truth = builds[number]
        said = readings(Estimator(builds[:number][::-1]), truth)
        assert worst(said, truth) < bound
        assert (said[-1].progress or 0.0) > 0.7


@pytest.mark.parametrize(
    ("warp", "bound"),
    [
        (lambda time: time, 0.02),
        (lambda time: 2.0 * time, 0.16),
        (lambda time: 0.5 * time, 0.16),
        (lambda time: time + max(0.0, time - 30.0), 0.25),
    ],
    ids=["as before", "slower", "faster", "slower in the end"],
)
def test_a_build_of_full_tensorrt_is_followed_by_its_thousand_phases(
    warp: Callable[[float], float], bound: float
) -> None:
    """The order is that of a real build on a GPU; the times are made: the log held none."""
    usual = timed(mnist_events(), 0.01)
    events = [type(event)(**{**vars(event), "time": warp(event.time)}) for event in usual]
    before, tree = PhaseTree(), PhaseTree()
    before.apply(usual)
    before.close("succeeded")
    estimator = Estimator([BuildRecord(before.now, phase_times(before), 1.0)])
    end = events[-1].time
    place, differences = 0, []
    for tick in range(int(end / 0.1)):
        first = place
        while events[place].time <= tick * 0.1:
            place += 1
        tree.apply(events[first:place])
        said = estimator.update(tick * 0.1, phase_states(tree))
        assert said.progress is not None
        differences.append(abs(said.progress - tick * 0.1 / end))
    assert max(differences) < bound


# ---- recorded builds with times -----------------------------------------------------------------


def same_network(trace: Trace) -> list[Trace]:
    """Give the other builds of the network, on the same kind of machine."""
    names = ("network", "device", "package")
    return [
        other
        for other in traces()
        if other is not trace and all(other.info[name] == trace.info[name] for name in names)
    ]


def said_of(one: Recording, estimator: Estimator) -> list[tuple[float, Reading]]:
    return [(now, estimator.update(now, phase_states(tree))) for now, tree in one.ticks()]


def unlike(one: BuildRecord, other: BuildRecord) -> float:
    """Give how differently two builds go: of all phases, by the share of the time before them."""
    return max(
        abs(mine / one.duration_s - its / other.duration_s)
        for path in one.phases
        for mine, its in (
            (one.phases[path].start_s, other.phases[path].start_s),
            (one.phases[path].end_s, other.phases[path].end_s),
        )
    )


PAIRS = [(trace, other) for trace in traces() for other in same_network(trace)]
pairs = pytest.mark.parametrize(
    ("truth", "before"), PAIRS, ids=[f"{truth} after {before}" for truth, before in PAIRS]
)


@pairs
def test_a_recorded_build_is_estimated_by_another_as_well_as_they_are_alike(
    truth: Trace, before: Trace
) -> None:
    earlier, one = recording(before).record, recording(truth)
    said = said_of(one, Estimator([earlier]))
    # A clock that runs against the earlier build errs so much, and TensorRT is silent most of the
    # time; what breaks the silence comes earlier or later in one build than in the other.
    bound = clock_error(earlier.duration_s, truth.duration_s) + unlike(earlier, one.record) + 0.10
    assert bound < 1.0
    for part in (0.25, 0.5, 0.75):
        now, reading = next(entry for entry in said if entry[0] >= part * truth.duration_s)
        assert reading.progress is not None
        assert abs(reading.progress - now / truth.duration_s) <= bound
        if not reading.exceeded:
            assert reading.eta_s is not None
            longer = max(truth.duration_s, earlier.duration_s)
            assert abs(reading.eta_s - (truth.duration_s - now)) / longer <= bound


@pairs
def test_what_is_said_of_a_recorded_build_never_goes_back(truth: Trace, before: Trace) -> None:
    said = said_of(recording(truth), Estimator([recording(before).record]))
    shown = [reading.progress for _, reading in said if reading.progress is not None]
    assert len(shown) == len(said) > 5
    assert shown == sorted(shown)
    assert shown[0] >= 0.0
    assert shown[-1] < 1.0  # that is for success alone
    for _, reading in said:
        assert (reading.eta_s is None) == reading.exceeded
        assert reading.eta_s is None or (math.isfinite(reading.eta_s) and reading.eta_s >= 0.0)


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_a_recorded_build_is_shown_exactly_by_itself(trace: Trace) -> None:
    one = recording(trace)
    for now, reading in said_of(one, Estimator([one.record] * 3)):
        assert reading.progress == pytest.approx(now / trace.duration_s, abs=0.05)


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_of_a_recorded_build_nothing_is_said_without_experience(
    trace: Trace, tmp_path: Path
) -> None:
    one = recording(trace)
    assert {reading for _, reading in said_of(one, Estimator())} == {Reading()}
    # The same by the file of a user, who builds it again.
    history = History(tmp_path / "history.sqlite3")
    key = BuildKey(trace.ready.network, one.package, one.version, size=trace.ready.size)
    first = Forecast(key, history)
    assert first.expected_s is None
    assert first.basis is None
    for now, tree in one.ticks():
        assert first.read(now, tree) == Reading()
    assert first.keep(tree, trace.duration_s)
    again = Forecast(key, history)
    assert again.expected_s == pytest.approx(trace.duration_s)
    assert again.basis == "from 1 earlier build of this network"
    shown = [again.read(now, tree).progress for now, tree in one.ticks()]
    assert None not in shown
    assert shown == sorted(shown)  # type: ignore[type-var]  # none is None


# ---- a new network ------------------------------------------------------------------------------


def network(number: int, layers: float, duration: float) -> tuple[BuildKey, BuildRecord]:
    size = {"layers": layers, "operators": layers / 2, "parameters": 1e4 * layers}
    key = BuildKey(f"network {number}", "tensorrt_rtx", "1.7", size=size)
    phases = slower(COURSE, duration / 10.0).phases
    return key, BuildRecord(duration, phases, float(number))


def family(noise: float = 0.0, many: int = 12) -> list[tuple[BuildKey, BuildRecord]]:
    """Give networks whose time grows with the power 1.4 of the layers."""
    dice = random.Random(1)  # noqa: S311 - not a secret
    found = []
    for number in range(many):
        layers = 100.0 * 1.5**number
        found.append(
            network(number, layers, (layers / 1000) ** 1.4 * math.exp(dice.gauss(0.0, noise)))
        )
    return found


def test_too_few_networks_give_no_prediction() -> None:
    few = family(many=MIN_NETWORKS - 1)
    assert DurationModel(few).predict(few[0][0].size) is None
    # The same network many times is one network.
    assert DurationModel([few[0]] * 50).predict(few[0][0].size) is None
    assert DurationModel(family()).predict({}) is None
    assert DurationModel(family()).predict({"colour": 3.0}) is None


def test_time_that_grows_faster_than_the_layers_is_predicted() -> None:
    model = DurationModel(family(noise=0.05))
    predicted = model.predict({"layers": 3000.0, "operators": 1500.0, "parameters": 3e7})
    assert predicted is not None
    assert predicted.duration_s == pytest.approx(3.0**1.4, rel=0.2)
    assert predicted.factor < 1.3


def test_what_only_some_know_is_not_used() -> None:
    model = DurationModel(family())
    predicted = model.predict({"layers": 3000.0, "colour": 7.0})
    assert predicted is not None
    assert predicted.duration_s == pytest.approx(3.0**1.4, rel=0.2)


def test_it_is_less_sure_where_nothing_is_known_and_where_it_scatters() -> None:
    near = {"layers": 1000.0, "operators": 500.0, "parameters": 1e7}
    far = {name: 1e4 * value for name, value in near.items()}
    calm, noisy = DurationModel(family(0.1)), DurationModel(family(0.6))
    predictions = [calm.predict(near), calm.predict(far), noisy.predict(near)]
    factors = [prediction.factor for prediction in predictions if prediction is not None]
    assert len(factors) == 3
    assert factors[0] < factors[1]
    assert factors[0] < factors[2]


def test_one_outlier_does_not_spoil_the_model() -> None:
    builds = family(noise=0.02)
    builds[5] = (builds[5][0], slower(builds[5][1], 50.0))
    predicted = DurationModel(builds).predict(
        {"layers": 3000.0, "operators": 1500.0, "parameters": 3e7}
    )
    assert predicted is not None
    assert predicted.duration_s == pytest.approx(3.0**1.4, rel=0.5)


def test_constants_cost_no_time() -> None:
    """Two exporters write the same networks with few and with many constants."""
    builds = []
    for number, (key, record) in enumerate(family(noise=0.05)):
        computing = key.size["layers"]
        size = {**key.size, "computing": computing, "layers": computing * (1 + 3 * (number % 2))}
        builds.append((replace(key, size=size), record))
    sizes_of_one = {"operators": 1500.0, "parameters": 3e7, "computing": 3000.0}
    for layers in (3000.0, 12000.0):
        predicted = DurationModel(builds).predict({**sizes_of_one, "layers": layers})
        assert predicted is not None
        assert predicted.duration_s == pytest.approx(3.0**1.4, rel=0.25)


def test_the_clock_alone_runs_against_a_prediction() -> None:
    model = DurationModel(family(noise=0.1))
    (key, usual) = network(0, 3000.0, 3.0**1.4)
    for factor in (0.8, 1.25):
        truth = slower(usual, factor)
        said = readings(Estimator.for_new_network(model, key.size), truth)
        start, half = said[0].eta_s, said[len(said) // 2].eta_s
        assert start is not None
        assert half is not None
        assert start == pytest.approx(usual.duration_s, rel=0.25)
        assert half == pytest.approx(start - truth.duration_s / 2, rel=0.35)
        assert all(reading.progress for reading in said[1:])


def test_what_is_not_sure_is_not_said() -> None:
    noisy = DurationModel(family(noise=3.0))
    for model in (noisy, DurationModel(family(many=2))):
        estimator = Estimator.for_new_network(model, family()[5][0].size)
        assert set(readings(estimator, COURSE)) == {Reading()}
