"""Hostile input, random death and random cancels: ``python -m tests.stress --help``."""

from __future__ import annotations

from typing import Any


def _hostile(options: dict[str, Any]) -> Any:
    from tests.stress.hostile import Hostile

    return Hostile(options)


def _death(options: dict[str, Any]) -> Any:
    from tests.stress.death import Death

    return Death(options)


def _cancel(options: dict[str, Any]) -> Any:
    from tests.stress.cancel import Cancel

    return Cancel(options)


def _odd(options: dict[str, Any]) -> Any:
    from tests.stress.odd import Odd

    return Odd(options)


#: What a worker can be asked to do; each is imported where it runs.
EXPERIMENTS = {"hostile": _hostile, "death": _death, "cancel": _cancel, "odd": _odd}
