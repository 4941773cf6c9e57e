"""From a source and options to a builder, a network and a config, ready to build.

Everything here needs TensorRT and the model; it runs where the build runs. Each failure is a
:class:`~trt_widget.errors.BuildFailed` of the type that fits.
"""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from trt_widget import diagnosis
from trt_widget._plugins import load_plugins
from trt_widget._timing_cache import NO_CACHE, TimingCache, use_timing_cache
from trt_widget.backend import ask_for_gpus, gpus, package_of, use_device, wait_for_gpus
from trt_widget.errors import (
    BuildCancelled,
    OptionRejected,
    ProfileError,
    SourceError,
    WrongBackendError,
    call_users_code,
)
from trt_widget.history import switched_off
from trt_widget.identity import identify_model, identify_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrt import (
        Builder,
        IBuilderConfig,
        ILogger,
        INetworkDefinition,
        IProgressMonitor,
        ITensor,
        OnnxParser,
    )

    from trt_widget.backend import Backend
    from trt_widget.identity import NetworkIdentity
    from trt_widget.options import BuildOptions, Profile, ShapeRange, Source

__all__ = ["Prepared", "device_notes", "prepare", "serialize"]

_Made = TypeVar("_Made")


@dataclass
class Prepared:
    """What ``builder.build_serialized_network(network, config)`` needs.

    Attributes
    ----------
    builder, network, config
        TensorRT's objects.
    parser
        The ``OnnxParser``, or None; it owns the weights and has to live until the build has ended.
    notes
        Sentences for people that are not errors.
    previous_monitor
        The monitor that the config had before ours, or None.
    keepalive
        Objects that have to live as long as the build.
    cache_file
        The timing cache that is to be saved after the build, or None.
    timing_cache
        What is known of the timing cache: its ``state`` and more, as ``TimingCache.facts``.
    identity
        By what earlier builds of the network are found, or None.
    """

    builder: Builder
    network: INetworkDefinition
    config: IBuilderConfig
    parser: OnnxParser | None = None
    notes: list[str] = field(default_factory=list)
    previous_monitor: IProgressMonitor | None = None
    keepalive: list[Any] = field(default_factory=list)
    cache_file: TimingCache | None = None
    timing_cache: dict[str, Any] = field(default_factory=lambda: dict(NO_CACHE))
    identity: NetworkIdentity | None = None


class _Words:
    """What TensorRT logs from a moment on, where the logger remembers it (``serious()``)."""

    def __init__(self, logger: ILogger) -> None:
        self._read = getattr(logger, "serious", list)
        self._before = len(self._read())

    def since(self) -> list[tuple[Any, str]]:
        """Return the warnings and errors since this object was made."""
        return list(self._read())[self._before :]

    def texts(self) -> list[str]:
        """Return the texts of the warnings and errors since then."""
        return [text for _, text in self.since()]

    def errors(self) -> list[str]:
        """Return the texts of the errors since then."""
        return diagnosis.errors_in(self.since())


