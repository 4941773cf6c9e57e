"""What a model needs to be built, read from its file without TensorRT and without the onnx package.

The file may be hostile, or grow so large that reading it takes minutes; so whoever serves strangers
has it read by a process of its own: :func:`inspect_apart`. Everything that is kept is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from trt_widget._onnx import (
    _LENGTH,
    _VARINT,
    _fields,
    _MalformedError,
    _opened,
    _TruncatedError,
    _varint,
    _volume,
    _walk,
    examine,
)
from trt_widget._text import line
from trt_widget.diagnosis import check_external, explain_source
from trt_widget.errors import BuildError, SourceError, from_record, to_record
from trt_widget.executors.isolation import python_command
from trt_widget.options import check_source

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    Data = bytes | mmap.mmap

__all__ = ["PATIENCE_S", "inspect", "inspect_apart", "main"]

_Item = TypeVar("_Item")

#: Seconds that a model is read at most.
PATIENCE_S: Final = 60
#: Characters of JSON of what is told: an answer is small, whatever the model is.
_INPUTS: Final = 3_000
_OUTPUTS: Final = 1_500
_EXAMPLE: Final = 6_000
_OPERATORS: Final = 2_000
_FILES: Final = 1_000
#: Operators, dimensions and other files that are told.
_MAX_OPERATORS: Final = 40
_MAX_DIMENSIONS: Final = 16
_MAX_FILES: Final = 10
#: Different operators, and names of values, that are kept apart while a model is read.
_MAX_KINDS: Final = 5_000
_MAX_NAMES: Final = 100_000
#: Characters of a name, and of that of a dimension.
_NAME: Final = 200
_DIMENSION: Final = 60

# Field numbers of onnx.proto.
_MODEL_PRODUCER, _MODEL_GRAPH, _MODEL_OPSET = 2, 7, 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 2, 4
_TENSOR_NAME = 8
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT, _TENSOR_SHAPE = 1, 2, 1, 1, 2
_SHAPE_DIMENSION, _DIMENSION_VALUE, _DIMENSION_NAME = 1, 1, 2

#: Names of the element types, by their numbers.
_TYPES: Final = dict(
    enumerate(
        (
            "undefined",
            "float32",
            "uint8",
            "int8",
            "uint16",
            "int16",
            "int32",
            "int64",
            "string",
            "bool",
            "float16",
            "float64",
            "uint32",
            "uint64",
            "complex64",
            "complex128",
            "bfloat16",
            "float8e4m3fn",
            "float8e4m3fnuz",
            "float8e5m2",
            "float8e5m2fnuz",
            "uint4",
            "int4",
            "float4e2m1",
            "float8e8m0",
        )
    )
)
#: Types that a shape can have.
_WHOLE: Final = ("int32", "int64")
#: Which inputs of an operator are shapes, sizes or positions, of which TensorRT needs the values.
_SHAPES: Final[dict[str, frozenset[int]]] = {
    "Reshape": frozenset({1}),
    "Expand": frozenset({1}),
    "ConstantOfShape": frozenset({0}),
    "Tile": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Pad": frozenset({1, 3}),
    "Resize": frozenset({3}),
    "Unsqueeze": frozenset({1}),
    "TopK": frozenset({1}),
    "OneHot": frozenset({1}),
    "Loop": frozenset({0}),
}
#: Operators that make shapes of shapes.
_PASSING: Final = frozenset(
    {
        "Identity",
        "Cast",
        "Concat",
        "Unsqueeze",
        "Squeeze",
        "Gather",
        "Slice",
        "Reshape",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Min",
        "Max",
    }
)
#: Smallest, most usual and largest size of a batch, and of another dimension: those that
#: :func:`trt_widget.diagnosis.example_range` proposes.
_BATCHES: Final = (1, 8, 32)
_SIZES: Final = (1, 128, 512)


class Tensor(NamedTuple):
    """An input or output; a dimension is a number, a name, or ``None``."""

    name: str
    kind: str
    shape: list[int | str | None] | None


class _Graph:
    """What is read of a model's outermost graph."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.constants: set[str] = set()
        #: Inputs whose values are shapes.
        self.shapes: set[str] = set()
        #: Which inputs a value is a shape of.
        self.sources: dict[str, frozenset[str]] = {}


