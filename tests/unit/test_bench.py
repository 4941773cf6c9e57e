"""The arithmetic and the command line of tests/bench; nothing is measured here."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from statistics import fmean, median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.bench import (
    device,
    executors,
    figures,
    fleet,
    gpu,
    overview,
    progress,
    queues,
    recorded,
    surfaces,
    surfaces_cost,
    surfaces_http,
    timeline,
)
from tests.bench.__main__ import NAMES, header, parse
from tests.bench.builds import FLOOD_ROOT, START_UP, flood_events
from tests.bench.inside import calls, last_state, part_of_trace, steps
from tests.bench.networks import FAMILIES
from tests.bench.stats import Row, busiest, differences, interval, ranged, ratios, spread, table
from tests.traces import mnist_events, timed
from trt_widget.estimate import Estimator
from trt_widget.events import to_json

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).long is False
    assert parse([]).only is None
    options = parse(["--long", "--only", "click", "--only", "import"])
    assert options.long is True
    assert options.only == ["click", "import"]
    with pytest.raises(SystemExit):
        parse(["--only", "nothing"])
    assert "click" in capsys.readouterr().err
    assert sorted(NAMES) == sorted(
        [
            *figures.FIGURES,
            *executors.FIGURES,
            *progress.FIGURES,
            *recorded.FIGURES,
            *timeline.FIGURES,
            *surfaces.FIGURES,
            *queues.FIGURES,
            *overview.FIGURES,
            *fleet.FIGURES,
            *surfaces_cost.FIGURES,
            *surfaces_http.FIGURES,
        ]
    )
    assert "Python" in header()


def test_the_interval_of_a_median() -> None:
    assert interval([5.0]) == (5.0, 5.0)
    low, high = interval([float(value) for value in range(101)])
    assert 30 < low < 50 < high < 70
    assert interval([1.0, 2.0, 3.0]) == interval([1.0, 2.0, 3.0])
    # One outlier moves a mean and not a median.
    values = [1.0] * 50 + [100.0]
    assert interval(values) == (1.0, 1.0)
    assert interval(values, fmean)[1] > 2.0
    wide, narrow = interval(range(101), fmean), interval(range(101), fmean, confidence=0.5)
    assert wide[0] < narrow[0] < 50 < narrow[1] < wide[1]
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_the_busiest_second() -> None:
    assert busiest([]) == 0
    assert busiest([3.0]) == 1
    assert busiest([0.0, 0.5, 0.9, 1.0, 1.1]) == 4  # 0.5 to 1.5; a window's end is not in it
    assert busiest([0.0, 1.0, 2.0]) == 1
    assert busiest([0.0, 0.5, 2.0], [1.0, 2.0, 10.0]) == 10
    assert busiest([0.0, 0.1, 0.2, 5.0], window=0.15) == 2


def test_pairs() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert differences([2.0, 9.0], [1.0, 3.0]) == [1.0, 6.0]
    assert spread([2.0, 2.0]) == "2.00 [2.00, 2.00]"
    assert ranged([1.0, 4.0, 2.0]) == "2.00 [1.00, 4.00]"
    assert ranged([1234.0], 0) == "1,234 [1,234, 1,234]"
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [])


def test_the_table() -> None:
    rows = [Row("a", "1", "< 2", met=True), Row("long name", "3", "< 2", met=False), Row("c", "4")]
    assert table(rows).splitlines() == [
        "| figure    | measured | target | met    |",
        "|-----------|----------|--------|--------|",
        "| a         | 1        | < 2    | yes    |",
        "| long name | 3        | < 2    | MISSED |",
        "| c         | 4        |        |        |",
    ]


def test_what_is_emitted() -> None:
    whole = len(mnist_events())
    assert len(part_of_trace(whole)) == whole
    cut = part_of_trace(whole + 1000)
    starts = sum(event.kind == "phase_start" for event in cut)
    finishes = sum(event.kind == "phase_finish" for event in cut)
    assert starts == finishes
    assert sum(count for count, _, _ in last_state(mnist_events()).values()) == 1164
    assert last_state(steps(5)) == {"root": [1, 0, 1], "root > long phase": [1, 5, 5]}


def test_the_calls_are_those_of_tensorrt() -> None:
    seen: list[tuple[object, ...]] = []

    class Monitor:
        def phase_start(self, *arguments: object) -> None:
            seen.append(arguments)

        step_complete = phase_finish = phase_start

    for method, arguments in calls(Monitor(), steps(1)):
        method(*arguments)
    assert seen == [
        ("root", None, 1),
        ("long phase", "root", 1),
        ("long phase", 0),
        ("long phase",),
        ("root",),
    ]


def test_what_floods_a_build_process() -> None:
    replayed = last_state(flood_events(len(mnist_events())))
    recorded = last_state(mnist_events())
    root = "Building engine"
    assert replayed == {FLOOD_ROOT + path[len(root) :]: state for path, state in recorded.items()}


# ------------------------------------------------------------------ progress


def recording(duration: float, number: int = 0, network: str = "gpt:1") -> progress.Recording:
    """Make a build of two phases, of which the second is silent."""
    start = {"event": "phase_start", "parent": None, "num_steps": 4, "thread": 1}
    inner = {**start, "parent": "root", "num_steps": 1}
    step = {"event": "step_complete", "phase": "root", "thread": 1}
    early, late = 0.2 * duration, 0.9 * duration
    batches: list[tuple[float, list[dict[str, Any]]]] = [
        (0.05, [{**start, "time": 0.05, "phase": "root"}]),
        (early, [{**inner, "time": early, "phase": "silent"}, {**step, "time": early, "step": 2}]),
        (late, [{"event": "phase_finish", "time": late, "phase": "silent", "thread": 1}]),
    ]
    return progress.Recording(
        network, {"layers": 100.0}, duration, batches, machine="here", finished_at=float(number)
    )


def test_recordings_come_back(tmp_path: Path) -> None:
    made = [recording(3.0, 2), recording(2.0, 1, "mlp:3")]
    progress.save(tmp_path / "some.jsonl.gz", made)
    found = progress.load(tmp_path / "some.jsonl.gz")
    assert [one.network for one in found] == ["mlp:3", "gpt:1"]
    assert found[1].record == made[0].record
    assert found[1].key == made[0].key
    assert list(progress.repeated(found)) == []
    assert "RTX" not in progress.label(found)
    assert "tensorrt_rtx on a CPU: here; 2 builds of 2 networks, 1970-01-01" in progress.label(
        found
    )


def test_the_ticks_are_those_of_the_product() -> None:
    one = recording(3.0)
    moments = [now for now, _ in one.ticks()]
    assert max(later - earlier for earlier, later in pairwise([0.0, *moments, 3.0])) < 0.11
    assert {now for now, _ in one.batches} <= set(moments)
    assert moments == sorted(moments)
    assert moments[-1] < 3.0
    assert [tree.paths for _, tree in one.ticks()][-1] == 2


def test_what_is_shown_is_held_against_the_truth() -> None:
    before = [recording(3.0, number) for number in range(3)]
    points = progress.course(recording(3.0), Estimator([one.record for one in before]))
    assert points[-1][0] == 1.0
    assert progress.largest((truth, shown) for truth, shown, _ in points) < 0.06
    # The top bar stands at 3 of 4 from a fifth of the time on.
    assert progress.largest((truth, steps) for truth, _, steps in points) == pytest.approx(0.55)
    # Nothing is shown without a history.
    points = progress.course(recording(3.0), Estimator())
    assert progress.largest((truth, shown) for truth, shown, _ in points) == 1.0
    many = [recording(duration, n) for n, duration in enumerate((3.0, 3.0, 3.0, 6.0))]
    errors = progress.differences(many)
    assert [ours < 0.06 for ours, _ in errors] == [True, True, False]
    assert len(progress.repeated_rows(many)) == 7


def test_bounds_and_scatter() -> None:
    assert progress.clock_error(2.0, 4.0) == progress.clock_error(4.0, 2.0) == 0.5
    assert progress.bound([2.0, 4.0, 4.0]) == [0.5, 0.0, 0.0]
    assert progress.scatter([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert progress.quartiles([1.0, 2.0, 3.0]) == "2.000 (1.500 to 2.500)"
    assert progress.quartiles([4.0]) == "4.000 (4.000 to 4.000)"


def test_a_new_network_is_predicted_from_all_others() -> None:
    made = []
    for number in range(9):
        layers = 100.0 * 1.5**number
        one = recording(layers / 30, number, f"{'gpt' if number % 2 else 'mlp'}:{number}")
        made.append(
            progress.Recording(**{**vars(one), "size": {"layers": layers}, "machine": "here"})
        )
    found = progress.left_out(made)
    assert set(found) == {one.network for one in made}
    assert all(factor < 1.6 for factors in found.values() for factor in factors)
    assert set(progress.left_out(made, lambda name: name == "gpt:3")) == {"gpt:3"}
    # Only four or five others are left: too few in half of the cases.
    alone = progress.left_out(made, whole_family=True)
    assert all(math.isinf(alone[name][0]) == name.startswith("mlp") for name in alone)


def test_traces_of_full_tensorrt_go_through_the_same_code() -> None:
    """The order is that of a real build on a GPU; the times are made: the log held none."""
    events = timed(mnist_events(), 0.001)
    batches = [
        (first / 1000 + 0.1, [json.loads(to_json(event)) for event in events[first : first + 100]])
        for first in range(0, len(events), 100)
    ]
    made = [
        progress.Recording("mnist", {}, len(events) / 1000 + 0.2, batches, "tensorrt", "10.16")
        for _ in range(4)
    ]
    rows = progress.repeated_rows(made)
    assert float(rows[0].measured.split()[0]) < 0.03


def test_the_recorded_builds_are_estimated_as_well_as_the_documentation_says() -> None:
    machines = progress.machines(progress.load(progress.DATA))
    assert len(machines) == 2
    *_, alone = machines.values()
    values = [
        ours for many in progress.repeated(alone).values() for ours, _ in progress.differences(many)
    ]
    assert len(values) == 60
    assert median(values) < 0.09
    networks = max(machines.values(), key=len)
    chosen = sorted({one.network for one in networks})[::8]
    found = progress.left_out(networks, chosen.__contains__)
    assert len(found) >= 10
    for place in range(3):
        assert median(factors[place] for factors in found.values()) < 1.6


def test_what_is_built_was_recorded() -> None:
    recorded = {one.network for one in progress.load(progress.DATA)}
    builds = progress.plan(progress.REPEATS, [])
    assert {name for name, _ in builds} <= recorded
    assert all(builds.count((name, None)) == progress.REPEATS for name in progress.REPEATED)
    assert set(progress.SIZES) == set(FAMILIES)


# ------------------------------------------------------------------ on a GPU


def made_up(*, gpu_there: bool, networks: int = 3, rounds: int = 7) -> dict[str, Any]:
    """Make figures that nobody has measured, of the form that measuring gives."""
    about: dict[str, Any] = {
        "device": "NVIDIA Imaginary" if gpu_there else device.NO_GPU,
        "capability": "SM90" if gpu_there else "",
        "driver": "580.1" if gpu_there else "",
        "processor": "Some Processor",
        "cores": 16,
        "system": "Linux",
        "load": "0.1",
        "load after": "1.2",
        "date": "2026-01-02 03:04",
        "python": "3.12.3",
        "trt_widget": "0.1.0",
        "packages": {"tensorrt_rtx": "1.7.1"},
        "command": "python -m tests.bench gpu --repeat 7",
    }
    names = list(gpu.NAMES)[:networks]
    inside = {"process": 1.05, "plain": 1.0, "thread": 2.0}
    ways = {
        how: [[base * n, 9.0, (base + 1) * n] for n in range(1, rounds + 1)]
        for how, base in inside.items()
    }
    course = dict.fromkeys(gpu._START_ROWS, 0.1)
    slower = dict.fromkeys(gpu._START_ROWS, 0.35)
    raw: dict[str, Any] = {
        "about": about,
        "failed": {},
        "seconds": 432.1,
        "builds": {
            name: {"idle": ways | {gpu.BARE: ways["thread"]}, "busy": ways} for name in names
        },
        "start-up": {gpu.WITHOUT: [course] * rounds},
        "silence": {
            name: {"layers": 1825, "callbacks": 1907, "inside_s": 2.0, "share": 0.9, "longest_s": 1}
            for name in names
        },
    }
    if gpu_there:
        raw["start-up"][gpu.WITH] = [slower] * rounds
        raw["start-up"][gpu.LATER] = [dict.fromkeys(START_UP, 0.15)] * rounds
        one = {"most": 512_000_000, "after": 0, "gone": 0, "kernel": 0, "others": 510_000_000}
        raw["memory"] = dict.fromkeys(gpu.HOW, one) | {
            "plain": one | {"kernel": None, "others": None}
        }
    return json.loads(json.dumps(raw))  # type: ignore[no-any-return]  # as from --out


def cells(text: str, row: str) -> list[list[str]]:
    """Give the cells of the rows that begin so."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {row}")
    ]


