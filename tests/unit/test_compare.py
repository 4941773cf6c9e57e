"""Comparisons: what is said of two builds, and what is not."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import time
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests import models
from tests.unit.test_timings import HOSTILE, Reader
from trt_widget import Build, BuildWidget, RecordError
from trt_widget._differences import explain
from trt_widget._sides import OUTSIDE, Phase, Side
from trt_widget.comparison import CompareError, Comparison, compare
from trt_widget.history import BuildKey, BuildRecord, History, PhaseTimes
from trt_widget.identity import digest_of_options
from trt_widget.record import Record

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "Building engine"
KEY = BuildKey(
    "hash",
    "tensorrt",
    "10.13.0",
    "NVIDIA H200",
    "options",
    "process",
    "warm",
    {"layers": 100.0},
)


def build(finished_at: float = 0.0, **seconds: float) -> BuildRecord:
    """Give a build of the history: a root, and phases below it with these seconds.

    Underscores in the names stand for blanks; a second is spent before the first phase.
    """
    now = 1.0
    phases = {}
    for name, length in seconds.items():
        path = (ROOT, *name.replace("_", " ").split("__"))
        phases[path] = PhaseTimes(now, now + length, length, 3)
        now += length
    phases[ROOT,] = PhaseTimes(1.0, now, now - 1.0)
    return BuildRecord(now, phases, finished_at)


def pair(state: str = "warm", *, finished_at: float = 0.0, **seconds: float) -> Any:
    """Give the same with its key: a build of full TensorRT, as the history keeps it."""
    return dataclasses.replace(KEY, timing_cache=state), build(finished_at, **seconds)


def scattered(spread: float, count: int = 8) -> list[BuildRecord]:
    source = random.Random(1)  # noqa: S311 - no secret
    return [
        build(float(at), Cloning=2.0, Timing_tactics=10.0 + source.uniform(-spread, spread))
        for at in range(count)
    ]


# ---- the sentence -------------------------------------------------------------------------------


def side(
    seconds: float, phase: str = "Timing tactics", *, outside: float = 1.0, **given: Any
) -> Side:
    """Give a build of which all is known that a comparison can know; ``given`` says what not."""
    phases = {
        (ROOT,): Phase(seconds + 2.0, 2.0, 1),
        (ROOT, phase): Phase(seconds, seconds, 3),
        OUTSIDE: Phase(outside, outside, 1),
    }
    facts = {"timing_cache": "warm", "version": "10.13", "target": "H200", "executor": "process"}
    facts |= given.pop("facts", {})
    all_of_it = {
        "options": {"optimization_level": None, "workspace": None},
        "digest": "digest",
        "rest": "rest",
        "network": "network",
        "model": "a.onnx",
        **given,
    }
    name = str(all_of_it.pop("name", "one"))
    return Side(name, seconds + 2.0 + outside, phases, facts, **all_of_it)


def known(first: Side) -> Side:
    """Give it with eight earlier builds, which scatter by some tenths of a second."""
    times = [first.phases[ROOT, "Timing tactics"].total_s + at / 20 for at in range(8)]
    return dataclasses.replace(first, sample=tuple(build(Timing_tactics=time) for time in times))


COLD = {"timing_cache": "cold"}
LEVEL_4 = {"optimization_level": 4, "workspace": None}


def test_the_sentence_of_the_cold_cache() -> None:
    """It is a fact where all else is known to be the same and so much is more than chance."""
    sentence, notes = explain(known(side(3.0)), side(44.0, facts=COLD))
    assert sentence == "Timing tactics took 41.0 s longer: the timing cache was cold."
    assert notes == ["That is more than the usual scatter of 8 earlier builds."]
    level = side(44.0, options=LEVEL_4, digest="other")
    sentence, _ = explain(known(side(3.0)), level)
    assert sentence == "Timing tactics took 41.0 s longer: optimization_level was 4 instead of 3."


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (side(3.0), side(44.0, facts=COLD)),  # no earlier builds
        # Something is not known that could differ.
        *(
            (known(side(3.0, **gap)), side(44.0, facts=COLD, **gap))
            for gap in ({"digest": None, "rest": None}, {"network": None})
        ),
        *(
            (known(side(3.0, facts={name: ""})), side(44.0, facts=COLD))
            for name in ("version", "target", "executor")
        ),
    ],
)
def test_a_cause_is_not_claimed_as_a_fact(first: Side, second: Side) -> None:
    words = "took 41.0 s longer, perhaps because the timing cache was cold."
    assert explain(first, second)[0].endswith(words)


OTHERS = "other options (profiles, configure=)"


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        # Also the GPU, the version and the level.
        (
            {
                "facts": {**COLD, "target": "T4", "version": "10.16"},
                "options": LEVEL_4,
                "digest": "other",
            },
            "TensorRT (10.13 → 10.16), target (H200 → T4), timing cache (warm → cold), optim",
        ),
        ({"facts": {**COLD, "executor": "thread"}}, "executor (process → thread), timing cache"),
        # Also the profiles.
        ({"facts": COLD, "digest": "other", "rest": "other"}, f"(warm → cold), {OTHERS}."),
        (
            {"options": LEVEL_4, "digest": "other", "rest": "other"},
            f"optimization_level (default → 4), {OTHERS}.",
        ),
        # Whether also the profiles do cannot be told from two digests.
        (
            {"options": LEVEL_4, "digest": "other", "rest": None},
            f"optimization_level (default → 4), perhaps {OTHERS}.",
        ),
        # The profiles alone.
        ({"digest": "other", "rest": "other"}, f"; the builds differ in {OTHERS}."),
        ({"digest": "other", "rest": None}, f"; the builds differ in {OTHERS}."),
        ({"facts": COLD, "digest": "other", "options": None}, "cold), options (not the same)."),
    ],
)
def test_where_more_differs_there_is_no_cause(given: dict[str, Any], listed: str) -> None:
    for first in (side(3.0), known(side(3.0))):
        sentence, _ = explain(first, side(44.0, **given))
        assert sentence.startswith("Timing tactics took 41.0 s longer; the builds differ in ")
        assert listed in sentence
        assert "because" not in sentence


def test_time_outside_of_phases_has_no_cause() -> None:
    for given in ({"options": LEVEL_4, "digest": "other"}, {"facts": COLD}):
        sentence, _ = explain(known(side(3.0)), side(3.0, outside=55.0, **given))
        assert sentence.startswith("What is outside of TensorRT's phases took 54.0 s longer; the ")


@pytest.mark.parametrize(
    ("phase", "timed"),
    [
        ("Timing graph nodes", True),
        ("Finding fastest tactic for /encoder/MatMul", True),
        ("Optimizing /encoder/fine_tuning_head/MatMul", False),
        ("/profile/timing/tactic", False),
        ("My Timing tactics", False),
        ("Cloning network graph", False),
    ],
)
def test_only_tensorrts_own_names_tell_of_timing(phase: str, timed: bool) -> None:
    sentence, _ = explain(side(3.0, phase), side(44.0, phase, facts=COLD))
    assert (", perhaps because the timing cache was cold." in sentence) is timed
    assert ("; the builds differ in timing cache (warm → cold)." in sentence) is not timed


def test_another_phase_that_shrank_has_not_the_same_cause() -> None:
    cold = {**COLD, "version": "10.13"}
    first, second = side(3.0), side(44.0, facts=cold)
    cloning = (ROOT, "Cloning")
    first = dataclasses.replace(
        first, duration_s=36.0, phases={**first.phases, cloning: Phase(30.0, 30.0, 1)}
    )
    sentence, _ = explain(first, second)
    assert sentence.startswith("Timing tactics took 41.0 s longer, Cloning took 30.0 s less; the ")


def test_networks_that_are_not_known_are_not_taken_for_the_same() -> None:
    first = side(3.0, network=None, model="a.onnx")
    second = side(44.0, network=None, model="b.onnx", facts=COLD)
    for other in (second, dataclasses.replace(second, network="network")):
        sentence, notes = explain(known(first), other)
        assert sentence == (
            "Timing tactics took 41.0 s longer; the builds differ in timing cache (warm → cold)."
        )
        assert notes == ["Whether a.onnx and b.onnx are the same network is not known."]
    # Without names neither.
    for given in ({"model": None}, {"model": "a.onnx", "layers": 7}):
        one = dataclasses.replace(first, model=None)
        sentence, _ = explain(one, dataclasses.replace(second, **given))
        assert "because" not in sentence
    # With the same name they may be.
    sentence, _ = explain(first, dataclasses.replace(second, model="a.onnx"))
    assert sentence.endswith(", perhaps because the timing cache was cold.")
    # Another number of layers tells, but not of two versions of TensorRT.
    few, many = (dataclasses.replace(given, layers=n) for given, n in ((first, 3), (second, 9)))
    assert explain(few, many)[0].startswith("Different networks (one, 3 layers and one, 9 layers)")
    newer = dataclasses.replace(many, facts={**many.facts, "version": "11.4"}, model="a.onnx")
    assert explain(few, newer)[0].startswith("Timing tactics took 41.0 s longer; the builds ")


def test_what_is_not_usual_is_told_before_what_is() -> None:
    def some(timing: float, cloning: float) -> BuildRecord:
        return build(Timing_tactics=timing, Cloning=cloning)

    earlier = [some(10.0 + 4 * (at % 2), 5.0 + at / 100) for at in range(8)]
    made = compare(earlier, some(14.0, 1.5))
    assert re.fullmatch(r"Cloning took 3\.\d\d s less\.", made.sentence)
    assert "usual" not in made.sentence
    assert "That is more than the usual scatter of 8 earlier builds." in made.notes
    alone = compare(earlier, some(14.0, 5.0))
    assert re.fullmatch(r"Timing tactics took .* s longer, which is within .*", alone.sentence)


def test_a_cause_that_is_not_certain_is_no_fact() -> None:
    cold = pair("cold", Cloning=2.0, Timing_tactics=44.0)
    made = compare(pair("warm", Cloning=2.0, Timing_tactics=3.0), cold)
    perhaps = "Timing tactics took 41.0 s longer, perhaps because the timing cache was cold."
    assert made.sentence == perhaps
    assert made.names == ("build 1", "build 2")
    totals, chance = made.notes
    assert totals == "build 1: 6.00 s; build 2: 47.0 s."
    assert chance.startswith("Whether that is more than chance is not known: it takes 3 earlier ")


@pytest.mark.parametrize(
    ("first", "second", "ending"),
    [
        (
            pair("cold", Timing_tactics=44.0),
            pair("warm", Timing_tactics=3.0),
            ", perhaps because the timing cache was warm.",
        ),
        (
            pair("warm", Timing_tactics=3.0),
            pair("none", Timing_tactics=44.0),
            ", perhaps because there was no timing cache.",
        ),
    ],
)
def test_other_states_of_the_cache(first: Any, second: Any, ending: str) -> None:
    assert compare(first, second).sentence.endswith(ending)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # A warm cache does not make a build slower, nor cloning faster; equal states say nothing.
        (pair("cold", Timing_tactics=3.0), pair("warm", Timing_tactics=44.0)),
        (pair("warm", Cloning=3.0), pair("cold", Cloning=44.0)),
        (pair("cold", Timing_tactics=3.0), pair("cold", Timing_tactics=44.0)),
        (pair("none", Timing_tactics=3.0), pair("cold", Timing_tactics=44.0)),
    ],
)
def test_a_cache_that_explains_nothing_is_no_cause(first: Any, second: Any) -> None:
    sentence = compare(first, second).sentence
    assert "the timing cache was" not in sentence
    assert " took 41.0 s longer" in sentence


def test_without_facts_there_is_no_cause() -> None:
    sentence = compare(build(Timing_tactics=3.0), build(Timing_tactics=44.0)).sentence
    assert sentence == "Timing tactics took 41.0 s longer."


def test_what_else_differs_is_listed_without_a_claim() -> None:
    _, slow = pair(Timing_tactics=44.0)
    other = dataclasses.replace(
        KEY, version="11.4.0", target="NVIDIA L40", executor="thread", options="others"
    )
    sentence = compare(pair(Timing_tactics=3.0), (other, slow)).sentence
    assert sentence == (
        "Timing tactics took 41.0 s longer; the builds differ in TensorRT (tensorrt 10.13.0 → "
        "tensorrt 11.4.0), target (NVIDIA H200 → NVIDIA L40), executor (process → thread), options "
        "(not the same)."
    )


def test_builds_that_took_about_the_same() -> None:
    made = compare(pair("warm", Timing_tactics=30.0), pair("cold", Timing_tactics=30.2))
    assert made.sentence == "All phases took about the same."
    assert made.notes == ("build 1: 31.0 s; build 2: 31.2 s.",)


def test_what_cancels_out_is_seen() -> None:
    made = compare(build(Cloning=20.0, Timing=5.0), build(Cloning=5.0, Timing=20.0))
    assert made.sentence == "Cloning took 15.0 s less, Timing took 15.0 s longer."


def test_the_deepest_phase_with_most_of_it_is_named() -> None:
    first = build(A=10.0)
    second = build(A=50.0)
    below = {
        (ROOT, "A", "inner"): (5.0, 44.0),
        (ROOT, "A", "inner", "x"): (2.0, 20.0),
        (ROOT, "A", "inner", "y"): (3.0, 24.0),
    }
    for at, record in enumerate((first, second)):
        for path, seconds in below.items():
            record.phases[path] = PhaseTimes(1.5, 2.0, seconds[at])  # type: ignore[index]
    # Its two halves explain neither one alone.
    assert compare(first, second).sentence == "inner took 39.0 s longer."


def test_time_outside_of_all_phases() -> None:
    slow = dataclasses.replace(build(Timing=5.0), duration_s=36.0)
    made = compare(build(Timing=5.0), slow)
    assert made.sentence == "What is outside of TensorRT's phases took 30.0 s longer."
    assert made.frame["phase"].iloc[-1] == "(outside of TensorRT's phases)"
    assert made.frame["difference_s"].iloc[-1] == pytest.approx(30.0)


def test_different_networks_are_told() -> None:
    other = dataclasses.replace(KEY, network="other", timing_cache="cold", size={"layers": 2_000.0})
    made = compare(
        pair("warm", Timing_tactics=3.0), (other, build(Timing_tactics=44.0)), names=["a", "b"]
    )
    assert made.sentence == (
        "Different networks (a, 100 layers and b, 2,000 layers): Timing tactics took 41.0 s longer."
    )
    same = compare(pair(Timing=30.0), (other, build(Timing=30.0)), names=["a", "b"])
    assert same.sentence.endswith("layers): all phases took about the same.")


def test_what_is_usual_is_called_so() -> None:
    made = compare(scattered(2.0), build(Cloning=2.0, Timing_tactics=11.0))
    assert re.fullmatch(
        r"Timing tactics took .* s longer, which is within the usual scatter of 8 earlier builds\.",
        made.sentence,
    )
    unusual = compare(scattered(2.0), build(Cloning=2.0, Timing_tactics=40.0))
    assert unusual.sentence.startswith("Timing tactics took ")
    assert "usual" not in unusual.sentence
    assert "That is more than the usual scatter of 8 earlier builds." in unusual.notes
    few = compare(scattered(2.0, 2), build(Cloning=2.0, Timing_tactics=12.0))
    assert "usual" not in few.sentence
    assert few.notes[-1].startswith("Whether that is more than chance is not known")


def test_most_builds_of_one_kind_count_as_usual() -> None:
    source = random.Random(2)  # noqa: S311 - no secret
    draws = [
        [build(float(at), Timing=10.0 * math.exp(source.gauss(0.0, 0.1))) for at in range(6)]
        for _ in range(200)
    ]
    alarms = [
        "That is more than the usual scatter" in " ".join(compare(group[:5], group[5]).notes)
        for group in draws
    ]
    assert sum(alarms) < 20


def test_what_was_never_seen_is_not_called_usual() -> None:
    """With three builds the interval is so wide that it says nothing; then the range is told."""
    earlier = [build(float(at), Timing=time) for at, time in enumerate((1.70, 1.56, 1.19))]
    made = compare(earlier, build(Cloning=0.1, Timing=2.71))
    assert made.sentence == "Timing took 1.15 s longer."
    assert made.notes[1] == (
        "3 earlier builds took 1.19 s to 1.70 s for Timing: whether this is more than chance is "
        "not certain."
    )
    assert "usual" not in repr(made)
    within = compare(earlier, build(Timing=1.20))
    assert "within the usual scatter of 3 earlier builds." in within.sentence
    far = compare(earlier, build(Timing=9.0))
    assert "That is more than the usual scatter of 3 earlier builds." in far.notes
    outside = [dataclasses.replace(one, duration_s=one.duration_s + 5.0) for one in earlier]
    before = [
        dataclasses.replace(one, duration_s=20.0 + at) for at, one in enumerate((earlier[0],) * 3)
    ]
    after = dataclasses.replace(outside[0], duration_s=24.0)
    assert "outside of TensorRT's phases: whether this is more" in compare(before, after).notes[1]


def busy(*factors: float, **given: Any) -> Side:
    """Give a build with some large phases and a small one, each so many times as long."""
    usual = (1.0, 0.6, 0.4, 0.3, 0.01)
    phases = {
        (ROOT, f"P{at}"): Phase(time * factor, time * factor, 1)
        for at, (time, factor) in enumerate(zip(usual, factors, strict=True))
    }
    whole = sum(phase.total_s for phase in phases.values())
    return dataclasses.replace(
        side(1.0, **given),
        phases={(ROOT,): Phase(whole, 0.0, 1), **phases, OUTSIDE: Phase(0.2, 0.2, 1)},
        duration_s=whole + 0.2,
    )


def test_where_everything_is_slower_that_is_said() -> None:
    quiet, slow = busy(1, 1, 1, 1, 1), busy(3, 2, 2, 2.5, 1)
    sentence, _ = explain(quiet, slow)
    assert sentence == (
        "In all 5.96 s instead of 2.51 s, nearly all phases 2.0 to 3.0 times as long, perhaps "
        "because the machine was busier; P0 took 2.00 s longer."
    )
    back, _ = explain(slow, quiet)
    assert "nearly all phases 0.33 to 0.50 times as long, perhaps because the machine was " in back
    assert "was less busy; P0 took 2.00 s less." in back
    # What is known to differ may be why.
    other, _ = explain(quiet, dataclasses.replace(slow, facts={**slow.facts, "target": "T4"}))
    assert "times as long; P0 took 2.00 s longer; the builds differ in target (H200 → T4)." in other
    cold, _ = explain(quiet, dataclasses.replace(slow, facts={**slow.facts, **COLD}))
    assert "because" not in cold
    assert "the builds differ in timing cache (warm → cold)." in cold
    # Of any two builds it is not known whether they are of one network.
    any_two = [dataclasses.replace(one, network=None, model=None) for one in (quiet, slow)]
    assert "2.0 to 3.0 times as long; P0 took 2.00 s longer." in explain(*any_two)[0]
    # What is unlike is not the machine's.
    unlike, _ = explain(quiet, busy(3, 20, 2, 1.5, 1))
    assert "In all 16.5 s instead of 2.51 s, nearly all phases longer; P1 took" in unlike
    # A phase that stayed as it was tells against it, and one alone is no news of all.
    for factors in ((1, 4, 4, 4, 1), (6, 1, 1, 1, 1)):
        assert "nearly all" not in explain(quiet, busy(*factors))[0]
    assert explain(quiet, busy(6, 1, 1, 1, 1))[0] == "P0 took 5.00 s longer."
    assert explain(quiet, busy(1.03, 1.03, 1.03, 1.03, 1))[0] == "All phases took about the same."


def test_what_is_spread_over_many_phases_is_said_of_the_whole() -> None:
    """Also where each phase alone is too small to be told, or the one that is told not most."""
    phases = {(f"root {at}",): PhaseTimes(at, at + 1.0, 0.1) for at in range(30)}
    few = BuildRecord(3.0, phases, 0.0)
    # Half of the phases are new, so that not nearly all of them took longer.
    more = dataclasses.replace(
        few,
        duration_s=6.0,
        phases={**few.phases, **{(f"new {at}",): PhaseTimes(0.0, 1.0, 0.1) for at in range(30)}},
    )
    assert compare(few, more).sentence == (
        "In all 6.00 s instead of 3.00 s; no phase alone took much more or less."
    )
    both = dataclasses.replace(
        more, duration_s=8.0, phases={**more.phases, ("Big",): PhaseTimes(0.0, 2.0, 2.0)}
    )
    assert compare(few, both).sentence == "In all 8.00 s instead of 3.00 s; Big took 2.00 s longer."


def test_earlier_builds_tell_whether_the_whole_is_usual() -> None:
    quiet, slow = busy(1, 1, 1, 1, 1), busy(3, 2, 2, 2.5, 1)
    for lengths, words in (
        ((2.4, 2.5, 6.5, 2.6, 6.0, 5.0), "which is within the usual scatter of 6 earlier builds."),
        ((2.4, 2.5, 2.6, 2.5), "That is more than the usual scatter of 4 earlier builds."),
        ((2.4, 2.5, 4.5), "3 earlier builds took 2.40 s to 4.50 s: whether this is more than"),
    ):
        sample = tuple(dataclasses.replace(build(A=1.0), duration_s=s) for s in lengths)
        sentence, notes = explain(dataclasses.replace(quiet, sample=sample), slow)
        assert words in " ".join([sentence, *notes])
        assert sentence.startswith("In all 5.96 s instead of 2.51 s, nearly all phases 2.0 to 3.0")


def test_three_builds() -> None:
    made = compare(build(Timing=10.0), build(Timing=30.0), build(Timing=2.0), names=["a", "b", "c"])
    assert made.sentence == "b took longest, c least: Timing took 28.0 s longer."
    assert made.notes[0] == "a: 11.0 s; b: 31.0 s; c: 3.00 s."
    assert "difference_s" not in made.frame
    assert "b: Timing" in made.svg
    assert "c: Timing" in made.svg


# ---- what is compared ---------------------------------------------------------------------------


def test_a_list_of_the_history_is_its_newest_against_the_others() -> None:
    records = [build(float(at), Timing=10.0 + at) for at in (3, 1, 2, 0)]
    made = compare(records)
    assert made.names == ("earlier (the middle one of 3)", "1970-01-01 00:00:03 UTC")
    assert made.frame.loc[1, "difference_s"] == pytest.approx(2.0)
    with pytest.raises(CompareError, match="There is one build only"):
        compare(records[:1])


class Stand:
    """Something of an odd kind."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "nothing to compare"),
        ((3,), "An int is no build that has ended"),
        ((None, build(A=1.0)), "None is no build"),
        ((build(A=1.0), Stand()), "A Stand is no build"),
        (([],), "There are no earlier builds: the list is empty"),
        (([], build(A=1.0)), "There are no earlier builds: the list is empty"),
        ((["a.json", "b.json"],), "Builds in a list are not compared"),
        (([build(A=1.0), 3],), "A list is no build"),
        (((KEY, 3), build(A=1.0)), "A tuple is no build"),
        ((build(A=1.0),), "Of one build of the history it is not known"),
    ],
)
def test_what_cannot_be_compared(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(CompareError, match=words) as caught:
        compare(*given)
    assert caught.value.remedy
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", [Build, BuildWidget])
def test_builds_in_a_list(kind: type[Any]) -> None:
    made = kind(b"onnx", backend="tensorrt_rtx")
    with pytest.raises(CompareError, match="Builds in a list are not"):
        compare([made], build(A=1.0))
    with pytest.raises(CompareError, match="Builds in a list are not"):
        compare([made, made])
    made.close()


@pytest.mark.parametrize("names", [["a"], "ab", [1, 2], ["a", ""], ["a", "b", "c"], 7, [None, "a"]])
def test_names_that_do_not_fit(names: Any) -> None:
    with pytest.raises(CompareError, match="must be 2 texts"):
        compare(build(A=1.0), build(A=2.0), names=names)


def test_the_same_name_twice() -> None:
    with pytest.raises(CompareError, match="the same name twice"):
        compare(build(A=1.0), build(A=2.0), names=["a", "a"])


def test_files_that_are_no_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read as a record"):
        compare(tmp_path / "missing.json", build(A=1.0))


@pytest.mark.parametrize("kind", [Build, BuildWidget])
def test_a_build_that_has_not_ended(kind: type[Any]) -> None:
    pending = kind(models.mlp(1).SerializeToString(), backend="tensorrt_rtx")
    for given in ((pending,), (pending, build(A=1.0))):
        with pytest.raises(CompareError, match=r"has not ended \(pending\)"):
            compare(*given)
    with pytest.raises(CompareError, match="was made while the build was pending"):
        compare(pending.record(), build(A=1.0))


def record(**changes: Any) -> Record:
    """Give a record of an attached build, as loaded from a file."""
    with Build.attach(backend="tensorrt_rtx", name="mine") as attached:
        for name in (ROOT, "Timing"):
            attached.monitor.phase_start(name, None if name == ROOT else ROOT, 1)
        for name in ("Timing", ROOT):
            attached.monitor.phase_finish(name)
        attached.finish(b"engine")
    text = json.loads(attached.record().to_json())
    text["build"].update(changes)
    return Record.from_json(json.dumps(text))


def test_records_and_their_paths(tmp_path: Path) -> None:
    one = record()
    path = one.save(tmp_path / "one.json")
    for given in (path, str(path)):
        made = compare(given, one)
        assert made.names == ("one", "mine")
        assert made.sentence == "All phases took about the same."
        assert made.notes[1] == "one and mine are the same build."
        assert list(made.frame["phase"][:2]) == [ROOT, "Timing"]


def test_files_are_called_by_their_names(tmp_path: Path) -> None:
    paths = []
    for name in ("monday/cold", "monday/warm", "friday/warm"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        paths.append(record().save(path))
    assert compare(*paths[:2]).names == ("cold", "warm")
    assert compare(*paths).names == ("cold", "monday/warm", "friday/warm")
    assert compare(paths[0], paths[0]).names == ("build 1", "build 2")
    # Of one model: their own name says nothing.
    assert compare(record(), record()).names == ("build 1", "build 2")
    assert "are the same build" not in repr(compare(*paths))


def test_a_record_alone_is_compared_with_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(tmp_path / "history.sqlite3"))
    given = slower(own())
    assert given.key is not None
    with pytest.raises(CompareError, match="The history knows no earlier build of mine that was"):
        compare(given)
    key = BuildKey(**given.key)
    for ago in (-5.0, 7.0, 60.0, 61.0, 62.0):  # one of them later
        earlier = build(given.started_epoch - ago, Timing=abs(2.0 + ago))
        assert History().record(key, earlier)
    for form in (given, given.save(tmp_path / "record.json")):
        made = compare(form)
        assert made.names == ("earlier (the middle one of 4)", "this build")
        assert made.notes[0] == "earlier (the middle one of 4): 1 min 03 s; this build: 9.00 s."


def test_why_there_is_no_earlier_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cause has its own words, and a remedy that helps."""
    file = tmp_path / "history.sqlite3"
    monkeypatch.setenv("TRT_WIDGET_HISTORY", str(file))
    with pytest.raises(CompareError, match="The history knows no builds of the user's own"):
        compare(record())
    with pytest.raises(CompareError, match="Which network mine is did not become known") as caught:
        compare(dataclasses.replace(own(), key=None))
    assert caught.value.remedy == "Give another build to compare it with: compare(before, after)."
    file.write_bytes(b"something else, and much longer than a header of a database" * 20)
    with pytest.raises(CompareError, match="No earlier build of mine is known: The history of bui"):
        compare(own())
    monkeypatch.setenv("TRT_WIDGET_HISTORY", "off")
    with pytest.raises(CompareError, match=r"switched off \(TRT_WIDGET_HISTORY=off\)") as caught:
        compare(own())
    assert "Set TRT_WIDGET_HISTORY to a file" in (caught.value.remedy or "")


def own(**options: Any) -> Record:
    """Give a record of a build of ours, with the key that it has in the history."""
    kept = {"flags": [], "strongly_typed": True, "network_flags": [], "optimization_level": None}
    kept |= {"workspace": None, "device": None, "target": [], **options}
    rest: dict[str, Any] = {"profiles": (), "plugins": (), "configure": None, "config": None}
    digest = digest_of_options(SimpleNamespace(**kept, **rest))  # type: ignore[arg-type]  # what it reads of them
    key = dataclasses.replace(KEY, options=digest)
    return dataclasses.replace(
        record(), executor="thread", options=kept, key=dataclasses.asdict(key)
    )


def slower(of: Record) -> Record:
    assert of.result is not None
    columns = {**of.path_columns, "total_s": [9.0, 9.0], "self_s": [0.0, 9.0]}
    return dataclasses.replace(
        of, path_columns=columns, result=dataclasses.replace(of.result, duration_s=9.0)
    )


def test_options_of_records_that_differ() -> None:
    usual, low, high = own(), own(optimization_level=0), own(optimization_level=5)
    words = "Timing took 9.00 s longer"
    because = f"{words}, perhaps because optimization_level was 5 instead of"
    assert compare(usual, slower(high)).sentence == f"{because} 3."
    assert compare(low, slower(high)).sentence == f"{because} 0."
    # The other way round it explains nothing, and is only listed.
    differ = f"{words}; the builds differ in optimization_level"
    assert compare(high, slower(usual)).sentence == f"{differ} (5 → default)."
    # With profiles on one side the digest cannot be made of what is plain.
    assert high.key is not None
    profiles = dataclasses.replace(high, key={**high.key, "options": "of profiles as well"})
    assert compare(usual, slower(profiles)).sentence == f"{differ} (default → 5), perhaps {OTHERS}."
    profiles = dataclasses.replace(usual, key={**high.key, "options": "of profiles as well"})
    assert compare(usual, slower(profiles)).sentence == f"{words}; the builds differ in {OTHERS}."


def test_options_of_builds_that_the_users_code_ran_are_not_known() -> None:
    level = dataclasses.replace(record(), executor="thread", options={"optimization_level": 5})
    sentence = compare(record(), slower(level)).sentence
    assert (
        sentence == "Timing took 9.00 s longer; the builds differ in executor (attached → thread)."
    )


def test_a_build_that_was_cancelled_is_told() -> None:
    one = record()
    assert one.result is not None
    stopped = dataclasses.replace(
        one, status="cancelled", result=dataclasses.replace(one.result, status="cancelled")
    )
    made = compare(one, stopped, names=["whole", "part"])
    assert made.sentence.startswith("part was cancelled after ")
    assert "so its times are those up to then: no phase took much more or less." in made.sentence
    third = compare(one, slower(one), stopped, build(Timing=3.0), names=["a", "b", "c", "d"])
    assert third.sentence.startswith("b took longest, ")
    assert "c was cancelled after " in repr(third)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("cancelled", "two was cancelled after 15.0 s"),
        ("failed", "two failed after 15.0 s"),
        ("odd", "two ended with an outcome that is not known after 15.0 s"),
    ],
)
def test_of_a_build_that_did_not_succeed_nothing_is_usual(status: str, words: str) -> None:
    """No cause is said either, nor that the machine was busier, whatever else is known."""
    first = dataclasses.replace(side(10.0), sample=tuple(scattered(3.0)))
    second = side(12.0, name="two", status=status, facts=COLD)
    for given, took in (((first, second), "longer"), ((second, first), "less")):
        sentence, notes = explain(*given)
        assert sentence == (
            f"{words}, so its times are those up to then: Timing tactics took 2.00 s {took}."
        )
        assert notes == []
    both, _ = explain(dataclasses.replace(first, status="failed"), second)
    assert both.startswith("one failed after 13.0 s and two ")
    assert ", so their times are those up to then: " in both
    assert explain(first, dataclasses.replace(second, status="succeeded"))[0] != both


# ---- the table and the picture ------------------------------------------------------------------


def test_the_frame() -> None:
    made = compare(build(Cloning=2.0, Old=1.0, Timing=3.0), build(Cloning=2.0, Timing=9.0, New=1.0))
    frame = made.frame
    assert type(frame) is pd.DataFrame
    assert list(frame.columns) == [
        *("phase", "path", "depth"),
        *("build 1 total_s", "build 1 self_s", "build 1 count"),
        *("build 2 total_s", "build 2 self_s", "build 2 count"),
        *("difference_s", "ratio"),
    ]
    assert list(frame["phase"][:5]) == [ROOT, "Cloning", "Timing", "New", "Old"]
    assert list(frame["depth"]) == [0, 1, 1, 1, 1, 0]
    by_phase = frame.set_index("phase")
    assert by_phase.loc["Timing", "difference_s"] == pytest.approx(6.0)
    assert by_phase.loc["Timing", "ratio"] == pytest.approx(3.0)
    assert by_phase.loc["Old", ["build 1 count", "build 2 count"]].tolist() == [3, 0]
    assert by_phase.loc["Old", "build 2 total_s"] == 0.0
    assert math.isnan(by_phase.loc["New", "ratio"])  # type: ignore[arg-type]
    assert by_phase.loc[ROOT, "build 1 self_s"] == pytest.approx(0.0)
    assert made.frame.attrs["sentence"] == made.sentence


def test_the_picture_shows_what_grew_and_what_shrank() -> None:
    made = compare(
        build(Cloning=20.0, Timing=5.0, Same=3.0), build(Cloning=5.0, Timing=25.0, Same=3.0)
    )
    root = ET.fromstring(made.svg)  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert made.sentence in (root.get("aria-label") or "")
    heading = "Time of each phase itself, without the phases in it"
    assert next(root.iter(f"{space}text")).text == heading
    titles = [node.text for node in root.iter(f"{space}title")][1:]
    assert titles == [
        "Building engine > Cloning: -15.0 s (20.0 s → 5.00 s)",
        "Building engine > Timing: +20.0 s (5.00 s → 25.0 s)",
    ]
    bars = [node for node in root.iter(f"{space}rect") if node.get("fill") != "none"]
    line = float(re.findall(r"M(\d+) ", made.svg)[0])
    left, right = (float(bar.get("x") or 0) for bar in bars)
    assert left + float(bars[0].get("width") or 0) == pytest.approx(line, abs=1.0)
    assert right == pytest.approx(line, abs=1.0)
    assert float(bars[1].get("width") or 0) > float(bars[0].get("width") or 0)
    assert {bar.get("fill") for bar in bars} == {"#d55e00", "#0072b2"}


def test_equal_builds_have_no_bars() -> None:
    made = compare(build(Timing=5.0), build(Timing=5.0))
    assert "<rect" not in made.svg
    ET.fromstring(made.svg)  # noqa: S314 - our own


def test_a_strangers_names_do_nothing() -> None:
    slow = {f"{name}": 5.0 + at for at, name in enumerate(HOSTILE)}
    first = build(**dict.fromkeys(slow, 1.0))
    second = build(**slow)
    made = compare(first, second, names=HOSTILE[:2])
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    reader = Reader(bundle["text/html"])
    assert reader.tags <= {
        *("style", "section", "p", "strong", "div", "svg", "title", "g", "text", "path", "rect"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "bdi"),
    }
    assert not {name for name in reader.attributes if name.startswith("on")}
    assert "http" not in bundle["text/html"].replace("http://www.w3.org/2000/svg", "")
    ET.fromstring(made.svg)  # noqa: S314 - our own
    for text in (bundle["text/plain"], bundle["text/html"]):
        assert not {sign for sign in text if not sign.isprintable()} - {"\n"}
        text.encode("utf-8")


def test_a_comparison_of_many_phases_is_small() -> None:
    first = build(**{f"phase_{at}": 1.0 for at in range(2_000)})
    second = build(**{f"phase_{at}": 1.0 + at / 100 for at in range(2_000)})
    made = compare(first, second)
    assert len(made.frame) == 2_002
    bundle = made._repr_mimebundle_()
    assert len(bundle["text/html"]) < 40_000
    assert "+1,962 phases that differ less" in bundle["text/html"]
    assert made.svg.count("<rect") == 2 * 12
    assert "phase 1999" in made.svg


def test_equal_differences_are_cut_too() -> None:
    first = build(**{f"phase_{at}": 1.0 for at in range(2_000)})
    second = build(**{f"phase_{at}": 2.0 for at in range(2_000)})
    made = compare(first, second)
    assert made.svg.count("<rect") == 2 * 12
    assert len(made._repr_html_()) < 40_000
    several = compare(first, second, second, first, second)
    assert several.svg.count("<rect") == 2 * 12


@pytest.mark.parametrize("sign", ["'", "😀", "\0"])
def test_it_is_small_whatever_is_compared(sign: str) -> None:
    """Names that are as long as can be, escaped with six letters or of four bytes, many builds."""

    def one(seconds: float) -> BuildRecord:
        phases, path = {}, ()
        for at in range(100):
            path = (*path, f"{sign * 5_000}{at}")
            phases[path] = PhaseTimes(0.0, 1.0, seconds + at, 2**62)
        return BuildRecord(1_000.0 + seconds, phases, 0.0)

    names = [f"{sign * 5_000}{at}" for at in range(200)]
    for count in (2, 200):
        made = compare(*(one(at * 30.0) for at in range(count)), names=names[:count])
        assert len(made._repr_html_().encode()) < 100_000
        assert len(made.svg.encode()) < 50_000
        assert len(repr(made)) < 30_000
        assert len(made.sentence) + len("".join(made.notes)) < 3_000
    assert "+188 builds that differ less from the first one" in repr(made)
    assert "; and 188 more." in made.notes[0]
    assert len(made.frame.columns) == 3 + 3 * 200


def test_names_are_cleaned_wherever_they_are_shown() -> None:
    names = ["\x1b[31mred\nline\u202e", "b" * 50_000, "b" * 50_000 + "c"]
    stopped = dataclasses.replace(side(44.0), name=names[0], status="failed", layers=2)
    other = side(3.0, name=names[1], network="b", layers=1)
    shown = [*explain(other, stopped)[1], explain(other, stopped)[0]]
    for count in (2, 3):
        made = compare(*(build(Timing=10.0 * at) for at in range(count)), names=names[:count])
        assert len(set(made.names)) == count
        shown += [*made.names, made.sentence, *made.notes, *made.frame.columns]
        shown += [made.svg, *repr(made).split("\n"), made._repr_html_()]
        assert len(repr(made)) < 3_000
    named = [dataclasses.replace(record(), name=name) for name in names[:2]]
    shown += compare(*named).names
    for text in shown:
        assert text.isprintable()
        assert "b" * 61 not in text
    with pytest.raises(CompareError) as caught:
        compare(dataclasses.replace(record(), name=names[0], result=None), build(Timing=1.0))
    assert "\x1b" not in str(caught.value)


def test_a_deep_tree_takes_no_long_time() -> None:
    """As deep as a saved record may be; once it took minutes."""

    def deep(seconds: float) -> Record:
        one, many = record(), 4_000
        columns = {name: [column[0]] * many for name, column in one.path_columns.items()}
        columns["name"] = [f"phase {at}" for at in range(many)]
        columns["parent"] = list(range(-1, many - 1))
        columns["total_s"] = [seconds + many - at for at in range(many)]
        return dataclasses.replace(one, path_columns=columns)

    first, second = deep(1.0), deep(2.0)
    started = time.monotonic()
    made = compare(first, second)
    assert "phase 3999" in made.sentence
    assert len(repr(made)) + len(made._repr_html_()) < 40_000
    assert time.monotonic() - started < 60.0


# ---- times that cannot be -----------------------------------------------------------------------

IDS = ["nan", "inf", "-inf", "negative", "large", "huge", "text", "none"]
BAD = [math.nan, math.inf, -math.inf, -1.0, 1e300, 10**400, "1", None]


def broken(bad: Any) -> list[BuildRecord]:
    """Give builds of the history each with that instead of one of its numbers."""
    one = build(Timing=5.0)
    kept = one.phases[ROOT, "Timing"]
    return [
        dataclasses.replace(one, duration_s=bad),
        *(
            dataclasses.replace(
                one, phases={**one.phases, (ROOT, "Timing"): dataclasses.replace(kept, **change)}
            )
            for change in ({"total_s": bad}, {"start_s": bad}, {"count": bad})
        ),
        *([dataclasses.replace(one, finished_at=bad)] if bad not in {-1.0, 1e300, 10**400} else []),
        dataclasses.replace(one, phases={(ROOT, bad): kept, 7: kept}),  # type: ignore[dict-item]  # on purpose
    ]


@pytest.mark.parametrize("bad", BAD, ids=IDS)
def test_times_that_cannot_be_are_refused(bad: Any) -> None:
    good = build(Timing=5.0)
    for given in broken(bad):
        for sides in ((given, good), (good, given), ((KEY, given), good), ([given], good)):
            with pytest.raises(CompareError, match=r"holds? times that cannot be"):
                compare(*sides)
        with pytest.raises(CompareError, match=r"is one build only\. The times of the others"):
            compare([good, given])
    strange = slower(record())
    assert strange.result is not None
    for columns in ({"total_s": [9.0, bad]}, {"self_s": [bad, 9.0]}):
        given = dataclasses.replace(strange, path_columns={**strange.path_columns, **columns})
        with pytest.raises(CompareError, match="The record of mine holds times that cannot be"):
            compare(given, good)
    result = dataclasses.replace(strange.result, duration_s=bad)
    with pytest.raises(CompareError, match="The record of mine holds times that cannot be"):
        compare(good, dataclasses.replace(strange, result=result))


@pytest.mark.parametrize("bad", BAD, ids=IDS)
def test_earlier_builds_whose_times_cannot_be_are_left_out(bad: Any) -> None:
    given = broken(bad)
    made = compare([*scattered(0.1), *given], build(Cloning=2.0, Timing_tactics=40.0))
    assert made.sentence.startswith("Timing tactics took ")
    assert "That is more than the usual scatter of 8 earlier builds." in made.notes
    assert made.notes[-1] == (
        f"{len(given)} earlier builds hold times that cannot be, and are left out."
    )
    alone = compare([*scattered(0.1), given[0]])
    assert alone.notes[-1] == "1 earlier build holds times that cannot be, and are left out."


def test_it_is_shown_as_text() -> None:
    made = compare(build(Timing=5.0), build(Timing=25.0), names=["before", "after"])
    assert repr(made).splitlines() == [
        "Timing took 20.0 s longer.",
        "before: 6.00 s; after: 26.0 s.",
        made.notes[1],
        "",
        "Time of each phase: before, after; itself: the difference without the phases in it",
        "Phase                         before   after  Difference   Itself  Ratio  Count",
        "Building engine               5.00 s  25.0 s     +20.0 s     +0 s   5.00      1",
        "  Timing                      5.00 s  25.0 s     +20.0 s  +20.0 s   5.00      3",
        "outside of TensorRT's phases  1.00 s  1.00 s        +0 s     +0 s   1.00      1",
    ]


def test_saving(tmp_path: Path) -> None:
    made = compare(build(Timing=5.0), build(Timing=25.0), names=["before", "after"])
    assert isinstance(made, Comparison)
    svg = made.save(tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert svg == made.svg
    html = made.save(str(tmp_path / "whole.HTML")).read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert made.sentence in html
    table = pd.read_csv(made.save(tmp_path / "table.csv"))
    pd.testing.assert_frame_equal(table, made.frame)
    for name in ("table.xlsx", "table"):
        with pytest.raises(CompareError, match="cannot be written as"):
            made.save(tmp_path / name)


def test_a_name_that_a_table_cannot_hold(tmp_path: Path) -> None:
    """Python 3.10's csv module raises at a NUL."""
    made = compare(build(**{"A\0B": 5.0}), build(**{"A\0B": 25.0}))
    table = pd.read_csv(made.save(tmp_path / "table.csv"))
    assert table["phase"][1] == "A\ufffdB"
    assert made.frame["phase"][1] == "A\0B"
