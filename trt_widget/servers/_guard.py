"""Who may ask: checked before anything of a request is looked at.

- The host that a request names must be one of ours, or an address: a page whose own name was made
  to point here (DNS rebinding) names itself.
- A request that a page of another origin has made is refused, whatever it knows. There is no CORS.
- Everything but the empty page and the description of the interface needs the token. No cookie
  carries it, so no browser adds it by itself.
- For what cannot send a header, EventSource and links, there are addresses with a *key*: good for
  reading one build, and for nothing else.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from trt_widget.servers._problems import problem

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LOOPBACK_NAMES", "Guard", "read_key"]

LOOPBACK_NAMES: Final = ("localhost", "localhost.localdomain", "ip6-localhost")
#: What anybody may have: it is the same everywhere, and tells nothing of this server.
PUBLIC: Final = frozenset({"/", "/openapi.json"})
PUBLIC_FOLDER: Final = "/static/"

#: On every answer. The page adds what it needs of its own.
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_READS: Final = re.compile(r"/builds/([^/]+)(?:/(?:events|timings|log|engine|report))?")
_SAFE: Final = ("GET", "HEAD")


def read_key(token: str, build_id: str) -> str:
    """Give the key that lets its holder read one build."""
    return hmac.new(token.encode(), f"read {build_id}".encode(), "sha256").hexdigest()


class Guard:
    """ASGI middleware; see the module's text.

    Parameters
    ----------
    app
        What it guards.
    token
        What requests must bring as ``Authorization: Bearer ...``.
    hosts
        Names of this server besides :data:`LOOPBACK_NAMES` and addresses; ``"*"`` for any.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token
        self._hosts = {*LOOPBACK_NAMES, *(name.lower() for name in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # WebSockets: there are none
            await send({"type": "websocket.close", "code": 1008})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *(header for header in HEADERS if header[0] not in given),
                ]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            # What has come of a body is not read.
            refusal.headers["connection"] = "close"
            await refusal(scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        """Give the answer to one that may not ask."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").strip().lower()
        if not self._is_ours(host):
            return problem(
                403,
                f"This server is not known as {host!r:.100}.",
                "Use the address that it printed, or start it with --allow-host and this name.",
            )
        if not _same_origin(scope, headers, host):
            return problem(
                403,
                "A page of another origin has asked, which is not allowed here.",
                "Ask from the page of this server, or from a program that is no browser.",
            )
        path, method = scope["path"], scope["method"]
        if method in _SAFE and (path in PUBLIC or path.startswith(PUBLIC_FOLDER)):
            return None
        given = headers.get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() == b"bearer" and _equal(token.strip(), self._token):
            return None
        found = _READS.fullmatch(path)
        if found is not None and method in _SAFE:
            keys = parse_qs(scope["query_string"].decode("latin-1")).get("key", [])
            if len(keys) == 1 and _equal(keys[0].encode(), read_key(self._token, found[1])):
                return None
        return problem(
            401,
            "The token is not this server's." if given else "The token of this server is missing.",
            "Send it as 'Authorization: Bearer TOKEN'; it is in the line that the server printed "
            "when it started.",
            headers={"WWW-Authenticate": 'Bearer realm="trt-widget"'},
        )

    def _is_ours(self, host: str) -> bool:
        # The port is left out: behind a tunnel it is another.
        name = re.sub(r":\d*$", "", host)
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return bool(name) and (name.rstrip(".") in self._hosts or "*" in self._hosts)
        return True


def _equal(given: bytes, expected: str) -> bool:
    return hmac.compare_digest(given, expected.encode())


def _same_origin(scope: Scope, headers: dict[bytes, bytes], host: str) -> bool:
    """Tell whether a request comes from our own page, or from no page at all."""
    origin = headers.get(b"origin")
    if origin is not None:
        # Not the scheme: behind a proxy that speaks TLS it is another.
        scheme, separator, place = origin.decode("latin-1").lower().partition("://")
        if not separator or scheme not in {"http", "https"} or place != host:
            return False
    if headers.get(b"sec-fetch-site", b"none") in {b"same-origin", b"none"}:
        return True
    # A link that a person follows: it changes nothing, and the other page sees nothing of it.
    return (
        scope["method"] in _SAFE
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )
