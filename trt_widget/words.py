"""What a build says about itself beside its phases: sentences, and what it printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trt_widget.errors import BuildCrashed

if TYPE_CHECKING:
    from trt_widget.build import Build, BuildResult
    from trt_widget.errors import BuildError

__all__ = ["closing", "describe", "ending", "failure", "printable", "where"]

#: Characters of one line of an explanation.
MAX_LINE = 2_000
#: Lines of evidence and messages of TensorRT that an explanation shows.
MAX_LINES = 12
#: Characters of what the build process printed, the newest kept.
MAX_PRINTED = 16_000

#: Where the builder runs, by executor.
_PLACES = {
    "process": "in a child process",
    "thread": "in a thread of this kernel",
    "dask": "on a Dask worker",
    "attached": "in your own code",
    "followed": "elsewhere",
}
#: How a cancelled build came to its end.
_ENDINGS = {
    "before build": "before TensorRT's builder ran",
    "step": "at the next step",
    "terminated": "build process terminated",
    "killed": "build process killed",
}
# The sequences that control a terminal: with parameters (colours), with a string (titles, links),
# and the short ones. One that has lost its end is cut to what belongs to it for certain.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
)
#: Other control characters, and the signs that stand for them.
_SIGNS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
#: A gigabyte, as disks and memory are sold.
_GB = 1e9


def where(build: Build) -> str | None:
    """Say where the builder runs; ``None`` while that is not decided."""
    if build.executor == "dask" and build.worker:
        return f"on the Dask worker {build.worker}"
    return _PLACES.get(build.executor)


def describe(build: Build) -> str | None:
    """Say in a sentence what a reader has to know beside the status, or ``None``."""
    result = build.result
    if build.executor == "followed" and build.status in {"pending", "ended"}:
        return _describe_followed(build)
    if build.status == "pending" and build.waiting_for:
        why = ": one build at a time per device" if build.waits_for_build else ""
        return f"Waits for {build.waiting_for}{why}."
    if result is None:
        return None
    if build.status == "failed" and result.error is not None:
        return result.error.cause
    if build.status == "cancelled":
        return {
            "deadline": f"Its time was up (timeout={build.options.timeout:g})."
            if build.options.timeout
            else "Its time was up.",
            "interrupt": "It was cancelled by Interrupt.",
            "closed": "It was cancelled because it was closed.",
            "monitor": "It was stopped by another progress monitor in the same config.",
        }.get(result.reason or "")
    no_engine = "Ended; the outcome is not known, since no engine was handed in."
    return no_engine if build.status == "ended" else None


def _describe_followed(build: Build) -> str | None:
    """Say what a build elsewhere waits for, or why its outcome is not known."""
    if build.result is not None:
        return build.result.notes[-1] if build.result.notes else None
    if not build.started:
        return None
    return f"Waits for {build.waiting_for or 'its stream to begin'}, where it is built."


def ending(result: BuildResult) -> str | None:
    """Say how a cancelled build came to its end, or ``None``."""
    return _ENDINGS.get(result.ended_by) if result.status == "cancelled" else None


def closing(result: BuildResult) -> str:
    """Say how a build came to its end and what it took, or an empty text."""
    parts = []
    if result.status == "cancelled" and result.stop_latency_s is not None:
        how = ending(result)
        parts.append(f"Stopped after {result.stop_latency_s:.2f} s" + (f" ({how})" if how else ""))
    if result.peak_memory_bytes is not None:
        whose = "" if result.executor in {"process", "followed", "dask"} else " of this kernel"
        parts.append(f"peak memory{whose} {_memory(result.peak_memory_bytes)}")
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]


def _memory(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size < _GB else f"{size / _GB:.2f} GB"


def failure(error: BuildError, logged: list[str]) -> dict[str, Any]:
    """Give the parts of an error, for views that fold some of them.

    Parameters
    ----------
    logged
        Messages that are shown elsewhere, and so are not repeated.

    Returns
    -------
    dict
        ``cause``, ``facts`` (list of name and value), ``details`` (text or empty), ``evidence``
        (list), ``remedy``, ``words`` (list: TensorRT's that are not among ``logged``), ``more``
        (number of words that are left out).
    """
    facts: list[tuple[str, str]] = []
    details = ""
    if isinstance(error, BuildCrashed):
        # Its details are the phase and the output, which have places of their own.
        if error.signal:
            facts.append(("Signal", error.signal))
        if error.exit_code is not None:
            facts.append(("Exit code", str(error.exit_code)))
        if error.phase:
            facts.append(("Phase", _clip(error.phase)))
    else:
        details = error.details()
    shown = set(logged) | set(error.evidence)
    words = [message for message in error.messages if message not in shown]
    return {
        "cause": error.cause,
        "facts": facts,
        "details": details,
        "evidence": [_clip(line) for line in error.evidence[:MAX_LINES]],
        "remedy": error.remedy,
        "words": [_clip(message) for message in words[:MAX_LINES]],
        "more": max(0, len(words) - MAX_LINES),
    }


def _clip(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def printable(text: str) -> str:
    """Give what was printed as plain lines, the newest ones.

    Without what controls a terminal: colours and titles are removed, a line that was overwritten
    (a progress bar) is what was written last, other control characters are shown as signs.
    """
    # What is removed is not counted, within reason.
    text = _ESCAPES.sub("", text[-4 * MAX_PRINTED :]).replace("\r\n", "\n")
    lines = [_last_written(line) for line in text.split("\n")]
    text = "\n".join(lines).strip("\n")
    if len(text) > MAX_PRINTED:
        text = text[-MAX_PRINTED:]
        text = "…\n" + (text.split("\n", 1)[1] if "\n" in text else text)
    return text.translate(_SIGNS)


def _last_written(line: str) -> str:
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part), "")
