"""A queue without its builds: what is checked, what comes next, what is left."""

from __future__ import annotations

import gc
import math
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import models
from trt_widget import (
    BuildQueue,
    BuildStateError,
    OptionError,
    OutputError,
    ProfileError,
    SourceError,
    UnknownOptionError,
)
from trt_widget import build_queue as queue_module
from trt_widget._files import map_file, save_identified
from trt_widget.backend import Backend, Gpu
from trt_widget.build_queue import UnknownJobError, _devices_of
from trt_widget.queue_cluster import _slots_of, in_flight
from trt_widget.queue_estimate import Outlook, State, outlook, time_left
from trt_widget.queue_jobs import file_name
from trt_widget.queue_plan import Plan
from trt_widget.queue_store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = models.mlp()


# ------------------------------------------------------------------ what is checked


@pytest.mark.parametrize(
    ("jobs", "options", "kind", "said"),
    [
        ({}, {}, OptionError, "no jobs"),
        ([MODEL], {}, OptionError, "a list, not a dict"),
        ({1: MODEL}, {}, OptionError, "not text"),
        ({" ": MODEL}, {}, OptionError, "it is empty"),
        ({"\ud800": MODEL}, {}, OptionError, "no valid Unicode"),
        ({"a": {}}, {}, OptionError, "Job 'a': There is no source"),
        ({"a": {"source": MODEL, 5: 1}}, {}, OptionError, "Job 'a': An argument's name"),
        ({"a": MODEL, "b": "missing.onnx"}, {}, SourceError, "Job 'b': There is no file"),
        ({"a\0": MODEL}, {}, OptionError, "it has a NUL"),
        ({"a": {"source": MODEL, "nmae": 1}}, {}, UnknownOptionError, "Job 'a': There is no opt"),
        ({"a": MODEL}, {"optimization_level": 9}, OptionError, "BuildQueue: optimization_level=9"),
        ({"a": {"source": MODEL, "optimization_level": 9}}, {}, OptionError, "Job 'a': optimiz"),
        ({"a": {}}, {"source": "missing.onnx"}, SourceError, "BuildQueue: There is no file"),
        ({"a": MODEL}, {"client": 5}, OptionError, "BuildQueue: client= must be"),
        ({"a": MODEL}, {"engine_cache": 5}, OptionError, "BuildQueue: engine_cache=5"),
        ({"a": MODEL}, {"engine_cache": __file__}, OptionError, "BuildQueue: engine_cache= is a f"),
        ({"a": {"source": MODEL, "workers": 1}}, {}, OptionError, "Job 'a': workers= belongs to"),
        ({"a": {"source": MODEL, "name": "x"}}, {}, OptionError, "is its key in the dict"),
        ({"a": {"source": MODEL, "profiles": {}}}, {}, ProfileError, "Job 'a': profiles is emp"),
        ({"a": {"source": MODEL, "client": object()}}, {}, OptionError, "Job 'a': client= is for"),
        ({"a": MODEL}, {"reschedules": 2}, OptionError, "BuildQueue: reschedules= is for a s"),
        ({"a": MODEL}, {"workers": 0}, OptionError, "workers=0"),
        ({"a": MODEL}, {"workers": True}, OptionError, "workers=True"),
        ({"a": MODEL}, {"retries": -1}, OptionError, "retries=-1"),
        ({"a": MODEL}, {"per_device": 1.5}, OptionError, "per_device=1.5"),
        ({"a": MODEL}, {"devices": []}, OptionError, "devices="),
        ({"a": MODEL}, {"devices": "01"}, OptionError, "devices='01'"),
        ({"a": MODEL}, {"devices": 1}, OptionError, "devices=1"),
        ({"a": MODEL}, {"devices": [0, 0]}, OptionError, "devices="),
        ({"a": MODEL}, {"devices": [0, None]}, OptionError, "devices="),
        ({"a": MODEL}, {"resources": {"GPU": 1}}, OptionError, "resources= is for client="),
        ({"a": MODEL}, {"client": 1, "devices": [0]}, OptionError, "devices= is for child"),
        ({"a": MODEL}, {"name": 5}, OptionError, "name=5"),
        ({"a": MODEL}, {"output_dir": 5}, OptionError, "output_dir=5"),
        ({"a": MODEL}, {"output_dir": __file__}, OutputError, "no such folder can be made"),
        ({"a": MODEL}, {"output_dir": __file__ + "/x"}, OutputError, "is a file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    jobs: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        BuildQueue(jobs, **options)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert caught.value.remedy  # type: ignore[attr-defined]  # all kinds have one


@pytest.mark.parametrize(
    ("own", "given", "meant"),
    [
        ({}, {"worker": 3}, "workers"),
        ({}, {"wrokers": 3}, "workers"),
        ({}, {"outputdir": "."}, "output_dir"),
        ({}, {"sorce": MODEL}, "source"),
        ({}, {"profile": {}}, "profiles"),
        ({"sorce": MODEL}, {}, "source"),
        ({"outputs": "x"}, {}, "output"),
    ],
)
def test_a_slip_is_set_right_by_what_could_be_meant(
    own: dict[str, Any], given: dict[str, Any], meant: str
) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        BuildQueue({"a": own}, **given)
    assert caught.value.nearest == meant
    assert caught.value.cause.startswith("Job 'a': " if own else "BuildQueue: ")
    assert f"Did you mean {meant!r}?" in caught.value.remedy


def test_a_folder_is_made_at_the_start_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with pytest.raises(SourceError):
        BuildQueue({"a": "missing.onnx"}, output_dir=folder)
    queue = BuildQueue({"a": MODEL}, output_dir=folder)
    assert queue["a"].output == folder / "a.engine"
    assert not folder.parent.exists()
    folder.parent.write_text("in the way")
    with pytest.raises(OutputError, match="no such folder can be made"):
        queue.start()
    assert (queue.status, queue.waiting_for) == ("pending", None)
    assert not queue_module._LINES.all()


def test_a_model_that_many_jobs_share_is_copied_once() -> None:
    data = MODEL.SerializeToString()
    for shared in (bytearray(data), memoryview(bytearray(data))):
        queue = BuildQueue({"a": {}, "b": shared, "c": {"source": bytearray(data)}}, source=shared)
        a, b, c = (job.source.value for job in queue.jobs.values())
        assert a is b
        assert a is not c
        shared[:4] = b"gone"
        assert a == c == data
    shared = models.mlp()
    queue = BuildQueue({"a": {}, "b": {}, "c": models.convnet()}, source=shared)
    a, b, c = (job.source for job in queue.jobs.values())
    assert a.value is b.value
    assert (a.kind, c.kind) == ("bytes", "proto")  # one of its own is read when it is built
    shared.graph.name = "changed"
    assert a.value == data
    kept = BuildQueue({"a": data, "b": data})
    assert kept["a"].source.value is kept["b"].source.value is data


def test_two_jobs_do_not_write_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    model = tmp_path / "m.onnx"
    model.write_bytes(MODEL.SerializeToString())
    same = {
        "a": {"source": MODEL, "output": tmp_path / "x.engine"},
        "b": {"source": MODEL, "output": str(tmp_path / "link" / "." / "x.engine")},
    }
    with pytest.raises(OptionError, match=r"The jobs 'a' and 'b' write to the same file"):
        BuildQueue(same)
    with pytest.raises(OptionError, match=r"The jobs 'a/b' and 'a:b' write to the same file"):
        BuildQueue({"a/b": MODEL, "a:b": MODEL}, output_dir=tmp_path)
    with pytest.raises(OptionError, match="'net' and 'NET'"):
        BuildQueue({"net": MODEL, "NET": MODEL}, output_dir=tmp_path)
    with pytest.raises(OptionError, match="write to the same file"):
        BuildQueue({"\uac00": MODEL, "\u1100\u1161": MODEL}, output_dir=tmp_path)
    with pytest.raises(OutputError, match=r"The output of job 'b' is the model of job 'a'"):
        BuildQueue({"a": model, "b": {"source": MODEL, "output": model}})
    # The same model twice, and two files of one folder, are nothing wrong.
    BuildQueue({"a": model, "b": model}, output_dir=tmp_path / "new" / "folder")


@given(st.text(max_size=300))
def test_every_name_makes_a_file_name(name: str) -> None:
    made = file_name(name)
    assert made == Path(made).name
    assert made not in {"", ".", ".."}
    assert len(made.encode("utf-8", "surrogatepass")) < 200
    assert made.isprintable()
    assert not made.endswith((".", " "))


def test_names_of_files() -> None:
    assert file_name("r50-o3 (fp16)") == "r50-o3 _fp16_"
    assert file_name("größe") == "größe"
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("CON") == "_CON"
    assert file_name("nul.x") == "_nul.x"
    assert file_name("...") == "_"


def test_defaults_and_what_a_job_says_itself(tmp_path: Path) -> None:
    queue = BuildQueue(
        {"a": {"optimization_level": 1}, "b": {}, "c": {"source": models.convnet()}},
        source=MODEL,
        optimization_level=2,
        output_dir=tmp_path,
        name="sweep",
    )
    assert [job.options.optimization_level for job in queue.jobs.values()] == [1, 2, 2]
    assert [job.output for job in queue.jobs.values()] == [
        tmp_path / "a.engine",
        tmp_path / "b.engine",
        tmp_path / "c.engine",
    ]
    assert queue["a"].source.value is queue["b"].source.value
    assert queue["a"].source.value == MODEL.SerializeToString()
    assert queue["c"].source.value is not MODEL
    assert (list(queue), len(queue), "a" in queue, "z" in queue) == (
        ["a", "b", "c"],
        3,
        True,
        False,
    )
    assert repr(queue) == "BuildQueue('sweep', 3 jobs)"
    assert repr(queue["a"]) == "Job('a', pending)"
    said = r"sweep has no job 'aa' among its 3 jobs(.|\n)*Did you mean 'a'"
    with pytest.raises(UnknownJobError, match=said):
        queue["aa"]
    with pytest.raises(KeyError):
        queue.request_cancel("zzz")
    with pytest.raises(ValueError, match="not a reason"):
        queue.request_cancel(reason="boredom")
    with pytest.raises(TypeError):
        queue.jobs["d"] = queue["a"]  # type: ignore[index]  # it is read-only
    with pytest.raises(BuildStateError, match="not started"):
        queue.wait()


def test_a_job_may_have_no_client_of_its_own() -> None:
    queue = BuildQueue({"a": MODEL})
    assert getattr(queue["a"].options, "client", None) is None


def test_what_a_queue_tells_before_its_start() -> None:
    queue = BuildQueue({"a": MODEL, "<b>": models.convnet()})
    results = queue.results()
    assert list(results.index) == ["a", "<b>"]
    assert results.index.name == "job"
    assert dict(results.dtypes.astype(str)) == {
        "status": "object",
        "model": "object",
        "duration_s": "float64",
        "engine": "object",
        "engine_bytes": "Int64",
        "error": "object",
        "error_type": "object",
        "attempts": "int64",
        "cached": "bool",
        "reason": "object",
        "where": "object",
        "backend": "object",
        "version": "object",
        "layers": "Int64",
        "peak_memory_bytes": "Int64",
        "started": "datetime64[ns, UTC]",
        "ended": "datetime64[ns, UTC]",
    }
    assert set(results["status"]) == {"pending"}
    assert list(results["model"]) == [queue[name].source.display_name for name in queue]
    assert str(queue).splitlines()[0] == f"{queue.name}: 2 pending"
    assert list(queue.timings.columns[:3]) == ["job", "phase", "path"]
    assert queue.timings.empty
    assert (queue.progress, queue.eta_s, queue.basis) == (0.0, None, None)
    assert queue.counts()["pending"] == 2
    row = queue.rows()[1]
    assert (row.index, row.name, row.status, row.attempts, row.error) == (
        1,
        "<b>",
        "pending",
        0,
        "",
    )
    shown = queue._repr_mimebundle_()
    assert set(shown) == {"text/plain", "text/html"}
    assert "&lt;b&gt;" in shown["text/html"]
    assert "<b>" not in shown["text/html"]


def test_what_is_cancelled_before_the_start_ends_at_once() -> None:
    queue = BuildQueue({"a": MODEL, "b": MODEL})
    told: list[tuple[frozenset[str], str]] = []
    queue.subscribe(lambda changed: told.append((changed, queue.status)))
    assert queue.request_cancel("a")
    assert not queue.request_cancel("a")
    assert queue.status == "pending"
    assert not told
    assert queue.request_cancel(pending=True, reason="interrupt")
    assert told == [(frozenset({"a", "b"}), "cancelled")]
    assert (queue.status, queue.progress) == ("cancelled", 0.0)
    assert [job.result.reason for job in queue.jobs.values()] == ["user", "interrupt"]
    assert queue.start() is queue
    queue.wait(1)
    results = queue.results()
    assert list(results["error_type"]) == ["BuildCancelled"] * 2
    assert results["started"].isna().all()
    assert not results["ended"].isna().any()
    assert list(results["attempts"]) == [0, 0]


def test_five_hundred_jobs_weigh_little_before_they_run() -> None:
    jobs = {f"job {number}": MODEL for number in range(500)}
    gc.collect()
    before = len(gc.get_objects())
    queue = BuildQueue(jobs)
    gc.collect()
    assert len(gc.get_objects()) - before < 500 * 12
    assert len(queue.rows()) == 500


# ------------------------------------------------------------------ what comes next


class _Tape:
    """Drives a plan as a queue does, with whatever happens, and keeps count."""

    def __init__(self, plan: Plan, wishes: list[int | None], retries: int) -> None:
        self.plan, self.wishes, self.retries = plan, wishes, retries
        self.where: dict[int, int | None] = {}
        self.begun: dict[int, int] = dict.fromkeys(range(len(wishes)), 0)
        self.ended: list[int] = []
        self.first_starts: list[int] = []
        self.cancelled: set[int] = set()

    def begin_all(self) -> None:
        while True:
            waiting = self.plan.pending
            start = self.plan.next()
            if start is None:
                break
            if not self.begun[start.job]:
                self.first_starts.append(start.job)
            self.begun[start.job] += 1
            assert start.job not in self.ended
            assert start.job not in self.where
            wish = self.wishes[start.job]
            assert start.device == wish if wish is not None else True
            # Whoever stands before it could not begin: its device was busy.
            for other in waiting[: waiting.index(start.job)]:
                assert self.is_blocked(other)
            self.where[start.job] = start.device
            self.check()
        if len(self.where) < self.plan.workers:
            assert all(self.is_blocked(job) for job in self.plan.pending)

    def load(self, device: int | None) -> int:
        return sum(taken == device for taken in self.where.values())

    def is_blocked(self, job: int) -> bool:
        most = self.plan.per_device
        wish = self.wishes[job]
        wanted = self.plan.devices if wish is None else (wish,)
        return bool(wanted) and most is not None and all(self.load(d) >= most for d in wanted)

    def check(self) -> None:
        assert len(self.where) <= self.plan.workers
        assert set(self.plan.running) == set(self.where)
        for device in {d for d in self.where.values() if d is not None}:
            assert self.plan.per_device is None or self.load(device) <= self.plan.per_device

    def end(self, job: int, *, crash: bool) -> None:
        again = self.plan.end(job, again=crash)
        del self.where[job]
        may = crash and job not in self.cancelled and self.begun[job] <= self.retries
        assert again == may
        if again:
            assert self.plan.pending[0] == job
        else:
            self.ended.append(job)

    def cancel(self, job: int) -> None:
        self.cancelled.add(job)
        waited = job in self.plan.pending
        assert self.plan.cancel(job) == waited
        if waited:
            self.ended.append(job)


@settings(max_examples=200, deadline=None)
@given(
    wishes=st.lists(st.one_of(st.none(), st.integers(0, 2)), min_size=1, max_size=12),
    workers=st.integers(1, 4),
    devices=st.lists(st.integers(0, 2), unique=True, max_size=3),
    per_device=st.one_of(st.none(), st.integers(1, 2)),
    retries=st.integers(0, 2),
    data=st.data(),
)
def test_whatever_happens_every_job_ends_once_and_no_limit_is_passed(  # noqa: PLR0917 - hypothesis names them
    wishes: list[int | None],
    workers: int,
    devices: list[int],
    per_device: int | None,
    retries: int,
    data: st.DataObject,
) -> None:
    plan = Plan(wishes, retries=retries)
    tape = _Tape(plan, wishes, retries)
    assert plan.next() is None  # nothing begins before the machine is known
    plan.workers, plan.devices, plan.per_device = workers, tuple(devices), per_device
    while not plan.is_over:
        tape.begin_all()
        assert tape.where, "something waits, and nothing runs"
        deed = data.draw(st.sampled_from(["end", "crash", "cancel"]))
        if deed == "cancel":
            tape.cancel(data.draw(st.sampled_from([*plan.running, *plan.pending])))
        else:
            tape.end(data.draw(st.sampled_from(list(tape.where))), crash=deed == "crash")
    assert sorted(tape.ended) == list(range(len(wishes)))
    assert plan.next() is None
    if per_device is None and not devices:
        assert tape.first_starts == sorted(tape.first_starts)


def test_jobs_without_a_device_get_the_first_that_is_free() -> None:
    plan = Plan([None, 0, None, None, 1])
    plan.workers, plan.devices, plan.per_device = 5, (0, 1), 1
    assert [plan.next(), plan.next(), plan.next()] == [(0, 0), (2, 1), None]
    plan.end(0)
    assert [plan.next(), plan.next()] == [(1, 0), None]
    plan.end(2)
    assert plan.next() == (3, 1)
    copy = plan.copy()
    copy.end(3)
    assert copy.next() == (4, 1)
    assert (plan.pending, plan.running) == ((4,), (1, 3))
    plan.put_back([1, 3])
    assert (plan.pending, plan.running) == ((1, 3, 4), ())
    assert plan.next() == (1, 0)


def test_gpus_of_one_kind_share_the_work_and_others_do_not() -> None:
    def gpu(name: str) -> Gpu:  # there is none here to be asked
        return Gpu(0, name, "SM90")

    assert _devices_of(()) == ()
    assert _devices_of((gpu("A"), gpu("A"))) == (0, 1)
    assert _devices_of((gpu("A"), gpu("B"))) == (0,)


def test_builds_that_time_nothing_are_not_counted_by_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(0, "A", "SM90")  # there is none here
    monkeypatch.setattr(queue_module, "gpus_apart", lambda _cancelled: (gpu,))
    queue = BuildQueue({"a": MODEL, "b": MODEL})
    queue._look_around()
    assert (queue._plan.devices, queue._plan.per_device) == ((), None)
    assert queue._plan.workers == max(1, queue_module._cores() // 2)
    build = queue._make_build(queue["a"], None)
    assert (build.options.device, build.options.exclusive) == (None, False)
    counted = BuildQueue({"a": MODEL, "b": MODEL}, per_device=1)
    counted._look_around()
    assert (counted._plan.devices, counted._plan.per_device) == ((0,), 1)


@pytest.mark.parametrize(
    ("given", "workers", "devices", "per_device", "exclusive"),
    [
        ({}, 2, (0, 1), 1, None),
        ({"per_device": 3}, 6, (0, 1), 3, False),
        ({"devices": [1]}, 1, (1,), 1, None),
        ({"workers": 4}, 4, (0, 1), 1, None),
    ],
)
def test_a_machine_with_two_gpus(  # noqa: PLR0917 - pytest names them
    given: dict[str, Any],
    workers: int,
    devices: tuple[int, ...],
    per_device: int,
    exclusive: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(0, "A", "SM90")
    # There is none here, and no full TensorRT, which is the one that times tactics on it.
    monkeypatch.setattr(
        queue_module, "gpus_apart", lambda _cancelled: (gpu, gpu._replace(number=1))
    )
    monkeypatch.setattr(Backend, "needs_gpu", True)
    queue = BuildQueue({"a": MODEL, "b": MODEL, "c": {"source": MODEL, "device": 1}}, **given)
    queue._look_around()
    plan = queue._plan
    assert (plan.workers, plan.devices, plan.per_device) == (workers, devices, per_device)
    starts = list(iter(plan.next, None))
    build = queue._make_build(queue["a"], starts[0].device)
    assert build.options.device == starts[0].device == devices[0]
    assert build.options.exclusive is exclusive
    assert build.name == "a"
    own = queue._make_build(queue["c"], 1)
    assert own.options.device == 1


def test_a_machine_without_a_gpu() -> None:
    queue = BuildQueue({"a": MODEL, "b": {"source": MODEL, "exclusive": True}})
    queue._look_around()
    assert queue._plan.workers == max(1, len(os.sched_getaffinity(0)) // 2)
    assert (queue._plan.devices, queue._plan.per_device) == ((), None)
    assert queue._make_build(queue["a"], None).options.exclusive is False
    assert queue._make_build(queue["b"], None).options.exclusive is True


def test_how_many_builds_a_cluster_is_handed() -> None:
    worker: Mapping[str, Any] = {"nthreads": 4, "resources": {"GPU": 2.0, "MEMORY": 100}}
    assert _slots_of(worker, None) == 4
    assert _slots_of(worker, {"GPU": 1}) == 2
    assert _slots_of(worker, {"GPU": 1, "MEMORY": 60}) == 1
    assert _slots_of(worker, {"TPU": 1}) == 0
    assert _slots_of({"nthreads": 2}, {"GPU": 1}) == 0
    assert [in_flight(0), in_flight(3), in_flight(40)] == [8, 8, 80]


# ------------------------------------------------------------------ the time left


def _plan(jobs: int, workers: int, running: int = 0) -> Plan:
    plan = Plan([None] * jobs)
    plan.workers = workers
    for _ in range(running):
        assert plan.next() is not None
    return plan


def test_the_time_left_is_that_of_the_queues_own_order() -> None:
    plan = _plan(4, 2, running=2)
    # 0 ends after 1 s, then 2 runs till 6; 1 ends after 3 s, then 3 runs till 4.
    assert time_left(plan, {0: 1.0, 1: 3.0}, {2: 5.0, 3: 1.0}) == 6.0
    assert plan.pending == (2, 3)
    assert time_left(Plan([None]), {}, {0: 1.0}) is None


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_the_time_left_lies_between_the_bounds_of_any_schedule(
    seconds: list[float], workers: int
) -> None:
    left = time_left(_plan(len(seconds), workers), {}, dict(enumerate(seconds)))
    least = max(*seconds, sum(seconds) / workers)
    assert left is not None
    assert least * (1 - 1e-9) <= left <= 2 * least * (1 + 1e-9)


def test_what_is_known_of_the_others_and_where_from() -> None:
    plan = _plan(3, 1, running=1)
    pending, running = State("pending", "m"), State("running", "m", elapsed_s=1.0)
    nothing = outlook(plan, [running, pending, pending], {})
    assert (nothing.eta_s, nothing.basis) == (None, None)
    some = outlook(plan, [running, pending, pending], {0: 4.0, 1: 4.0})
    assert some.eta_s is None  # of the last one nothing is known
    known = outlook(plan, [running, pending, pending], {0: 4.0, 1: 5.0, 2: 6.0})
    assert known == (pytest.approx(1 / 15), 14.0, "from earlier builds")
    late = State("running", "m", elapsed_s=100.0)
    assert outlook(plan, [late, pending, pending], {0: 4.0, 1: 5.0, 2: 6.0}).eta_s == 11.2
    told = State("running", "m", elapsed_s=1.0, eta_s=9.0, progress=0.1)
    assert outlook(plan, [told, pending, pending], {0: 4.0, 1: 5.0, 2: 6.0}).eta_s == 20.0


def test_ended_builds_stand_for_those_that_wait() -> None:
    plan = _plan(4, 1, running=1)
    plan.end(0)
    plan.next()
    done = State("ended", "m", progress=1.0, took_s=10.0)
    mine, other = State("pending", "m"), State("pending", "n")
    running = State("running", "m", elapsed_s=4.0)
    found = outlook(plan, [done, running, mine, mine], {})
    assert found == (pytest.approx(14 / 40), 26.0, "from builds of the same model in this queue")
    # One build says too little about those of other models.
    assert outlook(plan, [done, running, mine, other], {2: 1.0}).eta_s is None
    failed = State("ended", "m", progress=1.0)
    assert outlook(plan, [failed, running, mine, mine], {}).eta_s is None
    cancelled = State("ended", "m", progress=0.0)
    over = outlook(Plan([]), [done, cancelled], {})
    assert over == (0.5, None, None) or over.eta_s == 0.0
    assert over.progress == 0.5


def test_what_the_engine_cache_has_takes_as_long_as_its_answers() -> None:
    plan = _plan(6, 1, running=1)
    for _ in range(2):
        plan.end(plan.running[0])
        plan.next()
    built = State("ended", "m", progress=1.0, took_s=20.0, same=1)
    answered = State("ended", "m", progress=1.0, same=1, answered_s=0.5)
    running = State("running", "m", elapsed_s=0.1, same=1)
    again, other = State("pending", "m", same=1), State("pending", "m", same=2)
    found = outlook(plan, [built, answered, running, again, again, again], {3: 30.0})
    assert found.eta_s == pytest.approx(0.4 + 3 * 0.5)
    assert found.basis == "from answers of the engine cache"
    # Another build of the same model takes what such a build took.
    found = outlook(plan, [built, answered, running, again, again, other], {})
    assert found.eta_s == pytest.approx(0.4 + 2 * 0.5 + 20.0)
    assert found.basis == (
        "3 from answers of the engine cache, 1 from builds of the same model in this queue"
    )
    # One that takes much longer than an answer is built after all.
    late = running._replace(elapsed_s=5.0)
    found = outlook(plan, [built, answered, late, again, again, again], {})
    assert found.eta_s == pytest.approx(15.0 + 3 * 0.5)
    # Without any answer so far nobody knows how long one takes.
    found = outlook(plan, [built, built, running, again, again, again], {})
    assert found.eta_s == pytest.approx(19.9 + 3 * 20.0)


def test_which_jobs_are_the_same_build_to_the_engine_cache() -> None:
    queue = BuildQueue(
        {
            "a": {},
            "b": {},
            "level": {"optimization_level": 5},
            "off": {"engine_cache": False},
            "model": {"source": models.mlp(layers=3)},
            "function": {"configure": models.configure_slowly},
        },
        source=MODEL,
    )
    marks = [job.same for job in queue.jobs.values()]
    assert marks[0] == marks[1]
    assert marks[0] is not None
    assert len(set(marks)) == 4
    assert (queue["off"].same, queue["function"].same) == (None, None)


def _unlike(took: list[float], *others: State) -> Outlook:
    """Give the outlook of a build of a new model, after some of models of their own."""
    ended = [State("ended", index, progress=1.0, took_s=s) for index, s in enumerate(took)]
    states = [*ended, State("running", 0, elapsed_s=4.0), *others, State("pending", "new")]
    plan = Plan([None] * len(states))
    plan.workers = len(ended) + 1 + len(others)
    for _ in range(plan.workers):
        plan.next()
    for index in range(len(ended)):
        plan.end(index)
    plan.workers = 1 + len(others)
    return outlook(plan, states, {index: 50.0 for index, s in enumerate(states) if s in others})


def test_builds_of_other_models_say_something_where_they_are_alike() -> None:
    like = _unlike([10.0, 12.0, 14.0])
    assert like.eta_s == 18.0  # 6 of the one that runs, and 12 after it
    assert like.basis == (
        "1 from builds of the same model in this queue, 1 from the builds of this queue so far"
    )
    assert _unlike([10.0, 12.0]).eta_s is None  # too few
    assert _unlike([5.0, 6.0, 15.1]).eta_s is None  # too unlike
    assert _unlike([5.0, 6.0, 15.0]).eta_s is not None
    # What runs, and has taken longer than they all: three tiny builds say nothing of large ones.
    small = [1.0, 1.1, 1.2]
    assert _unlike(small, State("running", "large", elapsed_s=2.9)).eta_s is not None
    assert _unlike(small, State("running", "large", elapsed_s=3.1)).eta_s is None
    assert _unlike(small, State("running", 1, elapsed_s=30.0)).eta_s is not None  # a known model


@given(
    st.lists(
        st.builds(
            State,
            st.sampled_from(["pending", "running", "ended"]),
            st.integers(0, 2),
            st.one_of(st.none(), st.floats(0, 1e4)),
            st.one_of(st.none(), st.floats(0, 1e4)),
            st.one_of(st.none(), st.floats(0, 1)),
        ),
        max_size=8,
    ),
    st.dictionaries(st.integers(0, 7), st.floats(0, 1e4)),
)
def test_a_progress_is_a_share_whatever_is_known(
    states: list[State], earlier: dict[int, float]
) -> None:
    plan = Plan([None] * len(states))
    plan.workers = len(states) + 1
    for index, state in enumerate(states):
        if state.status == "ended":
            plan.cancel(index)
    # Those that run first, so that the plan and the states agree.
    order = [i for i, s in enumerate(states) if s.status == "running"]
    started = {start.job for start in iter(plan.next, None)}
    for index in started - set(order):
        plan.end(index)
    found = outlook(plan, states, earlier)
    assert 0.0 <= found.progress <= 1.0
    assert found.eta_s is None or (math.isfinite(found.eta_s) and found.eta_s >= 0.0)


# ------------------------------------------------------------------ what is kept


def test_the_store_gives_back_what_it_got_and_takes_two_descriptors() -> None:
    gc.collect()
    before = psutil.Process().num_fds()
    store = Store()
    assert psutil.Process().num_fds() == before
    data = [os.urandom(size) for size in (1, 0, 70_000, 3, *range(100, 600))]
    pieces = [store.keep(part) for part in data]
    views = [store.get(piece) for piece in pieces]
    assert [bytes(view) for view in views] == data
    assert psutil.Process().num_fds() <= before + 2
    more = store.keep(b"more")
    assert bytes(store.get(more)) == b"more"
    assert views[2].readonly
    del store
    # What was handed out outlives it.
    assert [bytes(view) for view in views] == data
    del views
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_a_write_that_fails_leaves_the_store_as_it_was() -> None:
    store = Store()
    first = store.keep(b"first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="large"):
            store.keep(bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    second = store.keep(b"second")
    assert (bytes(store.get(first)), bytes(store.get(second))) == (b"first", b"second")
    assert second.offset < 200


def test_a_file_in_the_place_of_another_is_told_from_it(tmp_path: Path) -> None:
    path, identity = save_identified(b"one", tmp_path / "x.engine")
    assert bytes(map_file(path, identity)) == b"one"
    inode = path.stat().st_ino
    path.write_bytes(b"two")  # as where the inode of a file that is gone is given again
    os.utime(path, ns=(1, 1))
    assert path.stat().st_ino == inode
    with pytest.raises(OSError, match="another one by now"):
        map_file(path, identity)
