"""Hostile models: a case is made from a seed and an index, and always the same for both.

The models that are mutated are those of ``tests/models.py`` and the small ones in the onnx wheel.
"""

from __future__ import annotations

import copy
import functools
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests import models
from tests.stress import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    Rng = random.Random

#: Numbers that somebody, somewhere, forgot.
ABSURD = (
    *(0, 1, -1, 2, 3, 7, 255, 256, 65_536, 1_000_000_000),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)),
)
_TEXTS = (
    *("", " ", "\0", "a\0b", "\n\r\t", "x" * 70_000, "../x", "%s%n%x", "\u202e\ufeff", "é" * 99),
    *(models.EVIL_NAME, "{}", "'\"\\", "x", "y"),
)
_OPERATORS = (
    *("Add", "Mul", "Div", "Pow", "Mod", "MatMul", "Gemm", "Conv", "ConvTranspose", "Relu"),
    *("Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements"),
    *("ScatterND", "ScatterElements", "Pad", "Resize", "Tile", "Expand", "Squeeze", "Unsqueeze"),
    *("Flatten", "Shape", "Size", "Cast", "Where", "Equal", "Not", "TopK", "NonZero", "OneHot"),
    *("ReduceMean", "ReduceSum", "ArgMax", "CumSum", "Softmax", "LayerNormalization", "Einsum"),
    *("BatchNormalization", "InstanceNormalization", "MaxPool", "AveragePool", "GlobalMaxPool"),
    *("LSTM", "GRU", "RNN", "Loop", "If", "Scan", "Constant", "ConstantOfShape", "Range"),
    *("RandomUniform", "QuantizeLinear", "DequantizeLinear", "NonMaxSuppression", "EyeLike"),
    *("GridSample", "RoiAlign", "DepthToSpace", "Trilu", "Upsample", "LRN", "Dropout", "Identity"),
    *("SequenceConstruct", "StringNormalizer", "NoSuchOp", "", "TRT_PluginV2", "Attention"),
)


@dataclass(frozen=True)
class Case:
    """A hostile model, and what stands around it."""

    index: int
    origin: str  # the model, or the models, that it was made from
    kind: str
    note: str
    data: bytes
    #: What is beside the model, by name: see :func:`lay_out`.
    beside: tuple[tuple[str, str, Any], ...] = ()
    #: It asks for a file that it may not have: only a SourceError is right.
    refused: bool = False
    #: What stands in the model's place: a file, or something else.
    place: str = "file"


# ---- the models ---------------------------------------------------------------------------------


def _own() -> dict[str, Callable[[], onnx.ModelProto]]:
    return {
        "mlp": models.mlp,
        "mlp dynamic": lambda: models.mlp(batch="n"),
        "convnet": lambda: models.convnet(2, 4, 8),
        "dynamic": models.dynamic,
        "reshape": models.reshape,
        "expand": models.expand,
        "unknown": models.unknown_operators,
        "transformer": lambda: models.transformer(1, 16, 4),
        "if": models.uneven_branches,
        "loop": models.growing_loop,
        "external": models.with_external_everywhere,
        "function": _with_function,
        "scan": _scan,
        "lstm": _lstm,
        "quantized": _quantized,
        "shapes": _shapes,
    }


def _with_function() -> onnx.ModelProto:
    made = models.small(helper.make_node("Twice", ["x"], ["y"], domain="d"), {"x": [4]})
    made.opset_import.add(domain="d", version=1)
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    opset = [helper.make_opsetid("", 17)]
    made.functions.append(helper.make_function("d", "Twice", ["a"], ["b"], body, opset))
    return made


def _scan() -> onnx.ModelProto:
    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    nodes = [
        helper.make_node("Add", ["s", "e"], ["t"]),
        helper.make_node("Identity", ["t"], ["o"]),
    ]
    body = helper.make_graph(nodes, "body", [value("s"), value("e")], [value("t"), value("o")])
    node = helper.make_node("Scan", ["s0", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    return models.small(node, {"s0": [2], "x": [3, 2]})


def _lstm() -> onnx.ModelProto:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)
    weights = {
        "w": np.ones((1, 12, 2), dtype=np.float32),
        "r": np.ones((1, 12, 3), dtype=np.float32),
    }
    return models.small(node, {"x": [5, 1, 2]}, weights=weights)


def _quantized() -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="d"),
    ]
    weights = {"s": np.array(0.1, dtype=np.float32), "z": np.array(0, dtype=np.int8)}
    ends = [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, [4])]
    return models.model(nodes, *ends, weights)


