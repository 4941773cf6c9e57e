"""All figures of builds on a GPU, by one command: ``python -m tests.bench gpu``.

Prints a section for the documentation, and writes what was measured to a file (``--out``). Without
a GPU it says so and measures the same but what needs CUDA. It needs no network: what is measured
are TensorRT for RTX, the ipykernel that is installed, and nvidia-ml-py for the memory of a GPU.

What is compared runs in turns, in rounds; a ratio is always that of two builds of the same round.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench import builds, device, recorder
from tests.bench.builds import START_UP
from tests.bench.executors import IMPORT_BUILDS
from tests.bench.figures import printed, say
from tests.bench.progress import source
from tests.bench.stats import differences, ranged, ratios
from tests.kernel.harness import ROOT, Kernel
from tests.models import mlp
from tests.traces import SILENT_S, write
from trt_widget.executors import isolation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.bench.device import Device

NAMES = {
    "light:resnet50": "ResNet-50",
    "light:densenet121": "DenseNet-121",
    "transformer:96": "transformer, 96 blocks",
}
PACKAGES = ("tensorrt_rtx", "tensorrt", "ipykernel", "ipywidgets", "anywidget", "nvidia-ml-py")
#: Builds with the widget in both executors, and without a monitor in a new process.
HOW = ("process", "plain", "thread")
#: Without a monitor, in a thread of the kernel: what a thread costs is no cost of the widget.
BARE = "bare"
LOADS = {"idle": (*HOW, BARE), "busy": HOW}
#: What the columns of a measurement are: see :func:`tests.bench.builds.timed_build`.
INSIDE, CPU, WHOLE, BEGUN = range(4)
#: No part of the figures but the builds takes more rounds than that.
MOST_ROUNDS = 10
#: How much longer a round may take than the one before it, for one more to be begun.
_SLACK = 1.2
#: Sides of the start-up. The last one is told by the build before it which GPUs there are.
WITHOUT, WITH, LATER = "without CUDA", "with CUDA", "with CUDA, a later build"
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What is measured of the start of a process, beside the builds: arguments of the script.
STARTS: Mapping[str, tuple[str, ...]] = {"builder": (), "names first": ("names",)}


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    networks: tuple[str, ...] = tuple(NAMES)
    seconds: float = 420.0
    repeat: int = 40
    out: Path | None = None
    traces: Path | None = None
    show: Path | None = None
    command: str = "python -m tests.bench gpu"


def parse(arguments: Sequence[str]) -> Plan:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench gpu", description="Measure builds on a GPU, or without one."
    )
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="begin nothing after")
    parser.add_argument("--repeat", type=int, default=Plan.repeat, help="at most so many rounds")
    parser.add_argument("--out", type=Path, help="file of JSON for all that was measured")
    parser.add_argument("--traces", type=Path, help="folder for traces of both executors")
    parser.add_argument("--network", action="append", help=f"these only; of {', '.join(NAMES)}")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: print FILE")
    given = parser.parse_args(arguments)
    if given.repeat < 1 or not given.seconds > 0:
        parser.error("--repeat and --seconds must be positive")
    if given.out is not None and not given.out.resolve().parent.is_dir():
        parser.error(f"--out: there is no folder {given.out.resolve().parent}")
    return Plan(
        tuple(given.network or Plan.networks),
        given.seconds,
        given.repeat,
        given.out,
        given.traces,
        given.show,
        shlex.join(["python", "-m", "tests.bench", "gpu", *arguments]),
    )


def about(where: Device, command: str) -> dict[str, Any]:
    """Say when, on what and with what it is measured."""
    known = {name: _version(name) for name in PACKAGES}
    return {
        **recorder.about(where),
        "capability": where.capability,
        "packages": {name: number for name, number in known.items() if number},
        "command": command,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# ------------------------------------------------------------------ start-up


def start_up(where: Device, rounds: int) -> dict[str, Any]:
    """Measure the start of a build process with CUDA and without, in turns; seconds.

    ``WITH``: nobody has said which GPUs there are, as in the first build of a kernel.
    """
    data = mlp().SerializeToString()
    paths = json.dumps(builds.from_folder(ROOT))
    sides = (WITHOUT, WITH, LATER) if where else (WITHOUT,)
    found: dict[str, Any] = {side: [] for side in sides}
    for index in range(-1, rounds):
        for side in sides if index % 2 else sides[::-1]:
            with _hidden(side == WITHOUT):
                if side == LATER:
                    builds.start_up(data)
                else:
                    isolation._answers.clear()
                course = builds.start_up(data)
                for name, arguments in STARTS.items() if side != LATER else ():
                    command = [sys.executable, "-I", "-c", builds.STARTS, paths, *arguments]
                    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                    imported, names, builder = json.loads(ran.stdout.splitlines()[-1])
                    course[f"{name}: import"] = imported
                    course[f"{name}: names"] = names
                    course[f"{name}: builder"] = builder
            if index >= 0:  # the first one warms up
                found[side].append(course)
    return found


class _hidden:  # noqa: N801 - used as a function
    """Hide all GPUs from the processes that are started meanwhile, or leave them as they are."""

    def __init__(self, hide: bool) -> None:
        self.hide = hide

    def __enter__(self) -> None:
        self.before = os.environ.get(VISIBLE)
        if self.hide:
            os.environ[VISIBLE] = ""

    def __exit__(self, *_: object) -> None:
        if self.before is None:
            os.environ.pop(VISIBLE, None)
        else:
            os.environ[VISIBLE] = self.before


# ------------------------------------------------------------------ silence


def silence(networks: Iterable[str], folder: Path | None) -> dict[str, Any]:
    """Record a build of each network; keep the traces, of both executors then, in ``folder``."""
    found = {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for network in networks:
        for executor in recorder.EXECUTORS if folder else recorder.EXECUTORS[:1]:
            trace = recorder.build(network, executor)
            say(f"  {recorder.say(trace)}")
            if folder is not None:
                write(folder, trace)
            if trace.end.status != "succeeded":
                raise RuntimeError(f"the build of {network} {trace.end.status}")
            if executor == recorder.EXECUTORS[0]:
                gaps = [end - start for start, end in trace.gaps()]
                found[network] = {
                    "layers": trace.ready.layers,
                    "callbacks": len(trace.callbacks),
                    "inside_s": trace.end.time - trace.ready.time,
                    "share": trace.silent_share(),
                    "longest_s": max(gaps, default=0.0),
                }
    return found


# ------------------------------------------------------------------ memory


def memory(where: Device, network: str) -> dict[str, Any]:
    """Measure what a build holds of the GPU's memory, each in a kernel of its own; bytes."""
    found = {}
    for how in HOW:
        with (
            _model(network) as path,
            device.Memory(where.uuid) as watched,
            Kernel(version("ipykernel")) as kernel,
        ):
            before = set(watched.by_process)
            kernel.run(IMPORT_BUILDS, timeout=60)
            pid = int(kernel.run("import os; print(os.getpid())").text)
            kernel.run(f"builds.timed_build({how!r}, {path!r}, busy=False)", timeout=600)
            held = watched.used() - watched.before
            told = {p: used for p, used in watched.by_process.items() if p not in before and used}
        found[how] = {
            "most": watched.most - watched.before,
            "after": held,
            "gone": watched.after - watched.before,
            "kernel": told.get(pid, 0) if told else None,
            "others": max((u for p, u in told.items() if p != pid), default=0) if told else None,
        }
    return found


