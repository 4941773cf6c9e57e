"""The timeline in a real JupyterLab: of builds made by hand, and of one by the real builder."""

from __future__ import annotations

import base64
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.fake_timeline import FakeBuild, beside, closed, deep, many, record_of, resnet
from tests.run import ROOT
from tests.traces import mnist_events, timed
from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted
from trt_widget.trace import lanes
from trt_widget.widget import timeline as module
from trt_widget.widget.timeline import Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import OpenNotebook
    from tests.browser.harness import Lab, Notebook

FAKE = Path(__file__).with_name("fake_timeline.py").read_text("utf-8")
TOOLS = Path(__file__).with_name("page_tools.js").read_text("utf-8")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
STATIC = ROOT / "trt_widget" / "widget" / "static"
EVIL = '<img src=x onerror="window.pwned = 1"><script>window.pwned = 2</script>'
STATES = {
    "resnet": "shown(resnet())",
    "failed": "Timeline(record_of(cut_off('failed'), 'failed'))",
    "cancelled": "Timeline(record_of(cut_off('cancelled'), 'cancelled'))",
    "deep": "shown(deep(60))",
    "beside": "shown(beside())",
    "one": "shown([Start(0.1, 'One', None, 1), Finish(2.0, 'One')])",
    "many": "shown(many())",
    "none": "shown([])",
}


def view(notebook: Notebook, index: int) -> Locator:
    """Give the timeline that a cell shows."""
    return notebook.output(index).locator(".trt-timeline")


def plot(notebook: Notebook, index: int) -> Locator:
    """Give the picture in it."""
    return view(notebook, index).locator(".trt-t-plot")


def drawn(notebook: Notebook, index: int) -> dict[str, float]:
    """Say what the last frame showed, once it has been drawn."""
    found: dict[str, float] = plot(notebook, index).evaluate(
        "async plot => { await new Promise(requestAnimationFrame); "
        "await new Promise(requestAnimationFrame); return plot.trtDrawn; }"
    )
    return found


def window(notebook: Notebook, index: int) -> tuple[float, float]:
    """Give the times that are seen."""
    found = drawn(notebook, index)
    return found["t0"], found["t1"]


def point(notebook: Notebook, index: int, row: int, time: float) -> tuple[float, float]:
    """Give where in the page a time of a row is."""
    plot(notebook, index).scroll_into_view_if_needed()
    start, end = window(notebook, index)
    box = plot(notebook, index).bounding_box()
    assert box
    x = box["x"] + (time - start) / (end - start) * box["width"]
    return x, box["y"] + 20 + 20 * row + 9


def opened(open_notebook: OpenNotebook, *cells: str) -> Notebook:
    """Open a notebook of the fakes and these cells, all of which have run."""
    notebook = open_notebook([FAKE, *cells])
    for index in range(len(cells) + 1):
        notebook.run(index)
    return notebook


# ------------------------------------------------------------------ how it looks


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_at_every_width(open_notebook: OpenNotebook, theme: Any) -> None:
    notebook = open_notebook([FAKE, *STATES.values()])
    notebook.theme(theme)
    notebook.page.evaluate(TOOLS)
    notebook.page.evaluate(AXE.read_text("utf-8"))
    for index in range(len(STATES) + 1):
        notebook.run(index)
    faint: list[Any] = []
    for index, name in enumerate(STATES, 1):
        shown = view(notebook, index)
        shown.scroll_into_view_if_needed()
        if name != "none":
            assert drawn(notebook, index)["boxes"] > 0
            notebook.screenshot(index, f"timeline-{name}-{theme}")
            shown.locator("summary").click()
        for width in (320, 640, 880):
            shown.evaluate("(view, width) => { view.style.maxWidth = `${width}px`; }", width)
            drawn(notebook, index)
            wide = shown.evaluate(
                """view => [view, ...view.querySelectorAll('*')].filter(each =>
                    each.checkVisibility() && !each.closest('.trt-t-go, .trt-t-unseen')
                    && each.getBoundingClientRect().right > view.getBoundingClientRect().right + 0.5
                ).map(each => each.className)"""
            )
            assert wide == [], (name, width)
            if width == 320:
                notebook.screenshot(index, f"timeline-{name}-narrow-{theme}")
        faint += [
            (name, *text)
            for text in shown.evaluate("view => window.trt.textContrasts(view)")
            if text[2] < 4.5
        ]
        found = notebook.page.evaluate("async () => (await axe.run('.trt-timeline')).violations")
        faint += [
            (name, violation["id"], node["html"])
            for violation in found
            for node in violation["nodes"]
        ]
    assert faint == []
    # The picture takes the theme's colours.
    light = plot(notebook, 1).evaluate(
        """plot => {
            const canvas = plot.querySelector('canvas');
            return canvas.getContext('2d').getImageData(canvas.width - 1, 2, 1, 1).data[0] > 127;
        }"""
    )
    assert light is (theme == "light")
    notebook.theme("light")
    notebook.assert_clean()
    # Each timeline has a module of its own.
    ids = notebook.page.locator(".trt-timeline [id]").evaluate_all("all => all.map(e => e.id)")
    assert len(ids) >= len(STATES)
    assert len(set(ids)) == len(ids)


