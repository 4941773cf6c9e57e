"""The tables of a build's phases: plain DataFrames that display themselves as people read them."""

from __future__ import annotations

import copy
import html.parser
import io
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted
from trt_widget.phases import MAX_SPANS, PhaseTree
from trt_widget.tables import MAX_ROWS
from trt_widget.timings import spans_frame, timings_frame

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "Building engine"
HOSTILE = [
    "<script>alert(1)</script>",
    "</th></table><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "]]><!--",
    "\u202egnp.exe\u2066",
    "\x1b[31mred\x07\r\n\0",
    "x" * 5_000,
    "&amp;amp;",
    "\ud800 half a pair",
    "",
]


def made(*names: str, end: bool = True) -> PhaseTree:
    """Give a build of a root with these phases below it, a second each."""
    tree = PhaseTree()
    tree.apply([PhaseStarted(0.0, ROOT, None, len(names))])
    for at, name in enumerate(names):
        tree.apply([PhaseStarted(float(at), name, ROOT, 2)])
        tree.apply([StepCompleted(at + 0.5, name, 1)])
        tree.apply([PhaseFinished(at + 1.0, name)])
    if end:
        tree.apply([PhaseFinished(float(len(names)), ROOT)])
    return tree


def timings(tree: PhaseTree, *, complete: bool = True) -> pd.DataFrame:
    return timings_frame(tree.timing_columns(), complete=complete)


def spans(tree: PhaseTree, *, complete: bool = True, dropped: int = 0) -> pd.DataFrame:
    return spans_frame(tree.span_columns(), complete=complete, dropped=dropped)


BOTH = pytest.mark.parametrize("make", [timings, spans])


