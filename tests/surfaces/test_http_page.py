"""The page of ``trt-widget serve`` in a real Chromium, with a real EventSource."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests import models
from tests.browser.harness import Chromium, artifacts
from tests.surfaces.served import PATIENCE_S, ROOT, Served, wait_for, write_models

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page

SLOWLY = ("--configure", "tests.models:configure_slowly")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    expect.set_options(timeout=PATIENCE_S * 1000)
    with Chromium() as running:
        yield running
    expect.set_options(timeout=5_000)  # its default


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Every step of its builds takes 5 ms: a build of resnet50 lasts ten seconds."""
    with Served(write_models(tmp_path_factory.mktemp("models")), *SLOWLY) as server:
        yield server


@pytest.fixture
def context(chromium: Chromium) -> Iterator[BrowserContext]:
    made = chromium.new_context()
    made.set_default_timeout(PATIENCE_S * 1000)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Give a page; it must complain of nothing, neither errors nor what its policy forbids."""
    shown = context.new_page()
    said: list[str] = []
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on(
        "console", lambda message: said.append(message.text) if message.type == "error" else None
    )
    shown.on("dialog", lambda dialog: dialog.accept())
    yield shown
    expected = re.compile(r"Failed to load resource|ERR_(CONNECTION|EMPTY|INCOMPLETE)")
    assert [text for text in said if not expected.search(text)] == []


def open_page(page: Page, served: Served) -> None:
    page.goto(served.ready["page"])
    expect(page.locator("#main")).to_be_visible()


def rows(page: Page) -> list[str]:
    return page.locator("#rows .phase bdi").all_text_contents()


def note_sources(page: Page) -> None:
    """Have the page note its EventSources and their events, which stay as they are."""
    page.add_init_script(
        """window.sources = [];
        window.kinds = [];
        window.EventSource = class extends EventSource {
          constructor(...given) {
            super(...given);
            sources.push(this);
            for (const kind of ["open", "batch", "snapshot", "end", "error"]) {
              this.addEventListener(kind, () => kinds.push(kind));
            }
          }
        };"""
    )


def test_a_build_is_watched_and_cancelled(page: Page, served: Served) -> None:
    note_sources(page)
    open_page(page, served)
    assert page.url == f"{served.url}/"  # the token is gone from the address
    build = served.start("resnet50.onnx")
    entry = page.locator("#builds button", has_text="resnet50.onnx").first
    entry.click()
    expect(page.locator("#status")).to_contain_text("Running")
    row = page.locator("#rows li", has_text="Cloning network graph")
    expect(row).to_have_attribute("data-status", "running")
    bar = row.get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-label", "Cloning network graph")
    before = int(bar.get_attribute("aria-valuenow") or 0)
    wait_for(lambda: int(bar.get_attribute("aria-valuenow") or 0) > before)
    expect(row.locator(".steps")).to_have_text(re.compile(r"\d+ / \d+"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("Cancelled")
    expect(page.locator("#cause")).to_have_text("The build was cancelled.")
    expect(row).to_have_attribute("data-status", "cancelled")
    expect(page.locator("#cancel")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("resnet50.onnx: Cancelled")
    status = served.status(build)
    assert (status["status"], status["reason"]) == ("cancelled", "user")
    expect(entry).to_have_attribute("data-status", "cancelled")
    # The end is the end: nobody asks again.
    assert page.evaluate("sources.map((source) => source.readyState)") == [2]
    page.get_by_role("button", name="Delete").click()
    expect(entry).to_have_count(0)


def test_the_clock_starts_when_a_build_begins_to_run(page: Page, served: Served) -> None:
    first = served.start("resnet50.onnx")
    build = served.start("resnet50.onnx")
    open_page(page, served)
    page.evaluate("(id) => (location.hash = `build=${id}`)", build["id"])
    expect(page.locator("#status")).to_contain_text("Pending")
    expect(page.locator("#left")).to_contain_text("waiting for resnet50.onnx")
    waited = time.monotonic()
    wait_for(lambda: time.monotonic() - waited > 3.0)
    expect(page.locator("#elapsed")).to_have_text("")
    served.client.delete(f"/builds/{first['id']}").raise_for_status()
    expect(page.locator("#status")).to_contain_text("Running")
    row = page.locator("#rows li", has_text="Cloning network graph")
    expect(row).to_have_attribute("data-status", "running")
    times = [page.locator("#elapsed").text_content(), row.locator(".time").text_content()]
    truth = served.status(build)["elapsed_s"]
    assert all(0.0 < seconds(text or "") < truth + 0.2 for text in times), (times, truth)
    served.client.delete(f"/builds/{build['id']}").raise_for_status()


def seconds(text: str) -> float:
    """Read a time of less than a minute."""
    number, unit = text.split()
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


#: A stream as a server writes it, up to the middle of a build, and what follows.
MIDDLE = [
    {"event": "stream_start", "model": "m.onnx", "backend": "tensorrt_rtx", "backend_version": "1"},
    {"event": "status", "status": "running", "reason": None, "detail": None},
    {"event": "phase_start", "phase": "Building", "parent": None, "num_steps": 6},
    {"event": "phase_start", "phase": "Short", "parent": "Building", "num_steps": 6},
    {"event": "step_complete", "phase": "Short", "step": 4},
    {"event": "phase_finish", "phase": "Short", "time": 1.000009},
    {"event": "step_complete", "phase": "Building", "step": 4},
    {"event": "estimate", "progress": 0.32, "eta_s": 6.2, "exceeded": False},
]
CANCELLING = [
    {"event": "status", "status": "cancelling", "reason": "user", "detail": None},
    {"event": "estimate", "progress": 0.5, "eta_s": 4.0, "exceeded": False},
]
END = [
    {"event": "phase_finish", "phase": "Building"},
    {"event": "end", "status": "succeeded", "error": None, "notes": [], "engine_bytes": 10}
    | {"time": 7.4, "facts": {"duration_s": 7.3}},
]


def show_stream(page: Page, served: Served, *events: dict[str, Any]) -> None:
    """Have the page show a stream that was written by hand, of the newest of thirty builds."""
    summary = {"status": "running", "created": 1.0, "progress": 0.21, "eta_s": 1.0, "links": {}}
    summary |= {"elapsed_s": 1.0, "grace_s": 2.0, "name": "m.onnx"}
    links = dict.fromkeys(("timings", "log", "engine", "report"), "/x") | {"events": "/builds/e"}
    builds = [{**summary, "id": str(i), "links": links} for i in range(30)]
    lines = [json.dumps({"time": 1.0, "thread": 0, **event}) for event in events]
    data = "".join(f"data: {line}\n" for line in lines)
    last = f"event: end\nid: 1\ndata: {lines[-1]}\n\n" if events[-1]["event"] == "end" else ""
    page.route("**/builds", lambda route: route.fulfill(json={"builds": builds}))
    page.route(
        "**/builds/e",
        lambda route: route.fulfill(
            content_type="text/event-stream",
            body=f"retry: 1000000\nevent: batch\nid: 1\n{data}\n{last}",
        ),
    )
    open_page(page, served)
    expect(page.locator("#rows li")).to_have_count(2)


def test_what_is_said_twice_is_the_same(page: Page, served: Served) -> None:
    show_stream(page, served, *MIDDLE)
    expect(page.locator("#left")).to_have_text("32 % · about 6 s left")
    expect(page.locator("#builds .pill").first).to_have_text("32 %")
    expect(page.locator("#builds .pill").last).to_have_text("21 %")
    expect(page.locator("#meta")).to_have_text("TensorRT for RTX 1")
    expect(page.locator("#rows .time").last).to_have_text("9 µs")
    # TensorRT has left the last step out, and the phase is done all the same.
    expect(page.locator("#rows .steps")).to_have_text(["5 / 6", ""])
    expect(page.locator("#rows .bar").last).to_have_attribute("aria-valuenow", "100")


def test_the_time_of_the_end_is_the_builds(page: Page, served: Served) -> None:
    show_stream(page, served, *MIDDLE, *END)
    expect(page.locator("#cause")).to_have_text("The engine was built in 7.3 s.")
    expect(page.locator("#elapsed")).to_have_text("7.3 s")


def test_a_cancelled_build_gets_no_further(page: Page, served: Served) -> None:
    show_stream(page, served, *MIDDLE, *CANCELLING)
    stops = "It stops at the next step, at the latest after 2 s."
    expect(page.locator("#left")).to_have_text(stops)
    expect(page.locator("#whole")).to_have_attribute("aria-valuenow", "32")
    expect(page.locator("#builds .pill").first).to_have_text("■ Cancelling…")


def test_on_a_phone_the_chosen_build_is_in_sight(chromium: Chromium, served: Served) -> None:
    context = chromium.browser.new_context(viewport={"width": 380, "height": 720})
    try:
        page = context.new_page()
        show_stream(page, served, *MIDDLE)
        for what in ("#name", "#cancel", "#whole"):
            expect(page.locator(what)).to_be_in_viewport()
    finally:
        context.close()


def test_hostile_names_stay_text(page: Page, served: Served) -> None:
    name = f"{models.EVIL_NAME}\N{RIGHT-TO-LEFT OVERRIDE}txt"
    answer = served.client.post("/builds", params={"name": name}, content=b"no model")
    failed = answer.raise_for_status().json()
    served.wait(failed)
    build = served.start("evil.onnx")
    open_page(page, served)
    page.evaluate("(id) => (location.hash = `build=${id}`)", failed["id"])
    expect(page.locator("#name")).to_have_text(name)
    expect(page.locator("#status")).to_contain_text("Failed")
    expect(page.locator("#remedy")).not_to_be_empty()
    page.evaluate("(id) => (location.hash = `build=${id}`)", build["id"])
    expect(page.locator("#status")).to_contain_text("Succeeded")
    assert "Building engine" in rows(page)
    assert page.locator("img").count() == 0
    with page.expect_download() as download:
        page.get_by_role("link", name="Engine").click()
    size = served.status(build)["engine_bytes"]
    assert len(download.value.path().read_bytes()) == size
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Report").click()
    expect(popup.value.locator("h1, h2").first).to_contain_text("evil.onnx")
    # It is of no origin: what would run in it could do nothing here.
    assert popup.value.evaluate("origin") == "null"


def test_phases_named_by_a_stranger(page: Page, served: Served) -> None:
    """What a name of a phase can be, in the page's own fold of the stream."""
    open_page(page, served)
    lines = [
        {"event": "stream_start", "time": 0, "model": "m", "backend": "", "backend_version": ""},
        {"event": "phase_start", "phase": models.EVIL_NAME, "parent": None, "num_steps": 3},
        {"event": "phase_start", "phase": "__proto__", "parent": models.EVIL_NAME, "num_steps": 0},
        {"event": "phase_start", "phase": "__proto__", "parent": "__proto__", "num_steps": -1},
        {"event": "step_complete", "phase": models.EVIL_NAME, "step": 1},
    ]
    text = "\n".join(json.dumps({"time": 1, "thread": 0, **line}) for line in lines)
    found = page.evaluate(
        """async (text) => {
          const { Stream } = await import("/static/stream.js");
          const stream = new Stream();
          stream.take(text);
          return stream.phases().map(({ name, depth, step, open }) => [name, depth, step, open]);
        }""",
        text,
    )
    assert found == [[models.EVIL_NAME, 0, 2, 1], ["__proto__", 1, 0, 1], ["__proto__", 2, 0, 1]]


