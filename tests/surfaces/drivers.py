"""One driver a surface: it starts the real thing, cancels as a user does, and tells what was seen.

A driver looks at nothing but what its surface shows: calls of a callback, bytes of a file or a
terminal, messages of a protocol. It waits for those, and never for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import queue
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import comm
import httpx
import psutil
import pyte
from comm.base_comm import BaseComm
from mcp import Client, StdioServerParameters

from tests import models
from tests.bench.builds import FLOOD_ROOT
from tests.surfaces.editor import Editor
from tests.surfaces.scenarios import CONFIGURE, GRACE_S, pairs_of
from tests.surfaces.terminals import Screen
from trt_widget import Build, BuildError, BuildWidget
from trt_widget.broadcast import Broadcast
from trt_widget.events import BuildEnded, StatusChanged, StreamStarted, from_json
from trt_widget.phases import PATH_SEPARATOR, PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from tests.surfaces.scenarios import Scenario
    from trt_widget.events import Event

__all__ = ["DRIVERS", "Driver", "Seen"]

#: Seconds without anything after which a surface counts as dead; generous, a machine may be busy.
DEAD_S = 60.0
#: Seconds that a slow reader does not read.
SLOW_S = 2.0
#: Lines and columns of the terminal: what stays there is seen as a whole.
SCREEN = (100, 160)
#: What cancels a build by its control file or pipe.
REQUEST = '{"request":"cancel","reason":"user"}\n'
ROOT_FOLDER = Path(__file__).parents[2]


@dataclass
class Seen:
    """What a user has seen of one build.

    Attributes
    ----------
    outcome, reason, ended_by
        The words for its end; the others None where the surface does not say.
    words
        All that was said about its end.
    exit_code
        Of the process that showed it, if there was one.
    phases
        Parent and name of each phase that was seen; a parent is None for the outermost.
    unfinished
        What was shown as running and never as ended.
    counts
        Instances of each path at the end, where the surface counts them.
    engine_bytes
        Size of the engine as the user has got it, or None.
    amount, number
        Bytes and messages (or writes, chunks, batches) that the surface has given out.
    stopped_s
        Seconds from the user's cancel to the end that was seen; None without a cancel.
    survivors
        Processes of the build that live after its end.
    """

    outcome: str
    words: str = ""
    reason: str | None = None
    ended_by: str | None = None
    exit_code: int | None = None
    phases: set[tuple[str | None, str]] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)
    counts: dict[tuple[str, ...], int] | None = None
    engine_bytes: int | None = None
    amount: int = 0
    number: int = 0
    stopped_s: float | None = None
    survivors: list[int] = field(default_factory=list)


class Driver(ABC):
    """A surface.

    Parameters
    ----------
    root
        Folder of the models.

    Attributes
    ----------
    name
        What the tests call it.
    streams
        Whether there is a reader that can be slow.
    whole_tree
        Whether it shows all phases, or only the one that runs, from time to time.
    short_phases
        Whether it shows those, too, that are over in a moment.
    lasts
        Whether one process shows one build after the other.
    reason
        What a user's cancel is called.
    most_bytes, most_messages
        What the surface may give out in a build with a flood of one or two seconds.
    """

    name: ClassVar[str]
    streams: ClassVar[bool] = True
    whole_tree: ClassVar[bool] = True
    short_phases: ClassVar[bool] = True
    lasts: ClassVar[bool] = True
    reason: ClassVar[str] = "user"
    most_bytes: ClassVar[int]
    most_messages: ClassVar[int]

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        """Run a build and give what there was to see.

        Parameters
        ----------
        scenario
            What is built, and when it is cancelled.
        output
            Where the engine goes.
        slow
            Whether the reader does not read for :data:`SLOW_S`, once it has seen the flood begin.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what serves, if something does."""


class Cancel:
    """One cancel by the user: begins when it is asked for."""

    def __init__(self) -> None:
        self.processes = build_processes()
        assert self.processes, "there is no build process to be cancelled"
        self.begun = time.monotonic()

    def ended(self, seen: Seen) -> None:
        """Note that the end was seen, and which processes have outlived it."""
        seen.stopped_s = time.monotonic() - self.begun
        _, alive = psutil.wait_procs(self.processes, timeout=5.0)
        seen.survivors = [process.pid for process in alive]


def build_processes() -> list[psutil.Process]:
    """Give the processes that build, for this one or for those that it has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("trt_widget.executors.child" in word for word in process.cmdline()):
                found.append(process)
    return found


