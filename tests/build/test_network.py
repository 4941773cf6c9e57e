"""Every way in which an input can be wrong, with the real parser and builder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper

from tests import models
from trt_widget import diagnosis, errors
from trt_widget import network as network_module
from trt_widget._timing_cache import NO_CACHE, TimingCache
from trt_widget.backend import Backend, Gpu, find_backend
from trt_widget.network import Prepared, prepare
from trt_widget.options import BuildOptions, check_source


class Logger(trt.ILogger):  # type: ignore[misc]
    """Records warnings and errors."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[str, str]] = []

    def log(self, severity: Any, msg: str) -> None:
        if severity in {trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR, trt.ILogger.WARNING}:
            self.kept.append((severity.name, msg))

    def serious(self) -> list[tuple[str, str]]:
        return list(self.kept)


class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
    """Counts the phases; can answer False."""

    def __init__(self, *, answer: bool = True) -> None:
        super().__init__()
        self.phases: list[str] = []
        self.chained: list[Any] = []
        self.answer = answer

    def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
        del parent, num_steps
        self.phases.append(name)

    def step_complete(self, name: str, step: int) -> bool:
        del name, step
        return self.answer

    def phase_finish(self, name: str) -> None:
        pass

    def chain(self, other: Any) -> None:
        self.chained.append(other)


@pytest.fixture
def backend() -> Backend:
    return find_backend("tensorrt_rtx")


@pytest.fixture
def logger() -> Logger:
    return Logger()


def make(source: Any, logger: Logger, monitor: Any = None, **options: Any) -> Prepared:
    """Go the whole way that a build goes: check, prepare."""
    checked = BuildOptions.from_kwargs({"backend": "tensorrt_rtx", **options})
    return prepare(check_source(source, checked), checked, checked.backend, logger, monitor)


def build(prepared: Prepared) -> bytes | None:
    engine = prepared.builder.build_serialized_network(prepared.network, prepared.config)
    return None if engine is None else bytes(engine)


def fails(prepared: Prepared, logger: Logger) -> errors.BuildFailed:
    assert build(prepared) is None
    assert not diagnosis.was_cancelled(logger.serious())
    return diagnosis.explain_failure(find_backend("tensorrt_rtx"), logger.serious(), prepared)


def relu(shape: list[int]) -> bytes:
    ends = [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)]
    return models.model([helper.make_node("Relu", ["x"], ["y"])], *ends).SerializeToString()


# ---- good sources -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "str", "bytes", "bytearray", "memoryview", "proto"])
def test_every_form_of_a_source_builds(form: str, logger: Logger, tmp_path: Path) -> None:
    proto = models.mlp()
    data = proto.SerializeToString()
    path = tmp_path / "mödel 漢.onnx"
    path.write_bytes(data)
    sources: dict[str, Any] = {
        "path": path,
        "str": str(path),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "proto": proto,
    }
    monitor = Monitor()
    prepared = make(sources[form], logger, monitor)
    assert build(prepared)
    assert monitor.phases[0] == "Building engine"
    assert prepared.notes == []


