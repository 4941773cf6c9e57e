"""The vocabulary of a build: everything that can happen, and its form as JSON Lines.

Every surface (widget, terminal, file, editor, server, agent) is fed from the same stream of these
events. An event is a small immutable object; :func:`to_json` writes it as one line and
:func:`from_json` reads it back. The stream is versioned by :data:`PROTOCOL_VERSION`, carried by the
first event, :class:`StreamStarted`.

Times are seconds since the origin of the stream (a monotonic clock), as ``float``.

The names ``phase``, ``step``, ``parent`` and ``num_steps`` are those of
``tensorrt.IProgressMonitor``. The stream is *coalesced*: between two drains only the last step of
an open phase is kept, and under pressure whole finished phases are folded into
:class:`PhasesCollapsed`, which says how many they were. Nothing disappears silently.

A *run*, :class:`PhasesCompleted`, is a shorter way to write what happens by the thousand: leaf
phases of one name, below one parent and on one thread, each of which started and finished between
two drains while nothing else started or finished. It holds a column for each of their times and
steps, and nothing is lost in it but the moment of each last step. :func:`expand` gives the single
events of a run, for readers that want to see each phase::

    for event in events:
        for single in expand(event):
            ...

A run has the time of its last end, and stands in the stream accordingly: a step of its parent, a
log message or :class:`CancelDelivered` which fell between its phases comes before it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Union

__all__ = [
    "PHASE_STATES",
    "PROTOCOL_VERSION",
    "BuildEnded",
    "CancelDelivered",
    "Estimate",
    "Event",
    "EventError",
    "LogMessage",
    "MessagesDropped",
    "NetworkReady",
    "OutputCaptured",
    "PhaseFinished",
    "PhaseStarted",
    "PhasesCollapsed",
    "PhasesCompleted",
    "Snapshot",
    "StatusChanged",
    "StepCompleted",
    "StreamStarted",
    "expand",
    "from_json",
    "to_json",
]

#: Version of the JSON form. It grows when a reader of the older form could misread the newer one.
PROTOCOL_VERSION = 1


class EventError(ValueError):
    """A line that is not an event: the message says what is wrong with it."""


class _Plain:
    """What all events have in common; made for each by ``dataclass``, it delays the import."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


@dataclass(frozen=True, eq=False, repr=False)
class StreamStarted(_Plain):
    """First event of a stream.

    Attributes
    ----------
    time
        Seconds since the origin.
    model
        Display name of what is built.
    backend, backend_version
        The TensorRT package (``"tensorrt"`` or ``"tensorrt_rtx"``) and its version.
    version
        :data:`PROTOCOL_VERSION` of the writer.
    pid, host
        The process that builds, and where: the name of the machine and, on Linux, after a slash the
        number of its process namespace. A reader with the same host can ask whether it still lives.
    listens
        Whether whoever writes a file reads requests from the one beside it, with ``.control`` after
        its name.
    """

    kind: ClassVar[str] = "stream_start"
    time: float
    model: str
    backend: str = ""
    backend_version: str = ""
    version: int = PROTOCOL_VERSION
    pid: int | None = None
    host: str = ""
    listens: bool = False


# The four that come by the thousand write their own __init__: the one that a frozen dataclass gets
# calls object.__setattr__ for each field and takes twice as long.


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PhaseStarted(_Plain):
    """``phase_start``: a phase opened below ``parent`` (``None``: it is a root).

    ``num_steps`` is what TensorRT announced; it may be zero or negative, which means that the
    number of steps is not known. ``thread`` tells hierarchies apart that run at the same time.
    """

    kind: ClassVar[str] = "phase_start"
    time: float
    phase: str
    parent: str | None
    num_steps: int
    thread: int = 0

    def __init__(
        self, time: float, phase: str, parent: str | None, num_steps: int, thread: int = 0
    ) -> None:
        values = self.__dict__
        values["time"] = time
        values["phase"] = phase
        values["parent"] = parent
        values["num_steps"] = num_steps
        values["thread"] = thread


