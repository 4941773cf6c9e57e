"""``trt-widget lsp``: builds for editors, by the Language Server Protocol.

This module is light; what needs pygls is in :mod:`trt_widget.servers._language`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
from typing import TYPE_CHECKING

from trt_widget._extras import require
from trt_widget.servers._frames import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["add_arguments", "run"]

#: Addresses that only this machine reaches.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``trt-widget lsp``."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="build models below this folder only (default: any file that you may read)",
    )
    parser.add_argument(
        "--tcp",
        metavar="HOST:PORT",
        type=_address,
        help="wait for one editor at this address of the loopback instead of using stdin and "
        "stdout; whoever may connect to it may build with your rights",
    )
    # What editors add by themselves.
    parser.add_argument("--stdio", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--clientProcessId", type=int, dest="client", help=argparse.SUPPRESS)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if host not in _LOOPBACK:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT with {', '.join(_LOOPBACK)}")
    if not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - the largest port
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 0 to 65535")
    return host, int(port)


def run(arguments: argparse.Namespace) -> int:
    """Serve one editor until it leaves.

    Returns
    -------
    int
        0 if it said goodbye as the protocol has it (``shutdown``, then ``exit``), else 1.

    Raises
    ------
    ExtraMissing
        pygls is not installed.
    """
    require("pygls.lsp.server", "lsprotocol.types", extra="lsp", what="trt-widget lsp")
    from trt_widget.servers._language import serve

    options = {}
    if getattr(arguments, "configure", None) is not None:
        options["configure"] = arguments.configure
    with _connection(arguments.tcp) as channel:
        return serve(channel, root=arguments.root, options=options, client=arguments.client)


@contextlib.contextmanager
def _connection(address: tuple[str, int] | None) -> Iterator[Channel]:
    if address is None:
        if sys.stdin.isatty():
            print(  # noqa: T201 - to whoever tries it by hand
                "trt-widget lsp is started by editors and speaks the Language Server Protocol on "
                "stdin and stdout.",
                file=sys.stderr,
            )
        incoming, outgoing = _take_stdio()
        yield Channel(lambda size: os.read(incoming, size), lambda data: os.write(outgoing, data))
        return
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.create_server(address, family=family, backlog=1) as server:
        host, port = server.getsockname()[:2]
        print(json.dumps({"host": host, "port": port}), flush=True)  # noqa: T201 - who starts it waits for that
        connection, _ = server.accept()
    with connection:
        yield Channel(connection.recv, connection.send)


def _take_stdio() -> tuple[int, int]:
    """Keep stdin and stdout for the protocol alone.

    Whatever else prints, in Python or not, prints to stderr from now on, and nobody else reads.
    """
    sys.stdout.flush()
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr
        os.dup2(null, 1)
    os.close(null)
    return incoming, outgoing
