"""Waiting: a wake-up call that a signal handler may give, and a thread's end in an event loop."""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["Wake", "until_told"]


class Wake:
    """As ``threading.Event`` with one waiter; `set` may interrupt itself (Event.set deadlocks)."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        """Wake the waiter."""
        if not self._is_set:
            self._is_set = True
            self._calls.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or ``timeout`` seconds; not at all if that is below zero."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=None if timeout is None else max(0.0, timeout))
        return self._is_set

    def clear(self) -> None:
        """Forget the calls so far."""
        self._is_set = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()


async def until_told(
    waiters: list[Callable[[], object]], told: threading.Event, look: Callable[[], object]
) -> None:
    """Wait without blocking the event loop until another thread has set ``told``.

    Parameters
    ----------
    waiters
        What that thread calls after it has set it; one is here while this waits.
    look
        Called once a second meanwhile; something true ends the wait.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell() -> None:
        # The loop may be gone by then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set)

    waiters.append(tell)
    if told.is_set():
        tell()
    try:
        while not ended.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0)
            if not ended.is_set() and look():
                break
    finally:
        with contextlib.suppress(ValueError):
            waiters.remove(tell)
