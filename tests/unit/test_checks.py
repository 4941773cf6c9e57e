"""What ``trt-widget check`` is made of, also what cannot be tried without a GPU."""

from __future__ import annotations

import ctypes
import io
import json
import math
import os
import re
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.run import BINDINGS, ROOT, STUBS
from tests.traces import mnist_events
from trt_widget import _checks, _sample
from trt_widget._checks import CHECKS, Check, NotRun, Subject, Unexpected, perform
from trt_widget._scrub import _known, scrub
from trt_widget.backend import Gpu
from trt_widget.commands.check import _announced, _Heard
from trt_widget.errors import OptionError
from trt_widget.events import PhaseFinished, PhaseStarted, StepCompleted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trt_widget.events import Event

# ---- the models ---------------------------------------------------------------------------------


def test_the_sample_is_a_sound_model_and_its_numbers_are_right() -> None:
    model = onnx.load_from_string(_sample.sample_model())
    onnx.checker.check_model(model, full_check=True)
    x = np.array(_sample.sample_input(), dtype=np.float32)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.allclose(y, _sample.expected(), rtol=1e-6)
    assert np.ptp(y) > 1  # a network that gives the same everywhere would prove nothing


def test_the_other_models_are_what_they_are_said_to_be() -> None:
    odd = onnx.load_from_string(_sample.unbuildable_model())
    assert [node.op_type for node in odd.graph.node] == ["NobodyKnowsThis"]
    endless = onnx.load_from_string(_sample.endless_model())
    assert len(endless.graph.node) == 1
    assert not endless.graph.output


# ---- what must not be told ----------------------------------------------------------------------


@pytest.fixture
def _someone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOGNAME", "karla")
    monkeypatch.setenv("HOME", "/home/karla b")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret.example.org")
    _known.cache_clear()
    yield
    _known.cache_clear()


@pytest.mark.usefixtures("_someone")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/opt/x/libnvinfer.so.11: cannot open", "…/libnvinfer.so.11: cannot open"),
        ("in /home/karla b/my models/x.onnx", "in …"),
        ("home: /home/karla b", "home: …"),
        ("'/home/karla b/x.py', line 3", "'…/x.py', line 3"),
        (r"at C:\Users\someone\x.dll!", "at …/x.dll!"),
        ("dlopen:/srv/acme/libx.so, file:///srv/acme/x.onnx", "…/libx.so, …"),
        ("LD_LIBRARY_PATH=/opt/a:/srv/acme/lib in", "LD_LIBRARY_PATH=… in"),
        ("-L/home/bob/x/y, //home/bob/x", "…, …"),
        (r"\\server\share\bob\x.dll", "…/x.dll"),
        (r"path:C:\Users\bob\x.dll and C:/bob", "path:…/x.dll and …"),
        ("a.b</home/bob/x>", "a.b<…>"),
        ("../acme/x; ./acme; ~bob/x; models/acme.onnx; a/b/c", "…; …; …; …; …"),
        ("/a/(b),c;d'|e/libx.so.1: no", "…/libx.so.1: no"),
        ("see '/home/o'bob b/x y.onnx', line 3", "see '…', line 3"),
        (
            "/opt/libnvinfer.so.11 needs /opt/liby.so, which",
            "…/libnvinfer.so.11 needs …/liby.so, which",
        ),
        ("/srv/acme models/an acme.onnx is gone", "… is gone"),
        ("/srv/a, b acme/x", "…, b …"),
        ("https://acme.org/x/y", "…"),
        ("KARLA's karla_models, Karla2: /HOME/KARLA B", "…'s …_models, …2: …"),
        ("Karlaesque", None),
        ("karla's build on secret.example.org (secret)", "…'s build on … (…)"),
        ("nothing to hide: a/b, 3/4, 3.5 MB/s, I/O", None),
        ('[6] creator && "Plugin not found" (2 > 1)', None),
        (f"{sys.prefix}/lib/python3/site-packages/x.py", "…/x.py"),
    ],
)
def test_no_path_and_no_name_is_left(text: str, said: str | None) -> None:
    assert scrub(text) == (text if said is None else said)


@pytest.mark.usefixtures("_someone")
def test_what_is_within_is_scrubbed_too() -> None:
    given = {"a": ["karla", {"b": "/x/y/z"}], "n": 3, "t": ("karla",), "none": None}
    assert scrub(given) == {"a": ["…", {"b": "…"}], "n": 3, "t": ["…"], "none": None}


