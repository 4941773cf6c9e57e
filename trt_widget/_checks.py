"""What ``trt-widget check`` looks at, each in a process of its own.

A check is a function that says what it has seen, or raises: :class:`Unexpected` where TensorRT, or
this package, does not do what is relied upon; :class:`NotRun` where it cannot be tried here. All
but the first build small models, in all the ways in which builds are made.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget import _sample, diagnosis
from trt_widget.backend import backend_of, cuda_library, find_backend, gpus, use_device
from trt_widget.build import Build
from trt_widget.errors import BackendNotFound, BuildCancelled, BuildError, BuildFailed, ParseFailed
from trt_widget.events import (
    LogMessage,
    PhaseStarted,
    StepCompleted,
    expand,
    to_json,
)
from trt_widget.executors.child import clipped
from trt_widget.executors.isolation import answer, answers_in, python_command, take_stdout
from trt_widget.executors.lifetime import live_with
from trt_widget.logger import make_logger
from trt_widget.monitor import ProgressMonitor
from trt_widget.network import prepare
from trt_widget.options import BuildOptions, check_source
from trt_widget.phases import PhaseTree
from trt_widget.sinks.sentences import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorrt import ICudaEngine

    from trt_widget.backend import Backend
    from trt_widget.events import Event
    from trt_widget.logger import BuildLogger
    from trt_widget.network import Prepared

__all__ = ["CHECKS", "FAILED", "NOT_RUN", "OK", "Check", "main"]

#: What a check comes to.
OK: Final = "ok"
FAILED: Final = "failed"
NOT_RUN: Final = "not run"

#: Seconds that a build which is to be cancelled waits at each step.
_PAUSE_S: Final = 0.05
#: Seconds between two looks.
_LOOK_S: Final = 0.02
_SECOND: Final = "from trt_widget._checks import wait_elsewhere; wait_elsewhere(sys.argv[2])"
#: Seconds that such a build has to hear of its cancel; far more than it needs.
_GRACE_S: Final = 60.0
#: How far an engine's numbers may be from the exact ones, as a share: TF32 has ten bits.
_TOLERANCE: Final = 0.02
_FLOAT_BYTES: Final = 4


class Unexpected(Exception):  # noqa: N818 - it says what was seen
    """What was seen is not what is relied upon."""


class NotRun(Exception):  # noqa: N818 - no error
    """Why a check cannot be run here."""


@dataclass
class Subject:
    """The package that is looked at, and what was recorded on the way."""

    package: str
    events: list[Event] = field(default_factory=list)
    #: Is called with the new ones.
    tell: Callable[[list[Event]], object] = lambda _events: None

    @property
    def backend(self) -> Backend:
        """The package, imported."""
        return find_backend(self.package)


@dataclass(frozen=True)
class Check:
    """Something to look at.

    Attributes
    ----------
    name, title
        For machines, and for people.
    run
        Looks, and says what it has seen.
    builds
        Whether it builds; for full TensorRT that needs a GPU.
    """

    name: str
    title: str
    run: Callable[[Subject], str]
    builds: bool = True


# ---- the checks ---------------------------------------------------------------------------------


def _import(subject: Subject) -> str:
    if importlib.util.find_spec(subject.package) is None:
        raise NotRun("it is not installed")
    try:
        backend = subject.backend
    except BackendNotFound as error:
        if "only an empty folder or type stubs" in error.cause:
            raise NotRun("only its type stubs are installed") from None
        raise
    monitor: Any = ProgressMonitor(backend)
    base = backend.module.IProgressMonitor
    # Through the virtual functions of C++, as TensorRT calls.
    base.phase_start(monitor, "root", None, 2)
    went_on = base.step_complete(monitor, "root", 0)
    monitor.request_cancel()
    stopped = base.step_complete(monitor, "root", 1)
    base.phase_finish(monitor, "root")
    if (went_on, stopped) != (True, False):
        raise Unexpected(f"step_complete answered {went_on!r}, and after a cancel {stopped!r}")
    _check_sound(monitor.drain())
    typing = "strongly typed only" if backend.strongly_typed_only else "weakly typed too"
    return (
        f"{len(backend.builder_flags())} builder flags, {typing}; a monitor is called through C++"
    )


def _process(subject: Subject) -> str:
    return _watched(subject, executor="process")


def _thread(subject: Subject) -> str:
    return _watched(subject, executor="thread")


def _watched(subject: Subject, **options: Any) -> str:
    """Build, and look at all that came."""
    build = _build(subject, _sample.sample_model(), **options)
    engine = build.wait()
    if not len(engine):
        raise Unexpected("the engine is empty")
    tree = _check_sound(subject.events)
    messages = sum(isinstance(event, LogMessage) for event in subject.events)
    if not messages:
        raise Unexpected("there was no message of TensorRT")
    result = build.result
    assert result is not None  # noqa: S101 - wait() has returned
    return (
        f"an engine of {size(len(engine))} after {result.duration_s:.2f} s; "
        f"{sum(tree.timing_columns()['count'])} phases, {messages} messages"
    )


def _monitor_or_not(subject: Subject) -> str:
    backend = subject.backend
    sizes = []
    for watched in (False, True):
        monitor = ProgressMonitor(backend) if watched else None
        prepared, _ = _prepare(backend, monitor)
        engine = prepared.builder.build_serialized_network(prepared.network, prepared.config)
        if engine is None:
            raise Unexpected(f"no engine {'with' if watched else 'without'} a monitor")
        sizes.append(memoryview(engine).nbytes)
    plain, monitored = sizes
    # Full TensorRT times tactics anew for each build, and may take others.
    if plain != monitored and backend.is_rtx:
        raise Unexpected(f"{plain:,} bytes without a monitor, {monitored:,} with one")
    return f"{plain:,} bytes without a monitor, {monitored:,} with one"


def _cancel(subject: Subject) -> str:
    """Cancel at the first step, in code that drives TensorRT itself; then build again."""
    backend = subject.backend
    prepared, logger = _prepare(backend)
    builder, network, config = prepared.builder, prepared.network, prepared.config
    monitor: Any = ProgressMonitor(backend)
    config.progress_monitor = monitor
    monitor.request_cancel()
    if builder.build_serialized_network(network, config) is not None:
        raise Unexpected("an engine came although every step was answered by False")
    if monitor.answered_false is None:
        raise Unexpected("no step was reported")
    words = [text for _, text in logger.serious()]
    if not diagnosis.was_cancelled(logger.serious()):
        raise Unexpected(f"TensorRT did not say that it was cancelled: {words}")
    again = ProgressMonitor(backend)
    config.progress_monitor = again  # type: ignore[assignment,unused-ignore] # _bind derives it
    if builder.build_serialized_network(network, config) is None:
        words = [text for _, text in logger.serious()][len(words) :]
        raise Unexpected(f"the builder gave no engine after a cancel: {words}")
    _check_sound(again.drain())
    return "TensorRT said so, and the same builder gave an engine after it"


def _cancel_process(subject: Subject) -> str:
    result = _cancelled(subject, grace=_GRACE_S)
    if result.ended_by != "step":
        raise Unexpected(f"it ended by {result.ended_by!r}, not at a step")
    if not diagnosis.was_cancelled(
        (event.severity, event.message) for event in subject.events if isinstance(event, LogMessage)
    ):
        raise Unexpected("TensorRT did not say that it was cancelled")
    return f"TensorRT stopped at a step, {result.stop_latency_s:.2f} s after the request"


def _cancel_now(subject: Subject) -> str:
    result = _cancelled(subject, grace=0)
    if result.ended_by not in {"terminated", "killed"}:
        raise Unexpected(f"it ended by {result.ended_by!r}")
    return f"the process was {result.ended_by}, {result.stop_latency_s:.2f} s after the request"


def _cancelled(subject: Subject, **options: Any) -> Any:
    """Cancel a build in a process of its own in its first phase; give its result."""
    build = _build(
        subject,
        _sample.sample_model(),
        executor="process",
        configure=pause_at_steps,
        on_events=lambda build, events: (
            any(isinstance(event, PhaseStarted) for event in events) and build.request_cancel()
        ),
        **options,
    )
    try:
        build.wait()
    except BuildCancelled:
        return build.result
    raise Unexpected("an engine came although a cancel was asked for at the first phase")


def pause_at_steps(_builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build that waits at each step, so that it can be cancelled."""
    _at_steps(config, lambda: time.sleep(_PAUSE_S))


