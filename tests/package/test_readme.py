"""README.md and notebooks/docs say what is true: their Python runs, their commands exist.

A ``python`` block runs as one cell of one notebook, in order, in a folder with ``resnet50.onnx``
and ``model.onnx``. A cell meant to raise says so: ```` ```python raises=BuildCancelled ````. What
an example needs but a reader need not see stands in a comment before it::

    <!-- python
    builder, network, config = ...
    -->
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import httpx
import onnx
import pytest

from tests.kernel.harness import LATEST, Kernel
from tests.run import EXTRAS
from trt_widget import events

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "notebooks" / "docs").glob("*.md"))]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = {
    "resnet50.onnx": "light_resnet50.onnx",
    "densenet121.onnx": "light_densenet121.onnx",
    "model.onnx": "light_squeezenet.onnx",
}
#: Enough for either protocol.
INITIAL = {
    "protocolVersion": "2025-06-18",
    "clientInfo": {"name": "test", "version": "1"},
    "processId": None,
    "rootUri": None,
    "capabilities": {},
}
SHELL = {"bash", "sh", "shell", "console"}
# Highlighting for what is only looked at: outputs, trees, notices.
SHOWN = {"text", "json", "toml"}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    options: str
    text: str


def blocks(markdown: str) -> Iterator[Block]:
    """Give the fenced blocks, and the comments that start with a language, in order."""
    pattern = re.compile(
        r"^(?P<fence>```+)(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=fence)[ ]*$"
        r"|^<!--[ ]*(?P<hidden>python)\n(?P<code>.*?)^-->",
        re.DOTALL | re.MULTILINE,
    )
    for match in pattern.finditer(markdown):
        line = markdown.count("\n", 0, match.start()) + 1
        if match["hidden"]:
            yield Block(line, "python", "", match["code"])
            continue
        language, _, options = match["info"].strip().partition(" ")
        yield Block(line, language, options.strip(), match["text"])


def commands(markdown: str) -> list[str]:
    """Give the shell commands, one each, without prompts, comments and continuation lines."""
    found: list[str] = []
    for block in blocks(markdown):
        if block.language in SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                bare = re.sub(r"(^|\s)#.*$", "", line).strip().removeprefix("$ ")
                found += [part.strip() for part in re.split(r"&&|;", bare) if part.strip()]
    return found


def extras_of(requirement: str) -> set[str]:
    match = re.search(r"\[([\w\-, ]+)\]", requirement)
    return {extra.strip() for extra in match[1].split(",")} if match else set()


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    languages = [block.language for block in blocks(README)]
    assert languages.count("python") >= 1
    assert SHELL & set(languages)
    assert set(languages) <= {"python"} | SHELL | SHOWN


WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text("utf-8")]


def test_there_are_pages_with_python() -> None:
    assert {"README.md", "scripts.md"} <= {page.name for page in WITH_PYTHON}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    for name, source in MODELS.items():
        shutil.copyfile(LIGHT / source, tmp_path / name)
    cells = [block for block in blocks(page.read_text("utf-8")) if block.language == "python"]
    # As on a reader's machine, with a history and a cache of its own.
    own = {
        "TRT_WIDGET_HISTORY": str(tmp_path / "history"),
        "TRT_WIDGET_ENGINES": str(tmp_path / "cache"),
    }
    with Kernel(LATEST, env=own) as kernel:
        kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
        for cell in cells:
            wanted = cell.options.removeprefix("raises=") or None
            done = kernel.execute(cell.text).finish(120)
            said = "\n".join((done.reply or {}).get("traceback", []))
            assert done.error == wanted, f"{page.name}, line {cell.line}:\n{cell.text}\n{said}"


def check_install(requirements: list[str]) -> str | None:
    """Check what is installed against the extras there are; say what it is good for."""
    assert requirements
    extras = set().union(*map(extras_of, requirements))
    assert {requirement.partition("[")[0] for requirement in requirements} <= {".", "trt-widget"}
    assert extras <= known_extras()
    # What tests/run.py installs is what is known to work together.
    return "install" if {"rtx", "notebook"} <= extras <= set(EXTRAS) else None


def check_notebook(words: list[str], copy: Path) -> str:
    """Check that the notebook is there; run it, unless the command opens a browser."""
    (notebook,) = (word for word in words if word.endswith(".ipynb"))
    assert (ROOT / notebook).is_file()
    if words[1] == "lab":
        return "open"
    run(words, copy)
    return "execute"


def check_script(script: str, arguments: list[str]) -> str | None:
    """Check a script of this project and, if it runs the tests, its arguments."""
    assert (ROOT / script).is_file()
    if script != "tests/run.py":
        return None
    run([sys.executable, script, *arguments, "--help"], ROOT)
    if arguments:
        return None
    assert "python3 tests/run.py\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    return "test"


def check(words: list[str], copy: Path) -> str | None:
    """Check one command; say what a reader gets by it, if it's one of the things to get."""
    match words:
        case ["git", "clone", _] | ["cd", _] | ["python3" | "python", "-m", "venv", ".venv"]:
            return None
        case ["source" | ".", ".venv/bin/activate"]:
            return None
        case ["python3" | "python", "-m", "pip", "install", *rest] | ["pip", "install", *rest]:
            return check_install([word for word in rest if not word.startswith("-")])
        case ["jupyter", "lab" | "execute" | "nbconvert", *_]:
            return check_notebook(words, copy)
        case ["python3" | "python", script, *arguments]:
            return check_script(script, arguments)
        case ["trt-widget", surface, *_]:
            (check_server if surface in {"serve", "lsp", "mcp"} else run)(words, copy)
            return surface
        case _:
            pytest.fail("no test knows this command")


