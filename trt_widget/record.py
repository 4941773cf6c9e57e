"""A build as plain data: everything but the engine, to be kept, sent and looked at elsewhere.

:func:`make_record` takes the state of a build, :meth:`Record.save` writes it as JSON and
:func:`load_record` reads it back. A record shows the same tables and result as the build did.

The file is data and nothing else: reading it imports, executes and looks up nothing, and whatever
is not a record of this form is refused with :class:`RecordError`. Times keep every digit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trt_widget._files import map_file, save_atomically
from trt_widget._timing_cache import cache_facts
from trt_widget._version import __version__
from trt_widget.build import FINAL, BuildResult
from trt_widget.errors import BuildError, SaveError, from_record, to_record
from trt_widget.events import LogMessage
from trt_widget.history import BuildKey
from trt_widget.phases import MAX_PATHS, MAX_SILENCES, MAX_SPANS, PATH_SEPARATOR, STATUSES
from trt_widget.timings import log_frame, spans_frame, timings_frame

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd

    from trt_widget.build import Build
    from trt_widget.phases import PhaseTree
    from trt_widget.plot import Picture

__all__ = ["RECORD_VERSION", "Record", "RecordError", "as_record", "load_record", "make_record"]

#: Version of the form. It grows when a reader of the older form could misread the newer one.
RECORD_VERSION: Final = 1
#: Bytes of the largest file that is read; no build's record comes near.
MAX_BYTES: Final = 64 * 1024 * 1024
#: Characters of TensorRT's messages that a record keeps: warnings and errors first, newest first.
MAX_LOG: Final = 2_000_000
#: What a record's messages may count; a build keeps so many warnings and as many others.
MAX_MESSAGES: Final = 20_000

_FORMAT: Final = "trt_widget build record"
_SERIOUS: Final = ("warning", "error", "internal_error")
# Past MAX_PATHS each parent can get one node more, for the rest.
_MAX_PATHS: Final = 2 * MAX_PATHS + 1
# Characters of all joined paths: what a chain of long names, each below the other, may come to.
_MAX_PATH_CHARACTERS: Final = 64_000_000
_INT64: Final = 2**63
# Three centuries: sums of such times stay finite.
_LONGEST_S: Final = 1e10
_REMEDY: Final = "Only files that Record.save() wrote can be read; save the record again."

_OPTIONS: Final = (
    "executor",
    "timeout",
    "grace",
    "flags",
    "strongly_typed",
    "network_flags",
    "optimization_level",
    "workspace",
    "device",
    "target",
    "exclusive",
)


class RecordError(BuildError, ValueError):
    """A file or text that is not a record, is damaged, or is of a newer form."""


@dataclass(frozen=True)
class Record:
    """What is known of a build, without its engine.

    :attr:`timings`, :attr:`spans`, :attr:`log`, :attr:`messages`, :attr:`status`, :attr:`result`,
    :attr:`printed` and :meth:`epoch` are as in :class:`~trt_widget.build.Build`.

    Attributes
    ----------
    name
        Display name of the source.
    status
        The state of the build when the record was made.
    executor
        Where the builder ran.
    backend, version
        The TensorRT package and its version.
    result
        What the build came to, or ``None`` where it had not ended. Its ``warnings`` are those
        among the kept messages.
    now_s
        Seconds since the start of ``running`` at which the record was made, or the build ended.
    started_epoch
        Time zero of all seconds, since the epoch.
    entered_at
        When each state was reached, since the epoch.
    notes
        Sentences for people that are not errors.
    options
        The options that are plain values.
    anomalies
        How often something came that TensorRT's contract excludes, by kind.
    cancel_delivered
        When ``step_complete`` first answered False, in seconds, or ``None``.
    spans_dropped, log_dropped
        Phase instances and messages that are not kept one by one.
    printed
        What the build process printed.
    writer
        Version of trt_widget that made the record.
    path_columns
        A row per phase path in tree order: ``name``, ``parent`` (row or -1), ``count``,
        ``total_s``, ``self_s``, ``max_s``, ``steps``, ``num_steps``, ``status``.
    span_columns
        A row per phase instance in start order: ``path`` (row of the path), ``parent`` (row of the
        instance above or -1), ``start_s``, ``end_s`` (``None`` while open), ``self_s``, ``steps``,
        ``num_steps``, ``status``.
    log_messages
        TensorRT's messages that are kept, in order.
    silence_columns
        A row per time of more than a second without a callback and phase that was innermost then,
        by start: ``path`` (row of the path), ``start_s``, ``end_s``; the longest. ``None`` in a
        record of an older writer, which did not measure them.
    key
        What the build is comparable with: :class:`~trt_widget.history.BuildKey` as a plain dict,
        or ``None`` where it is not known.
    estimate
        What was known of the time: ``progress``, ``eta_s``, ``exceeded``, ``expected_s``,
        ``basis`` as in :class:`~trt_widget.build.Build`, or ``None`` where nothing was.
    """

    name: str
    status: str
    executor: str
    backend: str
    version: str
    result: BuildResult | None
    now_s: float
    started_epoch: float
    entered_at: dict[str, float]
    notes: tuple[str, ...]
    options: dict[str, Any]
    anomalies: dict[str, int]
    cancel_delivered: float | None
    spans_dropped: int
    log_dropped: int
    printed: str
    writer: str
    path_columns: dict[str, list[Any]] = field(repr=False)
    span_columns: dict[str, list[Any]] = field(repr=False)
    log_messages: list[LogMessage] = field(repr=False)
    silence_columns: dict[str, list[Any]] | None = field(default=None, repr=False)
    key: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None

    # ------------------------------------------------------------------ as a build shows itself

    @property
    def complete(self) -> bool:
        """Whether the build had ended."""
        return self.status in FINAL

    @property
    def timings(self) -> pd.DataFrame:
        """A row per phase path, in tree order."""
        columns = self.path_columns
        totals, counts, parents = columns["total_s"], columns["count"], columns["parent"]
        whole = sum(total for total, parent in zip(totals, parents, strict=True) if parent < 0)
        frame = {
            "phase": list(columns["name"]),
            "path": self.joined_paths(),
            "depth": self.depths(),
            "count": list(counts),
            "total_s": list(totals),
            "self_s": list(columns["self_s"]),
            "mean_s": [
                total / count if count else 0.0 for total, count in zip(totals, counts, strict=True)
            ],
            "max_s": list(columns["max_s"]),
            "share": [total / whole if whole > 0 else 0.0 for total in totals],
            "steps": list(columns["steps"]),
            "num_steps": list(columns["num_steps"]),
            "status": list(columns["status"]),
        }
        return timings_frame(frame, complete=self.complete)

    @property
    def spans(self) -> pd.DataFrame:
        """A row per phase instance, in start order."""
        columns = self.span_columns
        names, paths, depths = self.path_columns["name"], self.joined_paths(), self.depths()
        rows, starts, ends = columns["path"], columns["start_s"], columns["end_s"]
        frame = {
            "phase": [names[row] for row in rows],
            "path": [paths[row] for row in rows],
            "depth": [depths[row] for row in rows],
            "parent": list(columns["parent"]),
            "start_s": list(starts),
            "end_s": [math.nan if end is None else end for end in ends],
            "duration_s": [
                (self.now_s if end is None else end) - start
                for start, end in zip(starts, ends, strict=True)
            ],
            "self_s": list(columns["self_s"]),
            "steps": list(columns["steps"]),
            "num_steps": list(columns["num_steps"]),
            "status": list(columns["status"]),
        }
        return spans_frame(frame, complete=self.complete, dropped=self.spans_dropped)

    @property
    def log(self) -> pd.DataFrame:
        """TensorRT's messages: ``time_s``, ``severity``, ``message``."""
        return log_frame(self.log_messages, dropped=self.log_dropped)

    @property
    def messages(self) -> list[LogMessage]:
        """TensorRT's warnings and errors."""
        return [message for message in self.log_messages if message.severity in _SERIOUS]

    def epoch(self, time: float) -> float:
        """Turn a time of the record into seconds since the epoch."""
        return self.started_epoch + time

    def depths(self) -> list[int]:
        """Give the depth of every path; a root has 0."""
        depths: list[int] = []
        for parent in self.path_columns["parent"]:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def joined_paths(self) -> list[str]:
        """Give every path as text for people."""
        paths: list[str] = []
        columns = self.path_columns
        for name, parent in zip(columns["name"], columns["parent"], strict=True):
            paths.append(name if parent < 0 else f"{paths[parent]}{PATH_SEPARATOR}{name}")
        return paths

    def silent_spans(self) -> list[int]:
        """Give the instance of each silence: its row among the instances, -1 if it was not kept."""
        return list(self._silent_spans)

    @cached_property
    def _silent_spans(self) -> list[int]:
        if self.silence_columns is None:
            return []
        silent, spans = self.silence_columns, self.span_columns
        paths, starts, ends = spans["path"], spans["start_s"], spans["end_s"]
        # Of each path those instances of which no later one ends later, the last to end first: who
        # was innermost at a time is among them.
        open_of: dict[int, tuple[list[float], list[int]]] = {
            path: ([], []) for path in silent["path"]
        }
        found = [-1] * len(silent["path"])
        row = 0
        for index in sorted(range(len(found)), key=silent["start_s"].__getitem__):
            while row < len(paths) and starts[row] <= silent["start_s"][index]:
                if paths[row] in open_of:
                    # Negative, as what is searched by halves has to grow.
                    until = -math.inf if ends[row] is None else -ends[row]
                    untils, rows = open_of[paths[row]]
                    while untils and untils[-1] >= until:
                        untils.pop()
                        rows.pop()
                    untils.append(until)
                    rows.append(row)
                row += 1
            untils, rows = open_of[silent["path"][index]]
            last = bisect_right(untils, -silent["end_s"][index]) - 1
            if last >= 0:
                found[index] = rows[last]
        return found

    # ------------------------------------------------------------------ as data

    def to_json(self) -> str:
        """Write the record as one JSON object, in ASCII."""
        data = {
            "format": _FORMAT,
            "version": RECORD_VERSION,
            "writer": self.writer,
            "build": {name: getattr(self, name) for name in _BUILD_FIELDS},
            "result": None if self.result is None else _plain_result(self.result),
            "paths": self.path_columns,
            "spans": self.span_columns,
            "log": {
                "time_s": [message.time for message in self.log_messages],
                "severity": [message.severity for message in self.log_messages],
                "message": [message.message for message in self.log_messages],
            },
        }
        optional = {
            "silences": self.silence_columns,
            "key": self.key,
            "estimate": self.estimate,
        }
        data.update((name, value) for name, value in optional.items() if value is not None)
        return json.dumps(data, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read what :meth:`to_json` wrote.

        Unknown keys are ignored, so that a later writer can add some.

        Raises
        ------
        RecordError
            It is not JSON, not a record, damaged, or of a newer form.
        """
        if len(text) > MAX_BYTES:
            _refuse(f"it is larger than {MAX_BYTES >> 20} MiB")
        try:
            data = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"This is no record of a build: {error}.", _REMEDY) from error
        return _read(data)

    def plot(self) -> Picture:
        """Draw the timeline: a picture that a notebook shows, and that can be saved as SVG."""
        from trt_widget.plot import Picture

        return Picture(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record to ``path``, whole or not at all.

        Raises
        ------
        SaveError
            It could not be written; what was there before is intact.
        """
        return save_as("record", self.to_json().encode("ascii"), path)


_BUILD_FIELDS: Final = (
    "name",
    "status",
    "executor",
    "backend",
    "version",
    "now_s",
    "started_epoch",
    "entered_at",
    "notes",
    "options",
    "anomalies",
    "cancel_delivered",
    "spans_dropped",
    "log_dropped",
    "printed",
)


def load_record(path: str | os.PathLike[str]) -> Record:
    """Read a record from a file.

    Raises
    ------
    RecordError
        The file cannot be read, is not a record, is damaged, or was written by a newer version.
    """
    try:
        place = Path(path)
    except TypeError as error:
        raise RecordError(
            f"{path!r:.200} is not a path.", "Give the path of a file that Record.save() wrote."
        ) from error
    try:
        with map_file(place) as mapped:
            if mapped.nbytes > MAX_BYTES:
                _refuse(f"it is larger than {MAX_BYTES >> 20} MiB")
            content = bytes(mapped)
        return Record.from_json(content)
    except RecordError as error:
        raise RecordError(
            f"{str(place)!r} cannot be read as a record. {error.cause}", error.remedy
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        raise RecordError(
            f"{str(place)!r} cannot be read as a record: {why}.",
            "Give the path of a file that Record.save() wrote.",
        ) from error


def save_as(what: str, data: Any, path: str | os.PathLike[str]) -> Path:
    """Write ``data`` whole or not at all; ``what`` it is goes into the error's words."""
    try:
        return save_atomically(data, path)
    except SaveError as error:
        raise SaveError(
            error.cause.replace("The engine could", f"The {what} could", 1),
            error.remedy.replace("; the engine is still in memory", ""),
            error=error,
            filename=error.filename,
        ) from error


def as_record(build: Build | Record) -> Record:
    """Give a record as it is, and make one of a build."""
    return build if isinstance(build, Record) else make_record(build)


# ---- from a build -------------------------------------------------------------------------------


def make_record(build: Build) -> Record:
    """Make a record of a build as it is now, ended or not."""
    with build.lock:
        now = build.now()
        # One reading for both tables: what is open counts up to the same moment.
        now = max(now, build.tree.now)
        tree = build.tree
        timings, spans = tree.timing_columns(now), tree.span_columns(now)
        paths, rows = _tree_columns(tree, timings, spans)
        silences = _silence_columns(tree, now)
        messages, log_dropped = build.log_messages()
        result, status = build.result, build.status
        anomalies, entered_at = dict(tree.anomalies), dict(build.entered_at)
        cancel_delivered, dropped = tree.cancel_delivered, tree.spans_dropped
        notes, printed = tuple(build.notes), build.printed
    kept = _keep(messages)
    return Record(
        name=build.name,
        status=status,
        executor=build.executor,
        backend=build.backend.name,
        version=build.backend.version,
        result=result,
        now_s=now,
        started_epoch=build.epoch(0.0),
        entered_at=entered_at,
        notes=result.notes if result is not None else notes,
        options=_plain_options(build.options),
        anomalies=anomalies,
        cancel_delivered=cancel_delivered,
        spans_dropped=dropped,
        log_dropped=log_dropped + len(messages) - len(kept),
        printed=printed,
        writer=__version__,
        path_columns=paths,
        span_columns=rows,
        log_messages=kept,
        silence_columns=silences,
        key=None if build.key is None else dataclasses.asdict(build.key),
        estimate=_plain_estimate(build),
    )


def _plain_estimate(build: Build) -> dict[str, Any] | None:
    estimate = {
        "progress": build.progress,
        "eta_s": build.eta_s,
        "exceeded": build.exceeded,
        "expected_s": build.expected_s,
        "basis": build.basis,
    }
    return None if estimate["expected_s"] is None else estimate


def _silence_columns(tree: PhaseTree, now: float) -> dict[str, list[Any]]:
    """Give the silences with the rows of a record's paths; the caller holds the lock."""
    row_of = {node.index: row for row, node in enumerate(tree.walk())}
    columns = tree.silence_columns(now)
    return {**columns, "path": [row_of[index] for index in columns["path"]]}


def _tree_columns(
    tree: PhaseTree, timings: dict[str, list[Any]], spans: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Give the columns of a record from those of a tree; the caller holds the lock."""
    nodes = list(tree.walk())
    row_of = {id(node): row for row, node in enumerate(nodes)}
    paths: dict[str, list[Any]] = {
        "name": timings["phase"],
        "parent": [-1 if node.parent is None else row_of[id(node.parent)] for node in nodes],
    }
    for name in ("count", "total_s", "self_s", "max_s", "steps", "num_steps", "status"):
        paths[name] = timings[name]
    rows: dict[str, list[Any]] = {
        "path": [row_of[id(node)] for node in tree.span_nodes()],
        "parent": spans["parent"],
        "start_s": spans["start_s"],
        "end_s": [None if math.isnan(end) else end for end in spans["end_s"]],
    }
    for name in ("self_s", "steps", "num_steps", "status"):
        rows[name] = spans[name]
    return paths, rows


def _keep(messages: list[LogMessage]) -> list[LogMessage]:
    """Give the messages that fit into :data:`MAX_LOG`, in their order."""
    left = MAX_LOG
    kept: set[int] = set()
    for serious in (True, False):
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if (message.severity in _SERIOUS) is serious:
                left -= len(message.message)
                if left < 0:
                    break
                kept.add(index)
    return [message for index, message in enumerate(messages) if index in kept]


def _plain_options(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _OPTIONS:
        value = getattr(options, name, None)
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=str)
        if isinstance(value, (list, tuple)):
            value = [str(item) for item in value]
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        elif not isinstance(value, (str, int, float, type(None))):
            continue
        found[name] = value
    return found


_RESULT_FIELDS: Final = (
    "status",
    "engine_bytes",
    "duration_s",
    "ended_by",
    "stop_latency_s",
    "reason",
    "backend",
    "version",
    "device",
    "executor",
    "model",
    "layers",
    "peak_memory_bytes",
    "notes",
    "timing_cache",
)


def _plain_result(result: BuildResult) -> dict[str, Any]:
    plain = {name: getattr(result, name) for name in _RESULT_FIELDS}
    plain["output"] = None if result.output is None else str(result.output)
    plain["error"] = None if result.error is None else _bounded(to_record(result.error))
    if result.worker is not None:
        plain["worker"] = result.worker
    return plain


def _bounded(record: dict[str, Any]) -> dict[str, Any]:
    """Give an error's record with the newest of its messages, within half of the log's bound."""
    left, kept = MAX_LOG // 2, []
    for text in reversed(record.get("messages", ())):
        left -= len(text)
        if left < 0:
            break
        kept.append(text)
    return {**record, "messages": kept[::-1]}


# ---- reading ------------------------------------------------------------------------------------


def _refuse(why: str) -> NoReturn:
    raise RecordError(f"This is no whole record of a build: {why}.", _REMEDY)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _show(value: object) -> str:
    text = ascii(value) if isinstance(value, (str, int, float, type(None))) else ""
    return text[:40] or f"a {type(value).__name__}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _seconds(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0.0 <= number <= _LONGEST_S else None


def _share(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0.0 <= number <= 1.0 else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def _count(value: object) -> int | None:
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _step_sum(value: object) -> int | None:
    # The sum of many announced numbers of 64 bits each.
    return value if type(value) is int and -(2**127) <= value < 2**127 else None


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


def _word(words: Iterable[str]) -> Callable[[object], str | None]:
    known = frozenset(words)
    return lambda value: value if isinstance(value, str) and value in known else None


def _get(data: Mapping[str, Any], key: str, check: Callable[[object], Any]) -> Any:
    if key not in data:
        _refuse(f"its {key!r} is missing")
    value = check(data[key])
    if value is None:
        _refuse(f"its {key!r} is {_show(data[key])}")
    return value


def _get_or_none(data: Mapping[str, Any], key: str, check: Callable[[object], Any]) -> Any:
    if data.get(key, "") is None:
        return None
    return _get(data, key, check)


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        _refuse(f"its {key!r} is missing" if key not in data else f"its {key!r} is no object")
    return value


def _columns(
    data: dict[str, Any], what: str, checks: Mapping[str, Callable[[object], Any]], most: int
) -> dict[str, list[Any]]:
    """Read a table: lists of equal length, each value of its column's kind."""
    given = _object(data, what)
    columns: dict[str, list[Any]] = {}
    for name, check in checks.items():
        values = given.get(name)
        if not isinstance(values, list):
            _refuse(f"its column {what}.{name} is missing")
        if len(values) > most:
            _refuse(f"its {what} are more than {most:,}")
        read = [check(value) for value in values]
        if None in read and (what, name) != ("spans", "end_s"):
            _refuse(f"its column {what}.{name} has {_show(values[read.index(None)])}")
        columns[name] = read
    if len({len(values) for values in columns.values()}) > 1:
        _refuse(f"its columns of {what} are not equally long")
    return columns


_STATUS_OF_PHASE: Final = _word(STATUSES)
_PATH_CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "name": _text,
    "parent": _whole,
    "count": _count,
    "total_s": _seconds,
    "self_s": _seconds,
    "max_s": _seconds,
    "steps": _step_sum,
    "num_steps": _step_sum,
    "status": _STATUS_OF_PHASE,
}
_SPAN_CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "path": _count,
    "parent": _whole,
    "start_s": _seconds,
    "end_s": _seconds,
    "self_s": _seconds,
    "steps": _whole,
    "num_steps": _whole,
    "status": _STATUS_OF_PHASE,
}
_SILENCE_CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "path": _count,
    "start_s": _seconds,
    "end_s": _seconds,
}
_LOG_CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "time_s": _seconds,
    "severity": _text,
    "message": _text,
}


