"""The tools of ``trt-widget mcp``: what an agent can ask for, and what it is answered.

Answers are small and structured; each tool declares the schema of its own. What goes wrong is an
answer as well, never a traceback: ``error`` has the cause, what it rests on, and what to do.

An agent's paths stay below the root, also through links. An engine is written as a whole or not at
all, only under a name that ends like an engine's, and not over a file that exists unless
``overwrite`` says so.

The builds belong to the connection. A request that the client cancels cancels its build, and when
the client leaves or dies, all builds of this process end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time as clock
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from trt_widget import __version__
from trt_widget._inspection import inspect_apart
from trt_widget._text import duration, line
from trt_widget.build import FINAL
from trt_widget.chunks import describe_error
from trt_widget.errors import BuildError, BuildFailed, from_record
from trt_widget.phases import PATH_SEPARATOR
from trt_widget.servers._stdio import Answers, NoLines, Requests
from trt_widget.servers.builds import Builds, Entry, RequestError, UnknownBuild, describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp.server.context import ServerRequestContext

    from trt_widget.build import Build

    Context = ServerRequestContext[Any, Any]
    Answer = dict[str, Any]

__all__ = ["TOOLS", "Agents", "read_arguments", "serve"]

#: Endings that an engine's file may have.
ENGINE_SUFFIXES: Final = (".engine", ".plan", ".trt")
#: Seconds between two notifications of progress, also while nothing happens.
PROGRESS_S: Final = 1.0
#: Most seconds that a question for the status may wait.
MAX_WAIT_S: Final = 50.0
#: What a shell says of a process that SIGTERM has ended.
_TERMINATED: Final = 143
#: Seconds that the last answers may take then.
_GOODBYE_S: Final = 3.0
#: Models that are read at the same time.
_READERS: Final = 2
#: Rows and characters of answers.
_SLOWEST: Final = 5
_SHORTEST_S: Final = 0.001
_ROWS: Final = 12
_WARNINGS: Final = 5
_OTHERS: Final = 20
_TEXT: Final = 300
#: How long a cancel is waited for beyond the build's grace, in seconds.
_CANCEL_S: Final = 5.0

_log = logging.getLogger("trt_widget")

INSTRUCTIONS: Final = (
    "Builds TensorRT engines from ONNX models. inspect_model says what a model needs: where inputs "
    "are dynamic, give its profile_example, with numbers of your own, as profiles. build_engine "
    "builds to the end; its timeout is your budget in seconds, and cancelling the request cancels "
    "the build. For long builds: start_build, then build_status with wait, and cancel_build. "
    "Builds run one after the other, and end when the connection does."
)


# ---- schemas ------------------------------------------------------------------------------------


def _text(description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _maybe(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_NUMBER: Final[dict[str, Any]] = {"type": "number"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_BOOLEAN: Final[dict[str, Any]] = {"type": "boolean"}
_TEXTS: Final = _list(_text())

_MODEL: Final = _text("Path of the ONNX file, relative to the server's folder", minLength=1)
_ID: Final = _text("The id that start_build answered", minLength=1)
_SHAPE: Final = _list(_INTEGER)
_PROFILE: Final = {
    "type": "object",
    "additionalProperties": _list(_SHAPE, minItems=3, maxItems=3),
    "description": '{"input": [min, opt, max]}: three shapes for each input of dynamic shape (of a '
    "shape tensor: its values)",
}

#: Arguments that are options of a build; the names are those of ``trt_widget.Build``.
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeout": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Budget: seconds from the start of the build, then it is cancelled; it has "
        "stopped after grace seconds more at the latest",
    },
    "profiles": {
        "anyOf": [_PROFILE, _list(_PROFILE)],
        "description": "Optimization profile, or a list of them; needed where inputs are dynamic",
    },
    "optimization_level": {
        "type": "integer",
        "minimum": 0,
        "maximum": 5,
        "description": "0 builds fastest, 5 searches longest; TensorRT's default is 3",
    },
    "workspace": {"type": "integer", "minimum": 1, "description": "Most workspace memory, bytes"},
    "flags": _list(_text(), description='Names of builder flags, such as "REFIT"'),
    "strongly_typed": {
        "type": "boolean",
        "description": "Whether the engine computes in the types that the model has",
    },
    "network_flags": _list(_text(), description="Names of further flags of the network's creation"),
    "target": {
        "anyOf": [_text(), _list(_text())],
        "description": 'For TensorRT for RTX: what to build for, such as "SM86" or "current"',
    },
    "device": {"type": "integer", "minimum": 0, "description": "Index of the GPU to build on"},
    "timing_cache": {
        "type": "boolean",
        "description": "Keep a timing cache between builds (full TensorRT)",
    },
    "grace": {
        "type": "number",
        "minimum": 0,
        "description": "Seconds that a cancel waits for TensorRT before its process is ended; 2",
    },
    "backend": _text("Which package builds", enum=["tensorrt", "tensorrt_rtx"]),
}
_TO_BUILD: Final = {
    "model": _MODEL,
    "output": _text(
        "Where to write the engine, relative to the server's folder, with the ending .engine, "
        ".plan or .trt; by default beside the model, under its name with .engine",
        minLength=1,
    ),
    "overwrite": {
        "type": "boolean",
        "default": False,
        "description": "Whether an engine file that exists may be replaced",
    },
    **_OPTIONS,
}

_ERROR: Final = {
    **_object({"class": _text(), "cause": _text(), "remedy": _text(), "evidence": _TEXTS}),
    "type": ["object", "null"],
    "description": "What is wrong, what it rests on, and what to do",
}
_TENSOR: Final = {
    "name": _text(),
    "type": _text(),
    "shape": {
        **_list({"type": ["integer", "string", "null"]}),
        "type": ["array", "null"],
        "description": "A dynamic dimension is its name, or null",
    },
}
_INSPECTED: Final = _object(
    {
        "model": _text(),
        "size_bytes": _INTEGER,
        "producer": _maybe("string"),
        "opset": _maybe("integer"),
        "inputs": _list(_object({**_TENSOR, "dynamic": _BOOLEAN, "shape_tensor": _BOOLEAN})),
        "more_inputs": {**_INTEGER, "description": "Left out above"},
        "outputs": _list(_object(_TENSOR)),
        "more_outputs": _INTEGER,
        "nodes": _INTEGER,
        "parameters": _INTEGER,
        "operators": _list(_object({"name": _text(), "count": _INTEGER})),
        "more_operators": _INTEGER,
        "external_files": _TEXTS,
        "needs_profile": _BOOLEAN,
        "profile_example": {
            **_PROFILE,
            "type": ["object", "null"],
            "description": "To be given as profiles, with numbers of your own",
        },
        "more_profiled": {
            **_INTEGER,
            "description": "Inputs that profiles must have, too, and that the example left out",
        },
        "problems": _list({**_ERROR, "type": "object"}),
    }
)
_OUTCOME: Final = _object(
    {
        "id": _text(),
        "status": _text(enum=["succeeded", "cancelled", "failed"]),
        "reason": {
            **_maybe("string"),
            "description": 'Why it was cancelled: "deadline": the budget',
        },
        "engine": {
            **_maybe("string"),
            "description": "Path of the engine, below the server's folder",
        },
        "engine_bytes": _maybe("integer"),
        "duration_s": _NUMBER,
        "ended_by": _text(),
        "device": _maybe("string"),
        "layers": _maybe("integer"),
        "slowest": _list(_object({"path": _text(), "self_s": _NUMBER, "count": _INTEGER})),
        "warnings": _TEXTS,
        "notes": _TEXTS,
        "error": _ERROR,
    }
)
_STARTED: Final = _object({"id": _text(), "status": _text(), "engine": _text()})
_STATUS: Final = _object(
    {
        "id": _text(),
        "name": _text(),
        "status": _text(),
        "progress": {**_maybe("number"), "description": "0 to 1, by earlier builds; null: unknown"},
        "eta_s": _maybe("number"),
        "elapsed_s": _NUMBER,
        "waiting_for": _maybe("string"),
        "phase": _maybe("string"),
        "phases": _list(
            _object(
                {
                    "path": _text(),
                    "status": _text(),
                    "step": _INTEGER,
                    "total": _INTEGER,
                    "count": _INTEGER,
                    "elapsed_s": _NUMBER,
                }
            )
        ),
        "more_phases": _INTEGER,
        "outcome": {**_OUTCOME, "type": ["object", "null"]},
        "others": _list(_object({"id": _text(), "name": _text(), "status": _text()})),
    },
    optional=("others",),
)
_WAIT: Final = {
    "type": "number",
    "minimum": 0,
    "maximum": MAX_WAIT_S,
    "default": 0,
    "description": "Seconds to wait for the end of the build before answering",
}


# ---- tools --------------------------------------------------------------------------------------


class _Definition(NamedTuple):
    title: str
    description: str
    arguments: dict[str, Any]
    answer: dict[str, Any]
    annotations: ToolAnnotations


_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_BUILDS: Final = ToolAnnotations(destructive_hint=False, open_world_hint=False)
_DEFINITIONS: Final = {
    "inspect_model": _Definition(
        "Inspect an ONNX model",
        "Say what a model needs to be built: its inputs with types and shapes, which dimensions "
        "are dynamic, its operators, its size, and a profile to start from. Builds nothing.",
        _object({"model": _MODEL}),
        _INSPECTED,
        _READS,
    ),
    "build_engine": _Definition(
        "Build a TensorRT engine",
        "Build an engine from an ONNX model and wait for the end, with notifications of progress. "
        "Cancelling the request cancels the build. An error says the cause and what to do.",
        _object(_TO_BUILD, optional=tuple(name for name in _TO_BUILD if name != "model")),
        _OUTCOME,
        _BUILDS,
    ),
    "start_build": _Definition(
        "Start a build",
        "Start a build in the background and answer its id at once; ask build_status for the rest.",
        _object(_TO_BUILD, optional=tuple(name for name in _TO_BUILD if name != "model")),
        _STARTED,
        _BUILDS,
    ),
    "build_status": _Definition(
        "Ask how a build stands",
        "Say how far a build is, or what it came to. Without an id it is the newest build, and the "
        "others are listed.",
        _object({"id": _ID, "wait": _WAIT}, optional=("id", "wait")),
        _STATUS,
        _READS,
    ),
    "cancel_build": _Definition(
        "Cancel a build",
        "Cancel a build and wait until it has stopped. One that has ended already stays as it is.",
        _object({"id": _ID}),
        _STATUS,
        ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False),
    ),
}

#: What clients are told of the tools.
TOOLS: Final = [
    Tool(
        name=name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments,
        output_schema=tool.answer,
        annotations=tool.annotations,
    )
    for name, tool in _DEFINITIONS.items()
]


class Agents:
    """What the tools do.

    Parameters
    ----------
    root
        Folder that paths stay in.
    options
        What the operator decides for every build.
    longest
        Most seconds that a build may take, or ``None``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        longest: float | None = None,
    ) -> None:
        self.builds = Builds(root, options=options)
        self._root = Path(root).resolve()
        self._longest = longest
        self._readers = asyncio.Semaphore(_READERS)
        self._tools: dict[str, Callable[[Context, Answer], Awaitable[Answer]]] = {
            "inspect_model": self._inspect,
            "build_engine": self._build,
            "start_build": self._start,
            "build_status": self._status,
            "cancel_build": self._cancel,
        }

    async def list_tools(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """Tell the client what there is."""
        return ListToolsResult(tools=TOOLS)

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Do what the client asks for."""
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name!r:.100}.")
        try:
            answer = await tool(context, read_arguments(params.name, params.arguments or {}))
        except BuildError as error:
            answer = {"error": describe_error(error)}
        except Exception as error:  # noqa: BLE001 - the client is told, and the others served
            _log.exception("trt_widget: the tool %s raised", params.name)
            defect = BuildFailed(
                f"{params.name} failed: {type(error).__name__}.",
                "This is a defect of trt_widget; the server's log (stderr) says more.",
            )
            answer = {"error": describe_error(defect)}
        answer = _clean(answer)
        return CallToolResult(
            content=[TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))],
            structured_content=answer,
            is_error=answer.get("error") is not None,
        )

    # ------------------------------------------------------------------ the tools

    async def _inspect(self, _context: Context, arguments: Answer) -> Answer:
        path = self.builds.resolve(arguments["model"])
        async with self._readers:
            found = await inspect_apart(path)
        problems = [describe_error(from_record(problem)) for problem in found["problems"]]
        return {"model": self._shown(path), **found, "problems": problems}

    async def _build(self, context: Context, arguments: Answer) -> Answer:
        entry = self._begin(arguments)
        progress = _Progress(entry.build)
        # Whatever leaves this loop, such as the client's cancel, cancels the build.
        async for _ in entry.build.stream(heartbeat=PROGRESS_S):
            if entry.build.result is None and progress.due():
                await context.session.report_progress(*progress.now())
        return self._outcome(entry)

    async def _start(self, _context: Context, arguments: Answer) -> Answer:
        entry = self._begin(arguments)
        output = entry.build.options.output
        return {
            "id": entry.id,
            "status": entry.status,
            "engine": "" if output is None else self._shown(output),
        }

    async def _status(self, _context: Context, arguments: Answer) -> Answer:
        others: list[Entry] = []
        if "id" in arguments:
            entry = self._get(arguments["id"])
        elif others := self.builds.all():
            entry = others.pop()
        else:
            raise RequestError("There is no build yet.", "Start one with start_build.")
        await _ended(entry.build, arguments.get("wait", 0.0))
        status = self._describe(entry)
        if "id" not in arguments:
            status["others"] = [
                {"id": other.id, "name": line(other.name, _TEXT), "status": other.status}
                for other in others[: -_OTHERS - 1 : -1]
            ]
        return status

    async def _cancel(self, _context: Context, arguments: Answer) -> Answer:
        entry = self._get(arguments["id"])
        entry.build.request_cancel()
        await _ended(entry.build, entry.build.grace_s + _CANCEL_S)
        return self._describe(entry)

    # ------------------------------------------------------------------ builds

    def _begin(self, arguments: Answer) -> Entry:
        """Start a build; without a pause in which the request could be cancelled unseen."""
        model = self.builds.resolve(arguments["model"])
        options = {name: arguments[name] for name in _OPTIONS if name in arguments}
        if self._longest is not None:
            options["timeout"] = min(options.get("timeout", self._longest), self._longest)
        output = self._output(model, arguments.get("output"), arguments.get("overwrite", False))
        return self.builds.start(model, options, name=self._shown(model), output=output)

    def _output(self, model: Path, output: str | None, overwrite: bool) -> Path:  # noqa: FBT001 - as the tool has it
        path = self.builds.resolve(model.with_suffix(".engine") if output is None else output)
        if path.suffix.lower() not in ENGINE_SUFFIXES:
            raise RequestError(
                f"An engine is not written to {self._shown(path)!r}.",
                f"Give a name that ends with {', '.join(ENGINE_SUFFIXES)}.",
            )
        for entry in self.builds.all():
            if entry.build.options.output == path and entry.status not in FINAL:
                raise RequestError(
                    f"The build {entry.id} is about to write {self._shown(path)!r}.",
                    "Wait for it, cancel it, or give another output.",
                )
        if path.exists() and not overwrite:
            raise RequestError(
                f"There is a file {self._shown(path)!r} already.",
                "Give another output, or overwrite=true to replace it.",
            )
        return path

    def _shown(self, path: Path) -> str:
        """Give a path as agents write it."""
        return path.relative_to(self._root).as_posix()

    def _get(self, build_id: str) -> Entry:
        try:
            return self.builds.get(build_id)
        except UnknownBuild as error:
            raise UnknownBuild(
                error.cause,
                "Ask build_status without an id for the newest build and the ids of the others; "
                "the oldest that have ended are forgotten.",
            ) from error

    def _outcome(self, entry: Entry) -> Answer:
        build = entry.build
        result = build.result
        assert result is not None  # noqa: S101 - asked for after the end only
        error = None if result.error is None else describe_error(result.error)
        if error is not None and result.reason == "deadline":
            error["remedy"] = error["remedy"] or (
                "Give a larger timeout, or build faster with a lower optimization_level."
            )
        return {
            "id": entry.id,
            "status": result.status,
            "reason": result.reason,
            "engine": None if result.output is None else self._shown(result.output),
            "engine_bytes": result.engine_bytes,
            "duration_s": round(result.duration_s, 3),
            "ended_by": result.ended_by,
            "device": result.device,
            "layers": result.layers,
            "slowest": _slowest(build),
            "warnings": [line(text, _TEXT) for text in result.warnings[:_WARNINGS]],
            "notes": [line(text, _TEXT) for text in result.notes[:_WARNINGS]],
            "error": error,
        }

    def _describe(self, entry: Entry) -> Answer:
        said = describe(entry.build, rows=_ROWS)
        phases = [
            {name: phase[name] for name in phase if name != "depth"} for phase in said["phases"]
        ]
        names = ("name", "status", "progress", "eta_s", "elapsed_s", "waiting_for", "phase")
        return {
            "id": entry.id,
            **{name: said[name] for name in names},
            "phases": phases,
            "more_phases": said["more_phases"],
            "outcome": None if entry.build.result is None else self._outcome(entry),
        }


def read_arguments(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a client gives against the tool's schema; null is the same as not given.

    Raises
    ------
    RequestError
        An argument that there is not, is missing, or cannot be.
    """
    schema = _DEFINITIONS[tool].arguments
    properties = schema["properties"]
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if name not in properties:
            near = get_close_matches(name, properties, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise RequestError(
                f"{tool} has no argument {name!r:.100}.",
                f"{hint}The arguments are: {', '.join(properties)}.",
            )
        if isinstance(value, str) and value[:1] in {"{", "["} and name in {"profiles", "flags"}:
            # Some clients write objects and lists as text.
            try:
                given[name] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"{name} is not JSON: {error}.", "Give it as an object or a list."
                ) from error
        elif name not in _OPTIONS:
            _check(name, value, properties[name])
    missing = [name for name in schema["required"] if name not in given]
    if missing:
        raise RequestError(
            f"{tool} needs the argument {missing[0]!r}.",
            f"{properties[missing[0]]['description']}.",
        )
    return given


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
}


