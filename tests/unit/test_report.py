from __future__ import annotations

import base64
import dataclasses
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import nbformat
import pytest
from nbformat import v4

from tests.unit.test_record import (
    HOSTILE,
    busy_and_silent,
    hostile_record,
    record_of,
    wide_and_deep,
)
from trt_widget import report
from trt_widget._timing_cache import cache_facts
from trt_widget.errors import BuildCrashed
from trt_widget.events import (
    Event,
    LogMessage,
    MessagesDropped,
    PhaseFinished,
    PhasesCollapsed,
    PhasesCompleted,
    PhaseStarted,
    StepCompleted,
)
from trt_widget.icicle import Icicle
from trt_widget.report import MAX_PAGE, as_text, report_html

if TYPE_CHECKING:
    from trt_widget.record import Record

VOID = {"meta", "br", "img", "link", "input", "hr"}
#: All that a report is made of.
TAGS = re.compile(
    "html|head|meta|title|style|body|main|section|h[123]|p|pre|dl|div|dt|dd|bdi|b|ul|li|table|thead"
    "|tbody|tr|th|td|svg|desc|rect|path|text|g|img"
)
ATTRIBUTES = re.compile(
    "charset|name|content|lang|class|scope|style|role|aria-label|xmlns|viewbox|width|height|x|y"
    "|fill|fill-opacity|stroke|stroke-width|stroke-opacity|stroke-dasharray|d|font-size|font-family"
    "|text-anchor|transform|overflow|pointer-events|tabindex|hidden|alt|src"
)


IMAGE = "data:image/svg+xml;base64,"


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
        assert given.get("src", IMAGE).startswith(IMAGE)
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


def pictures(html: str) -> list[str]:
    """Give the pictures of a page; each holds others, for the silences."""
    return re.findall(r'<svg class="trt-time".*?</g></svg>', html, re.DOTALL)


def decoded(source: str) -> str:
    """Give the picture that an image's address holds."""
    return base64.b64decode(source.removeprefix(IMAGE), validate=True).decode()


def check_picture(svg: str) -> None:
    root = ET.fromstring(svg)  # noqa: S314 - our own, and this is how it is shown well-formed
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    assert root[0].tag.endswith("title")
    assert root[1].tag.endswith("desc")
    for element in root.iter():
        assert {"id", "href", "onload"}.isdisjoint(element.attrib)
        assert not element.tag.endswith("script")


def checked(record: Record) -> Page:
    """Check what holds for every report."""
    html = report_html(record)
    assert len(html.encode("utf-8")) < MAX_PAGE
    assert html.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script|javascript:|@import|<link|<iframe", html)
    assert "url(" not in html
    assert all(sign.isprintable() or sign == "\n" for sign in html)
    page = Page(html)
    fragment = report_html(record, fragment=True)
    as_page = fragment.replace("<h2 ", "<h1 ").replace("</h2>", "</h1>")
    assert as_page.replace("<h3 ", "<h2 ").replace("</h3>", "</h2>") in html
    assert len(page.all("h1")) == 1
    for svg in pictures(fragment):
        check_picture(svg)
    assert "<style" not in fragment[fragment.index("</style>") + 8 :]
    kept = report_html(record, fragment=True, saved_as="0a1b")
    assert len(kept.encode("utf-8")) < MAX_PAGE
    saved = Page(kept)
    instead = [given for _, given in saved.seen if given.get("class") == "trt-image"]
    assert len(instead) == bool(page.all("svg"))
    for image in saved.all("img"):
        check_picture(decoded(image["src"]))
    text = as_text(record)
    assert in_notebook(kept, text) < 100_000
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    return page


def in_notebook(html: str, text: str) -> int:
    """Give the bytes of a notebook file that keeps nothing else."""
    output = v4.new_output("display_data", {"text/html": html, "text/plain": text})
    notebook = v4.new_notebook(cells=[v4.new_code_cell(outputs=[output])])
    return len(nbformat.writes(notebook).encode())


def hatched(page: Page) -> list[tuple[float, float]]:
    return [(float(svg["x"]), float(svg["width"])) for svg in page.all("svg") if "x" in svg]


