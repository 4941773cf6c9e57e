"""How far a build is and how long it will still take, from the builds before it.

Pure: no clock, no input or output; times come in.

*The same network again.* Each moment at which a phase started or ended in the earlier builds is an
anchor. The furthest one that this build has passed says where it is; how early or late it came says
how much slower or faster this build is; what remains follows from both. TensorRT is silent for most
of the time, so between two anchors only the clock runs: what is left of such a stretch is the
median of what it still takes, given that it is not over yet. So the time left shrinks ever more
slowly when a stretch takes longer than before, and never is zero.

*A new network.* The time it will take is fitted to the other networks that were built here: the
logarithm of the time to those of the sizes. Then only the clock runs. (The first phases of a build
were tried as signs of how long it will take. In 44 networks they made the time left worse.)

*No history.* None: no percentage is invented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trt_widget.history import BuildKey, BuildRecord
    from trt_widget.phases import PhaseTree

__all__ = [
    "DurationModel",
    "Estimator",
    "PhaseState",
    "Prediction",
    "Reading",
    "phase_states",
]

#: Networks that a model needs at least.
MIN_NETWORKS: Final = 5
#: Networks that a model takes in, the newest.
MAX_NETWORKS: Final = 100
#: A prediction that is not sure within this factor is none.
MAX_FACTOR: Final = 4.0

# Only the newest builds of a network count: machines and drivers change.
_NEWEST: Final = 8
# Builds of the same network scatter at least so much (standard deviation of the logarithm).
_LEAST_SCATTER: Final = 0.05
# With one earlier build nothing is known about the scatter.
_UNKNOWN_SCATTER: Final = 0.10
# How much of the scatter the end of a stretch is shown with, and the most of it: to slow down as
# early as the whole of it asks for makes most builds look further from their end than they are.
_SHOWN: Final = 0.4
_MOST_SHOWN: Final = 0.15
# How much of a build has to pass before its own speed counts as much as that of the earlier ones.
_PATIENCE: Final = 0.20
# What is left of a stretch that takes longer than ever, as a share of what it was to take.
_TAIL: Final = 0.05
# How much slower what is shown moves while it is ahead: 1 reaches the end together with the truth.
_BRAKE: Final = 3.0
# So late, as a share of the whole build and in seconds, and the estimate counts as exceeded.
_LATE: Final = 0.10
_LATE_S: Final = 0.25
_MAX_SCALE: Final = 8.0
# Largest number of standard deviations that the conditional median is computed for.
_FAR: Final = 5.0
# Other durations are no builds but mistakes.
_SHORTEST_S: Final = 1e-4
_LONGEST_S: Final = 1e8
_MOST: Final = 1.0 - 1e-9
# What the time of a build is taken to be proportional to until data says otherwise. Constants are
# layers of TensorRT, too; exporters make more or fewer of them, and they cost hardly any time.
_PROPORTIONAL: Final = ("computing", "layers")
# Says nothing beside those, and misleads where all other networks are of other kinds.
_NOT_BESIDE: Final = "operators"
_RIDGES: Final = (1.0, 3.0, 10.0, 30.0, 100.0)
_ROUNDS: Final = 5
_SURE: Final = 0.75
# A column that varies less says nothing.
_FLAT: Final = 1e-9
_HUBER: Final = 1.345
_NORMAL: Final = NormalDist()

_Path = tuple[str, ...]
# A path and the number of its instance that starts; -1: all its instances have ended.
_Moment = tuple[_Path, int]
_END: Final = -1


@dataclass(frozen=True)
class PhaseState:
    """The instances of one path so far.

    Attributes
    ----------
    count, open_count
        Number of instances, and of those that are open.
    started_s
        Start of the latest instance, in seconds since the build began.
    ended_s
        End of the latest finished instance, or None.
    """

    count: int
    open_count: int
    started_s: float
    ended_s: float | None = None


class Reading(NamedTuple):
    """What can be said at one moment.

    Attributes
    ----------
    progress
        0 to 1, or None while nothing honest can be said.
    eta_s
        Seconds left, or None.
    exceeded
        Whether the build takes clearly longer than was estimated.
    factor
        The time left is sure within about this factor (two times of three), or None.
    """

    progress: float | None = None
    eta_s: float | None = None
    exceeded: bool = False
    factor: float | None = None


class Prediction(NamedTuple):
    """How long the build of a network will take.

    Attributes
    ----------
    duration_s
        Seconds.
    factor
        How sure that is: in two cases of three the truth is within this factor.
    """

    duration_s: float
    factor: float


class _Anchor(NamedTuple):
    time: float
    weight: float  # of the speed that can be read at it, 0 to 1


def phase_states(tree: PhaseTree) -> dict[_Path, PhaseState]:
    """Give the state of all paths, as :meth:`Estimator.update` takes it."""
    return {
        node.path: PhaseState(node.count, node.open_count, node.started, node.ended)
        for node in tree.walk()
    }


class Estimator:
    """Progress and time left of one build.

    Parameters
    ----------
    records
        Earlier builds of the same key, the newest first.

    Attributes
    ----------
    duration_s
        What the build was estimated to take before it began, or None.
    """

    def __init__(self, records: Iterable[BuildRecord] = ()) -> None:
        usable = [record for record in records if _sensible(record.duration_s)][:_NEWEST]
        self.duration_s: float | None = None
        self._scatter = _LEAST_SCATTER
        self._factor = math.exp(_UNKNOWN_SCATTER)
        self._anchors: dict[_Moment, _Anchor] = {}
        self._counts: dict[_Path, float] = {}
        if usable:
            self.duration_s = median(record.duration_s for record in usable)
            self._take_records(usable, self.duration_s)
        self._elapsed = 0.0
        self._passed: _Moment | None = None
        self._passed_at = 0.0
        self._value = 0.0
        self._shown = 0.0
        self._reading = Reading()

    @classmethod
    def for_new_network(cls, model: DurationModel, size: Mapping[str, float]) -> Estimator:
        """Make one for a network that was never built.

        It says nothing where the model predicts nothing, or nothing that is sure within
        :data:`MAX_FACTOR`.
        """
        self = cls()
        prediction = model.predict(size)
        if (
            prediction is not None
            and _sensible(prediction.duration_s)
            and 1.0 <= prediction.factor <= MAX_FACTOR
        ):
            self.duration_s = prediction.duration_s
            self._factor = prediction.factor
            self._scatter = max(math.log(prediction.factor), _LEAST_SCATTER)
        return self

    def _take_records(self, records: Sequence[BuildRecord], duration: float) -> None:
        logs = [math.log(record.duration_s) - math.log(duration) for record in records]
        if len(logs) > 1:
            scatter = max(_spread(logs), _LEAST_SCATTER)
            self._scatter = min(max(_SHOWN * scatter, _LEAST_SCATTER), _MOST_SHOWN)
            self._factor = math.exp(scatter)
        counts: dict[_Path, list[int]] = {}
        for record in records:
            for path, times in record.phases.items():
                counts.setdefault(path, []).append(times.count)
        self._counts = {path: median(many) for path, many in counts.items()}
        seen: dict[_Moment, list[float]] = {}
        for record in records:
            for moment, time in _moments(record):
                seen.setdefault(moment, []).append(time)
        for moment, found in seen.items():
            if 2 * len(found) >= len(records):
                time = min(median(found), duration)
                share = time / duration
                self._anchors[moment] = _Anchor(time, share**2 / (share**2 + _PATIENCE**2))

    @property
    def paths(self) -> frozenset[_Path]:
        """The paths whose states :meth:`update` looks at."""
        return frozenset(path for path, _ in self._anchors)

    @property
    def factor(self) -> float:
        """How sure :attr:`duration_s` is: two times of three the truth is within this factor."""
        return self._factor

    # ------------------------------------------------------------------ reading

    def update(self, elapsed_s: float, phases: Mapping[_Path, PhaseState]) -> Reading:
        """Say how far the build is.

        Parameters
        ----------
        elapsed_s
            Seconds since the build began.
        phases
            The state of each path that was opened so far; see :func:`phase_states`.

        Returns
        -------
        Reading
            Its progress is never less than that of the call before, and always below 1: that a
            build has ended is for the caller to know.
        """
        whole = self.duration_s
        if whole is None or not math.isfinite(elapsed_s):
            return self._reading
        self._elapsed = elapsed = max(self._elapsed, elapsed_s)
        self._pass(phases)
        done = self._anchors[self._passed].time if self._passed else 0.0
        scale = self._scale()
        ahead = [anchor.time for anchor in self._anchors.values() if anchor.time > done]
        following = min(min(ahead, default=whole), whole)
        stretch = max((following - done) * scale, 0.0)
        spent = max(elapsed - self._passed_at, 0.0)
        after = max((whole - following) * scale, 0.0)
        rest = _rest_of(stretch, spent, self._scatter) + after
        # Also where the last anchor is the end itself something remains to be done.
        rest = max(rest, 1e-3 * whole)
        margin = max(_LATE, self._factor - 1.0)
        exceeded = spent - stretch > max(margin * whole * scale, _LATE_S)
        progress = self._advance(elapsed / (elapsed + rest))
        eta = None if exceeded or not math.isfinite(rest) else rest
        self._reading = Reading(progress, eta, exceeded, self._factor)
        return self._reading

    def _pass(self, phases: Mapping[_Path, PhaseState]) -> None:
        """Find the furthest anchor that was passed, and when."""
        furthest = self._anchors[self._passed].time if self._passed else 0.0
        for moment, anchor in self._anchors.items():
            path, number = moment
            state = phases.get(path)
            if state is None or anchor.time < furthest or moment == self._passed:
                continue
            if number == _END:
                counted = self._counts.get(path, 1)
                if state.open_count or state.count < counted or state.ended_s is None:
                    continue
                at = state.ended_s
            elif state.count > number:
                at = state.started_s
            else:
                continue
            if not math.isfinite(at):
                at = self._elapsed
            furthest = anchor.time
            self._passed = moment
            self._passed_at = min(max(at, 0.0), self._elapsed)

    def _scale(self) -> float:
        """Say how many times longer than expected this build takes."""
        if self._passed is None:
            return 1.0
        anchor = self._anchors[self._passed]
        if anchor.time <= 0.0 or self._passed_at <= 0.0:
            return 1.0
        slower = math.log(self._passed_at) - math.log(anchor.time)
        limit = math.log(_MAX_SCALE)
        return math.exp(min(max(anchor.weight * slower, -limit), limit))

    def _advance(self, value: float) -> float:
        """Move what is shown: where it is ahead of the truth, slower, until that catches up."""
        value = min(max(value, 0.0), _MOST) if math.isfinite(value) else self._value
        shown = self._shown
        if value > self._value:
            shown += (value - self._value) * ((1.0 - shown) / (1.0 - self._value)) ** _BRAKE
        self._value = value
        self._shown = min(max(shown, value), _MOST)
        return self._shown


class DurationModel:
    """How long networks take to build here, by their size.

    A robust ridge regression of the logarithm of the time on the logarithms of the sizes. Without
    data to the contrary the time grows in proportion to the number of layers.

    Parameters
    ----------
    builds
        Builds of any networks; of each network the median counts.
    """

    def __init__(self, builds: Iterable[tuple[BuildKey, BuildRecord]]) -> None:
        sizes: dict[str, Mapping[str, float]] = {}
        records: dict[str, list[BuildRecord]] = {}
        for key, record in builds:
            if _sensible(record.duration_s) and key.size:
                sizes.setdefault(key.network, key.size)
                records.setdefault(key.network, []).append(record)
        chosen = list(sizes)[:MAX_NETWORKS]
        self._sizes = [sizes[network] for network in chosen]
        self._logs = [
            math.log(median(record.duration_s for record in records[network])) for network in chosen
        ]

    @property
    def networks(self) -> int:
        """Number of networks that it knows."""
        return len(self._sizes)

    def predict(self, size: Mapping[str, float]) -> Prediction | None:
        """Say how long a network of that size will take.

        Returns
        -------
        Prediction or None
            None with fewer than :data:`MIN_NETWORKS` networks, or where nothing is known of this
            one that is known of them.
        """
        names = sorted(
            name
            for name in size
            if _size(size, name) is not None
            and all(_size(other, name) is not None for other in self._sizes)
        )
        if self.networks < MIN_NETWORKS or not names:
            return None
        first = next((name for name in _PROPORTIONAL if name in names), names[0])
        names = [name for name in names if name != _NOT_BESIDE or first == name]
        rows = [_features(other, names) for other in self._sizes]
        scale = _Scale(rows)
        matrix = [scale(row) for row in rows]
        # What is fitted is the deviation from being proportional to this.
        proportional = [math.log1p(other[first]) for other in self._sizes]
        targets = [log - line for log, line in zip(self._logs, proportional, strict=True)]
        fit = min((_Fit(matrix, targets, ridge) for ridge in _RIDGES), key=lambda fit: fit.error)
        value, noise = fit.predict(scale(_features(size, names)))
        try:
            duration = math.exp(value + math.log1p(size[first]))
            return Prediction(duration, math.exp(max(noise, _LEAST_SCATTER)))
        except OverflowError:
            return None


class _Scale:
    """Brings columns to mean 0 and standard deviation 1, and puts a column of ones before them."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        columns = list(zip(*rows, strict=True))
        self._means = [sum(column) / len(column) for column in columns]
        self._widths = [
            math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
            for column, mean in zip(columns, self._means, strict=True)
        ]

    def __call__(self, row: Sequence[float]) -> list[float]:
        scaled = zip(row, self._means, self._widths, strict=True)
        return [1.0, *((v - mean) / width if width > _FLAT else 0.0 for v, mean, width in scaled)]


