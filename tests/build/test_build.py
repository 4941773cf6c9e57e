"""Real builds by tensorrt_rtx on this machine's CPU."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import tensorrt_rtx as trt

from tests import models
from tests.interrupts import interrupt_wait
from trt_widget import Build as AnyBuild
from trt_widget import (
    BuildCancelled,
    BuildError,
    BuildFailed,
    BuildStateError,
    ProgressMonitor,
    SourceError,
    WrongBackendError,
)
from trt_widget.events import Estimate, StatusChanged, StreamStarted
from trt_widget.executors.attached import AttachedExecutor
from trt_widget.executors.gate import GATE
from trt_widget.network import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trt_widget.events import Event
    from trt_widget.executors import Hooks

#: Where the builds of a test run, unless it says otherwise: every test runs with both.
EXECUTORS = ("thread", "process")
_chosen = EXECUTORS[0]


class Build(AnyBuild):
    """A build by the executor that the test runs with."""

    def __init__(self, source: Any, **options: Any) -> None:
        options.setdefault("executor", _chosen)
        super().__init__(source, **options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("executors")
    chosen = marker.args if marker is not None else EXECUTORS
    metafunc.parametrize("executor", chosen, indirect=True)


@pytest.fixture(autouse=True)
def executor(request: pytest.FixtureRequest) -> str:
    global _chosen  # noqa: PLW0603 - read by the class above
    _chosen = request.param
    return _chosen


#: Long enough to be cancelled, short enough for a test: about 0.3 s of callbacks, then silence.
DENSENET = models.light_model("densenet121")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 30
    while left := [t for t in threading.enumerate() if t not in before]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        left[0].join(0.1)
    assert not GATE._queues


def statuses(build: Build) -> list[str]:
    """Record the states that subscribers see."""
    seen: list[str] = []

    def note(events: list[Event]) -> None:
        seen.extend(event.status for event in events if isinstance(event, StatusChanged))

    build.subscribe(note)
    return seen


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def assert_sound(build: Build) -> None:
    """Check what holds for every ended build."""
    result = build.result
    assert result is not None
    assert result.status == build.status
    timings, spans = build.timings, build.spans
    roots = timings[timings["depth"] == 0]["total_s"].sum()
    assert timings["self_s"].sum() == pytest.approx(roots, abs=1e-6)
    assert spans["self_s"].sum() == pytest.approx(roots, abs=1e-6)
    assert "running" not in set(timings["status"]) | set(spans["status"])
    assert timings["count"].sum() == len(spans)
    assert roots <= result.duration_s + 1e-6
    assert not build.tree.anomalies


# ------------------------------------------------------------------ success


def test_a_real_model_is_built_and_everything_is_known_about_it(
    executor: str, tmp_path: Path
) -> None:
    output = tmp_path / "resnet50.engine"
    build = Build(models.light_model("resnet50"), output=output)
    batches: list[list[Event]] = []
    build.subscribe(batches.append)
    assert build.status == "pending"
    assert build.engine is build.result is None
    assert repr(build) == "Build('light_resnet50.onnx')"

    assert build.start() is build
    engine = build.wait()

    assert build.status == "succeeded"
    assert repr(build) == "Build('light_resnet50.onnx', succeeded)"
    assert output.read_bytes() == bytes(engine)
    assert trt.Runtime(trt.Logger(trt.Logger.ERROR)) is not None
    result = build.result
    assert result is not None
    assert (result.status, result.ended_by, result.reason) == ("succeeded", "completed", None)
    assert result.engine_bytes == len(engine) == output.stat().st_size > 100_000
    assert (result.backend, result.version) == ("tensorrt_rtx", trt.__version__)
    assert result.output == output
    assert result.executor == build.executor == executor
    assert result.peak_memory_bytes > 10_000_000
    assert result.layers > 100
    assert result.stop_latency_s is result.error is None

    timings = build.timings.set_index("path")
    assert list(build.timings.columns) == [
        *("phase", "path", "depth", "count", "total_s", "self_s", "mean_s", "max_s", "share"),
        *("steps", "num_steps", "status"),
    ]
    assert timings.index[0] == "Building engine"
    silent = "Building engine > Building engine from subgraph > Computing profile costs"
    assert timings.loc[f"{silent} > Determining refit engines", "share"] > 0.5
    assert set(timings["status"]) == {"done"}
    assert build.timings.attrs["complete"]
    assert list(build.spans.columns) == [
        *("phase", "path", "depth", "parent", "start_s", "end_s", "duration_s", "self_s"),
        *("steps", "num_steps", "status"),
    ]
    assert_sound(build)
    log = build.log
    assert list(log.columns) == ["time_s", "severity", "message"]
    assert log["message"].str.contains("Engine generation completed").any()

    events = [event for batch in batches for event in batch]
    assert isinstance(events[0], StreamStarted)
    assert [e.status for e in events if isinstance(e, StatusChanged)] == ["running", "succeeded"]
    assert isinstance(events[-1], StatusChanged)
    # An estimate may be ahead of what is still on its way from the child.
    times = [event.time for event in events if not isinstance(event, Estimate)]
    assert times == sorted(times)

    copy = build.save(tmp_path / "copy.engine")
    assert copy.read_bytes() == output.read_bytes()


def test_the_engine_is_accepted_where_bytes_are() -> None:
    engine = Build(models.mlp()).start().wait()
    assert bytes(engine)[:4] == bytes(engine[:4])
    with contextlib.closing(open(os.devnull, "wb")) as sink:  # noqa: PTH123 - a device
        assert sink.write(engine) == len(engine)
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    # Without a GPU there is no execution; the runtime takes the buffer and looks for the driver.
    runtime.deserialize_cuda_engine(engine)


@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto", "callable", "with parser"])
def test_every_form_of_source(form: str, tmp_path: Path) -> None:
    made = models.mlp()
    path = tmp_path / "net.onnx"
    onnx.save(made, str(path))

    def load(*, with_parser: bool = False) -> Any:
        builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
        network = builder.create_network()
        parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
        assert parser.parse(made.SerializeToString())
        return (builder, network, parser) if with_parser else (builder, network)

    sources = {
        "path": path,
        "str": str(path),
        "bytes": made.SerializeToString(),
        "proto": made,
        "callable": load,
        "with parser": lambda: load(with_parser=True),
    }
    assert len(Build(sources[form]).start().wait()) > 1000


def test_external_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    path = models.save_external(models.mlp(), tmp_path / "net.onnx")
    assert len(Build(path).start().wait()) > 1000


def test_profiles_flags_level_workspace_target_and_configure_reach_tensorrt(
    tmp_path: Path,
) -> None:
    told = tmp_path / "seen.json"  # written, since a child's variables stay in the child

    def configure(builder: Any, network: Any, config: Any) -> None:
        seen: dict[str, Any] = {}
        seen["types"] = (type(builder).__name__, type(network).__name__)
        seen["profiles"] = config.num_optimization_profiles
        seen["level"] = config.builder_optimization_level
        seen["workspace"] = config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)
        seen["flag"] = config.get_flag(trt.BuilderFlag.DISABLE_TIMING_CACHE)
        seen["targets"] = config.num_compute_capabilities
        told.write_text(json.dumps(seen))

    build = Build(
        models.dynamic(),
        profiles=[{"x": ((1, 8), (4, 8), (8, 8))}, {"x": ((1, 8), (1, 8), (1, 8))}],
        flags=["DISABLE_TIMING_CACHE"],
        optimization_level=2,
        workspace=1 << 28,
        target=["SM86", "SM120"],
        configure=configure,
    )
    assert len(build.start().wait()) > 1000
    assert json.loads(told.read_text()) == {
        "types": ["Builder", "INetworkDefinition"],
        "profiles": 2,
        "level": 2,
        "workspace": 1 << 28,
        "flag": True,
        "targets": 2,
    }


def test_a_config_callable_makes_the_config_and_its_monitor_is_called_too(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def config(builder: Any, _network: Any) -> Any:
        class Counter(trt.IProgressMonitor):  # type: ignore[misc]
            def note(self, *_: Any) -> bool:
                with calls.open("a") as file:
                    file.write("x")
                return True

            phase_start = phase_finish = step_complete = note

        made = builder.create_builder_config()
        made.progress_monitor = Counter()
        return made

    build = Build(models.mlp(), config=config).start()
    build.wait()
    assert calls.stat().st_size > build.timings["steps"].sum()


def test_messages_are_forwarded_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="trt_widget.tensorrt"):
        Build(models.mlp()).start().wait()
    assert "Engine generation completed" in caplog.text


def test_timings_are_right_while_it_runs() -> None:
    build = Build(models.light_model("resnet50")).start()
    until(lambda: len(build.timings) > 1)
    while build.status == "running":
        timings = build.timings
        roots = timings[timings["depth"] == 0]["total_s"].sum()
        assert timings["self_s"].sum() == pytest.approx(roots, abs=1e-3)
        time.sleep(0.01)
    build.wait()


# ------------------------------------------------------------------ cancel


class CancelAt:
    """A chained monitor that asks for a cancel inside one callback, which it counts to.

    It needs the build at hand, and so a thread; the child's own monitor is the same.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.calls = 0
        self.build: Build

    def make(self) -> Any:
        outer = self

        class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
            def _count(self) -> None:
                if outer.calls == outer.index:
                    outer.build.request_cancel()
                outer.calls += 1

            def phase_start(self, *_: Any) -> None:
                self._count()

            def phase_finish(self, *_: Any) -> None:
                self._count()

            def step_complete(self, *_: Any) -> bool:
                self._count()
                return True

        return Monitor()


