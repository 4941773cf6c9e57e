"""Builders that are made to die, in every way, at a random moment."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import psutil

from tests import models
from tests.stress.deeds import Deed
from tests.stress.experiment import Experiment
from tests.stress.hostile import outcome_of
from tests.stress.leaks import TOKEN, files_in, is_gone, marked
from tests.stress.sound import Watched
from trt_widget import Build, BuildCancelled, BuildCrashed, BuildFailed, ConfigureFailed, SaveError

if TYPE_CHECKING:
    Rng = random.Random

_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS")
#: In what ways a builder dies, and how often each is chosen.
WEIGHTS = {
    **{name: (14 if name in _SIGNALS[:3] else 5) for name in _SIGNALS},
    "stopped, then cancelled": 10,
    "stopped for a while": 3,
    "exit": 8,
    "exit in configure=": 4,
    "the child's pipes": 8,
    "the child's descriptors": 3,
    "our end of the events": 6,
    "our end of the output": 3,
    "our end of the request": 4,
    "memory limit": 6,
    "memory used up": 6,
    "full disk: output=": 5,
    "full disk: temporary": 5,
    "file size: output=": 3,
    "file size: temporary": 3,
    "kernel killed": 11,
}
#: Seconds in which the builder of a killed kernel has to be gone.
GONE_S = 2.0
#: How a builder ends that cannot send its events.
CANNOT_SEND = "exit code 74"
#: Seconds that a build that is short of memory may take.
MEMORY_TIMEOUT_S = 20.0

#: Kinds of death in which a builder can have finished and only its last words are lost.
_NEWS_LOST = ("the child's pipes", "the child's descriptors", "our end of the events", "exit")
#: No engine of the models that are built here is smaller, in bytes.
_SMALLEST_ENGINE = 1_000_000


class Death(Experiment):
    """One death each, of a random kind, or of those named by ``kinds``, one after the other."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._models = {
            name: models.light_model(name) for name in ("squeezenet", "resnet50", "shufflenet")
        }
        self._place = Path(options["folder"]).parent
        path = self._place / "transformer.onnx"
        onnx.save(models.transformer(6), str(path))
        self._models["transformer"] = path
        self._full = self._place / "full"
        self._full.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(self._full)]
        self._mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        """Take the small disk away."""
        if self._mounted:
            subprocess.run(["umount", str(self._full)], check=True)

    def warm_up(self) -> None:
        """Measure, too, how long the builds take."""
        super().warm_up()
        for name, path in self._models.items():
            if name not in self.durations:
                build = Build(path, executor="process", exclusive=False).start()
                build.wait()
                assert build.result is not None
                self.durations[name] = build.result.duration_s

    def run(self, index: int, folder: Path) -> dict[str, Any]:
        rng = random.Random(f"{self.seed}:{index}")  # noqa: S311 - repeatable on purpose
        kind = rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        if "kinds" in self.options:
            kind = self.options["kinds"][index]
        name = rng.choice(tuple(self._models))
        if kind.startswith("full disk") and not self._mounted:
            kind = kind.replace("full disk", "file size")
        moment = rng.uniform(0.0, 1.05) * self.durations[name]
        if kind == "kernel killed":
            record = self._kill_kernel(rng, self._models[name], 0.7 * moment, folder)
        else:
            record = _Death(rng, kind, self._models[name], moment, folder, full=self._full).run()
        if record["outcome"] == "engine":
            self.took(name, record["seconds"])
        record.update(kind=kind, model=name, moment=round(moment, 3))
        if index % 10 == 0:
            engine = Build(models.mlp(), executor="process", exclusive=False).start().wait()
            if len(engine) < 1000:
                record["problems"].append("the next build does not work")
        left = [*files_in(folder), *(files_in(self._full) if self._mounted else ())]
        if left:
            record["problems"].append(f"files: {left}")
        return record

    def _kill_kernel(self, rng: Rng, model: Path, moment: float, folder: Path) -> dict[str, Any]:
        """Kill a process that builds and has forked workers; its builder has to go."""
        problems: list[str] = []
        how = rng.choice(("os", "multiprocessing", "libc"))
        output = folder / "engine" if rng.random() < 0.5 else None
        token = secrets.token_hex(8)
        kernel = subprocess.Popen(
            # From Python 3.12 a fork beside threads warns; that is the point here.
            [
                *(sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.stress.kernel"),
                *(str(model), str(output or ""), how),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, f"{TOKEN}_KERNEL": token},
        )
        assert kernel.stdout is not None
        builder = int(kernel.stdout.readline())
        started = time.perf_counter()
        family = [p.pid for p in psutil.Process(kernel.pid).children(recursive=True)]
        if builder not in family:
            problems.append(f"the builder {builder} is not among {family}")
        time.sleep(moment)
        if rng.random() < 0.2:
            _send(builder, "SIGSTOP")
        was_there = not is_gone(builder)
        kernel.kill()
        killed = time.perf_counter()
        while not is_gone(builder) and time.perf_counter() - killed < 30.0:
            time.sleep(0.002)
        gone = time.perf_counter() - killed
        kernel.wait()
        kernel.stdout.close()
        if gone > GONE_S:
            problems.append(f"the builder was there for {gone:.1f} s")
        problems += _end_workers(builder, token)
        if output is not None and output.exists():
            if output.stat().st_size < 1000:
                problems.append("a part of an engine")
            output.unlink()
        took = killed - started
        outcome = f"{how}, builder gone" if was_there else f"{how}, builder had ended"
        record = {"outcome": outcome, "problems": problems, "seconds": round(took, 3)}
        if was_there:
            record["gone_s"] = gone
        return record


def _end_workers(builder: int, token: str) -> list[str]:
    """End the workers that a killed kernel has left; they are the user's, and may live on.

    They have kept our pipes open until now.
    """
    problems = []
    workers = marked(f"{TOKEN}_KERNEL", token)
    if len(workers) < 2:
        problems.append(f"the forked workers are gone too: {workers}")
    for worker in workers:
        if worker.pid == builder:
            problems.append("the builder is still there")
        worker.kill()
    deadline = time.monotonic() + 5.0
    while marked(f"{TOKEN}_KERNEL", token) and time.monotonic() < deadline:
        time.sleep(0.01)
    return problems


def _send(pid: int, name: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, name))


