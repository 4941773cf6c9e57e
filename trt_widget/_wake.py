"""A wake-up call that a signal handler may give, whatever it has interrupted."""

from __future__ import annotations

import contextlib
import queue

__all__ = ["Wake"]


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
        """Wait until it is set, or ``timeout`` seconds."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=timeout)
        return self._is_set

    def clear(self) -> None:
        """Forget the calls so far."""
        self._is_set = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()
