"""The overview of many builds: a line each, the whole tree of the selected one, and Cancel.

Rows are sent for what is looked at only. Every view says on a comm that is only received on which
window of rows it sees; sorting and filtering happen here, over :meth:`BuildQueue.rows`. What is
answered are traits, each sent whole when it has changed: a message that the server drops is made
good by the next one, and a page that is loaded anew has everything at once. So the number of comms
and the size of a message do not depend on the number of builds.

All views share one order, filter and selection; each has its own window.

One thread writes to the widget: its own, which is there only while there is something to tell. The
queue's thread and whatever thread the kernel takes comm messages with leave notes and wake it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time as clock
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anywidget
import ipywidgets
import traitlets

from trt_widget._text import line, sendable
from trt_widget.build import FINAL
from trt_widget.queue_table import STATUSES, queue_html, queue_text, waits
from trt_widget.widget.build_widget import BuildWidget, _cells
from trt_widget.widget.models import CancelChannel, _read
from trt_widget.widget.saved import SavedDisplay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trt_widget.build import Build
    from trt_widget.build_queue import BuildQueue
    from trt_widget.queue_jobs import Job, JobRow

__all__ = ["Overview"]

#: Seconds between two messages while something changes and somebody looks.
PERIOD_S: Final = 0.5
#: Seconds between two answers to what a person does: scrolling, sorting, searching.
ANSWER_S: Final = 0.1
#: Seconds after which a message is sent even if nothing changed: a sign of life ...
HEARTBEAT_S: Final = 2.0
#: ... and where nobody looks, so that a page that comes back does not show what is long past.
IDLE_S: Final = 10.0
#: A view that has said nothing for so many seconds is gone.
LEASE_S: Final = 60.0
#: The final state is sent again after this many seconds, in case the server dropped the first.
AGAIN_S: Final = 3.0
#: Views that are told apart, rows that one of them sees, and rows in one message.
MAX_VIEWS: Final = 16
MAX_WINDOW: Final = 100
MAX_ROWS_AT_ONCE: Final = 400
#: What is sent to a view that has not said yet what it sees.
FIRST_ROWS: Final = 20
#: Requests that wait to be answered; more than that no person makes.
MAX_REQUESTS: Final = 256
#: Characters of a name, of other texts in a row, and of what stands in place of a card.
MAX_NAME: Final = 200
MAX_TEXT: Final = 300
MAX_DETAIL: Final = 8_000

#: By what rows can be sorted; each column with the place that it has in a row that is sent.
SORTS: Final = (
    "index",
    "name",
    "status",
    "progress",
    "eta_s",
    "elapsed_s",
    "since",
    "phase",
    "where",
    "attempts",
    "engine_bytes",
)
_RANKS: Final = {status: rank for rank, status in enumerate(STATUSES)}

_log = logging.getLogger("trt_widget")


class Order(NamedTuple):
    """Which rows there are, and in which order.

    Attributes
    ----------
    sort, descending
        One of :data:`SORTS`.
    statuses
        Those that are shown; none for all.
    text
        What the name, the place or the error contains, in whatever case.
    """

    sort: str = "index"
    descending: bool = False
    statuses: tuple[str, ...] = ()
    text: str = ""

    @classmethod
    def read(cls, given: Any) -> Order:
        """Take what a browser sent; what cannot be meant is left out."""
        given = given if isinstance(given, dict) else {}
        sort, statuses, text = given.get("sort"), given.get("statuses"), given.get("text")
        known = statuses if isinstance(statuses, list) else ()
        return cls(
            sort if isinstance(sort, str) and sort in SORTS else "index",
            given.get("descending") is True,
            tuple(status for status in STATUSES if status in known),
            _echo(text, MAX_NAME),
        )

    def apply(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Give the rows that are shown, in their order."""
        found: Iterable[JobRow] = rows
        if self.statuses:
            found = (row for row in found if row.status in self.statuses)
        if self.text:
            text = self.text.casefold()
            found = (
                row
                for row in found
                if text in row.name.casefold()
                or text in (row.where or "").casefold()
                or text in row.error.casefold()
            )
        column = SORTS.index(self.sort)
        # What has no value comes last, whichever way the others are sorted.
        with_value: list[JobRow] = []
        without: list[JobRow] = []
        for row in found:
            (without if row[column] in {None, ""} else with_value).append(row)
        # Equal ones stay in the order of the queue, whichever way.
        with_value.sort(key=self._value, reverse=self.descending)
        return with_value + without

    def _value(self, row: JobRow) -> Any:
        """Give what a row is sorted by."""
        value = row[SORTS.index(self.sort)]
        if self.sort == "status":
            return _RANKS.get(row.status, len(_RANKS))
        return value.casefold() if isinstance(value, str) else value


