"""The builds of a server: started by requests, bounded in number, confined to a folder.

What HTTP, editors and agents have in common. A request is a stranger's: its options are a list of
what may be asked for, its paths stay below the root, and what runs code of its choice (functions,
plugin libraries) is the operator's alone. Builds run in child processes, one after the other as
:class:`~trt_widget.Build` has it, and those that wait are bounded.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_widget.broadcast import Broadcast, ended_event
from trt_widget.build import FINAL, Build
from trt_widget.errors import BuildError, OptionError, to_record
from trt_widget.phases import PATH_SEPARATOR
from trt_widget.rows import MAX_LABEL, MAX_PATH, choose_rows, clipped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "REQUEST_OPTIONS",
    "Builds",
    "Entry",
    "PathRefused",
    "QueueFull",
    "RequestError",
    "UnknownBuild",
    "describe",
    "elapsed_s",
    "read_options",
]

#: What a request may ask for; the names are those of :class:`~trt_widget.Build`.
REQUEST_OPTIONS: Final = (
    "profiles",
    "timeout",
    "grace",
    "flags",
    "strongly_typed",
    "network_flags",
    "optimization_level",
    "workspace",
    "device",
    "target",
    "timing_cache",
    "backend",
)
#: What only the operator decides: it runs code, or reads and writes anywhere.
_OPERATORS: Final = (
    *("configure", "config", "plugins", "external_data", "executor", "exclusive", "engine_cache"),
    *("client", "resources", "reschedules"),
)
#: Characters of a path: the most that Linux takes.
_MAX_PATH: Final = 4096
#: Seconds after its end during which a build's stream is kept whole for slow readers.
_SETTLE_S: Final = 30.0
#: How long :meth:`Builds.close` waits for builds at most, in seconds, whatever their grace; and
#: once more as long for those that it has to kill.
_CLOSE_S: Final = 5.0


class RequestError(BuildError, ValueError):
    """A request that asks for what cannot be."""


class PathRefused(RequestError):  # noqa: N818 - what happened, as UnknownBuild and QueueFull
    """A path that leads out of the folder that the server was given, or is none."""


class UnknownBuild(RequestError, LookupError):  # noqa: N818 - as above
    """An id of no build, or of one that is not kept any more."""


class QueueFull(RequestError):  # noqa: N818 - as above
    """So many builds wait that no more are taken."""


@dataclass
class Entry:
    """One build of a server.

    Attributes
    ----------
    id
        By what requests name it; nobody can guess it.
    build, broadcast
        The build, and its stream for many readers.
    name
        What people call it.
    created
        When it was asked for, in seconds since the epoch.
    model
        What is built.
    on_removed
        Called when it is forgotten: to remove files that were made for it.
    """

    id: str
    build: Build
    broadcast: Broadcast
    name: str
    created: float
    model: Path
    on_removed: list[Callable[[], object]] = field(default_factory=list)
    ended: float | None = None

    @property
    def status(self) -> str:
        """State of the build."""
        return self.build.status


class Builds:
    """The builds of one server; its methods can be called from any thread.

    Parameters
    ----------
    root
        Folder that the paths of requests stay in, also through links; ``None``: anywhere.
    options
        What the operator decides for every build, as for :class:`~trt_widget.Build`; a request's
        options go before it. By default builds run with ``executor="process"``.
    max_waiting
        Builds that may wait while one runs.
    keep
        Builds that have ended and can still be asked for; the oldest are forgotten.

    Raises
    ------
    OptionError
        ``root`` is not a folder.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        *,
        options: Mapping[str, Any] | None = None,
        max_waiting: int = 16,
        keep: int = 64,
    ) -> None:
        self.root = None if root is None else Path(root).resolve()
        if self.root is not None and not self.root.is_dir():
            raise OptionError(
                f"{self.root} is not a folder.", remedy="Name the folder that holds the models."
            )
        self._options = {"executor": "process", **(options or {})}
        self._max_waiting = max_waiting
        self._keep = keep
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._closed = False

    # ------------------------------------------------------------------ paths

    def resolve(self, path: object) -> Path:
        """Give the file that a request means, which may not exist.

        Parameters
        ----------
        path
            Relative to the root, or absolute and below it.

        Raises
        ------
        PathRefused
            It is not a path, or leads out of the root.
        """
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if not isinstance(text, str) or not text.strip() or "\0" in text or len(text) > _MAX_PATH:
            raise PathRefused(
                f"{path!r:.200} is not a path.", remedy="Give the path of an ONNX file as text."
            )
        base = self.root or Path.cwd()
        try:
            found = (base / text).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name too long
            raise PathRefused(
                f"The path {text!r:.200} cannot be followed: {error}.",
                remedy="Give the path of a file below the folder of this server.",
            ) from error
        if self.root is not None and not found.is_relative_to(self.root):
            raise PathRefused(
                f"The path {text!r:.200} leads out of the folder of this server.",
                remedy="Give a path below it; the folder was chosen with --root.",
            )
        return found

    # ------------------------------------------------------------------ builds

    def start(
        self,
        model: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        output: str | os.PathLike[str] | None = None,
        uploaded: bool = False,
        cancelled: Callable[[], bool] | None = None,
    ) -> Entry:
        """Begin a build, which may have to wait for its turn.

        Parameters
        ----------
        model
            Path of an ONNX file; see :meth:`resolve`.
        options
            What a request asks for; see :func:`read_options`.
        name
            What to call it; by default the name of the file.
        output
            Where to write the engine; see :meth:`resolve`. ``None``: it is kept with the build.
        uploaded
            The model and the output are the server's own files, and not confined to the root.
        cancelled
            Asked before the start: a build that was cancelled by then ends without a beginning.

        Raises
        ------
        RequestError, PathRefused, QueueFull
            The request is wrong, or comes at a wrong time.
        BuildError
            As the constructor of :class:`~trt_widget.Build`.
        """
        wanted = read_options(options)
        path = Path(model) if uploaded else self.resolve(model)
        if output is not None:
            wanted["output"] = Path(output) if uploaded else self.resolve(output)
        with self._lock:
            self._check_room()
            build = Build(path, **{**self._options, **wanted})
            if name:
                build.rename(clipped(str(name), MAX_LABEL))
            broadcast = Broadcast(build)
            entry = Entry(
                # Hexadecimal: no id begins with what a shell's command takes for an option.
                secrets.token_hex(12),
                build,
                broadcast,
                build.name,
                time.time(),
                path,
            )
            if cancelled is not None and cancelled():
                build.request_cancel()
            build.start()
            self._entries[entry.id] = entry
        return entry

    def _check_room(self) -> None:
        """Forget what is old, and raise unless there is room; the caller holds the lock."""
        if self._closed:
            raise RequestError("This server is about to end.", remedy="Start it again.")
        now = time.monotonic()
        entries = list(self._entries.values())
        for entry in entries:
            if entry.build.told:
                entry.ended = entry.ended or now
                if now - entry.ended > _SETTLE_S:
                    entry.broadcast.settle()
        ended = [entry for entry in entries if entry.ended is not None]
        for entry in ended[: max(0, len(ended) - self._keep)]:
            self._forget(entry)
        active = sum(entry.status not in FINAL for entry in entries)
        if active > self._max_waiting:
            raise QueueFull(
                f"{active} builds run or wait already, which is all that this server takes.",
                remedy="Ask again when one has ended, or cancel one.",
            )

    def get(self, build_id: object) -> Entry:
        """Give a build by its id.

        Raises
        ------
        UnknownBuild
            There is none, or it is not kept any more.
        """
        with self._lock:
            entry = self._entries.get(build_id) if isinstance(build_id, str) else None
        if entry is None:
            raise UnknownBuild(
                f"There is no build {build_id!r:.100}.",
                remedy="Ask for the list of builds; the oldest that have ended are forgotten.",
            )
        return entry

    def all(self) -> list[Entry]:
        """Give all builds that are kept, the oldest first."""
        with self._lock:
            return list(self._entries.values())

    def cancel(self, build_id: str) -> bool:
        """Ask a build to stop; give whether there was anything to stop."""
        return self.get(build_id).build.request_cancel()

    def remove(self, build_id: str) -> None:
        """End a build if it runs, without a grace, and forget it; a written engine stays.

        A grace is for a build that can be watched; one that nobody sees any more, and that could be
        asked for nothing, would hold up the others.
        """
        entry = self.get(build_id)
        entry.build.kill()
        with self._lock:
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if self._entries.pop(entry.id, None) is None:
            return
        entry.broadcast.settle()
        actions, entry.on_removed = entry.on_removed, []
        for action in actions:
            action()

    def close(self) -> None:
        """Cancel all builds and wait until their processes are gone."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
        for entry in entries:
            entry.build.request_cancel("closed")
        asked = time.monotonic()
        for entry in entries:
            build, grace = entry.build, min(entry.build.grace_s, _CLOSE_S)
            for until, last_resort in ((asked + grace, False), (asked + grace + _CLOSE_S, True)):
                if last_resort and not build.told:
                    build.kill()
                while not build.told and time.monotonic() < until:
                    time.sleep(0.02)
        with self._lock:
            for entry in entries:
                self._forget(entry)


def read_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Give what a request asks for as keywords of :class:`~trt_widget.Build`.

    Parameters
    ----------
    options
        An object of :data:`REQUEST_OPTIONS`; null is the same as not given. ``profiles`` is an
        object with ``[min, opt, max]`` for each input, or a list of those.

    Raises
    ------
    RequestError
        It is no object, or asks for what there is not or what only the operator may decide.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise RequestError(
            f"The options must be an object, not {type(options).__name__}.",
            remedy='Write them by name, such as {"optimization_level": 3}.',
        )
    wanted: dict[str, Any] = {}
    for name, value in options.items():
        if name in _OPERATORS or name == "output":
            raise RequestError(
                f"The option {name!r} is not for requests.",
                remedy="Whoever starts the server decides it.",
            )
        if name not in REQUEST_OPTIONS:
            nearest = get_close_matches(str(name), REQUEST_OPTIONS, 1)
            hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
            raise RequestError(
                f"There is no option {name!r:.100}.",
                remedy=f"{hint}The options are: {', '.join(REQUEST_OPTIONS)}.",
            )
        if value is None:
            continue
        if name == "timing_cache" and not isinstance(value, bool):
            raise RequestError(
                "timing_cache must be true or false: its file is the server's.",
                remedy="Write true for a cache in the server's cache folder.",
            )
        if name == "backend" and not isinstance(value, str):
            raise RequestError(
                "backend must be a name.", remedy="Write 'tensorrt' or 'tensorrt_rtx'."
            )
        wanted[name] = value
    return wanted


def elapsed_s(build: Build) -> float:
    """Give the seconds since a build began to run; 0 if it never did."""
    return round(build.now(), 6) if "running" in build.entered_at else 0.0


def describe(build: Build, *, rows: int = 40) -> dict[str, Any]:
    """Say how a build stands, in plain data for answers.

    Parameters
    ----------
    rows
        Phase paths at most.

    Returns
    -------
    dict
        ``name``, ``status``, ``reason``, ``backend``, ``device``, ``progress`` (0 to 1 or None),
        ``eta_s``, ``elapsed_s``, ``exceeded``, ``basis``, ``waiting_for``, ``phase`` (path of the
        innermost open one or None), ``phases`` (list of ``path``, ``depth``, ``status``, ``step``,
        ``total``, ``count``, ``elapsed_s``), ``more_phases`` (paths without a row), ``warnings``
        (count), ``engine_bytes``, ``result`` (as the stream's ``end`` has it, or None), ``error``
        (``class``, ``cause``, ``remedy``, ``evidence`` ..., or None).
    """
    with build.lock:
        now = build.now()
        shown, more = choose_rows(build.tree, rows)
        result = build.result
        ended = ended_event(build) if result is not None else None
        innermost = build.tree.open_phases
        phases = [
            {
                "path": clipped(PATH_SEPARATOR.join(row.node.path), MAX_PATH),
                "depth": row.node.depth,
                "status": row.node.status,
                "step": row.node.step,
                "total": row.node.step_total,
                "count": row.node.count,
                "elapsed_s": round(build.tree.total_s(row.node, now), 6),
            }
            for row in shown
        ]
        return {
            "name": build.name,
            "status": build.status,
            "reason": build.last_status.reason,
            "backend": str(build.backend),
            "device": result.device if result else None,
            "progress": build.progress,
            "eta_s": build.eta_s,
            "elapsed_s": elapsed_s(build),
            "exceeded": build.exceeded,
            "basis": build.basis,
            "waiting_for": build.waiting_for,
            "phase": clipped(PATH_SEPARATOR.join(innermost[-1]), MAX_PATH) if innermost else None,
            "phases": phases,
            "more_phases": more + sum(row.folded for row in shown),
            "warnings": sum(message.severity == "warning" for message in build.messages),
            "engine_bytes": result.engine_bytes if result else None,
            "result": None
            if ended is None
            else {
                "status": ended.status,
                "ended_by": ended.ended_by,
                "reason": ended.reason,
                "engine": ended.engine,
                "engine_bytes": ended.engine_bytes,
                "peak_memory_bytes": ended.peak_memory_bytes,
                "notes": list(ended.notes),
                **ended.facts,
            },
            "error": to_record(result.error) if result and result.error else None,
        }
