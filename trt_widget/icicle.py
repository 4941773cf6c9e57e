"""The timeline of a build as a static picture: an icicle in SVG, and the same as text.

Time runs from left to right, and what a phase consists of stands below it. Narrow phases that
follow each other are drawn as one, so that a picture is small whatever the build was. Where
TensorRT gave no callback for more than a second, the phase that was open is hatched.

Names are a stranger's: they are escaped, and whatever controls anything is replaced by a sign. A
picture holds no script, no reference to anything outside, and no ``id``: several of them can stand
in one page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from trt_widget._text import duration, html, line
from trt_widget.trace import lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trt_widget.record import Record

__all__ = ["Icicle", "Silence", "quiet_s", "silences", "slowest", "theme"]

#: Boxes that are drawn, unless there are more rows than that.
MAX_BOXES: Final = 400
#: Letters of a name.
MAX_LETTERS: Final = 80
#: Silences that are drawn and told one by one: the longest.
MAX_SILENT: Final = 40

_WIDTH: Final = 1000  # units across
_ROW: Final = 20  # units of one level
_TOP: Final = 18  # units of the axis
_MAX_LEVELS: Final = 60
_LETTER: Final = 6.4  # units that a letter takes

#: Light tints after the palette of Okabe and Ito, which the colour-blind can tell apart, and their
#: dark shades; the live timeline has the same (``static/timeline.js``).
_TINTS: Final = ("#9ecdef", "#f7cd8b", "#8fd6bd", "#f2e694", "#c3c2f0", "#eab9d3")
_SHADES: Final = ("#1f5f8b", "#84540f", "#12694f", "#645c10", "#474c9c", "#7c3d60")
_MIXED, _MIXED_DARK = "#cfcfcf", "#5a5a5a"
#: Edges of what is not done, by status, in light and in dark; and their dashes.
_EDGES: Final = {
    "running": ("#0d5aa7", "#90caf9"),
    "cancelled": ("#8a4500", "#ffb74d"),
    "failed": ("#b3261e", "#ff8a80"),
    "ended": ("#555555", "#bdbdbd"),
}
#: Seconds between two marks of the axis, for builds of minutes and hours.
_CLOCK: Final = (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
_DASHES: Final = {"cancelled": "2 2", "failed": "6 3"}


@dataclass(frozen=True)
class Silence:
    """A time without a callback, and a phase that was innermost then.

    ``path`` is its row among the paths, and ``span`` that of its instance, -1 where none was kept.
    """

    path: int
    span: int
    name: str
    start: float
    end: float

    @property
    def lasted(self) -> float:
        """Seconds."""
        return self.end - self.start


def silences(record: Record, most: int = MAX_SILENT) -> list[Silence]:
    """Give the longest silences by their start; none where they were not measured."""
    columns = record.silence_columns
    if columns is None:
        return []
    names = record.path_columns["name"]
    rows = zip(
        columns["path"],
        record.silent_spans(),
        columns["start_s"],
        columns["end_s"],
        strict=True,
    )
    found = [Silence(path, span, names[path], start, end) for path, span, start, end in rows]
    found.sort(key=lambda silence: (-silence.lasted, silence.start, silence.path))
    return sorted(found[:most], key=lambda silence: (silence.start, silence.path))


def quiet_s(record: Record) -> float:
    """Give the seconds that were silent, whatever number of phases was open."""
    columns = record.silence_columns
    if columns is None:
        return 0.0
    quiet = until = 0.0
    for start, end in sorted(zip(columns["start_s"], columns["end_s"], strict=True)):
        quiet += max(0.0, end - max(start, until))
        until = max(until, end)
    return quiet


def slowest(record: Record, most: int = 3) -> list[tuple[str, float, float]]:
    """Give name, seconds and share of the phases that took longest themselves, longest first."""
    columns = record.path_columns
    names, selfs = columns["name"], columns["self_s"]
    whole = sum(selfs)
    if whole <= 0:
        return []
    order = sorted(range(len(names)), key=lambda row: (-selfs[row], row))[:most]
    return [(names[row], selfs[row], selfs[row] / whole) for row in order if selfs[row] > 0]


class Icicle:
    """The timeline of a record.

    Parameters
    ----------
    record
        What is drawn.

    Attributes
    ----------
    words
        What the picture shows, in sentences.
    silent
        The silences that it shows.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._depths = record.depths()
        self._lanes = lanes(record)
        self.silent = silences(record)
        self._rows, self._places = self._levels()
        self._merged: list[list[_Box]] = []
        self._tints: dict[int, int] = {}
        self.words = self._describe()

    # ------------------------------------------------------------------ as SVG

    def svg(self, boxes: int = MAX_BOXES, letters: int = MAX_LETTERS) -> str:
        """Draw it to stand in a page whose style has the rules of :func:`theme`.

        Empty where there is nothing to draw.
        """
        return self._draw(boxes, letters, titles=True)

    def image(
        self, boxes: int = MAX_BOXES, letters: int = MAX_LETTERS, *, titles: bool = True
    ) -> str:
        """Draw it as a file of its own, with its background, for light and for dark.

        Parameters
        ----------
        boxes
            Rectangles, at most.
        letters
            Letters of a name, at most.
        titles
            Whether each says what it is where a pointer rests on it.
        """
        style = (
            f"{theme('.trt-time', dark=False)}"
            f"@media(prefers-color-scheme:dark){{{theme('.trt-time', dark=True)}}}"
        )
        return self._draw(boxes, letters, titles=titles, style=style)

    def _draw(self, most: int, letters: int, *, titles: bool, style: str = "") -> str:
        record, rows = self._record, len(self._places)
        boxes = self._boxes(max(most, rows))
        if not boxes and not style:
            return ""
        height = _TOP + max(1, rows) * _ROW + 2
        words = escape(line(self.words, 1_000))
        parts = [
            (
                f'<svg class="trt-time" role="img" viewBox="0 0 {_WIDTH} {height}" '
                f'aria-label="{words}" xmlns="http://www.w3.org/2000/svg" '
                'font-family="system-ui,sans-serif" font-size="11"'
                + (f' width="{_WIDTH}" height="{height}">' if style else ">")
            ),
            f"<title>Timeline of {html(record.name)}</title><desc>{words}</desc>",
        ]
        if style:
            ground = f'<rect class="trt-ground" width="{_WIDTH}" height="{height}" fill="#fff"/>'
            parts.append(f"<style>{style}</style>{ground}")
        parts.append(_axis(record.now_s, height))
        # Names last, over the hatching; a pointer finds the boxes below them.
        labels = []
        for box in boxes:
            drawn, label = self._box(box, letters, titles=titles)
            parts.append(drawn)
            labels.append(label)
        parts += self._hatches(letters, titles=titles)
        parts += ['<g class="trt-names" fill="#111" pointer-events="none">', *labels, "</g></svg>"]
        return "".join(parts)

    def _levels(self) -> tuple[list[int], dict[tuple[int, int], int]]:
        """Give the row of every instance (-1: not drawn), and the rows by lane and depth."""
        paths = self._record.span_columns["path"]
        places = [(lane, self._depths[path]) for lane, path in zip(self._lanes, paths, strict=True)]
        used = sorted({place for place in places if place[0] >= 0})[:_MAX_LEVELS]
        row_of = {place: row for row, place in enumerate(used)}
        return [row_of.get(place, -1) for place in places], row_of

    def _boxes(self, most: int) -> list[_Box]:
        """Give boxes, not more than ``most`` if that can be had."""
        narrow = 1.0
        for level in range(math.ceil(math.log2(_WIDTH)) + 2):
            if level == len(self._merged):
                self._merged.append(_merge(self._merged[-1] if level else self._singles(), narrow))
            if len(self._merged[level]) <= most:
                break
            narrow *= 2
        return self._merged[level]

    def _singles(self) -> Iterator[_Box]:
        """Yield a box for every instance that has a row."""
        columns, now = self._record.span_columns, self._record.now_s
        numbers: dict[str, int] = {}
        names = [numbers.setdefault(n, len(numbers)) for n in self._record.path_columns["name"]]
        scale = _WIDTH / now if now > 0 else 0.0
        spans = zip(
            self._rows,
            columns["start_s"],
            columns["end_s"],
            columns["path"],
            columns["status"],
            strict=True,
        )
        for row, start_s, end_s, path, status in spans:
            if row >= 0:
                start, end = start_s * scale, (now if end_s is None else end_s) * scale
                yield _Box(row, start, end, path, names[path], status, end - start)

    def _box(self, box: _Box, most: int, *, titles: bool) -> tuple[str, str]:
        """Draw one box, and its name where there is room."""
        extent = box.end - box.start
        width = max(1.5, extent)
        y = _TOP + box.row * _ROW
        raw = self._record.path_columns["name"][box.path]
        name = f"{box.count:,} phases" if box.mixed else line(raw, most)
        said = ""
        if titles:
            lasted = duration(box.busy * self._record.now_s / _WIDTH)
            said = f"{name}: {lasted}"
            if box.count > 1:
                times = "" if box.mixed else f"{box.count:,} times, "
                said = f"{name}: {times}{lasted} in all"
            said += "" if box.status == "done" else f" ({box.status})"
            said = f"<title>{escape(said)}</title>"
        tint = self._tints.get(box.path)
        if tint is None:
            tint = self._tints[box.path] = _tint(raw)
        mark, fill = ("m", _MIXED) if box.mixed else (str(tint), _TINTS[tint])
        edge = ""
        if box.status in _EDGES:
            edge = f' class="trt-{box.status}" stroke="{_EDGES[box.status][0]}" stroke-width="1.5"'
            if box.status in _DASHES:
                edge += f' stroke-dasharray="{_DASHES[box.status]}"'
        # How much of a merged box was really spent in its phases.
        share = box.busy / extent if box.count > 1 and extent > 0 else 1.0
        faint = f' fill-opacity="{max(0.4, share):.2f}"' if share < 0.95 else ""  # noqa: PLR2004
        text = ""
        room = int((width - 8) / _LETTER)
        if room >= 3:  # noqa: PLR2004 - fewer say nothing
            text = f'<text x="{box.start + 4:.1f}" y="{y + 14}">{html(name, room)}</text>'
        return (
            f'<g class="trt-c{mark}">{said}<rect x="{box.start:.1f}" y="{y}" '
            f'width="{width:.1f}" height="{_ROW - 1}" fill="{fill}"{faint}{edge}/></g>'
        ), text

    def _hatches(self, letters: int, *, titles: bool) -> list[str]:
        """Draw the silences: slanted stripes, cut off at the edges of their own small pictures."""
        now = self._record.now_s
        scale = _WIDTH / now if now > 0 else 0.0
        parts = []
        for silence in self.silent:
            row = self._row_of(silence)
            if row < 0:
                continue
            width, height = max(1.0, silence.lasted * scale), _ROW - 1
            said = f"{line(silence.name, letters)}: no callback for {duration(silence.lasted)}"
            parts.append(
                f'<svg x="{silence.start * scale:.1f}" y="{_TOP + row * _ROW}" '
                f'width="{width:.1f}" height="{height}" overflow="hidden">'
                + (f"<title>{escape(said)}</title>" if titles else "")
                # All of it answers to a pointer, not only the stripes.
                + f'<rect width="{width:.1f}" height="{height}" fill="#000" fill-opacity="0"/>'
                f'<path class="trt-hatch" d="M0 {height / 2}h{width + height:.1f}" stroke="#000" '
                f'stroke-opacity=".3" stroke-width="{height}" stroke-dasharray="2.5 6" '
                'transform="skewX(-45)"/></svg>'
            )
        return parts

    def _row_of(self, silence: Silence) -> int:
        """Give the row of the instance that was silent; by its depth where it was not kept."""
        if silence.span >= 0:
            return self._rows[silence.span]
        return self._places.get((0, self._depths[silence.path]), -1)

    # ------------------------------------------------------------------ in words

    def _describe(self) -> str:
        record = self._record
        text = f"Timeline of the build, {duration(record.now_s)} in all."
        slow = slowest(record)
        if slow:
            listed = ", ".join(f"{line(name, 60)} {duration(self_s)}" for name, self_s, _ in slow)
            text += f" Most of the time was spent in: {listed}."
        if self.silent:
            longest = max(self.silent, key=lambda silence: silence.lasted)
            text += (
                f" Silent for {duration(quiet_s(record))} in all, the longest "
                f"{duration(longest.lasted)} in {line(longest.name, 60)}."
            )
        return text


