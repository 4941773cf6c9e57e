"""A Python of its own: isolated from the notebook's folder and from this process's CUDA.

``-I`` keeps the working directory, the script's folder and ``PYTHON*`` variables out until our own
modules are imported: a ``json.py`` that lies beside the notebook must not be taken for Python's.
``sys.path`` is handed over explicitly instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from trt_widget._files import write_all
from trt_widget.backend import Gpu, cuda_library, gpus
from trt_widget.executors.lifetime import chunks, end_process, has_ended, live_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Answers",
    "answer",
    "answer_with_gpus",
    "answers_in",
    "ask_for_gpus_apart",
    "gpus_apart",
    "known_gpus",
    "learn_gpus",
    "own_session",
    "python_command",
    "search_paths",
    "take_stdout",
    "what_is_visible",
]

#: Values of the variables of :func:`what_is_visible`.
Visible = tuple["str | None", ...]

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
_GPUS = "from trt_widget.executors.isolation import answer_with_gpus; answer_with_gpus()"
#: Begins the lines of an answer: something may print to stdout while Python starts.
_MARK = b"trt_widget answers: "
#: Bytes of a line past which it is none of ours.
_LONGEST = 1 << 25
#: Starting CUDA takes seconds on a machine with many GPUs.
_PATIENCE_S = 60.0
#: Seconds within which a process that was killed has ended, and its pipe is at its end.
_LEAVE_S = 5.0


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


# ---- answers ------------------------------------------------------------------------------------


def take_stdout() -> int:
    """Give a descriptor for answers; what is printed from now on goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def answer(descriptor: int, *values: Any) -> None:
    """Write answers, as lines that are told from what others print."""
    lines = (_MARK + json.dumps(value).encode("ascii") for value in values)
    write_all(descriptor, b"".join(b"\n" + line + b"\n" for line in lines))


class Answers:
    """Finds the answers in what a process writes to stdout.

    Parameters
    ----------
    take
        Is called with each.
    """

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Take what was read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST or not self._rest.startswith(_MARK[: len(self._rest)]):
            self._rest = b"-"  # whatever comes of this line, it is none
        for line in lines:
            if line.startswith(_MARK):
                try:
                    value = json.loads(line[len(_MARK) :])
                except ValueError:
                    continue
                self._take(value)


def answers_in(pipe: IO[bytes]) -> Iterator[Any]:
    """Give the answers that come through a pipe, one by one as they come."""
    given: list[Any] = []
    found = Answers(given.append)
    for line in pipe:
        found.add(line)
        yield from given
        given.clear()


def own_session() -> dict[str, Any]:
    """Give the arguments of a process that is ended with all it has started."""
    return {} if sys.platform == "win32" else {"start_new_session": True}


@contextlib.contextmanager
def spared_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from a process that is started in the meantime.

    Until it is in a session of its own it belongs to the terminal's, or the notebook's, process
    group, and SIGINT would end it there and then. It begins with SIGINT blocked.
    """
    if sys.platform == "win32":  # it is in a group of its own from the start
        yield
    else:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- the GPUs -----------------------------------------------------------------------------------


def gpus_apart(cancelled: Callable[[], bool] = lambda: False) -> tuple[Gpu, ...]:
    """Give :func:`~trt_widget.backend.gpus` without starting CUDA in this process.

    CUDA that was started once cannot be used in later forks of the process: a notebook that only
    watches a child build must not lose that. Empty also where the question fails, or was given up.

    Parameters
    ----------
    cancelled
        Asked meanwhile; with its True the question is given up.
    """
    return ask_for_gpus_apart(cancelled) or ()


def ask_for_gpus_apart(
    cancelled: Callable[[], bool] = lambda: False, patience: float = _PATIENCE_S
) -> tuple[Gpu, ...] | None:
    """Give the same, and None where there was no answer within ``patience`` seconds."""
    if gpus.cache_info().currsize:
        return gpus()
    visible = what_is_visible()
    if visible not in _answers:
        found = () if cuda_library() is None else _ask(cancelled, patience)
        if found is None:
            return None
        _answers[visible] = found
    return _answers[visible]


def what_is_visible() -> Visible:
    """Give the environment variables that decide which GPUs CUDA sees, and in which order."""
    return tuple(os.environ.get(name) for name in _VISIBLE)


def known_gpus(visible: Visible) -> tuple[Gpu, ...]:
    """Give what another process has found with these variables; empty where nothing is known."""
    return _answers.get(visible, ())


def learn_gpus(visible: Visible, found: Any) -> None:
    """Keep what a process has found with these variables, for the next one.

    Parameters
    ----------
    visible
        From :func:`what_is_visible`, when the process was started.
    found
        The fields of each GPU. What is no such list is passed over, and so is an empty one: a
        driver that fails once has GPUs again later.
    """
    try:
        gpus_there = tuple(Gpu(*entry) for entry in found)
    except TypeError:
        return
    if 0 < len(gpus_there) <= _MOST_GPUS and all(_is_sound(gpu) for gpu in gpus_there):
        _answers[visible] = gpus_there


def _is_sound(gpu: Gpu) -> bool:
    texts: tuple[Any, ...] = (gpu.name, gpu.compute_capability, gpu.uuid)
    numbers: tuple[Any, ...] = (gpu.number, gpu.processors, gpu.memory)
    if not all(isinstance(text, str) and len(text) <= _LONGEST_NAME for text in texts):
        return False
    if not re.fullmatch(r"SM[1-9][0-9]{1,3}", gpu.compute_capability):
        return False
    return all(type(number) is int and 0 <= number < _MOST for number in numbers)


#: What a GPU's name and numbers are below, whichever it is.
_LONGEST_NAME: Final = 256
_MOST: Final = 1 << 60
#: GPUs of one machine.
_MOST_GPUS: Final = 1024
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: Answers by what was visible.
_answers: dict[Visible, tuple[Gpu, ...]] = {}


def _ask(cancelled: Callable[[], bool], patience: float) -> tuple[Gpu, ...] | None:
    """Ask a process of its own; ``None`` where it gave no answer."""
    try:
        with spared_interrupts():
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                python_command(_GPUS, str(os.getpid())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                **own_session(),
            )
    except OSError:
        return None
    given: list[Any] = []
    found, ended = Answers(given.append), threading.Event()

    def read() -> None:
        for data in chunks(process.stdout, ended):
            found.add(data)

    reader = threading.Thread(target=read, name="trt_widget GPUs asked apart", daemon=True)
    try:
        reader.start()
        deadline = time.monotonic() + patience
        while not (given or has_ended(process) or cancelled() or time.monotonic() > deadline):
            time.sleep(0.02)
    except RuntimeError:  # no thread is to be had
        return None
    finally:
        end_process(process, _LEAVE_S)
        ended.set()
        if reader.ident is not None:
            reader.join(_LEAVE_S)
        if not reader.is_alive() and process.stdout is not None:
            process.stdout.close()
    try:
        return tuple(Gpu(*entry) for entry in given[-1])
    except (IndexError, TypeError):
        return None


def answer_with_gpus() -> None:
    """Be the process that is asked; ``sys.argv[2]`` is who asks."""
    live_with(int(sys.argv[2]))
    descriptor = take_stdout()
    answer(descriptor, gpus())
