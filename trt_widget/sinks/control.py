"""The way back: requests of whoever follows a build's stream, as lines of JSON.

There is one, ``{"request":"cancel","reason":"user"}``. They come from a pipe, or from a file that
the follower appends to: for a stream in the file ``F`` it is ``F.control``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget._text import line
from trt_widget.errors import CANCEL_REASONS, OptionError

if TYPE_CHECKING:
    from types import TracebackType

    from trt_widget.build import Build

__all__ = ["Listener", "check_own", "control_path", "listen"]

#: Seconds between two looks at a file.
POLL_S = 0.2
#: A longer line is no request, in bytes.
MAX_LINE = 64 * 1024
_PIECE = 4096
#: Characters of a path that are told.
_LONGEST = 200


def control_path(events: str | os.PathLike[str]) -> Path:
    """Give the file beside a stream's file on which its producer listens."""
    path = Path(events)
    return path.with_name(f"{path.name}.control")


def check_own(path: str | os.PathLike[str]) -> None:
    """Refuse a file beside the events that is something else than requests.

    Raises
    ------
    OptionError
        It is.
    """
    if os.path.lexists(path) and not _is_pipe(path) and not _has_requests(path):
        name = line(os.fspath(path), _LONGEST)
        raise OptionError(
            f"Requests would be read from {name}, and that is something else.",
            "Write the events to a file of another name, or say with --control where to listen.",
        )


def listen(build: Build, source: str | os.PathLike[str] | int, *, own: bool = False) -> Listener:
    """Begin to listen for requests.

    Parameters
    ----------
    build
        What they are about.
    source
        Path of a file, which may not exist yet, or of a named pipe; or a descriptor, which is read
        to its end and stays open.
    own
        Whether the file is nobody else's: what an earlier build has left there is removed first.

    Raises
    ------
    OptionError
        It is ``own``, and what is there is no file of requests.
    """
    return Listener(build, source, own=own)


class Listener:
    """Listens on a thread of its own; :func:`listen` makes one.

    Only what is written after it has begun is a request. A file that appeared meanwhile is removed
    at the end.

    Attributes
    ----------
    requests, bad_lines
        How many came, and how many lines were none.
    """

    def __init__(
        self, build: Build, source: str | os.PathLike[str] | int, *, own: bool = False
    ) -> None:
        self.requests = 0
        self.bad_lines = 0
        self._build = build
        self._source = source
        self._stop = threading.Event()
        self._rest = b""
        self._too_long = False
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._pipe: int | None = None
        self._ours = own
        if not isinstance(source, int):
            self._begin(source, own=own)
        self._thread = threading.Thread(
            target=self._read if isinstance(source, int) else self._poll,
            name="trt_widget control",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._stop.set()
        if isinstance(self._source, int):
            return  # its thread waits in a read
        self._thread.join()
        if self._pipe is not None:
            os.close(self._pipe)
        elif self._ours:
            _remove(self._source)

    def __enter__(self) -> Listener:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ files and pipes

    def _begin(self, path: str | os.PathLike[str], *, own: bool) -> None:
        if own:
            check_own(path)
            _remove(path)
        try:
            found = os.stat(path)  # noqa: PTH116 - as elsewhere here
        except (OSError, ValueError):
            self._ours = True
            return
        if stat.S_ISREG(found.st_mode):
            # What is there is meant for another.
            self._file, self._offset = (found.st_dev, found.st_ino), found.st_size

    def _poll(self) -> None:
        assert not isinstance(self._source, int)  # noqa: S101 - such a one is read
        while not self._stop.wait(POLL_S):
            with contextlib.suppress(OSError, ValueError):
                self._look(self._source)

    def _look(self, path: str | os.PathLike[str]) -> None:
        if self._pipe is not None:
            self._drain(self._pipe)
            return
        found = os.stat(path)  # noqa: PTH116 - as elsewhere here
        known = (found.st_dev, found.st_ino)
        if stat.S_ISREG(found.st_mode) and known == self._file and found.st_size == self._offset:
            return
        # Not blocking: somebody may have put a pipe there since.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISFIFO(found.st_mode):
                self._pipe, descriptor = descriptor, -1
                return
            if not stat.S_ISREG(found.st_mode):
                return
            known = (found.st_dev, found.st_ino)
            if known != self._file or found.st_size < self._offset:
                self._file, self._offset, self._rest = known, 0, b""
            os.lseek(descriptor, self._offset, os.SEEK_SET)
            self._offset += self._drain(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _drain(self, descriptor: int) -> int:
        """Take what can be read at once; give its length."""
        taken = 0
        while not self._stop.is_set():
            try:
                data = os.read(descriptor, _PIECE)
            except BlockingIOError:
                break
            if not data:
                break
            taken += len(data)
            self._take(data)
        return taken

    def _read(self) -> None:
        assert isinstance(self._source, int)  # noqa: S101 - paths are polled
        while not self._stop.is_set():
            try:
                data = os.read(self._source, _PIECE)
            except BlockingIOError:
                self._stop.wait(POLL_S)
                continue
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                return
            if not data:
                return
            self._take(data)

    # ------------------------------------------------------------------ lines

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for number, text in enumerate(lines):
            if number == 0 and self._too_long:
                self._too_long = False  # the end of a line that was counted already
            elif text.strip():
                self._take_line(text)
        if len(rest) > MAX_LINE:
            if not self._too_long:
                self.bad_lines += 1
            self._too_long, rest = True, b""
        self._rest = rest

    def _take_line(self, text: bytes) -> None:
        try:
            request: Any = json.loads(text)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or request.get("request") != "cancel":
            self.bad_lines += 1
            return
        self.requests += 1
        reason = request.get("reason")
        if reason not in CANCEL_REASONS or reason == "interrupt":
            reason = "user"  # nobody has interrupted this process
        if self._build.request_cancel(reason) and self.requests == 1:
            where = "standard input" if self._source == 0 else line(str(self._source), _LONGEST)
            self._build.notes.append(f"The request to cancel came from {where}.")


def _remove(path: str | os.PathLike[str]) -> None:
    """Remove a file of requests, and nothing else."""
    with contextlib.suppress(OSError):
        if _has_requests(path):
            os.unlink(path)  # noqa: PTH108 - as elsewhere here


def _is_pipe(path: str | os.PathLike[str]) -> bool:
    try:
        return stat.S_ISFIFO(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _has_requests(path: str | os.PathLike[str]) -> bool:
    """Say whether it is a file, no link, with requests in it or nothing at all."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(path, "rb") as file:  # noqa: PTH123 - as elsewhere here
            data = file.read(MAX_LINE + 1)
    except (OSError, ValueError):
        return False
    return len(data) <= MAX_LINE and (not data or any(map(_is_request, data.split(b"\n"))))


def _is_request(text: bytes) -> bool:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("request"), str)
