"""Engines that were built before: the same build again is answered from the disk.

Two builds are the same where everything that has an influence on the engine is the same: every byte
of the model, the options, the TensorRT package and its version, and the device. So an engine is
found by a hash of all these (:func:`key_of`), in a folder that many processes use at once.

An entry is one file: the engine's bytes, then what is known of it as JSON, then the length of that
and a mark. It comes by one rename and goes by one unlink, and whoever has it open or mapped keeps
it. A cache only saves time: whatever is wrong with it is a note of the build, and never an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import re
import stat
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._content import BLOCK, content_of, hash_bytes, opened, piece_of
from trt_widget._files import LARGE, map_file, save_private
from trt_widget._plugins import other_plugins
from trt_widget._text import duration
from trt_widget.backend import ask_for_gpus, gpus, wait_for_gpus
from trt_widget.errors import BuildCancelled, BuildError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensorrt import ILogger

    from trt_widget._content import Content, Piece
    from trt_widget.backend import Backend
    from trt_widget.options import BuildOptions, Source

__all__ = ["VARIABLE", "CacheInfo", "CachedEngine", "EngineCache", "Lookup", "key_of"]

#: Environment variable that names another folder, or says ``off`` (``0``, ``no``, ``false``).
VARIABLE: Final = "TRT_WIDGET_ENGINES"
#: Bytes that all entries of a cache may take together, and how many there may be.
DEFAULT_MAX_BYTES: Final = 10 * 10**9
MOST_ENTRIES: Final = 4_096

_OFF: Final = ("off", "0", "no", "false")
# A change of what the key is made of, or of the form of an entry, changes this.
_KEY_VERSION: Final = 1
_NAME: Final = re.compile(r"[0-9a-f]{64}\.trtw")
# What a killed process has left, where the file system knows no files without a name.
_LEFT: Final = re.compile(r"\.trt_widget-(?:\d+-)?[0-9a-f]+\.(?:tmp|old)")
_LEFT_S: Final = 3_600.0
_PRIVATE_FOLDER: Final = 0o700

# The end of an entry: the length of the JSON before it, and a mark.
_END: Final = struct.Struct("<Q8s")
_MARK: Final = b"TRTWeng1"
_LONGEST_JSON: Final = 64 * 1024
_LONGEST_S: Final = 1e10
_GIB: Final = 1 << 30

#: The options that are part of the key: all that have an influence on the engine.
IN_KEY: Final = (
    "profiles",
    "flags",
    "strongly_typed",
    "network_flags",
    "optimization_level",
    "workspace",
    "target",
    "plugins",  # by their content
    "device",  # as the GPU that it names
    "backend",  # with its version
)
#: Functions: a build that has one is never cached.
FUNCTIONS: Final = ("configure", "config")
#: The options that have no influence on which engine it is, or only on how soon it is there.
NOT_IN_KEY: Final = (
    "output",
    "timeout",
    "executor",
    "grace",
    "exclusive",
    "external_data",  # what is read from there counts, as part of the model
    "timing_cache",  # tactics that were measured earlier, on the same device
    "engine_cache",
    "network_given",  # what was said is in strongly_typed and network_flags
    "client",
    "resources",
    "reschedules",
)
# Of the environment: what NVIDIA's libraries take for a choice of precision.
_ENVIRONMENT: Final = ("NVIDIA_TF32_OVERRIDE",)


class CacheInfo(NamedTuple):
    """What is in a cache.

    Attributes
    ----------
    entries
        Number of engines.
    bytes
        What they take together.
    """

    entries: int
    bytes: int


@dataclass(frozen=True)
class EngineCache:
    """A folder of engines that were built before.

    Parameters
    ----------
    path
        The folder; it is made when the first engine is kept. Without it, the environment variable
        ``TRT_WIDGET_ENGINES`` names it, or switches the cache off with ``off``; without that
        variable it is in the user's cache folder. That is looked up where the build runs, which can
        be another machine.
    max_bytes
        What all engines may take together; the ones not used for longest go first.

    Raises
    ------
    OptionError
        ``path`` is no path, or ``max_bytes`` no whole number of at least 1.
    """

    path: str | os.PathLike[str] | None = None
    max_bytes: int = field(default=DEFAULT_MAX_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", _checked_path(self.path))
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise OptionError(
                f"max_bytes={self.max_bytes!r} is not a whole number of at least 1.",
                "Give the bytes that all engines of the cache may take together.",
            )

    @property
    def folder(self) -> Path | None:
        """The folder in this process; None where the cache is switched off."""
        if self.path is not None:
            return Path(self.path)
        given = os.environ.get(VARIABLE, "").strip()
        if given.lower() in _OFF:
            return None
        if given:
            return Path(given).expanduser().absolute()
        import platformdirs

        return platformdirs.user_cache_path("trt_widget", appauthor=False) / "engines"

    def info(self) -> CacheInfo:
        """Count what is there; what cannot be read counts as nothing."""
        entries = self._entries()
        return CacheInfo(len(entries), sum(entry.size for entry in entries))

    def clear(self) -> int:
        """Remove all engines, and nothing else that is in the folder.

        Returns
        -------
        int
            How many were removed. Those that cannot be (as Windows has it of engines in use) stay.
        """
        return sum(_unlink(entry.path) for entry in self._entries())

    # ------------------------------------------------------------------ for builds

    def read(self, key: str, step: Callable[[], object]) -> CachedEngine | None:
        """Give the engine of a key, checked by its hash.

        Raises
        ------
        DamagedError
            What is there is damaged; it has been removed.
        OSError
            It cannot be read.
        """
        folder = self.folder
        if folder is None:
            return None
        path = folder / f"{key}.trtw"
        try:
            found = _read(path, key, step)
        except FileNotFoundError:
            return None
        except DamagedError:
            _unlink(path)
            raise
        with contextlib.suppress(OSError):  # a folder that only others may write to
            os.utime(path)
        return found

    def write(self, key: str, engine: Any, about: dict[str, Any]) -> None:
        """Keep an engine, and remove what has become too much.

        Raises
        ------
        TooLargeError
            It is larger than all engines together may be.
        OSError
            It cannot be written.
        """
        folder = self.folder
        if folder is None:
            return
        with memoryview(engine) as view, view.cast("B") as data:
            known = {
                **about,
                "key": key,
                "size": len(data),
                "sha256": hash_bytes(data),
            }
            text = json.dumps(known, sort_keys=True).encode("ascii")
            tail = text + _END.pack(len(text), _MARK)
            if len(data) + len(tail) > self.max_bytes:
                raise TooLargeError
            folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            path = folder / f"{key}.trtw"
            save_private((data, tail), path)
        self._shrink(path.name)

    def _entries(self) -> list[_Entry]:
        """List the entries, those first that were not used for longest."""
        folder = self.folder
        if folder is None:
            return []
        now = time.time()
        found = []
        for path, state in _listed(folder, _NAME):
            # A clock that was wrong gives no entry a longer life.
            found.append(_Entry(min(state.st_mtime, now), path.name, path, state.st_size))
        return sorted(found)

    def _shrink(self, kept: str) -> None:
        """Remove entries until the rest is within the bounds, but never ``kept``."""
        entries = self._entries()
        total, count = sum(entry.size for entry in entries), len(entries)
        for entry in entries:
            if total <= self.max_bytes and count <= MOST_ENTRIES:
                break
            if entry.name != kept:
                _unlink(entry.path)
                total, count = total - entry.size, count - 1
        folder = self.folder
        assert folder is not None  # noqa: S101 - something was written to it
        for path, state in _listed(folder, _LEFT):
            if state.st_mtime < time.time() - _LEFT_S:
                _unlink(path)


class _Entry(NamedTuple):
    used: float
    name: str
    path: Path
    size: int


class CachedEngine(NamedTuple):
    """An engine that was built before.

    Attributes
    ----------
    engine
        Its bytes.
    built_at
        When, in seconds since the epoch.
    duration_s
        How long it took.
    device, layers
        As the result of that build has them.
    """

    engine: memoryview
    built_at: float
    duration_s: float
    device: str | None
    layers: int | None

    @property
    def note(self) -> str:
        """One sentence for people."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.built_at))
        return f"The engine is from the cache, built in {duration(self.duration_s)} on {day}."


