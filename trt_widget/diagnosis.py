"""From what went wrong to a cause and a remedy.

Only what there is evidence for is called a cause: the model's own bytes, the parser's list of
errors, a sentence of TensorRT whose meaning was measured. Everything else stays TensorRT's own
words, under a cause that says no more than that there is no engine.

The sentences were seen with ``tensorrt_rtx`` 1.7.1 on a machine without a GPU, unless noted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal as signals
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trt_widget._onnx import (
    Examination,
    ExternalData,
    UncheckedError,
    domains,
    examine,
    find_external,
)
from trt_widget.backend import _driver, gpus
from trt_widget.errors import (
    BuildCrashed,
    BuildFailed,
    NodeError,
    OptionRejected,
    ParseFailed,
    ProfileError,
    SourceError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorrt import INetworkDefinition, ITensor, OnnxParser

    from trt_widget.backend import Backend
    from trt_widget.network import Prepared
    from trt_widget.options import Source

__all__ = [
    "check_external",
    "explain_crash",
    "explain_failure",
    "explain_no_builder",
    "explain_parse",
    "explain_source",
    "missing_profile",
    "refused_locations",
    "was_cancelled",
]

#: A protocol buffers message, and so a model with its weights inside, cannot be larger. The parser
#: accepts a larger one and gives an empty network (2.2 GB), or refuses it (4.4 GB).
LARGEST_MESSAGE: Final = 2**31 - 1

_SHOWN_FILES: Final = 10

# As in: Error Code 7: BuildCanceled (Build canceled by user ...).
_CANCELLED: Final = re.compile(r"\bBuildCancell?ed\b")

# Logged after nearly every other error where there is no CUDA driver (35: none or too old) or no
# GPU (100).
_DRIVER_NOISE: Final = re.compile(
    r"(catchCudaError|ScopedCudaStream).*cudaError (35|100)\b", re.DOTALL
)
_NO_PROFILE: Final = "no optimization profile has been defined"


def _level(severity: object) -> str:
    """Return ``"ERROR"`` for ``"error"`` and for ``trt.ILogger.Severity.ERROR``."""
    name = severity if isinstance(severity, str) else getattr(severity, "name", str(severity))
    return str(name).rpartition(".")[2].upper()


def errors_in(messages: Iterable[tuple[Any, str]]) -> list[str]:
    """Return the texts of the messages that are errors, in order."""
    return [text for severity, text in messages if _level(severity) in {"ERROR", "INTERNAL_ERROR"}]


def was_cancelled(messages: Iterable[tuple[Any, str]]) -> bool:
    """Tell whether a build that gave no engine was cancelled by a progress monitor.

    Parameters
    ----------
    messages
        ``(severity, text)`` of the build; the severity as text or as TensorRT's enum.
    """
    return any(_CANCELLED.search(text) for text in errors_in(messages))


# ---- the model ----------------------------------------------------------------------------------


def explain_source(source: Source, messages: Iterable[str] = ()) -> SourceError | None:
    """Look at the model's own bytes for the reason why it could not be read.

    Parameters
    ----------
    source
        Of the kind ``path`` or ``bytes``.
    messages
        TensorRT's words, to attach.

    Returns
    -------
    SourceError or None
        None where the bytes look like a whole ONNX model with all its weights.
    """
    name = source.display_name
    try:
        found = examine(source.value)
    except OSError as error:
        return SourceError(f"{name} cannot be read: {error}.", "Check the file.", messages)
    return _explain_form(name, found, messages) or _explain_external(
        source, found.external, messages
    )


def _explain_form(
    name: str, found: Examination, messages: Iterable[str] = ()
) -> SourceError | None:
    """Explain what is no whole ONNX model, or too large a one."""
    if found.kind == "empty":
        return SourceError(f"{name} is empty (0 bytes).", "Export the model again.", messages)
    if found.kind == "other":
        what = f": it is {found.description}" if found.description else ""
        remedy = found.remedy or "Give a model in ONNX format."
        return SourceError(f"{name} is not an ONNX model{what}.", remedy, messages)
    if found.kind == "truncated":
        return SourceError(
            f"{name} is truncated: it ends after {found.size:,} bytes, and at least "
            f"{found.missing_bytes:,} more should follow.",
            "Download, copy or export the model again; the last time broke off.",
            messages,
        )
    if found.size > LARGEST_MESSAGE:
        return SourceError(
            f"{name} has {found.size:,} bytes; an ONNX file cannot have more than 2 GiB.",
            "Keep the weights in another file (onnx.save(model, path, save_as_external_data=True), "
            "or the exporter's own option), and give the new path.",
            messages,
        )
    return None


def check_external(source: Source, allowed: Sequence[Path] = ()) -> SourceError | None:
    """Check, before TensorRT reads a model, which other files it would read for its weights.

    A model may name any file of the machine as its weights. Allowed are those below the model's
    own folder (of its path, or of the file that the path is a link to), and below ``allowed``;
    symbolic links count as what they lead to.

    Parameters
    ----------
    source
        Of the kind ``path``, ``bytes`` or ``proto``; others are their maker's business.
    allowed
        Folders from which weights may be read too (``external_data=``).

    Returns
    -------
    SourceError or None
        None where nothing else would be read. What changes on the disk between this check and
        TensorRT's own reading is not seen.
    """
    if source.kind not in {"path", "bytes", "proto"}:
        return None
    name = source.display_name
    try:
        value = source.value.SerializeToString() if source.kind == "proto" else source.value
        locations = sorted({stored.location for stored in find_external(value)})
    except OSError as error:
        return SourceError(f"{name} cannot be read: {error}.", "Check the file.")
    except UncheckedError:
        return _explain_form(name, examine(value)) or SourceError(
            f"{name} is damaged, or made to mislead: its structure cannot be followed, so it "
            "cannot be checked which other files it would have TensorRT read.",
            "Export or download the model again; onnx.checker.check_model(path) tells more.",
        )
    if not locations:
        return None
    if source.kind != "path":
        return _external_of_bytes(name, locations)
    return _check_locations(source, locations, allowed)


def _check_locations(
    source: Source, locations: Sequence[str], allowed: Sequence[Path]
) -> SourceError | None:
    """Hold the weight files that a model's file names against the folders that it may read."""
    refused = [
        f"{location!r} ({why})"
        for location, why in refused_locations(source.value, locations, allowed).items()
    ]
    if not refused:
        return None
    return SourceError(
        f"{source.display_name} names files for its weights that it may not read: "
        f"{_listed(refused)}.",
        "Weights are read only from below the model's folder. If you know the model and want this, "
        "name the folders from which it may read too: external_data=[folder]. An absolute path "
        "has to become a relative one in any case: TensorRT reads no other.",
    )


