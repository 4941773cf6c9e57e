"""What tests/gpu is made of, tried without a GPU: its driver is compiled here and has none.

The driver below answers the calls that ``tests.gpu.device`` makes, and keeps its "GPU memory" in
that of the process. It shows that the calls are made rightly, and nothing about any GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from tests import models
from tests.gpu import conftest, networks, test_device, test_inference
from tests.gpu import probe as probe_module
from tests.gpu.device import (
    MIB,
    NO_DEVICE,
    ROOT,
    Device,
    Figures,
    Memory,
    NoAnswerError,
    NoMemory,
    find_device,
    holding,
    probe,
)
from tests.gpu.probe import refusal
from tests.gpu.test_cancel import Baseline, check_starved, in_the_middle, kill
from trt_widget import Build

DRIVER = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
static size_t total = (size_t)40 << 30, used = 300 << 20;
static int value_of(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
int cuInit(unsigned flags) {
    if (value_of("FAKE_CRASH", 0)) abort();
    sleep(value_of("FAKE_SLEEP", 0));
    return value_of("FAKE_INIT", 0);
}
int cuDriverGetVersion(int *version) { *version = value_of("FAKE_CUDA", 99000); return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "none", size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *size, int device) { *size = total; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 7, 16); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &total;
    if (getenv("FAKE_NOTED")) {
        FILE *file = fopen(getenv("FAKE_NOTED"), "a");
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
    return value_of("FAKE_RETAIN", 0);
}
int cuCtxSetCurrent(void *context) { return context == &total ? 0 : 201; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *all) { *left = total - used; *all = total; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (used + size + (5 << 20) > total) return 2;
    used += size;
    *address = (uint64_t)(uintptr_t)malloc(size);
    return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)0x7f0000001234; return 0; }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the driver."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("the driver of these tests is compiled with gcc, for Linux")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER, "utf-8")
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*command, str(folder / "driver.c")], check=True)
    return folder


@pytest.fixture
def driver(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the processes that are started find the driver; give what changes its answers."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    return monkeypatch


@pytest.mark.usefixtures("driver")
def test_a_gpu_is_described() -> None:
    found = find_device()
    assert isinstance(found, Device)
    uuid = f"GPU-{'07' * 4}-0707-0707-0707-{'07' * 6}"
    assert found == Device("none", "SM90", uuid, 40 << 30, 99000, found.driver)
    assert str(found).startswith("none, SM90, 40.0 GiB, driver ")


def test_why_there_is_no_gpu(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_CUDA", "11020")
    assert str(find_device()).startswith(
        "the NVIDIA driver is too old: it serves CUDA 11.2, and TensorRT was made for 1"
    )
    driver.delenv("FAKE_CUDA")
    driver.setenv("FAKE_INIT", "100")
    assert find_device() == (
        "the NVIDIA driver offers none here: cuInit answered 100, and there are 0 GPUs"
    )
    driver.setenv("CUDA_VISIBLE_DEVICES", "")
    assert str(find_device()).endswith("there are 0 GPUs, with CUDA_VISIBLE_DEVICES=''")


def test_a_question_that_crashes_is_no_answer(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_CRASH", "1")
    with pytest.raises(NoAnswerError, match="asking for the GPU ended with SIGABRT"):
        find_device()


def test_a_question_that_raises_is_no_answer(
    tmp_path: Path, driver: pytest.MonkeyPatch, compiled: Path
) -> None:
    """A driver that has nothing but ``cuInit``."""
    assert compiled.is_dir()
    (tmp_path / "driver.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
    command = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*command, str(tmp_path / "driver.c")], check=True)
    driver.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(NoAnswerError, match=r"the code 1: (.|\n)*cuDriverGetVersion"):
        find_device()


def test_a_question_that_hangs_is_no_answer(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_SLEEP", "100")
    with pytest.raises(NoAnswerError, match=r"probe gpu: still running after 2 s\.$"):
        probe("gpu", timeout=2.0)
    within = "no process could take GPU memory within 2 s"
    with pytest.raises(AssertionError, match=within), holding("context", 2.0):
        pass


def test_a_run_without_an_answer_fails_once(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_CRASH", "1")
    driver.delenv("TRT_WIDGET_GPU_TESTS", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    said = "tests/gpu cannot be run: asking for the GPU ended with SIGABRT"
    assert done.stdout.count(said) == 1, done.stdout
    assert "skipped" not in done.stdout


def test_what_all_tests_have_in_common_is_not_in_their_time() -> None:
    added: dict[str, float] = {}

    def item(name: str, path: Path, *own: float) -> Any:
        def add(marker: pytest.MarkDecorator, *, append: bool) -> None:
            assert (marker.name, append) == ("timeout", False)
            added[name] = marker.args[0]

        return SimpleNamespace(
            path=path,
            get_closest_marker=lambda _: SimpleNamespace(args=own) if own else None,
            config=SimpleNamespace(getini=lambda _: "120"),
            add_marker=add,
        )

    here = Path(conftest.__file__).parent
    conftest.pytest_collection_modifyitems(
        [
            item("plain", here / "test_a.py"),
            item("own", here / "test_a.py", 300),
            item("other", here.parent / "unit" / "test_a.py"),
        ]
    )
    assert added == {"plain": 120 + conftest.SETUP_S, "own": 300 + conftest.SETUP_S}


def test_memory_that_nobody_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswerError, match="neither nvidia-ml-py nor the program nvidia-smi"):
        Memory(NO_DEVICE).used()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    with pytest.raises(NoAnswerError, match=r"exit status 6.*No devices were found"):
        Memory(NO_DEVICE).used()
    program.write_text("#!/bin/sh\necho '512'\n")
    assert Memory(NO_DEVICE).used() == 512 * MIB


def test_device_0_holds_a_context_and_its_want_is_told(
    driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    driver.setenv("FAKE_NOTED", str(noted))
    Build(models.mlp(), executor="process").start().wait(60)
    assert not noted.exists()
    build = Build(models.mlp(), executor="process", device=0).start()
    build.wait(60)
    (pid,) = noted.read_text().split()
    assert int(pid) != os.getpid()
    driver.setenv("FAKE_RETAIN", "2")
    short = Build(models.mlp(), executor="process", device=0).start()
    short.wait_ended(60)
    assert short.result is not None
    check_starved(short.result.error)
    with pytest.raises(AssertionError):
        check_starved(None)
    driver.setenv("FAKE_RETAIN", "46")
    other = Build(models.mlp(), executor="process", device=0).start()
    other.wait_ended(60)
    assert other.result is not None
    with pytest.raises(AssertionError, match="error 46"):
        check_starved(other.result.error)


@pytest.mark.parametrize("refused", ["", "answered False", "raised TypeError: no such target"])
def test_a_target_that_is_not_taken_is_a_case_of_its_own(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_compute_capability(_capability: object, _place: int) -> bool:
        if "raised" in refused:
            raise TypeError("no such target")
        return not refused

    config = SimpleNamespace(set_compute_capability=set_compute_capability)
    assert refusal(config, "CURRENT") == refused
    if not refused:
        return
    monkeypatch.setattr(probe_module, "refusal", lambda *_: refused)
    build = Build(models.mlp(), configure=probe_module.for_this_gpu, executor="thread").start()
    build.wait_ended(60)
    assert build.result is not None
    test_device.check_refusal(build.result.error, {"refused": refused})
    with pytest.raises(AssertionError):
        test_device.check_refusal(build.result.error, {"refused": "", "build_words": ["x"]})


def test_functions_that_are_sent_to_a_build_do_not_hide_its_gpus() -> None:
    """A child imports their modules, and ``tests.conftest`` hides all GPUs."""
    for function in (probe_module.for_this_gpu, test_inference.without_tf32):
        code = f"import sys, {function.__module__}; assert 'tests.conftest' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_a_build_that_ends_too_early_is_said_to_have() -> None:
    build = Build(models.mlp(), executor="thread").start()
    build.wait(60)
    with pytest.raises(
        AssertionError, match=r"the build ended \(succeeded: None\) before TensorRT"
    ):
        in_the_middle(build)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    ended.wait(30)
    with pytest.raises(AssertionError, match="before its process could be killed"):
        kill(build, process)


@pytest.mark.usefixtures("driver")
def test_memory_is_taken_copied_and_held() -> None:
    script = """
        import numpy as np
        from tests.gpu.device import Cuda
        cuda = Cuda()
        address = cuda.allocate(4096)
        sent, back = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
        cuda.upload(address, sent)
        cuda.download(back, address)
        cuda.synchronize()
        assert (sent == back).all()
        assert cuda.make_stream() == 0x7F0000001234
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=True)
    with holding("context") as held:
        assert held == {"free": (40 << 30) - 300 * MIB, "total": 40 << 30}
    with holding(str(700 * MIB)) as held:
        assert 700 * MIB <= held["free"] < 702 * MIB
    with holding("0") as held:
        assert held["free"] < 7 * MIB


