"""``trt-widget check`` as its users have it, with the real builder and with broken ones."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from tests.cuda_driver import ONE_DEVICE, Driver
from tests.surfaces.terminals import Terminal
from trt_widget._checks import CHECKS
from trt_widget.events import from_json
from trt_widget.phases import PhaseTree
from trt_widget.schema import schema

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "trt_widget", "check"]
USER = "karla-the-user"


def environment(*first: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (*first, REPOSITORY)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", "LOGNAME": USER, "USER": USER}


def check(
    *arguments: str, folder: Path, first: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(*first),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def stand_in(folder: Path, text: str) -> Path:
    """Make a package ``tensorrt`` that does what ``text`` says when it is imported."""
    package = folder / "stand in" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return package.parent


def processes_below(folder: Path) -> list[str]:
    """Give the processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is not ours
            if process.cwd() == str(folder):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes, Path]:
    """Run all checks with a report, once; give what was printed, the report and the folder."""
    folder = tmp_path_factory.mktemp("a folder of karla")
    done = check("--json", "report.json", folder=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout, (folder / "report.json").read_bytes(), folder


def test_the_real_builder_does_what_is_relied_upon(whole: tuple[str, bytes, Path]) -> None:
    lines = whole[0].splitlines()
    assert re.fullmatch(r"trt-widget \S+, Python \S+, \S+ \S+ \S+", lines[0])
    # (A driver may be there; the tests hide its GPUs.)
    assert lines[1].startswith(("no NVIDIA driver", "no GPU, driver "))
    start = next(index for index, line in enumerate(lines) if line.startswith("tensorrt_rtx "))
    checks = lines[start + 1 : start + 1 + len(CHECKS)]
    for expected, line in zip(CHECKS, checks, strict=True):
        status = "not run" if expected.name in {"timing-cache", "runs"} else "ok     "
        assert line.startswith(f"  {status} {expected.title}: ")
        assert re.search(r" \(\d+\.\d s\)$", line)
    assert "All that could be run here is as it should be." in lines
    assert lines[-1] == (
        "To report it, look at the file report.json, and open an issue of the project with it."
    )


def test_full_tensorrt_is_not_there_and_says_so(whole: tuple[str, bytes, Path]) -> None:
    """Its stubs are, here."""
    printed, data, _ = whole
    assert "\ntensorrt\n  not run imported: only its type stubs are installed" in printed
    (only,) = json.loads(data)["packages"]["tensorrt"]
    assert (only["check"], only["status"]) == ("import", "not run")


def test_the_report_has_the_recorded_callbacks(whole: tuple[str, bytes, Path]) -> None:
    report = json.loads(whole[1])
    results = {result["check"]: result for result in report["packages"]["tensorrt_rtx"]}
    assert [*results] == [check.name for check in CHECKS]
    for name in ("process", "thread"):
        lines = [json.dumps(event) for event in results[name]["events"]]
        events = [from_json(line) for line in lines]
        assert events[0].kind == "stream_start"
        tree = PhaseTree()
        tree.apply(events)
        assert sum(tree.timing_columns()["count"]) > 5
        assert not tree.open_phases
        for event in results[name]["events"]:
            jsonschema.validate(event, schema())
    assert report["format"] == 1
    assert report["gpus"] == []
    assert report["installed"]["tensorrt-rtx"]


def test_the_report_names_no_path_no_user_and_no_machine(whole: tuple[str, bytes, Path]) -> None:
    _, data, folder = whole
    text = json.dumps(json.loads(data), ensure_ascii=False)
    for secret in (
        USER,
        socket.gethostname(),
        str(folder),
        folder.name,
        sys.prefix,
        str(REPOSITORY),
    ):
        assert secret not in text
    assert not re.search(r"(?<![\w.…])/\w+/\w", text)


def test_what_a_broken_install_says_is_told_without_them(tmp_path: Path) -> None:
    host = socket.gethostname()
    first = stand_in(
        tmp_path, f"raise ImportError(f'{{__file__}} is broken, {USER} on {host}: see /a/b c/d')"
    )
    done = check("--backend", "tensorrt", "--json", "x.json.gz", folder=tmp_path, first=(first,))
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  "))
    assert line.startswith(
        "  failed  imported: tensorrt cannot be used: importing it failed: …/__init__.py is "
        "broken, … on …: see …. Part of it is missing"
    )
    assert "1 check failed." in done.stdout
    report = gzip.decompress((tmp_path / "x.json.gz").read_bytes()).decode()
    assert "…/__init__.py is broken" in json.loads(report)["packages"]["tensorrt"][0]["seen"]
    for secret in (USER, host, str(tmp_path), "stand in", "b c"):
        assert secret not in report


def test_a_crash_is_a_failed_check(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import os\nprint('last words', flush=True)\nos.abort()\n")
    done = check("--backend", "tensorrt", folder=tmp_path, first=(first,))
    assert done.returncode == 1
    assert "  failed  imported: its process ended by SIGABRT; it printed: last words" in done.stdout
    assert "To report it, run this again with --json FILE" in done.stdout


def test_a_process_that_leaves_is_a_failed_check(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import os\nos._exit(0)\n")
    done = check("--backend", "tensorrt", folder=tmp_path, first=(first,))
    assert done.returncode == 1
    assert "  failed  imported: its process ended by exit code 0 (" in done.stdout


def test_no_check_hangs(tmp_path: Path) -> None:
    sleeps = "import time; time.sleep(1000)"
    first = stand_in(
        tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {sleeps!r}])\n"
    )
    begun = time.monotonic()
    given = ["--backend", "tensorrt", "--limit", "6", "--json", "x.json"]
    done = check(*given, folder=tmp_path, first=(first,))
    assert time.monotonic() - begun < 60
    assert done.returncode == 1
    assert "  failed  imported: it did not end within 6 s" in done.stdout
    # Where it stood: in the package that is imported.
    (found,) = results(tmp_path)
    assert any(re.search(r"__init__\.py\W.* line 2 in <module>", each) for each in found["stacks"])
    assert processes_below(tmp_path) == []


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    done = check("--backend", "tensorrt", folder=tmp_path)
    assert done.returncode == 1
    assert "Nothing could be built here: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "0"], "--limit is not a number of seconds above zero."),
        (["--limit", "nan"], "--limit is not a number of seconds above zero."),
        (["--limit", "inf"], "--limit is not a number of seconds above zero."),
        (["--limit=-1"], "--limit is not a number of seconds above zero."),
        (["--limit", "1e7"], "--limit is more than 1,000,000 seconds."),
        (["--limit", "1e300"], "--limit is more than 1,000,000 seconds."),
        (["--json", "no/such/folder/x.json"], "--json 'no/such/folder/x.json': there is no folder"),
        (["--json", "."], "--json '.' is a directory. Add the report file's name to the path."),
        (["--json", ""], "--json is empty. Give the report file's name, or leave it out."),
        (["--backend", "tensorflow"], "invalid choice"),
        (["--jsn", "x"], "Did you mean --json?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    done = check(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("pauses", [[], [0.0], [0.05, 0.25, 0.25]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_its_report_behind_when_it_is_ended(
    number: signal.Signals, pauses: list[float], tmp_path: Path
) -> None:
    """Once, and several times: wrappers pass on what the terminal has sent to all."""
    first = stand_in(tmp_path, "import time\nopen('here', 'w').close()\ntime.sleep(1000)\n")
    process = subprocess.Popen(
        [*COMMAND, "--backend", "tensorrt", "--json", "x.json"],
        cwd=tmp_path,
        env=environment(first),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "here").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, b"")
    assert processes_below(tmp_path) == []
    # The report has what there is, and where it stood.
    report = json.loads((tmp_path / "x.json").read_bytes())
    assert report["interrupted"] is True
    (found,) = report["packages"]["tensorrt"]
    assert (found["check"], found["status"]) == ("import", "not run")
    assert found["seen"] == 'interrupted, and stood at "…/__init__.py", line 3 in <module>'
    assert "line 3 in <module>" in " ".join(found["stacks"])
    assert USER not in json.dumps(report)


