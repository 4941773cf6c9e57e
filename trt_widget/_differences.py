"""Which phase makes two builds differ, whether that is unusual, and why: in words.

A cause is said only where the builds differ in something that explains the difference; what else
they differ in is listed without a claim. Whether a difference is more than chance is said where
there are enough earlier builds to know how much they scatter.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trt_widget._sides import OUTSIDE, Path
from trt_widget._text import duration, line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trt_widget._sides import Side
    from trt_widget.history import BuildRecord

__all__ = ["FEWEST", "explain", "label", "tree_order", "verdict"]

#: Earlier builds from which on their scatter is taken for known.
FEWEST: Final = 3
#: Below these a difference is not worth a sentence: seconds, and share of the longer build.
_LEAST_S: Final = 0.05
_LEAST_SHARE: Final = 0.05
#: A phase explains the one above it if that much of the difference is in it.
_MOST_OF_IT: Final = 0.8
#: Another phase is mentioned too from this share of the first one's difference on.
_ALSO: Final = 0.5
#: Student's t, 97.5 %, by degrees of freedom from 2 on; the last stands for all above.
_STUDENT: Final = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
# Phases whose time a timing cache saves; TensorRT's names differ between versions.
_TIMED: Final = re.compile(r"tactic|timing|tun(?:e|ing)|profil", re.IGNORECASE)
_NAMES: Final = {
    "version": "TensorRT",
    "target": "target",
    "device": "device",
    "executor": "executor",
    "timing_cache": "timing cache",
}
_DEFAULT_LEVEL: Final = 3


@dataclass(frozen=True)
class _Verdict:
    """What makes two builds differ.

    Attributes
    ----------
    path
        The phase, or None where they took about the same.
    difference_s
        Seconds that it took longer in the second one.
    usual
        Whether so much is within the scatter of earlier builds; None where that is not known.
    earlier
        Number of earlier builds that this rests on.
    also
        Another phase with a large difference, or None.
    """

    path: Path | None
    difference_s: float
    usual: bool | None
    earlier: int
    also: tuple[Path, float] | None = None


def tree_order(sides: Sequence[Side]) -> list[Path]:
    """Give all paths of all builds in tree order, what is outside of them last."""
    tree: dict[Path, dict[Path, None]] = {}
    for side in reversed(sides):
        for path in side.phases:
            for depth in range(len(path)):
                tree.setdefault(path[:depth], {})[path[: depth + 1]] = None
    ordered: list[Path] = []
    left = list(reversed(tree.get((), {})))
    while left:
        path = left.pop()
        ordered.append(path)
        left += reversed(tree.get(path, {}))
    return [*ordered, OUTSIDE]


def label(path: Path) -> str:
    """Give a phase's name; of what is outside of all, words."""
    return line(path[-1], 80) if path else "outside of TensorRT's phases"


def verdict(first: Side, second: Side) -> _Verdict:
    """Find the phase that makes the difference."""
    sample = max((first.sample, second.sample), key=len)
    known = len(sample) >= FEWEST
    paths = tree_order((first, second))
    path, difference = _descend(first, second, paths)
    least = max(_LEAST_S, _LEAST_SHARE * max(first.duration_s, second.duration_s))
    if abs(difference) < least:
        return _Verdict(None, difference, known or None, len(sample))
    usual = _within(_totals(sample, path), difference) if known else None
    also = None
    if path:
        others = [
            (other, second.itself(other) - first.itself(other))
            for other in paths
            if other[: len(path)] != path and path[: len(other)] != other
        ]
        other, more = max(others, key=lambda entry: abs(entry[1]), default=(OUTSIDE, 0.0))
        if abs(more) >= max(least, _ALSO * abs(difference)):
            also = (other, more)
    return _Verdict(path, difference, usual, len(sample), also)


def _descend(first: Side, second: Side, paths: list[Path]) -> tuple[Path, float]:
    """Go from the roots to the deepest phase that most of the difference is in."""

    def more(path: Path) -> float:
        return second.total(path) - first.total(path)

    below: dict[Path, list[Path]] = {}
    for path in paths:
        if path:
            below.setdefault(path[:-1], []).append(path)
    found = max([*below.get((), ()), OUTSIDE], key=lambda path: abs(more(path)))
    while found and found in below:
        inner = max(below[found], key=lambda path: abs(more(path)))
        if abs(more(inner)) < _MOST_OF_IT * abs(more(found)):
            break
        found = inner
    return found, more(found)


def _totals(sample: Sequence[BuildRecord], path: Path) -> list[float]:
    """Give what a path took in earlier builds."""
    if not path:
        return [
            record.duration_s - sum(t.total_s for p, t in record.phases.items() if len(p) == 1)
            for record in sample
        ]
    return [record.phases[path].total_s for record in sample if path in record.phases]


