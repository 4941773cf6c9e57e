"""The jobs of a queue: checked before anything starts, and what has become of each."""

from __future__ import annotations

import dataclasses
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._content import hash_bytes
from trt_widget._files import read_or_map
from trt_widget._text import duration, line
from trt_widget.build import FINAL, Build, BuildResult
from trt_widget.engine_cache import FUNCTIONS, IN_KEY
from trt_widget.errors import (
    BuildCancelled,
    BuildError,
    BuildFailed,
    OptionError,
    OutputError,
    UnknownOptionError,
)
from trt_widget.network import serialize
from trt_widget.options import OPTION_NAMES, BuildOptions, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trt_widget.queue_store import Store
    from trt_widget.record import Record

__all__ = ["Job", "JobRow", "UnknownJobError", "make_jobs"]

#: Characters of an error and of a phase that a row shows.
_MAX_ERROR: Final = 300
_MAX_PHASE: Final = 120
# Bytes of a file's name that are taken from a job's: a name may have 255, and some are needed for
# the ending and for the temporary name.
_MAX_FILE_NAME: Final = 180
# What a file cannot be called on Windows, whatever its ending.
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
#: What a job can be given.
_ARGUMENTS: Final = ("source", *OPTION_NAMES)
_UNSAFE: Final = re.compile(r"[^\w.+=@ -]")


