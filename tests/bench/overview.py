"""What the overview of 500 builds costs: a real JupyterLab in Chromium, builds that take no time.

The builds are real ones, of the smallest network, in a thread of the kernel: some tens of them end
in a second. A second run has the engine cache answer them, which is as fast as it gets.
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
def fast(cache):
    jobs = {{f"build {{n}}": model for n in range({BUILDS})}}
    return BuildQueue(jobs, workers=2, executor="thread", engine_cache=cache)
def cpu():
    return time.process_time()
"""
START = "begun = time.perf_counter(), cpu()\nq = fast({cache}).start()"
CELLS = [
    PREPARE,
    START.format(cache=False),
    WAIT := """
while q.status not in ("succeeded", "failed", "cancelled"):
    time.sleep(0.05)
time.sleep(1)
print(json.dumps([time.perf_counter() - begun[0], cpu() - begun[1], q.counts()]))
""",
]
CELLS += [START.format(cache=False) + "\nq", WAIT, START.format(cache="folder") + "\nq", WAIT]


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

    def clear(self) -> None:
        """Forget what came before."""
        self.times.clear()
        self.sizes.clear()

    def busy_s(self) -> float:
        """Give the seconds that the page's main thread has worked."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(entry["value"]) for entry in metrics if entry["name"] == "TaskDuration")


def _printed(notebook: Notebook, index: int) -> Any:
    return json.loads(notebook.output(index).inner_text().strip().splitlines()[-1])


class Run:
    """One queue in the page: how long it took, and what the page and the kernel did meanwhile."""

    def __init__(self, notebook: Notebook, frames: Frames, start: int) -> None:
        frames.clear()
        busy, begun = frames.busy_s(), time.perf_counter()
        notebook.run(start)
        notebook.run(start + 1, timeout=600)
        self.page = (frames.busy_s() - busy) / (time.perf_counter() - begun)
        self.seconds, self.cpu, counts = _printed(notebook, start + 1)
        assert counts.get("succeeded") == BUILDS, counts
        self.messages = len(frames.times)
        self.busiest = busiest(frames.times)
        self.kilobytes = busiest(frames.times, frames.sizes) / 1e3


def overview(*, long: bool) -> list[Row]:
    """Show 500 builds that end as fast as they can; count messages, and CPU on both sides."""
    del long
    rows: list[Row] = []
    with Lab() as lab:
        notebook = lab.open(CELLS)
        try:
            notebook.run(0, timeout=60)
            frames = Frames(notebook)
            say("  not shown")
            hidden = Run(notebook, frames, 1)
            for index, what in ((3, "built"), (5, "from the cache")):
                say(f"  shown, {what}")
                shown = Run(notebook, frames, index)
                assert notebook.output(index).locator(".trt-queue").count() == 1, "not shown"
                head = f"{BUILDS} builds in {shown.seconds:.0f} s, {what}, shown"
                share = shown.page - hidden.page
                rows += [
                    Row(
                        f"{head}: messages/s of all the page's sockets, busiest",
                        f"{shown.busiest:.0f} ({shown.messages:,} in all, "
                        f"{shown.kilobytes:.0f} kB/s)",
                        "< 100",
                        shown.busiest < 100,
                    ),
                    Row(
                        f"{head}: the page's main thread, less that of the page alone",
                        f"{share:.1%} of a core ({shown.page:.1%}, {hidden.page:.1%})",
                        "< 10%" if what == "built" else "",
                        share < 0.10 if what == "built" else None,
                    ),
                ]
                if what == "built":
                    rows.append(
                        Row(
                            f"{head}: CPU of the kernel, less that of a queue not shown",
                            f"{(shown.cpu - hidden.cpu) / shown.seconds:.1%} of a core "
                            f"({shown.cpu:.1f} s, {hidden.cpu:.1f} s)",
                        )
                    )
        finally:
            notebook.close()
    return rows


FIGURES: dict[str, Callable[..., list[Row]]] = {"overview": overview}
