"""Whatever dies: right states, right words, and no builder left behind."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, LocalCluster

from tests import models
from tests.cluster.conftest import ROOT, Fleet, builders, until
from trt_widget import Build, BuildCancelled, BuildFailed
from trt_widget.errors import BuildCrashed, WorkerLost
from trt_widget.executors.cluster import DaskExecutor

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

#: About 0.3 s of callbacks, then seconds of silence.
DENSENET = models.light_model("densenet121")
SMALL = models.light_model("squeezenet")
SLOW = {"configure": models.slowly(0.02)}


def building(build: Build) -> psutil.Process:
    """Wait until the build's phases arrive; give the process that builds."""
    until(lambda: build.status == "running" and build.tree.paths >= 2)
    (found,) = builders()
    return found


def test_a_lost_worker_begins_the_build_again(fleet: Fleet) -> None:
    workers = {name: fleet.worker(name) for name in ("first", "second")}
    with fleet.client(2) as client:
        build = Build(DENSENET, client=client, **SLOW).start()
        building(build)
        assert build.worker is not None
        lost, other = sorted(workers, key=lambda name: not build.worker.startswith(name))
        before = build.worker
        workers[lost].kill()
        until(lambda: build.worker is not None and build.worker.startswith(other))
        building(build)
        assert build.status == "running"
        assert build.timings.loc[0, "count"] == 1  # the tree is the second run's alone
        build.request_cancel()
        build.wait_ended(60)
        assert build.result is not None
        assert build.result.status == "cancelled"
        assert build.result.notes[:2] == (
            f"The Dask worker {before} was lost while it built.",
            f"It was begun again on the Dask worker {build.worker}.",
        )


def test_a_build_that_was_begun_again_ends_well(fleet: Fleet) -> None:
    workers = {name: fleet.worker(name) for name in ("first", "second")}
    with fleet.client(2) as client:
        build = Build(DENSENET, client=client).start()
        building(build)
        name = (build.worker or "").partition(" ")[0]
        lost_at = build.epoch_now()
        workers[name].kill()
        assert build.wait(60)
        assert build.result is not None
        assert len(build.result.notes) == 2
        assert build.timings.loc[0, "count"] == 1
        # The clock is the second run's.
        assert build.entered_at["running"] > lost_at
        assert build.result.duration_s == build.now()


def test_the_second_loss_fails_the_build(fleet: Fleet) -> None:
    workers = {name: fleet.worker(name) for name in ("first", "second", "third")}
    with fleet.client(3) as client:
        build = Build(DENSENET, client=client, **SLOW).start()
        lost: list[str] = []
        for _ in range(2):
            until(lambda: build.worker not in {None, *lost})
            building(build)
            assert build.worker is not None
            lost.append(build.worker)
            workers[build.worker.partition(" ")[0]].kill()
        with pytest.raises(WorkerLost) as caught:
            build.wait(60)
        assert isinstance(caught.value, BuildCrashed)
        assert list(caught.value.workers) == lost
        assert all(name in str(caught.value) for name in lost)
        assert caught.value.phase
        assert build.result is not None
        assert build.result.ended_by == "crashed"
        until(lambda: not builders())


def test_no_rescheduling_where_none_is_wanted(fleet: Fleet) -> None:
    workers = {name: fleet.worker(name) for name in ("first", "second")}
    with fleet.client(2) as client:
        build = Build(DENSENET, client=client, reschedules=0, **SLOW).start()
        building(build)
        workers[(build.worker or "").partition(" ")[0]].kill()
        with pytest.raises(WorkerLost):
            build.wait(60)


def test_a_worker_that_is_retired_is_lost_too(fleet: Fleet) -> None:
    fleet.worker("first")
    with fleet.client(1) as client:
        build = Build(DENSENET, client=client, **SLOW).start()
        building(build)
        fleet.worker("second")
        client.wait_for_workers(2, timeout=60)
        client.retire_workers(names=["first"])
        until(lambda: (build.worker or "").startswith("second"))
        building(build)
        build.kill()
        build.wait_ended(60)