def _shapes() -> onnx.ModelProto:
    """Make a chain of what computes shapes."""
    weights = {
        "starts": np.array([0], dtype=np.int64),
        "ends": np.array([2], dtype=np.int64),
        "pads": np.array([0, 1, 0, 1], dtype=np.int64),
        "repeats": np.array([2, 1], dtype=np.int64),
        "k": np.array([2], dtype=np.int64),
        "index": np.array([0, 1], dtype=np.int64),
        "two": np.array([2, -1], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends"], ["a"], name="slice"),
        helper.make_node("Pad", ["a", "pads"], ["b"], name="pad"),
        helper.make_node("Tile", ["b", "repeats"], ["c"], name="tile"),
        helper.make_node("TopK", ["c", "k"], ["d", "i"], name="topk"),
        helper.make_node("Gather", ["d", "index"], ["e"], name="gather"),
        helper.make_node("Reshape", ["e", "two"], ["f"], name="reshape"),
        helper.make_node("Einsum", ["f", "f"], ["g"], name="einsum", equation="ij,ik->jk"),
        helper.make_node("Softmax", ["g"], ["y"], name="softmax", axis=1),
    ]
    ends = [("x", TensorProto.FLOAT, [3, 8])], [("y", TensorProto.FLOAT, None)]
    return models.model(nodes, *ends, weights)


@functools.cache
def _names() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    small = sorted(path for path in data.rglob("*.onnx") if path.stat().st_size < 40_000)
    return tuple(_own()), tuple(small)


@functools.cache
def _load(name: str) -> bytes:
    own = _own()
    if name in own:
        return bytes(own[name]().SerializeToString())
    return Path(name).read_bytes()


def _choose(rng: Rng) -> tuple[str, bytes]:
    own, files = _names()
    name = rng.choice(own) if rng.random() < 0.6 else str(rng.choice(files))
    shown = name if name in own else "/".join(Path(name).parts[-3:])
    return shown, _load(name)


# ---- bytes --------------------------------------------------------------------------------------


def _flip(rng: Rng, data: bytearray) -> str:
    count = rng.choice((1, 1, 2, 4, 16, 64))
    for _ in range(count):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return f"{count} bits"


def _truncate(rng: Rng, data: bytearray) -> str:
    keep = rng.randrange(len(data))
    del data[keep:]
    return f"{keep} bytes left"


def _insert(rng: Rng, data: bytearray) -> str:
    at, count = rng.randrange(len(data)), rng.choice((1, 2, 8, 100, 5000))
    data[at:at] = rng.choice((rng.randbytes(count), b"\0" * count, b"\xff" * count))
    return f"{count} bytes at {at}"


def _delete(rng: Rng, data: bytearray) -> str:
    at = rng.randrange(len(data))
    count = rng.choice((1, 2, 10, 200))
    del data[at : at + count]
    return f"{count} bytes at {at}"


def _overwrite(rng: Rng, data: bytearray) -> str:
    at = rng.randrange(len(data))
    data[at : at + 10] = rng.choice((b"\xff" * 10, b"\x80" * 10, b"\0" * 10, b"\xff" * 9 + b"\1"))
    return f"at {at}"


def _repeat(rng: Rng, data: bytearray) -> str:
    at = rng.randrange(len(data))
    piece, times = data[at : at + rng.choice((1, 8, 64, 512))], rng.choice((1, 2, 50))
    data[at:at] = piece * times
    return f"{len(piece)} bytes at {at}, {times} times"


def _cross(rng: Rng, data: bytearray) -> str:
    name, other = _choose(rng)
    del data[rng.randrange(len(data)) :]
    data += other[rng.randrange(len(other)) :]
    return f"its end is that of {name}"


_BYTES = (_flip, _flip, _truncate, _insert, _delete, _overwrite, _repeat, _cross)


# ---- fields -------------------------------------------------------------------------------------


def _fields(rng: Rng, data: bytes) -> tuple[bytes, str]:
    """Change fields, whatever they mean."""
    tree = wire.decode(data, onnx.ModelProto.DESCRIPTOR)
    notes = [_change_field(rng, tree) for _ in range(rng.choice((1, 1, 1, 2, 3, 8)))]
    return wire.encode(tree), ", ".join(notes)


def _change_field(rng: Rng, tree: list[wire.Field]) -> str:  # noqa: C901 - a list of changes
    found = [(kind, fields) for kind, fields in wire.messages(tree) if fields]
    kind, fields = rng.choice(found)
    at = rng.randrange(len(fields))
    field = fields[at]
    where = f"{kind}.{field.number}"
    change = rng.choice(("copy", "delete", "swap", "move", "value", "length", "tag", "splice"))
    if change == "copy":
        fields[at:at] = [copy.deepcopy(field) for _ in range(rng.choice((1, 1, 2, 100)))]
    elif change == "delete":
        del fields[at]
    elif change == "swap":
        other = rng.randrange(len(fields))
        fields[at], fields[other] = fields[other], fields[at]
    elif change == "move":
        goal = rng.choice(found)[1]
        goal.insert(rng.randrange(len(goal) + 1), copy.deepcopy(field))
    elif change == "tag":
        field.number = rng.choice((0, 1, 5, 7, 13, 20, 25, 100, 2**29 - 1, field.number + 1))
    elif change == "splice":
        name, other = _choose(rng)
        pieces = [
            f for _, g in wire.messages(wire.decode(other, onnx.ModelProto.DESCRIPTOR)) for f in g
        ]
        fields.insert(at, rng.choice(pieces))
        return f"splice from {name} at {where}"
    elif change == "length" and field.wire_type == wire.LENGTH:
        field.claim = rng.choice((0, 1, 2**30, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**64 - 1))
    elif isinstance(field.value, int):
        field.value = rng.choice(ABSURD)
    elif isinstance(field.value, bytes) and field.wire_type == wire.LENGTH:
        size = rng.choice((0, 1, 8, 1000))
        field.value = rng.choice((rng.randbytes(size), b"\xff" * size, field.value[:size]))
    else:
        field.wire_type = rng.choice((wire.VARINT, wire.FIXED64, wire.FIXED32, 3, 4, 6, 7))
        if isinstance(field.value, list):
            field.value = wire.encode(field.value)
    return f"{change} of {where}"


# ---- graphs -------------------------------------------------------------------------------------


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            for one in inner:
                found += _graphs(one)
    return found


def _values(graph: onnx.GraphProto) -> list[str]:
    return [
        *(value.name for value in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(name for node in graph.node for name in node.output),
    ] or ["x"]


def _pick(rng: Rng, things: Any) -> Any:
    return rng.choice(list(things)) if len(things) else None


def _node(rng: Rng, made: onnx.ModelProto) -> onnx.NodeProto:
    nodes = [node for graph in _graphs(made.graph) for node in graph.node]
    return rng.choice(nodes) if nodes else made.graph.node.add(op_type="Relu", input=["x"])


def _shape(rng: Rng, made: onnx.ModelProto) -> str:
    values = [*made.graph.input, *made.graph.output, *made.graph.value_info]
    tensors = list(made.graph.initializer)
    absurd = rng.choice(ABSURD)
    if values and (not tensors or rng.random() < 0.6):
        value = rng.choice(values)
        dims = value.type.tensor_type.shape.dim
        if not dims or rng.random() < 0.2:
            for _ in range(rng.choice((1, 5, 9, 70))):
                dims.add().dim_value = rng.choice((1, absurd))
        else:
            dim = _pick(rng, dims)
            if rng.random() < 0.2:
                dim.dim_param = rng.choice(_TEXTS)
            else:
                dim.dim_value = absurd
        return f"{value.name}: {absurd}"
    if tensors:
        tensor = rng.choice(tensors)
        if not tensor.dims or rng.random() < 0.3:
            tensor.dims.extend([absurd] * rng.choice((1, 2, 9, 70)))
        else:
            tensor.dims[rng.randrange(len(tensor.dims))] = absurd
        return f"{tensor.name[:30]!r}: {list(tensor.dims)[:9]}"
    return "none"


def _numbers(rng: Rng, made: onnx.ModelProto) -> str:
    """Put absurd numbers into what computes shapes."""
    tensors = [t for t in made.graph.initializer if t.data_type == TensorProto.INT64]
    if not tensors:
        node = _node(rng, made)
        made.graph.initializer.append(
            numpy_helper.from_array(np.array([rng.choice(ABSURD)], dtype=np.int64), "numbers")
        )
        node.input.append("numbers")
        return f"one more input of {node.op_type}"
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor)
    new = np.array([rng.choice(ABSURD) for _ in range(array.size)], dtype=np.int64)
    tensor.CopyFrom(numpy_helper.from_array(new.reshape(array.shape), tensor.name))
    return f"{tensor.name[:30]!r}: {new.tolist()[:9]}"


def _cycle(rng: Rng, made: onnx.ModelProto) -> str:
    graph = rng.choice(_graphs(made.graph))
    outputs = [name for node in graph.node for name in node.output] or ["x"]
    for node in graph.node:
        if node.input and rng.random() < 0.5:
            node.input[rng.randrange(len(node.input))] = rng.choice(outputs)
    return "inputs are others' outputs"


def _same_names(rng: Rng, made: onnx.ModelProto) -> str:
    graph = rng.choice(_graphs(made.graph))
    names = _values(graph)
    for node in graph.node:
        if node.output and rng.random() < 0.5:
            node.output[0] = rng.choice(names)
        node.name = "same"
    for tensor in graph.initializer:
        if rng.random() < 0.3:
            tensor.name = rng.choice(names)
    return "duplicates"


def _odd_names(rng: Rng, made: onnx.ModelProto) -> str:
    text = rng.choice(_TEXTS)
    what = rng.choice(("node", "value", "graph", "input", "output", "everything"))
    graph = made.graph
    if what == "node":
        _node(rng, made).name = text
    elif what == "graph":
        graph.name = made.producer_name = made.domain = text
    elif what == "everything":
        for node in graph.node:
            node.name = text
            node.input[:] = [text] * len(node.input)
            node.output[:] = [text] * len(node.output)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = text
    else:
        _rename(graph, rng.choice(_values(graph)), text)
    return f"{what}: {text[:20]!r}"


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        if value.name == old:
            value.name = new
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def _types(rng: Rng, made: onnx.ModelProto) -> str:
    things = [*made.graph.input, *made.graph.output, *made.graph.initializer]
    kind = rng.choice((*range(24), 99, -1, 2**31 - 1))
    for thing in rng.sample(things, min(len(things), rng.choice((1, 1, 2, 99)))):
        if isinstance(thing, TensorProto):
            thing.data_type = kind
        elif rng.random() < 0.2:
            thing.type.sequence_type.elem_type.tensor_type.elem_type = abs(kind) % 99
        else:
            thing.type.tensor_type.elem_type = kind
    return f"type {kind}"


def _attributes(rng: Rng, made: onnx.ModelProto) -> str:
    node = _node(rng, made)
    if not node.attribute or rng.random() < 0.3:
        names = ("axis", "to", "perm", "pads", "kernel_shape", "strides", "group", "body", "value")
        attribute = node.attribute.add(name=rng.choice(names))
        attribute.type = AttributeProto.INT
    else:
        attribute = _pick(rng, node.attribute)
    change = rng.choice(("type", "value", "ints", "tensor", "graph", "reference", "empty"))
    name = attribute.name
    if change == "type":
        attribute.type = rng.choice(range(15))
    elif change == "value":
        attribute.i, attribute.f = rng.choice(ABSURD), float(rng.choice(ABSURD))
        attribute.ints[:] = [rng.choice(ABSURD) for _ in attribute.ints]
    elif change == "ints":
        attribute.type = AttributeProto.INTS
        attribute.ints[:] = [rng.choice(ABSURD) for _ in range(rng.choice((0, 1, 2, 4, 9, 100)))]
    elif change == "tensor":
        tensor = TensorProto(dims=[rng.choice(ABSURD)], data_type=rng.choice(range(24)))
        attribute.CopyFrom(AttributeProto(name=name, type=AttributeProto.TENSOR, t=tensor))
    elif change == "graph":
        attribute.CopyFrom(AttributeProto(name=name, type=AttributeProto.GRAPH, g=made.graph))
    elif change == "reference":
        attribute.ref_attr_name = "nowhere"
    else:
        attribute.CopyFrom(AttributeProto(name=name))
    return f"{change} of {node.op_type}.{name}"


def _operators(rng: Rng, made: onnx.ModelProto) -> str:
    node = _node(rng, made)
    before = node.op_type
    node.op_type = rng.choice(_OPERATORS)
    if rng.random() < 0.2:
        node.domain = rng.choice(("ai.onnx.ml", "d", "com.microsoft", *_TEXTS))
    return f"{before} becomes {node.op_type}"


def _rewire(rng: Rng, made: onnx.ModelProto) -> str:
    for _ in range(rng.choice((1, 2, 5))):
        graph = rng.choice(_graphs(made.graph))
        node = _pick(rng, graph.node)
        if node is None:
            continue
        change = rng.choice(("input", "drop", "add", "remove", "outputs"))
        if change == "input" and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*_values(graph), ""])
        elif change == "drop" and node.input:
            del node.input[-1]
        elif change == "add":
            node.input.extend([rng.choice(_values(graph))] * rng.choice((1, 3, 500)))
        elif change == "remove":
            graph.node.remove(node)
        else:
            node.output.extend([f"more{n}" for n in range(rng.choice((1, 5, 500)))])
    return "other inputs and outputs"


