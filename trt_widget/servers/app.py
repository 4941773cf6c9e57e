"""The interface of ``trt-widget serve``: what can be asked of a server that builds engines."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Header, Query, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from trt_widget import __version__
from trt_widget._text import plain
from trt_widget.build import FINAL
from trt_widget.errors import BuildError
from trt_widget.servers._guard import Guard, read_key
from trt_widget.servers._problems import RETRY_AFTER_S, problem, problem_of
from trt_widget.servers._schemas import (
    MEANINGS,
    SENT,
    START_BODY,
    BuildList,
    BuildRequest,
    Cancelled,
    Links,
    Options,
    Status,
    Timings,
    answers,
    describe_interface,
)
from trt_widget.servers._sse import EventStream
from trt_widget.servers._uploads import (
    BodyError,
    discard,
    in_time,
    safe_name,
    save_stream,
    too_large,
)
from trt_widget.servers.builds import RequestError, describe, elapsed_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

    from trt_widget.servers._uploads import Scratch
    from trt_widget.servers.builds import Builds, Entry

__all__ = ["make_app"]

#: No ONNX file is larger: that is the limit of its format.
MAX_UPLOAD: Final = 2 * 1024**3
MAX_JSON: Final = 1 << 20
MAX_UPLOADS: Final = 4
MAX_STREAMS: Final = 1000
#: With so many streams, each is written to once a second.
_STREAMS_A_SECOND: Final = 1000
_LONGEST_PAUSE_S: Final = 1.0
#: What is taken of a body that was refused, in bytes and seconds.
_DISCARD: Final = 64 << 20
_DISCARD_S: Final = 2.0
_PIECE: Final = 1 << 20
_NO_MODELS: Final = ("application/x-www-form-urlencoded", "text/json")
#: Seconds that the answer to a start waits for the build's turn, and between two looks.
_TURN_S: Final = 0.5
_LOOK_S: Final = 0.01
#: Digits of a number of a batch; Python refuses to read thousands of them.
_LONGEST_ID: Final = 20

_STATIC: Final = Path(__file__).with_name("static")
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# The report brings its styles and pictures with it, and has no scripts.
_REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)

_Model = TypeVar("_Model", bound=BaseModel)

# ---- the application ----------------------------------------------------------------------------


def make_app(
    builds: Builds,
    token: str,
    *,
    scratch: Scratch,
    hosts: Collection[str] = (),
    max_upload: int = MAX_UPLOAD,
) -> FastAPI:
    """Make the ASGI application of a server.

    Parameters
    ----------
    builds
        What it starts and shows.
    token
        What requests must bring.
    scratch
        Where uploads are kept.
    hosts
        Names by which it may be called; see :class:`~trt_widget.servers._guard.Guard`.
    max_upload
        Bytes of an uploaded model.
    """
    app = FastAPI(
        title="trt-widget",
        version=__version__,
        description="Build TensorRT engines: start, watch, cancel.",
        docs_url=None,  # their scripts come from elsewhere
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False))],  # for the description; Guard does it
    )
    app.add_middleware(Guard, token=token, hosts=hosts)
    _handle_errors(app)
    server = _Server(builds, token, scratch, max_upload)
    app.state.server = server
    _add_page(app)
    _add_start(app, server)
    _add_builds(app, server)
    _add_events(app, server)
    _add_results(app, server)
    app.openapi = partial(describe_interface, app)  # type: ignore[method-assign]  # as FastAPI's manual has it
    return app


class _Server:
    """What the routes have in common."""

    def __init__(self, builds: Builds, token: str, scratch: Scratch, max_upload: int) -> None:
        self.builds = builds
        self.token = token
        self.scratch = scratch
        self.max_upload = max_upload
        self.uploads = 0
        self.unnamed = 0
        self.streams = 0
        self.closing = False

    def summary(self, entry: Entry) -> dict[str, Any]:
        build = entry.build
        return {
            "id": entry.id,
            "name": entry.name,
            "status": entry.status,
            "created": entry.created,
            "progress": build.progress,
            "eta_s": build.eta_s,
            "elapsed_s": elapsed_s(build),
            "grace_s": build.grace_s,
            "links": self.links(entry),
        }

    def status(self, entry: Entry) -> dict[str, Any]:
        return {**self.summary(entry), **describe(entry.build)}

    def links(self, entry: Entry) -> dict[str, str]:
        key = read_key(self.token, entry.id)
        return {name: f"/builds/{entry.id}/{name}?key={key}" for name in Links.model_fields}

    def pause(self) -> float:
        """Seconds between two writes to a stream."""
        return min(_LONGEST_PAUSE_S, self.streams / _STREAMS_A_SECOND)

    # ------------------------------------------------------------------ starting

    async def start_model(self, request: Request) -> Entry:
        """Start what a JSON body asks for."""
        body = bytearray()
        async for chunk in in_time(_body_of(request, MAX_JSON)):
            body += chunk
            if len(body) > MAX_JSON:
                raise too_large(MAX_JSON)
        asked = _validated(BuildRequest, bytes(body))
        options = asked.options.model_dump(exclude_unset=True) if asked.options else None
        path = await run_in_threadpool(self.builds.resolve, asked.model)
        if not await run_in_threadpool(_is_file, path):
            raise HTTPException(404, f"There is no file {asked.model!r:.200} below the root.")
        return await run_in_threadpool(self.builds.start, path, options, name=asked.name)

    async def start_upload(
        self, request: Request, kind: str, options: str | None, name: str | None
    ) -> Entry:
        """Take a model and start it; its file goes when the build is forgotten."""
        if kind.startswith("multipart/") or kind in _NO_MODELS:
            # The second is also what curl says of any body unless it is told what to say.
            raise BodyError(
                415,
                f"By its Content-Type the body is no model: {kind:.100}.",
                "For a model: curl -H 'Content-Type: application/octet-stream' --data-binary "
                "@model.onnx; for a request: curl --json '{\"model\": …}', which says "
                "Content-Type: application/json.",
            )
        wanted = None
        if options is not None:
            wanted = _validated(Options, options.encode()).model_dump(exclude_unset=True)
        if self.uploads >= MAX_UPLOADS:
            raise HTTPException(429, "Too many models are being uploaded.")
        self.uploads += 1
        if not name:
            self.unnamed += 1
        label = name or f"uploaded model {self.unnamed}"
        folder = await run_in_threadpool(self.scratch.new_folder)
        remove = partial(_remove_folder, folder)
        try:
            chunks = _body_of(request, self.max_upload)
            path = folder / safe_name(name or "model.onnx")  # errors are about a file by its name
            await save_stream(chunks, path, self.max_upload)
            start = partial(self.builds.start, uploaded=True, name=label)
            entry = await run_in_threadpool(start, path, wanted)
        except BaseException:
            await run_in_threadpool(remove)
            raise
        finally:
            self.uploads -= 1
        entry.on_removed.append(remove)
        if all(kept is not entry for kept in self.builds.all()):  # forgotten in the meantime
            await run_in_threadpool(remove)
        return entry


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, a folder that may not be read
        return False


def _remove_folder(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _body_of(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Give the body's pieces, if it does not say itself that it is too large."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)
    return request.stream()


def _validated(kind: type[_Model], text: bytes) -> _Model:
    """Read JSON, or raise `RequestError`."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        _raise_invalid(error)


