"""``trt-widget check`` where there is a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trt_widget.backend import find_backend, gpus

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.device import Figures


@pytest.mark.timeout(700)
def test_every_check_that_can_be_run_here_is_ok(tmp_path: Path, figures: Figures) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trt_widget", "check"),
            *("--backend", "tensorrt_rtx", "--json", str(tmp_path / "check.json")),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report = json.loads((tmp_path / "check.json").read_bytes())
    assert [gpu["name"] for gpu in report["gpus"]] == [gpu.name for gpu in gpus()]
    if gpus():
        assert report["cuda"]
    status = {entry["check"]: entry["status"] for entry in report["packages"]["tensorrt_rtx"]}
    assert status.pop("timing-cache") == "not run"
    runs = bool(gpus()) and find_backend("tensorrt_rtx").runs_on(gpus()[0])
    assert status.pop("runs") == ("ok" if runs else "not run")
    assert set(status.values()) == {"ok"}
    seen = next(e["seen"] for e in report["packages"]["tensorrt_rtx"] if e["check"] == "runs")
    figures.say(f"trt-widget check: {len(status)} ok; the engine: {seen}")
