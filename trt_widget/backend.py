"""Which TensorRT is installed, and what it can do.

Two packages have the same Python API: ``tensorrt`` (full TensorRT, needs a GPU to build) and
``tensorrt_rtx`` (TensorRT for RTX, builds ahead of time without one). Their bindings do not accept
each other's objects, so a build belongs to one of them from its first object on: the
:class:`Backend`.

Importing this module imports no TensorRT; :func:`find_backend` does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
import threading
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._text import line
from trt_widget.errors import BackendNotFound, OptionError, OptionRejected, WrongBackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget._tensorrt import TensorRT

__all__ = [
    "Backend",
    "Gpu",
    "ask_for_gpus",
    "backend_of",
    "cuda_library",
    "find_backend",
    "found_gpus",
    "gpu_info",
    "gpus",
    "package_of",
    "processor_name",
    "take_gpus",
    "use_device",
    "wait_for_gpus",
]

#: The packages that can build, in the order of preference.
BACKEND_NAMES: Final = ("tensorrt", "tensorrt_rtx")

#: The first GPU generation that TensorRT for RTX builds for by default: Ampere.
_FIRST_BY_DEFAULT: Final = 80
_FULL_NAMES: Final = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}

# The compiled modules behind the two packages, by the first part of their name. Measured:
# tensorrt_rtx_bindings.tensorrt_rtx (1.7.1); tensorrt_bindings.tensorrt (tensorrt-stubs 10.13).
# tensorrt.tensorrt is where a TensorRT from NVIDIA's tar file has it.
_BINDINGS: Final = {
    "tensorrt": "tensorrt",
    "tensorrt_bindings": "tensorrt",
    "tensorrt_rtx": "tensorrt_rtx",
    "tensorrt_rtx_bindings": "tensorrt_rtx",
}

# Flags that choose precisions layer by layer. A strongly typed network refuses them, and TensorRT
# 11 and TensorRT for RTX no longer have them (tensorrt-stubs 10.13; tensorrt_rtx 1.7.1).
_WEAK_FLAGS: Final = frozenset(
    {
        "BF16",
        "FP16",
        "FP4",
        "FP8",
        "INT4",
        "INT8",
        "OBEY_PRECISION_CONSTRAINTS",
        "PREFER_PRECISION_CONSTRAINTS",
    },
)

_INSTALLS: Final = {
    "tensorrt_rtx": (
        'Install TensorRT for RTX with: pip install "trt-widget[rtx]" (Linux x86-64 and Windows; '
        "it builds without a GPU too)."
    ),
    "tensorrt": (
        'Install full TensorRT with: pip install "trt-widget[tensorrt]" (it needs an NVIDIA driver '
        "and a GPU; its package fetches NVIDIA's libraries while it installs), or from NVIDIA's "
        "TensorRT downloads."
    ),
}


#: How the reason begins where a package is there and its import fails.
_FAILED: Final = "importing it failed"
#: Why a package cannot be used where there is none at all.
_MISSING: Final = "it is not installed"
_EMPTY: Final = "only an empty folder or type stubs of that name are installed"


class Backend:
    """One installed TensorRT package.

    Get one from :func:`find_backend`. Two backends of the same package are equal. A backend pickles
    as its name and finds the package again where it is unpickled.

    Attributes
    ----------
    name
        ``"tensorrt"`` or ``"tensorrt_rtx"``.
    module
        The package, imported.
    version
        The package's version.
    note
        What is to be said of how it was chosen, where that is a surprise; else empty.
    """

    __slots__ = ("module", "name", "note", "version")

    name: str
    module: TensorRT
    version: str
    note: str

    def __init__(self, name: str, module: Any, note: str = "") -> None:
        self.name = name
        # From here on it is checked by its type; until then it was anything that can be imported.
        self.module = module
        self.version = _version(module)
        self.note = note

    @property
    def is_rtx(self) -> bool:
        """Whether this is TensorRT for RTX."""
        return self.name == "tensorrt_rtx"

    @property
    def full_name(self) -> str:
        """The product's name, for people."""
        return _FULL_NAMES[self.name]

    @property
    def strongly_typed_only(self) -> bool:
        """Whether every network is strongly typed: TensorRT for RTX, and TensorRT from 11 on."""
        return self.is_rtx or not self.weak_flags()

    @property
    def can_target(self) -> bool:
        """Whether engines can be built for other GPUs than this machine's (``target=``)."""
        return self.is_rtx and bool(self.compute_capabilities())

    @property
    def needs_gpu(self) -> bool:
        """Whether building needs a GPU."""
        return not self.is_rtx

    @property
    def device_name(self) -> str:
        """The first GPU's name; where there is none, how this package builds without."""
        found = gpus()
        if found:
            return found[0].name
        return "CPU (ahead of time)" if self.is_rtx else "no GPU"

    def builder_flags(self) -> tuple[str, ...]:
        """Return the names of the builder flags (``flags=``) that this package has."""
        return self._members("BuilderFlag")

    def weak_flags(self) -> tuple[str, ...]:
        """Return the builder flags that only a weakly typed network takes; empty where none is."""
        return tuple(name for name in self.builder_flags() if name in _WEAK_FLAGS)

    def network_flags(self) -> tuple[str, ...]:
        """Return the names of the network creation flags (``network_flags=``)."""
        return self._members("NetworkDefinitionCreationFlag")

    def compute_capabilities(self) -> tuple[str, ...]:
        """Return the names of the GPU generations that can be a ``target=``; empty without any."""
        return tuple(name for name in self._members("ComputeCapability") if name != "NONE")

    def runs_on(self, gpu: Gpu, *, by_default: bool = True) -> bool:
        """Tell whether engines of this package run on that GPU.

        TensorRT for RTX builds without complaint also for a GPU it does not know, and only the
        runtime refuses the engine. Measured with 1.7.1 on an H200 (SM90): an engine for its default
        targets is for 8.0, 8.6, 8.9, 12.0, 12.1 and whatever is newer. Its ComputeCapability has
        7.5 as well.

        Parameters
        ----------
        gpu
            On which it is to run.
        by_default
            Whether it is built for the default targets, and not for that GPU itself.
        """
        known = [int(name[2:]) for name in self.compute_capabilities() if name.startswith("SM")]
        if not known:
            return True
        if by_default:
            known = [number for number in known if number >= _FIRST_BY_DEFAULT]
        own = int(gpu.compute_capability[2:])
        return own in known or own > max(known)

    def _members(self, enumeration: str) -> tuple[str, ...]:
        return tuple(getattr(getattr(self.module, enumeration, None), "__members__", ()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Backend):
            return NotImplemented
        return self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.version}>"

    def __str__(self) -> str:
        return f"{self.full_name} {self.version}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (find_backend, (self.name,))


