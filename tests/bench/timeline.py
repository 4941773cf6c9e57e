"""How smoothly the timeline pans: the widget's own module in Chromium, without Jupyter around it.

The page moves the pointer at every frame, as a person who drags does, and notes when frames came
and how long each took to draw. What is measured is the main thread: the compositor of a Chromium
without a GPU is slower than that of a person's.
"""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from tests.bench.stats import Row
from tests.browser.fake_timeline import closed, deep, many, record_of
from tests.run import find_chromium
from trt_widget.events import PhaseFinished, PhaseStarted
from trt_widget.widget.timeline import Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

STATIC = Path(__file__).resolve().parents[2] / "trt_widget" / "widget" / "static"
#: A frame of 60 in a second.
FRAME_MS = 1000 / 60

PAGE = """
async ({module, css, data}) => {
    const style = document.createElement('style');
    style.textContent = css;
    document.head.append(style);
    const bytes = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
    data.parents = bytes(data.parents);
    data.columns = data.columns.map(bytes);
    data.silences = data.silences.map(bytes);
    const model = {
        get: name => ({data, channel: null})[name], on() {}, off() {}, send() {},
        widget_manager: {get_model: async () => null},
    };
    const blob = new Blob([module], {type: 'text/javascript'});
    const {default: make} = await import(URL.createObjectURL(blob));
    const widget = make();
    const el = document.body.appendChild(document.createElement('div'));
    const begun = performance.now();
    await widget.initialize({model, signal: new AbortController().signal});
    await widget.render({model, el, signal: new AbortController().signal});
    await new Promise(requestAnimationFrame);
    return performance.now() - begun;
}
"""

PAN = """
async ({zoom, frames}) => {
    const plot = document.querySelector('.trt-t-plot');
    const box = plot.getBoundingClientRect();
    const at = (type, x, y, more) => plot.dispatchEvent(new PointerEvent(type, {
        clientX: x, clientY: y, pointerId: 1, pointerType: 'mouse', button: 0, bubbles: true,
        ...more,
    }));
    plot.setPointerCapture = () => {};
    const key = key => plot.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    key('0');
    for (let k = 0; k < zoom; k++) key('+');
    await new Promise(requestAnimationFrame);
    const [times, drawn, boxes, labels] = [[], [], [], []];
    const y = box.top + 30;
    let x = box.left + box.width / 2;
    at('pointerdown', x, y);
    let direction = 1;
    await new Promise(done => {
        let left = frames;
        const step = now => {
            times.push(now);
            if (times.length > 1) {
                drawn.push(plot.trtDrawn.ms);
                boxes.push(plot.trtDrawn.boxes);
                labels.push(plot.trtDrawn.labels);
            }
            if (left-- === 0) return done();
            if (x > box.right - 20 || x < box.left + 20) direction = -direction;
            x += 7 * direction;
            at('pointermove', x, y, {buttons: 1});
            requestAnimationFrame(step);
        };
        requestAnimationFrame(step);
    });
    at('pointerup', x, y);
    const {t0, t1} = plot.trtDrawn;
    return {times, drawn, boxes, labels, seconds: t1 - t0};
}
"""


def halves(levels: int) -> list[Any]:
    """Give phases that consist of two each, level by level: as many boxes as there can be."""
    events: list[Any] = []

    def one(level: int, start: float, end: float, parent: str | None) -> None:
        name = f"Level {level}"
        events.append(PhaseStarted(start, name, parent, 2))
        if level + 1 < levels:
            middle = (start + end) / 2
            one(level + 1, start, middle, name)
            one(level + 1, middle, end, name)
        events.append(PhaseFinished(end, name))

    one(0, 0.0, 60.0, None)
    return events


def _open(page: Page, events: list[Any]) -> float:
    """Show the timeline of a build in an empty page; return the milliseconds that it took."""
    shown = Timeline(record_of(closed(events)))
    data: dict[str, Any] = dict(shown.data)
    shown.close()
    data["parents"] = base64.b64encode(data["parents"]).decode()
    for name in ("columns", "silences"):
        data[name] = [base64.b64encode(column).decode() for column in data[name]]
    page.set_content("<!doctype html><meta charset=utf-8><body style='margin:16px'></body>")
    took: float = page.evaluate(
        PAGE,
        {
            "module": (STATIC / "timeline.js").read_text("utf-8"),
            "css": (STATIC / "timeline.css").read_text("utf-8"),
            "data": json.loads(json.dumps(data)),
        },
    )
    return took


def _pan(page: Page, what: str, zoom: int, frames: int) -> Row:
    found = page.evaluate(PAN, {"zoom": zoom, "frames": frames})
    times = found["times"]
    gaps = [after - before for before, after in pairwise(times)]
    drawn = found["drawn"]
    middle, worst = median(gaps), max(gaps)
    return Row(
        f"timeline, {what}, panning with {found['seconds']:.3g} s seen: ms between frames",
        f"median {middle:.1f}, worst {worst:.1f}; drawing: median {median(drawn):.2f}, worst "
        f"{max(drawn):.1f} ({median(found['boxes']):,.0f} boxes, {median(found['labels']):.0f} "
        "names)",
        "median <= 16.9 (60 a second)",
        # A display's frames are not all equally long.
        middle <= FRAME_MS + 0.2,
    )


def timeline(*, long: bool) -> list[Row]:
    """Pan timelines of many phases, of as many boxes as there can be, and of 60 levels."""
    frames = 600 if long else 180
    rows: list[Row] = []
    chromium = find_chromium()
    if chromium is None:
        raise RuntimeError("no Chromium on PATH: `python3 tests/run.py` installs it")
    with sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport={"width": 1280, "height": 900}, device_scale_factor=2, reduced_motion="reduce"
        )
        took = _open(page, many())
        rows.append(Row("timeline, 99,801 phases: ms from data to the first frame", f"{took:.0f}"))
        rows += [_pan(page, "99,801 phases", zoom, frames) for zoom in (1, 8, 16)]
        _open(page, halves(16))
        rows += [_pan(page, "65,535 phases on 16 levels", zoom, frames) for zoom in (1, 8)]
        _open(page, deep(60))
        rows.append(_pan(page, "60 levels", 1, frames))
        browser.close()
    return rows


FIGURES = {"timeline": timeline}
