"""The figures: each function measures one thing and gives its rows of the table."""

from __future__ import annotations

import compileall
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from tests.bench import inside
from tests.bench.stats import Row, busiest, differences, ratios, spread
from tests.kernel.harness import LATEST, ROOT, VERSIONS, Kernel
from tests.models import light_model
from tests.traces import mnist_events
from trt_widget.events import PhaseFinished, PhaseStarted
from trt_widget.monitor import ProgressMonitor
from trt_widget.phases import MAX_SPANS, PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernel.harness import Execution, Message

IMPORT = "from tests.bench import inside"


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


def printed(cell: Execution) -> Any:
    """Read the JSON that a cell has printed last."""
    streams = [output for output in cell.outputs if output.get("name") == "stdout"]
    return json.loads("".join(output["text"] for output in streams).splitlines()[-1])


# ------------------------------------------------------------------ 1


def callback(*, long: bool) -> list[Row]:
    """Cost per callback, in a kernel, with the drain and the view at work."""
    rounds, floods = (150, 12) if long else (60, 6)
    with Kernel(LATEST) as kernel:
        kernel.run(IMPORT)
        cell = kernel.run(f"inside.callback_costs({rounds}, {floods}, 60)", timeout=600)
        found = printed(cell)
    trace, flood, kinds = found["trace"], found["flood"], found["kinds"]
    above = differences(trace["ours"], trace["only true"])
    flooded = differences(flood["ours"], flood["only true"])
    head = "callback, us above a monitor that only returns True"
    rows = [
        Row(
            f"{head}: MNIST trace, mean of {rounds} pairs",
            f"{spread(above, 2, fmean)} ({fmean(trace['ours']):.2f} - "
            f"{fmean(trace['only true']):.2f})",
            "<= 1.0",
            fmean(above) <= 1.0,
        ),
        Row(f"{head}: the same, median", spread(above), "<= 1.0", median(above) <= 1.0),
    ]
    for kind in ("phase_start", "step_complete", "phase_finish"):
        each = [
            ours[kind] - theirs[kind]
            for ours, theirs in zip(kinds["ours"], kinds["only true"], strict=True)
        ]
        rows.append(Row(f"... {kind}, median", spread(each)))
    rate = 1 / fmean(flood["ours"])
    rows.append(
        Row(
            f"... a flood of {rate:.1f} million callbacks/s without a pause, mean of {floods}",
            spread(flooded, 2, fmean),
            "<= 1.0",
            fmean(flooded) <= 1.0,
        )
    )
    rows += [
        Row(
            f"... a monitor that redraws at every callback, into {name}",
            f"{median(values) - median(trace['only true']):.1f}",
        )
        for name, values in found["terminal"].items()
    ]
    return rows


# ------------------------------------------------------------------ 2


def build(*, long: bool) -> list[Row]:
    """DenseNet-121, with the widget and without a monitor, in turns.

    A process that has built before builds faster: its memory is there already. So the widget's
    build, which is the first of its process, is compared with both.
    """
    pairs = 25 if long else 5
    path = str(light_model("densenet121"))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    first: list[float] = []
    with Kernel(LATEST) as kernel:
        kernel.run(IMPORT)
        for index in range(-1, pairs):
            order = (True, False) if index % 2 else (False, True)
            for with_widget in order if index >= 0 else (True,):
                before = len(kernel.widgets("LabelModel"))
                kernel.run(f"inside.build({path!r}, with_widget={with_widget})")
                kernel.wait_for(lambda n=before: len(kernel.widgets("LabelModel")) > n, 120)
                took = float(kernel.widgets("LabelModel")[-1].state["value"])
                if index >= 0:  # the first one warms up
                    seconds[with_widget].append(took)
                time.sleep(0.5)
            if index >= 0:
                first.append(_first_build(path))
                say(
                    f"  pair {index + 1}: {seconds[True][-1]:.2f} s, {seconds[False][-1]:.2f} s, "
                    f"{first[-1]:.2f} s"
                )
    found, fresh = ratios(seconds[True], seconds[False]), ratios(seconds[True], first)
    return [
        Row(
            f"DenseNet-121 build, widget / no monitor in a new process, median of {pairs} pairs",
            f"{spread(fresh, 3)} ({median(seconds[True]):.2f} s / {median(first):.2f} s)",
            "<= 1.02",
            median(fresh) <= 1.02,
        ),
        Row(
            f"DenseNet-121 build, widget / no monitor, kernel that has built, {pairs} pairs",
            f"{spread(found, 3)} ({median(seconds[True]):.2f} s / {median(seconds[False]):.2f} s)",
            "<= 1.02",
            median(found) <= 1.02,
        ),
    ]


