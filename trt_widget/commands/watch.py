"""``trt-widget watch``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from trt_widget.build import Build
from trt_widget.commands.interrupts import Interrupts
from trt_widget.commands.views import CANCELLED, make_view, or_nowhere, outcome, say

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Follow, and give the exit code."""
    source: Any = 0 if arguments.stream == "-" else arguments.stream
    build = Build.follow(source, control=arguments.control, wait=not arguments.no_wait)
    with contextlib.ExitStack() as stack:
        view = make_view(build, or_nowhere(sys.stdout, stack), arguments.progress)
        interrupts = stack.enter_context(Interrupts(build, view, followed=True))
        view.start()
        try:
            build.start()
            ended = interrupts.wait()
        except BaseException:
            view.pause()
            raise
        view.close()
    if not ended:
        say("Left." if build.status == "pending" else "Left; the build itself goes on.")
        return CANCELLED
    return outcome(build, ours=False)
