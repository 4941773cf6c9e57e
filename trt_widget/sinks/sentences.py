"""What a build says in a terminal or a log: lines of plain text, pure functions of its state.

Every name and message in them is a stranger's: control characters are replaced, and a line is a
line. Whoever calls these holds the build's lock.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from trt_widget._text import duration, line
from trt_widget._trtexec import spelled
from trt_widget.errors import StreamError
from trt_widget.phases import PATH_SEPARATOR
from trt_widget.words import closing, describe, printable, where

if TYPE_CHECKING:
    from trt_widget.build import Build
    from trt_widget.events import LogMessage
    from trt_widget.phases import PhaseNode

__all__ = [
    "activity",
    "by_words",
    "elapsed",
    "headline",
    "innermost",
    "messages",
    "outlook",
    "printed",
    "serious",
    "silence",
    "size",
    "summary",
]

#: Seconds without a callback after which steps say nothing any more, and after which its age is
#: told; those of the widget.
SILENT_S = 1.0
TELL_SILENCE_S = 5.0
#: Characters of a sentence of a stranger's.
MAX_SENTENCE = 400
_KILOBYTE, _MEGABYTE, _GIGABYTE = 1e3, 1e6, 1e9


def elapsed(seconds: float) -> str:
    """Give a time that is still growing: no more digits than can be read."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    return duration(seconds)


def by_words(text: str, width: int) -> list[str]:
    """Break a sentence between words, for terminals, which break them anywhere.

    What is longer than a line (a path) stays whole, so that it can be copied.
    """
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [
        text
    ]


def size(number: int) -> str:
    """Give a number of bytes as disks have them."""
    if number < _MEGABYTE:
        return f"{number / _KILOBYTE:.1f} kB"
    if number < _GIGABYTE:
        return f"{number / _MEGABYTE:.1f} MB"
    return f"{number / _GIGABYTE:.2f} GB"


def headline(build: Build, *, place: bool = True) -> str:
    """Say with what it is built, and where, if that is wanted, too."""
    here = where(build) if place else None
    backend = str(build.backend)
    return ", ".join(part for part in (line(backend) if backend else "", _here(here)) if part)


def outlook(build: Build) -> str:
    """Say how far it is, how long it takes yet, and by what that is known; may be empty."""
    if build.status != "running" or build.progress is None:
        return ""  # one that is cancelled gets no further
    if build.exceeded and build.expected_s is not None:
        return f"takes longer than the expected {duration(build.expected_s)}"
    parts = [f"{int(100 * build.progress)}%"]  # 100 % is the end
    if build.eta_s is not None:
        parts.append(f"about {_rough(build.eta_s)} left")
    text = ", ".join(parts)
    return f"{text} ({build.basis})" if build.basis else text


def _rough(seconds: float) -> str:
    """Give a time that is only an estimate."""
    return f"{max(1, round(seconds))} s" if seconds < 60 else duration(seconds)  # noqa: PLR2004 - a minute


def innermost(build: Build) -> PhaseNode | None:
    """Give the open phase that is deepest, of several the one that began last."""
    found: PhaseNode | None = None
    for node in build.tree.walk():
        if node.open_count and (
            found is None or (node.depth, node.started) > (found.depth, found.started)
        ):
            found = node
    return found


def silence(build: Build) -> float:
    """Give the seconds since TensorRT was last heard of; 0 where no phase is open."""
    if build.status not in {"running", "cancelling"} or not build.tree.open_phases:
        return 0.0
    return max(0.0, build.now() - build.tree.last_callback)


def activity(build: Build, *, path: bool = False) -> str:
    """Say what runs now, and since when nothing was heard of it.

    Parameters
    ----------
    path
        Name the phase with those above it and its steps, instead of alone.
    """
    status = build.status
    if status == "pending":
        return line(describe(build) or "Not started yet", MAX_SENTENCE)
    if status not in {"running", "cancelling"}:
        return ""
    node = innermost(build)
    if node is not None:
        name = PATH_SEPARATOR.join(node.path) if path else node.name
        if path and node.step_total > 0:
            name += f" {node.step}/{node.step_total}"
    elif build.tree.paths:
        roots = build.tree.roots.values()
        name = "Finishing" if all(root.status != "running" for root in roots) else ""
    else:
        name = "Reading the network; no phase yet"
    text = line(name, MAX_SENTENCE) if name else "Between two phases"
    quiet = silence(build)
    if quiet > TELL_SILENCE_S:
        why = "" if status == "cancelling" else " (normal: TensorRT is silent while it optimizes)"
        text += f" · no callback for {elapsed(quiet)}{why}"
    return text


def serious(build: Build) -> list[LogMessage]:
    """Give TensorRT's warnings and errors; that a cancelled build was cancelled is none of them."""
    found = build.messages
    if found and build.status in {"cancelling", "cancelled"}:
        from trt_widget.diagnosis import was_cancelled

        return [m for m in found if not was_cancelled([(m.severity, m.message)])]
    return found


def messages(build: Build) -> str:
    """Count TensorRT's warnings and errors and give the last; empty where there are none.

    Those of a build that failed are told with its error.
    """
    found = [] if build.status == "failed" else serious(build)
    if not found:
        return ""
    errors = sum(message.severity != "warning" for message in found)
    warnings = len(found) - errors
    counts = [
        f"{number} {what}{'' if number == 1 else 's'}"
        for number, what in ((errors, "error"), (warnings, "warning"))
        if number
    ]
    return f"{', '.join(counts)}: {line(found[-1].message, MAX_SENTENCE)}"


def summary(build: Build) -> list[str]:
    """Say how it ended, in a few lines; why it failed is told by its error."""
    result = build.result
    if result is None:
        return []
    told = {"ended": "ended; the outcome is not known"}.get(result.status, result.status)
    head = f"{line(build.name)}: {told} after {elapsed(result.duration_s)}"
    if isinstance(result.error, StreamError) and "running" not in build.entered_at:
        head = f"{line(build.name)}: no build was seen"
    lines = [head]
    if result.status == "succeeded" and result.engine_bytes is not None:
        saved = f", saved as {line(str(result.output))}" if result.output is not None else ""
        lines.append(f"Engine of {size(result.engine_bytes)}{saved}")
    elif result.status == "cancelled":
        detail = describe(build)
        if detail:
            lines.append(line(spelled(detail), MAX_SENTENCE))
    end = closing(result)
    if end:
        lines.append(_here(end))
    lines += [line(note, MAX_SENTENCE) for note in result.notes]
    return lines


def printed(text: str) -> list[str]:
    """Give what the build process printed as lines that control nothing, marked as such."""
    return [f"| {line(part, MAX_SENTENCE)}" for part in printable(text).split("\n") if part.strip()]


def _here(text: str | None) -> str:
    """Say "process" where the widget says "kernel"."""
    return re.sub(r"this kernel\b", "this process", text or "")
