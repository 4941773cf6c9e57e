"""One build on a Dask cluster: all that a build in a child process here can do, far away."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from distributed import Client, LocalCluster

from tests import models
from tests.cluster.conftest import Fleet, builders, until
from trt_widget import (
    Build,
    BuildCancelled,
    BuildFailed,
    BuildStateError,
    ConfigureFailed,
    OptionError,
    ParseFailed,
    SourceError,
    load_record,
)
from trt_widget._content import Piece
from trt_widget.errors import BuildCrashed
from trt_widget.events import BuildEnded, from_json
from trt_widget.executors.cluster import Channel, DaskExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trt_widget.executors import Hooks


#: About 0.3 s of callbacks, then seconds of silence.
DENSENET = models.light_model("densenet121")
SQUEEZENET = models.light_model("squeezenet")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every call of a worker: the method, and the bytes that went along or came back."""
    seen: list[tuple[str, int]] = []
    call = Channel.call

    async def noting(self: Channel, address: str, method: str, *arguments: Any, **more: Any) -> Any:
        answer = await call(self, address, method, *arguments, **more)
        sizes = [len(a) for a in (*arguments, answer) if isinstance(a, bytes)]
        seen.append((method, sum(sizes)))
        return answer

    monkeypatch.setattr(Channel, "call", noting)
    return seen


def in_the_gap(build: Build) -> None:
    """Wait until TensorRT has been silent for a while."""
    until(lambda: build.tree.paths > 8 and build.now() - build.tree.last_callback > 0.5)


# ------------------------------------------------------------------ what comes home


def test_all_that_a_build_here_gives(client: Client, tmp_path: Path) -> None:
    here = Build(SQUEEZENET, executor="process").start()
    engine = here.wait(60)
    build = Build(SQUEEZENET, client=client)
    assert build.executor == "auto"
    told: list[Any] = []
    build.subscribe(told.extend)
    far = build.start().wait(60)
    assert build.executor == "dask"
    assert len(far) == len(engine)
    result = build.result
    assert result is not None
    assert result.status == "succeeded"
    assert result.ended_by == "completed"
    assert result.executor == "dask"
    assert result.worker is not None
    assert "tcp://" in result.worker
    assert result.device == here.result.device  # type: ignore[union-attr] # it has ended
    assert result.layers == here.result.layers  # type: ignore[union-attr] # it has ended
    assert result.peak_memory_bytes is not None
    assert result.notes == ()
    assert list(build.timings["path"]) == list(here.timings["path"])
    assert list(build.timings["count"]) == list(here.timings["count"])
    assert (build.spans["end_s"] >= build.spans["start_s"]).all()
    assert list(build.log["message"])
    build.record(tmp_path / "build.json")
    kept = load_record(tmp_path / "build.json")
    assert kept.result is not None
    assert kept.result.worker == result.worker
    statuses = [event.status for event in told if type(event).__name__ == "StatusChanged"]
    assert statuses == ["running", "succeeded"]


@pytest.mark.parametrize("form", ["path", "bytes", "proto", "callable"])
def test_sources(client: Client, tmp_path: Path, form: str) -> None:
    made = models.mlp()
    path = tmp_path / "model.onnx"
    onnx.save(made, str(path))
    data = path.read_bytes()

    def source() -> tuple[Any, ...]:
        import tensorrt_rtx as trt

        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network()
        parser = trt.OnnxParser(network, logger)
        assert parser.parse(data)
        return builder, network, parser

    given = {"path": path, "bytes": data, "proto": made, "callable": source}[form]
    build = Build(given, client=client, configure=lambda *_: print("configured")).start()
    engine = build.wait(60)
    assert len(engine) == len(Build(path).start().wait(60))
    assert "configured" in build.printed
    assert build.name == Build(given).name


def test_output_on_a_shared_disk(
    client: Client, tmp_path: Path, sent: list[tuple[str, int]]
) -> None:
    output = tmp_path / "model.engine"
    build = Build(SQUEEZENET, client=client, output=output).start()
    engine = build.wait(60)
    assert output.read_bytes() == bytes(engine)
    assert build.result is not None
    assert build.result.output == output
    assert [path.name for path in tmp_path.iterdir()] == ["model.engine"]
    methods = [method for method, _ in sent]
    assert "place" in methods
    assert "get" not in methods
    assert "put" not in methods