def _raise_invalid(error: ValidationError | RequestValidationError) -> NoReturn:
    """Say what does not fit, as an error of a request."""
    said = []
    for found in error.errors()[:5]:
        place = ".".join(str(part) for part in found["loc"])
        said.append(f"{place}: {found['msg']}" if place else found["msg"])
    raise RequestError(
        f"The request does not fit: {'; '.join(said)}.",
        remedy="See /openapi.json for what can be asked for.",
    ) from error


# ---- errors -------------------------------------------------------------------------------------


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(BuildError)
    def ours(_request: Request, error: BuildError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> Response:
        try:
            _raise_invalid(error)
        except RequestError as found:
            return problem_of(found)

    @app.exception_handler(HTTPException)
    def theirs(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        cause, remedy = str(error.detail), ""
        if error.status_code == HTTPStatus.NOT_FOUND and cause == HTTPStatus.NOT_FOUND.phrase:
            cause, remedy = f"There is nothing at {request.url.path!r:.200}.", "See /openapi.json."
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # Each route says its own only.
            allowed = ", ".join(sorted(_methods(app, request)))
            headers = {"Allow": allowed}
            cause, remedy = f"{request.method} is not possible here.", f"Possible: {allowed}."
        elif error.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            headers["Retry-After"] = str(RETRY_AFTER_S)
            remedy = "Ask again later."
        return problem(error.status_code, cause, remedy, headers=headers)

    @app.exception_handler(Exception)
    def defect(_request: Request, _error: Exception) -> Response:
        return problem(
            500,
            "This is a defect of trt-widget.",
            "Please report it with what the server has logged.",
        )


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Give what is possible at the path of a request."""
    found: set[str] = set()
    for route in app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found


class _Refusal(Response):
    """A problem, and a little patience for what its sender still sends."""

    def __init__(self, refused: JSONResponse, request: Request) -> None:
        super().__init__()
        self._refused = refused
        self._request = request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def hold(message: Any) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "more_body": True}
            await send(message)

        self._refused.headers["connection"] = "close"
        await self._refused(scope, receive, hold)
        with contextlib.suppress(Exception):
            # It has gone, or was read to its end.
            await discard(self._request.stream(), _DISCARD, _DISCARD_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# ---- the page -----------------------------------------------------------------------------------


def _add_page(app: FastAPI) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

    def add(address: str, file: Path) -> None:
        content = file.read_bytes()

        @app.get(address, include_in_schema=False)
        def give() -> Response:
            headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}
            return Response(content, headers=headers, media_type=kinds[file.suffix])

    add("/", _STATIC / "index.html")
    for file in sorted(_STATIC.iterdir()):
        if file.suffix in {".css", ".js"}:
            add(f"/static/{file.name}", file)


# ---- builds -------------------------------------------------------------------------------------


def _add_start(app: FastAPI, server: _Server) -> None:
    @app.post(
        "/builds",
        status_code=201,
        response_model=Status,
        responses=answers(404, 408, 413, 415, 422, 429, 503, 507),
        openapi_extra=START_BODY,
        summary="Start a build",
    )
    async def start(
        request: Request,
        options: Annotated[
            str | None, Query(description="for an upload: its options, as JSON")
        ] = None,
        name: Annotated[
            str | None, Query(max_length=200, description="for an upload: what to call it")
        ] = None,
    ) -> Response:
        if server.closing:
            return problem(503, MEANINGS[503], "Start it again.", headers={"connection": "close"})
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                entry = await server.start_model(request)
            else:
                entry = await server.start_upload(request, kind, options, name)
        except BodyError as error:
            return _Refusal(problem(error.status, error.cause, error.remedy), request)
        except ClientDisconnect:
            return Response(status_code=408)  # to nobody
        location = {"Location": f"/builds/{entry.id}"}
        await run_in_threadpool(_know_its_turn, entry)
        status = await run_in_threadpool(server.status, entry)
        return JSONResponse(status, 201, location)


def _know_its_turn(entry: Entry) -> None:
    """Wait a moment, so that the answer can say whether it runs or for whom it waits."""
    build = entry.build
    deadline = time.monotonic() + _TURN_S
    while build.status == "pending" and build.waiting_for is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _add_builds(app: FastAPI, server: _Server) -> None:
    builds = server.builds

    @app.get("/builds", response_model=BuildList, responses=answers(), summary="List the builds")
    def listing() -> Response:
        return JSONResponse({"builds": [server.summary(entry) for entry in builds.all()[::-1]]})

    @app.get(
        "/builds/{build_id}",
        response_model=Status,
        responses=answers(404, 422),
        summary="Ask how a build stands",
    )
    def status(build_id: str) -> Response:
        return JSONResponse(server.status(builds.get(build_id)))

    @app.post(
        "/builds/{build_id}/cancel",
        response_model=Cancelled,
        responses=answers(404, 422),
        summary="Cancel a build",
    )
    def cancel(build_id: str) -> Response:
        done = builds.cancel(build_id)
        return JSONResponse({"cancelled": done, "status": builds.get(build_id).status})

    @app.delete(
        "/builds/{build_id}",
        status_code=204,
        responses=answers(404, 422),
        summary="Cancel a build if it runs, and forget it",
    )
    def remove(build_id: str) -> Response:
        builds.remove(build_id)
        return Response(status_code=204)


def _add_events(app: FastAPI, server: _Server) -> None:
    @app.get(
        "/builds/{build_id}/events",
        response_class=Response,
        responses={
            200: {
                "description": "Server-Sent Events `batch`, `snapshot` and at last `end`; the data "
                "are lines of the stream (`trt-widget schema`), the ids number batches.",
                "content": {"text/event-stream": {"schema": SENT}},
            },
            204: {"description": "It has ended, and the client has had its last event."},
            **answers(404, 422, 429),
        },
        summary="Watch a build",
    )
    async def events(
        build_id: str,
        last_event_id: Annotated[
            str | None, Header(alias="Last-Event-ID", description="the last id that was received")
        ] = None,
    ) -> Response:
        entry = server.builds.get(build_id)
        if server.streams >= MAX_STREAMS:
            raise HTTPException(429, f"{MAX_STREAMS} streams are open, which is all.")
        after = None
        if last_event_id is not None:
            ours = last_event_id.isdecimal() and len(last_event_id) < _LONGEST_ID
            after = int(last_event_id) if ours else 0
        reader = entry.broadcast.reader(after, full=False)
        first = await reader.read_async(0.0)
        if first is not None and first.last and after is not None and after >= first.number:
            return Response(status_code=204)
        return _Counted(server, EventStream(reader, first, server.pause))


class _Counted(Response):
    """A stream, counted as long as it lasts."""

    def __init__(self, server: _Server, stream: EventStream) -> None:
        super().__init__()
        self._server = server
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._server.streams += 1
        try:
            await self._stream(scope, receive, send)
        finally:
            self._server.streams -= 1


# ---- what a build has come to -------------------------------------------------------------------


def _add_results(app: FastAPI, server: _Server) -> None:
    builds = server.builds

    @app.get(
        "/builds/{build_id}/timings",
        response_model=Timings,
        responses={
            200: {"content": {"text/csv": {"schema": {"type": "string"}}}},
            **answers(404, 422),
        },
        summary="Where the time goes, phase by phase",
    )
    def timings(
        build_id: str, form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json"
    ) -> Response:
        entry = builds.get(build_id)
        build = entry.build
        with build.lock:
            columns = build.tree.timing_columns(build.now())
            complete = build.status in FINAL
        rows = list(zip(*columns.values(), strict=True))
        if form == "json":
            phases = [dict(zip(columns, row, strict=True)) for row in rows]
            return JSONResponse({"complete": complete, "phases": phases})
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        # The csv module of Python 3.10 refuses a NUL.
        writer.writerows(
            [cell.replace("\0", "�") if isinstance(cell, str) else cell for cell in row]
            for row in rows
        )
        return Response(
            text.getvalue(), headers=_named(entry, "-timings.csv"), media_type="text/csv"
        )

    @app.get(
        "/builds/{build_id}/log",
        response_class=PlainTextResponse,
        responses=answers(404, 422),
        summary="What TensorRT said, and what was printed",
    )
    def log(build_id: str) -> Response:
        build = builds.get(build_id).build
        messages, dropped = build.log_messages()
        # A message may hold names from the model: in a terminal they must neither control anything
        # nor look like messages.
        lines = [f"{m.time:10.3f} {m.severity}: {plain(m.message)}" for m in messages]
        if dropped:
            lines.append(f"{dropped} further messages were not kept.")
        if build.printed:
            printed = build.printed.rstrip("\n").split("\n")
            lines += ["", "Printed:", *(f"    {plain(text)}" for text in printed)]
        return PlainTextResponse("".join(f"{line}\n" for line in lines))

    @app.get(
        "/builds/{build_id}/engine",
        response_class=Response,
        responses={
            200: {
                "description": "The serialized engine.",
                "content": {
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
                },
            },
            **answers(404, 409, 422),
        },
        summary="The engine",
    )
    def engine(build_id: str) -> Response:
        entry = builds.get(build_id)
        build = entry.build
        found = build.engine
        if found is None:
            over = build.status in FINAL
            return problem(
                409,
                f"There is no engine of this build{'' if over else ' yet'}: it is {build.status}.",
                "Ask for the build to see why." if over else "Wait until it has ended.",
            )
        content = memoryview(found).cast("B")
        headers = {**_named(entry, ".engine"), "Content-Length": str(content.nbytes)}
        return StreamingResponse(
            _pieces(content), headers=headers, media_type="application/octet-stream"
        )

    @app.get(
        "/builds/{build_id}/report",
        response_class=HTMLResponse,
        responses=answers(404, 422),
        summary="A page with the summary, a timeline and the phases",
    )
    def report(build_id: str) -> Response:
        from trt_widget.report import report_html

        page = report_html(builds.get(build_id).build)
        return HTMLResponse(page, headers={"Content-Security-Policy": _REPORT_POLICY})


def _named(entry: Entry, suffix: str) -> dict[str, str]:
    """Call a download after its build."""
    name = safe_name(entry.name.removesuffix(".onnx")) + suffix
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    disposition = f'attachment; filename="{plain}"'
    if plain != name:
        disposition += f"; filename*=UTF-8''{quote(name)}"
    return {"Content-Disposition": disposition}


def _pieces(content: memoryview) -> Iterator[bytes]:
    for start in range(0, content.nbytes, _PIECE):
        yield bytes(content[start : start + _PIECE])
