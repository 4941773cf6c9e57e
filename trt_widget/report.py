"""A build as one static page: what it came to, where the time went, what TensorRT warned of.

The page needs nothing but itself: no script, no file, no network. It is small whatever the build
was (:data:`MAX_PAGE`): narrow phases that follow each other are drawn as one, long tables and texts
are shortened and say so. Everything that comes from a model, a message or a path is escaped, and
what would control a terminal or turn a line's direction is replaced by a sign.

The timeline is an icicle: time from left to right, what a phase consists of below it. A phase that
was silent (open, and for more than a second without any callback of TensorRT) is hatched there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Final

from trt_widget.record import as_record
from trt_widget.trace import lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trt_widget.build import Build
    from trt_widget.errors import BuildError
    from trt_widget.record import Record

__all__ = ["as_text", "report_html"]

#: Bytes of the longest page.
MAX_PAGE: Final = 100_000
#: Seconds without a callback after which a phase counts as silent.
SILENT_S: Final = 1.0

_WIDTH: Final = 1000  # units of the timeline across
_ROW: Final = 20  # units of one level
_MAX_LEVELS: Final = 60
_MAX_SILENT: Final = 40
_MAX_NAME: Final = 80
#: Rows of the table, boxes of the timeline, messages, characters of a text: tried until it fits.
_SIZES: Final = (
    (60, 400, 40, 4_000),
    (40, 200, 20, 2_000),
    (30, 100, 10, 1_000),
    (20, 60, 6, 400),
    (10, 60, 2, 100),
)

_MARKS: Final = {"succeeded": "✓", "failed": "✗", "cancelled": "■", "ended": "?"}
_PLACES: Final = {
    "process": "a child process",
    "thread": "a thread",
    "attached": "the caller's own code",
}
_ENDINGS: Final = {
    "completed": "the builder returned an engine",
    "step": "stopped at a step",
    "before build": "before TensorRT's builder ran",
    "terminated": "the build process was terminated",
    "killed": "the build process was killed",
    "crashed": "the build process died",
    "error": "an error",
    "unknown": "not known",
}
_REASONS: Final = {
    "user": "it was cancelled",
    "deadline": "its time was up",
    "interrupt": "interrupted",
    "closed": "it was closed",
    "monitor": "another progress monitor asked for it",
}


def report_html(
    build: Build | Record, *, fragment: bool = False, saved_as: str | None = None
) -> str:
    """Give a build, ended or not, as static HTML of less than 100 kB.

    Parameters
    ----------
    build
        A build or a record of one.
    fragment
        Leave out what makes it a page of its own, to put it into another one.
    saved_as
        Hexadecimal digits that mark the report as what a notebook keeps of one build: its section
        gets the class ``trt-saved-`` and these digits.
    """
    if saved_as is not None and not re.fullmatch("[0-9a-f]{1,64}", saved_as):
        msg = f"saved_as must be hexadecimal digits, not {saved_as!a:.80}"
        raise ValueError(msg)
    record = as_record(build)
    spread = lanes(record)
    silent = _silences(record)
    html = ""
    for size in _SIZES:
        html = _page(record, spread, silent, size, fragment=fragment, saved_as=saved_as)
        if len(html.encode("utf-8")) < MAX_PAGE:
            break
    return html


def as_text(build: Build | Record) -> str:
    """Give the same as plain text, for terminals and for readers of a notebook without HTML."""
    record = as_record(build)
    rows, messages, characters = 40, 20, 2_000
    lines = [f"{_line(record.name)}: {record.status}"]
    facts = [(name, _line(value)) for name, value in _facts(record)[1:]]
    width = max((len(name) for name, _ in facts), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in facts]
    error = record.result.error if record.result is not None else None
    if error is not None:
        lines += ["", *_lines(_said(error), characters)]
    notes = [_line(note, 500) for note in _notes(record)[:messages]]
    lines += ["", *notes] if notes else []
    table, more = _table(record, rows)
    if table:
        names = [f"{'  ' * min(row.depth, 20)}{_line(row.name, 60)}" for row in table]
        width = max([*map(len, names), len("phase")])
        lines += [
            "",
            f"{'phase':<{width}}  {'count':>7}  {'time':>10}  {'itself':>10}  {'share':>6}  steps",
        ]
        lines += [
            f"{name:<{width}}  {row.count:>7,}  {_duration(row.total_s):>10}  "
            f"{_duration(row.self_s):>10}  {row.share:>6.1%}  {row.steps}"
            for name, row in zip(names, table, strict=True)
        ]
        lines += [f"(+{more:,} phases)"] if more else []
    silent = _silences(record)
    lines += [""] if silent else []
    lines += [
        f"Silent for {_duration(entry.end - entry.start)} in {_line(entry.name, 200)}, from "
        f"{_duration(entry.start)} on."
        for entry in silent
    ]
    shown, left = _messages(record, messages)
    if shown:
        lines += ["", "Warnings and errors of TensorRT:"]
        lines += [f"  [{severity}] {_line(text, 500)}" for severity, text in shown]
        lines += [f"  (+{left:,} more)"] if left else []
    return "\n".join(line.rstrip() for line in lines)


# ---- what is said -------------------------------------------------------------------------------


def _facts(record: Record) -> list[tuple[str, str]]:
    """Give the summary as names and values."""
    result = record.result
    facts = [("Status", f"{_MARKS.get(record.status, '…')} {record.status}")]
    if record.complete and result is not None:
        facts.append(("Duration", _duration(result.duration_s)))
        how = _ENDINGS.get(result.ended_by, result.ended_by)
        if result.reason:
            how += f" ({_REASONS.get(result.reason, result.reason)})"
        if result.stop_latency_s is not None and record.status == "cancelled":
            how += f", {_duration(result.stop_latency_s)} after the request"
        facts.append(("Ended by", how))
    else:
        facts.append(("So far", _duration(record.now_s)))
    facts += [
        ("Built in", _PLACES.get(record.executor, record.executor)),
        ("Package", f"{record.backend} {record.version}"),
    ]
    if result is not None:
        optional = [
            ("Device", result.device),
            ("Layers", None if result.layers is None else f"{result.layers:,}"),
            ("Engine", None if result.engine_bytes is None else _size(result.engine_bytes)),
            ("Saved as", None if result.output is None else str(result.output)),
            (
                "Peak memory",
                None if result.peak_memory_bytes is None else _size(result.peak_memory_bytes),
            ),
        ]
        facts += [(name, value) for name, value in optional if value is not None]
    started = record.entered_at.get("running")
    if started is not None:
        try:
            when = datetime.fromtimestamp(started, timezone.utc)
        except (ValueError, OverflowError, OSError):
            pass
        else:
            facts.append(("Started", when.strftime("%Y-%m-%d %H:%M:%S UTC")))
    return facts


def _notes(record: Record) -> list[str]:
    notes = list(record.notes)
    if record.spans_dropped:
        notes.append(
            f"{record.spans_dropped:,} further phases are in the table only, not in the timeline; "
            "silent times are not marked."
        )
    if record.log_dropped:
        notes.append(f"{record.log_dropped:,} messages of TensorRT were not kept.")
    return notes


def _said(error: BuildError) -> str:
    """Give cause, details, evidence and remedy; TensorRT's words are among the messages."""
    parts = [error.cause, error.details(), *error.evidence[:12], error.remedy]
    return "\n".join(part for part in parts if part)