def _check(name: str, value: object, schema: Mapping[str, Any]) -> None:
    """Hold an argument that is no option of a build against its schema; Build checks the others."""
    kind = schema["type"]
    fits = isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "boolean")
    if fits and isinstance(value, (int, float)) and "maximum" in schema:
        fits = schema["minimum"] <= value <= schema["maximum"]
    if not fits:
        most = f" from {schema['minimum']} to {schema['maximum']}" if "maximum" in schema else ""
        raise RequestError(
            f"{name} must be a {kind}{most}, not {line(repr(value), 100)}.",
            f"{schema['description']}.",
        )


class _Progress:
    """How far a build is, as notifications: seconds since the request, of so many in all.

    The seconds only grow, as the protocol asks for. Their whole is told where it is known, and
    chosen so that the share is the build's own progress, which never falls.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._begun = clock.monotonic()
        self._last = 0.0

    def due(self) -> bool:
        """Whether the last one is old enough."""
        return not self._last or clock.monotonic() - self._begun - self._last >= PROGRESS_S / 2

    def now(self) -> tuple[float, float | None, str]:
        """Give the numbers and a sentence."""
        self._last = round(clock.monotonic() - self._begun + 0.001, 3)
        share = self._build.progress
        return self._last, round(self._last / share, 3) if share else None, _sentence(self._build)


def _sentence(build: Build) -> str:
    """Say where a build is: the innermost phase that is open, its steps, and the time left."""
    if build.waiting_for is not None:
        return f"waiting for {line(build.waiting_for, _TEXT)}"
    with build.lock:
        opened = [node for node in build.tree.walk() if node.open_count]
        node = max(opened, key=lambda node: (node.last_event, node.depth), default=None)
        if build.status != "running" or node is None:
            return build.status
        text = line(PATH_SEPARATOR.join(node.path[-2:]), _TEXT)
        if node.step_total > 0:
            text += f": {node.step} of {node.step_total}"
    return f"{text}, about {duration(build.eta_s)} left" if build.eta_s else text


async def _ended(build: Build, seconds: float) -> None:
    """Wait so long for the end; a wait that is cancelled changes nothing about the build."""
    deadline = clock.monotonic() + seconds
    while not build.told and clock.monotonic() < deadline:  # noqa: ASYNC110 - as the text says
        await asyncio.sleep(0.05)


def _slowest(build: Build) -> list[Answer]:
    """Give the phases with the most time of their own."""
    with build.lock:
        columns = build.tree.timing_columns()
    rows = zip(columns["path"], columns["self_s"], columns["count"], strict=True)
    return [
        {"path": line(path, _TEXT), "self_s": round(self_s, 3), "count": count}
        for path, self_s, count in sorted(rows, key=lambda row: -row[1])[:_SLOWEST]
        if self_s >= _SHORTEST_S
    ]


def _clean(value: Any) -> Any:
    """Give plain data of which every text can be sent as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