class UnknownJobError(BuildError, KeyError):
    """A queue has no job of that name."""


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
    options
        How it is built, checked.
    build
        The build of the latest attempt; None before the first one, and again some time after the
        end, when only :attr:`record` and :attr:`engine` are kept.
    attempts
        How often it was begun.
    earlier
        What the attempts before the latest came to, the oldest first.
    result
        What it came to, once it has ended.
    ended_at
        When the job ended, in epoch seconds, or None.
    """

    def __init__(self, name: str, index: int, source: Source, options: BuildOptions) -> None:
        self.name = name
        self.index = index
        self.options = options
        #: Where the model comes from; None once it is not needed any more.
        self.source: Source | None = source
        #: What tells the models of a queue apart, without reading them.
        self.model = str(source.value) if source.kind == "path" else (source.kind, id(source.value))
        #: What people call the model.
        self.model_name = source.display_name
        #: The same for jobs of which the engine cache answers all but the first; else None.
        self.same = _same(self.model, options)
        self.build: Build | None = None
        #: Whether an attempt is under way.
        self.begun = False
        self.attempts = 0
        self.earlier: list[BuildResult] = []
        self.result: BuildResult | None = None
        self._started_at: float | None = None
        self.ended_at: float | None = None
        #: The device that the queue has put it on.
        self.device: int | None = None
        #: Why it is to end, once somebody has asked for that.
        self.cancel_reason: str | None = None
        #: Seconds from the start of the latest attempt to the end, with all that is around it.
        self.turnaround_s: float | None = None
        self._last_row: JobRow | None = None
        self._record: Callable[[], Any] | None = None
        self._engine: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        took = ""
        if self.result is not None and self.started_at is not None:
            took = f" after {duration(self.result.duration_s)}"
        return f"{type(self).__name__}({self.name!r}, {self.status}{took})"

    @property
    def status(self) -> str:
        """The state: the words are those of a build."""
        if self.result is not None:
            return self.result.status
        build = self.build
        if build is None or not self.begun:
            return "pending"
        # What it came to is the queue's to say: it may be begun again.
        return "running" if build.status in FINAL else build.status

    @property
    def error(self) -> BuildError | None:
        """Why there is no engine, once it has ended without one."""
        return None if self.result is None else self.result.error

    @property
    def engine(self) -> Any:
        """The serialized engine (bytes-like), once there is one, else None.

        Raises
        ------
        BuildFailed
            Its file was removed, replaced or cut short after the build.
        """
        if self.result is None or self.result.engine_bytes is None:
            return None
        build = self.build
        if build is not None:
            return build.engine
        try:
            engine = self._engine() if self._engine is not None else None
        except OSError as error:
            raise BuildFailed(
                f"The engine of {self.name} cannot be read: {error.strerror or error}.",
                "Build again, and leave the file at output= as it is.",
            ) from error
        return engine

    @property
    def record(self) -> Record | None:
        """Everything but the engine of the latest attempt, as it is now; None before the first."""
        from trt_widget.record import Record, make_record

        build, packed = self.build, self._record
        if build is not None:
            return make_record(build)
        return None if packed is None else Record.from_json(zlib.decompress(packed()))

    @property
    def started_at(self) -> float | None:
        """When the latest attempt began to run, in epoch seconds, or None."""
        build = self.build
        if self.result is not None or build is None:
            return self._started_at
        return build.entered_at.get("running")

    @property
    def output(self) -> Path | None:
        """Where the engine is to be written, or None."""
        return self.options.output

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
        build = self.build
        return build.waiting_for if build is not None and self.result is None else None

    # ------------------------------------------------------------------ for the queue and its views

    def row(self, now: float) -> JobRow:
        """Describe it for a view; ``now`` is in epoch seconds."""
        return self._last_row if self._last_row is not None else self._row(now)

    def _row(self, now: float) -> JobRow:
        build, result, status = self.build, self.result, self.status
        progress = eta = elapsed = since = None
        phase = ""
        if result is not None:
            progress = build.progress if build is not None else None
            progress = 1.0 if status == "succeeded" else progress
            elapsed = None if self.started_at is None else result.duration_s
        elif build is not None and self.begun:
            progress, eta, since = build.progress, build.eta_s, build.entered_at.get("running")
            if since is not None:
                elapsed = max(0.0, now - since)
                with build.lock:
                    chains = build.tree.open_phases
                phase = line(chains[-1][-1], _MAX_PHASE) if chains else ""
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
            # One that was handed over and waits, on a cluster for instance, has not tried yet.
            attempts=self.attempts - (self.begun and status == "pending"),
            engine_bytes=None if result is None else result.engine_bytes,
            cached=self.cached,
            reason=self.cancel_reason if result is None else result.reason,
            error=line(self.error.cause, _MAX_ERROR) if status == "failed" and self.error else "",
        )

    def begin(self, device: int | None) -> None:
        """Take note of a new attempt."""
        self.begun = True
        self.build = None
        self.device = device
        self.attempts += 1

    def again(self, result: BuildResult) -> None:
        """Take note of what an attempt came to that is not the last one."""
        self.begun = False
        self.earlier.append(result)

    def end(self, result: BuildResult, now: float) -> None:
        """Take note of what it came to."""
        self.begun = False
        self.source = None
        self.result = result
        self.ended_at = now
        if self.build is not None:
            self._started_at = self.build.entered_at.get("running")
            self.turnaround_s = max(0.0, now - self.build.entered_at["pending"])
        self._last_row = self._row(now)

    def put_away(self, store: Store) -> None:
        """Keep what is worth it of a build that has ended in ``store`` instead of the build.

        Raises
        ------
        OSError
            It cannot be written; the build is still there.
        """
        from trt_widget.record import make_record

        build, result = self.build, self.result
        if build is None or result is None:
            return
        text = make_record(build).to_json().encode()
        record = store.keep(zlib.compress(text))
        if result.engine_bytes is not None:
            if result.output is not None:
                output, sha256 = result.output, hash_bytes(build.engine)
                self._engine = lambda: _read_same(output, sha256)
            else:
                engine = store.keep(build.engine)
                self._engine = lambda: store.get(engine)
        self._record = lambda: store.get(record)
        self.build = None

    def made_up(self, status: str, error: BuildError) -> BuildResult:
        """Make the result of a job that ends without a build having ended."""
        backend = self.options.backend
        return BuildResult(
            status=status,
            engine_bytes=None,
            duration_s=0.0,
            ended_by="before build" if status == "cancelled" else "error",
            stop_latency_s=None,
            reason=error.reason if isinstance(error, BuildCancelled) else None,
            backend=backend.name,
            version=backend.version,
            device=None,
            executor=self.options.executor,
            model=self.name,
            output=None,
            layers=None,
            peak_memory_bytes=None,
            warnings=(),
            notes=(),
            error=error,
        )


def _same(model: object, options: BuildOptions) -> int | None:
    """Give what jobs have in common that the engine cache takes for the same build."""
    if options.engine_cache is None or any(getattr(options, name) for name in FUNCTIONS):
        return None
    # A number: some hundreds of jobs have one each.
    return hash(repr((model, options.engine_cache, [getattr(options, name) for name in IN_KEY])))


def _read_same(path: Path, sha256: str) -> memoryview:
    """Read an engine's file, unless it is another one by now; engines are of one size easily.

    Raises
    ------
    OSError
        It is, or it cannot be read.
    """
    engine = read_or_map(path)
    if hash_bytes(engine) != sha256:
        msg = "its file is another one than was built"
        raise OSError(msg)
    return engine


def make_jobs(
    jobs: Any,
    defaults: Mapping[str, Any],
    output_dir: Path | None,
    check: Callable[[Mapping[str, Any]], None],
    queue_options: Sequence[str],
) -> dict[str, Job]:
    """Check the jobs, and give them by name, in their order.

    Parameters
    ----------
    jobs
        What the caller gave: a mapping of names to sources or to dicts of a build's arguments.
    defaults
        Arguments of every job that does not have its own.
    output_dir
        Where the engines of jobs without ``output`` go, or None; it need not be there yet.
    check
        Called with the arguments of each job; may raise.
    queue_options
        The names of the arguments that a queue has itself.

    Raises
    ------
    BuildError
        Whatever a build raises, with the job's name in front, or the queue's, where it is wrong for
        all jobs.
    OptionError
        There is no job, a name is none, or two jobs would write to one file.
    """
    every = _arguments(jobs, defaults, queue_options)
    made: dict[str, Job] = {}
    taken = _Taken(arguments.get("source") for arguments in every.values())
    for index, (name, arguments) in enumerate(every.items()):
        output = None
        if output_dir is not None and arguments.get("output") is None:
            output = output_dir / f"{file_name(name)}.engine"
            if output_dir.exists():  # else nothing is in the way
                arguments["output"] = output
        try:
            arguments["source"] = taken.once(arguments.get("source"))
            check(arguments)
            build = _make_build(arguments)
        except BuildError as error:
            whose = "BuildQueue" if _is_wrong_for_all(error, defaults, check) else _job(name)
            raise _of(whose, error) from error.__cause__
        assert build.source is not None  # noqa: S101 - only attached and followed ones have none
        options = build.options
        if output is not None:
            options = dataclasses.replace(options, output=output)
        made[name] = Job(name, index, build.source, options)
    _check_outputs(made, output_dir)
    return made


def _arguments(
    jobs: Any, defaults: Mapping[str, Any], queue_options: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Give by name what each build is given, after a look at the names of all that."""
    if not isinstance(jobs, Mapping):
        kind = type(jobs).__name__
        raise OptionError(
            f"The jobs are {'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}, not a dict.",
            'Give a dict of names and builds: BuildQueue({"r50": {"source": "r50.onnx"}}).',
        )
    if not jobs:
        raise OptionError("There are no jobs.", "Give at least one build.")
    for option in defaults:
        if option not in _ARGUMENTS:
            known = dict.fromkeys((*queue_options, *_ARGUMENTS))
            raise _of("BuildQueue", _unknown(option, known))
    every: dict[str, dict[str, Any]] = {}
    for name, given in jobs.items():
        _check_name(name)
        own = dict(given) if isinstance(given, Mapping) else {"source": given}
        try:
            _check_arguments(own, queue_options)
        except BuildError as error:
            raise _of(_job(name), error) from None
        every[name] = {**defaults, **own}
    return every


