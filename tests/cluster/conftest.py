"""Real clusters: one of this process for what leaves it as it was, others to be killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from distributed import Client, LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent.parent
#: By what the processes of these clusters are known, and whatever they start.
MARK = "TRT_WIDGET_TEST_CLUSTER"
# A worker may import this too, and has the mark already.
os.environ.setdefault(MARK, uuid.uuid4().hex)


def until(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Wait for something, and give it."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
    return found


def builders() -> list[psutil.Process]:
    """Give the processes that build for the clusters of these tests, wherever they hang now."""
    return [process for process in psutil.process_iter() if _builds(process)]


def _builds(process: psutil.Process) -> bool:
    try:
        return (
            any("executors.child" in part for part in process.cmdline())
            and process.environ().get(MARK) == os.environ[MARK]
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:  # it has ended, or is none of ours
        return False


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two workers, processes of their own."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        local_directory=str(tmp_path_factory.mktemp("dask")),
    ) as made:
        yield made


@pytest.fixture(scope="session")
def shared(cluster: LocalCluster) -> Iterator[Client]:
    """Connect once."""
    with Client(cluster) as made:
        yield made


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    """Give the client, and see that every build leaves it as it was."""
    yield shared
    until(lambda: not builders())
    gc.collect()
    until(lambda: not shared.futures and not any(shared.processing().values()))


class Fleet:
    """A ``dask scheduler`` and its workers, started by command line.

    Parameters
    ----------
    folder
        For their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("dask_scheduler", "--port", "0")

    def restart_scheduler(self) -> None:
        """Start another one where the last one was, which has ended."""
        address = json.loads(self._file.read_text())["address"]
        self.scheduler = self._start("dask_scheduler", "--port", address.rpartition(":")[2])

    def _start(
        self, program: str, *arguments: str, hidden: Path | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        file = ("--scheduler-file", str(self._file))
        log = self._folder / f"{program}-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(_without(hidden) if hidden is not None else ()),
                    sys.executable,
                    "-m",
                    f"distributed.cli.{program}",
                    *("--dashboard-address", ":0"),
                    *file,
                    *arguments,
                ],
                cwd=ROOT,
                env={**os.environ, **more},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def worker(
        self, name: str, *arguments: str, hidden: Path | None = None, **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker of one thread and no nanny, which sees an empty folder at ``hidden``."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        plain = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        return self._start(
            "dask_worker", "--name", name, *plain, *arguments, hidden=hidden, **environ
        )

    def client(self, workers: int = 0, patience: float = 60) -> Client:
        """Connect, when so many workers are there."""
        until(self._file.exists)
        made = Client(scheduler_file=str(self._file), timeout=patience, set_as_default=False)
        if workers:
            made.wait_for_workers(workers, timeout=60)
        return made

    def close(self) -> None:
        """End everything."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


def _without(folder: Path) -> list[str]:
    """Give the beginning of a command that sees an empty folder in place of ``folder``."""
    script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    mounts = "-m" if os.geteuid() == 0 else "-rm"
    return ["unshare", mounts, "sh", "-c", script, "sh", str(folder)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Give a cluster that the test may break."""
    made = Fleet(tmp_path)
    try:
        yield made
        until(lambda: not builders())
    finally:
        made.close()
