"""The timing cache of full TensorRT in a file: what one build has measured, the next one knows.

A cache belongs to one version of TensorRT and one kind of GPU. It only saves time, so nothing about
it ever fails a build, and no build ever writes over a cache of another version or GPU: with
``timing_cache=True`` each has a file of its own, and a user's file that does not fit is left alone
while the new cache goes beside it. TensorRT for RTX has the same methods, which do nothing there.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from trt_widget.backend import gpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tensorrt import IBuilderConfig, ITimingCache

    from trt_widget.executors.lock import SystemLock
    from trt_widget.options import BuildOptions

__all__ = ["NO_CACHE", "STATES", "TimingCache", "cache_facts", "use_timing_cache"]

# Another build only holds the lock while it reads, combines and writes some megabytes.
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.05
_PRIVATE: Final = 0o700
_MAX_TAG: Final = 80

State = Literal["none", "cold", "warm"]
STATES: Final[tuple[State, ...]] = ("none", "cold", "warm")
_COUNTS: Final = ("known_before", "known_after", "reused")

#: The facts of a build without a timing cache.
NO_CACHE: Final[dict[str, Any]] = {"state": "none", "path": None, **dict.fromkeys(_COUNTS)}

# A path is refused at once (options.py): nothing would ever be written there.
_RTX_NOTE: Final = (
    "timing_cache=True has no effect here: timing caches do not apply to TensorRT for RTX, which "
    "times nothing ahead of time."
)


class TimingCache:
    """The timing cache of one build, and the file that it comes from and goes to.

    Parameters
    ----------
    config
        An ``IBuilderConfig``.
    path
        The file; it does not have to exist.
    tag
        What the cache belongs to, from :func:`cache_tag`. Where the file at ``path`` is of no use,
        the one of that name with the tag added is read and written instead. None says that the file
        is ours alone: then it is replaced.
    said
        Returns the warnings and errors that TensorRT has logged, in order.

    Attributes
    ----------
    path
        The file that is read and written, in the end.
    state
        ``"warm"`` where the file held something of use, else ``"cold"``; ``"none"`` where TensorRT
        raised something: then the build goes on without, and nothing is written.
    known_before, known_after
        Entries that the cache held before the build and after it; None where this version of
        TensorRT does not tell.
    notes
        Sentences for people.
    """

    def __init__(
        self,
        config: IBuilderConfig,
        path: Path,
        tag: str | None = None,
        said: Callable[[], list[str]] = list,
    ) -> None:
        self.path = path
        self.state: State = "cold"
        self.known_before: int | None = None
        self.known_after: int | None = None
        self.notes: list[str] = []
        self._config = config
        self._beside = None if tag is None else path.with_name(f"{path.name}.{tag}")
        self._said = said
        # What the config was given has to live as long as it does.
        self._cache: ITimingCache | None = None
        try:
            self._load()
        except Exception as error:  # noqa: BLE001 - a cache only saves time: it never fails a build
            self.state = "none"
            self.notes = [_not_used(error)]

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of it, as plain data.

        ``reused`` is the number of measurements that this build did not make again: 0 for a cold
        cache. TensorRT does not tell it for a warm one, which may know other networks too: None.
        """
        if self.state == "none":
            return dict(NO_CACHE)
        return {
            "state": self.state,
            "path": str(self.path),
            "known_before": self.known_before,
            "known_after": self.known_after,
            "reused": 0 if self.state == "cold" else None,
        }

    # ------------------------------------------------------------------ before the build

    def _load(self) -> None:
        known = self._read(self.path)
        if self.notes and self._beside is not None:
            self.path, self._beside = self._beside, None
            self.notes.append(f"It is left as it is; this build uses {self.path.name} beside it.")
            self.notes = [" ".join(self.notes)]
            known = self._read(self.path)
        if not known:
            cache = _create(self._config, b"")
            if cache is not None:
                self._give(cache)
        self.known_before = _count(self._cache)
        if known and self.known_before != 0:
            self.state = "warm"

    def _give(self, cache: ITimingCache) -> bool:
        self._cache = cache
        return bool(self._config.set_timing_cache(cache, ignore_mismatch=False))

    def _read(self, path: Path) -> bool:
        """Give the config what the file holds; False where that is nothing of use."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            self.notes.append(f"The timing cache {path.name} could not be read: {error}.")
            return False
        if not data:
            return False
        before = len(self._said())
        cache = _create(self._config, data)
        accepted = cache is not None and self._give(cache)
        complaint = self._complaint(before)
        if accepted and not complaint:
            return True
        words = f" TensorRT said: {complaint}" if complaint else ""
        note = (
            f"The timing cache {path.name} is damaged, or of another GPU or version of TensorRT."
            f"{words}"
        )
        if self._beside is None:
            note += " This build starts with an empty one, which replaces it."
        self.notes.append(note)
        return False

    def _complaint(self, before: int) -> str:
        return " ".join(line for line in self._said()[before:] if "timing cache" in line.lower())

    # ------------------------------------------------------------------ after the build

    def save(self) -> list[str]:
        """Write what the config's timing cache knows; after the build, however it has ended.

        What another build has written to the file in the meantime is kept: both caches are
        combined, while a lock keeps a third one away.

        Returns
        -------
        list of str
            What it came to, or why it was not written, for people. Nothing is raised.
        """
        if self.state == "none":
            return []
        try:
            cache = self._config.get_timing_cache()
            if cache is None:
                return ["There was no timing cache to write."]
            self.known_after = _count(cache)
            written = self._write(cache, self.path)
            if not written and self._beside is not None:
                self.path, self._beside = self._beside, None
                self._write(cache, self.path)
        except Exception as error:  # noqa: BLE001 - TensorRT raises RuntimeError and TypeError here
            why = getattr(error, "strerror", None) or error
            return [f"The timing cache {self.path.name} was not written: {why}."]
        return self._summary()

    def _write(self, cache: ITimingCache, path: Path) -> bool:
        """Write to the file; False where it is the user's and of another version or GPU."""
        from trt_widget._files import save_atomically

        lock = _lock_of(path)
        try:
            old = path.read_bytes() if path.exists() else b""
            if old and not self._combine(cache, old) and self._beside is not None:
                return False
            new = bytes(cache.serialize())
            if new != old:
                save_atomically(new, path)
        finally:
            if lock is not None:
                lock.release()
        return True

    def _combine(self, cache: ITimingCache, data: bytes) -> bool:
        """Add what a file holds; where both have measured the same, ours stays."""
        before = len(self._said())
        other = _create(self._config, data)
        return (
            other is not None
            and not self._complaint(before)
            and bool(cache.combine(other, ignore_mismatch=False))
        )

    def _summary(self) -> list[str]:
        """Say what the cache knew, where TensorRT tells."""
        before, after = self.known_before, self.known_after
        if before is None or after is None:
            return []
        name, added = self.path.name, after - before
        if not before:
            return [f"The timing cache {name} was empty before this build and knows {after:,} now."]
        knew = f"The timing cache {name} knew {before:,} of {after:,} measurements"
        if added <= 0:
            return [f"{knew}: this build had none to add."]
        return [f"{knew}: this build had to make {added:,} of its own."]