#: Whatever is no separator of folders.
_SIGNS = st.text("ab1_.,;:|()[]{}<>'\"`=@#-+~…%&!?$*é^", max_size=3)
_AROUND = st.text("ab1 \n_.,;:|()[]{}<>'\"`=@#-+~…%&!?$*é^", max_size=8)
_BEGINS = ("/", "//", "\\", "\\\\", "C:\\", "C:/", "./", "../", "..\\", "~/", "-L/", "file:///")


@given(_AROUND, st.sampled_from(_BEGINS), _SIGNS, _SIGNS, _AROUND)
def test_folders_of_whatever_signs_are_hidden(
    before: str, begin: str, some: str, more: str, after: str
) -> None:
    """But spaces, of which the page speaks."""
    text = f"{before}{begin}srv{some}x/{more}acme{some}/models/x{after}"
    assert "acme" not in scrub(text)


@pytest.mark.parametrize("user", ["ok", "failed", "log", "user", "info", "event", "not"])
def test_words_of_the_protocol_stay_whatever_the_user_is_called(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", user)
    _known.cache_clear()
    words = {
        "status": "ok",
        "events": [
            {"event": "log", "severity": "info"},
            {"event": "status", "status": "failed", "reason": "user"},
        ],
    }
    try:
        assert scrub({**words, "seen": f"of {user}"}) == {**words, "seen": "of …"}
    finally:
        _known.cache_clear()


def test_where_no_folder_is_known_texts_are_scrubbed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone() -> None:
        raise FileNotFoundError

    monkeypatch.setattr("trt_widget._scrub.Path.cwd", gone)
    monkeypatch.setattr("trt_widget._scrub.Path.home", gone)
    monkeypatch.setattr("trt_widget._scrub.tempfile.gettempdir", gone)
    _known.cache_clear()
    try:
        assert scrub("in /a/b: no") == "in …: no"
    finally:
        _known.cache_clear()


# ---- what is sound ------------------------------------------------------------------------------

BEGIN = PhaseStarted(0.0, "root", None, 2)
END = PhaseFinished(1.0, "root")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "there was no callback"),
        ([BEGIN], "these phases did not end: ['root']"),
        ([BEGIN, StepCompleted(0.1, "root", 2), END], "step 2 of 2 in 'root'"),
        ([BEGIN, PhaseStarted(0.1, "leaf", "nobody", 1), END], "do not fit together"),
        ([BEGIN, END, END], "do not fit together"),
        ([BEGIN, StepCompleted(0.1, "nobody", 0), END], "do not fit together"),
    ],
)
def test_what_is_not_sound_is_told(events: list[Event], said: str) -> None:
    with pytest.raises(Unexpected) as caught:
        _checks._check_sound(events)
    assert said in str(caught.value)


def test_what_is_sound_is_given_as_a_tree() -> None:
    unknown = [PhaseStarted(0.1, "leaf", "root", 0), StepCompleted(0.2, "leaf", 7)]
    events = [BEGIN, *unknown, PhaseFinished(0.3, "leaf"), StepCompleted(0.4, "root", 1), END]
    assert _checks._check_sound(events).timing_columns()["count"] == [1, 1]


# ---- the process of a check ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "seen"),
    [
        (NotRun("why not"), "not run", "why not"),
        (Unexpected("what"), "failed", "what"),
        (OptionError("cause.", "remedy."), "failed", "cause.\nremedy."),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError: x"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt: "),
    ],
)
def test_whatever_a_check_raises_is_what_it_came_to(
    error: BaseException, status: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_subject: Subject) -> str:
        raise error

    monkeypatch.setattr(_checks, "CHECKS", (Check("x", "x", fail),))
    found = perform("x", "tensorrt_rtx")
    assert (found["status"], found["seen"]) == (status, seen)


def test_of_messages_the_first_and_the_latest_are_kept_and_the_others_counted() -> None:
    heard = _Heard()
    for number in range(5_000):
        for kind in ("log", "step_complete"):
            event = {"event": kind, "time": number}
            heard.answers.add(b"\ntrt_widget answers: " + json.dumps({"event": event}).encode())
    heard.answers.add(b"\n")
    told = heard.events()
    assert told["events_left_out"] == 3_000
    assert sum(event["event"] == "step_complete" for event in told["events"]) == 5_000
    times = [event["time"] for event in told["events"] if event["event"] == "log"]
    assert times == [*range(1_000), *range(4_000, 5_000)]
    order = [event["time"] for event in told["events"]]
    assert order == sorted(order)


