"""A process that makes experiments one after the other: :mod:`tests.stress.pool` starts it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.stress import EXPERIMENTS
from tests.stress.leaks import Baseline

#: Experiments after which the process is warm: what it has then is its baseline.
WARM = 3


def main(kind: str, options: dict[str, Any]) -> None:
    """Take indices from standard input, and answer each with one line."""
    replies = os.dup(1)
    os.dup2(2, 1)
    # Asked when nothing comes: where does it hang?
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    folder = Path(options["folder"])
    temporary = Path(tempfile.gettempdir())
    experiment = EXPERIMENTS[kind](options)
    for _ in range(WARM):
        experiment.warm_up()
    baseline = Baseline(temporary)
    try:
        for line in sys.stdin:
            index = int(line)
            started = time.perf_counter()
            place = folder / f"case-{index}"
            place.mkdir()
            try:
                record = experiment.run(index, place)
            except BaseException:  # noqa: BLE001 - whatever it is, the others go on
                record = {"outcome": "BROKEN", "problems": [traceback.format_exc()]}
            record["problems"] += baseline.problems()
            record["index"] = index
            record["wall_s"] = round(time.perf_counter() - started, 3)
            record["growth"] = baseline.growth()
            experiment.clear(place)
            _write(replies, json.dumps(record).encode() + b"\n")
    finally:  # also when nobody reads the answers any more
        experiment.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
