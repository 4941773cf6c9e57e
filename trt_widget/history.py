"""Earlier builds and their times, in a SQLite file in the user's data folder.

What a build took is worth knowing at the next one, and worth nothing if it gets in the way. So
nothing here ever raises into a build: where the file is broken, locked, not writable or of a newer
version, the history is empty and :attr:`History.note` says why.

The file is opened for each call and closed again: nothing is left to share between threads or to
inherit by a fork. Writing takes one immediate transaction with the rollback journal, which, unlike
a write-ahead log, also works where the home folder is on a network. A process that is killed in it
leaves the file as it was before.

Builds are ordered by when they were put in, not by what the clock said: a clock can be wrong.
Whatever is in a row is checked; one that makes no sense is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping

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

_T = TypeVar("_T")

#: Environment variable that names another file, or says ``off`` (``0``, ``no``, ``false``).
VARIABLE: Final = "TRT_WIDGET_HISTORY"
#: Builds kept of one key, and in all. The oldest go first.
MAX_BUILDS_PER_KEY: Final = 20
MAX_BUILDS: Final = 2_000
#: Paths kept of one build, those that took longest; a build of TensorRT has some dozens.
MAX_PATHS: Final = 300
#: Moments kept of a path that opens many times.
MAX_MARKS: Final = 9

_OFF: Final = ("off", "0", "no", "false")
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

# Characters of a field, and of the sizes; bytes of the phases of one build, packed or not, and of
# those that one call reads. Ordinary builds stay far below.
_MAX_TEXT: Final = 2_000
_MAX_SIZE: Final = 10_000
_MAX_PHASES: Final = 500_000
_MAX_READ: Final = 20_000_000
# Three centuries: sums of such times stay finite.
_LONGEST_S: Final = 1e10
_MAX_COUNT: Final = 2**63

# What is larger is not even loaded: only the lengths are looked at.
_READABLE: Final = " AND ".join(
    [
        *(f"length({name}) <= {_MAX_TEXT}" for name in _FIELDS),
        f"length(size) <= {_MAX_SIZE}",
        f"typeof(phases) = 'blob' AND length(phases) <= {_MAX_PHASES}",
    ]
)
_SIMILAR: Final = f"SELECT * FROM builds WHERE key = ? AND {_READABLE} ORDER BY id DESC LIMIT ?"  # noqa: S608 - fixed names
_SAME: Final = ("package", "version", "target", "executor", "timing_cache")
_OTHERS: Final = f"""SELECT * FROM builds WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY network ORDER BY id DESC) AS nth
        FROM builds WHERE network != ? AND {" AND ".join(f"{name} = ?" for name in _SAME)}
        AND {_READABLE}
    ) WHERE nth <= ? ORDER BY id DESC LIMIT ?
) ORDER BY id DESC"""  # noqa: S608 - fixed names
_FORGET_OF_KEY: Final = """DELETE FROM builds WHERE id IN (
    SELECT id FROM builds WHERE key = ? ORDER BY id DESC LIMIT -1 OFFSET ?
)"""
_FORGET: Final = """DELETE FROM builds WHERE id IN (
    SELECT id FROM builds ORDER BY id DESC LIMIT -1 OFFSET ?
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
    # In order of their ids, which every index has at its end.
    (
        "DROP INDEX IF EXISTS builds_of_key",
        "DROP INDEX IF EXISTS builds_by_age",
        "CREATE INDEX builds_of_key ON builds (key)",
    ),
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


def switched_off() -> bool:
    """Whether the environment variable switches the history off."""
    return os.environ.get(VARIABLE, "").strip().lower() in _OFF


class _Guard:
    """Turns whatever goes wrong in its block into a note."""

    def __init__(self, history: History, what: str) -> None:
        self._history = history
        self._what = what

    def __enter__(self) -> None:
        self._history.note = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self._history.note = (
                f"The history of builds could not be {self._what}: {error} ({self._history.path}). "
                f"The environment variable {VARIABLE} names another file, or says off."
            )
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
            elif path is not None or not switched_off():
                self.path = Path(given).expanduser()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'off' if self.path is None else repr(str(self.path))})"

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self.path is not None

    def obstacle(self) -> str | None:
        """Say why nothing can be kept, as far as that is seen without writing, or ``None``."""
        if self.path is None:
            return None
        with self._guard("written"):
            folder = next(parent for parent in self.path.absolute().parents if parent.exists())
            if not folder.is_dir():
                raise NotADirectoryError(f"{folder} is no folder")
            # The folder in any case: a transaction makes a file beside the database.
            for place in (folder, self.path) if self.path.exists() else (folder,):
                if not os.access(place, os.W_OK):
                    raise PermissionError(f"{place} may not be written to")
        return self.note

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
            row = (
                key.digest,
                *(_plain(str(getattr(key, name))) for name in _FIELDS),
                _pack_size(key.size),
                _moment(record.finished_at),
                _duration(record.duration_s),
                _pack(record.phases),
            )
            self._attempt(lambda: self._write(row))
            return True
        return False

    def similar(self, key: BuildKey, limit: int = MAX_BUILDS_PER_KEY) -> list[BuildRecord]:
        """Give the builds of the same key, the newest first: the one that was put in last."""
        return [record for _, record in self._read(_SIMILAR, (key.digest, limit))]

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
        values = [_plain(str(getattr(key, name))) for name in ("network", *_SAME)]
        return self._read(_OTHERS, (*values, each, limit))

    def clear(self) -> bool:
        """Forget everything; a broken file in the user's data folder is removed.

        Returns
        -------
        bool
            Whether nothing is left; if not, :attr:`note` says why.
        """
        if self.path is None:
            return True
        with self._guard("cleared"):
            self._attempt(self._empty)
            if self._own or self.note is not None:  # now or earlier moved aside
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

    def _attempt(self, work: Callable[[], _T]) -> _T:
        """Do it; once more where the file was broken, or moved aside by another process."""
        import sqlite3

        before = self._identity()
        try:
            return work()
        except sqlite3.DatabaseError as error:
            # An open file that is moved is no longer written to: not whatever was the matter.
            moved = isinstance(error, sqlite3.OperationalError) and self._identity() != before
            if not moved and not self._move_aside(error, before):
                raise
        return work()

    def _identity(self) -> tuple[int, int] | None:
        """Say which file has the name, whatever is in it; None where there is none."""
        assert self.path is not None  # noqa: S101 - for mypy
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

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

    def _empty(self) -> None:
        if self._identity() is None:
            return
        with self._open(create=False) as connection:
            connection.execute("DELETE FROM builds")
            connection.execute("COMMIT")
            connection.execute("VACUUM")

    def _read(self, sql: str, values: tuple[Any, ...]) -> list[tuple[BuildKey, BuildRecord]]:
        if self.path is None:
            return []
        with self._guard("read"):
            return _unpack_all(self._attempt(lambda: self._rows(sql, values)))
        return []

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        if self._identity() is None:
            return []
        with self._open(create=False, write=False) as connection:
            return connection.execute(sql, values).fetchall()

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

    def _move_aside(self, error: Exception, which: tuple[int, int] | None) -> bool:
        """Give a broken file another name, if it is one and it is ours; the history starts anew.

        Parameters
        ----------
        which
            The file that was found broken. Where another one has its name by now, another process
            was faster.

        Returns
        -------
        bool
            Whether it is worth another try.
        """
        import sqlite3

        # Subclasses stand for locked, full, read-only: not for a broken file.
        if type(error) is not sqlite3.DatabaseError or self.path is None:
            return False
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return True
        with file:
            written = file.read(100)[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]
            _lock(file)
            if self._identity() != which:
                return True
            if not self._own and written != _APPLICATION_ID.to_bytes(4, "big"):
                return False
            # A journal is applied to whatever has the name of its database, the next one, too.
            self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
            if sys.platform != "win32":
                self.path.replace(self._broken)
        if sys.platform == "win32":  # where an open file keeps its name
            self.path.replace(self._broken)
        self.note = f"The history of builds was broken and starts anew; see {self._broken.name}."
        return True


