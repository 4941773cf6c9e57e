"""Builds side by side: which phase grew or shrank, and why, as far as it is known.

The module is not called after its function: ``trt_widget.compare`` would be either of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget._differences import ended, explain, label, merge
from trt_widget._diverging import Bar, draw
from trt_widget._sides import CompareError, read_sides
from trt_widget._table import Row, Table, pick
from trt_widget._text import duration, html, line
from trt_widget.phases import PATH_SEPARATOR

if TYPE_CHECKING:
    import pandas as pd

    from trt_widget._differences import Merged
    from trt_widget._sides import Side

__all__ = ["CompareError", "Comparison", "compare"]

_TWO: Final = 2
_MOST_BARS: Final = 12
#: Shorter bars, as a share of the longest, could not be seen; the table has them.
_LEAST_BAR: Final = 0.005
_MOST_ROWS: Final = 40
#: Builds that the table has columns for, and that the sentence of the durations names.
_MOST_BUILDS: Final = 12
#: Letters of a whole path, which is shown on demand.
_MAX_PATH: Final = 120


@dataclass(frozen=True)
class Comparison:
    """Builds side by side, as :func:`compare` makes them.

    As the last line of a cell it shows the sentence, the picture and the table.

    Attributes
    ----------
    names
        What the builds are called, in their order: as they are shown, so in one line and not long.
    sentence
        What makes the difference. A cause is said only where the builds differ in nothing but what
        explains it; with "perhaps" unless all else is known to be the same and earlier builds show
        that the difference is more than chance.
    notes
        What else is to be known, in sentences.
    """

    names: tuple[str, ...]
    sentence: str
    notes: tuple[str, ...]
    _sides: tuple[Side, ...] = field(repr=False)
    _merged: Merged = field(repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A row per phase path, in tree order, and one for the time outside of all phases.

        ``phase``, ``path``, ``depth``; for each build ``<name> total_s``, ``<name> self_s`` and
        ``<name> count`` (0 where it has no such phase); of two builds also ``difference_s`` (of the
        totals, second less first) and ``ratio`` (second to first, NaN where the first took none).
        """
        import pandas as pd

        merged = self._merged
        paths, rows = merged.paths, range(len(merged.paths))
        columns: dict[str, list[Any]] = {
            "phase": [path[-1] if path else f"({label(path)})" for path in paths],
            "path": [PATH_SEPARATOR.join(path) or f"({label(path)})" for path in paths],
            "depth": [max(0, len(path) - 1) for path in paths],
        }
        for at, name in enumerate(self.names):
            columns[f"{name} total_s"] = [merged.total(at, row) for row in rows]
            columns[f"{name} self_s"] = [merged.itself(at, row) for row in rows]
            columns[f"{name} count"] = [merged.count(at, row) for row in rows]
        frame = pd.DataFrame(columns)
        if len(self._sides) == _TWO:
            first, second = (frame[f"{name} total_s"] for name in self.names)
            frame["difference_s"] = second - first
            frame["ratio"] = second / first.where(first > 0)
        frame.attrs["sentence"] = self.sentence
        return frame

    @property
    def svg(self) -> str:
        """The picture as SVG: what each phase took itself, more or less than in the first build."""
        return self._draw(alone=True)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, whole or not at all; ``.svg``, ``.html`` or ``.csv`` says what.

        Raises
        ------
        CompareError
            The name ends in something else.
        SaveError
            It could not be written.
        """
        from trt_widget.record import save_as

        kind = Path(os.fsdecode(path)).suffix.lower()
        if kind == ".svg":
            text = self.svg
        elif kind == ".html":
            text = _PAGE.format(title=html(self.sentence, 200), body=self._repr_html_())
        elif kind == ".csv":
            frame = self.frame
            for name in ("phase", "path"):  # the csv module of Python 3.10 refuses a NUL
                frame[name] = [text.replace("\0", "\ufffd") for text in frame[name]]
            text = frame.to_csv(index=False)
        else:
            what = line(kind, 20) if kind else "a file without an ending"
            raise CompareError(
                f"A comparison cannot be written as {what}.",
                "Let the name end in .svg (the picture), .html (all of it) or .csv (the table).",
            )
        return save_as("comparison", text.encode("utf-8", "replace"), path)

    # ------------------------------------------------------------------ as it shows itself

    def __repr__(self) -> str:
        return "\n".join(
            [
                line(self.sentence, 500),
                *(line(note, 500) for note in self.notes),
                "",
                self._table().to_text(),
            ]
        )

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html(note, 500)}</p>" for note in self.notes)
        return (
            f'<style>{_STYLE}</style><section class="trt-compare">'
            f"<p><strong>{html(self.sentence, 500)}</strong></p>{notes}"
            f'<div class="trt-wide">{self._draw(alone=False)}</div>'
            f"{self._table().to_html()}</section>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002 - IPython's signature
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _draw(self, *, alone: bool) -> str:
        merged, names = self._merged, self.names
        changes = [
            (merged.itself(side, row) - merged.itself(0, row), row, side)
            for row in range(len(merged.paths))
            for side in range(1, len(names))
        ]
        longest = nlargest(_MOST_BARS, changes, key=lambda change: abs(change[0]))
        least = _LEAST_BAR * abs(longest[0][0])
        several = len(names) > _TWO
        bars = []
        for more, row, side in sorted(longest, key=lambda change: change[1:]):
            if not more or abs(more) < least:
                continue
            path = merged.paths[row]
            bars.append(
                Bar(
                    f"{line(names[side], 16)}: {label(path)}" if several else label(path),
                    _whole(path),
                    merged.itself(0, row),
                    merged.itself(side, row),
                )
            )
        heading = "Time of each phase itself, without the phases in it"
        words = f"{heading}, compared with {names[0]}. {self.sentence}"
        heads = (f"less than {names[0]}", f"more than {names[0]}")
        return draw(bars, words, heading, heads, alone=alone)

    def _table(self) -> Table:
        merged, paths, sides = self._merged, self._merged.paths, self._columns()
        two = len(self.names) == _TWO
        totals = [[merged.total(side, row) for side in sides] for row in range(len(paths))]
        # A phase with a large difference first; among equals one that takes long.
        weights = [max(row) - min(row) + 1e-3 * max(row) for row in totals]
        rows = []
        for at in pick(weights, merged.parents, _MOST_ROWS):
            path, times = paths[at], totals[at]
            counts = [merged.count(side, at) for side in sides]
            cells = [duration(time) if n else "none" for time, n in zip(times, counts, strict=True)]
            if two:
                cells.append(_signed(times[1] - times[0]))
                cells.append(_signed(merged.itself(1, at) - merged.itself(0, at)))
                cells.append(f"{times[1] / times[0]:.2f}" if times[0] > 0 else "none")
            same = len(set(counts)) == 1
            cells.append(f"{counts[0]:,}" if same else " → ".join(f"{n:,}" for n in counts))
            rows.append(Row(label(path), max(0, len(path) - 1), tuple(cells), _whole(path)))
        names = [self.names[side] for side in sides]
        heads = ("Phase", *names, *(("Difference", "Itself", "Ratio") if two else ()), "Count")
        more_rows, more_builds = len(paths) - len(rows), len(self.names) - len(sides)
        notes = []
        if more_rows:
            notes.append(
                f"+{more_rows:,} phases that differ less; the DataFrame (frame) has them all."
            )
        if more_builds:
            notes.append(
                f"+{more_builds:,} builds that differ less from the first one; the DataFrame "
                "(frame) has them all."
            )
        caption = f"Time of each phase: {', '.join(names)}"
        if two:
            caption += "; itself: the difference without the phases in it"
        return Table(caption, heads, rows, notes=tuple(notes))

    def _columns(self) -> list[int]:
        """Give the builds that the table shows: the first, and those that differ most from it."""
        lengths = [side.duration_s for side in self._sides]
        others = range(1, len(lengths))
        most = nlargest(_MOST_BUILDS - 1, others, key=lambda side: abs(lengths[side] - lengths[0]))
        return [0, *sorted(most)]


def _signed(more: float) -> str:
    return f"{'+' if more >= 0 else '-'}{duration(abs(more))}"


def _whole(path: tuple[str, ...]) -> str:
    # Not joined before it is cut: of a deep one that would be a long text.
    return line(PATH_SEPARATOR.join(path[:_MAX_PATH]), _MAX_PATH) if path else label(path)


def compare(*builds: Any, names: Any = None) -> Comparison:
    """Compare builds, phase by phase.

    Parameters
    ----------
    *builds
        Two or more, the one to compare with first. Each is a build that has ended (``Build``,
        ``BuildWidget``), a ``Record`` or the path of a saved one, or of the history a
        ``BuildRecord`` or a pair ``(BuildKey, BuildRecord)``; a list of ``BuildRecord`` stands for
        the one among them whose duration is in the middle, and for how much they scatter.

        One ``Build``, ``BuildWidget``, ``Record`` or path alone is compared with its own earlier
        builds: with the one in the middle of those with the timing cache in the state that it had
        the last time. (``compare(build.earlier[0], build)`` takes the last one of those in the
        same state.) One list (``build.earlier``) is its newest build compared with the others.
    names
        What to call them, in their order; long ones are cut. By default it is the name of the file
        or of the model, and a number where those are the same.

    Raises
    ------
    CompareError
        What was given cannot be compared: among others a build that still runs, because nothing
        honest can be said of phases that it may not have come to yet, and one with times that
        cannot be. Among earlier builds such a one is left out, and a note says so.
    RecordError
        A file that is no record.

    Examples
    --------
    >>> compare(before, after).sentence  # with earlier builds in the history
    'Timing tactics took 41.0 s longer: the timing cache was cold.'
    >>> compare("before.json", "after.json").sentence
    'Timing tactics took 41.0 s longer, perhaps because the timing cache was cold.'
    """
    sides = tuple(read_sides(builds, names))
    more = len(sides) - _MOST_BUILDS
    totals = [f"{side.name}: {duration(side.duration_s)}" for side in sides[:_MOST_BUILDS]]
    totals += [f"and {more:,} more"] if more > 0 else []
    merged = merge(sides)
    if len(sides) == _TWO:
        sentence, notes = explain(*sides, merged=merged)
    else:
        ordered = sorted(sides, key=lambda side: side.duration_s)
        fastest, slowest = ordered[0], ordered[-1]
        lead = f"{slowest.name} took longest, {fastest.name} least: "
        sentence, notes = explain(fastest, slowest, lead)
        others = [side for side in sides if side is not fastest and side is not slowest]
        notes += [
            f"{side.name} {ended(side)}: its times are those up to then."
            for side in others
            if side.status != "succeeded"
        ][:_MOST_BUILDS]
    notes = [f"{'; '.join(totals)}.", *_twice(sides), *notes]
    return Comparison(tuple(side.name for side in sides), sentence, tuple(notes), sides, merged)


def _twice(sides: tuple[Side, ...]) -> list[str]:
    """Say which build was given more than once."""
    first: dict[Any, Side] = {}
    notes = [
        f"{first[side.moment].name} and {side.name} are the same build."
        for side in sides
        if side.moment is not None and first.setdefault(side.moment, side) is not side
    ]
    return notes[:_MOST_BUILDS]


_STYLE: Final = (
    ".trt-compare{font:13px/1.45 system-ui,sans-serif;color:inherit;overflow-wrap:anywhere}"
    ".trt-compare p{margin:.4em .6em}.trt-compare strong{font-size:1.1em}"
    ".trt-compare .trt-wide{overflow-x:auto;margin:.6em 0}"
    ".trt-compare svg{max-width:none;display:block}"
)
_PAGE: Final = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark"><title>{title}</title></head>'
    "<body><main>{body}</main></body></html>\n"
)
