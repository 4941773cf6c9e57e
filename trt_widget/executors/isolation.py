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
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trt_widget.backend import Gpu, cuda_library, gpus

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gpus_apart", "python_command", "search_paths"]

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
_GPUS = "from trt_widget.backend import gpus; print(json.dumps(gpus()))"
#: Starting CUDA takes seconds on a machine with many GPUs.
_PATIENCE_S = 60.0


def python_command(code: str, *arguments: str) -> list[str]:
    """Give the command that runs ``code`` in isolation; ``arguments`` begin at ``sys.argv[2]``."""
    early = json.dumps(search_paths()[0])
    quiet = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", "-u", *quiet, "-c", _BOOT + code, early, *arguments]


def _site_folders() -> list[str]:
    """Give the folders of installed packages, which are nobody's notebook folder."""
    import site

    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [*found, *site.getsitepackages(), site.getusersitepackages()]


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
    anything: list[object] = list(sys.path)
    entries = [entry for entry in anything if isinstance(entry, str)]  # as the import system does
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    stdlib |= {os.path.realpath(p) for p in entries if Path(p).name in {archive, "lib-dynload"}}
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
    suspicious -= {os.path.realpath(p) for p in _site_folders()}
    for entry in entries:
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


def gpus_apart(cancelled: Callable[[], bool] = lambda: False) -> tuple[Gpu, ...]:
    """Give :func:`~trt_widget.backend.gpus` without starting CUDA in this process.

    CUDA that was started once cannot be used in later forks of the process: a notebook that only
    watches a child build must not lose that. Empty also where the question fails, or was given up.

    Parameters
    ----------
    cancelled
        Asked meanwhile; with its True the question is given up.
    """
    if gpus.cache_info().currsize:
        return gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible not in _answers:
        answer = () if cuda_library() is None else _ask(cancelled)
        if answer is None:
            return ()
        _answers[visible] = answer
    return _answers[visible]


#: Answers by what CUDA_VISIBLE_DEVICES was.
_answers: dict[str | None, tuple[Gpu, ...]] = {}


def _ask(cancelled: Callable[[], bool]) -> tuple[Gpu, ...] | None:
    """Ask a process of its own; ``None`` where it gave no answer."""
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            python_command(_GPUS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    with process:
        deadline = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline and not cancelled():
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
            return None
        assert process.stdout is not None  # noqa: S101 - it was made with a pipe
        answer = process.stdout.read()
    try:
        return tuple(Gpu(*entry) for entry in json.loads(answer))
    except (ValueError, TypeError):
        return None
