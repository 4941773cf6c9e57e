"""Writing an engine so that there is always a whole file: the old one or the new one; mapping one.

Where the system can (Linux, on most file systems), the bytes go to a file without a name, which
vanishes with the process that writes it, however that process ends. Elsewhere they go to a
temporary name in the same folder, and only a killed process leaves that behind.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "is_whole",
    "map_file",
    "read_or_map",
    "save_atomically",
    "save_identified",
    "save_private",
    "write_all",
]

_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)

#: Files of up to so many bytes are read and not mapped.
LARGE: Final = 64 * 1024 * 1024

# One write() call takes at most 2 GiB - 4 KiB on Linux; smaller pieces let an interrupt through.
_PIECE: Final = 64 * 1024 * 1024

_PRIVATE: Final = 0o600

_CAUSES: Final = {
    errno.ENOSPC: (
        "the disk is full",
        "Free some space or save elsewhere; the engine is still in memory.",
    ),
    errno.EFBIG: (
        "the file system or a limit does not allow a file of that size",
        "Save elsewhere.",
    ),
    errno.EACCES: ("permission was denied", "Save to a folder that you may write to."),
    errno.EPERM: ("permission was denied", "Save to a folder that you may write to."),
    errno.EROFS: ("the file system is read-only", "Save to a folder that you may write to."),
    errno.ENOENT: ("the folder does not exist", "Create the folder first, or save elsewhere."),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Save to a folder."),
    errno.EISDIR: ("it is a directory", "Add a file name to the path."),
    errno.ENAMETOOLONG: ("the name is too long", "Use a shorter name."),
    errno.EBUSY: ("the file is in use", "Close whatever has it open, or save under another name."),
}
if hasattr(errno, "EDQUOT"):  # not on Windows
    _CAUSES[errno.EDQUOT] = (
        "the disk quota is used up",
        "Free some space or save elsewhere; the engine is still in memory.",
    )

# Windows: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_USER_MAPPED_FILE (a runtime, or
# this process, mapped the engine file).
_WINDOWS_IN_USE: Final = frozenset({5, 32, 1224})

# A file that was in use when its successor came (Windows); the time is in its name. A later save
# removes it, but not at once: another process may be about to put it back.
_ASIDE: Final = re.compile(r"\.trt_widget-(\d+)-[0-9a-f]+\.old")
_ASIDE_S: Final = 60


def path_to_save(path: object) -> str:
    """Give a path as text.

    Raises
    ------
    SaveError
        It is none.
    """
    given = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if not given or "\0" in given:
        raise SaveError(
            f"The engine could not be saved: {path!r:.200} is not a path.",
            "Give the path of a file; the engine is still in memory.",
        )
    return given


def save_atomically(data: Any, path: str | os.PathLike[str]) -> Path:
    """Write ``data`` to ``path`` so that nobody ever sees a part of it.

    The bytes go to a file in the same folder that has no name or a temporary one, are flushed to
    the disk, and take the name in one step (``os.replace``). A symbolic link is followed: the file
    it points to is replaced. An existing file's permissions are kept; a new file gets what the
    umask allows. On Windows a file that is in use cannot be replaced: it is moved aside first.

    Parameters
    ----------
    data
        Anything with the buffer protocol: ``bytes``, TensorRT's ``IHostMemory``, a memory map
        (also of the file ``path`` itself: the map keeps the old file).
    path
        The file's name.

    Returns
    -------
    pathlib.Path
        The absolute path that was written.

    Raises
    ------
    SaveError
        The file could not be written. The old file is intact and no temporary file is left.
    """
    return save_identified(data, path)[0]


def save_identified(data: Any, path: str | os.PathLike[str]) -> tuple[Path, tuple[int, int, int]]:
    """Do what :func:`save_atomically` does; also tell the file that was written.

    By its device, inode and time it can be told from one that somebody else puts into its place a
    moment later.
    """
    if not is_whole(data):
        raise SaveError(
            "The engine's file was cut short after the build: there is nothing whole to save.",
            "Build again, and leave the file at output= as it is.",
            filename=path_to_save(path),
        )
    given = path_to_save(path)
    target = Path(os.path.realpath(given))
    try:
        mode = _mode_of_existing(target)
        with _temporary_name(target.parent) as temporary:
            if not _write_unnamed(temporary, data, mode):
                _write(temporary, data, mode)
            written = temporary.stat()
            _replace(temporary, target)
    except OSError as error:
        raise _explain(error, given) from error
    _flush_folder(target.parent)
    return target, _identity(written)


def save_private(parts: tuple[Any, ...], path: Path) -> None:
    """Write parts, one after the other, to a file that only this user may read.

    As :func:`save_atomically`, but a power cut can leave less than the whole file: it is for what
    can be made again, and is checked when it is read.

    Raises
    ------
    OSError
        The file could not be written. The old file is intact and no temporary file is left.
    """
    with _temporary_name(path.parent) as temporary:
        if not _write_unnamed(temporary, parts, _PRIVATE, flush=False):
            _write(temporary, parts, _PRIVATE, flush=False)
        _replace(temporary, path)


def map_file(
    file: str | os.PathLike[str] | int, identity: tuple[int, int, int] | None = None
) -> memoryview:
    """Map a whole file, read-only: its bytes without a copy, for as long as the result lives.

    The map belongs to the file and not to its name: the name can be given to another file
    (:func:`save_atomically`) or removed, and the bytes stay.

    Parameters
    ----------
    file
        The file's name, or a descriptor, which is closed in any case.
    identity
        What the opened file has to be, as :func:`save_identified` tells it.

    Raises
    ------
    OSError
        It cannot be mapped, or is another file.
    """
    descriptor = file if isinstance(file, int) else _open_to_map(file)
    try:
        found = os.fstat(descriptor)
        if identity is not None and _identity(found) != identity:
            msg = "the file of that name is another one by now"
            raise OSError(msg)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        if found.st_size == 0:  # an empty map does not exist
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def read_or_map(
    file: str | os.PathLike[str], identity: tuple[int, int, int] | None = None
) -> memoryview:
    """Give a whole file: read where it is small, else mapped (:func:`map_file`).

    A named file can be cut short by anybody, and to look at what is missing of a map ends the
    process by SIGBUS. So only what is large (:data:`LARGE`) is worth that risk: :func:`is_whole`.
    """
    mapped = map_file(file, identity)
    return mapped if mapped.nbytes > LARGE else memoryview(bytes(mapped))


def is_whole(data: Any) -> bool:
    """Whether all of a map can still be read: that its file was not cut short meanwhile."""
    mapped = getattr(data, "obj", None)
    return not isinstance(mapped, mmap.mmap) or mapped.size() >= data.nbytes


if sys.platform == "win32":

    def _open_to_map(path: str | os.PathLike[str]) -> int:
        # os.open() allows others to write but not to rename or delete, and mmap keeps a copy of the
        # handle. With FILE_SHARE_DELETE a save can move the mapped file aside.
        import ctypes
        import msvcrt
        from ctypes import wintypes

        create = ctypes.WinDLL("kernel32", use_last_error=True).CreateFileW
        create.restype = wintypes.HANDLE
        create.argtypes = (
            wintypes.LPCWSTR,
            wintypes.DWORD,
            wintypes.DWORD,
            ctypes.c_void_p,
            wintypes.DWORD,
            wintypes.DWORD,
            wintypes.HANDLE,
        )
        read, share_all, existing, normal = 0x80000000, 0x1 | 0x2 | 0x4, 3, 0x80
        handle = create(os.fspath(path), read, share_all, None, existing, normal, None)
        if handle is None or handle == wintypes.HANDLE(-1).value:
            raise ctypes.WinError(ctypes.get_last_error())
        return msvcrt.open_osfhandle(handle, os.O_RDONLY)

else:

    def _open_to_map(path: str | os.PathLike[str]) -> int:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | _CLOEXEC)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Tell a file from others: also from one that got the inode of a file which is gone."""
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _mode_of_existing(target: Path) -> int | None:
    """Return the permissions to keep (None for a new file); refuse what is no regular file."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    return stat.S_IMODE(found.st_mode)


@contextlib.contextmanager
def _temporary_name(folder: Path) -> Iterator[Path]:
    """Give a name that nobody has, and see that nothing of that name is left, whatever happens."""
    name = folder / f".trt_widget-{_token()}.tmp"
    try:
        yield name
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise


def _token() -> str:
    import secrets

    return secrets.token_hex(8)


def _write_unnamed(temporary: Path, data: Any, mode: int | None, *, flush: bool = True) -> bool:
    """Write to a file without a name and give it ``temporary``; False where that is impossible.

    A link cannot replace a file, so the name is a temporary one; it exists for an instant only.
    """
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is None:  # not Linux
        return False
    try:
        access = 0o666 if mode is None else mode & 0o666
        descriptor = os.open(temporary.parent, os.O_WRONLY | unnamed | _CLOEXEC, access)
    except OSError:
        # Not this file system (NFS, FUSE, old overlays), or what the other way will say better.
        return False
    try:
        if mode is None and not _umask_was_applied(descriptor):
            return False
        write_all(descriptor, data)
        if mode is not None:
            os.chmod(descriptor, mode)  # noqa: PTH101 - a descriptor, not a path
        if flush:
            os.fsync(descriptor)
        return _link(descriptor, temporary)
    finally:
        os.close(descriptor)


def _umask_was_applied(descriptor: int) -> bool:
    """Tell whether the umask limited an unnamed file's permissions.

    Before Linux 5.19 some file systems forget it. (A folder with default ACLs has its own rules:
    there, too, the way with a name is right.) The umask is read from /proc, as asking for it by
    ``os.umask`` changes it for all threads.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        umask = int(status.partition("\nUmask:")[2].split(None, 1)[0], 8)
    except (OSError, ValueError, IndexError):
        return False
    return not stat.S_IMODE(os.fstat(descriptor).st_mode) & umask


