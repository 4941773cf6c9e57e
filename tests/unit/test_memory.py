from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from trt_widget import _memory
from trt_widget._memory import MemoryWatch, memory_limit_bytes, oom_kills, peak_memory

if TYPE_CHECKING:
    import pytest

MEGABYTE = 1_000_000


def python(script: str, *args: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    ).stdout


# ---- the peak -----------------------------------------------------------------------------------


def test_the_peak_stays_when_the_memory_has_gone() -> None:
    script = """
from trt_widget._memory import peak_memory
before = peak_memory()
block = b"x" * 300_000_000
del block
import psutil
print(before, peak_memory(), psutil.Process().memory_info().rss)
"""
    before, peak, now = map(int, python(script).split())
    assert peak - before > 250 * MEGABYTE
    assert peak - now > 250 * MEGABYTE


def test_the_peak_of_a_child_is_its_own() -> None:
    # ru_maxrss would count the parent's memory from before the exec.
    script = """
import subprocess, sys
block = b"x" * 300_000_000
program = "from trt_widget._memory import peak_memory; print(peak_memory())"
subprocess.run([sys.executable, "-c", program], check=True)
"""
    assert 1 * MEGABYTE < int(python(script)) < 200 * MEGABYTE


def test_this_process_has_a_peak() -> None:
    peak = peak_memory()
    assert peak is not None
    assert peak >= psutil.Process().memory_info().rss * 0.5


def test_another_process_is_watched_until_it_has_gone() -> None:
    script = """
import sys
print("small", flush=True); sys.stdin.readline()
block = b"x" * 300_000_000
del block
print("was large", flush=True); sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        watch = MemoryWatch(child.pid)
        assert child.stdout.readline() == "small\n"
        watch.sample()
        small = watch.peak_bytes
        assert small is not None
        assert 1 * MEGABYTE < small < 200 * MEGABYTE
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "was large\n"
        watch.sample()  # on Linux the peak is seen although nobody looked in time
        large = watch.peak_bytes
        assert large is not None
        assert large - small > 250 * MEGABYTE
        child.kill()
        deadline = time.monotonic() + 30
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        watch.sample()  # a zombie has no memory
        assert watch.peak_bytes == large
        child.wait()
        watch.sample()
        assert watch.peak_bytes == large
    late = MemoryWatch(child.pid)
    late.sample()
    assert late.peak_bytes is None


# ---- limits -------------------------------------------------------------------------------------


def test_a_limit_of_the_address_space() -> None:
    script = """
import resource
from trt_widget._memory import memory_limit_bytes
before = memory_limit_bytes()
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, resource.RLIM_INFINITY))
after = memory_limit_bytes()
assert after == min(1 << 40, before or 1 << 62), (before, after)
resource.setrlimit(resource.RLIMIT_AS, (400_000_000, resource.RLIM_INFINITY))
print(memory_limit_bytes())
"""
    assert python(script) == "400000000\n"


def test_this_machine_can_be_asked() -> None:
    limit = memory_limit_bytes()
    assert limit is None or limit > 10 * MEGABYTE
    kills = oom_kills()
    assert kills is None or kills >= 0


# What follows stands for the control groups that this machine does not have: files in the form that
# the kernel's documentation gives (cgroup-v2.rst, cgroup-v1/memory.rst).


def groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str]
) -> None:
    monkeypatch.setattr(_memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(_memory, "_CGROUPS", tmp_path / "cgroup")
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


def test_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "cgroup/cgroup.controllers": "cpu memory\n",
        "cgroup/user.slice/memory.max": "2000000000\n",
        "cgroup/user.slice/kernel.scope/memory.max": "max\n",
        "cgroup/user.slice/kernel.scope/memory.events": "low 0\nmax 3\noom 2\noom_kill 1\n",
        "cgroup/user.slice/memory.events": "low 0\nmax 3\noom 2\noom_kill 7\n",
    }
    groups(tmp_path, monkeypatch, "0::/user.slice/kernel.scope\n", files)
    assert memory_limit_bytes() == 2_000_000_000  # the outer one counts too
    assert oom_kills() == 1
    (tmp_path / "cgroup/user.slice/kernel.scope/memory.max").write_text("1000000000\n")
    assert memory_limit_bytes() == 1_000_000_000


def test_version_2_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The path is the host's, and the container's own group is what is mounted.
    files = {
        "cgroup/cgroup.controllers": "cpu memory\n",
        "cgroup/memory.max": "3000000000\n",
        "cgroup/memory.events": "oom_kill 4\noom_group_kill 0\n",
    }
    groups(tmp_path, monkeypatch, "0::/system.slice/docker-1234.scope\n", files)
    assert memory_limit_bytes() == 3_000_000_000
    assert oom_kills() == 4


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/unified/cgroup.controllers": "\n",
    }
    groups(tmp_path, monkeypatch, "9:name=systemd:/\n4:memory:/job\n1:cpu:/\n0::/\n", files)
    assert memory_limit_bytes() is None
    assert oom_kills() == 5
    (tmp_path / "cgroup/memory/memory.limit_in_bytes").write_text("4000000000\n")
    assert memory_limit_bytes() == 4_000_000_000


def test_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(tmp_path, monkeypatch, "", {})
    assert memory_limit_bytes() is None
    assert oom_kills() is None
    assert peak_memory() is None
    watch = MemoryWatch(os.getpid())
    watch.sample()  # psutil still answers
    assert watch.peak_bytes
