"""What the card makes of silence: the logic alone first, with clocks that the test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.browser.harness import in_module

if TYPE_CHECKING:
    from tests.browser.harness import Lab

SETUP = """
async module => {
    const blob = new Blob([module], {type: 'text/javascript'});
    const {Clock} = await import(URL.createObjectURL(blob));
    const at = {monotonic: 100, wall: 5000};
    const clock = new Clock({monotonic: () => at.monotonic, wall: () => at.wall});
    // Time goes by; the timer is called every so many seconds meanwhile.
    const pass = (seconds, every = 0.25) => {
        for (let left = seconds; left > 1e-9; left -= every) {
            at.monotonic += every;
            at.wall += every;
            clock.tick();
        }
    };
    SCRIPT
}
"""


def told(lab: Lab, script: str) -> Any:
    """Run a script with a clock; give what it returns."""
    return in_module(lab, "build.js", SETUP, script)


def test_silence_is_counted_while_the_timer_is_on_time(lab: Lab) -> None:
    quiet, after, now = told(
        lab,
        """clock.receive(4000); pass(9); const quiet = clock.quiet; pass(60);
        const now = clock.now; clock.receive(4069); return [quiet, clock.quiet, now];""",
    )
    assert abs(quiet - 9) < 0.01
    assert after == 0
    # It stood still some seconds after the last message.
    assert 4008 <= now < 4010


def test_a_clock_that_is_set_anew_is_followed(lab: Lab) -> None:
    # The time of day here says nothing of the kernel's.
    assert told(lab, "clock.receive(4000); at.wall += 3600; pass(1); return clock.now;") == 4001
    # The kernel's own is followed, and so is what is measured with it.
    for step in (3600, -3600, -60):
        script = f"clock.receive(4000); pass(2); clock.receive(4002 + {step}); return clock.now;"
        assert told(lab, script) == 4002 + step
    # A message that is a little late sets nothing.
    assert told(lab, "clock.receive(4000); pass(5); clock.receive(4002); return clock.now;") == 4005
    # One that is very late does, until the next one: the smallest difference is the truest.
    assert told(
        lab,
        """clock.receive(4000); pass(7); clock.receive(4001); const late = clock.now; pass(1);
        clock.receive(4008); return [late, clock.now];""",
    ) == [4001, 4008]
    # Without the kernel's time there is but one's own.
    assert told(lab, "clock.receive(null); pass(2); return clock.now;") == 5002


def test_the_last_message_grows_no_older_than_it_can_be(lab: Lab) -> None:
    ages = told(
        lab,
        """clock.receive(4000); const ages = [clock.age]; pass(3); ages.push(clock.age);
        pass(60); ages.push(clock.age); clock.receive(4063); ages.push(clock.age);
        pass(2); clock.stop(); pass(2); ages.push(clock.age); return ages;""",
    )
    assert ages == [0, 3, 8, 0, 2]


def test_a_computer_that_slept_does_not_accuse_the_kernel(lab: Lab) -> None:
    # An hour in one tick, on clocks that go on meanwhile; the messages come after the timer.
    quiet, after = told(
        lab,
        """clock.receive(4000); pass(1); pass(3600, 3600); const quiet = clock.quiet;
        clock.receive(7601); return [quiet, clock.quiet];""",
    )
    assert quiet <= 2
    assert after == 0


def test_a_tab_in_the_background_does_not_accuse_the_kernel(lab: Lab) -> None:
    # Timers there come once a minute, messages all the time, and here not even those.
    assert told(lab, "clock.receive(4000); pass(420, 60); return clock.quiet;") < 8
    assert (
        told(
            lab,
            """let worst = 0;
        for (let i = 0; i < 99; i++) {
            clock.receive(4000 + 2 * i); pass(2, 1); worst = Math.max(worst, clock.quiet);
        }
        return worst;""",
        )
        < 3
    )


def test_only_a_later_message_revives_a_kernel_that_was_gone(lab: Lab) -> None:
    stale, still, fresh, moved = told(
        lab,
        """clock.receive(4000); pass(3); clock.stop(); const stopped = clock.now;
        pass(1); clock.receive(4002.5); const stale = clock.gone; pass(5);
        const still = clock.now === stopped;
        clock.receive(4009); return [stale, still, clock.gone, clock.now > stopped];""",
    )
    assert (stale, still, fresh, moved) == (True, True, False, True)
