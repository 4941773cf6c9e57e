from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_widget import _trtexec
from trt_widget.options import BuildOptions


def parse(*arguments: str) -> dict[str, Any]:
    """Give the keywords of a build that options stand for."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    _trtexec.add_arguments(parser)
    return _trtexec.build_options(parser.parse_args(arguments))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Give what argparse says of options that it refuses."""
    with pytest.raises(SystemExit) as left:
        parse(*arguments)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:1x3x224x224", {"x": (1, 3, 224, 224)}),
        ("x:1x3,y:4", {"x": (1, 3), "y": (4,)}),
        ("onnx::Cast_0:1x8", {"onnx::Cast_0": (1, 8)}),
        ("'a,b:c':2,d:3", {"a,b:c": (2,), "d": (3,)}),
        ("x:scalar", {"x": ()}),
        ("x:0x4", {"x": (0, 4)}),
    ],
)
def test_shapes(text: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert _trtexec.shapes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1", "x:1x", "x:-1", "x:1,", "x:axb", "x:1,x:2", "x:1,,y:2"]
)
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _trtexec.shapes(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="',", exclude_categories=["Cs"]), min_size=1),
        st.lists(st.integers(0, 2**40), min_size=1, max_size=6).map(tuple),
        min_size=1,
        max_size=4,
    )
)
def test_shapes_are_read_as_they_are_written(shapes: dict[str, tuple[int, ...]]) -> None:
    text = ",".join(f"{name}:{'x'.join(map(str, dims))}" for name, dims in shapes.items())
    assert _trtexec.shapes(text) == shapes


@given(st.text())
def test_shapes_of_anything_are_shapes_or_refused(text: str) -> None:
    try:
        found = _trtexec.shapes(text)
    except argparse.ArgumentTypeError:
        return
    assert found


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("workspace:1024", 1 << 30),
        ("workspace:0.25", 1 << 18),
        ("workspace:1.5G", 3 << 29),
        ("workspace:4096B", 4096),
        ("workspace:8k", 8192),
        ("workspace:.5M", 1 << 19),
    ],
)
def test_memory_pools(text: str, size: int) -> None:
    assert _trtexec.memory_pools(text) == size


@pytest.mark.parametrize(
    "text", ["", "1024", "workspace", "workspace:x", "workspace:-1", "dlaSRAM:1"]
)
def test_memory_pools_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _trtexec.memory_pools(text)


def test_nothing_given_is_nothing_asked_for() -> None:
    assert parse() == {}
    assert parse("--onnx=model.onnx", "--skipInference", "--sparsity=disable") == {}


def test_a_command_line_of_trtexec() -> None:
    options = parse(
        "--saveEngine=e.engine",
        "--minShapes=x:1x8",
        "--optShapes=x:4x8",
        "--maxShapes=x:16x8",
        "--builderOptimizationLevel=5",
        "--memPoolSize=workspace:64",
        "--timingCacheFile=t.cache",
        "--device=1",
        "--staticPlugins=a.so",
        "--plugins=b.so",
        "--stronglyTyped",
        "--refit",
        "--vc",
        "--sparsity=enable",
        "--skipInference",
    )
    assert options == {
        "output": "e.engine",
        "profiles": [{"x": ((1, 8), (4, 8), (16, 8))}],
        "optimization_level": 5,
        "workspace": 64 << 20,
        "timing_cache": "t.cache",
        "device": 1,
        "plugins": ["a.so", "b.so"],
        "strongly_typed": True,
        "flags": ["REFIT", "VERSION_COMPATIBLE", "SPARSE_WEIGHTS"],
    }


def test_what_they_stand_for_are_options_of_a_build() -> None:
    given = parse(
        *("--optShapes=x:4x8", "--memPoolSize=workspace:64", "--builderOptimizationLevel=0"),
        *("--computeCapabilities=86,8.9", "--stripWeights", "--stronglyTyped"),
    )
    options = BuildOptions.from_kwargs({**given, "backend": "tensorrt_rtx"})
    assert options.profiles[0]["x"].max == (4, 8)
    assert options.target == ("SM86", "SM89")
    assert options.flags == ("STRIP_PLAN", "REFIT_IDENTICAL")


def test_several_profiles() -> None:
    options = parse(
        *("--profile=1", "--optShapes=x:2", "--profile=0", "--minShapes=x:1,y:1"),
        *("--optShapes=x:4", "--maxShapes=y:8,x:8", "--optShapes=y:3"),
    )
    assert options["profiles"] == [
        {"x": ((1,), (4,), (8,)), "y": ((1,), (3,), (8,))},
        {"x": ((2,), (2,), (2,))},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minShapes=x:1"], "--minShapes alone is no profile"),
        (["--minShapes=x:1", "--optShapes=x:1"], "--minShapes, --optShapes alone is no profile"),
        (
            ["--minShapes=x:1", "--optShapes=x:1,y:2", "--maxShapes=x:1,y:2"],
            "'y' is missing from --minShapes",
        ),
        (["--useGpu", "--computeCapabilities=86"], "exclude each other"),
    ],
)
def test_contradictions(arguments: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--fp16", "--int8"], ["FP16", "INT8"]),
        (["--best"], ["FP16", "BF16", "INT8"]),
        (["--best", "--fp16"], ["FP16", "BF16", "INT8"]),
        (["--stripWeights"], ["STRIP_PLAN", "REFIT_IDENTICAL"]),
        (["--stripWeights", "--refit"], ["REFIT", "STRIP_PLAN"]),
        (["--stripAllWeights"], ["REFIT", "STRIP_PLAN"]),
        (["--noBuilderCache"], ["DISABLE_TIMING_CACHE"]),
    ],
)
def test_flags(arguments: list[str], flags: list[str]) -> None:
    assert parse(*arguments)["flags"] == flags


