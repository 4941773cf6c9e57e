"""The recorded builds themselves: what the files hold, and that they come back as they were."""

from __future__ import annotations

import gzip
import json
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.bench import recorder
from tests.bench.progress import source
from tests.traces import (
    CALLBACKS,
    FOLDER,
    MNIST,
    SILENT_S,
    Trace,
    read,
    traces,
    write,
)
from trt_widget.events import (
    BuildEnded,
    NetworkReady,
    PhaseFinished,
    PhaseStarted,
    StepCompleted,
    expand,
)

if TYPE_CHECKING:
    from pathlib import Path

recorded = pytest.mark.parametrize("trace", traces(), ids=str)


def test_there_are_builds_of_all_networks_in_both_executors() -> None:
    here = {(trace.info["network"], trace.info["executor"]) for trace in traces()}
    wanted = {(name, how) for name in recorder.NETWORKS for how in recorder.EXECUTORS}
    assert wanted <= here
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    assert len({str(trace) for trace in traces()}) == len(traces())


@recorded
def test_a_file_says_what_was_recorded_and_where(trace: Trace, tmp_path: Path) -> None:
    info = trace.info
    assert {
        *("network", "executor", "package", "version", "device", "driver", "processor", "cores"),
        *("load", "date", "python", "system", "trt_widget"),
    } <= set(info)
    if info["device"] == "no GPU":
        assert info["driver"] == ""
    assert trace.end.status == "succeeded"
    assert trace.ready.layers > 0
    assert trace.events[0] is trace.ready
    assert trace.events[-1] is trace.end
    times = [event.time for event in trace.events]
    assert times == sorted(times)
    assert times[0] > 0.0
    # Nothing of whose machine it was.
    text = gzip.decompress((FOLDER / f"{trace}.jsonl.gz").read_bytes()).decode()
    assert tempfile.gettempdir() not in text
    assert not {"host", "pid"} & set(json.loads(text.splitlines()[0]))
    again = read(write(tmp_path, trace))
    assert again.events == trace.events
    assert again.info == trace.info


@recorded
def test_the_drains_bring_every_phase_and_the_last_steps(trace: Trace) -> None:
    singles = [
        single for _, batch in trace.batches() for event in batch for single in expand(event)
    ]
    for kind in (PhaseStarted, PhaseFinished):
        told = [event.phase for event in singles if isinstance(event, kind)]
        assert told == [event.phase for event in trace.callbacks if isinstance(event, kind)]
    steps = {
        event.phase: event.step for event in trace.callbacks if isinstance(event, StepCompleted)
    }
    assert steps == {
        event.phase: event.step for event in singles if isinstance(event, StepCompleted)
    }
    moments = [at for at, _ in trace.batches()]
    assert moments == sorted(moments)
    assert moments[-1] <= trace.duration_s
    for (before, _), (at, batch) in pairwise([(0.0, ()), *trace.batches()]):
        assert all(before - 0.1 <= event.time <= at for event in batch)


@recorded
def test_the_silent_share(trace: Trace) -> None:
    inside = trace.end.time - trace.ready.time
    gaps = trace.gaps()
    assert all(end - start > SILENT_S for start, end in gaps)
    assert trace.silent_share() == pytest.approx(sum(end - start for start, end in gaps) / inside)
    assert trace.silent_share(0.0) == pytest.approx(1.0)
    assert trace.silent_share(inside) == 0.0
    for start, end in gaps:
        assert not [event for event in trace.callbacks if start < event.time < end]
    if trace.info["device"] == "no GPU":  # TensorRT for RTX is silent most of the time
        assert trace.silent_share() > 0.5


def made(*events: PhaseStarted | StepCompleted | PhaseFinished) -> Trace:
    ready, end = NetworkReady(1.0, 3), BuildEnded(11.0, "succeeded", "completed")
    return Trace("made", {"network": "x"}, (ready, *events, end))


def test_silence_of_a_build_made_by_hand() -> None:
    trace = made(PhaseStarted(1.2, "a", None, 1), PhaseFinished(9.2, "a"))
    assert trace.gaps() == [(1.2, 9.2), (9.2, 11.0)]
    assert trace.silent_share() == pytest.approx(0.98)
    assert trace.silent_share(2.0) == pytest.approx(0.8)
    assert made().silent_share() == 1.0


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mnist\.jsonl\.gz: its first line is that of no trace"):
        read(MNIST)
    path = write(tmp_path, made())
    newer = gzip.decompress(path.read_bytes()).replace(b'"trace":1', b'"trace":2', 1)
    path.write_bytes(gzip.compress(newer))
    with pytest.raises(ValueError, match="no trace of version 1"):
        read(path)


SOUND = gzip.compress(b'{"trace":1}\n{"event":"end","time":1,"status":"x","ended_by":"y"}\n')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"trace": 1}\n', "Not a gzipped file"),
        (b"", "Expecting value"),
        (SOUND[:-4], "Compressed file ended before"),
        (SOUND[:10] + b"\xff" * 20, "Error -3 while decompressing"),
        (SOUND[:-8] + b"\0" * 8, "CRC check failed"),
        (gzip.compress(b""), "Expecting value"),
        (gzip.compress(b"[1, 2]\n"), "its first line is that of no trace of version 1"),
        (gzip.compress(b"7\n"), "its first line is that of no trace of version 1"),
        (gzip.compress(b"{}\n"), "its first line is that of no trace of version 1"),
        (gzip.compress(b"words\n"), "Expecting value"),
        (gzip.compress(b'{"trace": 1, "x": "\xff"}\n'), "can't decode byte"),
        (gzip.compress(b"[" * 100_000), "recursion"),
        (gzip.compress(b'{"trace":1}\n[]\n'), "expected a JSON object, found list"),
        (gzip.compress(b'{"trace":1}\n{"event":"start"}\n'), ""),
    ],
)
def test_what_is_no_trace_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^odd\.jsonl\.gz: .*{said}"):
        read(path)
    path.write_bytes(SOUND)
    assert read(path).duration_s == 1.0


def test_new_files_are_found_by_their_names(tmp_path: Path) -> None:
    assert traces(tmp_path) == ()
    later = Trace("b", {"network": "x"}, made().events)
    write(tmp_path, later)
    write(tmp_path, made())
    traces.cache_clear()
    assert [str(trace) for trace in traces(tmp_path)] == ["b", "made"]


@pytest.mark.parametrize("executor", recorder.EXECUTORS)
def test_recording_a_build(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--out", str(tmp_path / "new"), "--network", "mlp:3", "--executor", executor]
    assert recorder.main(command) == 0
    (trace,) = traces(tmp_path / "new")
    assert trace.info["network"] == "mlp:3"
    assert trace.info["device"] == "no GPU"
    assert trace.name.startswith("no-gpu_tensorrt-rtx-")
    assert trace.name.endswith(f"_mlp-3_{executor}")
    assert trace.name in capsys.readouterr().out
    kinds = [type(event) for event in trace.callbacks]
    assert kinds.count(PhaseStarted) == kinds.count(PhaseFinished) > 5
    assert kinds[0] is PhaseStarted
    assert kinds[-1] is PhaseFinished
    assert set(kinds) == set(CALLBACKS)
    times = [event.time for event in trace.events]
    assert times == sorted(times)
    assert len({event.thread for event in trace.callbacks}) == 1
    assert len(source("mlp:3")) > 100