@dataclass(frozen=True, init=False, eq=False, repr=False)
class StepCompleted(_Plain):
    """``step_complete``: the last step (0-based index) that an open phase completed."""

    kind: ClassVar[str] = "step_complete"
    time: float
    phase: str
    step: int
    thread: int = 0

    def __init__(self, time: float, phase: str, step: int, thread: int = 0) -> None:
        values = self.__dict__
        values["time"] = time
        values["phase"] = phase
        values["step"] = step
        values["thread"] = thread


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PhaseFinished(_Plain):
    """``phase_finish``: the only authority that a phase ended."""

    kind: ClassVar[str] = "phase_finish"
    time: float
    phase: str
    thread: int = 0

    def __init__(self, time: float, phase: str, thread: int = 0) -> None:
        values = self.__dict__
        values["time"] = time
        values["phase"] = phase
        values["thread"] = thread


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PhasesCompleted(_Plain):
    """A run: leaf phases of one name that started and finished one after the other.

    The columns are equally long and have an entry for each phase, in order. :func:`expand` gives
    the events that the run stands for.

    Attributes
    ----------
    time
        End of the last phase.
    phase, parent, thread
        As in :class:`PhaseStarted`, the same for all.
    starts, ends
        When each phase started and finished.
    last_steps
        The last step (0-based index) that each phase completed, -1 for none.
    num_steps
        The number of steps that each phase announced.
    """

    kind: ClassVar[str] = "phases"
    time: float
    phase: str
    parent: str | None
    thread: int
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    last_steps: tuple[int, ...]
    num_steps: tuple[int, ...]

    def __init__(  # noqa: PLR0917 - as its three neighbours
        self,
        time: float,
        phase: str,
        parent: str | None,
        thread: int,
        starts: tuple[float, ...],
        ends: tuple[float, ...],
        last_steps: tuple[int, ...],
        num_steps: tuple[int, ...],
    ) -> None:
        values = self.__dict__
        values["time"] = time
        values["phase"] = phase
        values["parent"] = parent
        values["thread"] = thread
        values["starts"] = starts
        values["ends"] = ends
        values["last_steps"] = last_steps
        values["num_steps"] = num_steps


@dataclass(frozen=True, eq=False, repr=False)
class PhasesCollapsed(_Plain):
    """Finished phases of one path that were counted instead of being reported one by one.

    Attributes
    ----------
    path
        Names from the root down to the phase.
    count
        Number of phases.
    total_s, max_s
        Sum and maximum of their durations, in seconds.
    steps, num_steps
        Sums of the completed and of the announced steps.
    """

    kind: ClassVar[str] = "phases_collapsed"
    time: float
    path: tuple[str, ...]
    count: int
    total_s: float
    max_s: float
    steps: int = 0
    num_steps: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot(_Plain):
    """``snapshot``: all that the events before it have come to, for a reader that missed them.

    It replaces whatever a reader knows of the phases. The tables are objects of equally long
    columns; a *path* or *span* in them is a row of that table, -1 stands for none.

    Attributes
    ----------
    time
        Time of the latest event, and ``clock`` of the latest start or finish.
    last_callback
        Time of the latest callback of TensorRT.
    paths
        A row per path, parents first: ``name``, ``parent`` (path), ``count``, ``total_s``,
        ``self_s``, ``max_s``, ``steps``, ``num_steps`` (sums of the instances), ``step``,
        ``step_total`` (of the latest instance), ``started``, ``last_event``, ``ended`` (-1 for
        never), ``status`` (of the latest finished instance).
    open
        A row per open phase in start order: ``path``, ``name`` (as TensorRT gave it; that of the
        path may stand for several), ``parent`` (row of this table), ``start_s``, ``step``
        (completed), ``num_steps``, ``thread``, ``self_s``, ``clock`` (until when the self times of
        its root are counted), ``span``.
    spans
        A row per instance: ``path``, ``parent`` (span), ``start_s``, ``end_s`` (-1 while open),
        ``self_s``, ``steps``, ``num_steps``, ``status`` (0 running, 1 done, 2 cancelled, 3 failed,
        4 ended). Empty where they are not told one by one.
    silences
        ``path``, ``start_s``, ``end_s``.
    unwound
        What has ended since anything started, and gets the outcome of a build that ends now:
        ``path``, ``span``.
    heard
        Times of the callbacks since ``clock``, and ``covered``, up to when callbacks were counted.
    cancel_delivered
        As in :class:`CancelDelivered`, or ``None``.
    spans_dropped
        Instances that are counted in their path only.
    anomalies
        How often something came that TensorRT's contract excludes, by kind.
    """

    kind: ClassVar[str] = "snapshot"
    time: float
    clock: float
    last_callback: float
    paths: dict[str, Any]
    open: dict[str, Any]
    spans: dict[str, Any]
    silences: dict[str, Any]
    unwound: dict[str, Any]
    heard: tuple[float, ...] = ()
    covered: float = 0.0
    cancel_delivered: float | None = None
    spans_dropped: int = 0
    anomalies: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        # Not of all values: a dict has no hash.
        return hash((self.time, self.clock, self.spans_dropped))


