"""Causes that need no builder: what is known of a process that died, and TensorRT's sentences."""

from __future__ import annotations

import signal
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from tests import models
from trt_widget import diagnosis, errors
from trt_widget.backend import Backend, Gpu
from trt_widget.options import Source

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.errors import BuildCrashed

GIB = 2**30

#: A stand-in: full TensorRT cannot be had without a GPU. Its sentences below are from public
#: reports, whose numbers stand in diagnosis.py.
FULL = Backend("tensorrt", types.SimpleNamespace(__version__="10.9.0"))


def said(text: str) -> tuple[str, str]:
    return "ERROR", text


def crash(**given: Any) -> BuildCrashed:
    told: dict[str, Any] = {
        "name": "model.onnx",
        "signal": None,
        "exit_code": None,
        "phase": "Building engine > Optimizing graph",
        "messages": [("INFO", f"message {i}") for i in range(50)],
        "output": "",
        "peak_memory_bytes": None,
    }
    return diagnosis.explain_crash(**{**told, **given})


# Numbers as POSIX has them; the names of signals that Windows lacks are the numbers there.
KILL, SEGV, ABORT, TERMINATE = 9, 11, 6, 15


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends no process by a signal")
@pytest.mark.parametrize(
    ("given", "cause", "remedy"),
    [
        (
            {"signal": KILL, "oom_killed": True},
            "was killed by the operating system for want of memory",
            "memory limit",
        ),
        ({"signal": SEGV, "oom_killed": True}, "native library (SIGSEGV)", "To report it"),
        ({"signal": KILL}, "from outside (SIGKILL). Who did it is not known; want", "If so: Close"),
        ({"signal": KILL, "oom_killed": False}, "Who did it is not known", "dmesg"),
        ({"signal": TERMINATE}, "was ended from outside (SIGTERM)", "scheduler"),
        ({"signal": signal.SIGINT}, "was ended from outside (SIGINT)", "scheduler"),
        ({"signal": 24}, "was ended from outside (SIGXCPU)", "CPU time"),
        ({"signal": 63}, "was ended from outside (signal 63)", "scheduler"),
        ({"signal": SEGV}, "or another native library (SIGSEGV)", "To report it"),
        ({"signal": ABORT}, "or another native library (SIGABRT)", "To report it"),
        (
            {"signal": ABORT, "output": "x\nterminate: std::bad_alloc\n what(): no\n"},
            "ran out of host memory",
            "memory limit",
        ),
        (
            {"signal": SEGV, "messages": [said("Unexpected exception std::bad_alloc")]},
            "(SIGSEGV)",
            "To report it",
        ),
    ],
)
def test_what_a_signal_tells(given: dict[str, Any], cause: str, remedy: str) -> None:
    error = crash(**given)
    assert cause in error.cause
    assert remedy in error.remedy
    assert "The notebook and its variables are unharmed." in error.cause
    assert any("ended by" in line for line in error.evidence)
    counted = any("operating system counted" in line for line in error.evidence)
    assert counted == bool(given.get("oom_killed"))
    assert any("bad_alloc" in line for line in error.evidence) == ("bad_alloc" in repr(given))


@pytest.mark.parametrize(
    ("code", "cause", "remedy"),
    [
        (0xC0000005, "native library (access violation)", "To report it"),
        (0xC0000005 - 2**32, "native library (access violation)", "To report it"),
        (0xC0000099, "native library (a Windows exception)", "To report it"),
        (0xC0000017, "ran out of host memory", "memory limit"),
        (0xC0000135, "could not load a library", "PATH"),
        (0xC000013A, "from outside (Ctrl-C", "again"),
        (3, "ended itself with the code 3", "os._exit()"),
        (0, "ended itself with the code 0", "os._exit()"),
        (None, "how it ended is not known", "again"),
    ],
)
def test_what_an_exit_code_tells(code: int | None, cause: str, remedy: str) -> None:
    error = crash(exit_code=code)
    assert cause in error.cause
    assert remedy in error.remedy
    assert error.signal is None
    assert error.exit_code == code


def test_an_allocation_that_failed_before_an_exit() -> None:
    for code in (3, 0xC0000409):  # abort() with the Visual C++ runtime ends with one of them
        error = crash(exit_code=code, output="std::bad_alloc")
        assert "ran out of host memory" in error.cause
        assert error.evidence[0] == "std::bad_alloc"


