"""Times and strangers' texts as people read them."""

from __future__ import annotations

from typing import Any

__all__ = ["duration", "html", "line", "plain", "sendable"]


def duration(seconds: float) -> str:
    """Give a time in the unit that people would use."""
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "0 s" if seconds <= 0 else f"{max(1.0, seconds * 1e6):.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"  # noqa: PLR2004
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def line(text: str, most: int = 300) -> str:
    """Give a text as one line that controls nothing and is no longer than ``most``."""
    text = " ".join(text[: 4 * most + 100].split()) or "(empty)"
    text = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def plain(text: str) -> str:
    """Give a text whole, as one line; what is not printable is written out."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )


def html(text: str, most: int = 80) -> str:
    """Give the same, escaped for HTML."""
    from html import escape  # its table of all entities takes 2 ms to import

    return escape(line(text, most))


def sendable(value: Any, _widget: object = None) -> Any:
    """Give the state of a widget as Jupyter can send it: halves of surrogate pairs are replaced.

    An exception's message or a file's name may have them; sending raises ``UnicodeEncodeError``
    then, and the view would stand still. For the ``to_json`` of a trait.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {sendable(key): sendable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [
            sendable(entry) if isinstance(entry, (str, dict, list, tuple)) else entry
            for entry in value
        ]
    return value
