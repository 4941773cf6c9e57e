"""One build per device: real locks, and real processes that hold them and die."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import psutil
import pytest

from trt_widget.backend import Gpu
from trt_widget.executors import lock as module
from trt_widget.executors.lock import DeviceLock, SystemLock, device_key, runtime_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Holder:
    """A process of its own that takes the device, does something and then waits."""

    def __init__(self, folder: Path, then: str = "") -> None:
        script = f"""
import os, subprocess, sys
from pathlib import Path
from trt_widget.executors.lock import DeviceLock
lock = DeviceLock("gpu-0", "resnet50.onnx", folder=Path(sys.argv[1]))
assert lock.try_acquire() and lock.held
child = 0
{then}
print(child, flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def release(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "released\n"

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def end(self) -> None:
        for pid in filter(None, (self.process.pid, self.child)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    made: list[Holder] = []
    yield made
    for holder in made:
        holder.end()


def device(folder: Path, label: str = "mine") -> DeviceLock:
    return DeviceLock("gpu-0", label, folder=folder)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---- in one process -----------------------------------------------------------------------------


def test_two_builds_exclude_each_other(tmp_path: Path) -> None:
    one, two = device(tmp_path, "one"), device(tmp_path, "two")
    assert one.holder() is None
    assert one.try_acquire()
    assert one.try_acquire()  # it has it already
    assert (one.held, two.held) == (True, False)
    assert not two.try_acquire()
    assert two.holder() == "one in this process"
    one.release()
    assert not one.held
    assert one.holder() is None
    assert two.try_acquire()
    one.release()  # not its own to give
    assert two.held
    assert not one.try_acquire()
    two.release()
    two.release()
    assert one.note == two.note == ""
    assert names(tmp_path) == ["gpu-0.lock"]


def test_other_devices_are_free(tmp_path: Path) -> None:
    one, two = device(tmp_path), DeviceLock("gpu-1", folder=tmp_path)
    assert one.try_acquire()
    assert two.try_acquire()
    assert two.holder() == "a build in this process"
    for lock in (one, two):
        lock.release()


def test_any_thread_may_use_it(tmp_path: Path) -> None:
    lock, other = device(tmp_path), device(tmp_path)
    results: list[bool] = []
    for call in (lock.try_acquire, other.try_acquire, lock.release, other.try_acquire):
        thread = threading.Thread(target=lambda call=call: results.append(bool(call())))
        thread.start()
        thread.join()
    assert results == [True, False, False, True]
    other.release()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    one, two = device(tmp_path), device(tmp_path)
    for _ in range(20):
        assert one.try_acquire()
        assert not two.try_acquire()
        one.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_cleaner_takes_the_file_away(tmp_path: Path) -> None:
    one, two = device(tmp_path), device(tmp_path)
    assert one.try_acquire()
    one.release()
    (tmp_path / "gpu-0.lock").unlink()
    assert two.try_acquire()
    assert not one.try_acquire()
    two.release()


def test_a_key_is_made_a_file_name(tmp_path: Path) -> None:
    lock = DeviceLock("gpu-../../x y", folder=tmp_path)
    assert lock.try_acquire()
    assert names(tmp_path) == ["gpu-.._.._x_y.json", "gpu-.._.._x_y.lock"]
    lock.release()


# ---- in other processes -------------------------------------------------------------------------


def test_another_process_says_who_it_is(tmp_path: Path, holders: list[Holder]) -> None:
    before = time.time()
    holder = Holder(tmp_path)
    holders.append(holder)
    mine = device(tmp_path)
    assert not mine.try_acquire()
    assert mine.holder() == f"resnet50.onnx in process {holder.process.pid}"
    record = json.loads((tmp_path / "gpu-0.json").read_text(encoding="utf-8"))
    assert before <= record["since"] <= time.time()
    assert record["host"] == "-c"
    holder.release()
    assert mine.try_acquire()
    assert mine.holder() == "mine in this process"
    mine.release()


def test_a_killed_holder_holds_nothing(tmp_path: Path, holders: list[Holder]) -> None:
    holder = Holder(tmp_path)
    holders.append(holder)
    mine = device(tmp_path)
    assert not mine.try_acquire()
    holder.kill()
    assert (tmp_path / "gpu-0.json").exists()  # it could not clean up
    assert mine.holder() is None
    assert mine.try_acquire()
    assert mine.holder() == "mine in this process"
    mine.release()
    assert names(tmp_path) == ["gpu-0.lock"]


PROGRAM = """
program = [sys.executable, "-c", "import time; time.sleep(120)"]
child = subprocess.Popen(program, close_fds=False, stdout=subprocess.DEVNULL).pid
"""
FORK = """
import time
child = os.fork()
if child == 0:
    assert not lock.held
    lock.release()  # nothing of its own
    os.close(1)
    time.sleep(120)
    os._exit(0)
"""
# As a worker of multiprocessing, forked by a thread while another one works with locks.
WORKER = """
import multiprocessing, threading, time
stop = threading.Event()
def work():
    other = DeviceLock("gpu-1", folder=Path(sys.argv[1]))
    while not stop.is_set():
        assert other.try_acquire()
        other.release()
thread = threading.Thread(target=work)
thread.start()
context = multiprocessing.get_context("fork")
def wait():
    os.close(1)
    time.sleep(120)
worker = context.Process(target=wait)
worker.start()
stop.set()
thread.join()
child = worker.pid
"""


@pytest.mark.parametrize("then", [PROGRAM, FORK, WORKER], ids=["program", "fork", "worker"])
def test_children_do_not_keep_the_lock(then: str, tmp_path: Path, holders: list[Holder]) -> None:
    holder = Holder(tmp_path, then)
    holders.append(holder)
    mine = device(tmp_path)
    assert not mine.try_acquire()  # a child that has started does not release it either
    holder.kill()
    assert psutil.Process(holder.child).status() != psutil.STATUS_ZOMBIE
    # A forked child has closed its copy before os.fork returned in it, which may be a moment ago.
    deadline = time.monotonic() + 30
    while not mine.try_acquire():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert psutil.pid_exists(holder.child)
    other = DeviceLock("gpu-1", folder=tmp_path)
    assert other.try_acquire()
    for lock in (mine, other):
        lock.release()


def test_a_child_that_ends_leaves_the_lock_alone(tmp_path: Path, holders: list[Holder]) -> None:
    then = """
pid = os.fork()
if pid == 0:
    lock.release()
    other = DeviceLock("gpu-0", folder=Path(sys.argv[1]))
    os._exit(7 if not other.try_acquire() else 8)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert lock.held
"""
    holders.append(Holder(tmp_path, then))
    mine = device(tmp_path)
    assert not mine.try_acquire()
    assert mine.holder() == f"resnet50.onnx in process {holders[0].process.pid}"


@pytest.mark.parametrize(
    "change",
    [
        {"started": 1.0},  # the number belongs to another process now
        {"pid": 2**22 + 1},  # more than Linux ever gives
        {"pid": "x"},
        {"label": None, "pid": None},
        None,
    ],
)
def test_an_old_or_broken_record_names_nobody(
    change: dict[str, object] | None, tmp_path: Path
) -> None:
    lock = device(tmp_path)
    assert lock.try_acquire()
    record = json.loads((tmp_path / "gpu-0.json").read_text(encoding="utf-8"))
    text = json.dumps({**record, **change}) if change is not None else "[1, 2"
    (tmp_path / "gpu-0.json").write_text(text, encoding="utf-8")
    assert lock.holder() is None
    lock.release()


# ---- no lock ------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to_stops_no_build(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").write_bytes(b"")
        lock = device(folder)
        assert lock.try_acquire()
        assert lock.try_acquire()
        assert not lock.held
        assert lock.note.startswith("Other builds on this device are not waited for: there is no")
        assert lock.holder() is None
        lock.release()
    assert "Not a directory" in lock.note


def test_a_file_system_without_locks_stops_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands for such a file system (some network ones): flock's answer there.
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    lock = device(tmp_path)
    assert lock.try_acquire()
    assert os.strerror(errno.ENOLCK) in lock.note
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "gpu-0.lock").symlink_to(victim)
    lock = device(tmp_path)
    assert lock.try_acquire()
    assert not lock.held
    assert lock.note
    assert not victim.exists()


# ---- the folder ---------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"trt_widget-{os.getuid()}"


def test_the_folder_is_the_users_own(temporary: Path) -> None:
    before = os.umask(0)
    try:
        assert runtime_folder() == temporary
    finally:
        os.umask(before)
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    temporary.chmod(0o777)
    assert runtime_folder() == temporary
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    lock = DeviceLock("cpu")
    assert lock.try_acquire()
    assert names(temporary) == ["cpu.json", "cpu.lock"]
    assert stat.S_IMODE((temporary / "cpu.lock").stat().st_mode) == 0o600
    lock.release()


def test_somebody_was_first(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = temporary.parent / "elsewhere"
    elsewhere.mkdir()
    temporary.symlink_to(elsewhere)
    lock = DeviceLock("cpu")
    assert lock.try_acquire()
    assert "is not a folder" in lock.note
    temporary.unlink()
    temporary.write_bytes(b"")
    assert "is not a folder" in DeviceLock("cpu").note
    assert names(elsewhere) == []
    # Stands for a folder of another user, which only root could make here.
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (temporary.parent / "trt_widget-12345").mkdir()
    assert "belongs to another user" in DeviceLock("cpu").note


# ---- the device's name --------------------------------------------------------------------------


def test_the_name_of_a_device() -> None:
    assert device_key(()) == device_key((), 0) == "cpu"
    # Stands for a machine with two GPUs and a driver that is too old to know their ids.
    two = (Gpu(0, "a", "SM86", "GPU-6b0c93ef-0000-0000-0000-00000000000a"), Gpu(1, "b", "SM86"))
    assert device_key(two) == device_key(two, 0) == "gpu-6b0c93ef-0000-0000-0000-00000000000a"
    assert device_key(two, 1) == "gpu-1"
    assert device_key(two, 2) == "gpu-2"


def test_a_forked_child_knows_nothing_of_the_lock(tmp_path: Path) -> None:
    lock = SystemLock(tmp_path / "x.lock")
    assert lock.try_acquire()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not lock.held and not module._ours else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lock.held
    lock.release()
    assert not module._ours