def test_who_holds_memory_says_why_it_cannot(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_INIT", "999")
    with pytest.raises(AssertionError, match="ended with the code 1"), holding("context"):
        pass


class Meter(NoMemory):
    """Shows these bytes, one after the other; the last stays."""

    def __init__(self, *shown: int) -> None:
        super().__init__()
        self.shown = list(shown)

    def used(self) -> int:
        return self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]


def test_memory_that_comes_back_late_and_memory_that_does_not() -> None:
    late = Meter(900 * MIB, 500 * MIB, 310 * MIB)
    assert Baseline(late, 300 * MIB, 16 * MIB, {}).check("a kill") == 10 * MIB
    lost = Meter(900 * MIB, 317 * MIB)
    with pytest.raises(AssertionError, match="after a kill 17 MiB of GPU memory more are used"):
        Baseline(lost, 300 * MIB, 16 * MIB, {}).check("a kill", 0.2)


def test_weights_are_rounded_to_so_many_bits() -> None:
    made = models.mlp(1, 4)
    exact = onnx.numpy_helper.to_array(made.graph.initializer[0])
    for bits in (networks.TF32_BITS, networks.FP32_BITS):
        rough = onnx.numpy_helper.to_array(networks.rounded(made, bits).graph.initializer[0])
        worst = np.max(np.abs(rough - exact) / np.abs(exact))
        assert 0 < worst <= 2.0 ** -(bits + 1)
        assert (networks.rounded(made, 24).graph.initializer[0]) == made.graph.initializer[0]


def test_the_weights_of_a_network_are_all_its_own() -> None:
    made = networks.NETWORKS["densenet121"]()
    assert [given.name for given in made.graph.input] == ["data_0"]
    assert networks.shape_of(made) == (1, 3, 224, 224)
    assert not [node for node in made.graph.node if node.op_type == "ConstantOfShape"]
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in made.graph.initializer}
    constant = {name for name, value in weights.items() if np.unique(value).size == 1}
    assert len(weights) - len(constant) > 800
    # A few ones and zeros of normalizations, which the file itself has.
    left = {name for name in constant if weights[name].dtype == np.float32}
    assert len(left) < 10
    assert all(name.endswith(("bn_scale_0", "bn_bias_0")) for name in left)


def test_figures_are_a_table() -> None:
    figures = Figures()
    figures.say("a line")
    figures.row("builds", network="resnet50", build_s=1.234567, difference=4.2e-5, device=None)
    figures.row("builds", network="x", build_s=12.0, difference=0.0, device="a GPU")
    assert figures.text() == textwrap.dedent(
        """\
        a line

        builds:
        network   build_s  difference  device
        resnet50  1.23     4.2e-05     -
        x         12.00    0.00        a GPU"""
    )
