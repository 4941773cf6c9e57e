"""What can go wrong, as types.

Every error of this package derives from :class:`BuildError`. Each one says the cause first, then
what this rests on, then what to do, then TensorRT's own words. Each survives pickling, and goes to
plain data and back (:func:`to_record`, :func:`from_record`: a build in another process sends its
error home so)::

    BuildError
    ├── BackendNotFound      (ImportError)   no usable TensorRT
    ├── ExtraMissing         (ImportError)   what an extra installs is not there
    ├── RequestError         (ValueError)    a request to a server (trt_widget.servers.builds)
    ├── OptionError          (ValueError)    an option's value
    │   ├── OutputError                      output= cannot be written
    │   ├── ProfileError     (BuildFailed)   see below
    │   └── OptionRejected   (BuildFailed)   see below
    ├── UnknownOptionError   (TypeError)     an option that does not exist
    ├── BuildStateError      (RuntimeError)  waiting before starting, starting twice
    ├── RecordError          (ValueError)    a saved record cannot be read (trt_widget.record)
    ├── CompareError         (ValueError)    what cannot be compared (trt_widget.comparison)
    ├── UnknownJobError      (KeyError)      a queue has no such job (trt_widget.queue_jobs)
    ├── BuildCancelled                       somebody or something asked for the end
    └── BuildFailed                          the build cannot give an engine
        ├── SourceError                      missing, empty, not ONNX, truncated, weights missing
        ├── ParseFailed                      the ONNX parser refused nodes
        ├── ProfileError     (OptionError)   profiles and the network's inputs do not fit
        ├── OptionRejected   (OptionError)   refused only by the model, the GPU or TensorRT
        ├── WrongBackendError (TypeError)    an object of the other TensorRT package
        ├── ConfigureFailed                  the caller's own function raised
        ├── BuildCrashed                     the process that built died
        │   └── WorkerLost                   with the Dask worker that it ran on
        ├── StreamError                      a followed stream is none, or broke off
        └── SaveError        (OSError)       the engine could not be written

Whatever ends a *started* build as ``failed`` is a :class:`BuildFailed`. Some of its kinds show
themselves earlier (a missing file, a profile with min > opt): the constructor then raises the same
type, so one ``except SourceError`` covers both moments.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

__all__ = [
    "BackendNotFound",
    "BuildCancelled",
    "BuildCrashed",
    "BuildError",
    "BuildFailed",
    "BuildStateError",
    "ConfigureFailed",
    "ExtraMissing",
    "NodeError",
    "OptionError",
    "OptionRejected",
    "OutputError",
    "ParseFailed",
    "ProfileError",
    "SaveError",
    "SourceError",
    "StreamError",
    "UnknownOptionError",
    "WorkerLost",
    "WrongBackendError",
    "call_users_code",
    "check_reason",
    "from_record",
    "to_record",
]

#: Why a build was cancelled: see BuildCancelled.reason.
CANCEL_REASONS: Final = ("user", "deadline", "interrupt", "closed", "monitor")

# How much of TensorRT's words `str(error)` shows; `.messages` has everything that was handed in.
_SHOWN_MESSAGES: Final = 12
_SHOWN_CHARACTERS: Final = 2000
_SHOWN_NODES: Final = 20
_CELL_CHARACTERS: Final = 60
_SHOWN_LINES: Final = 20

_T = TypeVar("_T")


def check_reason(reason: str) -> None:
    """Raise ValueError unless ``reason`` is one of `CANCEL_REASONS`."""
    if reason not in CANCEL_REASONS:
        raise ValueError(f"not a reason for a cancel: {reason!r}; use {', '.join(CANCEL_REASONS)}")


def _restore(kind: type[BuildError], args: tuple[Any, ...], state: Mapping[str, Any]) -> BuildError:
    """Unpickle: an error is its class, its arguments and its attributes."""
    error = kind.__new__(kind)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class BuildError(Exception):
    """Something kept a build from giving its engine, or from starting at all.

    Parameters
    ----------
    cause
        What is wrong: one sentence first.
    remedy
        What the reader can do about it; may be empty.
    messages
        TensorRT's own words, unchanged, in the order in which they came; may be empty.
    evidence
        What the cause rests on: the very lines of TensorRT, or circumstances; empty where the cause
        speaks for itself, or claims nothing.
    """

    cause: str
    remedy: str
    messages: tuple[str, ...]
    evidence: tuple[str, ...]

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.messages = tuple(messages)
        self.evidence = tuple(evidence)

    def details(self) -> str:
        """Return what stands between cause and remedy, such as a table; empty for most errors."""
        return ""

    def __str__(self) -> str:
        """Return cause, details, evidence, remedy, and TensorRT's words, in this order."""
        evidence = self.evidence
        if set(self.messages) <= set(evidence):  # nothing else was said: once is enough
            evidence = tuple(line for line in evidence if line not in self.messages)
        parts = [
            self.cause,
            self.details(),
            _listing("Evidence:", evidence, ".evidence"),
            self.remedy,
            _listing("TensorRT said:", self.messages, ".messages"),
        ]
        return "\n".join(part for part in parts if part)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class and attributes; the traceback and ``__cause__`` stay behind."""
        return (_restore, (type(self), self.args, self._state()))

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)


class BackendNotFound(BuildError, ImportError):  # noqa: N818 - public name
    """No TensorRT package that can build is installed (or the one that was asked for is not)."""


class ExtraMissing(BuildError, ImportError):  # noqa: N818 - as its neighbour
    """What an optional part needs is not installed.

    Attributes
    ----------
    extra
        The extra that installs it: ``pip install 'trt-widget[extra]'``.
    """

    extra: str

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        extra: str = "",
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        self.extra = extra


class OptionError(BuildError, ValueError):
    """An option has a value that it cannot have, or that contradicts another option's."""


