"""What every kind of experiment has."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from tests import models
from tests.stress.sound import Watched
from trt_widget import Build

if TYPE_CHECKING:
    from pathlib import Path


class Experiment:
    """Experiments of one kind, made in one process one after the other.

    Parameters
    ----------
    options
        ``seed``, and what the kind needs besides.
    """

    #: The executors that are used before the baseline is taken.
    executors: ClassVar[tuple[str, ...]] = ("process",)

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.seed = int(options["seed"])
        #: How long builds take, for moments within them.
        self.durations: dict[Any, float] = {}

    def warm_up(self) -> None:
        """Do once what everything does, so that what stays loaded for good is in the baseline."""
        for executor in self.executors:
            build = Build(models.mlp(), executor=executor, exclusive=False)
            watched = Watched(build)
            build.start().wait()
            found = watched.problems()
            assert not found, found

    def took(self, key: Any, seconds: float) -> None:
        """Learn from a build that has succeeded: others use the machine more, or less."""
        self.durations[key] = (self.durations[key] + seconds) / 2

    def run(self, index: int, folder: Path) -> dict[str, Any]:
        """Make one; give its record: ``outcome``, ``problems``, and what the summary needs."""
        raise NotImplementedError

    def clear(self, folder: Path) -> None:
        """Remove what is in a folder, and the folder."""
        shutil.rmtree(folder)

    def close(self) -> None:
        """Give back what belongs to all."""
