"""``trt-widget mcp`` as agents see it: the SDK's own client, real servers and builds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema
import onnx
import psutil
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

from tests import models
from trt_widget.errors import ExtraMissing
from trt_widget.events import PhaseStarted, StepCompleted
from trt_widget.phases import PhaseTree
from trt_widget.servers._stdio import MAX_LINE, MAX_OPEN
from trt_widget.servers._tools import _TO_BUILD, _sentence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from mcp_types import CallToolResult

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "tests" / "data" / "hostile"
#: How long something that comes for certain may take on a busy machine, in seconds.
SOON = 60.0
TOOLS = ["inspect_model", "build_engine", "start_build", "build_status", "cancel_build"]


def command(root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "trt_widget", "mcp", "--root", str(root), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TRT_WIDGET_HISTORY": "off"}


@contextlib.asynccontextmanager
async def connected(root: Path, *arguments: str, mode: str = "auto") -> AsyncIterator[Client]:
    program, *rest = command(root, *arguments)
    server = StdioServerParameters(command=program, args=rest, env=environment(), cwd=root)
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


def run(
    main: Callable[[Client], Awaitable[None]], root: Path, *arguments: str, mode: str = "auto"
) -> None:
    """Run a client's program against the server of that folder, else against one of its own."""
    if root in SHARED:
        SHARED[root].run(main)
        return

    async def whole() -> None:
        async with connected(root, *arguments, mode=mode) as client:
            await main(client)

    asyncio.run(asyncio.wait_for(whole(), 2 * SOON))