# ---- the server ---------------------------------------------------------------------------------


def serve(
    root: str | os.PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    longest: float | None = None,
) -> int:
    """Serve stdin and stdout until the client leaves.

    Returns
    -------
    int
        0, or 143 after SIGTERM.

    Raises
    ------
    OptionError
        ``root`` is not a folder.
    """
    try:
        asyncio.run(_serve(root, options, longest))
    except asyncio.CancelledError:
        return _TERMINATED
    except Exception as error:
        if not _client_left(error):
            raise
    return 0


async def _serve(
    root: str | os.PathLike[str], options: Mapping[str, Any] | None, longest: float | None
) -> None:
    agents = Agents(root, options=options, longest=longest)
    server: Server[Any] = Server(
        "trt-widget",
        version=__version__,
        title="TensorRT builds",
        instructions=INSTRUCTIONS,
        on_list_tools=agents.list_tools,
        on_call_tool=agents.call_tool,
    )
    _end_when_terminated()
    nothing: Any = NoLines()
    try:
        # The SDK keeps stdout for itself: what else is printed goes to stderr.
        async with stdio_server(stdin=nothing) as (unused, outgoing):
            await unused.aclose()
            answers = Answers(outgoing)
            requests = Requests(answers)
            await server.run(requests, answers, server.create_initialization_options())
    finally:
        # Nobody can take an engine now. Not builds.close(): it would wait for the grace, and a
        # client kills a server that stays; what ends the interpreter ends the processes at once.
        for entry in agents.builds.all():
            entry.build.request_cancel("closed")


def _end_when_terminated() -> None:
    """Have SIGTERM end the builds first; a second one ends this process as it does without us."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - asyncio.run() made one

    def end() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()
        # A client that reads nothing keeps a write of the SDK's waiting, which nobody can cancel.
        loop.call_later(_GOODBYE_S, os._exit, _TERMINATED)

    with contextlib.suppress(NotImplementedError):  # on Windows
        loop.add_signal_handler(signal.SIGTERM, end)


def _client_left(error: BaseException) -> bool:
    """Whether an error, or all of a group of them, is that nobody reads any more."""
    inner = getattr(error, "exceptions", None)
    if inner:
        return all(_client_left(single) for single in inner)
    return isinstance(error, (BrokenPipeError, ConnectionResetError))
