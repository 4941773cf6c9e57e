"""How good the estimates of a build's progress and time left are, on recorded real builds.

``python -m tests.bench.progress collect FILE`` builds many networks with TensorRT for RTX and
records what the estimator would have seen, tick by tick. ``python -m tests.bench.progress
evaluate FILE ...`` runs the very same code as the product over recordings and prints a table; it
needs no TensorRT. The recordings of ``tests/data/builds.jsonl.gz`` are those of the documentation.

A file holds a line of JSON for each build: which network, its size, what it took, and the events
of each drain. Steps of other phases than the outermost are left out, as are messages: the estimate
does not read them. So a trace of a build on a GPU can be evaluated in the same way.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import TYPE_CHECKING, Any, Final

from tests.bench.stats import Row, table
from trt_widget.build import TICK_S
from trt_widget.estimate import DurationModel, Estimator, phase_states
from trt_widget.events import LogMessage, OutputCaptured, StepCompleted, from_json, to_json
from trt_widget.history import BuildKey, BuildRecord, phase_times
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trt_widget.events import Event

DATA = Path(__file__).parents[1] / "data" / "builds.jsonl.gz"

#: Networks that are built again and again, and how often.
REPEATED: Final = (
    *("light:densenet121", "light:inception_v2", "light:resnet50", "light:shufflenet"),
    *("transformer:24", "llama:12", "convnext:40", "detector:12", "recurrent:18", "mlp:450"),
    *("transformer:48", "gpt:30", "windows:22", "mobilenet:90", "unet:30", "inception:75"),
    *("graph:80", "llama:24", "mixer:40"),
)
REPEATS: Final = 9
#: Sizes of each family, and parts of the last that are sizes, too: from one to forty seconds.
PARTS: Final = (0.75, 1.5, 2.2)
SIZES: Final = {
    "convnet": (200, 350, 600),
    "convnext": (20, 60, 100),
    "densenet": (50, 90, 160),
    "detector": (6, 18, 28),
    "gpt": (12, 30, 60),
    "graph": (40, 80, 140),
    "inception": (40, 75, 120),
    "llama": (8, 18, 30),
    "mixer": (20, 50, 90),
    "mlp": (250, 700, 1100),
    "mobilenet": (40, 75, 120),
    "pointwise": (100, 220, 400),
    "recurrent": (9, 27, 45),
    "resnet": (60, 110, 180),
    "transformer": (16, 40, 72),
    "unet": (12, 24, 40),
    "wavenet": (45, 90, 150),
    "windows": (10, 22, 36),
}
LIGHT: Final = ("bvlc_alexnet", "inception_v1", "squeezenet", "vgg19", "zfnet512")
#: A build that takes longer is given up: some graphs keep the builder busy for hours.
LIMIT_S: Final = 120.0
#: New networks whose build is shorter count for the model and not for the figures.
LEAST_S: Final = 3.0
#: What the product knows of a network's size; the recordings hold more.
KNOWN: Final = ("layers", "computing", "parameters", "operators", "kinds")
#: Fewer of them give no figure.
LEAST_NEW: Final = 10
#: Where the time left is read, as fractions of the true time.
READ_AT: Final = (0.0, 0.25, 0.5)


@dataclass(frozen=True)
class Recording:
    """One build.

    Attributes
    ----------
    network
        Family and size, or another name.
    size
        How large it is, as in :class:`~trt_widget.history.BuildKey`.
    duration_s
        What the build took.
    batches
        Time of each drain that brought something, and the events as JSON.
    package, version, machine
        With what it was built, and on what.
    finished_at
        Seconds since the epoch.
    """

    network: str
    size: Mapping[str, float]
    duration_s: float
    batches: Sequence[tuple[float, Sequence[Mapping[str, Any]]]]
    package: str = "tensorrt_rtx"
    version: str = ""
    machine: str = ""
    finished_at: float = 0.0

    @property
    def key(self) -> BuildKey:
        """What the history would know it by."""
        return BuildKey(self.network, self.package, self.version, size=self.size)

    @cached_property
    def events(self) -> list[tuple[float, list[Event]]]:
        """The batches with their events."""
        return [(now, [from_json(json.dumps(e)) for e in events]) for now, events in self.batches]

    @cached_property
    def record(self) -> BuildRecord:
        """What the history would keep of it."""
        tree = PhaseTree()
        for _, events in self.events:
            tree.apply(events)
        tree.close("succeeded", self.duration_s)
        return BuildRecord(self.duration_s, phase_times(tree), self.finished_at)

    def ticks(self) -> Iterator[tuple[float, PhaseTree]]:
        """Give the moments at which the product would have made an estimate, up to the end.

        Nothing is recorded of drains that brought nothing: they came every :data:`TICK_S`.
        """
        tree = PhaseTree()
        now = 0.0
        for at, events in [*self.events, (math.inf, [])]:
            while now + TICK_S < min(at, self.duration_s):
                now += TICK_S
                yield now, tree
            if at >= self.duration_s:
                return
            now = at
            tree.apply(events)
            yield now, tree


def save(path: Path, recordings: Iterable[Recording]) -> None:
    """Write recordings, compressed."""
    text = "".join(_line(recording) for recording in recordings)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(*paths: Path) -> list[Recording]:
    """Read recordings, the oldest first."""
    found = []
    for path in paths:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        found += [Recording(**json.loads(line)) for line in text.splitlines()]
    return sorted(found, key=lambda recording: recording.finished_at)


def _line(recording: Recording) -> str:
    return json.dumps(asdict(recording), separators=(",", ":")) + "\n"


# ------------------------------------------------------------------ repeated builds


def course(recording: Recording, estimator: Estimator) -> list[tuple[float, float, float]]:
    """Give of each tick the true fraction of the time, the shown one and that of the top bar."""
    found = []
    for now, tree in recording.ticks():
        shown = estimator.update(now, phase_states(tree)).progress or 0.0
        roots = list(tree.roots.values())
        steps = roots[0].step / roots[0].step_total if roots and roots[0].step_total > 0 else 0.0
        found.append((now / recording.duration_s, shown, min(steps, 1.0)))
    # What is shown at last stays until the end comes.
    return [*found, (1.0, *found[-1][1:])] if found else [(1.0, 0.0, 0.0)]


def repeated(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Give the networks that were built at least four times, with their builds."""
    builds: dict[str, list[Recording]] = {}
    for recording in recordings:
        builds.setdefault(recording.network, []).append(recording)
    return {name: many for name, many in builds.items() if len(many) > 3}


