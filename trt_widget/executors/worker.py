"""What runs where the builder runs: the same in a thread of the kernel and in a child process."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trt_widget import diagnosis
from trt_widget._files import save_identified
from trt_widget.backend import gpus, processor_name
from trt_widget.engine_cache import Lookup
from trt_widget.errors import (
    BuildCancelled,
    BuildError,
    BuildFailed,
    SaveError,
    SourceError,
)
from trt_widget.events import NetworkReady
from trt_widget.executors import Outcome
from trt_widget.identity import NetworkIdentity
from trt_widget.logger import make_logger
from trt_widget.monitor import ProgressMonitor
from trt_widget.network import device_notes, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trt_widget.backend import Backend
    from trt_widget.events import Event
    from trt_widget.options import BuildOptions, Source

__all__ = ["Worker", "broke_off", "failed"]


class Worker:
    """One build, its monitor and its logger.

    Parameters
    ----------
    options, backend
        How to build, and with which package; checked already.
    label
        What people call the build.
    in_child
        Whether this is a child process: errors then say what that means for plugins.
    """

    def __init__(
        self, options: BuildOptions, backend: Backend, label: str, *, in_child: bool = False
    ) -> None:
        self._options = options
        self._backend = backend
        self._label = label
        self._in_child = in_child
        self._ready: deque[Event] = deque()
        self._pid = os.getpid()
        self.monitor = ProgressMonitor(backend)
        self._logger = make_logger(backend, origin=self.monitor.origin)

    def set_origin(self, origin: float | None = None) -> float:
        """Set the time zero of the events, a reading of ``time.perf_counter()``; now by default."""
        self._logger.origin = self.monitor.reset_origin(origin)
        return self.monitor.origin

    def set_functions(self, functions: Mapping[str, Any]) -> None:
        """Put the caller's functions (``configure``, ``config``) into the options."""
        chosen = {name: functions[name] for name in ("configure", "config") if name in functions}
        self._options = dataclasses.replace(self._options, **chosen)

    def now(self) -> float:
        """Seconds since the origin."""
        return perf_counter() - self.monitor.origin

    def drain(self) -> list[Event]:
        """Take what was recorded since the last call, ordered by time."""
        events = [*self.monitor.drain(), *self._logger.drain()]
        while self._ready:
            events.append(self._ready.popleft())
        events.sort(key=lambda event: event.time)
        return events

    def run(self, make_source: Callable[[], Source]) -> Outcome:
        """Build, and give the outcome whatever happens.

        Parameters
        ----------
        make_source
            Gives the source; what it raises ends the build as failed.
        """
        try:
            return self._build(make_source())
        except BuildCancelled:
            return self.cancelled("before build")
        except BuildError as error:
            return failed(error, self.now())
        except UnicodeDecodeError as error:
            # Names in a model need not be UTF-8; the bindings cannot hand such a name over.
            unreadable = SourceError(
                f"{self._label} has a name (of a node, operator or tensor) that is not UTF-8 text: "
                f"{error}.",
                "Export the model again with other names.",
            )
            unreadable.__cause__ = error
            return failed(unreadable, self.now())
        except MemoryError as error:
            short = BuildFailed(
                f"There was not enough memory to build {self._label}.",
                "Close what else uses memory, raise the process's or container's memory limit, or "
                "build on a larger machine.",
            )
            short.__cause__ = error
            return failed(short, self.now())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the build must not hang
            return broke_off(error, self.now())

    def cancelled(
        self, ended_by: str, facts: dict[str, Any] | None = None, time: float | None = None
    ) -> Outcome:
        """Make the outcome of a cancelled build."""
        return Outcome(
            "cancelled",
            ended_by=ended_by,
            reason=self.monitor.cancel_reason or "monitor",
            time=self.now() if time is None else time,
            facts=facts or {},
        )

    def _build(self, source: Source) -> Outcome:
        monitor, options = self.monitor, self._options

        def cancelled() -> bool:
            return monitor.cancel_requested

        lookup = Lookup(source, options, self._backend, self._logger)
        outcome = self._from_cache(lookup)
        if outcome is not None:
            return outcome
        began = self.now()
        prepared = prepare(
            lookup.source,
            options,
            self._backend,
            self._logger,
            monitor,
            cancelled,
            in_child=self._in_child,
        )
        facts: dict[str, Any] = {
            "layers": prepared.network.num_layers,
            "device": self._device(),
        }
        if os.getpid() != self._pid:
            os._exit(0)  # a function has forked, and its fork came on into our code
        known = prepared.identity or NetworkIdentity("")
        cache = prepared.timing_cache["state"]
        self._ready.append(
            NetworkReady(
                self.now(),
                **facts,
                network=known.digest,
                size=known.size,
                timing_cache=cache,
                processor=processor_name(),
            )
        )
        if cancelled():
            return self.cancelled("before build", facts)
        try:
            serialized = prepared.builder.build_serialized_network(
                prepared.network, prepared.config
            )
        finally:
            # A config of the caller's may be used again, and a monitor is for one build.
            prepared.config.progress_monitor = prepared.previous_monitor
        time = self.now()
        notes = [*prepared.notes, *monitor.other_errors()]
        messages = self._logger.serious()  # before the cache is written, which may log too
        facts["timing_cache"] = prepared.timing_cache
        if prepared.cache_file is not None:
            # Also after a cancel or a failure: what was measured so far is not measured again.
            notes += prepared.cache_file.save()
            facts["timing_cache"] = prepared.cache_file.facts
        if serialized is None:
            if monitor.answered_false or diagnosis.was_cancelled(messages):
                stopped = self.cancelled("step", facts, time)
                return dataclasses.replace(stopped, notes=tuple(notes))
            raise diagnosis.explain_failure(
                self._backend, messages, prepared, in_child=self._in_child
            )
        engine = memoryview(serialized)
        lookup.keep(engine, duration_s=time - began, device=facts["device"], layers=facts["layers"])
        return self._finished(engine, "completed", time, [*lookup.notes, *notes], facts)

    def _from_cache(self, lookup: Lookup) -> Outcome | None:
        """Give the outcome of a build that was done before, if there is one."""

        def step() -> None:
            if self.monitor.cancel_requested:
                raise BuildCancelled

        found = lookup.find(step)
        if found is None:
            return None
        facts = {"layers": found.layers, "device": found.device}
        notes = [*lookup.notes, found.note, *device_notes(self._options, self._backend)]
        return self._finished(found.engine, "cached", self.now(), notes, facts)

    def _finished(
        self,
        engine: memoryview,
        ended_by: str,
        time: float,
        notes: list[str],
        facts: dict[str, Any],
    ) -> Outcome:
        """Make the outcome of a build that has an engine; it is saved where that is wanted."""
        output = self._options.output
        if output is not None:
            try:
                _, file = save_identified(engine, output)
                facts["engine_file"] = list(file)
            except SaveError as error:
                return Outcome("failed", engine, error, "error", None, time, tuple(notes), facts)
        return Outcome("succeeded", engine, None, ended_by, None, time, tuple(notes), facts)

    def _device(self) -> str:
        """Name what is built on; ``prepare`` has checked that the GPU is there."""
        index = self._options.device
        return self._backend.device_name if index is None else gpus()[index].name


def failed(error: BuildError, time: float) -> Outcome:
    """Make the outcome of a failed build."""
    # Its frames would keep the network and its weights for as long as the error is kept.
    error.__traceback__ = None
    return Outcome("failed", error=error, ended_by="error", time=time)


def broke_off(error: BaseException, time: float) -> Outcome:
    """Make the outcome of a build that ended with an exception which nobody expected."""
    said = f": {error}" if str(error) else "."
    failure = BuildFailed(
        f"The build broke off with {type(error).__name__}{said}",
        "This is not a message of TensorRT. Unless one of your functions raised it, please report "
        "it.",
    )
    failure.__cause__ = error
    return failed(failure, time)
