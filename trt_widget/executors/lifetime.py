"""How processes that we start are read and ended, and how they end with us."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time as clock
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    import psutil
else:
    import select

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

__all__ = [
    "CHUNK",
    "chunks",
    "end_now",
    "end_process",
    "end_with",
    "has_ended",
    "kill",
    "live_with",
    "named_status",
    "orphaned",
    "watch",
]

#: Bytes that are read at once.
CHUNK = 1 << 16
#: Bytes that a pipe holds at most.
_PIPE = 1 << 20
#: Seconds between two looks at whether the parent still lives, where the system cannot say so.
WATCH_S = 0.5
#: Seconds between two looks at a process that was killed.
_LOOK_S = 0.005

# ---- the parent's side --------------------------------------------------------------------------

if sys.platform == "win32":

    def has_ended(process: subprocess.Popen[bytes]) -> bool:
        """Whether the process has ended."""
        return process.poll() is not None

    def _status_is_there(_process: subprocess.Popen[bytes]) -> bool:
        return True

    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill the process and whatever it has started."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        with contextlib.suppress(OSError):
            process.kill()

    def chunks(pipe: Any, gone: threading.Event) -> Iterator[bytes]:  # noqa: ARG001 - as below
        """Give what comes through a pipe until its end."""
        while data := os.read(pipe.fileno(), CHUNK):
            yield data

else:

    def has_ended(process: subprocess.Popen[bytes]) -> bool:
        """Whether the process has ended; unreaped, so that its number is not given away."""
        if process.returncode is not None:
            return True
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, flags) is not None
        except ChildProcessError:
            return True
        except AttributeError:  # macOS before Python 3.13 has no waitid
            return process.poll() is not None

    def _status_is_there(process: subprocess.Popen[bytes]) -> bool:
        """Wait for the process's end; give whether its status can still be collected."""
        if process.returncode is not None:
            return True
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return False
        except AttributeError:  # as above
            return True
        return True

    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill the process and whatever it has started."""
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def chunks(pipe: Any, gone: threading.Event) -> Iterator[bytes]:
        """Give what comes through a pipe until its end, or until the child is gone and it is empty.

        Its end may never come: a process that the child has started can hold it open.
        """
        descriptor = pipe.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        left = _PIPE  # when the child is gone; more is of somebody who writes on
        while left > 0:
            last = gone.is_set()
            if poll.poll(0 if last else 250):
                data = os.read(descriptor, CHUNK)
                if not data:
                    return
                left -= len(data) if last else 0
                yield data
            elif last:
                return


def end_process(process: subprocess.Popen[bytes], patience: float | None = None) -> int | None:
    """Kill what is left of the process and its descendants, and give its exit status.

    Somebody else in this process may have collected the status: a handler of SIGCHLD, or SIGCHLD
    that is ignored. Then it is not known (``Popen`` would say 0). Nor is it of a process that has
    not ended after ``patience`` seconds: one that hangs in a driver cannot be killed.
    """
    kill(process)
    if patience is not None:
        deadline = clock.monotonic() + patience
        while not has_ended(process):
            if clock.monotonic() > deadline:
                return None
            clock.sleep(_LOOK_S)
    known = _status_is_there(process)
    code = process.wait()
    return code if known else None


def named_status(code: int | None) -> str:
    """Say how a process ended, as :func:`end_process` tells it."""
    if code is None:
        return "exit status not known"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# ---- the child's side ---------------------------------------------------------------------------

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the system end this process with the kernel, where it can; end if it is gone already.

    End of file on the pipe is not enough: processes that the kernel has forked may keep the other
    end open. Linux sends the signal when the *thread* that started us ends, which waits for us.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if orphaned(parent):
        end_now()


def live_with(parent: int) -> None:
    """Have this process end when its parent does, whatever it is at; its session is its own."""
    end_with(parent)
    threading.Thread(
        target=watch, args=(parent,), name="trt_widget parent watch", daemon=True
    ).start()


def orphaned(parent: int) -> bool:
    """Whether the parent is gone."""
    if sys.platform == "win32":
        return not psutil.pid_exists(parent)
    else:  # noqa: RET505 - mypy follows the platform through if and else only
        return os.getppid() != parent


def watch(parent: int) -> None:
    """End this process when the kernel is gone."""
    if sys.platform == "win32":
        with contextlib.suppress(psutil.Error):
            psutil.Process(parent).wait()
    else:
        while not orphaned(parent):
            clock.sleep(WATCH_S)
    end_now()


def end_now() -> None:
    """End this process and what it has started, at once."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGKILL)  # the session is ours alone
    os._exit(1)
