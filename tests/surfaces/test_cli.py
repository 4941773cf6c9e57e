"""The command line as its users have it: processes, pipes, signals, and a real terminal."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import onnx
import pytest

from tests import models
from tests.surfaces.terminals import Terminal
from trt_widget import load_record
from trt_widget.cli import load_function, main
from trt_widget.errors import OptionError
from trt_widget.events import (
    BuildEnded,
    PhaseStarted,
    StatusChanged,
    StreamStarted,
    from_json,
    to_json,
)
from trt_widget.phases import PhaseTree
from trt_widget.schema import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trt_widget.events import Event

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "trt_widget"]
SLOWLY = ["--configure", "tests.models:configure_slowly"]
ENV = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"}
ESCAPE = b"\x1b"
REQUEST = '{"request":"cancel","reason":"user"}\n'


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of models."""
    folder = tmp_path_factory.mktemp("models")
    for name, made in (
        ("mlp", models.mlp()),
        ("odd", models.unknown_operators("Nope")),
        ("dynamic", models.dynamic()),
        # Silent for four seconds and more.
        ("gap", models.transformer(48)),
    ):
        onnx.save(made, str(folder / f"{name}.onnx"))
    (folder / "resnet50.onnx").write_bytes(models.light_model("resnet50").read_bytes())
    return folder


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the present folder, which has a model M."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "M").write_bytes((files / "mlp.onnx").read_bytes())
    return tmp_path


def run(*arguments: str, folder: Path, **keywords: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, without a terminal."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=ENV,
        capture_output=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        **keywords,
    )


def start(*arguments: str, folder: Path, **keywords: Any) -> subprocess.Popen[bytes]:
    """Start the command, without a terminal."""
    keywords = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **keywords,
    }
    return subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=ENV, **keywords)


def events_of(data: bytes) -> list[Event]:
    """Read JSON Lines, all of them whole."""
    assert data.endswith(b"\n")
    return [from_json(text) for text in data.splitlines()]


def wait_until(found: Callable[[], object], timeout: float = 60.0) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- a build, its outputs and exit codes ---------------------------------------------------------


def test_a_build_that_succeeds_writes_what_was_asked_for(files: Path, tmp_path: Path) -> None:
    model = str(files / "mlp.onnx")
    outputs = (
        "--timings",
        "t.csv",
        "--report",
        "r.html",
        "--record",
        "r.json",
        "--trace",
        "p.json",
    )
    done = run("build", model, "--saveEngine=e.engine", *outputs, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert ESCAPE not in done.stdout
    said = done.stdout.decode()
    assert "mlp.onnx: running (TensorRT for RTX" in said
    assert "mlp.onnx: succeeded after" in said
    assert "saved as" in said
    size = (tmp_path / "e.engine").stat().st_size
    assert size > 1000
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text("utf-8").splitlines()))
    assert rows[0]["phase"] == "Building engine"
    assert float(rows[0]["total_s"]) > 0
    assert "Building engine" in (tmp_path / "r.html").read_text("utf-8")
    record = load_record(tmp_path / "r.json")
    assert record.result.engine_bytes == size
    assert json.loads((tmp_path / "p.json").read_text("utf-8"))


def test_without_a_path_nothing_is_saved_and_that_is_said(files: Path, tmp_path: Path) -> None:
    done = run("build", f"--onnx={files / 'mlp.onnx'}", "--timings=t.json", folder=tmp_path)
    assert done.returncode == 0
    assert b"the engine is built, and not saved" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    rows = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert rows[0]["status"] == "done"


def test_a_failure_is_explained(files: Path, tmp_path: Path) -> None:
    done = run("build", str(files / "odd.onnx"), "-o", "e.engine", folder=tmp_path)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "TensorRT does not know the operator Nope" in said
    assert "Evidence:" in said
    assert "Export the model with operators that TensorRT has." in said
    assert "Traceback" not in said
    assert "odd.onnx: failed after" in done.stdout.decode()
    assert not list(tmp_path.iterdir())


def test_a_crash_of_the_build_process_is_a_failure(files: Path, tmp_path: Path) -> None:
    crash = ("--configure", "tests.models:configure_crash")
    done = run("build", str(files / "mlp.onnx"), *crash, folder=tmp_path)
    assert done.returncode == 1
    assert b"SIGSEGV" in done.stderr


