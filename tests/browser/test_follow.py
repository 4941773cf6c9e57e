"""The card of a build elsewhere, in a real JupyterLab, with states made by hand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.test_card import FAKE, card

if TYPE_CHECKING:
    from tests.browser.conftest import OpenNotebook


def test_the_card_of_a_build_elsewhere(open_notebook: OpenNotebook) -> None:
    waits = "Waits for its stream to begin, where it is built."
    elsewhere = "executor='followed', where='elsewhere'"
    cell = f"c = card(tree(), {elsewhere}, status='pending', can_cancel=False, detail={waits!r}); c"
    notebook = open_notebook([FAKE, cell])
    notebook.run(0)
    notebook.run(1)
    view = card(notebook, 1)
    note, cancel = view.locator(".trt-note"), view.locator(".trt-cancel")
    expect(note).to_contain_text(waits)
    expect(cancel).to_be_hidden()

    # Nobody listens: no button, and no advice that would not help.
    notebook.kernel("beat(c, status='running', started=time.time() - 7)")
    expect(note).to_contain_text("it can be cancelled where it runs only")
    expect(note).not_to_contain_text("Interrupt")
    expect(cancel).to_be_hidden()

    # Somebody listens, and then the request cannot be written: the button is there again, and the
    # kernel is not called busy.
    notebook.kernel("beat(c, can_cancel=True)")
    expect(cancel).to_have_text("Cancel")
    expect(cancel).to_have_attribute("title", "Asks the process that builds to stop")
    cancel.click()
    expect(cancel).to_have_text("Cancelling…")
    notebook.kernel("beat(c, cancels_refused=1, notes=['Nobody could be asked.'])")
    expect(cancel).to_have_text("Cancel")
    notebook.page.wait_for_timeout(2500)
    expect(note).not_to_contain_text("busy")
    expect(view).to_contain_text("Nobody could be asked.")
    cancel.click()
    notebook.kernel("beat(c, status='cancelling', cancel_requested=time.time())")
    expect(cancel).to_have_text("Cancelling…")
    notebook.kernel("finish(c, 'succeeded', engine_bytes=4_711_000, peak_memory_bytes=230_000_000)")
    expect(note).to_have_text(re.compile(r"Engine of 4\.7 MB built in .* · peak memory 230 MB"))
    notebook.assert_clean()
