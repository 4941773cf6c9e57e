"""The parts of the language server that need neither pygls nor a build."""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces import mnist_events, timed
from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted
from trt_widget.phases import PhaseTree
from trt_widget.servers import lsp
from trt_widget.servers._frames import MAX_BACKLOG, MAX_HEADER, MAX_MESSAGE, Channel, Frames
from trt_widget.servers._tokens import (
    LINGER_S,
    LOOK_S,
    MAX_MESSAGES,
    MAX_TOKENS,
    Message,
    Tokens,
    phase_text,
    title_of,
)
from trt_widget.servers._uris import UriError, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trt_widget.events import Event


# ------------------------------------------------------------------ frames


def framed(body: bytes, header: bytes = b"Content-Length") -> bytes:
    return header + b": %d\r\n\r\n" % len(body) + body


@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(1, 40), min_size=1))
def test_messages_come_whole_however_they_are_cut(bodies: list[bytes], sizes: list[int]) -> None:
    data = b"".join(framed(body) for body in bodies)
    frames, found, at, turn = Frames(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += frames.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == bodies


@given(st.lists(st.binary(max_size=300)))
def test_nothing_ends_the_reading(pieces: list[bytes]) -> None:
    frames = Frames()
    for piece in pieces:
        frames.feed(piece)
    # Out of whatever header or message it is in, and then a message.
    found = frames.feed(b"\r\n\r\n" + b" " * (MAX_MESSAGE + 20) + b"\r\n\r\n" + framed(b"{}"))
    assert found[-1] == b"{}"


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Type: x",
        b"Content-Length: x",
        b"Content-Length: -1",
        b"Content-Length: 1_0",
        b"Content-Length: \xc2\xb2",
        b"Content-Length: " + b"9" * 30,
        b"Content-Length",
        b"",
        b"\xff\x00",
    ],
)
def test_a_header_without_a_length_is_left_out(header: bytes) -> None:
    found = Frames().feed(header + b"\r\n\r\n" + framed(b"{}", b"content-length "))
    assert len(found) == 2
    assert isinstance(found[0], str)
    assert found[1] == b"{}"


