"""Files, pipes, lines and bars. Builds are attached, so that a test decides what happens when."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces import Trace, mnist_events, replay, traces
from trt_widget import Build
from trt_widget.broadcast import Broadcast
from trt_widget.errors import BuildCancelled, BuildFailed, OptionError, OutputError, SaveError
from trt_widget.events import StreamStarted, from_json
from trt_widget.phases import PhaseTree
from trt_widget.sinks import sentences
from trt_widget.sinks.control import MAX_LINE, control_path, listen
from trt_widget.sinks.jsonl import EventWriter
from trt_widget.sinks.lines import Lines
from trt_widget.sinks.terminal import Bars, can_draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.events import Event

REQUEST = b'{"request":"cancel","reason":"user"}\n'


def attached(name: str = "replayed") -> Build:
    return Build.attach(backend="tensorrt_rtx", name=name)


def wait_until(found: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def events_of(data: bytes) -> list[Event]:
    assert data.endswith(b"\n")
    return [from_json(text) for text in data.splitlines()]


def tree_of(events: list[Event]) -> PhaseTree:
    """Fold a stream as a reader does: a stream_start starts over."""
    tree = PhaseTree()
    for event in events:
        if isinstance(event, StreamStarted):
            tree = PhaseTree()
        tree.apply([event])
    last = events[-1]
    assert last.kind == "end"
    tree.close(last.status, last.time)  # type: ignore[union-attr]  # the kind is asserted
    return tree


# ---- events to a file or a pipe ------------------------------------------------------------------


def test_a_file_has_the_whole_stream_and_whole_lines_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("what was there before")
    build = attached()
    seen = []
    with EventWriter(build, path) as writer, build:
        for _ in range(5):
            replay(build.monitor, mnist_events())
            seen.append(path.read_bytes())
            time.sleep(0.05)
        build.finish(b"engine")
    assert writer.error is None
    assert all(data.endswith(b"\n") for data in seen if data)
    events = events_of(path.read_bytes())
    assert [event.kind for event in events].count("stream_start") == 1
    assert tree_of(events).timing_columns() == build.tree.timing_columns()
    assert tree_of(events).span_columns() == build.tree.span_columns()


def test_a_slow_pipe_holds_up_nobody_and_ends_with_the_same_state() -> None:
    ours, theirs = os.pipe()
    build = attached()
    broadcast = Broadcast(build, ring_bytes=20_000)
    writer = EventWriter(broadcast, theirs)
    begun = time.monotonic()
    with build:
        # More than a pipe takes, and nobody reads.
        for _ in range(4):
            replay(build.monitor, mnist_events())
            time.sleep(0.2)
        build.finish(b"engine")
    assert time.monotonic() - begun < 20
    assert not writer.wait(0.2)
    read: list[bytes] = []

    def read_all() -> None:
        while data := os.read(ours, 65536):
            read.append(data)

    thread = threading.Thread(target=read_all)
    thread.start()
    assert writer.wait(60)
    os.close(theirs)  # it is ours, not the writer's
    thread.join()
    os.close(ours)
    events = events_of(b"".join(read))
    kinds = [event.kind for event in events]
    assert kinds.count("stream_start") == 2
    assert "snapshot" in kinds
    assert tree_of(events).timing_columns() == build.tree.timing_columns()
    assert writer.error is None


def test_a_reader_that_goes_away_ends_the_writer_and_not_the_build() -> None:
    ours, theirs = os.pipe()
    build = attached()
    writer = EventWriter(build, theirs)
    with build:
        os.close(ours)
        replay(build.monitor, mnist_events())
        assert writer.wait(60)
        assert build.finish(b"engine") == b"engine"
    os.close(theirs)
    assert isinstance(writer.error, SaveError)
    assert writer.error.errno == errno.EPIPE
    assert build.result is not None
    assert build.result.status == "succeeded"
    assert writer.error.cause in build.result.notes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_a_full_disk_ends_the_writer_and_not_the_build() -> None:
    build = attached()
    with EventWriter(build, "/dev/full") as writer, build:
        build.finish(b"engine")
    assert writer.error is not None
    assert writer.error.errno == errno.ENOSPC
    assert "the disk is full" in writer.error.cause
    assert build.status == "succeeded"


#: A process that may write 5,000 bytes to a file: what a disk does that gets full.
LITTLE_ROOM = """
import resource, sys
from tests.traces import mnist_events, replay
from trt_widget import Build
from trt_widget.sinks.jsonl import EventWriter
build = Build.attach(backend="tensorrt_rtx", name="replayed")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
with EventWriter(build, sys.argv[1]) as writer, build:
    replay(build.monitor, mnist_events())
    build.finish(b"engine")
