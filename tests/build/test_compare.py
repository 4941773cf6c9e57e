"""Comparisons of real builds of TensorRT for RTX.

Full TensorRT's timing cache cannot be seen here: that a cold one is told as the cause is tested
with builds as the history keeps them (tests/unit/test_compare.py).
"""

from __future__ import annotations

import functools
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tensorrt_rtx as trt

from tests import models
from trt_widget import Build, BuildWidget
from trt_widget._differences import _differing
from trt_widget._sides import read_sides
from trt_widget.comparison import CompareError, compare
from trt_widget.history import BuildRecord, History

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = models.mlp(4).SerializeToString()
SLOW = "Optimizing graph"
OTHERS = "other options (profiles, configure=)"


class Slow(trt.IProgressMonitor):  # type: ignore[misc]  # no stubs
    """A user's own monitor, which holds one phase up for four seconds."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase
        self.slept = False

    def phase_start(self, name: str, parent: str | None, steps: int) -> None:
        """Nothing."""

    def phase_finish(self, name: str) -> None:
        """Nothing."""

    def step_complete(self, name: str, step: int) -> bool:  # noqa: ARG002 - TensorRT's signature
        """Sleep once."""
        if name == self.phase and not self.slept:
            self.slept = True
            time.sleep(4.0)
        return True


def built(configure: Callable[[Any, Any, Any], None] | None = None, **options: Any) -> Build:
    made = Build(MODEL, configure=configure, backend="tensorrt_rtx", **options).start()
    made.wait(120)
    return made


def hold_up(_builder: Any, _network: Any, config: Any, phase: str = SLOW) -> None:
    config.progress_monitor = Slow(phase)


@pytest.fixture(scope="module")
def quick() -> Build:
    return built(executor="thread")


def test_the_phase_that_became_slower_is_named(quick: Build) -> None:
    slow = built(hold_up, executor="thread")
    made = compare(quick, slow, names=["quick", "slow"])
    assert made.sentence.startswith(f"{SLOW} took ")
    assert made.sentence.endswith(f" s longer; the builds differ in {OTHERS}.")
    by_phase = made.frame.set_index("phase")
    assert 3.9 < by_phase.loc[SLOW, "difference_s"] < 20.0  # type: ignore[operator]
    assert set(by_phase["quick count"]) == set(by_phase["slow count"])
    back = compare(slow, quick)
    assert back.sentence.startswith(f"{SLOW} took ")
    assert " s less" in back.sentence
    assert f"{SLOW}: +" in made.svg


def test_what_takes_long_before_the_first_phase_is_told(quick: Build) -> None:
    def wait(*_: Any) -> None:
        time.sleep(4.0)

    made = compare(quick, built(wait, executor="thread"))
    assert made.sentence.startswith("What is outside of TensorRT's phases took ")


def test_records_on_another_machine_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do where the builds have keys, which hold digests of all options."""
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history.sqlite3"))
    quick = built(executor="thread")
    slow = built(hold_up, executor="thread")
    paths = []
    for name, build in (("quick", quick), ("slow", slow)):
        build.record(tmp_path / f"{name}.json")
        paths.append(tmp_path / f"{name}.json")
    there, here = compare(*paths), compare(quick, slow, names=["quick", "slow"])
    assert there.sentence == here.sentence
    assert there.frame.equals(here.frame)