def find_backend(choice: str | ModuleType | Backend | None = None) -> Backend:
    """Find the TensorRT package to build with.

    Parameters
    ----------
    choice
        ``"tensorrt"``, ``"tensorrt_rtx"``, or the module. None takes full TensorRT where it can
        build (it is installed, and a CUDA driver with at least one GPU is there), else TensorRT for
        RTX.

    Raises
    ------
    BackendNotFound
        The package, or with None either one, is not installed or cannot build.
    OptionError
        No such package.
    WrongBackendError
        A module that is neither package.
    """
    if isinstance(choice, Backend):
        return choice
    if isinstance(choice, ModuleType):
        return _from_module(choice)
    if choice is None:
        return _default()
    if not isinstance(choice, str):
        raise OptionError(
            f"backend={choice!r} is no TensorRT package.",
            "Give 'tensorrt', 'tensorrt_rtx', or the imported module.",
        )
    name = choice.strip().lower().replace("-", "_")
    if name not in BACKEND_NAMES:
        import difflib

        near = difflib.get_close_matches(name, BACKEND_NAMES, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise OptionError(
            f"backend={choice!r} is no TensorRT package that can build.",
            f"{hint}Give 'tensorrt', 'tensorrt_rtx', or the imported module.",
        )
    module, why = _import(name)
    if module is None:
        remedy = _repair(name) if why.startswith(_FAILED) else _install(name)
        raise BackendNotFound(f"{name} cannot be used: {why}.", remedy)
    return Backend(name, module)


def _install(first: str) -> str:
    """Say how the packages are installed; that which was asked for comes first."""
    return " ".join([_INSTALLS[first], *(say for name, say in _INSTALLS.items() if name != first)])


def _default() -> Backend:
    full, why_not_full = _import("tensorrt")
    if full is not None and _has_gpu():
        return Backend("tensorrt", full)
    rtx, why_not_rtx = _import("tensorrt_rtx")
    if rtx is not None:
        chosen = Backend("tensorrt_rtx", rtx)
        if why_not_full not in {"", _MISSING, _EMPTY}:
            chosen.note = (
                f"The package tensorrt is installed and cannot be used ({line(why_not_full)}), so "
                f"this is built by {chosen}. backend='tensorrt' says what to do about it."
            )
        return chosen
    reasons = {"tensorrt": why_not_full, "tensorrt_rtx": why_not_rtx}
    broken = [name for name, why in reasons.items() if why.startswith(_FAILED)]
    remedies = [_repair(*broken)] if broken else []
    if "tensorrt_rtx" not in broken:
        remedies.append(_install("tensorrt_rtx"))
    if full is not None:
        why_not_full = "it needs a GPU to build, and there is no NVIDIA driver with a GPU here"
    raise BackendNotFound(
        "No TensorRT that can build here was found "
        f"(tensorrt: {why_not_full}; tensorrt_rtx: {why_not_rtx}).",
        " ".join(remedies),
    )


def _has_gpu() -> bool:
    """Tell whether there is a GPU; CUDA is started here only where nobody else could say."""
    from trt_widget.executors.isolation import gpus_apart

    return bool(gpus_apart() or gpus())


def _from_module(module: ModuleType) -> Backend:
    name = _BINDINGS.get(module.__name__.partition(".")[0])
    if name is None:
        raise WrongBackendError(
            f"backend={module.__name__} is a module, but no TensorRT package that can build.",
            "Give the module tensorrt or tensorrt_rtx.",
        )
    why_not = _lacks(module)
    if why_not:
        remedy = _repair(name) if why_not.startswith(_FAILED) else _install(name)
        raise BackendNotFound(f"{module.__name__} cannot be used: {why_not}.", remedy)
    return Backend(name, module)


def _import(name: str) -> tuple[Any, str]:
    """Return the module and "", or None and why not."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None, _MISSING
        return None, _failure(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - its loader raises OSError, or anything
        return None, _failure(error)
    why_not = _lacks(module)
    return (None, why_not) if why_not else (module, "")


def _failure(error: BaseException) -> str:
    try:
        said = str(error).strip().rstrip(".")
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever a broken package's error is
        said = ""
    return f"{_FAILED}: {said or type(error).__name__}"


def _repair(*names: str) -> str:
    """Return what to do about packages that are installed and cannot be imported."""
    packages = " ".join(name.replace("_", "-") for name in names)
    return (
        "Part of it is missing, or of another version than the rest. Install it again: pip install "
        f"--force-reinstall --no-cache-dir {packages}. A TensorRT from NVIDIA's "
        "downloads needs the folder of its libraries in LD_LIBRARY_PATH (on Windows: in PATH) "
        "before Python starts."
    )


def _lacks(module: ModuleType) -> str:
    """Return why a module of the right name cannot build; "" where it can.

    A module may load its libraries only where something of it is asked for.
    """
    try:
        return _lacks_of_what_is_there(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in _import
        return _failure(error)


def _lacks_of_what_is_there(module: ModuleType) -> str:
    version = _version(module)
    if not isinstance(getattr(module, "Builder", None), type):
        file = getattr(module, "__file__", None)
        if file:
            return f"{file!r} is another module of that name, or incomplete: it has no Builder"
        # tensorrt-stubs installs a folder `tensorrt` of type stubs, which imports as an empty
        # namespace package.
        return _EMPTY
    if not isinstance(getattr(module, "IProgressMonitor", None), type):
        version = "this version" if version == "unknown" else version
        return f"{version} has no progress monitor, which came with TensorRT 10"
    return ""


def _version(module: object) -> str:
    return str(getattr(module, "__version__", "unknown"))


def package_of(obj: object) -> str | None:
    """Tell which package an object's class comes from, or is derived from.

    Parameters
    ----------
    obj
        A builder, network, config, monitor, logger ..., or a class of these.

    Returns
    -------
    str or None
        ``"tensorrt"``, ``"tensorrt_rtx"``, or None for an object of neither.
    """
    kind = obj if isinstance(obj, type) else type(obj)
    for base in kind.__mro__:
        name = _BINDINGS.get(str(getattr(base, "__module__", "")).partition(".")[0])
        if name is not None:
            return name
    return None


def backend_of(obj: object, expected: str | ModuleType | Backend | None = None) -> Backend:
    """Find the package that a live object comes from.

    Parameters
    ----------
    obj
        A builder, network, config, monitor or logger.
    expected
        The package that it has to come from; None allows both.

    Raises
    ------
    WrongBackendError
        The object comes from neither package, or not from the expected one.
    """
    name = package_of(obj)
    kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
    if name is None:
        raise WrongBackendError(
            f"An object of type {kind} comes from no TensorRT package.",
            "Give an object of the package tensorrt or tensorrt_rtx.",
        )
    if expected is not None and find_backend(expected).name != name:
        other = find_backend(expected).name
        raise WrongBackendError(
            f"An object of type {kind} comes from {name}, but the build uses {other}.",
            f"Make it with {other}, or choose backend={name!r}.",
        )
    return find_backend(name)


class Gpu(NamedTuple):
    """A GPU as the CUDA driver numbers it (``CUDA_VISIBLE_DEVICES`` is applied)."""

    number: int
    name: str
    #: Such as ``"SM90"``; the word that ``target=`` uses.
    compute_capability: str
    #: Such as ``"GPU-6b0c93ef-..."``, the same in every process; empty where the driver is too old.
    uuid: str = ""
    #: Streaming multiprocessors, and bytes of memory; 0 where it is not known.
    processors: int = 0
    memory: int = 0


# CUdevice_attribute in cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, and
# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
_MAJOR: Final = 75
_MINOR: Final = 76
_PROCESSORS: Final = 16
#: Seconds between two looks at whether a wait for the driver is to be given up.
_LOOK_S: Final = 0.05
# CUDA_ERROR_OUT_OF_MEMORY of CUresult.
_OUT_OF_MEMORY: Final = 2


@lru_cache(maxsize=1)
def _driver() -> Any:
    """Return the CUDA driver library after ``cuInit``, or None.

    Asked through ctypes and never by creating a Builder: that costs seconds with a GPU, and logs
    errors without. Note that ``cuInit`` makes CUDA unusable in later *forks* of this process, as
    any build would.
    """
    library = cuda_library()
    try:
        return library if library is not None and library.cuInit(0) == 0 else None
    except AttributeError:
        return None


def cuda_library() -> Any:
    """Return the CUDA driver library without starting CUDA; None where there is no driver."""
    import ctypes

    try:
        if sys.platform == "win32":
            return ctypes.WinDLL("nvcuda.dll")
        else:  # noqa: RET505 - mypy follows the platform through if and else only
            return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the CUDA driver offers; empty without a driver or a GPU.

    The answer is kept: CUDA itself does not see a GPU that comes later.
    """
    if _told is not None:
        return _told
    driver = _driver()
    if driver is None:
        return ()
    import ctypes

    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_describe(driver, index) for index in range(count.value))