def build_cancelled_at(index: int) -> tuple[Build, CancelAt]:
    at = CancelAt(index)

    def configure(_builder: Any, _network: Any, config: Any) -> None:
        config.progress_monitor = at.make()

    at.build = Build(models.mlp(), configure=configure, executor="thread")
    at.build.start().wait_ended()
    return at.build, at


@pytest.mark.executors("thread")
def test_cancel_at_every_callback_of_a_small_network() -> None:
    whole, at = build_cancelled_at(-1)
    assert whole.status == "succeeded"
    callbacks = at.calls
    assert callbacks > 40
    ended: list[str] = []
    for index in range(callbacks):
        build, at = build_cancelled_at(index)
        assert_sound(build)
        result = build.result
        assert result is not None
        assert result.reason == "user"
        assert result.stop_latency_s is not None
        ended.append(build.status)
        if build.status == "cancelled":
            assert at.calls <= callbacks
            assert result.ended_by == "step"
            assert build.engine is None
            assert build.timings["status"].iloc[0] == "cancelled"
            with pytest.raises(BuildCancelled) as caught:
                build.wait()
            assert caught.value.reason == "user"
        else:
            # Asked for after the last step: the engine was there first, and is kept.
            assert build.status == "succeeded"
            assert len(build.engine) > 1000
            assert "before TensorRT could notice" in " ".join(result.notes)
    # Once it comes too late, it stays too late.
    assert ended == sorted(ended)
    assert 1 <= ended.count("succeeded") <= 5
    assert Build(models.mlp()).start().wait()