def refused_locations(
    model: Path, locations: Iterable[str], allowed: Sequence[Path] = ()
) -> dict[str, str]:
    """Tell which of the weight files that a model's file names it may not read, each with why."""
    folder = model.parent
    own = os.path.realpath(model)
    roots = [os.path.realpath(root) for root in (folder, Path(own).parent, *allowed)]
    found = {location: _why_refused(location, folder, roots) for location in locations}
    return {location: why for location, why in found.items() if why is not None}


def _why_refused(location: str, folder: Path, roots: Sequence[str]) -> str | None:
    """Tell why a weight file may not be read; None where it may."""
    if "\0" in location:
        return "no file can have this name"
    if location.startswith(("/", os.sep)) or Path(location).drive:
        return "an absolute path"
    path = os.path.realpath(folder / location)
    if not any(_is_below(path, root) for root in roots):
        return f"it leads to {path!r}"
    # A pipe or a device would be waited for without an end.
    if _size_of_file(Path(path)) == _NO_FILE:
        return "not a regular file"
    return None


def _is_below(path: str, root: str) -> bool:
    inner, outer = os.path.normcase(path), os.path.normcase(root)
    return inner.startswith(outer.rstrip(os.sep) + os.sep) and inner != outer


_NO_FILE: Final = -1


