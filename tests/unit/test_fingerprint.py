"""Functions are told apart by what they do, and found again in another process."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorrt_rtx as trt

from trt_widget._fingerprint import fingerprint

LEVEL = 0
LOGGER = trt.Logger(trt.Logger.ERROR)
LOCK = threading.Lock()


def closure(level: Any) -> Any:
    def configure(_builder: Any, _network: Any, config: Any) -> None:
        config.builder_optimization_level = level

    return configure


def default(level: Any) -> Any:
    def configure(_builder: Any, _network: Any, config: Any, level: Any = level) -> None:
        config.builder_optimization_level = level

    return configure


def keyword(level: Any) -> Any:
    def configure(_builder: Any, _network: Any, config: Any, *, level: Any = level) -> None:
        config.builder_optimization_level = level

    return configure


class Configure:
    def __init__(self, level: Any) -> None:
        self.level = level

    def __call__(self, _builder: Any, _network: Any, config: Any) -> None:
        config.builder_optimization_level = self.level

    def method(self, *_: Any) -> None: ...


def inner(level: int) -> Any:
    def zero(_builder: Any, _network: Any, config: Any) -> None:
        def put() -> None:
            config.builder_optimization_level = 0

        put()

    def five(_builder: Any, _network: Any, config: Any) -> None:
        def put() -> None:
            config.builder_optimization_level = 5

        put()

    return five if level == 5 else zero


def configure_global(_builder: Any, _network: Any, config: Any) -> None:
    config.builder_optimization_level = LEVEL


def base(level: Any, _builder: Any, _network: Any, config: Any) -> None:
    config.builder_optimization_level = level


MAKERS = {
    "closure": closure,
    "default": default,
    "keyword": keyword,
    "callable": Configure,
    "method": lambda level: Configure(level).method,
    "inner": inner,
    "partial": lambda level: functools.partial(base, level),
    "partial by name": lambda level: functools.partial(base, level=level),
    "list": lambda level: closure([1, {"a": level}]),
    "set": lambda level: closure({1, "b", level}),
    "object": lambda level: closure(SimpleNamespace(level=level)),
    "nested": lambda level: closure(closure(closure(level))),
    "path": lambda level: closure(Path(f"/{level}")),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_the_same_is_the_same_and_another_another(make: Any) -> None:
    assert fingerprint(make(0)) == fingerprint(make(0))
    assert fingerprint(make(0)) != fingerprint(make(5))


def test_another_function_in_a_partial() -> None:
    assert fingerprint(functools.partial(base, 1)) != fingerprint(functools.partial(closure, 1))


def test_a_global_counts_by_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(configure_global)
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 5)
    assert fingerprint(configure_global) != before


def test_what_belongs_to_the_machinery_is_of_no_importance() -> None:
    class Kind(enum.Enum):
        A = 1

    for value in (LOGGER, trt, trt.BuilderFlag, trt.BuilderFlag.REFIT, Kind.A, len, [].append):
        assert fingerprint(closure(value)) == fingerprint(closure(value)), value


def test_what_cannot_be_looked_into_is_never_the_same() -> None:
    class Dictionary(dict[str, int]):
        pass

    class Slots:
        __slots__ = ("x",)

    class Rude:
        def __getattribute__(self, name: str) -> Any:
            raise SystemError(name)

    deep: Any = 0
    for _ in range(1000):
        deep = [deep]
    for value in (LOCK, iter([1]), Dictionary(a=1), Slots(), Rude(), deep, list(range(100_000))):
        function = closure(value)
        assert fingerprint(function) != fingerprint(function), value


def test_what_contains_itself_comes_to_an_end() -> None:
    def loop(_builder: Any) -> Any:
        return loop

    ring: list[Any] = []
    ring.append(ring)
    assert fingerprint(loop) == fingerprint(loop)
    assert fingerprint(closure(ring)) == fingerprint(closure(ring))


def test_no_code_of_the_users_runs() -> None:
    class Proud:
        def __repr__(self) -> str:
            raise AssertionError

        __str__ = __hash__ = __eq__ = __repr__  # type: ignore[assignment]

    assert fingerprint(closure(Proud())) == fingerprint(closure(Proud()))


def test_it_is_the_same_in_every_process() -> None:
    script = """
        from trt_widget._fingerprint import fingerprint

        def configure(builder, network, config):
            for name in ("FP16", "INT8"):
                if name in {"FP16", "INT8", "BF16"}:
                    config.set_flag(name)

        print(fingerprint(configure), fingerprint({"a", "b", "c"}))
    """
    found = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(4)
    }
    assert len(found) == 1
