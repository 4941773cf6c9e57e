"""Builds that are cancelled, killed or starved: they end, and give the GPU's memory back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
import pytest

from tests import models
from tests.gpu.device import DRY, MIB, holding, until
from trt_widget import Build, BuildCrashed, BuildFailed
from trt_widget.errors import OptionRejected
from trt_widget.executors.process import KILL_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.device import Figures, Memory

EXECUTORS: Final = ("process", "thread")
MLP: Final = models.mlp()
#: What is cancelled: a second or two each, of callbacks and of silences.
SOURCES: Final[dict[str, Any]] = {
    **{name: models.light_model(name) for name in ("squeezenet", "shufflenet", "resnet50")},
    "transformer8": models.transformer(8).SerializeToString(),
}
CANCELS: Final = 50
SEED: Final = int(os.environ.get("TRT_WIDGET_GPU_SEED", "20261130"))
#: After the grace the child gets SIGTERM, after KILL_AFTER_S more SIGKILL. What comes on top are
#: the end of a process that holds a CUDA context, a tenth of a second of the thread that tells, and
#: whatever a busy machine adds. That is no benchmark: a stop that does not come takes the rest of
#: the build, and one that is lost takes for ever.
MARGIN_S: Final = 5.0
#: A thread cannot be ended: it stops at the next callback, at the latest when the build is done.
#: How many times as long as before, alone, that may take on a busy machine.
SLOWER: Final = 3.0
#: Builds that began to end by no later than this are as good as lost.
LONGEST_S: Final = 100.0

pytestmark = pytest.mark.timeout(400)


class Baseline(NamedTuple):
    """What is used of the GPU's memory while nothing is built."""

    memory: Memory
    used: int
    tolerance: int
    #: Seconds of a whole build, by executor and name.
    usual: dict[tuple[str, str], float]

    @property
    def limit(self) -> int:
        """The most that may be used after a build, in bytes."""
        return self.used + self.tolerance

    def check(self, after: str, timeout: float = 15.0) -> int:
        """Wait until no more is used than before; give how much more, in bytes."""
        used = self.memory.settles(self.limit, timeout)
        assert used <= self.limit, (
            f"after {after} {(used - self.used) / MIB:.0f} MiB of GPU memory more are used than "
            f"before: {self.memory.processes()} (this process is {os.getpid()})"
        )
        return used - self.used


def built(executor: str, source: Any = MLP, **options: Any) -> float:
    """Build to the end; give the seconds that it took."""
    build = Build(source, executor=executor, **options).start()
    build.wait(LONGEST_S)
    assert build.result is not None
    return build.result.duration_s


@pytest.fixture(scope="module")
def baseline(memory: Memory, tolerance: int, held: dict[str, Any], figures: Figures) -> Baseline:
    """Give what is used once everything was built: CUDA loads into this process what it needs.

    Its context is part of that: a build in a thread makes it, and nothing gives it back.
    """
    usual = {
        (executor, name): built(executor, source, **held)
        for executor in EXECUTORS
        for name, source in SOURCES.items()
    }
    time.sleep(0.5)
    # The least of some: what a process before us has held may still be on its way back.
    used = min(memory.settles(0, 0.2) for _ in range(5))
    own = memory.ours()
    known = "not told" if own is None else f"{own / MIB:.0f} MiB"
    figures.say(
        f"GPU memory before the cancels: {used / MIB:.0f} MiB, of this process {known}; "
        f"{tolerance / MIB:.0f} MiB more are not told from it"
    )
    return Baseline(memory, used, tolerance, usual)


