"""What the overview of 500 builds costs: a real JupyterLab in Chromium, builds that take no time.

The builds are real ones that the engine cache answers, in threads of the kernel: as many ends a
second as there can be.
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

from tests.bench.figures import say
from tests.bench.stats import Row, busiest
from tests.browser.harness import Lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.browser.harness import Notebook

BUILDS = 500
PREPARE = f"""
import json, os, tempfile, time
os.environ["TRT_WIDGET_HISTORY"] = "off"
from tests.models import mlp
from trt_widget import Build, BuildQueue
folder = tempfile.mkdtemp()
model = mlp().SerializeToString()
Build(model, executor="thread", engine_cache=folder).start().wait()
def fast():
    jobs = {{f"build {{n}}": model for n in range({BUILDS})}}
    return BuildQueue(jobs, workers=2, executor="thread", engine_cache=folder)
def cpu():
    return time.process_time()
"""
SHOWN = "begun = time.perf_counter(), cpu()\nq = fast().start()\nq"
HIDDEN = "begun = time.perf_counter(), cpu()\nq = fast().start()"
WAIT = """
while q.status not in ("succeeded", "failed", "cancelled"):
    time.sleep(0.05)
time.sleep(1)
print(json.dumps([time.perf_counter() - begun[0], cpu() - begun[1], q.counts()]))
"""


class Frames:
    """What a page's websockets bring, and how long its main thread is busy."""

    def __init__(self, notebook: Notebook) -> None:
        self.times: list[float] = []
        self.sizes: list[float] = []
        self._session = notebook.page.context.new_cdp_session(notebook.page)
        self._session.on("Network.webSocketFrameReceived", self._take)
        self._session.send("Network.enable")
        self._session.send("Performance.enable")

    def _take(self, event: dict[str, Any]) -> None:
        response = event["response"]
        data = response["payloadData"]
        size = len(base64.b64decode(data)) if response["opcode"] == 2 else len(data)
        self.times.append(float(event["timestamp"]))
        self.sizes.append(float(size))

    def busy_s(self) -> float:
        """Give the seconds that the page's main thread has worked."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(entry["value"]) for entry in metrics if entry["name"] == "TaskDuration")


def _printed(notebook: Notebook, index: int) -> Any:
    return json.loads(notebook.output(index).inner_text().strip().splitlines()[-1])


def overview(*, long: bool) -> list[Row]:
    """Show 500 builds that end as fast as they can; count messages, and CPU on both sides."""
    del long
    with Lab() as lab:
        notebook = lab.open([PREPARE, HIDDEN, WAIT, SHOWN, WAIT])
        try:
            notebook.run(0, timeout=60)
            say("  not shown")
            notebook.run(1)
            notebook.run(2, timeout=600)
            hidden_s, hidden_cpu, counts = _printed(notebook, 2)
            assert counts.get("succeeded") == BUILDS, counts
            frames = Frames(notebook)
            before, start = frames.busy_s(), time.perf_counter()
            say("  shown")
            notebook.run(3)
            notebook.run(4, timeout=600)
            seconds, cpu, counts = _printed(notebook, 4)
            busy, wall = frames.busy_s() - before, time.perf_counter() - start
            assert counts.get("succeeded") == BUILDS, counts
            begun = notebook.output(3).locator(".trt-queue").count()
            assert begun == 1, "the overview is not shown"
        finally:
            notebook.close()
    most = busiest(frames.times)
    kilobytes = busiest(frames.times, frames.sizes) / 1e3
    share = busy / wall
    head = f"{BUILDS} builds in {seconds:.0f} s, shown"
    return [
        Row(
            f"{head}: messages/s of all the page's sockets, busiest",
            f"{most:.0f} ({len(frames.times):,} in all, {kilobytes:.0f} kB/s)",
            "< 100",
            most < 100,
        ),
        Row(
            f"{head}: the page's main thread",
            f"{share:.1%} of a core",
            "< 10%",
            share < 0.10,
        ),
        Row(
            f"{head}: CPU of the kernel, less that of the same queue not shown",
            f"{(cpu - hidden_cpu) / seconds:.1%} of a core ({cpu:.1f} s, {hidden_cpu:.1f} s in "
            f"{hidden_s:.0f} s)",
        ),
    ]


FIGURES: dict[str, Callable[..., list[Row]]] = {"overview": overview}
