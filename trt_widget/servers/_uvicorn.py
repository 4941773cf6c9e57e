"""How the application is served: by uvicorn, with an eye on clients that keep a connection busy."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trt_widget.build import FINAL
from trt_widget.servers._sse import TRANSPORT

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["BACKLOG", "serve"]

#: Seconds that a connection has for the head of a request.
HEAD_S: Final = 30.0
#: Seconds that a client may take nothing of what waits for it.
STALL_S: Final = 60.0
#: Seconds that connections have to end when the builds have, and after which they are let down.
LEAVE_S: Final = 2
LET_DOWN_S: Final = 10
#: Connections that the system holds until they are taken.
BACKLOG: Final = 512
#: Connections that are taken in one go, before any can be let down.
_AT_ONCE: Final = 10
#: Descriptors that builds, files and the listener may need.
_RESERVE: Final = 150
#: Descriptors that are enough for as many streams as there may be, and for all else.
_ENOUGH: Final = 4096
_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Protocol(H11Protocol):
    """Waits for ever neither for a request nor for a client that takes nothing."""

    waiting: asyncio.TimerHandle | None = None
    stalled: asyncio.TimerHandle | None = None
    #: Connections at most.
    most = _ENOUGH
    #: What makes way when there are more: who asks nothing, the longest first.
    idle: ClassVar[dict[Protocol, None]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT: transport}
        self.wait()
        if len(self.connections) > self.most:
            next(iter(self.idle)).let_down()

    def wait(self) -> None:
        """Give the client its time for the head of the next request."""
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = asyncio.get_running_loop().call_later(HEAD_S, self.give_up)
        self.idle.pop(self, None)
        self.idle[self] = None

    def handle_events(self) -> None:
        super().handle_events()
        if self.asks():
            self.idle.pop(self, None)

    def on_response_complete(self) -> None:
        self.wait()
        super().on_response_complete()

    def asks(self) -> bool:
        """Whether a request is being answered."""
        cycle: Any = self.cycle  # None before the first one, which its type does not say
        return cycle is not None and not cycle.response_complete

    def let_down(self) -> None:
        # What is lost is only noticed later.
        self.connections.discard(self)
        self.idle.pop(self, None)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.idle.pop(self, None)
        # They would keep all this until then.
        for timer in (self.waiting, self.stalled):
            if timer is not None:
                timer.cancel()

    def give_up(self) -> None:
        # One that is being closed may still take the rest of an answer.
        if not self.asks() and not self.transport.is_closing():
            self.let_down()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Closing would wait until it has taken what there is.
        self.stalled = asyncio.get_running_loop().call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stalled is not None:
            self.stalled.cancel()


class Server(uvicorn.Server):
    """Says when it is ready, and ends its builds before its connections.

    Parameters
    ----------
    app, ready, welcome
        As for :func:`serve`.
    config
        Of uvicorn.
    """

    def __init__(self, config: uvicorn.Config, app: Any, ready: str, welcome: str) -> None:
        super().__init__(config)
        self.app = app
        self.ready = ready
        self.welcome = welcome

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        if self.ready:
            with contextlib.suppress(BrokenPipeError):
                print(self.ready, flush=True)  # noqa: T201 - what this program says
        self.say(self.welcome)

    def say(self, text: str) -> None:
        """Tell the person at the terminal, if there is one."""
        if self.welcome:
            with contextlib.suppress(OSError):  # the terminal has gone
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - as above

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.state.server.closing = True
        builds = self.app.state.server.builds
        active = sum(entry.status not in FINAL for entry in builds.all())
        if active:  # written over the terminal's ^C
            self.say(f"\rCancelling {active} build{'' if active == 1 else 's'}…")
        # The streams end with the builds, and their clients get to know how.
        await asyncio.to_thread(builds.close)
        asyncio.get_running_loop().call_later(LEAVE_S, self.hang_up)
        await super().shutdown(sockets)
        self.say("\rThe server has ended.")

    def hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        # What is ignored stays so: nohup means it.
        numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(app: Any, listener: socket.socket, ready: str, welcome: str = "") -> None:
    """Run the application until a signal comes; all its builds have ended then.

    Parameters
    ----------
    app
        From :func:`trt_widget.servers.app.make_app`.
    listener
        Listens already.
    ready
        What to print when requests are answered; may be empty.
    welcome
        What to tell the person at the terminal then, who is told of the end, too; empty where there
        is none.
    """
    Protocol.most = _connections()
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_AT_ONCE,
        timeout_graceful_shutdown=LET_DOWN_S,
    )
    asyncio.run(Server(config, app, ready, welcome).serve([listener]))


def _connections() -> int:
    """Say how many connections there may be, so that descriptors are left for all else."""
    most = _ENOUGH
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            if soft < _ENOUGH:
                wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
                with contextlib.suppress(OSError, ValueError):  # some have a limit of their own
                    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                    soft = wanted
            most = min(most, max(soft // 4, soft - _AT_ONCE - _RESERVE))
    return most