def _weights(rng: Rng, made: onnx.ModelProto) -> str:
    tensors = made.graph.initializer
    if not tensors:
        return "none"
    tensor = _pick(rng, tensors)
    change = rng.choice(("short", "long", "none", "nan", "both", "segment", "remove"))
    if change == "short":
        tensor.raw_data = tensor.raw_data[:3]
    elif change == "long":
        tensor.raw_data += b"\1" * rng.choice((1, 4, 10_000))
    elif change == "none":
        tensor.ClearField("raw_data")
    elif change == "nan":
        tensor.raw_data = b"\xff" * len(tensor.raw_data)
    elif change == "both":
        tensor.float_data.extend([1.0] * 5)
        tensor.string_data.append(b"\xff\xfe")
    elif change == "segment":
        tensor.segment.begin, tensor.segment.end = rng.choice(ABSURD), rng.choice(ABSURD)
    else:
        tensors.remove(tensor)
    return f"{change} weights"


def _merge(rng: Rng, made: onnx.ModelProto) -> str:
    name, data = _choose(rng)
    other = onnx.ModelProto.FromString(data)
    graph = made.graph
    if rng.random() < 0.5 and graph.output and other.graph.input:
        _rename(other.graph, other.graph.input[0].name, graph.output[0].name)
    graph.node.extend(other.graph.node)
    graph.initializer.extend(other.graph.initializer)
    graph.output.extend(other.graph.output)
    if rng.random() < 0.7:
        graph.input.extend(other.graph.input)
    if rng.random() < 0.3:
        nodes = list(graph.node)
        rng.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    made.functions.extend(other.functions)
    return f"with {name}"


