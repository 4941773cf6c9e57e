"""What to build and how, checked before anything starts.

Nothing here reads the model or needs a GPU. What only the model, the GPU or TensorRT can tell is
checked by :mod:`trt_widget.network` when the build has started.
"""

from __future__ import annotations

import math
import operator
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from trt_widget.backend import Backend, find_backend
from trt_widget.errors import (
    OptionError,
    OutputError,
    ProfileError,
    SourceError,
    UnknownOptionError,
)

if TYPE_CHECKING:
    from types import ModuleType

    from trt_widget.engine_cache import EngineCache

__all__ = [
    "EXECUTORS",
    "OPTION_NAMES",
    "BuildOptions",
    "Executor",
    "Profile",
    "ShapeRange",
    "Source",
    "check_output",
    "check_source",
]

#: What TensorRT accepts (IBuilderConfig::setBuilderOptimizationLevel). Measured with tensorrt_rtx
#: 1.7.1: more than 5 silently becomes 5, less than 0 is refused in the log only.
OPTIMIZATION_LEVELS: Final = range(6)

#: Where a build can run.
Executor = Literal["auto", "thread", "process"]

#: All of these.
EXECUTORS: Final[tuple[Executor, ...]] = ("auto", "thread", "process")

#: Seconds that a cancel waits for TensorRT's next step before the child process is ended.
DEFAULT_GRACE: Final = 2.0

# Only one of these can be on; TensorRT unsets the earlier one with a warning (measured, 1.7.1).
_REFIT_FLAGS: Final = ("REFIT", "REFIT_IDENTICAL", "REFIT_INDIVIDUAL")

# What a `config=` callable decides; options that would change its result behind its back.
_DECIDED_BY_CONFIG: Final = (
    "flags",
    "optimization_level",
    "workspace",
    "target",
    "profiles",
    "timing_cache",
)