class _Window(NamedTuple):
    """The rows that a view sees, and when it said so."""

    seen: float
    first: int
    size: int


class Overview(anywidget.AnyWidget):
    """A table of the builds of a queue, live while they run.

    Parameters
    ----------
    queue
        Its name, status and rows are shown, and its builds are cancelled.

    Attributes
    ----------
    head
        The totals; see ``static/overview.js`` (`Head`) for the keys.
    table
        The rows that are looked at, with their order; see `Table` there.
    selected
        The selected build; see `Selected` there.
    card
        The selected build's card, a :class:`~trt_widget.BuildWidget`, or ``None``. There is one at
        most.
    channel
        Where the browser's requests come in: ``{"kind": "look", "view", "first", "count"}``,
        ``{"kind": "away", "view"}``, ``{"kind": "order", "ticket", "order"}``,
        ``{"kind": "select", "ticket", "index"}``, ``{"kind": "cancel", "index"}``,
        ``{"kind": "cancel_pending"}``, ``{"kind": "cancel_all"}`` and
        ``{"kind": "cancel_blocker"}``.
    """

    _esm = _read("overview.js")
    _css = _read("overview.css")

    head = traitlets.Dict().tag(sync=True, to_json=sendable)
    table = traitlets.Dict().tag(sync=True, to_json=sendable)
    selected = traitlets.Dict().tag(sync=True, to_json=sendable)
    card = traitlets.Instance(BuildWidget, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )
    channel = traitlets.Instance(CancelChannel, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )

    def __init__(self, queue: BuildQueue) -> None:
        self._lock = threading.RLock()
        self._closed = False
        self._replaced = False
        self._queue = queue
        self._names = tuple(queue)
        self._saved = SavedQueue(queue)
        self._order = Order()
        self._index: int | None = None
        self._tickets = {"order": "", "select": ""}
        #: What the card shows.
        self._build: Build | None = None
        #: What is said of an ended build that has no card.
        self._told_of: tuple[Any, str, str] | None = None
        #: By the view's own name; "" stands for one that was displayed and has not spoken yet.
        self._views: dict[str, _Window] = {}
        self._requests: deque[Any] = deque(maxlen=MAX_REQUESTS)
        #: Whether the queue has told of a change, whether that was not looked at yet, and whether a
        #: request was not answered yet.
        self._news = False
        self._stale = False
        self._unanswered = False
        #: When it was looked whether there is something to tell, and when there was.
        self._last = self._sent = -HEARTBEAT_S
        self._told = False
        self._again: float | None = None
        self._thread: threading.Thread | None = None
        #: Between whoever leaves a note and the thread that may be about to end.
        self._notes = threading.Lock()
        self._wake = threading.Event()
        self._faulty = False
        channel = CancelChannel()
        channel.on_msg(_taker(weakref.ref(self)))
        rows = queue.rows()
        super().__init__(
            head=self._head(rows), table=self._table(rows), selected=_nothing(), channel=channel
        )
        self._unsubscribe = queue.subscribe(_listener(weakref.ref(self)))
        _cells.enter(self)

    # ------------------------------------------------------------------ from any thread

    def _note(self, request: Any = None) -> None:
        """Leave a note for the thread, which is started if there is none."""
        with self._notes:
            if request is None:
                self._news = True
            else:
                self._requests.append(request)
            self._wake.set()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=_run,
                    args=(weakref.ref(self), self._wake),
                    name="trt_widget overview",
                    daemon=True,
                )
                self._thread.start()

    def repeat(self) -> None:
        """Put the static table into the running cell once more; see :class:`SavedDisplay`."""
        self._saved.repeat()

    # ------------------------------------------------------------------ on the widget's thread

    def _turn(self) -> float | None:
        """Do what is due; give the seconds until the next time, or None to end."""
        try:
            with self._lock:
                wait = None if self._closed else self._tell()
        except Exception:  # noqa: BLE001 - the queue goes on whatever is wrong with its picture
            if not self._faulty:
                self._faulty = True
                _log.exception("trt_widget: the overview of %r could not be updated", self._queue)
            wait = PERIOD_S if self._queue.status not in FINAL else None
        if wait is not None:
            return wait
        with self._notes:
            if not self._closed and (self._requests or self._news):
                return 0.0
            self._thread = None
            return None

    def _tell(self) -> float | None:
        final = self._queue.status in FINAL
        with self._notes:
            requests = list(self._requests)
            self._requests.clear()
            news, self._news = self._news, False
        for request in requests:
            try:
                self._take(request)
            except Exception:  # noqa: BLE001, PERF203 - the others are answered all the same
                _log.exception("trt_widget: %r could not do what was asked for", self)
        now = clock.monotonic()
        for view in [name for name, window in self._views.items() if now - window.seen > LEASE_S]:
            del self._views[view]
        self._stale = news or self._stale
        due = self._due(final=final)
        if due is not None and now >= due:
            self._write(now, final=final)
            due = self._due(final=final)
        return None if due is None else max(0.0, due - now)

    def _due(self, *, final: bool) -> float | None:
        """Say when something is to be told next."""
        some = bool(self._views)
        times = []
        if self._unanswered:
            times.append(self._last + ANSWER_S)
        if self._stale:
            times.append(self._last + (PERIOD_S if some else IDLE_S))
        if final and not self._told:
            times.append(self._last + ANSWER_S)
        if final and self._again is not None:
            times.append(self._again)
        if not final and (some or self._queue.status != "pending"):
            # Also of one that was not started: what is cancelled there, no thread tells of.
            times.append(self._last + (HEARTBEAT_S if some else IDLE_S))
        return min(times, default=None)

    def _write(self, now: float, *, final: bool) -> None:
        """Bring the traits up to date; what has not changed is not sent."""
        again = final and self._again is not None and now >= self._again
        beats = self._queue.status != "pending" and now - self._sent >= HEARTBEAT_S
        beat = beats or final or self._unanswered
        self._stale = self._unanswered = False
        self._last = now
        self._follow_selection()
        rows = self._queue.rows()
        head, table = self._head(rows), self._table(rows)
        same = {**head, "now": 0} == {**self.head, "now": 0} and table == self.table
        if not same or beat:
            self._sent = now
            with self.hold_sync():
                self.table = table
                self.head = head
        if again:
            self._again = None
            self.send_state(["head", "table", "selected", "card"])
        if final and not self._told:
            self._told = True
            self._again = now + AGAIN_S
            self._saved.finish()
        if final and self._replaced and self._again is None:
            self.close()

    def _head(self, rows: Sequence[JobRow]) -> dict[str, Any]:
        """Give the totals."""
        queue = self._queue
        counts = dict.fromkeys(STATUSES, 0)
        for row in rows:
            counts[row.status] = counts.get(row.status, 0) + 1
        return {
            "id": self._saved.mark,
            "name": line(queue.name, MAX_NAME) if queue.name else "",
            "status": queue.status,
            "counts": counts,
            "total": len(rows),
            "cached": sum(row.cached for row in rows),
            "progress": _rounded(queue.progress, 4),
            "eta_s": _rounded(queue.eta_s, 1),
            "basis": line(queue.basis, MAX_TEXT) if queue.basis else "",
            "waiting": waits(queue),
            "blocked": queue.blocker is not None,
            "replaced": self._replaced,
            "now": clock.time(),
        }

    def _table(self, rows: Sequence[JobRow]) -> dict[str, Any]:
        """Give the rows that are looked at, each behind its place in the order."""
        found = self._order.apply(rows)
        windows = self._views.values() or [_Window(0.0, 0, FIRST_ROWS)]
        places: dict[int, None] = {}
        for window in reversed(list(windows)):
            last = min(window.first + window.size, len(found))
            places.update(dict.fromkeys(range(min(window.first, last), last)))
        chosen = sorted(list(places)[:MAX_ROWS_AT_ONCE])
        return {
            "order": {**self._order._asdict(), "statuses": list(self._order.statuses)},
            "ticket": self._tickets["order"],
            "matched": len(found),
            "rows": [[place, *_sent(found[place])] for place in chosen],
        }

    # ------------------------------------------------------------------ what the browser asks for

    def _take(self, request: Any) -> None:
        kind = request.get("kind") if isinstance(request, dict) else None
        takes: dict[Any, Callable[[dict[str, Any]], None]] = {
            "shown": self._shown,
            "look": self._look,
            "away": self._leave,
            "order": self._sort,
            "select": self._select,
            "cancel": self._cancel,
            "cancel_pending": self._cancel_pending,
            "cancel_all": self._cancel_all,
            "cancel_blocker": self._cancel_blocker,
        }
        if isinstance(kind, str) and kind in takes:
            takes[kind](request)

    def _shown(self, _request: dict[str, Any]) -> None:
        self._views.setdefault("", _Window(clock.monotonic(), 0, FIRST_ROWS))
        self._unanswered = True

    def _leave(self, request: dict[str, Any]) -> None:
        view = request.get("view")
        if isinstance(view, str):
            self._views.pop(view[:64], None)

    def _sort(self, request: dict[str, Any]) -> None:
        self._tickets["order"] = _ticket(request)
        self._order = Order.read(request.get("order"))
        self._unanswered = True

    def _select(self, request: dict[str, Any]) -> None:
        self._tickets["select"] = _ticket(request)
        self._index = self._known(request)
        self._unanswered = True

    def _cancel(self, request: dict[str, Any]) -> None:
        index = self._known(request)
        if index is not None:
            self._queue.request_cancel(self._names[index])
            self._unanswered = True

    def _cancel_pending(self, _request: dict[str, Any]) -> None:
        self._queue.request_cancel(pending=True)
        self._unanswered = True

    def _cancel_all(self, _request: dict[str, Any]) -> None:
        self._queue.request_cancel()
        self._unanswered = True

    def _cancel_blocker(self, _request: dict[str, Any]) -> None:
        self._queue.cancel_blocker()
        self._unanswered = True

    def _look(self, request: dict[str, Any]) -> None:
        view = request.get("view")
        if not isinstance(view, str):
            return
        self._views.pop("", None)
        view = view[:64]
        before = self._views.pop(view, None)
        first = min(_count(request.get("first")), len(self._names))
        window = _Window(clock.monotonic(), first, min(_count(request.get("count")), MAX_WINDOW))
        # The latest comes last: where there are too many, the others are forgotten first.
        self._views[view] = window
        if len(self._views) > MAX_VIEWS:
            del self._views[min(self._views, key=lambda name: self._views[name].seen)]
        if before is None or before[1:] != window[1:]:
            self._unanswered = True

    def _known(self, request: dict[str, Any]) -> int | None:
        """Give the number of a job that a request names, if there is such a job."""
        index = request.get("index")
        return index if type(index) is int and 0 <= index < len(self._names) else None

    # ------------------------------------------------------------------ the selected build

    def _follow_selection(self) -> None:
        """Show the card of the selected build, or what there is in place of it."""
        job = None if self._index is None else self._queue[self._names[self._index]]
        build = None if job is None else job.build
        if job is not None and job.result is not None and job.index == self.selected["index"]:
            # What is looked at stays, though the queue has put the build away.
            build = build or self._build
        selected = {**self._described(job, build), "ticket": self._tickets["select"]}
        if build is self._build and selected == self.selected:
            return
        before = self.card
        with self.hold_sync():
            if build is not self._build:
                self.card = None if build is None else BuildWidget._of(build)  # noqa: SLF001 - not for a cell
                self._build = build
            self.selected = selected
        if before is not None and before is not self.card:
            before.close()

    def _described(self, job: Job | None, build: Build | None) -> dict[str, Any]:
        """Say what is selected, and what there is to say of it without a card."""
        if job is None:
            return _nothing()
        described = {
            "index": job.index,
            "name": line(job.name, MAX_NAME),
            "status": job.status,
            "kind": "card",
            "text": "",
        }
        if build is None and job.result is None:
            waiting = job.waiting_for
            described["kind"] = "waiting"
            described["text"] = (
                f"It waits for {line(waiting, MAX_NAME) if waiting else 'its turn'}."
            )
        elif build is None:
            # It does not change any more, and reading the record takes a moment.
            if self._told_of is None or self._told_of[0] is not job.result:
                self._told_of = (job.result, *_told_of(job))
            _, described["kind"], described["text"] = self._told_of
        return described

    # ------------------------------------------------------------------ the end

    def _replace(self) -> None:
        """Make room for a widget made by a new run of the same cell."""
        self._replaced = True
        if self._queue.status in FINAL and self._thread is None:
            self.close()
        else:
            # One that still runs may be shown elsewhere: it is closed at its end.
            self._note()

    def close(self) -> None:
        """Close every comm, the card's too; the queue and its builds go on."""
        with self.__dict__.get("_lock") or threading.RLock():
            if self.__dict__.get("_closed", True):
                return
            self._closed = True
        self._wake.set()
        self._unsubscribe()
        if self.card is not None:
            self.card.close()
        if self.channel is not None:
            self.channel.close()
        layout = self.layout
        super().close()
        layout.close()
        _cells.leave(self)
        # ipywidgets would leave None here; text and HTML can still be shown.
        self.__dict__.pop("_repr_mimebundle_", None)

    def __del__(self) -> None:
        """Close the comms that are left; do nothing while Python shuts down."""
        if not sys.is_finalizing() and "_lock" in self.__dict__:
            self.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs) if self.comm is not None else None
        data, metadata = bundle or ({}, {})
        if data:
            self._note({"kind": "shown"})
        beside = self._saved.show()
        return {
            **data,
            "text/plain": repr(self._queue),
            "text/html": self._saved.pointer if beside else queue_html(self._queue),
        }, metadata

    def __repr__(self) -> str:
        return f"Overview({self.__dict__.get('_queue')!r})"


