"""Install everything and run all checks and tests: ``python3 tests/run.py``.

Needs nothing but Python 3.10 or newer. Makes the virtual environment ``.venv-test`` and keeps it
until pyproject.toml changes; installs Chromium and Node.js with apt where they are missing. Every
step runs, whatever the ones before it said, and counts as one test where it isn't made of tests.
Two steps run at a time, since most tests wait for processes rather than compute: each line of the
output begins with the name of its step, and each step has its own folder for temporary files. What
failed is told once more at the end, where it is read even if only the end was kept. The last line
is ``N passed, N failed``.

``python3 tests/run.py unit browser`` runs those steps only. ``--jobs 1`` runs one at a time.
``--no-install`` installs nothing and uses the environment of the Python that runs this script, or
.venv-test if that one is in none.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import venv
import xml.etree.ElementTree as ET
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-test"
RESULTS = ROOT / ".cache" / "test-results"
EXTRAS = ("rtx", "notebook", "cli", "serve", "lsp", "mcp", "dask", "test")
STUBS = "tensorrt-stubs==10.13.0.35.1"
# The Python side of full TensorRT, whose libraries are not there: see tests/full/bindings.py.
BINDINGS = ("10.16.1.11", "11.4.0.106")
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: How many failures are told once more at the end, and of each how many of its last lines.
TOLD, TOLD_LINES = 8, 40


#: Set by Ctrl-C: nothing more is begun, and what runs is ended.
stopping = threading.Event()


@dataclass
class Outcome:
    """What one step came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[tuple[str, list[str]]] = field(default_factory=list)
    """What failed, by its name, each with the last lines of what it said."""


