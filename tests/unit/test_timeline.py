"""What a timeline sends, without a front end: its messages are recorded and put together again.

Some states cannot be had from a builder at will (100,000 phases, thousands of them open, a given
moment): there a stand-in takes the place of the build, with a real tree of phases. How the browser
puts the messages together is tested in tests/browser.
"""

from __future__ import annotations

import base64
import gc
import json
import threading
import time
import weakref
from array import array
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ipywidgets.embed import dependency_state
from ipywidgets.widgets.widget import _instances

from tests import models
from tests.browser.fake_timeline import FakeBuild, closed, many, record_of, resnet
from tests.traces import Trace, mnist_events, replay, traces
from trt_widget import Build, BuildError, BuildWidget, load_record
from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted
from trt_widget.phases import MAX_SPANS, SILENT_S, STATUSES, PhaseTree
from trt_widget.widget import timeline
from trt_widget.widget.timeline import COLUMNS, SILENCES, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Start, Step, Finish = PhaseStarted, StepCompleted, PhaseFinished


class Recorded(BaseComm):
    """A comm whose messages are kept."""

    sent: list[Any] = []  # noqa: RUF012 - emptied per test

    def publish_msg(self, msg_type: str, data: Any = None, buffers: Any = None, **_: Any) -> None:
        thread = threading.current_thread().name
        self.sent.append((msg_type, self.comm_id, data or {}, buffers or [], thread))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    Recorded.sent = []
    monkeypatch.setattr(comm, "create_comm", Recorded)
    yield Recorded.sent
    for widget in list(_instances.values()):
        widget.close()


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timeline, "clock", clock)
    return clock


def customs(shown: Timeline) -> list[tuple[dict[str, Any], list[bytes]]]:
    """Give what was sent to the views of a running build."""
    return [
        (data["content"], buffers)
        for _, comm_id, data, buffers, _ in Recorded.sent
        if comm_id == shown.comm.comm_id and data.get("method") == "custom"
    ]


def updates(shown: Timeline) -> list[dict[str, Any]]:
    """Give the states that were sent after the first."""
    return [
        data
        for kind, comm_id, data, _, _ in Recorded.sent
        if comm_id == shown.comm.comm_id and kind == "comm_msg" and data["method"] == "update"
    ]


def ask(shown: Timeline, kind: str = "look", view: str = "a", **content: Any) -> None:
    """Hand in what the browser sends."""
    data = {"method": "custom", "content": {"kind": kind, "view": view, **content}}
    shown.channel.comm.handle_msg({"content": {"data": data}, "buffers": []})


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def columns(kinds: Any, buffers: list[bytes]) -> dict[str, list[Any]]:
    return {
        name: array(code, buffer).tolist()
        for (name, code), buffer in zip(kinds, buffers, strict=True)
    }


