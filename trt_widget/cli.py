"""The command line: ``trt-widget build``, ``watch``, ``schema``, ``serve``, ``lsp``, ``mcp``."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import stat
import sys
import threading
import time as clock
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

from trt_widget import __version__
from trt_widget.errors import (
    BuildError,
    ExtraMissing,
    OptionError,
    SourceError,
    StreamError,
    UnknownOptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trt_widget.build import Build
    from trt_widget.sinks.control import Listener
    from trt_widget.sinks.jsonl import EventWriter

__all__ = ["load_function", "main"]

SUCCEEDED, FAILED, USAGE, UNKNOWN, CANCELLED = 0, 1, 2, 3, 130
_EXIT_CODES = """exit codes:
  0    the engine was built (also where a cancel came too late)
  1    the build failed, or a file that was asked for could not be written
  2    the command line is wrong, or names a model that cannot be read
  130  the build was cancelled: by Ctrl-C, a signal, --timeout or a request
"""
_WATCH_CODES = f"""{_EXIT_CODES}  3    the stream does not say how the build ended
"""
#: The subcommands that are servers, and their modules.
_SERVERS = {
    "serve": ("http", "serve builds over HTTP"),
    "lsp": ("lsp", "serve an editor (Language Server Protocol)"),
    "mcp": ("mcp", "serve an agent (Model Context Protocol)"),
}
#: Seconds between two looks of the main thread.
_LOOK_S = 0.1
#: Two signals within this time are one: wrappers pass on what the terminal has sent them both.
_ONE_SIGNAL_S = 0.3
#: Seconds that a build which is being killed may take to end.
_KILL_S = 3.0
_CANCELLING = "Cancelling at the next step… (again: ends it at once)"
_NOBODY_LISTENS = "That build does not listen here, and goes on. Ctrl-C again leaves it."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit code: 0, 1 failed, 2 usage, 3 not known (``watch``), 130 cancelled.
    """
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks ends nothing.
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parse(given)
        code: int = arguments.run(arguments)
    except SystemExit as left:  # argparse has said why
        code = left.code if isinstance(left.code, int) else FAILED if left.code else SUCCEEDED
    except BuildError as error:
        _complain(error)
        code = _code_of(error)
    except KeyboardInterrupt:
        code = CANCELLED
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Whoever read it has gone; leaving the interpreter would try again, and complain.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nothing:  # noqa: PTH123 - nothing is written
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    return code


