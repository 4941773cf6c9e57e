"""``trt-widget lsp``: a real server, pygls' own client, real builds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import psutil
import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from tests import models
from tests.surfaces.editor import (
    SOON,
    Editor,
    Shared,
    Wire,
    alive,
    check,
    command,
    environment,
    wait_for,
)
from trt_widget.servers._frames import MAX_MESSAGE, Channel
from trt_widget.servers._language import _Server
from trt_widget.servers.builds import Builds

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

SLOWLY = ("--configure", "tests.models:configure_slowly")
LOG = types.WINDOW_LOG_MESSAGE
INVALID, FAILED, CANCELLED = -32602, -32803, -32800
#: What nobody should name a phase: a terminal's sequences, lines, a link, a right-to-left mark.
HOSTILE = "\x1b[31mred\x07\r\n[click](command:evil) \u202etxt.exe \ud800 " + "long" * 500


def configure_hostile(_builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build in which phases of hostile names are open for a while."""
    import tensorrt_rtx as trt

    class Hostile(trt.IProgressMonitor):  # type: ignore[misc]
        begun = False

        def phase_start(self, *_: Any) -> None:
            if self.begun:
                return
            self.begun = True
            ours = config.progress_monitor
            ours.phase_start(HOSTILE, None, -3)
            ours.phase_start(HOSTILE + "inside", HOSTILE, 7)
            time.sleep(1.5)
            ours.phase_finish(HOSTILE + "inside")
            ours.phase_finish(HOSTILE)

        def phase_finish(self, *_: Any) -> None:
            pass

        def step_complete(self, *_: Any) -> bool:
            return True

    config.progress_monitor = Hostile()


class Noisy:
    """A ``configure=`` that prints where it runs, and in the server while it is packed for it."""

    def __call__(self, *_: Any) -> None:
        print("noise in the child", flush=True)
        os.write(1, b"more noise in the child\n")

    def __reduce__(self) -> tuple[Any, ...]:
        print("noise in the server", flush=True)
        os.write(1, b"more noise in the server\n")
        return (Noisy, ())


configure_noisily = Noisy()


def configure_counted(*_: Any) -> None:
    """Be the ``configure=`` of builds that leave a line each in a file."""
    with Path(os.environ["BUILDS_COUNTED"]).open("a") as file:
        file.write("a build\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of models."""
    made = tmp_path_factory.mktemp("a folder of models")
    for name, model in {
        "mlp": models.mlp(),
        "odd": models.unknown_operators("Nope"),
        "gap": models.transformer(24),
        "middle": models.transformer(12),
    }.items():
        onnx.save(model, str(made / f"{name}.onnx"))
    return made


@pytest.fixture(scope="module")
def plain() -> Iterator[Shared]:
    """Give an editor whose server was given no arguments."""
    with Shared() as shared:
        yield shared


@pytest.fixture(scope="module")
def slow() -> Iterator[Shared]:
    """Give an editor whose builds take long."""
    with Shared(*SLOWLY) as shared:
        yield shared


def uri(folder: Path, name: str) -> str:
    return (folder / f"{name}.onnx").as_uri()


def resnet() -> str:
    return models.light_model("resnet50").as_uri()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * SOON))


def children(editor: Editor) -> list[psutil.Process]:
    """Give the processes that the server has started."""
    found: list[psutil.Process] = psutil.Process(editor.server.pid).children(recursive=True)
    return found


# ------------------------------------------------------------------ a build that goes well


def test_success_with_the_clients_token(plain: Shared, folder: Path, tmp_path: Path) -> None:
    engine = tmp_path / "an engine.plan"

    async def scenario(editor: Editor) -> None:
        commands = editor.capabilities.execute_command_provider
        assert commands is not None
        assert commands.work_done_progress is True
        assert list(commands.commands) == ["trtWidget.build", "trtWidget.cancel"]
        documents = editor.capabilities.text_document_sync
        assert isinstance(documents, types.TextDocumentSyncOptions)
        assert not documents.open_close
        options = {"output": engine.as_uri(), "name": "mine", "optimization_level": 2}
        answer = await editor.build(uri(folder, "gap"), options, under=7)
        assert answer["status"] == "succeeded"
        assert answer["uri"] == uri(folder, "gap")
        assert answer["engine_bytes"] == engine.stat().st_size
        assert {row["path"] for row in answer["phases"]} >= {"Building engine"}
        progress = editor.progress()
        phases = check(progress, 7, names="mine")
        assert progress[7].created < 0  # nobody asks for what was given
        assert [one for one in phases if one.title == "mine: Building engine"]
        assert any(one.title.startswith("mine: … > ") for one in phases)
        assert progress[7].ended < editor.position("answer")  # a token is good until the answer
        assert editor.diagnostics == {uri(folder, "gap"): []}
        assert not editor.told(types.WINDOW_SHOW_MESSAGE)

    plain.run(scenario)


def test_a_build_without_a_token_is_answered_at_once(slow: Shared, folder: Path) -> None:
    async def scenario(editor: Editor) -> None:
        answer = await editor.build(resnet())
        assert set(answer) == {"id", "uri", "status"}
        assert answer["status"] in {"pending", "running"}
        own = await editor.until(
            lambda: [
                one
                for one in editor.progress().values()
                if one.title == "Building light_resnet50.onnx"
            ]
        )
        assert own[0].created >= 0
        await editor.until(lambda: len(editor.progress()) > 1)
        assert await editor.ask("trtWidget.cancel", answer["id"]) is True
        await editor.until(lambda: editor.progress()[own[0].token].ended > 0)
        assert await editor.ask("trtWidget.cancel", answer["id"]) is False
        check(editor.progress(), own[0].token, names="light_resnet50.onnx")
        # "wait" asks for the outcome without a token.
        answer = await editor.build(uri(folder, "odd"), {"wait": True})
        assert answer["status"] == "failed"

    slow.run(scenario)


