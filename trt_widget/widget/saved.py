"""What stays in a saved notebook: the result as static HTML and text, in a display of its own.

A widget in a notebook needs its kernel. So beside the widget stands a second display, empty while
the build runs and replaced at its end by what needs nothing: a summary, a table, a timeline. The
widget hides it where it is alive itself (``static/build.js``, ``static/overview.js``).
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

__all__ = ["SavedDisplay", "SavedResult"]

_log = logging.getLogger("trt_widget")


class SavedDisplay:
    """The second display of something that comes to an end.

    Attributes
    ----------
    mark
        Hexadecimal digits by which the widget and its saved display know each other: the display's
        HTML has the class ``trt-saved-`` and these digits.
    noun
        What it is, in the sentence that stands where there is no widget.
    """

    noun = "the build"

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex[:16]
        #: The runs of cells that have the display.
        self._runs: set[str] = set()
        # Who publishes the end: the thread that tells of it, and once more a wait on the main one.
        self._lock = threading.Lock()
        self._final: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        raise NotImplementedError

    def static(self) -> dict[str, Any]:
        """Give what it came to, as HTML and text by their MIME types."""
        raise NotImplementedError

    def show(self) -> bool:
        """Make the display, if there is a notebook and a running cell to put it into.

        While it runs, once. Of what has ended, in every run of a cell that shows it:
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
        if self._runs and not self.ended:
            return False
        self._runs.add(run)
        self._publish(update=False)
        return True

    @property
    def pointer(self) -> str:
        """What the widget's own output says where there is no widget; the state would get old."""
        from trt_widget._text import html

        return (
            f"<div><b>{html(self.name)}</b>: the live view needs a running kernel and "
            f"Jupyter's widgets. What {self.noun} came to stands above, after the end.</div>"
        )

    def finish(self) -> None:
        """Replace the display by the result; from any thread, after the end."""
        if self._runs and self.ended:
            self._publish(update=True)

    def repeat(self) -> None:
        """Replace it once more from the running cell.

        What executes notebooks without a front end (nbclient) takes only what belongs to the cell
        that it runs, while the end is published for the one that began it.
        """
        if _can_display():
            self.finish()

    def _publish(self, *, update: bool) -> None:
        try:
            from IPython.display import publish_display_data

            publish_display_data(  # type: ignore[no-untyped-call]  # IPython has no types for it
                self._data(),
                transient={"display_id": f"trt_widget-{self.mark}"},
                update=update,
            )
        except Exception:  # noqa: BLE001 - whatever is wrong with the picture, the result is right
            _log.exception("trt_widget: the saved result of %r could not be shown", self.name)

    def _data(self) -> dict[str, Any]:
        if not self.ended:
            # The widget hides what is empty, by this class.
            return {"text/html": f'<div class="trt-saved-{self.mark}"></div>', "text/plain": ""}
        with self._lock:
            if self._final is None:
                self._final = self.static()
            return self._final


class SavedResult(SavedDisplay):
    """The second display of one build."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    @property
    def name(self) -> str:
        """The build's name."""
        return self._build.name

    @property
    def ended(self) -> bool:
        """Whether the build has ended."""
        return self._build.status in FINAL

    def static(self) -> dict[str, Any]:
        """Give the build's report."""
        from trt_widget.record import make_record
        from trt_widget.report import as_text, report_html

        record = make_record(self._build)
        return {
            "text/html": report_html(record, fragment=True, saved_as=self.mark),
            "text/plain": as_text(record),
        }


def _can_display() -> bool:
    return (
        kernel.in_kernel()
        and threading.current_thread() is threading.main_thread()
        and kernel.current_request() == "execute_request"
    )
