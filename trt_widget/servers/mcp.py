"""``trt-widget mcp``: builds for AI agents, by the Model Context Protocol.

This module is light; what needs the SDK is in :mod:`trt_widget.servers._tools`. It shares its last
name with the SDK's package: imports are absolute, and nothing here is run as a script.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from trt_widget._extras import require

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``trt-widget mcp``."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        default=".",
        help="folder that models are read from and engines are written to; nothing outside it is "
        "(default: the current one)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help="most seconds that a build may take, whatever the agent asks for",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0.0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Serve the client at stdin and stdout until it leaves; its builds end with it.

    Returns
    -------
    int
        0.

    Raises
    ------
    ExtraMissing
        The SDK is not installed.
    OptionError
        The root is not a folder.
    """
    require("mcp.server.lowlevel", "mcp_types", extra="mcp", what="trt-widget mcp")
    from trt_widget.servers._tools import serve

    options: dict[str, Any] = {}
    if getattr(arguments, "configure", None) is not None:
        options["configure"] = arguments.configure
    if sys.stdin is not None and sys.stdin.isatty():
        print(  # noqa: T201 - to whoever tries it by hand
            "trt-widget mcp is started by agents' clients and speaks the Model Context Protocol "
            "on stdin and stdout.",
            file=sys.stderr,
        )
    return serve(arguments.root, options=options, longest=arguments.timeout)
