"""Writing an engine so that there is always a whole file: the old one or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["save_atomically"]

# One write() call takes at most 2 GiB - 4 KiB on Linux; smaller pieces let an interrupt through.
_PIECE: Final = 64 * 1024 * 1024

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

# Windows: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_USER_MAPPED_FILE (a runtime that
# mapped the engine file).
_WINDOWS_IN_USE: Final = frozenset({5, 32, 1224})


def save_atomically(data: Any, path: str | os.PathLike[str]) -> Path:
    """Write ``data`` to ``path`` so that nobody ever sees a part of it.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and take the name
    in one step (``os.replace``). A symbolic link is followed: the file it points to is replaced. An
    existing file's permissions are kept; a new file gets what the umask allows.

    Parameters
    ----------
    data
        Anything with the buffer protocol: ``bytes``, TensorRT's ``IHostMemory``.
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
    given = os.fspath(path)
    target = Path(os.path.realpath(given))
    try:
        mode = _mode_of_existing(target)
        with _temporary_name(target.parent) as temporary:
            _write(temporary, data, mode)
            os.replace(temporary, target)  # noqa: PTH105 - Path.replace is this call
    except OSError as error:
        raise _explain(error, given) from error
    _flush_folder(target.parent)
    return target


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
    import secrets

    name = folder / f".trt_widget-{secrets.token_hex(8)}.tmp"
    try:
        yield name
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise


def _write(temporary: Path, data: Any, mode: int | None) -> None:
    # Opened with 0o666 and not through tempfile (0o600): the kernel takes the umask off, and
    # reading the umask is not thread-safe.
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_EXCL
        | getattr(os, "O_BINARY", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with memoryview(data) as whole, whole.cast("B") as view:
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done : done + _PIECE])
        if mode is not None:
            os.chmod(temporary, mode)  # noqa: PTH101
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