def prepare(  # noqa: PLR0917 - six different things, none of them an option
    source: Source,
    options: BuildOptions,
    backend: Backend,
    logger: ILogger,
    progress_monitor: Any = None,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    in_child: bool = False,
) -> Prepared:
    """Make builder, network and config.

    Call it on the thread that builds: ``device=`` sets that thread's current GPU.

    Parameters
    ----------
    source
        The model, from :func:`~trt_widget.options.check_source`.
    options
        From ``BuildOptions.from_kwargs``.
    backend
        The package that builds.
    logger
        An ``ILogger`` of that package. Where it has ``serious()`` (a list of ``(severity, text)``),
        TensorRT's words are attached to errors.
    progress_monitor
        An ``IProgressMonitor`` of that package with ``chain(other)``, or None. A monitor that the
        config has already is handed to ``chain`` and so called too.
    cancelled
        Asked between the steps. Parsing and the caller's own functions cannot be stopped inside.
    in_child
        Whether this is the process of ``executor="process"``; some remedies depend on it.

    Raises
    ------
    BuildCancelled
        ``cancelled`` answered True. The reason in it is only ``user``: the caller knows better.
    SourceError, ParseFailed
        The model cannot be read.
    ProfileError
        The profiles do not fit the network's inputs, or one is needed and missing.
    OptionRejected
        An option that this model, GPU or version does not take.
    ConfigureFailed
        A function of the caller's raised.
    WrongBackendError
        A builder, config or monitor of the other package.
    """

    def step() -> None:
        if cancelled():
            raise BuildCancelled

    trt = backend.module
    if progress_monitor is not None and package_of(progress_monitor) != backend.name:
        raise _of_other_package("The progress monitor", progress_monitor, backend)
    device_checked = _begin_to_check_device(source, options, backend, step)
    step()
    if hasattr(trt, "init_libnvinfer_plugins"):  # a package built without plugins lacks it
        trt.init_libnvinfer_plugins(logger, "")
    notes = load_plugins(options.plugins, backend)
    step()
    if source.kind == "callable":
        prepared = _call_source(source, backend, logger, in_child=in_child)
    else:
        prepared = _parse_source(source, options, backend, logger, in_child=in_child)
    prepared.notes += [*device_checked(), *notes]
    step()
    network = prepared.network
    _check_inputs(network, options.profiles)
    prepared.config = _make_config(prepared, options, backend)
    config = prepared.config
    step()
    _set_options(config, options, backend, logger)
    _use_timing_cache(prepared, options, logger)
    for number, profile in enumerate(options.profiles):
        _add_profile(prepared, profile, number, logger)
    words = _Words(logger)
    if options.configure is not None:
        call_users_code("configure", options.configure, prepared.builder, network, config)
    step()
    if config.num_optimization_profiles == 0 and diagnosis.needs_profile(network):
        raise diagnosis.missing_profile(network, words.errors())
    if progress_monitor is not None:
        prepared.previous_monitor = config.progress_monitor
        _attach(progress_monitor, config)
    return prepared


def _of_other_package(what: str, found: object, backend: Backend) -> WrongBackendError:
    other = package_of(found)
    kind = type(found)
    origin = f"comes from {other}" if other else f"is a {kind.__module__}.{kind.__qualname__}"
    return WrongBackendError(
        f"{what} {origin}; the build uses {backend.name}.",
        f"Make it with {backend.name}, or choose backend={other!r}."
        if other
        else f"Give one of the package {backend.name}.",
    )


def _begin_to_check_device(
    source: Source, options: BuildOptions, backend: Backend, step: Callable[[], None]
) -> Callable[[], list[str]]:
    """Check the device, or begin to; give what waits for that and returns the notes.

    ``step`` is called while it waits.

    The GPUs must be known before anything else is done where the build needs one, and where
    somebody else's code comes before the network is there: it may fork, or change what CUDA sees.
    """
    asking = ask_for_gpus()

    def check() -> list[str]:
        wait_for_gpus(asking, step)
        return _check_device(options, backend)

    if builds_on_gpu(options, backend) or source.kind == "callable" or options.plugins:
        notes = check()
        return lambda: notes
    return check


def builds_on_gpu(options: BuildOptions, backend: Backend) -> bool:
    """Tell whether a build uses a GPU; TensorRT for RTX can do without."""
    return backend.needs_gpu or options.device is not None or "CURRENT" in options.target


def _check_device(options: BuildOptions, backend: Backend) -> list[str]:
    """Set the device; return what is to be said about it."""
    if backend.needs_gpu and not gpus():
        raise OptionRejected(
            f"{backend} needs a GPU to build, and there is no NVIDIA driver with a GPU here.",
            "Build on a machine with a GPU, or choose backend='tensorrt_rtx'.",
        )
    if "CURRENT" in options.target and not gpus():
        raise OptionRejected(
            "target='current' needs a GPU, and there is no NVIDIA driver with a GPU here.",
            "Name the GPU generation (target='SM86'), or leave target= out.",
        )
    if options.device is not None:
        use_device(options.device)
    notes = device_notes(options, backend)
    if notes and options.target:
        gpu = gpus()[options.device or 0]
        raise OptionRejected(
            f"{backend} has no support for this machine's GPU, {gpu.name} "
            f"({gpu.compute_capability}): an engine for target='current' would run nowhere.",
            f"Name another target ({', '.join(backend.compute_capabilities())}), or use full "
            "TensorRT on this GPU.",
        )
    return notes


