"""A model as the bytes of all its files."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import models
from trt_widget import _content
from trt_widget._content import Content, Piece, content_of, hash_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return models.save_external(models.mlp(), folder / "net.onnx")


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    _content._remembered.clear()
    yield
    _content._remembered.clear()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for_later(path: Path) -> None:
    """Wait until the clock of the file system has moved on since the file was written."""
    deadline = time.monotonic() + 30
    probe = path.with_name("probe")
    while True:
        probe.write_bytes(b"")
        found = probe.stat().st_ctime_ns
        probe.unlink()
        if found > path.stat().st_ctime_ns:
            return
        assert time.monotonic() < deadline


def test_a_model_and_its_weights_by_all_their_bytes(model: Path) -> None:
    found = content_of(model)
    weights = model.with_name("weights.bin")
    assert [(piece.name, piece.source, piece.size, piece.sha256) for piece in found.files] == [
        ("model.onnx", model, model.stat().st_size, sha256(model)),
        ("weights.bin", weights, weights.stat().st_size, sha256(weights)),
    ]
    assert found.refused == ()
    assert found.size == model.stat().st_size + weights.stat().st_size
    assert found.is_current()


def test_where_a_model_lies_does_not_matter_but_each_byte_does(model: Path, tmp_path: Path) -> None:
    first = content_of(model)
    other = tmp_path / "other"
    other.mkdir()
    for path in model.parent.iterdir():
        (other / path.name.replace("net", "web")).write_bytes(path.read_bytes())
    assert content_of(other / "web.onnx").digest == first.digest
    weights = bytearray((other / "weights.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "weights.bin").write_bytes(weights)
    assert content_of(other / "web.onnx").digest != first.digest


def test_bytes_are_like_a_file(tmp_path: Path) -> None:
    data = models.mlp().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    assert content_of(data).digest == content_of(path).digest
    assert content_of(data).files[0].read(3, 5) == data[3:8]
    assert content_of(data).is_current()


@given(st.lists(st.tuples(st.text(), st.binary()), max_size=3), st.integers(0, 2))
def test_no_two_sets_of_files_have_one_digest(files: list[tuple[str, bytes]], cut: int) -> None:
    def digest(parts: list[tuple[str, bytes]]) -> str:
        made = [
            Piece(name.encode("utf-8", "replace").decode(), data, len(data), _sha(data))
            for name, data in parts
        ]
        return Content(tuple(made)).digest

    others = [files[:cut], [*files, ("", b"")], [(f"{name}0", data) for name, data in files]]
    for other in others:
        assert (digest(other) == digest(files)) == (other == files)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_name_that_weights_have_is_not_the_models(tmp_path: Path) -> None:
    path = models.save_external(models.mlp(), tmp_path / "net.onnx", "model.onnx")
    assert [piece.name for piece in content_of(path).files] == ["_model.onnx", "model.onnx"]


def test_only_what_a_build_would_read_is_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "weights").mkdir()
    made = models.mlp()
    path = models.save_external(made, tmp_path / "model" / "net.onnx")
    weights = path.with_name("weights.bin").rename(tmp_path / "weights" / "w.bin")
    for tensor in made.graph.initializer:
        next(
            entry for entry in tensor.external_data if entry.key == "location"
        ).value = "../weights/w.bin"
    path.write_bytes(made.SerializeToString())
    closed = content_of(path)
    assert [piece.name for piece in closed.files] == ["model.onnx"]
    assert closed.refused == ("../weights/w.bin",)
    opened = content_of(path, [tmp_path / "weights"])
    assert [piece.name for piece in opened.files] == ["model.onnx", "../weights/w.bin"]
    assert opened.files[1].sha256 == sha256(weights)
    assert opened.refused == ()
    assert opened.digest != closed.digest


def test_bytes_name_no_files(model: Path) -> None:
    found = content_of(model.read_bytes())
    assert len(found.files) == 1
    assert found.refused == ("weights.bin",)


def test_a_file_is_read_piece_by_piece(model: Path) -> None:
    piece = content_of(model).files[1]
    data = model.with_name("weights.bin").read_bytes()
    read = b"".join(piece.read(at, 100) for at in range(0, len(data) + 100, 100))
    assert read == data


def test_what_is_missing_or_no_file_is_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        content_of(tmp_path / "none.onnx")
    model.with_name("weights.bin").unlink()
    with pytest.raises(OSError, match="No such file"):
        content_of(model)
    model.with_name("weights.bin").mkdir()
    assert content_of(model).refused == ("weights.bin",)
    with pytest.raises(OSError, match="cannot be followed"):
        content_of(models.mlp().SerializeToString()[:-3] + b"location")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        hash_file(tmp_path / "pipe")


def test_an_unchanged_file_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file's own times tell that it was written a moment ago: then it is read each time.
    blocks: list[None] = []
    hash_file(model, lambda: blocks.append(None))
    hash_file(model, lambda: blocks.append(None))
    assert len(blocks) == 2
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60)
    hashed = hash_file(model, lambda: blocks.append(None))
    assert len(blocks) == 3
    assert hash_file(model, lambda: blocks.append(None)) == hashed
    assert len(blocks) == 3
    wait_for_later(model)
    before = model.stat()
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hash_file(model).sha256 == sha256(model) != hashed.sha256, "times can be set back"
    copy = model.with_name("copy")
    copy.write_bytes(bytes(len(data)))
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.replace(model)
    assert hash_file(model).sha256 == sha256(model), "another file of the same name"


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60)
    monkeypatch.setattr(_content, "_MOST_REMEMBERED", 3)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(b"x")
        hash_file(path)
        hash_file(paths[0])
    assert list(_content._remembered) == [str(paths[at]) for at in (3, 4, 0)]


@pytest.mark.parametrize("later", [0.0, 60.0])
def test_a_change_afterwards_is_seen(
    model: Path, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + later)
    found = content_of(model)
    assert found.is_current()
    weights = model.with_name("weights.bin")
    if later:
        wait_for_later(weights)
    weights.write_bytes(bytes(weights.stat().st_size))
    assert not found.is_current()
    weights.unlink()
    assert not found.is_current()


def test_a_change_meanwhile_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_content, "BLOCK", 64)
    weights = model.with_name("weights.bin")

    def write() -> None:
        with weights.open("ab") as file:
            file.write(b"x" if weights.stat().st_size < 2_000 else b"")

    with pytest.raises(OSError, match="changed while it was read"):
        hash_file(weights, write)


def test_reading_stops_between_blocks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_content, "BLOCK", 64)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        content_of(model, step=step)
    assert count == 4
    count = 0
    with pytest.raises(KeyboardInterrupt):
        content_of(models.mlp().SerializeToString(), step=step)