def hold_at_steps(gate: str, _builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` of a build that waits until there is a file ``gate``."""

    def hold() -> None:
        while not os.path.exists(gate):  # noqa: PTH110 - plain text travels to the process
            time.sleep(_LOOK_S)

    _at_steps(config, hold)


def _at_steps(config: Any, action: Callable[[], object]) -> None:
    base = backend_of(config).module.IProgressMonitor

    class Waits(base):  # type: ignore[misc,valid-type]  # of whichever package it is
        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, *_: Any) -> None:
            pass

        def phase_finish(self, *_: Any) -> None:
            pass

        def step_complete(self, *_: Any) -> bool:
            action()
            return True

    config.progress_monitor = Waits()


def _turns(subject: Subject) -> str:
    """Have a build of another process wait for one here, which is held at its first step."""
    options = _exclusively(subject.backend)
    begun = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder, "go on")
        first = Build(
            _sample.sample_model(),
            backend=subject.backend,
            executor="process",
            configure=functools.partial(hold_at_steps, str(gate)),
            **options,
        )

        def look(events: list[Event]) -> None:
            if any(isinstance(event, PhaseStarted) for event in events):
                begun.set()

        first.subscribe(look)
        first.start()
        try:
            while not begun.wait(_LOOK_S) and first.result is None:
                if first.waiting_for:
                    raise NotRun(f"others build on this device: {first.waiting_for}")  # noqa: TRY301 - it ends the build, too
            told, ended = _wait_elsewhere(subject.package, gate)
        except BaseException:
            first.request_cancel("closed")
            raise
        finally:
            gate.touch()
            first.wait_ended()
        first.wait()
    if not told:
        raise Unexpected("a build of another process did not wait")
    if ended != "succeeded":
        raise Unexpected(f"the build that had waited {ended}")
    return f"the second waited for {told}, and succeeded after it"


def _exclusively(backend: Backend) -> dict[str, bool]:
    """Give the options of builds that wait for each other: the default, where tactics are timed."""
    return {"exclusive": True} if backend.is_rtx else {}


def _wait_elsewhere(package: str, gate: Path) -> tuple[str, str]:
    """Start a build in another process; give for whom it waits and, once let on, its outcome."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and code
        python_command(_SECOND, package),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as second:
        assert second.stdout is not None  # noqa: S101 - it was made with a pipe
        answers = answers_in(second.stdout)
        told = next(answers, "")
        gate.touch()
        return told, next(answers, "")


def wait_elsewhere(package: str) -> None:
    """Be that process: say for whom the build waits, if it does, and what it came to."""
    answers = take_stdout()
    backend = find_backend(package)
    build = Build(
        _sample.sample_model(), backend=backend, executor="process", **_exclusively(backend)
    ).start()
    while build.status == "pending" and not build.waiting_for:
        time.sleep(_LOOK_S)
    answer(answers, build.waiting_for or "")
    build.wait_ended()
    answer(answers, build.status)


def _failure(subject: Subject) -> str:
    """Have the parser fail and then the builder, and build after that."""
    causes = (
        _failing(subject, _sample.unbuildable_model(), ParseFailed),
        _failing(subject, _sample.endless_model(), BuildFailed),
    )
    _build(subject, _sample.sample_model(), executor="thread").wait()
    return f"{' '.join(causes)} A build after them succeeded."


def _failing(subject: Subject, model: bytes, expected: type[BuildFailed]) -> str:
    """Build what cannot be built; give the cause."""
    try:
        _build(subject, model, executor="thread").wait()
    except expected as error:
        if not error.messages:
            raise Unexpected(f"{error.cause} TensorRT's words are missing") from error
        return error.cause.splitlines()[0]
    raise Unexpected("an engine came of a model that cannot be built")


def _timing_cache(subject: Subject) -> str:
    if subject.backend.is_rtx:
        raise NotRun("timing caches do not apply to TensorRT for RTX")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "timing.cache")
        for _ in range(2):
            build = _build(subject, _sample.sample_model(), executor="process", timing_cache=path)
            build.wait()
            assert build.result is not None  # noqa: S101 - wait() has returned
            found.append(build.result.timing_cache or {})
            if not path.is_file() or not path.stat().st_size:
                raise Unexpected(f"no timing cache was written: {list(build.result.notes)}")
        kept = path.stat().st_size
    cold, warm = found
    if (cold.get("state"), warm.get("state")) != ("cold", "warm"):
        raise Unexpected(f"the first build had {cold}, the second {warm}")
    known = cold.get("known_after")
    if known != warm.get("known_before"):
        raise Unexpected(f"{known} measurements were kept and {warm.get('known_before')} found")
    added = warm.get("known_after")
    told = "TensorRT does not count them" if known is None else f"{known}, then {added}"
    return f"{size(kept)} kept and found again; measurements: {told}"


def _runs(subject: Subject) -> str:
    backend = subject.backend
    if not gpus():
        raise NotRun("there is no NVIDIA driver with a GPU here")
    gpu = gpus()[0]
    if not backend.runs_on(gpu):
        raise NotRun(f"{backend} does not support {gpu.name} ({gpu.compute_capability})")
    use_device(0)
    engine = bytes(_build(subject, _sample.sample_model(), executor="process").wait())
    logger = make_logger(backend, origin=time.perf_counter())
    runtime = backend.module.Runtime(logger)
    loaded = runtime.deserialize_cuda_engine(engine)
    if loaded is None:
        words = [text for _, text in logger.serious()]
        raise Unexpected(f"the engine cannot be deserialized: {words}")
    names = [loaded.get_tensor_name(index) for index in range(loaded.num_io_tensors)]
    shapes = {name: tuple(loaded.get_tensor_shape(name)) for name in names}
    wanted = dict.fromkeys(("x", "y"), (_sample.BATCH, _sample.WIDTH))
    if shapes != wanted:
        raise Unexpected(f"its inputs and outputs are {shapes}, not {wanted}")
    output = _execute(loaded)
    exact = [value for row in _sample.expected() for value in row]
    pairs = list(zip(output, exact, strict=True))
    worst = max(abs(value - right) / max(1.0, abs(right)) for value, right in pairs)
    # (Not "worst > ...": a NaN is wrong, too.)
    if not worst <= _TOLERANCE:
        raise Unexpected(f"its numbers are off by up to {worst:.2%}")
    return f"it was deserialized and run; its numbers are off by at most {worst:.3%}"


CHECKS: Final = (
    Check("import", "imported", _import, builds=False),
    Check("process", "a build in a process of its own", _process),
    Check("thread", "a build in a thread", _thread),
    Check("monitor", "an engine with and without a monitor", _monitor_or_not),
    Check("cancel", "a cancel at the first step", _cancel),
    Check("cancel-process", "a cancel in a process of its own", _cancel_process),
    Check("cancel-now", "a cancel that does not wait for a step", _cancel_now),
    Check("turns", "builds of two processes take turns", _turns),
    Check("failure", "models that cannot be built", _failure),
    Check("timing-cache", "the timing cache", _timing_cache),
    Check("runs", "the engine runs", _runs),
)


# ---- what they share ----------------------------------------------------------------------------


def _build(
    subject: Subject,
    model: bytes,
    *,
    on_events: Callable[[Build, list[Event]], object] = lambda *_: None,
    **options: Any,
) -> Build:
    """Start a build whose events are recorded; wait until all were told, however it ends."""
    # Not in turn: builds of others on the device may last for hours.
    build = Build(model, backend=subject.backend, exclusive=False, **options)

    def take(events: list[Event]) -> None:
        subject.events += events
        subject.tell(events)
        on_events(build, events)

    build.subscribe(take)
    build.start()
    build.wait_ended()
    while not build.told:
        time.sleep(0.01)
    return build


def _prepare(
    backend: Backend, monitor: ProgressMonitor | None = None
) -> tuple[Prepared, BuildLogger]:
    """Give builder, network and config, and their logger."""
    logger = make_logger(backend, origin=time.perf_counter())
    options = BuildOptions.from_kwargs({"backend": backend})
    source = check_source(_sample.sample_model(), options)
    return prepare(source, options, backend, logger, monitor), logger


def _check_sound(events: Iterable[Event]) -> PhaseTree:
    """Check that phases lie within each other, steps within their phases, and that all ended."""
    tree = PhaseTree()
    announced: dict[str, int] = {}
    for event in (single for several in events for single in expand(several)):
        tree.apply([event])
        if isinstance(event, PhaseStarted):
            announced[event.phase] = event.num_steps
        elif isinstance(event, StepCompleted):
            steps = announced.get(event.phase, 0)
            if steps > 0 and not 0 <= event.step < steps:
                raise Unexpected(f"step {event.step} of {steps} in {event.phase!r}")
    if not announced:
        raise Unexpected("there was no callback")
    if tree.anomalies:
        raise Unexpected(f"the phases do not fit together: {tree.anomalies}")
    if tree.open_phases:
        raise Unexpected(f"these phases did not end: {[path[-1] for path in tree.open_phases]}")
    return tree


def _execute(loaded: ICudaEngine) -> list[float]:
    """Run an engine of the sample model by the CUDA driver alone; give the output."""
    import ctypes

    cuda = cuda_library()

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise Unexpected(f"{name} of the CUDA driver answered error {code}")

    count = _sample.BATCH * _sample.WIDTH
    given = [value for row in _sample.sample_input() for value in row]
    host = {"x": (ctypes.c_float * count)(*given), "y": (ctypes.c_float * count)()}
    length = ctypes.c_size_t(count * _FLOAT_BYTES)
    execution = loaded.create_execution_context()
    if execution is None:
        raise Unexpected("the engine gives no execution context")
    device = {name: ctypes.c_uint64(0) for name in host}
    stream = ctypes.c_void_p()
    for name, pointer in device.items():
        call("cuMemAlloc_v2", ctypes.byref(pointer), length)
        call("cuMemcpyHtoD_v2", pointer, host[name], length)
        if not execution.set_tensor_address(name, pointer.value):
            raise Unexpected(f"the address of {name!r} was refused")
    call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    call("cuCtxSynchronize")
    if not execution.execute_async_v3(stream.value):  # type: ignore[arg-type,unused-ignore] # set above
        raise Unexpected("the engine refused to run")
    call("cuStreamSynchronize", stream)
    call("cuMemcpyDtoH_v2", host["y"], device["y"], length)
    return list(host["y"])


# ---- the process of a check ---------------------------------------------------------------------


def main() -> None:
    """Run the check ``sys.argv[2]`` of the package ``sys.argv[3]``; answer what it came to.

    Before that come the events, as they are recorded. ``sys.argv[4]`` is who asks.
    """
    live_with(int(sys.argv[4]))
    answers = take_stdout()  # what TensorRT prints is no answer
    faulthandler.enable(all_threads=False)
    if sys.platform != "win32":  # asked for where a check takes too long
        faulthandler.register(signal.SIGUSR1)

    turn = threading.Lock()

    def tell(events: list[Event]) -> None:
        with turn:
            answer(answers, *({"event": _written(event)} for event in events))

    found = clipped(perform(sys.argv[2], sys.argv[3], tell))
    with turn, contextlib.suppress(OSError):  # nobody waits for it any more
        answer(answers, found)
    # Without the interpreter's end: TensorRT's own teardown is not what is looked at.
    os._exit(0)


def _written(event: Event) -> dict[str, Any]:
    """Give an event as plain data; its texts may be as long as somebody likes."""
    values: dict[str, Any] = json.loads(to_json(event))
    return {
        key: clipped(value) if isinstance(value, (str, dict)) else value
        for key, value in values.items()
    }


def perform(
    name: str, package: str, tell: Callable[[list[Event]], object] = lambda _events: None
) -> dict[str, Any]:
    """Run a check here; give what it came to as plain data, and tell the events meanwhile."""
    check = next(check for check in CHECKS if check.name == name)
    subject = Subject(package, tell=tell)
    facts: dict[str, Any] = {}
    try:
        if check.builds:
            backend = subject.backend
            if backend.needs_gpu and not gpus():
                raise NotRun("it needs a GPU to build, and there is no NVIDIA driver with a GPU")  # noqa: TRY301 - as the checks do
        status, seen = OK, check.run(subject)
        facts["version"] = subject.backend.version
    except NotRun as why:
        status, seen = NOT_RUN, str(why)
    except Unexpected as what:
        status, seen = FAILED, str(what)
    except BuildError as error:
        status, seen = FAILED, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is this check's failure
        status, seen = FAILED, f"{type(error).__name__}: {error}"
    return {"status": status, "seen": seen, **facts}
