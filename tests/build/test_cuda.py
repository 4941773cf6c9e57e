"""How often and when a build starts CUDA: real builds, and a driver of our own that only counts.

There is no GPU here: the driver says so itself (CUDA_ERROR_NO_DEVICE), except where a test says
otherwise. If TensorRT for RTX started CUDA, it would ask this driver, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cuda_driver import NO_DEVICE, ONE_DEVICE, Driver
from tests.kernel.harness import ROOT
from tests.scripts import lines_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the driver is compiled as a library of Linux"
)

BUILDS = """
import json, os, sys
from tests.models import light_model
from trt_widget import Build
from trt_widget.events import LogMessage, NetworkReady

executor, many, options = json.loads(sys.argv[1])
found = []
for _ in range(many):
    build = Build(light_model("squeezenet"), executor=executor, **options)
    events = []
    build.subscribe(events.extend)
    build.start()
    build.wait()
    at = {}
    for kind in (LogMessage, NetworkReady):
        first = min(event.time for event in events if isinstance(event, kind))
        at[kind.__name__] = build._origin + first
    found.append([build.result.device, list(build.result.notes), at])
print(json.dumps([os.getpid(), found]))
"""


def builds(driver: Driver, executor: str, many: int = 1, **options: Any) -> tuple[int, list[Any]]:
    """Build in a fresh process; give its id, and device, notes and moments of each build."""
    given = json.dumps([executor, many, options])
    environ = {**driver.environ, "TRT_WIDGET_HISTORY": "off"}
    pid, found = json.loads(lines_of(BUILDS, given, environ=environ)[-1])
    return pid, found


@pytest.mark.parametrize("answer", [NO_DEVICE, 2])
def test_a_build_in_a_child_starts_cuda_once_there_and_never_here(
    answer: int, tmp_path: Path
) -> None:
    """Nothing was found (no GPU, or a driver that fails this time): the next build asks again."""
    driver = Driver(tmp_path, answer=answer)
    pid, found = builds(driver, "process", 2)
    assert [device for device, _, _ in found] == ["CPU (ahead of time)"] * 2
    started = driver.started()
    assert len(started) == 2
    assert len({one.pid for one in started}) == 2
    assert pid not in {one.pid for one in started}
    # Both by us, through ctypes: TensorRT for RTX builds ahead of time and needs none.
    assert all("tensorrt" not in one.caller for one in started)


def test_what_one_child_has_found_the_next_ones_are_told(tmp_path: Path) -> None:
    driver = Driver(tmp_path, answer=ONE_DEVICE)
    pid, found = builds(driver, "process", 3)
    assert len(driver.started()) == 1
    assert driver.started()[0].pid != pid
    first, *others = [(device, notes) for device, notes, _ in found]
    assert first[0] == "compiled"
    assert "will not run on this machine's GPU, compiled (SM99)" in first[1][0]
    assert others == [first] * 2


CHANGES = """
import json, os, sys
from tests.models import mlp
from trt_widget import Build

def hide(*_):
    os.environ["CUDA_VISIBLE_DEVICES"] = "none of them"

def build(**options):
    done = Build(mlp(), executor="process", **options).start()
    done.wait_ended(60)
    return done.result.device

