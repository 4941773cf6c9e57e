"""The overview of many builds in a real JupyterLab: real builds, and hundreds of a stand-in's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbconvert import HTMLExporter
from playwright.sync_api import expect

from tests.browser.test_saved import copied
from tests.browser.test_widget import AXE, HOSTILE, TOOLS, is_running

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.browser.conftest import Keep, OpenNotebook
    from tests.browser.harness import Lab, Notebook

FAKE = Path(__file__).with_name("fake_queue.py").read_text("utf-8")
SETUP = f"""
import os, tempfile, time
os.environ["TRT_WIDGET_HISTORY"] = "off"
os.environ["TRT_WIDGET_ENGINES"] = os.path.abspath(tempfile.mkdtemp(dir="."))
from tests import models
from trt_widget import BuildQueue, BuildWidget
evil = {HOSTILE!r}
tiny, unknown = models.mlp(), models.unknown_operators("NoSuchOp")
def slow(count, **more):
    # Each lasts until someone cancels it.
    resnet = models.light_model("resnet50")
    one = dict(source=resnet, configure=models.slowly(0.05))
    jobs = {{f"slow-{{n}}": one for n in range(count)}}
    return BuildQueue({{**jobs, **more}}, workers=2, name="slow ones")
"""
#: Gives a view a width, and what then juts out of it.
WIDE = """async (view, width) => {
    view.style.maxWidth = `${width}px`;
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return [...view.querySelectorAll('*')].filter(each => each.checkVisibility()
        && !each.closest('.trt-q-unseen, .trt-q-text, .trt-q-title, .trt-q-told')
        && each.getBoundingClientRect().right > view.getBoundingClientRect().right + 0.5
    ).map(each => each.className);
}"""
#: Gives the cells and headings that do not say in which column they are.
COLUMNS = """view => [...view.querySelectorAll('[role=row]')].flatMap(row =>
    [...row.children].filter((each, at) => each.ariaColIndex !== String(at + 1))
).map(each => each.className)"""
MANY = "from trt_widget.widget.overview import Overview\nq = fake_queue(500)\no = Overview(q)\no"


def opened(open_notebook: OpenNotebook, *cells: str, setup: str = SETUP) -> Notebook:
    """Open a notebook of these cells, of which the first has run."""
    notebook = open_notebook([setup, *cells])
    notebook.run(0)
    return notebook


def view(notebook: Notebook, index: int = 1) -> Locator:
    """Give the overview that a cell shows."""
    return notebook.output(index).locator(".trt-queue")


def row(shown: Locator, name: str) -> Locator:
    """Give the row of a build."""
    return shown.locator(".trt-q-row").filter(has=shown.page.get_by_text(name, exact=True))


def has_names(shown: Locator, names: list[str]) -> None:
    """Wait until these are the rows, from top to bottom."""
    shown.page.wait_for_function(
        """([view, names]) => {
            const rows = [...view.querySelectorAll('.trt-q-row')];
            rows.sort((a, b) => a.ariaRowIndex - b.ariaRowIndex);
            const found = rows.map(row => row.querySelector('.trt-q-name').textContent);
            return JSON.stringify(found) === JSON.stringify(names);
        }""",
        arg=[shown.element_handle(), names],
    )


def chip(shown: Locator, word: str) -> Locator:
    """Give the chip that counts the builds of a state."""
    return shown.locator(".trt-q-chip", has_text=word)


def has_status(shown: Locator, status: str, timeout: float = 60) -> None:
    """Wait until the whole is in a state."""
    expect(shown).to_have_attribute("data-status", status, timeout=timeout * 1000)


# ------------------------------------------------------------------ real builds


def test_a_queue_from_start_to_end(open_notebook: OpenNotebook) -> None:
    queue = """
