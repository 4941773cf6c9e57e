"""What an extra of this package installs, imported where it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trt_widget.errors import ExtraMissing

__all__ = ["require"]


def require(*modules: str, extra: str, what: str) -> Any:
    """Import modules that an extra installs, and give the first.

    Parameters
    ----------
    modules
        Their names.
    extra
        The extra of ``trt-widget`` that installs them.
    what
        What needs them, as the subject of a sentence.

    Raises
    ------
    ExtraMissing
        One of them, or something that it needs, is not installed.
    """
    try:
        found = [import_module(module) for module in modules]
    except ImportError as error:
        raise ExtraMissing(
            f"{what} needs what the extra {extra!r} installs: {error}.",
            remedy=f"Install the extra: pip install 'trt-widget[{extra}]'; in a clone of the "
            f"project: pip install '.[{extra}]'.",
            extra=extra,
        ) from error
    return found[0]