def boxes(page: Page) -> list[dict[str, str]]:
    return [rect for rect in page.all("rect") if "x" in rect]


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
    # Before the first phase, up to its only step but 0.1 s, and while b did not make a step.
    assert hatched(page) == [(0.0, 200.0), (200.0, 290.0), (500.0, 400.0)]
    svg = page.all("svg")[0]
    assert "Silent for 8.90 s in all, the longest 4.00 s in b." in svg["aria-label"]
    assert "Silent 8.90 s (89%)" in " ".join(page.text.split())
    text = as_text(record_of(events))
    assert "No callback for 4.00 s in b, from 5.00 s on." in text
    assert "Slowest phases: b 4.00 s (40%), root 3.00 s (30%), a 3.00 s (30%)." in text


def test_a_record_without_silences_says_nothing_of_them() -> None:
    events = [PhaseStarted(0.0, "a", None, 1), PhaseFinished(5.0, "a")]
    record = record_of(events)
    assert hatched(checked(record)) == [(0.0, 1000.0)]
    older = dataclasses.replace(record, silence_columns=None)
    page = checked(older)
    assert not hatched(page)
    for text in (page.text, as_text(older)):
        assert "ilent" not in text
        assert "callback" not in text


def test_a_silence_of_an_instance_that_was_not_kept_stands_at_its_depth() -> None:
    events: list[Event] = [PhaseStarted(0.0, "root", None, 9)]
    for index in range(2):
        events += [PhaseStarted(5.0 * index, "a", "root", 1), PhaseFinished(5.0 * index + 4.0, "a")]
    events.append(PhaseFinished(10.0, "root"))
    record = record_of(events)
    columns = {name: values[:2] for name, values in record.span_columns.items()}
    cut = dataclasses.replace(record, span_columns=columns, spans_dropped=1)
    page = checked(cut)
    places = [(svg["x"], svg["y"]) for svg in page.all("svg") if "x" in svg]
    assert places == [("0.0", "38"), ("500.0", "38")]
    assert cut.silent_spans() == [1, -1]
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


def test_the_longest_silences_are_told() -> None:
    events: list[Event] = [PhaseStarted(0.0, "a", None, 99)]
    time = 0.0
    for index in range(60):
        time += 1.1 + index * 0.01
        events.append(StepCompleted(time, "a", index))
    events.append(PhaseFinished(time, "a"))
    record = record_of(events)
    told = re.findall(r"No callback for (\S+) s", as_text(record))
    assert len(told) == 20
    assert min(map(float, told)) == pytest.approx(1.1 + 0.4, abs=0.01)
    assert "(+40 shorter times without a callback)" in as_text(record)
    assert len(hatched(checked(record))) == 40


def test_several_at_once_and_one_that_was_silent_later() -> None:
    events = [
        PhaseStarted(0.0, "x", None, 1, 1),
        PhaseStarted(0.0, "x", None, 1, 2),
        PhaseFinished(0.5, "x", 2),
        PhaseFinished(4.0, "x", 1),
    ]
    record = record_of(events)
    assert record.silent_spans() == [0]
    (svg,) = [svg for svg in checked(record).all("svg") if "x" in svg]
    assert (svg["x"], svg["y"], svg["width"]) == ("125.0", "18", "875.0")


