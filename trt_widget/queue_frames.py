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
    "status": "object",
    "model": "object",
    "duration_s": "float64",
    "engine": "object",
    "engine_bytes": "Int64",
    "error": "object",
    "error_type": "object",
    "attempts": "int64",
    "cached": "bool",
    "reason": "object",
    "where": "object",
    "backend": "object",
    "version": "object",
    "layers": "Int64",
    "peak_memory_bytes": "Int64",
    "started": "datetime64[ns, UTC]",
    "ended": "datetime64[ns, UTC]",
}


def results_frame(jobs: Sequence[Job]) -> pd.DataFrame:
    """Give a row per job, in their order, indexed by name."""
    import pandas as pd

    rows = [_row(job) for job in jobs]
    columns = {name: _column([row[name] for row in rows], kind) for name, kind in _TYPES.items()}
    index = pd.Index([job.name for job in jobs], name="job", dtype="object")
    return pd.DataFrame(columns).set_index(index)


def _column(values: list[Any], kind: str) -> pd.Series[Any]:
    import pandas as pd

    if kind == "object":
        return pd.Series(values, dtype=kind)
    if kind.startswith("datetime"):
        # Digits below a microsecond are none of a clock's: they are the rounding of a float.
        whole = [None if value is None else round(value * 1e6) * 1000 for value in values]
        return pd.Series(pd.to_datetime(pd.Series(whole, dtype="Int64"), unit="ns", utc=True))
    return pd.Series(values, dtype=kind)


def _row(job: Job) -> dict[str, Any]:
    result, error = job.result, job.error
    return {
        "status": job.status,
        "model": job.model_name,
        "duration_s": None if result is None else result.duration_s,
        "engine": None if result is None else result.output,
        "engine_bytes": None if result is None else result.engine_bytes,
        "error": None if error is None else error.cause,
        "error_type": None if error is None else type(error).__name__,
        "attempts": job.attempts,
        "cached": job.cached,
        "reason": None if result is None else result.reason,
        "where": job.where,
        "backend": job.options.backend.name,
        "version": job.options.backend.version,
        "layers": None if result is None else result.layers,
        "peak_memory_bytes": None if result is None else result.peak_memory_bytes,
        "started": job.started_at,
        "ended": job.ended_at,
    }


def timings_frame(jobs: Sequence[Job]) -> pd.DataFrame:
    """Give the timings of all builds below each other, with the job's name in the first column."""
    import pandas as pd

    from trt_widget.phases import PhaseTree
    from trt_widget.timings import timings_frame as frame_of

    # The columns, also where there is no build yet.
    parts = [pd.DataFrame(frame_of(PhaseTree().timing_columns(0.0), complete=False)).iloc[:0]]
    names: list[str] = []
    for job in jobs:
        build = job.build
        frame = None if build is None else build.timings
        if frame is None:
            record = job.record
            frame = None if record is None else record.timings
        if frame is not None and len(frame):
            parts.append(pd.DataFrame(frame))
            names += [job.name] * len(frame)
    whole = pd.concat(parts[1:] or parts, ignore_index=True)
    whole.insert(0, "job", pd.Series(names, dtype="object"))
    return whole