def inspect(path: Path) -> dict[str, Any]:
    """Read what a model needs.

    Returns
    -------
    dict
        ``size_bytes``, ``producer``, ``opset``, ``inputs`` and ``outputs`` (``name``, ``type``,
        ``shape``, and of inputs ``dynamic`` and ``shape_tensor``), ``more_inputs`` and
        ``more_outputs`` (numbers of those left out), ``nodes``, ``parameters``, ``operators``
        (``name``, ``count``; the most frequent), ``more_operators``, ``external_files``,
        ``needs_profile``, ``profile_example`` (or ``None``), ``more_profiled`` (inputs that it had
        to leave out) and ``problems`` (errors that a build would end with, as far as they are
        visible here).

    Raises
    ------
    SourceError
        There is no such file, or it is no ONNX model.
    """
    source = check_source(path)
    found = examine(path)
    problems = [problem for problem in (explain_source(source), check_external(source)) if problem]
    if found.kind != "onnx":
        raise problems[0] if problems else SourceError(f"{source.display_name} is no ONNX model.")
    with _opened(path) as data:
        about, graph = _read_model(data)
        counts, parameters = _count(data)
    operators = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    inputs = [tensor for tensor in graph.inputs if tensor.name not in graph.constants]
    example = _example(inputs, graph.shapes)
    profiled = dict(_fitting(example.items(), _EXAMPLE))
    told_inputs = _fitting((_describe_input(one, graph.shapes) for one in inputs), _INPUTS)
    told_outputs = _fitting(map(_describe, graph.outputs), _OUTPUTS)
    told_operators = _fitting(
        ({"name": line(name, _NAME), "count": count} for name, count in operators[:_MAX_OPERATORS]),
        _OPERATORS,
    )
    files = sorted({stored.location for stored in found.external})
    return {
        "size_bytes": found.size,
        **about,
        "inputs": told_inputs,
        "more_inputs": len(inputs) - len(told_inputs),
        "outputs": told_outputs,
        "more_outputs": len(graph.outputs) - len(told_outputs),
        "nodes": sum(counts.values()),
        "parameters": parameters,
        "operators": told_operators,
        "more_operators": len(operators) - len(told_operators),
        "external_files": _fitting((line(file, _NAME) for file in files[:_MAX_FILES]), _FILES),
        "needs_profile": bool(example),
        "profile_example": profiled or None,
        "more_profiled": len(example) - len(profiled),
        "problems": [to_record(problem) for problem in problems],
    }


# ---- reading ------------------------------------------------------------------------------------


