"""What each surface costs beside the widget: one recorded flood, replayed to one after the other.

The stream is that of a real build process at 50,000 callbacks a second. It is given to the build as
its process would, in real time, so that every surface works at its own pace: those that draw skip
what nobody would see. Measured is CPU time of this process, less that of the same build with no
surface; what a terminal, a disk or a browser does with the result is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import queue
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import comm
from comm.base_comm import BaseComm

from tests import models
from tests.bench.builds import CALLBACKS, flood_events
from tests.bench.figures import say
from tests.bench.inside import last_state
from tests.bench.stats import Row, ratios, spread
from trt_widget import Build, BuildWidget
from trt_widget.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from trt_widget.events import Event

#: Callbacks in the flood, and how many come in a second.
COUNT = 100_000
RATE = 50_000
#: Seconds until the first event, and after the last one for what lags behind.
BEGIN_S = 0.5
SETTLE_S = 0.3
#: What the surfaces import.
MODULES = (
    *("trt_widget.servers._language", "trt_widget.servers._sse", "trt_widget.servers._tools"),
    *("trt_widget.sinks.jsonl", "trt_widget.sinks.lines", "trt_widget.sinks.terminal"),
)

Recorded = list[tuple[float, list["Event"]]]


def record() -> Recorded:
    """Build with a flood in a process of its own; give what it sent, batch by batch."""
    batches: Recorded = []

    def take(events: list[Event]) -> None:
        ours = [event for event in events if isinstance(event, CALLBACKS)]
        if ours:
            batches.append((max(event.time for event in ours), ours))

    build = Build(
        models.mlp().SerializeToString(), executor="process", configure=models.configure_flood
    )
    build.subscribe(take)
    build.start().wait()
    return batches


class Player:
    """Gives recorded batches when their time has come, instead of what a monitor recorded.

    Attributes
    ----------
    over
        Set when all were given.
    used_before
        CPU seconds of this process when the first was.
    """

    def __init__(self, build: Build, recorded: Recorded) -> None:
        self.over = threading.Event()
        self.used_before: float | None = None
        self._build = build
        self._left = deque(recorded)
        executor: Any = build._executor
        executor.drain = self.drain

    def drain(self) -> list[Event]:
        """Be the drain of the build's executor."""
        now = time.perf_counter() - self._build._origin
        events: list[Event] = []
        while self._left and self._left[0][0] <= now:
            if self.used_before is None:
                self.used_before = time.process_time()
            events += self._left.popleft()[1]
        if not self._left:
            self.over.set()
        return events


# ------------------------------------------------------------------ the surfaces


class Encoded(BaseComm):
    """A comm that encodes its messages, as a kernel does, and sends them nowhere."""

    amount: ClassVar[int] = 0

    def publish_msg(self, msg_type: str, data: Any = None, **more: Any) -> None:
        """Encode one."""
        Encoded.amount += len(json.dumps([msg_type, data, more], default=str).encode())


@contextlib.contextmanager
def nothing(_build: Build) -> Iterator[None]:
    """Only the build: its drain and its tree."""
    yield


@contextlib.contextmanager
def terminal(build: Build) -> Iterator[None]:
    """Nested bars in a terminal of 160 by 50."""
    from trt_widget.sinks.terminal import Bars

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    # Another process is the terminal.
    with (
        subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL) as reader,
        os.fdopen(theirs, "w", encoding="utf-8") as stream,
        Bars(build, stream),
    ):
        os.close(ours)
        yield
        reader.terminate()


@contextlib.contextmanager
def lines(build: Build) -> Iterator[None]:
    """Plain lines."""
    from trt_widget.sinks.lines import Lines

    with Path(os.devnull).open("w", encoding="utf-8") as stream, Lines(build, stream):
        yield


@contextlib.contextmanager
def json_lines(build: Build) -> Iterator[None]:
    """JSON Lines in a file."""
    from trt_widget.sinks.jsonl import EventWriter

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        writer = EventWriter(build, file.name)
        yield
        build.finish(b"engine")
        assert writer.wait(10.0)


@contextlib.contextmanager
def sse(build: Build) -> Iterator[None]:
    """Server-Sent Events: what is encoded once for all clients."""
    from trt_widget.servers._sse import encode

    reader = Broadcast(build).reader(full=False)
    thread = threading.Thread(target=lambda: [encode(batch) for batch in reader])
    thread.start()
    yield
    build.finish(b"engine")
    thread.join()


@contextlib.contextmanager
def chunks(build: Build) -> Iterator[None]:
    """``build.stream()``, each chunk encoded."""
    thread = threading.Thread(target=lambda: [json.dumps(chunk) for chunk in build.stream()])
    yield from _beside(build, thread)