def test_weights_beside_the_file_are_found_from_anywhere(
    logger: Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save_external(models.mlp(), tmp_path / "model.onnx")
    monkeypatch.chdir("/")
    assert build(make(path, logger))


def test_evil_names_do_no_harm(logger: Logger) -> None:
    assert build(make(models.evil_mlp(), logger))


def test_all_options_reach_the_config(logger: Logger) -> None:
    seen: list[Any] = []
    prepared = make(
        models.dynamic(),
        logger,
        flags=["DIRECT_IO", "strict_nans"],
        optimization_level=1,
        workspace=1 << 28,
        target=["SM86", "sm_120"],
        profiles=[{"x": ((1, 8), (4, 8), (8, 8))}, {"x": ((8, 8), (16, 8), (32, 8))}],
        configure=lambda *args: seen.append(args),
    )
    config = prepared.config
    assert config.get_flag(trt.BuilderFlag.DIRECT_IO)
    assert config.get_flag(trt.BuilderFlag.STRICT_NANS)
    assert config.builder_optimization_level == 1
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 28
    targets = [config.get_compute_capability(i) for i in range(config.num_compute_capabilities)]
    assert targets == [trt.ComputeCapability.SM86, trt.ComputeCapability.SM120]
    assert config.num_optimization_profiles == 2
    assert seen == [(prepared.builder, prepared.network, config)]
    assert build(prepared)


def test_the_network_is_strongly_typed(logger: Logger) -> None:
    network = make(models.mlp(), logger).network
    assert network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


# ---- callables ----------------------------------------------------------------------------------


def own_network(logger: Any, made: onnx.ModelProto) -> tuple[Any, Any, Any]:
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    parser.parse(made.SerializeToString())
    return builder, network, parser


def test_callables_return_two_or_three(logger: Logger) -> None:
    keep = []

    def two() -> Any:
        keep.append(own_network(logger, models.mlp()))
        return keep[0][:2]

    prepared = make(two, logger)
    assert prepared.notes == []
    assert build(prepared)
    assert build(make(lambda: own_network(logger, models.mlp()), logger))


def test_a_builder_with_its_own_logger_is_noted(logger: Logger) -> None:
    prepared = make(lambda: own_network(Logger(), models.mlp()), logger)
    assert "logger of its own" in prepared.notes[0]
    assert build(prepared)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned a NoneType"),
        ("model.onnx", "returned a str"),
        ((1, 2), "returned a int as the builder"),
        ((1,), "returned 1 values"),
        ((1, 2, 3, 4), "returned 4 values"),
    ],
)
def test_callables_that_return_something_else(result: Any, words: str, logger: Logger) -> None:
    with pytest.raises(errors.SourceError, match=words) as caught:
        make(lambda: result, logger)
    assert "(builder, network, parser)" in caught.value.remedy


def test_network_and_builder_the_wrong_way_round(logger: Logger) -> None:
    made = own_network(logger, models.mlp())
    with pytest.raises(errors.SourceError, match="INetworkDefinition as the builder"):
        make(lambda: (made[1], made[0]), logger)


def test_a_callables_parser_with_errors_is_believed(logger: Logger) -> None:
    with pytest.raises(errors.ParseFailed, match="NoSuchOp"):
        make(lambda: own_network(logger, models.unknown_operators()), logger)


def test_an_exception_in_the_users_code_is_theirs(logger: Logger) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del builder, network, config
        {}["tactic"]

    with pytest.raises(
        errors.ConfigureFailed, match="configure= raised KeyError: 'tactic'"
    ) as caught:
        make(models.mlp(), logger, configure=configure)
    error = caught.value
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.__traceback__ is not None
    assert error.__cause__.__traceback__.tb_frame.f_code.co_name == "configure"
    assert "trt_widget/" not in error.user_traceback
    assert '{}["tactic"]' in error.user_traceback
    with pytest.raises(errors.ConfigureFailed, match="config= raised ZeroDivisionError"):
        make(models.mlp(), logger, config=lambda *_: 1 / 0)
    with pytest.raises(errors.ConfigureFailed, match="source raised ZeroDivisionError"):
        make(lambda: 1 / 0, logger)


def test_config_callables(logger: Logger) -> None:
    def config(builder: Any, network: Any) -> Any:
        assert isinstance(network, trt.INetworkDefinition)
        made = builder.create_builder_config()
        made.set_flag(trt.BuilderFlag.DIRECT_IO)
        return made

    prepared = make(models.mlp(), logger, config=config)
    assert prepared.config.get_flag(trt.BuilderFlag.DIRECT_IO)
    assert build(prepared)
    with pytest.raises(errors.OptionRejected, match="returned a NoneType"):
        make(models.mlp(), logger, config=lambda *_: None)


