"""The timeline: the phases of a build as an icicle, live while it runs and whole once it has ended.

What the browser gets is data: a table of the paths' names, each once, and the spans as columns of
numbers in binary buffers. `static/timeline.js` lays them out and draws them.

While nobody looks nothing is sent. A view that is open says so every few seconds on a comm that is
only received on; the build's drain thread answers about twice a second with what is new: the spans
that were started, and those of the earlier ones that have changed. When the build has ended, all of
it is set as the trait ``data``, once, so that a reload, a second view and a saved notebook have it
without a drain thread.
"""

# ruff: noqa: SLF001 - the columns of PhaseTree are read as they are: copying them through its public
# tables would take time in the number of all spans, at every tick and under the build's lock

from __future__ import annotations

import math
import os
import sys
import threading
import time as clock
import weakref
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anywidget
import ipywidgets
import traitlets

from trt_widget._text import sendable
from trt_widget.build import FINAL
from trt_widget.errors import OptionError
from trt_widget.phases import STATUSES
from trt_widget.rows import MAX_LABEL, clipped
from trt_widget.widget.models import CancelChannel, _read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trt_widget.build import Build
    from trt_widget.events import Event
    from trt_widget.phases import PhaseNode, PhaseTree
    from trt_widget.record import Record

__all__ = ["COLUMNS", "Timeline"]

#: Columns of the spans, in the order in which their buffers are sent, and their types. ``node`` is
#: the row of the path in the table of names, ``parent`` the number of the span above or -1, ``end``
#: is negative while the span is open, ``total`` is the announced number of steps.
COLUMNS: Final = (
    ("node", "H"),
    ("parent", "i"),
    ("start", "d"),
    ("end", "d"),
    ("self", "f"),
    ("steps", "f"),
    ("total", "f"),
    ("status", "B"),
)
#: Columns of the times without a callback; ``node`` is the phase that was open.
SILENCES: Final = (("node", "H"), ("start", "d"), ("end", "d"))
#: Seconds between two messages to the views of a running build.
PERIOD_S: Final = 0.5
#: Seconds after which a message is sent even if nothing changed: a sign of life.
HEARTBEAT_S: Final = 2.0
#: A view that has said nothing for so many seconds is gone.
LEASE_S: Final = 60.0
#: The most that one message holds: spans (35 bytes each) and names.
MAX_SPANS_AT_ONCE: Final = 16_384
MAX_NAMES_AT_ONCE: Final = 1_000
#: Views that are told apart.
MAX_VIEWS: Final = 64
#: The whole is sent again after this many seconds, in case the server dropped the first message.
AGAIN_S: Final = 3.0

_Columns = tuple["array[Any]", ...]


