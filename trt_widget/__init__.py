"""See a TensorRT engine build live, cancel it, and read where the time went.

Names are imported when they are first used: ``import trt_widget`` loads neither TensorRT nor pandas
nor ipywidgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trt_widget._version import __version__

if TYPE_CHECKING:
    from trt_widget.build import Build, BuildResult
    from trt_widget.build_queue import BuildQueue
    from trt_widget.comparison import CompareError, Comparison, compare
    from trt_widget.engine_cache import EngineCache
    from trt_widget.errors import (
        BackendNotFound,
        BuildCancelled,
        BuildCrashed,
        BuildError,
        BuildFailed,
        BuildStateError,
        ConfigureFailed,
        ExtraMissing,
        OptionError,
        OptionRejected,
        OutputError,
        ParseFailed,
        ProfileError,
        SaveError,
        SourceError,
        StreamError,
        UnknownOptionError,
        WorkerLost,
        WrongBackendError,
    )
    from trt_widget.history import History
    from trt_widget.monitor import ProgressMonitor
    from trt_widget.phases import PhaseTree
    from trt_widget.queue_jobs import UnknownJobError
    from trt_widget.record import Record, RecordError, load_record
    from trt_widget.widget import BuildWidget
    from trt_widget.widget.timeline import Timeline

__all__ = [
    "BackendNotFound",
    "Build",
    "BuildCancelled",
    "BuildCrashed",
    "BuildError",
    "BuildFailed",
    "BuildQueue",
    "BuildResult",
    "BuildStateError",
    "BuildWidget",
    "CompareError",
    "Comparison",
    "ConfigureFailed",
    "EngineCache",
    "ExtraMissing",
    "History",
    "OptionError",
    "OptionRejected",
    "OutputError",
    "ParseFailed",
    "PhaseTree",
    "ProfileError",
    "ProgressMonitor",
    "Record",
    "RecordError",
    "SaveError",
    "SourceError",
    "StreamError",
    "Timeline",
    "UnknownJobError",
    "UnknownOptionError",
    "WorkerLost",
    "WrongBackendError",
    "__version__",
    "compare",
    "load_record",
]

_HOME = {
    "Build": "build",
    "BuildQueue": "build_queue",
    "BuildResult": "build",
    "BuildWidget": "widget",
    "CompareError": "comparison",
    "Comparison": "comparison",
    "EngineCache": "engine_cache",
    "History": "history",
    "PhaseTree": "phases",
    "ProgressMonitor": "monitor",
    "Record": "record",
    "RecordError": "record",
    "Timeline": "widget.timeline",
    "UnknownJobError": "queue_jobs",
    "compare": "comparison",
    "load_record": "record",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