#: What people look for as an option of its own.
_PRECISIONS: Final = ("fp16", "bf16", "fp8", "int8", "half", "precision", "dtype")
_PRECISION_IS_THE_MODELS: Final = (
    "Precision is the model's: a strongly typed network, the default, is built with the types that "
    "the ONNX file has. On TensorRT 10, flags=['FP16'] asks for a weakly typed one."
)


class UnknownOptionError(BuildError, TypeError):
    """An option that does not exist.

    Attributes
    ----------
    name
        What was given.
    nearest
        The option that looks most like it, or None.
    """

    name: str
    nearest: str | None

    def __init__(self, name: str, nearest: str | None, *, known: Sequence[str] = ()) -> None:
        hint = f"Did you mean {nearest!r}?" if nearest else ""
        listing = f"The options are: {', '.join(known)}." if known else ""
        if any(word in name.lower() for word in _PRECISIONS):
            hint = _PRECISION_IS_THE_MODELS
        super().__init__(
            f"There is no option {name!r}.",
            remedy=" ".join(part for part in (hint, listing) if part),
        )
        self.name = name
        self.nearest = nearest


class OutputError(OptionError):
    """``output=`` cannot be written: a directory, or a folder that is missing or read-only."""


class BuildStateError(BuildError, RuntimeError):
    """The build's state does not allow this: waiting before starting, starting twice."""


class BuildCancelled(BuildError):  # noqa: N818 - public name
    """The build was ended on purpose, before there was an engine.

    Attributes
    ----------
    reason
        One of ``user`` (the Cancel button, ``request_cancel()``), ``deadline`` (``timeout=``),
        ``interrupt`` (Ctrl-C, the kernel's Interrupt), ``closed`` (the widget or build was closed),
        ``monitor`` (another progress monitor in the same config answered False).
    """

    reason: str

    def __init__(
        self,
        cause: str = "",
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        reason: str = "user",
    ) -> None:
        check_reason(reason)
        super().__init__(cause or _CANCEL_CAUSES[reason], remedy, messages, evidence=evidence)
        self.reason = reason


_CANCEL_CAUSES: Final = {
    "user": "The build was cancelled.",
    "deadline": "The build was cancelled because its time was up (timeout=).",
    "interrupt": "The build was cancelled by an interrupt.",
    "closed": "The build was cancelled because it was closed.",
    "monitor": "The build was cancelled by another progress monitor in the same builder config.",
}


class BuildFailed(BuildError):  # noqa: N818 - public name
    """The build cannot give an engine.

    Its input is unusable, or TensorRT returned none without having been cancelled.
    """


class SourceError(BuildFailed):
    """The model cannot be read.

    It is missing, a directory, empty, not ONNX, truncated, its weight files are missing, or it
    names files for its weights that it may not read (``external_data=``).
    """


class NodeError(NamedTuple):
    """One error of the ONNX parser (``parser.get_error(i)``).

    ``node`` is the node's index in the graph, -1 where no node is to blame.
    """

    node: int
    name: str
    operator: str
    description: str


