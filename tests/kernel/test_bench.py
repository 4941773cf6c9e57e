"""The benchmark of builds on a GPU, for real, as short as it can be; here without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bench import gpu
from tests.bench.builds import START_UP
from tests.cuda_driver import ONE_DEVICE, Driver
from tests.kernel.harness import ROOT
from tests.traces import traces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(sys.platform != "linux", reason="the driver is compiled for Linux")
def test_the_start_up_where_a_driver_answers(tmp_path: Path) -> None:
    """The driver is compiled here, and so is its GPU: what is measured means nothing."""
    out = tmp_path / "figures.json"
    given = ["--network", "mlp:3", "--repeat", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "gpu", *given],
        cwd=ROOT,
        env=Driver(tmp_path, answer=ONE_DEVICE, milliseconds=300).environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    raw = json.loads(out.read_text())
    assert raw["failed"] == {}
    assert raw["about"]["device"] == "compiled"
    asked, told = (raw["start-up"][side][0] for side in (gpu.WITH, gpu.LATER))
    # The first build has to wait for the driver, which takes that long; the next one does not ask.
    assert asked["callback"] > 0.3
    assert asked["names first: names"] > 0.3
    assert "names first: names" not in told
    assert set(START_UP) <= set(told)
    assert gpu.LATER in gpu.page(raw)


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
    for load, ways in raw["builds"]["mlp:3"].items():
        assert set(ways) == set(gpu.LOADS[load])
        for how, measured in ways.items():
            ((inside, cpu, whole, begun),) = measured
            assert 0.0 < inside < whole
            assert 0.0 < begun <= whole - inside + 1e-3
            assert (cpu > 0.0) == (how not in {"thread", gpu.BARE})
    (course,) = raw["start-up"][gpu.WITHOUT]
    assert set(START_UP) <= set(course)
    assert 0.0 < course["first word"] < course["callback"] < course["end"] < course["gone"]
    assert raw["silence"]["mlp:3"]["callbacks"] > 50
    assert [trace.info["executor"] for trace in traces(folder)] == ["process", "thread"]