def _messages(record: Record, most: int) -> tuple[list[tuple[str, str]], int]:
    """Give warnings and errors, errors and the newest first to be kept, and how many are left."""
    found = [(message.severity, message.message) for message in record.messages]
    error = record.result.error if record.result is not None else None
    if error is not None:
        known = {text for _, text in found}
        found += [("error", text) for text in error.messages if text not in known]
    order = sorted(range(len(found)), key=lambda index: (found[index][0] == "warning", -index))
    kept = sorted(order[:most])
    return [found[index] for index in kept], len(found) - len(kept)


@dataclass(frozen=True)
class _Row:
    """A line of the table."""

    name: str
    depth: int
    count: int
    total_s: float
    self_s: float
    share: float
    steps: str
    status: str


def _table(record: Record, most: int) -> tuple[list[_Row], int]:
    """Give the phases that took longest with everything above them, in tree order."""
    columns, depths = record.path_columns, record.depths()
    parents, totals = columns["parent"], columns["total_s"]
    kept: set[int] = set()
    for index in sorted(range(len(totals)), key=lambda row: (-totals[row], row)):
        chain: list[int] = []
        row = index
        while row >= 0 and row not in kept and len(chain) <= most:
            chain.append(row)
            row = parents[row]
        if len(kept) + len(chain) <= most:
            kept.update(chain)
    whole = sum(total for total, parent in zip(totals, parents, strict=True) if parent < 0)
    rows = [
        _Row(
            name=columns["name"][row],
            depth=depths[row],
            count=columns["count"][row],
            total_s=totals[row],
            self_s=columns["self_s"][row],
            share=totals[row] / whole if whole > 0 else 0.0,
            steps=f"{columns['steps'][row]:,} of {columns['num_steps'][row]:,}",
            status=columns["status"][row],
        )
        for row in sorted(kept)
    ]
    return rows, len(totals) - len(rows)


