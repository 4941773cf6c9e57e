"""One build at a time per device, across the processes of one user on one machine.

Two builds that time tactics on one GPU spoil each other's measurements, and so their engines. The
lock is the operating system's on a file (through the filelock package): when its holder ends,
however it ends, the system releases it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trt_widget.backend import Gpu

__all__ = ["DeviceLock", "SystemLock", "device_key", "runtime_folder"]

_LONGEST_LABEL: Final = 200
_PRIVATE: Final = 0o700

# The descriptors that hold or are about to hold a lock in this process. Opened, and closed, under
# the gate, which a fork takes too: so a forked child knows all that it has inherited.
_ours: Final[set[int]] = set()
_gate: Final = threading.RLock()


def _close_inherited() -> None:
    # Closed, not unlocked: unlocking would release the parent's lock.
    for descriptor in _ours:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _ours.clear()
    _gate.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_close_inherited
    )


def runtime_folder() -> Path:
    """Return this user's folder for locks, and make it where needed.

    Raises
    ------
    OSError
        It cannot be made, or what has its name is not a folder that only this user may change.
    """
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()) / "trt_widget"
        folder.mkdir(exist_ok=True)
    else:
        folder = Path(tempfile.gettempdir()) / f"trt_widget-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_PRIVATE)
        # The name is known, so anyone could have been first: with a link, or a folder of his own.
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{folder} is not a folder")
        if found.st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        if stat.S_IMODE(found.st_mode) != _PRIVATE:
            folder.chmod(_PRIVATE)
    return folder


class SystemLock:
    """The operating system's exclusive lock on a file, held by this object.

    It is bound to the object, not to a thread or the process: two objects exclude each other inside
    a process too. A child process started with another program does not inherit it (close-on-exec).
    A forked child inherits the descriptor, and with it a share in the lock that would outlive the
    parent: ``os.fork`` (multiprocessing's way) therefore closes it in the child at once. Only a
    fork inside of C code that goes on without another program escapes this; such a child keeps the
    lock until it ends, but only if the parent ended without releasing it.

    Parameters
    ----------
    path
        The file. It is made where needed, and it stays: removing it would let two holders in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._owner = 0

    @property
    def held(self) -> bool:
        """Whether this object has the lock, in this process."""
        return self._descriptor is not None and self._owner == os.getpid()

    def try_acquire(self) -> bool:
        """Take the lock if it is free, without waiting.

        Raises
        ------
        OSError
            The file cannot be opened, or its file system has no locks.
        """
        from filelock import lock_descriptor

        if self.held:
            return True
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with _gate:
            descriptor = os.open(self.path, flags, 0o600)  # Python makes it close-on-exec
            _ours.add(descriptor)
        taken = False
        try:
            taken = lock_descriptor(descriptor, blocking=False)
            if taken and not self._is_the_file(descriptor):
                taken = False  # removed by a cleaner in the meantime; the next try makes a new one
        finally:
            if not taken:
                self._close(descriptor)
        if taken:
            self._descriptor, self._owner = descriptor, os.getpid()
        return taken

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        from filelock import unlock_descriptor

        descriptor, held = self._descriptor, self.held
        self._descriptor = None
        if held and descriptor is not None:
            # Unlocked first, so that a copy which somebody has inherited does not keep it.
            with contextlib.suppress(OSError):
                unlock_descriptor(descriptor)
            self._close(descriptor)

    def _is_the_file(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:
            return False

    @staticmethod
    def _close(descriptor: int) -> None:
        with _gate:
            _ours.discard(descriptor)
            os.close(descriptor)


class DeviceLock:
    """The right to build on a device, among all builds of this user on this machine.

    Usable from any thread. Where no lock can be had (a folder that cannot be written to, a file
    system without locks), no build is stopped: :meth:`try_acquire` answers True and `note` says
    why there is no lock.

    Parameters
    ----------
    key
        The device, from :func:`device_key`.
    label
        What the others are told about this build, such as the model's name.
    folder
        Where the lock's files are; by default :func:`runtime_folder`.

    Attributes
    ----------
    note
        Why there is no lock; empty where there is one.
    """

    def __init__(self, key: str, label: str = "", *, folder: Path | None = None) -> None:
        self.key = key
        self.label = label[:_LONGEST_LABEL]
        self.note = ""
        self._lock: SystemLock | None = None
        self._holder_file = Path()
        try:
            where = runtime_folder() if folder is None else folder
        except OSError as error:
            self._give_up(error)
            return
        name = re.sub(r"[^A-Za-z0-9._-]", "_", key)
        self._lock = SystemLock(where / f"{name}.lock")
        self._holder_file = where / f"{name}.json"

    @property
    def held(self) -> bool:
        """Whether this object really has the lock."""
        return self._lock is not None and self._lock.held

    def try_acquire(self) -> bool:
        """Take the device if nobody has it; True also where there can be no lock (see `note`)."""
        if self._lock is None:
            return True
        try:
            taken = self._lock.try_acquire()
        except OSError as error:
            self._give_up(error)
            return True
        if taken:
            self._say_who()
        return taken

    def holder(self) -> str | None:
        """Say who has the device, such as "resnet50.onnx in process 4711"; None where unknown."""
        try:
            found = json.loads(self._holder_file.read_text(encoding="utf-8"))
            pid, label, started = int(found["pid"]), str(found["label"]), float(found["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not _is_running(pid, started):  # it was killed, and the next one has not said who it is
            return None
        where = "this process" if pid == os.getpid() else f"process {pid}"
        return f"{label or 'a build'} in {where}"

    def release(self) -> None:
        """Give the device back; nothing happens where it is not held."""
        if self._lock is None or not self._lock.held:
            return
        with contextlib.suppress(OSError):
            self._holder_file.unlink()
        self._lock.release()

    def _give_up(self, error: OSError) -> None:
        self._lock = None
        self.note = (
            "Other builds on this device are not waited for: there is no lock "
            f"({error.strerror or error})."
        )

    def _say_who(self) -> None:
        from trt_widget._files import save_atomically

        record = {
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "label": self.label,
            "host": Path(sys.argv[0]).name if sys.argv else "",
            "since": time.time(),
        }
        with contextlib.suppress(OSError):  # then nobody knows who, and the lock still holds
            save_atomically(json.dumps(record).encode(), self._holder_file)


def _started(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).create_time())


def _is_running(pid: int, started: float) -> bool:
    """Tell whether it is still the same process: numbers are used again."""
    import psutil

    try:
        process = psutil.Process(pid)
        # Clocks are set, and two readings of the same start differ by roundings.
        same = abs(float(process.create_time()) - started) < 2.0  # noqa: PLR2004
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def device_key(found: Sequence[Gpu], device: int | None = None) -> str:
    """Return the name of the device that a build occupies: ``gpu-<uuid>`` or ``cpu``.

    The uuid is the same in every process, whereas the index depends on ``CUDA_VISIBLE_DEVICES``.

    Parameters
    ----------
    found
        The GPUs of this machine.
    device
        The index of the GPU, as in ``device=``; None means the first one.
    """
    index = device or 0
    if not found:
        return "cpu"
    if index >= len(found):  # refused when the build starts
        return f"gpu-{index}"
    return f"gpu-{_short(found[index]) or index}"


def _short(gpu: Any) -> str:
    return str(gpu.uuid).removeprefix("GPU-").removeprefix("MIG-")