@dataclass(frozen=True)
class Check:
    """A step that is one command, or several: it passes if all of them do."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    #: A command that comes before the others; if it fails, they are not run.
    first: tuple[str, ...] | None = None

    def run(self, env: Env) -> Outcome:
        """Run every command, as many at a time as there are cores, also after one has failed."""
        ran = [env.call(self.first)] if self.first is not None else []
        if not any(each.code for each in ran):
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                ran += pool.map(env.call, self.commands)
        failures = [(each.command, each.lines) for each in ran if each.code]
        return Outcome(failed=1, failures=failures) if failures else Outcome(passed=1)


@dataclass(frozen=True)
class Tests:
    """A step that is a run of pytest."""

    name: str
    title: str
    arguments: tuple[str, ...]

    def run(self, env: Env) -> Outcome:
        """Run pytest and count from the report that it writes."""
        report = RESULTS / f"{self.name}.xml"
        report.unlink(missing_ok=True)
        ran = env.call(("python", "-m", "pytest", f"--junitxml={report}", *self.arguments))
        if not report.exists():
            return Outcome(failed=1, failures=[(ran.command, ran.lines)])
        failures: dict[tuple[str | None, str | None], list[str]] = {}
        skipped: set[tuple[str | None, str | None]] = set()
        cases = skipped.copy()
        # A report that pytest has just written here, not a stranger's XML. A test that fails and
        # whose teardown fails too is in it twice.
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314
            name = (case.get("classname"), case.get("name"))
            cases.add(name)
            said = [child for child in case if child.tag in {"failure", "error"}]
            if said:
                lines = failures.setdefault(name, [])
                lines += [line for each in said for line in (each.text or "").splitlines()]
            elif case.find("skipped") is not None:
                skipped.add(name)
        skipped -= failures.keys()
        passed = len(cases - failures.keys() - skipped)
        outcome = Outcome(passed, len(failures), len(skipped))
        outcome.failures = [(f"{place}::{name}", said) for (place, name), said in failures.items()]
        # Such as "no tests were collected", or a crash after the report.
        if ran.code != 0 and outcome.failed == 0:
            outcome.failed = 1
            outcome.failures = [(ran.command, ran.lines)]
        return outcome


def pytest_step(folder: str, title: str) -> Tests:
    """Make the step for one folder under tests/."""
    return Tests(folder, title, (f"tests/{folder}", "--durations=5"))


def mypy_command(python: str, platform: str, *more: str) -> tuple[str, ...]:
    """Make the type check for one version of Python on one platform, with a cache of its own."""
    cache = f".mypy_cache/{platform}-{python}"
    where = ("--python-version", python, "--platform", platform, "--cache-dir", cache)
    return ("python", "-m", "mypy", "--strict", *where, *more)


# The stubs of pandas that go with a newer Python have types that 3.10 lacks: there a DataFrame is
# Any, and "returning Any" would be said of every function that returns one.
MYPY = tuple(
    mypy_command(python, platform, *(("--no-warn-return-any",) if python == "3.10" else ()))
    for python, platform in (
        ("3.10", "linux"),
        ("3.11", "linux"),
        ("3.12", "linux"),
        ("3.13", "linux"),
        ("3.12", "win32"),
    )
)

STEPS: tuple[Check | Tests, ...] = (
    # First, since it takes longest: the others run beside it.
    pytest_step("browser", "JupyterLab in Chromium"),
    Check("lint", "ruff check", (("python", "-m", "ruff", "check"),)),
    Check("format", "ruff format", (("python", "-m", "ruff", "format", "--check"),)),
    Check(
        "types",
        "mypy --strict, Python 3.10 to 3.13, Linux and Windows",
        MYPY,
        first=("python", "-m", "tests.stubs"),
    ),
    Check("javascript", "tsc on the widget's JavaScript", (("tsc", "-p", "tsconfig.json"),)),
    pytest_step("unit", "unit tests"),
    *(
        Tests(
            f"full-{version.partition('.')[0]}",
            f"the real bindings of full TensorRT {version}, without its libraries",
            ("tests/full", "--tensorrt", version, "--durations=5"),
        )
        for version in BINDINGS
    ),
    pytest_step("build", "builds by the real TensorRT-RTX"),
    pytest_step("cluster", "Dask: a scheduler and workers as real processes"),
    pytest_step("surfaces", "terminal, files, HTTP, editors, agents: real processes and clients"),
    pytest_step("kernel", "real ipykernels"),
    pytest_step("gpu", "an NVIDIA GPU, where there is one"),
    Tests(
        "notebooks",
        "every notebook, by nbval",
        (
            "--nbval-lax",
            "--nbval-current-env",
            "--nbval-sanitize-with=tests/nbval_sanitize.cfg",
            "--nbval-cell-timeout=300",
            "--timeout=300",
            "notebooks",
        ),
    ),
    pytest_step("package", "the wheel installed elsewhere, and what README.md says"),
)


@dataclass(frozen=True)
class Ran:
    """A command that has run."""

    command: str
    code: int
    """Its exit status."""
    lines: list[str] = field(default_factory=list)
    """The last ones that it printed."""


@dataclass(frozen=True)
class Env:
    """The virtual environment that the steps run in."""

    prefix: Path
    label: str = ""
    """Begins every line that its commands print."""
    folder: str = ""
    """For temporary files; the system's if there is none."""

    @property
    def stacks(self) -> Path:
        """Where a test that hangs tells what its processes do."""
        return Path(self.folder, "stacks.txt")

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if sys.platform == "win32":
            return self.prefix / "Scripts" / "python.exe"
        return self.prefix / "bin" / "python"

    def say(self, line: str) -> None:
        """Print a line, whole: others may be printing too."""
        # A reader that has left (``| head``) ends no step.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(f"{self.label}{line}\n")
            sys.stdout.flush()

    def call(self, command: Sequence[str]) -> Ran:
        """Run a command of the environment in the project's folder, and print what it prints."""
        program, *arguments = command
        written = " ".join(command)
        if program == "python":
            program = str(self.python)
        elif program == "tsc":
            program, arguments = "node", ["node_modules/typescript/bin/tsc", *arguments]
        environ = os.environ | {
            "VIRTUAL_ENV": str(self.prefix),
            "PATH": os.pathsep.join((str(self.python.parent), os.environ.get("PATH", os.defpath))),
            # The builds of the tests are no experience for the user's own, nor their engines.
            "TRT_WIDGET_HISTORY": "off",
            "TRT_WIDGET_ENGINES": "off",
        }
        if self.folder:
            environ |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), self.folder)
            environ["TRT_WIDGET_TEST_STACKS"] = str(self.stacks)
        environ.pop("PYTHONPATH", None)
        if stopping.is_set():
            return Ran(written, 130)
        self.say(f"$ {written}")
        # A file and no pipe: what a test leaves running would keep that open.
        descriptor, path = tempfile.mkstemp(".log", dir=self.folder or None)
        os.close(descriptor)
        output = Path(path)
        with output.open("wb") as sink, output.open(encoding="utf-8", errors="replace") as log:
            try:
                process = subprocess.Popen(
                    [program, *arguments], cwd=ROOT, env=environ, stdout=sink, stderr=sink
                )
            except FileNotFoundError as error:
                self.say(str(error))
                return Ran(written, 127, [str(error)])
            code, begun = None, ""
            last: deque[str] = deque(maxlen=TOLD_LINES)
            try:
                while code is None:
                    if stopping.is_set():
                        end(process)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(0.5)
                    *lines, begun = (begun + log.read()).split("\n")
                    last.extend(lines)
                    for line in lines:
                        self.say(line)
            finally:
                process.kill()
            if begun:
                last.append(begun)
                self.say(begun)
        return Ran(written, code, list(last))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has had Ctrl-C, as all of the terminal have, and may be cleaning up."""
    for harder in (process.terminate, process.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return
        harder()


def run_step(step: Check | Tests, env: Env, label: str) -> tuple[str, Outcome, float]:
    """Run one step in a folder of its own for temporary files; return its row of the summary."""
    before = time.monotonic()
    # Not below ROOT: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tw-", ignore_cleanup_errors=True) as folder:
        own = replace(env, label=label, folder=folder)
        own.say(f"=== {step.title}")
        stacks = own.stacks
        try:
            outcome = step.run(own)
        except Exception:  # noqa: BLE001 - whatever it is, the other steps run and are counted
            lines = traceback.format_exc().splitlines()
            outcome = Outcome(failed=1, failures=[(step.title, lines)])
            for line in lines:
                own.say(line)
        if stacks.exists():
            for line in stacks.read_text("utf-8", errors="replace").splitlines():
                own.say(line)
        seconds = time.monotonic() - before
        own.say(f"--- {outcome.passed} passed, {outcome.failed} failed: {seconds:.1f} s")
    return step.name, outcome, seconds


def tell_failures(rows: Sequence[tuple[str, Outcome, float]]) -> None:
    """Print what failed in all steps: every name, and of the first ones the last lines."""
    failures = [(step, *each) for step, outcome, _ in rows for each in outcome.failures]
    for step, name, lines in failures[:TOLD]:
        print(f"\n=== failed: {step}: {name}")
        if len(lines) > TOLD_LINES:
            print(f"... {len(lines) - TOLD_LINES} lines before these")
        print(*lines[-TOLD_LINES:], sep="\n")
    if failures[TOLD:]:
        print("\n=== failed, too")
        print(*(f"{step}: {name}" for step, name, _ in failures[TOLD:]), sep="\n")


def find_chromium() -> str | None:
    """Look for a Chromium or Chrome on PATH; return its path."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def need(command: Sequence[str]) -> None:
    """Run an installation command; end the script if it fails."""
    print("$", " ".join(command), flush=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        print(f"could not install: exit status {code}\n0 passed, 1 failed", flush=True)
        sys.exit(1)


def install_system() -> None:
    """Install Chromium, Node.js, venv and compilers with apt where they are missing."""
    missing = [] if find_chromium() else ["chromium"]
    if not (shutil.which("node") and shutil.which("npm")):
        missing += ["nodejs", "npm"]
    if not shutil.which("gcc"):  # small libraries for the tests of plugins and drivers
        missing += ["gcc", "libc6-dev"]
    if not shutil.which("g++"):  # the progress monitor in C++
        missing.append("g++")
    if find_spec("ensurepip") is None:
        # Debian keeps it apart.
        missing.append("python3-venv")
    if not missing:
        return
    if not shutil.which("apt-get"):
        print(f"please install {', '.join(missing)}: there is no apt-get here", flush=True)
        return
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    apt = (*(() if is_root else ("sudo",)), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
    need((*apt, "-q", "update"))
    need((*apt, "-q", "-y", "install", "--no-install-recommends", *missing))


def install_python() -> Env:
    """Make .venv-test, or reuse it if it was made from the same pyproject.toml and Python."""
    env = Env(VENV)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    recipe = "\n".join((sys.version, STUBS, *BINDINGS, *EXTRAS, project))
    stamp = VENV / "made-from.sha256"
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    if stamp.exists() and stamp.read_text("utf-8") == digest:
        print(f"{VENV.name} is up to date", flush=True)
        return env
    venv.create(VENV, clear=True, with_pip=True)
    pip = (str(env.python), "-m", "pip", "--disable-pip-version-check", "install", "-qq")
    need((*pip, "--editable", f".[{','.join(EXTRAS)}]"))
    need((*pip, "--no-deps", STUBS))
    # There are wheels for these only; elsewhere tests/full is skipped, and says so.
    here = sys.platform, platform.machine()
    if here == ("linux", "x86_64") and sys.version_info < (3, 14):
        for version in BINDINGS:
            folder = str(VENV / "full" / version)
            wheel = f"tensorrt-cu13-bindings=={version}"
            need((*pip, "--no-deps", "--only-binary", ":all:", "--target", folder, wheel))
    stamp.write_text(digest, "utf-8")
    return env


def install_javascript() -> None:
    """Install what package.json pins into node_modules."""
    stamp = ROOT / "node_modules" / "made-from.json"
    recipe = (ROOT / "package.json").read_text("utf-8")
    npm = shutil.which("npm")
    if npm is None or (stamp.exists() and stamp.read_text("utf-8") == recipe):
        return
    need((npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"))
    stamp.write_text(recipe, "utf-8")


def main() -> int:
    """Run the steps asked for; return the exit status."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("steps", nargs="*", metavar="step", help=f"of: {', '.join(names)}")
    parser.add_argument("--no-install", action="store_true", help="install nothing")
    jobs = min(2, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, help="steps that run at a time")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if unknown := set(options.steps) - set(names):
        parser.error(f"no such step: {', '.join(sorted(unknown))} (there are: {', '.join(names)})")

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # In the background of a shell, or under nohup, these are ignored, also by what is started from
    # here; and some tests send them to what they have started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    rows: list[tuple[str, Outcome, float]] = []
    started = time.monotonic()
    if options.no_install:
        env = Env(Path(sys.prefix) if sys.prefix != sys.base_prefix else VENV)
    else:
        print("\n=== install", flush=True)
        install_system()
        env = install_python()
        install_javascript()
        rows.append(("install", Outcome(), time.monotonic() - started))
    RESULTS.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if not options.steps or step.name in options.steps]
    width = max(map(len, names))
    # Threads that only pass on what processes print.
    with ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(run_step, step, env, f"{step.name:<{width}} | ") for step in steps]
        try:
            wait(running)
        except KeyboardInterrupt:
            stopping.set()
            for each in running:
                each.cancel()
    rows += [each.result() for each in running if not each.cancelled()]

    tell_failures(rows)
    print(f"\n{'step':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for name, outcome, seconds in rows:
        counts = f"{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}"
        print(f"{name:<12}{counts}{seconds:>9.1f}")
    passed, failed, skipped = (
        sum(getattr(outcome, key) for _, outcome, _ in rows)
        for key in ("passed", "failed", "skipped")
    )
    print(f"{'all':<12}{'':>25}{time.monotonic() - started:>9.1f}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    if stopping.is_set():
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
