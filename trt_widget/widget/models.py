"""The parts of the live view that have a comm: the card, its bars, and the way back for Cancel.

What the browser gets is data only; `static/build.js` draws it, lets clocks tick from start times,
and escapes by construction (text nodes, never HTML).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from trt_widget._text import sendable

__all__ = ["BuildCard", "CancelChannel", "PhaseBar"]

_STATIC = Path(__file__).parent / "static"


def _read(name: str) -> str:
    # Read once into a string: with a Path anywidget watches the file and keeps every instance alive
    # (anywidget#929).
    return (_STATIC / name).read_text(encoding="utf-8")


class PhaseBar(ipywidgets.IntProgress):
    """One row: an IntProgress that also knows which phase path it shows.

    ``info`` is drawn by the card beside the bar. Keys: ``label``, ``path`` (str), ``depth`` (int),
    ``count`` (instances), ``status`` (running, done, cancelled, failed, ended), ``step``, ``total``
    (of the latest instance; ``total`` below 1 is unknown), ``elapsed`` (seconds of the finished
    instances), ``since`` (start of the open instance, epoch seconds, or None), ``touched`` (time of
    the row's last callback, epoch seconds), ``folded`` (number of paths that this row stands for).
    """

    info = traitlets.Dict().tag(sync=True, to_json=sendable)


class CancelChannel(ipywidgets.Widget):
    """A comm that is only ever received on: the browser's requests come in on it.

    ipykernel 7.4 sends a comm's messages to the subshell under which the comm last published, so
    that a click on a widget which publishes from the main shell waits for the running cell. On this
    comm nothing is published, and the routing answers with the default it is given.
    """

    def open(self) -> None:
        """Open the comm, and free it from the routing of ipykernel 7.4."""
        super().open()
        comm = self.comm
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001 - see the class


class BuildCard(anywidget.AnyWidget):
    """The card: header, rows, messages.

    Attributes
    ----------
    header
        Dict; see ``static/build.js`` (`Header`) for the keys.
    rows
        The bars, in the order in which they are shown.
    cancel_channel
        Where the browser sends ``{"kind": "cancel"}``.
    timeline
        The :class:`~trt_widget.widget.timeline.Timeline` of the same build, which the card shows
        on request, or ``None``.
    messages
        Warnings and errors: list of ``{"time", "severity", "message"}``, the latest ones.
    printed
        What the build process printed, as plain lines, the newest ones.
    """

    _esm = _read("build.js")
    _css = _read("build.css")

    header = traitlets.Dict().tag(sync=True, to_json=sendable)
    rows = traitlets.List(traitlets.Instance(PhaseBar)).tag(
        sync=True, **ipywidgets.widget_serialization
    )
    cancel_channel = traitlets.Instance(CancelChannel, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )
    timeline = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )
    messages: Any = traitlets.List().tag(sync=True, to_json=sendable)
    printed = traitlets.Unicode().tag(sync=True, to_json=sendable)