def _size_of_file(path: Path) -> int | None:
    """Return a file's size, `_NO_FILE` for what is no regular file, None for what is not there."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # a name too long, or one with a NUL
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else _NO_FILE


def _external_of_bytes(
    name: str, locations: Sequence[str], messages: Iterable[str] = ()
) -> SourceError:
    # TensorRT looks in the working directory for the weight files of bytes; nobody means that.
    return SourceError(
        f"{name} keeps weights in other files ({_listed(locations)}), and bytes alone do not say "
        "where these are.",
        "Give the path of the ONNX file instead; or load the weights into the model: "
        "onnx.load(path) does, with load_external_data=True.",
        messages,
    )


def _explain_external(
    source: Source, external: list[ExternalData], messages: Iterable[str]
) -> SourceError | None:
    """Find the weight files that are missing or too short."""
    if not external:
        return None
    if source.kind != "path":
        names = sorted({stored.location for stored in external})
        return _external_of_bytes(source.display_name, names, messages)
    folder: Path = source.value.parent
    remedy = f"Put the file beside {source.display_name}, under exactly this name."
    needed: dict[str, int] = {}
    for stored in external:
        end = stored.offset + (stored.length or 0)
        needed[stored.location] = max(needed.get(stored.location, 0), end)
    sizes = {name: _size_of_file(folder / name) for name in needed}
    missing = sorted(name for name, size in sizes.items() if size in {None, _NO_FILE})
    if missing:
        plural = len(missing) > 1
        return SourceError(
            f"{source.display_name} keeps weights in {'files' if plural else 'a file'} that "
            f"{'are' if plural else 'is'} missing: {_listed(missing)} (looked for in "
            f"{str(folder)!r}).",
            remedy.replace("the file", "the files").replace("this name", "these names")
            if plural
            else remedy,
            messages,
        )
    for name, size in sorted(needed.items()):
        have = sizes[name] or 0
        if have < size:
            return SourceError(
                f"The weight file {_listed([name])} of {source.display_name} is truncated: it has "
                f"{have:,} bytes, and the model needs {size:,}.",
                "Download or copy it again.",
                messages,
            )
    return None


def _listed(names: Sequence[str]) -> str:
    # A file's name may hold anything, also what no terminal should get and no encoding takes.
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:_SHOWN_FILES])
    more = len(names) - _SHOWN_FILES
    return f"{shown} and {more} more" if more > 0 else shown


def parser_errors(parser: OnnxParser) -> list[NodeError]:
    """Return what an ``OnnxParser`` holds as errors."""
    found = []
    for position in range(parser.num_errors):
        entry = parser.get_error(position)
        found.append(
            NodeError(entry.node(), entry.node_name(), entry.node_operator(), entry.desc())
        )
    return found


def explain_parse(
    source: Source,
    parser: OnnxParser,
    messages: Sequence[tuple[Any, str]] = (),
    *,
    in_child: bool = False,
) -> BuildFailed:
    """Explain why the ONNX parser refused a model.

    Parameters
    ----------
    source
        The model.
    parser
        The ``OnnxParser`` after its ``parse`` answered False.
    messages
        ``(severity, text)`` of what was logged meanwhile.
    in_child
        Whether this is the process of ``executor="process"``.
    """
    nodes = parser_errors(parser)
    said = errors_in(messages) or [node.description for node in nodes]
    if not any(node.node >= 0 for node in nodes) and source.kind in {"path", "bytes"}:
        explained = explain_source(source, said)
        if explained is not None:
            return explained
    found = (
        _explain_unknown(nodes, source, _load_plugin(in_child=in_child))
        or _explain_unsupported(nodes)
        or _explain_graph(nodes)
    )
    if found is not None:
        return ParseFailed(found.cause, found.remedy, said, evidence=found.evidence, nodes=nodes)
    blamed = [node for node in nodes if node.node >= 0]
    checker = (
        "onnx.checker.check_model(path, full_check=True) tells whether the model itself is in "
        "order."
    )
    if not blamed:
        cause = "TensorRT's ONNX parser refused the model."
        return ParseFailed(cause, checker, said, nodes=nodes)
    first = blamed[0]
    others = f" and {len(blamed) - 1} more" if len(blamed) > 1 else ""
    remedy = f"TensorRT's words say what it objects to. {checker}"
    if first.operator in _CONTROL_FLOW_OPERATORS:
        remedy = f"{_CONTROL_FLOW_REMEDY} {checker}"
    return ParseFailed(
        f"TensorRT's ONNX parser refused {_named(first)}{others}.",
        remedy,
        said,
        evidence=_objections([first]),
        nodes=nodes,
    )


_CONTROL_FLOW_OPERATORS: Final = frozenset({"If", "Loop", "Scan"})
_CONTROL_FLOW_REMEDY: Final = (
    "Control flow: every branch of an If has to give the same types and as many dimensions, and "
    "what a Loop or Scan carries has to keep its shape. Where the condition is always the same, "
    "fold it away: polygraphy surgeon sanitize --fold-constants model.onnx -o folded.onnx."
)


class _Found(NamedTuple):
    """What was found out."""

    cause: str
    remedy: str
    evidence: list[str]


def _explain_unknown(nodes: Sequence[NodeError], source: Source, plugin: str) -> _Found | None:
    """Explain operators that nobody implements."""
    unknown = [node for node in nodes if node.node >= 0 and _NO_PLUGIN.search(node.description)]
    if not unknown:
        return None
    operators = sorted({node.operator for node in unknown})
    foreign: dict[str, str] = {}
    if source.kind in {"path", "bytes"}:
        with contextlib.suppress(OSError):
            foreign = domains(source.value, operators)
    remedy = f"Export the model with operators that TensorRT has. {plugin}"
    if _RUNTIMES_OWN in foreign.values():
        remedy = (
            f"Operators of the domain {_RUNTIMES_OWN} are ONNX Runtime's own: take the model as it "
            f"was before ONNX Runtime optimized or quantized it. {remedy}"
        )
    return _Found(
        f"TensorRT does not know the operator{'s' if len(operators) > 1 else ''} "
        f"{_listed(operators)} ({len(unknown)} node{'s' if len(unknown) > 1 else ''}).",
        remedy,
        [
            *_objections(unknown),
            *[
                f"{_listed([operator])} is of the domain {_listed([domain])}, not of ONNX itself."
                for operator, domain in sorted(foreign.items())[:_SHOWN_FILES]
            ],
        ],
    )


_RUNTIMES_OWN: Final = "com.microsoft"

# The first from 1.7.1 for any unknown operator, the second for one that the package's own plugin
# library implements (NonZero). The third is older: onnx/onnx-tensorrt issue 800.
_NO_PLUGIN: Final = re.compile(
    r"Plugin not found"
    r"|plugin creator .*was not found"
    r"|could not find plugin"
)
# What a check that refuses an operator in every form, or in this one, leaves.
_UNSUPPORTED: Final = re.compile(r"false|Assertion failed: .*\bunsupported\b.*", re.IGNORECASE)


def _explain_unsupported(nodes: Sequence[NodeError]) -> _Found | None:
    """Explain operators that TensorRT knows and does not implement, or not for these types."""
    refused = [
        node for node in nodes if node.node >= 0 and _UNSUPPORTED.fullmatch(node.description)
    ]
    whole = sorted({node.operator for node in refused if node.description == "false"})
    if whole:
        return _Found(
            f"TensorRT does not support the operator{'s' if len(whole) > 1 else ''} "
            f"{_listed(whole)}.",
            "Export the model without it: with another opset_version=, or with other operators in "
            "its place.",
            [f"{_named(node)}: not supported" for node in refused][:_SHOWN_FILES],
        )
    if refused:
        first = refused[0]
        return _Found(
            f"TensorRT does not support {_named(first)} as it is used here: "
            f"{first.description.rpartition(': ')[2]}.",
            "Export the model with other types, or other operators in its place.",
            _objections(refused),
        )
    return None


def _explain_graph(nodes: Sequence[NodeError]) -> _Found | None:
    """Explain what is wrong with the graph as a whole."""
    for node in nodes:
        for pattern, cause, remedy in _GRAPH_RULES:
            match = pattern.search(node.description)
            if match is not None:
                return _Found(cause.format(*match.groups()), remedy, [node.description])
    return None


class _GraphRule(NamedTuple):
    pattern: re.Pattern[str]
    cause: str
    remedy: str


_GRAPH_RULES: Final = (
    _GraphRule(
        re.compile(r"Failed to sort the model topologically"),
        "The model's nodes cannot be put into an order: its graph has a cycle, or a name is "
        "given to two values.",
        "Export the model again; onnx.checker.check_model(path) names the value.",
    ),
    _GraphRule(
        re.compile(r"Failed to convert ONNX da\w+ type to TensorRT data type"),
        "An input of the model has a data type that TensorRT does not have.",
        "Cast it before the export (text, complex numbers, INT16 and UINT16 are among what is "
        "missing).",
    ),
    _GraphRule(
        re.compile(r"Failed to import initializer: (\S+)$"),
        "The weights {0} cannot be read: they do not have the size or type that the model says.",
        "Export or download the model again.",
    ),
    _GraphRule(
        # onnx-tensorrt, WeightsContext.cpp; seen with 1.7.1.
        re.compile(r"Relative paths to parent"),
        "The model names weight files by a path that leads upwards (../), which TensorRT itself "
        "refuses.",
        "Put the weights below the model's folder (a link does, with external_data=).",
    ),
)


def _named(node: NodeError) -> str:
    return f"node {node.node} ({node.name or 'unnamed'}, operator {node.operator})"


def _objections(nodes: Sequence[NodeError]) -> list[str]:
    """Return what the parser objects to in these nodes, each sentence once, without the noise."""
    found = dict.fromkeys(
        line
        for node in nodes
        for line in node.description.splitlines()
        if not _DRIVER_NOISE.search(line) and not line.startswith("Invalid Node - ")
    )
    return list(found)


def _load_plugin(*, in_child: bool) -> str:
    """Say how a plugin gets to where the build runs."""
    loading = "Where a plugin implements it, load its library with plugins=[path]"
    if in_child:
        return (
            f"{loading}; the build runs in a process of its own, and a plugin that is registered "
            'only in this kernel needs executor="thread".'
        )
    return f"{loading}, or register it before the build."


# ---- profiles -----------------------------------------------------------------------------------


def needs_profile(network: INetworkDefinition) -> bool:
    """Whether a network has inputs of which an optimization profile has to tell the sizes."""
    return any(is_dynamic(tensor) for tensor in inputs_of(network))


def inputs_of(network: INetworkDefinition) -> list[ITensor]:
    """Return the network's input tensors."""
    return [network.get_input(position) for position in range(network.num_inputs)]


def is_dynamic(tensor: ITensor) -> bool:
    """Whether an optimization profile has to tell the sizes (or a shape tensor's values)."""
    return bool(tensor.is_shape_tensor) or any(size < 0 for size in tensor.shape)