def test_the_second_build_has_a_percentage(folder: Path, tmp_path: Path) -> None:
    """It stays where it is while the build is being cancelled."""

    async def scenario() -> None:
        history = str(tmp_path / "history.sqlite")
        async with Editor(TRT_WIDGET_HISTORY=history) as editor:
            await editor.build(uri(folder, "gap"), under="first")
            build = asyncio.ensure_future(editor.build(uri(folder, "gap"), {"grace": 1.0}, under=2))
            await editor.until(lambda: silent(editor))
            editor.cancel(2)
            assert (await build)["status"] == "cancelled"
        progress = editor.progress()
        assert progress["first"].percentages == []
        shown = progress[2].percentages
        assert len(shown) > 1
        assert shown == sorted(shown)
        assert any(" left" in text for text in progress[2].texts)
        told = [
            (params.value.get("message", ""), params.value.get("percentage"))
            for params in editor.told(types.PROGRESS)
            if params.token == 2
        ]
        begun = [text for text, _ in told].index("cancelling at TensorRT's next step, or in 1 s")
        assert {share for _, share in told[begun:-1]} == {told[begun - 1][1]}

    def silent(editor: Editor) -> bool:
        latest = [text for one in editor.progress().values() for text in one.texts[-1:]]
        return any("no callback for" in text for text in latest)

    run(scenario())


def test_two_builds_at_once(slow: Shared, folder: Path) -> None:
    async def scenario(editor: Editor) -> None:
        first = asyncio.ensure_future(editor.build(resnet(), {"name": "first"}, under="one"))
        await editor.until(lambda: "one" in editor.progress())
        second = asyncio.ensure_future(
            editor.build(uri(folder, "mlp"), {"name": "second"}, under="two")
        )
        await editor.until(lambda: "two" in editor.progress() and editor.progress()["two"].texts)
        assert editor.progress()["two"].texts == ["waits for first"]
        third = asyncio.ensure_future(
            editor.build(uri(folder, "mlp"), {"name": "third"}, under="three")
        )
        await editor.until(lambda: "three" in editor.progress())
        editor.cancel("three")  # it has not begun, and the others go on
        assert (await third)["status"] == "cancelled"
        assert not first.done()
        editor.cancel("one")
        assert (await first)["status"] == "cancelled"
        assert (await second)["status"] == "succeeded"
        progress = editor.progress()
        for token, name in (("one", "first"), ("two", "second"), ("three", "third")):
            check(progress, token, names=name)

    slow.run(scenario)


# ------------------------------------------------------------------ cancel


def test_cancel_by_the_token_of_a_phase(slow: Shared, folder: Path) -> None:
    async def scenario(editor: Editor) -> None:
        build = asyncio.ensure_future(editor.build(resnet(), under="own"))
        inner = await editor.until(
            lambda: [one for one in editor.progress().values() if " > " in one.title]
        )
        editor.cancel(inner[0].token)
        answer = await build
        assert (answer["status"], answer["reason"]) == ("cancelled", "user")
        assert answer["result"]["ended_by"] == "step"
        check(editor.progress(), "own", names="light_resnet50.onnx")
        assert editor.progress()["own"].texts[-1].startswith("cancelled after ")
        assert not any(editor.diagnostics.values())
        editor.cancel("own")  # late, unknown: nothing happens
        editor.cancel("nobody's")
        assert (await editor.build(uri(folder, "odd"), {"wait": True}))["status"] == "failed"

    slow.run(scenario)


def test_cancel_in_the_silent_gap(plain: Shared, folder: Path) -> None:
    async def scenario(editor: Editor) -> None:
        build = asyncio.ensure_future(editor.build(uri(folder, "gap"), {"grace": 0.2}, under="own"))
        await editor.until(
            lambda: [
                one
                for one in editor.progress().values()
                if any("no callback for" in text for text in one.texts)
            ]
        )
        editor.cancel("own")
        answer = await build
        assert answer["status"] == "cancelled"
        assert answer["result"]["ended_by"] in {"terminated", "killed"}
        phases = check(editor.progress(), "own", names="gap.onnx")
        assert {one.texts[-1] for one in phases if one.texts} >= {"cancelled"}
        assert not children(editor)

    plain.run(scenario)


def test_giving_up_the_request_cancels(slow: Shared) -> None:
    async def scenario(editor: Editor) -> None:
        params = types.ExecuteCommandParams("trtWidget.build", [resnet()], "own")
        answer = editor.client.protocol.send_request_async(
            types.WORKSPACE_EXECUTE_COMMAND, params, msg_id="the request"
        )
        await editor.until(lambda: "own" in editor.progress())
        editor.client.cancel_request(types.CancelParams("the request"))
        with pytest.raises(JsonRpcException) as caught:
            await answer
        assert caught.value.code == CANCELLED
        check(editor.progress(), "own", names="light_resnet50.onnx")
        assert not children(editor)

    slow.run(scenario)


# ------------------------------------------------------------------ failure