class _Taken:
    """The models that each build would make a copy of: one copy for all jobs that share one.

    Also, what their owner does to them while the queue runs changes none of the builds.

    Parameters
    ----------
    sources
        Of all jobs.
    """

    def __init__(self, sources: Iterable[object]) -> None:
        # The originals are kept meanwhile: nothing else gets their identity.
        self._sources = list(sources)
        self._uses = Counter(map(id, self._sources))
        self._copies: dict[int, bytes] = {}

    def once(self, source: Any) -> Any:
        """Give what a job takes for a source; only what is shared and would be copied is another.

        Raises
        ------
        SourceError
            A ModelProto that has no bytes.
        """
        proto = type(source).__name__ == "ModelProto" and hasattr(source, "SerializeToString")
        shared = self._uses[id(source)] > 1
        if not (shared and (proto or isinstance(source, (bytearray, memoryview)))):
            return source
        if id(source) not in self._copies:
            copy = serialize(Source("proto", source, "<ModelProto>")) if proto else bytes(source)
            self._copies[id(source)] = copy
        return self._copies[id(source)]


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
    if "\0" in name:
        raise OptionError(
            f"{name!r:.100} is no name of a job: it has a NUL in it.", "Choose another."
        )


def _check_arguments(own: Mapping[Any, Any], queue_options: Sequence[str]) -> None:
    """Check the names of what a job says itself."""
    for option in own:
        if not isinstance(option, str):
            raise OptionError(
                "An argument's name is not text.", "Use the names of a build's options."
            )
        if option in _ARGUMENTS:
            continue
        if option in queue_options:
            remedy = "Give it to BuildQueue itself, beside the jobs."
            if option == "name":
                remedy = "The name of a job is its key in the dict of the jobs."
            raise OptionError(f"{option}= belongs to the whole queue.", remedy)
        raise _unknown(option, _ARGUMENTS)


