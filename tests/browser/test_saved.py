"""What stays of a build in a notebook that JupyterLab has saved, wherever it is opened."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.test_hosts import assert_accessible
from tests.browser.test_widget import HOSTILE, IMPORTS, RESNET, SMALL, card, shown
from tests.run import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Keep, OpenNotebook
    from tests.browser.harness import Chromium, Host, Lab, Notebook, Notebook7, Voila

VIEW = "application/vnd.jupyter.widget-view+json"
FAILING = f"""
import onnx
evil = {HOSTILE!r}
model = models.unknown_operators("NoSuchOp", "OtherOp")
model.graph.node[1].name = evil
onnx.save(model, evil + ".onnx")
c = BuildWidget(evil + ".onnx").start()
c
"""
TWO = """
d, e = BuildWidget(small).start(), BuildWidget(small).start()
display(d, e)
display(d)
e
"""
LARGE = """
with BuildWidget.attach(backend="tensorrt_rtx", name="large") as v:
    monitor = v.monitor
    for outer in range(100):
        name = f"phase {outer} of a name that goes on and on"
        monitor.phase_start(name, None, 300)
        for inner in range(300):
            monitor.phase_start(f"{inner} {evil}", name, 1)
            monitor.phase_finish(f"{inner} {evil}")
        monitor.phase_finish(name)
"""
CELLS = (
    "a = BuildWidget(small).start()\na",
    "b = slow().start()\nb",
    FAILING,
    TWO,
    LARGE,
)
SUCCEEDED, CANCELLED, FAILED, IN_ONE_CELL, MANY = range(1, 6)
#: The saved results of each cell: one for a build.
RESULTS = {SUCCEEDED: 1, CANCELLED: 1, FAILED: 1, IN_ONE_CELL: 2, MANY: 1}


@pytest.fixture(scope="module")
def saved(lab: Lab) -> nbformat.NotebookNode:
    """Give the notebook that Lab has saved after real builds."""
    notebook = lab.open([IMPORTS, *CELLS])
    try:
        for index in range(len(CELLS) + 1):
            notebook.run(index)
            if index == CANCELLED:
                view = shown(notebook, index, "running")
                expect(view.locator(".trt-row[data-status='running']")).not_to_have_count(0)
                view.get_by_role("button", name="Cancel", exact=True).click()
                shown(notebook, index, "cancelled")
        notebook.kernel("for w in (a, d, e): w.wait()")
        notebook.kernel("c.build.wait_ended()")
        wait_published(notebook, sum(RESULTS.values()))
        notebook.assert_clean()
        return notebook.save()
    finally:
        notebook.close()


def wait_published(notebook: Notebook, count: int) -> None:
    """Wait until so many results are in the notebook's model: the end is told by a thread."""
    notebook.page.wait_for_function(
        """count => panel.model.toJSON().cells.flatMap(cell => cell.outputs ?? []).filter(
            output => JSON.stringify(output.data?.['text/html'] ?? '').includes('<section')
        ).length === count""",
        arg=count,
    )


def results(notebook: nbformat.NotebookNode, index: int) -> list[dict[str, Any]]:
    """Give the data of a cell's saved results, in the file."""
    found = [output.get("data", {}) for output in notebook.cells[index].outputs]
    return [data for data in found if "<section" in data.get("text/html", "")]


