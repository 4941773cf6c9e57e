"""Which GPU there is, what of its memory is used, and its driver's calls for memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from trt_widget.backend import cuda_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 2**20
#: Whether the tests are only tried, on a machine without a GPU.
DRY: Final = os.environ.get("TRT_WIDGET_GPU_TESTS") == "dry"
#: Seconds that a process which only asks or tries something small may take.
PROBE_S: Final = 50.0
#: Seconds that nvidia-smi may take.
SMI_S: Final = 30.0


class NoAnswerError(Exception):
    """What is asked of the GPU or its driver gives no answer, so that nothing can be tested."""


def probe(*arguments: str, timeout: float = PROBE_S) -> dict[str, Any]:
    """Run ``tests.gpu.probe`` in a process of its own and give what it says, or how it died.

    Raises
    ------
    NoAnswerError
        It did neither in that time.
    """
    command = [sys.executable, "-m", "tests.gpu.probe", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if error.stderr else ""
        raise NoAnswerError(
            f"python -m tests.gpu.probe {' '.join(arguments)}: still running after {timeout:g} s. "
            f"{said.strip()[-1500:]}".strip()
        ) from None
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    how = f"the code {done.returncode}"
    if done.returncode < 0:
        how = signal.Signals(-done.returncode).name
    return {"died": f"{how}: {(done.stderr or done.stdout).strip()[-1500:]}"}


# ---- which GPU ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A GPU."""

    name: str
    #: Such as ``"SM90"``.
    capability: str
    uuid: str
    memory: int
    #: Of CUDA, that the driver serves: 13000 is 13.0.
    cuda: int
    #: Of the driver itself, as far as it is known.
    driver: str = "?"

    def __str__(self) -> str:
        serves = f"{self.cuda // 1000}.{self.cuda % 1000 // 10}"
        return (
            f"{self.name}, {self.capability}, {self.memory / 2**30:.1f} GiB, driver {self.driver}, "
            f"CUDA {serves}"
        )


#: What the fixtures report in a dry run.
NO_DEVICE: Final = Device("no GPU (dry run)", "SM00", "", 0, 0)


def find_device() -> Device | str:
    """Give the first GPU that CUDA offers, or why there is none. CUDA is not started here.

    Raises
    ------
    NoAnswerError
        Whether there is one cannot be told.
    """
    told = probe("gpu")
    if "died" in told:
        raise NoAnswerError(f"asking for the GPU ended with {told['died']}")
    if "reason" in told:
        return str(told["reason"])
    return Device(**told, driver=_driver_version())


def _driver_version() -> str:
    with contextlib.suppress(Exception):  # no such package, or it finds no library
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(NoAnswerError, IndexError):
        return _ask_smi("--query-gpu=driver_version")[0][0]
    return "?"


def _ask_smi(*arguments: str) -> list[list[str]]:
    """Ask nvidia-smi; give its rows, without units."""
    command = ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True)
    except OSError as error:
        raise NoAnswerError(
            f"neither nvidia-ml-py nor the program nvidia-smi can be used here ({error})"
        ) from None
    except subprocess.SubprocessError as error:
        said = f"{error.stdout or ''} {error.stderr or ''}".strip()  # type: ignore[attr-defined]
        raise NoAnswerError(f"{error} {said}".strip()) from None
    rows = done.stdout.strip().splitlines()
    return [[cell.strip() for cell in row.split(",")] for row in rows if row.strip()]


# ---- its memory ---------------------------------------------------------------------------------


class Memory:
    """How much of a GPU's memory is used, in bytes: all of it, and by this process and its own."""

    #: Who is asked.
    source: str

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handle: Any = None
        self.source = "nvidia-smi"
        with contextlib.suppress(Exception):  # no such package, or it finds no library
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            self.source = "NVML"

    def used(self) -> int:
        """Give all that is used, by anybody."""
        if self._handle is not None:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        ((used,),) = _ask_smi("-i", self._device.uuid, "--query-gpu=memory.used")
        return int(used) * MIB

    def processes(self) -> dict[int, int]:
        """Give what each process uses; one of which that is not told is left out."""
        if self._handle is not None:
            try:
                entries = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            except self._nvml.NVMLError:  # not everywhere; all that is used is told everywhere
                return {}
            return {each.pid: int(each.usedGpuMemory) for each in entries if each.usedGpuMemory}
        rows = _ask_smi("-i", self._device.uuid, "--query-compute-apps=pid,used_memory")
        return {int(pid): int(used) * MIB for pid, used in rows if used.isdigit()}

    def ours(self) -> int | None:
        """Give what this process and those that it has started use, or None where none is told.

        Within a container the driver may tell other numbers of processes than are known there.
        """
        told = self.processes()
        own = psutil.Process()
        pids = {own.pid, *(child.pid for child in own.children(recursive=True))}
        found = [used for pid, used in told.items() if pid in pids]
        return sum(found) if found else None

    def settles(self, limit: int, timeout: float) -> int:
        """Wait until no more than ``limit`` is used; give what is used then, or at the end.

        The driver gives the memory of a process back a moment after its end.
        """
        deadline = time.monotonic() + timeout
        while (used := self.used()) > limit and time.monotonic() < deadline:
            time.sleep(0.05)
        return used


