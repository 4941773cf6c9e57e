"""Which phase makes two builds differ, whether that is unusual, and why: in words.

A cause is said only where the builds differ in nothing but what explains the difference; otherwise
what they differ in is listed without a claim. It is said as a fact only where all else is known to
be the same and the difference is more than the scatter of earlier builds; else with "perhaps".
Whether a difference is more than chance is said where there are enough earlier builds to know.
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

    from trt_widget._sides import Phase, Side
    from trt_widget.history import BuildRecord

__all__ = ["FEWEST", "Merged", "explain", "label", "merge", "verdict"]

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
# Phases whose time a timing cache saves, by TensorRT's own names for them: whole ones, because the
# names of others hold those of the model's layers. One that is missing here costs a cause, no more.
_TIMED: Final = re.compile(
    r"timing (?:tactics|graph nodes|tensor reformats)|computing (?:profile|reformatting) costs"
    r"|measuring tactic time|evaluating tactic times|finding fastest tactic for .+",
    re.IGNORECASE | re.DOTALL,
)
#: What is in the digest of the options and not plain.
_OTHERS: Final = "other options (profiles, configure=)"
#: The plain ones that are in it.
_IN_DIGEST: Final = (
    *("flags", "strongly_typed", "network_flags"),
    *("optimization_level", "workspace"),
)
_NAMES: Final = {
    "version": "TensorRT",
    "target": "target",
    "device": "device",
    "executor": "executor",
    "timing_cache": "timing cache",
}
_DEFAULT_LEVEL: Final = 3


@dataclass(frozen=True)
class Merged:
    """The phases of several builds, a row per path.

    Attributes
    ----------
    paths
        In tree order, what is outside of them last.
    parents
        The row above each, before it; -1 for none.
    phases
        For each build what the rows took; None where it has no such phase.
    """

    paths: list[Path]
    parents: list[int]
    phases: list[list[Phase | None]]

    def total(self, side: int, row: int) -> float:
        """Give the seconds of a row; 0 where there is none."""
        phase = self.phases[side][row]
        return 0.0 if phase is None else phase.total_s

    def itself(self, side: int, row: int) -> float:
        """Give the seconds of a row without what is below it."""
        phase = self.phases[side][row]
        return 0.0 if phase is None else phase.self_s

    def count(self, side: int, row: int) -> int:
        """Give how often a row's phase opened."""
        phase = self.phases[side][row]
        return 0 if phase is None else phase.count


def merge(sides: Sequence[Side]) -> Merged:
    """Put all paths of all builds into one tree."""
    known: dict[Path, int] = {OUTSIDE: 0}
    paths: list[Path] = [OUTSIDE]
    below: list[list[int]] = [[]]
    found: list[dict[int, Phase]] = []
    for side in reversed(sides):
        found.append({})
        for path, phase in side.phases.items():
            missing = []
            above = path
            while (node := known.get(above)) is None:
                missing.append(above)
                above = above[:-1]
            for new in reversed(missing):
                below[node].append(len(paths))
                node = known[new] = len(paths)
                paths.append(new)
                below.append([])
            found[-1][node] = phase
    order, parents = list[int](), list[int]()
    left = [(node, -1) for node in reversed(below[0])]
    while left:
        node, parent = left.pop()
        left += [(child, len(order)) for child in reversed(below[node])]
        order.append(node)
        parents.append(parent)
    order.append(0)
    parents.append(-1)
    phases = [[of_side.get(node) for node in order] for of_side in reversed(found)]
    return Merged([paths[node] for node in order], parents, phases)


@dataclass(frozen=True)
class _Change:
    """What a phase took longer in the second build; less where it is below zero.

    ``itself`` says that this is without what is below it, where that makes a difference.
    """

    path: Path
    seconds: float
    itself: bool = False


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
    also: _Change | None = None


def label(path: Path) -> str:
    """Give a phase's name; of what is outside of all, words."""
    return line(path[-1], 80) if path else "outside of TensorRT's phases"


