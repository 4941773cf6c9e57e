"""What the command line's surfaces cost: bars in a terminal, lines, events in a file.

Each run is the whole program, ``trt-widget build``, in a pseudo-terminal, with a build process that
replays the MNIST trace at 50,000 callbacks a second. The CPU time is that of the program, without
the build process, from its first import to its exit; what a surface costs is the difference to the
same program that shows nothing, run right before it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tests.bench.figures import say
from tests.bench.stats import Row, differences, ratios, spread
from tests.models import mlp
from tests.surfaces.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = 50_000
SECONDS = 5
REPOSITORY = Path(__file__).parents[2]

#: The command, and what it took.
PROGRAM = """
import json, sys, time
start = time.perf_counter()
from trt_widget.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump([code, time.process_time(), time.perf_counter() - start], file)
"""


def configure_flood(builder: Any, network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build that begins with a flood."""
    from tests.bench.builds import make_flood

    make_flood(RATE, RATE * SECONDS, builder, network, config)


def _run(folder: Path, arguments: Sequence[str]) -> tuple[float, float, int]:
    """Run the command; give CPU and wall seconds, and bytes that the terminal has got."""
    result = folder / "result.json"
    shown = Terminal(
        [
            *(sys.executable, "-c", PROGRAM, str(result), "build", "flood.onnx"),
            *("--configure", "tests.bench.surfaces:configure_flood", *arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        folder=folder,
        columns=120,
        lines=40,
    )
    try:
        shown.end(60.0 + 4 * SECONDS)
    finally:
        shown.close()
    code, cpu, wall = json.loads(result.read_text("utf-8"))
    if code != 0:
        raise RuntimeError(shown.raw.decode("utf-8", "replace")[-1000:])
    return cpu, wall, len(shown.raw)


def terminal(*, long: bool) -> list[Row]:
    """Measure the program with each surface beside the same without one."""
    surfaces = {
        "bars in a terminal": ["--progress=bars"],
        "lines": ["--progress=lines"],
        "events to a file": ["--progress=none", "--events=events.jsonl"],
    }
    rows = []
    events = RATE * SECONDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(mlp(), str(folder / "flood.onnx"))
        for what, arguments in surfaces.items():
            with_it, without = [], []
            for number in range(6 if long else 3):
                say(f"{what}, {number + 1} ...")
                without.append(_run(folder, ["--progress=none"]))
                with_it.append(_run(folder, arguments))
            cpu = differences([run[0] for run in with_it], [run[0] for run in without])
            share = [100 * seconds / SECONDS for seconds in cpu]
            times = ratios([run[1] for run in with_it], [run[1] for run in without])
            written = max(run[2] for run in with_it) / SECONDS / 1000
            target = {"bars in a terminal": (10.0, "< 10 %")}.get(what)
            rows += [
                Row(
                    f"{what}, {RATE:,} callbacks/s: CPU of a core, beside nothing shown",
                    f"{spread(share, 1)} % ({1e6 * sum(cpu) / len(cpu) / events:.2f} us a "
                    f"callback; {written:.0f} kB/s to the terminal)",
                    target[1] if target else "",
                    None if target is None else sorted(share)[len(share) // 2] < target[0],
                ),
                Row(
                    f"{what}: time of the whole program, ratio to nothing shown",
                    spread(times, 3),
                ),
            ]
    return rows


FIGURES = {"terminal": terminal}