def test_a_failure_is_a_diagnostic_until_the_next_build(plain: Shared, tmp_path: Path) -> None:
    model = tmp_path / "a model.onnx"
    onnx.save(models.unknown_operators("Nope"), str(model))

    async def scenario(editor: Editor) -> None:
        answer = await editor.build(model.as_uri(), under="own")
        assert answer["status"] == "failed"
        assert answer["error"]["class"] == "ParseFailed"
        (diagnostic,) = editor.diagnostics[model.as_uri()]
        assert diagnostic.severity == types.DiagnosticSeverity.Error
        assert (diagnostic.source, diagnostic.code) == ("trt-widget", "ParseFailed")
        for part in (answer["error"]["cause"], answer["error"]["remedy"], "odd0"):
            assert part in diagnostic.message
        assert any(line in diagnostic.message for line in answer["error"]["evidence"])
        (shown,) = editor.told(types.WINDOW_SHOW_MESSAGE)
        assert shown.type == types.MessageType.Error
        assert shown.message == f"The build of a model.onnx failed: {answer['error']['cause']}"
        check(editor.progress(), "own", names="a model.onnx")
        assert editor.progress()["own"].ended < editor.position("answer")
        # The same file, mended.
        onnx.save(models.mlp(), str(model))
        assert (await editor.build(model.as_uri(), {"wait": True}))["status"] == "succeeded"
        assert editor.diagnostics == {model.as_uri(): []}

    plain.run(scenario)


def test_a_model_that_is_not_there_is_its_diagnostic(plain: Shared, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"

    async def scenario(editor: Editor) -> None:
        with pytest.raises(JsonRpcException, match="There is no file"):
            await editor.build(model.as_uri(), under="own")
        (diagnostic,) = editor.diagnostics[model.as_uri()]
        assert diagnostic.code == "SourceError"
        assert not editor.told(types.WINDOW_SHOW_MESSAGE)
        assert not editor.progress()
        onnx.save(models.mlp(), str(model))
        # The token is free again, since nothing was told of it.
        assert (await editor.build(model.as_uri(), under="own"))["status"] == "succeeded"
        assert editor.diagnostics == {model.as_uri(): []}

    plain.run(scenario)


def test_a_crash_is_a_failure_and_the_server_goes_on(folder: Path) -> None:
    async def scenario() -> None:
        async with Editor("--configure", "tests.models:configure_crash") as editor:
            for token in ("one", "two"):
                answer = await editor.build(uri(folder, "mlp"), {"name": token}, under=token)
                assert answer["status"] == "failed"
                assert answer["error"]["signal"] == "SIGSEGV"
                (diagnostic,) = editor.diagnostics[uri(folder, "mlp")]
                assert diagnostic.code == "BuildCrashed"
                assert answer["error"]["cause"] in diagnostic.message
                check(editor.progress(), token, names=token)

    run(scenario())


@pytest.mark.parametrize(
    ("arguments", "class_", "said"),
    [
        ((), "RequestError", "takes one or two arguments, not 0"),
        ((1, {}, 3), "RequestError", "takes one or two arguments, not 3"),
        ((5,), "RequestError", "it is no text"),
        (("/model.onnx",), "RequestError", "its scheme is not file:"),
        (("https://host/model.onnx",), "RequestError", "its scheme is not file:"),
        (("file://elsewhere/model.onnx",), "RequestError", "another machine"),
        (("file:///a%00b.onnx",), "RequestError", "NUL"),
        (("file:///a#b.onnx",), "RequestError", "fragment"),
        (("MODEL", "fast"), "RequestError", "must be an object"),
        (("MODEL", {"optimisation_level": 3}), "RequestError", "Did you mean 'optimization_level'"),
        (("MODEL", {"bogus": 1}), "RequestError", "timing_cache, backend, output, name, wait."),
        (("MODEL", {"wiat": True}), "RequestError", "Did you mean 'wait'"),
        (("MODEL", {"configure": "os:system"}), "RequestError", "not for requests"),
        (("MODEL", {"optimization_level": 99}), "OptionError", "optimization_level"),
        (("MODEL", {"profiles": {"x": [1]}}), "ProfileError", "x"),
        (("MODEL", {"wait": 1}), "RequestError", "wait must be true or false"),
        (("MODEL", {"name": 1}), "RequestError", "name must be a text"),
        (("MODEL", {"output": "engine.plan"}), "RequestError", "URI of output"),
        (("MODEL", {"jsonrpc": "2.0"}), "RequestError", "no option 'jsonrpc'"),
        (("file:///nowhere/model.onnx",), "SourceError", "There is no file"),
    ],
)
def test_wrong_arguments_are_typed_errors(
    editor: Wire, folder: Path, arguments: tuple[Any, ...], class_: str, said: str
) -> None:
    given = [uri(folder, "mlp") if one == "MODEL" else one for one in arguments]
    error = editor.answer(editor.execute("trtWidget.build", *given))["error"]
    assert error["code"] == INVALID
    assert error["data"]["class"] == class_
    assert said in error["message"]
    assert error["data"]["cause"]
    assert error["data"]["remedy"]


@pytest.fixture(scope="module")
def editor() -> Any:
    """Give a server that takes any number of wrong requests."""
    with Wire() as wire:
        wire.initialize()
        yield wire


def test_wrong_tokens_ids_and_commands(editor: Wire, folder: Path) -> None:
    model = uri(folder, "mlp")
    number = editor.execute("trtWidget.build", model, workDoneToken={"a": [1]})
    assert "workDoneToken" in editor.answer(number)["error"]["message"]
    for arguments in ([], ["no such build"], [5], [None], [{}], ["a", "b"]):
        error = editor.answer(editor.execute("trtWidget.cancel", *arguments))["error"]
        assert error["code"] == INVALID
        assert error["data"]["remedy"]
    number = editor.execute("trtWidget.cancel", "no such build")
    assert "trtWidget.build has answered" in editor.answer(number)["error"]["message"]
    assert editor.answer(editor.execute("rm"))["error"]["code"] == INVALID
    # Nobody has built anything so far.
    assert not psutil.Process(editor.process.pid).children()


def test_a_full_queue_is_not_the_requests_fault() -> None:
    with Wire(*SLOWLY) as wire:
        wire.initialize()
        numbers = [wire.execute("trtWidget.build", resnet()) for _ in range(18)]
        for number in numbers[:-1]:
            assert wire.answer(number)["result"]["id"]
        error = wire.answer(numbers[-1])["error"]
        assert error["code"] == FAILED
        assert error["data"]["class"] == "QueueFull"
        assert wire.answer(wire.request("shutdown"))["result"] is None
        assert not psutil.Process(wire.process.pid).children()


def test_a_request_that_is_given_up_at_once() -> None:
    with Wire(*SLOWLY) as wire:
        wire.initialize()
        number = wire.execute("trtWidget.build", resnet())
        wire.message({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}})
        assert wire.answer(number)["error"]["code"] == CANCELLED
        assert not psutil.Process(wire.process.pid).children()