def _versions(rng: Rng, made: onnx.ModelProto) -> str:
    change = rng.choice(("ir", "opset", "none", "many"))
    if change == "ir":
        made.ir_version = rng.choice(ABSURD)
    elif change == "none":
        del made.opset_import[:]
    else:
        for _ in range(1 if change == "opset" else 1000):
            made.opset_import.add(domain="", version=rng.choice((*ABSURD, 5, 9, 13, 18, 25)))
    return change


def _claims(rng: Rng, made: onnx.ModelProto) -> str:  # noqa: C901 - a list of claims
    """Ask for gigabytes in a few bytes."""
    size = rng.choice((2**28, 2**30, 2**31, 2**34, 2**40, 2**62))
    side = int(size**0.5)
    graph = made.graph
    what = rng.choice(
        ("weights", "fill", "expand", "tile", "range", "random", "pad", "loop", "onehot", "resize")
    )

    def constant(name: str, *values: float, kind: Any = np.int64) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=kind), name))
        return name

    def scalar(name: str, value: float, kind: Any = np.int64) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=kind), name))
        return name

    one = constant("claim.one", 1.0, kind=np.float32)
    out = ["claimed"]
    if what == "weights":
        tensor = graph.initializer.add(name="claim.w", data_type=TensorProto.FLOAT)
        tensor.dims.extend([side, side])
        tensor.raw_data = b"\0" * 4
        node = helper.make_node("Relu", ["claim.w"], out)
    elif what == "fill":
        node = helper.make_node("ConstantOfShape", [constant("claim.s", side, side)], out)
    elif what == "expand":
        node = helper.make_node("Expand", [one, constant("claim.s", side, side)], out)
    elif what == "tile":
        node = helper.make_node("Tile", [one, constant("claim.s", size)], out)
    elif what == "range":
        ends = [scalar("claim.a", 0), scalar("claim.b", size), scalar("claim.c", 1)]
        node = helper.make_node("Range", ends, out)
    elif what == "random":
        node = helper.make_node("RandomUniform", [], out, shape=[side, side])
    elif what == "pad":
        node = helper.make_node("Pad", [one, constant("claim.s", size, size)], out)
    elif what == "onehot":
        ends = [constant("claim.a", 0), scalar("claim.b", size), constant("claim.c", 0, 1)]
        node = helper.make_node("OneHot", ends, out)
    elif what == "resize":
        ends = [one, "", constant("claim.s", float(size), kind=np.float32)]
        node = helper.make_node("Resize", ends, out)
    else:
        body = helper.make_graph(
            [
                helper.make_node("Add", ["claim.v", "claim.v"], ["claim.v2"]),
                helper.make_node("Identity", ["claim.go"], ["claim.go2"]),
            ],
            "body",
            [
                helper.make_tensor_value_info("claim.i", TensorProto.INT64, []),
                helper.make_tensor_value_info("claim.go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("claim.v", TensorProto.FLOAT, [1]),
            ],
            [
                helper.make_tensor_value_info("claim.go2", TensorProto.BOOL, []),
                helper.make_tensor_value_info("claim.v2", TensorProto.FLOAT, [1]),
            ],
        )
        ends = [scalar("claim.n", size), scalar("claim.c", 1, np.bool_), one]
        node = helper.make_node("Loop", ends, out, body=body)
    graph.node.append(node)
    graph.output.append(helper.make_tensor_value_info("claimed", TensorProto.FLOAT, None))
    return f"{what} of {size:,}"


def _recursion(rng: Rng, made: onnx.ModelProto) -> str:
    """Let a local function call itself, or another that calls it."""
    made.opset_import.add(domain="r", version=1)
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("r", 1)]
    for name, other in rng.choice(((("A", "A"),), (("A", "B"), ("B", "A")))):
        body = [helper.make_node(other, ["a"], ["b"], domain="r")]
        made.functions.append(helper.make_function("r", name, ["a"], ["b"], body, opset))
    first = rng.choice(_values(made.graph))
    made.graph.node.append(helper.make_node("A", [first], ["recursive"], domain="r"))
    made.graph.output.append(helper.make_tensor_value_info("recursive", TensorProto.FLOAT, None))
    return "a function that calls itself"