def verdict(first: Side, second: Side, merged: Merged) -> _Verdict:
    """Find the phase that makes the difference."""
    sample = max((first.sample, second.sample), key=len)
    known = len(sample) >= FEWEST
    row, difference = _descend(merged)
    path = merged.paths[row]
    least = max(_LEAST_S, _LEAST_SHARE * max(first.duration_s, second.duration_s))
    if abs(difference) < least:
        return _Verdict(None, difference, known or None, len(sample))
    usual = _within(_totals(sample, path), difference) if known else None
    also = _also(merged, row) if path else None
    if also is not None and abs(also.seconds) < max(least, _ALSO * abs(difference)):
        also = None
    if usual and also is not None:
        # What is said to be usual is all that is told; what is not usual is the news.
        others = None if also.itself else _within(_totals(sample, also.path), also.seconds)
        if others is False:
            return _Verdict(also.path, also.seconds, others, len(sample))
        also = also if others else None
    return _Verdict(path, difference, usual, len(sample), also)


def _descend(merged: Merged) -> tuple[int, float]:
    """Go from the roots to the deepest phase that most of the difference is in."""

    def size(row: int) -> float:
        return abs(more[row])

    rows = range(len(merged.paths))
    more = [merged.total(1, row) - merged.total(0, row) for row in rows]
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(merged.parents):
        below.setdefault(parent, []).append(row)
    found = max(below[-1], key=size)
    while found in below:
        inner = max(below[found], key=size)
        if size(inner) < _MOST_OF_IT * size(found):
            break
        found = inner
    return found, more[found]


def _also(merged: Merged, found: int) -> _Change | None:
    """Give the largest difference that is neither below a phase nor above it."""
    above = set[int]()
    row = found
    while row >= 0:
        above.add(row)
        row = merged.parents[row]
    inside = {found}
    largest: _Change | None = None
    for row, path in enumerate(merged.paths):
        if merged.parents[row] in inside:
            inside.add(row)
        elif path and row not in above:
            more = merged.itself(1, row) - merged.itself(0, row)
            if largest is None or abs(more) > abs(largest.seconds):
                whole = merged.total(1, row) - merged.total(0, row)
                largest = _Change(path, more, not math.isclose(more, whole, rel_tol=0.01))
    return largest


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


def explain(
    first: Side, second: Side, before: str = "", merged: Merged | None = None
) -> tuple[str, list[str]]:
    """Give the sentence about two builds, and what is to be said below it.

    Parameters
    ----------
    before
        What the sentence begins with.
    merged
        The phases of the two, if they are merged already.
    """
    found = verdict(first, second, merge((first, second)) if merged is None else merged)
    same = _same_network(first, second)
    if same is False:
        words = " and ".join(_with_layers(side) for side in (first, second))
        before += f"{'d' if before else 'D'}ifferent networks ({words}): "
    told = _told(first, second, found, same=same)
    if not before and not found.path:
        told = told[:1].upper() + told[1:]
    notes = [
        f"{line(side.name, 60)} {_ended(side)}: its times are those up to its end."
        for side in (first, second)
        if side.status != "succeeded"
    ]
    if same is None:
        models = " and ".join(line(str(side.model), 60) for side in (first, second))
        notes.append(f"Whether {models} are the same network is not known.")
    elif found.path is not None and same:
        notes += _chance(found)
    left_out = first.left_out + second.left_out
    if left_out:
        what = "build holds" if left_out == 1 else "builds hold"
        notes.append(f"{left_out:,} earlier {what} times that cannot be, and are left out.")
    return f"{before}{told}.", notes


def _told(first: Side, second: Side, found: _Verdict, *, same: bool | None) -> str:
    """Say what changed, and why if it is known, without a full stop."""
    if found.path is None:
        return "all phases took about the same"
    name = label(found.path) if found.path else "what is outside of TensorRT's phases"
    told = f"{name} {_took(found.difference_s)}"
    if found.also is not None:
        itself = " itself" if found.also.itself else ""
        told += f", {label(found.also.path)}{itself} {_took(found.also.seconds)}"
    if same is False:
        return told
    if found.usual and same:
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


def _same_network(first: Side, second: Side) -> bool | None:
    """Say whether two builds are of one network; None where nothing speaks for it.

    Builds of which nothing at all is known are taken for ones of the same network, as the history
    gives them.
    """
    if first.network and second.network:
        return first.network == second.network
    counted = first.layers is not None and second.layers is not None
    # Another version of TensorRT may make another number of layers of the same model.
    version = first.facts.get("version")
    if counted and first.layers != second.layers and version == second.facts.get("version"):
        return False
    if first.model and second.model and first.model != second.model:
        return None
    return True