class SavedQueue(SavedDisplay):
    """The second display of a queue."""

    noun = "the builds"

    def __init__(self, queue: BuildQueue) -> None:
        super().__init__()
        self._queue = queue

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name or "Builds"

    @property
    def ended(self) -> bool:
        """Whether the queue has ended."""
        return self._queue.status in FINAL

    def static(self) -> dict[str, Any]:
        """Give a line for each build."""
        return {
            "text/html": queue_html(self._queue, saved_as=self.mark),
            "text/plain": queue_text(self._queue),
        }


# ---- the thread ----------------------------------------------------------------------------------


def _run(reference: weakref.ref[Overview], wake: threading.Event) -> None:
    """Bring an overview up to date until there is nothing more to tell; does not keep it alive."""
    while True:
        overview = reference()
        if overview is None:
            return
        wake.clear()
        wait = overview._turn()  # noqa: SLF001 - the same module
        del overview
        if wait is None:
            return
        wake.wait(wait)


def _listener(reference: weakref.ref[Overview]) -> Callable[[frozenset[str]], None]:
    """Make the subscriber of an overview, which does not keep it alive."""

    def listen(_changed: frozenset[str]) -> None:
        overview = reference()
        if overview is not None:
            overview._note()  # noqa: SLF001 - the same module

    return listen


