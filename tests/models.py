"""Small ONNX models for the tests: quick to build, or slow in a known way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable

#: A node's name that would run a script where it is put into HTML unescaped.
EVIL_NAME = "<img src=x onerror=alert(1)>"

_OPSET = 17
_IR_VERSION = 8


def light_model(name: str) -> Path:
    """Return the path of a real topology (random weights made in the graph) in the onnx wheel.

    ``bvlc_alexnet``, ``densenet121``, ``inception_v1``, ``inception_v2``, ``resnet50``,
    ``shufflenet``, ``squeezenet``, ``vgg19``, ``zfnet512``.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return folder / f"light_{name}.onnx"


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, Any]],
    outputs: list[tuple[str, int, Any]],
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
    name: str = "graph",
) -> onnx.ModelProto:
    """Make a model from nodes; inputs and outputs are (name, element type, shape)."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()],
    )
    opset = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)


def mlp(layers: int = 3, width: int = 8, batch: int | str = 4, first: str = "") -> onnx.ModelProto:
    """Make ``layers`` times MatMul and Relu; ``batch`` as text makes the input dynamic.

    Three layers build in a few hundredths of a second with tensorrt_rtx.
    """
    random = np.random.default_rng(0)
    nodes, weights, last = [], {}, "x"
    for index in range(layers):
        weight, product, out = f"w{index}", f"m{index}", f"r{index}"
        weights[weight] = random.standard_normal((width, width), dtype=np.float32)
        nodes.append(
            helper.make_node(
                "MatMul", [last, weight], [product], name=(index == 0 and first) or f"matmul{index}"
            )
        )
        nodes.append(helper.make_node("Relu", [product], [out], name=f"relu{index}"))
        last = out
    shape = [batch, width]
    ends = [("x", TensorProto.FLOAT, shape)], [(last, TensorProto.FLOAT, shape)]
    return model(nodes, *ends, weights, name="mlp")


def evil_mlp() -> onnx.ModelProto:
    """Make a model whose first node is named like an attack."""
    return mlp(first=EVIL_NAME)


def convnet(layers: int = 4, channels: int = 8, size: int = 16) -> onnx.ModelProto:
    """Make ``layers`` times Conv and Relu on one picture."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], {}, "image"
    for index in range(layers):
        weight = f"w{index}"
        shape = (channels, channels, 3, 3)
        weights[weight] = random.standard_normal(shape, dtype=np.float32)
        nodes += [
            helper.make_node(
                "Conv", [last, weight], [f"c{index}"], name=f"conv{index}", pads=[1, 1, 1, 1]
            ),
            helper.make_node("Relu", [f"c{index}"], [f"r{index}"], name=f"relu{index}"),
        ]
        last = f"r{index}"
    shape_ = [1, channels, size, size]
    return model(
        nodes,
        [("image", TensorProto.FLOAT, shape_)],
        [(last, TensorProto.FLOAT, shape_)],
        weights,
        name="convnet",
    )


def dynamic(rank: int = 2) -> onnx.ModelProto:
    """Make a Relu of ``x``: (batch, 8), or with more ranks (batch, 8, width, height ...)."""
    shape: list[int | str] = ["batch", 8, "width", "height"][:rank]
    return model(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        [("x", TensorProto.FLOAT, shape)],
        [("y", TensorProto.FLOAT, shape)],
        name="dynamic",
    )


def reshape() -> onnx.ModelProto:
    """Make a Reshape of ``x`` (batch, 8) to ``shape``, a shape tensor of two values."""
    return model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        [("x", TensorProto.FLOAT, ["batch", 8]), ("shape", TensorProto.INT64, [2])],
        [("y", TensorProto.FLOAT, ["rows", "columns"])],
        name="reshape",
    )


def expand() -> onnx.ModelProto:
    """Make an Expand of ``x`` (1,) to ``count`` values, a scalar shape tensor."""
    return model(
        [
            helper.make_node("Unsqueeze", ["count", "axes"], ["size"], name="unsqueeze"),
            helper.make_node("Expand", ["x", "size"], ["y"], name="expand"),
        ],
        [("x", TensorProto.FLOAT, [1]), ("count", TensorProto.INT64, [])],
        [("y", TensorProto.FLOAT, ["n"])],
        {"axes": np.array([0], dtype=np.int64)},
        name="expand",
    )


