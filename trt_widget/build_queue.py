"""Many builds: in order, so many at a time, over child processes here or over a Dask cluster.

One thread per queue begins builds, notices their ends and tells the subscribers; everybody else
only reads, or asks for a cancel. Which job is next is :class:`~trt_widget.queue_plan.Plan`'s to
say, what becomes of each is kept in its :class:`~trt_widget.queue_jobs.Job`.

A second queue waits until the first has ended: of one process, or of one cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
import time as clock
from collections import deque
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trt_widget._wake import Wake
from trt_widget.build import FINAL, BuildResult
from trt_widget.errors import (
    BuildCancelled,
    BuildCrashed,
    BuildError,
    BuildFailed,
    BuildStateError,
    OptionError,
    check_reason,
)
from trt_widget.options import OPTION_NAMES
from trt_widget.queue_jobs import Job, JobRow, make_jobs
from trt_widget.queue_plan import Plan, Start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import pandas as pd

    from trt_widget.backend import Gpu
    from trt_widget.events import Event

__all__ = ["BuildQueue", "Job", "JobRow"]

#: Seconds between two looks at what runs, and between two when something has just ended.
TICK_S: Final = 0.25
_SHORT_TICK_S: Final = 0.02
#: Seconds after which the subscribers are told that there is nothing new.
SIGN_OF_LIFE_S: Final = 1.0
#: How long leaving the interpreter waits for a queue's thread, in seconds.
_EXIT_WAIT_S: Final = 2.0

_log = logging.getLogger("trt_widget")
_numbers = itertools.count(1)


class BuildQueue:
    """Builds of one queue.

    ::

        q = BuildQueue({"o3": {"optimization_level": 3}, "o5": {"optimization_level": 5}},
                       source="r50.onnx").start()
        q.wait()
        q.results()
    """

    def __init__(
        self,
        jobs: Mapping[str, Any],
        *,
        workers: int | None = None,
        client: Any = None,
        resources: Mapping[str, float] | None = None,
        retries: int = 1,
        per_device: int | None = None,
        devices: Sequence[int] | None = None,
        engine_cache: Any = True,
        output_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self._workers = _check_count("workers", workers, 1)
        self._retries = _check_count("retries", retries, 0) or 0
        self._per_device = _check_count("per_device", per_device, 1)
        self._devices = _check_devices(devices)
        self._client = client
        self._number = next(_numbers)
        self._own_name = name
        folder = None if output_dir is None else _make_folder(output_dir)
        defaults: dict[str, Any] = {
            "engine_cache": engine_cache,
            "client": client,
            "resources": resources,
            "reschedules": 0 if client is not None else None,
        }
        defaults = {key: value for key, value in defaults.items() if key in OPTION_NAMES}
        self._jobs = make_jobs(jobs, {**defaults, **options}, folder, self._check_job)
        self._order = list(self._jobs.values())
        self._plan = Plan([job.plan.options.device for job in self._order], retries=self._retries)
        self._gpus: tuple[Gpu, ...] = ()
        #: Guards the plan, the jobs and the states; held for moments only.
        self._lock = threading.RLock()
        self._status = "pending"
        self._started = False
        self._pid = os.getpid()
        self._wake = Wake()
        self._ended = threading.Event()
        self._published = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscribers: list[Callable[[frozenset[str]], object]] = []
        self._waiters: list[Callable[[], object]] = []
        self._changed: set[str] = set()
        self._told_at = 0.0

    def _check_job(self, name: str, arguments: dict[str, Any]) -> None:
        if arguments.get("client") is not self._client:
            raise OptionError(
                "client= is for the whole queue.", "Give it to BuildQueue, or make two queues."
            )
        del name

    # ------------------------------------------------------------------ what a user calls

    def start(self) -> BuildQueue:
        """Begin in the background and return at once.

        Raises
        ------
        BuildStateError
            It was started before.
        """
        with self._lock:
            if self._started:
                raise BuildStateError(
                    f"The {self.name} was started already.", remedy="Make a new one."
                )
            if self._status in FINAL:
                return self
            self._started = True
            _LINES.queue(self)
            try:
                self._thread = threading.Thread(
                    target=self._run, name=f"trt_widget {self.name}"[:60], daemon=True
                )
                self._thread.start()
            except BaseException:
                _LINES.leave(self)
                self._started = False
                raise
        return self

    def wait(self, timeout: float | None = None) -> None:
        """Block until all builds have ended; those that fail do not raise."""
        self._check_started()
        self._wait_ended(timeout)

    def _wait_ended(self, timeout: float | None) -> None:
        deadline = None if timeout is None else clock.monotonic() + timeout
        interrupted = False
        self._check_not_inside()
        while True:
            try:
                while not self._ended.is_set():
                    left = 0.2 if deadline is None else min(0.2, deadline - clock.monotonic())
                    if self._ended.wait(max(0.0, left)):
                        break
                    if deadline is not None and clock.monotonic() >= deadline:
                        raise TimeoutError(f"{self.name} is still {self._status} after {timeout} s")
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.request_cancel(reason="interrupt")
        self._published.wait(2.0)
        if interrupted and self._status != "succeeded":
            raise BuildCancelled(reason="interrupt")

    def __await__(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop; a cancelled await cancels the queue."""
        return self._await().__await__()

    async def _await(self) -> None:
        import asyncio

        self._check_started()
        self._check_not_inside()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            # The loop may be gone by then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        self._waiters.append(tell)
        if self._published.is_set():
            tell()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.request_cancel(reason="interrupt")
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(tell)

    def request_cancel(
        self, job: str | None = None, *, pending: bool = False, reason: str = "user"
    ) -> bool:
        """Ask one build to stop, or all that are pending, or all; returns at once.

        Returns
        -------
        bool
            Whether there was anything to cancel.
        """
        check_reason(reason)
        with self._lock:
            if job is not None:
                chosen = [self[job]]
            else:
                chosen = [entry for entry in self._order if entry.result is None]
            if pending:
                waiting = set(self._plan.pending)
                chosen = [entry for entry in chosen if entry.index in waiting]
            if job is None and not pending and chosen and self._status == "running":
                self._status = "cancelling"
            found = [self._cancel(entry, reason) for entry in chosen]
            if not self._started and self._plan.is_over:
                self._finish()
        self._wake.set()
        return any(found)

    def _cancel(self, job: Job, reason: str) -> bool:
        """Cancel one; the caller holds the lock."""
        if job.result is not None:
            return False
        job.cancel_reason = job.cancel_reason or reason
        self._changed.add(job.name)
        if self._plan.cancel(job.index):
            if job.build is not None and job.build.result is not None:
                job.earlier.append(job.build.result)
            self._conclude(job, job.cancelled(job.cancel_reason))
        elif job.build is not None:
            job.build.request_cancel(reason)
        return True

    def close(self) -> None:
        """Cancel what has not ended. What was found stays readable."""
        self.request_cancel(reason="closed")

    def results(self) -> pd.DataFrame:
        """Give a row per job, as things are now."""
        from trt_widget.queue_frames import results_frame

        return results_frame(self._order)

    @property
    def timings(self) -> pd.DataFrame:
        """The timings of all builds, each row with its job in the first column."""
        from trt_widget.queue_frames import timings_frame

        return timings_frame(self._order)

    # ------------------------------------------------------------------ how it is going

    @property
    def name(self) -> str:
        """What people call it."""
        return self._own_name or f"queue {self._number}"

    @property
    def status(self) -> str:
        """The state of the whole; the words are those of a build."""
        return self._status

    @property
    def waiting_for(self) -> str | None:
        """The name of the queue that this one waits for, or None."""
        first = _LINES.first(self)
        return None if first is None or first is self else first.name

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by name, in their order."""
        return MappingProxyType(self._jobs)

    def __getitem__(self, name: str) -> Job:
        try:
            return self._jobs[name]
        except KeyError:
            raise KeyError(name) from None

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    @property
    def progress(self) -> float | None:
        """How far the whole is, 0 to 1."""
        return sum(job.result is not None for job in self._order) / len(self._order)

    @property
    def eta_s(self) -> float | None:
        """Seconds left for the whole, or None."""
        return None

    @property
    def basis(self) -> str | None:
        """Where the time left comes from, in words, or None."""
        return None

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        words = ("pending", "running", "cancelling", "succeeded", "cancelled", "failed")
        found = dict.fromkeys(words, 0)
        with self._lock:
            for job in self._order:
                found[job.status] = found.get(job.status, 0) + 1
        return found

    def rows(self) -> list[JobRow]:
        """Give what a view shows of each job, in their order; from any thread."""
        now = clock.time()
        with self._lock:
            return [job.row(now) for job in self._order]

    def subscribe(self, callback: Callable[[frozenset[str]], object]) -> Callable[[], None]:
        """Have ``callback`` called with the names of the jobs that changed, on the queue's thread.

        At most about four times a second; with an empty set about once a second where nothing
        changes; a last time after the end.

        Returns
        -------
        callable
            Ends the subscription.
        """
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def __repr__(self) -> str:
        count = f"{len(self)} job{'' if len(self) == 1 else 's'}"
        named = f"{self._own_name!r}, " if self._own_name else ""
        ended = f", {self._status}" if self._status in FINAL else ""
        return f"{type(self).__name__}({named}{count}{ended})"

    # ------------------------------------------------------------------ the queue's thread

    def _check_started(self) -> None:
        if not self._started and self._status not in FINAL:
            raise BuildStateError(f"The {self.name} was not started.", remedy="Call start() first.")

    def _check_not_inside(self) -> None:
        if self._ended.is_set():
            return
        if threading.current_thread() is self._thread:
            raise BuildStateError(
                f"The {self.name} cannot be waited for by a function that it calls itself.",
                remedy="Wait elsewhere, or look at the status.",
            )
        for job in self._order:
            if job.build is not None and job.result is None:
                job.build.check_waiting()

    def _run(self) -> None:
        try:
            while not self._plan.is_over and _LINES.first(self) is not self:
                self._tell()
                self._pause(TICK_S)
            if not self._plan.is_over:
                self._look_around()
                with self._lock:
                    if self._status == "pending":
                        self._status = "running"
            while not self._plan.is_over:
                while (start := self._take_next()) is not None:
                    self._begin(start)
                pause = self._collect()
                self._tell()
                if pause and not self._plan.is_over:
                    self._pause(pause)
        except BaseException:  # noqa: BLE001 - whoever waits is told by _break_off
            _report("trt_widget: the thread of %s broke off", self.name)
        finally:
            self._break_off()
            _LINES.leave(self)
            with self._lock:
                self._finish()
            self._tell(last=True)
            self._publish()

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _look_around(self) -> None:
        """See what machine this is, and how many builds it can take."""
        from trt_widget.executors.isolation import gpus_apart

        gpus = () if self._client is not None else gpus_apart(lambda: self._plan.is_over)
        with self._lock:
            self._gpus = gpus
            plan = self._plan
            plan.per_device = self._per_device or (1 if gpus else None)
            plan.devices = self._devices or _devices_of(gpus)
            limit = len(plan.devices) * (plan.per_device or 1) or max(1, _cores() // 2)
            plan.workers = self._workers or limit

    def _take_next(self) -> Start | None:
        with self._lock:
            start = self._plan.next()
            if start is not None:
                job = self._order[start.job]
                if job.build is not None and job.build.result is not None:
                    job.earlier.append(job.build.result)
                job.build = None
                job.device = start.device
                job.attempts += 1
                self._changed.add(job.name)
            return start

    def _begin(self, start: Start) -> None:
        job = self._order[start.job]
        options = job.plan.options
        changes: dict[str, Any] = {}
        if start.device is not None:
            changes["device"] = start.device
        if options.exclusive is None and (not self._gpus or (self._per_device or 1) > 1):
            changes["exclusive"] = False
        build = job.plan.again(**changes)

        def told(events: list[Event]) -> None:
            del events
            with self._lock:
                self._changed.add(job.name)
            if build.status in FINAL:
                self._wake.set()

        build.subscribe(told)
        with self._lock:
            job.build = build
            if job.cancel_reason is not None:
                build.request_cancel(job.cancel_reason)
        try:
            build.start()
        except Exception as error:  # noqa: BLE001 - one that cannot begin does not stop the others
            self._end(job, _could_not_begin(job, error))

    def _collect(self) -> float:
        """Take what has ended; give the seconds until the next look."""
        with self._lock:
            running = [self._order[index] for index in self._plan.running]
        pause = TICK_S
        for job in running:
            build = job.build
            if build is None or build.status not in FINAL:
                continue
            if not build.told:
                pause = min(pause, _SHORT_TICK_S)
                continue
            assert build.result is not None  # noqa: S101 - it is there with the final status
            self._end(job, build.result)
            pause = 0.0
        return pause

    def _end(self, job: Job, result: BuildResult) -> None:
        """Take what an attempt came to."""
        with self._lock:
            crashed = isinstance(result.error, BuildCrashed)
            if crashed and job.cancel_reason is not None and job.attempts <= self._retries:
                # It would begin again, but somebody wanted it to end.
                job.earlier.append(result)
                result = job.cancelled(job.cancel_reason)
                crashed = False
            self._changed.add(job.name)
            if not self._plan.end(job.index, again=crashed):
                self._conclude(job, result)

    def _conclude(self, job: Job, result: BuildResult) -> None:
        """Keep what a job came to; the caller holds the lock."""
        job.result = result
        job.ended_at = clock.time()

    def _break_off(self) -> None:
        """End whatever is left: nobody would do it any more."""
        with self._lock:
            for job in self._order:
                if job.result is None:
                    if job.build is not None:
                        job.build.request_cancel("closed")
                    failure = BuildFailed(
                        f"The queue of job {job.name!r} broke off.",
                        "This is a defect of trt_widget; please report it with the log.",
                    )
                    self._conclude(job, _failed(job, failure))

    def _finish(self) -> None:
        """Say how the whole has ended; the caller holds the lock."""
        found = {job.status for job in self._order}
        self._status = next(
            (word for word in ("failed", "cancelled") if word in found), "succeeded"
        )
        self._ended.set()
        if not self._started:
            self._publish()

    def _publish(self) -> None:
        self._published.set()
        for tell in list(self._waiters):
            tell()

    def _tell(self, *, last: bool = False) -> None:
        now = clock.monotonic()
        due = TICK_S if self._changed else SIGN_OF_LIFE_S
        if not last and now - self._told_at < due:
            return
        self._told_at = now
        with self._lock:
            changed, self._changed = frozenset(self._changed), set()
            subscribers = list(self._subscribers)
        for callback in subscribers:
            try:
                callback(changed)
            except BaseException:  # noqa: BLE001, PERF203 - a subscriber's fault must not end the queue
                _report(
                    "trt_widget: a subscriber of %s raised and is dropped: %r", self.name, callback
                )
                with self._lock, contextlib.suppress(ValueError):
                    self._subscribers.remove(callback)


class _Lines:
    """The queues that wait for each other: those of this machine, and those of each cluster."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lines: dict[str, deque[BuildQueue]] = {}

    def queue(self, queue: BuildQueue) -> None:
        """Take a place behind those that are there."""
        with self._lock:
            self._lines.setdefault(_place_of(queue), deque()).append(queue)

    def first(self, queue: BuildQueue) -> BuildQueue | None:
        """Give the one whose turn it is, or None where ``queue`` is in no line."""
        with self._lock:
            line = self._lines.get(_place_of(queue))
            return line[0] if line is not None and queue in line else None

    def leave(self, queue: BuildQueue) -> None:
        """Give the place up; leaving twice is harmless."""
        with self._lock:
            line = self._lines.get(_place_of(queue))
            if line is None or queue not in line:
                return
            line.remove(queue)
            if line:
                line[0]._wake.set()  # noqa: SLF001 - the same module
            else:
                del self._lines[_place_of(queue)]

    def all(self) -> list[BuildQueue]:
        """Give all that are in a line."""
        with self._lock:
            return [queue for line in self._lines.values() for queue in line]

    def forget(self) -> None:
        """Empty all lines: in a forked child, where none of the queues goes on."""
        self._lock = threading.RLock()
        self._lines = {}


