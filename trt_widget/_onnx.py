"""What a file that should be an ONNX model really is, seen without the onnx package.

The parser of TensorRT says "Failed to parse the ONNX model" to everything, and it *accepts* some
text (measured with tensorrt_rtx 1.7.1: ``hello world`` and ``<!DOCTYPE html>`` parse, to an empty
network). So the bytes are looked at here: the wire format of protocol buffers is walked, which
skips weights without reading them. :func:`examine` does it after something went wrong,
:func:`find_external` before anything is read.

Field numbers are those of ``onnx.proto``; the wire format is described in the protocol buffers
documentation ("Encoding"). What TensorRT's own copy of protocol buffers accepts beyond that was
measured: a model *ends* where an end-group tag or a zero byte stands in a tag's place at the
outermost level, whatever follows; a tag is the low 32 bits of at most five bytes; messages nest up
to 100 deep.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

__all__ = [
    "Examination",
    "ExternalData",
    "Summary",
    "UncheckedError",
    "domains",
    "examine",
    "find_external",
    "summarize",
]

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)

# ModelProto's fields and their wire types.
_MODEL_FIELDS: Final = {
    1: _VARINT,  # ir_version
    2: _LENGTH,  # producer_name
    3: _LENGTH,  # producer_version
    4: _LENGTH,  # domain
    5: _VARINT,  # model_version
    6: _LENGTH,  # doc_string
    7: _LENGTH,  # graph
    8: _LENGTH,  # opset_import
    14: _LENGTH,  # metadata_props
    20: _LENGTH,  # training_info
    25: _LENGTH,  # functions
    26: _LENGTH,  # configuration
}
_IR_VERSION, _GRAPH = 1, 7

# Where a tensor can be inside a model: message -> field -> message.
_SCHEMA: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse",
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
}
_NODE_OPERATOR, _NODE_DOMAIN = 4, 7
_TENSOR_DIMS, _TENSOR_NAME, _TENSOR_EXTERNAL_DATA = 1, 8, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_LOCATION: Final = "location"
# More values are in no tensor; a negative size reads as a huge one.
_MOST_VALUES: Final = 2**62
# Protocol buffers reads no message that is nested deeper, so no model needs it.
_DEEPEST: Final = 100

# Tables and texts by the first bytes of the file: what it is, and what to do.
_LFS: Final = b"version https://git-lfs"
_SIGNATURES: Final[tuple[tuple[re.Pattern[bytes], str, str], ...]] = (
    (
        re.compile(re.escape(_LFS)),
        "a Git LFS pointer; the model itself was not downloaded",
        "Run `git lfs pull` in its repository, or download the model itself.",
    ),
    (
        re.compile(rb"\s*<(!doctype\s+html|html|head|body)", re.IGNORECASE),
        "an HTML page, saved in the model's place",
        "Download the file itself (its raw link), not the page that shows it.",
    ),
    (re.compile(rb"\s*<\?xml"), "an XML file", "Give the ONNX file."),
    (
        re.compile(rb"[a-z]trt\0"),
        "a TensorRT engine, already built",
        "Give the ONNX model that it was built from; an engine is loaded with trt.Runtime.",
    ),
    (
        re.compile(rb"PK\x03\x04"),
        "a ZIP archive (a saved PyTorch model is one)",
        "Unpack it, or export the PyTorch model with torch.onnx.export.",
    ),
    (re.compile(rb"\x1f\x8b"), "compressed with gzip", "Unpack it first."),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "compressed with zstd", "Unpack it first."),
    (
        re.compile(rb"\x80[\x02-\x05]"),
        "a Python pickle (an old saved PyTorch model is one)",
        "Export the model with torch.onnx.export.",
    ),
    (re.compile(rb"\x89HDF"), "an HDF5 file (Keras)", "Convert it with tf2onnx."),
    (re.compile(rb".{4}TFL3", re.DOTALL), "a TensorFlow Lite model", "Convert it with tf2onnx."),
    (
        re.compile(rb".{4}ORTM", re.DOTALL),
        "a model in ONNX Runtime's own ORT format",
        "Give the ONNX file that it was made from.",
    ),
    (
        re.compile(rb".{8}\{", re.DOTALL),
        "a safetensors file: weights without a graph",
        "Export the model to ONNX.",
    ),
)


class ExternalData(NamedTuple):
    """A tensor whose values are in another file."""

    tensor: str
    location: str
    offset: int
    length: int | None


@dataclass
class Examination:
    """What the bytes turned out to be.

    Attributes
    ----------
    kind
        ``onnx`` (whole, as far as the outer structure tells), ``truncated``, ``other``, ``empty``.
    description
        For ``other``: what it is instead, as far as it can be told; may be empty.
    remedy
        For ``other``: what to do.
    missing_bytes
        For ``truncated``: how many bytes at least are missing.
    size
        The number of bytes.
    external
        The tensors whose values are in other files.
    """

    kind: str
    size: int
    description: str = ""
    remedy: str = ""
    missing_bytes: int = 0
    external: list[ExternalData] = field(default_factory=list)


class _TruncatedError(Exception):
    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing


class _MalformedError(Exception):
    pass


class _EndError(_MalformedError):
    """A tag that ends a message before its end."""


def examine(source: Path | bytes) -> Examination:
    """Look at a model's bytes; a file is mapped, not read.

    Raises
    ------
    OSError
        The file cannot be opened.
    """
    with _opened(source) as data:
        return _examine(data)


@contextlib.contextmanager
def _opened(source: Path | bytes) -> Iterator[bytes | mmap.mmap]:
    """Give the bytes, or the file mapped; an empty file cannot be mapped."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped


