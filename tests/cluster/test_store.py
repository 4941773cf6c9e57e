"""The models of one worker: shared by its builds, verified, and not more than fit."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from trt_widget.errors import BuildFailed, SourceError
from trt_widget.executors import cluster_store
from trt_widget.executors.cluster_store import Stopped, Store

if TYPE_CHECKING:
    from pathlib import Path


def described(**files: bytes) -> list[tuple[str, int, str]]:
    return [
        (name.replace("__", "/"), len(data), hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    ]


class Sender:
    """Sends the files of one model, and counts how often."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = contents
        self.times = 0

    def __call__(self, paths: list[Path], sizes: list[int]) -> None:
        self.times += 1
        assert sizes == [len(data) for data in self.contents]
        for path, data in zip(paths, self.contents, strict=True):
            assert path.read_bytes() == b""
            path.write_bytes(data)


def nothing() -> None:
    pass


def test_a_model_is_sent_once(tmp_path: Path) -> None:
    store, sender = Store(tmp_path / "models"), Sender(b"model", b"weights")
    files = described(model=b"model", deep__weights=b"weights")
    for _ in range(3):
        with store.hold("digest", files, sender, nothing) as path:
            assert path.read_bytes() == b"model"
            assert (path.parent / "deep" / "weights").read_bytes() == b"weights"
    assert sender.times == 1


def test_builds_that_want_it_at_the_same_time(tmp_path: Path) -> None:
    store, sender, seen = Store(tmp_path / "models"), Sender(b"model"), []
    begun, go_on = threading.Event(), threading.Event()

    def slowly(paths: list[Path], sizes: list[int]) -> None:
        begun.set()
        assert go_on.wait(30)
        sender(paths, sizes)

    def want() -> None:
        with store.hold("digest", described(model=b"model"), slowly, nothing) as path:
            seen.append(path.read_bytes())

    threads = [threading.Thread(target=want) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert seen == [b"model"] * 5
    assert sender.times == 1


def test_another_takes_over_where_the_first_is_stopped(tmp_path: Path) -> None:
    store, sender = Store(tmp_path / "models"), Sender(b"model")
    files = described(model=b"model")
    begun, seen = threading.Event(), []

    def stopped(_paths: list[Path], _sizes: list[int]) -> None:
        begun.set()
        time.sleep(0.1)  # the other one waits by now, or comes later: both must be right
        raise Stopped

    def first() -> None:
        with pytest.raises(Stopped), store.hold("digest", files, stopped, nothing):
            raise AssertionError

    def second() -> None:
        begun.wait(30)
        with store.hold("digest", files, sender, nothing) as path:
            seen.append(path.read_bytes())

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [b"model"]


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    store, go_on, begun = Store(tmp_path / "models"), threading.Event(), threading.Event()

    def slowly(paths: list[Path], _sizes: list[int]) -> None:
        begun.set()
        assert go_on.wait(30)
        paths[0].write_bytes(b"model")

    def first() -> None:
        with store.hold("digest", described(model=b"model"), slowly, nothing):
            pass

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(30)

    def not_wanted() -> None:
        raise Stopped

    with (
        pytest.raises(Stopped),
        store.hold("digest", described(model=b"model"), slowly, not_wanted),
    ):
        raise AssertionError
    go_on.set()
    thread.join(30)


def test_what_arrives_damaged_is_not_kept(tmp_path: Path) -> None:
    def damaged(paths: list[Path], _sizes: list[int]) -> None:
        paths[0].write_bytes(b"muddle")

    store = Store(tmp_path / "models")
    files = described(model=b"model")
    with (
        pytest.raises(SourceError, match="changed while it was sent"),
        store.hold("digest", files, damaged, nothing),
    ):
        raise AssertionError
    assert not list((tmp_path / "models").iterdir())
    sender = Sender(b"model")
    with store.hold("digest", files, sender, nothing):
        assert sender.times == 1


def test_a_full_disk(tmp_path: Path) -> None:
    def full(_paths: list[Path], _sizes: list[int]) -> None:
        raise OSError(28, "No space left on device")

    store = Store(tmp_path / "models")
    with (
        pytest.raises(BuildFailed, match="No space left") as caught,
        store.hold("digest", described(model=b"model"), full, nothing),
    ):
        raise AssertionError
    assert str(tmp_path) not in str(caught.value)


def test_what_was_used_longest_ago_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_store, "MAX_UNUSED", 25)
    store = Store(tmp_path / "models")

    def use(name: str) -> int:
        sender = Sender(name.encode() * 10)
        with store.hold(name, described(model=name.encode() * 10), sender, nothing):
            return sender.times

    assert [use(name) for name in "aab"] == [1, 0, 1]
    assert use("a") == 0
    with store.hold("x", described(model=b"x" * 10), Sender(b"x" * 10), nothing):
        assert use("c") == 1  # b was used longest ago, and x is in use
        assert {path.name for path in (tmp_path / "models").iterdir()} >= {"a", "c", "x"}
    kept = {path.name for path in (tmp_path / "models").iterdir()}
    assert len(kept) == 2
    assert "b" not in kept


@pytest.mark.parametrize("name", ["/etc/passwd", "/../../up"])
def test_places_that_only_the_client_has(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "models")
    files = [*described(model=b"model"), (name, 3, "0" * 64)]
    with (
        pytest.raises(SourceError, match="only the client's machine has"),
        store.hold("digest", files, Sender(), nothing),
    ):
        raise AssertionError
    assert not (tmp_path / "models").exists()


def test_weights_further_up_stay_below_the_folder(tmp_path: Path) -> None:
    store, sender = Store(tmp_path / "models"), Sender(b"model", b"up", b"out")
    files = described(model=b"model")
    files += [(f"../../{n}", len(d), hashlib.sha256(d).hexdigest()) for n, d in (("u", b"up"),)]
    files += [("a/../../v", 3, hashlib.sha256(b"out").hexdigest())]
    with store.hold("digest", files, sender, nothing) as path:
        assert (path.parent / "../../u").resolve().is_relative_to(store.folder_of("digest"))
        assert (path.parent / "../v").read_bytes() == b"out"
