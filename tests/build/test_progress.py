"""The history at work in real builds: progress, time left, and what is remembered."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests import models
from trt_widget import Build, BuildCancelled
from trt_widget.events import Estimate, PhaseStarted, StatusChanged
from trt_widget.history import VARIABLE, BuildKey, BuildRecord, History

if TYPE_CHECKING:
    from pathlib import Path

    from trt_widget.events import Event

pytestmark = pytest.mark.parametrize("executor", ["thread", "process"])
#: A build of about a second.
MODEL = models.transformer(4)
#: One with some ticks between the network and the end.
LONGER = models.transformer(12)


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "history.sqlite3"))
    return History()


def watch(build: Build) -> list[list[Event]]:
    batches: list[list[Event]] = []
    build.subscribe(batches.append)
    build.start()
    build.wait_ended(120)
    return batches


def estimates(batches: list[list[Event]]) -> list[Estimate]:
    return [event for batch in batches for event in batch if isinstance(event, Estimate)]


def test_the_first_build_invents_nothing_and_the_second_knows(
    executor: str, history: History
) -> None:
    first = Build(LONGER, executor=executor)
    *before, last = estimates(watch(first))
    assert before
    assert {(e.progress, e.eta_s, e.exceeded) for e in before} == {(None, None, False)}
    assert (last.progress, last.eta_s) == (first.progress, first.eta_s) == (1.0, 0.0)
    assert (first.basis, first.expected_s, first.earlier) == (None, None, [])
    assert first.key is not None
    (kept,) = history.similar(first.key)
    assert kept.duration_s == first.result.duration_s  # type: ignore[union-attr]
    assert ("Building Engine",) in kept.phases or len(kept.phases) > 3

    second = Build(LONGER, executor=executor)
    batches = watch(second)
    assert second.key == first.key
    assert second.earlier == [kept]
    assert second.expected_s == kept.duration_s
    assert second.basis == "from 1 earlier build of this network"
    seen = [e.progress for e in estimates(batches)]
    known = [value for value in seen if value is not None]
    assert len(known) >= 3
    assert seen[-len(known) :] == known, "what is known stays known"
    assert known == sorted(known)
    assert all(0.0 <= value < 1.0 for value in known[:-1])
    assert known[-1] == 1.0
    assert len(history.similar(first.key)) == 2


def test_every_batch_has_one_and_the_status_stays_last(executor: str) -> None:
    batches = watch(Build(MODEL, executor=executor))
    assert all(sum(isinstance(e, Estimate) for e in batch) == 1 for batch in batches)
    assert isinstance(batches[-1][-1], StatusChanged)
    for batch in batches:
        times = [event.time for event in batch[:-1]]
        assert times == sorted(times)


def test_a_build_that_never_began_has_one_too(executor: str) -> None:
    build = Build(MODEL, executor=executor)
    batches: list[list[Event]] = []
    build.subscribe(batches.append)
    build.request_cancel()
    build.wait_ended(60)
    (batch,) = batches
    assert [type(event) for event in batch[-2:]] == [Estimate, StatusChanged]


def test_what_is_not_comparable_is_not_compared(executor: str, tmp_path: Path) -> None:
    def key(source: Any, **options: Any) -> BuildKey:
        build = Build(source, executor=executor, **options)
        build.start().wait_ended(120)
        assert build.key is not None
        return build.key

    path = tmp_path / "a.onnx"
    path.write_bytes(MODEL.SerializeToString())
    other = tmp_path / "b" / "c.onnx"
    other.parent.mkdir()
    shutil.copy(path, other)
    base = key(path)
    assert base.size["operators"] == len(MODEL.graph.node)
    assert base.size["layers"] > base.size["computing"] >= base.size["operators"]
    assert key(other) == key(path.read_bytes()) == base, "where it lies does not count"
    assert key(path, output=tmp_path / "e", timeout=100.0, grace=1.0) == base
    assert key(path, optimization_level=1) != base
    assert key(path, flags=["REFIT"]) != base
    assert key(models.transformer(3)) != base
    a, b, c = (key(path, configure=models.slowly(pause)) for pause in (0.0, 0.0, 1e-6))
    assert a == b != base, "a function is what it does"
    assert c != a, "with what it refers to"


def test_weights_in_another_file_count(executor: str, tmp_path: Path) -> None:
    path = models.save_external(models.mlp(3, 64), tmp_path / "m.onnx")

    def network() -> str:
        build = Build(path, executor=executor)
        build.start().wait(120)
        assert build.key is not None
        assert build.key.size["parameters"] >= 3 * 64 * 64
        return build.key.network

    before = network()
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    assert network() != before


def test_networks_of_the_users_own_are_known_by_their_layers(executor: str) -> None:
    import tensorrt_rtx as trt

    def source(width: int = 8) -> Any:
        builder = trt.Builder(trt.Logger())
        network = builder.create_network(0)
        x = network.add_input("x", trt.float32, (1, width))
        y = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
        network.mark_output(
            network.add_elementwise(x, y, trt.ElementWiseOperation.SUM).get_output(0)
        )
        return builder, network

    def network(make: Any) -> BuildKey | None:
        build = Build(make, executor=executor)
        build.start().wait(120)
        return build.key

    first = network(source)
    assert first is not None
    assert first.size == {"layers": 2.0, "computing": 2.0, "parameters": 0.0}
    assert network(source) == first
    assert network(lambda: source(16)) != first


def test_only_what_succeeded_is_remembered(executor: str, history: History) -> None:
    build = Build(models.transformer(20), executor=executor, grace=0.2)
    build.subscribe(
        lambda events: any(isinstance(e, PhaseStarted) for e in events) and build.request_cancel()
    )
    with pytest.raises(BuildCancelled):
        build.start().wait(120)
    assert build.key is not None
    assert history.similar(build.key) == []
    assert build.progress is None
    assert build.eta_s is None


def test_a_cancelled_build_keeps_its_progress_and_has_no_time_left(
    executor: str, history: History
) -> None:
    build = Build(models.transformer(20), executor=executor, grace=0.2)
    batches: list[list[Event]] = []
    build.subscribe(batches.append)

    def on(events: list[Event]) -> None:
        if any(e.progress is not None for e in events if isinstance(e, Estimate)):
            build.request_cancel()

    # It will be told to take as long as ten minutes.
    probe = Build(models.transformer(20), executor=executor, grace=0.2)
    probe.subscribe(lambda _: probe.key is not None and probe.request_cancel())
    probe.start().wait_ended(120)
    assert probe.key is not None
    history.record(probe.key, BuildRecord(600.0, {}, 1.0))
    build.subscribe(on)
    with pytest.raises(BuildCancelled):
        build.start().wait(120)
    assert build.expected_s == 600.0
    assert build.progress is not None
    assert 0.0 < build.progress < 0.2
    assert build.eta_s is None
    last = estimates(batches)[-1]
    assert (last.progress, last.eta_s) == (build.progress, None)
    cancelling = False
    for batch in batches:
        cancelling |= any(isinstance(e, StatusChanged) and e.status == "cancelling" for e in batch)
        assert all(e.eta_s is None for e in batch if isinstance(e, Estimate) and cancelling)
    assert cancelling


def test_exceeded(executor: str, history: History) -> None:
    first = Build(models.transformer(12), executor=executor)
    first.start().wait(120)
    assert first.key is not None
    history.clear()
    history.record(first.key, BuildRecord(0.05, {}, 1.0))
    build = Build(models.transformer(12), executor=executor)
    seen = estimates(watch(build))
    late = [e for e in seen[:-1] if e.exceeded]
    assert late
    assert all(e.eta_s is None and e.progress is not None and e.progress < 1.0 for e in late)
    assert build.progress == 1.0


def test_a_new_network_is_judged_by_the_others(executor: str, history: History) -> None:
    probe = Build(MODEL, executor=executor)
    probe.start().wait(120)
    assert probe.key is not None
    history.clear()
    for number in range(8):
        size = {name: value * (number + 1) / 4 for name, value in probe.key.size.items()}
        other = BuildKey(**{**vars(probe.key), "network": f"n{number}", "size": size})
        history.record(other, BuildRecord(0.5 * (number + 1), {}, float(number)))
    # One that is known by its layers only takes nothing away from what is known of the rest.
    poor = BuildKey(**{**vars(probe.key), "network": "poor", "size": {"layers": 3.0}})
    history.record(poor, BuildRecord(0.5, {}, 9.0))
    build = Build(MODEL, executor=executor)
    seen = estimates(watch(build))
    assert build.basis is not None
    assert build.basis.startswith("from 8 other networks, within a factor of ")
    assert build.expected_s == pytest.approx(2.0, rel=0.5)
    assert any(e.progress is not None for e in seen[:-1])


def test_that_nothing_can_be_kept_is_said(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "history"))
    build = Build(MODEL, executor=executor)
    assert build.start().wait(120)
    assert build.result is not None
    (note,) = [note for note in build.result.notes if "history" in note]
    assert str(tmp_path / "file" / "history") in note
    assert VARIABLE in note


@pytest.mark.parametrize("trouble", ["off", "garbage", "foreign", "folder", "locked"])
def test_trouble_with_the_file_costs_the_history_only(
    executor: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trouble.sqlite3"
    monkeypatch.setenv(VARIABLE, "off" if trouble == "off" else str(path))
    blocker = None
    if trouble == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif trouble == "foreign":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (x)")
    elif trouble == "folder":
        path.mkdir()
    elif trouble == "locked":
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
    before = path.read_bytes() if path.is_file() else None
    build = Build(MODEL, executor=executor)
    try:
        assert build.start().wait(120)
    finally:
        if blocker is not None:
            blocker.execute("ROLLBACK")
            blocker.close()
    assert build.progress == 1.0
    assert build.result is not None
    said = any("history" in note for note in build.result.notes)
    assert said == (trouble != "off")
    assert (path.read_bytes() if path.is_file() else None) == before, "it is somebody else's"


def test_a_script_that_ends_at_once_has_remembered(executor: str, history: History) -> None:
    script = f"""
        from tests import models
        from trt_widget import Build
        Build(models.transformer(4), executor={executor!r}).start().wait()
    """
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120, env=os.environ
        )
    build = Build(MODEL, executor=executor)
    build.start().wait(120)
    assert len(build.earlier) == 2
    assert history.path is not None
    assert history.path.stat().st_size < 100_000
