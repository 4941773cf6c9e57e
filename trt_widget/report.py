"""A build as one static page: what it came to, where the time went, what TensorRT warned of.

The page needs nothing but itself: no script, no file, no network. It is small whatever the build
was (:data:`MAX_PAGE`): narrow phases that follow each other are drawn as one, long tables and texts
are shortened and say so. Everything that comes from a model, a message or a path is escaped, and
what would control a terminal or turn a line's direction is replaced by a sign.

A report is also what stays in a notebook. Where that is not trusted, JupyterLab takes styles and
inline SVG away (and leaves the words of the SVG). So the timeline is in such a report twice:
inline, hidden unless the style is there to show it, and as an image, which the style hides.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._table import pick
from trt_widget._text import duration, html, line
from trt_widget.icicle import Icicle, quiet_s, silences, slowest, theme
from trt_widget.record import as_record

if TYPE_CHECKING:
    from trt_widget.build import Build
    from trt_widget.errors import BuildError
    from trt_widget.record import Record

__all__ = ["Row", "as_text", "picture_html", "report_html", "table"]

#: Bytes of the longest page.
MAX_PAGE: Final = 100_000
#: Bytes of the longest report that a notebook keeps, and of its text, as they stand in its file:
#: together less than a page.
MAX_SAVED: Final = 75_000
MAX_TEXT: Final = 24_000
#: Bytes that a line of a text takes there beside its own.
_LINE: Final = 11


class _Size(NamedTuple):
    """What is shown of a build, at most."""

    rows: int  # of the table
    boxes: int  # of the timeline
    image_boxes: int  # of its image, 0 for no image
    letters: int  # of a name in them
    messages: int
    characters: int  # of the error
    most: int  # characters of any other text
    name: int  # letters of a phase in the table


#: Tried one after the other until it fits. The last one fits whatever is in the record.
_SIZES: Final = (
    _Size(60, 400, 150, 80, 40, 4_000, 1_000, 80),
    _Size(40, 200, 100, 80, 20, 2_000, 1_000, 80),
    _Size(30, 100, 60, 60, 10, 1_000, 1_000, 80),
    _Size(20, 60, 40, 40, 6, 400, 400, 80),
    _Size(10, 60, 20, 20, 2, 100, 100, 80),
    _Size(20, 60, 0, 20, 4, 200, 200, 80),
    _Size(10, 60, 0, 6, 2, 100, 80, 60),
)

#: The same of the text: rows, messages, silences, characters of the error and of any line.
_TEXT_SIZES: Final = (
    (40, 20, 20, 2_000, 500),
    (30, 10, 10, 1_000, 200),
    (10, 3, 3, 400, 80),
)

_MARKS: Final = {"succeeded": "✓", "failed": "✗", "cancelled": "■", "ended": "?"}
_PLACES: Final = {
    "process": "a child process",
    "thread": "a thread",
    "dask": "a child process of a Dask worker",
    "attached": "the caller's own code",
    "followed": "another process, whose stream was followed",
}
_ENDINGS: Final = {
    "completed": "the builder returned an engine",
    "cached": "the engine was built before",
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
        gets the class ``trt-saved-`` and these digits. In the notebook's file it takes, together
        with the text of :func:`as_text`, less than 100 kB.
    """
    if saved_as is not None and not re.fullmatch("[0-9a-f]{1,64}", saved_as):
        msg = f"saved_as must be hexadecimal digits, not {saved_as!a:.80}"
        raise ValueError(msg)
    record = as_record(build)
    icicle = Icicle(record)
    page = ""
    for size in _SIZES:
        page = _page(record, icicle, size, fragment=fragment, saved_as=saved_as)
        fits = len(page.encode("utf-8")) < MAX_PAGE
        if fits and (saved_as is None or _in_file(page) < MAX_SAVED):
            break
    return page


def _in_file(text: str) -> int:
    """Give the bytes that a text takes in a notebook's file: as a list of its lines."""
    written = json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")
    return len(written) + _LINE * (text.count("\n") + 1)


def as_text(build: Build | Record) -> str:
    """Give the same as plain text, for terminals and for readers of a notebook without HTML."""
    record = as_record(build)
    text = ""
    for size in _TEXT_SIZES:
        text = _text(record, *size)
        if _in_file(text) < MAX_TEXT:
            break
    return text


