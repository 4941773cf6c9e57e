"""Which phase makes two builds differ, whether that is unusual, and why: in words.

A cause is said only where the builds differ in nothing but what explains the difference; otherwise
what they differ in is listed without a claim. It is said as a fact only where all else is known to
be the same and the difference is more than the scatter of earlier builds; else with "perhaps".
Of a build that did not succeed neither a cause nor a usual scatter is said: it has no whole times.

The usual scatter: from three earlier builds on, a difference is more than that if it is outside of
Student's interval (19 of 20 cases). With few builds that is wide; so it is called usual only where,
in addition, neither build is outside of everything that was seen. Between the two nothing is
claimed, and the range that was seen is told.

Where the phase does not explain most of what a build took longer in all, that is told, too; and
where nearly all phases took longer, in like measure, and nothing known differs, that the machine
was busier, perhaps.
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

__all__ = ["FEWEST", "Merged", "ended", "explain", "label", "merge", "verdict"]

#: Earlier builds from which on their scatter is taken for known.
FEWEST: Final = 3
#: Below these a difference is not worth a sentence: seconds, and share of the longer build.
_LEAST_S: Final = 0.05
_LEAST_SHARE: Final = 0.05
#: A phase explains the one above it if that much of the difference is in it.
_MOST_OF_IT: Final = 0.8
#: Another phase is mentioned too from this share of the first one's difference on.
_ALSO: Final = 0.5
#: The whole took clearly longer, or a phase, if it is so many times as long.
_CLEARLY: Final = 1.25
#: Phases that count among "nearly all": share of the longer build, small, because of many networks
#: one phase takes nine tenths; how many there are at least, and the share of them, and of their
#: time, that changed.
_LARGE: Final = 0.005
_FEWEST_LARGE: Final = 3
_NEARLY_ALL: Final = 0.8
#: They changed in like measure if the largest ratio is at most so many times the smallest.
_ALIKE: Final = 4.0
_ROUNDING_S: Final = 1e-6
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
        Whether so much is within the scatter of earlier builds; None where that is not known. With
        ``whole`` it is about the builds in all.
    earlier
        Number of earlier builds that this rests on.
    also
        Another phase with a large difference, or None.
    seen
        Least and most that the earlier builds took, where one of the two builds is outside of
        that, and yet it may be chance.
    whole
        What is to be told of the builds in all, or None.
    """

    path: Path | None
    difference_s: float
    usual: bool | None
    earlier: int
    also: _Change | None = None
    seen: tuple[float, float] | None = None
    whole: _Whole | None = None


@dataclass(frozen=True)
class _Whole:
    """What the two builds took in all, where no phase alone explains it.

    ``ratios`` are the smallest and the largest one by which nearly all phases changed, or None
    where they did not.
    """

    before_s: float
    after_s: float
    ratios: tuple[float, float] | None


def label(path: Path) -> str:
    """Give a phase's name; of what is outside of all, words."""
    return line(path[-1], 80) if path else "outside of TensorRT's phases"


def verdict(first: Side, second: Side, merged: Merged) -> _Verdict:
    """Find the phase that makes the difference."""
    sample = max((first.sample, second.sample), key=len)
    if not _both_succeeded(first, second):
        sample = ()
    count = len(sample)
    row, difference = _descend(merged)
    path: Path | None = merged.paths[row]
    least = max(_LEAST_S, _LEAST_SHARE * max(first.duration_s, second.duration_s))
    also = _also(merged, row) if path else None
    if also is not None and abs(also.seconds) < max(least, _ALSO * abs(difference)):
        also = None
    if abs(difference) < least:
        path, also = None, None
    told = difference + (0.0 if also is None else also.seconds)
    whole = _whole(first, second, merged, told if path is not None else 0.0)
    if whole is not None:
        if whole.ratios is not None:  # then what all have in common is told, and the largest one
            row = _largest(merged)
            path, difference = merged.paths[row], merged.total(1, row) - merged.total(0, row)
            also = None
        usual, seen = _scatter([record.duration_s for record in sample], whole)
        return _Verdict(path, difference, usual, count, also, seen, whole)
    if path is None:
        return _Verdict(None, difference, None, count)

    def judge(row: int) -> tuple[bool | None, tuple[float, float] | None]:
        pair = _Whole(merged.total(0, row), merged.total(1, row), None)
        return _scatter(_totals(sample, merged.paths[row]), pair)

    usual, seen = judge(row)
    if usual and also is not None:
        # What is said to be usual is all that is told; what is not usual is the news.
        others = None if also.itself else judge(merged.paths.index(also.path))[0]
        if others is False:
            return _Verdict(also.path, also.seconds, others, count)
        also = also if others else None
    return _Verdict(path, difference, usual, count, also, seen)