def largest(shown: Iterable[tuple[float, float]]) -> float:
    """Give the largest difference between the true and the shown fraction."""
    return max(abs(truth - value) for truth, value in shown)


def differences(builds: Sequence[Recording], least: int = 1) -> list[tuple[float, float]]:
    """Give of each build but the first ``least`` the largest difference, and the top bar's."""
    found = []
    for number in range(least, len(builds)):
        earlier = [recording.record for recording in builds[:number]]
        points = course(builds[number], Estimator(earlier[::-1]))
        ours = largest((truth, shown) for truth, shown, _ in points)
        found.append((ours, largest((truth, steps) for truth, _, steps in points)))
    return found


def clock_error(guess: float, duration: float) -> float:
    """Give the largest difference where only the clock runs, against a guessed duration."""
    return 1.0 - min(guess, duration) / max(guess, duration)


def bound(durations: Sequence[float]) -> list[float]:
    """Give the differences of the best constant duration there is, which nobody knows before."""
    return min(
        ([clock_error(guess, duration) for duration in durations] for guess in durations),
        key=median,
    )


def scatter(durations: Sequence[float]) -> float:
    """Give the coefficient of variation."""
    return stdev(durations) / mean(durations)


def quartiles(values: Sequence[float]) -> str:
    """Write the median with the quartiles, as in ``0.05 (0.02 to 0.10)``."""
    low, _, high = quantiles([*values, *values[:1]][: max(2, len(values))], n=4, method="inclusive")
    return f"{median(values):.3f} ({low:.3f} to {high:.3f})"