def _unknown(option: str, known: Iterable[str]) -> UnknownOptionError:
    import difflib

    names = tuple(known)
    near = difflib.get_close_matches(option.lower(), names, 1, 0.5)
    return UnknownOptionError(option, near[0] if near else None, known=names)


def _is_wrong_for_all(
    error: BuildError,
    defaults: Mapping[str, Any],
    check: Callable[[Mapping[str, Any]], None],
) -> bool:
    """Whether what is wrong with a job is what the queue was given for all of them."""
    try:
        check(defaults)
        if defaults.get("source") is None:
            given = {name: value for name, value in defaults.items() if name != "source"}
            BuildOptions.from_kwargs(given)
        else:
            _make_build(dict(defaults))
    except BuildError as same:
        return type(same) is type(error) and same.cause == error.cause
    return False


def _make_build(arguments: dict[str, Any]) -> Build:
    if arguments.get("source") is None:
        raise OptionError(
            "There is no source.", 'Give the model as "source": a path, bytes or a ModelProto.'
        )
    arguments = dict(arguments)
    return Build(arguments.pop("source"), **arguments)


def _job(name: str) -> str:
    return f"Job {line(name, 80)!r}"


def _of(whose: str, error: BuildError) -> BuildError:
    """Say in front of what is wrong whose argument it is."""
    error.cause = f"{whose}: {error.cause}"
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
        # The names that are made here are to be others also where the case of letters is none, nor
        # how a letter with an accent is written.
        place = unicodedata.normalize("NFC", place).casefold() if ours else place
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
        source = job.source
        other = written.get(_place(source.value)) if source and source.kind == "path" else None
        if other is not None:
            raise OutputError(
                f"The output of job {other!r} is the model of job {name!r}.", "Choose another."
            )


def _place(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
