"""A real ``trt-widget serve`` in a process of its own, and a client that reads its streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import onnx
import psutil

from tests import models
from trt_widget.events import from_json
from trt_widget.phases import PhaseTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from trt_widget.events import Event

ROOT = Path(__file__).resolve().parents[2]
#: Generous: the machine may be busy.
PATIENCE_S = 60.0


class Sent(NamedTuple):
    """An event of a stream as a client has got it."""

    kind: str
    number: int
    events: list[Event]


class Served:
    """A running server; a context manager.

    Parameters
    ----------
    root
        Folder of its models.
    arguments
        More of its arguments.
    first
        Python that its process runs before anything else.
    environ
        More of its environment.
    """

    def __init__(
        self, root: Path, *arguments: str, first: str = "", environ: dict[str, str] | None = None
    ) -> None:
        command = ["serve", "--root", str(root), "--port", "0", *arguments]
        how = ["-c", f"{first}\nimport sys\nfrom trt_widget.cli import main\nsys.exit(main())"]
        self.process = subprocess.Popen(
            [sys.executable, *(how if first else ["-m", "trt_widget"]), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"TRT_WIDGET_HISTORY": "off"} | (environ or {}),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"it did not start: {self.process.communicate()[1].decode()}")
        self.ready: dict[str, str] = json.loads(line)
        self.url = self.ready["url"]
        self.token = self.ready.get("token", "")
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def start(self, model: str, **options: Any) -> dict[str, Any]:
        """Start a build of a model below the root."""
        answer = self.client.post("/builds", json={"model": model, "options": options})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def status(self, build: dict[str, Any]) -> dict[str, Any]:
        """Ask how a build stands."""
        found: dict[str, Any] = self.client.get(f"/builds/{build['id']}").raise_for_status().json()
        return found

    def wait(self, build: dict[str, Any]) -> dict[str, Any]:
        """Ask until a build has ended."""
        wait_for(lambda: self.status(build)["result"] is not None)
        return self.status(build)

    def watch(self, build: dict[str, Any], after: int | None = None) -> Iterator[Sent]:
        """Yield what the stream says, without a token, until the server ends it."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        address = self.url + build["links"]["events"]
        with (
            httpx.Client(timeout=PATIENCE_S, trust_env=False) as client,
            client.stream("GET", address, headers=headers) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield from parse(answer.iter_lines())

    def family(self) -> list[psutil.Process]:
        """Give the processes below the server's."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it; give its exit code and what it has complained of."""
        self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, complaints.decode()

    def __enter__(self) -> Self:
        """Give the server."""
        return self

    def __exit__(self, *error: object) -> None:
        """End it, if it still runs; it must have had nothing to complain of."""
        self.client.close()
        if self.process.poll() is None:
            code, complaints = self.end()
            if error[0] is None:
                assert (code, complaints) == (0, "")
        else:
            self.process.communicate()


def parse(lines: Iterable[str]) -> Iterator[Sent]:
    """Read Server-Sent Events as a browser does."""
    kind, number, data = "message", 0, []
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            number = int(value)
        elif name == "data":
            data.append(value)
        elif not line and data:
            yield Sent(kind, number, [from_json(text) for text in data])
            kind, data = "message", []


def fold(sent: Iterable[Sent]) -> PhaseTree:
    """Give the tree that a client has in the end."""
    tree = PhaseTree()
    for kind, _, events in sent:
        if kind == "snapshot":
            tree = PhaseTree()
        if kind != "end":  # it says once more what was said
            tree.apply(events)
    return tree


def wait_for(done: Callable[[], bool], patience: float = PATIENCE_S) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def write_models(folder: Path) -> Path:
    """Write the models that the tests build."""
    folder.mkdir(exist_ok=True)
    onnx.save(models.mlp(), str(folder / "mlp.onnx"))
    onnx.save(models.evil_mlp(), str(folder / "evil.onnx"))
    onnx.save(models.mlp(first="flood"), str(folder / "flood.onnx"))
    onnx.save(models.mlp(first="crash"), str(folder / "crash.onnx"))
    onnx.save(models.mlp(first="stuck"), str(folder / "stuck.onnx"))
    onnx.save(models.dynamic(), str(folder / "dynamic.onnx"))
    onnx.save(models.unknown_operators("Nope"), str(folder / "odd.onnx"))
    onnx.save(models.transformer(20), str(folder / "transformer.onnx"))
    (folder / "resnet50.onnx").write_bytes(models.light_model("resnet50").read_bytes())
    return folder