def _many(rng: Rng, made: onnx.ModelProto) -> str:
    graph, count = made.graph, rng.choice((100, 1000))
    name = rng.choice(_values(graph))
    for index in range(count):
        graph.node.append(helper.make_node("Identity", [name], [f"many{index}"]))
        name = f"many{index}"
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return f"{count} nodes more"


_GRAPH: tuple[Callable[[Rng, onnx.ModelProto], str], ...] = (
    *(_shape, _shape, _numbers, _numbers, _cycle, _same_names, _odd_names, _odd_names, _types),
    *(_types, _attributes, _attributes, _operators, _operators, _rewire, _weights, _merge, _merge),
    *(_versions, _claims, _claims, _recursion, _many),
)


def _not_utf8(rng: Rng, data: bytes) -> tuple[bytes, str]:
    """Make a name into what is no text, everywhere."""
    made = onnx.ModelProto.FromString(data)
    names = [n for n in (*_values(made.graph), *(n.op_type for n in made.graph.node)) if n]
    name = rng.choice(names or ["x"]).encode()
    marker = b"\xff" * len(name)
    tree = wire.decode(data, onnx.ModelProto.DESCRIPTOR)
    for _, fields in wire.messages(tree):
        for field in fields:
            if field.value == name:
                field.value = rng.choice((marker, b"\xc3" * len(name)))
    return wire.encode(tree), f"{name[:30]!r}"


