"""Bars to the left and right of a line: which phase grew and which shrank.

Direction, sign and words say it as well as the colours, which the colour-blind can tell apart and
which can be seen on light and on dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trt_widget._text import duration, html

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "draw"]

_WIDTH: Final = 760
_LABEL: Final = 230  # units for the names on the left
_FIGURES: Final = 130  # and for the figures on the right
_SIGN: Final = 64  # beside a bar, for its own figure
_ROW: Final = 24
_TOP: Final = 46
# Vermilion and blue of Okabe and Ito.
_GREW: Final = "#d55e00"
_SHRANK: Final = "#0072b2"
_STYLE: Final = (
    ".trt-diverging{color:#1f1f1f;background:#fff}"
    "@media(prefers-color-scheme:dark){.trt-diverging{color:#e6e6e6;background:#1b1b1b}}"
)


@dataclass(frozen=True)
class Bar:
    """What a phase took before and after.

    Attributes
    ----------
    name
        What stands on the left.
    path
        Its whole path, shown on demand.
    before_s, after_s
        Seconds.
    """

    name: str
    path: str
    before_s: float
    after_s: float


def draw(
    bars: Sequence[Bar], words: str, heading: str, heads: tuple[str, str], *, alone: bool = False
) -> str:
    """Draw them as SVG.

    Parameters
    ----------
    bars
        From the top down.
    words
        What it shows, for who cannot see it.
    heading
        What the bars are, above all.
    heads
        What is to the left of the line, and to its right.
    alone
        For a file of its own, with a background; otherwise text has the colour around the picture.
    """
    area = _WIDTH - _LABEL - _FIGURES
    middle = _LABEL + area / 2
    reach = area / 2 - _SIGN
    largest = max((abs(bar.after_s - bar.before_s) for bar in bars), default=0.0) or 1.0
    height = _TOP + _ROW * len(bars) + 6
    said = html(words, 1_000)
    svg = (
        f'<svg class="trt-diverging" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" aria-label="{said}" font-size="12" '
        'font-family="system-ui,sans-serif" xmlns="http://www.w3.org/2000/svg">'
        f"{f'<style>{_STYLE}</style>' if alone else ''}<title>{said}</title>"
    )
    names = (
        f'<g fill="currentColor"><text x="4" y="14" font-weight="600">{html(heading, 100)}</text>'
        f'<text x="{middle - 8:.0f}" y="34" text-anchor="end">◀ {html(heads[0], 40)}</text>'
        f'<text x="{middle + 8:.0f}" y="34">{html(heads[1], 40)} ▶'
        "</text></g>"
    )
    parts = [
        svg,
        names,
        f'<path d="M{middle:.0f} 24V{height - 4}" stroke="currentColor" stroke-opacity=".5"/>',
    ]
    for row, bar in enumerate(bars):
        more = bar.after_s - bar.before_s
        extent = max(1.0, abs(more) / largest * reach)
        y = _TOP + row * _ROW
        grew = more >= 0
        x = middle if grew else middle - extent
        at, anchor = (x + extent + 5, "start") if grew else (x - 5, "end")
        figures = f"{duration(bar.before_s)} → {duration(bar.after_s)}"
        change = f"{'+' if grew else '-'}{duration(abs(more))}"
        parts.append(
            f"<g><title>{html(bar.path, 300)}: {change} ({figures})</title>"
            f'<rect x="0" y="{y}" width="{_WIDTH}" height="{_ROW}" fill="none" '
            'pointer-events="all"/>'
            f'<rect x="{x:.1f}" y="{y + 4}" width="{extent:.1f}" height="{_ROW - 8}" '
            f'fill="{_GREW if grew else _SHRANK}"/>'
            f'<g fill="currentColor"><text x="{_LABEL - 8}" y="{y + 16}" text-anchor="end">'
            f"{html(bar.name, 36)}</text>"
            f'<text x="{at:.1f}" y="{y + 16}" text-anchor="{anchor}">{change}</text>'
            f'<text x="{_WIDTH - 4}" y="{y + 16}" text-anchor="end">{figures}</text></g></g>'
        )
    return "".join([*parts, "</svg>"])