def repeated_rows(recordings: Sequence[Recording], *, each: bool = True) -> list[Row]:
    """Evaluate builds of networks that were built before; ``each`` gives every network a row."""
    builds = repeated(recordings)
    if not builds:
        return []
    found = {name: differences(many) for name, many in builds.items()}
    ours = [value for many in found.values() for value, _ in many]
    naive = [value for many in found.values() for _, value in many]
    later = [value for many in found.values() for value, _ in many[2:]]
    durations = {name: [one.duration_s for one in many] for name, many in builds.items()}
    head = f"largest difference of shown and true fraction, {len(builds)} networks"
    clock = [
        clock_error(median(times[:number]), times[number])
        for times in durations.values()
        for number in range(1, len(times))
    ]
    least = [error for times in durations.values() for error in bound(times[1:])]
    rows = [
        Row(
            f"{head}, {len(ours)} builds with 1 or more before: median (quartiles)",
            quartiles(ours),
            "<= 0.10",
            median(ours) <= 0.10,
        ),
        Row(f"... {len(later)} of them with 3 or more before", quartiles(later)),
        Row("... the naive top bar (steps of the outermost phase)", quartiles(naive)),
        Row("... the clock alone against the median before", quartiles(clock)),
        Row("... bound: the best constant duration, known only afterwards", quartiles(least)),
        Row(
            "scatter of the build times (coefficient of variation), median of the networks",
            f"{median(map(scatter, durations.values())):.3f}",
        ),
    ]
    for name, many in found.items() if each else ():
        times = durations[name]
        rows.append(
            Row(
                f"... {name}, {median(times):.1f} s, scatter {scatter(times):.3f}",
                f"{quartiles([value for value, _ in many])}, top bar "
                f"{median(value for _, value in many):.2f}",
            )
        )
    return rows


# ------------------------------------------------------------------ new networks


def left_out(
    recordings: Sequence[Recording],
    chosen: Callable[[str], bool] = lambda _: True,
    *,
    names: Sequence[str] = KNOWN,
    whole_family: bool = False,
) -> dict[str, list[float]]:
    """Predict each network from all others; give the factors by which the time left was wrong.

    Parameters
    ----------
    chosen
        Which networks to predict; the others only serve as history.
    names
        Sizes that are used.
    whole_family
        Whether the other networks of the family are unknown, too.

    Returns
    -------
    dict
        Of each network that takes :data:`LEAST_S` the factor at each of :data:`READ_AT`; infinite
        where nothing was said.
    """
    builds: dict[str, list[Recording]] = {}
    for recording in recordings:
        builds.setdefault(recording.network, []).append(recording)
    found = {}
    for network, many in builds.items():
        middle = median(one.duration_s for one in many)
        if middle < LEAST_S or not chosen(network):
            continue
        others = [
            (_only(one.key, names), one.record)
            for one in reversed(recordings)
            if one.network != network
            and not (whole_family and family(one.network) == family(network))
        ]
        truth = min(many, key=lambda one: abs(one.duration_s - middle))
        model = DurationModel(others)
        size = _only(truth.key, names).size
        found[network] = _factors(truth, Estimator.for_new_network(model, size))
    return found


def family(network: str) -> str:
    """Give what comes before the colon."""
    return network.partition(":")[0]


def _only(key: BuildKey, names: Sequence[str]) -> BuildKey:
    size = {name: value for name, value in key.size.items() if name in names}
    return BuildKey(key.network, key.package, key.version, size=size)


def _factors(truth: Recording, estimator: Estimator) -> list[float]:
    found: list[float] = []
    for now, tree in truth.ticks():
        reading = estimator.update(now, phase_states(tree))
        while len(found) < len(READ_AT) and now >= READ_AT[len(found)] * truth.duration_s:
            left = truth.duration_s - now
            said = reading.eta_s if found else estimator.duration_s
            found.append(math.inf if said is None else max(said / left, left / said))
    return found + [math.inf] * (len(READ_AT) - len(found))


def new_rows(
    recordings: Sequence[Recording], chosen: Callable[[str], bool] = lambda _: True
) -> list[Row]:
    """Evaluate networks as if each had never been built."""
    ways: list[tuple[str, dict[str, Any]]] = [
        ("time left of a new network, factor", {}),
        ("... layers alone", {"names": ["layers"]}),
        ("... no network of its family known", {"whole_family": True}),
    ]
    rows = []
    for head, options in ways:
        found = list(left_out(recordings, chosen, **options).values())
        if not found:
            return []
        for place, fraction in enumerate(READ_AT):
            values = [factors[place] for factors in found]
            at = f"at {fraction:.0%}" if fraction else "at the start"
            goal = not options
            rows.append(
                Row(
                    f"{head}, {len(found)} networks, {at}: median (quartiles)",
                    quartiles(values),
                    "<= 1.5" if goal else "",
                    median(values) <= 1.5 if goal else None,
                )
            )
    return rows


def held_out(network: str) -> bool:
    """Whether a network was not looked at while the estimate was tuned: half of the families."""
    return hashlib.sha256(family(network).encode()).digest()[0] % 2 == 0


