"""Record real builds with the time of every callback: ``python -m tests.bench traces --out DIR``.

What is recorded comes from a monitor that TensorRT's config holds beside the package's own: nothing
is coalesced. The files are those that :func:`tests.traces.read` reads; in ``tests/data/traces`` all
tests and benches of traces take them. Needs no network and no GPU; on a machine with one, the
builds are what they are there.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.bench import device, progress
from tests.bench.inside import OnlyTrue
from tests.traces import Trace, write
from trt_widget.events import (
    BuildEnded,
    Event,
    NetworkReady,
    PhaseFinished,
    PhaseStarted,
    StepCompleted,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Networks as :func:`tests.bench.progress.source` takes them.
NETWORKS = ("light:resnet50", "light:densenet121", "transformer:96")
EXECUTORS = ("process", "thread")
START, STEP, FINISH = range(3)
DATE = "%Y-%m-%d %H:%M"


class Recorder(OnlyTrue):
    """Keeps every callback; all are written whenever the last open phase has finished."""

    def __init__(self, config: Any, path: Path) -> None:
        super().__init__()
        self.config = config
        self.path = path
        self.calls: list[tuple[Any, ...]] = []
        self.open = 0

    def phase_start(self, name: str, parent: str | None, steps: int) -> None:
        self.calls.append((perf_counter(), get_ident(), START, name, parent, steps))
        self.open += 1

    def step_complete(self, name: str, step: int) -> bool:
        self.calls.append((perf_counter(), get_ident(), STEP, name, step))
        return True

    def phase_finish(self, name: str) -> None:
        self.calls.append((perf_counter(), get_ident(), FINISH, name))
        self.open -= 1
        if self.open == 0:
            # The package's own monitor by now: its origin is that of the build's events.
            origin = self.config.progress_monitor.origin
            self.path.write_bytes(pickle.dumps((origin, self.calls)))


def record_into(path: Path, _builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build whose callbacks are recorded."""
    config.progress_monitor = Recorder(config, path)


def recorded(path: Path) -> Iterator[Event]:
    """Give the callbacks that were recorded, threads by numbers."""
    origin, calls = pickle.loads(path.read_bytes())  # noqa: S301 - from our own monitor
    threads: dict[int, int] = {}
    for time_, ident, kind, name, *more in calls:
        at, thread = time_ - origin, threads.setdefault(ident, len(threads))
        if kind == START:
            yield PhaseStarted(at, name, more[0], more[1], thread)
        elif kind == STEP:
            yield StepCompleted(at, name, more[0], thread)
        else:
            yield PhaseFinished(at, name, thread)


def build(network: str, executor: str) -> Trace:
    """Build and record."""
    from trt_widget import Build

    where = device.find()
    info = {"network": network, "executor": executor, **about(where)}
    with tempfile.TemporaryDirectory() as folder:
        model, calls = Path(folder) / "model.onnx", Path(folder) / "calls"
        model.write_bytes(progress.source(network))
        made = Build(
            str(model),
            executor=executor,
            exclusive=False,
            configure=functools.partial(record_into, calls),
        )
        ready: list[NetworkReady] = []
        made.subscribe(
            lambda events: ready.extend(e for e in events if isinstance(e, NetworkReady))
        )
        made.start().wait()
        result = made.result
        assert result is not None
        callbacks = list(recorded(calls))
    end = BuildEnded(
        result.duration_s,
        result.status,
        result.ended_by,
        engine_bytes=result.engine_bytes,
        peak_memory_bytes=result.peak_memory_bytes,
    )
    info |= {"package": result.backend, "version": result.version}
    return Trace(name_of(info), info, (ready[0], *callbacks, end))


def recording(trace: Trace) -> progress.Recording:
    """Give what the estimates are evaluated with: the events of each drain."""
    return progress.Recording(
        trace.info["network"],
        trace.ready.size,
        trace.duration_s,
        [(at, [json.loads(to_json(event)) for event in batch]) for at, batch in trace.batches()],
        trace.info["package"],
        trace.info["version"],
        f"{trace.info['device']}, {trace.info['processor']}",
        time.mktime(time.strptime(trace.info["date"], DATE)),
    )


def about(where: device.Device) -> dict[str, Any]:
    """Say on what is built, and how busy that is."""
    from tests.bench.__main__ import load
    from trt_widget import __version__

    return {
        "device": where.name,
        "driver": where.driver,
        "processor": progress.machine().partition(",")[0],
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "load": load(),
        "date": time.strftime(DATE),
        "python": platform.python_version(),
        "system": platform.system(),
        "trt_widget": __version__,
    }


def name_of(info: dict[str, Any]) -> str:
    """Make a file's name: device, package, network and executor."""
    network = str(info["network"]).removeprefix("light:")
    parts = (info["device"], f"{info['package']} {info['version']}", network, info["executor"])
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", str(part).lower()).strip("-.") for part in parts)


def say(trace: Trace) -> str:
    """Describe a trace in a line."""
    gaps = trace.gaps()
    longest = max((end - start for start, end in gaps), default=0.0)
    return (
        f"{trace}: {trace.end.status}, {trace.duration_s:.2f} s, {len(trace.callbacks):,} "
        f"callbacks, {trace.silent_share():.0%} silent (longest {longest:.2f} s), load "
        f"{trace.info['load']}"
    )


def main(arguments: list[str]) -> int:
    """Record the builds that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench traces")
    parser.add_argument("--out", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--network", action="append", help=f"these only; of {NETWORKS}, or others")
    parser.add_argument("--executor", action="append", choices=EXECUTORS, help="these only")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for network in options.network or NETWORKS:
        for executor in options.executor or EXECUTORS:
            trace = build(network, executor)
            path = write(options.out, trace)
            print(f"{say(trace)}; {path.stat().st_size / 1000:.0f} kB", flush=True)
            failed += trace.end.status != "succeeded"
    return 1 if failed else 0