@dataclass(frozen=True, eq=False, repr=False)
class NetworkReady(_Plain):
    """The model is parsed and the builder is about to run.

    Attributes
    ----------
    layers
        Number of layers of TensorRT's network.
    device
        What is built on.
    network
        Hash of the model's content, by which its builds are comparable; empty where not known.
    size
        How large it is, by name: ``layers``, ``computing`` (layers that are no constants),
        ``operators``, ``kinds``, ``parameters``.
    timing_cache
        ``"none"``, ``"cold"`` (empty) or ``"warm"``.
    processor
        The processor of the machine that builds, and how much of it may be used.
    """

    kind: ClassVar[str] = "network"
    time: float
    layers: int
    device: str | None = None
    network: str = ""
    size: dict[str, Any] = field(default_factory=dict)
    timing_cache: str = "none"
    processor: str = ""

    def __hash__(self) -> int:
        # Not of all values: a dict has no hash.
        return hash((self.time, self.layers, self.device, self.network))


@dataclass(frozen=True, eq=False, repr=False)
class CancelDelivered(_Plain):
    """``step_complete`` answered False for the first time: TensorRT knows of the cancel."""

    kind: ClassVar[str] = "cancel_delivered"
    time: float


@dataclass(frozen=True, eq=False, repr=False)
class LogMessage(_Plain):
    """A message of TensorRT's logger; ``severity`` is one of its names, in lower case."""

    kind: ClassVar[str] = "log"
    time: float
    severity: str
    message: str


@dataclass(frozen=True, eq=False, repr=False)
class MessagesDropped(_Plain):
    """``count`` messages of TensorRT's logger were not kept, since there were too many."""

    kind: ClassVar[str] = "log_dropped"
    time: float
    count: int


@dataclass(frozen=True, eq=False, repr=False)
class OutputCaptured(_Plain):
    """What TensorRT, a plugin or the user's code printed to stdout or stderr while it built."""

    kind: ClassVar[str] = "output"
    time: float
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class StatusChanged(_Plain):
    """The build entered ``status``.

    ``reason`` says why (of a cancel: user, deadline, interrupt, closed, monitor) and ``detail`` is
    a sentence for people: what a pending build waits for, or the cause of a failure.
    """

    kind: ClassVar[str] = "status"
    time: float
    status: str
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(_Plain):
    """How far the build is, by what earlier builds took; in every batch of a build's events.

    Attributes
    ----------
    progress
        0 to 1; 1 only after success, and never less than before. ``None`` while nothing honest
        can be said.
    eta_s
        Seconds left, or ``None``.
    exceeded
        Whether the build takes clearly longer than was expected; then no time left is said.
    """

    kind: ClassVar[str] = "estimate"
    time: float
    progress: float | None = None
    eta_s: float | None = None
    exceeded: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class BuildEnded(_Plain):
    """How the build ended: the last event of a stream that another process writes.

    Attributes
    ----------
    status, ended_by, reason
        As in the result of the build: the outcome, what brought it about, and why it was cancelled.
    error
        The error in words, as an object of its parts; ``None`` where there was none.
    engine
        Path of the file that holds the engine, and ``engine_bytes`` its size.
    peak_memory_bytes
        Peak memory of the process that built.
    notes
        Sentences for people about what was done differently than asked.
    facts
        What was found out on the way, such as the device or the number of layers.
    """

    kind: ClassVar[str] = "end"
    time: float
    status: str
    ended_by: str
    reason: str | None = None
    error: dict[str, Any] | None = None
    engine: str | None = None
    engine_bytes: int | None = None
    peak_memory_bytes: int | None = None
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        # Not of all values: a dict has no hash.
        return hash((self.time, self.status, self.ended_by, self.engine))