def described(tensor: ITensor) -> str:
    """Return an input's shape as the model writes it: ``(batch, 3, 224, 224)``."""
    sizes = [
        (tensor.get_dimension_name(axis) or "?") if size < 0 else str(size)
        for axis, size in enumerate(tensor.shape)
    ]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def missing_profile(network: INetworkDefinition, messages: Iterable[str] = ()) -> ProfileError:
    """Explain that a profile is needed: each input with its shape, and a profile to paste.

    Where ``messages`` say that one was given and refused, that is the cause.
    """
    messages = tuple(messages)
    refused = _find(_REFUSED_PROFILE, messages)
    if refused is not None:
        cause = refused.rule.cause.format(*refused.groups)
        return ProfileError(cause, refused.rule.remedy, messages, evidence=[refused.line])
    rows = []
    lines = []
    for tensor in inputs_of(network):
        kind = str(tensor.dtype).rpartition(".")[2].lower()
        values = "; a shape tensor: the profile gives its values" if tensor.is_shape_tensor else ""
        rows.append(f"  {tensor.name}: {described(tensor)} {kind}{values}")
        if is_dynamic(tensor):
            lines.append(f"    {tensor.name!r}: {example_range(tensor)},")
    text = "\n".join(["  profiles={", *lines, "  }"])
    return ProfileError(
        "The model has inputs of dynamic shape, and no optimization profile tells their sizes. Its "
        "inputs:\n" + "\n".join(rows),
        "Give a profile: for each such input the smallest, the most usual and the largest shape. "
        f"To paste, with your own numbers in it:\n{text}",
        messages,
    )


def volume(shape: Iterable[int]) -> int:
    """Return how many values a tensor of this shape has; a dynamic dimension counts as 1."""
    count = 1
    for size in shape:
        count *= max(size, 1)
    return count


def example_range(tensor: ITensor) -> str:
    """Return (min, opt, max) to start from: batches of 1, 8, 32, other sizes of 1, 128, 512."""
    shapes = []
    for batch, other in ((1, 1), (8, 128), (32, 512)):
        if tensor.is_shape_tensor:
            shapes.append((batch,) * volume(tensor.shape))
        else:
            shapes.append(
                tuple(
                    size if size >= 0 else (batch if axis == 0 else other)
                    for axis, size in enumerate(tensor.shape)
                )
            )
    return f"({', '.join(map(str, shapes))})"


# ---- a build that gave no engine ----------------------------------------------------------------


class _Rule(NamedTuple):
    """A sentence of TensorRT whose meaning is known.

    In ``cause`` and ``remedy``, ``{0}`` and so on are the pattern's groups, ``{plugin}`` how a
    plugin gets to the build, and ``{report}`` what a report has to hold.
    """

    pattern: re.Pattern[str]
    kind: type[BuildFailed]
    cause: str
    remedy: str


class _Match(NamedTuple):
    rule: _Rule
    groups: tuple[str, ...]
    #: The line in which the sentence stands.
    line: str


def _find(rules: Iterable[_Rule], messages: Sequence[str]) -> _Match | None:
    """Find the first rule that knows a sentence, in the first message that has it."""
    for rule in rules:
        for text in messages:
            match = rule.pattern.search(text)
            if match is not None:
                return _Match(rule, match.groups(), _line_of(match))
    return None


def _line_of(match: re.Match[str]) -> str:
    text = match.string
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[start:] if end < 0 else text[start:end]


# A profile that was refused when it was added: the caller may go on without one.
_REFUSED_PROFILE: Final = (
    _Rule(
        re.compile(r"Invalid optimization profiles for input tensors? (.+?), please ensure"),
        ProfileError,
        "The optimization profile was refused: for {0}, min <= opt <= max does not hold.",
        "Correct the profile of that input.",
    ),
)