def test_profiles_are_written_as_trtexec_has_them(files: Path, tmp_path: Path) -> None:
    model = str(files / "dynamic.onnx")
    shapes = ("--minShapes=x:1x8", "--optShapes=x:4x8", "--maxShapes=x:16x8")
    assert run("build", model, *shapes, "--skipInference", folder=tmp_path).returncode == 0
    done = run("build", model, folder=tmp_path)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "no optimization profile tells their sizes" in said
    # What it says to paste can be pasted.
    pasted = shlex.split(said[said.index("--minShapes") :].replace("\\\n", " "))
    assert [word.partition("=")[0] for word in pasted[:3]] == [
        "--minShapes",
        "--optShapes",
        "--maxShapes",
    ]
    assert run("build", model, *pasted[:3], folder=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "usage: trt-widget"),
        (["build"], "No model is given"),
        (["build", "missing.onnx"], "There is no file 'missing.onnx'"),
        (["build", "M", "--onnx=M"], "The model is given twice"),
        (["build", "M", "other"], "unexpected: other"),
        (["build", "M", "--bulderOptimizationLevel=3"], "Did you mean --builderOptimizationLevel?"),
        (["build", "M", "--progres=none"], "Did you mean --progress?"),
        (["build", "M", "--workspace=1024"], "Write --memPoolSize=workspace:MiB."),
        (["build", "M", "--loadEngine=e"], "trt-widget only builds"),
        (["build", "M", "--noTF32"], "config.clear_flag(BuilderFlag.TF32)"),
        (["build", "M", "--builderOptimizationLevel=9"], "invalid choice"),
        (["build", "M", "--minShapes=x:axb"], "no shape of 'x'"),
        (["build", "M", "--minShapes=x:1x8"], "alone is no profile"),
        (["build", "M", "--fp16"], "--fp16: TensorRT for RTX"),
        (["build", "M", "--fp16"], "Networks are strongly typed here"),
        (["build", "M", "--computeCapabilities=50"], "--computeCapabilities: TensorRT for RTX"),
        (["watch", "no/stream", "--no-wait"], "no/stream.\n"),
        (["build", "M", "--timeout=-1"], "--timeout=-1.0 is not a number of seconds above zero"),
        (["build", "M", "-o", "no/folder/e"], "there is no folder"),
        (["build", "M", "--timings=t.txt"], "is neither .csv nor .json"),
        (["build", "M", "--report=no/folder/r"], "--report"),
        (["build", "M", "--events=no/folder/e"], "The events cannot be written"),
        (["build", "M", "--events=M"], "is the model itself"),
        (["build", "M", "-o", "e", "--events=e"], "is the engine itself"),
        (["build", "M", "--configure=nothing"], "does not name a function"),
        (["build", "M", "--progress=bars"], "needs a terminal"),
        (["watch", "missing", "--no-wait"], "another path, or wait for it."),
        (["watch", "."], "is a folder"),
        (["wacth"], "invalid choice"),
    ],
)
def test_usage_errors_say_what_to_do(
    arguments: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err
    assert [path.name for path in here.iterdir() if path.name != "M"] == []


@pytest.mark.parametrize("command", ["build", "watch", "check", "schema", "serve", "lsp", "mcp"])
def test_help_needs_no_extra(command: str) -> None:
    # The modules of the extras can't be imported there.
    code = (
        "import sys\n"
        "for name in ('rich', 'fastapi', 'uvicorn', 'pygls', 'mcp'): sys.modules[name] = None\n"
        "from trt_widget.cli import main\n"
        f"sys.exit(main([{command!r}, '--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENV, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: trt-widget {command}".encode() in done.stdout


def test_exit_codes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--help"]) == 0
    said = capsys.readouterr().out
    for code in ("0 ", "1 ", "2 ", "130 "):
        assert re.search(rf"^  {code}", said, re.MULTILINE)


# ---- functions by name ---------------------------------------------------------------------------


def test_functions_are_found_in_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "of_mine.py").write_text(
        "class A:\n    @staticmethod\n    def f(): return 5\nx = 1"
    )
    (tmp_path / "broken_of_mine.py").write_text("import no_such_module")
    assert load_function("of_mine:A.f")() == 5
    for name, says in (
        ("of_mine", "does not name a function"),
        ("of_mine:", "does not name a function"),
        ("no_module_of_mine:f", "There is no module 'no_module_of_mine'"),
        ("of_mine:g", "of_mine has no 'g'"),
        ("of_mine:x", "is a int, not a function"),
        ("broken_of_mine:f", "ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        with pytest.raises(OptionError, match=re.escape(says)):
            load_function(name)


def test_what_the_build_process_prints_is_shown(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    (tmp_path / "of_mine.py").write_text(
        "def configure(builder, network, config):\n"
        "    print('\\x1b[31mhello', network.num_layers)\n"
        "    print('and no line end', end='')\n"
    )
    arguments = ("build", str(files / "mlp.onnx"), "--configure=of_mine:configure")
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(rb"^\| hello \d+\n(.*\n)*\| and no line end\n", done.stdout, re.MULTILINE)
    assert ESCAPE not in done.stdout
    shown = terminal(*arguments)
    assert shown.end() == 0
    assert any(re.fullmatch(r"\| hello \d+", text) for text in shown.seen)


@pytest.mark.parametrize("server", ["lsp", "mcp"])
def test_what_a_module_prints_stays_out_of_a_protocol(server: str, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('imported')\ndef configure(*_):\n    pass\n")
    done = run(server, "--configure=loud:configure", folder=tmp_path)
    assert done.stdout == b""
    assert b"imported" in done.stderr


# ---- cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels(number: int, files: Path, tmp_path: Path) -> None:
    process = start(
        *("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=e.jsonl"), folder=tmp_path
    )
    events = tmp_path / "e.jsonl"
    wait_until(lambda: events.exists() and b"Cloning network graph" in events.read_bytes())
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Cancelling at the next step" in out
    assert b"resnet50.onnx: cancelled after" in out
    assert err == b""
    assert ESCAPE not in out
    last = events_of(events.read_bytes())[-1]
    assert isinstance(last, BuildEnded)
    assert (last.status, last.ended_by, last.reason) == ("cancelled", "step", "interrupt")
    assert [path.name for path in tmp_path.iterdir()] == ["e.jsonl"]


def test_a_second_signal_kills(files: Path, tmp_path: Path) -> None:
    """In the gap TensorRT does not answer, and the grace is long: only the second one ends it."""
    process = start(
        "build", str(files / "gap.onnx"), "--grace=50", "--events=e.jsonl", folder=tmp_path
    )
    events = tmp_path / "e.jsonl"
    wait_until(lambda: events.exists() and b"Determining refit engines" in events.read_bytes())
    process.send_signal(signal.SIGINT)
    wait_until(lambda: b'"status":"cancelling"' in events.read_bytes())
    time.sleep(0.4)  # two at once are one
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - asked < 20
    last = events_of(events.read_bytes())[-1]
    assert isinstance(last, BuildEnded)
    # Unless TensorRT was done just then.
    assert last.ended_by in {"terminated", "killed"}, out


def test_a_second_signal_leaves_a_thread(files: Path, tmp_path: Path) -> None:
    process = start(
        "build", str(files / "gap.onnx"), "--executor=thread", "--events=e.jsonl", folder=tmp_path
    )
    events = tmp_path / "e.jsonl"
    wait_until(lambda: events.exists() and b"Determining refit engines" in events.read_bytes())
    process.send_signal(signal.SIGINT)
    wait_until(lambda: b'"status":"cancelling"' in events.read_bytes())
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Left at once." in err


def test_the_deadline_cancels(files: Path, tmp_path: Path) -> None:
    arguments = ("build", str(files / "resnet50.onnx"), *SLOWLY, "--timeout=1")
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 130
    assert b"Its time was up (--timeout=1)." in done.stdout


def test_requests_come_from_the_file_beside_the_events(files: Path, tmp_path: Path) -> None:
    events, control = tmp_path / "e.jsonl", tmp_path / "e.jsonl.control"
    control.write_text(REQUEST)  # of an earlier build: it is not meant
    process = start(
        *("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=e.jsonl", "--progress=none"),
        folder=tmp_path,
    )
    wait_until(lambda: events.exists() and b"step_complete" in events.read_bytes())
    begun = from_json(events.read_bytes().splitlines()[0])
    assert isinstance(begun, StreamStarted)
    assert begun.listens
    assert begun.pid == process.pid
    with control.open("a") as file:
        file.write("nonsense\n" + REQUEST)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    assert not control.exists()
    last = events_of(events.read_bytes())[-1]
    assert isinstance(last, BuildEnded)
    assert last.reason == "user"
    assert "The request to cancel came from e.jsonl.control." in last.notes


def test_the_file_of_requests_is_neither_the_model_nor_the_engine(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = (here / "M").read_bytes()
    (here / "m.control").write_bytes(model)
    (here / "other.control").write_text("mine")
    for arguments in (
        ("m.control", "--events=m"),
        ("M", "--events=e", "-o", "e.control"),
        ("M", "--events=other"),
    ):
        assert main(["build", *arguments]) == 2
        assert ".control" in capsys.readouterr().err
    assert (here / "m.control").read_bytes() == model
    assert (here / "other.control").read_text() == "mine"
    assert not (here / "m").exists()
    assert not (here / "e").exists()


def test_a_file_of_events_has_one_build_at_a_time(files: Path, tmp_path: Path) -> None:
    model = str(files / "resnet50.onnx")
    first = start(
        *("build", model, *SLOWLY, "--events=e.jsonl", "--progress=none"), folder=tmp_path
    )
    events = tmp_path / "e.jsonl"
    wait_until(lambda: events.exists() and b"step_complete" in events.read_bytes())
    second = run("build", str(files / "mlp.onnx"), "--events=e.jsonl", folder=tmp_path)
    assert second.returncode == 2
    who = f"the build of resnet50.onnx in process {first.pid} writes there"
    assert who in second.stderr.decode()
    (tmp_path / "e.jsonl.control").write_text(REQUEST)  # the first one listens as before
    first.communicate(timeout=60)
    assert first.returncode == 130
    told = events_of(events.read_bytes())
    assert [event.kind for event in told].count("stream_start") == 1
    assert isinstance(told[-1], BuildEnded)
    assert [path.name for path in tmp_path.iterdir()] == ["e.jsonl"]
    again = run("build", str(files / "mlp.onnx"), "--events=e.jsonl", folder=tmp_path)
    assert again.returncode == 0
    begun = events_of(events.read_bytes())[0]
    assert isinstance(begun, StreamStarted)
    assert begun.model == "mlp.onnx"


def test_requests_come_from_stdin(files: Path, tmp_path: Path) -> None:
    process = start(
        *("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=-", "--control=-"),
        folder=tmp_path,
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while b'"phase_start"' not in lines[-1]:
        lines.append(process.stdout.readline())
    process.stdin.write(REQUEST.encode())
    process.stdin.flush()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert events_of(out)[-1].kind == "end"
    assert b"resnet50.onnx: cancelled after" in err
    assert b"The request to cancel came from standard input." in err


# ---- events --------------------------------------------------------------------------------------


def test_stdout_has_only_events_where_they_go_there(files: Path, tmp_path: Path) -> None:
    done = run("build", str(files / "mlp.onnx"), "-o", "e", "--events=-", folder=tmp_path)
    assert done.returncode == 0
    validator = jsonschema.Draft202012Validator(schema())
    for text in done.stdout.splitlines():
        validator.validate(json.loads(text))
    events = events_of(done.stdout)
    assert isinstance(events[0], StreamStarted)
    assert not events[0].listens
    assert isinstance(events[-1], BuildEnded)
    assert events[-1].engine == str(tmp_path / "e")
    states = [event.status for event in events if isinstance(event, StatusChanged)]
    assert states == ["running", "succeeded"]
    tree = PhaseTree()
    tree.apply(events)
    assert tree.roots["Building engine"].count == 1
    assert b"mlp.onnx: succeeded after" in done.stderr
    assert ESCAPE not in done.stderr


def test_a_reader_that_goes_away_ends_the_events_and_not_the_build(
    files: Path, tmp_path: Path
) -> None:
    process = start(
        "build", str(files / "mlp.onnx"), *SLOWLY, "-o", "e", "--events=-", folder=tmp_path
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(60) == 0, said
    assert said.count(b"The events could not be written to their end: whoever read them has") == 1
    assert b"Traceback" not in said
    assert (tmp_path / "e").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_events_that_find_no_room_are_an_error(files: Path, tmp_path: Path) -> None:
    arguments = ("build", str(files / "mlp.onnx"), "-o", "e", "--events=/dev/full")
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count(b"the disk is full") == 1
    assert (tmp_path / "e").exists()


def test_lines_end_with_their_reader_and_the_build_goes_on(files: Path, tmp_path: Path) -> None:
    process = start("build", str(files / "mlp.onnx"), *SLOWLY, "-o", "e", folder=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(60) == 0
    assert said == b""
    assert (tmp_path / "e").exists()


@pytest.fixture
def unread() -> Iterator[int]:
    """Give a pipe that is full, and that nobody reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 1024)
    os.set_blocking(write, True)
    yield write
    os.close(write)
    os.close(read)


def test_a_signal_ends_a_build_whose_lines_nobody_reads(
    unread: int, files: Path, tmp_path: Path
) -> None:
    process = start(
        *("build", str(files / "mlp.onnx"), "-o", "e", "--events=e.jsonl", "--timings=t.csv"),
        folder=tmp_path,
        stdout=unread,
    )
    events = tmp_path / "e.jsonl"
    wait_until(lambda: events.exists() and b'"event":"end"' in events.read_bytes())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)  # it waits for its reader, for as long as that takes
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1  # the engine is there, what was to be told of it is not
    assert (tmp_path / "e").exists()
    assert (tmp_path / "t.csv").read_text().startswith("phase,path,")


def test_the_second_signal_leaves_a_stream_whose_lines_nobody_reads(
    unread: int, tmp_path: Path
) -> None:
    stream = tmp_path / "s.jsonl"
    stream.write_text(
        f"{to_json(StreamStarted(0.0, 'm'))}\n{to_json(PhaseStarted(0.1, 'a', None, 3))}\n"
    )
    process = start("watch", str(stream), folder=tmp_path, stdout=unread)
    time.sleep(2.0)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.6)
    assert process.wait(30) == 130


def test_a_signal_ends_the_wait_for_who_does_not_read_the_events(
    unread: int, files: Path, tmp_path: Path
) -> None:
    process = start(
        *("build", str(files / "mlp.onnx"), "-o", "e", "--events=-", "--timings=t.csv"),
        folder=tmp_path,
        stdout=unread,
    )
    wait_until((tmp_path / "t.csv").exists)  # before anybody has read
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said.count(b"The events are cut off") == 1


@pytest.mark.parametrize("closed", [[1], [2], [0, 1, 2]])
def test_a_build_without_standard_streams(closed: list[int], files: Path, tmp_path: Path) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    process = start(
        *("build", str(files / "mlp.onnx"), "-o", "e", "--events=e.jsonl"),
        folder=tmp_path,
        preexec_fn=close,  # runs between fork and exec
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (b"succeeded" in out) == (1 not in closed)
    assert (tmp_path / "e").exists()
    assert events_of((tmp_path / "e.jsonl").read_bytes())[-1].kind == "end"


def test_the_schema_is_printed(tmp_path: Path) -> None:
    done = run("schema", folder=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout) == schema()


# ---- a terminal ----------------------------------------------------------------------------------


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Give a function that starts the command in a terminal."""
    begun: list[Terminal] = []

    def begin(
        *arguments: str, columns: int = 80, lines: int = 24, command: list[str] = COMMAND
    ) -> Terminal:
        begun.append(
            Terminal([*command, *arguments], env=ENV, folder=tmp_path, columns=columns, lines=lines)
        )
        return begun[-1]

    yield begin
    for made in begun:
        made.close()


#: What a whole line of a picture looks like; a torn one looks like none of them.
PICTURE = [
    re.compile(pattern)
    for pattern in (
        r"resnet50\.onnx  ?(running|pending|cancelling|…|run|$).*",
        r"( {2})*[A-Z][\w ]*…?( *[━─~]{10,24})?( +(\d+/\d+|done))?( +\d[\d.]* \w+)?( x\d+)?",
        r"[A-Z][\w ;]+…?( · no callback.*)?",
        r"Cancelling at the next step.*",
        r"",
    )
]


def whole(lines: list[str]) -> bool:
    """Whether a screen has nothing but whole lines, and each row once."""
    heads = [line for line in lines if line.startswith("resnet50")]
    roots = [line for line in lines if line.startswith("Building e")]
    known = all(any(pattern.fullmatch(line) for pattern in PICTURE) for line in lines)
    return known and len(heads) == 1 and len(roots) <= 1


def test_bars_in_a_terminal_that_is_resized(files: Path, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("build", str(files / "resnet50.onnx"), *SLOWLY, "-o", "e")
    lines = shown.wait_for("Cloning network graph ━")
    assert whole(lines)
    assert shown.cursor_hidden
    assert not shown.apart
    assert re.search(r"Cloning network graph ━+─+ +\d+/\d+ +\d\.\d s", "\n".join(lines))
    for columns, height in ((50, 24), (30, 10), (120, 30), (20, 4), (8, 2), (80, 24)):
        shown.resize(columns, height)
        # What is torn stays so: whoever draws over it does not know of it.
        for _ in range(6 if columns >= 20 else 0):
            lines = shown.wait_for(whole, 10.0)
            assert len(lines) <= height
            time.sleep(0.1)
    assert shown.apart
    shown.send("\x03")
    assert shown.end() == 130
    lines = shown.seen
    assert not shown.cursor_hidden
    assert not shown.apart
    assert sum(line.startswith("Building engine ") for line in lines) == 1
    assert any(line.startswith("resnet50.onnx: cancelled after") for line in lines)
    assert not any("running" in line for line in lines if "RTX" not in line)


def test_the_picture_stays_when_the_window_gets_lower(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("build", str(files / "resnet50.onnx"), *SLOWLY, "-o", "e", lines=30)
    shown.wait_for("Cloning network graph ━")
    for height in (6, 3, 12, 30):
        shown.resize(80, height)
        time.sleep(0.5)
        shown.wait_for(whole, 10.0)
    assert not shown.apart
    shown.send("\x03")
    assert shown.end() == 130


def test_ctrl_c_in_a_terminal_says_that_it_cancels(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    """In the gap, so that there is time to see it."""
    shown = terminal("build", str(files / "gap.onnx"), "--grace=2")
    lines = shown.wait_for(lambda found: sum("~~~~" in line for line in found) >= 3)
    # TensorRT is silent: the bars of what is open say nothing any more, and what is done is done.
    assert any(re.search(r"Optimizing graph +━{10,} +done", line) for line in lines)
    shown.send("\x03")
    lines = shown.wait_for("Cancelling at the next step, or in 2 s…")
    # What the terminal writes of a key is drawn over.
    shown.wait_for(lambda found: not any("^C" in line for line in found))
    assert shown.end() == 130
    lines = shown.seen
    assert any(re.search(r"gap\.onnx: cancelled after \d", line) for line in lines)
    assert any("build process" in line for line in lines)
    assert any(re.search(r"Determining refit engines +─+ +cancelled", line) for line in lines)


def test_a_terminal_that_is_closed_cancels(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=e.jsonl")
    shown.wait_for("Cloning network graph ━")
    shown.hang_up()
    assert shown.end() == 130
    last = events_of((tmp_path / "e.jsonl").read_bytes())[-1]
    assert isinstance(last, BuildEnded)
    assert last.status == "cancelled"
    assert [path.name for path in tmp_path.iterdir()] == ["e.jsonl"]


def test_a_build_that_waits_says_for_whom_and_can_be_cancelled(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    first = terminal("build", str(files / "resnet50.onnx"), *SLOWLY, "--exclusive")
    first.wait_for("Cloning network graph ━")
    second = terminal("build", str(files / "mlp.onnx"), "--exclusive", columns=120)
    second.wait_for("Waits for resnet50.onnx in process")
    second.send("\x03")
    assert second.end() == 130
    assert "mlp.onnx: cancelled after" in "\n".join(second.seen)
    first.send("\x03")
    assert first.end() == 130


def test_a_build_that_succeeds_leaves_its_phases(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("build", str(files / "mlp.onnx"), "-o", "e.engine")
    assert shown.end() == 0
    said = "\n".join(shown.seen)
    assert re.search(r"^Building engine +━+ +done ", said, re.MULTILINE)
    assert "mlp.onnx: succeeded after" in said
    assert "Engine of " in said
    assert not shown.cursor_hidden
    assert "running" not in said


def test_what_stays_is_not_cut(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("build", str(files / "mlp.onnx"), "-o", "e.engine", columns=30)
    assert shown.end() == 0
    said = "".join(line.ljust(30) for line in shown.seen)
    assert re.search(f"saved as *{tmp_path / 'e.engine'}", said)


def test_long_errors_break_between_words(files: Path, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("build", str(files / "mlp.onnx"), "--fp16", columns=40)
    assert shown.end() == 2
    assert len(shown.seen) > 3
    assert "Networks are strongly typed here: the precisions" in " ".join(shown.seen)


def test_names_control_no_terminal(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    name = "\x1b[31m[red]evil[blink]\x07\x1b]0;title\x07.onnx"
    (tmp_path / name).write_bytes((files / "mlp.onnx").read_bytes())
    shown = terminal("build", name)
    assert shown.end() == 0
    said = "\n".join(shown.seen)
    assert "[red]evil[blink]" in said
    assert b"\x1b[31m[red]" not in shown.raw
    assert b"\x07" not in shown.raw
    assert b"\x1b]0;" not in shown.raw
    shown = terminal("build", name, "--progress=lines")
    assert shown.end() == 0
    assert ESCAPE not in shown.raw
    assert b"\x07" not in shown.raw


def test_a_terminal_that_draws_nothing_gets_lines(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    code = "import os, sys; os.environ['TERM'] = 'dumb'; from trt_widget.cli import main; "
    command = [sys.executable, "-c", f"{code}sys.exit(main())"]
    shown = terminal("build", str(files / "mlp.onnx"), command=command)
    assert shown.end() == 0
    assert ESCAPE not in shown.raw
    assert b"mlp.onnx: succeeded after" in shown.raw


def test_without_rich_there_are_lines_and_a_word_about_it(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    code = "import sys; sys.modules['rich'] = None; from trt_widget.cli import main; "
    command = [sys.executable, "-c", f"{code}sys.exit(main())"]
    shown = terminal("build", str(files / "mlp.onnx"), command=command)
    assert shown.end() == 0
    assert ESCAPE not in shown.raw
    assert shown.raw.count(b"trt-widget[cli]") == 1
    assert b"mlp.onnx: succeeded after" in shown.raw
    shown = terminal("build", str(files / "mlp.onnx"), "--progress=bars", command=command)
    assert shown.end() == 2
    assert b"trt-widget[cli]" in shown.raw
    assert b"Traceback" not in shown.raw


def test_a_flood_is_drawn_a_few_times_a_second(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    flood = ("--configure", "tests.models:configure_flood")
    begun = time.monotonic()
    shown = terminal("build", str(files / "mlp.onnx"), *flood)
    shown.wait_for("Measuring tactic time")
    assert shown.end() == 0
    took = time.monotonic() - begun
    pictures = shown.raw.count(b"\x1b[?25l")
    assert pictures <= 6 * took + 3
    assert len(shown.raw) < 10_000 * took
    counts = re.findall(r"Measuring tactic time .* x(\d+)", "\n".join(shown.seen))
    assert sum(map(int, counts)) > 1000


# ---- watch ---------------------------------------------------------------------------------------


def test_watch_shows_a_live_build_and_cancels_it(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("watch", "e.jsonl")
    shown.wait_for("e.jsonl")
    process = start(
        *("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=e.jsonl", "--progress=none"),
        folder=tmp_path,
    )
    lines = shown.wait_for("Cloning network graph ━")
    assert any(re.match(r"resnet50\.onnx  running  \d", line) for line in lines)
    shown.send("\x03")
    assert shown.end() == 130
    assert process.wait(60) == 130
    assert "resnet50.onnx: cancelled after" in "\n".join(shown.seen)
    assert [path.name for path in tmp_path.iterdir()] == ["e.jsonl"]


def test_watch_leaves_a_build_that_does_not_listen(
    files: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    process = start(
        *("build", str(files / "resnet50.onnx"), *SLOWLY, "--events=e.jsonl", "--progress=none"),
        *("--control", "elsewhere"),
        folder=tmp_path,
    )
    shown = terminal("watch", "e.jsonl")
    shown.wait_for("Cloning network graph ━")
    shown.send("\x03")
    shown.wait_for("That build does not listen here")
    time.sleep(0.4)
    shown.send("\x03")
    assert shown.end() == 130
    assert "Left; the build itself goes on." in "\n".join(shown.seen)
    assert process.poll() is None
    shown = terminal("watch", "e.jsonl", "--control", "elsewhere")
    shown.wait_for("Cloning network graph ━")
    shown.send("\x03")
    assert shown.end() == 130
    assert process.wait(60) == 130


@pytest.mark.parametrize(("model", "code"), [("mlp", 0), ("odd", 1)])
def test_watch_shows_a_recording(model: str, code: int, files: Path, tmp_path: Path) -> None:
    arguments = ("build", str(files / f"{model}.onnx"), "--events=e.jsonl", "--progress=none")
    assert run(*arguments, folder=tmp_path).returncode == code
    done = run("watch", "e.jsonl", folder=tmp_path)
    assert done.returncode == code
    assert ESCAPE not in done.stdout
    word = "succeeded" if code == 0 else "failed"
    assert f"{model}.onnx: {word} after".encode() in done.stdout
    if code:
        assert b"TensorRT does not know the operator Nope" in done.stderr


def test_watch_does_not_know_how_a_recording_without_an_end_ended(
    files: Path, tmp_path: Path
) -> None:
    arguments = ("build", str(files / "mlp.onnx"), "--events=e.jsonl", "--progress=none")
    assert run(*arguments, folder=tmp_path).returncode == 0
    events = tmp_path / "e.jsonl"
    whole = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(text for text in whole if b'"succeeded"' not in text)[:-5])
    done = run("watch", "e.jsonl", "--no-wait", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert b"the outcome is not known" in done.stdout


def test_watch_reads_a_pipe(files: Path, tmp_path: Path) -> None:
    producer = start("build", str(files / "mlp.onnx"), "--events=-", folder=tmp_path)
    done = subprocess.run(
        [*COMMAND, "watch", "-"],
        stdin=producer.stdout,
        env=ENV,
        capture_output=True,
        timeout=60,
        check=False,
    )
    producer.communicate(timeout=60)
    assert done.returncode == 0
    assert b"mlp.onnx: succeeded after" in done.stdout


def pipeline(model: Path, *options: str) -> list[str]:
    """Give a shell's pipeline of a build and who watches it."""
    build = shlex.join([*COMMAND, "build", str(model), *options, "--events=-"])
    return [
        "bash",
        "-c",
        f"{build} | {shlex.join([*COMMAND, 'watch', '-'])}; echo ${{PIPESTATUS[@]}}",
    ]


def test_a_pipeline_has_one_picture_and_one_ctrl_c(
    files: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(command=pipeline(files / "resnet50.onnx", *SLOWLY))
    lines = shown.wait_for("Cloning network graph ━")
    assert whole(lines)
    shown.send("\x03")
    lines = shown.wait_for("130 130")
    shown.end()
    said = "\n".join(lines)
    assert said.count("resnet50.onnx: cancelled after") == 1
    assert "listen" not in said
    assert "No -o" not in said
    assert sum(line.startswith("Building engine ") for line in lines) == 1


def test_a_pipeline_says_once_why_it_failed(files: Path, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(command=pipeline(files / "odd.onnx"), lines=50)
    said = "\n".join(shown.wait_for("1 1"))
    shown.end()
    assert said.count("does not know the operator Nope") == 1


def test_watch_of_what_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text("this is\nno stream\n")
    done = run("watch", "e.jsonl", "--no-wait", folder=tmp_path)
    assert done.returncode == 1
    assert b"is no stream of a build" in done.stderr
    assert b"Traceback" not in done.stderr
