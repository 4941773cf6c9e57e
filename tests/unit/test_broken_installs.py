"""Installs of TensorRT that are broken in all the ways in which they can be."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import models
from tests.full import bindings
from tests.run import BINDINGS
from trt_widget import load_record

if TYPE_CHECKING:
    from collections.abc import Callable

NEWEST = BINDINGS[-1]
HANDS_ON = "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"
REINSTALL = "pip install --force-reinstall --no-cache-dir tensorrt."
INSTALL = 'pip install "trt-widget[rtx]"'

FIND = """
from trt_widget import Build, BuildError
from trt_widget.backend import find_backend
from trt_widget.errors import BackendNotFound
try:
    find_backend("tensorrt")
except BackendNotFound as error:
    print(error.cause)
    print(error.remedy)
chosen = find_backend()
print(chosen.name)
print(chosen.note)
assert not find_backend("tensorrt_rtx").note
"""
MODULE = """
import tensorrt
from trt_widget.backend import find_backend
from trt_widget.errors import BackendNotFound
try:
    find_backend(tensorrt)
except BackendNotFound as error:
    print(error.cause)
    print(error.remedy)
"""
# Classes as TensorRT has them.
CLASSES = "class Builder: pass\nclass IProgressMonitor: pass\n"


@dataclass(frozen=True)
class Broken:
    """A way to be broken: what makes it so in a folder, and what is said of it."""

    make: Callable[[Path], None]
    said: str
    remedy: str = REINSTALL
    needs_bindings: bool = False


def module(text: str, name: str = "tensorrt/__init__.py") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return make


def real(*, libraries: bool = False, without: str = "") -> Callable[[Path], None]:
    """Give what makes the real bindings, with or without libraries."""

    def make(folder: Path) -> None:
        bindings.make_package(folder)
        (folder / "tensorrt_bindings").symlink_to(bindings.FOLDER / NEWEST / "tensorrt_bindings")
        if libraries:
            bindings.compile_libraries(folder, NEWEST, without=without)

    return make


def emptied(folder: Path) -> None:
    """Make bindings whose compiled part is empty, as by a full disk."""
    bindings.make_package(folder)
    package = folder / "tensorrt_bindings"
    package.mkdir()
    source = bindings.FOLDER / NEWEST / "tensorrt_bindings"
    (package / "__init__.py").write_bytes((source / "__init__.py").read_bytes())
    (package / "tensorrt.so").touch()


BROKEN = {
    "no libraries": Broken(
        module("import tensorrt_libs"), "importing it failed: No module named 'tensorrt_libs'"
    ),
    # tensorrt-stubs is installed here, which has a folder of that name.
    "stubs instead of bindings": Broken(
        module(HANDS_ON), "importing it failed: cannot import name '__version__' from 'tensorrt_b"
    ),
    "a loader that does not find": Broken(
        module("raise FileNotFoundError('Could not find: nvinfer_11.dll. Is it on your PATH?')"),
        "importing it failed: Could not find: nvinfer_11.dll",
    ),
    "a loader that fails": Broken(
        module("import ctypes\nctypes.CDLL('libnvinfer.so.99')"),
        "importing it failed: libnvinfer.so.99: cannot open shared object file",
    ),
    "a placeholder that only complains": Broken(
        module("raise RuntimeError('Install it from elsewhere.')"),
        "importing it failed: Install it from elsewhere",
    ),
    "a module that says nothing": Broken(module("raise KeyError"), "importing it failed: KeyError"),
    "a module that leaves": Broken(module("raise SystemExit(3)"), "importing it failed: 3"),
    "a module with an error": Broken(module("x ="), "importing it failed: invalid syntax"),
    "a module that breaks off": Broken(
        module("class Odd(BaseException): pass\nraise Odd('gone')"), "importing it failed: gone"
    ),
    "an error without words": Broken(
        module("class Odd(OSError):\n    def __str__(self): raise self\nraise Odd"),
        "importing it failed: Odd",
    ),
    "an error whose words break off": Broken(
        module("class Odd(BaseException):\n    def __str__(self): raise self\nraise Odd"),
        "importing it failed: Odd",
    ),
    "libraries that are looked for late": Broken(
        module("def __getattr__(name): raise OSError('libnvinfer.so.11: cannot open')"),
        "importing it failed: libnvinfer.so.11: cannot open",
    ),
    "libraries that are looked for late, and missing": Broken(
        module("def __getattr__(name): import tensorrt_libs"),
        "importing it failed: No module named 'tensorrt_libs'",
    ),
    "libraries that are looked for late, and break off": Broken(
        module("def __getattr__(name): raise SystemExit('no libraries')"),
        "importing it failed: no libraries",
    ),
    "only one of its classes is there": Broken(
        module(
            "class Builder: pass\n__version__ = '11'\n"
            "def __getattr__(name): raise OSError(f'no {name}')"
        ),
        "importing it failed: no IProgressMonitor",
    ),
    "a version that cannot be said": Broken(
        module(
            f"{CLASSES}class Odd:\n    def __str__(self): raise OSError('x')\n__version__ = Odd()"
        ),
        "importing it failed: x",
    ),
    "classes that are none": Broken(
        module("__version__ = '10.0'\nBuilder = None\nIProgressMonitor = None"),
        "another module of that name, or incomplete: it has no Builder",
        INSTALL,
    ),
    "one class that is none": Broken(
        module("__version__ = '10.0'\nclass Builder: pass\nIProgressMonitor = None"),
        "10.0 has no progress monitor",
        INSTALL,
    ),
    "another module of that name": Broken(
        module("x = 1", "tensorrt.py"), "another module of that name, or incomplete", INSTALL
    ),
    "an empty folder": Broken(
        lambda folder: (folder / "tensorrt").mkdir(), "only an empty folder or type", INSTALL
    ),
    "an old version": Broken(
        module("__version__ = '8.6.1'\nclass Builder: pass\n"),
        "8.6.1 has no progress monitor, which came with TensorRT 10",
        INSTALL,
    ),
    "the real bindings without libraries": Broken(
        real(), "importing it failed: libnv", needs_bindings=True
    ),
    "the real bindings with libraries of another version": Broken(
        real(libraries=True, without="getBuilderPluginRegistry"),
        "undefined symbol: getBuilderPluginRegistry",
        needs_bindings=True,
    ),
    "the real bindings, emptied": Broken(emptied, "file too short", needs_bindings=True),
}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder), str(Path(__file__).parents[2])))
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest) -> Broken:
    found = BROKEN[request.param]
    if found.needs_bindings and not (bindings.FOLDER / NEWEST).is_dir():
        pytest.skip(f"the bindings of TensorRT {NEWEST} are not installed for this Python")
    return found


def test_it_is_one_error_of_ours_and_the_other_package_builds(
    broken: Broken, tmp_path: Path
) -> None:
    broken.make(tmp_path)
    done = run(tmp_path, "-c", FIND)
    assert done.stderr == ""
    cause, remedy, default, note = done.stdout.splitlines()
    assert cause.startswith("tensorrt cannot be used: ")
    assert broken.said in cause
    assert broken.remedy in remedy
    assert default == "tensorrt_rtx"
    if "empty folder" in broken.said:  # or type stubs: nothing that was ever to build
        assert not note
        return
    assert note.startswith("The package tensorrt is installed and cannot be used (")
    assert broken.said in note
    assert "so this is built by TensorRT for RTX 1." in note


@pytest.mark.parametrize(
    "name", ["libraries that are looked for late", "a version that cannot be said"]
)
def test_the_module_itself_can_be_given(name: str, tmp_path: Path) -> None:
    BROKEN[name].make(tmp_path)
    done = run(tmp_path, "-c", MODULE)
    assert done.stderr == ""
    cause, remedy = done.stdout.splitlines()
    assert BROKEN[name].said in cause
    assert REINSTALL in remedy


@pytest.mark.parametrize("text", ["raise {}", "def __getattr__(name): raise {}"])
def test_an_interrupt_is_no_broken_install(text: str, tmp_path: Path) -> None:
    module(text.format("KeyboardInterrupt"))(tmp_path)
    caught = "\ntry:\n    find_backend()\nexcept KeyboardInterrupt:\n    print('interrupted')"
    done = run(tmp_path, "-c", f"from trt_widget.backend import find_backend{caught}")
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_build_says_what_it_is_not_built_by(tmp_path: Path) -> None:
    BROKEN["libraries that are looked for late"].make(tmp_path)
    (tmp_path / "mlp.onnx").write_bytes(models.mlp().SerializeToString())
    build = ("-m", "trt_widget", "build", "mlp.onnx", "-o", "mlp.engine", "--progress", "lines")
    note = "The package tensorrt is installed and cannot be used (importing it failed: libnvinfer."
    done = run(tmp_path, *build, "--record", "mlp.json")
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(note) == 1
    record = load_record(tmp_path / "mlp.json")
    assert [text.startswith(note) for text in record.result.notes] == [True]
    # Whoever has chosen the package knows.
    done = run(tmp_path, *build, "--backend", "tensorrt_rtx")
    assert done.returncode == 0, done.stderr
    assert note not in done.stdout + done.stderr


def test_both_are_broken(tmp_path: Path) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        module(f"raise OSError('no {name}')", f"{name}/__init__.py")(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"never read")
    done = run(tmp_path, "-m", "trt_widget", "build", "x.onnx")
    assert done.returncode == 1
    for name in ("tensorrt", "tensorrt_rtx"):
        assert f"{name}: importing it failed: no {name}" in done.stderr
    assert "--force-reinstall --no-cache-dir tensorrt tensorrt-rtx." in done.stderr
    assert INSTALL not in done.stderr


@pytest.mark.parametrize("name", ["no libraries", "a module that leaves"])
def test_the_command_line_says_it_too(name: str, tmp_path: Path) -> None:
    BROKEN[name].make(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"never read")
    done = run(tmp_path, "-m", "trt_widget", "build", "x.onnx", "--backend", "tensorrt")
    assert done.returncode == 1
    assert done.stdout == ""
    assert BROKEN[name].said in done.stderr
    assert REINSTALL in done.stderr
    assert "Traceback" not in done.stderr
