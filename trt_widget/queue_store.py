"""What ended builds leave behind, in one file instead of in memory: engines and records.

The file has no name, so nothing is left however this process ends; and it is one, since a map of
each engine of its own would take a descriptor each, of which a process has some hundreds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import weakref
from typing import Any, Final, NamedTuple

from trt_widget._files import write_all

__all__ = ["Piece", "Store"]

#: Pieces begin at multiples of so many bytes.
_ALIGNMENT: Final = 64


class Piece(NamedTuple):
    """Where something is in the store's file."""

    offset: int
    size: int


class Store:
    """A file that only grows; see the text of this module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Any = None
        self._end = 0
        self._map: mmap.mmap | None = None

    def keep(self, data: Any) -> Piece:
        """Put bytes into the file.

        Raises
        ------
        OSError
            They could not be written; nothing of them is left.
        """
        size = memoryview(data).nbytes
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="trt_widget-", suffix=".engines")  # noqa: SIM115 - it lives as long as the store
                weakref.finalize(self, self._file.close)
            descriptor = self._file.fileno()
            begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT
            try:
                os.lseek(descriptor, begin, os.SEEK_SET)
                write_all(descriptor, data)
            except OSError:
                with contextlib.suppress(OSError):  # on Windows it may be mapped
                    os.ftruncate(descriptor, self._end)
                raise
            self._end = begin + size
        return Piece(begin, size)

    def get(self, piece: Piece) -> memoryview:
        """Give what was kept, as read-only memory that is valid as long as it is held.

        Raises
        ------
        OSError
            The file cannot be mapped.
        """
        if not piece.size:
            return memoryview(b"")
        with self._lock:
            # One map for all that is there: its views share one descriptor.
            if self._map is None or len(self._map) < piece.offset + piece.size:
                self._map = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_READ)
            return memoryview(self._map)[piece.offset : piece.offset + piece.size]
