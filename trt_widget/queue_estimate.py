"""How far a queue is, and how long it will still take.

Pure, but for :class:`LookBack`, which asks the history. What a pending build will take is what
answers of the engine cache take, where this queue has built the same already; else what earlier
builds of the same network in the same way took; else what those of this queue took that
have succeeded with the same model; else, where the models of this queue have been alike so far, the
mean of all that have. The time left is what it takes to go through the rest in the queue's own
order, with its limits. Nothing is said where for one of the builds nothing is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import logging
import threading
from collections import Counter
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget.estimate import Estimator
from trt_widget.history import History
from trt_widget.identity import digest_of_model, digest_of_options

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from trt_widget.history import BuildKey
    from trt_widget.options import Source
    from trt_widget.queue_jobs import Job
    from trt_widget.queue_plan import Plan

__all__ = ["LookBack", "Outlook", "State", "outlook", "time_left"]

#: How much of what was expected a build still takes that has taken longer.
_TAIL: Final = 0.05
#: How far a running build is taken to be at most by the clock alone.
_MOST: Final = 0.95
#: Builds that have to have ended before one of another model is expected to take as long, and how
#: many times as long as the shortest the longest may have taken.
_ENOUGH: Final = 3
_ALIKE: Final = 3.0
#: Bytes of a ModelProto that is hashed; a copy has to be made of it.
_MOST_COPIED: Final = 256 * 1024 * 1024
#: Seconds between two looks at whether there is a build to compare with.
_LOOK_S: Final = 0.5
#: Digests of models that are kept.
_MOST_MODELS: Final = 1_000

_BASES: Final = {
    "cache": "answers of the engine cache",
    "history": "earlier builds",
    "model": "builds of the same model in this queue",
    "mean": "the builds of this queue so far",
}

_log = logging.getLogger("trt_widget")


class State(NamedTuple):
    """What is known of a job at one moment.

    Attributes
    ----------
    status
        ``"pending"``, ``"running"``, or ``"ended"``.
    model
        What tells models apart.
    elapsed_s, eta_s, progress
        Of a running build, or None.
    took_s
        What a job that has ended took, or None where that says nothing about others: it failed, was
        cancelled, or came from the engine cache.
    same
        What builds have in common of which the engine cache answers all but the first; None where
        it is not asked.
    answered_s
        What a job that was answered from the engine cache took, or None.
    """

    status: str
    model: Hashable = None
    elapsed_s: float | None = None
    eta_s: float | None = None
    progress: float | None = None
    took_s: float | None = None
    same: Hashable = None
    answered_s: float | None = None


class Outlook(NamedTuple):
    """How far the whole is (0 to 1), the seconds left, and where they come from, or None."""

    progress: float
    eta_s: float | None = None
    basis: str | None = None


def outlook(plan: Plan, states: Sequence[State], earlier: Mapping[int, float]) -> Outlook:
    """Say how far a queue is.

    Parameters
    ----------
    plan
        What is next; it is not changed.
    states
        Of all jobs, in their order.
    earlier
        By job, what earlier builds say that it takes.
    """
    took: dict[Hashable, list[float]] = {}
    for state in states:
        if state.took_s is not None:
            took.setdefault(state.model, []).append(state.took_s)
    every = [seconds for group in took.values() for seconds in group]
    usual = _usual(every, [state for state in states if state.model not in took])
    each = {model: mean(group) for model, group in took.items()}
    answers = _answers(states)
    guesses = [
        _guess(s, each, usual, earlier.get(index), answers.get(s.same))
        for index, s in enumerate(states)
    ]
    whole = {index: guess.seconds for index, guess in enumerate(guesses) if guess is not None}
    left = [index for index, state in enumerate(states) if state.status != "ended"]
    bases = Counter(guess.basis for guess in map(guesses.__getitem__, left) if guess is not None)
    if len(whole.keys() & set(left)) < len(left):
        return Outlook(_progress(states, {}))
    remaining = {
        index: _remaining(states[index], whole[index])
        for index in left
        if states[index].status == "running"
    }
    basis = _describe(bases) if bases else None
    return Outlook(_progress(states, whole), time_left(plan, remaining, whole), basis)


def _usual(every: Sequence[float], others: Sequence[State]) -> float | None:
    """Give what a build of any model takes, or None where those so far were too few or too unlike.

    Parameters
    ----------
    every
        What builds have taken.
    others
        Of models of which none has ended: what runs takes as long as it has been running, or more.
    """
    if len(every) < _ENOUGH:
        return None
    least = [s.elapsed_s for s in others if s.status == "running" and s.elapsed_s is not None]
    alike = max(*every, *least) <= _ALIKE * min(every)
    return mean(every) if alike else None


def _answers(states: Sequence[State]) -> dict[Hashable, float]:
    """Give what the engine cache's answers take, by the builds that it is known to have."""
    answered = [state.answered_s for state in states if state.answered_s is not None]
    if not answered:
        return {}
    usual = median(answered)
    kept = (s for s in states if s.took_s is not None or s.answered_s is not None)
    return {state.same: usual for state in kept if state.same is not None}


class _Guess(NamedTuple):
    """What a job takes in all, and where that comes from."""

    seconds: float
    basis: str


