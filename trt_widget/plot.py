"""The timeline of a build as a picture to look at, to keep and to put into a document."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget._files import path_to_save
from trt_widget._text import duration, line
from trt_widget.errors import SaveError
from trt_widget.icicle import Icicle
from trt_widget.record import as_record, save_as
from trt_widget.report import picture_html, table

if TYPE_CHECKING:
    import os

    from trt_widget.build import Build
    from trt_widget.record import Record

__all__ = ["Picture", "plot"]

#: Boxes of a picture that stands alone.
MAX_BOXES: Final = 1_000
#: Lines of the text, and its columns for the time.
_MAX_LINES: Final = 40
_COLUMNS: Final = 40


def plot(build: Build | Record) -> Picture:
    """Draw the phases of a build as they are now, ended or not."""
    return Picture(as_record(build))


class Picture:
    """The phases of a build over time, as they were when it was drawn.

    A notebook shows it in place; :meth:`save` writes it as a file. It holds no script and refers to
    nothing outside.
    """

    def __init__(self, record: Record) -> None:
        self._record = record

    @cached_property
    def _icicle(self) -> Icicle:
        return Icicle(self._record)

    @cached_property
    def svg(self) -> str:
        """The picture as a whole SVG document, for light and for dark."""
        return self._icicle.image(MAX_BOXES)

    @cached_property
    def text(self) -> str:
        """The same for readers without pictures: the longest phases, with a bar for their time."""
        record = self._record
        rows, more = table(record, _MAX_LINES)
        first, last = _extents(record)
        lines = [f"{line(record.name)}: {record.status}, {duration(record.now_s)}"]
        names = [f"{'  ' * min(row.depth, 20)}{line(row.name, 60)}" for row in rows]
        width = max(map(len, names), default=0)
        for name, row in zip(names, rows, strict=True):
            bar = _bar(first[row.path], last[row.path], record.now_s)
            lines.append(f"{name:<{width}}  {duration(row.total_s):>10}  {bar}".rstrip())
        lines += [f"(+{more:,} phases)"] if more else []
        return "\n".join([*lines, self._icicle.words])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to ``path``, a file of the kind ``.svg``, whole or not at all; give the path.

        Raises
        ------
        SaveError
            It could not be written; what was there before is intact.
        """
        if Path(path_to_save(path)).suffix.lower() != ".svg":
            raise SaveError(
                f"The picture could not be saved to {str(path)!r}: it is SVG, and that is not the "
                "name of such a file.",
                "Give a path that ends in .svg; browsers and other programs turn it into a PNG.",
                filename=str(path),
            )
        return save_as("picture", f"{self.svg}\n".encode(), path)

    def __repr__(self) -> str:
        return f"Picture({line(self._record.name)!r}, {self._record.status})"

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": picture_html(self._record, self._icicle), "text/plain": self.text}


def _extents(record: Record) -> tuple[list[float], list[float]]:
    """Give when each path was first open, and last; never, where no instance was kept."""
    columns, count = record.span_columns, len(record.path_columns["name"])
    first, last = [record.now_s] * count, [0.0] * count
    rows = zip(columns["path"], columns["start_s"], columns["end_s"], strict=True)
    for path, start, end in rows:
        first[path] = min(first[path], start)
        last[path] = max(last[path], record.now_s if end is None else end)
    return first, last


def _bar(start: float, end: float, whole: float) -> str:
    """Draw a time as a part of the whole, in letters."""
    if end < start or whole <= 0:
        return ""
    left = min(int(start / whole * _COLUMNS), _COLUMNS - 1)
    length = max(1, round(end / whole * _COLUMNS) - left)
    return " " * left + "█" * length