def device_notes(options: BuildOptions, backend: Backend) -> list[str]:
    """Say what is to be known of an engine and this machine's GPU; the GPU is there."""
    found = gpus()
    if not found or (options.target and "CURRENT" not in options.target):
        return []
    gpu = found[options.device or 0]
    if backend.runs_on(gpu, by_default=not options.target):
        return []
    note = (
        f"The engine will not run on this machine's GPU, {gpu.name} ({gpu.compute_capability}), "
        f"which {backend} does not support."
    )
    return [note]


# ---- the network --------------------------------------------------------------------------------


def _call_source(source: Source, backend: Backend, logger: ILogger, *, in_child: bool) -> Prepared:
    """Call a callable source; it returns (builder, network) or (builder, network, parser)."""
    trt = backend.module
    result = call_users_code("source", source.value)
    form = "A callable source returns (builder, network) or (builder, network, parser)."
    parts = tuple(result) if isinstance(result, (tuple, list)) else ()
    if len(parts) not in {2, 3}:
        shape = f"{len(parts)} values" if parts else f"a {type(result).__name__}"
        raise SourceError(f"{source.display_name} returned {shape}.", form)
    builder, network, parser = (*parts, None)[:3]
    for part, name, kind in (
        (builder, "builder", trt.Builder),
        (network, "network", trt.INetworkDefinition),
        (parser, "parser", trt.OnnxParser),
    ):
        if isinstance(part, kind) or (part is None and name == "parser"):
            continue
        if package_of(part) not in {backend.name, None}:
            raise _of_other_package(
                f"The {name} that {source.display_name} returned", part, backend
            )
        raise SourceError(
            f"{source.display_name} returned a {type(part).__name__} as the {name}.", form
        )
    prepared = Prepared(builder, network, None, parser, keepalive=[result])  # type: ignore[arg-type,unused-ignore] # the config comes next
    if builder.logger is not logger:
        prepared.notes.append(
            "The source's builder has a logger of its own: TensorRT's messages during the build go "
            "there."
        )
    if parser is not None and parser.num_errors and not network.num_outputs:
        raise diagnosis.explain_parse(source, parser, in_child=in_child)
    if not switched_off():
        # A name that is not UTF-8 cannot be read; the history does without.
        with contextlib.suppress(Exception):
            prepared.identity = identify_network(network, trt)
    return prepared


def _parse_source(
    source: Source, options: BuildOptions, backend: Backend, logger: ILogger, *, in_child: bool
) -> Prepared:
    trt = backend.module
    data = serialize(source) if source.kind == "proto" else source.value
    if source.kind == "path":
        _check_encoding(source)
    words = _Words(logger)
    bytes_to_examine = source if source.kind != "proto" else _as_bytes(source, data)
    if _size(bytes_to_examine) > diagnosis.LARGEST_MESSAGE:
        explained = diagnosis.explain_source(bytes_to_examine)
        if explained is not None:
            raise explained
    refused = diagnosis.check_external(bytes_to_examine, options.external_data)
    if refused is not None:
        raise refused
    builder = _made("builder", lambda: trt.Builder(logger), backend, words)
    network = builder.create_network(_network_flags(options, backend))
    if network is None:
        raise OptionRejected(
            f"{backend} refused the network flags.", "Leave some out.", words.errors()
        )
    parser = _made("parser", lambda: trt.OnnxParser(network, logger), backend, words)
    ok = parser.parse_from_file(str(data)) if source.kind == "path" else parser.parse(data)
    if not ok:
        raise diagnosis.explain_parse(bytes_to_examine, parser, words.since(), in_child=in_child)
    if not (network.num_inputs or network.num_layers or network.num_outputs):
        # Some text, and no bytes at all, parse to an empty network.
        explained = diagnosis.explain_source(bytes_to_examine)
        raise explained or SourceError(
            f"{source.display_name} has an empty graph: no inputs, nodes or outputs.",
            "Export the model again.",
        )
    prepared = Prepared(builder, network, None, parser)  # type: ignore[arg-type,unused-ignore] # the config comes next
    if not switched_off():
        prepared.identity = identify_model(bytes_to_examine.value, network)
    return prepared


