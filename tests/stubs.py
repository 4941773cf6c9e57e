"""The type stubs of full TensorRT in a form that mypy takes: ``python -m tests.stubs``.

The package tensorrt-stubs has no py.typed where its stubs lie, and these are not all valid Python:
mypy passes over them in silence, and everything of TensorRT is ``Any``. So this makes a mended copy
in the folder that ``mypy_path`` in pyproject.toml names. Without it mypy still runs, with ``Any``.

The stubs were made from the signatures that the bindings print. So two things are mended: what
Python cannot read, and what such a signature does not tell, above all where None is given or taken.
A mend that does not find its place is an error: the stubs are of another version then.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

#: The folder of ``mypy_path``.
FOLDER = Path(__file__).resolve().parent.parent / ".mypy_cache" / "stubs"

FILES = (
    "tensorrt/__init__.pyi",
    "tensorrt_bindings/__init__.pyi",
    "tensorrt_bindings/tensorrt.pyi",
)

# What the stubs take from elsewhere, and do not import.
_IMPORTS = "import builtins\nimport collections.abc\nimport typing\nimport typing_extensions\n"
# The bindings convert any sequence of sizes to Dims.
_SHAPE = "Dims | collections.abc.Sequence[int]"

#: Class ("" is the module itself), what stands there once, and what is meant ("{}" is the old).
MENDS = (
    # Not valid Python: a parameter without a default after one that has one.
    ("INetworkDefinition", "= None, channel_axis: int)", "= None, channel_axis: int = ...)"),
    # A tuple can be iterated; Dims "behave like Python tuples", as its text says.
    (
        "Dims",
        "    def __len__(self) -> int:\n",
        "    def __iter__(self) -> collections.abc.Iterator[int]: ...\n{}",
    ),
    (
        "IOptimizationProfile",
        "min: Dims, opt: Dims, max: Dims)",
        f"min: {_SHAPE}, opt: {_SHAPE}, max: {_SHAPE})",
    ),
    # None where a build has failed or was cancelled, and where the flags are refused.
    (
        "Builder",
        "config: IBuilderConfig) -> IHostMemory:",
        "config: IBuilderConfig) -> IHostMemory | None:",
    ),
    ("Builder", "-> INetworkDefinition:", "-> INetworkDefinition | None:"),
    # None where the bytes are of no use, and where no cache was set.
    ("IBuilderConfig", "Buffer) -> ITimingCache:", "Buffer) -> ITimingCache | None:"),
    ("IBuilderConfig", "(self) -> ITimingCache:", "(self) -> ITimingCache | None:"),
    # None where none was set; setting None takes it away.
    (
        "IBuilderConfig",
        "    progress_monitor: IProgressMonitor\n",
        "    progress_monitor: IProgressMonitor | None\n",
    ),
    # None for a phase that has no parent.
    ("IProgressMonitor", "parent_phase: str,", "parent_phase: str | None,"),
    # None for an input that is left out, and past the last one.
    (
        "ILayer",
        "def get_input(self, index: int) -> ITensor:",
        "def get_input(self, index: int) -> ITensor | None:",
    ),
    (
        "ILayer",
        "def get_output(self, index: int) -> ITensor:",
        "def get_output(self, index: int) -> ITensor | None:",
    ),
    # None where the engine is damaged or of another version, and where memory is short.
    ("Runtime", "Buffer) -> ICudaEngine:", "Buffer) -> ICudaEngine | None:"),
    (
        "ICudaEngine",
        "Strategy = ...) -> IExecutionContext:",
        "Strategy = ...) -> IExecutionContext | None:",
    ),
    # Classes that were not known yet when the signature was printed.
    (
        "OnnxParser",
        "def get_error(self, index: int) -> ...:",
        "def get_error(self, index: int) -> ParserError:",
    ),
    ("", "def get_plugin_registry() -> ...:", "def get_plugin_registry() -> IPluginRegistry:"),
)


class StubsError(Exception):
    """The stubs are not there, or not those that the mends are for."""


def mend(text: str) -> str:
    """Mend the stubs of the bindings.

    Raises
    ------
    StubsError
        A mend does not find its place, or more than one.
    """
    parts = re.split(r"^(?=class |def get_builder_plugin_registry)", text, flags=re.MULTILINE)
    head = parts[0]
    if head.count("import typing\n") != 1:
        raise StubsError("the stubs do not import typing")
    parts[0] = head.replace("import typing\n", _IMPORTS)
    where = {
        name[1] if (name := re.match(r"class (\w+)", part)) else "": number
        for number, part in enumerate(parts)
    }
    for owner, old, new in MENDS:
        number = where.get(owner)
        found = 0 if number is None else parts[number].count(old)
        if number is None or found != 1:
            raise StubsError(f"{old!r} stands {found} times in {owner or 'the module'}, not once")
        parts[number] = parts[number].replace(old, new.replace("{}", old))
    return "".join(map(_mend_line, "".join(parts).splitlines(keepends=True)))


def _mend_line(line: str) -> str:
    """Mend what is the same everywhere; the texts in between are left alone."""
    if not re.match(r"\s*(?:def \w+\(|\w+: )", line):
        return line
    if "def " in line:
        line = re.sub(r"\bin: ", "in_: ", line)  # a parameter cannot be named like a keyword
        line = re.sub(r"\bcapsule\b", "typing.Any", line)
    # The module has a data type of that name.
    return re.sub(r"(: |-> |[\[|,] ?)bool\b", r"\1builtins.bool", line)


def source() -> dict[str, str]:
    """Give the text of the installed stubs, by name.

    Raises
    ------
    StubsError
        They are not installed.
    """
    texts = {}
    for name in FILES:
        package, _, file = name.partition("/")
        spec = importlib.util.find_spec(package)
        folders = (spec.submodule_search_locations or ()) if spec is not None else ()
        found = [path for folder in folders if (path := Path(folder, file)).is_file()]
        if not found:
            raise StubsError(f"{name} is not there: tensorrt-stubs is not installed")
        texts[name] = found[0].read_text(encoding="utf-8")
    return texts


def stage(folder: Path = FOLDER) -> Path:
    """Write the mended stubs, where they are not there already; give the folder.

    Raises
    ------
    StubsError
        They are not installed, or not those that the mends are for.
    """
    for name, text in source().items():
        mended = mend(text) if name == FILES[-1] else text
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written anew, it would be read anew; and another process may be reading it.
        if path.exists() and path.read_text(encoding="utf-8") == mended:
            continue
        descriptor, written = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        Path(written).write_text(mended, encoding="utf-8")
        Path(written).replace(path)
    return folder


if __name__ == "__main__":
    try:
        print(f"type stubs for mypy: {stage()}")
    except StubsError as error:
        sys.exit(f"tests/stubs.py: {error}")
