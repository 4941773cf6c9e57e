"""The timing cache's file.

Full TensorRT cannot run here. So the rules (what is combined, what is thrown away) are tested with
a stand-in that keeps the contract of TensorRT's documentation: a cache of another version or GPU is
refused, combining keeps the local entries. That the calls exist with these names is tested against
the stubs of full TensorRT (test_stubs) and with TensorRT for RTX, whose timing caches hold nothing:
that shows that the calls, the bytes and the messages are handled, not that a build gets faster.
"""

from __future__ import annotations

import json
import stat
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import platformdirs
import pytest
import tensorrt_rtx as trt

from tests import models
from tests.unit.test_backend import fake_tensorrt
from trt_widget import Build
from trt_widget._timing_cache import (
    NO_CACHE,
    TimingCache,
    cache_facts,
    cache_tag,
    use_timing_cache,
)
from trt_widget.backend import Gpu
from trt_widget.executors import worker
from trt_widget.executors.lock import SystemLock, runtime_folder
from trt_widget.options import BuildOptions

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

    kind = Cache

    def create_timing_cache(self, data: bytes) -> Cache | None:
        try:
            return self.kind(data, self.gpu)
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


def build(
    config: Config, path: Path, tag: str | None = "10-sm90", **measured: float
) -> TimingCache:
    """Load, measure, save; what is said must be empty or about the counts."""
    cache = TimingCache(config, path, tag)
    config.measure(**measured)
    for note in cache.save():
        assert note.startswith(f"The timing cache {cache.path.name} ")
    return cache


def test_what_was_measured_is_there_the_next_time(path: Path) -> None:
    first = Config()
    cache = TimingCache(first, path, "10-sm90")
    assert (cache.state, cache.notes, cache.path) == ("cold", [], path)
    assert first.cache.entries == {}
    assert not path.exists()
    first.measure(conv=1.5)
    cache.save()
    second = Config()
    cache = TimingCache(second, path, "10-sm90")
    assert (cache.state, cache.notes, cache.path) == ("warm", [], path)
    assert second.cache.entries == {"conv": 1.5}


def test_what_another_build_has_written_meanwhile_is_kept(path: Path) -> None:
    one, two = Config(), Config()
    caches = [TimingCache(config, path, "10-sm90") for config in (one, two)]
    one.measure(conv=1.0, relu=2.0)
    two.measure(conv=3.0, gemm=4.0)
    for cache in caches:
        cache.save()
    assert entries(path) == {"conv": 3.0, "relu": 2.0, "gemm": 4.0}


def test_builds_that_end_at_once_lose_nothing(path: Path) -> None:
    def run(number: int) -> None:
        config = Config()
        cache = TimingCache(config, path, "10-sm90")
        config.measure(**{f"layer{number}": number})
        barrier.wait()
        notes.extend(cache.save())

    barrier = threading.Barrier(8)
    notes: list[str] = []
    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [note for note in notes if "not written" in note]
    assert len(entries(path)) == 8


UNUSABLE = [b"garbage", b'["another GPU", {"conv": 1.0}]']