class ShapeRange(NamedTuple):
    """The range of one input in an optimization profile: shapes, or a shape tensor's values."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


#: An optimization profile: the range of each input, by the input's name.
Profile = dict[str, ShapeRange]


@dataclass(frozen=True)
class BuildOptions:
    """The options of one build, checked and in one form.

    Make one with :meth:`from_kwargs`.

    Attributes
    ----------
    output
        Where to write the engine on success; absolute.
    profiles
        The optimization profiles, in order.
    timeout
        Seconds from the start of ``running`` until the build is cancelled.
    flags
        Names of builder flags of the backend's package.
    strongly_typed
        Whether the network is strongly typed. Where the option is not given: yes, as NVIDIA
        recommends and as RTX and TensorRT 11 always do, unless ``flags`` holds a flag that only a
        weakly typed network takes (FP16, INT8 ...).
    network_flags
        Names of further network creation flags.
    optimization_level
        0 to 5; None leaves TensorRT's default (3).
    workspace
        Limit of the workspace memory pool in bytes; None leaves TensorRT's default.
    device
        Index of the GPU to build on, as CUDA numbers them; None leaves the current one.
    target
        Names of ``ComputeCapability`` members; empty leaves TensorRT for RTX's default.
    configure
        ``(builder, network, config)``, called last, for anything else.
    config
        ``(builder, network) -> config``, as Polygraphy's ``CreateConfig`` is.
    backend
        The TensorRT package that builds.
    executor
        Where the builder runs: ``"process"``, a child process; ``"thread"``, a thread of this
        process; ``"auto"`` (the default), a child process wherever the callables can travel to one.
    grace
        Seconds that a cancel waits for TensorRT's next step before the child process is ended; 2 by
        default. A thread cannot be ended: there a cancel waits as long as it takes.
    exclusive
        Whether builds on one GPU wait for each other, across processes: two that time tactics on
        one GPU spoil each other's engines. None (the default) means yes where there is a GPU and
        the build times tactics on it (:attr:`times_tactics`), True always, False never.
    plugins
        Plugin libraries to load before the model is parsed; absolute.
    external_data
        Folders from which weight files may be read, besides the model's own; absolute.
    timing_cache
        The timing cache's file, read before the build where it exists and written after it, also
        after a cancel at a step; absolute. ``True`` stands for a file in the user's cache folder,
        one for each TensorRT package, version and GPU. A file of another version or GPU is never
        written over: it stays, and the cache goes beside it, under its name with those added.

        For full TensorRT: timing caches do not apply to TensorRT for RTX. There ``True`` is
        answered with a note, so that code for both packages can ask for "a cache where there is
        one"; a path is refused, because a file that was asked for by name would never come to be.
    engine_cache
        Where engines are kept, so that the same build again is answered from the disk, or None (the
        default). ``True`` stands for a folder in the user's cache folder; a path names another; an
        :class:`~trt_widget.engine_cache.EngineCache` says more. Builds with functions
        (``configure=``, ``config=``, a callable source) are never cached.
    client
        A ``dask.distributed.Client``: the build is a task of its cluster and runs in a child
        process of a worker. ``plugins`` and ``timing_cache`` are then paths on the worker;
        ``output`` and ``external_data`` stay paths here.
    resources
        What a worker has to have, such as ``{"GPU": 1}``, as Dask's workers declare it; with
        ``client`` only.
    reschedules
        How often a build whose worker was lost is begun again by itself, once by default; with
        ``client`` only.
    """

    output: Path | None
    profiles: tuple[Profile, ...]
    timeout: float | None
    flags: tuple[str, ...]
    strongly_typed: bool
    network_flags: tuple[str, ...]
    optimization_level: int | None
    workspace: int | None
    device: int | None
    target: tuple[str, ...]
    configure: Callable[[Any, Any, Any], Any] | None
    config: Callable[[Any, Any], Any] | None
    backend: Backend
    executor: Executor = "auto"
    grace: float = DEFAULT_GRACE
    exclusive: bool | None = None
    plugins: tuple[Path, ...] = ()
    external_data: tuple[Path, ...] = ()
    timing_cache: Path | Literal[True] | None = None
    engine_cache: EngineCache | None = None
    client: Any = None
    resources: tuple[tuple[str, float], ...] = ()
    reschedules: int = 1
    #: Whether the caller said anything about the network's creation; a callable source decides it.
    network_given: bool = False

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> BuildOptions:
        """Check what the caller gave; an option that is missing or None has its default.

        Parameters
        ----------
        kwargs
            The keyword arguments of ``Build`` and ``BuildWidget``.

        Raises
        ------
        UnknownOptionError
            There is no such option.
        OptionError
            A value that cannot be, or two that contradict each other.
        OutputError
            ``output`` cannot be written.
        ProfileError
            A profile that no network could have.
        BackendNotFound
            No TensorRT to build with.
        WrongBackendError
            ``backend`` is a module, but not TensorRT's.
        """
        for name in kwargs:
            if name not in OPTION_NAMES:
                import difflib

                near = difflib.get_close_matches(name.lower(), OPTION_NAMES, 1, 0.5)
                raise UnknownOptionError(name, near[0] if near else None, known=OPTION_NAMES)
        given = {name: value for name, value in kwargs.items() if value is not None}
        if given.get("timing_cache") is False:
            del given["timing_cache"]
        far = _check_client(given)
        if "config" in given:
            _refuse_beside_config(given)
        backend = find_backend(_backend_choice(given.get("backend")))
        flags = _check_flags(given.get("flags", ()), backend)
        network_flags = _check_network_flags(given.get("network_flags", ()), backend)
        strongly_typed = _check_typing(given.get("strongly_typed"), flags, network_flags, backend)
        output = check_output(given["output"]) if "output" in given else None
        return cls(
            output=output,
            profiles=_check_profiles(given["profiles"]) if "profiles" in given else (),
            timeout=_check_timeout(given["timeout"]) if "timeout" in given else None,
            flags=flags,
            strongly_typed=strongly_typed,
            network_flags=tuple(name for name in network_flags if name != "STRONGLY_TYPED"),
            optimization_level=_check_level(given.get("optimization_level")),
            workspace=_check_integer("workspace", given.get("workspace"), 1, "bytes"),
            device=_check_integer("device", given.get("device"), 0, "the index of a GPU"),
            target=_check_target(given["target"], backend) if "target" in given else (),
            configure=_check_callable(
                "configure", given.get("configure"), "builder, network, config"
            ),
            config=_check_callable("config", given.get("config"), "builder, network"),
            backend=backend,
            executor=_check_executor(given.get("executor", "auto")),
            grace=_check_grace(given.get("grace", DEFAULT_GRACE)),
            exclusive=_check_exclusive(given.get("exclusive")),
            plugins=_check_plugins(given.get("plugins", ()), far=far),
            external_data=_check_folders(given.get("external_data", ())),
            timing_cache=_check_timing_cache(given["timing_cache"], output, backend, far=far)
            if "timing_cache" in given
            else None,
            engine_cache=_check_engine_cache(given.get("engine_cache"), far=far),
            client=given.get("client"),
            resources=_check_resources(given.get("resources", {})),
            reschedules=_check_integer("reschedules", given.get("reschedules", 1), 0, "a count")
            or 0,
            network_given="strongly_typed" in given or bool(network_flags),
        )

    @property
    def times_tactics(self) -> bool:
        """Whether the build times tactics on the GPU that is there.

        TensorRT for RTX does not: it compiles ahead of time. Measured with 1.7.1 on a machine with
        an H200 and 16 cores: eight builds at once took a seventh of the time that they took one
        after the other. Of ``target="current"`` that is not known: there an H200 is refused.
        """
        return self.backend.needs_gpu or "CURRENT" in self.target

    def travelling(self) -> dict[str, object]:
        """Return the callables by option name, which have to travel to a child process."""
        callables = {"configure": self.configure, "config": self.config}
        return {name: value for name, value in callables.items() if value is not None}


#: The names of all options.
OPTION_NAMES: Final = tuple(
    field.name for field in fields(BuildOptions) if field.name != "network_given"
)


# ---- single options -----------------------------------------------------------------------------


def _backend_choice(value: object) -> str | ModuleType | Backend | None:
    return value  # type: ignore[return-value]  # find_backend itself refuses what is none of these


def _refuse_beside_config(given: Mapping[str, object]) -> None:
    others = [f"{name}=" for name in _DECIDED_BY_CONFIG if name in given]
    if others:
        raise OptionError(
            f"config= makes the whole config, so {' and '.join(others)} cannot be given too.",
            "Set it inside the function given as config=, or leave config= out and use configure= "
            "for what has no option.",
        )


def _check_callable(name: str, value: Any, arguments: str) -> Any:
    if value is not None and not callable(value):
        raise OptionError(
            f"{name}= must be a function, not {_kind(value)}.",
            f"Give a function that takes ({arguments}).",
        )
    return value


def _check_timeout(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(seconds) or seconds <= 0:
        raise OptionError(
            f"timeout={value!r} is not a number of seconds above zero.",
            "Give the seconds after which the build is to be cancelled, or leave it out.",
        )
    return seconds


def _check_executor(value: Any) -> Executor:
    name = value.strip().lower() if isinstance(value, str) else value
    for known in EXECUTORS:
        if name == known:
            return known
    import difflib

    near = difflib.get_close_matches(name, EXECUTORS, 1, 0.5) if isinstance(name, str) else []
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise OptionError(
        f"executor={value!r} is no place to build in.",
        f"{hint}Give 'process' (a child process), 'thread' (a thread of this process) or 'auto' "
        "(a child process where possible).",
    )


def _check_grace(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(seconds) or seconds < 0:
        raise OptionError(
            f"grace={value!r} is not a number of seconds of at least zero.",
            "Give the seconds that a cancel waits for TensorRT's next step before the child "
            "process is ended; 0 ends it at once.",
        )
    return seconds


def _check_client(given: Mapping[str, Any]) -> bool:
    """Check the cluster's client, and give whether there is one."""
    client = given.get("client")
    if client is None:
        for name in ("resources", "reschedules"):
            if name in given:
                raise OptionError(
                    f"{name}= says something about Dask's workers, and there is no client=.",
                    "Give client= (a dask.distributed.Client), or leave it out.",
                )
        return False
    # Whoever has a client has imported it.
    kind = getattr(sys.modules.get("distributed"), "Client", None)
    if kind is None or not isinstance(client, kind):
        raise OptionError(
            f"client= must be a dask.distributed.Client, not {_kind(client)}.",
            _how_to_connect(client),
        )
    if client.status in {"closed", "closing"}:
        raise OptionError(
            "client= is closed already.", "Make a new one with Client(address) or Client(cluster)."
        )
    if given.get("executor") == "thread":
        raise OptionError(
            "client= builds in a child process of a Dask worker, executor='thread' in this one.",
            "Leave one of them out.",
        )
    return True