def cache_facts(given: object) -> dict[str, Any] | None:
    """Give the facts of a timing cache in one form, from what another process says.

    Parameters
    ----------
    given
        A dict like :attr:`TimingCache.facts`, or the state alone.

    Returns
    -------
    dict or None
        None where it is nothing of that kind.
    """
    if isinstance(given, str):
        given = {"state": given}
    if not isinstance(given, dict) or given.get("state") not in STATES:
        return None
    path = given.get("path")
    counts = {name: given.get(name) for name in _COUNTS}
    return {
        "state": given["state"],
        "path": path if isinstance(path, str) else None,
        **{name: n if type(n) is int and n >= 0 else None for name, n in counts.items()},
    }


def _facts_of_config(config: IBuilderConfig) -> dict[str, Any]:
    """Give the facts of a cache that the user's own code has put into the config."""
    try:
        cache = config.get_timing_cache()
    except (AttributeError, RuntimeError, TypeError):
        return dict(NO_CACHE)
    if cache is None:
        return dict(NO_CACHE)
    known = _count(cache)
    return {**NO_CACHE, "state": "cold" if known == 0 else "warm", "known_before": known}


def use_timing_cache(
    config: IBuilderConfig, options: BuildOptions, said: Callable[[], list[str]] = list
) -> tuple[TimingCache | None, dict[str, Any], list[str]]:
    """Give the config the timing cache that the options ask for.

    Returns
    -------
    tuple
        The cache, to be saved after the build, or None; the facts, as :attr:`TimingCache.facts`;
        sentences for people. Nothing is raised.
    """
    try:
        return _use(config, options, said)
    except Exception as error:  # noqa: BLE001 - a cache only saves time: it never fails a build
        return None, dict(NO_CACHE), [_not_used(error)]


def _use(
    config: IBuilderConfig, options: BuildOptions, said: Callable[[], list[str]]
) -> tuple[TimingCache | None, dict[str, Any], list[str]]:
    given, backend = options.timing_cache, options.backend
    if given is None:
        # TensorRT for RTX has the getter and warns that it means nothing.
        return None, dict(NO_CACHE) if backend.is_rtx else _facts_of_config(config), []
    if backend.is_rtx:
        return None, dict(NO_CACHE), [_RTX_NOTE]
    found = gpus()
    index = options.device or 0
    gpu = (found[index].name, found[index].compute_capability) if index < len(found) else ("", "")
    tag = cache_tag(backend.name, backend.version, *gpu)
    if given is True:
        try:
            kept = TimingCache(config, cache_path(tag), said=said)
        except OSError as error:
            note = f"No folder for the timing cache could be made: {error}. It is not kept."
            return None, dict(NO_CACHE), [note]
    else:
        kept = TimingCache(config, given, tag, said)
    return kept, kept.facts, kept.notes


def _not_used(error: Exception) -> str:
    return (
        "The timing cache could not be used; this build goes on without one. "
        f"{type(error).__name__}: {error}"
    )


def cache_tag(package: str, version: str, gpu: str, compute_capability: str) -> str:
    """Give what a cache belongs to as part of a file's name; it tells any two of them apart."""
    parts = (package, version, compute_capability, gpu)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")[:_MAX_TAG]
    return f"{words}-{digest}"


def cache_path(tag: str) -> Path:
    """Give the file that ``timing_cache=True`` stands for, in a private folder of the user's.

    Raises
    ------
    OSError
        The folder cannot be made.
    """
    import platformdirs

    folder = platformdirs.user_cache_path("trt_widget", appauthor=False) / "timing"
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    return folder / f"{tag}.cache"


def _create(config: IBuilderConfig, data: bytes) -> ITimingCache | None:
    """Return a cache made of ``data``, or None where TensorRT makes none of it."""
    try:
        return config.create_timing_cache(data)
    except (RuntimeError, TypeError, ValueError):
        return None


def _count(cache: ITimingCache | None) -> int | None:
    """Count the entries; None before TensorRT 10.8, which cannot list them."""
    try:
        return len(cache.queryKeys())  # type: ignore[union-attr,unused-ignore] # None has no keys
    except (AttributeError, RuntimeError, TypeError):
        return None


def _lock_of(path: Path) -> SystemLock | None:
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