class _Death:
    """One build, and what happens to it."""

    def __init__(
        self, rng: Rng, kind: str, model: Path, moment: float, folder: Path, *, full: Path
    ) -> None:
        self._rng = rng
        self._kind = kind
        self._model = model
        self._moment = moment
        self._folder = folder
        self._full = full
        self._problems: list[str] = []
        self._code = rng.choice((0, 1, 3, 77))
        self._grace = rng.choice((0.0, 0.2))

    def run(self) -> dict[str, Any]:
        """Build, let it happen, and look at what came of it."""
        import tempfile

        before = tempfile.gettempdir()
        output = self._folder / "engine" if self._rng.random() < 0.3 else None
        if self._kind == "full disk: output=":
            output = self._full / "engine"
        elif self._kind == "file size: output=":
            output = self._folder / "engine"
        elif self._kind.endswith("temporary"):
            output = None
        if self._kind == "full disk: temporary":
            tempfile.tempdir = str(self._full)
        # TensorRT itself may hang when it is out of memory: a thread of its own gets none and ends,
        # and the one that builds waits for it for good. Then only a deadline helps.
        timeout = MEMORY_TIMEOUT_S if self._kind.startswith("memory") else None
        try:
            build = Build(
                self._model,
                executor="process",
                exclusive=False,
                grace=self._grace,
                timeout=timeout,
                configure=self._deed(),
                output=output,
            )
            watched = Watched(build)
            build.start()
            self._act(build)
            try:
                build.wait_ended(90)
            except TimeoutError as error:
                self._problems.append(f"{self._kind}: {error}")
                build.request_cancel()
                build.wait_ended(20)
        finally:
            tempfile.tempdir = before
        self._problems += watched.problems()
        self._check(build)
        result = build.result
        assert result is not None
        if output is not None and output.exists():
            self._check_output(build, output)
        elif output is not None and build.status == "succeeded":
            self._problems.append("there is no file at output=")
        record = {"outcome": outcome_of(build), "problems": self._problems}
        if record["outcome"].startswith("BuildCrashed"):
            record["outcome"] = record["outcome"].rpartition(", ")[0]
            record["phase"] = result.error.phase  # type: ignore[union-attr]  # a BuildCrashed
        record["seconds"] = round(result.duration_s, 3)
        return record

    def _check_output(self, build: Build, output: Path) -> None:
        """Look at the file that is at ``output=``, and take it away where it may be there."""
        if build.status == "succeeded":
            if output.read_bytes() != bytes(build.engine):
                self._problems.append("the file is not the engine")
            output.unlink()
        elif self._kind in _NEWS_LOST:
            # The engine was written, whole, and only the news of it could not be sent.
            if output.stat().st_size < _SMALLEST_ENGINE:
                self._problems.append("a part of an engine")
            output.unlink()

    def _deed(self) -> Deed:
        # The builder is started, and has parsed, when configure= is called.
        delay = max(0.001, self._moment - 0.25)
        descendant = self._rng.random() < 0.3
        size = self._rng.choice((0, 1 << 20, 1 << 24, 1 << 26))
        return {
            "exit": Deed("exit", delay, self._code, descendant),
            "exit in configure=": Deed("exit", 0.0, self._code, descendant),
            "the child's pipes": Deed("close_pipes", delay, 0, descendant),
            "the child's descriptors": Deed("close_everything", delay, 0, descendant),
            "memory limit": Deed("limit_memory", delay, size, descendant),
            "memory used up": Deed("eat_memory", delay, size, descendant),
            "file size: output=": Deed("limit_files", 0.0, 1000, descendant),
            "file size: temporary": Deed("limit_files", 0.0, 1000, descendant),
        }.get(self._kind, Deed(descendant=descendant))

    def _act(self, build: Build) -> None:
        """Do from outside what is to be done from there."""
        executor: Any = build._executor
        kind = self._kind
        if not kind.startswith(("SIG", "stopped", "our end")):
            return
        while executor._process is None and build.result is None:
            time.sleep(0.001)
        process = executor._process
        time.sleep(self._moment)
        if build.result is not None:
            return
        self._at = build.now()
        self._began = executor._hello is not None
        if kind in _SIGNALS:
            _send(process.pid, kind)
        elif kind.startswith("stopped"):
            _send(process.pid, "SIGSTOP")
            time.sleep(self._rng.uniform(0.0, 0.3))
            if kind == "stopped for a while":
                _send(process.pid, "SIGCONT")
            else:
                build.request_cancel()
        else:
            pipe = {
                "our end of the events": process.stdout,
                "our end of the output": process.stderr,
                "our end of the request": process.stdin,
            }[kind]
            # In one step, so that no other thread can be given the number meanwhile.
            nothing = os.open(os.devnull, os.O_RDWR)
            try:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
            except ValueError:
                pass  # it has ended, and the pipe is closed
            finally:
                os.close(nothing)

    _at: float | None = None
    _began = True

    def _check(self, build: Build) -> None:  # noqa: C901 - a list of what can be right
        """Compare the outcome with what was done."""
        result = build.result
        assert result is not None
        error, kind = result.error, self._kind
        crashed = isinstance(error, BuildCrashed)

        def check(true: Any, what: str = "") -> None:
            if not true:
                text = f"{kind}: {result.status}, {result.ended_by}, {error!r} {what}"
                self._problems.append(text)

        if isinstance(error, BuildCrashed):
            check(result.ended_by == "crashed", "ended_by")
            paths = build.tree.timing_columns()["path"]
            check(error.phase is None or error.phase in paths, f"phase {error.phase}")
            check((error.signal is None) != (error.exit_code is None), "signal and exit code")
        if self._at is not None and build.status == "succeeded" and kind in _SIGNALS:
            check(result.duration_s <= self._at + 0.05, f"built after its death at {self._at}")
        ended = build.status == "succeeded"
        if kind in _SIGNALS:
            check(ended or (crashed and _how(error) == kind), f"how: {_how(error)}")
        elif kind == "stopped, then cancelled":
            check(ended or (result.status, result.ended_by) == ("cancelled", "killed"))
            if not ended and result.stop_latency_s is not None:
                check(result.stop_latency_s < self._grace + 0.5 + 5.0, f"{result.stop_latency_s}")
        elif kind in {"stopped for a while", "our end of the output"}:
            check(ended)
        elif kind.startswith("exit"):
            check(
                (ended and kind == "exit")
                or (crashed and _how(error) == f"exit code {self._code}"),
                f"how: {_how(error)}, not {self._code}",
            )
        elif kind == "our end of the request":
            # As when the kernel has gone: the builder ends itself, and what it has started.
            check(ended or (crashed and _how(error) == "SIGKILL"), f"how: {_how(error)}")
        elif kind.startswith(("the child's", "our end")):
            # Closed before its first word, it could not begin; closed after its last, which is lost
            # in our pipe then, it left in peace.
            unbegun = type(error) is BuildFailed and f"begin ({CANNOT_SEND})" in error.cause
            hows = {CANNOT_SEND, "exit code 0"} if "events" in kind else {CANNOT_SEND}
            check(
                ended or (unbegun and not self._began) or (crashed and _how(error) in hows),
                f"how: {_how(error)}",
            )
        elif kind.startswith("memory"):
            hung = isinstance(error, BuildCancelled) and error.reason == "deadline"
            check(ended or hung or isinstance(error, BuildFailed))
            check(not isinstance(error, ConfigureFailed))
            if hung:
                check(result.ended_by in {"terminated", "killed"})
                check((result.stop_latency_s or 0.0) < self._grace + 0.5 + 5.0, "stopped late")
        else:
            check(isinstance(error, SaveError))


def _how(error: BaseException | None) -> str:
    if not isinstance(error, BuildCrashed):
        return ""
    return error.signal or f"exit code {error.exit_code}"
