"""The engine cache: what its key is made of, its entries, its bounds. No builder runs here."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import platform
import stat
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import models
from trt_widget import EngineCache, OptionError, _files, _plugins, engine_cache
from trt_widget._plugins import other_plugins
from trt_widget.backend import Gpu, find_backend
from trt_widget.engine_cache import (
    FUNCTIONS,
    IN_KEY,
    NOT_IN_KEY,
    DamagedError,
    Lookup,
    TooLargeError,
    device_of,
    key_of,
)
from trt_widget.errors import BuildCancelled
from trt_widget.options import BuildOptions, check_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trt_widget.engine_cache import CachedEngine

RTX = find_backend("tensorrt_rtx")
KEY = "0123456789abcdef" * 4
ABOUT = {"built_at": 1_796_000_000.5, "duration_s": 12.34, "device": "a GPU", "layers": 7}
ENGINE = bytes(range(256)) * 4


def options(**given: Any) -> BuildOptions:
    return BuildOptions.from_kwargs({"backend": "tensorrt_rtx", **given})


def nothing() -> None:
    pass


def read(cache: EngineCache, key: str = KEY) -> CachedEngine | None:
    return cache.read(key, nothing)


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines")


@pytest.fixture
def entry(cache: EngineCache) -> Path:
    """Give the file of an entry."""
    cache.write(KEY, ENGINE, ABOUT)
    assert cache.folder is not None
    return cache.folder / f"{KEY}.trtw"


# ---- the key ------------------------------------------------------------------------------------


def test_every_option_is_in_the_key_or_known_not_to_matter() -> None:
    lists = [*IN_KEY, *FUNCTIONS, *NOT_IN_KEY]
    assert len(lists) == len(set(lists))
    assert {field.name for field in dataclasses.fields(BuildOptions)} <= set(lists)


#: For each option of the key, values of which each gives another key.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "profiles": [
        {"profiles": {"x": ((1, 8), (2, 8), (4, 8))}},
        {"profiles": {"x": ((1, 8), (3, 8), (4, 8))}},
        {"profiles": {"y": ((1, 8), (3, 8), (4, 8))}},
        {"profiles": [{"x": ((1, 8),) * 3}, {"x": ((2, 8),) * 3}]},
        {"profiles": [{"x": ((2, 8),) * 3}, {"x": ((1, 8),) * 3}]},
    ],
    "flags": [{"flags": "TF32"}, {"flags": ["TF32", "REFIT"]}, {"flags": "REFIT"}],
    "network_flags": [{"network_flags": name} for name in RTX.network_flags()[1:]],
    "optimization_level": [{"optimization_level": level} for level in range(6)],
    "workspace": [{"workspace": 1 << 20}, {"workspace": 1 << 30}],
    "target": [{"target": "SM86"}, {"target": "SM89"}, {"target": ["SM86", "SM89"]}],
}


def test_each_option_of_the_key_changes_it() -> None:
    variants = [{}, *(given for values in OTHERS.values() for given in values)]
    made = [options(**given) for given in variants]
    # What RTX does not have is changed by hand: another typing, package, version, or GPU.
    made.append(dataclasses.replace(options(), strongly_typed=False))
    keys = [key_of(["model"], each, RTX, "CPU") for each in made]
    other = find_backend("tensorrt_rtx").__class__("tensorrt_rtx", RTX.module)
    other.version = "9.9"
    keys += [
        key_of(["model"], options(), other, "CPU"),
        key_of(["another"], options(), RTX, "CPU"),
        key_of(["model", "plugin"], options(), RTX, "CPU"),
        key_of(["model"], options(), RTX, "CPU", ["/Plugin/1"]),
        key_of(["model"], options(), RTX, ["GPU", "SM86", 1, 2]),
    ]
    assert len(set(keys)) == len(keys)
    assert set(IN_KEY) == set(OTHERS) | {"strongly_typed", "plugins", "device", "backend"}


def test_the_machine_and_the_environment_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key_of(["model"], options(), RTX, "CPU")]
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "another")
        keys.append(key_of(["model"], options(), RTX, "CPU"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "another")
        keys.append(key_of(["model"], options(), RTX, "CPU"))
    with monkeypatch.context() as patch:
        patch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        keys.append(key_of(["model"], options(), RTX, "CPU"))
    assert len(set(keys)) == len(keys)


def test_what_does_not_matter_does_not_change_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "output": tmp_path / "e.engine",
        "timeout": 3,
        "executor": "thread",
        "grace": 1,
        "exclusive": True,
        "external_data": tmp_path,
        "timing_cache": True,
        "engine_cache": True,
    }
    plain = key_of(["model"], options(), RTX, "CPU")
    for name, value in given.items():
        assert key_of(["model"], options(**{name: value}), RTX, "CPU") == plain, name
    assert key_of(["model"], options(flags=["REFIT", "TF32"]), RTX, "CPU") == key_of(
        ["model"], options(flags=["TF32", "REFIT"]), RTX, "CPU"
    )


def test_the_device_is_the_gpu_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no GPU here: these stand for some.
    assert device_of(options(), RTX) == "CPU (ahead of time)"
    assert device_of(options(target="current"), RTX) is None
    assert device_of(options(device=0), RTX) is None
    gpus = [
        Gpu(0, "NVIDIA A", "SM86", "GPU-1", 80, 24 << 30),
        Gpu(1, "NVIDIA A", "SM86", "GPU-2", 80, (24 << 30) - (100 << 20)),
        Gpu(2, "NVIDIA A", "SM86", "GPU-3", 40, 24 << 30),
        Gpu(3, "NVIDIA A", "SM86", "GPU-4", 80, 12 << 30),
        Gpu(4, "NVIDIA A", "SM89", "GPU-5", 80, 24 << 30),
        Gpu(5, "NVIDIA B", "SM86", "GPU-6", 80, 24 << 30),
    ]
    monkeypatch.setattr(engine_cache, "gpus", lambda: tuple(gpus))
    found = [json.dumps(device_of(options(device=number), RTX)) for number in range(6)]
    assert found[0] == found[1], "two of the same kind"
    assert len(set(found)) == 5
    assert device_of(options(), RTX) == device_of(options(device=0), RTX)
    assert device_of(options(device=6), RTX) is None


def test_plugins_of_a_library_that_is_given_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = other_plugins((), RTX)
    assert names, "TensorRT's own"
    library = tmp_path / "plugin.so"
    # No library of plugins can be made here: what one has registered stands in.
    monkeypatch.setitem(_plugins._registered, (RTX.name, library), frozenset(names[:1]))
    assert other_plugins((), RTX) == names
    assert other_plugins([library], RTX) == names[1:]


# ---- options ------------------------------------------------------------------------------------


def test_the_option(tmp_path: Path) -> None:
    assert options().engine_cache is None
    assert options(engine_cache=None).engine_cache is None
    assert options(engine_cache=False).engine_cache is None
    assert options(engine_cache=True).engine_cache == EngineCache()
    assert options(engine_cache=str(tmp_path)).engine_cache == EngineCache(tmp_path)
    given = EngineCache(tmp_path, max_bytes=5)
    assert options(engine_cache=given).engine_cache is given
    assert pickle.loads(pickle.dumps(given)) == given  # noqa: S301 - our own
    for bad in (1, 0.5, [tmp_path], b"x", object()):
        with pytest.raises(OptionError, match="engine_cache=") as caught:
            options(engine_cache=bad)
        assert caught.value.remedy


@pytest.mark.parametrize("path", ["", "a\0b", 5, ["x"]])
def test_a_folder_that_is_none(path: Any) -> None:
    with pytest.raises(OptionError) as caught:
        EngineCache(path)
    assert caught.value.remedy


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "1", None])
def test_a_size_that_is_none(size: Any) -> None:
    with pytest.raises(OptionError, match="max_bytes="):
        EngineCache(max_bytes=size)


def test_the_folder_is_found_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EngineCache()
    monkeypatch.delenv("TRT_WIDGET_ENGINES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sys.platform == "linux":
        assert cache.folder == tmp_path / "cache" / "trt_widget" / "engines"
    monkeypatch.setenv("TRT_WIDGET_ENGINES", str(tmp_path / "mine"))
    assert cache.folder == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRT_WIDGET_ENGINES", "here")
    assert cache.folder == tmp_path / "here"
    for word in ("off", "OFF ", "0", "no", "False"):
        monkeypatch.setenv("TRT_WIDGET_ENGINES", word)
        assert EngineCache().folder is None
        assert cache.info() == (0, 0)
        assert cache.clear() == 0
        cache.write(KEY, ENGINE, ABOUT)
        assert read(cache) is None
        assert EngineCache(tmp_path).folder == tmp_path, "a folder that is given stays on"
    assert list(tmp_path.iterdir()) == []


# ---- entries ------------------------------------------------------------------------------------


def test_what_is_kept_is_found(cache: EngineCache) -> None:
    assert read(cache) is None
    assert cache.info() == (0, 0)
    cache.write(KEY, memoryview(ENGINE), ABOUT)
    found = read(cache)
    assert found is not None
    assert bytes(found.engine) == ENGINE
    assert found[1:] == (1_796_000_000.5, 12.34, "a GPU", 7)
    assert found.note.startswith("The engine is from the cache, built in 12.3 s on 2026-11-30")
    assert read(cache, "f" * 64) is None
    count, size = cache.info()
    assert (count, size > len(ENGINE)) == (1, True)
    assert cache.clear() == 1
    assert read(cache) is None


def test_an_engine_may_be_empty_or_of_other_numbers(cache: EngineCache) -> None:
    import array

    for engine in (b"", array.array("d", [1.0, 2.0])):
        cache.write(KEY, engine, ABOUT)
        found = read(cache)
        assert found is not None
        assert bytes(found.engine) == bytes(engine)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_the_user_may_read_it(entry: Path) -> None:
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_the_user_may_read_it_where_files_need_names(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    cache.write(KEY, ENGINE, ABOUT)
    assert cache.folder is not None
    (path,) = cache.folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(cache) is not None


def test_a_large_engine_is_mapped_and_outlives_its_entry(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_cache, "LARGE", 100)
    cache.write(KEY, ENGINE, ABOUT)
    found = read(cache)
    assert found is not None
    assert _files.is_whole(found.engine)
    cache.write(KEY, b"another", ABOUT)
    cache.clear()
    assert bytes(found.engine) == ENGINE
    cache.write(KEY, ENGINE, ABOUT)
    cut = read(cache)
    assert cut is not None
    assert cache.folder is not None
    os.truncate(cache.folder / f"{KEY}.trtw", 10)
    assert not _files.is_whole(cut.engine), "to look at it would end the process"


DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("add"), st.integers(1, 300), st.integers(0, 255)),
    st.tuples(st.just("drop"), st.integers(0, 10**6), st.integers(1, 300)),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damage=DAMAGE)
def test_a_damaged_entry_is_never_answered(
    cache: EngineCache, damage: tuple[str, int, int]
) -> None:
    cache.write(KEY, ENGINE, ABOUT)
    assert cache.folder is not None
    path = cache.folder / f"{KEY}.trtw"
    whole = path.read_bytes()
    data = bytearray(whole)
    kind, at, value = damage
    at %= len(data)
    if kind == "flip":
        data[at] ^= value
    elif kind == "cut":
        del data[at:]
    elif kind == "add":
        data += bytes([value]) * (at % 300 + 1)
    else:
        del data[at : at + value]
    path.write_bytes(data)
    try:
        found = read(cache)
    except DamagedError:
        assert not path.exists(), "it is removed"
    else:
        # Only words about it can have changed: the engine itself never.
        assert found is not None
        assert bytes(found.engine) == ENGINE
        assert data[: len(ENGINE)] == ENGINE


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


def tail_of(about: Any) -> bytes:
    text = json.dumps(about).encode()
    return text + engine_cache._END.pack(len(text), engine_cache._MARK)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(["key", "sha256", "size", *ABOUT]), WRONG)
def test_words_that_make_no_sense_are_damage(cache: EngineCache, name: str, value: Any) -> None:
    cache.write(KEY, ENGINE, ABOUT)
    assert cache.folder is not None
    path = cache.folder / f"{KEY}.trtw"
    data = path.read_bytes()
    length, _ = engine_cache._END.unpack(data[-engine_cache._END.size :])
    end = len(data) - engine_cache._END.size
    about = json.loads(data[end - length : end])
    about[name] = value
    path.write_bytes(ENGINE + tail_of(about))
    try:
        found = read(cache)
    except DamagedError:
        assert not path.exists()
    else:
        assert found is not None
        assert name in ABOUT
        assert found.note
        assert json.loads(json.dumps([found.device, found.layers], allow_nan=False))


@pytest.mark.parametrize("about", [None, [], 3, "x", {}, {"key": KEY}])
def test_other_json_is_damage(cache: EngineCache, entry: Path, about: Any) -> None:
    entry.write_bytes(ENGINE + tail_of(about))
    with pytest.raises(DamagedError, match="makes no sense"):
        read(cache)
    assert not entry.exists()


def test_json_without_an_end_is_damage(cache: EngineCache, entry: Path) -> None:
    text = b"[" * 60_000
    entry.write_bytes(ENGINE + text + engine_cache._END.pack(len(text), engine_cache._MARK))
    with pytest.raises(DamagedError):
        read(cache)


def test_an_entry_under_another_name_is_another_engine(cache: EngineCache, entry: Path) -> None:
    other = "f" * 64
    entry.rename(entry.with_name(f"{other}.trtw"))
    with pytest.raises(DamagedError, match="another engine"):
        read(cache, other)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_what_is_no_file_of_the_users_is_not_read(
    cache: EngineCache, entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        read(cache)
    assert cache.info() == (0, 0)
    assert cache.clear() == 0
    entry.unlink()
    entry.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        read(cache)
    entry.rmdir()
    os.mkfifo(entry)
    with pytest.raises(OSError, match="not a regular file"):
        read(cache)
    entry.unlink()
    elsewhere.rename(entry)
    # No second user can be had here.
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(OSError, match="another user"):
        read(cache)
    assert entry.exists()


# ---- bounds -------------------------------------------------------------------------------------


def key(number: int) -> str:
    return f"{number:064x}"


def names(cache: EngineCache) -> list[int]:
    return sorted(int(entry.name[:64], 16) for entry in cache._entries())


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, max_bytes=45_000)
    for number in range(4):
        cache.write(key(number), bytes(10_000), ABOUT)
        past = time.time() - 1_000 + number
        os.utime(tmp_path / f"{key(number)}.trtw", (past, past))
    assert read(cache, key(0)) is not None
    cache.write(key(4), bytes(10_000), ABOUT)
    assert names(cache) == [0, 2, 3, 4]
    cache.write(key(5), bytes(30_000), ABOUT)
    assert names(cache) == [4, 5]
    assert cache.info().bytes <= cache.max_bytes


def test_times_in_the_future_keep_nothing_alive(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, max_bytes=25_000)
    for number in range(5):
        cache.write(key(number), bytes(10_000), ABOUT)
        os.utime(tmp_path / f"{key(number)}.trtw", (2e9 + 1e9, 2e9 + 1e9))
        assert number in names(cache)
    assert len(names(cache)) == 2


def test_an_engine_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", max_bytes=1_000)
    cache.write(KEY, bytes(100), ABOUT)
    with pytest.raises(TooLargeError):
        cache.write(key(1), bytes(1_000), ABOUT)
    assert names(cache) == [int(KEY, 16)], "the others stay"


def test_the_number_of_entries_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cache, "MOST_ENTRIES", 3)
    cache = EngineCache(tmp_path)
    for number in range(6):
        cache.write(key(number), b"x", ABOUT)
        past = time.time() - 1_000 + number
        os.utime(tmp_path / f"{key(number)}.trtw", (past, past))
    assert names(cache) == [3, 4, 5]


def test_nothing_else_in_the_folder_is_touched(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, max_bytes=2_000)
    strange = [
        tmp_path / "notes.txt",
        tmp_path / f"{key(1)}.trtw.bak",
        tmp_path / f"{key(1)[:-1]}.trtw",
        tmp_path / f"{key(1).replace('0', 'Z')}.trtw",
        tmp_path / "model.engine",
        tmp_path / ".trt_widget-x.tmp",
    ]
    for path in strange:
        path.write_bytes(bytes(3_000))
        os.utime(path, (1, 1))
    inside = tmp_path / f"{key(2)}.trtw" / "deep"
    inside.mkdir(parents=True)
    for number in range(3, 9):
        cache.write(key(number), bytes(1_000), ABOUT)
    assert len(names(cache)) == 1
    assert cache.clear() == 1
    assert inside.is_dir()
    assert all(path.stat().st_size == 3_000 for path in strange)


def test_what_a_killed_process_left_goes_after_an_hour(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path)
    old, new = (tmp_path / f".trt_widget-{name * 16}.tmp" for name in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    past = time.time() - 7_200
    os.utime(old, (past, past))
    cache.write(KEY, ENGINE, ABOUT)
    assert (old.exists(), new.exists()) == (False, True)


# ---- a build's own business with it -------------------------------------------------------------


def lookup(cache: EngineCache, source: Any, **given: Any) -> Lookup:
    made = options(engine_cache=cache, **given)
    return Lookup(check_source(source, made), made, RTX)


def keep(looked: Lookup) -> None:
    looked.keep(ENGINE, duration_s=1.0, device="CPU (ahead of time)", layers=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.save_external(models.mlp(), tmp_path / "net.onnx")


def test_it_finds_what_it_kept(cache: EngineCache, model: Path, tmp_path: Path) -> None:
    first = lookup(cache, model)
    assert first.find(nothing) is None
    keep(first)
    again = lookup(cache, model, output=tmp_path / "e.engine").find(nothing)
    assert again is not None
    assert bytes(again.engine) == ENGINE
    assert lookup(cache, model, optimization_level=1).find(nothing) is None
    assert first.notes == []


@pytest.mark.parametrize(
    "change",
    [
        lambda source: source.write_bytes(source.read_bytes() + b"\x42\x01x"),
        lambda source: source.with_name("weights.bin").write_bytes(
            bytes(source.with_name("weights.bin").stat().st_size)
        ),
    ],
)
def test_a_model_that_changes_during_the_build_is_not_kept(
    cache: EngineCache, model: Path, change: Callable[[Path], object]
) -> None:
    looked = lookup(cache, model)
    assert looked.find(nothing) is None
    change(model)
    keep(looked)
    assert "changed during the build" in looked.notes[0]
    assert cache.info() == (0, 0)


def test_a_plugin_counts_by_its_content(cache: EngineCache, model: Path, tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"one")
    first = lookup(cache, model, plugins=library)
    assert first.find(nothing) is None
    keep(first)
    assert lookup(cache, model, plugins=library).find(nothing) is not None
    assert lookup(cache, model).find(nothing) is None
    library.write_bytes(b"two")
    second = lookup(cache, model, plugins=library)
    assert second.find(nothing) is None
    library.write_bytes(b"three")
    keep(second)
    assert "of a plugin was changed" in second.notes[0]


def test_a_model_in_memory_is_built_as_it_was_hashed(cache: EngineCache) -> None:
    proto = models.mlp()
    looked = lookup(cache, proto)
    assert looked.find(nothing) is None
    before = proto.SerializeToString()
    proto.graph.node[0].name = "changed"
    assert (looked.source.kind, looked.source.value) == ("bytes", before)
    keep(looked)
    assert lookup(cache, before).find(nothing) is not None
    assert lookup(cache, proto).find(nothing) is None


@pytest.mark.parametrize(
    ("source", "given", "named"),
    [
        (models.mlp, {}, "a callable source"),
        (None, {"configure": print}, "configure="),
        (None, {"config": print}, "config="),
        (models.mlp, {"configure": print}, "a callable source and configure="),
    ],
)
def test_functions_are_never_cached(
    cache: EngineCache, model: Path, source: Any, given: dict[str, Any], named: str
) -> None:
    looked = lookup(cache, source or model, **given)
    assert looked.find(nothing) is None
    keep(looked)
    assert looked.notes == [f"This build is not cached: nobody can tell what {named} does."]
    assert cache.info() == (0, 0)


def test_what_cannot_be_built_is_left_to_the_builder(cache: EngineCache, model: Path) -> None:
    data = model.read_bytes()
    for looked in (
        lookup(cache, data),  # its weights are elsewhere
        lookup(cache, model, target="current"),  # no GPU
        lookup(cache, models.mlp().SerializeToString()[:-3] + b"location"),
    ):
        assert looked.find(nothing) is None
        keep(looked)
        assert looked.notes == []
    assert cache.info() == (0, 0)


def test_off_is_off(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_ENGINES", "off")
    for looked in (lookup(EngineCache(), model), lookup(EngineCache(), models.mlp)):
        assert looked.find(lambda: pytest.fail("it reads")) is None
        keep(looked)
        assert looked.notes == []


def test_damage_is_noted_and_built_anew(cache: EngineCache, model: Path) -> None:
    first = lookup(cache, model)
    first.find(nothing)
    keep(first)
    (entry,) = cache._entries()
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    again = lookup(cache, model)
    assert again.find(nothing) is None
    assert again.notes == [
        "The cached engine was damaged (its end is missing): it is removed and built anew."
    ]
    keep(again)
    assert lookup(cache, model).find(nothing) is not None


def test_it_stops_between_blocks(cache: EngineCache, model: Path) -> None:
    def step() -> None:
        raise BuildCancelled

    with pytest.raises(BuildCancelled):
        lookup(cache, model).find(step)


@pytest.mark.parametrize("obstacle", ["file", "read-only", "full", "directory"])
def test_a_folder_of_no_use_is_a_note(
    cache: EngineCache, model: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache.folder
    assert folder is not None
    looked = lookup(cache, model)
    if obstacle == "file":
        folder.write_bytes(b"mine")
    elif obstacle == "directory":
        assert looked.find(nothing) is None
        (folder / f"{looked._key}.trtw").mkdir(parents=True)
    elif obstacle == "read-only":
        # Root may write anywhere: the system's answer is put into its mouth.
        monkeypatch.setattr(engine_cache, "save_private", _raise(PermissionError(13, "denied")))
    else:
        monkeypatch.setattr(os, "write", _raise(OSError(28, "No space left on device")))
    assert looked.find(nothing) is None
    keep(looked)
    monkeypatch.undo()
    assert looked.notes
    assert all("could not be" in note for note in looked.notes)
    assert str(folder) not in "".join(looked.notes)
    if obstacle == "file":
        assert folder.read_bytes() == b"mine"
    elif folder.exists():
        assert not [path for path in folder.iterdir() if path.is_file()]


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
