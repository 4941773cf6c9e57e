"""A Python of its own: what it imports from where, and that CUDA stays untouched here."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from tests.cuda_driver import NO_DEVICE, ONE_DEVICE, Driver
from trt_widget.backend import Gpu, gpus
from trt_widget.executors import isolation
from trt_widget.executors.isolation import (
    gpus_apart,
    known_gpus,
    learn_gpus,
    python_command,
    search_paths,
    what_is_visible,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_notebooks_folder_comes_late_and_pythons_library_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(elsewhere), *sys.path])
    early, late = search_paths()
    assert str(tmp_path) not in early
    assert str(elsewhere) in early
    assert "" not in late
    assert late.index(str(tmp_path)) < late.index(str(elsewhere))
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    for paths in (early, late):
        real = [os.path.realpath(path) for path in paths]
        assert real.index(library) < real.index(os.path.realpath(elsewhere))


def test_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert search_paths()[0]


def test_a_stray_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "secrets", "sitecustomize", "trt_widget"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "import secrets, trt_widget; print(sys.argv[2], trt_widget.__version__)"
    done = subprocess.run(
        python_command(code, "x"), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("x ")


def test_the_gpus_are_the_same_when_they_are_asked_for_apart() -> None:
    assert gpus_apart() == gpus()


def test_cuda_is_not_started_here_by_asking(tmp_path: Path) -> None:
    driver = Driver(tmp_path, answer=ONE_DEVICE)
    code = (
        "import os; from trt_widget.executors.isolation import gpus_apart; "
        "print(os.getpid(), [gpu.name for gpu in gpus_apart()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=driver.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    pid, names = done.stdout.strip().split(" ", 1)
    assert names == "['compiled']"
    assert [started.pid == int(pid) for started in driver.started()] == [False]


@pytest.mark.parametrize(
    ("answer", "chosen"), [(ONE_DEVICE, "tensorrt"), (NO_DEVICE, "tensorrt_rtx")]
)
def test_nor_by_choosing_the_package(answer: int, chosen: str, tmp_path: Path) -> None:
    """Full TensorRT is a stand-in: which of the two it is depends on whether there is a GPU."""
    (tmp_path / "tensorrt.py").write_text("class Builder: ...\nclass IProgressMonitor: ...\n")
    driver = Driver(tmp_path, answer=answer)
    code = (
        "import os; from trt_widget.backend import find_backend; "
        "print(os.getpid(), find_backend().name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**driver.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    pid, name = done.stdout.split()
    assert name == chosen
    # Where there is no GPU, CUDA has nothing to start here either.
    apart = [started.pid != int(pid) for started in driver.started()]
    assert apart == ([True] if answer == ONE_DEVICE else [True, False])


GPU = (0, "a GPU", "SM90", "GPU-1", 132, 1 << 37)


@pytest.mark.parametrize(
    "found",
    [
        None,
        3,
        [],
        [3],
        ["a GPU"],
        [[]],
        [[0, None, "SM90"]],
        [["0", "a GPU", "SM90"]],
        [[-1, "a GPU", "SM90"]],
        [[*GPU, "one more"]],
        [GPU, [1]],
        [[True, "a GPU", "SM90"]],
        [[0, "a GPU", "SM"]],
        [[0, "a GPU", "SM00"]],
        [[0, "a GPU", "SM9٣"]],
        [[0, "a GPU" * 1000, "SM90"]],
        [[0, "a GPU", "SM90", "", 1, 10**400]],
        [GPU] * 2000,
    ],
)
def test_what_is_no_list_of_gpus_is_not_learned(
    found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_answers", {})
    learn_gpus(what_is_visible(), found)
    assert isolation._answers == {}


def test_gpus_are_learned_by_what_was_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_answers", {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    learn_gpus(what_is_visible(), [list(GPU)])
    assert known_gpus(what_is_visible()) == (Gpu(*GPU),)
    for name, value in (("CUDA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            assert known_gpus(what_is_visible()) == ()
