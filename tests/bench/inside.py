"""What the benches run inside a kernel: cells import it from here.

Everything that is measured here is printed as JSON or kept for a later cell.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import threading
import time
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
import tensorrt_rtx as trt

from tests.traces import mnist_events
from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trt_widget import BuildWidget
    from trt_widget.events import Event

    Call = tuple[Callable[..., Any], tuple[Any, ...]]


class OnlyTrue(trt.IProgressMonitor):  # type: ignore[misc]
    """The least that a monitor in Python can be."""

    def phase_start(self, _name: str, _parent: str | None, _steps: int) -> None:
        pass

    def step_complete(self, _name: str, _step: int) -> bool:
        return True

    def phase_finish(self, _name: str) -> None:
        pass


class Terminal(trt.IProgressMonitor):  # type: ignore[misc]
    """What a first sample looks like: every callback draws all open phases anew."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self.out = out
        self.open: dict[str, list[int]] = {}
        self.drawn = 0

    def phase_start(self, name: str, parent: str | None, steps: int) -> None:
        depth = self.open[parent][2] + 1 if parent in self.open else 0
        self.open[name] = [0, steps, depth]
        self.draw()

    def step_complete(self, name: str, step: int) -> bool:
        self.open[name][0] = step + 1
        self.draw()
        return True

    def phase_finish(self, name: str) -> None:
        del self.open[name]
        self.draw()

    def draw(self) -> None:
        print(f"\x1b[{self.drawn}F\x1b[J" if self.drawn else "", end="", file=self.out)
        for name, (step, steps, depth) in self.open.items():
            bar = "#" * (20 * step // max(steps, 1))
            print(f"{'  ' * depth}{name} [{bar:<20}] {step}/{steps}", file=self.out)
        self.drawn = len(self.open)
        self.out.flush()


def calls(monitor: Any, events: Iterable[Event]) -> list[Call]:
    """Prepare what TensorRT would call: bound methods with their arguments."""
    start, step, finish = monitor.phase_start, monitor.step_complete, monitor.phase_finish
    made: list[Call] = []
    for event in events:
        if isinstance(event, StepCompleted):
            made.append((step, (event.phase, event.step)))
        elif isinstance(event, PhaseStarted):
            made.append((start, (event.phase, event.parent, event.num_steps)))
        elif isinstance(event, PhaseFinished):
            made.append((finish, (event.phase,)))
    return made


def attached(name: str = "bench") -> BuildWidget:
    """Start and show a widget whose build is whatever calls its monitor."""
    from trt_widget import BuildWidget

    widget = BuildWidget.attach(backend="tensorrt_rtx", name=name)
    widget.__enter__()
    return widget


# ------------------------------------------------------------------ cost per callback


def _whole(prepared: Sequence[Call]) -> float:
    start = perf_counter()
    for method, arguments in prepared:
        method(*arguments)
    return perf_counter() - start


def _by_kind(prepared: Sequence[Call]) -> dict[str, float]:
    seconds = {"phase_start": 0.0, "step_complete": 0.0, "phase_finish": 0.0}
    for method, arguments in prepared:
        start = perf_counter()
        method(*arguments)
        end = perf_counter()
        seconds[method.__name__] += end - start
    return seconds


def callback_costs(rounds: int, floods: int, flood_traces: int) -> None:
    """Print microseconds per callback of each monitor, round by round; the widget stays live."""
    widget = attached("mnist")
    events = mnist_events()
    count = len(events)
    draw = random.Random(1)  # noqa: S311 - when to begin
    kinds = [method.__name__ for method, _ in calls(OnlyTrue(), events)]
    per_kind = {kind: kinds.count(kind) for kind in set(kinds)}
    prepared = {
        "only true": calls(OnlyTrue(), events),
        "ours": calls(widget.monitor, events),
    }
    found: dict[str, Any] = {
        key: {name: [] for name in prepared} for key in ("trace", "flood", "kinds")
    }

    def settle(name: str) -> None:
        # The drain has done with it, and the next replay begins anywhere between two of its ticks.
        time.sleep(draw.uniform(0.0, 0.1) + (0.15 if name == "ours" else 0.0))

    for index in range(rounds):
        names = list(prepared) if index % 2 else list(prepared)[::-1]
        for name in names:
            found["trace"][name].append(1e6 * _whole(prepared[name]) / count)
            settle(name)
        if index % 4 == 0:
            for name in names:
                times = _by_kind(prepared[name])
                found["kinds"][name].append({k: 1e6 * t / per_kind[k] for k, t in times.items()})
                settle(name)
    for index in range(floods):
        for name in list(prepared) if index % 2 else list(prepared)[::-1]:
            many = prepared[name] * flood_traces
            found["flood"][name].append(1e6 * _whole(many) / len(many))
            time.sleep(0.6)
    found["terminal"] = {}
    with open(os.devnull, "w", encoding="utf-8") as null:  # noqa: PTH123 - not a file
        for name, out in (("StringIO", io.StringIO()), ("the null device", null)):
            terminal = calls(Terminal(out), events)
            found["terminal"][name] = [1e6 * _whole(terminal) / count for _ in range(3)]
    widget.finish(b"engine")
    print(json.dumps(found))


def cpu_of_children() -> float:
    """Give the CPU seconds of the child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


# ------------------------------------------------------------------ builds


def build(path: str, *, with_widget: bool) -> None:
    """Begin a build and leave the kernel idle; a Label says when it has ended."""
    if with_widget:
        from IPython.display import display

        from trt_widget import BuildWidget

        start = perf_counter()
        widget = BuildWidget(path).start()
        display(widget)  # type: ignore[no-untyped-call]
        threading.Thread(target=_wait_for, args=(widget, start), daemon=True).start()
    else:
        threading.Thread(target=_build_alone, args=(path, perf_counter()), daemon=True).start()


def _wait_for(widget: BuildWidget, start: float) -> None:
    widget.build.wait()
    _built(perf_counter() - start)
    widget.close()


def _build_alone(path: str, start: float) -> None:
    bare_build(path)
    _built(perf_counter() - start)


def first_build(path: str) -> None:
    """Print the seconds of a build without a monitor, the first of this process."""
    start = perf_counter()
    bare_build(path)
    print(perf_counter() - start)


def bare_build(path: str) -> tuple[float, float]:
    """Build without a monitor; give when TensorRT began, and when the engine was there."""
    builder = trt.Builder(logger := trt.Logger(trt.Logger.ERROR))
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(path)
    config = builder.create_builder_config()
    start = perf_counter()
    assert builder.build_serialized_network(network, config)
    return start, perf_counter()


def _built(seconds: float) -> None:
    from ipywidgets import Label

    Label(str(seconds))


# ------------------------------------------------------------------ rates


class Emitter:
    """Calls a monitor so many times a second, in a thread, as a builder does."""

    def __init__(self, prepared: Sequence[Call], rate: float, count: int) -> None:
        self.prepared, self.rate, self.count = prepared, rate, count
        self.cpu_s = self.end_cpu_s = self.wall_s = self.grown_mb = 0.0

    def run(self, end: Callable[[], Any] | None = None) -> None:
        """Emit, then call ``end``; note the CPU time of the whole process and its memory.

        What the end takes, once, is noted apart: it does not grow with the time that a build takes.
        """
        memory = psutil.Process().memory_info
        prepared, length = self.prepared, len(self.prepared)
        before = peak = memory().rss
        cpu = time.process_time()
        start = looked = perf_counter()
        done = 0
        while done < self.count:
            now = perf_counter()
            due = min(self.count, int((now - start) * self.rate) + 1)
            while done < due:
                method, arguments = prepared[done % length]
                method(*arguments)
                done += 1
            if now - looked > 0.5:
                looked, peak = now, max(peak, memory().rss)
            next_one = start + done / self.rate
            time.sleep(max(0.005, next_one - perf_counter()))
        self.wall_s = perf_counter() - start
        time.sleep(0.25)  # what is still to be drained belongs to it
        self.cpu_s = time.process_time() - cpu
        if end is not None:
            end()
        self.end_cpu_s = time.process_time() - cpu - self.cpu_s
        self.grown_mb = (max(peak, memory().rss) - before) / 1e6


def part_of_trace(count: int) -> list[Event]:
    """Repeat the MNIST trace up to ``count`` events, then finish what is open."""
    whole = mnist_events()
    events = [whole[index % len(whole)] for index in range(count)]
    still_open: dict[str, None] = {}
    for event in events[len(events) // len(whole) * len(whole) :]:
        if isinstance(event, PhaseStarted):
            still_open[event.phase] = None
        elif isinstance(event, PhaseFinished):
            still_open.pop(event.phase, None)
    return [*events, *(PhaseFinished(0.0, name) for name in reversed(still_open))]


def steps(count: int) -> list[Event]:
    """Make one phase of ``count`` steps below a root."""
    return [
        PhaseStarted(0.0, "root", None, 1),
        PhaseStarted(0.0, "long phase", "root", count),
        *(StepCompleted(0.0, "long phase", index) for index in range(count)),
        PhaseFinished(0.0, "long phase"),
        PhaseFinished(0.0, "root"),
    ]


def last_state(events: Iterable[Event]) -> dict[str, list[int]]:
    """Say what the rows must show at the end: path -> count, step, steps (no code of ours)."""
    paths: dict[str, str] = {}
    state: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, PhaseStarted):
            above = f"{paths[event.parent]} > " if event.parent else ""
            path = paths[event.phase] = above + event.phase
            state[path] = [state.get(path, [0])[0] + 1, 0, event.num_steps]
        elif isinstance(event, StepCompleted):
            state[paths[event.phase]][1] = event.step + 1
    return state


_kept: dict[str, Any] = {}


def emit(kind: str, rate: float, count: int, *, with_widget: bool) -> None:
    """Begin to emit in a thread and leave the kernel idle; a Label says when it has ended."""
    # The drain thread of the widget before stays three seconds.
    while any(thread.name.startswith("trt_widget drain") for thread in threading.enumerate()):
        time.sleep(0.05)
    events = part_of_trace(count) if kind == "trace" else steps(count)
    if with_widget:
        widget = attached(kind)
        emitter = Emitter(calls(widget.monitor, events), rate, len(events))
        end: Callable[[], Any] | None = lambda: widget.finish(b"engine")  # noqa: E731
        _kept["widget"] = widget
        _kept["expected"] = last_state(events)
    else:
        emitter = Emitter(calls(OnlyTrue(), events), rate, len(events))
        end = None
    # What is prepared here is no part of a user's kernel: the collector need not go through it.
    gc.collect()
    gc.freeze()
    time.sleep(0.5)

    def run() -> None:
        from ipywidgets import Label

        emitter.run(end)
        gc.unfreeze()
        Label(json.dumps([emitter.cpu_s, emitter.wall_s, emitter.grown_mb, emitter.end_cpu_s]))

    threading.Thread(target=run, daemon=True).start()


def expected() -> None:
    """Print what the rows must show."""
    print(json.dumps(_kept.pop("expected")))


def close() -> None:
    """Close the widget."""
    _kept.pop("widget").close()


# ------------------------------------------------------------------ clicks


def clickable() -> None:
    """Show a widget whose monitor notes when its cancel flag is set."""
    widget = attached("click")
    monitor = widget.monitor
    request_cancel = monitor.request_cancel

    def noting(reason: str = "user") -> None:
        request_cancel(reason)
        _kept.setdefault("flagged", time.monotonic())

    monitor.request_cancel = noting
    monitor.phase_start("root", None, 10)
    _kept["widget"] = widget


def busy(how: str, seconds: float) -> None:
    """Keep the cell running; a Label says that it has begun."""
    from ipywidgets import Label

    widget = _kept["widget"]
    Label(how)
    if how == "sleep":
        time.sleep(seconds)
    elif how == "loop":
        end, turns = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            turns += 1
    else:
        with contextlib.suppress(TimeoutError):
            widget.wait(seconds)


def clicked() -> None:
    """Print when the flag was set, and whether the monitor answers False; close the widget."""
    widget = _kept.pop("widget")
    answer = widget.monitor.step_complete("root", 0)
    widget.__exit__(None, None, None)
    widget.close()
    print(json.dumps([_kept.pop("flagged", None), answer]))
