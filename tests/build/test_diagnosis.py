"""Real failures, made small: from TensorRT's own words to cause, evidence and remedy."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper

from tests import models
from tests.build.test_network import Logger, build, fails, make, own_network
from trt_widget import diagnosis, errors
from trt_widget._onnx import UncheckedError, find_external
from trt_widget.backend import Backend, find_backend
from trt_widget.options import BuildOptions, check_source

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def backend() -> Backend:
    return find_backend("tensorrt_rtx")


@pytest.fixture
def logger() -> Logger:
    return Logger()


def refused(made: onnx.ModelProto, logger: Logger, *, in_child: bool = False) -> Any:
    """Let the real parser refuse a model, and explain it."""
    _, _, parser = own_network(logger, made)
    assert parser.num_errors
    options = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    source = check_source(made.SerializeToString(), options)
    error = diagnosis.explain_parse(source, parser, logger.serious(), in_child=in_child)
    assert list(error.messages) == diagnosis.errors_in(logger.serious())
    return error


def node(operator: str, inputs: str = "x", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, [*inputs], ["y"], name="the_node", **attributes)


# ---- the parser ---------------------------------------------------------------------------------

REFUSED: dict[str, tuple[onnx.ModelProto, str, str, Sequence[str]]] = {
    "unknown operator": (
        models.unknown_operators("NoSuchOp"),
        "TensorRT does not know the operator NoSuchOp (1 node).",
        "plugins=[path]",
        ["Plugin not found"],
    ),
    "plugin missing": (
        models.small(node("NonZero"), {"x": [4]}),
        "TensorRT does not know the operator NonZero (1 node).",
        "plugins=[path]",
        ["NonZero plugin creator version 1 was not found"],
    ),
    "unsupported operator": (
        models.small(node("Det"), {"x": [4, 4]}),
        "TensorRT does not support the operator Det.",
        "Export the model without it",
        ["node 0 (the_node, operator Det): not supported"],
    ),
    "unsupported type": (
        models.small(node("Relu"), {"x": [4]}, TensorProto.BOOL),
        (
            "TensorRT does not support node 0 (the_node, operator Relu) as it is used here: Found "
            "unsupported input type of BOOL."
        ),
        "Export the model with other types",
        ["unsupported input type of BOOL"],
    ),
    "input type": (
        models.small(node("Identity"), {"x": [4]}, TensorProto.STRING),
        "An input of the model has a data type that TensorRT does not have.",
        "Cast it",
        ["Failed to convert ONNX date type"],
    ),
    "shapes": (
        models.small(node("MatMul", "xw"), {"x": [4, 8], "w": [9, 3]}),
        "TensorRT's ONNX parser refused node 0 (the_node, operator MatMul).",
        "onnx.checker",
        ["last dimension of input0 = 8 and second to last dimension of input1 = 9"],
    ),
    "control flow": (
        models.mixed_branches(),
        "TensorRT's ONNX parser refused node 0 (if, operator If).",
        "every branch of an If has to give the same types",
        ["must have inputs of same type"],
    ),
    "cycle": (
        models.cycle(),
        (
            "The model's nodes cannot be put into an order: its graph has a cycle, or a name is "
            "given to two values."
        ),
        "onnx.checker",
        ["Failed to sort the model topologically"],
    ),
    "same name twice": (
        models.same_name_twice(),
        (
            "The model's nodes cannot be put into an order: its graph has a cycle, or a name is "
            "given to two values."
        ),
        "onnx.checker",
        ["Failed to sort the model topologically"],
    ),
    "short weights": (
        models.short_weights(),
        "The weights w0 cannot be read: they do not have the size or type that the model says.",
        "Export or download",
        ["Failed to import initializer: w0"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_parser_refuses(name: str, logger: Logger) -> None:
    made, cause, remedy, evidence = REFUSED[name]
    error = refused(made, logger)
    assert type(error) is errors.ParseFailed
    assert error.cause == cause
    assert remedy in error.remedy
    assert len(error.evidence) == len(evidence)
    for line, words in zip(error.evidence, evidence, strict=True):
        assert words in line
        assert "cudaError" not in line


def test_operators_of_another_domain_are_named_so(logger: Logger) -> None:
    made = models.small(node("FusedGelu", domain="com.microsoft"), {"x": [4]})
    made.opset_import.add(domain="com.microsoft", version=1)
    error = refused(made, logger)
    assert error.cause == "TensorRT does not know the operator FusedGelu (1 node)."
    assert error.evidence[1:] == ("FusedGelu is of the domain com.microsoft, not of ONNX itself.",)
    assert "before ONNX Runtime optimized" in error.remedy


def test_a_plugin_of_this_kernel_does_not_reach_a_child(logger: Logger) -> None:
    made = models.unknown_operators("NoSuchOp")
    child = refused(made, logger, in_child=True)
    assert "plugins=[path]" in child.remedy
    assert 'executor="thread"' in child.remedy
    here = refused(made, Logger())
    assert "executor" not in here.remedy
    assert "register it before the build" in here.remedy


# ---- the builder --------------------------------------------------------------------------------


def with_profile(*shapes: tuple[int, ...]) -> Any:
    """Make a ``configure=`` that adds a profile for ``x`` without looking whether it is taken."""

    def configure(builder: Any, network: Any, config: Any) -> None:
        del network
        profile = builder.create_optimization_profile()
        if shapes:
            profile.set_shape("x", *shapes)
        config.add_optimization_profile(profile)

    return configure


FAILING: dict[str, tuple[onnx.ModelProto, dict[str, Any], type, str, str, Sequence[str]]] = {
    "profile without an input": (
        models.dynamic(),
        {"configure": with_profile()},
        errors.ProfileError,
        (
            "The optimization profile does not fit the network: Dynamic input tensor x is missing "
            "dimensions in profile 0."
        ),
        "Correct the profile",
        ["is missing dimensions in profile 0"],
    ),
    "profile of another shape": (
        models.dynamic(),
        {"configure": with_profile((1, 7), (2, 7), (8, 7))},
        errors.ProfileError,
        (
            "The optimization profile does not fit the network: Dimension mismatch for tensor x "
            "and profile 0."
        ),
        "Correct the profile",
        ["profile has min=7, opt=7, max=7 but tensor has 8"],
    ),
    "profile against itself": (
        models.one_dimension_of_two(),
        {"profiles": {"x": ((1,), (4,), (8,)), "w": ((1,), (5,), (8,))}},
        errors.ProfileError,
        (
            "The optimization profile contradicts itself: inputs share the dimension n, and in OPT "
            "it is 4 for one and 5 for another."
        ),
        "the same opt",
        ["Condition '==' violated: 4 != 5"],
    ),
    "no output": (
        models.without_output(),
        {},
        errors.BuildFailed,
        "The network has no output.",
        "mark_output",
        ["must have at least one output"],
    ),
    "branches": (
        models.uneven_branches(),
        {},
        errors.BuildFailed,
        "TensorRT's builder refused the model's control flow (If, Loop or Scan).",
        "every branch of an If",
        ["Must have inputs with equal ranks"],
    ),
    "loop": (
        models.growing_loop(),
        {},
        errors.BuildFailed,
        "TensorRT's builder refused the model's control flow (If, Loop or Scan).",
        "has to keep its shape",
        ["IRecurrenceLayer must have inputs with same shape"],
    ),
    "target": (
        models.mlp(),
        {"target": ["SM75"]},
        errors.OptionRejected,
        (
            "The target SM75 cannot run this model: Cannot compile operation 'matmul0' for Turing "
            "(SM75): FP32 GEMM is not supported."
        ),
        "Leave SM75 out",
        ["for Turing (SM75)"],
    ),
    "workspace": (
        models.mlp(),
        {"workspace": 1},
        errors.BuildFailed,
        "The workspace is too small for at least one operation.",
        "Raise workspace=",
        ["within workspace limit"],
    ),
    "library": (
        models.mlp(),
        {"flags": ["VERSION_COMPATIBLE"]},
        errors.BuildFailed,
        "TensorRT could not load the library libnvinfer_lean.so.1, which this build needs.",
        "Install it",
        ["Unable to load library"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_the_builder_refuses(name: str, logger: Logger) -> None:
    made, options, kind, cause, remedy, evidence = FAILING[name]
    error = fails(make(made, logger, **options), logger)
    assert type(error) is kind
    assert error.cause == cause
    assert remedy in error.remedy
    assert len(error.evidence) == len(evidence)
    assert all(words in line for line, words in zip(error.evidence, evidence, strict=True))
    assert list(error.messages) == diagnosis.errors_in(logger.serious())


def test_a_missing_profile_is_the_builders_word_too(logger: Logger, backend: Backend) -> None:
    builder, network, parser = own_network(logger, models.dynamic())
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    alone = diagnosis.explain_failure(backend, logger.serious())
    assert type(alone) is errors.ProfileError
    assert "no optimization profile" in alone.cause
    assert len(alone.evidence) == 1
    assert "no optimization profile has been defined" in alone.evidence[0]
    del parser


def test_a_profile_that_was_refused_is_not_called_missing(logger: Logger) -> None:
    """``add_optimization_profile`` answers -1 and logs; the caller's function did not look."""
    builder, network, parser = own_network(logger, models.dynamic())
    config = builder.create_builder_config()
    with_profile((4, 8), (2, 8), (8, 8))(builder, network, config)
    assert config.num_optimization_profiles == 0
    error = diagnosis.missing_profile(network, diagnosis.errors_in(logger.serious()))
    assert error.cause == (
        "The optimization profile was refused: for x, min <= opt <= max does not hold."
    )
    assert "MIN<=OPT<=MAX" in error.evidence[0]
    del parser


