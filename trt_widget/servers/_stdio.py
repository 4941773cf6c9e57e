"""The client of ``trt-widget mcp`` at stdin: what it asks for, and no more than can be answered.

mcp 2.3 leaves this open: its reader waits in a thread that cannot be given up, so that after Ctrl-C
the server would stay until the client sends something; it takes a line of any length, and requests
without end, also of a client that reads no answers; and a request that it cannot read is one that
the client waits for in vain.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.shared._stream_protocols import WriteStream
    from typing_extensions import Self

__all__ = ["MAX_LINE", "MAX_OPEN", "Answers", "NoLines", "Requests"]

#: Bytes of one message.
MAX_LINE: Final = 4 * 1024 * 1024
#: Requests without an answer, and the bytes of all of them, beyond which no more is read.
MAX_OPEN: Final = 64
_MAX_OPEN_BYTES: Final = 2 * MAX_LINE
#: Seconds after which one more is refused, if it is not the client that holds the others up: it
#: might be about to cancel one of them.
_PATIENCE_S: Final = 1.0
#: The protocol leaves this code to servers: too many requests.
_BUSY: Final = -32010
#: The longest number that is one, in digits.
_DIGITS: Final = 18
#: The id of a request that no reader of JSON takes, where clients write it.
_ID: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"method"\s*:\s*"[^"\\]{0,200}"\s*,\s*)?'
    rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\\x00-\x1f\x80-\xff]{0,200}")\s*[,}]'
)


class Answers:
    """What is written to the client, and which requests still wait for theirs."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream
        self._open: dict[str, int] = {}
        self._writing = 0
        self._changed = asyncio.Event()

    async def send(self, item: SessionMessage) -> None:
        """Write a message; returns when the one before it is written."""
        self._writing += 1
        try:
            await self._stream.send(item)
        finally:
            self._writing -= 1
            if isinstance(item.message, (JSONRPCResponse, JSONRPCError)):
                self.settle(str(item.message.id))

    async def refuse(self, number: int | str | None, code: int, text: str) -> None:
        """Answer what is not handled."""
        error = JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=code, message=text))
        await self._stream.send(SessionMessage(error))

    def is_open(self, number: str) -> bool:
        """Whether a request of this id waits for its answer."""
        return number in self._open

    def expect(self, number: str, size: int) -> None:
        """Note a request."""
        self._open[number] = size

    def settle(self, number: str) -> None:
        """Forget a request that was answered or cancelled."""
        if self._open.pop(number, None) is not None:
            self._changed.set()

    async def room(self, size: int) -> bool:
        """Wait until there is room for a request; False if there is none for long."""
        while self._open and (
            len(self._open) >= MAX_OPEN or sum(self._open.values()) + size > _MAX_OPEN_BYTES
        ):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _PATIENCE_S)
            except asyncio.TimeoutError:
                if not self._writing:
                    return False
        return True

    async def aclose(self) -> None:
        """Write nothing more."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, traceback)


class Requests:
    """The messages at stdin, which a thread reads that holds nobody up.

    What is none is answered here.
    """

    def __init__(self, answers: Answers) -> None:
        # Nobody else, here or in a child, reads the protocol.
        self._file = os.fdopen(os.dup(0), "rb")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        # Who sends faster than is answered has to wait. None: a line that is too long.
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._at_end = False
        threading.Thread(target=self._read, name="trt_widget stdin", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError, OSError, concurrent.futures.CancelledError):
            while True:
                data: bytes | None = self._file.readline(MAX_LINE + 1)
                if data and len(data) > MAX_LINE and not data.endswith(b"\n"):
                    data = None
                    while (rest := self._file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                asyncio.run_coroutine_threadsafe(self._waiting.put(data), self._loop).result()
                if data == b"":
                    return

    async def receive(self) -> SessionMessage:
        """Give the next message."""
        while True:
            data = b"" if self._at_end else await self._waiting.get()
            if data == b"":
                # The SDK asks again, if nothing came before it.
                self._at_end = True
                raise StopAsyncIteration
            if data is None:
                text = f"This is a line of more than {MAX_LINE} bytes."
                await self._answers.refuse(None, PARSE_ERROR, text)
            elif data.strip() and (message := await self._message(data)) is not None:
                return message

    async def _message(self, data: bytes) -> SessionMessage | None:
        """Read a message; what is none is answered, and None."""
        try:
            message = jsonrpc_message_adapter.validate_json(
                data.decode("utf-8", "replace"), by_name=False
            )
        except (ValueError, RecursionError):
            refusal = _refusal(data)
            if refusal is not None:
                await self._answers.refuse(*refusal)
            return None
        if isinstance(message, JSONRPCNotification) and b'"id"' in data:
            # To the SDK a request whose id is none is a notification.
            refusal = _refusal(data)
            if refusal is not None:
                await self._answers.refuse(*refusal)
                return None
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(message)
        number = str(message.id)
        if self._answers.is_open(number):
            text = f"Another request has the id {number[:100]!r} and is not answered yet."
            await self._answers.refuse(message.id, INVALID_REQUEST, text)
            return None
        if not await self._answers.room(len(data)):
            text = f"{MAX_OPEN} requests are not answered yet; wait for them, or cancel some."
            await self._answers.refuse(message.id, _BUSY, text)
            return None
        self._answers.expect(number, len(data))
        # It is not answered when the client cancels it.
        settled = ServerMessageMetadata(on_request_unanswered=partial(self._settle, number))
        return SessionMessage(message, settled)

    async def _settle(self, number: str) -> None:
        self._answers.settle(number)

    async def aclose(self) -> None:
        """Do nothing: the thread ends with the process."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        return await self.receive()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class NoLines:
    """A stdin for the SDK's own reader: at its end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        raise StopAsyncIteration


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _refusal(data: bytes) -> tuple[int | str | None, int, str] | None:
    """Say what is wrong with a message; None of one that must not be answered."""
    text = data.decode("utf-8", "replace")
    try:
        found: Any = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        match = _ID.match(data)
        number = None if match is None else json.loads(match[1])
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return number, PARSE_ERROR, f"This is not JSON that can be read: {why}."
    if not isinstance(found, dict):
        return None, INVALID_REQUEST, "A message is an object."
    if "id" not in found:
        # A notification is never answered, an answer neither.
        if isinstance(found.get("method"), str) or "result" in found or "error" in found:
            return None
        return None, INVALID_REQUEST, "A request has an id and a method."
    return _refusal_of(found)


def _refusal_of(found: dict[str, Any]) -> tuple[int | str | None, int, str] | None:
    """Say the same of an object that has an id."""
    number = found["id"]
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        return None, INVALID_REQUEST, "An id is a whole number or a text."
    if isinstance(number, str):
        number = number.encode("utf-8", "replace").decode()
    if "method" not in found and ("result" in found or "error" in found):
        return None
    if found.get("jsonrpc") != "2.0":
        return number, INVALID_REQUEST, 'A message has "jsonrpc": "2.0".'
    if not isinstance(found.get("method"), str):
        return number, INVALID_REQUEST, "The method of a request is a text."
    if not isinstance(found.get("params"), (dict, type(None))):
        return number, INVALID_REQUEST, "The params of a request are an object."
    why = "A text in this message is no Unicode, a number too long, or it is nested too deeply."
    return number, PARSE_ERROR, why