def test_its_words(open_notebook: OpenNotebook) -> None:
    bounded = (
        "few = PhaseTree(max_spans=100); few.apply(resnet()); few.close('succeeded')\n"
        "Timeline(record_of(few))"
    )
    notebook = opened(open_notebook, *STATES.values(), bounded)
    for index, words in (
        (
            1,
            r"Timeline of resnet50.onnx: 306 phases on 4 levels, 9.00 s in all\. Most time of its ",
        ),
        (1, r"3.80 s passed without any callback"),
        (4, r"60 phases on 60 levels, 5.59 s in all"),
        (8, r"no phases\.$"),
    ):
        expect(plot(notebook, index)).to_have_attribute("aria-label", re.compile(words))
    expect(view(notebook, 1).locator(".trt-t-caption")).to_have_text(
        "Timeline · 306 phases in 9.00 s"
    )
    expect(view(notebook, 8)).to_contain_text("No phases were recorded")
    expect(view(notebook, 8).get_by_role("button")).to_have_count(0)
    shown = view(notebook, 1)
    shown.locator("summary").click()
    rows = shown.locator("tbody tr")
    expect(rows).to_have_count(7)
    assert rows.nth(0).all_inner_texts() == ["Determining refit engines\t1\t4.05 s\t4.05 s\t48 %"]
    brief = rows.filter(has_text="Measuring tactic time")
    assert brief.all_inner_texts() == ["Measuring tactic time\t300\t900 ms\t900 ms\t11 %"]
    expect(shown.locator(".trt-t-note")).to_be_hidden()
    expect(view(notebook, 9).locator(".trt-t-note")).to_have_text(
        "206 more phases are counted in the timings, but not kept one by one and so not drawn."
    )
    # What was cut off is said by a sign, and in words.
    view(notebook, 2).locator("summary").click()
    expect(view(notebook, 2).locator(".trt-t-go").first).to_have_text("✕ Determining refit engines")
    view(notebook, 2).locator(".trt-t-go").first.click()
    expect(view(notebook, 2).locator(".trt-t-live")).to_have_text(re.compile("status failed"))
    expect(plot(notebook, 2)).to_be_focused()
    notebook.assert_clean()


def test_letters_are_readable_on_every_colour(lab: Lab) -> None:
    page = bare(lab)
    page.evaluate(
        "() => { const kernel = {anyMessage: {connect() {}}};"
        " window.panel = {sessionContext: {session: {kernel}}}; }"
    )
    page.evaluate(TOOLS)
    found = page.evaluate(
        """() => ['LIGHT', 'DARK'].flatMap(theme => {
            const {fills, mixed, text} = window.timeline[theme];
            return [...fills, mixed].map(fill => {
                const lum = colour => {
                    const [r, g, b] = window.trt.rgba(colour).map(v => {
                        const c = v / 255;
                        return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
                    });
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                };
                const [a, b] = [lum(fill), lum(text)].sort((x, y) => y - x);
                return (a + 0.05) / (b + 0.05);
            });
        })"""
    )
    assert len(found) == 14
    assert min(found) >= 4.5
    page.close()


def test_forced_colours(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, STATES["resnet"])
    notebook.page.emulate_media(forced_colors="active")
    notebook.page.wait_for_timeout(800)
    colours = plot(notebook, 1).evaluate(
        """plot => {
            const canvas = plot.querySelector('canvas');
            const ratio = canvas.width / canvas.clientWidth;
            const at = y => [...canvas.getContext('2d')
                .getImageData(canvas.width - 40, y * ratio, 1, 1).data].join();
            return [at(30), at(20.5), getComputedStyle(plot.parentElement).backgroundColor];
        }"""
    )
    inside, edge, ground = colours
    numbers = re.findall(r"\d+", ground)
    assert inside.split(",")[:3] == numbers[:3]
    assert edge != inside
    notebook.screenshot(1, "timeline-forced-colours")
    notebook.page.emulate_media(forced_colors="none")


