"""PhaseTree: a pure fold of a build's events into the state of its phases.

No clock, no input or output, no thread, no widget: time comes with the events. The tree keeps

- one :class:`PhaseNode` for every *path* (the names from the root down), which aggregates all
  instances of that path, and
- one *span* for every instance, in compact columns and up to a documented bound.

TensorRT reuses a name as soon as the phase is finished (one MNIST build of TensorRT 10.16 opens
"Measuring tactic time" 1,107 times), lets the same name sit under two parents, skips steps, and
lets a parent step while its child is open. So instances are matched by name, thread and recency,
and whatever cannot be matched is counted in :attr:`PhaseTree.anomalies` and otherwise ignored.

Self time is attributed by sweeping: between two events of a root, the elapsed time belongs to the
innermost open phases of that root, in equal parts where several are open at once. Hence self times
are never negative and add up to the roots' durations, whatever the order of the events.

A *silence* is a time of more than :data:`SILENT_S` between two callbacks while phases were open. It
is measured, not inferred, and belongs to every phase that was innermost then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from heapq import heappush, heappushpop, nlargest
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any

from trt_widget.events import (
    PHASE_STATES,
    CancelDelivered,
    Event,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    Snapshot,
    StepCompleted,
    expand,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "MAX_PATHS",
    "MAX_SILENCES",
    "MAX_SPANS",
    "OTHER",
    "PATH_SEPARATOR",
    "SILENT_S",
    "PhaseNode",
    "PhaseTree",
]

#: Spans kept one by one (about 45 bytes each). Past it only the per-path aggregates grow.
MAX_SPANS = 100_000
#: Paths kept apart. Past it a new path is counted under :data:`OTHER` of its parent.
MAX_PATHS = 2_000
#: Seconds between two callbacks after which the phases that are open count as silent.
SILENT_S = 1.0
#: Silences that are kept: the longest.
MAX_SILENCES = 1_000
#: Name of the node that stands for the paths past :data:`MAX_PATHS`.
OTHER = "(other phases)"
#: Joins names to a path for people. Not a slash: layer names, which some versions of TensorRT put
#: into phase names, are full of them.
PATH_SEPARATOR = " > "

#: States of a phase, as the stream numbers them.
STATUSES = PHASE_STATES
#: Below it a number of steps needs no fitting into 64 bits.
_LARGE = 2**63
_RUNNING, _DONE, _CANCELLED, _FAILED, _ENDED = range(5)
_OUTCOMES = {
    "succeeded": _DONE,
    "cancelled": _CANCELLED,
    "failed": _FAILED,
    "ended": _ENDED,
}


class PhaseNode:
    """All instances of one path.

    Attributes
    ----------
    name, path, depth, parent, children
        Where the node stands; ``path`` is a tuple of names and ``children`` is ordered by first
        start.
    count
        Number of instances so far, open ones included.
    open_count
        Number of instances that are open now.
    total_s, self_s, max_s
        Seconds, of the finished instances (``self_s``: up to the last event). The methods of
        :class:`PhaseTree` add the open ones.
    steps, num_steps
        Sums over all instances (announced numbers below one count as zero).
    step, step_total
        Completed and announced steps of the latest instance; ``step_total`` below one means
        unknown.
    started, ended
        Start of the latest instance; end of the latest finished instance or ``None``.
    status
        One of :data:`STATUSES`; ``last_status`` is the one of the latest finished instance, as its
        index.
    revision
        Grows with every change; a view compares it with the one it has drawn.
    """

    __slots__ = (
        "children",
        "count",
        "depth",
        "ended",
        "index",
        "instances",
        "last_event",
        "last_status",
        "max_s",
        "name",
        "num_steps",
        "parent",
        "path",
        "revision",
        "self_s",
        "started",
        "step",
        "step_total",
        "steps",
        "total_s",
    )

    def __init__(self, index: int, name: str, parent: PhaseNode | None) -> None:
        self.index = index
        self.name = name
        self.parent = parent
        self.path: tuple[str, ...] = (*parent.path, name) if parent else (name,)
        self.depth: int = parent.depth + 1 if parent else 0
        self.children: dict[str, PhaseNode] = {}
        self.instances: list[_Open] = []
        self.count = 0
        self.total_s = 0.0
        self.self_s = 0.0
        self.max_s = 0.0
        self.steps = 0
        self.num_steps = 0
        self.step = 0
        self.step_total = 0
        self.started = 0.0
        self.last_event = 0.0
        self.ended: float | None = None
        self.revision = 0
        self.last_status = _RUNNING

    @property
    def open_count(self) -> int:
        """Number of instances that are open now."""
        return len(self.instances)

    @property
    def status(self) -> str:
        """State of the path: running while an instance is open, else that of the latest one."""
        return STATUSES[_RUNNING if self.instances else self.last_status]

    def walk(self) -> Iterator[PhaseNode]:
        """Yield this node and everything below it in tree order."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def __repr__(self) -> str:
        return f"PhaseNode({PATH_SEPARATOR.join(self.path)!r}, count={self.count}, {self.status})"


