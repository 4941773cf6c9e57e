"""Events from elsewhere, made sound: texts that can be shown and written, times from one zero.

Whoever writes a stream may be of another language, have names of megabytes and halves of
characters, and a clock with another zero, or none at all.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time as clock
from typing import Any, Final

from trt_widget.events import (
    BuildEnded,
    Estimate,
    Event,
    EventError,
    PhasesCollapsed,
    PhasesCompleted,
    Snapshot,
    StatusChanged,
    StreamStarted,
)
from trt_widget.logger import MAX_LENGTH

__all__ = ["LATEST_S", "MAX_NAME", "MAX_SHORT", "Times", "clean", "sound"]

#: Characters of a name of a phase, and of other short texts.
MAX_NAME: Final = 2_000
MAX_SHORT: Final = 200
#: A time past it, in seconds, is one since some other zero, such as 1970.
LATEST_S: Final = 1e8
#: A file that was written no longer ago than this was written now, in seconds.
_FRESH_S = 1.0

_LIMITS = {
    "model": MAX_SHORT,
    "backend": MAX_SHORT,
    "backend_version": MAX_SHORT,
    "severity": MAX_SHORT,
    "device": MAX_SHORT,
    "message": MAX_LENGTH,
    "text": 1 << 20,
}
_SURROGATES = re.compile("[\ud800-\udfff]")


def sound(event: Event, line: bytes) -> Event:
    """Give an event without what would hurt a reader.

    Parameters
    ----------
    line
        What it was read from: a short one without escapes is taken as it is.

    Raises
    ------
    EventError
        It cannot be.
    """
    if isinstance(event, StreamStarted) and event.version < 1:
        msg = f"wrong version {event.version}"
        raise EventError(msg)
    if isinstance(event, Estimate):
        return _sound_estimate(event)
    # Halves of characters come as \udc.. or as three bytes of which this is the first.
    if len(line) <= MAX_SHORT and b"\\u" not in line and b"\xed" not in line:
        return event
    changed: dict[str, Any] = {}
    for name, value in vars(event).items():
        if isinstance(value, (str, dict)) or (
            isinstance(value, tuple) and value and isinstance(value[0], str)
        ):
            fit = clean(value, _LIMITS.get(name, MAX_NAME))
            if fit != value:
                changed[name] = fit
    return dataclasses.replace(event, **changed) if changed else event


#: Levels of lists and objects in one another that are kept; ours have three.
_DEEPEST: Final = 20


def clean(value: Any, longest: int = MAX_NAME, depth: int = 0) -> Any:
    """Give plain data whose texts are no longer than that, and can be written as UTF-8."""
    if isinstance(value, str):
        if len(value) > longest:
            value = value[: longest - 1] + "…"
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        if depth > _DEEPEST:
            return "…"
        return {
            clean(key, longest): clean(entry, longest, depth + 1) for key, entry in value.items()
        }
    if isinstance(value, (list, tuple)):
        return "…" if depth > _DEEPEST else type(value)(clean(v, longest, depth + 1) for v in value)
    return value


def _sound_estimate(event: Estimate) -> Estimate:
    progress, eta = event.progress, event.eta_s
    if progress is not None:
        progress = min(max(progress, 0.0), 1.0)
    if eta is not None and not 0.0 <= eta <= LATEST_S:
        eta = None
    return Estimate(event.time, progress, eta, event.exceeded)


class Times:
    """The producer's clock, as far as it can be known from what it sends.

    Attributes
    ----------
    latest
        The producer's time of its latest event.
    origin
        Reading of ``time.perf_counter()`` at the producer's time zero. Nothing arrives before it
        happens, so it is that of the event which arrived soonest after its time.
    told
        Whether the events have times; ``None`` while that is not known. Those without get the time
        of their arrival.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self, latest: float = 0.0) -> None:
        """Begin anew: the producer has set its clock."""
        self.latest = latest
        self.origin = self._begun = clock.perf_counter()
        self.told: bool | None = None
        self._soonest = math.inf
        self._zero: float | None = None

    def zero_is_near(self, time: float) -> None:
        """Forget what was measured: the producer's clock counts anew from about now."""
        self.latest, self._soonest = time, math.inf

    def settle(self, age: float) -> None:
        """Measure: all that has been written was read; the last of it is ``age`` seconds old."""
        if self.told is not True:
            self.origin = self._begun
            return
        late = age if age > _FRESH_S else 0.0
        self._soonest = min(self._soonest, clock.perf_counter() - late - self.latest)
        self.origin = self._soonest

    def place(self, event: Event, line: bytes) -> Event:
        """Give an event with its time.

        Raises
        ------
        EventError
            It cannot be one.
        """
        if isinstance(event, StreamStarted):
            return event
        has_time = b'"time"' in line
        if not has_time and isinstance(event, PhasesCompleted):
            event, has_time = dataclasses.replace(event, time=event.ends[-1]), True
        if self.told is None and not isinstance(event, (StatusChanged, Estimate)):
            self.told = has_time
            self._begun = clock.perf_counter()
        if self.told is False:
            return self._arrived(event)
        if not has_time:
            return dataclasses.replace(event, time=self.latest)
        if self._zero is None:
            self._zero = event.time if event.time > LATEST_S else 0.0
        if self._zero:
            event = _shifted(event, self._zero)
        if isinstance(event, BuildEnded):  # it is the end, whatever its time
            event = dataclasses.replace(event, time=min(max(event.time, 0.0), LATEST_S))
        _check(event)
        self.latest = max(self.latest, event.time)
        return event

    def _arrived(self, event: Event) -> Event:
        time = self.latest = clock.perf_counter() - self._begun
        if isinstance(event, PhasesCompleted):
            times = (time,) * len(event.ends)
            return dataclasses.replace(event, time=time, starts=times, ends=times)
        return dataclasses.replace(event, time=time)


def _shifted(event: Event, zero: float) -> Event:
    """Give an event whose times count from another moment."""
    more: dict[str, Any] = {}
    if isinstance(event, PhasesCompleted):
        more = {
            name: tuple(time - zero for time in getattr(event, name)) for name in ("starts", "ends")
        }
    return dataclasses.replace(event, time=event.time - zero, **more)


def _check(event: Event) -> None:
    """Raise EventError for times that cannot be."""
    times = [event.time]
    if isinstance(event, PhasesCompleted):
        times += event.starts
        times += event.ends
    elif isinstance(event, PhasesCollapsed):
        times += (event.total_s / max(event.count, 1), event.max_s)
    elif isinstance(event, Snapshot):
        times += (event.clock, event.last_callback, event.covered, *event.heard)
        times += () if event.cancel_delivered is None else (event.cancel_delivered,)
        for table in (event.paths, event.open, event.spans, event.silences):
            for name, column in table.items():
                if name.endswith(("_s", "clock", "started", "last_event", "ended")):
                    times += column
    if not (min(times) >= -LATEST_S and max(times) <= LATEST_S):
        msg = "a time that cannot be"
        raise EventError(msg)