def test_a_message_that_is_too_long_is_left_out_and_not_kept() -> None:
    frames = Frames()
    length = MAX_MESSAGE * 3
    (said,) = frames.feed(b"Content-Length: %d\r\n\r\n" % length)
    assert isinstance(said, str)
    assert str(length) in said
    for _ in range(length // 1024):
        assert frames.feed(b"x" * 1024) == []
        assert len(frames._kept) == 0
    assert frames.feed(framed(b"next")) == [b"next"]


def test_an_endless_header_is_reported_once_and_not_kept() -> None:
    frames = Frames()
    found: list[bytes | str] = []
    for _ in range(100):
        found += frames.feed(b"x" * 1000)
        assert len(frames._kept) <= MAX_HEADER + 1000
    assert len(found) == 1
    assert frames.feed(b"\r\n\r\n" + framed(b"next")) == [b"next"]


def test_a_channel_writes_on_though_nobody_reads() -> None:
    """The loop is never held up, and hears of the end."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    async def scenario() -> None:
        gone = asyncio.Event()
        heard = asyncio.Event()
        taken: list[Any] = []

        def take(message: bytes | str) -> None:
            taken.append(message)
            heard.set()

        channel = Channel(
            lambda size: os.read(ours_in, size), lambda data: os.write(ours_out, data)
        )
        channel.start(asyncio.get_running_loop(), take, gone.set)
        for _ in range(100):
            channel.write(b"x" * 10_000)  # far more than a pipe holds
        assert channel.backlog > 500_000
        os.write(theirs_out, framed(b"heard"))
        await asyncio.wait_for(heard.wait(), 30)
        assert taken == [b"heard"]
        assert not gone.is_set()
        os.close(theirs_in)  # whoever would read has gone
        await asyncio.wait_for(gone.wait(), 30)
        os.close(theirs_out)
        channel.write(b"lost")
        await asyncio.to_thread(channel.close, 30)
        names = [thread.name for thread in threading.enumerate()]
        assert "trt_widget lsp writer" not in names

    asyncio.run(scenario())
    for end in (ours_in, ours_out):
        os.close(end)


def test_a_client_that_reads_nothing_is_not_read() -> None:
    """So that what it asks for costs no more than the backlog; then it goes on."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    count, size = 2_000, 10_000

    async def scenario() -> None:
        channel = Channel(
            lambda size: os.read(ours_in, size), lambda data: os.write(ours_out, data)
        )
        taken = 0

        def take(_message: bytes | str) -> None:
            nonlocal taken
            taken += 1
            channel.write(b"y" * size)  # an answer

        def ask() -> None:
            for _ in range(count):
                os.write(theirs_out, framed(b"x" * 1_000))

        channel.start(asyncio.get_running_loop(), take, lambda: None)
        asking = threading.Thread(target=ask)
        asking.start()
        before = -1
        while before < taken or channel.backlog < MAX_BACKLOG:
            before = taken
            await asyncio.sleep(0.5)
        # A few pieces were read already: 64 messages each.
        assert MAX_BACKLOG < channel.backlog < 16_000_000
        assert asking.is_alive()
        rest = count * size
        while rest:
            rest -= len(await asyncio.to_thread(os.read, theirs_in, 1_000_000))
        assert taken == count
        asking.join(30)
        os.close(theirs_out)
        await asyncio.to_thread(channel.close, 30)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    for end in (ours_in, ours_out, theirs_in):
        os.close(end)


# ------------------------------------------------------------------ tokens


class Look:
    """Looks at a tree as a client that answers at once, and keeps what it was told."""

    def __init__(self, *, refused: Iterable[str] = ()) -> None:
        self.tree = PhaseTree()
        self.tokens = Tokens("net", "t")
        self.rounds: list[list[Message]] = []
        self.titles: dict[str, str] = {}
        self.refused = set(refused)

    def at(self, now: float, *, room: bool = True) -> list[Message]:
        messages = self.tokens.look(self.tree, now, room=room)
        for message in list(messages):
            if message.kind == "create":
                self.tokens.answer(message.token, granted=message.token not in self.refused)
                messages += self.tokens.begins(now)
        self.titles.update({one.token: one.title for one in messages if one.kind == "begin"})
        self.rounds.append(messages)
        return messages

    def play(self, events: Iterable[Event], every: float = LOOK_S) -> None:
        following = every
        for event in events:
            while event.time >= following:
                self.at(following)
                following += every
            self.tree.apply([event])

    def all(self) -> list[Message]:
        return [message for messages in self.rounds for message in messages]


def shown(messages: Iterable[Message]) -> list[tuple[str, str]]:
    return [(message.kind, message.token) for message in messages]


def test_the_whole_trace() -> None:
    """TensorRT 10.16's MNIST build, 8 levels and 1,107 times the same phase, over 13 seconds."""
    look = Look()
    look.play(timed(mnist_events(), 0.002))
    look.rounds.append(look.tokens.close())
    assert not look.tokens.open
    open_: list[str] = []
    last: dict[str, int] = {}
    ended: set[str] = set()
    for kind, token, title, _, percentage in look.all():
        if kind == "begin":
            *above, _ = title.removeprefix("net: ").split(" > ")
            if above:
                names = [look.titles[one].split(" > ")[-1].removeprefix("net: ") for one in open_]
                assert above[-1] in names
            open_.append(token)
            assert len(open_) <= MAX_TOKENS
        elif kind == "end":
            # Inner ones first.
            depth = look.titles[token].count(" > ")
            assert all(look.titles[one].count(" > ") <= depth for one in open_)
            open_.remove(token)
            ended.add(token)
        if kind in {"begin", "report"}:
            assert token not in ended
            if percentage is not None:
                assert percentage >= last.get(token, 0)
                last[token] = percentage
    assert not open_
    # Few tokens for 1,164 phases.
    assert 4 <= len(look.titles) <= 40
    assert any("times" in message.text for message in look.all())
    counted = [
        sum(2 if one.kind == "create" else one.kind != "begin" for one in messages)
        for messages in look.rounds
    ]
    assert max(counted) <= MAX_MESSAGES


def test_a_phase_that_is_short_has_no_token() -> None:
    look = Look()
    look.play(
        [
            PhaseStarted(0.1, "a", None, 3),
            PhaseFinished(0.3, "a"),
            PhaseStarted(0.9, "b", None, 3),
            PhaseFinished(3.0, "b"),
            PhaseStarted(9.9, "c", None, 3),
        ]
    )
    assert list(look.titles.values()) == ["net: b"]
    kinds = [kind for kind, _ in shown(look.all())]
    assert (kinds[:2], set(kinds[2:-1]), kinds[-1]) == (["create", "begin"], {"report"}, "end")


def test_a_path_that_opens_again_keeps_its_token() -> None:
    look = Look()
    events: list[Event] = [PhaseStarted(0.0, "a", None, 3)]
    for index in range(300):  # for 30 milliseconds each tenth of a second
        events += [PhaseStarted(index / 10, "b", "a", 4), StepCompleted(index / 10 + 0.01, "b", 3)]
        events.append(PhaseFinished(index / 10 + 0.03, "b"))
    events.append(PhaseStarted(40.0, "c", "a", 4))
    look.play(events)
    assert sorted(look.titles.values()) == ["net: a", "net: a > b"]
    (token,) = (token for token, title in look.titles.items() if title == "net: a > b")
    of_b = [message for message in look.all() if message.token == token]
    assert [one.kind for one in of_b].count("begin") == 1
    assert of_b[-1].kind == "end"
    # Many make no percentage.
    assert {one.percentage for one in of_b} == {None}
    assert "300 times" in of_b[-2].text
    ended = next(index for index, messages in enumerate(look.rounds) if of_b[-1] in messages)
    assert (ended + 1) * LOOK_S == pytest.approx(29.93 + LINGER_S, abs=2 * LOOK_S)


def test_a_percentage_never_falls() -> None:
    look = Look()
    look.tree.apply([PhaseStarted(0.0, "a", None, 10), StepCompleted(0.5, "a", 6)])
    look.at(0.4)
    look.tree.apply([PhaseFinished(0.55, "a"), PhaseStarted(0.56, "a", None, 10)])
    look.at(0.6)
    look.tree.apply([StepCompleted(0.7, "a", 0)])
    look.at(0.8)
    shares = [one.percentage for one in look.all() if one.kind in {"begin", "report"}]
    assert shares == [70, 70, 70]
    assert look.rounds[-1][0].text == "step 1 of 10, 2 times"


def test_one_below_a_token_that_was_refused_has_its_own() -> None:
    look = Look(refused=["t/1"])
    look.tree.apply([PhaseStarted(0.0, "a", None, 3), PhaseStarted(0.0, "b", "a", 3)])
    look.at(1.0)
    assert list(look.titles.values()) == ["net: a > b"]
    assert look.tokens.open == ["t/2"]


def test_a_child_waits_for_its_parents_token() -> None:
    look = Look()
    look.tree.apply([PhaseStarted(0.0, "a", None, 3), PhaseStarted(0.0, "b", "a", 3)])
    tokens = look.tokens
    assert shown(tokens.look(look.tree, 1.0)) == [("create", "t/1"), ("create", "t/2")]
    tokens.answer("t/2", granted=True)  # first
    assert tokens.begins(1.1) == []
    tokens.answer("t/1", granted=True)
    assert shown(tokens.begins(1.1)) == [("begin", "t/1"), ("begin", "t/2")]
    # One whose phase has ended before the answer is never begun.
    look.tree.apply([PhaseStarted(1.2, "c", "b", 3)])
    assert ("create", "t/3") in shown(tokens.look(look.tree, 2.0))
    look.tree.apply([PhaseFinished(2.1, "c")])
    assert "t/3" not in [token for _, token in shown(tokens.look(look.tree, 2.2))]
    tokens.answer("t/3", granted=True)
    assert tokens.begins(2.3) == []
    look.tree.close("cancelled", 2.4)
    ends = tokens.close()
    assert shown(ends) == [("end", "t/2"), ("end", "t/1")]
    assert {one.text for one in ends} == {"cancelled"}


def test_many_phases_at_once_share_the_tokens() -> None:
    look = Look()
    names = [f"layer {index}" for index in range(60)]
    look.tree.apply([PhaseStarted(0.0, name, None, 9, thread) for thread, name in enumerate(names)])
    for index in range(100):
        now = 1.0 + index * LOOK_S
        look.tree.apply([StepCompleted(now, name, index % 9) for name in names])
        if index >= 30 and look.tokens.open:
            name = look.titles[look.tokens.open[0]].removeprefix("net: ")
            look.tree.apply([PhaseFinished(now, name)])
        messages = look.at(now)
        assert len(look.tokens.open) <= MAX_TOKENS
        assert len([one for one in messages if one.kind != "begin"]) <= MAX_MESSAGES
    assert len(look.titles) == 60  # each had its turn


def test_a_client_that_answers_nothing_is_asked_a_few_times() -> None:
    tree, tokens = PhaseTree(), Tokens("net", "t")
    asked = 0
    for second in range(100):
        tree.apply([PhaseStarted(float(second), f"phase {second}", None, 3)])
        asked += len(tokens.look(tree, second + 0.9))
        tree.apply([PhaseFinished(second + 0.95, f"phase {second}")])
    assert asked == MAX_TOKENS


def test_only_ends_are_told_to_a_client_that_does_not_keep_up() -> None:
    look = Look()
    look.tree.apply([PhaseStarted(0.0, "a", None, 3), PhaseStarted(0.0, "b", "a", 3)])
    look.at(1.0)
    look.tree.apply([StepCompleted(1.1, "a", 1)])
    assert look.at(1.2, room=False) == []
    look.tree.apply([PhaseFinished(1.3, "b"), PhaseStarted(1.3, "c", "a", 3)])
    assert shown(look.at(1.9, room=False)) == [("end", "t/2")]
    assert ("create", "t/3") in shown(look.at(2.0))


def test_titles_say_where_a_phase_is() -> None:
    assert title_of("net", ("a",)) == "net: a"
    assert title_of("net", ("a", "b")) == "net: a > b"
    assert title_of("net", ("a", "b", "c", "d")) == "net: … > … > c > d"
    hostile = title_of("\x1b[2Jnet", ("[x](command:y)\n\x07" + "long" * 100, "\u202e"))
    assert hostile.isprintable()
    assert "](" not in hostile
    assert len(hostile) < 200


def test_what_a_phase_says() -> None:
    tree = PhaseTree()
    tree.apply([PhaseStarted(0.0, "a", None, 3), StepCompleted(0.5, "a", 7)])
    node = tree.roots["a"]
    assert phase_text(node, 0.6) == "step 3 of 3"
    assert phase_text(node, 9.5) == "step 3 of 3, no callback for 9 s"
    tree.apply([PhaseStarted(10.0, "b", "a", -1)])
    assert phase_text(node, 20.0) == "step 3 of 3"  # the silence is the inner one's
    assert phase_text(node.children["b"], 110.0) == "no callback for 1 min 40 s"


# ------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("uri", "windows", "path"),
    [
        ("file:///home/me/model.onnx", False, "/home/me/model.onnx"),
        ("file://localhost/m.onnx", False, "/m.onnx"),
        ("FILE:///m.onnx", False, "/m.onnx"),
        ("file:///a%20b/%C3%A4%23%3F.onnx", False, "/a b/ä#?.onnx"),
        ("file:///a+b;c.onnx", False, "/a+b;c.onnx"),
        ("file:///a%2Fb.onnx", False, "/a/b.onnx"),
        ("file:///not%FFutf-8", False, os.fsdecode(b"/not\xffutf-8")),
        ("file:///c%3A/models/m.onnx", True, "c:\\models\\m.onnx"),
        ("file:///C:/models/a%20b.onnx", True, "C:\\models\\a b.onnx"),
    ],
)
def test_uris_of_files(uri: str, windows: bool, path: str) -> None:
    assert path_of(uri, windows=windows) == path