@pytest.mark.parametrize(
    ("style", "scheme", "dark"),
    [
        ("", "light", False),
        ("", "dark", True),
        ("--vscode-editor-background: #1f1f1f; --vscode-editor-foreground: #ccc", "light", True),
        ("--vscode-editor-background: #fff; --vscode-editor-foreground: #333", "dark", False),
    ],
)
def test_colours_elsewhere(lab: Lab, style: str, scheme: Any, dark: bool) -> None:
    """Without JupyterLab: VS Code's colours, else those that the system asks for."""
    page = bare(lab)
    page.emulate_media(color_scheme=scheme)
    shown = Timeline(record_of(closed(resnet())))
    pixels = page.evaluate(
        """async ({css, style, data}) => {
            const sheet = document.createElement('style');
            sheet.textContent = css;
            document.head.append(sheet);
            document.body.style.cssText = style;
            const it = window.session();
            it.whole(data);
            const widget = window.timeline.default();
            await widget.initialize({model: it.model, signal: new AbortController().signal});
            await widget.render({model: it.model, el: document.body});
            for (let k = 0; k < 3; k++) await new Promise(requestAnimationFrame);
            const canvas = document.querySelector('canvas');
            const pen = canvas.getContext('2d');
            return [[2, 60], [canvas.width - 6, 30]].map(([x, y]) =>
                [...pen.getImageData(x, y, 1, 1).data]);
        }""",
        {"css": (STATIC / "timeline.css").read_text("utf-8"), "style": style}
        | {"data": wire(shown.data)},
    )
    ground, box = (sum(pixel[:3]) / 3 for pixel in pixels)
    assert (ground < 127) is dark
    assert (box < 127) is dark
    assert pixels[0] != pixels[1]
    shown.close()
    page.close()


# ------------------------------------------------------------------ pointer and keys


def test_tooltip(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, STATES["resnet"], "pass\n" * 40)
    tip = view(notebook, 1).locator(".trt-t-tip")
    mouse = notebook.page.mouse
    mouse.move(*point(notebook, 1, 2, 2.0))
    expect(tip).to_be_visible()
    expect(tip.locator(".trt-t-name")).to_have_text("Optimizing graph")
    expect(tip.locator(".trt-t-path")).to_have_text(
        "Building engine > Building engine from subgraph > Optimizing graph"
    )
    assert tip.locator("dt").all_inner_texts() == [
        *("Start", "Duration", "Of its own", "Share of the build", "Steps")
    ]
    assert tip.locator("dd").all_inner_texts() == ["1.05 s", "1.95 s", "1.95 s", "23 %", "12 of 12"]
    mouse.move(*point(notebook, 1, 2, 7.0))
    expect(tip.locator("dl")).to_contain_text("Without a callback3.80 s")
    # Brief ones that follow each other are one box.
    mouse.move(*point(notebook, 1, 3, 3.8))
    expect(tip.locator(".trt-t-name")).to_have_text("300 \u00d7 Measuring tactic time")
    expect(tip).to_contain_text("In all900 ms")
    assert drawn(notebook, 1)["boxes"] == 7
    mouse.move(*point(notebook, 1, 3, 8.0))
    expect(tip).to_be_hidden()
    notebook.assert_clean()


def test_zoom_and_pan(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, STATES["resnet"], "pass\n" * 40)
    shown, picture = view(notebook, 1), plot(notebook, 1)
    tip = shown.locator(".trt-t-tip")
    mouse = notebook.page.mouse
    # A plain wheel scrolls the notebook, with Ctrl it zooms where the pointer is.
    before = picture.bounding_box()
    assert before
    mouse.move(*point(notebook, 1, 2, 3.5))
    mouse.wheel(0, 60)
    notebook.page.wait_for_function(
        "([plot, top]) => Math.abs(plot.getBoundingClientRect().top - top) > 20",
        arg=[picture.element_handle(), before["y"]],
    )
    assert window(notebook, 1) == (0, 9)
    mouse.move(*point(notebook, 1, 2, 3.5))
    notebook.page.keyboard.down("Control")
    mouse.wheel(0, -120)
    notebook.page.keyboard.up("Control")
    start, end = window(notebook, 1)
    assert 0 < start < 3.5 < end < 9
    assert (3.5 - start) / (end - start) == pytest.approx(3.5 / 9, abs=0.01)
    expect(shown.locator(".trt-t-caption")).to_contain_text("showing")

    # It can be dragged, not past its ends.
    mouse.move(*point(notebook, 1, 0, (start + end) / 2))
    mouse.down()
    mouse.move(200, 300, steps=5)
    expect(tip).to_be_hidden()
    mouse.move(0, 300, steps=5)
    mouse.up()
    moved = window(notebook, 1)
    assert moved[0] > start + 0.5
    assert moved[1] - moved[0] == pytest.approx(end - start)
    assert moved[1] <= 9
    # Sideways, with Shift or two fingers.
    mouse.move(*point(notebook, 1, 0, moved[0] + 1))
    mouse.wheel(-100, 0)
    assert window(notebook, 1)[0] < moved[0]

    # A double click zooms to what is below it.
    shown.get_by_role("button", name="Show the whole build").click()
    assert window(notebook, 1) == (0, 9)
    mouse.dblclick(*point(notebook, 1, 2, 2.0))
    assert window(notebook, 1) == pytest.approx((1.05 - 0.078, 3 + 0.078), abs=0.01)
    shown.get_by_role("button", name="Zoom in").click()
    start, end = window(notebook, 1)
    assert end - start == pytest.approx((1.95 + 0.156) / 1.5, abs=0.02)
    mouse.dblclick(*point(notebook, 1, 3, (start + end) / 2))
    assert window(notebook, 1) == (0, 9)
    notebook.assert_clean()