class Shared:
    """A server for many tests, in an event loop that runs while one of them does."""

    def __init__(self, root: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._left = asyncio.Event()
        self._client: asyncio.Future[Client] = self._loop.create_future()
        others = set(psutil.Process().children())
        # The SDK wants to be entered and left in one task.
        self._task = self._loop.create_task(self._keep(root))
        self._loop.run_until_complete(asyncio.wait_for(asyncio.shield(self._client), SOON))
        (self.process,) = set(psutil.Process().children()) - others

    async def _keep(self, root: Path) -> None:
        async with connected(root) as client:
            self._client.set_result(client)
            await self._left.wait()

    def run(self, main: Callable[[Client], Awaitable[None]]) -> None:
        async def whole() -> None:
            await main(self._client.result())

        self._loop.run_until_complete(asyncio.wait_for(whole(), 2 * SOON))

    def close(self) -> None:
        self._left.set()
        self._loop.run_until_complete(self._task)
        self._loop.close()
        gone([self.process])


#: Servers that several tests use, by the folder.
SHARED: dict[Path, Shared] = {}
shared = pytest.mark.parametrize("root", ["shared"], indirect=True, ids=[""])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of a server that has no arguments but that."""
    root = tmp_path_factory.mktemp("served") / "root"
    root.mkdir()
    SHARED[root] = Shared(root)
    yield root
    SHARED.pop(root).close()


def emptied(folder: Path) -> None:
    """Remove what is in a folder, and not the folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that succeeds, and give its answer, which the client has held to the schema."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    check_answer(result)
    answer: dict[str, Any] = result.structured_content
    return answer


async def refused(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that fails, and give its error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    check_answer(result)
    error: dict[str, Any] = result.structured_content["error"]
    assert set(error) == {"class", "cause", "remedy", "evidence"}
    assert error["cause"]
    assert "Traceback" not in str(error)
    return error


def check_answer(result: CallToolResult) -> None:
    """Every answer is small, and the text says the same as the structure."""
    (content,) = result.content
    assert content.type == "text"
    assert json.loads(content.text) == result.structured_content
    assert len(content.text) < 16_000


def builds() -> list[psutil.Process]:
    """Give the build processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("executors.child" in part for part in process.cmdline()):
                found.append(process)
    return found


def gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + SOON
    for process in processes:
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"left behind: {process}"
            time.sleep(0.02)


async def until_silent(client: Client, build_id: str) -> None:
    """Wait until TensorRT is where it says nothing for seconds."""
    for _ in range(int(SOON / 0.1)):
        status = await call(client, "build_status", id=build_id)
        assert status["status"] in {"pending", "running"}, status
        if status["phase"] is not None and status["phase"].endswith("Determining refit engines"):
            return
        await asyncio.sleep(0.1)
    pytest.fail("the build did not come to its silence")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    kept = [server.process for server in SHARED.values()]
    gone([one for one in psutil.Process().children(recursive=True) if one not in kept])


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give the folder of a server: a small model, one that takes long, and what is outside."""
    if hasattr(request, "param"):
        folder: Path = request.getfixturevalue("served")
        emptied(folder)
        shutil.rmtree(folder.parent / "root2", ignore_errors=True)
    else:
        folder = tmp_path / "root"
        folder.mkdir()
    (folder / "mlp.onnx").write_bytes(models.mlp().SerializeToString())
    (folder / "long.onnx").write_bytes(long_model())
    (folder.parent / "secret.onnx").write_bytes(models.mlp().SerializeToString())
    return folder


@cache
def long_model() -> bytes:
    return models.transformer(48).SerializeToString()


# ---- the tools ----------------------------------------------------------------------------------


@shared
def test_tools_are_declared_with_schemas(root: Path) -> None:
    async def main(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.title
            assert tool.description
            assert tool.output_schema is not None
            for schema in (tool.input_schema, tool.output_schema):
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object"
        # An agent reads this before anything else.
        assert sum(len(tool.model_dump_json()) for tool in tools) < 20_000
        assert "profile_example" in (client.instructions or "")

    run(main, root)


@shared
def test_a_model_is_inspected_and_built_by_what_was_said(root: Path) -> None:
    made = {
        "dynamic": models.dynamic(),
        "reshape": models.reshape(),
        "expand": models.expand(),
        "shared": models.one_dimension_of_two(),
    }
    for name, model in made.items():
        (root / f"{name}.onnx").write_bytes(model.SerializeToString())
    (root / "resnet50.onnx").write_bytes(models.light_model("resnet50").read_bytes())

    async def main(client: Client) -> None:
        said = await call(client, "inspect_model", model="resnet50.onnx")
        (tensor,) = said["inputs"]
        assert (tensor["type"], tensor["shape"]) == ("float32", [1, 3, 224, 224])
        assert {"name": "Conv", "count": 53} in said["operators"]
        assert (said["needs_profile"], said["profile_example"]) == (False, None)
        assert said["size_bytes"] == (root / "resnet50.onnx").stat().st_size
        for name in made:
            said = await call(client, "inspect_model", model=f"{name}.onnx")
            assert said["needs_profile"], name
            error = await refused(client, "build_engine", model=f"{name}.onnx")
            assert error["class"] == "ProfileError"
            built = await call(
                client, "build_engine", model=f"{name}.onnx", profiles=said["profile_example"]
            )
            assert built["status"] == "succeeded"
            assert (root / f"{name}.engine").stat().st_size == built["engine_bytes"]

    run(main, root)


@shared
def test_files_that_are_no_models_hurt_nobody(root: Path) -> None:
    whole = models.mlp().SerializeToString()
    files = {
        "empty.onnx": b"",
        "text.onnx": b"hello world\n",
        "page.onnx": b"<!DOCTYPE html><html></html>",
        "truncated.onnx": whole[: len(whole) // 2],
        "nested.onnx": b"\x08\x08" + b"\x3a\xff\xff\xff\xff\x07" * 2_000,
        "groups.onnx": b"\x08\x08\x3a\x80\x02" + b"\x0b" * 256,
        "noise.onnx": bytes(range(256)) * 400,
    }
    for name, data in files.items():
        (root / name).write_bytes(data)
    (root / "folder.onnx").mkdir()
    os.mkfifo(root / "pipe.onnx")

    async def main(client: Client) -> None:
        for name in [*files, "folder.onnx", "pipe.onnx", "missing.onnx"]:
            result = await client.call_tool("inspect_model", {"model": name})
            check_answer(result)
            if name not in {"nested.onnx", "groups.onnx"}:
                assert result.is_error, name
                assert result.structured_content["error"]["class"] == "SourceError", name
                assert result.structured_content["error"]["remedy"], name
        for path in sorted(HOSTILE.glob("*.onnx")):
            (root / path.name).write_bytes(path.read_bytes())
            assert (await call(client, "inspect_model", model=path.name))["nodes"] >= 1
        await call(client, "inspect_model", model="mlp.onnx")

    run(main, root)


@shared
def test_weights_in_other_files_are_told(root: Path) -> None:
    models.save_external(models.mlp(), root / "split.onnx")
    models.save_external(models.mlp(), root / "away.onnx", "away.bin")
    away = models.mlp()
    models.save_external(away, root / "lost.onnx", "lost.bin")
    (root / "lost.bin").unlink()

    async def main(client: Client) -> None:
        said = await call(client, "inspect_model", model="split.onnx")
        assert (said["external_files"], said["problems"]) == (["weights.bin"], [])
        said = await call(client, "inspect_model", model="lost.onnx")
        assert "lost.bin" in said["problems"][0]["cause"]

    run(main, root)


def test_a_build_tells_its_progress_and_what_it_came_to(root: Path) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        told.append((value, total, message))

    async def main(client: Client) -> None:
        arguments = {"model": "mlp.onnx", "output": "made.plan", "timeout": 60}
        result = await client.call_tool("build_engine", arguments, progress_callback=progress)
        assert not result.is_error, result.structured_content
        built = result.structured_content
        assert (built["status"], built["engine"], built["error"]) == (
            "succeeded",
            "made.plan",
            None,
        )
        assert built["engine_bytes"] == (root / "made.plan").stat().st_size
        assert told

    run(main, root, "--configure", "tests.models:configure_slowly")
    check_progress(told)


def check_progress(told: list[tuple[float, float | None, str | None]]) -> None:
    values = [value for value, _, _ in told]
    assert values == sorted(set(values))
    assert all(message for _, _, message in told)
    assert all(total is None or total >= value for value, total, _ in told)


def test_the_time_left_is_told_as_a_guess() -> None:
    """A stand-in for a build, since a real one has an estimate only with a history."""
    tree = PhaseTree()
    tree.apply(
        [PhaseStarted(0.0, "Building engine", None, 6), StepCompleted(1.0, "Building engine", 1)]
    )
    build: Any = SimpleNamespace(
        lock=threading.RLock(), tree=tree, waiting_for=None, status="running", eta_s=12.34
    )
    assert _sentence(build) == "Building engine: 2 of 6, about 12.3 s left"


def test_a_flood_is_few_notifications(root: Path) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        told.append((value, total, message))

    async def main(client: Client) -> None:
        result = await client.call_tool(
            "build_engine", {"model": "mlp.onnx"}, progress_callback=progress
        )
        assert not result.is_error, result.structured_content
        check_answer(result)
        assert result.structured_content["duration_s"] > 2.0
        assert 2 <= len(told) <= 2 * result.structured_content["duration_s"] + 3

    run(main, root, "--configure", "tests.models:configure_flood")
    check_progress(told)


@shared
def test_an_engine_is_not_written_over_unless_that_is_said(root: Path) -> None:
    (root / "mlp.engine").write_bytes(b"an engine of somebody")

    async def main(client: Client) -> None:
        error = await refused(client, "build_engine", model="mlp.onnx")
        assert "overwrite" in error["remedy"]
        assert (root / "mlp.engine").read_bytes() == b"an engine of somebody"
        for output in ("mlp.onnx", "notes.txt", "mlp", ".bashrc"):
            error = await refused(
                client, "build_engine", model="mlp.onnx", output=output, overwrite=True
            )
            assert ".engine" in error["remedy"]
        error = await refused(client, "start_build", model="mlp.onnx", output="no/where.engine")
        assert error["class"] == "OutputError"
        built = await call(client, "build_engine", model="mlp.onnx", overwrite=True)
        assert built["engine_bytes"] == (root / "mlp.engine").stat().st_size
        long = await call(client, "start_build", model="long.onnx", output="one.engine", grace=0.1)
        error = await refused(client, "start_build", model="mlp.onnx", output="one.engine")
        assert long["id"] in error["cause"]
        await call(client, "cancel_build", id=long["id"])

    run(main, root)
    assert sorted(path.name for path in root.iterdir()) == ["long.onnx", "mlp.engine", "mlp.onnx"]


@shared
def test_failures_come_with_their_diagnosis(root: Path) -> None:
    (root / "nope.onnx").write_bytes(models.unknown_operators("Nope").SerializeToString())

    async def main(client: Client) -> None:
        result = await client.call_tool("build_engine", {"model": "nope.onnx"})
        assert result.is_error
        built = result.structured_content
        assert (built["status"], built["engine"]) == ("failed", None)
        assert built["error"]["class"] == "ParseFailed"
        assert "Nope" in built["error"]["cause"]
        assert built["error"]["remedy"]
        assert built["error"]["evidence"]
        # The same in the background: the question was answered, so it is no error.
        started = await call(client, "start_build", model="nope.onnx")
        status = await call(client, "build_status", id=started["id"], wait=50)
        assert status["outcome"]["error"] == built["error"]

    run(main, root)


def test_a_process_that_dies_is_a_failure(root: Path) -> None:
    async def main(client: Client) -> None:
        error = await refused(client, "build_engine", model="mlp.onnx")
        assert error["class"] == "BuildCrashed"
        assert "SIGSEGV" in error["cause"]
        await call(client, "inspect_model", model="mlp.onnx")

    run(main, root, "--configure", "tests.models:configure_crash")


# ---- ending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_cancelling_the_request_cancels_the_build(root: Path, mode: str) -> None:
    """Also while TensorRT says nothing for seconds, and of a build that waits for its turn."""

    async def main(client: Client) -> None:
        task = asyncio.ensure_future(
            client.call_tool("build_engine", {"model": "long.onnx", "grace": 0.1})
        )
        while not builds():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.05)
        status = await call(client, "build_status")
        await until_silent(client, status["id"])
        running = builds()
        waiting = asyncio.ensure_future(client.call_tool("build_engine", {"model": "mlp.onnx"}))
        while (newest := await call(client, "build_status"))["id"] == status["id"]:
            assert newest["status"] == "running"
        waiting.cancel()
        task.cancel()
        for left in (waiting, task):
            with pytest.raises(asyncio.CancelledError):
                await left
        after = await call(client, "build_status", id=status["id"], wait=50)
        assert (after["status"], after["outcome"]["engine"]) == ("cancelled", None)
        last = await call(client, "build_status", wait=50)
        assert last["status"] == "cancelled"
        assert [other["id"] for other in last["others"]] == [status["id"]]
        gone(running)

    run(main, root, mode=mode)
    assert not (root / "long.engine").exists()
    assert not (root / "mlp.engine").exists()


def test_a_build_in_the_background_is_asked_for_and_cancelled(root: Path) -> None:
    async def main(client: Client) -> None:
        error = await refused(client, "build_status")
        assert "start_build" in error["remedy"]
        started = await call(client, "start_build", model="long.onnx", grace=0.1)
        assert started["engine"] == "long.engine"
        await until_silent(client, started["id"])
        status = await call(client, "build_status", id=started["id"], wait=0.2)
        assert status["status"] == "running"
        assert status["outcome"] is None
        assert status["phases"][0]["path"] == "Building engine"
        # Who gives up waiting for an answer has cancelled the question, not the build.
        asked = asyncio.ensure_future(
            client.call_tool("build_status", {"id": started["id"], "wait": 50})
        )
        await asyncio.sleep(0.2)
        asked.cancel()
        assert (await call(client, "build_status", id=started["id"]))["status"] == "running"
        ended = await call(client, "cancel_build", id=started["id"])
        assert (ended["status"], ended["outcome"]["reason"]) == ("cancelled", "user")
        again = await call(client, "cancel_build", id=started["id"])
        assert again["outcome"] == ended["outcome"]
        built = await call(client, "start_build", model="mlp.onnx")
        status = await call(client, "build_status", id=built["id"], wait=50)
        assert status["outcome"]["engine"] == "mlp.engine"
        assert (root / "mlp.engine").stat().st_size == status["outcome"]["engine_bytes"]
        for tool in ("build_status", "cancel_build"):
            error = await refused(client, tool, id="nobody")
            assert error["class"] == "UnknownBuild"
            assert "build_status without an id" in error["remedy"]

    run(main, root)


def test_the_budget_is_the_agents_and_the_operators(root: Path) -> None:
    async def main(client: Client) -> None:
        for arguments in ({"timeout": 0.5}, {"timeout": 600}, {}):
            result = await client.call_tool(
                "build_engine", {"model": "long.onnx", "grace": 0.1, **arguments}
            )
            assert result.is_error
            built = result.structured_content
            assert (built["status"], built["reason"]) == ("cancelled", "deadline")
            expected = "0.5 s" if arguments == {"timeout": 0.5} else "0.9 s"
            assert expected in built["error"]["cause"]
            assert "timeout" in built["error"]["remedy"]

    run(main, root, "--timeout", "0.9")


@pytest.mark.parametrize("end", ["leave", "kill the client", "kill the server"])
def test_no_build_outlives_the_connection(root: Path, end: str) -> None:
    """The client is a process of its own, so that it can die."""
    program = textwrap.dedent("""
        import asyncio, json, sys
        from tests.surfaces.test_mcp import Path, call, connected, until_silent

        async def main():
            async with connected(Path(sys.argv[1])) as client:
                first = await call(client, "start_build", model="long.onnx", grace=30)
                await call(client, "start_build", model="mlp.onnx")
                asyncio.ensure_future(client.call_tool("build_engine", {
                    "model": "long.onnx", "output": "other.engine", "grace": 30}))
                await until_silent(client, first["id"])
                print("ready", flush=True)
                await asyncio.to_thread(sys.stdin.readline)

        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        cwd=ROOT,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        processes = psutil.Process(client.pid).children(recursive=True)
        (server,) = psutil.Process(client.pid).children()
        assert len(processes) == 2
        assert client.stdin is not None
        begun = time.monotonic()
        if end == "leave":
            client.stdin.write(b"\n")
            client.stdin.flush()
        elif end == "kill the client":
            client.kill()
        else:
            server.kill()
        gone(processes)
        assert time.monotonic() - begun < 20  # far below the grace
        client.kill()
    assert not list(root.glob("*.engine"))


# ---- strangers ----------------------------------------------------------------------------------


@shared
def test_no_path_leads_out_of_the_root(root: Path) -> None:
    outside = root.parent
    (root / "link.onnx").symlink_to(outside / "secret.onnx")
    (root / "folder").symlink_to(outside)
    (root / "loop.onnx").symlink_to("loop.onnx")
    (root / "away.engine").symlink_to(outside / "away.engine")
    (outside / "root2").mkdir()
    (outside / "root2" / "m.onnx").write_bytes(models.mlp().SerializeToString())
    models_outside = [
        "../secret.onnx",
        str(outside / "secret.onnx"),
        "link.onnx",
        "folder/secret.onnx",
        "../root2/m.onnx",
        "folder/root/../secret.onnx",
        "loop.onnx",
        "/dev/stdin",
        "a\0b.onnx",
        " ",
        "x" * 5_000,
    ]
    outputs_outside = [
        "../made.engine",
        str(outside / "made.engine"),
        "folder/made.engine",
        "away.engine",
        "a\0b.engine",
    ]

    async def main(client: Client) -> None:
        for model in models_outside:
            for tool in ("inspect_model", "build_engine", "start_build"):
                error = await refused(client, tool, model=model)
                assert error["class"] == "PathRefused", (model, error)
        for output in outputs_outside:
            error = await refused(
                client, "build_engine", model="mlp.onnx", output=output, overwrite=True
            )
            assert error["class"] == "PathRefused", (output, error)
        # Below the root a path may be absolute, or go through a link.
        (root / "inside.onnx").symlink_to("mlp.onnx")
        for model in (str(root / "mlp.onnx"), "inside.onnx", "folder/root/mlp.onnx"):
            assert (await call(client, "inspect_model", model=model))["model"] == "mlp.onnx"

    run(main, root)
    assert not list(outside.glob("*.engine"))
    assert not list(outside.glob("root2/*.engine"))


@shared
def test_arguments_that_cannot_be_are_explained(root: Path) -> None:
    async def main(client: Client) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "model"),
            ({"model": 3}, "model"),
            ({"model": "mlp.onnx", "timout": 3}, "'timeout'"),
            ({"model": "mlp.onnx", "timeout": -1}, "timeout"),
            ({"model": "mlp.onnx", "timeout": "soon"}, "timeout"),
            ({"model": "mlp.onnx", "optimization_level": 9}, "optimization_level"),
            ({"model": "mlp.onnx", "configure": "os:system"}, "configure"),
            ({"model": "mlp.onnx", "plugins": ["x.so"]}, "plugins"),
            ({"model": "mlp.onnx", "backend": "onnx"}, "backend"),
            ({"model": "mlp.onnx", "profiles": {"x": [[1], [2]]}}, "profiles"),
            ({"model": "mlp.onnx", "profiles": "{"}, "profiles"),
            ({"model": "mlp.onnx", "profiles": {"x": [[9, 8], [4, 8], [8, 8]]}}, "min > opt"),
            ({"model": "mlp.onnx", "profiles": {"nobody": [[1], [1], [1]]}}, "nobody"),
            ({"model": "mlp.onnx", "flags": ["FASTER"]}, "FASTER"),
            ({"model": "mlp.onnx", "target": "SM1"}, "SM1"),
        ]
        for arguments, word in wrong:
            error = await refused(client, "build_engine", **arguments)
            assert word in error["cause"] + error["remedy"], error
            assert error["remedy"], error
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("remove_everything", {})
        # Null is not given, and a profile may be written as text: there are clients that do.
        (root / "dynamic.onnx").write_bytes(models.dynamic().SerializeToString())
        built = await call(
            client,
            "build_engine",
            model="dynamic.onnx",
            profiles='{"x": [[1, 8], [2, 8], [4, 8]]}',
            timeout=None,
        )
        assert built["status"] == "succeeded"

    run(main, root)


@shared
def test_hostile_names_are_only_names(root: Path) -> None:
    data = models.evil_mlp().SerializeToString()
    names = ["a\nb.onnx", "\u202egnp.onnx", "$(touch x);.onnx", "-o.onnx", "名.onnx", "%s%n.onnx"]
    for name in names:
        (root / name).write_bytes(data)
    # A name that is no UTF-8 cannot be written in JSON; its neighbours can be built.
    (root / os.fsdecode(b"\xff.onnx")).write_bytes(data)
    made = models.mlp()
    made.graph.input[0].name = made.graph.node[0].input[0] = "x\u202e\x1b[31m\n" + "y" * 3_000
    (root / "named.onnx").write_bytes(made.SerializeToString())

    async def main(client: Client) -> None:
        for name in names:
            assert (await call(client, "inspect_model", model=name))["model"] == name
        built = await call(client, "build_engine", model="a\nb.onnx")
        assert built["engine"] == "a\nb.engine"
        assert await refused(client, "inspect_model", model="\ufffd.onnx")
        said = await call(client, "inspect_model", model="named.onnx")
        assert all(sign.isprintable() for sign in said["inputs"][0]["name"])

    run(main, root)
    assert not (root / "x").exists()


HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "by hand", "version": "0"},
}


def request(number: int, method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


def test_nothing_but_the_protocol_is_on_stdout(root: Path) -> None:
    """A client of the older protocol, by hand: garbage in between is answered or ignored."""
    wanted = {
        "name": "build_engine",
        "arguments": {"model": "mlp.onnx"},
        "_meta": {"progressToken": "p"},
    }
    lines = [
        request(1, "initialize", HELLO),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b"this is no JSON",
        b"\xff\xfe\x00",
        b"[]",
        request(2, "no/such/method", {}),
        request(3, "tools/call", {"name": 7}),
        request(4, "tools/call", {"name": "build_engine", "arguments": "text"}),
        b'{"junk":"' + b"x" * 1_000_000 + b'"}',
        b"[" * 100_000,
        request(5, "tools/call", wanted),
    ]
    with subprocess.Popen(
        command(root, "--configure", "tests.surfaces.test_mcp:configure_noisily"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        answers: dict[Any, Any] = {}
        while 5 not in answers:
            message = json.loads(server.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            answers[message.get("id", message.get("method"))] = message
        server.stdin.close()
        assert server.stdout.read() == b""
        assert server.wait(SOON) == 0
    assert answers[1]["result"]["protocolVersion"] == "2025-06-18"
    assert answers[1]["result"]["serverInfo"]["name"] == "trt-widget"
    assert {2, 3, 4} <= {number for number, answer in answers.items() if "error" in answer}
    assert answers[5]["result"]["structuredContent"]["status"] == "succeeded"
    assert answers["notifications/progress"]["params"]["progressToken"] == "p"


def test_a_model_of_many_inputs_is_a_small_answer(root: Path) -> None:
    names = [f"in{index}" + "n" * 50 for index in range(3_000)]
    inputs = [(name, 1, ["d" * 200, "e" * 200]) for name in names]
    nodes = [
        onnx.helper.make_node("Relu", [name], [f"out{index}"]) for index, name in enumerate(names)
    ]
    made = models.model(nodes, inputs, [(f"out{at}", 1, ["d", "e"]) for at in range(3_000)])
    (root / "many.onnx").write_bytes(made.SerializeToString())

    async def main(client: Client) -> None:
        said = await call(client, "inspect_model", model="many.onnx")  # it checks the size
        assert [one["name"] for one in said["inputs"]] == names[: len(said["inputs"])]
        assert len(said["inputs"]) + said["more_inputs"] == 3_000
        assert len(said["profile_example"]) + said["more_profiled"] == 3_000
        assert (said["nodes"], said["operators"]) == (3_000, [{"name": "Relu", "count": 3_000}])

    run(main, root)


@contextlib.contextmanager
def by_hand(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server and greet it."""
    with subprocess.Popen(
        command(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(request(0, "initialize", HELLO) + b"\n")
            server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            server.stdin.flush()
            assert json.loads(server.stdout.readline())["id"] == 0
            yield server
        finally:
            server.kill()


def test_a_request_that_cannot_be_read_is_answered(root: Path) -> None:
    begun = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"inspect_model",'
    lines: list[tuple[bytes, Any, int]] = [
        (begun % 6 + b'"arguments":{"model":"\\ud800"}}}', 6, -32700),
        (begun % 7 + b'"arguments":' + b"[" * 5_000 + b"]" * 5_000 + b"}}", 7, -32700),
        (begun % 8 + b'"arguments":{"model":' + b"1" * 6_000 + b"}}}", 8, -32700),
        (b'{"method":"a","id":"b","params":{"\\ud800":1},"jsonrpc":"2.0"}', "b", -32700),
        (b"{broken", None, -32700),
        (b"[]", None, -32600),
        (b'{"jsonrpc":"1.0","id":9,"method":"tools/list"}', 9, -32600),
        (b'{"jsonrpc":"2.0","id":10,"method":7}', 10, -32600),
        (b'{"jsonrpc":"2.0","id":11,"method":"tools/list","params":[1]}', 11, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', None, -32600),
        # These must not be answered, and are not: the next answer is that to the request after.
        (b'{"jsonrpc":"2.0","method":"notifications/x","params":[1]}', ..., 0),
        (b'{"jsonrpc":"2.0","id":12,"result":5}', ..., 0),
        (b"  \r", ..., 0),
        (b'{"jsonrpc":"2.0","id":13,"method":"no/such/method"}', 13, -32601),
    ]
    with by_hand(root) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for data, number, code in lines:
            server.stdin.write(data + b"\n")
            server.stdin.flush()
            if number is not ...:
                answer = json.loads(server.stdout.readline())
                assert answer["id"] == number, data[:60]
                assert answer["error"]["code"] == code, data[:60]
                assert answer["error"]["message"]


def test_a_line_without_end_is_not_kept(root: Path) -> None:
    with by_hand(root) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        before = psutil.Process(server.pid).memory_info().rss
        for _ in range(100):
            server.stdin.write(b"x" * 1_000_000)
        server.stdin.write(b"\n" + request(1, "no/such/method", {}) + b"\n")
        server.stdin.flush()
        first, second = (json.loads(server.stdout.readline()) for _ in range(2))
        assert (first["id"], first["error"]["code"]) == (None, -32700)
        assert str(MAX_LINE) in first["error"]["message"]
        assert second["id"] == 1
        assert psutil.Process(server.pid).memory_info().rss < before + 6 * MAX_LINE


def test_a_client_that_reads_nothing_has_to_wait(root: Path) -> None:
    """And it gets all answers once it reads; what it sends in between costs no memory."""
    count = 250
    with by_hand(root) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin = server.stdin
        sent: list[int] = []
        long = {"_meta": {"x": "y" * 2_000}}  # so that a pipe holds few

        def send() -> None:
            with contextlib.suppress(OSError):
                for number in range(1, count + 1):
                    stdin.write(request(number, "tools/list", long) + b"\n")
                    stdin.flush()
                    sent.append(number)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        before = -1
        while before < len(sent) or not sent:
            before = len(sent)
            time.sleep(1.0)
        # What the pipe holds, the server's buffers, and so many that it has begun with.
        assert len(sent) < count
        answers = [json.loads(server.stdout.readline()) for _ in range(count)]
        assert sorted(answer["id"] for answer in answers) == list(range(1, count + 1))
        assert all("result" in answer for answer in answers)
        thread.join(SOON)


def test_a_signal_ends_a_server_whose_answers_nobody_reads(root: Path) -> None:
    started = {"name": "start_build", "arguments": {"model": "long.onnx", "grace": 30}}
    with by_hand(root) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(request(1, "tools/call", started) + b"\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        deadline = time.monotonic() + SOON
        while not (processes := builds()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for number in range(2, 42):  # a pipe holds the answers to a few
            server.stdin.write(request(number, "tools/list", {}) + b"\n")
        server.stdin.flush()
        time.sleep(1.0)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 143  # far below the grace
        gone(processes)


def test_requests_at_a_time_are_limited_and_can_be_cancelled(root: Path) -> None:
    """Those that wait do not keep the client's cancel from being read."""
    waits = {"name": "build_status", "arguments": {"wait": 50}}
    started = {"name": "start_build", "arguments": {"model": "long.onnx", "grace": 0.1}}
    with by_hand(root) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(request(1, "tools/call", started) + b"\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1
        numbers = range(2, MAX_OPEN + 2)
        for number in [*numbers, 2]:
            server.stdin.write(request(number, "tools/call", waits) + b"\n")
        server.stdin.write(request(1_000, "ping", {}) + b"\n")
        server.stdin.flush()
        twice, more = (json.loads(server.stdout.readline()) for _ in range(2))
        assert (twice["id"], twice["error"]["code"]) == (2, -32600)
        assert (more["id"], more["error"]["code"]) == (1_000, -32010)
        for number in numbers:
            given_up = {"method": "notifications/cancelled", "params": {"requestId": number}}
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **given_up}).encode() + b"\n")
        server.stdin.write(request(1_001, "tools/list", {}) + b"\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert (answer["id"], "result" in answer) == (1_001, True)


def configure_noisily(_builder: Any, _network: Any, _config: Any) -> None:
    """Be the ``configure=`` of a build that prints where the protocol would be."""
    print("noise from Python", flush=True)
    os.write(1, b"noise from C\n")


# ---- starting -----------------------------------------------------------------------------------


def test_the_module_is_light_and_its_extra_is_named(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import argparse, sys
        sys.modules["mcp"] = None  # as if it were not installed
        from trt_widget.servers import mcp
        parser = argparse.ArgumentParser()
        mcp.add_arguments(parser)
        assert "--root" in parser.format_help()
        assert not {"pydantic", "anyio", "asyncio", "tensorrt_rtx"} & set(sys.modules)
        mcp.run(parser.parse_args([]))
    """)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert ExtraMissing.__name__ in done.stderr
    assert "trt-widget[mcp]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--root", "missing"], "missing"), (["--timeout", "-1"], "-1"), (["--timeout", "x"], "x")],
)
def test_a_server_that_cannot_start_says_why(
    arguments: list[str], word: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trt_widget", "mcp", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        cwd=tmp_path,
        input="",
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_reader_ends_the_server(root: Path) -> None:
    """A client that has stopped to read, and then leaves."""
    with subprocess.Popen(
        command(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdout.close()
        server.stdin.write(request(1, "ping", {}) + b"\n")
        server.stdin.close()
        said = server.stderr.read().decode()
        assert server.wait(SOON) == 0, said
    assert "Traceback" not in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_server_and_its_builds(root: Path, number: int, code: int) -> None:
    """Although the client says nothing and does not leave."""
    wanted = {"name": "start_build", "arguments": {"model": "long.onnx", "grace": 30}}
    with subprocess.Popen(
        command(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(request(1, "initialize", HELLO) + b"\n")
        server.stdin.write(request(2, "tools/call", wanted) + b"\n")
        server.stdin.flush()
        for _ in range(2):
            assert "result" in json.loads(server.stdout.readline())
        deadline = time.monotonic() + SOON
        while not (processes := builds()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.send_signal(number)
        assert server.wait(20) == code  # far below the grace
        gone(processes)
        assert server.stderr.read() == b""


def test_the_configuration_in_the_documentation(root: Path) -> None:
    page = (ROOT / "notebooks" / "docs" / "agents.md").read_text("utf-8")
    block = page.partition("```json\n")[2].partition("```")[0]
    ((name, server),) = json.loads(block)["mcpServers"].items()
    assert (name, server["command"]) == ("trt-widget", "trt-widget")
    arguments = [str(root) if word == "/path/to/models" else word for word in server["args"]]
    assert [*command(root)[3:]] == arguments  # so this is what all tests here start
    for argument in _TO_BUILD:
        assert f"`{argument}`" in page
    described = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(TOOLS) <= set(described)
