"""What a model is made of: its file and those of its weights, by all of their bytes.

Two models are the same here only if every byte of them is, wherever they lie. (What the history
goes by is coarser: :mod:`trt_widget.identity`.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._onnx import UncheckedError, find_external
from trt_widget.diagnosis import refused_locations

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "BLOCK",
    "Content",
    "Piece",
    "content_of",
    "hash_bytes",
    "hash_file",
    "opened",
    "piece_of",
]

#: Bytes between two looks at whether somebody wants this to stop: some milliseconds.
BLOCK: Final = 4 * 1024 * 1024

# A file that was written to so shortly before could be written to again without that its times
# tell: file systems count in steps of up to two seconds.
_FRESH_S: Final = 2.0
_MOST_REMEMBERED: Final = 4_096
_MODEL: Final = "model.onnx"
_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


class _State(NamedTuple):
    """By what an unchanged file is known again without being read."""

    device: int
    inode: int
    size: int
    changed_ns: int
    status_changed_ns: int


class _Hashed(NamedTuple):
    sha256: str
    state: _State
    fresh: bool


@dataclass(frozen=True)
class Piece:
    """One file of a model.

    Attributes
    ----------
    name
        Where it is looked for, relative to the model's folder, in the model's own words: it can
        hold ``..`` where ``external_data=`` allows that. The model itself is ``model.onnx``, or,
        where the name is taken by weights, that with underscores before it.
    source
        Its path, or its bytes.
    size
        In bytes.
    sha256
        Of all its bytes, hexadecimal.
    """

    name: str
    source: Path | bytes = field(repr=False)
    size: int
    sha256: str
    _state: _State | None = field(default=None, repr=False, compare=False)
    _fresh: bool = field(default=False, repr=False, compare=False)

    def read(self, offset: int, size: int) -> bytes:
        """Give up to ``size`` bytes from ``offset`` on; fewer only at the end.

        Nothing says that the file is still the one that was hashed: who takes the bytes checks.

        Raises
        ------
        OSError
            It cannot be read (any more).
        """
        if isinstance(self.source, bytes):
            return self.source[offset : offset + size]
        with opened(self.source) as (file, _):
            file.seek(offset)
            return file.read(size)

    def is_current(self) -> bool:
        """Whether the file is still the one that was hashed."""
        if isinstance(self.source, bytes):
            return True
        try:
            if _state(self.source.stat()) != self._state:
                return False
            return not self._fresh or hash_file(self.source).sha256 == self.sha256
        except OSError:
            return False


@dataclass(frozen=True)
class Content:
    """A model as a set of files.

    Attributes
    ----------
    files
        The model first, then the files of its weights, in the order of their names.
    refused
        The places that the model names for weights and may not read: no build takes such a model
        (:func:`trt_widget.diagnosis.check_external` says it).
    """

    files: tuple[Piece, ...]
    refused: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """One hash for the names and bytes of all files, hexadecimal."""
        seen = hashlib.sha256()
        for piece in self.files:
            name = piece.name.encode("utf-8", "surrogateescape")
            seen.update(b"%d:%b%b" % (len(name), name, piece.sha256.encode("ascii")))
        return seen.hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(piece.size for piece in self.files)

    def is_current(self) -> bool:
        """Whether all files are still those that were hashed."""
        return all(piece.is_current() for piece in self.files)


def content_of(
    model: Path | bytes,
    folders: Sequence[Path] = (),
    step: Callable[[], object] = lambda: None,
) -> Content:
    """Read all of a model.

    Files that this process has read before, and that have not changed, are not read again.

    Parameters
    ----------
    model
        The path of an ONNX file, or its bytes.
    folders
        Where weights may be too, besides below the model's folder (``external_data=``). As in
        TensorRT itself, the places that the model names are relative to its own folder in any case.
    step
        Called between the blocks of what is read; what it raises ends the reading.

    Raises
    ------
    OSError
        A file cannot be read, or was changed meanwhile, or it cannot be told which files the model
        needs.
    """
    try:
        locations = sorted({stored.location for stored in find_external(model)})
    except UncheckedError as error:
        raise OSError(errno.EINVAL, "the structure of the model cannot be followed") from error
    step()
    if isinstance(model, bytes):
        whole = Piece(_MODEL, model, len(model), hash_bytes(model, step))
        return Content((whole,), tuple(locations))
    refused = refused_locations(model, locations, folders)
    followed = [location for location in locations if location not in refused]
    taken = {os.path.normcase(os.path.normpath(location)) for location in followed}
    name = _MODEL
    while os.path.normcase(name) in taken:
        name = f"_{name}"
    pieces = [piece_of(name, model, step)]
    pieces += [piece_of(location, model.parent / location, step) for location in followed]
    return Content(tuple(pieces), tuple(refused))


def piece_of(name: str, path: Path, step: Callable[[], object] = lambda: None) -> Piece:
    """Read all of one file; as :func:`content_of` in everything else."""
    hashed = hash_file(path, step)
    return Piece(name, path, hashed.state.size, hashed.sha256, hashed.state, hashed.fresh)


def hash_bytes(data: Any, step: Callable[[], object] = lambda: None) -> str:
    """Give the sha256 of what is bytes-like, such as an engine, hexadecimal.

    Parameters
    ----------
    step
        As for :func:`content_of`.
    """
    seen = hashlib.sha256()
    with memoryview(data) as view:
        plain = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        for at in range(0, len(plain), BLOCK):
            seen.update(plain[at : at + BLOCK])
            step()
    return seen.hexdigest()


# ---- files --------------------------------------------------------------------------------------

# By path; the least recently used first.
_remembered: Final[OrderedDict[str, _Hashed]] = OrderedDict()
_lock: Final = threading.Lock()


def hash_file(path: Path, step: Callable[[], object] = lambda: None) -> _Hashed:
    """Hash a file, unless this process has done so before and nothing has changed since.

    Raises
    ------
    OSError
        It cannot be read, is no regular file, or was changed meanwhile.
    """
    began = time.time()
    with opened(path) as (file, found):
        state = _state(found)
        with _lock:
            known = _remembered.get(str(path))
            if known is not None and known.state == state:
                _remembered.move_to_end(str(path))
                return known
        seen = hashlib.sha256()
        block = memoryview(bytearray(min(BLOCK, state.size + 1)))
        while count := file.readinto(block):
            seen.update(block[:count])
            step()
        if _state(os.fstat(file.fileno())) != state:
            raise OSError(errno.EBUSY, "the file was changed while it was read", path.name)
    fresh = began - max(state.changed_ns, state.status_changed_ns) / 1e9 < _FRESH_S
    hashed = _Hashed(seen.hexdigest(), state, fresh)
    if not fresh:
        with _lock:
            _remembered[str(path)] = hashed
            _remembered.move_to_end(str(path))
            while len(_remembered) > _MOST_REMEMBERED:
                _remembered.popitem(last=False)
    return hashed


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[tuple[io.BufferedReader, os.stat_result]]:
    """Open a regular file, and tell its state; nobody waits for what is none.

    Parameters
    ----------
    flags
        More of ``os.open``.

    Raises
    ------
    OSError
        It cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, _READ | flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path.name)
        with open(descriptor, "rb", closefd=False) as file:
            yield file, found
    finally:
        os.close(descriptor)


def _state(found: os.stat_result) -> _State:
    return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
