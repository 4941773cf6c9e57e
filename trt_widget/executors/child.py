"""The child process that builds; :mod:`trt_widget.executors.process` starts it.

Its threads: the main thread listens to the kernel, so that it can always hear a cancel; one thread
builds; one sends events, about ten times a second; one watches whether the kernel still lives.

Descriptors: what was standard input carries the request and then cancels, what was standard output
carries the events. Both are moved out of the way before anything else runs, so that whatever
TensorRT, a plugin or the user's code prints goes where standard error goes: to the kernel too, on
its own pipe, and never into the events.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import pickle
import signal
import sys
import threading
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget import errors
from trt_widget._files import write_all
from trt_widget._memory import peak_memory
from trt_widget.backend import found_gpus, take_gpus
from trt_widget.events import BuildEnded, Event, StreamStarted, to_json
from trt_widget.executors import CANNOT_SEND
from trt_widget.executors.isolation import what_is_visible
from trt_widget.executors.lifetime import end_now, end_with, orphaned, watch
from trt_widget.executors.worker import Worker, failed

if TYPE_CHECKING:
    import io

    from trt_widget.executors import Outcome
    from trt_widget.options import Source

__all__ = ["main"]

#: M_ARENA_MAX in malloc.h of glibc.
_ARENA_MAX = -8
#: Seconds between two batches of events.
TICK_S = 0.1
#: How long the last events may take after SIGTERM, in seconds.
LAST_WORDS_S = 0.3
#: Characters of a text of an error, and entries of a list of them, that go to the kernel.
_LONGEST_TEXT = 20_000
_LONGEST_LIST = 200
#: The request's clock is ours if it is no further away than this, in seconds.
_SAME_CLOCK_S = 300.0


def main(parent: int, package: str) -> None:
    """Build what the kernel asks for, tell it everything, and end this process.

    Parameters
    ----------
    parent
        Process id of the kernel.
    package
        What builds, ``"tensorrt"`` or ``"tensorrt_rtx"``.
    """
    control, events = _take_descriptors()
    end_with(parent)
    if package == "tensorrt_rtx":
        _share_the_heap()
    if sys.platform == "linux":
        # Where memory is short, this process goes and not the notebook.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    pid = os.getpid()
    if hasattr(os, "register_at_fork"):  # a fork may hold the GPU: it ends with us
        os.register_at_fork(after_in_child=lambda: end_with(pid))
    # Where a crash happened, on the pipe of what is printed.
    faulthandler.enable(all_threads=False)
    # The kernel's Interrupt does not reach this session; nobody else's should end a build either.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":  # it was blocked until now: what this starts is to hear it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    child = _Child(control, events, parent)
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, child.on_terminate)
    threading.Thread(
        target=watch, args=(parent,), name="trt_widget parent watch", daemon=True
    ).start()
    child.listen()


def _share_the_heap() -> None:
    """Have the threads that come allocate where the main one does.

    In glibc the arenas of other threads cost more: a build in a thread 4 % (ResNet-50, TensorRT for
    RTX 1.7 on two cores, 27 builds each in turns), of which this gives back most. TensorRT for RTX
    builds in one thread; full TensorRT is not known to, and many threads are better off with many
    arenas. Who has set the number of arenas keeps it.
    """
    tuned = os.environ.get("MALLOC_ARENA_MAX") or "malloc.arena" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if sys.platform == "linux" and not tuned:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def _take_descriptors() -> tuple[io.BufferedReader, int]:
    """Move the protocol's descriptors away from 0 and 1; give the one and the other."""
    control = os.fdopen(os.dup(0), "rb")
    events = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(events, os.O_BINARY)
        msvcrt.setmode(control.fileno(), os.O_BINARY)
    return control, events


