"""What the package uses of TensorRT exists in full TensorRT (by its stubs) and in RTX (really).

Full TensorRT cannot run here; the objects of both packages are ``Any`` for mypy. So the source is
searched for attributes of what is, by its name, one of TensorRT's objects.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import tensorrt_rtx

import trt_widget
from trt_widget import backend, options

#: Names of variables and attributes, and the class whose objects they hold; "" is the module.
OBJECTS = {
    "trt": "",
    "module": "",
    "builder": "Builder",
    "network": "INetworkDefinition",
    "config": "IBuilderConfig",
    "parser": "OnnxParser",
    "entry": "ParserError",
    "tensor": "ITensor",
    "ranges": "IOptimizationProfile",
    "cache": "ITimingCache",
    "registry": "IPluginRegistry",
}

FILES = [
    "_plugins.py",
    "_timing_cache.py",
    "backend.py",
    "build.py",
    "diagnosis.py",
    "executors/thread.py",
    "executors/worker.py",
    "logger.py",
    "monitor.py",
    "network.py",
]

#: What only one package has, and why that is fine.
ONLY_RTX = {
    ("", "ComputeCapability"): "target= is refused for full TensorRT by BuildOptions",
    ("IBuilderConfig", "num_compute_capabilities"): "the same",
    ("IBuilderConfig", "set_compute_capability"): "the same",
}

FOLDER = Path(trt_widget.__file__).parent


def uses(source: str) -> set[tuple[str, str]]:
    """Collect (class, attribute) from a source; of ``trt.X.Y`` both ("", X) and (X, Y)."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        holder = node.value
        name = getattr(holder, "id", getattr(holder, "attr", ""))
        if name in OBJECTS and isinstance(holder, (ast.Name, ast.Attribute)):
            found.add((OBJECTS[name], node.attr))
        elif isinstance(holder, ast.Attribute) and getattr(holder.value, "id", "") == "trt":
            found.add((holder.attr, node.attr))
    return found


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
    found: set[tuple[str, str]] = set()
    for name in FILES:
        found |= uses((FOLDER / name).read_text(encoding="utf-8"))
    return found


def test_the_search_finds_what_is_there(used: set[tuple[str, str]]) -> None:
    assert {
        ("", "Builder"),
        ("", "IProgressMonitor"),
        ("Builder", "build_serialized_network"),
        ("IBuilderConfig", "progress_monitor"),
        ("INetworkDefinition", "num_inputs"),
        ("IOptimizationProfile", "set_shape_input"),
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
