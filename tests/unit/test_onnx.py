"""The walk through a model's bytes, held against the onnx package's own reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import models
from trt_widget._onnx import _SCHEMA, UncheckedError, examine, find_external

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYWHERE = models.with_external_everywhere()
BYTES = EVERYWHERE.SerializeToString()


def tensors_of(message: Any) -> Iterator[onnx.TensorProto]:
    """Give every tensor that a message holds, in whatever field."""
    if isinstance(message, onnx.TensorProto):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from tensors_of(inner)


def locations_of(model: onnx.ModelProto) -> set[str]:
    # The onnx package gives bytes where a text is no UTF-8.
    return {
        os.fsdecode(entry.value)
        for tensor in tensors_of(model)
        for entry in tensor.external_data
        if entry.key == "location"
    }


def found(data: bytes) -> set[str]:
    return {stored.location for stored in find_external(data)}


def test_the_walk_knows_every_place_of_a_tensor() -> None:
    """The places are those of the onnx package that is installed."""
    names = {
        "ModelProto": "model",
        "TrainingInfoProto": "training",
        "GraphProto": "graph",
        "FunctionProto": "function",
        "NodeProto": "node",
        "AttributeProto": "attribute",
        "SparseTensorProto": "sparse",
        "TensorProto": "tensor",
    }

    def leads_to_a_tensor(message: Any, above: tuple[str, ...] = ()) -> bool:
        if message.name == "TensorProto":
            return True
        if message.name in above:
            return False
        inner = [field.message_type for field in message.fields if field.message_type]
        return any(leads_to_a_tensor(field, (*above, message.name)) for field in inner)

    schema: dict[str, dict[int, str]] = {}
    waiting = [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        if names.get(message.name) in schema or message.name == "TensorProto":
            continue
        places = schema.setdefault(names[message.name], {})
        for field in message.fields:
            if field.message_type and leads_to_a_tensor(field.message_type):
                places[field.number] = names[field.message_type.name]
                waiting.append(field.message_type)
    assert schema == _SCHEMA


def test_every_place_is_walked(tmp_path: Path) -> None:
    expected = locations_of(EVERYWHERE)
    assert len(expected) > 50
    assert found(BYTES) == expected
    path = tmp_path / "model.onnx"
    path.write_bytes(BYTES)
    stored = find_external(path)
    assert {one.location for one in stored} == expected
    assert all(one.offset == one.length == 4 and one.tensor for one in stored)


@pytest.mark.parametrize(
    "path",
    sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")),
    ids=lambda path: path.stem,
)
def test_real_models_are_followed_to_their_end(path: Path) -> None:
    assert find_external(path) == []
    assert examine(path).kind == "onnx"


def varint(value: int, size: int = 0) -> bytes:
    """Write a number, with at least ``size`` bytes."""
    parts = []
    while value > 0x7F or len(parts) + 1 < size:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes, size: int = 0) -> bytes:
    return varint(number << 3 | 2, size) + varint(len(content), size) + content


def group(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 3) + content + varint(number << 3 | 4)


def external(location: bytes, size: int = 0) -> bytes:
    """Write a tensor that names a file."""
    entry = field(1, b"location", size) + field(2, location, size)
    return field(13, entry, size)


def in_graph(tensor: bytes, size: int = 0) -> bytes:
    return field(7, field(5, tensor, size), size)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(in_graph(external(b"a.bin", 5), 5), id="numbers longer than needed"),
        pytest.param(group(99, b"\x08\x01") + in_graph(external(b"a.bin")), id="a group"),
        pytest.param(group(7, group(5, b"")) + in_graph(external(b"a.bin")), id="groups"),
        pytest.param(b"\x3d1234\x39" + b"12345678" + in_graph(external(b"a.bin")), id="fixed"),
        pytest.param(field(7, b"\x28\x05" + field(5, external(b"a.bin"))), id="another type"),
        pytest.param(in_graph(b"") + in_graph(external(b"a.bin")), id="a second graph"),
        pytest.param(in_graph(external(b"b.bin") + external(b"a.bin")), id="two locations"),
        pytest.param(
            in_graph(field(13, field(1, b"x") + field(2, b"a.bin") + field(1, b"location"))),
            id="the last key counts",
        ),
        pytest.param(
            field(7, field(1, field(5, field(5, b"\x70\x01") + field(5, external(b"a.bin"))))),
            id="a tensor in two parts",
        ),
    ],
)
def test_what_protocol_buffers_reads_is_found(data: bytes) -> None:
    assert "a.bin" in found(data)
    assert "a.bin" in locations_of(onnx.ModelProto.FromString(data))


@pytest.mark.parametrize("end", [b"\x00", b"\x3c", b"\x04"])
def test_a_model_ends_where_tensorrt_takes_it_to_end(end: bytes) -> None:
    assert found(BYTES + end + b"location \xff\xff\xff") == locations_of(EVERYWHERE)


@pytest.mark.parametrize(
    "broken",
    [
        b"\x3a\xff",
        b"\x3a\x80",
        b"\x3b",
        b"\x3b\x44",
        b"\x3b" * 200,
        b"\x3e",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xba\x80\x80\x80\x80\x80\x00\x00",
        b"\x08" + b"\xff" * 11,
        b"\x3d123",
        b"\x3a\x02\x00\x00",
        b"\x3a\x01\x04",
        b"\x3a\x04\x2a\x02\x6a\x09",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_what_cannot_be_followed_is_said(broken: bytes) -> None:
    with pytest.raises(UncheckedError):
        find_external(BYTES + broken)
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(BYTES + broken)
    # Where no tensor can name a file, TensorRT may say itself what is wrong.
    assert find_external(models.mlp().SerializeToString() + broken) == []


def nested(levels: int) -> bytes:
    """Write a tensor in graphs in attributes in nodes ..., so many messages deep."""
    data, numbers = external(b"a.bin"), [5, 6, 5, 1]
    data = field(5, data)  # an initializer of the innermost graph
    for level in range(levels - 2):
        data = field(numbers[1:][level % 3], data)
    return field(7, data)


def test_nesting_is_followed_as_deep_as_protocol_buffers_does() -> None:
    assert found(nested(95)) == {"a.bin"}
    with pytest.raises(UncheckedError):
        find_external(nested(2000))


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_mutated_models(data: st.DataObject) -> None:
    """What the onnx package finds in changed bytes, the walk finds too; it refuses no such file."""
    changed = bytearray(BYTES)
    positions = st.integers(0, len(BYTES) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(positions) % len(changed)
        kind = data.draw(st.sampled_from(["bit", "byte", "cut", "insert", "copy", "end"]))
        if kind == "bit":
            changed[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "byte":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 20))]
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=6))
        elif kind == "copy":
            start = data.draw(positions)
            changed[at:at] = BYTES[start : start + data.draw(st.integers(1, 300))]
        else:
            del changed[max(at, 1) :]
    try:
        model = onnx.ModelProto.FromString(bytes(changed))
    except DecodeError:
        return
    assert locations_of(model) <= found(bytes(changed))


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_models_of_mutated_parts(data: st.DataObject) -> None:
    """The same for changed bytes deep inside, with every length around them made right again."""
    inner = bytearray(external(b"a.bin") + b"\x70\x01" + field(8, b"name"))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(inner)))
        inner[at:at] = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=4),
                st.builds(group, st.integers(1, 30), st.binary(max_size=3)),
                st.builds(field, st.integers(1, 30), st.binary(max_size=6), st.integers(0, 6)),
            )
        )
    whole = bytes(inner)
    path = data.draw(st.sampled_from([[5], [15, 1], [1, 5, 5], [1, 5, 22, 2], [1, 5, 10]]))
    for number in reversed(path):
        whole = data.draw(st.sampled_from([b"", b"\x0a\x00", b"\xa3\x06\xa4\x06"])) + field(
            number, whole
        )
    whole = field(7, whole)
    try:
        model = onnx.ModelProto.FromString(whole)
    except DecodeError:
        return
    assert locations_of(model) <= found(whole)
