"""What is true of this GPU, and that the package says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import models
from tests.gpu.conftest import can_run, words
from tests.gpu.device import DRY, ROOT
from tests.gpu.probe import for_this_gpu
from tests.scripts import lines_of
from trt_widget import Build, BuildCrashed, BuildFailed
from trt_widget.backend import find_backend, gpus
from trt_widget.errors import ConfigureFailed, OptionRejected

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.device import Device, Figures

MLP = models.mlp()
EXECUTORS = ("process", "thread")


def test_the_package_describes_the_gpu_as_the_driver_does(device: Device) -> None:
    if DRY:
        assert gpus() == ()
        return
    first = gpus()[0]
    assert (first.name, first.compute_capability) == (device.name, device.capability)
    assert (first.uuid, first.memory) == (device.uuid, device.memory)
    result = finished(Build(MLP)).result
    assert result is not None
    assert result.device
    assert result.status == "succeeded"


def test_the_package_knows_where_engines_run(
    device: Device, abilities: dict[str, dict[str, Any]], figures: Figures
) -> None:
    """``Backend.runs_on`` is a table, made from other GPUs: here it is held against this one."""
    if DRY:
        # Without a GPU nothing runs, and TensorRT builds for all that it knows.
        assert not any(can_run(abilities, target) for target in abilities)
        assert abilities["default"]["built"]
        return
    believed = find_backend("tensorrt_rtx").runs_on(gpus()[0])
    really = can_run(abilities, "default")
    figures.say(f"engines run on {device.capability}: {really}; the package says {believed}")
    assert believed == really, f"TensorRT says: {words(abilities, 'default')}"
    result = finished(Build(MLP)).result
    assert result is not None
    noted = [note for note in result.notes if "will not run on this machine's GPU" in note]
    assert bool(noted) == (not really)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_target_current_builds_or_says_why_not(
    executor: str, device: Device, abilities: dict[str, dict[str, Any]], figures: Figures
) -> None:
    build = finished(Build(MLP, target="current", executor=executor))
    assert build.result is not None
    error = build.result.error
    said = "builds" if error is None else f"{type(error).__name__}: {error.cause}"
    figures.say(f"target='current', {executor}: {said}")
    if can_run(abilities, "current"):
        assert error is None, error
        assert build.result.engine_bytes
        return
    # TensorRT cannot have this GPU run what it builds, and so the build is not begun.
    assert isinstance(error, OptionRejected), repr(error)
    assert error.remedy
    if DRY:
        assert "needs a GPU" in error.cause
    else:
        assert device.name in error.cause
        assert device.capability in error.cause
        assert "SM86" in error.remedy
    with pytest.raises(OptionRejected, match="current"):
        build.wait()


def test_the_command_line_says_it_too(tmp_path: Path, abilities: dict[str, dict[str, Any]]) -> None:
    model, engine = tmp_path / "mlp.onnx", tmp_path / "mlp.engine"
    model.write_bytes(MLP.SerializeToString())
    command = [sys.executable, "-m", "trt_widget", "build", str(model), "-o", str(engine)]
    done = subprocess.run(
        [*command, "--useGpu", "--progress", "lines"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode == 0) == can_run(abilities, "current"), done.stderr
    assert engine.exists() == (done.returncode == 0)
    if done.returncode:
        # The option is called as the command line calls it, or by its name in Python.
        assert "current" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_tensorrt_itself_says_reaches_the_user(
    executor: str, abilities: dict[str, dict[str, Any]], figures: Figures
) -> None:
    """Past the package's own check: an engine, or a typed error with TensorRT's own words."""
    died = abilities["current"].get("died")
    if died and executor == "thread":
        pytest.skip(f"TensorRT would end this process as it ended its own: {died}")
    build = finished(Build(MLP, configure=for_this_gpu, executor=executor))
    result = build.result
    assert result is not None
    built = abilities["current"].get("built", False)
    assert (result.status == "succeeded") == built, (result.error, abilities["current"])
    if built:
        assert result.engine_bytes
        figures.say(f"asked past the package, {executor}: an engine")
        return
    error = result.error
    assert isinstance(error, BuildFailed)
    figures.say(f"asked past the package, {executor}: {type(error).__name__}: {error.cause}")
    check_refusal(error, abilities["current"])
    if DRY:
        assert "no NVIDIA driver" in error.cause


#: Builds as it is told, then has a fork start CUDA; prints how that ended.
FORKS = """
import os, sys
from tests import models
from tests.gpu.device import Cuda
from trt_widget import Build, BuildWidget

executor = sys.argv[1]
if executor != "none":
    for make in (Build, BuildWidget):
        build = make(models.mlp(), executor=executor).start()
        build.wait(60)
        assert build.result.device
pid = os.fork()
if pid == 0:
    try:
        Cuda()
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
    os._exit(0)
print("refused" if os.waitpid(pid, 0)[1] else "started")
"""


@pytest.mark.skipif(DRY, reason="needs CUDA")
@pytest.mark.parametrize("executor", ["none", *EXECUTORS])
def test_a_notebook_that_watches_a_child_does_not_lose_cuda_in_its_forks(
    executor: str, figures: Figures
) -> None:
    """Data loaders fork, say. A build in a thread starts CUDA here, by asking for the GPUs."""
    said = lines_of(FORKS, executor)
    figures.say(f"CUDA in a fork after builds by executor {executor}: {' '.join(said)}")
    assert said[-1] == ("refused" if executor == "thread" else "started"), said


#: A notebook with PyTorch: its tensors live on the GPU while builds run in both executors.
TORCH = """
import json, torch
from tests import models
from trt_widget import Build

made = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
for executor in ("process", "thread"):
    build = Build(models.mlp(), executor=executor).start()
    while build.result is None:
        made = made * 1.5 / 1.5
    build.wait(60)
    cancelled = Build(models.transformer(8), executor=executor).start()
    cancelled.request_cancel()
    cancelled.wait_ended(60)
    assert cancelled.result.status == "cancelled"
torch.cuda.synchronize()
right = torch.arange(1 << 20, dtype=torch.float32)
print(json.dumps([
    bool(torch.allclose(made.cpu(), right, rtol=1e-3)),
    build.result.device,
    torch.cuda.get_device_name(0),
]))
"""


@pytest.mark.skipif(DRY, reason="needs CUDA")
def test_builds_beside_pytorch_on_the_same_gpu() -> None:
    pytest.importorskip("torch", reason="PyTorch is missing")
    same, device, name = json.loads(lines_of(TORCH)[-1])
    assert same
    assert device == name


def check_refusal(error: BuildFailed, told: dict[str, Any]) -> None:
    """Hold an error against what TensorRT did by itself: it died, took no such target, or spoke."""
    assert isinstance(error, BuildCrashed) == bool(told.get("died"))
    # A target that is not taken is refused in our own function, before TensorRT builds: what to do
    # about that, nobody else can say.
    assert isinstance(error, ConfigureFailed) == bool(told.get("refused")), (error, told)
    if told.get("refused"):
        assert told["refused"] in error.cause
        return
    assert error.cause
    assert error.remedy
    if not told.get("died"):
        assert error.messages, "TensorRT's words are missing"
        words_alone = [text.partition(": ")[2] for text in told.get("build_words", ())]
        assert set(error.messages) & set(words_alone), (error.messages, words_alone)
        assert error.messages[0][:500] in str(error)


def finished(build: Build) -> Build:
    """Start a build and give it when it has ended."""
    build.start()
    build.wait_ended(100)
    return build
