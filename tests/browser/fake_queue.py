"""A queue whose states are made by hand; the browser tests run this text in a notebook's cell.

Hundreds of builds in given states, half of them failed, cannot be had from a builder at will.
"""

from __future__ import annotations

import time
from typing import Any

from trt_widget.queue_jobs import JobRow

STATES = ("succeeded", "succeeded", "succeeded", "cancelled", "failed", "running", "pending")


class FakeJob:
    """A job without a build: what is selected is told in words."""

    build = None
    result = None
    waiting_for = None

    def __init__(self, queue: FakeQueue, index: int) -> None:
        self.queue, self.index = queue, index
        self.name = queue.made[index].name

    @property
    def status(self) -> str:
        """The state of the row."""
        return self.queue.made[self.index].status


class FakeQueue:
    """What an overview reads of a queue."""

    progress: float | None = 0.25
    eta_s: float | None = 300.0
    basis: str | None = "from earlier builds"
    waiting_for: str | None = None
    blocker: FakeQueue | None = None

    def __init__(self, made: list[JobRow], name: str = "zoo", status: str = "running") -> None:
        self.made, self.name, self.status = made, name, status
        self.asked: list[Any] = []
        self.subscribers: list[Any] = []
        self.read = 0

    def rows(self) -> list[JobRow]:
        """Give the rows as they are."""
        self.read += 1
        return list(self.made)

    def __iter__(self) -> Any:
        return iter([row.name for row in self.made])

    def __getitem__(self, name: str) -> FakeJob:
        return FakeJob(self, next(row.index for row in self.made if row.name == name))

    def __repr__(self) -> str:
        return f"FakeQueue({len(self.made)} jobs)"

    def subscribe(self, callback: Any) -> Any:
        """Keep who is to be told."""
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def tell(self, *changed: str) -> None:
        """Tell the subscribers, as the queue's thread does."""
        for callback in list(self.subscribers):
            callback(frozenset(changed))

    def request_cancel(self, job: str | None = None, *, pending: bool = False) -> bool:
        """Cancel at once what waits; what runs is being cancelled."""
        self.asked.append("pending" if pending else job)
        for place, row in enumerate(self.made):
            if job is None or row.name == job:
                if row.status == "pending":
                    self.change(place, status="cancelled", reason="user")
                elif row.status == "running" and not pending:
                    self.change(place, status="cancelling")
        self.tell()
        return True

    def cancel_blocker(self) -> bool:
        """Note that it was asked for."""
        self.asked.append("blocker")
        return self.blocker is not None

    def change(self, place: int, **values: Any) -> None:
        """Change a row."""
        self.made[place] = self.made[place]._replace(**values)

    def end(self, status: str = "succeeded") -> None:
        """End the whole."""
        self.status = status
        self.tell()


def fake_row(index: int, status: str, name: str = "") -> JobRow:
    """Make a plausible row."""
    running = status == "running"
    ended = status in {"succeeded", "failed", "cancelled"}
    return JobRow(
        index=index,
        name=name or f"model-{index:04d}-o{index % 6}",
        status=status,
        progress=(index * 7 % 97) / 100 if running else 1.0 if status == "succeeded" else None,
        eta_s=float(20 + index % 400) if running else None,
        elapsed_s=1.5 + index % 90 if running or ended else None,
        since=time.time() - 1.5 - index % 90 if running else None,
        phase="Timing tactics of a convolution" if running else "",
        where=f"GPU {index % 4}" if running or ended else None,
        attempts=0 if status == "pending" else 1 + (index % 11 == 0),
        engine_bytes=1_000_000 + index * 12_345 if status == "succeeded" else None,
        cached=status == "succeeded" and index % 5 == 0,
        reason="user" if status == "cancelled" else None,
        error="TensorRT has no operator NoSuchOp." if status == "failed" else "",
    )


def fake_queue(count: int = 500, **values: Any) -> FakeQueue:
    """Make a queue in the middle of its work."""
    made = [fake_row(index, STATES[index % len(STATES)]) for index in range(count)]
    return FakeQueue(made, **values)
