"""By what the builds of a network are found again."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper

from tests import models
from trt_widget import _onnx, identity
from trt_widget.events import NetworkReady
from trt_widget.forecast import key_of
from trt_widget.identity import digest_of_options, identify_model, identify_network
from trt_widget.options import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path


def options(**given: Any) -> BuildOptions:
    return BuildOptions.from_kwargs(given)


def network_of(*kinds: str) -> Any:
    """Stand in for a network of TensorRT's."""
    layers = [SimpleNamespace(type=trt.LayerType.__members__[kind]) for kind in kinds]
    return SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)


def test_the_size_of_a_model() -> None:
    made = models.mlp(3, 8)
    found = identify_model(
        made.SerializeToString(), network_of("ACTIVATION", "CONSTANT", "SHUFFLE")
    )
    assert found is not None
    assert found.size == {
        "layers": 3.0,
        "computing": 2.0,
        "operators": len(made.graph.node),
        "kinds": len({node.op_type for node in made.graph.node}),
        "parameters": sum(
            functools.reduce(lambda a, b: a * b, tensor.dims, 1)
            for tensor in made.graph.initializer
        ),
    }


def test_dimensions_packed_or_not_and_absurd_ones() -> None:
    def tensor(*dims: int) -> bytes:
        made = helper.make_tensor("t", TensorProto.FLOAT, [0], [])
        made.dims[:] = dims
        return made.SerializeToString()  # type: ignore[no-any-return]

    def volume(data: bytes) -> int:
        return _onnx._volume(data, 0, len(data))

    assert volume(tensor()) == 1
    assert volume(tensor(3, 500, 7)) == 3 * 500 * 7
    assert volume(tensor(0, 5)) == 0
    assert volume(b"\x0a\x03\x03\xf4\x03") == 3 * 500, "packed"
    assert volume(b"\x08\x03\x08\xf4\x03") == 3 * 500, "one by one"
    assert volume(tensor(-1, 2**62)) == 2**62, "bounded"


def test_what_is_no_whole_model_is_counted_as_far_as_it_goes() -> None:
    data = models.mlp(8).SerializeToString()
    whole = _onnx.summarize(data)
    assert _onnx.summarize(data + b"\x3a\xff") == whole, "a second graph that breaks off"
    assert _onnx.summarize(data[: len(data) // 2]).operators <= whole.operators
    assert _onnx.summarize(b"hello") == (0, 0, 0, ())
    assert _onnx.summarize(b"") == (0, 0, 0, ())


def test_what_is_gone_has_no_identity(tmp_path: Path) -> None:
    assert identify_model(tmp_path / "gone.onnx", network_of()) is None
    path = models.save_external(models.mlp(), tmp_path / "m.onnx")
    before = identify_model(path, network_of())
    (tmp_path / "weights.bin").unlink()
    after = identify_model(path, network_of())
    assert before is not None
    assert after is not None
    assert before.digest != after.digest


def test_of_large_content_blocks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_BLOCK", 1000)
    monkeypatch.setattr(identity, "_MOST_READ", 20_000)
    data = bytes(range(256)) * 400
    read: list[int] = []

    def digest(*contents: bytes) -> str:
        content = identity._Content()
        read.clear()
        for each in contents:

            def take(at: int, count: int, each: bytes = each) -> bytes:
                read.append(at)
                return each[at : at + count]

            content.add_blocks(len(each), take)
        return content.digest

    first = digest(data)
    assert len(read) == 10
    assert (read[0], read[-1]) == (0, 102_000), "begin and end"
    assert digest(data[:-1] + b"x") != first
    assert digest(data + b"x") != first
    small = digest(data[:9_500])
    assert len(read) == 10, "all of a small one"
    assert digest(data[:5_000] + b"x" + data[5_001:9_500]) != small
    digest(*[data] * 100)
    assert len(read) == 20, "one budget for all"


def test_a_file_counts_once_under_whatever_name(tmp_path: Path) -> None:
    made = models.mlp(12)
    path = models.save_external(made, tmp_path / "m.onnx")
    loaded = onnx.load(path, load_external_data=False)
    for number, tensor in enumerate(loaded.graph.initializer):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "./" * number + "weights.bin"
    path.write_bytes(loaded.SerializeToString())
    opened: list[str] = []

    class Counting(identity._Content):
        def add_blocks(self, size: int, read: Any) -> None:
            opened.append(str(size))
            super().add_blocks(size, read)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "_Content", Counting)
        assert identify_model(path, network_of()) is not None
    assert len(opened) == 2


def convolution(kernel: int, groups: int = 1, weight: float = 0.0, name: str = "x") -> Any:
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    x = network.add_input(name, trt.float32, (1, 64, 64, 64))
    weights = np.full((64, 64 // groups, kernel, kernel), weight, np.float32)
    layer = network.add_convolution_nd(x, 64, (kernel, kernel), trt.Weights(weights))
    layer.padding_nd = (kernel // 2, kernel // 2)
    layer.num_groups = groups
    relu = network.add_activation(layer.get_output(0), trt.ActivationType.RELU)
    network.mark_output(relu.get_output(0))
    return builder, network, weights


def test_a_network_without_a_model() -> None:
    made = [
        convolution(3),
        convolution(3),
        convolution(31),
        convolution(3, groups=64),
        convolution(3, weight=1.0),
        convolution(3, name="y"),
    ]
    found = [identify_network(network, trt) for _, network, _ in made]
    assert found[0] == found[1]
    assert len({each.digest for each in found}) == 5
    assert found[0].size == {"layers": 2.0, "computing": 2.0, "parameters": 64 * 64 * 9}


def test_options_that_have_no_influence_on_the_time(tmp_path: Path) -> None:
    base = digest_of_options(options())
    for given in (
        {"output": tmp_path / "e"},
        {"timeout": 5.0},
        {"grace": 1.0},
        {"exclusive": False},
        {"executor": "thread"},  # part of the key itself
    ):
        assert digest_of_options(options(**given)) == base, given


def test_options_that_have() -> None:
    def one(_builder: Any, _network: Any, config: Any) -> None:
        config.x = 1

    def two(_builder: Any, _network: Any, config: Any) -> None:
        config.x = 2

    class Callable:
        def __call__(self, *_: Any) -> None: ...

    variants = [
        {},
        {"optimization_level": 1},
        {"optimization_level": 2},
        {"flags": ["REFIT"]},
        {"workspace": 1 << 20},
        {"profiles": {"x": ((1,), (1,), (1,))}},
        {"profiles": {"x": ((1,), (2,), (2,))}},
        {"configure": one},
        {"configure": two},
        {"configure": Callable()},
    ]
    digests = [digest_of_options(options(**given)) for given in variants]
    assert len(set(digests)) == len(variants)
    assert digests == [digest_of_options(options(**given)) for given in variants]


def test_what_another_process_says_about_the_size_is_checked() -> None:
    backend = options().backend
    size = {
        "layers": 3,
        "w": 10**400,
        "v": float("nan"),
        "x": float("inf"),
        "y": "no",
        "z": -1.0,
        "b": True,
        "n": None,
    }
    ready = NetworkReady(0.1, 3, None, network="abc", size=size)
    key = key_of(ready, options(), backend, "process", "")
    assert key is not None
    assert key.size == {"layers": 3.0}
    many = NetworkReady(0.1, 3, network="abc", size={str(n): 1.0 for n in range(1000)})
    assert len(key_of(many, options(), backend, "process", "").size) <= 20  # type: ignore[union-attr]
    assert key_of(NetworkReady(0.1, 3), options(), backend, "process", "") is None
