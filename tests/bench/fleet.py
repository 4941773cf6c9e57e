"""What a cluster carries for each build: its scheduler, the way of the events, the client.

The scheduler and the workers are processes of their own, started by Dask's command line. The
constants are measured with 2, 8 and 32 workers; from them follows where 1,000 would break first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.bench.builds import PLAIN
from tests.bench.figures import say
from tests.bench.inside import cpu_of_children
from tests.bench.stats import Row
from tests.kernel.harness import ROOT
from tests.models import mlp, slowly
from trt_widget.events import NetworkReady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client

#: Sizes of the cluster.
SIZES = (2, 8, 32)
#: The fleet that is asked about, and what its builds are like: seconds, bytes of the engine.
FLEET = 1000
TYPICAL_S = 60.0
TYPICAL_ENGINE = 100e6
#: Bytes that are sent both ways to see how fast.
PAYLOAD = 64 << 20


# ------------------------------------------------------------------ one build, with and without


def watched_build(client: Client, path: str) -> tuple[float, float]:
    """Build on the cluster; give the seconds inside TensorRT and the CPU seconds of the child."""
    from trt_widget import Build

    before = sum(client.run(cpu_of_children).values())
    build = Build(path, client=client)
    ready: list[float] = []
    build.subscribe(
        lambda events: ready.extend(e.time for e in events if isinstance(e, NetworkReady))
    )
    build.start().wait()
    assert build.result is not None
    used = sum(client.run(cpu_of_children).values()) - before
    return build.result.duration_s - ready[0], used


def plain_build(client: Client, path: str) -> tuple[float, float]:
    """Do the same by a task that starts a process without a monitor."""
    return client.submit(_plain_build, path, pure=False).result()


def _plain_build(path: str) -> tuple[float, float]:
    before = cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, path],
        check=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    return float(done.stdout), cpu_of_children() - before


# ------------------------------------------------------------------ a cluster of processes


@contextlib.contextmanager
def processes(workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """Start a scheduler and so many workers; give its address and process."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TRT_WIDGET_HISTORY": "off"}
    with tempfile.TemporaryDirectory(prefix="bench-dask-") as folder:
        file = Path(folder) / "scheduler.json"
        log = (Path(folder) / "log").open("wb")
        common: dict[str, Any] = {
            "cwd": folder,
            "env": environ,
            "stdout": log,
            "stderr": log,
            "start_new_session": True,
        }
        started = []
        module = [sys.executable, "-m"]
        try:
            command = [*module, "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
            command += ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
            scheduler = subprocess.Popen(command, **common)
            started.append(scheduler)
            command = [*module, "distributed.cli.dask_worker", "--scheduler-file", str(file)]
            command += ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
            started.append(subprocess.Popen([*command, "--memory-limit", "0"], **common))
            deadline = time.monotonic() + 120
            while not file.exists():
                assert time.monotonic() < deadline, "no scheduler"
                time.sleep(0.05)
            yield json.loads(file.read_text())["address"], psutil.Process(scheduler.pid)
        finally:
            for process in reversed(started):
                process.terminate()
            for process in reversed(started):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()
            log.close()


# ------------------------------------------------------------------ what is carried


class Load:
    """What the scheduler and this process, the client, use between its making and :meth:`read`."""

    def __init__(self, client: Client, scheduler: psutil.Process) -> None:
        self._client, self._scheduler = client, scheduler
        self.threads = 0
        self._before = self._look()

    def _look(self) -> tuple[float, float, float, float, float]:
        times = self._scheduler.cpu_times()
        count, size = self._client.run_on_scheduler(_carried)
        return time.perf_counter(), times.user + times.system, time.process_time(), count, size

    def read(self) -> dict[str, float]:
        """Give seconds, CPU seconds of both, messages and bytes of our events."""
        now = self._look()
        names = ("seconds", "scheduler", "client", "messages", "bytes")
        return {name: b - a for name, a, b in zip(names, self._before, now, strict=True)}


class _Counter:
    """Counts on the scheduler what goes through its topics for us."""

    name = "trt_widget-bench"

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def log_event(self, topic: str, message: Any) -> None:
        if "trt_widget" in str(topic):
            self.messages += 1
            self.bytes += _size(message)


def _size(value: Any) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _size(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return 8


def _count(dask_scheduler: Any) -> None:
    """Put the counter onto the scheduler."""
    from distributed import SchedulerPlugin

    kind = type("Counter", (_Counter, SchedulerPlugin), {})
    dask_scheduler.add_plugin(kind(), name=_Counter.name, idempotent=True)


def _carried(dask_scheduler: Any) -> tuple[int, int]:
    counter = dask_scheduler.plugins[_Counter.name]
    return counter.messages, counter.bytes


def _run(client: Client, number: int, **options: Any) -> int:
    """Run so many builds at once; give the most threads of this process meanwhile."""
    from trt_widget import Build

    data = mlp().SerializeToString()
    most = 0
    builds = [Build(data, client=client, **options).start() for _ in range(number)]
    for build in builds:
        while build.result is None:
            most = max(most, threading.active_count())
            time.sleep(0.05)
        assert build.result.status == "succeeded", build.result.error
    return most


def _ways(client: Client) -> tuple[float, float]:
    """Give the bytes a second of a model on its way to a worker, and of an engine on its way back.

    A model of bytes and an engine without ``output=`` are on no file system that both see.
    """
    from trt_widget import Build

    width = int((PAYLOAD / 4) ** 0.5)
    small = mlp(1).SerializeToString()
    large = mlp(1, width).SerializeToString()
    found = []
    for data in (small, large):
        build = Build(data, client=client)
        ready: list[tuple[float, float]] = []
        build.subscribe(
            lambda events, ready=ready: ready.extend(  # type: ignore[misc]  # bound at once
                (time.perf_counter(), e.time) for e in events if isinstance(e, NetworkReady)
            )
        )
        start = time.perf_counter()
        engine = build.start().wait()
        end = time.perf_counter()
        result = build.result
        assert result is not None
        arrived, parsed = ready[0]
        back = (end - arrived) - (result.duration_s - parsed)
        found.append((arrived - parsed - start, back, len(data), len(engine)))
    (there, back, sent, came), (there_all, back_all, sent_all, came_all) = found
    floor = 1e-3
    return (
        (sent_all - sent) / max(there_all - there, floor),
        (came_all - came) / max(back_all - back, floor),
    )


def fleet(*, long: bool) -> list[Row]:
    """Measure clusters of 2, 8 and 32 workers, and say what 1,000 would be."""
    from distributed import Client

    rows: list[Row] = []
    found: dict[int, dict[str, float]] = {}
    rounds = 4 if long else 2
    for workers in SIZES:
        say(f"  {workers} workers")
        with processes(workers) as (address, scheduler), Client(address) as client:
            client.wait_for_workers(workers, timeout=120)
            client.run_on_scheduler(_count)
            _run(client, workers)  # imports
            time.sleep(1)
            load = Load(client, scheduler)
            time.sleep(5)
            idle = load.read()
            load = Load(client, scheduler)
            _run(client, rounds * workers)
            short = load.read()
            load = Load(client, scheduler)
            threads = _run(client, workers, configure=_ten_seconds)
            steady = load.read()
            there, back = _ways(client)
        builds, seconds = rounds * workers, steady["seconds"] * workers  # of running builds
        resting = {key: idle[key] / idle["seconds"] for key in ("scheduler", "client")}
        above = {key: (steady[key] - resting[key] * steady["seconds"]) / seconds for key in resting}
        found[workers] = {
            "idle scheduler": resting["scheduler"],
            "idle client": resting["client"],
            "scheduler": above["scheduler"],
            "client": above["client"],
            "messages": steady["messages"] / seconds,
            "bytes": steady["bytes"] / seconds,
            "threads": threads / workers,
            "there": there,
            "back": back,
            "builds": builds,
            "builds/s": builds / short["seconds"],
            **{
                f"{key} build": (short[key] - resting.get(key, 0.0) * short["seconds"]) / builds
                for key in ("scheduler", "client", "messages", "bytes")
            },
        }
        rows += _rows(workers, found[workers])
    return [*rows, *_thousand(found)]


def _ten_seconds(builder: Any, network: Any, config: Any) -> None:
    slowly(0.05)(builder, network, config)


def _rows(workers: int, per: dict[str, float]) -> list[Row]:
    head = f"{workers} workers"
    return [
        Row(
            f"{head}: a short build carries",
            f"{per['messages build']:.0f} messages, {per['bytes build'] / 1e3:.1f} kB, "
            f"{1e3 * per['scheduler build']:.1f} ms of the scheduler, "
            f"{1e3 * per['client build']:.1f} ms of the client ({per['builds/s']:.1f} builds/s)",
        ),
        Row(
            f"{head}: each second of a running build",
            f"{per['messages']:.1f} messages, {per['bytes'] / 1e3:.2f} kB, "
            f"{1e3 * per['scheduler']:.2f} ms of the scheduler, "
            f"{1e3 * per['client']:.2f} ms and {per['threads']:.1f} threads of the client",
        ),
        Row(
            f"{head}: models to a worker, engines back",
            f"{per['there'] / 1e6:.0f} MB/s, {per['back'] / 1e6:.0f} MB/s",
        ),
        Row(
            f"{head}, idle",
            f"{1e3 * per['idle scheduler']:.1f} ms of the scheduler a second, "
            f"{1e3 * per['idle client']:.1f} ms of the client",
        ),
    ]


def _thousand(found: dict[int, dict[str, float]]) -> list[Row]:
    """Say what a fleet would need, by the constants of the largest cluster; first what breaks.

    What an idle cluster takes is a line through the smallest and the largest.
    """
    small, large = min(found), max(found)
    per = found[large]

    def idle(who: str) -> float:
        first, last = found[small][f"idle {who}"], per[f"idle {who}"]
        slope = (last - first) / (large - small) if large > small else 0.0
        return first + max(0.0, slope) * (FLEET - small)

    a_second = FLEET / TYPICAL_S  # builds that end
    parts = {
        f"{who}'s core": idle(who) + FLEET * per[who] + a_second * per[f"{who} build"]
        for who in ("scheduler", "client")
    }
    size = f"{TYPICAL_ENGINE / 1e6:.0f} MB"
    parts[f"way back of engines of {size} without a shared folder"] = (
        a_second * TYPICAL_ENGINE / per["back"]
    )
    return [
        Row(
            f"{FLEET:,} workers, builds of {TYPICAL_S:.0f} s, by these constants: load of the "
            f"{name} (1 is full)",
            f"{value:.2f}, so full at about {FLEET / value:,.0f} workers",
        )
        for name, value in sorted(parts.items(), key=lambda item: -item[1])
    ]


FIGURES: dict[str, Callable[..., list[Row]]] = {"fleet": fleet}
