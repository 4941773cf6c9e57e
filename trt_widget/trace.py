"""A build's phases in the Trace Event Format, for Perfetto (https://ui.perfetto.dev).

The file is the format's JSON object: complete events ("X") for the phases and the silences in them,
instant events ("i") for TensorRT's warnings and errors, and names of the process and the threads as
metadata ("M"). Times are microseconds since the start of ``running``, with three decimals, that is,
whole nanoseconds.

Older versions of Perfetto look for an event's times with a simple reader of their own, which gives
the whole file up where it meets a character escaped by its number on the way. So the times stand
first, texts are UTF-8 as they are, and what would have to be escaped so is replaced by a sign.

Viewers stack the complete events of a thread by their times alone: two that overlap without one
holding the other are drawn wrongly. So phases that TensorRT ran at the same time go to threads of
their own (:func:`lanes`).
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from trt_widget._files import map_file
from trt_widget._text import line
from trt_widget.record import as_record, save_as

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trt_widget.build import Build
    from trt_widget.record import Record

__all__ = ["lanes", "to_chrome_trace"]

#: Threads that phases are spread over at most.
MAX_LANES: Final = 64
#: Warnings and errors that are shown, and the characters of each.
MAX_INSTANTS: Final = 1_000
MAX_TEXT: Final = 500
#: Events that are joined to one piece of the file.
_PIECE: Final = 2_000
#: The process's number, and the thread of the build's states; the phases' lanes come after it.
_PID: Final = 1
_STATES: Final = 1


def to_chrome_trace(build: Build | Record, path: str | os.PathLike[str]) -> Path:
    """Write the phases of a build as a trace that Perfetto and ``chrome://tracing`` open.

    Parameters
    ----------
    build
        A build, ended or not, or a record of one.
    path
        The file to write, usually ``*.json``.

    Returns
    -------
    pathlib.Path
        The absolute path that was written.

    Raises
    ------
    SaveError
        It could not be written; what was there before is intact.
    """
    record = as_record(build)
    lane_of = lanes(record)
    # Piece by piece to a file without a name, from which it is then saved whole.
    with tempfile.TemporaryFile() as file:
        for piece in _pieces(record, lane_of):
            file.write(piece.encode("utf-8"))
        file.flush()
        with map_file(os.dup(file.fileno())) as whole:
            return save_as("trace", whole, path)


def lanes(record: Record) -> list[int]:
    """Spread the instances so that those of one lane either hold each other or do not overlap.

    An instance goes where the one above it is, if it can. A build that runs one phase at a time
    needs a single lane.

    Returns
    -------
    list of int
        The lane of each instance, from 0; -1 past :data:`MAX_LANES`.
    """
    columns = record.span_columns
    starts, ends = nanoseconds(record)
    parents = columns["parent"]
    stacks: list[list[int]] = [[]]
    found: list[int] = []
    for index, (start, end, parent) in enumerate(zip(starts, ends, parents, strict=True)):
        home = found[parent] if parent >= 0 else 0
        for lane in (home, *range(len(stacks))):
            if lane < 0:
                continue
            stack = stacks[lane]
            while stack and stack[-1] != parent and ends[stack[-1]] <= start:
                stack.pop()
            if not stack or (stack[-1] == parent and end <= ends[parent]):
                stack.append(index)
                found.append(lane)
                break
        else:
            if len(stacks) < MAX_LANES:
                stacks.append([index])
            found.append(len(stacks) - 1 if stacks[-1] == [index] else -1)
    return found


def nanoseconds(record: Record) -> tuple[list[int], list[int]]:
    """Give start and end of every instance in whole nanoseconds; open ones end now."""
    columns, now = record.span_columns, record.now_s
    starts = [round(start * 1e9) for start in columns["start_s"]]
    ends = [round((now if end is None else end) * 1e9) for end in columns["end_s"]]
    return starts, ends


def _pieces(record: Record, lane_of: list[int]) -> Iterator[str]:
    """Give the file's text in pieces."""
    left_out = lane_of.count(-1) + record.spans_dropped
    other = {
        "build": line(record.name, MAX_TEXT),
        "status": record.status,
        "package": line(f"{record.backend} {record.version}"),
        "executor": line(record.executor),
        "trt_widget": line(record.writer),
        "phases_without_an_event": str(left_out),
    }
    yield f'{{"displayTimeUnit":"ms","otherData":{_json(other)},"traceEvents":[\n'
    batch = _metadata(record, max(lane_of, default=0) + 1)
    # Sorted each, and merged: a viewer that reads as it goes need not go back.
    merged = heapq.merge(
        _states(record),
        _phases(record, lane_of),
        _silences(record, lane_of),  # after the phases: an event stands after the one it lies in
        _instants(record),
        key=itemgetter(0),
    )
    for _, event in merged:
        batch.append(event)
        if len(batch) >= _PIECE:
            yield ",\n".join(batch) + ",\n"
            batch = []
    # There is always one: of the states' thread, at least, and it ends the list without a comma.
    batch.append(_meta("thread_sort_index", _STATES, {"sort_index": 0}))
    yield ",\n".join(batch) + "\n]}\n"