def texts(messages: list[dict[str, Any]], method: str = LOG) -> list[str]:
    return [one["params"]["message"] for one in messages if one.get("method") == method]


def until_answer(wire: Wire, number: int) -> list[dict[str, Any]]:
    """Give what the server says up to the answer to a request."""
    messages = [wire.read()]
    while "method" in messages[-1] or messages[-1].get("id") != number:
        messages.append(wire.read())
    return messages


@pytest.mark.parametrize("more", [{}, {"wait": True}, {"wait": False}], ids=str)
@pytest.mark.parametrize("how", ["request", "token"])
def test_a_cancel_in_the_same_read(
    folder: Path, tmp_path: Path, how: str, more: dict[str, bool]
) -> None:
    """The task of the build has not begun then: it does not build, and nothing of it stays."""
    engine, built = tmp_path / "engine.plan", tmp_path / "built.txt"
    model, options = uri(folder, "mlp"), {"output": engine.as_uri(), "name": "first", **more}
    with Wire(
        "--configure", "tests.surfaces.test_lsp:configure_counted", BUILDS_COUNTED=str(built)
    ) as wire:
        wire.initialize()
        with wire.at_once():
            number = wire.execute("trtWidget.build", model, options, workDoneToken="own")
            if how == "request":
                wire.notify("$/cancelRequest", {"id": number})
            else:
                wire.notify("window/workDoneProgress/cancel", {"token": "own"})
        *told, answer = until_answer(wire, number)
        if how == "request":
            assert answer["error"]["code"] == CANCELLED
        elif more.get("wait", True):
            assert answer["result"]["status"] == "cancelled"
            assert answer["result"]["reason"] == "user"
            assert answer["result"]["result"]["ended_by"] == "before build"
        else:
            assert answer["result"]["status"] == "cancelled"
        # The same token again: it is free. The builds have their turns, so that this one is last.
        number = wire.execute("trtWidget.build", model, {"name": "second"}, workDoneToken="own")
        told += until_answer(wire, number)
        assert told.pop()["result"]["status"] == "succeeded"
        shown = [one["params"] for one in told if one.get("method") == "$/progress"]
        ended = [one for one in shown if one["value"]["kind"] == "end"]
        begun = [one["value"]["title"] for one in shown if one["value"]["kind"] == "begin"]
        assert [one["token"] for one in ended].count("own") == 2 - (more == {"wait": False})
        assert ("Building first" in begun) == (more != {"wait": False})
        first, second = (one for one in texts(told) if " after " in one)
        assert first.startswith("first: cancelled after ")
        assert second.startswith("second: succeeded after ")
        assert built.read_text() == "a build\n"
        assert not engine.exists()
        assert wire.answer(wire.request("shutdown"))["result"] is None
        assert not psutil.Process(wire.process.pid).children()


def test_of_two_builds_in_one_read_one_is_given_up(folder: Path, tmp_path: Path) -> None:
    engines = [tmp_path / f"{name}.plan" for name in ("first", "second")]
    with Wire() as wire:
        wire.initialize()
        with wire.at_once():
            first, second = (
                wire.execute(
                    "trtWidget.build", uri(folder, "mlp"), {"output": one.as_uri(), "wait": True}
                )
                for one in engines
            )
            wire.notify("$/cancelRequest", {"id": first})
        answers = {one.get("id"): one for one in until_answer(wire, second)}
        assert answers[first]["error"]["code"] == CANCELLED
        assert answers[second]["result"]["status"] == "succeeded"
        assert [one.exists() for one in engines] == [False, True]


