"""Where the bytes of a followed stream come from: a file, a pipe, an object that can be read.

Each input gives what is there and never waits longer than :data:`LOOK_S` where the system allows
it, so that whoever reads can be stopped. What cannot be asked whether it has something (an object
without a descriptor, a pipe on Windows) is read by a call that blocks until it has.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import stat
import sys
import time as clock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if sys.platform != "win32":
    import select

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHUNK", "LOOK_S", "Input", "Kept", "Lines", "look_at", "open_input"]

#: Seconds between two looks at a file that may grow, and at a pipe that may have something.
LOOK_S = 0.1
#: Bytes that are read at once.
CHUNK = 1 << 16
#: Bytes by which the beginning of a file is known again: of a stream, time and process are in it.
HEAD = 512
#: Bytes of the end of a file in which its last line is looked for.
_LAST = 256 * 1024
#: Files of bytes that gzip wrote.
_ZIPPED = ".gz"


class Kept(NamedTuple):
    """What is known of a file that ended some time ago."""

    identity: tuple[int, ...]
    last: bytes
    age: float


def look_at(path: Any) -> Kept | None:
    """Give what is known of a regular file, with its last line; ``None`` for anything else."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = -1
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - may be bytes
            return None
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
        found = os.fstat(descriptor)
        os.lseek(descriptor, max(0, found.st_size - _LAST), os.SEEK_SET)
        last = os.read(descriptor, _LAST).rstrip(b"\r\n").rpartition(b"\n")[2]
    except OSError:
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return Kept(identity, last, max(0.0, clock.time() - found.st_mtime))


class Input(Protocol):
    """Gives the bytes of a stream.

    Attributes
    ----------
    growing
        Whether it is a file: what is not read now can be read later.
    restarted
        Set where a file was cut or replaced: what comes now is its new beginning.
    """

    growing: bool
    restarted: bool

    def read(self) -> bytes | None:
        """Give what is there; ``None`` for nothing yet, ``b""`` at the end."""

    def age(self) -> float:
        """Give the seconds since the last of what was read was written, 0 where not known."""

    def close(self) -> None:
        """Give it back, unless it is the caller's."""


def open_input(source: Any, *, tail: bool) -> Input:
    """Open a path, a descriptor or an object.

    Parameters
    ----------
    source
        ``str`` or ``os.PathLike``; ``int``; or an object with ``read``.
    tail
        Whether the end of a file is waited at for more.

    Raises
    ------
    OSError
        It cannot be opened.
    """
    if isinstance(source, int):
        descriptor = os.dup(source)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _File(descriptor, None, tail=tail)
        return _Pipe(descriptor)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if str(path).lower().endswith(_ZIPPED):
            import gzip

            return _Object(gzip.open(path), tail=False, ours=True)
        # A FIFO would be waited for by its opening.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _File(descriptor, path, tail=tail)
        return _Pipe(descriptor, named=True)
    return _Object(source, tail=tail)


class _File:
    """A regular file, from where it stands; ``path`` is looked at for another one of that name."""

    growing = True

    def __init__(self, descriptor: int, path: Any, *, tail: bool) -> None:
        self._descriptor = descriptor
        self._path = path
        self._tail = tail
        self._head = b""
        self._at_end = False
        self.restarted = False

    def read(self) -> bytes | None:
        if self._at_end and self._read_head(len(self._head)) != self._head:
            # Cut and written anew since the last look, by now to more than there was.
            self._begin_again(self._descriptor)
            return None
        data = os.read(self._descriptor, CHUNK)
        if data and len(self._head) < HEAD:
            self._head = self._read_head(HEAD)
        self._at_end = not data
        if data or not self._tail:
            return data
        if self._renewed():
            return None
        clock.sleep(LOOK_S)
        return None

    def _renewed(self) -> bool:
        """Begin again where the file was cut, or where its name is another file's now."""
        found = os.fstat(self._descriptor)
        if found.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR):
            self._begin_again(self._descriptor)
            return True
        if self._path is None:
            return False
        with contextlib.suppress(OSError):
            new = os.stat(self._path)  # noqa: PTH116 - may be bytes
            if (new.st_dev, new.st_ino) != (found.st_dev, found.st_ino) and stat.S_ISREG(
                new.st_mode
            ):
                descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                os.close(self._descriptor)
                self._begin_again(descriptor)
                return True
        return False

    if sys.platform == "win32":

        def _read_head(self, size: int) -> bytes:
            """Give what is known of the beginning: it cannot be read without going there."""
            return self._head[:size]

    else:

        def _read_head(self, size: int) -> bytes:
            """Give the beginning of the file."""
            return os.pread(self._descriptor, size, 0)

    def _begin_again(self, descriptor: int) -> None:
        self._descriptor, self._head, self._at_end = descriptor, b"", False
        os.lseek(descriptor, 0, os.SEEK_SET)
        self.restarted = True

    def age(self) -> float:
        return max(0.0, clock.time() - os.fstat(self._descriptor).st_mtime)

    def close(self) -> None:
        os.close(self._descriptor)


