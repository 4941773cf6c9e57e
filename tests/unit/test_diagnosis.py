"""Causes that need no builder: what is known of a process that died, and TensorRT's sentences."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from trt_widget import diagnosis

if TYPE_CHECKING:
    from trt_widget.errors import BuildCrashed

GIB = 2**30


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
            {"signal": SEGV, "messages": [("ERROR", "Unexpected exception std::bad_alloc")]},
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
    assert any("bad_alloc" in line for line in error.evidence) == ("bad_alloc" in repr(given))
    if not given.get("oom_killed"):
        assert "by the operating system" not in error.cause


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
        "The most memory it was seen to use was 3.0 GiB; its limit was 4.0 GiB."
    )
    assert "last words" in str(error)
    assert "12 MiB" in crash(exit_code=1, peak_memory_bytes=12 * 2**20).evidence[-1]


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
