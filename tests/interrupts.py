"""Ctrl-C for a test that waits, at a moment at which it does."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def interrupt_wait(build: Any, *more: Callable[[], object]) -> threading.Thread:
    """Send SIGINT once somebody is inside ``build.wait()``, and once more as each of ``more`` is.

    A timer would send it a moment before, if the machine is busy.
    """
    inside = threading.Event()
    wait = build._ended.wait

    def noted(timeout: float | None = None) -> bool:
        inside.set()
        return bool(wait(timeout))

    build._ended.wait = noted

    def send() -> None:
        for condition in (lambda: inside.wait(60), *more):
            deadline = time.monotonic() + 60
            while not condition():
                if time.monotonic() > deadline:
                    return  # the test misses it
                time.sleep(0.005)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread
