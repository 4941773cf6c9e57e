"""``trt-widget watch``."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from trt_widget.build import Build
from trt_widget.commands.interrupts import Interrupts
from trt_widget.commands.views import CANCELLED, make_view, or_nowhere, outcome, say
from trt_widget.errors import StreamError

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Follow, and give the exit code."""
    source: Any = 0 if arguments.stream == "-" else arguments.stream
    build = Build.follow(source, control=arguments.control, wait=not arguments.no_wait)
    with contextlib.ExitStack() as stack:
        view = make_view(build, or_nowhere(sys.stdout, stack), arguments.progress)
        interrupts = stack.enter_context(
            Interrupts(build, view, followed=True, piped=_is_pipe(source))
        )
        view.start()
        try:
            build.start()
            ended = interrupts.wait()
        except BaseException:
            view.pause()
            raise
        shown = interrupts.rest(view.close)
        if interrupts.shared and (not ended or _is_cut_off(build)):
            code = CANCELLED
        elif not ended:
            say("Left." if build.status == "pending" else "Left; the build itself goes on.")
            build.request_cancel("closed")
            code = CANCELLED
        else:
            code = outcome(build, saved=shown, ours=False)
        if not shown:
            os._exit(code)  # a thread is in a write that nobody ends
    return code


def _is_pipe(source: object) -> bool:
    """Say whether it is standard input, and another program's output."""
    with contextlib.suppress(OSError):
        return source == 0 and stat.S_ISFIFO(os.fstat(0).st_mode)
    return False


def _is_cut_off(build: Build) -> bool:
    """Say whether the stream has no end, as that of a build which was interrupted early."""
    return build.result is not None and isinstance(build.result.error, StreamError)
