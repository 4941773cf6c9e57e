"""An editor for the tests: pygls' own client, which keeps every message, and a checker of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from trt_widget.servers._tokens import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from typing_extensions import Self

ROOT = Path(__file__).parents[2]
#: How long something that comes for certain may take on a busy machine, in seconds.
SOON = 60.0


def command(*arguments: str) -> list[str]:
    """Give the command that starts a server."""
    return [sys.executable, "-m", "trt_widget", "lsp", *arguments]


def environment(**more: str) -> dict[str, str]:
    """Give the environment of a server; the functions of --configure are found in it."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TRT_WIDGET_HISTORY": "off", **more}


@dataclass
class Progress:
    """What was told of one token, in order."""

    token: Any
    created: int = -1
    began: int = -1
    ended: int = -1
    title: str = ""
    percentages: list[int] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class Editor:
    """A client and the server that it has started.

    Parameters
    ----------
    *arguments
        Of ``trt-widget lsp``.
    progress
        Whether it says that it shows progress.
    grants
        Whether it takes a token.
    environment
        More variables.
    process_id
        The process that it claims to be.
    """

    def __init__(
        self,
        *arguments: str,
        progress: bool = True,
        grants: bool = True,
        process_id: int | None = None,
        **more: str,
    ) -> None:
        self.client = LanguageClient("trt_widget's tests", "1")
        #: (seconds, method, parameters) in order; answers are put in by `build`.
        self.messages: list[tuple[float, str, Any]] = []
        self.diagnostics: dict[str, list[types.Diagnostic]] = {}
        self.stderr = ""
        self._arguments = arguments
        self._progress = progress
        self._grants = grants
        self._process_id = process_id
        self._more = more
        self._news = asyncio.Event()
        self._left = False
        for method in (
            types.WINDOW_WORK_DONE_PROGRESS_CREATE,
            types.PROGRESS,
            types.WINDOW_LOG_MESSAGE,
            types.WINDOW_SHOW_MESSAGE,
            types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS,
        ):
            self.client.feature(method)(self._recorder(method))

    def _recorder(self, method: str) -> Callable[[Any], None]:
        def record(params: Any) -> None:
            self.note(method, params)
            if method == types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS:
                self.diagnostics[params.uri] = list(params.diagnostics)
            if method == types.WINDOW_WORK_DONE_PROGRESS_CREATE and not self._grants:
                raise JsonRpcException("no room")

        return record

    def note(self, method: str, params: Any) -> None:
        self.messages.append((time.monotonic(), method, params))
        self._news.set()

    async def __aenter__(self) -> Self:
        first, *rest = command(*self._arguments)
        await self.client.start_io(first, *rest, env=environment(**self._more), cwd=ROOT)
        self._reader = asyncio.create_task(self._read_stderr())
        window = types.WindowClientCapabilities(work_done_progress=self._progress)
        self.capabilities = (
            await self.client.initialize_async(
                types.InitializeParams(
                    capabilities=types.ClientCapabilities(window=window),
                    process_id=self._process_id,
                )
            )
        ).capabilities
        self.client.initialized(types.InitializedParams())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._left:
                assert await self.leave() == 0, self.stderr
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.server.kill()
            await self.server.wait()
            await self._reader
            await self.client.stop()
        assert "Traceback" not in self.stderr, self.stderr

    @property
    def server(self) -> asyncio.subprocess.Process:
        assert self.client._server is not None
        return self.client._server

    async def leave(self) -> int:
        """Say goodbye; give the exit code."""
        self._left = True
        await asyncio.wait_for(self.client.shutdown_async(None), SOON)
        self.note("shutdown", None)
        self.client.exit(None)
        return await asyncio.wait_for(self.server.wait(), SOON)

    async def _read_stderr(self) -> None:
        assert self.server.stderr is not None
        self.stderr = (await self.server.stderr.read()).decode()

    # ------------------------------------------------------------------ what it asks for

    def ask(
        self, name: str, *arguments: Any, under: int | str | None = None
    ) -> asyncio.Future[Any]:
        """Send a command, perhaps with a token for its progress."""
        params = types.ExecuteCommandParams(name, list(arguments), work_done_token=under)
        return asyncio.ensure_future(self.client.workspace_execute_command_async(params))

    async def build(self, *arguments: Any, under: int | str | None = None) -> dict[str, Any]:
        """Build, and wait for the answer."""
        answer = await asyncio.wait_for(self.ask("trtWidget.build", *arguments, under=under), SOON)
        self.note("answer", answer)
        assert isinstance(answer, dict)
        return answer

    def cancel(self, token: int | str) -> None:
        """Be the user who clicks Cancel on one of the progresses."""
        self.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token))

    # ------------------------------------------------------------------ what it was told

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait for what a message brings."""

        async def wait() -> Any:
            while not (value := found()):
                self._news.clear()
                await self._news.wait()
            return value

        return await asyncio.wait_for(wait(), SOON)

    def told(self, method: str) -> list[Any]:
        """Give the parameters of the messages of one kind."""
        return [params for _, kind, params in self.messages if kind == method]

    def position(self, method: str) -> int:
        """Give the place of the only message of one kind."""
        (place,) = (index for index, (_, kind, _) in enumerate(self.messages) if kind == method)
        return place

    def progress(self) -> dict[Any, Progress]:
        """Give what was told of each token; every rule about one token alone is checked."""
        found: dict[Any, Progress] = {}
        for index, (_, method, params) in enumerate(self.messages):
            if method == types.WINDOW_WORK_DONE_PROGRESS_CREATE:
                assert params.token not in found
                found[params.token] = Progress(params.token, created=index)
            elif method == types.PROGRESS:
                one = found.setdefault(params.token, Progress(params.token))
                self._take(one, index, params.value)
        return found

    @staticmethod
    def _take(one: Progress, index: int, value: Any) -> None:
        assert one.ended < 0, "something came after the end"
        kind = value["kind"]
        if kind == "begin":
            assert one.began < 0, "a second begin"
            one.began, one.title = index, value["title"]
        assert one.began >= 0, "something came before the begin"
        if kind == "end":
            one.ended = index
        else:
            assert value["cancellable"] is True
            percentage = value.get("percentage")
            if percentage is not None:
                assert 0 <= percentage <= 100
                one.percentages.append(percentage)
                one.shares.append(index)
        if value.get("message"):
            one.texts.append(value["message"])


class Shared:
    """An editor for many tests, in an event loop that runs while one of them does."""

    def __init__(self, *arguments: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._editor = Editor(*arguments)

    def __enter__(self) -> Self:
        self._loop.run_until_complete(asyncio.wait_for(self._editor.__aenter__(), SOON))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._editor.__aexit__())
        self._loop.close()

    def run(self, scenario: Callable[[Editor], Coroutine[Any, Any, None]]) -> None:
        """Run a test that begins as if nothing had been told, and leaves no build."""
        self._editor.messages.clear()
        self._editor.diagnostics.clear()
        whole = asyncio.wait_for(scenario(self._editor), 2 * SOON)
        self._loop.run_until_complete(whole)
        server = psutil.Process(self._editor.server.pid)
        wait_for(lambda: not alive(server.children(recursive=True)))


def check(progress: dict[Any, Progress], outermost: Any, *, names: str) -> list[Progress]:
    """Check the order, the nesting and the balance of one build's tokens; give the phases' ones.

    Parameters
    ----------
    outermost
        The token of the build itself.
    names
        What the build is called in titles.
    """
    own = progress[outermost]
    assert own.title == f"Building {names}"
    phases = [one for one in progress.values() if one.title.startswith(f"{names}: ")]
    for one in [own, *phases]:
        assert 0 <= one.began < one.ended, f"{one.title} is not balanced"
        assert one.percentages == sorted(one.percentages)
    for one in phases:
        assert 0 <= one.created < one.began, "a token that nobody has granted"
        assert one.shares[:1] in ([], [one.began]), "a percentage only after the begin"
        assert own.began < one.began
        assert one.ended < own.ended
        *above, _ = one.title.removeprefix(f"{names}: ").split(" > ")
        if above:
            around = [
                other
                for other in phases
                if other.title.split(": ", 1)[1].split(" > ")[-1] == above[-1]
                and len(other.title.split(" > ")) == len(above)
                and other.began < one.began
                and one.ended < other.ended
            ]
            assert len(around) == 1, f"{one.title} is not inside its parent"
    for one in phases:
        open_then = [other for other in phases if other.began <= one.began < other.ended]
        assert len(open_then) <= MAX_TOKENS
    return phases


class Wire:
    """A client that writes bytes, for what no proper client would send."""

    def __init__(self, *arguments: str, **more: str) -> None:
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**more),
            cwd=ROOT,
        )
        self._id = 0
        self._kept: list[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        if self.process.stdin is not None and self.process.stdin.closed:
            self.process.stdin = None
        self.process.communicate()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Write all that is sent meanwhile at once, so that the server reads it at once."""
        kept: list[bytes] = []
        self._kept = kept
        yield
        self._kept = None
        data = b"".join(kept)
        assert len(data) < select.PIPE_BUF  # more may be read in pieces
        self.send(data)

    def send(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept.append(data)
            return
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def message(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send(b"Content-Length: %d\r\n\r\n" % len(data) + data)

    def notify(self, method: str, params: object) -> None:
        self.message({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, method: str, params: object = None, **more: object) -> int:
        self._id += 1
        self.message({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params, **more})
        return self._id

    def read(self) -> dict[str, Any]:
        """Give the next message of the server."""
        assert self.process.stdout is not None
        length = 0
        while (header := self.process.stdout.readline()) != b"\r\n":
            assert header.startswith(b"Content-"), header  # else it has left, or something printed
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        found = json.loads(self.process.stdout.read(length))
        assert isinstance(found, dict)
        return found

    def answer(self, number: int | None) -> dict[str, Any]:
        """Give the answer to a request, and forget what comes before it."""
        while True:
            message = self.read()
            if "method" not in message and message.get("id") == number:
                return message

    def initialize(self, **window: bool) -> dict[str, Any]:
        params: dict[str, object] = {"processId": None, "rootUri": None}
        number = self.request("initialize", {**params, "capabilities": {"window": window}})
        found: dict[str, Any] = self.answer(number)["result"]
        return found

    def execute(self, name: str, *arguments: object, **more: object) -> int:
        params = {"command": name, "arguments": arguments, **more}
        return self.request("workspace/executeCommand", params)


def wait_for(condition: Callable[[], object], seconds: float = SOON) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def alive(processes: Sequence[Any]) -> list[Any]:
    """Give those of psutil's processes that still run."""
    return [one for one in processes if one.is_running() and one.status() != "zombie"]
