"""The arithmetic of the benches, and how their table is written: pure functions."""

from __future__ import annotations

import random
import statistics
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Row:
    """A line of the table; ``met`` is None for a figure without a target."""

    figure: str
    measured: str
    target: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """What the last column says."""
        return {True: "yes", False: "MISSED", None: ""}[self.met]


def interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Give a bootstrap interval (percentiles) of a statistic; the same values give the same one."""
    if not values:
        raise ValueError("no values")
    draw = random.Random(0)  # noqa: S311 - statistics
    found = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1 - confidence) / 2
    return found[int(tail * resamples)], found[min(resamples - 1, int((1 - tail) * resamples))]


def busiest(
    times: Sequence[float], sizes: Sequence[float] | None = None, *, window: float = 1.0
) -> float:
    """Give the most that falls into any ``window`` seconds: a count, or the sum of ``sizes``.

    ``times`` ascend; a window holds its start and not its end.
    """
    if sizes is None:
        sizes = [1.0] * len(times)
    before = [0.0, *accumulate(sizes)]
    ends = (bisect_left(times, start + window) for start in times)
    return max((before[end] - before[first] for first, end in enumerate(ends)), default=0.0)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide pair by pair."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Subtract pair by pair."""
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def spread(
    values: Sequence[float],
    digits: int = 2,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
) -> str:
    """Write the statistic with its interval, as in ``1.01 [0.99, 1.03]``."""
    low, high = interval(values, statistic)
    return f"{statistic(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def ranged(values: Sequence[float], digits: int = 2) -> str:
    """Write the median with the least and the most, as in ``1.01 [0.99, 1.03]``."""
    parts = (statistics.median(values), min(values), max(values))
    middle, low, high = (f"{part:,.{digits}f}" for part in parts)
    return f"{middle} [{low}, {high}]"


def table(rows: Sequence[Row]) -> str:
    """Write the rows as a Markdown table that is also readable as it is."""
    cells = [("figure", "measured", "target", "met")]
    cells += [(row.figure, row.measured, row.target, row.verdict) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
