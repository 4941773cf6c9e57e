"""The language server on pygls: two commands, work-done progress, diagnostics.

``trtWidget.build`` takes ``[uri, options?]`` and ``trtWidget.cancel`` takes ``[id]``. Whoever sends
a ``workDoneToken`` with the first gets the outcome as the answer, when the build has ended: by the
protocol such a token is good until the answer. Without one the answer comes at once, ``{"id": ...,
"status": ...}``, and the server makes a token of its own; ``"wait": true`` or ``false`` among the
options asks for the other. Beside ``wait``, ``output`` (the URI of the engine's file) and ``name``
the options are those of every server (:data:`~trt_widget.servers.builds.REQUEST_OPTIONS`).

Everything here happens in one event loop; each build has a task that looks at its tree four times
a second, however many events there are. Another thread writes, so that a client that has stopped
reading holds up nobody: it misses reports, and never an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import signal
import time
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcParseError,
    JsonRpcRequestCancelled,
    JsonRpcServerNotInitialized,
)
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.language_server import lsp_method

from trt_widget._text import duration
from trt_widget._version import __version__
from trt_widget.build import FINAL
from trt_widget.errors import BuildError, BuildFailed, OptionError, SourceError, to_record
from trt_widget.phases import PATH_SEPARATOR
from trt_widget.servers._tokens import (
    LOOK_S,
    Message,
    Tokens,
    clean,
    innermost,
    phase_text,
    seconds,
)
from trt_widget.servers._uris import UriError, path_of
from trt_widget.servers.builds import (
    _OPERATORS,
    REQUEST_OPTIONS,
    Builds,
    QueueFull,
    RequestError,
    UnknownBuild,
    describe,
)
from trt_widget.words import closing

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from concurrent.futures import Future

    from pygls.exceptions import PyglsError

    from trt_widget.build import Build
    from trt_widget.servers._frames import Channel
    from trt_widget.servers.builds import Entry

__all__ = ["serve"]

#: The command that takes long.
_BUILD = "trtWidget.build"
#: Options of the command beside those of every server.
_OWN_OPTIONS = ("output", "name", "wait")
#: Builds that have ended and whose ids are still known.
_KEEP = 8
#: Bytes that a client has not read yet, above which nothing is reported.
_BACKLOG = 64 * 1024
#: Seconds that the build's own token waits for a percentage: one that begins without never has one.
_PERCENTAGE_S = 1.0
#: Seconds between two lines in the log of a client that shows no progress.
_LOG_S = 2.0
#: Seconds between two looks at whether the editor lives, and how long the last words may take.
_PARENT_S = 2.0
_GOODBYE_S = 5.0
#: Code of an error that is not the request's fault.
_REQUEST_FAILED = types.LSPErrorCodes.RequestFailed.value
#: Characters of a diagnostic.
_DIAGNOSTIC = 8_000

_log = logging.getLogger("trt_widget")


def serve(
    channel: Channel, *, root: str | None, options: Mapping[str, Any], client: int | None = None
) -> int:
    """Serve one client until it leaves; give the exit code.

    Parameters
    ----------
    channel
        Not started yet.
    root
        Folder that models and engines stay in, or None.
    options
        What the operator decides for every build.
    client
        Process of the editor, if it says nothing else.
    """
    # An error that was sent to the client is not worth a traceback in the editor's log.
    logging.getLogger("pygls").setLevel(logging.ERROR)
    logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_unexpected)
    return asyncio.run(_serve(channel, Builds(root, options=options, keep=_KEEP), client))


def _is_unexpected(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, JsonRpcException)


async def _serve(channel: Channel, builds: Builds, client: int | None) -> int:
    loop = asyncio.get_running_loop()
    server = _Server(builds, channel, client)
    protocol = server.protocol
    protocol.set_writer(channel)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not on Windows, nor in another thread than the main one.
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, server.left.set)
    channel.start(loop, protocol.take, server.left.set)
    watch = loop.create_task(server.watch_parent())
    try:
        await server.left.wait()
    finally:
        watch.cancel()
        await server.end_builds()
        channel.close()
    return 0 if protocol.said_goodbye else 1


# ---- the protocol -------------------------------------------------------------------------------

#: What the ``trtWidget.build`` that is being handled asks for.
_asked: contextvars.ContextVar[_Job] = contextvars.ContextVar("asked")


class _Protocol(LanguageServerProtocol):
    """pygls' protocol, where it leaves something open.

    It has no answer to a request that it cannot read, hides ``workDoneToken`` from commands, and
    ends the process by itself.
    """

    _server: _Server

    def take(self, message: bytes | str) -> None:
        """Handle a message, or say what is wrong with what is none."""
        if isinstance(message, str):
            self.refuse(None, JsonRpcParseError(f"This is {message}."))
            return
        try:
            data = json.loads(message)
        except (ValueError, RecursionError) as error:
            self.refuse(None, JsonRpcParseError(f"This is not JSON: {error}."))
            return
        number = data.get("id") if isinstance(data, dict) else None
        if not isinstance(number, (int, str)) or isinstance(number, bool):
            number = None
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self.refuse(
                number, JsonRpcInvalidRequest('A message is an object with "jsonrpc": "2.0".')
            )
            return
        if "id" in data and number is None and "error" not in data:
            self.refuse(None, JsonRpcInvalidRequest("An id is a number or a text."))
            return
        is_request = "method" in data and number is not None
        if is_request and (refusal := self._refusal(data["method"])) is not None:
            self.refuse(number, refusal)
            return
        try:
            self.handle_message(self.structure_message(data))
        except JsonRpcException as error:
            if is_request:
                self.refuse(number, error)
        except Exception:  # noqa: BLE001 - whatever a client sends, the builds go on
            _log.exception("trt_widget: a message of the editor could not be handled")

    def _refusal(self, method: object) -> JsonRpcException | None:
        if self._shutdown:
            return JsonRpcInvalidRequest("The server was shut down; only exit may follow.")
        if self._workspace is None and method != types.INITIALIZE:
            return JsonRpcServerNotInitialized("The first request must be initialize.")
        return None

    def refuse(self, number: int | str | None, error: JsonRpcException) -> None:
        """Answer with an error; pygls would leave out an id that is null."""
        answer = {"code": error.code, "message": error.message}
        self._send_data({"jsonrpc": self.VERSION, "id": number, "error": answer})

    def handle_message(self, message: Any) -> None:
        """Cancel the build of a request that the client gives up.

        pygls never hears of it: it would answer at once, and what was asked for would go on
        without a request. Beside builds that is ``shutdown``, which is not to be stopped half way;
        all else was answered when its cancel is read.
        """
        if getattr(message, "method", "") == types.CANCEL_REQUEST:
            self._server.give_up(message.params.id)
        else:
            super().handle_message(message)

    @property
    def said_goodbye(self) -> bool:
        """Whether the client has sent ``shutdown``."""
        return self._shutdown

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(
        self, params: types.InitializeParams
    ) -> Generator[Any, Any, types.InitializeResult]:
        """Say that a build may be given a token, and that documents are not wanted."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.text_document_sync = types.TextDocumentSyncOptions(
            open_close=False, change=types.TextDocumentSyncKind.None_
        )
        commands = result.capabilities.execute_command_provider
        if commands is not None:
            commands.work_done_progress = True
        self._server.meet(params)
        return result

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    def lsp_workspace__execute_command(
        self, params: types.ExecuteCommandParams
    ) -> Generator[Any, Any, Any]:
        """Know of a build from here on: its cancel may be read before its task has begun."""
        if params.command != _BUILD:
            return (yield from super().lsp_workspace__execute_command(params))
        job = _Job(self._server, self.msg_id, params.work_done_token)
        _asked.set(job)
        self._server.waiting.add(job)
        try:
            return (yield from super().lsp_workspace__execute_command(params))
        finally:  # the task has done so, unless there was none
            self._server.waiting.discard(job)

    @lsp_method(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)
    def lsp_work_done_progress_cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        """Cancel the build that a token belongs to; one that has ended says nothing."""
        self._server.cancel_token(params.token)

    @lsp_method(types.EXIT)
    def lsp_exit(self, *_: Any) -> None:  # type: ignore[override]  # pygls calls plain functions, too
        """Leave."""
        self._server.left.set()


