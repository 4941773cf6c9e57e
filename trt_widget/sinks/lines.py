"""A build as plain lines, for logs and pipes: few of them, and never an escape code."""

from __future__ import annotations

import contextlib
import threading
import time as clock
from collections import deque
from typing import TYPE_CHECKING, TextIO

from trt_widget._text import line
from trt_widget.events import OutputCaptured
from trt_widget.sinks.sentences import (
    MAX_SENTENCE,
    activity,
    elapsed,
    headline,
    innermost,
    outlook,
    printed,
    serious,
    summary,
)

if TYPE_CHECKING:
    from types import TracebackType

    from trt_widget.build import Build
    from trt_widget.events import Event
    from trt_widget.phases import PhaseNode

__all__ = ["Lines"]

#: Seconds between two looks at the build.
TICK_S = 0.25
#: Seconds between two lines of progress: at least, as a part of the time that has passed, and at
#: most; between two of the same phase they are more. So a build of an hour is some hundred lines,
#: and a job that is watched for signs of life is seen to live.
LEAST_S, LEAST_SAME_S = 1.0, 2.0
PART, PART_SAME = 0.05, 0.25
MOST_S = 30.0
#: Messages of TensorRT that are written out; of the others only the number is told.
MAX_MESSAGES = 20
#: Lines of what the build process prints that are passed on.
MAX_PRINTED = 1_000


class Lines:
    """Writes how a build gets on, line by line, on a thread of its own.

    Parameters
    ----------
    build
        What is told of.
    stream
        Where to; a stream of text.

    Attributes
    ----------
    cancelling
        What is said when the build is asked to stop.
    notice
        What else is said, once; it can be set at any time.
    """

    def __init__(self, build: Build, stream: TextIO) -> None:
        self.cancelling = "Cancelling at the next step…"
        self.notice = ""
        self._build = build
        self._stream = stream
        self._wake = threading.Event()
        self._closing = False
        self._broken = False
        #: States that were told.
        self._said: set[str] = set()
        self._waiting: str | None = None
        self._messages = 0
        #: What was printed and is not written yet, and the number of lines that are.
        self._pieces: deque[str] = deque()
        self._rest = ""
        self._printed = 0
        self._last_line = clock.monotonic()
        self._last_phase: PhaseNode | None = None
        self._thread = threading.Thread(target=self._run, name="trt_widget lines", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._build.subscribe(self._note)
        self._thread.start()

    def _note(self, events: list[Event]) -> None:
        self._pieces.extend(event.text for event in events if isinstance(event, OutputCaptured))

    def close(self, timeout: float | None = None) -> bool:
        """Write the last lines, once the build has ended, and no more.

        Returns
        -------
        bool
            Whether that is done; where nobody reads, it is not after ``timeout`` seconds.
        """
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def pause(self) -> None:
        """Do nothing: lines stay as they are."""

    def resume(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Lines:  # noqa: PYI034 - typing.Self came with Python 3.11
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        while not self._closing:
            self._look()
            self._wake.wait(TICK_S)
        self._look()
        with self._build.lock:
            lines = summary(self._build)
        for text in lines:
            self._write(text)

    def _look(self) -> None:
        build = self._build
        with build.lock:
            lines = [*self._status(), *self._output(), *self._news(), *self._progress()]
        if self.notice:
            lines.append(self.notice)
            self.notice = ""
        for text in lines:
            self._write(text)

    def _status(self) -> list[str]:
        build = self._build
        status, waiting = build.status, build.waiting_for
        lines = []
        if status == "pending" and waiting and waiting != self._waiting:
            lines.append(f"{line(build.name)}: {activity(build)}")
        self._waiting = waiting
        # Either may have passed between two looks.
        if "running" in build.entered_at and "running" not in self._said:
            self._said.add("running")
            about = headline(build)
            lines.append(f"{line(build.name)}: running{f' ({about})' if about else ''}")
        if "cancelling" in build.entered_at and "cancelling" not in self._said:
            self._said.add("cancelling")
            lines.append(self.cancelling)
        return lines

    def _output(self) -> list[str]:
        """Give what was printed since the last look, as far as its lines are whole."""
        text = self._rest
        while self._pieces:
            text += self._pieces.popleft()
        if self._closing and text:
            text += "\n"
        whole, _, self._rest = text.rpartition("\n")
        if len(self._rest) > MAX_SENTENCE:
            whole, self._rest = whole + self._rest, ""
        found = printed(whole)
        new = found[: max(0, MAX_PRINTED - self._printed)]
        if self._printed <= MAX_PRINTED < self._printed + len(found):
            new.append("| … and more, which --events keeps.")
        self._printed += len(found)
        return new

    def _news(self) -> list[str]:
        """Give what TensorRT has warned of since the last look."""
        found = serious(self._build)
        new = found[self._messages : MAX_MESSAGES]
        lines = [f"{m.severity}: {line(m.message, MAX_SENTENCE)}" for m in new]
        if self._messages <= MAX_MESSAGES < len(found):
            lines.append("There are more messages; they are counted at the end.")
        self._messages = max(self._messages, len(found))
        return lines

    def _progress(self) -> list[str]:
        build = self._build
        if build.status not in {"running", "cancelling"}:
            return []
        now, since = build.now(), clock.monotonic() - self._last_line
        node = innermost(build)
        changed = node is not self._last_phase
        least, part = (LEAST_S, PART) if changed else (LEAST_SAME_S, PART_SAME)
        if since < max(least, min(MOST_S, part * now)):
            return []
        self._last_phase = node
        self._last_line = clock.monotonic()
        parts = [f"[{elapsed(now):>8}]", outlook(build), activity(build, path=True)]
        return ["  ".join(part for part in parts if part)]

    def _write(self, text: str) -> None:
        if self._broken:
            return
        with contextlib.suppress(ValueError):  # it was closed by somebody else
            try:
                self._stream.write(f"{text}\n")
                self._stream.flush()
            except OSError:  # the reader has gone, the disk is full: the build goes on
                self._broken = True