class _Box:
    """One rectangle: an instance, or several that are too narrow one by one.

    ``name`` is a number that equal names share, and ``busy`` what the instances take of its width.
    """

    __slots__ = ("busy", "count", "end", "mixed", "name", "path", "row", "start", "status")

    def __init__(  # noqa: PLR0917 - a hundred thousand of them, private
        self, row: int, start: float, end: float, path: int, name: int, status: str, busy: float
    ) -> None:
        self.row = row
        self.start = start
        self.end = end
        self.path = path
        self.name = name
        self.status = status
        self.busy = busy
        self.count = 1
        self.mixed = False

    def copy(self) -> _Box:
        """Give another one like it."""
        other = _Box(self.row, self.start, self.end, self.path, self.name, self.status, self.busy)
        other.count, other.mixed = self.count, self.mixed
        return other


def _merge(boxes: Iterable[_Box], narrow: float) -> list[_Box]:
    """Merge boxes so that none narrower than ``narrow`` units stands alone beside another.

    What is merged already consists of narrower ones. The given boxes stay as they are.
    """
    pending: dict[int, _Box] = {}
    merged: list[_Box] = []
    for box in boxes:
        row = box.row
        if box.count == 1 and box.end - box.start >= narrow:
            pending.pop(row, None)
            merged.append(box)
            continue
        before = pending.get(row)
        if before is not None and box.start - before.end <= narrow:
            before.end = max(before.end, box.end)
            before.count += box.count
            before.busy += box.busy
            before.mixed |= box.mixed or box.name != before.name
            if box.status != "done":
                before.status = box.status
        else:
            pending[row] = box.copy()
            merged.append(pending[row])
    return merged


