"""TensorRT's messages, captured.

``trt.Logger`` writes to C++'s standard output, which a notebook does not show. :func:`make_logger`
gives an ``ILogger`` that only records; a build drains it, keeps the messages within bounds and
forwards them to :mod:`logging`.

Measured with tensorrt-rtx 1.7.1: every builder keeps the logger it was made with, also when others
are alive in the process (one harmless warning says otherwise, :data:`NOISE`); an exception in
``log`` never reaches Python; one DenseNet-121 build writes 60,788 verbose lines, each of which
would take the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trt_widget.events import Event, LogMessage, MessagesDropped

if TYPE_CHECKING:
    from tensorrt import ILogger

    from trt_widget.backend import Backend

__all__ = ["MAX_MESSAGES", "BuildLog", "forward", "make_logger"]

#: Messages kept of one build, and messages that may wait for one drain.
MAX_MESSAGES = 10_000
#: Characters kept of one message.
MAX_LENGTH = 4_000
#: Said at the second builder of a process, and true only of who is called "registered".
NOISE = "The logger passed into create"

_LEVELS = {
    "internal_error": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.DEBUG,
}

#: ILogger.Severity.WARNING; the more serious ones are below it.
_WARNING = 2

_forward = logging.getLogger("trt_widget.tensorrt")
# Without it Python's handler of last resort would print warnings from the drain thread.
logging.getLogger("trt_widget").addHandler(logging.NullHandler())


class BuildLog:
    """The messages of one build, newest kept; warnings and errors have a bound of their own.

    Attributes
    ----------
    dropped
        Messages that are not kept any more.
    """

    def __init__(self, maximum: int = MAX_MESSAGES) -> None:
        self._plain: deque[LogMessage] = deque(maxlen=maximum)
        self._serious: deque[LogMessage] = deque(maxlen=maximum)
        self.dropped = 0

    def add(self, message: LogMessage) -> None:
        """Keep a message."""
        serious = _LEVELS.get(message.severity, logging.INFO) >= logging.WARNING
        kept = self._serious if serious else self._plain
        if len(kept) == kept.maxlen:
            self.dropped += 1
        kept.append(message)

    def messages(self) -> list[LogMessage]:
        """Give the kept messages in the order in which they came."""
        return sorted([*self._plain, *self._serious], key=lambda message: message.time)

    @property
    def serious(self) -> list[LogMessage]:
        """The kept warnings and errors."""
        return list(self._serious)


def forward(messages: list[LogMessage]) -> None:
    """Hand messages on to ``logging.getLogger("trt_widget.tensorrt")``."""
    for message in messages:
        # A handler or filter that raises is its owner's affair, and must not end the build.
        with contextlib.suppress(Exception):
            _forward.log(_LEVELS.get(message.severity, logging.INFO), "%s", message.message)


class _Recorder:
    """What an ``ILogger`` of ours does, apart from its base class."""

    origin: float
    threshold: int

    def _prepare(self, origin: float, names: dict[int, str], threshold: int) -> None:
        self.origin = origin
        self.threshold = threshold
        self._names = names
        self._queue: deque[tuple[float, int, str]] = deque()
        self._serious: deque[tuple[str, str]] = deque(maxlen=1_000)
        self._refused = 0
        self._refused_sent = 0

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        """Record a message (called by TensorRT, from any thread; never raises)."""
        try:
            level = int(severity)
            if level > self.threshold or msg.startswith(NOISE):
                return
            if len(msg) > MAX_LENGTH:
                msg = f"{msg[:MAX_LENGTH]}… ({len(msg)} characters)"
            if level <= _WARNING:
                self._serious.append((self._names.get(level, "error"), msg))
            if len(self._queue) >= MAX_MESSAGES:
                self._refused += 1
                return
            self._queue.append((perf_counter(), level, msg))
        except Exception:  # noqa: BLE001 - an exception would only be printed by C++
            self._refused += 1

    def serious(self) -> list[tuple[str, str]]:
        """Give the warnings and errors so far, as (severity, message); the newest thousand."""
        return list(self._serious)

    def drain(self) -> list[Event]:
        """Take the messages that came since the last call."""
        events: list[Event] = []
        for _ in range(len(self._queue)):
            time, level, message = self._queue.popleft()
            severity = self._names.get(level, "info")
            events.append(LogMessage(max(0.0, time - self.origin), severity, message))
        refused = self._refused - self._refused_sent
        if refused:
            self._refused_sent += refused
            events.append(MessagesDropped(perf_counter() - self.origin, refused))
        return events


if TYPE_CHECKING:

    class BuildLogger(_Recorder, ILogger):
        """What :func:`make_logger` makes, of whichever package it is."""


def make_logger(backend: Backend, *, origin: float, verbose: bool = False) -> BuildLogger:
    """Make an ``ILogger`` of ``backend`` that records.

    Parameters
    ----------
    origin
        Reading of ``time.perf_counter()`` that counts as time zero.
    verbose
        Record TensorRT's verbose messages too; every one costs the builder a turn of the
        interpreter.

    Returns
    -------
    ILogger
        With an additional ``drain()``, which gives a list of events.
    """
    base = backend.module.ILogger
    severity = base.Severity
    names = {
        int(getattr(severity, name.upper())): name
        for name in _LEVELS
        if hasattr(severity, name.upper())
    }
    bound: type[BuildLogger] = type("BuildLogger", (_Recorder, base), {"__module__": __name__})

    def initialize(self: Any) -> None:
        base.__init__(self)
        self._prepare(origin, names, int(severity.VERBOSE if verbose else severity.INFO))

    bound.__init__ = initialize  # type: ignore[method-assign]
    return bound()