class ParseFailed(BuildFailed):
    """The ONNX parser refused the model.

    Attributes
    ----------
    nodes
        A :class:`NodeError` for each of the parser's errors, in its order.
    """

    nodes: list[NodeError]

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        nodes: Iterable[NodeError] = (),
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        self.nodes = [NodeError(*node) for node in nodes]

    def details(self) -> str:
        """Return a table of the nodes that were refused."""
        rows = [node for node in self.nodes if node.node >= 0]
        if not rows:
            return ""
        shown = rows[:_SHOWN_NODES]
        table = _table(
            ("node", "name", "operator"),
            [
                (
                    str(node.node),
                    _clip(node.name, _CELL_CHARACTERS),
                    _clip(node.operator, _CELL_CHARACTERS),
                )
                for node in shown
            ],
        )
        more = len(rows) - len(shown)
        return table + (f"\n  ... and {more} more in .nodes" if more else "")


class ProfileError(BuildFailed, OptionError):
    """Optimization profiles and the network's inputs do not fit.

    Raised by the constructor for what the profile alone shows (min > opt), and by ``wait()`` for
    what needs the network.
    """


class OptionRejected(BuildFailed, OptionError):  # noqa: N818 - public name
    """An option that looked right, and that the model, the GPU or TensorRT then refused."""


class WrongBackendError(BuildFailed, TypeError):
    """An object (config, monitor, builder, module) of another TensorRT package than the builder's.

    The two packages' Python bindings do not accept each other's objects.
    """


class ConfigureFailed(BuildFailed):
    """The caller's own function (``configure=``, ``config=`` or a callable source) raised.

    ``__cause__`` is the caller's exception with the caller's frames only. It does not survive
    pickling, so the same is kept as text.

    Attributes
    ----------
    function
        Which function: ``configure``, ``config`` or ``source``.
    exception_type
        The qualified name of the exception's type.
    user_traceback
        The caller's traceback, formatted.
    """

    function: str
    exception_type: str
    user_traceback: str

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        function: str,
        exception_type: str = "",
        user_traceback: str = "",
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        self.function = function
        self.exception_type = exception_type
        self.user_traceback = user_traceback

    def details(self) -> str:
        """Return the caller's traceback."""
        return self.user_traceback.rstrip()


class SaveError(BuildFailed, OSError):
    """The engine could not be written; no partial file is left, and an old file is as it was.

    ``errno``, ``strerror`` and ``filename`` are the operating system's.
    """

    errno: int | None
    strerror: str | None
    filename: str | None

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        error: OSError | None = None,
        filename: str | None = None,
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        if error is not None:
            self.errno = error.errno
            self.strerror = error.strerror
        if filename is not None:
            self.filename = filename

    def _state(self) -> dict[str, Any]:
        slots = {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return {
            **super()._state(),
            **{name: value for name, value in slots.items() if value is not None},
        }


class BuildCrashed(BuildFailed):
    """The process that built died; whoever waited for it is unharmed.

    ``messages`` are the last ones that TensorRT logged.

    Attributes
    ----------
    signal
        The signal that ended it, such as ``"SIGKILL"``, or None.
    exit_code
        The code that it ended with, or None.
    phase
        The path of the innermost open phase (``"Building engine > Optimizing graph"``), or None.
    output
        The end of what it printed to stdout and stderr.
    peak_memory_bytes
        The most memory that it was seen to use, or None.
    """

    signal: str | None
    exit_code: int | None
    phase: str | None
    output: str
    peak_memory_bytes: int | None

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        signal: str | None = None,
        exit_code: int | None = None,
        phase: str | None = None,
        output: str = "",
        peak_memory_bytes: int | None = None,
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        self.signal = signal
        self.exit_code = exit_code
        self.phase = phase
        self.output = output
        self.peak_memory_bytes = peak_memory_bytes

    def details(self) -> str:
        """Return the phase it was in, and the end of its output."""
        parts = []
        if self.phase:
            parts.append(f"It was in the phase {_clip(_printable(self.phase), _SHOWN_CHARACTERS)}.")
        lines = self.output[-_SHOWN_CHARACTERS:].strip().splitlines()[-_SHOWN_LINES:]
        if lines:
            parts.append("The end of its output:")
            parts += [f"  {_safe(line)}" for line in lines]
        return "\n".join(parts)


class WorkerLost(BuildCrashed):
    """The Dask worker that the build ran on was lost, as often as it was begun.

    What the worker's own process ended by is not known here; its log and its nanny's say it.

    Attributes
    ----------
    workers
        The workers that were lost, in order: name and address.
    """

    workers: tuple[str, ...]

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        phase: str | None = None,
        output: str = "",
        workers: Iterable[str] = (),
    ) -> None:
        super().__init__(cause, remedy, messages, phase=phase, output=output)
        self.workers = tuple(workers)


