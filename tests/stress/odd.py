"""An experiment with every fault that the runner has to notice; for its own tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.stress.experiment import Experiment

#: By index. What one leaves is there with the next ones too, until the worker ends.
FAULTS = ("none", "raise", "thread", "descriptor", "process", "file", "memory", "hang", "death")


class Odd(Experiment):
    """One fault each."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._kept: list[Any] = []

    def run(self, index: int, folder: Path) -> dict[str, Any]:  # noqa: ARG002 - not needed here
        fault = FAULTS[index]
        if fault == "hang":
            time.sleep(3600)
        elif fault == "death":
            os._exit(3)
        elif fault == "thread":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        elif fault == "descriptor":
            self._kept.append(os.open(os.devnull, os.O_RDONLY))
        elif fault == "process":
            self._kept.append(subprocess.Popen(["sleep", "3600"]))
        elif fault == "file":
            Path(tempfile.gettempdir(), "left").touch()
        elif fault == "memory":
            self._kept.append(b"1" * (1 << 28))
        elif fault == "raise":
            raise ValueError(fault)
        return {"outcome": fault, "problems": []}