def test_events_arrive_while_it_builds(client: Client) -> None:
    build = Build(SQUEEZENET, client=client, configure=models.slowly(0.005))
    batches = []
    build.subscribe(lambda events: batches.append(build.status) if events else None)
    assert build.start().wait(60)
    # It takes two seconds, and something happens all the time.
    assert batches.count("running") >= 4


# ------------------------------------------------------------------ another machine


@pytest.fixture
def far_away(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Client, Path]]:
    """Give a worker's client, and a folder of which the worker sees nothing."""
    here = tmp_path / "here"
    here.mkdir()
    fleet.worker("far", hidden=here)
    with fleet.client(1) as client:
        yield client, here


def test_a_model_is_sent_once_and_the_engine_comes_back(
    far_away: tuple[Client, Path], sent: list[tuple[str, int]]
) -> None:
    client, here = far_away
    made = models.mlp(layers=4, width=800)  # 10 MB: three pieces
    path = models.save_external(made, here / "model.onnx")
    weights = (here / "weights.bin").stat().st_size
    size = path.stat().st_size + weights
    assert weights > 2 * 4 * 1024 * 1024
    output = here / "out.engine"
    first = [Build(path, client=client, output=output).start(), Build(path, client=client).start()]
    engines = [build.wait(60) for build in first]
    assert sum(bytes_ for method, bytes_ in sent if method == "put") == size
    assert [bytes_ for method, bytes_ in sent if method == "get"]
    assert output.read_bytes() == bytes(engines[0])
    assert sorted(p.name for p in here.iterdir()) == ["model.onnx", "out.engine", "weights.bin"]
    assert len(engines[1]) == len(engines[0]) == len(Build(path).start().wait(60))
    before = list(sent)
    # Bytes are the same content again, and a changed model is another.
    plain = models.mlp()
    for _ in range(2):
        Build(plain, client=client).start().wait(60)
    onnx.save(plain, str(here / "plain.onnx"))
    Build(here / "plain.onnx", client=client).start().wait(60)
    again = [bytes_ for method, bytes_ in sent[len(before) :] if method == "put"]
    assert len(again) == 1


def test_weights_that_lie_elsewhere(
    far_away: tuple[Client, Path], sent: list[tuple[str, int]]
) -> None:
    client, here = far_away
    elsewhere = here / "weights"
    for folder in (elsewhere, here / "model" / "deep"):
        folder.mkdir(parents=True)
    path = models.save_external(models.mlp(), here / "model" / "model.onnx", "deep/w.bin")
    weights = here / "model" / "deep" / "w.bin"
    weights.rename(elsewhere / "w.bin")
    weights.symlink_to(elsewhere / "w.bin")
    options = {"external_data": elsewhere}
    here_built = Build(path, **options).start().wait(60)
    build = Build(path, client=client, **options).start()
    assert len(build.wait(60)) == len(here_built)
    assert sum(method == "put" for method, _ in sent) == 2


def test_missing_weights_are_missed_here(far_away: tuple[Client, Path]) -> None:
    client, here = far_away
    path = models.save_external(models.mlp(), here / "model.onnx")
    (here / "weights.bin").unlink()
    build = Build(path, client=client).start()
    with pytest.raises(SourceError, match=r"weights\.bin"):
        build.wait(60)
    assert build.worker is None


def test_an_output_that_cannot_be_written(far_away: tuple[Client, Path]) -> None:
    from trt_widget import SaveError

    client, here = far_away
    folder = here / "gone"
    folder.mkdir()
    build = Build(models.mlp(), client=client, output=folder / "out.engine")
    folder.rmdir()
    with pytest.raises(SaveError):
        build.start().wait(60)
    assert build.engine is not None  # it is not lost


# ------------------------------------------------------------------ cancel


def test_cancel_at_a_step(client: Client) -> None:
    build = Build(SQUEEZENET, client=client, configure=models.slowly(0.01)).start()
    until(lambda: build.tree.paths >= 2)
    assert build.request_cancel()
    assert build.status == "cancelling"
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == "step"
    assert build.result.reason == "user"