class StreamError(BuildFailed):
    """A stream that was followed is no stream of a build, or it broke off before its end.

    What the build itself came to is not known here. ``evidence`` has what was last heard, and the
    first lines that could not be read; ``messages`` are TensorRT's last warnings and errors.

    Attributes
    ----------
    phase
        The path of the innermost phase that was open when it broke off, or None.
    """

    phase: str | None

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        evidence: Iterable[str] = (),
        phase: str | None = None,
    ) -> None:
        super().__init__(cause, remedy, messages, evidence=evidence)
        self.phase = phase

    def details(self) -> str:
        """Return the phase it was in."""
        if not self.phase:
            return ""
        return f"It was in the phase {_clip(_printable(self.phase), _SHOWN_CHARACTERS)}."


def call_users_code(function_name: str, function: Callable[..., _T], *args: object) -> _T:
    """Call a function of the caller's; what it raises becomes :class:`ConfigureFailed`.

    Parameters
    ----------
    function_name
        ``configure``, ``config`` or ``source``: what the message calls it.
    function
        The caller's function.
    *args
        What it is called with.

    Raises
    ------
    ConfigureFailed
        From the caller's exception, whose traceback holds their frames and not ours.
        ``KeyboardInterrupt`` passes untouched.
    """
    try:
        return function(*args)
    except (Exception, SystemExit) as error:
        error.__traceback__ = without_our_frames(error.__traceback__)
        place = ""
        remedy = _lacking_member(error)
        if error.__traceback__ is None and isinstance(error, TypeError):
            remedy = f"It is called with {_ARGUMENTS[function_name]}."
        if error.__traceback__ is not None:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f" ({Path(last.filename).name}, line {last.lineno})"
        kind = type(error)
        said = "".join(traceback.format_exception_only(kind, error)).strip()
        who = _FUNCTIONS.get(function_name, function_name)
        raise ConfigureFailed(
            f"{who} raised {_clip(said, _SHOWN_CHARACTERS)}{place}",
            remedy,
            function=function_name,
            exception_type=f"{kind.__module__}.{kind.__qualname__}",
            user_traceback="".join(traceback.format_exception(kind, error, error.__traceback__)),
        ) from error


_FUNCTIONS: Final = {
    "configure": "The function given as configure=",
    "config": "The function given as config=",
    "source": "The function given as the model's source",
}
_ARGUMENTS: Final = {
    "configure": "(builder, network, config)",
    "config": "(builder, network)",
    "source": "no arguments",
}


def _lacking_member(error: BaseException) -> str:
    """Say what an enumeration of TensorRT has, where the caller named something else."""
    if not isinstance(error, AttributeError):
        return ""
    kind = error.obj
    members = getattr(kind, "__members__", None)
    package, _, _ = str(getattr(kind, "__module__", "")).partition(".")
    if not isinstance(kind, type) or members is None or not package.startswith("tensorrt"):
        return ""
    name = f"{kind.__name__}.{error.name}"
    hint = ""
    if any(word in str(error.name).lower() for word in _PRECISIONS):
        hint = f" {_PRECISION_IS_THE_MODELS}"
    package = package.removesuffix("_bindings")
    return f"This {package} has no {name}. It has: {', '.join(sorted(members))}.{hint}"


# With the separator: a folder whose name only begins like ours is not ours.
_OUR_FOLDER: Final = str(Path(__file__).absolute().parent) + os.sep


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return ``trace`` from its first frame that is not this package's; None where all are."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    return trace


# ---- as plain data ------------------------------------------------------------------------------


class _RecordError(Exception):
    """A record that is none of ours."""