def test_the_pages_fold_is_the_trees(page: Page, served: Served) -> None:
    build = served.start("mlp.onnx")
    served.wait(build)
    lines = [*served.watch(build)]
    open_page(page, served)
    texts = page.evaluate(
        """async (address) => {
          const { Stream, statusOf } = await import("/static/stream.js");
          const stream = new Stream();
          const response = await fetch(address);
          for (const block of (await response.text()).split("\\n\\n")) {
            if (!/^event: (batch|snapshot)$/m.test(block)) continue;
            stream.take(block.split("\\n").filter((line) => line.startsWith("data: "))
              .map((line) => line.slice(6)).join("\\n"));
          }
          return stream.phases().map((phase) =>
            [phase.name, phase.depth, phase.count, phase.total, statusOf(phase)]);
        }""",
        build["links"]["events"],
    )
    expected = served.client.get(f"/builds/{build['id']}/timings").json()["phases"]
    names = ("phase", "depth", "count", "total_s", "status")
    assert [text[:3] for text in texts] == [[row[name] for name in names[:3]] for row in expected]
    assert [text[3] for text in texts] == pytest.approx([row["total_s"] for row in expected])
    assert {text[4] for text in texts} == {"done"}
    assert len(lines) == 2


class Cut:
    """A way to the server that can be cut, so that connections drop in the middle."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                with self._lock:
                    self._pairs.append((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        _drop(source, sink)

    def cut(self) -> None:
        """Drop all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _drop(*pair)

    def close(self) -> None:
        """Drop all connections, and take no more."""
        _drop(self._listener)
        self.cut()