def machines(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Take recordings apart by what they were made on: a history knows one machine."""
    found: dict[str, list[Recording]] = {}
    for recording in recordings:
        found.setdefault(recording.machine, []).append(recording)
    return found


def label(recordings: Sequence[Recording]) -> str:
    """Say what the recordings of one machine are of."""
    what = sorted({f"{one.package} {one.version}".strip() for one in recordings})
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(one.finished_at)) for one in recordings})
    networks = len({one.network for one in recordings})
    where = " on a CPU" if what[0].startswith("tensorrt_rtx") else ""
    return (
        f"{', '.join(what)}{where}: {recordings[0].machine}; {len(recordings)} builds of "
        f"{networks} networks, {' and '.join(dict.fromkeys([days[0], days[-1]]))}"
    )


def rows(recordings: Sequence[Recording]) -> list[Row]:
    """Evaluate the recordings of one machine: the held-out networks alone, then all."""
    chosen = [one for one in recordings if held_out(one.network)]
    found = _headed("held out", repeated_rows(chosen, each=False))
    found += repeated_rows(recordings)
    if len(left_out(recordings)) >= LEAST_NEW:
        found += _headed("held out", new_rows(recordings, held_out)) + new_rows(recordings)
    return found


def _headed(head: str, found: Sequence[Row]) -> list[Row]:
    return [Row(f"{head}: {row.figure}", row.measured, row.target, row.met) for row in found]


def progress(*, long: bool) -> list[Row]:
    """Evaluate the recordings; ``long`` makes some on this machine first, too."""
    found = []
    for many in machines(load(DATA)).values():
        found += _headed(f"RTX on a CPU, {many[0].machine.partition(', ')[2]}", rows(many))
    if long:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "builds.jsonl"
            collect(path, [(name, None) for name in REPEATED[:10] * 5], slots=1, seconds=300.0)
            here = repeated_rows(load(path))
        found += _headed("here", here)
    return found


FIGURES = {"progress": progress}


# ------------------------------------------------------------------ collecting


def source(network: str) -> bytes:
    """Make a network by its name."""
    import onnx

    from tests.bench.networks import FAMILIES
    from tests.models import light_model

    kind, _, size = network.partition(":")
    made = onnx.load(light_model(size)) if kind == "light" else FAMILIES[kind](int(size))
    data: bytes = made.SerializeToString()
    return data


def sizes(path: Path) -> dict[str, float]:
    """Give how large a network is, in all ways that may say something of the time."""
    import onnx
    import tensorrt_rtx as trt

    made = onnx.load(str(path))
    weights = {tensor.name: math.prod(tensor.dims) for tensor in made.graph.initializer}
    kinds = Counter(node.op_type for node in made.graph.node)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise ValueError(f"{path.name}: {parser.get_error(0).desc()}")
    layers: Counter[str] = Counter()
    volume = 0.0
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        layers[str(layer.type).rpartition(".")[2].lower()] += 1
        for output in range(layer.num_outputs):
            shape = tuple(layer.get_output(output).shape)
            volume += math.prod(shape) if min(shape, default=1) >= 0 else 0
    return {
        "layers": network.num_layers,
        "computing": network.num_layers - layers["constant"],
        "parameters": sum(weights.values()),
        "operators": len(made.graph.node),
        "kinds": len(kinds),
        "weights_bytes": sum(t.ByteSize() for t in made.graph.initializer),
        "volume": volume,
        "outputs": network.num_outputs,
        **{f"layer.{name}": count for name, count in sorted(layers.items())},
        **{f"op.{name}": count for name, count in sorted(kinds.items())},
    }


def build(network: str, path: Path, size: Mapping[str, float]) -> Recording:
    """Build and record."""
    from trt_widget import Build

    made = Build(str(path), executor="process", exclusive=False)
    batches: list[tuple[float, list[Event]]] = []
    made.subscribe(lambda events: batches.append((made.now(), events)))
    made.start().wait()
    assert made.result is not None
    roots = {node.name for node in made.tree.roots.values()}

    def matters(event: Event) -> bool:
        if isinstance(event, StepCompleted):
            return event.phase in roots
        return not isinstance(event, (LogMessage, OutputCaptured))

    kept = [(now, [_short(e) for e in events if matters(e)]) for now, events in batches]
    return Recording(
        network,
        size,
        made.result.duration_s,
        [(round(now, 4), events) for now, events in kept if events],
        made.result.backend,
        made.result.version,
        machine(),
        time.time(),
    )


def _short(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        to_json(event), parse_float=lambda text: round(float(text), 5)
    )
    return found


def machine() -> str:
    """Say on what is built: the processor and the cores that a build has."""
    from tests.bench.__main__ import processor

    cores = os.cpu_count()
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return f"{processor()}, {cores} cores"


def plan(repeats: int, files: Sequence[Path]) -> list[tuple[str, Path | None]]:
    """Give the builds: the repeated ones in rounds, with all others in between."""
    new: list[tuple[str, Path | None]] = [
        (f"{name}:{sizes[place]}", None) for place in (1, 0, 2) for name, sizes in SIZES.items()
    ]
    new += [
        (f"{name}:{int(part * sizes[-1])}", None) for part in PARTS for name, sizes in SIZES.items()
    ]
    new += [(f"light:{name}", None) for name in LIGHT]
    new += [(path.stem.replace("+", ":", 1), path) for path in files]
    new = [entry for entry in new if entry[0] not in REPEATED]
    found: list[tuple[str, Path | None]] = []
    for turn in range(repeats):
        found += [(name, None) for name in REPEATED]
        found += new[turn::repeats]
    return found


def collect(
    path: Path,
    builds: Sequence[tuple[str, Path | None]],
    *,
    slots: int = 1,
    seconds: float = math.inf,
) -> None:
    """Build in fresh processes, ``slots`` at a time on cores of their own; append to ``path``."""
    waiting = list(reversed(builds))
    lock = threading.Lock()
    begun = time.monotonic()
    cores: list[int] = []
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // slots

    def work(slot: int) -> None:
        mine = ",".join(map(str, cores[slot * each : (slot + 1) * each])) if slots > 1 else ""
        while True:
            with lock:
                if not waiting or time.monotonic() - begun > seconds:
                    return
                name, file = waiting.pop()
            command = [sys.executable, "-m", "tests.bench.progress", "one", name]
            command += ["--cores", mine, *(["--file", str(file)] if file else [])]
            limit = min(LIMIT_S, begun + seconds + LIMIT_S / 4 - time.monotonic())
            said = "given up"
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                line, errors = process.communicate(timeout=limit)
                said = errors.strip().splitlines()[-1][-200:] if errors.strip() else "?"
                if process.returncode == 0:
                    one = json.loads(line)
                    said = f"{one['duration_s']:.2f} s, {one['size']['layers']} layers"
                    with lock, path.open("a") as out:
                        out.write(line)
            except subprocess.TimeoutExpired:
                process.kill()  # its build process ends with it
                process.communicate()
            print(f"{time.monotonic() - begun:6.1f} [{slot}] {name}: {said}", flush=True)

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(slots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one(network: str, file: Path | None, cores: str) -> None:
    os.environ["TRT_WIDGET_HISTORY"] = "off"
    if cores and sys.platform == "linux":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    with tempfile.TemporaryDirectory() as folder:
        path = file
        if path is None:
            path = Path(folder) / "model.onnx"
            path.write_bytes(source(network))
        print(_line(build(network, path, sizes(path))), end="")


def main() -> int:
    """Collect or evaluate."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.progress")
    commands = parser.add_subparsers(dest="command", required=True)
    gather = commands.add_parser("collect", help="build and record")
    gather.add_argument("out", type=Path)
    gather.add_argument("--slots", type=int, default=1, help="builds at a time")
    gather.add_argument("--seconds", type=float, default=math.inf, help="begin none after that")
    gather.add_argument("--repeats", type=int, default=REPEATS)
    gather.add_argument("--files", type=Path, help="folder of more ONNX files: kind+name.onnx")
    gather.add_argument("--only", action="append", help="these networks only")
    judge = commands.add_parser("evaluate", help="print how good the estimates are")
    judge.add_argument("files", type=Path, nargs="*", default=[DATA])
    single = commands.add_parser("one", help="one build, to standard output")
    single.add_argument("network")
    single.add_argument("--file", type=Path)
    single.add_argument("--cores", default="")
    pack = commands.add_parser("pack", help="put recordings into one compressed file")
    pack.add_argument("out", type=Path)
    pack.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "one":
        _one(options.network, options.file, options.cores)
    elif options.command == "collect":
        files = sorted(options.files.glob("*.onnx")) if options.files else []
        builds = plan(options.repeats, files)
        if options.only:
            builds = [entry for entry in builds if entry[0] in options.only]
        collect(options.out, builds, slots=options.slots, seconds=options.seconds)
    elif options.command == "pack":
        save(options.out, load(*options.files))
    else:
        for recordings in machines(load(*options.files)).values():
            print(f"{label(recordings)}\n\n{table(rows(recordings))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