def test_the_page_of_a_gpu() -> None:
    text = gpu.page(made_up(gpu_there=True))
    assert len(text) < 10_000
    head = text.splitlines()
    assert head[0] == "### NVIDIA Imaginary, 2026-01-02"
    assert head[2] == (
        "- NVIDIA Imaginary (SM90, driver 580.1); Some Processor, 16 cores, Linux; "
        "load 0.1 before, 1.2 after."
    )
    assert "- Python 3.12.3, tensorrt_rtx 1.7.1, trt_widget 0.1.0." in head
    assert "432 s: `python -m tests.bench gpu --repeat 7`" in text
    compared, _, seconds, _, silent = cells(text, "ResNet-50")
    assert compared == [
        *("ResNet-50", "idle", "7"),
        *("1.02 [1.02, 1.02]", "1.05 [1.05, 1.05]"),
        *("1.50 [1.50, 1.50]", "2.00 [2.00, 2.00]", "1.00 [1.00, 1.00]"),
    ]
    assert cells(text, "ResNet-50")[1][-1] == ""
    assert seconds[:3] == ["ResNet-50", "idle", "8.20 [2.05, 14.35] (9.00)"]
    assert silent == ["ResNet-50", "1,825", "1,907", "2.00 s", "90%", "1.00 s"]
    assert cells(text, "... to the first callback") == [
        [
            "... to the first callback",
            *("100 [100, 100]", "350 [350, 350]", "150 [150, 150]"),
            "250 [250, 250]",
        ]
    ]
    assert cells(text, "... then a Builder")[0][3] == ""
    assert cells(text, "executor process") == [["executor process", "512", "0", "0", "0", "510"]]
    assert cells(text, "no monitor, new")[0][-2:] == ["not told", "not told"]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 6 + 2 + 6 + 2 + len(gpu._START_ROWS) + 2 + 3 + 2 + 3 + 2


