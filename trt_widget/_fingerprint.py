"""What a function of the user's does, as text: equal for the same code and values, else not.

It tells builds apart, so it must never call two different functions the same: what it cannot look
into makes the text unique. No code of the user's runs here: no ``repr``, no attribute of an object
but those of its own dictionary.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import types
from pathlib import PurePath
from typing import Any, Final

__all__ = ["fingerprint"]

_DEEPEST: Final = 40
_MOST: Final = 20_000
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# Defined in the notebook or script itself: there a name says nothing about what is behind it.
_HERE: Final = ("__main__", "__mp_main__")
# Objects of these belong to the machinery; that there is one is all that matters.
_OPAQUE: Final = (
    "tensorrt",
    "tensorrt_rtx",
    "tensorrt_bindings",
    "tensorrt_rtx_bindings",
    "logging",
)


class _UnknownError(Exception):
    """Something that cannot be looked into."""


def fingerprint(value: object) -> str:
    """Give a hash of a function, or of any value, with all that it refers to.

    Returns
    -------
    str
        Different for each call where something cannot be looked into.
    """
    try:
        text = _Marks().of(value)
    except Exception:  # noqa: BLE001 - an object can answer to anything with any exception
        return f"unknown {os.urandom(16).hex()}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Marks:
    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._count = 0

    def of(self, value: object) -> str:
        """Give the text of a value; of one that contains itself, how far above it stands."""
        kind = type(value)
        self._count += 1
        if self._count > _MOST or len(self._open) > _DEEPEST:
            raise _UnknownError
        if kind in _PLAIN:
            return f"{kind.__name__}:{value!r}"
        above = self._open.get(id(value))
        if above is not None:
            return f"same:{above}"
        self._open[id(value)] = len(self._open)
        try:
            return f"{kind.__name__}({self._inside(value)})"
        finally:
            del self._open[id(value)]

    def _list(self, values: Any) -> str:
        return ",".join(map(self.of, values))

    def _inside(self, value: Any) -> str:  # noqa: C901, PLR0911, PLR0912 - a kind a line
        kind = type(value)
        if kind in {list, tuple}:
            return self._list(value)
        if kind in {set, frozenset}:
            return ",".join(sorted(map(self.of, value)))
        if kind is dict:
            return ",".join(sorted(f"{self.of(k)}={self.of(v)}" for k, v in value.items()))
        if isinstance(value, types.CodeType):
            names = (value.co_names, value.co_freevars, value.co_cellvars, value.co_flags)
            return self._list((value.co_code, names, value.co_consts, value.co_argcount))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._list((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return self._list((value.func, value.args, value.keywords))
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
            owner = value.__self__
            known = owner is None or isinstance(owner, (types.ModuleType, type))
            return value.__qualname__ if known else self._list((value.__name__, owner))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, enum.Enum):
            return f"{kind.__module__}.{kind.__qualname__}.{value.name}"
        if isinstance(value, PurePath):
            return str(value)
        if kind is types.SimpleNamespace:
            return self.of(vars(value))
        if isinstance(value, types.CellType):
            try:
                return self.of(value.cell_contents)
            except ValueError:
                return "empty"
        return self._object(value)

    def _function(self, function: types.FunctionType) -> str:
        parts: list[object] = [
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            function.__closure__,
        ]
        scope = function.__globals__
        names = sorted(_names(function.__code__))
        parts += [(name, scope[name]) for name in names if name in scope]
        return self._list(parts)

    def _class(self, kind: type) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind.__module__ not in _HERE:
            return name
        skipped = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__")
        own = {key: value for key, value in vars(kind).items() if key not in skipped}
        plain = {key: _unwrapped(value) for key, value in own.items()}
        return self._list((name, kind.__bases__, plain))

    def _object(self, value: object) -> str:
        kind = type(value)
        if kind.__module__.partition(".")[0] in _OPAQUE:
            return f"{kind.__module__}.{kind.__qualname__}"
        own = getattr(value, "__dict__", None)
        if type(own) is not dict or hasattr(kind, "__slots__") or _holds_more(kind):
            raise _UnknownError
        return self._list((kind, own))


def _unwrapped(value: object) -> object:
    """Give what a class's attribute is made of."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    return value


def _holds_more(kind: type) -> bool:
    """Whether its objects have a content besides their dictionary: those of built-in types."""
    return any(base.__flags__ & _HEAP == 0 and base is not object for base in kind.__mro__)


#: Py_TPFLAGS_HEAPTYPE: set for classes that a class statement makes.
_HEAP: Final = 1 << 9


def _names(code: types.CodeType) -> set[str]:
    """Give the names that a code and those inside it look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