@contextlib.contextmanager
def mcp(build: Build) -> Iterator[None]:
    """Do what ``build_engine`` does while it waits, each notification encoded."""
    from trt_widget.servers._tools import PROGRESS_S, _Progress

    async def follow() -> None:
        progress = _Progress(build)
        async for _ in build.stream(heartbeat=PROGRESS_S):
            if build.result is None and progress.due():
                json.dumps(progress.now())

    yield from _beside(build, threading.Thread(target=lambda: asyncio.run(follow())))


@contextlib.contextmanager
def lsp(build: Build) -> Iterator[None]:
    """Be the language server for one build, with a client that grants all tokens."""
    yield from _beside(build, threading.Thread(target=lambda: asyncio.run(_edit(build))))


def _beside(build: Build, thread: threading.Thread) -> Iterator[None]:
    thread.start()
    yield
    build.finish(b"engine")
    thread.join()


async def _edit(build: Build) -> None:
    from trt_widget.servers._frames import Channel
    from trt_widget.servers._language import _Job, _Server
    from trt_widget.servers.builds import Builds, Entry

    answers: queue.Queue[bytes] = queue.Queue()

    def write(data: memoryview) -> int:
        # Each write is a message, or several that begin with their headers.
        for part in bytes(data).split(b"Content-Length: ")[1:]:
            message = json.loads(part.partition(b"\r\n\r\n")[2])
            if message.get("method") == "window/workDoneProgress/create":
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": None}).encode()
                answers.put(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return len(data)

    channel = Channel(lambda _size: answers.get(), write)
    server = _Server(Builds(None), channel, None)
    server.shows_progress = True
    server.protocol.set_writer(channel)
    channel.start(asyncio.get_running_loop(), server.protocol.take, server.left.set)
    job = _Job(server, None, None)
    job.accept("file:///model.onnx", waits=False)
    job.begin(Entry("1", build, Broadcast(build), build.name, time.time(), Path("model.onnx")))
    await job.task
    answers.put(b"")
    channel.close()


SURFACES: dict[str, Callable[[Build], AbstractContextManager[None]]] = {
    "terminal, bars": terminal,
    "lines": lines,
    "JSON Lines, file": json_lines,
    "SSE, all clients": sse,
    "editor (LSP)": lsp,
    "chunks": chunks,
    "agent (MCP)": mcp,
}


# ------------------------------------------------------------------ measuring


def replay(recorded: Recorded, name: str, expected: dict[str, Any]) -> float:
    """Replay to one surface; give the CPU seconds of this process."""
    with contextlib.ExitStack() as stack:
        widget = None
        if name == "widget":
            stack.enter_context(mock.patch.object(comm, "create_comm", Encoded))
            widget = BuildWidget.attach(backend="tensorrt_rtx", name="flood")
            stack.callback(widget.close)
        build = widget.build if widget else Build.attach(backend="tensorrt_rtx", name="flood")
        player = Player(build, recorded)
        stack.enter_context(build)
        # The recorded build took its time to begin.
        build._origin -= recorded[0][0] - BEGIN_S
        with SURFACES.get(name, nothing)(build):
            assert player.over.wait(60.0)
            time.sleep(SETTLE_S)
            assert player.used_before is not None
            used = time.process_time() - player.used_before
        build.finish(b"engine")
        build.wait()
        counts = {" > ".join(node.path): node.count for node in build.tree.walk()}
        assert {path: counts[path] for path in expected} == expected, "the stream is not whole"
    return used


def surfaces(*, long: bool) -> list[Row]:
    """Cost per callback of each surface, beside the widget's."""
    rounds = 9 if long else 3
    for module in MODULES:
        import_module(module)
    recorded = record()
    state = last_state(flood_events(COUNT))
    expected = {path: row[0] for path, row in state.items()}
    used: dict[str, list[float]] = {name: [] for name in ("nothing", "widget", *SURFACES)}
    for number in range(rounds):
        for name in list(used) if number % 2 else list(used)[::-1]:
            used[name].append(replay(recorded, name, expected))
        say(f"  {number + 1} of {rounds}")
    events = sum(len(events) for _, events in recorded)
    base = used.pop("nothing")
    cost = {
        name: [max(0.0, all_ - without) for all_, without in zip(found, base, strict=True)]
        for name, found in used.items()
    }
    rows = [
        Row(
            f"a stream of {RATE:,} callbacks a second ({COUNT:,} in {events:,} events): the tree",
            _each(base),
        )
    ]
    for name, found in cost.items():
        share = 100 * statistics.median(found) / COUNT * RATE
        said = f"{_each(found)}, {share:.1f} % of a core"
        if name != "widget":
            said += f", x {spread(ratios(found, cost['widget']))}"
        met = share < 10.0 if name == "terminal, bars" else None
        rows.append(
            Row(f"... and {name}", said, "< 10 % of a core" if met is not None else "", met)
        )
    return rows


def _each(seconds: list[float]) -> str:
    return f"{spread([1e6 * s / COUNT for s in seconds])} us a callback"


FIGURES = {"surfaces": surfaces}
