"""Try to break builds, and print what came of it as Markdown: ``python -m tests.stress``.

Linux only; needs tensorrt_rtx and no GPU. The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.stress import report
from tests.stress.pool import Pool

#: Experiments, how many, and the seconds after which one hangs, without those of a build's timeout.
KINDS = {"hostile": (10_000, 60.0), "death": (500, 120.0), "cancel": (500, 120.0)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress", description="Try to break builds, and say what came of it."
    )
    parser.add_argument("kind", choices=(*KINDS, "cluster", "shrink"))
    parser.add_argument("file", nargs="?", type=Path, help="shrink: a model that kills the builder")
    parser.add_argument("--count", type=int, help="how many (10,000 hostile ones, 500 others)")
    parser.add_argument("--minutes", type=float, default=6.0, help="cluster: how long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes that work side by side")
    parser.add_argument("--only", type=int, metavar="INDEX", action="append", help="one again")
    parser.add_argument("--kind", help="death: all of this kind", dest="chosen_kind")
    parser.add_argument("--timeout", type=float, default=15.0, help="hostile: of each build")
    parser.add_argument("--grace", type=float, default=0.5, help="hostile: of each build")
    parser.add_argument("--records", type=Path, help="write a line of JSON for each to this file")
    parser.add_argument("--summarize", type=Path, help="make nothing, sum such a file up")
    parser.add_argument("--keep", type=Path, help="hostile: write the models asked for by --only")
    return parser.parse_args(arguments)


def run(
    kind: str, indices: list[int], options: dict[str, Any], jobs: int, records: Path | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Make experiments; give their records, and what was wrong after the last one."""
    done: list[dict[str, Any]] = []
    started = last = time.monotonic()
    file = records.open("w", encoding="utf-8") if records is not None else None

    def tell(record: dict[str, Any]) -> None:
        nonlocal last
        done.append(record)
        if file is not None:
            file.write(json.dumps(record) + "\n")
            file.flush()
        for problem in record["problems"]:
            print(f"{record['index']}: {problem}", file=sys.stderr, flush=True)
        if time.monotonic() - last > 30.0:
            last = time.monotonic()
            rate = len(done) / (last - started)
            left = (len(indices) - len(done)) / rate
            print(f"{len(done)} done, {left:.0f} s left", file=sys.stderr, flush=True)

    limit = KINDS[kind][1] + options.get("timeout", 0.0) + options.get("grace", 0.0)
    try:
        after = Pool(kind, options, limit).run(indices, jobs, tell)
    finally:
        if file is not None:
            file.close()
    done.sort(key=lambda record: record["index"])
    return done, after


def main() -> int:
    """Do what was asked for; return the exit status."""
    chosen = parse()
    # These builds are no experience for later ones.
    os.environ["TRT_WIDGET_HISTORY"] = "off"
    if chosen.kind == "shrink":
        from tests.stress.shrink import shrink

        return shrink(chosen.file)
    if chosen.kind == "cluster":
        from tests.cluster.deaths import run_for

        command = f"python -m tests.stress {' '.join(sys.argv[1:])}"
        return run_for(60.0 * chosen.minutes, chosen.seed, command)
    if chosen.summarize is not None:
        lines = chosen.summarize.read_text("utf-8").splitlines()
        done = sorted((json.loads(line) for line in lines), key=lambda record: record["index"])
        print(getattr(report, chosen.kind)(done), report.problems(done, []), sep="\n\n")
        return 0
    options: dict[str, Any] = {
        "seed": chosen.seed,
        "timeout": chosen.timeout,
        "grace": chosen.grace,
    }
    if chosen.kind != "hostile":
        options = {"seed": chosen.seed}
    indices = chosen.only or list(range(chosen.count or KINDS[chosen.kind][0]))
    if chosen.chosen_kind is not None:
        options["kinds"] = [chosen.chosen_kind] * (max(indices) + 1)
    if chosen.keep is not None:
        from tests.stress.mutate import make_case

        chosen.keep.mkdir(parents=True, exist_ok=True)
        for index in indices:
            data = make_case(chosen.seed, index).data
            (chosen.keep / f"{chosen.seed}-{index}.onnx").write_bytes(data)
    started = time.monotonic()
    done, after = run(chosen.kind, indices, options, chosen.jobs, chosen.records)
    if chosen.only:
        print(json.dumps(done, indent=1))
    command = f"python -m tests.stress {' '.join(sys.argv[1:])}"
    print(report.header(command, time.monotonic() - started), end="\n\n")
    print(getattr(report, chosen.kind)(done), end="\n\n")
    print(report.problems(done, after))
    return 1 if after or any(record["problems"] for record in done) else 0


if __name__ == "__main__":
    sys.exit(main())
