"""The history of builds: a real file, real processes that write to it and die in it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from trt_widget import history as module
from trt_widget.events import PhaseFinished, PhasesCompleted, PhaseStarted
from trt_widget.history import BuildKey, BuildRecord, History, PhaseTimes, phase_times
from trt_widget.phases import OTHER, PhaseTree

ROOT = Path(__file__).parents[2]
PHASES = {
    ("Building engine",): PhaseTimes(0.1, 1.9, 1.8, 1),
    ("Building engine", "Tactics"): PhaseTimes(0.2, 1.0, 0.5, 3, (0.2, 0.5, 0.9)),
}


def key(network: str = "mlp", **changes: Any) -> BuildKey:
    values = {"package": "tensorrt_rtx", "version": "1.7", "size": {"layers": 6.0}, **changes}
    return BuildKey(network, **values)


def record(finished_at: float = 1.0, duration_s: float = 2.0, **changes: Any) -> BuildRecord:
    return BuildRecord(duration_s, changes.get("phases", PHASES), finished_at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "history.sqlite3"


@pytest.fixture
def history(path: Path) -> History:
    return History(path)


def asked(path: Path, sql: str) -> Any:
    """Give the one value that a query finds."""
    connection = sqlite3.connect(path)
    try:
        (value,) = connection.execute(sql).fetchone()
        return value
    finally:
        connection.close()


def all_is_well(path: Path) -> bool:
    return bool(asked(path, "PRAGMA integrity_check") == "ok")


def rows(path: Path) -> int:
    return int(asked(path, "SELECT count(*) FROM builds"))


# ---- what is kept -------------------------------------------------------------------------------


def test_nothing_is_known_and_no_file_made_before_the_first_build(
    history: History, path: Path
) -> None:
    assert history.similar(key()) == []
    assert history.others(key()) == []
    assert history.note is None
    assert not path.parent.exists()


def test_a_build_comes_back_as_it_was(history: History, path: Path) -> None:
    assert history.record(key(), record())
    assert History(path).similar(key()) == [record()]
    assert history.note is None


def test_the_newest_build_comes_first(history: History) -> None:
    for finished in (2.0, 3.0, 1.0):
        assert history.record(key(), record(finished))
    # The one that was put in last, whatever the clock said.
    assert [found.finished_at for found in history.similar(key())] == [1.0, 3.0, 2.0]
    assert [found.finished_at for found in history.similar(key(), limit=1)] == [1.0]


def test_a_clock_that_was_ahead_does_not_stop_the_history(history: History) -> None:
    now, limit = 1_800_000_000.0, module.MAX_BUILDS_PER_KEY
    for number in range(limit):
        assert history.record(key(), record(now + 3_600 + number, 100.0))
        assert history.record(key("other"), record(now + 3_600 + number, 100.0))
    for number in range(10):
        assert history.record(key(), record(now + number, 10.0))
        assert history.record(key("other"), record(now + number, 10.0))
    durations = [found.duration_s for found in history.similar(key())]
    assert durations == [10.0] * 10 + [100.0] * (limit - 10)
    assert [found.duration_s for _, found in history.others(key("mine"), each=1)] == [10.0, 10.0]


def test_of_all_builds_those_go_that_were_put_in_first(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BUILDS", 3)
    for number in range(5):
        history.record(key(f"network {number}"), record(100.0 - number))
    kept = [other.network for other, _ in history.others(key("mine"))]
    assert kept == ["network 4", "network 3", "network 2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "other"},
        {"package": "tensorrt"},
        {"version": "1.8"},
        {"target": "H200"},
        {"options": "level 5"},
        {"executor": "thread"},
        {"timing_cache": "warm"},
    ],
)
def test_each_part_of_the_key_tells_builds_apart(history: History, changes: dict[str, str]) -> None:
    history.record(key(), record())
    assert history.similar(key(**{"network": "mlp", **changes})) == []


def test_the_size_is_no_part_of_the_identity(history: History) -> None:
    history.record(key(), record())
    assert len(history.similar(key(size={}))) == 1


def test_parts_of_the_key_do_not_run_into_each_other() -> None:
    assert key(target="ab", options="c").digest != key(target="a", options="bc").digest


def test_other_networks_come_with_their_size_and_only_those_built_alike(history: History) -> None:
    history.record(key("one"), record(1.0))
    history.record(key("two", options="other profiles"), record(2.0))
    history.record(key("three", target="H200"), record(3.0))
    history.record(key("mine"), record(4.0))
    found = history.others(key("mine"))
    assert [other.network for other, _ in found] == ["two", "one"]
    assert found[0][0].size == {"layers": 6.0}
    assert found[0][1] == record(2.0)


def test_of_each_other_network_the_newest_builds_come(history: History) -> None:
    history.record(key("once"), record(1.0))
    for when in range(5):
        history.record(key("often"), record(10.0 + when))
    found = [(other.network, made.finished_at) for other, made in history.others(key("mine"))]
    assert found == [("often", 14.0), ("often", 13.0), ("once", 1.0)]
    one = [other.network for other, _ in history.others(key("mine"), each=1)]
    assert one == ["often", "once"]
    assert len(history.others(key("mine"), limit=2)) == 2


@pytest.mark.parametrize("text", ["", "Bühler ✓", "half \ud800 a pair", "a\0b", "'; DROP TABLE"])
def test_any_text_can_be_in_a_key_and_a_path(history: History, text: str) -> None:
    made = record(phases={(text, text): PhaseTimes(0.0, 1.0, 1.0)})
    assert history.record(key(text), made), history.note
    assert history.similar(key(text)) == [made]
    assert history.note is None


@pytest.mark.parametrize("duration", [0.0, -1.0, float("nan"), float("inf")])
def test_a_duration_that_is_none_is_not_kept(history: History, duration: float) -> None:
    assert not history.record(key(), record(duration_s=duration))
    assert history.note
    assert history.similar(key()) == []


# ---- small --------------------------------------------------------------------------------------


def test_old_builds_of_a_key_go(history: History, path: Path) -> None:
    for finished in range(module.MAX_BUILDS_PER_KEY + 3):
        history.record(key(), record(float(finished)))
    kept = [found.finished_at for found in history.similar(key(), limit=1000)]
    assert kept == [float(n) for n in range(module.MAX_BUILDS_PER_KEY + 2, 2, -1)]
    assert rows(path) == module.MAX_BUILDS_PER_KEY


def test_old_builds_of_all_keys_go(
    history: History, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BUILDS", 10)
    for number in range(15):
        history.record(key(f"network {number}"), record(float(number)))
    assert rows(path) == 10
    assert history.similar(key("network 4")) == []
    assert len(history.similar(key("network 5"))) == 1


def test_the_file_stops_growing(history: History, path: Path) -> None:
    # Long names of layers, as some versions of TensorRT put them into the names of phases.
    many = {
        ("root", f"layer {number} {os.urandom(40).hex()}"): PhaseTimes(0.0, 1.0, float(number))
        for number in range(1000)
    }
    sizes = []
    for finished in range(3 * module.MAX_BUILDS_PER_KEY):
        assert history.record(key(), record(float(finished), phases=many))
        sizes.append(path.stat().st_size)
    full = sizes[module.MAX_BUILDS_PER_KEY]
    assert max(sizes) < 1.1 * full
    assert max(sizes) < module.MAX_BUILDS_PER_KEY * module.MAX_PATHS * 200
    (newest, *_) = history.similar(key())
    assert len(newest.phases) == module.MAX_PATHS
    assert min(times.total_s for times in newest.phases.values()) == 1000 - module.MAX_PATHS


# ---- several processes, and a kill --------------------------------------------------------------

WRITER = """
import sys
from trt_widget.history import BuildKey, BuildRecord, History, PhaseTimes
history = History(sys.argv[1])
name, count = sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
for number in range(count):
    kept = history.record(
        BuildKey(f"{name}-{number % 50}", "tensorrt_rtx", "1.7"),
        BuildRecord(1.0, {("a", str(n)): PhaseTimes(0.0, 1.0, 1.0) for n in range(100)}, number),
    )
    print(number if kept else history.note, flush=True)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_several_processes_write_at_once_and_nothing_is_lost(path: Path) -> None:
    writers = [start(WRITER, path, f"writer{number}", 15) for number in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        said, _ = writer.communicate(timeout=60)
        assert said.split() == [str(number) for number in range(15)]
    assert rows(path) == 4 * 15
    assert all_is_well(path)


def test_a_process_that_is_killed_in_the_middle_of_writing_leaves_the_rest(
    history: History, path: Path
) -> None:
    for number in range(5):
        history.record(key(f"network {number}"), record())
    before = rows(path)
    # Changes go to the file before the commit: more than fits into the cache, and synced.
    writer = start(
        """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 2")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE builds SET network = 'changed', phases = zeroblob(100000)")
print("in the middle", flush=True)
sys.stdin.readline()
""",
        path,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline().strip() == "in the middle"
    assert path.with_name(path.name + "-journal").stat().st_size > 0
    writer.kill()
    writer.wait()
    writer.communicate()
    assert len(history.similar(key("network 3"))) == 1, history.note
    assert rows(path) == before
    assert history.record(key("after"), record()), history.note
    assert all_is_well(path)


def test_kills_at_any_moment_lose_nothing_that_was_confirmed(history: History, path: Path) -> None:
    for round_ in range(4):
        writer = start(WRITER, path, f"round{round_}", 100_000)
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        confirmed = [writer.stdout.readline().strip() for _ in range(5 + 3 * round_)]
        time.sleep(0.003 * round_)
        writer.kill()
        writer.wait()
        confirmed += writer.stdout.read().split()
        writer.stdin.close()
        writer.stdout.close()
        last = max(int(number) for number in confirmed if number.isdigit())
        found = history.similar(BuildKey(f"round{round_}-{last % 50}", "tensorrt_rtx", "1.7"))
        assert history.note is None
        assert found[0].finished_at >= last
        assert len(found[0].phases) == 100
    assert all_is_well(path)


# ---- whatever is wrong with the file ------------------------------------------------------------


def test_a_locked_file_costs_the_history_only(
    history: History, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    history.record(key(), record())
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        assert not history.record(key(), record())
        assert history.note
        assert "locked" in history.note
        assert history.similar(key()) == []
        assert "locked" in history.note
    finally:
        other.close()
    assert len(history.similar(key())) == 1
    assert history.note is None


@pytest.mark.parametrize("where", [200, 4096])
def test_a_broken_file_of_ours_is_moved_aside(history: History, path: Path, where: int) -> None:
    for number in range(30):
        history.record(key(f"network {number}"), record())
    data = bytearray(path.read_bytes())
    data[where:] = b"\x55" * (len(data) - where)
    path.write_bytes(data)
    assert history.record(key("new"), record()) or history.record(key("new"), record())
    assert len(history.similar(key("new"))) == 1
    assert path.with_name(path.name + ".broken").exists()
    assert all_is_well(path)


def test_a_file_that_is_not_ours_is_left_alone(history: History, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("my diary, which is long enough to be no empty database\n" * 100)
    before = path.read_bytes()
    assert not history.record(key(), record())
    assert history.note
    assert history.similar(key()) == []
    assert history.note
    assert not history.clear()
    assert history.note
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_left_alone(history: History, path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE builds (mine)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert not history.record(key(), record())
    assert history.note
    assert "another program" in history.note
    assert history.similar(key()) == []
    assert not history.clear()
    assert path.read_bytes() == before


def test_a_broken_file_at_the_usual_place_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = usual(tmp_path, monkeypatch)
    assert history.path is not None
    history.path.parent.mkdir(parents=True)
    history.path.write_bytes(b"\x55" * 10_000)
    assert history.similar(key()) == []
    assert history.note
    assert "anew" in history.note
    assert history.record(key(), record()), history.note
    assert len(history.similar(key())) == 1


def test_a_row_that_makes_no_sense_is_passed_over(history: History, path: Path) -> None:
    for finished in (1.0, 2.0, 3.0):
        history.record(key(), record(finished))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE builds SET phases = x'00' WHERE finished_at = 2")
    connection.execute("UPDATE builds SET size = '[]' WHERE finished_at = 3")
    connection.commit()
    connection.close()
    assert [found.finished_at for found in history.similar(key())] == [1.0]
    assert history.note is None


def packed(text: str) -> bytes:
    return zlib.compress(text.encode())


ENTRY = '[["a"], 0, 1, 1, 1, []]'
#: What can be wrong with a row: its column, and what is in it.
WRONG: dict[str, tuple[str, object]] = {
    "an endless count": ("phases", packed('[[["a"], 0, 1, 1, 1e999, []]]')),
    "half a count": ("phases", packed('[[["a"], 0, 1, 1, 1.5, []]]')),
    "a count below zero": ("phases", packed('[[["a"], 0, 1, 1, -1, []]]')),
    "a count of many digits": ("phases", packed(f'[[["a"], 0, 1, 1, {"9" * 400}, []]]')),
    "a time of many digits": ("phases", packed(f'[[["a"], 0, {"9" * 400}, 1, 1, []]]')),
    "more digits than are read": ("phases", packed(f'[[["a"], 0, {"9" * 9_999}, 1, 1, []]]')),
    "no number": ("phases", packed('[[["a"], NaN, 1, 1, 1, []]]')),
    "an endless time": ("phases", packed('[[["a"], 0, Infinity, 1, 1, []]]')),
    "a time below zero": ("phases", packed('[[["a"], 0, 1, -1, 1, []]]')),
    "a mark that is none": ("phases", packed('[[["a"], 0, 1, 1, 3, [0, NaN]]]')),
    "too many marks": ("phases", packed(f'[[["a"], 0, 1, 1, 20, {[0] * 20}]]')),
    "too many paths": ("phases", packed(f"[{','.join([ENTRY] * 301)}]")),
    "a path that is text": ("phases", packed('[["ab", 0, 1, 1, 1, []]]')),
    "a path of numbers": ("phases", packed("[[[1], 0, 1, 1, 1, []]]")),
    "an empty path": ("phases", packed("[[[], 0, 1, 1, 1, []]]")),
    "lists in lists": ("phases", packed("[" * 100_000)),
    "half a list": ("phases", packed("[")),
    "an entry too short": ("phases", packed('[[["a"], 0]]')),
    "no list": ("phases", packed("3")),
    "nothing": ("phases", b""),
    "cut off": ("phases", packed(f"[{ENTRY}]")[:-3]),
    "no bytes": ("phases", "text"),
    "far too long": ("phases", os.urandom(3_000_000)),
    "what unpacks to far too much": ("phases", packed(f"[{' ' * 100_000_000}]")),
    "a size of many digits": ("size", f'{{"layers": {"9" * 400}}}'),
    "a size that is none": ("size", '{"layers": NaN}'),
    "a size of sizes": ("size", '{"layers": {}}'),
    "too many sizes": ("size", f'{{"layers": 1{" " * 1_000_000}}}'),
    "sizes in lists": ("size", "[" * 9_000),
    "a field of bytes": ("options", b"abc"),
    "a field that is too long": ("options", "x" * 3_000_000),
    "a duration of text": ("duration_s", "abc"),
    "an endless duration": ("duration_s", float("inf")),
    "a duration below zero": ("duration_s", -1.0),
    "no duration": ("duration_s", 0.0),
    "an end that is no time": ("finished_at", float("-inf")),
    "an end of text": ("finished_at", "yesterday"),
}


@pytest.mark.parametrize("what", WRONG)
def test_whatever_is_wrong_with_a_row_costs_this_row_only(
    history: History, path: Path, what: str
) -> None:
    column, value = WRONG[what]
    assert history.record(key(), record(1.0))
    for name in ("mlp", "two"):
        assert history.record(key(name), record(2.0))
    connection = sqlite3.connect(path)
    statement = f"UPDATE builds SET {column} = ? WHERE finished_at = 2"  # noqa: S608 - ours
    assert connection.execute(statement, (value,)).rowcount == 2
    connection.commit()
    connection.close()
    assert history.record(key("three"), record(3.0))
    begin = time.perf_counter()
    tracemalloc.start()
    similar = history.similar(key())
    others = history.others(key())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert similar == [record(1.0)]
    assert [other.network for other, _ in others] == ["three"]
    assert history.note is None
    assert most < 40_000_000
    assert time.perf_counter() - begin < 10  # some milliseconds
    for number in range(module.MAX_BUILDS_PER_KEY):  # and it goes like any other
        assert history.record(key(), record(10.0 + number))
    assert len(history.similar(key())) == rows(path) - 2 == module.MAX_BUILDS_PER_KEY


def test_many_large_rows_are_read_up_to_a_bound(history: History, path: Path) -> None:
    for number in range(100):
        assert history.record(key(f"network {number}"), record(float(number)))
    connection = sqlite3.connect(path)
    text = f"[{ENTRY}{' ' * 490_000}]"
    connection.execute("UPDATE builds SET phases = ?", (packed(text),))
    connection.commit()
    connection.close()
    found = [other.network for other, _ in history.others(key())]
    assert found == [f"network {number}" for number in range(99, 59, -1)]
    assert history.note is None


def test_what_could_not_be_read_again_is_not_written(history: History) -> None:
    for wrong in (float("nan"), float("inf"), -1.0, 1e300):
        made = record(phases={("a",): PhaseTimes(0.0, wrong, 1.0)})
        assert not history.record(key(), made)
        assert history.note
        assert not history.record(key(), record(duration_s=wrong))
    for phases in (
        {(): PhaseTimes(0.0, 1.0, 1.0)},
        {("a",): PhaseTimes(0.0, 1.0, 1.0, -1)},
        {("a",): PhaseTimes(0.0, 1.0, 1.0, 10**30)},
        {("a",): PhaseTimes(0.0, 1.0, 1.0, 99, (0.0,) * 99)},
    ):
        assert not history.record(key(), record(phases=phases))
        assert history.note
    assert not history.record(key(size={"layers": 10**400}), record())
    assert history.note
    assert not history.record(key(size=dict.fromkeys(map(str, range(9_999)), 1.0)), record())
    assert history.note
    assert history.similar(key()) == []


def test_of_phases_with_very_long_names_those_are_kept_that_fit(history: History) -> None:
    long = tuple("\N{SNOWMAN}" * 500 for _ in range(40))
    phases = {(*long, str(n)): PhaseTimes(0.0, 1.0, 100.0 - n) for n in range(50)}
    phases["x" * 1_000_000,] = PhaseTimes(0.0, 1.0, 1_000.0)
    phases["short",] = PhaseTimes(0.0, 1.0, 0.5)
    made = record(phases=phases)
    assert history.record(key(target="t" * 5_000), made), history.note
    (found,) = history.similar(key(target="t" * 5_000))
    assert [path[-1] for path in found.phases] == ["0", "1", "2", "3", "short"]
    (other, _) = history.others(key("mine", target="t" * 5_000))[0]
    assert other.network == "mlp"


def test_reading_asks_an_index(history: History, path: Path) -> None:
    history.record(key(), record())
    connection = sqlite3.connect(path)
    plan = str(connection.execute(f"EXPLAIN QUERY PLAN {module._SIMILAR}", ("", 1)).fetchall())
    assert "builds_of_key" in plan
    assert "B-TREE" not in plan  # nothing is left to sort
    for sql, values in ((module._FORGET, (1,)), (module._FORGET_OF_KEY, ("", 1))):
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall())
        assert "B-TREE" not in plan
    connection.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_a_file_that_may_only_be_read_is_read(history: History, path: Path) -> None:
    history.record(key(), record())
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert len(history.similar(key())) == 1
        assert not history.record(key(), record())
        assert history.note
    finally:
        path.parent.chmod(0o700)


def test_a_folder_that_cannot_be_made_costs_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = History(tmp_path / "file" / "history.sqlite3")
    assert not history.record(key(), record())
    assert history.note
    assert history.similar(key()) == []


def test_a_folder_in_its_place_costs_the_history_only(history: History, path: Path) -> None:
    path.mkdir(parents=True)
    assert not history.record(key(), record())
    assert history.note
    assert history.similar(key()) == []
    assert history.note


def test_a_name_that_no_file_can_have_costs_the_history_only(tmp_path: Path) -> None:
    for name in ("x" * 5_000, "a\0b"):
        history = History(tmp_path / name)
        assert not history.record(key(), record())
        assert history.note
        assert history.similar(key()) == []
        assert history.note
        assert not history.clear()
        assert history.note


def test_several_processes_find_the_same_broken_file(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import os, platformdirs
os.environ.pop("TRT_WIDGET_HISTORY", None)
platformdirs.user_data_path = lambda *_, **__: Path(sys.argv[1])
from trt_widget.history import BuildKey, BuildRecord, History
history = History()
print("ready", flush=True)
sys.stdin.readline()
print(history.record(BuildKey(sys.argv[2], "p", "1"), BuildRecord(1.0, {}, 1.0)), history.note)
"""
    for trial in range(3):
        folder = tmp_path / str(trial)
        folder.mkdir()
        (folder / "history.sqlite3").write_bytes(os.urandom(50_000))
        writers = [start(script, folder, number) for number in range(5)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        said = [writer.communicate(timeout=60)[0] for writer in writers]
        assert [text for text in said if not text.startswith("True")] == []
        assert rows(folder / "history.sqlite3") == 5
        assert sum("anew" in text for text in said) == 1


def test_a_file_that_another_process_has_replaced_by_now_is_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = usual(tmp_path, monkeypatch)
    assert history.path is not None
    history.path.parent.mkdir(parents=True)
    history.path.write_bytes(b"\x55" * 10_000)
    find = History._rows

    def slow(self: History, sql: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        try:
            return find(self, sql, values)
        except sqlite3.DatabaseError:
            # In this very moment another one finds it broken, too, and goes on.
            monkeypatch.setattr(History, "_rows", find)
            assert History().record(key(), record())
            raise

    monkeypatch.setattr(History, "_rows", slow)
    assert history.similar(key()) == [record()]
    assert history.note is None


# ---- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [1, 2])
def test_a_file_of_an_older_version_is_brought_up_to_date(
    history: History, path: Path, monkeypatch: pytest.MonkeyPatch, older: int
) -> None:
    with monkeypatch.context() as old:
        old.setattr(module, "_MIGRATIONS", module._MIGRATIONS[:older])
        assert history.record(key(), record())
    assert version(path) == older
    assert history.similar(key()) == [record()]  # reading brings it up to date, too
    assert version(path) == len(module._MIGRATIONS)
    assert history.record(key(), record(2.0))
    assert len(history.similar(key())) == 2
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'")
    assert found.fetchall() == [("builds_of_key", "CREATE INDEX builds_of_key ON builds (key)")]
    connection.close()


def test_a_file_of_a_newer_version_is_left_alone(history: History, path: Path) -> None:
    history.record(key(), record())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    assert not history.record(key(), record())
    assert history.note
    assert "newer version" in history.note
    assert history.similar(key()) == []
    assert path.read_bytes() == before


def version(path: Path) -> int:
    return int(asked(path, "PRAGMA user_version"))


# ---- where, off, cleared ------------------------------------------------------------------------


def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """Give the history at the usual place, with the user's data folder in a temporary one."""
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path / "data")
    return History()


def test_it_is_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv(module.VARIABLE, raising=False)
    path = History().path
    assert path is not None
    assert path.is_relative_to(platformdirs.user_data_dir())
    assert path.name == "history.sqlite3"


def test_the_environment_names_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "mine"))
    assert History().path == tmp_path / "mine"
    assert History(tmp_path / "given").path == tmp_path / "given"


@pytest.mark.parametrize("text", ["off", "OFF", " off "])
def test_the_environment_switches_it_off(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(module.VARIABLE, text)
    history = History()
    assert not history.enabled
    assert not history.record(key(), record())
    assert history.similar(key()) == []
    assert history.others(key("x")) == []
    assert history.clear()
    assert history.note is None
    assert list(tmp_path.iterdir()) == []


def test_cleared_it_knows_nothing_and_goes_on(history: History, path: Path) -> None:
    assert history.clear()  # nothing there yet
    for number in range(50):
        history.record(key(f"network {number}"), record())
    size = path.stat().st_size
    assert history.clear()
    assert rows(path) == 0
    assert path.stat().st_size < size
    assert history.record(key(), record())
    assert len(history.similar(key())) == 1


def test_clearing_removes_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = usual(tmp_path, monkeypatch)
    assert history.path is not None
    history.path.parent.mkdir(parents=True)
    history.path.write_bytes(b"\x55" * 10_000)
    assert history.clear()
    assert list(history.path.parent.iterdir()) == []
    history.path.write_bytes(b"\x55" * 10_000)
    assert history.similar(key()) == []
    assert [found.name for found in history.path.parent.iterdir()] == ["history.sqlite3.broken"]
    assert history.clear()
    assert history.note is None
    assert list(history.path.parent.iterdir()) == []


# ---- from the tree ------------------------------------------------------------------------------


def test_times_are_those_of_the_tree() -> None:
    tree = PhaseTree()
    tree.apply(
        [
            PhaseStarted(1.0, "root", None, 2),
            PhasesCompleted(
                2.5, "leaf", "root", 0, (1.5, 2.0, 2.25), (1.75, 2.25, 2.5), (0, 0, 0), (1, 1, 1)
            ),
            PhaseFinished(4.0, "root"),
        ]
    )
    tree.close("succeeded", 5.0)
    assert phase_times(tree) == {
        ("root",): PhaseTimes(1.0, 4.0, 3.0, 1),
        ("root", "leaf"): PhaseTimes(1.5, 2.5, 0.75, 3, (1.5, 2.0, 2.25)),
    }


def test_many_instances_leave_few_marks() -> None:
    tree = PhaseTree()
    starts = tuple(float(number) for number in range(1000))
    ends = tuple(start + 0.5 for start in starts)
    tree.apply([PhasesCompleted(999.5, "leaf", None, 0, starts, ends, (0,) * 1000, (1,) * 1000)])
    tree.close("succeeded")
    (times,) = phase_times(tree).values()
    assert times.marks == (0.0, 124.0, 249.0, 374.0, 499.0, 624.0, 749.0, 874.0, 999.0)


def test_without_all_spans_the_times_are_still_there() -> None:
    tree = PhaseTree(max_spans=1)
    tree.apply([PhaseStarted(1.0, "a", None, 1), PhaseFinished(2.0, "a")])
    tree.apply([PhaseStarted(3.0, "a", None, 1), PhaseFinished(4.0, "a")])
    tree.apply([PhaseStarted(5.0, "b", None, 1), PhaseFinished(6.0, "b")])
    tree.close("succeeded")
    assert phase_times(tree) == {
        ("a",): PhaseTimes(1.0, 4.0, 2.0, 2),
        ("b",): PhaseTimes(5.0, 6.0, 1.0, 1),
    }


def test_names_that_join_to_the_same_text_are_not_mixed_up() -> None:
    tree = PhaseTree()
    tree.apply(
        [
            PhaseStarted(0.0, "a", None, 1),
            PhaseStarted(1.0, "b", "a", 1),
            PhaseFinished(2.0, "b"),
            PhaseFinished(3.0, "a"),
            PhaseStarted(10.0, "a > b", None, 1),
            PhaseFinished(12.0, "a > b"),
        ]
    )
    tree.close("succeeded")
    assert phase_times(tree) == {
        ("a",): PhaseTimes(0.0, 3.0, 3.0, 1),
        ("a", "b"): PhaseTimes(1.0, 2.0, 1.0, 1),
        ("a > b",): PhaseTimes(10.0, 12.0, 2.0, 1),
    }


def test_phases_that_are_not_kept_apart_have_their_times() -> None:
    tree = PhaseTree(max_paths=2)
    tree.apply([PhaseStarted(0.0, "a", None, 1), PhaseStarted(1.0, "b", "a", 1)])
    tree.apply([PhaseStarted(2.0, "c", "b", 1), PhaseStarted(3.0, "d", "c", 1)])
    tree.close("succeeded", 5.0)
    assert phase_times(tree) == {
        ("a",): PhaseTimes(0.0, 5.0, 5.0, 1),
        ("a", "b"): PhaseTimes(1.0, 5.0, 4.0, 1),
        ("a", "b", OTHER): PhaseTimes(2.0, 5.0, 5.0, 2, (2.0, 3.0)),
    }


@pytest.mark.parametrize("word", ["off", " OFF ", "0", "no", "False"])
def test_words_that_switch_it_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, word)
    history = History()
    assert not history.enabled
    assert repr(history) == "History(off)"
    assert history.obstacle() is None


def test_what_stands_in_the_way_is_said_before(tmp_path: Path) -> None:
    assert History(tmp_path / "a" / "b" / "h").obstacle() is None
    assert not (tmp_path / "a").exists(), "looking makes nothing"
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (file / "h", file / "a" / "h"):
        history = History(path)
        said = history.obstacle()
        assert said is not None, path
        assert said == history.note
        assert str(path) in said
        assert module.VARIABLE in said


def test_its_repr_says_where_it_is(tmp_path: Path) -> None:
    assert repr(History(tmp_path / "h")) == f"History({str(tmp_path / 'h')!r})"
