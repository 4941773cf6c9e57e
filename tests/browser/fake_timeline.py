"""Timelines of builds made by hand; the browser tests run this text in a notebook's first cell."""

from __future__ import annotations

import time
from typing import Any

from trt_widget.events import (
    CancelDelivered,
    PhaseFinished,
    PhasesCompleted,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.phases import PhaseTree
from trt_widget.record import Record, make_record
from trt_widget.widget.timeline import Timeline

Start, Step, Finish, Run = PhaseStarted, StepCompleted, PhaseFinished, PhasesCompleted


class FakeBuild:
    """What a timeline reads of a build; it stays open until :meth:`end`."""

    def __init__(self, name: str = "resnet50.onnx") -> None:
        import threading

        self.name = name
        self.tree = PhaseTree()
        self.lock = threading.RLock()
        self.status = "running"
        self.origin = time.perf_counter()
        self.subscribers: list[Any] = []
        #: Whether its drain thread has left.
        self.told = False

    def now(self) -> float:
        """Seconds since the origin, or the end."""
        return self.tree.now if self.tree.outcome else time.perf_counter() - self.origin

    def subscribe(self, callback: Any, *, every_tick: bool = False) -> Any:
        """Keep who is to be told."""
        assert every_tick
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def call_later(self, delay: float, action: Any) -> None:
        """Do nothing: what would be sent again has arrived."""

    def take(self, *events: Any) -> None:
        """Fold events and tell the subscribers."""
        self.tree.apply(events)
        self.tick()

    def tick(self) -> None:
        """Tell the subscribers, as the drain thread does."""
        for callback in list(self.subscribers):
            callback([])

    def end(self, status: str = "succeeded", at: float | None = None) -> None:
        """End the build."""
        self.tree.close(status, at)
        self.status = status
        self.tick()


def record_of(tree: PhaseTree, status: str = "succeeded", name: str = "resnet50.onnx") -> Record:
    """Make a record of a tree that has been closed with this outcome."""
    from trt_widget import Build

    build = Build.attach(backend="tensorrt_rtx", name=name)
    build.tree = tree
    build._status = status
    return make_record(build)


def closed(events: list[Any], status: str = "succeeded", at: float | None = None) -> PhaseTree:
    """Fold events and end."""
    tree = PhaseTree()
    tree.apply(events)
    tree.close(status, at)
    return tree


def resnet(until: float = 9.0) -> list[Any]:
    """Give the phases of a build with a silent one and many that are brief."""
    brief = 300
    starts = tuple(3.2 + 0.004 * k for k in range(brief))
    return [
        Start(0.6, "Building engine", None, 6),
        Start(0.61, "Cloning", "Building engine", 1),
        Step(0.9, "Cloning", 0),
        Finish(1.0, "Cloning"),
        Start(1.02, "Building engine from subgraph", "Building engine", 3),
        Start(1.05, "Optimizing graph", "Building engine from subgraph", 12),
        *(Step(1.1 + 0.15 * k, "Optimizing graph", k) for k in range(12)),
        Finish(3.0, "Optimizing graph"),
        Start(3.1, "Timing tactics", "Building engine from subgraph", brief),
        Run(
            starts[-1] + 0.003,
            "Measuring tactic time",
            "Timing tactics",
            0,
            starts,
            tuple(start + 0.003 for start in starts),
            (0,) * brief,
            (1,) * brief,
        ),
        Finish(4.5, "Timing tactics"),
        Start(4.55, "Determining refit engines", "Building engine from subgraph", 3),
        Step(4.8, "Determining refit engines", 0),
        *(
            [
                Finish(8.6, "Determining refit engines"),
                Finish(8.8, "Building engine from subgraph"),
                Finish(9.0, "Building engine"),
            ]
            if until >= 9.0
            else []
        ),
    ]


def cut_off(status: str) -> PhaseTree:
    """End that build while its last phase is open."""
    events = resnet(7.0)
    if status == "cancelled":
        events += [CancelDelivered(7.0), Finish(7.01, "Determining refit engines")]
    return closed(events, status, 7.4)


def deep(levels: int) -> list[Any]:
    """Give phases that nest; the names repeat."""
    opened = [
        Start(0.01 * k, f"Level {k}", f"Level {k - 1}" if k else None, 2) for k in range(levels)
    ]
    ends = [Finish(5.0 + 0.01 * k, f"Level {levels - 1 - k}") for k in range(levels)]
    return [*opened, *ends]


def beside(threads: int = 3) -> list[Any]:
    """Give hierarchies that run at the same time."""
    events: list[Any] = [Start(0.0, "Building engine", None, threads)]
    for k in range(threads):
        name = f"Engine {k}"
        events += [
            Start(0.1 + 0.1 * k, name, "Building engine", 1, k),
            Start(0.5 + 0.1 * k, "Optimizing graph", name, 1, k),
            Start(0.6 + 0.1 * k, "Fusing", "Optimizing graph", 1, k),
            Finish(1.6 + 0.4 * k, "Fusing", k),
            Finish(2.0 + 0.5 * k, "Optimizing graph", k),
            Finish(2.5 + 0.5 * k, name, k),
        ]
    events.append(Finish(9.0, "Building engine"))
    return sorted(events, key=lambda event: event.time)


def many(count: int = 100_000) -> list[Any]:
    """Give a build of very many phases on four levels."""
    events: list[Any] = [Start(0.0, "Building engine", None, 10)]
    groups, time_s = 200, 0.1
    brief = (count - 1 - 2 * groups) // groups
    for group in range(groups):
        names = ("Timing convolutions", "Timing matmuls", "Timing reductions")
        events += [
            Start(time_s, names[group % 3], "Building engine", brief),
            Start(time_s + 0.001, f"Layer {group}", names[group % 3], brief),
        ]
        starts = tuple(time_s + 0.002 + 0.0004 * k for k in range(brief))
        ends = tuple(start + 0.0001 * (1 + (k * 7 + group) % 4) for k, start in enumerate(starts))
        time_s = ends[-1] + 0.01
        run = Run(
            ends[-1],
            "Measuring tactic time",
            f"Layer {group}",
            0,
            starts,
            ends,
            (0,) * brief,
            (1,) * brief,
        )
        events += [
            run,
            Finish(time_s - 0.005, f"Layer {group}"),
            Finish(time_s, names[group % 3]),
        ]
    events.append(Finish(time_s + 0.1, "Building engine"))
    return events


def shown(events: list[Any], status: str = "succeeded", name: str = "resnet50.onnx") -> Timeline:
    """Give the timeline of a build that has ended."""
    return Timeline(record_of(closed(events, status), status, name))
