"""Earlier builds and their times, in a SQLite file in the user's data folder.

What a build took is worth knowing at the next one, and worth nothing if it gets in the way. So
nothing here ever raises into a build: where the file is broken, locked, not writable or of a newer
version, the history is empty and :attr:`History.note` says why.

The file is opened for each call and closed again: nothing is left to share between threads or to
inherit by a fork. Writing takes one immediate transaction with the rollback journal, which, unlike
a write-ahead log, also works where the home folder is on a network. A process that is killed in it
leaves the file as it was before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    from trt_widget.phases import PhaseTree

__all__ = [
    "MAX_BUILDS",
    "MAX_BUILDS_PER_KEY",
    "VARIABLE",
    "BuildKey",
    "BuildRecord",
    "History",
    "PhaseTimes",
    "phase_times",
]

#: Environment variable that names another file, or says ``off``.
VARIABLE: Final = "TRT_WIDGET_HISTORY"
#: Builds kept of one key, and in all. The oldest go first.
MAX_BUILDS_PER_KEY: Final = 20
MAX_BUILDS: Final = 2_000
#: Paths kept of one build, those that took longest; a build of TensorRT has some dozens.
MAX_PATHS: Final = 300
#: Moments kept of a path that opens many times.
MAX_MARKS: Final = 9

_FILE: Final = "history.sqlite3"
# "TRTw": a file that does not carry it is somebody else's and never written to.
_APPLICATION_ID: Final = 0x54525477
_APPLICATION_ID_AT: Final = 68  # of SQLite's file format
# Others hold the file for some milliseconds.
_PATIENCE_S: Final = 2.0
_FIELDS: Final = (
    *("network", "package", "version", "target"),
    *("options", "executor", "timing_cache"),
)

_FORGET_OF_KEY: Final = """DELETE FROM builds WHERE id IN (
    SELECT id FROM builds WHERE key = ? ORDER BY finished_at DESC, id DESC LIMIT -1 OFFSET ?
)"""
_FORGET: Final = """DELETE FROM builds WHERE id IN (
    SELECT id FROM builds ORDER BY finished_at DESC, id DESC LIMIT -1 OFFSET ?
)"""

# From version n to n + 1. Entries are never changed, only added.
_MIGRATIONS: Final = (
    (
        f"""CREATE TABLE builds (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL,
            {", ".join(f"{name} TEXT NOT NULL" for name in _FIELDS)},
            size TEXT NOT NULL,
            finished_at REAL NOT NULL,
            duration_s REAL NOT NULL,
            phases BLOB NOT NULL
        )""",
        "CREATE INDEX builds_of_key ON builds (key, finished_at)",
    ),
    ("CREATE INDEX builds_by_age ON builds (finished_at)",),
)


@dataclass(frozen=True)
class BuildKey:
    """What makes two builds comparable.

    Attributes
    ----------
    network
        Hash of the model's content.
    package, version
        The TensorRT package and its version.
    target
        The GPU, or what is built for without one.
    options
        Digest of the options that have an influence on the time.
    executor
        Where the builder runs.
    timing_cache
        ``"none"``, ``"cold"`` or ``"warm"``.
    size
        How large the network is, by name: ``layers``, ``parameters``, ``operators`` and whatever
        else is known. It is no part of the identity: the hash decides.
    """

    network: str
    package: str
    version: str
    target: str = ""
    options: str = ""
    executor: str = ""
    timing_cache: str = "none"
    size: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def digest(self) -> str:
        """One text for all that makes the identity."""
        values = json.dumps([str(getattr(self, name)) for name in _FIELDS])
        return hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class PhaseTimes:
    """When the instances of one path ran, in seconds since the build began.

    Attributes
    ----------
    start_s, end_s
        Start of the first instance and end of the last.
    total_s
        Sum of the instances' durations.
    count
        Number of instances.
    marks
        Starts of up to :data:`MAX_MARKS` instances: with n marks, the one at position i belongs to
        instance ``i * (count - 1) // (n - 1)``. Empty where it is not known.
    """

    start_s: float
    end_s: float
    total_s: float
    count: int = 1
    marks: tuple[float, ...] = ()


@dataclass(frozen=True)
class BuildRecord:
    """What one finished build took.

    Attributes
    ----------
    duration_s
        From the start of the build to its end.
    phases
        The times of each phase path.
    finished_at
        Seconds since the epoch.
    """

    duration_s: float
    phases: Mapping[tuple[str, ...], PhaseTimes]
    finished_at: float


class _Guard:
    """Turns whatever goes wrong in its block into a note."""

    def __init__(self, history: History, what: str) -> None:
        self._history = history
        self._what = what

    def __enter__(self) -> None:
        self._history.note = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self._history.note = f"The history of builds could not be {self._what}: {error}."
        return isinstance(error, Exception)


class History:
    """The builds of the past.

    Parameters
    ----------
    path
        The file. By default the environment variable :data:`VARIABLE` names it, or switches the
        history off with ``off``; without the variable it is in the user's data folder.

    Attributes
    ----------
    path
        The file, or None where the history is switched off.
    note
        What the last call could not do, in a sentence for people, or None.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.note: str | None = None
        self.path: Path | None = None
        self._own = False
        with self._guard("found"):
            given = os.environ.get(VARIABLE, "") if path is None else os.fspath(path)
            if not given:
                import platformdirs

                folder = platformdirs.user_data_path("trt_widget", appauthor=False)
                self.path, self._own = folder / _FILE, True
            elif path is not None or given.strip().lower() != "off":
                self.path = Path(given).expanduser()

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self.path is not None

    def record(self, key: BuildKey, record: BuildRecord) -> bool:
        """Keep what a build took.

        Returns
        -------
        bool
            Whether it is kept; if not, :attr:`note` says why (None where it is switched off).
        """
        if self.path is None:
            return False
        with self._guard("written"):
            if not (math.isfinite(record.duration_s) and record.duration_s > 0.0):
                raise ValueError("a build's duration has to be a positive number")
            row = (
                key.digest,
                *(_plain(str(getattr(key, name))) for name in _FIELDS),
                json.dumps(_numbers(key.size)),
                float(record.finished_at),
                float(record.duration_s),
                _pack(record.phases),
            )
            try:
                self._write(row)
            except Exception as error:
                if not self._move_aside(error):
                    raise
                self._write(row)
            return True
        return False

    def similar(self, key: BuildKey, limit: int = MAX_BUILDS_PER_KEY) -> list[BuildRecord]:
        """Give the builds of the same key, the newest first."""
        sql = "SELECT * FROM builds WHERE key = ? ORDER BY finished_at DESC, id DESC LIMIT ?"
        return [record for _, record in self._read(sql, (key.digest, limit))]

    def others(
        self, key: BuildKey, limit: int = 120, each: int = 2
    ) -> list[tuple[BuildKey, BuildRecord]]:
        """Give builds of other networks that were built in the same way, the newest first.

        Options do not count: input profiles alone make those of each network different.

        Parameters
        ----------
        limit
            Builds in all: each takes about a millisecond to read.
        each
            Builds of one network, the newest ones.
        """
        same = ("package", "version", "target", "executor", "timing_cache")
        where = " AND ".join(f"{name} = ?" for name in same)
        newest = "ORDER BY finished_at DESC, id DESC"
        sql = (
            f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY network {newest}) AS nth "  # noqa: S608 - fixed names
            f"FROM builds WHERE network != ? AND {where}) WHERE nth <= ? {newest} LIMIT ?"
        )
        values = [_plain(str(getattr(key, name))) for name in ("network", *same)]
        return list(self._read(sql, (*values, each, limit)))

    def clear(self) -> bool:
        """Forget everything; a broken file in the user's data folder is removed.

        Returns
        -------
        bool
            Whether nothing is left; if not, :attr:`note` says why.
        """
        if self.path is None or not self.path.exists():
            return True
        with self._guard("cleared"):
            try:
                with self._open(create=False) as connection:
                    connection.execute("DELETE FROM builds")
                    connection.execute("COMMIT")
                    connection.execute("VACUUM")
            except Exception as error:
                if not self._move_aside(error):
                    raise
                self._broken.unlink(missing_ok=True)
                self.note = None
            return True
        return False

    # ------------------------------------------------------------------ the file

    @property
    def _broken(self) -> Path:
        assert self.path is not None  # noqa: S101 - for mypy
        return self.path.with_name(self.path.name + ".broken")

    def _guard(self, what: str) -> _Guard:
        return _Guard(self, what)

    def _write(self, row: tuple[Any, ...]) -> None:
        assert self.path is not None  # noqa: S101 - for mypy
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = ("key", *_FIELDS, "size", "finished_at", "duration_s", "phases")
        marks = ", ".join("?" * len(names))
        with self._open(create=True) as connection:
            connection.execute(
                f"INSERT INTO builds ({', '.join(names)}) VALUES ({marks})",  # noqa: S608 - fixed names
                row,
            )
            connection.execute(_FORGET_OF_KEY, (row[0], MAX_BUILDS_PER_KEY))
            connection.execute(_FORGET, (MAX_BUILDS,))
            connection.execute("COMMIT")

    def _read(self, sql: str, values: tuple[Any, ...]) -> Iterator[tuple[BuildKey, BuildRecord]]:
        rows: list[sqlite3.Row] = []
        if self.path is None:
            return iter(())
        with self._guard("read"):
            if self.path.exists():
                try:
                    with self._open(create=False, write=False) as connection:
                        rows = connection.execute(sql, values).fetchall()
                except Exception as error:
                    if not self._move_aside(error):
                        raise
        return (found for row in rows if (found := _unpack(row)) is not None)

    @contextlib.contextmanager
    def _open(self, *, create: bool, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Open the file, bring it up to date, and begin a transaction if it is to be written."""
        import sqlite3

        assert self.path is not None  # noqa: S101 - for mypy
        # rw: a file that is not writable is read; and what a killed process left is rolled back.
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        connection = sqlite3.connect(uri, timeout=_PATIENCE_S, uri=True, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            if write or self._version(connection) < len(_MIGRATIONS):
                connection.execute("BEGIN IMMEDIATE")
                for version in range(self._version(connection), len(_MIGRATIONS)):
                    for statement in _MIGRATIONS[version]:
                        connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                if not write:
                    connection.execute("COMMIT")
            yield connection
        finally:
            connection.close()  # rolls back what was not committed

    def _version(self, connection: sqlite3.Connection) -> int:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION_ID and (tables or version or application):
            raise ValueError(f"{self.path} is the database of another program")
        if version > len(_MIGRATIONS):
            raise ValueError(f"{self.path} was written by a newer version of trt_widget")
        return int(version)

    def _move_aside(self, error: Exception) -> bool:
        """Give a broken file another name, if it is one and it is ours; the history starts anew."""
        import sqlite3

        # Subclasses stand for locked, full, read-only: not for a broken file.
        if type(error) is not sqlite3.DatabaseError or self.path is None:
            return False
        if not self._own:
            with self.path.open("rb") as file:
                header = file.read(100)
            written = header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]
            if written != _APPLICATION_ID.to_bytes(4, "big"):
                return False
        self.path.replace(self._broken)
        # A journal is applied to whatever has the name of its database.
        self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
        self.note = f"The history of builds was broken and starts anew; see {self._broken.name}."
        return True


def phase_times(tree: PhaseTree) -> dict[tuple[str, ...], PhaseTimes]:
    """Give the times of all paths of a build that has ended."""
    starts: dict[str, list[float]] = {}
    columns = tree.span_columns()
    for path, start in zip(columns["path"], columns["start_s"], strict=True):
        starts.setdefault(path, []).append(start)
    table = tree.timing_columns()
    found = {}
    for node, path, total in zip(tree.walk(), table["path"], table["total_s"], strict=True):
        known = sorted(starts.get(path, ()))
        marks: tuple[float, ...] = ()
        if 1 < node.count == len(known):
            many = min(MAX_MARKS, node.count)
            marks = tuple(known[i * (node.count - 1) // (many - 1)] for i in range(many))
        end = tree.now if node.ended is None else node.ended
        found[node.path] = PhaseTimes(
            min([*known[:1], node.started]), end, total, node.count, marks
        )
    return found


def _plain(text: str) -> str:
    """Replace what SQLite cannot store, such as half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _numbers(size: Mapping[str, float]) -> dict[str, float]:
    return {str(name): value for name, value in size.items() if math.isfinite(value)}


def _pack(phases: Mapping[tuple[str, ...], PhaseTimes]) -> bytes:
    longest = sorted(phases.items(), key=lambda item: item[1].total_s, reverse=True)[:MAX_PATHS]
    columns = [[list(path), t.start_s, t.end_s, t.total_s, t.count, t.marks] for path, t in longest]
    return zlib.compress(json.dumps(columns, allow_nan=False).encode())


def _unpack(row: sqlite3.Row) -> tuple[BuildKey, BuildRecord] | None:
    """Make the objects of a row; None where there is nothing sensible in it."""
    try:
        size = {str(name): float(value) for name, value in json.loads(row["size"]).items()}
        key = BuildKey(**{name: row[name] for name in _FIELDS}, size=size)
        phases = {
            tuple(map(str, path)): PhaseTimes(
                float(start), float(end), float(total), int(count), tuple(map(float, marks))
            )
            for path, start, end, total, count, marks in json.loads(zlib.decompress(row["phases"]))
        }
        return key, BuildRecord(float(row["duration_s"]), phases, float(row["finished_at"]))
    except (zlib.error, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return None
