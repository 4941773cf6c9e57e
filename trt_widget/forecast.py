"""What the history says about one build while it runs, and what the build tells the history.

Made on the build's drain thread as soon as the network is known; used on that thread only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trt_widget.backend import processor_name
from trt_widget.estimate import DurationModel, Estimator, PhaseState, Reading
from trt_widget.history import BuildKey, BuildRecord, History, phase_times

if TYPE_CHECKING:
    from trt_widget.backend import Backend
    from trt_widget.events import NetworkReady
    from trt_widget.options import BuildOptions
    from trt_widget.phases import PhaseTree

__all__ = ["Forecast", "key_of"]

#: Names of sizes that are taken over from a child process.
_MOST_SIZES = 20
_LARGEST = 2**63


def key_of(
    ready: NetworkReady, options: BuildOptions, backend: Backend, executor: str, digest: str
) -> BuildKey | None:
    """Say what this build is comparable with; ``None`` where its network is not known.

    Parameters
    ----------
    digest
        That of the options, as they were when the build was started.
    """
    if not ready.network:
        return None
    size = {
        str(name): float(value)
        for name, value in list(ready.size.items())[:_MOST_SIZES]
        if type(value) in {int, float} and 0 <= value < _LARGEST
    }
    targets = ",".join(options.target)
    # That of the machine which builds, which need not be this one.
    processor = ready.processor or processor_name()
    return BuildKey(
        network=ready.network,
        package=backend.name,
        version=backend.version,
        target="; ".join(part for part in (ready.device, targets, processor) if part),
        options=digest,
        executor=executor,
        timing_cache=ready.timing_cache,
        size=size,
    )


class Forecast:
    """Progress and time left of one build, and its place in the history.

    Parameters
    ----------
    key
        What the build is comparable with.
    history
        Where earlier builds are found and this one will be kept.

    Attributes
    ----------
    earlier
        The earlier builds of the same key, the newest first.
    expected_s
        What the whole build is expected to take, in seconds, or ``None``.
    basis
        Where that comes from, in words, or ``None``.
    """

    def __init__(self, key: BuildKey, history: History) -> None:
        self.key = key
        self.history = history
        self.earlier: list[BuildRecord] = history.similar(key)
        #: What could not be read, for people.
        self.note = history.note
        self._estimator = Estimator(self.earlier)
        self.basis: str | None = None
        if self._estimator.duration_s is not None:
            self.basis = f"from {_count(len(self.earlier), 'earlier build')} of this network"
        elif self.note is None:
            known = [
                (other, record)
                for other, record in history.others(key)
                if other.size.keys() >= key.size.keys()
            ]
            model = DurationModel(known)
            self._estimator = Estimator.for_new_network(model, key.size)
            self.note = history.note
            if self._estimator.duration_s is not None:
                factor = self._estimator.factor
                self.basis = (
                    f"from {_count(model.networks, 'other network')}, within a factor of "
                    f"{factor:.1f}"
                )
        self.note = self.note or history.obstacle()
        self.expected_s = self._estimator.duration_s
        self._wanted = self._estimator.paths

    def read(self, elapsed_s: float, tree: PhaseTree) -> Reading:
        """Say how far the build is; the caller holds the tree's lock."""
        if self.expected_s is None:
            return Reading()
        states = {
            node.path: PhaseState(node.count, node.open_count, node.started, node.ended)
            for node in tree.walk()
            if node.path in self._wanted
        }
        return self._estimator.update(elapsed_s, states)

    def keep(self, tree: PhaseTree, duration_s: float) -> bool:
        """Put a build that has succeeded into the history; it may wait for other processes."""
        record = BuildRecord(duration_s, phase_times(tree), time.time())
        return self.history.record(self.key, record)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
