"""Records of experiments, and what is said of them: Markdown."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PACKAGES = ("onnx", "numpy", "psutil")


def header(command: str, seconds: float) -> str:
    """Say when, on what and with what it was done."""
    import trt_widget
    from trt_widget.backend import find_backend

    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text("utf-8").splitlines() if "model name" in line]
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    load = f"{os.getloadavg()[0]:.1f}"
    now = dt.datetime.now().astimezone()
    backend = find_backend()
    others = [f"{name} {import_module(name).__version__}" for name in _PACKAGES]
    packages = ", ".join([f"{backend.name} {backend.version}", *others])
    return "\n".join(
        (
            f"`{command}`",
            "",
            f"- {now:%Y-%m-%d %H:%M}, trt_widget {trt_widget.__version__}; it took {seconds:.0f} s",
            f"- {processor}, {os.cpu_count()} cores, {platform.system()}, load {load} after",
            f"- Python {platform.python_version()}, {packages}",
        )
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Make a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def counted(records: Sequence[dict[str, Any]], *names: str) -> str:
    """Make a table of how often each outcome came, most often first."""
    counts = Counter(tuple(str(record.get(name, "")) for name in names) for record in records)
    rows = [(*key, count) for key, count in counts.most_common()]
    return table([*names, "count"], rows)


def problems(records: Sequence[dict[str, Any]], after: Sequence[str]) -> str:
    """Say what was wrong, and where; nothing, as it should be."""
    found = [(record["index"], text) for record in records for text in record["problems"]]
    lines = [f"**Problems: {len(found) + len(after) or 'none'}.**"]
    lines += [f"- {index}: {text[:1500]}" for index, text in found[:30]]
    lines += [f"- after the last: {text[:1500]}" for text in after]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Give the median, and what few are above."""
    if not values:
        return "none"
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return (
        f"median {at(0.5):.2f}, 90 % {at(0.9):.2f}, 99 % {at(0.99):.2f}, most {ordered[-1]:.2f} "
        f"({len(ordered)})"
    )


def hostile(records: Sequence[dict[str, Any]]) -> str:
    """Sum up builds of hostile models."""
    slow = sorted(records, key=lambda r: -r.get("seconds", 0.0))[:5]
    large = sorted(records, key=lambda r: -(r.get("peak") or 0))[:3]
    crashes: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if "crash" in record:
            crashes.setdefault(record["crash"], []).append(record)
    parts = [counted(records, "outcome"), counted(records, "kind")]
    parts.append("Seconds of a build: " + spread([r["seconds"] for r in records if "seconds" in r]))
    parts.append(
        table(
            ("slowest", "seconds", "outcome", "case"),
            [(r["index"], r.get("seconds"), r["outcome"], _case(r)) for r in slow],
        )
    )
    parts.append(
        table(
            ("largest", "MB in the builder", "outcome", "case"),
            [(r["index"], (r.get("peak") or 0) >> 20, r["outcome"], _case(r)) for r in large],
        )
    )
    if crashes:
        rows = []
        for crash, of in sorted(crashes.items(), key=lambda item: -len(item[1])):
            least = min(of, key=lambda r: r["size"])
            words = (least.get("messages") or [""])[-1][:120]
            rows.append((crash, len(of), least["index"], least["size"], _case(least), words))
        columns = ("what killed the builder", "count", "smallest", "bytes", "case", "last words")
        parts.append(table(columns, rows))
    parts.append(f"Memory of the process that waits: {_growth(records)} MB above its baseline.")
    return "\n\n".join(parts)


def _growth(records: Sequence[dict[str, Any]]) -> str:
    values = [record["growth"] / (1 << 20) for record in records if "growth" in record]
    return f"at most {max(values, default=0.0):.1f}"


def _case(record: dict[str, Any]) -> str:
    return f"{record.get('kind')} of {record.get('origin')}: {record.get('note', '')[:100]}"


def death(records: Sequence[dict[str, Any]]) -> str:
    """Sum up builds that were made to die."""
    gone = [r["gone_s"] for r in records if "gone_s" in r]
    parts = [counted(records, "kind", "outcome")]
    parts.append("Seconds until the builder of a killed parent was gone: " + spread(gone))
    parts.append(f"Memory of the process that waits: {_growth(records)} MB above its baseline.")
    return "\n\n".join(parts)


def cancel(records: Sequence[dict[str, Any]]) -> str:
    """Sum up builds that were cancelled."""
    parts = [counted(records, "executor", "outcome")]
    rows = []
    for executor in ("process", "thread"):
        for grace in sorted({r["grace"] for r in records if "grace" in r}):
            of = [
                r["stop_s"]
                for r in records
                if (r.get("executor"), r.get("grace")) == (executor, grace)
                and r.get("stop_s") is not None
            ]
            rows.append((executor, grace, spread(of)))
    parts.append(table(("executor", "grace", "seconds from the request to the end"), rows))
    over = [
        r["stop_s"] - r["grace"]
        for r in records
        if r.get("executor") == "process" and r.get("stop_s")
    ]
    late = sum(value > 0.7 for value in over)
    parts.append(
        f"Process: {len(over) - late} of {len(over)} stopped within the grace and 0.7 s; "
        f"the latest {max(over, default=0.0):.2f} s after the grace."
    )
    parts.append(f"Memory of the process that waits: {_growth(records)} MB above its baseline.")
    return "\n\n".join(parts)