def _largest(merged: Merged) -> int:
    """Give the phase that itself changed most."""
    rows = [row for row, path in enumerate(merged.paths) if path]
    return max(rows, key=lambda row: abs(merged.itself(1, row) - merged.itself(0, row)))


def _both_succeeded(first: Side, second: Side) -> bool:
    return first.status == second.status == "succeeded"


def _whole(first: Side, second: Side, merged: Merged, told: float) -> _Whole | None:
    """Give what is to be told of the builds in all; ``told`` seconds are told of phases."""
    before, after = first.duration_s, second.duration_s
    more, longer = after - before, max(before, after)
    if abs(more) < _LEAST_S or longer < _CLEARLY * min(before, after):
        return None
    if not _both_succeeded(first, second):
        return None
    large = [
        (merged.itself(0, row), merged.itself(1, row))
        for row, path in enumerate(merged.paths)
        if path and max(merged.itself(0, row), merged.itself(1, row)) >= _LARGE * longer
    ]
    changed = [
        pair
        for pair in large
        if min(pair) > 0
        and max(pair) >= _CLEARLY * min(pair)
        and (pair[1] > pair[0]) is (after > before)
    ]
    ratios = [pair[1] / pair[0] for pair in changed]
    enough = len(changed) >= max(_FEWEST_LARGE, _NEARLY_ALL * len(large))
    # Also of the time of the shorter build, that no large phase stayed as it was.
    faster = 0 if more > 0 else 1
    share = sum(pair[faster] for pair in changed) / (sum(pair[faster] for pair in large) or 1.0)
    if enough and share >= _NEARLY_ALL:
        return _Whole(before, after, (min(ratios), max(ratios)))
    if told * more > 0 and abs(told) >= _MOST_OF_IT * abs(more):
        return None
    return _Whole(before, after, None)


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


def _scatter(values: list[float], pair: _Whole) -> tuple[bool | None, tuple[float, float] | None]:
    """Say whether two builds of this kind differ so much by chance; the module's text says when.

    Returns
    -------
    tuple
        That, or None where it is not known; and in this case what was seen, if there was enough.
    """
    if len(values) < FEWEST:
        return None, None
    factor = _STUDENT[min(len(values) - FEWEST, len(_STUDENT) - 1)]
    difference = abs(pair.after_s - pair.before_s)
    if difference > factor * math.sqrt(2) * statistics.stdev(values):
        return False, None
    low, high = min(values), max(values)
    both = (pair.before_s, pair.after_s)
    if all(low - _ROUNDING_S <= value <= high + _ROUNDING_S for value in both):
        return True, None
    return None, (low, high)


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
    before += _stopped(first, second)
    told = _told(first, second, found, same=same)
    if not before and (found.path is None or found.path == OUTSIDE or found.whole is not None):
        told = told[:1].upper() + told[1:]
    notes = []
    if same is None:
        models = " and ".join(line(str(side.model), 60) for side in (first, second))
        notes.append(f"Whether {models} are the same network is not known.")
    elif same and _both_succeeded(first, second) and (found.path is not None or found.whole):
        notes += _chance(found)
    left_out = first.left_out + second.left_out
    if left_out:
        what = "build holds" if left_out == 1 else "builds hold"
        notes.append(f"{left_out:,} earlier {what} times that cannot be, and are left out.")
    return f"{before}{told}.", notes