def load_function(name: str) -> Callable[..., Any]:
    """Import a function that is named as ``module:function``.

    Modules are found as Python finds them, in the present folder first.

    Raises
    ------
    OptionError
        It is written in another way, or there is no such module or function.
    """
    module_name, separator, path = name.partition(":")
    if not (module_name and separator and path):
        raise OptionError(
            f"{name!r} does not name a function.",
            "Write MODULE:FUNCTION, such as my_options:configure for the function configure in "
            "my_options.py.",
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken_module(module_name, error) from error
        raise OptionError(
            f"There is no module {module_name!r} (of {name!r}).",
            "It is looked for in the present folder and where Python finds its packages.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken_module(module_name, error) from error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        near = difflib.get_close_matches(part, dir(found), 1, 0.6)
        raise OptionError(
            f"{module_name} has no {path!r}.", f"Did you mean {near[0]!r}?" if near else ""
        ) from error
    if not callable(found):
        raise OptionError(
            f"{name!r} is a {type(found).__name__}, not a function.", "Name a function."
        )
    function: Callable[..., Any] = found
    return function


def _broken_module(name: str, error: BaseException) -> OptionError:
    return OptionError(
        f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
        f'Try it alone: python -c "import {name}".',
    )


# ---- arguments ----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser that names no abbreviations, and shows its epilog as it is."""

    def __init__(self, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, where help is, and leave with 2."""
        self.exit(USAGE, f"{self.prog}: {message}\n({self.prog} --help lists the options)\n")

    def options(self) -> list[str]:
        """Give the names of the options that there are."""
        return [name for action in self._actions for name in action.option_strings]


def _parse(given: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="trt-widget",
        description="Build TensorRT engines and see what the builds do.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"trt-widget {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", parser_class=_Parser
    )
    parsers: dict[str, _Parser] = {
        "build": _add_build(commands),
        "watch": _add_watch(commands),
        "schema": _add_schema(commands),
    }
    # Only the one that is asked for: each brings its module.
    asked = next((word for word in given if not word.startswith("-")), "")
    for name, (module, text) in _SERVERS.items():
        server = parsers[name] = commands.add_parser(name, help=text, description=text)
        if name == asked:
            _add_server(server, module)
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        chosen = parsers.get(arguments.command or "", parser)
        chosen.error(_about_unknown(unknown, chosen))
    if arguments.command is None:
        parser.print_help(sys.stderr)
        raise SystemExit(USAGE)
    return arguments


def _about_unknown(unknown: list[str], parser: _Parser) -> str:
    """Say what is wrong with arguments that nobody knows, and what to write instead."""
    from trt_widget import _trtexec

    options = [word for word in unknown if word.startswith("-") and word != "-"]
    if not options:
        return f"unexpected: {' '.join(unknown)}"
    name = options[0].partition("=")[0]
    known = parser.options()
    hint = _trtexec.hint(name, known) if parser.prog.endswith("build") else ""
    if not hint:
        near = difflib.get_close_matches(name, known, 1, 0.7)
        hint = f"Did you mean {near[0]}?" if near else ""
    return f"there is no option {name}. {hint}".rstrip()


def _add_build(commands: Any) -> _Parser:
    from trt_widget import _trtexec

    parser: _Parser = commands.add_parser(
        "build",
        help="build an engine from an ONNX file",
        description="Build an engine from an ONNX file. Ctrl-C asks it to stop at the next step, "
        "a second one ends it at once.",
        epilog=_EXIT_CODES,
        usage="%(prog)s MODEL [-o ENGINE] [options]",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the ONNX file")
    _trtexec.add_arguments(parser)
    group = parser.add_argument_group("more of the build")
    group.add_argument(
        "--timeout", type=float, metavar="S", help="seconds after which it is cancelled"
    )
    group.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="seconds that a cancel waits for TensorRT before the build process is ended (2)",
    )
    group.add_argument("--executor", choices=("auto", "process", "thread"), default="auto")
    group.add_argument("--backend", choices=("tensorrt", "tensorrt_rtx"))
    group.add_argument(
        "--flag", action="append", metavar="NAME", help="any other builder flag, by its name"
    )
    group.add_argument("--network-flag", action="append", metavar="NAME")
    group.add_argument(
        "--external-data",
        action="append",
        metavar="DIR",
        help="folder from which weight files may be read besides the model's own",
    )
    group.add_argument(
        "--exclusive",
        action=argparse.BooleanOptionalAction,
        help="whether builds of other processes on the GPU are waited for",
    )
    _add_configure(group)
    group = parser.add_argument_group("what is told, and where")
    _add_progress(group)
    group.add_argument(
        "--events",
        metavar="FILE|-",
        help="write the events as JSON Lines; -: to stdout, and everything else to stderr",
    )
    group.add_argument(
        "--control",
        metavar="FILE|-",
        help="listen there for requests to cancel; -: stdin; by default beside --events FILE",
    )
    group.add_argument(
        "--timings", metavar="FILE", help="write where the time went, as .csv or .json"
    )
    group.add_argument("--report", metavar="FILE", help="write a page of HTML about the build")
    group.add_argument("--record", metavar="FILE", help="write all that is known, to compare later")
    group.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto and Chrome")
    parser.set_defaults(run=_build)
    return parser


def _add_watch(commands: Any) -> _Parser:
    parser: _Parser = commands.add_parser(
        "watch",
        help="follow the events of a build that runs elsewhere, or of one that has ended",
        description="Follow the JSON Lines that a build writes elsewhere, or has written. Ctrl-C "
        "asks that build to stop, if it listens; a second one only leaves.",
        epilog=_WATCH_CODES,
    )
    parser.add_argument("stream", metavar="FILE|-", help="file or pipe; -: stdin")
    parser.add_argument(
        "--control", metavar="FILE", help="where the build listens, if not at FILE.control"
    )
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="show what is there and leave, instead of waiting for more",
    )
    _add_progress(parser)
    parser.set_defaults(run=_watch)
    return parser


def _add_schema(commands: Any) -> _Parser:
    parser: _Parser = commands.add_parser(
        "schema", help="print the JSON Schema of the events", description="Print the JSON Schema."
    )
    parser.set_defaults(run=_schema)
    return parser


def _add_server(parser: _Parser, module: str) -> None:
    found: Any = import_module(f"trt_widget.servers.{module}")
    found.add_arguments(parser)
    _add_configure(parser)

    def run(arguments: argparse.Namespace) -> int:
        if arguments.configure is not None:
            arguments.configure = load_function(arguments.configure)
        code: int = found.run(arguments)
        return code

    parser.set_defaults(run=run)


def _add_configure(parser: Any) -> None:
    parser.add_argument(
        "--configure",
        metavar="MODULE:FUNCTION",
        help="function of (builder, network, config) for anything else; your own code",
    )


def _add_progress(parser: Any) -> None:
    parser.add_argument(
        "--progress",
        choices=("auto", "bars", "lines", "none"),
        default="auto",
        help="bars in a terminal, lines elsewhere (auto)",
    )


# ---- build --------------------------------------------------------------------------------------


def _build(arguments: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        events = arguments.events
        target: str | int | None = events
        out = _or_nowhere(sys.stdout, stack)
        if events == "-":
            target = stack.enter_context(_only_events())
            out = _or_nowhere(sys.stderr, stack)
        build = _new_build(arguments)
        outputs = _checked_outputs(arguments, build)
        view = _view(build, out, arguments.progress)
        writer, listener = _connect(arguments, build, target)
        if build.options.output is None and arguments.progress != "none":
            _say("No -o FILE is given: the engine is built, and not saved.", out)
        with _Interrupts(build, view) as interrupts:
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
                _leave_at_once(view)
            view.close()
            while writer is not None and not writer.wait(_LOOK_S):
                if interrupts.killed:
                    writer.close()
                    break
        if writer is not None and writer.error is not None:
            _complain(writer.error)
        saved = _write_outputs(build, outputs)
        return _outcome(build, saved=saved)


def _or_nowhere(stream: TextIO | None, stack: contextlib.ExitStack) -> TextIO:
    """Give a stream, or one to nowhere: a process may have been started without it."""
    if stream is not None:
        return stream
    return stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123 - no path


def _new_build(arguments: argparse.Namespace) -> Build:
    """Make the build that the arguments describe."""
    from trt_widget import _trtexec
    from trt_widget.build import Build

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


def _connect(
    arguments: argparse.Namespace, build: Build, target: str | int | None
) -> tuple[EventWriter | None, Listener | None]:
    """Begin to write the events, and to listen for requests."""
    from trt_widget.broadcast import Broadcast
    from trt_widget.sinks.control import control_path, listen
    from trt_widget.sinks.jsonl import EventWriter

    beside = isinstance(target, str) and arguments.control is None and not _is_device(target)
    writer = None
    if target is not None:
        if isinstance(target, str):
            _check_other_file("--events", target, arguments, build)
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
    from trt_widget.options import check_output

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
        try:
            outputs[name] = check_output(path)
        except OptionError as error:
            raise OptionError(error.cause.replace("output=", f"--{name} "), error.remedy) from error
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
        _complain(error)
        return False
    return True


def _write_timings(build: Build, path: Path) -> None:
    import csv
    import io
    import json

    from trt_widget.record import save_as

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


# ---- watch and schema ---------------------------------------------------------------------------


def _watch(arguments: argparse.Namespace) -> int:
    from trt_widget.build import Build

    source: Any = 0 if arguments.stream == "-" else arguments.stream
    build = Build.follow(source, control=arguments.control, wait=not arguments.no_wait)
    with contextlib.ExitStack() as stack:
        view = _view(build, _or_nowhere(sys.stdout, stack), arguments.progress)
        interrupts = stack.enter_context(_Interrupts(build, view, followed=True))
        view.start()
        try:
            build.start()
            ended = interrupts.wait()
        except BaseException:
            view.pause()
            raise
        view.close()
    if not ended:
        _say("Left; the build itself goes on.")
        return CANCELLED
    return _outcome(build, saved=True)


def _schema(_arguments: argparse.Namespace) -> int:
    import json

    from trt_widget.schema import schema

    _say(json.dumps(schema(), indent=2), sys.stdout)
    return SUCCEEDED


# ---- what people see ----------------------------------------------------------------------------


class View(Protocol):
    """Shows a build: bars, lines or nothing."""

    cancelling: str
    notice: str

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """Show the end."""

    def pause(self) -> None:
        """Leave the terminal to others."""

    def resume(self) -> None:
        """Take it back."""


class _Nothing:
    """Shows nothing."""

    cancelling = notice = ""

    def start(self) -> None:
        """Do nothing."""

    close = pause = resume = start


def _view(build: Build, out: TextIO, progress: str) -> View:
    from trt_widget.sinks.lines import Lines
    from trt_widget.sinks.terminal import Bars, can_draw

    if progress == "none":
        return _Nothing()
    if progress != "lines":
        try:
            if can_draw(out):
                return Bars(build, out)
        except ExtraMissing as error:
            if progress == "bars":
                raise OptionError(f"--progress bars: {error.cause}", error.remedy) from error
            _say(f"Plain lines, since rich is not installed: {error.remedy}", out)
        if progress == "bars":
            raise OptionError(
                "--progress bars needs a terminal that can move its cursor.",
                "Leave it out: lines are written elsewhere.",
            )
    return Lines(build, out)


def _outcome(build: Build, *, saved: bool) -> int:
    """Say why it failed, if it did, and give the exit code."""
    result = build.result
    if result is None:
        return UNKNOWN
    if result.status == "failed" and result.error is not None:
        _complain(result.error)
    code = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
    found = code.get(result.status, UNKNOWN)
    return FAILED if found == SUCCEEDED and not saved else found


def _complain(error: BuildError) -> None:
    from trt_widget.sinks.sentences import explained

    _say(explained(error))


def _say(text: str, out: TextIO | None = None) -> None:
    """Write a line, to stderr by default."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr if out is None else out, flush=True)


def _code_of(error: BuildError) -> int:
    """Give the exit code of what was refused before anything was built."""
    usage = (OptionError, SourceError, UnknownOptionError, StreamError)
    return USAGE if isinstance(error, usage) else FAILED


# ---- signals ------------------------------------------------------------------------------------


class _Interrupts:
    """Ctrl-C and other signals while a build runs.

    The first asks it to stop, the second ends it: a build of ours by killing its process, one that
    is followed by leaving it. Handlers set flags; everything else is done by :meth:`wait`.
    """

    def __init__(self, build: Build, view: View, *, followed: bool = False) -> None:
        self.killed = False
        self._build = build
        self._view = view
        self._followed = followed
        self._asked = False
        self._told = False
        self._last = -_ONE_SIGNAL_S
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:  # noqa: PYI034 - typing.Self came with Python 3.11
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
                self._install(name, self._on_signal)
            self._install("SIGTSTP", self._on_stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _install(self, name: str, handler: Callable[[int, object], None]) -> None:
        number = getattr(signal, name, None)
        # What is ignored (nohup, a job in the background of a script) stays ignored.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: object) -> None:
        now = clock.monotonic()
        if self._asked and now - self._last > _ONE_SIGNAL_S:
            self.killed = True
        self._last = now
        self._asked = True

    def _on_stop(self, number: int, _frame: object) -> None:
        """Ctrl-Z: leave the terminal in order, stop, and draw again when it goes on."""
        self._view.pause()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._on_stop)
        self._view.resume()

    def wait(self) -> bool:
        """Wait until the build has ended, and do what the signals ask for.

        Returns
        -------
        bool
            Whether it has ended; it may not have, where it was to be ended at once.
        """
        build, left = self._build, 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                build.wait_ended(_LOOK_S)
                return True
            if self._asked and not self._told:
                self._told = True
                self._ask()
            if self.killed:
                if self._followed or build.executor != "process":
                    return False  # a thread cannot be ended
                if not left:
                    left = clock.monotonic() + _KILL_S
                    _kill(build)
                elif clock.monotonic() > left:
                    return False

    def _ask(self) -> None:
        self._view.cancelling = _CANCELLING
        asked = self._build.request_cancel("interrupt")
        if isinstance(self._view, _Nothing):
            _say(_CANCELLING if asked else _NOBODY_LISTENS)
        elif not asked and self._build.result is None:
            self._view.notice = _NOBODY_LISTENS


def _kill(build: Build) -> None:
    """End the process that builds, without a grace."""
    executor = build._executor  # noqa: SLF001 - what leaving the interpreter does, too
    if executor is not None:
        executor.abandon()


def _leave_at_once(view: View) -> NoReturn:
    """Leave although a thread builds: it cannot be ended otherwise."""
    view.pause()
    _say("Left at once.")
    os._exit(CANCELLED)