print(build.status, writer.error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_ROOM, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("succeeded The events could not be written to")
    data = path.read_bytes()
    assert 100 < len(data) <= 5000
    assert events_of(data)[0].kind == "stream_start"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_named_pipe_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    build = attached()
    with EventWriter(build, path), build:
        replay(build.monitor, mnist_events())
        with path.open("rb") as file:
            thread_engine: list[Any] = []
            thread = threading.Thread(target=lambda: thread_engine.append(build.finish(b"engine")))
            thread.start()
            data = file.read()
            thread.join()
    assert events_of(data)[-1].kind == "end"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_named_pipe_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    build = attached()
    with EventWriter(build, path) as writer, build:
        build.finish(b"engine")
    assert writer.error is not None


@pytest.mark.parametrize("path", [".", "no/such/folder/e.jsonl", "a\0b"])
def test_what_cannot_be_written_is_refused(path: str) -> None:
    with pytest.raises(OutputError, match="The events cannot be written to"):
        EventWriter(attached(), path)


# ---- requests ------------------------------------------------------------------------------------


def test_requests_are_read_from_a_file_as_it_grows(tmp_path: Path) -> None:
    path = control_path(tmp_path / "e.jsonl")
    path.write_bytes(REQUEST)  # of an earlier build
    build = attached()
    with build:
        listener = listen(build, path, own=True)
        assert not path.exists()
        time.sleep(0.5)
        assert not build.monitor.cancel_requested
        path.write_bytes(b"nonsense\n[1]\n\n{}\n" + REQUEST[:10])
        wait_until(lambda: listener.bad_lines == 3)
        assert not build.monitor.cancel_requested
        with path.open("ab") as file:
            file.write(REQUEST[10:])
        wait_until(lambda: build.monitor.cancel_requested)
        assert build.monitor.cancel_reason == "user"
        assert (listener.requests, listener.bad_lines) == (1, 3)
        listener.close()
        assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "large", "link", "folder"])
def test_what_is_no_file_of_requests_is_neither_taken_nor_removed(
    kind: str, tmp_path: Path
) -> None:
    path = control_path(tmp_path / "e.jsonl")
    precious = b"mine\n" if kind != "large" else REQUEST + b"x" * MAX_LINE
    (tmp_path / "other").write_bytes(REQUEST)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "other")
    else:
        path.write_bytes(precious)
    build = attached()
    with build, pytest.raises(OptionError, match="and that is something else"):
        listen(build, path, own=True)
    assert path.exists()
    assert kind in {"folder", "link"} or path.read_bytes() == precious


def test_what_appears_and_is_no_request_is_not_removed(tmp_path: Path) -> None:
    path = control_path(tmp_path / "e.jsonl")
    build = attached()
    with build, listen(build, path, own=True) as listener:
        path.write_bytes(b"mine\n")
        wait_until(lambda: listener.bad_lines == 1)
    assert path.read_bytes() == b"mine\n"


def test_a_file_that_was_there_is_kept_and_not_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "control"
    path.write_bytes(REQUEST)
    build = attached()
    with build:
        with listen(build, path) as listener:
            time.sleep(0.5)
            assert not build.monitor.cancel_requested
            with path.open("ab") as file:
                file.write(b'{"request":"cancel","reason":"whatever"}\n')
            wait_until(lambda: build.monitor.cancel_requested)
            assert listener.requests == 1
        assert build.monitor.cancel_reason == "user"
    assert path.exists()


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "control", tmp_path / "other"
    build = attached()
    with build, listen(build, path) as listener:
        path.write_bytes(b"1\n" * 100)
        wait_until(lambda: listener.bad_lines == 100)
        other.write_bytes(REQUEST)
        other.replace(path)
        wait_until(lambda: build.monitor.cancel_requested)