def _nested(rng: Rng) -> tuple[bytes, str]:
    """Make an If in an If in an If."""
    depth = rng.choice((1, 5, 20, 31, 32, 33, 34, 50, 99, 200, 5000))
    leaf = wire.delimited(1, b"x") + wire.delimited(2, b"y0") + wire.delimited(4, b"Relu")
    output = wire.delimited(1, b"y0")
    graph = wire.delimited(1, leaf) + wire.delimited(2, b"g") + wire.delimited(12, output)
    for level in range(1, depth + 1):
        branch = [
            wire.delimited(5, wire.delimited(1, name) + wire.delimited(6, graph) + b"\xa0\x01\x05")
            for name in ((b"then_branch", b"else_branch") if level <= 2 else (b"then_branch",))
        ]
        out = f"y{level}".encode()
        node = wire.delimited(1, b"c") + wire.delimited(2, out) + wire.delimited(4, b"If")
        node += b"".join(branch)
        graph = wire.delimited(1, node) + wire.delimited(2, b"g")
        graph += wire.delimited(12, wire.delimited(1, out))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    graph += b"".join(wire.delimited(11, value.SerializeToString()) for value in inputs)
    opset = wire.delimited(8, wire.delimited(1, b"") + wire.number(2, 17))
    return wire.number(1, 8) + wire.delimited(7, graph) + opset, f"{depth} deep"