_RULES: Final = (
    *_REFUSED_PROFILE,
    _Rule(
        re.compile(
            r"(Optimization profile \d+ is missing values for shape input tensor [^.]*?"
            r"|Dynamic input tensor \S+ is missing dimensions in profile \d+"
            r"|Dynamic-shaped input tensor \S+ has \d+ dimensions but profile \d+ has \d+"
            r" dimensions"
            r"|Dimension mismatch for tensor \S+ and profile \d+)(?=\.)"
        ),
        ProfileError,
        "The optimization profile does not fit the network: {0}.",
        "Correct the profile of that input.",
    ),
    _Rule(
        re.compile(
            r"Profile k(\w+) values are not self-consistent\. Dimensions with name (.+?) must be "
            r"equal\. Condition '==' violated: (-?\d+) != (-?\d+)"
        ),
        ProfileError,
        "The optimization profile contradicts itself: inputs share the dimension {1}, and in {0} "
        "it is {2} for one and {3} for another.",
        "Give this dimension the same min, the same opt and the same max in every input.",
    ),
    _Rule(
        re.compile(r"Network must have at least one output"),
        BuildFailed,
        "The network has no output.",
        "Mark an output (network.mark_output(tensor)), or give a model that has one.",
    ),
    _Rule(
        re.compile(
            r"\bI(?:If)?Conditional\w*|\bI(?:Recurrence|LoopOutput|TripLimit|Iterator)Layer"
        ),
        BuildFailed,
        "TensorRT's builder refused the model's control flow (If, Loop or Scan).",
        _CONTROL_FLOW_REMEDY,
    ),
    # onnx/onnx-tensorrt issue 800: getPluginCreator could not find plugin: <name> version: <n>.
    _Rule(
        re.compile(r"could not find plugin:? (\S+)|plugin creator for (\S+) not found"),
        BuildFailed,
        "The network needs a plugin that is not loaded.",
        "{plugin}",
    ),
    _Rule(
        re.compile(r"std::bad_alloc"),
        BuildFailed,
        "TensorRT ran out of host memory.",
        "Close what else uses memory, raise the process's or container's memory limit, or build on "
        "a larger machine.",
    ),
    # EAGAIN of a thread that could not be made; seen with a limited address space.
    _Rule(
        re.compile(r"Unexpected exception Resource temporarily unavailable"),
        BuildFailed,
        "The operating system refused TensorRT a thread or memory.",
        "Raise the process's or container's limits of threads and memory, or close other programs.",
    ),
    # The first is RTX's for a limit of 0, the second for one too small, the third full TensorRT's
    # ("Could not find any implementation for node ... due to insufficient workspace"), the fourth
    # an older one's: NVIDIA/TensorRT issue 477.
    _Rule(
        re.compile(
            r"requires workspace memory greater than 0"
            r"|no tactics to implement the operation within workspace limit"
            r"|insufficient workspace"
            r"|try increasing the workspace size"
        ),
        BuildFailed,
        "The workspace is too small for at least one operation.",
        "Raise workspace= (bytes), or leave it out: TensorRT then takes what the device has.",
    ),
    _Rule(
        re.compile(r"(Cannot compile operation '.*?' for Turing \(SM75\): [^.]*)"),
        OptionRejected,
        "The target SM75 cannot run this model: {0}.",
        "Leave SM75 out of target=, or convert the model (Turing has no FP32 matrix product in "
        "TensorRT for RTX).",
    ),
    # NVIDIA/TensorRT issue 4359, ArgoHA/D-FINE-seg issue 20.
    _Rule(
        re.compile(r"Target GPU SM (\d+) is not supported by this TensorRT release"),
        BuildFailed,
        "This release of TensorRT does not support the GPU (compute capability SM{0}).",
        "Take a release that does (NVIDIA's support matrix lists them: older GPUs need an older "
        "one, the newest a newer one), or build for another GPU.",
    ),
    # These two were read in the library of 1.7.1 and not met in a build yet.
    _Rule(
        re.compile(r"The engine cannot run on this GPU, which has compute capability (\d+\.\d+)"),
        BuildFailed,
        "The engine cannot run on this machine's GPU, which has the compute capability {0}.",
        "TensorRT's words say whether it supports this GPU at all. If so, name it in target=, or "
        "leave target= out; if not, build for another GPU, or use full TensorRT on this one.",
    ),
    _Rule(
        re.compile(
            r"Builder was created on a device\(\s*(-?\d+)\) different from the current device\("
            r"\s*(-?\d+)\)"
        ),
        BuildFailed,
        "The builder was made for the GPU {0}, and the GPU {1} was the current one in the build.",
        "Choose the GPU with device=, and let no function of yours (a callable source, configure=, "
        "config=) make another one the current GPU.",
    ),
    # NVIDIA/TensorRT issue 4253, NVIDIA/TensorRT-RTX issue 2.
    _Rule(
        re.compile(r"condition: !config\.getFlag\(BuilderFlag::k(\w+)\)"),
        OptionRejected,
        "TensorRT refused the builder flag {0} for this network.",
        "Leave it out. A strongly typed network, the default, takes its types from the model, and "
        "flags that choose a precision are refused for it.",
    ),
    _Rule(
        re.compile(r"Unable to load library: ([^\s:]+)"),
        BuildFailed,
        "TensorRT could not load the library {0}, which this build needs.",
        "Install it, or leave out the option that needs it (VERSION_COMPATIBLE needs the lean "
        "runtime, which TensorRT for RTX's wheel does not have).",
    ),
    # NVIDIA/TensorRT issue 2144.
    _Rule(
        re.compile(r"getCaskHandle|findConvShaderByHandle"),
        BuildFailed,
        "TensorRT's builder stopped with an internal error: it did not find a kernel by its "
        "handle. A timing cache of another GPU or another TensorRT version is known to do this.",
        "If a timing cache is used: delete its file, or leave timing_cache= out. If none is: "
        "{report}",
    ),
)

# What TensorRT says where GPU memory is short: as errors, and as warnings beside another error.
# NVIDIA/TensorRT issues 4258 and 4254, marcoslucianops/DeepStream-Yolo issue 366,
# ultralytics/ultralytics issues 14751 ("insuficient" is theirs) and 22271. Those of the last two
# lines were read in the library of TensorRT for RTX 1.7.1; the 2 is cudaErrorMemoryAllocation.
_DEVICE_MEMORY: Final = re.compile(
    r"Cuda Runtime \(out of memory\)|cudaError 2\b|Error Code \d+: OutOfMemory"
    r"|User allocator error allocating|Requested amount of (?:GPU )?memory .*could not be allocated"
    r"|Device memory is insufficient to use tactic"
    r"|[Ss]kipping tactic .*insuf+icient memory"
    r"|GPU memory allocation failed|Failed to allocate weight streaming device (?:scratch )?memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|CUDA initialization failure with error: 2\b"
)
# "MyelinHostBuffer::allocate ... OutOfMemory", seen with 1.7.1 and a limited address space.
_HOST_BUFFER: Final = re.compile(r"HostBuffer")
_SOME_MEMORY: Final = re.compile(r"out of memory|OutOfMemory")
# NVIDIA/TensorRT issues 3423 and 2647, and many more.
_NO_IMPLEMENTATION: Final = re.compile(
    r"Could not find any implementation for node (.+?)\.?\s*(?:\)|In \w+ at |$)", re.MULTILINE
)
# Codes 2 and 10 are INTERNAL_ERROR and UNSUPPORTED_STATE; 3, 4 and 9 mean that a call or the
# configuration is wrong, also where an older TensorRT writes "Internal Error" behind them.
_INTERNAL: Final = re.compile(
    r"Error Code (?:2|10): Internal Error|Error Code 1: Myelin|MyelinCheckException"
    r"|\bAssertion\b.*\bfailed"
)
# Warnings of RTX; errors of full TensorRT (NVIDIA/TensorRT issues 3566 and 1413), which goes on
# without the cache.
_CACHE: Final = re.compile(
    r"timing cache will not be used|Failed to deserialize timing cache"
    r"|Detected invalid timing cache|kMAGIC_TAG"
)
_CUDA: Final = re.compile(
    r"cudaError (\d+)\b|CUDA initialization failure with error: (\d+)|CUDA_SUCCESS"
)
_SHOWN_EVIDENCE: Final = 3


