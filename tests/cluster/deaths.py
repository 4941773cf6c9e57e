"""A queue on a real cluster of which parts are killed, at random moments of a known seed.

One round is one cluster (a scheduler, a worker with and one without a nanny, replaced when they
die), one queue and one kind of death:

*workers*
    SIGKILL for workers, nannies, workers below their nannies, and the processes that build.
*scheduler*
    SIGKILL for the scheduler.
*client*
    SIGKILL for the process that the queue lives in, :func:`main` of this module.

What is checked is right whatever the moments hit; see :meth:`Round.run`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from distributed import Client

from tests import models
from tests.stress.leaks import files_in, marked
from tests.stress.report import header, problems, spread, table
from trt_widget import BuildFailed, BuildQueue, ParseFailed
from trt_widget import build_queue as queue_module
from trt_widget.errors import BuildCrashed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.build_queue import Job, JobRow

ROOT = Path(__file__).parent.parent.parent
KINDS = ("workers", "scheduler", "client")
#: How often each kind comes in a long run.
WEIGHTS = (4, 1, 1)
#: Who is killed in a round of workers, and how often each.
VICTIMS = {"worker": 3, "nanny": 2, "nanny's worker": 3, "builder": 4}
#: By what the processes of a round are known, and whatever they start.
_MARK = "TRT_WIDGET_DEATHS"
_FINAL = frozenset({"succeeded", "cancelled", "failed"})
#: Seconds in which a queue, and afterwards what it leaves, has to come to its end.
_QUEUE_S = 150.0
_SETTLE_S = 45.0
#: Seconds after which the client gives up to find its scheduler again.
_RECONNECT_S = 6.0


class Stuck(Exception):  # noqa: N818 - it is caught and said
    """What was waited for did not happen."""


def until(condition: Callable[[], Any], what: str, seconds: float) -> Any:
    """Wait for something, and give it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Stuck(what)
        time.sleep(0.01)
    return found


class Ends:
    """Sees that each job of a queue comes to one end, and stays there."""

    def __init__(self, queue: BuildQueue) -> None:
        self._queue = queue
        self.final: dict[str, str] = {}
        self.problems: list[str] = []
        queue.subscribe(self._look)

    def _look(self, _changed: frozenset[str]) -> None:
        for row in self._queue.rows():
            before = self.final.get(row.name)
            if before is not None and before != row.status:
                self.problems.append(f"{row.name} was {before}, and then {row.status}")
            if row.status in _FINAL:
                self.final[row.name] = row.status


def make_jobs(rng: random.Random, count: int) -> dict[str, dict[str, Any]]:
    """Make quick builds, slow ones, and one that cannot succeed."""
    made: dict[str, dict[str, Any]] = {}
    for index in range(count):
        source = models.mlp(layers=2 + index % 2)
        given = rng.choice((source, source.SerializeToString()))
        job: dict[str, Any] = {"source": given, "grace": 0.5}
        if rng.random() < 0.75:
            job["configure"] = models.slowly(rng.uniform(0.01, 0.04))
        made[f"{index:02}"] = job
    made[rng.choice(tuple(made))]["source"] = models.unknown_operators("Nope")
    return made


