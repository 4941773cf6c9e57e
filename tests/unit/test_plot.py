from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests import models
from tests.traces import Trace, traces
from tests.unit.test_record import build_of, hostile_record, record_of, wide_and_deep
from tests.unit.test_report import MAX_PAGE, Page, check_picture, decoded, pictures
from trt_widget import Build, SaveError, icicle
from trt_widget.events import PhaseFinished, PhasesCompleted, PhaseStarted
from trt_widget.icicle import Icicle
from trt_widget.phases import SILENT_S
from trt_widget.plot import plot
from trt_widget.record import load_record

if TYPE_CHECKING:
    from trt_widget.record import Record

SVG = "{http://www.w3.org/2000/svg}"


def checked(record: Record) -> tuple[ET.Element, Page, str]:
    """Check what holds for every picture; give the document, the page and the text."""
    picture = record.plot()
    check_picture(picture.svg)
    assert "url(" not in picture.svg
    bundle = picture._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/html", "text/plain"}
    html, text = bundle["text/html"], bundle["text/plain"]
    assert len(html.encode()) < MAX_PAGE
    page = Page(html)
    for svg in pictures(html):
        check_picture(svg)
    for image in page.all("img"):
        check_picture(decoded(image["src"]))
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert len(text) < 20_000
    return ET.fromstring(picture.svg), page, text  # noqa: S314 - our own


@pytest.mark.parametrize("most", [1, 8, 60, 400, 100_000])
def test_however_few_boxes_they_stand_for_every_instance(most: int) -> None:
    for record in (record_of(), wide_and_deep(depth=5, spans=5_000)):
        drawn = Icicle(record)
        finest = drawn._boxes(100_000)
        boxes = drawn._boxes(most)
        assert len(boxes) <= max(most, len({box.row for box in finest}))
        assert sum(box.count for box in boxes) == len(record.span_columns["path"])
        total = sum(box.busy for box in finest)
        assert sum(box.busy for box in boxes) == pytest.approx(total)
        for row in {box.row for box in boxes}:
            edges = [edge for box in boxes if box.row == row for edge in (box.start, box.end)]
            assert edges == sorted(edges)
        # What was drawn in between leaves the finer ones as they were.
        drawn._boxes(1)
        assert [box.count for box in drawn._boxes(most)] == [box.count for box in boxes]


@pytest.mark.parametrize("trace", traces(), ids=str)
def test_a_recorded_build_is_drawn_true_to_time(trace: Trace) -> None:
    record = record_of(trace.callbacks, name=str(trace), now=trace.duration_s)
    root, _, text = checked(record)
    drawn = Icicle(record)
    boxes = drawn._boxes(100_000)
    rows: dict[int, list[tuple[float, float]]] = {}
    for box in boxes:
        rows.setdefault(box.row, []).append((box.start, box.end))
    for row in rows.values():
        edges = [edge for box in sorted(row) for edge in box]
        assert edges == sorted(edges), "boxes of a row overlap"
        assert edges[0] >= 0.0
        assert edges[-1] <= 1000.0 + 1e-6
    starts = [event for event in trace.callbacks if isinstance(event, PhaseStarted)]
    assert sum(box.count for box in boxes) == len(starts)
    # One colour for a name, wherever it stands.
    colours: dict[str, set[str]] = {}
    for group in root.iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and rect is not None:
            name = str(title.text).partition(": ")[0]
            colours.setdefault(name, set()).add(rect.attrib["fill"])
            assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= 1002.0
    assert colours
    for name, fills in colours.items():
        assert len(fills) == 1, name
        assert fills <= {*icicle._TINTS, icicle._MIXED}
    first, last = trace.callbacks[0].time, trace.callbacks[-1].time
    gaps = [(a, b) for a, b in trace.gaps(SILENT_S) if first <= a and b <= last]
    assert icicle.quiet_s(record) == pytest.approx(sum(b - a for a, b in gaps))
    drawn_gaps = [silence.lasted for silence in drawn.silent]
    assert drawn_gaps == [pytest.approx(b - a) for a, b in gaps]
    assert str(trace) in text.splitlines()[0]


def test_a_picture_is_a_document_of_its_own() -> None:
    root, page, text = checked(record_of())
    assert root.tag == f"{SVG}svg"
    assert (root.attrib["width"], root.attrib["height"]) == ("1000", "180")
    ground = root.find(f"{SVG}rect")
    assert ground is not None
    assert ground.attrib["fill"] == "#fff"  # also where no style is read
    (style,) = root.iter(f"{SVG}style")
    assert style.text is not None
    assert "prefers-color-scheme:dark" in style.text
    assert "Timeline of mnist" in "".join(root.itertext())
    assert len(page.all("section")) == 1
    assert text.splitlines()[0] == "mnist: succeeded, 6.44 s"
    assert text.count("█") > 100