class _Pipe:
    """A pipe, FIFO, socket or terminal, by a descriptor of our own."""

    growing = False
    restarted = False

    def __init__(self, descriptor: int, *, named: bool = False) -> None:
        self._descriptor = descriptor
        #: Whether it may be one that nobody has opened for writing yet.
        self._lonely = named
        if sys.platform != "win32":
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    def read(self) -> bytes | None:
        if sys.platform != "win32" and not self._poll.poll(1000 * LOOK_S):
            return None
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:  # somebody else was quicker
            return None
        if not data and self._lonely:
            clock.sleep(LOOK_S)
            return None
        self._lonely = False
        return data

    def age(self) -> float:
        return 0.0

    def close(self) -> None:
        os.close(self._descriptor)


class _Object:
    """An object of the caller's that can be read, binary or text."""

    def __init__(self, source: Any, *, tail: bool, ours: bool = False) -> None:
        self._source = source
        self._ours = ours
        self._descriptor = _descriptor_of(source)
        regular = self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self.growing = regular or isinstance(source, (io.BytesIO, io.StringIO)) or ours
        self._tail = tail and regular
        self.restarted = False
        self._call = _reading_call(source)
        self._poll: Any = None

    def read(self) -> bytes | None:
        if self._poll is not None and not self._poll.poll(1000 * LOOK_S):
            return None
        try:
            data = self._call()
        except EOFError:  # a zipped file that was cut off: what there was is here
            return b""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if data is None:  # one that does not block
            clock.sleep(LOOK_S)
            return None
        if not data and self._tail:
            clock.sleep(LOOK_S)
            return None
        self._poll_from_now_on()
        return bytes(data)

    def _poll_from_now_on(self) -> None:
        """Ask before the next read: what a buffer had is here, it takes no more than it gives."""
        if sys.platform != "win32" and self._poll is None and not self.growing:
            buffered = isinstance(self._source, io.BufferedReader)
            if self._descriptor is not None and (
                buffered or isinstance(self._source, io.RawIOBase)
            ):
                with contextlib.suppress(OSError, ValueError):
                    self._poll = select.poll()
                    self._poll.register(self._descriptor, select.POLLIN)

    def age(self) -> float:
        if self._tail and self._descriptor is not None:
            return max(0.0, clock.time() - os.fstat(self._descriptor).st_mtime)
        return 0.0

    def close(self) -> None:
        if self._ours:
            self._source.close()


def _descriptor_of(source: Any) -> int | None:
    try:
        descriptor = source.fileno()
    except (OSError, AttributeError, ValueError, TypeError):
        return None
    return descriptor if isinstance(descriptor, int) else None


def _reading_call(source: Any) -> Any:
    """Give the call that returns what is there, rather than wait until it is much."""
    if isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
        return lambda: source.readline(CHUNK)
    if hasattr(source, "read1"):
        return lambda: source.read1(CHUNK)
    if isinstance(source, io.RawIOBase):
        return lambda: source.read(CHUNK)
    if hasattr(source, "readline"):
        return lambda: source.readline(CHUNK)
    return lambda: source.read(1)


class Lines:
    """Cuts bytes into lines; one that is too long is left out and counted.

    Parameters
    ----------
    longest
        Bytes of the longest line that is given.

    Attributes
    ----------
    too_long
        The beginnings of the lines that were longer, since they were last taken.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []  # joined once: a long line is not copied with every piece
        self._length = 0
        self._decoder: codecs.IncrementalDecoder | None = None
        self._begun = False
        self.too_long: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give the lines that are whole by now, without their ends."""
        if not self._begun:
            self._begun = True
            # What a shell of Windows writes when it redirects to a file.
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
            elif data.startswith(codecs.BOM_UTF8):
                data = data[len(codecs.BOM_UTF8) :]
        if self._decoder is not None:
            data = self._decoder.decode(data).encode("utf-8", "replace")
        *lines, last = data.split(b"\n")
        for line in lines:
            self._add(line)
            whole = self.rest()
            if whole is not None:
                yield whole
        self._add(last)

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._longest:
            if part:
                self._parts.append(part)
        elif len(self._parts) > 1:
            del self._parts[1:]
        elif not self._parts:
            self._parts.append(part[:1000])

    def rest(self) -> bytes | None:
        """Give what there is of the line so far; ``None`` where it is too long."""
        whole = b"".join(self._parts)
        fits = self._length <= self._longest
        self._parts, self._length = [], 0
        if fits:
            return whole
        self.too_long.append(whole[:1000])
        return None

    def restart(self) -> None:
        """Forget the line so far."""
        self._parts, self._length, self._begun, self._decoder = [], 0, False, None
