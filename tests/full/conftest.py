"""``python -m pytest tests/full --tensorrt 11.4.0.106``: one version of full TensorRT a process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.full import bindings
from tests.run import BINDINGS

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.backend import Backend


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tensorrt", choices=BINDINGS, default=BINDINGS[-1], help="its version")


@pytest.fixture(scope="session")
def version(pytestconfig: pytest.Config) -> str:
    """Give the version of the bindings, if they are there."""
    found = str(pytestconfig.getoption("--tensorrt"))
    if not (bindings.FOLDER / found).is_dir():
        pytest.skip(
            f"the bindings of TensorRT {found} are not installed: there are none for this system "
            "or version of Python, or tests/run.py has not installed them"
        )
    return found


@pytest.fixture(scope="session")
def libraries(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the libraries that do nothing, and the package ``tensorrt``."""
    folder = tmp_path_factory.mktemp("libraries")
    bindings.compile_libraries(folder, version)
    bindings.make_package(folder)
    return folder


@pytest.fixture(scope="session")
def environment(version: str, libraries: Path) -> dict[str, str]:
    """Give the environment of a process that has this TensorRT."""
    paths = (libraries, bindings.FOLDER / version, os.getcwd())  # noqa: PTH109 - one is text
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUTF8": "1",
    }


@pytest.fixture(scope="session")
def trt(version: str, libraries: Path) -> Any:
    """Give full TensorRT, imported into this very process."""
    for library in libraries.glob("lib*.so.*"):  # the loader finds by name what is loaded already
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    sys.path[:0] = [str(libraries), str(bindings.FOLDER / version)]
    # Processes that are started from here.
    os.environ["LD_LIBRARY_PATH"] = str(libraries)
    for name in ("tensorrt", "tensorrt_bindings"):  # the stubs', which are empty
        sys.modules.pop(name, None)
    import tensorrt

    assert tensorrt.__version__ == version
    return tensorrt


@pytest.fixture(scope="session")
def full(trt: Any) -> Backend:
    """Give its backend."""
    from trt_widget.backend import find_backend

    return find_backend(trt)


@pytest.fixture(scope="session")
def is_10(version: str) -> bool:
    """Say whether it is TensorRT 10, and not 11."""
    return version.startswith("10.")