def test_the_page_without_a_gpu_and_with_what_failed() -> None:
    raw = made_up(gpu_there=False, networks=1, rounds=1)
    raw["failed"] = {"silence": "RuntimeError: no"}
    del raw["silence"]
    text = gpu.page(raw)
    assert text.startswith("### No GPU, 2026-01-02\n\n- Some Processor, 16 cores, Linux; load")
    assert "with CUDA" not in text
    assert "GPU memory" not in text
    assert "Not measured, or not all of it: silence (RuntimeError: no)." in text
    assert cells(text, "... to the first callback")[0][1:] == ["100 [100, 100]"]
    assert gpu.page({"about": raw["about"], "failed": {}}).count("|") == 0


def test_the_command_line_of_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.parse([]).networks == tuple(gpu.NAMES)
    assert gpu.parse([]).seconds < 8 * 60
    plan = gpu.parse(["--network", "mlp:3", "--repeat", "2", "--out", str(tmp_path / "o.json")])
    assert (plan.networks, plan.repeat) == (("mlp:3",), 2)
    assert plan.command.startswith("python -m tests.bench gpu --network mlp:3 --repeat 2 --out")
    for wrong in (["--repeat", "0"], ["--seconds", "nan"], ["--out", str(tmp_path / "no" / "o")]):
        with pytest.raises(SystemExit):
            gpu.parse(wrong)
    assert "there is no folder" in capsys.readouterr().err