def explain_failure(
    backend: Backend,
    messages: Sequence[tuple[Any, str]],
    prepared: Prepared | None = None,
    *,
    in_child: bool = False,
) -> BuildFailed:
    """Explain a build that gave no engine and was not cancelled.

    Parameters
    ----------
    backend
        The package that built.
    messages
        ``(severity, text)`` of what was logged, in order; the severity as text or TensorRT's enum.
    prepared
        What was built.
    in_child
        Whether this is the process of ``executor="process"``.

    Returns
    -------
    BuildFailed
        Of the type that fits, with all errors that TensorRT logged; where no sentence of known
        meaning is among them, a plain :class:`BuildFailed` that names no cause.
    """
    said = errors_in(messages)
    # Lines that come beside nearly every other error are a cause only where they stand alone.
    real = [text for text in said if not _DRIVER_NOISE.search(text)] or said
    real = [text for text in real if not _CACHE.search(text)] or real
    profile = _explain_no_profile(real, prepared, said)
    if profile is not None:
        return profile
    match = _find(_RULES, real)
    if match is not None:
        rule = match.rule
        remedy = rule.remedy.format(
            *match.groups,
            plugin=_load_plugin(in_child=in_child),
            report=_to_report(None, backend),
        )
        return rule.kind(rule.cause.format(*match.groups), remedy, said, evidence=[match.line])
    found = (
        _explain_device_memory(messages, real)
        or _explain_cuda(backend, real, prepared)
        or _explain_cache(real)
        or _explain_internal(backend, messages, real)
    )
    if found is not None:
        cause, remedy, evidence = found
        return BuildFailed(cause, remedy, said, evidence=evidence)
    if not said:
        return BuildFailed(
            "TensorRT returned no engine and logged no error.",
            "A logger of the source's own may have it: a callable source's builder logs to the "
            "logger that it was made with.",
            [message for _, message in messages],
        )
    return BuildFailed(
        "TensorRT returned no engine.", "Its own words are all that is known about the cause.", said
    )


def _explain_no_profile(
    real: Sequence[str], prepared: Prepared | None, said: Sequence[str]
) -> ProfileError | None:
    if not any(_NO_PROFILE in text for text in real):
        return None
    if prepared is not None:
        return missing_profile(prepared.network, said)
    return ProfileError(
        "The network has inputs of dynamic shape, and no optimization profile for them.",
        "Add a profile that gives the smallest, the most usual and the largest shape of each.",
        said,
        evidence=[text for text in real if _NO_PROFILE in text],
    )


def _explain_device_memory(
    messages: Sequence[tuple[Any, str]], real: Sequence[str]
) -> _Found | None:
    """Explain a lack of GPU memory; warnings count only where no implementation was found."""
    remedy = (
        "Close what else uses the GPU (nvidia-smi lists it), lower workspace= or the largest "
        "shapes of the profiles, or build on a GPU with more memory."
    )
    matched = [_line_of(found) for text in real if (found := _DEVICE_MEMORY.search(text))]
    if any(_HOST_BUFFER.search(line) for line in matched):
        return _Found("TensorRT ran out of host memory.", _MORE_MEMORY, matched[:_SHOWN_EVIDENCE])
    if matched:
        return _Found("TensorRT ran out of GPU memory.", remedy, matched[:_SHOWN_EVIDENCE])
    some = _first(_SOME_MEMORY, real)
    if some is not None:
        return _Found("TensorRT ran out of memory.", remedy, [_line_of(some)])
    node = _first(_NO_IMPLEMENTATION, real)
    warned = [_line_of(found) for _, text in messages if (found := _DEVICE_MEMORY.search(text))]
    if node is None or not warned:
        return None
    return _Found(
        f"TensorRT skipped tactics for want of GPU memory, and has none left for the node "
        f"{node[1]}.",
        remedy,
        [*warned[:_SHOWN_EVIDENCE], _line_of(node)],
    )


def _explain_cuda(
    backend: Backend, real: Sequence[str], prepared: Prepared | None = None
) -> _Found | None:
    """Explain a call to CUDA that failed, where the driver or the lack of a GPU is the reason."""
    found = _first(_CUDA, real)
    if found is None:
        return None
    code = found[1] or found[2]
    if gpus() and code != _NO_DEVICE:  # hidden, or gone since it was asked for
        if code == _INSUFFICIENT:
            return _explain_old_driver(backend, _line_of(found))
        return _explain_cuda_error(backend, code, _line_of(found))
    if code not in {None, _INSUFFICIENT, _NO_DEVICE}:
        return None
    remedy = "Build on a machine with a GPU, or with backend='tensorrt_rtx'."
    if backend.is_rtx:
        remedy = (
            "Flags that make weights exchangeable (REFIT, REFIT_IDENTICAL, STRIP_PLAN) and the "
            "target 'current' need a GPU; leave them out or build on a machine with one."
        )
    where = "no NVIDIA driver here, and so no GPU"
    if _has_driver_library():
        where = "no GPU here that the NVIDIA driver offers"
    evidence = [_line_of(found), f"There is {where}."]
    flags = _flags_that_need_a_gpu(backend, prepared)
    if flags:
        evidence.append(f"The flags of this build include {', '.join(flags)}.")
    return _Found(f"A call to CUDA failed in the build: there is {where}.", remedy, evidence)


# cudaErrorInsufficientDriver (also without any driver) and cudaErrorNoDevice.
_INSUFFICIENT: Final = "35"
_NO_DEVICE: Final = "100"


# Of cudaError_t in driver_types.h: cudaErrorDevicesUnavailable; what says that there is no code for
# the GPU (cudaErrorInvalidDeviceFunction, cudaErrorNoKernelImageForDevice); what leaves CUDA of no
# use to the process (cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorUnknown).
_UNAVAILABLE: Final = "46"
_NO_CODE: Final = frozenset({"98", "209"})
_BROKEN: Final = frozenset({"700", "719", "999"})


def _explain_cuda_error(backend: Backend, code: str | None, line: str) -> _Found | None:
    """Explain an error of CUDA by its number, on a machine with a GPU."""
    if code is None:
        return None
    if code == _UNAVAILABLE:
        return _Found(
            f"The GPU cannot be used (cudaError {code}): it is busy, or another program has it for "
            "itself.",
            "Close what else uses the GPU (nvidia-smi lists it, and its compute mode), or choose "
            "another one with device=.",
            [line],
        )
    if code in _NO_CODE:
        return _Found(
            f"{backend} has no code that this machine's GPU can run (cudaError {code}).",
            "Take a release of TensorRT that supports the GPU, or leave target='current' out and "
            "build for another one.",
            [line],
        )
    remedy = (
        "TensorRT's words name the call. nvidia-smi shows whether the GPU and its driver are in "
        "order, and what else uses it."
    )
    if code in _BROKEN:
        remedy = (
            f"{remedy} CUDA cannot be used again in that process: with executor='thread', start "
            "the kernel anew."
        )
    return _Found(f"A call to CUDA failed in the build (cudaError {code}).", remedy, [line])


def _explain_old_driver(backend: Backend, line: str) -> _Found:
    import ctypes

    version = ctypes.c_int(0)
    driver = _driver()
    known = driver is not None and driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    number = version.value  # 12020 is 12.2
    serves = f"It serves CUDA up to {number // 1000}.{number % 1000 // 10}." if known else ""
    return _Found(
        f"The NVIDIA driver of this machine is older than the CUDA version that {backend} was "
        f"made for. {serves}".strip(),
        "Update the driver, or install a TensorRT that was made for an older CUDA version.",
        [line, *([serves] if serves else [])],
    )


