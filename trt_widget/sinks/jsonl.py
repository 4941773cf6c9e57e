"""A build's stream as JSON Lines in a file or a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trt_widget._text import line
from trt_widget.broadcast import Broadcast
from trt_widget.errors import OutputError, SaveError
from trt_widget.events import EventError, StreamStarted, from_json

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from types import TracebackType

    from trt_widget.build import Build
    from trt_widget.errors import BuildError

__all__ = ["EventWriter"]

#: Seconds between two looks at a pipe that nobody reads yet, and at whether to go on.
_LOOK_S = 0.1
#: How long a pipe that nobody reads is waited for once the build has ended, in seconds.
_NOBODY_S = 1.0
#: Bytes of the longest first line that is read.
_LONGEST_START = 64 * 1024
_CAUSES = {
    errno.EPIPE: ("whoever read them has gone", "Start whoever reads them before, and keep it."),
    errno.ENOSPC: ("the disk is full", "Free some space, or write them elsewhere."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space, or write them elsewhere."),
    errno.EFBIG: ("the file would be larger than is allowed", "Write them elsewhere."),
}


class EventWriter:
    """Writes a build's events to a file or a pipe, on a thread of its own.

    It begins at once and ends with the build's last event. A pipe that is read slowly holds up
    nobody: what is missed is replaced by a snapshot. What is written are whole lines; a line that
    the disk had no room for is taken back.

    Parameters
    ----------
    source
        The build, best before its start; or its :class:`~trt_widget.broadcast.Broadcast`.
    target
        Path of a file (a new one is begun) or named pipe, or a descriptor, which stays open.

    Attributes
    ----------
    error
        Why it ended before the build did, or ``None``; the build has a note of it.

    Raises
    ------
    OutputError
        The file cannot be written, or another build writes to it now.
    """

    def __init__(self, source: Build | Broadcast, target: str | os.PathLike[str] | int) -> None:
        broadcast = source if isinstance(source, Broadcast) else Broadcast(source)
        self.error: SaveError | None = None
        self._build = broadcast.build
        self._target = target
        self._reader = broadcast.reader()
        self._descriptor: int | None = None
        self._closing = threading.Event()
        if isinstance(target, int):
            self._descriptor = target
        elif not _is_pipe(target):
            self._descriptor = _open(target)
        self._thread = threading.Thread(
            target=self._run, name="trt_widget events to file", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything is written, or nothing can be any more.

        Returns
        -------
        bool
            Whether that is so; after ``timeout`` seconds it may not be.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Write no more; the batch that is being written is finished."""
        self._closing.set()
        self._reader.close()

    def __enter__(self) -> EventWriter:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.close()
        self.wait()

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            descriptor = self._descriptor
            if descriptor is None:
                descriptor = self._descriptor = self._open_pipe()
            if descriptor is not None:
                for batch in self._reader:
                    _write_lines(descriptor, batch.text.encode("ascii"))
        except OSError as error:
            self._give_up(error)
        finally:
            self._reader.close()
            if self._descriptor is not None and not isinstance(self._target, int):
                _unlock(self._descriptor)
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)

    def _open_pipe(self) -> int | None:
        """Wait until somebody reads the pipe."""
        assert not isinstance(self._target, int)  # noqa: S101 - a descriptor is open already
        after = 0.0
        while not self._closing.is_set() and after < _NOBODY_S:
            descriptor = _open_if_read(self._target)
            if descriptor is not None:
                return descriptor
            self._closing.wait(_LOOK_S)
            if self._build.result is not None:
                after += _LOOK_S
        if not self._closing.is_set():
            raise BrokenPipeError(errno.EPIPE, "nobody reads it")
        return None

    def _give_up(self, error: OSError) -> None:
        where = "" if isinstance(self._target, int) else f" to {os.fspath(self._target)!r}"
        why, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), ""))
        self.error = SaveError(
            f"The events could not be written{where} to their end: {why}.",
            remedy,
            error=error,
            filename=None if isinstance(self._target, int) else os.fspath(self._target),
        )
        self._build.notes.append(self.error.cause)


def _is_pipe(path: str | os.PathLike[str]) -> bool:
    try:
        return stat.S_ISFIFO(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _open_if_read(path: str | os.PathLike[str]) -> int | None:
    """Open a named pipe if somebody reads it."""
    if sys.platform != "win32":
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        else:
            os.set_blocking(descriptor, True)
            return descriptor
    return None


def _open(path: str | os.PathLike[str]) -> int:
    """Begin a new file; while it is open nobody else can."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _refused(path, why) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        if not _lock(descriptor):
            os.close(descriptor)
            raise _taken(path)
        os.ftruncate(descriptor, 0)
    return descriptor


if sys.platform == "win32":

    def _lock(_descriptor: int) -> bool:
        """Do without: a lock would keep readers out, too."""
        return True

    def _unlock(_descriptor: int) -> None:
        """There is none."""

else:

    def _lock(descriptor: int) -> bool:
        """Say whether nobody else writes there: the lock ends with the process at the latest."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(descriptor: int) -> None:
        """Let go, even if a forked process still has the file open."""
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _taken(path: str | os.PathLike[str]) -> BuildError:
    name = os.fspath(path)
    who = "another build"
    with contextlib.suppress(OSError, ValueError, EventError), open(path, "rb") as file:  # noqa: PTH123 - as elsewhere here
        first = from_json(file.readline(_LONGEST_START))
        if isinstance(first, StreamStarted) and first.pid is not None:
            model = line(first.model, 100)
            who = (
                f"the build of {model} in process {first.pid}" if model else f"process {first.pid}"
            )
    return OutputError(
        f"The events cannot be written to {name!r}: {who} writes there.",
        "Choose another file, or wait until that build has ended.",
    )


def _refused(path: str | os.PathLike[str], why: str) -> BuildError:
    return OutputError(
        f"The events cannot be written to {os.fspath(path)!r}: {why}.",
        "Choose a file in a folder that you may write to, or - for the standard output.",
    )


def _write_lines(descriptor: int, data: bytes) -> None:
    """Write whole lines; of one that is cut short by an error, a file keeps nothing."""
    done = 0
    try:
        with memoryview(data) as view:
            while done < len(data):
                done += os.write(descriptor, view[done:])
    except OSError:
        with contextlib.suppress(OSError):  # a pipe: what is written is written
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                whole = data.rfind(b"\n", 0, done) + 1
                end = os.lseek(descriptor, 0, os.SEEK_CUR) - (done - whole)
                os.ftruncate(descriptor, end)
                os.lseek(descriptor, end, os.SEEK_SET)
        raise