def _examine(data: bytes | mmap.mmap) -> Examination:
    size = len(data)
    if size == 0:
        return Examination("empty", 0)
    seen: set[int] = set()
    missing = 0
    try:
        for number, wire_type, _, _ in _fields(data, 0, size, seen):
            if _MODEL_FIELDS.get(number) != wire_type:
                raise _MalformedError  # noqa: TRY301 - what _fields finds ends there too
    except _TruncatedError as error:
        missing = error.missing
    except _MalformedError:
        return _other(data)
    if missing and seen and seen <= _MODEL_FIELDS.keys() and _IR_VERSION in seen:
        return Examination("truncated", size, missing_bytes=missing)
    if missing or _GRAPH not in seen:
        return _other(data)
    found = Examination("onnx", size)
    with contextlib.suppress(_TruncatedError, _MalformedError):
        found.external.extend(_external(data))
    return found


def _other(data: bytes | mmap.mmap) -> Examination:
    size = len(data)
    head = bytes(data[:512])
    for pattern, description, remedy in _SIGNATURES:
        if pattern.match(head):
            return Examination("other", size, description, remedy)
    line = _first_line(head)
    if line:
        return Examination("other", size, f"text that begins with {line!r}", "Give the ONNX file.")
    return Examination("other", size)


def _first_line(head: bytes) -> str:
    """Return the first line of what is text, else ""."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # A character that was cut in two at the end of the sample is still text.
        if error.start < len(head) - 4:
            return ""
        text = head[: error.start].decode()
    if not all(character.isprintable() or character in "\t\r\n" for character in text):
        return ""
    return text.strip().partition("\n")[0].strip()[:60]


def find_external(source: Path | bytes) -> list[ExternalData]:
    """Find every tensor that names another file, anywhere in a model; a file is mapped, not read.

    A tensor that names several, or that does not even say that it uses them, is found too:
    whatever TensorRT might read has to be in the list.

    Raises
    ------
    UncheckedError
        The structure cannot be followed to its end, and there may be such tensors.
    OSError
        The file cannot be opened.
    """
    with _opened(source) as data:
        return _find_external(data)


def domains(source: Path | bytes, operators: Collection[str]) -> dict[str, str]:
    """Tell the domains of operators that are none of ONNX's own, by the operators' names.

    Raises
    ------
    OSError
        The file cannot be opened.
    """
    found: dict[str, str] = {}
    with _opened(source) as data, contextlib.suppress(_TruncatedError, _MalformedError):
        for message, start, stop in _walk(data):
            if message == "node":
                texts = {
                    number: _text(data, first, last)
                    for number, wire_type, first, last in _fields(data, start, stop)
                    if wire_type == _LENGTH and number in {_NODE_OPERATOR, _NODE_DOMAIN}
                }
                operator, domain = texts.get(_NODE_OPERATOR, ""), texts.get(_NODE_DOMAIN, "")
                if operator in operators and domain not in {"", "ai.onnx"}:
                    found[operator] = domain
    return found


class Summary(NamedTuple):
    """How large a model is.

    Attributes
    ----------
    operators
        Number of nodes.
    kinds
        Number of different operators.
    parameters
        Number of the values of all tensors that the model holds or names.
    locations
        The other files that it keeps values in.
    """

    operators: int
    kinds: int
    parameters: int
    locations: tuple[str, ...]


def summarize(source: Path | bytes) -> Summary:
    """Count what is in a model; of one that cannot be followed to its end, what comes before.

    Raises
    ------
    OSError
        The file cannot be opened.
    """
    operators = parameters = 0
    kinds: set[str] = set()
    locations: set[str] = set()
    with _opened(source) as data, contextlib.suppress(_TruncatedError, _MalformedError):
        for message, start, stop in _walk(data):
            if message == "node":
                operators += 1
                kinds.update(
                    _text(data, first, last)
                    for number, wire_type, first, last in _fields(data, start, stop)
                    if wire_type == _LENGTH and number == _NODE_OPERATOR
                )
            elif message == "tensor":
                parameters += _volume(data, start, stop)
                locations.update(
                    stored.location for stored in _external_of_tensor(data, start, stop)
                )
    return Summary(operators, len(kinds), parameters, tuple(sorted(locations)))


def _volume(data: bytes | mmap.mmap, begin: int, end: int) -> int:
    """Return the number of a tensor's values: the product of its dimensions, packed or not."""
    volume = 1
    for number, wire_type, start, stop in _fields(data, begin, end):
        if number != _TENSOR_DIMS:
            continue
        at = start
        while wire_type in {_VARINT, _LENGTH} and at < stop:
            size, at = _varint(data, at, stop)
            volume = min(volume * size, _MOST_VALUES)
    return volume


