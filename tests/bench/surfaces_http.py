"""What watching costs a server of builds: 200 clients on one build that begins with a flood."""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil

from tests.bench.figures import say
from tests.bench.stats import Row, ratios, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 200
#: Of them: these never read.
SILENT = 40
CALLBACKS = 100_000
#: What a client may make the server grow by: a batch on its way, and the connection itself.
MOST_MB_A_CLIENT = 0.5


class Server:
    """A running ``trt-widget serve`` whose builds begin with a flood, 100,000 callbacks in 2 s."""

    def __init__(self, root: Path) -> None:
        command = (
            *(sys.executable, "-m", "trt_widget", "serve", "--port", "0", "--root", str(root)),
            *("--configure", "tests.models:configure_flood"),
        )
        environ = os.environ | {"TRT_WIDGET_HISTORY": "off"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, cwd=ROOT)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.url: str = ready["url"]
        self.token: str = ready["token"]
        self.usage = psutil.Process(self.process.pid)

    def ask(self, path: str, body: Any = None) -> Any:
        """Ask, by POST where there is a body."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, headers), timeout=60) as answer:  # noqa: S310 - the server above
            return json.loads(answer.read())

    def cpu_s(self) -> float:
        """CPU seconds of the server, without its builds."""
        used = self.usage.cpu_times()
        return used.user + used.system

    def memory_mb(self) -> float:
        """Resident memory of the server, without its builds."""
        return self.usage.memory_info().rss / 1e6


class Watchers:
    """Clients of one stream in a thread: some throw away what they get, some never read."""

    def __init__(self, url: str, path: str, reading: int, silent: int) -> None:
        self.received = 0
        self.ended = 0
        self.reading = reading
        address = urlsplit(url)
        self._all = []
        self._selector = selectors.DefaultSelector()
        request = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
        for number in range(reading + silent):
            connection = socket.socket()
            if number >= reading:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            assert address.port is not None
            connection.connect(("127.0.0.1", address.port))
            connection.sendall(request)
            self._all.append(connection)
            if number < reading:
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while self.ended < self.reading:
            for key, _ in self._selector.select(30.0):
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # a socket
                self.received += len(data)
                if not data or data.endswith(b"0\r\n\r\n"):  # the end of its answer
                    self.ended += 1
                    self._selector.unregister(key.fileobj)

    def close(self) -> None:
        """Wait until all that read have got the end, and hang up."""
        self._thread.join(120)
        for connection in self._all:
            connection.close()
        self._selector.close()


@contextmanager
def served() -> Iterator[Server]:
    """Give a server that has built once."""
    import onnx

    from tests.models import mlp

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        onnx.save(mlp(), str(Path(folder) / "mlp.onnx"))
        server = Server(Path(folder))
        try:
            build(server, 0, 0)
            yield server
        finally:
            server.process.terminate()
            server.process.wait(30)


def build(server: Server, reading: int, silent: int) -> dict[str, float]:
    """Build while so many clients watch; say what it took."""
    before, cpu = server.memory_mb(), server.cpu_s()
    started = server.ask("/builds", {"model": "mlp.onnx"})
    watchers = Watchers(server.url, started["links"]["events"], reading, silent)
    peak = before
    while (status := server.ask(f"/builds/{started['id']}"))["result"] is None:
        peak = max(peak, server.memory_mb())
        time.sleep(0.25)
    watchers.close()
    assert status["status"] == "succeeded", status
    assert watchers.ended == reading, f"{watchers.ended} of {reading} have got the end"
    time.sleep(0.5)
    return {
        "took": status["result"]["duration_s"],
        "grown": max(peak, server.memory_mb()) - before,
        "cpu": server.cpu_s() - cpu,
        "received": watchers.received,
    }


def sse(*, long: bool) -> list[Row]:
    """200 clients on a build with a flood, 40 of which never read, beside nobody watching."""
    rounds = 12 if long else 5
    alone, watched = [], []
    with served() as server:
        for number in range(rounds):
            alone.append(build(server, 0, 0))
            watched.append(build(server, CLIENTS - SILENT, SILENT))
            say(f"  {number + 1} of {rounds}: {alone[-1]} {watched[-1]}")
    slower = ratios([w["took"] for w in watched], [a["took"] for a in alone])
    ratio = statistics.median(slower)
    grown = max(w["grown"] for w in watched)
    more = statistics.median(w["cpu"] - a["cpu"] for w, a in zip(watched, alone, strict=True))
    each = statistics.median(w["received"] for w in watched) / (CLIENTS - SILENT)
    return [
        Row(
            f"HTTP: a build with a flood, {CLIENTS} clients ({SILENT} never read) : none",
            spread(slower),
            "<= 1.05",
            ratio <= 1.05,
        ),
        Row(
            "... memory of the server, at most",
            f"+{grown:.0f} MB ({grown / CLIENTS * 1000:.0f} kB a client)",
            f"< {MOST_MB_A_CLIENT * 1000:.0f} kB a client",
            grown < CLIENTS * MOST_MB_A_CLIENT,
        ),
        Row(
            "... CPU of the server for all clients",
            f"{more:.2f} s, {more / CALLBACKS * 1e6:.1f} us a callback, "
            f"{more / CALLBACKS / CLIENTS * 1e9:.0f} ns a callback and client",
        ),
        Row("... sent to each client", f"{each / 1000:.0f} kB"),
    ]


FIGURES = {"sse": sse}
