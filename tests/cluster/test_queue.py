"""A queue on a Dask cluster: what it does there that it cannot do on one machine."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from distributed import Client

from tests import models
from tests.cluster.conftest import Fleet, builders, until
from trt_widget import BuildCancelled, BuildFailed, BuildQueue, BuildStateError, ParseFailed
from trt_widget import build_queue as queue_module
from trt_widget.errors import BuildCrashed, WorkerLost
from trt_widget.executors.cluster import Channel
from trt_widget.queue_cluster import in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distributed import LocalCluster

    from trt_widget.build_queue import JobRow

MLP = models.mlp()
#: A build that goes on until somebody ends it: some minutes of callbacks.
ENDLESS: dict[str, Any] = {"source": MLP, "configure": models.slowly(2.0)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No place in a line, and no thread of a build or a queue."""
    yield
    lines = queue_module._LINES.all()
    for queue in lines:  # or the tests that follow wait for it
        queue.close()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("trt_widget")], 30)
    assert not lines
    assert not queue_module._LINES.all()


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every piece of a model that is sent: the worker's address, and the bytes."""
    seen: list[tuple[str, int]] = []
    call = Channel.call

    async def noting(self: Channel, address: str, method: str, *arguments: Any, **more: Any) -> Any:
        if method == "put":
            seen.append((address, len(arguments[-1])))
        return await call(self, address, method, *arguments, **more)

    monkeypatch.setattr(Channel, "call", noting)
    return seen


def statuses(queue: BuildQueue) -> dict[str, str]:
    return {row.name: row.status for row in queue.rows()}


def running(queue: BuildQueue) -> list[JobRow]:
    """Give the rows of those whose phases arrive."""
    return [row for row in queue.rows() if row.status == "running" and row.phase]


class Ends:
    """Sees how often a job came to its end, and that it stays there."""

    def __init__(self, queue: BuildQueue) -> None:
        self._queue = queue
        self.final: dict[str, str] = {}
        self.problems: list[str] = []
        queue.subscribe(self._look)

    def _look(self, _changed: frozenset[str]) -> None:
        for name, status in statuses(self._queue).items():
            if name in self.final and self.final[name] != status:
                self.problems.append(f"{name}: {self.final[name]}, then {status}")
            if status in {"succeeded", "cancelled", "failed"}:
                self.final[name] = status


# ------------------------------------------------------------------ to the end


def test_forty_builds_and_one_model(client: Client, puts: list[tuple[str, int]]) -> None:
    model = models.mlp()
    model.doc_string = "of forty builds"  # the workers have not seen it yet
    data = model.SerializeToString()  # bytes, which no worker finds on its disk
    queue = BuildQueue({f"{number:02}": data for number in range(40)}, client=client, name="forty")
    ends = Ends(queue)
    queue.start()
    queue.wait(100)
    assert (queue.status, queue.progress, queue.eta_s) == ("succeeded", 1.0, 0.0)
    assert queue.counts() == {
        "pending": 0,
        "running": 0,
        "cancelling": 0,
        "succeeded": 40,
        "cancelled": 0,
        "failed": 0,
    }
    assert (len(ends.final), ends.problems) == (40, [])
    # Once to each of both workers, of which each has built.
    results = queue.results()
    assert list(results.index) == list(queue)
    assert len(set(results["where"])) == 2
    assert Counter(bytes_ for _, bytes_ in puts) == {len(data): 2}
    assert len({address for address, _ in puts}) == 2
    assert (results["attempts"] == 1).all()
    assert (results["status"] == "succeeded").all()
    assert not results["cached"].any()
    assert results["error"].isna().all()
    assert results["error_type"].isna().all()
    assert results["where"].str.contains("tcp://").all()
    engines = [job.engine for job in queue.jobs.values()]
    assert [len(engine) for engine in engines] == list(results["engine_bytes"])
    assert results["engine_bytes"].min() > 1000
    assert results["engine_bytes"].nunique() == 1
    assert (results["ended"] >= results["started"]).all()
    assert (results["duration_s"] > 0).all()
    # Dask moves what waits from one worker to another, but no job overtakes all that were handed
    # over before it.
    for position, begun in enumerate(results["started"]):
        assert (results["ended"] <= begun).sum() > position - in_flight(2)
    timings = queue.timings
    assert list(dict.fromkeys(timings["job"])) == list(queue)
    assert (timings[timings["depth"] == 0].groupby("job").size() == 1).all()
    gc.collect()
    assert not client.futures


