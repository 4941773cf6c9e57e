"""The builder in a child process: it can be stopped at any moment, and cannot hurt the kernel.

What travels to the child: the source and the options, and by ``cloudpickle`` the caller's functions
(a callable source, ``configure=``, ``config=``). What comes back: events as JSON Lines on a pipe of
their own, what was printed on another, and the engine in a file, which is mapped here and not read.

Threads of one build: the supervisor starts the child, asks it to stop, ends it when the grace is
over, and gives the outcome; it must outlive the child, since Linux ties the child's life to it. One
thread hands the request over and then the cancel; one reads the events; one reads what is printed.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Imported here, on the thread that starts a build, and not when its threads come to need it: the
# copy that a fork makes of a half-imported module can never be imported.
import psutil  # noqa: F401

from trt_widget import diagnosis, errors
from trt_widget._files import map_file, read_or_map
from trt_widget._memory import MemoryWatch, memory_limit_bytes, oom_kills
from trt_widget._wake import Wake
from trt_widget.errors import BuildError, BuildFailed
from trt_widget.events import OutputCaptured
from trt_widget.executors import CANNOT_SEND, Outcome
from trt_widget.executors.functions import reason
from trt_widget.executors.intake import Intake, is_sound
from trt_widget.executors.isolation import (
    known_gpus,
    learn_gpus,
    python_command,
    search_paths,
    spared_interrupts,
    what_is_visible,
)
from trt_widget.executors.lifetime import CHUNK, chunks, end_process, has_ended, kill, named_status
from trt_widget.executors.turn import InTurn, Turn
from trt_widget.executors.worker import broke_off, failed
from trt_widget.network import builds_on_gpu

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from trt_widget.backend import Backend, Gpu
    from trt_widget.events import BuildEnded, Event
    from trt_widget.executors import Hooks
    from trt_widget.options import BuildOptions, Source

__all__ = ["KILL_AFTER_S", "ProcessExecutor", "Scratch"]

#: Seconds between being terminated and being killed.
KILL_AFTER_S = 0.5
#: Seconds that a child may take to leave after its last word.
_LEAVE_S = 2.0
#: Seconds between two looks at the child while nothing happens, and while it is being stopped.
_LOOK_S = 0.1
_LOOK_CLOSELY_S = 0.01
#: Characters of printed text that wait for one drain, and that a crash's error keeps.
MAX_PRINTED = 64 * 1024
_STDERR = 2
#: Seconds until the first word of a child, which imports Python and TensorRT (from a slow disk,
#: perhaps): past it something is wrong with its start.
_FIRST_WORD_S = 120.0
#: Facts of an end that are for this module alone.
_PRIVATE_FACTS = {"engine_file", "gpus"}
_CHILD = "from trt_widget.executors.child import main; main(int(sys.argv[2]), sys.argv[3])"


class ProcessExecutor(Intake, InTurn):
    """Runs one build in a child process; see :class:`~trt_widget.executors.Executor`.

    Parameters
    ----------
    source, options, backend
        What to build, how, and with which package; checked already.
    label
        What people call the build.
    functions
        From :func:`trt_widget.executors.functions.pack_functions`.
    """

    kind = "process"

    def __init__(
        self,
        source: Source,
        options: BuildOptions,
        backend: Backend,
        label: str,
        functions: bytes | None,
    ) -> None:
        super().__init__()
        self._source = source
        self._options = options
        self._backend = backend
        self._label = label
        self._functions = functions
        self._origin = clock.perf_counter()
        self._origin_epoch = clock.time()
        self._wake = Wake()
        self._outcome: Outcome | None = None
        self._grace = options.grace
        self._cancel: tuple[str, float] | None = None
        self._printed = _Printed()
        self._gone = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._memory: MemoryWatch | None = None
        self._peak: int | None = None
        self._notes: list[str] = []
        self._turn = Turn(options, label, self._wake, in_process=False)
        self._thread = threading.Thread(
            target=self._run, name=f"trt_widget build {label}"[:60], daemon=True
        )
        self._hooks: Hooks

    # ------------------------------------------------------------------ the build's side

    def reset_origin(self) -> float:
        """Make now the time zero of the events."""
        self._origin, self._origin_epoch = clock.perf_counter(), clock.time()
        return self._origin

    def drain(self) -> list[Event]:
        """Take what has arrived since the last call, ordered by time."""
        events = self._take_waiting()
        printed = self._printed.take()
        if printed:
            events.append(OutputCaptured(self._now(), printed))
        events.sort(key=lambda event: event.time)
        return events

    def request_cancel(self, reason: str) -> None:
        """Have the supervisor ask the child, and end it when the grace is over."""
        if self._cancel is None:
            self._cancel = (reason, clock.perf_counter())
        self._wake.set()

    def abandon(self) -> None:
        """End the child without a grace."""
        self._grace = 0.0
        self.request_cancel("closed")

    @property
    def cancel_reason(self) -> str | None:
        """Reason of the first request to cancel, or ``None``."""
        cancel = self._cancel
        return None if cancel is None else cancel[0]

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest resident memory of the child that was seen."""
        watched = self._memory.peak_bytes if self._memory is not None else None
        return max(watched or 0, self._peak or 0) or None

    # ------------------------------------------------------------------ the supervisor

    def _run(self) -> None:
        try:
            if self._turn.wait(lambda: self._cancel is not None):
                self._notes += self._turn.notes
                self._hooks.running()
                outcome = self._build()
            else:
                outcome = self._cancelled("before build")
        except BuildError as error:
            outcome = failed(error, self._now())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the build must not hang
            outcome = broke_off(error, self._now())
        finally:
            self._turn.leave()
        self._outcome = outcome
        self._hooks.changed()

    def _now(self) -> float:
        return clock.perf_counter() - self._origin

    def _build(self) -> Outcome:
        source = self._travelling_source()
        kills_before = oom_kills()
        with Scratch() as scratch:
            self._spawn(scratch)
            process = self._process
            assert process is not None  # noqa: S101 - _spawn made it or raised
            threads = [
                threading.Thread(target=target, name=f"trt_widget {name}", daemon=True)
                for target, name in (
                    (lambda: self._feed(source, scratch), "request"),
                    (self._read_events, "events"),
                    (self._read_printed, "output"),
                )
            ]
            try:
                self._memory = MemoryWatch(process.pid)
                for thread in threads:
                    thread.start()
                ended_by = self._supervise(process)
            finally:
                code = end_process(process)
                self._gone.set()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join(5.0)
                for pipe in (process.stdin, process.stdout, process.stderr):
                    _close(pipe)
                _open_pipes.discard(process)
            rose = oom_kills()
            killed = None if None in {rose, kills_before} else rose > kills_before  # type: ignore[operator]  # neither is None
            return self._conclude(code, ended_by, killed, scratch)

    def _travelling_source(self) -> Source:
        """Give the source as it is sent: a ModelProto as bytes, a callable without its value."""
        source, self._source = self._source, None  # type: ignore[assignment]  # sent once
        if source.kind == "proto":
            from trt_widget.network import serialize

            return dataclasses.replace(source, kind="bytes", value=serialize(source))
        if source.kind == "callable":
            return dataclasses.replace(source, value=None)
        return source

    def _spawn(self, scratch: Scratch) -> None:
        if not sys.executable:
            raise BuildFailed(
                "There is no Python to start a build process with (sys.executable is empty).",
                "Build with executor='thread'.",
            )
        more: dict[str, Any] = {}
        if sys.platform == "win32":
            more["creationflags"] = (
                subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
            )
        else:
            # Its own session: the kernel's Interrupt goes to the kernel's process group.
            more["start_new_session"] = True
            more["pass_fds"] = scratch.inherited
        #: What decides which GPUs the child sees; read when it is started.
        self._visible = what_is_visible()
        try:
            with spared_interrupts():
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                    python_command(_CHILD, str(os.getpid()), self._backend.name),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    **more,
                )
        except (OSError, ValueError) as error:
            raise BuildFailed(
                f"The build process could not be started: {error}.",
                "Close what else uses memory, processes or files, or build with executor='thread'.",
            ) from error
        _open_pipes.add(self._process)

    def _supervise(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait for the child's end; give how we brought it about, or ``None``."""
        terminated = told_end = 0.0
        begun = clock.perf_counter()
        ended_by = None
        memory = self._memory
        while not has_ended(process):
            cancel = self._cancel
            if self._end is not None:  # it has said everything, and only has to leave
                told_end = told_end or clock.perf_counter()
                if clock.perf_counter() - told_end > _LEAVE_S:
                    kill(process)
                clock.sleep(_LOOK_CLOSELY_S)
            elif cancel is None:
                if self._hello is None and clock.perf_counter() - begun > _FIRST_WORD_S:
                    self._notes.append(f"The build process said nothing for {_FIRST_WORD_S:g} s.")
                    ended_by = "killed"
                    kill(process)
                self._wake.wait(_LOOK_S)
                self._wake.clear()
            else:
                now = clock.perf_counter()
                if terminated:
                    if now - terminated >= KILL_AFTER_S and ended_by != "killed":
                        ended_by = "killed"
                        kill(process)
                elif now - cancel[1] >= self._grace:
                    ended_by = "terminated"
                    terminated = now
                    _terminate(process)
                clock.sleep(_LOOK_CLOSELY_S)
            if memory is not None:
                memory.sample()
        return ended_by

    def _conclude(
        self,
        code: int | None,
        ended_by: str | None,
        oom_killed: bool | None,  # noqa: FBT001 - three states, passed on
        scratch: Scratch,
    ) -> Outcome:
        end = self._end
        self._notes += self._bad_lines_note()
        if end is not None:
            return self._finished(end, scratch)
        if self._cancel is not None:
            if ended_by is None:
                self._notes.append(
                    f"The build process ended by itself ({named_status(code)}) while it was "
                    "cancelled."
                )
            return self._cancelled(ended_by or "crashed")
        if self._hello is None and (ended_by or (code and code > 0 and code != CANNOT_SEND)):
            raise BuildFailed(
                "The build process could not begin "
                f"({'it said nothing' if ended_by else named_status(code)}).",
                "What it printed says why. Build with executor='thread', and please report it.",
                [self._printed.tail()],
            )
        error = diagnosis.explain_crash(
            name=self._label,
            signal=-code if code is not None and code < 0 else None,
            exit_code=code if code is not None and code >= 0 else None,
            phase=self._open_phase,
            messages=list(self._words),
            output=self._printed.tail(),
            peak_memory_bytes=self.peak_memory_bytes,
            memory_limit_bytes=memory_limit_bytes(),
            oom_killed=oom_killed,
            backend=self._backend,
            parsed=self._parsed,
        )
        return Outcome(
            "failed",
            error=error,
            ended_by="crashed",
            time=self._now(),
            notes=tuple(self._notes),
        )

    def _finished(self, end: BuildEnded, scratch: Scratch) -> Outcome:
        """Make the outcome of a child that told its own."""
        self._peak = end.peak_memory_bytes
        error = None if end.error is None else errors.from_record(end.error)
        engine = None
        status, ended_by = end.status, end.ended_by
        facts = {name: value for name, value in end.facts.items() if name not in _PRIVATE_FACTS}
        learn_gpus(self._visible, end.facts.get("gpus"))
        if end.engine_bytes is not None:
            try:
                engine = self._fetch(end, scratch)
            except (OSError, ValueError) as problem:
                engine, status, ended_by = None, "failed", "error"
                error = BuildFailed(
                    f"The engine that the build process wrote cannot be read: {problem}.",
                    "Something removed, changed or replaced the file (another build with the same "
                    "output=, perhaps); build again.",
                )
        if not is_sound(status, engine, error):
            engine, status, ended_by = None, "failed", "error"
            error = BuildFailed(
                "The build process told an end that contradicts itself "
                f"(status {end.status!r}); nothing of it is believed.",
                "Build again; if it stays, the model or a function has damaged the build process.",
            )
        return Outcome(
            status,
            engine,
            error,
            ended_by,
            self.cancel_reason or end.reason,
            # A cancelled build has stopped when its process has.
            self._now() if status == "cancelled" else min(max(end.time, 0.0), self._now()),
            (*self._notes, *end.notes),
            facts,
        )

    def _fetch(self, end: BuildEnded, scratch: Scratch) -> memoryview:
        """Give the engine; the child's word is checked, since a model may have damaged it."""
        if end.engine is None:
            engine = scratch.map()
        else:
            output = self._options.output
            if output is None or end.engine != str(output):
                msg = "the build process names another file than output="
                raise OSError(msg)
            # Looked at once it is open: another build may put its own there at any moment.
            engine = read_or_map(output, _identity_of(end.facts.get("engine_file")))
        if engine.nbytes != end.engine_bytes:
            msg = f"{engine.nbytes:,} bytes instead of {end.engine_bytes:,}"
            raise OSError(msg)
        return engine

    def _cancelled(self, ended_by: str) -> Outcome:
        return Outcome(
            "cancelled",
            ended_by=ended_by,
            reason=self.cancel_reason,
            time=self._now(),
            notes=tuple(self._notes),
        )

    # ------------------------------------------------------------------ the pipes' threads

    def _feed(self, source: Source, scratch: Scratch) -> None:
        """Hand the request over, and then the cancel, if there is one."""
        assert self._process is not None  # noqa: S101 - started with the process
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - it was made with pipes
        request = {
            "source": source,
            "options": dataclasses.replace(self._options, configure=None, config=None),
            "label": self._label,
            "functions": self._functions,
            "sys_path": search_paths()[1],
            "origin": self._origin,
            "origin_epoch": self._origin_epoch,
            "scratch": scratch.address,
            "gpus": self._gpus(),
        }
        try:
            with io.BufferedWriter(_NotClosing(pipe)) as writer:  # large bytes are not copied
                pickle.dump(request, writer, protocol=pickle.HIGHEST_PROTOCOL)
            del request
            told = False
            while not self._gone.wait(_LOOK_CLOSELY_S if self._cancel else _LOOK_S):
                cancel = self._cancel
                if cancel is not None and not told:
                    told = True
                    message = {"request": "cancel", "reason": cancel[0]}
                    pipe.write(json.dumps(message).encode("ascii") + b"\n")
        except (OSError, ValueError):
            pass  # the child is gone: the supervisor sees it
        except Exception as error:  # noqa: BLE001 - whatever cannot be pickled
            self._notes.append(f"The request could not be sent: {reason(error)}")
            kill(self._process)

    def _gpus(self) -> tuple[Gpu, ...]:
        """Give the GPUs that a build before this one has found: asking costs the start of CUDA.

        None where it starts CUDA anyway; and where somebody's code runs in the child, which may
        fork or hide GPUs: that code is not to depend on what was built before.
        """
        if builds_on_gpu(self._options, self._backend) or self._functions or self._options.plugins:
            return ()
        return known_gpus(self._visible)

    def _read_events(self) -> None:
        assert self._process is not None  # noqa: S101 - started with the process
        for data in chunks(self._process.stdout, self._gone):
            self._take_bytes(data)
            if not self._rest and len(data) < CHUNK:
                self._hooks.changed()  # the end of a batch
            while self._is_full and not self._gone.wait(_LOOK_CLOSELY_S):
                pass
        self._wake.set()

    def _read_printed(self) -> None:
        assert self._process is not None  # noqa: S101 - started with the process
        for data in chunks(self._process.stderr, self._gone):
            self._printed.add(data)


class _NotClosing(io.RawIOBase):
    """A pipe that survives the buffered writer around it."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written: int = self._pipe.write(data)
        return written


class _Printed:
    """What the child printed: what is new since the last drain, and the end of it all. Bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new = b""
        self._all = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        with self._lock:
            self._new += data
            over = len(self._new) - MAX_PRINTED
            if over > 0:
                self._dropped += over
                self._new = self._new[over:]
            self._all = (self._all + data)[-MAX_PRINTED:]

    def take(self) -> str:
        """Give what is new."""
        with self._lock:
            new, self._new = self._new, b""
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._decoder.reset()
            text = self._decoder.decode(new)
        return f"[{dropped:,} bytes not kept]\n{text}" if dropped else text

    def tail(self) -> str:
        """Give the end of everything."""
        with self._lock:
            return self._all.decode("utf-8", errors="replace")


class Scratch:
    """The file by which an engine without ``output=`` comes home.

    On POSIX it has no name from the start, so that nothing is left whoever dies.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._folder: str | None = None

    def __enter__(self) -> Scratch:  # noqa: PYI034 - typing.Self came with Python 3.11
        try:
            if sys.platform == "win32":
                self._folder = tempfile.mkdtemp(prefix="trt_widget-")
            else:
                self._descriptor, name = tempfile.mkstemp(prefix="trt_widget-", suffix=".engine")
                if self._descriptor <= _STDERR:  # where ours are closed; the child has its own
                    low = self._descriptor
                    self._descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
                    os.close(low)
                os.unlink(name)  # noqa: PTH108 - the descriptor keeps it
        except OSError as error:
            raise BuildFailed(
                f"No temporary file for the engine could be made: {error}.",
                "Free some space in the folder for temporary files, set TMPDIR to another before "
                "Python starts, or build with executor='thread'.",
            ) from error
        return self

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that the child gets."""
        return () if self._descriptor is None else (self._descriptor,)

    @property
    def address(self) -> int | str:
        """What the child writes to: a descriptor, or a path."""
        if self._descriptor is not None:
            return self._descriptor
        assert self._folder is not None  # noqa: S101 - one of the two is there
        return str(Path(self._folder) / "engine")

    def map(self) -> memoryview:
        """Map what the child has written."""
        if self._descriptor is not None:
            return map_file(os.dup(self._descriptor))
        return map_file(str(self.address))

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        if self._folder is not None:
            import shutil

            # A mapped file cannot be removed on Windows: then it goes with this process.
            shutil.rmtree(self._folder, ignore_errors=True)
            if os.path.exists(self._folder):  # noqa: PTH110 - a plain text here
                import atexit

                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)


# ---- the child's life ---------------------------------------------------------------------------

#: Processes whose pipes are open here. Every change is one operation.
_open_pipes: set[subprocess.Popen[bytes]] = set()


def _close(pipe: Any) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()


def _forget_pipes() -> None:
    """In a forked child: give up its copies of our pipes, or their end of file never comes."""
    for process in list(_open_pipes):
        for pipe in (process.stdin, process.stdout, process.stderr):
            _close(pipe)
    _open_pipes.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_pipes)


def _identity_of(told: object) -> tuple[int, int, int]:
    """Give what a child says of the file that it has written; nothing fits what makes no sense."""
    match told:
        case [int(device), int(inode), int(time_ns)]:
            return device, inode, time_ns
    return -1, -1, -1


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.terminate()
