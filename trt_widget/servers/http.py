"""``trt-widget serve``: builds by HTTP, for browsers and programs.

It listens on the loopback unless it is told otherwise, prints one line of JSON with its address and
its token when it is ready (in a terminal, the page's address for a person), and ends on Ctrl-C,
SIGTERM or SIGHUP with all its builds. A server that was killed leaves no build either: a build's
process ends with the one that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import secrets
import socket
import sys
from typing import Any, Final, TextIO

from trt_widget._extras import require
from trt_widget._text import line
from trt_widget.errors import OptionError

__all__ = ["add_arguments", "run"]

#: The environment variable that may hold the token: arguments are seen by every user of a machine.
TOKEN_VARIABLE: Final = "TRT_WIDGET_TOKEN"  # noqa: S105 - a name, not a token
#: What can be guessed is no token.
SHORTEST_TOKEN: Final = 16
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``trt-widget serve``."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        default=".",
        help="folder whose models can be built by name (default: the present one)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); any but the loopback's needs a token of "
        "yours, since the connection is not encrypted",
    )
    parser.add_argument(
        "--port", type=_port, default=8200, help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--token",
        help=f"what clients must know, at least {SHORTEST_TOKEN} characters (default: the "
        f"environment variable {TOKEN_VARIABLE}, else a new one, which is printed)",
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which clients call this server, besides localhost and addresses",
    )
    parser.add_argument(
        "--max-upload",
        metavar="BYTES",
        type=_size,
        default=2 << 30,
        help="largest model that can be uploaded; K, M and G are understood (default: 2G)",
    )
    parser.add_argument(
        "--max-waiting",
        metavar="N",
        type=_count,
        default=16,
        help="builds that may wait for their turn (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=_count,
        default=64,
        help="builds that have ended and can still be asked for (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        help="seconds after which a build is cancelled, where its request does not say",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def _port(text: str) -> int:
    # The system takes what is left of a larger one.
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:  # noqa: PLR2004 - as long as 16 bits
        raise argparse.ArgumentTypeError(f"{text!r:.100} is no port: 0 to 65535")
    return int(text)


def _size(text: str) -> int:
    digits, unit = text.rstrip("kKmMgGbB"), text.lstrip("0123456789").lower().rstrip("b")
    if not digits.isdecimal() or unit not in _UNITS or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 500M")
    return int(digits) * _UNITS[unit]


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes.

    Returns
    -------
    int
        0: to be ended is how a server ends.

    Raises
    ------
    ExtraMissing
        FastAPI or uvicorn is not installed.
    OptionError
        The address cannot be listened on, a token is missing or too short, or an option for all
        builds is wrong.
    BackendNotFound
        There is no TensorRT to build with.
    """
    require("fastapi", "uvicorn", extra="serve", what="trt-widget serve")
    from trt_widget.options import BuildOptions
    from trt_widget.servers._uploads import Scratch
    from trt_widget.servers._uvicorn import serve
    from trt_widget.servers.app import make_app
    from trt_widget.servers.builds import Builds

    given = arguments.token
    if given is None:
        given = os.environ.get(TOKEN_VARIABLE) or None
    token = _check_token(given, arguments.host)
    asked: dict[str, Any] = {
        "timeout": arguments.timeout,
        "configure": getattr(arguments, "configure", None),
    }
    options = {name: value for name, value in asked.items() if value is not None}
    # Not at the first request: what is wrong here is wrong for all.
    BuildOptions.from_kwargs(options)
    builds = Builds(
        arguments.root,
        options=options,
        max_waiting=arguments.max_waiting,
        keep=arguments.keep,
    )
    listener = _listen(arguments.host, arguments.port)
    with listener, contextlib.closing(Scratch()) as scratch, contextlib.closing(builds):
        hosts = [*arguments.allow_host, socket.gethostname(), arguments.host]
        app = make_app(builds, token, scratch=scratch, hosts=hosts, max_upload=arguments.max_upload)
        ready = _ready(listener, token, printed=given is None)
        person = _at_terminal(sys.stderr)
        serve(
            app,
            listener,
            "" if person and _at_terminal(sys.stdout) else json.dumps(ready),
            _welcome(ready, builds.root) if person else "",
        )
    return 0


def _check_token(given: str | None, host: str) -> str:
    if given is None:
        if not _is_loopback(host):
            raise OptionError(
                f"--host {host} lets others reach this server, and no token was given.",
                remedy=f"Give one with --token or in {TOKEN_VARIABLE}, and know that the "
                "connection is not encrypted: an ssh tunnel to the loopback is safer.",
            )
        return secrets.token_urlsafe(32)
    if (
        len(given) < SHORTEST_TOKEN
        or not given.isascii()
        or not given.isprintable()
        or " " in given
    ):
        raise OptionError(
            f"The token is not {SHORTEST_TOKEN} or more printable characters of ASCII.",
            remedy="Leave it out to have one made, or take the output of `openssl rand -hex 32`.",
        )
    return given


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # there it means that two may listen
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise OptionError(
            f"This server cannot listen on {host}, port {port}: {error}.",
            remedy="Choose another --port (0 takes a free one) or --host.",
        ) from error
    return listener


def _ready(listener: socket.socket, token: str, *, printed: bool) -> dict[str, str]:
    """Say where it is, for programs."""
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    found = {"url": f"http://{name}:{port}"}
    if printed:  # one that was given is known, and logs are read by many
        found |= {"token": token, "page": f"{found['url']}/#token={token}"}
    return found


def _at_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _welcome(ready: dict[str, str], root: object) -> str:
    """Say the same for a person; an address alone on its line can be clicked."""
    page = ready.get("page", ready["url"])
    knows = "with the token after #token=" if "token" in ready else "which asks for your token"
    return (
        f"Builds models below {line(str(root))}.\nThe page, {knows}:\n\n"
        f"{page}\n\nCtrl-C cancels all builds and ends."
    )
