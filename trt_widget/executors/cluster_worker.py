"""What runs on a Dask worker: the task of one build, and what lets go of it when nobody wants it.

The task runs the very executor that builds in a child process elsewhere, and relays what it tells.
Towards the client: messages on the client's topic, in which the events travel as JSON Lines. From
the client: calls of :func:`call`, which Dask runs on the worker's event loop, through the
scheduler, also where the client cannot reach the worker itself.

A task that nobody waits for any more (its future was cancelled, its client closed or died, its
worker closes) is told so by Dask's own states of the task, and ends its child without a grace.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import pickle
import sys
import threading
import time as clock
import uuid
import weakref
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from trt_widget import errors
from trt_widget._content import content_of, hash_bytes
from trt_widget._files import save_identified
from trt_widget._version import __version__
from trt_widget._wake import Wake
from trt_widget.errors import BuildError, SaveError
from trt_widget.events import BuildEnded, to_json
from trt_widget.executors import Hooks, Outcome
from trt_widget.executors.child import clipped
from trt_widget.executors.cluster_store import Stopped, Store
from trt_widget.executors.process import ProcessExecutor
from trt_widget.executors.worker import broke_off, failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distributed import Worker

    from trt_widget.events import Event
    from trt_widget.options import BuildOptions, Source

__all__ = ["PIECE", "PROTOCOL", "WINDOW", "Watch", "call", "run_task"]

#: Version of what client and worker say to each other.
PROTOCOL = 1
#: Bytes of a model or an engine that travel at once.
PIECE = 4 << 20
#: Messages that may be under way to a client that has not said yet that it has read them. Past it
#: the events stay in the child, which collapses phases to counts.
WINDOW = 256
#: Seconds between two batches of events: they go through the scheduler, which serves all workers.
TICK_S = 0.2
#: Bytes of the stream in one message, and from which size on they are compressed.
_MOST_BYTES = 64 * 1024
_COMPRESSED = 1024
#: Seconds between two looks while the task only waits.
_LOOK_S = 0.5
#: Dask's states of a task that runs and is wanted; "cancelled" is one that runs and is not.
_WANTED = frozenset({"executing", "long-running"})


class Site:
    """What one worker has of ours: its running builds and its models."""

    def __init__(self, worker: Worker) -> None:
        self.worker = weakref.proxy(worker)
        self.jobs: dict[str, Job] = {}
        self.store = Store(Path(worker.local_directory) / "trt_widget-models")

    def wants(self, key: str) -> bool:
        """Tell whether Dask still wants a task that runs here; from any thread."""
        with contextlib.suppress(ReferenceError):  # the worker is gone
            task = self.worker.state.tasks.get(key)
            return task is not None and task.state in _WANTED
        return False

    @property
    def closes(self) -> bool:
        """Whether the worker closes, or has."""
        with contextlib.suppress(ReferenceError):
            return self.worker.status.name in {"closing", "closed"}
        return True


#: By worker: with ``processes=False`` there are several in one process.
_sites: weakref.WeakKeyDictionary[Worker, Site] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def site_of(worker: Worker) -> Site:
    """Give what a worker has of ours."""
    with _lock:
        found = _sites.get(worker)
        if found is None:
            found = _sites[worker] = Site(worker)
        return found


class Watch(WorkerPlugin):
    """Hears from Dask that nobody wants a build any more."""

    def setup(self, worker: Worker) -> None:
        """Take the worker; called by Dask."""
        self._site = site_of(worker)
        _guard_profile(worker)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Hear of a task's change; called by Dask on the worker's event loop."""
        if start in _WANTED and finish in {"cancelled", "forgotten", "released"}:
            job = self._site.jobs.get(str(key))
            if job is not None:
                job.give_up()

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002 - Dask gives it by name
        """End all builds: the worker closes; called by Dask."""
        for job in list(self._site.jobs.values()):
            job.leave()