def test_long_lines_are_no_requests_and_cost_no_memory() -> None:
    ours, theirs = os.pipe()
    build = attached()
    with build, listen(build, ours) as listener:
        for _ in range(4 * MAX_LINE // 1000):
            os.write(theirs, b"x" * 1000)
        wait_until(lambda: listener.bad_lines == 1)
        assert len(listener._rest) <= MAX_LINE
        os.write(theirs, b'"}' + b"\n" + REQUEST)
        wait_until(lambda: build.monitor.cancel_requested)
        assert (listener.requests, listener.bad_lines) == (1, 1)
        os.close(theirs)
        listener._thread.join(10)
    os.close(ours)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_requests_are_read_from_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "control"
    os.mkfifo(path)
    build = attached()
    with build, listen(build, path):
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, REQUEST)
        os.close(descriptor)
        wait_until(lambda: build.monitor.cancel_requested)
    assert path.exists()


def test_the_end_of_a_pipe_is_no_request() -> None:
    ours, theirs = os.pipe()
    build = attached()
    with build, listen(build, ours) as listener:
        os.close(theirs)
        listener._thread.join(10)
        assert not listener._thread.is_alive()
        assert not build.monitor.cancel_requested
    os.close(ours)


# ---- lines ---------------------------------------------------------------------------------------

EVIL = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold]\r\n\x9b2J \u202eevil\x00"


def test_lines_are_few_and_have_no_control_characters() -> None:
    build = attached(EVIL)
    out = io.StringIO()
    begun = time.monotonic()
    with build, Lines(build, out):
        build.monitor.phase_start(EVIL, None, 3)
        time.sleep(1.5)
        for _ in range(3):
            replay(build.monitor, mnist_events())
        time.sleep(0.5)
        build.monitor.phase_finish(EVIL)
        build.finish(b"engine")
    said = out.getvalue()
    lines = said.splitlines()
    assert len(lines) <= 4 + (time.monotonic() - begun)
    assert all(sign.isprintable() or sign == "\n" for sign in said)
    assert ": running (TensorRT for RTX" in lines[0]
    assert lines[0].endswith(", in your own code)")
    assert re.match(r"\[ +1\.\d s\]  .*red", lines[1])
    assert ": succeeded after" in lines[-2] + lines[-1]


def test_a_cancel_that_is_quick_is_still_told() -> None:
    build = attached()
    out = io.StringIO()
    with Lines(build, out), contextlib.suppress(BuildCancelled), build:
        build.request_cancel()
        build.monitor.step_complete("x", 0)
        build.finish(None)
    assert out.getvalue().count("Cancelling at the next step…") == 1
    assert "replayed: cancelled after" in out.getvalue()


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_lines_that_nobody_takes_change_nothing() -> None:
    build = attached()
    with build, Lines(build, Broken()):
        build.finish(b"engine")
    assert build.status == "succeeded"


# ---- bars ----------------------------------------------------------------------------------------


def bars(build: Build) -> Bars:
    """Make bars for a terminal that is none."""
    return Bars(build, io.StringIO())


def test_bars_are_drawn_in_terminals_only() -> None:
    assert not can_draw(io.StringIO())
    closed = io.StringIO()
    closed.close()
    assert not can_draw(closed)


