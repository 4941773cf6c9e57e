"""One engine at a time: builds of one process queue up for their device.

Two builds on one GPU falsify each other's tactic timings, and two builds in one process gain
nothing: measured with tensorrt-rtx 1.7.1, the second waits inside TensorRT for the first, where
nothing can be shown and nothing can be cancelled.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget._wake import Wake

__all__ = ["GATE", "Gate", "Ticket"]


class Ticket:
    """A place in the queue of a device.

    Attributes
    ----------
    device
        Index of the GPU.
    label
        What people call the build.
    wake
        Set when it is this build's turn.
    cancel
        Asks that build to stop, with a reason.
    my_turn
        Whether the build may go on.
    """

    def __init__(
        self, device: int, label: str, wake: Wake | threading.Event, cancel: Callable[[str], None]
    ) -> None:
        self.device = device
        self.label = label
        self.cancel = cancel
        self.my_turn = False
        self._wake = wake

    def call(self) -> None:
        """Say that it is this build's turn."""
        self.my_turn = True
        self._wake.set()


class Gate:
    """Queues of tickets, one per device; first come, first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Ticket]] = {}

    def queue(self, ticket: Ticket) -> None:
        """Take a place behind the builds that are there already.

        The ticket is made before, so that whoever is interrupted in here can :meth:`leave`.
        """
        with self._lock:
            line = self._queues.setdefault(ticket.device, deque())
            line.append(ticket)
            line[0].call()

    def pass_by(self, ticket: Ticket) -> None:
        """Go first: for a build that runs already, in the user's own code."""
        ticket.call()
        with self._lock:
            self._queues.setdefault(ticket.device, deque()).appendleft(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Give the place up; the next in line gets its turn. Leaving twice is harmless."""
        with self._lock:
            line = self._queues.get(ticket.device)
            if line is None or ticket not in line:
                return
            line.remove(ticket)
            if line:
                line[0].call()
            else:
                del self._queues[ticket.device]

    def forget(self) -> None:
        """Empty all queues: in a forked child, where none of the builds goes on."""
        self._lock = threading.Lock()
        self._queues = {}

    def ahead(self, ticket: Ticket) -> list[Ticket]:
        """Give the tickets that come before ``ticket``, the one whose turn it is first."""
        with self._lock:
            line = list(self._queues.get(ticket.device, ()))
        return line[: line.index(ticket)] if ticket in line else []


#: The gate of this process.
GATE = Gate()
