"""A build as text and as static HTML: for terminals, logs, and notebooks without a live kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_widget.rows import MAX_LABEL, choose_rows, clipped
from trt_widget.words import MAX_LINES, closing, describe, failure, where

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.build import Build
    from trt_widget.errors import BuildError
    from trt_widget.phases import PhaseNode

__all__ = ["build_html", "build_text"]

_BAR = 20
#: Seconds without a callback after which a bar says nothing any more.
_SILENT_S = 1.0


def build_text(build: Build) -> str:
    """Draw the build as a tree of text bars."""
    with build.lock:
        now = build.now()
        place = where(build)
        head = f"{build.name}: {build.status}"
        if build.tree.paths:
            head += f", {now:.1f} s"
        if place and build.status != "pending":
            head += f", {place}"
        lines = [head]
        lines += [line for line in (_outlook(build),) if line]
        error = build.result.error if build.result and build.status == "failed" else None
        detail = str(error) if error else describe(build)
        lines += [line for line in (detail, *_remarks(build)) if line]
        rows, more = choose_rows(build.tree)
        labels = [f"{'  ' * row.node.depth}{row.node.name}" for row in rows]
        width = min(60, max(map(len, labels), default=0))
        for row, label in zip(rows, labels, strict=True):
            total = build.tree.total_s(row.node, now)
            times = f" x{row.node.count}" if row.node.count > 1 else ""
            folded = f" (+{row.folded} phases)" if row.folded else ""
            lines.append(
                f"{label[:60]:<{width}} |{_bar(row.node, now)}| {total:8.2f} s "
                f"{_steps(row.node)}{times}{folded}"
            )
        if more:
            lines.append(f"(+{more} phases)")
    return "\n".join(lines)


def _outlook(build: Build) -> str | None:
    """Say how far it is, while it runs and something is known."""
    if build.status != "running" or build.progress is None:
        return None
    from trt_widget._text import duration

    if build.exceeded and build.expected_s is not None:
        return f"takes longer than the expected {duration(build.expected_s)}"
    left = "" if build.eta_s is None else f", about {duration(build.eta_s)} left"
    basis = f" ({build.basis})" if build.basis else ""
    return f"{build.progress:.0%}{left}{basis}"


def _remarks(build: Build) -> list[str]:
    """Give the lines on how it ran and ended; the caller holds the lock."""
    result = build.result
    if result is None:
        return list(build.notes)
    return [closing(result), *result.notes]


def _bar(node: PhaseNode, now: float) -> str:
    if node.status == "done":
        return "#" * _BAR
    if node.status == "running" and now - node.last_event > _SILENT_S:
        return "~" * _BAR  # no callback for a while: the steps say nothing of the time
    filled = 0 if node.step_total < 1 else int(_BAR * min(node.step / node.step_total, 1))
    return ("#" * max(filled, 0)).ljust(_BAR, ".")


def _steps(node: PhaseNode) -> str:
    if node.status == "running" and node.step_total > 0:
        return f"{node.step}/{node.step_total}"
    return node.status


def _explained(error: BuildError, escape: Callable[[str], str]) -> str:
    """Give what is known about a failure; TensorRT's words are folded."""
    parts = [error.cause, error.details()]
    if error.evidence:
        parts += ["Evidence:", *(f"  {line}" for line in error.evidence[:MAX_LINES])]
    text = "\n".join(part for part in (*parts, error.remedy) if part)
    html = f'<div style="white-space:pre-wrap">{escape(text)}</div>'
    words = "\n".join(failure(error, [])["words"])
    if words:
        html += f"<details><summary>TensorRT said</summary><pre>{escape(words)}</pre></details>"
    return html


def build_html(build: Build) -> str:
    """Draw the build as a small table; every text in it is escaped."""
    from html import escape

    with build.lock:
        now = build.now()
        rows, more = choose_rows(build.tree)
        cells = "".join(
            f'<tr><td style="text-align:left;padding-left:{1 + row.node.depth}em">'
            f"{escape(clipped(row.node.name, MAX_LABEL))}</td>"
            f"<td>{row.node.count}</td><td>{build.tree.total_s(row.node, now):.2f} s</td>"
            f"<td>{escape(_steps(row.node))}</td></tr>"
            for row in rows
        )
        status, detail, place = build.status, describe(build), where(build)
        error = build.result.error if build.result and status == "failed" else None
        explained = _explained(error, escape) if error else escape(detail or "")
        remarks = [text for text in (explained, *map(escape, _remarks(build))) if text]
    seconds = f", {now:.1f} s" if cells else ""
    return (
        f"<div><b>{escape(build.name)}</b>: {escape(status)}{seconds} "
        f"({escape(str(build.backend))}{f', {place}' if place else ''})"
        + "".join(f"<div>{text}</div>" for text in remarks)
        + (
            "<table><thead><tr><th>phase</th><th>count</th><th>time</th><th>steps</th></tr></thead>"
            f"<tbody>{cells}</tbody></table>"
            if cells
            else ""
        )
        + (f"+{more} phases" if more else "")
        + "</div>"
    )
