"""What a build process tells, taken in line by line: the same from a pipe and from a cluster."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trt_widget.events import (
    PROTOCOL_VERSION,
    BuildEnded,
    Event,
    EventError,
    LogMessage,
    NetworkReady,
    StreamStarted,
    from_json,
)
from trt_widget.phases import PATH_SEPARATOR, PhaseTree

if TYPE_CHECKING:
    from typing import Any

    from trt_widget.errors import BuildError

__all__ = ["Intake", "is_sound"]

#: Events that wait for the drain. Past it nothing more should be fed: the pipe fills, and the child
#: collapses phases to counts. The builder is never held up.
MAX_WAITING = 50_000
#: Bytes of a line, and of the lines that wait for the drain.
MAX_LINE = 16 << 20
MAX_WAITING_BYTES = 64 << 20
_MOST_BAD_LINES = 10
_MOST_WORDS = 100


class Intake:
    """Reads the stream of one build process, and keeps what its end has to be explained by.

    Attributes
    ----------
    _hello, _end
        The first and the last event, once they are there; neither is given to the drain.
    _parsed
        Whether the model was parsed.
    """

    def __init__(self) -> None:
        self._begin_stream()

    def _begin_stream(self) -> None:
        """Forget everything: another process tells its own from now on."""
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._rest: list[bytes] = []  # joined once: a long line is not copied with every piece
        self._rest_length = 0
        self._end: BuildEnded | None = None
        self._hello: StreamStarted | None = None
        self._parsed = False
        self._bad_lines: list[str] = []
        self._bad_count = 0
        # A tree of its own tells at any moment in which phase the process is.
        self._tree = PhaseTree(max_spans=0)
        self._words: deque[tuple[str, str]] = deque(maxlen=_MOST_WORDS)

    def _take_bytes(self, data: bytes) -> None:
        """Take a piece of the stream, which may end within a line."""
        *lines, last = data.split(b"\n")
        for line in lines:
            whole = b"".join([*self._rest, line]) if self._rest else line
            self._rest, self._rest_length = [], 0
            self._take_line(whole)
        self._rest_length += len(last)
        if last and self._rest_length <= MAX_LINE:
            self._rest.append(last)
        elif last and self._rest:  # too long to be an event: it is noted by its beginning
            self._rest = self._rest[:1]
        self._waiting_bytes += len(data)

    def _take_line(self, line: bytes) -> None:
        try:
            event = from_json(line)
        except EventError as error:
            self._count_bad(f"{line[:200]!r} ({error})"[:400])
            return
        if isinstance(event, BuildEnded):
            self._end = event
            return
        if isinstance(event, StreamStarted):
            self._hello = event
            if event.version != PROTOCOL_VERSION:
                self._count_bad(f"protocol version {event.version}")
            return
        if isinstance(event, NetworkReady):
            self._parsed = True
        elif isinstance(event, LogMessage):
            self._words.append((event.severity, event.message))
        else:
            self._tree.apply([event])
        self._waiting.append(event)

    def _count_bad(self, text: str) -> None:
        self._bad_count += 1
        if len(self._bad_lines) < _MOST_BAD_LINES:  # enough to see what it is
            self._bad_lines.append(text)

    def _take_waiting(self) -> list[Event]:
        """Give what has arrived since the last call, in the order of its arrival."""
        events: list[Event] = []
        self._waiting_bytes = 0
        for _ in range(len(self._waiting)):
            events.append(self._waiting.popleft())  # noqa: PERF401 - others append meanwhile
        return events

    @property
    def _is_full(self) -> bool:
        """Whether as much waits for the drain as may."""
        return len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES

    @property
    def _open_phase(self) -> str | None:
        """Path of the innermost open phase."""
        path = self._tree.open_phases
        return PATH_SEPARATOR.join(path[-1]) if path else None

    def _bad_lines_note(self) -> list[str]:
        """Say what could not be read, if there was something."""
        if not self._bad_lines:
            return []
        count, first = self._bad_count, self._bad_lines[0]
        return [f"{count} lines of the build process could not be read; the first: {first}"]


def is_sound(status: str, engine: Any, error: BuildError | None) -> bool:
    """Whether an end does not contradict itself: a model may have damaged the process."""
    return {
        "succeeded": engine is not None and error is None,
        "cancelled": engine is None and error is None,
        "failed": error is not None,
    }.get(status, False)