def _has_driver_library() -> bool:
    import ctypes

    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _flags_that_need_a_gpu(backend: Backend, prepared: Prepared | None) -> list[str]:
    """Return the flags of a build that TensorRT for RTX needs a GPU for (measured with 1.7.1)."""
    if prepared is None or not backend.is_rtx:
        return []
    names = ("REFIT", "REFIT_IDENTICAL", "STRIP_PLAN")
    flags = getattr(backend.module.BuilderFlag, "__members__", {})
    config = prepared.config
    return [name for name in names if name in flags and config.get_flag(flags[name])]


def _explain_cache(real: Sequence[str]) -> _Found | None:
    """Explain a timing cache that was refused, where TensorRT says nothing else."""
    found = _first(_CACHE, real)
    if found is None:
        return None
    return _Found(
        "TensorRT refused the timing cache, and says nothing else: it is damaged, or made by "
        "another version of TensorRT or on another GPU.",
        "Delete the timing cache's file, or leave timing_cache= out.",
        [_line_of(found)],
    )


def _explain_internal(
    backend: Backend, messages: Sequence[tuple[Any, str]], real: Sequence[str]
) -> _Found | None:
    """Say that TensorRT reports an error of its own, and what to do about one."""
    report = _to_report(None, backend)
    node = _first(_NO_IMPLEMENTATION, real)
    if node is not None:
        return _Found(
            f"TensorRT found no implementation for the node {node[1]}.",
            "Raise workspace= or leave it out, try another optimization_level= or TensorRT "
            f"version, or change the model there. {report}",
            [_line_of(node)],
        )
    found = _first(_INTERNAL, real)
    lines = [_line_of(found)] if found is not None else []
    lines += [text for severity, text in messages if _level(severity) == "INTERNAL_ERROR"]
    if not lines:
        return None
    return _Found(
        "TensorRT's builder stopped with an internal error.",
        "Its words may name the part of the model that it stumbled over; another "
        f"optimization_level= or TensorRT version may get around it. {report}",
        list(dict.fromkeys(lines))[:_SHOWN_EVIDENCE],
    )


def _first(pattern: re.Pattern[str], messages: Iterable[str]) -> re.Match[str] | None:
    return next((match for text in messages if (match := pattern.search(text))), None)


def explain_no_builder(
    backend: Backend,
    error: Exception,
    messages: Sequence[tuple[Any, str]] = (),
    what: str = "builder",
) -> BuildFailed:
    """Explain that ``trt.Builder(logger)`` gave no builder, or ``trt.OnnxParser`` no parser.

    Full TensorRT then only warns ("CUDA initialization failure with error: 35": NVIDIA/TensorRT
    issue 2879), and the bindings raise a ``TypeError`` about a factory function.
    """
    texts = [text for _, text in messages]
    found = _explain_device_memory(messages, texts) or _explain_cuda(backend, texts)
    if found is None:
        return BuildFailed(
            f"{backend} could not make a {what}: {error}.",
            "See whether nvidia-smi finds the GPU, whether the driver is new enough for this "
            "TensorRT, and whether its libraries are of the same version as its Python package; "
            '"trt-widget check" tells more.',
            texts,
        )
    cause, remedy, evidence = found
    return BuildFailed(
        f"{backend} could not make a {what}. {cause.replace(' in the build', '')}",
        remedy,
        texts,
        evidence=evidence,
    )


# ---- a process that died ------------------------------------------------------------------------

_UNHARMED: Final = "The notebook and its variables are unharmed."
_LAST_MESSAGES: Final = 12

# What an allocation that failed leaves behind: the C++ runtime's last line, and TensorRT's.
_NO_MEMORY: Final = re.compile(r"std::bad_alloc|MemoryError|Cannot allocate memory")

_FAULTS: Final = frozenset(
    {"SIGSEGV", "SIGBUS", "SIGILL", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS"}
)

# Windows ends a process with one of these where other systems send a signal. NTSTATUS values from
# Microsoft's open specification MS-ERREF, section 2.3.1; the last is the Visual C++ runtime's.
_EXCEPTIONS: Final = {
    0xC0000005: "access violation",
    0xC0000006: "a page could not be read",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC0000374: "heap corruption",
    0xC0000409: "stack buffer overrun, or abort()",
    0xE06D7363: "a C++ exception that nobody caught",
}
_EXCEPTIONS_OF_MEMORY: Final = {
    0xC0000017: "not enough memory",
    0xC000012D: "the commit limit is reached",
}
_EXCEPTIONS_OF_LIBRARIES: Final = {
    0xC0000135: "a DLL was not found",
    0xC0000139: "an entry point of a DLL was not found",
    0xC0000142: "a DLL could not be initialized",
}
_CLOSED_BY_CONTROL_C: Final = 0xC000013A
_FIRST_EXCEPTION: Final = 0xC0000000

_MORE_MEMORY: Final = (
    "Close what else uses memory, raise the machine's, container's or job's memory limit, or build "
    "a smaller model or on a larger machine."
)


def explain_crash(
    *,
    name: str,
    signal: int | None,
    exit_code: int | None,
    phase: str | None,
    messages: Sequence[tuple[Any, str]],
    output: str,
    peak_memory_bytes: int | None,
    memory_limit_bytes: int | None = None,
    oom_killed: bool | None = None,
    backend: Backend | None = None,
    parsed: bool = True,
) -> BuildCrashed:
    """Explain that the process that built ended without a result.

    Parameters
    ----------
    name
        What the model is called.
    signal
        The number of the signal that ended the process, or None.
    exit_code
        The code that it ended with, or None. On Windows an exception's number.
    phase
        The path of the innermost open phase, or None.
    messages
        ``(severity, text)`` of what TensorRT logged last.
    output
        The end of what the process printed.
    peak_memory_bytes
        The most memory that it was seen to use, or None.
    memory_limit_bytes
        The limit that holds for it, or None.
    oom_killed
        Whether the operating system counted a process killed for want of memory meanwhile; None
        where that cannot be known.
    backend
        The package that built.
    parsed
        Whether the model had been read, and the caller's functions called.
    """
    code = None if exit_code is None else exit_code % 2**32  # the same, signed or not
    signal_name = None if signal is None else _signal_name(signal)
    lines = [*output.splitlines(), *[text for _, text in messages]]
    starved = [line.strip() for line in lines if _NO_MEMORY.search(line)][-1:]
    evidence = []
    if signal_name is not None:
        evidence.append(f"The process was ended by {signal_name}.")
    elif code:
        evidence.append(f"The process ended with the code {_code(code)}.")
    if not parsed:
        evidence.append("It was still reading the model, or in a function given to it.")
    if peak_memory_bytes is not None:
        evidence.append(_memory_seen(peak_memory_bytes, memory_limit_bytes))
    if oom_killed:
        evidence.insert(0, "The operating system counted a process killed for want of memory.")
    if oom_killed and signal_name == "SIGKILL":
        what = "was killed by the operating system for want of memory."
        remedy = _MORE_MEMORY
    elif starved and (signal_name == "SIGABRT" or (signal_name is None and code)):
        what = "ran out of host memory: an allocation failed, and it ended itself."
        evidence = starved + evidence
        remedy = _MORE_MEMORY
    elif signal_name in _FAULTS or _is_exception(code):
        kind = signal_name or _EXCEPTIONS.get(code or 0, "a Windows exception")
        what, remedy = _explain_fault(kind, output, _to_report(phase, backend))
        evidence = starved + evidence
    elif signal_name is not None:
        what, remedy = _explain_signal(signal_name)
    else:
        what, remedy = _explain_code(code)
    return BuildCrashed(
        f"The process that built {name} {what} {_UNHARMED}",
        remedy,
        [text for _, text in messages][-_LAST_MESSAGES:],
        evidence=evidence,
        signal=signal_name,
        exit_code=exit_code,
        phase=phase,
        output=output,
        peak_memory_bytes=peak_memory_bytes,
    )


#: As faulthandler writes it; the innermost frame comes first.
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+) in (\S+)$', re.MULTILINE)


