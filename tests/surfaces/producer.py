"""Another process that builds: what it writes is followed, and it may listen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Producer"]

ROOT = Path(__file__).parents[2]

#: A process that builds, writes its stream, and listens; it keeps a record of what it saw itself.
PRODUCER = """
import json, sys
from trt_widget import Build
from trt_widget.broadcast import Broadcast
from trt_widget.sinks.control import control_path, listen
from trt_widget.sinks.jsonl import EventWriter
from tests import models

target, source, options, listens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
source = eval(source)
if "slowly" in options:
    options["configure"] = models.slowly(options.pop("slowly"))
kept = options.pop("record", None)
build = Build(source, **options)
broadcast = Broadcast(build, producer=True, listens=listens == "beside")
target = 1 if target == "-" else target
if listens == "beside":
    listener = listen(build, control_path(target), own=True)
elif listens == "stdin":
    listener = listen(build, 0)
writer = EventWriter(broadcast, target)
build.start()
build.wait_ended()
writer.wait(30)
if listens == "beside":
    listener.close()
if kept:
    build.record(kept)
sys.stderr.write(build.status)
"""


class Producer:
    """A process that builds."""

    def __init__(
        self, target: str, source: str, *, listens: str = "beside", **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, target, source, json.dumps(options), listens],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> str:
        """Wait for its end; give the state of its build."""
        assert self.process.stdin is not None
        _, said = self.process.communicate(timeout=60)
        return said.decode()
