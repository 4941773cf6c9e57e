"""What can go wrong, as types.

Every error of this package derives from :class:`BuildError`. Each one says the cause first, then
what to do, then TensorRT's own words, and survives pickling (a build in another process sends its
error home)::

    BuildError
    ├── BackendNotFound      (ImportError)   no usable TensorRT
    ├── OptionError          (ValueError)    an option's value
    │   ├── OutputError                      output= cannot be written
    │   ├── ProfileError     (BuildFailed)   see below
    │   └── OptionRejected   (BuildFailed)   see below
    ├── UnknownOptionError   (TypeError)     an option that does not exist
    ├── BuildStateError      (RuntimeError)  waiting before starting, starting twice
    ├── BuildCancelled                       somebody or something asked for the end
    └── BuildFailed                          the build cannot give an engine
        ├── SourceError                      missing, empty, not ONNX, truncated, weights missing
        ├── ParseFailed                      the ONNX parser refused nodes
        ├── ProfileError     (OptionError)   profiles and the network's inputs do not fit
        ├── OptionRejected   (OptionError)   refused only by the model, the GPU or TensorRT
        ├── WrongBackendError (TypeError)    an object of the other TensorRT package
        ├── ConfigureFailed                  the caller's own function raised
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
    "BuildError",
    "BuildFailed",
    "BuildStateError",
    "ConfigureFailed",
    "NodeError",
    "OptionError",
    "OptionRejected",
    "OutputError",
    "ParseFailed",
    "ProfileError",
    "SaveError",
    "SourceError",
    "UnknownOptionError",
    "WrongBackendError",
    "call_users_code",
    "check_reason",
]

#: Why a build was cancelled: see BuildCancelled.reason.
CANCEL_REASONS: Final = ("user", "deadline", "interrupt", "closed", "monitor")

# How much of TensorRT's words `str(error)` shows; `.messages` has everything that was handed in.
_SHOWN_MESSAGES: Final = 12
_SHOWN_CHARACTERS: Final = 2000
_SHOWN_NODES: Final = 20
_CELL_CHARACTERS: Final = 60

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
    """

    cause: str
    remedy: str
    messages: tuple[str, ...]

    def __init__(self, cause: str, remedy: str = "", messages: Iterable[str] = ()) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.messages = tuple(messages)

    def details(self) -> str:
        """Return what stands between cause and remedy, such as a table; empty for most errors."""
        return ""

    def __str__(self) -> str:
        """Return the cause, then the details, then the remedy, then TensorRT's words."""
        parts = [self.cause, self.details(), self.remedy]
        if self.messages:
            shown = [
                f"  {_clip(message, _SHOWN_CHARACTERS)}"
                for message in self.messages[:_SHOWN_MESSAGES]
            ]
            more = len(self.messages) - len(shown)
            if more > 0:
                shown.append(f"  ... and {more} more in .messages")
            parts.append(
                "TensorRT said:\n" + "\n".join(line.replace("\n", "\n  ") for line in shown)
            )
        return "\n".join(part for part in parts if part)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class and attributes; the traceback and ``__cause__`` stay behind."""
        return (_restore, (type(self), self.args, self._state()))

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)


class BackendNotFound(BuildError, ImportError):  # noqa: N818 - public name
    """No TensorRT package that can build is installed (or the one that was asked for is not)."""


class OptionError(BuildError, ValueError):
    """An option has a value that it cannot have, or that contradicts another option's."""


#: What people look for as an option of its own.
_PRECISIONS: Final = ("fp16", "bf16", "fp8", "int8", "half", "precision", "dtype")


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
            hint = (
                "Precision is the model's: a strongly typed network, the default, is built with "
                "the types that the ONNX file has. On TensorRT 10, flags=['FP16'] asks for a "
                "weakly typed one."
            )
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
        reason: str = "user",
    ) -> None:
        check_reason(reason)
        super().__init__(cause or _CANCEL_CAUSES[reason], remedy, messages)
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

    It is missing, a directory, empty, not ONNX, truncated, or its weight files are missing.
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
        nodes: Iterable[NodeError] = (),
    ) -> None:
        super().__init__(cause, remedy, messages)
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
        function: str,
        exception_type: str = "",
        user_traceback: str = "",
    ) -> None:
        super().__init__(cause, remedy, messages)
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

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        messages: Iterable[str] = (),
        *,
        error: OSError | None = None,
        filename: str | None = None,
    ) -> None:
        super().__init__(cause, remedy, messages)
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
        place = remedy = ""
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
# With the separator: a folder whose name only begins like ours is not ours.
_OUR_FOLDER: Final = str(Path(__file__).absolute().parent) + os.sep


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return ``trace`` from its first frame that is not this package's; None where all are."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    return trace


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