class _Fit:
    """A ridge regression in which outliers count less (Huber).

    Attributes
    ----------
    left_out
        The error of each row, predicted from the others.
    error
        Three of four of them are within it: as the ridge was chosen by them, a new one errs more.
    """

    def __init__(
        self, rows: Sequence[Sequence[float]], targets: Sequence[float], ridge: float
    ) -> None:
        width = len(rows[0])
        self._rows = rows
        self._weights = [1.0] * len(rows)
        for _ in range(_ROUNDS):
            weighted = list(zip(self._weights, rows, strict=True))
            normal = [
                [
                    sum(w * row[i] * row[j] for w, row in weighted) + (ridge if i == j > 0 else 0.0)
                    for j in range(width)
                ]
                for i in range(width)
            ]
            self._inverse = _inverse(normal)
            slopes, self.left_out = self._solve(targets)
            errors = [y - _dot(row, slopes) for row, y in zip(rows, targets, strict=True)]
            usual = max(median(map(abs, errors)) / _NORMAL.inv_cdf(0.75), 1e-3)
            self._slopes = slopes
            used = self._weights
            self._weights = [min(1.0, _HUBER * usual / max(abs(e), 1e-12)) for e in errors]
        self._weights = used
        self.error = sorted(map(abs, self.left_out))[math.ceil(len(rows) * _SURE) - 1]

    def _solve(self, targets: Sequence[float]) -> tuple[list[float], list[float]]:
        """Give the slopes and the errors left out."""
        table = list(zip(self._weights, self._rows, targets, strict=True))
        right = [sum(w * row[i] * y for w, row, y in table) for i in range(len(self._inverse))]
        slopes = [_dot(line, right) for line in self._inverse]
        left_out = [
            (y - _dot(row, slopes)) / max(1.0 - w * self._leverage(row), 1e-3)
            for w, row, y in table
        ]
        return slopes, left_out

    def _leverage(self, row: Sequence[float]) -> float:
        return _dot(row, [_dot(line, row) for line in self._inverse])

    def predict(self, row: Sequence[float]) -> tuple[float, float]:
        """Give the value and its usual error, which grows away from what is known."""
        return _dot(row, self._slopes), self.error * math.sqrt(1.0 + self._leverage(row))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Invert a symmetric positive definite matrix by elimination; ridge makes it one."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = work[i][i]
        work[i] = [value / pivot for value in work[i]]
        for j in range(size):
            if j != i:
                factor = work[j][i]
                work[j] = [a - factor * b for a, b in zip(work[j], work[i], strict=True)]
    return [row[size:] for row in work]


