"""Take the README's pictures: ``python -m tests.browser.picture`` (a real build in JupyterLab)."""

from __future__ import annotations

from tests.browser.harness import Lab
from tests.run import ROOT

SETUP = """
from pathlib import Path
import onnx, shutil
from trt_widget import BuildWidget
light = Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx"
shutil.copy(light, "densenet121.onnx")
"""
CELLS = (SETUP, "w = BuildWidget('densenet121.onnx').start()\nw")


def main() -> None:
    """Run the build, wait for its silent phase, and take the card in both themes."""
    for theme in ("light", "dark"):
        with Lab(scale=2) as lab:
            notebook = lab.open(CELLS)
            notebook.theme(theme)
            notebook.run(0)
            notebook.run(1)
            card = notebook.output(1).locator(".trt-build")
            card.get_by_text("Determining refit engines").first.wait_for()
            notebook.page.wait_for_timeout(600)
            path = ROOT / "notebooks" / "docs" / f"widget-{theme}.png"
            card.screenshot(path=path)
            print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
