"""The child process that builds: what it can do that a thread cannot. Real builds, real deaths."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import tensorrt_rtx as trt

from tests import models
from tests.scripts import lines_of
from trt_widget import (
    Build,
    BuildCancelled,
    BuildCrashed,
    BuildFailed,
    OptionError,
    ProgressMonitor,
    SaveError,
)
from trt_widget.executors import process as process_module
from trt_widget.executors.gate import GATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: About 0.3 s of callbacks, then seconds of silence.
DENSENET = models.light_model("densenet121")


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, thread, descriptor or file."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    threads = set(threading.enumerate())
    descriptors = psutil.Process().num_fds()
    yield
    deadline = time.monotonic() + 30
    while left := [t for t in threading.enumerate() if t not in threads]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        left[0].join(0.1)
    assert not children()
    assert not process_module._open_pipes
    assert not GATE._queues
    assert not list(scratch.glob("trt_widget-*.engine"))
    gc.collect()  # a mapped engine holds a descriptor
    assert psutil.Process().num_fds() <= descriptors


def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def in_the_gap(build: Build) -> None:
    """Wait until TensorRT has been silent for a while."""
    until(lambda: build.tree.paths > 8 and build.now() - build.tree.last_callback > 0.5)


def child_of(build: Build) -> psutil.Process:
    until(lambda: build.status == "running" and children())
    return children()[0]


# ------------------------------------------------------------------ which executor


def test_auto_is_a_child_process_and_a_thread_where_something_cannot_travel() -> None:
    build = Build(models.mlp())
    assert build.executor == "auto"
    assert build.start().wait()
    assert build.result.executor == build.executor == "process"
    assert build.result.notes == ()

    lock = threading.Lock()

    def configure(*_: Any) -> None:
        with lock:
            pass

    build = Build(models.mlp(), configure=configure).start()
    assert build.wait()
    assert build.executor == "thread"
    (note,) = build.result.notes
    assert "configure= cannot be sent to another process" in note
    assert "lock" in note
    assert "a crash in it would end this process" in note

    with pytest.raises(OptionError, match="executor='thread'"):
        Build(models.mlp(), configure=configure, executor="process").start()


def test_a_live_builder_stays_in_a_thread() -> None:
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(models.mlp().SerializeToString())
    build = Build(lambda: (builder, network)).start()
    assert build.wait()
    assert build.executor == "thread"
    assert "the source cannot be sent" in build.result.notes[0]


def test_functions_of_main_and_of_the_users_modules_travel(tmp_path: Path) -> None:
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "helpers.py").write_text(
        "def configure(builder, network, config):\n    print('helper', network.num_layers)\n"
    )
    # A stray module beside the notebook must not be taken for Python's own.
    (folder / "json.py").write_text("raise RuntimeError('hijacked')\n")
    (folder / "secrets.py").write_text("raise RuntimeError('hijacked')\n")
    script = textwrap.dedent(
        f"""
        import json, secrets, sys
        sys.path.insert(0, {str(folder)!r})
        sys.path.append({str(Path(models.__file__).parent.parent)!r})
        import helpers
        from tests import models
        from trt_widget import Build
        def mine(builder, network, config):
            print("mine", type(json.dumps).__name__)
        for function in (mine, helpers.configure):
            build = Build(models.mlp(), configure=function, output="here.engine").start()
            assert build.wait() and build.executor == "process", build.executor
            print(build.printed.strip())
        """
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "mine function"
    assert done.stdout.splitlines()[1].startswith("helper ")
    assert (folder / "here.engine").stat().st_size > 1000


def test_a_stray_module_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pickle", "cloudpickle", "psutil", "tensorrt_rtx", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    build = Build(models.mlp(), configure=lambda *_: None).start()
    assert build.wait()
    assert build.executor == "process"


def test_a_module_that_the_child_cannot_find_is_explained() -> None:
    made = type(sys)("only_here")
    exec("def configure(builder, network, config): pass", made.__dict__)  # noqa: S102 - our text
    sys.modules["only_here"] = made
    try:
        build = Build(models.mlp(), configure=made.configure).start()
        with pytest.raises(BuildFailed, match=r"only_here(.|\n)*register_pickle_by_value"):
            build.wait()
    finally:
        del sys.modules["only_here"]


# ------------------------------------------------------------------ what is printed


def test_what_is_printed_is_captured_and_corrupts_nothing() -> None:
    def configure(*_: Any) -> None:
        print("from Python")
        print("to the error output", file=sys.stderr)
        libc = ctypes.CDLL(None)
        libc.puts(b"from C")
        libc.fflush(None)
        os.write(1, b'{"event":"end","status":"succeeded"}\n')
        os.write(2, b"\xff\xfe not text\n" + b"x" * 300_000)

    build = Build(models.mlp(), configure=configure)
    said: list[str] = []
    build.subscribe(lambda events: said.extend(e.text for e in events if e.kind == "output"))
    assert len(build.start().wait()) > 1000
    text = "".join(said)
    assert "from Python" in text or "bytes not kept" in text
    assert build.printed.endswith("x" * 1000)
    assert len(build.printed) <= 256 * 1024
    assert build.result.status == "succeeded"


def test_a_small_output_is_kept_whole() -> None:
    def configure(*_: Any) -> None:
        print("one")
        os.write(1, b"two\n")

    build = Build(models.mlp(), configure=configure).start()
    build.wait()
    assert build.printed == "one\ntwo\n"


# ------------------------------------------------------------------ the engine


def test_the_engine_is_mapped_and_no_file_is_left(tmp_path: Path) -> None:
    build = Build(models.mlp()).start()
    engine = build.wait()
    assert isinstance(engine, memoryview)
    assert engine.readonly
    copy = build.save(tmp_path / "copy.engine")
    assert copy.read_bytes() == bytes(engine)

    output = tmp_path / "net.engine"
    output.write_bytes(b"old")
    build = Build(models.mlp(), output=output).start()
    engine = build.wait()
    assert output.read_bytes() == bytes(engine) != b"old"
    # The very file that is mapped, and a later build to the same place.
    assert build.save(output) == output
    assert Build(models.mlp(), output=output).start().wait()
    assert output.read_bytes() == bytes(engine)


def test_an_engine_that_cannot_be_written_anywhere_is_a_typed_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def configure(*_: Any) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(SaveError, match=r"temporary file(.|\n)*TMPDIR"):
        build.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    build = Build(models.mlp()).start()
    with pytest.raises(BuildFailed, match=r"temporary file(.|\n)*TMPDIR"):
        build.wait()


# ------------------------------------------------------------------ escalation


@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_a_cancel_inside_the_gap_ends_the_process_after_the_grace(grace: float) -> None:
    build = Build(DENSENET, grace=grace).start()
    in_the_gap(build)
    begun = time.monotonic()
    build.request_cancel()
    assert build.status == "cancelling"
    with pytest.raises(BuildCancelled) as caught:
        build.wait()
    took = time.monotonic() - begun
    assert caught.value.reason == "user"
    result = build.result
    assert result.ended_by == "terminated"
    assert grace <= result.stop_latency_s <= took
    # What was known of it is still there.
    assert result.layers > 100
    assert result.device
    assert result.peak_memory_bytes > 100_000_000
    assert build.timings["status"].iloc[0] == "cancelled"
    assert build.timings["self_s"].sum() == pytest.approx(build.timings["total_s"].iloc[0])
    assert len(build.log) > 0


def test_a_cancel_during_callbacks_is_answered_at_the_next_step() -> None:
    build = Build(models.light_model("resnet50"), configure=models.slowly(), grace=30).start()
    until(lambda: build.tree.paths > 0)
    build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait()
    assert build.result.ended_by == "step"
    assert build.tree.cancel_delivered is not None


def test_a_stopped_child_is_killed() -> None:
    build = Build(DENSENET, grace=0.1).start()
    in_the_gap(build)
    child_of(build).suspend()
    build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait()
    assert build.result.ended_by == "killed"


def test_a_child_that_ignores_being_terminated_is_killed() -> None:
    def configure(*_: Any) -> None:
        import os
        import signal

        # What a native library could do: the handler of this process is not asked any more.
        ctypes = __import__("ctypes")
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(1))
        os.write(1, b"deaf\n")

    build = Build(DENSENET, configure=configure, grace=0.1).start()
    in_the_gap(build)
    assert build.printed == "deaf\n"
    build.request_cancel()
    build.wait_ended()
    assert (build.status, build.result.ended_by) == ("cancelled", "killed")


def test_kill_knows_no_grace() -> None:
    build = Build(DENSENET, grace=30).start()
    in_the_gap(build)
    build.kill()
    build.wait_ended()
    assert (build.status, build.result.reason) == ("cancelled", "user")
    # Neither at the end of the grace nor at the next step.
    assert build.result.ended_by == "terminated"
    assert build.result.stop_latency_s < 30
    Build(DENSENET).kill()  # not started: nothing but a cancel


def test_the_deadline_holds_inside_the_gap() -> None:
    build = Build(DENSENET, timeout=1.0, grace=0.2).start()
    with pytest.raises(BuildCancelled) as caught:
        build.wait()
    assert caught.value.reason == "deadline"
    assert build.result.duration_s >= 1.0


def test_a_cancel_while_the_child_starts() -> None:
    for delay in (0.0, 0.02, 0.05, 0.1, 0.15):
        build = Build(models.mlp(), configure=models.slowly()).start()
        time.sleep(delay)
        build.request_cancel()
        build.wait_ended(60)
        assert build.status == "cancelled"
        assert build.result.ended_by in {"before build", "step"}


# ------------------------------------------------------------------ life and death


def test_a_child_that_is_killed_is_a_crash_with_everything_that_is_known() -> None:
    build = Build(DENSENET).start()
    in_the_gap(build)
    child_of(build).kill()
    with pytest.raises(BuildCrashed) as caught:
        build.wait()
    error = caught.value
    assert (error.signal, error.exit_code) == ("SIGKILL", None)
    assert error.phase.endswith("Determining refit engines")
    assert error.peak_memory_bytes > 100_000_000
    assert "memory" in str(error)
    assert build.result.ended_by == "crashed"
    assert build.timings["status"].iloc[0] == "failed"
    # The kernel goes on, and so does the next build.
    assert Build(models.mlp()).start().wait()


def test_a_crash_in_a_function_blames_the_function() -> None:
    def configure(*_: Any) -> None:
        ctypes.string_at(0)

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildCrashed) as caught:
        build.wait()
    assert "while a function given to it ran (test_process.py, line" in caught.value.cause
    assert "in configure)" in caught.value.cause


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_says_where(name: str) -> None:
    def configure(*_: Any) -> None:
        import os
        import signal

        print("about to crash")
        os.kill(os.getpid(), getattr(signal, name))
        __import__("time").sleep(10)

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildCrashed) as caught:
        build.wait()
    error = caught.value
    assert error.signal == name
    assert "about to crash" in error.output
    assert "Fatal Python error" in error.output or "Fatal Python error" in build.printed
    assert "unharmed" in str(error)
    assert "still reading the model" in str(error)


def test_a_function_that_leaves_the_process_is_told_so() -> None:
    build = Build(models.mlp(), configure=lambda *_: os._exit(7)).start()
    with pytest.raises(BuildCrashed, match="7") as caught:
        build.wait()
    assert (caught.value.signal, caught.value.exit_code) == (None, 7)


def test_a_child_that_is_asked_to_end_by_somebody_else_says_so() -> None:
    build = Build(DENSENET).start()
    in_the_gap(build)
    child_of(build).terminate()
    with pytest.raises(BuildCrashed) as caught:
        build.wait()
    assert caught.value.signal == "SIGTERM"


def test_a_function_that_closes_every_descriptor_does_not_look_like_want_of_memory() -> None:
    def configure(*_: Any) -> None:
        os.closerange(3, 256)

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildCrashed, match="events cannot be sent") as caught:
        build.wait()
    assert (caught.value.signal, caught.value.exit_code) == (None, 74)


def test_events_are_not_written_into_a_file_that_has_taken_their_number(tmp_path: Path) -> None:
    victim = tmp_path / "victim"

    def configure(*_: Any) -> None:
        os.closerange(3, 64)
        for number in range(60):
            os.open(f"{victim}-{number}", os.O_WRONLY | os.O_CREAT)  # and left open

    build = Build(models.mlp(), configure=configure).start()
    with pytest.raises(BuildCrashed, match="another file now"):
        build.wait()
    assert {path.stat().st_size for path in tmp_path.glob("victim-*")} == {0}


def test_leaving_the_interpreter_does_not_wait_for_the_grace() -> None:
    script = textwrap.dedent(
        """
        import time
        from tests import models
        from trt_widget import Build
        build = Build(models.light_model("densenet121"), grace=60).start()
        while build.tree.paths < 9 or build.now() - build.tree.last_callback < 0.3:
            time.sleep(0.01)
        print("leaving", flush=True)
        """
    )
    leaving = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert leaving.stdout is not None
    assert leaving.stdout.readline() == "leaving\n"
    begun = time.monotonic()
    assert leaving.wait(30) == 0
    leaving.stdout.close()
    assert time.monotonic() - begun < 6


STORM = """
import json, os, signal, threading, time
from tests import models
from trt_widget import Build