hidden = [build(configure=hide) for _ in range(2)]
told = [build() for _ in range(2)]
hidden.append(build(configure=hide))
late = Build(mlp(), executor="process")
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
late.start().wait()
told.append(late.result.device)
build(target="current")
print(json.dumps([hidden, told]))
"""


def test_a_child_in_which_cuda_may_see_other_gpus_asks_itself(tmp_path: Path) -> None:
    """A function that may hide them, another order of the GPUs, or a build for the one here."""
    driver = Driver(tmp_path, answer=ONE_DEVICE)
    environ = {**driver.environ, "TRT_WIDGET_HISTORY": "off"}
    told = json.loads(lines_of(CHANGES, environ=environ)[-1])
    assert told == [["compiled"] * 3, ["compiled"] * 3]
    # The three with a function, the first of the two without, the one whose order is another (since
    # before its start), and the one for this GPU; TensorRT starts CUDA for that one, too.
    ours = [one.pid for one in driver.started() if "libffi" in one.caller]
    assert len(set(ours)) == len(ours) == 3 + 1 + 1 + 1


def test_builds_in_threads_start_cuda_once_in_all(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    pid, _ = builds(driver, "thread", 2)
    assert [one.pid for one in driver.started()] == [pid]


def test_who_waits_for_the_gpu_asks_once_apart(tmp_path: Path) -> None:
    """``exclusive=True``: which GPU is locked is found out by a process of its own, once."""
    driver = Driver(tmp_path)
    pid, _ = builds(driver, "process", 2, exclusive=True)
    started = {one.pid for one in driver.started()}
    assert len(driver.started()) == len(started) == 3
    assert pid not in started


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_tensorrt_parses_while_cuda_starts(executor: str, tmp_path: Path) -> None:
    driver = Driver(tmp_path, milliseconds=6_000)
    _, [(_, _, at)] = builds(driver, executor)
    (started,) = driver.started()
    assert at["LogMessage"] < started.ended
    # The device is named when the network is ready: that waits for the answer.
    assert at["NetworkReady"] > started.ended


HANGING = """
import json, sys, time
from pathlib import Path
from tests.models import mlp
from trt_widget import Build, BuildCancelled

how, beginning, options = json.loads(sys.argv[1])
if how == "deadline":
    options["timeout"] = 2.0
def source():
    raise AssertionError("CUDA has not answered yet")
given = source if beginning == "a function" else mlp()
build = Build(given, executor="thread", **options).start()
if how == "user":
    time.sleep(1.0)
    assert build.status == "running", build.result
    assert build.request_cancel()
build.wait_ended(30)
result = build.result
print(json.dumps([result and [result.status, result.reason, result.ended_by], str(result.error)]))
"""


@pytest.mark.parametrize(
    ("how", "beginning", "options"),
    [
        ("user", "a model", {}),
        ("deadline", "a model", {}),
        ("user", "a model", {"device": 0}),
        ("user", "a model", {"engine_cache": True}),
        ("user", "a function", {}),
    ],
)
def test_a_driver_that_hangs_keeps_no_thread_from_a_cancel(
    how: str, beginning: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """``cuInit`` takes a minute: the build is over long before that, and the process can end."""
    driver = Driver(tmp_path, milliseconds=60_000)
    done = subprocess.run(
        [sys.executable, "-c", HANGING, json.dumps([how, beginning, options])],
        env={
            **driver.environ,
            "TRT_WIDGET_HISTORY": "off",
            "TRT_WIDGET_ENGINES": str(tmp_path / "engines"),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told, error = json.loads(done.stdout.splitlines()[-1])
    assert told == ["cancelled", how, "before build"], error
    assert driver.started() == []  # it has not even answered


RAISING = """
import trt_widget.backend as backend
backend.cuda_library = lambda: object()
def broken():
    raise OSError("the driver is broken")
backend._driver = broken
from tests.models import mlp
from trt_widget import Build
build = Build(mlp(), executor="thread").start()
build.wait_ended(60)
print(type(build.result.error).__name__, build.result.error.cause)
"""


def test_a_driver_that_raises_is_told_once_and_by_the_build() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.splitlines()[-1]
    assert told.startswith("BuildFailed ")
    assert told.endswith("OSError: the driver is broken")


def test_the_names_of_the_gpus_are_not_lost_by_asking_late(tmp_path: Path) -> None:
    """Here the driver has one device, of a generation that nobody knows."""
    driver = Driver(tmp_path, answer=ONE_DEVICE, milliseconds=300)
    _, [(device, notes, _)] = builds(driver, "process")
    assert device == "compiled"
    assert len(notes) == 1
    assert "will not run on this machine's GPU, compiled (SM99)" in notes[0]
    assert len(driver.started()) == 1
