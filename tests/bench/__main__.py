"""Measure what the widget costs and print a table: ``python -m tests.bench``.

Everything is measured side by side in one run, with real kernels and real builds. A missed target
says MISSED and does not fail the command: machines are shared, and noise is theirs.

``python -m tests.bench gpu`` makes the figures of builds on a GPU, and ``python -m tests.bench
traces`` records builds: each has its own ``--help``, and needs less to be installed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from tests.bench.stats import Row, table

NAMES = (
    *("callback", "build", "rates", "import", "click", "extra"),
    *("busy", "startup", "gap", "latency", "flood", "engine"),
    *("progress", "recorded", "timeline"),
    *("sse", "terminal", "surfaces"),
    *("queue", "overview", "cluster", "fleet"),
)
PACKAGES = ("tensorrt_rtx", "ipykernel", "ipywidgets", "anywidget")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure what the widget costs."
    )
    parser.add_argument("--long", action="store_true", help="longer runs (25 minutes instead of 8)")
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="NAME", help=f"of: {', '.join(NAMES)}"
    )
    return parser.parse_args(arguments)


def load() -> str:
    """Give the number of running processes over the last minute."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def processor() -> str:
    """Give the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()


def header() -> str:
    """Say when, on what and with what it was measured."""
    import trt_widget

    now = dt.datetime.now().astimezone()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        (
            f"{now:%Y-%m-%d %H:%M}, trt_widget {trt_widget.__version__}",
            f"{processor()}, {os.cpu_count()} cores, {platform.system()}, load {load()} before",
            f"Python {platform.python_version()}, {packages}",
        )
    )


def main() -> int:
    """Measure and print; return the exit status."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    options = parse() if command not in {"gpu", "traces"} else None
    # As for a user, but these builds are no experience for later ones.
    os.environ["TRT_WIDGET_HISTORY"] = str(Path(tempfile.mkdtemp(prefix="bench-")) / "history")
    if command == "gpu":
        from tests.bench import gpu

        return gpu.main(sys.argv[2:])
    if command == "traces":
        from tests.bench import recorder

        return recorder.main(sys.argv[2:])
    assert options is not None
    return everything(options)


def everything(options: argparse.Namespace) -> int:
    """Measure what the widget costs."""
    from tests.bench import (
        executors,
        figures,
        fleet,
        overview,
        progress,
        queues,
        recorded,
        surfaces,
        surfaces_cost,
        surfaces_http,
        timeline,
    )
    from tests.bench.figures import say

    measure = figures.FIGURES | executors.FIGURES | progress.FIGURES | timeline.FIGURES
    measure |= recorded.FIGURES
    measure |= surfaces_http.FIGURES | surfaces.FIGURES | surfaces_cost.FIGURES
    measure |= queues.FIGURES | fleet.FIGURES | overview.FIGURES

    started = time.monotonic()
    print(header(), flush=True)
    rows: list[Row] = []
    broken = 0
    for name in NAMES:
        if options.only and name not in options.only:
            continue
        say(f"{name} ...")
        try:
            rows += measure[name](long=options.long)
        except Exception as error:  # noqa: BLE001 - the other figures are still wanted
            rows.append(Row(name, f"not measured: {error!r}"[:200], "", met=False))
            broken += 1
    print()
    print(table(rows))
    missed = sum(row.met is False for row in rows)
    have = sum(row.met is not None for row in rows)
    print(
        f"\n{have - missed} of {have} targets met, "
        f"{time.monotonic() - started:.0f} s, load {load()} after"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
