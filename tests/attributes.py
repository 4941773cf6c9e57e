"""What the package uses of TensorRT's objects, read from its source.

mypy holds the source against the stubs of TensorRT 10.13 (tests/stubs.py). It cannot ask the
packages themselves, TensorRT for RTX and other versions among them, and it sees no name in a text
(getattr, the tables of ``identity``). Nor can objects of full TensorRT be made on a machine without
a GPU. So the source is searched for attributes of what is, by its name, one of TensorRT's objects.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import trt_widget
from trt_widget import _plugins, identity, logger

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    "layer": "ILayer",
    "ranges": "IOptimizationProfile",
    "cache": "ITimingCache",
    "registry": "IPluginRegistry",
    "creator": "IPluginCreator",
    "runtime": "Runtime",
    "loaded": "ICudaEngine",
    "execution": "IExecutionContext",
}

#: The files that touch TensorRT's objects.
FILES = [
    "_checks.py",
    "_plugins.py",
    "_timing_cache.py",
    "backend.py",
    "build.py",
    "diagnosis.py",
    "executors/attached.py",
    "executors/thread.py",
    "executors/worker.py",
    "identity.py",
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


def _owner(holder: ast.expr) -> str | None:
    """Give the class whose object an expression is, by its last name."""
    if isinstance(holder, (ast.Name, ast.Attribute)):
        name = (holder.id if isinstance(holder, ast.Name) else holder.attr).lstrip("_")
        if name in OBJECTS:
            return OBJECTS[name]
        if isinstance(holder, ast.Attribute) and getattr(holder.value, "id", "") == "trt":
            return holder.attr
    return None


def _accesses(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Give (object, attribute): of ``x.y``, and of getattr and hasattr with a name that is text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "hasattr"}:
            holder, name = node.args[:2]
            if isinstance(name, ast.Constant):
                yield holder, str(name.value)


def uses(source: str) -> set[tuple[str, str]]:
    """Collect (class, attribute) from a source; of ``trt.X.Y`` both ("", X) and (X, Y)."""
    return {
        (owner, name)
        for holder, name in _accesses(ast.parse(source))
        if not name.startswith("__") and (owner := _owner(holder)) is not None
    }


def keywords(source: str) -> set[tuple[str, str, str]]:
    """Collect (class, method, keyword) from the calls in a source."""
    return {
        (owner, node.func.attr, keyword.arg)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if (owner := _owner(node.func.value)) is not None
        for keyword in node.keywords
        if keyword.arg is not None
    }


def sources() -> list[str]:
    """Give the text of the files."""
    return [(FOLDER / name).read_text(encoding="utf-8") for name in FILES]


def used() -> set[tuple[str, str]]:
    """Give all that the package uses, what stands in tables of names included."""
    found: set[tuple[str, str]] = set()
    for source in sources():
        found |= uses(source)
    for kind, (owner, plain, weights) in identity._LAYERS.items():
        found |= {("", owner), ("LayerType", kind)}
        found |= {(owner, name) for name in (*plain, *weights)}
    found |= {("IPluginCreator", name) for name in _plugins._NAMED_BY}
    found |= {("ILogger", name.upper()) for name in logger._LEVELS}
    return found