class Seen:
    """What a view knows: the messages put together as the browser does it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.parents: list[int] = []
        self.spans: dict[str, list[Any]] = {name: [] for name, _ in COLUMNS}
        self.silences: dict[str, list[Any]] = {name: [] for name, _ in SILENCES}

    def take(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        assert content["kind"] == "spans"
        assert content["names_first"] <= len(self.names)
        assert content["first"] <= len(self.spans["node"])
        for index, (name, parent) in enumerate(
            zip(content["names"], array("i", buffers[0]), strict=True), content["names_first"]
        ):
            self.names[index:] = [name, *self.names[index + 1 :]]
            self.parents[index:] = [parent, *self.parents[index + 1 :]]
        changed = array("i", buffers[1]).tolist()
        assert len(changed) == content["changed"]
        last = 2 + len(COLUMNS)
        for name, values in columns(COLUMNS, buffers[2:last]).items():
            for index, value in zip(changed, values, strict=True):
                self.spans[name][index] = value
        for name, values in columns(COLUMNS, buffers[last : last + len(COLUMNS)]).items():
            assert len(values) == content["count"]
            self.spans[name][content["first"] : content["first"] + len(values)] = values
        # Every path is known when a span of it comes.
        assert max(self.spans["node"], default=-1) < len(self.names)
        if content["silences"]:
            self.silences = columns(SILENCES, buffers[last + len(COLUMNS) :])


def whole(shown: Timeline) -> tuple[Any, ...]:
    data = shown.data
    assert data["live"] is False
    return (
        data["names"],
        array("i", data["parents"]).tolist(),
        columns(COLUMNS, data["columns"]),
        columns(SILENCES, data["silences"]),
    )


def live(build: FakeBuild) -> Timeline:
    return Timeline(build)  # type: ignore[arg-type]  # a stand-in


# ------------------------------------------------------------------ what has ended


def test_a_record_is_sent_as_it_is(tmp_path: Path) -> None:
    build = Build.attach(backend="tensorrt_rtx", name="mnist")
    with build:
        replay(build.monitor, mnist_events())
        build.finish(b"engine")
    for source in (build.record(), load_record(build.record().save(tmp_path / "r.json"))):
        shown = Timeline(source)
        names, parents, spans, _ = whole(shown)
        record = build.record()
        assert names == record.path_columns["name"]
        assert parents == record.path_columns["parent"]
        assert len(spans["node"]) == 1_164
        assert spans["node"] == record.span_columns["path"]
        assert spans["parent"] == record.span_columns["parent"]
        assert spans["start"] == record.span_columns["start_s"]
        assert spans["end"] == record.span_columns["end_s"]
        assert spans["steps"] == record.span_columns["steps"]
        assert spans["total"] == record.span_columns["num_steps"]
        assert spans["self"] == pytest.approx(record.span_columns["self_s"], rel=1e-6)
        assert [STATUSES[code] for code in spans["status"]] == record.span_columns["status"]
        assert shown.data["now"] == record.now_s
        assert shown.data["status"] == "succeeded"
        assert repr(shown) == "Timeline('mnist')"
        # Nothing that JSON would write number by number.
        assert len(json.dumps([v for v in shown.data.values() if isinstance(v, str)])) < 100
        assert all(isinstance(buffer, bytes) for buffer in shown.data["columns"])


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_boxes_of_a_recorded_build_lie_beside_and_within_each_other(trace: Trace) -> None:
    tree = closed(list(trace.callbacks), at=trace.duration_s)
    shown = Timeline(record_of(tree, name=str(trace)))
    names, parents, spans, silences = whole(shown)
    starts = [event for event in trace.callbacks if isinstance(event, PhaseStarted)]
    assert [names[node] for node in spans["node"]] == [event.phase for event in starts]
    assert spans["start"] == pytest.approx([event.time for event in starts])
    assert spans["total"] == [event.num_steps for event in starts]
    ends = sorted(event.time for event in trace.callbacks if isinstance(event, PhaseFinished))
    assert sorted(spans["end"]) == pytest.approx(ends)
    assert {STATUSES[code] for code in spans["status"]} == {"done"}
    assert shown.data["now"] == pytest.approx(trace.duration_s)
    beside: dict[tuple[int, int], float] = {}
    for event, node, parent, start, end in zip(
        starts, *(spans[name] for name in ("node", "parent", "start", "end")), strict=True
    ):
        assert 0.0 <= start <= end <= shown.data["now"]
        assert (parent < 0) == (event.parent is None)
        if parent >= 0:
            assert spans["start"][parent] <= start
            assert end <= spans["end"][parent]
            assert parents[node] == spans["node"][parent]
        # Boxes of one parent and thread follow each other.
        assert beside.get((parent, event.thread), 0.0) <= start
        beside[parent, event.thread] = end
    for node, start, end in zip(*silences.values(), strict=True):
        assert end - start > SILENT_S
        around = [
            place
            for place, index in enumerate(spans["node"])
            if index == node and spans["start"][place] <= start and end <= spans["end"][place]
        ]
        assert len(around) == 1
    inside = [
        gap for gap in trace.gaps(SILENT_S) if starts[0].time <= gap[0] and gap[1] <= ends[-1]
    ]
    told = sorted(set(zip(silences["start"], silences["end"], strict=True)))
    assert told == [pytest.approx(gap) for gap in inside]


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_a_recorded_build_seen_live_is_what_it_is_in_the_end(
    trace: Trace, hand_clock: Clock
) -> None:
    build = FakeBuild(str(trace))
    shown = live(build)
    ask(shown)
    for _, events in trace.batches(0.5):
        hand_clock.now += timeline.PERIOD_S
        build.take(*events)
    hand_clock.now += timeline.PERIOD_S
    build.tick()
    seen = Seen()
    for content, buffers in customs(shown):
        seen.take(content, buffers)
    build.end(at=trace.duration_s)
    names, parents, spans, silences = whole(shown)
    assert (seen.names, seen.parents) == (names, parents)
    for name in ("node", "parent", "start", "end", "total", "steps"):
        assert seen.spans[name] == spans[name], name
    assert seen.silences == silences


def test_saved_widget_state_has_all_of_it() -> None:
    """What a notebook saved with its widgets' state, or a page of HTML, holds."""
    shown = Timeline(record_of(closed(resnet())))
    state = dependency_state([shown])[shown.model_id]
    buffers = {tuple(entry["path"]): entry["data"] for entry in state["buffers"]}
    assert state["state"]["data"]["names"] == shown.data["names"]
    for index, column in enumerate(shown.data["columns"]):
        assert base64.b64decode(buffers["data", "columns", index]) == column
    assert base64.b64decode(buffers["data", "parents"]) == shown.data["parents"]