def test_a_failure_does_not_stop_the_others(client: Client, tmp_path: Path) -> None:
    first_time = tmp_path / "was here"

    def shaky(*_: Any) -> None:
        if not first_time.exists():
            first_time.touch()
            os.abort()

    here = tmp_path / "engines"
    queue = BuildQueue(
        {
            "good": MLP,
            "bad": {"source": models.unknown_operators("Nonsense")},
            "crash": {"source": MLP, "configure": models.configure_crash},
            "shaky": {"source": MLP, "configure": shaky},
            "late": {**ENDLESS, "timeout": 0.5},
            "mine": {"source": MLP, "output": tmp_path / "mine.engine"},
        },
        client=client,
        output_dir=here,
    ).start()
    queue.wait(100)
    assert queue.status == "failed"
    assert {
        job.name: (job.status, job.attempts, len(job.earlier)) for job in queue.jobs.values()
    } == {
        "good": ("succeeded", 1, 0),
        "bad": ("failed", 1, 0),
        "crash": ("failed", 2, 1),
        "shaky": ("succeeded", 2, 1),
        "late": ("cancelled", 1, 0),
        "mine": ("succeeded", 1, 0),
    }
    assert isinstance(queue["bad"].error, ParseFailed)
    crash = queue["crash"].error
    assert isinstance(crash, BuildCrashed)
    assert not isinstance(crash, WorkerLost)
    assert crash.signal == "SIGSEGV"
    results = queue.results()
    assert results.loc["crash", "error_type"] == "BuildCrashed"
    assert "Nonsense" in results.loc["bad", "error"]
    assert results.loc["late", "reason"] == "deadline"
    assert results.loc["bad", "engine"] is None
    assert results.loc["mine", "engine"] == tmp_path / "mine.engine"
    assert results.loc["good", "engine"] == here / "good.engine"
    # What is said of an engine is so of its file, and no other file was left.
    for path in (here / "good.engine", here / "shaky.engine", tmp_path / "mine.engine"):
        assert path.stat().st_size == results.loc[path.stem, "engine_bytes"]
    assert sorted(path.name for path in here.iterdir()) == ["good.engine", "shaky.engine"]
    assert {p.name for p in tmp_path.iterdir()} == {"engines", "mine.engine", "was here"}
    workers = client.scheduler_info()["workers"]
    places = {f"{worker['name']} ({address})" for address, worker in workers.items()}
    assert set(results["where"]) <= places


# ------------------------------------------------------------------ cancel


def test_cancel_one_then_what_waits_then_all(client: Client) -> None:
    queue = BuildQueue({f"{number}": ENDLESS for number in range(12)}, client=client).start()
    until(lambda: len(running(queue)) == 2)
    assert {row.name for row in running(queue)} == {"0", "1"}
    assert queue.counts()["pending"] == 10
    assert queue.request_cancel("0")
    until(lambda: queue["0"].result)
    assert queue["0"].result is not None
    assert queue["0"].result.ended_by in {"step", "terminated", "killed"}
    # Which of those that were handed over comes next is the cluster's business.
    until(lambda: len(running(queue)) == 2)
    run = {row.name for row in running(queue)}
    assert "1" in run
    # One that waits on the cluster ends without having begun.
    waits = "a free Dask worker"
    until(lambda: any(job.waiting_for == waits for job in queue.jobs.values()))
    waiting = next(name for name, job in queue.jobs.items() if job.waiting_for == waits)
    assert queue.request_cancel(waiting)
    until(lambda: queue[waiting].result)
    result = queue[waiting].result
    assert result is not None
    assert result.ended_by == "before build"
    assert queue.request_cancel(pending=True)
    assert queue.status == "running"
    until(lambda: queue.counts()["cancelled"] == 10)
    assert {row.name for row in running(queue)} == run
    assert queue.request_cancel(reason="interrupt")
    assert queue.status == "cancelling"
    queue.wait(60)
    assert (queue.status, queue.counts()["cancelled"]) == ("cancelled", 12)
    assert not queue.request_cancel()
    assert isinstance(queue["1"].error, BuildCancelled)
    results = queue.results()
    assert dict(results["reason"]) == {
        name: "interrupt" if name in run else "user" for name in queue.jobs
    }
    assert set(results.index[results["started"].notna()]) == {"0", *run}
    assert set(results["error_type"]) == {"BuildCancelled"}