def test_what_was_known_of_the_time_and_the_timing_cache() -> None:
    record = record_of([PhaseStarted(0.0, "a", None, 1)], "running", now=4.0)
    known = {"progress": 0.4, "eta_s": 6.0, "exceeded": False, "expected_s": 10.0, "basis": "<b>"}
    text = as_text(dataclasses.replace(record, estimate=known))
    assert "about 6.00 s (<b>)" in text
    page = checked(dataclasses.replace(record, estimate={**known, "exceeded": True}))
    assert "longer than the expected 10.0 s" in page.text
    done = record_of([])
    assert done.result is not None
    states = [
        (None, None),
        ({"state": "none"}, None),
        ({"state": "cold"}, "cold"),
        ({"state": "cold", "known_after": 1234}, "cold; 1,234 measurements kept"),
        ({"state": "warm", "known_before": 7}, "warm; 7 measurements known before"),
        ({"state": "warm"}, "warm"),
    ]
    for given, said in states:
        result = dataclasses.replace(done.result, timing_cache=cache_facts(given))
        page = checked(dataclasses.replace(done, result=result, estimate=known))
        assert "10.0 s (<b>)" in page.text
        facts = dict(zip(page.words[2::2], page.words[3::2], strict=False))
        assert facts.get("Timing cache") == said


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ([], None),
        (None, None),
        (["CURRENT"], "this GPU only"),
        (["SM86", "<SM120>"], "SM86, <SM120>"),
    ],
)
def test_for_which_gpus_it_was_built(target: object, said: str | None) -> None:
    page = checked(dataclasses.replace(record_of([]), options={"target": target}))
    facts = dict(zip(page.words[2::2], page.words[3::2], strict=False))
    assert facts.get("Built for") == said


# ------------------------------------------------------------------ what a notebook keeps


def test_a_saved_report_is_marked() -> None:
    record = record_of()
    html = report_html(record, fragment=True, saved_as="00ff")
    (section,) = Page(html).all("section")
    assert section["class"].split() == ["trt-report", "trt-succeeded", "trt-saved-00ff"]
    # At the top, beside its style: the card finds it there to hide it.
    assert re.fullmatch(r"<style>[^<]*</style><section .*</section>", html, re.DOTALL)
    assert "trt-saved" not in report_html(record, fragment=True)
    for wrong in ("", "xyz", "00FF", 'a"', "0 1", "0" * 65, "\u0661"):
        with pytest.raises(ValueError, match="hexadecimal"):
            report_html(record, saved_as=wrong)


#: What JupyterLab 4 leaves of HTML that it does not trust, among what a report has.
SANITIZED = re.compile(
    "section|h[123]|p|pre|dl|div|dt|dd|bdi|b|ul|li|table|thead|tbody|tr|th|td|img"
)


def test_where_nothing_but_plain_html_is_left_it_still_says_all_once() -> None:
    """What a notebook that is not trusted shows.

    Its sanitizer drops tags and keeps the words in them, but for style. Whether JupyterLab really
    does is seen in the browser.
    """
    record = record_of(
        [PhaseStarted(0.0, "the name", None, 1), PhaseFinished(3.0, "the name")],
        "failed",
        error=BuildCrashed("It died.", "Try less.", ["its words"]),
    )
    page = Page(report_html(record, fragment=True, saved_as="1"))
    hidden = 0
    depth: list[str] = []
    for tag, given in page.seen:
        if tag in {"svg", "g", "rect", "path", "text", "desc", "title"}:
            assert depth, "what would be left of it is not seen"
        elif tag == "div" and "hidden" in given:
            depth.append(tag)
            hidden += 1
        elif tag == "img":
            depth.clear()
        elif tag != "style" and not depth:
            assert SANITIZED.fullmatch(tag)
    assert hidden == 1
    (image,) = page.all("img")
    assert "the longest 3.00 s in the name" in image["alt"]
    assert "the name" in decoded(image["src"])


def test_several_reports_in_one_page_share_nothing() -> None:
    record = hostile_record()
    pages = "".join(report_html(record, fragment=True, saved_as=f"{n}") for n in range(3))
    page = Page(pages)
    assert not [given for _, given in page.seen if "id" in given]
    assert len(page.all("section")) == 3


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


def test_the_end_of_a_build_does_not_wait_for_its_report() -> None:
    record = busy_and_silent()
    begin = time.process_time()
    html, text = report_html(record, fragment=True, saved_as="1"), as_text(record)
    assert time.process_time() - begin < 5  # 0.5 s
    assert "Measuring tactic time" in html
    assert "(+980 shorter times without a callback)" in text


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