@pytest.mark.timeout(300)
def test_commands_are_those_that_exist(tmp_path: Path) -> None:
    """Every command is of a known form and names what is there; the notebook's is run."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copyfile(LIGHT / MODELS["resnet50.onnx"], tmp_path / "resnet50.onnx")
    got: set[str | None] = set()
    for command in commands(README):
        words = shlex.split(command)
        # Programs may be called by the path they have in the environment.
        if words[0].startswith(".venv/bin/"):
            words[0] = Path(words[0]).name
        print("README.md:", command)
        got.add(check(words, tmp_path))
    assert {"install", "open", "execute", "test"} <= got
    assert {"build", "watch", "serve", "lsp", "mcp"} <= got
    assert (tmp_path / "resnet50.engine").stat().st_size > 1_000_000


def check_server(words: list[str], cwd: Path) -> None:
    """Start a server as the command says, and see that it answers, and ends when it is told to."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        [sys.executable, "-m", "trt_widget", *words[1:]],
        cwd=cwd,
        env=environ,
        stdin=pipe,
        stdout=pipe,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        if words[1] == "serve":
            ready = json.loads(server.stdout.readline())
            assert httpx.get(f"{ready['url']}/builds").status_code == 401
            header = {"Authorization": f"Bearer {ready['token']}"}
            assert httpx.get(f"{ready['url']}/builds", headers=header).json()["builds"] == []
            server.terminate()
        else:
            request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIAL}
            line = json.dumps(request)
            # One protocol has a header with the length, the other a line for each message.
            framed = (
                f"Content-Length: {len(line)}\r\n\r\n{line}" if words[1] == "lsp" else line + "\n"
            )
            server.stdin.write(framed.encode())
            server.stdin.flush()
            assert server.stdout.readline().startswith((b"Content-Length", b'{"jsonrpc'))
            server.stdin.close()
        server.wait(30)
    finally:
        server.kill()
        server.stdin.close()
        server.stdout.close()
        server.wait()


def run(words: list[str], cwd: Path) -> None:
    """Run a command with the programs of this environment."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environ = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    program = shutil.which(words[0], path=path)
    assert program, words
    done = subprocess.run(
        [program, *words[1:]], check=False, capture_output=True, text=True, env=environ, cwd=cwd
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"


def test_extras_named_in_the_text_exist() -> None:
    named = re.findall(r"trt[-_]widget\[([\w\-, ]+)\]", README)
    assert named
    for group in named:
        assert extras_of(f"[{group}]") <= known_extras()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_linked_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r"src(?:set)?=\"([^\"]+)\"", text)
    for target in targets:
        assert "://" in target or (page.parent / target).exists(), target
    if page.name in {"README.md", "index.md"}:
        assert len(targets) >= 3


def described_events(page: str) -> dict[str, tuple[str, list[tuple[str, str]], str]]:
    """Give what protocol.md says of each kind: the class, its fields with types, the example."""
    found = {}
    for part in re.split(r"^#{2,3} ", page, flags=re.MULTILINE):
        heading = re.match(r"`(\w+)`\n\n`(\w+)`", part)
        if heading:
            rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| \S.* \|$", part, re.MULTILINE)
            (example,) = [block.text.strip() for block in blocks(part) if block.language == "json"]
            types = [(name, written.replace("\\|", "|")) for name, written in rows]
            found[heading[1]] = (heading[2], types, example)
    return found


def test_protocol_page_says_what_events_are() -> None:
    page = (ROOT / "notebooks" / "docs" / "protocol.md").read_text("utf-8")
    described = described_events(page)
    kinds = {kind.kind: kind for kind in get_args(events.Event)}
    assert set(described) == set(kinds)
    for kind, (name, rows, example) in described.items():
        assert name == kinds[kind].__name__
        assert rows == [(field.name, str(field.type)) for field in fields(kinds[kind])]
        event = events.from_json(example)
        assert type(event) is kinds[kind]
        assert events.to_json(event) == example
    assert f"`version`, now {events.PROTOCOL_VERSION}." in page


def test_reading_of_blocks() -> None:
    """The reader itself, on a README as it might be."""
    text = "a\n```python raises=X\nf()\n```\n<!-- python\ny = 1\n-->\n```bash\n"
    text += "$ pip install \\\n  '.[rtx]'  # all\ncd a && b\n```\n````text\n```\n````\n"
    read = [(block.line, block.language, block.options) for block in blocks(text)]
    assert read == [(2, "python", "raises=X"), (5, "python", ""), (8, "bash", ""), (13, "text", "")]
    assert commands(text) == ["pip install    '.[rtx]'", "cd a", "b"]