def test_what_to_report_names_the_phase_and_the_version() -> None:
    error = crash(signal=SEGV, backend=FULL)
    assert "TensorRT 10.9.0" in error.remedy
    assert "the phase (Building engine > Optimizing graph)" in error.remedy


def test_a_crash_holds_what_is_known() -> None:
    error = crash(
        signal=KILL, peak_memory_bytes=3 * GIB, memory_limit_bytes=4 * GIB, output="last words"
    )
    assert error.phase == "Building engine > Optimizing graph"
    assert error.output == "last words"
    assert error.peak_memory_bytes == 3 * GIB
    assert error.messages[-1] == "message 49"
    assert len(error.messages) == 12
    assert error.evidence[-1] == (
        "The most memory it was seen to use was 3.2 GB; its limit was 4.3 GB."
    )
    assert "last words" in str(error)
    assert "12 MB" in crash(exit_code=1, peak_memory_bytes=12 * 10**6).evidence[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other exit codes for abort()")
def test_a_real_bad_alloc_in_a_real_process() -> None:
    script = (
        "import ctypes, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "library = ctypes.CDLL('libstdc++.so.6')\n"
        "library._Znwm.argtypes = [ctypes.c_size_t]\n"
        "library._Znwm(2**62)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    error = crash(signal=-ended.returncode, output=ended.stderr)
    assert error.signal == "SIGABRT"
    assert "ran out of host memory" in error.cause
    assert "bad_alloc" in error.evidence[0]


# ---- sentences of full TensorRT -----------------------------------------------------------------

NO_TACTIC = (
    "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any "
    "implementation for node {ForeignNode[/1/Constant_36_output_0.../1/Slice_4]}.)"
)
SKIPPED = (
    "UNSUPPORTED_STATE: Skipping tactic 33 due to insufficient memory on requested size of "
    "629145600 detected for tactic 0xa5a46bfbd719d757."
)
NO_ENGINE = (
    "[builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error (Assertion engine != "
    "nullptr failed. )"
)


@pytest.mark.parametrize(
    ("messages", "cause", "remedy", "evidence"),
    [
        pytest.param(
            [
                said(
                    "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of "
                    "memory)"
                ),
                ("ERROR", NO_TACTIC),
            ],
            "TensorRT ran out of GPU memory.",
            "lower workspace=",
            ["Cuda Runtime (out of memory)"],
            id="allocation",
        ),
        pytest.param(
            [
                said(
                    "2: [virtualMemoryBuffer.cpp::resizePhysical::160] Error Code 2: "
                    "OutOfMemory (no further information)"
                )
            ],
            "TensorRT ran out of GPU memory.",
            "lower workspace=",
            ["OutOfMemory"],
            id="OutOfMemory",
        ),
        pytest.param(
            [
                said(
                    "MyelinHostBuffer::allocate: Error Code 2: OutOfMemory (no further information)"
                )
            ],
            "TensorRT ran out of host memory.",
            "memory limit",
            ["MyelinHostBuffer"],
            id="host buffer",
        ),
        pytest.param(
            [("WARNING", SKIPPED), ("ERROR", NO_TACTIC), ("ERROR", NO_ENGINE)],
            "TensorRT skipped tactics for want of GPU memory, and has none left for the node "
            "{ForeignNode[/1/Constant_36_output_0.../1/Slice_4]}.",
            "nvidia-smi",
            ["Skipping tactic 33", "Could not find any implementation"],
            id="skipped tactics",
        ),
        pytest.param(
            [("ERROR", NO_TACTIC), ("ERROR", NO_ENGINE)],
            "TensorRT found no implementation for the node "
            "{ForeignNode[/1/Constant_36_output_0.../1/Slice_4]}.",
            "To report it",
            ["Could not find any implementation"],
            id="no implementation",
        ),
        pytest.param(
            [("ERROR", NO_ENGINE)],
            "TensorRT's builder stopped with an internal error.",
            "TensorRT 10.9.0",
            ["Assertion engine != nullptr failed"],
            id="assertion",
        ),
        pytest.param(
            [("INTERNAL_ERROR", "Something inside")],
            "TensorRT's builder stopped with an internal error.",
            "To report it",
            ["Something inside"],
            id="internal error",
        ),
        pytest.param(
            [
                said(
                    "IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target "
                    "GPU SM 61 is not supported by this TensorRT release.)"
                )
            ],
            "This release of TensorRT does not support the GPU (compute capability SM61).",
            "support matrix",
            ["Target GPU SM 61"],
            id="target",
        ),
        pytest.param(
            [
                said(
                    "IBuilder::buildSerializedNetwork: Error Code 3: API Usage Error "
                    "(Parameter check failed, condition: !config.getFlag(BuilderFlag::kFP16). )"
                )
            ],
            "TensorRT refused the builder flag FP16 for this network.",
            "strongly typed",
            ["kFP16"],
            id="flag",
        ),
        pytest.param(
            [
                said(
                    "If_534_OutputLayer: IIfConditionalOutputLayer inputs must have the same "
                    "shape. Shapes are [2] and [1]."
                )
            ],
            "TensorRT's builder refused the model's control flow (If, Loop or Scan).",
            "every branch",
            ["IIfConditionalOutputLayer"],
            id="control flow",
        ),
        pytest.param(
            [
                said(
                    "1: [stdArchiveReader.cpp::StdArchiveReaderInitCommon::36] Error Code 1: "
                    "Serialization (Serialization assertion magicTagRead == kMAGIC_TAG failed."
                    "Magic tag does not match)"
                ),
                said("4: The timing cache will not be used!"),
            ],
            "TensorRT refused the timing cache, and says nothing else: it is damaged, or made by "
            "another version of TensorRT or on another GPU.",
            "Delete the timing cache",
            ["kMAGIC_TAG"],
            id="damaged timing cache",
        ),
        pytest.param(
            [
                said(
                    "2: [caskBuilderUtils.cpp::getCaskHandle::408] Error Code 2: Internal Error "
                    "(Assertion !isGroupConv || x failed)"
                )
            ],
            "TensorRT's builder stopped with an internal error: it did not find a kernel by its "
            "handle. A timing cache of another GPU or another TensorRT version is known to do "
            "this.",
            "timing_cache=",
            ["getCaskHandle"],
            id="foreign timing cache",
        ),
        pytest.param(
            [said("3: getPluginCreator could not find plugin: Round version: 1")],
            "The network needs a plugin that is not loaded.",
            "plugins=[path]",
            ["Round version: 1"],
            id="plugin",
        ),
        pytest.param(
            [
                said(
                    "Internal error: could not find any implementation for node conv0_fwd, try "
                    "increasing the workspace size with IBuilder::setMaxWorkspaceSize()"
                )
            ],
            "The workspace is too small for at least one operation.",
            "Raise workspace=",
            ["conv0_fwd"],
            id="workspace",
        ),
    ],
)
def test_sentences_of_full_tensorrt(
    messages: list[tuple[str, str]], cause: str, remedy: str, evidence: list[str]
) -> None:
    error = diagnosis.explain_failure(FULL, messages)
    assert error.cause == cause
    assert remedy in error.remedy
    assert len(error.evidence) == len(evidence)
    assert all(words in line for line, words in zip(error.evidence, evidence, strict=True))
    assert list(error.messages) == [text for level, text in messages if level != "WARNING"]


def test_a_plugin_of_the_kernel_and_a_child() -> None:
    messages = [said("getPluginCreator could not find plugin: Round version: 1")]
    assert 'executor="thread"' in diagnosis.explain_failure(FULL, messages, in_child=True).remedy
    assert "executor" not in diagnosis.explain_failure(FULL, messages).remedy


@pytest.mark.parametrize(
    "words",
    [
        "Error Code 4: Internal Error (Something about the network)",
        "Error Code 3: API Usage Error (Parameter check failed, condition: x != nullptr)",
        "an {odd} sentence with {0} braces",
        "",
    ],
)
def test_what_is_not_known_keeps_tensorrts_words(words: str) -> None:
    error = diagnosis.explain_failure(FULL, [("WARNING", SKIPPED), ("ERROR", words)])
    assert type(error) is errors.BuildFailed
    assert error.cause == "TensorRT returned no engine."
    assert error.messages == (words,)
    assert error.evidence == ()


# ---- the driver ---------------------------------------------------------------------------------

TOO_OLD = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient for CUDA runtime "
    "version))"
)


class OldDriver:
    """A stand-in for libcuda of a machine with an old driver: there is no GPU here."""

    @staticmethod
    def cuDriverGetVersion(version: Any) -> int:  # noqa: N802 - CUDA's name
        version._obj.value = 12020
        return 0


@pytest.fixture
def _old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "gpus", lambda: (Gpu(0, "NVIDIA T4", "SM75"),))
    monkeypatch.setattr(diagnosis, "_driver", OldDriver)


