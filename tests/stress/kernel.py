"""A process like a notebook's kernel: it builds, has forked workers, and is killed from outside."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from trt_widget import Build


def _by_os() -> None:
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)


def _by_multiprocessing() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()


def _by_libc() -> None:
    """Fork as a library in C does: nothing of Python's own that reacts to a fork is called."""
    if ctypes.PyDLL(None).fork() == 0:
        ctypes.CDLL(None).sleep(300)
        ctypes.CDLL(None)._exit(0)


_FORKS = {"os": _by_os, "multiprocessing": _by_multiprocessing, "libc": _by_libc}


def main(model: str, output: str, how: str) -> None:
    """Build, fork before and meanwhile, and never end."""
    fork = _FORKS[how]
    fork()
    build = Build(Path(model), executor="process", exclusive=False, output=output or None).start()
    executor: Any = build._executor
    while executor._process is None and build.result is None:
        time.sleep(0.001)
    fork()
    print(executor._process.pid, flush=True)
    for _ in range(3):
        time.sleep(0.1)
        fork()
    build.wait_ended()
    time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