class _Cluster:
    """A scheduler and its workers, each a process of a command line."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token
        self.file = folder / "scheduler.json"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._dask("scheduler", "--port", "0")
        self.workers = {kind: self._worker(kind) for kind in ("worker", "nanny")}

    def environ(self) -> dict[str, str]:
        """Give the environment of all that a round starts."""
        return {
            **os.environ,
            _MARK: self._token,
            "TMPDIR": str(self.temporary),
            "DASK_TEMPORARY_DIRECTORY": str(self._folder),
            "TRT_WIDGET_HISTORY": "off",
            "TRT_WIDGET_ENGINES": "off",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def start(self, name: str, *command: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start a process of this round."""
        log = self._folder / f"{len(self._processes)}-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environ(),
                stdout=output,
                stderr=subprocess.STDOUT,
                **more,
            )
        self._processes.append(process)
        return process

    def _dask(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        common = ("--scheduler-file", str(self.file), "--dashboard-address", ":0")
        return self.start(program, f"distributed.cli.dask_{program}", *common, *arguments)

    def _worker(self, kind: str) -> subprocess.Popen[bytes]:
        place = self._folder / f"{kind}-{len(self._processes)}"
        place.mkdir()
        nanny = "--nanny" if kind == "nanny" else "--no-nanny"
        folder = ("--local-directory", str(place))
        return self._dask("worker", "--name", place.name, "--nthreads", "1", nanny, *folder)

    def replace(self, kind: str) -> None:
        """Start another for one that was killed."""
        self.workers[kind].wait()
        self.workers[kind] = self._worker(kind)

    def connect(self) -> Any:
        """Give a client."""
        until(lambda: self.file.exists() or self.scheduler.poll() is not None, "no scheduler", 60)
        return Client(
            scheduler_file=str(self.file),
            timeout=_RECONNECT_S,
            set_as_default=False,
        )

    def builders(self) -> list[psutil.Process]:
        """Give the processes that build, wherever they hang now."""
        found = []
        for process in marked(_MARK, self._token):
            with contextlib.suppress(psutil.Error):
                if any("executors.child" in part for part in process.cmdline()):
                    found.append(process)
        return found

    def below_nanny(self) -> list[psutil.Process]:
        """Give the worker below the nanny, if there is one now."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.workers["nanny"].pid).children()
            return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        return []

    def close(self) -> list[str]:
        """End everything; say what is left."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()

        def gone() -> bool:
            return not marked(_MARK, self._token)

        try:
            until(gone, "", _SETTLE_S)
        except Stuck:
            left = marked(_MARK, self._token)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return [f"left after the end of the cluster: {left}"]
        return []


class Round:
    """One cluster, one queue, and some deaths.

    Parameters
    ----------
    seed
        Decides on the jobs, the victims and the moments.
    kind
        Of :data:`KINDS`.
    folder
        An empty one.
    jobs
        How many.
    """

    def __init__(self, seed: str, kind: str, folder: Path, jobs: int = 12) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._kind = kind
        self._folder = folder
        self._count = jobs
        self._engines = folder / "engines"
        self._engines.mkdir()
        self._problems: list[str] = []
        self._killed: Counter[str] = Counter()
        self._record: dict[str, Any] = {"kind": kind, "seed": seed, "problems": self._problems}

    def run(self) -> dict[str, Any]:
        """Make the round; give what came of it.

        Its ``problems`` say what was wrong: a job without an end, or with a second one, or with one
        that it may not have; attempts that no death explains; counts that do not add up; a process,
        a thread, a task, a file that is left.
        """
        started = time.monotonic()
        token = uuid.uuid4().hex
        # The engines that come home lie here, too.
        before, tempfile.tempdir = tempfile.tempdir, str(self._folder / "temporary")
        cluster = _Cluster(self._folder, token)
        try:
            if self._kind == "client":
                self._kill_client(cluster)
            else:
                self._kill_others(cluster)
        except Stuck as stuck:
            self._problems.append(f"stuck: {stuck}")
        finally:
            self._problems += cluster.close()
            tempfile.tempdir = before
        gc.collect()
        self._expect(lambda: [t.name for t in threading.enumerate() if _is_ours(t)], "threads left")
        self._expect(lambda: files_in(cluster.temporary), "temporary files left")
        self._expect(queue_module._LINES.all, "places in a line")
        for queue in queue_module._LINES.all():
            queue.close()
        self._record.update(killed=dict(self._killed), seconds=round(time.monotonic() - started, 1))
        return self._record

    def _expect(self, left: Callable[[], Any], what: str, seconds: float = _SETTLE_S) -> None:
        """Wait until nothing is left of something."""
        try:
            until(lambda: not left(), what, seconds)
        except Stuck:
            self._problems.append(f"{what}: {left()}")

    # ------------------------------------------------------------------ the queue is here

    def _kill_others(self, cluster: _Cluster) -> None:
        retries = self._rng.choice((1, 2))
        jobs = make_jobs(self._rng, self._count)
        for name, job in jobs.items():
            if self._rng.random() < 0.5:
                job["output"] = self._engines / f"{name}.engine"
        with cluster.connect() as client:
            queue = BuildQueue(jobs, client=client, retries=retries)
            ends = Ends(queue)
            queue.start()
            try:
                if self._kind == "scheduler":
                    self._kill_scheduler(cluster, queue)
                else:
                    self._kill_workers(cluster, queue)
                with contextlib.suppress(TimeoutError):
                    queue.wait(_QUEUE_S)
                if queue.status not in _FINAL:
                    faulthandler.dump_traceback()
                    rows = [tuple(row) for row in queue.rows() if row.status not in _FINAL]
                    waits = [queue[row[1]].waiting_for for row in rows]
                    raise Stuck(f"the queue does not end: {rows}, {waits}, {client.status}")
                self._check(queue, ends, retries)
                self._expect(cluster.builders, "builders left")
                if self._kind == "workers":
                    self._check_cluster(client)
            finally:
                queue.close()

    def _kill_scheduler(self, cluster: _Cluster, queue: BuildQueue) -> None:
        until(lambda: _running(queue), "no build begins", 60)
        time.sleep(self._rng.uniform(0.0, 5.0))
        cluster.scheduler.kill()
        self._killed["scheduler"] += 1

    def _kill_workers(self, cluster: _Cluster, queue: BuildQueue) -> None:
        deaths = self._rng.randint(3, 6)
        while queue.status not in _FINAL:
            if self._killed.total() >= deaths and _hits(queue):
                break
            until(lambda: _running(queue) or queue.status in _FINAL, "no build runs", _QUEUE_S)
            time.sleep(self._rng.uniform(0.0, 0.8))
            victim = self._rng.choices(tuple(VICTIMS), tuple(VICTIMS.values()))[0]
            if victim in cluster.workers:
                cluster.workers[victim].kill()
                cluster.replace(victim)
            else:
                found = cluster.builders() if victim == "builder" else cluster.below_nanny()
                if not found:
                    continue
                with contextlib.suppress(psutil.Error):
                    self._rng.choice(found).kill()
            self._killed[victim] += 1

    def _check(self, queue: BuildQueue, ends: Ends, retries: int) -> None:
        """See that the ends are right, whatever was hit."""
        wrong = self._problems
        queue._thread.join(_SETTLE_S)  # type: ignore[union-attr]  # it has one
        if set(ends.final) != set(queue):
            wrong.append(f"no end was told of {set(queue) - set(ends.final)}")
        wrong += ends.problems
        counts, statuses = queue.counts(), Counter(row.status for row in queue.rows())
        if {k: n for k, n in counts.items() if n} != dict(statuses) or len(queue) != self._count:
            wrong.append(f"the counts {counts} are not those of the rows: {statuses}")
        results = queue.results()
        if list(results.index) != list(queue) or list(results["attempts"]) != [
            job.attempts for job in queue.jobs.values()
        ]:
            wrong.append("the results are not those of the jobs")
        for job in queue.jobs.values():
            self._check_job(job, retries)
        # A death ends what its worker builds; what only waits there has not begun.
        hits = [error for error in _crashes(queue) if getattr(error, "workers", True)]
        killed = self._killed.total() if self._kind == "workers" else 0
        if len(hits) > killed:
            wrong.append(f"{len(hits)} builds were lost by {killed} deaths: {hits}")
        expected = "failed" if counts["failed"] else "succeeded"
        if queue.status != expected:
            wrong.append(f"the queue is {queue.status}, its jobs {counts}")
        engines = {job.output for job in queue.jobs.values() if job.status == "succeeded"} - {None}
        if set(self._engines.iterdir()) != engines:
            wrong.append(f"engines: {sorted(self._engines.iterdir())}, not {engines}")
        self._record.update(
            jobs=dict(statuses),
            attempts=sum(job.attempts for job in queue.jobs.values()),
            hits=len(hits),
            errors=dict(Counter(type(j.error).__name__ for j in queue.jobs.values() if j.error)),
        )

    def _check_job(self, job: Job, retries: int) -> None:
        def check(true: Any, what: str) -> None:
            if not true:
                self._problems.append(f"{job.name}: {what}: {job.status}, {job.error!r}")

        check(job.status in {"succeeded", "failed"}, "the state")
        check(job.attempts == len(job.earlier) + 1, f"{job.attempts} attempts")
        check(job.attempts <= retries + 1, "too many attempts")
        check(all(isinstance(r.error, BuildCrashed) for r in job.earlier), f"{job.earlier}")
        check(job.result is not None and job.ended_at, "no end")
        error = job.error
        if job.status == "succeeded":
            size = job.result.engine_bytes if job.result is not None else None
            engine = job.output.read_bytes() if job.output is not None else job.engine
            check(engine is not None and len(engine) == size and len(engine) > 1000, "the engine")
        elif isinstance(error, BuildCrashed):
            check(self._kind == "workers", "nothing of it was killed")
            check(job.attempts == retries + 1, "too few attempts")
        elif not isinstance(error, ParseFailed):
            # The words differ with the moment; the class is that of all that is told of a cluster.
            check(self._kind == "scheduler" and type(error) is BuildFailed, "the error")

    def _check_cluster(self, client: Any) -> None:
        """See that the cluster has nothing of ours any more, and that models are whole."""

        def tasks(dask_scheduler: Any) -> list[str]:
            return [str(key) for key in dask_scheduler.tasks if str(key).startswith("trt_widget")]

        def jobs(dask_worker: Any) -> list[str]:
            from trt_widget.executors.cluster_worker import site_of

            return list(site_of(dask_worker).jobs)

        def on_workers() -> list[str]:
            with contextlib.suppress(OSError):  # one of them is just dying
                return [name for names in client.run(jobs).values() for name in names]
            return ["?"]

        self._expect(lambda: client.run_on_scheduler(tasks), "tasks left on the scheduler")
        self._expect(on_workers, "builds left on workers")
        self._expect(lambda: list(client.futures), "futures left")
        for worker in client.scheduler_info(n_workers=-1)["workers"].values():
            store = Path(worker["local_directory"]) / "trt_widget-models"
            for path in store.rglob("*"):
                if path.is_file() and not _is_whole(path.read_bytes()):
                    self._problems.append(f"a part of a model: {path}")

    # ------------------------------------------------------------------ the queue is elsewhere

    def _kill_client(self, cluster: _Cluster) -> None:
        seed = self._rng.random()
        arguments = (str(cluster.file), str(self._engines), str(seed), str(self._count))
        process = cluster.start("client", "tests.cluster.deaths", *arguments)
        until(lambda: cluster.builders() or process.poll() is not None, "no build begins", 90)
        if process.poll() is not None:
            self._problems.append(f"the client ended by itself: {process.returncode}")
        time.sleep(self._rng.uniform(0.0, 5.0))
        process.kill()
        killed = time.monotonic()
        self._killed["client"] += 1
        self._expect(cluster.builders, "builders left")
        self._record["gone_s"] = time.monotonic() - killed
        with cluster.connect() as client:
            client.wait_for_workers(2, timeout=60)
            self._check_cluster(client)
            # The cluster is as good as before.
            queue = BuildQueue({"a": models.mlp(), "b": models.mlp()}, client=client).start()
            with contextlib.suppress(TimeoutError):
                queue.wait(60)
            if queue.status != "succeeded":
                self._problems.append(f"the next queue: {queue.rows()}")
            queue.close()
        for path in self._engines.iterdir():
            if path.suffix != ".engine" or path.stat().st_size < 1000:
                self._problems.append(f"a part of an engine: {path.name}")
        self._record.update(jobs={}, hits=0)


def _is_whole(data: bytes) -> bool:
    """Whether it is one of the models that are built here."""
    whole = [
        models.mlp(layers=2),
        models.mlp(layers=3),
        models.mlp(),
        models.unknown_operators("Nope"),
    ]
    return data in [model.SerializeToString() for model in whole]


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("trt_widget")


def _running(queue: BuildQueue) -> list[JobRow]:
    """Give the rows of those whose phases arrive."""
    return [row for row in queue.rows() if row.status == "running" and row.phase]


def _crashes(queue: BuildQueue) -> list[BuildCrashed]:
    """Give all that was lost, also by attempts that were not the last."""
    results = [r for job in queue.jobs.values() for r in (*job.earlier, job.result)]
    return [r.error for r in results if r is not None and isinstance(r.error, BuildCrashed)]


def _hits(queue: BuildQueue) -> int:
    return len(_crashes(queue))


def run_for(seconds: float, seed: int, command: str) -> int:
    """Make rounds for some time, print what came of them as Markdown; give an exit status."""
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    while time.monotonic() - started < seconds:
        index = len(done)
        rng = random.Random(f"{seed}:{index}")  # noqa: S311 - repeatable on purpose
        kind = KINDS[index] if index < len(KINDS) else rng.choices(KINDS, WEIGHTS)[0]
        with tempfile.TemporaryDirectory() as folder:
            record = Round(f"{seed}:{index}:{kind}", kind, Path(folder)).run()
        record["index"] = index
        done.append(record)
        now = dt.datetime.now().astimezone()
        print(f"{now:%H:%M:%S} {json.dumps(record)}", file=sys.stderr, flush=True)
    print(header(command, time.monotonic() - started), end="\n\n")
    print(summary(done), end="\n\n")
    print(problems(done, []))
    return 1 if any(record["problems"] for record in done) else 0


def summary(records: list[dict[str, Any]]) -> str:
    """Sum rounds up."""
    rows = []
    for kind in KINDS:
        of = [record for record in records if record["kind"] == kind]
        killed: Counter[str] = sum((Counter(r["killed"]) for r in of), Counter())
        ends: Counter[str] = sum((Counter(r.get("jobs", {})) for r in of), Counter())
        errors: Counter[str] = sum((Counter(r.get("errors", {})) for r in of), Counter())
        rows.append(
            (
                kind,
                len(of),
                _listed(killed),
                _listed(ends) or "-",
                sum(r.get("attempts", 0) for r in of) or "-",
                sum(r.get("hits", 0) for r in of) if kind == "workers" else "-",
                _listed(errors) or "-",
            )
        )
    columns = ("round", "count", "killed", "jobs", "attempts", "builds hit", "errors")
    gone = [record["gone_s"] for record in records if "gone_s" in record]
    said = "Seconds until the builders of a killed client were gone: " + spread(gone)
    return f"{table(columns, rows)}\n\n{said}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def main(file: str, engines: str, seed: str, count: str) -> None:
    """Be the client that is killed."""
    jobs = make_jobs(random.Random(seed), int(count))  # noqa: S311 - repeatable on purpose
    client: Any = Client(scheduler_file=file, timeout=60)
    BuildQueue(jobs, client=client, output_dir=engines, retries=1).start().wait()
    # Whoever kills us may come late.
    time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