class _Open:
    """One open instance."""

    __slots__ = (
        "children",
        "name",
        "node",
        "num_steps",
        "order",
        "parent",
        "root",
        "self_s",
        "span",
        "start",
        "step",
        "thread",
    )

    def __init__(
        self, node: PhaseNode, parent: _Open | None, start: float, event: PhaseStarted
    ) -> None:
        self.node = node
        self.name = event.phase
        self.parent = parent
        self.start = start
        self.num_steps = event.num_steps
        self.thread = event.thread
        self.step = 0
        self.self_s = 0.0
        self.children: dict[_Open, None] = {}
        self.root: _Root = parent.root if parent else _Root(start)
        self.span = -1
        #: Grows from one that is started to the next.
        self.order = 0


class _Root:
    """What the sweep needs to know of one root instance: its clock and its innermost phases."""

    __slots__ = ("clock", "leaves")

    def __init__(self, start: float) -> None:
        self.clock = start
        self.leaves: dict[_Open, None] = {}


class PhaseTree:
    """Fold of events; see the module's text.

    Parameters
    ----------
    max_spans
        Instances kept one by one; see :data:`MAX_SPANS`.
    max_paths
        Paths kept apart; see :data:`MAX_PATHS`.

    Attributes
    ----------
    now
        Time of the latest event, in seconds since the origin.
    last_callback
        Time of the latest event that came from a callback of TensorRT.
    revision
        Grows with every change.
    spans_dropped
        Instances that are counted in their path only.
    anomalies
        How often something came that TensorRT's contract excludes, by kind.
    cancel_delivered
        Time at which ``step_complete`` first answered False, or ``None``.
    outcome
        How the build ended, once :meth:`close` was called.
    """

    def __init__(self, max_spans: int = MAX_SPANS, max_paths: int = MAX_PATHS) -> None:
        self.roots: dict[str, PhaseNode] = {}
        self.now = 0.0
        self.last_callback = 0.0
        self.revision = 0
        self.spans_dropped = 0
        self.anomalies: dict[str, int] = {}
        self.cancel_delivered: float | None = None
        self.outcome: str | None = None
        self._max_spans = max_spans
        self._max_paths = max_paths
        self._nodes: list[PhaseNode] = []
        self._open: dict[str, list[_Open]] = {}
        self._unwound: list[tuple[PhaseNode, int]] = []
        # Time of the latest start or finish. A run comes after the steps, messages and cancel that
        # fell between its phases; so these move ``now``, and never this.
        self._clock = 0.0
        # Times of the other callbacks (steps) since then, as far as they matter for silences; up to
        # ``_covered`` there were callbacks that were only counted.
        self._heard: list[float] = []
        self._covered = 0.0
        self._silences: list[tuple[float, float, float, int]] = []
        self._span_node = array("l")
        self._span_parent = array("l")
        self._span_start = array("d")
        self._span_end = array("d")
        self._span_self = array("d")
        self._span_steps = array("q")
        self._span_num_steps = array("q")
        self._span_status = array("b")

    # ------------------------------------------------------------------ folding

    def apply(self, events: Iterable[Event]) -> None:
        """Take events in, in the order in which they happened.

        Time never runs backwards: a start or finish that claims to be older than the one before
        counts as simultaneous. Events that say nothing about phases only move :attr:`now`.
        """
        for event in events:
            if event.time > self.now:  # noqa: PLR1730 - a call of max() for every event
                self.now = event.time
            if isinstance(event, StepCompleted):
                self._step(event)
            elif isinstance(event, PhaseStarted):
                self._start(event)
            elif isinstance(event, PhaseFinished):
                self._finish(event)
            elif isinstance(event, PhasesCompleted):
                self._complete(event)
            elif isinstance(event, PhasesCollapsed):
                self._collapse(event)
            elif isinstance(event, CancelDelivered):
                self._hear(event.time)
                self._deliver()
            elif isinstance(event, Snapshot):
                self._restore(event)
                continue
            else:
                continue
            self.last_callback = self.now

    def close(self, outcome: str, time: float | None = None) -> None:
        """End the build: phases that are open, or were left while it unwound, get its outcome.

        Parameters
        ----------
        outcome
            ``"succeeded"``, ``"cancelled"``, ``"failed"``, or ``"ended"`` where it is not known.
        time
            Seconds since the origin; by default the time of the latest event.

        Notes
        -----
        ``phase_finish`` comes for every open phase also when a build is cancelled or fails, so it
        says nothing about success. After a cancel everything that ended after the first False was
        unwound; after a failure it is the last unbroken run of ``phase_finish``.
        """
        if time is not None:
            self.now = max(self.now, time)
        self._advance(self.now)
        status = _OUTCOMES[outcome]
        unwound = list(self._unwound)
        still_open = [entry for entries in self._open.values() for entry in entries]
        still_open.sort(key=lambda entry: (entry.node.depth, entry.start, entry.order))
        for innermost in reversed(still_open):
            self._end(innermost, status)
            unwound.append((innermost.node, innermost.span))
        self.outcome = outcome
        for node, span in unwound:
            node.last_status = status
            if span >= 0:
                self._span_status[span] = status
            self._touch(node)
        self._unwound.clear()
        self.revision += 1

    def _start(self, event: PhaseStarted) -> None:
        self._advance(event.time)
        if self.cancel_delivered is None:
            self._unwound.clear()
        parent: _Open | None = None
        if event.parent is not None:
            parent = self._match(event.parent, event.thread)
            if parent is None:
                self._odd("phase below a parent that is not open")
        name, num_steps, now = event.phase, event.num_steps, self._clock
        node = parent.node.children.get(name) if parent is not None else self.roots.get(name)
        if node is None:
            node = self._child(parent.node if parent is not None else None, name)
        entry = _Open(node, parent, now, event)
        entry.order = self.revision  # which every start moves
        root = entry.root
        self._sweep(root)
        if parent is not None:
            parent.children[entry] = None
            root.leaves.pop(parent, None)
        root.leaves[entry] = None
        node.instances.append(entry)
        node.count += 1
        if num_steps > 0:
            node.num_steps += num_steps
        node.started = now
        node.step = 0
        node.step_total = num_steps
        same_name = self._open.get(name)
        if same_name is None:
            self._open[name] = [entry]
        else:
            same_name.append(entry)
        span = len(self._span_node)
        if span < self._max_spans:
            entry.span = span
            self._span_node.append(node.index)
            self._span_parent.append(parent.span if parent is not None else -1)
            self._span_start.append(now)
            self._span_end.append(-1.0)
            self._span_self.append(0.0)
            self._span_steps.append(0)
            self._span_num_steps.append(num_steps if 0 <= num_steps < _LARGE else _int64(num_steps))
            self._span_status.append(_RUNNING)
        else:
            self.spans_dropped += 1
        self._touch(node)

    def _step(self, event: StepCompleted) -> None:
        self._hear(event.time)
        entry = self._match(event.phase, event.thread)
        if entry is None:
            self._odd("step of a phase that is not open")
            return
        if self.cancel_delivered is None:
            self._unwound.clear()
        steps = event.step + 1
        if steps <= entry.step:
            self._odd("step that does not advance")
            return
        node = entry.node
        node.steps += steps - entry.step
        entry.step = steps
        if node.instances[-1] is entry:
            node.step = steps
        self._touch(node)

    def _finish(self, event: PhaseFinished) -> None:
        self._advance(event.time)
        entry = self._match(event.phase, event.thread)
        if entry is None:
            self._odd("finish of a phase that is not open")
            return
        if entry.children:
            for child in self._below(entry):
                self._odd("phase finished before its child")
                self._end(child, _DONE)
                self._unwound.append((child.node, child.span))
        self._end(entry, _DONE)
        self._unwound.append((entry.node, entry.span))

    def _complete(self, event: PhasesCompleted) -> None:
        """Fold a run: as a whole where that is the same as folding its single events.

        It is where its times never run backwards, its numbers fit into the columns, and its parent,
        if it has one, is the only innermost phase of its root: then all the time goes to the parent
        and to the phases of the run.
        """
        count, starts, ends = len(event.starts), event.starts, event.ends
        if not count:
            return
        durations = array("d", map(sub, ends, starts))
        gaps = array("d", map(sub, starts[1:], ends))
        parent: _Open | None = None
        whole = starts[0] >= self._clock and min(durations) >= 0.0 and min(gaps, default=0.0) >= 0.0
        if whole and event.parent is not None:
            parent = self._match(event.parent, event.thread)
            whole = parent is not None and list(parent.root.leaves) == [parent]
        if not whole or not self._complete_whole(event, parent, durations):
            self._complete_singly(event)
            return
        self._clock = ends[-1]
        if parent is not None:
            elapsed = (starts[0] - parent.root.clock) + sum(gaps)
            parent.root.clock = self._clock
            parent.self_s += elapsed
            parent.node.self_s += elapsed

    def _complete_whole(
        self, event: PhasesCompleted, parent: _Open | None, durations: array[float]
    ) -> bool:
        """Add a run to its path and to the spans; False if its numbers do not fit."""
        try:
            steps = array("q", [last + 1 if last >= 0 else 0 for last in event.last_steps])
            num_steps = array("q", event.num_steps)
        except OverflowError:
            return False
        above = parent.node if parent is not None else None
        node = (above.children if above is not None else self.roots).get(event.phase)
        if node is None:
            node = self._child(above, event.phase)
        count, lasted = len(steps), sum(durations)
        node.count += count
        node.total_s += lasted
        node.self_s += lasted
        node.max_s = max(node.max_s, *durations)
        node.steps += sum(steps)
        node.num_steps += sum([announced for announced in num_steps if announced > 0])
        node.step = steps[-1]
        node.step_total = num_steps[-1]
        node.started = event.starts[-1]
        node.ended = event.ends[-1]
        node.last_status = _DONE
        first = len(self._span_node)
        kept = min(count, max(0, self._max_spans - first))
        self.spans_dropped += count - kept
        self._span_node.extend(array("l", (node.index,)) * kept)
        self._span_parent.extend(array("l", (parent.span if parent is not None else -1,)) * kept)
        self._span_start.extend(event.starts[:kept])
        self._span_end.extend(event.ends[:kept])
        self._span_self.extend(durations[:kept])
        self._span_steps.extend(steps[:kept])
        self._span_num_steps.extend(num_steps[:kept])
        self._span_status.extend(array("b", (_DONE,)) * kept)
        if self.cancel_delivered is None:
            self._unwound = [(node, first + count - 1 if kept == count else -1)]
        else:
            for index, end in enumerate(event.ends):
                if end > self.cancel_delivered:
                    self._unwound.append((node, first + index if index < kept else -1))
        if event.ends[-1] - self._clock > SILENT_S:
            self._quiet_run(event, parent, node)
        # A start, a finish, and a step where there was one.
        self.revision += 2 * count + count - steps.count(0) - 1
        self.now = max(self.now, event.ends[-1])
        self._touch(node)
        return True

    def _complete_singly(self, event: PhasesCompleted) -> None:
        for single in expand(event):
            self.now = max(self.now, single.time)
            if isinstance(single, PhaseStarted):
                self._start(single)
            elif isinstance(single, StepCompleted):
                self._step(single)
            elif isinstance(single, PhaseFinished):
                before = len(self._unwound)
                self._finish(single)
                if self.cancel_delivered is not None and single.time <= self.cancel_delivered:
                    del self._unwound[before:]  # it had ended when the cancel was delivered

    def _deliver(self) -> None:
        if self.cancel_delivered is None:
            self.cancel_delivered = self.now
            self._unwound.clear()

    def _collapse(self, event: PhasesCollapsed) -> None:
        node: PhaseNode | None = None
        for name in event.path:
            node = self._child(node, name)
        if node is None or event.count < 1:
            self._odd("empty collapse")
            return
        # When these phases' callbacks came is not known: some time after the latest that is.
        self._quiet(max([self._clock, *(time for time in self._heard if time <= event.time)]))
        self._covered = max(self._covered, event.time)
        node.count += event.count
        node.total_s += event.total_s
        node.self_s += event.total_s
        node.max_s = max(node.max_s, event.max_s)
        node.steps += event.steps
        node.num_steps += event.num_steps
        node.ended = self.now
        if not node.instances:
            node.last_status = _DONE
        above = node.parent
        if above is not None:
            # While these phases were open unseen, the sweep gave their time to the parent.
            if above.instances:
                above.instances[-1].self_s -= event.total_s
            above.self_s -= event.total_s
            self._touch(above)
        self.spans_dropped += event.count
        self._touch(node)

    def _end(self, entry: _Open, status: int) -> None:
        root = entry.root
        self._sweep(root)
        node = entry.node
        root.leaves.pop(entry, None)
        parent = entry.parent
        if parent is not None:
            parent.children.pop(entry, None)
            if not parent.children and parent in parent.node.instances:
                root.leaves[parent] = None
        if node.instances[-1] is entry:  # where many are open, the latest mostly ends first
            node.instances.pop()
        else:
            node.instances.remove(entry)
        same_name = self._open[entry.name]
        same_name.remove(entry)
        if not same_name:
            del self._open[entry.name]
        now, span, step = self._clock, entry.span, entry.step
        duration = now - entry.start
        node.total_s += duration
        node.max_s = max(node.max_s, duration)
        node.ended = now
        node.last_status = status
        if span >= 0:
            self._span_end[span] = now
            self._span_self[span] = entry.self_s
            self._span_steps[span] = step if 0 <= step < _LARGE else _int64(step)
            self._span_status[span] = status
        self._touch(node)

    # ------------------------------------------------------------------ silences

    def _advance(self, time: float) -> None:
        """Move the clock to a start or finish."""
        elapsed = time - self._clock
        if elapsed > 0.0:
            if elapsed > SILENT_S:
                self._quiet(time)
            self._clock = time

    def _hear(self, time: float) -> None:
        """Note a callback that is neither start nor finish.

        The clock decides later what was silent: between two of its moments the same phases are
        open, and a run that comes after a step can still tell of starts before it.
        """
        heard = self._heard
        if len(heard) > 1 and heard[-1] <= time and time - heard[-2] <= SILENT_S:
            heard[-1] = time  # the one between its neighbours can end no silence
        elif time > self._clock:
            del heard[: bisect_right(heard, self._clock)]
            insort(heard, time)

    def _gaps(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Yield the silences between two moments of the clock."""
        start = max(start, self._covered)
        for time in (*self._heard, end):
            if start < time <= end:
                if time - start > SILENT_S:
                    yield start, time
                start = time

    def _innermost(self, without: _Open | None = None) -> dict[PhaseNode, None]:
        """Give the paths of the innermost open phases."""
        roots = dict.fromkeys(e.root for entries in self._open.values() for e in entries)
        leaves = (leaf for root in roots for leaf in root.leaves)
        return dict.fromkeys(leaf.node for leaf in leaves if leaf is not without)

    def _quiet(self, until: float) -> None:
        """Keep the silences between the clock and ``until``."""
        for start, end in self._gaps(self._clock, until):
            self._keep(start, end, self._innermost())

    def _quiet_run(self, event: PhasesCompleted, parent: _Open | None, node: PhaseNode) -> None:
        """Keep the silences of a run that is added as a whole."""
        between = self._innermost()
        inside = {**self._innermost(without=parent), node: None}
        clock = self._clock
        for start, end in zip(event.starts, event.ends, strict=True):
            for since, until, nodes in ((clock, start, between), (start, end, inside)):
                if until - since > SILENT_S:
                    for silence in self._gaps(since, until):
                        self._keep(*silence, nodes)
            clock = end

    def _keep(self, start: float, end: float, nodes: Iterable[PhaseNode]) -> None:
        for node in nodes:
            entry = (end - start, start, end, node.index)
            if len(self._silences) < MAX_SILENCES:
                heappush(self._silences, entry)
            else:
                heappushpop(self._silences, entry)

    # ------------------------------------------------------------------ finding the instance

    def _match(self, name: str, thread: int) -> _Open | None:
        """Give the open instance that is meant: the latest of this thread, else the latest."""
        entries = self._open.get(name)
        if not entries:
            return None
        if entries[-1].thread == thread:
            return entries[-1]
        for entry in reversed(entries):
            if entry.thread == thread:
                return entry
        return entries[-1]

    def _child(self, parent: PhaseNode | None, name: str) -> PhaseNode:
        siblings = parent.children if parent else self.roots
        node = siblings.get(name)
        if node is None and len(self._nodes) >= self._max_paths:
            name = OTHER
            node = siblings.get(name)
            if node is None and parent is not None and parent.name == OTHER:
                return parent
        if node is None:
            node = PhaseNode(len(self._nodes), name, parent)
            self._nodes.append(node)
            siblings[name] = node
        return node

    @staticmethod
    def _below(entry: _Open) -> list[_Open]:
        """Everything that is open below ``entry``, innermost first."""
        found: list[_Open] = []
        stack = list(entry.children)
        while stack:
            child = stack.pop()
            found.append(child)
            stack.extend(child.children)
        return found[::-1]

    def _sweep(self, root: _Root) -> None:
        """Give the time since the last event of ``root`` to its innermost open phases."""
        elapsed = self._clock - root.clock
        root.clock = self._clock
        if elapsed <= 0.0:
            return
        if len(root.leaves) == 1:
            (leaf,) = root.leaves
            leaf.self_s += elapsed
            leaf.node.self_s += elapsed
        elif root.leaves:
            part = elapsed / len(root.leaves)
            for leaf in root.leaves:
                leaf.self_s += part
                leaf.node.self_s += part

    def _touch(self, node: PhaseNode) -> None:
        self.revision = node.revision = self.revision + 1
        node.last_event = self.now

    def _odd(self, kind: str) -> None:
        self.anomalies[kind] = self.anomalies.get(kind, 0) + 1

    # ------------------------------------------------------------------ as one event

    def snapshot(self, *, spans: bool = True) -> Snapshot:
        """Give the whole state as one event, for readers that have missed what came before.

        Parameters
        ----------
        spans
            Whether instances are told one by one. Without them they are counted among
            ``spans_dropped``, and everything else is the same.
        """
        nodes = self._nodes
        entries = sorted(
            (entry for entries in self._open.values() for entry in entries),
            key=lambda entry: entry.order,
        )
        rows = {entry: row for row, entry in enumerate(entries)}
        columns: list[array[Any]] = [
            self._span_node,
            self._span_parent,
            self._span_start,
            self._span_end,
            self._span_self,
            self._span_steps,
            self._span_num_steps,
            self._span_status,
        ]
        names = ("path", "parent", "start_s", "end_s", "self_s", "steps", "num_steps", "status")
        kept = len(self._span_node)
        return Snapshot(
            self.now,
            self._clock,
            self.last_callback,
            {
                "name": [node.name for node in nodes],
                "parent": [node.parent.index if node.parent else -1 for node in nodes],
                "count": [node.count for node in nodes],
                "total_s": [node.total_s for node in nodes],
                "self_s": [node.self_s for node in nodes],
                "max_s": [node.max_s for node in nodes],
                "steps": [_int64(node.steps) for node in nodes],
                "num_steps": [_int64(node.num_steps) for node in nodes],
                "step": [_int64(node.step) for node in nodes],
                "step_total": [_int64(node.step_total) for node in nodes],
                "started": [node.started for node in nodes],
                "last_event": [node.last_event for node in nodes],
                "ended": [-1.0 if node.ended is None else node.ended for node in nodes],
                "status": [STATUSES[node.last_status] for node in nodes],
            },
            {
                "path": [entry.node.index for entry in entries],
                "name": [entry.name for entry in entries],
                "parent": [rows[entry.parent] if entry.parent else -1 for entry in entries],
                "start_s": [entry.start for entry in entries],
                "step": [_int64(entry.step) for entry in entries],
                "num_steps": [_int64(entry.num_steps) for entry in entries],
                "thread": [_int64(entry.thread) for entry in entries],
                "self_s": [entry.self_s for entry in entries],
                "clock": [entry.root.clock for entry in entries],
                "span": [entry.span if spans else -1 for entry in entries],
            },
            {
                name: column.tolist() if spans else []
                for name, column in zip(names, columns, strict=True)
            },
            {
                "path": [index for *_, index in self._silences],
                "start_s": [start for _, start, *_ in self._silences],
                "end_s": [end for *_, end, _ in self._silences],
            },
            {
                "path": [node.index for node, _ in self._unwound],
                "span": [span if spans else -1 for _, span in self._unwound],
            },
            tuple(self._heard),
            self._covered,
            self.cancel_delivered,
            self.spans_dropped + (0 if spans else kept),
            dict(self.anomalies),
        )

    def _restore(self, event: Snapshot) -> None:
        """Become what a snapshot says; it was checked when it was read."""
        self.roots = {}
        self._nodes = []
        self._open = {}
        self.now, self._clock = event.time, event.clock
        self.last_callback = event.last_callback
        self.cancel_delivered = event.cancel_delivered
        self.spans_dropped = event.spans_dropped
        self.anomalies = dict(event.anomalies)
        self._heard, self._covered = list(event.heard), event.covered
        paths = event.paths
        for index, name in enumerate(paths["name"]):
            above = paths["parent"][index]
            parent = self._nodes[above] if above >= 0 else None
            node = PhaseNode(index, name, parent)
            (parent.children if parent else self.roots)[name] = node
            self._nodes.append(node)
            for column in _NODE_COLUMNS:
                setattr(node, column, paths[column][index])
            ended = paths["ended"][index]
            node.ended = ended if ended >= 0.0 else None
            node.last_status = STATUSES.index(paths["status"][index])
            node.revision = self.revision = self.revision + 1
        spans = event.spans
        self._span_node = array("l", spans["path"])
        self._span_parent = array("l", spans["parent"])
        self._span_start = array("d", spans["start_s"])
        self._span_end = array("d", spans["end_s"])
        self._span_self = array("d", spans["self_s"])
        self._span_steps = array("q", spans["steps"])
        self._span_num_steps = array("q", spans["num_steps"])
        self._span_status = array("b", spans["status"])
        self._restore_open(event.open)
        unwound = zip(event.unwound["path"], event.unwound["span"], strict=True)
        self._unwound = [(self._nodes[path], span) for path, span in unwound]
        silences = event.silences
        self._silences = []
        for path, start, end in zip(
            silences["path"], silences["start_s"], silences["end_s"], strict=True
        ):
            self._keep(start, end, (self._nodes[path],))
        self.revision += 1

    def _restore_open(self, opened: dict[str, Any]) -> None:
        entries: list[_Open] = []
        for row, path in enumerate(opened["path"]):
            node, above = self._nodes[path], opened["parent"][row]
            parent = entries[above] if above >= 0 else None
            start = opened["start_s"][row]
            entry = _Open(
                node,
                parent,
                start,
                PhaseStarted(
                    start,
                    opened["name"][row],
                    None,
                    opened["num_steps"][row],
                    opened["thread"][row],
                ),
            )
            entry.order = row - len(opened["path"])
            entry.step = opened["step"][row]
            entry.self_s = opened["self_s"][row]
            entry.span = opened["span"][row]
            entry.root.clock = opened["clock"][row]
            entry.root.leaves[entry] = None
            if parent is not None:
                parent.children[entry] = None
                entry.root.leaves.pop(parent, None)
            node.instances.append(entry)
            self._open.setdefault(entry.name, []).append(entry)
            entries.append(entry)

    # ------------------------------------------------------------------ reading

    def walk(self) -> Iterator[PhaseNode]:
        """Yield every path in tree order: depth first, siblings by their first start."""
        for root in list(self.roots.values()):
            yield from root.walk()

    @property
    def paths(self) -> int:
        """Number of paths that are kept apart."""
        return len(self._nodes)

    @property
    def open_phases(self) -> list[tuple[str, ...]]:
        """Paths of the open instances, outermost first."""
        entries = [entry for entries in self._open.values() for entry in entries]
        entries.sort(key=lambda entry: (entry.node.depth, entry.start, entry.order))
        return [entry.node.path for entry in entries]

    def _at(self, now: float | None) -> float:
        return self.now if now is None else max(self.now, now)

    def _pending_self(self, now: float) -> dict[_Open, float]:
        """Self time of the open innermost phases between the last sweep and ``now``."""
        pending: dict[_Open, float] = {}
        roots = dict.fromkeys(e.root for entries in self._open.values() for e in entries)
        for root in roots:
            for leaf in root.leaves:
                pending[leaf] = max(0.0, now - root.clock) / len(root.leaves)
        return pending

    def total_s(self, node: PhaseNode, now: float | None = None) -> float:
        """Sum of the durations of a path's instances in seconds, the open ones up to ``now``."""
        now = self._at(now)
        return node.total_s + sum(now - entry.start for entry in node.instances)

    def timing_columns(self, now: float | None = None) -> dict[str, list[Any]]:
        """Columns of the per-path table, a row per path in tree order.

        Parameters
        ----------
        now
            Seconds since the origin up to which open phases count; by default the latest event.

        Returns
        -------
        dict
            ``phase`` (name), ``path`` (names joined by :data:`PATH_SEPARATOR`), ``depth`` (0 for a
            root), ``count``, ``total_s``, ``self_s``, ``mean_s``, ``max_s`` (seconds), ``share``
            (of the roots' duration, 0 to 1), ``steps``, ``num_steps`` (sums over the instances),
            ``status``.
        """
        now = self._at(now)
        nodes = list(self.walk())
        totals = [self.total_s(node, now) for node in nodes]
        selfs = {node.index: node.self_s for node in nodes}
        for leaf, extra in self._pending_self(now).items():
            selfs[leaf.node.index] += extra
        whole = sum(total for node, total in zip(nodes, totals, strict=True) if node.parent is None)
        return {
            "phase": [node.name for node in nodes],
            "path": [PATH_SEPARATOR.join(node.path) for node in nodes],
            "depth": [node.depth for node in nodes],
            "count": [node.count for node in nodes],
            "total_s": totals,
            "self_s": [max(0.0, selfs[node.index]) for node in nodes],
            "mean_s": [
                total / node.count if node.count else 0.0
                for node, total in zip(nodes, totals, strict=True)
            ],
            "max_s": [
                max([node.max_s, *(now - entry.start for entry in node.instances)])
                for node in nodes
            ],
            "share": [total / whole if whole > 0 else 0.0 for total in totals],
            "steps": [node.steps for node in nodes],
            "num_steps": [node.num_steps for node in nodes],
            "status": [node.status for node in nodes],
        }

    def span_columns(self, now: float | None = None) -> dict[str, list[Any]]:
        """Columns of the per-instance table, a row per kept instance in start order.

        Parameters
        ----------
        now
            Seconds since the origin up to which open phases count; by default the latest event.

        Returns
        -------
        dict
            ``phase``, ``path``, ``depth``, ``parent`` (row number of the parent's instance, -1 for
            a root), ``start_s``, ``end_s`` (NaN while open), ``duration_s``, ``self_s`` (seconds),
            ``steps``, ``num_steps`` (as announced), ``status``.
        """
        now = self._at(now)
        ends = list(self._span_end)
        selfs = list(self._span_self)
        steps = list(self._span_steps)
        pending = self._pending_self(now)
        for entries in self._open.values():
            for entry in entries:
                if entry.span >= 0:
                    selfs[entry.span] = entry.self_s + pending.get(entry, 0.0)
                    steps[entry.span] = entry.step
        nodes = [self._nodes[index] for index in self._span_node]
        paths = {node.index: PATH_SEPARATOR.join(node.path) for node in self._nodes}
        starts = list(self._span_start)
        return {
            "phase": [node.name for node in nodes],
            "path": [paths[node.index] for node in nodes],
            "depth": [node.depth for node in nodes],
            "parent": list(self._span_parent),
            "start_s": starts,
            "end_s": [end if end >= 0 else float("nan") for end in ends],
            "duration_s": [
                (end if end >= 0 else now) - start for start, end in zip(starts, ends, strict=True)
            ],
            "self_s": [max(0.0, value) for value in selfs],
            "steps": steps,
            "num_steps": list(self._span_num_steps),
            "status": [STATUSES[status] for status in self._span_status],
        }

    def span_nodes(self) -> list[PhaseNode]:
        """Give the path of each kept instance, in start order."""
        return [self._nodes[index] for index in self._span_node]

    def silence_columns(self, now: float | None = None) -> dict[str, list[Any]]:
        """Columns of the silences, the longest :data:`MAX_SILENCES`, a row per phase by start.

        Steps are known by the last one of every drain, so a silence is true to a tenth of a second.
        What TensorRT logs is no callback.

        Parameters
        ----------
        now
            Seconds since the origin up to which open phases count; by default the latest event.

        Returns
        -------
        dict
            ``path`` (index of the :class:`PhaseNode`), ``start_s``, ``end_s``.
        """
        rows = list(self._silences)
        for start, end in self._gaps(self._clock, self._at(now)):
            rows += [(end - start, start, end, node.index) for node in self._innermost()]
        rows = sorted(nlargest(MAX_SILENCES, rows), key=itemgetter(1, 3))
        return {
            "path": [index for *_, index in rows],
            "start_s": [start for _, start, *_ in rows],
            "end_s": [end for *_, end, _ in rows],
        }


#: What a snapshot tells of a node as it is.
_NODE_COLUMNS = (
    "count",
    "total_s",
    "self_s",
    "max_s",
    "steps",
    "num_steps",
    "step",
    "step_total",
    "started",
    "last_event",
)


def _int64(value: int) -> int:
    """Fit a number of steps into a column of 64-bit integers."""
    return min(max(value, -(2**63)), 2**63 - 1)
