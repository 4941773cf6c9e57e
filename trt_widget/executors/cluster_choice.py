"""Which workers of a Dask cluster a build may be given to, and what is said where none can."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from trt_widget.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Unable", "fitting", "name_place", "none_can"]

#: Where Python says which file it means: a path of another machine.
_FILE = re.compile(r" \([^()]*[/\\][^()]*\)")
#: Workers that an error names at most.
_MOST_NAMED = 20


def name_place(name: str, address: str) -> str:
    """Give what people call a worker: its name, where it has one of its own, and its address."""
    return f"{name} ({address})" if name not in {address, ""} else address


@dataclasses.dataclass(frozen=True)
class Unable:
    """A worker that has answered that it cannot build.

    Attributes
    ----------
    name, address
        The worker's.
    why
        As it said; without a full stop.
    """

    name: str
    address: str
    why: str

    @staticmethod
    def told(name: str, address: str, why: str) -> Unable:
        """Take what the task has answered."""
        return Unable(name, address, _FILE.sub("", why).rstrip("."))

    def __str__(self) -> str:
        return name_place(self.name, self.address)


def fitting(workers: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, float]) -> list[str]:
    """Give the addresses of those that have the resources.

    Parameters
    ----------
    workers
        By address, as the scheduler describes them.
    wanted
        What the build needs.
    """
    return [
        address
        for address, worker in workers.items()
        if all(worker.get("resources", {}).get(name, 0) >= n for name, n in wanted.items())
    ]


def none_can(unable: Iterable[Unable]) -> BuildFailed:
    """Make the error of a build for which only workers are left that cannot build it."""
    first, *others = unable
    named = [f"{worker}: {worker.why}" for worker in (first, *others)]
    if not others:
        cause = f"The Dask worker {first} cannot build: {first.why}; there is no other for it."
    else:
        more = len(named) - _MOST_NAMED
        listed = "; ".join(named[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        cause = f"None of the {len(named)} Dask workers for it can build: {listed}."
    return BuildFailed(
        cause,
        "Install on the workers what the client has: trt-widget, in the same version, with the "
        "same TensorRT package; then start them again.",
    )