@pytest.mark.usefixtures("_old_driver")
def test_a_driver_that_is_too_old() -> None:
    error = diagnosis.explain_failure(FULL, [("ERROR", TOO_OLD)])
    assert error.cause == (
        "The NVIDIA driver of this machine is older than the CUDA version that TensorRT 10.9.0 "
        "was made for. It serves CUDA up to 12.2."
    )
    assert "Update the driver" in error.remedy
    assert error.evidence == (TOO_OLD, "It serves CUDA up to 12.2.")


@pytest.mark.usefixtures("_old_driver")
def test_the_drivers_line_beside_another_error_is_noise() -> None:
    error = diagnosis.explain_failure(FULL, [("ERROR", NO_TACTIC), ("ERROR", TOO_OLD)])
    assert "found no implementation" in error.cause
    error = diagnosis.explain_failure(FULL, [said("unknown"), ("ERROR", TOO_OLD)])
    assert error.cause == "TensorRT returned no engine."


@pytest.mark.usefixtures("_old_driver")
@pytest.mark.parametrize(
    ("code", "cause", "remedy"),
    [
        (2, "TensorRT ran out of GPU memory.", "nvidia-smi"),
        (46, "The GPU cannot be used (cudaError 46): it is busy", "device="),
        (209, "TensorRT 10.9.0 has no code that this machine's GPU can run", "target="),
        (700, "A call to CUDA failed in the build (cudaError 700).", "start the kernel anew"),
        (4711, "A call to CUDA failed in the build (cudaError 4711).", "nvidia-smi"),
    ],
)
def test_an_error_of_cuda_beside_a_gpu(code: int, cause: str, remedy: str) -> None:
    words = f"IBuilder::x: Error Code 1: Cuda Runtime (In y at /z.cpp:1 (cudaError {code}: words))"
    error = diagnosis.explain_failure(FULL, [said("[z.cpp] unknown"), said(words)])
    assert error.cause.startswith(cause)
    assert remedy in error.remedy
    assert error.evidence == (words,)
    assert error.messages == ("[z.cpp] unknown", words)