def _read(data: object) -> Record:
    if not isinstance(data, dict):
        _refuse(f"it holds {_show(data)}")
    if data.get("format") != _FORMAT:
        raise RecordError(
            "This is no record of a build: it is JSON, but of something else.", _REMEDY
        )
    version = _get(data, "version", _count)
    if version > RECORD_VERSION:
        by = data.get("writer")
        writer = f" {by[:40]!a}" if isinstance(by, str) else ""
        raise RecordError(
            f"This record is of version {version}, written by a newer trt_widget{writer}; "
            f"this one ({__version__}) reads up to version {RECORD_VERSION}.",
            "Upgrade trt_widget: pip install -U trt-widget",
        )
    build = _object(data, "build")
    now = _get(build, "now_s", _seconds)
    paths = _columns(data, "paths", _PATH_CHECKS, _MAX_PATHS)
    _check_paths(paths)
    spans = _columns(data, "spans", _SPAN_CHECKS, MAX_SPANS)
    _check_spans(spans, _object(data, "spans")["end_s"], paths, now)
    log = _columns(data, "log", _LOG_CHECKS, MAX_MESSAGES)
    messages = [
        LogMessage(*entry)
        for entry in zip(log["time_s"], log["severity"], log["message"], strict=True)
    ]
    status = _get(build, "status", _word(("pending", "running", "cancelling", *FINAL)))
    result = _read_result(data, messages)
    if (result is None) is (status in FINAL) or (result is not None and result.status != status):
        _refuse("its status and its result contradict each other")
    return Record(
        name=_get(build, "name", _text),
        status=status,
        executor=_get(build, "executor", _text),
        backend=_get(build, "backend", _text),
        version=_get(build, "version", _text),
        result=result,
        now_s=now,
        started_epoch=_get(build, "started_epoch", _number),
        entered_at=_table(build, "entered_at", _number),
        notes=_get(build, "notes", _texts),
        options=_read_options(build),
        anomalies=_table(build, "anomalies", _count),
        cancel_delivered=_get_or_none(build, "cancel_delivered", _seconds),
        spans_dropped=_get(build, "spans_dropped", _count),
        log_dropped=_get(build, "log_dropped", _count),
        printed=_get(build, "printed", _text),
        writer=_get(data, "writer", _text),
        path_columns=paths,
        span_columns=spans,
        log_messages=messages,
        silence_columns=_read_silences(data, len(paths["name"]), now),
        key=_read_key(data),
        estimate=_read_estimate(data),
    )


