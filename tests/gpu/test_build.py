"""Whole networks built in a real kernel, and one network built in every way that there is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests.gpu import networks
from tests.gpu.conftest import can_run
from tests.gpu.device import MIB, ROOT, probe
from trt_widget import Build, BuildQueue, load_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.gpu.device import Figures
    from tests.kernel.harness import Comm, Kernel

EXECUTORS = ("process", "thread")
#: Seconds that one of these builds may take: ten times what the slowest takes on two idle cores.
LONGEST_S = 250.0
#: By how much the sizes of two engines of the same network may differ. Built ahead of time they
#: were the same to the byte (ten builds on a CPU); where tactics are timed, another choice changes
#: the part of an engine that is no weights.
SIZES = 1.02

#: What a cell prints about a build that has ended, as JSON.
TOLD = """
import json
print(json.dumps({
    "timings": w.timings.to_dict("list"),
    "spans": w.spans.to_dict("list"),
    "anomalies": w.build.tree.anomalies,
    "open": len(w.build.tree.open_phases),
    "result": {name: getattr(w.result, name) for name in (
        "status", "engine_bytes", "duration_s", "ended_by", "executor", "layers", "device"
    )},
    "notes": list(w.result.notes),
    "size": len(w.engine),
}))
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """Give a kernel with the ipykernel that is installed."""
    # Here, so that the other tests do without what it needs.
    from tests.kernel.harness import Kernel

    with Kernel(version("ipykernel")) as running:
        running.run("import time\nfrom trt_widget import BuildWidget")
        yield running