def _tint(name: str) -> int:
    """Give the number of a name's tint, the one that the live timeline takes: FNV-1a."""
    value = 2166136261
    code = name.encode("utf-16-le", "surrogatepass")
    for index in range(0, len(code), 2):
        value = (value ^ (code[index] | code[index + 1] << 8)) * 16777619 & 0xFFFFFFFF
    return (value ^ value >> 15) % len(_TINTS)


def _ticks(whole: float) -> list[float]:
    """Give round times, some five of them, from zero on."""
    step = 10.0 ** math.floor(math.log10(max(whole, 1e-6) / 5))
    for factor in (1, 2, 5, 10):
        if whole / (step * factor) <= 6:  # noqa: PLR2004 - so many have room
            step *= factor
            break
    # From a minute on as clocks count.
    if step >= 10:  # noqa: PLR2004
        step = next((clock for clock in _CLOCK if whole / clock <= 6), step)  # noqa: PLR2004
    return [step * index for index in range(int(whole / step + 1e-9) + 1)]


def _axis(now: float, height: int) -> str:
    """Draw the times above."""
    parts = []
    scale = _WIDTH / now if now > 0 else 0.0
    for time in _ticks(now):
        x = time * scale
        anchor = "start" if x < 1 else "end" if x > _WIDTH - 25 else "middle"
        parts.append(
            f'<path class="trt-grid" d="M{x:.0f} 14V{height}" stroke="#888" '
            'stroke-opacity=".35" fill="none"/>'
            f'<text class="trt-tick" x="{x:.0f}" y="11" fill="#5f5f5f" '
            f'text-anchor="{anchor}">{_moment(time)}</text>'
        )
    return "".join(parts)


