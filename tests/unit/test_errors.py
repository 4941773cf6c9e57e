from __future__ import annotations

import errno
import inspect
import json
import pickle
from typing import Any

import cloudpickle
import pytest

from trt_widget import errors
from trt_widget.errors import (
    BackendNotFound,
    BuildCancelled,
    BuildCrashed,
    BuildError,
    BuildFailed,
    BuildStateError,
    ConfigureFailed,
    ExtraMissing,
    NodeError,
    OptionError,
    OptionRejected,
    OutputError,
    ParseFailed,
    ProfileError,
    SaveError,
    SourceError,
    StreamError,
    UnknownOptionError,
    WorkerLost,
    WrongBackendError,
    call_users_code,
    from_record,
    to_record,
)

NODES = [NodeError(3, "a", "NoSuchOp", "Plugin not found"), NodeError(-1, "", "", "and more")]

EXAMPLES: list[BuildError] = [
    BuildError("cause", "remedy", ["words"], evidence=["words"]),
    BackendNotFound("cause", "remedy"),
    ExtraMissing("cause", "remedy", extra="cli"),
    OptionError("cause"),
    OutputError("cause"),
    UnknownOptionError("outptu", "output", known=["output", "flags"]),
    BuildStateError("cause"),
    BuildCancelled(reason="deadline"),
    BuildFailed("cause", messages=["a", "b"]),
    SourceError("cause"),
    ParseFailed("cause", "remedy", ["words"], nodes=NODES),
    ProfileError("cause"),
    OptionRejected("cause"),
    WrongBackendError("cause"),
    ConfigureFailed("cause", function="configure", exception_type="KeyError", user_traceback="tb"),
    SaveError("cause", error=OSError(errno.ENOSPC, "No space left"), filename="model.engine"),
    BuildCrashed(
        "cause",
        "remedy",
        ["words"],
        evidence=["ended by SIGSEGV"],
        signal="SIGSEGV",
        exit_code=None,
        phase="Building engine > Optimizing graph",
        output="printed \udcff",
        peak_memory_bytes=2**31,
    ),
    WorkerLost("cause", "remedy", ["words"], phase="Building engine", workers=["a (tcp://1)", "b"]),
    StreamError("cause", "remedy", ["words"], evidence=["b'x'"], phase="Building engine"),
]


def test_every_error_has_an_example() -> None:
    kinds = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, BuildError)
    }
    assert {type(example) for example in EXAMPLES} == kinds
    assert {kind.__name__ for kind in kinds} <= set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_errors_survive_pickling(
    error: BuildError, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(error.__dict__, "extra", "kept")
    copy = pickle.loads(module.dumps(error))  # noqa: S301 - our own
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert copy.__dict__ == error.__dict__
    assert str(copy) == str(error)
    if isinstance(error, SaveError):
        assert (copy.errno, copy.strerror, copy.filename) == (
            errno.ENOSPC,
            "No space left",
            "model.engine",
        )


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (BackendNotFound, ImportError),
        (OptionError, ValueError),
        (OutputError, OptionError),
        (UnknownOptionError, TypeError),
        (BuildStateError, RuntimeError),
        (WrongBackendError, TypeError),
        (SaveError, OSError),
        (ProfileError, OptionError),
        (OptionRejected, OptionError),
    ],
)
def test_errors_are_also_what_python_would_raise(kind: type, base: type) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, BuildError)


@pytest.mark.parametrize(
    "kind",
    [
        SourceError,
        ParseFailed,
        ProfileError,
        OptionRejected,
        WrongBackendError,
        ConfigureFailed,
        SaveError,
        BuildCrashed,
        StreamError,
    ],
)
def test_what_ends_a_started_build_is_a_failed_build(kind: type) -> None:
    assert issubclass(kind, BuildFailed)


def test_a_cancel_is_no_failure() -> None:
    assert not issubclass(BuildCancelled, BuildFailed)
    assert BuildCancelled().reason == "user"
    assert "ONNX file has" in str(UnknownOptionError("fp16", None))
    assert "time was up" in str(BuildCancelled(reason="deadline"))
    with pytest.raises(ValueError, match="not a reason"):
        BuildCancelled(reason="boredom")


def test_cause_then_remedy_then_tensorrts_words() -> None:
    error = BuildError("The cause.", "The remedy.", ["Error Code 4\nsecond line", "more"])
    assert str(error).splitlines() == [
        "The cause.",
        "The remedy.",
        "TensorRT said:",
        "  Error Code 4",
        "  second line",
        "  more",
    ]
    assert str(BuildError("Only a cause.")) == "Only a cause."


def test_the_evidence_stands_before_the_remedy_and_not_twice() -> None:
    error = BuildError("Cause.", "Remedy.", ["noise", "the line"], evidence=["the line"])
    assert str(error).splitlines() == [
        "Cause.",
        "Evidence:",
        "  the line",
        "Remedy.",
        "TensorRT said:",
        "  noise",
        "  the line",
    ]
    assert "Evidence" not in str(BuildError("Cause.", "", ["only"], evidence=["only"]))
    both = str(BuildError("Cause.", "", ["only"], evidence=["only", "a circumstance"]))
    assert both.splitlines()[1:3] == ["Evidence:", "  a circumstance"]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_go_to_json_and_back(error: BuildError) -> None:
    copy = from_record(json.loads(json.dumps(to_record(error))))
    assert type(copy) is type(error)
    assert copy.__dict__ == error.__dict__
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert to_record(copy) == to_record(error)