jobs = {'first': tiny, evil: unknown, 'b-two': tiny, 'a-three': models.mlp(layers=4)}
q = BuildQueue(jobs, workers=1).start()
q
"""
    cells = (queue, "q.wait(); print(q.counts())", "BuildWidget.of(q['first'].build)")
    notebook = opened(open_notebook, *cells)
    notebook.run(1)
    shown = view(notebook)
    notebook.run(2, timeout=60)
    has_status(shown, "failed")
    has_names(shown, ["first", HOSTILE, "b-two", "a-three"])
    assert chip(shown, "Succeeded").inner_text().split() == ["✓", "Succeeded", "3"]
    assert chip(shown, "Failed").inner_text().split() == ["✕", "Failed", "1"]
    # The same network again is answered from the cache.
    expect(row(shown, "b-two")).to_contain_text("from the engine cache")
    expect(shown.locator(".trt-q-done")).to_have_text(
        "4 of 4 ended, 1 failed, 1 from the engine cache"
    )
    expect(shown.locator(".trt-q-pill")).to_have_text("✕1 of 4 failed")
    expect(row(shown, "first").get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100")
    expect(row(shown, HOSTILE)).to_contain_text("NoSuchOp")
    expect(shown.get_by_role("button", name=re.compile("^Cancel(?!led)"))).to_have_count(0)
    expect(shown.locator(".trt-q-live")).to_have_text("Failed: 4 of 4 ended, 1 failed")

    # The card of the selected one, and of it only.
    row(shown, "first").click()
    card = shown.locator(".trt-build")
    expect(card).to_have_attribute("data-status", "succeeded")
    expect(card.locator(".trt-name")).to_have_text("first")
    expect(row(shown, "first")).to_have_attribute("aria-selected", "true")
    row(shown, HOSTILE).click()
    expect(card).to_have_attribute("data-status", "failed")
    expect(card).to_contain_text("NoSuchOp")
    expect(card).to_have_count(1)
    shown.get_by_role("button", name="Close the selected build").click()
    expect(card).to_have_count(0)
    # A view of the same build elsewhere is one of its own.
    notebook.run(3)
    expect(notebook.output(3).locator(".trt-build")).to_have_attribute("data-status", "succeeded")

    # Up, down, and back.
    heading = shown.get_by_role("columnheader", name="Build")
    for sort, order in (
        ("ascending", [HOSTILE, "a-three", "b-two", "first"]),
        ("descending", ["first", "b-two", "a-three", HOSTILE]),
        ("none", ["first", HOSTILE, "b-two", "a-three"]),
    ):
        heading.get_by_role("button").click()
        expect(heading).to_have_attribute("aria-sort", sort)
        has_names(shown, order)
    shown.get_by_role("searchbox").fill("TWO")
    expect(shown.locator(".trt-q-row")).to_have_count(1)
    chip(shown, "Failed").click()
    expect(shown.locator(".trt-q-empty")).to_contain_text("No build fits the search")
    shown.get_by_role("searchbox").fill("")
    expect(shown.locator(".trt-q-row")).to_have_count(1)
    expect(row(shown, HOSTILE)).to_be_visible()
    shown.get_by_role("searchbox").fill("two")
    shown.get_by_role("button", name="Show all builds").click()
    expect(shown.locator(".trt-q-row")).to_have_count(4)
    expect(shown.get_by_role("searchbox")).to_have_value("")
    # Where all rows are seen there is no scrollbar, and they reach to the frame.
    reach = """view => view.getBoundingClientRect().right
        - view.querySelector('.trt-q-row').getBoundingClientRect().right"""
    assert shown.evaluate(reach) < 2
    assert notebook.page.evaluate("window.pwned") is None
    notebook.assert_clean()


def test_cancel_one_the_pending_and_all(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, "q = slow(8).start()\nq")
    notebook.run(1)
    shown = view(notebook)
    expect(chip(shown, "Running")).to_contain_text("2")
    row(shown, "slow-1").click()
    card = shown.locator(".trt-build")
    expect(card.locator(".trt-row[data-status='running']")).not_to_have_count(0)
    # One that runs; the next one begins.
    row(shown, "slow-0").get_by_role("button", name="Cancel slow-0").click()
    expect(row(shown, "slow-0")).to_have_attribute("data-status", "cancelled")
    expect(row(shown, "slow-2")).to_have_attribute("data-status", "running")
    # One that waits.
    row(shown, "slow-7").get_by_role("button", name="Cancel slow-7").click()
    expect(row(shown, "slow-7")).to_have_attribute("data-status", "cancelled")
    assert notebook.kernel("print(q['slow-7'].attempts, q['slow-1'].status)") == "0 running\n"
    shown.get_by_role("button", name="Cancel pending").click()
    expect(chip(shown, "Pending")).to_contain_text("0")
    expect(chip(shown, "Cancelled")).to_contain_text("6")
    expect(card).to_have_attribute("data-status", "running")
    # What waits has no card.
    row(shown, "slow-7").click()
    expect(shown.locator(".trt-q-told")).to_contain_text("nothing was built")
    expect(card).to_have_count(0)
    shown.get_by_role("button", name="Cancel all").click()
    has_status(shown, "cancelled")
    assert "'cancelled': 8" in notebook.kernel("print(q.counts())")
    notebook.assert_clean()


def test_a_cell_that_is_run_again_waits_and_can_end_the_earlier_queue(
    open_notebook: OpenNotebook,
) -> None:
    notebook = opened(open_notebook, "q = slow(3).start()\nq")
    notebook.run(1)
    has_status(view(notebook), "running")
    earlier = notebook.kernel("earlier = q; print(earlier.status)")
    assert earlier == "running\n"
    notebook.run(1)
    shown = view(notebook)
    note = shown.locator(".trt-q-note")
    expect(note).to_contain_text("Waiting for an earlier queue named 'slow ones' to finish")
    shown.get_by_role("button", name="Cancel that queue").click()
    has_status(shown, "running")
    assert notebook.kernel("print(earlier.status, q.waiting_for)") == "cancelled None\n"
    expect(shown.get_by_role("button", name="Cancel that queue")).to_have_count(0)
    shown.get_by_role("button", name="Cancel all").click()
    has_status(shown, "cancelled")
    notebook.assert_clean()


def test_cancel_while_the_kernel_is_busy(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, "q = slow(4).start()\nq", "print('begun')\nwhile True: pass")
    notebook.run(1)
    shown = view(notebook)
    expect(chip(shown, "Running")).to_contain_text("2")
    notebook.wait_subshells()
    notebook.start(2)
    expect(notebook.output(2)).to_contain_text("begun")
    row(shown, "slow-0").get_by_role("button", name="Cancel slow-0").click()
    # Whatever the kernel does; then the totals say so, too.
    expect(row(shown, "slow-0")).to_have_attribute("data-status", re.compile("^cancell"))
    expect(chip(shown, "Cancelled")).to_contain_text("1")
    expect(row(shown, "slow-2")).to_have_attribute("data-status", "running")
    # Another window of rows is answered, too.
    shown.get_by_role("searchbox").fill("slow-3")
    expect(shown.locator(".trt-q-row")).to_have_count(1)
    shown.get_by_role("button", name="Cancel all").click()
    has_status(shown, "cancelled")
    assert is_running(notebook, 2)
    notebook.interrupt()
    notebook.wait(2)
    assert "'cancelled': 4" in notebook.kernel("print(q.counts())")


def test_a_page_that_is_loaded_anew(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, "q = slow(6, done=tiny).start()\nq", "q")
    notebook.run(1)
    shown = view(notebook)
    expect(chip(shown, "Running")).to_contain_text("2")
    shown.get_by_role("columnheader", name="Build").get_by_role("button").click()
    row(shown, "slow-1").click()
    expect(shown.locator(".trt-build")).to_have_attribute("data-status", "running")
    chip(shown, "Running").click()
    expect(shown.locator(".trt-q-row")).to_have_count(2)
    # A second view has the same.
    notebook.run(2)
    expect(view(notebook, 2).locator(".trt-q-row")).to_have_count(2)
    expect(view(notebook, 2).locator(".trt-build")).to_have_attribute("data-status", "running")
    notebook.save()
    notebook.reload()
    for index in (1, 2):
        shown = view(notebook, index)
        heading = shown.get_by_role("columnheader", name="Build")
        expect(heading).to_have_attribute("aria-sort", "ascending")
        expect(chip(shown, "Running")).to_have_attribute("aria-pressed", "true")
        expect(shown.locator(".trt-q-row")).to_have_count(2)
        expect(row(shown, "slow-1")).to_have_attribute("aria-selected", "true")
        expect(shown.locator(".trt-build")).to_have_attribute("data-status", "running")
    # And it is live.
    row(shown, "slow-1").get_by_role("button", name="Cancel slow-1").click()
    expect(shown.locator(".trt-build")).to_have_attribute("data-status", "cancelled")
    expect(row(shown, "slow-2")).to_have_attribute("data-status", "running")
    shown.get_by_role("button", name="Cancel all").click()
    has_status(shown, "cancelled")
    notebook.assert_clean()


def test_what_stays_in_a_saved_notebook(lab: Lab, open_notebook: OpenNotebook, keep: Keep) -> None:
    cells = (
        "q = BuildQueue({evil: unknown, 'good': tiny}).start()\nq",
        "q.wait()",
        FAKE,
        MANY.replace("fake_queue(500)", "fake_queue(500, status='succeeded')"),
    )
    notebook = opened(open_notebook, *cells)
    for index in (1, 2, 3, 4):
        notebook.run(index, timeout=60)
    has_status(view(notebook), "failed")
    # Where the view is alive, what would be saved is not seen.
    saved = notebook.output(1).locator(".trt-q-saved")
    expect(saved).to_have_count(1)
    expect(saved).to_be_hidden()
    file = notebook.save()
    data = [output["data"]["text/html"] for output in file.cells[1].outputs]
    assert "&lt;img" in data[0]
    assert "<img" not in "".join(data)
    many = [output["data"]["text/html"] for output in file.cells[4].outputs]
    assert "and 300 more" in many[0]
    assert len(json.dumps(many)) < 100_000
    notebook.close()

    # Elsewhere, without a kernel.
    path = lab.root / copied(lab, file, "far-overview")
    far = keep(lab.show(path.name, kernel=False))
    table = far.output(1).locator(".trt-q-saved")
    expect(table).to_be_visible()
    expect(table).to_contain_text("1 succeeded, 1 failed")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(far.output(4).locator("tbody tr")).to_have_count(200)
    assert far.page.evaluate("window.pwned") is None

    html, _ = HTMLExporter().from_filename(str(path))
    assert "1 succeeded, 1 failed" in html
    assert "and 300 more" in html


# ------------------------------------------------------------------ many


def test_five_hundred_builds(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, MANY, setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    rows = shown.locator(".trt-q-row")
    expect(rows.first).to_be_visible()
    body = shown.locator(".trt-q-body")
    # Rows are there for what is seen only, wherever that is.
    body.evaluate("body => { body.scrollTop = body.scrollHeight / 2; }")
    expect(row(shown, "model-0250-o4")).to_be_visible()
    assert rows.count() < 50
    body.evaluate("body => { body.scrollTop = 0; }")
    expect(row(shown, "model-0000-o0")).to_be_visible()

    # By keyboard: one row is in the tab order, and the arrows move it.
    row(shown, "model-0000-o0").focus()
    press = notebook.page.keyboard.press
    press("ArrowDown")
    expect(row(shown, "model-0001-o1")).to_be_focused()
    press("End")
    expect(row(shown, "model-0499-o1")).to_be_focused()
    press("ArrowUp")
    expect(row(shown, "model-0498-o0")).to_be_focused()
    assert rows.evaluate_all("rows => rows.filter(row => row.tabIndex === 0).length") == 1
    press("Enter")
    expect(row(shown, "model-0498-o0")).to_have_attribute("aria-selected", "true")
    expect(shown.locator(".trt-q-chosen")).to_contain_text("model-0498-o0")
    press("Escape")
    expect(shown.locator(".trt-q-chosen")).to_be_hidden()
    press("Home")
    expect(row(shown, "model-0000-o0")).to_be_focused()
    # A row keeps the focus wherever a change of the order puts it.
    notebook.kernel("q.change(0, name='model-0000-o0', status='failed'); q.tell()")
    chip(shown, "Failed").click()
    expect(shown.get_by_role("grid")).to_have_attribute("aria-rowcount", "73")
    chip(shown, "All").click()
    expect(shown.get_by_role("grid")).to_have_attribute("aria-rowcount", "501")


def test_rows_that_come_late_leave_the_focus_where_one_types(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, MANY, "x", setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    # The kernel's main thread, which is to hold the lock, answers nothing itself.
    notebook.wait_subshells()
    press = notebook.page.keyboard.press
    row(shown, "model-0000-o0").focus()
    notebook.kernel("o._lock.acquire()")
    press("End")
    expect(row(shown, "model-0000-o0")).to_be_focused()
    cell = notebook.cell(2).locator(".cm-content")
    cell.click()
    press("End")
    notebook.page.keyboard.type(" = 1")
    notebook.kernel("o._lock.release()")
    expect(row(shown, "model-0499-o1")).to_be_visible()
    expect(cell).to_be_focused()
    notebook.page.keyboard.type("23")
    expect(cell).to_have_text("x = 123")
    # Within the rows it is waited for.
    row(shown, "model-0499-o1").focus()
    notebook.kernel("o._lock.acquire()")
    press("Home")
    expect(row(shown, "model-0499-o1")).to_be_focused()
    notebook.kernel("o._lock.release()")
    expect(row(shown, "model-0000-o0")).to_be_focused()
    notebook.assert_clean()


def test_a_row_with_the_focus_that_leaves_the_order(open_notebook: OpenNotebook) -> None:
    many = MANY.replace("fake_queue(500)", "fake_queue(70)")
    notebook = opened(open_notebook, many, setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    rows = shown.locator(".trt-q-row")
    where = """rows => rows.map(
        row => `${row.style.transform} ${row.ariaRowIndex} ${row.dataset.status}`)"""

    def end(*indexes: int) -> None:
        changes = [f"q.change({index}, status='succeeded', since=None)" for index in indexes]
        notebook.kernel("; ".join([*changes, "q.tell()"]))

    chip(shown, "Running").click()
    expect(rows).to_have_count(10)
    row(shown, "model-0026-o2").focus()
    end(26)
    # The next one is at its place.
    expect(row(shown, "model-0033-o3")).to_be_focused()
    expect(rows).to_have_count(9)
    found = rows.evaluate_all(where)
    assert len(set(found)) == 9
    assert all("running" in each for each in found)
    assert rows.evaluate_all("rows => rows.filter(row => row.tabIndex === 0).length") == 1
    # Also where its button has the focus; and behind the last one there is the one before.
    row(shown, "model-0068-o2").get_by_role("button").focus()
    end(68)
    expect(row(shown, "model-0061-o1")).to_be_focused()
    expect(rows).to_have_count(8)
    end(*range(5, 70, 7))
    expect(shown.locator(".trt-q-empty")).to_be_visible()
    expect(shown).to_be_focused()
    expect(rows).to_have_count(0)
    # Which row can be reached by Tab is known again.
    chip(shown, "All").click()
    expect(row(shown, "model-0000-o0")).to_have_attribute("tabindex", "0")
    notebook.assert_clean()


def test_two_pages_that_ask_at_the_same_time(open_notebook: OpenNotebook) -> None:
    # Another page's requests are taken in the same turn, after those of this one.
    other = """
