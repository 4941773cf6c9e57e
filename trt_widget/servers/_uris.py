"""From the URI of a model to its path."""

from __future__ import annotations

import os
import sys
from pathlib import PureWindowsPath
from urllib.parse import unquote_to_bytes, urlsplit

__all__ = ["UriError", "path_of"]


class UriError(ValueError):
    """A URI that names no local file: the message says why."""


def path_of(uri: object, *, windows: bool = sys.platform == "win32") -> str:
    """Give the path that a ``file:`` URI names.

    Parameters
    ----------
    uri
        As editors write it: ``file:///home/me/my%20model.onnx``, ``file:///c%3A/models/m.onnx``.
    windows
        Whose paths they are.

    Raises
    ------
    UriError
        It is no URI, of another scheme, of another machine, no absolute path, or has a part that
        files do not have.
    """
    raw = _raw_path(uri)
    if not windows:
        if not raw.startswith(b"/"):
            raise UriError("its path is not absolute")
        return os.fsdecode(raw)
    path = PureWindowsPath(raw.decode("utf-8", "replace").lstrip("/"))
    if not path.drive.endswith(":") or not path.root:
        raise UriError("its path has no drive")
    return str(path)


def _raw_path(uri: object) -> bytes:
    if not isinstance(uri, str):
        raise UriError("it is no text")
    if not uri.isprintable() or " " in uri:
        raise UriError("it holds a space or control characters; they are written as %20 and so on")
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UriError(str(error)) from error
    if parts.scheme != "file":
        raise UriError("its scheme is not file:")
    if parts.netloc not in {"", "localhost"}:
        raise UriError(f"it names a file of another machine, {parts.netloc!r}")
    if parts.query or parts.fragment:
        raise UriError("it has a query or a fragment; ? and # in a name are written as %3F and %23")
    raw = unquote_to_bytes(parts.path)
    if b"\0" in raw:
        raise UriError("there are no files with a NUL in their name")
    return raw