def test_in_a_terminal_it_says_what_runs(tmp_path: Path) -> None:
    command = [*COMMAND, "--backend", "tensorrt_rtx"]
    terminal = Terminal(command, folder=tmp_path, env=environment(), columns=100, lines=40)
    try:
        terminal.wait_for("…       a build in a process of its own")
        assert terminal.end(100) == 0
        text = "\n".join(terminal.seen)
    finally:
        terminal.close()
    assert "ok      a build in a thread: " in text
    assert "…       " not in text


def test_ctrl_c_in_a_terminal_ends_it(tmp_path: Path) -> None:
    """There the signal goes to all processes."""
    terminal = Terminal(COMMAND, folder=tmp_path, env=environment(), columns=100, lines=40)
    try:
        terminal.wait_for("…       a build in a process of its own")
        terminal.send("\x03")
        assert terminal.end() == 130
        text = "\n".join(terminal.seen)
    finally:
        terminal.close()
    assert "Traceback" not in text
    # What could still end in the moment that it was given has ended.
    assert re.search(r"(not run|ok +) ?a build in a process of its own: ", text)
    assert "Interrupted." in text
    deadline = time.monotonic() + 20
    while processes_below(tmp_path):  # a build's process sees within half a second
        assert time.monotonic() < deadline
        time.sleep(0.1)


