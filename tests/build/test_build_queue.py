"""Many real builds: their order, their ends, and nothing that is left of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests import models
from trt_widget import BuildCrashed, BuildFailed, BuildQueue, BuildStateError, OptionError
from trt_widget import build_queue as queue_module
from trt_widget.build_queue import KEPT
from trt_widget.executors import process as process_module
from trt_widget.executors.gate import GATE
from trt_widget.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trt_widget.build_queue import Job, JobRow

MLP = models.mlp()
#: A build that goes on until somebody ends it: some minutes of callbacks.
ENDLESS: dict[str, Any] = {"source": MLP, "configure": models.slowly(2.0)}


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, thread, descriptor, file or place in a line."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TRT_WIDGET_ENGINES", "off")
    threads = set(threading.enumerate())
    gc.collect()
    descriptors = psutil.Process().num_fds()
    yield
    lines = queue_module._LINES.all()
    for queue in lines:  # or the tests that follow wait for it
        queue.close()
    deadline = time.monotonic() + 30
    while left := [t for t in threading.enumerate() if t not in threads]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        left[0].join(0.1)
    assert not children()
    assert not process_module._open_pipes
    assert not GATE._queues
    assert not lines
    assert not queue_module._LINES.all()
    assert not list(scratch.glob("trt_widget-*.engine*"))  # the device lock's folder stays
    gc.collect()  # a mapped engine holds a descriptor
    assert psutil.Process().num_fds() <= descriptors


class Watch:
    """Looks at every row that a queue shows, and at how the telling goes."""

    def __init__(self, queue: BuildQueue) -> None:
        self.queue = queue
        self.most = 0
        self.calls: list[frozenset[str]] = []
        self.progress: list[float] = []
        self.last_status = ""
        self.threads: set[str] = set()
        queue.subscribe(self.look)

    def look(self, changed: frozenset[str]) -> None:
        rows = self.queue.rows()
        self.calls.append(changed)
        self.most = max(self.most, sum(row.status in {"running", "cancelling"} for row in rows))
        self.progress.append(self.queue.progress)
        self.last_status = self.queue.status
        self.threads.add(threading.current_thread().name)


# ------------------------------------------------------------------ to the end


def test_a_failure_and_a_crash_do_not_stop_the_others(tmp_path: Path) -> None:
    first_time = tmp_path / "was here"

    def configure(*_: Any) -> None:
        if not first_time.exists():
            first_time.touch()
            os.abort()

    queue = BuildQueue(
        {
            "good": MLP,
            "bad": {"source": models.unknown_operators("Nonsense")},
            "crash": {"source": MLP, "configure": models.configure_crash},
            "shaky": {"source": MLP, "configure": configure},
            # Its first callback comes before the deadline also on a busy machine.
            "slow": {"source": MLP, "configure": models.slowly(2.0), "timeout": 4.0},
            "odd": {"source": MLP, "configure": lambda *_: threading.Lock(), "executor": "process"},
            "last": {"source": MLP, "output": tmp_path / "mine.engine"},
        },
        workers=2,
        output_dir=tmp_path / "engines",
    )
    watch = Watch(queue)
    queue.start()
    with pytest.raises(BuildStateError, match="started already"):
        queue.start()
    queue.wait(100)
    assert (queue.status, queue.progress, queue.eta_s) == (
        "failed",
        pytest.approx(1, abs=0.2),
        None,
    )
    assert {job.name: (job.status, job.attempts, len(job.earlier)) for job in jobs(queue)} == {
        "good": ("succeeded", 1, 0),
        "bad": ("failed", 1, 0),
        "crash": ("failed", 2, 1),
        "shaky": ("succeeded", 2, 1),
        "slow": ("cancelled", 1, 0),
        "odd": ("succeeded", 1, 0),
        "last": ("succeeded", 1, 0),
    }
    assert isinstance(queue["crash"].earlier[0].error, BuildCrashed)
    assert queue["shaky"].earlier[0].error.signal == "SIGABRT"
    results = queue.results()
    assert list(results.index) == list(queue)
    assert results.loc["last", "engine"] == tmp_path / "mine.engine"
    assert results.loc["good", "engine"] == tmp_path / "engines" / "good.engine"
    assert results.loc["good", "engine"].stat().st_size == results.loc["good", "engine_bytes"]
    assert results.loc["crash", "error_type"] == "BuildCrashed"
    assert results.loc["bad", "engine"] is None
    assert results.loc["slow", "reason"] == "deadline"
    assert "Nonsense" in results.loc["bad", "error"]
    assert (results["ended"] >= results["started"]).all()
    assert {path.name for path in (tmp_path / "engines").iterdir()} == {
        "good.engine",
        "shaky.engine",
        "odd.engine",
    }
    timings = queue.timings
    assert set(timings["job"]) >= {"good", "shaky", "odd", "last", "slow"}
    assert (timings[timings["job"] == "good"]["depth"] == 0).sum() == 1
    # What the subscribers saw.
    # By their times, since those that watch look four times a second only.
    spans = [(job.started_at, job.ended_at) for job in jobs(queue) if job.started_at]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) == 2
    assert watch.most <= 2
    assert watch.last_status == "failed"
    assert frozenset().union(*watch.calls) == set(queue)
    assert watch.progress == sorted(watch.progress)
    assert len(watch.threads) == 1
    assert repr(queue) == "BuildQueue(7 jobs, failed)"
    assert "bad" in queue._repr_mimebundle_()["text/plain"]


def jobs(queue: BuildQueue) -> list[Job]:
    return list(queue.jobs.values())


def row_of(queue: BuildQueue, name: str) -> JobRow:
    return next(row for row in queue.rows() if row.name == name)


def test_jobs_begin_in_their_order_and_one_after_the_other() -> None:
    queue = BuildQueue({f"{number}": MLP for number in range(5)}, workers=1).start()
    queue.wait(60)
    results = queue.results()
    assert queue.status == "succeeded"
    assert (queue.progress, queue.eta_s) == (1.0, 0.0)
    assert results["started"].is_monotonic_increasing
    begun, ended = list(results["started"])[1:], list(results["ended"])[:-1]
    assert all(start >= end for start, end in zip(begun, ended, strict=True))


def test_sixty_builds_leave_little_in_memory_and_all_engines_readable() -> None:
    descriptors = psutil.Process().num_fds()
    queue = BuildQueue({f"{number}": MLP for number in range(60)}, workers=2)
    most = []
    queue.subscribe(lambda _changed: most.append(psutil.Process().num_fds()))
    queue.start()
    queue.wait(110)
    assert queue.counts()["succeeded"] == 60
    # 2 builds at once, the engines of the latest, and the one file of all others.
    assert max(most) < descriptors + KEPT + 40
    gc.collect()
    assert sum(job.build is not None for job in jobs(queue)) <= KEPT + 2
    assert queue.results()["engine"].isna().all()  # a table is no place for their bytes
    engines = [job.engine for job in jobs(queue)]
    assert len(engines) == 60
    assert psutil.Process().num_fds() <= descriptors + KEPT + 10
    sizes = [row.engine_bytes for row in queue.rows()]
    assert [len(engine) for engine in engines] == sizes
    assert min(sizes) > 1000
    # The same network in the same way: each has its own engine of the same size.
    assert bytes(engines[0]) == bytes(queue["0"].engine)
    assert queue["0"].build is None
    record = queue["0"].record
    assert isinstance(record, Record)
    assert (record.name, record.status) == ("0", "succeeded")
    timings = queue.timings
    assert list(dict.fromkeys(timings["job"])) == list(queue)
    per_job = timings.groupby("job").size()
    assert per_job.nunique() == 1
    row = row_of(queue, "0")
    assert (row.status, row.progress, row.attempts) == ("succeeded", 1.0, 1)
    assert row.elapsed_s == queue["0"].result.duration_s


def test_what_is_put_away_is_read_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "KEPT_BYTES", 1)  # engines this large: one is kept
    queue = BuildQueue(dict.fromkeys("0123", MLP), workers=1, output_dir=tmp_path / "engines")
    queue.start()
    queue.wait(100)
    assert [job.build is None for job in jobs(queue)] == [True, True, False, False]
    job = queue["0"]
    assert job.build is None
    assert bytes(job.engine) == (tmp_path / "engines" / "0.engine").read_bytes()
    # Another build has written there; engines of one network are often of one size.
    other = bytearray(job.engine)
    other[len(other) // 2] ^= 1
    for changed in (bytes(other), b"something else"):
        (tmp_path / "engines" / "0.engine").write_bytes(changed)
        with pytest.raises(BuildFailed, match="another one than was built"):
            _ = job.engine
    (tmp_path / "engines" / "0.engine").unlink()
    with pytest.raises(Exception, match="cannot be read") as caught:
        _ = job.engine
    assert str(tmp_path) not in str(caught.value)
    assert queue.results().loc["0", "engine"] == tmp_path / "engines" / "0.engine"


def test_one_at_a_time_where_a_job_says_exclusive() -> None:
    queue = BuildQueue(
        {"a": {**ENDLESS, "exclusive": True}, "b": {**ENDLESS, "exclusive": True}}, workers=2
    ).start()
    until(lambda: queue["a"].status == "running" and queue["b"].waiting_for)
    assert queue["b"].waiting_for == "a"
    assert (queue["a"].status, queue["b"].status) == ("running", "pending")
    queue.request_cancel()
    queue.wait(60)
    assert queue.status == "cancelled"


def test_a_job_that_cannot_travel_fails_alone() -> None:
    lock = threading.Lock()

    def configure(*_: Any) -> None:
        lock.acquire(blocking=False)

    queue = BuildQueue(
        {"a": {"source": MLP, "configure": configure, "executor": "process"}, "b": MLP}
    ).start()
    queue.wait(60)
    assert (queue["a"].status, queue["b"].status) == ("failed", "succeeded")
    assert isinstance(queue["a"].error, OptionError)
    assert queue["a"].attempts == 1


def test_the_engine_cache_is_on_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_ENGINES", str(tmp_path / "cache"))
    first = BuildQueue({"a": MLP}).start()
    first.wait(60)
    again = BuildQueue({"b": MLP, "c": {"source": MLP, "engine_cache": False}}).start()
    again.wait(60)
    assert [job.cached for job in (first["a"], again["b"], again["c"])] == [False, True, False]
    assert list(again.results()["cached"]) == [True, False]
    assert 0.0 < again["b"].result.duration_s <= again["b"].turnaround_s
    # The same build has the same mark; what is not looked up has none.
    assert first["a"].same is not None
    assert again["c"].same is None
    assert bytes(first["a"].engine) == bytes(again["b"].engine)
    assert row_of(again, "b").cached


def test_the_history_tells_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history.sqlite3"))
    slow = {"source": MLP, "configure": models.configure_slowly}
    for_file = tmp_path / "other.onnx"
    for_file.write_bytes(models.convnet().SerializeToString())
    sweep = {"a": slow, "b": {"source": for_file, "configure": models.slowly(0.02)}}
    first = BuildQueue(sweep, workers=1).start()
    first.wait(60)
    told: list[tuple[float | None, str | None]] = []
    second = BuildQueue(sweep, workers=1)
    second.subscribe(lambda _changed: told.append((second.eta_s, second.basis)))
    monkeypatch.setattr(queue_module, "JUDGE_S", 0.05)
    second.start()
    second.wait(60)
    assert ("from earlier builds") in {basis for _, basis in told}
    known = [eta for eta, basis in told if basis is not None]
    took = sum(first.results()["duration_s"])
    assert 0.0 < known[0] < 5 * took


# ------------------------------------------------------------------ cancels


def test_one_all_that_wait_and_all_can_be_cancelled() -> None:
    queue = BuildQueue(dict.fromkeys("abcdef", ENDLESS), workers=2).start()
    until(lambda: queue.counts()["running"] == 2)
    assert queue["c"].status == "pending"
    assert queue.request_cancel("c")
    assert (queue["c"].status, queue["c"].attempts) == ("cancelled", 0)
    assert queue.request_cancel("a")
    until(lambda: queue["d"].status == "running", 30)  # the next in order, and not c
    assert queue["a"].result.reason == "user"
    assert queue.status == "running"
    started = queue.results()["started"]
    assert list(started.notna()) == [True, True, False, True, False, False]
    assert row_of(queue, "d").since == queue["d"].started_at
    assert queue.request_cancel(pending=True)
    assert [queue[name].status for name in "ef"] == ["cancelled"] * 2
    assert [queue[name].status for name in "bd"] == ["running"] * 2
    assert not queue.request_cancel(pending=True)
    assert queue.request_cancel()
    assert queue.status == "cancelling"
    queue.wait(60)
    assert queue.status == "cancelled"
    assert queue.counts()["cancelled"] == 6
    assert not queue.request_cancel()
    assert queue.progress < 1.0
    assert queue.eta_s is None


def test_a_cancel_that_meets_a_retry_wins() -> None:
    """The build has crashed, and the queue has not seen it yet."""
    queue = BuildQueue({"a": {"source": MLP, "configure": models.configure_crash}}, retries=5)

    def cancel(_events: list[Any]) -> None:
        if queue["a"].build.status == "failed":
            assert queue["a"].status == "running"
            assert queue.request_cancel("a", reason="interrupt")

    queue.start()
    until(lambda: queue["a"].build is not None)
    queue["a"].build.subscribe(cancel)
    queue.wait(60)
    job = queue["a"]
    assert (job.status, job.result.reason, job.attempts) == ("cancelled", "interrupt", 1)
    assert [type(result.error) for result in job.earlier] == [BuildCrashed]


def test_a_retry_is_the_next_and_can_be_cancelled_while_it_waits() -> None:
    waiting = threading.Event()
    queue = BuildQueue(
        {"a": {"source": MLP, "configure": models.configure_crash}, "b": MLP, "c": MLP},
        workers=1,
    )
    order: list[str] = []

    def look(changed: frozenset[str]) -> None:
        order.extend(job.name for job in jobs(queue) if job.begun and job.name in changed)
        if queue["a"].attempts == 1 and queue["a"].earlier:
            waiting.set()

    queue.subscribe(look)
    queue.start()
    queue.wait(60)
    assert [job.attempts for job in jobs(queue)] == [2, 1, 1]
    starts = queue.results()["started"]
    assert starts["a"] < starts["b"] < starts["c"]  # its second start is before the first of b


def test_a_second_queue_waits_and_a_cancel_lets_it_go() -> None:
    first = BuildQueue({"a": ENDLESS}, name="one").start()
    second = BuildQueue({"b": MLP}, name="two").start()
    third = BuildQueue({"c": MLP}, name="three").start()
    dropped = BuildQueue({"d": MLP}, name="four").start()
    again = BuildQueue({"e": MLP}, name="one")
    until(lambda: first["a"].status == "running")
    assert "(waiting for one, an earlier queue of this process, to finish)" in str(second)
    with pytest.raises(
        TimeoutError, match=r"three is still pending after 0\.01 s: it waits for one"
    ):
        third.wait(0.01)
    again.start()
    assert again.waiting_for == "an earlier queue named 'one'"
    assert (again.blocker, first.blocker, first.cancel_blocker()) == (first, None, False)
    assert (first.waiting_for, second.waiting_for, third.waiting_for) == (None, "one", "one")
    assert (second.status, second["b"].status) == ("pending", "pending")
    assert dropped.request_cancel()
    dropped.wait(60)
    assert dropped.status == "cancelled"
    assert second.cancel_blocker()
    second.wait(60)
    third.wait(60)
    again.wait(60)
    assert [queue.status for queue in (first, second, third, again)] == [
        "cancelled",
        "succeeded",
        "succeeded",
        "succeeded",
    ]
    assert first["a"].result.reason == "user"
    assert second["b"].ended_at <= third["c"].started_at
    assert third.waiting_for is None


# ------------------------------------------------------------------ waiting and telling


def test_a_wait_has_an_end_and_does_not_wait_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    queue = BuildQueue({"a": ENDLESS, "b": MLP}, workers=2)
    refused: list[str] = []

    def wait_inside(_changed: frozenset[str]) -> None:
        try:
            queue.wait()
        except BuildStateError as error:
            refused.append(error.cause)

    def wait_in_a_build(_events: Any) -> None:
        wait_inside(frozenset())

    def broken(_changed: frozenset[str]) -> None:
        broken_calls.append(1)
        msg = "this one is broken"
        raise RuntimeError(msg)

    broken_calls: list[int] = []
    end_it = queue.subscribe(wait_inside)
    queue.subscribe(broken)
    with caplog.at_level(logging.ERROR, "trt_widget"):
        queue.start()
        until(lambda: refused and broken_calls)
        end_it()
        end_it()
        until(lambda: queue["a"].status == "running")
        before = len(refused)
        queue["a"].build.subscribe(wait_in_a_build)
        until(lambda: len(refused) > before)
        with pytest.raises(TimeoutError, match=r"still running after 0\.05 s"):
            queue.wait(0.05)
        queue.close()
        queue.wait(60)
    assert len(broken_calls) == 1
    assert sum("is dropped" in message for message in caplog.messages) == 1
    caplog.clear()  # the frames of what was raised hold the queue
    assert queue["a"].result.reason == "closed"


def test_ctrl_c_in_start_gives_the_place_in_the_line_up(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = queue_module._LINES.queue

    def interrupted(queue: BuildQueue) -> None:
        enter(queue)
        raise KeyboardInterrupt

    queue = BuildQueue({"a": MLP})
    with monkeypatch.context() as patched:
        patched.setattr(queue_module._LINES, "queue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.start()
    other = BuildQueue({"b": MLP}).start()
    other.wait(60)
    assert other.status == "succeeded"
    queue.start().wait(60)
    assert queue.status == "succeeded"


def test_ctrl_c_before_the_thread_of_a_queue_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = BuildQueue({"a": MLP}, name="one")
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "trt_widget one":
            start(thread)
            return
        monkeypatch.undo()
        monkeypatch.setattr(thread, "is_alive", lambda: False)
        begun.append(thread)
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.start()
    monkeypatch.undo()
    begun[0].join(60)  # it sees that it is not the queue's
    assert not begun[0].is_alive()
    assert (queue.status, queue["a"].attempts) == ("pending", 0)
    queue.start().wait(60)
    assert (queue.status, queue["a"].attempts) == ("succeeded", 1)


def test_there_is_a_sign_of_life_while_nothing_changes() -> None:
    queue = BuildQueue({"a": {"source": MLP, "configure": lambda *_: time.sleep(300)}})
    calls: list[frozenset[str]] = []
    queue.subscribe(calls.append)
    queue.start()
    until(lambda: sum(not changed for changed in calls) >= 2)
    queue["a"].build.kill()
    queue.wait(60)
    assert calls[-1] or queue.status == "cancelled"


def test_an_await_does_not_block_and_its_end_is_that_of_the_queue() -> None:
    async def main() -> tuple[int, str]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        beside = asyncio.create_task(tick())
        queue = BuildQueue({"a": MLP, "b": models.unknown_operators("No")}).start()
        await queue
        beside.cancel()
        await queue  # at once
        cancelled = BuildQueue({"a": ENDLESS}).start()
        waiter = asyncio.ensure_future(_await(cancelled))
        await asyncio.sleep(0.1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await cancelled
        assert cancelled["a"].result.reason == "interrupt"
        return ticks, queue.status

    async def _await(queue: BuildQueue) -> None:
        await queue

    ticks, status = asyncio.run(main())
    assert ticks > 5
    assert status == "failed"


# ------------------------------------------------------------------ life and death

OWNER = """
import psutil
import time
from tests import models
from trt_widget import BuildCancelled, BuildQueue

