"""``trt-widget check`` with the real bindings of full TensorRT, and no library behind them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.full import bindings
from trt_widget._checks import CHECKS

if TYPE_CHECKING:
    from pathlib import Path


def check(environment: dict[str, str], folder: Path) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "-m", "trt_widget", "check", "--json", folder / "x.json"]
    done = subprocess.run(
        [*command, "--backend", "tensorrt"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout, json.loads((folder / "x.json").read_bytes())


def test_without_a_gpu_only_the_bindings_are_checked(
    environment: dict[str, str], version: str, tmp_path: Path
) -> None:
    printed, report = check(environment, tmp_path)
    lines = printed.splitlines()
    assert lines[1].startswith(("no NVIDIA driver", "no GPU, driver "))
    assert lines[3] == f"tensorrt {version}"
    assert lines[4].startswith("  ok      imported: ")
    assert "a monitor is called through C++" in lines[4]
    results = report["packages"]["tensorrt"]
    assert [result["status"] for result in results] == ["ok", *["not run"] * (len(CHECKS) - 1)]
    assert {result["seen"] for result in results[1:]} == {
        "it needs a GPU to build, and there is no NVIDIA driver with a GPU"
    }
    assert "Nothing could be built here: " in printed


def test_with_a_gpu_every_check_fails_and_says_why(
    environment: dict[str, str], version: str, tmp_path: Path
) -> None:
    """The driver is a made-up one, and the library has no builder to give."""
    bindings.compile_driver(tmp_path)
    found = {**environment, "LD_LIBRARY_PATH": f"{environment['LD_LIBRARY_PATH']}:{tmp_path}"}
    printed, report = check(found, tmp_path)
    assert printed.splitlines()[1] == "compiled (SM99), driver of unknown version (CUDA 13.0)"
    results = {result["check"]: result for result in report["packages"]["tensorrt"]}
    assert results.pop("import")["status"] == "ok"
    assert results.keys() == {check.name for check in CHECKS} - {"import"}
    for result in results.values():
        assert result["status"] == "failed"
        assert result["seen"].startswith(f"TensorRT {version} could not make a builder: ")
    assert f"{len(CHECKS) - 1} checks failed." in printed