class _model:  # noqa: N801 - used as a function
    """A file of the network, while the block runs."""

    def __init__(self, network: str) -> None:
        self.network = network

    def __enter__(self) -> str:
        self.folder = tempfile.TemporaryDirectory(prefix="bench-")
        path = Path(self.folder.name) / f"{self.network.rpartition(':')[0]}.onnx"
        path.write_bytes(source(self.network))
        return str(path)

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()


# ------------------------------------------------------------------ builds


def compare(
    networks: Sequence[str], rounds: int, deadline: float, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Build every network in every way, in rounds, until the time is over.

    Each network gets a round, whatever it takes, and is built beside a busy kernel in that alone:
    the time is better spent on ratios that are near 1. Then those come first that took the least
    time so far, as long as a round of theirs is likely to fit. ``keep`` is given all that there is,
    after each round.
    """
    found: dict[str, Any] = {
        name: {load: {how: [] for how in ways} for load, ways in LOADS.items()} for name in networks
    }
    took = dict.fromkeys(networks, math.inf)
    with Kernel(version("ipykernel")) as kernel:
        kernel.run(IMPORT_BUILDS, timeout=60)
        with _model("mlp:3") as path:  # warms up
            for how in LOADS["idle"]:
                kernel.run(f"builds.timed_build({how!r}, {path!r}, busy=False)", timeout=60)
        done, spent = dict.fromkeys(networks, 0), dict.fromkeys(networks, 0.0)
        for _ in count():
            left = deadline - time.monotonic()
            fitting = [
                name
                for name in networks
                if done[name] == 0 or (done[name] < rounds and took[name] * _SLACK < left)
            ]
            if not fitting:
                return
            network = min(fitting, key=spent.__getitem__)
            first = done[network] == 0
            with _model(network) as path:
                measured = _round(
                    kernel,
                    path,
                    tuple(LOADS) if first else ("idle",),
                    done[network],
                    math.inf if first else deadline,
                )
            if measured is None:
                say(
                    f"  {network}: the time is over in round {done[network] + 1}, which is left out"
                )
                return
            seconds = {load: ways.pop("seconds") for load, ways in measured.items()}
            for load, ways in measured.items():
                for how, one in ways.items():
                    found[network][load][how].append(one)
            done[network] += 1
            took[network] = seconds["idle"]
            spent[network] += seconds["idle"]
            say(f"  {network}, round {done[network]}: {sum(seconds.values()):.1f} s")
            keep({name: some for name, some in found.items() if done[name]})


def _round(
    kernel: Kernel, path: str, loads: Iterable[str], turn: int, until: float
) -> dict[str, dict[str, Any]] | None:
    """Build in every way, and time all of it; None where the time is over before all is built."""
    found: dict[str, dict[str, Any]] = {load: {} for load in loads}
    for load, measured in found.items():
        begun = time.monotonic()
        ways = LOADS[load]
        for how in ways if turn % 2 else ways[::-1]:
            if time.monotonic() > until:
                return None
            code = f"builds.timed_build({how!r}, {path!r}, busy={load == 'busy'})"
            measured[how] = printed(kernel.run(code, timeout=900))
        measured["seconds"] = time.monotonic() - begun
    return found


# ------------------------------------------------------------------ all of it


def measure(plan: Plan) -> dict[str, Any]:
    """Measure everything; what fails is noted and does not keep the rest from being measured."""
    begun = time.monotonic()
    where = device.find()
    raw: dict[str, Any] = {"about": about(where, plan.command), "failed": {}}
    rounds = min(plan.repeat, MOST_ROUNDS)

    def keep(name: str, figures: Any) -> None:
        raw[name] = figures
        raw["seconds"] = time.monotonic() - begun
        raw["about"]["load after"] = recorder.about(where)["load"]
        if plan.out is not None:
            plan.out.write_text(json.dumps(raw, indent=1) + "\n", "utf-8")

    parts: dict[str, Callable[[], Any]] = {
        "start-up": lambda: start_up(where, rounds),
        "silence": lambda: silence(plan.networks, plan.traces),
        "memory": lambda: memory(where, plan.networks[0]),
        "builds": lambda: compare(
            plan.networks, plan.repeat, begun + plan.seconds, functools.partial(keep, "builds")
        ),
    }
    if not where or device.nvml() is None:
        del parts["memory"]
        if where:
            raw["left out"] = "The memory of the GPU was not measured: nvidia-ml-py is missing."
    for name, part in parts.items():
        say(f"{name} ...")
        try:
            figures = part()
        except Exception as error:  # noqa: BLE001 - the other figures are still wanted
            raw["failed"][name] = f"{type(error).__name__}: {error}"[:400]
            say(f"  not measured: {error!r}")
            figures = raw.get(name)
        keep(name, figures if figures is not None else raw.get(name))
    return raw


# ------------------------------------------------------------------ the page


def page(raw: Mapping[str, Any]) -> str:
    """Write what was measured as a section of the documentation."""
    parts = {
        "builds": _builds_part,
        "start-up": _start_up_part,
        "silence": _silence_part,
        "memory": _memory_part,
    }
    lines = [*_head(raw["about"], raw.get("seconds", 0.0))]
    for name, write_part in parts.items():
        if raw.get(name):
            lines += ["", *write_part(raw[name])]
        if name in raw["failed"]:
            lines += ["", f"Not measured, or not all of it: {name} ({raw['failed'][name]})."]
    if "left out" in raw:
        lines += ["", raw["left out"]]
    return "\n".join(lines) + "\n"


def _head(about: Mapping[str, Any], seconds: float) -> Iterator[str]:
    gpu = about["device"] != device.NO_GPU
    yield f"### {about['device'] if gpu else 'No GPU'}, {about['date'].partition(' ')[0]}"
    yield ""
    where = f"{about['processor']}, {about['cores']} cores, {about['system']}"
    if gpu:
        driver = about["driver"] or "unknown"
        where = f"{about['device']} ({about['capability']}, driver {driver}); {where}"
    packages = ", ".join(f"{name} {number}" for name, number in about["packages"].items())
    after = f", {about['load after']} after" if "load after" in about else ""
    yield f"- {where}; load {about['load']} before{after}."
    yield f"- Python {about['python']}, {packages}, trt_widget {about['trt_widget']}."
    yield f"- {about['date']}, {seconds:.0f} s: `{about['command']}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(head))]
    for number, row in enumerate(table):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def _name(network: str) -> str:
    return NAMES.get(network, network)


def _column(measured: Sequence[Sequence[float]], place: int) -> list[float]:
    return [each[place] for each in measured]


def _builds_part(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "Build time with the widget / without a monitor in a new process, of the same round: "
        "median [least, most]. *Whole*: from the start until the engine is there, with all that a "
        "process needs to start. *Inside*: in `build_serialized_network` alone. The last column: "
        "the widget's thread / a thread of the same kernel without a monitor, inside. *Busy*: a "
        "cell of the kernel runs pure Python all the time."
    )
    yield ""
    head = (
        *("network", "kernel", "rounds", "process, whole", "inside"),
        *("thread, whole", "inside", "thread / thread"),
    )
    rows = []
    for network, loads in found.items():
        for load, ways in loads.items():
            cells = [
                ranged(ratios(_column(ways[how], place), _column(ways["plain"], place)))
                for how in ("process", "thread")
                for place in (WHOLE, INSIDE)
                if ways[how]
            ]
            if cells:
                bare = _column(ways.get(BARE, ()), INSIDE)
                cells.append(ranged(ratios(_column(ways["thread"], INSIDE), bare)) if bare else "")
                rows.append((_name(network), load, str(len(ways["plain"])), *cells))
    yield from _table(head, rows)
    yield ""
    yield "The same in seconds, whole (CPU seconds of the process that builds):"
    yield ""
    seconds = []
    for network, loads in found.items():
        for load, ways in loads.items():
            if not ways["plain"]:
                continue
            cells = [ranged(_column(ways[how], WHOLE)) for how in ("process", "thread", "plain")]
            for place, how in ((0, "process"), (2, "plain")):
                cells[place] += f" ({median(_column(ways[how], CPU)):.2f})"
            seconds.append((_name(network), load, *cells))
    yield from _table(("network", "kernel", "process", "thread", "no monitor"), seconds)


#: What the rows of the start are called, and which values they show.
_START_ROWS = {
    "first word": "start() to the first word of the build process: Python, imports",
    "message": "... to TensorRT's first message",
    "callback": "... to the first callback",
    "told": "... to a subscriber in the kernel",
    "end": "... to the end of the build",
    "gone": "... until the process has left and the wait is over",
    "builder: import": "a process of its own: import of tensorrt_rtx",
    "builder: builder": "... then a Builder",
    "names first: names": "... or first the names of the GPUs, as the package asks for them",
    "names first: builder": "... and then a Builder",
}


def _start_up_part(found: Mapping[str, Any]) -> Iterator[str]:
    sides = [side for side in (WITHOUT, WITH, LATER) if found.get(side)]
    if not sides:
        return
    number = len(found[sides[0]])
    hidden = f' ("without": `{VISIBLE}=""`)' if len(sides) > 1 else ""
    yield (
        f"Start of a build process, three layers, ms: median [least, most] of {number} "
        f"in turns{hidden}. The first build of a kernel asks which GPUs there are; later ones are "
        "told."
    )
    yield ""
    head = ["", *sides, *(["more with CUDA"] if len(sides) > 1 else [])]
    rows = []
    for key, text in _START_ROWS.items():
        columns = {
            side: [1000 * course[key] for course in found[side] if key in course] for side in sides
        }
        if not any(columns.values()):
            continue
        empty = "" if key not in START_UP else "none"
        cells = [ranged(values, 0) if values else empty for values in columns.values()]
        if len(sides) > 1:
            with_, without = columns[WITH], columns[WITHOUT]
            same = len(with_) == len(without) > 0
            cells.append(ranged(differences(with_, without), 0) if same else "")
        rows.append((text, *cells))
    yield from _table(head, rows)


def _silence_part(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Silence: gaps of more than {SILENT_S:g} s between two callbacks, one build of each "
        "network in a child process."
    )
    yield ""
    head = ("network", "layers", "callbacks", "inside TensorRT", "silent", "longest gap")
    yield from _table(
        head,
        (
            (
                _name(network),
                f"{one['layers']:,}",
                f"{one['callbacks']:,}",
                f"{one['inside_s']:.2f} s",
                f"{one['share']:.0%}",
                f"{one['longest_s']:.2f} s",
            )
            for network, one in found.items()
        ),
    )


def _memory_part(found: Mapping[str, Any]) -> Iterator[str]:
    def mega(value: int | None) -> str:
        return "not told" if value is None else f"{round(value / 1e6):,}"

    yield (
        "GPU memory in MB above what was in use before the kernel, of the whole GPU; and the most "
        "of the kernel's process and of others, where NVML tells them apart."
    )
    yield ""
    head = ("build", "at most", "after it", "kernel ended", "kernel", "another process")
    names = {"plain": "no monitor, new process"}
    yield from _table(
        head,
        (
            (
                names.get(how, f"executor {how}"),
                *(mega(one[key]) for key in ("most", "after", "gone", "kernel", "others")),
            )
            for how, one in found.items()
        ),
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, or read what was measured, and print; return the exit status."""
    plan = parse(arguments)
    raw = measure(plan) if plan.show is None else json.loads(plan.show.read_text("utf-8"))
    print(page(raw), end="", flush=True)
    return 1 if raw["failed"] else 0
