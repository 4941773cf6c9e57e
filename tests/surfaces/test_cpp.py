"""The C++ progress monitor of the documentation, compiled and followed.

NVIDIA's NvInfer.h is on no package registry, so it is compiled against a header of our own with the
same interface (tests/data/cpp/NvInfer.h), and the program replays the recorded callbacks of a real
build instead of building. Everything after the callbacks is real: threads, files, pipes, cancels.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.traces import mnist_events
from trt_widget import Build, BuildCancelled, StreamError
from trt_widget.events import BuildEnded, PhaseStarted, StepCompleted, from_json, to_json
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.events import Event

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "notebooks" / "docs" / "cpp"
DATA = ROOT / "tests" / "data" / "cpp"
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the header is for POSIX")


def compile_cpp(source: Path, *more: str) -> None:
    include = (f"-I{DATA}", f"-I{HEADERS}")
    subprocess.run(["g++", *FLAGS, *include, str(source), *more], check=True)


@pytest.fixture(scope="module", params=["plain", "thread sanitizer"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the compiled replay of the trace; a race would end it with exit code 66."""
    path = tmp_path_factory.mktemp("cpp") / "replay"
    more = ("-O1",) if request.param == "plain" else ("-O1", "-g", "-fsanitize=thread")
    compile_cpp(DATA / "replay.cpp", "-o", str(path), *more)
    return path


@cache
def callbacks() -> bytes:
    """Give the recorded callbacks in the form that the program reads."""
    lines = []
    for event in mnist_events():
        if isinstance(event, PhaseStarted):
            lines.append(f"start\t{event.phase}\t{event.parent or '.'}\t{event.num_steps}")
        elif isinstance(event, StepCompleted):
            lines.append(f"step\t{event.phase}\t{event.step}")
        else:
            lines.append(f"finish\t{vars(event)['phase']}")
    return "".join(f"{line}\n" for line in lines).encode("ascii")


