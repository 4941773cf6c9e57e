"""What a model needs, read without the onnx package: held against that package's own reading."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import onnx
import psutil
import pytest

from tests import models
from trt_widget._inspection import inspect, inspect_apart
from trt_widget.diagnosis import example_range
from trt_widget.errors import BuildError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

LIGHT = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]


def saved(made: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def kind_of(tensor: onnx.ValueInfoProto) -> str:
    name = onnx.TensorProto.DataType.Name(tensor.type.tensor_type.elem_type).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def shape_of(tensor: onnx.ValueInfoProto) -> list[int | str | None]:
    return [
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None)
        for dim in tensor.type.tensor_type.shape.dim
    ]


@pytest.mark.parametrize("name", LIGHT)
def test_agrees_with_the_onnx_package(name: str) -> None:
    path = models.light_model(name)
    loaded = onnx.load(str(path))
    said = inspect(path)
    constants = {tensor.name for tensor in loaded.graph.initializer}
    inputs = [tensor for tensor in loaded.graph.input if tensor.name not in constants]
    for told, wanted in ((said["inputs"], inputs), (said["outputs"], loaded.graph.output)):
        assert [entry["name"] for entry in told] == [tensor.name for tensor in wanted]
        assert [entry["type"] for entry in told] == [kind_of(tensor) for tensor in wanted]
        assert [entry["shape"] for entry in told] == [shape_of(tensor) for tensor in wanted]
    counts = Counter(node.op_type for node in loaded.graph.node)
    assert {entry["name"]: entry["count"] for entry in said["operators"]} == counts
    assert said["nodes"] == len(loaded.graph.node)
    assert said["opset"] == loaded.opset_import[0].version
    assert said["size_bytes"] == path.stat().st_size
    assert said["problems"] == []


def test_every_element_type_has_its_name(tmp_path: Path) -> None:
    for name, number in onnx.TensorProto.DataType.items():
        if number == 0:
            continue
        tensor = onnx.helper.make_tensor_value_info("x", number, ["n", 3])
        made = models.model([], [], [], name="types")
        made.graph.input.append(tensor)
        (told,) = inspect(saved(made, tmp_path))["inputs"]
        if told["type"] != "unknown":  # one that is newer than this reader
            assert told["type"] == kind_of(tensor), name
        assert number > 24 or told["type"] != "unknown"


def test_a_profile_to_start_from(tmp_path: Path) -> None:
    said = inspect(saved(models.dynamic(4), tmp_path))
    assert said["needs_profile"]
    assert said["profile_example"] == {"x": [[1, 8, 1, 1], [8, 8, 128, 128], [32, 8, 512, 512]]}
    assert said["inputs"][0]["shape"] == ["batch", 8, "width", "height"]
    assert not inspect(saved(models.mlp(), tmp_path))["needs_profile"]


def test_a_dimension_has_one_size_wherever_it_is(tmp_path: Path) -> None:
    made = models.model(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", 1, ["rows", "inner"]), ("w", 1, ["inner", "columns"])],
        [("y", 1, ["rows", "columns"])],
    )
    example = inspect(saved(made, tmp_path))["profile_example"]
    for shapes in zip(example["x"], example["w"], strict=True):
        assert shapes[0][1] == shapes[1][0]


def test_shape_tensors_are_those_that_tensorrt_has(tmp_path: Path) -> None:
    import tensorrt_rtx as trt

    made = {
        "reshape": models.reshape(),
        "expand": models.expand(),
        "loop": models.growing_loop(),
        "dynamic": models.dynamic(),
    }
    for name, model in made.items():
        builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert trt.OnnxParser(network, builder.logger).parse(model.SerializeToString())
        tensors = [network.get_input(index) for index in range(network.num_inputs)]
        said = inspect(saved(model, tmp_path, f"{name}.onnx"))
        assert {entry["name"] for entry in said["inputs"] if entry["shape_tensor"]} == {
            tensor.name for tensor in tensors if tensor.is_shape_tensor
        }
        # And the proposal is the one that a build's error makes.
        for tensor in tensors:
            if tensor.name in (said["profile_example"] or {}):
                shapes = [tuple(shape) for shape in said["profile_example"][tensor.name]]
                assert str(tuple(shapes)) == example_range(tensor)


def test_answers_are_bounded(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node(f"Operator{index}" + "x" * 500, ["x"], [f"y{index}"])
        for index in range(6_000)
    ]
    many = [(f"x{index}" + "y" * 500, 1, ["n" * 300] * 40) for index in range(300)]
    outputs = [(f"y{index}", 1, ["n" * 300]) for index in range(400)]
    made = models.model(nodes, [*many, ("x", 1, [4])], outputs)
    said = inspect(saved(made, tmp_path))
    assert said["nodes"] == 6_000
    assert said["more_operators"] > 4_000
    # What is left out is counted; what is there is whole.
    assert len(said["inputs"]) >= 2
    assert len(said["inputs"]) + said["more_inputs"] == 301
    assert len(said["outputs"]) >= 10
    assert len(said["outputs"]) + said["more_outputs"] == 400
    assert said["needs_profile"]
    assert len(said["profile_example"]) >= 2
    assert len(said["profile_example"]) + said["more_profiled"] == 300
    assert set(said["profile_example"]) < {name for name, _, _ in many}
    assert len(json.dumps(said)) < 16_000


def test_the_inputs_of_a_language_model_all_have_a_range(tmp_path: Path) -> None:
    names = [f"past_key_values.{at}.{kind}" for at in range(32) for kind in ("key", "value")]
    made = models.model([], [(name, 1, ["batch", 32, "past", 128]) for name in names], [])
    said = inspect(saved(made, tmp_path))
    assert list(said["profile_example"]) == names
    assert said["more_profiled"] == 0
    assert said["more_inputs"] == 64 - len(said["inputs"])
    assert len(json.dumps(said)) < 16_000


def test_damaged_models_are_read_or_refused(tmp_path: Path) -> None:
    """One byte, or a piece, is another: whatever comes of it, it is an answer or a SourceError."""
    random_ = random.Random(5)  # noqa: S311 - the same models every time
    path = tmp_path / "damaged.onnx"
    read = 0
    for data in (models.reshape().SerializeToString(), models.growing_loop().SerializeToString()):
        for _ in range(1_500):
            damaged = bytearray(data)
            for _ in range(random_.randrange(1, 4)):
                at = random_.randrange(len(damaged))
                damaged[at : at + random_.randrange(3)] = random_.randbytes(random_.randrange(3))
            path.write_bytes(damaged or b"x")
            try:
                json.dumps(inspect(path), allow_nan=False)
                read += 1
            except SourceError as error:
                assert error.cause  # noqa: PT017 - both ways are allowed
    assert read > 300


def test_the_other_process_answers_as_this_one(tmp_path: Path) -> None:
    path = saved(models.reshape(), tmp_path)
    assert asyncio.run(inspect_apart(path)) == inspect(path)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(SourceError, match="text that begins with 'hello'"):
        asyncio.run(inspect_apart(tmp_path / "text.onnx"))


def endless(folder: Path) -> Path:
    """Make a model that takes a reader minutes: millions of empty nodes."""
    graph = b"\x0a\x00" * 6_000_000
    size = len(graph)
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    path = folder / "endless.onnx"
    path.write_bytes(b"\x08\x08\x3a" + bytes(length) + graph)
    return path


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_reader_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(SourceError, match="within 1 s"):
        asyncio.run(inspect_apart(endless(tmp_path), patience=1.0))
    assert time.monotonic() - begun < 20
    assert not children()


def test_a_reader_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    path = endless(tmp_path)

    async def main() -> None:
        task = asyncio.ensure_future(inspect_apart(path))
        while not children():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not children()


def test_a_reader_that_dies_is_an_error(tmp_path: Path) -> None:
    path = endless(tmp_path)

    async def main() -> Any:
        task = asyncio.ensure_future(inspect_apart(path))
        while not children():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)
        children()[0].kill()
        return await task

    with pytest.raises(BuildError, match="ended with code -9"):
        asyncio.run(main())