def test_keyboard(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, STATES["resnet"])
    shown, picture = view(notebook, 1), plot(notebook, 1)
    live, tip = shown.locator(".trt-t-live"), shown.locator(".trt-t-tip")
    press = notebook.page.keyboard.press
    active = notebook.page.evaluate("window.panel.content.activeCellIndex")
    picture.focus()
    for key, words in (
        ("ArrowRight", "Building engine: start 600 ms, duration 8.40 s"),
        ("ArrowDown", "Cloning: "),
        ("ArrowRight", "Building engine from subgraph: "),
        ("ArrowRight", "Building engine from subgraph: "),
        ("ArrowDown", "Optimizing graph: "),
        ("ArrowRight", "Timing tactics: "),
        ("ArrowDown", "Measuring tactic time: start 3.20 s, duration 3 ms"),
        ("ArrowRight", "Measuring tactic time: start 3.20 s, duration 3 ms"),
        ("ArrowUp", "Timing tactics: "),
    ):
        press(key)
        expect(live).to_contain_text(words)
    expect(live).to_contain_text("Level 3, 2 of 3 in its row.")
    expect(tip).to_be_visible()
    press("Enter")
    assert window(notebook, 1) == pytest.approx((3.1 - 0.056, 4.5 + 0.056), abs=0.01)
    # What is walked to comes into sight.
    press("ArrowLeft")
    expect(live).to_contain_text("Optimizing graph")
    start, end = window(notebook, 1)
    assert start < 2.1 < end
    press("Shift+ArrowRight")
    assert window(notebook, 1)[0] == pytest.approx(start + (end - start) / 5)
    press("-")
    assert window(notebook, 1)[1] - window(notebook, 1)[0] == pytest.approx((end - start) * 1.5)
    for _ in range(3):
        press("+")
    press("0")
    assert window(notebook, 1) == (0, 9)
    press("+")
    press("Home")
    assert window(notebook, 1) == (0, 9)
    press("Escape")
    expect(tip).to_be_hidden()
    # JupyterLab has not taken any of the keys: 0 twice would restart the kernel.
    press("0")
    press("0")
    assert notebook.page.evaluate("window.panel.content.activeCellIndex") == active
    expect(notebook.page.locator(".jp-Dialog")).to_have_count(0)
    expect(picture).to_be_focused()
    # It is no trap.
    press("Tab")
    expect(shown.locator("summary")).to_be_focused()
    press("Shift+Tab")
    press("Shift+Tab")
    expect(shown.get_by_role("button", name="Save SVG of what is seen")).to_be_focused()
    press("Shift+Tab")
    press("Shift+Tab")
    press("Enter")
    assert window(notebook, 1) != (0, 9)
    notebook.assert_clean()


def test_many_rows_scroll(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, STATES["deep"])
    picture = plot(notebook, 1)
    assert drawn(notebook, 1)["boxes"] == 19
    box = picture.bounding_box()
    assert box
    assert box["height"] < 400
    picture.focus()
    for _ in range(45):
        notebook.page.keyboard.press("ArrowDown")
    expect(view(notebook, 1).locator(".trt-t-live")).to_contain_text("Level 44: ")
    drawn(notebook, 1)
    assert picture.evaluate("plot => plot.scrollTop") > 400
    tip = view(notebook, 1).locator(".trt-t-tip")
    scrolled = picture.evaluate("plot => plot.scrollTop")
    x, y = point(notebook, 1, 44, 2.0)
    notebook.page.mouse.move(x, y - scrolled)
    expect(tip.locator(".trt-t-name")).to_have_text("Level 44")


# ------------------------------------------------------------------ foreign text and SVG


def saved(notebook: Notebook, index: int) -> tuple[str, str]:
    """Save the picture; give its name and text."""
    with notebook.page.expect_download() as download:
        view(notebook, index).get_by_role("button", name="Save SVG").click()
    return download.value.suggested_filename, Path(download.value.path()).read_text("utf-8")


