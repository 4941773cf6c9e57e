"""What a process had before, and what it has too much of after."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from pathlib import Path

import psutil

#: Seconds that threads and descriptors may take to go after the end of a build.
SETTLE_S = float(os.environ.get("TRT_WIDGET_STRESS_SETTLE", "10"))
#: Bytes by which resident memory may grow over any number of builds.
MAX_GROWTH = 64 * 1024 * 1024
#: Names the run in the environment of everything that it starts.
TOKEN = "TRT_WIDGET_STRESS"  # noqa: S105 - a name


class Baseline:
    """Threads, descriptors, children, memory of this process, and files in a folder, as of now."""

    def __init__(self, folder: Path) -> None:
        gc.collect()  # a mapped engine has a descriptor
        self._folder = folder
        self._threads = set(threading.enumerate())
        self._descriptors = descriptors()
        self._memory = resident()

    def problems(self) -> list[str]:
        """Say what is there that was not; wait for what takes its time to go."""
        deadline = time.monotonic() + SETTLE_S
        while (found := self._found()) and time.monotonic() < deadline:
            time.sleep(0.02)
        growth = self.growth()
        if growth > MAX_GROWTH:
            found.append(f"memory: {growth >> 20} MB more")
        return found

    def growth(self) -> int:
        """Give the bytes of resident memory above the baseline."""
        return resident() - self._memory

    def _found(self) -> list[str]:
        found = [f"thread: {t.name}" for t in threading.enumerate() if t not in self._threads]
        now = descriptors()
        more = len(now) - len(self._descriptors)
        if more > 0:
            new = [now[fd] for fd in sorted(now.keys() - self._descriptors.keys())]
            gc.collect()
            found.append(f"descriptors: {more} more: {new}")
        with contextlib.suppress(psutil.Error):
            children = psutil.Process().children(recursive=True)
            found += [f"process: {child}" for child in children]
        found += [f"file: {path}" for path in files_in(self._folder)]
        return found


def descriptors() -> dict[int, str]:
    """Give this process's open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - read at once, and closed
        with contextlib.suppress(OSError):  # the listing's own
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - as above
    return found


def resident() -> int:
    """Give this process's memory, without what only waits to be used again."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def files_in(folder: Path) -> list[str]:
    """Give every file and folder in a folder, with its size."""
    return sorted(
        f"{path.relative_to(folder)} ({path.lstat().st_size})" for path in folder.rglob("*")
    )


def marked(name: str, token: str) -> list[psutil.Process]:
    """Give the living processes that have a token in their environment, but not this one."""
    found = []
    mark = f"{name}={token}".encode()
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that only nobody has asked about has ended too."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