def _text(record: Record, rows: int, messages: int, quiet: int, characters: int, most: int) -> str:  # noqa: PLR0917 - the parts of a size, private
    lines = [f"{line(record.name, most)}: {record.status}"]
    facts = [(name, line(value, min(most, 300))) for name, value in _facts(record)[1:]]
    width = max((len(name) for name, _ in facts), default=0)
    lines += [f"  {name:<{width}}  {value}" for name, value in facts]
    error = record.result.error if record.result is not None else None
    if error is not None:
        lines += ["", *_lines(_said(error), characters)]
    slow = _slowest(record)
    lines += ["", slow] if slow else []
    notes = [line(note, most) for note in _notes(record)[:messages]]
    lines += ["", *notes] if notes else []
    shown_rows, more = table(record, rows)
    if shown_rows:
        names = [f"{'  ' * min(row.depth, 20)}{line(row.name, 60)}" for row in shown_rows]
        width = max([*map(len, names), len("phase")])
        lines += [
            "",
            f"{'phase':<{width}}  {'count':>7}  {'time':>10}  {'itself':>10}  {'share':>6}  steps",
        ]
        lines += [
            f"{name:<{width}}  {row.count:>7,}  {duration(row.total_s):>10}  "
            f"{duration(row.self_s):>10}  {row.share:>6.1%}  {row.steps}"
            for name, row in zip(names, shown_rows, strict=True)
        ]
        lines += [f"(+{more:,} phases)"] if more else []
    silent = silences(record, quiet)
    lines += [""] if silent else []
    lines += [
        f"No callback for {duration(entry.lasted)} in {line(entry.name, 80)}, from "
        f"{duration(entry.start)} on."
        for entry in silent
    ]
    rest = len(record.silent_spans()) - len(silent)
    lines += [f"(+{rest:,} shorter times without a callback)"] if rest else []
    shown, left = _messages(record, messages)
    if shown:
        lines += ["", "Warnings and errors of TensorRT:"]
        lines += [f"  [{line(severity, 40)}] {line(text, most)}" for severity, text in shown]
        lines += [f"  (+{left:,} more)"] if left else []
    return "\n".join(line.rstrip() for line in lines)


# ---- what is said -------------------------------------------------------------------------------