#: The GPUs as another process has found them: see :func:`take_gpus`.
_told: tuple[Gpu, ...] | None = None


def take_gpus(found: tuple[Gpu, ...]) -> None:
    """Have :func:`gpus` give what another process has found, so that CUDA is not started here.

    On an H200 that start takes 0.17 s, and the end of a process that has started CUDA 0.07 s. For
    a process only in which CUDA sees the same GPUs, and which need not build on one of them.

    Parameters
    ----------
    found
        What ``gpus()`` gave there.
    """
    global _told  # noqa: PLW0603 - what CUDA sees is of the process
    _told = found
    gpus.cache_clear()
    gpus()  # who looks whether the answer is known finds it


def found_gpus() -> tuple[Gpu, ...]:
    """Return what :func:`gpus` has found by itself; empty where it was not asked, or was told."""
    return gpus() if _told is None and gpus.cache_info().currsize else ()


def ask_for_gpus() -> threading.Thread | None:
    """Begin to find the GPUs, in a thread that ends when :func:`gpus` knows them.

    Starting CUDA takes some tenths of a second. TensorRT for RTX does without, unless it builds for
    the GPU that is there: so it can do something else in that time.

    Returns
    -------
    threading.Thread or None
        None where there is nothing to wait for: no driver, an answer that is known already, or no
        thread to be had.
    """
    if gpus.cache_info().currsize or cuda_library() is None:
        return None
    asking = threading.Thread(target=_ask_quietly, name="trt_widget GPUs", daemon=True)
    try:
        asking.start()
    except RuntimeError:
        return None
    return asking