def unknown_operators(*operators: str) -> onnx.ModelProto:
    """Make a chain of Relu and operators that nobody has: NoSuchOp, OtherOp, NoSuchOp."""
    nodes, last = [], "x"
    for index, operator in enumerate(operators or ("NoSuchOp", "OtherOp", "NoSuchOp")):
        nodes.append(helper.make_node("Relu", [last], [f"r{index}"], name=f"relu{index}"))
        nodes.append(helper.make_node(operator, [f"r{index}"], [f"t{index}"], name=f"odd{index}"))
        last = f"t{index}"
    ends = [("x", TensorProto.FLOAT, [4, 8])], [(last, TensorProto.FLOAT, None)]
    return model(nodes, *ends, name="odd")


def without_output() -> onnx.ModelProto:
    """Make a model that parses and has no output."""
    made = mlp()
    del made.graph.output[:]
    return made


def save_external(made: onnx.ModelProto, path: Path, weights: str = "weights.bin") -> Path:
    """Save a model with its weights in another file beside it; the model itself is changed."""
    onnx.save(made, str(path), save_as_external_data=True, location=weights, size_threshold=0)
    return path


def transformer(blocks: int = 12, width: int = 64, tokens: int = 16) -> onnx.ModelProto:
    """Make a stack of transformer blocks (attention and MLP, layer normalizations, residuals).

    Build time follows the number of blocks, and nearly all of it passes without a callback. With
    tensorrt_rtx 1.7.1 on two cores, blocks / seconds / longest silence: 12 / 1.8 / 1.5,
    24 / 3.7 / 3.2, 48 / 9.7 / 8.9.
    """
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray[Any, Any]] = {
        "scale": np.array(width**-0.5, dtype=np.float32),
    }

    def add(operator: str, inputs: list[str], out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [out], name=out, **attributes))
        return out

    def matrix(name: str, rows: int, columns: int) -> str:
        made = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(rows**-0.5)
        weights[name] = made
        return name

    def normalize(value: str, name: str) -> str:
        weights[f"{name}.gain"] = np.ones(width, dtype=np.float32)
        weights[f"{name}.bias"] = np.zeros(width, dtype=np.float32)
        inputs = [value, f"{name}.gain", f"{name}.bias"]
        return add("LayerNormalization", inputs, name, axis=-1)

    value = "x"
    for block in range(blocks):
        name = f"block{block}"
        normal = normalize(value, f"{name}.norm1")
        query, key, values = (
            add("MatMul", [normal, matrix(f"{name}.w{part}", width, width)], f"{name}.{part}")
            for part in "qkv"
        )
        turned = add("Transpose", [key], f"{name}.kt", perm=[0, 2, 1])
        scores = add("MatMul", [query, turned], f"{name}.scores")
        scaled = add("Mul", [scores, "scale"], f"{name}.scaled")
        shares = add("Softmax", [scaled], f"{name}.softmax", axis=-1)
        mixed = add("MatMul", [shares, values], f"{name}.mixed")
        out = add("MatMul", [mixed, matrix(f"{name}.wo", width, width)], f"{name}.out")
        value = add("Add", [value, out], f"{name}.add1")
        normal = normalize(value, f"{name}.norm2")
        wide = add("MatMul", [normal, matrix(f"{name}.w1", width, 4 * width)], f"{name}.wide")
        active = add("Relu", [wide], f"{name}.relu")
        narrow = add("MatMul", [active, matrix(f"{name}.w2", 4 * width, width)], f"{name}.narrow")
        value = add("Add", [value, narrow], f"{name}.add2")
    shape = [1, tokens, width]
    ends = [("x", TensorProto.FLOAT, shape)], [(value, TensorProto.FLOAT, shape)]
    return model(nodes, *ends, weights, name="transformer")