def test_the_second_queue_of_a_cluster_waits_and_another_machine_s_does_not(
    client: Client, cluster: LocalCluster
) -> None:
    first = BuildQueue({"a": ENDLESS}, client=client, name="first").start()
    with Client(cluster, set_as_default=False) as other:
        second = BuildQueue({"b": MLP}, client=other).start()
        local = BuildQueue({"c": MLP}).start()
        until(lambda: running(first))
        assert (first.waiting_for, second.waiting_for) == (None, "first")
        local.wait(60)
        assert local.status == "succeeded"
        assert second.status == "pending"
        assert second["b"].build is None
        first.close()
        second.wait(60)
        assert (first.status, second.status) == ("cancelled", "succeeded")
        assert second["b"].started_at >= first["a"].ended_at  # type: ignore[operator]  # both began


def test_a_client_that_is_closed_ends_its_queue_and_no_other(cluster: LocalCluster) -> None:
    with Client(cluster, set_as_default=False) as other:
        client = Client(cluster, set_as_default=False)
        first = BuildQueue({"a": ENDLESS, "b": MLP}, client=client, workers=1).start()
        until(lambda: running(first))
        gone = Client(cluster, set_as_default=False)
        second = BuildQueue({"a": MLP}, client=gone).start()
        third = BuildQueue({"a": MLP}, client=other).start()
        gone.close()  # one that waits
        client.close()  # one that builds
        for queue in (first, second, third):
            queue.wait(60)
        for job in (first["a"], first["b"], second["a"]):  # the last two had not begun
            assert job.status == "cancelled"
            assert job.result is not None
            assert job.result.reason == "closed"
        assert third.status == "succeeded"
    until(lambda: not builders())


def test_a_scheduler_that_is_lost_fails_all_in_the_same_words(fleet: Fleet) -> None:
    fleet.worker("only")
    with fleet.client(1, patience=3) as client:
        jobs = {"a": ENDLESS, **{f"{number}": {"source": MLP} for number in range(12)}}
        queue = BuildQueue(jobs, client=client).start()
        until(lambda: running(queue))
        assert in_flight(1) < len(jobs)  # some have not come to the cluster yet
        fleet.scheduler.kill()
        queue.wait(100)
        assert queue.counts()["failed"] == len(jobs)
        for job in queue.jobs.values():
            assert type(job.error) is BuildFailed
            assert "the connection to it was lost" in job.error.cause
            assert "make a new client" in job.error.remedy


# ------------------------------------------------------------------ workers that differ


