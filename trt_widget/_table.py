"""A table of phases as HTML and as text: indented by depth, with bars, whole for a screen reader.

Colours come from wherever the table is shown, so that it fits each theme; the bars' own blue can be
seen on light and on dark. No script and no file is needed. Names are a stranger's and escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trt_widget._text import html, line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Row", "Table", "pick"]

_MAX_DEPTH: Final = 20
_MAX_NAME: Final = 80
_MAX_PATH: Final = 300
_MAX_HEAD: Final = 40

_STYLE: Final = (
    ".trt-table{overflow-x:auto;max-width:100%;font:13px/1.45 system-ui,sans-serif}"
    ".trt-table table{border-collapse:collapse;margin:0;color:inherit;"
    "font-variant-numeric:tabular-nums}"
    ".trt-table caption{caption-side:top;text-align:left;padding:.2em .6em;font-weight:600;"
    "color:inherit}"
    ".trt-table th,.trt-table td{text-align:right;padding:.15em .6em;white-space:nowrap;"
    "border:0;border-bottom:1px solid rgba(128,128,128,.3);font-weight:400;background:none;"
    "color:inherit}"
    ".trt-table thead th{font-weight:600}.trt-table thead th.trt-track{text-align:left}"
    ".trt-table th:first-child{text-align:left;white-space:normal;min-width:14em;"
    "overflow-wrap:anywhere}"
    ".trt-table td.trt-track{min-width:90px}"
    ".trt-table td.trt-track span{display:block;position:relative;height:.8em;"
    "background:rgba(128,128,128,.18);forced-color-adjust:none}"
    ".trt-table .trt-track i{position:absolute;top:0;bottom:0;min-width:1px;background:#3a7fc1}"
    ".trt-table p{margin:.3em .6em}"
)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes
    ----------
    name, depth
        What stands first, and how far it is indented.
    cells
        One text for each column behind the first.
    path
        The whole path, shown on demand.
    note
        What is to be known of it beside its name, such as a status; empty for nothing.
    bar
        Start and end of a bar, each 0 to 1; None for no bar.
    """

    name: str
    depth: int
    cells: tuple[str, ...]
    path: str = ""
    note: str = ""
    bar: tuple[float, float] | None = None


@dataclass(frozen=True)
class Table:
    """A table of phases.

    Attributes
    ----------
    caption
        What it shows, in a sentence.
    heads
        Titles of the columns, the first one's included.
    rows
        The lines.
    bars
        Title of the column of bars, which is the second; empty for none. It repeats what figures
        say, so that a screen reader does without it.
    notes
        Sentences below the table.
    """

    caption: str
    heads: tuple[str, ...]
    rows: Sequence[Row]
    bars: str = ""
    notes: tuple[str, ...] = ()

    def to_html(self) -> str:
        """Give it as a fragment of HTML."""
        heads = [f'<th scope="col">{html(head, _MAX_HEAD)}</th>' for head in self.heads]
        if self.bars:
            heads.insert(
                1, f'<th scope="col" class="trt-track" aria-hidden="true">{html(self.bars)}</th>'
            )
        body = "".join(self._html_row(row) for row in self.rows)
        notes = "".join(f"<p>{html(note, 500)}</p>" for note in self.notes)
        return (
            f'<style>{_STYLE}</style><div class="trt-table" role="group" tabindex="0" '
            f'aria-label="{html(self.caption, 200)}"><table>'
            f"<caption>{html(self.caption, 500)}</caption><thead><tr>{''.join(heads)}</tr></thead>"
            f"<tbody>{body}</tbody></table>{notes}</div>"
        )

    def _html_row(self, row: Row) -> str:
        indent = 0.6 + min(row.depth, _MAX_DEPTH) * 1.1
        note = f" ({html(row.note)})" if row.note else ""
        title = f' title="{html(row.path, _MAX_PATH)}"' if row.path else ""
        cells = "".join(f"<td>{html(cell)}</td>" for cell in row.cells)
        if self.bars:
            bar = ""
            if row.bar is not None:
                start, end = (100.0 * min(1.0, max(0.0, edge)) for edge in row.bar)
                bar = f'<i style="left:{start:.2f}%;width:{max(0.0, end - start):.2f}%"></i>'
            cells = f'<td class="trt-track" aria-hidden="true"><span>{bar}</span></td>{cells}'
        return (
            f'<tr><th scope="row" style="padding-left:{indent:.1f}em"{title}>'
            f"<bdi>{html(row.name, _MAX_NAME)}</bdi>{note}</th>{cells}</tr>"
        )

    def to_text(self) -> str:
        """Give it as plain text."""
        names = [
            "  " * min(row.depth, _MAX_DEPTH)
            + line(row.name, 60)
            + (f" ({line(row.note, 30)})" if row.note else "")
            for row in self.rows
        ]
        heads = [line(head, _MAX_HEAD) for head in self.heads]
        columns = [
            [head, *(line(row.cells[at], 40) for row in self.rows)]
            for at, head in enumerate(heads[1:])
        ]
        widths = [max(map(len, column)) for column in columns]
        first = [heads[0], *names]
        width = max(map(len, first))
        lines = [line(self.caption, 500)]
        lines += [
            "  ".join(
                [
                    f"{name:<{width}}",
                    *(f"{column[at]:>{w}}" for column, w in zip(columns, widths, strict=True)),
                ]
            ).rstrip()
            for at, name in enumerate(first)
        ]
        lines += [line(note, 500) for note in self.notes]
        return "\n".join(lines)


def pick(weights: Sequence[float], parents: Sequence[int], most: int) -> list[int]:
    """Choose the heaviest rows together with everything above them, in their order.

    Parameters
    ----------
    parents
        The row above each, before it; -1 for none.
    most
        Rows to choose at most.
    """
    kept: set[int] = set()
    for index in sorted(range(len(weights)), key=lambda row: (-weights[row], row)):
        if len(kept) >= most:
            break
        chain: list[int] = []
        row = index
        while row >= 0 and row not in kept and len(chain) <= most:
            chain.append(row)
            row = parents[row]
        if len(kept) + len(chain) <= most:
            kept.update(chain)
    return sorted(kept)