class UncheckedError(Exception):
    """A model of which it cannot be told whether it keeps weights in other files."""


def _find_external(data: bytes | mmap.mmap) -> list[ExternalData]:
    try:
        return list(_external(data))
    except (_TruncatedError, _MalformedError) as error:
        # Where this word is nowhere, no tensor can name a file: TensorRT may say what is wrong.
        if data.find(_LOCATION.encode()) < 0:
            return []
        raise UncheckedError from error


def _varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """Return the value and where the next byte is."""
    value = shift = 0
    while True:
        if at >= end:
            raise _TruncatedError(1)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            return value, at
        shift += 7
        if shift > 63:  # noqa: PLR2004 - more than 64 bits are no varint
            raise _MalformedError


def _fields(
    data: bytes | mmap.mmap, at: int, end: int, seen: set[int] | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Give each field of a message: number, wire type, where its content begins and ends.

    A group, which ONNX does not use, is one field: its content ends behind its end-group tag.
    """
    while at < end:
        number, wire_type, at = _tag(data, at, end)
        if number == 0 or wire_type == _END_GROUP:
            raise _EndError
        if seen is not None:
            seen.add(number)
        if wire_type == _LENGTH:
            length, at = _varint(data, at, end)
            stop = at + length
        elif wire_type == _START_GROUP:
            stop = _after_group(data, number, at, end)
        else:
            stop = _after_value(data, wire_type, at, end)
        if stop > end:
            raise _TruncatedError(stop - end)
        yield number, wire_type, at, stop
        at = stop


def _tag(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int, int]:
    """Return a field's number and wire type, and where the next byte is."""
    byte = data[at]
    if byte < 0x80:  # noqa: PLR2004 - nearly every tag of ONNX has one byte
        return byte >> 3, byte & 7, at + 1
    tag, after = _varint(data, at, end)
    if after - at > 5:  # noqa: PLR2004 - see the module's docstring
        raise _MalformedError
    return (tag & 0xFFFFFFFF) >> 3, tag & 7, after


def _after_value(data: bytes | mmap.mmap, wire_type: int, at: int, end: int) -> int:
    """Return where a value ends that is neither a group nor a message."""
    if wire_type == _LENGTH:
        length, at = _varint(data, at, end)
        return at + length
    if wire_type == _VARINT:
        return _varint(data, at, end)[1]
    if wire_type in {_FIXED64, _FIXED32}:
        return at + (8 if wire_type == _FIXED64 else 4)
    raise _MalformedError


def _after_group(data: bytes | mmap.mmap, number: int, at: int, end: int) -> int:
    """Return where a group ends, whose start-group tag stands before ``at``."""
    groups = [number]
    while groups:
        if at >= end:
            raise _TruncatedError(max(at - end, 1))
        number, wire_type, at = _tag(data, at, end)
        if wire_type == _START_GROUP:
            groups.append(number)
            if len(groups) > _DEEPEST:
                raise _MalformedError
        elif number == 0 or (wire_type == _END_GROUP and number != groups.pop()):
            raise _MalformedError
        elif wire_type != _END_GROUP:
            at = _after_value(data, wire_type, at, end)
    return at


def _walk(data: bytes | mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """Give the messages in which tensors can be, and the tensors: kind, begin, end."""
    # Not recursive: generators within generators would take their depth's time for each field.
    open_messages = [("model", _fields(data, 0, len(data)))]
    while open_messages:
        message, fields = open_messages[-1]
        inner = _SCHEMA[message]
        try:
            for number, wire_type, start, stop in fields:
                if wire_type != _LENGTH or number not in inner:
                    continue
                yield inner[number], start, stop
                if inner[number] == "tensor":
                    continue
                if len(open_messages) > _DEEPEST:
                    raise _MalformedError
                open_messages.append((inner[number], _fields(data, start, stop)))
                break
            else:
                open_messages.pop()
        except _EndError:
            if len(open_messages) > 1:
                raise
            return  # here TensorRT takes the model as it is, without what follows


def _external(data: bytes | mmap.mmap) -> Iterator[ExternalData]:
    """Give the tensors that name other files; what is not known is skipped."""
    for message, start, stop in _walk(data):
        if message == "tensor":
            yield from _external_of_tensor(data, start, stop)


def _external_of_tensor(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[ExternalData]:
    name = ""
    locations: list[str] = []
    numbers: dict[str, int | None] = {}
    for number, wire_type, start, stop in _fields(data, at, end):
        if wire_type != _LENGTH:
            continue
        if number == _TENSOR_NAME:
            name = _text(data, start, stop)
        elif number == _TENSOR_EXTERNAL_DATA:
            entry = {
                part: (first, last)
                for part, kind, first, last in _fields(data, start, stop)
                if kind == _LENGTH
            }
            key = _text(data, *entry.get(_ENTRY_KEY, (0, 0)))
            first, last = entry.get(_ENTRY_VALUE, (0, 0))
            if key == _LOCATION:
                locations.append(_path(bytes(data[first:last])))
            elif key in {"offset", "length"}:
                numbers[key] = _number(_text(data, first, last))
    for location in locations:
        yield ExternalData(name, location, numbers.get("offset") or 0, numbers.get("length"))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _path(name: bytes) -> str:
    """Return a file's name as ``os`` takes it for the very same bytes."""
    return name.decode(errors="replace") if os.name == "nt" else os.fsdecode(name)


def _text(data: bytes | mmap.mmap, at: int, end: int) -> str:
    return bytes(data[at:end]).decode(errors="replace")