def test_svg(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, *STATES.values())
    space = "{http://www.w3.org/2000/svg}"
    for index, name in enumerate(STATES, 1):
        if name == "none":
            continue
        file, text = saved(notebook, index)
        assert file == "resnet50.onnx-timeline.svg"
        assert len(text.encode()) < 1_000_000
        root = ET.fromstring(text)  # noqa: S314 - our own
        assert root.tag == f"{space}svg"
        titles = [title.text or "" for title in root.iter(f"{space}title")]
        assert titles[0] == "Timeline of resnet50.onnx"
        assert not {element.tag for element in root.iter()} - {
            f"{space}{tag}"
            for tag in ("svg", "title", "desc", "defs", "pattern", "rect", "path", "text", "g")
        }
        if name == "resnet":
            assert "300 \u00d7 Measuring tactic time: 900 ms in all" in titles
            assert "Determining refit engines: no callback for 3.80 s" in titles
            marks = [pattern.get("id") for pattern in root.iter(f"{space}pattern")]
            assert text.count(f'fill="url(#{marks[0]})"') == 1
            # Letters on the hatching have a plain ground.
            assert text.count("paint-order") == 1
        if name == "failed":
            assert "✕ Building engine: 6.80 s (failed)" in titles
            assert "stroke-dasharray" in text
        if name == "deep":
            assert "Level 59: 4.41 s" in titles
    # What is seen.
    plot(notebook, 1).focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown", "Enter"):
        notebook.page.keyboard.press(key)
    _, text = saved(notebook, 1)
    assert "Optimizing graph" in text
    assert "Measuring tactic time: " not in text
    assert "Shown: 0.9" in text
    notebook.assert_clean()


def test_foreign_text(open_notebook: OpenNotebook) -> None:
    code = f"""
evil = {EVIL!r}
hebrew, odd = "\u05e9\u05db\u05d1\u05d4", "a\\u202eb\\x00c\\ud800]]>"
names = [evil, hebrew, "long " * 60, odd, "", "\U0001f600" * 300]
events = [Start(0.1 * k, name, names[k - 1] if k else None, 1) for k, name in enumerate(names)]
events += [Finish(1.0 + 0.1 * k, name) for k, name in enumerate(reversed(names))]
shown(events, name=evil)
"""
    notebook = opened(open_notebook, code)
    notebook.page.evaluate(TOOLS)
    shown, picture = view(notebook, 1), plot(notebook, 1)
    assert drawn(notebook, 1)["labels"] == 6
    expect(picture).to_have_attribute("aria-label", re.compile("Timeline of <img src=x"))
    shown.locator("summary").click()
    for row in range(6):
        notebook.page.mouse.move(*point(notebook, 1, row, 0.9))
        expect(shown.locator(".trt-t-tip .trt-t-name")).to_have_text(
            (
                EVIL,
                "\u05e9\u05db\u05d1\u05d4",
                "long " * 20 + "… " + "long " * 19 + "long",
                "a\ufffdb\ufffdc?]]>",
                "(no name)",
                "\U0001f600" * 100 + " … " + "\U0001f600" * 100,
            )[row]
        )
    assert shown.locator("img, script").count() == 0
    notebook.screenshot(1, "timeline-foreign")
    for width in (320, 880):
        shown.evaluate("(view, width) => { view.style.maxWidth = `${width}px`; }", width)
        assert shown.evaluate("view => view.scrollWidth <= view.clientWidth")
    file, text = saved(notebook, 1)
    assert re.fullmatch(r"[\w.-]+\.svg", file)
    ET.fromstring(text)  # noqa: S314 - our own
    assert notebook.page.evaluate(
        "text => new DOMParser().parseFromString(text, 'image/svg+xml')"
        ".querySelectorAll('parsererror, script, img').length === 0",
        text,
    )
    assert "<img" not in text
    assert notebook.page.evaluate("window.pwned") is None
    notebook.assert_clean()


# ------------------------------------------------------------------ the module by itself