def _lock(file: BinaryIO) -> None:
    """Let one process after the other move a file, until it is closed."""
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)


def phase_times(tree: PhaseTree) -> dict[tuple[str, ...], PhaseTimes]:
    """Give the times of all paths of a build that has ended."""
    starts: dict[int, list[float]] = {}
    spans = zip(tree.span_nodes(), tree.span_columns()["start_s"], strict=True)
    for node, start in spans:
        starts.setdefault(node.index, []).append(start)
    found = {}
    for node, total in zip(tree.walk(), tree.timing_columns()["total_s"], strict=True):
        known = sorted(starts.get(node.index, ()))
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
    """Replace what SQLite cannot store, such as half of a surrogate pair; shorten."""
    return text.encode("utf-8", "replace").decode("utf-8")[:_MAX_TEXT]


# ---- what a row holds: checked when it is written, and again when it is read ---------------------


def _moment(value: object) -> float:
    number = float(value)  # type: ignore[arg-type] # whatever it is: a TypeError is meant
    if not math.isfinite(number):
        raise ValueError("a time has to be a finite number")
    return number


def _duration(value: object) -> float:
    number = _seconds(value)
    if number <= 0.0:
        raise ValueError("a build's duration has to be a positive number")
    return number


def _seconds(value: object) -> float:
    number = float(value)  # type: ignore[arg-type] # whatever it is: a TypeError is meant
    if not 0.0 <= number <= _LONGEST_S:
        raise ValueError(f"a time has to be a number from 0 to {_LONGEST_S:.0e}")
    return number


