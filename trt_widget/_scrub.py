"""Texts that are sent to strangers: without paths, and without the names of user and machine."""

from __future__ import annotations

import getpass
import re
import socket
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

__all__ = ["scrub"]

#: The folders of a path. They may have spaces in them: words between two paths go with those.
_FOLDERS: Final = r"(?:[^\n/\\'\"<>|:;,()]+[/\\])"
#: An absolute path of POSIX or Windows, to the last separator. What stands before it is no part of
#: a name, of a URL or of a relative path.
_PATH: Final = re.compile(rf"(?<![\w.:/\\<>…])(?:[A-Za-z]:)?[/\\]{_FOLDERS}+")
#: The same below a folder that was replaced already.
_BELOW: Final = re.compile(rf"…[/\\]{_FOLDERS}*")


@lru_cache(maxsize=1)
def _known() -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Give patterns of folders, whatever signs they have, and of names."""
    folders = {str(Path.cwd()), tempfile.gettempdir(), sys.prefix, sys.base_prefix, *sys.path}
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    try:
        folders.add(str(Path.home()))
        names |= {getpass.getuser(), Path.home().name}
    except (OSError, KeyError, ImportError, RuntimeError):  # a user without a name or a home
        pass
    return _any_of(folders, r"{}(?=[/\\\s'\":;,)]|$)"), _any_of(names, r"(?<!\w){}(?!\w)")


def _any_of(texts: set[str], form: str) -> re.Pattern[str] | None:
    longest_first = sorted(filter(lambda text: len(text) > 1, texts), key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(form.format(f"(?:{'|'.join(map(re.escape, longest_first))})"))


def scrub(value: Any) -> Any:
    """Give a text without them: of a path the last name stays. Dicts and lists are gone through."""
    if isinstance(value, dict):
        return {key: scrub(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(entry) for entry in value]
    if not isinstance(value, str):
        return value
    folders, names = _known()
    if folders is not None:
        value = folders.sub("…", value)
    value = _BELOW.sub("…/", _PATH.sub("…/", value))
    return names.sub("…", value) if names is not None else value
