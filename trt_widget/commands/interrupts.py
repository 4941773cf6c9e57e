"""Ctrl-C and other signals while a command runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time as clock
from typing import TYPE_CHECKING, Any, NoReturn

from trt_widget.commands.views import CANCELLED, Nothing, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.build import Build
    from trt_widget.commands.views import View

__all__ = ["LOOK_S", "Interrupts", "leave_at_once"]

#: Seconds between two looks of the main thread.
LOOK_S = 0.1
#: Two signals within this time are one: wrappers pass on what the terminal has sent them both.
_ONE_SIGNAL_S = 0.3
#: Seconds within which a build that got the same Ctrl-C says that it is cancelled.
_SHARED_S = 2.0
#: Seconds that a build which is being killed may take to end.
_KILL_S = 3.0
#: Seconds that a reader who reads has for the rest, once a signal ends the wait for it.
_REST_S = 1.0
#: Seconds after which one more signal is taken to find the main thread stuck, in a write to stderr.
_STUCK_S = 5.0
_CANCELLING = "Cancelling at the next step{limit}… (Ctrl-C again ends it at once)"
_ASKED = "Asked to stop at its next step… (Ctrl-C again only leaves it)"
_NOBODY_LISTENS = "That build does not listen here, and goes on. Ctrl-C again leaves it."


class Interrupts:
    """Installs handlers of signals while a build runs, and waits for its end.

    The first asks it to stop, the second ends it: a build of ours by killing its process, one that
    is followed by leaving it. Handlers set flags; everything else is done by :meth:`wait`.

    Parameters
    ----------
    build, view
        What runs, and what shows it.
    followed
        Whether it runs elsewhere.
    quiet
        Whether nothing is said: another program shows the same build in this terminal.
    piped
        Whether it comes from another program of the same pipeline, which gets the same Ctrl-C.
    """

    def __init__(
        self,
        build: Build,
        view: View,
        *,
        followed: bool = False,
        quiet: bool = False,
        piped: bool = False,
    ) -> None:
        self.killed = False
        self._build = build
        self._view = view
        self._followed = followed
        self._quiet = quiet
        #: Whether the process that builds is taken to have got the same Ctrl-C, and until when it
        #: has time to say so.
        self.shared = False
        self._shared_until = 0.0
        self._piped = piped
        self._asked = False
        self._by_key = False
        self._told = False
        #: Whether the build has ended, and when the signal came that ends what comes after.
        self._ended = False
        self._over: float | None = None
        self._last = -_ONE_SIGNAL_S
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - typing.Self came with Python 3.11
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
                self._install(name, self._on_signal)
            self._install("SIGTSTP", self._on_stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _install(self, name: str, handler: Callable[[int, object], None]) -> None:
        number = getattr(signal, name, None)
        # What is ignored (nohup, a job in the background of a script) stays ignored.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        now = clock.monotonic()
        if self._over is not None and now - self._over > _STUCK_S:
            os._exit(CANCELLED)
        if now - self._last > _ONE_SIGNAL_S:
            self.killed = self.killed or self._asked
            if self._over is None and (self.killed or self._ended):
                self._over = now
        self._last = now
        self._asked = True
        if number == signal.SIGINT:
            self._by_key = True

    def _on_stop(self, number: int, _frame: object) -> None:
        """Ctrl-Z: leave the terminal in order, stop, and draw again when it goes on."""
        self._view.pause()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._on_stop)
        self._view.resume()

    def wait(self) -> bool:
        """Wait until the build has ended, and do what the signals ask for.

        Returns
        -------
        bool
            Whether it has ended; it may not have, where it was to be ended at once.
        """
        build, left = self._build, 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                build.wait_ended(LOOK_S)
                self._ended = True
                return True
            if self._asked and not self._told:
                self._told = True
                self._ask()
            if self._shared_until and clock.monotonic() > self._shared_until:
                self._shared_until = 0.0
                if build.status != "cancelling":  # a pipe from somewhere else
                    self.shared = False
                    self._ask()
            if self.killed:
                if not self.shared and (self._followed or build.executor != "process"):
                    return False  # a thread cannot be ended
                if not left:
                    left = clock.monotonic() + _KILL_S
                    if not self._followed:
                        build.kill()
                elif clock.monotonic() > left:
                    return False

    def rest(self, done: Callable[[float], bool]) -> bool:
        """Wait, after the build, for what tells of its end: as long as that takes, or to a signal.

        Parameters
        ----------
        done
            Waits for so many seconds at most, and says whether all is told.

        Returns
        -------
        bool
            Whether it is.
        """
        until = 0.0
        while not done(LOOK_S):
            if self._over is None:
                continue
            until = until or clock.monotonic() + _REST_S
            if clock.monotonic() > until:
                return False
        return True

    def _ask(self) -> None:
        if self._by_key and self._piped:
            # Whoever writes was asked by the same key, and the stream will say so.
            self.shared, self._piped = True, False
            self._shared_until = clock.monotonic() + _SHARED_S
            self._view.cancelling = _CANCELLING.format(limit="")
            return
        said = self._view.cancelling = _ASKED if self._followed else self._cancelling()
        asked = self._build.request_cancel("interrupt")
        if self._quiet:
            return
        if isinstance(self._view, Nothing):
            say(said if asked else _NOBODY_LISTENS)
        elif not asked and self._build.result is None:
            self._view.notice = _NOBODY_LISTENS

    def _cancelling(self) -> str:
        """Say what comes: a process that does not answer in time is ended."""
        grace = self._build.grace_s if self._build.executor == "process" else None
        return _CANCELLING.format(limit="" if grace is None else f", or in {grace:g} s")


def leave_at_once(view: View) -> NoReturn:
    """Leave although a thread builds: it cannot be ended otherwise."""
    view.pause()
    say("Left at once.")
    os._exit(CANCELLED)
