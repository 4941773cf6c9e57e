"""The same five builds over every surface: what is started, shown, cancelled and survived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.surfaces.drivers import DRIVERS, Driver, Seen
from tests.surfaces.scenarios import (
    FLOOD,
    GRACE_S,
    LONG_FLOOD,
    NEXT,
    SCENARIOS,
    Scenario,
    counts_of,
    make_models,
    pairs_of,
    reached_by,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a cancel may take beyond the grace: the child's end, and the way to the user and back.
BEYOND_GRACE_S = 10.0

NAMES = [driver.name for driver in DRIVERS]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="module")
def surface(request: pytest.FixtureRequest, root: Path) -> Iterator[Driver]:
    driver: Driver = next(kind for kind in DRIVERS if kind.name == request.param)(root)
    yield driver
    driver.close()


@pytest.fixture
def output(root: Path, request: pytest.FixtureRequest) -> Path:
    """Name a file in a folder of its own, so that what is left beside it is seen."""
    folder = root / request.node.name
    folder.mkdir()
    return folder / "out.engine"


def check(seen: Seen, surface: Driver, scenario: Scenario, output: Path) -> None:
    """Assert what every surface must show."""
    print(f"{seen.number:,} messages, {seen.amount:,} bytes, stopped in {seen.stopped_s} s")
    assert seen.outcome == scenario.outcome
    assert seen.exit_code in {None, scenario.exit_code}
    assert seen.ended_by is None or seen.ended_by in scenario.ended_by
    told = " ".join(seen.words.split())
    for words in scenario.says:
        assert words in told

    outermost = {name for above, name in seen.phases if above is None}
    assert outermost <= scenario.roots
    assert outermost == scenario.roots or scenario.brief or not surface.whole_tree
    assert seen.phases <= pairs_of(counts_of(scenario))
    every = surface.whole_tree and surface.short_phases
    if every and (scenario.outcome == "succeeded" or scenario.cancel_at):
        assert seen.phases >= pairs_of(reached_by(scenario))
    if seen.counts is not None and scenario.outcome == "succeeded":
        assert seen.counts == counts_of(scenario)
    assert not seen.unfinished

    left = sorted(path.name for path in output.parent.iterdir() if path.suffix != ".jsonl")
    if scenario.outcome == "succeeded":
        assert left == [output.name]
        assert seen.engine_bytes == output.stat().st_size > 0
    else:
        assert not left
        assert not seen.engine_bytes

    if scenario.cancel_at is None:
        assert seen.reason is None
        assert seen.stopped_s is None
    else:
        assert scenario.cancel_at in {name for _, name in seen.phases}
        assert seen.reason == surface.reason
        assert seen.stopped_s is not None
        assert seen.stopped_s < GRACE_S + BEYOND_GRACE_S
        assert not seen.survivors


def check_flood(seen: Seen, surface: Driver) -> None:
    """Assert that a surface gives out little."""
    assert seen.amount <= surface.most_bytes
    assert seen.number <= surface.most_messages


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("surface", NAMES, indirect=True)
def test_scenario(surface: Driver, scenario: Scenario, output: Path) -> None:
    seen = surface.see(scenario, output)
    check(seen, surface, scenario, output)
    if scenario is FLOOD:
        check_flood(seen, surface)
    if "crashed" in scenario.ended_by and surface.lasts:
        after = output.with_name("after") / output.name
        after.parent.mkdir()
        check(surface.see(NEXT, after), surface, NEXT, after)


@pytest.mark.parametrize(
    "surface", [driver.name for driver in DRIVERS if driver.streams], indirect=True
)
def test_a_reader_that_does_not_read_in_the_flood(surface: Driver, output: Path) -> None:
    seen = surface.see(LONG_FLOOD, output, slow=True)
    check(seen, surface, LONG_FLOOD, output)
    check_flood(seen, surface)
