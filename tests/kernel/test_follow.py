"""A build of another process, followed in a real kernel: its bars, its second view, its Cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kernel.conftest import only
from tests.kernel.harness import LATEST
from tests.kernel.test_widget import cancel, show, shown_status, status
from tests.surfaces.producer import Producer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel.harness import Kernel


@only(LATEST)
def test_a_build_elsewhere_is_shown_live_and_cancelled_by_its_button(
    kernel: Kernel, tmp_path: Path
) -> None:
    stream = tmp_path / "build.jsonl"
    card = show(kernel, f"w = BuildWidget.follow({str(stream)!r})\nw")
    kernel.wait_for(lambda: "Waits for" in str(card.state["header"]["detail"]), what="its waiting")
    assert (status(card), card.state["header"]["can_cancel"]) == ("pending", False)

    producer = Producer(str(stream), 'models.light_model("resnet50")', slowly=0.005)
    try:
        shown_status(kernel, card, "running")
        kernel.wait_for(lambda: card.state["rows"], what="bars")
        header = card.state["header"]
        assert (header["name"], header["executor"], header["can_cancel"]) == (
            "light_resnet50.onnx",
            "followed",
            True,
        )
        bar = kernel.comms[card.state["rows"][0].removeprefix("IPY_MODEL_")]
        assert bar.state["info"]["label"] == "Building engine"
        before = len(bar.messages)
        kernel.wait_for(lambda: len(bar.messages) > before, what="a bar that moves")
        # The same view once more, in another cell.
        assert kernel.run("w").view_ids == [card.comm_id]

        running = kernel.execute("time.sleep(1.5)")
        cancel(kernel, card)
        shown_status(kernel, card, "cancelled")
        running.wait()
        assert producer.end() == "cancelled"
    finally:
        producer.process.kill()
        producer.process.wait()
    told = kernel.run("print(w.status, w.result.reason, w.result.ended_by, len(w.timings) > 1)")
    assert told.text == "cancelled user step True\n"
    assert card.state["header"]["failure"] is None


@only(LATEST)
def test_a_recording_is_shown_and_closing_a_live_one_leaves_it_alone(
    kernel: Kernel, tmp_path: Path
) -> None:
    stream = tmp_path / "build.jsonl"
    producer = Producer(str(stream), 'models.light_model("resnet50")', slowly=0.001)
    try:
        card = show(kernel, f"w = BuildWidget.follow({str(stream)!r})\nw")
        kernel.wait_for(lambda: card.state["rows"], what="bars")
        kernel.run("w.close()")
        kernel.wait_for(lambda: card.closed, what="the comm to be closed")
        assert kernel.run("w.build.wait_ended(60); print(w.status)").text == "ended\n"
        assert producer.end() == "succeeded"
    finally:
        producer.process.kill()
        producer.process.wait()
    card = show(kernel, f"v = BuildWidget.follow({str(stream)!r}, wait=False)\nv")
    shown_status(kernel, card, "succeeded")
    assert kernel.run("print(v.wait(), v.engine, v.result.engine_bytes > 0)").text == (
        "None None True\n"
    )
    assert card.state["header"]["slowest"]