def _within(values: list[float], difference: float) -> bool | None:
    """Say whether two builds of this kind differ so much by chance, in 19 of 20 cases."""
    if len(values) < FEWEST:
        return None
    factor = _STUDENT[min(len(values) - FEWEST, len(_STUDENT) - 1)]
    return abs(difference) <= factor * math.sqrt(2) * statistics.stdev(values)


# ---- in words -----------------------------------------------------------------------------------


def explain(first: Side, second: Side, before: str = "") -> tuple[str, list[str]]:
    """Give the sentence about two builds, and what is to be said below it.

    Parameters
    ----------
    before
        What the sentence begins with.
    """
    found = verdict(first, second)
    networks = _networks(first, second)
    if networks:
        before += f"{'d' if before else 'D'}ifferent networks ({networks}): "
    told = _told(first, second, found, comparable=not networks)
    if not before and not found.path:
        told = told[:1].upper() + told[1:]
    notes = [
        f"{side.name} {_ended(side)}: its times are those up to its end."
        for side in (first, second)
        if side.status != "succeeded"
    ]
    if found.path is not None and not networks:
        notes += _chance(found)
    return f"{before}{told}.", notes


def _told(first: Side, second: Side, found: _Verdict, *, comparable: bool) -> str:
    """Say what changed, and why if it is known, without a full stop."""
    if found.path is None:
        return "all phases took about the same"
    name = label(found.path) if found.path else "what is outside of TensorRT's phases"
    told = f"{name} {_took(found.difference_s)}"
    if found.also is not None:
        told += f", {label(found.also[0])} {_took(found.also[1])}"
    if not comparable:
        return told
    if found.usual:
        return f"{told}, which is within the usual scatter of {found.earlier} earlier builds"
    if first.status == second.status == "succeeded":
        told += _because(first, second, found)
    return told


def _chance(found: _Verdict) -> list[str]:
    """Say whether that is more than chance, where the sentence does not."""
    if found.usual is None:
        note = "Whether that is more than chance is not known: it takes"
        return [f"{note} {FEWEST} earlier builds of the network to say."]
    if found.usual:
        return []
    return [f"That is more than the usual scatter of {found.earlier} earlier builds."]


def _ended(side: Side) -> str:
    return {"cancelled": "was cancelled", "failed": "failed"}.get(
        side.status, "ended with an outcome that is not known"
    )


def _took(difference: float) -> str:
    return f"took {duration(abs(difference))} {'longer' if difference > 0 else 'less'}"


def _networks(first: Side, second: Side) -> str:
    """Say how two networks differ, where it is known that they do."""
    if first.network and second.network:
        if first.network == second.network:
            return ""
    elif first.layers is None or second.layers is None or first.layers == second.layers:
        return ""
    words = [
        line(side.name, 60) + (f", {side.layers:,} layers" if side.layers is not None else "")
        for side in (first, second)
    ]
    return " and ".join(words)


def _because(first: Side, second: Side, found: _Verdict) -> str:
    """Give the cause, or what else the two builds differ in; empty where there is nothing."""
    assert found.path is not None  # noqa: S101 - the caller asks for a phase only
    slower = second if found.difference_s > 0 else first
    faster = first if slower is second else second
    differing = dict(_differing(first, second))
    state, other = (side.facts.get("timing_cache") for side in (slower, faster))
    timed = any(_TIMED.search(name) for name in found.path)
    if timed and other == "warm" and state in {"cold", "none"}:
        if slower is first:
            return ": the timing cache was warm"
        return ": the timing cache was cold" if state == "cold" else ": there was no timing cache"
    given = [(side.options or {}).get("optimization_level") for side in (first, second)]
    levels = [_DEFAULT_LEVEL if level is None else level for level in given]
    if list(differing) == ["optimization_level"] and (levels[1] > levels[0]) is (slower is second):
        return f": optimization_level was {levels[1]} instead of {levels[0]}"
    if differing:
        listed = ", ".join(f"{name} ({change})" for name, change in differing.items())
        return f"; the builds differ in {listed}"
    return ""


def _differing(first: Side, second: Side) -> Iterator[tuple[str, str]]:
    """Give what is known to differ, by name, in words."""
    for name, word in _NAMES.items():
        if name == "device" and all("target" in side.facts for side in (first, second)):
            continue  # the target names it already
        before, after = first.facts.get(name), second.facts.get(name)
        if before and after and before != after:
            yield word, f"{line(before, 60)} → {line(after, 60)}"
    if first.options is not None and second.options is not None:
        for name in first.options:
            before, after = first.options[name], second.options.get(name)
            if before != after:
                yield name, f"{_shown(before)} → {_shown(after)}"
    elif first.digest and second.digest and first.digest != second.digest:
        yield "options", "not the same"


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "default"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return line(text, 60)