def test_states_of_a_cancel() -> None:
    build = Build(DENSENET)
    seen = statuses(build)
    build.start()
    until(lambda: len(build.timings) > 2)
    assert build.request_cancel() is True
    assert build.status in {"cancelling", "cancelled"}
    with pytest.raises(BuildCancelled, match="cancelled"):
        build.wait()
    assert seen == ["running", "cancelling", "cancelled"]
    result = build.result
    assert result is not None
    assert 0 < result.stop_latency_s < result.duration_s
    assert build.request_cancel() is False
    assert_sound(build)
    assert (build.timings["status"] == "cancelled").any()
    assert (build.timings["status"] == "done").any()


def test_cancel_before_the_start() -> None:
    build = Build(models.mlp())
    seen = statuses(build)
    assert build.request_cancel() is True
    assert build.status == "cancelled"
    assert build.start() is build
    with pytest.raises(BuildCancelled):
        build.wait()
    result = build.result
    assert result is not None
    assert (result.ended_by, result.duration_s) == ("before build", 0.0)
    assert seen == ["cancelled"]
    assert build.timings.empty


def test_a_hundred_cancels_from_many_threads() -> None:
    build = Build(DENSENET).start()
    threads = [
        threading.Thread(target=lambda: [build.request_cancel() for _ in range(25)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(BuildCancelled):
        build.wait()
    assert_sound(build)


def test_a_reason_has_to_be_one_of_the_known() -> None:
    build = Build(models.mlp())
    for request in (build.request_cancel, build.signal_cancel, ProgressMonitor().request_cancel):
        with pytest.raises(ValueError, match="not a reason"):
            request("because")
    assert build.start().wait()


def test_cancel_after_the_end_changes_nothing() -> None:
    build = Build(models.mlp()).start()
    engine = build.wait()
    assert build.request_cancel() is False
    assert build.status == "succeeded"
    assert build.wait() is engine


def test_at_the_deadline_it_is_cancelled_and_says_so() -> None:
    build = Build(DENSENET, timeout=0.15).start()
    with pytest.raises(BuildCancelled, match=r"time was up after 0\.15 s") as caught:
        build.wait()
    assert caught.value.reason == "deadline"
    result = build.result
    assert result is not None
    assert result.reason == "deadline"
    assert result.duration_s >= 0.15


def test_a_subscriber_that_blocks_does_not_hold_up_the_deadline() -> None:
    build = Build(models.light_model("resnet50"), configure=models.slowly(), timeout=0.3)
    naps = iter([8.0])
    build.subscribe(lambda _events: time.sleep(next(naps, 0.0)))
    build.start().wait_ended()
    assert build.result.reason == "deadline"
    assert build.result.duration_s < 8.0  # the subscriber still slept when it had ended


def test_a_cancel_by_the_users_own_monitor_is_a_cancel() -> None:
    def configure(_builder: Any, _network: Any, config: Any) -> None:
        class No(trt.IProgressMonitor):  # type: ignore[misc]
            def phase_start(self, *_: Any) -> None:
                pass

            def phase_finish(self, *_: Any) -> None:
                pass

            def step_complete(self, *_: Any) -> bool:
                return False

        config.progress_monitor = No()

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildCancelled) as caught:
        build.wait()
    assert caught.value.reason == "monitor"
    assert build.timings["status"].iloc[0] == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill cannot send SIGINT on Windows")
def test_interrupt_during_wait_cancels_and_a_second_one_leaves() -> None:
    build = Build(DENSENET).start()
    until(lambda: len(build.timings) > 1)
    sender = interrupt_wait(build)
    with pytest.raises(BuildCancelled) as caught:
        build.wait()
    assert caught.value.reason == "interrupt"
    sender.join()

    stubborn = Build(models.transformer(24))
    stubborn.start()
    until(lambda: "Determining refit engines" in set(stubborn.timings["phase"]))
    sender = interrupt_wait(stubborn, lambda: stubborn.status == "cancelling")
    with pytest.raises(KeyboardInterrupt):
        stubborn.wait()
    sender.join()
    stubborn.wait_ended()
    assert stubborn.result.reason == "interrupt"


# ------------------------------------------------------------------ waiting


def test_wait_with_a_limit_leaves_the_build_alone() -> None:
    build = Build(DENSENET).start()
    until(lambda: build.status == "running")
    with pytest.raises(TimeoutError, match="still running"):
        build.wait(timeout=0.1)
    assert build.status == "running"
    build.request_cancel()
    build.wait_ended()


def test_await_gives_the_engine_and_leaves_the_loop_free() -> None:
    async def main() -> tuple[Any, int]:
        build = Build(models.light_model("resnet50")).start()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counting = asyncio.create_task(count())
        engine = await build
        counting.cancel()
        assert await build is engine
        return engine, turns

    engine, turns = asyncio.run(main())
    assert len(engine) > 1000
    assert turns > 10


def test_a_cancelled_await_cancels_the_build() -> None:
    build = Build(DENSENET)

    async def main() -> None:
        build.start()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(build, 0.2)

    asyncio.run(main())
    build.wait_ended()
    assert build.result.reason == "interrupt"


def test_await_raises_what_wait_raises() -> None:
    async def main() -> None:
        await Build(b"this is no ONNX file").start()

    with pytest.raises(BuildFailed):
        asyncio.run(main())


def test_waiting_for_what_was_not_started_and_starting_twice() -> None:
    build = Build(models.mlp())
    with pytest.raises(BuildStateError, match=r"not started(.|\n)*start\(\)"):
        build.wait()
    with pytest.raises(BuildStateError, match="not started"):
        asyncio.run(build._await())
    with pytest.raises(BuildStateError, match="no engine"):
        build.save("x.engine")
    build.start()
    with pytest.raises(BuildStateError, match="started already"):
        build.start()
    build.wait()
    with pytest.raises(BuildStateError, match="started already"):
        build.start()


@pytest.mark.executors("thread")
def test_the_interpreters_switch_interval_is_given_back() -> None:
    before = sys.getswitchinterval()
    build = Build(DENSENET).start()
    until(lambda: sys.getswitchinterval() < before)
    build.request_cancel()
    build.wait_ended()
    until(lambda: sys.getswitchinterval() == before)


# ------------------------------------------------------------------ two at once


def test_a_second_build_waits_its_turn_and_says_for_what() -> None:
    first = Build(DENSENET).start()
    second = Build(models.mlp())
    seen = statuses(second)
    third = Build(models.mlp(2))
    second.start()
    third.start()
    until(lambda: second.waiting_for == "light_densenet121.onnx")
    assert second.status == "pending"
    third.request_cancel()
    with pytest.raises(BuildCancelled):
        third.wait()
    until(lambda: first.status == "running")
    assert second.status == "pending"
    time.sleep(0.5)
    freed = time.perf_counter()
    second.cancel_blocker()
    with pytest.raises(BuildCancelled):
        first.wait()
    assert first.result.reason == "user"
    assert len(second.wait()) > 1000
    took = time.perf_counter() - freed
    assert seen == ["pending", "running", "succeeded"]
    assert second.waiting_for is None
    # Its time begins with its turn.
    assert second.spans["start_s"].iloc[0] < second.result.duration_s < took


# ------------------------------------------------------------------ failure


def test_what_needs_the_model_to_be_read_fails_in_wait(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"this is no ONNX file")
    build = Build(path)
    seen = statuses(build)
    build.start()
    for _ in range(2):
        with pytest.raises(BuildFailed, match="ONNX"):
            build.wait()
    assert seen == ["running", "failed"]
    assert build.result.ended_by == "error"
    assert isinstance(build.result.error, BuildFailed)
    assert build.engine is None
    assert_sound(build)


def test_a_failure_inside_tensorrt_is_no_cancel() -> None:
    build = Build(models.without_output()).start()
    with pytest.raises(BuildFailed, match="output"):
        build.wait()
    assert build.status == "failed"
    assert build.messages


def test_an_engine_that_cannot_be_saved_is_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    build = Build(models.mlp(), output=folder / "net.engine")
    folder.rmdir()
    build.start()
    with pytest.raises(BuildError, match=r"net\.engine"):
        build.wait()
    assert build.status == "failed"
    assert len(build.engine) > 1000
    assert build.save(tmp_path / "net.engine").stat().st_size == len(build.engine)


def test_a_configure_of_another_signature_is_told_the_right_one() -> None:
    build = Build(models.mlp(), configure=lambda config: config).start()
    with pytest.raises(BuildFailed, match=r"called with \(builder, network, config\)"):
        build.wait()
    with pytest.raises(BuildStateError, match=r"'failed'(.|\n)*result\.error says why"):
        build.save("x.engine")


def test_an_exception_in_configure_is_the_users(executor: str, tmp_path: Path) -> None:
    def configure(_builder: Any, _network: Any, _config: Any) -> None:
        raise ZeroDivisionError("mine")

    build = Build(models.mlp(), configure=configure, output=tmp_path / "x.engine").start()
    with pytest.raises(BuildFailed, match="mine") as caught:
        build.wait()
    assert caught.value.exception_type == "builtins.ZeroDivisionError"
    assert 'raise ZeroDivisionError("mine")' in str(caught.value)
    assert "worker.py" not in str(caught.value)
    if executor == "thread":  # from a child it comes as text
        cause = caught.value.__cause__
        assert isinstance(cause, ZeroDivisionError)
        assert cause.__traceback__.tb_frame.f_code.co_name == "configure"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whatever_a_users_function_raises_nobody_waits_for_ever(
    error: type[BaseException],
) -> None:
    def configure(*_: Any) -> None:
        raise error("mine")

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildFailed):
        build.wait(timeout=60)
    assert build.status == "failed"


# ------------------------------------------------------------------ subscribers


def test_a_subscriber_that_raises_is_reported_once_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    build = Build(models.light_model("resnet50"))
    calls: list[str] = []

    def bad(_events: list[Event]) -> None:
        calls.append(threading.current_thread().name)
        raise RuntimeError("boom")

    good = statuses(build)
    build.subscribe(bad)
    build.start().wait()
    assert calls == ["trt_widget drain light_resnet50.onnx"]
    assert good == ["running", "succeeded"]
    assert caplog.text.count("raised and is dropped") == 1


def test_unsubscribing_and_a_subscriber_that_cancels_and_waits() -> None:
    build = Build(DENSENET)
    never = statuses(build)
    build.subscribe(lambda _events: None)
    stop = build.subscribe(never.extend)
    stop()
    stop()
    caught: list[BaseException] = []

    def cancel(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, StatusChanged) and event.status == "running":
                build.request_cancel()
            if isinstance(event, StatusChanged) and event.status == "cancelled":
                try:
                    build.wait()
                except BuildCancelled as error:
                    caught.append(error)

    build.subscribe(cancel)
    build.start()
    with pytest.raises(BuildCancelled):
        build.wait()
    assert len(caught) == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_subscriber_that_wants_to_leave_is_dropped_too(error: type[BaseException]) -> None:
    build = Build(models.mlp())

    def bad(_events: list[Event]) -> None:
        raise error

    build.subscribe(bad)
    assert build.start().wait(60)


def test_a_filter_of_the_log_that_raises_does_not_end_the_build() -> None:
    class Bad(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError(record.name)

    loggers = [logging.getLogger("trt_widget"), logging.getLogger("trt_widget.tensorrt")]
    bad = Bad()
    for logger in loggers:
        logger.addFilter(bad)
    try:
        build = Build(models.mlp())
        build.subscribe(lambda events: events.clear() or events[0])
        assert build.start().wait(60)
    finally:
        for logger in loggers:
            logger.removeFilter(bad)


@pytest.mark.executors("thread")
def test_what_a_build_calls_itself_cannot_wait_for_it() -> None:
    caught: list[BuildStateError] = []

    def wait(*_: Any) -> None:
        try:
            build.wait()
        except BuildStateError as error:
            caught.append(error)

    # (A build itself cannot travel, and a child could not wait for it either.)
    build = Build(models.mlp(), configure=wait, executor="thread")
    stop = build.subscribe(lambda _events: (stop(), wait()))
    assert build.start().wait(60)
    assert len(caught) == 2
    assert "cannot be waited for" in str(caught[0])


def test_a_start_that_takes_longer_than_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = GATE.queue

    def slowly(ticket: Any) -> None:
        time.sleep(0.3)  # the drain thread looks for the executor's meanwhile
        queue(ticket)

    monkeypatch.setattr(GATE, "queue", slowly)
    assert Build(models.mlp()).start().wait(60)


@pytest.mark.parametrize("which", [1, 2])
def test_without_a_thread_nobody_waits_for_ever(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == which:
            raise RuntimeError("can't start new thread")
        start(thread)

    build = Build(models.mlp())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            build.start()
    with pytest.raises(BuildFailed, match="could not be started"):
        build.wait(60)
    assert Build(models.mlp()).start().wait(60)


def test_ctrl_c_in_start_leaves_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = GATE.queue

    def interrupted(ticket: Any) -> None:
        queue(ticket)
        raise KeyboardInterrupt

    build = Build(models.mlp())
    with monkeypatch.context() as patched:
        patched.setattr(GATE, "queue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build.start()
    with pytest.raises(BuildCancelled) as caught:
        build.wait(60)
    assert caught.value.reason == "interrupt"
    assert Build(models.mlp()).start().wait(60)


def test_a_signal_handler_may_cancel_at_any_moment_of_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "a.engine"
    build = Build(models.mlp(), output=output)

    def late(_options: Any) -> str:  # after start() has looked at the status for the last time
        build.signal_cancel("user")
        return ""

    monkeypatch.setattr("trt_widget.identity.digest_of_options", late)
    build.start()
    assert build.status == "cancelled"
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result.ended_by == "before build"
    assert not GATE._queues
    assert build._executor.outcome is None  # it was never told to begin
    monkeypatch.undo()
    assert Build(models.mlp()).start().wait(60)  # whatever had begun would have been before it
    assert not output.exists()


def test_stopping_a_pending_build_is_timed_from_the_request() -> None:
    first = Build(DENSENET).start()
    second = Build(models.mlp())
    time.sleep(0.2)
    second.start()
    until(lambda: second.waiting_for is not None)
    asked = time.perf_counter()
    second.request_cancel()
    with pytest.raises(BuildCancelled):
        second.wait()
    assert 0 < second.result.stop_latency_s < time.perf_counter() - asked
    first.request_cancel()
    first.wait_ended()


def test_a_failed_build_does_not_keep_its_network() -> None:
    def no_output(_builder: Any, network: Any, _config: Any) -> None:
        network.unmark_output(network.get_output(0))

    build = Build(models.mlp(), configure=no_output).start()
    until(lambda: build.status == "failed")
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Prepared)]
    assert "no output" in str(build.result.error)


def test_names_that_are_no_text_are_the_models_fault(tmp_path: Path) -> None:
    data = models.mlp().SerializeToString()
    build = Build(data.replace(b"relu1", b"\xff" * 5).replace(b"Relu", b"Re\xff\xff")).start()
    with pytest.raises(SourceError, match="not UTF-8"):
        build.wait(60)
    if sys.platform == "linux":
        path = tmp_path / os.fsdecode(b"\xff.onnx")
        path.write_bytes(data)
        with pytest.raises(SourceError, match="not UTF-8"):
            Build(path).start().wait(60)


def test_close_cancels_and_nothing_is_kept_alive() -> None:
    def closed() -> list[weakref.ref[Any]]:
        build = Build(DENSENET).start()
        until(lambda: build.status == "running")
        build.close()
        build.wait_ended()
        assert build.result.reason == "closed"
        build._drain_thread.join()
        build._executor._thread.join()
        return [weakref.ref(build), weakref.ref(build._executor), weakref.ref(build.tree)]

    references = closed()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


# ------------------------------------------------------------------ attached builds, monitors alone


def parsed(made: onnx.ModelProto) -> tuple[Any, Any, Any, Any]:
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(made.SerializeToString())
    return builder, network, builder.create_builder_config(), parser


@pytest.mark.executors("thread")
def test_an_attached_build_succeeds() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    with Build.attach(config, name="mine") as build:
        assert build.status == "running"
        engine = build.finish(builder.build_serialized_network(network, config))
    assert engine is build.engine
    assert build.status == "succeeded"
    assert build.result.executor == "attached"
    assert build.result.engine_bytes == engine.nbytes
    assert build.name == "mine"
    assert_sound(build)
    assert set(build.timings["status"]) == {"done"}


@pytest.mark.executors("thread")
def test_without_finish_the_outcome_is_not_known() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    with Build.attach(config) as build:
        builder.build_serialized_network(network, config)
    assert build.status == "ended"
    assert build.result.status == "ended"
    assert build.timings["status"].iloc[0] == "ended"
    assert build.wait() is None


@pytest.mark.executors("thread")
def test_an_attached_build_is_cancelled_and_fails_like_any_other() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    with Build.attach(config) as build:
        build.request_cancel()
        engine = builder.build_serialized_network(network, config)
        with pytest.raises(BuildCancelled):
            build.finish(engine)
    assert build.status == "cancelled"
    assert build.timings["status"].iloc[0] == "cancelled"

    _builder, _network, config, _parser = parsed(models.mlp())
    with pytest.raises(BuildFailed, match="no engine"), Build.attach(config) as failed:
        failed.finish(None)
    assert failed.status == "failed"

    with pytest.raises(ZeroDivisionError), Build.attach(config) as broken:
        raise ZeroDivisionError
    assert broken.status == "failed"


@pytest.mark.executors("thread")
def test_a_config_can_be_used_again_after_a_cancel() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    own = ProgressMonitor("tensorrt_rtx")
    for previous in (None, own):
        config.progress_monitor = previous
        with Build.attach(config) as build:
            build.request_cancel()
            engine = builder.build_serialized_network(network, config)
            with pytest.raises(BuildCancelled):
                build.finish(engine)
        assert config.progress_monitor is previous
        with Build.attach(config) as build:
            build.finish(builder.build_serialized_network(network, config))
        assert build.status == "succeeded"
    # The same where a config= of the caller's gives one config to several builds.
    kept: dict[str, Any] = {"source": lambda: (builder, network), "config": lambda *_: config}
    kept["executor"] = "thread"
    stopped = Build(**kept)
    stopped.subscribe(lambda _events: None)
    own.request_cancel()  # the caller's own monitor stops this one
    with pytest.raises(BuildCancelled):
        stopped.start().wait(60)
    assert config.progress_monitor is own
    config.progress_monitor = None
    assert Build(**kept).start().wait(60)
    assert config.progress_monitor is None


@pytest.mark.executors("thread")
def test_an_attached_build_that_was_cancelled_before_is_not_entered() -> None:
    _builder, _network, config, _parser = parsed(models.mlp())
    build = Build.attach(config)
    build.request_cancel()
    with pytest.raises(BuildCancelled), build:
        pytest.fail("the user's builder must not run")


@pytest.mark.executors("thread")
def test_ctrl_c_while_an_attached_build_begins_leaves_nothing_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = AttachedExecutor.start

    def interrupted(executor: AttachedExecutor, hooks: Hooks) -> None:
        start(executor, hooks)
        raise KeyboardInterrupt

    _builder, _network, config, _parser = parsed(models.mlp())
    build = Build.attach(config)
    with monkeypatch.context() as patched:
        patched.setattr(AttachedExecutor, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), build:
            pytest.fail("it must not be entered")
    assert (build.status, build.result.reason) == ("cancelled", "interrupt")
    assert config.progress_monitor is None
    assert Build(models.mlp()).start().wait(60)


@pytest.mark.executors("thread")
def test_entering_an_attached_build_twice_does_not_end_it() -> None:
    _builder, _network, config, _parser = parsed(models.mlp())
    with Build.attach(config) as build:
        with pytest.raises(BuildStateError), build:
            pytest.fail("it must not be entered")
        assert build.status == "running"
        build.finish(b"engine")
    assert build.status == "succeeded"


@pytest.mark.executors("thread")
def test_an_attached_build_that_another_thread_ends_while_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Build.attach(backend="tensorrt_rtx")
    pass_by = GATE.pass_by

    def late(ticket: Any) -> None:
        ending = threading.Thread(target=build._executor.finish, args=(b"engine",))
        ending.start()
        ending.join(60)
        pass_by(ticket)

    monkeypatch.setattr(GATE, "pass_by", late)
    build.start()
    build.wait_ended(60)
    assert build.status == "succeeded"
    assert not GATE._queues


@pytest.mark.executors("thread")
def test_an_engine_that_comes_after_the_end_is_given_back() -> None:
    _builder, _network, config, _parser = parsed(models.mlp())
    with Build.attach(config) as build:
        pass
    assert build.finish(b"engine") == b"engine"
    assert build.status == "ended"


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill cannot send SIGINT on Windows")
def test_ctrl_c_in_an_attached_build_is_a_cancel_from_any_phase() -> None:
    builder, network, config, _parser = parsed(onnx.load(str(DENSENET)))
    before = signal.getsignal(signal.SIGINT)
    with Build.attach(config) as build:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        engine = builder.build_serialized_network(network, config)
        with pytest.raises(BuildCancelled) as caught:
            build.finish(engine)
    assert caught.value.reason == "interrupt"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.executors("thread")
def test_attach_keeps_the_monitor_that_is_there_and_refuses_what_is_no_config() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    own = ProgressMonitor("tensorrt_rtx")
    config.progress_monitor = own
    with Build.attach(config) as build:
        build.finish(builder.build_serialized_network(network, config))
    assert len(own.drain()) > 10
    with pytest.raises(WrongBackendError):
        Build.attach(object())
    with pytest.raises(BuildStateError):
        Build(models.mlp()).__enter__()
    with pytest.raises(BuildStateError):
        Build(models.mlp()).finish(b"")
    with pytest.raises(BuildStateError):
        _ = Build(models.mlp()).monitor


def test_other_builds_wait_for_an_attached_one() -> None:
    _builder, _network, config, _parser = parsed(models.mlp())
    with Build.attach(config, name="mine") as attached:
        other = Build(models.mlp()).start()
        until(lambda: other.waiting_for == "mine")
        attached.finish(b"engine")
    assert other.wait()


@pytest.mark.executors("thread")
def test_the_monitor_alone_in_anybodys_code() -> None:
    builder, network, config, _parser = parsed(models.mlp())
    monitor = ProgressMonitor(backend=trt)
    config.progress_monitor = monitor
    assert builder.build_serialized_network(network, config) is not None
    events = monitor.drain()
    assert events[0].phase == "Building engine"
    assert events[-1].kind == "phase_finish"
    monitor.request_cancel()
    assert builder.build_serialized_network(network, config) is None
    assert monitor.answered_false == "cancel"


def test_polygraphy_builds_with_our_monitor() -> None:
    script = textwrap.dedent(
        """
        import os
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
        from polygraphy.backend.trt import CreateConfig, NetworkFromOnnxBytes
        from polygraphy.backend.trt import engine_bytes_from_network
        from tests import models
        from trt_widget import Build
        data = models.mlp().SerializeToString()
        build = Build.attach(backend="tensorrt_rtx", name="polygraphy")
        with build:
            build.finish(engine_bytes_from_network(
                NetworkFromOnnxBytes(data), config=CreateConfig(progress_monitor=build.monitor)))
        print(build.status, build.timings.path[0])
        ours = Build(NetworkFromOnnxBytes(data), config=CreateConfig())
        print(len(ours.start().wait()) > 1000)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    # (Polygraphy itself prints its config in between.)
    assert "succeeded Building engine\n" in done.stdout
    assert done.stdout.endswith("True\n")


# ------------------------------------------------------------------ processes


def test_leaving_the_interpreter_ends_a_running_build_cleanly(executor: str) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from tests import models
        from trt_widget import Build
        build = Build(models.light_model("densenet121"), executor=sys.argv[1]).start()
        while len(build.timings) < 2:
            time.sleep(0.01)
        print("leaving", flush=True)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, executor],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


@pytest.mark.executors("thread")
def test_leaving_the_interpreter_does_not_wait_for_the_users_own_build() -> None:
    # It never ends: nobody says that it has.
    script = "from trt_widget import Build; Build.attach(backend='tensorrt_rtx').start()"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_afresh(executor: str) -> None:
    script = textwrap.dedent(
        """
        import os, sys, time
        from tests import models
        from trt_widget import Build, BuildCancelled, BuildFailed
        build = Build(models.light_model("densenet121"), executor=sys.argv[1]).start()
        while build.status != "running":
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            try:
                build.wait(60)
            except BuildFailed:
                print("child: no such build", flush=True)
            print("child:", len(Build(models.mlp()).start().wait(60)) > 1000, flush=True)
            sys.exit(0)
        print("left with", os.waitpid(child, 0)[1], flush=True)
        build.request_cancel()
        try:
            build.wait()
        except BuildCancelled:
            print("parent: cancelled")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, executor],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "child: no such build\nchild: True\nleft with 0\nparent: cancelled\n",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill cannot send SIGINT on Windows")
def test_ctrl_c_in_a_plain_script_cancels_and_prints_nothing_of_ours(executor: str) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys, threading
        from tests import models
        from trt_widget import Build, BuildCancelled
        build = Build(models.light_model("densenet121"), executor=sys.argv[1]).start()
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            build.wait()
        except BuildCancelled as error:
            print(error.reason)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, executor],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupt\n", "")
