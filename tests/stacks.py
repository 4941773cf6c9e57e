"""What every process of a test does, shortly before the test is ended because it takes too long.

pytest-timeout shows the threads of pytest itself; where a worker or a server hangs, that says
nothing. Written to .cache/test-results/stacks-STEP-N.txt, which tests/run.py prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

RESULTS = Path(__file__).parent.parent / ".cache" / "test-results"
#: Share of the time that a test may take, after which it is looked at.
SHARE = 0.8


def write_stacks(file: Path, title: str) -> None:
    """Append the stacks of this process and of all below it, as py-spy sees them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    me = psutil.Process()
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    with file.open("a", encoding="utf-8") as out:
        out.write(f"===== {title}\n")
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                out.write(f"== {process.pid} {process.status()} {process.cmdline()}\n")
            out.flush()
            if program is not None:
                # It fails for what is no Python, and where this user may not look; both are told.
                command = [program, "dump", "--pid", str(process.pid)]
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(command, stdout=out, stderr=out, timeout=10, check=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a test."""
    seconds = float(item.config.getini("timeout") or 0)
    if not seconds or item.get_closest_marker("timeout") is not None:
        return (yield)
    folder = item.path.parent.name
    file = RESULTS / f"stacks-{folder}.txt"
    timer = threading.Timer(SHARE * seconds, write_stacks, (file, item.nodeid))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