take = o._take
def both(request):
    take(request)
    if request.get("kind") in ("order", "select"):
        last = {"order": {"sort": "status", "text": "o3"}, "index": 3, "ticket": "another page's"}
        take({**request, **last})
o._take = both
"""
    notebook = opened(open_notebook, MANY, setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    notebook.wait_subshells()
    expect(row(shown, "model-0000-o0")).to_be_visible()
    notebook.kernel(other)
    shown.get_by_role("columnheader", name="Build").get_by_role("button").click()
    status = shown.get_by_role("columnheader", name="Status")
    expect(status).to_have_attribute("aria-sort", "ascending")
    expect(shown.get_by_role("searchbox")).to_have_value("o3")
    expect(shown.locator("[aria-sort=ascending]")).to_have_count(1)
    shown.locator(".trt-q-row").nth(1).click()
    expect(shown.locator(".trt-q-chosen")).to_contain_text("model-0003-o3")
    notebook.kernel("o._take = take")
    # The answer to the first of two clicks does not undo the second.
    notebook.kernel(
        """
import threading
begin, end = threading.Event(), threading.Event()
def slowly(request):
    take(request)
    if request.get("kind") == "order" and request["order"]["statuses"] == ["failed"]:
        begin.wait(20)
        o._write(time.monotonic(), final=False)
        end.wait(20)
