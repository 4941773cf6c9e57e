"""``trt-widget check``: whether the TensorRT that is installed does what is relied upon here."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil

from trt_widget import __version__
from trt_widget._checks import CHECKS, FAILED, NOT_RUN, OK
from trt_widget._scrub import scrub
from trt_widget._text import line
from trt_widget.backend import BACKEND_NAMES, cuda_library, processor_name
from trt_widget.commands import views
from trt_widget.commands.views import or_nowhere, say
from trt_widget.errors import OptionError, SaveError
from trt_widget.executors.isolation import (
    Answers,
    ask_for_gpus_apart,
    own_session,
    python_command,
)
from trt_widget.executors.lifetime import chunks, end_process, has_ended, named_status
from trt_widget.record import save_as

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import IO, TextIO

    from trt_widget._checks import Check

__all__ = ["run"]

#: The version of the file that is written.
FORMAT: Final = 1
#: Seconds within which a process that was killed has ended, and its pipes are at their end.
_LEAVE_S: Final = 5.0
_CHILD: Final = "from trt_widget._checks import main; main()"
#: Characters of what is shown of a check, and of what is kept of a crash's last words.
_LONGEST: Final = 500
_LAST_WORDS: Final = 2_000
#: Bytes of what a check's process prints that are kept.
_PRINTED: Final = 16_384
#: The same once it was asked where it stands, and the lines of its answer, by faulthandler.
_PRINTED_OF_HANGS: Final = 1 << 20
_STACK: Final = re.compile(
    r"(Thread|Current thread) 0x[0-9a-f]+.*:\Z|  File .*, line \d+ in |  (\.\.\.|<.*>)\Z"
)
#: Messages of a check that are kept, half of them the latest; and other events.
_MESSAGES: Final = 2_000
_EVENTS: Final = 50_000
#: In the stack of the thread that builds.
_BUILDS: Final = '/worker.py", line '
#: Seconds that a check's process has to print the stacks of its threads.
_STACKS_S: Final = 0.3
#: Seconds between two looks at a check's process, and the most that it may be given.
_LOOK_S: Final = 0.01
_MOST_S: Final = 1_000_000
#: Seconds that the driver has to say which GPUs there are, if a check may take as long.
_PATIENCE_S: Final = 60.0
#: Packages whose versions a report has, besides TensorRT's own.
_PACKAGES: Final = ("tensorrt", "tensorrt-rtx", "tensorrt-cu12", "tensorrt-cu13", "onnx", "numpy")


def run(arguments: argparse.Namespace) -> int:
    """Check, and give the exit code."""
    _check_arguments(arguments)
    with contextlib.ExitStack() as stack:
        out = or_nowhere(sys.stderr if arguments.json == "-" else sys.stdout, stack)
        with _interrupted_once():
            return _run(arguments, out)


@contextlib.contextmanager
def _interrupted_once() -> Iterator[None]:
    """Have the first signal that ends a program raise ``KeyboardInterrupt``, and no later one.

    Wrappers pass on what the terminal has sent to both, and people press Ctrl-C more than once: the
    report is to be written all the same. After it the process ends, so nothing is put back then.
    """
    came: list[int] = []

    def come(number: int, _frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before = {}
    for number in filter(
        None, (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    ):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            before[number] = signal.signal(number, come)
    try:
        yield
    finally:
        if not came:
            for number, handler in before.items():
                signal.signal(number, handler)


def _check_arguments(arguments: argparse.Namespace) -> None:
    if not (math.isfinite(arguments.limit) and arguments.limit > 0):
        raise OptionError("--limit is not a number of seconds above zero.", "Leave it out.")
    if arguments.limit > _MOST_S:
        raise OptionError(f"--limit is more than {_MOST_S:,} seconds.", "Leave it out.")
    if arguments.json == "-" and sys.stdout is None:
        raise OptionError("--json -: there is no standard output.", "Name a file.")
    if arguments.json not in {None, "-"}:
        views.checked_file("json", "report", arguments.json)  # before minutes have passed


def _run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Check, tell it, write the report, and give the exit code."""
    report: dict[str, Any] = {"format": FORMAT, "trt_widget": __version__, **_machine()}
    packages: dict[str, list[dict[str, Any]]] = {}
    report |= {"gpus": None, "interrupted": False, "packages": packages}
    say(_about(report), out)
    checks = _Checks(arguments.limit, out)
    names = BACKEND_NAMES if arguments.backend is None else (arguments.backend,)
    try:
        report["gpus"] = checks.gpus()
        say(_about_gpus(report), out)
        for name in names:
            checks.run(name, packages.setdefault(name, []))
    except KeyboardInterrupt:
        report["interrupted"] = True
    results = [result for found in packages.values() for result in found]
    failed = sum(result["status"] == FAILED for result in results)
    built = any(result["status"] == OK and result["check"] != "import" for result in results)
    say("", out)
    say(_conclusion(failed, built=built, interrupted=report["interrupted"]), out)
    for name, found in packages.items():
        if found and found[0]["status"] == NOT_RUN and not report["interrupted"]:
            say(f"{name} was not checked: {line(str(found[0]['seen']), _LONGEST)}.", out)
    _report(report, arguments.json, out)
    if report["interrupted"]:
        return views.CANCELLED
    return views.SUCCEEDED if built and not failed else views.FAILED


