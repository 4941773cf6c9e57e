"""Take the README's pictures: ``python -m tests.browser.picture`` (real builds in JupyterLab).

Best while the machine does nothing else: the second build is compared with the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.harness import Lab
from tests.run import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Locator

SETUP = """
import os, shutil
from pathlib import Path
import onnx
os.environ["TRT_WIDGET_HISTORY"] = str(Path("history.sqlite3").resolve())
from trt_widget import BuildWidget
light = Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx"
shutil.copy(light, "densenet121.onnx")
for _ in range(2):
    BuildWidget("densenet121.onnx").start().wait()
"""
QUEUE = """
import os
from pathlib import Path
os.environ["TRT_WIDGET_HISTORY"] = str(Path("history.sqlite3").resolve())
os.environ["TRT_WIDGET_ENGINES"] = str(Path("engines").resolve())
from tests import models
from trt_widget import BuildQueue
names = ("resnet50", "densenet121", "inception_v2")
zoo = {
    f"{name}-o{level}": dict(source=models.light_model(name), optimization_level=level)
    for level in (3, 4, 5) for name in names
}
earlier = BuildQueue(zoo | {"squeezenet": models.light_model("squeezenet")}, workers=2).start()
earlier.wait()
jobs = {
    "resnet50-o3": zoo.pop("resnet50-o3"),
    "with-own-operator": models.unknown_operators("MyAttention"),
    "squeezenet": dict(source=models.light_model("squeezenet"), engine_cache=False),
}
for name, job in zoo.items():
    jobs[name] = {**job, "engine_cache": False}
"""
CELLS = (SETUP, "w = BuildWidget('densenet121.onnx').start()\nw")


def take(card: Locator, name: str) -> None:
    """Take one picture."""
    card.page.mouse.move(0, 0)
    path = ROOT / "notebooks" / "docs" / f"{name}.png"
    card.screenshot(path=path)
    print(path.relative_to(ROOT), path.stat().st_size, "bytes")


def overview() -> None:
    """Take the overview of a queue in the middle of its work, in both themes."""
    for theme in ("light", "dark"):
        with Lab(scale=2) as lab:
            notebook = lab.open((QUEUE, "q = BuildQueue(jobs, workers=2, name='zoo').start()\nq"))
            notebook.page.set_viewport_size({"width": 1280, "height": 1200})
            notebook.theme(theme)
            notebook.run(0, timeout=180)
            notebook.run(1)
            shown = notebook.output(1).locator(".trt-queue")
            shown.evaluate("view => { view.style.maxWidth = '960px'; }")
            shown.locator(".trt-q-row[data-status='failed']").wait_for()
            shown.locator(".trt-q-row[data-index='3'][data-status='running']").click()
            shown.get_by_text("Determining refit engines").first.wait_for(timeout=60_000)
            shown.locator(".trt-q-time-left:not(:empty)").wait_for()
            take(shown, f"overview-{theme}")


def main() -> None:
    """Take the card in the silent phase of a build and after its end, in both themes."""
    for theme in ("light", "dark"):
        with Lab(scale=2) as lab:
            notebook = lab.open(CELLS)
            notebook.theme(theme)
            notebook.run(0, timeout=180)
            notebook.run(1)
            card = notebook.output(1).locator(".trt-build")
            card.get_by_text("Determining refit engines").first.wait_for()
            notebook.page.wait_for_timeout(1_600)
            take(card, f"widget-{theme}")
            card.locator(".trt-slowest").wait_for(timeout=120_000)
            card.locator(".trt-timeline-fold > summary").click()
            card.locator(".trt-timeline canvas").wait_for()
            notebook.page.wait_for_timeout(600)
            take(card, f"widget-done-{theme}")
    overview()


if __name__ == "__main__":
    main()