def test_a_worker_that_is_gone_before_it_is_watched(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = fleet.worker("only")
    hear = DaskExecutor.hear
    held: list[tuple[DaskExecutor, dict[str, Any]]] = []

    def holding(self: DaskExecutor, message: dict[str, Any]) -> None:
        held.append((self, message))

    monkeypatch.setattr(DaskExecutor, "hear", holding)
    with fleet.client(1) as client:
        build = Build(DENSENET, client=client, reschedules=0, **SLOW).start()
        until(lambda: held)
        worker.kill()
        until(lambda: not client.run_on_scheduler(addresses))
        # What it has said arrives only now.
        for executor, message in held:
            client.loop.add_callback(hear, executor, message)
        with pytest.raises(WorkerLost, match="only"):
            build.wait(60)


def addresses(dask_scheduler: Any) -> list[str]:
    """Give the workers that a scheduler knows."""
    return list(dask_scheduler.workers)


def test_a_cancel_while_the_worker_is_lost(fleet: Fleet) -> None:
    worker = fleet.worker("only")
    with fleet.client(1) as client:
        build = Build(DENSENET, client=client, **SLOW).start()
        building(build)
        worker.kill()
        until(lambda: build.notes)
        build.request_cancel()
        with pytest.raises(BuildCancelled):
            build.wait(60)
        assert build.result is not None
        assert build.result.ended_by == "crashed"


def test_the_scheduler_dies(fleet: Fleet) -> None:
    fleet.worker("only")
    with fleet.client(1) as client:
        build = Build(DENSENET, client=client, **SLOW).start()
        building(build)
        fleet.scheduler.kill()
        with pytest.raises(BuildFailed, match="scheduler") as caught:
            build.wait(60)
        assert not isinstance(caught.value, WorkerLost)
        assert "phase" in caught.value.evidence[0]
        until(lambda: not builders())


@pytest.mark.parametrize("moment", ["idle", "without a connection", "the model is read"])
def test_the_scheduler_is_restarted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The new one knows nothing of what the old one was told."""
    pack = DaskExecutor._pack
    reads, may_go_on = threading.Event(), threading.Event()

    def held(self: DaskExecutor) -> dict[str, Any]:
        reads.set()
        assert may_go_on.wait(60)
        return pack(self)

    worker = fleet.worker("first")
    with fleet.client(1) as client:
        # The topic and the plugin are known to this scheduler.
        assert Build(SMALL, client=client).start().wait(60)
        build = Build(SMALL, client=client)
        if moment == "the model is read":
            monkeypatch.setattr(DaskExecutor, "_pack", held)
            build.start()
            assert reads.wait(60)
        for process in (fleet.scheduler, worker):
            process.kill()
            process.wait()
        until(lambda: client.status == "connecting")
        if moment == "without a connection":
            build.start()
        fleet.restart_scheduler()
        fleet.worker("second")
        if moment != "without a connection":
            until(lambda: client.status == "running")
            client.wait_for_workers(1, timeout=60)
        may_go_on.set()
        if moment == "idle":
            build.start()
        assert build.wait(60)
        assert (build.worker or "").startswith("second")
        # Its worker is let go, and a cancel is heard.
        build = Build(DENSENET, client=client, **SLOW).start()
        building(build)
        build.kill()
        build.wait_ended(60)


def test_the_client_is_closed(fleet: Fleet) -> None:
    fleet.worker("only")
    client = fleet.client(1)
    build = Build(DENSENET, client=client, **SLOW).start()
    building(build)
    client.close()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    assert build.result is not None
    assert build.result.reason == "closed"
    until(lambda: not builders())


def test_the_client_is_killed(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker("only")
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from distributed import Client
            from tests import models
            from trt_widget import Build
            client = Client(scheduler_file={str(tmp_path / "scheduler.json")!r}, timeout=60)
            build = Build({str(DENSENET)!r}, client=client, configure=models.slowly(0.02)).start()
            build.wait()
            """
        )
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script)], env=environ)
    try:
        until(builders)
        process.kill()
        until(lambda: not builders())
    finally:
        process.kill()
        process.wait()


def test_a_script_that_ends_leaves_no_builder(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker("only")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time
            from distributed import Client
            from tests import models
            from trt_widget import Build
            client = Client(scheduler_file={str(tmp_path / "scheduler.json")!r}, timeout=60)
            build = Build({str(DENSENET)!r}, client=client, configure=models.slowly(0.02)).start()
            while build.tree.paths < 2:
                time.sleep(0.01)
            """
        )
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    until(lambda: not builders())


def test_a_nanny_begins_its_worker_again(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        build = Build(DENSENET, client=client, **SLOW).start()
        builder = building(build)
        before = build.worker
        parent = builder.parent()
        assert parent is not None
        parent.kill()
        until(lambda: build.worker != before)
        building(build)
        build.kill()
        build.wait_ended(60)
        assert build.result is not None
        assert len(build.result.notes) == 2
    until(lambda: not builders())


def test_the_event_loop_of_the_client_ends() -> None:
    async def main() -> Build:
        cluster = await LocalCluster(
            n_workers=1, processes=False, asynchronous=True, dashboard_address=":0"
        )
        client = await Client(cluster, asynchronous=True, set_as_default=False)
        build = Build(DENSENET, client=client, **SLOW).start()
        while build.tree.paths < 2:  # noqa: ASYNC110 - a tree has no events to wait for
            await asyncio.sleep(0.01)
        await cluster.close()
        return build

    build = asyncio.run(main())
    with pytest.raises((BuildFailed, BuildCancelled)):
        build.wait(60)
    until(lambda: not builders())


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_die_at_random(fleet: Fleet, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    workers = {f"w{index}": fleet.worker(f"w{index}") for index in range(2)}
    with fleet.client(2) as client:
        builds = [
            Build(models.light_model("squeezenet"), client=client, configure=models.slowly(0.003))
            for _ in range(6)
        ]
        for build in builds:
            build.start()
        for number in range(3):
            time.sleep(dice.uniform(0.3, 2.0))  # any moment is good
            if dice.random() < 0.5:
                dice.choice(builds).request_cancel()
            name = dice.choice(list(workers))
            workers.pop(name).kill()
            workers[f"n{number}"] = fleet.worker(f"n{number}")
        for build in builds:
            build.wait_ended(100)
        ends = [build.result for build in builds]
        for build, result in zip(builds, ends, strict=True):
            assert result is not None
            lost = [note for note in result.notes if "was lost" in note]
            if result.status == "succeeded":
                assert len(lost) <= 1
                assert len(build.engine) == result.engine_bytes
                assert build.timings.loc[0, "count"] == 1
            elif result.status == "failed":
                assert isinstance(result.error, WorkerLost)
                assert len(result.error.workers) == 2
            else:
                assert result.status == "cancelled"
                assert result.reason == "user"
        assert any(result is not None and result.status == "succeeded" for result in ends)
        until(lambda: not builders())
        until(lambda: not client.futures)
