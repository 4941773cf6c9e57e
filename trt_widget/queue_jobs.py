"""The jobs of a queue: checked before anything starts, and what has become of each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._text import line
from trt_widget.build import FINAL, Build, BuildResult
from trt_widget.errors import BuildCancelled, BuildError, OptionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Job", "JobRow", "make_jobs"]

#: Characters of an error that a row shows.
_MAX_ERROR: Final = 300
# Bytes of a file's name that are taken from a job's: a name may have 255, and some are needed for
# the ending and for the temporary name.
_MAX_FILE_NAME: Final = 180
# What a file cannot be called on Windows, whatever its ending.
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_UNSAFE: Final = re.compile(r"[^\w.+=@ -]")


class JobRow(NamedTuple):
    """What a view shows of a job.

    Attributes
    ----------
    index, name, status
        The place in the order, the name, and one of the words for the states of a build.
    progress, eta_s
        How far the build is (0 to 1) and the seconds left, or None while not known.
    elapsed_s
        Seconds that the latest attempt has been running, or that it took; None before.
    since
        When it began to run, in epoch seconds, while it runs; else None.
    phase
        Name of the innermost open phase, or an empty text.
    where
        The device or the Dask worker, or None while not known.
    attempts
        How often it was begun.
    engine_bytes
        Size of the engine, or None.
    cached
        Whether the engine came from the engine cache.
    reason
        Why it was cancelled, or None.
    error
        Why it failed, in one line, or an empty text.
    """

    index: int  # type: ignore[assignment]  # it hides tuple's method, which nobody calls
    name: str
    status: str
    progress: float | None
    eta_s: float | None
    elapsed_s: float | None
    since: float | None
    phase: str
    where: str | None
    attempts: int
    engine_bytes: int | None
    cached: bool
    reason: str | None
    error: str


class Job:
    """One build of a queue, with all its attempts.

    Attributes
    ----------
    name, index
        What it is called, and its place in the order.
    build
        The build of the latest attempt; None before the first.
    attempts
        How often it was begun.
    earlier
        What the attempts before the latest came to, the oldest first.
    result
        What it came to, once it has ended.
    started_at, ended_at
        When the latest attempt began to run and when the job ended, in epoch seconds, or None.
    """

    def __init__(self, name: str, index: int, plan: Build) -> None:
        self.name = name
        self.index = index
        #: A build that is never started: the source and the options, checked.
        self.plan = plan
        self.build: Build | None = None
        self.attempts = 0
        self.earlier: list[BuildResult] = []
        self.result: BuildResult | None = None
        self.ended_at: float | None = None
        #: The device that the queue has put it on.
        self.device: int | None = None
        #: Why it is to end, once somebody has asked for that.
        self.cancel_reason: str | None = None

    def __repr__(self) -> str:
        ended = f", {self.status}" if self.result is not None else ""
        return f"{type(self).__name__}({self.name!r}{ended})"

    @property
    def status(self) -> str:
        """The state: the words are those of a build."""
        if self.result is not None:
            return self.result.status
        build = self.build
        if build is None:
            return "pending"
        # What it came to is the queue's to say: it may be begun again.
        return "running" if build.status in FINAL else build.status

    @property
    def error(self) -> BuildError | None:
        """Why there is no engine, once it has ended without one."""
        return None if self.result is None else self.result.error

    @property
    def engine(self) -> Any:
        """The serialized engine (bytes-like), once there is one, else None."""
        return None if self.build is None or self.result is None else self.build.engine

    @property
    def output(self) -> Path | None:
        """Where the engine is to be written, or None."""
        return self.plan.options.output

    @property
    def started_at(self) -> float | None:
        """When the latest attempt began to run, in epoch seconds, or None."""
        return None if self.build is None else self.build.entered_at.get("running")

    @property
    def cached(self) -> bool:
        """Whether the engine came from the engine cache."""
        return self.result is not None and self.result.ended_by == "cached"

    @property
    def where(self) -> str | None:
        """The device or the Dask worker on which it is or was built, or None while not known."""
        result = self.result
        worker = getattr(result if result is not None else self.build, "worker", None)
        if worker is not None:
            return str(worker)
        if result is not None and result.device is not None:
            return result.device
        return None if self.device is None else f"GPU {self.device}"

    @property
    def waiting_for(self) -> str | None:
        """What it waits for although it was begun (another build on its device), else None."""
        return None if self.build is None else self.build.waiting_for

    def row(self, now: float) -> JobRow:
        """Describe it for a view; ``now`` is in epoch seconds."""
        build, result, status = self.build, self.result, self.status
        progress = eta = elapsed = since = None
        phase = ""
        if result is not None:
            progress = build.progress if build is not None else None
            progress = 1.0 if status == "succeeded" else progress
            elapsed = result.duration_s if self.started_at is not None else None
        elif build is not None:
            progress, eta, since = build.progress, build.eta_s, self.started_at
            if since is not None:
                elapsed = max(0.0, now - since)
                with build.lock:
                    chains = build.tree.open_phases
                phase = line(chains[-1][-1], 120) if chains else ""
        return JobRow(
            index=self.index,
            name=self.name,
            status=status,
            progress=progress,
            eta_s=eta,
            elapsed_s=elapsed,
            since=since,
            phase=phase,
            where=self.where,
            attempts=self.attempts,
            engine_bytes=None if result is None else result.engine_bytes,
            cached=self.cached,
            reason=self.cancel_reason if result is None else result.reason,
            error="" if self.error is None else line(self.error.cause, _MAX_ERROR),
        )

    def cancelled(self, reason: str) -> BuildResult:
        """Make the result of a job that is cancelled while it waits."""
        options = self.plan.options
        return BuildResult(
            status="cancelled",
            engine_bytes=None,
            duration_s=0.0,
            ended_by="before build",
            stop_latency_s=None,
            reason=reason,
            backend=options.backend.name,
            version=options.backend.version,
            device=None,
            executor=self.plan.executor,
            model=self.name,
            output=None,
            layers=None,
            peak_memory_bytes=None,
            warnings=(),
            notes=(),
            error=BuildCancelled(reason=reason),
        )


def make_jobs(
    jobs: Any,
    defaults: Mapping[str, Any],
    output_dir: Path | None,
    check: Callable[[str, dict[str, Any]], None],
) -> dict[str, Job]:
    """Check the jobs, and give them by name, in their order.

    Parameters
    ----------
    jobs
        What the caller gave: a mapping of names to sources or to dicts of a build's arguments.
    defaults
        Arguments of every job that does not have its own.
    output_dir
        Where the engines of jobs without ``output`` go, or None.
    check
        Called with each job's name and arguments; may raise, and change them.

    Raises
    ------
    BuildError
        Whatever a build raises, with the job's name in front.
    OptionError
        There is no job, a name is none, or two jobs would write to one file.
    """
    if not isinstance(jobs, Mapping):
        raise OptionError(
            f"The jobs are {type(jobs).__name__!r}, not a dict.",
            'Give a dict of names and builds: BuildQueue({"r50": {"source": "r50.onnx"}}).',
        )
    if not jobs:
        raise OptionError("There are no jobs.", "Give at least one build.")
    made: dict[str, Job] = {}
    for index, (name, given) in enumerate(jobs.items()):
        _check_name(name)
        own = dict(given) if isinstance(given, Mapping) else {"source": given}
        arguments = {**defaults, **own}
        if output_dir is not None and arguments.get("output") is None:
            arguments["output"] = output_dir / f"{file_name(name)}.engine"
        try:
            check(name, arguments)
            plan = _make_plan(arguments)
        except BuildError as error:
            raise _in_job(error, name) from error.__cause__
        plan.rename(name)
        made[name] = Job(name, index, plan)
    _check_outputs(made, output_dir)
    return made


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise OptionError(f"{name!r:.100} is no name of a job: it is not text.", "Use texts.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{name!r:.100} is no name of a job: it is no valid Unicode.", "Choose another."
        ) from None
    if not name.strip():
        raise OptionError(f"{name!r:.100} is no name of a job: it is empty.", "Choose another.")


def _make_plan(arguments: dict[str, Any]) -> Build:
    if any(not isinstance(key, str) for key in arguments):
        raise OptionError("An argument's name is not text.", "Use the names of a build's options.")
    if arguments.get("source") is None:
        raise OptionError(
            "There is no source.", 'Give the model as "source": a path, bytes or a ModelProto.'
        )
    arguments = dict(arguments)
    return Build(arguments.pop("source"), **arguments)


def _in_job(error: BuildError, name: str) -> BuildError:
    """Put a job's name in front of what is wrong with it."""
    error.cause = f"Job {name!r}: {error.cause}"
    error.args = (error.cause,)
    return error


