"""What goes in and out by HTTP, described for OpenAPI."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from trt_widget.servers._problems import MEDIA_TYPE
from trt_widget.servers.builds import REQUEST_OPTIONS

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = [
    "MEANINGS",
    "SENT",
    "START_BODY",
    "BuildList",
    "BuildRequest",
    "Cancelled",
    "Links",
    "Options",
    "Problem",
    "Status",
    "Summary",
    "Timings",
    "answers",
    "describe_interface",
]

#: A year; no clock of the system takes all that a float can be.
_LONGEST_S: Final = 366 * 86_400


_Names = str | list[str]
_Shape = int | list[int]  # a number: a scalar shape tensor's value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Options(_Strict):
    """Options of a build, named and meant as for ``trt_widget.Build``; null is as not given."""

    profiles: dict[str, list[_Shape]] | list[dict[str, list[_Shape]]] | None = Field(
        None, description="`[min, opt, max]` for each dynamic input, or a list of such objects"
    )
    timeout: float | None = Field(
        None, gt=0, le=_LONGEST_S, description="seconds after which it is cancelled"
    )
    grace: float | None = Field(
        None, ge=0, le=_LONGEST_S, description="seconds that a cancel waits for TensorRT"
    )
    flags: _Names | None = Field(None, description="names of builder flags")
    strongly_typed: bool | None = None
    network_flags: _Names | None = None
    optimization_level: int | None = Field(None, ge=0, le=5)
    workspace: int | None = Field(None, ge=1, description="bytes")
    device: int | None = Field(None, ge=0, description="index of a GPU")
    target: _Names | None = Field(None, description="for TensorRT for RTX")
    timing_cache: bool | None = None
    backend: Literal["tensorrt", "tensorrt_rtx"] | None = None


assert tuple(Options.model_fields) == REQUEST_OPTIONS  # noqa: S101 - the description is checked where it is made


class BuildRequest(_Strict):
    """A model below the server's folder, and how to build it."""

    model: str = Field(min_length=1, max_length=4096, description="path below `--root`")
    options: Options | None = None
    name: str | None = Field(None, max_length=200, description="what to call the build")


class Links(BaseModel):
    """Addresses of one build that need no token: each has a key that reads this build only."""

    events: str
    timings: str
    log: str
    engine: str
    report: str


class Summary(BaseModel):
    """One build of the list."""

    id: str
    name: str
    status: Literal["pending", "running", "cancelling", "succeeded", "cancelled", "failed", "ended"]
    created: float = Field(description="seconds since the epoch")
    progress: float | None = Field(description="0 to 1, where earlier builds tell")
    eta_s: float | None
    elapsed_s: float = Field(description="since it began to run")
    grace_s: float = Field(description="how long a cancel waits for TensorRT's next step")
    links: Links


class Status(Summary):
    """How one build stands; times are in seconds."""

    reason: str | None = Field(description="why it was cancelled")
    backend: str
    device: str | None
    exceeded: bool
    basis: str | None
    waiting_for: str | None
    phase: str | None = Field(description="path of the innermost open phase")
    phases: list[dict[str, Any]]
    more_phases: int
    warnings: int
    engine_bytes: int | None
    result: dict[str, Any] | None = Field(description="as the stream's last event has it")
    error: dict[str, Any] | None


class BuildList(BaseModel):
    """The builds that are kept, the newest first."""

    builds: list[Summary]


class Cancelled(BaseModel):
    """The answer to a cancel."""

    cancelled: bool = Field(description="whether there was anything to cancel")
    status: str


class Timings(BaseModel):
    """A row per phase path, in the order of the tree; times are in seconds."""

    complete: bool = Field(description="whether the build has ended")
    phases: list[dict[str, Any]]


class Problem(BaseModel):
    """What is wrong, and what to do (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    cause: str
    remedy: str


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describe the answers that are problems."""
    return {code: {"model": Problem, "description": MEANINGS[code]} for code in (401, 403, *codes)}


MEANINGS: Final = {
    401: "The token is missing or wrong.",
    403: "Another origin, a host that is not this server's, or a path out of its folder.",
    404: "There is no such build, or no such file.",
    408: "Nothing came for too long.",
    409: "The build has no engine (yet).",
    413: "The body is larger than this server takes.",
    415: "The body is a form.",
    422: "What is asked for cannot be.",
    429: "Too many builds, uploads or streams: come again after `Retry-After` seconds.",
    503: "The server is about to end.",
    507: "There is no space for the upload.",
}


START_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "The model itself, or JSON that names one below the server's folder.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {"$ref": "#/components/schemas/BuildRequest"}},
        },
    }
}


#: An event of the stream.
SENT: Final = {
    "type": "object",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["batch", "snapshot", "end"]},
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "data": {"type": "string"},
    },
}


def describe_interface(app: FastAPI) -> dict[str, Any]:
    """Describe the interface: problems have a type of their own, and two things FastAPI lacks."""
    if app.openapi_schema:
        return app.openapi_schema
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    schemas = schema["components"]["schemas"]
    for model in (BuildRequest, Options):
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        made.pop("$defs", None)
        schemas[model.__name__] = made
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operations in schema["paths"].values():
        for operation in operations.values():
            _describe_problems(operation)
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "options":
                    del parameter["schema"]
                    reference = {"$ref": "#/components/schemas/Options"}
                    parameter["content"] = {"application/json": {"schema": reference}}
    app.openapi_schema = schema
    return schema


def _describe_problems(operation: dict[str, Any]) -> None:
    reference = {"$ref": "#/components/schemas/Problem"}
    for code, answer in operation["responses"].items():
        if int(code) >= HTTPStatus.BAD_REQUEST:
            answer["content"] = {MEDIA_TYPE: {"schema": reference}}
        if int(code) == HTTPStatus.TOO_MANY_REQUESTS:
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
