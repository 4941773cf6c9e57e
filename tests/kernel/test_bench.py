"""The benchmark of builds on a GPU, for real, as short as it can be; here without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.bench import gpu
from tests.bench.builds import START_UP
from tests.kernel.harness import ROOT
from tests.traces import traces

if TYPE_CHECKING:
    from pathlib import Path


def test_the_smallest_network_once(tmp_path: Path) -> None:
    out, folder = tmp_path / "figures.json", tmp_path / "traces"
    given = ["--network", "mlp:3", "--repeat", "1", "--out", str(out), "--traces", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "gpu", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    raw = json.loads(out.read_text())
    assert done.stdout == gpu.page(raw)
    assert raw["failed"] == {}
    assert raw["about"]["device"] == "no GPU"
    for ways in raw["builds"]["mlp:3"].values():
        for how in gpu.HOW:
            ((inside, cpu, whole, begun),) = ways[how]
            assert 0.0 < inside < whole
            assert 0.0 < begun <= whole - inside + 1e-3
            assert (cpu > 0.0) == (how != "thread")
    (course,) = raw["start-up"][gpu.WITHOUT]
    assert set(START_UP) <= set(course)
    assert 0.0 < course["first word"] < course["callback"] < course["end"] < course["gone"]
    assert raw["silence"]["mlp:3"]["callbacks"] > 50
    assert [trace.info["executor"] for trace in traces(folder)] == ["process", "thread"]