Event = Union[  # noqa: UP007 - evaluated at run time, many names are clearer as a list
    StreamStarted,
    PhaseStarted,
    StepCompleted,
    PhaseFinished,
    PhasesCompleted,
    PhasesCollapsed,
    Snapshot,
    NetworkReady,
    CancelDelivered,
    LogMessage,
    MessagesDropped,
    OutputCaptured,
    StatusChanged,
    Estimate,
    BuildEnded,
]

_TYPES: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (
        StreamStarted,
        PhaseStarted,
        StepCompleted,
        PhaseFinished,
        PhasesCompleted,
        PhasesCollapsed,
        Snapshot,
        NetworkReady,
        CancelDelivered,
        LogMessage,
        MessagesDropped,
        OutputCaptured,
        StatusChanged,
        Estimate,
        BuildEnded,
    )
}


def expand(event: Event) -> list[Event]:
    """Give the single events that a run stands for, or the event itself if it is no run.

    Returns
    -------
    list of Event
        For each phase of a run its start, its last step if it completed one, and its finish. The
        step has the time of the finish: a run does not know it better.
    """
    if not isinstance(event, PhasesCompleted):
        return [event]
    phase, parent, thread = event.phase, event.parent, event.thread
    singles: list[Event] = []
    columns = zip(event.starts, event.ends, event.last_steps, event.num_steps, strict=True)
    for start, end, last, num_steps in columns:
        singles.append(PhaseStarted(start, phase, parent, num_steps, thread))
        if last >= 0:
            singles.append(StepCompleted(end, phase, last, thread))
        singles.append(PhaseFinished(end, phase, thread))
    return singles