# ---- where the time went ------------------------------------------------------------------------


#: What happens at a moment, in the order in which it does at the same time.
_END, _START, _MOMENT = range(3)


@dataclass(frozen=True)
class _Silence:
    """A time without a callback, and the innermost phase that was open."""

    index: int
    name: str
    start: float
    end: float


def _silences(record: Record) -> list[_Silence]:
    """Give the longest times in which an open phase gave no sign, in order.

    A record knows when phases started and ended, and how many steps each completed, not when. So a
    time counts as silent where its steps, however they lay, leave more than :data:`SILENT_S`
    between two callbacks: a phase of n steps splits it into n + 1 parts at most. A phase that has
    others below it completes a step for each of them, which is no step of the time between.
    """
    if record.spans_dropped:
        return []  # what is not kept may have happened just then
    columns = record.span_columns
    children = [0] * len(columns["parent"])
    for parent in columns["parent"]:
        if parent >= 0:
            children[parent] += 1
    found: list[_Silence] = []
    for start, end, index in _stretches(record):
        steps = max(0, columns["steps"][index])
        if children[index]:
            steps = min(steps, max(1, steps - children[index]))
        if (end - start) / (steps + 1) > SILENT_S:
            name = record.path_columns["name"][columns["path"][index]]
            found.append(_Silence(index, name, start, end))
    found.sort(key=lambda entry: entry.start - entry.end)
    return sorted(found[:_MAX_SILENT], key=lambda entry: (entry.start, entry.index))


def _stretches(record: Record) -> Iterator[tuple[float, float, int]]:
    """Give the long times between two starts or ends, with each phase that was innermost then."""
    parents = record.span_columns["parent"]
    open_below = [0] * len(parents)
    innermost: dict[int, None] = {}
    last = 0.0
    for time, kind, key in _moments(record):
        if time - last > SILENT_S:
            for index in innermost:
                yield last, time, index
        last = time
        index = abs(key)
        parent = parents[index]
        if kind == _START:
            innermost[index] = None
            if parent >= 0:
                open_below[parent] += 1
                innermost.pop(parent, None)
        elif kind == _END:
            innermost.pop(index, None)
            if parent >= 0:
                open_below[parent] -= 1
                if not open_below[parent]:
                    innermost[parent] = None


def _moments(record: Record) -> list[tuple[float, int, int]]:
    """Give the starts and ends in order; at the same time inner phases end before outer ones."""
    columns = record.span_columns
    moments: list[tuple[float, int, int]] = []
    for index, start in enumerate(columns["start_s"]):
        ended = columns["end_s"][index]
        end = record.now_s if ended is None else ended
        if end > start:
            moments += [(start, _START, index), (end, _END, -index)]
        else:
            moments.append((start, _MOMENT, index))
    return sorted(moments)


@dataclass
class _Box:
    """One rectangle of the timeline: an instance, or several that are too narrow one by one."""

    row: int
    start: float
    end: float
    path: int
    status: str
    count: int = 1
    busy: float = 0.0
    mixed: bool = False


