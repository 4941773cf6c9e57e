"""What the package uses of TensorRT exists in full TensorRT (by its stubs) and in RTX (really).

tests/full asks the real bindings of full TensorRT.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorrt_rtx

from tests import stubs
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
    # Read line by line: the stubs are not all valid Python (tests/stubs.py).
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


def test_mypy_reads_the_mended_stubs() -> None:
    texts = stubs.source()
    inner = texts[stubs.FILES[-1]]
    with pytest.raises(SyntaxError):
        ast.parse(inner)
    tree = ast.parse(stubs.mend(inner))
    unknown = {"bool", "capsule"}
    signatures = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.arg)))
    notes = (
        getattr(node, "returns", None) or getattr(node, "annotation", None) for node in signatures
    )
    names = (name for note in notes if note is not None for name in ast.walk(note))
    assert not [name.lineno for name in names if isinstance(name, ast.Name) and name.id in unknown]


def test_other_stubs_are_refused() -> None:
    inner = stubs.source()[stubs.FILES[-1]]
    changed = inner.replace("parent_phase: str,", "parent: str,")
    with pytest.raises(stubs.StubsError, match=r"'parent_phase: str,' stands 0 times in IProgress"):
        stubs.mend(changed)
    with pytest.raises(stubs.StubsError, match="stands 0 times in Dims, not once"):
        stubs.mend(inner.replace("class Dims:", "class Sizes:"))


#: Mistakes: the file, what stands there, what somebody writes instead, and mypy's error code.
MISTAKES = (
    # The module, an enumeration, a method.
    ("network.py", "trt.OnnxParser(network", "trt.OnnxParsers(network", "attr-defined"),
    ("network.py", "MemoryPoolType.WORKSPACE,", "MemoryPoolType.WORKSPACES,", "attr-defined"),
    ("network.py", "ranges.set_shape_input(", "ranges.set_shape_inputs(", "attr-defined"),
    ("diagnosis.py", "entry.node_operator()", "entry.node_operators()", "attr-defined"),
    # Arguments and results.
    ("network.py", "trt.Builder(logger)", "trt.Builder()", "call-arg"),
    ("network.py", "add_optimization_profile(ranges)", "add_optimization_profile(1)", "arg-type"),
    (
        "network.py",
        "config.progress_monitor = progress_monitor",
        "config.progress_monitor = 1",
        "assignment",
    ),
    ("_timing_cache.py", "combine(other, ignore_mismatch=", "combine(other, mismatch=", "call-arg"),
    ("executors/worker.py", "self._logger.serious()", "self._logger.seriously()", "attr-defined"),
    # None: a cache that TensorRT did not make, an input that is left out, an engine that failed.
    (
        "_timing_cache.py",
        "cache is not None and self._give(cache)",
        "self._give(cache)",
        "arg-type",
    ),
    ("identity.py", "return () if tensor is None else (", "return (", "union-attr"),
    (
        "_checks.py",
        "_execute(loaded)\n",
        "_execute(runtime.deserialize_cuda_engine(engine))\n",
        "arg-type",
    ),
    # The callbacks; it is said of the class that has both.
    ("monitor.py", "step: int) -> bool:", "step: int) -> bool | None:", "misc"),
    ("logger.py", "severity: ILogger.Severity", "severity: str", "misc"),
)
REPORTED = {"monitor.py": "class _Bound(", "logger.py": "class BuildLogger("}


def test_mypy_finds_mistakes_with_tensorrt(tmp_path: Path) -> None:
    stubs.stage()
    shadows, expected = [], set()
    for name in dict.fromkeys(mistake[0] for mistake in MISTAKES):
        text = (FOLDER / name).read_text(encoding="utf-8")
        for _, old, new, code in (mistake for mistake in MISTAKES if mistake[0] == name):
            assert text.count(old) == 1, old
            line = text[: text.index(REPORTED.get(name, old))].count("\n") + 1
            expected.add((name, line, code))
            text = text.replace(old, new)
        shadow = tmp_path / name.replace("/", "-")
        shadow.write_text(text, encoding="utf-8")
        shadows += ["--shadow-file", f"trt_widget/{name}", str(shadow)]
    files = [f"trt_widget/{name}" for name in dict.fromkeys(mistake[0] for mistake in MISTAKES)]
    cache = ("--cache-dir", str(stubs.FOLDER.parent / "mistakes"))
    mypy = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", *cache, *shadows, *files],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert mypy.returncode == 1, mypy.stdout + mypy.stderr
    pattern = re.compile(r"trt_widget/(\S+?):(\d+): error: .*\[([a-z-]+)\]")
    found = {
        (match[1], int(match[2]), match[3])
        for line in mypy.stdout.replace("\\", "/").splitlines()
        if (match := pattern.match(line))
    }
    assert expected <= found, mypy.stdout
    # Nothing else is wrong: a second error is on the line of a mistake.
    assert {entry[:2] for entry in found} == {entry[:2] for entry in expected}, mypy.stdout