def _how_to_connect(given: Any) -> str:
    """Say how to make the client that ``given`` is not."""
    from importlib.util import find_spec

    is_address = isinstance(given, str) and "://" in given and given.isprintable()
    address = repr(given[:100] if is_address else "tcp://host:8786")
    remedy = (
        f"Make one: from distributed import Client, then client=Client({address}) with the "
        "scheduler's address; or Client(cluster), as LocalCluster() gives one."
    )
    if find_spec("distributed") is None:
        remedy = f"Install the extra: pip install 'trt-widget[dask]'. {remedy}"
    return remedy


def _check_resources(value: Any) -> tuple[tuple[str, float], ...]:
    form = 'Write resources={"GPU": 1}, as the workers were started with.'
    if not isinstance(value, Mapping):
        raise OptionError(f"resources={value!r} is not a dict.", form)
    checked = []
    for name, amount in value.items():
        try:
            number = float(amount)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        sound = math.isfinite(number) and number > 0
        if not isinstance(name, str) or isinstance(amount, (bool, str)) or not sound:
            raise OptionError(f"resources: {name!r}: {amount!r} is no amount of anything.", form)
        checked.append((name, number))
    return tuple(checked)


def _check_exclusive(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise OptionError(
            f"exclusive={value!r} is neither True nor False.",
            "Give True to let builds on one device wait for each other, False to let them run "
            "side by side, or leave it out.",
        )
    return value


def _check_integer(name: str, value: Any, least: int, what: str) -> int | None:
    if value is None:
        return None
    number = _integer(value)
    if number is None or number < least:
        raise OptionError(
            f"{name}={value!r} is not a whole number of at least {least}.",
            f"Give {what} as an integer.",
        )
    return number


def _check_level(value: Any) -> int | None:
    if value is None:
        return None
    number = _integer(value)
    if number is None or number not in OPTIMIZATION_LEVELS:
        raise OptionError(
            f"optimization_level={value!r} is not a whole number from 0 to 5.",
            "Higher levels search longer for a faster engine; TensorRT's default is 3.",
        )
    return number


def _integer(value: Any) -> int | None:
    """Return ``value`` as an int where it is a whole number (numpy's too) and no truth value."""
    if isinstance(value, bool) or type(value).__name__ in {"bool_", "bool"}:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _names(option: str, value: Any) -> list[str]:
    """Return names in upper case from one name or several, as text or as members of the enum."""
    if isinstance(value, str) or hasattr(value, "name") or not isinstance(value, Iterable):
        value = [value]
    names: list[str] = []
    for item in value:
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if not isinstance(name, str) or not name.strip():
            raise OptionError(
                f"{option}={item!r} is not a name.",
                f"Give the names as text, in a list: {option}=[...].",
            )
        upper = name.strip().upper().rpartition(".")[2]
        if upper not in names:
            names.append(upper)
    return names


def _unknown(
    option: str, name: str, known: Sequence[str], backend: Backend, remedy: str = ""
) -> OptionError:
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return OptionError(
        f"{option}: {backend} has no {name!r}.",
        f"{hint}{remedy or 'It has: ' + ', '.join(known) + '.'}",
    )


def _check_flags(value: Any, backend: Backend) -> tuple[str, ...]:
    known = backend.builder_flags()
    names = _names("flags", value)
    for name in names:
        if name not in known:
            remedy = ""
            if name in _PRECISIONS and backend.strongly_typed_only:
                remedy = (
                    "Networks are strongly typed here: the precisions are those of the model. "
                    "Convert the ONNX model instead (to FP16, or with explicit quantization)."
                )
                raise OptionError(f"flags: {backend} has no {name!r}.", remedy)
            raise _unknown("flags", name, known, backend)
    refits = [name for name in names if name in _REFIT_FLAGS]
    if len(refits) > 1:
        raise OptionError(
            f"flags: {' and '.join(refits)} exclude each other; TensorRT would keep only the last.",
            "Choose one.",
        )
    return tuple(names)


_PRECISIONS: Final = frozenset({"BF16", "FP16", "FP4", "FP8", "INT4", "INT8"})


def _check_network_flags(value: Any, backend: Backend) -> tuple[str, ...]:
    known = backend.network_flags()
    names = _names("network_flags", value)
    for name in names:
        if name not in known:
            raise _unknown("network_flags", name, known, backend)
    return tuple(names)


def _check_typing(
    value: Any,
    flags: Sequence[str],
    network_flags: Sequence[str],
    backend: Backend,
) -> bool:
    if value is not None and not isinstance(value, bool):
        raise OptionError(
            f"strongly_typed={value!r} is neither True nor False.", "Give one of them."
        )
    if value is False and backend.strongly_typed_only:
        raise OptionError(
            f"strongly_typed=False is not possible: every network of {backend} is strongly typed.",
            "Leave it out; the precisions are those written in the model.",
        )
    if value is False and "STRONGLY_TYPED" in network_flags:
        raise OptionError(
            "strongly_typed=False contradicts network_flags=['STRONGLY_TYPED'].", "Leave one out."
        )
    weak = [name for name in flags if name in backend.weak_flags()]
    strong = value is True or "STRONGLY_TYPED" in network_flags
    if strong and weak:
        raise OptionError(
            f"flags: {' and '.join(weak)} cannot be used in a strongly typed network.",
            "Leave strongly_typed out (such flags make the network weakly typed), or leave the "
            "flags out and convert the ONNX model to the precision that you want.",
        )
    if value is None and not strong:
        return not weak
    return strong


_CAPABILITY: Final = re.compile(r"(?:SM|COMPUTE|CC)?[_ -]?(\d{1,2})\.?(\d)[AF]?")


def _check_target(value: Any, backend: Backend) -> tuple[str, ...]:
    known = backend.compute_capabilities()
    if not backend.can_target:
        raise OptionError(
            f"target= is for TensorRT for RTX; {backend} builds for the GPU that it runs on.",
            "Leave it out, or choose backend='tensorrt_rtx'. device= chooses the GPU.",
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) and isinstance(value, Iterable) and not hasattr(value, "name"):
        value = [str(item) if isinstance(item, float) else item for item in value]
    texts = [value] if isinstance(value, str) or hasattr(value, "name") else value
    if not isinstance(texts, Iterable):
        raise OptionError(f"target={value!r} is no GPU generation.", _targets(known))
    names: list[str] = []
    for item in texts:
        name = _capability(item)
        if name not in known:
            looks_right = _CAPABILITY.fullmatch(name)
            import difflib

            near = [] if looks_right else difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"target: {backend} cannot build for {item!r}.", f"{hint}{_targets(known)}"
            )
        if name not in names:
            names.append(name)
    if not names:
        raise OptionError("target is empty.", _targets(known))
    if "CURRENT" in names and len(names) > 1:
        raise OptionError(
            "target: 'current' cannot be combined with others; TensorRT for RTX takes it alone.",
            "Give the GPU generations by name, or 'current' alone.",
        )
    return tuple(names)