o._take = slowly
"""
    )
    chip(shown, "Failed").click()
    chip(shown, "Pending").click()
    notebook.kernel("begin.set()")
    grid = shown.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", "12")
    assert chip(shown, "Pending").get_attribute("aria-pressed") == "true"
    notebook.kernel("end.set()")
    expect(grid).to_have_attribute("aria-rowcount", "24")
    assert chip(shown, "Pending").get_attribute("aria-pressed") == "true"
    notebook.assert_clean()


def test_a_button_that_has_been_pressed_sends_nothing(open_notebook: OpenNotebook) -> None:
    many = MANY.replace("fake_queue(500)", "fake_queue(7)")
    notebook = opened(open_notebook, many, setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    cancel = row(shown, "model-0005-o5").get_by_role("button", name="Cancel model-0005-o5")
    cancel.click()
    expect(row(shown, "model-0005-o5")).to_have_attribute("data-status", "cancelling")
    expect(cancel).to_have_attribute("aria-disabled", "true")
    assert notebook.kernel("print(q.asked)") == "['model-0005-o5']\n"
    expect(row(shown, "model-0005-o5")).to_contain_text("Cancelling…")
    for _ in range(3):
        cancel.click(force=True)
    notebook.kernel("q.status = 'cancelling'; q.tell()")
    everything = shown.locator(".trt-q-head").get_by_role("button", name="Cancelling…")
    expect(everything).to_have_attribute("aria-disabled", "true")
    for _ in range(3):
        everything.click(force=True)
    # What is asked for later comes after those.
    row(shown, "model-0006-o0").get_by_role("button", name="Cancel model-0006-o0").click()
    expect(row(shown, "model-0006-o0")).to_have_attribute("data-status", "cancelled")
    assert notebook.kernel("print(q.asked)") == "['model-0005-o5', 'model-0006-o0']\n"
    notebook.assert_clean()


def test_few_messages_however_much_happens(open_notebook: OpenNotebook) -> None:
    notebook = opened(open_notebook, MANY, setup=FAKE)
    notebook.run(1)
    shown = view(notebook)
    expect(shown.locator(".trt-q-row").first).to_be_visible()
    # However much happens, few messages come, and the page has little to do.
    notebook.page.evaluate(
        """() => {
            window.came = 0;
            window.panel.sessionContext.session.kernel.anyMessage.connect((_, {msg, direction}) => {
                if (direction === 'recv' && msg.header.msg_type === 'comm_msg') window.came += 1;
            });
        }"""
    )
    seconds = float(
        notebook.kernel(
            """