def _boxes(record: Record, rows: list[int], narrow: float) -> list[_Box]:
    """Give the boxes where nothing narrower than ``narrow`` units stands alone beside another."""
    columns, now, names = record.span_columns, record.now_s, record.path_columns["name"]
    scale = _WIDTH / now if now > 0 else 0.0
    pending: dict[int, _Box] = {}
    boxes: list[_Box] = []
    spans = zip(
        rows,
        columns["start_s"],
        columns["end_s"],
        columns["path"],
        columns["status"],
        strict=True,
    )
    for row, start_s, end_s, path, status in spans:
        if row < 0:
            continue
        start, end = start_s * scale, (now if end_s is None else end_s) * scale
        before = pending.get(row)
        if end - start >= narrow:
            pending.pop(row, None)
            boxes.append(_Box(row, start, end, path, status, busy=end - start))
        elif before is not None and start - before.end <= narrow:
            before.end = max(before.end, end)
            before.count += 1
            before.busy += end - start
            before.mixed |= names[path] != names[before.path]
            if status != "done":
                before.status = status
        else:
            pending[row] = _Box(row, start, end, path, status, busy=end - start)
            boxes.append(pending[row])
    return boxes


def _levels(record: Record, spread: list[int]) -> tuple[list[int], int]:
    """Give the row of every instance (-1: not drawn) and the number of rows."""
    depths = record.depths()
    places = [
        (lane, depths[path]) for lane, path in zip(spread, record.span_columns["path"], strict=True)
    ]
    used = sorted({place for place in places if place[0] >= 0})[:_MAX_LEVELS]
    row_of = {place: row for row, place in enumerate(used)}
    return [row_of.get(place, -1) for place in places], len(used)


def _timeline(record: Record, spread: list[int], silent: list[_Silence], most: int) -> str:
    """Draw the icicle as SVG."""
    rows, count = _levels(record, spread)
    narrow = 1.0
    boxes = _boxes(record, rows, narrow)
    while len(boxes) > max(most, count) and narrow < 2 * _WIDTH:
        narrow *= 2
        boxes = _boxes(record, rows, narrow)
    if not boxes:
        return ""
    names = record.path_columns["name"]
    key = hashlib.sha256(f"{record.name}\0{record.started_epoch}".encode("utf-8", "replace"))
    mark = f"trt-silent-{key.hexdigest()[:12]}"
    top = 18
    height = top + count * _ROW + 2
    words = escape(_line(_alternative(record, silent), 1_000))
    parts = [
        (
            f'<svg class="trt-time" role="img" viewBox="0 0 {_WIDTH} {height}" '
            f'aria-label="{words}" xmlns="http://www.w3.org/2000/svg">'
        ),
        f"<title>Timeline of {_html(record.name)}</title><desc>{words}</desc>",
        (
            f'<defs><pattern id="{mark}" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect class="trt-hatch" width="2.2" height="6" '
            'fill="#000" fill-opacity=".3"/></pattern></defs>'
        ),
        _axis(record.now_s, height),
    ]
    # Names last, over the hatching; a pointer finds the boxes below them.
    labels = []
    for box in boxes:
        drawn, label = _draw(box, names, top, record.now_s)
        parts.append(drawn)
        labels.append(label)
    scale = _WIDTH / record.now_s if record.now_s > 0 else 0.0
    for entry in silent:
        if rows[entry.index] < 0:
            continue
        text = f"{_line(entry.name, _MAX_NAME)}: silent for {_duration(entry.end - entry.start)}"
        parts.append(
            f'<rect x="{entry.start * scale:.1f}" y="{top + rows[entry.index] * _ROW}" '
            f'width="{max(1.0, (entry.end - entry.start) * scale):.1f}" height="{_ROW - 1}" '
            f'fill="url(#{mark})"><title>{escape(text)}</title></rect>'
        )
    parts += ['<g class="trt-names" pointer-events="none">', *labels, "</g></svg>"]
    return "".join(parts)