class _Tags(HTMLParser):
    """Collects the elements of a page, with what each attribute says."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def assert_harmless(html: str) -> None:
    """Assert that HTML neither runs anything nor fetches anything."""
    tags = _Tags()
    tags.feed(html)
    assert not tags.names & {"script", "iframe", "object", "embed", "link", "meta", "form", "base"}
    assert [name for name, _ in tags.attributes if name.startswith("on")] == []
    # A picture in the text itself, or a part of it.
    links = [value for name, value in tags.attributes if name in {"src", "href", "xlink:href"}]
    assert [link[:80] for link in links if not link.startswith(("data:image/svg+xml", "#"))] == []
    assert re.findall(r"@import|url\((?!#)", html) == []


def copied(host: Host, saved: nbformat.NotebookNode, name: str, *, changed: str = "") -> str:
    """Copy a notebook to another server, as by mail: that server has never signed it.

    ``changed``: a source for the first cell, so that it is another notebook than others before.
    Its kernel is one that is not installed here.
    """
    notebook = deepcopy(saved)
    notebook.cells[0].source = changed
    notebook.metadata.kernelspec = {"name": "far", "display_name": "Far", "language": "far"}
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, host.root / f"{name}.ipynb")
    return f"{name}.ipynb"


def assert_not_stale(text: str) -> None:
    """Assert that nothing claims that a build has not ended."""
    assert not re.search(r": (pending|running|cancelling)\b", text)


def trusts(notebook: Notebook) -> bool:
    """Whether every cell of a notebook is trusted."""
    trusted: bool = notebook.page.evaluate("panel.content.widgets.every(w => w.model.trusted)")
    return trusted


# ------------------------------------------------------------------ the file


def test_the_file(saved: nbformat.NotebookNode) -> None:
    assert "widgets" not in saved.metadata, "Lab does not save the state of widgets by itself"
    for index, count in RESULTS.items():
        found = results(saved, index)
        assert len(found) == count
        for data in found:
            assert set(data) == {"text/html", "text/plain"}
            assert len(json.dumps(data)) < 100_000
            assert_harmless(data["text/html"])
    ids = re.findall(r"trt-saved-(\w+)", json.dumps(saved))
    assert len(set(ids)) == sum(RESULTS.values())
    # A widget is the output of its cell as before, wherever it is shown.
    views = [
        sum(VIEW in output.get("data", {}) for output in saved.cells[index].outputs)
        for index in RESULTS
    ]
    assert views == [1, 1, 1, 4, 1]


def test_the_text_in_the_file(saved: nbformat.NotebookNode) -> None:
    (good,), (cancelled,), (failed,) = (
        [data["text/plain"] for data in results(saved, index)]
        for index in (SUCCEEDED, CANCELLED, FAILED)
    )
    assert good.startswith(f"{SMALL}: succeeded\n")
    assert re.search(r"^ *Determining refit engines +1 +[\d.]+ m?s +\d", good, re.MULTILINE)
    assert cancelled.startswith(f"{RESNET}: cancelled\n")
    assert failed.startswith(f"{HOSTILE}.onnx: failed\n")
    assert "does not know the operators NoSuchOp, OtherOp" in failed
    for text in (good, cancelled, failed):
        assert max(map(len, text.splitlines())) < 400
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


# ------------------------------------------------------------------ the live notebook


def test_nothing_is_seen_twice_while_the_card_lives(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([IMPORTS, "w = held().start()\nw", "v = slow().start()\nv"])
    notebook.run(0)
    notebook.run(1)
    shown(notebook, 1, "running")
    # The empty display takes no room either.
    children = notebook.output(1).locator(".jp-OutputArea-child")
    expect(children).to_have_count(2)
    assert [child.is_visible() for child in children.all()] == [False, True]
    notebook.kernel("gate.set()")
    shown(notebook, 1, "succeeded")
    wait_published(notebook, 1)
    report = notebook.output(1).locator(".trt-report")
    expect(report).to_have_count(1)
    expect(report).to_be_hidden()
    (first,) = results(notebook.save(), 1)

    # Saved and loaded anew, with its kernel.
    notebook.reload()
    expect(shown(notebook, 1, "succeeded").locator(".trt-note")).to_contain_text("Engine of")
    expect(report).to_have_count(1)
    expect(report).to_be_hidden()

    # The cell again: another build, another result, and only that.
    notebook.run(1)
    shown(notebook, 1, "succeeded")
    wait_published(notebook, 1)
    (second,) = results(notebook.save(), 1)
    assert re.findall(r"trt-saved-\w+", first["text/html"]) != re.findall(
        r"trt-saved-\w+", second["text/html"]
    )
    # Without the card its result comes to light.
    notebook.kernel("w.close()")
    expect(card(notebook, 1)).to_have_count(0)
    expect(report).to_be_visible()
    notebook.assert_clean()


def test_an_end_that_no_page_has_seen(lab: Lab, open_notebook: OpenNotebook, keep: Keep) -> None:
    notebook = open_notebook(
        [IMPORTS, "w = held().start()\nw", "threading.Timer(3, gate.set).start()", "w"]
    )
    notebook.run(0)
    notebook.run(1)
    shown(notebook, 1, "running")
    notebook.run(2)
    notebook.save()
    # The tab alone: the kernel lives on, and so does the build.
    notebook.page.close()
    again = keep(lab.show(notebook.path))
    shown(again, 1, "succeeded")
    # What the kernel sent meanwhile is lost, also to the file. Showing the build again saves it.
    again.run(3)
    shown(again, 3, "succeeded")
    wait_published(again, 1)
    file = again.save()
    assert [len(results(file, index)) for index in (1, 3)] == [0, 1]


# ------------------------------------------------------------------ opened again


def check_report(report: Locator, name: str, status: str) -> None:
    """Assert that a saved result can be read: the summary, the timeline, the table."""
    expect(report).to_be_visible()
    expect(report.get_by_role("heading").first).to_have_text(name)
    facts = dict(
        report.locator(".trt-facts > div").evaluate_all(
            "facts => facts.map(fact => [...fact.children].map(part => part.textContent))"
        )
    )
    assert facts["Status"].endswith(status)
    # The host's own style must not squeeze the names: each stands on one line.
    heights = report.locator(".trt-facts dt").evaluate_all(
        """names => names.map(name => {
            const line = parseFloat(getComputedStyle(name).fontSize) * 1.7;
            return [name.textContent, name.getBoundingClientRect().height < line];
        })"""
    )
    assert [name for name, fits in heights if not fits] == []
    if status != "succeeded":
        return
    timeline = report.locator("svg").first
    expect(timeline).to_be_visible()
    box = timeline.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert box["height"] > 50
    boxes = timeline.locator("rect").evaluate_all(
        "boxes => boxes.map(box => getComputedStyle(box).fill)"
    )
    assert len(set(boxes)) > 2, "the phases have colours of their own"
    rows = report.get_by_role("row")
    expect(rows).to_have_count(12)
    expect(rows.filter(has_text="Determining refit engines")).to_have_text(re.compile(r"\d m?s"))


def check_reports(notebook: Notebook) -> None:
    """Assert that all saved results of the notebook can be read."""
    for index, name, status in (
        (SUCCEEDED, SMALL, "succeeded"),
        (CANCELLED, RESNET, "cancelled"),
        (FAILED, f"{HOSTILE}.onnx", "failed"),
    ):
        check_report(notebook.output(index).locator(".trt-report"), name, status)
    for index, count in RESULTS.items():
        expect(notebook.output(index).locator(".trt-report")).to_have_count(count)


def test_in_lab_without_a_kernel(lab: Lab, saved: nbformat.NotebookNode, keep: Keep) -> None:
    path = copied(lab, saved, "lab-without", changed="'trusted'")
    lab.trust(path)
    notebook = keep(lab.show(path, kernel=False))
    assert trusts(notebook)
    check_reports(notebook)
    # What Jupyter says of a widget whose kernel will not come.
    expect(notebook.output(SUCCEEDED).get_by_text("Loading widget...")).to_be_visible()
    for theme in ("light", "dark"):
        notebook.theme(theme)
        notebook.screenshot(SUCCEEDED, f"saved-{theme}")
        assert_accessible(notebook.page, ".trt-report")
    notebook.assert_clean()


def test_in_lab_with_another_kernel(lab: Lab, saved: nbformat.NotebookNode, keep: Keep) -> None:
    path = "lab-another.ipynb"
    nbformat.write(saved, lab.root / path)
    notebook = keep(lab.show(path))
    assert trusts(notebook), "this server has saved it"
    check_reports(notebook)
    lost = notebook.output(SUCCEEDED).get_by_text("Error displaying widget: model not found")
    expect(lost).to_be_visible()
    assert notebook.page_errors == []


def test_in_notebook_7_without_a_kernel(
    notebook7: Notebook7, saved: nbformat.NotebookNode, keep: Keep
) -> None:
    path = copied(notebook7, saved, "without", changed="'trusted'")
    notebook7.trust(path)
    notebook = keep(notebook7.show(path, kernel=False))
    assert trusts(notebook)
    check_reports(notebook)
    notebook.assert_clean()


@pytest.mark.parametrize("name", ["lab", "notebook7"])
def test_untrusted(
    name: str, request: pytest.FixtureRequest, saved: nbformat.NotebookNode, keep: Keep
) -> None:
    host: Host = request.getfixturevalue(name)
    path = copied(host, saved, "untrusted", changed="'not trusted'")
    notebook = keep(host.show(path, kernel=False))
    assert not trusts(notebook)
    # Jupyter has thrown out styles and SVG.
    output = notebook.output(SUCCEEDED).locator(".jp-RenderedHTML").first
    expect(output.get_by_role("heading", name=SMALL)).to_be_visible()
    expect(output.get_by_role("row").filter(has_text="Determining refit")).to_be_visible()
    assert output.locator("svg, style").count() == 0
    picture = output.get_by_role("img", name=re.compile("^Timeline of the build"))
    assert picture.evaluate("picture => picture.complete && picture.naturalWidth > 300")
    expect(picture).to_be_visible()
    for index, status in ((SUCCEEDED, "succeeded"), (CANCELLED, "cancelled"), (FAILED, "failed")):
        text = notebook.output(index).inner_text()
        assert status in text
        assert "{" not in text.replace(HOSTILE, ""), "no style sheet as text"
        assert_not_stale(text)
        # No figure runs into the word after it.
        assert not re.search(r"\d m?s[A-Za-z]", text)
    assert notebook.page.evaluate("window.pwned") is None
    notebook.assert_clean()


# ------------------------------------------------------------------ elsewhere


@pytest.fixture
def offline(chromium: Chromium) -> Iterator[Page]:
    """Give a page that loads files alone, and runs no script."""
    context = chromium.browser.new_context(java_script_enabled=False)
    context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    yield context.new_page()
    context.close()


def convert(notebook: nbformat.NotebookNode, to: str, folder: Path, *options: str) -> Path:
    """Let nbconvert make a file of another kind; return its path."""
    nbformat.write(notebook, folder / "made.ipynb")
    environ = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "nbconvert", "--to", to, *options, "made.ipynb")
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = (path for path in folder.glob("made.*") if path.suffix != ".ipynb")
    return made


def test_nbconvert_to_html_offline(
    saved: nbformat.NotebookNode, offline: Page, tmp_path: Path
) -> None:
    offline.goto(convert(saved, "html", tmp_path).as_uri())
    reports = offline.locator(".trt-report")
    expect(reports).to_have_count(sum(RESULTS.values()))
    check_report(reports.nth(0), SMALL, "succeeded")
    check_report(reports.nth(1), RESNET, "cancelled")
    check_report(reports.nth(2), f"{HOSTILE}.onnx", "failed")
    outputs = offline.locator(".jp-OutputArea-output").all()
    assert_not_stale(" ".join(output.inner_text() for output in outputs))


def test_nbconvert_executes(offline: Page, tmp_path: Path) -> None:
    cells = (
        *(IMPORTS, "a = BuildWidget(small).start()\na", "engine = a.wait()"),
        *("b = BuildWidget(models.unknown_operators()).start()\nb", "b.wait()"),
    )
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python"}},
    )
    made = convert(notebook, "html", tmp_path, "--execute", "--allow-errors")
    offline.goto(made.as_uri())
    reports = offline.locator(".trt-report")
    expect(reports).to_have_count(2)
    check_report(reports.nth(0), SMALL, "succeeded")
    check_report(reports.nth(1), "odd", "failed")


def test_nbconvert_to_markdown(saved: nbformat.NotebookNode, tmp_path: Path) -> None:
    """Markdown takes HTML before text, and a page that shows it will drop what is unsafe."""
    text = convert(saved, "markdown", tmp_path).read_text("utf-8")
    assert text.count("<section") == sum(RESULTS.values())
    # Without what stands as code: the cells, and outputs of text alone.
    outputs = re.sub(r"```python[\s\S]*?```|^    .*$", "", text, flags=re.MULTILINE)
    assert_harmless(outputs)
    assert_not_stale(outputs)


def test_voila_shows_the_end_once(voila: Voila, keep: Keep) -> None:
    opened = keep(voila.open([IMPORTS, "a = BuildWidget(small).start()\na"]))
    cards = opened.page.locator(".trt-build")
    expect(cards).to_have_count(1, timeout=60_000)
    expect(cards).to_have_attribute("data-status", "succeeded", timeout=60_000)
    expect(cards.locator(".trt-note")).to_contain_text("Engine of")
    # One that had ended before the page came.
    waited = keep(voila.open([IMPORTS, "a = BuildWidget(small).start()\na", "a.wait(); None"]))
    cards = waited.page.locator(".trt-build")
    expect(cards).to_have_attribute("data-status", "succeeded", timeout=60_000)
    for page in (opened.page, waited.page):
        visible = page.locator(".trt-build, .trt-report").filter(visible=True)
        expect(visible).to_have_count(1)
        expect(page.get_by_text(SMALL, exact=True)).to_have_count(1)
    opened.assert_clean()
    waited.assert_clean()
