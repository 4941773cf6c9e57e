"""The figures of many builds: a queue on this machine, and builds on a Dask cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.builds import PLAIN
from tests.bench.figures import say
from tests.bench.stats import Row, ratios, spread
from tests.models import light_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Builds at once: two on the machine of the tests, half of the cores on a larger one.
WORKERS = max(2, (os.cpu_count() or 2) // 2)


# ------------------------------------------------------------------ one machine


def queue(*, long: bool) -> list[Row]:
    """N builds over k workers against the same in sequence, beside what the machine can do."""
    rounds = 5 if long else 3
    names = ("shufflenet", "resnet50", "inception_v1")
    models = [str(light_model(name)) for name in names] * max(4, WORKERS)
    times: dict[str, list[float]] = {
        name: [] for name in ("sequence", "queue", "plain sequence", "plain")
    }
    for index in range(rounds):
        order = list(times) if index % 2 else list(times)[::-1]
        for how in order:
            times[how].append(_HOW[how](models))
        said = ", ".join(f"{how} {seconds[-1]:.1f} s" for how, seconds in times.items())
        say(f"  round {index + 1}: {said}")
    ours = ratios(times["sequence"], times["queue"])
    limit = ratios(times["plain sequence"], times["plain"])
    share = ratios(ours, limit)
    head = f"{len(models)} builds over {WORKERS} workers"
    return [
        Row(
            f"{head}: speed-up of a queue / speed-up of plain processes, median of {rounds}",
            f"{spread(share)} ({median(ours):.2f} / {median(limit):.2f})",
            ">= 0.85",
            median(share) >= 0.85,
        ),
        Row(
            "... the queue / the plain processes, by time",
            f"{spread(ratios(times['queue'], times['plain']))} "
            f"({median(times['queue']):.1f} s / {median(times['plain']):.1f} s)",
        ),
    ]


def _sequence(models: Sequence[str]) -> float:
    from trt_widget import Build

    start = time.perf_counter()
    for model in models:
        Build(model, executor="process").start().wait()
    return time.perf_counter() - start


def _queue(models: Sequence[str]) -> float:
    from trt_widget import BuildQueue

    jobs = {f"{index}": model for index, model in enumerate(models)}
    start = time.perf_counter()
    built = BuildQueue(jobs, workers=WORKERS, engine_cache=False).start()
    built.wait()
    took = time.perf_counter() - start
    assert built.counts().get("succeeded") == len(models), built.counts()
    built.close()
    return took


def _plain(models: Sequence[str], at_once: int = WORKERS) -> float:
    """Build in processes that know nothing of us."""
    start = time.perf_counter()
    waiting, running = list(models), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            command = [sys.executable, "-c", PLAIN, waiting.pop(0)]
            running.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            )
        for process in running.copy():
            if process.poll() is not None:
                assert process.returncode == 0
                running.remove(process)
        time.sleep(0.005)
    return time.perf_counter() - start


_HOW = {
    "sequence": _sequence,
    "queue": _queue,
    "plain sequence": lambda models: _plain(models, 1),
    "plain": _plain,
}


# ------------------------------------------------------------------ a cluster


def cluster(*, long: bool) -> list[Row]:
    """DenseNet-121 on a worker of a real cluster, with its events on the way, and without."""
    from distributed import Client, LocalCluster

    from tests.bench.fleet import plain_build, watched_build

    pairs = 15 if long else 5
    path = str(light_model("densenet121"))
    ours: list[float] = []
    theirs: list[float] = []
    cpu: list[float] = []
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as local,
        Client(local) as client,
    ):
        for index in range(-1, pairs):
            order = (watched_build, plain_build) if index % 2 else (plain_build, watched_build)
            took = {how: how(client, path) for how in order}
            if index < 0:
                continue  # the first ones warm up
            ours.append(took[watched_build][0])
            theirs.append(took[plain_build][0])
            cpu.append(took[watched_build][1] / took[plain_build][1])
            say(f"  pair {index + 1}: {ours[-1]:.2f} s with, {theirs[-1]:.2f} s without")
    found = ratios(ours, theirs)
    return [
        Row(
            f"DenseNet-121 on a Dask worker, inside TensorRT: with its events on the way / "
            f"without, median of {pairs} pairs",
            f"{spread(found, 3)} ({median(ours):.2f} s / {median(theirs):.2f} s)",
            "<= 1.03",
            median(found) <= 1.03,
        ),
        Row("... the same by CPU time of the process that builds", spread(cpu, 3)),
    ]


FIGURES: dict[str, Callable[..., list[Row]]] = {"queue": queue, "cluster": cluster}
