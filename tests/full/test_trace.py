"""A recorded build of full TensorRT, through the real bindings' C++ into everything that shows it.

The callbacks are made as TensorRT makes them: by the virtual functions of ``IProgressMonitor``,
which the bindings hand on to Python.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from ipywidgets import IntProgress

from tests.traces import mnist_events, replay
from trt_widget import Build, BuildCancelled, BuildWidget, ProgressMonitor, load_record
from trt_widget.broadcast import Broadcast
from trt_widget.events import from_json
from trt_widget.phases import PhaseTree
from trt_widget.servers._sse import encode
from trt_widget.servers._tokens import Message, Tokens
from trt_widget.sinks.jsonl import EventWriter
from trt_widget.sinks.lines import Lines
from trt_widget.sinks.terminal import Bars
from trt_widget.trace import to_chrome_trace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trt_widget.events import Event

#: Phases of the recorded build, and paths of them.
PHASES = 1164
PATHS = 15


class ThroughCpp:
    """A monitor as TensorRT's own threads call it."""

    def __init__(self, trt: Any, monitor: Any) -> None:
        self._base = trt.IProgressMonitor
        self._monitor = monitor

    def phase_start(self, name: str, parent: str | None, steps: int) -> None:
        self._base.phase_start(self._monitor, name, parent, steps)

    def step_complete(self, name: str, step: int) -> bool:
        answer = self._base.step_complete(self._monitor, name, step)
        assert isinstance(answer, bool)
        return answer

    def phase_finish(self, name: str) -> None:
        self._base.phase_finish(self._monitor, name)


def folded(events: Iterable[Event]) -> PhaseTree:
    tree = PhaseTree()
    tree.apply(list(events))
    return tree


def same(tree: PhaseTree, rounds: int = 1) -> bool:
    """Compare all that does not depend on time with the recording."""
    found, expected = tree.timing_columns(), folded(mnist_events()).timing_columns()
    assert found["path"] == expected["path"]
    for name in ("count", "steps", "num_steps"):
        assert found[name] == [rounds * value for value in expected[name]]
    assert not tree.anomalies
    assert not tree.open_phases
    return True


@pytest.mark.parametrize("every", [7, 10_000])
def test_the_monitor_has_it_whole(trt: Any, every: int) -> None:
    monitor = ProgressMonitor(trt)
    events, tree = mnist_events(), PhaseTree()
    for index in range(0, len(events), every):
        replay(ThroughCpp(trt, monitor), events[index : index + every])
        tree.apply(monitor.drain())
    assert same(tree)