def _all_kinds() -> dict[str, type[BuildError]]:
    kinds: dict[str, type[BuildError]] = {}
    waiting: list[type[BuildError]] = [BuildError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ == __name__:
            kinds[kind.__name__] = kind
    return kinds


def _fields(kind: type[BuildError]) -> dict[str, str]:
    """Return the names and types (as written) of an error's attributes."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BuildError):
            found.update(base.__annotations__)
    return found


def to_record(error: BuildError) -> dict[str, Any]:
    """Return an error as plain data for JSON: its class's name, and its attributes.

    A class from elsewhere that derives from one of these goes as that one. ``__cause__`` and the
    traceback stay behind, as in a pickle.
    """
    kinds = _all_kinds()
    kind = next(base for base in type(error).__mro__ if kinds.get(base.__name__) is base)
    record: dict[str, Any] = {"class": kind.__name__}
    for name, written in _fields(kinds[kind.__name__]).items():
        value = getattr(error, name, None)
        if written == _TEXTS:
            value = list(value or ())
        elif written == _NODES:
            value = [list(node) for node in value or ()]
        record[name] = value
    return record


def from_record(record: object) -> BuildError:
    """Return the error that :func:`to_record` wrote.

    Nothing of a record is ever executed, imported or looked up outside this module's own errors.
    Attributes that the class does not have are left out.

    Returns
    -------
    BuildError
        A plain :class:`BuildFailed` that says so where the record is of no class known here, or
        malformed.
    """
    try:
        return _read_record(record)
    except _RecordError as error:
        fields = record if isinstance(record, dict) else {}
        cause, messages = fields.get("cause"), fields.get("messages")
        said = f" It begins: {_clip(_printable(cause), 200)}" if isinstance(cause, str) else ""
        return BuildFailed(
            f"The build failed, and its error cannot be read: {error}.{said}",
            "Use the same version of trt_widget in both processes.",
            [text for text in messages if isinstance(text, str)]
            if isinstance(messages, (list, tuple))
            else (),
        )


def _read_record(record: object) -> BuildError:
    if not isinstance(record, dict):
        raise _RecordError(f"it is a {type(record).__name__}, not a record")
    name = record.get("class")
    kind = _all_kinds().get(name) if isinstance(name, str) else None
    if kind is None:
        raise _RecordError(f"it is of an unknown class, {_clip(_printable(repr(name)), 60)}")
    state = {}
    for key, written in _fields(kind).items():
        if key not in record:
            raise _RecordError(f"its {key!r} is missing")
        state[key] = _READERS[written](key, record[key])
    if kind is BuildCancelled and state["reason"] not in CANCEL_REASONS:
        raise _RecordError("its 'reason' is none that is known")
    if kind is SaveError:  # an OSError shows what is None, too
        state = {key: value for key, value in state.items() if value is not None}
    return _restore(kind, (state["cause"],), state)


def _read_text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _RecordError(f"its {key!r} is no text")
    return value


def _read_number(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _RecordError(f"its {key!r} is no whole number")
    return value


def _read_texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _RecordError(f"its {key!r} is no list")
    return tuple(_read_text(key, item) for item in value)


def _read_nodes(key: str, value: object) -> list[NodeError]:
    if not isinstance(value, (list, tuple)):
        raise _RecordError(f"its {key!r} is no list")
    nodes = []
    for item in value:
        if not isinstance(item, (list, tuple)) or len(item) != len(NodeError._fields):
            raise _RecordError(f"its {key!r} holds what is no node")
        number, *texts = item
        nodes.append(NodeError(_read_number(key, number), *_read_texts(key, texts)))
    return nodes


_TEXTS: Final = "tuple[str, ...]"
_NODES: Final = "list[NodeError]"
# By an attribute's type, as the classes above write it.
_READERS: Final[dict[str, Callable[[str, object], Any]]] = {
    "str": _read_text,
    "str | None": lambda key, value: None if value is None else _read_text(key, value),
    "int | None": lambda key, value: None if value is None else _read_number(key, value),
    _TEXTS: _read_texts,
    _NODES: _read_nodes,
}


# ---- as text ------------------------------------------------------------------------------------


def _listing(title: str, lines: Sequence[str], attribute: str) -> str:
    """Return a title with lines below it, shortened; empty where there are none."""
    if not lines:
        return ""
    shown = [f"  {_clip(line, _SHOWN_CHARACTERS)}" for line in lines[:_SHOWN_MESSAGES]]
    more = len(lines) - len(shown)
    if more > 0:
        shown.append(f"  ... and {more} more in {attribute}")
    return "\n".join([title, *[line.replace("\n", "\n  ") for line in shown]])


def _safe(line: str) -> str:
    """Return a line without what would control a terminal."""
    return "".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in line)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(text.split()))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in plain text; whatever would break it or control a terminal is replaced."""
    clean = [head, *[tuple(_printable(cell) for cell in row) for row in rows]]
    widths = [max(len(row[column]) for row in clean) for column in range(len(head))]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in clean
    ]
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return "\n".join(lines)
