"""``trt-widget serve``: real servers, real builds, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import httpx
import onnx
import psutil
import pytest

from tests import models
from tests.surfaces.served import PATIENCE_S, ROOT, Served, fold, parse, wait_for, write_models
from tests.surfaces.terminals import Terminal
from trt_widget import Build
from trt_widget.broadcast import Broadcast
from trt_widget.events import BuildEnded, Snapshot, StreamStarted
from trt_widget.executors.lock import runtime_folder
from trt_widget.servers import _sse
from trt_widget.servers._uploads import safe_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.surfaces.served import Sent

PROBLEM = "application/problem+json"
SLOWLY = ("--configure", "tests.models:configure_slowly")
BY_NAME = ("--configure", "tests.models:configure_by_name")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_models(tmp_path_factory.mktemp("models") / "root")
    (folder.parent / "outside.onnx").write_bytes((folder / "mlp.onnx").read_bytes())
    (folder / "link.onnx").symlink_to(folder.parent / "outside.onnx")
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    with Served(root, *BY_NAME, "--max-upload", "1M", "--max-waiting", "3") as served:
        yield served


@pytest.fixture(scope="module")
def slow(root: Path) -> Iterator[Served]:
    """Every step of its builds takes 5 ms: a build of resnet50 lasts ten seconds."""
    with Served(root, *SLOWLY, "--max-waiting", "1", "--keep", "2") as served:
        yield served


def raw(served: Served, path: str, *headers: str, small: bool = False) -> socket.socket:
    """Send a request and give the connection, from which nothing was read."""
    address = urlsplit(served.url)
    assert address.port is not None
    connection = socket.socket()
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", address.port))
    lines = [path if " " in path else f"GET {path}", *headers]
    lines[0] += " HTTP/1.1"
    if not any(header.startswith("Host:") for header in headers):
        lines.append(f"Host: {address.netloc}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    parts = []
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def scratch_of(served: Served) -> list[Path]:
    """Give the folders of uploads of one server: those that came with it."""
    inside = [Path(entry.path) for entry in psutil.Process(served.process.pid).open_files()]
    locks = [path for path in inside if path.name.startswith("serve-")]
    assert len(locks) == 1
    return list(locks[0].with_suffix("").iterdir())


def outcome_of(sent: list[Sent]) -> BuildEnded:
    """Give the outcome, and see that the stream has said it as it should."""
    assert [event.kind for event in sent].count("end") == 1
    assert sent[-1].kind == "end"
    (ended,) = sent[-1].events
    assert isinstance(ended, BuildEnded)
    assert sent[-2].events[-1] == ended
    assert sent[-2].number == sent[-1].number
    numbers = [event.number for event in sent[:-1]]
    assert numbers == sorted(set(numbers))
    assert isinstance(sent[0].events[0], StreamStarted)
    return ended


def problem_in(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == PROBLEM
    found: dict[str, Any] = answer.json()
    assert found["status"] == answer.status_code
    assert found["cause"] == found["detail"]
    return found


# ------------------------------------------------------------------ a build from start to end


def test_a_build_by_name(server: Served) -> None:
    answer = server.client.post(
        "/builds", json={"model": "mlp.onnx", "options": {"timeout": 60}, "name": "<b>mine</b>"}
    )
    assert answer.status_code == 201
    build = answer.json()
    assert answer.headers["location"] == f"/builds/{build['id']}"
    assert build["name"] == "<b>mine</b>"
    sent = list(server.watch(build))
    ended = outcome_of(sent)
    assert ended.status == "succeeded"
    status = server.status(build)
    assert status["status"] == "succeeded"
    assert status["result"]["engine_bytes"] == status["engine_bytes"] == ended.engine_bytes
    assert status["error"] is None
    assert server.client.get("/builds").json()["builds"][0]["id"] == build["id"]

    tree = fold(sent)
    timings = server.client.get(f"/builds/{build['id']}/timings").json()
    assert timings["complete"] is True
    columns = tree.timing_columns()
    for name in ("path", "count", "steps", "status"):
        seen = [row[name] for row in timings["phases"]]
        # How it ended is said once, at the end.
        assert seen == (columns[name] if name != "status" else ["done"] * len(seen))
    text = server.client.get(f"/builds/{build['id']}/timings", params={"format": "csv"})
    assert text.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text.text)))
    assert [row["path"] for row in rows] == columns["path"]

    engine = server.client.get(f"/builds/{build['id']}/engine")
    assert engine.headers["content-type"] == "application/octet-stream"
    assert "attachment" in engine.headers["content-disposition"]
    assert len(engine.content) == ended.engine_bytes
    import tensorrt_rtx as trt

    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    # Without a GPU it is only recognized: that it is an engine is seen by its head.
    assert runtime.get_engine_validity(engine.content)[0] is not None
    log = server.client.get(f"/builds/{build['id']}/log")
    assert log.headers["content-type"].startswith("text/plain")
    assert " info: " in log.text
    report = server.client.get(f"/builds/{build['id']}/report")
    assert "sandbox" in report.headers["content-security-policy"]
    assert "&lt;b&gt;mine&lt;/b&gt;" in report.text
    assert "<b>mine" not in report.text

    assert server.client.delete(f"/builds/{build['id']}").status_code == 204
    gone = server.client.get(f"/builds/{build['id']}")
    assert gone.status_code == 404
    assert "no build" in problem_in(gone)["cause"]


def test_an_uploaded_model(server: Served, root: Path) -> None:
    data = (root / "dynamic.onnx").read_bytes()
    options = {"profiles": {"x": [[1, 8], [2, 8], [4, 8]]}, "timeout": 60}
    answer = server.client.post(
        "/builds",
        params={"options": json.dumps(options), "name": "of mine"},
        content=(data[place : place + 10] for place in range(0, len(data), 10)),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == 201, answer.text
    build = answer.json()
    assert build["name"] == "of mine"
    (folder,) = scratch_of(server)
    assert server.wait(build)["status"] == "succeeded"
    assert (folder / "of_mine").read_bytes() == data
    server.client.delete(f"/builds/{build['id']}").raise_for_status()
    assert scratch_of(server) == []


def test_names_of_uploads_and_downloads(server: Served, root: Path) -> None:
    odd = server.client.post("/builds", params={"name": "env.sh"}, content=b"echo").json()
    assert server.wait(odd)["error"]["cause"].startswith("env.sh ")
    data = (root / "mlp.onnx").read_bytes()
    names = [server.client.post("/builds", content=data).json()["name"] for _ in range(2)]
    assert all(re.fullmatch(r"uploaded model \d+", name) for name in names)
    assert names[0] != names[1]
    name = '../模型 "1"\r\n.onnx'
    build = server.client.post("/builds", params={"name": name}, content=data).json()
    assert build["name"] == name
    assert server.wait(build)["status"] == "succeeded"
    answer = server.client.get(f"/builds/{build['id']}/engine")
    plain, _, full = answer.headers["content-disposition"].partition("; filename*=UTF-8''")
    assert plain == 'attachment; filename="___1.engine"'
    assert unquote(full) == "模型_1.engine"
    csv_ = server.client.get(f"/builds/{build['id']}/timings", params={"format": "csv"})
    assert unquote(csv_.headers["content-disposition"]).endswith("模型_1-timings.csv")
    for entry in server.client.get("/builds").json()["builds"]:
        server.client.delete(f"/builds/{entry['id']}").raise_for_status()
    assert scratch_of(server) == []


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("densenet-12.onnx", "densenet-12.onnx"),
        ("../../.bashrc", "bashrc"),
        ("C:\\CON", "C_CON"),
        ("NUL.onnx", "model_NUL.onnx"),
        ("-rf *", "rf"),
        ("", "model"),
        ("\ud800\0", "model"),
        ("a" * 300 + ".onnx", "a" * 27 + "_" + "a" * 22 + ".onnx"),
    ],
)
def test_a_name_for_a_file(name: str, safe: str) -> None:
    assert safe_name(name) == safe
    assert len(safe_name(name).encode()) <= 255 - len("-timings.csv")


def test_an_upload_reads_no_file_of_the_server(server: Served, tmp_path: Path) -> None:
    path = models.save_external(models.mlp(), tmp_path / "mlp.onnx")
    made = onnx.load(str(path), load_external_data=False)
    for place in (str(tmp_path / "weights.bin"), "../weights.bin", "model.onnx", "weights.bin"):
        for tensor in made.graph.initializer:
            tensor.external_data[0].value = place
        build = server.client.post("/builds", content=made.SerializeToString()).json()
        ended = server.wait(build)
        assert ended["status"] == "failed", place
        assert ended["error"]["class"] in {"SourceError", "ParseFailed"}, ended["error"]
        server.client.delete(f"/builds/{build['id']}").raise_for_status()


def test_a_build_that_fails(server: Served) -> None:
    build = server.start("odd.onnx")
    ended = outcome_of(list(server.watch(build)))
    assert ended.status == "failed"
    assert ended.error is not None
    assert "Nope" in ended.error["cause"]
    status = server.status(build)
    assert status["error"]["cause"] == ended.error["cause"]
    assert status["error"]["remedy"]
    engine = server.client.get(f"/builds/{build['id']}/engine")
    assert engine.status_code == 409
    assert problem_in(engine)["cause"].endswith("it is failed.")


def test_a_log_controls_no_terminal_and_forges_no_message(server: Served) -> None:
    model = models.unknown_operators("No\x1b[31mpe\n     0.000 error: forged\u202e")
    build = server.client.post("/builds", content=model.SerializeToString()).json()
    assert server.wait(build)["status"] == "failed"
    log = server.client.get(f"/builds/{build['id']}/log").text
    assert "No\\x1b[31mpe\\n     0.000 error: forged\\u202e" in log
    assert all(text.isprintable() for text in log.split("\n"))
    assert not any("0.000 error: forged" in text[:30] for text in log.split("\n"))
    assert re.search(r"^ +\d+\.\d{3} error: ", log, re.MULTILINE)
    server.client.delete(f"/builds/{build['id']}").raise_for_status()


def test_a_build_that_crashes(server: Served) -> None:
    build = server.start("crash.onnx")
    ended = outcome_of(list(server.watch(build)))
    assert (ended.status, ended.ended_by) == ("failed", "crashed")
    assert ended.error is not None
    assert ended.error["signal"] == "SIGSEGV"
    assert server.client.get("/builds").status_code == 200


def test_a_cancel_in_silence(server: Served) -> None:
    build = server.start("transformer.onnx", grace=0.3)
    sent = []
    for event in server.watch(build):
        sent.append(event)
        if len(sent) == 1 or event.kind == "end":
            continue
        status = server.status(build)
        if status["phase"] and status["status"] == "running":
            assert server.client.post(f"/builds/{build['id']}/cancel").json()["cancelled"]
    ended = outcome_of(sent)
    assert (ended.status, ended.reason) == ("cancelled", "user")
    assert server.family() == []


def test_a_cancel_at_a_step(slow: Served) -> None:
    build = slow.start("resnet50.onnx")
    wait_for(lambda: bool(slow.status(build)["phase"]))
    assert len(slow.family()) == 1
    answer = slow.client.post(f"/builds/{build['id']}/cancel").json()
    assert answer == {"cancelled": True, "status": "cancelling"}
    assert slow.wait(build)["result"]["ended_by"] == "step"
    answer = slow.client.post(f"/builds/{build['id']}/cancel").json()
    assert answer == {"cancelled": False, "status": "cancelled"}
    wait_for(lambda: not slow.family())
    assert slow.client.get(f"/builds/{build['id']}/engine").status_code == 409


# ------------------------------------------------------------------ streams


def test_who_comes_late_sees_the_same(slow: Served) -> None:
    build = slow.start("mlp.onnx")
    throughout: list[Sent] = []
    reader = threading.Thread(target=lambda: throughout.extend(slow.watch(build)))
    reader.start()
    first = next(slow.watch(build))
    again = list(slow.watch(build, after=first.number))
    reader.join(PATIENCE_S)
    assert again[0].kind == "snapshot"
    assert again[0].number >= first.number
    assert any(isinstance(event, Snapshot) for event in again[0].events)
    late = list(slow.watch(build))
    assert [event.kind for event in late] == ["snapshot", "end"]
    ended = outcome_of(throughout)
    assert ended.status == "succeeded"
    assert outcome_of(again) == outcome_of(late) == ended
    trees = [fold(sent) for sent in (throughout, again, late)]
    for tree in trees:
        tree.close(ended.status, ended.time)
    one, two, three = (tree.timing_columns() for tree in trees)
    assert one["path"]
    for name in ("path", "count", "steps", "num_steps", "status"):
        assert one[name] == two[name] == three[name], name
    for other in (two, three):
        assert other["total_s"] == pytest.approx(one["total_s"], abs=1e-6)


def test_a_client_that_has_had_the_end_is_sent_away_for_good(server: Served) -> None:
    build = server.start("mlp.onnx")
    last = list(server.watch(build))[-1].number
    address = f"/builds/{build['id']}/events"
    again = server.client.get(address, headers={"Last-Event-ID": str(last)})
    assert again.status_code == 204
    # Who has lost the last batch gets it.
    assert [sent.kind for sent in server.watch(build, after=last - 1)] == ["snapshot", "end"]
    # An id that is none of ours is one of somebody who knows nothing.
    for strange in ("x", "-1", "9" * 5000):
        answer = server.client.get(address, headers={"Last-Event-ID": strange})
        assert [sent.kind for sent in parse(answer.text.splitlines())] == ["snapshot", "end"]


def test_a_stream_without_news_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sse, "HEARTBEAT_S", 0.05)
    build = Build(models.mlp().SerializeToString())  # never started: there is nothing to tell
    sent: list[bytes] = []

    async def run() -> None:
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sent.count(b": still here\n\n") == 3:
                build.close()

        stream = _sse.EventStream(Broadcast(build).reader(full=False), None, lambda: 0.0)
        await asyncio.wait_for(stream({"type": "http", "state": {}}, receive, send), PATIENCE_S)  # type: ignore[arg-type]  # as ASGI has it

    asyncio.run(run())
    text = b"".join(sent).decode()
    assert text.startswith("retry: ")
    assert [event.kind for event in parse(text.splitlines())][-1] == "end"


def test_two_hundred_clients_and_some_that_never_read(server: Served) -> None:
    memory = psutil.Process(server.process.pid).memory_info
    before = peak = memory().rss
    build = server.start("flood.onnx")
    path = build["links"]["events"]
    silent = [raw(server, path, small=True) for _ in range(40)]

    async def read() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        last = b""
        while not last.endswith(b"0\r\n\r\n"):
            part = await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S)
            assert part
            last = (last + part)[-4096:]
        writer.close()
        return last

    async def watch() -> None:
        nonlocal peak
        while server.process.poll() is None:
            peak = max(peak, memory().rss)
            await asyncio.sleep(0.1)

    async def everybody() -> list[bytes]:
        watching = asyncio.ensure_future(watch())
        found = await asyncio.gather(*(read() for _ in range(160)))
        watching.cancel()
        return found

    found = asyncio.run(everybody())
    ends = {text[text.index(b"event: end") :].partition(b"\n\n")[0] for text in found}
    assert len(ends) == 1
    assert b'"status":"succeeded"' in ends.pop()
    grown = (max(peak, memory().rss) - before) / 1e6
    assert grown < 200 * 0.5, f"{grown:.0f} MB"
    # They are still there, and cost nobody anything.
    assert server.client.get("/builds").status_code == 200
    for connection in silent:
        connection.close()


def test_clients_that_have_gone_leave_nothing(slow: Served) -> None:
    build = slow.start("resnet50.onnx")
    process = psutil.Process(slow.process.pid)
    wait_for(lambda: bool(slow.status(build)["phase"]))
    sizes = []
    for _ in range(4):
        before = process.num_fds()
        for _ in range(4):
            clients = [raw(slow, build["links"]["events"]) for _ in range(50)]
            for client in clients:
                assert client.recv(1)
                client.close()
        wait_for(lambda fds=before: process.num_fds() <= fds)  # type: ignore[misc]  # mypy cannot infer it
        sizes.append(process.memory_info().rss)
    grown = (sizes[-1] - sizes[-3]) / 400
    assert grown < 5_000, f"{grown:.0f} bytes a client"
    slow.client.delete(f"/builds/{build['id']}").raise_for_status()
    wait_for(lambda: not slow.family())


def test_who_takes_nothing_for_too_long_is_cut_off(root: Path) -> None:
    patience = "from trt_widget.servers import _uvicorn; _uvicorn.STALL_S = 1.0"
    with Served(root, *BY_NAME, first=patience) as served:
        build = served.start("flood.onnx")
        connection = raw(served, build["links"]["events"], small=True)
        me = f"127.0.0.1:{connection.getsockname()[1]}"

        def held() -> bool:
            found = psutil.Process(served.process.pid).net_connections("tcp")
            return any(c.raddr and f"{c.raddr.ip}:{c.raddr.port}" == me for c in found)

        wait_for(held)
        assert served.wait(build)["status"] == "succeeded"
        wait_for(lambda: not held())
        connection.close()


# ------------------------------------------------------------------ what is refused

WRONG = [
    ("{", 422, "JSON"),
    ("[]", 422, "object"),
    ('"model"', 422, "object"),
    ("{}", 422, "model"),
    ('{"model": 3}', 422, "model"),
    ('{"model": ""}', 422, "model"),
    ('{"model": "mlp.onnx", "more": 1}', 422, "more"),
    ('{"model": "mlp.onnx", "options": {"timeout": NaN}}', 422, "timeout"),
    ('{"model": "mlp.onnx", "options": {"timeout": 1e999}}', 422, "timeout"),
    ('{"model": "mlp.onnx", "options": {"timeout": 1e300}}', 422, "timeout"),
    ('{"model": "mlp.onnx", "options": {"timeout": -1}}', 422, "timeout"),
    ('{"model": "mlp.onnx", "options": {"output": "/tmp/x"}}', 422, "output"),
    ('{"model": "mlp.onnx", "options": {"plugins": ["/tmp/x.so"]}}', 422, "plugins"),
    ('{"model": "mlp.onnx", "options": {"configure": "os:system"}}', 422, "configure"),
    ('{"model": "mlp.onnx", "options": {"timing_cache": "/tmp/x"}}', 422, "timing_cache"),
    ('{"model": "mlp.onnx", "options": {"optimization_level": "3"}}', 422, "optimization_level"),
    ('{"model": "mlp.onnx", "options": {"optimization_level": 9}}', 422, "optimization_level"),
    ('{"model": "mlp.onnx", "options": {"flags": "NO_SUCH"}}', 422, "NO_SUCH"),
    ('{"model": "mlp.onnx", "options": {"profiles": {"x": [[4], [2], [1]]}}}', 422, "x"),
    ('{"model": "mlp.onnx", "options": ' + "[" * 100_000 + "]" * 100_000 + "}", 422, "JSON"),
    ('{"model": "nothing.onnx"}', 404, "nothing.onnx"),
    ('{"model": "' + "x" * 3000 + '"}', 404, "xxx"),
    ('{"model": "."}', 404, "."),
    ('{"model": "../outside.onnx"}', 403, "out"),
    ('{"model": "link.onnx"}', 403, "out"),
    ('{"model": "/etc/passwd"}', 403, "out"),
    ('{"model": "/proc/self/mem"}', 403, "out"),
    ('{"model": "mlp.onnx\\u0000"}', 403, "path"),
    ('{"model": "\\ud800"}', 422, "JSON"),
]


@pytest.mark.parametrize(("body", "code", "word"), WRONG, ids=[b[:60] for b, _, _ in WRONG])
def test_a_wrong_request(server: Served, body: str, code: int, word: str) -> None:
    before = server.client.get("/builds").json()["builds"]
    answer = server.client.post(
        "/builds", content=body.encode(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == code, answer.text
    assert word in problem_in(answer)["cause"]
    assert server.client.get("/builds").json()["builds"] == before


@pytest.mark.parametrize(
    "body",
    [
        {"model": "mlp.onnx", "options": {"flags": ["X" * 100_000]}},
        {"model": "mlp.onnx", "options": {"X" * 100_000: 1}},
        {"model": "mlp.onnx", "options": {"target": "X" * 100_000}},
        {"model": "X" * 100_000},
    ],
    ids=["value", "name", "target", "model"],
)
def test_an_answer_does_not_repeat_a_long_request(server: Served, body: dict[str, Any]) -> None:
    answer = server.client.post("/builds", json=body)
    assert 400 <= answer.status_code < 500
    assert problem_in(answer)["cause"]
    assert len(answer.content) < 10_000


def test_options_of_an_upload_are_checked_before_it(server: Served) -> None:
    for options, word in (("{", "JSON"), ('{"x": 1}', "x"), ("3", "object")):
        answer = server.client.post("/builds", params={"options": options}, content=b"model")
        assert answer.status_code == 422
        assert word in problem_in(answer)["cause"]
    for form in (
        server.client.post("/builds", files={"model": b"model"}),
        # As `curl -d` sends it.
        server.client.post(
            "/builds",
            content=b'{"model": "mlp.onnx"}',
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        ),
    ):
        assert form.status_code == 415
        assert "--data-binary" in problem_in(form)["remedy"]
        assert "Content-Type: application/json" in problem_in(form)["remedy"]
    empty = server.client.post("/builds", content=b"")
    assert "empty" in problem_in(empty)["cause"]
    assert scratch_of(server) == []


@pytest.mark.parametrize("announced", [True, False])
def test_an_upload_that_is_too_large(server: Served, announced: bool) -> None:
    data = b"x" * (3 << 20)
    pieces = (data[place : place + (1 << 16)] for place in range(0, len(data), 1 << 16))
    answer = server.client.post("/builds", content=data if announced else pieces)
    assert answer.status_code == 413
    assert "1,048,576" in problem_in(answer)["cause"]
    large = b'{"model": "' + b"x" * (2 << 20) + b'"}'
    answer = server.client.post(
        "/builds", content=large, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert scratch_of(server) == []
    assert server.client.get("/builds").status_code == 200


def test_uploads_that_do_not_go_on(root: Path) -> None:
    patience = "from trt_widget.servers import _uploads; _uploads.STALL_S = 2.0"
    with Served(root, first=patience) as served:
        authorization = f"Authorization: Bearer {served.token}"
        lines = ("POST /builds", authorization, "Content-Length: 100")
        waiting = [raw(served, *lines) for _ in range(4)]
        wait_for(lambda: len(scratch_of(served)) == 4)
        full = served.client.post("/builds", content=b"model")
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) > 0
        assert "uploaded" in problem_in(full)["cause"]
        waiting.pop().close()  # a client that goes away in the middle
        asking = raw(served, *lines, "Content-Type: application/json")
        asking.sendall(b'{"model": ')
        assert rest_of(asking).startswith(b"HTTP/1.1 408 ")
        for connection in waiting:
            assert rest_of(connection).startswith(b"HTTP/1.1 408 ")
        wait_for(lambda: scratch_of(served) == [])


def test_what_waits_and_what_is_kept_is_bounded(slow: Served, root: Path) -> None:
    builds = [slow.start("resnet50.onnx"), slow.start("resnet50.onnx")]
    full = slow.client.post("/builds", json={"model": "resnet50.onnx"})
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) > 0
    assert "run or wait" in problem_in(full)["cause"]
    # The answer to its start has said for whom it waits.
    assert "resnet50.onnx" in builds[1]["waiting_for"]
    assert all(re.fullmatch("[0-9a-f]{24}", build["id"]) for build in builds)
    data = (root / "mlp.onnx").read_bytes()
    assert slow.client.post("/builds", content=data).status_code == 429
    assert scratch_of(slow) == []
    slow.client.post(f"/builds/{builds[1]['id']}/cancel").raise_for_status()
    # It never began to run, however long it has waited.
    assert slow.wait(builds[1])["elapsed_s"] == 0.0
    assert slow.client.get("/builds").json()["builds"][0]["elapsed_s"] == 0.0
    for build in builds:
        slow.client.delete(f"/builds/{build['id']}").raise_for_status()
    wait_for(lambda: not slow.family())
    kept = []
    for _ in range(5):
        kept.append(slow.client.post("/builds", content=b"no model").json())
        assert outcome_of(list(slow.watch(kept[-1]))).status == "failed"
    # The last but one may have ended too short a time ago to be counted.
    assert 2 <= len(scratch_of(slow)) <= 3
    assert slow.client.get(f"/builds/{kept[0]['id']}").status_code == 404


def test_what_is_not_there(server: Served) -> None:
    answer = server.client.get("/nothing")
    assert answer.status_code == 404
    assert "/nothing" in problem_in(answer)["cause"]
    answer = server.client.put("/builds")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert "PUT" in problem_in(answer)["cause"]
    assert server.client.get("/builds/x/events").status_code == 404
    assert server.client.get("/static/../app.py").status_code == 404
    assert server.client.get("/static/%2e%2e/app.py").status_code == 404
    assert server.client.get("/builds/x/timings?format=xml").status_code == 422


# ------------------------------------------------------------------ who may ask

READS = ("", "/events", "/timings", "/log", "/engine", "/report")


def test_everything_needs_the_token(server: Served) -> None:
    build = server.start("mlp.onnx")
    server.wait(build)
    asked = [("GET", "/builds"), ("POST", "/builds"), ("GET", "/nothing"), ("OPTIONS", "/builds")]
    asked += [("GET", f"/builds/{build['id']}{what}") for what in READS]
    asked += [("POST", f"/builds/{build['id']}/cancel"), ("DELETE", f"/builds/{build['id']}")]
    given = (
        "",
        "Bearer",
        "Bearer x",
        f"Basic {server.token}",
        f"Bearer {server.token}x",
        "Bearer ü",
    )
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for method, path in asked:
            for token in given:
                headers = {"Authorization": token.encode()} if token else {}
                answer = client.request(method, path, headers=headers)  # type: ignore[arg-type]  # bytes are taken
                assert answer.status_code == 401, (method, path, token)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                problem_in(answer)
        # The scheme's name is written as one likes.
        headers = {"Authorization": f"bearer {server.token}"}
        assert client.get("/builds", headers=headers).status_code == 200
        for public in ("/", "/static/page.js", "/static/stream.js", "/static/page.css"):
            assert client.get(public).status_code == 200
        assert client.get("/openapi.json").json()["info"]["title"] == "trt-widget"
    assert server.status(build)["status"] == "succeeded"


def test_a_key_reads_one_build_and_does_nothing(server: Served) -> None:
    one, two = server.start("mlp.onnx"), server.start("mlp.onnx")
    for build in (one, two):
        server.wait(build)
    key = one["links"]["events"].partition("?")[2]
    other = two["links"]["events"].partition("?")[2]
    assert key != other
    assert server.token not in key
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for what in READS:
            path = f"/builds/{one['id']}{what}"
            assert client.get(f"{path}?{key}").status_code == 200, what
            for wrong in (other, f"{key}&{other}", f"{key}0", "key=", "key=%c3%86"):
                assert client.get(f"{path}?{wrong}").status_code == 401, (what, wrong)
        assert client.post(f"/builds/{one['id']}/cancel?{key}").status_code == 401
        assert client.delete(f"/builds/{one['id']}?{key}").status_code == 401
        assert client.get(f"/builds?{key}").status_code == 401


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://127.0.0.1:1"},  # another server of this machine
    {"Origin": "ftp://{host}"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost.evil.example:80"},
    {"Host": ""},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_page_of_another_origin(slow: Served, headers: dict[str, str]) -> None:
    host = urlsplit(slow.url).netloc
    headers = {name: value.format(host=host) for name, value in headers.items()}
    build = slow.start("resnet50.onnx")
    asked = [
        ("POST", "/builds", b'{"model": "mlp.onnx"}'),
        ("POST", f"/builds/{build['id']}/cancel", b""),
        ("DELETE", f"/builds/{build['id']}", b""),
        ("GET", "/builds", b""),
        ("GET", build["links"]["events"], b""),
        ("OPTIONS", "/builds", b""),
    ]
    for method, path, content in asked:
        answer = slow.client.request(method, path, content=content, headers=headers)
        assert answer.status_code == 403, (method, path)
        problem_in(answer)
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert slow.client.get("/builds").json()["builds"][0]["id"] == build["id"]
    assert slow.status(build)["status"] in {"pending", "running"}
    slow.client.delete(f"/builds/{build['id']}").raise_for_status()
    wait_for(lambda: not slow.family())


def test_our_own_page_a_tunnel_and_a_link_are_let_in(server: Served) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert server.client.get("/builds", headers=own).status_code == 200
    for host in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", "localhost"):
        tunnel = {"Host": host, "Origin": f"http://{host}"}
        assert server.client.get("/builds", headers=tunnel).status_code == 200, host
    build = server.start("mlp.onnx")
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert server.client.get(build["links"]["report"], headers=link).status_code == 200
    assert server.client.post(f"/builds/{build['id']}/cancel", headers=link).status_code == 403
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert server.client.get(build["links"]["report"], headers=frame).status_code == 403
    server.wait(build)


def test_every_answer_is_guarded(server: Served) -> None:
    for path in ("/", "/static/page.js", "/builds", "/nothing", "/builds/x", "/openapi.json"):
        headers = server.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "set-cookie" not in headers
        assert "server" not in headers


# ------------------------------------------------------------------ the process


def run_serve(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "trt_widget", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=os.environ | (environ or {}),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_what_it_says_when_it_is_ready(server: Served) -> None:
    assert set(server.ready) == {"url", "token", "page"}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
    assert len(server.token) >= 40
    assert server.ready["page"] == f"{server.url}/#token={server.token}"


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="the commands are for curl and jq"
)
def test_the_commands_of_the_manual(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "transformer.onnx", tmp_path / "model.onnx")
    text = (ROOT / "notebooks" / "docs" / "http.md").read_text("utf-8")
    script = text.partition("```sh\n")[2].partition("```")[0]
    with Served(root) as server:
        (tmp_path / "ready.json").write_text(json.dumps(server.ready))
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        stream, _, rest = done.stdout.partition("event: end")
        assert stream.startswith("retry: ")
        assert '{"cancelled":true,"status":"cancelling"}' in rest
        newest, first = server.client.get("/builds").json()["builds"][:2]
        engine = server.client.get(f"/builds/{first['id']}/engine").content
        assert (tmp_path / "mlp.engine").read_bytes() == engine
        assert newest["name"] == "mine.onnx"
        assert server.wait(newest)["status"] == "cancelled"


def test_what_a_person_at_a_terminal_reads(root: Path) -> None:
    command = [sys.executable, "-m", "trt_widget", "serve", "--root", str(root), "--port", "0"]
    terminal = Terminal([*command, *SLOWLY], env=dict(os.environ), folder=ROOT)
    try:
        lines = terminal.wait_for("Ctrl-C cancels all builds and ends.")
        assert not any(line.startswith("{") for line in lines)
        (page,) = [line for line in lines if line.startswith("http://")]
        url, _, token = page.partition("/#token=")
        assert httpx.get(page, trust_env=False).status_code == 200
        started = httpx.post(
            f"{url}/builds",
            headers={"Authorization": f"Bearer {token}"},
            json={"model": "resnet50.onnx"},
            trust_env=False,
        )
        assert started.status_code == 201
        terminal.send("\x03")
        assert terminal.end() == 0
        assert terminal.seen[-2:] == ["Cancelling 1 build…", "The server has ended."]
    finally:
        terminal.close()


def test_others_are_let_in_only_with_a_token_of_ones_own(root: Path) -> None:
    code, out, said = run_serve("--host", "0.0.0.0", "--port", "0")  # noqa: S104 - that is the test
    assert (code, out) == (2, "")
    assert "TRT_WIDGET_TOKEN" in said
    code, out, said = run_serve("--token", "short", "--port", "0")
    assert (code, out) == (2, "")
    assert "16" in said
    token = {"TRT_WIDGET_TOKEN": "0123456789abcdef"}
    with Served(root, "--host", "0.0.0.0", environ=token) as served:  # noqa: S104 - as above
        assert "token" not in served.ready
        assert "0123456789abcdef" not in json.dumps(served.ready)
        port = urlsplit(served.url).port
        given = {"Authorization": "Bearer 0123456789abcdef"}
        for host, code in (("", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            headers = given | ({"Host": f"{host}:{port}"} if host else {})
            answer = httpx.get(f"http://127.0.0.1:{port}/builds", headers=headers, trust_env=False)
            assert answer.status_code == code, host


def test_what_it_cannot_do(root: Path, server: Served) -> None:
    taken = str(urlsplit(server.url).port)
    code, out, said = run_serve("--root", str(root), "--port", taken)
    assert (code, out) == (2, "")
    assert taken in said
    code, out, said = run_serve("--root", str(root / "nothing"), "--port", "0")
    assert (code, out) == (2, "")
    assert "not a folder" in said
    for wrong, word in (
        ("--max-upload=much", "500M"),
        ("--keep=0", "1 or more"),
        ("--port=99999", "0 to 65535"),
        ("--port=-1", "0 to 65535"),
        ("--timeout=-1", "timeout"),
    ):
        code, _, said = run_serve(wrong)
        assert code == 2
        assert word in said


def test_a_missing_extra_is_named() -> None:
    without = (
        "import sys; sys.modules['uvicorn'] = None; from trt_widget.cli import main; "
        "sys.exit(main(['serve']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode != 0
    assert "trt-widget[serve]" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_imported_by_nothing_else() -> None:
    light = (
        "import sys, trt_widget, trt_widget.cli, trt_widget.servers.http\n"
        "heavy = {'fastapi', 'starlette', 'uvicorn', 'pydantic', 'tensorrt_rtx'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", light], cwd=ROOT, check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything(root: Path, number: int) -> None:
    with Served(root, *SLOWLY) as served:
        build = served.start("resnet50.onnx")
        upload = served.client.post("/builds", content=(root / "mlp.onnx").read_bytes()).json()
        (folder,) = scratch_of(served)
        stream = served.watch(build)
        sent = [next(stream)]
        wait_for(lambda: bool(served.status(build)["phase"]))
        family = served.family()
        assert family
        silent = raw(served, upload["links"]["events"], small=True)
        authorization = f"Authorization: Bearer {served.token}"
        unfinished = raw(served, "POST /builds", authorization, "Content-Length: 100")
        wait_for(lambda: len(scratch_of(served)) == 2)
        served.process.send_signal(number)
        sent += stream
        ended = outcome_of(sent)
        assert (ended.status, ended.reason) == ("cancelled", "closed")
        _, complaints = served.process.communicate(timeout=PATIENCE_S)
        assert (served.process.returncode, complaints) == (0, b"")
        _, left = psutil.wait_procs(family, 0)
        assert left == []
        assert not folder.parent.exists()
        assert not folder.parent.with_suffix(".lock").exists()
        silent.close()
        unfinished.close()


def test_a_killed_server_leaves_no_build_and_the_next_cleans_up(root: Path) -> None:
    with Served(root) as other, Served(root, *SLOWLY) as served:
        other.client.post("/builds", content=b"no model").raise_for_status()
        (kept,) = scratch_of(other)
        data = models.light_model("resnet50").read_bytes()
        build = served.client.post("/builds", content=data).json()
        wait_for(lambda: bool(served.status(build)["phase"]))
        (folder,) = scratch_of(served)
        family = served.family()
        assert family
        served.process.kill()
        served.process.wait(PATIENCE_S)
        _, left = psutil.wait_procs(family, PATIENCE_S)
        assert left == []
        assert folder.exists()
        with Served(root):
            assert not folder.parent.exists()
            assert kept.exists()
            assert len(list(runtime_folder().glob("serve-*.lock"))) >= 2
        assert kept.exists()


def test_a_connection_that_asks_nothing_is_cut_off(root: Path) -> None:
    patience = "from trt_widget.servers import _uvicorn; _uvicorn.HEAD_S = 1.0"
    with Served(root, first=patience) as served:
        port = urlsplit(served.url).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert rest_of(connection) == b""
        # Nor is one that has asked once and begins again, which is no longer merely kept.
        again = raw(served, "/static/page.css")
        assert again.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        again.sendall(b"GET / HTTP/1.1\r\nHost: ")
        rest_of(again)
        assert served.client.get("/builds").status_code == 200


def test_more_connections_than_descriptors_keep_nobody_out(root: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    with Served(root, *BY_NAME, first=few) as served, contextlib.ExitStack() as stack:
        build = served.start("stuck.onnx")
        stream = served.watch(build)
        sent = [next(stream)]
        port = urlsplit(served.url).port
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        answer = httpx.get(f"{served.url}/", trust_env=False, timeout=20)
        assert answer.status_code == 200
        # Who asks nothing makes way, and not who is being answered.
        served.client.delete(f"/builds/{build['id']}").raise_for_status()
        assert outcome_of([*sent, *stream]).status == "cancelled"
        assert psutil.Process(served.process.pid).num_fds() < 256


# ------------------------------------------------------------------ the description


def test_the_description_of_the_interface_is_right(root: Path, tmp_path: Path) -> None:
    """Hundreds of requests by schemathesis, right and wrong, against the real server."""
    settings = tmp_path / "schemathesis.toml"
    # Which flags there are, and whether a profile fits, is TensorRT's and the model's to say: 422.
    settings.write_text(
        '[[operations]]\ninclude-name = "POST /builds"\n'
        "checks.positive_data_acceptance.expected-statuses = "
        '["2xx", 401, 403, 404, 422, 429]\n',
        "utf-8",
    )
    with Served(root, "--max-waiting", "2") as served:
        served.wait(served.start("mlp.onnx"))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"),
                *(f"{served.url}/openapi.json", "-H", f"Authorization: Bearer {served.token}"),
                *("--max-examples", "10", "--seed", "1", "--no-color"),
                *("--phases", "examples,coverage,fuzzing,stateful"),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        tested = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        assert tested is not None, done.stdout
        assert int(tested[1]) > 100
        for build in served.client.get("/builds").json()["builds"]:
            served.client.delete(f"/builds/{build['id']}")
        wait_for(lambda: not served.family())
        code, complaints = served.end()
        assert code == 0
        # Of what the server is called while it is asked nonsense, only this.
        assert set(complaints.splitlines()) <= {"Invalid HTTP request received."}