def _conclusion(failed: int, *, built: bool, interrupted: bool) -> str:
    if interrupted:
        before = f", {failed} of the checks before it failed" if failed else ""
        return f"Interrupted{before}."
    if failed:
        return f"{failed} check{'s' if failed > 1 else ''} failed."
    if not built:
        return "Nothing could be built here: install a TensorRT, or see above why it was not run."
    return "All that could be run here is as it should be."


def _report(report: dict[str, Any], target: str | None, out: TextIO) -> None:
    """Write the report, if it is asked for, and say where it goes."""
    if target is None:
        again = "run this again with --json FILE and open an issue of the project with the file"
        say(f"To report it, {again}.", out)
        return
    text = json.dumps(report, indent=1)
    if target == "-":
        try:
            print(text, flush=True)  # noqa: T201 - it is asked for there
        except OSError as error:
            raise SaveError(
                f"The report could not be written to standard output: {error}.",
                "Name a file.",
                error=error,
            ) from error
        return
    path, data = Path(target), text.encode("ascii")
    save_as("report", gzip.compress(data) if path.suffix.lower() == ".gz" else data, path)
    say(
        f"To report it, look at the file {line(path.name)}, and open an issue of the project with "
        "it.",
        out,
    )


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


def _about(report: dict[str, Any]) -> str:
    """Say what is checked where."""
    return f"trt-widget {report['trt_widget']}, Python {report['python']}, {report['platform']}"


def _about_gpus(report: dict[str, Any]) -> str:
    """Say which GPUs there are, if that is known."""
    if report["cuda"] is None:
        return "no NVIDIA driver"
    if report["gpus"] is None:
        gpus = "GPUs not known (the driver does not answer)"
    else:
        names = [f"{gpu['name']} ({gpu['compute_capability']})" for gpu in report["gpus"]]
        gpus = ", ".join(names) or "no GPU"
    return f"{gpus}, driver {report['driver'] or 'of unknown version'} (CUDA {report['cuda']})"


# ---- the checks ---------------------------------------------------------------------------------


