"""What people see of a command: a view of the build, sentences, and the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

from trt_widget._trtexec import spelled
from trt_widget.errors import ExtraMissing, OptionError
from trt_widget.options import check_output
from trt_widget.words import printable

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.build import Build
    from trt_widget.errors import BuildError

__all__ = [
    "CANCELLED",
    "FAILED",
    "SUCCEEDED",
    "UNKNOWN",
    "USAGE",
    "Nothing",
    "View",
    "checked_file",
    "complain",
    "make_view",
    "or_nowhere",
    "outcome",
    "say",
]

#: The exit codes.
SUCCEEDED, FAILED, USAGE, UNKNOWN, CANCELLED = 0, 1, 2, 3, 130


class View(Protocol):
    """Shows a build: bars, lines or nothing."""

    cancelling: str
    notice: str

    def start(self) -> None:
        """Begin."""

    def close(self, timeout: float | None = None) -> bool:
        """Show the end; say whether it is shown, after ``timeout`` seconds at most."""

    def pause(self) -> None:
        """Leave the terminal to others."""

    def resume(self) -> None:
        """Take it back."""


class Nothing:
    """Shows nothing."""

    cancelling = notice = ""

    def start(self) -> None:
        """Do nothing."""

    pause = resume = start

    def close(self, _timeout: float | None = None) -> bool:
        """Do nothing: that is all."""
        return True


def make_view(build: Build, out: TextIO, progress: str) -> View:
    """Make the view that ``--progress`` asks for.

    Raises
    ------
    OptionError
        Bars were asked for where there can be none.
    """
    from trt_widget.sinks.lines import Lines
    from trt_widget.sinks.terminal import Bars, can_draw

    if progress == "none":
        return Nothing()
    if progress != "lines":
        try:
            if can_draw(out):
                return Bars(build, out)
        except ExtraMissing as error:
            if progress == "bars":
                raise OptionError(f"--progress bars: {error.cause}", error.remedy) from error
            say(f"Plain lines, since rich is not installed: {error.remedy}", out)
        if progress == "bars":
            raise OptionError(
                "--progress bars needs a terminal that can move its cursor.",
                "Leave it out: lines are written elsewhere.",
            )
    return Lines(build, out)


def outcome(build: Build, *, saved: bool = True, ours: bool = True, told: bool = False) -> int:
    """Say why it failed, if it did, and give the exit code.

    Parameters
    ----------
    saved
        Whether all files could be written that were asked for.
    ours
        Whether the options of the command line are those of the build.
    told
        Whether somebody else has said already why it failed.
    """
    result = build.result
    if result is None:
        return UNKNOWN
    if result.status == "failed" and result.error is not None and not told:
        complain(result.error, ours=ours)
    code = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
    found = code.get(result.status, UNKNOWN)
    return FAILED if found == SUCCEEDED and not saved else found


def complain(error: BuildError, *, ours: bool = True) -> None:
    """Say what is wrong, by what that is known, and what to do: with our options, if they are."""
    text = str(error)
    if ours:
        # Our own words; those of TensorRT stay as they are.
        for part in filter(None, (error.cause, error.remedy)):
            text = text.replace(part, spelled(part), 1)
    say(_fitted(printable(text), sys.stderr))


def _fitted(text: str, out: TextIO | None) -> str:
    """Break long sentences for a terminal; what is indented is quoted, and stays as it is."""
    from trt_widget.sinks.sentences import by_words

    try:
        if out is None or not out.isatty():
            return text
        columns = os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return text
    return "\n".join(
        part
        for text_line in text.split("\n")
        for part in ([text_line] if text_line[:1] == " " else by_words(text_line, columns - 1))
    )


def checked_file(option: str, what: str, path: str) -> Path:
    """Check, before anything takes its time, that a file can be written that an option names.

    Raises
    ------
    OptionError
        It cannot.
    """
    try:
        return check_output(path, option, what)
    except OptionError as error:
        cause = error.cause.replace(f"{option}= ", f"--{option} ").replace(
            f"{option}=", f"--{option} "
        )
        raise OptionError(cause, error.remedy) from error


def say(text: str, out: TextIO | None = None) -> None:
    """Write a line, to stderr by default."""
    out = sys.stderr if out is None else out
    with contextlib.suppress(OSError, ValueError):
        try:
            print(text, file=out, flush=True)
        except UnicodeEncodeError as error:
            print(text.encode(error.encoding, "replace").decode(error.encoding), file=out)


def or_nowhere(stream: TextIO | None, stack: contextlib.ExitStack) -> TextIO:
    """Give a stream, or one to nowhere: a process may have been started without it."""
    if stream is not None:
        return stream
    return stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123 - no path