def test_what_fails_does_not_keep_the_rest_from_being_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured here: each part is replaced."""
    there = device.Device("NVIDIA Imaginary", "SM90", "580.1", "GPU-1")
    monkeypatch.setattr(device, "find", lambda: there)
    monkeypatch.setattr(device, "nvml", lambda: None)

    def fail(*_: Any) -> None:
        raise OSError("no such thing")

    def builds(_networks: Any, _rounds: Any, _deadline: Any, keep: Any) -> None:
        keep(made_up(gpu_there=True)["builds"])
        raise TimeoutError("too late")

    monkeypatch.setattr(gpu, "start_up", fail)
    monkeypatch.setattr(gpu, "silence", lambda *_: made_up(gpu_there=True)["silence"])
    monkeypatch.setattr(gpu, "compare", builds)
    raw = gpu.measure(gpu.parse(["--out", str(tmp_path / "o.json")]))
    assert raw["failed"] == {
        "start-up": "OSError: no such thing",
        "builds": "TimeoutError: too late",
    }
    assert json.loads((tmp_path / "o.json").read_text()) == raw
    text = gpu.page(raw)
    assert cells(text, "ResNet-50")[0][0] == "ResNet-50"
    assert "nvidia-ml-py is missing" in text
    capsys.readouterr()
    assert gpu.main(["--show", str(tmp_path / "o.json")]) == 1
    assert capsys.readouterr().out == text


def test_rounds_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each network gets a round; then whatever has the fewest and fits. The times are made up."""
    now = [0.0]
    built: list[str] = []

    def run(cell: Any) -> list[float]:
        name, seconds = cell
        built.append(name)
        now[0] += seconds
        return [seconds, 0.0, seconds]

    def rounds(most: int, deadline: float) -> tuple[int, ...]:
        """Give how many whole rounds of each network were kept."""
        built.clear()
        now[0] = 0.0
        kept: list[dict[str, Any]] = []
        gpu.compare(("convnet:3", "mlp:4"), most, deadline, kept.append)
        return tuple(
            len(loads[load]["thread"]) for load in gpu.LOADS for loads in kept[-1].values()
        )

    kernel = mock.MagicMock()
    kernel.__enter__.return_value.run = lambda code, **_: next(
        ((name, seconds) for name, seconds in pace.items() if f"/{name}.onnx" in code), None
    )
    monkeypatch.setattr(gpu, "Kernel", lambda _version: kernel)
    monkeypatch.setattr(gpu, "printed", run)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    pace = {"convnet": 10.0, "mlp": 1.0}
    # A first round takes 70 s and 7 s, a later one 40 s and 4 s.
    assert rounds(99, 70.0 + 7.0 + 150.0) == (2, 28, 1, 1)
    assert built.count("convnet") == 7 + 4
    assert rounds(2, 1.0) == (1, 1, 1, 1)
    assert len(built) == 2 * 7
    assert rounds(1, 1e9) == (1, 1, 1, 1)

    def slower(cell: Any) -> list[float]:
        pace["convnet"] *= 1.2 if cell[0] == "convnet" else 1.0
        return run(cell)

    # A round that gets longer than the one before ends with the time, and is not kept.
    monkeypatch.setattr(gpu, "printed", slower)
    pace = {"convnet": 10.0, "mlp": 1.0}
    assert rounds(9, 280.0)[0] == 1
    assert built.count("convnet") > 7
    assert 280.0 < now[0] < 350.0


