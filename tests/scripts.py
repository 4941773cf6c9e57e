"""Scripts of tests in a Python process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).parents[1]


def lines_of(
    script: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    timeout: float | None = 110.0,
) -> list[str]:
    """Run a script to its end, which must be a good one; give the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environ,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
