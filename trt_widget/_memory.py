"""How much memory a build takes, how much it may take, and whether the system killed for it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MemoryWatch", "memory_limit_bytes", "oom_kills", "peak_memory"]

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")

# cgroup v1 writes "no limit" as the largest multiple of the page size.
_NO_LIMIT: Final = 1 << 62


def peak_memory() -> int | None:
    """Return the most memory that this process has had at a time, in bytes; None where unknown.

    On Linux not ``ru_maxrss``, which counts what the process was before its ``exec``: the parent.
    """
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    elif sys.platform == "linux":  # noqa: RET505 - mypy knows a platform's branches only in a chain
        return _peak_of("self")
    else:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _peak_of(process: str) -> int | None:
    """Return VmHWM ("high water mark") from Linux's /proc; a zombie has none."""
    for line in _lines(_PROC / process / "status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


class MemoryWatch:
    """The most memory that another process was seen to have.

    On Linux each look reads the peak that the system itself keeps, so nothing between two looks is
    missed but what came after the last one. Elsewhere it is the most that a look has met.

    Parameters
    ----------
    pid
        The process. It may end at any time.
    """

    def __init__(self, pid: int) -> None:
        import psutil

        self.peak_bytes: int | None = None
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def sample(self) -> None:
        """Look once; never raises, also when the process has gone."""
        import psutil

        if self._process is None:
            return
        with contextlib.suppress(psutil.Error, OSError):
            if not self._process.is_running():  # also: its number belongs to another one now
                self._process = None
                return
            seen = self._process.memory_info().rss
            if sys.platform == "linux":
                seen = max(seen, _peak_of(str(self._process.pid)) or 0)
            if seen > (self.peak_bytes or 0):
                self.peak_bytes = seen


def memory_limit_bytes() -> int | None:
    """Return how much memory this process may have, in bytes; None where nothing limits it.

    The least of the limits of its control groups (containers, batch systems) and ``RLIMIT_AS``.
    """
    limits = list(_cgroup_limits())
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return min(limits, default=None)


def _cgroup_limits() -> Iterator[int]:
    for folder, version in _cgroup_folders():
        name = "memory.max" if version > 1 else "memory.limit_in_bytes"
        for text in _lines(folder / name):
            if text.isdigit() and int(text) < _NO_LIMIT:
                yield int(text)


def oom_kills() -> int | None:
    """Return how often the system has killed for memory in this process's control group.

    Compare two answers: a rise says that something in the group was killed in between, not what.
    None where the system does not say: outside of Linux, or without control groups for memory.
    """
    for folder, version in _cgroup_folders():
        name = "memory.events" if version > 1 else "memory.oom_control"
        for line in _lines(folder / name):
            key, _, count = line.partition(" ")
            if key == "oom_kill":
                return int(count)
    return None


def _cgroup_folders() -> Iterator[tuple[Path, int]]:
    """Give the folders of this process's memory control groups, inner ones first, with versions.

    A container sees its own group as the root or sees a path that exists only outside; then the
    root of what is mounted is the group.
    """
    for line in _lines(_PROC / "self" / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, version = _CGROUPS, 2
            if not (root / "cgroup.controllers").exists():
                root = _CGROUPS / "unified"  # both versions side by side
        elif "memory" in controllers.split(","):
            root, version = _CGROUPS / "memory", 1
        else:
            continue
        folder = root / path.lstrip("/")
        while folder != root:
            if folder.is_dir():
                yield folder, version
            folder = folder.parent
        if root.is_dir():
            yield root, version