def _axis(now: float, height: int) -> str:
    """Draw the times above: four parts of the whole."""
    parts = []
    for part in range(5):
        x = part * _WIDTH / 4
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        parts.append(
            f'<path class="trt-grid" d="M{x:.0f} 14V{height}" stroke="#888" '
            'stroke-opacity=".35" fill="none"/>'
            f'<text class="trt-tick" x="{x:.0f}" y="11" font-size="11" fill="#888" '
            f'text-anchor="{anchor}">{_duration(now * part / 4)}</text>'
        )
    return "".join(parts)


#: Light tints after the palette of Okabe and Ito, which the colour-blind can tell apart.
_TINTS: Final = ("#9ecdef", "#f7cd8b", "#8fd6bd", "#f2e694", "#c3c2f0", "#eab9d3")
_DARK: Final = ("#1f5f8b", "#84540f", "#12694f", "#645c10", "#474c9c", "#7c3d60")
_LETTER: Final = 6.4  # units that a letter takes


def _draw(box: _Box, names: list[str], top: int, now: float) -> tuple[str, str]:
    """Draw one box, and its name where there is room."""
    extent = box.end - box.start
    width = max(1.5, extent)
    y = top + box.row * _ROW
    name = f"{box.count:,} phases" if box.mixed else _line(names[box.path], _MAX_NAME)
    seconds = now / _WIDTH
    title = f"{name}: {_duration(box.busy * seconds)}"
    if box.count > 1:
        times = "" if box.mixed else f"{box.count:,} times, "
        title = f"{name}: {times}{_duration(box.busy * seconds)} in all"
    if box.status != "done":
        title += f" ({box.status})"
    classes, fill = f"trt-c{box.path % len(_TINTS)}", _TINTS[box.path % len(_TINTS)]
    if box.mixed:
        classes, fill = "trt-cm", "#c9c9c9"
    edge = ""
    if box.status != "done":
        edge = ' stroke="#d32f2f" stroke-width="1.5" stroke-dasharray="4 2"'
        if box.status in {"running", "ended"}:
            edge = ' stroke="#1976d2" stroke-width="1.5"'
    # How much of a merged box was really spent in its phases.
    share = box.busy / extent if box.count > 1 and extent > 0 else 1.0
    faint = f' fill-opacity="{max(0.3, share):.2f}"' if share < 0.95 else ""  # noqa: PLR2004
    text = ""
    letters = int((width - 8) / _LETTER)
    if letters >= 3:  # noqa: PLR2004 - fewer say nothing
        text = (
            f'<text x="{box.start + 4:.1f}" y="{y + 14}" font-size="11" fill="#111">'
            f"{escape(_line(name, letters))}</text>"
        )
    return (
        f'<g class="{classes}"><title>{escape(title)}</title><rect x="{box.start:.1f}" y="{y}" '
        f'width="{width:.1f}" height="{_ROW - 1}" fill="{fill}"{faint}{edge}/></g>'
    ), text


def _alternative(record: Record, silent: list[_Silence]) -> str:
    """Say in words what the timeline shows."""
    rows, _ = _table(record, len(record.path_columns["name"]))
    slowest = sorted(rows, key=lambda row: -row.self_s)[:3]
    text = f"Timeline of the build, {_duration(record.now_s)} in all."
    if slowest:
        listed = ", ".join(f"{_line(row.name, 60)} {_duration(row.self_s)}" for row in slowest)
        text += f" Most of the time was spent in: {listed}."
    if silent:
        longest = max(silent, key=lambda entry: entry.end - entry.start)
        text += (
            f" Silent {len(silent)} times for more than a second, the longest "
            f"{_duration(longest.end - longest.start)} in {_line(longest.name, 60)}."
        )
    return text + " The table has the figures."


# ---- as a page ----------------------------------------------------------------------------------