def test_polygraphy_makes_source_and_config(tmp_path: Path) -> None:
    # In a process of its own: Polygraphy reads the variable when it is imported.
    path = tmp_path / "model.onnx"
    path.write_bytes(models.dynamic().SerializeToString())
    script = f"""
import json
from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
from polygraphy.backend.trt import NetworkFromOnnxPath, Profile
from tests.build.test_network import Logger, Monitor, build, make
monitor = Monitor()
profile = Profile().add("x", (1, 8), (4, 8), (8, 8))
config = CreateConfigRTX(profiles=[profile], progress_monitor=monitor)
prepared = make(NetworkFromOnnxPath({str(path)!r}), Logger(), monitor, config=config)
engine = build(prepared)
ours = make({str(path)!r}, Logger(), profiles=profile)
print(json.dumps([len(engine), len(monitor.phases), len(monitor.chained), prepared.notes,
                  prepared.config.num_optimization_profiles, len(build(ours))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1"},
    )
    assert done.returncode == 0, done.stderr
    size, phases, chained, notes, profiles, ours = json.loads(done.stdout.splitlines()[-1])
    assert size > 1000
    assert phases > 5
    assert chained == 0
    assert "logger of its own" in notes[0]
    assert profiles == 1
    assert ours > 1000


# ---- monitors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["configure", "config"])
def test_a_monitor_in_the_config_is_chained(where: str, logger: Logger) -> None:
    other = Monitor()

    def config(builder: Any, network: Any) -> Any:
        del network
        made = builder.create_builder_config()
        made.progress_monitor = other
        return made

    def configure(builder: Any, network: Any, made: Any) -> None:
        del builder, network
        made.progress_monitor = other

    ours = Monitor()
    function = {"configure": configure, "config": config}[where]
    prepared = make(models.mlp(), logger, ours, **{where: function})
    assert ours.chained == [other]
    assert prepared.config.progress_monitor is ours


def test_our_own_monitor_is_not_chained_to_itself(logger: Logger) -> None:
    ours = Monitor()

    def configure(builder: Any, network: Any, config: Any) -> None:
        del builder, network
        config.progress_monitor = ours

    make(models.mlp(), logger, ours, configure=configure)
    assert ours.chained == []


def test_a_monitor_of_no_package(logger: Logger) -> None:
    with pytest.raises(errors.WrongBackendError, match="progress monitor"):
        make(models.mlp(), logger, object())


def test_a_cancelled_build_is_told_from_a_failed_one(logger: Logger) -> None:
    prepared = make(models.mlp(), logger, Monitor(answer=False))
    assert build(prepared) is None
    assert diagnosis.was_cancelled(logger.serious())


def test_cancelling_between_the_steps(backend: Backend, logger: Logger) -> None:
    options = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    source = check_source(models.mlp().SerializeToString())
    for steps in range(4):
        answers = iter([False] * steps + [True])
        with pytest.raises(errors.BuildCancelled):
            prepare(source, options, backend, logger, None, answers.__next__)
        assert list(answers) == []


# ---- bad models ---------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 102442450\n"


@pytest.mark.parametrize("as_path", [True, False])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello world", "not an ONNX model: it is text that begins with 'hello world'"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page"),
        (b"  <html>", "an HTML page"),
        (LFS, "a Git LFS pointer"),
        (b'{"ir_version": 8}', "text that begins with"),
        (b"PK\x03\x04" + bytes(50), "a ZIP archive"),
        (b"\x1f\x8b\x08" + bytes(50), "compressed with gzip"),
        (b"\x80\x02ctorch", "a Python pickle"),
        (b"\x08\x01\x12\x04abcd", "is not an ONNX model."),  # a SavedModel's shape
        (b"\x93\x00\x99\xff" * 40, "is not an ONNX model."),
    ],
)
def test_what_is_no_onnx_model(
    data: bytes, words: str, as_path: bool, logger: Logger, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(errors.SourceError) as caught:
        make(path if as_path else data, logger)
    assert words in caught.value.cause
    assert caught.value.cause.startswith("model.onnx" if as_path else "<bytes>")
    assert caught.value.remedy


def test_an_engine_is_no_model(logger: Logger) -> None:
    engine = build(make(models.mlp(), logger))
    with pytest.raises(errors.SourceError, match="a TensorRT engine, already built") as caught:
        make(engine, logger)
    assert caught.value.messages  # TensorRT's own words


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.9, 0.999])
def test_truncated_models(keep: float, logger: Logger, tmp_path: Path) -> None:
    data = models.mlp().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(errors.SourceError, match=r"model.onnx is truncated") as caught:
        make(path, logger)
    assert "Failed to parse the ONNX model" in "\n".join(caught.value.messages)


def test_every_cut_of_a_model_is_an_error_or_a_build(backend: Backend, logger: Logger) -> None:
    data = models.mlp(1, 2).SerializeToString()
    options = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    causes = set()
    for end in range(1, len(data)):
        try:
            prepare(check_source(data[:end]), options, backend, logger)
        except errors.BuildFailed as error:  # noqa: PERF203 - each cut fails by itself
            causes.add(error.cause.split(":")[0])
    # What is cut between two fields can be a whole model without its last field, and the first two
    # bytes are too few to tell.
    assert "<bytes> is truncated" in causes
    assert causes <= {
        "<bytes> is truncated",
        "<bytes> is not an ONNX model.",
        "TensorRT's ONNX parser refused the model.",
    }


def test_a_file_that_became_empty(logger: Logger, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    source = check_source(path)
    path.write_bytes(b"")
    options = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    with pytest.raises(errors.SourceError, match=r"model.onnx is empty"):
        prepare(source, options, options.backend, logger)
    path.unlink()
    with pytest.raises(errors.SourceError, match=r"model.onnx cannot be read"):
        prepare(source, options, options.backend, logger)


def test_missing_and_short_weight_files(logger: Logger, tmp_path: Path) -> None:
    path = models.save_external(models.mlp(), tmp_path / "model.onnx", "weights.bin")
    weights = tmp_path / "weights.bin"
    with weights.open("r+b") as file:
        file.truncate(300)
    with pytest.raises(errors.SourceError, match=r"weights\.bin .* is truncated: it has 300 bytes"):
        make(path, logger)
    weights.unlink()
    with pytest.raises(errors.SourceError, match=r"a file that is missing: weights\.bin") as caught:
        make(path, logger)
    assert "Failed to open file: " in "\n".join(caught.value.messages)
    with pytest.raises(errors.SourceError, match=r"bytes alone do not say") as caught:
        make(path.read_bytes(), logger)
    assert "weights.bin" in caught.value.cause
    with pytest.raises(errors.SourceError, match=r"bytes alone do not say"):
        make(onnx.load(path, load_external_data=False), logger)


def test_unknown_operators_are_listed(logger: Logger) -> None:
    with pytest.raises(errors.ParseFailed) as caught:
        make(models.unknown_operators(), logger)
    error = caught.value
    assert error.cause == "TensorRT does not know the operators NoSuchOp, OtherOp (3 nodes)."
    nodes = [(node.node, node.name, node.operator) for node in error.nodes]
    assert nodes == [(1, "odd0", "NoSuchOp"), (3, "odd1", "OtherOp"), (5, "odd2", "NoSuchOp")]
    lines = str(error).splitlines()
    assert lines[1].split() == ["node", "name", "operator"]
    assert lines[3].split() == ["1", "odd0", "NoSuchOp"]
    assert any("Plugin not found" in message for message in error.messages)


def test_a_node_that_the_parser_refuses(logger: Logger) -> None:
    made = models.mlp()
    made.graph.node[0].input[1] = "x"
    with pytest.raises(errors.ParseFailed, match=r"refused node 0 \(matmul0, operator MatMul\)"):
        make(made, logger)


def test_a_model_that_cannot_be_imported(logger: Logger) -> None:
    made = models.mlp()
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(errors.ParseFailed, match="a data type that TensorRT") as caught:
        make(made, logger)
    assert caught.value.messages


def test_a_model_without_anything_in_it(logger: Logger) -> None:
    made = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="nothing"))
    made.opset_import.add(version=17)
    with pytest.raises(errors.BuildFailed):
        make(made, logger)


def test_a_network_without_output(logger: Logger) -> None:
    error = fails(make(models.without_output(), logger), logger)
    assert error.cause == "The network has no output."
    assert "must have at least one output" in error.messages[0]


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize("size", [2_200_000_000, 4_400_000_000])
def test_a_file_above_two_gibibytes(size: int, logger: Logger, tmp_path: Path) -> None:
    # Whole and right but for its size; the weights are a hole in the file.
    graph = models.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, [1])],
        [("y", TensorProto.FLOAT, [1])],
    ).graph.SerializeToString()
    tensor = b"\x08" + varint(size // 4) + b"\x10\x01\x42\x01w\x4a" + varint(size)
    graph += b"\x2a" + varint(len(tensor) + size) + tensor
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x08\x42\x02\x10\x11\x3a" + varint(len(graph) + size) + graph)
        file.truncate(file.tell() + size)
    with pytest.raises(errors.SourceError, match=r"cannot have more than 2 GiB") as caught:
        make(path, logger)
    assert f"model.onnx has {path.stat().st_size:,} bytes" in caught.value.cause
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(errors.SourceError, match=r"is truncated: .* at least 1 more"):
        make(path, logger)


class ModelProto:
    """Stands for a ModelProto above 2 GiB; a real one takes seconds and gigabytes to make."""

    graph = helper.make_graph([], "huge", [], [])

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB: 3000000000")


def test_a_model_proto_that_is_too_large(logger: Logger) -> None:
    with pytest.raises(errors.SourceError, match=r"huge cannot be serialized: .*2GB") as caught:
        make(ModelProto(), logger)
    assert "save_as_external_data=True" in caught.value.remedy


# ---- profiles -----------------------------------------------------------------------------------


def test_a_missing_profile_can_be_pasted(logger: Logger) -> None:
    with pytest.raises(errors.ProfileError) as caught:
        make(models.reshape(), logger)
    error = caught.value
    assert "x: (batch, 8) float" in error.cause
    assert "shape: (2,) int64; a shape tensor" in error.cause
    text = error.remedy[error.remedy.index("profiles={") :].removeprefix("profiles=")
    profile = eval(text)  # noqa: S307 - our own text; that it is Python is the test
    assert profile == {
        "x": ((1, 8), (8, 8), (32, 8)),
        "shape": ((1, 1), (8, 8), (32, 32)),
    }
    assert make(models.reshape(), logger, profiles=profile).config.num_optimization_profiles == 1


def test_a_pasted_profile_builds(logger: Logger) -> None:
    with pytest.raises(errors.ProfileError) as caught:
        make(models.dynamic(4), logger)
    text = caught.value.remedy[caught.value.remedy.index("profiles={") :].removeprefix("profiles=")
    assert build(make(models.dynamic(4), logger, profiles=eval(text)))  # noqa: S307


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"X1": ((1, 8), (2, 8), (3, 8))}, r"no input 'X1'"),
        (
            {"x": ((1, 8, 1), (2, 8, 1), (3, 8, 1))},
            r"3 dimensions, but the input has 2: \(batch, 8\)",
        ),
        ({"x": ((1, 9), (2, 9), (3, 9))}, r"dimension 1 is always 8 in the model \(batch, 8\)"),
        ({"x": ((-1, 8), (2, 8), (3, 8))}, r"a size below zero in dimension 0"),
        ({"x": (1, 2, 3)}, r"1 dimensions, but the input has 2"),
    ],
)
def test_profiles_that_do_not_fit(profile: Any, words: str, logger: Logger) -> None:
    with pytest.raises(errors.ProfileError, match=words):
        make(models.dynamic(), logger, profiles=profile)


def test_the_nearest_input_is_named(logger: Logger) -> None:
    profile = {"xx": ((1, 8), (2, 8), (3, 8))}
    with pytest.raises(
        errors.ProfileError, match=r"Did you mean 'x'\? Its inputs: 'x' \(batch, 8\)"
    ):
        make(models.dynamic(), logger, profiles=profile)


def test_a_profile_without_a_dynamic_input(logger: Logger) -> None:
    profiles = [
        {"x": ((1, 8), (2, 8), (3, 8)), "shape": ((1, 1), (2, 2), (3, 3))},
        {"x": ((1, 8), (2, 8), (3, 8))},
    ]
    with pytest.raises(errors.ProfileError, match=r"profiles\[1\] says nothing about 'shape'"):
        make(models.reshape(), logger, profiles=profiles)


def test_shape_tensors(logger: Logger) -> None:
    # Values may be below zero: -1 in Reshape.
    profile = {"x": ((4, 8), (4, 8), (4, 8)), "shape": ((-1, 8), (-1, 8), (4, 8))}
    assert build(make(models.reshape(), logger, profiles=profile))
    # A scalar's values may be plain numbers.
    assert build(make(models.expand(), logger, profiles={"count": (1, 4, 8)}))
    with pytest.raises(
        errors.ProfileError, match="3 values, but this input is a shape tensor of 2"
    ):
        make(models.reshape(), logger, profiles={**profile, "shape": ((1, 1, 1),) * 3})


def test_a_profile_for_a_static_input_is_fine(logger: Logger) -> None:
    assert build(make(relu([4, 8]), logger, profiles={"x": ((4, 8),) * 3}))
    with pytest.raises(errors.ProfileError, match="always 4"):
        make(relu([4, 8]), logger, profiles={"x": ((1, 8), (4, 8), (8, 8))})


def test_profiles_made_by_configure_count(logger: Logger) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del network
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (1, 8), (2, 8), (4, 8))
        config.add_optimization_profile(profile)

    assert build(make(models.dynamic(), logger, configure=configure))


def test_a_profile_that_configure_got_wrong(logger: Logger) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del network
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (1, 9), (2, 9), (4, 9))
        config.add_optimization_profile(profile)

    error = fails(make(models.dynamic(), logger, configure=configure), logger)
    assert isinstance(error, errors.ProfileError)
    assert "Dimension mismatch for tensor x" in error.cause


# ---- options that only TensorRT refuses, and builds that fail -----------------------------------


def test_options_that_tensorrt_refuses(logger: Logger) -> None:
    with pytest.raises(errors.OptionRejected, match="refused 'EXCLUDE_LEAN_RUNTIME' alone"):
        make(models.mlp(), logger, flags=["EXCLUDE_LEAN_RUNTIME"])
    with pytest.raises(errors.OptionRejected, match="refused 'SAFETY_SCOPE' beside GPU_FALLBACK"):
        make(models.mlp(), logger, flags=["GPU_FALLBACK", "SAFETY_SCOPE"])
    with pytest.raises(errors.OptionRejected, match="target='current' needs a GPU"):
        make(models.mlp(), logger, target="current")
    with pytest.raises(errors.OptionRejected, match="device=0 does not exist"):
        make(models.mlp(), logger, device=0)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"workspace": 1}, errors.BuildFailed, "The workspace is too small"),
        ({"flags": ["REFIT"]}, errors.BuildFailed, "A call to CUDA failed"),
        ({"flags": ["STRIP_PLAN"]}, errors.BuildFailed, "A call to CUDA failed"),
        ({"flags": ["VERSION_COMPATIBLE"]}, errors.BuildFailed, "libnvinfer_lean"),
        ({"target": ["SM75"]}, errors.OptionRejected, "FP32 GEMM is not supported"),
    ],
)
def test_builds_that_fail(options: Any, kind: type, words: str, logger: Logger) -> None:
    error = fails(make(models.mlp(), logger, **options), logger)
    assert type(error) is kind
    assert words in error.cause
    assert error.remedy
    assert list(error.messages) == diagnosis.errors_in(logger.serious())


def test_flags_that_depend_on_each_other_are_set_in_their_order(logger: Logger) -> None:
    flags = ["EXCLUDE_LEAN_RUNTIME", "VERSION_COMPATIBLE"]
    config = make(models.mlp(), logger, flags=flags).config
    assert all(config.get_flag(getattr(trt.BuilderFlag, flag)) for flag in flags)


def test_no_memory() -> None:
    # In a process of its own, which gets a few MB more than it has. Where memory ends inside a
    # destructor, C++ ends the process (about one time in four): then once more.
    script = """
