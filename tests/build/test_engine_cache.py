"""The engine cache with the real builder: what is built once is answered from then on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from tests import models
from trt_widget import Build, BuildCancelled, BuildWidget, CompareError, EngineCache, compare
from trt_widget._files import is_whole

if TYPE_CHECKING:
    from trt_widget import BuildResult

REPOSITORY = Path(__file__).parents[2]
NOTE = "The engine is from the cache, built in "


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return models.save_external(models.mlp(), folder / "mlp.onnx")


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines")


def built(source: Any, cache: Any, **options: Any) -> tuple[bytes, BuildResult]:
    build = Build(source, engine_cache=cache, **options).start()
    engine = bytes(build.wait(120))
    assert build.result is not None
    return engine, build.result


def entries(cache: EngineCache) -> list[Path]:
    assert cache.folder is not None
    return sorted(cache.folder.iterdir())


def rows_of(history: Path) -> int:
    import sqlite3

    with closing(sqlite3.connect(history)) as database:
        return int(database.execute("SELECT count(*) FROM builds").fetchone()[0])


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_the_second_build_is_answered(
    model: Path,
    cache: EngineCache,
    executor: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = tmp_path / "history.sqlite3"
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(history))
    engine, first = built(model, cache, executor=executor)
    assert (first.status, first.ended_by, first.notes) == ("succeeded", "completed", ())
    rows = rows_of(history)
    output = tmp_path / "saved.engine"
    again = Build(model, engine_cache=cache, executor=executor, output=output).start()
    assert bytes(again.wait(120)) == engine == output.read_bytes()
    result = again.result
    assert result is not None
    assert (result.status, result.ended_by, result.reason) == ("succeeded", "cached", None)
    assert (result.output, result.engine_bytes) == (output, len(engine))
    assert (result.device, result.layers) == (first.device, first.layers)
    (note,) = result.notes
    assert note.startswith(NOTE)
    assert again.tree.paths == 0, "nothing was built"
    assert rows_of(history) == rows, "what was not built took no time"
    assert len(entries(cache)) == 1
    page = again.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert NOTE in page
    assert "the engine was built before" in page


def test_the_card_says_so_and_its_times_are_not_compared(model: Path, cache: EngineCache) -> None:
    built(model, cache)
    w = BuildWidget(model, engine_cache=cache)
    with closing(w):
        w.start().wait(120)
        limit = time.monotonic() + 30
        while w.header["status"] != "succeeded":
            assert time.monotonic() < limit
            time.sleep(0.02)
        assert w.header["cached"] is True
        assert w.header["notes"][0].startswith(NOTE)
        assert NOTE in w._repr_mimebundle_()[0]["text/html"]
        with pytest.raises(CompareError, match="from the engine cache"):
            compare(w, w)


def test_where_the_builder_runs_does_not_matter(cache: EngineCache) -> None:
    data = models.mlp().SerializeToString()
    engine, _ = built(data, cache, executor="process")
    for source in (data, models.mlp()):
        again, result = built(source, cache, executor="thread")
        assert (result.ended_by, again) == ("cached", engine)


def test_what_is_another_build_is_built(model: Path, cache: EngineCache) -> None:
    for options in ({}, {"optimization_level": 1}, {"target": "SM86"}, {"flags": "TF32"}):
        _, result = built(model, cache, executor="thread", **options)
        assert result.ended_by == "completed"
    weights = model.with_name("weights.bin")
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    _, result = built(model, cache, executor="process")
    assert result.ended_by == "completed"
    assert len(entries(cache)) == 5
    assert built(model, cache, executor="process")[1].ended_by == "cached"
    assert EngineCache(cache.folder).info().entries == 5
    assert cache.clear() == 5
    assert built(model, cache)[1].ended_by == "completed"


def test_a_damaged_entry_is_built_anew(model: Path, cache: EngineCache) -> None:
    engine, _ = built(model, cache)
    (entry,) = entries(cache)
    data = bytearray(entry.read_bytes())
    data[len(engine) // 2] ^= 1
    entry.write_bytes(data)
    _, result = built(model, cache)
    assert result.ended_by == "completed"
    assert result.notes == (
        "The cached engine was damaged (its hash is another one): it is removed and built anew.",
    )
    assert built(model, cache)[1].ended_by == "cached"


def test_functions_off_and_a_bound(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configure(_builder: Any, _network: Any, config: Any) -> None:
        config.builder_optimization_level = 1

    folder = tmp_path / "engines"
    _, result = built(model, folder, configure=configure)
    assert result.notes == ("This build is not cached: nobody can tell what configure= does.",)
    monkeypatch.setenv("TRT_WIDGET_ENGINES", "off")
    for value in (True, False, None):
        _, result = built(model, value)
        assert (result.ended_by, result.notes) == ("completed", ())
    small = EngineCache(folder, max_bytes=100)
    _, result = built(model, small)
    (note,) = result.notes
    assert note.endswith("it is larger than the 100 bytes that the cache may take.")
    assert not folder.exists()


def test_a_folder_of_no_use_fails_no_build(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_bytes(b"mine")
    for executor in ("process", "thread"):
        _, result = built(model, folder / "cache", executor=executor)
        assert result.status == "succeeded"
        assert "The engine cache could not be" in result.notes[0]
        assert str(tmp_path) not in "".join(result.notes)
    assert folder.read_bytes() == b"mine"


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize("stop", ["cancel", "deadline"])
def test_it_can_be_stopped_while_the_model_is_read(
    model: Path, cache: EngineCache, executor: str, stop: str
) -> None:
    # A hole on the disk, which takes no room and half a minute to read at the very least.
    os.truncate(model.with_name("weights.bin"), 128 << 30)
    deadline = 1.0 if stop == "deadline" else None
    options: dict[str, Any] = {"executor": executor, "grace": 100, "timeout": deadline}
    build = Build(model, engine_cache=cache, **options).start()
    if stop == "cancel":
        limit = time.monotonic() + 60
        while build.status != "running":
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(0.3)  # wherever it is by then: it has to stop
        assert build.request_cancel()
    with pytest.raises(BuildCancelled):
        build.wait(60)
    result = build.result
    assert result is not None
    assert (result.status, result.ended_by) == ("cancelled", "before build")
    assert result.reason == ("user" if stop == "cancel" else "deadline")
    assert result.stop_latency_s is not None
    assert result.stop_latency_s < 25
    assert cache.info() == (0, 0)


def test_a_large_engine_that_is_mapped_stays_when_its_entry_goes(
    model: Path, cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_widget.engine_cache.LARGE", 100)
    engine, _ = built(model, cache, executor="thread")
    build = Build(model, engine_cache=cache, executor="thread").start()
    mapped = build.wait(120)
    assert build.result is not None
    assert build.result.ended_by == "cached"
    assert cache.clear() == 1
    assert is_whole(mapped)
    assert bytes(mapped) == engine


# ---- many processes -----------------------------------------------------------------------------


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


BUILDS = """
    import sys
    from trt_widget import Build
    model, folder = sys.argv[1:]
    build = Build(model, engine_cache=folder, executor="thread", exclusive=False)
    print("ready", flush=True)
    sys.stdin.readline()
    engine = build.start().wait()
    print(build.result.ended_by, len(engine), list(build.result.notes), flush=True)