begun = time.monotonic()
while time.monotonic() - begun < 3:
    for place in range(500):
        q.change(place, progress=time.monotonic() % 1)
    q.tell(*q)
    time.sleep(0.002)
print(time.monotonic() - begun)
"""
        )
    )
    came = notebook.page.evaluate("window.came")
    assert 1 <= came <= 2 * seconds + 3
    # Nobody looks: the kernel is told.
    notebook.page.evaluate("window.panel.content.widgets[1].outputHidden = true")
    expect(shown).to_be_hidden()
    assert notebook.kernel("while o._views: time.sleep(0.01)\nprint(len(o._views))") == "0\n"
    notebook.page.evaluate("window.panel.content.widgets[1].outputHidden = false")
    notebook.kernel("q.change(1, status='failed', error='late'); q.tell()")
    expect(row(shown, "model-0001-o1")).to_contain_text("late")

    notebook.page.emulate_media(forced_colors="active")
    border = shown.locator(".trt-q-bar").first.evaluate(
        "bar => getComputedStyle(bar).borderTopWidth"
    )
    assert border == "1px"
    notebook.screenshot(1, "overview-forced-colours")
    notebook.page.emulate_media(forced_colors="none")
    notebook.assert_clean()
    notebook.restart()
    expect(shown.locator(".trt-q-pill")).to_have_text(re.compile("Kernel gone"))
    expect(shown.locator(".trt-q-note")).to_contain_text("The kernel has gone")
    expect(shown.get_by_role("button", name=re.compile("^Cancel(?!led)"))).to_have_count(0)


def test_every_state_at_every_width(open_notebook: OpenNotebook) -> None:
    evil = f"""