@pytest.fixture(scope="module")
def crowded() -> Any:
    """Give a build with many phases, some of them open and with hostile names."""
    build = attached(EVIL)
    with contextlib.suppress(BuildFailed), build:
        monitor = build.monitor
        monitor.phase_start("Root", None, 10)
        for number in range(60):
            monitor.phase_start(f"漢字{number} {EVIL}" * 3, "Root", 3)
            monitor.step_complete(f"漢字{number} {EVIL}" * 3, 1)
            if number % 3:
                monitor.phase_finish(f"漢字{number} {EVIL}" * 3)
        wait_until(lambda: build.tree.paths == 61)
        yield build
        build.finish(None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(columns=st.integers(8, 200), lines=st.integers(2, 60))
def test_a_picture_is_smaller_than_its_terminal(crowded: Build, columns: int, lines: int) -> None:
    made = bars(crowded)
    picture = made.picture(columns, lines)
    assert 1 <= len(picture) < lines
    for text in picture:
        assert text.cell_len < columns
        assert text.plain.isprintable()
    drawn = made._encoded(picture)
    # Of escape codes only colours.
    assert "\x1b" not in re.sub(r"\x1b\[[\d;]*m", "", drawn)


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_a_recorded_build_in_a_terminal_and_in_a_file(trace: Trace, tmp_path: Path) -> None:
    """The callbacks of a real build, without its silences."""
    build, cut = attached(str(trace)), int(0.9 * len(trace.callbacks))
    with EventWriter(build, tmp_path / "e.jsonl") as writer, build:
        replay(build.monitor, trace.callbacks[:cut])
        wait_until(lambda: build.tree.paths > 1)
        for size in ((200, 60), (60, 12), (8, 2)):
            picture = bars(build).picture(*size)
            assert 1 <= len(picture) < size[1]
            assert all(text.cell_len < size[0] for text in picture)
        replay(build.monitor, trace.callbacks[cut:])
        build.finish(b"engine")
    said = "\n".join(text.plain for text in bars(build).picture(200, 60))
    for node in build.tree.walk():
        assert node.name in said
    assert writer.error is None
    tree = tree_of(events_of((tmp_path / "e.jsonl").read_bytes()))
    assert tree.timing_columns() == build.tree.timing_columns()


def test_a_picture_shows_the_markup_of_names_as_it_is(crowded: Build) -> None:
    said = "\n".join(text.plain for text in bars(crowded).picture(200, 60))
    assert "[bold]markup[/bold]" in said
    assert re.search(r"… and \d+ more phases|\(\+\d+\)", said)


def test_a_picture_says_how_far_it_is_and_what_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    build = attached()
    with build:
        build.monitor.phase_start("Root", None, 10)
        build.monitor.phase_start("Leaf", "Root", 4)
        build.monitor.step_complete("Leaf", 1)
        wait_until(lambda: build.tree.paths == 2 and any(n.step for n in build.tree.walk()))
        made = bars(build)
        said = [text.plain for text in made.picture(80, 24)]
        assert said[0].startswith("replayed  running  0.")
        assert any(re.match(r"  Leaf +━{12}─{12} +2/4 +\d", text) for text in said)
        assert not any("%" in text for text in said)
        # What an earlier build would make it say.
        monkeypatch.setattr(Build, "progress", 0.25)
        monkeypatch.setattr(Build, "eta_s", 7.6)
        monkeypatch.setattr(Build, "basis", "from 3 earlier builds of this network")
        said = [text.plain for text in made.picture(100, 24)]
        assert re.fullmatch(
            r"━+─+  25%, about 8 s left \(from 3 earlier builds of this network\)", said[1]
        )
        with monkeypatch.context() as cancelling:
            cancelling.setattr(Build, "status", "cancelling")
            said = [text.plain for text in made.picture(100, 24)]
            assert not any("%" in text for text in said)
        monkeypatch.setattr(Build, "exceeded", True)
        monkeypatch.setattr(Build, "expected_s", 75.0)
        said = [text.plain for text in made.picture(100, 24)]
        assert said[1].endswith("takes longer than the expected 1 min 15 s")
        now = build.now()
        monkeypatch.setattr(Build, "now", lambda _self: now + 7)
        said = [text.plain for text in made.picture(100, 24)]
        assert any(re.match(r"  Leaf +~{24} +2/4 +7\.\d s", text) for text in said)
        assert "Leaf · no callback for 7." in said[-1]
        # Nothing of what matters is cut off where there is little room.
        said = [text.plain for text in made.picture(60, 24)]
        assert " ".join(said[-2:]).endswith("(normal: TensorRT is silent while it optimizes)")
        assert max(map(len, said)) < 60
        monkeypatch.setattr(type(build.backend), "__str__", lambda _self: "TensorRT 99")
        assert said[0].startswith("replayed  running  ")
        assert made.picture(60, 24)[0].plain.endswith("  TensorRT 99, in your own code")
        assert made.picture(44, 24)[0].plain.endswith("  TensorRT 99")
        monkeypatch.undo()
        build.finish(b"engine")


def test_signs_that_a_terminal_lacks_are_replaced(crowded: Build) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    made = Bars(crowded, out)
    drawn = made._encoded(made.picture(120, 40))
    assert {"#", "~"} & set(drawn)
    assert not set("━─…·") & set(drawn)


def test_sizes_and_times_are_written_for_people() -> None:
    assert [sentences.size(number) for number in (10, 12_345, 12_345_678, 12_345_678_901)] == [
        "0.0 kB",
        "12.3 kB",
        "12.3 MB",
        "12.35 GB",
    ]
    assert [sentences.elapsed(s) for s in (0.04, 12.34, 75, 4000)] == [
        "0.0 s",
        "12.3 s",
        "1 min 15 s",
        "1 h 06 min",
    ]


def test_a_summary_says_what_a_person_needs() -> None:
    build = attached()
    with build:
        build.finish(b"engine" * 1000)
    lines = sentences.summary(build)
    assert re.fullmatch(r"replayed: succeeded after \d\.\d s", lines[0])
    assert lines[1] == "Engine of 6.0 kB"