def _moment(time: float) -> str:
    """Give a round time without the digits that say nothing."""
    if time < 1 or time >= 60:  # noqa: PLR2004 - a minute
        return duration(time).replace(" 00 s", "").replace(" 00 min", "")
    return f"{time:.2f}".rstrip("0").rstrip(".") + " s"


def theme(scope: str, *, dark: bool) -> str:
    """Give the rules of CSS for one theme; ``scope`` selects the picture."""
    tints: Iterable[str] = _SHADES if dark else _TINTS
    rules = [f"{scope} .trt-c{n} rect{{fill:{tint}}}" for n, tint in enumerate(tints)]
    rules += [f"{scope} .trt-{status}{{stroke:{edges[dark]}}}" for status, edges in _EDGES.items()]
    mixed, text, ground, tick = (
        (_MIXED_DARK, "#fff", "#1b1b1b", "#a6a6a6") if dark else (_MIXED, "#111", "#fff", "#5f5f5f")
    )
    return "".join(
        [
            *rules,
            f"{scope} .trt-cm rect{{fill:{mixed}}}",
            f"{scope} .trt-names{{fill:{text}}}",
            f"{scope} .trt-hatch{{stroke:{text}}}",
            f"{scope} .trt-ground{{fill:{ground}}}",
            f"{scope} .trt-tick{{fill:{tick}}}",
        ]
    )