def test_what_is_no_build_cannot_be_given_up() -> None:
    """It was answered when the cancel is read, or is shutdown, which goes on."""
    with Wire() as wire:
        with wire.at_once():
            params: dict[str, object] = {"processId": None, "rootUri": None, "capabilities": {}}
            number = wire.request("initialize", params)
            wire.notify("$/cancelRequest", {"id": number})
        assert "capabilities" in wire.answer(number)["result"]
        for name in ("trtWidget.cancel", "rm"):
            with wire.at_once():
                number = wire.execute(name, "no such build")
                wire.notify("$/cancelRequest", {"id": number})
            assert wire.answer(number)["error"]["code"] == INVALID
        with wire.at_once():
            number = wire.request("shutdown")
            wire.notify("$/cancelRequest", {"id": number})
        assert wire.answer(number)["result"] is None
        wire.message({"jsonrpc": "2.0", "method": "exit"})
        assert wire.process.wait(SOON) == 0


class Inside:
    """A server without a client: what it is told is read at once, what it answers is kept."""

    def __init__(self) -> None:
        self.answers: dict[Any, list[Any]] = {}
        self.server = _Server(Builds(None), Channel(lambda _size: b"", len), None)
        self.server.protocol.set_writer(self)
        params: dict[str, Any] = {"processId": None, "rootUri": None, "capabilities": {}}
        self.tell("initialize", params, id=0)

    def write(self, data: bytes) -> None:
        message = json.loads(data.partition(b"\r\n\r\n")[2])
        if "method" not in message:
            self.answers.setdefault(message["id"], []).append(message)

    def close(self) -> None:
        pass

    def tell(self, method: str, params: dict[str, Any] | None, **more: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        self.server.protocol.take(json.dumps(message).encode())

    def execute(self, number: int | str, name: str, *arguments: Any, **more: Any) -> None:
        params = {"command": name, "arguments": arguments, **more}
        self.tell("workspace/executeCommand", params, id=number)

    async def settled(self, number: int | str, count: int = 1) -> list[Any]:
        """Give the answers to a request when nothing is kept any more."""
        server = self.server
        deadline = time.monotonic() + SOON
        while len(self.answers.get(number, ())) < count or server.waiting or server._jobs:
            assert time.monotonic() < deadline, (self.answers.get(number), server.waiting)
            await asyncio.sleep(0.01)
        assert not server._by_token
        assert not server._handling
        return self.answers.pop(number)


def test_nothing_is_left_of_a_request_that_comes_to_nothing(folder: Path) -> None:
    model = uri(folder, "mlp")
    wrong: list[tuple[Any, ...]] = [
        (),
        (5,),
        (model, "fast"),
        (model, {"bogus": 1}),
        (model, {"wait": 1}),
        (model, {"output": "engine.plan"}),
        (model, {"optimization_level": 99}),
        ("file:///nowhere/model.onnx",),
    ]

    async def scenario() -> None:
        inside = Inside()
        server = inside.server
        # Not told to stop, given up in the same read, cancelled in the same read.
        for number, arguments in enumerate([one for one in wrong for _ in range(3)], 1):
            inside.execute(number, "trtWidget.build", *arguments, workDoneToken="own")
            assert [job.number for job in server.waiting] == [number]
            if number % 3 == 1:
                inside.tell("$/cancelRequest", {"id": number})
            if number % 3 == 2:
                inside.tell("window/workDoneProgress/cancel", {"token": "own"})
            (answer,) = await inside.settled(number)
            assert answer["error"]["code"] == INVALID
        inside.execute("a", "trtWidget.build", model, workDoneToken=[1])
        inside.tell("window/workDoneProgress/cancel", {"token": "own"})
        assert "workDoneToken" in (await inside.settled("a"))[0]["error"]["message"]
        for name in ("trtWidget.cancel", "rm"):
            inside.execute(name, name, "no such build", workDoneToken="own")
            assert not server.waiting
            assert (await inside.settled(name))[0]["error"]["code"] == INVALID
        # Refused by pygls itself, before there is a task.
        server.protocol.fm.commands["trtWidget.build"] = lambda _only: None
        inside.execute("b", "trtWidget.build", model, "too many")
        assert not server.waiting
        assert (await inside.settled("b"))[0]["error"]["code"] == INVALID
        server.builds.close()

    run(scenario())


def test_a_shutdown_in_the_same_read_leaves_nothing(folder: Path) -> None:
    model = uri(folder, "mlp")

    async def scenario() -> None:
        inside = Inside()
        inside.execute("given up", "trtWidget.build", model)
        inside.execute("early", "trtWidget.build", model, {"wait": True})
        inside.tell("shutdown", None, id="shutdown")
        inside.execute("late", "trtWidget.build", model, workDoneToken="own")
        inside.tell("$/cancelRequest", {"id": "given up"})
        for number in ("shutdown", "given up", "early", "late"):
            (answer,) = await inside.settled(number)
            if number == "shutdown":
                assert answer["result"] is None
            elif "result" in answer:
                assert answer["result"]["reason"] == "closed"
            elif answer["error"]["code"] != CANCELLED:  # the shutdown was quicker
                assert "about to end" in answer["error"]["message"]

    run(scenario())


def test_an_id_and_a_token_that_are_used_twice(folder: Path) -> None:
    """Both builds are cancelled, by the id; by the token as well, which the second may not have."""
    model = uri(folder, "mlp")

    async def scenario() -> None:
        inside = Inside()
        for _ in range(2):
            inside.execute(1, "trtWidget.build", model, {"wait": True})
        inside.tell("$/cancelRequest", {"id": 1})
        codes = [one["error"]["code"] for one in await inside.settled(1, 2)]
        assert codes == [CANCELLED, CANCELLED]
        for number in (2, 3):
            inside.execute(number, "trtWidget.build", model, workDoneToken="own")
        inside.tell("window/workDoneProgress/cancel", {"token": "own"})
        (answer,) = await inside.settled(2)
        assert answer["result"]["result"]["ended_by"] == "before build"
        assert "that of another" in (await inside.settled(3))[0]["error"]["message"]
        inside.execute(4, "trtWidget.build", model, workDoneToken="own")
        assert (await inside.settled(4))[0]["result"]["status"] == "succeeded"
        inside.server.builds.close()

    run(scenario())


def test_a_token_of_another_build_is_refused(slow: Shared, folder: Path) -> None:
    async def scenario(editor: Editor) -> None:
        first = asyncio.ensure_future(editor.build(resnet(), under="own"))
        await editor.until(lambda: "own" in editor.progress())
        with pytest.raises(JsonRpcException, match="that of another build"):
            await editor.build(uri(folder, "mlp"), under="own")
        editor.cancel("own")
        assert (await first)["status"] == "cancelled"
        check(editor.progress(), "own", names="light_resnet50.onnx")

    slow.run(scenario)


def test_models_and_engines_stay_below_the_root(folder: Path, tmp_path: Path) -> None:
    onnx.save(models.mlp(), str(tmp_path / "inside.onnx"))
    (tmp_path / "link.onnx").symlink_to(folder / "mlp.onnx")
    inside, outside = (tmp_path / "inside.onnx").as_uri(), folder / "engine.plan"

    async def scenario() -> None:
        async with Editor("--root", str(tmp_path)) as editor:
            way_out = f"{tmp_path.as_uri()}/%2E%2E/{folder.name}/mlp.onnx".replace(" ", "%20")
            for wrong in (uri(folder, "mlp"), (tmp_path / "link.onnx").as_uri(), way_out):
                with pytest.raises(JsonRpcException, match="leads out of the folder") as caught:
                    await editor.build(wrong, {"wait": True})
                assert caught.value.code == INVALID
                assert caught.value.data["class"] == "PathRefused"
            with pytest.raises(JsonRpcException, match="leads out of the folder"):
                await editor.build(inside, {"output": outside.as_uri()})
            assert not outside.exists()
            assert (await editor.build(inside, {"wait": True}))["status"] == "succeeded"

    run(scenario())


# ------------------------------------------------------------------ other clients


def test_a_client_without_progress(folder: Path) -> None:
    async def scenario() -> None:
        async with Editor(progress=False) as editor:
            answer = await editor.build(uri(folder, "middle"), {"wait": True})
            assert answer["status"] == "succeeded"
            assert not editor.progress()
            lines = [one.message for one in editor.told(types.WINDOW_LOG_MESSAGE)]
            assert all(one.startswith("middle.onnx: ") for one in lines)
            assert lines[-1].startswith("middle.onnx: succeeded after ")
            assert len(lines) <= 3 + answer["elapsed_s"] / 2  # one each two seconds
            # What it asks for it gets: the token of the request, and no other.
            await editor.build(uri(folder, "middle"), under="own")
            (own,) = editor.progress().values()
            assert own.title == "Building middle.onnx"
            assert any(" > " in text for text in own.texts)
            check(editor.progress(), "own", names="middle.onnx")

    run(scenario())


def test_a_client_that_refuses_tokens(folder: Path) -> None:
    async def scenario() -> None:
        async with Editor(grants=False) as editor:
            answer = await editor.build(uri(folder, "middle"), {"wait": True})
            assert answer["status"] == "succeeded"
            assert len(editor.told(types.WINDOW_WORK_DONE_PROGRESS_CREATE)) == 1
            assert not editor.told(types.PROGRESS)
            # Those of the phases, in the client's own.
            await editor.build(uri(folder, "middle"), under="own")
            own = editor.progress()["own"]
            assert any(" > " in text for text in own.texts)
            assert {params.token for params in editor.told(types.PROGRESS)} == {"own"}
            assert own.ended > own.began

    run(scenario())


def test_hostile_names(folder: Path) -> None:
    async def scenario() -> None:
        async with Editor("--configure", "tests.surfaces.test_lsp:configure_hostile") as editor:
            name = "a\x1b[31m\n[b](command:c)"
            answer = await editor.build(uri(folder, "mlp"), {"name": name}, under="own")
        assert answer["status"] == "succeeded"
        progress = editor.progress()
        shown = progress["own"].title.removeprefix("Building ")
        phases = check(progress, "own", names=shown)
        assert len(phases) == 3  # the real one, the hostile one and the one inside it
        texts = [params.message for params in editor.told(types.WINDOW_LOG_MESSAGE)]
        for text in [*texts, *(one.title for one in progress.values())]:
            assert text.isprintable()
            assert "](" not in text
            assert len(text) < 250

    run(scenario())


def test_a_hostile_model_cannot_be_clicked_nor_control_anything(tmp_path: Path) -> None:
    evil = "No\x1b[31mpe\nerror: [click](command:evil) \u202e\x9b"
    model = tmp_path / "evil](x).onnx"
    onnx.save(models.unknown_operators(evil), str(model))

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.items() for text in texts(list(item))]
        if isinstance(value, list):
            return [text for item in value for text in texts(item)]
        return [value] if isinstance(value, str) else []

    with Wire() as wire:
        wire.initialize()
        name = "\x1b[31m[a](command:x)\u202e\x9b"
        number = wire.execute("trtWidget.build", model.as_uri(), {"wait": True, "name": name})
        wrong = wire.execute("trtWidget.build", model.as_uri(), {"[b](command:c)\x1b": 1})
        messages = [wire.read()]
        while number not in [one.get("id") for one in messages] or len(messages) < 4:
            messages.append(wire.read())
        told = {one.get("method", one.get("id")): one for one in messages}
        assert told[number]["result"]["name"] == "\ufffd[31m[a] (command:x)\ufffd\ufffd"
        (diagnostic,) = told["textDocument/publishDiagnostics"]["params"]["diagnostics"]
        assert "[click] (command:evil)" in diagnostic["message"]
        assert "[b] (command:c)" in told[wrong]["error"]["message"]
        for message in messages:
            for text in texts(message):
                assert all(sign.isprintable() or sign == "\n" for sign in text), text
                assert "](" not in text


