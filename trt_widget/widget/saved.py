"""What stays in a saved notebook: the result as static HTML and text, in a display of its own.

A widget in a notebook needs its kernel. So beside the widget stands a second display, empty while
the build runs and replaced at its end by what needs nothing: a summary, a table, a timeline. The
card hides it where it is alive itself (``static/build.js``).
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Any

from trt_widget.build import FINAL
from trt_widget.widget import kernel

if TYPE_CHECKING:
    from trt_widget.build import Build

__all__ = ["SavedResult"]

_log = logging.getLogger("trt_widget")


class SavedResult:
    """The second display of one build.

    Attributes
    ----------
    build_id
        Hexadecimal digits by which the card and its saved result know each other.
    """

    def __init__(self, build: Build) -> None:
        self.build_id = uuid.uuid4().hex[:16]
        self._build = build
        #: The runs of cells that have the display.
        self._runs: set[str] = set()
        # Who publishes the end: the drain thread, and once more a wait on the main thread.
        self._lock = threading.Lock()
        self._final: dict[str, Any] | None = None

    def show(self) -> bool:
        """Make the display, if there is a notebook and a running cell to put it into.

        While the build runs, once. Of a build that has ended, in every run of a cell that shows it:
        where the page was closed or loaded anew meanwhile, the first display was never replaced.

        Returns
        -------
        bool
            Whether this run of a cell has it.
        """
        if not _can_display():
            return False
        run = kernel.current_run()
        if run in self._runs:
            return True
        if self._runs and self._build.status not in FINAL:
            return False
        self._runs.add(run)
        self._publish(update=False)
        return True

    @property
    def pointer(self) -> str:
        """What the widget's own output says where there is no widget; the state would get old."""
        from trt_widget._text import html

        return (
            f"<div><b>{html(self._build.name)}</b>: the live view needs a running kernel and "
            "Jupyter's widgets. What the build came to stands above, once it has ended.</div>"
        )

    def finish(self) -> None:
        """Replace the display by the result; from any thread, after the build's end."""
        if self._runs and self._build.status in FINAL:
            self._publish(update=True)

    def repeat(self) -> None:
        """Replace it once more from the running cell.

        What executes notebooks without a front end (nbclient) takes only what belongs to the cell
        that it runs, while the end is published for the one that started the build.
        """
        if _can_display():
            self.finish()

    def _publish(self, *, update: bool) -> None:
        try:
            from IPython.display import publish_display_data

            publish_display_data(  # type: ignore[no-untyped-call]  # IPython has no types for it
                self._data(),
                transient={"display_id": f"trt_widget-{self.build_id}"},
                update=update,
            )
        except Exception:  # noqa: BLE001 - whatever is wrong with the picture, the build is right
            _log.exception("trt_widget: the saved result of a build could not be shown")

    def _data(self) -> dict[str, Any]:
        if self._build.status not in FINAL:
            # The card hides what is empty, by this class.
            return {"text/html": f'<div class="trt-saved-{self.build_id}"></div>', "text/plain": ""}
        with self._lock:
            if self._final is None:
                from trt_widget.record import make_record
                from trt_widget.report import as_text, report_html

                record = make_record(self._build)
                self._final = {
                    "text/html": report_html(record, fragment=True, saved_as=self.build_id),
                    "text/plain": as_text(record),
                }
            return self._final


def _can_display() -> bool:
    return (
        kernel.in_kernel()
        and threading.current_thread() is threading.main_thread()
        and kernel.current_request() == "execute_request"
    )
