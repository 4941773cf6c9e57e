"""Builds side by side: which phase grew or shrank, and why, as far as it is known.

The module is not called after its function: ``trt_widget.compare`` would be either of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget._differences import explain, label, tree_order
from trt_widget._diverging import Bar, draw
from trt_widget._sides import CompareError, read_sides
from trt_widget._table import Row, Table, pick
from trt_widget._text import duration, html, line
from trt_widget.phases import PATH_SEPARATOR

if TYPE_CHECKING:
    import pandas as pd

    from trt_widget._sides import Side

__all__ = ["CompareError", "Comparison", "compare"]

_TWO: Final = 2
_MOST_BARS: Final = 12
#: Shorter bars, as a share of the longest, could not be seen; the table has them.
_LEAST_BAR: Final = 0.005
_MOST_ROWS: Final = 40


@dataclass(frozen=True)
class Comparison:
    """Builds side by side, as :func:`compare` makes them.

    As the last line of a cell it shows the sentence, the picture and the table.

    Attributes
    ----------
    names
        What the builds are called, in their order.
    sentence
        What makes the difference. A cause is said only where the builds differ in what explains it.
    notes
        What else is to be known, in sentences.
    """

    names: tuple[str, ...]
    sentence: str
    notes: tuple[str, ...]
    _sides: tuple[Side, ...] = field(repr=False)

    @property
    def frame(self) -> pd.DataFrame:
        """A row per phase path, in tree order, and one for the time outside of all phases.

        ``phase``, ``path``, ``depth``; for each build ``<name> total_s``, ``<name> self_s`` and
        ``<name> count`` (0 where it has no such phase); of two builds also ``difference_s`` (of the
        totals, second less first) and ``ratio`` (second to first, NaN where the first took none).
        """
        import pandas as pd

        paths = tree_order(self._sides)
        columns: dict[str, list[Any]] = {
            "phase": [path[-1] if path else f"({label(path)})" for path in paths],
            "path": [PATH_SEPARATOR.join(path) or f"({label(path)})" for path in paths],
            "depth": [max(0, len(path) - 1) for path in paths],
        }
        for side in self._sides:
            columns[f"{side.name} total_s"] = [side.total(path) for path in paths]
            columns[f"{side.name} self_s"] = [side.itself(path) for path in paths]
            columns[f"{side.name} count"] = [side.count(path) for path in paths]
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
            text = self.frame.to_csv(index=False)
        else:
            raise CompareError(
                f"A comparison cannot be written as {kind or 'a file without an ending'}.",
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
        first = self._sides[0]
        changes = []
        for path in tree_order(self._sides):
            changes += [
                (side, path, side.itself(path) - first.itself(path)) for side in self._sides[1:]
            ]
        sizes = sorted((abs(more) for _, _, more in changes), reverse=True)[:_MOST_BARS]
        least = max(_LEAST_BAR * sizes[0], sizes[-1]) if sizes else 0.0
        shown = [change for change in changes if change[2] and abs(change[2]) >= least]
        several = len(self._sides) > _TWO
        bars = [
            Bar(
                f"{side.name}: {label(path)}" if several else label(path),
                PATH_SEPARATOR.join(path) or label(path),
                first.itself(path),
                side.itself(path),
            )
            for side, path, _ in shown
        ]
        name = first.name
        words = f"Time of each phase itself, compared with {name}. {self.sentence}"
        return draw(bars, words, (f"less than {name}", f"more than {name}"), alone=alone)

    def _table(self) -> Table:
        sides, paths = self._sides, tree_order(self._sides)
        two = len(sides) == _TWO
        totals = [[side.total(path) for side in sides] for path in paths]
        row_of = {path: row for row, path in enumerate(paths)}
        parents = [row_of[path[:-1]] if len(path) > 1 else -1 for path in paths]
        # A phase with a large difference first; among equals one that takes long.
        weights = [max(row) - min(row) + 1e-3 * max(row) for row in totals]
        rows = []
        for at in pick(weights, parents, _MOST_ROWS):
            path, times = paths[at], totals[at]
            counts = [side.count(path) for side in sides]
            cells = [duration(time) if n else "none" for time, n in zip(times, counts, strict=True)]
            if two:
                more = times[1] - times[0]
                cells.append(f"{'+' if more >= 0 else '-'}{duration(abs(more))}")
                cells.append(f"{times[1] / times[0]:.2f}" if times[0] > 0 else "none")
            same = len(set(counts)) == 1
            cells.append(f"{counts[0]:,}" if same else " → ".join(f"{n:,}" for n in counts))
            rows.append(
                Row(
                    label(path),
                    max(0, len(path) - 1),
                    tuple(cells),
                    PATH_SEPARATOR.join(path),
                )
            )
        more_rows = len(paths) - len(rows)
        heads = ("Phase", *self.names, *(("Difference", "Ratio") if two else ()), "Count")
        rest = f"+{more_rows:,} phases that differ less; the DataFrame (frame) has them all."
        return Table(
            f"Time of each phase: {', '.join(self.names)}",
            heads,
            rows,
            notes=(rest,) if more_rows else (),
        )


def compare(*builds: Any, names: Any = None) -> Comparison:
    """Compare builds, phase by phase.

    Parameters
    ----------
    *builds
        Two or more, the one to compare with first. Each is a build that has ended (``Build``,
        ``BuildWidget``), a ``Record`` or the path of a saved one, or of the history a
        ``BuildRecord`` or a pair ``(BuildKey, BuildRecord)``; a list of ``BuildRecord`` stands for
        the one among them whose duration is in the middle, and for how much they scatter.

        One ``Build`` or ``BuildWidget`` alone is compared with its own earlier builds: those with
        the timing cache in the state that it had the last time. One list
        (``History().similar(key)``) is its newest build compared with the others.
    names
        What to call them, in their order.

    Raises
    ------
    CompareError
        What was given cannot be compared: among others a build that still runs, because nothing
        honest can be said of phases that it may not have come to yet.
    RecordError
        A file that is no record.

    Examples
    --------
    >>> compare(before, after, names=["before", "after"]).sentence
    'Timing tactics took 41.0 s longer: the timing cache was cold.'
    """
    sides = tuple(read_sides(builds, names))
    totals = "; ".join(f"{side.name}: {duration(side.duration_s)}" for side in sides)
    if len(sides) == _TWO:
        sentence, notes = explain(*sides)
    else:
        ordered = sorted(sides, key=lambda side: side.duration_s)
        fastest, slowest = ordered[0], ordered[-1]
        lead = f"{line(slowest.name, 60)} took longest, {line(fastest.name, 60)} least: "
        sentence, notes = explain(fastest, slowest, lead)
    notes = [f"{totals}.", *notes]
    return Comparison(tuple(side.name for side in sides), sentence, tuple(notes), sides)


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