def test_resources_and_the_engine_caches_of_the_workers(fleet: Fleet, tmp_path: Path) -> None:
    caches = {name: tmp_path / f"cache of {name}" for name in ("plain", "able")}
    for name, cache in caches.items():
        more = ("--resources", "GPU=1") if name == "able" else ()
        fleet.worker(name, *more, TRT_WIDGET_ENGINES=str(cache))
    with fleet.client(2) as client:
        path = tmp_path / "model.onnx"
        onnx.save(MLP, str(path))
        jobs = {f"{level}": {"optimization_level": level} for level in (0, 3, 5)}
        options: dict[str, Any] = {"source": path, "client": client, "resources": {"GPU": 1}}
        first = BuildQueue(jobs, **options).start()
        first.wait(60)
        assert first.status == "succeeded"
        assert {(job.where or "").partition(" ")[0] for job in first.jobs.values()} == {"able"}
        assert not any(job.cached for job in first.jobs.values())
        assert first.results()["started"].is_monotonic_increasing  # one worker
        second = BuildQueue(jobs, **options, output_dir=tmp_path / "engines").start()
        second.wait(60)
        assert second.status == "succeeded"
        assert second.results()["cached"].all()
        assert [row.cached for row in second.rows()] == [True] * 3
        for name, job in second.jobs.items():
            assert job.result is not None
            assert job.result.ended_by == "cached"
            assert any("cache" in note for note in job.result.notes)
            engine = (tmp_path / "engines" / f"{name}.engine").read_bytes()
            assert engine == bytes(first[name].engine)
        # Off where the queue says so; one job has needs of its own, which nobody meets.
        third = BuildQueue(
            {"off": {}, "never": {"resources": {"GPU": 2}}}, **options, engine_cache=False
        ).start()
        until(lambda: third["off"].result)
        assert (third["off"].status, third["off"].cached) == ("succeeded", False)
        waits = "a Dask worker with GPU=2: none of 2 has it"
        until(lambda: third["never"].waiting_for == waits)
        assert (third.status, third["never"].status) == ("running", "pending")
        assert (third.waiting_for, third.blocker, third.cancel_blocker()) == (waits, None, False)
        assert str(third).splitlines()[0].endswith(f"waiting for {waits})")
        assert (third["never"].attempts, third.rows()[1].attempts) == (1, 0)
        with pytest.raises(TimeoutError, match=f"it waits for {waits}"):
            third.wait(0.01)
        third.request_cancel("never")
        third.wait(60)
        assert third.status == "cancelled"
        assert third["never"].result is not None
        assert third["never"].result.ended_by == "before build"
    assert caches["able"].is_dir()
    assert not caches["plain"].exists()


def test_a_cluster_that_grows_and_a_worker_that_is_lost(fleet: Fleet) -> None:
    with fleet.client() as client:
        slow = {"source": MLP, "configure": models.slowly(0.04)}
        crash = {"source": MLP, "configure": models.configure_crash}
        jobs = {"crash": crash, **{f"{number}": slow for number in range(3)}, "last": MLP}
        queue = BuildQueue(jobs, client=client, retries=2).start()
        until(lambda: queue["0"].waiting_for == "a Dask worker: the cluster has none")
        assert queue.counts()["pending"] == len(jobs)
        lost = fleet.worker("first")
        until(lambda: running(queue) and running(queue)[0].name == "0")
        lost.kill()
        until(lambda: queue["0"].attempts == 2)
        fleet.worker("second")
        until(lambda: running(queue) and (running(queue)[0].where or "").startswith("second"))
        fleet.worker("third")
        queue.wait(100)
        results = queue.results()
        assert queue.status == "failed"
        assert list(results.index[results["status"] != "succeeded"]) == ["crash"]
        assert (results.loc["0", "attempts"], results.loc["crash", "attempts"]) == (2, 3)
        (earlier,) = queue["0"].earlier
        assert isinstance(earlier.error, WorkerLost)
        assert "first" in earlier.error.cause
        assert {where.partition(" ")[0] for where in results["where"]} >= {"second", "third"}


def test_a_wait_in_the_clients_own_loop_is_refused_and_an_await_is_not(
    cluster: LocalCluster,
) -> None:
    async def build() -> None:
        address = cluster.scheduler_address
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            queue = BuildQueue({"a": MLP, "b": MLP}, client=client).start()
            for timeout in (None, 60):  # before and after anything has begun, it would never end
                with pytest.raises(BuildStateError, match="event loop of its Dask client"):
                    queue.wait(timeout)
            await asyncio.wait_for(queue, 60)
            queue.wait()
            assert queue.status == "succeeded"

    asyncio.run(build())
