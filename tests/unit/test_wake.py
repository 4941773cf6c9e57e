"""The wake-up call that a signal handler may give."""

from __future__ import annotations

from trt_widget._wake import Wake


def test_a_time_that_has_passed_already_is_no_wait() -> None:
    wake = Wake()
    assert wake.wait(-1.0) is False  # the caller was held up after it looked at the clock
    wake.set()
    assert wake.wait(-1.0) is True
    wake.clear()
    assert wake.wait(0.0) is False