def _page(
    record: Record,
    spread: list[int],
    silent: list[_Silence],
    size: tuple[int, int, int, int],
    *,
    fragment: bool,
    saved_as: str | None,
) -> str:
    most_rows, most_boxes, most_messages, characters = size
    name = _html(record.name, 300)
    facts = "".join(
        f"<div><dt>{title}</dt><dd>{_html(value, 300)}</dd></div>"
        for title, value in _facts(record)
    )
    status = record.status if record.status in _MARKS else "running"
    mark = f" trt-saved-{saved_as}" if saved_as is not None else ""
    parts = [
        f"<style>{_STYLE}</style>",
        f'<section class="trt-report trt-{status}{mark}"><h2><bdi>{name}</bdi></h2>',
        f'<dl class="trt-facts">{facts}</dl>',
    ]
    error = record.result.error if record.result is not None else None
    if error is not None:
        text = "\n".join(_lines(_said(error), characters))
        parts.append(f'<pre class="trt-error">{escape(text)}</pre>')
    parts += [f"<p>{_html(note, 500)}</p>" for note in _notes(record)[:most_messages]]
    timeline = _timeline(record, spread, silent, most_boxes)
    if timeline:
        parts += ["<h3>Where the time went</h3>", _scrolled("Timeline", timeline)]
        if silent:
            parts.append(
                '<p class="trt-small">Hatched: more than a second without a callback of '
                "TensorRT.</p>"
            )
    parts += [_html_table(record, most_rows), _html_messages(record, most_messages, characters)]
    parts.append("</section>")
    body = "".join(parts)
    if fragment:
        return body
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{name}: {record.status}</title>'
        f'<style>{_PAGE_STYLE}</style></head><body class="trt-page"><main>{body}</main></body>'
        "</html>\n"
    )


def _html_table(record: Record, most: int) -> str:
    rows, more = _table(record, most)
    if not rows:
        return ""
    lines = []
    for row in rows:
        indent = f"{0.6 + min(row.depth, 24) * 0.9:.1f}em"
        status = "" if row.status == "done" else f" ({row.status})"
        lines.append(
            f'<tr><th scope="row" style="padding-left:{indent}"><bdi>'
            f"{_html(row.name, _MAX_NAME)}</bdi>{status}</th><td>{row.count:,}</td>"
            f"<td>{_duration(row.total_s)}</td><td>{_duration(row.self_s)}</td>"
            f"<td>{row.share:.1%}</td><td>{row.steps}</td></tr>"
        )
    rest = f'<p class="trt-small">+{more:,} phases that took less time</p>' if more else ""
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("Phase", "Count", "Time", "Itself", "Share", "Steps")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return _scrolled("Table of phases", table) + rest


def _scrolled(label: str, html: str) -> str:
    """Put what needs some width into a box that scrolls, also by the keyboard."""
    return f'<div class="trt-wide" role="group" tabindex="0" aria-label="{label}">{html}</div>'


def _html_messages(record: Record, most: int, characters: int) -> str:
    shown, left = _messages(record, most)
    if not shown:
        return ""
    items = "".join(
        f"<li><b>{_html(severity, 40)}</b> {_html(text, min(characters, 1_000))}</li>"
        for severity, text in shown
    )
    rest = f'<p class="trt-small">+{left:,} more</p>' if left else ""
    return f"<h3>Warnings and errors of TensorRT</h3><ul>{items}</ul>{rest}"


def _tints(tints: Iterable[str], mixed: str, text: str, hatch: str, scope: str) -> str:
    rules = [f"{scope} .trt-c{n} rect{{fill:{tint}}}" for n, tint in enumerate(tints)]
    return "".join(
        [
            *rules,
            f"{scope} .trt-cm rect{{fill:{mixed}}}",
            f"{scope} .trt-names text{{fill:{text}}}",
            f"{scope} .trt-hatch{{fill:{hatch}}}",
        ]
    )


_OWN_LIGHT: Final = (
    "--trt-r-fg:#1f1f1f;--trt-r-dim:#5f5f5f;--trt-r-line:#dcdcdc;--trt-r-good:#1b6e20;"
    "--trt-r-bad:#b3261e;--trt-r-box:#f5f5f5;--trt-r-bg:#fff"
)
_OWN_DARK: Final = (
    "--trt-r-fg:#e6e6e6;--trt-r-dim:#a6a6a6;--trt-r-line:#444;--trt-r-good:#7bc77f;"
    "--trt-r-bad:#ff8a80;--trt-r-box:#2a2a2a;--trt-r-bg:#1b1b1b"
)