class _Checks:
    """Runs the checks.

    Parameters
    ----------
    limit
        Seconds that each may take.
    out
        Where it is told.
    """

    def __init__(self, limit: float, out: TextIO) -> None:
        self._limit = limit
        self._out = out
        #: Whether the driver has said which GPUs there are, and whether a build waited for it.
        self._answers = True
        self._hangs = False
        self._interrupted = False

    def gpus(self) -> list[dict[str, Any]] | None:
        """Give the GPUs; None where the driver does not answer."""
        with _announced("asking for the GPUs", self._out):
            found = ask_for_gpus_apart(patience=min(_PATIENCE_S, self._limit))
        self._answers = found is not None
        if found is None:
            return None
        return [
            {"name": gpu.name, "compute_capability": gpu.compute_capability, "memory": gpu.memory}
            for gpu in found
        ]

    def run(self, package: str, results: list[dict[str, Any]]) -> None:
        """Run all checks of a package; only the first where it cannot be imported.

        ``results`` is added to. One of a check that was interrupted is the last of them, and the
        ``KeyboardInterrupt`` comes then.
        """
        out = self._out
        say("", out)
        for check in CHECKS:
            found = self._run(check, package)
            if not results:
                say(f"{package} {found.get('version', '')}".rstrip(), out)
            results.append({"check": check.name, **found})
            seen = line(str(found["seen"]), _LONGEST)
            say(f"  {found['status']:<8}{check.title}: {seen} ({found['seconds']:.1f} s)", out)
            if self._interrupted:
                raise KeyboardInterrupt
            if check.name == "import" and found["status"] != OK:
                break

    def _run(self, check: Check, package: str) -> dict[str, Any]:
        if check.builds and self._hangs:
            seen = "the driver does not answer"
            return {"status": NOT_RUN, "seen": seen, "events": [], "seconds": 0.0}
        begun = time.monotonic()
        with _announced(check.title, self._out):
            found, how = _run_apart(check, package, self._limit)
        self._interrupted = how == "interrupted"
        if check.builds and not self._answers and how == "too late":
            self._hangs = True
            found["seen"] = f"the driver does not answer: {found['seen']}"
        seconds = round(time.monotonic() - begun, 3)
        return {**scrub(found), "seconds": seconds}


@contextlib.contextmanager
def _announced(text: str, out: TextIO) -> Iterator[None]:
    """Say in a terminal what runs, on a line that goes away."""
    columns = _columns(out)
    if columns:
        _show(f"  …       {text}"[: columns - 1], out)
    try:
        yield
    finally:
        if columns:
            _show("\r\x1b[K", out)


def _columns(out: TextIO) -> int:
    """Give the width of a terminal that can erase a line; 0 where there is none."""
    try:
        if not out.isatty() or os.environ.get("TERM") in {"dumb", "unknown"}:
            return 0
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):  # it has gone
        return 0


def _show(text: str, out: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, end="", file=out, flush=True)


# ---- the process of a check ---------------------------------------------------------------------


