"""What holds for every build that has ended, however it ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trt_widget import BuildCancelled, BuildError, BuildFailed, SaveError, errors
from trt_widget.events import LogMessage, MessagesDropped, StatusChanged, StreamStarted

if TYPE_CHECKING:
    from trt_widget import Build
    from trt_widget.events import Event

_ORDER = ("pending", "running", "cancelling")
_FINAL = ("succeeded", "cancelled", "failed")
_HOW = {
    "succeeded": {"completed"},
    "cancelled": {"step", "before build", "terminated", "killed", "crashed"},
    "failed": {"error", "crashed"},
}


class Watched:
    """A build and every event that it told its subscribers."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.events: list[Event] = []
        build.subscribe(self.events.extend)

    def problems(self) -> list[str]:
        """Say what contradicts what."""
        found: list[str] = []

        def check(true: Any, what: str) -> None:
            if not true:
                found.append(what)

        build, result = self.build, self.build.result
        if result is None or build.status not in _FINAL:
            return [f"it has not ended: {build.status}"]
        check(result.status == build.status, "result.status is not status")
        check(result.ended_by in _HOW[build.status], f"{build.status}, {result.ended_by}")
        self._check_times(check)
        self._check_error(check)
        self._check_events(check)
        return found

    def _check_times(self, check: Any) -> None:
        build, result = self.build, self.build.result
        assert result is not None
        # What build.timings, .spans and .log are made from; pandas is not needed here.
        timings, spans = build.tree.timing_columns(), build.tree.span_columns()
        log = build._build_log.messages()
        roots = sum(
            total
            for total, depth in zip(timings["total_s"], timings["depth"], strict=True)
            if depth == 0
        )
        check(math.isclose(sum(timings["self_s"]), roots, abs_tol=1e-6), "self times of phases")
        check(math.isclose(sum(spans["self_s"]), roots, abs_tol=1e-6), "self times of spans")
        open_ = "running" in {*timings["status"], *spans["status"]}
        check(not open_, "a phase is still running")
        if not build.tree.spans_dropped:
            check(sum(timings["count"]) == len(spans["phase"]), "counts and spans")
        check(roots <= result.duration_s + 1e-6, f"phases {roots} > build {result.duration_s}")
        check(not build.tree.anomalies, f"anomalies: {build.tree.anomalies}")
        late = [m.time for m in log if not 0.0 <= m.time <= result.duration_s + 1.0]
        check(not late, f"messages at {late[:3]} of {result.duration_s}")
        kept = len(log) + build._build_log.dropped
        told = sum(
            event.count if isinstance(event, MessagesDropped) else isinstance(event, LogMessage)
            for event in self.events
        )
        check(told == kept, f"{told} messages told, {kept} kept or counted")
        reached = [build.entered_at.get(state) for state in (*_ORDER, build.status)]
        times = [time for time in reached if time is not None]
        check(times == sorted(times), f"states at {build.entered_at}")
        asked = "cancelling" in build.entered_at
        check((result.stop_latency_s is not None) == asked, f"stop_latency_s, asked: {asked}")
        check(not any("could not be read" in note for note in result.notes), f"{result.notes}")

    def _check_error(self, check: Any) -> None:
        build, result = self.build, self.build.result
        assert result is not None
        error = result.error
        caught = None
        try:
            engine = build.wait()
            check(engine is build.engine, "wait() gives another engine")
            check(len(memoryview(engine)) == result.engine_bytes, "engine_bytes")
        except BuildError as raised:
            caught = raised
        check(caught is error, f"wait() raised {caught!r}")
        kinds = {"succeeded": type(None), "cancelled": BuildCancelled, "failed": BuildFailed}
        check(isinstance(error, kinds[build.status]), f"{build.status}: {error!r}")
        if build.status != "succeeded":
            kept = isinstance(error, SaveError)
            check(kept or build.engine is None, "an engine of a build that has none")
        if error is not None:
            text = str(error)
            check(error.cause and text, "an error without words")
            # These are what the package says of defects of its own.
            check("broke off" not in error.cause, f"a defect: {text[:2000]}")
            again = errors.from_record(errors.to_record(error))
            check(type(again) is type(error), f"{type(again)} from the record of {type(error)}")
            check(str(again) == text, "the record of the error lost words")

    def _check_events(self, check: Any) -> None:
        build = self.build
        events = [e for e in self.events if not isinstance(e, MessagesDropped)]
        check(events and isinstance(events[0], StreamStarted), "no StreamStarted")
        states = [e.status for e in events if isinstance(e, StatusChanged)]
        order = [*_ORDER, build.status]
        check(
            all(state in order for state in states)
            and states == sorted(states, key=order.index)
            and states.count(build.status) == 1,
            f"states: {states}",
        )
        last = events[-1] if events else None
        check(isinstance(last, StatusChanged) and last.status == build.status, f"last: {last}")