def test_a_flood(folder: Path) -> None:
    """100,000 callbacks within two seconds, 1,107 times the same phase for each 6,439 of them."""

    async def scenario() -> None:
        async with Editor("--configure", "tests.models:configure_flood") as editor:
            answer = await editor.build(uri(folder, "mlp"), under="own")
        assert answer["status"] == "succeeded"
        assert max(row["count"] for row in answer["phases"]) > 1_000
        phases = check(editor.progress(), "own", names="mlp.onnx")
        assert any("times" in text for one in phases for text in one.texts)
        times = [
            at
            for at, method, _ in editor.messages
            if method in {types.PROGRESS, types.WINDOW_WORK_DONE_PROGRESS_CREATE}
        ]
        assert len(times) <= 20 + 40 * (times[-1] - times[0])  # 20 for the ends of all at the end

    run(scenario())


def test_a_client_that_stops_reading_can_cancel() -> None:
    with Wire(*SLOWLY) as wire:
        wire.initialize()
        number = wire.execute("trtWidget.build", resnet(), workDoneToken="own")
        server = psutil.Process(wire.process.pid)
        wait_for(server.children)
        builder = server.children(recursive=True)
        # More answers than the pipe and the backlog hold, and none of them is read.
        last = [wire.execute("x" * 1_000) for _ in range(200)][-1]
        time.sleep(2.0)
        assert alive(builder)
        wire.message({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}})
        wait_for(lambda: not alive(builder))
        messages = [wire.read()]
        while messages[-1].get("id") != number:
            messages.append(wire.read())
        assert messages[-1]["error"]["code"] == CANCELLED
        (line,) = (one["params"]["message"] for one in messages if one.get("method") == LOG)
        assert line.startswith("light_resnet50.onnx: cancelled after ")
        full = next(at for at, one in enumerate(messages) if one.get("id") == last)
        late = [one["params"] for one in messages[full:] if one.get("method") == "$/progress"]
        assert {one["value"]["kind"] for one in late} <= {"begin", "end"}
        assert (late[-1]["token"], late[-1]["value"]["kind"]) == ("own", "end")
        assert wire.answer(wire.request("shutdown"))["result"] is None


