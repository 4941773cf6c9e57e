"""The GPU at hand and its memory. CUDA is never started here: that would be measured, too."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget.executors.isolation import gpus_apart

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

NO_GPU = "no GPU"
#: Seconds that a driver may take to give the memory of a process back.
SETTLE_S = 0.5


@dataclass(frozen=True)
class Device:
    """The first GPU that a build here would use; its name is :data:`NO_GPU` where there is none."""

    name: str = NO_GPU
    capability: str = ""
    driver: str = ""
    uuid: str = ""

    def __bool__(self) -> bool:
        return self.name != NO_GPU

    def __str__(self) -> str:
        if not self:
            return self.name
        return f"{self.name} ({self.capability}), driver {self.driver or 'unknown'}"


def find() -> Device:
    """Ask the CUDA driver in a process of its own, so that ``CUDA_VISIBLE_DEVICES`` counts."""
    found = gpus_apart()
    if not found:
        return Device()
    gpu = found[0]
    return Device(gpu.name, gpu.compute_capability, _driver(), gpu.uuid)


def nvml() -> Any:
    """Give the started NVML (package nvidia-ml-py), or None."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _driver() -> str:
    library = nvml()
    if library is not None:
        with contextlib.suppress(library.NVMLError):
            said = library.nvmlSystemGetDriverVersion()
            return said.decode() if isinstance(said, bytes) else str(said)
    try:
        line = Path("/proc/driver/nvidia/version").read_text("utf-8").splitlines()[0]
    except (OSError, IndexError):
        return ""
    words = line.split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


@dataclass
class Memory:
    """Watches the memory of a GPU while a block runs, some times a second.

    NVML counts all processes of the GPU together; which of it is whose it says only where process
    ids are those of the system, which they need not be in a container.

    Attributes
    ----------
    before, most, after
        Bytes in use on the whole GPU.
    by_process
        The most bytes of each process id that NVML has told.
    """

    uuid: str
    period_s: float = 0.02
    before: int = 0
    most: int = 0
    after: int = 0
    by_process: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nvml = nvml()
        self._stop = threading.Event()
        if self._nvml is None:
            raise RuntimeError("no NVML here: pip install nvidia-ml-py")
        self._handle = self._find()

    def _find(self) -> Any:
        with contextlib.suppress(self._nvml.NVMLError):
            return self._nvml.nvmlDeviceGetHandleByUUID(self.uuid)
        with contextlib.suppress(self._nvml.NVMLError, TypeError):  # older ones take bytes
            return self._nvml.nvmlDeviceGetHandleByUUID(self.uuid.encode())
        if self._nvml.nvmlDeviceGetCount() == 1:
            return self._nvml.nvmlDeviceGetHandleByIndex(0)
        raise RuntimeError(f"NVML does not know the GPU {self.uuid}, and there are several")

    def used(self) -> int:
        """Give the bytes in use now."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _look(self) -> None:
        self.most = max(self.most, self.used())
        with contextlib.suppress(self._nvml.NVMLError):
            for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                known = self.by_process.get(entry.pid, 0)
                self.by_process[entry.pid] = max(known, entry.usedGpuMemory or 0)

    def _watch(self) -> None:
        while not self._stop.wait(self.period_s):
            self._look()

    def __enter__(self) -> Self:
        self.before = self.used()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="GPU memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        time.sleep(SETTLE_S)
        self.after = self.used()