# ---- the server ---------------------------------------------------------------------------------


class _Server(LanguageServer):
    protocol: _Protocol

    def __init__(self, builds: Builds, channel: Channel, client: int | None) -> None:
        super().__init__("trt-widget", __version__, protocol_cls=_Protocol)
        self.builds = builds
        self.channel = channel
        #: Set when there is nobody to serve any more.
        self.left = asyncio.Event()
        #: Those whose request has no answer yet. Nothing keeps a client from using an id twice.
        self.waiting: set[_Job] = set()
        self.shows_progress = False
        self._client = client
        self._jobs: set[_Job] = set()
        self._by_token: dict[int | str, _Job] = {}
        self._handling: set[asyncio.Task[Any]] = set()
        self._made = 0
        # Builds begin in the order in which they were asked for.
        self._starting = asyncio.Lock()

        # pygls sets attributes of what it registers, which a method has not.
        self.command(_BUILD)(partial(self._build))
        self.command("trtWidget.cancel")(partial(self._cancel))
        self.feature(types.SHUTDOWN)(partial(self._shut_down))

    def report_server_error(
        self, error: Exception, source: type[PyglsError | JsonRpcException]
    ) -> None:
        """Leave it to pygls' log: who asked has an answer, and nobody else needs a window."""

    def meet(self, params: types.InitializeParams) -> None:
        """Note what the client can do and which process it is."""
        window = params.capabilities.window
        self.shows_progress = bool(window and window.work_done_progress)
        self._client = params.process_id or self._client

    async def watch_parent(self) -> None:
        """Leave when the editor is gone: another process may hold the other end of stdin.

        Only of a process that was there once: a server in a container does not see the editor's.
        """
        editor: psutil.Process | None = None
        while True:
            await asyncio.sleep(_PARENT_S)
            if editor is None and self._client is not None:
                with contextlib.suppress(psutil.Error, ValueError, OverflowError):
                    editor = psutil.Process(self._client)
            if editor is not None and _has_ended(editor):
                self.left.set()
                return

    async def end_builds(self) -> None:
        """Cancel all builds, and tell the client how they ended."""
        await asyncio.to_thread(self.builds.close)
        tasks = [*(job.task for job in self._jobs), *self._handling]
        own = asyncio.current_task()
        tasks = [task for task in tasks if task is not own]
        if tasks:
            await asyncio.wait(tasks, timeout=_GOODBYE_S)

    async def _shut_down(self, _params: None) -> None:
        await self.end_builds()

    def new_token(self) -> str:
        """Make the name of a token."""
        self._made += 1
        return f"trt-widget/{self._made}"

    def own(self, token: int | str, job: _Job) -> None:
        """Remember whose a token is."""
        self._by_token[token] = job

    def forget(self, job: _Job) -> None:
        """Forget a build that has ended or never came about, and its tokens."""
        self._jobs.discard(job)
        self._by_token = {token: of for token, of in self._by_token.items() if of is not job}

    def cancel_token(self, token: object) -> None:
        """Cancel the build that a token belongs to, or is to belong to."""
        if not isinstance(token, (int, str)):
            return
        jobs = {job for job in self.waiting if job.asked_under == token}
        if token in self._by_token:
            jobs.add(self._by_token[token])
        for job in jobs:
            job.cancel()

    def give_up(self, number: int | str) -> None:
        """Cancel the build that a request asks for; one that was answered says nothing."""
        for job in self.waiting:
            if job.number == number:
                job.give_up()

    # ------------------------------------------------------------------ commands

    # pygls looks at annotations, and Any is no class before Python 3.11.

    async def _build(self, *arguments: object) -> dict[str, Any]:
        """Be ``trtWidget.build``."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one
        self._handling.add(task)
        job = _asked.get()
        try:
            return await self._build_for(job, arguments)
        except BuildError as error:
            raise _refused(error) from error
        finally:
            self._handling.discard(task)
            self.waiting.discard(job)
            if job.entry is None:  # else its own task does so
                self.forget(job)

    async def _build_for(self, job: _Job, arguments: tuple[object, ...]) -> dict[str, Any]:
        uri, path, options = _read(arguments)
        self._check_token(job.asked_under)
        waits = options.pop("wait", None)
        if not isinstance(waits, (bool, type(None))):
            raise RequestError(
                "wait must be true or false.",
                "Write true to be answered when the build has ended, false for at once.",
            )
        waits = job.asked_under is not None if waits is None else waits
        output = options.pop("output", None)
        if output is not None:
            output = _path(output, "output")
        name = options.pop("name", None)
        if not isinstance(name, (str, type(None))):
            raise RequestError("name must be a text.", "Write what the build is to be called.")
        job.accept(uri, waits=waits)
        start = partial(self.builds.start, name=name, output=output, cancelled=job.is_cancelled)
        try:
            async with self._starting:
                entry = await asyncio.to_thread(start, path, options)
        except SourceError as error:
            # Without a window: the client shows what its request came to.
            self._diagnose(uri, [_diagnostic(error)])
            raise
        # Of the build before. By the text that the client gave: it knows the file by that.
        self._diagnose(uri, [])
        self._jobs.add(job)
        job.begin(entry)
        if not waits and not job.given_up:
            return {"id": entry.id, "uri": uri, "status": entry.status}
        await asyncio.wait([job.task])
        if job.given_up:
            raise JsonRpcRequestCancelled("The request was cancelled, and the build with it.")
        return {"id": entry.id, "uri": uri, **_shown(describe(entry.build))}

    def _check_token(self, token: Any) -> None:
        if token is None:
            return
        if not isinstance(token, (int, str)):
            raise RequestError("workDoneToken must be a number or a text.", "Send it so, or none.")
        if token in self._by_token:
            raise RequestError(
                f"The workDoneToken {token!r:.100} is that of another build.",
                "Make a new one for each request.",
            )

    def _cancel(self, *arguments: object) -> bool:
        """Be ``trtWidget.cancel``; answer whether there was anything to cancel."""
        try:
            if len(arguments) != 1:
                raise RequestError(
                    f"trtWidget.cancel takes one argument, not {len(arguments)}.",
                    "Give the id that trtWidget.build has answered.",
                )
            return self.builds.cancel(arguments[0])  # type: ignore[arg-type]  # it says so itself
        except UnknownBuild as error:
            remedy = (
                "Give the id that trtWidget.build has answered; of the builds that have ended, "
                f"the latest {_KEEP} are known."
            )
            raise _refused(UnknownBuild(error.cause, remedy)) from error
        except BuildError as error:
            raise _refused(error) from error

    # ------------------------------------------------------------------ what the client is told

    def tell(self, message: Message) -> None:
        """Send a message about a token that the client knows."""
        value: Any
        text = message.text or None
        if message.kind == "begin":
            value = types.WorkDoneProgressBegin(
                title=message.title, cancellable=True, message=text, percentage=message.percentage
            )
        elif message.kind == "report":
            value = types.WorkDoneProgressReport(
                cancellable=True, message=message.text, percentage=message.percentage
            )
        else:
            value = types.WorkDoneProgressEnd(message=text)
        self.protocol.notify(types.PROGRESS, types.ProgressParams(message.token, value))

    def create(self, token: str) -> Future[Any]:
        """Ask the client for a token."""
        params = types.WorkDoneProgressCreateParams(token)
        return self.protocol.send_request(types.WINDOW_WORK_DONE_PROGRESS_CREATE, params)

    def log(self, text: str) -> None:
        """Write a line into the client's log."""
        self.window_log_message(types.LogMessageParams(types.MessageType.Info, text))

    def show_failure(self, uri: str, name: str, error: BuildError) -> None:
        """Say what went wrong: once in a window, and in full as a diagnostic of the model."""
        self._diagnose(uri, [_diagnostic(error)])
        shown = f"The build of {name} failed: {clean(error.cause, 300)}"
        self.window_show_message(types.ShowMessageParams(types.MessageType.Error, shown))

    def _diagnose(self, uri: str, diagnostics: list[types.Diagnostic]) -> None:
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics)
        )


