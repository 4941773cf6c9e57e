"""``trt-widget check``: whether the TensorRT that is installed does what is relied upon here."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from trt_widget import __version__
from trt_widget._checks import CHECKS, FAILED, NOT_RUN, OK
from trt_widget._scrub import scrub
from trt_widget._text import line
from trt_widget.backend import BACKEND_NAMES, cuda_library, processor_name
from trt_widget.commands import views
from trt_widget.commands.views import or_nowhere, say
from trt_widget.errors import OptionError
from trt_widget.executors.isolation import gpus_apart, python_command
from trt_widget.options import check_output
from trt_widget.record import save_as

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import TextIO

    from trt_widget._checks import Check

__all__ = ["run"]

#: The version of the file that is written.
FORMAT: Final = 1
#: Seconds within which the pipes of a process that was killed are at their end.
_LEAVE_S: Final = 5.0
_CHILD: Final = "from trt_widget._checks import main; main()"
#: Characters of what is shown of a check, and of what is kept of a crash's last words.
_LONGEST: Final = 500
_LAST_WORDS: Final = 2_000
#: Packages whose versions a report has, besides TensorRT's own.
_PACKAGES: Final = ("tensorrt", "tensorrt-rtx", "tensorrt-cu12", "tensorrt-cu13", "onnx", "numpy")


def run(arguments: argparse.Namespace) -> int:
    """Check, and give the exit code."""
    if not (math.isfinite(arguments.limit) and arguments.limit > 0):
        raise OptionError("--limit is not a number of seconds above zero.", "Leave it out.")
    if arguments.json is not None:
        check_output(arguments.json)  # before minutes have passed
    with contextlib.ExitStack() as stack:
        out = or_nowhere(sys.stdout, stack)
        # Ended by another signal than that of Ctrl-C, it ends what it has started, too.
        for number in filter(None, (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
                stack.callback(signal.signal, number, signal.SIG_DFL)
        report = {"format": FORMAT, "trt_widget": __version__, **_machine()}
        for said in _about(report):
            say(said, out)
        names = BACKEND_NAMES if arguments.backend is None else (arguments.backend,)
        report["packages"] = {name: _check_package(name, arguments.limit, out) for name in names}
        results = [result for found in report["packages"].values() for result in found]
        failed = sum(result["status"] == FAILED for result in results)
        built = any(result["status"] == OK and result["check"] != "import" for result in results)
        say("", out)
        say(_conclusion(failed, built=built), out)
        if arguments.json is not None:
            path = Path(arguments.json)
            _save(report, path)
            say(f"To report it, open an issue of the project with the file {line(path.name)}.", out)
        else:
            again = "run this again with --json FILE and open an issue of the project with the file"
            say(f"To report it, {again}.", out)
    return views.SUCCEEDED if built and not failed else views.FAILED


def _conclusion(failed: int, *, built: bool) -> str:
    if failed:
        return f"{failed} check{'s' if failed > 1 else ''} failed."
    if not built:
        return "Nothing could be built here: install a TensorRT, or see above why it was not run."
    return "All that could be run here is as it should be."


def _save(report: dict[str, Any], path: Path) -> None:
    data = json.dumps(report, indent=1).encode("ascii")
    save_as("report", gzip.compress(data) if path.suffix == ".gz" else data, path)


# ---- the machine --------------------------------------------------------------------------------


def _machine() -> dict[str, Any]:
    """Give what may matter of the machine; nothing that tells whose it is."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": processor_name(),
        "installed": versions,
        "driver": _driver_version(),
        "cuda": _cuda_version(),
        "gpus": [
            {"name": gpu.name, "compute_capability": gpu.compute_capability, "memory": gpu.memory}
            for gpu in gpus_apart()
        ],
    }


def _driver_version() -> str | None:
    """Give the version of NVIDIA's driver; None where it is not to be had."""
    with contextlib.suppress(OSError):
        return (
            Path("/sys/module/nvidia/version").read_text(encoding="ascii", errors="replace").strip()
        )
    return None


def _cuda_version() -> str | None:
    """Give the newest CUDA that the driver serves, without starting CUDA; None without a driver."""
    import ctypes

    library, version = cuda_library(), ctypes.c_int(0)
    try:
        if library is None or library.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except AttributeError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _about(report: dict[str, Any]) -> list[str]:
    """Say what is checked where."""
    driver = f"driver {report['driver'] or 'of unknown version'} (CUDA {report['cuda']})"
    gpus = [f"{gpu['name']} ({gpu['compute_capability']})" for gpu in report["gpus"]]
    return [
        f"trt-widget {report['trt_widget']}, Python {report['python']}, {report['platform']}",
        "no NVIDIA driver"
        if report["cuda"] is None
        else f"{', '.join(gpus) or 'no GPU'}, {driver}",
    ]


# ---- the checks ---------------------------------------------------------------------------------


def _check_package(package: str, limit: float, out: TextIO) -> list[dict[str, Any]]:
    """Run all checks of a package; only the first where it cannot be imported."""
    say("", out)
    results: list[dict[str, Any]] = []
    for check in CHECKS:
        with _announced(check, out):
            found = _run_apart(check, package, limit)
        if not results:
            say(f"{package} {found.get('version', '')}".rstrip(), out)
        results.append({"check": check.name, **found})
        seen = line(str(found["seen"]), _LONGEST)
        say(f"  {found['status']:<8}{check.title}: {seen} ({found['seconds']:.1f} s)", out)
        if check.name == "import" and found["status"] != OK:
            break
    return results


@contextlib.contextmanager
def _announced(check: Check, out: TextIO) -> Iterator[None]:
    """Say in a terminal what runs, on a line that goes away."""
    terminal = out.isatty()
    if terminal:
        print(f"  …       {check.title}", end="", file=out, flush=True)
    try:
        yield
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=out, flush=True)


def _run_apart(check: Check, package: str, limit: float) -> dict[str, Any]:
    """Run a check in a process of its own, which may crash or hang."""
    begun = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        python_command(_CHILD, check.name, package),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A build of a check is no experience, and is really made.
        env={**os.environ, "TRT_WIDGET_HISTORY": "off", "TRT_WIDGET_ENGINES": "off"},
    )
    try:
        answer, printed = process.communicate(timeout=limit)
        found = _read(process.returncode, answer, printed)
    except subprocess.TimeoutExpired:
        found = {"status": FAILED, "seen": f"it did not end within {limit:g} s", "events": []}
    finally:
        _end(process)
    found["seconds"] = round(time.monotonic() - begun, 3)
    scrubbed: dict[str, Any] = scrub(found)
    return scrubbed


def _read(code: int, answer: bytes, printed: bytes) -> dict[str, Any]:
    """Give the answer of a process, or what its end says."""
    with contextlib.suppress(ValueError):
        found = json.loads(answer)
        if isinstance(found, dict) and found.get("status") in {OK, FAILED, NOT_RUN}:
            return found
    try:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        how = f"signal {-code}"
    lines = printed.decode("utf-8", "replace").splitlines()
    # faulthandler's list of all compiled modules, and blank lines, say nothing here.
    told = (text for text in lines if text.strip() and not text.startswith("Extension modules:"))
    tail = "\n".join(told)[-_LAST_WORDS:]
    said = f"; it printed: {tail}" if tail else ""
    return {"status": FAILED, "seen": f"its process ended by {how}{said}", "events": []}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started, and close its pipes."""
    if process.poll() is None:
        family = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_LEAVE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
