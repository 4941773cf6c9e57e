"""What a comparison knows of each build, whatever it was given as."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from trt_widget._text import line
from trt_widget._timing_cache import STATES as CACHE_STATES
from trt_widget.build import FINAL, Build
from trt_widget.errors import BuildError
from trt_widget.history import VARIABLE, BuildKey, BuildRecord, History
from trt_widget.identity import digest_of_options
from trt_widget.record import Record, load_record, make_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["OUTSIDE", "CompareError", "Path", "Phase", "Side", "read_sides"]

#: A phase: the names from the root down to it.
Path = tuple[str, ...]

#: Stands for the time in which no phase of TensorRT was open: starting, reading the model.
OUTSIDE: Final[Path] = ()

_FORMS: Final = (
    "Give builds that have ended (Build, BuildWidget, Record), paths of saved records, or builds "
    "of the history (build.earlier, History().similar(key))."
)
#: Options with an influence on what is built and how long that takes.
_OPTIONS: Final = (
    *("flags", "strongly_typed", "network_flags"),
    *("optimization_level", "workspace", "device", "target"),
)
#: Those of them that are in the digest, with values that stand for nothing.
_NOTHING: Final[dict[str, Any]] = {
    **dict.fromkeys(("flags", "network_flags"), ()),
    **dict.fromkeys(("strongly_typed", "optimization_level", "workspace")),
}
#: Options that are in the digest and not plain.
_REST: Final = ("profiles", "plugins", "configure", "config")
_NO_REST: Final[dict[str, Any]] = {
    **dict.fromkeys(("profiles", "plugins"), ()),
    **dict.fromkeys(("configure", "config")),
}
_TWO: Final = 2
#: What a build is called that has no name of its own.
_NAMELESS: Final = ("", "<bytes>", "your build")
_MAX_NAME: Final = 60
#: No build takes longer: some thirty thousand years.
_LONGEST_S: Final = 1e12
_MOST: Final = 2**63


class CompareError(BuildError, ValueError):
    """What was given cannot be compared."""


@dataclass(frozen=True)
class Phase:
    """What one path took in one build: seconds in all and in itself, and how often."""

    total_s: float
    self_s: float
    count: int


@dataclass(frozen=True)
class Side:
    """One build of a comparison.

    Attributes
    ----------
    name
        What people call it.
    duration_s
        From its start to its end.
    phases
        By path, in tree order; :data:`OUTSIDE` is among them.
    facts
        What can explain a difference, by name, as far as it is known: ``timing_cache``,
        ``version``, ``target`` (of the history's key), ``device``, ``executor``.
    options
        The options with an influence, or None where only ``digest`` is known of them.
    digest
        Digest of the options, or None.
    network
        Hash of the network, or None.
    layers
        Its number of layers, or None.
    status
        How it ended.
    sample
        Earlier builds of the same network in the same way.
    model
        What the model is called, or None.
    rest
        Digest of the options that are not plain, such as profiles; None where it is not known.
    left_out
        Number of earlier builds whose times cannot be.
    moment
        Start or end, and duration, which no two builds have in common; None where it is not known.
    """

    name: str
    duration_s: float
    phases: Mapping[Path, Phase]
    facts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] | None = None
    digest: str | None = None
    network: str | None = None
    layers: int | None = None
    status: str = "succeeded"
    sample: tuple[BuildRecord, ...] = ()
    model: str | None = None
    rest: str | None = None
    left_out: int = 0
    moment: tuple[str, float, float] | None = None


def read_sides(given: Sequence[Any], names: Any) -> list[Side]:
    """Read what :func:`trt_widget.compare` was given.

    Their names fit into a line, control nothing and are not the same.

    Raises
    ------
    CompareError
        Too few builds, one that has not ended or whose times cannot be, or something else
        altogether.
    RecordError
        A path that is no record's.
    """
    if not given:
        raise CompareError("There is nothing to compare.", _FORMS)
    if len(given) == 1:
        sides = _with_its_past(given[0])
    else:
        sides = _know(given, [_read(item) for item in given])
    chosen = _check_names(names, len(sides))
    if chosen is None:
        chosen = [_shown(side.name) for side in sides]
        if len(set(chosen)) < len(chosen) and len(given) > 1:
            chosen = _with_folders(given, chosen)
        if len(set(chosen)) < len(chosen):
            chosen = [f"build {number}" for number in range(1, len(sides) + 1)]
    return [replace(side, name=name) for side, name in zip(sides, chosen, strict=True)]


def _know(given: Sequence[Any], sides: list[Side]) -> list[Side]:
    """Add what is known of earlier builds that were given beside the build that has them."""
    known = list(sides)
    for build, own in zip(given, sides, strict=True):
        build = getattr(build, "_build", build)  # noqa: PLW2901 - a widget stands for its build
        earlier = build.earlier if isinstance(build, Build) else []
        for at, item in enumerate(given):
            records = [item] if isinstance(item, BuildRecord) else item
            if _are_records(records) and all(record in earlier for record in records):
                known[at] = _like(sides[at], own)
    return known


def _like(side: Side, own: Side) -> Side:
    """Give a build of the history what is known of another one with the same key."""
    return replace(
        side,
        facts=own.facts,
        options=own.options,
        digest=own.digest,
        network=own.network,
        layers=own.layers,
        model=own.model,
        rest=own.rest,
    )


def _with_folders(given: Sequence[Any], names: list[str]) -> list[str]:
    """Put the folder before the names of files that have the same one."""
    return [
        _shown(f"{FilePath(os.fsdecode(item)).absolute().parent.name}/{name}")
        if isinstance(item, (str, os.PathLike)) and names.count(name) > 1
        else name
        for item, name in zip(given, names, strict=True)
    ]


def _shown(name: str) -> str:
    return line(name, _MAX_NAME)


def _check_names(names: Any, count: int) -> list[str] | None:
    if names is None:
        return None
    given = list(names) if isinstance(names, (list, tuple)) else []
    if len(given) != count or not all(isinstance(name, str) and name for name in given):
        raise CompareError(
            f"names= must be {count} texts, one for each build, in their order.",
            'For example names=["cold", "warm"].',
        )
    if len(set(given)) < count:
        raise CompareError("names= holds the same name twice.", "Give each build its own.")
    shown = [_shown(name) for name in given]
    if len(set(shown)) < count:  # those that differ only in what is not shown
        shown = [f"{number}: {line(name, 50)}" for number, name in enumerate(given, 1)]
    return shown


def _with_its_past(given: Any) -> list[Side]:
    """Give the build, after the one that stands for those before it."""
    if _are_records(given):
        sound = [record for record in given if _is_sound(record)]
        if len(sound) < _TWO:
            left = "" if len(given) == len(sound) else " The times of the others cannot be."
            raise CompareError(
                f"There {'is one build only' if sound else 'is no build'}.{left}",
                "Build the network once more.",
            )
        *past, last = sorted(sound, key=lambda record: record.finished_at)
        newest = replace(_of_history(last), left_out=len(given) - len(sound))
        return [_typical(past, newest), newest]
    build = getattr(given, "_build", given)
    if isinstance(build, (str, os.PathLike)):
        build = load_record(build)
    if isinstance(build, Build):
        side, key, history = _of_build(build), build.key, build.history
        earlier, before = build.earlier, build.entered_at[build.status]
    elif isinstance(build, Record):
        side, history = _of_record(build), History()
        key = None if build.key is None else BuildKey(**build.key)
        # Later ones may be there, too, and this one itself.
        before = build.started_epoch
        found = [] if key is None else history.similar(key)
        earlier = [record for record in found if _is_sound(record) and record.finished_at <= before]
    else:
        _read(given)  # says what is wrong with it, if anything is
        raise CompareError(
            "Of one build of the history it is not known which ones were built in the same way.",
            "Give two, or all of them in a list: compare(build.earlier).",
        )
    side = replace(side, name="this build")
    state, records = _last_time(key, history, earlier, before)
    if not records:
        raise _no_earlier(build, history)
    facts = {**side.facts, "timing_cache": state}
    return [replace(_typical(records, side), facts=facts), side]


def _no_earlier(build: Build | Record, history: History | None) -> CompareError:
    """Say why the history has no earlier builds of it, and what helps."""
    name = _shown(build.name)
    other = "give another build to compare it with: compare(before, after)"
    alone = other[0].upper() + other[1:] + "."
    if build.executor == "attached":
        return CompareError(
            f"The history knows no builds of the user's own code, such as {name}: it cannot tell "
            "which of them are of one network.",
            alone,
        )
    if build.executor == "followed":
        return CompareError(
            f"The history here knows no builds of elsewhere, such as {name}: they are remembered "
            "where they are built.",
            alone,
        )
    if history is None:
        history = History()
    if not history.enabled:
        return CompareError(
            f"The history of builds is switched off ({VARIABLE}=off), so no earlier build of "
            f"{name} is known.",
            f"Set {VARIABLE} to a file, or delete it, and build twice; or {other}.",
        )
    if history.note:
        return CompareError(
            f"No earlier build of {name} is known: {history.note}",
            f"Put the file right ({_shown(str(history.path))}), or {other}.",
        )
    if build.key is None:
        how = "" if build.status == "succeeded" else f" (the build {build.status})"
        return CompareError(
            f"Which network {name} is did not become known{how}, so its earlier builds cannot be "
            "found.",
            alone,
        )
    return CompareError(
        f"The history knows no earlier build of {name} that was built in the same way.",
        f"Build it once more with the same options, or {other}.",
    )


def _last_time(
    key: BuildKey | None, history: History | None, earlier: Sequence[BuildRecord], before: float
) -> tuple[str, list[BuildRecord]]:
    """Give the earlier builds that are like the last one before, and their timing cache's state.

    That may be another state than this build's, which then explains the difference.
    """
    if key is None:
        return "none", []
    best = (key.timing_cache, [record for record in earlier if _is_sound(record)])
    for state in CACHE_STATES:
        if history is None or state == key.timing_cache:
            continue
        found = [
            record
            for record in history.similar(replace(key, timing_cache=state))
            if _is_sound(record) and record.finished_at <= before
        ]
        if found and (not best[1] or found[0].finished_at > best[1][0].finished_at):
            best = (state, found)
    return best


def _typical(records: Sequence[BuildRecord], like: Side) -> Side:
    """Give the one of several builds whose duration is in the middle."""
    sound = [record for record in records if _is_sound(record)]
    if not sound:
        raise CompareError("The builds of the history hold times that cannot be.", _FORMS)
    middle = statistics.median_low(record.duration_s for record in sound)
    record = next(record for record in sound if record.duration_s == middle)
    name = "earlier" if len(sound) == 1 else f"earlier (the middle one of {len(sound)})"
    left_out = len(records) - len(sound)
    middle_one = replace(_of_history(record), name=name, sample=tuple(sound), left_out=left_out)
    return _like(middle_one, like)


def _read(given: Any) -> Side:
    build = getattr(given, "_build", given)
    if isinstance(build, Build):
        return replace(_of_build(build), sample=tuple(filter(_is_sound, build.earlier)))
    if isinstance(given, Record):
        return _of_record(given)
    if isinstance(given, (str, os.PathLike)):
        return replace(_of_record(load_record(given)), name=_stem(given))
    if isinstance(given, BuildRecord):
        return _of_history(given)
    if _are_records(given):
        return _typical(given, _NOBODY)
    if isinstance(given, tuple) and len(given) == len(("key", "record")):
        key, record = given
        if isinstance(key, BuildKey) and isinstance(record, BuildRecord):
            return _of_history(record, key)
    if isinstance(given, (list, tuple)):
        _refuse_list(given)
    kind = type(given).__name__
    what = "None" if given is None else f"{'An' if kind[0] in 'aeiouAEIOU' else 'A'} {kind}"
    raise CompareError(f"{what} is no build that has ended.", _FORMS)


def _refuse_list(given: Sequence[Any]) -> None:
    """Refuse a list that is none of the history's, if it is plain what was meant."""
    if not given:
        raise CompareError(
            "There are no earlier builds: the list is empty.",
            "Build the network once more with the same options, or give another build.",
        )
    kinds = (Build, Record, str, os.PathLike)
    if all(isinstance(getattr(item, "_build", item), kinds) for item in given):
        raise CompareError(
            "Builds in a list are not compared.",
            "Give them one by one: compare(a, b), or of a list compare(*builds).",
        )


def _stem(path: str | os.PathLike[str]) -> str:
    return FilePath(os.fsdecode(path)).stem


def _are_records(given: Any) -> bool:
    return (
        isinstance(given, (list, tuple))
        and bool(given)
        and all(isinstance(item, BuildRecord) for item in given)
    )


def _ended(build: Build) -> Record:
    if build.status not in FINAL:
        raise CompareError(
            f"The build of {_shown(build.name)} has not ended ({build.status}): what it takes is "
            "not known yet.",
            "Wait for it: build.wait(). Meanwhile build.eta_s and build.exceeded say how it stands "
            "against earlier ones.",
        )
    return make_record(build)


def _of_build(build: Build) -> Side:
    side = _of_record(_ended(build))
    if side.digest is None and side.options is not None:  # without a history nobody asked for it
        side = replace(side, digest=digest_of_options(build.options))
    rest = {name: getattr(build.options, name) for name in _REST}
    return replace(side, rest=_digest_of_rest(side, rest) or side.rest)


def _digest_of_rest(side: Side, rest: Mapping[str, Any]) -> str | None:
    """Give a digest of the options that are not plain, if those were the ones of the build."""
    if side.options is None or side.digest is None:
        return None
    try:
        whole: Any = SimpleNamespace(**side.options, **rest)
        if digest_of_options(whole) != side.digest:
            return None
        alone: Any = SimpleNamespace(**_NOTHING, **rest)
        return digest_of_options(alone)
    except TypeError:  # a record's options are any plain values
        return None


def _of_record(record: Record) -> Side:
    result = record.result
    if result is None:
        raise CompareError(
            f"The record of {_shown(record.name)} was made while the build was {record.status}: "
            "what it took is not known.",
            "Save a record after the end.",
        )
    if result.ended_by == "cached":
        raise CompareError(
            f"The engine of {_shown(record.name)} is from the engine cache: nothing was built, and "
            "there are no times to compare.",
            "Build with engine_cache=False.",
        )
    columns = record.path_columns
    paths: list[Path] = []
    for name, parent in zip(columns["name"], columns["parent"], strict=True):
        paths.append((name,) if parent < 0 else (*paths[parent], name))
    times = (result.duration_s, *columns["total_s"], *columns["self_s"])
    if not all(map(_is_time, times)):
        raise CompareError(
            f"The record of {_shown(record.name)} holds times that cannot be.", _FORMS
        )
    phases = {
        path: Phase(total, itself, count)
        for path, total, itself, count in zip(
            paths, columns["total_s"], columns["self_s"], columns["count"], strict=True
        )
    }
    key = record.key or {}
    cache = (result.timing_cache or {}).get("state", key.get("timing_cache"))
    facts = {
        "timing_cache": cache,
        "version": f"{record.backend} {record.version}",
        "target": key.get("target"),
        "device": result.device,
        "executor": record.executor,
    }
    # What the user's own code has set is not known, nor what was set elsewhere.
    known = record.executor not in {"attached", "followed"}
    side = Side(
        record.name,
        result.duration_s,
        _with_outside(phases, result.duration_s),
        {name: value for name, value in facts.items() if value},
        {name: record.options.get(name) for name in _OPTIONS} if known else None,
        key.get("options") or None,
        key.get("network") or None,
        result.layers,
        record.status,
        model=None if record.name in _NAMELESS else record.name,
        moment=("started", record.started_epoch, result.duration_s),
    )
    return replace(side, rest=_digest_of_rest(side, _NO_REST))


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0.0 <= value <= _LONGEST_S


def _is_sound(record: Any) -> bool:
    """Say whether a ``BuildRecord``, which anybody can make, is of a build that can have been."""
    return (
        _is_time(record.duration_s)
        and isinstance(record.finished_at, (int, float))
        and math.isfinite(record.finished_at)
        and all(
            isinstance(path, tuple)
            and set(map(type, path)) <= {str}
            and _is_time(times.start_s)
            and _is_time(times.total_s)
            and isinstance(times.count, int)
            and 0 <= times.count < _MOST
            for path, times in record.phases.items()
        )
    )


def _of_history(record: BuildRecord, key: BuildKey | None = None) -> Side:
    if not _is_sound(record):
        raise CompareError("A build of the history holds times that cannot be.", _FORMS)
    totals = {path: times.total_s for path, times in record.phases.items() if path}
    below: dict[Path, float] = {}
    for path, total in totals.items():
        below[path[:-1]] = below.get(path[:-1], 0.0) + total
    ordered = sorted(totals, key=lambda path: (record.phases[path].start_s, len(path)))
    phases = {
        path: Phase(
            totals[path],
            max(0.0, totals[path] - below.get(path, 0.0)),
            record.phases[path].count,
        )
        for path in ordered
    }
    facts: dict[str, str] = {}
    layers = None
    if key is not None:
        facts = {
            "timing_cache": key.timing_cache,
            "version": f"{key.package} {key.version}",
            "target": key.target,
            "executor": key.executor,
        }
        layers = int(key.size["layers"]) if _is_time(key.size.get("layers")) else None
    try:
        when = datetime.fromtimestamp(record.finished_at, timezone.utc)
        name = f"{when:%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        name = "earlier"
    return Side(
        name,
        record.duration_s,
        _with_outside(phases, record.duration_s),
        {name: value for name, value in facts.items() if value},
        digest=(key.options or None) if key is not None else None,
        network=(key.network or None) if key is not None else None,
        layers=layers,
        moment=("finished", record.finished_at, record.duration_s),
    )


def _with_outside(phases: dict[Path, Phase], duration_s: float) -> dict[Path, Phase]:
    rest = duration_s - sum(phase.total_s for path, phase in phases.items() if len(path) == 1)
    return {**phases, OUTSIDE: Phase(max(0.0, rest), max(0.0, rest), 1)}


#: Stands for a build of which nothing is known but its times.
_NOBODY: Final = Side("", 0.0, {})
