from __future__ import annotations

import errno
import inspect
import pickle
from typing import Any

import cloudpickle
import pytest

from trt_widget import errors
from trt_widget.errors import (
    BackendNotFound,
    BuildCancelled,
    BuildError,
    BuildFailed,
    BuildStateError,
    ConfigureFailed,
    NodeError,
    OptionError,
    OptionRejected,
    OutputError,
    ParseFailed,
    ProfileError,
    SaveError,
    SourceError,
    UnknownOptionError,
    WrongBackendError,
    call_users_code,
)

NODES = [NodeError(3, "a", "NoSuchOp", "Plugin not found"), NodeError(-1, "", "", "and more")]

EXAMPLES: list[BuildError] = [
    BuildError("cause", "remedy", ["words"]),
    BackendNotFound("cause", "remedy"),
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
def test_errors_survive_pickling(error: BuildError, module: Any) -> None:
    error.__dict__["extra"] = "kept"
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