r = fake_queue(21)
r.change(0, name={(HOSTILE * 400)!r}, error='e' * 9_000)
r.change(5, name='\\u202eevil\\nline', where='w' * 500)
Overview(r)
"""
    cells = (MANY, evil, "Overview(fake_queue(7, status='failed'))")
    notebook = opened(open_notebook, *cells, setup=FAKE)
    page = notebook.page
    page.evaluate(TOOLS)
    page.evaluate(AXE.read_text("utf-8"))
    for index in (1, 2, 3):
        notebook.run(index)
        view(notebook, index).locator(".trt-q-row").nth(5).click()
    faint: list[Any] = []
    for theme in ("light", "dark"):
        notebook.theme(theme)
        for index in (1, 2, 3):
            shown = view(notebook, index)
            expect(shown.locator(".trt-q-chosen")).not_to_contain_text("Loading")
            shown.scroll_into_view_if_needed()
            page.mouse.move(0, 0)
            for width in (320, 700, 900, 1280):
                wide = shown.evaluate(WIDE, width)
                assert wide == [], width
                assert shown.evaluate(COLUMNS) == [], width
            faint += [
                text
                for text in shown.evaluate("view => window.trt.textContrasts(view)")
                # The signs only repeat what a word beside them says.
                if text[2] < (3 if text[0].endswith("icon") else 4.5)
            ]
        notebook.screenshot(1, f"overview-{theme}")
        found = page.evaluate("async () => (await axe.run('.trt-queue')).violations")
        faint += [(each["id"], node["html"]) for each in found for node in each["nodes"]]
    assert faint == []
    assert page.evaluate("window.pwned") is None
    notebook.theme("light")
    notebook.assert_clean()