def _capability(item: Any) -> str:
    """Return the enum's name for "SM86", "sm_86", "8.6", 86, "current" or a member of the enum."""
    text = str(getattr(item, "name", item)).strip().upper()
    match = _CAPABILITY.fullmatch(text)
    return f"SM{match[1]}{match[2]}" if match else text


def _targets(known: Sequence[str]) -> str:
    names = ", ".join("'current'" if name == "CURRENT" else repr(name) for name in known)
    return f"Possible are {names}, or a list of several."


# ---- profiles -----------------------------------------------------------------------------------

_PROFILE_FORM: Final = (
    'Write profiles={"input": (min, opt, max)} with three shapes, for example '
    'profiles={"x": ((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224))}; for several profiles '
    "a list of such dicts."
)
_SHAPES: Final = ("min", "opt", "max")


def _check_profiles(value: Any) -> tuple[Profile, ...]:
    several = isinstance(value, (list, tuple))
    profiles = list(value) if several else [value]
    if not profiles:
        return ()
    return tuple(
        _check_profile(profile, f"profiles[{index}]" if several else "profiles")
        for index, profile in enumerate(profiles)
    )


def _check_profile(profile: Any, where: str) -> Profile:
    # Polygraphy's Profile is no Mapping, but has items() and values with .min, .opt and .max.
    if not isinstance(profile, Mapping) and not callable(getattr(profile, "items", None)):
        raise ProfileError(f"{where} is {_kind(profile)}, not a dict.", _PROFILE_FORM)
    if not profile:
        raise ProfileError(f"{where} is empty.", _PROFILE_FORM)
    checked: Profile = {}
    for name, value in profile.items():
        if not isinstance(name, str):
            raise ProfileError(f"{where}: {name!r} is no input's name.", _PROFILE_FORM)
        checked[name] = _check_range(value, f"{where}[{name!r}]")
    return checked