def _features(size: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """Give the logarithms of the sizes."""
    return [math.log1p(size[name]) for name in names]


def _size(size: Mapping[str, float], name: str) -> float | None:
    value = size.get(name)
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _moments(record: BuildRecord) -> list[tuple[_Moment, float]]:
    """Give the moments of a build that can be told while the next one runs, with their times."""
    found: list[tuple[_Moment, float]] = []
    for path, times in record.phases.items():
        moments: dict[_Moment, float] = {(path, 0): times.start_s, (path, _END): times.end_s}
        last = len(times.marks) - 1
        for position, time in enumerate(times.marks):
            if last > 0:
                moments[path, max(0, position * (times.count - 1) // last)] = time
        found += [
            (moment, time) for moment, time in moments.items() if math.isfinite(time) and time >= 0
        ]
    return found


def _rest_of(stretch: float, spent: float, scatter: float) -> float:
    """Say what a stretch still takes: the median of a log-normal, given that it is not over."""
    if stretch <= 0.0 or spent <= 0.0:
        return stretch
    far = min((math.log(spent) - math.log(stretch)) / scatter, _FAR)
    still = 1.0 - 0.5 * (1.0 - _NORMAL.cdf(far))
    expected = stretch * math.exp(scatter * _NORMAL.inv_cdf(still))
    return max(expected - spent, _TAIL * stretch)


def _sensible(duration: float) -> bool:
    return _SHORTEST_S <= duration <= _LONGEST_S


def _spread(values: Sequence[float]) -> float:
    """Give the standard deviation, from the median one where outliers would spoil it."""
    middle = median(values)
    deviations = [abs(value - middle) for value in values]
    if len(values) < MIN_NETWORKS:
        return math.sqrt(sum(d * d for d in deviations) / (len(values) - 1))
    return median(deviations) / _NORMAL.inv_cdf(0.75)
