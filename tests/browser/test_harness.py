"""The harness shows with plain ipywidgets that it drives a real JupyterLab."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import OpenNotebook

BAR = """
import threading, time
import ipywidgets
bar = ipywidgets.IntProgress(max=5, description="count")
def go():
    for i in range(1, 6):
        time.sleep(0.1)
        bar.value = i
threading.Thread(target=go).start()
bar
"""
FULL = re.compile("width: 100%")


def test_bar_theme_and_reload(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([BAR, "6 * 7"])
    notebook.run(0)
    expect(notebook.output(0).locator(".progress-bar")).to_have_attribute("style", FULL)
    assert notebook.kernel("print(bar.value)") == "5\n"
    notebook.wait_subshells()
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("42")

    light = notebook.screenshot(0, "harness-light").read_bytes()
    notebook.theme("dark")
    dark = notebook.screenshot(0, "harness-dark").read_bytes()
    assert light.startswith(b"\x89PNG")
    assert light != dark
    notebook.theme("light")

    saved = notebook.save()
    assert saved.cells[1].outputs[0].data["text/plain"] == "42"
    notebook.reload()
    expect(notebook.output(1)).to_contain_text("42")
    # The kernel has lived on, and the widget comes back from it.
    assert notebook.kernel("print(bar.value)") == "5\n"
    expect(notebook.output(0).locator(".progress-bar")).to_have_attribute("style", FULL)
    notebook.assert_clean()


def test_run_all_interrupt_restart(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(["import time; x = 1", "print('here'); time.sleep(60)"])
    notebook.run(0)
    notebook.start(1)
    expect(notebook.output(1)).to_contain_text("here")
    notebook.interrupt()
    notebook.wait(1)
    expect(notebook.output(1)).to_contain_text("KeyboardInterrupt")
    assert notebook.kernel("print(x)") == "1\n"
    notebook.restart()
    assert notebook.kernel("print('x' in globals())") == "False\n"
    notebook.assert_clean()

    notebook = open_notebook(["x = 1", "x + 1", "x + 2"])
    notebook.run_all()
    expect(notebook.output(1)).to_contain_text("2")
    expect(notebook.output(2)).to_contain_text("3")
    notebook.assert_clean()


def test_errors_and_foreign_requests_are_seen(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(["1"])
    notebook.assert_clean()
    notebook.page.evaluate("console.error('broken'); setTimeout(() => { throw Error('thrown'); })")
    notebook.page.evaluate("fetch('http://127.0.0.2:9/').catch(() => {})")
    assert notebook.page_errors == ["thrown"]
    assert notebook.console_errors[0].startswith("broken")
    assert notebook.foreign_requests == ["http://127.0.0.2:9/"]