# ---- weights elsewhere --------------------------------------------------------------------------

#: Where weights are, what to put beside the model, and whether nothing but a refusal is right.
#: In them {outside} is a folder beside the model's.
_PLACES: tuple[tuple[str, tuple[tuple[str, str, Any], ...], bool], ...] = (
    ("../outside/secret.bin", (), True),
    ("a/../../outside/secret.bin", (("a", "folder", None),), True),
    ("{outside}/secret.bin", (), True),
    ("//{outside}/secret.bin", (), True),
    ("link.bin", (("link.bin", "link", "{outside}/secret.bin"),), True),
    ("folder/secret.bin", (("folder", "link", "{outside}"),), True),
    ("link.bin", (("link.bin", "link", "/dev/zero"),), True),
    ("link.bin", (("link.bin", "link", "/proc/self/mem"),), True),
    ("link.bin", (("link.bin", "link", "/proc/self/fd/0"),), True),
    ("link.bin", (("link.bin", "link", "link.bin"),), True),
    ("/proc/self/environ", (), True),
    ("/proc/self/maps", (), True),
    ("/etc/passwd", (), True),
    ("/dev/zero", (), True),
    ("/dev/random", (), True),
    ("/dev/stdin", (), True),
    ("/dev/fd/0", (), True),
    ("/dev/tty", (), True),
    ("pipe.bin", (("pipe.bin", "pipe", None),), True),
    ("{outside}/pipe.bin", (), True),
    ("", (), True),
    (".", (), True),
    ("..", (), True),
    ("folder", (("folder", "folder", None),), True),
    ("nothing.bin", (), True),
    ("secret.bin\0.bin", (), True),
    ("x" * 5000, (), True),
    ("weights.bin", (("weights.bin", "file", 4),), False),
    ("weights.bin", (("weights.bin", "file", 0),), False),
    ("weights.bin", (("weights.bin", "file", 100_000),), False),
    ("weights.bin", (("weights.bin", "sparse", 1 << 33),), False),
    ("model.onnx", (), False),
)
_NOT_THERE = ("nothing.bin", "x" * 5000)
_NUMBERS = ("0", "4", "-1", "1073741824", "9223372036854775807", "18446744073709551616", "1e9", "")


def _external(rng: Rng, index: int) -> Case:
    origin = rng.choice(("mlp", "convnet", "lstm", "transformer"))
    made = onnx.ModelProto.FromString(_load(origin))
    location, beside, refused = rng.choice(_PLACES)
    # The place of the folder beside is only known when the case is laid out.
    location = location.replace("{outside}", OUTSIDE)
    tensors = list(made.graph.initializer)
    chosen = tensors if rng.random() < 0.3 else [rng.choice(tensors)]
    for tensor in chosen:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entries = [("location", location)]
        if rng.random() < 0.5:
            entries.append(("offset", rng.choice(_NUMBERS)))
        if rng.random() < 0.5:
            entries.append(("length", rng.choice(_NUMBERS)))
        if rng.random() < 0.2:  # of several, any could be the one that is read
            entries.insert(rng.randrange(2), ("location", "weights.bin"))
            # A file that is not there is harmless where another is read.
            refused = refused and location not in _NOT_THERE
            beside = (*(b for b in beside if b[0] != "weights.bin"), ("weights.bin", "file", 4096))
        if tensor.dims and rng.random() < 0.3:
            tensor.dims[0] = rng.choice((2**20, 2**28, 2**40))
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
    note = f"{location[:60]!r} {[b[:2] for b in beside]}"
    data = made.SerializeToString()
    return Case(index, origin, "external", note, data, beside, refused)