class Nvml:
    """A stand-in for the library of NVIDIA's driver."""

    class NVMLError(Exception):
        """Its error."""

    def __init__(self, *, uuid: str = "GPU-1", count: int = 1) -> None:
        self.uuid, self.count = uuid, count
        self.bytes = iter([100, 100, *[700] * 10_000])

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - its name
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.uuid:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle: object) -> Any:  # noqa: N802
        return SimpleNamespace(used=next(self.bytes))

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: object) -> list[Any]:  # noqa: N802
        return [
            SimpleNamespace(pid=7, usedGpuMemory=500),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]


def test_the_memory_of_a_gpu_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SETTLE_S", 0.0)
    monkeypatch.setattr(device, "nvml", Nvml)
    with device.Memory("GPU-1", period_s=0.001) as watched:
        time.sleep(0.1)
    assert (watched.before, watched.most, watched.after) == (100, 700, 700)
    assert watched.by_process == {7: 500, 8: 0}
    assert device._driver() == "580.1"
    device.Memory("GPU-2")  # the only one there is
    monkeypatch.setattr(device, "nvml", lambda: Nvml(count=2))
    with pytest.raises(RuntimeError, match="does not know the GPU GPU-2"):
        device.Memory("GPU-2")
    monkeypatch.setattr(device, "nvml", lambda: None)
    with pytest.raises(RuntimeError, match="pip install nvidia-ml-py"):
        device.Memory("GPU-1")


def test_a_machine_without_a_gpu_says_so() -> None:
    assert not device.find()
    assert str(device.find()) == "no GPU"
    there = device.Device("NVIDIA Imaginary", "SM90", "", "GPU-1")
    assert str(there) == "NVIDIA Imaginary (SM90), driver unknown"
