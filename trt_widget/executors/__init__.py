"""Where the builder runs.

An executor turns a source and its options into events and an outcome. A
:class:`~trt_widget.build.Build` only knows :class:`Executor`: it starts it, drains it about ten
times a second, may ask it to cancel, and takes its :class:`Outcome`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trt_widget.errors import BuildError
    from trt_widget.events import Event

__all__ = ["CANNOT_SEND", "Executor", "Hooks", "Outcome"]

#: Exit code of a build process that cannot reach its kernel (EX_IOERR of sysexits.h).
CANNOT_SEND = 74


@dataclass(frozen=True)
class Outcome:
    """How a build ended.

    Attributes
    ----------
    status
        ``"succeeded"``, ``"cancelled"``, ``"failed"``, or ``"ended"`` where it is not known.
    engine
        The serialized engine (bytes-like), also of a failed build where only saving it failed.
    error
        Why it failed.
    ended_by
        ``"completed"``, ``"cached"`` (the engine was built before), ``"step"`` (``step_complete``
        answered False), ``"before build"`` (stopped before TensorRT's builder ran),
        ``"terminated"``, ``"killed"``, ``"crashed"``, ``"error"`` or ``"unknown"``.
    reason
        Reason of a cancel where the build did not ask for it itself.
    time
        Seconds since the origin at which the builder had returned.
    notes
        Sentences for people that are not errors.
    facts
        What else is known: ``device``, ``layers`` (count), and ``engine_file`` (device, inode and
        time of the file at ``output=``, by which a process knows it from another of that name).
    """

    status: str
    engine: Any = None
    error: BuildError | None = None
    ended_by: str = "unknown"
    reason: str | None = None
    time: float = 0.0
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hooks:
    """What an executor calls, from any thread; each returns at once.

    Attributes
    ----------
    running
        It is this build's turn: the clock starts.
    waiting
        It has to wait; the argument names the build it waits for.
    changed
        There is something to drain before the next tick.
    cancel
        Asks this build to stop, with a reason: for a build that waits for it.
    pending
        It has to wait for something that is no build; the argument names it.
    """

    running: Callable[[], None]
    waiting: Callable[[str], None]
    changed: Callable[[], None]
    cancel: Callable[[str], None]
    pending: Callable[[str], None] = lambda _what: None


class Executor(Protocol):
    """What a build needs of the place where its builder runs."""

    #: Name shown to people: ``"thread"``, ``"process"``, ``"dask"``, ``"attached"`` ...
    kind: str

    def start(self, hooks: Hooks) -> None:
        """Begin; returns at once."""

    def reset_origin(self) -> float:
        """Make now the time zero of the events, and give the reading of ``time.perf_counter()``."""

    def drain(self) -> list[Event]:
        """Take the events since the last call, ordered by time. Called from one thread only."""

    def request_cancel(self, reason: str) -> None:
        """Ask the builder to stop; from any thread, any number of times; returns at once."""

    def abandon(self) -> None:
        """End as soon as it can be: nobody will take the outcome. Returns at once."""

    @property
    def cancel_reason(self) -> str | None:
        """Reason of the first request to cancel, wherever it came from, or ``None``."""

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest resident memory that was seen of the process that builds, in bytes."""

    def can_cancel_blocker(self) -> bool:
        """Whether this build waits for another of this process."""

    def cancel_blocker(self) -> None:
        """Ask the build that this one waits for to stop, if there is one."""

    def alive(self) -> bool:
        """Whether an outcome can still come."""

    def builds_on(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` is the executor's own, so that it cannot wait for the outcome."""

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once there is one; everything that happened before it can be drained."""
