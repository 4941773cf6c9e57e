"""Random cancels, at random moments, of builds by both executors."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import onnx

from tests import models
from tests.stress.experiment import Experiment
from tests.stress.leaks import files_in
from tests.stress.sound import Watched
from trt_widget import Build

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds after the grace in which the process executor has to have stopped, and what a busy
#: machine may add.
STOP_S = 0.7
NOISE_S = 5.0


class Cancel(Experiment):
    """One cancel each; ``models`` names those that are built."""

    executors: ClassVar[tuple[str, ...]] = ("process", "thread")

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._sources: dict[str, Any] = {
            name: models.light_model(name) for name in ("squeezenet", "resnet50", "shufflenet")
        }
        self._sources["transformer"] = bytes(models.transformer(8).SerializeToString())
        self._sources["mlp"] = onnx.ModelProto.FromString(models.mlp(12).SerializeToString())
        chosen = options.get("models", list(self._sources))
        self._sources = {name: self._sources[name] for name in chosen}

    def warm_up(self) -> None:
        """Measure, too, how long the builds take."""
        super().warm_up()
        for executor in self.executors:
            for name, source in self._sources.items():
                if (executor, name) in self.durations:
                    continue
                build = Build(source, executor=executor, exclusive=False).start()
                build.wait()
                assert build.result is not None
                self.durations[executor, name] = build.result.duration_s

    def run(self, index: int, folder: Path) -> dict[str, Any]:
        rng = random.Random(f"{self.seed}:{index}")  # noqa: S311 - repeatable on purpose
        executor = rng.choice(self.executors)
        name = rng.choice(tuple(self._sources))
        grace = rng.choice((0.0, 0.2, 1.0, 2.0))
        moment = rng.choice((0.0, rng.uniform(0.0, 1.05))) if rng.random() < 0.1 else rng.random()
        moment *= self.durations[executor, name]
        reason = rng.choice(("user", "deadline", "interrupt", "closed"))
        output = folder / "engine" if rng.random() < 0.5 else None
        build = Build(
            self._sources[name], executor=executor, exclusive=False, grace=grace, output=output
        )
        watched = Watched(build)
        problems: list[str] = []

        def check(true: Any, what: str) -> None:
            if not true:
                problems.append(f"{executor}, {name}, {moment:.3f} s: {what}")

        build.start()
        time.sleep(moment)
        asked = time.perf_counter()
        taken = self._ask(rng, build, reason)
        build.wait_ended(100)
        waited = time.perf_counter() - asked
        problems += watched.problems()
        result = build.result
        assert result is not None
        check(build.status in {"cancelled", "succeeded"}, f"{build.status}: {result.error}")
        if taken:
            check(result.reason == reason, f"{result.reason} instead of {reason}")
            stop = result.stop_latency_s
            check(stop is not None and stop <= waited + 0.01, f"stopped {stop}, waited {waited}")
            if executor == "process":
                check(waited <= grace + STOP_S + NOISE_S, f"stopped after {waited:.2f} s")
        elif taken is not None:
            check(build.status == "succeeded" and result.reason is None, "nothing was asked")
        if build.status == "succeeded":
            self.took((executor, name), result.duration_s)
            if output is not None:
                check(output.read_bytes() == bytes(build.engine), "the file is not the engine")
                output.unlink()
            if taken:
                note = any("before" in note for note in result.notes)
                check(note, f"finished before the cancel, and does not say so: {result.notes}")
        else:
            check(result.duration_s >= 0.0 and result.output is None, "result of a cancel")
            if result.ended_by in {"terminated", "killed"}:
                check(executor == "process", "a thread cannot be ended")
                check(waited >= grace, f"{result.ended_by} after {waited:.2f} s")
        check(not files_in(folder), f"files: {files_in(folder)}")
        return {
            "outcome": f"{build.status}, {result.ended_by}",
            "problems": problems,
            "executor": executor,
            "model": name,
            "grace": grace,
            "stop_s": result.stop_latency_s if taken else None,
            "seconds": round(result.duration_s, 3),
        }

    @staticmethod
    def _ask(rng: random.Random, build: Build, reason: str) -> bool | None:
        """Cancel in one of the ways there are; give whether it was taken, None if nobody says."""
        how = rng.choice(("here", "elsewhere", "twice", "signal"))
        if how == "signal":
            build.signal_cancel(reason)
            return None
        answers: list[bool] = []
        if how == "elsewhere":
            thread = threading.Thread(target=lambda: answers.append(build.request_cancel(reason)))
            thread.start()
            thread.join()
        else:
            answers.append(build.request_cancel(reason))
        if how == "twice":
            build.request_cancel("user")
        return answers[0]
