"""Many builds: in order, so many at a time, over child processes here or over a Dask cluster.

One thread per queue begins builds, notices their ends and tells the subscribers; everybody else
only reads, or asks for a cancel. Which job is next is :class:`~trt_widget.queue_plan.Plan`'s to
say, what becomes of each is kept in its :class:`~trt_widget.queue_jobs.Job`.

A second queue waits until the first has ended: of one process, or of one cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import logging
import os
import threading
import time as clock
from collections import deque
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trt_widget._text import line
from trt_widget._wake import Wake, until_told
from trt_widget.build import FINAL, Build, BuildResult
from trt_widget.errors import (
    BuildCancelled,
    BuildCrashed,
    BuildError,
    BuildFailed,
    BuildStateError,
    OptionError,
    OutputError,
    check_reason,
)
from trt_widget.executors.isolation import gpus_apart
from trt_widget.queue_cluster import address_of, in_flight, in_loop_of, slots
from trt_widget.queue_estimate import LookBack, Outlook, State, outlook
from trt_widget.queue_jobs import Job, JobRow, UnknownJobError, make_jobs
from trt_widget.queue_plan import Plan, Start
from trt_widget.queue_store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import pandas as pd

    from trt_widget.backend import Gpu
    from trt_widget.events import Event

__all__ = ["BuildQueue", "Job", "JobRow", "UnknownJobError"]

#: Jobs that have ended whose builds are kept whole, and bytes of their engines in all.
KEPT: Final = 16
KEPT_BYTES: Final = 256 * 1024 * 1024

#: Seconds between two looks at what runs, and between two when something has just ended.
TICK_S: Final = 0.25
_SHORT_TICK_S: Final = 0.005
#: Seconds after which the subscribers are told that there is nothing new.
SIGN_OF_LIFE_S: Final = 1.0
#: Seconds between two estimates of the time left, and between two looks at a cluster's size.
JUDGE_S: Final = 1.0
_ASK_S: Final = 5.0

_STATUSES: Final = ("pending", "running", "cancelling", "succeeded", "cancelled", "failed")

_log = logging.getLogger("trt_widget")
_numbers = itertools.count(1)


class BuildQueue:
    """Many builds in the background: as many at once as the machine or the cluster takes well.

    ::

        q = BuildQueue(
            {"o3": {"optimization_level": 3}, "o5": {"optimization_level": 5}},
            source="resnet50.onnx",
            output_dir="engines",
        ).start()
        q.wait()
        q.results()

    A build that fails does not stop the others. The jobs begin in their order. A second queue waits
    until the first one of this process has ended, or of its cluster; :attr:`waiting_for` names it.

    Parameters
    ----------
    jobs
        By name: a model, or a dict of the arguments of a :class:`~trt_widget.Build`, with the model
        as ``"source"``.
    workers
        How many child processes build at once. By default one for each GPU (times ``per_device``);
        half as many as there are cores without a GPU, and with TensorRT for RTX, which times
        nothing on it. On a cluster: how many builds are handed to it at most.
    client
        A ``distributed.Client``: then the builds run on its cluster.
    resources
        What each build needs of a Dask worker, such as ``{"GPU": 1}``.
    retries
        How often a build whose process or Dask worker has died begins again. One that fails
        otherwise, is cancelled or runs out of its ``timeout`` never does.
    per_device
        How many build on one GPU at once; 1 by default with full TensorRT, since two that time
        tactics on one GPU spoil each other's engines. With more they do not wait for builds of
        other processes either.
    devices
        Indexes of the GPUs for jobs without ``device``; each gets the first that is free. By
        default with full TensorRT all, where they are of one kind, else the first.
    engine_cache
        As of a build, but on by default: the same build again is answered from disk. False: off.
    output_dir
        A folder, made at the start where it is missing: the engine of a job without ``output`` goes
        to its name with ``.engine`` in it. Without this, engines are kept in a temporary file and
        are gone with the queue.
    name
        What to call the queue.
    **options
        Arguments of every job that does not have its own, ``source`` included.

    Raises
    ------
    OptionError
        Wrong arguments, no job, a name that is none, two jobs that would write to one file.
    BuildError
        Whatever a build raises when it is made, with the job's name in front, or the queue's.

    Notes
    -----
    Of jobs that have ended, the builds of the latest are kept whole (:data:`KEPT`); of the others
    the engine and the record, in a temporary file.
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
        self._resources = resources
        self._own_name = _check_queue_name(name)
        if client is None:
            _refuse("resources", resources, "client=, and for GPUs of this machine use devices=")
        else:
            for option, value in (("per_device", per_device), ("devices", devices)):
                _refuse(option, value, "child processes of this machine; resources= limits those")
        defaults: dict[str, Any] = {"engine_cache": engine_cache}
        if client is not None:
            # What is begun again is counted once, here.
            defaults.update(client=client, resources=resources, reschedules=0)
        self._folder = None if output_dir is None else _check_folder(output_dir)
        own = tuple(BuildQueue.__init__.__kwdefaults__ or ())
        arguments = {**defaults, **options}
        self._jobs = make_jobs(jobs, arguments, self._folder, self._check_job, own)
        self._order = list(self._jobs.values())
        self._plan = Plan([job.options.device for job in self._order], retries=self._retries)
        self._number = next(_numbers)
        #: Guards the plan, the jobs and the states; held for moments only.
        self._lock = threading.RLock()
        self._status = "pending"
        self._started = False
        #: What tells the line apart in which it waits.
        self._line = ""
        self._pid = os.getpid()
        self._wake = Wake()
        self._ended = threading.Event()
        self._published = threading.Event()
        self._thread: threading.Thread | None = None
        self._exclusive: bool | None = None
        self._subscribers: list[Callable[[frozenset[str]], object]] = []
        self._waiters: list[Callable[[], object]] = []
        self._changed: set[str] = set()
        self._told_at = -SIGN_OF_LIFE_S
        self._outlook = Outlook(0.0)
        self._judged_at = -JUDGE_S
        self._asked_at = -_ASK_S
        #: How many builds the cluster runs at once, or 0 while that is not known.
        self._slots = 0
        self._back = LookBack(self._order, lambda: self._plan.is_over)
        self._store = Store()
        self._whole: deque[Job] = deque()
        self._full = False
        self._overview: Any = None

    def _check_job(self, arguments: Mapping[str, Any]) -> None:
        if arguments.get("client") is not self._client:
            raise OptionError(
                "client= is for the whole queue.", "Give it to BuildQueue, or make two queues."
            )
        if arguments.get("reschedules"):
            raise OptionError(
                "reschedules= is for a single build.",
                "Give retries= to BuildQueue: it counts crashes and lost workers together.",
            )

    # ------------------------------------------------------------------ what a user calls

    def start(self) -> BuildQueue:
        """Begin in the background and return at once.

        Jobs that were cancelled before stay cancelled.

        Raises
        ------
        BuildStateError
            It was started before.
        OutputError
            ``output_dir`` cannot be made.
        """
        with self._lock:
            if self._started:
                raise BuildStateError(
                    f"{self.name} was started already.",
                    remedy="Make a new queue with the same jobs to build them again.",
                )
            if self._status in FINAL:
                return self
            if self._folder is not None:
                _make_folder(self._folder)
            self._pid = os.getpid()
            thread = threading.Thread(
                target=self._run, name=f"trt_widget {self.name}"[:60], daemon=True
            )
            try:
                self._started = True
                _LINES.queue(self)
                self._thread = thread
                thread.start()
            except BaseException:  # no thread to be had, or Ctrl-C
                if not thread.is_alive():
                    self._thread = None
                    self._started = False
                    _LINES.leave(self)
                raise
        return self

    def wait(self, timeout: float | None = None) -> None:
        """Block until all builds have ended; those that fail do not raise, :meth:`results` tells.

        Ctrl-C (in a notebook: Interrupt) cancels all; a second one leaves at once.

        Parameters
        ----------
        timeout
            Seconds to wait at most. The builds go on when they are over.

        Raises
        ------
        BuildCancelled
            This wait was interrupted.
        BuildStateError
            It was not started, or it would wait for the caller: a subscriber, or a function that
            one of the builds calls.
        TimeoutError
            ``timeout`` seconds have passed.
        """
        self._check_started()
        if self._overview is None:
            self._wait_ended(timeout)
            return
        from trt_widget.widget import kernel

        try:
            if kernel.needs_polling():
                with kernel.ui_poll() as poll:
                    self._wait_ended(timeout, between=lambda: poll(5))
            else:
                self._wait_ended(timeout)
        finally:
            self._overview.repeat()

    def _wait_ended(
        self, timeout: float | None, between: Callable[[], object] | None = None
    ) -> None:
        deadline = None if timeout is None else clock.monotonic() + timeout
        pause = 0.05 if between else 0.2
        interrupted = False
        self._check_not_inside(
            [job.build for job in self._order if job.begun and job.build],
            looped=self._client is not None and in_loop_of(self._client),
        )
        while True:
            try:
                while not self._ended.wait(
                    pause
                    if deadline is None
                    else max(0.0, min(pause, deadline - clock.monotonic()))
                ):
                    if between is not None:
                        between()
                    if deadline is not None and clock.monotonic() >= deadline:
                        waiting = self.waiting_for
                        why = f": it waits for {waiting}" if waiting else ""
                        msg = f"{self.name} is still {self._status} after {timeout} s{why}"
                        raise TimeoutError(msg)
                    self._check_alive()
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.request_cancel(reason="interrupt")
        self._published.wait(2.0)
        if interrupted and self._status != "succeeded":
            raise BuildCancelled(
                "The queue was cancelled by Interrupt.",
                "results() says what each of its builds came to.",
                reason="interrupt",
            )

    def __await__(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop; a cancelled await cancels all."""
        return self._await().__await__()

    async def _await(self) -> None:
        import asyncio

        self._check_started()
        self._check_not_inside()
        try:
            await until_told(self._waiters, self._published, self._check_alive)
        except asyncio.CancelledError:
            self.request_cancel(reason="interrupt")
            raise
        if self._overview is not None:
            self._overview.repeat()

    def request_cancel(
        self, job: str | None = None, *, pending: bool = False, reason: str = "user"
    ) -> bool:
        """Ask one build to stop, or all that wait, or all; returns at once.

        What waits is ``cancelled`` at once, what runs is ``cancelling`` first.

        Parameters
        ----------
        job
            Name of the one; None for all.
        pending
            Only what has not begun.
        reason
            ``"user"``, ``"deadline"``, ``"interrupt"`` or ``"closed"``.

        Returns
        -------
        bool
            Whether there was anything to cancel.

        Raises
        ------
        UnknownJobError
            There is no such job (also a ``KeyError``).
        ValueError
            ``reason`` is none of those.
        """
        check_reason(reason)
        with self._lock:
            chosen = self._order if job is None else [self[job]]
            if pending:  # also one that waits elsewhere: for a device, or on a cluster
                chosen = [entry for entry in chosen if entry.status == "pending"]
            found = [self._cancel(entry, reason) for entry in chosen]
            if job is None and not pending and any(found) and self._status == "running":
                self._status = "cancelling"
            over = not self._started and self._plan.is_over and self._status not in FINAL
            if over:
                self._finish()
        if over:  # without a thread of its own
            self._tell(last=True)
            self._publish()
        self._wake.set()
        return any(found)

    def cancel_blocker(self) -> bool:
        """Cancel the queue that this one waits for, as it would be by its own owner.

        Returns
        -------
        bool
            Whether there was one with anything to cancel.
        """
        first = self.blocker
        return first is not None and first.request_cancel()

    def close(self) -> None:
        """Cancel what has not ended. What was found stays readable."""
        self.request_cancel(reason="closed")

    def results(self) -> pd.DataFrame:
        """Give a row per job, in their order, as things are now; the index is the job's name.

        Columns: ``status``, ``model``, ``duration_s``, ``engine`` (the path where it was written,
        else None: ``q[name].engine`` has the engine itself, also without a path), ``engine_bytes``,
        ``error`` (its cause), ``error_type``, ``attempts``, ``cached``, ``reason`` (of a cancel),
        ``where`` (the device or the Dask worker), ``backend``, ``version``, ``layers``,
        ``peak_memory_bytes``, ``started``, ``ended``.
        """
        from trt_widget.queue_frames import results_frame

        return results_frame(self._order)

    @property
    def timings(self) -> pd.DataFrame:
        """The timings of all builds (:attr:`Build.timings`), with ``job`` as the first column."""
        from trt_widget.queue_frames import timings_frame

        return timings_frame(self._order)

    # ------------------------------------------------------------------ how it is going

    @property
    def name(self) -> str:
        """What people call it."""
        return self._own_name or f"queue {self._number}"

    @property
    def status(self) -> str:
        """The state of the whole; the words are those of a build.

        At the end ``succeeded`` where all have; else ``failed`` where one has; else ``cancelled``.
        """
        return self._status

    @property
    def waiting_for(self) -> str | None:
        """What it waits for, or None: the queue before it, or what its first builds lack."""
        first = self.blocker
        if first is not None:
            same = first.name == self.name
            return f"an earlier queue named {first.name!r}" if same else first.name
        with self._lock:
            begun = [self._order[index] for index in self._plan.running]
            if self._status != "running" or any(job.status != "pending" for job in begun):
                return None
            return next(filter(None, (job.waiting_for for job in begun)), None)

    @property
    def blocker(self) -> BuildQueue | None:
        """The queue that has to end before this one begins, or None."""
        first = _LINES.first(self)
        return None if first is self else first

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by name, in their order."""
        return MappingProxyType(self._jobs)

    def __getitem__(self, name: str) -> Job:
        try:
            return self._jobs[name]
        except (KeyError, TypeError):
            raise self._unknown(name) from None

    def _unknown(self, name: object) -> UnknownJobError:
        import difflib

        near = difflib.get_close_matches(name, self._jobs) if isinstance(name, str) else []
        meant = " or ".join(map(repr, near))
        remedy = f"Did you mean {meant}?" if near else "Its jobs are the keys of q.jobs."
        count = f"{len(self):,} job{'' if len(self) == 1 else 's'}"
        return UnknownJobError(f"{self.name} has no job {name!r:.100} among its {count}.", remedy)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    @property
    def progress(self) -> float:
        """How far the whole is, 0 to 1; it never falls, and what was cancelled stays open."""
        return self._outlook.progress

    @property
    def eta_s(self) -> float | None:
        """Seconds left for the whole, or None where nothing honest can be said."""
        return self._outlook.eta_s

    @property
    def basis(self) -> str | None:
        """Where :attr:`eta_s` comes from, in words, or None."""
        return self._outlook.basis

    def counts(self) -> dict[str, int]:
        """Give how many jobs are in each state."""
        found = dict.fromkeys(_STATUSES, 0)
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
        changes; and a last time after the end, when :attr:`status` is final (on the caller's thread
        where all was cancelled before the start). One that raises is reported once through
        :mod:`logging` and dropped. One that blocks keeps further builds from beginning, so hand
        long work on to a thread of your own.

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
        count = f"{len(self):,} job{'' if len(self) == 1 else 's'}"
        named = f"{self._own_name!r}, " if self._own_name else ""
        ended = f", {self._status}" if self._status in FINAL else ""
        return f"{type(self).__name__}({named}{count}{ended})"

    def __str__(self) -> str:
        from trt_widget.queue_table import queue_text

        return queue_text(self)

    def _repr_html_(self) -> str:
        from trt_widget.queue_table import queue_html

        return queue_html(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Show the overview in a notebook, and elsewhere a table."""
        from trt_widget.queue_table import in_notebook

        if self._overview is None and in_notebook():
            from trt_widget.widget.overview import Overview

            self._overview = Overview(self)
        if self._overview is not None:
            return self._overview._repr_mimebundle_(**kwargs)
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    # ------------------------------------------------------------------ the queue's thread

    def _check_started(self) -> None:
        if not self._started and self._status not in FINAL:
            raise BuildStateError(f"{self.name} was not started.", remedy="Call start() first.")

    def _check_not_inside(self, builds: Iterable[Build] = (), *, looped: bool = False) -> None:
        """Raise `BuildStateError` if the queue would wait for the thread that waits for it."""
        inside = looped or threading.current_thread() is self._thread
        if not self._ended.is_set() and (inside or any(build.works_here() for build in builds)):
            raise BuildStateError(
                f"{self.name} cannot be waited for by a function that it or one of its builds "
                "calls (a subscriber, configure=), or in the event loop of its Dask client.",
                remedy="Wait elsewhere, use await, or look at its status.",
            )

    def _check_alive(self) -> None:
        """Raise `BuildStateError` if nobody works on it: in a process forked from its own."""
        if os.getpid() != self._pid and not self._ended.is_set():
            raise BuildStateError(
                f"{self.name} is one of the process that this one was forked from.",
                remedy="Wait for it there, or make a new one here.",
            )

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return  # start() was interrupted before it saw that this thread lives
        try:
            self._wait_turn()
            if not self._plan.is_over:
                self._look_around()
                self._back.start()
            while not self._plan.is_over:
                while (start := self._take_next()) is not None:
                    self._begin(start)
                self._put_away()
                pause = self._collect()
                self._ask_cluster()
                self._judge()
                self._tell()
                if pause and not self._plan.is_over:
                    self._pause(pause)
        except BaseException:  # noqa: BLE001 - whoever waits is told by _break_off
            _report("trt_widget: the thread of %s broke off", self.name)
        finally:
            self._back.stop()
            self._break_off()
            _LINES.leave(self)
            with self._lock:
                self._finish()
            self._tell(last=True)
            self._publish()

    def _wait_turn(self) -> None:
        while not self._plan.is_over and _LINES.first(self) is not self:
            self._tell()
            self._pause(TICK_S)

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _look_around(self) -> None:
        """See how many builds the machine or the cluster takes at once."""
        gpus = gpus_apart(lambda: self._plan.is_over) if self._is_timed() else ()
        with self._lock:
            plan = self._plan
            if self._client is None:
                plan.per_device = self._per_device or (1 if gpus else None)
                plan.devices = self._devices or _devices_of(gpus)
                most = len(plan.devices) * (plan.per_device or 1) or max(1, _cores() // 2)
                plan.workers = self._workers or most
                # What waits for each other is decided here: a limit per device, or none.
                alone = bool(gpus) and plan.per_device == 1
                self._exclusive = None if alone else False
            else:
                plan.workers = min(in_flight(0), self._workers or in_flight(0))
            if self._status == "pending":
                self._status = "running"

    def _is_timed(self) -> bool:
        """Whether builds here disturb each other on a GPU, or are to be counted by GPU."""
        if self._client is not None:
            return False
        if self._per_device is not None or self._devices:
            return True
        return any(job.options.times_tactics for job in self._order)

    def _ask_cluster(self) -> None:
        """Ask now and then how large the cluster is."""
        now = clock.monotonic()
        if self._client is None or now - self._asked_at < _ASK_S or not self._plan.pending:
            return
        count = slots(self._client, self._resources)
        self._asked_at = clock.monotonic()
        if count is not None:
            self._slots = count
            with self._lock:
                self._plan.workers = min(in_flight(count), self._workers or in_flight(count))

    def _take_next(self) -> Start | None:
        with self._lock:
            start = self._plan.next()
            if start is not None:
                job = self._order[start.job]
                job.begin(start.device)
                self._changed.add(job.name)
            return start

    def _begin(self, start: Start) -> None:
        job = self._order[start.job]
        try:
            build = self._make_build(job, start.device)
            with self._lock:
                job.build = build
                if job.cancel_reason is not None:
                    build.request_cancel(job.cancel_reason)
            build.start()
        except Exception as error:  # noqa: BLE001 - one that cannot begin does not stop the others
            self._end(job, _could_not_begin(job, error))

    def _make_build(self, job: Job, device: int | None) -> Build:
        options = job.options
        if options.device is None and device is not None:
            options = dataclasses.replace(options, device=device)
        if options.exclusive is None and self._exclusive is not None:
            options = dataclasses.replace(options, exclusive=self._exclusive)
        assert job.source is not None  # noqa: S101 - it is there until the end
        build = Build.checked(job.source, options, job.name)

        def told(_events: list[Event]) -> None:
            with self._lock:
                self._changed.add(job.name)
            if build.status in FINAL:
                self._wake.set()

        build.subscribe(told)
        return build

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
            self._changed.add(job.name)
            again = isinstance(result.error, BuildCrashed) and job.attempts <= self._retries
            if again and job.cancel_reason is not None:
                # It would begin again, but somebody wanted it to end.
                job.again(result)
                self._plan.end(job.index)
                self._conclude(job, job.made_up("cancelled", _cancelled(job)))
            elif self._plan.end(job.index, again=again):
                job.again(result)
            else:
                self._conclude(job, result)

    def _cancel(self, job: Job, reason: str) -> bool:
        """Cancel one; the caller holds the lock."""
        if job.result is not None:
            return False
        job.cancel_reason = job.cancel_reason or reason
        self._changed.add(job.name)
        if self._plan.cancel(job.index):
            self._conclude(job, job.made_up("cancelled", _cancelled(job)))
        elif job.build is not None:
            job.build.request_cancel(reason)
        return True

    def _conclude(self, job: Job, result: BuildResult) -> None:
        """Keep what a job came to; the caller holds the lock."""
        job.end(result, clock.time())
        if job.build is not None:
            self._whole.append(job)

    def _put_away(self) -> None:
        """Keep of the builds that ended a while ago only what is worth it."""
        while self._whole:
            engines = sum((job.result and job.result.engine_bytes) or 0 for job in self._whole)
            if len(self._whole) <= (KEPT if engines <= KEPT_BYTES else 1):
                return
            job = self._whole.popleft()
            try:
                job.put_away(self._store)
            except Exception:  # noqa: BLE001 - then the build itself is kept
                if not self._full:  # the disk, most likely: once is enough
                    self._full = True
                    _report("trt_widget: the build of %s could not be put away", job.name)

    def _judge(self) -> None:
        """Say how far the whole is, about once a second."""
        now = clock.monotonic()
        if now - self._judged_at < JUDGE_S:
            return
        self._judged_at = now
        try:
            with self._lock:
                plan = self._plan.copy()
                time = clock.time()
                states = [_state_of(job, time) for job in self._order]
            # Those that were handed over and wait for a device or a Dask worker.
            plan.put_back([job for job in plan.running if states[job].status == "pending"])
            plan.workers = min(plan.workers, self._slots or plan.workers)
            found = outlook(plan, states, self._back.earlier)
        except Exception:  # noqa: BLE001 - the time left is worth no failure
            _report("trt_widget: the time left of %s could not be estimated", self.name)
            found = Outlook(0.0)
        if self._status == "cancelling":
            found = Outlook(found.progress)  # how long it takes to stop is another thing
        self._outlook = found._replace(progress=max(found.progress, self._outlook.progress))

    def _break_off(self) -> None:
        """End whatever is left: nobody would do it any more."""
        with self._lock:
            for job in self._order:
                if job.result is None:
                    if job.build is not None:
                        job.build.request_cancel("closed")
                    failure = BuildFailed(
                        f"The queue of {job.name} broke off.",
                        "This is a defect of trt_widget; please report it with the log.",
                    )
                    self._conclude(job, job.made_up("failed", failure))

    def _finish(self) -> None:
        """Say how the whole has ended; the caller holds the lock."""
        found = {job.status for job in self._order}
        self._judged_at = -JUDGE_S
        self._judge()
        self._status = next(
            (word for word in ("failed", "cancelled") if word in found), "succeeded"
        )
        eta = 0.0 if self._status == "succeeded" else None
        self._outlook = Outlook(self._outlook.progress, eta)
        self._ended.set()

    def _publish(self) -> None:
        self._published.set()
        for tell in list(self._waiters):
            tell()
        with self._lock:
            self._subscribers.clear()

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
            # Read once: a client that was closed has forgotten its scheduler.
            queue._line = line = _line_of(queue)  # noqa: SLF001 - the same module
            self._lines.setdefault(line, deque()).append(queue)

    def first(self, queue: BuildQueue) -> BuildQueue | None:
        """Give the one whose turn it is, or None where ``queue`` is in no line."""
        with self._lock:
            line = self._lines.get(queue._line)  # noqa: SLF001 - as above
            return line[0] if line is not None and queue in line else None

    def leave(self, queue: BuildQueue) -> None:
        """Give the place up; leaving twice is harmless."""
        with self._lock:
            line = self._lines.get(queue._line)  # noqa: SLF001 - as above
            if line is None or queue not in line:
                return
            line.remove(queue)
            if line:
                line[0]._wake.set()  # noqa: SLF001 - the same module
            else:
                del self._lines[queue._line]  # noqa: SLF001 - as above

    def all(self) -> list[BuildQueue]:
        """Give all that are in a line."""
        with self._lock:
            return [queue for line in self._lines.values() for queue in line]

    def forget(self) -> None:
        """Empty all lines: in a forked child, where none of the queues goes on."""
        self._lock = threading.RLock()
        self._lines = {}


_LINES: Final = _Lines()


def _line_of(queue: BuildQueue) -> str:
    client = queue._client  # noqa: SLF001 - the same module
    return "" if client is None else address_of(client)


def _report(message: str, *arguments: object) -> None:
    """Log the exception that is being handled; a handler or filter that raises changes nothing."""
    with contextlib.suppress(Exception):
        _log.exception(message, *arguments)


def _cancelled(job: Job) -> BuildCancelled:
    return BuildCancelled(reason=job.cancel_reason or "user")


def _could_not_begin(job: Job, error: Exception) -> BuildResult:
    """Make the result of a build whose start has raised."""
    result = None if job.build is None else job.build.result
    if result is not None:
        return result
    if not isinstance(error, BuildError):
        error = BuildFailed(
            f"The build of {job.name} could not be started: {error}.",
            "Close what else uses threads and memory, and build again.",
        )
    error.__traceback__ = None
    return job.made_up("failed", error)


def _state_of(job: Job, now: float) -> State:
    """Say what is known of a job; the caller holds the lock."""
    result, build = job.result, job.build
    if result is not None:
        succeeded = result.status == "succeeded"
        # What was cancelled stays where it was.
        share = job.row(now).progress or 0.0 if result.status == "cancelled" else 1.0
        took = result.duration_s if succeeded and not job.cached else None
        # On a cluster one that was handed over waits for the others.
        answered = job.turnaround_s if job.options.client is None else result.duration_s
        return State(
            "ended",
            job.model,
            progress=share,
            took_s=took,
            same=job.same,
            answered_s=answered if job.cached else None,
        )
    since = build.entered_at.get("running") if build is not None and job.begun else None
    if build is None or since is None:
        return State("pending", job.model, same=job.same)
    elapsed = max(0.0, now - since)
    return State("running", job.model, elapsed, build.eta_s, build.progress, same=job.same)


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
    wrong = OptionError(
        f"devices={value!r:.100} is no list of different GPUs.",
        "Give their indexes: devices=[0, 1].",
    )
    try:
        items = list(value)
    except TypeError:
        raise wrong from None
    if not items or isinstance(value, (str, bytes)):
        raise wrong
    found = [_check_count("devices", item, 0) for item in items]
    indexes = [index for index in found if index is not None]
    if len(set(indexes)) < len(items):
        raise wrong
    return tuple(indexes)


def _check_queue_name(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise OptionError(f"name={value!r:.100} is no name.", "Give text, or leave it out.")
    return value


def _refuse(option: str, value: Any, what: str) -> None:
    if value is not None:
        raise OptionError(f"{option}= is for {what}.", "Leave it out.")


def _check_folder(path: Any) -> Path:
    """Check that a folder is there or could be made; nothing is made."""
    try:
        folder = Path(os.fsdecode(path)).absolute()
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except TypeError:
        raise OptionError(
            f"output_dir={path!r:.100} is no path.", "Give text or a pathlib.Path."
        ) from None
    except (OSError, ValueError) as error:
        raise _no_folder(path, str(error)) from None
    if not usable:
        what = "cannot be written to" if there.is_dir() else "is a file"
        raise _no_folder(path, f"{there.name!r} {what}")
    return folder


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(folder, error.strerror or str(error)) from None


def _no_folder(path: Any, why: str) -> OutputError:
    return OutputError(
        f"output_dir={str(path)!r}: no such folder can be made: {why}.",
        "Choose a folder that you may write to.",
    )


@atexit.register
def _cancel_all() -> None:
    """Cancel what still runs when the interpreter is left: nobody could take the engines."""
    for queue in _LINES.all():
        left = sum(job.result is None for job in queue.jobs.values())
        wanted = queue.status != "cancelling"
        if queue.request_cancel(reason="closed") and wanted:
            _warn(
                f"{line(queue.name, 80)} was cancelled with {left} of {len(queue)} builds not "
                "ended, because Python ended: call wait()"
            )


def _warn(message: str) -> None:
    """Log a warning; where nobody has set up logging it goes to stderr, or nobody would know."""
    with contextlib.suppress(Exception):  # a handler that raises, or stderr is closed
        _log.warning("%s", message)
        heard = [*_log.handlers, *(logging.root.handlers if _log.propagate else ())]
        if logging.lastResort and all(isinstance(each, logging.NullHandler) for each in heard):
            record = _log.makeRecord(_log.name, logging.WARNING, __file__, 0, message, (), None)
            logging.lastResort.handle(record)


def _forget_all() -> None:
    """Start afresh in a forked child, which has none of the threads."""
    _LINES.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
