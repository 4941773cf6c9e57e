"""Cards with states made by hand; the browser tests run this text in a notebook's first cell."""

from __future__ import annotations

import time
from typing import Any

import anywidget
import ipywidgets
import traitlets

from trt_widget.widget.models import BuildCard, CancelChannel, PhaseBar

LAYOUT = ipywidgets.Layout(width="auto", height="12px", margin="0")
asked: list[Any] = []


class Picture(anywidget.AnyWidget):
    """Stands for the timeline: says what it is given, and whether anyone looks."""

    _esm = """
    export default { render({ model, el }) {
        const draw = () => { el.textContent = model.get("text"); };
        model.on("change:text", draw);
        draw();
        model.send("opened");
        return () => { model.off("change:text", draw); model.send("closed"); };
    } };
    """
    text = traitlets.Unicode("the timeline").tag(sync=True)


def bar(
    depth: int, label: str, status: str, step: int, total: int, *, silent: float = 0
) -> PhaseBar:
    """Make a row; ``silent`` seconds ago TensorRT last called for it."""
    now = time.time()
    made = PhaseBar(max=max(total, 1), value=total if status == "done" else step, layout=LAYOUT)
    made.info = {
        "label": label,
        "path": label,
        "depth": depth,
        "count": 1,
        "status": status,
        "step": step,
        "total": total,
        "elapsed": 0.5,
        "since": now - 7 if status == "running" else None,
        "touched": now - silent,
        "folded": 0,
    }
    return made


def tree(silent: float = 0) -> list[PhaseBar]:
    """Make the rows of a build of resnet50."""
    rows = (
        (0, "Building engine", "running", 4, 6),
        (1, "Cloning", "done", 1, 1),
        (1, "Building engine from subgraph", "running", 2, 3),
        (2, "Optimizing graph", "done", 12, 12),
        (2, "Determining refit engines", "running", 1, 3),
    )
    return [bar(*row, silent=silent) for row in rows]


def card(rows: Any = (), **header: Any) -> BuildCard:
    """Make a card of rows, or of tuples for :func:`bar`."""
    now = time.time()
    made = BuildCard()
    made.cancel_channel = CancelChannel()
    made.cancel_channel.on_msg(lambda _channel, content, _buffers: asked.append(content))
    with made.hold_sync():
        made.rows = [row if isinstance(row, PhaseBar) else bar(*row) for row in rows]
        made.messages = header.pop("messages", [])
        made.header = {
            "name": "resnet50.onnx",
            "status": "running",
            "backend": "TensorRT-RTX 1.7.1.116",
            "started": None if header.get("status") == "pending" else now - 7,
            "can_cancel": True,
            "now": now,
            **header,
        }
    return made


def beat(made: BuildCard, **changes: Any) -> BuildCard:
    """Send the header again, with changes."""
    made.header = {**made.header, **changes, "now": time.time()}
    return made


def touch(made: BuildCard, *, ahead: float = 0, **changes: Any) -> None:
    """Let TensorRT call for the last row, as if ``ahead`` seconds from now."""
    made.rows[-1].info = {**made.rows[-1].info, "touched": time.time() + ahead, **changes}


def extend(made: BuildCard) -> None:
    """Add a row."""
    made.rows = [*made.rows, bar(1, "Serializing", "running", 0, 2)]


def finish(made: BuildCard, status: str, **changes: Any) -> BuildCard:
    """End the build; its open rows end with it."""
    return beat(
        made, status=status, ended=made.header["started"] + 7.4, can_cancel=False, **changes
    )


def saved(build_id: str, text: str = "what was saved") -> None:
    """Show what stays in a notebook of a build, as the build's own second display does."""
    from IPython.display import HTML, display

    section = f'<section class="trt-report trt-saved-{build_id}">{text}</section>'
    display(HTML(f"<style></style>{section}"))  # type: ignore[no-untyped-call]  # no types there


SLOWEST = [
    {"label": label, "path": f"Building engine > {label}", "self_s": self_s, "share": self_s / 7.4}
    for label, self_s in (
        ("Determining refit engines", 5.11),
        ("Optimizing graph", 1.32),
        ("Cloning", 0.41),
        ("Building engine", 0.31),
        ("Building engine from subgraph", 0.02),
    )
]