def test_cancel_in_the_gap_reaches_the_child_at_once(client: Client) -> None:
    build = Build(DENSENET, client=client, grace=0.0).start()
    in_the_gap(build)
    build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == "terminated"


def test_kill_and_deadline(client: Client) -> None:
    build = Build(DENSENET, client=client, configure=models.slowly(0.02)).start()
    until(lambda: build.tree.paths >= 2)
    build.kill()
    with pytest.raises(BuildCancelled):
        build.wait(60)

    build = Build(DENSENET, client=client, timeout=0.3, configure=models.slowly(0.02)).start()
    with pytest.raises(BuildCancelled, match="timeout="):
        build.wait(60)
    assert build.result is not None
    assert build.result.reason == "deadline"


def test_cancel_before_it_begins(client: Client) -> None:
    blockers = [
        Build(DENSENET, client=client, configure=models.slowly(0.02)).start() for _ in range(2)
    ]
    until(lambda: all(build.worker for build in blockers))
    build = Build(models.mlp(), client=client).start()
    until(lambda: build.waiting_for == "a free Dask worker")
    assert build.status == "pending"
    build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == "before build"
    for blocker in blockers:
        blocker.kill()
        blocker.wait_ended(60)


def test_cancel_at_any_moment_of_the_beginning(client: Client) -> None:
    for pause in (0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3):
        build = Build(DENSENET, client=client, configure=models.slowly(0.01)).start()
        time.sleep(pause)  # any moment is good
        build.request_cancel()
        with pytest.raises(BuildCancelled):
            build.wait(60)