def bare(lab: Lab) -> Page:
    """Open a page with nothing but the module in it, as `window.timeline`."""
    page = lab.context.new_page()
    page.set_content("<!doctype html><meta charset=utf-8>")
    page.evaluate(
        """async text => {
            const blob = new Blob([text], {type: 'text/javascript'});
            window.timeline = await import(URL.createObjectURL(blob));
            const bytes = text =>
                new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
            window.session = () => {
                const heard = {};
                const said = [];
                const model = {
                    state: {data: {live: true, name: 'x'}, channel: 'IPY_MODEL_c'},
                    get: name => model.state[name],
                    on: (name, callback) => { heard[name] = callback; },
                    off() {}, send() {},
                    widget_manager: {get_model: async () => ({send: what => said.push(what)})},
                };
                const session = new window.timeline.Session(model);
                return {
                    session, said, model,
                    whole(data) {
                        model.state.data = {
                            ...data, parents: bytes(data.parents),
                            columns: data.columns.map(bytes), silences: data.silences.map(bytes),
                        };
                        heard['change:data']();
                    },
                    message: (content, buffers) => heard['msg:custom'](content, buffers.map(bytes)),
                };
            };
            window.laidOut = ({spans}) => ({
                count: spans.count, names: spans.names,
                lanes: [...spans.lane.slice(0, spans.count)],
                ends: [...spans.end.slice(0, spans.count)],
                busy: spans.rows.map(row => [...row.busy.slice(0, row.count)]),
                items: spans.rows.map(row => [...row.items.slice(0, row.count)]),
                steps: [...spans.steps.slice(0, spans.count)],
                own: spans.own, open: [...spans.open],
            });
        }""",
        (STATIC / "timeline.js").read_text("utf-8"),
    )
    return page


def coded(buffers: list[bytes]) -> list[str]:
    return [base64.b64encode(buffer).decode() for buffer in buffers]


def wire(data: dict[str, Any]) -> dict[str, Any]:
    """Give the trait `data` as text can carry it."""
    return {
        **data,
        "parents": coded([data["parents"]])[0],
        "columns": coded(data["columns"]),
        "silences": coded(data["silences"]),
    }


def at_random(seed: int, count: int = 300, *, together: bool = True) -> list[Any]:
    """Give phases of several threads that start and end at random, some at the same time."""
    draw = random.Random(seed)  # noqa: S311 - a test
    opened: list[tuple[str, int]] = []
    events: list[Any] = []
    time = 0.0
    for number in range(count):
        time += draw.choice([0.0, 0.0, 0.01, 0.02, 1.5] if together else [0.01, 0.02, 1.5])
        if opened and draw.random() < 0.5:
            name, thread = opened.pop(draw.randrange(len(opened)))
            events.append(PhaseFinished(time, name, thread))
        elif opened and draw.random() < 0.2:
            name, thread = draw.choice(opened)
            events.append(StepCompleted(time, name, number, thread))
        else:
            name, thread = f"p{draw.randrange(9)}-{number}", draw.randrange(4)
            above = [entry for entry in opened if entry[1] == thread]
            parent = above[-1][0] if above and draw.random() < 0.8 else None
            events.append(PhaseStarted(time, name, parent, 3, thread))
            opened.append((name, thread))
    return events


def test_lanes_are_those_of_the_trace(lab: Lab) -> None:
    page = bare(lab)
    wanted = [*(at_random(seed) for seed in range(25)), beside(5), timed(mnist_events())]
    many_at_once = [PhaseStarted(0.01 * k, f"p{k}", None, 1, k) for k in range(70)]
    for events in [*wanted, many_at_once]:
        record = record_of(closed(events))
        shown = Timeline(record)
        found = page.evaluate(
            "data => { const it = window.session(); it.whole(data); return laidOut(it.session); }",
            wire(shown.data),
        )
        assert found["lanes"] == lanes(record)
        shown.close()
    page.close()


