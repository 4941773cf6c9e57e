from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trt_widget._files import save_atomically
from trt_widget.errors import BuildError, SaveError

DATA = b"engine" * 1000


def left_over(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_new_and_existing_files(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    assert save_atomically(DATA, path) == path
    assert path.read_bytes() == DATA
    assert save_atomically(memoryview(b"second"), str(path)) == path
    assert path.read_bytes() == b"second"
    assert left_over(tmp_path) == ["model.engine"]


def test_an_empty_engine_and_wide_items(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    save_atomically(b"", path)
    assert path.read_bytes() == b""
    save_atomically(memoryview(b"12345678").cast("I"), path)
    assert path.read_bytes() == b"12345678"


def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    before = os.umask(0o027)
    try:
        save_atomically(DATA, path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    save_atomically(b"second", path)
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "model.engine"
    path.write_bytes(b"old")
    link = tmp_path / "link.engine"
    link.symlink_to(path)
    assert save_atomically(DATA, link) == path
    assert link.is_symlink()
    assert path.read_bytes() == DATA
    assert left_over(path.parent) == ["model.engine"]


def test_a_relative_name_and_the_longest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "x" * 248 + ".engine"
    assert save_atomically(DATA, name) == tmp_path / name
    with pytest.raises(SaveError, match="the name is too long"):
        save_atomically(DATA, "x" + name)
    assert left_over(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("", "it is a directory", errno.EISDIR),
        ("missing/model.engine", "the folder does not exist", errno.ENOENT),
        ("file/model.engine", "a part of the path is a file", errno.ENOTDIR),
    ],
)
def test_places_that_cannot_be(name: str, words: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SaveError, match=words) as caught:
        save_atomically(DATA, tmp_path / name)
    error = caught.value
    assert error.errno == code
    assert error.filename == str(tmp_path / name)
    assert isinstance(error, BuildError)
    assert isinstance(error, OSError)
    assert isinstance(error.__cause__, OSError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    assert left_over(tmp_path) == ["file"]


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(SaveError, match="not a regular file"):
        save_atomically(DATA, os.devnull)
    assert Path(os.devnull).is_char_device()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    # A process of its own may write no file above 64 KiB: the write itself fails half-way.
    path = tmp_path / "model.engine"
    path.write_bytes(b"the old engine")
    script = """
import resource, signal, sys
from trt_widget._files import save_atomically
from trt_widget.errors import SaveError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    save_atomically(bytes(1_000_000), sys.argv[1])
except SaveError as error:
    print(error.errno, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith(f"{errno.EFBIG} The engine could not be saved to '{path}'")
    assert path.read_bytes() == b"the old engine"
    assert left_over(tmp_path) == ["model.engine"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_every_step_can_fail(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"the old engine")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(SaveError) as caught:
        save_atomically(DATA, path)
    assert caught.value.errno == code
    assert path.read_bytes() == b"the old engine"
    assert left_over(tmp_path) == ["model.engine"]


def test_windows_says_that_the_file_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(*_: object) -> None:
        error = PermissionError(errno.EACCES, "Access is denied")
        error.winerror = 1224  # type: ignore[attr-defined,unused-ignore]  # only Windows sets it
        raise error

    monkeypatch.setattr(os, "replace", in_use)
    with pytest.raises(SaveError, match="open in another program, mapped by a running engine"):
        save_atomically(DATA, tmp_path / "model.engine")
    assert left_over(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_atomically(DATA, tmp_path / "model.engine")
    assert left_over(tmp_path) == []


def test_a_reader_sees_a_whole_file_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    contents = {bytes([i]) * 200_000 for i in range(4)}
    save_atomically(next(iter(contents)), path)
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for content in contents:
            save_atomically(content, path)
    done.set()
    reader.join()
    assert seen
    assert seen <= contents
    assert left_over(tmp_path) == ["model.engine"]