def test_bars_of_letters_are_true_to_time() -> None:
    events = [
        PhaseStarted(0.0, "root", None, 2),
        PhaseStarted(2.0, "a", "root", 1),
        PhaseFinished(5.0, "a"),
        PhaseFinished(10.0, "root"),
    ]
    _, _, text = checked(record_of(events))
    assert text.splitlines()[:3] == [
        "mnist: succeeded, 10.0 s",
        f"root      10.0 s  {'█' * 40}",
        f"  a       3.00 s  {' ' * 8}{'█' * 12}",
    ]


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_real_build_while_it_runs_and_after_it(executor: str, tmp_path: Path) -> None:
    build = Build(models.transformer(24), executor=executor).start()
    deadline = time.monotonic() + 60
    while build.tree.paths < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    during = build.plot()
    build.wait()
    after = build.plot()
    assert "running" in repr(during)
    assert "Building engine" in during.svg
    assert repr(after) == "Picture('transformer', succeeded)"
    assert "Determining refit engines" in after.svg
    assert "no callback for" in after.svg  # it is silent there for seconds
    build.record().save(tmp_path / "record.json")
    assert load_record(tmp_path / "record.json").plot().svg == after.svg


def test_a_picture_stays_as_it_was() -> None:
    build = build_of([PhaseStarted(0.0, "a", None, 1)], "running", now=1.0)
    picture = plot(build)
    build._take([PhaseStarted(2.0, "b", "a", 1), PhaseFinished(4.0, "b")])
    assert ">b: 2.00 s<" not in picture.svg
    assert ">b: 2.00 s<" in plot(build).svg
    assert picture.svg is picture.svg


def test_an_empty_build_and_hostile_texts() -> None:
    _, page, text = checked(record_of([]))
    assert "No phase has started." in page.text
    assert text.startswith("mnist: succeeded")
    root, page, text = checked(hostile_record())
    assert "<img src=x" in "".join(root.itertext())
    assert repr(hostile_record().plot()).isprintable()


def test_the_largest_build() -> None:
    root, _, text = checked(wide_and_deep())
    assert len(text.splitlines()) <= 43
    assert sum(1 for _ in root.iter(f"{SVG}rect")) <= 1_100


def test_a_run_is_drawn_as_far_as_it_was_busy() -> None:
    starts = tuple(0.01 * index for index in range(1_000))
    ends = tuple(start + 0.006 for start in starts)
    run = PhasesCompleted(9.996, "x", None, 0, starts, ends, (0,) * 1_000, (1,) * 1_000)
    svg = Icicle(record_of([run])).svg(100)
    drawn = ET.fromstring(svg).iter(f"{SVG}rect")  # noqa: S314 - our own
    (box,) = [rect for rect in drawn if "x" in rect.attrib]
    assert box.attrib["fill-opacity"] == "0.60"
    assert "x: 1,000 times, 6.00 s in all" in svg


def test_the_live_timeline_has_the_same_colours() -> None:
    script = (Path(icicle.__file__).parent / "widget/static/timeline.js").read_text("utf-8")
    for colours in (icicle._TINTS, icicle._SHADES):
        assert f"fills: {json.dumps(list(colours))}" in script
    # And takes them by the same hash of a name: what it gives in the browser.
    names = [
        "Building engine",
        "Computing profile costs",
        "Timing tactics",
        "\u00fc\u6f22\U0001f600",
    ]
    assert [icicle._tint(name) for name in names] == [4, 1, 3, 4]


def test_saving(tmp_path: Path) -> None:
    picture = record_of().plot()
    path = picture.save(tmp_path / "Time.SVG")
    assert path.read_text("utf-8") == f"{picture.svg}\n"
    ET.parse(path)  # noqa: S314 - our own
    for wrong, why in (("x.png", "it is SVG"), ("x", "it is SVG"), ("none/x.svg", "The picture")):
        with pytest.raises(SaveError, match=why) as caught:
            picture.save(tmp_path / wrong)
        assert caught.value.remedy
    assert [each.name for each in tmp_path.iterdir()] == ["Time.SVG"]


def test_a_picture_of_a_saved_record_needs_no_tensorrt(tmp_path: Path) -> None:
    record_of().save(tmp_path / "record.json")
    code = (
        "import sys; from trt_widget.record import load_record; "
        "load_record(sys.argv[1]).plot().save(sys.argv[2]); "
        "print([m for m in ('tensorrt_rtx', 'pandas', 'ipywidgets') if m in sys.modules])"
    )
    arguments: list[Any] = [sys.executable, "-c", code, tmp_path / "record.json"]
    done = subprocess.run(
        [*arguments, tmp_path / "x.svg"], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