def test_messages_in_pieces_are_the_whole(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page puts together from the drain thread's messages is laid out as the whole is."""

    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            cls.now += 10.0
            return cls.now

    monkeypatch.setattr(module, "LEASE_S", 1e9)
    monkeypatch.setattr(module, "clock", Clock)
    monkeypatch.setattr(module, "MAX_SPANS_AT_ONCE", 7)
    monkeypatch.setattr(module, "MAX_NAMES_AT_ONCE", 5)
    page = bare(lab)
    for seed in range(12):
        build = FakeBuild()
        shown = Timeline(build)  # type: ignore[arg-type]  # a stand-in
        sent: list[Any] = []
        monkeypatch.setattr(
            shown, "send", lambda content, buffers, sent=sent: sent.append((content, buffers))
        )
        shown._requests.append({"kind": "look", "view": "a"})
        # What ends when another starts may have been open still when that one was sent.
        events = at_random(seed, together=False)
        for first in range(0, len(events), 23):
            build.take(*events[first : first + 23])
        for _ in range(200):
            build.tick()
        build.end("succeeded", at=events[-1].time + 1)
        table = build.tree.span_columns()
        found = page.evaluate(
            """([messages, data]) => {
                const [live, whole] = [window.session(), window.session()];
                for (const [content, buffers] of messages) live.message(content, buffers);
                const before = laidOut(live.session);
                live.whole(data);
                whole.whole(data);
                return [before, laidOut(live.session), laidOut(whole.session)];
            }""",
            [[(content, coded(buffers)) for content, buffers in sent], wire(shown.data)],
        )
        before, after, whole = found
        assert after == whole
        for key in ("count", "names", "lanes", "items", "steps"):
            assert before[key] == whole[key]
        assert len(before["open"]) == sum(end < 0 for end in before["ends"])
        assert [
            end if end >= 0 else last
            for end, last in zip(before["ends"], whole["ends"], strict=True)
        ] == whole["ends"]
        assert whole["count"] == len(table["start_s"])
        # The sums over a row's items are right, however late the news of an end came.
        for items, busy in zip(before["items"], before["busy"], strict=True):
            total = 0.0
            for item, until_here in zip(items, busy, strict=True):
                assert until_here == pytest.approx(total)
                end = before["ends"][item]
                total += max(0.0, end - table["start_s"][item]) if end >= 0 else 0.0
        shown.close()
    page.close()


def test_a_page_that_has_missed_something_asks_for_all(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.0)
    page = bare(lab)
    build = FakeBuild()
    shown = Timeline(build)  # type: ignore[arg-type]  # a stand-in
    sent: list[Any] = []
    monkeypatch.setattr(shown, "send", lambda *message: sent.append(message))
    shown._requests.append({"kind": "look", "view": "a"})
    for event in resnet():
        build.take(event)
    said, count = page.evaluate(
        """async messages => {
            const it = window.session();
            const view = {};
            it.session.look(view, true);
            await new Promise(done => setTimeout(done, 50));
            it.message(...messages[0]);
            it.message(...messages[2]);
            it.session.look(view, false);
            return [it.said, it.session.spans.count];
        }""",
        [(content, coded(buffers)) for content, buffers in sent],
    )
    assert [what["kind"] for what in said] == ["look", "look", "away"]
    assert [what.get("spans") for what in said] == [0, 0, None]
    assert len({what["view"] for what in said}) == 1
    assert count == 0
    shown.close()
    page.close()


def test_no_phase_is_lost_between_the_boxes(lab: Lab) -> None:
    page = bare(lab)
    empty = [
        kind(0.0, "z", *more) for kind, more in ((PhaseStarted, (None, 1)), (PhaseFinished, ()))
    ]
    families = (many(20_000), timed(mnist_events()), deep(20), [*empty * 3, *resnet()])
    for events in (*families, *(at_random(seed, 1_000) for seed in range(4))):
        shown = Timeline(record_of(closed(events)))
        bad = page.evaluate(
            """data => {
                const it = window.session();
                it.whole(data);
                const {spans, now} = it.session;
                const bad = [];
                for (const row of spans.rows) {
                    for (const narrow of [0, 1e-6, 1e-4, 1e-2, 1, 1e3]) {
                        let [next, until, busy] = [0, -1, 0];
                        spans.boxes(row, 0, now, now, narrow, (first, last, start, end) => {
                            const sum = spans.summed(row, first, last, now);
                            const one = spans.start[row.items[first]];
                            const nodes = new Set();
                            let apart = false;
                            for (let k = first; k <= last; k++) {
                                const i = row.items[k];
                                nodes.add(spans.node[i]);
                                if (first < last && spans.until(i, now) - spans.start[i] > narrow) {
                                    apart = true; // wide enough to stand alone
                                }
                                const before = k > first ? spans.end[row.items[k - 1]] : Infinity;
                                if (spans.start[i] - before > narrow) {
                                    apart = true; // not one after the other
                                }
                            }
                            if (first !== next || last < first || start !== one || end < start
                                || start < until || sum.count !== last - first + 1
                                || sum.busy > end - start + 1e-9
                                || sum.mixed !== nodes.size > 1 || apart) {
                                bad.push([row.depth, narrow, first, last, start, end]);
                            }
                            next = last + 1;
                            until = end;
                            busy += sum.busy;
                        });
                        let all = 0;
                        for (const i of row.items.slice(0, row.count)) {
                            all += spans.until(i, now) - spans.start[i];
                        }
                        if (next !== row.count || Math.abs(all - busy) > 1e-6) {
                            bad.push([row.depth, narrow, next, row.count, all, busy]);
                        }
                    }
                    // A part of it: the same spans as a walk over all of them finds.
                    const [t0, t1] = [now * 0.31, now * 0.47];
                    const seen = [];
                    spans.boxes(row, t0, t1, now, 1e-3, (first, last) => {
                        for (let k = first; k <= last; k++) seen.push(k);
                    });
                    for (let k = 0; k < row.count; k++) {
                        const i = row.items[k];
                        const [start, end] = [spans.start[i], spans.until(i, now)];
                        const inside = end > t0 && start < t1;
                        if (inside && !seen.includes(k)) bad.push(['missing', row.depth, k]);
                        if (!inside && seen.includes(k) && (start > t1 + 1e-3 || end < t0 - 1e-3)) {
                            bad.push(['too many', row.depth, k]);
                        }
                    }
                }
                return bad.slice(0, 5);
            }""",
            wire(shown.data),
        )
        assert bad == []
        shown.close()
    page.close()


# ------------------------------------------------------------------ live


LIVE = """
from tests import models
from trt_widget import Build
from trt_widget.widget.timeline import Timeline
b = Build(models.light_model("resnet50"), configure=models.slowly(0.008))
t = Timeline(b)
"""


def test_a_real_build_live(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([LIVE, "b.start(); t", "t", "import time; time.sleep(1.5)"])
    notebook.run(0)
    notebook.run(1)
    shown = view(notebook, 1)
    expect(shown).to_have_attribute("data-live", "true")
    caption = shown.locator(".trt-t-caption")
    expect(caption).to_contain_text(re.compile(r"\d+ phases? in \d"))
    # It grows while a cell runs, too.
    notebook.wait_subshells()
    notebook.start(3)
    before = window(notebook, 1)
    notebook.page.wait_for_timeout(1_200)
    after = window(notebook, 1)
    assert after[1] > before[1] + 0.5
    notebook.wait(3)
    notebook.screenshot(1, "timeline-live")
    expect(shown).to_have_attribute("data-live", "false", timeout=60_000)
    count = int(notebook.kernel("print(len(b.spans))"))
    expect(caption).to_contain_text(f"Timeline · {count} phases in ")
    assert notebook.kernel("print(b.status, t._feed._spans <= len(b.spans))") == "succeeded True\n"
    # A second view, and after a reload: without any drain thread.
    notebook.run(2)
    expect(view(notebook, 2).locator(".trt-t-caption")).to_contain_text(f"{count} phases")
    notebook.save()
    notebook.reload()
    expect(view(notebook, 2).locator(".trt-t-caption")).to_contain_text(f"{count} phases")
    assert drawn(notebook, 2)["boxes"] > 3
    notebook.screenshot(2, "timeline-real")
    notebook.assert_clean()


def test_it_fills_while_its_own_cell_runs(open_notebook: OpenNotebook) -> None:
    """The first comm of a page: its subshell is made only when the view has asked already."""
    notebook = open_notebook([LIVE, "b.start(); display(t)\nimport time; time.sleep(12)"])
    notebook.run(0)
    notebook.start(1)
    caption = view(notebook, 1).locator(".trt-t-caption")
    expect(caption).to_contain_text(re.compile(r"\d+ phases? in \d"), timeout=10_000)
    assert not notebook.page.evaluate("Boolean(window.runs[1].ended)")
    notebook.wait(1)
    notebook.kernel("b.close()")
    notebook.assert_clean()


def test_a_view_that_is_closed_says_so(open_notebook: OpenNotebook) -> None:
    code = "b = FakeBuild(); t = Timeline(b); b.take(Start(0.0, 'a', None, 3)); t"
    notebook = opened(open_notebook, code, "pass\n" * 60)
    expect(view(notebook, 1)).to_contain_text("Waiting for the build")
    notebook.kernel("b.take(Step(0.1, 'a', 0))")
    expect(view(notebook, 1).locator(".trt-t-caption")).to_contain_text("1 phase in ")
    assert notebook.kernel("print(len(t._feed._views))") == "1\n"
    # Out of sight is out of mind.
    notebook.cell(2).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    notebook.page.evaluate(
        "document.querySelector('.jp-WindowedPanel-outer, .jp-NotebookPanel-notebook')"
        ".scrollTop = 1e6"
    )
    notebook.page.wait_for_timeout(500)
    notebook.kernel("b.tick()")
    gone = notebook.kernel("print(len(t._feed._views))")
    notebook.page.evaluate("window.panel.content.scrollToItem(1)")
    expect(view(notebook, 1)).to_be_visible()
    notebook.page.wait_for_timeout(500)
    notebook.kernel("b.take(Finish(0.2, 'a'), Start(0.3, 'b', None, 1)); import time")
    assert gone == "0\n"
    assert notebook.kernel("print(len(t._feed._views))") == "1\n"
    expect(view(notebook, 1).locator(".trt-t-caption")).to_contain_text("2 phases")
    # A cleared output leaves nothing behind.
    notebook.page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    expect(view(notebook, 1)).to_have_count(0)
    notebook.page.wait_for_timeout(300)
    notebook.kernel("b.tick()")
    assert notebook.kernel("print(len(t._feed._views))") == "0\n"
    notebook.assert_clean()