import resource
import sys
import psutil
from tests import models
from tests.build.test_network import Logger, fails, make
from trt_widget.backend import gpus
gpus()  # no thread of ours: where memory ends, one that has ever run brings TensorRT to SIGSEGV
logger = Logger()
prepared = make(models.light_model("densenet121"), logger)
limit = psutil.Process().memory_info().vms + int(sys.argv[1]) * 1_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(fails(prepared, logger).cause)
"""
    ends = []
    for megabytes in range(10, 34, 3):
        done = subprocess.run(
            [sys.executable, "-c", script, str(megabytes)],
            check=False,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        ends.append(done.stdout + done.stderr)
        if "TensorRT ran out of host memory." in done.stdout:
            return
        assert "std::bad_alloc" in done.stderr, done.stderr
    pytest.fail(f"never explained: {ends}")


def test_a_parser_that_is_none_is_a_failure_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the parser's library is of another version than the rest."""
    refused = TypeError("pybind11::init(): factory function returned nullptr")

    def no_parser(*_: object) -> None:
        raise refused

    monkeypatch.setattr(trt, "OnnxParser", no_parser)
    with pytest.raises(errors.BuildFailed) as caught:
        make(models.mlp(), Logger())
    assert caught.value.cause.endswith(f"could not make a parser: {refused}.")
    assert "libraries are of the same version" in caught.value.remedy


