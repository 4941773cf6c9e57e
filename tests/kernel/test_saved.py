"""The second display of a BuildWidget, which stays in a saved notebook, in real kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.harness import WIDGET_VIEW

if TYPE_CHECKING:
    from tests.kernel.harness import Execution, Kernel

IMPORTS = """
from IPython.display import display
from trt_widget import BuildWidget
from tests import models
"""
START = "w = BuildWidget(models.transformer(2)).start()\n"


def displays(*cells: Execution) -> list[dict[str, Any]]:
    """Give what was displayed under an id of ours, and what replaced it, in order."""
    outputs = [output for cell in cells for output in cell.outputs]
    return [o for o in outputs if "trt_widget-" in o.get("transient", {}).get("display_id", "")]


def check_result(output: dict[str, Any], status: str) -> None:
    data = output["data"]
    assert WIDGET_VIEW not in data
    assert set(data) == {"text/html", "text/plain"}
    build_id = output["transient"]["display_id"].removeprefix("trt_widget-")
    assert f"trt-saved-{build_id}" in data["text/html"]
    assert status in data["text/html"]
    assert status in data["text/plain"]
    assert "<script" not in data["text/html"]
    assert len(data["text/html"].encode()) < 100_000


def test_empty_at_first_and_the_result_at_the_end(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    shown = kernel.run(START + "w")
    first = displays(shown)[0]
    assert first["output_type"] == "display_data"
    assert WIDGET_VIEW in shown.outputs[-1]["data"], "the widget itself stays the cell's result"
    build_id = kernel.comms[shown.view_ids[-1]].state["header"]["build_id"]
    empty = f'<div class="trt-saved-{build_id}"></div>'
    assert first["data"] == {"text/html": empty, "text/plain": ""}
    assert first["transient"]["display_id"] == f"trt_widget-{build_id}"
    # Nobody waits: the drain thread replaces it, for whichever cell ran last.
    kernel.wait_for(
        lambda: any(o["output_type"] == "update_display_data" for o in displays(shown)),
        60,
        "the result",
    )
    last = displays(shown)[-1]
    assert last["transient"] == first["transient"]
    check_result(last, "succeeded")


def test_the_cell_that_waits_has_it_too(kernel: Kernel) -> None:
    """nbclient, which executes notebooks, takes only what belongs to the cell that it runs."""
    kernel.run(IMPORTS)
    shown = kernel.run(START + "w")
    waited = kernel.run("engine = w.wait()", timeout=120)
    last = displays(waited)[-1]
    assert last["output_type"] == "update_display_data"
    assert last["transient"] == displays(shown)[0]["transient"]
    check_result(last, "succeeded")
    again = kernel.run("w.wait() is engine")
    assert len(displays(again)) == 1


def test_once_a_build_however_often_it_is_shown(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    shown = kernel.run(START + "display(w)\ndisplay(w)\nw")
    other = kernel.run("w")
    found = displays(shown, other)
    assert [o["output_type"] for o in found if o["output_type"] == "display_data"] == [
        "display_data"
    ]
    kernel.run("w.build.wait_ended()", timeout=120)
    # The first display may be gone: a page that was closed or loaded anew misses its replacement.
    late = kernel.run("display(w)\nw", "a-cell-id")
    (copy,) = displays(late)
    check_result(copy, "succeeded")
    two = kernel.run("a = BuildWidget(models.mlp())\nb = BuildWidget(models.mlp())\ndisplay(a, b)")
    assert len({o["transient"]["display_id"] for o in displays(two)}) == 2


@pytest.mark.parametrize("cell", [None, "a-cell-id"])
def test_where_the_display_is_not_the_widget_does_not_point_to_it(
    kernel: Kernel, cell: str | None
) -> None:
    kernel.run(IMPORTS)
    kernel.run(
        "%%capture\n" + START.replace("transformer(2)", "transformer(20)") + "display(w)", cell
    )
    begun = "import time\nwhile w.status == 'pending': time.sleep(0.01)\nw"
    other = kernel.run(begun, cell and f"{cell}-2")
    bundle = other.outputs[-1]["data"]
    assert "stands above" not in bundle["text/html"]
    assert "running" in bundle["text/html"]
    kernel.run("w.build.wait_ended()", timeout=120)
    # And after the end the result can be had anywhere, with or without ids of cells.
    for number in range(2):
        late = kernel.run("w", cell and f"{cell}-{number}")
        (copy,) = displays(late)
        check_result(copy, "succeeded")
        assert "stands above" in late.outputs[-1]["data"]["text/html"]


def test_shown_only_after_the_end(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    kernel.run(START + "w.build.wait_ended()", timeout=120)
    shown = kernel.run("w")
    (only,) = displays(shown)
    assert only["output_type"] == "display_data"
    check_result(only, "succeeded")


def test_a_failure_stays_and_says_why(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    shown = kernel.run("w = BuildWidget(models.unknown_operators('Foo')).start()\nw")
    waited = kernel.execute("w.wait()").finish(60)
    assert waited.error == "ParseFailed"
    last = displays(waited)[-1]
    check_result(last, "failed")
    assert "Foo" in last["data"]["text/plain"]
    assert displays(shown)[0]["transient"] == last["transient"]


def test_what_is_cancelled_before_the_start_has_it_in_that_cell(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    shown = kernel.run("w = BuildWidget(models.mlp())\nw")
    assert len(displays(shown)) == 1
    # The cell's own: what executes notebooks without a front end takes no other.
    cancelled = kernel.run("w.request_cancel()")
    check_result(displays(cancelled)[-1], "cancelled")


def test_what_is_never_shown_has_none(kernel: Kernel) -> None:
    kernel.run(IMPORTS)
    made = kernel.run(START + "engine = w.wait()", timeout=120)
    assert displays(made) == []