def _first_build(path: str) -> float:
    code = f"from tests.bench import inside; inside.first_build({path!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout)


# ------------------------------------------------------------------ 3


def _comm_messages(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.type.startswith("comm_")]


def _size(message: Message) -> int:
    return len(json.dumps(message.content)) + sum(map(len, message.buffers))


def _emit(kernel: Kernel, kind: str, rate: int, count: int, with_widget: bool) -> list[float]:
    before = len(kernel.widgets("LabelModel"))
    kernel.run(f"inside.emit({kind!r}, {rate}, {count}, with_widget={with_widget})")
    kernel.wait_for(lambda: len(kernel.widgets("LabelModel")) > before, 300, "the emitter")
    result: list[float] = json.loads(kernel.widgets("LabelModel")[-1].state["value"])
    return result


def wrong_rows(kernel: Kernel, expected: dict[str, list[int]], below: str = "") -> list[str]:
    """Compare what the browser's models hold with what was emitted (below a root, if given)."""
    card = next(comm for comm in kernel.widgets("AnyModel") if "rows" in comm.state)
    names = [str(row).removeprefix("IPY_MODEL_") for row in card.state["rows"]]
    infos = [kernel.comms[name].state["info"] for name in names]
    infos = [info for info in infos if info["path"].startswith(below)]
    shown = {info["path"]: [info["count"], info["step"], info["total"]] for info in infos}
    wrong = [path for path in {*shown, *expected} if shown.get(path) != expected.get(path)]
    wrong += [info["path"] for info in infos if info["status"] != "done"]
    if card.state["header"]["status"] != "succeeded":
        wrong.append("header")
    return wrong


def rates(*, long: bool) -> list[Row]:
    """Messages, CPU, memory and the last state, at several rates of callbacks."""
    rows = []
    with Kernel(LATEST) as kernel:
        kernel.run(IMPORT)
        _emit(kernel, "trace", 10_000, 10_000, with_widget=True)  # the first one imports and warms
        time.sleep(4)
        kernel.run("inside.close()")
        plan = [("trace", rate, 10.0 if long else 5.0) for rate in (100, 1000, 10_000, 50_000)]
        if long:
            plan[0] = ("trace", 100, len(mnist_events()) / 100)
        for kind, rate, seconds in [*plan, ("steps", 50_000, 20.0)]:
            count = round(rate * seconds)
            alone = _emit(kernel, kind, rate, round(rate * min(seconds, 5.0)), with_widget=False)
            first = len(kernel.messages)
            cpu, wall, grown, end_cpu = _emit(kernel, kind, rate, count, with_widget=True)
            time.sleep(4)  # the last state goes out twice
            comm = _comm_messages(kernel.messages[first:])
            wrong = _wrong_rows_of(kernel)
            times = [message.time for message in comm]
            most = busiest(times)
            size = busiest(times, [_size(message) for message in comm])
            share = cpu / wall - alone[0] / alone[1]
            what = f"{count:,} step events" if kind == "steps" else "MNIST trace"
            say(f"  {what} at {rate:,}/s: emitted at {count / wall:,.0f}/s; wrong: {wrong}")
            head = f"{what} at {rate:,}/s"
            rows += [
                Row(f"{head}: comm messages/s, busiest", f"{most:.0f}", "< 100", most < 100),
                Row(
                    f"{head}: kernel CPU beside the emitter's",
                    f"{share:.1%} of a core (emitter {alone[0] / alone[1]:.1%})",
                    "< 10%",
                    share < 0.10,
                ),
                Row(f"{head}: CPU of the end, once", f"{end_cpu:.2f} s"),
                Row(f"{head}: growth of memory", f"{grown:.1f} MB", "< 20 MB", grown < 20),
                Row(f"{head}: last state", _exactness(wrong), "exact", not wrong),
                Row(f"{head}: kB/s of comm messages, busiest", f"{size / 1000:.0f}"),
            ]
    return rows


def _wrong_rows_of(kernel: Kernel) -> list[str]:
    # The rows as they were before the widget is closed.
    wrong = wrong_rows(kernel, printed(kernel.run("inside.expected()")))
    kernel.run("inside.close()")
    return wrong


def _exactness(wrong: list[str]) -> str:
    return f"{len(wrong)} rows wrong" if wrong else "exact"


# ------------------------------------------------------------------ 4


