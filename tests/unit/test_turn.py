"""Whom a build waits for on a GPU; there is none here, so that what asks for GPUs is replaced."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from trt_widget.backend import Backend, Gpu
from trt_widget.executors import Hooks
from trt_widget.executors import turn as module
from trt_widget.executors.turn import Turn
from trt_widget.options import BuildOptions

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS = Hooks(lambda: None, lambda _whom: None, lambda: None, lambda _reason: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give what was asked for and locked."""
    found: list[str] = []

    def gpus_apart(_cancelled: Callable[[], bool]) -> tuple[Gpu, ...]:
        found.append("gpus")
        return (Gpu(0, "A", "SM90"),)

    class Lock:
        note = None

        def __init__(self, *_: Any) -> None:
            pass

        def try_acquire(self) -> bool:
            found.append("lock")
            return True

        def release(self) -> None:
            pass

    monkeypatch.setattr(module, "gpus_apart", gpus_apart)
    monkeypatch.setattr(module, "DeviceLock", Lock)
    return found


def wait(**options: Any) -> None:
    turn = Turn(BuildOptions.from_kwargs(options), "build", threading.Event(), in_process=False)  # type: ignore[arg-type]  # as good here
    turn.queue(HOOKS)
    try:
        assert turn.wait(lambda: False)
    finally:
        turn.leave()


def test_a_build_that_times_nothing_on_the_gpu_does_not_even_ask_for_it(asked: list[str]) -> None:
    wait()
    wait(target="SM86")
    assert asked == []


@pytest.mark.parametrize("options", [{"exclusive": True}, {"target": "current"}])
def test_one_that_is_to_be_alone_takes_the_lock(asked: list[str], options: dict[str, Any]) -> None:
    wait(**options)
    assert asked == ["gpus", "lock"]
    del asked[:]
    wait(**{**options, "exclusive": False})
    assert asked == []


def test_full_tensorrt_times_tactics(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "needs_gpu", True)  # full TensorRT cannot be here
    wait()
    assert asked == ["gpus", "lock"]
