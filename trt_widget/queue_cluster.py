"""What a queue has to know of a Dask cluster: how many builds it can run at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["address_of", "in_flight", "in_loop_of", "slots"]

#: Builds that are handed to a cluster at least, so that one that grows on demand sees some.
_LEAST: Final = 8
#: Builds that are handed to a cluster for each that it can run: none of its workers waits for us.
_EACH: Final = 2
_PATIENCE_S: Final = 2.0


def in_flight(count: int) -> int:
    """Say how many builds to hand to a cluster that can run ``count`` at once."""
    return max(_LEAST, _EACH * count)


def address_of(client: Any) -> str:
    """Give what tells clusters apart: the address of the client's scheduler."""
    return str(getattr(getattr(client, "scheduler", None), "address", None) or id(client))


def in_loop_of(client: Any) -> bool:
    """Whether the caller runs in the client's event loop, by which everything comes."""
    try:
        return asyncio.get_running_loop() is client.loop.asyncio_loop
    except (AttributeError, RuntimeError):  # no loop here, or a client that is closed
        return False


def slots(client: Any, resources: Mapping[str, float] | None) -> int | None:
    """Ask the scheduler how many builds the cluster can run at once; None without an answer.

    Waits for the client's event loop, so that must be another thread's.
    """
    try:
        loop = client.loop.asyncio_loop
        asked = asyncio.run_coroutine_threadsafe(_identity(client), loop)
    except (AttributeError, RuntimeError):  # closed, or none of a client
        return None
    try:
        found = asked.result(_PATIENCE_S)
        return sum(_slots_of(worker, resources) for worker in found["workers"].values())
    except Exception:  # noqa: BLE001 - whatever the cluster is busy with, the builds say it
        return None
    finally:
        asked.cancel()


async def _identity(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = await client.scheduler.identity()
    return found


def _slots_of(worker: Mapping[str, Any], resources: Mapping[str, float] | None) -> int:
    """Give how many builds a worker can run at once, as its scheduler describes it."""
    count = int(worker.get("nthreads", 1))
    has = worker.get("resources") or {}
    for name, needed in (resources or {}).items():
        if needed > 0:
            count = min(count, int(has.get(name, 0) // needed))
    return count