os.setpgrp()  # the group that Ctrl-C goes to
signal.signal(signal.SIGINT, lambda *_: None)
over = threading.Event()

def storm():
    while not over.is_set():
        os.killpg(0, signal.SIGINT)

threading.Thread(target=storm).start()
seen = set()
try:
    for _ in range(12):
        build = Build(models.mlp(), executor="process", grace=0, exclusive=False).start()
        while build.status == "pending":
            time.sleep(0.001)
        time.sleep(0.05)  # its process is started at about this time
        build.kill()
        build.wait_ended()
        seen.add(build.result.ended_by)
finally:
    over.set()
print(json.dumps(sorted(seen)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a process begins in its own group")
def test_ctrl_c_does_not_reach_a_build_process_that_is_just_being_started() -> None:
    """Before it is in its own session, that is; any moment is good, so there are many signals."""
    environ = {**os.environ, "TRT_WIDGET_HISTORY": "off"}
    (said,) = lines_of(STORM, environ=environ)
    assert set(json.loads(said)) <= {"terminated", "killed", "before build"}


def test_a_process_that_a_function_has_started_does_not_outlive_the_build(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    def configure(*_: Any) -> None:
        import subprocess

        # It keeps every pipe of the build open.
        sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
        noted.write_text(str(sleeper.pid))

    build = Build(models.mlp(), configure=configure).start()
    assert build.wait(60)
    pid = int(noted.read_text())
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_the_session_is_the_childs_own_so_that_interrupt_does_not_reach_it() -> None:
    build = Build(DENSENET).start()
    child = child_of(build)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    in_the_gap(build)
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert build.status == "running"
    build.close()
    build.wait_ended()


KERNEL = """
import os, sys, time
from tests import models
from trt_widget import Build
build = Build(models.light_model("densenet121"), output={output!r}).start()
while build.tree.paths < 9:
    time.sleep(0.01)
for _ in range({forks}):
    if os.fork() == 0:
        time.sleep(30)  # a worker that keeps whatever was open
        os._exit(0)
import psutil
tree = [p.pid for p in psutil.Process().children() if "-I" in p.cmdline()]
print(*tree, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("forks", [0, 2])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_the_child_ends_with_its_kernel(forks: int, how: str, tmp_path: Path) -> None:
    script = KERNEL.format(output=str(tmp_path / "net.engine"), forks=forks)
    kernel = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert kernel.stdout is not None
        (builder,) = map(int, kernel.stdout.readline().split())
        assert psutil.Process(builder).is_running()
        kernel.send_signal(getattr(signal, how))
        begun = time.monotonic()
        until(lambda: not psutil.pid_exists(builder), 10)
        print(f"gone after {time.monotonic() - begun:.3f} s")
    finally:
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
        kernel.stdout.close()
    assert {path.name for path in tmp_path.iterdir()} == {"scratch"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the allocator of glibc")
@pytest.mark.parametrize("told", ["", "8"])
def test_all_threads_of_a_child_share_a_heap(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told:
        monkeypatch.setenv("MALLOC_ARENA_MAX", told)
    else:
        monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    noted = str(tmp_path / "heaps.xml")

    def configure(*_: Any) -> None:
        import ctypes
        import threading

        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
        other = threading.Thread(target=libc.malloc, args=(100_000,))
        other.start()
        other.join()
        file = ctypes.c_void_p(libc.fopen(noted.encode(), b"w"))
        libc.malloc_info(0, file)
        libc.fclose(file)

    Build(models.mlp(), configure=configure).start().wait(60)
    heaps = Path(noted).read_text().count("<heap nr=")
    assert heaps > 1 if told else heaps == 1


def test_a_child_that_cannot_begin_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_CHILD", "import there_is_no_such_module")
    build = Build(models.mlp()).start()
    with pytest.raises(BuildFailed, match=r"could not begin(.|\n)*there_is_no_such_module"):
        build.wait()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    build = Build(models.mlp()).start()
    with pytest.raises(BuildFailed, match=r"could not be started(.|\n)*executor='thread'"):
        build.wait()


def test_lines_that_are_no_events_are_noted_and_nothing_else() -> None:
    def configure(*_: Any) -> None:
        import os

        # The events' own descriptor, found by what it is: a pipe that is not 0, 1 or 2.
        for entry in Path("/proc/self/fd").iterdir():
            number = int(entry.name)
            try:
                is_pipe = str(entry.readlink()).startswith("pipe:")
                if number > 2 and is_pipe:
                    os.write(number, b'garbage\n{"event":"nonsense"}\n\xff\xff\n')
            except OSError:
                continue

    build = Build(models.mlp(), configure=configure).start()
    assert build.wait()
    assert "3 lines of the build process could not be read" in " ".join(build.result.notes)


# ------------------------------------------------------------------ one build per device


def test_builds_of_other_processes_wait_where_it_is_asked_for() -> None:
    script = textwrap.dedent(
        """
        import sys
        from tests import models
        from trt_widget import Build
        build = Build(models.light_model("densenet121"), exclusive=True).start()
        while build.tree.paths < 9:
            pass
        print("building", flush=True)
        sys.stdin.read()
        """
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script],
        # The locks lie in the folder for temporary files.
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "building\n"
        waiting = Build(models.mlp(), exclusive=True).start()
        until(lambda: waiting.waiting_for is not None)
        assert "light_densenet121.onnx" in waiting.waiting_for
        assert str(other.pid) in waiting.waiting_for
        assert waiting.status == "pending"
        assert not waiting.can_cancel_blocker
        in_a_thread = Build(models.mlp(), exclusive=True, executor="thread").start()
        until(lambda: in_a_thread.waiting_for == "mlp")  # behind the other one of this process
        # Who does not ask does not wait.
        assert Build(models.mlp(), exclusive=False).start().wait()
        other.kill()
        assert waiting.wait(60)
        assert in_a_thread.wait(60)
    finally:
        other.kill()
        other.wait()
        for pipe in (other.stdin, other.stdout):
            if pipe is not None:
                pipe.close()


def test_builds_that_are_not_exclusive_run_side_by_side() -> None:
    first = Build(DENSENET, exclusive=False).start()
    in_the_gap(first)
    assert Build(models.mlp(), exclusive=False).start().wait()
    assert first.status == "running"
    first.request_cancel()
    first.wait_ended()


# ------------------------------------------------------------------ the stream


def test_a_flood_collapses_before_the_wire_and_a_slow_reader_blocks_nobody() -> None:
    """Replayed callbacks: the real builder is not fast enough for long enough."""

    def configure(_builder: Any, _network: Any, config: Any) -> None:
        import threading
        import time

        def flood() -> None:
            while config.progress_monitor is None:
                time.sleep(0.001)
            monitor = config.progress_monitor
            monitor.phase_start("Flood", None, 0)
            begun = time.perf_counter()
            for number in range(30_000):
                monitor.phase_start(f"Layer {number % 7}", "Flood", 2)
                monitor.phase_start("Tactic", f"Layer {number % 7}", 2)
                monitor.step_complete("Tactic", 0)
                monitor.phase_finish("Tactic")
                monitor.phase_finish(f"Layer {number % 7}")
            monitor.phase_finish("Flood")
            print("flood", time.perf_counter() - begun, flush=True)

        thread = threading.Thread(target=flood)
        thread.start()
        thread.join()

    def begun_late(_builder: Any, network: Any, config: Any) -> None:
        # The monitor comes after this function: the flood waits for it in a thread.
        import threading

        threading.Thread(target=configure, args=(_builder, network, config)).start()

    build = Build(models.light_model("squeezenet"), configure=begun_late)
    slow = threading.Event()
    build.subscribe(lambda _events: slow.wait(0.5))
    build.start().wait_ended(60)
    slow.set()
    assert build.status == "succeeded"
    timings = build.timings.set_index("path")
    if "Flood" in timings.index:  # the build may end before the flood does
        counted = timings.loc[timings.index.str.startswith("Flood > Layer"), "count"].sum()
        assert counted > 1000


def test_the_monitors_of_the_child_are_the_same_class() -> None:
    def configure(_builder: Any, _network: Any, config: Any) -> None:
        config.progress_monitor = ProgressMonitor("tensorrt_rtx")

    build = Build(models.mlp(), configure=configure).start()
    assert build.wait()
    assert json.dumps(build.result.notes) == "[]"


def test_a_large_engine_is_mapped_and_never_read_past_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("trt_widget._files.LARGE", 0)  # this one counts as large
    output = tmp_path / "net.engine"
    build = Build(models.mlp(), output=output).start()
    engine = build.wait()
    assert type(engine.obj).__name__ == "mmap"
    assert bytes(engine) == output.read_bytes()
    os.truncate(output, 100)
    with pytest.raises(BuildFailed, match="cut short"):
        _ = build.engine
    with pytest.raises(BuildFailed, match="cut short"):
        build.save(tmp_path / "copy.engine")
    assert not (tmp_path / "copy.engine").exists()


def test_two_builds_to_one_output_do_not_take_each_others_engine(tmp_path: Path) -> None:
    output = tmp_path / "net.engine"
    builds = [
        Build(model, output=output, exclusive=False).start()
        for model in (models.mlp(), models.convnet()) * 3
    ]
    for build in builds:
        build.wait_ended(60)
        if build.status == "failed":  # said, and never another build's engine
            assert "another one by now" in str(build.result.error)
    assert output.read_bytes() in [bytes(build.engine) for build in builds if build.engine]