def _theme(scope: str, *, dark: bool) -> str:
    """Give the rules of a theme; ``scope`` says where it is asked for."""
    tints = (
        _tints(_DARK, "#5a5a5a", "#fff", "#fff", f"{scope} .trt-time")
        if dark
        else _tints(_TINTS, "#c9c9c9", "#111", "#000", f"{scope} .trt-time")
    )
    return f"{scope}{{{_OWN_DARK if dark else _OWN_LIGHT}}}{tints}"


#: The system's choice, and over it JupyterLab's and VS Code's, which may be another one.
_STYLE: Final = "".join(
    [
        _theme(".trt-report", dark=False),
        f"@media (prefers-color-scheme:dark){{{_theme('.trt-report', dark=True)}}}",
        *(
            _theme(f"{place} .trt-report", dark=dark)
            for place, dark in (
                ("[data-jp-theme-light=true]", False),
                ("[data-jp-theme-light=false]", True),
                (".vscode-light", False),
                (".vscode-dark", True),
            )
        ),
        (
            ".trt-report{color:var(--trt-r-fg);background:var(--trt-r-bg);padding:12px;"
            "border-radius:6px;font:13px/1.45 system-ui,sans-serif;max-width:1000px;"
            "overflow-wrap:anywhere}"
            ".trt-report h2{font-size:1.35em;margin:0 0 .5em}"
            ".trt-report h3{font-size:1.05em;margin:1.2em 0 .4em}"
            ".trt-report p{margin:.4em 0}.trt-report .trt-small{color:var(--trt-r-dim)}"
            ".trt-report .trt-facts{display:grid;gap:.5em 1.5em;margin:0;"
            "grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}"
            ".trt-report .trt-facts dt{color:var(--trt-r-dim);font-size:.9em}"
            ".trt-report .trt-facts dd{margin:0;font-weight:600}"
            ".trt-succeeded .trt-facts div:first-child dd{color:var(--trt-r-good)}"
            ".trt-failed .trt-facts div:first-child dd{color:var(--trt-r-bad)}"
            ".trt-report pre{white-space:pre-wrap;background:var(--trt-r-box);color:inherit;"
            "border-left:3px solid var(--trt-r-bad);padding:.6em .8em;margin:.8em 0}"
            ".trt-report .trt-time{display:block;width:100%;min-width:640px;height:auto}"
            ".trt-report .trt-tick{fill:var(--trt-r-dim)}"
            ".trt-report .trt-wide{overflow-x:auto;margin-top:.6em}"
            ".trt-report table{border-collapse:collapse;width:100%;"
            "font-variant-numeric:tabular-nums}"
            ".trt-report th,.trt-report td{text-align:right;padding:.2em .6em;white-space:nowrap;"
            "border-bottom:1px solid var(--trt-r-line);font-weight:400;background:none}"
            ".trt-report thead th{color:var(--trt-r-dim)}"
            ".trt-report th:first-child{text-align:left;white-space:normal;min-width:13em}"
            ".trt-report ul{margin:.4em 0;padding-left:1.2em}"
        ),
    ]
)
_PAGE_STYLE: Final = (
    "body{margin:0;background:#fff}main{margin:0 auto;max-width:1024px;padding:12px}"
    "@media (prefers-color-scheme:dark){body{background:#1b1b1b}}"
)


# ---- as text ------------------------------------------------------------------------------------


def _duration(seconds: float) -> str:
    """Give a time in the unit that people would use."""
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "0 s" if seconds <= 0 else f"{seconds * 1e3:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"  # noqa: PLR2004
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - as disks are sold
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _line(text: str, most: int = 300) -> str:
    """Give a text as one line that controls nothing and is no longer than ``most``."""
    text = " ".join(text[: 4 * most + 100].split()) or "(empty)"
    text = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _lines(text: str, most: int) -> list[str]:
    """Give the lines of a text, each without what controls anything, ``most`` characters in all."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return [
        "".join(sign if sign.isprintable() else "\ufffd" for sign in line.expandtabs(4))
        for line in text.splitlines()
    ]


def _html(text: str, most: int = _MAX_NAME) -> str:
    return escape(_line(text, most))
