"""Hostile models, random deaths and random cancels: a few of those of ``python -m tests.stress``.

What each one checks is in ``tests/stress``: the outcome, the consistency of everything that is
known of the build, and that no process, thread, descriptor, file or memory is left over.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests import models
from tests.stress import odd, report
from tests.stress.__main__ import run
from tests.stress.pool import ROOT, Pool
from trt_widget import Build, BuildCrashed, BuildFailed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the runner reads /proc"),
    pytest.mark.timeout(600),
]

#: What has killed the builder once, made small.
KEPT = sorted((ROOT / "tests" / "data" / "hostile").glob("*.onnx"))


def make(kind: str, count: int, **options: Any) -> list[dict[str, Any]]:
    done, after = run(kind, list(range(count)), {"seed": 2, **options}, jobs=2)
    print(getattr(report, kind)(done))
    assert len(done) == count
    assert not [(r["index"], r["problems"]) for r in done if r["problems"]]
    assert not after
    return done


def test_hostile_models_end_in_a_typed_error_or_an_engine() -> None:
    done = make("hostile", 200, timeout=15.0, grace=0.5)
    outcomes = Counter(record["outcome"] for record in done)
    # They get everywhere: refused before and by the parser, by the builder, and through.
    assert min(outcomes[n] for n in ("SourceError", "ParseFailed", "BuildFailed", "engine")) > 0
    assert len({record["kind"] for record in done}) >= 6


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_has_killed_a_builder_leaves_the_waiting_process_unharmed(path: Path) -> None:
    build = Build(path, executor="process", exclusive=False).start()
    with pytest.raises(BuildFailed) as caught:
        build.wait()
    error = caught.value
    assert error.cause
    assert error.remedy
    if isinstance(error, BuildCrashed):  # what killed one version, another may refuse
        assert build.result is not None
        assert build.result.ended_by == "crashed"
        assert error.signal
    assert Build(models.mlp(), executor="process", exclusive=False).start().wait()


def test_some_models_really_kill_the_builder() -> None:
    assert KEPT
    builds = [Build(path, executor="process", exclusive=False).start() for path in KEPT]
    for build in builds:
        build.wait_ended()
    errors = [build.result.error for build in builds if build.result is not None]
    assert any(isinstance(error, BuildCrashed) for error in errors)


def test_builders_that_die_in_every_way_at_random_moments() -> None:
    from tests.stress.death import WEIGHTS

    kinds = [*WEIGHTS, "kernel killed", "kernel killed", "SIGKILL", "stopped, then cancelled"]
    done = make("death", len(kinds), kinds=kinds)
    # By far most of them die before they have finished.
    ended = [r for r in done if r["outcome"] != "engine" and "had ended" not in r["outcome"]]
    assert len(ended) > len(kinds) / 2
    assert sum("gone_s" in record for record in done) >= 1


def test_random_cancels_by_both_executors() -> None:
    done = make("cancel", 25, models=["mlp", "squeezenet", "transformer"])
    counts = Counter((record["executor"], record["outcome"].split(",")[0]) for record in done)
    assert counts["process", "cancelled"] > 3
    assert counts["thread", "cancelled"] > 0


# ------------------------------------------------------------------ the runner itself


def test_cases_are_the_same_wherever_they_are_made() -> None:
    script = (
        "import hashlib; from tests.stress.mutate import make_case; "
        "print(hashlib.sha256(repr([make_case(3, i) for i in range(100)]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_what_the_runner_has_to_notice_it_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_WIDGET_STRESS_SETTLE", "0.2")
    done: list[dict[str, Any]] = []
    after = Pool("odd", {"seed": 1}, limit_s=5.0).run(range(len(odd.FAULTS)), 1, done.append)
    found = {odd.FAULTS[record["index"]]: record["problems"] for record in done}
    expected = {
        "raise": "Traceback",
        "thread": "thread: Thread-",
        "descriptor": "descriptors: 1 more: ['/dev/null']",
        "process": "process: ",
        "file": "file: left (0)",
        "memory": "memory: ",
        "hang": "HUNG: ",
        "death": "PARENT DIED (3): ",
    }
    assert found.pop("none") == []
    assert found.keys() == expected.keys()
    for fault, begin in expected.items():
        assert any(text.startswith(begin) for text in found[fault]), (fault, found[fault])
    assert "odd.py" in found["hang"][0]  # where it hangs
    assert any("left at the end" in text and "sleep" in text for text in after)