def _ask_quietly() -> None:
    with contextlib.suppress(Exception):  # who needs the answer asks again, and is told
        gpus()


def wait_for_gpus(asking: threading.Thread | None, step: Callable[[], object]) -> None:
    """Wait for the end of such a thread, if there is one: a driver may hang.

    Parameters
    ----------
    asking
        From :func:`ask_for_gpus`.
    step
        Called some times a second meanwhile; what it raises ends the waiting.
    """
    while asking is not None and asking.is_alive():
        step()
        asking.join(_LOOK_S)


def _describe(driver: Any, index: int) -> Gpu:
    import ctypes

    device = ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    numbers = []
    for attribute in (_MAJOR, _MINOR, _PROCESSORS):
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    capability = f"SM{numbers[0]}{numbers[1]}"
    return Gpu(
        index,
        name.value.decode(errors="replace"),
        capability,
        _uuid(driver, device),
        numbers[2],
        _memory(driver, device),
    )


def _memory(driver: Any, device: Any) -> int:
    """Return the bytes of a GPU's memory, as far as the driver offers it; 0 where it is silent."""
    import ctypes

    ask = getattr(driver, "cuDeviceTotalMem_v2", None)
    size = ctypes.c_size_t(0)
    return size.value if ask is not None and ask(ctypes.byref(size), device) == 0 else 0


