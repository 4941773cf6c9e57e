"""What is built over every surface, and what each of them must show of it.

Five builds: one that succeeds, one that fails, one that is cancelled while TensorRT says nothing
for seconds, one whose process dies, and one with 50,000 callbacks a second. All are real builds by
tensorrt_rtx in a child process, and all by the same ``configure=``: a server has only one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

import onnx

from tests import models
from tests.bench.builds import FLOOD_ROOT, flood_events
from tests.bench.inside import last_state
from trt_widget import Build
from trt_widget.phases import PATH_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trt_widget.phases import PhaseTree

__all__ = [
    "GRACE_S",
    "SCENARIOS",
    "Scenario",
    "counts_of",
    "make_models",
    "pairs_of",
    "reached_by",
]

#: ``configure=`` of all builds, as the command line names it.
CONFIGURE: Final = "tests.models:configure_by_name"
#: Seconds that a cancel waits for TensorRT before the child is ended.
GRACE_S: Final = 0.3
#: The outermost phase of tensorrt_rtx, and the one in which it is silent for seconds.
ROOT: Final = "Building engine"
SILENT: Final = "Determining refit engines"


@dataclass(frozen=True)
class Scenario:
    """One build.

    Attributes
    ----------
    name
        Also that of the model: ``name.onnx``.
    outcome, exit_code
        The word for its end, and what a command that shows it exits with.
    roots
        The outermost phases.
    cancel_at
        The phase in which the user cancels, once it was seen.
    ended_by
        As in :class:`~trt_widget.BuildResult`; any of them.
    says
        What must be said about its end, beside the outcome.
    brief
        Whether it is over before all surfaces have shown a phase.
    callbacks
        How many recorded callbacks are replayed, at 50,000 a second.
    """

    name: str
    outcome: str
    exit_code: int
    roots: frozenset[str] = frozenset({ROOT})
    cancel_at: str | None = None
    ended_by: frozenset[str] = frozenset({"completed"})
    says: tuple[str, ...] = ()
    brief: bool = False
    callbacks: int = 0

    @property
    def model(self) -> str:
        """Name of the model's file."""
        return f"{self.name}.onnx"


SUCCESS = Scenario("success", "succeeded", 0)
FAILURE = Scenario(
    *("failure", "failed", 1),
    roots=frozenset(),
    ended_by=frozenset({"error"}),
    says=(
        "TensorRT does not know the operator Nope",
        "Export the model with operators that TensorRT has.",
    ),
)
GAP = Scenario(
    *("gap", "cancelled", 130),
    cancel_at=SILENT,
    # Asked to leave, or made to: nobody waits for a callback that does not come.
    ended_by=frozenset({"terminated", "killed"}),
)
CRASH = Scenario(
    *("crash", "failed", 1),
    ended_by=frozenset({"crashed"}),
    says=("The process that built crash.onnx crashed", "SIGSEGV"),
)
FLOOD = Scenario("flood", "succeeded", 0, roots=frozenset({ROOT, FLOOD_ROOT}), callbacks=50_000)
SCENARIOS: Final = (SUCCESS, FAILURE, GAP, CRASH, FLOOD)
#: For a reader that does not read for two seconds.
LONG_FLOOD = replace(FLOOD, name="long-flood", callbacks=100_000)
#: What shows that a surface still works: not one of the five, and quick.
NEXT = Scenario("next", "succeeded", 0, brief=True)


def make_models(folder: Path) -> None:
    """Write the models of all scenarios."""
    for scenario, made in (
        (SUCCESS, models.mlp(first="slow")),
        (FAILURE, models.unknown_operators("Nope")),
        # Silent for ten seconds, so that also who looks once a second cancels in time.
        (GAP, models.transformer(72)),
        (CRASH, models.mlp(first="crash")),
        (FLOOD, models.mlp(first="flood")),
        (LONG_FLOOD, models.mlp(first="long flood")),
        (NEXT, models.mlp()),
    ):
        onnx.save(made, str(folder / scenario.model))


@cache
def _plain_tree() -> PhaseTree:
    """Build the small network in this process, and give its tree."""
    build = Build(models.mlp().SerializeToString(), executor="thread").start()
    build.wait()
    return build.tree


def reached_by(scenario: Scenario) -> set[tuple[str, ...]]:
    """Give the paths that a build reaches, whose callbacks are those of every RTX build."""
    nodes = list(_plain_tree().walk())
    if scenario.cancel_at is None:
        return {node.path for node in nodes}
    last = next(node.started for node in nodes if node.name == scenario.cancel_at)
    return {node.path for node in nodes if node.started <= last}


@cache
def counts_of(scenario: Scenario) -> dict[tuple[str, ...], int]:
    """Count the instances of each path: without code of ours, and of a build in this process."""
    flood = last_state(flood_events(scenario.callbacks)) if scenario.callbacks else {}
    counts = {tuple(path.split(PATH_SEPARATOR)): count for path, (count, *_) in flood.items()}
    assert sum(counts.values()) >= scenario.callbacks / 10
    return counts | {node.path: node.count for node in _plain_tree().walk()}


def pairs_of(paths: Iterable[tuple[str, ...]]) -> set[tuple[str | None, str]]:
    """Give parent and name of all phases of some paths."""
    return {
        (above, name) for path in paths for above, name in zip((None, *path), path, strict=False)
    }
