"""The script that runs all tests: what it tells at its end, in a project of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import run

if TYPE_CHECKING:
    from pathlib import Path

UNIT = """
import pytest

@pytest.fixture
def spoilt():
    yield
    raise RuntimeError("and its end fails, too")

def test_good():
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_bad(spoilt):
    left, right = 1, 2
    assert left == right

@pytest.mark.parametrize("n", range(9))
def test_long(n):
    for line in range(100):
        print("line", line)
    raise ValueError("\\n".join(f"reason {line}" for line in range(100)))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a folder with the script and no tests."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.ruff.lint]\nselect = ["F401"]\n')
    shutil.copy(run.__file__, tmp_path / "tests" / "run.py")
    return tmp_path


def ran(project: Path, *steps: str) -> tuple[int, list[str]]:
    """Run steps there; give the exit status and what was printed."""
    done = subprocess.run(
        [sys.executable, project / "tests" / "run.py", "--no-install", *steps],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_what_failed_is_told_at_the_end(project: Path) -> None:
    (project / "tests" / "unit").mkdir()
    (project / "tests" / "unit" / "test_it.py").write_text(UNIT)
    (project / "wrong.py").write_text("import os\n")
    code, lines = ran(project, "unit", "lint")
    assert code == 1
    assert lines[-1] == "1 passed, 11 failed, 1 skipped"
    told = lines[max(n for n, line in enumerate(lines) if " | --- " in line) + 1 :]
    heads = [line.removeprefix("=== failed: ") for line in told if line.startswith("=== failed: ")]
    assert heads == [
        "lint: python -m ruff check",
        "unit: tests.unit.test_it::test_bad",
        *(f"unit: tests.unit.test_it::test_long[{n}]" for n in range(6)),
    ]
    for each in ("F401", "assert 1 == 2", "and its end fails, too", "reason 99"):
        assert any(each in line for line in told)
    assert not any(line.endswith("reason 9") for line in told)
    assert sum("lines before these" in line for line in told) == 6
    others = told[told.index("=== failed, too") + 1 :][:3]
    assert others == [f"unit: tests.unit.test_it::test_long[{n}]" for n in (6, 7, 8)]
    assert len(told) < 8 * (run.TOLD_LINES + 3) + 20


def test_a_step_without_a_report_tells_what_it_printed(project: Path) -> None:
    code, lines = ran(project, "unit", "kernel")
    assert code == 1
    assert lines[-1] == "0 passed, 2 failed"
    at = next(n for n, line in enumerate(lines) if line.startswith("=== failed: unit: python"))
    assert any("file or directory not found" in line for line in lines[at:])


def test_nothing_more_is_told_where_nothing_failed(project: Path) -> None:
    code, lines = ran(project, "lint")
    assert code == 0
    assert not any("failed: " in line and line.startswith("===") for line in lines)
    assert lines[-1] == "1 passed, 0 failed"
