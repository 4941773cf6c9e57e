"""Networks of many kinds, made at any size: what the estimates of build times are tried with.

Weights are random and small: the time of a build follows from how many layers there are and of
which kinds. Every family has an operator mix of its own, after a known architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto, helper

from tests.models import convnet, mlp, model, transformer

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx


class _Net:
    """Adds nodes and weights; values are called by their names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self._random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output and give the output's name."""
        return self.split(operator, *inputs, many=1, **attributes)[0]

    def split(self, operator: str, *inputs: str, many: int, **attributes: Any) -> list[str]:
        name = f"{operator.lower()}{len(self.nodes)}"
        outputs = [f"{name}.{index}" for index in range(many)]
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return outputs

    def weight(self, *shape: int) -> str:
        scale = np.float32(max(1, int(np.prod(shape[1:]))) ** -0.5)
        return self._keep(self._random.standard_normal(shape, dtype=np.float32) * scale)

    def floats(self, *values: float) -> str:
        return self._keep(np.array(values if len(values) > 1 else values[0], dtype=np.float32))

    def ints(self, *values: int) -> str:
        return self._keep(np.array(values, dtype=np.int64))

    def _keep(self, array: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def linear(self, value: str, rows: int, columns: int) -> str:
        return self.add(
            "Add", self.add("MatMul", value, self.weight(rows, columns)), self.weight(columns)
        )

    def normalize(self, value: str, width: int) -> str:
        ones, zeros = self._keep(np.ones(width, "f")), self._keep(np.zeros(width, "f"))
        return self.add("LayerNormalization", value, ones, zeros, axis=-1)

    def gelu(self, value: str) -> str:
        """GELU as exporters write it, in five nodes."""
        scaled = self.add("Div", value, self.floats(2.0**0.5))
        shifted = self.add("Add", self.add("Erf", scaled), self.floats(1.0))
        return self.add("Mul", self.add("Mul", value, shifted), self.floats(0.5))

    def conv(self, value: str, taken: int, given: int, kernel: int = 3, **attributes: Any) -> str:
        pads = [kernel // 2] * 4
        weight = self.weight(given, taken // attributes.get("group", 1), kernel, kernel)
        return self.add("Conv", value, weight, self.weight(given), pads=pads, **attributes)

    def batch_norm(self, value: str, channels: int) -> str:
        ones, zeros = self._keep(np.ones(channels, "f")), self._keep(np.zeros(channels, "f"))
        return self.add("BatchNormalization", value, ones, zeros, zeros, ones)

    def reshape(self, value: str, *shape: int) -> str:
        return self.add("Reshape", value, self.ints(*shape))

    def cut(self, value: str, start: int, end: int, axis: int = -1) -> str:
        return self.add("Slice", value, self.ints(start), self.ints(end), self.ints(axis))

    def done(self, value: str, *shape: int) -> onnx.ModelProto:
        """Give the model that takes ``x`` of this shape."""
        inputs: list[tuple[str, int, Any]] = [("x", TensorProto.FLOAT, list(shape))]
        made = model(self.nodes, inputs, [(value, TensorProto.FLOAT, None)], self.weights)
        made.graph.name = "network"
        return made


def gpt(blocks: int, width: int = 64, heads: int = 4, tokens: int = 16) -> onnx.ModelProto:
    """Make a decoder: one matrix for query, key and value, heads by reshaping, GELU in pieces."""
    net, value = _Net(), "x"
    for _ in range(blocks):
        mixed = net.linear(net.normalize(value, width), width, 3 * width)
        parts = net.split("Split", mixed, net.ints(width, width, width), many=3, axis=-1)
        query, key, values = (
            net.add(
                "Transpose", net.reshape(part, 1, tokens, heads, width // heads), perm=[0, 2, 1, 3]
            )
            for part in parts
        )
        turned = net.add("Transpose", key, perm=[0, 1, 3, 2])
        scores = net.add("Div", net.add("MatMul", query, turned), net.floats(4.0))
        shares = net.add("Softmax", net.add("Add", scores, net.weight(tokens, tokens)), axis=-1)
        back = net.add("Transpose", net.add("MatMul", shares, values), perm=[0, 2, 1, 3])
        out = net.linear(net.reshape(back, 1, tokens, width), width, width)
        value = net.add("Add", value, out)
        wide = net.linear(net.normalize(value, width), width, 4 * width)
        value = net.add("Add", value, net.linear(net.gelu(wide), 4 * width, width))
    return net.done(value, 1, tokens, width)


def llama(blocks: int, width: int = 64, heads: int = 4, tokens: int = 16) -> onnx.ModelProto:
    """Make a decoder with RMS norms and rotary embeddings in pieces, and a gated MLP."""
    net, value, each = _Net(), "x", width // heads

    def norm(value: str) -> str:
        squares = net.add("Pow", value, net.floats(2.0))
        mean = net.add("ReduceMean", squares, axes=[-1])
        root = net.add("Sqrt", net.add("Add", mean, net.floats(1e-6)))
        return net.add("Mul", net.add("Div", value, root), net.weight(width))

    def rotate(value: str) -> str:
        left, right = net.cut(value, 0, each // 2), net.cut(value, each // 2, each)
        turned = net.add("Concat", net.add("Neg", right), left, axis=-1)
        even = net.add("Mul", value, net.weight(tokens, each))
        return net.add("Add", even, net.add("Mul", turned, net.weight(tokens, each)))

    for _ in range(blocks):
        normal = norm(value)
        query, key, values = (
            net.add(
                "Transpose",
                net.reshape(
                    net.add("MatMul", normal, net.weight(width, width)), 1, tokens, heads, each
                ),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        turned = net.add("Transpose", rotate(key), perm=[0, 1, 3, 2])
        scores = net.add("MatMul", rotate(query), turned)
        shares = net.add("Softmax", net.add("Mul", scores, net.floats(0.25)), axis=-1)
        back = net.add("Transpose", net.add("MatMul", shares, values), perm=[0, 2, 1, 3])
        out = net.add("MatMul", net.reshape(back, 1, tokens, width), net.weight(width, width))
        value = net.add("Add", value, out)
        normal = norm(value)
        gate = net.add("MatMul", normal, net.weight(width, 2 * width))
        gate = net.add("Mul", gate, net.add("Sigmoid", gate))
        wide = net.add("Mul", gate, net.add("MatMul", normal, net.weight(width, 2 * width)))
        value = net.add("Add", value, net.add("MatMul", wide, net.weight(2 * width, width)))
    return net.done(value, 1, tokens, width)


def mixer(blocks: int, width: int = 64, tokens: int = 16) -> onnx.ModelProto:
    """Perceptrons over tokens and over channels in turn."""
    net, value = _Net(), "x"
    for _ in range(blocks):
        turned = net.add("Transpose", net.normalize(value, width), perm=[0, 2, 1])
        hidden = net.gelu(net.linear(turned, tokens, 2 * tokens))
        back = net.add("Transpose", net.linear(hidden, 2 * tokens, tokens), perm=[0, 2, 1])
        value = net.add("Add", value, back)
        hidden = net.gelu(net.linear(net.normalize(value, width), width, 2 * width))
        value = net.add("Add", value, net.linear(hidden, 2 * width, width))
    return net.done(value, 1, tokens, width)


def windows(blocks: int, width: int = 32, side: int = 8) -> onnx.ModelProto:
    """Attention within shifted windows: rolling by slices, partition by reshaping."""
    net, value, half = _Net(), "x", side // 2
    for block in range(blocks):
        normal = net.normalize(value, width)
        if block % 2:
            for axis in (1, 2):
                parts = net.cut(normal, 2, side, axis), net.cut(normal, 0, 2, axis)
                normal = net.add("Concat", *parts, axis=axis)
        cells = net.reshape(normal, 1, 2, half, 2, half, width)
        cells = net.reshape(
            net.add("Transpose", cells, perm=[0, 1, 3, 2, 4, 5]), 4, half * half, width
        )
        query, key, values = (net.linear(cells, width, width) for _ in range(3))
        scores = net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1]))
        scores = net.add("Add", scores, net.weight(half * half, half * half))
        mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), values)
        mixed = net.reshape(net.linear(mixed, width, width), 1, 2, 2, half, half, width)
        back = net.reshape(
            net.add("Transpose", mixed, perm=[0, 1, 3, 2, 4, 5]), 1, side, side, width
        )
        value = net.add("Add", value, back)
        hidden = net.gelu(net.linear(net.normalize(value, width), width, 4 * width))
        value = net.add("Add", value, net.linear(hidden, 4 * width, width))
    return net.done(value, 1, side, side, width)


def resnet(blocks: int, channels: int = 32, side: int = 16) -> onnx.ModelProto:
    """Bottlenecks with batch normalizations and a shortcut."""
    net = _Net()
    value = net.conv("x", 3, channels)
    for _ in range(blocks):
        inner = net.add(
            "Relu", net.batch_norm(net.conv(value, channels, channels // 4, 1), channels // 4)
        )
        inner = net.add(
            "Relu", net.batch_norm(net.conv(inner, channels // 4, channels // 4), channels // 4)
        )
        inner = net.batch_norm(net.conv(inner, channels // 4, channels, 1), channels)
        value = net.add("Relu", net.add("Add", value, inner))
    return net.done(net.add("GlobalAveragePool", value), 1, 3, side, side)


def mobilenet(blocks: int, channels: int = 16, side: int = 16) -> onnx.ModelProto:
    """Inverted residuals: depthwise convolutions, hard swish, squeeze and excite."""
    net, wide = _Net(), 4 * channels
    value = net.conv("x", 3, channels)
    for _ in range(blocks):
        inner = net.add("HardSwish", net.batch_norm(net.conv(value, channels, wide, 1), wide))
        inner = net.add("HardSwish", net.batch_norm(net.conv(inner, wide, wide, group=wide), wide))
        small = net.add("Relu", net.conv(net.add("GlobalAveragePool", inner), wide, channels, 1))
        gate = net.add("HardSigmoid", net.conv(small, channels, wide, 1))
        inner = net.batch_norm(net.conv(net.add("Mul", inner, gate), wide, channels, 1), channels)
        value = net.add("Add", value, inner)
    return net.done(value, 1, 3, side, side)


def convnext(blocks: int, channels: int = 32, side: int = 8) -> onnx.ModelProto:
    """Large depthwise convolutions, normalization and perceptron over channels."""
    net = _Net()
    value = net.conv("x", 3, channels)
    for _ in range(blocks):
        inner = net.conv(value, channels, channels, 7, group=channels)
        inner = net.normalize(net.add("Transpose", inner, perm=[0, 2, 3, 1]), channels)
        inner = net.gelu(net.linear(inner, channels, 4 * channels))
        inner = net.add("Mul", net.linear(inner, 4 * channels, channels), net.weight(channels))
        value = net.add("Add", value, net.add("Transpose", inner, perm=[0, 3, 1, 2]))
    return net.done(value, 1, 3, side, side)


def densenet(layers: int, growth: int = 4, side: int = 8) -> onnx.ModelProto:
    """Every layer sees the outputs of the twelve before it; a transition after each dozen."""
    net, channels = _Net(), 16
    value = net.conv("x", 3, channels)
    for layer in range(1, layers + 1):
        inner = net.add("Relu", net.batch_norm(value, channels))
        inner = net.add(
            "Relu", net.batch_norm(net.conv(inner, channels, 4 * growth, 1), 4 * growth)
        )
        value = net.add("Concat", value, net.conv(inner, 4 * growth, growth), axis=1)
        channels += growth
        if layer % 12 == 0:
            value = net.conv(net.add("Relu", net.batch_norm(value, channels)), channels, 16, 1)
            channels = 16
    return net.done(value, 1, 3, side, side)


def inception(blocks: int, channels: int = 32, side: int = 8) -> onnx.ModelProto:
    """Four branches of different convolutions and a pooling, put together."""
    net, part = _Net(), channels // 4
    value = net.conv("x", 3, channels)
    for _ in range(blocks):
        pool = net.add("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        branches = [
            net.conv(value, channels, part, 1),
            net.conv(net.add("Relu", net.conv(value, channels, part, 1)), part, part, 3),
            net.conv(net.add("Relu", net.conv(value, channels, part, 1)), part, part, 5),
            net.conv(pool, channels, part, 1),
        ]
        branches = [net.add("Relu", branch) for branch in branches]
        value = net.add("Concat", *branches, axis=1)
    return net.done(value, 1, 3, side, side)


def unet(times: int, channels: int = 8, side: int = 32) -> onnx.ModelProto:
    """Down and up again with skips, several times one after the other."""
    net = _Net()
    value = net.conv("x", 3, channels)
    for _ in range(times):
        skips = []
        for _ in range(3):
            value = net.add("Relu", net.conv(value, channels, channels))
            value = net.add("Relu", net.conv(value, channels, channels))
            skips.append(value)
            value = net.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        for skip in reversed(skips):
            scales = net.floats(1.0, 1.0, 2.0, 2.0)
            value = net.add("Resize", value, "", scales, mode="nearest")
            value = net.add("Concat", value, skip, axis=1)
            value = net.add("Relu", net.conv(value, 2 * channels, channels))
            value = net.add("LeakyRelu", net.conv(value, channels, channels), alpha=0.1)
    return net.done(value, 1, 3, side, side)


def wavenet(layers: int, channels: int = 16, length: int = 64) -> onnx.ModelProto:
    """Dilated convolutions in one dimension with gates and skips."""
    net, value = _Net(), "x"
    total = value
    for layer in range(layers):
        dilation = 2 ** (layer % 4)
        halves = [
            net.add(
                "Conv",
                value,
                net.weight(channels, channels, 3),
                dilations=[dilation],
                pads=[dilation, dilation],
            )
            for _ in range(2)
        ]
        gated = net.add("Mul", net.add("Tanh", halves[0]), net.add("Sigmoid", halves[1]))
        out = net.add("Conv", gated, net.weight(channels, channels, 1))
        total = net.add("Add", total, out)
        value = net.add("Add", value, out)
    return net.done(net.add("Relu", total), 1, channels, length)


def recurrent(layers: int, width: int = 16, steps: int = 8) -> onnx.ModelProto:
    """LSTM and GRU in turn: loops with recurrences inside."""
    net, value = _Net(), "x"
    for layer in range(layers):
        operator, gates = ("GRU", 3) if layer % 2 else ("LSTM", 4)
        weights = [net.weight(1, gates * width, width) for _ in range(2)]
        out = net.add(operator, value, *weights, hidden_size=width)
        value = net.add("Squeeze", out, net.ints(1))
    return net.done(value, steps, 1, width)


def pointwise(length: int, width: int = 64) -> onnx.ModelProto:
    """Long chains of element by element operations, now and then a sum over all.

    The chains have no forks: on a Fibonacci-like one of 75 links the builder needed more than ten
    minutes to fuse them.
    """
    net, value = _Net(), "x"
    for place in range(length):
        operator = ("Sin", "Tanh", "Abs", "Sigmoid", "Exp", "Neg")[place % 6]
        value = net.add("Add", net.add(operator, value), net.weight(width))
        if place % 3 == 2:
            total = net.add("ReduceSum", value, net.ints(-1), keepdims=1)
            value = net.add("Div", value, net.add("Abs", total))
    return net.done(value, 4, width)


def graph_network(rounds: int, nodes: int = 16, width: int = 32) -> onnx.ModelProto:
    """Messages along edges: gather, perceptron, scatter by a matrix, normalization."""
    net, value = _Net(), "x"
    ends = [net.ints(*np.random.default_rng(seed).integers(0, nodes, 32)) for seed in range(2)]
    for _ in range(rounds):
        sides = [net.add("Gather", value, end, axis=0) for end in ends]
        message = net.add("Concat", *sides, axis=-1)
        message = net.add("Relu", net.linear(message, 2 * width, width))
        gate = net.add("Sigmoid", net.linear(message, width, 1))
        summed = net.add("MatMul", net.weight(nodes, 32), net.add("Mul", message, gate))
        joined = net.linear(net.add("Concat", value, summed, axis=-1), 2 * width, width)
        value = net.normalize(net.add("Elu", joined), width)
    return net.done(value, nodes, width)


def detector(times: int, channels: int = 16, side: int = 16) -> onnx.ModelProto:
    """Pyramids of features with heads for boxes and classes; the heads are put together."""
    net, heads = _Net(), []
    value = net.conv("x", 3, channels)
    for _ in range(times):
        levels = [value]
        for _ in range(2):
            inner = net.conv(levels[-1], channels, channels, strides=[2, 2])
            levels.append(net.add("Mul", inner, net.add("Sigmoid", inner)))
        for level in (1, 0):
            up = net.add("Resize", levels[level + 1], "", net.floats(1.0, 1.0, 2.0, 2.0))
            levels[level] = net.conv(net.add("Add", levels[level], up), channels, channels)
        for feature in levels:
            for given in (4, 8):
                inner = net.conv(feature, channels, channels)
                inner = net.add("Mul", inner, net.add("Sigmoid", inner))
                head = net.reshape(net.conv(inner, channels, given, 1), 1, given, -1)
                heads.append(net.add("ReduceMax", head, axes=[1], keepdims=1))
        value = levels[0]
    return net.done(net.add("Concat", *heads, axis=-1), 1, 3, side, side)


#: What is made from a family's name and a size.
FAMILIES: Final[dict[str, Callable[[int], onnx.ModelProto]]] = {
    "convnet": convnet,
    "convnext": convnext,
    "densenet": densenet,
    "detector": detector,
    "gpt": gpt,
    "graph": graph_network,
    "inception": inception,
    "llama": llama,
    "mixer": mixer,
    "mlp": mlp,
    "mobilenet": mobilenet,
    "pointwise": pointwise,
    "recurrent": recurrent,
    "resnet": resnet,
    "transformer": transformer,
    "unet": unet,
    "wavenet": wavenet,
    "windows": windows,
}