def _facts(record: Record) -> list[tuple[str, str]]:
    """Give the summary as names and values."""
    result = record.result
    facts = [("Status", f"{_MARKS.get(record.status, '…')} {record.status}")]
    if record.complete and result is not None:
        facts.append(("Duration", duration(result.duration_s)))
        how = _ENDINGS.get(result.ended_by, result.ended_by)
        if result.reason:
            how += f" ({_REASONS.get(result.reason, result.reason)})"
        if result.stop_latency_s is not None and record.status == "cancelled":
            how += f", {duration(result.stop_latency_s)} after the request"
        facts.append(("Ended by", how))
    else:
        facts.append(("So far", duration(record.now_s)))
    facts += _time_facts(record)
    facts += [
        ("Built in", _PLACES.get(record.executor, record.executor)),
        ("Package", f"{record.backend} {record.version}"),
    ]
    target = record.options.get("target")
    if isinstance(target, list) and target:
        mine = target == ["CURRENT"]
        facts.append(("Built for", "this GPU only" if mine else ", ".join(target)))
    if result is not None:
        optional = [
            ("Device", result.device),
            ("Layers", None if result.layers is None else f"{result.layers:,}"),
            ("Timing cache", _timing_cache(result.timing_cache)),
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


def _time_facts(record: Record) -> list[tuple[str, str]]:
    """Say how the time compares with what was known of it, and how much of it was silent."""
    facts: list[tuple[str, str]] = []
    known = record.estimate
    if known is not None:
        basis = f" ({known['basis']})" if known["basis"] else ""
        if record.complete:
            facts.append(("Expected", duration(known["expected_s"]) + basis))
        elif known["exceeded"]:
            facts.append(("Time left", f"longer than the expected {duration(known['expected_s'])}"))
        elif known["eta_s"] is not None:
            facts.append(("Time left", f"about {duration(known['eta_s'])}{basis}"))
    quiet = quiet_s(record)
    if quiet > 0 and record.now_s > 0:
        facts.append(("Silent", f"{duration(quiet)} ({quiet / record.now_s:.0%})"))
    return facts


def _timing_cache(known: dict[str, Any] | None) -> str | None:
    """Say what the timing cache did for the build."""
    if known is None or known["state"] == "none":
        return None
    before, after = known["known_before"], known["known_after"]
    if known["state"] == "cold":
        return "cold" if after is None else f"cold; {after:,} measurements kept"
    return "warm" if before is None else f"warm; {before:,} measurements known before"


def _slowest(record: Record) -> str:
    """Say in a sentence what took longest; empty where nothing did."""
    listed = [
        f"{line(name, 60)} {duration(self_s)} ({share:.0%})"
        for name, self_s, share in slowest(record)
    ]
    return f"Slowest phases: {', '.join(listed)}." if listed else ""


def _notes(record: Record) -> list[str]:
    notes = list(record.notes)
    if record.spans_dropped:
        notes.append(
            f"{record.spans_dropped:,} further phases are in the table only, not in the timeline."
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
class Row:
    """A line of the table; ``path`` is its row among the record's paths."""

    path: int
    name: str
    depth: int
    count: int
    total_s: float
    self_s: float
    share: float
    steps: str
    status: str


def table(record: Record, most: int) -> tuple[list[Row], int]:
    """Give the phases that took longest with everything above them, in tree order."""
    columns, depths = record.path_columns, record.depths()
    parents, totals = columns["parent"], columns["total_s"]
    kept = pick(totals, parents, most)
    whole = sum(total for total, parent in zip(totals, parents, strict=True) if parent < 0)
    rows = [
        Row(
            path=row,
            name=columns["name"][row],
            depth=depths[row],
            count=columns["count"][row],
            total_s=totals[row],
            self_s=columns["self_s"][row],
            share=totals[row] / whole if whole > 0 else 0.0,
            steps=f"{columns['steps'][row]:,} of {columns['num_steps'][row]:,}",
            status=columns["status"][row],
        )
        for row in kept
    ]
    return rows, len(totals) - len(rows)


# ---- as a page ----------------------------------------------------------------------------------


def _page(
    record: Record,
    icicle: Icicle,
    size: _Size,
    *,
    fragment: bool,
    saved_as: str | None,
) -> str:
    most = min(size.most, 300)
    name = html(record.name, most)
    facts = "".join(
        f"<div><dt>{title}</dt><dd>{html(value, most)}</dd></div>"
        for title, value in _facts(record)
    )
    status = record.status if record.status in _MARKS else "running"
    mark = f" trt-saved-{saved_as}" if saved_as is not None else ""
    parts = [
        f"<style>{_STYLE}</style>",
        f'<section class="trt-report trt-{status}{mark}">',
        f'<h2 class="trt-name"><bdi>{name}</bdi></h2>',
        f'<dl class="trt-facts">{facts}</dl>',
    ]
    error = record.result.error if record.result is not None else None
    if error is not None:
        text = "\n".join(_lines(_said(error), size.characters))
        parts.append(f'<pre class="trt-error">{escape(text)}</pre>')
    slow = _slowest(record)
    parts += [f"<p>{escape(slow)}</p>"] if slow else []
    notes = _notes(record)[: size.messages]
    parts += [f"<p>{html(note, min(size.most, 500))}</p>" for note in notes]
    drawn = _figure(icicle, size, saved=saved_as is not None)
    if drawn:
        parts += ['<h3 class="trt-part">Where the time went</h3>', drawn]
    parts += [_html_table(record, size), _html_messages(record, size)]
    parts.append("</section>")
    body = "".join(parts)
    if fragment:
        return body
    # A page of its own begins with a heading of the first level. In texts "<" is escaped.
    for level in (1, 2):
        body = re.sub(f"(</?h){level + 1}(?=[ >])", rf"\g<1>{level}", body)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{name}: {record.status}</title>'
        f'<style>{_PAGE_STYLE}</style></head><body class="trt-page"><main>{body}</main></body>'
        "</html>\n"
    )


def picture_html(record: Record, icicle: Icicle) -> str:
    """Give nothing but the timeline as a fragment of HTML, as small as a report."""
    page = ""
    title = f"{html(record.name)}</bdi>: {record.status}, {duration(record.now_s)}"
    for size in _SIZES:
        drawn = _figure(icicle, size, saved=True) or "<p>No phase has started.</p>"
        page = (
            f'<style>{_STYLE}</style><section class="trt-report" aria-label="Timeline">'
            f'<p class="trt-small"><bdi>{title}</p>{drawn}</section>'
        )
        if _in_file(page) < MAX_SAVED:
            break
    return page


def _figure(icicle: Icicle, size: _Size, *, saved: bool) -> str:
    """Give the timeline as it stands in a page.

    Where a notebook saves it there is something for readers without styles, too: an image, or
    words where there is no room for one.
    """
    drawn = icicle.svg(size.boxes, size.letters)
    if not drawn:
        return ""
    silent = (
        '<p class="trt-small">Hatched: more than a second without a callback of TensorRT.</p>'
        if icicle.silent
        else ""
    )
    if not saved:
        return _scrolled("Timeline", drawn) + silent
    inline = f'<div class="trt-inline" hidden="hidden">{_scrolled("Timeline", drawn)}</div>'
    words = html(icicle.words, 1_000)
    if not size.image_boxes:
        return f'{inline}<p class="trt-image">{words}</p>{silent}'
    image = icicle.image(size.image_boxes, size.letters, titles=False).encode("utf-8")
    source = f"data:image/svg+xml;base64,{base64.b64encode(image).decode('ascii')}"
    return f'{inline}<img class="trt-image" width="1000" alt="{words}" src="{source}">{silent}'


def _html_table(record: Record, size: _Size) -> str:
    rows, more = table(record, size.rows)
    if not rows:
        return ""
    lines = []
    for row in rows:
        indent = f"{0.6 + min(row.depth, 24) * 0.9:.1f}em"
        status = "" if row.status == "done" else f" ({row.status})"
        lines.append(
            f'<tr><th scope="row" style="text-align:left;padding-left:{indent}"><bdi>'
            f"{html(row.name, size.name)}</bdi>{status}</th><td>{row.count:,}</td>"
            f"<td>{duration(row.total_s)}</td><td>{duration(row.self_s)}</td>"
            f"<td>{row.share:.1%}</td><td>{row.steps}</td></tr>"
        )
    rest = f'<p class="trt-small">+{more:,} phases that took less time</p>' if more else ""
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("Phase", "Count", "Time", "Itself", "Share", "Steps")
    )
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return _scrolled("Table of phases", drawn) + rest