class Timeline(anywidget.AnyWidget):
    """The phases of a build over time, to be zoomed and panned.

    Parameters
    ----------
    source
        A build (or a widget of one), whose timeline is live until it ends, or a record of one (or
        the path of a saved one).

    Raises
    ------
    OptionError
        It is none of those.
    RecordError
        The file is no record.

    Attributes
    ----------
    data
        What is known for good: everything once the build has ended, before that its name only.
        See ``static/timeline.js`` (`Data`) for the keys.
    channel
        Where the browser says that it looks: ``{"kind": "look", "view", "spans", "names"}`` with
        what it has already, and ``{"kind": "away", "view"}``.

    Notes
    -----
    A live timeline is told by the drain thread of its build, which is the only one that writes.

    Examples
    --------
    >>> Timeline(build)  # in a notebook, while it runs or afterwards
    >>> Timeline(load_record("resnet50.json"))
    """

    _esm = _read("timeline.js")
    _css = _read("timeline.css")

    data = traitlets.Dict().tag(sync=True, to_json=sendable)
    channel = traitlets.Instance(CancelChannel, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )

    def __init__(self, source: Build | Record | Any) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._build: Build | None = None
        self._unsubscribe: Callable[[], None] | None = None
        source = self._source = _readable(source)
        self._title = source.name
        self._requests: deque[Any] = deque(maxlen=4 * MAX_VIEWS)
        if not hasattr(source, "subscribe"):  # a record
            super().__init__(data=_from_record(source))
            return
        self._build = source
        self._feed = _Feed(source)
        channel = CancelChannel()
        requests = self._requests
        # On whatever thread the kernel takes comm messages with: it leaves a note, no more.
        channel.on_msg(lambda _channel, content, _buffers: requests.append(content))
        super().__init__(data={"live": True, "name": _text(source.name)}, channel=channel)
        self._unsubscribe = source.subscribe(_updater(weakref.ref(self)), every_tick=True)
        if source.status in FINAL:
            # Its drain thread may have left, and the other one finds it done.
            self._update()

    # ------------------------------------------------------------------ on the drain thread

    def _update(self) -> None:
        with self._lock:
            build = self._build
            if self._closed or build is None or not self.data.get("live"):
                return
            if build.status in FINAL:
                self.data = self._feed.whole()
                if not build.told:  # else there is no drain thread any more
                    build.call_later(AGAIN_S, _sender(weakref.ref(self)))
                return
            while self._requests:
                self._feed.take(self._requests.popleft())
            message = self._feed.message()
            if message is not None:
                self.send(*message)

    def _send_again(self) -> None:
        with self._lock:
            if not self._closed:
                self.send_state("data")

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close every comm; the picture stays as it is where it was seen."""
        with self._lock:
            if self.__dict__.get("_closed", True):
                return
            self._closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self.channel is not None:
            self.channel.close()
        layout = self.layout
        super().close()
        layout.close()
        # ipywidgets would leave None here; the text can still be shown.
        self.__dict__.pop("_repr_mimebundle_", None)

    def __del__(self) -> None:
        """Close the comms that are left; do nothing while Python shuts down."""
        if not sys.is_finalizing() and "_lock" in self.__dict__:
            self.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs) if self.comm is not None else None
        data, metadata = bundle or ({}, {})
        return {**data, "text/html": self._still(), "text/plain": repr(self)}, metadata

    def _still(self) -> str:
        """Give what stays where there is no widget: the picture, once nothing changes any more."""
        if self._build is not None and self._build.status not in FINAL:
            from trt_widget._text import html

            return (
                f"<div><b>{html(self._title)}</b>: the live timeline needs a running kernel and "
                "Jupyter's widgets.</div>"
            )
        from trt_widget.plot import plot

        return str(plot(self._source)._repr_mimebundle_()["text/html"])

    def __repr__(self) -> str:
        return f"Timeline({self.__dict__.get('_title', '')!r})"


def _readable(source: Any) -> Any:
    """Give the build or record that was meant."""
    source = getattr(source, "build", source)  # of a widget
    if all(hasattr(source, name) for name in ("tree", "subscribe")):
        return source
    from trt_widget.record import Record, load_record

    if isinstance(source, (str, os.PathLike)):
        return load_record(source)
    if isinstance(source, Record):
        return source
    raise OptionError(
        f"Timeline() was given a {type(source).__name__}, which is no build.",
        "Give a Build, a BuildWidget, a Record, or the path of a file that record() wrote.",
    )


def _updater(reference: weakref.ref[Timeline]) -> Callable[[list[Event]], None]:
    """Make the subscriber of a timeline, which does not keep it alive."""

    def update(_events: list[Event]) -> None:
        timeline = reference()
        if timeline is not None:
            timeline._update()

    return update


def _sender(reference: weakref.ref[Timeline]) -> Callable[[], None]:
    """Make what sends the whole once more."""

    def send_again() -> None:
        timeline = reference()
        if timeline is not None:
            timeline._send_again()

    return send_again


class _Feed:
    """What the views of a running build have been sent, and what they are to be sent next."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._views: dict[str, float] = {}
        self._spans = 0
        self._names = 0
        #: Spans that were open when they were sent.
        self._open: dict[int, None] = {}
        self._revision = -1
        self._silences: Any = None
        self._next = 0.0
        self._last = 0.0

    def take(self, request: Any) -> None:
        """Note what a view has said."""
        if not isinstance(request, dict) or not isinstance(request.get("view"), str):
            return
        view = request["view"][:64]
        if request.get("kind") == "away":
            self._views.pop(view, None)
        elif request.get("kind") == "look":
            known = view in self._views
            self._views[view] = clock.monotonic()
            if len(self._views) > MAX_VIEWS:
                del self._views[min(self._views, key=self._views.__getitem__)]
            spans, names = _count(request.get("spans")), _count(request.get("names"))
            if spans < self._spans or names < self._names or not known:
                # All of what it may have seen in another state comes again; to the other views it
                # says nothing new.
                self._spans, self._names = min(spans, self._spans), min(names, self._names)
                self._open = dict.fromkeys(index for index in self._open if index < self._spans)
                self._silences = None
                self._revision = -1
                self._next = 0.0

    def message(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Give the next message, or ``None``: nobody looks, it is too early, or all is said."""
        now = clock.monotonic()
        for view in [view for view, seen in self._views.items() if now - seen > LEASE_S]:
            del self._views[view]
        if not self._views or now < self._next:
            return None
        build = self._build
        tree = build.tree
        with build.lock:
            if self._spans > len(tree._span_node) or self._names > len(tree._nodes):
                # A stream that is followed began again.
                self._spans, self._names, self._open = 0, 0, {}
                self._revision = -1
            quiet = tree.revision == self._revision
            if quiet and now - self._last < HEARTBEAT_S:
                return None
            # Later than all that is over, so that a silence which ends now is one that goes on.
            at = max(build.now(), math.nextafter(tree.now, math.inf))
            names, parents = _names(tree._nodes[self._names : self._names + MAX_NAMES_AT_ONCE])
            changed, more = self._changed(tree)
            # What ended comes before what was started since; if it is too much, that has to wait.
            first, last = self._spans, self._spans
            if not more:
                last = min(len(tree._span_node), first + MAX_SPANS_AT_ONCE)
                if self._names + len(names) < len(tree._nodes):
                    last = _within(tree._span_node, first, last, self._names + len(names))
            columns = _slice(tree, first, last)
            updates = _pick(tree, changed)
            _fill_open(tree, at, columns, range(first, last))
            _fill_open(tree, at, updates, changed)
            silences, since = _silences(tree, at)
            revision, behind = tree.revision, more or last < len(tree._span_node)
            dropped, status = tree.spans_dropped, build.status
        self._next = now + PERIOD_S
        self._last = now
        self._revision = -1 if behind else revision
        fresh = silences != self._silences
        content = {
            "kind": "spans",
            "now": at,
            "silent_since": since,
            "status": status,
            "dropped": dropped,
            "names_first": self._names,
            "names": names,
            "first": first,
            "count": last - first,
            "changed": len(changed),
            "silences": fresh,
        }
        self._names += len(names)
        self._spans = last
        ends = columns[3]
        self._open.update((first + row, None) for row, end in enumerate(ends) if end < 0.0)
        for index, end in zip(changed, updates[3], strict=True):
            if end >= 0.0:
                self._open.pop(index, None)
        buffers = [*_bytes((array("i", parents), array("i", changed))), *_bytes(updates)]
        buffers += _bytes(columns)
        if fresh:
            buffers += _bytes(silences)
        self._silences = silences
        return content, buffers

    def _changed(self, tree: PhaseTree) -> tuple[list[int], bool]:
        """Give the sent spans that may have changed, ended ones first, and whether there are more.

        The number of steps of one that stays open is no more than news: too many wait for the end.
        """
        ends = tree._span_end
        ended = [index for index in self._open if ends[index] >= 0.0]
        if len(ended) > MAX_SPANS_AT_ONCE:
            return ended[:MAX_SPANS_AT_ONCE], True
        still = [index for index in self._open if ends[index] < 0.0]
        return ended + still[: MAX_SPANS_AT_ONCE - len(ended)], False

    def whole(self) -> dict[str, Any]:
        """Give the trait ``data`` of a build that has ended."""
        build = self._build
        tree = build.tree
        with build.lock:
            now = max(build.now(), tree.now)
            names, parents = _names(tree._nodes)
            columns = _slice(tree, 0, len(tree._span_node))
            _fill_open(tree, now, columns, range(len(tree._span_node)))
            silences, _ = _silences(tree, now, ongoing=True)
            return _data(
                name=build.name,
                status=build.status,
                now=now,
                dropped=tree.spans_dropped,
                names=names,
                parents=parents,
                columns=columns,
                silences=silences,
            )


# ---- columns ------------------------------------------------------------------------------------


def _data(
    *,
    name: str,
    status: str,
    now: float,
    dropped: int,
    names: list[str],
    parents: list[int],
    columns: _Columns,
    silences: _Columns,
) -> dict[str, Any]:
    return {
        "live": False,
        "name": _text(name),
        "status": status,
        "now": now,
        "dropped": dropped,
        "names": names,
        "parents": _bytes((array("i", parents),))[0],
        "columns": _bytes(columns),
        "silences": _bytes(silences),
    }


def _from_record(record: Record) -> dict[str, Any]:
    paths, spans = record.path_columns, record.span_columns
    codes = {status: code for code, status in enumerate(STATUSES)}
    columns = _typed(
        spans["path"],
        spans["parent"],
        spans["start_s"],
        [-1.0 if end is None else end for end in spans["end_s"]],
        spans["self_s"],
        spans["steps"],
        spans["num_steps"],
        [codes[status] for status in spans["status"]],
    )
    # Records of earlier versions have none.
    quiet = record.silence_columns or {}
    silences = _quiet(quiet.get("path", []), quiet.get("start_s", []), quiet.get("end_s", []))
    return _data(
        name=record.name,
        status=record.status,
        now=record.now_s,
        dropped=record.spans_dropped,
        names=[_text(name) for name in paths["name"]],
        parents=list(paths["parent"]),
        columns=columns,
        silences=silences,
    )


def _names(nodes: Iterable[PhaseNode]) -> tuple[list[str], list[int]]:
    """Give the names of paths, and the row of the path above each."""
    found = list(nodes)
    parents = [-1 if node.parent is None else node.parent.index for node in found]
    return [_text(node.name) for node in found], parents


def _typed(*values: Iterable[Any]) -> _Columns:
    return tuple(array(code, each) for (_, code), each in zip(COLUMNS, values, strict=True))


def _quiet(*values: Iterable[Any]) -> _Columns:
    return tuple(array(code, each) for (_, code), each in zip(SILENCES, values, strict=True))


def _slice(tree: PhaseTree, first: int, last: int) -> _Columns:
    """Give the columns of consecutive spans."""
    return _typed(*(column[first:last] for column in _sources(tree)))


def _pick(tree: PhaseTree, indices: Sequence[int]) -> _Columns:
    """Give the columns of some spans."""
    return _typed(*([column[index] for index in indices] for column in _sources(tree)))


def _sources(tree: PhaseTree) -> tuple[array[Any], ...]:
    """Give the columns of the tree in the order of :data:`COLUMNS`."""
    return (
        tree._span_node,
        tree._span_parent,
        tree._span_start,
        tree._span_end,
        tree._span_self,
        tree._span_steps,
        tree._span_num_steps,
        tree._span_status,
    )


def _fill_open(tree: PhaseTree, now: float, columns: _Columns, indices: Sequence[int]) -> None:
    """Put in what the columns of the tree get only when a span ends: its own time, its steps."""
    if not indices or not tree._open:
        return
    row_of: Any = indices if isinstance(indices, range) else {i: r for r, i in enumerate(indices)}
    pending = tree._pending_self(now)
    for entries in tree._open.values():
        for entry in entries:
            if entry.span in row_of:
                row = row_of[entry.span] if isinstance(row_of, dict) else entry.span - row_of.start
                columns[4][row] = max(0.0, entry.self_s + pending.get(entry, 0.0))
                columns[5][row] = float(entry.step)


def _silences(
    tree: PhaseTree, now: float, *, ongoing: bool = False
) -> tuple[_Columns, float | None]:
    """Give the silences that are over, and since when there was no callback if that is long ago."""
    rows = tree.silence_columns(now)
    since: float | None = None
    over: list[tuple[int, float, float]] = []
    for node, start, end in zip(rows["path"], rows["start_s"], rows["end_s"], strict=True):
        if end >= now and not ongoing:
            since = start if since is None else min(since, start)
        else:
            over.append((node, start, end))
    nodes, starts, ends = zip(*over, strict=True) if over else ((), (), ())
    return _quiet(nodes, starts, ends), since


def _within(nodes: array[int], first: int, last: int, known: int) -> int:
    """Give the end of the spans from ``first`` on whose paths are among the first ``known``."""
    for index in range(first, last):
        if nodes[index] >= known:
            return index
    return last


def _bytes(columns: Iterable[array[Any]]) -> list[bytes]:
    """Give columns as the browser reads them: little-endian."""
    found = []
    for column in columns:
        if sys.byteorder == "big":
            column.byteswap()
        found.append(column.tobytes())
    return found


def _text(text: str) -> str:
    """Give a name that is not too long, and that JSON can hold."""
    return clipped(text, MAX_LABEL).encode("utf-8", "replace").decode("utf-8")


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