def test_a_build_that_has_ended_is_whole_at_once() -> None:
    build = Build(models.mlp())
    build.start()
    build.wait()
    shown = Timeline(build)
    names, _, spans, _ = whole(shown)
    assert len(spans["node"]) == len(build.spans) > 0
    assert [names[node] for node in spans["node"]] == list(build.spans["phase"])
    assert not customs(shown)


def test_silences_come_with_it() -> None:
    shown = Timeline(record_of(closed(resnet())))
    names, _, _, silences = whole(shown)
    assert [names[node] for node in silences["node"]] == ["Determining refit engines"]
    assert silences["start"] == [pytest.approx(4.8)]
    assert silences["end"] == [pytest.approx(8.6)]


def test_names_that_are_long_or_no_text(hand_clock: Clock) -> None:
    build = FakeBuild("m" * 1_000)
    shown = live(build)
    build.take(Start(0.1, "x" * 5_000, None, 1), Start(0.2, "\ud800", "x" * 5_000, 1))
    ask(shown)
    build.tick()
    hand_clock.now += 1
    build.end(at=1.0)
    names, *_ = whole(shown)
    assert [len(name) for name in names] == [203, 1]
    assert names[1] == "?"
    assert len(shown.data["name"]) == 203
    assert json.dumps(shown.data["names"]).isascii()
    assert customs(shown)[0][0]["names"] == names


# ------------------------------------------------------------------ live


def test_a_real_build_live_is_what_it_is_in_the_end() -> None:
    build = Build(models.light_model("squeezenet"), configure=models.slowly(0.02))
    shown = Timeline(build)
    ask(shown)
    build.start()
    until(lambda: len(customs(shown)) >= 2)
    assert shown.data == {"live": True, "name": "light_squeezenet.onnx"}
    build.wait()
    until(lambda: not shown.data["live"])
    sent = customs(shown)
    took = build.result.duration_s if build.result else 0.0
    assert len(sent) <= 2 * took + 3
    seen = Seen()
    for content, buffers in sent:
        seen.take(content, buffers)
    names, parents, spans, _ = whole(shown)
    known = len(seen.spans["node"])
    assert known > 3
    assert seen.names == names[: len(seen.names)]
    assert seen.parents == parents[: len(seen.names)]
    for name in ("node", "parent", "start", "total"):
        assert seen.spans[name] == spans[name][:known]
    for end, last in zip(seen.spans["end"], spans["end"], strict=False):
        assert end in {-1.0, last}
    assert {thread for *_, thread in Recorded.sent if "drain" in thread} == {
        "trt_widget drain light_squeezenet.onnx"
    }
    drained = [data for kind, _, data, _, t in Recorded.sent if kind == "comm_msg" and "drain" in t]
    assert len(drained) == len([entry for entry in Recorded.sent if entry[0] == "comm_msg"])


