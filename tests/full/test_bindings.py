"""What the package needs of full TensorRT, asked of its real bindings."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tensorrt_rtx

from tests import models
from tests.attributes import ONLY_RTX, keywords, sources, used
from tests.full import bindings
from trt_widget import Build, ProgressMonitor, _sample, _trtexec, backend, logger, options
from trt_widget.backend import backend_of, find_backend, package_of
from trt_widget.errors import OptionError, OptionRejected, WrongBackendError
from trt_widget.events import LogMessage, expand
from trt_widget.options import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.backend import Backend


def has(trt: Any, owner: str, name: str) -> bool:
    return hasattr(getattr(trt, owner, None) if owner else trt, name)


# ---- what is used exists ------------------------------------------------------------------------


def test_every_attribute_that_is_used_exists(trt: Any) -> None:
    assert {(owner, name) for owner, name in used() if not has(trt, owner, name)} == set(ONLY_RTX)


def test_every_keyword_that_is_used_exists(trt: Any) -> None:
    found = {entry for source in sources() for entry in keywords(source)}
    assert found
    for owner, method, keyword in found:
        # The signature is the first line of what pybind11 writes.
        signature = getattr(getattr(trt, owner), method).__doc__.splitlines()[0]
        assert f" {keyword}: " in signature


def test_the_severities_are_what_the_logger_takes_them_for(trt: Any) -> None:
    severities = {name.lower(): int(n) for name, n in trt.ILogger.Severity.__members__.items()}
    assert severities.keys() == logger._LEVELS.keys()
    assert severities["warning"] == logger._WARNING
    assert sorted(severities, key=severities.__getitem__) == list(logger._LEVELS)


def test_what_hints_name_exists(trt: Any, is_10: bool) -> None:
    """Or is said to be of TensorRT 10."""
    owners = {"config": "IBuilderConfig", "network": "INetworkDefinition", "layer": "ILayer"}
    found = 0
    for hint in _trtexec._HINTS.values():
        for name, attribute in re.findall(r"\b(config|network|layer)\.(\w+)", hint):
            found += 1
            there = hasattr(getattr(trt, owners[name]), attribute)
            assert there is (is_10 or "(of TensorRT 10)" not in hint), hint
    assert found > 20


def test_the_switches_of_trtexec_are_flags(full: Backend, is_10: bool) -> None:
    named = {flag for flags, _ in _trtexec._FLAGS.values() for flag in flags}
    missing = named - set(full.builder_flags())
    assert missing == (set() if is_10 else named & options._PRECISIONS)


def test_a_switch_that_the_version_does_not_have(
    environment: dict[str, str], version: str, is_10: bool, tmp_path: Path
) -> None:
    (tmp_path / "x.onnx").write_bytes(_sample.sample_model())
    done = subprocess.run(
        [sys.executable, "-m", "trt_widget", "build", "x.onnx", "--backend", "tensorrt", "--fp16"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if is_10:  # it comes as far as to ask for a GPU
        assert done.returncode == 1
        assert f"TensorRT {version} needs a GPU to build" in done.stderr
    else:
        assert done.returncode == 2
        assert f"TensorRT {version} has no 'FP16'" in done.stderr
        assert "Convert the ONNX model instead" in done.stderr


# ---- the backend, and where 10 and 11 differ ----------------------------------------------------


def test_the_backend(trt: Any, full: Backend, version: str, is_10: bool) -> None:
    assert full == find_backend("tensorrt")
    assert (full.name, full.version, full.module) == ("tensorrt", version, trt)
    assert str(full) == f"TensorRT {version}"
    assert full.needs_gpu
    assert not full.is_rtx
    assert not full.can_target
    assert full.compute_capabilities() == ()
    assert full.device_name == "no GPU"
    assert full.runs_on(backend.Gpu(0, "any", "SM90"))
    # Its classes name the package that the bindings come in.
    assert package_of(trt.Builder) == package_of(trt.IBuilderConfig) == "tensorrt"
    assert full.strongly_typed_only is not is_10
    assert set(full.weak_flags()) == (set(backend._WEAK_FLAGS) if is_10 else set())
    assert ("EXPLICIT_BATCH" in full.network_flags()) is is_10
    assert "STRONGLY_TYPED" in full.network_flags()
    assert set(options._REFIT_FLAGS) <= set(full.builder_flags())


def test_without_a_gpu_the_other_package_is_taken(full: Backend) -> None:
    assert full.module is not tensorrt_rtx
    assert find_backend().name == "tensorrt_rtx"


def test_it_travels_to_another_process(full: Backend) -> None:
    made = BuildOptions.from_kwargs(
        {"backend": "tensorrt", "timing_cache": True, "flags": ["tf32", "refit"]}
    )
    copy = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert copy == made
    assert copy.backend.module is full.module
    assert copy.flags == ("TF32", "REFIT")
    assert copy.times_tactics


@pytest.mark.parametrize("name", sorted(options._PRECISIONS))
def test_the_flags_of_precisions_are_those_of_10(full: Backend, is_10: bool, name: str) -> None:
    given = {"backend": full, "flags": [name]}
    if is_10:
        made = BuildOptions.from_kwargs(given)
        assert made.flags == (name,)
        assert not made.strongly_typed  # such a flag makes the network a weakly typed one
        with pytest.raises(OptionError, match="cannot be used in a strongly typed network"):
            BuildOptions.from_kwargs({**given, "strongly_typed": True})
    else:
        with pytest.raises(OptionError, match=f"has no '{name}'.") as caught:
            BuildOptions.from_kwargs(given)
        assert "Convert the ONNX model instead" in caught.value.remedy


@pytest.mark.parametrize("name", ["OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"])
def test_constraints_of_precisions_are_those_of_10(full: Backend, is_10: bool, name: str) -> None:
    if is_10:
        assert not BuildOptions.from_kwargs({"backend": full, "flags": name}).strongly_typed
    else:
        with pytest.raises(OptionError, match="It has: "):
            BuildOptions.from_kwargs({"backend": full, "flags": name})


def test_weak_typing_is_a_choice_of_10(full: Backend, is_10: bool) -> None:
    assert BuildOptions.from_kwargs({"backend": full}).strongly_typed
    given = {"backend": full, "strongly_typed": False}
    if is_10:
        assert not BuildOptions.from_kwargs(given).strongly_typed
    else:
        with pytest.raises(OptionError, match=r"every network of TensorRT 11.* is strongly"):
            BuildOptions.from_kwargs(given)


def test_explicit_batch_is_a_flag_of_10(full: Backend, is_10: bool) -> None:
    given = {"backend": full, "network_flags": ["EXPLICIT_BATCH"]}
    if is_10:
        assert BuildOptions.from_kwargs(given).network_flags == ("EXPLICIT_BATCH",)
    else:
        with pytest.raises(OptionError, match="has no 'EXPLICIT_BATCH'"):
            BuildOptions.from_kwargs(given)


def test_flags_are_members_of_the_real_enumerations(trt: Any, full: Backend) -> None:
    from trt_widget.network import _network_flags

    strong = BuildOptions.from_kwargs({"backend": full})
    # A mask of bits, as create_network takes it.
    assert _network_flags(strong, full) == 1 << int(
        trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    )
    given = {"backend": full, "flags": trt.BuilderFlag.TF32}
    assert BuildOptions.from_kwargs(given).flags == ("TF32",)
    with pytest.raises(OptionError, match=r"Did you mean 'VERSION_COMPATIBLE'"):
        BuildOptions.from_kwargs({"backend": full, "flags": "VERSION_COMPATIBEL"})
    with pytest.raises(OptionError, match="exclude each other"):
        BuildOptions.from_kwargs({"backend": full, "flags": ["REFIT", "REFIT_IDENTICAL"]})


def test_a_target_is_refused(full: Backend) -> None:
    with pytest.raises(OptionError, match="is for TensorRT for RTX") as caught:
        BuildOptions.from_kwargs({"backend": full, "target": "SM86"})
    assert "builds for the GPU that it runs on" in str(caught.value)


def test_a_timing_cache_may_be_a_path(full: Backend, tmp_path: Path) -> None:
    path = tmp_path / "timing.cache"
    made = BuildOptions.from_kwargs({"backend": full, "timing_cache": path})
    assert made.timing_cache == path
    with pytest.raises(OptionError, match="are the same file"):
        BuildOptions.from_kwargs({"backend": full, "timing_cache": path, "output": path})


# ---- the monitor --------------------------------------------------------------------------------


def test_callbacks_go_through_cpp(trt: Any, full: Backend) -> None:
    monitor: Any = ProgressMonitor("tensorrt")
    base = trt.IProgressMonitor
    assert isinstance(monitor, base)
    assert package_of(monitor) == "tensorrt"
    # By the base class: its virtual function in C++, from there into ours.
    base.phase_start(monitor, "root", None, 3)
    base.phase_start(monitor, "é <leaf>", "root", 2)
    assert base.step_complete(monitor, "é <leaf>", 1) is True
    monitor.request_cancel("deadline")
    assert base.step_complete(monitor, "root", 0) is False
    base.phase_finish(monitor, "é <leaf>")
    base.phase_finish(monitor, "root")
    events = [single for event in monitor.drain() for single in expand(event)]
    assert sorted((event.kind, getattr(event, "phase", "")) for event in events) == [
        ("cancel_delivered", ""),
        ("phase_finish", "root"),
        ("phase_finish", "é <leaf>"),
        ("phase_start", "root"),
        ("phase_start", "é <leaf>"),
        ("step_complete", "root"),
        ("step_complete", "é <leaf>"),
    ]
    assert monitor.answered_false == "cancel"
    assert backend_of(monitor) == full


def test_a_chained_monitor_is_asked_too(trt: Any) -> None:
    class Stops(trt.IProgressMonitor):  # type: ignore[misc]  # no types
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[Any] = []

        def phase_start(self, *arguments: Any) -> None:
            self.heard.append(arguments)

        def phase_finish(self, *arguments: Any) -> None:
            self.heard.append(arguments)
            raise ValueError

        def step_complete(self, *arguments: Any) -> bool:
            self.heard.append(arguments)
            return False

    monitor: Any = ProgressMonitor(trt)
    other = Stops()
    monitor.chain(other)
    base = trt.IProgressMonitor
    base.phase_start(monitor, "root", None, 1)
    assert base.step_complete(monitor, "root", 0) is False
    base.phase_finish(monitor, "root")
    assert other.heard == [("root", None, 1), ("root", 0), ("root",)]
    assert monitor.answered_false == "monitor"
    assert monitor.other_errors() == ["Stops.phase_finish: ValueError()"]


@pytest.mark.usefixtures("trt")
def test_a_monitor_of_the_other_package_is_refused() -> None:
    """By us: the bindings themselves take it for theirs, in these versions."""
    rtx = ProgressMonitor("tensorrt_rtx")

    class Of(ProgressMonitor, tensorrt_rtx.IProgressMonitor):  # type: ignore[misc]  # no types
        pass

    with pytest.raises(WrongBackendError, match="of another package than tensorrt"):
        Of("tensorrt")
    with pytest.raises(WrongBackendError, match="comes from tensorrt_rtx, but"):
        backend_of(rtx, "tensorrt")


# ---- the logger ---------------------------------------------------------------------------------


def test_messages_go_through_cpp(trt: Any, full: Backend) -> None:
    made = logger.make_logger(full, origin=0.0)
    severity = trt.ILogger.Severity
    base = trt.ILogger
    base.log(made, severity.INFO, "info")
    base.log(made, severity.VERBOSE, "verbose")
    base.log(made, severity.ERROR, "Error Code 7: BuildCanceled")
    base.log(made, severity.INTERNAL_ERROR, "internal")
    events = [event for event in made.drain() if isinstance(event, LogMessage)]
    assert [(event.severity, event.message) for event in events] == [
        ("info", "info"),
        ("error", "Error Code 7: BuildCanceled"),
        ("internal_error", "internal"),
    ]
    assert [level for level, _ in made.serious()] == ["error", "internal_error"]
    loud = logger.make_logger(full, origin=0.0, verbose=True)
    base.log(loud, severity.VERBOSE, "verbose")
    assert [event.severity for event in loud.drain()] == ["verbose"]


# ---- a build ------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_build_without_a_gpu_says_what_is_missing(trt: Any, version: str, executor: str) -> None:
    build = Build(models.mlp(), backend=trt, executor=executor).start()
    with pytest.raises(OptionRejected) as caught:
        build.wait(60)
    assert caught.value.cause == (
        f"TensorRT {version} needs a GPU to build, and there is no NVIDIA driver with a GPU here."
    )
    assert "backend='tensorrt_rtx'" in caught.value.remedy


WITH_A_GPU = """
import sys
from tests import models
from trt_widget import Build
from trt_widget.errors import BuildFailed
build = Build(models.mlp(), executor=sys.argv[1]).start()
try:
    build.wait(60)
except BuildFailed as error:
    print(build.backend, build.result.status, build.result.executor, "|", error.cause)
    print(error.remedy)
"""


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_builder_that_is_none_is_a_failure_with_a_remedy(
    environment: dict[str, str], version: str, executor: str, tmp_path: Path
) -> None:
    """With a GPU full TensorRT is taken by itself; this one has no builder to give."""
    bindings.compile_driver(tmp_path)
    found = f"{environment['LD_LIBRARY_PATH']}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_GPU, executor],
        env={**environment, "LD_LIBRARY_PATH": found},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    first, remedy = done.stdout.splitlines()
    assert first.startswith(
        f"TensorRT {version} failed {executor} | TensorRT {version} could not make a builder: "
    )
    assert "nvidia-smi" in remedy
