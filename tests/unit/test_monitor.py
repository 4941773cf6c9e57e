"""The recorder alone, called as TensorRT calls it; real builds are in tests/build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from typing import Any

import pytest
import tensorrt_rtx

from tests.traces import mnist_events, replay
from trt_widget import BuildStateError, ProgressMonitor
from trt_widget.events import (
    CancelDelivered,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    StepCompleted,
    expand,
)
from trt_widget.monitor import MAX_COLLAPSED, MAX_OPEN, MAX_QUEUED
from trt_widget.phases import OTHER, PhaseTree


@pytest.fixture
def monitor() -> Any:
    return ProgressMonitor("tensorrt_rtx")


def kinds(events: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (event.kind, event.phase, getattr(event, "step", None))
        for event in events
        if not isinstance(event, CancelDelivered)
    ]


def test_it_derives_from_the_class_of_the_package_that_builds(monitor: Any) -> None:
    assert isinstance(monitor, tensorrt_rtx.IProgressMonitor)
    assert isinstance(monitor, ProgressMonitor)
    assert type(ProgressMonitor(tensorrt_rtx)) is type(monitor)
    assert repr(monitor) == "ProgressMonitor('tensorrt_rtx')"

    class Mine(ProgressMonitor):
        pass

    assert isinstance(Mine("tensorrt_rtx"), tensorrt_rtx.IProgressMonitor)


def test_callbacks_come_out_in_order_and_steps_are_coalesced(monitor: Any) -> None:
    monitor.phase_start("root", None, 3)
    monitor.phase_start("leaf", "root", 100)
    for step in range(0, 100, 2):
        assert monitor.step_complete("leaf", step) is True
    monitor.phase_finish("leaf")
    monitor.step_complete("root", 0)
    events = monitor.drain()
    assert [event.kind for event in events] == ["phase_start", "phases", "step_complete"]
    events = [single for event in events for single in expand(event)]
    assert kinds(events) == [
        ("phase_start", "root", None),
        ("phase_start", "leaf", None),
        ("step_complete", "leaf", 98),
        ("phase_finish", "leaf", None),
        ("step_complete", "root", 0),
    ]
    assert events[1].parent == "root"
    assert events[1].num_steps == 100
    times = [event.time for event in events]
    assert times == sorted(times)
    assert monitor.drain() == []
    monitor.step_complete("root", 1)
    assert kinds(monitor.drain()) == [("step_complete", "root", 1)]


@pytest.mark.parametrize("every", [1, 7, 500, 10_000])
def test_the_recorded_build_comes_out_whole_however_often_it_is_drained(
    monitor: Any, every: int
) -> None:
    """A recorded trace, since full TensorRT cannot run here."""
    events = mnist_events()
    tree, direct = PhaseTree(), PhaseTree()
    for index in range(0, len(events), every):
        replay(monitor, events[index : index + every])
        tree.apply(monitor.drain())
    direct.apply(events)
    for name in ("path", "count", "steps", "num_steps"):
        assert tree.timing_columns()[name] == direct.timing_columns()[name]
    assert not tree.anomalies
    assert tree.spans_dropped == 0


def test_the_drain_loses_nothing_while_threads_record() -> None:
    monitor = ProgressMonitor("tensorrt_rtx")
    rounds = 3
    tree = PhaseTree()
    threads = [
        threading.Thread(target=lambda: [replay(monitor, mnist_events()) for _ in range(rounds)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tree.apply(monitor.drain())
    tree.apply(monitor.drain())
    columns = tree.timing_columns()
    expected = PhaseTree()
    expected.apply(mnist_events())
    assert columns["path"] == expected.timing_columns()["path"]
    for name in ("count", "steps"):
        whole = [4 * rounds * value for value in expected.timing_columns()[name]]
        assert columns[name] == whole
    assert not tree.anomalies
    assert not tree.open_phases


def test_after_a_cancel_every_step_answers_false_and_it_says_when(monitor: Any) -> None:
    monitor.phase_start("root", None, 3)
    assert monitor.step_complete("root", 0) is True
    assert monitor.answered_false is None
    monitor.request_cancel("deadline")
    monitor.request_cancel("user")
    assert monitor.cancel_reason == "deadline"
    assert monitor.answered_false is None
    assert monitor.step_complete("root", 1) is False
    assert monitor.step_complete("nobody", 1) is False
    assert monitor.answered_false == "cancel"
    delivered = [event for event in monitor.drain() if isinstance(event, CancelDelivered)]
    assert len(delivered) == 1
    assert repr(monitor) == "ProgressMonitor('tensorrt_rtx', cancel requested: deadline)"


def test_a_step_or_finish_from_another_thread_finds_its_phase(monitor: Any) -> None:
    monitor.phase_start("root", None, 3)
    other = threading.Thread(
        target=lambda: (monitor.step_complete("root", 2), monitor.phase_finish("root"))
    )
    other.start()
    other.join()
    tree = PhaseTree()
    tree.apply(monitor.drain())
    assert tree.timing_columns()["steps"] == [3]
    assert not tree.open_phases
    assert not tree.anomalies


def test_unknown_phases_are_passed_on_and_bounded(monitor: Any) -> None:
    for index in range(3 * MAX_COLLAPSED):
        monitor.step_complete(f"ghost {index}", 0)
        monitor.phase_finish(f"ghost {index}")
    events = monitor.drain()
    steps = [event for event in events if isinstance(event, StepCompleted)]
    assert len(steps) == MAX_COLLAPSED
    assert sum(isinstance(event, PhaseFinished) for event in events) == 3 * MAX_COLLAPSED


def test_a_nested_phase_of_the_same_name_is_an_instance_of_its_own(monitor: Any) -> None:
    monitor.phase_start("x", None, 1)
    monitor.phase_start("x", "x", 1)
    monitor.step_complete("x", 0)
    monitor.phase_finish("x")
    monitor.phase_finish("x")
    tree = PhaseTree()
    tree.apply(monitor.drain())
    assert tree.timing_columns()["path"] == ["x", "x > x"]
    assert tree.timing_columns()["steps"] == [0, 1]
    assert not tree.open_phases


# ------------------------------------------------------------------ runs


def leaf(monitor: Any, name: str, parent: str | None, last: int = -1) -> None:
    monitor.phase_start(name, parent, 3)
    if last >= 0:
        monitor.step_complete(name, last)
    monitor.phase_finish(name)


def test_phases_that_follow_each_other_come_as_one_run(monitor: Any) -> None:
    monitor.phase_start("root", None, 9)
    leaf(monitor, "a", "root", 1)
    monitor.step_complete("root", 0)  # does not end a run
    leaf(monitor, "a", "root")
    leaf(monitor, "b", "root", 2)
    leaf(monitor, "a", "root")
    monitor.phase_start("b", "root", 1)
    leaf(monitor, "a", "root")
    leaf(monitor, "a", "b", 0)
    monitor.phase_finish("unknown")
    leaf(monitor, "a", "b", 1)
    monitor.phase_finish("b")
    events = monitor.drain()
    runs = [event for event in events if isinstance(event, PhasesCompleted)]
    assert [(run.phase, run.parent, run.last_steps) for run in runs] == [
        ("a", "root", (1, -1)),
        ("b", "root", (2,)),
        ("a", "root", (-1,)),
        ("a", "root", (-1,)),
        ("a", "b", (0,)),
        ("a", "b", (1,)),
    ]
    for run in runs:
        times = [time for pair in zip(run.starts, run.ends, strict=True) for time in pair]
        assert times == sorted(times)
        assert run.time == run.ends[-1]
        assert set(run.num_steps) == {3}
        assert run.thread == threading.get_ident()
    assert [event.kind for event in events if event not in runs] == [
        "phase_start",
        "step_complete",
        "phase_start",
        "phase_finish",
        "phase_finish",
    ]


def test_a_phase_that_was_reported_open_is_no_run(monitor: Any) -> None:
    monitor.phase_start("root", None, 9)
    monitor.phase_start("a", "root", 3)
    monitor.drain()
    monitor.step_complete("a", 1)
    monitor.phase_finish("a")
    assert kinds(monitor.drain()) == [("step_complete", "a", 1), ("phase_finish", "a", None)]


def test_phases_of_other_threads_are_runs_of_their_own(monitor: Any) -> None:
    leaf(monitor, "a", None)
    other = threading.Thread(target=leaf, args=(monitor, "a", None))
    other.start()
    other.join()
    leaf(monitor, "a", None)
    threads = [event.thread for event in monitor.drain()]
    mine = threading.get_ident()
    assert threads == [mine, other.ident, mine]


def test_where_clocks_and_queue_disagree_every_phase_is_told_singly(monitor: Any) -> None:
    """Made by hand: two threads that are interrupted between their clock and the queue."""
    monitor.phase_start("root", None, 9)
    leaf(monitor, "a", "root", 1)
    leaf(monitor, "a", "root", 1)
    monitor.phase_start("late", "root", 1)
    first, late = monitor._queue[1], monitor._queue[-1]
    late.start = first.end
    events = monitor.drain()
    assert kinds(events) == [
        ("phase_start", "root", None),
        ("phase_start", "a", None),
        ("step_complete", "a", 1),
        ("phase_finish", "a", None),
        ("phase_start", "late", None),
        ("phase_start", "a", None),
        ("step_complete", "a", 1),
        ("phase_finish", "a", None),
    ]
    assert [event.time for event in events] == sorted(event.time for event in events)


# ------------------------------------------------------------------ bounds


def test_when_nobody_drains_phases_are_counted_and_none_is_lost(monitor: Any) -> None:
    many = 3 * MAX_QUEUED
    monitor.phase_start("root", None, many)
    for index in range(many):
        monitor.phase_start("x", "root", 2)
        monitor.step_complete("x", 1)
        monitor.phase_finish("x")
        monitor.step_complete("root", index)
    monitor.phase_start("late", "root", 5)
    monitor.step_complete("late", 2)
    events = monitor.drain()
    assert len(events) < 4 * MAX_QUEUED
    assert sum(isinstance(event, PhasesCollapsed) for event in events) == 1
    tree = PhaseTree()
    tree.apply(events)
    columns = tree.timing_columns()
    assert columns["path"] == ["root", "root > x", "root > late"]
    assert columns["count"] == [1, many, 1]
    assert columns["steps"] == [many, 2 * many, 3]
    assert columns["status"] == ["running", "done", "running"]
    assert sum(columns["self_s"]) == pytest.approx(columns["total_s"][0])
    # and it goes on as if nothing had happened
    monitor.phase_finish("late")
    monitor.phase_finish("root")
    tree.apply(monitor.drain())
    assert not tree.open_phases
    assert not tree.anomalies


def test_names_without_end_are_counted_together(monitor: Any) -> None:
    many = MAX_QUEUED + 5 * MAX_COLLAPSED
    monitor.phase_start("root", None, 1)
    for index in range(many):
        monitor.phase_start(f"layer {index}", "root", 1)
        monitor.phase_finish(f"layer {index}")
    collapsed = [event for event in monitor.drain() if isinstance(event, PhasesCollapsed)]
    assert len(collapsed) <= MAX_COLLAPSED + 1
    assert collapsed[-1].path == ("root", OTHER)
    queued = MAX_QUEUED // 2
    assert sum(event.count for event in collapsed) == pytest.approx(many - queued, abs=2)


def test_phases_that_never_finish_are_bounded(monitor: Any) -> None:
    tree = PhaseTree()
    for _ in range(5):
        for index in range(MAX_OPEN):
            monitor.phase_start(f"open {index}", None, 1)
        tree.apply(monitor.drain())
    assert len(tree.open_phases) <= 3 * MAX_OPEN
    assert sum(tree.timing_columns()["count"]) + len(monitor._unqueued) == 5 * MAX_OPEN


def test_memory_does_not_grow_with_the_number_of_steps(monitor: Any) -> None:
    monitor.phase_start("root", None, 10**6)
    monitor.step_complete("root", 0)
    tracemalloc.start()
    try:
        for step in range(200_000):
            monitor.step_complete("root", step)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000


# ------------------------------------------------------------------ chained monitors


class Recorder:
    def __init__(self, answer: Any = True) -> None:
        self.calls: list[Any] = []
        self.answer = answer

    def phase_start(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def phase_finish(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def step_complete(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_chained_monitor_is_called_and_can_cancel(monitor: Any) -> None:
    other = Recorder(answer=True)
    monitor.chain(other)
    monitor.chain(other)
    monitor.chain(None)
    monitor.chain(monitor)
    monitor.phase_start("root", None, 2)
    assert monitor.step_complete("root", 0) is True
    other.answer = None
    assert monitor.step_complete("root", 1) is False
    assert monitor.answered_false == "monitor"
    monitor.phase_finish("root")
    assert other.calls == [("root", None, 2), ("root", 0), ("root", 1), ("root",)]


def test_a_chained_monitor_that_raises_harms_nobody(monitor: Any) -> None:
    monitor.chain(Recorder(answer=RuntimeError("boom")))
    monitor.phase_start("root", None, 2)
    assert monitor.step_complete("root", 0) is True
    assert monitor.other_errors() == ["Recorder.step_complete: RuntimeError('boom')"]
    assert monitor.other_errors() == []


# ------------------------------------------------------------------ Ctrl-C


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill cannot send SIGINT on Windows")
def test_ctrl_c_sets_the_flag_and_the_old_handler_comes_back(monitor: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    with monitor.cancel_on_interrupt() as same:
        assert same is monitor
        os.kill(os.getpid(), signal.SIGINT)
        assert monitor.step_complete("x", 0) is False
        with pytest.raises(KeyboardInterrupt):  # the second one goes to Python's own handler
            os.kill(os.getpid(), signal.SIGINT)
    assert monitor.cancel_reason == "interrupt"
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [t for t in threading.enumerate() if t.name == "trt_widget interrupt"]


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process")
def test_a_second_ctrl_c_ends_a_process_that_had_the_default_handler() -> None:
    script = """