def test_nothing_is_sent_while_nobody_looks() -> None:
    build = Build(models.light_model("squeezenet"))
    shown = Timeline(build)
    build.start()
    build.wait()
    until(lambda: not shown.data["live"])
    assert customs(shown) == []
    assert [list(data["state"]) for data in updates(shown)] == [["data"]]
    # Once more, in case the server dropped it.
    until(lambda: len(updates(shown)) == 2, timeout=20)
    assert updates(shown)[0]["state"].keys() == updates(shown)[1]["state"].keys()


def test_a_build_that_was_never_started_says_nothing() -> None:
    shown = Timeline(Build(models.mlp()))
    ask(shown)
    assert set(shown.data) == {"live", "name"}
    assert shown.data["live"]
    assert customs(shown) == []


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from("abcd"), st.integers(0, 3)),
        st.tuples(st.just("finish"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 4.0]), st.just(0)),
        st.tuples(st.just("tick"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.sampled_from("xyz"), st.booleans()),
        st.tuples(st.just("away"), st.sampled_from("xyz"), st.just(0)),
    ),
    max_size=60,
)


class Play:
    """A build whose phases start and end, and three pages that look at it or not."""

    def __init__(self, clock: Clock) -> None:
        Recorded.sent.clear()
        self.clock = clock
        self.build = FakeBuild()
        self.shown = live(self.build)
        self.seen = {view: Seen() for view in "xyz"}
        self.opened: list[tuple[str, int]] = []
        self.time = 0.0
        self.taken = 0

    def start(self, name: str, more: int) -> None:
        parent, thread = self.opened[-1] if self.opened and more else (None, more)
        self.build.tree.apply([Start(self.time, name, parent, 3, thread)])
        self.opened.append((name, thread))

    def finish(self, which: int, _: Any) -> None:
        if self.opened:
            name, thread = self.opened.pop(which % len(self.opened))
            self.build.tree.apply([Finish(self.time, name, thread)])

    def step(self, which: int, _: Any) -> None:
        if self.opened:
            name, thread = self.opened[which % len(self.opened)]
            self.build.tree.apply([Step(self.time, name, 0, thread)])

    def wait(self, seconds: float, _: Any) -> None:
        self.time += seconds

    def look(self, view: str, reloaded: bool) -> None:
        if reloaded:
            self.seen[view] = Seen()
        one = self.seen[view]
        ask(self.shown, view=view, spans=len(one.spans["node"]), names=len(one.names))

    def away(self, view: str, _: Any) -> None:
        ask(self.shown, "away", view=view)

    def tick(self, *_: Any) -> None:
        """Let the drain thread have its turn; every page gets what it sends."""
        self.clock.now += timeline.PERIOD_S
        self.build.tick()
        sent = customs(self.shown)
        for content, buffers in sent[self.taken :]:
            for one in self.seen.values():
                # A page that was opened late has a gap, and asks for all when it looks.
                if content["first"] <= len(one.spans["node"]) and content["names_first"] <= len(
                    one.names
                ):
                    one.take(content, buffers)
        self.taken = len(sent)


@given(
    actions=ACTIONS,
    limits=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    outcome=st.sampled_from(["succeeded", "cancelled", "failed", "ended"]),
)
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_was_sent_bit_by_bit_is_the_whole(
    monkeypatch: pytest.MonkeyPatch, actions: Any, limits: tuple[int, int], outcome: str
) -> None:
    """Whoever looks, whenever, in pieces however small: in the end they have seen the same."""
    with monkeypatch.context() as patch:
        clock = Clock()
        patch.setattr(timeline, "clock", clock)
        patch.setattr(timeline, "MAX_SPANS_AT_ONCE", limits[0])
        patch.setattr(timeline, "MAX_NAMES_AT_ONCE", limits[1])
        play = Play(clock)
        for kind, what, more in actions:
            play.time += 0.05
            getattr(play, kind)(what, more)
        for view in "xyz":
            play.look(view, False)
        tree = play.build.tree
        table = tree.span_columns()
        # Each message has at least one name, or one span, or the news of one that ended.
        for _ in range(4 * len(table["steps"]) + tree.paths + 8):
            play.tick()
        for one in play.seen.values():
            assert one.names == [node.name for node in tree._nodes]
            assert one.spans["end"] == list(tree._span_end)
            if limits[0] > len(play.opened):
                assert one.spans["steps"] == table["steps"]
        one = play.seen["x"]
        play.build.end(outcome, play.time + 1)
        names, parents, spans, _ = whole(play.shown)
        assert (one.names, one.parents) == (names, parents)
        for name in ("node", "parent", "start", "total"):
            assert one.spans[name] == spans[name]
        assert 0 not in spans["status"]
        play.shown.close()