def slowly(pause: float = 0.005) -> Callable[[Any, Any, Any], None]:
    """Make a ``configure=`` that stretches a real build: ``pause`` seconds at every step.

    A build of resnet50 (about 1,900 steps) then has callbacks for ten seconds, so that a test can
    cancel it at its leisure.
    """

    def configure(_builder: Any, _network: Any, config: Any) -> None:
        import tensorrt_rtx as trt

        class Slow(trt.IProgressMonitor):  # type: ignore[misc]
            def phase_start(self, *_: Any) -> None:
                pass

            def phase_finish(self, *_: Any) -> None:
                pass

            def step_complete(self, *_: Any) -> bool:
                time.sleep(pause)
                return True

        config.progress_monitor = Slow()

    return configure


def configure_slowly(builder: Any, network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build whose steps take 5 ms: ``tests.models:configure_slowly``."""
    slowly(0.005)(builder, network, config)


def configure_flood(builder: Any, network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build that begins with a flood: the MNIST trace, again and again.

    50,000 callbacks a second for two seconds, while TensorRT waits in its first callback.
    """
    from tests.bench.builds import make_flood

    make_flood(50_000.0, 100_000, builder, network, config)


def configure_crash(_builder: Any, _network: Any, _config: Any) -> None:
    """Be the ``configure=`` of a build whose process dies by SIGSEGV."""
    os.kill(os.getpid(), signal.SIGSEGV)


def configure_by_name(builder: Any, network: Any, config: Any) -> None:
    """Be the ``configure=`` of all builds of a server: the name of a node decides what happens.

    ``mlp(first="slow")`` takes a second, ``mlp(first="flood")`` begins with half the flood of
    :func:`configure_flood` and ``mlp(first="long flood")`` with all of it, and the process that
    builds ``mlp(first="crash")`` dies by SIGSEGV in the middle of a phase. That of
    ``mlp(first="stuck")`` does nothing for five minutes, and hears nothing.
    """
    from tests.bench.builds import make_flood

    names = {network.get_layer(index).name for index in range(network.num_layers)}
    if "slow" in names:
        slowly(0.015)(builder, network, config)
    elif "flood" in names:
        make_flood(50_000.0, 50_000, builder, network, config)
    elif "long flood" in names:
        configure_flood(builder, network, config)
    elif "crash" in names:
        _crash_in_a_phase(config)
    elif "stuck" in names:
        time.sleep(300.0)


def _crash_in_a_phase(config: Any) -> None:
    import tensorrt_rtx as trt

    class Crashing(trt.IProgressMonitor):  # type: ignore[misc]
        def phase_start(self, _name: str, parent: str | None, _steps: int) -> None:
            if parent is not None:
                time.sleep(
                    1.0
                )  # long enough to be told of, also by those who leave out what is short
                os.kill(os.getpid(), signal.SIGSEGV)

        def phase_finish(self, *_: Any) -> None:
            pass

        def step_complete(self, *_: Any) -> bool:
            return True

    config.progress_monitor = Crashing()


def with_external_everywhere() -> onnx.ModelProto:
    """Make a model that names another file in every place where ONNX has a tensor.

    The files are called ``1.bin``, ``2.bin`` ... in no particular order. No builder takes it.
    """
    count = 0

    def tensor() -> TensorProto:
        nonlocal count
        count += 1
        made = TensorProto(name=f"t{count}", data_type=TensorProto.FLOAT, dims=[1])
        made.data_location = TensorProto.EXTERNAL
        for key, value in (("location", f"{count}.bin"), ("offset", "4"), ("length", "4")):
            made.external_data.add(key=key, value=value)
        return made

    def sparse() -> onnx.SparseTensorProto:
        return onnx.SparseTensorProto(values=tensor(), indices=tensor(), dims=[1])

    def attributes(inner: onnx.GraphProto | None) -> list[onnx.AttributeProto]:
        made = [
            onnx.AttributeProto(name="t", type=onnx.AttributeProto.TENSOR, t=tensor()),
            onnx.AttributeProto(name="ts", tensors=[tensor(), tensor()]),
            onnx.AttributeProto(name="s", sparse_tensor=sparse()),
            onnx.AttributeProto(name="ss", sparse_tensors=[sparse(), sparse()]),
        ]
        if inner is not None:
            made += [
                onnx.AttributeProto(name="g", g=inner),
                onnx.AttributeProto(name="gs", graphs=[graph(None), graph(None)]),
            ]
        return made

    def graph(inner: onnx.GraphProto | None) -> onnx.GraphProto:
        made = onnx.GraphProto(name="g", initializer=[tensor()], sparse_initializer=[sparse()])
        made.node.add(op_type="Odd", input=["x"], output=["y"], attribute=attributes(inner))
        return made

    made = helper.make_model(graph(graph(graph(None))), ir_version=_IR_VERSION)
    function = made.functions.add(name="f", domain="d", attribute_proto=attributes(None))
    function.node.add(op_type="Odd", attribute=attributes(graph(None)))
    made.training_info.add(initialization=graph(None), algorithm=graph(None))
    return made


def small(
    node: onnx.NodeProto,
    shapes: dict[str, list[int | str]],
    kind: int = TensorProto.FLOAT,
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
) -> onnx.ModelProto:
    """Make a model of one node, whose first output is the model's."""
    inputs = [(name, kind, shape) for name, shape in shapes.items()]
    return model([node], inputs, [(node.output[0], kind, None)], weights, name="small")


def branch(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """Make a branch of an If: it sees the values outside, and gives the last node's output."""
    last = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    return helper.make_graph(list(nodes), "branch", [], [last])


def conditional(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    """Make an If over ``x`` (4,) that has the boolean input ``c``; branches may use ``axes``."""
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=otherwise)
    return model(
        [node],
        [("c", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, [4])],
        [("y", TensorProto.FLOAT, None)],
        {"axes": np.array([0], dtype=np.int64)},
        name="conditional",
    )


def uneven_branches() -> onnx.ModelProto:
    """Make an If whose branches give (4,) and (1, 4): parses, and no builder takes it."""
    return conditional(
        branch(helper.make_node("Relu", ["x"], ["a"])),
        branch(helper.make_node("Unsqueeze", ["x", "axes"], ["b"])),
    )


def mixed_branches() -> onnx.ModelProto:
    """Make an If whose branches give FLOAT and INT32: the parser refuses it."""
    return conditional(
        branch(helper.make_node("Relu", ["x"], ["a"])),
        branch(
            helper.make_node("Cast", ["x"], ["b"], to=TensorProto.INT32), kind=TensorProto.INT32
        ),
    )


def growing_loop() -> onnx.ModelProto:
    """Make a Loop that doubles the length of what it carries."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["s", "s"], ["s2"], axis=0),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("go2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s2", TensorProto.FLOAT, [8]),
        ],
    )
    node = helper.make_node("Loop", ["n", "c", "x"], ["y"], name="loop", body=body)
    weights = {"n": np.array(3, dtype=np.int64), "c": np.array(True)}
    return small(node, {"x": [4]}, weights=weights)


def cycle() -> onnx.ModelProto:
    """Make two nodes of which each needs the other."""
    nodes = [
        helper.make_node("Relu", ["y"], ["x"], name="one"),
        helper.make_node("Relu", ["x"], ["y"], name="two"),
    ]
    return model(nodes, [], [("y", TensorProto.FLOAT, None)], name="cycle")


def same_name_twice() -> onnx.ModelProto:
    """Make two nodes that give the same value."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in ("one", "two")]
    ends = [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, None)]
    return model(nodes, *ends, name="twice")


def short_weights() -> onnx.ModelProto:
    """Make a model whose first weights have 3 bytes, where its shape needs 256."""
    made = mlp()
    made.graph.initializer[0].raw_data = b"123"
    return made


def one_dimension_of_two() -> onnx.ModelProto:
    """Make an Add of ``x`` and ``w``, which share the dynamic dimension ``n``."""
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    return small(node, {"x": ["n"], "w": ["n"]})