def _told(first: Side, second: Side, found: _Verdict, *, same: bool | None) -> str:
    """Say what changed, and why if it is known, without a full stop."""
    told = [] if found.whole is None else [_in_all(first, second, found.whole, same=same)]
    if found.path is not None:
        name = label(found.path) if found.path else "what is outside of TensorRT's phases"
        phases = f"{name} {_took(found.difference_s)}"
        if found.also is not None:
            itself = " itself" if found.also.itself else ""
            phases += f", {label(found.also.path)}{itself} {_took(found.also.seconds)}"
        told.append(phases)
    elif found.whole is not None and found.whole.ratios is None:
        told.append("no phase alone took much more or less")
    if not told:
        if not _both_succeeded(first, second):
            return "no phase took much more or less"
        return "all phases took about the same"
    words = "; ".join(told)
    if same is False or not _both_succeeded(first, second):
        return words
    if found.usual and same:
        return f"{words}, which is within the usual scatter of {found.earlier} earlier builds"
    return words + _because(first, second, found)


def _in_all(first: Side, second: Side, whole: _Whole, *, same: bool | None) -> str:
    """Say what the builds took in all."""
    words = f"in all {duration(whole.after_s)} instead of {duration(whole.before_s)}"
    if whole.ratios is None:
        return words
    low, high = whole.ratios
    if high > _ALIKE * low:
        return f"{words}, nearly all phases {'longer' if low > 1 else 'shorter'}"
    digits = 1 if low > 1 else 2
    shown = [f"{ratio:.{digits}f}" for ratio in (low, high)]
    words += f", nearly all phases {' to '.join(dict.fromkeys(shown))} times as long"
    known = same and _network_known(first, second)
    if known and not dict(_differing(first, second)):
        words += f", perhaps because the machine was {'busier' if low > 1 else 'less busy'}"
    return words


def _chance(found: _Verdict) -> list[str]:
    """Say whether that is more than chance, where the sentence does not."""
    if found.usual:
        return []
    if found.usual is False:
        return [f"That is more than the usual scatter of {found.earlier} earlier builds."]
    if found.seen is not None:
        what = ""
        if found.path is not None and found.whole is None:
            what = f" for {label(found.path)}" if found.path else f" {label(OUTSIDE)}"
        seen = " to ".join(dict.fromkeys(map(duration, found.seen)))
        words = (
            f"{found.earlier} earlier builds took {seen}{what}: whether this is more than chance"
        )
        return [f"{words} is not certain."]
    note = "Whether that is more than chance is not known: it takes"
    return [f"{note} {FEWEST} earlier builds of the network to say."]


def _stopped(first: Side, second: Side) -> str:
    """Say which of two builds did not succeed, before what is said of their times."""
    stopped = [side for side in (first, second) if side.status != "succeeded"]
    if not stopped:
        return ""
    who = " and ".join(f"{line(side.name, 60)} {ended(side)}" for side in stopped)
    their = "its" if len(stopped) == 1 else "their"
    return f"{who}, so {their} times are those up to then: "


def ended(side: Side) -> str:
    """Say how and when a build ended that did not succeed."""
    how = {"cancelled": "was cancelled", "failed": "failed"}.get(
        side.status, "ended with an outcome that is not known"
    )
    return f"{how} after {duration(side.duration_s)}"


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


def _network_known(first: Side, second: Side) -> bool:
    """Say whether something speaks for one network; else the builds may be of any two."""
    named = first.model is not None and first.model == second.model
    return bool(first.network and second.network) or named


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
        sure = found.usual is False and found.whole is None and _all_known(first, second)
        return f": {cause}" if sure else f", perhaps because {cause}"
    listed = ", ".join(
        f"{name} ({change})" if change else name for name, change in differing.items()
    )
    return f"; the builds differ in {listed}"


def _cause(first: Side, second: Side, found: _Verdict, differing: list[str]) -> str:
    """Give what explains the difference, if it is the only thing that differs."""
    if not _network_known(first, second) or not found.path or len(differing) != 1:
        return ""
    if found.also is not None and (found.also.seconds > 0) is not (found.difference_s > 0):
        return ""
    slower = second if found.difference_s > 0 else first
    if differing == [_NAMES["timing_cache"]]:
        if found.whole is not None and found.whole.ratios is not None:
            return ""  # it has no influence on nearly all phases
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