def test_nothing_else_prints_into_the_protocol(folder: Path) -> None:
    with Wire("--configure", "tests.surfaces.test_lsp:configure_noisily") as wire:
        wire.initialize()
        number = wire.execute("trtWidget.build", uri(folder, "mlp"), {"wait": True})
        assert wire.answer(number)["result"]["status"] == "succeeded"
        assert wire.answer(wire.request("shutdown"))["result"] is None
        wire.message({"jsonrpc": "2.0", "method": "exit"})
        out, printed = wire.process.communicate(timeout=SOON)
        assert not out
        assert b"\nmore noise in the server" in printed


def test_what_is_no_message(folder: Path) -> None:
    with Wire() as wire:
        early = wire.request("workspace/executeCommand", {"command": "trtWidget.build"})
        assert wire.answer(early)["error"]["code"] == -32002  # not initialized
        wire.initialize()

        def refused(data: bytes) -> dict[str, Any]:
            wire.send(data)
            message = wire.read()
            assert message["id"] is None
            error: dict[str, Any] = message["error"]
            return error

        def framed(body: bytes) -> bytes:
            return b"Content-Length: %d\r\n\r\n" % len(body) + body

        assert refused(b"hello\r\n\r\n")["code"] == -32700
        assert refused(b"Content-Length: -5\r\n\r\n")["code"] == -32700
        assert refused(b"x" * 100_000 + b"\r\n\r\n")["code"] == -32700
        assert refused(framed(b'{"jsonrpc": "2.0", "id"'))["code"] == -32700
        assert refused(framed(b"[" * 100_000))["code"] == -32700
        assert refused(framed(b"\xff\xfe"))["code"] == -32700
        assert refused(framed(b"[1, 2]"))["code"] == -32600
        assert refused(framed(b'{"jsonrpc": "1.0"}'))["code"] == -32600
        assert refused(framed(b'{"jsonrpc": "2.0", "id": {}, "method": "x"}'))["code"] == -32600
        too_long = MAX_MESSAGE + 1
        assert str(too_long) in refused(framed(b" " * too_long))["message"]
        # Parameters that are none, an answer nobody waits for, notifications that nobody knows.
        assert (
            wire.answer(wire.request("workspace/executeCommand", [1]))["error"]["code"] == INVALID
        )
        wire.message({"jsonrpc": "2.0", "id": 99, "result": None})
        wire.message({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": ""}})
        wire.message({"jsonrpc": "2.0", "method": "$/unheardOf", "params": {}})
        wire.message({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 99}})
        wire.message({"jsonrpc": "2.0", "method": "window/workDoneProgress/cancel"})
        assert wire.answer(wire.request("unheardOf"))["error"]["code"] == -32601
        # Piece by piece, with a header more and in other letters.
        body = b'{"jsonrpc":"2.0","id":5000,"method":"workspace/executeCommand","params":'
        body += b'{"command":"trtWidget.build","arguments":["%s",{"wait":true}]}}' % (
            uri(folder, "mlp").encode()
        )
        whole = b"Content-Type: x\r\ncontent-length:%d\r\n\r\n" % len(body) + body
        for at in range(0, len(whole), 17):
            wire.send(whole[at : at + 17])
        assert wire.answer(5000)["result"]["status"] == "succeeded"
        assert wire.answer(wire.request("shutdown"))["result"] is None
        late = wire.execute("trtWidget.build", uri(folder, "mlp"))
        assert wire.answer(late)["error"]["code"] == -32600
        wire.message({"jsonrpc": "2.0", "method": "exit"})
        assert wire.process.wait(SOON) == 0


# ------------------------------------------------------------------ leaving


def test_shutdown_ends_the_builds_first(folder: Path) -> None:
    async def scenario() -> None:
        async with Editor(*SLOWLY) as editor:
            build = asyncio.ensure_future(editor.build(resnet(), under="own"))
            waiting = asyncio.ensure_future(editor.build(uri(folder, "mlp"), under="two"))
            await editor.until(lambda: len(editor.progress()) > 2)
            assert "two" in editor.progress()
            processes = children(editor)
            assert processes
            assert await editor.leave() == 0
            for answer in (await build, await waiting):
                assert (answer["status"], answer["reason"]) == ("cancelled", "closed")
            progress = editor.progress()
            check(progress, "own", names="light_resnet50.onnx")
            assert max(one.ended for one in progress.values()) < editor.position("shutdown")
            assert not alive(processes)

    run(scenario())


def running_build(wire: Wire) -> list[psutil.Process]:
    """Begin a build that takes ten seconds; give the server and the processes of the build."""
    server = psutil.Process(wire.process.pid)
    wire.execute("trtWidget.build", resnet())
    wait_for(lambda: server.children(recursive=True))
    return [server, *server.children(recursive=True)]


@pytest.mark.parametrize("how", ["end of stdin", "exit", "SIGTERM", "SIGKILL"])
def test_no_orphan(how: str) -> None:
    with Wire(*SLOWLY) as wire:
        wire.initialize()
        processes = running_build(wire)
        assert len(alive(processes)) == len(processes)
        assert wire.process.stdin is not None
        if how == "end of stdin":
            wire.process.stdin.close()
        elif how == "exit":  # without shutdown
            wire.message({"jsonrpc": "2.0", "method": "exit"})
        else:
            os.kill(wire.process.pid, signal.Signals[how])
        code = wire.process.wait(SOON)
        assert code == (-signal.SIGKILL if how == "SIGKILL" else 1)
        wait_for(lambda: not alive(processes))


def test_an_editor_that_was_killed_leaves_no_orphan() -> None:
    """The editor is a process of its own, and something else keeps the pipes open."""
    stand_in = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with Wire(*SLOWLY) as wire:
            number = wire.request(
                "initialize", {"processId": stand_in.pid, "rootUri": None, "capabilities": {}}
            )
            wire.answer(number)
            processes = running_build(wire)
            time.sleep(2.5)  # it looks at its editor every two seconds, and stays
            assert len(alive(processes)) == len(processes)
            stand_in.kill()  # nobody has asked how it ended: its entry stays among the processes
            assert wire.process.wait(SOON) == 1
            wait_for(lambda: not alive(processes))
    finally:
        stand_in.kill()
        stand_in.wait()


# ------------------------------------------------------------------ how it is started


def test_over_tcp(folder: Path) -> None:
    server = subprocess.Popen(
        command("--tcp", "127.0.0.1:0"), stdout=subprocess.PIPE, env=environment(), text=True
    )

    async def scenario(address: dict[str, Any]) -> None:
        client = LanguageClient("trt_widget's tests", "1")
        await client.start_tcp(address["host"], address["port"])
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        params = types.ExecuteCommandParams("trtWidget.build", [uri(folder, "mlp"), {"wait": True}])
        answer = await client.workspace_execute_command_async(params)
        assert isinstance(answer, dict)
        assert answer["status"] == "succeeded"
        await client.shutdown_async(None)
        client.exit(None)
        await asyncio.wait_for(client.stop(), SOON)

    try:
        assert server.stdout is not None
        run(scenario(json.loads(server.stdout.readline())))
        assert server.wait(SOON) == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", "127.0.0.1", "127.0.0.1:x"])
def test_only_addresses_of_this_machine(address: str) -> None:
    done = subprocess.run(
        command("--tcp", address), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert address in done.stderr


def test_a_root_that_is_none() -> None:
    done = subprocess.run(
        command("--root", "/nowhere"),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "/nowhere is not a folder" in done.stderr
    assert not done.stdout


def test_what_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['pygls'] = None; from trt_widget.cli import main; "
        "sys.exit(main(['lsp']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in {0, None}
    assert "trt-widget[lsp]" in done.stderr
    assert not done.stdout
