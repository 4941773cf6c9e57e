"""The drain thread's hand on the card: what changed in a build goes to the browser.

Only what changed is sent, within one budget of messages per widget, and always from the build's
drain thread: ipywidgets objects are not thread-safe. A Jupyter server drops messages past 1,000 in
a second, for all widgets together, so a card stays under :data:`BARS_PER_SECOND` and ten for
itself.
"""

from __future__ import annotations

import threading
import time as clock
from typing import TYPE_CHECKING, Any

import ipywidgets
from ipywidgets.widgets.widget_int import ProgressStyle

from trt_widget.build import FINAL
from trt_widget.rows import (
    MAX_LABEL,
    MAX_PATH,
    choose_rows,
    clipped,
    row_bar,
    row_info,
    row_style,
)
from trt_widget.widget.models import PhaseBar
from trt_widget.words import describe, ending, failure, printable, where

if TYPE_CHECKING:
    from trt_widget.build import Build
    from trt_widget.events import LogMessage
    from trt_widget.phases import PhaseNode
    from trt_widget.rows import Row
    from trt_widget.widget.models import BuildCard

__all__ = ["CardView"]

#: Messages per second that bars may cost, and how many may go at once.
BARS_PER_SECOND = 50.0
BARS_AT_ONCE = 20.0
#: Seconds after which the header is sent even if nothing changed: a sign of life. The browser asks
#: what has become of the kernel after some eight without one (``QUIET_S`` in static/build.js).
HEARTBEAT_S = 2.0
#: Seconds between two headers that only say when the last callback was.
QUIET_HEADER_S = 0.5
#: What changes all the time and has no message of its own.
_MOVING = ("now", "last_callback", "progress", "eta_s")
#: Progress that is worth a message: half a pixel of a bar.
_SMALLEST_MOVE = 0.002
#: Phases in the summary after the end.
MAX_SLOWEST = 5
#: Warnings and errors in the panel.
MAX_MESSAGES = 50
MAX_MESSAGE_LENGTH = 2_000
#: The final state is sent again after this many seconds, in case the server dropped the first.
AGAIN_S = 3.0