def _parts(data: Data, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Give the fields that are texts or messages, as far as they can be followed."""
    with contextlib.suppress(_TruncatedError, _MalformedError):
        for number, wire_type, start, stop in _fields(data, begin, end):
            if wire_type == _LENGTH:
                yield number, start, stop


def _number(data: Data, begin: int, end: int, wanted: int) -> int | None:
    """Give the last number of a field."""
    found = None
    with contextlib.suppress(_TruncatedError, _MalformedError):
        for number, wire_type, start, stop in _fields(data, begin, end):
            if number == wanted and wire_type == _VARINT:
                found = _varint(data, start, stop)[0]
    return found


def _text(data: Data, begin: int, end: int) -> str:
    """Give a text; of one that is too long for a name, its beginning."""
    return bytes(data[begin : min(end, begin + 4 * _NAME)]).decode(errors="replace")


def _read_model(data: Data) -> tuple[dict[str, Any], _Graph]:
    about: dict[str, Any] = {"producer": None, "opset": None}
    graph = _Graph()
    for number, start, stop in _parts(data, 0, len(data)):
        if number == _MODEL_PRODUCER:
            about["producer"] = line(_text(data, start, stop), _NAME)
        elif number == _MODEL_OPSET:
            domains = [
                _text(data, first, last)
                for part, first, last in _parts(data, start, stop)
                if part == _OPSET_DOMAIN
            ]
            if not domains or domains[-1] in {"", "ai.onnx"}:
                about["opset"] = _number(data, start, stop, _OPSET_VERSION)
        elif number == _MODEL_GRAPH:
            _read_graph(data, start, stop, graph)
    return about, graph


def _read_graph(data: Data, begin: int, end: int, graph: _Graph) -> None:
    nodes: list[tuple[int, int]] = []
    for number, start, stop in _parts(data, begin, end):
        if number in {_GRAPH_INPUT, _GRAPH_OUTPUT}:
            tensors = graph.inputs if number == _GRAPH_INPUT else graph.outputs
            if len(tensors) < _MAX_KINDS:
                tensors.append(_read_value(data, start, stop))
        elif number == _GRAPH_INITIALIZER and len(graph.constants) < _MAX_NAMES:
            graph.constants.update(
                _text(data, first, last)
                for part, first, last in _parts(data, start, stop)
                if part == _TENSOR_NAME
            )
        elif number == _GRAPH_NODE and len(nodes) < _MAX_NAMES:
            nodes.append((start, stop))
    # Inputs come after the nodes in the file.
    for tensor in graph.inputs:
        small = tensor.shape is None or len(tensor.shape) <= 1
        if tensor.kind in _WHOLE and small and tensor.name not in graph.constants:
            graph.sources[tensor.name] = frozenset({tensor.name})
    if graph.sources:
        for start, stop in nodes:
            _follow(data, start, stop, graph)


def _follow(data: Data, begin: int, end: int, graph: _Graph) -> None:
    """See whether a node takes an input of the model, or what was made of it, for a shape."""
    inputs: list[str] = []
    outputs: list[str] = []
    operator = ""
    for number, start, stop in _parts(data, begin, end):
        if number == _NODE_INPUT:
            inputs.append(_text(data, start, stop))
        elif number == _NODE_OUTPUT:
            outputs.append(_text(data, start, stop))
        elif number == _NODE_OPERATOR:
            operator = _text(data, start, stop)
    shapes = _SHAPES.get(operator, frozenset())
    passed: frozenset[str] = frozenset()
    for position, name in enumerate(inputs):
        sources = graph.sources.get(name)
        if sources is None:
            continue
        if position in shapes:
            graph.shapes |= sources
        elif operator in _PASSING:
            passed |= sources
    if passed and len(graph.sources) < _MAX_NAMES:
        graph.sources.update(dict.fromkeys(outputs, passed))


def _read_value(data: Data, begin: int, end: int) -> Tensor:
    name, kind, shape = "", "unknown", None
    for number, start, stop in _parts(data, begin, end):
        if number == _VALUE_NAME:
            name = _text(data, start, stop)
        elif number == _VALUE_TYPE:
            for part, first, last in _parts(data, start, stop):
                if part == _TYPE_TENSOR:
                    element = _number(data, first, last, _TENSOR_ELEMENT)
                    kind = _TYPES.get(element or 0, "unknown")
                    shape = _read_shape(data, first, last)
    return Tensor(name, kind, shape)


def _read_shape(data: Data, begin: int, end: int) -> list[int | str | None] | None:
    shape: list[int | str | None] | None = None
    for number, start, stop in _parts(data, begin, end):
        if number != _TENSOR_SHAPE:
            continue
        shape = shape or []
        for part, first, last in _parts(data, start, stop):
            if part == _SHAPE_DIMENSION and len(shape) < _MAX_DIMENSIONS:
                shape.append(_read_dimension(data, first, last))
    return shape


def _read_dimension(data: Data, begin: int, end: int) -> int | str | None:
    names = [
        _text(data, first, last)
        for part, first, last in _parts(data, begin, end)
        if part == _DIMENSION_NAME
    ]
    if names and names[-1]:
        return line(names[-1], _NAME)
    size = _number(data, begin, end, _DIMENSION_VALUE)
    return size if size is not None and size < 1 << 63 else None  # a negative one reads as huge


def _count(data: Data) -> tuple[dict[str, int], int]:
    """Count the nodes by operator, those of inner graphs too, and the values of the tensors."""
    counts: dict[str, int] = {}
    parameters = 0
    with contextlib.suppress(_TruncatedError, _MalformedError):
        for message, start, stop in _walk(data):
            if message == "node":
                names = [
                    _text(data, first, last)
                    for part, first, last in _parts(data, start, stop)
                    if part == _NODE_OPERATOR
                ]
                name = names[-1] if names else ""
                if name not in counts and len(counts) >= _MAX_KINDS:
                    name = "(others)"
                counts[name] = counts.get(name, 0) + 1
            elif message == "tensor":
                parameters += _volume(data, start, stop)
    return counts, parameters


# ---- telling ------------------------------------------------------------------------------------


def _fitting(items: Iterable[_Item], most: int) -> list[_Item]:
    """Give as many of the first ones as there is room for in so many characters of JSON."""
    found: list[_Item] = []
    for item in items:
        most -= len(json.dumps(item, ensure_ascii=False)) + 2
        if most < 0:
            break
        found.append(item)
    return found


def _describe(tensor: Tensor) -> dict[str, Any]:
    shape = tensor.shape
    if shape is not None:
        shape = [line(size, _DIMENSION) if isinstance(size, str) else size for size in shape]
    return {"name": line(tensor.name, _NAME), "type": tensor.kind, "shape": shape}


def _describe_input(tensor: Tensor, shapes: set[str]) -> dict[str, Any]:
    return {
        **_describe(tensor),
        "dynamic": _is_dynamic(tensor),
        "shape_tensor": tensor.name in shapes,
    }


def _is_dynamic(tensor: Tensor) -> bool:
    return tensor.shape is None or any(not isinstance(size, int) for size in tensor.shape)


def _example(inputs: list[Tensor], shapes: set[str]) -> dict[str, list[list[int]]]:
    """Give a profile to start from: batches of 1, 8, 32, other sizes of 1, 128, 512."""
    ranges: dict[str, list[list[int]]] = {}
    # Dimensions of one name have one size, wherever they are.
    sizes: dict[str, tuple[int, int, int]] = {}
    for tensor in inputs:
        if tensor.name in shapes:
            count = 1
            for size in tensor.shape or ():
                count *= size if isinstance(size, int) else 1
            ranges[tensor.name] = [
                [size] * min(max(count, 1), _MAX_DIMENSIONS) for size in _BATCHES
            ]
        elif tensor.shape is not None and _is_dynamic(tensor):
            columns: list[tuple[int, int, int]] = []
            for axis, size in enumerate(tensor.shape):
                usual = _BATCHES if axis == 0 else _SIZES
                if isinstance(size, int):
                    columns.append((size, size, size))
                else:
                    columns.append(usual if size is None else sizes.setdefault(size, usual))
            ranges[tensor.name] = [list(shape) for shape in zip(*columns, strict=True)]
    return ranges


# ---- in a process of its own --------------------------------------------------------------------

_CODE: Final = "from trt_widget._inspection import main; main(sys.argv[2])"


def main(path: str) -> None:
    """Print what :func:`inspect` says of a file, or its error, as one line of JSON."""
    from pathlib import Path

    if sys.platform != "win32":
        signal.alarm(PATIENCE_S + 10)  # whoever started this process may be gone
    try:
        answer = {"found": inspect(Path(path))}
    except BuildError as error:
        answer = {"error": to_record(error)}
    except OSError as error:
        refused = SourceError(f"The model cannot be read: {error}.", "Check the file.")
        answer = {"error": to_record(refused)}
    print(json.dumps(answer))  # noqa: T201 - whoever started this process reads it


async def inspect_apart(path: Path, *, patience: float = PATIENCE_S) -> dict[str, Any]:
    """Have a model read by another process, and give what :func:`inspect` does.

    Raises
    ------
    BuildError
        As :func:`inspect`, or the other process died or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *python_command(_CODE, str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(), patience)
    except asyncio.TimeoutError:
        raise SourceError(
            f"{path.name} could not be read within {patience:g} s.",
            "It is very large, or made to keep a reader busy; a build may still read it.",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        record = json.loads(answer)
    except ValueError:
        raise SourceError(
            f"{path.name} could not be read: the process that read it ended with code "
            f"{process.returncode}.",
            "Export or download the model again; it may have changed while it was read.",
        ) from None
    if "error" in record:
        raise from_record(record["error"])
    found: dict[str, Any] = record["found"]
    return found
