"""The wire format of protocol buffers as a tree that can be changed and written again.

The walker of the package itself only skips; this one has to write, and to lie about lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, LENGTH, _START, _END, FIXED32 = range(6)


@dataclass
class Field:
    """One field: a number, bytes, or a message's fields."""

    number: int
    wire_type: int
    value: Any
    kind: str = ""  # the message's name
    claim: int | None = None  # a length to write instead of the true one


def varint(value: int) -> bytes:
    """Write a number; a negative one takes ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, payload: bytes) -> bytes:
    """Write bytes, text or a message."""
    return varint(number << 3 | LENGTH) + varint(len(payload)) + payload


def number(field: int, value: int) -> bytes:
    """Write an integer."""
    return varint(field << 3 | VARINT) + varint(value)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def decode(data: bytes, descriptor: Any) -> list[Field]:
    """Read a sound message, with every message in it."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, at = _read_varint(data, at)
            fields.append(Field(field, wire_type, value))
        elif wire_type == LENGTH:
            length, at = _read_varint(data, at)
            content = data[at : at + length]
            at += length
            known = descriptor.fields_by_number.get(field)
            message = known.message_type if known is not None else None
            if message is None:
                fields.append(Field(field, wire_type, content))
            else:
                fields.append(Field(field, wire_type, decode(content, message), message.name))
        else:
            size = 8 if wire_type == FIXED64 else 4
            fields.append(Field(field, wire_type, data[at : at + size]))
            at += size
    return fields


def encode(fields: list[Field]) -> bytes:
    """Write a message."""
    out = bytearray()
    for field in fields:
        out += varint(field.number << 3 | field.wire_type)
        value = encode(field.value) if isinstance(field.value, list) else field.value
        if isinstance(value, int):
            out += varint(value)
        elif field.wire_type == LENGTH:
            out += varint(len(value) if field.claim is None else field.claim) + value
        else:
            out += value
    return bytes(out)


def messages(fields: list[Field], kind: str = "ModelProto") -> Iterator[tuple[str, list[Field]]]:
    """Give every message with its kind, the outermost first."""
    yield kind, fields
    for field in fields:
        if isinstance(field.value, list):
            yield from messages(field.value, field.kind)
