"""``trt-widget build``."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trt_widget import _trtexec
from trt_widget.broadcast import Broadcast
from trt_widget.build import Build
from trt_widget.commands.functions import load_function
from trt_widget.commands.interrupts import Interrupts, leave_at_once
from trt_widget.commands.views import (
    checked_file,
    complain,
    make_view,
    or_nowhere,
    outcome,
    say,
)
from trt_widget.errors import BuildError, OptionError
from trt_widget.record import save_as
from trt_widget.sinks.control import check_own, control_path, listen
from trt_widget.sinks.jsonl import EventWriter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from trt_widget.errors import SaveError
    from trt_widget.sinks.control import Listener

__all__ = ["run"]

#: Seconds within which a reader that knows the events has left after the last.
_LEAVE_S = 1.5


def run(arguments: argparse.Namespace) -> int:
    """Build, and give the exit code."""
    with contextlib.ExitStack() as stack:
        events = arguments.events
        target: str | int | None = events
        out = or_nowhere(sys.stdout, stack)
        if events == "-":
            target = stack.enter_context(_only_events())
            out = or_nowhere(sys.stderr, stack)
        build = _new_build(arguments)
        outputs = _checked_outputs(arguments, build)
        quiet = arguments.progress == "auto" and isinstance(target, int) and _is_watched(target)
        progress = "none" if quiet else arguments.progress
        view = make_view(build, out, progress)
        writer, listener = _connect(arguments, build, target)
        if build.options.output is None and progress != "none":
            say("No -o FILE is given: the engine is built, and not saved.", out)
        with Interrupts(build, view, quiet=quiet) as interrupts:
            try:
                view.start()
                build.start()
                ended = interrupts.wait()
            except BaseException:
                build.request_cancel("closed")
                view.pause()
                raise
            finally:
                if listener is not None:
                    listener.close()
            if not ended:
                leave_at_once(view)
            shown = interrupts.rest(view.close)
            saved = _write_outputs(build, outputs)
            if writer is not None and not interrupts.rest(writer.wait):
                writer.close()
                say("The events are cut off: they were not read to their end.")
                saved = False
            if writer is not None and writer.error is not None:
                _tell_of(writer.error, build, said=progress != "none")
                # Whoever reads standard output may stop when it has enough.
                saved = saved and isinstance(target, int) and writer.error.errno == errno.EPIPE
            told = quiet and isinstance(target, int) and _has_told(build, writer, target)
            code = outcome(build, saved=saved and shown, told=told)
            if not shown:
                os._exit(code)  # a thread is in a write that nobody ends
        return code


def _new_build(arguments: argparse.Namespace) -> Build:
    """Make the build that the arguments describe."""
    if arguments.model and arguments.onnx:
        raise OptionError("The model is given twice, as MODEL and by --onnx.", "Give it once.")
    model = arguments.model or arguments.onnx
    if not model:
        raise OptionError(
            "No model is given.", "Write trt-widget build MODEL.onnx -o MODEL.engine."
        )
    try:
        options = _trtexec.build_options(arguments)
    except ValueError as error:
        raise OptionError(f"{error}.") from error
    options["flags"] = [*options.get("flags", ()), *(arguments.flag or ())] or None
    if arguments.configure is not None:
        options["configure"] = load_function(arguments.configure)
    return Build(
        model,
        timeout=arguments.timeout,
        grace=arguments.grace,
        executor=arguments.executor,
        backend=arguments.backend,
        network_flags=arguments.network_flag,
        external_data=arguments.external_data,
        exclusive=arguments.exclusive,
        engine_cache=arguments.engine_cache,
        **options,
    )


@contextlib.contextmanager
def _only_events() -> Iterator[int]:
    """Give a descriptor for stdout, and let whatever else is printed go to stderr."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept, old = os.dup(1), os.dup(1)
    except OSError as error:
        raise OptionError("--events -: there is no standard output.", str(error)) from error
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(kept, os.O_BINARY)
    try:
        yield kept
    finally:
        with contextlib.suppress(OSError):
            if sys.stdout is not None:
                sys.stdout.flush()
        os.dup2(old, 1)
        os.close(old)
        os.close(kept)


