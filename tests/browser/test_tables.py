"""The tables of phases and a comparison in a real JupyterLab: themes, a screen reader's view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.conftest import OpenNotebook
    from tests.browser.harness import Notebook

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"

SETUP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.unit.test_compare import build
from tests.unit.test_timings import HOSTILE, made, spans, timings
from trt_widget.comparison import compare
tree = made("Parsing", "Timing", "Timing", *HOSTILE)
"""
CELLS = (
    SETUP,
    "timings(tree)",
    "spans(tree)",
    "compare(build(Cloning=20.0, Timing=5.0), build(Cloning=5.0, Timing=25.0))",
)
#: Contrast of a bar to what is behind it, the cell's background and the track included.
CONTRAST = """
bar => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const over = ([r, g, b, a = 1], below) =>
        [r, g, b].map((value, at) => a * value + (1 - a) * below[at]);
    const light = colour => {
        const [r, g, b] = colour.map(value => value / 255).map(
            value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = [];
    for (let node = bar.parentElement; node; node = node.parentElement)
        behind.unshift(numbers(getComputedStyle(node).backgroundColor));
    const paper = behind.reduce((below, colour) => over(colour, below), [255, 255, 255]);
    const pair = [light(paper), light(numbers(getComputedStyle(bar).backgroundColor))].sort();
    return (pair[1] + 0.05) / (pair[0] + 0.05);
}
"""


@pytest.fixture
def notebook(open_notebook: OpenNotebook) -> Notebook:
    opened = open_notebook(CELLS)
    opened.run_all()
    return opened


def test_tables_in_both_themes(notebook: Notebook) -> None:
    notebook.page.add_script_tag(path=AXE)
    for theme in ("light", "dark"):
        notebook.theme(theme)  # type: ignore[arg-type]
        for cell in (1, 2, 3):
            notebook.screenshot(cell, f"table-{cell}-{theme}")
        for cell in (1, 2):
            bar = notebook.output(cell).locator(".trt-track i").first
            assert bar.evaluate(CONTRAST) >= 3
        for where in (".trt-table", ".trt-compare"):
            found = notebook.page.evaluate(
                "async where => (await axe.run(where)).violations", where
            )
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_what_a_screen_reader_finds(notebook: Notebook) -> None:
    table = notebook.output(1).get_by_role("table", name="13 phases, 13.0 s in all")
    assert table.get_by_role("columnheader").all_inner_texts() == [
        *("Phase", "Share", "Time", "Itself", "Count", "Longest", "Steps"),
    ]
    assert table.get_by_role("rowheader", name="Timing", exact=True).count() == 1
    # Of the row, what the bar shows is said by the figures.
    row = table.get_by_role("row", name="Timing 15.4%")
    assert row.get_by_role("cell").all_inner_texts() == [
        *("15.4%", "2.00 s", "2.00 s", "2", "1.00 s", "4 of 4"),
    ]
    picture = notebook.output(3).get_by_role("img")
    label = picture.get_attribute("aria-label") or ""
    assert "Timing took 20.0 s longer, Cloning took 15.0 s less." in label


def test_strangers_names_run_nothing(notebook: Notebook) -> None:
    for cell in (1, 2):
        output = notebook.output(cell)
        assert output.locator("img, script").count() == 0
        names = output.get_by_role("rowheader").all_inner_texts()
        assert "<script>alert(1)</script>" in names
    notebook.assert_clean()


def test_a_narrow_cell_scrolls_its_table_by_itself(notebook: Notebook) -> None:
    notebook.page.set_viewport_size({"width": 620, "height": 800})
    group = notebook.output(1).locator(".trt-table")
    assert group.evaluate("node => node.scrollWidth > node.clientWidth")
    group.focus()
    assert group.evaluate("node => node === document.activeElement")
    widths = "node => [node.getBoundingClientRect().right, innerWidth]"
    right, window = group.evaluate(widths)
    assert right <= window