def _drop(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def test_a_connection_that_drops(page: Page, served: Served) -> None:
    way = Cut(int(served.url.rpartition(":")[2]))
    try:
        note_sources(page)
        build = served.start("resnet50.onnx")
        page.goto(f"http://127.0.0.1:{way.port}/#token={served.token}&build={build['id']}")
        row = page.locator("#rows li", has_text="Cloning network graph")
        expect(row).to_have_attribute("data-status", "running")
        wait_for(lambda: "batch" in page.evaluate("kinds"))
        way.cut()
        # The browser asks again by itself, and goes on from a snapshot.
        wait_for(lambda: "snapshot" in kinds_after(page, "error"))
        assert page.evaluate("sources.length") == 1
        expect(page.locator("#contact")).to_be_hidden()
        bar = row.get_by_role("progressbar")
        before = int(bar.get_attribute("aria-valuenow") or 0)
        wait_for(lambda: int(bar.get_attribute("aria-valuenow") or 0) > before)
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_contain_text("Cancelled")
        assert rows(page)
        assert served.wait(build)["status"] == "cancelled"
        way.close()
        expect(page.locator("#alert")).to_have_text("The server does not answer.")
    finally:
        way.close()


def test_a_page_that_nobody_sees_holds_no_connection(page: Page, served: Served) -> None:
    note_sources(page)
    build = served.start("resnet50.onnx")
    open_page(page, served)
    page.evaluate("(id) => (location.hash = `build=${id}`)", build["id"])
    row = page.locator("#rows li", has_text="Cloning network graph")
    expect(row).to_have_attribute("data-status", "running")
    # A page of a Chromium without a window is always visible, so it is only told.
    tell = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(tell, True)
    assert page.evaluate("sources.at(-1).readyState") == 2
    page.evaluate(tell, False)
    wait_for(lambda: page.evaluate("sources.at(-1).readyState") == 1)
    bar = row.get_by_role("progressbar")
    before = int(bar.get_attribute("aria-valuenow") or 0)
    wait_for(lambda: int(bar.get_attribute("aria-valuenow") or 0) > before)
    served.client.post(f"/builds/{build['id']}/cancel").raise_for_status()
    expect(page.locator("#status")).to_contain_text("Cancelled")


def kinds_after(page: Page, kind: str) -> list[str]:
    """Give the events that the page's stream has had since the last one of a kind."""
    kinds: list[str] = page.evaluate("kinds")
    return kinds[len(kinds) - kinds[::-1].index(kind) :] if kind in kinds else []


def test_a_server_that_ends(page: Page, tmp_path: Path) -> None:
    with Served(write_models(tmp_path / "models"), *SLOWLY) as served:
        open_page(page, served)
        served.start("resnet50.onnx")
        expect(page.locator("#rows li")).not_to_have_count(0)
        assert served.end() == (0, "")
    expect(page.locator("#status")).to_contain_text("Cancelled")
    expect(page.locator("#cause")).to_contain_text("closed")


def test_a_build_that_is_forgotten_before_its_stream_ends(page: Page, served: Served) -> None:
    """As when the server ends: what comes last is shown all the same."""
    build = served.start("resnet50.onnx")
    open_page(page, served)
    expect(page.locator("#rows li")).not_to_have_count(0)
    page.route(re.compile("/builds$"), lambda route: route.fulfill(json={"builds": []}))
    expect(page.locator("#none")).to_be_visible()
    expect(page.locator("#build")).to_be_visible()
    served.client.post(f"/builds/{build['id']}/cancel")
    expect(page.locator("#status")).to_contain_text("Cancelled")
    expect(page.locator("#build")).to_be_visible()


def test_who_has_no_token(page: Page, served: Served) -> None:
    page.goto(served.url)
    expect(page.locator("#login")).to_be_visible()
    expect(page.locator("#main")).to_be_hidden()
    page.get_by_label("Token").fill("not the token of this server")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("not this server's")
    page.get_by_label("Token").fill(served.token)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#main")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.reload()  # the tab has kept it
    expect(page.locator("#main")).to_be_visible()
    assert page.context.cookies() == []


def test_a_model_is_uploaded(page: Page, served: Served, tmp_path: Path) -> None:
    open_page(page, served)
    write_models(tmp_path)
    page.get_by_label("Build an ONNX model").set_input_files(tmp_path / "mlp.onnx")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#name")).to_have_text("mlp.onnx")
    expect(page.locator("#status")).to_contain_text("Succeeded")
    expect(page.locator("#cause")).to_contain_text("The engine was built in")


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A page of another server of this machine, which is the same *site* for a browser."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: Any) -> None:
        pass


ATTACKS = """async ([url, id, token, events]) => {
  const done = {};
  const attempt = async (name, action) => {
    try { done[name] = await action(); } catch (error) { done[name] = error.name; }
  };
  const send = (name, path, options) =>
    attempt(name, async () => {
      const answer = await fetch(url + path, { credentials: "include", ...options });
      return answer.type === "opaque" ? "opaque" : answer.status;
    });
  const body = JSON.stringify({ model: "mlp.onnx" });
  const json = { "Content-Type": "application/json" };
  const knows = { Authorization: `Bearer ${token}` };
  const [one, cancel] = [`/builds/${id}`, `/builds/${id}/cancel`];
  await send("simple cancel", cancel, { method: "POST", mode: "no-cors" });
  await send("simple start", "/builds", { method: "POST", mode: "no-cors", body });
  await send("cancel", cancel, { method: "POST" });
  await send("start", "/builds", { method: "POST", headers: json, body });
  await send("delete", one, { method: "DELETE" });
  // Also one that has the token.
  await send("cancel with token", cancel, { method: "POST", headers: knows });
  await send("read with token", "/builds", { headers: knows });
  await send("read by link", events, {});
  await attempt("watch", () => new Promise((resolve) => {
    const source = new EventSource(url + events);
    source.onmessage = source.onopen = () => resolve("open");
    source.onerror = () => { source.close(); resolve("error"); };
  }));
  const form = document.body.appendChild(document.createElement("form"));
  form.method = "POST";
  form.action = url + cancel;
  form.target = document.body.appendChild(document.createElement("iframe")).name = "frame";
  form.submit();
  await new Promise((resolve) => setTimeout(resolve, 500));
  const frame = document.body.appendChild(document.createElement("iframe"));
  await new Promise((resolve) => { frame.onload = resolve; frame.src = url; });
  await attempt("frame", () => frame.contentWindow.document.title);
  return done;
}"""


@pytest.mark.parametrize("place", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin(context: BrowserContext, served: Served, place: str) -> None:
    elsewhere = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    try:
        own = context.new_page()  # the person has our page open, too
        open_page(own, served)
        build = served.start("resnet50.onnx")
        before = len(served.client.get("/builds").json()["builds"])
        page = context.new_page()
        page.goto(f"http://{place}:{elsewhere.server_port}/")
        given = [served.url, build["id"], served.token, build["links"]["events"]]
        done = page.evaluate(ATTACKS, given)
        # The answer to a simple request is hidden from the page; what it came to is seen below.
        assert {done.pop("simple cancel"), done.pop("simple start")} <= {"opaque", "TypeError"}
        assert done.pop("watch") == "error"
        assert done.pop("frame") == "SecurityError"
        assert set(done.values()) == {"TypeError"}, done
        assert served.status(build)["status"] in {"pending", "running"}
        assert len(served.client.get("/builds").json()["builds"]) == before
        served.client.delete(f"/builds/{build['id']}").raise_for_status()
    finally:
        elsewhere.shutdown()
        elsewhere.server_close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_how_it_looks(chromium: Chromium, served: Served, scheme: Any) -> None:
    """Pictures for whoever looks; and what assistive technology would miss."""
    context = chromium.browser.new_context(
        viewport={"width": 1180, "height": 720}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    try:
        page = context.new_page()
        open_page(page, served)
        failed, build = served.start("odd.onnx"), served.start("resnet50.onnx")
        page.evaluate("(id) => (location.hash = `build=${id}`)", build["id"])
        expect(page.locator("#name")).to_have_text("resnet50.onnx")
        expect(page.locator("#rows li")).to_have_count(2)
        page.screenshot(path=artifacts() / f"http-running-{scheme}.png")
        assert_accessible(page)
        served.client.post(f"/builds/{build['id']}/cancel").raise_for_status()
        expect(page.locator("#outcome")).to_be_visible()
        page.evaluate("(id) => (location.hash = `build=${id}`)", failed["id"])
        expect(page.locator("#status")).to_contain_text("Failed")
        page.locator("#words-title").click()
        page.screenshot(path=artifacts() / f"http-failed-{scheme}.png")
        assert_accessible(page)
        page.set_viewport_size({"width": 380, "height": 720})
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
    finally:
        context.close()


def assert_accessible(page: Page) -> None:
    # Through the debugger: the page's own policy lets no other script in.
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    faults = [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]
    assert faults == []
