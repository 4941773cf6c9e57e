"""A program in a pseudo-terminal, and what a person sees there.

The emulator is pyte. Two things that terminals do and pyte does not are added: a second screen, and
what happens to lines when the window is resized. tmux does worst by a program: it breaks the lines
that are too wide, pushes as many rows as that makes into the scrollback, and joins them again when
there is room. That is what :class:`Screen` does.
"""

from __future__ import annotations

import copy
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from typing import TYPE_CHECKING, Any

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Screen", "Terminal"]

_OTHER_SCREEN = 1049


class Screen(pyte.Screen):  # type: ignore[misc]  # pyte has no types
    """A screen with a second one behind it and a scrollback, which breaks lines as tmux does."""

    def __init__(self, columns: int, lines: int) -> None:
        self._first: tuple[Any, Any] | None = None
        #: Rows above the screen, and for each of them whether its line goes on in the next one.
        self._above: list[tuple[list[Any], bool]] = []
        self._goes_on: set[int] = set()
        super().__init__(columns, lines)

    @property
    def apart(self) -> bool:
        """Whether the second screen is shown."""
        return self._first is not None

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        if kwargs.get("private") and _OTHER_SCREEN in modes:
            self._first = copy.deepcopy((self.buffer, self.cursor))
            self.erase_in_display(2)
            return
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        if kwargs.get("private") and _OTHER_SCREEN in modes:
            if self._first is not None:
                hidden = self.cursor.hidden
                self.buffer, self.cursor = self._first
                self.cursor.hidden = hidden
                self._first = None
                self._cut()
            return
        super().reset_mode(*modes, **kwargs)

    def _cut(self) -> None:
        """Fit what comes back to a size that may be another one."""
        for row in [row for row in self.buffer if row >= self.lines]:
            del self.buffer[row]
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        self.cursor.y = min(self.cursor.y, self.lines - 1)

    def index(self) -> None:
        if self.cursor.y == self.lines - 1 and not self.apart:
            self._above.append((self._cells(0), 0 in self._goes_on))
            self._goes_on = {row - 1 for row in self._goes_on if row}
        super().index()

    def _cells(self, row: int) -> list[Any]:
        return [self.buffer[row][column] for column in range(self.columns)]

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        lines, columns = lines or self.lines, columns or self.columns
        if self.apart:
            super().resize(lines, columns)
            return
        rows = [(self._cells(row), row in self._goes_on) for row in range(self.lines)]
        y, x = self.cursor.y, self.cursor.x
        while len(rows) > lines and len(rows) > y + 1:
            rows.pop()  # what is below the cursor goes first
        rows = [*self._above, *rows]
        y += len(self._above)
        if columns != self.columns:
            rows, y, x = _reflowed(rows, y, x, columns)
        rows += [([], False)] * (lines - len(rows))
        above = len(rows) - lines
        self._above = rows[:above]
        self.buffer.clear()
        self.lines, self.columns = lines, columns
        for row, (cells, _) in enumerate(rows[above:]):
            for column, cell in enumerate(cells):
                self.buffer[row][column] = cell
        self._goes_on = {row for row, (_, goes_on) in enumerate(rows[above:]) if goes_on}
        self.set_margins()
        # A cursor whose line is above the screen now goes to its corner.
        self.cursor.y, self.cursor.x = (y - above, x) if y >= above else (0, 0)


def _reflowed(
    rows: list[tuple[list[Any], bool]], y: int, x: int, columns: int
) -> tuple[list[tuple[list[Any], bool]], int, int]:
    """Break lines anew; give the rows, and where the cursor is."""
    made: list[tuple[list[Any], bool]] = []
    line: list[Any] = []
    found = (0, 0)
    cursor: int | None = None
    for row, (cells, goes_on) in enumerate(rows):
        if row == y:
            cursor = len(line) + x
        line += cells
        if goes_on and row + 1 < len(rows):
            continue
        while line and line[-1].data == " ":
            line.pop()
        parts = [line[at : at + columns] for at in range(0, len(line), columns)] or [[]]
        if cursor is not None:
            found = (len(made) + min(cursor // columns, len(parts) - 1), cursor % columns)
            cursor = None
        made += [(part, number + 1 < len(parts)) for number, part in enumerate(parts)]
        line = []
    return made, *found


class Terminal:
    """A program that runs in a terminal of its own.

    Parameters
    ----------
    command
        Its arguments.
    columns, lines
        Size of the terminal.
    env
        The environment.
    folder
        Where it runs.

    Attributes
    ----------
    raw
        All that it has written.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str],
        folder: Path,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.raw = b""
        self._screen = Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._ours, theirs = pty.openpty()
        self._set_size(columns, lines)
        self.process = subprocess.Popen(
            list(command),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm-256color"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads matter before exec
        )
        os.close(theirs)
        self._closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # Linux says so at the end; or we have hung up
                return
            if not data:
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """Resize the window; the kernel sends SIGWINCH."""
        with self._lock:
            self._screen.resize(lines, columns)
            self._set_size(columns, lines)

    @property
    def seen(self) -> list[str]:
        """The lines that are on the screen, without what is blank at their ends."""
        with self._lock:
            lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def cursor_hidden(self) -> bool:
        """Whether the cursor is hidden."""
        return bool(self._screen.cursor.hidden)

    @property
    def apart(self) -> bool:
        """Whether the second screen is shown."""
        return self._screen.apart

    def wait_for(
        self, found: Callable[[list[str]], object] | str, timeout: float = 60.0
    ) -> list[str]:
        """Wait until something is on the screen, and give the screen."""
        deadline = time.monotonic() + timeout
        while True:
            lines = self.seen
            if (found in "\n".join(lines)) if isinstance(found, str) else found(lines):
                return lines
            assert time.monotonic() < deadline, "\n".join(["not seen:", *lines])
            time.sleep(0.02)

    def send(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def hang_up(self) -> None:
        """Close the window."""
        if not self._closed:
            self._closed = True
            os.close(self._ours)

    def end(self, timeout: float = 60.0) -> int:
        """Wait until the program has ended; give its exit code."""
        code = self.process.wait(timeout)
        self._thread.join(5.0)
        return code

    def close(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10.0)
        self._thread.join(5.0)
        self.hang_up()