def _meta(kind: str, thread: int, arguments: dict[str, Any]) -> str:
    return _json({"ph": "M", "ts": 0, "pid": _PID, "tid": thread, "name": kind, "args": arguments})


def _metadata(record: Record, count: int) -> list[str]:
    title = line(f"{line(record.name)} ({record.backend} {record.version})", MAX_TEXT)
    events = [
        _meta("process_name", _STATES, {"name": title}),
        _meta("thread_name", _STATES, {"name": "build"}),
    ]
    for lane in range(count):
        thread = _STATES + 1 + lane
        name = "phases" if lane == 0 else f"phases at the same time ({lane + 1})"
        events += [
            _meta("thread_name", thread, {"name": name}),
            _meta("thread_sort_index", thread, {"sort_index": 1 + lane}),
        ]
    return events


def _states(record: Record) -> Iterator[tuple[int, str]]:
    """Give running and cancelling as events of a thread of their own."""
    now = round(record.now_s * 1e9)
    if "running" not in record.entered_at:
        return
    turn = now
    asked = record.entered_at.get("cancelling")
    if asked is not None:
        turn = min(max(round((asked - record.started_epoch) * 1e9), 0), now)
    for name, start, end in (("running", 0, turn), ("cancelling", turn, now)):
        if name == "running" or asked is not None:
            yield start, _complete(_json(name), "state", start, end, _STATES, "{}")


def _phases(record: Record, lane_of: list[int]) -> Iterator[tuple[int, str]]:
    columns = record.span_columns
    starts, ends = nanoseconds(record)
    names = [_json(line(name, MAX_TEXT)) for name in record.path_columns["name"]]
    rows = zip(
        starts,
        ends,
        lane_of,
        columns["path"],
        columns["steps"],
        columns["num_steps"],
        columns["self_s"],
        columns["status"],
        strict=True,
    )
    for start, end, lane, path, steps, announced, self_s, status in rows:
        if lane < 0:
            continue
        # Fixed keys and numbers, so that only the names need a JSON writer.
        arguments = (
            f'{{"steps":{steps},"num_steps":{announced},"self_ms":{self_s * 1e3:.3f},'
            f'"status":"{status}"}}'
        )
        yield start, _complete(names[path], "phase", start, end, _STATES + 1 + lane, arguments)


def _silences(record: Record, lane_of: list[int]) -> Iterator[tuple[int, str]]:
    """Give the times without a callback, each inside of the phase that was open."""
    columns = record.silence_columns
    if columns is None:
        return
    rows = zip(record.silent_spans(), columns["start_s"], columns["end_s"], strict=True)
    for span, start_s, end_s in rows:
        if span < 0 or lane_of[span] < 0:
            continue
        start, end = round(start_s * 1e9), round(end_s * 1e9)
        thread = _STATES + 1 + lane_of[span]
        yield start, _complete('"no callback"', "silence", start, end, thread, "{}")


def _complete(name: str, kind: str, start: int, end: int, thread: int, arguments: str) -> str:  # noqa: PLR0917 - the parts of one line, private
    return (
        f'{{"ph":"X","ts":{_micro(start)},"dur":{_micro(end - start)},"pid":{_PID},"tid":{thread},'
        f'"cat":"{kind}","name":{name},"args":{arguments}}}'
    )


def _micro(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _instants(record: Record) -> list[tuple[int, str]]:
    """Give the newest warnings and errors, and the moment at which TensorRT heard of the cancel."""
    found = [
        (round(message.time * 1e9), message.severity, message.message)
        for message in record.messages[-MAX_INSTANTS:]
    ]
    if record.cancel_delivered is not None:
        found.append((round(record.cancel_delivered * 1e9), "cancel", "step_complete said False"))
    found.sort(key=itemgetter(0))
    return [
        (
            time,
            (
                f'{{"ph":"i","ts":{_micro(time)},"s":"p","pid":{_PID},"tid":{_STATES},"cat":"log",'
                f'"name":{_json(line(f"{kind}: {text}", MAX_TEXT))},"args":{{}}}}'
            ),
        )
        for time, kind, text in found
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