def imports(*, long: bool) -> list[Row]:
    """Import of the widget in fresh interpreters, from a copy with byte code, as pip leaves it."""
    pairs = 60 if long else 20
    codes = {
        "base": "import ipywidgets, anywidget",
        "ours": "from trt_widget import BuildWidget",
    }
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    cpu: dict[str, list[float]] = {name: [] for name in codes}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "trt_widget", Path(folder) / "trt_widget")
        compileall.compile_dir(folder, quiet=1)
        environ = os.environ | {"PYTHONPATH": folder}
        for index in range(-2, pairs):
            for name in codes if index % 2 else reversed(codes):
                start, used = time.perf_counter(), inside.cpu_of_children()
                command = [sys.executable, "-c", codes[name]]
                subprocess.run(command, check=True, cwd=folder, env=environ)
                if index >= 0:
                    seconds[name].append(time.perf_counter() - start)
                    cpu[name].append(inside.cpu_of_children() - used)
    found = ratios(seconds["ours"], seconds["base"])
    used_up = ratios(cpu["ours"], cpu["base"])
    return [
        Row(
            f"import of BuildWidget / of ipywidgets and anywidget, median of {pairs} pairs",
            f"{spread(found)} ({1000 * median(seconds['ours']):.0f} ms / "
            f"{1000 * median(seconds['base']):.0f} ms)",
            "<= 1.15",
            median(found) <= 1.15,
        ),
        Row("... the same by CPU time, which a busy machine moves less", spread(used_up)),
    ]


# ------------------------------------------------------------------ 5


def _click(kernel: Kernel, how: str) -> float:
    """Click once while a cell runs; give the seconds until the flag was set."""
    shown = kernel.run("inside.clickable()")
    card = kernel.comms[shown.view_ids[0]]
    channel = str(card.state["cancel_channel"]).removeprefix("IPY_MODEL_")
    before = len(kernel.widgets("LabelModel"))
    cell = kernel.execute(f"inside.busy({how!r}, 0.8)")
    kernel.wait_for(lambda: len(kernel.widgets("LabelModel")) > before, what="the cell to run")
    time.sleep(random.uniform(0.1, 0.4))  # noqa: S311 - when a person clicks
    clicked = kernel.click(channel, {"kind": "cancel"})
    cell.wait()
    flagged, answer = printed(kernel.run("inside.clicked()"))
    if flagged is None or answer is not False:
        raise RuntimeError(f"the click did not arrive on ipykernel {kernel.version} ({how})")
    return float(flagged - clicked)


def clicks(*, long: bool) -> list[Row]:
    """Click on Cancel while a cell runs, until the monitor's flag is set."""
    number = 15 if long else 10
    what = {"sleep": "a cell sleeps", "loop": "a cell runs pure Python", "wait": "w.wait() runs"}
    rows = []
    for version in reversed(VERSIONS):
        with Kernel(version) as kernel:
            kernel.run(IMPORT)
            here = list(what) if long else ["sleep", "loop"]
            for how in here if kernel.supports_subshells else ["wait"]:
                _click(kernel, how)
                delays = [1000 * _click(kernel, how) for _ in range(number)]
                rows.append(
                    Row(
                        f"click to cancel flag, ipykernel {version}, while {what[how]}, "
                        f"{number} clicks",
                        f"median {median(delays):.1f} ms, max {max(delays):.1f} ms",
                        "< 50 ms",
                        max(delays) < 50,
                    )
                )
    return rows


# ------------------------------------------------------------------ 6


def extra(*, long: bool) -> list[Row]:
    """Measure what the drain does with a callback, and what a span weighs; in this process."""
    monitor: Any = ProgressMonitor("tensorrt_rtx")
    prepared = inside.calls(monitor, mnist_events())
    drained, folded, events_of = [], [], 0
    for _ in range(200 if long else 60):
        tree = PhaseTree()
        for method, arguments in prepared:
            method(*arguments)
        start = time.perf_counter()
        events = monitor.drain()
        middle = time.perf_counter()
        tree.apply(events)
        drained.append(1e6 * (middle - start) / len(prepared))
        folded.append(1e6 * (time.perf_counter() - middle) / len(prepared))
        events_of = len(events)
    return [
        Row(
            "drain + fold, us per callback of the MNIST trace "
            f"({len(prepared):,} callbacks, {events_of:,} events, runs among them)",
            f"{spread(drained)} + {spread(folded)}",
        ),
        Row(f"memory of {MAX_SPANS:,} spans", f"{_memory_of_spans() / 1e6:.1f} MB"),
    ]


def _memory_of_spans() -> int:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tree = PhaseTree()
    tree.apply([PhaseStarted(0.0, "root", None, 1)])
    for index in range(MAX_SPANS - 1):
        at = index / 1000
        tree.apply([PhaseStarted(at, "leaf", "root", 1), PhaseFinished(at + 0.0005, "leaf")])
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert tree.spans_dropped == 0
    return after - before


FIGURES: dict[str, Callable[..., list[Row]]] = {
    "callback": callback,
    "build": build,
    "rates": rates,
    "import": imports,
    "click": clicks,
    "extra": extra,
}