def _uuid(driver: Any, device: Any) -> str:
    """Return the GPU's UUID as nvidia-smi writes it."""
    import ctypes
    import uuid

    # The second form tells the parts of a divided GPU (MIG) apart; from CUDA 11.4 on.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or getattr(driver, "cuDeviceGetUuid", None)
    data = (ctypes.c_ubyte * 16)()
    if ask is None or ask(data, device) != 0:
        return ""
    return f"GPU-{uuid.UUID(bytes=bytes(data))}"


@lru_cache(maxsize=1)
def processor_name() -> str:
    """Name the processor of this machine, and how much of it may be used."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no path
            lines = (line.partition(":") for line in file)
            name = next((value.strip() for key, _, value in lines if "model name" in key), name)
    except OSError:  # not Linux
        pass
    try:
        count: int | None = len(os.sched_getaffinity(0))  # type: ignore[attr-defined,unused-ignore] # not on Windows and macOS
    except AttributeError:
        count = os.cpu_count()
    return f"{name} x{count}"


def gpu_info() -> list[str]:
    """Return the names of the GPUs, in the order of their indices; empty without any."""
    return [gpu.name for gpu in gpus()]


def use_device(index: int) -> Gpu:
    """Make the GPU ``index`` the current one of the calling thread, as ``cudaSetDevice`` does.

    Done through the driver's primary context, which every CUDA runtime in the process follows: the
    one that TensorRT is linked with cannot be addressed from Python. The context is kept until the
    process ends, as with ``cudaSetDevice``.

    Raises
    ------
    OptionRejected
        There is no such GPU, or the driver refused.
    """
    found = gpus()
    if not 0 <= index < len(found):
        have = ", ".join(f"{gpu.number}: {gpu.name}" for gpu in found)
        raise OptionRejected(
            f"device={index} does not exist: "
            + (
                f"the GPUs here are {have}."
                if found
                else "there is no NVIDIA driver with a GPU here."
            ),
            "Leave device= out, or choose one of the GPUs." if found else "Leave device= out.",
        )
    import ctypes

    driver = _driver()
    device = ctypes.c_int(0)
    context = ctypes.c_void_p()
    code = (
        driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxSetCurrent(context)
    )
    if code == _OUT_OF_MEMORY:
        raise OptionRejected(
            f"device={index} ({found[index].name}) cannot be used: too little of its GPU memory is "
            f"free (the CUDA driver answered error {code}).",
            "Close what else uses the GPU (nvidia-smi lists it), or choose another one.",
        )
    if code != 0:
        raise OptionRejected(
            f"device={index} ({found[index].name}) cannot be used: the CUDA driver answered "
            f"error {code}.",
            "See whether other programs use the GPU exclusively, or choose another one.",
        )
    return found[index]