class DamagedError(Exception):
    """An entry that is not what it was; the text says what is wrong with it."""


class TooLargeError(Exception):
    """An engine that is larger than a whole cache may be."""


class Lookup:
    """What one build has to do with the cache: at its start, and after its success.

    Parameters
    ----------
    source, options, backend, logger
        Of the build.

    Attributes
    ----------
    source
        What is to be built: of a model that could be changed meanwhile, a copy.
    notes
        Sentences for people.
    """

    def __init__(
        self, source: Source, options: BuildOptions, backend: Backend, logger: ILogger | None = None
    ) -> None:
        self.source = source
        self.notes: list[str] = []
        self._options = options
        self._backend = backend
        self._logger = logger
        self._cache = options.engine_cache
        self._key: str | None = None
        self._content: Content | None = None
        self._plugins: tuple[Piece, ...] = ()

    def find(self, step: Callable[[], object]) -> CachedEngine | None:
        """Look for the engine.

        Parameters
        ----------
        step
            Called some hundred times a second; what it raises ends the search.

        Returns
        -------
        CachedEngine or None
            None where it has to be built.
        """
        cache = self._cache
        if cache is None:
            return None
        with self._guarded("read"):
            if cache.folder is None:
                return None
            functions = self._functions()
            if functions:
                self.notes.append(
                    f"This build is not cached: nobody can tell what {functions} does."
                )
                return None
            self._key = self._make_key(step)
            if self._key is None:
                return None
            try:
                return cache.read(self._key, step)
            except DamagedError as error:
                self.notes.append(
                    f"The cached engine was damaged ({error}): it is removed and built anew."
                )
        return None

    def keep(self, engine: Any, *, duration_s: float, device: str, layers: int) -> None:
        """Keep what was built for the next time."""
        cache, key, content = self._cache, self._key, self._content
        if cache is None or key is None or content is None:
            return
        with self._guarded("written"):
            if not (content.is_current() and all(piece.is_current() for piece in self._plugins)):
                self.notes.append(
                    "The engine is not kept in the cache: a file of the model or of a plugin was "
                    "changed during the build."
                )
                return
            about = {
                "built_at": time.time(),
                "duration_s": duration_s,
                "device": device,
                "layers": layers,
                "package": self._backend.name,
                "version": self._backend.version,
            }
            try:
                cache.write(key, engine, about)
            except TooLargeError:
                self.notes.append(
                    f"The engine is not kept in the cache: it is larger than the "
                    f"{cache.max_bytes:,} bytes that the cache may take."
                )

    def _functions(self) -> str:
        names = [f"{name}=" for name in FUNCTIONS if getattr(self._options, name) is not None]
        if self.source.kind == "callable":
            names.insert(0, "a callable source")
        return " and ".join(names)

    def _make_key(self, step: Callable[[], object]) -> str | None:
        """Give the key; None where the build cannot succeed, which the builder says better."""
        wait_for_gpus(ask_for_gpus(), step)
        device = device_of(self._options, self._backend)
        if device is None:
            return None
        if self.source.kind == "proto":
            from trt_widget.network import serialize

            data = serialize(self.source)
            self.source = type(self.source)("bytes", data, self.source.display_name)
        try:
            content = content_of(self.source.value, self._options.external_data, step)
            self._plugins = tuple(piece_of(path.name, path, step) for path in self._options.plugins)
        except OSError:
            return None
        if content.refused:
            return None
        self._content = content
        hashes = [content.digest, *(piece.sha256 for piece in self._plugins)]
        others = other_plugins(self._options.plugins, self._backend, self._logger)
        return key_of(hashes, self._options, self._backend, device, others)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Make a note of whatever goes wrong."""
        try:
            yield
        except BuildCancelled:
            raise
        except BuildError:
            self._key = None  # of the model; the builder says it
        except Exception as error:  # noqa: BLE001 - a cache only saves time: it never fails a build
            self._key = None
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self.notes.append(
                f"The engine cache could not be {what}: {why}. engine_cache= names another folder, "
                f"as does the environment variable {VARIABLE}."
            )


# ---- the key ------------------------------------------------------------------------------------


def key_of(
    content: Sequence[str],
    options: BuildOptions,
    backend: Backend,
    device: object,
    others: Sequence[str] = (),
) -> str:
    """Give one hash for all that has an influence on an engine.

    Parameters
    ----------
    content
        Hashes of the model, and of each plugin library in order.
    device
        From :func:`device_of`.
    others
        From :func:`~trt_widget._plugins.other_plugins`.
    """
    values = {
        "version": _KEY_VERSION,
        "content": list(content),
        "plugins": list(others),
        "profiles": options.profiles,
        "flags": sorted(options.flags),
        "strongly_typed": options.strongly_typed,
        "network_flags": sorted(options.network_flags),
        "optimization_level": options.optimization_level,
        "workspace": options.workspace,
        "target": options.target,
        "package": (backend.name, backend.version),
        "device": device,
        "machine": (platform.machine().lower(), sys.platform),
        "environment": [os.environ.get(name) for name in _ENVIRONMENT],
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def device_of(options: BuildOptions, backend: Backend) -> object:
    """Describe what is built on, as far as an engine depends on it.

    Returns
    -------
    object
        Plain data; None where there is no such device.
    """
    found = gpus()
    index = options.device or 0
    if index < len(found):
        gpu = found[index]
        # Divided GPUs have the name of the whole one in some drivers. The memory is what a build
        # may use by default; how much the driver keeps for itself changes with its version.
        size = round(gpu.memory / _GIB)
        return [gpu.name, gpu.compute_capability, gpu.processors, size]
    if options.device is not None or backend.needs_gpu or "CURRENT" in options.target:
        return None
    return backend.device_name


# ---- entries ------------------------------------------------------------------------------------


def _checked_path(path: object) -> str:
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]  # what is no path raises TypeError
    except TypeError:
        raise OptionError(
            f"The folder of an engine cache must be a path, not a {type(path).__name__}.",
            "Give text or a pathlib.Path, or nothing for a folder in your cache folder.",
        ) from None
    if not text or "\0" in text:
        raise OptionError(f"{text!r} is no usable folder.", "Choose another.")
    return str(Path(text).expanduser().absolute())


def _listed(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Give the regular files of such names in a folder; nothing where it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if not name.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    yield Path(entry.path), state


def _unlink(path: Path) -> bool:
    """Remove a file; say whether this call did."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _read(path: Path, key: str, step: Callable[[], object]) -> CachedEngine:
    # An engine can hold code, and its own hash vouches for nothing: only the user's files count.
    with opened(path, getattr(os, "O_NOFOLLOW", 0)) as (file, state):
        if hasattr(os, "geteuid") and state.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "an entry belongs to another user")
        about = _tail(file, state.st_size, key)
        size = about["size"]
        file.seek(0)
        seen = hashlib.sha256()
        parts = []
        left = size
        while left:
            block = file.read(min(left, BLOCK))
            if not block:
                raise DamagedError("it is cut short")
            left -= len(block)
            seen.update(block)
            if size <= LARGE:
                parts.append(block)
            step()
        if seen.hexdigest() != about["sha256"]:
            raise DamagedError("its hash is another one")
        engine = memoryview(b"".join(parts)) if size <= LARGE else map_file(os.dup(file.fileno()))
    if engine.nbytes < size:
        raise DamagedError("it is cut short")
    return CachedEngine(
        engine[:size], about["built_at"], about["duration_s"], about["device"], about["layers"]
    )


def _tail(file: Any, size: int, key: str) -> dict[str, Any]:
    """Read what is known of an engine, from the end of its entry, and check it."""
    if size < _END.size:
        raise DamagedError("it is cut short")
    file.seek(size - _END.size)
    length, mark = _END.unpack(file.read(_END.size))
    if mark != _MARK or not 0 < length <= min(_LONGEST_JSON, size - _END.size):
        raise DamagedError("its end is missing")
    file.seek(size - _END.size - length)
    try:
        about = json.loads(file.read(length))
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or not _is_sound(about):
        raise DamagedError("what is said of it makes no sense")
    if about["key"] != key or about["size"] != size - _END.size - length:
        raise DamagedError("it is another engine")
    return about


def _is_sound(about: dict[str, Any]) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "key": (str,),
        "sha256": (str,),
        "size": (int,),
        "built_at": (int, float),
        "duration_s": (int, float),
        "device": (str, type(None)),
        "layers": (int, type(None)),
    }
    if not all(type(about.get(name, ())) in kind for name, kind in kinds.items()):
        return False
    times = (about["built_at"], about["duration_s"])
    return about["size"] >= 0 and all(math.isfinite(t) and 0 <= t <= _LONGEST_S for t in times)