@pytest.mark.parametrize("flag", ["REFIT", "REFIT_IDENTICAL", "STRIP_PLAN"])
def test_refit_without_a_gpu(flag: str, logger: Logger) -> None:
    error = fails(make(models.mlp(), logger, flags=[flag, "STRICT_NANS"]), logger)
    assert type(error) is errors.BuildFailed
    assert error.cause.startswith("A call to CUDA failed in the build: there is no ")
    assert "need a GPU; leave them out" in error.remedy
    assert "CUDA_SUCCESS" in error.evidence[0]
    assert error.evidence[-1] == f"The flags of this build include {flag}."


def test_the_current_target_without_a_gpu(logger: Logger) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del builder, network
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.CURRENT, 0)

    error = fails(make(models.mlp(), logger, configure=configure), logger)
    assert error.cause.startswith("A call to CUDA failed in the build: there is no ")
    assert "generateForCurrent" in error.evidence[0]
    assert "flags" not in error.evidence[-1]


def test_a_damaged_timing_cache_is_no_cause_beside_another(
    logger: Logger, backend: Backend
) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del builder, network
        with pytest.warns(DeprecationWarning, match="no-ops"):
            config.set_timing_cache(config.create_timing_cache(b"garbage"), ignore_mismatch=False)

    assert build(make(models.mlp(), logger, configure=configure))
    assert any("timing cache will not be used" in text for _, text in logger.serious())
    # What it says on the way is noise where something else is wrong ...
    other = Logger()
    error = fails(make(models.without_output(), other, configure=configure), other)
    assert error.cause == "The network has no output."
    # ... and without a real error, nothing but a missing GPU is left.
    alone = diagnosis.explain_failure(backend, logger.serious())
    assert "A call to CUDA failed" in alone.cause


