"""Workers that cannot build: they are avoided, and named where no other is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import models
from tests.cluster.conftest import Fleet, builders, until
from trt_widget import Build, BuildFailed, BuildQueue
from trt_widget.executors.cluster import Channel
from trt_widget.executors.cluster_choice import Unable, none_can

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from distributed import Client

MLP = models.mlp()
#: What makes a Python as one in which a package was never installed.
HOOK = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")

sys.meta_path.insert(0, Without())
"""


def worker_without(fleet: Fleet, folder: Path, package: str, name: str) -> subprocess.Popen[bytes]:
    """Start a worker that really cannot import a package."""
    hook = folder / f"hook of {name}"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK.format(package=package))
    return fleet.worker(name, PYTHONPATH=str(hook))


def test_where_no_worker_can_all_are_named(fleet: Fleet, tmp_path: Path) -> None:
    worker_without(fleet, tmp_path, "trt_widget", "bare")
    with fleet.client(1) as client:
        with pytest.raises(BuildFailed) as caught:
            Build(MLP, client=client).start().wait(60)
        assert caught.value.cause.startswith("The Dask worker bare (tcp://")
        assert "No module named 'trt_widget'; there is no other" in caught.value.cause
        assert "trt-widget" in caught.value.remedy
        # It is not kept out: what could not build may be mended.
        worker_without(fleet, tmp_path, "tensorrt_rtx", "half")
        client.wait_for_workers(2, timeout=60)
        build = Build(MLP, client=client).start()
        with pytest.raises(BuildFailed, match="None of the 2 Dask workers") as caught:
            build.wait(60)
        for said in ("bare (tcp://", "'trt_widget'", "half (tcp://", "'tensorrt_rtx'"):
            assert said in caught.value.cause
        assert build.result is not None
        assert len(build.result.notes) == 1
        assert build.result.notes[0].startswith("The Dask worker half (tcp://")
        until(lambda: not client.futures)


def test_a_worker_that_cannot_build_costs_a_queue_nothing(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_widget.executors.cluster._BACK_S", 100.0)  # on a machine under load
    bare = worker_without(fleet, tmp_path, "trt_widget", "bare")
    fine = fleet.worker("fine")
    with fleet.client(2) as client:
        queue = BuildQueue(dict.fromkeys(map(str, range(12)), MLP), client=client).start()
        queue.wait(100)
        assert queue.counts()["succeeded"] == 12
        assert all((job.where or "").startswith("fine ") for job in queue.jobs.values())
        assert all(job.attempts == 1 for job in queue.jobs.values())
        notes = [note for job in queue.jobs.values() if job.result for note in job.result.notes]
        assert any(note.startswith("The Dask worker bare (tcp://") for note in notes)
        assert all("No module named 'trt_widget'" in note for note in notes)

        # The only one that can is lost, and another comes in its place: nobody waits for ever.
        builds = [Build(MLP, client=client, configure=models.slowly(0.05)).start()]
        until(lambda: builds[0].status == "running" and builders())
        builds += [Build(MLP, client=client).start() for _ in range(3)]
        fine.kill()
        until(lambda: builds[0].notes)
        fleet.worker("second")
        for build in builds:
            assert build.wait(100)
            assert (build.worker or "").startswith("second ")

        # What has left is forgotten.
        channel = Channel.of(client)
        assert [worker.name for worker in channel.unable.values()] == ["bare"]
        bare.kill()
        until(lambda: not channel.unable)


def test_another_version_on_the_worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("trt_widget.executors.cluster.PROTOCOL", 99)
        patch.setattr("trt_widget.executors.cluster.__version__", "99.0")
        with pytest.raises(BuildFailed, match="None of the 2 Dask workers") as caught:
            Build(MLP, client=client).start().wait(60)
        said = "does not understand the requests of the client's 99.0"
        assert caught.value.cause.count(said) == 2
    # One that can build after all is not avoided any more.
    channel = Channel.of(client)
    assert len(channel.unable) == 2
    build = Build(MLP, client=client).start()
    assert build.wait(60)
    assert [str(worker) for worker in channel.unable.values()] != [build.worker]
    assert len(channel.unable) == 1
    channel.unable.clear()  # the other tests' builds may go to both


def test_what_an_error_names() -> None:
    told = ("w", "tcp://192.0.2.1:1", "cannot import name 'x' from 'y' (/home/me/y.py).")
    assert Unable.told(*told).why == "cannot import name 'x' from 'y'"
    many = none_can(Unable(f"w{number}", f"tcp://{number}", "no") for number in range(30)).cause
    assert "w19 (tcp://19): no; and 10 more." in many
