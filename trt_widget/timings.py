"""Tables of a build's phases and messages, as pandas DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from trt_widget.logger import BuildLog
    from trt_widget.phases import PhaseTree

__all__ = ["log_frame", "spans_frame", "timings_frame"]


def timings_frame(tree: PhaseTree, now: float | None = None) -> pd.DataFrame:
    """Give a row per phase path, in tree order; columns as in `PhaseTree.timing_columns`."""
    import pandas as pd

    frame = pd.DataFrame(tree.timing_columns(now))
    frame.attrs["complete"] = tree.outcome is not None
    return frame


def spans_frame(tree: PhaseTree, now: float | None = None) -> pd.DataFrame:
    """Give a row per phase instance, in start order; columns as in `PhaseTree.span_columns`.

    ``attrs["dropped"]`` is the number of instances without a row of their own: a build keeps
    :data:`~trt_widget.phases.MAX_SPANS` of them, the rest is counted in its path only. Where there
    are any, ``attrs["note"]`` says so.
    """
    import pandas as pd

    frame = pd.DataFrame(tree.span_columns(now))
    frame.attrs["complete"] = tree.outcome is not None
    frame.attrs["dropped"] = tree.spans_dropped
    if tree.spans_dropped:
        frame.attrs["note"] = (
            f"{tree.spans_dropped:,} further phases have no row here; they are counted in the timings."
        )
    return frame


def log_frame(log: BuildLog) -> pd.DataFrame:
    """Give TensorRT's messages: ``time_s`` (since the start), ``severity``, ``message``.

    ``attrs["dropped"]`` is the number of messages that were not kept.
    """
    import pandas as pd

    messages = log.messages()
    frame = pd.DataFrame(
        {
            "time_s": [message.time for message in messages],
            "severity": [message.severity for message in messages],
            "message": [message.message for message in messages],
        }
    )
    frame.attrs["dropped"] = log.dropped
    return frame