def _check_range(value: Any, where: str) -> ShapeRange:
    if all(hasattr(value, name) for name in _SHAPES) and not hasattr(value, "dtype"):
        value = (value.min, value.opt, value.max)
    try:
        triple = tuple(value)
    except TypeError:
        triple = ()
    if isinstance(value, (str, bytes, Mapping)) or len(triple) != len(_SHAPES):
        raise ProfileError(f"{where} is not (min, opt, max): {value!r}.", _PROFILE_FORM)
    # One number instead of a shape: a scalar shape tensor's value, or a one-dimensional input.
    shapes = ShapeRange(
        *(
            _check_shape(shape, f"{where}, {name}")
            for shape, name in zip(triple, _SHAPES, strict=True)
        )
    )
    if len({len(shape) for shape in shapes}) > 1:
        raise ProfileError(
            f"{where}: min, opt and max differ in their number of dimensions: {_show(shapes)}.",
            "Give all three shapes the same number of dimensions.",
        )
    for axis, (low, best, high) in enumerate(zip(*shapes, strict=True)):
        if not low <= best <= high:
            which = "min > opt" if low > best else "opt > max"
            raise ProfileError(
                f"{where}: {which} in dimension {axis} ({low}, {best}, {high}): {_show(shapes)}.",
                "Order the shapes so that min <= opt <= max holds in every dimension.",
            )
    return shapes