def test_a_cancel_from_a_signal_handler_before_the_executor_is_started(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = DaskExecutor.start

    def late(self: DaskExecutor, hooks: Hooks) -> None:
        build.signal_cancel()
        until(lambda: self.outcome is not None)
        start(self, hooks)

    monkeypatch.setattr(DaskExecutor, "start", late)
    build = Build(models.mlp(), client=client)
    build.start()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == "before build"
    assert not Channel.of(client)._executors


def begin_late() -> None:
    """On a worker: let a second pass between Dask's start of a task and what is done in it."""
    import threading
    import time

    from trt_widget.executors import cluster_worker

    site_of = cluster_worker.site_of

    def late(worker: Any) -> Any:
        if "Dask-Default-Threads" in threading.current_thread().name:
            time.sleep(1.0)
        return site_of(worker)

    cluster_worker.site_of = late
    cluster_worker.site_of_in_time = site_of  # type: ignore[attr-defined]  # for begin_in_time()


def begin_in_time() -> None:
    """On a worker: undo that."""
    from trt_widget.executors import cluster_worker

    cluster_worker.site_of = cluster_worker.site_of_in_time  # type: ignore[attr-defined]


def test_a_cancel_between_dasks_start_of_a_task_and_ours(client: Client) -> None:
    """Nobody was there yet whom the worker could have told; it happens on a busy machine."""
    client.run(begin_late)
    try:
        build = Build(DENSENET, client=client, configure=models.slowly(0.01)).start()
        until(lambda: any(client.processing().values()))
        time.sleep(0.3)
        build.request_cancel()
        with pytest.raises(BuildCancelled):
            build.wait(60)
        # Its worker is free, and had nothing to end.
        until(lambda: not any(client.run(running_jobs).values()))
        assert not builders()
    finally:
        client.run(begin_in_time)
    assert Build(models.mlp(), client=client).start().wait(60)


def running_jobs(dask_worker: Any) -> int:
    """Give how many threads of a worker are at work."""
    return len(dask_worker.active_threads)


# ------------------------------------------------------------------ failures of the build itself


def test_errors_come_home(client: Client) -> None:
    build = Build(models.unknown_operators("Nope"), client=client).start()
    with pytest.raises(ParseFailed) as caught:
        build.wait(60)
    assert [node.operator for node in caught.value.nodes] == ["Nope"]

    def configure(*_: Any) -> None:
        raise ValueError("what I said")

    build = Build(models.mlp(), client=client, configure=configure).start()
    with pytest.raises(ConfigureFailed, match="what I said"):
        build.wait(60)

    build = Build(models.mlp(), client=client, configure=models.configure_crash).start()
    with pytest.raises(BuildCrashed) as crash:
        build.wait(60)
    assert crash.value.signal == "SIGSEGV"
    assert Build(models.mlp(), client=client).start().wait(60)


def test_a_drain_that_breaks_off_frees_the_worker(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(DaskExecutor, "_take_bytes", broken)
    builds = [
        Build(DENSENET, client=client, configure=models.slowly(0.02)).start() for _ in range(3)
    ]
    for build in builds:
        with pytest.raises(BuildFailed, match="broke off"):
            build.wait(60)


def test_what_cannot_travel(client: Client) -> None:
    lock = threading.Lock()
    build = Build(models.mlp(), client=client, configure=lambda *_: lock.acquire())
    with pytest.raises(OptionError, match="client= is not possible"):
        build.start()


# ------------------------------------------------------------------ clusters and clients


def test_no_worker_has_the_resources(client: Client) -> None:
    build = Build(models.mlp(), client=client, resources={"GPU": 1}).start()
    waits = "a Dask worker with GPU=1: none of 2 has it"
    until(lambda: build.waiting_for == waits)
    from trt_widget.words import describe

    assert describe(build) == f"Waits for {waits}."
    build.request_cancel()
    build.wait_ended(60)


def test_resources_choose_the_worker(fleet: Fleet) -> None:
    fleet.worker("plain")
    fleet.worker("able", "--resources", "GPU=1")
    with fleet.client(2) as client:
        builds = [Build(models.mlp(), client=client, resources={"GPU": 1}) for _ in range(3)]
        for build in builds:
            build.start()
        for build in builds:
            build.wait(60)
            assert (build.worker or "").startswith("able ")


def test_twenty_builds_of_two_clients(client: Client, cluster: LocalCluster) -> None:
    with Client(cluster, set_as_default=False) as other:
        builds = [
            Build(models.mlp(layers=2 + index % 3), client=(client, other)[index % 2])
            for index in range(20)
        ]
        for build in builds:
            build.start()
        sizes = [len(build.wait(100)) for build in builds]
    assert len(set(sizes)) == 3
    assert all(build.result is not None and not build.result.notes for build in builds)
    assert len({build.worker for build in builds}) == 2


def test_an_asynchronous_client(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            build = Build(models.mlp(), client=client).start()
            with pytest.raises(BuildStateError, match="await build"):
                build.wait()
            assert await build
            build = Build(DENSENET, client=client, configure=models.slowly(0.02)).start()
            while build.tree.paths < 2:  # noqa: ASYNC110 - a tree has no events to wait for
                await asyncio.sleep(0.01)
            build.request_cancel()
            with pytest.raises(BuildCancelled):
                await build

    asyncio.run(main())
    until(lambda: not builders())


def test_options(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, made in (
        ("tcp://192.0.2.7:8786", "Client('tcp://192.0.2.7:8786')"),
        (LocalCluster, "Client('tcp://host:8786')"),
    ):
        with pytest.raises(OptionError, match=r"must be a dask\.distributed\.Client") as caught:
            Build(models.mlp(), client=wrong)
        assert made in caught.value.remedy
        assert "pip" not in caught.value.remedy
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "distributed", None)  # as if it were not installed
        with pytest.raises(OptionError, match=r"pip install 'trt-widget\[dask\]'"):
            Build(models.mlp(), client="tcp://192.0.2.7:8786")
    with pytest.raises(OptionError, match="there is no client="):
        Build(models.mlp(), resources={"GPU": 1})
    for amounts in ({"GPU": 0}, {"GPU": "1"}, {1: 1}, "GPU", {"GPU": float("nan")}):
        with pytest.raises(OptionError, match="resources"):
            Build(models.mlp(), client=client, resources=amounts)
    with pytest.raises(OptionError, match="thread"):
        Build(models.mlp(), client=client, executor="thread")
    with pytest.raises(OptionError, match="reschedules"):
        Build(models.mlp(), client=client, reschedules=-1)
    # Paths on the worker are not looked for here.
    plugins = Build(models.mlp(), client=client, plugins=tmp_path / "nowhere.so").start()
    with pytest.raises(BuildFailed, match=r"nowhere\.so"):
        plugins.wait(60)


def test_two_threads_of_a_worker_build_side_by_side_unless_they_are_to_be_alone(
    tmp_path: Path,
) -> None:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=":0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        slow = models.slowly(0.02)
        first = Build(DENSENET, client=client, configure=slow, exclusive=True).start()
        until(lambda: first.status == "running")
        assert Build(models.mlp(), client=client).start().wait(60)  # times nothing
        assert first.status == "running"
        second = Build(models.mlp(), client=client, exclusive=True).start()
        until(lambda: second.waiting_for == first.name)
        assert second.waits_for_build
        first.request_cancel()
        first.wait_ended(60)
        assert second.wait(60)
    until(lambda: not builders())


def test_the_engine_cache_is_the_workers(client: Client, tmp_path: Path) -> None:
    first = Build(SQUEEZENET, client=client, engine_cache=tmp_path).start()
    engine = bytes(first.wait(60))
    again = Build(SQUEEZENET, client=client, engine_cache=tmp_path).start()
    assert bytes(again.wait(60)) == engine
    assert again.result is not None
    assert again.result.ended_by == "cached"
    assert again.result.worker is not None


def test_a_flood_of_callbacks_is_told_in_few_messages(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[int] = []
    hear = DaskExecutor.hear

    def counting(self: DaskExecutor, message: dict[str, Any]) -> None:
        messages.append(len(message.get("data", b"")))
        hear(self, message)

    monkeypatch.setattr(DaskExecutor, "hear", counting)
    here = Build(SQUEEZENET, configure=models.configure_flood).start()
    here.wait(100)
    build = Build(SQUEEZENET, client=client, configure=models.configure_flood).start()
    build.wait(100)
    assert sum(build.timings["count"]) == sum(here.timings["count"]) > 10_000
    assert build.result is not None
    assert build.result.notes == ()
    assert max(messages) <= 64 * 1024
    assert sum(messages) < 1_000_000
    assert len(messages) < 300


def test_a_client_that_reads_nothing_is_not_flooded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_widget.executors.cluster.WINDOW", 4)
    messages: list[str] = []
    hear = DaskExecutor.hear

    def counting(self: DaskExecutor, message: dict[str, Any]) -> None:
        messages.append(message["kind"])
        hear(self, message)

    monkeypatch.setattr(DaskExecutor, "hear", counting)
    client.run(_set_window, 4)
    try:
        build = Build(SQUEEZENET, client=client, configure=models.slowly(0.01))
        held = threading.Event()
        build.subscribe(lambda _: held.wait(60) and None)
        build.start()
        until(builders)
        until(lambda: not builders())
        assert len(messages) < 12
        held.set()
        assert build.wait(60)
        assert build.result is not None
        assert build.result.notes == ()
        assert messages[-1] == "end"
        assert build.timings.loc[0, "count"] == 1
    finally:
        client.run(_set_window, 256)


def test_what_was_read_is_told_again_where_the_worker_did_not_hear_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_widget.executors.cluster.WINDOW", 4)
    call = Channel.call
    held = threading.Event()
    failures = iter(["it does not answer", "it does not answer"])

    async def failing(
        self: Channel, address: str, method: str, *arguments: Any, **more: Any
    ) -> Any:
        if method == "read" and held.is_set() and (failure := next(failures, None)):
            raise OSError(failure)
        return await call(self, address, method, *arguments, **more)

    monkeypatch.setattr(Channel, "call", failing)
    client.run(_set_window, 4)
    try:
        build = Build(SQUEEZENET, client=client, configure=models.slowly(0.005))
        build.subscribe(lambda _: held.wait(60) and None)
        build.start()
        until(builders)
        until(lambda: not builders())
        # Nothing more comes until the worker hears that all of it was read.
        held.set()
        assert build.wait(60)
        assert next(failures, None) is None
        assert build.result is not None
        assert build.result.notes == ()
    finally:
        held.set()
        client.run(_set_window, 256)


def _set_window(window: int) -> None:
    from trt_widget.executors import cluster_worker

    cluster_worker.WINDOW = window


def test_dasks_look_at_the_threads_does_not_stop_a_worker(client: Client) -> None:
    """On Python 3.11 the collector must not run in it: CPython issue 106883."""
    Build(models.mlp(), client=client).start().wait(60)
    seen = client.run(_look_at_threads)
    assert len(seen) == 2
    collects = sys.version_info[:2] != (3, 11)
    assert set(seen.values()) == {(collects, True)}


def _look_at_threads(dask_worker: Any) -> tuple[bool, bool]:
    """Have Dask look at what the threads do; give whether the collector ran then, and after it."""
    enabled: list[bool] = []
    frames = sys._current_frames

    def noting() -> dict[int, Any]:
        enabled.append(gc.isenabled())
        return frames()

    thread = threading.get_ident()
    dask_worker.active_threads[thread] = "a task"
    sys._current_frames = noting
    try:
        dask_worker.periodic_callbacks["profile"].callback()
    finally:
        sys._current_frames = frames
        del dask_worker.active_threads[thread]
    return enabled[0], gc.isenabled()


def test_a_model_that_changes_while_it_is_sent(
    far_away: tuple[Client, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, here = far_away
    path = here / "model.onnx"
    onnx.save(models.mlp(), str(path))
    call = Channel.call

    async def changing(
        self: Channel, address: str, method: str, *arguments: Any, **more: Any
    ) -> Any:
        if method == "put":
            key, run, index, offset, data = arguments
            arguments = (key, run, index, offset, data[:-1] + bytes([data[-1] ^ 1]))
        return await call(self, address, method, *arguments, **more)

    monkeypatch.setattr(Channel, "call", changing)
    build = Build(path, client=client).start()
    with pytest.raises(SourceError, match="changed while it was sent"):
        build.wait(60)
    monkeypatch.setattr(Channel, "call", call)
    assert Build(path, client=client).start().wait(60)  # nothing bad was kept


def test_a_model_that_cannot_be_sent_for_any_reason(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.mlp(layers=5, width=12)  # no worker has it yet

    def read(*_: Any) -> bytes:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Piece, "read", read)
        build = Build(model, client=client).start()
        with pytest.raises(BuildFailed, match=r"could not be sent.* MemoryError: no room"):
            build.wait(60)
    assert Build(model, client=client).start().wait(60)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_end_of_which_a_part_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    take_line = DaskExecutor._take_line

    def losing(self: DaskExecutor, line: bytes) -> None:
        if not isinstance(from_json(line), BuildEnded):
            take_line(self, line)
        elif cancelled:  # the worker has ended: it does not hear it any more
            build.request_cancel()

    monkeypatch.setattr(DaskExecutor, "_take_line", losing)
    build = Build(models.mlp(), client=client)
    build.start()
    expected, words = (
        (BuildCancelled, "cancelled") if cancelled else (BuildFailed, "messages were lost")
    )
    with pytest.raises(expected, match=words):
        build.wait(60)
    assert build.result is not None
    assert build.result.ended_by == ("unknown" if cancelled else "error")


def test_an_engine_that_arrives_damaged(
    far_away: tuple[Client, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, here = far_away
    call = Channel.call

    async def damaging(
        self: Channel, address: str, method: str, *arguments: Any, **more: Any
    ) -> Any:
        answer = await call(self, address, method, *arguments, **more)
        return bytes(len(answer)) if method == "get" else answer

    monkeypatch.setattr(Channel, "call", damaging)
    build = Build(models.mlp(), client=client, output=here / "out.engine").start()
    with pytest.raises(BuildFailed, match="not what the worker has sent"):
        build.wait(60)
    assert not list(here.iterdir())


def test_the_widget_of_a_build_far_away(client: Client) -> None:
    from trt_widget import BuildWidget

    widget = BuildWidget(SQUEEZENET, client=client).start()
    assert widget.wait(60)
    assert widget.result.worker is not None
    assert "on the Dask worker" in str(widget.header["where"])
    widget.close()


def test_the_history_is_the_clients(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.worker("only", TRT_WIDGET_HISTORY=str(tmp_path / "theirs"))
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "ours"))
    with fleet.client(1) as client:
        first = Build(SQUEEZENET, client=client).start()
        first.wait(60)
        assert first.basis is None
        again = Build(SQUEEZENET, client=client).start()
        again.wait(60)
        assert again.basis == "from 1 earlier build of this network"
    here = Build(SQUEEZENET).start()
    here.wait(60)
    # On the same kind of machine a worker's child is as quick as our own.
    assert here.key == again.key
    assert not (tmp_path / "theirs").exists()
