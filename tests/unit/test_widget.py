"""The widget without a front end: its comm messages are recorded instead of being sent.

Real kernels are in tests/kernel, a real JupyterLab is in tests/browser.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets import IntProgress, VBox
from ipywidgets.widgets.widget import _instances

from tests import models
from tests.traces import mnist_events, replay
from trt_widget import (
    BuildCancelled,
    BuildFailed,
    BuildStateError,
    BuildWidget,
    UnknownOptionError,
    load_record,
)
from trt_widget import build as build_module
from trt_widget.errors import BuildCrashed
from trt_widget.widget import view as view_module
from trt_widget.widget.models import BuildCard, PhaseBar
from trt_widget.widget.timeline import Timeline
from trt_widget.widget.view import CardView
from trt_widget.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EVIL = models.EVIL_NAME


class Recorded(BaseComm):
    """A comm whose messages are kept."""

    sent: list[tuple[float, str, str, dict[str, Any], str]] = []  # noqa: RUF012 - emptied per test

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        thread = threading.current_thread().name
        self.sent.append((time.monotonic(), msg_type, self.comm_id, data or {}, thread))


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


def click(widget: BuildWidget, content: Any) -> None:
    """Hand in what the browser sends."""
    data = {"method": "custom", "content": content}
    channel = widget.cancel_channel
    channel.comm.handle_msg({"content": {"data": data}, "buffers": []})


def attached(trace: bool = True) -> BuildWidget:
    widget = BuildWidget.attach(backend="tensorrt_rtx", name="mnist")
    if trace:
        with widget:
            replay(widget.monitor, mnist_events())
            widget.finish(b"engine")
    return widget


# ------------------------------------------------------------------ the build through the widget


def test_it_is_a_live_tree_of_int_progress_bars() -> None:
    w = BuildWidget(models.light_model("resnet50"))
    assert (w.status, w.result, w.engine) == ("pending", None, None)
    assert w.start() is w
    engine = w.wait()
    assert w.status == "succeeded"
    assert w.result.engine_bytes == len(engine) == len(w.engine)
    assert all(isinstance(bar, IntProgress) for bar in w.rows)
    assert [bar.info["label"] for bar in w.rows] == list(w.timings["phase"])
    assert [bar.info["depth"] for bar in w.rows] == list(w.timings["depth"])
    assert {bar.bar_style for bar in w.rows} == {"success"}
    assert all(bar.value == bar.max for bar in w.rows)
    assert list(w.log.columns) == ["time_s", "severity", "message"]
    assert len(w.spans) == w.timings["count"].sum()
    assert w.header["status"] == "succeeded"
    assert w.header["engine_bytes"] == len(engine)
    assert "TensorRT for RTX" in w.header["backend"]


def test_bars_move_while_it_runs() -> None:
    w = BuildWidget(models.light_model("densenet121")).start()  # silent for seconds at the end
    until(lambda: len(w.rows) > 5)
    assert w.header["status"] == "running"
    assert w.rows[0].bar_style == "info"
    assert w.rows[0].info["since"] == pytest.approx(time.time(), abs=20)
    assert w.rows[0].max == 6
    w.build.kill()
    w.build.wait_ended()


def test_the_status_is_a_trait_that_is_never_behind() -> None:
    w = BuildWidget(models.light_model("densenet121"))
    changes: list[tuple[str, str]] = []
    threads: set[str] = set()

    def note(change: Any) -> None:
        changes.append((change.old, change.new))
        threads.add(threading.current_thread().name)

    w.observe(note, "status")
    w.start()
    until(lambda: w.status == "running")
    w.request_cancel()
    assert w.status in {"cancelling", "cancelled"}
    with pytest.raises(BuildCancelled):
        w.wait()
    assert changes == [
        ("pending", "running"),
        ("running", "cancelling"),
        ("cancelling", "cancelled"),
    ]
    assert threads == {"trt_widget drain light_densenet121.onnx"}
    with pytest.raises(Exception, match="read-only"):
        w.status = "succeeded"


def test_a_cancelled_build_is_never_green() -> None:
    w = BuildWidget(models.light_model("densenet121")).start()
    until(lambda: len(w.rows) > 2)
    click(w, {"kind": "cancel"})
    with pytest.raises(BuildCancelled) as caught:
        w.wait()
    assert caught.value.reason == "user"
    styles = Counter(bar.bar_style for bar in w.rows)
    assert styles["warning"] >= 1
    assert styles["success"] == styles["info"] == 0
    assert w.header["stop_latency_s"] == w.result.stop_latency_s > 0
    assert w.header["can_cancel"] is False


def test_a_failed_build_is_red_and_explains_itself() -> None:
    w = BuildWidget(models.unknown_operators()).start()
    with pytest.raises(BuildFailed):
        w.wait()
    assert w.header["status"] == "failed"
    failure = w.header["failure"]
    assert failure["cause"] == w.header["detail"]
    assert "NoSuchOp" in failure["details"]
    assert failure["remedy"]
    # TensorRT's words are in the panel of messages, once.
    said = [message["message"] for message in w.messages]
    assert any("NoSuchOp" in message for message in said)
    assert not set(failure["words"]) & set(said)
    assert not w.rows


def test_the_waiting_one_says_so_and_can_cancel_the_other() -> None:
    first = BuildWidget(models.light_model("densenet121")).start()
    second = BuildWidget(models.mlp()).start()
    until(lambda: second.header["blocked_by"] == "light_densenet121.onnx")
    assert second.status == "pending"
    click(second, {"kind": "cancel_blocker"})
    assert second.wait()
    assert first.status == "cancelled"
    assert second.header["blocked_by"] is None


@pytest.mark.parametrize("content", [None, [], {}, {"kind": "?"}, {"kind": ["cancel"]}, "cancel"])
def test_odd_requests_from_the_browser_are_ignored(content: Any) -> None:
    w = BuildWidget(models.mlp())
    click(w, content)
    assert w.status == "pending"
    assert w.start().wait()


def test_cancel_before_the_start_by_a_click() -> None:
    w = BuildWidget(models.mlp())
    click(w, {"kind": "cancel"})
    assert w.status == "cancelled"
    until(lambda: w.header["status"] == "cancelled")


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(UnknownOptionError, match="timeout"):
        BuildWidget(models.mlp(), timeuot=3)
    with pytest.raises(TypeError, match="profiles"):
        BuildWidget(models.mlp(), profile={})
    with pytest.raises(BuildStateError):
        BuildWidget(models.mlp()).wait()


# ------------------------------------------------------------------ attach


def test_an_attached_build_shows_the_recorded_trace() -> None:
    """A recorded trace, since full TensorRT cannot run here."""
    w = attached()
    assert w.status == "succeeded"
    assert len(w.rows) == 15
    counts = {tuple(bar.info["path"].split(" > ")): bar.info["count"] for bar in w.rows}
    assert sum(counts.values()) == 1164
    assert w.header["engine_bytes"] == len(b"engine")


def test_without_finish_nothing_is_green() -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx")
    with w:
        replay(w.monitor, mnist_events())
    assert w.status == "ended"
    assert {bar.bar_style for bar in w.rows} == {""}
    assert "not known" in w.header["detail"]


# ------------------------------------------------------------------ messages


def test_only_the_drain_thread_writes_and_within_the_budget(messages: list[Any]) -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx", name="mnist")
    constructed = len(messages)
    with w:
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            replay(w.monitor, mnist_events()[:-1])
            w.monitor.phase_finish("Building engine")
        w.finish(b"engine")
    sent = messages[constructed:]
    assert {entry[4] for entry in sent} == {"trt_widget drain mnist"}
    # Any second, also the first, in which the comms of the rows are opened, and the last.
    times = [entry[0] for entry in sent]
    most = max(sum(start <= other < start + 1 for other in times) for start in times)
    assert 10 < most < 100
    # The last state is exact although most was not sent.
    counts = w.timings.set_index("path")["count"]
    for bar in w.rows:
        assert bar.info["count"] == counts[bar.info["path"]]


def test_the_final_state_is_sent_again_after_three_seconds(messages: list[Any]) -> None:
    w = attached()
    ended = time.monotonic()
    until(lambda: messages[-1][0] > ended + 2.5)
    until(lambda: not w.build._drain_thread.is_alive())
    again = [entry for entry in messages if entry[0] > ended + 2.5]
    assert {entry[2] for entry in again} == {
        w.model_id,
        w.timeline.model_id,
        *(bar.model_id for bar in w.rows),
    }
    state = next(entry[3]["state"] for entry in again if entry[2] == w.model_id)
    assert state["header"]["status"] == "succeeded"


def test_the_header_and_the_traits_say_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[Any]
) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history"))
    source = models.transformer(8)
    first = BuildWidget(source, executor="thread").start()
    first.wait()
    assert (first.header["progress"], first.header["eta_s"]) == (1.0, 0.0)
    assert first.header["basis"] is first.header["usual_s"] is None
    duration = first.result.duration_s

    seen: list[tuple[str, Any]] = []
    w = BuildWidget(source, executor="thread")
    assert (w.progress, w.eta_s, w.exceeded) == (None, None, False)
    assert (w.header["progress"], w.header["eta_s"], w.header["exceeded"]) == (None, None, False)
    w.observe(lambda change: seen.append((change.new, w.eta_s)), "progress")
    quiet = len(messages)
    w.start().wait()
    values = [value for value, _ in seen]
    assert values == sorted(values)
    assert values[-1] == w.progress == 1.0
    assert seen[-1][1] == w.eta_s == 0.0
    assert all(0 <= value < 1 for value in values[:-1])
    assert w.header["usual_s"] == duration
    assert w.header["basis"] == "from 1 earlier build of this network"
    headers = [
        entry[3]["state"]["header"]
        for entry in messages[quiet:]
        if entry[2] == w.model_id and "header" in entry[3].get("state", {})
    ]
    told = [header["progress"] for header in headers if header["progress"] is not None]
    assert told == sorted(told)
    assert any(0 < value < 1 for value in told)


def test_the_header_names_the_slowest_phases_after_the_end() -> None:
    w = attached()
    slowest = w.header["slowest"]
    assert 1 <= len(slowest) <= 5
    selves = [phase["self_s"] for phase in slowest]
    assert selves == sorted(selves, reverse=True)
    whole = w.timings["self_s"].sum()
    best = w.timings.sort_values("self_s", ascending=False).iloc[0]
    assert slowest[0]["path"] == best["path"]
    assert slowest[0]["label"] == best["phase"]
    assert slowest[0]["share"] == pytest.approx(best["self_s"] / whole, abs=1e-3)


def test_an_observer_of_the_progress_that_raises_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history"))
    BuildWidget(models.transformer(8), executor="thread").start().wait()
    w = BuildWidget(models.transformer(8), executor="thread")

    def observer(_change: Any) -> None:
        raise SystemExit

    w.observe(observer, ["progress", "eta_s"])
    assert w.start().wait()
    assert w.progress == 1.0
    assert w.header["status"] == "succeeded"
    assert sum("an observer of" in record.message for record in caplog.records) == 2, "once each"


def test_a_quiet_build_gives_a_sign_of_life(messages: list[Any]) -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx")
    with w:
        w.monitor.phase_start("silent", None, 1)
        until(lambda: len(w.rows) == 1)
        quiet = len(messages)
        time.sleep(4.5)
        beats = [entry for entry in messages[quiet:] if "header" in entry[3].get("state", {})]
        assert 2 <= len(beats) <= 4
        assert beats[-1][3]["state"]["header"]["now"] == pytest.approx(time.time(), abs=2.5)
        w.finish(b"")


def test_a_clock_that_is_set_anew_does_not_move_the_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx")
    with w:
        w.monitor.phase_start("p", None, 1)
        until(lambda: len(w.rows) == 1)
        real = time.time
        for module in (build_module.clock, view_module.clock):
            monkeypatch.setattr(module, "time", lambda: real() - 3600.0)
        w.request_cancel()
        until(lambda: w.header["cancel_requested"] is not None)
        header = w.header
        assert 0 <= header["cancel_requested"] - header["started"] < 60
        assert 0 <= header["now"] - header["started"] < 60
        monkeypatch.undo()
        w.finish(b"engine")


def test_one_row_is_one_comm(messages: list[Any]) -> None:
    before = len(_instances)
    w = attached()
    assert len(w.rows) == 15
    opened = sum(entry[1] == "comm_open" for entry in messages)
    # 15 bars share one layout and one style; the card has a layout, and Cancel a comm of its own;
    # the timeline is three: itself, its layout, and a comm to be asked on.
    assert opened == len(_instances) - before == 15 + 2 + 2 + 1 + 3


def test_there_are_never_more_than_forty_rows() -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx")
    with w:
        w.monitor.phase_start("root", None, 1)
        for index in range(300):
            w.monitor.phase_start(f"layer {index}", "root", 1)
            w.monitor.phase_finish(f"layer {index}")
            if index % 50 == 0:
                until(lambda: len(w.rows) == min(40, len(w.timings)))
        w.monitor.phase_start("now", "root", 1)
        until(lambda: "now" in [bar.info["label"] for bar in w.rows])
        assert len(w.rows) == 40
        assert len(w._view._all) == 40
        assert w.rows[0].info["folded"] == 302 - 40
        w.finish(b"")


# ------------------------------------------------------------------ where it runs


def test_the_header_names_the_executor_and_its_grace() -> None:
    w = BuildWidget(models.mlp())
    assert (w.header["executor"], w.header["where"], w.header["grace"]) == ("auto", None, None)
    # Nothing is to be expected of a build that was not started.
    assert w.header["beats"] is False
    process = BuildWidget(models.mlp(), executor="process", grace=3).start()
    process.wait()
    assert (process.header["where"], process.header["grace"]) == ("in a child process", 3.0)
    assert process.header["beats"] is True
    thread = BuildWidget(models.mlp(), executor="thread").start()
    thread.wait()
    assert (thread.header["where"], thread.header["grace"]) == ("in a thread of this kernel", None)
    for each, whose in ((process, ""), (thread, " of this kernel")):
        peak = each.result.peak_memory_bytes
        assert each.header["peak_memory_bytes"] == peak > 10e6
        # Of a kernel that has run many tests it can be gigabytes.
        shown = f"{peak / 1e6:.0f} MB" if peak < 1e9 else f"{peak / 1e9:.2f} GB"
        assert f"Peak memory{whose} {shown}" in str(each)
        assert f"Peak memory{whose} {shown}" in each._repr_mimebundle_()[0]["text/html"]
        assert each.header["where"] in str(each)


def test_the_reason_for_a_thread_is_a_note_from_the_start_on() -> None:
    lock = threading.Lock()  # cannot travel

    def configure(*_: Any) -> None:
        with lock:
            pass

    with lock:
        w = BuildWidget(models.mlp(), configure=configure).start()
        until(lambda: w.header["notes"])
        (note,) = w.header["notes"]
        assert "in a thread" in note
        assert note in str(w)
    w.wait()
    assert w.header["notes"] == list(w.result.notes) == [note]
    assert note in str(w)


def test_a_build_that_is_terminated_says_so() -> None:
    w = BuildWidget(models.transformer(72), executor="process", grace=0).start()
    until(lambda: len(w.rows) > 3)
    click(w, {"kind": "cancel"})
    with pytest.raises(BuildCancelled):
        w.wait()
    assert w.header["ending"] == "build process terminated"
    assert "Stopped after 0." in str(w)
    assert "(build process terminated)" in str(w)
    assert w.header["cancel_requested"] == pytest.approx(time.time(), abs=20)


def test_a_crash_and_what_was_printed_before() -> None:
    def crash(*_: Any) -> None:
        os.write(2, b"\x1b[1mlast\x1b[0m words\n")
        os.kill(os.getpid(), signal.SIGSEGV)

    w = BuildWidget(models.mlp(), configure=crash).start()
    with pytest.raises(BuildCrashed):
        w.wait()
    failure = w.header["failure"]
    assert ("Signal", "SIGSEGV") in failure["facts"]
    assert failure["details"] == ""  # the output has a place of its own
    assert failure["remedy"]
    assert "last words\n" in w.printed
    assert "last words" in str(w)


def test_what_is_printed_goes_to_the_browser_once_a_second(messages: list[Any]) -> None:
    def talk(*_: Any) -> None:
        for index in range(30):
            os.write(1, f"line {index}\n".encode())
            time.sleep(0.1)

    w = BuildWidget(models.mlp(), configure=talk).start()
    w.wait()
    assert w.printed.splitlines()[:30] == [f"line {index}" for index in range(30)]
    sent = [entry for entry in messages if "printed" in entry[3].get("state", {})]
    states = [entry[3]["state"]["printed"] for entry in sent]
    assert 3 <= len([text for text in states if text]) <= 6


# ------------------------------------------------------------------ text


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31mred\x1b[0m\x1b[K and \x1b[1;38;5;9mmore\x1b[m", "red and more"),
        ("\x1b]0;title\x07a\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x9b31mred\x1b(B \x1b7\x1bM.", "red ."),
        ("10%\r20%\r\n30%\r\r\n", "20%\n30%"),
        ("  two\tthree  \n\n    four", "  two\tthree  \n\n    four"),
        ("bell\x07 nul\x00 del\x7f c1\x84", "bell\u2407 nul\u2400 del\u2421 c1\ufffd"),
        ("cut \x1b[31", "cut "),
        ("<b>&amp;</b>", "<b>&amp;</b>"),
        ("\n", ""),
    ],
)
def test_what_controls_a_terminal_is_not_printed(printed: str, shown: str) -> None:
    assert printable(printed) == shown


@given(st.text(st.sampled_from("\x1b[]0;mKa<\r\n\t\x07\\\x9b\x00 ")))
def test_no_control_character_is_left(text: str) -> None:
    shown = printable(text)
    assert not set(shown) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
    assert printable(shown) == shown


def test_of_much_that_was_printed_the_end_is_shown() -> None:
    shown = printable("".join(f"line {index}\n" for index in range(100_000)))
    assert len(shown) < 17_000
    lines = shown.splitlines()
    assert (lines[0], lines[-1]) == ("…", "line 99999")
    assert all(line.startswith("line ") for line in lines[1:])
    endless = printable("x" * 1_000_000)
    assert len(endless) < 17_000


def test_text_and_html_beside_the_view() -> None:
    w = BuildWidget(models.light_model("squeezenet"))
    assert repr(w) == "BuildWidget('light_squeezenet.onnx')"
    w.start().wait()
    data, _metadata = w._repr_mimebundle_()
    assert data["text/plain"] == repr(w) == "BuildWidget('light_squeezenet.onnx', succeeded)"
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == w.model_id
    assert "Determining refit engines" in data["text/html"]
    text = str(w)
    assert text.splitlines()[0].startswith("light_squeezenet.onnx: succeeded, ")
    assert "Building engine" in text
    assert "done" in text
    w.close()
    data, _metadata = w._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html"}


def test_the_text_of_a_silent_phase_has_no_percentage() -> None:
    w = BuildWidget.attach(backend="tensorrt_rtx", name="x")
    with w:
        w.monitor.phase_start("silent", None, 6)
        w.monitor.step_complete("silent", 3)
        until(lambda: "4/6" in str(w))
        assert "#####" in str(w)
        until(lambda: "~~~~~" in str(w))
        assert "#" not in str(w)
        w.finish(b"")


def test_the_text_of_a_failure_has_the_remedy() -> None:
    w = BuildWidget(models.dynamic()).start()
    with pytest.raises(BuildFailed):
        w.wait()
    assert "profiles={" in str(w)
    html = w._repr_mimebundle_()[0]["text/html"]
    assert "profiles={" in html
    assert "pre-wrap" in html  # its lines are as they were written


def test_text_of_a_model_is_escaped() -> None:
    w = BuildWidget(models.evil_mlp().SerializeToString())
    w.start().wait()
    hostile = BuildWidget.attach(backend="tensorrt_rtx", name=EVIL)
    with hostile:
        hostile.monitor.phase_start(EVIL, None, 1)
        hostile.finish(b"")
    failed = models.unknown_operators("NoSuchOp")
    failed.graph.node[1].name = EVIL
    broken = BuildWidget(failed).start()
    with pytest.raises(BuildFailed):
        broken.wait()
    failure = broken._repr_mimebundle_()[0]["text/html"]
    assert failure.count("&lt;img") > 1  # in the table, and in TensorRT's words
    assert "<img" not in failure
    html = hostile._repr_mimebundle_()[0]["text/html"]
    assert "<img" not in html
    assert "&lt;img" in html
    assert hostile.rows[0].info["label"] == EVIL  # data; the browser makes text nodes of it


def test_it_can_be_put_into_other_widgets() -> None:
    w = BuildWidget(models.mlp())
    box = VBox([w])
    assert box.children == (w,)
    assert isinstance(w, BuildCard)
    box.close()


# ------------------------------------------------------------------ the end


def test_a_widget_gives_its_record_its_report_and_its_trace(tmp_path: Path) -> None:
    w = BuildWidget(models.mlp()).start()
    w.wait()
    record = w.record(tmp_path / "a.json")
    there = load_record(tmp_path / "a.json")
    assert there.result.status == record.result.status == "succeeded"
    assert list(there.timings["path"]) == list(w.timings["path"])
    assert "Building engine" in w.report(tmp_path / "a.html").read_text("utf-8")
    assert json.loads(w.to_chrome_trace(tmp_path / "t.json").read_text("utf-8"))["traceEvents"]


def widgets_alive() -> list[Any]:
    gc.collect()
    kinds = (BuildCard, PhaseBar, Timeline)
    return [entry for entry in gc.get_objects() if isinstance(entry, kinds)]


def test_fifty_builds_leave_nothing() -> None:
    threads = set(threading.enumerate())
    references: list[weakref.ref[Any]] = []
    before = {id(entry) for entry in widgets_alive()}
    for index in range(50):
        w = BuildWidget(models.mlp(1))
        w.observe(lambda _change: None, "status")
        w.start()
        if index % 2:
            w.request_cancel()
        with contextlib.suppress(BuildCancelled):
            w.wait()
        references += [weakref.ref(w), weakref.ref(w.build), weakref.ref(w.cancel_channel)]
        references += [weakref.ref(bar) for bar in w.rows]
        w.close()
        w.close()
        assert not w.timings.empty or w.status == "cancelled"
    del w
    # (By name and not by number: one of an earlier test may end meanwhile.)
    until(lambda: set(threading.enumerate()) <= threads)
    assert not _instances
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert [entry for entry in widgets_alive() if id(entry) not in before] == []


def test_close_of_a_running_build_cancels_it() -> None:
    w = BuildWidget(models.light_model("densenet121")).start()
    until(lambda: w.status == "running")
    w.close()
    w.build.wait_ended()
    assert w.result.reason == "closed"
    assert not _instances
    assert not w.timings.empty or w.result.ended_by == "before build"


def test_what_it_found_stays_usable_after_close() -> None:
    w = attached()
    w.close()
    assert len(w.timings) == 15
    assert w.status == "succeeded"
    assert w.engine == b"engine"
    assert w.wait() == b"engine"


def test_an_observer_that_raises_is_reported_and_the_view_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = BuildWidget(models.mlp())
    seen: list[str] = []

    def bad(change: Any) -> None:
        seen.append(change["new"])
        raise RuntimeError("mine")

    w.observe(bad, "status")
    w.start().wait()
    until(lambda: w.header["status"] == "succeeded")
    assert seen == ["running", "succeeded"]
    assert caplog.text.count("an observer of BuildWidget('mlp'") == 2


def test_close_in_the_middle_of_an_update_leaves_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain thread is in the middle of making rows when another thread closes the view."""
    inside, go_on = threading.Event(), threading.Event()
    make = CardView._new_bar

    def slowly(view: CardView) -> PhaseBar:
        inside.set()
        go_on.wait(5)
        return make(view)

    before = set(_instances)
    monkeypatch.setattr(CardView, "_new_bar", slowly)
    w = BuildWidget(models.light_model("resnet50"))
    seen: list[str] = []
    w.observe(lambda change: seen.append(change["new"]), "status")
    w.start()
    assert inside.wait(60)
    closing = threading.Thread(target=w.close)
    closing.start()
    time.sleep(0.1)
    go_on.set()
    closing.join()
    w.build.wait_ended()
    assert set(_instances) <= before
    until(lambda: seen[-1] == w.status)
    assert "raised" not in caplog.text


def test_a_view_that_is_replaced_as_its_build_ends_is_closed() -> None:
    w = attached()
    w._replace()
    assert w.comm is None


def test_the_text_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history"))
    source = models.transformer(12)
    BuildWidget(source, executor="thread").start().wait()
    w = BuildWidget(source, executor="thread")
    told: list[str] = []
    w.build.subscribe(lambda _: told.append(str(w)), every_tick=True)
    w.start().wait()
    said = [text for text in told if "from 1 earlier build of this network" in text]
    assert said
    assert all("% " in text or "%," in text for text in said)
    assert any(" left (from 1 earlier build" in text for text in said)
    assert " left" not in str(w)
