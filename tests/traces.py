"""Recorded callbacks of real builds, and ways to replay them.

`data/tensorrt-10.16-mnist.jsonl.gz`: an MNIST network built by TensorRT 10.16 on a GPU, recovered
from the public log of NVIDIA's TensorRT cookbook (`04-Feature/ProgressMonitor`). 6,439 callbacks,
1,164 phases, 8 levels; no times. This is the one thing that cannot be made on a machine without a
GPU.

`data/traces/*.jsonl.gz`: builds with every callback and its time, by `python -m tests.bench traces
--out DIR`. A line that says what was recorded where, then events. Every file in that folder is
taken by the tests that ask for :func:`traces`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from trt_widget.events import (
    BuildEnded,
    Event,
    NetworkReady,
    PhaseFinished,
    PhaseStarted,
    StepCompleted,
    from_json,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Callback = PhaseStarted | StepCompleted | PhaseFinished

DATA = Path(__file__).parent / "data"
MNIST = DATA / "tensorrt-10.16-mnist.jsonl.gz"
FOLDER = DATA / "traces"
#: Of the form of the first line; it grows when older readers could misread it.
VERSION = 1
CALLBACKS = (PhaseStarted, StepCompleted, PhaseFinished)
#: Seconds without a callback that count as silent in figures.
SILENT_S = 0.5


@cache
def mnist_events() -> tuple[Event, ...]:
    """Give the recorded callbacks; they carry no time."""
    with gzip.open(MNIST) as lines:
        return tuple(from_json(line) for line in lines)


def timed(events: Iterable[Event], step_s: float = 0.001) -> list[Event]:
    """Give the events times, one every ``step_s`` seconds."""
    result: list[Event] = []
    for index, event in enumerate(events):
        values = {**vars(event), "time": index * step_s}
        result.append(type(event)(**values))
    return result


def replay(monitor: Any, events: Iterable[Event]) -> None:
    """Call a progress monitor as TensorRT did."""
    for event in events:
        if isinstance(event, StepCompleted):
            monitor.step_complete(event.phase, event.step)
        elif isinstance(event, PhaseStarted):
            monitor.phase_start(event.phase, event.parent, event.num_steps)
        elif isinstance(event, PhaseFinished):
            monitor.phase_finish(event.phase)


# ------------------------------------------------------------------ with times


@dataclass(frozen=True, eq=False)
class Trace:
    """A real build: every callback of TensorRT, with its time.

    Attributes
    ----------
    name
        The file's name without its ending; what the tests call it.
    info
        What was recorded: ``network`` (as :func:`tests.bench.progress.source` takes it),
        ``executor``, ``package``, ``version``, ``device`` (a GPU's name or "no GPU"), ``driver``,
        ``processor``, ``cores``, ``load`` (before the build), ``date``, ``python``, ``system``.
    events
        When the network was ready, the callbacks, and the end; seconds since the build's start.
    """

    name: str
    info: Mapping[str, Any]
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def callbacks(self) -> tuple[Callback, ...]:
        """What TensorRT called, in that order."""
        return tuple(event for event in self.events if isinstance(event, CALLBACKS))

    @cached_property
    def ready(self) -> NetworkReady:
        """When the builder was about to run, and how large the network is."""
        return next(event for event in self.events if isinstance(event, NetworkReady))

    @cached_property
    def end(self) -> BuildEnded:
        """How and when it ended."""
        return next(event for event in self.events if isinstance(event, BuildEnded))

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the end."""
        return self.end.time

    def gaps(self, least: float = SILENT_S) -> list[tuple[float, float]]:
        """Give the times without a callback that are longer than ``least``, while it was built."""
        inside = [self.ready.time, *(event.time for event in self.callbacks), self.end.time]
        return [(start, end) for start, end in pairwise(inside) if end - start > least]

    def silent_share(self, least: float = SILENT_S) -> float:
        """Give the share of the time inside TensorRT that lies in such gaps."""
        silent = sum(end - start for start, end in self.gaps(least))
        return silent / (self.end.time - self.ready.time)

    @cache  # noqa: B019 - of a trace, which lives as long as the process
    def batches(self, tick: float = 0.1) -> tuple[tuple[float, tuple[Event, ...]], ...]:
        """Give what each drain of a real monitor brings, with the times of the recording."""
        from trt_widget import monitor as module

        now = 0.0
        found: list[tuple[float, tuple[Event, ...]]] = []

        def clock() -> float:
            return now

        def drain(at: float) -> None:
            batch = monitor.drain()
            if batch:
                found.append((at, tuple(batch)))

        with mock.patch.object(module, "perf_counter", clock):
            monitor: Any = module.ProgressMonitor("tensorrt_rtx")
            drained = 0.0
            for event in self.callbacks:
                while event.time > drained + tick:
                    drained += tick
                    drain(drained)
                now = event.time
                replay(monitor, [event])
            drain(min(drained + tick, self.end.time))
        return tuple(found)


def read(path: Path) -> Trace:
    """Read a file.

    Raises
    ------
    ValueError
        It is no trace, or one of a newer version.
    """
    try:
        with gzip.open(path) as file:
            first, *lines = file.read().splitlines() or [b""]
        info = json.loads(first)
        if not isinstance(info, dict) or info.pop("trace", None) != VERSION:
            raise ValueError(f"its first line is that of no trace of version {VERSION}")  # noqa: TRY301 - the file's name is added below
        events = tuple(from_json(line) for line in lines)
    # It is no gzip, cut off, damaged, empty, no JSON, nested too deeply, or not what is expected.
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    return Trace(path.name.partition(".jsonl")[0], info, events)


def write(folder: Path, trace: Trace) -> Path:
    """Write a trace into a folder; the times keep microseconds."""
    path = folder / f"{trace.name}.jsonl.gz"
    lines = [json.dumps({"trace": VERSION, **trace.info}, separators=(",", ":"))]
    for event in trace.events:
        values = json.loads(to_json(event), parse_float=lambda text: round(float(text), 6))
        lines.append(json.dumps(values, separators=(",", ":")))
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))
    return path


@cache
def traces(folder: Path = FOLDER) -> tuple[Trace, ...]:
    """Give all recorded builds with times, by name."""
    return tuple(read(path) for path in sorted(folder.glob("*.jsonl.gz")))
