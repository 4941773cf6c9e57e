"""The builder on a worker of a Dask cluster, seen from the client.

A build is one task. Where it runs, :mod:`trt_widget.executors.cluster_worker` builds in a child
process and tells what happens on one topic per client; this side folds it in as if it came through
a pipe. What is asked of the worker (cancel, pieces of a model, pieces of the engine) goes by
``client.run``. Models and engines never are part of the task: the scheduler only passes them on.

All that waits for the cluster are coroutines on the client's own event loop, none of which holds it
up; what is shown is folded in by the build's drain thread, as everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import pickle
import threading
import time as clock
import uuid
import weakref
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget import diagnosis, errors
from trt_widget._content import Content, Piece, content_of, hash_bytes, hash_file
from trt_widget._extras import require
from trt_widget._files import read_or_map, save_identified
from trt_widget._version import __version__
from trt_widget.errors import BuildError, BuildFailed, SaveError, SourceError, WorkerLost
from trt_widget.executors import Hooks, Outcome
from trt_widget.executors.cluster_choice import Unable, fitting, name_place, none_can
from trt_widget.executors.intake import Intake, is_sound
from trt_widget.executors.process import KILL_AFTER_S, Scratch
from trt_widget.executors.worker import failed
from trt_widget.phases import PhaseTree

require("distributed", extra="dask", what="A build on a Dask cluster")

from trt_widget.executors.cluster_worker import (  # noqa: E402 - it needs what was just required
    PIECE,
    PROTOCOL,
    WINDOW,
    call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from distributed import Client

    from trt_widget.backend import Backend
    from trt_widget.events import BuildEnded, Event
    from trt_widget.options import BuildOptions, Source

__all__ = ["Channel", "DaskExecutor"]

#: Seconds that a worker may take to answer.
ANSWER_S = 5.0
#: Seconds that a piece of a model or an engine may take.
_PIECE_S = 120.0
#: Pieces that are under way at the same time.
_PIECES = 2
#: Seconds between two questions why the task has not begun.
_ASK_WHY_S = 2.0
#: Seconds in which Dask tells that a worker is gone, or that a task is done.
_NEWS_S = 5.0
#: Seconds until a worker is told again what it did not take.
_AGAIN_S = 1.0
#: Seconds after which the scheduler has surely taken what was sent to it.
_SENT_S = 1.0
#: Seconds that a scheduler may take to say which workers there are, where a build depends on it.
_WORKERS_S = 60.0
#: Seconds in which a worker that was lost may come back, where only those are left that cannot
#: build; and between two looks.
_BACK_S = 15.0
_BACK_LOOK_S = 0.5

_CLOSED = frozenset({"closing", "closed"})

_log = logging.getLogger("trt_widget")


# ---- what travels by value: neither the scheduler nor a worker that never builds needs us --------


def _make_task() -> Callable[[bytes], tuple[str, str, str] | None]:
    def build(request: bytes) -> tuple[str, str, str] | None:
        from distributed import get_worker

        why: str | None
        try:
            from trt_widget.executors.cluster_worker import run_task
        except Exception as error:  # noqa: BLE001 - whatever it is, this worker cannot build
            plain = isinstance(error, ImportError)
            why = str(error) if plain else f"{type(error).__name__}: {error}"
        else:
            why = run_task(request)
        worker = get_worker()
        return None if why is None else (str(worker.name), worker.address, why)

    return build


def _make_plugin() -> Any:
    def make() -> Any:
        from distributed.diagnostics.plugin import WorkerPlugin

        try:
            from trt_widget.executors.cluster_worker import Watch
        except ImportError:
            return WorkerPlugin()
        return Watch()

    from distributed.diagnostics.plugin import WorkerPlugin

    class Travelling(WorkerPlugin):
        # One that replaced another would end the builds which that one watches.
        idempotent = True

        def __reduce__(self) -> Any:
            return make, ()

    return Travelling()


# ---- one per client ------------------------------------------------------------------------------


class Channel:
    """What all builds of one client share: the topic, the plugin, the order.

    Parameters
    ----------
    client
        Its event loop does all of the work.
    """

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        loop: Any = client.loop  # tornado's, which is asyncio's
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop
        self.topic = f"trt_widget-{client.id}"
        self._executors: dict[str, DaskExecutor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        #: The client's connection when it was opened: with another one, so may the scheduler be.
        self._opened_on: Any = None
        self._watched: dict[str, Callable[[Any], Any] | None] = {}
        self._sweeping: asyncio.Task[None] | None = None
        #: Those that have said that they cannot build, until they leave; by address.
        self.unable: dict[str, Unable] = {}
        #: When a worker was lost that could.
        self.lost_at = -math.inf
        #: Held while a build is submitted: they come to the cluster in the order of their starts.
        self.order = asyncio.Lock()
        #: The thread that the event loop was seen in.
        self.thread: int | None = None

    @staticmethod
    def of(client: Client) -> Channel:
        """Give the one of a client."""
        with _lock:
            found = _channels.get(client)
            if found is None:
                found = _channels[client] = Channel(client)
            return found

    @property
    def client(self) -> Any:  # distributed.Client, most of which has no types
        """The client."""
        client = self._client()
        if client is None:
            raise BuildFailed("The client of the Dask cluster is gone.", "Make a new one.")
        return client

    def post(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Have a coroutine run on the client's loop; from any thread. False where it has ended."""

        def run() -> None:
            self.thread = threading.get_ident()
            task = self._loop.create_task(begin())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            return False
        return True

    @property
    def loop_thread(self) -> int | None:
        """The thread that runs the event loop, as far as is known."""
        return self.thread if self._loop.is_running() else None

    @property
    def has_ended(self) -> bool:
        """Whether the event loop is closed: nothing comes any more."""
        return self._loop.is_closed()

    def add(self, executor: DaskExecutor) -> None:
        """Have an executor hear what its task says."""
        self._executors[executor.key] = executor

    def remove(self, executor: DaskExecutor) -> None:
        """Let an executor hear nothing any more."""
        self._executors.pop(executor.key, None)

    # ------------------------------------------------------------------ on the client's loop

    async def open(self) -> None:
        """Listen, and have every worker watched, of now and of later.

        Nothing is awaited where that is so already. A client that has found its scheduler again
        has told it nothing of this: it may be one that was restarted.
        """
        while True:
            connection = self.client.scheduler_comm  # None while there is none
            if connection is not self._opened_on:
                if self._opened_on is not None:
                    self.forget()
                # What is opened without a connection is sent with the next one, and nothing is to
                # be forgotten then; but the plugin may have gone to the scheduler before.
                self._opening, self._opened_on = None, connection
            opening = self._opening
            if opening is None:
                opening = self._opening = self._loop.create_task(self._open())
            try:
                await asyncio.shield(opening)
            except BaseException:
                if self._opening is opening:  # else another build has begun anew
                    self.forget()
                raise
            if self.client.scheduler_comm is connection:
                return

    async def _open(self) -> None:
        client = self.client
        client.subscribe_topic(self.topic, self._hear)
        await client.register_plugin(_make_plugin(), name=f"trt_widget-{PROTOCOL}")

    def forget(self) -> None:
        """Begin anew with the next build: the scheduler is another one, perhaps."""
        self._opening = None
        self._watched.clear()
        self.unable.clear()

    @property
    def state(self) -> str:
        """``"open"``, ``"closed"`` by the client's owner, or ``"lost"``: the scheduler is gone."""
        client = self.client
        # A client that does not find its scheduler again closes itself, without a connection.
        if client.status == "connecting" or (
            client.status in _CLOSED and client.scheduler_comm is None
        ):
            return "lost"
        return "closed" if client.status in _CLOSED else "open"

    async def workers(self, seconds: float = ANSWER_S) -> dict[str, Any]:
        """Ask the scheduler for its workers, by address."""
        asked = self.client.scheduler.identity()
        found: dict[str, Any] = (await asyncio.wait_for(asked, seconds))["workers"]
        for address in self.unable.keys() - found.keys():
            del self.unable[address]
        return found

    def avoid(self, worker: Unable) -> None:
        """Give no build any more to a worker, until it leaves."""
        self.unable[worker.address] = worker
        self.watch(worker.address)

    async def call(
        self, address: str, method: str, *arguments: Any, seconds: float = ANSWER_S
    ) -> Any:
        """Ask a worker.

        Raises
        ------
        OSError
            It cannot be reached, or takes too long.
        """
        asked = self.client.run(call, method, *arguments, workers=[address])
        try:
            answers = await asyncio.wait_for(asked, seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise OSError("it does not answer") from None
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return answers[address]

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        message = event[1]
        executor = self._executors.get(message.get("key", ""))
        if executor is not None:
            executor.hear(message)

    def watch(self, address: str) -> None:
        """Hear when a worker is gone: Dask tells it at once, before it begins the task again."""
        if address in self._watched:
            return
        # A client has one handler for a topic, and the user may have set one.
        before = getattr(self.client, "_event_handlers", {}).get(address)
        self._watched[address] = before

        def hear(event: tuple[float, Any]) -> Any:
            said = event[1]
            if isinstance(said, dict) and said.get("action") == "remove-worker":
                self._lose(address)
            return None if before is None else before(event)

        self.client.subscribe_topic(address, hear)
        if self._sweeping is None:
            self._sweeping = task = self._loop.create_task(self._sweep())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        """Find those that were gone before it was heard what is told of them."""
        await asyncio.sleep(_SENT_S)
        self._sweeping = None  # who is watched from now on is asked for once more
        watched = set(self._watched)
        while watched and self._client() is not None and self.state == "open":
            try:
                found = await self.workers()
            except Exception:  # noqa: BLE001 - a busy scheduler is asked again, a dead one not
                await asyncio.sleep(_SENT_S)
                continue
            for address in watched - found.keys():
                self._lose(address)
            return

    def _lose(self, address: str) -> None:
        if self.unable.pop(address, None) is None:
            self.lost_at = clock.monotonic()
        for executor in list(self._executors.values()):
            executor.lose(address)
        if self._watched.pop(address, None) is None:
            with contextlib.suppress(ValueError):
                self.client.unsubscribe_topic(address)


_channels: weakref.WeakKeyDictionary[Client, Channel] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Place:
    """One run of the task."""

    run: str
    worker: str
    address: str

    def __str__(self) -> str:
        return name_place(self.worker, self.address)


# ---- one per build -------------------------------------------------------------------------------


class DaskExecutor(Intake):
    """Runs one build on a Dask cluster; see :class:`~trt_widget.executors.Executor`.

    Parameters
    ----------
    source, options, backend
        What to build, how, and with which package; checked already.
    label
        What people call the build.
    functions
        From :func:`trt_widget.executors.functions.pack_functions`.
    """

    kind = "dask"

    def __init__(
        self,
        source: Source,
        options: BuildOptions,
        backend: Backend,
        label: str,
        functions: bytes | None,
    ) -> None:
        super().__init__()
        self._source: Source | None = source
        self._options = options
        self._label = label
        self._functions = functions
        self._channel = Channel.of(options.client)
        self.key = f"trt_widget-{uuid.uuid4().hex}"
        self._origin = clock.perf_counter()
        self._outcome: Outcome | None = None
        self._concluding = threading.Lock()
        self._cancel: tuple[str, float] | None = None
        self._abandoned: float | None = None
        self._content: Content | None = None
        self._future: Any = None  # distributed.Future, whose methods have no types
        #: What is submitted but for its key, and how often it was.
        self._request: dict[str, Any] = {}
        self._submitted = 0
        #: The only workers that it was given to, if not to all.
        self._given: list[str] | None = None
        self._heard = False
        self._explained: Any = None
        self._inbox: deque[tuple[float, dict[str, Any]]] = deque()
        #: Where it runs, as the loop knows it, which is ahead of the drain.
        self._place: _Place | None = None
        self._peak: int | None = None
        #: Nobody's before the start, which a cancel from a signal handler may precede.
        self._hooks = Hooks(lambda: None, lambda _whom: None, lambda: None, lambda _reason: None)
        # What the drain knows.
        self._run: _Place | None = None
        self._lost: list[_Place] = []
        self._is_lost = False
        self._runs = False
        self._read = 0
        self._acknowledged = 0
        self._tell_after = -math.inf
        self._ended_at: float | None = None
        self._asked_why = clock.perf_counter()
        self._why = ""
        self._done_since: float | None = None
        self._notes: list[str] = []
        self._news: list[str] = []
        self._new_origin: float | None = None
        self._again = False
        #: The package that builds there, as the worker tells it: name and version.
        self.told_backend = (backend.name, backend.version)

    # ------------------------------------------------------------------ the build's side

    def start(self, hooks: Hooks) -> None:
        """Begin in the background."""
        with self._concluding:  # who concludes from now on finds the hooks, and removes it
            self._hooks = hooks
            has_ended = self._outcome is not None
            if not has_ended:
                self._channel.add(self)
        if has_ended:
            hooks.changed()
            return
        if self._options.client.asynchronous:  # we are on its loop
            self._channel.thread = threading.get_ident()
        if not self._channel.post(self._begin):
            if self._channel.state == "closed":  # with the client went its event loop
                self._take_closing()
                return
            self._channel.remove(self)
            raise BuildFailed(
                "The event loop of the Dask client has ended.",
                "Make a new client, and a new build.",
            )

    def reset_origin(self) -> float:
        """Give the reading of ``time.perf_counter()`` at which the build's time zero was told."""
        if self._new_origin is None:
            self._origin = clock.perf_counter()
        else:
            self._origin, self._new_origin = self._new_origin, None
        return self._origin

    def take_new_origin(self) -> float | None:
        """Give the time zero of a build that was begun again, once."""
        origin, self._new_origin = self._new_origin, None
        if origin is not None:
            self._origin = origin
        return origin

    def begins_again(self) -> bool:
        """Whether what is drained now is of another run than what was drained before; once."""
        again, self._again = self._again, False
        return again

    def take_notes(self) -> list[str]:
        """Give the sentences for people that are new."""
        news, self._news = self._news, []
        return news

    @property
    def worker(self) -> str | None:
        """Name and address of the worker that builds, or was the last to."""
        return None if self._run is None else str(self._run)

    def drain(self) -> list[Event]:
        """Take what has arrived since the last call, ordered by time."""
        events: list[Event] = []
        for _ in range(len(self._inbox)):
            at, message = self._inbox.popleft()
            if message["kind"] == "begun":
                if self._begins(message, at):
                    events = [PhaseTree().snapshot()]
            elif message["kind"] == "lost":
                self._take_loss(message["address"])
            elif message["kind"] == "unable":
                self._news.append(message["note"])
            elif message["kind"] == "untold":
                self._take_untold(message["run"], message["acknowledged"])
            elif self._run is not None and message.get("run") == self._run.run:
                self._take(message, at)
        began = events
        events = self._take_waiting()
        events.sort(key=lambda event: event.time)
        if self._outcome is None:
            self._acknowledge()
            self._look()
        return [*began, *events]

    def request_cancel(self, reason: str) -> None:
        """Have the worker asked, or the task taken back."""
        if self._cancel is None:
            self._cancel = (reason, clock.perf_counter())
        self._channel.post(self._stop)

    def abandon(self) -> None:
        """Take the task back: the worker then ends the child without a grace."""
        if self._cancel is None:
            self._cancel = ("closed", clock.perf_counter())
        self._abandoned = self._abandoned or clock.perf_counter()
        self._channel.post(self._stop)

    @property
    def cancel_reason(self) -> str | None:
        """Reason of the first request to cancel, or ``None``."""
        cancel = self._cancel
        return None if cancel is None else cancel[0]

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest resident memory of the child, once it has ended."""
        return self._peak

    def can_cancel_blocker(self) -> bool:
        """Say no: what it waits for is on another machine."""
        return False

    def cancel_blocker(self) -> None:
        """Do nothing: as above."""

    def alive(self) -> bool:
        """Say yes: the drain sees when nothing can come any more."""
        return True

    def builds_on(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` runs the client's event loop, by which everything comes."""
        return thread.ident is not None and thread.ident == self._channel.loop_thread

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once there is one."""
        return self._outcome

    # ------------------------------------------------------------------ on the client's loop

    def hear(self, message: dict[str, Any]) -> None:
        """Take a message of the task; it is read by the drain."""
        if message["kind"] == "begun":
            self._place = _Place(message["run"], message["name"], message["address"])
            self._heard = True
            self._channel.unable.pop(self._place.address, None)
            self._channel.watch(self._place.address)
            if self._cancel is not None:
                self._channel.post(self._stop)
        elif message["kind"] == "need":
            place = self._place
            if place is not None and place.run == message["run"]:
                self._channel.post(lambda: self._send_model(place))
        self._inbox.append((clock.perf_counter(), message))
        self._hooks.changed()

    def lose(self, address: str) -> None:
        """Hear that a worker is gone."""
        if self._place is not None and self._place.address == address:
            self._place = None
            self._inbox.append((clock.perf_counter(), {"kind": "lost", "address": address}))
            self._hooks.changed()

    async def _begin(self) -> None:
        try:
            async with self._channel.order:
                if self._outcome is not None:
                    return
                await self._channel.open()
                self._request = await asyncio.to_thread(self._pack)
                await self._submit(await self._choose())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the build must not hang
            self._fail_to_give(error)

    async def _choose(self) -> list[str] | None:
        """Give the workers that may build it, or None for any."""
        channel = self._channel
        while channel.unable:
            workers = await channel.workers(_WORKERS_S)
            fit = fitting(workers, dict(self._options.resources))
            able = [address for address in fit if address not in channel.unable]
            if able:
                return able if len(able) < len(fit) else None
            if not fit or self._submitted == 0:  # what could not build then may be mended
                return None
            if clock.monotonic() - channel.lost_at > _BACK_S:
                raise none_can(channel.unable[address] for address in fit)
            self._wait_for("a Dask worker that can build")
            await asyncio.sleep(_BACK_LOOK_S)
            if self._outcome is not None or self._cancel is not None:
                return None
        return None

    async def _submit(self, able: list[str] | None) -> None:
        # The scheduler may be another one since the model was read, or the workers were looked at.
        await self._channel.open()
        if self._cancel is not None or self._outcome is not None:
            self._conclude(self._cancelled("crashed" if self._lost else "before build"))
            self._content = None
            return
        if self._submitted:  # nothing of what was said under the old name is meant for this task
            self._channel.remove(self)
            self.key = f"{self.key.partition('.')[0]}.{self._submitted}"
            self._channel.add(self)
        self._heard, self._given = False, able
        self._done_since = None
        self._future = self._channel.client.submit(
            _make_task(),
            pickle.dumps({**self._request, "key": self.key}),
            key=self.key,
            workers=able,
            resources=dict(self._options.resources) or None,
            retries=0,
            # Who had to go to another worker was there before those that are new.
            priority=self._submitted,
            # Else those of a tenth of a second have one priority, and any order.
            fifo_timeout="0 s",
            pure=False,
        )
        self._submitted += 1
        if self.outcome is not None:  # meanwhile
            self._channel.remove(self)
            await self._give_back()

    async def _give_anew(self, future: Any) -> None:
        """Give the build to other workers: those that had the task cannot build it, or are gone."""
        if future is None or self._future is not future or self._outcome is not None:
            return
        self._future = None
        try:
            with contextlib.suppress(Exception):
                await future.cancel()
            await self._submit(await self._choose())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the build must not hang
            self._fail_to_give(error)

    def _fail_to_give(self, error: BaseException) -> None:
        """Conclude from what went wrong before the cluster had the task."""
        state = self._channel.state
        if state == "closed":
            self._take_closing()
        elif isinstance(error, BuildError):
            self._conclude(failed(error, self._now()))
        elif state == "lost" or isinstance(error, OSError):
            failure = self._connection_lost()
            failure.__cause__ = error
            self._channel.forget()
            self._conclude(failed(failure, self._now()))
        else:
            self._conclude(failed(self._cluster_failed(error), self._now()))

    def _cluster_failed(self, error: BaseException) -> BuildFailed:
        failure = BuildFailed(
            f"The build could not be given to the Dask cluster: {type(error).__name__}: {error}",
            "Look at the client (client.status) and the scheduler's log; client and workers need "
            "the same version of distributed.",
        )
        failure.__cause__ = error
        return failure

    async def _stop(self) -> None:
        """Bring a cancel to where the build is."""
        if self._outcome is not None or self._cancel is None:
            return
        future, place = self._future, self._place
        if future is None:
            self._conclude(self._cancelled("crashed" if self._lost else "before build"))
        elif self._abandoned is not None or place is None:
            # What may have begun there meanwhile is ended by the worker, which hears it from Dask.
            with contextlib.suppress(Exception):
                await future.cancel()
            if place is None:
                self._conclude(self._cancelled("crashed" if self._lost else "before build"))
        else:
            with contextlib.suppress(OSError):  # then the drain sees that nothing comes
                await self._channel.call(
                    place.address, "cancel", self.key, place.run, self._cancel[0]
                )

    async def _send_model(self, place: _Place) -> None:
        """Send the files of the model to a worker that asks for them, or conclude."""
        content = self._content
        if content is None:  # the build has ended meanwhile
            return
        failure: BuildError
        try:
            await self._send_pieces(place, content)
        except Exception as error:  # noqa: BLE001 - whatever it is, the build must not hang
            if self._place != place:  # the worker is gone
                return
            what = f"The model of {self._label} could not be sent to the Dask worker {place}"
            if isinstance(error, BuildError):
                failure = error
            elif isinstance(error, OSError):
                failure = SourceError(
                    f"{what}: {error.strerror or error}.",
                    "Check the model's files and the connection to the cluster.",
                )
            else:
                failure = BuildFailed(
                    f"{what}: {type(error).__name__}: {error}",
                    "Unless this machine has not enough memory, please report it.",
                )
                with contextlib.suppress(Exception):  # a handler or filter may raise
                    _log.exception("trt_widget: the model of %s was not sent", self._label)
                # Its frames would keep the model for as long as the error is kept.
                failure.__cause__ = error.with_traceback(None)
            self._conclude(failed(failure, self._now()))
            await self._give_back()

    async def _send_pieces(self, place: _Place, content: Content) -> None:
        sent = 0

        async def send(index: int, piece: Piece, offset: int) -> None:
            nonlocal sent
            data = await asyncio.to_thread(piece.read, offset, PIECE)
            if len(data) != min(PIECE, piece.size - offset):
                raise SourceError(
                    f"{piece.name} was cut short while it was sent to the Dask worker.",
                    "Let nothing write to the model's files while builds begin, and build again.",
                )
            await self._channel.call(
                place.address, "put", self.key, place.run, index, offset, data, seconds=_PIECE_S
            )
            sent += len(data)
            if self._place == place and content.size > PIECE:
                share = f"{100 * sent // content.size} %"
                self._hooks.pending(f"the model to be sent to the Dask worker {place} ({share})")

        pieces = [
            (index, piece, offset)
            for index, piece in enumerate(content.files)
            for offset in range(0, piece.size, PIECE)
        ]
        self._hooks.pending(f"the model to be sent to the Dask worker {place}")
        for at in range(0, len(pieces), _PIECES):
            if self._outcome is not None or self._cancel is not None:
                return
            await asyncio.gather(*(send(*piece) for piece in pieces[at : at + _PIECES]))

    async def _finish(self, place: _Place, end: BuildEnded, sha256: str) -> None:
        """Fetch the engine, if there is one, and conclude."""
        engine = error = None
        problem: Exception | None = None
        status, ended_by = end.status, end.ended_by
        try:
            if end.error is not None:
                error = errors.from_record(end.error)
            if end.engine_bytes is not None:
                engine, unsaved = await self._bring_home(place, end, sha256)
                if unsaved is not None and error is None:
                    status, ended_by, error = "failed", "error", unsaved
        except Exception as caught:  # noqa: BLE001 - whatever it is, the build must not hang
            problem = caught
        if problem is not None:
            # Dask may be about to say that the worker is gone.
            await asyncio.sleep(_NEWS_S)
            if self._place != place:
                return
            status, ended_by = "failed", "error"
            error = BuildFailed(
                f"The engine of {self._label} could not be brought home from the Dask worker "
                f"{place}: {problem}.",
                "Look at the connection to the cluster and the room in the folder for temporary "
                "files, or give output= in a folder that the workers have too.",
            )
        elif not is_sound(status, engine, error):
            engine, status, ended_by = None, "failed", "error"
            error = BuildFailed(
                "The Dask worker told an end that contradicts itself "
                f"(status {end.status!r}); nothing of it is believed.",
                "Build again; if it stays, the model or a function has damaged the build process.",
            )
        self._conclude(
            Outcome(
                status,
                engine,
                error,
                ended_by,
                self.cancel_reason or end.reason,
                min(max(end.time, 0.0), self._now()) if status != "cancelled" else self._now(),
                (*self._notes, *self._bad_lines_note(), *end.notes),
                end.facts,
            )
        )
        with contextlib.suppress(OSError):
            await self._channel.call(place.address, "release", self.key, place.run)
        await self._give_back()

    async def _bring_home(
        self, place: _Place, end: BuildEnded, sha256: str
    ) -> tuple[memoryview, SaveError | None]:
        """Give the engine, and why it could not be saved at ``output=``."""
        size = end.engine_bytes or 0
        output = self._options.output
        if end.status != "succeeded":
            output = None
        if output is not None:
            with contextlib.suppress(OSError):
                placed = await self._placed(place, output, size, sha256)
                if placed is not None:
                    return placed, None
        engine = await self._pull(place, size)
        if await asyncio.to_thread(hash_bytes, engine) != sha256:
            raise OSError("it is not what the worker has sent")
        if output is not None:
            try:
                await asyncio.to_thread(save_identified, engine, output)
            except SaveError as error:
                return engine, error
        return engine, None

    async def _placed(
        self, place: _Place, output: Path, size: int, sha256: str
    ) -> memoryview | None:
        """Have the worker write to ``output=``, if it sees that folder too; give what is there."""
        # The target of a link is written, as everywhere.
        target = Path(os.path.realpath(output))  # noqa: ASYNC240 - a moment
        theirs = await self._channel.call(
            place.address, "look", self.key, place.run, str(target.parent)
        )
        found = target.parent.stat()
        if theirs is None or tuple(theirs) != (found.st_ino, found.st_mtime_ns):
            return None
        if not await self._channel.call(
            place.address, "place", self.key, place.run, str(target), seconds=_PIECE_S
        ):
            return None
        engine = await asyncio.to_thread(read_or_map, target)
        if engine.nbytes != size or await asyncio.to_thread(hash_bytes, engine) != sha256:
            return None
        return engine

    async def _pull(self, place: _Place, size: int) -> memoryview:
        with Scratch() as scratch:
            address = scratch.address
            descriptor = address
            if isinstance(descriptor, str):
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
                descriptor = os.open(descriptor, flags, 0o600)
            writing = threading.Lock()  # one position for all

            def write(offset: int, data: bytes) -> None:
                with writing:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                    view = memoryview(data)
                    while view:
                        view = view[os.write(descriptor, view) :]

            async def fetch(offset: int) -> None:
                data = await self._channel.call(
                    place.address, "get", self.key, place.run, offset, PIECE, seconds=_PIECE_S
                )
                if data is None or len(data) != min(PIECE, size - offset):
                    raise OSError("the worker has it no longer")
                await asyncio.to_thread(write, offset, data)

            try:
                for at in range(0, size, PIECE * _PIECES):
                    offsets = range(at, min(size, at + PIECE * _PIECES), PIECE)
                    await asyncio.gather(*map(fetch, offsets))
            finally:
                if descriptor is not address:
                    os.close(descriptor)
            return scratch.map()

    async def _give_back(self) -> None:
        """Let go of the task, whatever has become of it."""
        future, self._future = self._future, None
        if future is not None:
            with contextlib.suppress(Exception):
                await future.cancel()

    async def _explain_future(self, future: Any) -> None:
        """Conclude from a task that has failed, or has ended without a word."""
        where = f" {self._run}" if self._run is not None else ""
        try:
            error = await future.exception()
            said = None if error is not None else await future.result()
        except BaseException as caught:  # noqa: BLE001 - whatever it is, the build must not hang
            error, said = caught, None
        from distributed.scheduler import KilledWorker

        failure: BuildFailed
        if said is not None:
            await self._take_refusal(future, Unable.told(*said))
            return
        if self._future is not future:
            return
        if error is None and not self._heard:  # its messages may come after all
            self._explained, self._heard = None, True
            return
        if isinstance(error, KilledWorker):
            failure = self._worker_lost()
        elif error is not None:
            failure = BuildFailed(
                f"The task of {self._label} failed on the Dask cluster: {type(error).__name__}: "
                f"{error}",
                "The worker's log says more. Client and workers need the same versions of "
                "trt-widget and distributed.",
            )
            failure.__cause__ = error
        else:
            failure = BuildFailed(
                f"The task of {self._label} ended on the Dask worker{where} without an outcome.",
                "The worker's log may say why; build again.",
            )
        self._conclude(failed(failure, self._now()))
        await self._give_back()

    async def _take_refusal(self, future: Any, worker: Unable) -> None:
        """Take that a worker cannot build: another may."""
        if self._future is not future or self._outcome is not None:
            return
        self._channel.avoid(worker)
        note = f"The Dask worker {worker} cannot build: {worker.why}."
        self._inbox.append((clock.perf_counter(), {"kind": "unable", "note": note}))
        await self._give_anew(future)

    async def _ask_why(self) -> None:
        """Find out why the task has not begun."""
        future, given = self._future, self._given
        try:
            workers = await self._channel.workers()
        except Exception:  # noqa: BLE001 - it is only for people
            return
        wanted = dict(self._options.resources)
        able = fitting(workers, wanted)
        if given is not None and self._place is None and not set(given) & set(able):
            await self._give_anew(future)  # those that it waits for have left
            return
        listed = ", ".join(f"{name}={amount:g}" for name, amount in wanted.items())
        if not workers:
            why = "a Dask worker: the cluster has none"
        elif not able:
            count = len(workers)
            has = "the only one does not have it" if count == 1 else f"none of {count} has it"
            why = f"a Dask worker with {listed}: {has}"
        else:
            why = "a free Dask worker"
        if self._place is None:
            self._wait_for(why)

    def _wait_for(self, what: str) -> None:
        """Tell what the task waits for."""
        if self._outcome is None and what != self._why:
            self._why = what
            self._hooks.pending(what)

    # ------------------------------------------------------------------ the drain's side

    def _begins(self, message: dict[str, Any], at: float) -> bool:
        """Take the beginning of a run; give whether there was one before."""
        again = self._run is not None
        if again and not self._is_lost:
            assert self._run is not None  # noqa: S101 - as above
            self._take_loss(self._run.address)
        place = _Place(message["run"], message["name"], message["address"])
        self._run, self._is_lost = place, False
        self._runs, self._read, self._acknowledged, self._ended_at = False, 1, 1, None
        self._tell_after = -math.inf
        self._begin_stream()
        if self._why:  # what was waited for is there
            self._hooks.pending(f"the Dask worker {place} to begin")
        if again:
            self._again, self._new_origin = True, at
            if self._outcome is None:
                self._news.append(f"It was begun again on the Dask worker {place}.")
        return again

    def _take_loss(self, address: str) -> None:
        """Take that the worker is gone: the task begins again, or the build has failed."""
        if self._run is None or self._is_lost or self._run.address != address:
            return
        self._is_lost = True
        self._lost.append(self._run)
        if self._outcome is not None:
            return
        if self._cancel is not None:
            self._conclude(self._cancelled("crashed"))
            self._channel.post(self._give_back)
        elif len(self._lost) > self._options.reschedules:
            self._conclude(
                Outcome(
                    "failed",
                    error=self._worker_lost(),
                    ended_by="crashed",
                    time=self._now(),
                    notes=tuple(self._notes),
                )
            )
            self._channel.post(self._give_back)
        else:
            self._news.append(f"The Dask worker {self._run} was lost while it built.")

    def _worker_lost(self) -> WorkerLost:
        names = [str(place) for place in self._lost]
        several = f"the Dask workers {' and '.join(names)} were" if len(names) > 1 else ""
        which = several or f"the Dask worker {names[0]} was" if names else "its Dask workers were"
        return WorkerLost(
            f"{which[:1].upper()}{which[1:]} lost while {self._label} was built there.",
            "The log of the worker or of its nanny may say why: most often the machine had not "
            "enough memory.",
            [message for _, message in self._words],
            phase=self._open_phase,
            workers=names,
        )

    def _take(self, message: dict[str, Any], at: float) -> None:
        """Take a message of the present run."""
        missed = message["number"] - self._read
        self._read = message["number"] + 1
        if missed:
            self._notes.append(f"{missed} messages of the Dask worker were lost on the way.")
        kind = message["kind"]
        if kind == "data":
            self._take_bytes(message["data"])
        elif kind == "packed":
            self._take_bytes(zlib.decompress(message["data"]))
        elif kind == "waiting":
            self._hooks.waiting(message["whom"])
        elif kind == "running":
            self.told_backend = (message["backend"], message["version"])
            self._new_origin = at
            if not self._runs:
                self._runs = True
                self._hooks.running()
        elif kind == "end" and self._run is not None:
            self._ended_at = at
            self._take_end(self._run, message["sha256"])

    def _take_end(self, place: _Place, sha256: str) -> None:
        """Take that the worker has told all: how the build has ended was told before."""
        end = self._end
        if end is not None:
            self._peak = end.peak_memory_bytes
            self._channel.post(lambda: self._finish(place, end, sha256))
            return
        if self._cancel is not None:
            self._conclude(self._cancelled("unknown"))
        else:
            error = BuildFailed(
                f"The build of {self._label} has ended on the Dask worker {place}, but messages "
                "were lost on the way: how it has ended is not known, and there is no engine.",
                "Build again; if it stays, look at the scheduler's log.",
            )
            notes = (*self._notes, *self._bad_lines_note())
            self._conclude(dataclasses.replace(failed(error, self._now()), notes=notes))
        self._channel.post(self._give_back)

    def _acknowledge(self) -> None:
        """Tell the worker what was read: it stops to send when too much is under way."""
        place = self._run
        if place is None or self._is_lost or self._read - self._acknowledged < WINDOW // 4:
            return
        if clock.perf_counter() < self._tell_after:
            return
        before, read = self._acknowledged, self._read
        self._acknowledged = read

        async def tell() -> None:
            try:
                await self._channel.call(place.address, "read", self.key, place.run, read)
            except OSError:
                # A worker that waits for it says nothing more. It is the drain that takes it back:
                # it alone knows whether another run has begun.
                untold = {"kind": "untold", "run": place.run, "acknowledged": before}
                self._inbox.append((clock.perf_counter(), untold))

        self._channel.post(tell)

    def _take_untold(self, run: str, acknowledged: int) -> None:
        """Take that the worker has not heard what was read: it is told again, in a moment."""
        if self._run is not None and self._run.run == run:
            self._acknowledged = min(self._acknowledged, acknowledged)
            self._tell_after = clock.perf_counter() + _AGAIN_S

    def _look(self) -> None:
        """See whether something has ended that says nothing any more."""
        future, now = self._future, clock.perf_counter()
        # In this order: who closes a client releases its futures, and may end its event loop.
        unwanted = self._cancel is None and self._ended_at is None
        given_up = unwanted and future is not None and future.status in {"cancelled", "lost"}
        given_up = given_up and future is self._future  # else we did it, for another
        has_ended = self._channel.has_ended
        state = self._channel.state
        if state == "closed":
            self._take_closing()
            return
        if has_ended or given_up or (state == "lost" and self._channel.client.status in _CLOSED):
            self._channel.forget()
            self._conclude(failed(self._connection_lost(), self._now()))
            return
        if self._cancel is not None and self._ended_at is None:
            latest = self._cancel[1] + self._options.grace + KILL_AFTER_S + ANSWER_S
            if self._abandoned is not None:
                latest = min(latest, self._abandoned + KILL_AFTER_S + 1.0)
            if now > latest:
                self._notes.append("The Dask worker did not say that the build has ended.")
                self._conclude(self._cancelled("killed"))
                self._channel.post(self._give_back)
                return
        if future is None:
            return
        if self._place is None and now - self._asked_why > _ASK_WHY_S:
            self._asked_why = now
            self._channel.post(self._ask_why)
        self._look_at(future, now)

    def _look_at(self, future: Any, now: float) -> None:
        """See whether the task has ended without a word."""
        status = future.status
        if future is self._explained:
            return
        if status in {"error", "finished"} and self._ended_at is None:
            if self._done_since is None:
                self._done_since = now
            # One that has said nothing was refused, by a worker that cannot build.
            at_once = status == "error" or not self._heard
            if at_once or now - self._done_since > 1.0:
                self._explained = future
                self._channel.post(lambda: self._explain_future(future))

    def _take_closing(self) -> None:
        """Conclude: the client was closed by its owner."""
        if self._cancel is None:
            self._cancel = ("closed", clock.perf_counter())
        self._conclude(self._cancelled("killed" if self._run else "before build"))

    def _connection_lost(self) -> BuildFailed:
        where = f" (the worker was {self._run})" if self._run is not None else ""
        return BuildFailed(
            f"The Dask scheduler gave the build of {self._label} up, or the connection to it was "
            f"lost{where}.",
            "If the scheduler ended or was restarted, start it again, make a new client, and build "
            "again.",
            evidence=_evidence(self._open_phase),
        )

    def _now(self) -> float:
        return max(0.0, clock.perf_counter() - self._origin)

    def _cancelled(self, ended_by: str) -> Outcome:
        return Outcome(
            "cancelled",
            ended_by=ended_by,
            reason=self.cancel_reason,
            time=self._now(),
            notes=tuple(self._notes),
        )

    def _conclude(self, outcome: Outcome) -> None:
        """Take the outcome; the first one counts. From any thread."""
        with self._concluding:
            if self._outcome is not None:
                return
            self._outcome = outcome
        self._channel.remove(self)
        self._content = None
        self._request = {}
        self._hooks.changed()

    # ------------------------------------------------------------------ the request

    def _pack(self) -> dict[str, Any]:
        """Make the request, but for its key; it reads the whole model, once per file."""
        source, self._source = self._source, None
        assert source is not None  # noqa: S101 - it is packed once
        model = None
        if source.kind == "proto":
            from trt_widget.network import serialize

            source = dataclasses.replace(source, kind="bytes", value=serialize(source))
        if source.kind != "callable":
            self._content = content = _read(source, self._options)
            model = {
                "path": str(source.value) if source.kind == "path" else None,
                "folders": [str(folder) for folder in self._options.external_data],
                "digest": content.digest,
                "files": [(piece.name, piece.size, piece.sha256) for piece in content.files],
            }
        options = dataclasses.replace(
            self._options, configure=None, config=None, client=None, resources=(), output=None
        )
        return {
            "topic": self._channel.topic,
            "protocol": PROTOCOL,
            "version": __version__,
            "label": self._label,
            "source": dataclasses.replace(source, value=None),
            "model": model,
            "functions": self._functions,
            "options": pickle.dumps(options),
        }


def _read(source: Source, options: BuildOptions) -> Content:
    """Read all of a model, as far as it can be told what belongs to it."""
    try:
        return content_of(source.value, options.external_data)
    except OSError as error:
        explained = diagnosis.explain_source(source)
        if explained is None and source.kind == "path":
            with contextlib.suppress(OSError):
                hashed = hash_file(source.value)
                piece = Piece("model.onnx", source.value, hashed.state.size, hashed.sha256)
                return Content((piece,))
        raise explained or SourceError(
            f"{source.display_name} cannot be read: {error.strerror}.", "Check the model's files."
        ) from error


def _evidence(phase: str | None) -> list[str]:
    """Say in which phase a build was, where that is known."""
    return [] if phase is None else [f"It was in the phase {phase}."]
