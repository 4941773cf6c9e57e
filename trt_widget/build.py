"""One build, from source to engine: its states, its drain thread, its result.

States only move forward: ``pending``, ``running``, ``cancelling``, then one of ``succeeded``,
``cancelled``, ``failed``; or ``ended``, for a build that the user's own code ran and whose outcome
was never handed in. An engine that is finished before a cancel takes effect is kept: the build
``succeeded`` and says so.

Threads: the executor's thread builds, and the build's own drain thread, about ten times a second,
folds what was recorded into the :class:`~trt_widget.phases.PhaseTree` and tells the subscribers.
Everybody else only reads, or sets the cancel flag.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
import time as clock
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_widget._files import is_whole, save_atomically
from trt_widget._wake import Wake, until_told
from trt_widget.backend import backend_of, find_backend
from trt_widget.errors import (
    BuildCancelled,
    BuildError,
    BuildFailed,
    BuildStateError,
    OptionError,
    check_reason,
)
from trt_widget.events import (
    Estimate,
    Event,
    LogMessage,
    MessagesDropped,
    NetworkReady,
    OutputCaptured,
    Snapshot,
    StatusChanged,
    StreamStarted,
)
from trt_widget.executors import Hooks, Outcome
from trt_widget.executors.attached import AttachedExecutor
from trt_widget.executors.gate import GATE
from trt_widget.logger import BuildLog, forward
from trt_widget.options import BuildOptions, check_source
from trt_widget.phases import PhaseTree
from trt_widget.timings import log_frame, spans_frame, timings_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path
    from types import ModuleType, TracebackType

    import pandas as pd
    from typing_extensions import TypeIs

    from trt_widget.backend import Backend
    from trt_widget.chunks import ChunkStream
    from trt_widget.executors import Executor
    from trt_widget.executors.followed import FollowedExecutor
    from trt_widget.forecast import Forecast
    from trt_widget.history import BuildKey, BuildRecord, History
    from trt_widget.options import Source
    from trt_widget.plot import Picture
    from trt_widget.record import Record

__all__ = ["FINAL", "Build", "BuildResult"]

#: Seconds between two drains.
TICK_S = 0.1
#: Seconds after which the time left is told although nothing else has happened, and the progress
#: for which it is told earlier.
TELL_ESTIMATE_S = 1.0
TELL_PROGRESS = 0.01
#: Seconds between two drains that somebody asked for.
SHORTEST_TICK_S = 0.05
#: Characters kept of what a build process prints.
MAX_PRINTED = 256 * 1024
#: States after which nothing changes any more.
FINAL = ("succeeded", "cancelled", "failed", "ended")
_ORDER = {"pending": 0, "running": 1, "cancelling": 2, **dict.fromkeys(FINAL, 3)}
#: The clock of a followed build is set anew for more than this, in seconds.
_SAME_ORIGIN_S = 0.02
#: How long leaving the interpreter waits for builds that are being cancelled, in seconds.
_EXIT_WAIT_S = 10.0

_log = logging.getLogger("trt_widget")


@dataclass(frozen=True)
class BuildResult:
    """What a build came to.

    Attributes
    ----------
    status
        ``"succeeded"``, ``"cancelled"``, ``"failed"``, or ``"ended"`` where it is not known.
    engine_bytes
        Size of the serialized engine in bytes, or ``None``.
    duration_s
        Seconds from the start of ``running`` to the end.
    ended_by
        ``"completed"``, ``"cached"`` (the engine was built before, and is from the engine cache),
        ``"step"`` (``step_complete`` answered False), ``"before build"``, ``"terminated"`` or
        ``"killed"`` (the child process was ended after the grace), ``"crashed"`` (it ended by
        itself), ``"error"`` or ``"unknown"``.
    stop_latency_s
        Seconds from the request to cancel to the end, or ``None`` without one.
    reason
        Why it was cancelled (user, deadline, interrupt, closed, monitor), or ``None``.
    backend, version
        The TensorRT package and its version.
    device
        What was built for or on, as far as it is known.
    executor
        Where the builder ran: ``"process"`` (a child of this one), ``"thread"``, ``"dask"`` (a
        child of a Dask worker), ``"attached"`` or
        ``"followed"`` (elsewhere).
    model
        Display name of the source.
    output
        Where the engine was written, or ``None``; of a followed build as its producer says it,
        which may be on another machine.
    layers
        Layers of TensorRT's network after parsing, or ``None``.
    peak_memory_bytes
        Largest resident memory that was seen of the process that built, in bytes: of the child, or
        of this whole process where a thread built; ``None`` where it is not known.
    warnings
        TensorRT's warnings.
    notes
        Sentences for people that are not errors.
    error
        The exception that :meth:`Build.wait` raises, or ``None``.
    timing_cache
        What is known of the timing cache, or ``None``: ``state`` (``"none"``, ``"cold"`` or
        ``"warm"``, before the build), ``path``, ``known_before`` and ``known_after`` (measurements
        in it), ``reused`` (measurements that were not made again); ``None`` for what TensorRT does
        not tell.
    worker
        Name and address of the Dask worker that built, or ``None``.
    """

    status: str
    engine_bytes: int | None
    duration_s: float
    ended_by: str
    stop_latency_s: float | None
    reason: str | None
    backend: str
    version: str
    device: str | None
    executor: str
    model: str
    output: Path | None
    layers: int | None
    peak_memory_bytes: int | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    error: BuildError | None
    timing_cache: dict[str, Any] | None = None
    worker: str | None = None


class Build:
    """Build an engine in the background, for scripts and servers; the widget stands on it.

    Parameters
    ----------
    source
        Path of an ONNX file, its bytes, an ``onnx.ModelProto``, or a callable in Polygraphy's
        manner that returns ``(builder, network)`` or ``(builder, network, parser)``.
    **options
        All by keyword; :class:`trt_widget.options.BuildOptions` says more of each.

        - ``output``: path for the engine, written whole or not at all
        - ``profiles``: ``{"x": (min, opt, max)}``, three shapes (or a shape tensor's values) for
          each input of dynamic shape; a list of such dicts for several profiles
        - ``timeout``: seconds from the start of ``running``; then the build is cancelled
        - ``grace``: seconds that a cancel waits for TensorRT before the child is ended; 2
        - ``executor``: ``"auto"`` (a child process, or a thread where something cannot travel),
          ``"process"`` or ``"thread"``
        - ``flags``: names of builder flags, such as ``"REFIT"``, or a list of them
        - ``strongly_typed``: True or False; ``network_flags``: names
        - ``optimization_level``: 0 to 5; ``workspace``: bytes; ``device``: index of a GPU
        - ``target``: for TensorRT for RTX, such as ``"SM86"``, ``"current"``, or a list
        - ``configure``: function of ``(builder, network, config)`` for anything else
        - ``config``: function of ``(builder, network)`` that returns the builder config
        - ``exclusive``: whether builds of other processes on the device are waited for
        - ``plugins``: paths of plugin libraries; ``external_data``: folders of weight files
        - ``timing_cache``: path, or True for a file in your cache folder; for full TensorRT
        - ``engine_cache``: True, a folder or an ``EngineCache``: the same build again is answered
          from the disk
        - ``backend``: ``"tensorrt"``, ``"tensorrt_rtx"`` or the module
        - ``client``: a ``dask.distributed.Client``, to build on a worker of its cluster, whose
          ``plugins`` and ``timing_cache`` are then meant; ``resources``: what the worker has to
          have, such as ``{"GPU": 1}``; ``reschedules``: how often a build whose worker was lost
          is begun again, once by default

    Raises
    ------
    UnknownOptionError
        A keyword that is none of the options (also a ``TypeError``).
    OptionError, SourceError, OutputError, ProfileError
        An option or a path that is wrong without looking into the model. What needs the model to be
        read appears as ``failed`` and is raised by :meth:`wait`.
    BackendNotFound
        No TensorRT package is installed.

    Examples
    --------
    >>> build = Build("resnet50.onnx", output="resnet50.engine").start()
    >>> engine = build.wait()
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.options = BuildOptions.from_kwargs(options)
        self._source: Source | None = check_source(source, self.options)
        self._initialize(self.options.backend, self._source.display_name)

    @classmethod
    def attach(
        cls,
        config: Any = None,
        *,
        backend: str | ModuleType | None = None,
        name: str | None = None,
    ) -> Build:
        """Watch a build that your own code runs.

        ::

            with Build.attach(config) as build:
                engine = build.finish(builder.build_serialized_network(network, config))

        Parameters
        ----------
        config
            The builder config. A monitor that it has already is kept and called too. Without a
            config give :attr:`monitor` to whatever makes it.
        backend
            The package of the builder; needed only without a config.
        name
            What to call the build.

        Raises
        ------
        WrongBackendError
            The config is not one of a TensorRT package, or not of ``backend``.
        """
        self = cls.__new__(cls)
        self._attach(config, backend, name)
        return self

    def _attach(self, config: Any, backend: str | ModuleType | None, name: str | None) -> None:
        found = find_backend(backend) if config is None else backend_of(config, backend)
        self.options = BuildOptions.from_kwargs({"backend": found.module})
        self._source = None
        self._initialize(
            found, name or "your build", AttachedExecutor(found, config, name or "your build")
        )

    @classmethod
    def follow(
        cls,
        source: Any,
        *,
        control: Any = None,
        name: str | None = None,
        wait: bool | float = True,
    ) -> Build:
        """Watch a build that runs elsewhere, by the stream of events that it writes.

        ::

            build = Build.follow("build.jsonl").start()  # trt-widget build ... --events build.jsonl
            build.wait()

        It needs no TensorRT. Everything that is shown of a build of your own is shown of this one;
        only the engine stays where it was built: :attr:`engine` is ``None``, :meth:`wait` returns
        ``None``, and ``result.output`` is the producer's path.

        Parameters
        ----------
        source
            Path of a file of JSON Lines (read from its start and then as it grows, to the ``end``
            event) or of a FIFO; a file object, binary or text; a descriptor. A file that ends in
            ``.gz`` is unpacked.
        control
            Where a request to cancel goes: a path, a file object or a descriptor. Without it, to
            the file beside ``source``, if the producer says that it listens there.
        name
            What to call the build; by default as its stream does.
        wait
            False: the file is a recording, and is read to where it ends now. A number: seconds that
            a file may take to be there and to have a first event, 60 by default.

        Raises
        ------
        TypeError
            ``source`` or ``control`` is nothing of that kind.
        StreamError
            ``source`` is a folder, or is not there and not waited for.

        Notes
        -----
        The status is what the producer says; until it has begun it is ``pending``. A stream that
        breaks off makes it ``failed`` with a :class:`~trt_widget.errors.StreamError`; one that just
        ends, with no phase open and no promise of an ``end`` event, makes it ``ended``.

        :meth:`request_cancel` asks the producer; where nobody listens it returns False, says so in
        :attr:`notes`, and the status stays. Ctrl-C in :meth:`wait` asks as well. :meth:`close` only
        stops to read.
        """
        self = cls.__new__(cls)
        from trt_widget.executors.followed import FollowedExecutor, options_of

        executor = FollowedExecutor(source, control=control, wait=wait)
        self.options = options_of(executor.backend)
        self._source = None
        self._initialize(executor.backend, name or executor.label, executor)
        self._own_name = name
        return self

    @classmethod
    def checked(cls, source: Source, options: BuildOptions, name: str) -> Build:
        """Make a build of what was checked already; paths mean what they meant then.

        Parameters
        ----------
        name
            What to call it.
        """
        self = cls.__new__(cls)
        self.options = options
        self._source = source
        self._initialize(options.backend, name)
        return self

    def _initialize(self, backend: Backend, name: str, executor: Executor | None = None) -> None:
        self.name = name
        self.backend = backend
        self._pid = os.getpid()
        self.tree = PhaseTree()
        #: Guards the tree, the log and the states; held for moments only.
        self.lock = threading.RLock()
        #: Sentences for people about how it runs; at the end they are among the result's.
        self.notes: list[str] = [backend.note] if backend.note else []
        #: How often nobody could be asked to cancel it; of a followed build.
        self.cancels_refused = 0
        #: What a pending build waits for, else ``None``.
        self.waiting_for: str | None = None
        #: Whether that is another build on the same device.
        self.waits_for_build = True
        #: Name and address of the Dask worker that builds, else ``None``.
        self.worker: str | None = None
        #: Times of the states, in epoch seconds, where they were reached.
        self.entered_at: dict[str, float] = {"pending": clock.time()}
        self._status = "pending"
        self._result: BuildResult | None = None
        self._engine: Any = None
        self._executor = executor
        self._last_status = StatusChanged(0.0, "pending")
        self._build_log = BuildLog()
        self._printed = ""
        self._facts: dict[str, Any] = {}
        self._forecast: Forecast | None = None
        self._options_digest = ""
        self._estimate = Estimate(0.0)
        self._estimate_told = self._estimate
        self._origin = clock.perf_counter()
        self._origin_epoch = clock.time()
        self._news: deque[Event] = deque()
        self._subscribers: list[tuple[Callable[[list[Event]], object], bool]] = []
        self._reason: str | None = None
        self._cancel_time = 0.0
        self._asked: tuple[str, float] | None = None
        self._deadline: threading.Timer | None = None
        self._started = False
        self._own_name: str | None = None
        self._wake = Wake()
        self._ended = threading.Event()
        self._published = threading.Event()
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._waiters: list[Callable[[], object]] = []
        self._drain_thread: threading.Thread | None = None
        self._interrupts: contextlib.ExitStack | None = None
        self._news.append(StreamStarted(0.0, name, backend.name, backend.version))

    # ------------------------------------------------------------------ what a user calls

    def start(self) -> Build:
        """Start the build in the background and return at once.

        One process builds one engine at a time per device: while another build runs, this one stays
        ``pending`` and :attr:`waiting_for` names the other. A build that was cancelled before
        stays cancelled.

        Raises
        ------
        BuildStateError
            It was started before.
        """
        with self.lock:
            if self._started:
                if _is_followed(self._executor):  # to look on twice is no harm
                    return self
                raise BuildStateError(
                    f"The build of {self.name} was started already.",
                    remedy="Make a new one with the same arguments to build again.",
                )
            if self._status in FINAL:
                return self
            if self._executor is None:
                executor = self._choose_executor()
                if self._status in FINAL:  # a signal handler has cancelled it meanwhile
                    return self
                self._executor = executor
                from trt_widget.identity import digest_of_options

                # Before the caller's functions can change what they refer to.
                self._options_digest = digest_of_options(self.options)
            # One time zero for both sides, also for a build that never comes to run.
            self._set_origin(self._executor.reset_origin())
            try:
                self._started = True
                # From now on a handler leaves its request to the drain thread. Did one end the
                # build before?
                if self._status in FINAL:
                    self._started = False
                    return self
                self._start_draining()
                _running.add(self)
                self._executor.start(
                    Hooks(
                        _weakly(self._on_running),
                        _weakly(self._on_waiting),
                        self._wake.set,
                        _weakly(self.signal_cancel),
                        _weakly(self._on_pending),
                    )
                )
            except BaseException as error:
                # No thread to be had, or Ctrl-C in between: nothing may be left waiting.
                self._give_up_start(error)
                raise
        return self

    def _choose_executor(self) -> Executor:
        """Make the executor that the options ask for; ``auto`` is a child process if it can be."""
        if self.options.client is not None:
            return self._choose_cluster()
        from trt_widget.executors.functions import CannotTravelError, pack_functions
        from trt_widget.executors.process import ProcessExecutor
        from trt_widget.executors.thread import ThreadExecutor

        assert self._source is not None  # noqa: S101 - only attach() has no source
        given = (self._source, self.options, self.backend, self.name)
        if self.options.executor == "thread":
            return ThreadExecutor(*given)
        try:
            functions = pack_functions(self._source, self.options)
        except CannotTravelError as error:
            if self.options.executor == "process":
                raise OptionError(
                    f"executor='process' is not possible: {error}.",
                    remedy="Only what can be pickled travels. Make locks, open files and "
                    "TensorRT's objects inside the function instead of using live ones, or build "
                    "with executor='thread'.",
                ) from error
            self.notes.append(
                f"Built in a thread of this process: {error}. So it can be stopped at a callback "
                "only, and a crash in it would end this process; executor='process' refuses that."
            )
            return ThreadExecutor(*given)
        return ProcessExecutor(*given, functions)

    def _choose_cluster(self) -> Executor:
        """Make the executor that builds on a Dask worker."""
        from trt_widget.executors.cluster import DaskExecutor
        from trt_widget.executors.functions import CannotTravelError, pack_functions

        assert self._source is not None  # noqa: S101 - only attach() has no source
        try:
            functions = pack_functions(self._source, self.options)
        except CannotTravelError as error:
            raise OptionError(
                f"client= is not possible: {error}.",
                remedy="Only what can be pickled travels to a Dask worker. Make locks, open files "
                "and TensorRT's objects inside the function instead of using live ones.",
            ) from error
        return DaskExecutor(self._source, self.options, self.backend, self.name, functions)

    def _give_up_start(self, error: BaseException) -> None:
        """End a build whose start broke off; the caller holds the lock."""
        executor = self._executor
        assert executor is not None  # noqa: S101 - start() made it
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted:
            outcome = Outcome("cancelled", ended_by="before build", reason="interrupt")
        else:
            failure = BuildFailed(
                f"The build of {self.name} could not be started: {error}.",
                remedy="Close what else uses threads and memory, and start a new one.",
            )
            outcome = Outcome("failed", error=failure, ended_by="error")
        executor.request_cancel("interrupt" if interrupted else "closed")
        self._conclude(outcome)
        if isinstance(executor, AttachedExecutor):
            executor.leave()  # nobody else says that it is over
        if self._drain_thread is None or not self._drain_thread.is_alive():
            self._publish()
            _running.discard(self)

    def rename(self, name: str) -> None:
        """Choose what people call the build, before its start; by default the source's name.

        Raises
        ------
        BuildStateError
            It was started, and others know it by its name.
        """
        with self.lock:
            if self._started or self._status in FINAL:
                raise BuildStateError(
                    f"The build of {self.name} was started already.",
                    remedy="Call rename() before start().",
                )
            self.name = name
            self._news[0] = StreamStarted(0.0, name, self.backend.name, self.backend.version)

    def request_cancel(self, reason: str = "user") -> bool:
        """Ask the build to stop; returns at once.

        The status is ``cancelling`` from now on (``cancelled`` if it was not started). Can be
        called from any thread and any number of times; the first reason stays.

        Parameters
        ----------
        reason
            ``"user"``, ``"deadline"``, ``"interrupt"`` or ``"closed"``.

        Returns
        -------
        bool
            Whether there was anything to cancel, and of a followed build whether its producer could
            be asked.

        Raises
        ------
        ValueError
            ``reason`` is none of those.
        """
        check_reason(reason)
        if _is_followed(self._executor):
            return self._request_elsewhere(self._executor, reason)
        with self.lock:
            if self._status in FINAL:
                return False
            if self._reason is None:
                self._reason = reason
                self._cancel_time = clock.perf_counter()
            if not self._started:
                outcome = Outcome("cancelled", ended_by="before build", reason=reason)
                self._conclude(outcome)
                self._start_draining()
                return True
            self._advance("cancelling", self._reason)
            executor = self._executor
        if executor is not None:
            executor.request_cancel(reason)
        return True

    def _request_elsewhere(self, executor: FollowedExecutor, reason: str) -> bool:
        """Ask the producer of a followed build, or stop to follow it."""
        with self.lock:
            if self._status in FINAL:
                return False
            if not self._started:
                self._conclude(Outcome("ended", notes=("It was never followed.",)))
                self._start_draining()
                return True
        if reason == "closed":
            executor.abandon()
            return True
        problem = executor.ask(reason)  # without the lock: it writes
        with self.lock:
            if self._status in FINAL:
                return False
            if problem is not None:
                self.cancels_refused += 1
                if problem not in self.notes:
                    self.notes.append(problem)
                return False
            if self._reason is None:
                self._reason = reason
                self._cancel_time = clock.perf_counter()
            self._advance("cancelling", self._reason)
        return True

    def signal_cancel(self, reason: str = "user") -> None:
        """Set the cancel flag and nothing else: for handlers that must never wait.

        Unlike :meth:`request_cancel` this takes no lock; the drain thread does the rest.
        """
        check_reason(reason)
        executor = self._executor
        if not self._started:
            self.request_cancel(reason)
            return
        if self._asked is None:
            self._asked = (reason, clock.perf_counter())
        if executor is not None:
            executor.request_cancel(reason)
        self._wake.set()

    def kill(self) -> None:
        """Cancel, and end the process that builds without a grace; returns at once.

        A build in a thread can only be asked: it ends where TensorRT calls back.
        """
        self.request_cancel()
        if self._executor is not None:
            self._executor.abandon()

    def cancel_blocker(self) -> None:
        """Ask the build that this one waits for to stop."""
        executor = self._executor
        if executor is not None:
            executor.cancel_blocker()

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the build has ended and return the engine.

        Ctrl-C (in a notebook: Interrupt) cancels the build; a second one leaves at once.

        A build's own subscribers, observers and functions (``configure=``) hold it up, so they
        cannot wait for it before it has ended.

        Parameters
        ----------
        timeout
            Seconds to wait at most. The build goes on when they are over.

        Returns
        -------
        bytes-like
            The serialized engine.

        Raises
        ------
        BuildFailed, BuildCancelled
            How else it ended.
        BuildStateError
            It was not started, or it would wait for the caller.
        TimeoutError
            ``timeout`` seconds have passed.
        """
        self.check_started()
        self.wait_ended(timeout)
        return self._give_engine()

    def wait_ended(
        self, timeout: float | None = None, between: Callable[[], object] | None = None
    ) -> None:
        """Block until the build has ended, whatever the outcome; see :meth:`wait`.

        Parameters
        ----------
        between
            Called about twenty times a second meanwhile.
        """
        deadline = None if timeout is None else clock.monotonic() + timeout
        pause = 0.05 if between else 0.2
        interrupted = False
        self._check_not_inside()
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
                        raise TimeoutError(f"{self.name} is still {self._status} after {timeout} s")
                    if self._drain_thread is not None and not self._drain_thread.is_alive():
                        self._conclude_broken()
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                if not self.request_cancel("interrupt") and not self._ended.is_set():
                    raise  # of a followed build, where nobody listens
        if threading.current_thread() is not self._drain_thread:
            self._published.wait(2.0)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait without blocking the event loop; a cancelled await cancels the build."""
        return self._await().__await__()

    async def _await(self) -> Any:
        self.check_started()
        await self.wait_ended_async()
        return self._give_engine()

    async def wait_ended_async(self) -> None:
        """Wait until the build has ended, whatever the outcome."""
        import asyncio

        def broken() -> bool:
            if self._drain_thread is None or self._drain_thread.is_alive():
                return False
            self._conclude_broken()
            return True

        try:
            await until_told(self._waiters, self._published, broken)
        except asyncio.CancelledError:
            self.request_cancel("interrupt")
            raise

    def stream(self, *, interval: float = 0.5, heartbeat: float = 1.0) -> ChunkStream:
        """Give small chunks, as plain dicts: phases as they open and close, then the outcome.

        ::

            for chunk in build.stream():  # or: async for
                print(chunk["phase"], chunk["status"])

        The first ``next()`` starts the build if it was not started. Leaving the loop early cancels
        it, whether by ``break``, an exception or a cancelled task; ``timeout=`` is the budget of
        time. A build that fails does not raise: the last chunk says why.

        Parameters
        ----------
        interval
            Seconds between two chunks on average; 0 for no limit.
        heartbeat
            Seconds without a chunk after which the phase that is open is told again.

        Returns
        -------
        ChunkStream
            See :mod:`trt_widget.chunks` for what is in a chunk.

        Raises
        ------
        OptionError
            ``interval`` or ``heartbeat`` is no such number.
        """
        from trt_widget.chunks import stream

        return stream(self, interval=interval, heartbeat=heartbeat)

    @property
    def status(self) -> str:
        """The state: one of the words in the text of this module."""
        return self._status

    @property
    def result(self) -> BuildResult | None:
        """What it came to, once it has ended."""
        return self._result

    @property
    def progress(self) -> float | None:
        """How far the build is, 0 to 1, by what earlier builds took; ``None`` while not known.

        It never falls, and is 1 only after success.
        """
        return self._estimate.progress

    @property
    def eta_s(self) -> float | None:
        """Seconds left, or ``None`` where nothing honest can be said."""
        return self._estimate.eta_s

    @property
    def exceeded(self) -> bool:
        """Whether the build takes clearly longer than was expected."""
        return self._estimate.exceeded

    @property
    def expected_s(self) -> float | None:
        """What the whole build was expected to take, in seconds, once its network is known."""
        return self._forecast.expected_s if self._forecast is not None else None

    @property
    def basis(self) -> str | None:
        """Where :attr:`progress` and :attr:`eta_s` come from, in words, or ``None``."""
        return self._forecast.basis if self._forecast is not None else None

    @property
    def earlier(self) -> list[BuildRecord]:
        """Earlier builds of the same network in the same way, the newest first."""
        return list(self._forecast.earlier) if self._forecast is not None else []

    @property
    def key(self) -> BuildKey | None:
        """What this build is comparable with, once its network is known."""
        return self._forecast.key if self._forecast is not None else None

    @property
    def history(self) -> History | None:
        """Where earlier builds were looked up, once the network is known."""
        return self._forecast.history if self._forecast is not None else None

    @property
    def engine(self) -> Any:
        """The serialized engine (bytes-like), once there is one, else ``None``.

        Raises
        ------
        BuildFailed
            The file of a large engine at ``output=`` was cut short after the build.
        """
        if not is_whole(self._engine):
            # Reading what is missing would end this process by SIGBUS.
            raise BuildFailed(
                f"The file of the engine of {self.name} was cut short after the build.",
                "Build again, and leave the file at output= as it is: it is the engine already.",
            )
        return self._engine

    @property
    def timings(self) -> pd.DataFrame:
        """A row per phase path, in tree order; open phases count up to now.

        Columns: ``phase``, ``path``, ``depth``, ``count``, ``total_s``, ``self_s``, ``mean_s``,
        ``max_s``, ``share``, ``steps``, ``num_steps``, ``status``. The self times add up to the
        durations of the roots.
        """
        with self.lock:
            columns = self.tree.timing_columns(self.now())
            complete = self.tree.outcome is not None
        return timings_frame(columns, complete=complete)

    @property
    def spans(self) -> pd.DataFrame:
        """A row per phase instance, in start order; seconds since the start of ``running``.

        Columns: ``phase``, ``path``, ``depth``, ``parent``, ``start_s``, ``end_s``, ``duration_s``,
        ``self_s``, ``steps``, ``num_steps``, ``status``. Bounded; see
        :func:`~trt_widget.timings.spans_frame`.
        """
        with self.lock:
            columns = self.tree.span_columns(self.now())
            complete, dropped = self.tree.outcome is not None, self.tree.spans_dropped
        return spans_frame(columns, complete=complete, dropped=dropped)

    @property
    def log(self) -> pd.DataFrame:
        """TensorRT's messages: ``time_s``, ``severity``, ``message``. Bounded."""
        with self.lock:
            messages, dropped = self._build_log.messages(), self._build_log.dropped
        return log_frame(messages, dropped=dropped)

    @property
    def messages(self) -> list[LogMessage]:
        """TensorRT's warnings and errors so far (bounded)."""
        with self.lock:
            return self._build_log.serious

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the engine to ``path``, whole or not at all.

        Raises
        ------
        BuildStateError
            There is no engine (yet).
        SaveError
            It could not be written; what was there before is intact.
        """
        if self._engine is None:
            ended = self._status in FINAL
            raise BuildStateError(
                f"There is no engine of {self.name}; the build's status is {self._status!r}.",
                remedy="It stays where it was built: result.output is its path there."
                if ended and self._status == "succeeded"
                else "result.error says why; make a new build to try again."
                if ended
                else "Wait for it first: wait() gives the engine or says why there is none.",
            )
        return save_atomically(self._engine, path)

    def record(self, path: str | os.PathLike[str] | None = None) -> Record:
        """Keep everything but the engine: the result, timings, spans and messages as they are now.

        Parameters
        ----------
        path
            Where to write it as JSON, whole or not at all; :func:`trt_widget.load_record` reads it,
            also on another machine.

        Raises
        ------
        SaveError
            It could not be written.
        """
        from trt_widget.record import make_record

        record = make_record(self)
        if path is not None:
            record.save(path)
        return record

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page of HTML with the summary, a timeline and the table of the phases.

        It has no scripts, fetches nothing, and stays below 100 kB.

        Raises
        ------
        SaveError
            It could not be written.
        """
        from trt_widget.record import save_as
        from trt_widget.report import report_html

        return save_as("report", report_html(self).encode("utf-8"), path)

    def plot(self) -> Picture:
        """Draw where the time went, as it is now: a picture that a notebook shows.

        Its ``save()`` writes it as SVG.
        """
        from trt_widget.plot import plot

        return plot(self)

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the phases in the Trace Event Format, which Perfetto and Chrome's tracing read.

        Raises
        ------
        SaveError
            It could not be written.
        """
        from trt_widget.trace import to_chrome_trace

        return to_chrome_trace(self, path)

    def subscribe(
        self, callback: Callable[[list[Event]], object], *, every_tick: bool = False
    ) -> Callable[[], None]:
        """Have ``callback`` called with every batch of events, on the build's drain thread.

        One that raises is reported once through :mod:`logging` and dropped; the build goes on. One
        that blocks holds up the view and the end (the builder itself goes on), so hand long work on
        to a thread of your own.

        Parameters
        ----------
        callback
            Takes a list of events, in the order in which they happened.
        every_tick
            Call it about ten times a second, also with an empty list.

        Returns
        -------
        callable
            Ends the subscription.
        """
        entry = (callback, every_tick)
        with self.lock:
            self._subscribers.append(entry)

        def unsubscribe() -> None:
            with self.lock, contextlib.suppress(ValueError):
                self._subscribers.remove(entry)

        return unsubscribe

    def close(self) -> None:
        """Cancel the build if it runs. What it found stays readable.

        A followed build goes on where it runs; it is only read no longer.
        """
        self.request_cancel("closed")
        with self.lock:
            self._later.clear()
        self._wake.set()

    # ------------------------------------------------------------------ attached builds

    @property
    def monitor(self) -> Any:
        """The progress monitor of an attached build, to be set in a builder config."""
        if not isinstance(self._executor, AttachedExecutor):
            raise BuildStateError(
                "Only an attached build gives its monitor away.",
                remedy="Use attach(), or ProgressMonitor() on its own.",
            )
        return self._executor.monitor

    def finish(self, engine: Any) -> Any:
        """Hand in what your builder returned, and get it back.

        Raises
        ------
        BuildCancelled, BuildFailed
            It was ``None``.
        BuildStateError
            The build was not entered.
        """
        if not isinstance(self._executor, AttachedExecutor) or not self._started:
            raise BuildStateError(
                "finish() is for a build that was attached and entered.",
                remedy="Write: with BuildWidget.attach(config) as w: w.finish(...)",
            )
        self._executor.finish(engine)
        self.wait_ended()
        # An engine that comes after the end changes nothing, and is not lost either.
        return self._give_engine() if engine is None else engine

    def __enter__(self) -> Build:  # noqa: PYI034 - typing.Self came with Python 3.11
        """Start to watch an attached build; Ctrl-C cancels it from now on.

        Raises
        ------
        BuildCancelled
            It was cancelled before: there is nothing to build.
        """
        if not isinstance(self._executor, AttachedExecutor):
            raise BuildStateError(
                "Only an attached build is used in a with statement.",
                remedy="Use start() and wait().",
            )
        before = self._started
        try:
            self.start()
            if self._started and threading.current_thread() is threading.main_thread():
                self._interrupts = contextlib.ExitStack()
                self._interrupts.enter_context(self.monitor.cancel_on_interrupt())
        except BaseException:  # __exit__ will not be called
            if not before:
                self._executor.leave()
            raise
        if not self._started:
            self._give_engine()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; without :meth:`finish` the outcome is not known."""
        if self._interrupts is not None:
            self._interrupts.close()
        executor = self._executor
        if isinstance(executor, AttachedExecutor):
            if error is not None:
                executor.finish(None, error)
            else:
                executor.leave()
            self.wait_ended()

    # ------------------------------------------------------------------ for views

    def now(self) -> float:
        """Seconds since the origin of the events, not past the end."""
        if self._status in FINAL:
            return self.tree.now
        return clock.perf_counter() - self._origin

    def epoch(self, time: float) -> float:
        """Turn a time of the events into seconds since the epoch, for clocks elsewhere."""
        return self._origin_epoch + time

    def epoch_now(self) -> float:
        """Give the present time in seconds since the epoch, by the clock of the events.

        That one only goes forward: a clock of the system that is set anew during the build does not
        move it against the other times of the build.
        """
        return self.epoch(clock.perf_counter() - self._origin)

    @property
    def executor(self) -> str:
        """Where the builder runs: ``"process"``, ``"thread"``, ``"dask"`` or elsewhere.

        That is ``"attached"`` for a build of your own code, and ``"followed"`` by its stream.

        Before the start it is what was asked for, which may be ``"auto"``.
        """
        return self._executor.kind if self._executor is not None else self.options.executor

    @property
    def source(self) -> Source | None:
        """Where the model comes from, checked; ``None`` where somebody else runs the build."""
        return self._source

    @property
    def grace_s(self) -> float:
        """Seconds that a cancel waits for TensorRT before the child process is ended."""
        return self.options.grace

    @property
    def can_cancel_blocker(self) -> bool:
        """Whether the build that this one waits for is one of this process."""
        executor = self._executor
        return executor is not None and executor.can_cancel_blocker()

    @property
    def can_cancel(self) -> bool:
        """Whether a cancel would reach whoever builds; of a followed build as far as is known."""
        executor = self._executor
        return not _is_followed(executor) or executor.can_ask

    @property
    def printed(self) -> str:
        """What the build process printed to its standard output and error; bounded, newest kept."""
        return self._printed

    @property
    def started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._started

    @property
    def told(self) -> bool:
        """Whether every subscriber was told everything, and nothing more will come."""
        return self._published.is_set()

    @property
    def last_status(self) -> StatusChanged:
        """The latest change of the state, as it was told."""
        return self._last_status

    def log_messages(self) -> tuple[list[LogMessage], int]:
        """Give TensorRT's messages that are kept, and the number of those that are not."""
        with self.lock:
            return self._build_log.messages(), self._build_log.dropped

    def call_later(self, delay: float, action: Callable[[], object]) -> None:
        """Call ``action`` on the drain thread in ``delay`` seconds, also after the end."""
        with self.lock:
            self._later.append((clock.monotonic() + delay, action))

    def __repr__(self) -> str:
        ended = f", {self._status}" if self._status in FINAL else ""
        return f"{type(self).__name__}({self.name!r}{ended})"

    def check_started(self) -> None:
        """Raise `BuildStateError` unless there is something to wait for."""
        if not self._started and self._status not in FINAL:
            raise BuildStateError(
                f"The build of {self.name} was not started.", remedy="Call start() first."
            )

    def check_waiting(self) -> None:
        """Raise `BuildStateError` if it waits for the caller; end a build that nobody drains."""
        self._check_not_inside()
        if self._drain_thread is not None and not self._drain_thread.is_alive():
            self._conclude_broken()

    def works_here(self) -> bool:
        """Whether the calling thread is one of the build's own, which its end waits for."""
        thread, executor = threading.current_thread(), self._executor
        return thread is self._drain_thread or (executor is not None and executor.builds_on(thread))

    def _check_not_inside(self) -> None:
        """Raise `BuildStateError` if the build would wait for the thread that waits for it."""
        if not self._ended.is_set() and self.works_here():
            if self.executor == "dask" and threading.current_thread() is not self._drain_thread:
                raise BuildStateError(
                    f"The build of {self.name} cannot be waited for in the event loop of its Dask "
                    "client: everything comes through that.",
                    remedy="Write: await build. Or make the client with asynchronous=False.",
                )
            raise BuildStateError(
                f"The build of {self.name} cannot be waited for by a function that it calls itself "
                "(a subscriber, an observer, configure=).",
                remedy="Wait elsewhere, or take the engine when the status has become succeeded.",
            )

    def _give_engine(self) -> Any:
        result = self._result
        if result is not None and result.error is not None:
            # A fresh traceback each time: the error is kept, and may be raised more than once.
            raise result.error.with_traceback(None)
        return self.engine

    def _on_running(self) -> None:
        executor = self._executor
        with self.lock:
            if executor is None or self._status != "pending":
                return
            self.waiting_for = None
            self._set_origin(executor.reset_origin())
            self._advance("running", time=0.0)
            self._enter_running()
            if self.options.timeout is not None:
                # A thread of its own: the drain may be held up by a subscriber.
                self._deadline = threading.Timer(
                    # Past what a thread can wait for, a deadline is none.
                    min(self.options.timeout, threading.TIMEOUT_MAX),
                    self.signal_cancel,
                    ("deadline",),
                )
                self._deadline.daemon = True
                self._deadline.start()

    def _enter_running(self) -> None:
        """Note when it began to run; a followed build did so before we came, perhaps."""
        running = self.entered_at["running"] = self.epoch(0.0)
        self.entered_at["pending"] = min(self.entered_at["pending"], running)

    def _set_origin(self, origin: float) -> None:
        """Take a reading of ``time.perf_counter()`` as time zero of the events."""
        self._origin = origin
        self._origin_epoch = clock.time() - (clock.perf_counter() - origin)

    def _on_waiting(self, label: str) -> None:
        self._wait_for(label, f"waiting for {label}, which builds on the same device", build=True)

    def _on_pending(self, what: str) -> None:
        self._wait_for(what, f"waiting for {what}", build=False)

    def _wait_for(self, whom: str, detail: str, *, build: bool) -> None:
        with self.lock:
            if self._status != "pending":
                return
            self.waiting_for, self.waits_for_build = whom, build
            self._last_status = StatusChanged(0.0, self._status, None, detail)
            self._news.append(self._last_status)
        self._wake.set()

    def _advance(
        self,
        status: str,
        reason: str | None = None,
        detail: str | None = None,
        time: float | None = None,
    ) -> bool:
        """Move to ``status`` if that is forward; the caller holds the lock."""
        if _ORDER[status] <= _ORDER[self._status]:
            return False
        self._status = status
        self.entered_at[status] = self.epoch_now() if time is None else self.epoch(time)
        if time is None:
            time = max(0.0, clock.perf_counter() - self._origin) if self._started else 0.0
        self._last_status = StatusChanged(time, status, reason, detail)
        self._news.append(self._last_status)
        self._wake.set()
        return True

    def _start_draining(self) -> None:
        self._drain_thread = threading.Thread(
            target=self._drain, name=f"trt_widget drain {self.name}"[:60], daemon=True
        )
        self._drain_thread.start()

    def _drain(self) -> None:
        try:
            last = 0.0
            while not self._ended.is_set():
                self._wake.wait(TICK_S)
                early = last + SHORTEST_TICK_S - clock.monotonic()
                if early > 0.0 and self._executor is not None and self._executor.outcome is None:
                    clock.sleep(early)
                self._wake.clear()
                last = clock.monotonic()
                self._tick()
            self._tell(self._last_news())
            self._remember()
            self._publish()
            self._run_later()
        except BaseException:  # noqa: BLE001 - whoever waits is told by _conclude_broken
            _report("trt_widget: the drain thread of %s broke off", self.name)
            if self._executor is not None:
                self._executor.request_cancel("closed")
                if self._executor.kind == "dask":  # a task waits until its end is taken
                    self._executor.abandon()
        finally:
            self._conclude_broken()
            self._publish()
            self._subscribers.clear()
            _running.discard(self)

    def _tick(self) -> None:
        executor = self._executor
        if executor is None:  # cancelled before it was started
            return
        if _is_followed(executor) and self._asked is not None:
            (reason, _), self._asked = self._asked, None
            self.request_cancel(reason)
        with self.lock:  # start() holds it until the executor has really started
            alive = executor.alive()
            outcome = executor.outcome
        events = executor.drain()
        if executor.kind == "dask":
            self._take_from_cluster(executor)
        self._look_back(events)
        with self.lock:
            if _is_followed(executor):
                self._take_from_elsewhere(executor, events)
            self._take(events)
            if self._asked is not None and self._reason is None:
                self.request_cancel(self._asked[0])
                self._cancel_time = self._asked[1]
            elif self._reason is None and executor.cancel_reason is not None:
                # The user's code asked the monitor itself, or Ctrl-C did.
                self.request_cancel(executor.cancel_reason)
            if outcome is not None:
                self._conclude(outcome)
            elif not alive and executor.outcome is None:
                self._conclude_broken()
            estimate = self._judge(some=bool(events or self._news))
            news = self._take_news()
            final = [news.pop()] if self._ended.is_set() and news else []
            news += [estimate] if estimate is not None else []
        forward([event for event in events if isinstance(event, LogMessage)])
        batch = [*news, *events]
        if not any(
            isinstance(event, Snapshot) for event in events
        ):  # it replaces what is before it
            batch.sort(key=lambda event: event.time)
        self._tell([*batch, *final])

    def _take(self, events: list[Event]) -> None:
        """Fold a batch; the caller holds the lock."""
        self.tree.apply(events)
        for event in events:
            if isinstance(event, LogMessage):
                self._build_log.add(event)
            elif isinstance(event, MessagesDropped):
                self._build_log.dropped += event.count
            elif isinstance(event, NetworkReady):
                self._facts.update(layers=event.layers, device=event.device)
                self._facts["timing_cache"] = event.timing_cache
            elif isinstance(event, OutputCaptured):
                self._printed = (self._printed + event.text)[-MAX_PRINTED:]

    def _take_from_elsewhere(self, executor: FollowedExecutor, events: list[Event]) -> None:
        """Take what a followed build says of itself; the caller holds the lock."""
        if self._status not in FINAL and abs(executor.origin - self._origin) > _SAME_ORIGIN_S:
            self._set_origin(executor.origin)
            if "running" in self.entered_at:
                self._enter_running()
        while events and isinstance(events[0], StreamStarted):
            self._begin_elsewhere(executor, events[0])
            del events[0]
        if executor.running_at is not None:
            self._on_running()  # before what follows from it
        if executor.cancelling_at is not None and self._reason is None:
            self._reason = executor.cancel_reason
            self._cancel_time = self._origin + executor.cancelling_at
            self._advance("cancelling", self._reason, time=executor.cancelling_at)

    def _take_from_cluster(self, executor: Any) -> None:
        """Take what only a build on a Dask cluster tells; ``executor`` is a `DaskExecutor`."""
        with self.lock:
            self.worker = executor.worker
            self.notes += executor.take_notes()
            if executor.told_backend != (self.backend.name, self.backend.version):
                from trt_widget.executors.followed import ToldBackend

                self.backend = ToldBackend(*executor.told_backend)
                self.notes.append(f"It is built by the {self.backend} of the Dask worker.")
            origin = executor.take_new_origin()
            if origin is not None and self._status not in FINAL:
                self._set_origin(origin)
                if "running" in self.entered_at:
                    self._enter_running()
            if executor.begins_again():  # on another worker: the tree is told anew
                self._forecast = None
                self._forget_what_was_told()

    def _forget_what_was_told(self) -> None:
        """Begin anew, but for the tree; the caller holds the lock."""
        self._build_log = BuildLog()
        self._printed = ""
        self._facts.clear()
        self._estimate = Estimate(0.0)
        if self._status != "pending":
            self._news.append(self._last_status)

    def _begin_elsewhere(self, executor: FollowedExecutor, hello: StreamStarted) -> None:
        """Take the beginning of a followed stream; the caller holds the lock."""
        self.name = self._own_name or hello.model or self.name
        self.backend = executor.told_backend(hello)
        told = StreamStarted(0.0, self.name, self.backend.name, self.backend.version)
        if self._news and isinstance(self._news[0], StreamStarted):
            self._news.popleft()  # nobody has heard that one yet
        self._news.appendleft(told)
        if executor.begins_again(hello):
            self.tree.apply([PhaseTree().snapshot()])
            self._forget_what_was_told()

    def _look_back(self, events: list[Event]) -> None:
        """Ask the history as soon as the network is known; without the lock, it reads a file."""
        ready = next((event for event in events if isinstance(event, NetworkReady)), None)
        if ready is None or self._forecast is not None:
            return
        if _is_followed(self._executor):
            return  # its producer has asked the history there
        from trt_widget.forecast import Forecast, key_of
        from trt_widget.history import History

        try:
            # A Dask worker builds in a child process of its own.
            where = "process" if self.executor == "dask" else self.executor
            key = key_of(ready, self.options, self.backend, where, self._options_digest)
            history = History()
            if key is not None and history.enabled:
                self._forecast = Forecast(key, history)
                if self._forecast.note:
                    self.notes.append(self._forecast.note)
        except Exception:  # noqa: BLE001 - whatever the history holds, the build goes on
            _report("trt_widget: the history of builds could not be used")

    def _judge(self, *, some: bool) -> Estimate | None:
        """Say how far the build is; the caller holds the lock.

        Parameters
        ----------
        some
            Whether there is a batch to put it into; without one it is told from time to time.
        """
        before, now = self._estimate, self.now()
        if self._status in FINAL:
            done = self._status == "succeeded"
            self._estimate = Estimate(
                now, 1.0 if done else before.progress, 0.0 if done else None, before.exceeded
            )
            return self._estimate if some else None
        if self._forecast is not None:
            try:
                reading = self._forecast.read(now, self.tree)
                self._estimate = Estimate(now, reading.progress, reading.eta_s, reading.exceeded)
            except Exception:  # noqa: BLE001 - as in _look_back
                _report("trt_widget: the time left could not be estimated")
                self._forecast = None
                self._estimate = Estimate(now, before.progress)
        elif _is_followed(self._executor):
            self._estimate = self._executor.read_estimate(now, before)
        if self._status == "cancelling":
            # How long it takes to stop is another thing.
            self._estimate = dataclasses.replace(self._estimate, eta_s=None)
        told, progress = self._estimate_told, self._estimate.progress
        news = progress is not None and (
            now - told.time >= TELL_ESTIMATE_S
            or progress - (told.progress or 0.0) >= TELL_PROGRESS
            or self._estimate.exceeded != told.exceeded
        )
        if not (some or news):
            return None
        self._estimate_told = dataclasses.replace(self._estimate, time=now)
        return self._estimate_told

    def _last_news(self) -> list[Event]:
        """Give what is still to be told, for a build that was cancelled before its start."""
        with self.lock:
            news = self._take_news()
            if not news:
                return []
            estimate = self._judge(some=True)
            return [*news[:-1], *([estimate] if estimate is not None else []), news[-1]]

    def _remember(self) -> None:
        """Keep what a build that has succeeded took."""
        result = self._result
        if self._forecast is None or result is None or result.status != "succeeded":
            return
        try:
            if not self._forecast.keep(self.tree, result.duration_s):
                _log.info("trt_widget: %s", self._forecast.history.note)
        except Exception:  # noqa: BLE001 - as in _look_back
            _report("trt_widget: the history of builds could not be written")

    def _take_news(self) -> list[Event]:
        news = []
        with self.lock:
            while self._news:
                news.append(self._news.popleft())
        return news

    def _tell(self, events: list[Event]) -> None:
        with self.lock:
            subscribers = list(self._subscribers)
        for entry in subscribers:
            callback, every_tick = entry
            if not events and not every_tick:
                continue
            try:
                callback(events)
            except BaseException:  # noqa: BLE001 - a subscriber's fault must not end the build
                _report(
                    "trt_widget: a subscriber of %s raised and is dropped: %r", self.name, callback
                )
                with self.lock, contextlib.suppress(ValueError):
                    self._subscribers.remove(entry)

    def _conclude(self, outcome: Outcome) -> None:
        """Take the outcome; the caller holds the lock."""
        if self._status in FINAL:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        executor = self._executor
        followed = executor if _is_followed(executor) else None
        if followed is not None and outcome.reason is not None:
            self._reason = outcome.reason  # the producer knows better
        requested = self._reason is not None
        if requested and outcome.status == "succeeded" and followed is None:
            self.notes.append("The engine was finished before TensorRT could notice the cancel.")
        reason = self._reason or outcome.reason
        error = outcome.error
        if outcome.status == "cancelled":
            cause = ""
            if reason == "deadline" and self.options.timeout is not None:
                after = f"{self.options.timeout:g} s"
                cause = f"The build was cancelled because its time was up after {after} (timeout=)."
            error = BuildCancelled(cause, reason=reason or "user")
        from trt_widget._timing_cache import cache_facts

        self.tree.close(outcome.status, outcome.time)
        self._engine = outcome.engine
        warnings = [m.message for m in self._build_log.serious if m.severity == "warning"]
        ended = self._origin + outcome.time
        facts = {**self._facts, **outcome.facts}
        self._result = BuildResult(
            status=outcome.status,
            engine_bytes=None if outcome.engine is None else _size(outcome.engine),
            duration_s=outcome.time if "running" in self.entered_at else 0.0,
            ended_by=outcome.ended_by,
            stop_latency_s=max(0.0, ended - self._cancel_time)
            if requested and self._started
            else None,
            reason=reason if requested or outcome.status == "cancelled" else None,
            backend=self.backend.name,
            version=self.backend.version,
            device=facts.get("device"),
            executor=self.executor,
            model=self.name,
            output=self.options.output if outcome.status == "succeeded" else None,
            layers=facts.get("layers"),
            peak_memory_bytes=self._executor.peak_memory_bytes if self._executor else None,
            warnings=tuple(warnings),
            notes=(*self.notes, *outcome.notes),
            error=error,
            timing_cache=cache_facts(facts.get("timing_cache")),
            worker=self.worker,
        )
        if followed is not None:
            self._result = followed.complete(self._result)
        self._advance(
            outcome.status,
            self._result.reason,
            error.cause if error else None,
            time=None if followed is None else outcome.time,
        )
        self._ended.set()

    def _conclude_broken(self) -> None:
        """End as failed if nothing else ended it: nobody waits for a dead build."""
        with self.lock:
            if self._status not in FINAL:
                failure = BuildFailed(
                    f"The build of {self.name} broke off without an outcome.",
                    remedy="This is a defect of trt_widget; please report it with the log.",
                )
                if os.getpid() != self._pid:
                    failure = BuildFailed(
                        f"The build of {self.name} is one of the process that this one was forked "
                        "from.",
                        remedy="Wait for it there, or make a new one here.",
                    )
                time = max(0.0, clock.perf_counter() - self._origin)
                self._conclude(Outcome("failed", error=failure, ended_by="error", time=time))

    def _publish(self) -> None:
        self._ended.set()
        self._published.set()
        for tell in list(self._waiters):
            tell()

    def _run_later(self) -> None:
        """Stay for the calls that views have asked for."""
        _running.discard(self)
        while True:
            with self.lock:
                if not self._later:
                    return
                when, action = min(self._later, key=lambda entry: entry[0])
            if clock.monotonic() < when:
                self._wake.wait(when - clock.monotonic())
                self._wake.clear()
                continue
            with self.lock, contextlib.suppress(ValueError):
                self._later.remove((when, action))
            try:
                action()
            except BaseException:  # noqa: BLE001 - a view's fault must not end the thread
                _report("trt_widget: a view of %s raised", self.name)


def _is_followed(executor: Executor | None) -> TypeIs[FollowedExecutor]:
    """Tell whether a build is followed, without importing what follows builds."""
    return executor is not None and executor.kind == "followed"


def _weakly(method: Callable[..., object]) -> Callable[..., None]:
    """Give a function that calls ``method`` as long as its object is there, and keeps it not.

    Whatever has to be called is there while it builds. Afterwards a build that nobody holds takes
    its engine's map and descriptor with it at once, and not at the next collection of garbage.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: object) -> None:
        found = reference()
        if found is not None:
            found(*arguments)

    return call


def _report(message: str, *arguments: object) -> None:
    """Log the exception that is being handled; a handler or filter that raises changes nothing."""
    with contextlib.suppress(Exception):
        _log.exception(message, *arguments)


def _size(engine: Any) -> int | None:
    """Give the size in bytes of an engine, or ``None`` where it is not serialized."""
    try:
        return memoryview(engine).nbytes
    except TypeError:
        return None


#: Builds between start and end. Added to and removed from by many threads: each is one operation.
_running: set[Build] = set()


@atexit.register
def _cancel_all() -> None:
    """Cancel what still runs when the interpreter is left: nobody could take the engine."""
    builds = list(_running)
    for build in builds:
        build.request_cancel("closed")
        if build._executor is not None:  # noqa: SLF001 - the same module
            build._executor.abandon()  # noqa: SLF001 - the same module
    deadline = clock.monotonic() + _EXIT_WAIT_S
    for build in builds:
        if build.executor != "attached":  # that one ends when the user's code says so, if at all
            build._published.wait(max(0.0, deadline - clock.monotonic()))  # noqa: SLF001


def _forget_all() -> None:
    """Start afresh in a forked child, which has none of the threads that build."""
    _running.clear()
    GATE.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
