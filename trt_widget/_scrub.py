"""Texts that are sent to strangers: without paths, and without the names of user and machine.

What is a path cannot always be told from what is none, nor where it ends: rather too much is
replaced than too little. What may stay is said in :func:`scrub`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

__all__ = ["scrub"]

#: What stands for what was replaced.
_HIDDEN: Final = "…"
#: Fields of results and events whose values are words of the protocol.
_WORDS: Final = frozenset(
    {"backend", "ended_by", "event", "kind", "reason", "severity", "state", "status", "type"}
)

#: Where a path begins that is absolute, a URL, or begins with dots, "~", or what was replaced.
_BEGIN: Final = re.compile(
    r"(?:"
    r"[A-Za-z][A-Za-z0-9+.\-]*:[/\\]+(?=[^\s/\\])"  # file:///, https://, C:\, path:/
    r"|(?<!\w)(?:-[A-Za-z]+)?(?:~[\w.\-]*|\.\.?|…)?[/\\]+(?=[^\s/\\])"  # /, \\, ../, -L/
    r"|(?:~[\w.\-]*|\.\.|…)[/\\]+(?=[^\s/\\])"
    r")"
)
#: A relative path: two folders, a folder and a file with an end, or with separators of Windows.
_RELATIVE: Final = re.compile(
    r"[^\s/\\'\"<>()=:,;|]+"
    r"(?:[/\\]+[^\s/\\]+){2,}[/\\]?"
    r"|[^\s/\\'\"<>()=:,;|]+(?:\\+[^\s/\\'\"]+|/[^\s/\\'\"]*[^\W\d]\.[^\W\d]\w*)"
)
#: One folder and a name: a path where there are others beside it.
_PAIR: Final = re.compile(r"[^\s/\\'\"<>()=:,;|]+/[^\s/\\'\"]+")
#: Where what may be a path ends: at a sign that words follow, or nothing.
_CLAUSE: Final = re.compile(r"[:;,|(){}\[\]<>'\"`!?.]+(?=\s|$)|[(\[{<'\"`](?<=\s.)|\n|\Z")
#: The last name of a path that stays: of a library, a header or a source file.
_TELLING: Final = re.compile(
    r"[\w+.\-]*[\w+\-]\.(?:so(?:\.\d+)*|dll|dylib|pyd|hpp|h|cpp|cuh|cu|cc|py)(?![\w\-]|\.\w)",
    re.IGNORECASE,
)
#: The same within a path, followed by something else.
_BREAK: Final = re.compile(_TELLING.pattern + r"(?=[\s:;,|(){}\[\]<>'\"`])", re.IGNORECASE)
#: The rest of a file's name that has spaces, where its end tells that it is one.
_REST: Final = re.compile(
    r"(?:[^\n/\\'\":;,<>|()]*?\.(?:onnx|engine|plan|trt|pt|pth|ckpt|safetensors|bin|json|yaml|txt))\b",
    re.IGNORECASE,
)
_QUOTES: Final = "'\"`"


@lru_cache(maxsize=1)
def _known() -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Give patterns of folders, whatever signs they have, and of names."""
    folders = {sys.prefix, sys.base_prefix, *(entry for entry in sys.path if entry)}
    host = socket.gethostname()
    names = {host, host.partition(".")[0]}
    names |= {os.environ.get(name, "") for name in ("LOGNAME", "USER", "USERNAME", "SUDO_USER")}
    for find in (Path.cwd, Path.home, tempfile.gettempdir):
        with contextlib.suppress(OSError, RuntimeError):  # it was removed; a user without a home
            folders.add(str(find()))
    with contextlib.suppress(OSError, RuntimeError):
        names.add(Path.home().name)
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    return (
        _any_of(folders, r"{}(?=[/\\\s'\":;,)]|$)"),
        _any_of(names, r"(?<![^\W\d_]){}(?![^\W\d_])"),
    )


def _any_of(texts: set[str], form: str) -> re.Pattern[str] | None:
    longest_first = sorted(filter(lambda text: len(text) > 1, texts), key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(form.format(f"(?:{'|'.join(map(re.escape, longest_first))})"), re.IGNORECASE)


def scrub(value: Any) -> Any:
    """Give a text without paths and names; dicts and lists are gone through.

    Of a path the last name stays if it is that of a library, a header or a source file. What may
    stay of a path that has spaces and no quotes: what comes after a space behind its last
    separator, or behind a sign that ends a clause. A relative path of two names may stay, too.

    In a dict, the values of the fields that are words of the protocol stay as they are.
    """
    if isinstance(value, dict):
        return {
            key: entry if key in _WORDS and isinstance(entry, str) else scrub(entry)
            for key, entry in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [scrub(entry) for entry in value]
    if not isinstance(value, str):
        return value
    folders, names = _known()
    if folders is not None:
        value = folders.sub(_HIDDEN, value)
    if "/" in value or "\\" in value:
        value = _RELATIVE.sub(_last_name, _absolute(value))
        if _HIDDEN in value:
            value = _PAIR.sub(lambda m: m[0] if _HIDDEN in m[0] else _last_name(m), value)
    return names.sub(_HIDDEN, value) if names is not None else value


def _absolute(text: str) -> str:
    """Replace what is no relative path."""
    parts, at = [], 0
    while found := _BEGIN.search(text, at):
        begin = found.start()
        end = _end_of(text, begin, found.end())
        parts += [text[at:begin], _hidden(text[begin:end])]
        at = end
    return "".join([*parts, text[at:]])


def _end_of(text: str, begin: int, body: int) -> int:
    """Give where a path ends whose separators before the first name end at ``body``."""
    quote = text[begin - 1 : begin]
    if quote and quote in _QUOTES:
        closing = re.compile(rf"{quote}(?=[^\w\s/\\]*(?:\s|\Z))|\n").search(text, body)
        if closing is not None and closing[0] == quote:
            return closing.start()
    clause = _CLAUSE.search(text, body)
    end = len(text) if clause is None else clause.start()
    telling = _BREAK.search(text, body, end + 1)
    if telling is not None:
        end = telling.end()
    last = max(text.rfind("/", body, end), text.rfind("\\", body, end), body - 1) + 1
    name = re.compile(r"\S*").match(text, last, end)
    assert name is not None  # noqa: S101 - it may be empty
    rest = _REST.match(text, name.end(), end)
    return name.end() if rest is None else rest.end()


def _last_name(match: re.Match[str]) -> str:
    return _hidden(match[0])


def _hidden(path: str) -> str:
    """Give what stays of a path."""
    last = path[max(path.rfind("/"), path.rfind("\\")) + 1 :]
    telling = _TELLING.match(last)
    if telling is not None:
        return f"{_HIDDEN}/{last if telling.end() == len(last) else telling[0]}"
    # The signs behind it are no part of it.
    return _HIDDEN + last[len(last.rstrip(".,;:!?)]}>'\"|`")) :]
