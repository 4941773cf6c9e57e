"""A queue of builds as text and as static HTML: for terminals, logs, and saved notebooks.

One line a build, at most :data:`MAX_LINES` of them: where there are more, those that did not
succeed are kept first. Names and errors are a stranger's and escaped.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Final

from trt_widget._text import duration, html, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trt_widget.build_queue import BuildQueue
    from trt_widget.queue_jobs import JobRow

__all__ = ["MARKS", "STATUSES", "in_notebook", "queue_html", "queue_text", "said", "size", "waits"]

#: Builds in a static table.
MAX_LINES: Final = 200
MAX_NAME: Final = 80
MAX_SAID: Final = 160
#: The states of a build, in the order in which they are counted and sorted.
STATUSES: Final = ("running", "cancelling", "pending", "failed", "cancelled", "succeeded")
MARKS: Final = {
    "pending": "○",
    "running": "●",
    "cancelling": "■",
    "succeeded": "✓",
    "cancelled": "■",
    "failed": "✕",
}
#: What is kept first where not everything is.
_URGENT: Final = {status: rank for rank, status in enumerate(("failed", "cancelled", "running"))}

_STYLE: Final = (
    ".trt-q-saved{overflow-x:auto;max-width:100%;font:13px/1.45 system-ui,sans-serif}"
    ".trt-q-saved table{border-collapse:collapse;margin:.3em 0;color:inherit;"
    "font-variant-numeric:tabular-nums}"
    ".trt-q-saved th,.trt-q-saved td{padding:.15em .6em;border:0;text-align:right;"
    "border-bottom:1px solid rgba(128,128,128,.3);font-weight:400;background:none;color:inherit;"
    "white-space:nowrap}"
    ".trt-q-saved thead th{font-weight:600}"
    ".trt-q-saved .trt-q-left{text-align:left;white-space:normal;overflow-wrap:anywhere}"
    ".trt-q-saved p{margin:.3em 0}"
)
_HEAD: Final = ("Build", "Status", "Time", "Engine", "Tries", "Where", "Note")
#: Columns of text, which stand left.
_LEFT: Final = frozenset({0, 1, 5, 6})


def queue_text(queue: BuildQueue) -> str:
    """Give a queue as plain text: a summary and a line per build."""
    rows = queue.rows()
    shown = _chosen(rows)
    cells = [_HEAD, *(_cells(row) for row in shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [said(queue, rows)]
    for row in cells if shown else ():
        texts = [
            f"{text:<{width}}" if column in _LEFT else f"{text:>{width}}"
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(texts).rstrip())
    if len(rows) > len(shown):
        lines.append(f"and {len(rows) - len(shown):,} more")
    return "\n".join(lines)


def queue_html(queue: BuildQueue, saved_as: str | None = None) -> str:
    """Give a queue as a table of static HTML.

    Parameters
    ----------
    saved_as
        Hexadecimal digits that mark the table as what a notebook keeps of one queue: its section
        gets the class ``trt-saved-`` and these digits.
    """
    rows = queue.rows()
    shown = _chosen(rows)
    mark = f" trt-saved-{saved_as}" if saved_as else ""
    parts = [
        f'<section class="trt-q-saved{mark}"><style>{_STYLE}</style>',
        f"<p>{html(said(queue, rows), 400)}</p>",
    ]
    if shown:
        head = "".join(
            f'<th scope="col"{_side(column)}>{text}</th>' for column, text in enumerate(_HEAD)
        )
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>")
        for row in shown:
            name, *others = _cells(row)
            cells = "".join(
                f"<td{_side(column)}>{html(text, MAX_SAID) if text else ''}</td>"
                for column, text in enumerate(others, 1)
            )
            parts.append(
                f'<tr><th scope="row"{_side(0)}><bdi>{html(name, MAX_NAME)}</bdi></th>{cells}</tr>'
            )
        parts.append("</tbody></table>")
    if len(rows) > len(shown):
        parts.append(f"<p>and {len(rows) - len(shown):,} more</p>")
    return "\n".join([*parts, "</section>"])


def said(queue: BuildQueue, rows: Sequence[JobRow]) -> str:
    """Say in a line how far a queue is."""
    counts = dict.fromkeys(STATUSES, 0)
    for row in rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    cached = sum(row.cached for row in rows)
    parts = [
        f"{count:,} {status}"
        + (f" ({cached:,} from the cache)" if cached and status == "succeeded" else "")
        for status, count in reversed(counts.items())
        if count
    ]
    name = line(queue.name or "Builds", MAX_NAME)
    outlook = _outlook(queue)
    return f"{name}: {', '.join(parts) or 'no builds'}{f' ({outlook})' if outlook else ''}"


def waits(queue: BuildQueue) -> str:
    """Say what a queue waits for, or nothing."""
    waiting = queue.waiting_for
    if not waiting:
        return ""
    blocker = queue.blocker
    if blocker is None:
        return f"waiting for {line(waiting, MAX_SAID)}"
    name = line(waiting, MAX_NAME)
    if blocker.name != queue.name:
        name = f"{name}, an earlier queue of this {'kernel' if in_notebook() else 'process'},"
    return f"waiting for {name} to finish"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules:  # a terminal need not load the widgets
        return False
    from trt_widget.widget.kernel import in_kernel

    return in_kernel()


def _outlook(queue: BuildQueue) -> str:
    """Say how far the whole is, while it runs."""
    if queue.status not in {"pending", "running", "cancelling"}:
        return ""
    parts = []
    if queue.status != "pending" and queue.progress is not None:
        parts.append(f"{math.floor(100 * queue.progress)} %")
    if queue.eta_s is not None:
        parts.append(f"about {duration(queue.eta_s)} left")
    parts.append(waits(queue))
    return ", ".join(filter(None, parts))


def size(count: int | None) -> str:
    """Give a size as people read it."""
    if count is None:
        return ""
    for unit, many in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= many:
            return f"{count / many:.1f} {unit}"
    return f"{count} B"


def _side(column: int) -> str:
    return ' class="trt-q-left"' if column in _LEFT else ""


def _cells(row: JobRow) -> tuple[str, ...]:
    """Give the texts of one line."""
    if row.error:
        note = line(row.error, MAX_SAID)
    elif row.cached:
        note = "from the cache"
    elif row.status == "cancelled" and row.reason:
        note = line(row.reason, MAX_SAID)
    else:
        note = line(row.phase, MAX_SAID) if row.phase else ""
    return (
        line(row.name, MAX_NAME),
        f"{MARKS.get(row.status, '?')} {row.status}",
        "" if row.elapsed_s is None else duration(row.elapsed_s),
        size(row.engine_bytes),
        str(row.attempts),
        line(row.where, MAX_NAME) if row.where else "",
        note,
    )


def _chosen(rows: Sequence[JobRow]) -> list[JobRow]:
    """Choose the lines of a static table, in the order of the builds."""
    if len(rows) <= MAX_LINES:
        return list(rows)
    urgent = sorted(rows, key=lambda row: (_URGENT.get(row.status, len(_URGENT)), row.index))
    return sorted(urgent[:MAX_LINES], key=lambda row: row.index)