HANGS = """
import faulthandler, signal, sys, threading, time
import tensorrt_rtx

def hang(*_):
    for _ in range(400):  # more than is kept of what a check prints
        print("a" * 100, file=sys.stderr)
    time.sleep(1000)

def build_serialized_network(*_):
    hang()

tensorrt_rtx.Builder.build_serialized_network = build_serialized_network
"""


def test_where_a_build_stood_is_told(tmp_path: Path) -> None:
    """In the thread that builds, also where much was printed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGS)
    given = ["--backend", "tensorrt_rtx", "--limit", "6", "--json", "x.json"]
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import sitecustomize; "
        "from trt_widget import _checks; from trt_widget.commands import check; "
        "check.CHECKS = [one for one in check.CHECKS if one.name in {'import', 'thread'}]; "
        "check._CHILD = 'sys.path.insert(0, ' + repr(sys.path[0]) + '); import sitecustomize; ' "
        "+ check._CHILD; from trt_widget.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site"), "check", *given],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    _, found = json.loads((tmp_path / "x.json").read_bytes())["packages"]["tensorrt_rtx"]
    assert 'and stood at "…/sitecustomize.py", line 8 in hang' in found["seen"], found["seen"]
    assert len(found["stacks"]) > 10
    assert not any("aaa" in each for each in found["stacks"])


def results(folder: Path) -> list[dict[str, Any]]:
    """Give the results of full TensorRT in the report."""
    found: list[dict[str, Any]] = json.loads((folder / "x.json").read_bytes())["packages"][
        "tensorrt"
    ]
    return found


def gone(folder: Path) -> None:
    """Wait until no process works in a folder."""
    deadline = time.monotonic() + 30
    while processes_below(folder):
        assert time.monotonic() < deadline, processes_below(folder)
        time.sleep(0.05)


@pytest.mark.parametrize("new_session", [False, True])
def test_what_outlives_a_check_changes_nothing(new_session: bool, tmp_path: Path) -> None:
    """It holds the pipes open; only a session of its own outlives the check itself."""
    text = (
        "import subprocess\n"
        f"subprocess.Popen(['sleep', '78'], start_new_session={new_session})\n"
        "raise ImportError('nope')\n"
    )
    first = stand_in(tmp_path, text)
    try:
        done = check("--backend", "tensorrt", "--limit", "60", folder=tmp_path, first=(first,))
        assert (
            "  failed  imported: tensorrt cannot be used: importing it failed: nope" in done.stdout
        )
        assert "did not end" not in done.stdout
        assert len(processes_below(tmp_path)) == int(new_session)
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(tmp_path):
                    process.kill()


def test_a_flood_on_stderr_is_kept_to_its_end(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "for _ in range(300):\n"
        "    os.write(2, b'x' * 1_000_000)\n"
        "os.write(2, b'\\nlast words')\n"
        "os.abort()\n"
    )
    first = stand_in(tmp_path, text)
    arguments = ["--backend", "tensorrt", "--json", "x.json"]
    done = check(*arguments, folder=tmp_path, first=(first,))
    assert "  failed  imported: its process ended by SIGABRT; it printed: last words" in done.stdout
    assert (tmp_path / "x.json").stat().st_size < 20_000


def test_a_check_that_hangs_tells_what_it_printed_and_where_it_stood(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import time\nprint('so far', flush=True)\ntime.sleep(1000)\n")
    done = check("--backend", "tensorrt", "--limit", "5", folder=tmp_path, first=(first,))
    place = '"…/__init__.py", line 3 in <module>'
    told = f"imported: it did not end within 5 s, and stood at {place}; it printed: so far ("
    assert told in done.stdout


def test_what_is_printed_while_python_starts_is_no_answer(tmp_path: Path) -> None:
    """By a .pth file, in an environment that is made for it."""
    site = tmp_path / "venv/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (site / "site-packages").mkdir(parents=True)
    (site / "site-packages" / "noisy.pth").write_text("import sys; print('hello', end='')\n")
    (tmp_path / "venv/bin").mkdir()
    python = tmp_path / "venv/bin/python"
    python.symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {home}\n")
    paths = [entry for entry in sys.path if "site-packages" in entry]
    done = subprocess.run(
        [python, "-m", "trt_widget", "check", "--backend", "tensorrt", "--json", "x.json"],
        cwd=tmp_path,
        env={
            **Driver(tmp_path, answer=ONE_DEVICE).environ,
            **environment(stand_in(tmp_path, "raise ImportError('nope')"), *map(Path, paths)),
            "LD_LIBRARY_PATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout.startswith("hello"), done.stderr
    assert "importing it failed: nope" in done.stdout
    assert json.loads((tmp_path / "x.json").read_bytes())["gpus"][0]["name"] == "compiled"


@pytest.mark.parametrize("user", ["ok", "failed", "not run"])
def test_a_user_who_is_called_like_a_word_of_the_protocol(user: str, tmp_path: Path) -> None:
    first = stand_in(tmp_path, "raise ImportError('nope')")
    done = subprocess.run(
        [*COMMAND, "--backend", "tensorrt", "--json", "x.json"],
        cwd=tmp_path,
        env={**environment(first), "LOGNAME": user, "USER": user},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1
    assert "1 check failed." in done.stdout
    assert results(tmp_path)[0]["status"] == "failed"


def test_the_report_goes_to_stdout_and_all_else_to_stderr(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "raise ImportError('nope')")
    done = check("--backend", "tensorrt", "--json", "-", folder=tmp_path, first=(first,))
    assert json.loads(done.stdout)["packages"]["tensorrt"][0]["status"] == "failed"
    assert "1 check failed." in done.stderr
    assert not (tmp_path / "-").exists()


def test_a_report_is_packed_whatever_the_case_of_its_end(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "raise ImportError('nope')")
    check("--backend", "tensorrt", "--json", "X.GZ", folder=tmp_path, first=(first,))
    assert json.loads(gzip.decompress((tmp_path / "X.GZ").read_bytes()))["format"] == 1


def test_from_a_folder_that_was_removed(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "raise ImportError('nope')")
    removed = tmp_path / "removed"
    removed.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(removed), *COMMAND, "--backend", "tensorrt"],
        env=environment(first),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "importing it failed: nope" in done.stdout


def test_where_no_more_files_can_be_opened(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 6 && exec "$@"', "sh", *COMMAND, "--backend", "tensorrt"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "  failed  imported: its process could not be started: " in done.stdout


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_in_the_c_locale(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "raise ImportError('nope \\u00e9 \\u2026')")
    env = {**environment(first), **C_LOCALE}
    command = [*COMMAND, "--backend", "tensorrt"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "importing it failed: nope ? ?" in done.stdout
    terminal = Terminal(command, folder=tmp_path, env=env, columns=100, lines=40)
    try:
        assert terminal.end() == 1
        assert "Traceback" not in "\n".join(terminal.seen)
        assert "1 check failed." in "\n".join(terminal.seen)
    finally:
        terminal.close()


def test_a_terminal_that_goes_away_costs_no_report(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import time\ntime.sleep(2)\nraise ImportError('nope')\n")
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *COMMAND]
    terminal = Terminal(
        [*command, "--backend", "tensorrt", "--json", "x.json"],
        folder=tmp_path,
        env=environment(first),
    )
    try:
        terminal.wait_for("…       imported")
        terminal.hang_up()
        assert terminal.process.wait(60) == 1
    finally:
        terminal.close()
    assert results(tmp_path)[0]["seen"].startswith("tensorrt cannot be used")


def test_in_a_narrow_terminal_nothing_stays_of_what_ran(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import time\ntime.sleep(1)\nraise ImportError('nope')\n")
    terminal = Terminal(
        [*COMMAND, "--backend", "tensorrt"],
        folder=tmp_path,
        env=environment(first),
        columns=14,
        lines=60,
    )
    try:
        terminal.wait_for("  …       imp")
        assert terminal.end() == 1
        assert "…       " not in "\n".join(terminal.seen)
    finally:
        terminal.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others look twice a second only")
def test_a_hung_check_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    first = stand_in(tmp_path, "import time\ntime.sleep(1000)\n")
    process = subprocess.Popen(
        [*COMMAND, "--backend", "tensorrt"],
        cwd=tmp_path,
        env=environment(first),
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(processes_below(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_question_for_the_gpus_ends_with_the_command(
    number: signal.Signals, tmp_path: Path
) -> None:
    driver = Driver(tmp_path, milliseconds=60_000)
    process = subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env={**driver.environ, **environment(), "LD_LIBRARY_PATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(processes_below(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=30)
    gone(tmp_path)


def test_a_driver_that_does_not_answer_costs_one_limit(tmp_path: Path) -> None:
    """And not one for each check."""
    driver = Driver(tmp_path, milliseconds=90_000)
    done = subprocess.run(
        [*COMMAND, "--backend", "tensorrt_rtx", "--limit", "4", "--json", "x.json"],
        cwd=tmp_path,
        env={**driver.environ, **environment(), "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    lines = done.stdout.splitlines()
    report = json.loads((tmp_path / "x.json").read_bytes())
    assert report["gpus"] is None
    first, second, *others = report["packages"]["tensorrt_rtx"]
    assert (done.returncode, first["status"], second["status"]) == (1, "ok", "failed"), lines
    assert second["seen"].startswith("the driver does not answer: it did not end within 4 s")
    assert [event["event"] for event in second["events"]][:1] == ["stream_start"]
    assert len(others) == len(CHECKS) - 2
    assert {(one["status"], one["seen"]) for one in others} == {
        ("not run", "the driver does not answer")
    }
