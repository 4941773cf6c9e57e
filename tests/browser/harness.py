"""Real Jupyter servers in a real Chromium, driven through the page and Lab's own commands."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import nbformat
import psutil
from nbformat.sign import NotebookNotary
from playwright.sync_api import sync_playwright

from tests.run import find_chromium

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, ViewportSize
    from typing_extensions import Self

    Theme = Literal["light", "dark"]

ROOT: Final = Path(__file__).resolve().parents[2]
VIEWPORT: Final[ViewportSize] = {"width": 1280, "height": 900}
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CANCELED: Final = re.compile(r"Canceled future for (debug|create_subshell)_request message")
PYTHON: Final = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # A test saves when it means to.
    "docmanager-extension/plugin": {"autosave": False},
}


def artifacts() -> Path:
    """Give the folder for screenshots: artifacts/, or what TRT_WIDGET_ARTIFACTS says."""
    folder = Path(os.environ.get("TRT_WIDGET_ARTIFACTS") or ROOT / "artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Chromium:
    """A browser without any page yet; a context manager.

    One for all servers: a thread can drive one playwright only.
    """

    def __init__(self) -> None:
        path = find_chromium()
        if path is None:
            raise RuntimeError("no Chromium on PATH: `python3 tests/run.py` installs it")
        self._stack = ExitStack()
        try:
            player = self._stack.enter_context(sync_playwright())
            self.browser: Final = player.chromium.launch(executable_path=path, args=list(FLAGS))
            self._stack.callback(self.browser.close)
        except BaseException:
            self._stack.close()
            raise

    def new_context(self, *, token: str = "", scale: float = 1) -> BrowserContext:
        """Give a profile of its own; its pages share a cache. ``scale``: pixels of a point."""
        context = self.browser.new_context(
            viewport=VIEWPORT,
            device_scale_factor=scale,
            extra_http_headers={"Authorization": f"token {token}"} if token else {},
            reduced_motion="reduce",
        )
        context.set_default_timeout(60_000)
        return context

    def __enter__(self) -> Self:
        """Give the browser."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self._stack.close()


class Server:
    """A Jupyter server with private folders on a free port; a context manager.

    Parameters
    ----------
    chromium
        The browser to use; without one it has its own.
    scale
        Pixels of a point.
    """

    faults: ClassVar[re.Pattern[str] | None] = None
    """What this server's pages report by themselves, whatever notebook they show."""

    def __init__(self, chromium: Chromium | None = None, *, scale: float = 1) -> None:
        """Start it; return when the server has opened its port."""
        self._stack = ExitStack()
        try:
            home = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jupyter-"))
            self.home: Final = Path(home)
            self.root: Final = self.home / "root"
            """The folder that the server shows, and the working directory of the kernels."""
            self.token: Final = secrets.token_hex(16)
            self.origin: Final = self._start_server()
            if chromium is None:
                chromium = self._stack.enter_context(Chromium())
            # One context: the pages share the cache, so that only the first one loads all anew.
            self.context: Final = chromium.new_context(token=self.token, scale=scale)
            self._stack.callback(self.context.close)
        except BaseException:
            self._stack.close()
            raise

    def _command(self, port: int) -> Sequence[str]:
        """Give the command that starts the server."""
        raise NotImplementedError

    def _port(self, server: subprocess.Popen[bytes], log: str) -> int:
        """Give the port that the server listens on, or 0 while it does not listen yet."""
        del log
        # It takes another port if this one is no longer free, and says here which one.
        said = self.home / "runtime" / f"jpserver-{server.pid}.json"
        # The file is there a moment before its text is.
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return int(json.loads(said.read_text("utf-8"))["port"])
        return 0

    def _start_server(self) -> str:
        settings = self.home / "settings"
        for name, values in SETTINGS.items():
            file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values), "utf-8")
        self.root.mkdir()
        environ = os.environ | {
            "HOME": str(self.home),
            "IPYTHONDIR": str(self.home / "ipython"),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "workspaces"),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "JUPYTER_TOKEN": self.token,
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "PYTHONPATH": str(ROOT),
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self.home / "server.log"
        with log.open("wb") as sink:
            server = subprocess.Popen(
                self._command(port), env=environ, cwd=self.root, stdout=sink, stderr=sink
            )
        self._process = psutil.Process(server.pid)
        self._stack.callback(self._stop_server, server)
        deadline = time.monotonic() + 60
        while True:
            if found := self._port(server, log.read_text("utf-8", errors="replace")):
                return f"http://127.0.0.1:{found}"
            if server.poll() is not None or time.monotonic() > deadline:
                name = type(self).__name__
                raise RuntimeError(f"{name} did not start:\n{log.read_text('utf-8')}")
            time.sleep(0.05)

    @staticmethod
    def _stop_server(server: subprocess.Popen[bytes]) -> None:
        # Kernels, and builds of theirs: all of them end with the server, one way or the other.
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        _, left = psutil.wait_procs(family, 10)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def family(self) -> list[psutil.Process]:
        """Give the processes below the server's: kernels, and builds of theirs."""
        return self._process.children(recursive=True)

    def write(self, cells: Sequence[str], *, name: str | None = None) -> str:
        """Write a notebook of these code cells; return its path below the server's root."""
        path = f"{name or f'nb-{secrets.token_hex(4)}'}.ipynb"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=PYTHON
        )
        nbformat.write(notebook, self.root / path)
        return path

    def trust(self, path: str) -> None:
        """Do what ``jupyter trust`` does with the notebook at this path."""
        notary = NotebookNotary(data_dir=str(self.home / "data"))
        try:
            notary.sign(nbformat.read(self.root / path, as_version=4))
        finally:
            notary.store.close()

    def close(self) -> None:
        """Stop the server, with its kernels, and the browser if it is its own."""
        self._stack.close()

    def __enter__(self) -> Self:
        """Give the server."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop everything."""
        self.close()


