from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import onnx
import pytest
import tensorrt_rtx

from tests import models
from tests.unit.test_backend import fake_tensorrt
from trt_widget import Build, BuildWidget
from trt_widget.errors import (
    OptionError,
    OutputError,
    ProfileError,
    SourceError,
    UnknownOptionError,
    WrongBackendError,
)
from trt_widget.options import (
    OPTION_NAMES,
    BuildOptions,
    ShapeRange,
    check_output,
    check_source,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ISSUE = (
    "output profiles timeout flags strongly_typed network_flags optimization_level workspace "
    "device target configure config backend "
    "executor grace exclusive plugins external_data timing_cache engine_cache "
    "client resources reschedules"
)


def options(**kwargs: Any) -> BuildOptions:
    return BuildOptions.from_kwargs({"backend": "tensorrt_rtx", **kwargs})


def on_10(**kwargs: Any) -> BuildOptions:
    return BuildOptions.from_kwargs({"backend": fake_tensorrt(), **kwargs})


def test_the_options_are_those_of_the_issue() -> None:
    assert set(OPTION_NAMES) == set(ISSUE.split())


@pytest.mark.parametrize("kind", [Build, BuildWidget])
def test_the_help_names_every_option(kind: type[Any]) -> None:
    assert kind.__doc__
    assert all(f"``{name}``" in kind.__doc__ for name in OPTION_NAMES)


def test_defaults_and_none() -> None:
    bare = BuildOptions.from_kwargs({"backend": "tensorrt_rtx"})
    assert bare == BuildOptions.from_kwargs(
        {**dict.fromkeys(OPTION_NAMES), "backend": tensorrt_rtx}
    )
    assert bare.strongly_typed is True
    assert bare.profiles == bare.flags == bare.target == bare.network_flags == ()
    assert bare.timeout is bare.workspace is bare.device is bare.output is None
    assert bare.plugins == bare.external_data == ()
    assert bare.exclusive is bare.timing_cache is None
    assert (bare.executor, bare.grace) == ("auto", 2.0)


def test_options_pickle_and_are_frozen(tmp_path: Path) -> None:
    made = options(
        profiles={"x": (1, 2, 3)},
        flags="TF32",
        timeout=3,
        output=tmp_path / "model.engine",
        external_data=tmp_path,
        executor="process",
    )
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own
    with pytest.raises(AttributeError):
        made.timeout = 4  # type: ignore[misc]


def test_options_with_functions_travel_to_another_process() -> None:
    level = 4

    def configure(*_: object) -> int:  # in a function: the standard pickle cannot name it
        return level

    made = options(configure=configure, timeout=3)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(made)
    script = """
import pickle, sys
made = pickle.load(sys.stdin.buffer)
print(made.backend, made.timeout, made.configure(None, None, None), list(made.travelling()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=cloudpickle.dumps(made),
        check=True,
        capture_output=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.decode().strip() == f"{made.backend} 3.0 4 ['configure']"


def test_what_has_to_travel() -> None:
    assert options().travelling() == {}
    assert options(configure=print, config=len).travelling() == {"configure": print, "config": len}
    assert options(config=len).travelling() == {"config": len}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("profile", "profiles"),
        ("ouput", "output"),
        ("optimisation_level", "optimization_level"),
        ("Flags", "flags"),
        ("work_space", "workspace"),
        ("plugin", "plugins"),
        ("timingcache", "timing_cache"),
        ("xyzzy", None),
    ],
)
def test_an_unknown_keyword_is_a_type_error(name: str, nearest: str | None) -> None:
    with pytest.raises(TypeError, match=f"There is no option '{name}'") as caught:
        options(**{name: 1})
    assert isinstance(caught.value, UnknownOptionError)
    assert caught.value.nearest == nearest
    assert (f"Did you mean {nearest!r}?" in str(caught.value)) is (nearest is not None)


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), np.int64(3)])
def test_timeouts(value: Any) -> None:
    assert options(timeout=value).timeout == float(value)


@pytest.mark.parametrize(
    "value", [0, -1, float("nan"), float("inf"), 10**400, "10", True, timedelta(seconds=3), [1]]
)
def test_bad_timeouts(value: Any) -> None:
    with pytest.raises(OptionError, match="is not a number of seconds above zero"):
        options(timeout=value)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(2), np.int64(3)])
def test_graces(value: Any) -> None:
    made = options(grace=value)
    assert made.grace == float(value)
    assert type(made.grace) is float


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), "2", True, timedelta(seconds=3), [1]]
)
def test_bad_graces(value: Any) -> None:
    with pytest.raises(OptionError, match="is not a number of seconds of at least zero"):
        options(grace=value)


def test_whole_numbers() -> None:
    made = options(workspace=np.int64(1 << 30), optimization_level=np.int8(5), device=0)
    assert (made.workspace, made.optimization_level, made.device) == (1 << 30, 5, 0)
    assert type(made.workspace) is int


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workspace", 0),
        ("workspace", 1.5),
        ("workspace", "1GiB"),
        ("workspace", True),
        ("device", -1),
        ("device", "cuda:0"),
        ("device", np.True_),
        ("optimization_level", 6),
        ("optimization_level", -1),
        ("optimization_level", 3.0),
    ],
)
def test_bad_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name}="):
        options(**{name: value})


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "tf32",
        ["TF32"],
        ("tf32", "TF32"),
        tensorrt_rtx.BuilderFlag.TF32,
        [tensorrt_rtx.BuilderFlag.TF32],
        "BuilderFlag.TF32",
        {"tf32"},
    ],
)
def test_flags(value: Any) -> None:
    assert options(flags=value).flags == ("TF32",)


def test_bad_flags() -> None:
    with pytest.raises(
        OptionError, match=r"has no 'REFITT'.\nDid you mean 'REFIT'\? It has: DEBUG, "
    ):
        options(flags=["REFITT"])
    with pytest.raises(OptionError, match="is not a name"):
        options(flags=[3])
    with pytest.raises(OptionError, match="is not a name"):
        options(flags=8)
    with pytest.raises(OptionError, match="REFIT and REFIT_IDENTICAL exclude each other"):
        options(flags=["REFIT", "REFIT_IDENTICAL"])
    with pytest.raises(OptionError, match="the precisions are those of the model"):
        options(flags=["FP16"])


def test_strong_typing_on_rtx() -> None:
    assert options().strongly_typed
    assert options(strongly_typed=True).strongly_typed
    assert options(network_flags=["STRONGLY_TYPED"]).network_flags == ()
    with pytest.raises(OptionError, match="strongly_typed=False is not possible"):
        options(strongly_typed=False)
    with pytest.raises(OptionError, match="neither True nor False"):
        options(strongly_typed="yes")


def test_strong_typing_on_tensorrt_10() -> None:
    assert on_10().strongly_typed
    assert not on_10(strongly_typed=False).strongly_typed
    # Such flags mean nothing in a strongly typed network, so they make a weakly typed one.
    made = on_10(flags=["FP16", "TF32"])
    assert made.flags == ("FP16", "TF32")
    assert not made.strongly_typed
    assert on_10(flags=["TF32"]).strongly_typed
    assert on_10(network_flags=["explicit_batch"]).network_flags == ("EXPLICIT_BATCH",)
    with pytest.raises(
        OptionError, match="FP16 and INT8 cannot be used in a strongly typed network"
    ):
        on_10(flags=["FP16", "INT8"], strongly_typed=True)
    with pytest.raises(OptionError, match="FP16 cannot be used in a strongly typed network"):
        on_10(flags=["FP16"], network_flags=["STRONGLY_TYPED"])
    with pytest.raises(OptionError, match="contradicts"):
        on_10(strongly_typed=False, network_flags=["STRONGLY_TYPED"])
    with pytest.raises(OptionError, match="Did you mean 'STRONGLY_TYPED'"):
        on_10(network_flags=["STRONG_TYPED"])


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("SM86", ("SM86",)),
        ("sm_86", ("SM86",)),
        ("sm-86", ("SM86",)),
        ("8.6", ("SM86",)),
        (8.6, ("SM86",)),
        (86, ("SM86",)),
        ("compute_120", ("SM120",)),
        ("12.0", ("SM120",)),
        (12.0, ("SM120",)),
        ("current", ("CURRENT",)),
        (tensorrt_rtx.ComputeCapability.SM89, ("SM89",)),
        (["SM86", 12.0, "sm86"], ("SM86", "SM120")),
        ((tensorrt_rtx.ComputeCapability.SM75,), ("SM75",)),
    ],
)
def test_targets(value: Any, names: tuple[str, ...]) -> None:
    assert options(target=value).target == names


@pytest.mark.parametrize(
    "value", ["SM90", "9.0", "ampere", "", "NONE", True, ["SM86", 3], object()]
)
def test_bad_targets(value: Any) -> None:
    with pytest.raises(OptionError, match="Possible are 'current', 'SM75'"):
        options(target=value)


def test_targets_that_contradict() -> None:
    with pytest.raises(OptionError, match="'current' cannot be combined"):
        options(target=["current", "SM86"])
    with pytest.raises(OptionError, match="target is empty"):
        options(target=[])
    with pytest.raises(OptionError, match="is for TensorRT for RTX; TensorRT 10"):
        on_10(target="SM86")


def test_functions() -> None:
    assert options(configure=print).configure is print
    for name in ("configure", "config"):
        with pytest.raises(OptionError, match=f"{name}= must be a function, not an int"):
            options(**{name: 3})


@pytest.mark.parametrize(
    ("value", "checked"),
    [("auto", "auto"), ("thread", "thread"), ("process", "process"), (" Process", "process")],
)
def test_executors(value: str, checked: str) -> None:
    assert options(executor=value).executor == checked


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("threads", "Did you mean 'thread'? "),
        ("subprocess", "Did you mean 'process'? "),
        ("xyz", ""),
        ("", ""),
        (3, ""),
        (True, ""),
    ],
)
def test_bad_executors(value: Any, hint: str) -> None:
    with pytest.raises(OptionError, match="is no place to build in") as caught:
        options(executor=value)
    assert caught.value.remedy.startswith(f"{hint}Give 'process'")
    assert all(f"'{name}'" in caught.value.remedy for name in ("auto", "thread", "process"))


def test_exclusive() -> None:
    assert options(exclusive=True).exclusive is True
    assert options(exclusive=False).exclusive is False
    for value in (1, "yes", [True]):
        with pytest.raises(OptionError, match="is neither True nor False"):
            options(exclusive=value)


def test_config_stands_alone() -> None:
    made = options(config=print, configure=print, timeout=3, device=0)
    assert made.config is print
    for name, value in (
        ("flags", ["TF32"]),
        ("workspace", 1),
        ("optimization_level", 3),
        ("target", "SM86"),
        ("profiles", {"x": (1, 2, 3)}),
        ("timing_cache", "tactics.cache"),
    ):
        with pytest.raises(OptionError, match=f"so {name}= cannot be given too"):
            options(config=print, **{name: value})


def test_backends() -> None:
    assert options().backend.module is tensorrt_rtx
    with pytest.raises(WrongBackendError):
        options(backend=os)


# ---- profiles -----------------------------------------------------------------------------------

PROFILE = {"x": ((1, 8), (4, 8), (8, 8))}
CHECKED = {"x": ShapeRange((1, 8), (4, 8), (8, 8))}


class PolygraphyTriple:
    min, opt, max = (1, 8), [4, 8], (8, 8)


@pytest.mark.parametrize(
    "value",
    [
        PROFILE,
        [PROFILE],
        (PROFILE,),
        {"x": [[1, 8], [4, 8], [8, 8]]},
        {"x": np.array([[1, 8], [4, 8], [8, 8]])},
        {"x": ((np.int64(1), 8), (4, 8), (8, 8))},
        {"x": PolygraphyTriple},
    ],
)
def test_profiles(value: Any) -> None:
    assert options(profiles=value).profiles == (CHECKED,)


def test_several_profiles_and_shape_values() -> None:
    made = options(profiles=[PROFILE, {"shape": ((-1, 2), (-1, 2), (4, 2)), "count": (0, 4, 8)}])
    assert made.profiles[1] == {
        "shape": ((-1, 2), (-1, 2), (4, 2)),
        "count": ((0,), (4,), (8,)),
    }
    assert options(profiles=[]).profiles == ()
    assert options(profiles={"scalar": ((), (), ())}).profiles == ({"scalar": ((), (), ())},)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "profiles is empty"),
        ([{}], r"profiles\[0\] is empty"),
        ("x", "profiles is a str, not a dict"),
        (3, "profiles is an int, not a dict"),
        ([PROFILE, 3], r"profiles\[1\] is an int"),
        ({3: ((1,), (2,), (3,))}, "3 is no input's name"),
        ({"x": (1, 8)}, r"profiles\['x'\] is not \(min, opt, max\)"),
        ({"x": "abc"}, "is not"),
        ({"x": {"min": (1,), "opt": (2,), "max": (3,)}}, "is not"),
        ({"x": 3}, "is not"),
        ({"x": ((8, 8), (4, 8), (8, 8))}, "min > opt in dimension 0"),
        ({"x": ((1, 8), (4, 9), (8, 8))}, "opt > max in dimension 1"),
        ({"x": ((1, 8), (4, 8, 1), (8, 8))}, "differ in their number of dimensions"),
        (
            {"x": ((1, 8.5), (4, 8.5), (8, 8.5))},
            r"profiles\['x'\], min is not made of whole numbers",
        ),
        ({"x": ((1, None), (4, 8), (8, 8))}, "not made of whole numbers"),
        ({"x": (("b", 8), (4, 8), (8, 8))}, "not made of whole numbers"),
        ({"x": ((True, 8), (4, 8), (8, 8))}, "not made of whole numbers"),
        ({"x": ("18", (4, 8), (8, 8))}, "is no shape: '18'"),
    ],
)
def test_bad_profiles(value: Any, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        options(profiles=value)
    assert caught.value.remedy


# ---- output -------------------------------------------------------------------------------------


def test_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_output("model.engine") == tmp_path / "model.engine"
    (tmp_path / "old.engine").write_bytes(b"old")
    made = options(output=tmp_path / "old.engine")
    assert made.output == tmp_path / "old.engine"
    assert (tmp_path / "old.engine").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.engine"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "is a directory"),
        ("missing/model.engine", "there is no folder"),
        ("file/model.engine", "there is no folder"),
        ("", "is empty"),
        ("a\0b", "no usable path"),
        (os.devnull, "is not a regular file"),
        ("x" * 5000, "no usable path"),
    ],
)
def test_bad_outputs(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=words):
        options(output=name)


def test_an_output_that_is_no_path() -> None:
    with pytest.raises(OptionError, match="output= must be a path, not a list"):
        options(output=["model.engine"])


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write everywhere, so the system's answer is put in its place.
    access: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)
    with pytest.raises(OutputError, match="cannot be written to"):
        options(output=tmp_path / "model.engine")


# ---- other files --------------------------------------------------------------------------------


def test_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(b"x")
    assert options(plugins="a.so").plugins == (tmp_path / "a.so",)
    assert options(plugins=tmp_path / "a.so").plugins == (tmp_path / "a.so",)
    # The order is kept: one may need another.
    both = ["b.so", tmp_path / "a.so", tmp_path / "b.so"]
    assert options(plugins=both).plugins == (tmp_path / "b.so", tmp_path / "a.so")
    assert options(plugins=(name for name in both)).plugins[0] == tmp_path / "b.so"
    assert options(plugins=[]).plugins == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("libmine.so", "plugins: there is no file '.*libmine.so'.\nDid you mean 'libmime.so'"),
        ("missing/x.so", "plugins: there is no file"),
        ("libmime.so/x", "plugins: '.*' cannot be read"),
        (".", "is a directory"),
        (os.devnull, "is not a regular file"),
        ("", "no usable path"),
        ("a\0b", "no usable path"),
        (3, "must be a path or a list of paths, not an int"),
        ([None], "must be a path or a list of paths, not a NoneType"),
    ],
)
def test_bad_plugins(
    value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libmime.so").write_bytes(b"x")
    with pytest.raises(OptionError, match=words):
        options(plugins=value)


def test_folders_of_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert options(external_data="a").external_data == (tmp_path / "a",)
    assert options(external_data=[tmp_path, "a"]).external_data == (tmp_path, tmp_path / "a")
    for value, words in (
        ("b", "'.*b' does not exist"),
        ("file", "'.*file' is a file"),
        (["a", "b"], "'.*b' does not exist"),
        ("", "no usable path"),
        (3, "external_data= must be a path or a list of paths, not an int"),
    ):
        with pytest.raises(OptionError, match=words):
            options(external_data=value)


def test_timing_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = on_10(timing_cache="tactics.cache", output="model.engine")
    assert made.timing_cache == tmp_path / "tactics.cache"
    assert not (tmp_path / "tactics.cache").exists()
    (tmp_path / "tactics.cache").write_bytes(b"old")
    assert on_10(timing_cache=tmp_path / "tactics.cache").timing_cache == made.timing_cache
    for value, words in (
        (".", "timing_cache='.' is a directory"),
        ("missing/x", "there is no folder"),
        ("", "timing_cache= is empty"),
        (os.devnull, "is not a regular file"),
        ("a\0b", "no usable path"),
        (["x"], "timing_cache= must be a path, not a list"),
        ("model.engine", "timing_cache= and output= are the same file"),
    ):
        with pytest.raises(OptionError, match=words) as caught:
            on_10(timing_cache=value, output="model.engine")
        assert not isinstance(caught.value, OutputError)


def test_a_timing_cache_in_the_users_folder() -> None:
    assert on_10(timing_cache=True).timing_cache is True
    assert on_10(timing_cache=False).timing_cache is None
    assert options(timing_cache=False, config=print).timing_cache is None
    with pytest.raises(OptionError, match="so timing_cache= cannot be given too"):
        on_10(timing_cache=True, config=print)


def test_timing_caches_are_not_for_rtx(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="timing caches do not apply to TensorRT for RTX"):
        options(timing_cache=tmp_path / "tactics.cache")
    # A cache where there is one: the build says that there is none.
    assert options(timing_cache=True).timing_cache is True


# ---- sources ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.onnx"
    made.write_bytes(models.mlp(1).SerializeToString())
    return made


def test_paths(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __fspath__(self) -> str:
            return str(path)

    monkeypatch.chdir(path.parent)
    for given in (path, str(path), Own(), "model.onnx"):
        source = check_source(given)
        assert (source.kind, source.value, source.display_name) == ("path", path, "model.onnx")


def test_bytes_are_copied_where_they_could_change() -> None:
    data = bytearray(models.mlp(1).SerializeToString())
    source = check_source(data)
    assert (source.kind, source.display_name) == ("bytes", "<bytes>")
    data[:] = bytes(len(data))
    assert source.value[0] != 0
    assert check_source(source.value).value is source.value
    assert check_source(memoryview(source.value)).value == source.value


def test_protos() -> None:
    proto = models.mlp(1)
    source = check_source(proto)
    assert (source.kind, source.display_name) == ("proto", "mlp")
    assert source.value is proto
    assert check_source(onnx.ModelProto()).display_name == "<ModelProto>"
    with pytest.raises(SourceError, match="A GraphProto is not a whole ONNX model"):
        check_source(proto.graph)


def test_callables() -> None:
    def network() -> None: ...

    class Loader:
        def __call__(self) -> None: ...

    assert check_source(network).display_name == "network"
    assert check_source(Loader()).display_name == "Loader"
    assert check_source(functools.partial(network)).display_name == "network"
    assert check_source(lambda: None).display_name == "<lambda>"


@pytest.mark.parametrize("value", [None, 3, [], object(), {"x": 1}])
def test_what_is_no_source(value: Any) -> None:
    with pytest.raises(SourceError, match="cannot be a model"):
        check_source(value)


def test_empty_sources(tmp_path: Path) -> None:
    for empty in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(SourceError, match=r"The model is empty \(0 bytes\)"):
            check_source(empty)
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(SourceError, match=r"empty\.onnx' is empty \(0 bytes\)"):
        check_source(tmp_path / "empty.onnx")


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("modle.onnx", "There is no file 'modle.onnx'", "Did you mean 'model.onnx'?"),
        ("xyz", "There is no file", "It was looked for in"),
        ("no/where.onnx", "There is no file", "does not exist either"),
        ("https://example.com/model.onnx", "There is no file", "It looks like a URL"),
        ("~/model.onnx", "There is no file", "A ~ is not expanded"),
        (".", "'.' is a directory", "It holds model.onnx."),
        (os.devnull, "is not a regular file", ""),
        ("a\0b", "cannot be read", ""),
        ("x" * 5000, "cannot be read", ""),
        ("model.onnx/x", "cannot be read", ""),
    ],
)
def test_bad_paths(
    name: str, cause: str, remedy: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(SourceError) as caught:
        check_source(name)
    assert cause in caught.value.cause
    assert remedy in caught.value.remedy


def test_a_file_without_permission(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SourceError, match="permission denied"):
        check_source(path)


def test_checking_does_not_read_the_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr("builtins.open", read)
    monkeypatch.setattr(Path, "open", read)
    check_source(path, options())


def test_source_and_options_together(path: Path) -> None:
    with pytest.raises(OutputError, match="is the model itself"):
        check_source(path, options(output=path))
    with pytest.raises(OptionError, match="have no effect on a network that a callable makes"):
        check_source(lambda: None, options(strongly_typed=True))
    assert check_source(lambda: None, options()).kind == "callable"
