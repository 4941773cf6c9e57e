"""Small ONNX models written byte by byte: they are there where the ``onnx`` package is not.

A model is protobuf, of which only two kinds of fields are needed here: numbers and what has a
length (text, bytes, messages). The field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = [
    "BATCH",
    "WIDTH",
    "endless_model",
    "expected",
    "sample_input",
    "sample_model",
    "unbuildable_model",
]

#: The shape of the model's input and output, and how many layers lie between.
BATCH: Final = 4
WIDTH: Final = 16
_LAYERS: Final = 6

_FLOAT: Final = 1  # TensorProto.DataType


def _varint(number: int) -> bytes:
    digits = []
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _field(number: int, *values: int | str | bytes) -> bytes:
    """Write a field; repeated, for several values."""
    parts = []
    for value in values:
        if isinstance(value, int):
            parts.append(_varint(number << 3) + _varint(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts.append(_varint(number << 3 | 2) + _varint(len(data)) + data)
    return b"".join(parts)


def _node(kind: str, name: str, inputs: tuple[str, ...], output: str) -> bytes:
    return _field(1, *inputs) + _field(2, output) + _field(3, name) + _field(4, kind)


def _value(name: str) -> bytes:
    """Write a ``ValueInfoProto`` of the one shape that there is."""
    shape = _field(1, _field(1, BATCH), _field(1, WIDTH))
    tensor = _field(1, _FLOAT) + _field(2, shape)
    return _field(1, name) + _field(2, _field(1, tensor))


def _tensor(name: str, rows: list[list[float]]) -> bytes:
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    dims = _field(1, len(rows), len(rows[0]))
    return dims + _field(2, _FLOAT) + _field(8, name) + _field(9, data)


def _model(nodes: list[bytes], weights: list[bytes], *outputs: str) -> bytes:
    graph = (
        _field(1, *nodes)
        + _field(2, "sample")
        + _field(5, *weights)
        + _field(11, _value("x"))
        + _field(12, *map(_value, outputs))
    )
    opset = _field(1, "") + _field(2, 17)
    return _field(1, 8) + _field(2, "trt_widget") + _field(7, graph) + _field(8, opset)


def _weight(layer: int) -> list[list[float]]:
    """Give a layer's weights: eighths, so that they are exact in every precision."""
    return [
        [((7 * row + 3 * column + layer) % 5 - 1) / 8 for column in range(WIDTH)]
        for row in range(WIDTH)
    ]


def sample_model() -> bytes:
    """Give the model ``y = relu(... relu(x W0) W1 ...)``, six layers of 16 by 16."""
    nodes, weights, last = [], [], "x"
    for layer in range(_LAYERS):
        weights.append(_tensor(f"w{layer}", _weight(layer)))
        nodes.append(_node("MatMul", f"matmul{layer}", (last, f"w{layer}"), f"m{layer}"))
        last = "y" if layer == _LAYERS - 1 else f"r{layer}"
        nodes.append(_node("Relu", f"relu{layer}", (f"m{layer}",), last))
    return _model(nodes, weights, "y")


def unbuildable_model() -> bytes:
    """Give a model with an operator that nobody knows."""
    return _model([_node("NobodyKnowsThis", "the node", ("x",), "y")], [], "y")


def endless_model() -> bytes:
    """Give a model without an output: it can be parsed, and not be built."""
    return _model([_node("Relu", "relu", ("x",), "y")], [])


def sample_input() -> list[list[float]]:
    """Give an input of the model."""
    return [[(row + column) % 4 / 4 for column in range(WIDTH)] for row in range(BATCH)]


def expected() -> list[list[float]]:
    """Give the output for :func:`sample_input`."""
    rows = sample_input()
    for layer in range(_LAYERS):
        weight = _weight(layer)
        columns = list(zip(*weight, strict=True))
        rows = [
            [max(0.0, sum(map(float.__mul__, row, map(float, column)))) for column in columns]
            for row in rows
        ]
    return rows