def test_what_is_printed_is_kept_to_its_end_and_begins_with_a_whole_line() -> None:
    heard = _Heard()
    for _ in range(100):
        heard.printed(b"/srv/acme/" * 1_000)
    heard.printed(b"\nlast words")
    assert heard.last_words() == "; it printed: last words"
    heard.printed(b"/srv/acme/" * 10_000)
    assert "acme" not in heard.last_words()
    assert len(heard._printed) == 16_384


def test_builds_of_others_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But by the check of turns, and that is not run where others have theirs."""
    given: list[dict[str, Any]] = []

    class Made:
        told = True
        result = None
        waiting_for = "another build"
        cancelled = ""

        def __init__(self, _model: bytes, **options: Any) -> None:
            given.append(options)

        def request_cancel(self, reason: str) -> None:
            Made.cancelled = reason

        def wait_ended(self) -> None:
            pass

        start = wait_ended

        def subscribe(self, _take: object) -> None:
            pass

    monkeypatch.setattr(_checks, "Build", Made)
    subject: Any = SimpleNamespace(backend=SimpleNamespace(is_rtx=False), package="tensorrt")
    _checks._build(subject, b"", executor="process")
    assert given.pop()["exclusive"] is False
    with pytest.raises(NotRun, match="others build on this device: another build"):
        _checks._turns(subject)
    assert given.pop().get("exclusive") is None
    assert Made.cancelled == "closed"


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_nothing_that_goes_away_is_shown_where_no_line_can_be_erased(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return ours

    ours, theirs = os.openpty()
    monkeypatch.setenv("TERM", term)
    out = Dumb()
    with _announced("what runs", out):
        pass
    assert out.getvalue() == ""
    monkeypatch.setenv("TERM", "xterm")
    with _announced("what runs", out):
        pass
    os.close(ours)
    os.close(theirs)
    assert out.getvalue() == "  …       what runs\r\x1b[K"


def test_the_page_has_every_check_and_every_version() -> None:
    page = (ROOT / "notebooks" / "docs" / "full-tensorrt.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\w[^|]*) \|.*\|$", page.split("\n## ")[1], re.MULTILINE) == [
        "check",
        *(check.title for check in CHECKS),
    ]
    for version in (*BINDINGS, STUBS.partition("==")[2].rpartition(".0.")[0]):
        assert version in page
    assert f"the {len(mnist_events()):,} callbacks" in page


def test_names_and_titles_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len({check.title for check in CHECKS})
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.builds] == ["import"]


# ---- what needs a GPU, with one that is made up -------------------------------------------------


class Driver:
    """A CUDA driver whose memory is the process's own."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.calls: list[str] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        does = getattr(type(self), f"do_{name}", lambda *_: None)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            does(self, *arguments)
            return 700 if name == self.fails else 0

        return call

    def do_cuMemAlloc_v2(self, pointer: Any, length: Any) -> None:  # noqa: N802 - CUDA's names
        pointer._obj.value = 4096 * (1 + len(self.memory))
        self.memory[pointer._obj.value] = bytearray(length.value)

    def do_cuMemcpyHtoD_v2(self, pointer: Any, data: Any, length: Any) -> None:  # noqa: N802
        self.memory[pointer.value][:] = bytes(data)
        assert length.value == len(bytes(data))

    def do_cuMemcpyDtoH_v2(self, data: Any, pointer: Any, length: Any) -> None:  # noqa: N802
        ctypes.memmove(data, bytes(self.memory[pointer.value]), length.value)

    def do_cuStreamCreate(self, stream: Any, flags: Any) -> None:  # noqa: N802
        stream._obj.value = 77
        assert flags.value == 1


class Engine:
    """A deserialized engine that gives what the sample model gives, or something else."""

    num_io_tensors = 2

    def __init__(self, driver: Driver, output: list[list[float]]) -> None:
        self.driver = driver
        self.output = output
        self.addresses: dict[str, int] = {}

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_shape(self, _name: str) -> list[int]:
        return [_sample.BATCH, _sample.WIDTH]

    def create_execution_context(self) -> Engine:
        return self

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == 77
        memory = self.driver.memory
        given = np.frombuffer(memory[self.addresses["x"]], dtype=np.float32)
        assert np.allclose(given, np.ravel(_sample.sample_input()))
        memory[self.addresses["y"]][:] = np.array(self.output, dtype=np.float32).tobytes()
        return True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(_checks, "gpus", lambda: (Gpu(0, "made up", "SM86"),))
    monkeypatch.setattr(_checks, "use_device", lambda _index: None)
    monkeypatch.setattr(_checks, "cuda_library", lambda: made)
    return made