def _read_silences(data: dict[str, Any], paths: int, now: float) -> dict[str, list[Any]] | None:
    if data.get("silences") is None:
        return None
    columns = _columns(data, "silences", _SILENCE_CHECKS, MAX_SILENCES)
    last = 0.0
    rows = zip(columns["path"], columns["start_s"], columns["end_s"], strict=True)
    for path, start, end in rows:
        if path >= paths or not last <= start < end <= now:
            _refuse("its silences contradict the rest of it")
        last = start
    return columns


def _read_key(data: dict[str, Any]) -> dict[str, Any] | None:
    if data.get("key") is None:
        return None
    given = _object(data, "key")
    names = [entry.name for entry in dataclasses.fields(BuildKey)]
    key = {name: _get(given, name, _text) for name in names if name != "size"}
    return {**key, "size": _table(given, "size", _number)}


def _read_estimate(data: dict[str, Any]) -> dict[str, Any] | None:
    if data.get("estimate") is None:
        return None
    given = _object(data, "estimate")
    return {
        "progress": _get_or_none(given, "progress", _share),
        "eta_s": _get_or_none(given, "eta_s", _seconds),
        "exceeded": _get(given, "exceeded", _truth),
        "expected_s": _get(given, "expected_s", _seconds),
        "basis": _get_or_none(given, "basis", _text),
    }