#: What grows where it is written: in HTML, in JSON, in UTF-8, line by line, or by being replaced.
GROWING = {
    "ampersands": "&",
    "apostrophes": "'",
    "quotes": '"',
    "backslashes": "\\",
    "tags": "<",
    "emoji": "\U0001f600",
    "controls": "\x01",
    "turns": "\u202e",
    "lines": "\n",
    "tabs": "\t",
    "halves": "\ud800",
    "lines of quotes": '"\n',
    "numbers": "\N{ARABIC NUMBER SIGN}",
    "letters": "w",
}


def largest(sign: str, name: str) -> Record:
    """Give the record of a build in which everything is as large as it can be.

    ``sign`` is what texts are made of, and ``name`` the names of phases.
    """
    levels = [f"{name * 500}{level}" for level in range(59)]
    wide = [f"{index} {name * 500}" for index in range(1_900)]
    events: list[Event] = []
    time = 0.0
    for level, above in zip(levels, [None, *levels], strict=False):
        time += 1.5
        events.append(PhaseStarted(time, level, above, 2**62))
    for index, phase in enumerate(wide):
        lasts = 15.0 if index < 380 else 1.5
        time += lasts
        events += [
            PhaseStarted(time, phase, levels[-1], 2**62),
            PhaseFinished(time + lasts, phase),
            LogMessage(time, "warning", f"{index} " + sign * 3_900),
        ]
    starts = [time + 2.0 + 0.001 * index for index in range(20_000)]
    ends = tuple(start + 0.0005 for start in starts)
    numbers = (0,) * len(starts)
    above = levels[-1]
    events.append(PhasesCompleted(ends[-1], "x", above, 0, tuple(starts), ends, numbers, numbers))
    many = [f"{index} " + sign * 3_000 for index in range(200)]
    error = BuildCrashed(sign * 5_000, sign * 5_000, many, evidence=many, signal="SIGKILL")
    text = sign * 3_000
    record = record_of(events, "failed", name=text, error=error, notes=many, now=starts[-1] + 9.0)
    assert record.result is not None
    assert record.silence_columns is not None
    assert len(record.silence_columns["path"]) == 1_000
    result = dataclasses.replace(
        record.result,
        device=text,
        ended_by=text,
        reason=text,
        output=Path(sign * 3_000),
        layers=2**62,
        engine_bytes=2**62,
        peak_memory_bytes=2**62,
        timing_cache=cache_facts({"state": "cold", "known_after": 2**62}),
    )
    known = {"progress": 0.5, "eta_s": 1.0, "exceeded": True, "expected_s": 1e9, "basis": text}
    return dataclasses.replace(
        record,
        result=result,
        estimate=known,
        executor=text,
        backend=text,
        version=text,
        spans_dropped=2**62,
        log_dropped=2**62,
    )


@pytest.mark.parametrize("sign", GROWING)
def test_everything_at_its_largest_at_once(sign: str) -> None:
    record = largest(GROWING[sign], GROWING[sign])
    page = checked(record)
    assert len(page.all("tr")) >= 10
    assert len(hatched(page)) == 40
    html, text = (record.plot()._repr_mimebundle_()[kind] for kind in ("text/html", "text/plain"))
    Page(html)
    assert in_notebook(html, text) < 100_000


@pytest.mark.parametrize("sign", ["emoji", "apostrophes"])
def test_the_last_size_has_room_to_spare(sign: str) -> None:
    record = largest(GROWING[sign], GROWING[sign])
    for fragment in (True, False):
        size = report._SIZES[-1]
        page = report._page(record, Icicle(record), size, fragment=fragment, saved_as="0" * 64)
        assert report._in_file(page) < 0.95 * report.MAX_SAVED
        assert not Page(page).all("img")
    assert report._in_file(report._text(record, *report._TEXT_SIZES[-1])) < 0.7 * report.MAX_TEXT


def test_where_there_is_no_room_for_an_image_there_are_words() -> None:
    record = largest("'", "'")
    html = report_html(record, fragment=True, saved_as="1")
    page = Page(html)
    assert not page.all("img")
    assert "Timeline of the build, " in page.text
    assert ".trt-report .trt-image{display:none}" in html  # where the timeline is


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
