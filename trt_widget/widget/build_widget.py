"""BuildWidget: a build, its live view and its results in one object."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import traitlets

from trt_widget.build import FINAL, Build, BuildResult
from trt_widget.errors import OptionError
from trt_widget.events import StatusChanged
from trt_widget.widget import kernel
from trt_widget.widget.models import BuildCard, CancelChannel
from trt_widget.widget.saved import SavedResult
from trt_widget.widget.text import build_html, build_text
from trt_widget.widget.timeline import Timeline
from trt_widget.widget.view import CardView

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator
    from pathlib import Path
    from types import ModuleType, TracebackType

    import pandas as pd

    from trt_widget.chunks import ChunkStream
    from trt_widget.events import Event
    from trt_widget.plot import Picture
    from trt_widget.record import Record

__all__ = ["BuildWidget"]


class _Status(traitlets.TraitType[str, str]):
    """A trait that reads the build's own state, so that it is never behind."""

    info_text = "a state of a build"

    def get(
        self,
        obj: Any,
        cls: type[Any] | None = None,  # noqa: ARG002 - traitlets' signature
    ) -> str:
        """Give the build's state."""
        build = obj.__dict__.get("_build")
        return "pending" if build is None else str(build.status)


class BuildWidget(BuildCard):
    """Build an engine in the background and watch it live in the notebook.

    As the last line of a cell, ``BuildWidget("model.onnx").start()`` shows a live tree of progress
    bars, one per phase path, and a Cancel button bound to :meth:`request_cancel`.

    Parameters
    ----------
    source
        Path of an ONNX file, its bytes, an ``onnx.ModelProto``, or a callable in Polygraphy's
        manner that returns ``(builder, network)`` or ``(builder, network, parser)``.
    **options
        All by keyword; :class:`trt_widget.options.BuildOptions` says more of each.

        - ``output``: path for the engine, written whole or not at all
        - ``profiles``: ``{"x": (min, opt, max)}``, three shapes (or a shape tensor's values) for
          each input of dynamic shape; a list of such dicts for several profiles
        - ``timeout``: seconds from the start of ``running``; then the build is cancelled
        - ``grace``: seconds that a cancel waits for TensorRT before the child is ended; 2
        - ``executor``: ``"auto"`` (a child process, or a thread where something cannot travel),
          ``"process"`` or ``"thread"``
        - ``flags``: names of builder flags, such as ``"REFIT"``, or a list of them
        - ``strongly_typed``: True or False; ``network_flags``: names
        - ``optimization_level``: 0 to 5; ``workspace``: bytes; ``device``: index of a GPU
        - ``target``: for TensorRT for RTX, such as ``"SM86"``, ``"current"``, or a list
        - ``configure``: function of ``(builder, network, config)`` for anything else
        - ``config``: function of ``(builder, network)`` that returns the builder config
        - ``exclusive``: whether builds of other processes on the device are waited for
        - ``plugins``: paths of plugin libraries; ``external_data``: folders of weight files
        - ``timing_cache``: path, or True for one per version and GPU; for full TensorRT
        - ``engine_cache``: True or a folder: the same build again is answered from the disk
        - ``backend``: ``"tensorrt"``, ``"tensorrt_rtx"`` or the module
        - ``client``: a ``dask.distributed.Client``, to build on a worker of its cluster, whose
          ``plugins`` and ``timing_cache`` are then meant; ``resources``: what the worker has to
          have, such as ``{"GPU": 1}``; ``reschedules``: how often a build whose worker was lost
          is begun again, once by default

    Attributes
    ----------
    timeline
        The phases over time, as a widget of its own: the card shows it on request, and so does
        ``w.timeline`` as the last line of a cell. :meth:`plot` gives a static one.
    status
        ``pending``, ``running``, ``cancelling``, then ``succeeded``, ``cancelled`` or ``failed``
        (``ended`` where the outcome is not known). A traitlet: reading it gives the present state,
        and observers are called on the build's drain thread, once for every state.

    progress, eta_s, exceeded
        How far the build is (0 to 1), the seconds left, and whether it takes clearly longer than
        was expected: from the times of earlier builds. ``None`` while nothing honest can be said.
        Traitlets; observers are called on the drain thread.

    Raises
    ------
    UnknownOptionError
        A keyword that is none of the options (also a ``TypeError``).
    OptionError, SourceError, OutputError, ProfileError, BackendNotFound
        As for :class:`~trt_widget.Build`.

    Examples
    --------
    >>> w = BuildWidget("resnet50.onnx").start()
    >>> w  # in a notebook: the live view, in this or any other cell
    >>> engine = w.wait()
    >>> w.timings
    """

    status = _Status(read_only=True)
    progress = traitlets.Float(None, allow_none=True, read_only=True)
    eta_s = traitlets.Float(None, allow_none=True, read_only=True)
    exceeded = traitlets.Bool(read_only=True)

    def __init__(self, source: Any, **options: Any) -> None:
        build = Build(source, **options)
        super().__init__()
        self._bind(build)

    @classmethod
    def of(cls, build: Build) -> BuildWidget:
        """Show a build that exists already.

        Its Cancel cancels the build, as everywhere. :meth:`close` closes the view and leaves the
        build as it is: it belongs to whoever made it.

        Parameters
        ----------
        build
            Of whatever kind and in whatever state; it may have more than one view.

        Raises
        ------
        OptionError
            It is no :class:`~trt_widget.Build`.
        """
        if not isinstance(build, Build):
            raise OptionError(
                f"BuildWidget.of() was given a {type(build).__name__}, which is no build.",
                "Give a Build; BuildWidget(...) makes one from a model.",
            )
        self = cls._of(build)
        _cells.enter(self)
        return self

    @classmethod
    def _of(cls, build: Build) -> BuildWidget:
        """Make such a view for another one, that no cell replaces."""
        self = cls.__new__(cls)
        BuildCard.__init__(self)
        self._bind(build, borrowed=True)
        if build.status in FINAL:
            # Its drain thread may have left, and the other one finds it done.
            self._on_batch([])
        return self

    @classmethod
    def attach(
        cls,
        config: Any = None,
        *,
        backend: str | ModuleType | None = None,
        name: str | None = None,
    ) -> BuildWidget:
        """Show a build that your own code runs.

        ::

            with BuildWidget.attach(config) as w:
                engine = w.finish(builder.build_serialized_network(network, config))

        Entering shows the view below the running cell, unless it is shown already. Without
        :meth:`finish` the end reads "ended; the outcome is not known".

        Parameters
        ----------
        config
            The builder config. A monitor that it has already is kept and called too. Without a
            config give :attr:`monitor` to whatever makes it (Polygraphy:
            ``CreateConfig(progress_monitor=w.monitor)``).
        backend
            The package of the builder; needed only without a config.
        name
            What to call the build.

        Raises
        ------
        WrongBackendError
            The config is not one of a TensorRT package, or not of ``backend``.
        """
        build = Build.attach(config, backend=backend, name=name)
        self = cls.__new__(cls)
        BuildCard.__init__(self)
        self._bind(build)
        return self

    @classmethod
    def follow(
        cls,
        source: Any,
        *,
        control: Any = None,
        name: str | None = None,
        wait: bool | float = True,
    ) -> BuildWidget:
        """Show a build that runs elsewhere, by the stream of events that it writes.

        ::

            BuildWidget.follow("build.jsonl")  # trt-widget build model.onnx --events build.jsonl

        A build that was started over ssh, in a container or by a C++ program has the same view as
        one of your own, and Cancel where its producer listens. Reading begins at once.
        :meth:`close` stops it, and the build goes on. The engine stays where it was built.

        Parameters
        ----------
        source
            Path of a file of JSON Lines, which may still grow or not be there yet, or of a FIFO; a
            file object; a descriptor.
        control
            Where a request to cancel goes, if not to the file beside ``source``: a path, a file
            object or a descriptor.
        name
            What to call the build; by default as its stream does.
        wait
            False: it is a recording, and is read to where it ends now.

        Raises
        ------
        TypeError, StreamError
            As for :meth:`Build.follow`.
        """
        build = Build.follow(source, control=control, name=name, wait=wait)
        self = cls.__new__(cls)
        BuildCard.__init__(self)
        self._bind(build)
        return self.start()

    def _bind(self, build: Build, *, borrowed: bool = False) -> None:
        self._build = build
        #: Whether the build belongs to somebody else.
        self._borrowed = borrowed
        self._unsubscribe: Callable[[], None] | None = None
        self._saved = SavedResult(build)
        self._saved_final = False
        self._faulty: set[str] = set()
        self._view: CardView | None = CardView(build, self, self._saved.mark)
        self._displayed = False
        self._seen = "pending"
        channel = CancelChannel()
        self.cancel_channel = self._channel = channel
        # The handler must not keep the widget alive, nor do more than set a flag: it runs on
        # whatever thread the kernel takes comm messages with.
        channel.on_msg(_request_handler(weakref.ref(build)))
        self.timeline = Timeline(build)
        with self.hold_sync():
            self.header = self._view._header()  # noqa: SLF001 - the same package
        self._unsubscribe = build.subscribe(_updater(weakref.ref(self)), every_tick=True)
        if not borrowed:
            _cells.enter(self)

    # ------------------------------------------------------------------ the build

    def start(self) -> BuildWidget:
        """Start the build in the background and return this widget at once.

        While another build of this process uses the device, this one stays ``pending`` and says so.

        Raises
        ------
        BuildStateError
            It was started before.
        """
        self._build.start()
        return self

    def request_cancel(self) -> bool:
        """Ask the build to stop, as the Cancel button does; see :meth:`Build.request_cancel`."""
        asked = self._build.request_cancel()
        # One that was not started has ended now, and nobody needs to wait for it.
        self._saved.repeat()
        return asked

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the build has ended and return the engine; see :meth:`Build.wait`.

        The view stays live meanwhile, and Interrupt cancels the build. On kernels without subshells
        (ipykernel 6) the wait itself lets clicks on Cancel in.
        """
        self._build.check_started()
        if kernel.needs_polling():
            with kernel.ui_poll() as poll:
                self._build.wait_ended(timeout, between=lambda: poll(5))
        try:
            return self._build.wait(timeout)
        finally:
            self._saved.repeat()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait without blocking the kernel; Interrupt cancels the build."""
        return self._await().__await__()

    async def _await(self) -> Any:
        self._build.check_started()
        try:
            if not kernel.needs_polling():
                return await self._build
            import asyncio

            async with kernel.ui_poll() as poll:
                try:
                    while self._build.status not in FINAL:
                        await poll(5)
                        await asyncio.sleep(0.05)
                except (asyncio.CancelledError, KeyboardInterrupt):
                    self._build.request_cancel("interrupt")
                    raise
            return await self._build
        finally:
            self._saved.repeat()

    def stream(self, *, interval: float = 0.5, heartbeat: float = 1.0) -> ChunkStream:
        """Give the phases as small chunks, then the outcome; see :meth:`Build.stream`."""
        return self._build.stream(interval=interval, heartbeat=heartbeat)

    @property
    def timings(self) -> pd.DataFrame:
        """A row per phase path, in tree order; see :attr:`Build.timings`."""
        return self._build.timings

    @property
    def spans(self) -> pd.DataFrame:
        """A row per phase instance, in start order; see :attr:`Build.spans`."""
        return self._build.spans

    @property
    def log(self) -> pd.DataFrame:
        """TensorRT's messages: ``time_s``, ``severity``, ``message``.

        This takes the place of the ``log`` that ipywidgets gives its widgets, a ``logging.Logger``.
        """
        return self._build.log

    @property
    def engine(self) -> Any:
        """The serialized engine (bytes-like), once there is one, else ``None``."""
        return self._build.engine

    @property
    def result(self) -> BuildResult | None:
        """What the build came to, once it has ended."""
        return self._build.result

    @property
    def basis(self) -> str | None:
        """Where :attr:`progress` and :attr:`eta_s` come from, in words; see :attr:`Build.basis`."""
        return self._build.basis

    @property
    def build(self) -> Build:
        """The build behind this view."""
        return self._build

    @property
    def monitor(self) -> Any:
        """The progress monitor of an attached build, to be set in a builder config."""
        return self._build.monitor

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the engine to ``path``, whole or not at all; see :meth:`Build.save`."""
        return self._build.save(path)

    def record(self, path: str | os.PathLike[str] | None = None) -> Record:
        """Keep everything but the engine; see :meth:`Build.record`."""
        return self._build.record(path)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page of HTML about the build; see :meth:`Build.report`."""
        return self._build.report(path)

    def plot(self) -> Picture:
        """Draw where the time went, as it is now; see :meth:`Build.plot`."""
        return self._build.plot()

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the phases for Perfetto; see :meth:`Build.to_chrome_trace`."""
        return self._build.to_chrome_trace(path)

    def subscribe(self, callback: Callable[[list[Event]], object]) -> Callable[[], None]:
        """Have ``callback`` called with every batch of events; see :meth:`Build.subscribe`."""
        return self._build.subscribe(callback)

    def finish(self, engine: Any) -> Any:
        """Hand in what your builder returned, and get it back; see :meth:`Build.finish`."""
        return self._build.finish(engine)

    def __enter__(self) -> BuildWidget:  # noqa: PYI034 - typing.Self came with Python 3.11
        """Start to watch an attached build, and show it."""
        if kernel.in_kernel() and not self._displayed:
            from IPython.display import display

            display(self)  # type: ignore[no-untyped-call]  # IPython has no types for it
        self._build.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End; without :meth:`finish` the outcome is not known."""
        self._build.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Cancel the build if it runs, and close every comm; what it found stays readable.

        A view made by :meth:`of` leaves the build alone.
        """
        build = self.__dict__.get("_build")
        if build is not None and not self._borrowed:
            build.close()
        self._close_view()

    def __del__(self) -> None:
        """Close the comms that are left; never cancel, and do nothing while Python shuts down.

        ipywidgets would call :meth:`close` here, which may be in the middle of the interpreter's
        end.
        """
        if not sys.is_finalizing():
            self._close_view()

    # ------------------------------------------------------------------ the view

    def _on_batch(self, events: list[Event]) -> None:
        """Bring the view and the observers up to date (on the drain thread)."""
        view = self._view
        if view is not None:
            view.update()
        self._set_estimate()
        for event in events:
            if isinstance(event, StatusChanged) and event.status != self._seen:
                old, self._seen = self._seen, event.status
                change = traitlets.Bunch(
                    name="status", old=old, new=event.status, owner=self, type="change"
                )
                try:
                    self.notify_change(change)
                except BaseException:  # noqa: BLE001 - an observer's fault must not stop the view
                    with contextlib.suppress(Exception):
                        _log.exception("trt_widget: an observer of %r raised", self)
        if self._build.status in FINAL and not self._saved_final:
            self._saved_final = True
            self._saved.finish()
        if view is not None and view.replaced and self._build.status in FINAL:
            self._close_view()

    def _set_estimate(self) -> None:
        # In this order: who observes the progress reads the others, too.
        for name in ("exceeded", "eta_s", "progress"):
            self._set(name, getattr(self._build, name))

    def _set(self, name: str, value: object) -> None:
        """Set a trait; an observer that raises is told of once, it would come with every tick."""
        try:
            self.set_trait(name, value)
        except BaseException:  # noqa: BLE001 - an observer's fault must not stop the view
            if name not in self._faulty:
                self._faulty.add(name)
                with contextlib.suppress(Exception):
                    _log.exception("trt_widget: an observer of %s of %r raised", name, self)

    def _replace(self) -> None:
        """Make room for a widget made by a new run of the same cell."""
        view = self._view
        if view is None:
            return
        # One that still runs may be shown elsewhere: its own drain closes it at its end.
        view.replaced = True
        if self._build.status in FINAL:
            self._close_view()

    def _close_view(self) -> None:
        with _closing:
            view, self._view = self.__dict__.get("_view"), None
            if view is None:
                return
        if self._borrowed and self._unsubscribe is not None:
            self._unsubscribe()
        view.close()
        self._channel.close()
        if self.timeline is not None:
            self.timeline.close()
        layout = self.layout
        super().close()
        layout.close()
        # ipywidgets would leave None here; text and HTML can still be shown.
        self.__dict__.pop("_repr_mimebundle_", None)
        _cells.leave(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs) if self.comm is not None else None
        data, metadata = bundle or ({}, {})
        self._displayed = True
        beside = self._saved.show()
        return {
            **data,
            "text/plain": repr(self),
            "text/html": self._saved.pointer if beside else build_html(self._build),
        }, metadata

    def __repr__(self) -> str:
        build = self.__dict__.get("_build")
        if build is None:
            return "BuildWidget()"
        ended = f", {build.status}" if build.status in FINAL else ""
        return f"BuildWidget({build.name!r}{ended})"

    def __str__(self) -> str:
        return build_text(self._build)


#: Reentrant, as that of the cells: the collector may call `BuildWidget.__del__` anywhere.
_closing = threading.RLock()
_log = logging.getLogger("trt_widget")


def _updater(reference: weakref.ref[BuildWidget]) -> Callable[[list[Event]], None]:
    """Make the subscriber of a widget, which does not keep it alive."""

    def update(events: list[Event]) -> None:
        widget = reference()
        if widget is not None:
            widget._on_batch(events)  # noqa: SLF001 - the same module

    return update


def _request_handler(reference: weakref.ref[Build]) -> Callable[..., None]:
    """Make the handler of what the browser sends on the cancel channel."""

    def handle(_channel: Any, content: Any, _buffers: Any) -> None:
        build = reference()
        kind = content.get("kind") if isinstance(content, dict) else None
        if build is None:
            return
        if kind == "cancel":
            build.signal_cancel("user")
        elif kind == "cancel_blocker":
            build.cancel_blocker()

    return handle


class Replaceable(Protocol):
    """A widget that can make room for another one."""

    def _replace(self) -> None:
        """Close, now or when what it shows has ended."""


class _Cells:
    """The widgets that cells have made: a cell that runs again replaces its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[str, tuple[str, list[weakref.ref[Replaceable]]]] = {}

    def enter(self, widget: Replaceable) -> None:
        """Note a new widget, and replace those of an earlier run of the same cell."""
        where = kernel.current_cell()
        if where is None:
            return
        cell, execution = where
        earlier: list[weakref.ref[Replaceable]] = []
        with self._lock:
            before = self._made.get(cell)
            kept = before[1] if before and before[0] == execution else []
            if before and before[0] != execution:
                earlier = before[1]
            self._made[cell] = (execution, [*kept, weakref.ref(widget)])
        for reference in earlier:
            old = reference()
            if old is not None:
                old._replace()

    def leave(self, widget: Replaceable) -> None:
        """Forget a closed widget."""
        with self._lock:
            for cell, (execution, references) in list(self._made.items()):
                left = [ref for ref in references if ref() is not None and ref() is not widget]
                if left:
                    self._made[cell] = (execution, left)
                else:
                    del self._made[cell]


_cells = _Cells()
