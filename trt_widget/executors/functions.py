"""The caller's functions on their way to the process that builds."""

from __future__ import annotations

import io
import linecache
import os
import pickle
from collections import ChainMap
from types import CodeType
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from trt_widget.options import BuildOptions, Source

__all__ = ["CannotTravelError", "pack_functions", "reason", "unpack_functions"]


class CannotTravelError(Exception):
    """Something cannot be sent to another process; the message says what and why."""


def pack_functions(source: Source, options: BuildOptions) -> bytes | None:
    """Pickle the caller's functions, if there are any.

    Returns
    -------
    bytes or None
        The pickle of two dicts: the functions by name (``source``, ``configure``, ``config``), and
        the lines of those that are in no file (notebook cells), by file name, for tracebacks.

    Raises
    ------
    CannotTravelError
        One of them holds what cannot be pickled: a live builder, network or config, a lock ...
    """
    functions = options.travelling()
    if source.kind == "callable":
        functions = {**functions, "source": source.value}
    if not functions:
        return None
    name = ""
    try:
        files: set[str] = set()
        for name, function in functions.items():  # noqa: B007 - the one that fails is named below
            files |= _pickle(function)[1]
        lines = {
            file: linecache.getlines(file)
            for file in files
            if not os.path.exists(file)  # noqa: PTH110 - names such as <stdin>
        }
        packed = _pickle((functions, lines))[0]
    except Exception as error:
        shown = "the source" if name == "source" else f"{name}="
        msg = f"{shown} cannot be sent to another process ({reason(error)})"
        raise CannotTravelError(msg) from error
    return packed


def _pickle(value: object) -> tuple[bytes, set[str]]:
    """Pickle by cloudpickle; also give the names of the files that the functions come from.

    cloudpickle itself calls every file ``<dynamic-code>``, which would take the user's own lines
    out of a traceback.
    """
    files: set[str] = set()
    usual = cloudpickle.CloudPickler.dispatch_table

    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        files.add(code.co_filename)
        make, arguments = usual[CodeType](code)
        return _make_code, (make, arguments, code.co_filename)

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
        pass

    Pickler.dispatch_table = ChainMap({CodeType: reduce_code}, usual)
    with io.BytesIO() as buffer:
        Pickler(buffer).dump(value)
        return buffer.getvalue(), files


def _make_code(make: Any, arguments: tuple[Any, ...], filename: str) -> Any:
    """Make a code object again, with the file name that it had (called by the unpickler)."""
    return make(*arguments).replace(co_filename=filename)


def unpack_functions(packed: bytes) -> dict[str, Any]:
    """Recreate what :func:`pack_functions` has packed; raises whatever that raises."""
    functions: dict[str, Any]
    functions, lines = pickle.loads(packed)  # noqa: S301 - from our own parent process
    for name, text in lines.items():
        linecache.cache[name] = (sum(map(len, text)), None, text, name)
    return functions


def reason(error: BaseException) -> str:
    """Give the first line of what an exception says, else its type."""
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return text or type(error).__name__
