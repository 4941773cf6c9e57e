from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces import mnist_events, timed
from trt_widget.events import Event, PhaseFinished, PhaseStarted, StepCompleted
from trt_widget.phases import PhaseTree
from trt_widget.rows import choose_rows, clipped, row_bar, row_info, row_style

if TYPE_CHECKING:
    from collections.abc import Sequence


def folded(events: Sequence[Event], outcome: str | None = None) -> PhaseTree:
    tree = PhaseTree()
    tree.apply(events)
    if outcome:
        tree.close(outcome)
    return tree


def start(phase: str, parent: str | None = None, steps: int = 1) -> PhaseStarted:
    return PhaseStarted(0.0, phase, parent, steps)


def wide_tree(groups: int = 10, leaves: int = 10) -> PhaseTree:
    """Make a root over ``groups`` groups of ``leaves`` each; the last leaf is still open."""
    events: list[Event] = [start("root")]
    for group in range(groups):
        events.append(start(f"group {group}", "root"))
        for leaf in range(leaves):
            events.append(start(f"leaf {group}.{leaf}", f"group {group}"))
            events.append(PhaseFinished(0.0, f"leaf {group}.{leaf}"))
        events.append(PhaseFinished(0.0, f"group {group}"))
    return folded(timed(events[:-2]))


def test_a_real_build_of_full_tensorrt_fits_without_folding() -> None:
    """A recorded trace, since full TensorRT cannot run here."""
    rows, more = choose_rows(folded(timed(mnist_events())))
    assert (len(rows), more) == (15, 0)
    assert all(row.folded == 0 for row in rows)


def test_finished_subtrees_fold_first_and_what_is_open_stays() -> None:
    rows, more = choose_rows(wide_tree())
    assert len(rows) == 40
    assert more == 0
    names = [row.node.name for row in rows]
    assert names[0] == "root"
    assert {f"group {group}" for group in range(10)} <= set(names)
    assert "leaf 9.9" in names
    assert sum(row.folded for row in rows) == 111 - 40
    kept = {row.node.name: row.folded for row in rows}
    assert kept["group 0"] == 10  # the oldest ones are folded whole
    assert kept["group 9"] == 0


def test_a_row_of_a_repeated_phase_has_one_count() -> None:
    rows, _ = choose_rows(folded(timed(mnist_events())))
    infos = [row_info(row, lambda time: 100.0 + time) for row in rows]
    measuring = [info for info in infos if info["label"] == "Measuring tactic time"]
    assert [info["count"] for info in measuring] == [1032, 75]
    assert all(info["since"] is None for info in infos)
    assert infos[0]["touched"] > 100.0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.lists(st.tuples(st.integers(0, 59), st.booleans()), max_size=80))
def test_rows_are_bounded_ordered_and_complete(limit: int, moves: list[tuple[int, bool]]) -> None:
    events: list[Event] = [start("p0")]
    for index, (parent, finish) in enumerate(moves, 1):
        events.append(start(f"p{index}", f"p{min(parent, index - 1)}"))
        if finish:
            events.append(PhaseFinished(0.0, f"p{index}"))
    tree = folded(events)
    rows, more = choose_rows(tree, limit)
    assert len(rows) <= limit
    assert len(rows) + sum(row.folded for row in rows) + more == tree.paths
    order = {id(node): place for place, node in enumerate(tree.walk())}
    places = [order[id(row.node)] for row in rows]
    assert places == sorted(places)
    shown = {id(row.node) for row in rows}
    for row in rows:
        assert row.node.parent is None or id(row.node.parent) in shown
    if tree.paths <= limit:
        assert len(rows) == tree.paths


# ------------------------------------------------------------------ bars


def test_a_bar_is_full_once_its_phase_is_done_and_never_divides_by_zero() -> None:
    tree = folded([start("p", None, 6), StepCompleted(0.0, "p", 4)])
    node = next(tree.walk())
    assert row_bar(node) == (5, 6)
    tree.close("succeeded")
    assert row_bar(node) == (6, 6)
    cancelled = folded([start("p", None, 6), StepCompleted(0.0, "p", 4)], "cancelled")
    assert row_bar(next(cancelled.walk())) == (5, 6)
    for steps in (0, -1):
        unknown = folded([start("p", None, steps), StepCompleted(0.0, "p", 7)])
        assert row_bar(next(unknown.walk())) == (1, 1)


def test_green_is_for_success_alone() -> None:
    events = [start("root"), start("first", "root"), PhaseFinished(1.0, "first")]

    def styles(outcome: str | None) -> list[str]:
        tree = folded([*events, StepCompleted(1.0, "root", 0)], outcome)
        return [row_style(node, tree.outcome) for node in tree.walk()]

    assert styles(None) == ["info", ""]
    assert styles("succeeded") == ["success", "success"]
    assert styles("cancelled") == ["warning", ""]
    assert styles("failed") == ["danger", ""]
    assert styles("ended") == ["", ""]


def test_a_name_of_any_length_is_shown_within_bounds() -> None:
    name = "a" + "x" * 100_000 + "z"
    (row,), _ = choose_rows(folded([start(name)]))
    info = row_info(row, float)
    assert len(info["label"]) < 250
    assert (info["label"][0], info["label"][-1]) == ("a", "z")
    assert len(info["path"]) < 1_050
    assert clipped("short", 10) == "short"