def _explain_fault(kind: str, output: str, to_report: str) -> tuple[str, str]:
    """Return what happened and what to do, for a crash in native code."""
    place = _in_users_code(output)
    if place:
        return (
            f"crashed ({kind}) while a function given to it ran ({place}).",
            (
                "Look there first: what it calls in native code (ctypes, an extension module, a "
                "method of TensorRT) is what crashed."
            ),
        )
    return (
        f"crashed inside TensorRT, a plugin or another native library ({kind}).",
        f"{to_report} {_TRY_AROUND}",
    )


def _in_users_code(output: str) -> str:
    """Return where in the caller's function the process crashed, by the stack that it printed."""
    _, found, stack = output.rpartition("Fatal Python error")
    frames = _FRAME.findall(stack) if found else []
    names = [name for _, _, name in frames]
    if "call_users_code" not in names or "build_serialized_network" in names:
        return ""
    users = frames[: names.index("call_users_code")]
    if not users:
        return ""
    file, line, name = users[-1]
    return f"{Path(file).name}, line {line}, in {name}"


def _explain_signal(name: str) -> tuple[str, str]:
    """Return what happened and what to do, for a signal that somebody else sent."""
    if name == "SIGKILL":
        return (
            (
                "was killed from outside (SIGKILL). Who did it is not known; want of memory is the "
                "usual reason."
            ),
            (
                "See whether memory ran out (the system's log, `dmesg`, says so where it may be "
                f"read). If so: {_MORE_MEMORY} If not: a person, a job scheduler or a container's "
                "end may have killed it."
            ),
        )
    remedies = {
        "SIGXCPU": "Raise the limit of CPU time (`ulimit -t`).",
        "SIGXFSZ": "Raise the limit of a file's size (`ulimit -f`).",
    }
    usual = "A person, a job scheduler or a container's end may have done it."
    return f"was ended from outside ({name}).", remedies.get(name, usual)


def _explain_code(code: int | None) -> tuple[str, str]:
    """Return what happened and what to do, for a process that no signal ended."""
    if code is None:
        return (
            "ended without a result, and how it ended is not known.",
            "Start the build again; the end of its output may say more.",
        )
    if code in _EXCEPTIONS_OF_MEMORY:
        return f"ran out of host memory ({_EXCEPTIONS_OF_MEMORY[code]}).", _MORE_MEMORY
    if code in _EXCEPTIONS_OF_LIBRARIES:
        return (
            f"could not load a library ({_EXCEPTIONS_OF_LIBRARIES[code]}).",
            "Install TensorRT and its libraries again, and see that PATH has their folders.",
        )
    if code == _CLOSED_BY_CONTROL_C:
        return "was ended from outside (Ctrl-C, or its console was closed).", "Start it again."
    return (
        f"ended itself with the code {_code(code)} before there was a result.",
        (
            "TensorRT does not do that. Look for exit() or os._exit() in configure=, in a callable "
            "source or in a plugin; the end of the output may say more."
        ),
    )


_TRY_AROUND: Final = (
    "Where plugins are loaded, see whether it crashes without them too; another "
    "optimization_level= or TensorRT version may get around it."
)


def _to_report(phase: str | None, backend: Backend | None) -> str:
    """Say what a report to NVIDIA (or the plugin's author) has to hold."""
    version = f"{backend}" if backend is not None else "TensorRT's version"
    where = f", the phase ({phase})" if phase else ""
    return (
        "To report it (to NVIDIA, or the plugin's author): the model, the options of this build, "
        f"{version}, the versions of the driver and the GPU{where}, and TensorRT's last words."
    )


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:  # a real-time signal, or another system's number
        return f"signal {number}"


def _is_exception(code: int | None) -> bool:
    """Whether this is an exit code of Windows for a fault."""
    known_otherwise = {*_EXCEPTIONS_OF_MEMORY, *_EXCEPTIONS_OF_LIBRARIES, _CLOSED_BY_CONTROL_C}
    return code is not None and code >= _FIRST_EXCEPTION and code not in known_otherwise


def _code(code: int) -> str:
    return f"0x{code:08X}" if code >= _FIRST_EXCEPTION else str(code)


def _memory_seen(peak: int, limit: int | None) -> str:
    of = f"; its limit was {_size_of(limit)}" if limit is not None else ""
    return f"The most memory it was seen to use was {_size_of(peak)}{of}."


def _size_of(count: int) -> str:
    """Return a number of bytes for people."""
    gigabyte = 10**9
    return f"{count / gigabyte:.1f} GB" if count >= gigabyte else f"{count / 10**6:.0f} MB"
