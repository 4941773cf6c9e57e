"""Make a model smaller for as long as it kills the builder in the same way."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import onnx

from tests.stress import wire
from trt_widget import Build, BuildCrashed, BuildError

if TYPE_CHECKING:
    from pathlib import Path

#: NodeProto's output and op_type.
_KEPT = (2, 4)


def death_of(data: bytes) -> tuple[str, str | None] | None:
    """Give how and in which phase the builder of a model died, or None."""
    try:
        Build(data, executor="process", exclusive=False, timeout=15.0, grace=0.2).start().wait()
    except BuildCrashed as error:
        return error.signal or f"exit code {error.exit_code}", error.phase
    except BuildError:
        pass
    return None


def shrink(path: Path) -> int:
    """Write the smaller model beside ``path``, as ``.small.onnx``; give the exit status."""
    data = path.read_bytes()
    expected = death_of(data)
    print(f"{path}: {len(data)} bytes, {expected}", flush=True)
    if expected is None:
        return 1
    try:
        tree = wire.decode(data, onnx.ModelProto.DESCRIPTOR)
    except IndexError:
        print("it is not a whole message: only its end is cut")
        small = data
    else:
        small = _without_fields(tree, expected)
    small = _without_end(small, expected)
    goal = path.with_suffix(".small.onnx")
    goal.write_bytes(small)
    print(f"{goal}: {len(small)} bytes")
    return 0


def _without_fields(tree: list[wire.Field], expected: tuple[str, str | None]) -> bytes:
    """Leave fields out, the largest messages first, until each that is left is needed."""
    again = True
    while again:
        again = False
        number = 0
        while True:
            smaller = copy.deepcopy(tree)
            messages = list(wire.messages(smaller))
            # A node without an output kills the builder too (tensorrt_rtx 1.7.1), and everything
            # would shrink to that.
            places = [
                (fields, at)
                for kind, fields in messages
                for at, field in enumerate(fields)
                if kind != "NodeProto" or field.number not in _KEPT
            ]
            if number >= len(places):
                break
            fields, at = places[number]
            del fields[at]
            if death_of(wire.encode(smaller)) == expected:
                tree, again = smaller, True
            else:
                number += 1
    return wire.encode(tree)


def _without_end(data: bytes, expected: tuple[str, str | None]) -> bytes:
    step = len(data) // 2
    while step:
        if step < len(data) and death_of(data[:-step]) == expected:
            data = data[:-step]
        else:
            step //= 2
    return data