def _diagnostic(error: BuildError) -> types.Diagnostic:
    parts = [error.cause, error.details(), *error.evidence, error.remedy]
    text = "\n".join(_plain(part) for part in parts if part)
    return types.Diagnostic(
        range=types.Range(types.Position(0, 0), types.Position(0, 0)),
        message=text if len(text) <= _DIAGNOSTIC else text[: _DIAGNOSTIC - 1] + "…",
        severity=types.DiagnosticSeverity.Error,
        code=type(error).__name__,
        source="trt-widget",
    )


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.AccessDenied):
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
    return False


def _read(arguments: tuple[object, ...]) -> tuple[str, str, dict[str, Any]]:
    """Give the URI, the path and the options of a build."""
    if not 1 <= len(arguments) <= 2:  # noqa: PLR2004 - as the sentence says
        raise RequestError(
            f"trtWidget.build takes one or two arguments, not {len(arguments)}.",
            "Give the URI of an ONNX file, and an object of options if there are any.",
        )
    options = arguments[1] if len(arguments) > 1 else None
    if not isinstance(options, (dict, type(None))):
        raise RequestError(
            f"The options must be an object, not {type(options).__name__}.",
            'Write them by name, such as {"optimization_level": 3}.',
        )
    options = dict(options or {})
    _check_names(options)
    return str(arguments[0]), _path(arguments[0], "the model"), options