def test_several_threads_of_tensorrt_may_call(trt: Any) -> None:
    monitor = ProgressMonitor(trt)
    tree, calls = PhaseTree(), ThroughCpp(trt, monitor)
    threads = [threading.Thread(target=lambda: replay(calls, mnist_events())) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tree.apply(monitor.drain())
    tree.apply(monitor.drain())
    assert same(tree, rounds=3)


def test_a_cancel_is_answered_at_the_next_step(trt: Any) -> None:
    build = Build.attach(backend=trt)
    calls, events = ThroughCpp(trt, build.monitor), mnist_events()
    with build:
        replay(calls, events[:1000])
        assert build.request_cancel()
        steps = [event for event in events[1000:] if event.kind == "step_complete"]
        first: Any = steps[0]
        assert calls.step_complete(first.phase, first.step) is False
        with pytest.raises(BuildCancelled):
            build.finish(None)
    assert build.result is not None
    assert (build.result.status, build.result.ended_by) == ("cancelled", "step")


# ---- everything that shows a build --------------------------------------------------------------


@dataclass
class Shown:
    """The one build, and what everybody has seen of it."""

    widget: BuildWidget
    events: Path
    lines: str = ""
    frames: bytes = b""
    chunks: list[Any] = field(default_factory=list)
    editor: list[Message] = field(default_factory=list)
    picture: str = ""


@pytest.fixture(scope="module")
def shown(trt: Any, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Replay within two seconds what took seconds, while everybody looks."""
    widget = BuildWidget.attach(backend=trt, name="mnist")
    build = widget.build
    seen = Shown(widget, tmp_path_factory.mktemp("shown") / "build.jsonl")
    out = io.StringIO()
    calls, events = ThroughCpp(trt, widget.monitor), mnist_events()
    broadcast, tokens, bars = Broadcast(build), Tokens("mnist", "t"), Bars(build, out)
    reader = broadcast.reader()
    stream = build.stream(interval=0.1)
    listening = threading.Thread(target=lambda: seen.chunks.extend(stream))
    with EventWriter(build, seen.events) as writer, Lines(build, out):
        with build:
            listening.start()
            piece = len(events) // 20
            for index in range(0, len(events), piece):
                replay(calls, events[index : index + piece])
                time.sleep(0.12)
                with build.lock:
                    told = tokens.look(build.tree, build.now())
                for message in told:
                    if message.kind == "create":
                        tokens.answer(message.token, granted=True)
                seen.editor += told
                if index == 10 * piece:
                    seen.picture = "\n".join(line.plain for line in bars.picture(120, 40))
            widget.finish(b"engine")
        listening.join(30)
        assert writer.wait(30)
    seen.editor += tokens.close()
    while not reader.finished and (batch := reader.read(10.0)):
        seen.frames += encode(batch)
    seen.lines = out.getvalue()
    return seen


def test_the_tables(shown: Shown, version: str) -> None:
    w = shown.widget
    assert same(w.build.tree)
    assert w.result is not None
    assert (w.status, w.result.backend, w.result.version) == ("succeeded", "tensorrt", version)
    assert len(w.timings) == PATHS
    assert w.timings["count"].sum() == len(w.spans) == PHASES
    assert w.timings["self_s"].min() >= 0.0
    root = w.timings.loc[w.timings["depth"] == 0, "total_s"].sum()
    assert w.timings["self_s"].sum() == pytest.approx(root)
    assert (w.spans["status"] == "done").all()


def test_the_bars_of_the_widget(shown: Shown) -> None:
    rows = shown.widget.rows
    assert len(rows) == PATHS
    assert all(isinstance(bar, IntProgress) for bar in rows)
    assert sum(bar.info["count"] for bar in rows) == PHASES
    assert shown.widget.header["engine_bytes"] == len(b"engine")


def test_the_bars_of_a_terminal(shown: Shown, version: str) -> None:
    lines = shown.picture.splitlines()
    assert lines[0].startswith("mnist  running  ")
    assert f"TensorRT {version}, in your own code" in lines[0]
    assert any("Timing graph nodes" in line for line in lines)
    assert shown.lines.splitlines()[0].startswith("mnist: running (TensorRT ")
    assert "mnist: succeeded after" in shown.lines


def test_the_file_of_events(shown: Shown, version: str) -> None:
    events = [from_json(line) for line in shown.events.read_bytes().splitlines()]
    first: Any = events[0]
    assert (first.kind, first.backend, first.backend_version) == (
        "stream_start",
        "tensorrt",
        version,
    )
    assert events[-1].kind == "end"
    # The first of them begins its tree: what stands before is the stream's own.
    assert same(folded(events))
    followed = Build.follow(shown.events).start()
    followed.wait(30)
    assert same(followed.tree)
    assert followed.result is not None
    assert (followed.result.backend, followed.result.version) == ("tensorrt", version)


def test_another_terminal_watches_it(shown: Shown, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "trt_widget", "watch", "--progress", "lines", shown.events]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "mnist: succeeded after" in done.stdout


def test_the_chunks_of_an_agent(shown: Shown) -> None:
    assert shown.chunks[-1]["status"] == "succeeded"
    done = {chunk["phase"] for chunk in shown.chunks if chunk["status"] == "done"}
    assert {"Building engine", "Timing tactics", "Measuring tactic time"} <= done
    assert len(shown.chunks) < 100


def test_the_progress_of_an_editor(shown: Shown) -> None:
    kinds = Counter(message.kind for message in shown.editor)
    assert kinds["create"] == kinds["begin"] == kinds["end"] > 2
    titles = [message.title for message in shown.editor if message.kind == "begin"]
    assert "mnist: Building engine" in titles
    assert any(title.startswith("mnist: … > ") for title in titles)


def test_the_events_of_a_server(shown: Shown) -> None:
    frames = shown.frames.decode("ascii").strip("\n").split("\n\n")
    assert [frame.splitlines()[0] for frame in frames[-2:]] == ["event: batch", "event: end"]
    data = [
        from_json(line.removeprefix("data: "))
        for frame in frames[:-1]
        for line in frame.splitlines()
        if line.startswith("data: ")
    ]
    assert same(folded(data))


def test_the_pictures_and_files(shown: Shown, tmp_path: Path, version: str) -> None:
    w = shown.widget
    svg = w.plot().svg
    page = w.report(tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (svg, page):
        assert "Timing graph nodes" in text
    assert f"tensorrt {version}" in page
    w.record(tmp_path / "record.json")
    record = load_record(tmp_path / "record.json")
    assert (record.backend, record.version) == ("tensorrt", version)
    assert len(record.span_columns["path"]) == PHASES
    trace = json.loads(to_chrome_trace(w.build, tmp_path / "trace.json").read_bytes())
    phases = [event for event in trace["traceEvents"] if event.get("cat") == "phase"]
    assert len(phases) == PHASES


def test_the_timeline(shown: Shown) -> None:
    timeline = shown.widget.timeline
    assert timeline.data["status"] == "succeeded"
    assert timeline.data["dropped"] == 0
    html = timeline._repr_mimebundle_()
    assert html