class CardView:
    """Keeps one card in step with one build.

    Parameters
    ----------
    build, card
        What is shown, and where.
    build_id
        By what the card knows the build's saved result.
    """

    def __init__(self, build: Build, card: BuildCard, build_id: str = "") -> None:
        self._build = build
        self._build_id = build_id
        self._card = card
        self._layout = ipywidgets.Layout(width="auto", height="12px", margin="0")
        self._style = ProgressStyle()
        self._bars: dict[int, PhaseBar] = {}
        self._free: list[PhaseBar] = []
        self._all: list[PhaseBar] = []
        self._drawn: dict[int, tuple[int, int, str | None]] = {}
        self._shown: list[Row] = []
        self._more = 0
        self._tree_paths = -1
        self._first: PhaseNode | None = None
        self._tokens = BARS_AT_ONCE
        self._last_tick = clock.monotonic()
        self._header_sent = 0.0
        self._header_key: Any = None
        self._messages_sent = -1
        self._messages_time = 0.0
        self._printed_sent = ""
        self._printed_time = 0.0
        self._slowest_found: list[dict[str, Any]] | None = None
        #: Whether headers come regularly: not before the build is started.
        self._beats = False
        #: Whoever closes waits for the message that is being sent.
        self._lock = threading.RLock()
        self._closed = False
        self._finished = False
        self.replaced = False

    # ------------------------------------------------------------------ on the drain thread

    def update(self) -> None:
        """Send what changed since the last call."""
        with self._lock:
            if not self._closed:
                self._update()

    def _update(self) -> None:
        build = self._build
        now = clock.monotonic()
        self._tokens = min(BARS_AT_ONCE, self._tokens + (now - self._last_tick) * BARS_PER_SECOND)
        self._last_tick = now
        self._beats = True
        final = build.status in FINAL
        with build.lock:
            rows_changed = self._arrange()
            due = self._due(final=final)
            infos = [(row, row_info(row, build.epoch), row_bar(row.node)) for row in due]
            outcome = build.tree.outcome
            header = self._header()
            messages = self._messages(now, final=final)
            printed = self._printed(now, final=final)
        for row, info, (value, maximum) in infos:
            self._draw(row.node, info, value, maximum, row_style(row.node, outcome))
        key = {k: v for k, v in header.items() if k not in _MOVING}
        silent_only = key == self._header_key
        since = now - self._header_sent
        shown = self._card.header
        fresh = header["last_callback"] != shown.get("last_callback") or _moved(header, shown)
        send_header = (
            not silent_only or since > HEARTBEAT_S or (fresh and since > QUIET_HEADER_S) or final
        )
        if not (send_header or rows_changed or messages is not None or printed is not None):
            return
        with self._card.hold_sync():
            if rows_changed:
                self._card.rows = [self._bars[row.node.index] for row in self._shown]
            if messages is not None:
                self._card.messages = messages
            if printed is not None:
                self._card.printed = printed
            self._card.header = header
        self._header_key = key
        self._header_sent = now
        if final and not self._finished:
            self._finished = True
            if not build.told:  # else there is no drain thread any more
                build.call_later(AGAIN_S, self.send_again)

    def send_again(self) -> None:
        """Send the whole state once more."""
        with self._lock:
            if not self._closed:
                for bar in self._all:
                    bar.send_state()
                self._card.send_state()

    def close(self) -> None:
        """Close every comm of the rows."""
        with self._lock:
            self._closed = True
            for widget in [*self._all, self._layout, self._style]:
                widget.close()
            self._bars.clear()
            self._free.clear()
            self._all.clear()
            self._shown = []

    # ------------------------------------------------------------------ inside

    def _arrange(self) -> bool:
        """Decide which rows there are; the caller holds the build's lock."""
        tree = self._build.tree
        crowded = tree.paths > len(self._shown) or self._more
        first = next(iter(tree.roots.values()), None)
        replaced = self._first is not first and self._first is not None
        if tree.paths == self._tree_paths and not crowded and not replaced:
            return False
        self._first = first
        if replaced:  # by a snapshot: a stream that is followed began again
            self._drawn.clear()
        self._tree_paths = tree.paths
        rows, more = choose_rows(tree)
        before = [row.node.index for row in self._shown]
        folded = {row.node.index: row.folded for row in self._shown}
        self._shown, self._more = rows, more
        wanted = {row.node.index for row in rows}
        for index in [index for index in self._bars if index not in wanted]:
            self._free.append(self._bars.pop(index))
            self._drawn.pop(index, None)
        for row in rows:
            index = row.node.index
            if index not in self._bars:
                self._bars[index] = self._free.pop() if self._free else self._new_bar()
            elif folded.get(index) != row.folded:
                self._drawn.pop(index, None)
        return before != [row.node.index for row in rows]

    def _new_bar(self) -> PhaseBar:
        bar = PhaseBar(min=0, max=1, value=0, layout=self._layout, style=self._style)
        self._all.append(bar)
        return bar

    def _due(self, *, final: bool) -> list[Row]:
        """Choose the changed rows that may be sent now: new ones, then the longest unsent."""
        outcome = self._build.tree.outcome
        new, changed = [], []
        for row in self._shown:
            drawn = self._drawn.get(row.node.index)
            if drawn is None or drawn[2] != outcome:
                new.append(row)
            elif drawn[0] != row.node.revision:
                changed.append((drawn[0], row))
        changed.sort(key=lambda entry: entry[0])
        due = [*new, *(row for _, row in changed)]
        if not final:
            due = due[: max(len(new), int(self._tokens))]
            self._tokens -= len(due)
        for row in due:
            node = row.node
            self._drawn[node.index] = (node.revision, row.folded, outcome)
        return due

    def _draw(
        self, node: PhaseNode, info: dict[str, Any], value: int, maximum: int, style: str
    ) -> None:
        bar = self._bars[node.index]
        with bar.hold_sync():
            bar.max = max(bar.max, maximum)
            bar.value = value
            bar.max = maximum
            bar.bar_style = style
            bar.info = info

    def _messages(self, now: float, *, final: bool) -> list[dict[str, Any]] | None:
        """Give the panel's messages if they changed, at most once a second."""
        serious = self._serious()
        if len(serious) == self._messages_sent or (now - self._messages_time < 1.0 and not final):
            return None
        self._messages_sent = len(serious)
        self._messages_time = now
        return [
            {
                "time": round(message.time, 3),
                "severity": message.severity,
                "message": message.message[:MAX_MESSAGE_LENGTH],
            }
            for message in serious[-MAX_MESSAGES:]
        ]

    def _printed(self, now: float, *, final: bool) -> str | None:
        """Give what the build process printed if there is more of it, at most once a second."""
        text = self._build.printed
        if text == self._printed_sent or (now - self._printed_time < 1.0 and not final):
            return None
        self._printed_sent = text
        self._printed_time = now
        return printable(text)

    def _serious(self) -> list[LogMessage]:
        """Give the warnings and errors; that a cancelled build was cancelled is none of them."""
        messages = self._build.messages
        if self._build.status == "cancelled":
            from trt_widget.diagnosis import was_cancelled

            return [m for m in messages if not was_cancelled([(m.severity, m.message)])]
        return messages

    def _header(self) -> dict[str, Any]:
        build = self._build
        tree = build.tree
        result = build.result
        serious = self._serious()
        errors = sum(message.severity != "warning" for message in serious)
        started = build.entered_at.get("running")
        error = result.error if result else None
        return {
            "name": build.name,
            "status": build.status,
            "backend": str(build.backend),
            "device": result.device if result else None,
            "executor": build.executor,
            "where": where(build),
            "grace": build.grace_s if build.executor in {"process", "dask"} else None,
            "started": started,
            "ended": None if result is None or started is None else started + result.duration_s,
            "last_callback": build.epoch(tree.last_callback) if tree.paths else started,
            "cancel_requested": build.entered_at.get("cancelling"),
            "stop_latency_s": result.stop_latency_s if result else None,
            "ending": ending(result) if result else None,
            "cached": result is not None and result.ended_by == "cached",
            "peak_memory_bytes": result.peak_memory_bytes if result else None,
            "notes": list(result.notes if result else build.notes),
            "detail": describe(build),
            "failure": failure(error, [message.message for message in serious])
            if build.status == "failed" and error
            else None,
            "blocked_by": build.waiting_for
            if build.status == "pending" and build.waits_for_build
            else None,
            "can_cancel_blocker": build.status == "pending" and build.can_cancel_blocker,
            "can_cancel": build.status in ("pending", "running") and build.can_cancel,
            "cancels_refused": build.cancels_refused,
            "engine_bytes": result.engine_bytes if result else None,
            "warnings": len(serious) - errors,
            "errors": errors,
            "more_paths": self._more,
            "spans_dropped": tree.spans_dropped,
            "replaced": self.replaced,
            "beats": self._beats,
            "build_id": self._build_id,
            "progress": build.progress,
            "eta_s": build.eta_s,
            "exceeded": build.exceeded,
            "usual_s": build.expected_s,
            "basis": build.basis,
            "slowest": self._slowest() if result else [],
            "now": build.epoch_now(),
        }

    def _slowest(self) -> list[dict[str, Any]]:
        """Name the phases that took longest themselves; of a build that has ended."""
        if self._slowest_found is None:
            columns = self._build.tree.timing_columns()
            whole = sum(columns["self_s"])
            order = sorted(range(len(columns["self_s"])), key=lambda row: -columns["self_s"][row])
            self._slowest_found = [
                {
                    "label": clipped(columns["phase"][row], MAX_LABEL),
                    "path": clipped(columns["path"][row], MAX_PATH),
                    "self_s": round(columns["self_s"][row], 6),
                    "share": round(columns["self_s"][row] / whole, 4),
                }
                for row in order[:MAX_SLOWEST]
                if columns["self_s"][row] > 0.0
            ]
        return self._slowest_found


def _moved(header: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Say whether there is news about how far it is."""
    now, before = header["progress"], shown.get("progress")
    return now is not None and (before is None or now - before >= _SMALLEST_MOVE)
