"""What is built over every surface, and what each of them must show of it.

Five builds: one that succeeds, one that fails, one that is cancelled while TensorRT says nothing
for seconds, one whose process dies, and one with 50,000 callbacks a second. All are real builds by
tensorrt_rtx in a child process, and all by the same ``configure=``: a server has only one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import onnx

from tests import models
from tests.bench.builds import FLOOD_ROOT, flood_events
from trt_widget import Build
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["GRACE_S", "SCENARIOS", "Known", "Scenario", "known", "make_models", "pairs_of"]

#: ``configure=`` of all builds, as the command line names it.
CONFIGURE: Final = "tests.models:configure_by_name"
#: Seconds that a cancel waits for TensorRT before the child is ended.
GRACE_S: Final = 0.3
#: The outermost phase of tensorrt_rtx, and the one in which it is silent for seconds.
ROOT: Final = "Building engine"
SILENT: Final = "Determining refit engines"
#: What :func:`tests.models.configure_flood` replays.
FLOOD_CALLBACKS: Final = 100_000


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
    """

    name: str
    outcome: str
    exit_code: int
    roots: frozenset[str] = frozenset({ROOT})
    cancel_at: str | None = None
    ended_by: frozenset[str] = frozenset({"completed"})
    says: tuple[str, ...] = ()
    brief: bool = False

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
FLOOD = Scenario("flood", "succeeded", 0, roots=frozenset({ROOT, FLOOD_ROOT}))
SCENARIOS: Final = (SUCCESS, FAILURE, GAP, CRASH, FLOOD)
#: What shows that a surface still works: not one of the five, and quick.
NEXT = Scenario("next", "succeeded", 0, brief=True)


def make_models(folder: Path) -> None:
    """Write the models of all scenarios."""
    for scenario, made in (
        (SUCCESS, models.mlp(first="slow")),
        (FAILURE, models.unknown_operators("Nope")),
        # Silent for four seconds: what cancels has time, however slow the machine.
        (GAP, models.transformer(48)),
        (CRASH, models.mlp(first="crash")),
        (FLOOD, models.mlp(first="flood")),
        (NEXT, models.mlp()),
    ):
        onnx.save(made, str(folder / scenario.model))


@dataclass
class Known:
    """What is true of the phases, from a tree that no surface has touched.

    Attributes
    ----------
    pairs
        Name of the parent (None for an outermost phase) and of the phase.
    counts
        Instances of each path of the flood.
    """

    pairs: set[tuple[str | None, str]] = field(default_factory=set)
    counts: dict[tuple[str, ...], int] = field(default_factory=dict)


@cache
def known() -> Known:
    """Fold the recorded callbacks and those of a real build."""
    tree = PhaseTree()
    tree.apply(flood_events(FLOOD_CALLBACKS))
    build = Build(models.mlp().SerializeToString(), executor="process").start()
    build.wait()
    counts = {node.path: node.count for node in [*tree.walk(), *build.tree.walk()]}
    assert counts[FLOOD_ROOT,] > 1
    assert max(counts.values()) > FLOOD_CALLBACKS // 10
    return Known(pairs_of(counts), counts)


def pairs_of(paths: Iterable[tuple[str, ...]]) -> set[tuple[str | None, str]]:
    """Give parent and name of all phases of some paths."""
    return {
        (above, name) for path in paths for above, name in zip((None, *path), path, strict=False)
    }