@pytest.mark.parametrize("content", UNUSABLE)
def test_a_users_file_of_no_use_is_left_alone(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    config = Config()
    said = ["The Timing Cache was bad before"]

    def words() -> list[str]:
        said.append("The Timing Cache is bad")
        return said

    cache = TimingCache(config, path, "10-sm90", words)
    beside = path.with_name("tactics.cache.10-sm90")
    (note,) = cache.notes
    assert note.startswith("The timing cache tactics.cache is damaged, or of another GPU or ")
    assert "TensorRT said: The Timing Cache is bad It is left as it is; " in note
    assert note.endswith("this build uses tactics.cache.10-sm90 beside it.")
    assert (cache.state, cache.path) == ("cold", beside)
    config.measure(relu=2.0)
    cache.save()
    assert path.read_bytes() == content
    assert entries(beside) == {"relu": 2.0}
    again = TimingCache(Config(), path, "10-sm90")
    assert (again.state, again.path) == ("warm", beside)


def test_two_gpus_never_spoil_each_others_cache(path: Path) -> None:
    build(Config("H200"), path, "10-sm90", conv=1.0)
    build(Config("L40"), path, "10-sm89", conv=9.0)
    build(Config("H200"), path, "10-sm90", relu=2.0)
    build(Config("L40"), path, "10-sm89", relu=8.0)
    assert entries(path) == {"conv": 1.0, "relu": 2.0}
    assert entries(path.with_name("tactics.cache.10-sm89")) == {"conv": 9.0, "relu": 8.0}


def test_a_file_that_another_gpu_has_made_meanwhile_is_left_alone(path: Path) -> None:
    config = Config("L40")
    cache = TimingCache(config, path, "10-sm89")
    build(Config("H200"), path, "10-sm90", conv=1.0)
    config.measure(conv=9.0)
    cache.save()
    assert cache.path == path.with_name("tactics.cache.10-sm89")
    assert entries(path) == {"conv": 1.0}
    assert entries(cache.path) == {"conv": 9.0}


@pytest.mark.parametrize("content", UNUSABLE)
def test_a_file_of_our_own_is_replaced(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    config = Config()
    cache = TimingCache(config, path)
    (note,) = cache.notes
    assert note.endswith("This build starts with an empty one, which replaces it.")
    assert (cache.state, cache.path) == ("cold", path)
    config.measure(relu=2.0)
    cache.save()
    assert entries(path) == {"relu": 2.0}


def test_files_that_cannot_be_used_fail_no_build(path: Path) -> None:
    path.mkdir()
    config = Config()
    cache = TimingCache(config, path, "10-sm90")
    (note,) = cache.notes
    assert note.startswith("The timing cache tactics.cache could not be read: ")
    assert config.cache.entries == {}
    cache.save()
    assert entries(path.with_name("tactics.cache.10-sm90")) == {}
    cache = TimingCache(config, path)  # where the file should be ours
    (note,) = cache.save()
    assert note.startswith("The timing cache tactics.cache was not written: ")
    missing = TimingCache(config, path.parent / "missing" / "tactics.cache")
    assert missing.save() == [
        "The timing cache tactics.cache was not written: No such file or directory."
    ]
    config.cache = None
    assert missing.save() == ["There was no timing cache to write."]


def test_an_unchanged_cache_is_not_written(path: Path) -> None:
    build(Config(), path, conv=1.0)
    before = path.stat()
    build(Config(), path)
    assert path.stat().st_ino == before.st_ino
    build(Config(), path, relu=1.0)
    assert path.stat().st_ino != before.st_ino


def test_without_a_lock_it_is_written_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent / "missing"))
    with pytest.raises(FileNotFoundError):
        runtime_folder()
    build(Config(), path)
    assert path.exists()


def test_a_lock_that_never_comes_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(Config(), path)
    (name,) = runtime_folder().iterdir()
    lock = SystemLock(name)
    assert lock.try_acquire()
    monkeypatch.setattr("trt_widget._timing_cache._PATIENCE_S", 0.1)
    build(Config(), path, conv=1.0)
    assert entries(path) == {"conv": 1.0}
    lock.release()


