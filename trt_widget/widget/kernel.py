"""What is known of the kernel around us: the running cell, and how clicks get in.

Everything that depends on ipykernel's insides is here, measured with 6.31, 7.3 and 7.4 and pinned
by ``tests/kernel``.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["current_cell", "current_run", "has_subshells", "in_kernel", "ui_poll"]


def _kernel() -> Any:
    """Give the ipykernel we run in, or ``None``."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


def in_kernel() -> bool:
    """Whether there is a notebook that could show something."""
    return _kernel() is not None


def current_cell() -> tuple[str, str] | None:
    """Give (cell id, id of its execution) of the running cell, or ``None``.

    JupyterLab, Notebook and VS Code send the cell's id with the request to run it.
    """
    kernel = _kernel()
    if kernel is None:
        return None
    try:
        parent = kernel.get_parent("shell")
    except (AttributeError, LookupError):
        return None
    cell = parent.get("metadata", {}).get("cellId")
    execution = parent.get("header", {}).get("msg_id")
    return (str(cell), str(execution)) if cell and execution else None


def current_run() -> str:
    """Give the id of the request that runs in the main shell; empty where there is none."""
    try:
        return str(_kernel().get_parent("shell")["header"]["msg_id"])
    except (AttributeError, KeyError, LookupError, TypeError):
        return ""


def has_subshells() -> bool:
    """Whether the kernel can take messages while a cell runs."""
    return bool(getattr(_kernel(), "_supports_kernel_subshells", False))


def needs_polling() -> bool:
    """Whether a wait in a cell has to let clicks in by itself: a kernel without subshells.

    On ipykernel 7 the clicks come over a subshell, or (from a front end that has none) not at all:
    polling its main shell did not help, measured with 7.4.
    """
    return (
        in_kernel()
        and not has_subshells()
        and threading.current_thread() is threading.main_thread()
        and current_request() == "execute_request"
    )


def current_request() -> str | None:
    """Give the type of the message that the main shell works on."""
    kernel = _kernel()
    try:
        kind: str | None = kernel.get_parent("shell")["header"]["msg_type"]
    except (AttributeError, KeyError, LookupError, TypeError):
        return None
    return kind


def ui_poll() -> Any:
    """Give ``jupyter_ui_poll.ui_events()``: a context, with or without ``async``."""
    from jupyter_ui_poll import ui_events

    return ui_events()
