"""The builds of a server: real ones, by tensorrt_rtx in child processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from tests import models
from trt_widget import Build, OptionError, SourceError
from trt_widget.errors import BuildStateError
from trt_widget.servers.builds import (
    REQUEST_OPTIONS,
    Builds,
    PathRefused,
    QueueFull,
    RequestError,
    UnknownBuild,
    describe,
    read_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    onnx.save(models.mlp(), folder / "mlp.onnx")
    onnx.save(models.mlp(batch="n"), folder / "deep" / "dynamic.onnx")
    onnx.save(models.unknown_operators("Nope"), folder / "unknown.onnx")
    onnx.save(models.mlp(), tmp_path / "outside.onnx")
    (folder / "link.onnx").symlink_to(tmp_path / "outside.onnx")
    (folder / "inside.onnx").symlink_to(folder / "mlp.onnx")
    (folder / "way_out").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    return folder


@pytest.fixture
def builds(root: Path) -> Iterator[Builds]:
    made = Builds(root)
    yield made
    made.close()
    assert not made.all()


def until(told: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not told():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_build_from_request_to_engine(builds: Builds, root: Path) -> None:
    options = {"profiles": {"x": [[1, 8], [2, 8], [4, 8]]}, "optimization_level": 2, "target": None}
    entry = builds.start("deep/dynamic.onnx", options, name="mine", output="deep/out.engine")
    assert builds.get(entry.id) is entry
    batches = list(entry.broadcast.reader())
    assert batches[0].events[0].model == "mine"  # type: ignore[union-attr]
    assert entry.build.executor == "process"
    said = describe(entry.build)
    assert (said["status"], said["name"], said["error"]) == ("succeeded", "mine", None)
    assert said["engine_bytes"] == (root / "deep" / "out.engine").stat().st_size
    assert said["result"]["engine"] == str(root / "deep" / "out.engine")
    assert said["progress"] == 1.0
    assert said["phases"][0]["depth"] == 0
    assert not builds.cancel(entry.id)
    builds.remove(entry.id)
    with pytest.raises(UnknownBuild, match=entry.id):
        builds.get(entry.id)
    assert (root / "deep" / "out.engine").exists()


def test_a_failure_is_described_with_its_remedy(builds: Builds) -> None:
    entry = builds.start("unknown.onnx")
    until(lambda: entry.build.told)
    said = describe(entry.build)
    assert said["status"] == said["result"]["status"] == "failed"
    assert said["error"]["class"] == "ParseFailed"
    assert "Nope" in said["error"]["cause"] + "".join(said["error"]["evidence"])
    assert said["error"]["remedy"]


@pytest.mark.parametrize("path", ["mlp.onnx", "./deep/../mlp.onnx", "inside.onnx"])
def test_paths_below_the_root(builds: Builds, root: Path, path: str) -> None:
    assert builds.resolve(path) == root / "mlp.onnx"
    assert builds.resolve(root / path) == root / "mlp.onnx"


@pytest.mark.parametrize(
    "path",
    [
        "../outside.onnx",
        "link.onnx",
        "way_out/outside.onnx",
        "/etc/passwd",
        "deep/../../outside.onnx",
        "loop",
        "",
        " ",
        "a\0b",
        "x" * 5_000,
        None,
        7,
        b"mlp.onnx",
        ["mlp.onnx"],
    ],
)
def test_paths_that_are_refused(builds: Builds, path: Any) -> None:
    with pytest.raises(PathRefused) as caught:
        builds.start(path)
    assert caught.value.remedy
    with pytest.raises(PathRefused):
        builds.start("mlp.onnx", output=path if path is not None else "../x.engine")
    assert not builds.all()


def test_what_is_not_there_is_a_source_error(builds: Builds) -> None:
    with pytest.raises(SourceError):
        builds.start("missing.onnx")
    with pytest.raises(OptionError):
        Builds("no such folder")
    assert not builds.all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "must be an object"),
        ("x", "must be an object"),
        ({"optimisation_level": 3}, "optimization_level"),
        ({"plugins": ["/evil.so"]}, "not for requests"),
        ({"configure": "os:system"}, "not for requests"),
        ({"output": "/etc/x"}, "not for requests"),
        ({"executor": "thread"}, "not for requests"),
        ({"engine_cache": True}, "not for requests"),
        ({"timing_cache": "/etc/passwd"}, "true or false"),
        ({"backend": ["os"]}, "must be a name"),
        ({1: 2}, "no option 1"),
    ],
)
def test_requests_that_ask_too_much(options: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        read_options(options)
    assert caught.value.remedy


def test_values_are_checked_as_those_of_a_build(builds: Builds) -> None:
    for options in (
        {"optimization_level": 9},
        {"timeout": -1},
        {"profiles": [1]},
        {"backend": "os"},
    ):
        with pytest.raises(OptionError):
            builds.start("mlp.onnx", options)
    assert read_options(dict.fromkeys(REQUEST_OPTIONS)) == {}


def test_the_queue_is_bounded_and_empties(root: Path) -> None:
    slow = {"configure": models.slowly(0.02)}
    builds = Builds(root, options=slow, max_waiting=2)
    try:
        entries = [builds.start("mlp.onnx") for _ in range(3)]
        with pytest.raises(QueueFull):
            builds.start("mlp.onnx")
        assert [entry.status for entry in entries[1:]] == ["pending", "pending"]
        assert describe(entries[1].build)["waiting_for"] == "mlp.onnx"
        builds.cancel(entries[2].id)
        until(lambda: entries[2].build.told)
        again = builds.start("mlp.onnx")
        until(lambda: again.build.told)
        assert [entry.status for entry in builds.all()] == [
            "succeeded",
            "succeeded",
            "cancelled",
            "succeeded",
        ]
    finally:
        builds.close()
    with pytest.raises(RequestError, match="end"):
        builds.start("mlp.onnx")


def test_what_was_cancelled_before_its_start_never_begins(builds: Builds, root: Path) -> None:
    entry = builds.start("mlp.onnx", output="out.engine", cancelled=lambda: True)
    until(lambda: entry.build.told)
    said = describe(entry.build)
    assert (said["status"], said["result"]["ended_by"]) == ("cancelled", "before build")
    assert not (root / "out.engine").exists()
    assert not builds.cancel(entry.id)
    again = builds.start("mlp.onnx", cancelled=lambda: False)
    until(lambda: again.build.told)
    assert again.status == "succeeded"


def test_the_oldest_that_have_ended_are_forgotten(root: Path) -> None:
    builds = Builds(root, keep=2)
    gone = []
    entries = []
    for index in range(4):
        entry = builds.start("mlp.onnx")
        entry.on_removed.append(lambda index=index: gone.append(index))
        entries.append(entry)
        until(lambda entry=entry: entry.build.told)
    assert gone == [0]
    builds.start("mlp.onnx")
    assert gone == [0, 1]
    builds.close()
    assert gone == [0, 1, 2, 3]


def test_closing_leaves_no_process(root: Path) -> None:
    builds = Builds(root, options={"configure": models.slowly(0.05), "grace": 0.5})
    onnx.save(models.transformer(4), root / "long.onnx")
    entries = [builds.start("long.onnx") for _ in range(3)]
    until(lambda: entries[0].build.tree.paths)
    process = entries[0].build._executor._process  # type: ignore[union-attr]
    builds.close()
    assert process.poll() is not None
    assert {entry.status for entry in entries} == {"cancelled"}


def test_what_is_removed_ends_whatever_its_grace(root: Path) -> None:
    builds = Builds(root, options={"configure": models.configure_by_name})
    onnx.save(models.mlp(first="stuck"), root / "stuck.onnx")
    try:
        removed = [builds.start("stuck.onnx", {"grace": 1e6}) for _ in range(2)]
        following = builds.start("mlp.onnx")
        executor = removed[0].build._executor
        until(lambda: executor._hello)  # type: ignore[union-attr]  # the builder's process is there
        process = executor._process  # type: ignore[union-attr]
        # An earlier request has begun a grace already.
        builds.cancel(removed[0].id)
        for entry in removed:
            builds.remove(entry.id)
        assert builds.all() == [following]
        until(lambda: following.build.told, 30.0)
        assert process.poll() is not None
        assert following.status == "succeeded"
        assert [entry.build.last_status.reason for entry in removed] == ["user", "user"]
    finally:
        for entry in removed:
            entry.build.kill()
        builds.close()


def test_closing_waits_for_no_long_grace(root: Path) -> None:
    builds = Builds(root, options={"configure": models.configure_by_name})
    onnx.save(models.mlp(first="stuck"), root / "stuck.onnx")
    entry = builds.start("stuck.onnx", {"grace": 1e6})
    until(lambda: entry.build._executor._hello)  # type: ignore[union-attr]
    builds.close()
    assert entry.build.told
    assert entry.status == "cancelled"


def test_a_name_is_chosen_before_the_start(root: Path) -> None:
    build = Build(root / "mlp.onnx")
    build.rename("short")
    assert build.name == "short"
    told: list[Any] = []
    build.subscribe(told.extend)
    build.start().wait()
    assert told[0].model == "short"
    with pytest.raises(BuildStateError):
        build.rename("late")


def test_a_time_limit_past_what_a_thread_can_wait_for_is_none(root: Path) -> None:
    build = Build(root / "mlp.onnx", timeout=1e300, grace=1e300).start()
    assert build.wait() is not None