def _check_shape(shape: Any, where: str) -> tuple[int, ...]:
    number = _integer(shape)
    if number is not None:
        return (number,)
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise ProfileError(f"{where} is no shape: {shape!r}.", _PROFILE_FORM)
    numbers = [_integer(dimension) for dimension in shape]
    if None in numbers:
        raise ProfileError(
            f"{where} is not made of whole numbers: {shape!r}.",
            "A profile needs a number in every dimension, also where the model has a name or -1.",
        )
    return tuple(number for number in numbers if number is not None)


def _show(shapes: ShapeRange) -> str:
    return f"min {shapes.min}, opt {shapes.opt}, max {shapes.max}"


def _kind(value: object, *, capital: bool = False) -> str:
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"{article.capitalize() if capital else article} {name}"


# ---- output and source --------------------------------------------------------------------------


def _stat(path: Path) -> os.stat_result | None:
    """Return the file's state, or None where there is none."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _paths(option: str, value: Any) -> list[Path]:
    """Return absolute paths from one path or several, each once."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike))
    paths: list[Path] = []
    for item in value if several else [value]:
        try:
            text = os.fsdecode(item)
        except TypeError:
            raise OptionError(
                f"{option}= must be a path or a list of paths, not {_kind(item)}.",
                "Give text or a pathlib.Path.",
            ) from None
        if not text or "\0" in text:
            raise OptionError(f"{option}={text!r} is no usable path.", "Choose another.")
        path = Path(text).absolute()
        if path not in paths:
            paths.append(path)
    return paths


def _check_plugins(value: Any, *, far: bool) -> tuple[Path, ...]:
    paths = _paths("plugins", value)
    if far:  # they are on the machine that builds, which will see
        return tuple(paths)
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            remedy = _where_it_may_be(path)
            raise OptionError(f"plugins: there is no file {str(path)!r}.", remedy) from None
        except OSError as error:
            raise OptionError(
                f"plugins: {str(path)!r} cannot be read: {error}.", "Check the path."
            ) from None
        if not stat.S_ISREG(found.st_mode):
            what = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise OptionError(
                f"plugins: {str(path)!r} is {what}.",
                "Give the plugin library itself (a .so or .dll file).",
            )
    return tuple(paths)


