"""A build as nested bars in a terminal.

A thread draws a few times a second what has become of the build; nothing is ever drawn from a
callback. A picture is one write, each of its lines overwrites one, and none is as wide as the
terminal. It stands where the cursor is, and between two pictures the cursor waits at its upper left
corner: so the next one begins where this one did, whatever scrolled meanwhile.

A terminal whose width changes may break our lines, and how it does so cannot be known. From then on
the pictures go to its other screen, which has no lines but ours; what stays at the end goes to the
first one again.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from trt_widget._extras import require
from trt_widget._files import write_all
from trt_widget._text import duration, line
from trt_widget.rows import MAX_LABEL, choose_rows, clipped
from trt_widget.sinks.sentences import (
    SILENT_S,
    activity,
    by_words,
    elapsed,
    headline,
    messages,
    outlook,
    printed,
    summary,
)

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.text import Text

    from trt_widget.build import Build
    from trt_widget.phases import PhaseNode

__all__ = ["Bars", "can_draw"]

#: Seconds between two pictures: a second is divided into five of them.
TICK_S = 0.2
#: Rows of phases while it runs, and at the end; drawing takes time with each.
MAX_ROWS = 20
MAX_LAST_ROWS = 40
#: Lines of what the build process printed that are shown at the end.
MAX_PRINTED = 20
#: Lines around the rows.
_AROUND = 5
#: Terminals that are smaller are treated as if they were so large, and cut.
_LEAST_COLUMNS, _LEAST_LINES = 8, 2
_FULL_BAR, _SHORT_BAR = 24, 10
_LEAST_LABEL = 12
#: Where there are fewer columns, a sentence is cut.
_WRAP_COLUMNS = 40

_STYLES = {
    "running": "bold cyan",
    "cancelling": "bold yellow",
    "succeeded": "bold green",
    "cancelled": "bold yellow",
    "failed": "bold red",
    "done": "green",
}
#: What stands for our own signs in an encoding that lacks them.
_ASCII = str.maketrans({"…": ".", "·": "-", "µ": "u"})
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_END_OF_LINE, _BELOW = "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _FIRST_SCREEN, _HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"


def can_draw(stream: TextIO) -> bool:
    """Say whether bars can be drawn on a stream: it is a terminal that can move its cursor.

    Raises
    ------
    ExtraMissing
        It is one, and rich is not installed.
    """
    try:
        if not stream.isatty() or os.environ.get("TERM") in {"dumb", "unknown"}:
            return False
    except ValueError:  # it is closed
        return False
    console = _console(stream)
    return not console.legacy_windows


def _console(stream: TextIO) -> Console:
    rich = require("rich.console", extra="cli", what="Drawing bars in a terminal")
    # Of what is not given, rich finds out: colours (NO_COLOR, TERM), the encoding.
    console: Console = rich.Console(file=stream, highlight=False, markup=False, emoji=False)
    return console


class _Shape(NamedTuple):
    """How wide the parts of a row are; 0 is a part that there is no room for."""

    label: int
    bar: int
    steps: int
    time: int


class Bars:
    """Draws a build in a terminal, on a thread of its own.

    Parameters
    ----------
    build
        What is drawn.
    stream
        The terminal.

    Attributes
    ----------
    cancelling
        What is said when the build is asked to stop.
    notice
        What else is said; it can be set at any time.

    Raises
    ------
    ExtraMissing
        rich is not installed.
    """

    def __init__(self, build: Build, stream: TextIO) -> None:
        from rich.text import Text

        self.cancelling = "Cancelling at the next step…"
        self.notice = ""
        self._Text = Text
        self._build = build
        self._stream = stream
        self._console = _console(stream)
        self._encoding = self._console.encoding or "utf-8"
        self._plain = not self._encoding.lower().startswith("utf")
        self._signs = ("#", "-", "~") if self._plain else ("━", "─", "~")
        self._wake = threading.Event()
        #: Held while it draws.
        self._lock = threading.RLock()
        self._closing = False
        self._paused = False
        self._broken = False
        self._shown = ""
        self._columns = 0
        #: Whether it is drawn on the terminal's other screen, and whether that ever was so.
        self._apart = self._was_apart = False
        self._thread = threading.Thread(target=self._run, name="trt_widget bars", daemon=True)

    def start(self) -> None:
        """Begin to draw."""
        self._thread.start()

    def close(self, timeout: float | None = None) -> bool:
        """Draw the last picture, once the build has ended, and leave the cursor below it.

        Returns
        -------
        bool
            Whether that is done; where nobody reads, it is not after ``timeout`` seconds.
        """
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def pause(self) -> None:
        """Leave the terminal to somebody else: the cursor goes below the picture."""
        if self._lock.acquire(timeout=1.0):
            try:
                self._paused = True
                below = "\r\n" * (self._shown.count("\n") + 1) if self._shown else ""
                self._write(f"{_FIRST_SCREEN if self._apart else below}{_WRAP}{_SHOW}")
                self._shown, self._columns = "", 0
                self._apart = self._was_apart = False
            finally:
                self._lock.release()

    def resume(self) -> None:
        """Draw again, from where the cursor is."""
        self._paused = False
        self._wake.set()

    def __enter__(self) -> Bars:  # noqa: PYI034 - typing.Self came with Python 3.11
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._lock:
                    if not self._paused:
                        columns, lines = self._size()
                        self._keep_apart(columns)
                        self._draw(self.picture(columns, lines))
                self._wake.wait(TICK_S)
                self._wake.clear()
            with self._lock:
                self._finish()
        finally:
            # Whatever happened: the terminal is somebody's.
            self._write(f"{_FIRST_SCREEN if self._apart else ''}{_WRAP}{_SHOW}")

    def _size(self) -> tuple[int, int]:
        """Give columns and lines of the terminal."""
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            columns, lines = 0, 0
        # A pseudo-terminal that nobody has given a size has none.
        return max(columns or 80, _LEAST_COLUMNS), max(lines or 24, _LEAST_LINES)

    def _keep_apart(self, columns: int) -> None:
        """Go to the other screen if the lines here may have been broken."""
        if self._columns not in {0, columns} and not self._apart:
            self._write(f"\r{_BELOW}{_OTHER_SCREEN}")
            self._shown, self._apart, self._was_apart = "", True, True
        self._columns = columns

    def _draw(self, lines: list[Text]) -> None:
        """Put a picture in place of the last one."""
        shown = self._encoded(lines)
        if shown == self._shown:
            return
        self._shown = shown
        body = shown.replace("\n", f"{_END_OF_LINE}\r\n")
        up = shown.count("\n")
        first = _HOME if self._apart else "\r"
        back = _HOME if self._apart else f"\x1b[{up}A\r" if up else "\r"
        self._write(f"{_HIDE}{_NO_WRAP}{first}{body}{_END_OF_LINE}{_BELOW}{back}{_WRAP}")

    def _finish(self) -> None:
        """Replace the picture by what stays."""
        columns, _ = self._size()
        self._keep_apart(columns)
        rows, said = (
            self._encoded(lines).replace("\n", f"{_END_OF_LINE}\r\n")
            + (f"{_END_OF_LINE}\r\n" if lines else "")
            for lines in self._last_picture(columns)
        )
        # A line above may have been cut where we began: what comes must not be its end.
        back = _FIRST_SCREEN if self._apart else ""
        gap = "\r\n" if self._was_apart else ""
        self._apart = False
        # What is said is not cut: it may take several lines now.
        self._write(f"{back}{_NO_WRAP}\r{_BELOW}{gap}{rows}{_WRAP}{said}")

    def _encoded(self, lines: list[Text]) -> str:
        console = self._console
        with console.capture() as capture:
            for number, text in enumerate(lines):
                console.print(
                    text,
                    end="\n" if number + 1 < len(lines) else "",
                    width=10_000,
                    no_wrap=True,
                    overflow="ignore",
                    crop=False,
                )
        drawn = capture.get()
        return drawn.translate(_ASCII) if self._plain else drawn

    def _write(self, text: str) -> None:
        if self._broken:
            return
        try:
            self._stream.flush()
            write_all(self._stream.fileno(), text.encode(self._encoding, "replace"))
        except (OSError, ValueError):  # the terminal is gone: the build goes on
            self._broken = True

    # ------------------------------------------------------------------ the picture

    def picture(self, columns: int, lines: int) -> list[Text]:
        """Draw the build as it is now, in fewer lines and columns than there are."""
        build = self._build
        width, height = columns - 1, lines - 1
        with build.lock:
            head = self._head(width)
            bar = self._overall(width)
            rows = self._rows(width, min(MAX_ROWS, height - _AROUND), build.tree.outcome)
            foot = [
                made
                for text, style in (
                    (activity(build), "none"),
                    (self.cancelling if build.status == "cancelling" else "", "yellow"),
                    (self.notice, "yellow"),
                    (messages(build), "yellow"),
                )
                if text
                for made in self._wrapped(text, width, style)
            ]
        picture = [head, *bar, *rows, *foot]
        if len(picture) > height:  # what is said is worth more than the rows
            room = max(0, height - 1 - len(foot))
            picture = [head, *[*bar, *rows][:room], *foot][:height]
        return picture

    def _last_picture(self, columns: int) -> tuple[list[Text], list[Text]]:
        """Give the rows of phases, and what is said below them."""
        build, width = self._build, columns - 1
        with build.lock:
            rows = self._rows(width, MAX_LAST_ROWS, build.tree.outcome)
            first, *others = summary(build) or [f"{line(build.name)}: {build.status}"]
            said = messages(build)
            # That of a process that crashed is told with the error.
            output = printed(build.printed)[-MAX_PRINTED:] if build.status != "failed" else []
        others += [said] if said else []
        return rows, [
            *(self._Text(text, "dim") for text in output),
            self._Text(first, _STYLES.get(build.status, "bold")),
            *(self._Text(part) for text in others for part in by_words(text, width)),
        ]

    def _sentence(self, text: str, width: int, style: str = "none") -> Text:
        made = self._Text(text, style)
        made.truncate(width, overflow="ellipsis")
        return made

    def _wrapped(self, text: str, width: int, style: str) -> list[Text]:
        """Break a sentence between words; what needs more than two lines is cut."""
        if width < _WRAP_COLUMNS:
            return [self._sentence(text, width, style)]
        first, *others = self._Text(text, style).wrap(self._console, width)
        if not others:
            return [first]
        rest = text[len(first.plain) :].lstrip()
        first.rstrip()
        return [first, self._sentence(rest, width, style)]

    def _head(self, width: int) -> Text:
        build = self._build
        status = build.status
        made = self._Text()
        made.append(line(build.name), "bold")
        made.append("  ")
        made.append(status, _STYLES.get(status, "bold"))
        if status in {"running", "cancelling"}:
            made.append(f"  {elapsed(build.now())}")
        for about in (headline(build), headline(build, place=False)):
            # Where there is no room, who builds is said, and not where.
            fits = made.cell_len + self._Text(about).cell_len + 2 <= width
            if about and status != "pending" and fits:
                made.append(f"  {about}", "dim")
                break
        made.truncate(width, overflow="ellipsis")
        return made

    def _overall(self, width: int) -> list[Text]:
        """Draw how far the whole is, where that is known."""
        build = self._build
        text = outlook(build)
        progress = build.progress
        if not text or progress is None:
            return []
        bar = min(40, max(0, width - len(text) - 2))
        made = self._Text()
        if bar >= _SHORT_BAR:
            made.append_text(self._bar(int(bar * progress), bar, "cyan"))
            made.append("  ")
        made.append(text)
        made.truncate(width, overflow="ellipsis")
        return [made]

    def _rows(self, width: int, limit: int, outcome: str | None) -> list[Text]:
        build = self._build
        tree = build.tree
        if limit < 1 or not tree.paths:
            return []
        rows, more = choose_rows(tree, limit)
        if more and limit > 1:
            rows, more = choose_rows(tree, limit - 1)
        now = build.now()
        labels = []
        for row in rows:
            folded = f" (+{row.folded})" if row.folded else ""
            name = line(clipped(row.node.name, MAX_LABEL), MAX_LABEL)
            labels.append(f"{'  ' * min(row.node.depth, 12)}{name}{folded}")
        longest = max(self._Text(label).cell_len for label in labels)
        shape = _shape(width, longest)
        drawn = [
            self._row(row.node, label, shape, now, outcome)
            for row, label in zip(rows, labels, strict=True)
        ]
        for text in drawn:
            text.truncate(width)
        if more:
            drawn.append(self._sentence(f"… and {more} more phases", width, "dim"))
        return drawn

    def _row(
        self, node: PhaseNode, label: str, shape: _Shape, now: float, outcome: str | None
    ) -> Text:
        status = node.status
        made = self._Text(label)
        made.truncate(shape.label, overflow="ellipsis", pad=True)
        if status == "running":
            made.stylize("bold")
        elif outcome is None:
            made.stylize("dim")
        if shape.bar:
            made.append(" ")
            made.append_text(self._phase_bar(node, shape.bar, now, outcome))
        if shape.steps:
            made.append(f" {_steps(node):>{shape.steps}.{shape.steps}}")
        if shape.time:
            seconds = self._build.tree.total_s(node, now)
            total = elapsed(seconds) if node.open_count else duration(seconds)
            made.append(f" {total:>{shape.time}.{shape.time}}")
            if node.count > 1:
                made.append(f" x{node.count}")
        return made

    def _phase_bar(self, node: PhaseNode, width: int, now: float, outcome: str | None) -> Text:
        status = node.status
        if status == "done":
            good = outcome is None or outcome == "succeeded"
            return self._bar(width, width, "green" if good else "dim")
        if status == "running" and (now - node.last_event > SILENT_S or node.step_total < 1):
            # The steps say nothing of the time, or are not known.
            return self._Text(self._signs[2] * width, "dim cyan")
        part = max(0.0, min(node.step / node.step_total, 1.0)) if node.step_total > 0 else 0.0
        style = {"cancelled": "yellow", "failed": "red", "running": "cyan"}.get(status, "dim")
        return self._bar(int(width * part), width, style)

    def _bar(self, filled: int, width: int, style: Any) -> Text:
        full, empty, _ = self._signs
        made = self._Text(full * filled, style)
        made.append(empty * (width - filled), "dim")
        return made


def _shape(width: int, longest: int) -> _Shape:
    """Share the columns out; where there are too few, the steps go first, then bar and time."""
    time, steps = 10, 11
    label = min(longest, 60)
    for least_label, parts, with_bar in (
        (24, (steps, time), True),
        (_LEAST_LABEL, (0, time), True),
        (_LEAST_LABEL, (0, time), False),
    ):
        # With the steps there is room for how often a phase came, too: it follows the time.
        fixed = sum(part + 1 for part in parts if part) + (7 if parts[0] else 0)
        room = width - fixed - (1 + _SHORT_BAR if with_bar else 0)
        if room >= min(label, least_label):
            wide = min(label, room)
            bar = min(_FULL_BAR, _SHORT_BAR + room - wide) if with_bar else 0
            return _Shape(wide, bar, *parts)
    return _Shape(max(1, width), 0, 0, 0)


def _steps(node: PhaseNode) -> str:
    if node.status == "running":
        return f"{node.step}/{node.step_total}" if node.step_total > 0 else ""
    return node.status