def _check_names(options: dict[str, Any]) -> None:
    """Refuse an option that there is not, before anything is made of the others."""
    known = (*REQUEST_OPTIONS, *_OWN_OPTIONS)
    for name in options:
        # Those of the operator have a sentence of their own.
        if name not in known and name not in _OPERATORS:
            nearest = get_close_matches(name, known, 1)
            hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
            raise RequestError(
                f"There is no option {name!r:.100}.", f"{hint}The options are: {', '.join(known)}."
            )


def _path(uri: object, what: str) -> str:
    try:
        return path_of(uri)
    except UriError as error:
        raise RequestError(
            f"The URI of {what}, {uri!r:.200}, cannot be used: {error}.",
            "Give a file: URI such as file:///home/me/model.onnx.",
        ) from error


def _refused(error: BuildError) -> JsonRpcException:
    """Give the error of the protocol for one of ours."""
    record = to_record(error)
    data = {key: _plain_texts(record[key]) for key in ("class", "cause", "remedy")}
    data["class"] = type(error).__name__
    text = clean(f"{error.cause} {error.remedy}", 2_000)
    if isinstance(error, QueueFull) or not isinstance(
        error, (RequestError, OptionError, SourceError, TypeError)
    ):
        return JsonRpcException(text, _REQUEST_FAILED, data)
    return JsonRpcInvalidParams(text, data=data)