"""


def test_ten_processes_build_the_same_at_once(model: Path, cache: EngineCache) -> None:
    processes = [python(BUILDS, model, cache.folder) for _ in range(10)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in processes)
    for line in said:
        ended_by, size, notes = line.split(" ", 2)
        assert ended_by in {"completed", "cached"}
        assert int(size) > 0
        assert ended_by == "cached" or notes == "[]\n"
    assert len(entries(cache)) == 1
    assert built(model, cache)[1].ended_by == "cached"


WRITES = """
    import os, sys
    from trt_widget.engine_cache import DamagedError, EngineCache
    folder, number, named = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "named"
    if named:
        del os.O_TMPFILE
    cache = EngineCache(folder, max_bytes=20_000_000)
    about = {"built_at": 1.0, "duration_s": 1.0, "device": None, "layers": None}
    print("ready", flush=True)
    turn = 0
    while True:
        turn += 1
        # Some keys are written by all, with different engines.
        key = f"{turn % 7:064x}"
        cache.write(key, bytes([number]) * (3_000_000 + turn % 5), about)
        found = cache.read(f"{(turn + 3) % 7:064x}", lambda: None)
        if found is not None and len(set(bytes(found.engine[::1000]))) != 1:
            print("mixed", flush=True)
        if turn == 5:
            print("going", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.parametrize("named", ["unnamed", "named"])
def test_processes_that_are_killed_while_they_write_leave_no_half_entry(
    cache: EngineCache, named: str
) -> None:
    assert cache.folder is not None
    rng = random.Random(6)  # noqa: S311 - no secret
    for turn in range(1, 4):
        processes = [python(WRITES, cache.folder, number, named) for number in range(4)]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                assert process.stdout.readline() == "going\n"
            for process in rng.sample(processes, len(processes)):
                time.sleep(rng.random() * 0.05)  # anywhere in its work
                process.send_signal(signal.SIGKILL)
            said = [process.communicate(timeout=60)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert said == [""] * 4, "no engine is of two writers, and none was damaged"
        assert all(process.returncode == -signal.SIGKILL for process in processes)
        found = 0
        for number in range(7):
            engine = cache.read(f"{number:064x}", lambda: None)
            if engine is not None:
                found += 1
                assert len(set(bytes(engine.engine))) == 1
        assert found == cache.info().entries > 0
        left = [path.name for path in entries(cache) if path.suffix != ".trtw"]
        assert all(name.startswith(".trt_widget-") for name in left)
        assert len(left) <= 4 * turn


# ---- what is told of it -------------------------------------------------------------------------


def test_the_command_line_and_who_follows_it(tmp_path: Path) -> None:
    onnx.save(models.mlp(), str(tmp_path / "mlp.onnx"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TRT_WIDGET_ENGINES": str(tmp_path / "engines"),
    }
    said = []
    for number in range(2):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "trt_widget", "build", "mlp.onnx", "--engine-cache"),
                *("-o", f"{number}.engine", "--events", f"{number}.jsonl", "--progress", "lines"),
            ],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        said.append(done.stdout + done.stderr)
    assert NOTE not in said[0]
    assert NOTE in said[1]
    assert (tmp_path / "0.engine").read_bytes() == (tmp_path / "1.engine").read_bytes()
    last = json.loads((tmp_path / "1.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["ended_by"]) == ("end", "cached")
    followed = Build.follow(tmp_path / "1.jsonl", wait=False).start()
    followed.wait(60)
    assert followed.result is not None
    assert (followed.result.status, followed.result.ended_by) == ("succeeded", "cached")
    assert any(note.startswith(NOTE) for note in followed.result.notes)
