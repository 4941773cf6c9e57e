"""Tables of the builds of a queue, as pandas DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from trt_widget.queue_jobs import Job

__all__ = ["results_frame", "timings_frame"]

#: The columns of the results and their types.
_TYPES: Final = {
    "status": object,
    "duration_s": "float64",
    "engine": object,
    "engine_bytes": "Int64",
    "error": object,
    "error_type": object,
    "attempts": "int64",
    "cached": "bool",
    "reason": object,
    "where": object,
    "backend": object,
    "version": object,
    "layers": "Int64",
    "peak_memory_bytes": "Int64",
    "started": "datetime64[ns, UTC]",
    "ended": "datetime64[ns, UTC]",
}


def results_frame(jobs: Sequence[Job]) -> pd.DataFrame:
    """Give a row per job, in their order, indexed by name."""
    import pandas as pd

    rows = [_row(job) for job in jobs]
    index = pd.Index([job.name for job in jobs], name="job", dtype=object)
    columns = {name: _column([row[name] for row in rows], kind) for name, kind in _TYPES.items()}
    return pd.DataFrame(columns).set_index(index)


def _column(values: list[Any], kind: Any) -> pd.Series[Any]:
    import pandas as pd

    if kind is object:
        # Not from the list itself: a buffer would be taken for a list of numbers.
        column = pd.Series([None] * len(values), dtype=object)
        for at, value in enumerate(values):
            column.iloc[at] = value
        return column
    if str(kind).startswith("datetime"):
        times: pd.Series[Any] = pd.to_datetime(
            pd.Series(values, dtype="float64"), unit="s", utc=True
        )
        return times
    return pd.Series(values, dtype=kind)


def _row(job: Job) -> dict[str, Any]:
    result, error = job.result, job.error
    return {
        "status": job.status,
        "duration_s": None if result is None else result.duration_s,
        "engine": result.output if result is not None and result.output else job.engine,
        "engine_bytes": None if result is None else result.engine_bytes,
        "error": None if error is None else error.cause,
        "error_type": None if error is None else type(error).__name__,
        "attempts": job.attempts,
        "cached": job.cached,
        "reason": None if result is None else result.reason,
        "where": job.where,
        "backend": job.plan.backend.name,
        "version": job.plan.backend.version,
        "layers": None if result is None else result.layers,
        "peak_memory_bytes": None if result is None else result.peak_memory_bytes,
        "started": job.started_at,
        "ended": job.ended_at,
    }


def timings_frame(jobs: Sequence[Job]) -> pd.DataFrame:
    """Give the timings of all builds below each other, with the job's name in the first column."""
    import pandas as pd

    frames = []
    for job in jobs:
        if job.build is not None:
            frame = pd.DataFrame(job.build.timings)
            frame.insert(0, "job", job.name)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True)
