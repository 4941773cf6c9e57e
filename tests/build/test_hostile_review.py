"""What a hostile child, a hostile model or an unusual parent must not bring about. All real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests import models
from trt_widget import Build, BuildCancelled, BuildCrashed, BuildError, BuildFailed
from trt_widget.backend import gpus
from trt_widget.executors import isolation

if TYPE_CHECKING:
    from collections.abc import Callable

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


def forged(*lines: str | bytes) -> Callable[..., None]:
    """Make a ``configure=`` that writes lines among the child's events and leaves."""

    def configure(*_: Any) -> None:
        import gc

        (child,) = (o for o in gc.get_objects() if type(o).__name__ == "_Child")
        for line in lines:
            data = memoryview(line if isinstance(line, bytes) else f"{line}\n".encode())
            while data:
                data = data[os.write(child._descriptor, data) :]
        time.sleep(0.3)
        os._exit(0)

    return configure


def end(**values: Any) -> str:
    record = {"event": "end", "time": 1.0, "status": "succeeded", "ended_by": "completed"}
    return json.dumps({**record, **values})


def script(code: str, *arguments: str, timeout: float = 60.0, **more: Any) -> Any:
    """Run a script in a process of its own."""
    head = "import os, signal, sys, time\nfrom tests import models\nfrom trt_widget import Build\n"
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **more,
    )


# ------------------------------------------------------------------ the engine's file


@posix
def test_an_output_that_is_written_over_in_place_does_not_kill_the_kernel(tmp_path: Path) -> None:
    # What many do by habit: open(path, "wb").write(engine) with the path that was output=.
    ran = script(
        """
        from trt_widget import BuildError
        build = Build(models.mlp(), output=sys.argv[1]).start()
        build.wait()
        open(sys.argv[1], "wb").close()
        try:
            bytes(build.engine)
        except (BuildError, OSError) as error:
            print("said:", error)
        print("alive")
        """,
        str(tmp_path / "a.engine"),
    )
    assert ran.returncode == 0, ran  # -7 is SIGBUS
    assert "alive" in ran.stdout


@posix
def test_a_child_may_not_name_a_file_of_its_choice_as_the_engine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    configure = forged(end(engine=str(secret), engine_bytes=6))
    build = Build(models.mlp(), configure=configure, executor="process").start()
    with pytest.raises(BuildFailed):
        build.wait(60)
    assert build.engine is None