class Host(Server):
    """A server whose page is made of JupyterLab's parts: JupyterLab itself, or Notebook 7."""

    def url(self, path: str) -> str:
        """Give the address at which a notebook opens."""
        raise NotImplementedError

    def open(self, cells: Sequence[str], *, name: str | None = None) -> Notebook:
        """Write a notebook of these code cells, open it in a page; return when it can run."""
        return Notebook(self, self.write(cells, name=name))

    def show(self, path: str, *, kernel: bool = True) -> Notebook:
        """Open a notebook that is there; without ``kernel``, as where its kernel does not exist."""
        return Notebook(self, path, has_kernel=kernel)


class Lab(Host):
    """JupyterLab."""

    def _command(self, port: int) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser"),
            *_serve(port, self.root),
            "--LabApp.extension_manager=readonly",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        )

    def url(self, path: str) -> str:
        """Give an address with a workspace of its own, so that no other notebook is open too."""
        return f"{self.origin}/lab/workspaces/{Path(path).stem}/tree/{path}"


class Notebook7(Host):
    """Jupyter Notebook 7."""

    faults = re.compile(r"^Cannot read properties of undefined \(reading 'schema'\)$")

    def _command(self, port: int) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "notebook", "--no-browser", "--expose-app-in-browser"),
            *_serve(port, self.root),
        )

    def url(self, path: str) -> str:
        """Give the address of the notebook's page."""
        return f"{self.origin}/notebooks/{path}"


class Voila(Server):
    """Voila: a page shows the outputs of a notebook that is executed for it."""

    # Its icons come from the network. And it loads every extension of Lab's that it finds.
    faults = re.compile(
        r"https://cdn\.jsdelivr\.net/npm/@fortawesome/fontawesome-free@"
        r"|shared module is not a function[\s\S]*/labextensions/@jupyter-notebook/lab-extension/"
    )

    def _command(self, port: int) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "voila", "--no-browser", str(self.root)),
            *("--Voila.ip=127.0.0.1", f"--port={port}", f"--Voila.token={self.token}"),
        )

    def _port(self, server: subprocess.Popen[bytes], log: str) -> int:
        del server
        said = re.search(r"is running at:\s+http://[^:]+:(\d+)/", log)
        return int(said[1]) if said else 0

    def open(self, cells: Sequence[str], *, name: str | None = None) -> VoilaPage:
        """Write a notebook of these code cells and open its page, which executes it."""
        return VoilaPage(self, self.write(cells, name=name))