@pytest.mark.usefixtures("_old_driver")
def test_a_gpu_that_cuda_does_not_see_any_more_is_none() -> None:
    """It was there when it was asked for: hidden since, or lost."""
    words = "IBuilder::x: Error Code 1: Cuda Runtime (In y at /z.cpp:1 (cudaError 100: none))"
    error = diagnosis.explain_failure(FULL, [said(words)])
    assert error.cause.startswith("A call to CUDA failed in the build: there is no")
    assert "with a GPU" in error.remedy
    assert error.evidence[0] == words


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("GPU memory allocation failed during initialization of layer: conv", "ran out of GPU"),
        ("Failed to allocate weight streaming device memory. Please try", "ran out of GPU"),
        ("myelin: CUDA_ERROR_OUT_OF_MEMORY", "ran out of GPU memory"),
        (
            "The engine cannot run on this GPU, which has compute capability 9.0.",
            "which has the compute capability 9.0.",
        ),
        (
            "Builder was created on a device(0) different from the current device(1)",
            "made for the GPU 0, and the GPU 1 was",
        ),
    ],
)
def test_what_the_library_says_of_a_gpu(words: str, cause: str) -> None:
    error = diagnosis.explain_failure(FULL, [said(words)])
    assert cause in error.cause
    assert error.remedy
    assert error.evidence == (words,)


def test_no_builder_for_want_of_gpu_memory() -> None:
    refused = TypeError("pybind11::init(): factory function returned nullptr")
    warning = "CUDA initialization failure with error: 2. Please check your CUDA installation"
    error = diagnosis.explain_no_builder(FULL, refused, [("WARNING", warning)])
    assert error.cause == (
        "TensorRT 10.9.0 could not make a builder. TensorRT ran out of GPU memory."
    )
    assert error.evidence == (warning,)


@pytest.mark.parametrize(
    ("library", "where"),
    [
        (False, "no NVIDIA driver here, and so no GPU"),
        (True, "no GPU here that the NVIDIA driver offers"),
    ],
)
@pytest.mark.parametrize("code", [35, 100])
def test_no_driver_or_no_gpu(
    *, library: bool, where: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "gpus", tuple)
    monkeypatch.setattr(diagnosis, "_has_driver_library", lambda: library)
    words = f"Error Code 1: Cuda Runtime (cudaError {code}: some words)"
    error = diagnosis.explain_failure(FULL, [("ERROR", words)])
    assert error.cause == f"A call to CUDA failed in the build: there is {where}."
    assert error.evidence == (words, f"There is {where}.")
    assert "backend='tensorrt_rtx'" in error.remedy