class NoMemory(Memory):
    """Where there is no GPU: nothing is ever used."""

    def __init__(self) -> None:
        super().__init__(NO_DEVICE)
        self.source = "nobody"

    def used(self) -> int:
        return 0

    def processes(self) -> dict[int, int]:
        return {}


# ---- the driver's calls -------------------------------------------------------------------------


class CudaError(RuntimeError):
    """A call to the CUDA driver failed.

    Attributes
    ----------
    code
        The driver's number for it; 2 is want of memory.
    """

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} answered {code}")
        self.code = code


class Cuda:
    """The primary context of the first GPU in this process: plain memory, copies, a stream."""

    OUT_OF_MEMORY: Final = 2

    def __init__(self) -> None:
        self._library = cuda_library()
        assert self._library is not None
        self._do("cuInit", 0)
        device, context = ctypes.c_int(0), ctypes.c_void_p()
        self._do("cuDeviceGet", ctypes.byref(device), 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._do("cuCtxSetCurrent", context)

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)

    def allocate(self, size: int) -> int:
        """Take memory of the GPU alone (never managed memory); give its address."""
        address = ctypes.c_uint64(0)
        self._do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free_and_total(self) -> tuple[int, int]:
        """Give the bytes that are free, and all that there are."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def upload(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Copy an array to the GPU."""
        assert values.flags.c_contiguous
        where = ctypes.c_uint64(address), ctypes.c_void_p(values.ctypes.data)
        self._do("cuMemcpyHtoD_v2", *where, ctypes.c_size_t(values.nbytes))

    def download(self, values: np.ndarray[Any, Any], address: int) -> None:
        """Copy from the GPU into an array."""
        assert values.flags.c_contiguous
        where = ctypes.c_void_p(values.ctypes.data), ctypes.c_uint64(address)
        self._do("cuMemcpyDtoH_v2", *where, ctypes.c_size_t(values.nbytes))

    def make_stream(self) -> int:
        """Make a stream; give its handle."""
        stream = ctypes.c_void_p()
        self._do("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(0))
        return int(stream.value or 0)

    def synchronize(self) -> None:
        """Wait until the GPU has done everything."""
        self._do("cuCtxSynchronize")


@contextlib.contextmanager
def holding(what: str, timeout: float = PROBE_S) -> Iterator[dict[str, Any]]:
    """Have a process of its own hold memory of the GPU; it ends with this context at the latest.

    Parameters
    ----------
    what
        ``"context"``: nothing but a CUDA context; or the bytes that are to be left free.
    timeout
        Seconds that it may take until it holds that.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.probe", "hold", what],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # What hangs in the driver says nothing, and so its end is what ends the reading.
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    limit = threading.Timer(timeout, end)
    limit.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        limit.cancel()
        assert not late.is_set(), f"no process could take GPU memory within {timeout:g} s"
        assert line, f"the process that holds GPU memory ended with the code {process.wait(30)}"
        yield json.loads(line)
    finally:
        limit.cancel()
        # It ends at the end of its standard input too, and so with this process.
        process.kill()
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


# ---- what the tests collect ---------------------------------------------------------------------


@dataclass
class Figures:
    """What is printed at the end."""

    lines: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def say(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def row(self, table: str, **cells: Any) -> None:
        """Add a row to a table; all of its rows have the same columns."""
        self.tables.setdefault(table, []).append({key: _cell(cells[key]) for key in cells})

    def text(self) -> str:
        """Give all lines, then all tables."""
        parts = list(self.lines)
        for name, rows in self.tables.items():
            names = list(rows[0])
            widths = [max(len(key), *(len(row[key]) for row in rows)) for key in names]
            parts += ["", f"{name}:", *(_line(line, widths) for line in (names, *_values(rows)))]
        return "\n".join(parts)


def _values(rows: list[dict[str, str]]) -> list[list[str]]:
    return [list(row.values()) for row in rows]


def _line(cells: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.01 or value == 0.0 else f"{value:.1e}"
    return str(value)


def until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.005)
