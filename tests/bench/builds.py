"""What the benches of the executors run: in a kernel, in a fresh process, in a build process.

Functions that are given to a build (``source``, ``configure``) are sent to the build process by
name and imported there. A monitor that such a function puts into the config is called by that of
the package, with every callback of TensorRT, on TensorRT's thread.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import time
from time import perf_counter
from typing import TYPE_CHECKING, Any

import tensorrt_rtx as trt

from tests.bench.inside import (
    Emitter,
    OnlyTrue,
    bare_build,
    calls,
    cpu_of_children,
    last_state,
    part_of_trace,
)
from trt_widget import Build
from trt_widget._memory import peak_memory
from trt_widget.events import (
    BuildEnded,
    LogMessage,
    NetworkReady,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    StepCompleted,
    StreamStarted,
    from_json,
)
from trt_widget.executors.process import ProcessExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trt_widget.events import Event

#: Events that come from callbacks of TensorRT.
CALLBACKS = (PhaseStarted, StepCompleted, PhaseFinished, PhasesCompleted, PhasesCollapsed)


# ------------------------------------------------------------------ beside a loop

#: A build without a monitor that prints how long TensorRT took; with one more argument also when
#: the engine was there, by ``perf_counter()``.
PLAIN = """
import sys, time
import tensorrt_rtx as trt
builder = trt.Builder(logger := trt.Logger(trt.Logger.ERROR))
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
start = time.perf_counter()
assert builder.build_serialized_network(network, config)
end = time.perf_counter()
print(end - start, *([end] if len(sys.argv) > 2 else []))
"""


def timed_build(how: str, path: str, *, busy: bool) -> None:
    """Build while this kernel waits or, ``busy``, runs pure Python; print four times in seconds.

    ``how`` is the widget's executor; ``"plain"``: without a monitor, in a process of its own; or
    ``"bare"``: without a monitor, in a thread of this kernel, which waits.

    The first is how long it was inside TensorRT: in ``build_serialized_network``, without parsing.
    The second is the CPU time of its process, from its start to its end (of a thread's build: 0).
    The third is that from the start until the engine is there; of the plain build, in its own
    process. The fourth is that from the start until TensorRT begins to build.
    """
    used = cpu_of_children()
    start = perf_counter()
    if how == "bare":
        moments: list[float] = []
        thread = threading.Thread(target=lambda: moments.extend(bare_build(path)))
        thread.start()
        thread.join()
        begun, there = moments
        print(json.dumps([there - begun, 0.0, there - start, begun - start]))
        return
    if how == "plain":
        # Its own session, as the package's build process has one: the system may share its time out
        # by session.
        process = subprocess.Popen(
            [sys.executable, "-c", PLAIN, path, "when"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if busy:
            _loop_until(lambda: process.poll() is not None)
        took, there = map(float, process.communicate()[0].split())
        print(json.dumps([took, cpu_of_children() - used, there - start, there - start - took]))
        return
    from IPython.display import display

    from trt_widget import BuildWidget

    widget = BuildWidget(path, executor=how)
    ready: list[float] = []
    widget.subscribe(
        lambda events: ready.extend(e.time for e in events if isinstance(e, NetworkReady))
    )
    start = perf_counter()
    display(widget.start())  # type: ignore[no-untyped-call]
    if busy:
        _loop_until(lambda: widget.result is not None)
    widget.build.wait()
    there = perf_counter()
    assert widget.result is not None
    assert widget.result.executor == how
    took = widget.result.duration_s - ready[0]
    begun = widget.build._origin + ready[0] - start
    widget.close()
    print(json.dumps([took, cpu_of_children() - used, there - start, begun]))


def _loop_until(done: Callable[[], bool]) -> None:
    turns = 0
    while turns % 20_000 or not done():
        turns += 1


@contextlib.contextmanager
def lines_read(note: Callable[[float, bytes], None]) -> Iterator[None]:
    """Have ``note`` called after every line that comes from a build process, with its time."""
    take_line = ProcessExecutor._take_line

    def noting(self: ProcessExecutor, line: bytes) -> None:
        take_line(self, line)
        note(self._now(), line)

    ProcessExecutor._take_line = noting  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ProcessExecutor._take_line = take_line  # type: ignore[method-assign]


# ------------------------------------------------------------------ latency

#: Messages: one of every step, and one of every drain of the build process.
STEP = "trt_widget bench: step"
MARK = "trt_widget bench: drain"


class Marking(OnlyTrue):
    """Stretches a build, logs at each step, and adds a message to each drain, as its last event.

    Messages are not coalesced as steps are: every one arrives, whenever in a tick it was recorded.
    The time of the one that is added is that of the drain.
    """

    def __init__(self, logger: Any, config: Any, pause: float) -> None:
        super().__init__()
        self.logger = logger
        self.config = config
        self.pause = pause
        self.wrapped = False

    def phase_start(self, *_: Any) -> None:
        if self.wrapped:
            return
        self.wrapped = True
        monitor = self.config.progress_monitor  # the package's own by now
        drain = monitor.drain

        def marking() -> list[Event]:
            events: list[Event] = drain()
            if events:
                events.append(LogMessage(perf_counter() - monitor.origin, "info", MARK))
            return events

        monitor.drain = marking

    def step_complete(self, *_: Any) -> bool:
        time.sleep(self.pause)
        self.logger.log(trt.ILogger.Severity.INFO, STEP)
        return True


def mark_drains(builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build whose drains are marked and whose steps take 5 ms."""
    config.progress_monitor = Marking(builder.logger, config, 0.005)


# ------------------------------------------------------------------ a flood

#: What the root of the trace is called in a flood, to tell it from that of the real build.
FLOOD_ROOT = "Replayed trace"


def flood_events(count: int) -> list[Event]:
    """Repeat the MNIST trace up to ``count`` events, under a root of another name."""
    events = part_of_trace(count)
    root = events[0].phase  # type: ignore[union-attr]
    renamed: dict[int, Event] = {}
    for event in events:
        values = dict(vars(event))
        for name in ("phase", "parent"):
            if values.get(name) == root:
                values[name] = FLOOD_ROOT
        renamed.setdefault(id(event), type(event)(**values))
    return [renamed[id(event)] for event in events]


class Flooding(OnlyTrue):
    """Replays recorded callbacks at a rate that RTX cannot keep up for long.

    TensorRT itself waits meanwhile, in the first callback of its build; the replay comes from a
    thread of its own, so that its phases are not mixed with the real one that is open.
    """

    def __init__(self, config: Any, rate: float, count: int) -> None:
        super().__init__()
        self.config = config
        self.rate = rate
        self.events = flood_events(count)
        self.begun = False

    def phase_start(self, *_: Any) -> None:
        if self.begun:
            return
        self.begun = True
        emitter = Emitter(calls(self.config.progress_monitor, self.events), self.rate, 0)
        emitter.count = len(emitter.prepared)
        thread = threading.Thread(target=emitter.run)
        thread.start()
        thread.join()
        print(json.dumps([emitter.count, emitter.wall_s, emitter.cpu_s]))


def make_flood(rate: float, count: int, _builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build that begins with a flood."""
    config.progress_monitor = Flooding(config, rate, count)


_kept: dict[str, Any] = {}


def flood(rate: float, count: int) -> None:
    """Begin a build with a flood and leave the kernel idle; a Label says when it has ended.

    The Label gives CPU and wall seconds of this process from the flood's first event to the last
    batch before the end, and the CPU seconds of the end.
    """
    from IPython.display import display

    from tests.models import mlp
    from trt_widget import BuildWidget

    configure = functools.partial(make_flood, rate, count)
    widget = BuildWidget(mlp().SerializeToString(), executor="process", configure=configure)
    begun: list[tuple[float, float]] = []
    last: list[tuple[float, float]] = [(0.0, 0.0)]
    emitted = flood_events(count)
    _kept["expected"] = last_state(emitted)
    _kept["widget"] = widget
    del emitted

    def note(events: list[Event]) -> None:
        if not begun and any(isinstance(event, CALLBACKS) for event in events):
            begun.append((time.process_time(), perf_counter()))
        if widget.build.status == "running":
            last[0] = (time.process_time(), perf_counter())

    widget.subscribe(note)
    display(widget.start())  # type: ignore[no-untyped-call]

    def run() -> None:
        from ipywidgets import Label

        widget.build.wait()
        end_cpu = time.process_time() - last[0][0]
        cpu, wall = (at - start for at, start in zip(last[0], begun[0], strict=True))
        sent, sent_s, sent_cpu_s = json.loads(widget.build.printed.splitlines()[-1])
        Label(json.dumps([cpu, wall, sent, sent_s, sent_cpu_s, end_cpu]))

    threading.Thread(target=run, daemon=True).start()


def flood_expected() -> None:
    """Print what the rows of the flood must show."""
    print(json.dumps(_kept.pop("expected")))


def flood_close() -> None:
    """Close the widget."""
    _kept.pop("widget").close()


# ------------------------------------------------------------------ a large engine

_WIDTH = 4096
_BYTES_OF_LAYER = 4 * _WIDTH * _WIDTH


def large_network(layers: int) -> tuple[Any, Any]:
    """Make a network of so many matrices of 67 MB: the source of a build."""
    import numpy as np

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    last = network.add_input("x", trt.float32, (1, _WIDTH))
    random = np.random.default_rng(0)
    _kept["weights"] = []
    for _ in range(layers):
        weights = random.random((_WIDTH, _WIDTH), dtype=np.float32)
        _kept["weights"].append(weights)  # the network does not copy them
        constant = network.add_constant(weights.shape, trt.Weights(weights)).get_output(0)
        none = trt.MatrixOperation.NONE
        product = network.add_matrix_multiply(last, none, constant, none)
        last = network.add_activation(product.get_output(0), trt.ActivationType.RELU).get_output(0)
    network.mark_output(last)
    return builder, network


def large_engine(executor: str, size: int) -> None:
    """Build something tiny, then something of ``size`` bytes; print what that did to this process.

    Printed are the peak of memory before and after, and the size of the engine.
    """
    from tests.models import mlp

    Build(mlp().SerializeToString(), executor=executor).start().wait()
    before = peak_memory()
    source = functools.partial(large_network, -(-size // _BYTES_OF_LAYER))
    build = Build(source, executor=executor).start()
    build.wait()
    assert build.result is not None
    print(json.dumps([before, peak_memory(), build.result.engine_bytes, build.result.duration_s]))


# ------------------------------------------------------------------ start-up

#: Run by ``python -I -c``: what importing takes in a build process.
IMPORTS = """
import json, sys, time
sys.path[:] = json.loads(sys.argv[1])
start = time.perf_counter()
import trt_widget.executors.child
middle = time.perf_counter()
import tensorrt_rtx
print(json.dumps([middle - start, time.perf_counter() - middle]))
"""


#: Run by ``python -I -c``: import of TensorRT, then the names of the GPUs if a second argument asks
#: for them, then a builder; prints the seconds of each.
STARTS = """
import json, sys, time
sys.path[:] = json.loads(sys.argv[1])
from trt_widget.backend import gpus
times = [time.perf_counter()]
import tensorrt_rtx as trt
class Quiet(trt.ILogger):
    def log(self, *_):
        pass
times.append(time.perf_counter())
if sys.argv[2:]:
    gpus()
times.append(time.perf_counter())
builder = trt.Builder(logger := Quiet())
times.append(time.perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""

#: What :func:`start_up` gives the time of.
START_UP = ("first word", "message", "callback", "told", "end", "gone")


def start_up(data: bytes) -> dict[str, float]:
    """Build; give the seconds from start() to what happens first in the build process, and last.

    ``"first word"``: everything is imported there. ``"message"``, ``"callback"``: the first of
    TensorRT (the message may be missing); ``"told"``: that the earlier of the two has come to a
    subscriber here. ``"end"``: all is said; ``"gone"``: the process has left and the wait is over.
    """
    told: list[float] = []
    came: list[Event] = []
    build = Build(data, executor="process")

    def note(events: list[Event]) -> None:
        if not told and any(isinstance(event, (LogMessage, *CALLBACKS)) for event in events):
            told.append(perf_counter())

    build.subscribe(note)
    with lines_read(lambda _, line: came.append(from_json(line))):
        start = perf_counter()
        build.start().wait()
    gone = perf_counter()
    origin = build._origin  # of the running build; it waits for its turn first
    kinds: dict[str, type | tuple[type, ...]] = {
        "first word": StreamStarted,
        "message": LogMessage,
        "callback": CALLBACKS,
        "end": BuildEnded,
    }
    found = {"told": told[0] - start, "gone": gone - start}
    for name, kind in kinds.items():
        # A run of phases has the time of its end.
        times = [
            event.starts[0] if isinstance(event, PhasesCompleted) else event.time
            for event in came
            if isinstance(event, kind)
        ]
        if times:
            found[name] = origin + min(times) - start
    return found


# ------------------------------------------------------------------ a cancel in the gap


def cancel_in_gap(source: Any, executor: str, grace: float, silence: float) -> tuple[float, str]:
    """Cancel when the last callback is ``silence`` seconds old.

    Gives the seconds until the status is final and no build process is left, and how it ended.
    """
    import psutil

    me = psutil.Process(os.getpid())
    before = set(me.children())
    last: list[float] = []
    build = Build(source, executor=executor, grace=grace)

    def note(events: list[Event]) -> None:
        last.extend(event.time for event in events if isinstance(event, CALLBACKS))

    build.subscribe(note)
    build.start()
    while build.result is None and (not last or build.now() - max(last) < silence):
        time.sleep(0.02)
    children = set(me.children()) - before
    assert len(children) == (executor == "process")
    start = perf_counter()
    build.request_cancel()
    while build.result is None or any(child.is_running() for child in children):
        time.sleep(0.001)
    took = perf_counter() - start
    assert build.result.status == "cancelled", build.result
    return took, build.result.ended_by


def from_folder(path: Path) -> list[str]:
    """Give a ``sys.path`` for :data:`IMPORTS`: this one's, with the folder of the package."""
    return [str(path), *(entry for entry in sys.path if entry)]