class _Heard:
    """What comes of a check's process: what it came to, its events, the end of what it prints.

    Attributes
    ----------
    found
        What the check came to; None while that is not said.
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None
        self.answers = Answers(self._take)
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._latest: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MESSAGES // 2)
        self._count = self._messages = 0
        self._printed = b""
        self._is_cut = False
        self._asked_where = False

    def _take(self, value: Any) -> None:
        match value:
            case {"event": {"event": kind} as event}:
                self._keep(kind, event)
            case {"status": "ok" | "failed" | "not run", "seen": str()}:
                self.found = value

    def _keep(self, kind: object, event: dict[str, Any]) -> None:
        """Keep an event: of messages the first and the latest."""
        self._count += 1
        is_message = kind in {"log", "output"}
        self._messages += is_message
        if is_message and self._messages > _MESSAGES // 2:
            self._latest.append((self._count, event))
        elif is_message or len(self._events) < _EVENTS:
            self._events.append((self._count, event))

    def ask_where(self) -> None:
        """Note that the stacks of its threads may be among what it prints from now on."""
        self._asked_where = True

    def stacks(self) -> list[str]:
        """Give the stacks of its threads, by lines; empty where none were asked for, or came."""
        if not self._asked_where:
            return []
        text = self._printed.decode("utf-8", "replace")
        return [each for each in text.splitlines() if _STACK.match(each)]

    def printed(self, data: bytes) -> None:
        """Take what it prints."""
        printed = self._printed + data
        most = _PRINTED_OF_HANGS if self._asked_where else _PRINTED
        self._is_cut |= len(printed) > most
        self._printed = printed[-most:]

    def events(self) -> dict[str, Any]:
        """Give the events that were kept, and how many were not."""
        kept = sorted((*self._events, *self._latest), key=itemgetter(0))
        left_out = self._count - len(kept)
        events = [event for _, event in kept]
        return {"events": events, **({"events_left_out": left_out} if left_out else {})}

    def last_words(self) -> str:
        """Give the end of what it has printed, as a part of a sentence."""
        text = self._printed.decode("utf-8", "replace")
        if self._is_cut:  # in the middle of a path, perhaps
            text = re.sub(r"\A.*\n|\A\S*", "", text, count=1)
        # faulthandler's list of all compiled modules, and blank lines, say nothing here.
        lines = (
            text
            for text in scrub(text).splitlines()
            if text.strip()
            and not text.startswith("Extension modules:")
            and not (self._asked_where and _STACK.match(text))
        )
        tail = "\n".join(lines)[-_LAST_WORDS:]
        return f"; it printed: {tail}" if tail else ""


def _run_apart(
    check: Check, package: str, limit: float
) -> tuple[dict[str, Any], Literal["in time", "too late", "interrupted"]]:
    """Run a check in a process of its own, which may crash or hang; say how that ended."""
    deadline = time.monotonic() + limit
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            python_command(_CHILD, check.name, package, str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A build of a check is no experience, and is really made.
            env={**os.environ, "TRT_WIDGET_HISTORY": "off", "TRT_WIDGET_ENGINES": "off"},
            **own_session(),
        )
    except (OSError, ValueError) as error:
        seen = f"its process could not be started: {error}"
        return {"status": FAILED, "seen": seen, "events": []}, "in time"
    how: Literal["in time", "too late", "interrupted"] = "in time"
    heard, ended = _Heard(), threading.Event()
    readers = [
        threading.Thread(target=_read, args=(pipe, take, ended), daemon=True)
        for pipe, take in (
            (process.stdout, heard.answers.add),
            (process.stderr, heard.printed),
        )
    ]
    try:
        for reader in readers:
            reader.start()
        try:
            while not has_ended(process) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            if not has_ended(process):
                how = "too late"
        except KeyboardInterrupt:
            how = "interrupted"
        if how != "in time":
            _ask_where(process, heard)
    finally:
        code = _end(process)
        ended.set()
        for reader in readers:
            if reader.ident is not None:
                reader.join(_LEAVE_S)
    stacks = heard.stacks()
    if heard.found is not None:
        found = heard.found
    else:
        by = "an exit status that is not known" if code is None else named_status(code)
        seen = {
            "in time": f"its process ended by {by}",
            "too late": f"it did not end within {limit:g} s",
            "interrupted": "interrupted",
        }[how]
        status = NOT_RUN if how == "interrupted" else FAILED
        found = {"status": status, "seen": f"{seen}{_place(stacks)}{heard.last_words()}"}
    return {**found, **({"stacks": stacks} if stacks else {}), **heard.events()}, how


def _place(stacks: list[str]) -> str:
    """Say where it stood, as a part of a sentence; nothing where that is not known.

    That is where the thread stood that builds, or else the main thread.
    """
    threads: list[list[str]] = []
    for each in stacks:
        if not each.startswith(" "):
            threads.append([each])
        elif threads:
            threads[-1].append(each)
    threads.sort(key=lambda thread: not thread[0].startswith("Current"))
    threads.sort(key=lambda thread: not any(_BUILDS in each for each in thread))
    frames = [each.strip().removeprefix("File ") for each in threads[0][1:2]] if threads else []
    return f", and stood at {frames[0]}" if frames else ""


def _ask_where(process: subprocess.Popen[bytes], heard: _Heard) -> None:
    """Have a check's process print the stacks of its threads, and give it the time for that."""
    number = getattr(signal, "SIGUSR1", None)  # not on Windows
    if number is None:
        return
    heard.ask_where()
    with contextlib.suppress(OSError):  # it has gone
        process.send_signal(number)
        deadline = time.monotonic() + _STACKS_S
        while not has_ended(process) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def _read(pipe: IO[bytes], take: Callable[[bytes], object], ended: threading.Event) -> None:
    with pipe:
        for data in chunks(pipe, ended):
            take(data)


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """End a process and what it has started; give its exit status, if that is known."""
    family = []
    with contextlib.suppress(psutil.Error, OSError):
        family = psutil.Process(process.pid).children(recursive=True)
    code = end_process(process, _LEAVE_S)
    for child in family:  # builds are sessions of their own
        with contextlib.suppress(psutil.Error, OSError):
            child.kill()
    return code