class Story:
    """What a stream has told so far; a reader in another process has only that."""

    def __init__(self) -> None:
        self.begin()
        self.paths: set[tuple[str, ...]] = set()
        self.end: BuildEnded | None = None
        self.status = "pending"
        self.reason: str | None = None

    def begin(self) -> None:
        """Start over: what comes next is the beginning of a stream."""
        self.tree = PhaseTree()

    def take(self, events: Iterable[Event]) -> None:
        """Take in events."""
        for event in events:
            if isinstance(event, StreamStarted):
                self.begin()
            elif isinstance(event, StatusChanged):
                self.status, self.reason = event.status, event.reason or self.reason
            elif isinstance(event, BuildEnded):
                self.end = event
                self.tree.close(event.status, event.time)
            self.tree.apply([event])
        self.paths.update(node.path for node in self.tree.walk())

    def knows(self, phase: str) -> bool:
        """Whether a phase of this name was told of."""
        return any(path[-1] == phase for path in self.paths)

    def seen(self) -> Seen:
        """Give what it comes to."""
        nodes = list(self.tree.walk())
        seen = Seen(
            self.status,
            phases=pairs_of(self.paths),
            unfinished=[node.name for node in nodes if node.open_count],
            counts={node.path: node.count for node in nodes},
            reason=self.reason,
        )
        if self.end is not None:
            end = self.end
            seen.outcome, seen.reason, seen.ended_by = end.status, end.reason, end.ended_by
            seen.words = said_by(end.error)
        return seen


def said_by(error: dict[str, Any] | None) -> str:
    """Give the words of an error that is plain data."""
    if error is None:
        return ""
    evidence = error.get("evidence", [])
    return "\n".join([str(error["cause"]), str(error["remedy"]), *map(str, evidence)])


def size_of(path: Path) -> int | None:
    """Give the size of a file, None for none."""
    return path.stat().st_size if path.exists() else None


# ------------------------------------------------------------------ Python


class InPython(Driver):
    """What surfaces of this process have in common."""

    def make(self, scenario: Scenario, output: Path) -> Build:
        """Make a build that was not started."""
        return Build(self.root / scenario.model, **self.options(output))

    @staticmethod
    def options(output: Path) -> dict[str, Any]:
        """Give what all builds are made with."""
        return {
            "output": output,
            "configure": models.configure_by_name,
            "executor": "process",
            "grace": GRACE_S,
        }

    @staticmethod
    def finish(build: Build | BuildWidget, seen: Seen) -> Seen:
        """Take from a build that has ended what its user gets."""
        try:
            engine = build.wait(DEAD_S)
        except BuildError as error:
            seen.words += str(error)
        else:
            seen.engine_bytes = len(engine)
        result = build.result
        assert result is not None
        seen.outcome, seen.reason, seen.ended_by = result.status, result.reason, result.ended_by
        return seen


class Subscribed(InPython):
    """``Build.subscribe``."""

    name = "subscribe"
    streams = False  # the drain thread calls: who is slow hands on
    most_bytes = 4_000_000
    most_messages = 100

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        build = self.make(scenario, output)
        seen = follow(build, scenario, build.request_cancel)
        return self.finish(build, seen)


def follow(build: Build, scenario: Scenario, request: Callable[[], object]) -> Seen:
    """Start a build and read what its subscribers are told."""
    batches: queue.Queue[list[Event]] = queue.Queue()
    build.subscribe(batches.put)
    build.start()
    story, cancel = Story(), None
    number = 0
    while story.status not in {"succeeded", "failed", "cancelled"}:
        events = batches.get(timeout=DEAD_S)
        number += 1
        story.take(events)
        if cancel is None and scenario.cancel_at and story.knows(scenario.cancel_at):
            cancel = Cancel()
            request()
    build.wait_ended(DEAD_S)
    story.tree.close(story.status)
    seen = story.seen()
    seen.number = number
    if cancel is not None:
        cancel.ended(seen)
    assert build.result is not None
    if build.result.error is not None:
        seen.words = str(build.result.error)
    return seen


