"""The timing cache of full TensorRT in a file: what one build has measured, the next one knows.

A cache belongs to one version of TensorRT and one kind of GPU. It only saves time, so nothing about
it ever fails a build. TensorRT for RTX has the same methods, which do nothing there.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["load_timing_cache", "save_timing_cache"]

# Another build only holds the lock while it reads, combines and writes some megabytes.
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.05


def load_timing_cache(
    config: Any, path: Path, said: Callable[[], list[str]] = list
) -> tuple[Any, list[str]]:
    """Give the config a timing cache, with what the file holds if it holds something of use.

    Parameters
    ----------
    config
        An ``IBuilderConfig``.
    path
        The file; it does not have to exist.
    said
        Returns what TensorRT has logged meanwhile.

    Returns
    -------
    tuple
        The ``ITimingCache``, which has to live as long as the config (None without one), and
        sentences for people.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        return _empty(config), [f"The timing cache {path.name} could not be read: {error}."]
    if data:
        cache = _create(config, data)
        complaint = " ".join(line for line in said() if "timing cache" in line.lower())
        if (
            cache is not None
            and config.set_timing_cache(cache, ignore_mismatch=False)
            and not complaint
        ):
            return cache, []
        words = f" TensorRT said: {complaint}" if complaint else ""
        note = (
            f"The timing cache {path.name} is damaged, or of another GPU or version of TensorRT. "
            f"This build starts with an empty one, which then replaces it.{words}"
        )
        return _empty(config), [note]
    return _empty(config), []


def save_timing_cache(config: Any, path: Path) -> str | None:
    """Write what the config's timing cache knows; after the build, however it has ended.

    What another build has written to the file in the meantime is kept: both caches are combined,
    while a lock keeps a third one away.

    Returns
    -------
    str or None
        Why it was not written, for people. Nothing is raised.
    """
    from trt_widget._files import save_atomically

    lock = None
    try:
        cache = config.get_timing_cache()
        if cache is None:
            return "There was no timing cache to write."
        lock = _lock_of(path)
        old = path.read_bytes() if path.exists() else b""
        if old:
            other = _create(config, old)
            if other is not None:
                # Where both have measured the same, ours stays. A cache of another GPU or version
                # answers False: then ours takes its place.
                cache.combine(other, ignore_mismatch=False)
        new = bytes(cache.serialize())
        if new != old:
            save_atomically(new, path)
    except Exception as error:  # noqa: BLE001 - TensorRT raises RuntimeError and TypeError here
        why = getattr(error, "strerror", None) or error
        return f"The timing cache {path.name} was not written: {why}."
    finally:
        if lock is not None:
            lock.release()
    return None


def _create(config: Any, data: bytes) -> Any:
    """Return a cache made of ``data``, or None where TensorRT makes none of it."""
    try:
        return config.create_timing_cache(data)
    except (RuntimeError, TypeError, ValueError):
        return None


def _empty(config: Any) -> Any:
    cache = _create(config, b"")
    if cache is not None:
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _lock_of(path: Path) -> Any:
    """Take the lock that belongs to a cache's file; None where there is none to be had.

    Without it two builds that end in the same instant could lose one's measurements, not the file.
    The lock's own file is in the user's runtime folder and so not in the way beside the cache.
    """
    from trt_widget.executors.lock import SystemLock, runtime_folder

    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    deadline = time.monotonic() + _PATIENCE_S
    try:
        lock = SystemLock(runtime_folder() / f"cache-{name}.lock")
        while not lock.try_acquire():
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)
    except OSError:
        return None
    return lock