@pytest.mark.parametrize(
    ("uri", "windows"),
    [
        ("", False),
        ("/home/me/model.onnx", False),
        ("C:\\model.onnx", True),
        ("http://host/model.onnx", False),
        ("untitled:model.onnx", False),
        ("file:model.onnx", False),
        ("file://host/share/model.onnx", False),
        ("file://host/share/model.onnx", True),
        ("file://[::1/model.onnx", False),
        ("file:///a b.onnx", False),
        ("file:///a\nb.onnx", False),
        ("file:///a%00.onnx", False),
        ("file:///a.onnx?b", False),
        ("file:///a.onnx#b", False),
        ("file:///models/m.onnx", True),
        ("file:///c:m.onnx", True),
        ("file:////host/share/m.onnx", True),
        ("file:///%5C%5Chost%5Cshare%5Cm.onnx", True),
        (None, False),
        (5, False),
        (["file:///a"], False),
    ],
)
def test_what_is_no_uri_of_a_local_file(uri: object, windows: bool) -> None:
    with pytest.raises(UriError, match=r"\w"):
        path_of(uri, windows=windows)


# ------------------------------------------------------------------ the command


def test_arguments() -> None:
    parser = argparse.ArgumentParser()
    lsp.add_arguments(parser)
    # As VS Code's client starts it.
    found = parser.parse_args(["--root", "/models", "--stdio", "--clientProcessId=77"])
    assert (found.root, found.tcp, found.client) == ("/models", None, 77)
    assert parser.parse_args(["--tcp", "[::1]:8"]).tcp == ("::1", 8)
