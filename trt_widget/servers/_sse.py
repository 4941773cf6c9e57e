"""A build's stream as Server-Sent Events.

An event ``batch`` (or ``snapshot``, which starts over) has JSON Lines as its data and the batch's
number as its id. After the last one comes ``end`` with the outcome, the stream's last line once
more, and then the connection ends. An EventSource that is left alone asks again then, with the last
id: it is answered by 204, which ends it for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from starlette.responses import Response

from trt_widget.events import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from trt_widget.broadcast import Batch, Reader

__all__ = ["EventStream", "encode"]

MEDIA_TYPE: Final = "text/event-stream"
#: Seconds without anything else after which a comment is sent, so that nobody between takes the
#: connection for dead, and we notice that it is.
HEARTBEAT_S: Final = 15.0
#: What the server's buffer of one connection grows by at a time.
_PIECE: Final = 1 << 15
#: Batches that wait are sent together up to so many bytes.
_TOGETHER: Final = 1 << 16
#: What the system keeps of a stream for a client that is slow, in bytes.
_SEND_BUFFER: Final = 1 << 17
#: Where the server puts a connection's transport.
TRANSPORT: Final = "trt_widget.transport"

_encoded: WeakKeyDictionary[Batch, bytes] = WeakKeyDictionary()


def encode(batch: Batch) -> bytes:
    """Write a batch as an event of the stream; once, for all readers."""
    data = _encoded.get(batch)
    if data is None:
        kind = "snapshot" if batch.snapshot else "batch"
        lines = batch.text.rstrip("\n").replace("\n", "\ndata: ")
        text = f"event: {kind}\nid: {batch.number}\ndata: {lines}\n\n"
        if batch.last:
            outcome = to_json(batch.events[-1])
            text += f"event: end\nid: {batch.number}\ndata: {outcome}\n\n"
        data = _encoded[batch] = text.encode("ascii")
    return data


class EventStream(Response):
    """The answer to one client, for as long as the build and the client last.

    Parameters
    ----------
    reader
        Its place in the stream.
    first
        What was read of it already.
    pause
        Gives the seconds between two writes: the more clients, the rarer.
    """

    media_type = MEDIA_TYPE

    def __init__(self, reader: Reader, first: Batch | None, pause: Callable[[], float]) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._reader = reader
        self._first = first
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send batches until the last one, or until the client has gone."""
        _keep_little(scope.get("state", {}).get(TRANSPORT))
        sending = asyncio.ensure_future(self._send(send))
        listening = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._reader.close()
            for task in (sending, listening):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await _write(send, b"retry: 1000\n\n")
        reader = self._reader
        batch = self._first or await reader.read_async(HEARTBEAT_S)
        while True:
            if batch is not None:
                data = encode(batch)
                while len(data) < _TOGETHER and (batch := await reader.read_async(0.0)):
                    data += encode(batch)
                await _write(send, data)
            elif not reader.finished:
                await _write(send, b": still here\n\n")
            if reader.finished:
                break
            await asyncio.sleep(self._pause())
            batch = await reader.read_async(HEARTBEAT_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _write(send: Send, data: bytes) -> None:
    for start in range(0, len(data), _PIECE):
        body = data[start : start + _PIECE]
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _keep_little(transport: asyncio.Transport | None) -> None:
    """Have the system keep less for a slow client: what waits there is old when it arrives."""
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
