"""Hostile models through the process executor."""

from __future__ import annotations

import hashlib
import pickle
import re
import resource
from typing import TYPE_CHECKING, Any

from tests.stress.experiment import Experiment
from tests.stress.leaks import files_in
from tests.stress.mutate import lay_out, make_case
from tests.stress.sound import Watched
from trt_widget import Build, BuildCancelled, BuildCrashed, BuildError

if TYPE_CHECKING:
    from pathlib import Path

#: Address space that the workers, and so the builders, may have. The package has no such option: a
#: soft limit that a process sets for itself is inherited by every process that it starts.
ADDRESS_SPACE = 4 << 30


class Hostile(Experiment):
    """One mutated model each; ``timeout`` and ``grace`` are the builds'."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, hard))

    def run(self, index: int, folder: Path) -> dict[str, Any]:
        case = make_case(self.seed, index)
        path = lay_out(case, folder)
        before = files_in(folder)
        record = build_it(
            path,
            timeout=self.options["timeout"],
            grace=self.options["grace"],
            output=folder / "engine" if index % 4 == 0 else None,
        )
        if record["outcome"] == "engine" and index % 4 == 0:
            (folder / "engine").unlink()
        left = files_in(folder)
        if left != before:
            record["problems"].append(f"files: {sorted(set(left) ^ set(before))}")
        if case.refused and record["outcome"] != "SourceError":
            record["problems"].append(f"weights from {case.note}: {record['outcome']}")
        record.update(kind=case.kind, origin=case.origin, note=case.note, size=len(case.data))
        return record


def build_it(path: Path, **options: Any) -> dict[str, Any]:
    """Build a model whatever it is; give what came of it."""
    record: dict[str, Any] = {"problems": [], "peak": None, "seconds": 0.0}
    try:
        build = Build(path, executor="process", exclusive=False, **options)
    except BuildError as error:
        record.update(outcome=type(error).__name__, cause=error.cause[:300], constructor=True)
        return record
    watched = Watched(build)
    build.start()
    build.wait_ended()
    result = build.result
    assert result is not None
    record["problems"] += watched.problems()
    record.update(outcome=outcome_of(build), peak=result.peak_memory_bytes)
    record["seconds"] = round(result.duration_s, 3)
    error = result.error
    if error is not None:
        record["cause"] = error.cause[:300]
        assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    if isinstance(error, BuildCrashed):
        record["crash"] = crash_kind(error)
        record["output"] = error.output[-2000:]
        record["messages"] = list(error.messages)[-5:]
    return record


def outcome_of(build: Build) -> str:
    """Name the outcome of an ended build."""
    result = build.result
    assert result is not None
    error = result.error
    if error is None:
        return "engine"
    if isinstance(error, BuildCrashed):
        how = error.signal or f"exit code {error.exit_code}"
        return f"BuildCrashed, {how}, {error.phase or 'before the first phase'}"
    if isinstance(error, BuildCancelled):
        return f"BuildCancelled, {error.reason}, {result.ended_by}"
    return type(error).__name__


def crash_kind(error: BuildCrashed) -> str:
    """Name what killed a builder, the same for the same defect as far as that can be told."""
    said = [text for text in error.messages if re.search("[a-z]{3}", text)]
    words = said[-1] if said else ""
    words = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", "#", words)[:300]
    digest = hashlib.sha256(words.encode()).hexdigest()[:6]
    return f"{error.signal or error.exit_code}, {error.phase or 'parse'}, {digest}"
