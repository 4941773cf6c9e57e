"""DataFrames of a build's phases that show themselves as people read them.

They are ordinary DataFrames with the same columns and types: only how they are displayed differs.
What is computed from one, a copy or a part of it, is a plain ``pandas.DataFrame`` and looks like
one; so does ``pandas.DataFrame(build.timings)``. In a pickle they are plain as well: a file of
theirs needs nothing of this package.

This module imports pandas; :mod:`trt_widget.timings` makes the tables and imports it late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from trt_widget._table import Row, Table, pick
from trt_widget._text import duration

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SpansTable", "TimingsTable"]

#: Rows that are displayed; the frame has all of them.
MAX_ROWS: Final = 60


class _Shown(pd.DataFrame):
    """A DataFrame with a display of its own."""

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def _table(self) -> Table:
        raise NotImplementedError

    def _own_display(self) -> Table | None:
        """Give the table; None where the frame was changed into something else in its place."""
        try:
            return self._table()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            return None

    def _repr_html_(self) -> str | None:
        table = self._own_display() if pd.get_option("display.notebook_repr_html") else None
        if table is None:
            html: str | None = super()._repr_html_()  # type: ignore[misc]  # not in the stubs
            return html
        return table.to_html()

    def __repr__(self) -> str:
        table = self._own_display()
        return super().__repr__() if table is None else table.to_text()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The older protocol, because the newer one insists on the class of what is pickled.
        return self.copy(deep=False).__reduce_ex__(1)

    def _count(self) -> str:
        rows = len(self)
        return f"{rows:,} phase{'' if rows == 1 else 's'}"

    def _so_far(self) -> str:
        return "" if self.attrs.get("complete", True) else " so far: the build has not ended"


class TimingsTable(_Shown):
    """A row per phase path, in tree order."""

    def _table(self) -> Table:
        depths, totals = self["depth"].tolist(), self["total_s"].tolist()
        chosen = pick(totals, _parents(depths), MAX_ROWS)
        columns = {name: self[name].tolist() for name in _TIMINGS}
        several = max(columns["count"], default=1) > 1
        rows = [
            Row(
                name=str(columns["phase"][at]),
                depth=int(depths[at]),
                cells=(
                    f"{columns['share'][at]:.1%}",
                    duration(totals[at]),
                    duration(columns["self_s"][at]),
                    f"{columns['count'][at]:,}",
                    *([duration(columns["max_s"][at])] if several else []),
                    f"{columns['steps'][at]:,} of {columns['num_steps'][at]:,}",
                ),
                path=str(columns["path"][at]),
                note=_status(columns["status"][at]),
                bar=(0.0, float(columns["share"][at])),
            )
            for at in chosen
        ]
        more = len(self) - len(rows)
        whole = sum(total for total, depth in zip(totals, depths, strict=True) if not depth)
        took = f", {duration(whole)} in all" if len(self) else ""
        longest = ("Longest",) if several else ()
        heads = ("Phase", "Share", "Time", "Itself", "Count", *longest, "Steps")
        rest = f"+{more:,} phases that took less time; the DataFrame has them all."
        return Table(
            f"{self._count()}{took}{self._so_far()}",
            heads,
            rows,
            bars="Of the whole",
            notes=(rest,) if more else (),
        )


class SpansTable(_Shown):
    """A row per phase instance, in start order."""

    def _table(self) -> Table:
        starts, lengths = self["start_s"].tolist(), self["duration_s"].tolist()
        chosen = pick(lengths, self["parent"].tolist(), MAX_ROWS)
        columns = {name: self[name].tolist() for name in _SPANS}
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        whole = max(ends, default=0.0) or 1.0
        rows = [
            Row(
                name=str(columns["phase"][at]),
                depth=int(columns["depth"][at]),
                cells=(
                    duration(starts[at]),
                    duration(lengths[at]),
                    duration(columns["self_s"][at]),
                    f"{columns['steps'][at]:,} of {columns['num_steps'][at]:,}",
                ),
                path=str(columns["path"][at]),
                note=_status(columns["status"][at]),
                bar=(starts[at] / whole, ends[at] / whole),
            )
            for at in chosen
        ]
        more = len(self) - len(rows)
        notes = [f"+{more:,} shorter ones; the DataFrame has them all."] if more else []
        notes += [self.attrs["note"]] if "note" in self.attrs else []
        return Table(
            f"{self._count()} one by one, in the order in which they started{self._so_far()}",
            ("Phase", "Start", "Duration", "Itself", "Steps"),
            rows,
            bars=f"From 0 to {duration(whole)}",
            notes=tuple(notes),
        )


_TIMINGS: Final = (
    *("phase", "path", "count", "self_s", "max_s"),
    *("share", "steps", "num_steps", "status"),
)
_SPANS: Final = ("phase", "path", "depth", "self_s", "steps", "num_steps", "status")


def _status(status: Any) -> str:
    return "" if status == "done" else str(status)


def _parents(depths: list[int]) -> list[int]:
    """Give the row above each, from depths in tree order."""
    parents, chain = [], list[int]()
    for row, depth in enumerate(depths):
        del chain[depth:]
        parents.append(chain[-1] if chain else -1)
        chain.append(row)
    return parents
