"""A Python of its own: isolated from the notebook's folder and from this process's CUDA.

``-I`` keeps the working directory, the script's folder and ``PYTHON*`` variables out until our own
modules are imported: a ``json.py`` that lies beside the notebook must not be taken for Python's.
``sys.path`` is handed over explicitly instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from trt_widget.backend import Gpu, cuda_library, gpus

__all__ = ["gpus_apart", "python_command", "search_paths"]

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
_GPUS = "from trt_widget.backend import gpus; print(json.dumps(gpus()))"
#: Starting CUDA takes seconds on a machine with many GPUs.
_PATIENCE_S = 60.0


def python_command(code: str, *arguments: str) -> list[str]:
    """Give the command that runs ``code`` in isolation; ``arguments`` begin at ``sys.argv[2]``."""
    early = json.dumps(search_paths()[0])
    return [sys.executable, "-I", "-u", "-c", _BOOT + code, early, *arguments]


def search_paths() -> tuple[list[str], list[str]]:
    """Give ``sys.path`` for such a Python: for our own modules, and later for the user's code.

    Returns
    -------
    tuple of two lists
        Both begin with Python's own library. The first has none of the folders in which a
        stranger's module may lie (the working directory, the script's folder); the second has all
        that this process has, in its order.
    """
    import trt_widget

    ours = str(Path(trt_widget.__file__).resolve().parent.parent)
    stdlib = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    stdlib |= {os.path.realpath(p) for p in sys.path if p.endswith((".zip", "lib-dynload"))}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        here = os.getcwd()  # noqa: PTH109 - plain text is compared
    except OSError:  # it was removed
        here = os.sep
    suspicious = {os.path.realpath(here)}
    if main:
        suspicious.add(os.path.realpath(Path(main).parent))
    first: list[str] = []
    installed: list[str] = []
    everything: list[str] = []
    for entry in sys.path:
        full = os.path.join(here, entry) if entry else here  # noqa: PTH118 - it may not exist
        real = os.path.realpath(full)
        if real in stdlib:
            first.append(full)
            continue
        everything.append(full)
        if real not in suspicious:
            installed.append(full)
    if ours not in {os.path.realpath(entry) for entry in installed}:
        installed.append(ours)
    return [*first, *installed], [*first, *everything]


def gpus_apart() -> tuple[Gpu, ...]:
    """Give :func:`~trt_widget.backend.gpus` without starting CUDA in this process.

    CUDA that was started once cannot be used in later forks of the process: a notebook that only
    watches a child build must not lose that. Empty also where the question fails.
    """
    if gpus.cache_info().currsize:
        return gpus()
    return _ask(os.environ.get("CUDA_VISIBLE_DEVICES"))


@lru_cache(maxsize=4)
def _ask(_visible: str | None) -> tuple[Gpu, ...]:
    if cuda_library() is None:
        return ()
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter and code
            python_command(_GPUS),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        ).stdout
        return tuple(Gpu(*entry) for entry in json.loads(answer))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return ()