def _scrolled(label: str, content: str) -> str:
    """Put what needs some width into a box that scrolls, also by the keyboard."""
    return f'<div class="trt-wide" role="group" tabindex="0" aria-label="{label}">{content}</div>'


def _html_messages(record: Record, size: _Size) -> str:
    shown, left = _messages(record, size.messages)
    if not shown:
        return ""
    items = "".join(
        f"<li><b>{html(severity, 40)}</b> {html(text, size.most)}</li>" for severity, text in shown
    )
    rest = f'<p class="trt-small">+{left:,} more</p>' if left else ""
    title = '<h3 class="trt-part">Warnings and errors of TensorRT</h3>'
    return f"{title}<ul>{items}</ul>{rest}"


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
    own = _OWN_DARK if dark else _OWN_LIGHT
    return f"{scope}{{{own}}}{theme(f'{scope} .trt-time', dark=dark)}"


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
            ".trt-report .trt-name{font-size:1.35em;margin:0 0 .5em}"
            ".trt-report .trt-part{font-size:1.05em;margin:1.2em 0 .4em}"
            ".trt-report p{margin:.4em 0}.trt-report .trt-small{color:var(--trt-r-dim)}"
            ".trt-report .trt-facts{display:grid;gap:.5em 1.5em;margin:0;"
            "grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}"
            ".trt-report .trt-facts dt{color:var(--trt-r-dim);font-size:.9em;font-weight:400}"
            ".trt-report .trt-facts dd{font-weight:600}"
            # Over JupyterLab's own rules for what is in an output.
            ".trt-report .trt-facts dt,.trt-report .trt-facts dd{margin:0;padding:0;float:none;"
            "width:auto}"
            ".trt-succeeded .trt-facts div:first-child dd{color:var(--trt-r-good)}"
            ".trt-failed .trt-facts div:first-child dd{color:var(--trt-r-bad)}"
            ".trt-report pre.trt-error{white-space:pre-wrap;background:var(--trt-r-box);"
            "color:inherit;border-left:3px solid var(--trt-r-bad);padding:.6em .8em;margin:.8em 0}"
            ".trt-report .trt-time{display:block;width:100%;min-width:640px;height:auto}"
            ".trt-report .trt-inline{display:block!important}.trt-report .trt-image{display:none}"
            ".trt-report .trt-wide{overflow-x:auto;margin-top:.6em}"
            ".trt-report .trt-wide table{border-collapse:collapse;width:100%;margin:0;border:0;"
            "font-size:1em;table-layout:auto;font-variant-numeric:tabular-nums}"
            ".trt-report .trt-wide th,.trt-report .trt-wide td{text-align:right;padding:.2em .6em;"
            "white-space:nowrap;line-height:1.5;border-bottom:1px solid var(--trt-r-line);"
            "font-weight:400;background:none}"
            ".trt-report .trt-wide thead th{color:var(--trt-r-dim)}"
            ".trt-report .trt-wide th:first-child{text-align:left;white-space:normal;"
            "min-width:13em}"
            ".trt-report ul{margin:.4em 0;padding-left:1.2em}"
        ),
    ]
)
_PAGE_STYLE: Final = (
    "body{margin:0;background:#fff}main{margin:0 auto;max-width:1024px;padding:12px}"
    "@media (prefers-color-scheme:dark){body{background:#1b1b1b}}"
)


# ---- as text ------------------------------------------------------------------------------------


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - as disks are sold
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _lines(text: str, most: int) -> list[str]:
    """Give the lines of a text, each without what controls anything, ``most`` characters in all."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return [
        "".join(sign if sign.isprintable() else "\ufffd" for sign in line.expandtabs(4))
        for line in text.splitlines()
    ]
