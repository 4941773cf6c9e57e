"""The figures of builds in a child process: each function gives its rows of the table."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.figures import IMPORT, printed, say, wrong_rows
from tests.bench.stats import Row, differences, ratios, spread
from tests.kernel.harness import LATEST, ROOT, Kernel
from tests.models import light_model, mlp, transformer
from trt_widget.build import TICK_S as KERNEL_TICK_S
from trt_widget.events import LogMessage, from_json
from trt_widget.executors.child import TICK_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget import Build
    from trt_widget.events import Event

IMPORT_BUILDS = IMPORT.replace("inside", "builds")


# ------------------------------------------------------------------ 7


def busy(*, long: bool) -> list[Row]:
    """DenseNet-121 beside a cell that runs pure Python, in a child process and without us."""
    pairs, threads = (15, 5) if long else (3, 1)
    path = str(light_model("densenet121"))
    seconds: dict[str, list[float]] = {"process": [], "plain": [], "thread": []}
    cpu: dict[str, list[float]] = {how: [] for how in seconds}
    with Kernel(LATEST) as kernel:
        kernel.run(IMPORT_BUILDS)

        def measure(how: str) -> None:
            cell = kernel.run(f"builds.timed_build({how!r}, {path!r}, busy=True)", timeout=300)
            took, used, *_ = printed(cell)
            seconds[how].append(took)
            cpu[how].append(used)
            time.sleep(0.5)

        measure("process")  # the first one warms up
        seconds["process"].clear()
        cpu["process"].clear()
        for index in range(pairs):
            for how in ("process", "plain") if index % 2 else ("plain", "process"):
                measure(how)
            if index < threads:
                measure("thread")
            said = ", ".join(f"{how} {times[-1]:.2f} s" for how, times in seconds.items())
            say(f"  pair {index + 1}: {said}")
    found = ratios(seconds["process"], seconds["plain"])
    beside = ratios(seconds["thread"], seconds["plain"][:threads])
    head = "DenseNet-121 inside TensorRT, beside a cell of pure Python"
    return [
        Row(
            f"{head}: executor process / plain process, median of {pairs} pairs",
            f"{spread(found, 3)} ({median(seconds['process']):.2f} s / "
            f"{median(seconds['plain']):.2f} s)",
            "<= 1.05",
            median(found) <= 1.05,
        ),
        Row(
            "... the same by CPU time of the whole child, which a busy machine moves less",
            f"{spread(ratios(cpu['process'], cpu['plain']), 3)} ({median(cpu['process']):.2f} s / "
            f"{median(cpu['plain']):.2f} s)",
        ),
        Row(
            f"... executor thread / plain process, {threads} of them",
            f"{median(beside):.2f} ({median(seconds['thread']):.2f} s)",
        ),
    ]


# ------------------------------------------------------------------ 8


def startup(*, long: bool) -> list[Row]:
    """From start() to the first event in the child, and what of it is what."""
    from tests.bench import builds

    number = 30 if long else 10
    data = mlp().SerializeToString()
    builds.start_up(data)
    python, ours, tensorrt, first, here = [], [], [], [], []
    paths = json.dumps(builds.from_folder(ROOT))
    for index in range(-1, number):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        bare = time.perf_counter() - start
        command = [sys.executable, "-I", "-c", builds.IMPORTS, paths]
        imported = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        parts = json.loads(imported.stdout)
        whole = builds.start_up(data)
        if index >= 0:  # the first one warms up
            python.append(1000 * bare)
            ours.append(1000 * parts[0])
            tensorrt.append(1000 * parts[1])
            first.append(1000 * min(whole.get("message", math.inf), whole["callback"]))
            here.append(1000 * whole["told"])
    known = [sum(parts) for parts in zip(python, ours, tensorrt, strict=True)]
    return [
        Row(
            f"start() to the first event in the child, median of {number}",
            f"{spread(first, 0)} ms, max {max(first):.0f} ms",
            "< 500 ms",
            median(first) < 500,
        ),
        Row("... of it: start and end of Python (-I -c pass)", f"{spread(python, 0)} ms"),
        Row("... of it: import of the child's modules", f"{spread(ours, 0)} ms"),
        Row("... of it: import of tensorrt_rtx", f"{spread(tensorrt, 0)} ms"),
        Row(
            "... the rest: request, builder, parser",
            f"{spread(differences(first, known), 0)} ms",
        ),
        Row("... to a subscriber, two ticks of 0.1 s included", f"{spread(here, 0)} ms"),
    ]


# ------------------------------------------------------------------ 9


def gap(*, long: bool) -> list[Row]:
    """Cancel while TensorRT is silent, until the process is gone and the status is final."""
    from tests.bench import builds

    number, threads = (10, 3) if long else (3, 1)
    source = transformer(48).SerializeToString()
    rows = []
    for grace, most in ((0.0, 0.2), (2.0, 2.2)):
        found = [builds.cancel_in_gap(source, "process", grace, 1.0) for _ in range(number)]
        times, ends = [took for took, _ in found], {ended_by for _, ended_by in found}
        say(f"  grace {grace:g}: {', '.join(f'{took:.3f}' for took in times)} s ({ends})")
        if not ends <= {"terminated", "killed"}:
            raise RuntimeError(f"no cancel inside the gap: {ends}")
        rows.append(
            Row(
                f"cancel in the gap to stopped, grace {grace:g}, {number} times",
                f"median {median(times):.3f} s, max {max(times):.3f} s ({', '.join(sorted(ends))})",
                f"< {most:g} s",
                max(times) < most,
            )
        )
    times = [builds.cancel_in_gap(source, "thread", 0.0, 1.0)[0] for _ in range(threads)]
    rows.append(Row(f"... executor thread, {threads} of them", f"median {median(times):.1f} s"))
    return rows


# ------------------------------------------------------------------ 10


def latency(*, long: bool) -> list[Row]:
    """How long an event is on its way, with an idle kernel process and with one that computes."""
    rows = []
    for busy_process in (False, True):
        drained, recorded, delivered = [], [], []
        for _ in range(3 if long else 1):
            found = _latencies(busy_process)
            drained += found[0]
            recorded += found[1]
            delivered += found[2]
        tick = 1000 * TICK_S
        where = ", the process computes" if busy_process else ""
        near, far = "< 5 ms", f"< {tick + 5:g} ms"
        rows += [
            Row(
                f"event latency{where}: from the child's drain to the kernel process, "
                f"median of {len(drained)} drains",
                f"{spread(drained)} ms, max {max(drained):.1f} ms",
                "" if busy_process else near,
                None if busy_process else median(drained) < 5,
            ),
            Row(
                f"... recorded to read, the child's tick of {tick:.0f} ms included, "
                f"{len(recorded):,} messages",
                f"{spread(recorded, 0)} ms",
                "" if busy_process else far,
                None if busy_process else median(recorded) < tick + 5,
            ),
            Row(
                f"... recorded to a subscriber, the kernel's tick of {1000 * KERNEL_TICK_S:.0f} ms "
                "included",
                f"{spread(delivered, 0)} ms",
            ),
        ]
    return rows


def _latencies(busy_process: bool) -> tuple[list[float], list[float], list[float]]:
    """Give three lists of milliseconds: drain to reader, record to reader, record to subscriber."""
    from tests.bench import builds
    from trt_widget import Build

    arrived: list[tuple[float, bytes]] = []
    told: list[tuple[float, Event]] = []
    path = light_model("resnet50")
    build: Build = Build(path, executor="process", configure=builds.mark_drains)
    build.subscribe(lambda events: told.extend((build.now(), event) for event in events))
    with builds.lines_read(lambda at, line: arrived.append((at, line))):
        build.start()
        if busy_process:
            builds._loop_until(lambda: build.result is not None)
        build.wait()
    read: list[tuple[float, Event]] = [(at, from_json(line)) for at, line in arrived]
    marks, recorded, delivered = (
        [1000 * (at - event.time) for at, event in some if _says(event, text)]
        for some, text in ((read, builds.MARK), (read, builds.STEP), (told, builds.STEP))
    )
    if len(marks) < 20 or len(recorded) < 20:
        raise RuntimeError(f"only {len(marks)} drains and {len(recorded)} steps were seen")
    return marks, recorded, delivered


def _says(event: Event, text: str) -> bool:
    return isinstance(event, LogMessage) and event.message == text


# ------------------------------------------------------------------ 11


def flood(*, long: bool) -> list[Row]:
    """CPU of the kernel process while callbacks flood the child."""
    rate, seconds = 50_000, 20.0 if long else 6.0
    count = round(rate * seconds)
    with Kernel(LATEST) as kernel:
        kernel.run(IMPORT_BUILDS)
        for number in (10_000, count):  # the first one imports and warms
            before = len(kernel.widgets("LabelModel"))
            kernel.run(f"builds.flood({rate}, {number})", timeout=120)
            kernel.wait_for(
                lambda n=before: len(kernel.widgets("LabelModel")) > n, 300, "the flood"
            )
            time.sleep(4)  # the last state goes out twice
            found = json.loads(kernel.widgets("LabelModel")[-1].state["value"])
            cpu, wall, sent, sent_s, sent_cpu_s, end_cpu = found
            expected = printed(kernel.run("builds.flood_expected()"))
            wrong = wrong_rows(kernel, expected, below="Replayed trace")
            kernel.run("builds.flood_close()")
    say(f"  {sent:,} callbacks in {sent_s:.1f} s, {sent / sent_s:,.0f}/s; wrong: {wrong}")
    share = cpu / wall
    return [
        Row(
            f"flood of {rate:,} callbacks/s in the child, {seconds:.0f} s: CPU of the kernel",
            f"{share:.1%} of a core (child {sent_cpu_s / sent_s:.0%}, {sent / sent_s:,.0f}/s)",
            "< 10%",
            share < 0.10,
        ),
        Row("... CPU of the end, once", f"{end_cpu:.2f} s"),
        Row("... last state", f"{len(wrong)} rows wrong" if wrong else "exact", "exact", not wrong),
    ]


# ------------------------------------------------------------------ 12


def engine(*, long: bool) -> list[Row]:
    """Peak memory of the process that asks for an engine of 600 MB."""
    size = 600_000_000
    found: dict[str, list[list[float]]] = {"process": [], "thread": []}
    for executor, values in found.items():
        for _ in range(3 if long and executor == "process" else 1):
            code = f"{IMPORT_BUILDS}; builds.large_engine({executor!r}, {size})"
            command = [sys.executable, "-c", code]
            ran = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE)
            values.append(json.loads(ran.stdout.splitlines()[-1]))
            say(f"  {executor}: {values[-1]}")
    extra = {name: [(v[1] - v[0]) / 1e6 for v in values] for name, values in found.items()}
    made = min(value[2] for values in found.values() for value in values)
    if made < size:
        raise RuntimeError(f"the engine has only {made:,} bytes")
    most = max(extra["process"])
    return [
        Row(
            f"an engine of {made / 1e6:.0f} MB: extra peak memory of the kernel process",
            f"{most:.1f} MB",
            "< 50 MB",
            most < 50,
        ),
        Row("... executor thread", f"{extra['thread'][0]:,.0f} MB"),
    ]


FIGURES: dict[str, Callable[..., list[Row]]] = {
    "busy": busy,
    "startup": startup,
    "gap": gap,
    "latency": latency,
    "flood": flood,
    "engine": engine,
}
