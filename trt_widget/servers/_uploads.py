"""Where a server keeps what was uploaded to it, and how it gets there.

The folder is of one server, below the user's runtime folder, and locked by it. The system gives the
lock back however the server ends, so the next one knows whose folders can go.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Final

from trt_widget.errors import BuildError
from trt_widget.executors.lock import SystemLock, runtime_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["BodyError", "Scratch", "discard", "in_time", "safe_name", "save_stream", "too_large"]

#: Bytes that are gathered before they are written, on a thread.
_PIECE: Final = 1 << 20
#: Seconds without a byte after which an upload is given up.
STALL_S: Final = 60.0
#: Characters of a file's name: file systems take 255 bytes, and one may have four.
_LONGEST_NAME: Final = 55
#: What Windows takes for a device, whatever follows a dot.
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def safe_name(name: str) -> str:
    """Make a stranger's name one for a file anywhere: letters, digits and a few signs."""
    found = re.sub(r"[^\w.+-]+", "_", name)
    if len(found) > _LONGEST_NAME:  # what comes last says what it is
        half = _LONGEST_NAME // 2
        found = f"{found[:half]}_{found[-half:]}"
    found = found.strip("._-+")
    return found if found and not _DEVICES.match(found) else f"model_{found}".rstrip("_")


class BodyError(Exception):
    """A body that is not taken.

    Parameters
    ----------
    status
        Of the answer.
    cause, remedy
        As of all errors here.
    """

    def __init__(self, status: int, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.status = status
        self.cause = cause
        self.remedy = remedy


def too_large(limit: int) -> BodyError:
    """Make the error of a body of more bytes than are taken."""
    return BodyError(
        413,
        f"The body is larger than the {limit:,} bytes that this server takes.",
        "Put the model below the server's folder and name it, or start the server with a larger "
        "--max-upload.",
    )


def _unwritable(error: OSError) -> BodyError:
    return BodyError(
        507,
        f"The model could not be kept: {error.strerror}.",
        "Free some space in the server's folder for temporary files.",
    )


class Scratch:
    """A folder of this process for files that end with it.

    Raises
    ------
    BuildError
        It cannot be made.
    """

    def __init__(self) -> None:
        try:
            base = runtime_folder()
            remove_leftovers(base)
            while True:
                name = f"serve-{secrets.token_hex(8)}"
                self._lock = SystemLock(base / f"{name}.lock")
                if self._lock.try_acquire():
                    break
            self.path = base / name
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise BuildError(
                f"No folder for uploads could be made: {error}.",
                remedy="Free some space in the folder for temporary files, or set TMPDIR to "
                "another before the server starts.",
            ) from error

    def new_folder(self) -> Path:
        """Make a folder for one upload.

        Raises
        ------
        BodyError
            It cannot be made.
        """
        folder = self.path / secrets.token_hex(8)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _unwritable(error) from error
        return folder

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._lock.path.unlink()
        self._lock.release()


def remove_leftovers(base: Path) -> None:
    """Remove the folders of servers that are gone without having done so."""
    for path in base.glob("serve-*.lock"):
        lock = SystemLock(path)
        # Another server may be at it, too.
        with contextlib.suppress(OSError):
            if lock.try_acquire():
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink()
                lock.release()


async def save_stream(chunks: AsyncIterator[bytes], path: Path, limit: int) -> None:
    """Write what comes to a file, a piece in memory at a time.

    Raises
    ------
    BodyError
        No bytes, more than ``limit``, nothing for :data:`STALL_S` seconds, or a full disk.
    """
    size = 0
    piece = bytearray()
    try:
        with path.open("xb") as file:
            async for chunk in in_time(chunks):
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                piece += chunk
                if len(piece) >= _PIECE:
                    await asyncio.to_thread(file.write, piece)
                    piece = bytearray()
            await asyncio.to_thread(file.write, piece)
    except OSError as error:
        raise _unwritable(error) from error
    if size == 0:
        raise BodyError(422, "The body is empty.", "Send an ONNX model, or application/json.")


async def in_time(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Give the pieces of a body as long as they come.

    Raises
    ------
    BodyError
        Nothing for :data:`STALL_S` seconds.
    """
    while True:
        try:
            chunk = await asyncio.wait_for(chunks.__anext__(), STALL_S)
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise BodyError(408, "Nothing more came of the body.", "Send it in one go.") from None
        yield chunk


async def discard(chunks: AsyncIterator[bytes], most: int, seconds: float) -> None:
    """Take what still comes of a body that was refused, so that its sender hears the answer.

    A connection that is closed with something unread is reset, and the answer may go with it.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(StopAsyncIteration, asyncio.TimeoutError):
        while most > 0 and (left := deadline - time.monotonic()) > 0.0:
            most -= len(await asyncio.wait_for(chunks.__anext__(), left))