#: As long as the path that takes its place, since lengths are already written.
OUTSIDE = "@" * 200


def _not_a_file(rng: Rng, index: int) -> Case:
    """Put something else where the model should be."""
    places = ("pipe", "folder", "/dev/zero", "/dev/null", "/dev/random", "/proc/self/mem")
    place = rng.choice((*places, "/proc/self/maps", "loop", "dangling", "odd name", "missing"))
    return Case(index, "mlp", "place", place, _load("mlp"), place=place)


# ---- cases --------------------------------------------------------------------------------------


def make_case(seed: int, index: int) -> Case:
    """Make the case of a seed and an index."""
    rng = random.Random(f"{seed}:{index}")  # noqa: S311 - repeatable on purpose
    kind = rng.choices(
        ("bytes", "fields", "graph", "names", "nested", "external", "place"),
        (20, 20, 42, 3, 3, 11, 1),
    )[0]
    if kind == "external":
        return _external(rng, index)
    if kind == "place":
        return _not_a_file(rng, index)
    if kind == "nested":
        data, note = _nested(rng)
        return Case(index, "nothing", kind, note, data)
    origin, data = _choose(rng)
    if kind == "bytes":
        data, note = _change_bytes(rng, data)
    elif kind == "fields":
        data, note = _fields(rng, data)
    elif kind == "names":
        data, note = _not_utf8(rng, data)
    else:
        made = onnx.ModelProto.FromString(data)
        notes = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change = rng.choice(_GRAPH)
            try:
                notes.append(f"{change.__name__[1:]} ({change(rng, made)})")
            except (ValueError, TypeError, OverflowError) as error:
                # A number too large for its field: then the field stays as it is.
                notes.append(f"{change.__name__[1:]} (not possible: {type(error).__name__})")
        data, note = made.SerializeToString(), ", ".join(notes)
        if rng.random() < 0.15:
            data, more = _change_bytes(rng, data)
            note += f", {more}"
    return Case(index, origin, kind, note[:200], data)


def _change_bytes(rng: Rng, data: bytes) -> tuple[bytes, str]:
    changed = bytearray(data or b"\0")
    change = rng.choice(_BYTES)
    note = change(rng, changed)
    return bytes(changed), f"{change.__name__[1:]} {note}"


def lay_out(case: Case, folder: Path) -> Path:  # noqa: C901, PLR0912 - a list of places
    """Put a case into an empty folder; give the model's path.

    Besides the model's own folder there is another, with a file that no model may read.
    """
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret.bin").write_bytes(b"\1" * 65536)
    os.mkfifo(outside / "pipe.bin")
    inside = folder / "inside"
    inside.mkdir()
    # Slashes fill the path up: lengths are already written into the model.
    path = str(outside)
    full = path[:1] + "/" * (len(OUTSIDE) - len(path)) + path[1:]
    if len(full) != len(OUTSIDE):
        msg = f"the folder's path is too long: {folder}"
        raise ValueError(msg)
    for name, kind, value in case.beside:
        place = inside / name
        if kind == "folder":
            place.mkdir(exist_ok=True)
        elif kind == "link":
            place.symlink_to(value.replace("{outside}", path))
        elif kind == "pipe":
            os.mkfifo(place)
        elif kind == "sparse":
            with place.open("wb") as file:
                file.truncate(value)
        else:
            place.write_bytes(b"\1" * value)
    data = case.data.replace(OUTSIDE.encode(), full.encode())
    model = inside / "model.onnx"
    if case.place == "pipe":
        os.mkfifo(model)
    elif case.place == "folder":
        model.mkdir()
    elif case.place == "loop":
        model.symlink_to(model)
    elif case.place == "dangling":
        model.symlink_to(inside / "nothing")
    elif case.place.startswith("/"):
        model.symlink_to(case.place)
    elif case.place == "odd name":
        model = inside / os.fsdecode(b"\xff\xfe \n.onnx")
        model.write_bytes(data)
    elif case.place == "file":
        model.write_bytes(data)
    return model