def _made(what: str, make: Callable[[], _Made], backend: Backend, words: _Words) -> _Made:
    """Make a builder or a parser; where TensorRT gives none, the bindings raise anything."""
    try:
        return make()
    except Exception as error:
        raise diagnosis.explain_no_builder(backend, error, words.since(), what) from error


def _check_encoding(source: Source) -> None:
    try:
        str(source.value).encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"The path {str(source.value)!r} is not UTF-8 text, and TensorRT takes no other.",
            "Rename the file or folder; a model in one file can also be given as its bytes.",
        ) from error


def serialize(source: Source) -> bytes:
    """Return the bytes of a source that is a ModelProto.

    Raises
    ------
    SourceError
        It has no bytes: it is larger than 2 GiB, or incomplete.
    """
    try:
        return bytes(source.value.SerializeToString())
    except Exception as error:
        raise SourceError(
            f"The ModelProto {source.display_name} cannot be serialized: {error}.",
            "A ModelProto of more than 2 GiB has to go through a file: onnx.save(model, path, "
            "save_as_external_data=True); then give that path.",
        ) from error


def _as_bytes(source: Source, data: bytes) -> Source:
    return type(source)("bytes", data, source.display_name)


def _size(source: Source) -> int:
    if source.kind == "bytes":
        return len(source.value)
    try:
        return int(source.value.stat().st_size)
    except OSError:  # the parser says it
        return 0


def _network_flags(options: BuildOptions, backend: Backend) -> int:
    """Return the bit mask for ``create_network``."""
    trt = backend.module
    names = list(options.network_flags)
    if options.strongly_typed and "STRONGLY_TYPED" in backend.network_flags():
        names.append("STRONGLY_TYPED")
    mask = 0
    for name in names:
        mask |= 1 << int(getattr(trt.NetworkDefinitionCreationFlag, name))
    return mask


# ---- the config ---------------------------------------------------------------------------------


def _make_config(prepared: Prepared, options: BuildOptions, backend: Backend) -> IBuilderConfig:
    trt = backend.module
    builder = prepared.builder
    if options.config is None:
        return builder.create_builder_config()
    config = call_users_code("config", options.config, builder, prepared.network)
    if isinstance(config, trt.IBuilderConfig):
        return config
    if package_of(config) not in {backend.name, None}:
        raise _of_other_package("What config= returned", config, backend)
    raise OptionRejected(
        f"The function given as config= returned a {type(config).__name__}, not a builder config.",
        "Let it return the config that it makes (builder.create_builder_config()).",
    )


def _set_options(
    config: IBuilderConfig, options: BuildOptions, backend: Backend, logger: ILogger
) -> None:
    trt = backend.module
    words = _Words(logger)
    # EXCLUDE_LEAN_RUNTIME is dropped silently unless VERSION_COMPATIBLE is set before it.
    for name in sorted(options.flags, key=lambda name: name == "EXCLUDE_LEAN_RUNTIME"):
        config.set_flag(getattr(trt.BuilderFlag, name))
    for name in options.flags:
        # Some combinations are refused without an exception: GPU_FALLBACK with SAFETY_SCOPE.
        if not config.get_flag(getattr(trt.BuilderFlag, name)):
            others = [other for other in options.flags if other != name]
            beside = f" beside {', '.join(others)}" if others else " alone"
            raise OptionRejected(
                f"flags: {backend} refused {name!r}{beside}.",
                "EXCLUDE_LEAN_RUNTIME needs VERSION_COMPATIBLE."
                if name == "EXCLUDE_LEAN_RUNTIME"
                else "Leave out one of them.",
                words.errors(),
            )
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
        if config.builder_optimization_level != options.optimization_level:
            raise OptionRejected(
                f"{backend} refused optimization_level={options.optimization_level}.",
                "Choose another.",
                words.errors(),
            )
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if options.target:
        # Only TensorRT for RTX has these two, and target= is refused for the other one.
        config.num_compute_capabilities = len(options.target)  # type: ignore[attr-defined,unused-ignore]
        for position, name in enumerate(options.target):
            capability = getattr(trt.ComputeCapability, name)
            if not config.set_compute_capability(capability, position):  # type: ignore[attr-defined,unused-ignore]
                raise OptionRejected(
                    f"target: {backend} refused {name!r}.", "Choose another.", words.errors()
                )


