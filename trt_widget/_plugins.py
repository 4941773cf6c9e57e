"""Loading libraries of TensorRT plugins."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

from trt_widget.errors import OptionRejected

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensorrt import ILogger, IPluginRegistry

    from trt_widget.backend import Backend

__all__ = ["load_plugins", "other_plugins"]

# What a library has whose plugins IPluginRegistry.load_library registers. The plugins of others
# register themselves when the library is loaded (REGISTER_TENSORRT_PLUGIN).
_ENTRY_POINTS: Final = ("getCreators", "getPluginCreators")

# What tells one plugin from another.
_NAMED_BY: Final = ("plugin_namespace", "name", "plugin_version")

# Of Elf64_Ehdr: e_phoff, e_phentsize, e_phnum; of Elf64_Phdr: p_type, p_offset, p_filesz (elf.h).
_ELF_HEADER: Final = struct.Struct("<32xQ14xHH6x")
_ELF_SEGMENT: Final = struct.Struct("<I4xQ16xQ16x")
_ELF_LOAD: Final = 1  # PT_LOAD

# Loaded in this process, by package and path. Nothing is ever unloaded: the registry points into
# the libraries.
_loaded: Final[dict[tuple[str, Path], Any]] = {}
# The plugins that each of them has registered.
_registered: Final[dict[tuple[str, Path], frozenset[str]]] = {}
_one_at_a_time: Final = threading.Lock()


def load_plugins(paths: Iterable[Path], backend: Backend) -> list[str]:
    """Load each library, unless this process has it already, and register its plugins.

    Returns
    -------
    list of str
        Sentences for people: libraries that brought no plugin.

    Raises
    ------
    OptionRejected
        A library cannot be loaded; the loader's words are in the message.
    """
    notes = []
    with _one_at_a_time:
        for path in paths:
            if (backend.name, path) not in _loaded:
                note = _load(path, backend)
                notes += [note] if note else []
    return notes


def other_plugins(
    paths: Iterable[Path], backend: Backend, logger: ILogger | None = None
) -> list[str]:
    """Name the plugins that are registered in this process, but for those of some libraries.

    In a process that has only built, these are TensorRT's own. A notebook can have others: loaded
    for an earlier build, or by the user's own code.
    """
    with _one_at_a_time:
        if hasattr(backend.module, "init_libnvinfer_plugins"):
            backend.module.init_libnvinfer_plugins(logger, "")
        asked = {(backend.name, path) for path in paths}
        theirs = [_registered[library] for library in asked if library in _registered]
        return sorted(_names(_registry(backend)).difference(*theirs))


def _load(path: Path, backend: Backend) -> str | None:
    if _is_cut_off(path):
        raise OptionRejected(
            f"plugins: {path.name} is truncated.", "Build or copy the library again."
        )
    registry = _registry(backend)
    before = _count(registry)
    named = _names(registry)
    # The system's loader first: TensorRT's own call says nothing about why it fails, and closes a
    # library that has no entry point although its plugins are registered (measured, RTX 1.7.1).
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise OptionRejected(
            f"plugins: {path.name} cannot be loaded: {error}.",
            "Check that it is a plugin library for this system and this version of TensorRT, and "
            "that the libraries which it needs are found.",
        ) from error
    handle = None
    if registry is not None and any(hasattr(library, name) for name in _ENTRY_POINTS):
        try:
            handle = registry.load_library(str(path))
        except (RuntimeError, TypeError, ValueError) as error:
            raise OptionRejected(
                f"plugins: {backend} refused {path.name}: {error}.",
                "Check that it was built for this version of TensorRT.",
            ) from error
    _loaded[backend.name, path] = (library, handle)
    _registered[backend.name, path] = frozenset(_names(registry) - named)
    if handle is None and before is not None and _count(registry) == before:
        return (
            f"plugins: {path.name} was loaded, but it registered no plugin that {backend} did not "
            "have before."
        )
    return None


def _is_cut_off(path: Path) -> bool:
    """Tell whether an ELF library ends before its contents do.

    The system's loader maps the missing part all the same, and the process dies of SIGBUS
    (measured, glibc). Only the usual form is looked at: 64 bits, little-endian.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(_ELF_HEADER.size)
            if not header.startswith(b"\x7fELF\x02\x01") or len(header) < _ELF_HEADER.size:
                return False
            table, entry_size, count = _ELF_HEADER.unpack(header)
            if entry_size < _ELF_SEGMENT.size:
                return False
            for number in range(count):
                file.seek(table + number * entry_size)
                entry = file.read(_ELF_SEGMENT.size)
                if len(entry) < _ELF_SEGMENT.size:
                    return True
                kind, offset, length = _ELF_SEGMENT.unpack(entry)
                if kind == _ELF_LOAD and offset + length > size:
                    return True
    except OSError:  # the loader says it
        pass
    return False


def _registry(backend: Backend) -> IPluginRegistry | None:
    get = getattr(backend.module, "get_plugin_registry", None)
    return None if get is None else get()


def _count(registry: IPluginRegistry | None) -> int | None:
    """Return how many plugins are registered, or None where the package does not say."""
    creators = getattr(registry, "all_creators", None)
    return None if creators is None else len(creators)


def _names(registry: IPluginRegistry | None) -> set[str]:
    """Name what is registered, as far as the package says."""
    return {
        "/".join(str(getattr(creator, part, "")) for part in _NAMED_BY)
        for creator in getattr(registry, "all_creators", ())
    }