def _guard_profile(worker: Worker) -> None:
    """Keep the garbage collector out of Dask's look at what the threads do, on Python 3.11.

    ``sys._current_frames()`` makes objects there while it holds a lock of the interpreter's. If the
    collector then runs, and lets another thread go on that begins a thread of its own, that waits
    for the lock with the GIL in its hands: the worker stands still for ever (CPython issue 106883,
    mended late in 3.11). A build begins several threads, and Dask looks a hundred times a second.
    Dask itself leaves its profile of the event loop out on 3.11, but not this one.
    """
    version: tuple[object, ...] = sys.version_info
    profile = worker.periodic_callbacks.get("profile")
    if profile is None or version[:2] != (3, 11):
        return
    look = profile.callback

    def look_alone() -> None:
        enabled = gc.isenabled()
        gc.disable()
        try:
            look()
        finally:
            if enabled:
                gc.enable()

    profile.callback = look_alone


def run_task(request: bytes) -> str | None:
    """Build; the task that a client submits.

    Parameters
    ----------
    request
        Pickle of a dict: ``key`` (of the task), ``topic``, ``protocol``, ``version`` and what
        :class:`Job` takes. In one piece of bytes, since the scheduler would unpickle anything else,
        which then would need what a worker needs.

    Returns
    -------
    str or None
        Why this worker cannot build anything of that kind; the client has heard nothing of the
        build then, and gives it to another.
    """
    worker = get_worker()
    site = site_of(worker)
    job = Job(site, pickle.loads(request))  # noqa: S301 - as everything that Dask runs
    site.jobs[job.key] = job
    # What was told before it stood there was told to nobody.
    if site.closes:
        job.leave()
    elif not site.wants(job.key):
        job.give_up()
    try:
        why = job.find_obstacle()
        if why is None:
            job.run()
        return why
    finally:
        site.jobs.pop(job.key, None)


async def call(
    method: str, key: str, run: str, *arguments: Any, dask_worker: Worker | None = None
) -> Any:
    """Do what a client asks of a running build; called by Dask on the worker's event loop.

    Returns
    -------
    object
        What the method gives; ``None`` where that build does not run here (any more).
    """
    assert dask_worker is not None  # noqa: S101 - Dask gives it
    job = site_of(dask_worker).jobs.get(key)
    if job is None or job.token != run:
        return None
    answer = getattr(job, f"on_{method}")(*arguments)
    return await answer if asyncio.iscoroutine(answer) else answer


