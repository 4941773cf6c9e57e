"""The command line: ``trt-widget build``, ``watch``, ``check``, ``schema``, ``serve`` and more."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from trt_widget import __version__, _trtexec
from trt_widget.commands.functions import load_function
from trt_widget.commands.views import CANCELLED, FAILED, SUCCEEDED, USAGE, complain, say
from trt_widget.errors import (
    BuildError,
    OptionError,
    SourceError,
    StreamError,
    UnknownOptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["load_function", "main"]

_EXIT_CODES = """exit codes:
  0    the engine was built (also where a cancel came too late)
  1    the build failed (also where the model is no ONNX), or a file that was asked for could not be
       written; a reader of --events - that leaves early is none
  2    the command line is wrong, or names a model that is not there
  130  the build was cancelled: by Ctrl-C, a signal, --timeout or a request
"""
_WATCH_CODES = f"""{_EXIT_CODES}  3    the stream does not say how the build ended
"""
_CHECK_CODES = """exit codes:
  0    everything that could be run is as it should be
  1    a check failed, or nothing could be built
  2    the command line is wrong
  130  Ctrl-C
"""
#: The subcommands that are servers, and their modules.
_SERVERS = {
    "serve": ("http", "serve builds over HTTP"),
    "lsp": ("lsp", "serve an editor (Language Server Protocol)"),
    "mcp": ("mcp", "serve an agent (Model Context Protocol)"),
}


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
        errors = getattr(stream, "errors", None)  # "surrogateescape" in the C locale
        if errors in {"strict", "surrogateescape"} and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parse(given)
        code: int = arguments.run(arguments)
    except SystemExit as left:  # argparse has said why
        code = left.code if isinstance(left.code, int) else FAILED if left.code else SUCCEEDED
    except BuildError as error:
        complain(error, ours=given[:1] == ["build"])
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


def _code_of(error: BuildError) -> int:
    """Give the exit code of what was refused before anything was built."""
    usage = (OptionError, SourceError, UnknownOptionError, StreamError)
    return USAGE if isinstance(error, usage) else FAILED


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
        "check": _add_check(commands),
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


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    """Give what runs a command; its module is imported when it does."""

    def run(arguments: argparse.Namespace) -> int:
        code: int = import_module(f"trt_widget.commands.{name}").run(arguments)
        return code

    return run


def _add_build(commands: Any) -> _Parser:
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
        "--engine-cache",
        action="store_true",
        help="answer the same build again from the disk (in your cache folder, or where "
        "TRT_WIDGET_ENGINES says)",
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
    parser.set_defaults(run=_command("build"))
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
    parser.set_defaults(run=_command("watch"))
    return parser


def _add_check(commands: Any) -> _Parser:
    parser: _Parser = commands.add_parser(
        "check",
        help="check that the installed TensorRT does what this package relies upon",
        description="Build small models with the TensorRT that is installed, cancel some, and see "
        "whether all is as this package expects it. Each check runs in a process of its own.",
        epilog=_CHECK_CODES,
    )
    parser.add_argument("--backend", choices=("tensorrt", "tensorrt_rtx"), help="only this one")
    parser.add_argument(
        "--json",
        metavar="FILE|-",
        help="write the report with the recorded callbacks, to be sent to the project; packed if "
        "FILE ends in .gz; -: to stdout, and everything else to stderr. Paths, URLs and the names "
        "of user and machine are replaced in it as far as they can be recognized (a folder with "
        "spaces may not be): look at it before you send it",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=180.0,
        metavar="S",
        help="seconds that one check may take (%(default)g)",
    )
    parser.set_defaults(run=_command("check"))
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
            # A module may print when it is imported, and stdout may be a protocol's.
            with contextlib.redirect_stdout(sys.stderr):
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
        help="bars in a terminal, lines elsewhere (auto); auto draws nothing where the events go "
        "to another program and stderr is a terminal",
    )


def _schema(_arguments: argparse.Namespace) -> int:
    import json

    from trt_widget.schema import schema

    say(json.dumps(schema(), indent=2), sys.stdout)
    return SUCCEEDED
