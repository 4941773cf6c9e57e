from __future__ import annotations

import pickle
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tensorrt_rtx

import trt_widget.executors.isolation  # noqa: F401 - before a test replaces what it takes from here
from trt_widget import backend as module
from trt_widget.backend import (
    Backend,
    Gpu,
    backend_of,
    find_backend,
    gpu_info,
    gpus,
    package_of,
    use_device,
)
from trt_widget.errors import BackendNotFound, OptionError, OptionRejected, WrongBackendError

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator

ONE_GPU = (Gpu(0, "NVIDIA Test", "SM86"),)


def fake_tensorrt(*, weak: bool = True, **attributes: Any) -> types.ModuleType:
    """Stand for full TensorRT, which cannot be installed here; with the flags of 10.13 or 11."""
    made = types.ModuleType("tensorrt")
    flags = {"TF32": 0, "REFIT": 1, **({"FP16": 2, "INT8": 3} if weak else {})}
    members: dict[str, Any] = {
        "__version__": "10.13.0" if weak else "11.4.0",
        "Builder": type("Builder", (), {"__module__": "tensorrt_bindings.tensorrt"}),
        "IProgressMonitor": object,
        "BuilderFlag": types.SimpleNamespace(__members__=flags),
        "NetworkDefinitionCreationFlag": types.SimpleNamespace(
            __members__={"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1}
        ),
        **attributes,
    }
    made.__dict__.update(members)
    return made


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = fake_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", made)
    return made


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver()
    monkeypatch.setattr(module, "_driver", lambda: made)
    gpus.cache_clear()
    yield made
    monkeypatch.undo()
    gpus.cache_clear()


def test_importing_imports_no_tensorrt() -> None:
    script = (
        "import sys, trt_widget.backend, trt_widget.options, trt_widget.network, "
        "trt_widget.diagnosis\n"
        "print([n for n in sys.modules if n.split('.')[0] in "
        "('tensorrt', 'tensorrt_rtx', 'onnx', 'numpy', 'pandas', 'polygraphy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_rtx_is_found() -> None:
    found = find_backend("tensorrt_rtx")
    assert found.name == "tensorrt_rtx"
    assert found.module is tensorrt_rtx
    assert found.version == tensorrt_rtx.__version__
    assert str(found) == f"TensorRT for RTX {found.version}"
    assert found.is_rtx
    assert found.strongly_typed_only
    assert found.can_target
    assert not found.needs_gpu
    assert "TF32" in found.builder_flags()
    assert "FP16" not in found.builder_flags()
    assert found.network_flags() == ("STRONGLY_TYPED",)
    assert {"CURRENT", "SM86", "SM120"} <= set(found.compute_capabilities())
    assert "NONE" not in found.compute_capabilities()


@pytest.mark.parametrize(
    "choice", ["tensorrt_rtx", "tensorrt-rtx", " TensorRT_RTX ", tensorrt_rtx, None]
)
def test_ways_to_name_rtx(choice: Any) -> None:
    assert find_backend(choice) == find_backend("tensorrt_rtx")
    assert find_backend(find_backend(choice)).module is tensorrt_rtx


def test_backends_pickle_and_hash() -> None:
    found = find_backend("tensorrt_rtx")
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert copy == found
    assert len({copy, found}) == 1
    assert copy != "tensorrt_rtx"


def test_full_tensorrt_is_preferred_where_it_can_build(
    full: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "gpus", lambda: ONE_GPU)
    found = find_backend()
    assert found.module is full
    assert str(found) == "TensorRT 10.13.0"
    assert not found.strongly_typed_only
    assert found.weak_flags() == ("FP16", "INT8")
    assert found.needs_gpu
    assert not found.can_target
    assert found.device_name == "NVIDIA Test"


@pytest.mark.usefixtures("full")
def test_without_a_gpu_rtx_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gpus", lambda: ())
    assert find_backend().is_rtx
    assert find_backend().device_name == "CPU (ahead of time)"
    assert find_backend("tensorrt").name == "tensorrt"  # asked for by name


def test_tensorrt_11_is_strongly_typed_only() -> None:
    found = find_backend(fake_tensorrt(weak=False))
    assert found.strongly_typed_only
    assert found.weak_flags() == ()


def test_nothing_installed_names_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BackendNotFound) as caught:
        find_backend()
    for words in ('"trt-widget[rtx]"', '"trt-widget[tensorrt]"', "tensorrt: ", "tensorrt_rtx: "):
        assert words in str(caught.value)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("asked", "extras"),
    [
        (None, ["rtx", "tensorrt"]),
        ("tensorrt_rtx", ["rtx", "tensorrt"]),
        ("tensorrt", ["tensorrt", "rtx"]),
    ],
)
def test_what_was_asked_for_is_installed_first(
    asked: str | None, extras: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BackendNotFound) as caught:
        find_backend(asked)
    assert re.findall(r'"trt-widget\[(\w+)\]"', caught.value.remedy) == extras