class _Child:
    """One build in this process."""

    def __init__(self, control: io.BufferedReader, events: int, parent: int) -> None:
        self._parent = parent
        self._control = control
        self._descriptor = events
        self._identity = _identity(events)
        self._visible = what_is_visible()
        self._wake = threading.Event()
        self._outcome: Outcome | None = None
        self._engine: tuple[str | None, int | None] = (None, None)
        self._terminated = False
        self._sent = threading.Event()

    # ------------------------------------------------------------------ the main thread

    def listen(self) -> None:
        """Take the request, start the threads, and listen until the kernel closes or dies."""
        control = _identity(self._control.fileno())
        request: dict[str, Any] = pickle.load(self._control)  # noqa: S301 - from our own parent
        options = request["options"]
        self._request = request
        if request["gpus"]:
            take_gpus(request["gpus"])
        scratch = request["scratch"]
        self._scratch = _identity(scratch) if isinstance(scratch, int) else None
        worker = Worker(options, options.backend, request["label"], in_child=True)
        now = clock.perf_counter()
        if 0.0 <= now - request["origin"] < _SAME_CLOCK_S:
            worker.set_origin(request["origin"])
        else:  # a system where every process has its own zero
            worker.set_origin(now - max(0.0, clock.time() - request["origin_epoch"]))
        self._worker = worker
        backend = options.backend
        self._send([StreamStarted(worker.now(), request["label"], backend.name, backend.version)])
        threading.Thread(target=self._build, name="trt_widget build", daemon=True).start()
        threading.Thread(target=self._pump, name="trt_widget events", daemon=True).start()
        try:
            for line in self._control:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict) and message.get("request") == "cancel":
                        worker.monitor.request_cancel(str(message.get("reason", "user")))
            is_ours = _identity(self._control.fileno()) == control
        except OSError:
            is_ours = False
        if not is_ours:
            # The user's code has closed our descriptor, and its number may be another file's by
            # now, which ends at once: the kernel can still send signals.
            threading.Event().wait()
        # End of file: the kernel has closed its end, or is gone. Nobody could take the engine.
        end_now()

    def on_terminate(self, signum: int, _frame: object) -> None:
        """SIGTERM, in the main thread: have what is there sent, and end by the signal."""
        self._terminated = True
        self._wake.set()
        self._sent.wait(LAST_WORDS_S)
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    # ------------------------------------------------------------------ the thread that builds

    def _build(self) -> None:
        try:
            outcome = self._worker.run(self._source)
            if outcome.engine is not None:
                outcome = self._store(outcome)
        except BaseException as error:  # noqa: BLE001 - want of memory, above all: it must be told
            failure = errors.BuildFailed(
                f"The build process could not hand its outcome over: {type(error).__name__}: "
                f"{error}",
                "Where memory is short, close what else uses it, or build on a larger machine.",
            )
            outcome = failed(failure, self._worker.now())
        self._outcome = outcome
        self._wake.set()

    def _source(self) -> Source:
        """Recreate the functions that were sent along, and give the source."""
        source: Source = self._request["source"]
        packed: bytes | None = self._request["functions"]
        if packed is None:
            return source
        from trt_widget.executors.functions import unpack_functions

        # From here on the user's folders count, as they do in the kernel.
        sys.path[:] = self._request["sys_path"]
        try:
            functions = unpack_functions(packed)
        except Exception as error:
            failure = errors.BuildFailed(
                "The functions of this build could not be recreated in the build process: "
                f"{type(error).__name__}: {error}",
                "Make their module importable (an installed package, or a file in a folder of "
                "sys.path), call cloudpickle.register_pickle_by_value(module), or build with "
                "executor='thread'.",
            )
            raise failure from error
        self._worker.set_functions(functions)
        if "source" in functions:
            source = dataclasses.replace(source, value=functions["source"])
        return source

    def _store(self, outcome: Outcome) -> Outcome:
        """Put the engine where the kernel finds it: at ``output``, else in the kernel's file."""
        size = outcome.engine.nbytes
        output = self._request["options"].output
        if output is not None and outcome.status == "succeeded":
            self._engine = (str(output), size)
            return outcome
        scratch = self._request["scratch"]
        try:
            if isinstance(scratch, int) and _identity(scratch) != self._scratch:
                msg = "its descriptor is another file now"
                raise OSError(msg)  # noqa: TRY301 - as if it were closed
            _write(outcome.engine, scratch)
        except OSError as error:
            if outcome.error is not None:  # saving at output= had failed already: say that
                return dataclasses.replace(outcome, engine=None)
            failure = errors.SaveError(
                f"The engine ({size:,} bytes) could not be handed over by a temporary file: "
                f"{error}.",
                "Free some space in the folder for temporary files, give output=, or set TMPDIR to "
                "another folder before Python starts.",
                error=error,
            )
            return failed(failure, outcome.time)
        self._engine = (scratch if isinstance(scratch, str) else None, size)
        return outcome

    # ------------------------------------------------------------------ the thread that sends

    def _pump(self) -> None:
        try:
            self._send_until_the_end()
        except BaseException:  # noqa: BLE001 - the kernel would wait for ever
            faulthandler.dump_traceback()
            os._exit(CANNOT_SEND)

    def _send_until_the_end(self) -> None:
        while True:
            self._wake.wait(TICK_S)
            self._wake.clear()
            outcome, terminated = self._outcome, self._terminated
            batch: list[Event] = self._worker.drain()
            if outcome is not None:
                batch.append(self._end(outcome))
            self._send(batch)
            if outcome is not None:
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(Exception):
                        stream.flush()
                # Without the interpreter's end: TensorRT's own teardown can take long, or fail.
                os._exit(0)
            if terminated:
                self._sent.set()
                return

    def _end(self, outcome: Outcome) -> BuildEnded:
        engine, size = self._engine
        facts = dict(outcome.facts)
        if self._visible == what_is_visible():  # nobody's function has hidden some of them
            facts["gpus"] = found_gpus()
        return BuildEnded(
            outcome.time,
            outcome.status,
            outcome.ended_by,
            outcome.reason,
            None if outcome.error is None else clipped(errors.to_record(outcome.error)),
            engine if outcome.engine is not None else None,
            size if outcome.engine is not None else None,
            peak_memory(),
            tuple(clipped(list(outcome.notes))),
            facts,
        )

    def _send(self, batch: list[Event]) -> None:
        if not batch:
            return
        data = memoryview("".join(f"{to_json(event)}\n" for event in batch).encode("ascii"))
        try:
            if _identity(self._descriptor) != self._identity:
                msg = "their descriptor is another file now"
                raise OSError(msg)  # noqa: TRY301 - as if it were closed
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            if not orphaned(self._parent):
                # The user's code has closed our descriptor (its number may belong to an engine file
                # by now), or the kernel its own.
                with contextlib.suppress(OSError):
                    os.write(2, f"trt_widget: the events cannot be sent: {error}\n".encode())
                os._exit(CANNOT_SEND)
            end_now()


def clipped(value: Any) -> Any:
    """Shorten what a model can make as long as it likes: texts, and lists of them."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: clipped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [clipped(entry) for entry in value[:_LONGEST_LIST]]
    return value


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _write(engine: memoryview, scratch: int | str) -> None:
    """Write the engine to the kernel's file, given by its descriptor or by its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    descriptor = scratch if isinstance(scratch, int) else os.open(scratch, flags, 0o600)
    try:
        write_all(descriptor, engine)
    finally:
        os.close(descriptor)