def _table(data: Mapping[str, Any], key: str, check: Callable[[object], Any]) -> dict[str, Any]:
    given = _object(data, key)
    return {name: _get(given, name, check) for name in given}


def _read_options(build: Mapping[str, Any]) -> dict[str, Any]:
    options = _object(build, "options")
    for name, value in options.items():
        plain = value is None or isinstance(value, (str, bool)) or _number(value) is not None
        if not plain and _texts(value) is None:
            _refuse(f"its option {_show(name)} is no plain value")
    return dict(options)


def _read_result(data: dict[str, Any], messages: list[LogMessage]) -> BuildResult | None:
    if "result" in data and data["result"] is None:
        return None
    given = _object(data, "result")
    output = _get_or_none(given, "output", _text)
    error = given.get("error")
    return BuildResult(
        status=_get(given, "status", _word(FINAL)),
        engine_bytes=_get_or_none(given, "engine_bytes", _count),
        duration_s=_get(given, "duration_s", _seconds),
        ended_by=_get(given, "ended_by", _text),
        stop_latency_s=_get_or_none(given, "stop_latency_s", _seconds),
        reason=_get_or_none(given, "reason", _text),
        backend=_get(given, "backend", _text),
        version=_get(given, "version", _text),
        device=_get_or_none(given, "device", _text),
        executor=_get(given, "executor", _text),
        model=_get(given, "model", _text),
        output=None if output is None else Path(output),
        layers=_get_or_none(given, "layers", _whole),
        peak_memory_bytes=_get_or_none(given, "peak_memory_bytes", _count),
        warnings=tuple(m.message for m in messages if m.severity == "warning"),
        notes=_get(given, "notes", _texts),
        error=None if error is None else from_record(error),
        timing_cache=cache_facts(given.get("timing_cache")),
        worker=_text(given.get("worker")),
    )