@pytest.mark.usefixtures("full")
def test_full_tensorrt_alone_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setattr(module, "gpus", lambda: ())
    with pytest.raises(BackendNotFound, match="it needs a GPU to build"):
        find_backend()


FAILED = "importing it failed: x"
MISSING = "it is not installed"
STUBS = "only an empty folder or type stubs of that name are installed"


@pytest.mark.parametrize(
    ("full", "rtx", "reinstalled", "installed"),
    [
        (MISSING, MISSING, "", True),
        (STUBS, MISSING, "", True),
        ("", MISSING, "", True),  # there, and no GPU
        (FAILED, MISSING, "tensorrt.", True),
        (MISSING, FAILED, "tensorrt-rtx.", False),
        ("", FAILED, "tensorrt-rtx.", False),
        (FAILED, FAILED, "tensorrt tensorrt-rtx.", False),
    ],
)
def test_what_is_broken_is_to_be_installed_again(
    full: str, rtx: str, reinstalled: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whys = {"tensorrt": full, "tensorrt_rtx": rtx}
    monkeypatch.setattr(module, "_import", lambda name: (None if whys[name] else 1, whys[name]))
    with pytest.raises(BackendNotFound) as caught:
        find_backend()
    remedy = caught.value.remedy
    assert (f"--no-cache-dir {reinstalled}" in remedy) == bool(reinstalled)
    assert ("--no-cache-dir" in remedy) == bool(reinstalled)
    assert ('pip install "trt-widget[rtx]"' in remedy) == installed


@pytest.mark.parametrize("full", [MISSING, STUBS, ""])
def test_nothing_is_said_where_nothing_is_broken(
    full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"tensorrt": (None if full else 1, full), "tensorrt_rtx": (tensorrt_rtx, "")}
    monkeypatch.setattr(module, "_import", answers.__getitem__)
    assert find_backend() == Backend("tensorrt_rtx", tensorrt_rtx)
    assert not find_backend().note


def test_a_note_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "importing it failed: " + "much\n" * 500
    answers = {"tensorrt": (None, said), "tensorrt_rtx": (tensorrt_rtx, "")}
    monkeypatch.setattr(module, "_import", answers.__getitem__)
    note = find_backend().note
    assert "much much" in note
    assert "\n" not in note
    assert len(note) < 600


def test_the_stubs_are_no_tensorrt() -> None:
    # tensorrt-stubs is installed here: `import tensorrt` gives an empty namespace package.
    with pytest.raises(BackendNotFound, match="only an empty folder or type stubs"):
        find_backend("tensorrt")


def test_a_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("raise OSError('libnvinfer.so.10: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(BackendNotFound, match=r"libnvinfer\.so\.10: cannot open"):
        find_backend("tensorrt")


def test_a_tensorrt_without_progress_monitors() -> None:
    old = fake_tensorrt()
    del old.IProgressMonitor
    old.__dict__["__version__"] = "8.6.1"
    with pytest.raises(BackendNotFound, match=r"8\.6\.1 has no progress monitor"):
        find_backend(old)


def test_choices_that_are_none() -> None:
    with pytest.raises(OptionError, match="Did you mean 'tensorrt_rtx'"):
        find_backend("tensort_rtx")
    with pytest.raises(OptionError, match="no TensorRT package"):
        find_backend("tensorflow")
    with pytest.raises(OptionError, match="backend=3 is no"):
        find_backend(3)  # type: ignore[arg-type]
    with pytest.raises(WrongBackendError, match="backend=json is a module"):
        find_backend(__import__("json"))


def test_where_objects_come_from(full: types.ModuleType) -> None:
    class Monitor(tensorrt_rtx.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

    monitor = Monitor()
    assert package_of(monitor) == "tensorrt_rtx"
    assert package_of(Monitor) == "tensorrt_rtx"
    assert package_of(full.Builder()) == "tensorrt"
    assert package_of(3) is None
    assert backend_of(monitor).is_rtx
    assert backend_of(monitor, "tensorrt_rtx").is_rtx
    assert backend_of(full.Builder()).module is full
    with pytest.raises(
        WrongBackendError, match="comes from tensorrt, but the build uses tensorrt_r"
    ):
        backend_of(full.Builder(), "tensorrt_rtx")
    with pytest.raises(WrongBackendError, match="comes from no TensorRT package"):
        backend_of(object())


def test_no_driver_here_means_no_gpus() -> None:
    # The test machine has none; tests/gpu has the other case.
    assert gpus() == ()
    assert gpu_info() == []
    with pytest.raises(OptionRejected, match="there is no NVIDIA driver"):
        use_device(0)


class FakeDriver:
    """The CUDA driver of a machine with two GPUs."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.code = 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 - CUDA's names
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        assert size == len(name)
        name.value = b"GPU %d" % device.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 12, 76: device.value, 16: 132}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:  # noqa: N802
        size._obj.value = (80 + device.value) << 30
        return self.code

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:  # noqa: N802
        uuid[0], uuid[15] = 0xAB, device.value
        return self.code

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = 100 + device.value
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        self.current = context.value
        return self.code


def test_gpus_of_a_driver(driver: FakeDriver) -> None:
    uuid = "GPU-ab000000-0000-0000-0000-00000000000"
    assert gpus() == (
        Gpu(0, "GPU 0", "SM120", f"{uuid}0", 132, 80 << 30),
        Gpu(1, "GPU 1", "SM121", f"{uuid}1", 132, 81 << 30),
    )
    assert gpu_info() == ["GPU 0", "GPU 1"]
    assert use_device(1).name == "GPU 1"
    assert driver.current == 101
    with pytest.raises(OptionRejected, match="device=2 does not exist: the GPUs here are 0: GPU 0"):
        use_device(2)
    driver.code = 46
    with pytest.raises(OptionRejected, match="the CUDA driver answered error 46"):
        use_device(0)
    driver.code = 2
    with pytest.raises(OptionRejected, match="too little of its GPU memory is free"):
        use_device(0)
    gpus.cache_clear()
    assert [gpu.uuid for gpu in gpus()] == ["", ""]


def test_repr_is_short() -> None:
    assert repr(Backend("tensorrt_rtx", tensorrt_rtx)).startswith("<Backend tensorrt_rtx 1.")


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("SM80", True), ("SM90", False), ("SM121", True), ("SM130", True), ("SM70", False)],
)
def test_which_gpus_its_engines_run_on(capability: str, runs: bool) -> None:
    """Measured on an H200 (SM90): RTX builds for it and its own runtime refuses the engine."""
    rtx = Backend("tensorrt_rtx", tensorrt_rtx)
    for by_default in (True, False):
        assert rtx.runs_on(Gpu(0, "a GPU", capability), by_default=by_default) is runs


def test_turing_is_no_default_target() -> None:
    """The runtime's own list for an engine without a target begins at 8.0."""
    rtx, turing = Backend("tensorrt_rtx", tensorrt_rtx), Gpu(0, "a GPU", "SM75")
    assert not rtx.runs_on(turing)
    assert rtx.runs_on(turing, by_default=False)
