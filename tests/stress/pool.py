"""Worker processes that make experiments, each watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.stress.leaks import TOKEN, files_in, marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parent.parent.parent
#: Seconds until a worker that starts has to answer.
_START_S = 120.0


class Pool:
    """Runs experiments of one kind.

    Parameters
    ----------
    kind
        A name of ``tests.stress.EXPERIMENTS``.
    options
        What the experiment needs; plain data.
    limit_s
        Seconds after which an experiment hangs: its worker is killed, and that is a problem.
    """

    def __init__(self, kind: str, options: dict[str, Any], limit_s: float) -> None:
        self._kind = kind
        self._options = options
        self._limit = limit_s
        self._token = secrets.token_hex(8)
        self._todo: deque[int] = deque()
        self._lock = threading.Lock()

    def run(
        self, indices: Iterable[int], jobs: int, tell: Callable[[dict[str, Any]], object]
    ) -> list[str]:
        """Make the experiments; give what was found wrong after the last one."""
        self._todo.extend(indices)
        problems: list[str] = []
        # Not a long path: cases put it into models.
        with tempfile.TemporaryDirectory(prefix="trt-stress-") as folder:

            def work(number: int) -> None:
                try:
                    self._work(Path(folder) / str(number), tell, problems)
                except BaseException as error:  # noqa: BLE001 - told, and the run has failed
                    problems.append(f"a worker's watch broke off: {error!r}")

            threads = [
                threading.Thread(target=work, args=(n,)) for n in range(min(jobs, len(self._todo)))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for process in marked(TOKEN, self._token):
            problems.append(f"left at the end: {process}")
            with contextlib.suppress(Exception):
                process.kill()
        if self._todo:
            problems.append(f"{len(self._todo)} were not made")
        return problems

    def _work(self, folder: Path, tell: Callable[..., object], problems: list[str]) -> None:
        """Be the watch of one worker after the other until there is nothing to do."""
        generation = 0
        while self._todo:
            place = folder / str(generation)
            generation += 1
            with _Worker(self._kind, self._options, place, self._token) as worker:
                while True:
                    try:
                        index = self._todo.popleft()
                    except IndexError:
                        break
                    limit = self._limit + (_START_S if worker.answers == 0 else 0.0)
                    record = worker.ask(index, limit)
                    with self._lock:
                        tell(record)
                    if record.get("lost"):
                        break
            if worker.problems:
                problems += worker.problems
                if generation > 20:
                    return


class _Worker:
    def __init__(self, kind: str, options: dict[str, Any], folder: Path, token: str) -> None:
        self._folder = folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        (folder / "work").mkdir()
        self._errors = folder / "stderr"
        self._lost = False
        self.answers = 0
        self.problems: list[str] = []
        options = {**options, "folder": str(folder / "work")}
        environment = {
            **os.environ,
            TOKEN: token,
            "TMPDIR": str(self._temporary),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONWARNINGS": "default",
        }
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.worker", kind, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
            )

    def __enter__(self) -> _Worker:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def ask(self, index: int, limit: float) -> dict[str, Any]:
        """Have one experiment made; a worker that dies or hangs is what the answer says."""
        pipe, answer = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answer is not None
        with contextlib.suppress(OSError):
            pipe.write(b"%d\n" % index)
            pipe.flush()
        ready, _, _ = select.select([answer], [], [], limit)
        line = answer.readline() if ready else b""
        if line.endswith(b"\n"):
            self.answers += 1
            record: dict[str, Any] = json.loads(line)
            return record
        self._lost = True
        outcome = "HUNG"
        if ready:
            outcome = f"PARENT DIED ({self._process.wait(30)})"
        else:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(2.0)
        self._process.kill()
        self._process.wait()
        problem = f"{outcome}: {self._tail()}"
        return {"index": index, "outcome": outcome, "problems": [problem], "lost": True}

    def _tail(self) -> str:
        return self._errors.read_bytes()[-6000:].decode(errors="replace")

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process.stdout.close()
        if not self._lost:
            if code != 0:
                self.problems.append(f"a worker ended with {code}: {self._tail()}")
            left = files_in(self._temporary) + files_in(self._folder / "work")
            if left:
                self.problems.append(f"files left: {left[:10]}")
            if self._errors.stat().st_size:
                self.problems.append(f"a worker printed: {self._tail()}")
        shutil.rmtree(self._folder, ignore_errors=True)