_LINES: Final = _Lines()


def _place_of(queue: BuildQueue) -> str:
    client = queue._client  # noqa: SLF001 - the same module
    if client is None:
        return ""
    return str(getattr(getattr(client, "scheduler", None), "address", id(client)))


def _report(message: str, *arguments: object) -> None:
    """Log the exception that is being handled; a handler or filter that raises changes nothing."""
    with contextlib.suppress(Exception):
        _log.exception(message, *arguments)


def _failed(job: Job, error: BuildError) -> BuildResult:
    import dataclasses

    return dataclasses.replace(
        job.cancelled("closed"), status="failed", ended_by="error", reason=None, error=error
    )


def _could_not_begin(job: Job, error: Exception) -> BuildResult:
    """Make the result of a build whose start has raised."""
    result = None if job.build is None else job.build.result
    if result is not None:
        return result
    if not isinstance(error, BuildError):
        error = BuildFailed(f"The build of {job.name} could not be started: {error}.")
    error.__traceback__ = None
    return _failed(job, error)


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices_of(gpus: tuple[Gpu, ...]) -> tuple[int, ...]:
    """Give the GPUs that jobs are spread over: all, where they are alike."""
    if len({gpu.name for gpu in gpus}) == 1:
        return tuple(range(len(gpus)))
    return (0,) if gpus else ()


def _check_count(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    import operator

    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise OptionError(
            f"{name}={value!r} is not a whole number of at least {least}.", "Give an integer."
        )
    return number


def _check_devices(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    try:
        found = [_check_count("devices", item, 0) for item in value]
    except TypeError:
        found = []
    if isinstance(value, str) or not found or None in found or len(set(found)) < len(found):
        raise OptionError(
            f"devices={value!r} is no list of different GPUs.",
            "Give their indexes: devices=[0, 1].",
        )
    return tuple(index for index in found if index is not None)


def _make_folder(path: Any) -> Path:
    folder = Path(path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@atexit.register
def _cancel_all() -> None:
    """Cancel what still runs when the interpreter is left: nobody could take the engines."""
    queues = _LINES.all()
    for queue in queues:
        queue.request_cancel(reason="closed")
    del queues


def _forget_all() -> None:
    """Start afresh in a forked child, which has none of the threads."""
    _LINES.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