def main():
    job = dict(source=models.mlp(), OPTIONS)
    queue = BuildQueue({name: job for name in "abc"}, workers=2, engine_cache=False)
    told = []

    def tell(_changed):
        pids = [process.pid for process in psutil.Process().children()]
        begun = [job.build for job in queue.jobs.values() if job.build is not None]
        if not told and len(pids) == 2 and all("READY" in build.printed for build in begun):
            told.append(1)
            print(*pids, flush=True)

    queue.subscribe(tell)
    queue.start()
    MODE

main()
"""
SLOW = "configure=models.slowly(2.0)"
DEAF = "configure=lambda *_: (print('asleep'), time.sleep(300)), grace=100"
WAIT = """try:
        queue.wait()
    except BuildCancelled as error:
        print("cancelled by", error.reason, flush=True)
    print(queue.status, *[job.result.reason for job in queue.jobs.values()], flush=True)"""
LEAVE = """while not told:
        time.sleep(0.01)"""
TWICE = """queue.subscribe(lambda _: queue["c"].result and print("heard", flush=True))
    try:
        queue.wait()
    except KeyboardInterrupt:
        print("left", queue.status, flush=True)"""


def owner(mode: str, options: str = SLOW, ready: str = "") -> subprocess.Popen[str]:
    script = OWNER.replace("MODE", mode).replace("OPTIONS", options).replace("READY", ready)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if mode == LEAVE else None,
        text=True,
        start_new_session=True,
    )


def builders(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    found = [int(pid) for pid in process.stdout.readline().split()]
    assert len(found) == 2
    return found


def gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


def test_interrupt_cancels_all_and_the_wait_says_so() -> None:
    with owner(WAIT) as process:
        pids = builders(process)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0
    assert said == "cancelled by interrupt\ncancelled interrupt interrupt interrupt\n"
    assert gone(pids)


def test_a_second_interrupt_leaves_at_once_and_no_builder_stays() -> None:
    with owner(TWICE, DEAF, "asleep") as process:
        pids = builders(process)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "heard\n"
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert process.returncode == 0
    assert "left cancelling" in said.splitlines()
    until(lambda: gone(pids), 20)


@pytest.mark.parametrize("how", ["SIGKILL", "leaves"])
def test_no_builder_outlives_its_owner(how: str) -> None:
    with owner(WAIT if how == "SIGKILL" else LEAVE) as process:
        pids = builders(process)
        if how == "SIGKILL":
            process.kill()
        else:
            assert process.stderr is not None
            said = process.stderr.read()
            assert (
                "queue 1 was cancelled with 3 of 3 builds not ended, because Python ended: "
                "call wait()\n"
            ) in said
        process.wait(60)
    until(lambda: gone(pids), 20)
    assert process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
def test_a_forked_process_has_nothing_to_wait_for() -> None:
    queue = BuildQueue({"a": ENDLESS}).start()
    until(lambda: queue["a"].status == "running")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            queue.wait(60)
        except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"BuildStateError"
    os.waitpid(pid, 0)
    assert queue["a"].status == "running"
    queue.request_cancel()
    queue.wait(60)