@pytest.mark.usefixtures("_old_driver")
def test_no_builder_without_a_driver_that_is_new_enough() -> None:
    refused = TypeError("pybind11::init(): factory function returned nullptr")
    warning = "CUDA initialization failure with error: 35. Please check your CUDA installation"
    error = diagnosis.explain_no_builder(FULL, refused, [("WARNING", warning)])
    assert error.cause.startswith(
        "TensorRT 10.9.0 could not make a builder. The NVIDIA driver of this machine is older"
    )
    assert error.evidence[0] == warning
    plain = diagnosis.explain_no_builder(FULL, refused, [("WARNING", "something")])
    assert plain.cause == f"TensorRT 10.9.0 could not make a builder: {refused}."
    assert plain.evidence == ()
    assert plain.messages == ("something",)


# ---- weights in other files ---------------------------------------------------------------------


def test_every_place_of_a_weight_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = models.with_external_everywhere().SerializeToString()
    path.write_bytes(data)
    source = Source("path", path, "model.onnx")
    assert diagnosis.check_external(source) is None
    names = [
        f"{number}.bin".encode() for number in range(1, 100) if f"{number}.bin".encode() in data
    ]
    assert len(names) > 50
    for name in names[::7]:
        # Of the same length, so that all the lengths around it stay right.
        path.write_bytes(
            data.replace(
                b"\x12" + bytes([len(name)]) + name, b"\x12" + bytes([len(name)]) + b"/" * len(name)
            )
        )
        refused = diagnosis.check_external(source)
        assert refused is not None
        assert "an absolute path" in refused.cause


def test_what_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = models.with_external_everywhere().SerializeToString()
    path.write_bytes(data + b"\x3a\x02\x00\x00")
    for source in (Source("path", path, "m"), Source("bytes", path.read_bytes(), "m")):
        refused = diagnosis.check_external(source)
        assert type(refused) is errors.SourceError
        assert "cannot be checked" in refused.cause
    path.write_bytes(data[:-5])
    cut = diagnosis.check_external(Source("path", path, "m"))
    assert cut is not None
    assert "m is truncated" in cut.cause


def test_what_has_no_other_files_is_not_refused(tmp_path: Path) -> None:
    plain = models.mlp()
    path = tmp_path / "model.onnx"
    for data in (plain.SerializeToString(), b"", b"hello world", b"\x3a\xff\xff"):
        path.write_bytes(data)
        assert diagnosis.check_external(Source("path", path, "m")) is None
        assert diagnosis.check_external(Source("bytes", data, "m")) is None
    assert diagnosis.check_external(Source("proto", plain, "m")) is None
    assert diagnosis.check_external(Source("callable", print, "m")) is None
    missing = diagnosis.check_external(Source("path", tmp_path / "nowhere.onnx", "m"))
    assert missing is not None
    assert "cannot be read" in missing.cause


def test_a_folder_that_only_begins_alike_is_another(tmp_path: Path) -> None:
    for name in ("model", "model2"):
        (tmp_path / name).mkdir()
    path = models.save_external(models.mlp(), tmp_path / "model" / "m.onnx", "w.bin")
    (tmp_path / "model" / "w.bin").rename(tmp_path / "model2" / "w.bin")
    (tmp_path / "model" / "w.bin").symlink_to(tmp_path / "model2" / "w.bin")
    source = Source("path", path, "m.onnx")
    refused = diagnosis.check_external(source)
    assert refused is not None
    assert str(tmp_path / "model2" / "w.bin") in refused.cause
    assert diagnosis.check_external(source, [tmp_path / "model2"]) is None
    assert diagnosis.check_external(source, [tmp_path]) is None
    assert diagnosis.check_external(source, [tmp_path / "model2" / "w.bin"]) is not None


def test_a_name_that_no_terminal_should_get(tmp_path: Path) -> None:
    path = models.save_external(models.mlp(), tmp_path / "m.onnx", "w.bin")
    path.write_bytes(path.read_bytes().replace(b"w.bin", b"\x1b[2J\xff"))
    source = Source("path", path, "m.onnx")
    assert diagnosis.check_external(source) is None
    missing = diagnosis.explain_source(source)
    assert missing is not None
    assert "missing" in missing.cause
    assert str(missing).isascii()
    assert "\x1b" not in str(missing)
