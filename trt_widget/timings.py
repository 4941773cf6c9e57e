"""Tables of a build's phases and messages, as pandas DataFrames.

Those of the phases display themselves as :mod:`trt_widget.tables` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from trt_widget.events import LogMessage

__all__ = ["log_frame", "spans_frame", "timings_frame"]


def timings_frame(columns: dict[str, list[Any]], *, complete: bool) -> pd.DataFrame:
    """Give a row per phase path, in tree order; columns as in `PhaseTree.timing_columns`.

    ``attrs["complete"]`` says whether the build had ended.
    """
    from trt_widget.tables import TimingsTable

    frame = TimingsTable(columns)
    frame.attrs["complete"] = complete
    return frame


def spans_frame(columns: dict[str, list[Any]], *, complete: bool, dropped: int) -> pd.DataFrame:
    """Give a row per phase instance, in start order; columns as in `PhaseTree.span_columns`.

    ``attrs["dropped"]`` is the number of instances without a row of their own: a build keeps
    :data:`~trt_widget.phases.MAX_SPANS` of them, the rest is counted in its path only. Where there
    are any, ``attrs["note"]`` says so.
    """
    from trt_widget.tables import SpansTable

    frame = SpansTable(columns)
    frame.attrs["complete"] = complete
    frame.attrs["dropped"] = dropped
    if dropped:
        frame.attrs["note"] = (
            f"{dropped:,} further phases have no row here; they are counted in the timings."
        )
    return frame


def log_frame(messages: list[LogMessage], *, dropped: int) -> pd.DataFrame:
    """Give TensorRT's messages: ``time_s`` (since the start), ``severity``, ``message``.

    ``attrs["dropped"]`` is the number of messages that were not kept.
    """
    import pandas as pd

    frame = pd.DataFrame(
        {
            "time_s": [message.time for message in messages],
            "severity": [message.severity for message in messages],
            "message": [message.message for message in messages],
        }
    )
    frame.attrs["dropped"] = dropped
    return frame
