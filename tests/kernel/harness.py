"""Real ipykernels without a browser, spoken to as JupyterLab speaks to them.

JupyterLab 4.4.4 and newer sends every comm message over a subshell of the kernel that belongs to
the comm's target (``jupyter.widget`` for all widgets), as soon as the kernel's info reply lists
"kernel subshells". It asks for that subshell over the control channel when the first comm of the
target is opened. :meth:`Kernel.click` does the same.

All times are ``time.monotonic()`` of this process; on Linux the kernel's own ``time.monotonic()``
counts from the same start, so both can be compared.
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import zmq
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from jupyter_client.session import Session
    from typing_extensions import Self

    Channel = Literal["shell", "control", "iopub"]

ROOT: Final = Path(__file__).resolve().parents[2]
# 7.4 needs Python 3.11: with 3.10 nobody has it.
VERSIONS: Final = ("6.31.0", "7.3.0", *(("7.4.0",) if sys.version_info >= (3, 11) else ()))
LATEST: Final = VERSIONS[-1]
# nest-asyncio: a dependency that ipykernel has dropped since.
NEEDS: Final = {"6.31.0": ("nest-asyncio==1.6.0",)}
WIDGET_VIEW: Final = "application/vnd.jupyter.widget-view+json"


def overlay(version: str) -> Path | None:
    """Give the folder that holds this version of ipykernel and nothing else; make it if need be.

    None where it is the one that is installed: then nothing has to be fetched.
    """
    if importlib.metadata.version("ipykernel") == version:
        return None
    folder = ROOT / ".cache" / f"ipykernel-{version}-py{sys.version_info[0]}{sys.version_info[1]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        half_made = tempfile.mkdtemp(dir=folder.parent)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq")
        what = ("--no-deps", "--target", half_made, f"ipykernel=={version}")
        try:
            subprocess.run([*pip, *what, *NEEDS.get(version, ())], check=True)
            Path(half_made).rename(folder)
        finally:
            shutil.rmtree(half_made, ignore_errors=True)
    return folder


class KernelDiedError(RuntimeError):
    """The kernel's process ended; the message holds what it wrote."""


@dataclass(frozen=True)
class Message:
    """A message from the kernel."""

    time: float
    """When it arrived."""
    channel: Channel
    type: str
    content: dict[str, Any]
    parent_id: str
    """The id of the request that it belongs to, or ""."""
    metadata: dict[str, Any]
    buffers: list[bytes]


@dataclass
class Comm:
    """A comm that the kernel opened, with all that came over it."""

    comm_id: str
    target: str
    opened: Message
    messages: list[Message] = field(default_factory=list)
    """Every comm_msg, in the order of arrival."""
    closed: Message | None = None
    state: dict[str, Any] = field(default_factory=dict)
    """For a widget: its state, brought up to date by every message."""

    @property
    def model(self) -> str:
        """For a widget: the name of its model, such as "IntProgressModel"."""
        return str(self.state.get("_model_name", ""))

    @property
    def custom(self) -> list[Any]:
        """The contents of the custom messages that the widget sent."""
        data = [message.content["data"] for message in self.messages]
        return [part.get("content") for part in data if part.get("method") == "custom"]


@dataclass
class Execution:
    """A cell that runs or ran."""

    kernel: Kernel
    msg_id: str
    sent: float
    outputs: list[dict[str, Any]] = field(default_factory=list)
    """What the cell would show, in the notebook format; updates of displays come on top."""
    reply: dict[str, Any] | None = None
    idle: bool = False

    @property
    def done(self) -> bool:
        """Whether the cell has ended and all its output is here."""
        return self.reply is not None and self.idle

    @property
    def text(self) -> str:
        """What it wrote to stdout and stderr, and the text of its displays and its result.

        An update of a display is shown where the display is.
        """
        return "".join(
            output["text"]
            if output["output_type"] == "stream"
            else output.get("data", {}).get("text/plain", "")
            for output in self.outputs
            if output["output_type"] != "update_display_data"
        )

    @property
    def error(self) -> str | None:
        """The name of the exception that ended it."""
        if self.reply is None or self.reply["status"] == "ok":
            return None
        return str(self.reply.get("ename", self.reply["status"]))

    @property
    def view_ids(self) -> list[str]:
        """The ids of the widget models (which are their comms) that the cell shows."""
        views = [output.get("data", {}).get(WIDGET_VIEW) for output in self.outputs]
        return [view["model_id"] for view in views if view]

    def finish(self, timeout: float = 60) -> Execution:
        """Wait until the cell has ended, with or without an exception."""
        self.kernel.wait_for(lambda: self.done, timeout, "the cell to end")
        return self

    def wait(self, timeout: float = 60) -> Execution:
        """Wait until the cell has ended; raise AssertionError if it raised an exception."""
        self.finish(timeout)
        if self.error is not None:
            lines = (self.reply or {}).get("traceback", [])
            raise AssertionError("\n".join((f"the cell raised {self.error}", *lines)))
        return self