class Reader(html.parser.HTMLParser):
    """Reads a fragment: tags must nest, and the text of the cells is kept."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(fragment)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"th", "td"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data


def shown(frame: pd.DataFrame) -> str:
    text = frame._repr_html_()  # type: ignore[operator]  # not in the stubs
    assert isinstance(text, str)
    return text


def test_the_timings_as_people_read_them() -> None:
    tree = made("Parsing", "Timing", "Timing")
    reader = Reader(shown(timings(tree)))
    assert reader.rows == [
        ["Phase", "Of the whole", "Share", "Time", "Itself", "Count", "Longest", "Steps"],
        ["Building engine", "", "100.0%", "3.00 s", "0 s", "1", "3.00 s", "0 of 3"],
        ["Parsing", "", "33.3%", "1.00 s", "1.00 s", "1", "1.00 s", "2 of 2"],
        ["Timing", "", "66.7%", "2.00 s", "2.00 s", "2", "1.00 s", "4 of 4"],
    ]
    text = shown(timings(tree))
    assert "<caption>3 phases, 3.00 s in all</caption>" in text
    assert '<th scope="col">Phase</th>' in text
    assert (
        '<th scope="row" style="padding-left:1.7em" title="Building engine &gt; Parsing">' in text
    )
    assert '<i style="left:0.00%;width:66.67%">' in text
    assert repr(timings(tree)).splitlines() == [
        "3 phases, 3.00 s in all",
        "Phase             Share    Time  Itself  Count  Longest   Steps",
        "Building engine  100.0%  3.00 s     0 s      1   3.00 s  0 of 3",
        "  Parsing         33.3%  1.00 s  1.00 s      1   1.00 s  2 of 2",
        "  Timing          66.7%  2.00 s  2.00 s      2   1.00 s  4 of 4",
    ]


def test_the_spans_as_people_read_them() -> None:
    tree = made("Parsing", "Timing", "Timing")
    reader = Reader(shown(spans(tree)))
    assert reader.rows == [
        ["Phase", "From 0 to 3.00 s", "Start", "Duration", "Itself", "Steps"],
        ["Building engine", "", "0 s", "3.00 s", "0 s", "0 of 3"],
        ["Parsing", "", "0 s", "1.00 s", "1.00 s", "2 of 2"],
        ["Timing", "", "1.00 s", "1.00 s", "1.00 s", "2 of 2"],
        ["Timing", "", "2.00 s", "1.00 s", "1.00 s", "2 of 2"],
    ]
    assert '<i style="left:66.67%;width:33.33%">' in shown(spans(tree))
    assert repr(spans(tree)).splitlines()[:2] == [
        "4 phases one by one, in the order in which they started",
        "Phase             Start  Duration  Itself   Steps",
    ]


@BOTH
def test_a_running_build_is_told(make: Callable[..., pd.DataFrame]) -> None:
    frame = make(made("Parsing", end=False), complete=False)
    assert "so far: the build has not ended" in repr(frame)
    assert "Building engine (running)" in repr(frame)
    assert "(running)</th>" in shown(frame)


@BOTH
def test_a_build_without_phases(make: Callable[..., pd.DataFrame]) -> None:
    frame = make(PhaseTree())
    assert repr(frame).startswith("0 phases")
    assert len(Reader(shown(frame)).rows) == 1


@BOTH
def test_a_strangers_names_do_nothing(make: Callable[..., pd.DataFrame]) -> None:
    frame = make(made(*HOSTILE))
    fragment = shown(frame)
    reader = Reader(fragment)
    assert reader.tags <= {
        *("style", "div", "table", "caption", "thead", "tbody", "tr", "th", "td"),
        *("bdi", "span", "i", "p"),
    }
    assert reader.attributes <= {
        *("class", "role", "tabindex", "aria-label", "aria-hidden", "scope", "style", "title"),
    }
    assert len(reader.rows) == len(HOSTILE) + 2
    assert "http" not in fragment
    assert "@import" not in fragment
    names = {row[0] for row in reader.rows}
    assert "<script>alert(1)</script>" in names
    assert "x" * 79 + "…" in names
    assert "(empty)" in names
    for text in (fragment, repr(frame)):
        assert not {sign for sign in text if not sign.isprintable()} - {"\n"}
        text.encode("utf-8")
    assert len(repr(frame).splitlines()) == len(HOSTILE) + 3


@BOTH
def test_a_long_frame_is_shortened_and_says_so(make: Callable[..., pd.DataFrame]) -> None:
    tree = PhaseTree()
    tree.apply([PhaseStarted(0.0, ROOT, None, 1)])
    now = 0.0
    for at in range(1_900):
        tree.apply([PhaseStarted(now, f"phase {at}", ROOT, 1)])
        now += 5.0 if at == 1_234 else 0.001
        tree.apply([PhaseFinished(now, f"phase {at}")])
    tree.apply([PhaseFinished(now, ROOT)])
    frame = make(tree)
    reader = Reader(shown(frame))
    assert len(reader.rows) == MAX_ROWS + 1
    assert "phase 1234" in {row[0] for row in reader.rows}
    assert f"+{1_901 - MAX_ROWS:,} " in repr(frame)
    assert f"+{1_901 - MAX_ROWS:,} " in shown(frame)
    assert len(shown(frame)) < 30_000
    assert len(frame) == 1_901


def test_what_has_no_row_is_told() -> None:
    frame = spans(made("Parsing"), dropped=MAX_SPANS)
    assert frame.attrs["note"] in repr(frame)
    assert frame.attrs["note"] in shown(frame)


# ---- still ordinary DataFrames ------------------------------------------------------------------


@BOTH
def test_values_and_types_are_those_of_a_plain_frame(make: Callable[..., pd.DataFrame]) -> None:
    tree = made("Parsing", *HOSTILE[:-2])
    columns = tree.timing_columns() if make is timings else tree.span_columns()
    plain = pd.DataFrame(columns)
    frame = make(tree)
    pd.testing.assert_frame_equal(frame, plain)
    assert frame.to_json() == plain.to_json()
    assert frame.to_string() == plain.to_string()
    assert isinstance(frame, pd.DataFrame)
    if sys.version_info < (3, 11):  # whose csv module refuses a NUL, of a plain frame as well
        frame, plain = (given.replace("\0", "", regex=True) for given in (frame, plain))
    assert frame.to_csv() == plain.to_csv()


@BOTH
@pytest.mark.parametrize(
    "operation",
    [
        lambda frame: frame[["phase", "depth"]],
        lambda frame: frame[frame["depth"] > 0],
        lambda frame: frame.sort_values("self_s"),
        lambda frame: frame.set_index("path"),
        lambda frame: frame.assign(more=1),
        lambda frame: frame.head(2),
        lambda frame: frame.copy(),
        lambda frame: frame.merge(frame, on="path"),
        lambda frame: pd.concat([frame, frame]),
        lambda frame: frame.groupby("depth").sum(numeric_only=True),
        lambda frame: frame.T,
        copy.copy,
        copy.deepcopy,
        pd.DataFrame,
    ],
)
def test_what_is_made_of_one_is_plain(
    operation: Callable[[Any], Any], make: Callable[..., pd.DataFrame]
) -> None:
    tree = made("Parsing", "Timing")
    columns = tree.timing_columns() if make is timings else tree.span_columns()
    result = operation(make(tree))
    assert type(result) is pd.DataFrame
    pd.testing.assert_frame_equal(result, operation(pd.DataFrame(columns)))


@BOTH
def test_attributes_go_with_it(make: Callable[..., pd.DataFrame]) -> None:
    frame = make(made("Parsing"), complete=False)
    assert frame.attrs["complete"] is False
    assert frame.sort_values("self_s").attrs == frame.attrs


@BOTH
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_needs_nothing_of_ours(protocol: int, make: Callable[..., pd.DataFrame]) -> None:
    frame = make(made("Parsing"))
    packed = pickle.dumps(frame, protocol)
    assert b"trt_widget" not in packed
    read = pickle.loads(packed)  # noqa: S301 - our own
    assert type(read) is pd.DataFrame
    assert read.attrs == frame.attrs
    pd.testing.assert_frame_equal(frame, read)
    file = io.BytesIO()
    frame.to_pickle(file, protocol=protocol)
    assert b"trt_widget" not in file.getvalue()


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.__delitem__("self_s"),
        lambda frame: frame.pop("phase"),
        lambda frame: frame.insert(0, "depth", 0, allow_duplicates=True),
        lambda frame: frame.__setitem__("self_s", "text"),
        lambda frame: frame.__setitem__("depth", None),
    ],
)
def test_a_frame_changed_in_place_looks_like_any_other(
    change: Callable[[Any], Any], make: Callable[..., pd.DataFrame]
) -> None:
    frame = make(made("Parsing"))
    change(frame)
    plain = pd.DataFrame(frame)
    assert shown(frame) == shown(plain)
    assert repr(frame) == repr(plain)


def test_the_readers_wish_for_text_is_kept() -> None:
    with pd.option_context("display.notebook_repr_html", False):
        assert timings(made("Parsing"))._repr_html_() is None  # type: ignore[operator]


def test_pandas_is_imported_late() -> None:
    script = "import sys, trt_widget.timings, trt_widget.build; print('pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