import os, signal
from trt_widget import ProgressMonitor
signal.signal(signal.SIGINT, signal.SIG_DFL)
with ProgressMonitor("tensorrt_rtx").cancel_on_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    print("once", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("twice", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("once\n", -signal.SIGINT)


def test_only_the_main_thread_can_take_ctrl_c_over(monitor: Any) -> None:
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with monitor.cancel_on_interrupt():
                pass
        except BuildStateError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill cannot send SIGINT on Windows")
def test_ctrl_c_reaches_the_flag_while_the_main_thread_is_in_c() -> None:
    """The main thread runs no bytecode, as inside TensorRT: another thread sees the flag."""
    script = textwrap.dedent(
        """
        import hashlib, os, signal, threading, time
        from trt_widget import ProgressMonitor
        monitor = ProgressMonitor("tensorrt_rtx")
        seen = []
        def watch():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            seen.append((monitor.cancel_requested, time.monotonic()))
        with monitor.cancel_on_interrupt():
            thread = threading.Thread(target=watch)
            thread.start()
            while not seen:  # C code without the interpreter, which a signal does not interrupt
                began = time.monotonic()
                hashlib.pbkdf2_hmac("sha256", b"", b"", 5_000_000)
                ended = time.monotonic()
            thread.join()
        print("seen:", seen[0][0], "while in C:", began < seen[0][1] - 0.2 < seen[0][1] < ended)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "seen: True while in C: True"


def test_a_name_that_is_very_long_is_shortened_and_still_matched(monitor: Any) -> None:
    long, other = "n" * 100_000, "n" * 100_001
    monitor.phase_start(long, None, 2)
    monitor.phase_start(other, long, 2)
    monitor.step_complete(other, 0)
    monitor.drain()
    monitor.phase_finish(other)
    monitor.step_complete(long, 1)
    monitor.phase_finish(long)
    monitor.phase_finish(long)  # a stray one
    tree = PhaseTree()
    monitor2 = ProgressMonitor("tensorrt_rtx")
    for name, above in ((long, None), (other, long)):
        monitor2.phase_start(name, above, 2)
    monitor2.step_complete(other, 0)
    monitor2.phase_finish(other)
    monitor2.phase_finish(long)
    tree.apply(monitor2.drain())
    first, second = tree.timing_columns()["phase"]
    assert len(first) < 600 > len(second)
    assert first != second
    assert "100000 characters" in first
    assert tree.timing_columns()["depth"] == [0, 1]
    assert not tree.anomalies