def bars_of(kernel: Kernel, card: Comm) -> list[Comm]:
    return [kernel.comms[name.removeprefix("IPY_MODEL_")] for name in card.state["rows"]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_build_in_a_kernel(
    name: str,
    executor: str,
    *,
    kernel: Kernel,
    network: Callable[[str], Path],
    folder: Path,
    target: dict[str, Any],
    figures: Figures,
) -> None:
    model, output = network(name), folder / f"{name}-{executor}.engine"
    options = {"executor": executor, "output": str(output), **target}
    begun = time.monotonic()
    shown = kernel.run(f"w = BuildWidget({str(model)!r}, **{options!r}).start()\nw")
    card = kernel.comms[shown.view_ids[-1]]

    def status() -> str:
        return str(card.state["header"]["status"])

    kernel.wait_for(
        lambda: status() in {"succeeded", "failed", "cancelled"}, LONGEST_S, f"{name} to be built"
    )
    took = time.monotonic() - begun
    header = card.state["header"]
    assert status() == "succeeded", header["failure"]
    told = json.loads(kernel.run(TOLD).text)
    result, timings, spans = told["result"], told["timings"], told["spans"]
    figures.row(
        "builds in a kernel",
        network=name,
        executor=executor,
        status=result["status"],
        build_s=result["duration_s"],
        engine_MB=result["engine_bytes"] / 1e6,
        layers=result["layers"],
        phases=len(spans["phase"]),
        built_for=result["device"],
    )
    # The bars: one for each path of the tree, in its order, all ended well.
    bars = bars_of(kernel, card)
    kernel.wait_for(lambda: {bar.state["bar_style"] for bar in bars} == {"success"}, 10, "bars")
    assert [bar.model for bar in bars] == ["IntProgressModel"] * len(bars)
    assert [bar.state["info"]["label"] for bar in bars] == timings["phase"]
    assert all(0 <= bar.state["value"] <= bar.state["max"] for bar in bars)
    assert header["executor"] == executor
    assert header["engine_bytes"] == result["engine_bytes"]
    # The tree: nothing odd, nothing left open, everything within what it belongs to.
    assert told["anomalies"] == {}
    assert told["open"] == 0
    assert timings["phase"][0] == "Building engine"
    assert set(spans["status"]) == set(timings["status"]) == {"done"}
    assert len(spans["phase"]) == sum(timings["count"])
    check_nesting(spans)
    # The times: self times are those of the roots, which are within the build.
    roots = [total for total, depth in columns(timings, "total_s", "depth") if depth == 0]
    assert sum(timings["self_s"]) == pytest.approx(sum(roots), rel=1e-6)
    assert min(timings["self_s"]) >= 0.0
    assert 0.0 < sum(roots) <= result["duration_s"] <= took
    # The engine.
    assert (result["ended_by"], result["executor"]) == ("completed", executor)
    assert output.stat().st_size == told["size"] == result["engine_bytes"] > 100_000
    assert result["layers"] >= len(onnx.load(str(model)).graph.node) / 4
    kernel.run("w.close(); del w")


def test_target_current_in_a_kernel(kernel: Kernel, abilities: dict[str, dict[str, Any]]) -> None:
    """The view shows an engine, or why there is none for this GPU and what to do."""
    cell = "from tests import models\nw = BuildWidget(models.mlp(), target='current').start()\nw"
    card = kernel.comms[kernel.run(cell).view_ids[-1]]
    final = {"succeeded", "failed", "cancelled"}
    kernel.wait_for(lambda: card.state["header"]["status"] in final, 60, "the build's end")
    header, waited = card.state["header"], kernel.execute("len(w.wait())").finish()
    if can_run(abilities, "current"):
        assert (header["status"], header["failure"], waited.error) == ("succeeded", None, None)
        return
    assert (header["status"], waited.error) == ("failed", "OptionRejected")
    assert "current" in header["failure"]["cause"]
    assert header["failure"]["remedy"]
    assert waited.reply is not None
    assert header["failure"]["cause"] in waited.reply["evalue"]


def columns(table: dict[str, list[Any]], *names: str) -> list[tuple[Any, ...]]:
    """Give the rows of some columns."""
    return list(zip(*(table[name] for name in names), strict=True))


def check_nesting(spans: dict[str, list[Any]]) -> None:
    """Hold every span against that of its parent."""
    rows = columns(spans, "start_s", "end_s", "parent", "depth", "path")
    for start, end, parent, depth, path in rows:
        assert start <= end
        if depth == 0:
            assert parent == -1
            continue
        above = rows[parent]
        assert above[0] <= start, path
        assert end <= above[1], path
        assert depth == above[3] + 1
        assert path.startswith(f"{above[4]} > ")


# ---- the same engine, however it is built --------------------------------------------------------


def by_wait(model: Path, output: Path, options: dict[str, Any]) -> int | None:
    build = Build(str(model), output=output, executor="process", **options).start()
    assert len(build.wait(LONGEST_S)) == output.stat().st_size
    return layers_of(build)


def by_wait_in_a_thread(model: Path, output: Path, options: dict[str, Any]) -> int | None:
    build = Build(str(model), output=output, executor="thread", **options).start()
    assert len(build.wait(LONGEST_S)) == output.stat().st_size
    return layers_of(build)


def by_await(model: Path, output: Path, options: dict[str, Any]) -> int | None:
    build = Build(str(model), output=output, **options)

    async def wait() -> int:
        build.start()
        return len(await build)

    assert asyncio.run(wait()) == output.stat().st_size
    return layers_of(build)


def by_queue(model: Path, output: Path, options: dict[str, Any]) -> int | None:
    queue = BuildQueue({"one": {"source": str(model), "output": output, **options}})
    queue.start()
    queue.wait(LONGEST_S)
    (job,) = queue.jobs.values()
    assert job.result is not None
    assert job.result.status == "succeeded", job.result.error
    return job.result.layers


def by_command(model: Path, output: Path, options: dict[str, Any]) -> int | None:
    record = output.with_suffix(".json")
    more = ["--useGpu"] if options.get("target") == "current" else []
    command = [sys.executable, "-m", "trt_widget", "build", str(model), "-o", str(output), *more]
    done = subprocess.run(
        [*command, "--progress", "lines", "--record", str(record)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    layers: int | None = load_record(record).result.layers
    return layers


def layers_of(build: Build) -> int | None:
    assert build.result is not None
    return build.result.layers


WAYS: dict[str, Callable[[Path, Path, dict[str, Any]], int | None]] = {
    "wait()": by_wait,
    "wait(), in a thread": by_wait_in_a_thread,
    "await": by_await,
    "BuildQueue": by_queue,
    "command line": by_command,
}


@pytest.mark.timeout(300)
def test_the_same_engine_however_it_is_built(
    network: Callable[[str], Path],
    tmp_path: Path,
    target: dict[str, Any],
    abilities: dict[str, dict[str, Any]],
    figures: Figures,
) -> None:
    model = network("resnet50")
    made = onnx.load(str(model))
    layers: dict[str, int | None] = {}
    engines: dict[str, Path] = {}
    for way, build in WAYS.items():
        engines[way] = tmp_path / f"{len(engines)}.engine"
        begun = time.monotonic()
        layers[way] = build(model, engines[way], target)
        figures.row(
            "ResNet-50, however it is built",
            way=way,
            whole_s=time.monotonic() - begun,
            engine_MiB=engines[way].stat().st_size / MIB,
            layers=layers[way],
        )
    first, *others = (path.read_bytes() for path in engines.values())
    same = sum(other == first for other in others)
    figures.say(f"engines that are the first's bytes: {same} of {len(others)}")
    # What TensorRT read, what it wrote, and by which names it can be used.
    assert len(set(layers.values())) == 1, layers
    assert None not in layers.values()
    sizes = [len(engine) for engine in (first, *others)]
    assert max(sizes) <= SIZES * min(sizes), sizes
    names = made.graph.input[0].name, made.graph.output[0].name
    assert all(name.encode() in engine for engine in (first, *others) for name in names)
    if can_run(abilities, target.get("target", "default")):
        check_answers(made, engines, tmp_path)


def check_answers(made: onnx.ModelProto, engines: dict[str, Path], folder: Path) -> None:
    """Run all engines on one input, and compare what they are and what they give."""
    given, taken = folder / "in.npy", folder / "out.npy"
    np.save(given, networks.random_input(made))
    found, answers = {}, {}
    for way, engine in engines.items():
        told = probe("run", str(engine), str(given), str(taken))
        assert told.get("ran"), told
        found[way] = told["tensors"], told["layers"]
        answers[way] = np.load(taken)
    first = found["wait()"]
    assert set(first[0]) == {made.graph.input[0].name, made.graph.output[0].name}
    assert all(each == first for each in found.values()), found
    # Tactics may differ, and with them the order of sums.
    allowed = networks.tolerance(made, np.load(given), networks.TF32_BITS)
    for answer in answers.values():
        assert networks.difference(answer, answers["wait()"]) <= allowed