def _link(descriptor: int, name: Path) -> bool:
    folder = os.open(name.parent, getattr(os, "O_PATH", os.O_RDONLY) | _CLOEXEC)
    try:
        # With a folder's descriptor (which an absolute path does not use) CPython calls linkat with
        # AT_SYMLINK_FOLLOW, and so the link in /proc is followed to the file.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, follow_symlinks=True)
    except OSError as error:
        if error.errno in _CAUSES and error.errno not in {errno.ENOENT, errno.EPERM}:
            raise
        return False  # without /proc (ENOENT), or an unusual file system
    finally:
        os.close(folder)
    return True


def _write(temporary: Path, data: Any, mode: int | None, *, flush: bool = True) -> None:
    # Opened with 0o666 and not through tempfile (0o600): the kernel takes the umask off, and
    # reading the umask is not thread-safe.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | _CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else mode & 0o666)
    try:
        write_all(descriptor, data)
        if mode is not None:
            os.chmod(temporary, mode)  # noqa: PTH101
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: Any) -> None:
    """Write all of ``data``, or of a tuple's parts; one call of the system takes at most 2 GiB."""
    for part in data if isinstance(data, tuple) else (data,):
        with memoryview(part) as whole, whole.cast("B") as view:
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done : done + _PIECE])


def _replace(temporary: Path, target: Path) -> None:
    """Give ``temporary`` the name ``target``, also where Windows protects the file of that name."""
    try:
        os.replace(temporary, target)  # noqa: PTH105 - Path.replace is this call
    except OSError as error:
        if getattr(error, "winerror", None) not in _WINDOWS_IN_USE or not target.exists():
            raise
    else:
        return
    # In use, but whoever shared it for deletion, or mapped it and closed it, lets it be renamed.
    now = int(time.time())
    aside = target.with_name(f".trt_widget-{now}-{_token()}.old")
    os.rename(target, aside)  # noqa: PTH104 - Path.rename is this call
    try:
        os.replace(temporary, target)  # noqa: PTH105
    except BaseException:
        os.rename(aside, target)  # noqa: PTH104
        raise
    for old in target.parent.glob(".trt_widget-*.old"):
        found = _ASIDE.fullmatch(old.name)
        if old == aside or (found and int(found[1]) < now - _ASIDE_S):
            with contextlib.suppress(OSError):  # still in use: a later save removes it
                old.unlink()


def _flush_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can (Windows cannot)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explain(error: OSError, path: str) -> SaveError:
    if getattr(error, "winerror", None) in _WINDOWS_IN_USE:
        why = "the file is open in another program, mapped by a running engine, or read-only"
        remedy = "Close whatever uses it, or save under another name."
    else:
        why, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), ""))
    return SaveError(
        f"The engine could not be saved to {path!r}: {why}.",
        remedy=remedy,
        error=error,
        filename=path,
    )
