"""The recorded callbacks of a real build of full TensorRT, and ways to replay them.

`data/tensorrt-10.16-mnist.jsonl.gz`: an MNIST network built by TensorRT 10.16 on a GPU, recovered
from the public log of NVIDIA's TensorRT cookbook (`04-Feature/ProgressMonitor`). 6,439 callbacks,
1,164 phases, 8 levels; no times. This is the one thing that cannot be made on a machine without a
GPU.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget.events import Event, PhaseFinished, PhaseStarted, StepCompleted, from_json

if TYPE_CHECKING:
    from collections.abc import Iterable

MNIST = Path(__file__).parent / "data" / "tensorrt-10.16-mnist.jsonl.gz"


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
