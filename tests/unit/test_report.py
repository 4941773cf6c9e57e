from __future__ import annotations

import dataclasses
import re
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.unit.test_record import HOSTILE, hostile_record, record_of, wide_and_deep
from trt_widget.errors import BuildCrashed
from trt_widget.events import (
    Event,
    LogMessage,
    MessagesDropped,
    PhaseFinished,
    PhasesCollapsed,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.report import MAX_PAGE, as_text, report_html

if TYPE_CHECKING:
    from trt_widget.record import Record

VOID = {"meta", "br", "img", "link", "input", "hr"}
#: All that a report is made of.
TAGS = re.compile(
    "html|head|meta|title|style|body|main|section|h[23]|p|pre|dl|div|dt|dd|bdi|b|ul|li|table|thead"
    "|tbody|tr|th|td|svg|desc|defs|pattern|rect|path|text|g"
)
ATTRIBUTES = re.compile(
    "charset|name|content|lang|class|id|scope|style|role|aria-label|xmlns|viewbox|width|height|x|y"
    "|fill|fill-opacity|stroke|stroke-width|stroke-opacity|stroke-dasharray|d|font-size"
    "|text-anchor|patternunits|patterntransform|pointer-events|tabindex"
)


class Page(HTMLParser):
    """Reads a page and checks it: known tags and attributes, properly closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert TAGS.fullmatch(tag)
        given = {name: value or "" for name, value in attrs}
        assert all(map(ATTRIBUTES.fullmatch, given)), tag
        for value in given.values():
            assert "://" not in value or value == "http://www.w3.org/2000/svg"
        self.seen.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.seen if name == tag]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def checked(record: Record) -> Page:
    """Check what holds for every report."""
    html = report_html(record)
    assert len(html.encode("utf-8")) < MAX_PAGE
    assert html.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script|javascript:|@import|<link|<iframe", html)
    assert re.sub(r"url\(#trt-silent-[0-9a-f]+\)", "", html).count("url(") == 0
    assert all(sign.isprintable() or sign == "\n" for sign in html)
    page = Page(html)
    fragment = report_html(record, fragment=True)
    assert fragment in html
    for svg in re.findall(r"<svg.*?</svg>", fragment, re.DOTALL):
        root = ET.fromstring(svg)  # noqa: S314 - our own, and this is how it is shown well-formed
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        assert root[0].tag.endswith("title")
        assert root[1].tag.endswith("desc")
    assert "<style" not in fragment[fragment.index("</style>") + 8 :]
    text = as_text(record)
    assert len(text) < MAX_PAGE
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    return page


def hatched(page: Page) -> list[tuple[float, float]]:
    return [
        (float(rect["x"]), float(rect["width"]))
        for rect in page.all("rect")
        if rect.get("fill", "").startswith("url(#")
    ]


def boxes(page: Page) -> list[dict[str, str]]:
    return [r for r in page.all("rect") if "x" in r and not r["fill"].startswith("url(")]


def test_the_recorded_build() -> None:
    page = checked(record_of())
    assert "mnist" in page.text
    assert "✓ succeeded" in page.text
    assert "tensorrt_rtx" in page.text
    assert "the builder returned an engine" in page.text
    assert len(page.all("tr")) == 1 + 15
    assert 15 <= len(boxes(page)) <= 400
    # 1,107 measurements are a few boxes, which say how many they stand for.
    assert re.search(r"Measuring tactic time: \d+ times", page.text)
    assert not hatched(page)


def test_the_timeline_is_true_to_time() -> None:
    events = [
        PhaseStarted(0.0, "root", None, 2),
        PhaseStarted(2.0, "a", "root", 100),
        StepCompleted(4.9, "a", 99),
        PhaseFinished(5.0, "a"),
        PhaseStarted(5.0, "b", "root", 1),
        PhaseFinished(9.0, "b"),
        PhaseFinished(10.0, "root"),
    ]
    page = checked(record_of(events))
    found = [(r["x"], r["y"], r["width"]) for r in boxes(page)]
    assert found == [
        ("0.0", "18", "1000.0"),
        ("200.0", "38", "300.0"),
        ("500.0", "38", "400.0"),
    ]
    # Silent: before the first phase, while b did not make a step; a made a hundred in 3 s, and a
    # single second is not more than one.
    assert hatched(page) == [(0.0, 200.0), (500.0, 400.0)]
    (svg,) = page.all("svg")
    assert "Silent 2 times for more than a second, the longest 4.00 s in b" in svg["aria-label"]
    assert "Silent for 4.00 s in b, from 5.00 s on." in as_text(record_of(events))


def test_a_silence_that_steps_may_have_broken_is_not_claimed() -> None:
    def silent(steps: int) -> int:
        events: list[Event] = [PhaseStarted(0.0, "a", None, 9)]
        if steps:
            events.append(StepCompleted(1.0, "a", steps - 1))
        events.append(PhaseFinished(5.0, "a"))
        return len(hatched(checked(record_of(events))))

    assert [silent(steps) for steps in (0, 1, 3, 4, 9)] == [1, 1, 1, 0, 0]
    collapsed = [
        PhaseStarted(0.0, "a", None, 9),
        PhasesCollapsed(4.0, ("a", "x"), 5, 3.0, 1.0),
        PhaseFinished(5.0, "a"),
    ]
    page = checked(record_of(collapsed))
    assert not hatched(page)
    assert "5 further phases are in the table only" in page.text


def test_an_open_phase_is_silent_up_to_now() -> None:
    page = checked(record_of([PhaseStarted(0.0, "a", None, 1)], "running", now=4.0))
    assert hatched(page) == [(0.0, 1000.0)]
    assert "… running" in page.text
    assert "So far" in page.text


def test_phases_at_the_same_time_do_not_cover_each_other() -> None:
    events = [
        PhaseStarted(0.0, "a", None, 1, 1),
        PhaseStarted(0.2, "b", None, 1, 2),
        PhaseFinished(0.6, "a", 1),
        PhaseFinished(0.9, "b", 2),
    ]
    assert [rect["y"] for rect in boxes(checked(record_of(events)))] == ["18", "38"]


def test_a_failure_a_crash_and_a_cancel() -> None:
    events = [
        PhaseStarted(0.0, "a", None, 1),
        LogMessage(0.1, "info", "not here"),
        LogMessage(0.2, "warning", "careful"),
        LogMessage(0.3, "error", "broken"),
        MessagesDropped(0.4, 7),
    ]
    error = BuildCrashed("It died.", "Try less.", ["broken", "its words"], signal="SIGKILL")
    record = record_of(events, "failed", error=error, ended_by="crashed", notes=("A note.",))
    for text in (checked(record).text, as_text(record)):
        for word in ("failed", "It died.", "Try less.", "the build process died", "careful"):
            assert word in text
        for word in ("its words", "A note.", "7 messages of TensorRT were not kept."):
            assert word in text
        assert text.count("broken") == 1
        assert "not here" not in text
    assert "✗ failed" in checked(record).text
    record = record_of(events[:1], "cancelled")
    assert "■ cancelled" in checked(record).text
    assert "stopped at a step" in as_text(record)


def test_hostile_texts() -> None:
    record = hostile_record()
    page = checked(record)  # no tag or attribute but ours
    assert len(hatched(page)) == len(HOSTILE)
    assert HOSTILE[0] in page.text
    assert "</script>" in page.text
    assert "\ufffd" in page.text
    text = as_text(record)
    assert HOSTILE[0] in text
    assert "\x1b" not in text


def test_a_build_without_phases() -> None:
    page = checked(record_of([]))
    assert not page.all("svg")
    assert not page.all("table")


@pytest.mark.parametrize("name", ["level {}", "&" * 200 + "{}", "ü<b>\N{SNOWMAN}" * 50 + "{}"])
def test_a_hundred_thousand_phases(name: str) -> None:
    record = wide_and_deep()
    names = [name.format(index) for index in range(len(record.path_columns["name"]))]
    record = dataclasses.replace(
        record, name=name * 20, path_columns={**record.path_columns, "name": names}
    )
    begin = time.perf_counter()
    page = checked(record)
    assert time.perf_counter() - begin < 60  # some 3 s
    assert len(boxes(page)) >= 40
    assert {int(rect["y"]) for rect in boxes(page)} == {18 + 20 * row for row in range(40)}
    assert re.search(r"[\d,]+ times, ", page.text)


def test_thousands_of_boxes_that_are_just_wide_enough() -> None:
    events: list[Event] = []
    for index in range(900):
        names = [f"{level}" for level in range(3)]
        for level, name in enumerate(names):
            above = names[level - 1] if level else None
            events.append(PhaseStarted(index + 0.001 * level, name, above, 1))
        events += [PhaseFinished(index + 0.99 - 0.001 * n, names[n]) for n in (2, 1, 0)]
    page = checked(record_of(events))
    assert 3 <= len(boxes(page)) <= 400


def test_thousands_of_long_warnings_and_paths() -> None:
    events: list[Event] = [PhaseStarted(0.0, "root", None, 1)]
    for index in range(3_000):
        at = 1.0 + index
        name = f"{index} " + "<&>" * 100
        events += [
            PhaseStarted(at, name, "root", 1),
            PhaseFinished(at + 0.7, name),
            LogMessage(at, "warning", "<&>" * 1_000),
        ]
    record = record_of([*events, LogMessage(4_000.0, "error", "the one error")])
    page = checked(record)
    assert "the one error" in page.text
    assert re.search(r"\+[\d,]+ more", page.text)
    assert re.search(r"\+[\d,]+ phases that took less time", page.text)