def _with_layers(side: Side) -> str:
    layers = "" if side.layers is None else f", {side.layers:,} layers"
    return f"{line(side.name, 60)}{layers}"


def _because(first: Side, second: Side, found: _Verdict) -> str:
    """Give the cause, or what else the two builds differ in; empty where there is nothing."""
    differing = dict(_differing(first, second))
    if not differing:
        return ""
    cause = _cause(first, second, found, list(differing))
    if cause:
        sure = found.usual is False and _all_known(first, second)
        return f": {cause}" if sure else f", perhaps because {cause}"
    listed = ", ".join(
        f"{name} ({change})" if change else name for name, change in differing.items()
    )
    return f"; the builds differ in {listed}"


def _cause(first: Side, second: Side, found: _Verdict, differing: list[str]) -> str:
    """Give what explains the difference, if it is the only thing that differs."""
    named = first.model and first.model == second.model
    known = (first.network and second.network) or named  # else they may be of any two networks
    if not known or not found.path or len(differing) != 1:
        return ""
    if found.also is not None and (found.also.seconds > 0) is not (found.difference_s > 0):
        return ""
    slower = second if found.difference_s > 0 else first
    if differing == [_NAMES["timing_cache"]]:
        return _cause_in_cache(first, second, found, slower)
    if differing == ["optimization_level"]:
        given = [(side.options or {}).get("optimization_level") for side in (first, second)]
        levels = [_DEFAULT_LEVEL if level is None else level for level in given]
        if (levels[1] > levels[0]) is (slower is second):
            return f"optimization_level was {levels[1]} instead of {levels[0]}"
    return ""


def _cause_in_cache(first: Side, second: Side, found: _Verdict, slower: Side) -> str:
    """Give the timing cache as the cause, where it was warm in the faster build only."""
    faster = first if slower is second else second
    state, other = (side.facts.get("timing_cache") for side in (slower, faster))
    paths = [found.path or (), *([found.also.path] if found.also is not None else [])]
    timed = all(any(map(_TIMED.fullmatch, path)) for path in paths)
    if not timed or other != "warm" or state not in {"cold", "none"}:
        return ""
    if slower is first:
        return "the timing cache was warm"
    return "the timing cache was cold" if state == "cold" else "there was no timing cache"


def _all_known(first: Side, second: Side) -> bool:
    """Say whether all that could explain a difference is known of both builds."""
    facts = ("version", "target", "executor", "timing_cache")
    return (
        all(
            side.network and all(side.facts.get(name) for name in facts) for side in (first, second)
        )
        and _others_differ(first, second) is False
        and (first.options is None) is (second.options is None)
    )


def _others_differ(first: Side, second: Side) -> bool | None:
    """Say whether options differ that are not plain; None where that is not known."""
    digests = (first.digest, second.digest)
    if None not in digests and first.digest == second.digest:
        return False
    if first.rest is not None and second.rest is not None:
        return first.rest != second.rest
    if None in digests or first.options is None or second.options is None:
        return None
    plain = [[side.options.get(name) for name in _IN_DIGEST] for side in (first, second)]  # type: ignore[union-attr]  # checked above
    return True if plain[0] == plain[1] else None


def _differing(first: Side, second: Side) -> Iterator[tuple[str, str]]:
    """Give what is known to differ, by name, in words."""
    for name, word in _NAMES.items():
        if name == "device" and all("target" in side.facts for side in (first, second)):
            continue  # the target names it already
        before, after = first.facts.get(name), second.facts.get(name)
        if before and after and before != after:
            yield word, f"{line(before, 60)} → {line(after, 60)}"
    unlike = bool(first.digest and second.digest and first.digest != second.digest)
    if first.options is None or second.options is None:
        if unlike:
            yield "options", "not the same"
        return
    for name in first.options:
        before, after = first.options[name], second.options.get(name)
        if before != after:
            yield name, f"{_shown(before)} → {_shown(after)}"
    others = _others_differ(first, second)
    if others:
        yield _OTHERS, ""
    elif others is None and unlike:
        yield f"perhaps {_OTHERS}", ""


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "default"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return line(text, 60)