def _tell_of(error: SaveError, build: Build, *, said: bool) -> None:
    """Say that the events are not whole; the cause may be among the notes that were shown."""
    if not said or build.result is None or error.cause not in build.result.notes:
        complain(error)
    elif error.remedy:
        say(error.remedy)


def _is_watched(target: int) -> bool:
    """Say whether the events go to another program while stderr is a terminal.

    It is that program's to show them: two pictures in one terminal would destroy each other.
    """
    with contextlib.suppress(OSError, ValueError):
        mode = os.fstat(target).st_mode
        piped = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        return piped and sys.stderr is not None and sys.stderr.isatty()
    return False


def _has_told(build: Build, writer: EventWriter | None, target: int) -> bool:
    """Say whether the reader has understood how it ended: it leaves at the last event by itself."""
    if writer is None or writer.error is not None:
        return False
    if build.result is None or build.result.status != "failed":
        return False
    told = False
    if sys.platform != "win32":
        import select

        gone = select.poll()
        gone.register(target, 0)  # an error is all that is waited for: nobody reads any more
        told = bool(gone.poll(1000 * _LEAVE_S))
    return told


def _connect(
    arguments: argparse.Namespace, build: Build, target: str | int | None
) -> tuple[EventWriter | None, Listener | None]:
    """Begin to write the events, and to listen for requests."""
    beside = isinstance(target, str) and arguments.control is None and not _is_device(target)
    writer = None
    if target is not None:
        if isinstance(target, str):
            _check_other_file("--events", target, arguments, build)
            if beside:
                beside_it = str(control_path(target))
                _check_other_file("--events: its file of requests", beside_it, arguments, build)
                check_own(beside_it)
        broadcast = Broadcast(build, producer=True, listens=beside)
        writer = EventWriter(broadcast, target)
    listener = None
    if arguments.control == "-":
        listener = listen(build, 0)
    elif arguments.control is not None:
        listener = listen(build, arguments.control)
    elif beside and isinstance(target, str):
        listener = listen(build, control_path(target), own=True)
    return writer, listener


def _is_device(path: str) -> bool:
    """Say whether a path is a pipe, a terminal ... and not a file that has a neighbour."""
    try:
        return not stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _check_other_file(option: str, path: str, arguments: argparse.Namespace, build: Build) -> None:
    """Refuse to write over the model or the engine."""
    for what, other in (
        ("the model", arguments.model or arguments.onnx),
        ("the engine", build.options.output),
    ):
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise OptionError(f"{option} {path} is {what} itself.", "Choose another name.")


def _checked_outputs(arguments: argparse.Namespace, build: Build) -> dict[str, Path]:
    """Check, before it takes its time, that the files can be written that are made at the end."""
    outputs = {}
    for name in ("timings", "report", "record", "trace"):
        path = getattr(arguments, name)
        if path is None:
            continue
        _check_other_file(f"--{name}", path, arguments, build)
        if name == "timings" and Path(path).suffix.lower() not in {".csv", ".json"}:
            raise OptionError(
                f"--timings {path} is neither .csv nor .json.", "Give the file one of these ends."
            )
        outputs[name] = checked_file(name, name, path)
    return outputs


def _write_outputs(build: Build, outputs: dict[str, Path]) -> bool:
    """Write the files about the build; say whether all of them could be."""
    write: dict[str, Callable[[Path], object]] = {
        "timings": lambda path: _write_timings(build, path),
        "report": build.report,
        "record": build.record,
        "trace": build.to_chrome_trace,
    }
    written = [_written(write[name], path) for name, path in outputs.items()]
    return all(written)


def _written(write: Callable[[Path], object], path: Path) -> bool:
    try:
        write(path)
    except BuildError as error:
        complain(error)
        return False
    return True


def _write_timings(build: Build, path: Path) -> None:
    import csv
    import io
    import json

    with build.lock:
        columns = build.tree.timing_columns(build.now())
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix.lower() == ".json":
        text = json.dumps(rows, indent=1) + "\n"
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = file.getvalue()
    save_as("timings", text.encode("utf-8"), path)
