"""Which job of a queue begins next, and on which device.

Bookkeeping only: no clock, no thread, no build. A :class:`~trt_widget.build_queue.BuildQueue` asks
it what to begin and tells it what has ended; it is used by one thread at a time.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Plan", "Start"]


class Start(NamedTuple):
    """A job that may begin now, and the device that it gets (None: it gets none)."""

    job: int
    device: int | None


class Plan:
    """What is pending and what runs.

    Parameters
    ----------
    wishes
        Of each job, in order, the index of the device that it asks for, or None.
    retries
        How often a job that has crashed begins again.

    Attributes
    ----------
    workers
        How many jobs run at once at most; 0 until it is known.
    devices
        Those that jobs without a wish are put on, the first free one first; empty: they get none.
    per_device
        How many run at once on one device at most, or None for any number.
    """

    def __init__(self, wishes: Sequence[int | None], *, retries: int = 0) -> None:
        self._wishes = list(wishes)
        self._pending: deque[int] = deque(range(len(self._wishes)))
        self._running: dict[int, int | None] = {}
        self._load: Counter[int] = Counter()
        self._left = [retries] * len(self._wishes)
        self.workers = 0
        self.devices: tuple[int, ...] = ()
        self.per_device: int | None = None

    def copy(self) -> Plan:
        """Make one that goes on from here on its own."""
        made = Plan((), retries=0)
        made._wishes, made._left = self._wishes, list(self._left)
        made._pending, made._running = self._pending.copy(), dict(self._running)
        made._load = self._load.copy()
        made.workers, made.devices, made.per_device = self.workers, self.devices, self.per_device
        return made

    @property
    def pending(self) -> tuple[int, ...]:
        """The jobs that wait, in the order in which they would begin."""
        return tuple(self._pending)

    @property
    def running(self) -> tuple[int, ...]:
        """The jobs that have begun and not ended, in the order in which they began."""
        return tuple(self._running)

    @property
    def is_over(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._pending and not self._running

    def next(self) -> Start | None:
        """Take the next job that may begin, or give None.

        The order is kept, but for a job whose device is busy: the others go on meanwhile.
        """
        if len(self._running) >= self.workers:
            return None
        for index in self._pending:
            wish = self._wishes[index]
            device = self._free() if wish is None else wish
            if device is None and self.devices:
                continue
            if device is not None and self._is_full(device):
                continue
            self._pending.remove(index)
            self._running[index] = device
            if device is not None:
                self._load[device] += 1
            return Start(index, device)
        return None

    def _free(self) -> int | None:
        return next((device for device in self.devices if not self._is_full(device)), None)

    def _is_full(self, device: int) -> bool:
        return self.per_device is not None and self._load[device] >= self.per_device

    def end(self, index: int, *, again: bool = False) -> bool:
        """Take note that a job has ended.

        Parameters
        ----------
        again
            Whether it is to begin again, if it has not done so too often: then it is the next.

        Returns
        -------
        bool
            Whether it begins again.
        """
        device = self._running.pop(index)
        if device is not None:
            self._load[device] -= 1
        if not again or not self._left[index]:
            return False
        self._left[index] -= 1
        self._pending.appendleft(index)
        return True

    def put_back(self, jobs: Sequence[int]) -> None:
        """Take jobs for not begun, in this order before all that wait."""
        for job in reversed(jobs):
            self.end(job)
            self._pending.appendleft(job)

    def cancel(self, index: int) -> bool:
        """Take a job out that waits, and let one that runs not begin again.

        Returns
        -------
        bool
            Whether it waited, and so has ended now.
        """
        self._left[index] = 0
        if index not in self._pending:
            return False
        self._pending.remove(index)
        return True