def _taker(reference: weakref.ref[Overview]) -> Callable[..., None]:
    """Make the handler of what the browser sends; it leaves a note, no more."""

    def take(_channel: Any, content: Any, _buffers: Any) -> None:
        overview = reference()
        if overview is not None and content is not None:
            overview._note(content)  # noqa: SLF001 - the same module

    return take


# ---- what is sent --------------------------------------------------------------------------------


def _sent(row: JobRow) -> tuple[Any, ...]:
    """Give a row with texts that are not too long and that JSON can hold."""
    return (
        row.index,
        line(row.name, MAX_NAME),
        row.status,
        _rounded(row.progress, 3),
        _rounded(row.eta_s, 1),
        # What still runs is counted on in the browser, from its start.
        None if row.since is not None else _rounded(row.elapsed_s, 3),
        _rounded(row.since, 3),
        line(row.phase, MAX_TEXT) if row.phase else "",
        line(row.where, MAX_TEXT) if row.where else "",
        row.attempts,
        row.engine_bytes,
        row.cached,
        line(row.reason, MAX_TEXT) if row.reason else "",
        line(row.error, MAX_TEXT) if row.error else "",
    )


def _nothing() -> dict[str, Any]:
    return {"index": None, "ticket": "", "name": "", "status": "", "kind": "none", "text": ""}


def _told_of(job: Job) -> tuple[str, str]:
    """Say what an ended build came to whose phases are not there to be drawn: a kind and a text."""
    record = job.record
    if record is not None:
        from trt_widget.report import as_text

        return "record", as_text(record)
    result = job.result
    if result is None:
        return "ended", ""
    parts = []
    if result.ended_by == "before build" and result.status == "cancelled":
        parts.append("It was cancelled while it waited: nothing was built.")
    if result.error is not None and result.status == "failed":
        error = result.error
        parts += [error.cause, error.details(), *error.evidence, error.remedy]
    parts += [*result.notes, *result.warnings]
    text = "\n".join(part for part in parts if part)
    return "ended", text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _ticket(request: dict[str, Any]) -> str:
    return _echo(request.get("ticket"), 64)


def _echo(text: Any, most: int) -> str:
    """Give a text from a browser as it can be sent back: without halves of surrogate pairs."""
    return text[:most].encode("utf-8", "ignore").decode() if isinstance(text, str) else ""
