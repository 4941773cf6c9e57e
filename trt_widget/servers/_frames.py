"""Messages of the Language Server Protocol over a pair of blocking streams.

A thread reads, another writes, and neither holds up the event loop: a client that has stopped
reading can still cancel, and its end is noticed; but one that goes on asking is not read any more
when megabytes of answers wait for it. What cannot be read is an error in words and never
the end of the stream.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["MAX_BACKLOG", "MAX_MESSAGE", "Channel", "Frames"]

#: Bytes of one message. Documents are not synchronized, so that messages are small.
MAX_MESSAGE = 4 * 1024 * 1024
#: Bytes of the header of one message.
MAX_HEADER = 8 * 1024
#: Bytes that are read at once, and how many such pieces wait for the event loop at most.
_PIECE = 64 * 1024
_WAITING = 16
#: Bytes that the other side has not read yet, beyond which nothing more is read of it.
MAX_BACKLOG = 4 * 1024 * 1024
_END = b"\r\n\r\n"


class Frames:
    """Takes bytes as they come, and gives messages.

    A header that is none, and a message that is too long, are left out and reported.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._length: int | None = None
        self._skip = 0
        self._lost = False

    def feed(self, data: bytes) -> list[bytes | str]:
        """Give what is complete: messages as bytes, and what is wrong as text."""
        found: list[bytes | str] = []
        self._kept += data
        while self._one(found):
            pass
        return found

    def _one(self, found: list[bytes | str]) -> bool:
        """Take one thing from what is kept; False while more is needed."""
        kept = self._kept
        if self._skip:
            taken = min(self._skip, len(kept))
            del kept[:taken]
            self._skip -= taken
            return not self._skip and bool(kept)
        if self._length is not None:
            if len(kept) < self._length:
                return False
            found.append(bytes(kept[: self._length]))
            del kept[: self._length]
            self._length = None
            return True
        end = kept.find(_END)
        if end < 0:
            if len(kept) > MAX_HEADER:
                if not self._lost:
                    found.append(f"a header of more than {MAX_HEADER} bytes")
                self._lost = True
                del kept[: -len(_END)]
            return False
        header = bytes(kept[:end])
        del kept[: end + len(_END)]
        if self._lost:  # the rest of a header that was reported already
            self._lost = False
            return True
        length = _length_in(header)
        if length is None:
            found.append("a header without a Content-Length that is a number")
        elif length > MAX_MESSAGE:
            found.append(f"a message of {length} bytes; at most {MAX_MESSAGE} are read")
            self._skip = length
        else:
            self._length = length
        return True


def _length_in(header: bytes) -> int | None:
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        digits = value.strip()
        if name.strip().lower() == b"content-length" and digits.isdigit() and len(digits) < 20:  # noqa: PLR2004 - below 64 bits
            return int(digits)
    return None


class Channel:
    """The threads that read and write; everything else happens in the event loop.

    Parameters
    ----------
    read
        Takes a number of bytes and gives some; none at the end.
    write
        Writes some of the bytes that it is given and tells how many, as ``os.write`` does.
    """

    def __init__(self, read: Callable[[int], bytes], write: Callable[[memoryview], int]) -> None:
        self._read = read
        self._write = write
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(_WAITING)
        self._queued = 0
        self._written = 0
        self._room = threading.Condition()
        self._broken = False
        self._writer = threading.Thread(
            target=self._write_all, name="trt_widget lsp writer", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop
        self._take: Callable[[bytes | str], object]
        self._gone: Callable[[], object]
        self._frames = Frames()

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[bytes | str], object],
        gone: Callable[[], object],
    ) -> None:
        """Begin to read and write.

        Parameters
        ----------
        loop
            Where the two functions are called.
        take
            Called with each message, and with a text for each thing that is none.
        gone
            Called when there is nobody at the other end any more.
        """
        self._loop, self._take, self._gone = loop, take, gone
        self._writer.start()
        threading.Thread(target=self._read_all, name="trt_widget lsp reader", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Queue bytes; returns at once."""
        self._queued += len(data)
        self._outgoing.put(data)

    @property
    def backlog(self) -> int:
        """Bytes that wait for the other side to read."""
        return self._queued - self._written

    def close(self, timeout: float = 1.0) -> None:
        """Write what is queued, for ``timeout`` seconds at most, and nothing after that."""
        self._outgoing.put(None)
        if self._writer.is_alive():
            self._writer.join(timeout)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        # The loop may be closed by the time.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _read_all(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._until_read() and (data := self._read(_PIECE)):
                self._free.acquire()
                self._call(self._feed, data)
        self._call(self._gone)

    def _until_read(self) -> bool:
        """Wait while the other side has too much to read; True."""
        with self._room:
            self._room.wait_for(lambda: self._broken or self.backlog <= MAX_BACKLOG)
        return True

    def _feed(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._take(message)
        finally:
            self._free.release()

    def _write_all(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._write(rest) :]
                with self._room:
                    self._written += len(data)
                    self._room.notify()
        except (OSError, ValueError):
            self._call(self._gone)
            with self._room:
                self._broken = True
                self._room.notify()
            while self._outgoing.get() is not None:  # nobody reads it
                pass