@posix
def test_an_engine_that_is_a_fifo_does_not_hang_the_build(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    configure = forged(end(engine=str(fifo), engine_bytes=6))
    build = Build(models.mlp(), configure=configure, executor="process").start()
    try:
        with pytest.raises(BuildFailed):
            build.wait(60)
    finally:
        if build.result is None:  # let go of the thread that opens it
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


@posix
def test_a_fork_in_a_function_does_not_spoil_the_engine() -> None:
    def configure(*_: Any) -> None:
        os.fork()

    build = Build(models.mlp(), configure=configure, executor="process").start()
    assert build.wait(60)


@posix
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_parent_without_standard_streams_builds(tmp_path: Path, closed: tuple[int, ...]) -> None:
    log = tmp_path / "log"
    script(
        """
        model = models.mlp()
        for text in sys.argv[2:]:
            os.close(int(text))
        try:
            said = str(len(Build(model, executor="process").start().wait(60)))
        except BaseException as error:
            said = repr(error)
        open(sys.argv[1], "w").write(said)
        os._exit(0)
        """,
        str(log),
        *map(str, closed),
    )
    assert log.read_text().isdigit(), log.read_text()


# ------------------------------------------------------------------ the child's word


@posix
@pytest.mark.parametrize(
    "said",
    [
        {"status": "succeeded"},
        {"status": "failed"},
        {"status": "nonsense"},
        {"status": "running"},
        {"status": "ended"},
    ],
)
def test_an_end_that_contradicts_itself_is_a_failure(said: dict[str, Any]) -> None:
    build = Build(models.mlp(), configure=forged(end(**said)), executor="process").start()
    with pytest.raises(BuildFailed) as caught:
        build.wait(60)
    assert build.status == build.result.status == "failed"
    assert "defect of trt_widget" not in str(caught.value)


@posix
def test_a_time_of_the_child_is_not_believed_past_the_clock() -> None:
    configure = forged(end(time=1e300, status="failed"))
    build = Build(models.mlp(), configure=configure, executor="process").start()
    build.wait_ended(60)
    assert 0.0 <= build.result.duration_s < 60.0


@posix
def test_sums_that_are_too_large_leave_the_tables_readable() -> None:
    huge = 10**400
    line = json.dumps(
        {
            "event": "phases_collapsed",
            "time": 0.1,
            "path": ["a"],
            "count": huge,
            "total_s": 1.0,
            "max_s": 1.0,
            "steps": huge,
            "num_steps": huge,
        }
    )
    build = Build(models.mlp(), configure=forged(line), executor="process").start()
    build.wait_ended(60)
    assert build.timings is not None


@posix
def test_a_line_without_end_is_neither_kept_nor_copied_again_and_again() -> None:
    build = Build(models.mlp(), configure=forged(b"x" * 64_000_000), executor="process").start()
    before = time.process_time()
    with pytest.raises(BuildCrashed):
        build.wait(60)
    assert time.process_time() - before < 5.0


@posix
def test_a_name_of_20_mb_does_not_occupy_the_kernel() -> None:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"], name="n" * 20_000_000)
    inputs, outputs = [value("x", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, [1])]
    graph = helper.make_graph([node], "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    before = time.process_time()
    build = Build(model.SerializeToString(), executor="process").start()
    with pytest.raises(BuildError) as caught:
        build.wait(120)
    assert time.process_time() - before < 5.0
    assert len(str(caught.value)) < 100_000


@posix
def test_a_child_that_cannot_send_its_end_does_not_stay_forever() -> None:
    def configure(*_: Any) -> None:
        from trt_widget.executors import child

        child.to_json = None  # type: ignore[assignment]  # whatever makes the sending thread raise

    build = Build(models.mlp(), configure=configure, executor="process", grace=0).start()
    try:
        with pytest.raises(BuildFailed):
            build.wait(60)
    finally:
        build.close()
        build.wait_ended()


def test_a_letter_that_is_printed_in_two_halves_stays_a_letter() -> None:
    def configure(*_: Any) -> None:
        os.write(2, b"caf\xc3")
        time.sleep(0.4)
        os.write(2, b"\xa9\n")

    build = Build(models.mlp(), configure=configure, executor="process").start()
    build.wait(60)
    assert build.printed == "caf\xe9\n"


# ------------------------------------------------------------------ starting


@pytest.mark.parametrize(
    "entry", [Path(sys.prefix), None, os.fsencode(sys.prefix)], ids=["Path", "None", "bytes"]
)
def test_what_python_ignores_in_sys_path_is_ignored(
    entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, entry])
    assert Build(models.mlp(), executor="process").start().wait(60)


def test_the_folder_of_installed_packages_may_be_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As with python -m MODULE where the module is a file in site-packages.
    import tensorrt_rtx

    monkeypatch.chdir(Path(tensorrt_rtx.__file__).parents[1])
    assert Build(models.mlp(), executor="process").start().wait(60)


def test_a_cancel_that_comes_while_the_functions_are_packed_is_heard() -> None:
    # A handler of a signal runs wherever the main thread is; here it is inside of start().
    class Handler:
        def __reduce__(self) -> tuple[Any, ...]:
            build.request_cancel()
            return int, ()

    handler = Handler()

    def configure(*_: Any) -> None:
        assert handler is not None
        time.sleep(5)

    build = Build(models.mlp(), configure=configure, executor="process", grace=0)
    build.start()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    time.sleep(1.0)
    assert not psutil.Process().children()


@posix
def test_signal_cancel_in_a_handler_never_waits_for_the_code_it_interrupts() -> None:
    ran = script(
        """
        import faulthandler
        build = Build(models.mlp(), configure=lambda *_: time.sleep(60), grace=60).start()
        def handler(*_):
            build.signal_cancel()
            signal.setitimer(signal.ITIMER_REAL, 0.00007)
        faulthandler.dump_traceback_later(20, exit=True)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        begin = time.monotonic()
        while time.monotonic() - begin < 5:
            build.request_cancel()
        os._exit(0)
        """
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


# ------------------------------------------------------------------ the device's owner


def test_a_cancel_does_not_wait_until_cuda_has_been_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There is no CUDA here: a Python that sleeps stands for a driver that takes long.
    monkeypatch.setattr(isolation, "cuda_library", lambda: "libcuda.so.1")
    monkeypatch.setattr(isolation, "_GPUS", "import time; time.sleep(100); print('[]')")
    isolation._answers.clear()
    gpus.cache_clear()  # what another test has learned
    build = Build(models.mlp(), executor="process", grace=0, exclusive=True).start()
    time.sleep(0.5)
    build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    isolation._answers.clear()
    assert build.result.stop_latency_s < 50.0


# ------------------------------------------------------------------ life and death


@posix
def test_a_fork_of_the_child_does_not_outlive_the_kernel(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = """
        def configure(*_):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            open(sys.argv[1], "w").write(str(pid))
            time.sleep(60)
        # Functions of a script see its globals; sys.argv is the child's own.
        path = sys.argv[1]
        configure.__globals__["path"] = path
        Build(models.mlp(), configure=configure, executor="process").start().wait()
        """
    root = str(Path(__file__).parents[2])
    head = "import os, sys, time\nfrom tests import models\nfrom trt_widget import Build\n"
    text = head + textwrap.dedent(code).replace("open(sys.argv[1]", "open(path")
    kernel = subprocess.Popen(
        [sys.executable, "-c", text, str(note)], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        deadline = time.monotonic() + 30
        while not (note.exists() and note.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        kernel.send_signal(signal.SIGKILL)
        kernel.wait()
    fork = int(note.read_text())
    deadline = time.monotonic() + 10
    try:
        while psutil.pid_exists(fork) and psutil.Process(fork).status() != "zombie":
            assert time.monotonic() < deadline, "it outlives the kernel"
            time.sleep(0.1)
    finally:
        if psutil.pid_exists(fork):
            os.kill(fork, signal.SIGKILL)


@posix
def test_an_unknown_exit_status_is_not_told_as_a_known_one() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # then the system keeps no status
    try:
        build = Build(
            models.mlp(),
            configure=lambda *_: os.kill(os.getpid(), signal.SIGSEGV),
            executor="process",
        ).start()
        with pytest.raises(BuildCrashed) as caught:
            build.wait(60)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "code 0" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has an OOM killer with a score")
def test_where_memory_is_short_the_system_takes_the_child_and_not_the_kernel(
    tmp_path: Path,
) -> None:
    note = str(tmp_path / "score")

    def configure(*_: Any) -> None:
        Path(note).write_text(Path("/proc/self/oom_score_adj").read_text())

    Build(models.mlp(), configure=configure, executor="process").start().wait(60)
    assert int(Path(note).read_text()) > int(Path("/proc/self/oom_score_adj").read_text())