class Broadcasted(InPython):
    """A reader of a ``Broadcast``, on which the servers stand: only the text of its batches."""

    name = "broadcast"
    most_bytes = 3_000_000
    most_messages = 100

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        build = self.make(scenario, output)
        # So little is kept that whoever does not read for two seconds of the flood misses some.
        broadcast = Broadcast(build, ring_bytes=200_000)
        build.start()
        story, cancel = Story(), None
        amount = number = snapshots = 0
        missed = slow
        for batch in broadcast.reader():
            number += 1
            amount += len(batch.text)
            snapshots += batch.snapshot
            story.take(map(from_json, batch.text.splitlines()))
            if cancel is None and scenario.cancel_at and story.knows(scenario.cancel_at):
                cancel = Cancel()
                build.request_cancel()
            if slow and story.knows(FLOOD_ROOT):
                slow = False
                time.sleep(SLOW_S)
        assert snapshots >= missed
        seen = self.finish(build, story.seen())
        if cancel is not None:
            cancel.ended(seen)
        seen.amount, seen.number = amount, number
        return seen


class Chunked(InPython):
    """``for chunk in build.stream()``."""

    name = "stream"
    short_phases = False
    reason = "closed"
    most_bytes = 20_000
    most_messages = 60

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        build = self.make(scenario, output)
        chunks = Chunks()
        cancel = None
        for chunk in build.stream():
            chunks.take(chunk)
            if scenario.cancel_at and chunk["phase"] == scenario.cancel_at:
                cancel = Cancel()
                break
            if slow and chunk["phase"] == FLOOD_ROOT:
                slow = False
                time.sleep(SLOW_S)
        return self.after(build, chunks, cancel)

    def after(self, build: Build, chunks: Chunks, cancel: Cancel | None) -> Seen:
        """Give what was seen once the loop was left."""
        seen = chunks.seen()
        complete = seen.outcome
        self.finish(build, seen)
        if cancel is None:
            assert complete == seen.outcome
        else:
            cancel.ended(seen)
            seen.unfinished.clear()  # who leaves is told nothing more
        return seen


class ChunkedAsync(Chunked):
    """``async for chunk in build.stream()``, in a task that is cancelled."""

    name = "async-stream"
    reason = "interrupt"

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        build = self.make(scenario, output)
        chunks = Chunks()
        return self.after(build, chunks, asyncio.run(self._run(build, chunks, scenario, slow)))

    @staticmethod
    async def _run(build: Build, chunks: Chunks, scenario: Scenario, slow: bool) -> Cancel | None:
        reached = asyncio.Event()

        async def read() -> None:
            nonlocal slow
            async for chunk in build.stream():
                chunks.take(chunk)
                if scenario.cancel_at and chunk["phase"] == scenario.cancel_at:
                    reached.set()
                if slow and chunk["phase"] == FLOOD_ROOT:
                    slow = False
                    await asyncio.sleep(SLOW_S)

        task = asyncio.ensure_future(read())
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        cancel = None
        if reached.is_set():
            cancel = Cancel()
            task.cancel()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return cancel


class Chunks:
    """What the chunks of a stream have told."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def take(self, chunk: dict[str, Any]) -> None:
        """Take one in."""
        self.given.append(chunk)

    def seen(self) -> Seen:
        """Give what it comes to."""
        *_, last = self.given
        phases = [chunk for chunk in self.given if chunk["phase"] is not None]
        state = {(chunk["parent"], chunk["phase"]): chunk["status"] for chunk in phases}
        return Seen(
            last["status"],
            words=said_by(last.get("error")),
            reason=last.get("reason"),
            ended_by=last.get("ended_by"),
            engine_bytes=last.get("engine_bytes"),
            phases=set(state),
            unfinished=[name for (_, name), status in state.items() if status == "running"],
            amount=sum(len(json.dumps(chunk)) for chunk in self.given),
            number=len(self.given),
        )


# ------------------------------------------------------------------ the widget


class Counted(BaseComm):
    """A comm without a front end: its messages are counted, as they would be sent."""

    number: ClassVar[int] = 0
    amount: ClassVar[int] = 0
    arrived: ClassVar[threading.Event] = threading.Event()

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        """Count one."""
        Counted.number += 1
        if msg_type == "comm_msg":  # the others carry the card's code
            Counted.amount += len(json.dumps(data, default=str))
        Counted.arrived.set()


class Widget(InPython):
    """``BuildWidget``, without a kernel: its traits are what a browser draws."""

    name = "widget"
    streams = False  # a browser that is slow is the kernel's affair
    most_bytes = 300_000
    most_messages = 400

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        with mock.patch.object(comm, "create_comm", Counted):
            Counted.number = Counted.amount = 0
            widget = BuildWidget(self.root / scenario.model, **self.options(output))
            try:
                return self._see(widget, scenario)
            finally:
                widget.close()

    def _see(self, widget: BuildWidget, scenario: Scenario) -> Seen:
        widget.start()
        cancel = None
        known: dict[tuple[str, ...], dict[str, Any]] = {}
        while widget.header["ended"] is None and widget.header["ending"] is None:
            assert Counted.arrived.wait(DEAD_S)
            Counted.arrived.clear()
            if cancel is None and any(r.info["label"] == scenario.cancel_at for r in widget.rows):
                cancel = Cancel()
                # What the browser sends for a click on Cancel.
                data = {"method": "custom", "content": {"kind": "cancel"}}
                channel = widget.cancel_channel.comm
                channel.handle_msg({"content": {"data": data}, "buffers": []})
        known = {tuple(row.info["path"].split(PATH_SEPARATOR)): row.info for row in widget.rows}
        header = widget.header
        failure = header["failure"]
        seen = Seen(
            header["status"],
            words=str(failure or ""),
            phases=pairs_of(known),
            unfinished=[info["label"] for info in known.values() if info["status"] == "running"],
            counts={path: info["count"] for path, info in known.items()},
            amount=Counted.amount,
            number=Counted.number,
        )
        shown = seen.outcome
        self.finish(widget, seen)
        assert shown == seen.outcome
        if cancel is not None:
            cancel.ended(seen)
        return seen


# ------------------------------------------------------------------ the command line


class Commanded(Driver):
    """``trt-widget build`` as a process of its own, of which only the output is read."""

    lasts = False
    reason = "interrupt"

    def command(self, scenario: Scenario, output: Path, *more: str) -> list[str]:
        """Give the command that builds."""
        return command(
            *("build", str(self.root / scenario.model), "-o", str(output)),
            *("--grace", str(GRACE_S), "--configure", CONFIGURE, *more),
        )

    def interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Cancel, as somebody does who has started it."""
        process.send_signal(signal.SIGINT)


