"""The real Python bindings of full TensorRT, with libraries behind them that do nothing.

NVIDIA's bindings are wheels like any other; the libraries behind them are fetched from elsewhere,
and need a GPU. The bindings ask for nine functions. Libraries that have these, and answer "there is
none", let the bindings be imported: then all classes are there, and the virtual functions of those
that Python derives from are called through C++. Nothing can be built.

One process can have one version only: every version is a run of pytest of its own (tests/run.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["FOLDER", "compile_driver", "compile_libraries", "make_package"]

#: Where tests/run.py puts the bindings, a folder for each version.
FOLDER = Path(sys.prefix) / "full"

#: What the bindings ask for, by library; each answers with nothing.
_FUNCTIONS = {
    "nvinfer": (
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
        "getPluginRegistry",
    ),
    "nvinfer_plugin": ("initLibNvInferPlugins",),
    "nvonnxparser": (
        "createNvOnnxParserRefitter_INTERNAL",
        "createNvOnnxParser_INTERNAL",
        "getNvOnnxParserVersion",
    ),
}

#: The CUDA driver of a machine with one GPU.
_DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "compiled", size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 9; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = 0; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
"""


def _compile(library: Path, source: str, name: str) -> None:
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{name}")
    command = ("gcc", *flags, "-o", library, "-x", "c", "-")
    subprocess.run(command, input=source, text=True, check=True)


def compile_libraries(folder: Path, version: str, *, without: str = "") -> list[Path]:
    """Make the libraries that the bindings of ``version`` need, but for a function ``without``."""
    major = version.partition(".")[0]
    made = []
    for library, functions in _FUNCTIONS.items():
        name = f"lib{library}.so.{major}"
        body = "\n".join(f"void *{f}(void) {{ return 0; }}" for f in functions if f != without)
        _compile(folder / name, body + "\n", name)
        made.append(folder / name)
    return made


def compile_driver(folder: Path) -> None:
    """Make a CUDA driver that knows of one GPU."""
    _compile(folder / "libcuda.so.1", _DRIVER, "libcuda.so.1")


def make_package(folder: Path) -> None:
    """Make the package ``tensorrt``, which only hands the bindings on."""
    package = folder / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"
    )