def _guess(
    state: State,
    each: Mapping[Hashable, float],
    usual: float | None,
    earlier: float | None,
    answer: float | None,
) -> _Guess | None:
    known = state.took_s if state.answered_s is None else state.answered_s
    if known is not None:
        return _Guess(known, "model")
    if state.status == "running" and state.eta_s is not None:
        return _Guess((state.elapsed_s or 0.0) + state.eta_s, "history")
    # One that takes longer is being built: its engine has left the cache.
    if answer is not None and (state.elapsed_s or 0.0) <= _ALIKE * answer:
        return _Guess(answer, "cache")
    if earlier is not None:
        return _Guess(earlier, "history")
    if state.model in each:
        return _Guess(each[state.model], "model")
    return None if usual is None else _Guess(usual, "mean")


def _remaining(state: State, whole: float) -> float:
    if state.eta_s is not None:
        return state.eta_s
    return max(whole - (state.elapsed_s or 0.0), _TAIL * whole)


def _progress(states: Sequence[State], whole: Mapping[int, float]) -> float:
    """Give the share of the work that is done; without expectations each build counts the same."""
    usual = mean(whole.values()) if whole else 1.0
    done = total = 0.0
    for index, state in enumerate(states):
        weight = whole.get(index, usual) or usual
        share = state.progress
        if share is None:
            share = 0.0
            if state.status == "running" and index in whole and state.elapsed_s and weight:
                share = min(_MOST, state.elapsed_s / weight)
        done += weight * share
        total += weight
    return min(1.0, done / total) if total else 0.0


def _describe(bases: Counter[str]) -> str:
    if len(bases) == 1:
        return f"from {_BASES[next(iter(bases))]}"
    parts = [f"{bases[name]:,} from {text}" for name, text in _BASES.items() if bases[name]]
    return ", ".join(parts)


def time_left(
    plan: Plan, remaining: Mapping[int, float], whole: Mapping[int, float]
) -> float | None:
    """Give the seconds until everything has ended, going on in the plan's own order.

    Parameters
    ----------
    remaining
        Seconds that each running job still takes.
    whole
        Seconds that each pending job takes.
    """
    if not plan.workers:
        return None
    plan = plan.copy()
    now = 0.0
    ends = [(remaining[job], job) for job in plan.running]
    heapq.heapify(ends)
    while True:
        while (start := plan.next()) is not None:
            heapq.heappush(ends, (now + whole[start.job], start.job))
        if not ends:
            return now
        now, job = heapq.heappop(ends)
        plan.end(job)


class LookBack:
    """Asks the history what the jobs of a queue will take, on a thread of its own.

    The builds that run say what earlier ones are comparable with (their key); of a job that waits
    only the network and the options are others. So nothing is known before the first network is.

    Parameters
    ----------
    jobs
        All jobs of the queue.
    is_over
        Whether nobody wants to know any more.

    Attributes
    ----------
    earlier
        By job, the seconds that earlier builds took. Only added to.
    """

    def __init__(self, jobs: Sequence[Job], is_over: Callable[[], bool]) -> None:
        self._jobs = jobs
        self._is_over = is_over
        self._digests: dict[Hashable, str] = {}
        self.earlier: dict[int, float] = {}
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin, if there is a history."""
        history = History()
        if history.enabled:
            thread = threading.Thread(
                target=self._run, args=(history,), name="trt_widget history", daemon=True
            )
            # The time left is worth no failure.
            with contextlib.suppress(RuntimeError):
                thread.start()

    def stop(self) -> None:
        """End as soon as it can be."""
        self._stop.set()

    def _run(self, history: History) -> None:
        try:
            asked: set[int] = set()
            while not self._stop.is_set() and not self._is_over():
                keys = self._keys()
                for job in self._jobs:
                    if self._stop.is_set() or self._is_over():
                        return
                    options, source = job.options, job.source
                    key = keys.get((options.executor, options.target, options.timing_cache))
                    if key is not None and source is not None and job.index not in asked:
                        asked.add(job.index)
                        self._ask(history, job, key, source)
                if len(asked) == len(self._jobs):
                    return
                self._stop.wait(_LOOK_S)
        except Exception:  # noqa: BLE001 - the time left is worth no failure
            _log.exception("trt_widget: the history of builds could not be used")

    def _keys(self) -> dict[Hashable, BuildKey]:
        """Give the keys of the builds so far, by what jobs must have in common with them."""
        found: dict[Hashable, BuildKey] = {}
        for job in self._jobs:
            build, options = job.build, job.options
            key = None if build is None else build.key
            if key is not None:
                found[options.executor, options.target, options.timing_cache] = key
        return found

    def _ask(self, history: History, job: Job, key: BuildKey, source: Source) -> None:
        if job.model not in self._digests and len(self._digests) < _MOST_MODELS:
            self._digests[job.model] = _digest(source)
        network = self._digests.get(job.model)
        if network:
            options = digest_of_options(job.options)
            same = dataclasses.replace(key, network=network, options=options)
            expected = Estimator(history.similar(same)).duration_s
            if expected is not None:
                self.earlier[job.index] = expected


def _digest(source: Source) -> str:
    """Give the hash by which the history knows a model; empty where it is not known."""
    value: Any = source.value
    try:
        if source.kind == "proto":
            small = value.ByteSize() <= _MOST_COPIED
            return digest_of_model(bytes(value.SerializeToString())) if small else ""
        return "" if source.kind == "callable" else digest_of_model(value)
    except Exception:  # noqa: BLE001 - the build itself says what is wrong with the model
        return ""