class _Specs(KernelSpecManager):
    """Knows one kernel: ipykernel under the Python of this process."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class Kernel:
    """A running kernel; a context manager that shuts it down."""

    def __init__(self, version: str, *, env: dict[str, str] | None = None) -> None:
        """Start ipykernel ``version`` and wait until it answers."""
        self.version: Final = version
        self.comms: Final[dict[str, Comm]] = {}
        self.messages: Final[list[Message]] = []
        """Everything received on all channels."""
        self._executions: dict[str, Execution] = {}
        self._replies: dict[str, Message] = {}
        self._subshells: dict[str, str] = {}
        """For a comm target: the request that its subshell was made by."""
        self._changed = threading.Condition()
        self._outbox: queue.SimpleQueue[tuple[Channel, dict[str, Any]] | None] = queue.SimpleQueue()
        self._home = tempfile.mkdtemp(prefix="kernel-")
        self._log = Path(self._home) / "log"
        folders = (overlay(version), ROOT, os.environ.get("PYTHONPATH"))
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "IPYTHONDIR": self._home,
            "JUPYTER_RUNTIME_DIR": self._home,
        }
        connection_file = str(Path(self._home) / "connection.json")
        self.manager = KernelManager(
            kernel_spec_manager=_Specs(), kernel_name=version, connection_file=connection_file
        )
        with self._log.open("wb") as log:
            self.manager.start_kernel(
                env=environ | (env or {}), stdout=log, stderr=log, cwd=self._home
            )
        self._session: Session = self.manager.session.clone()
        self._context = zmq.Context()
        self._sockets = self._connect()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        self._thread = threading.Thread(target=self._run, name=f"kernel {version}", daemon=True)
        self._thread.start()
        try:
            self.info: Final = self._handshake()
            real = self.execute("import ipykernel; print(ipykernel.__version__)").wait().text
            assert real.strip() == version, f"wanted ipykernel {version}, the kernel has {real}"
        except BaseException:
            self.shutdown()
            raise

    # the wire

    def _connect(self) -> dict[Channel, zmq.Socket[bytes]]:
        kinds: dict[Channel, int] = {
            "shell": zmq.DEALER,
            "control": zmq.DEALER,
            "iopub": zmq.SUB,
        }
        sockets: dict[Channel, zmq.Socket[bytes]] = {}
        for channel, kind in kinds.items():
            sockets[channel] = socket = self._context.socket(kind)
            socket.linger = 0
            if channel == "iopub":
                socket.subscribe(b"")
            else:
                socket.identity = self._session.bsession
            port = getattr(self.manager, f"{channel}_port")
            socket.connect(f"tcp://{self.manager.ip}:{port}")
        return sockets

    def _run(self) -> None:
        """Be the only thread that touches the sockets."""
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        poller = zmq.Poller()
        channels = {socket: channel for channel, socket in self._sockets.items()}
        for socket in (wake, *channels):
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                if socket is not wake:
                    self._receive(channels[socket], socket.recv_multipart())
                    continue
                wake.recv()
                item = self._outbox.get_nowait()
                if item is None:
                    for each in (wake, *channels):
                        each.close(0)
                    return
                self._session.send(self._sockets[item[0]], item[1])

    def _receive(self, channel: Channel, parts: list[bytes]) -> None:
        now = time.monotonic()
        _, body = self._session.feed_identities(parts)
        raw = self._session.deserialize(body)
        message = Message(
            now,
            channel,
            raw["msg_type"],
            raw["content"],
            raw["parent_header"].get("msg_id", ""),
            raw["metadata"],
            [bytes(buffer) for buffer in raw["buffers"]],
        )
        with self._changed:
            self.messages.append(message)
            if channel != "iopub":
                self._on_reply(message)
            elif message.type.startswith("comm_"):
                self._on_comm(message)
            else:
                self._on_output(message)
            self._changed.notify_all()

    def _on_reply(self, message: Message) -> None:
        self._replies[message.parent_id] = message
        if message.type == "execute_reply":
            self._executions[message.parent_id].reply = message.content

    def _on_comm(self, message: Message) -> None:
        comm_id, data = message.content["comm_id"], message.content["data"]
        if message.type == "comm_open":
            comm = Comm(comm_id, message.content["target_name"], message)
            comm.state.update(data.get("state", {}))
            self.comms[comm_id] = comm
            if self.supports_subshells and comm.target not in self._subshells:
                request = self._send("control", "create_subshell_request", {})
                self._subshells[comm.target] = request
        elif message.type == "comm_msg":
            self.comms[comm_id].messages.append(message)
            if data.get("method") == "update":
                self.comms[comm_id].state.update(data["state"])
        else:
            self.comms[comm_id].closed = message

    def _on_output(self, message: Message) -> None:
        execution = self._executions.get(message.parent_id)
        if execution is None:
            return
        if message.type == "status":
            execution.idle = message.content["execution_state"] == "idle"
        elif message.type == "clear_output":
            execution.outputs.clear()
        elif message.type in {
            "stream",
            "display_data",
            "update_display_data",
            "execute_result",
            "error",
        }:
            execution.outputs.append({"output_type": message.type, **message.content})

    def _handshake(self) -> dict[str, Any]:
        """Ask for the kernel's info until its answer is heard on iopub too."""
        deadline = time.monotonic() + 60
        asked: set[str] = set()

        def heard() -> bool:
            return any(m.channel == "iopub" and m.parent_id in asked for m in self.messages)

        while not heard():
            # A subscription takes a moment, and what the kernel says before it is lost.
            asked.add(msg_id := self._send("shell", "kernel_info_request", {}))
            reply = self._reply(msg_id, deadline - time.monotonic())
            try:
                self.wait_for(heard, 0.2, "the kernel on iopub")
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
        return reply

    def _send(
        self,
        channel: Channel,
        msg_type: str,
        content: dict[str, Any],
        *,
        metadata: dict[str, Any] | None = None,
        subshell: str | None = None,
        execution: bool = False,
    ) -> str:
        message = self._session.msg(msg_type, content, metadata=metadata)
        message["header"]["subshell_id"] = subshell
        msg_id = str(message["header"]["msg_id"])
        if execution:
            self._executions[msg_id] = Execution(self, msg_id, time.monotonic())
        with self._changed:
            self._outbox.put((channel, message))
            self._wake.send(b"")
        return msg_id

    def _reply(self, msg_id: str, timeout: float = 60) -> dict[str, Any]:
        self.wait_for(lambda: msg_id in self._replies, timeout, "a reply")
        return self._replies[msg_id].content

    # what a test uses

    def wait_for(
        self, condition: Callable[[], object], timeout: float = 60, what: str = "a condition"
    ) -> float:
        """Wait until ``condition()`` is true, looking again at every message; return the time.

        Raises
        ------
        TimeoutError
            After ``timeout`` seconds.
        KernelDiedError
            If the kernel's process has ended.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {timeout} s for {what}")
                if not self._changed.wait(min(left, 0.5)) and not self.manager.is_alive():
                    raise KernelDiedError(self._log.read_text("utf-8", "replace"))
            return time.monotonic()

    def execute(
        self, code: str, cell_id: str | None = None, *, stop_on_error: bool = True
    ) -> Execution:
        """Run a cell; returns at once. ``cell_id`` goes where JupyterLab puts it."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": stop_on_error,
        }
        metadata = {
            "deletedCells": [],
            "recordTiming": False,
            "cellId": cell_id or str(uuid.uuid4()),
        }
        msg_id = self._send("shell", "execute_request", content, metadata=metadata, execution=True)
        return self._executions[msg_id]

    def run(self, code: str, cell_id: str | None = None, timeout: float = 60) -> Execution:
        """Run a cell and wait for its end; raise AssertionError if it raised an exception."""
        return self.execute(code, cell_id).wait(timeout)

    @property
    def supports_subshells(self) -> bool:
        """Whether the kernel says that it has subshells."""
        return "kernel subshells" in self.info.get("supported_features", [])

    def create_subshell(self) -> str:
        """Make a subshell; return its id."""
        return self._subshell_made_by(self._send("control", "create_subshell_request", {}))

    def _subshell_made_by(self, request: str) -> str:
        reply = self._reply(request)
        assert reply["status"] == "ok", reply
        return str(reply["subshell_id"])

    def subshell_of(self, comm_id: str) -> str | None:
        """Give the subshell over which JupyterLab would send to this comm: that of its target."""
        if not self.supports_subshells:
            return None
        return self._subshell_made_by(self._subshells[self.comms[comm_id].target])

    def comm_send(self, comm_id: str, data: dict[str, Any], subshell: str | None = None) -> float:
        """Send to a comm over that subshell, or over the main shell; return the time."""
        content = {"comm_id": comm_id, "data": data}
        now = time.monotonic()
        self._send("shell", "comm_msg", content, subshell=subshell)
        return now

    def click(
        self, comm_id: str, content: dict[str, Any] | None = None, *, main_shell: bool = False
    ) -> float:
        """Send a widget's custom message as JupyterLab would; return the time.

        Without ``content``: the click on an ipywidgets Button. ``main_shell``: as VS Code and
        Colab would, which know no subshells.
        """
        data = {"method": "custom", "content": content or {"event": "click"}}
        subshell = None if main_shell else self.subshell_of(comm_id)
        return self.comm_send(comm_id, data, subshell)

    def widgets(self, model: str, *, closed: bool = False) -> list[Comm]:
        """Give the comms of the widgets with that model name, in the order of their opening."""
        found = [comm for comm in list(self.comms.values()) if comm.model == model]
        return [comm for comm in found if closed or comm.closed is None]

    def interrupt(self) -> float:
        """Interrupt as Kernel > Interrupt does; return the time."""
        now = time.monotonic()
        self.manager.interrupt_kernel()
        return now

    def shutdown(self) -> None:
        """End the kernel and this side's thread and sockets."""
        self.manager.shutdown_kernel(now=True)
        with self._changed:
            self._outbox.put(None)
            self._wake.send(b"")
        self._thread.join(10)
        self._wake.close(0)
        self._context.term()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        """Give the kernel."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shut the kernel down."""
        self.shutdown()
