"""Engines run on the GPU and give what onnxruntime computes on the CPU.

How far they may be from that is named by the precision, and measured on the very network and input:
see :func:`tests.gpu.networks.tolerance`. With TF32, the default, matrix products may take factors
of 10 bits; without it everything is FP32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests.gpu import networks
from tests.gpu.device import probe
from trt_widget import Build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.gpu.device import Figures


@pytest.fixture(autouse=True)
def _onnxruntime() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime, which knows the answers, is missing")


def without_tf32(_builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build in FP32 alone."""
    import tensorrt_rtx as trt

    config.clear_flag(trt.BuilderFlag.TF32)
    assert not config.get_flag(trt.BuilderFlag.TF32)


def compare(
    made: onnx.ModelProto, engine: Path, bits: int, folder: Path
) -> tuple[float, float, dict[str, Any]]:
    """Run an engine; give how far it is from what it should give, how far it may be, and facts."""
    given, taken = folder / "in.npy", folder / "out.npy"
    value = networks.random_input(made)
    np.save(given, value)
    told = probe("run", str(engine), str(given), str(taken))
    assert told.get("ran"), told
    answer = np.load(taken)
    right = networks.expected(made, value)
    assert answer.shape == right.shape
    assert np.isfinite(answer).all()
    return networks.difference(answer, right), networks.tolerance(made, value, bits), told


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_the_comparison_sees_what_is_wrong(name: str, network: Callable[[str], Path]) -> None:
    """Needs no GPU: another input, and one weight of many, are further away than is allowed."""
    made = onnx.load(str(network(name)))
    value = networks.random_input(made)
    right = networks.expected(made, value)
    loose = networks.tolerance(made, value, networks.TF32_BITS)
    strict = networks.tolerance(made, value, networks.FP32_BITS)
    # What was seen with onnxruntime: 0.007 to 0.016 and 2.9e-5 to 6.3e-5 standard deviations.
    assert 1e-6 < strict < 1e-3 < loose < 0.1
    other = networks.expected(made, networks.random_input(made, seed=12))
    assert networks.difference(other, right) > 10 * loose
    # One layer's weights, as if it were fused wrongly: of the largest ones that halfway through.
    # (Half a query matrix in one of 96 blocks is less than what TF32 does.)
    sizes = [int(np.prod(weight.dims)) for weight in made.graph.initializer]
    largest = [place for place, size in enumerate(sizes) if size == max(sizes)]
    weight = made.graph.initializer[largest[len(largest) // 2]]
    values = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(0.5), weight.name))
    assert networks.difference(networks.expected(made, value), right) > loose


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_with_tf32(
    name: str,
    executor: str,
    *,
    network: Callable[[str], Path],
    engine: Callable[[str, str], Path],
    tmp_path: Path,
    figures: Figures,
) -> None:
    made = onnx.load(str(network(name)))
    path = engine(name, executor)
    found, allowed, told = compare(made, path, networks.TF32_BITS, tmp_path)
    figures.row(
        "answers against onnxruntime, in standard deviations of the output",
        network=name,
        executor=executor,
        precision="TF32",
        largest_difference=found,
        allowed=allowed,
    )
    assert found <= allowed
    # The engine's inputs and outputs are those of the model.
    ends = {"INPUT": made.graph.input[0], "OUTPUT": made.graph.output[0]}
    assert set(told["tensors"]) == {end.name for end in ends.values()}
    for mode, end in ends.items():
        found_mode, kind, shape = told["tensors"][end.name]
        assert (found_mode, kind) == (mode, "FLOAT")
        if mode == "INPUT":
            assert tuple(shape) == networks.shape_of(made)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_without_tf32(
    name: str,
    network: Callable[[str], Path],
    target: dict[str, Any],
    tmp_path: Path,
    figures: Figures,
) -> None:
    made, path = onnx.load(str(network(name))), tmp_path / "fp32.engine"
    build = Build(str(network(name)), configure=without_tf32, output=path, **target)
    build.start().wait()
    found, allowed, _ = compare(made, path, networks.FP32_BITS, tmp_path)
    figures.row(
        "answers against onnxruntime, in standard deviations of the output",
        network=name,
        executor=build.executor,
        precision="FP32",
        largest_difference=found,
        allowed=allowed,
    )
    assert found <= allowed