def _check_folders(value: Any) -> tuple[Path, ...]:
    paths = _paths("external_data", value)
    for path in paths:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise OptionError(
                f"external_data: {str(path)!r} {what}.",
                "Give the folder from which the model's weight files may be read.",
            )
    return tuple(paths)


def _check_timing_cache(
    value: Any, output: Path | None, backend: Backend, *, far: bool
) -> Path | Literal[True]:
    if value is True:
        return True
    if backend.is_rtx:
        raise OptionError(
            f"timing_cache= is for full TensorRT: timing caches do not apply to {backend}, which "
            "times nothing ahead of time.",
            "Leave it out, or give timing_cache=True, which means a cache where there is one. What "
            "TensorRT for RTX keeps between runs is the runtime cache, which belongs to the "
            "program that runs the engine.",
        )
    if far:  # on the machine that builds, which will see
        return _paths("timing_cache", value)[0]
    path = _check_target_file("timing_cache", "timing cache", value, OptionError)
    if output is not None and os.path.realpath(path) == os.path.realpath(output):
        raise OptionError(
            f"timing_cache= and output= are the same file, {str(path)!r}.", "Choose another name."
        )
    return path


def _check_engine_cache(value: Any, *, far: bool) -> EngineCache | None:
    if value is None or value is False:
        return None
    from trt_widget.engine_cache import EngineCache

    if isinstance(value, EngineCache):
        path = None if far or value.path is None else Path(value.path)
        if path is not None and path.is_file():
            raise OptionError(
                f"engine_cache= is a file, {path.name!r}.",
                "Give the path of a folder; it is made when the first engine is kept.",
            )
        return value
    if value is True:
        return EngineCache()
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(
            f"engine_cache={value!r:.200} is no cache.",
            "Give True for a folder in your cache folder, the path of another folder, or an "
            "EngineCache.",
        )
    return _check_engine_cache(EngineCache(value), far=far)


def check_output(path: Any, option: str = "output", what: str = "engine") -> Path:
    """Check that an engine could be written to ``path``; nothing is written.

    Parameters
    ----------
    path
        Where.
    option, what
        The option that names it, and what else is to be written, for the words of errors.

    Returns
    -------
    pathlib.Path
        The absolute path, so that a later ``chdir`` does not move it.

    Raises
    ------
    OutputError
        A directory, no regular file, or in a folder that is missing or read-only.
    OptionError
        Not a path.
    """
    return _check_target_file(option, what, path, OutputError)


