"""The timing cache's file.

Full TensorRT cannot run here. So the rules (what is combined, what is thrown away) are tested with
a stand-in that keeps the contract of TensorRT's documentation: a cache of another version or GPU is
refused, combining keeps the local entries. That the calls exist with these names is tested against
the stubs of full TensorRT (test_stubs) and with TensorRT for RTX, whose timing caches hold nothing:
that shows that the calls, the bytes and the messages are handled, not that a build gets faster.
"""

from __future__ import annotations

import json
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest
import tensorrt_rtx as trt

from trt_widget._timing_cache import load_timing_cache, save_timing_cache
from trt_widget.executors.lock import SystemLock, runtime_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return tmp_path / "tactics.cache"


# ---- the rules, with a stand-in -----------------------------------------------------------------


class Cache:
    def __init__(self, data: bytes, gpu: str) -> None:
        self.gpu, self.entries = json.loads(data) if data else (gpu, {})

    def combine(self, other: Cache, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if other.gpu != self.gpu:
            return False
        self.entries = other.entries | self.entries
        return True

    def serialize(self) -> bytearray:  # like IHostMemory, it has the buffer protocol
        return bytearray(json.dumps([self.gpu, self.entries]).encode())


class Config:
    def __init__(self, gpu: str = "H200") -> None:
        self.gpu = gpu
        self.cache: Any = None

    def create_timing_cache(self, data: bytes) -> Cache | None:
        try:
            return Cache(data, self.gpu)
        except ValueError:
            return None

    def set_timing_cache(self, cache: Cache, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.gpu != self.gpu:
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self.cache

    def measure(self, **entries: float) -> None:
        self.cache.entries.update(entries)


def entries(path: Path) -> dict[str, float]:
    _, found = json.loads(path.read_bytes())
    return dict(found)


def test_what_was_measured_is_there_the_next_time(path: Path) -> None:
    first = Config()
    cache, notes = load_timing_cache(first, path)
    assert cache is first.cache
    assert notes == []
    assert not path.exists()
    first.measure(conv=1.5)
    assert save_timing_cache(first, path) is None
    second = Config()
    assert load_timing_cache(second, path)[1] == []
    assert second.cache.entries == {"conv": 1.5}


def test_what_another_build_has_written_meanwhile_is_kept(path: Path) -> None:
    one, two = Config(), Config()
    for config in (one, two):
        load_timing_cache(config, path)
    one.measure(conv=1.0, relu=2.0)
    two.measure(conv=3.0, gemm=4.0)
    assert save_timing_cache(one, path) is None
    assert save_timing_cache(two, path) is None
    assert entries(path) == {"conv": 3.0, "relu": 2.0, "gemm": 4.0}


def test_builds_that_end_at_once_lose_nothing(path: Path) -> None:
    def build(number: int) -> None:
        config = Config()
        load_timing_cache(config, path)
        config.measure(**{f"layer{number}": number})
        barrier.wait()
        notes.append(save_timing_cache(config, path))

    barrier = threading.Barrier(8)
    notes: list[str | None] = []
    threads = [threading.Thread(target=build, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes == [None] * 8
    assert len(entries(path)) == 8


@pytest.mark.parametrize("content", [b"garbage", b'["another GPU", {"conv": 1.0}]'])
def test_a_cache_of_no_use_is_replaced(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    config = Config()
    cache, (note,) = load_timing_cache(config, path, lambda: ["The Timing Cache is bad", "else"])
    assert cache is config.cache
    assert note.startswith("The timing cache tactics.cache is damaged, or of another GPU or ")
    assert note.endswith(
        "an empty one, which then replaces it. TensorRT said: The Timing Cache is bad"
    )
    config.measure(relu=2.0)
    assert save_timing_cache(config, path) is None
    assert entries(path) == {"relu": 2.0}


def test_files_that_cannot_be_used_fail_no_build(path: Path) -> None:
    path.mkdir()
    config = Config()
    cache, (note,) = load_timing_cache(config, path)
    assert cache is config.cache
    assert note.startswith("The timing cache tactics.cache could not be read: ")
    note = save_timing_cache(config, path) or ""
    assert note.startswith("The timing cache tactics.cache was not written: ")
    missing = path.parent / "missing" / "tactics.cache"
    assert "was not written: No such file or directory." in (
        save_timing_cache(config, missing) or ""
    )
    assert save_timing_cache(Config(), path) == "There was no timing cache to write."


def test_an_unchanged_cache_is_not_written(path: Path) -> None:
    config = Config()
    load_timing_cache(config, path)
    config.measure(conv=1.0)
    save_timing_cache(config, path)
    before = path.stat()
    assert save_timing_cache(config, path) is None
    assert path.stat().st_ino == before.st_ino


def test_without_a_lock_it_is_written_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent / "missing"))
    with pytest.raises(FileNotFoundError):
        runtime_folder()
    config = Config()
    load_timing_cache(config, path)
    assert save_timing_cache(config, path) is None
    assert path.exists()


def test_a_lock_that_never_comes_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    load_timing_cache(config, path)
    assert save_timing_cache(config, path) is None
    (name,) = runtime_folder().iterdir()
    lock = SystemLock(name)
    assert lock.try_acquire()
    monkeypatch.setattr("trt_widget._timing_cache._PATIENCE_S", 0.1)
    config.measure(conv=1.0)
    assert save_timing_cache(config, path) is None
    assert entries(path) == {"conv": 1.0}
    lock.release()


# ---- TensorRT for RTX, whose timing caches are empty --------------------------------------------


class Logger(trt.ILogger):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.serious: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        if severity in {trt.ILogger.WARNING, trt.ILogger.ERROR}:
            self.serious.append(msg)


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_the_calls_work_with_rtx(path: Path) -> None:
    logger = Logger()
    config = trt.Builder(logger).create_builder_config()
    cache, notes = load_timing_cache(config, path, lambda: logger.serious)
    assert isinstance(cache, trt.ITimingCache)
    assert notes == []
    assert save_timing_cache(config, path) is None
    assert path.read_bytes().startswith(b"ptrt")
    for content in (path.read_bytes(), b"garbage"):
        # Without a GPU RTX takes back not even what it has written; with one it does.
        path.write_bytes(content)
        logger.serious.clear()
        again = trt.Builder(logger).create_builder_config()
        cache, (note,) = load_timing_cache(again, path, lambda: logger.serious)
        assert isinstance(cache, trt.ITimingCache)
        assert "TensorRT said: The timing cache will not be used! Failed to deserialize" in note
        assert "Cuda Runtime" not in note
        assert save_timing_cache(again, path) is None
        assert path.read_bytes().startswith(b"ptrt")