class Replay:
    """The program while it runs, fed with callbacks."""

    def __init__(
        self, program: Path, target: Path | str, pause_us: int, given: bytes | None = None
    ) -> None:
        with tempfile.TemporaryFile() as calls:
            calls.write(callbacks() if given is None else given)
            calls.seek(0)
            self.process = subprocess.Popen(
                [str(program), str(target), "mnist.onnx", str(pause_us)],
                stdin=calls,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout

    def end(self) -> tuple[str, int]:
        """Wait; give its last answer and how many callbacks there were."""
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            said = stderr.read().decode()
        assert self.process.wait(60) == 0, said
        self.stdout.close()
        answer, count, _ = said.split()
        return answer, int(count)


def until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


def check_tree(found: PhaseTree) -> None:
    """Compare with the tree of the trace, in all but times, which that has none of."""
    expected = PhaseTree()
    expected.apply(mnist_events())
    expected.close("succeeded")
    for name in ("path", "depth", "count", "steps", "num_steps", "status"):
        assert found.timing_columns()[name] == expected.timing_columns()[name], name
    for name in ("path", "parent", "steps", "num_steps", "status"):
        assert found.span_columns()[name] == expected.span_columns()[name], name
    assert found.anomalies == {}


def test_a_program_is_followed_while_it_runs(program: Path, tmp_path: Path) -> None:
    stream = tmp_path / "build.jsonl"
    build = Build.follow(stream).start()
    replay = Replay(program, stream, 150)
    until(lambda: build.status == "running" and build.tree.paths > 5)
    assert build.can_cancel
    assert build.wait(30) is None
    assert replay.end() == ("true", len(mnist_events()))
    check_tree(build.tree)
    result = build.result
    assert result is not None
    assert (build.name, result.backend, result.status) == ("mnist.onnx", "tensorrt", "succeeded")
    assert (result.engine_bytes, str(result.output), result.notes) == (4711, "replayed.engine", ())
    assert not stream.with_name("build.jsonl.control").exists()
    # What it writes is what Python would have written.
    for line in stream.read_text("ascii").splitlines():
        assert json.loads(to_json(from_json(line))).items() >= json.loads(line).items()


def test_a_cancel_makes_the_next_step_answer_false(program: Path, tmp_path: Path) -> None:
    stream = tmp_path / "build.jsonl"
    # A request that was meant for an earlier build is none.
    stream.with_name("build.jsonl.control").write_text('{"request":"cancel"}\n')
    replay = Replay(program, stream, 1_000)
    build = Build.follow(stream).start()
    until(lambda: build.tree.paths > 2)
    assert build.status == "running"
    assert build.request_cancel("deadline") is True
    with pytest.raises(BuildCancelled) as caught:
        build.wait(20)
    answer, count = replay.end()
    assert answer == "false"
    assert count < len(mnist_events())
    assert caught.value.reason == "deadline"
    assert build.tree.cancel_delivered is not None
    assert build.result is not None
    assert build.result.ended_by == "step"
    assert set(build.timings["status"]) <= {"done", "cancelled"}
    assert not stream.with_name("build.jsonl.control").exists()


def test_the_command_line_watches_and_cancels_it(program: Path, tmp_path: Path) -> None:
    stream = tmp_path / "build.jsonl"
    replay = Replay(program, stream, 1_000)
    command = [sys.executable, "-m", "trt_widget", "watch", str(stream)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watch:
        assert watch.stdout is not None
        said = ""
        while "Timing" not in said:
            line = watch.stdout.readline()
            assert line, said
            said += line
        watch.send_signal(signal.SIGINT)
        said += watch.communicate(timeout=30)[0]
    answer, count = replay.end()
    assert (answer, watch.returncode) == ("false", 130)
    assert count < len(mnist_events())
    assert "Building engine" in said
    assert "mnist.onnx: cancelled" in said


def test_a_pipe_that_nobody_reads_holds_up_nobody(program: Path) -> None:
    replay = Replay(program, "-", 0, callbacks() * 12)
    # It ends, although nothing of its output is taken.
    assert replay.process.wait(60) == 0
    assert replay.end() == ("true", 12 * len(mnist_events()))


def test_a_reader_that_leaves_does_not_end_the_program(program: Path) -> None:
    replay = Replay(program, "-", 100)
    replay.stdout.read(1000)
    replay.stdout.close()
    assert replay.end()[0] == "true"


def test_a_program_that_is_killed(program: Path, tmp_path: Path) -> None:
    stream = tmp_path / "build.jsonl"
    replay = Replay(program, stream, 1_000)
    build = Build.follow(stream).start()
    until(lambda: build.tree.paths > 2)
    replay.process.kill()
    replay.process.communicate()
    with pytest.raises(StreamError, match="broke off") as caught:
        build.wait(20)
    assert f"The process {replay.process.pid} that wrote it" in caught.value.evidence[-1]


NAMES = [
    "plain",
    'quotes " and \\ and / and \t',
    "\u00fc\u4e2d\U0001f600",
    "\x01\x1f\x7f",
]


def test_names_are_written_so_that_json_can_have_them(tmp_path: Path) -> None:
    source = tmp_path / "names.cpp"
    broken = [b"\xff", b"\xc3", b"\xe4\xb8", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"]
    names = [name.encode("utf-8") for name in NAMES] + [b"<" + name + b">" for name in broken]
    calls = "".join(
        'monitor.phaseStart("' + "".join(f'\\x{byte:02x}""' for byte in name) + '", nullptr, -1);\n'
        for name in names
    )
    source.write_text(
        '#include "progress_stream.h"\n'
        "int main(int, char** arguments) {\n"
        "trt_widget::ProgressStream monitor(arguments[1]);\n"
        "monitor.phaseStart(nullptr, nullptr, 0);\n"
        f"{calls}"
        'monitor.stepComplete(nullptr, 3); monitor.stepComplete("never started", 1);\n'
        'monitor.phaseFinish("never started");\n'
        "}\n"
    )
    compile_cpp(source, "-o", str(tmp_path / "names"))
    subprocess.run([str(tmp_path / "names"), str(tmp_path / "s.jsonl")], check=True, timeout=30)
    events: list[Event] = [
        from_json(line) for line in (tmp_path / "s.jsonl").read_text("ascii").splitlines()
    ]
    found = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert found[0] == ""
    assert found[1 : 1 + len(NAMES)] == NAMES
    for name in found[1 + len(NAMES) :]:
        assert set(name[1:-1]) == {"\ufffd"}
    build = Build.follow(tmp_path / "s.jsonl").start()
    build.wait()  # finish() was not called
    assert build.status == "ended"


def test_a_target_that_cannot_be_opened_leaves_the_build_alone(
    program: Path, tmp_path: Path
) -> None:
    assert Replay(program, tmp_path / "missing" / "s.jsonl", 0).end()[0] == "true"


def test_the_example_is_right(tmp_path: Path) -> None:
    compile_cpp(HEADERS / "example.cpp", "-fsyntax-only")
    page = (HEADERS.parent / "cpp.md").read_text("utf-8")
    snippet = page.partition("```cpp\n")[2].partition("```")[0]
    include, _, body = snippet.partition("\n\n")
    source = tmp_path / "snippet.cpp"
    source.write_text(
        f"{include}\n"
        "void build(nvinfer1::IBuilder* builder, nvinfer1::INetworkDefinition* network,\n"
        f"nvinfer1::IBuilderConfig* config) {{\n{body}}}\n"
    )
    compile_cpp(source, "-fsyntax-only")


def test_an_engine_is_only_told_of_a_success(tmp_path: Path) -> None:
    source = tmp_path / "ends.cpp"
    source.write_text(
        '#include "progress_stream.h"\n'
        "int main(int, char** arguments) {\n"
        "trt_widget::ProgressStream monitor(arguments[1]);\n"
        "bool const succeeded = arguments[2][0] == 's';\n"
        'monitor.phaseStart("root", nullptr, 2);\n'
        "if (arguments[2][0] == 'c') { monitor.requestCancel(); }\n"
        'monitor.stepComplete("root", 0); monitor.phaseFinish("root");\n'
        'monitor.finish(succeeded, "model.engine", 7);\n'
        "}\n"
    )
    compile_cpp(source, "-o", str(tmp_path / "ends"))
    found = {}
    for status in ("succeeded", "cancelled", "failed"):
        stream = tmp_path / f"{status}.jsonl"
        subprocess.run([str(tmp_path / "ends"), str(stream), status], check=True, timeout=30)
        end = from_json(stream.read_text("ascii").splitlines()[-1])
        assert isinstance(end, BuildEnded)
        found[end.status] = (end.engine, end.engine_bytes)
    none = (None, None)
    assert found == {"succeeded": ("model.engine", 7), "cancelled": none, "failed": none}
