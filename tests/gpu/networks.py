"""Networks with weights of which every one matters to the output, and what they have to give.

The light models of the ``onnx`` package are whole topologies whose weights are one constant each:
what they give is the same number a thousand times, whatever was computed. Here they get weights of
their own, seeded, and lose the softmax at their end, which would hide differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from tests import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Mantissa bits of TF32, in which matrix products may take their factors.
TF32_BITS: Final = 10
#: As if products took factors of so many bits. In FP32 the factors are whole; but every one of
#: the K additions of a sum rounds to 24 bits, which grows like sqrt(K) where signs are mixed. The
#: longest sums here (512 channels, 3 by 3) have K = 4608, about 2 ** 12: six bits of 24 are lost.
FP32_BITS: Final = 18
#: How much more than rounded weights may change the output: the other factors are rounded as well,
#: sums are made in another order, and the largest of a thousand differences scatters.
ROOM: Final = 4.0

#: A convolution behind a ReLU passes on as much variance as it takes with a gain of sqrt(2). A bit
#: less, since what residual branches add is added up.
_GAIN: Final = 1.25
#: Small, so that the output follows the input and not the biases.
_BIAS: Final = 0.02


def _filled(name: str) -> onnx.ModelProto:
    """Give a light model with random weights instead of constants, and without its softmax."""
    made = onnx.load(str(models.light_model(name)))
    shapes = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    nodes = list(made.graph.node)
    random = np.random.default_rng(7)
    filled: set[str] = set()
    kept = []
    for node in nodes:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(size) for size in shapes[node.input[0]])
        values = _values(_use(nodes, node.output[0]), shape, random)
        made.graph.initializer.append(
            numpy_helper.from_array(values.astype(np.float32), node.output[0])
        )
        filled.add(node.input[0])
    if kept[-1].op_type == "Softmax":
        made.graph.output[0].name = kept.pop().input[0]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    weights = [each for each in made.graph.initializer if each.name not in filled]
    del made.graph.initializer[:]
    made.graph.initializer.extend(weights)
    # Of version 3, in which weights had to be inputs too: a builder would ask for them.
    names = {each.name for each in made.graph.initializer} | filled
    inputs = [each for each in made.graph.input if each.name not in names]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    made.ir_version = 8
    return made


def _use(nodes: list[onnx.NodeProto], name: str) -> tuple[str, int]:
    """Find what a weight is for: the operator and the number of its input."""
    for node in nodes:
        for position, taken in enumerate(node.input):
            if taken == name:
                if node.op_type == "Unsqueeze":
                    return _use(nodes, node.output[0])
                return node.op_type, position
    raise ValueError(f"nothing uses {name}")


def _values(use: tuple[str, int], shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """Make weights that keep what passes through at about its size."""
    operator, position = use
    if operator == "BatchNormalization":
        if position in {1, 4}:  # scale and variance
            return random.uniform(0.8, 1.2, shape)
        return _BIAS * random.standard_normal(shape)
    if operator == "Mul":
        return random.uniform(0.8, 1.2, shape)
    if operator in {"Conv", "Gemm"} and position == 1:
        return _GAIN * random.standard_normal(shape) * float(np.prod(shape[1:])) ** -0.5
    return _BIAS * random.standard_normal(shape)


def _transformer() -> onnx.ModelProto:
    # 96 blocks: 1,536 nodes and 19 MB of weights.
    return models.transformer(96)


#: What is built, by name; each has one input and one output.
NETWORKS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {
    "resnet50": lambda: _filled("resnet50"),
    "densenet121": lambda: _filled("densenet121"),
    "transformer96": _transformer,
}


def shape_of(made: onnx.ModelProto) -> tuple[int, ...]:
    """Give the shape of a model's only input."""
    (given,) = made.graph.input
    return tuple(each.dim_value for each in given.type.tensor_type.shape.dim)


def random_input(made: onnx.ModelProto, seed: int = 11) -> np.ndarray[Any, Any]:
    """Make an input for a model: noise, and in pictures a ground that pooling does not even out."""
    random = np.random.default_rng(seed)
    shape = shape_of(made)
    value = random.standard_normal(shape, dtype=np.float32)
    if len(shape) == 4:
        channels, height, width = shape[1:]
        down, right = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width))
        for channel in range(channels):
            level, slope, other = 2.0 * random.standard_normal(3)
            value[:, channel] += (level + slope * down + other * right).astype(np.float32)
    return value


def rounded(made: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Give a copy of a model whose weights have mantissas of so many bits only."""
    copy = onnx.ModelProto.FromString(made.SerializeToString())
    for weight in copy.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            mantissa, exponent = np.frexp(numpy_helper.to_array(weight))
            steps = np.float32(2.0 ** (bits + 1))
            values = np.ldexp(np.round(mantissa * steps) / steps, exponent).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return copy


def expected(made: onnx.ModelProto, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Let onnxruntime compute a model's output on the CPU, in FP32."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, {made.graph.input[0].name: value})
    return np.asarray(result)


def difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Give the largest difference of two outputs, in standard deviations of the second."""
    return float(np.max(np.abs(one.reshape(-1) - other.reshape(-1))) / np.std(other))


def tolerance(made: onnx.ModelProto, value: np.ndarray[Any, Any], bits: int) -> float:
    """Give how far from :func:`expected` an output may be that was computed with so many bits.

    It is measured, not chosen: what rounding the weights does to this output of this network.
    """
    exact = expected(made, value)
    return ROOM * difference(expected(rounded(made, bits), value), exact)


def written(name: str, folder: Path) -> Path:
    """Write a network into a folder, unless it is there already."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        onnx.save(NETWORKS[name](), str(path))
    return path