def test_a_class_from_elsewhere_goes_as_the_one_it_derives_from() -> None:
    class OwnError(SourceError):
        secret = 1

    namesake = type("BuildFailed", (OwnError,), {})
    for kind in (OwnError, namesake):
        copy = from_record(to_record(kind("cause")))
        assert type(copy) is SourceError
        assert str(copy) == "cause"


GOOD = to_record(BuildFailed("The cause.", "The remedy.", ["words"]))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, "a NoneType, not a record"),
        ([["class", "BuildFailed"]], "a list, not a record"),
        ({}, "unknown class, None"),
        ({**GOOD, "class": "SystemExit"}, "unknown class, 'SystemExit'"),
        ({**GOOD, "class": "Exception"}, "unknown class"),
        ({**GOOD, "class": "NodeError"}, "unknown class"),
        ({**GOOD, "class": "trt_widget.errors.BuildFailed"}, "unknown class"),
        ({**GOOD, "class": ["BuildFailed"]}, "unknown class"),
        ({**GOOD, "class": "x" * 10_000}, "unknown class"),
        ({**GOOD, "cause": 1}, "'cause' is no text"),
        ({**GOOD, "messages": "words"}, "'messages' is no list"),
        ({**GOOD, "messages": [1]}, "'messages' is no text"),
        ({**GOOD, "evidence": {}}, "'evidence' is no list"),
        ({key: GOOD[key] for key in GOOD if key != "remedy"}, "'remedy' is missing"),
        ({**GOOD, "class": "BuildCancelled", "reason": "boredom"}, "'reason'"),
        ({**GOOD, "class": "ParseFailed", "nodes": [[1, "a", "b"]]}, "no node"),
        ({**GOOD, "class": "ParseFailed", "nodes": [["1", "a", "b", "c"]]}, "no whole number"),
        ({**GOOD, "class": "ParseFailed", "nodes": 3}, "'nodes' is no list"),
        ({**GOOD, "class": "BuildCrashed"}, "'signal' is missing"),
    ],
)
def test_a_record_of_no_error_of_ours_says_so(record: Any, why: str) -> None:
    error = from_record(record)
    assert type(error) is BuildFailed
    assert "its error cannot be read" in error.cause
    assert why in error.cause
    assert len(str(error)) < 600
    if isinstance(record, dict) and record.get("cause") == "The cause.":
        assert "The cause." in error.cause


def test_what_a_class_does_not_have_is_left_out_of_a_record() -> None:
    record = {**GOOD, "details": "gone", "__class__": "x", "filename": "y", "new": [1]}
    error = from_record(record)
    assert error.__dict__ == BuildFailed("The cause.", "The remedy.", ["words"]).__dict__
    assert error.details() == ""


def test_a_crash_shows_its_phase_and_the_end_of_its_output() -> None:
    output = "".join(f"line {i}\n" for i in range(1000)) + "the \x1b[2Jlast\n"
    crash = BuildCrashed("Cause.", phase="Building engine > x", output=output)
    lines = str(crash).splitlines()
    assert lines[:3] == [
        "Cause.",
        "It was in the phase Building engine > x.",
        "The end of its output:",
    ]
    assert lines[-2:] == ["  line 999", "  the \ufffd[2Jlast"]
    assert len(lines) == 23
    assert crash.output == output
    assert str(BuildCrashed("Cause.")) == "Cause."


def test_long_lists_are_shortened_in_the_text_only() -> None:
    error = BuildFailed("Cause.", messages=[f"message {i}" + "x" * 5000 for i in range(1000)])
    assert len(str(error)) < 30_000
    assert "and 988 more in .messages" in str(error)
    assert len(error.messages) == 1000
    nodes = [NodeError(i, f"node{i}", "NoSuchOp", "") for i in range(1000)]
    failed = ParseFailed("Cause.", nodes=nodes)
    assert len(str(failed).splitlines()) < 30
    assert "and 980 more in .nodes" in str(failed)


def test_the_table_stays_a_table() -> None:
    nodes = [
        NodeError(1, "two\nlines\x1b[2J", "Op", ""),
        NodeError(12345, "x" * 200, "Operator", ""),
    ]
    lines = str(ParseFailed("Cause.", nodes=nodes)).splitlines()
    assert len(lines) == 5
    assert lines[3].split() == ["1", "two", "lines\ufffd[2J", "Op"]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines[1:2] + lines[3:], ("op", "Op", "Op"), strict=True)
            }
        )
        == 1
    )


def test_the_nearest_option_is_named() -> None:
    error = UnknownOptionError("outptu", "output", known=["output"])
    assert str(error) == (
        "There is no option 'outptu'.\nDid you mean 'output'? The options are: output."
    )
    assert (error.name, error.nearest) == ("outptu", "output")


def test_the_users_exception_has_the_users_frames() -> None:
    def deeper() -> None:
        raise LookupError("no such tactic")

    def configure() -> None:
        deeper()

    with pytest.raises(ConfigureFailed) as caught:
        call_users_code("configure", configure)
    error = caught.value
    assert error.cause.startswith(
        "The function given as configure= raised LookupError: no such tactic (test_errors.py, line "
    )
    assert error.function == "configure"
    assert error.exception_type == "builtins.LookupError"
    frames = []
    trace = error.__cause__.__traceback__ if error.__cause__ else None
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames == ["configure", "deeper"]
    assert "call_users_code" not in error.user_traceback
    assert 'raise LookupError("no such tactic")' in str(error)


def test_an_exception_without_a_users_frame() -> None:
    with pytest.raises(ConfigureFailed, match="raised TypeError") as caught:
        call_users_code("config", lambda: None, "one argument too many")
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is None


def test_an_interrupt_passes_untouched() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_users_code("configure", interrupted)
