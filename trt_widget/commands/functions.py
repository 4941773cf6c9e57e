"""Functions that the command line names."""

from __future__ import annotations

import contextlib
import difflib
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_widget.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load_function"]


def load_function(name: str) -> Callable[..., Any]:
    """Import a function that is named as ``module:function``.

    Modules are found as Python finds them, in the present folder first.

    Raises
    ------
    OptionError
        It is written in another way, or there is no such module or function.
    """
    module_name, separator, path = name.partition(":")
    if not (module_name and separator and path):
        raise OptionError(
            f"{name!r} does not name a function.",
            "Write MODULE:FUNCTION, such as my_options:configure for the function configure in "
            "my_options.py.",
        )
    with contextlib.suppress(OSError):  # it may have been removed
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken_module(module_name, error) from error
        raise OptionError(
            f"There is no module {module_name!r} (of {name!r}).",
            "It is looked for in the present folder and where Python finds its packages.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken_module(module_name, error) from error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        near = difflib.get_close_matches(part, dir(found), 1, 0.6)
        raise OptionError(
            f"{module_name} has no {path!r}.", f"Did you mean {near[0]!r}?" if near else ""
        ) from error
    if not callable(found):
        raise OptionError(
            f"{name!r} is a {type(found).__name__}, not a function.", "Name a function."
        )
    function: Callable[..., Any] = found
    return function


def _broken_module(name: str, error: BaseException) -> OptionError:
    return OptionError(
        f"The module {name!r} cannot be imported: {type(error).__name__}: {error}.",
        f'Try it alone: python -c "import {name}".',
    )