def child_of(build: Build) -> psutil.Process:
    """Give the process that builds, once it is there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        check_runs(build, "its process was seen")
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # gone meanwhile
                found.extend([child] * ("executors.child" in " ".join(child.cmdline())))
        return bool(found)

    until(look, 30, "the process that builds")
    return found[0]


def in_the_middle(build: Build) -> None:
    """Wait until TensorRT works, and has not said anything for a while."""

    def look() -> bool:
        check_runs(build, "TensorRT had been silent for 0.3 s: it is too quick here for this test")
        return build.tree.paths > 5 and build.now() - build.tree.last_callback > 0.3

    until(look, LONGEST_S, "a silence of TensorRT")


def check_runs(build: Build, before: str) -> None:
    """Fail where a build has ended before something."""
    ended = build.result
    assert ended is None, f"the build ended ({ended.status}: {ended.error!r}) before {before}"


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


# ---- cancels -------------------------------------------------------------------------------------


def test_fifty_cancels(baseline: Baseline, held: dict[str, Any], figures: Figures) -> None:
    print(f"seed {SEED} (TRT_WIDGET_GPU_SEED)")
    rng = random.Random(SEED)  # noqa: S311 - repeatable on purpose
    tally: dict[str, dict[str, int]] = {executor: {} for executor in EXECUTORS}
    latest: dict[str, float] = dict.fromkeys(EXECUTORS, 0.0)
    most = 0
    for number in range(CANCELS):
        executor = EXECUTORS[number % 2]
        name = rng.choice(tuple(SOURCES))
        grace = rng.choice((0.0, 0.2, 1.0, 2.0))
        whole = baseline.usual[executor, name]
        moment = rng.uniform(0.0, whole)
        what = f"cancel {number}, {executor}, {name}, at {moment:.2f} of {whole:.2f} s"
        build = Build(SOURCES[name], executor=executor, grace=grace, **held).start()
        child = child_of(build) if executor == "process" else None
        time.sleep(moment)
        asked = time.perf_counter()
        taken = build.request_cancel()
        build.wait_ended(LONGEST_S)
        waited = time.perf_counter() - asked
        result = build.result
        assert result is not None
        ways = tally[executor]
        ways[result.ended_by] = ways.get(result.ended_by, 0) + 1
        # A build may be done before it hears of it, and says so; it cannot fail by it.
        assert result.status in {"cancelled", "succeeded"}, (what, result.error)
        assert taken or result.status == "succeeded", what
        if result.status == "cancelled":
            assert result.reason == "user", what
            assert result.stop_latency_s is not None
            latest[executor] = max(latest[executor], result.stop_latency_s)
        if child is not None:
            assert waited <= grace + KILL_AFTER_S + MARGIN_S, f"{what}: stopped after {waited:.2f}"
            until(lambda child=child: is_gone(child), 5, "the child's end")
        else:
            rest = SLOWER * whole
            assert waited <= rest + MARGIN_S, f"{what}: stopped after {waited:.2f}"
        most = max(most, baseline.check(what))
        if number % 10 >= 8:  # of each executor, once in ten
            built(executor)
    for executor, ways in tally.items():
        # Of 25 random moments some fall within the build: something was really cancelled.
        assert sum(ways.values()) == CANCELS // 2
        assert set(ways) - {"completed"}, ways
        figures.row(
            "cancels at random moments",
            executor=executor,
            cancels=CANCELS // 2,
            latest_stop_s=latest[executor],
            ended_by=", ".join(f"{way} {count}" for way, count in sorted(ways.items())),
        )
    figures.say(
        f"GPU memory after {CANCELS} cancels: at most {most / MIB:.0f} MiB more (seed {SEED})"
    )


# ---- a death -------------------------------------------------------------------------------------


def test_a_child_that_is_killed_gives_its_memory_back(
    baseline: Baseline, held: dict[str, Any], figures: Figures
) -> None:
    build = Build(models.light_model("densenet121"), executor="process", **held).start()
    child = child_of(build)
    in_the_middle(build)
    during = baseline.memory.used() - baseline.used
    of_child = baseline.memory.processes().get(child.pid)
    kill(build, child)
    build.wait_ended(30)
    assert build.result is not None
    error = build.result.error
    assert isinstance(error, BuildCrashed), f"killed, and yet {build.result.status}: {error!r}"
    assert error.signal == "SIGKILL"
    assert error.remedy
    until(lambda: is_gone(child), 5, "the child's end")
    more = baseline.check("a kill")
    told = "not told" if of_child is None else f"{of_child / MIB:.0f} MiB"
    figures.say(
        f"kill -9 of a child that builds: while it did, {during / MIB:.0f} MiB more GPU memory "
        f"were used than before (of the child itself: {told}), and {more / MIB:.0f} MiB after it"
    )
    if not DRY:
        # Else nothing was given back. The child had a context, which is twice the tolerance.
        assert during > baseline.tolerance
    for executor in EXECUTORS:
        built(executor)


def kill(build: Build, child: psutil.Process) -> None:
    """Kill the process that builds, while it does."""
    try:
        child.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        build.wait_ended(30)
        check_runs(build, "its process could be killed")
        raise


# ---- no memory -----------------------------------------------------------------------------------


NOTHING: Final = "nothing"


@pytest.fixture(params=[NOTHING, "a context and a little"])
def starved(request: pytest.FixtureRequest, baseline: Baseline, figures: Figures) -> Iterator[str]:
    """Have another process take the GPU's memory while the test runs; give what it leaves."""
    if DRY:
        yield f"all, not {request.param}: a dry run"
        return
    # What a CUDA context takes is twice the tolerance, and a bit is for the libraries in it.
    leave = 0 if request.param == NOTHING else 2 * baseline.tolerance + 128 * MIB
    with holding(str(leave)) as taken:
        # How much the driver keeps back differs from GPU to GPU. What counts is that a context has
        # no place in what is left beyond what was to be left.
        assert taken["free"] <= leave + baseline.tolerance, taken
        figures.say(f"free of {taken['total'] / MIB:.0f} MiB: {taken['free'] / MIB:.0f} MiB")
        yield request.param
    baseline.check("another process has held all of it")


def test_a_build_without_gpu_memory(starved: str, held: dict[str, Any], figures: Figures) -> None:
    """Either it says that GPU memory is short, or it can do without more: nothing else.

    It cannot do without a context, and so says it where not even that has a place. In a child only:
    this process has what it needs already, and others may be starved with it.
    """
    build = Build(models.light_model("resnet50"), executor="process", **held).start()
    build.wait_ended(LONGEST_S)
    result = build.result
    assert result is not None
    said = str(result.error).splitlines()[0] if result.error is not None else ""
    figures.say(f"a build with little GPU memory ({starved}): {result.status}. {said}".strip())
    if result.error is not None:
        figures.lines += [f"    {text[:300]}" for text in result.error.messages[-6:]]
    if result.status == "succeeded":
        assert starved != NOTHING, "a context was made of nothing"
        assert result.engine_bytes
        return
    check_starved(result.error)


def check_starved(error: object) -> None:
    """Hold an error against what one of a build without GPU memory has to say."""
    assert isinstance(error, BuildFailed), repr(error)
    assert "GPU memory" in error.cause, str(error)
    assert error.remedy
    if isinstance(error, OptionRejected):  # of device=, before TensorRT: the driver has answered
        assert "the CUDA driver answered error 2" in error.cause
    else:
        assert error.evidence or error.messages