def to_json(event: Event) -> str:
    """Write one event as one line of JSON, without the line end.

    Returns
    -------
    str
        ASCII only, so that the line survives any terminal, pipe or locale.
    """
    record: dict[str, Any] = {"event": event.kind}
    for entry in fields(event):
        record[entry.name] = getattr(event, entry.name)
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def from_json(line: str | bytes) -> Event:
    """Read one event from a line of JSON.

    Unknown keys are ignored and a missing ``time`` counts as 0, so that streams of newer writers
    and recordings without a clock can be read.

    Raises
    ------
    EventError
        The line is not JSON, not an object, of an unknown kind, or a field is missing or of the
        wrong type, the columns of a run are empty or not equally long, or the tables of a snapshot
        do not fit together.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"not a line of JSON: {error}"
        raise EventError(msg) from error
    if not isinstance(record, dict):
        msg = f"expected a JSON object, found {type(record).__name__}"
        raise EventError(msg)
    kind = record.get("event")
    cls = _TYPES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        msg = f"unknown event {kind!r}; known are {', '.join(_TYPES)}"
        raise EventError(msg)
    values: dict[str, Any] = {}
    for entry in fields(cls):
        if entry.name in record:
            values[entry.name] = _checked(kind, entry.name, str(entry.type), record[entry.name])
        elif entry.name == "time":
            values["time"] = 0.0
    try:
        event: Event = cls(**values)
    except TypeError as error:
        msg = f"incomplete event {kind!r}: {error}"
        raise EventError(msg) from error
    if isinstance(event, PhasesCompleted):
        _check_run(event)
    elif isinstance(event, Snapshot):
        _check_snapshot(event)
    return event


def _check_run(event: PhasesCompleted) -> None:
    """Raise EventError unless the columns are equally long and not empty."""
    lengths = [len(event.starts), len(event.ends), len(event.last_steps), len(event.num_steps)]
    if not lengths[0] or lengths != lengths[:1] * 4:
        msg = f"columns of event {event.kind!r} must be equally long and not empty, found {lengths}"
        raise EventError(msg)


#: The columns of a snapshot's tables, and their types.
_TABLES: dict[str, dict[str, str]] = {
    "paths": {
        "name": "str",
        "parent": "int",
        "count": "int",
        "total_s": "float",
        "self_s": "float",
        "max_s": "float",
        "steps": "int",
        "num_steps": "int",
        "step": "int",
        "step_total": "int",
        "started": "float",
        "last_event": "float",
        "ended": "float",
        "status": "str",
    },
    "open": {
        "path": "int",
        "name": "str",
        "parent": "int",
        "start_s": "float",
        "step": "int",
        "num_steps": "int",
        "thread": "int",
        "self_s": "float",
        "clock": "float",
        "span": "int",
    },
    "spans": {
        "path": "int",
        "parent": "int",
        "start_s": "float",
        "end_s": "float",
        "self_s": "float",
        "steps": "int",
        "num_steps": "int",
        "status": "int",
    },
    "silences": {"path": "int", "start_s": "float", "end_s": "float"},
    "unwound": {"path": "int", "span": "int"},
}
#: The states of a phase, in the order of their numbers: open, ended inside a build that went on,
#: and the three ways in which the phases that were open at the end of a build ended.
PHASE_STATES = ("running", "done", "cancelled", "failed", "ended")
#: Paths of the largest snapshot that is read. A tree keeps fewer than this (phases.MAX_PATHS).
_MOST_PATHS = 5_000


def _follows(table: dict[str, Any], above: list[int]) -> bool:
    """Tell whether the parents of a table's rows are of the paths above theirs.

    A path that stands for several may be below itself.
    """
    paths = table["path"]
    return all(
        parent < 0 or paths[parent] in {above[path], path}
        for path, parent in zip(paths, table["parent"], strict=True)
    )


def _check_snapshot(event: Snapshot) -> None:
    """Raise EventError unless every table is whole and points to rows that there are."""
    sizes: dict[str, int] = {}
    for name, columns in _TABLES.items():
        table: dict[str, Any] = getattr(event, name)
        for column, kind in columns.items():
            values = table.get(column)
            checked = _column(f"tuple[{kind}, ...]", values) if isinstance(values, list) else None
            if checked is None or len(checked) != sizes.setdefault(name, len(checked)):
                msg = f"column {column!r} of {name!r} of event 'snapshot' is not whole"
                raise EventError(msg)
    paths, spans, opened = sizes["paths"], sizes["spans"], sizes["open"]
    above = event.paths["parent"]
    fits = paths <= _MOST_PATHS and all(-1 <= parent < row for row, parent in enumerate(above))
    fits = fits and all(state in PHASE_STATES for state in event.paths["status"])
    for table in (event.open, event.spans, event.silences, event.unwound):
        fits = fits and all(0 <= path < paths for path in table["path"])
    fits = fits and all(
        -1 <= span < spans for span in (*event.open["span"], *event.unwound["span"])
    )
    fits = fits and all(-1 <= parent < row for row, parent in enumerate(event.spans["parent"]))
    fits = fits and all(0 <= state < len(PHASE_STATES) for state in event.spans["status"])
    fits = fits and all(-1 <= parent < row for row, parent in enumerate(event.open["parent"]))
    fits = fits and _follows(event.spans, above) and _follows(event.open, above)
    fits = fits and opened == len(set(event.open["span"]) - {-1}) + event.open["span"].count(-1)
    fits = fits and all(
        type(count) is int and isinstance(kind, str) for kind, count in event.anomalies.items()
    )
    if not fits:
        msg = "the tables of event 'snapshot' do not fit together"
        raise EventError(msg)


_INT64 = 2**63


def _checked(kind: Any, name: str, annotation: str, value: Any) -> Any:
    """Give ``value`` back if it is of the annotated type; numbers must be finite."""
    if annotation.startswith("tuple"):
        if isinstance(value, list):
            column = _column(annotation, value)
            if column is not None and (column or name != "path"):
                return column
    elif annotation.startswith("float") and value is not None:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and _finite(value):
            return float(value)
    elif (
        (annotation.endswith("None") and value is None)
        or (annotation.startswith("str") and isinstance(value, str))
        or (annotation.startswith("int") and type(value) is int and -_INT64 <= value < _INT64)
        or (annotation.startswith("dict") and isinstance(value, dict))
        or (annotation == "bool" and isinstance(value, bool))
    ):
        return value
    msg = f"field {name!r} of event {kind!r} must be {annotation}, found {value!r:.200}"
    raise EventError(msg)


def _column(annotation: str, values: list[Any]) -> tuple[Any, ...] | None:
    """Give a list as a tuple if all its values are of the annotated type, else ``None``."""
    # By the set of their types: a run may have thousands of values.
    types = set(map(type, values))
    if annotation == "tuple[float, ...]":
        if types <= {int, float} and all(map(_finite, values)):
            return tuple(map(float, values))
        return None
    if annotation == "tuple[int, ...]":
        fits = types <= {int} and all(-_INT64 <= value < _INT64 for value in values)
        return tuple(values) if fits else None
    return tuple(values) if types <= {str} else None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer past the largest float
        return False