def _phase(entry: Iterable[Any]) -> tuple[tuple[str, ...], PhaseTimes]:
    path, start, end, total, count, marks = entry
    if not path or not isinstance(path, list) or not all(isinstance(name, str) for name in path):
        raise ValueError("a path has to be a list of names")
    if not isinstance(count, int) or not 0 <= count < _MAX_COUNT or len(marks) > MAX_MARKS:
        raise ValueError("the instances of a path are more than there can be")
    times = PhaseTimes(
        _seconds(start), _seconds(end), _seconds(total), count, tuple(map(_seconds, marks))
    )
    return tuple(path), times


def _pack_size(size: Mapping[str, float]) -> str:
    text = json.dumps({str(name): value for name, value in size.items() if math.isfinite(value)})
    if len(text) > _MAX_SIZE:
        raise ValueError("the network has more sizes than can be kept")
    return text


def _pack(phases: Mapping[tuple[str, ...], PhaseTimes]) -> bytes:
    longest = sorted(phases.items(), key=lambda item: item[1].total_s, reverse=True)[:MAX_PATHS]
    texts = []
    left = _MAX_PHASES - 1_000  # packing makes it longer, if anything, by some bytes
    for path, t in longest:
        entry = [list(path), t.start_s, t.end_s, t.total_s, t.count, list(t.marks)]
        _phase(entry)
        text = json.dumps(entry)
        if len(text) < left:
            left -= len(text) + 1
            texts.append(text)
    return zlib.compress(f"[{','.join(texts)}]".encode())


def _unpack_all(rows: Iterable[sqlite3.Row]) -> list[tuple[BuildKey, BuildRecord]]:
    """Make the objects of the rows, as many as may be read; without those that make no sense."""
    found = []
    left = _MAX_READ
    for row in rows:
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(row["phases"], _MAX_PHASES)
            left -= len(text)
            if left < 0:
                break
            if unpacker.eof:
                found.append(_unpack(row, text))
        except Exception:  # noqa: BLE001, S112 - whatever is in a row, the others are to be read
            continue
    return found


def _unpack(row: sqlite3.Row, text: bytes) -> tuple[BuildKey, BuildRecord]:
    size = {name: _moment(value) for name, value in json.loads(row["size"]).items()}
    entries = json.loads(text)
    if len(entries) > MAX_PATHS:
        raise ValueError("it has more paths than are kept")
    phases = dict(map(_phase, entries))
    key = BuildKey(**{name: _text(row[name]) for name in _FIELDS}, size=size)
    return key, BuildRecord(_duration(row["duration_s"]), phases, _moment(row["finished_at"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a field has to be text")
    return value
