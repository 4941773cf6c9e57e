"""What every process of a test does, shortly before the test is ended because it takes too long.

pytest-timeout shows the threads of pytest itself; where a worker or a server hangs, that says
nothing. Written to the file that TRT_WIDGET_TEST_STACKS names, which tests/run.py prints.
"""

from __future__ import annotations

import os
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

#: Share of the time that a test may take, after which it is looked at.
SHARE = 0.8


def write_stacks(file: Path, title: str) -> None:
    """Append the stacks of this process and of all below it, as py-spy sees them."""
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
    file = os.environ.get("TRT_WIDGET_TEST_STACKS")
    marker = item.get_closest_marker("timeout")
    given = marker.args[0] if marker is not None and marker.args else None
    seconds = float(given or item.config.getini("timeout") or 0)
    if not file or not seconds:
        return (yield)
    timer = threading.Timer(SHARE * seconds, write_stacks, (Path(file), item.nodeid))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
