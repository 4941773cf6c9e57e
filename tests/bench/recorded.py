"""What the recorded builds cost and how well they are estimated: folded, drawn, read as they ran.

Every file in ``tests/data/traces`` is measured, beside the trace of full TensorRT's MNIST build,
which has no times of its own and gets a millisecond between two callbacks. All of it runs in turns,
round by round; a ratio is that of one round.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from tests.bench.progress import clock_error, course, largest
from tests.bench.recorder import recording
from tests.bench.stats import Row, ranged, ratios
from tests.traces import Trace, mnist_events, timed, traces
from trt_widget import Build
from trt_widget.estimate import Estimator, phase_states
from trt_widget.icicle import Icicle
from trt_widget.phases import PhaseTree
from trt_widget.record import Record, make_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trt_widget.events import Event

MNIST = "MNIST by TensorRT 10.16"


def folded(events: Sequence[Event]) -> PhaseTree:
    """Fold events into a tree, as a reader does that sees each of them."""
    tree = PhaseTree()
    tree.apply(events)
    return tree


def record_of(events: Sequence[Event]) -> Record:
    """Make the record of a build that went so."""
    build = Build.attach(backend="tensorrt_rtx", name="recorded")
    build.tree = folded(events)
    build.tree.close("succeeded")
    build._status = "succeeded"
    return make_record(build)


def timeline(record: Record) -> object:
    """Make all that the live timeline shows of a build that has ended, and close it."""
    from trt_widget.widget.timeline import Timeline

    shown = Timeline(record)
    data = shown.data
    shown.close()
    return data


def read(trace: Trace) -> Callable[[], None]:
    """Give what reads progress and time left at every tick of a build, as the drain thread does."""
    record = recording(trace).record
    trees = []
    tree = PhaseTree()
    for now, events in trace.batches():
        tree.apply(events)
        trees.append((now, phase_states(tree)))

    def course() -> None:
        estimator = Estimator([record])
        for now, states in trees:
            estimator.update(now, states)

    return course


def took(action: Callable[[], object]) -> float:
    """Give seconds."""
    start = perf_counter()
    action()
    return perf_counter() - start


def costs(rounds: int) -> list[Row]:
    """Measure folding, recording, drawing of each build, beside those of MNIST."""
    events: dict[str, Sequence[Event]] = {MNIST: timed(mnist_events())}
    events |= {str(trace): trace.callbacks for trace in traces()}
    records = {name: record_of(some) for name, some in events.items()}
    actions: dict[str, Callable[[str], Callable[[], object]]] = {
        "fold": lambda name: lambda: folded(events[name]),
        "timeline": lambda name: lambda: timeline(records[name]),
        "picture": lambda name: lambda: Icicle(records[name]).svg(),
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(-1, rounds):
        names = list(events) if turn % 2 else list(events)[::-1]
        for name in names:
            for what, make in actions.items():
                spent = took(make(name))
                if turn >= 0:  # the first one warms up
                    seconds.setdefault((name, what), []).append(spent)
    rows = []
    for name, some in events.items():
        rates = [len(some) / spent for spent in seconds[name, "fold"]]
        mnist = [len(events[MNIST]) / spent for spent in seconds[MNIST, "fold"]]
        beside = f", x{ranged(ratios(rates, mnist))} of MNIST" if name != MNIST else ""
        phases = len(records[name].span_columns["path"])
        rows.append(
            Row(
                f"{name} ({len(some):,} callbacks, {phases:,} phases): folded, callbacks/s",
                f"{median(rates):,.0f}{beside}",
            )
        )
        for what, text in (("timeline", "timeline's data, ms"), ("picture", "picture in SVG, ms")):
            rows.append(Row(f"... {text}", ranged([1000 * one for one in seconds[name, what]])))
    return rows


def estimates(rounds: int) -> list[Row]:
    """Say how well each build is estimated by the others of its network, and what a look costs."""
    rows = []
    for trace in traces():
        before = [
            other
            for other in traces()
            if other is not trace
            and (other.info["network"], other.info["device"], other.info["package"])
            == (trace.info["network"], trace.info["device"], trace.info["package"])
        ]
        if not before:
            continue
        one = recording(trace)
        records = [recording(other).record for other in before]
        points = course(one, Estimator(records))
        ours = largest((truth, shown) for truth, shown, _ in points)
        naive = largest((truth, steps) for truth, _, steps in points)
        clock = clock_error(median(record.duration_s for record in records), trace.duration_s)
        look, many = read(trace), len(trace.batches())
        cost = [1e6 * took(look) / many for _ in range(rounds)]
        rows.append(
            Row(
                f"{trace}, {trace.duration_s:.1f} s, {trace.silent_share():.0%} silent: largest "
                f"difference of shown and true fraction, {len(before)} before",
                f"{ours:.3f} (clock alone {clock:.3f}, top bar {naive:.3f}), "
                f"{median(cost):.0f} us a look",
            )
        )
    return rows


def recorded(*, long: bool) -> list[Row]:
    """Measure what the recorded builds cost, and how they are estimated."""
    rounds = 50 if long else 15
    return costs(rounds) + estimates(rounds)


FIGURES = {"recorded": recorded}