def test_builds_in_different_places_differ_in_that(quick: Build) -> None:
    other = built(executor="process")
    sentence = compare(quick, other).sentence
    assert sentence == "All phases took about the same." or sentence.endswith(
        "; the builds differ in executor (thread → process)."
    )


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_known_of_the_options(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of builds of this process also what is not plain, of records only where there is none."""
    file = str(tmp_path / "history.sqlite3") if kept else "off"
    monkeypatch.setenv("TRT_WIDGET_HISTORY", file)

    def nothing(*_: Any) -> None:
        """Stands for what the user sets."""

    plain, level = (built(optimization_level=n, executor="thread") for n in (None, 0))
    more = [built(nothing, optimization_level=n, executor="thread") for n in (0, 1)]

    def differing(*given: Any) -> set[str]:
        return set(dict(_differing(*read_sides(given, None))))

    assert differing(plain, level) == {"optimization_level"} == differing(*more)
    assert differing(level, more[0]) == {OTHERS}
    assert differing(plain, more[0]) == {"optimization_level", OTHERS}
    saved = [
        build.record(tmp_path / f"{at}.json") for at, build in enumerate((plain, level, *more))
    ]
    assert differing(*saved[:2]) == {"optimization_level"}
    if kept:
        assert differing(*saved[2:]) == {"optimization_level", f"perhaps {OTHERS}"}
        assert differing(*saved[1:3]) == {OTHERS}


def test_a_build_against_its_own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history.sqlite3"))
    with pytest.raises(CompareError, match="knows no earlier build"):
        compare(built())
    second = compare(built())
    assert second.names == ("earlier", "this build")
    assert (second.frame["earlier count"] == second.frame["this build count"]).all()
    for _ in range(2):
        built()
    widget = BuildWidget(MODEL, backend="tensorrt_rtx").start()
    widget.wait(120)
    made = compare(widget)
    assert made.names == ("earlier (the middle one of 4)", "this build")
    # With so many it is known whether a difference is usual.
    assert "is not known" not in repr(made)
    records = widget._build.earlier
    for earlier in (records, records[0]):
        first, second = read_sides((earlier, widget), None)
        assert list(_differing(first, second)) == []
        assert first.network == second.network is not None
        assert first.facts == second.facts
    alone, _ = read_sides((records[0], records[1]), None)
    assert alone.network is None
    assert compare(records).names[0] == "earlier (the middle one of 3)"
    assert compare(records, widget).frame["difference_s"].tolist() == pytest.approx(
        made.frame["difference_s"].tolist()
    )


def test_the_last_build_had_a_warm_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier builds are stand-ins: this one, without what it was held up in one phase."""
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history.sqlite3"))
    timed = "Computing profile costs"
    build = built(functools.partial(hold_up, phase=timed), executor="thread")
    assert build.key is not None
    (record,) = History().similar(build.key)
    (held_up,) = (path for path in record.phases if path[-1] == timed)
    perhaps = f"{timed} took 3.50 s longer, perhaps because there was no timing cache."
    for state, less, ago, sentence in (
        ("warm", 3.5, 60.0, perhaps),
        # What came before that is not the last time.
        ("cold", 3.0, 90.0, perhaps),
        # With three it is known that so much is not chance.
        ("warm", 3.5, 61.0, perhaps),
        ("warm", 3.5, 62.0, f"{timed} took 3.50 s longer: there was no timing cache."),
        ("cold", 3.0, 30.0, f"{timed} took 3.00 s longer; the builds differ in timing cache "),
    ):
        phases = {
            path: replace(times, total_s=times.total_s - less)
            if path == held_up[: len(path)]
            else times
            for path, times in record.phases.items()
        }
        earlier = BuildRecord(record.duration_s - less, phases, record.finished_at - ago)
        assert History().record(replace(build.key, timing_cache=state), earlier)
        assert compare(build).sentence.startswith(sentence)


def test_different_networks(quick: Build, tmp_path: Path) -> None:
    path = tmp_path / "larger.onnx"
    path.write_bytes(models.mlp(40).SerializeToString())
    larger = Build(path, backend="tensorrt_rtx", executor="thread").start()
    larger.wait(120)
    sentence = compare(quick, larger).sentence
    assert sentence.startswith("Different networks (<bytes>, ")
    assert "larger.onnx, " in sentence


def test_a_running_and_a_cancelled_build(quick: Build) -> None:
    build = Build(MODEL, configure=hold_up, backend="tensorrt_rtx", executor="thread").start()
    with pytest.raises(CompareError, match=r"has not ended \((?:pending|running)\)"):
        compare(quick, build)
    build.request_cancel()
    build.wait_ended(120)
    assert build.status == "cancelled"
    made = compare(quick, build, names=["whole", "part"])
    assert re.match(r"part was cancelled after .*s, so its times are those up to ", made.sentence)
    assert "usual" not in repr(made)
    assert made.frame["part count"].sum() < made.frame["whole count"].sum()


def test_why_a_build_has_no_earlier_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", "off")
    with pytest.raises(CompareError, match="The history of builds is switched off"):
        compare(built(executor="thread"))
    broken = tmp_path / "history.sqlite3"
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(broken))
    broken.write_bytes(b"a file of another program" * 100)
    with pytest.raises(CompareError, match="is known: The history of builds could not be "):
        compare(built(executor="thread"))
    with Build.attach(backend="tensorrt_rtx") as attached:
        attached.finish(b"engine")
    with pytest.raises(CompareError, match="knows no builds of the user's own code"):
        compare(attached)