class Job:
    """One build on this worker.

    Parameters
    ----------
    site
        The worker's.
    request
        As in :func:`run_task`; further ``label``, ``functions``, ``options`` (a pickle of its own),
        ``source`` (without a value) and ``model``: ``path`` and ``folders`` where the client has
        it, ``digest``, and ``files``, each as name, size and hash; ``None`` for a callable.
    """

    def __init__(self, site: Site, request: dict[str, Any]) -> None:
        self._site = site
        self._request = request
        self.key: str = request["key"]
        #: Tells this run of the task from others.
        self.token = uuid.uuid4().hex
        self._wake = Wake()
        self._said = itertools.count()
        self._saying = threading.Lock()
        self._sent = 0
        self._read = 0
        self._unwanted = False
        self._released = False
        self._silent = False
        self._cancel: str | None = None
        self._options: BuildOptions
        self._executor: ProcessExecutor | None = None
        self._engine: memoryview | None = None
        self._began = clock.perf_counter()
        self._holds = contextlib.ExitStack()
        #: Where the pieces of a model go, and how many bytes are still to come.
        self._paths: list[Path] = []
        self._missing = 0

    # ------------------------------------------------------------------ on the event loop

    def give_up(self) -> None:
        """End without a grace: nobody waits for it any more."""
        self._unwanted = True
        self._wake.set()

    def leave(self) -> None:
        """End without a grace, and without a word: for the client the worker is lost."""
        self._silent = True
        self.give_up()

    def on_cancel(self, reason: str) -> bool:
        """Ask the builder to stop."""
        self._cancel = reason
        executor = self._executor
        if executor is not None:
            executor.request_cancel(reason)
        self._wake.set()
        return True

    def on_read(self, count: int) -> bool:
        """Hear that the client has read so many messages."""
        self._read = max(self._read, count)
        self._wake.set()
        return True

    def on_release(self) -> bool:
        """Hear that the client has all it wants."""
        self._released = True
        self._wake.set()
        return True

    async def on_put(self, index: int, offset: int, data: bytes) -> bool:
        """Take a piece of a model's file."""
        path = self._paths[index]

        def write() -> None:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(data)

        await asyncio.to_thread(write)
        self._missing -= len(data)
        if self._missing <= 0:
            self._wake.set()
        return True

    async def on_get(self, offset: int, size: int) -> bytes:
        """Give a piece of the engine."""
        assert self._engine is not None  # noqa: S101 - the client was told of it
        view = self._engine[offset : offset + size]
        return await asyncio.to_thread(bytes, view)

    def on_look(self, folder: str) -> tuple[int, int] | None:
        """Give by what the client knows whether a folder here is the same as there."""
        try:
            found = Path(folder).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    async def on_place(self, path: str) -> bool:
        """Write the engine into a folder that the client has too."""
        engine = self._engine
        assert engine is not None  # noqa: S101 - the client was told of it
        try:
            await asyncio.to_thread(save_identified, engine, path)
        except SaveError:
            return False  # the client fetches it, and says what is wrong with its folder
        return True

    # ------------------------------------------------------------------ the task's thread

    def find_obstacle(self) -> str | None:
        """Give why this worker cannot build what the client asks for, without a full stop."""
        request = self._request
        if request["protocol"] != PROTOCOL:
            return (
                f"it has trt_widget {__version__}, which does not understand the requests of the "
                f"client's {request['version']}"
            )
        try:
            self._options = pickle.loads(request["options"])  # noqa: S301 - as everything that Dask runs
        except ImportError as error:  # BackendNotFound is one
            cause = error.cause if isinstance(error, BuildError) else str(error)
            return cause.rstrip(".")
        return None

    def run(self) -> None:
        """Build, tell everything, and stay until the client has the engine."""
        worker = self._site.worker
        self._say(
            "begun",
            name=str(worker.name),  # Dask itself writes its address into "worker"
            address=worker.address,
            protocol=PROTOCOL,
            version=__version__,
        )
        try:
            with self._holds:
                try:
                    outcome = self._build()
                except Stopped:
                    outcome = self._stopped()
                except BuildError as error:
                    outcome = failed(error, self._now())
                except BaseException as error:  # noqa: BLE001 - whatever it is, the client is told
                    outcome = broke_off(error, self._now())
                self._hand_over(outcome)
        finally:
            self._engine = None

    def _build(self) -> Outcome:
        self._check_wanted()
        request = self._request
        source = self._find_source(request["source"])
        options = self._where_weights_are(self._options)
        if options.exclusive is None and not options.times_tactics:
            # How many run at once is Dask's to say: by the worker's threads and resources.
            options = dataclasses.replace(options, exclusive=False)
        executor = ProcessExecutor(
            source, options, options.backend, request["label"], request["functions"]
        )
        self._executor = executor

        def running() -> None:
            executor.reset_origin()
            backend = options.backend
            self._say("running", backend=backend.name, version=backend.version)

        executor.start(
            Hooks(
                running,
                lambda whom: self._say("waiting", whom=whom),
                self._wake.set,
                executor.request_cancel,
            )
        )
        return self._attend(executor)

    def _attend(self, executor: ProcessExecutor) -> Outcome:
        """Relay what the child tells until its end."""
        last = 0.0
        while True:
            self._wake.wait(TICK_S)
            early = last + TICK_S - clock.monotonic()
            if early > 0.0 and executor.outcome is None and self._cancel is None:
                clock.sleep(early)
            self._wake.clear()
            last = clock.monotonic()
            if self._unwanted:
                executor.abandon()
            elif self._cancel is not None:
                executor.request_cancel(self._cancel)
            outcome = executor.outcome
            if self._may_send or self._unwanted:
                self._send(executor.drain())
            elif outcome is not None:
                continue  # what is still to be told waits for the client
            if outcome is not None:
                return outcome

    @property
    def _may_send(self) -> bool:
        return self._sent - self._read < WINDOW

    def _now(self) -> float:
        return clock.perf_counter() - self._began

    def _stopped(self) -> Outcome:
        reason = self._cancel or "closed"
        return Outcome("cancelled", ended_by="before build", reason=reason, time=self._now())

    # ------------------------------------------------------------------ the model

    def _check_wanted(self) -> None:
        if self._unwanted or self._cancel is not None:
            raise Stopped

    def _find_source(self, source: Source) -> Source:
        """Give the source with its model: where the client has it, from the store, or sent."""
        model = self._request["model"]
        if model is None:
            return source
        path = self._seen_here(model)
        if path is None:
            path = self._holds.enter_context(
                self._site.store.hold(
                    model["digest"], model["files"], self._receive, self._check_wanted
                )
            )
            model["path"] = None
        if source.kind == "bytes":
            return dataclasses.replace(source, value=path.read_bytes())
        return dataclasses.replace(source, value=path)

    def _seen_here(self, model: dict[str, Any]) -> Path | None:
        """Give the client's own path if the same model is there: one machine, or a shared disk."""
        if model["path"] is None:
            return None
        path = Path(model["path"])
        folders = [Path(folder) for folder in model["folders"]]
        try:
            if path.stat().st_size != model["files"][0][1]:
                return None
            found = content_of(path, folders, self._check_wanted)
        except OSError:
            return None
        return path if found.digest == model["digest"] else None

    def _where_weights_are(self, options: BuildOptions) -> BuildOptions:
        """Let weights be read from where they are: with the model, in the store."""
        model = self._request["model"]
        if model is None or model["path"] is not None:
            return options
        return dataclasses.replace(
            options, external_data=(self._site.store.folder_of(model["digest"]),)
        )

    def _receive(self, paths: list[Path], sizes: list[int]) -> None:
        """Have the client send the files of a model."""
        self._paths = paths
        self._missing = sum(sizes)
        self._say("need")
        while self._missing > 0:
            self._check_wanted()
            self._wake.wait(_LOOK_S)
            self._wake.clear()

    # ------------------------------------------------------------------ what is told

    def _hand_over(self, outcome: Outcome) -> None:
        """Tell the end, and wait until the client has the engine."""
        engine = None if outcome.engine is None else memoryview(outcome.engine).cast("B")
        self._engine = engine
        executor = self._executor
        end = BuildEnded(
            outcome.time,
            outcome.status,
            outcome.ended_by,
            outcome.reason,
            None if outcome.error is None else clipped(errors.to_record(outcome.error)),
            None,
            None if engine is None else engine.nbytes,
            None if executor is None else executor.peak_memory_bytes,
            tuple(clipped(list(outcome.notes))),
            {name: value for name, value in outcome.facts.items() if name != "engine_file"},
        )
        self._send([end])
        self._say("end", sha256="" if engine is None else hash_bytes(engine))
        while not (self._unwanted or self._released):
            self._wake.wait(_LOOK_S)
            self._wake.clear()

    def _send(self, events: Iterable[Event]) -> None:
        data = "".join(f"{to_json(event)}\n" for event in events).encode("ascii")
        for at in range(0, len(data), _MOST_BYTES):
            part = data[at : at + _MOST_BYTES]
            if len(part) >= _COMPRESSED:
                self._say("packed", data=zlib.compress(part, 1))
            else:
                self._say("data", data=part)

    def _say(self, kind: str, **values: Any) -> None:
        with self._saying:  # so that they go in the order of their numbers
            if self._silent:
                return
            number = next(self._said)
            self._sent = number + 1
            message = {
                "key": self.key,
                "run": self.token,
                "number": number,
                "kind": kind,
                **values,
            }
            # A worker that is closing tells nothing any more, and is lost for the client.
            with contextlib.suppress(ReferenceError, OSError, RuntimeError):
                self._site.worker.log_event(self._request["topic"], message)
