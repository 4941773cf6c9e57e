"""What the card says of the time left between two messages: the logic alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.harness import in_module

if TYPE_CHECKING:
    from tests.browser.harness import Lab

SETUP = """
async module => {
    const blob = new Blob([module], {type: 'text/javascript'});
    const {Clock, Outlook} = await import(URL.createObjectURL(blob));
    const outlook = new Outlook();
    // What a header says, read so many seconds after it came.
    const read = (progress, eta_s, age = 0, more = {}) =>
        outlook.read({progress, eta_s, ...more}, age);
    SCRIPT
}
"""


def told(lab: Lab, script: str) -> Any:
    """Run a script with an outlook; give what it returns."""
    return in_module(lab, "build.js", SETUP, script)


def test_time_passes_between_two_messages(lab: Lab) -> None:
    readings = told(lab, "return [0, 1, 2, 3, 60, 1e6].map(age => read(0.5, 40, age));")
    progress = [reading["progress"] for reading in readings]
    # Half of the build is left for 40 s, so a second is an 80th.
    assert progress[0] == 0.5
    assert progress[1] == pytest.approx(0.5 + 1 / 80, abs=0.001)
    assert progress == sorted(progress)
    assert progress[-1] < 1
    left = [reading["left"] for reading in readings]
    assert left[0] == "about 40 s"
    assert left[-1] == "a few seconds"


def test_progress_never_goes_back_and_is_never_complete(lab: Lab) -> None:
    readings = told(
        lab,
        """return [read(0.5, 10, 2), read(0.52, 10), read(0.4, 30), read(0.9, 1), read(1, 0),
        read(1, 0.1, 100), read(0.2, null, 5, {exceeded: true})];""",
    )
    progress = [reading["progress"] for reading in readings]
    assert progress == sorted(progress)
    assert progress[0] > 0.52  # what was shown before the second message
    assert progress[-1] < 1


def test_nothing_is_invented(lab: Lab) -> None:
    nothing, late, only = told(
        lab,
        """return [read(null, 30, 1), read(0.9, 30, 1, {exceeded: true}), read(0.9, null, 50)];""",
    )
    assert nothing == {"progress": None, "left": None}
    assert late == {"progress": 0.9, "left": None}
    assert only == {"progress": 0.9, "left": None}


def test_a_time_left_is_no_more_exact_than_it_is_known(lab: Lab) -> None:
    words = {
        0.01: "a few seconds",
        7: "a few seconds",
        8: "about 10 s",
        33: "about 35 s",
        58: "about 1 min",
        89: "about 1 min",
        112: "about 2 min",
        840: "about 14 min",
        1000: "about 15 min",
        5000: "about 85 min",
        5300: "about 1.5 h",
        30_000: "about 8.5 h",
    }
    script = (
        f"return {list(words)}.map(eta => new Outlook().read({{progress: 0.1, eta_s: eta}}, 0))"
    )
    assert [reading["left"] for reading in told(lab, script)] == list(words.values())


def test_what_lies_between_two_roundings_does_not_go_to_and_fro(lab: Lab) -> None:
    script = "return [27.6, 27.4, 27.6, 27.4, 28.5, 29, 200].map(eta => read(0.5, eta).left)"
    assert told(lab, script) == [
        "about 30 s",
        *["about 25 s"] * 4,
        "about 30 s",
        "about 3 min",
    ]


@pytest.mark.parametrize("step", [3600, -3600, 60, -60, -3])
@pytest.mark.parametrize("whose", ["kernel", "wall"])
def test_a_clock_that_is_set_anew_moves_nothing(lab: Lab, whose: str, step: int) -> None:
    # What is shown once stays, so a moment of nonsense would stay, too.
    readings = told(
        lab,
        f"""const at = {{monotonic: 0, wall: 1e9, kernel: 1e9}};
        const clock = new Clock({{monotonic: () => at.monotonic, wall: () => at.wall}});
        const readings = [];
        let header;
        for (let t = 0; t <= 60; t += 0.25) {{
            if (t === 20) at.{whose} += {step};
            if (t % 2 === 0) {{
                clock.receive(at.kernel);
                header = {{progress: t / 600, eta_s: 600 - t, now: at.kernel}};
            }}
            readings.push([t / 600, outlook.read(header, clock.age).progress]);
            for (const which of Object.keys(at)) at[which] += 0.25;
        }}
        return readings;""",
    )
    assert [shown for _, shown in readings] == pytest.approx(
        [true for true, _ in readings], abs=0.001
    )