# ---- plugins ------------------------------------------------------------------------------------


def compile_library(folder: Path, body: str) -> Path:
    """Make a shared library with the C compiler."""
    source = folder / "plugin.c"
    source.write_text(f"#include <stdio.h>\n{body}", encoding="ascii")
    library = folder / "libplugin.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "the tests need a C compiler"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


TALKING = """
__attribute__((constructor)) static void greet(void)
{
    printf("plugin on stdout\\n");
    fflush(stdout);
    fprintf(stderr, "plugin on stderr\\n");
}
"""


def test_a_plugin_library_is_loaded_once(tmp_path: Path) -> None:
    # In a process of its own, which keeps the library.
    script = """
import sys
from tests import models
from tests.build.test_network import Logger, build, make
for _ in range(2):
    prepared = make(models.mlp(), Logger(), plugins=[sys.argv[1]])
    print(prepared.notes, flush=True)
assert build(prepared)
"""
    library = compile_library(tmp_path, TALKING)
    done = subprocess.run(
        [sys.executable, "-c", script, library],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    first, second, third = done.stdout.splitlines()
    assert first == "plugin on stdout"
    assert "libplugin.so was loaded, but it registered no plugin" in second
    assert third == "[]"
    assert done.stderr.count("plugin on stderr") == 1


def test_the_registry_is_asked_where_the_library_has_an_entry_point(tmp_path: Path) -> None:
    # TensorRT calls the entry point of the form that it documents; this one has no creators.
    body = """
#include <stdint.h>
void *const *getCreators(int32_t *count) { fprintf(stderr, "asked\\n"); *count = 0; return 0; }
void setLoggerFinder(void *finder) { (void)finder; }
"""
    script = """
import sys
from tests import models
from tests.build.test_network import Logger, build, make
prepared = make(models.mlp(), Logger(), plugins=sys.argv[1])
print(prepared.notes)
assert build(prepared)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, compile_library(tmp_path, body)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert "asked" in done.stderr
    assert "it registered no plugin that TensorRT for RTX" in done.stdout


def test_a_library_that_cannot_be_loaded(logger: Logger, tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("not a library", encoding="ascii")
    with pytest.raises(errors.OptionRejected, match=r"libtext\.so cannot be loaded: .*too short"):
        make(models.mlp(), logger, plugins=text)
    text.write_text("not a library" * 100, encoding="ascii")
    with pytest.raises(errors.OptionRejected, match=r"cannot be loaded: .*invalid ELF header"):
        make(models.mlp(), logger, plugins=text)
    # The loader would end this process with SIGBUS.
    whole = compile_library(tmp_path, TALKING).read_bytes()
    for size in (100, 2000, len(whole) // 2):
        (tmp_path / "libcut.so").write_bytes(whole[:size])
        with pytest.raises(errors.OptionRejected, match=r"libcut\.so is truncated"):
            make(models.mlp(), logger, plugins=tmp_path / "libcut.so")
    missing = compile_library(
        tmp_path, "int nowhere(void); __attribute__((constructor)) void f(void) { nowhere(); }"
    )
    with pytest.raises(errors.OptionRejected, match="undefined symbol: nowhere"):
        make(models.mlp(), logger, plugins=missing)


def test_a_missing_plugin_is_explained_for_the_process(logger: Logger) -> None:
    checked = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    source = check_source(models.unknown_operators(), checked)
    for in_child in (True, False):
        with pytest.raises(errors.ParseFailed) as caught:
            prepare(source, checked, checked.backend, logger, in_child=in_child)
        assert "plugins=[path]" in caught.value.remedy
        assert ('executor="thread"' in caught.value.remedy) is in_child


# ---- weights in other files ---------------------------------------------------------------------


def test_weights_outside_of_the_models_folder(logger: Logger, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = models.save_external(models.mlp(), tmp_path / "a" / "model.onnx", "weights.bin")
    (tmp_path / "a" / "weights.bin").rename(tmp_path / "b" / "weights.bin")
    (tmp_path / "a" / "weights.bin").symlink_to(tmp_path / "b" / "weights.bin")
    with pytest.raises(errors.SourceError, match=r"weights\.bin"):
        make(path, logger)
    assert logger.serious() == []  # TensorRT was not asked
    assert build(make(path, logger, external_data=tmp_path / "b"))


# ---- the timing cache ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_a_timing_cache_goes_into_the_config_and_to_its_file(
    logger: Logger, tmp_path: Path
) -> None:
    # With the objects of RTX, whose timing cache stays empty: what is shown is that the calls and
    # their order are right, not that anything is measured. (Builds of RTX never come here.)
    path = tmp_path / "tactics.cache"

    def said() -> list[str]:
        return [text for _, text in logger.serious()]

    prepared = make(models.mlp(), logger)
    cache = TimingCache(prepared.config, path, "tag", said)
    assert isinstance(prepared.config.get_timing_cache(), trt.ITimingCache)
    assert build(prepared)
    cache.save()
    assert path.stat().st_size > 0
    path.write_bytes(b"garbage")
    prepared = make(models.mlp(), logger)
    cache = TimingCache(prepared.config, path, "tag", said)
    (note,) = cache.notes
    assert "tactics.cache is damaged" in note
    assert build(prepared)
    cache.save()
    assert path.read_bytes() == b"garbage"
    assert path.with_name("tactics.cache.tag").stat().st_size > 0


def test_a_timing_cache_means_nothing_to_rtx(logger: Logger) -> None:
    prepared = make(models.mlp(), logger, timing_cache=True)
    (note,) = prepared.notes
    assert "do not apply to TensorRT for RTX" in note
    assert prepared.timing_cache == {**NO_CACHE}


def test_no_guess_is_sold_as_a_fact(backend: Backend) -> None:
    words = "Error Code 3: API Usage Error (Nobody has ever seen this sentence)"
    error = diagnosis.explain_failure(backend, [("warning", "w"), ("error", words)])
    assert type(error) is errors.BuildFailed
    assert error.cause == "TensorRT returned no engine."
    assert error.messages == (words,)
    silent = diagnosis.explain_failure(backend, [])
    assert "logged no error" in silent.cause


def test_the_drivers_noise_is_no_cause(backend: Backend) -> None:
    noise = "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35: ...)"
    error = diagnosis.explain_failure(backend, [("ERROR", "something"), ("ERROR", noise)])
    assert error.cause == "TensorRT returned no engine."
    assert error.messages == ("something", noise)
    alone = diagnosis.explain_failure(backend, [("ERROR", noise)])
    assert "no NVIDIA driver" in alone.cause


def test_a_gpu_that_rtx_does_not_know(monkeypatch: pytest.MonkeyPatch, logger: Logger) -> None:
    """A stand-in for the GPU: the facts are those of a run on an H200."""
    monkeypatch.setattr(network_module, "gpus", lambda: (Gpu(0, "NVIDIA H200", "SM90"),))
    with pytest.raises(errors.OptionRejected, match=r"NVIDIA H200 \(SM90\).*run nowhere"):
        make(models.mlp(), logger, target="current")
    assert "will not run on this machine's GPU" in make(models.mlp(), logger).notes[0]
    assert make(models.mlp(), logger, target="SM86").notes == []
