"""Which paths get a row, and what the row says: pure functions of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trt_widget.phases import PATH_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from trt_widget.phases import PhaseNode, PhaseTree

__all__ = ["MAX_ROWS", "Row", "choose_rows", "clipped", "row_info", "row_style"]

#: Rows on screen.
MAX_ROWS = 40
#: Characters of a name, and of a path, that are shown. Some versions of TensorRT name a phase after
#: the layers that it fuses, and every change of a row sends its name.
MAX_LABEL = 200
MAX_PATH = 1_000

#: How rows are coloured once the build has ended: the outcome decides, not ``phase_finish``.
_STYLES = {
    "done": "success",
    "cancelled": "warning",
    "failed": "danger",
    "ended": "",
}


@dataclass(frozen=True)
class Row:
    """A row: the node it shows and how many paths below it have no row of their own."""

    node: PhaseNode
    folded: int


def choose_rows(tree: PhaseTree, limit: int = MAX_ROWS) -> tuple[list[Row], int]:
    """Choose at most ``limit`` paths to show, in tree order.

    Open paths come first, then the others from the root down, the most recently ended first: so the
    subtrees that fold are finished ones.

    Returns
    -------
    rows, more
        The rows, and the number of paths that no row stands for.
    """
    nodes = list(tree.walk())
    if len(nodes) <= limit:
        return [Row(node, 0) for node in nodes], 0
    ranked = sorted(
        nodes,
        key=lambda node: (
            node.open_count == 0,
            node.depth,
            -(node.ended if node.ended is not None else node.started),
            node.index,
        ),
    )
    shown: set[int] = set()
    for node in ranked:
        if len(shown) >= limit:
            break
        # An open path below a finished one (a parent that never opened) waits for its parent.
        if node.parent is None or node.parent.index in shown:
            shown.add(node.index)
    folded: dict[int, int] = {}
    more = 0
    for node in nodes:
        if node.index in shown:
            continue
        above = node.parent
        while above is not None and above.index not in shown:
            above = above.parent
        if above is None:
            more += 1
        else:
            folded[above.index] = folded.get(above.index, 0) + 1
    return [Row(node, folded.get(node.index, 0)) for node in nodes if node.index in shown], more


def clipped(text: str, limit: int) -> str:
    """Give ``text``, or its beginning and its end where it is longer than ``limit``."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


def row_info(row: Row, epoch: Callable[[float], float]) -> dict[str, Any]:
    """Describe a row for the browser; the keys are those of ``PhaseBar.info``.

    Parameters
    ----------
    epoch
        Turns times of the tree into epoch seconds.
    """
    node = row.node
    since = epoch(node.started) if node.open_count else None
    return {
        "label": clipped(node.name, MAX_LABEL),
        "path": clipped(PATH_SEPARATOR.join(node.path), MAX_PATH),
        "depth": node.depth,
        "count": node.count,
        "status": node.status,
        "step": node.step,
        "total": node.step_total,
        "elapsed": round(node.total_s, 6),
        "since": since,
        "touched": epoch(node.last_event),
        "folded": row.folded,
    }


def row_bar(node: PhaseNode) -> tuple[int, int]:
    """Give ``(value, max)`` of the row's bar: full once the phase is done, whatever its steps."""
    maximum = max(node.step_total, 1)
    if node.status == "done":
        return maximum, maximum
    return max(0, min(node.step, maximum)), maximum


def row_style(node: PhaseNode, outcome: str | None) -> str:
    """Give the row's ``bar_style``: green only after success."""
    status = node.status
    if outcome is None:
        return "info" if status == "running" else ""
    if status == "done" and outcome != "succeeded":
        return ""
    return _STYLES.get(status, "")