def test_a_flag_that_this_package_lacks(logger: Logger) -> None:
    def configure(builder: Any, network: Any, config: Any) -> None:
        del builder, network
        config.set_flag(trt.BuilderFlag.FP16)

    with pytest.raises(errors.ConfigureFailed) as caught:
        make(models.mlp(), logger, configure=configure)
    assert "This tensorrt_rtx has no BuilderFlag.FP16. It has: " in caught.value.remedy
    assert "STRICT_NANS" in caught.value.remedy
    assert "Precision is the model's" in caught.value.remedy


# ---- weights in other files ---------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Give a model with weights beside it, in a folder of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    return models.save_external(models.mlp(), folder / "model.onnx")


def moved(path: Path, location: str) -> Path:
    """Change the name of the weight file inside a model, and nothing on the disk."""
    made = onnx.load(str(path), load_external_data=False)
    for tensor in made.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(made.SerializeToString())
    return path


def test_weights_by_a_link_into_the_same_store(beside: Path, tmp_path: Path) -> None:
    """As in a cache of downloads: the model and its weights are links to files of other names."""
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    store.mkdir()
    snapshot.mkdir(parents=True)
    for name in ("model.onnx", "weights.bin"):
        (beside.parent / name).rename(store / f"blob-{name}")
        (snapshot / name).symlink_to(Path("..", "..", "blobs", f"blob-{name}"))
    assert build(make(snapshot / "model.onnx", Logger()))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_weights_by_a_link_out_of_the_folder(link: str, beside: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (beside.parent / "weights.bin").rename(outside / "weights.bin")
    if link == "file":
        (beside.parent / "weights.bin").symlink_to(outside / "weights.bin")
    else:
        (beside.parent / "there").symlink_to(outside)
        moved(beside, "there/weights.bin")
    with pytest.raises(errors.SourceError, match="may not read") as caught:
        make(beside, Logger())
    assert str(outside / "weights.bin") in caught.value.cause
    assert "external_data=[folder]" in caught.value.remedy
    assert build(make(beside, Logger(), external_data=[outside]))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other absolute paths")
@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/etc/passwd", "an absolute path"),
        ("../secret.bin", "it leads to"),
        ("sub/../../secret.bin", "it leads to"),
        ("", "it leads to"),
        ("weights.bin\0/../secret", "no file can have this name"),
        ("pipe", "not a regular file"),
    ],
)
def test_weights_that_may_not_be_read(
    location: str, why: str, beside: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.bin").write_bytes(b"secret" * 1000)
    os.mkfifo(beside.parent / "pipe")
    logger = Logger()
    with pytest.raises(errors.SourceError, match="may not read") as caught:
        make(moved(beside, location), logger)
    assert why in caught.value.cause
    assert "secret" not in repr(logger.serious())
    assert not any("weights" in text.lower() for _, text in logger.serious())


def test_what_follows_the_end_of_a_model_does_not_hide_its_weights(
    beside: Path, tmp_path: Path
) -> None:
    """TensorRT takes a model with an end tag and anything behind it; so does the check."""
    for tail in (b"\x00", b"\x3c", b"\x3c<!-- anything \xff\xff"):
        plain = models.mlp().SerializeToString()
        assert build(make(plain + tail, Logger()))
    moved(beside, "../secret.bin")
    beside.write_bytes(beside.read_bytes() + b"\x3c anything \xff\xff")
    with pytest.raises(errors.SourceError, match="may not read"):
        make(beside, Logger())
    (tmp_path / "secret.bin").write_bytes(b"x")


def test_bytes_do_not_read_from_the_working_directory(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(beside.parent)
    logger = Logger()
    for source in (beside.read_bytes(), onnx.load(str(beside), load_external_data=False)):
        with pytest.raises(errors.SourceError, match="bytes alone do not say where") as caught:
            make(source, logger)
        assert caught.value.messages == ()
    assert build(make(beside.name, logger))


def changed(data: bytes, random: Random) -> bytes:
    """Change a few bytes, write lengths longer than needed, put groups before and ends behind."""
    out = bytearray(data)
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(out))
        kind = random.randrange(5)
        if kind == 0:
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            out[at] = random.randrange(256)
        elif kind == 2:
            del out[at : at + random.randint(1, 4)]
        elif kind == 3:
            out[at:at] = random.randbytes(random.randint(1, 3))
        elif out[at] < 0x80:
            out[at : at + 1] = bytes([out[at] | 0x80, 0])
    if random.random() < 0.3:
        before = random.choice([b"", b"\x9b\x06\x08\x01\x9c\x06", b"\x3d1234", b"\x3a\x00"])
        behind = random.choice([b"", b"\x00", b"\x3c", b"\x3b\x3c", b"\x04"])
        return before + bytes(out) + behind + random.randbytes(random.randint(0, 3))
    return bytes(out)


def test_tensorrt_opens_no_file_that_the_check_did_not_see(tmp_path: Path) -> None:
    """Over changed models: what TensorRT tries to open is known before, and it reads no others."""
    random = Random(3)  # noqa: S311 - the same sequence each time
    path = tmp_path / "model.onnx"
    data = models.save_external(models.mlp(), path, "w0123.bin").read_bytes()
    (tmp_path / "w0123.bin").unlink()
    logger = Logger()
    builder = trt.Builder(logger)
    counts = {"opened": 0, "unchecked": 0}
    for _ in range(1500):
        path.write_bytes(changed(data, random))
        logger.kept.clear()
        network = builder.create_network(0)
        trt.OnnxParser(network, logger).parse_from_file(str(path))
        words = "\n".join(text for _, text in logger.serious())
        opened = re.findall(r"(?:Failed to open file|Normalized path is): (.*)", words)
        try:
            locations = [stored.location for stored in find_external(path)]
        except UncheckedError:
            counts["unchecked"] += 1
            assert "MODEL_DESERIALIZE_FAILED" in words  # no file that TensorRT reads is refused
            assert not opened
            continue
        for name in opened:
            counts["opened"] += 1
            tried = os.path.normpath(tmp_path / name)
            known = [location.split("\0")[0].split("\n")[0] for location in locations]
            assert any(os.path.normpath(f"{tmp_path}/{location}") == tried for location in known)
    assert min(counts.values()) > 100
