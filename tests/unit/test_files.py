from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trt_widget import _files
from trt_widget._files import map_file, save_atomically
from trt_widget.errors import BuildError, SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("path", [7, None, object(), "", b"", "a\0b", b"a\0b", ["x"]])
def test_what_is_no_path_is_a_save_error(path: object) -> None:
    with pytest.raises(SaveError, match="is not a path") as caught:
        save_atomically(DATA, path)  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_path_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    assert save_atomically(DATA, os.fsencode(path)) == path  # type: ignore[arg-type]


def test_an_empty_engine_and_wide_items(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    save_atomically(b"", path)
    assert path.read_bytes() == b""
    save_atomically(memoryview(b"12345678").cast("I"), path)
    assert path.read_bytes() == b"12345678"


@pytest.mark.usefixtures("way")
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


@pytest.fixture(params=["unnamed", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to write; the second is that of systems without O_TMPFILE."""
    if request.param == "named":
        monkeypatch.setattr(_files, "_write_unnamed", lambda *_: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
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


@pytest.mark.usefixtures("way")
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


# ---- a file without a name ----------------------------------------------------------------------


def named_files_written(folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    """Save and count how often the way with a temporary name was taken."""
    calls: list[Path] = []
    write = _files._write

    def counted(temporary: Path, data: bytes, mode: int | None) -> None:
        calls.append(temporary)
        write(temporary, data, mode)

    monkeypatch.setattr(_files, "_write", counted)
    save_atomically(data, folder / "model.engine")
    assert (folder / "model.engine").read_bytes() == data
    assert left_over(folder) == ["model.engine"]
    return len(calls)


def test_no_name_is_needed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_files_written(tmp_path, DATA, monkeypatch) == 0


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_needs_a_name(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands for such a file system (NFS, FUSE): the answers are those of open(2).
    opened = os.open

    def refuse(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert named_files_written(tmp_path, DATA, monkeypatch) == 1


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for a system without /proc: linkat's answer there.
    def link(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "link", link)
    assert named_files_written(tmp_path, DATA, monkeypatch) == 1


def test_a_forgotten_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for a Linux before 5.19: there the unnamed file of some file systems has 0o666.
    opened = os.open

    def forget(path: str, flags: int, *args: int, **kwargs: int) -> int:
        descriptor = opened(path, flags, *args, **kwargs)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            os.fchmod(descriptor, 0o666)
        return descriptor

    monkeypatch.setattr(os, "open", forget)
    before = os.umask(0o027)
    try:
        assert named_files_written(tmp_path, DATA, monkeypatch) == 1
    finally:
        os.umask(before)
    assert (tmp_path / "model.engine").stat().st_mode & 0o777 == 0o640


def positions(pid: int, folder: Path) -> dict[str, int]:
    """Return what a process has open below a folder, and how far it has written there."""
    found: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(entry.readlink())
            info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text(encoding="ascii")
        except FileNotFoundError:
            continue
        if name.startswith(f"{folder}/"):
            found[name] = int(info.split()[1])
    return found


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    # The child writes byte by byte, which takes far longer than finding it in the middle.
    path = tmp_path / "model.engine"
    path.write_bytes(b"the old engine")
    script = """
import sys
from trt_widget import _files
_files._PIECE = 1
_files.save_atomically(bytes(1 << 30), sys.argv[1])
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2]
    )
    try:
        deadline = time.monotonic() + 30
        while not any(positions(child.pid, tmp_path).values()):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        child.send_signal(signal.SIGSTOP)
        ((name, written),) = positions(child.pid, tmp_path).items()
        assert 0 < written < 1 << 30
        assert name.endswith(" (deleted)")  # what /proc says of a file without a name
        assert left_over(tmp_path) == ["model.engine"]
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert left_over(tmp_path) == ["model.engine"]
    assert path.read_bytes() == b"the old engine"


# ---- files that are in use on Windows -----------------------------------------------------------


class Windows:
    """Stands for Windows, where a file in use cannot be replaced or removed but renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
        self.target = target
        self.in_use = [target.stat().st_ino]
        self.refuse_everything = False
        self._replace, self._unlink = os.replace, Path.unlink
        monkeypatch.setattr(os, "replace", self.replace)
        monkeypatch.setattr(Path, "unlink", self._unlink_by_name)

    @property
    def _unlink_by_name(self) -> Callable[[Path], None]:
        def unlink(path: Path) -> None:  # a function, so that Path takes it for a method
            self._refuse(path)
            self._unlink(path)

        return unlink

    def replace(self, source: Path, target: Path) -> None:
        self._refuse(target)
        self._replace(source, target)

    def _refuse(self, path: Path) -> None:
        used = path.exists() and path.stat().st_ino in self.in_use
        if used or (self.refuse_everything and path == self.target):
            error = PermissionError(errno.EACCES, "Access is denied")
            error.winerror = 1224  # type: ignore[attr-defined,unused-ignore]  # only Windows sets it
            raise error


def test_a_mapped_file_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"the old engine")
    windows = Windows(monkeypatch, path)
    save_atomically(DATA, path)
    assert path.read_bytes() == DATA
    aside, name = left_over(tmp_path)
    assert name == "model.engine"
    assert aside.startswith(".trt_widget-")
    assert (tmp_path / aside).read_bytes() == b"the old engine"
    # A later save that has to move a file finds the first one free; but another process may still
    # want to put it back in its place where it is new.
    windows.in_use = [path.stat().st_ino]
    save_atomically(b"third", path)
    assert path.read_bytes() == b"third"
    assert aside in left_over(tmp_path)
    (tmp_path / aside).rename(tmp_path / ".trt_widget-1700000000-0123456789abcdef.old")
    windows.in_use = [path.stat().st_ino]
    save_atomically(b"fourth", path)
    assert path.read_bytes() == b"fourth"
    assert len(left_over(tmp_path)) == 3
    assert not [name for name in left_over(tmp_path) if "-1700000000-" in name]


def test_what_was_moved_aside_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"the old engine")
    windows = Windows(monkeypatch, path)
    windows.refuse_everything = True
    with pytest.raises(SaveError, match="open in another program"):
        save_atomically(DATA, path)
    assert path.read_bytes() == b"the old engine"
    assert left_over(tmp_path) == ["model.engine"]


# ---- maps ---------------------------------------------------------------------------------------


def test_a_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(DATA)
    view = map_file(path)
    assert view.readonly
    assert (view.nbytes, view.format) == (len(DATA), "B")
    assert view == DATA
    assert map_file(str(path)) == DATA
    path.write_bytes(b"")
    assert map_file(path).nbytes == 0
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "missing")


def test_a_map_of_a_descriptor_takes_it_over(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    for content in (DATA, b""):
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        assert map_file(descriptor) == content
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="not a regular file"):
        map_file(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_maps_leave_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(DATA)
    before = len(list(Path("/proc/self/fd").iterdir()))
    views = [map_file(path) for _ in range(10)]
    assert bytes(views[-1]) == DATA
    del views
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.usefixtures("way")
def test_a_map_is_saved_over_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    view = map_file(path)
    assert save_atomically(view, path) == path
    assert path.read_bytes() == content
    save_atomically(b"another", path)
    assert view == content  # the map's file lives on without a name
    assert left_over(tmp_path) == ["model.engine"]