class Raising(Config):
    """A config one of whose methods raises something."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__()
        self._name, self._error = name, error

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("_name"):
            raise object.__getattribute__(self, "_error")
        return super().__getattribute__(name)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("no"), AttributeError("no"), KeyError("no")])
@pytest.mark.parametrize("name", ["set_timing_cache", "create_timing_cache", "get_timing_cache"])
def test_whatever_tensorrt_raises_fails_no_build(
    name: str, error: Exception, warm: bool, path: Path
) -> None:
    options = full_options(timing_cache=path)
    if warm:
        cache, _, _ = use_timing_cache(Config(), options)
        assert cache is not None
        assert cache.save() == []
    files = {file: file.read_bytes() for file in path.parent.glob("*.cache*")}
    assert bool(files) is warm
    config = Raising(name, error)
    cache, facts, notes = use_timing_cache(config, options)
    if name == "get_timing_cache":  # is not called before the build
        assert cache is not None
        assert facts["state"] == ("warm" if warm else "cold")
        (note,) = cache.save()
        assert " was not written: " in note
        return
    if name == "create_timing_cache" and isinstance(error, RuntimeError):
        assert facts["state"] == "cold"  # it makes nothing of it, which is no news
    else:
        assert facts == NO_CACHE
        words = "The timing cache could not be used; this build goes on without one."
        assert notes == [f"{words} {type(error).__name__}: {error}"]
    assert cache is not None
    cache.save()
    assert {file: file.read_bytes() for file in path.parent.glob("*.cache*")} == files


@pytest.mark.parametrize("given", ["file", True, None])
def test_whatever_else_raises_fails_no_build(
    given: object, path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[str]:
        raise RuntimeError("no")

    path.write_bytes(b"garbage")
    options = full_options(timing_cache=path if given == "file" else given)
    if given == "file":
        cache, facts, (note,) = use_timing_cache(Config(), options, said)
        assert cache is not None
        assert cache.save() == []
    else:
        name = "gpus" if given else "_facts_of_config"
        monkeypatch.setattr(f"trt_widget._timing_cache.{name}", lambda *_: said())
        cache, facts, (note,) = use_timing_cache(Config(), options)
        assert cache is None
    assert facts == NO_CACHE
    assert note.endswith("goes on without one. RuntimeError: no")
    assert path.read_bytes() == b"garbage"
    assert not caches.exists() or not list(caches.iterdir())


def test_what_the_config_was_given_lives_on_although_something_raised(path: Path) -> None:
    build(Config(), path, conv=1.0)
    config = Config()
    given: list[bool] = []

    def said() -> list[str]:
        if config.cache is not None:
            given.append(True)
            raise RuntimeError("no")
        return []

    cache = TimingCache(config, path, "10-sm90", said)
    assert given
    assert cache._cache is config.cache


# ---- what is known of it ------------------------------------------------------------------------


class Countable(Cache):
    """A cache of TensorRT 10.8 or newer, which lists its keys."""

    def queryKeys(self) -> list[str]:  # noqa: N802 - TensorRT's name
        return list(self.entries)


class CountingConfig(Config):
    kind = Countable


def test_the_counts_are_told_where_tensorrt_tells_them(path: Path) -> None:
    config = CountingConfig()
    cache = TimingCache(config, path, "10-sm90")
    before = cache.facts
    config.measure(conv=1.0, relu=2.0)
    assert cache.save() == [
        "The timing cache tactics.cache was empty before this build and knows 2 now."
    ]
    assert before == {
        "state": "cold",
        "path": str(path),
        "known_before": 0,
        "known_after": None,
        "reused": 0,
    }
    assert cache.facts == {**before, "known_after": 2}
    config = CountingConfig()
    cache = TimingCache(config, path, "10-sm90")
    config.measure(gemm=3.0)
    (note,) = cache.save()
    assert note.endswith("cache knew 2 of 3 measurements: this build had to make 1 of its own.")
    assert cache.facts == {
        "state": "warm",
        "path": str(path),
        "known_before": 2,
        "known_after": 3,
        "reused": None,  # TensorRT does not say which of the two it needed
    }
    cache = TimingCache(CountingConfig(), path, "10-sm90")
    (note,) = cache.save()
    assert note.endswith("knew 3 of 3 measurements: this build had none to add.")


def test_nothing_is_invented_where_tensorrt_cannot_count(path: Path) -> None:
    build(Config(), path, conv=1.0)
    cache = TimingCache(Config(), path, "10-sm90")
    assert cache.save() == []
    assert (cache.state, cache.known_before, cache.known_after) == ("warm", None, None)


def test_an_empty_cache_in_a_file_is_cold(path: Path) -> None:
    build(CountingConfig(), path)
    assert path.stat().st_size > 0
    assert TimingCache(CountingConfig(), path, "10-sm90").state == "cold"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("warm", {**NO_CACHE, "state": "warm"}),
        ({"state": "cold", "reused": 0, "else": 1}, {**NO_CACHE, "state": "cold", "reused": 0}),
        (
            {"state": "warm", "path": 3, "known_before": -1, "known_after": True, "reused": "x"},
            {**NO_CACHE, "state": "warm"},
        ),
        ("hot", None),
        ({"state": ["warm"]}, None),
        ({}, None),
        (None, None),
        (7, None),
    ],
)
def test_facts_from_another_process(given: object, read: object) -> None:
    assert cache_facts(given) == read


# ---- True: a file in the user's cache folder ----------------------------------------------------


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "caches"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name, **_: made / name)
    return made / "trt_widget" / "timing"


def full_options(version: str = "10.13.0", **kwargs: Any) -> BuildOptions:
    module = fake_tensorrt(__version__=version)
    return BuildOptions.from_kwargs({"backend": module, **kwargs})


def test_true_is_a_file_for_each_version_and_gpu(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = (Gpu(0, "NVIDIA H200", "SM90"), Gpu(1, "NVIDIA L40/../x", "SM89"))
    monkeypatch.setattr("trt_widget._timing_cache.gpus", lambda: two)
    paths = []
    for version, device in (("10.13.0", 0), ("10.13.0", 1), ("11.4.0", 0), ("10.13.0", None)):
        config = Config(f"{version} {device or 0}")
        options = full_options(version, timing_cache=True, device=device)
        cache, facts, notes = use_timing_cache(config, options)
        assert cache is not None
        assert notes == []
        assert facts["path"] == str(cache.path)
        config.measure(conv=1.0)
        cache.save()
        paths.append(cache.path)
    assert paths[0] == paths[3]
    assert facts["state"] == "warm"
    assert len(set(paths)) == 3 == len(list(caches.iterdir()))
    assert paths[0].name.startswith("tensorrt-10.13.0-sm90-nvidia-h200-")
    assert all(made.parent == caches for made in paths)
    if sys.platform != "win32":
        assert stat.S_IMODE(caches.stat().st_mode) == 0o700


def test_tags_of_different_things_differ() -> None:
    assert cache_tag("a", "1", "b", "SM1") == cache_tag("a", "1", "b", "SM1")
    assert cache_tag("a", "1", "B", "SM1") != cache_tag("a", "1", "b", "SM1")
    long = cache_tag("tensorrt", "10", "é/\\..\n" * 200, "SM90")
    assert len(long) < 100
    assert set(long) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_a_cache_folder_that_cannot_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "file")
    cache, facts, (note,) = use_timing_cache(Config(), full_options(timing_cache=True))
    assert cache is None
    assert facts == NO_CACHE
    assert note.startswith("No folder for the timing cache could be made: ")


def test_without_the_option_a_cache_of_the_callers_is_told() -> None:
    config = CountingConfig()
    assert use_timing_cache(config, full_options()) == (None, NO_CACHE, [])
    config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    assert use_timing_cache(config, full_options())[1]["state"] == "cold"
    config.measure(conv=1.0)
    told = {**NO_CACHE, "state": "warm", "known_before": 1}
    assert use_timing_cache(config, full_options()) == (None, told, [])


def test_rtx_says_that_true_means_nothing() -> None:
    options = BuildOptions.from_kwargs({"backend": trt, "timing_cache": True})
    cache, facts, (note,) = use_timing_cache(Config(), options)
    assert cache is None
    assert facts == NO_CACHE
    assert note.startswith("timing_cache=True has no effect here: timing caches do not apply to ")


# ---- in a build ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cancel", [False, True])
def test_it_is_saved_however_the_build_ends(
    cancel: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real build by RTX, beside whose config the stand-in's cache is put."""
    real = worker.prepare

    def prepare(*given: Any, **more: Any) -> Any:
        prepared = real(*given, **more)
        config = CountingConfig()
        prepared.cache_file = TimingCache(config, path, "10-sm90")
        prepared.timing_cache = prepared.cache_file.facts
        config.measure(conv=1.0)
        return prepared

    monkeypatch.setattr(worker, "prepare", prepare)
    source = models.mlp(4).SerializeToString()
    build = Build(source, backend=trt, executor="thread", configure=models.slowly(0.02))
    started = threading.Event()
    build.subscribe(
        lambda events: started.set() if any(e.kind == "phase_start" for e in events) else None
    )
    build.start()
    assert started.wait(60)
    if cancel:
        build.request_cancel()
    build.wait_ended(60)
    assert build.result is not None
    assert build.result.ended_by == ("step" if cancel else "completed")
    assert entries(path) == {"conv": 1.0}
    told = {"state": "cold", "path": str(path), "known_before": 0, "known_after": 1, "reused": 0}
    assert build.result.timing_cache == told
    assert (
        "The timing cache tactics.cache was empty before this build and knows 1 now."
        in build.result.notes
    )


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_rtx_is_told_to_have_none(executor: str) -> None:
    source = models.mlp(1).SerializeToString()
    build = Build(source, backend=trt, executor=executor, timing_cache=True).start()
    build.wait(60)
    assert build.result is not None
    assert build.result.timing_cache == NO_CACHE
    assert any(note.startswith("timing_cache=True has no effect") for note in build.result.notes)


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
    cache = TimingCache(config, path, "rtx", lambda: logger.serious)
    assert isinstance(cache._cache, trt.ITimingCache)
    assert cache.notes == []
    assert (cache.state, cache.known_before) == ("cold", 0)
    assert cache.save() == [
        "The timing cache tactics.cache was empty before this build and knows 0 now."
    ]
    assert path.read_bytes().startswith(b"ptrt")
    for content in (path.read_bytes(), b"garbage"):
        # Without a GPU RTX takes back not even what it has written; with one it does.
        path.write_bytes(content)
        again = trt.Builder(logger).create_builder_config()
        cache = TimingCache(again, path, "rtx", lambda: logger.serious)
        assert isinstance(cache._cache, trt.ITimingCache)
        note = cache.notes[0]
        assert "TensorRT said: The timing cache will not be used! Failed to deserialize" in note
        assert "Cuda Runtime" not in note
        cache.save()
        assert path.read_bytes() == content
        assert cache.path.read_bytes().startswith(b"ptrt")