def _plain(text: str) -> str:
    """Give a text of several lines without what controls anything or could be clicked."""
    lines = text.expandtabs().replace("](", "] (").splitlines()
    return "\n".join("".join(s if s.isprintable() else "\ufffd" for s in part) for part in lines)


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Give how a build stands with the names and sentences of strangers as an editor may show them.

    Paths of files stay as they are.
    """
    phases = [{**row, "path": _plain(row["path"])} for row in answer["phases"]]
    texts = {name: answer[name] for name in ("name", "waiting_for", "phase", "error")}
    return {**answer, **_plain_texts(texts), "phases": phases}


def _plain_texts(value: Any) -> Any:
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, dict):
        return {_plain(name): _plain_texts(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_texts(item) for item in value]
    return value


# ---- one build ----------------------------------------------------------------------------------


class _Job:
    """What one request asks for, its build, and what the client is told of it.

    Parameters
    ----------
    number
        The request's id.
    token
        The request's ``workDoneToken``, whatever the client has sent as that.
    """

    task: asyncio.Task[None]

    def __init__(self, server: _Server, number: int | str | None, token: Any) -> None:
        self._server = server
        self.number = number
        self.asked_under = token
        self._uri = ""
        self.entry: Entry | None = None
        #: Whether the client has given up the request.
        self.given_up = False
        self._cancelled = False
        self._token: Any = None
        #: ``""``, ``created``, ``granted``, ``begun`` or ``refused``, as those of the phases.
        self._state = ""
        self._told: tuple[str, int | None] = ("", None)
        self._logged = 0.0
        self._log_line = ""

    def accept(self, uri: str, *, waits: bool) -> None:
        """Take a request in which nothing is wrong.

        Its token is the whole build's if the answer waits for the end; else, or without one, one
        is made if the client shows progress.
        """
        self._uri = uri
        if waits and self.asked_under is not None:
            self._token, self._state = self.asked_under, "granted"
            self._server.own(self._token, self)

    def begin(self, entry: Entry) -> None:
        """Follow a build, which was started."""
        self.entry = entry
        self._build = entry.build
        self._name = clean(entry.name, 100)
        self._tokens = Tokens(self._name, self._server.new_token())
        self._since = time.monotonic()
        if self._cancelled:
            self.cancel()
        self.task = asyncio.get_running_loop().create_task(self._follow())

    def give_up(self) -> None:
        """Cancel since nobody waits for the answer."""
        self.given_up = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel, also before there is a build."""
        self._cancelled = True
        if self.entry is not None:
            self.entry.build.request_cancel()

    def is_cancelled(self) -> bool:
        """Whether that was asked for; can be called from any thread."""
        return self._cancelled

    async def _follow(self) -> None:
        server = self._server
        if not self._state and server.shows_progress:
            self._token, self._state = server.new_token(), "created"
            server.own(self._token, self)
            server.create(self._token).add_done_callback(self._on_granted)
        ended = asyncio.ensure_future(self._build.wait_ended_async())
        try:
            while not ended.done():
                self._look()
                await asyncio.wait({ended}, timeout=LOOK_S)
        except Exception:  # noqa: BLE001 - the client must not be left with open tokens
            _log.exception("trt_widget: the progress of %s could not be told", self._name)
            await ended
        finally:
            self._finish()

    # ------------------------------------------------------------------ tokens

    def _on_granted(self, answer: Future[Any]) -> None:
        if self._state == "created":
            self._state = "refused" if answer.cancelled() or answer.exception() else "granted"
            self._look()

    def _on_phase_granted(self, token: str, answer: Future[Any]) -> None:
        self._tokens.answer(token, granted=not (answer.cancelled() or answer.exception()))
        with self._build.lock:
            begins = self._tokens.begins(self._build.now())
        for message in begins:
            self._server.tell(message)

    def _look(self) -> None:
        """Tell what is new."""
        server, build = self._server, self._build
        room = server.channel.backlog < _BACKLOG
        messages: list[Message] = []
        with build.lock:
            now = build.now()
            progress = build.progress
            percentage = None if progress is None else int(progress * 100)
            if build.status == "cancelling":  # it does not come nearer to an engine any more
                percentage = self._told[1]
            ended = build.status in FINAL  # the rest is _finish's
            ready = ended or bool(build.tree.roots or build.waiting_for)
            text = self._text(build, now)
            if self._state == "begun" and server.shows_progress:
                messages = self._tokens.look(build.tree, now, room=room)
        if self._state == "granted":
            if ready or percentage is not None or time.monotonic() - self._since > _PERCENTAGE_S:
                self._state, self._told = "begun", (text, percentage)
                title = f"Building {self._name}"
                server.tell(Message("begin", self._token, title, text, percentage))
        elif ended:
            pass
        elif self._state == "begun" and room and (text, percentage) != self._told:
            self._told = (text, percentage)
            server.tell(Message("report", self._token, "", text, percentage))
        elif self._state in {"", "refused"} and room:
            self._log(text)
        for message in messages:
            if message.kind == "create":
                token = message.token
                server.own(token, self)
                server.create(token).add_done_callback(partial(self._on_phase_granted, token))
            else:
                server.tell(message)

    def _text(self, build: Build, now: float) -> str:
        """Say how the build stands; the caller holds its lock."""
        if build.status == "pending":
            return f"waits for {clean(build.waiting_for, 100)}" if build.waiting_for else "pending"
        if build.status == "cancelling":
            text = "cancelling at TensorRT's next step"
            return text if build.executor == "thread" else f"{text}, or in {build.grace_s:g} s"
        if build.status != "running":
            return build.status
        parts = [seconds(now)]
        if build.exceeded and build.expected_s is not None:
            parts.append(f"longer than the expected {seconds(build.expected_s)}")
        elif build.eta_s is not None:
            parts.append(f"about {seconds(build.eta_s)} left")
        phase = innermost(build.tree)
        if phase is not None and not self._tokens.open:  # there is no other place for it
            parts.append(clean(PATH_SEPARATOR.join(phase.path[-2:]), 120))
            parts += [text for text in (phase_text(phase, now),) if text]
        return ", ".join(parts)

    def _log(self, text: str) -> None:
        now = time.monotonic()
        if now - self._logged >= _LOG_S and text != self._log_line:
            self._logged, self._log_line = now, text
            self._server.log(f"{self._name}: {text}")

    def _finish(self) -> None:
        """End what is open, the innermost first, and say how the build ended."""
        server, build, result = self._server, self._build, self._build.result
        with build.lock:
            messages = self._tokens.close()
        for message in messages:
            server.tell(message)
        status = build.status
        said = status if result is None else f"{status} after {duration(result.duration_s)}"
        more = closing(result) if result is not None else ""
        if self._state == "granted":  # it was too quick for a look
            server.tell(Message("begin", self._token, f"Building {self._name}"))
        if self._state in {"begun", "granted"}:
            server.tell(Message("end", self._token, "", said))
        self._state = "ended"
        server.log(f"{self._name}: {said}{f' ({more})' if more else ''}")
        error = result.error if result is not None else None
        if status == "failed":
            unknown = BuildFailed("The build failed without an error.")
            server.show_failure(self._uri, self._name, error or unknown)
        server.forget(self)
