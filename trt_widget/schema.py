"""The JSON Schema of a stream's lines, made from the events themselves."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trt_widget import events
from trt_widget.events import PROTOCOL_VERSION, Event

__all__ = ["schema"]

_INT64 = 2**63


def schema() -> dict[str, Any]:
    """Give the schema (JSON Schema 2020-12) of one line of a stream.

    A writer gives every field. A reader of this package takes a line that lacks ``time``, or a
    field that has a default, and ignores fields that it does not know; so does the schema.
    """
    kinds = get_args(Event)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a TensorRT build",
        "description": (
            "One line of the JSON Lines that trt_widget writes and reads (protocol version "
            f"{PROTOCOL_VERSION}). A stream begins with stream_start and ends with end; a "
            "stream_start in the middle of one starts over. Times are seconds since its origin."
        ),
        "oneOf": [{"$ref": f"#/$defs/{kind.kind}"} for kind in kinds],
        "$defs": {kind.kind: _event(kind) for kind in kinds},
    }


def _event(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, vars(events))
    properties: dict[str, Any] = {"event": {"const": kind.kind}}
    required = ["event"]
    for entry in dataclasses.fields(kind):
        properties[entry.name] = _value(hints[entry.name])
        if entry.name != "time" and not _has_default(entry):
            required.append(entry.name)
    for name in _NOT_EMPTY.get(kind.kind, ()):
        properties[name]["minItems"] = 1
    for name, text in _attributes(kind).items():
        properties[name]["description"] = text
    return {
        "title": kind.__name__,
        "description": _first_paragraph(kind),
        "type": "object",
        "properties": properties,
        "required": required,
    }


#: Columns that hold at least one value.
_NOT_EMPTY = {
    "phases": ("starts", "ends", "last_steps", "num_steps"),
    "phases_collapsed": ("path",),
}
_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "minimum": -_INT64, "maximum": _INT64 - 1},
    str: {"type": "string"},
}


def _value(hint: Any) -> dict[str, Any]:
    """Give the schema of a field by its type."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return {"anyOf": [_value(part) for part in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in {tuple, list}:
        return {"type": "array", "items": _value(arguments[0])}
    if origin is dict or hint is dict:
        return {"type": "object"}
    raise TypeError(f"no schema for {hint!r}")


def _has_default(entry: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return entry.default is not missing or entry.default_factory is not missing


def _first_paragraph(kind: type[Any]) -> str:
    return _plain((inspect.getdoc(kind) or "").split("\n\n")[0])


def _attributes(kind: type[Any]) -> dict[str, str]:
    """Give what the docstring says of the fields, by name."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for text in section.splitlines():
        if text and not text.startswith(" "):
            names = [name.strip() for name in text.split(",")]
        else:
            found.update({name: f"{found.get(name, '')} {text}" for name in names})
    return {name: _plain(text) for name, text in found.items()}


def _plain(text: str) -> str:
    """Give one line without the marks of the documentation."""
    return re.sub(r":\w+:`(?:\w+\.)*~?(.*?)`|``(.*?)``", r"\1\2", " ".join(text.split()))