def run_on(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> str:
    """Run the check with an engine that is deserialized to ``loaded``."""
    subject: Any = SimpleNamespace(
        backend=SimpleNamespace(
            runs_on=lambda _gpu: True,
            module=SimpleNamespace(
                Runtime=lambda _logger: SimpleNamespace(deserialize_cuda_engine=lambda _: loaded)
            ),
        )
    )
    logger = SimpleNamespace(serious=lambda: [("error", "words")])
    monkeypatch.setattr(_checks, "make_logger", lambda *_, **__: logger)
    monkeypatch.setattr(_checks, "_build", lambda *_, **__: SimpleNamespace(wait=lambda: b"e"))
    return _checks._runs(subject)


def test_an_engine_is_run_and_its_numbers_are_compared(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_on(monkeypatch, Engine(driver, _sample.expected()))
    assert said.startswith("it was deserialized and run; its numbers are off by at most 0.000%")
    order = [name for name in driver.calls if "Mem" not in name]
    assert order == ["cuStreamCreate", "cuCtxSynchronize", "cuStreamSynchronize"]


@pytest.mark.parametrize("factor", [1.1, math.nan])
def test_wrong_numbers_are_told(
    factor: float, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [[factor * value for value in row] for row in _sample.expected()]
    with pytest.raises(Unexpected, match="its numbers are off by up to"):
        run_on(monkeypatch, Engine(driver, wrong))


def test_what_else_an_engine_can_refuse(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unexpected, match=r"cannot be deserialized: \['words'\]"):
        run_on(monkeypatch, None)
    engine = Engine(driver, _sample.expected())
    monkeypatch.setattr(engine, "get_tensor_shape", lambda _name: [1])
    with pytest.raises(Unexpected, match=r"are \{'x': \(1,\), 'y': \(1,\)\}, not \{'x': \(4, 16\)"):
        run_on(monkeypatch, engine)
    driver.fails = "cuMemAlloc_v2"
    with pytest.raises(Unexpected, match="cuMemAlloc_v2 of the CUDA driver answered error 700"):
        run_on(monkeypatch, Engine(driver, _sample.expected()))


def test_a_gpu_that_the_package_does_not_know(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checks, "gpus", lambda: (Gpu(0, "NVIDIA H200", "SM90"),))
    with pytest.raises(NotRun, match=r"does not support NVIDIA H200 \(SM90\)"):
        _checks._runs(Subject("tensorrt_rtx"))
    assert driver.calls == []


# ---- the timing cache, with builds that are made up ---------------------------------------------


def cached(monkeypatch: pytest.MonkeyPatch, *facts: dict[str, Any], written: bytes = b"x") -> str:
    left = list(facts)

    def build(*_: Any, timing_cache: Path, **__: Any) -> Any:
        timing_cache.write_bytes(written)
        result = SimpleNamespace(timing_cache=left.pop(0), notes=("a note",))
        return SimpleNamespace(wait=lambda: b"e", result=result)

    monkeypatch.setattr(_checks, "_build", build)
    subject: Any = SimpleNamespace(backend=SimpleNamespace(is_rtx=False))
    return _checks._timing_cache(subject)


def test_a_timing_cache_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = {"state": "cold", "known_before": 0, "known_after": 5}
    warm = {"state": "warm", "known_before": 5, "known_after": 6}
    assert cached(monkeypatch, cold, warm).endswith("measurements: 5, then 6")
    uncounted = [{"state": "cold"}, {"state": "warm"}]
    assert cached(monkeypatch, *uncounted).endswith("TensorRT does not count them")
    with pytest.raises(Unexpected, match="5 measurements were kept and 4 found"):
        cached(monkeypatch, cold, {**warm, "known_before": 4})
    with pytest.raises(Unexpected, match=r"the second \{'state': 'cold'"):
        cached(monkeypatch, cold, cold)
    with pytest.raises(Unexpected, match=r"no timing cache was written: \['a note'\]"):
        cached(monkeypatch, cold, warm, written=b"")