def _check_target_file(option: str, what: str, path: Any, kind: type[OptionError]) -> Path:
    try:
        text = os.fspath(path)
        target = Path(os.fsdecode(text)).absolute()
        found = _stat(target)
    except TypeError:
        raise OptionError(
            f"{option}= must be a path, not {_kind(path)}.", "Give text or a pathlib.Path."
        ) from None
    except (OSError, ValueError) as error:
        raise kind(f"{option}={path!r} is no usable path: {error}.", "Choose another.") from None
    if not text:
        raise kind(f"{option}= is empty.", f"Give the {what} file's name, or leave it out.")
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise kind(
            f"{option}={str(path)!r} is a directory.", f"Add the {what} file's name to the path."
        )
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise kind(f"{option}={str(path)!r} is not a regular file.", "Choose another name.")
    # A link's own folder does not matter: the file that it points to is replaced.
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise kind(
            f"{option}={str(path)!r}: there is no folder {str(folder)!r}.",
            "Create the folder first, or choose another.",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise kind(
            f"{option}={str(path)!r}: the folder {str(folder)!r} cannot be written to.",
            "Choose a folder that you may write to.",
        )
    return target


@dataclass(frozen=True)
class Source:
    """Where the model comes from.

    Attributes
    ----------
    kind
        ``path``, ``bytes``, ``proto`` (an ``onnx.ModelProto``) or ``callable``.
    value
        An absolute :class:`pathlib.Path`; ``bytes``; the ModelProto; the callable.
    display_name
        The file's name; ``<bytes>``; the graph's name; the callable's name.
    """

    kind: Literal["path", "bytes", "proto", "callable"]
    value: Any
    display_name: str


def check_source(source: Any, options: BuildOptions | None = None) -> Source:
    """Check where the model comes from, without reading it.

    Parameters
    ----------
    source
        A path (``str``, ``os.PathLike``), ``bytes`` (or ``bytearray``, ``memoryview``), an
        ``onnx.ModelProto``, or a callable in Polygraphy's manner that returns
        ``(builder, network)`` or ``(builder, network, parser)``.
    options
        The build's options, to see contradictions between the two.

    Raises
    ------
    SourceError
        Missing, a directory, empty, unreadable, or nothing that can be a model.
    OptionError
        A contradiction with the options.
    """
    checked = _check_source(source)
    if options is None:
        return checked
    if checked.kind == "callable" and options.network_given:
        raise OptionError(
            "strongly_typed= and network_flags= have no effect on a network that a callable makes.",
            "Give the flags where the callable creates its network.",
        )
    if checked.kind == "path" and options.output is not None:
        same = options.output.exists() and options.output.samefile(checked.value)
        if same:
            raise OutputError(
                f"output={str(options.output)!r} is the model itself.", "Choose another name."
            )
    return checked


def _check_source(source: Any) -> Source:
    if isinstance(source, (bytes, bytearray, memoryview)):
        # A copy of what the caller could still change; bytes are taken as they are.
        data = bytes(source)
        if not data:
            raise SourceError("The model is empty (0 bytes).", "Give the bytes of an ONNX model.")
        return Source("bytes", data, "<bytes>")
    if isinstance(source, (str, os.PathLike)):
        return _check_path(source)
    kind = type(source)
    if callable(getattr(source, "SerializeToString", None)):
        if kind.__name__ != "ModelProto":
            raise SourceError(
                f"{_kind(source, capital=True)} is not a whole ONNX model.",
                "Give the ModelProto (onnx.helper.make_model(graph) makes one from a graph).",
            )
        return Source("proto", source, str(source.graph.name) or "<ModelProto>")
    if callable(source):
        named = getattr(source, "func", source)  # functools.partial
        return Source("callable", source, str(getattr(named, "__name__", kind.__name__)))
    raise SourceError(
        f"{_kind(source, capital=True)} cannot be a model.",
        "Give a path, bytes, an onnx.ModelProto, or a callable that returns (builder, network).",
    )


def _check_path(source: str | os.PathLike[str]) -> Source:
    shown = f"{os.fspath(source)!r:.500}"
    try:
        path = Path(os.fsdecode(source)).absolute()
        found = path.stat()
    except FileNotFoundError:
        raise SourceError(f"There is no file {shown}.", _where_it_may_be(source)) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{shown} cannot be read: {error}.", "Check the path.") from None
    if not os.fspath(source):
        raise SourceError("The model's path is empty.", "Give the path of an ONNX file.")
    if stat.S_ISDIR(found.st_mode):
        inside = sorted(entry.name for entry in path.glob("*.onnx"))[:3]
        hint = f" It holds {', '.join(inside)}." if inside else ""
        raise SourceError(
            f"{shown} is a directory.", f"Give the path of the ONNX file in it.{hint}"
        )
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{shown} is not a regular file.", "Give the path of an ONNX file.")
    if found.st_size == 0:
        raise SourceError(
            f"{shown} is empty (0 bytes).",
            "Export or download the model again; see why it was empty.",
        )
    if not os.access(path, os.R_OK):
        raise SourceError(f"{shown} may not be read: permission denied.", "Change its permissions.")
    return Source("path", path, path.name)


def _where_it_may_be(source: str | os.PathLike[str]) -> str:
    """Return what to do about a missing file: the nearest name in its folder, if any."""
    text = os.fsdecode(source)
    if re.match(r"[a-z]{2,}://", text):
        return "It looks like a URL: download the model first and give the file's path."
    if text.startswith("~"):
        return "A ~ is not expanded: use pathlib.Path(...).expanduser()."
    path = Path(text).absolute()
    if not path.parent.is_dir():
        return f"The folder {str(path.parent)!r} does not exist either."
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        names = []
    import difflib

    near = difflib.get_close_matches(path.name, names, 1, 0.7)
    return f"Did you mean {near[0]!r}?" if near else f"It was looked for in {str(path.parent)!r}."