def file_name(name: str) -> str:
    """Make a name that every file system takes out of a job's; different ones may become one."""
    safe = _UNSAFE.sub("_", name).strip(" .")
    safe = safe.encode()[:_MAX_FILE_NAME].decode(errors="ignore").strip(" .") or "_"
    return f"_{safe}" if _RESERVED.match(safe) else safe


def _check_outputs(jobs: dict[str, Job], output_dir: Path | None) -> None:
    """Refuse jobs that would write over each other, or over another's model."""
    written: dict[str, str] = {}
    for name, job in jobs.items():
        if job.output is None:
            continue
        ours = output_dir is not None and job.output.parent == output_dir
        place = _place(job.output)
        # The names that are made here are to be others also where the case of letters is none.
        place = place.casefold() if ours else place
        if place in written:
            raise OptionError(
                f"The jobs {written[place]!r} and {name!r} write to the same file, "
                f"{job.output.name!r}.",
                "Choose names that differ in more than what a file's name cannot have."
                if ours
                else "Give each its own output=.",
            )
        written[place] = name
    for name, job in jobs.items():
        source = job.plan.source
        other = written.get(_place(source.value)) if source and source.kind == "path" else None
        if other is not None:
            raise OutputError(
                f"The output of job {other!r} is the model of job {name!r}.", "Choose another."
            )


def _place(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