def test_flags_are_those_of_tensorrt() -> None:
    """Those that this package has; the precisions are TensorRT 10's."""
    trt = pytest.importorskip("tensorrt_rtx")
    older = {"FP16", "BF16", "INT8", "FP8", "INT4"}
    flags = {flag for names, _ in _trtexec._FLAGS.values() for flag in names} - older
    assert flags <= set(trt.BuilderFlag.__members__)


def test_values_that_are_refused_say_how_to_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "such as x:1x3x224x224,y:4" in refused(capsys, "--minShapes=x")
    assert "write workspace:SIZE" in refused(capsys, "--memPoolSize=1024")
    assert "set_memory_pool_limit" in refused(capsys, "--memPoolSize=dlaSRAM:1")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--loadEngine=e", "trt-widget only builds"),
        ("--workspace=100", "--memPoolSize=workspace:MiB"),
        ("--noTF32", "config.clear_flag(BuilderFlag.TF32)"),
        ("--inputIOFormats=fp16:chw", "allowed_formats"),
        ("--maxshapes=x:1", "Did you mean --maxShapes?"),
        ("--iteration=5", "trt-widget only builds"),
        ("--nothing-like-it", ""),
    ],
)
def test_hints(option: str, says: str) -> None:
    hint = _trtexec.hint(option, ["--maxShapes", "--minShapes"])
    assert says in hint
    assert bool(says) == bool(hint)


def test_no_option_has_a_hint() -> None:
    parser = argparse.ArgumentParser()
    _trtexec.add_arguments(parser)
    known = {name for action in parser._actions for name in action.option_strings}
    assert not known & set(_trtexec._HINTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timing_cache= is for full TensorRT", "--timingCacheFile is for full TensorRT"),
        # The command line has no such value.
        ("give timing_cache=True, which", "give timing_cache=True, which"),
        ("load it with plugins=[path];", "load it with --staticPlugins=path;"),
        ("flags=['FP16'] asks", "--flag FP16 asks"),
        ("executor='process' is not possible", "--executor=process is not possible"),
        ("output='no/e': there is no folder", "-o no/e: there is no folder"),
        ("timeout=-1.0 is not", "--timeout=-1.0 is not"),
        ("(timeout=).", "(--timeout)."),
        ("(timeout=1).", "(--timeout=1)."),
        ("profiles: the model has no input 'y'.", "--optShapes: the model has no input 'y'."),
        ("profiles[1]['y']: 2 values", "--profile=1 --optShapes 'y': 2 values"),
        ("profiles says nothing about 'x'.", "--optShapes says nothing about 'x'."),
        (
            "To add, with your own numbers in it:\n    'x': ((1, 8), (8, 8), (32, 8)),",
            (
                "To add, with your own numbers in it:\n"
                "  --minShapes=x:1x8 \\\n  --optShapes=x:8x8 \\\n  --maxShapes=x:32x8"
            ),
        ),
        ("flags: TensorRT has no 'FP16'.", "--fp16: TensorRT has no 'FP16'."),
        ("flags: TensorRT has no 'FP61'.", "--flag: TensorRT has no 'FP61'."),
        ("target: TensorRT cannot build", "--computeCapabilities: TensorRT cannot build"),
        ("Raise workspace= (bytes), or", "Raise --memPoolSize=workspace:MiB, or"),
        ("The target: it", "The target: it"),
        ("x.output=3, my_output=3", "x.output=3, my_output=3"),
    ],
)
def test_errors_name_the_options_of_the_command_line(text: str, expected: str) -> None:
    assert _trtexec.spelled(text) == expected


def test_a_profile_to_paste_is_one_for_a_shell() -> None:
    profile = {
        "x": ((1, 8), (8, 8), (32, 8)),
        "a,b": ((1,), (2,), (3,)),
        "$HOME `ls`": ((), (), ()),
    }
    rows = "".join(f"    {name!r}: {ranges},\n" for name, ranges in profile.items())
    said = _trtexec.spelled(f"To paste:\n  profiles={{\n{rows}  }}")
    assert said.startswith("To paste:\n")
    # shlex does not know that a backslash joins lines.
    words = shlex.split(said.removeprefix("To paste:\n").replace("\\\n", " "))
    assert parse(*words)["profiles"] == [profile]


@given(st.text())
def test_whatever_an_error_says_stays_a_text(text: str) -> None:
    assert isinstance(_trtexec.spelled(text), str)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--optimization-level", "--builderOptimizationLevel"),
        ("--timing_cache=x", "--timingCacheFile"),
        ("--external-data", "--external-data"),
    ],
)
def test_a_keyword_of_python_is_answered_by_its_option(given: str, meant: str) -> None:
    assert _trtexec.hint(given) == f"Did you mean {meant}?"


def test_an_option_that_is_like_one_without_a_twin_names_it() -> None:
    assert _trtexec.hint("--tilingOptimizationLevels").startswith(
        "Did you mean --tilingOptimizationLevel? "
    )
