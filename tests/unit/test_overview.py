"""What the overview of a queue sends, without a front end: its messages are recorded.

Hundreds of builds in given states cannot be had from a builder at will: there a stand-in takes the
place of the queue. Real queues of real builds are below, and in tests/browser.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets.widgets.widget import _instances

from tests import models
from tests.browser.fake_queue import FakeQueue, fake_queue, fake_row
from trt_widget import Build, BuildCancelled, BuildWidget, OptionError, build_queue
from trt_widget.build_queue import BuildQueue
from trt_widget.queue_table import MAX_LINES, queue_html, queue_text
from trt_widget.widget import overview
from trt_widget.widget.overview import SORTS, Order, Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVIL = '<img src=x onerror="window.pwned=1">\n\u202e</section><script>'
THREAD = "trt_widget overview"


class Recorded(BaseComm):
    """A comm whose messages are kept."""

    sent: list[Any] = []  # noqa: RUF012 - emptied per test

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        thread = threading.current_thread().name
        self.sent.append((msg_type, self.comm_id, data or {}, thread))


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    Recorded.sent = []
    monkeypatch.setattr(comm, "create_comm", Recorded)
    yield Recorded.sent
    for widget in list(_instances.values()):
        widget.close()


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def made(queue: Any) -> Overview:
    return Overview(queue)


def ask(shown: Overview, kind: str, **content: Any) -> None:
    """Hand in what the browser sends."""
    data = {"method": "custom", "content": {"kind": kind, **content}}
    shown.channel.comm.handle_msg({"content": {"data": data}, "buffers": []})


def look(shown: Overview, first: int = 0, count: int = 20, view: str = "a") -> None:
    ask(shown, "look", view=view, first=first, count=count)


def updates(shown: Overview) -> list[dict[str, Any]]:
    """Give the states that were sent after the first."""
    return [
        data["state"]
        for kind, comm_id, data, _ in list(Recorded.sent)
        if comm_id == shown.comm.comm_id and kind == "comm_msg"
    ]


def places(shown: Overview) -> list[int]:
    return [row[0] for row in shown.table["rows"]]


def indexes(shown: Overview) -> list[int]:
    return [row[1] for row in shown.table["rows"]]


def is_idle() -> bool:
    return not any(thread.name == THREAD for thread in threading.enumerate())


def open_comms() -> int:
    kinds = Counter(kind for kind, *_ in Recorded.sent)
    return kinds["comm_open"] - kinds["comm_close"]


# ------------------------------------------------------------------ what is sent


def test_the_first_state_is_small_whatever_the_number_of_builds() -> None:
    sizes = []
    for count in (100, 5_000):
        Recorded.sent.clear()
        shown = made(fake_queue(count))
        assert shown.head["total"] == count
        assert sum(shown.head["counts"].values()) == count
        assert places(shown) == list(range(20))
        assert shown.table["matched"] == count
        sizes.append((len(Recorded.sent), len(json.dumps(Recorded.sent))))
    (comms, small), (comms_of_many, large) = sizes
    assert comms == comms_of_many == 3  # overview, its layout, the channel, and nothing else
    assert large < 1.05 * small


def test_closing_it_with_news_unread_ends_its_thread() -> None:
    shown = made(fake_queue(3))
    with shown._lock:
        shown._note()
        until(lambda: shown._thread is not None)
        time.sleep(0.2)  # it stands before the lock, or is about to
        shown.close()
        shown._note()
        thread = shown._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()


def test_rows_are_those_that_a_view_looks_at() -> None:
    shown = made(fake_queue(5_000))
    look(shown, 1_000, 30)
    until(lambda: places(shown) == list(range(1_000, 1_030)))
    # Another page looks elsewhere; one that goes is forgotten.
    look(shown, 10, 5, view="b")
    until(lambda: places(shown) == [*range(10, 15), *range(1_000, 1_030)])
    ask(shown, "away", view="a")
    shown._queue.tell()
    until(lambda: places(shown) == list(range(10, 15)))
    assert {row[2] for row in shown.table["rows"]} == {
        f"model-{n:04d}-o{n % 6}" for n in range(10, 15)
    }
    assert threading.current_thread().name not in {
        thread for kind, _, _, thread in Recorded.sent if kind == "comm_msg"
    }


def test_the_size_of_a_message_is_bounded() -> None:
    queue = FakeQueue([fake_row(n, "failed", f"{n} {'x' * 10_000}") for n in range(5_000)])
    for place in range(5_000):
        queue.change(place, error="e" * 10_000, where="w" * 10_000)
    shown = made(queue)
    for number in range(40):
        look(shown, number * 100, 10**9, view=str(number))
    until(lambda: len(shown.table["rows"]) == overview.MAX_ROWS_AT_ONCE and updates(shown))
    assert len(shown._views) == overview.MAX_VIEWS
    assert max(len(json.dumps(state)) for state in updates(shown)) < 500_000
    ask(shown, "order", ticket="t", order={"text": "x" * 10_000})
    until(lambda: shown.table["ticket"] == "t")
    assert len(shown.table["order"]["text"]) == overview.MAX_NAME
    assert shown.table["matched"] == 5_000


def test_messages_are_few_whatever_the_queue_does() -> None:
    queue = fake_queue(500)
    shown = made(queue)
    look(shown)
    until(lambda: updates(shown))
    before, begun = len(updates(shown)), time.monotonic()
    number = 0
    while time.monotonic() - begun < 2.0:
        number += 1
        queue.change(5, progress=number / 1e6)
        queue.tell(queue.made[5].name)
        time.sleep(0.001)
    seconds = time.monotonic() - begun
    assert number > 100
    assert 1 <= len(updates(shown)) - before <= 2 * seconds + 1
    # A person who scrolls without end is answered ten times a second.
    before, begun = len(updates(shown)), time.monotonic()
    while time.monotonic() - begun < 1.0:
        number += 1
        look(shown, number % 400)
        time.sleep(0.001)
    assert 1 <= len(updates(shown)) - before <= 10 * (time.monotonic() - begun) + 2


def test_nothing_is_sent_while_nobody_looks() -> None:
    queue = fake_queue(500)
    shown = made(queue)
    look(shown)
    until(lambda: updates(shown))
    ask(shown, "away", view="a")
    queue.tell()
    until(lambda: not shown._views)
    before, read = len(updates(shown)), queue.read
    for number in range(100):
        queue.change(5, progress=number / 1e6)
        queue.tell(queue.made[5].name)
        time.sleep(0.01)
    assert len(updates(shown)) == before
    assert queue.read == read


def test_a_view_that_says_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "LEASE_S", 0.3)
    monkeypatch.setattr(overview, "HEARTBEAT_S", 0.1)
    shown = made(fake_queue(50))
    look(shown)
    # Signs of life, until its time is over; then one in a long while.
    until(lambda: len(updates(shown)) >= 3)
    until(lambda: not shown._views)
    before = len(updates(shown))
    shown._queue.tell()
    time.sleep(0.3)
    assert len(updates(shown)) == before


def test_a_page_that_comes_back_while_nobody_looks_is_not_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "IDLE_S", 0.2)
    queue = fake_queue(50)
    shown = made(queue)
    queue.change(0, status="failed")
    queue.tell()
    until(lambda: shown.table["rows"][0][3] == "failed")
    assert shown.head["counts"]["failed"] == 8


def test_the_end_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "AGAIN_S", 0.2)
    queue = fake_queue(50)
    shown = made(queue)
    queue.end("failed")
    until(
        lambda: (
            [set(state) for state in updates(shown)][-1:] == [{"head", "table", "selected", "card"}]
        )
    )
    assert shown.head["status"] == "failed"
    # Then there is no thread any more; one is there while there is something to answer.
    until(is_idle)
    look(shown, 20, 10)
    until(lambda: places(shown) == list(range(20, 30)))
    until(is_idle)


# ------------------------------------------------------------------ order and filter


def test_sorting_and_filtering() -> None:
    shown = made(fake_queue(70))
    look(shown, 0, 100)
    ask(shown, "order", ticket="1", order={"sort": "status", "descending": True})
    until(lambda: shown.table["ticket"] == "1")
    words = [row[3] for row in shown.table["rows"]]
    assert words == sorted(
        words, key=["succeeded", "cancelled", "failed", "pending", "running"].index
    )
    succeeded = [row[1] for row in shown.table["rows"] if row[3] == "succeeded"]
    assert succeeded == sorted(succeeded), "equal ones stay in their order"
    ask(shown, "order", ticket="2", order={"statuses": ["failed", "pending"], "text": "-O4"})
    until(lambda: shown.table["ticket"] == "2")
    assert shown.table["matched"] == len(shown.table["rows"]) == 3
    assert {row[3] for row in shown.table["rows"]} == {"failed", "pending"}
    # The totals are those of all.
    assert sum(shown.head["counts"].values()) == 70
    ask(shown, "order", ticket="3", order={"text": "nosuchop"})
    until(lambda: shown.table["ticket"] == "3")
    assert shown.table["matched"] == 10


def test_half_a_surrogate_pair_is_not_sent_back() -> None:
    # A message that cannot be encoded would never leave, and none after it.
    shown = made(fake_queue(70))
    look(shown)
    ask(shown, "order", ticket="\ud83d1", order={"text": "-O4\ud83d"})
    until(lambda: shown.table["ticket"] == "1")
    assert shown.table["order"]["text"] == "-O4"
    assert shown.table["matched"] == 11
    ask(shown, "select", ticket="2\udc80", index=3)
    until(lambda: shown.selected["ticket"] == "2")
    for state in updates(shown):
        json.dumps(state, ensure_ascii=False, default=str).encode()
    assert Order.read({"text": "\U0001f600\ud83d"}).text == "\U0001f600"


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("descending", [False, True])
def test_what_has_no_value_is_last(sort: str, descending: bool) -> None:
    rows = fake_queue(50).rows()
    found = Order(sort, descending).apply(rows)
    assert sorted(row.index for row in found) == list(range(50))
    empty = [row[SORTS.index(sort)] in {None, ""} for row in found]
    assert empty == sorted(empty)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KINDS = st.sampled_from(["look", "away", "order", "select", "shown", "", "__init__"])
KEYS = st.sampled_from(["view", "first", "count", "ticket", "order", "index"])


@given(
    st.one_of(
        JUNK, st.dictionaries(KEYS, JUNK).flatmap(lambda d: KINDS.map(lambda k: {**d, "kind": k}))
    )
)
def test_whatever_a_browser_sends(content: Any) -> None:
    shown = made(fake_queue(5))
    shown._take(content)
    shown._write(time.monotonic(), final=False)
    assert shown._faulty is False
    json.dumps(shown.get_state(["head", "table", "selected"]), default=str)
    shown.close()


def test_a_fault_ends_neither_the_queue_nor_the_view(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    queue = fake_queue(50)
    shown = made(queue)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "rows", lambda: 1 / 0)
        look(shown)
        until(lambda: shown._faulty)
    assert "could not be updated" in caplog.text
    look(shown, 5, 5)
    until(lambda: places(shown) == list(range(5, 10)))


# ------------------------------------------------------------------ cancel


def test_cancel_one_pending_and_all() -> None:
    queue = fake_queue(70)
    shown = made(queue)
    look(shown, 0, 100)
    ask(shown, "cancel", index=5)
    until(lambda: shown.table["rows"][5:] and shown.table["rows"][5][3] == "cancelling")
    ask(shown, "cancel_pending")
    until(lambda: shown.head["counts"]["pending"] == 0)
    assert shown.head["counts"]["running"] == 9
    for index in (-1, 70, "5", 5.0, True, None):
        ask(shown, "cancel", index=index)
    ask(shown, "cancel_all")
    until(lambda: shown.head["counts"]["cancelling"] == 10)
    assert queue.asked == [queue.made[5].name, "pending", None]


def test_what_a_queue_waits_for_and_the_way_to_end_it() -> None:
    queue = fake_queue(7, status="pending")
    queue.waiting_for, queue.blocker = EVIL, fake_queue(7, name="first")
    shown = made(queue)
    assert shown.head["blocked"]
    assert shown.head["waiting"].startswith("waiting for <img")
    assert shown.head["waiting"].endswith(", an earlier queue of this process, to finish")
    assert "\n" not in shown.head["waiting"]
    ask(shown, "cancel_blocker")
    until(lambda: queue.asked == ["blocker"])
    queue.status, queue.blocker, queue.waiting_for = "running", None, "a Dask worker with GPU=1"
    look(shown)
    queue.tell()
    until(lambda: shown.head["waiting"] == "waiting for a Dask worker with GPU=1")
    assert not shown.head["blocked"]
    text = queue_text(queue)  # type: ignore[arg-type]  # a stand-in
    assert "(25 %, about 5 min 00 s left, waiting for a Dask worker with GPU=1)" in text
    queue.waiting_for = None
    queue.tell()
    until(lambda: shown.head["waiting"] == "")


def test_what_is_cancelled_before_the_start_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "HEARTBEAT_S", 0.1)
    queue = BuildQueue({"a": models.mlp(), "b": models.mlp()}, engine_cache=False)
    shown = made(queue)
    look(shown)
    until(lambda: updates(shown))
    # While nothing changes, a queue that waits to be started has nothing to say.
    before = len(updates(shown))
    time.sleep(0.5)
    assert len(updates(shown)) == before
    queue.request_cancel("a")
    until(lambda: shown.table["rows"][0][3] == "cancelled")
    queue.request_cancel()
    until(lambda: shown.head["status"] == "cancelled")


def test_a_new_run_of_the_cell_replaces_it_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "AGAIN_S", 0.1)
    queue = fake_queue(50)
    shown = made(queue)
    shown._replace()
    until(lambda: shown.head["replaced"])
    assert shown.comm is not None
    queue.end()
    until(lambda: shown.comm is None)
    assert open_comms() == 0
    until(is_idle)


# ------------------------------------------------------------------ the selected build


@pytest.fixture(scope="module")
def ended() -> BuildQueue:
    """Give a queue of real builds that has ended."""
    jobs = {
        "good": models.mlp(),
        "other": models.mlp(layers=5),
        EVIL: models.unknown_operators("NoSuchOp"),
    }
    queue = BuildQueue(jobs, executor="thread", workers=1, engine_cache=False).start()
    queue.wait()
    return queue


def cards() -> list[BuildWidget]:
    return [widget for widget in list(_instances.values()) if isinstance(widget, BuildWidget)]


def select(shown: Overview, index: int | None) -> None:
    mark = f"{index} {time.monotonic_ns()}"
    ask(shown, "select", ticket=mark, index=index)
    until(lambda: shown.selected["ticket"] == mark)
    with shown._lock:  # the card of the one before is closed after that
        assert cards() == [card for card in [shown.card] if card is not None]


def test_the_selected_build_has_its_card(ended: BuildQueue) -> None:
    shown = made(ended)
    assert shown.card is None
    select(shown, 0)
    assert shown.card.build is ended["good"].build
    assert shown.card.header["status"] == "succeeded"
    assert len(shown.card.rows) == len(ended["good"].build.timings)
    assert shown.selected == {**shown.selected, "index": 0, "name": "good", "kind": "card"}
    select(shown, 2)
    assert shown.card.header["status"] == "failed"
    assert "NoSuchOp" in json.dumps(shown.card.header["failure"])
    assert "\n" not in shown.selected["name"]
    select(shown, None)
    assert shown.card is None
    assert shown.selected["kind"] == "none"


def test_no_comm_is_left_by_a_hundred_selections(
    ended: BuildQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "ANSWER_S", 0.0)
    shown = made(ended)
    assert open_comms() == 3
    select(shown, 0)
    select(shown, 2)
    one = open_comms()
    assert 3 < one < 60
    for number in range(100):
        select(shown, (0, 1, 2)[number % 3])
    select(shown, 2)
    assert open_comms() == one
    assert len(cards()) == 1
    assert ended["good"].build._later == ended[EVIL].build._later == []
    assert len(ended["good"].build._subscribers) <= 1
    shown.close()
    assert open_comms() == 0
    assert ended._subscribers == []
    assert ended["good"].status == "succeeded"


def test_a_build_that_waits_and_one_that_was_never_built() -> None:
    queue = BuildQueue({"first": models.mlp(), "second": models.mlp()}, engine_cache=False)
    shown = made(queue)
    select(shown, 1)
    assert (shown.selected["kind"], shown.card) == ("waiting", None)
    assert "waits" in shown.selected["text"]
    ask(shown, "cancel", index=1)
    until(lambda: shown.selected["kind"] == "ended")
    assert "nothing was built" in shown.selected["text"]
    queue.request_cancel()


def test_a_build_that_was_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_queue, "KEPT", 1)
    slow = {"source": models.light_model("squeezenet"), "configure": models.slowly(0.004)}
    jobs = {"a": slow, "b": models.mlp(), "c": models.mlp(), "d": models.mlp()}
    queue = BuildQueue(jobs, executor="thread", workers=1, engine_cache=False)
    shown = made(queue)
    look(shown)
    select(shown, 0)
    queue.start()
    until(lambda: shown.card is not None)
    assert queue["b"].status == "pending"
    queue.wait()
    assert queue["a"].build is queue["b"].build is None
    # What is looked at stays.
    until(lambda: shown.head["status"] == "succeeded")
    assert shown.selected["kind"] == "card"
    assert shown.card.header["status"] == "succeeded"
    # Of another one the record is shown.
    select(shown, 1)
    assert (shown.selected["kind"], shown.card) == ("record", None)
    text = shown.selected["text"]
    assert text.startswith("b: succeeded")
    assert "Building engine" in text
    select(shown, 0)
    assert shown.selected["kind"] == "record"
    select(shown, 3)
    assert shown.card.build is queue["d"].build


def test_the_card_follows_the_next_attempt() -> None:
    jobs = {"dies": {"source": models.mlp(), "configure": models.configure_crash}}
    queue = BuildQueue(jobs, retries=1, engine_cache=False)
    shown = made(queue)
    look(shown)
    select(shown, 0)
    queue.start()
    queue.wait()
    job = queue["dies"]
    assert (job.status, job.attempts) == ("failed", 2)
    until(lambda: shown.head["status"] == "failed" and shown.card.header["status"] == "failed")
    assert shown.card.build is job.build
    assert shown.table["rows"][0][10] == 2
    until(lambda: len(cards()) == 1)


def test_the_card_of_a_running_build_is_live_and_cancels_it() -> None:
    jobs = {
        name: {"source": models.light_model("resnet50"), "configure": models.slowly(0.02)}
        for name in ("a", "b")
    }
    queue = BuildQueue(jobs, workers=1, engine_cache=False)
    shown = made(queue)
    look(shown)
    select(shown, 0)
    queue.start()
    until(lambda: shown.card is not None and shown.card.rows)
    assert shown.selected["kind"] == "card"
    until(lambda: shown.table["rows"][0][8] != "")  # its phase
    card = shown.card
    data = {"method": "custom", "content": {"kind": "cancel"}}
    card.cancel_channel.comm.handle_msg({"content": {"data": data}, "buffers": []})
    until(lambda: queue["a"].status == "cancelled")
    until(lambda: card.header["status"] == "cancelled")
    until(lambda: queue["b"].status == "running")
    # Who looks at another one leaves it alone.
    select(shown, 1)
    assert card.comm is None
    assert queue["b"].status == "running"
    shown.close()
    assert queue["b"].status == "running"
    queue.request_cancel()
    queue.wait()
    assert queue.status == "cancelled"


# ------------------------------------------------------------------ a view of a build that exists


def test_a_view_of_a_build_leaves_it_alone() -> None:
    build = Build(models.light_model("resnet50"), configure=models.slowly(0.02))
    first, second = BuildWidget.of(build), BuildWidget.of(build)
    build.start()
    until(lambda: first.rows and second.rows)
    first.close()
    assert build.status == "running"
    assert first.comm is None
    second.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait()
    until(lambda: second.header["status"] == "cancelled")
    # One that is made afterwards has all of it.
    third = BuildWidget.of(build)
    assert third.header["status"] == "cancelled"
    assert [bar.info["label"] for bar in third.rows] == [bar.info["label"] for bar in second.rows]
    assert third.timeline.data["live"] is False


def test_a_view_of_no_build() -> None:
    with pytest.raises(OptionError, match=r"BuildWidget.of\(\) was given a str"):
        BuildWidget.of("resnet50.onnx")  # type: ignore[arg-type]


# ------------------------------------------------------------------ static


class Page(HTMLParser):
    """Collects the elements and the lines of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name in {"src", "href"}]
        self.tags[tag] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_static_table_is_short_and_harmless() -> None:
    made_rows = [fake_row(n, "succeeded", f"{n} {EVIL}") for n in range(500)]
    made_rows[450] = made_rows[450]._replace(status="failed", error=EVIL)
    queue = FakeQueue(made_rows, name=EVIL)
    page = Page(queue_html(queue, saved_as="ab12"))  # type: ignore[arg-type]  # a stand-in
    assert page.tags["tr"] == MAX_LINES + 1
    assert set(page.tags) == {
        "section",
        "style",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "bdi",
    }
    assert "and 300 more" in page.text
    assert "499 succeeded" in page.text
    assert "✕ failed" in page.text, "what went wrong is kept"
    assert "Note" in page.text, "every column has a heading"
    assert "\u202e" not in page.text
    text = queue_text(queue)  # type: ignore[arg-type]  # a stand-in
    assert len(text.splitlines()) == MAX_LINES + 3
    assert len(text) < 60_000
    assert text.splitlines()[-1] == "and 300 more"


def test_the_bundle_of_an_overview(ended: BuildQueue) -> None:
    shown = made(ended)
    bundle, _ = shown._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.model_id
    assert bundle["text/plain"] == repr(ended)
    assert "NoSuchOp" in Page(bundle["text/html"]).text
    shown.close()
    bundle, _ = shown._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