def _use_timing_cache(prepared: Prepared, options: BuildOptions, logger: ILogger) -> None:
    words = _Words(logger)
    prepared.cache_file, prepared.timing_cache, notes = use_timing_cache(
        prepared.config, options, words.texts
    )
    prepared.notes += notes


def _attach(progress_monitor: Any, config: IBuilderConfig) -> None:
    existing = config.progress_monitor
    if existing is not None and existing is not progress_monitor:
        progress_monitor.chain(existing)
    config.progress_monitor = progress_monitor


# ---- profiles -----------------------------------------------------------------------------------


def _check_inputs(network: INetworkDefinition, profiles: tuple[Profile, ...]) -> None:
    """Hold the profiles against the network's inputs; TensorRT says it late and in the log only."""
    inputs = {tensor.name: tensor for tensor in diagnosis.inputs_of(network)}
    several = len(profiles) > 1
    for number, profile in enumerate(profiles):
        where = f"profiles[{number}]" if several else "profiles"
        for name, shapes in profile.items():
            if name not in inputs:
                near = difflib.get_close_matches(name, inputs, 1, 0.5)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                listed = ", ".join(f"{key!r} {diagnosis.described(inputs[key])}" for key in inputs)
                raise ProfileError(
                    f"{where}: the model has no input {name!r}.", f"{hint}Its inputs: {listed}."
                )
            _check_range(inputs[name], shapes, f"{where}[{name!r}]")
        missing = [
            tensor
            for name, tensor in inputs.items()
            if name not in profile and diagnosis.is_dynamic(tensor)
        ]
        if missing:
            listed = ", ".join(f"{t.name!r} {diagnosis.described(t)}" for t in missing)
            lines = "\n".join(f"    {t.name!r}: {diagnosis.example_range(t)}," for t in missing)
            raise ProfileError(
                f"{where} says nothing about {listed}.",
                "Every input of dynamic shape needs a range in every profile. To add, with your "
                f"own numbers in it:\n{lines}",
            )


def _check_range(tensor: ITensor, shapes: ShapeRange, where: str) -> None:
    sizes = tuple(tensor.shape)
    model = diagnosis.described(tensor)
    if tensor.is_shape_tensor:
        count = diagnosis.volume(sizes)
        if len(shapes.opt) != count:
            raise ProfileError(
                f"{where}: {len(shapes.opt)} values, but this input is a shape tensor of {count}.",
                "The profile of a shape tensor holds its values, not its shape.",
            )
        return
    if len(shapes.opt) != len(sizes):
        raise ProfileError(
            f"{where}: {len(shapes.opt)} dimensions, but the input has {len(sizes)}: {model}.",
            "Give a size for every dimension of the input.",
        )
    for axis, size in enumerate(sizes):
        given = (shapes.min[axis], shapes.opt[axis], shapes.max[axis])
        if given[0] < 0:
            raise ProfileError(
                f"{where}: a size below zero in dimension {axis}: {given}.",
                "A profile needs a number in every dimension, also where the model has none.",
            )
        if size >= 0 and any(value != size for value in given):
            raise ProfileError(
                f"{where}: dimension {axis} is always {size} in the model {model}, not {given}.",
                f"Write {size} there in min, opt and max.",
            )


def _add_profile(prepared: Prepared, profile: Profile, number: int, logger: ILogger) -> None:
    builder, config = prepared.builder, prepared.config
    words = _Words(logger)
    inputs = {tensor.name: tensor for tensor in diagnosis.inputs_of(prepared.network)}
    ranges = builder.create_optimization_profile()
    try:
        for name, shapes in profile.items():
            if inputs[name].is_shape_tensor:
                ranges.set_shape_input(name, *map(list, shapes))
            else:
                ranges.set_shape(name, *shapes)
        accepted = config.add_optimization_profile(ranges) >= 0
    except (RuntimeError, ValueError, TypeError) as error:
        raise ProfileError(
            f"TensorRT refused profile {number}: {error}.", "Correct it.", words.errors()
        ) from error
    if not accepted:
        raise ProfileError(f"TensorRT refused profile {number}.", "Correct it.", words.errors())