def _check_paths(paths: dict[str, list[Any]]) -> None:
    """Refuse a tree that is none: every path stands after the one above it."""
    lengths: list[int] = []
    characters = 0
    for row, (name, parent) in enumerate(zip(paths["name"], paths["parent"], strict=True)):
        if not -1 <= parent < row:
            _refuse("its phases are not in the order of a tree")
        above = 0 if parent < 0 else lengths[parent] + len(PATH_SEPARATOR)
        lengths.append(above + len(name))
        characters += lengths[-1]
    if characters > _MAX_PATH_CHARACTERS:
        _refuse("its phases' paths are too long")


def _check_spans(
    spans: dict[str, list[Any]], given_ends: list[Any], paths: dict[str, list[Any]], now: float
) -> None:
    """Refuse instances that do not lie in the one above them, in time and in the tree."""
    if any(
        end is None and given is not None
        for end, given in zip(spans["end_s"], given_ends, strict=True)
    ):
        _refuse("its column spans.end_s has what is no time")
    ends: list[float] = []
    last = 0.0
    rows = zip(spans["path"], spans["parent"], spans["start_s"], spans["end_s"], strict=True)
    for row, (path, parent, start, end) in enumerate(rows):
        if path >= len(paths["name"]) or not -1 <= parent < row:
            _refuse("an instance is of a phase that is not there")
        above = -1 if parent < 0 else spans["path"][parent]
        if paths["parent"][path] != above and path != above:
            _refuse("an instance is of another phase than the one above it has")
        until = now if end is None else end
        if not last <= start <= until <= now or (parent >= 0 and until > ends[parent]):
            _refuse("the times of its instances contradict each other")
        ends.append(until)
        last = start