def _serve(port: int, root: Path) -> tuple[str, ...]:
    """Give the options that every Jupyter server takes."""
    return (
        *(["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else ()),
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--ServerApp.root_dir={root}",
        "--ServerApp.terminals_enabled=False",
    )


@dataclass
class ServedPage:
    """A page of a server, and what went wrong in it."""

    lab: Server
    path: str
    page: Page = field(init=False)
    console_errors: list[str] = field(default_factory=list)
    """What the page wrote with console.error, and every request that failed."""
    page_errors: list[str] = field(default_factory=list)
    """Exceptions that nothing in the page caught."""
    foreign_requests: list[str] = field(default_factory=list)
    """Addresses asked for that are not the server's."""

    def __post_init__(self) -> None:
        """Open the page."""
        self.page = page = self.lab.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        page.on("request", lambda request: self._on_request(request.url))
        page.on("websocket", lambda websocket: self._on_request(websocket.url))
        # "Leave site? Changes may not be saved": a test that reloads without saving means it.
        page.on("dialog", lambda dialog: dialog.accept())
        try:
            self._open()
        except BaseException:
            self.screenshot_page("failed-to-open")
            page.close()
            raise

    def _open(self) -> None:
        raise NotImplementedError

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console_errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _on_request(self, url: str) -> None:
        parts = urlsplit(url)
        local = urlsplit(self.lab.origin).netloc
        if parts.scheme not in {"data", "blob"} and parts.netloc != local:
            self.foreign_requests.append(url)

    def screenshot_page(self, name: str) -> Path:
        """Save a picture of the whole page as artifacts/NAME.png; return its path."""
        path = artifacts() / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def assert_clean(self) -> None:
        """Assert that the page reported no error and asked no other host for anything.

        The server's own faults are left out.
        """
        reports = (self.page_errors, self.console_errors, self.foreign_requests)
        assert [report for each in reports for report in each if not self._is_known(report)] == []

    def _is_known(self, report: str) -> bool:
        """Whether a report is of what this server's pages do by themselves."""
        return bool(self.lab.faults and self.lab.faults.search(report))

    def close(self) -> None:
        """Close the page."""
        if not self.page.is_closed():
            self.page.close()


class VoilaPage(ServedPage):
    """A page of Voila, from the moment on at which it is asked for."""

    def _open(self) -> None:
        # Without the rest: the page comes bit by bit, while the cells run.
        self.page.goto(f"{self.lab.origin}/voila/render/{self.path}", wait_until="commit")

    def close(self) -> None:
        """Close the page as a person does, so that Voila shuts the kernel down."""
        if not self.page.is_closed():
            with self.page.expect_event("close"):
                self.page.close(run_before_unload=True)


@dataclass
class Notebook(ServedPage):
    """A notebook that is open in a page of its own."""

    lab: Host
    has_kernel: bool = True

    _restarted: bool = False

    def _open(self) -> None:
        """Open the page and wait for the kernel."""
        self.page.goto(self.lab.url(self.path))
        if not self.has_kernel:
            self._choose_no_kernel()
        self._wait_loaded()
        self.theme("light")
        if self.has_kernel:
            self.wait_idle()

    def _choose_no_kernel(self) -> None:
        """Answer the question for a kernel, asked as the notebook's own is not installed."""
        dialog = self.page.locator(".jp-Dialog")
        dialog.locator("select").select_option(label="No Kernel")
        dialog.locator(".jp-mod-accept").click()

    def _wait_loaded(self) -> None:
        self.page.wait_for_function(
            """path => {
                const panel = window.jupyterapp?.shell.currentWidget;
                if (panel?.context?.path !== path || !panel.context.isReady) return false;
                if (panel.content.widgets.length !== panel.content.model.cells.length) return false;
                window.jupyterapp.shell.collapseLeft();
                window.runs = [];
                window.panel = panel;
                return true;
            }""",
            arg=self.path,
            timeout=60_000,
        )

    # the kernel

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until the kernel is connected and has nothing to do.

        In JupyterLab only the status bar tells: a notebook's ``data-status`` is "idle" before there
        is a kernel. Notebook 7 has no such bar.
        """
        if isinstance(self.lab, Lab):
            bar = self.page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle$"))
            bar.wait_for(timeout=timeout * 1000)
            return
        self.page.wait_for_function(
            """() => {
                const {session, kernelDisplayStatus} = window.panel.sessionContext;
                return session?.kernel?.connectionStatus === 'connected'
                    && kernelDisplayStatus === 'idle';
            }""",
            timeout=timeout * 1000,
        )

    def kernel(self, code: str) -> str:
        """Run code in the kernel behind the notebook's back; return what it printed.

        Goes through the main shell: while a cell runs it waits for that cell's end.
        """
        reply: dict[str, str] = self.page.evaluate(
            """async code => {
                const kernel = window.panel.sessionContext.session.kernel;
                const future = kernel.requestExecute({code, silent: true, store_history: false});
                let text = '';
                future.onIOPub = message => {
                    if (message.header.msg_type === 'stream') text += message.content.text;
                };
                const {content} = await future.done;
                return {text, error: content.traceback?.join('\\n') ?? ''};
            }""",
            code,
        )
        assert not reply["error"], reply["error"]
        return reply["text"]

    def wait_subshells(self) -> None:
        """Wait until every comm has the subshell that its messages go over.

        Lab asks for it when a target's first comm opens; a click in the moment before the answer
        goes over the main shell.
        """
        self.page.wait_for_function(
            """() => {
                const comms = [...window.panel.sessionContext.session.kernel._comms.values()];
                return comms.length > 0 && comms.every(comm => comm.subshellId);
            }"""
        )

    def interrupt(self) -> None:
        """Do what Kernel > Interrupt does."""
        self.page.evaluate("window.panel.sessionContext.session.kernel.interrupt()")

    def restart(self) -> None:
        """Do what Kernel > Restart does once it is confirmed; wait for the new kernel."""
        self._restarted = True
        self.page.evaluate("window.panel.sessionContext.restartKernel()")
        self.wait_idle()

    # the cells

    def cell(self, index: int) -> Locator:
        """Give a cell, the first one being 0."""
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def output(self, index: int) -> Locator:
        """Give the area with a cell's outputs."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def start(self, index: int) -> None:
        """Run a cell; don't wait for its end."""
        self.page.evaluate(
            """index => {
                window.panel.content.activeCellIndex = index;
                window.runs[index] = window.jupyterapp.commands.execute('notebook:run-cell');
                window.runs[index].then(() => { window.runs[index].ended = true; });
            }""",
            index,
        )

    def wait(self, index: int, timeout: float = 60) -> None:
        """Wait until a cell that was started has ended."""
        self.page.wait_for_function(
            "index => window.runs[index].ended", arg=index, timeout=timeout * 1000
        )

    def run(self, index: int, timeout: float = 60) -> None:
        """Run a cell and wait for its end."""
        self.start(index)
        self.wait(index, timeout)

    def run_all(self, timeout: float = 60) -> None:
        """Run all cells, as Run > Run All Cells does, and wait until the last one has ended."""
        self.page.evaluate(
            """() => {
                window.all = window.jupyterapp.commands.execute('notebook:run-all-cells');
                window.all.then(() => { window.all.ended = true; });
            }"""
        )
        self.page.wait_for_function("window.all.ended", timeout=timeout * 1000)

    # the document and the page

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook; return what is in the file."""
        self.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.lab.root / self.path, as_version=4)

    def reload(self, *, idle: bool = True) -> None:
        """Reload the page; wait for the notebook, and for its kernel to be idle unless told not to.

        What wasn't saved is lost, as it is for a user.
        """
        self.page.reload()
        self._wait_loaded()
        if idle:
            self.wait_idle()

    def theme(self, theme: Theme) -> None:
        """Switch Lab to its light or dark theme."""
        name = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[theme]
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
        # The body itself has no height, which counts as hidden.
        self.page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
        # Lab lays a splash over the page while it loads a theme.
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def screenshot(self, index: int, name: str) -> Path:
        """Save a picture of a cell's output as artifacts/NAME.png; return its path."""
        path = artifacts() / f"{name}.png"
        self.output(index).screenshot(path=path)
        return path

    def _is_known(self, report: str) -> bool:
        # After a restart Lab itself complains of its own requests to the old kernel (the
        # debugger's, and those for subshells).
        return super()._is_known(report) or bool(self._restarted and CANCELED.search(report))

    def close(self) -> None:
        """Shut the kernel down and close the page."""
        if not self.page.is_closed():
            self.page.evaluate("window.panel?.sessionContext.shutdown()")
            self.page.close()


def in_module(lab: Lab, name: str, setup: str, script: str) -> Any:
    """Run a script in a page of its own with a module of the widget; give what it returns.

    Parameters
    ----------
    name
        The module's file in ``static``.
    setup
        A function of the module's text, in which ``SCRIPT`` stands for the script.
    """
    module = ROOT / "trt_widget" / "widget" / "static" / name
    page = lab.context.new_page()
    try:
        return page.evaluate(setup.replace("SCRIPT", script), module.read_text("utf-8"))
    finally:
        page.close()