def command(*arguments: str) -> list[str]:
    """Give a command of the package."""
    return [sys.executable, "-m", "trt_widget", *arguments]


def start(arguments: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process that finds the functions of the tests."""
    return subprocess.Popen(arguments, cwd=ROOT_FOLDER, env=environment(), **more)


def environment() -> dict[str, str]:
    """Give the environment of the processes."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT_FOLDER),
        "TRT_WIDGET_HISTORY": "off",
        "TERM": "xterm-256color",
        "PYTHONUTF8": "1",
    }


def pieces(descriptor: int) -> Iterator[bytes]:
    """Give what comes out of a pipe or a terminal, piece by piece, up to its end."""
    while True:
        ready, _, _ = select.select([descriptor], [], [], DEAD_S)
        assert ready, "nothing more came"
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # a terminal whose other end was closed
            return
        if not data:
            return
        yield data


class Lines(Commanded):
    """Plain lines, as a job's log has them; their end tells no phases."""

    name = "lines"
    streams = False  # a few hundred bytes: no pipe is too small for them
    whole_tree = False
    most_bytes = 4_000
    most_messages = 40

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        process = start(
            self.command(scenario, output), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        with process:
            return watch_lines(process, scenario, output, partial(self.interrupt, process))


def watch_lines(
    process: subprocess.Popen[bytes],
    scenario: Scenario,
    output: Path,
    interrupt: Callable[[], None],
) -> Seen:
    """Read what a process writes line by line, and interrupt it where the scenario says so."""
    assert process.stdout is not None
    lines: list[str] = []
    cancel = None
    paths: set[tuple[str, ...]] = set()
    for line in process.stdout:
        text = line.decode().rstrip("\n")
        assert text.isprintable()
        lines.append(text)
        found = re.fullmatch(r"\[ *[\d.]+ s\]  (?:.*  )?([^·]+?)(?: \d+/\d+)?(?: · .*)?", text)
        if found and (PATH_SEPARATOR in found[1] or found[1] in scenario.roots):
            paths.add(tuple(found[1].split(PATH_SEPARATOR)))
        if (
            cancel is None
            and scenario.cancel_at
            and any(p[-1] == scenario.cancel_at for p in paths)
        ):
            cancel = Cancel()
            interrupt()
    seen = of_text(lines, process.wait(DEAD_S))
    seen.phases = pairs_of(paths)
    seen.amount = sum(len(line.encode()) + 1 for line in lines)
    seen.engine_bytes = size_of(output)
    if cancel is not None:
        cancel.ended(seen)
    return seen


def of_text(lines: list[str], exit_code: int) -> Seen:
    """Find the outcome in what was said to people."""
    (outcome,) = [
        found[1]
        for line in lines
        if (found := re.match(r"\S+\.onnx: (succeeded|failed|cancelled) after ", line))
    ]
    reason = None
    if outcome == "cancelled":  # of a user's request there is nothing to add
        reason = "interrupt" if "It was cancelled by Interrupt." in lines else "user"
    words = "\n".join(lines)
    return Seen(outcome, words, reason, exit_code=exit_code, number=len(lines))


class Bars(Commanded):
    """Nested bars in a terminal, where Ctrl-C is a key."""

    name = "bars"
    most_bytes = 200_000
    most_messages = 100

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *SCREEN, 0, 0))
        # Of a process in a session of its own, this is the terminal that Ctrl-C comes from.
        own = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        shim = f"{own}os.execv(sys.argv[1], sys.argv[1:])"
        process = start(
            [sys.executable, "-c", shim, *self.command(scenario, output)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        with process:
            try:
                return self._watch(process, ours, scenario, output, slow=slow)
            finally:
                os.close(ours)

    @staticmethod
    def _watch(
        process: subprocess.Popen[bytes], ours: int, scenario: Scenario, output: Path, *, slow: bool
    ) -> Seen:
        shown = b""
        cancel, number = None, 0
        for data in pieces(ours):
            shown += data
            number += 1
            if cancel is None and scenario.cancel_at and scenario.cancel_at.encode() in shown:
                cancel = Cancel()
                os.write(ours, b"\x03")
            if slow and FLOOD_ROOT.encode() in shown:
                slow = False
                time.sleep(SLOW_S)
        screen = Screen(SCREEN[1], SCREEN[0])
        pyte.ByteStream(screen).feed(shown)
        lines = [line.rstrip() for line in screen.display]
        seen = of_text([line for line in lines if line], process.wait(DEAD_S))
        above: list[str] = []
        seen.counts = {}
        for line in lines:
            row = re.fullmatch(r"( *)(\S.*?) +[━─~]{10,} +(\S+) +[\d.]+ \S+(?: .(\d+))?", line)
            if row is None:
                continue
            indent, label, status, count = row.groups()
            above[len(indent) // 2 :] = [label]
            seen.counts[tuple(above)] = int(count or 1)
            if status not in {"done", "cancelled", "failed"}:
                seen.unfinished.append(label)
        seen.phases = pairs_of(seen.counts)
        seen.amount, seen.number = len(shown), number
        seen.engine_bytes = size_of(output)
        if cancel is not None:
            cancel.ended(seen)
        return seen


class EventsFile(Commanded):
    """JSON Lines in a file; it is cancelled by a line in the file beside it."""

    name = "events-file"
    streams = False  # a file waits for its reader
    reason = "user"
    most_bytes = 3_000_000
    most_messages = 10_000

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        path = output.with_suffix(".jsonl")
        arguments = self.command(scenario, output, "--progress", "none", "--events", str(path))
        with start(arguments, stderr=subprocess.PIPE) as process:
            return read_events(
                tail(path, process), scenario, output, process, partial(ask, control_of(path))
            )


def control_of(path: Path) -> Path:
    """Give the file from which the writer of a stream reads requests."""
    return path.with_name(f"{path.name}.control")


def ask(control: Path) -> None:
    """Cancel by a line in a file."""
    with control.open("a") as file:
        file.write(REQUEST)


def tail(path: Path, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Give the lines of a file that grows, until its writer has ended."""
    while not path.exists():
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    with path.open("rb") as file:
        rest = b""
        ended = False
        while True:
            *lines, rest = (rest + file.read()).split(b"\n")
            yield from lines
            if ended:
                assert not rest, "a line that is not whole"
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                ended = True


class EventsPipe(Commanded):
    """JSON Lines on stdout; it is cancelled by a line on stdin."""

    name = "events-pipe"
    reason = "user"
    most_bytes = 3_000_000
    most_messages = 10_000

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        more = ("--progress", "none", "--events", "-", "--control", "-")
        with start(
            self.command(scenario, output, *more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def request() -> None:
                assert process.stdin is not None
                process.stdin.write(REQUEST.encode())
                process.stdin.flush()

            lines = lines_of(pieces(process.stdout.fileno()))
            return read_events(lines, scenario, output, process, request, slow=slow)


def lines_of(data: Iterable[bytes]) -> Iterator[bytes]:
    """Cut what comes into lines."""
    rest = b""
    for piece in data:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    assert not rest, "a line that is not whole"


def read_events(
    lines: Iterable[bytes],
    scenario: Scenario,
    output: Path,
    process: subprocess.Popen[bytes],
    request: Callable[[], None],
    *,
    slow: bool = False,
) -> Seen:
    """Read the events that a process writes, and cancel it where the scenario says so."""
    story, cancel = Story(), None
    amount = number = 0
    for line in lines:
        amount += len(line) + 1
        number += 1
        story.take([from_json(line.decode())])
        if cancel is None and scenario.cancel_at and story.knows(scenario.cancel_at):
            cancel = Cancel()
            request()
        if slow and story.knows(FLOOD_ROOT):
            slow = False
            time.sleep(SLOW_S)
    assert story.end is not None
    seen = story.seen()
    _, complaints = process.communicate(timeout=DEAD_S)
    # Whoever reads the events has the words; people have them, too.
    for words in scenario.says:
        assert words in " ".join(complaints.decode().split())
    seen.exit_code = process.returncode
    seen.amount, seen.number = amount, number
    seen.engine_bytes = size_of(output)
    assert story.end.engine_bytes == seen.engine_bytes
    if cancel is not None:
        cancel.ended(seen)
    return seen


# ------------------------------------------------------------------ a build elsewhere


class Watched(Commanded):
    """``trt-widget watch`` of the file that another process writes, and its Ctrl-C."""

    name = "watch"
    streams = False  # as the file
    whole_tree = False
    reason = "user"  # who has asked was not the one who builds
    most_bytes = 4_000
    most_messages = 40

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        path = output.with_suffix(".jsonl")
        more = ("--progress", "none", "--events", str(path))
        with (
            start(self.command(scenario, output, *more), stderr=subprocess.DEVNULL) as builder,
            start(
                command("watch", str(path)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as watcher,
        ):
            seen = watch_lines(watcher, scenario, output, partial(self.interrupt, watcher))
            assert builder.wait(DEAD_S) == seen.exit_code
            return seen


class Followed(Commanded):
    """``Build.follow`` of the file that another process writes, and its ``request_cancel``."""

    name = "follow"
    streams = False  # as the file
    lasts = True
    reason = "user"
    most_bytes = 0  # counted where it is written
    most_messages = 100

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        assert not slow
        path = output.with_suffix(".jsonl")
        more = ("--progress", "none", "--events", str(path))
        with start(self.command(scenario, output, *more), stderr=subprocess.DEVNULL) as builder:
            build = Build.follow(path)
            seen = follow(build, scenario, build.request_cancel)
            seen.exit_code = builder.wait(DEAD_S)
        result = build.result
        assert result is not None
        assert result.engine_bytes == size_of(output)
        seen.engine_bytes = result.engine_bytes
        return seen


# ------------------------------------------------------------------ servers


class Http(Driver):
    """``trt-widget serve``: Server-Sent Events of a build, and a POST that cancels it."""

    name = "http"
    most_bytes = 3_000_000
    most_messages = 200

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._server = start(
            command("serve", "--root", str(root), "--port", "0", "--configure", CONFIGURE),
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        ready = json.loads(self._server.stdout.readline())
        self._client = httpx.Client(
            base_url=ready["url"],
            headers={"Authorization": f"Bearer {ready['token']}"},
            timeout=DEAD_S,
        )

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        asked = {"model": scenario.model, "options": {"grace": GRACE_S}}
        address = f"/builds/{self._ask('POST', '/builds', json=asked)['id']}"
        story, cancel, end = Story(), None, ""
        amount = number = 0
        with self._client.stream("GET", f"{address}/events") as response:
            for kind, data, size in server_sent_events(response):
                amount += size
                number += 1
                if kind == "end":
                    end = data
                    continue
                story.take(map(from_json, data.splitlines()))
                if cancel is None and scenario.cancel_at and story.knows(scenario.cancel_at):
                    cancel = Cancel()
                    assert self._ask("POST", f"{address}/cancel")["cancelled"] is True
                if slow and story.knows(FLOOD_ROOT):
                    slow = False
                    time.sleep(SLOW_S)
        assert from_json(end) == story.end
        seen = story.seen()
        if cancel is not None:
            cancel.ended(seen)
        status = self._ask("GET", address)
        assert status["status"] == seen.outcome
        assert said_by(status["error"]) == seen.words
        engine = self._client.get(f"{address}/engine")
        if engine.status_code == httpx.codes.OK:
            output.write_bytes(engine.content)
            assert status["engine_bytes"] == len(engine.content)
        seen.engine_bytes = size_of(output)
        seen.amount, seen.number = amount, number
        return seen

    def _ask(self, method: str, address: str, **more: Any) -> Any:
        return self._client.request(method, address, **more).raise_for_status().json()

    def close(self) -> None:
        self._client.close()
        with self._server as server:
            server.send_signal(signal.SIGTERM)
            assert server.wait(DEAD_S) == 0


def server_sent_events(response: httpx.Response) -> Iterator[tuple[str, str, int]]:
    """Give kind, data and size of each event."""
    lines: list[str] = []
    for line in response.iter_lines():
        if line:
            lines.append(line)
            continue
        fields = [line.partition(": ")[::2] for line in lines]
        kinds = [value for name, value in fields if name == "event"]
        data = "\n".join(value for name, value in fields if name == "data")
        if data:
            yield kinds[0], data, sum(len(line) + 1 for line in lines) + 1
        lines.clear()


class Held:
    """A server that speaks over stdin and stdout, kept in an event loop of its own thread.

    Parameters
    ----------
    make
        Makes the client: an asynchronous context, which starts the server and ends it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.client: Any = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(make)))
        self._thread.start()
        self._ready.result(DEAD_S)

    async def _main(self, make: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        try:
            async with make() as self.client:
                self._ready.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def run(self, work: Coroutine[Any, Any, Seen]) -> Seen:
        """Let something happen in the loop, and give what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * DEAD_S)

    def close(self) -> None:
        """Leave the context."""
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(DEAD_S)
        assert not self._thread.is_alive()


class Lsp(Driver):
    """``trt-widget lsp``: progress tokens of an editor, whose Cancel is a notification."""

    name = "lsp"
    short_phases = False
    most_bytes = 60_000
    most_messages = 300

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        arguments = ("--root", str(root), "--configure", CONFIGURE)
        self._held = Held(partial(Editor, *arguments))

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        return self._held.run(self._see(scenario, output, slow=slow))

    async def _see(self, scenario: Scenario, output: Path, *, slow: bool) -> Seen:
        editor: Editor = self._held.client
        editor.messages.clear()
        model = self.root / scenario.model
        options = {"output": output.as_uri(), "grace": GRACE_S}
        token = f"build of {output}"
        built = asyncio.ensure_future(editor.build(model.as_uri(), options, under=token))
        cancel = None
        if scenario.cancel_at or slow:
            phase = scenario.cancel_at or FLOOD_ROOT
            await editor.until(lambda: any(phase == pair[1] for pair in self._phases(scenario)))
            if scenario.cancel_at:
                cancel = Cancel()
                editor.cancel(token)
            else:
                time.sleep(SLOW_S)  # noqa: ASYNC251 - the client does not read
        answer = await built
        seen = Seen(
            answer["status"],
            words="\n".join(d.message for d in editor.diagnostics.get(model.as_uri(), ())),
            reason=answer["reason"],
            ended_by=answer["result"]["ended_by"],
            phases=self._phases(scenario),
            unfinished=[o.title for o in editor.progress().values() if o.began >= 0 > o.ended],
            counts={
                tuple(row["path"].split(PATH_SEPARATOR)): row["count"] for row in answer["phases"]
            },
            engine_bytes=answer["engine_bytes"],
            amount=sum(len(repr(params)) for _, _, params in editor.messages),
            number=len(editor.messages),
        )
        if cancel is not None:
            cancel.ended(seen)
        return seen

    def _phases(self, scenario: Scenario) -> set[tuple[str | None, str]]:
        """Give what the titles of the tokens say: one sign for each level above the last two."""
        beginning = f"{scenario.model}: "
        found: set[tuple[str | None, str]] = set()
        for one in self._held.client.progress().values():
            if one.title.startswith(beginning):
                names = one.title.removeprefix(beginning).split(PATH_SEPARATOR)
                found.add((names[-2] if len(names) > 1 else None, names[-1]))
        return found

    def close(self) -> None:
        self._held.close()


class Agent(Driver):
    """``trt-widget mcp``, by the SDK's client."""

    short_phases = False

    most_bytes = 40_000
    most_messages = 100

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        first, *rest = command("mcp", "--root", str(root), "--configure", CONFIGURE)
        server = StdioServerParameters(
            command=first, args=rest, env=environment(), cwd=str(ROOT_FOLDER)
        )
        self._held = Held(partial(Client, server))

    def see(self, scenario: Scenario, output: Path, *, slow: bool = False) -> Seen:
        return self._held.run(self._see(scenario, output, slow=slow))

    @abstractmethod
    async def _see(self, scenario: Scenario, output: Path, *, slow: bool) -> Seen:
        """Run a build, in the loop."""

    async def _call(self, tool: str, arguments: dict[str, Any], progress: Any = None) -> Any:
        answer = await self._held.client.call_tool(tool, arguments, progress_callback=progress)
        return answer.structured_content

    def _arguments(self, scenario: Scenario, output: Path) -> dict[str, Any]:
        written = output.relative_to(self.root).as_posix()
        return {"model": scenario.model, "output": written, "grace": GRACE_S}

    async def _status(self, build_id: str | None = None, *, wait: float = 0.0) -> dict[str, Any]:
        arguments = {"wait": wait} | ({} if build_id is None else {"id": build_id})
        status: dict[str, Any] = await self._call("build_status", arguments)
        return status

    @staticmethod
    def seen_in(status: dict[str, Any], output: Path) -> Seen:
        """Give what the status of a build that has ended tells."""
        outcome = status["outcome"]
        paths = {tuple(row["path"].split(PATH_SEPARATOR)): row for row in status["phases"]}
        engine = outcome["engine"]
        assert (engine is None) == (not output.exists())
        return Seen(
            outcome["status"],
            words=said_by(outcome["error"]),
            reason=outcome["reason"],
            ended_by=outcome["ended_by"],
            phases=pairs_of(paths),
            unfinished=[row["path"] for row in paths.values() if row["status"] == "running"],
            engine_bytes=outcome["engine_bytes"],
        )

    def close(self) -> None:
        self._held.close()


class AgentBuild(Agent):
    """``build_engine`` with progress; the client cancels its request."""

    name = "mcp-build"
    reason = "interrupt"

    async def _see(self, scenario: Scenario, output: Path, *, slow: bool) -> Seen:
        told: list[str] = []
        reached = asyncio.Event()

        async def progress(_done: float, _total: float | None, message: str | None) -> None:
            nonlocal slow
            told.append(message or "")
            if scenario.cancel_at and scenario.cancel_at in told[-1]:
                reached.set()
            if slow and PATH_SEPARATOR in told[-1]:
                slow = False
                time.sleep(SLOW_S)  # noqa: ASYNC251 - the client does not read

        call = self._call("build_engine", self._arguments(scenario, output), progress)
        task = asyncio.ensure_future(call)
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        cancel = None
        if reached.is_set():
            cancel = Cancel()
            task.cancel()
        outcome = None
        with contextlib.suppress(asyncio.CancelledError):
            outcome = await task
        # Whoever has cancelled a request gets no answer to it, and can ask another time.
        status = await self._status(wait=DEAD_S / 2)
        assert outcome == status["outcome"] or (outcome is None and cancel is not None)
        seen = self.seen_in(status, output)
        for message in told:
            above, separator, name = message.partition(":")[0].partition(PATH_SEPARATOR)
            if separator:
                seen.phases.add((above, name))
        seen.number = len(told) + 1
        seen.amount = sum(map(len, told)) + len(json.dumps(outcome))
        if cancel is not None:
            cancel.ended(seen)
        return seen


class AgentStart(Agent):
    """``start_build``, then ``build_status`` again and again, and ``cancel_build``."""

    name = "mcp-start"
    most_bytes = 150_000  # ten answers a second
    streams = False  # it asks

    async def _see(self, scenario: Scenario, output: Path, *, slow: bool) -> Seen:
        assert not slow
        started = await self._call("start_build", self._arguments(scenario, output))
        cancel, phases = None, set()
        amount = number = 0
        status: dict[str, Any] = {"outcome": None}
        while status["outcome"] is None:
            status = await self._status(started["id"], wait=0.1)
            amount += len(json.dumps(status))
            number += 1
            phases |= pairs_of(tuple(row["path"].split(PATH_SEPARATOR)) for row in status["phases"])
            if cancel is None and scenario.cancel_at in {name for _, name in phases}:
                cancel = Cancel()
                status = await self._call("cancel_build", {"id": started["id"]})
        seen = self.seen_in(status, output)
        seen.phases |= phases
        seen.amount, seen.number = amount, number
        if cancel is not None:
            cancel.ended(seen)
        return seen


DRIVERS: tuple[type[Driver], ...] = (
    *(Subscribed, Broadcasted, Chunked, ChunkedAsync, Widget),
    *(Bars, Lines, EventsFile, EventsPipe, Watched, Followed),
    *(Http, Lsp, AgentBuild, AgentStart),
)
