"""Whatever is killed at random: every build of a queue ends once, rightly, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.deaths import Round

if TYPE_CHECKING:
    from pathlib import Path


# A round has deadlines of its own, which say more.
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "seed"), [("workers", 1), ("workers", 2), ("scheduler", 1), ("client", 1)]
)
def test_random_deaths(kind: str, seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    record = Round(f"{seed}", kind, tmp_path, jobs=9).run()
    print(record)
    assert not record["problems"]
    assert sum(record["killed"].values())
    assert kind != "workers" or record["hits"]