def test_messages_are_bounded_and_come_twice_a_second(hand_clock: Clock) -> None:
    build = FakeBuild()
    events = many(60_000)
    shown = live(build)
    build.tree.apply(events[:-1])
    ask(shown)
    for _ in range(100):
        hand_clock.now += 0.1
        build.tick()
    sent = customs(shown)
    # Ten seconds: four of them with spans, then a sign of life every two seconds.
    assert [content["count"] for content, _ in sent[:4]] == [16_384, 16_384, 16_384, 10_649]
    assert 4 + 3 <= len(sent) <= 4 + 5
    assert all(content["count"] == 0 for content, _ in sent[4:])
    assert max(sum(map(len, buffers)) for _, buffers in sent) < 700_000
    assert max(len(json.dumps(content)) for content, _ in sent) < 30_000
    # No more than what is open, from then on.
    assert {sum(map(len, buffers)) for _, buffers in sent[5:]} == {4 + 35}
    seen = Seen()
    for content, buffers in sent:
        seen.take(content, buffers)
    build.take(events[-1])
    build.end()
    assert whole(shown)[2]["start"] == seen.spans["start"]


def test_very_many_open_phases(hand_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_SPANS_AT_ONCE", 100)
    build = FakeBuild()
    shown = live(build)
    ask(shown)
    build.tree.apply([Start(0.001 * k, f"p{k}", None, 2, k) for k in range(250)])
    seen = Seen()

    def go_on(times: int) -> None:
        before = len(customs(shown))
        for _ in range(times):
            hand_clock.now += timeline.HEARTBEAT_S
            build.tick()
        for content, buffers in customs(shown)[before:]:
            assert content["count"] <= 100
            assert content["changed"] <= 100
            seen.take(content, buffers)

    go_on(4)
    assert len(seen.spans["node"]) == 250
    build.tree.apply([Finish(1.0 + 0.001 * k, f"p{k}", k) for k in range(240)])
    build.tree.apply([Start(2.0, "late", None, 1)])
    go_on(1)
    # The news of those that ended come before what was started since.
    assert "late" not in seen.names or len(seen.spans["node"]) == 250
    go_on(4)
    assert sum(end < 0 for end in seen.spans["end"]) == 11
    assert seen.spans["start"][-1] == 2.0


def test_many_names_come_before_their_spans(
    hand_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_NAMES_AT_ONCE", 10)
    build = FakeBuild()
    shown = live(build)
    ask(shown)
    build.tree.apply([Start(0.001 * k, f"p{k}", None, 2, k) for k in range(35)])
    seen = Seen()
    for count in (10, 20, 30, 35):
        hand_clock.now += 1
        build.tick()
        seen.take(*customs(shown)[-1])
        assert len(seen.names) == len(seen.spans["node"]) == count


def test_a_view_that_says_nothing_any_more_is_gone(hand_clock: Clock) -> None:
    build = FakeBuild()
    shown = live(build)
    build.take(Start(0.1, "a", None, 3))
    assert customs(shown) == []
    ask(shown)
    for _ in range(100):
        hand_clock.now += 2
        build.tick()
    assert len(customs(shown)) == pytest.approx(timeline.LEASE_S / 2, abs=2)
    ask(shown, spans=1, names=1)
    build.tick()
    heard = len(customs(shown))
    ask(shown, "away")
    hand_clock.now += 2
    build.take(Step(0.2, "a", 0))
    assert len(customs(shown)) == heard


def test_one_goes_and_the_other_stays(hand_clock: Clock) -> None:
    build = FakeBuild()
    shown = live(build)
    ask(shown, view="a")
    ask(shown, view="b")
    build.take(Start(0.1, "a", None, 3))
    ask(shown, "away", view="a")
    hand_clock.now += 1
    build.take(Step(0.2, "a", 0))
    assert [content["count"] for content, _ in customs(shown)] == [1, 0]
    # It comes back after a reload: from the beginning.
    ask(shown, view="a", spans=0, names=0)
    build.tick()
    assert [content["count"] for content, _ in customs(shown)] == [1, 0, 1]


@pytest.mark.parametrize(
    "content",
    [None, [], "look", {}, {"kind": "look"}, {"kind": "look", "view": 3}, {"kind": ["look"]}],
)
def test_odd_requests_are_ignored(content: Any, hand_clock: Clock) -> None:
    build = FakeBuild()
    shown = live(build)
    data = {"method": "custom", "content": content}
    shown.channel.comm.handle_msg({"content": {"data": data}, "buffers": []})
    hand_clock.now += 1
    build.take(Start(0.1, "a", None, 3))
    assert customs(shown) == []
    for spans in (-1, 10**30, 1.5, "3", None, True):
        ask(shown, spans=spans, names=spans)
        hand_clock.now += 1
        build.take(Step(0.2, "a", 0))
    seen = Seen()
    for message in customs(shown):
        seen.take(*message)
    assert seen.spans["start"] == [0.1]


def test_any_number_of_views_takes_bounded_memory(hand_clock: Clock) -> None:
    build = FakeBuild()
    shown = live(build)
    for number in range(1_000):
        ask(shown, view=f"{number}" * 100)
        hand_clock.now += 0.001
        if number % 100 == 0:
            build.tick()
    build.tick()
    assert len(shown._feed._views) <= timeline.MAX_VIEWS
    assert all(len(view) <= 64 for view in shown._feed._views)
    assert len(shown._requests) == 0


def test_what_is_open_grows(hand_clock: Clock) -> None:
    build = FakeBuild()
    build.origin -= 100.0
    shown = live(build)
    ask(shown)
    build.take(Start(99.0, "a", None, 5), Step(99.5, "a", 1))
    content, buffers = customs(shown)[-1]
    spans = columns(COLUMNS, buffers[10:18])
    assert content["now"] >= 100
    assert spans["end"] == [-1.0]
    assert spans["steps"] == [2.0]
    assert spans["self"][0] == pytest.approx(content["now"] - 99.0, abs=1e-3)
    assert content["silent_since"] is None
    build.tree.apply([Step(99.7, "a", 2)])
    hand_clock.now += 1
    build.tick()
    content, buffers = customs(shown)[-1]
    assert array("i", buffers[1]).tolist() == [0]
    spans = columns(COLUMNS, buffers[2:10])
    assert (spans["end"], spans["steps"]) == ([-1.0], [3.0])
    assert spans["self"][0] == pytest.approx(content["now"] - 99.0, abs=1e-3)
    # Nothing for long: the browser lets the hatching grow by itself.
    build.origin -= 50.0
    hand_clock.now += timeline.HEARTBEAT_S
    build.tick()
    content, buffers = customs(shown)[-1]
    assert content["silent_since"] == 99.7
    assert content["silences"] is False
    build.take(Finish(151.0, "a"), Start(151.0, "b", None, 1))
    hand_clock.now += 1
    build.tick()
    content, buffers = customs(shown)[-1]
    assert content["silent_since"] is None
    assert columns(SILENCES, buffers[-3:]) == {"node": [0], "start": [99.7], "end": [151.0]}


@pytest.mark.parametrize("status", ["cancelled", "failed", "ended"])
def test_what_was_open_gets_the_outcome(status: str, hand_clock: Clock) -> None:
    build = FakeBuild()
    shown = live(build)
    ask(shown)
    build.take(*resnet(7.0))
    hand_clock.now += 1
    build.end(status, 7.4)
    names, _, spans, _ = whole(shown)
    assert shown.data["status"] == status
    cut = {
        names[node]
        for node, code in zip(spans["node"], spans["status"], strict=True)
        if STATUSES[code] == status
    }
    assert cut == {"Building engine", "Building engine from subgraph", "Determining refit engines"}


def test_phases_past_the_bound_are_counted(hand_clock: Clock) -> None:
    build = FakeBuild()
    build.tree = PhaseTree(max_spans=100)
    shown = live(build)
    ask(shown)
    build.take(*resnet())
    assert customs(shown)[-1][0]["dropped"] == 206
    hand_clock.now += 1
    build.end()
    assert shown.data["dropped"] == 206
    assert len(whole(shown)[2]["node"]) == 100


def test_the_most_that_is_kept() -> None:
    shown = Timeline(record_of(closed(many(MAX_SPANS))))
    size = sum(map(len, shown.data["columns"]))
    assert len(whole(shown)[2]["node"]) == 99_801
    assert size == 35 * 99_801


# ------------------------------------------------------------------ the end


def test_what_stays_where_there_is_no_widget(tmp_path: Path) -> None:
    build = Build.attach(backend="tensorrt_rtx", name="<i>mnist</i>")
    live_one = Timeline(build)
    html = live_one._repr_mimebundle_()[0]["text/html"]
    assert "needs a running kernel" in html
    assert "<i>" not in html
    with build:
        replay(build.monitor, mnist_events())
        build.finish(b"engine")
    for source in (build, build.record(tmp_path / "r.json")):
        html = Timeline(source)._repr_mimebundle_()[0]["text/html"]
        assert "<svg" in html
        assert "<i>" not in html


def test_what_it_can_be_made_of(tmp_path: Path) -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx", name="mnist")
    with w:
        replay(w.monitor, mnist_events())
        w.finish(b"engine")
    w.record(tmp_path / "r.json")
    rows = [
        len(whole(Timeline(source))[0])
        for source in (w, w.build, w.record(), tmp_path / "r.json", str(tmp_path / "r.json"))
    ]
    assert len(set(rows)) == 1


@pytest.mark.parametrize("wrong", [None, 5, [1], "", b"x", {}], ids=repr)
def test_what_it_cannot_be_made_of(wrong: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BuildError) as caught:
        Timeline(wrong)
    assert caught.value.remedy
    del caught
    gc.collect()
    assert capsys.readouterr().err == ""


def test_close_leaves_no_comm_open() -> None:
    shown = Timeline(Build(models.mlp()))
    assert shown.channel is not None
    before = [entry[1] for entry in Recorded.sent if entry[0] == "comm_open"]
    shown.close()
    shown.close()
    assert sorted(before) == sorted(e[1] for e in Recorded.sent if e[0] == "comm_close")
    assert len(before) == 3
    assert not _instances
    assert shown._build is not None
    assert shown._build._subscribers == []
    assert "text/plain" in shown._repr_mimebundle_()[0]
    ended = Timeline(record_of(closed(resnet())))
    ended.close()
    assert not _instances


def test_closed_while_it_runs_it_says_nothing_more() -> None:
    build = Build(models.light_model("squeezenet"), configure=models.slowly(0.002))
    shown = Timeline(build)
    ask(shown)
    build.start()
    until(lambda: customs(shown))
    comm_id = shown.comm.comm_id
    shown.close()
    count = len([e for e in Recorded.sent if e[1] == comm_id and e[0] == "comm_msg"])
    build.wait()
    assert len([e for e in Recorded.sent if e[1] == comm_id and e[0] == "comm_msg"]) == count


def test_nothing_keeps_a_closed_timeline_alive() -> None:
    build = Build(models.light_model("squeezenet"))
    references: list[weakref.ref[Any]] = []

    def one() -> None:
        shown = Timeline(build)
        ask(shown)
        references.extend((weakref.ref(shown), weakref.ref(shown.channel)))
        shown.close()

    one()
    build.start()
    build.wait()
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert not _instances
