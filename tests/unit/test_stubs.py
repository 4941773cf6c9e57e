"""What the package uses of TensorRT exists in full TensorRT (by its stubs) and in RTX (really).

tests/full asks the real bindings of full TensorRT.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import tensorrt_rtx

from tests.attributes import FILES, FOLDER, ONLY_RTX, keywords, sources, uses
from tests.attributes import used as all_used
from trt_widget import backend, options


def stub_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)), name)


def members(lines: list[str], indent: str) -> set[str]:
    """Collect the names that are defined, declared or imported at this indentation."""
    pattern = re.compile(
        indent + r"(?:def |class |from \S+ import (?:\w+ as )?)?(\w+)\s*(?:[:(]|$)"
    )
    return {match[1] for line in lines if (match := pattern.match(line))}


@pytest.fixture(scope="module")
def full() -> dict[str, set[str]]:
    """Give what full TensorRT has, by class, from tensorrt-stubs."""
    # Read line by line: the stubs are not all valid Python (INetworkDefinition.add_scale_nd).
    top = stub_file("tensorrt", "__init__.pyi").read_text(encoding="utf-8")
    inner = stub_file("tensorrt_bindings", "tensorrt.pyi").read_text(encoding="utf-8")
    found = {"": members(top.splitlines(), "")}
    for text in re.split(r"^class ", inner, flags=re.MULTILINE)[1:]:
        name = re.match(r"\w+", text)
        assert name is not None
        found[name[0]] = members(text.splitlines()[1:], " {4}")
    return found


@pytest.fixture(scope="module")
def used() -> set[tuple[str, str]]:
    return all_used()


def test_the_search_finds_what_is_there(used: set[tuple[str, str]]) -> None:
    assert {
        ("", "Builder"),
        ("", "IProgressMonitor"),
        ("Builder", "build_serialized_network"),
        ("IBuilderConfig", "progress_monitor"),
        ("INetworkDefinition", "num_inputs"),
        ("IOptimizationProfile", "set_shape_input"),
        ("IPluginCreator", "plugin_namespace"),
        ("", "get_plugin_registry"),
        ("IConvolutionLayer", "kernel_size_nd"),
        ("LayerType", "CONSTANT"),
        ("ILogger", "INTERNAL_ERROR"),
        ("ITensor", "is_shape_tensor"),
        ("MemoryPoolType", "WORKSPACE"),
        ("OnnxParser", "parse_from_file"),
        ("ParserError", "node_operator"),
    } <= used
    assert uses("config.set_flagg(trt.BuilderFlag.TF33)") == {
        ("IBuilderConfig", "set_flagg"),
        ("", "BuilderFlag"),
        ("BuilderFlag", "TF33"),
    }
    assert uses("getattr(self._config, 'nothing', None)") == {("IBuilderConfig", "nothing")}
    assert {entry for source in sources() for entry in keywords(source)} == {
        ("IBuilderConfig", "set_timing_cache", "ignore_mismatch"),
        ("ITimingCache", "combine", "ignore_mismatch"),
    }


def test_full_tensorrt_has_it(used: set[tuple[str, str]], full: dict[str, set[str]]) -> None:
    missing = {(owner, name) for owner, name in used if name not in full.get(owner, set())}
    assert missing == ONLY_RTX.keys()


def test_rtx_has_it(used: set[tuple[str, str]]) -> None:
    missing = {
        (owner, name)
        for owner, name in used
        if not hasattr(getattr(tensorrt_rtx, owner) if owner else tensorrt_rtx, name)
    }
    assert missing == set()


def test_every_file_that_names_tensorrt_is_searched() -> None:
    naming = {
        path.relative_to(FOLDER).as_posix()
        for path in FOLDER.rglob("*.py")
        if "backend.module" in path.read_text(encoding="utf-8")
    }
    assert naming <= set(FILES)


def test_flags_of_the_two_packages(full: dict[str, set[str]]) -> None:
    rtx = set(tensorrt_rtx.BuilderFlag.__members__)
    assert full["BuilderFlag"] >= backend._WEAK_FLAGS
    assert not rtx & backend._WEAK_FLAGS
    assert set(options._REFIT_FLAGS) <= full["BuilderFlag"] & rtx
    assert options._PRECISIONS <= backend._WEAK_FLAGS
    assert "STRONGLY_TYPED" in full["NetworkDefinitionCreationFlag"]
