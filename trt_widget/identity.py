"""Which network a build is of, and how large it is: by that its times are found again.

It is worked out where the builder runs, which has the model at hand, and it only serves the
history: whatever cannot be read makes it poorer, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trt_widget._fingerprint import fingerprint
from trt_widget._onnx import summarize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from tensorrt import INetworkDefinition, ITensor

    from trt_widget._onnx import Summary
    from trt_widget._tensorrt import TensorRT
    from trt_widget.options import BuildOptions

__all__ = [
    "NetworkIdentity",
    "digest_of_model",
    "digest_of_options",
    "identify_model",
    "identify_network",
]

# More than that of a model and its files is not read: blocks spread over a file and its length
# stand for the rest. Two versions of the same weights take the same time to build anyway.
_MOST_READ: Final = 128 * 1024 * 1024
_BLOCK: Final = 1024 * 1024
_MOST_FILES: Final = 1_000
_MOST_LAYERS: Final = 100_000


@dataclass(frozen=True)
class NetworkIdentity:
    """A network's hash and size.

    Attributes
    ----------
    digest
        Hash of the content; the same for the same model, wherever it lies.
    size
        ``layers`` (of TensorRT's network) and ``computing`` (those that are no constants, which
        cost no time and differ between exporters); of a model also ``operators`` (nodes), ``kinds``
        (different operators) and ``parameters`` (values of its tensors).
    """

    digest: str
    size: dict[str, float] = field(default_factory=dict)


def identify_model(model: Path | bytes, network: INetworkDefinition) -> NetworkIdentity | None:
    """Identify an ONNX model, with the files that it keeps its weights in.

    Parameters
    ----------
    network
        What TensorRT has made of it.

    Returns
    -------
    NetworkIdentity or None
        None where it cannot be read (any more).
    """
    try:
        summary = summarize(model)
        digest = digest_of_model(model, summary)
    except OSError:
        return None
    size = {
        "layers": network.num_layers,
        "computing": _computing(network),
        "operators": summary.operators,
        "kinds": summary.kinds,
        "parameters": summary.parameters,
    }
    return NetworkIdentity(digest, {name: float(n) for name, n in size.items()})


def digest_of_model(model: Path | bytes, summary: Summary | None = None) -> str:
    """Give the hash by which :func:`identify_model` knows a model; it needs no TensorRT.

    Raises
    ------
    OSError
        It cannot be read.
    """
    summary = summarize(model) if summary is None else summary
    content = _Content()
    if isinstance(model, bytes):
        content.add_blocks(len(model), lambda at, count: model[at : at + count])
    else:
        content.add_file(model)
        for location in summary.locations[:_MOST_FILES]:
            content.add_text(location)
            with contextlib.suppress(OSError):
                content.add_file(model.parent / location)
    return content.digest


def identify_network(network: INetworkDefinition, trt: TensorRT) -> NetworkIdentity:
    """Identify a network that the user's own code has made, by its inputs, layers and weights.

    Parameters
    ----------
    trt
        The package that it is of.
    """
    content = _Content()
    layers = int(network.num_layers)
    constants = parameters = 0
    for index in range(network.num_inputs):
        content.add_text(repr(_tensor(network.get_input(index))))
    for index in range(min(layers, _MOST_LAYERS)):
        layer = network.get_layer(index)
        kind = layer.type.name
        constants += kind == "CONSTANT"
        inputs = [layer.get_input(number) for number in range(layer.num_inputs)]
        outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
        class_name, plain, weights = _LAYERS.get(kind, ("", (), ()))
        if hasattr(trt, class_name):
            # The bindings give the base class. The attributes below are those of the layer's own.
            layer.__class__ = getattr(trt, class_name)
        values = [str(getattr(layer, name, None)) for name in plain]
        content.add_text(
            repr((layer.name, kind, *map(_tensor, inputs), "->", *map(_tensor, outputs), values))
        )
        for name in weights:
            parameters += _add_weights(content, getattr(layer, name, None))
    size = {"layers": layers, "computing": layers - constants, "parameters": parameters}
    return NetworkIdentity(
        f"{layers}-{content.digest}", {name: float(n) for name, n in size.items()}
    )


_CONVOLUTION: Final = (
    ("num_output_maps", "kernel_size_nd", "stride_nd", "dilation_nd", "num_groups"),
    ("kernel", "bias"),
)
#: Of the layers whose outputs do not tell what they cost: class, plain attributes, weights.
_LAYERS: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "CONVOLUTION": ("IConvolutionLayer", *_CONVOLUTION),
    "DECONVOLUTION": ("IDeconvolutionLayer", *_CONVOLUTION),
    "CONSTANT": ("IConstantLayer", (), ("weights",)),
    "SCALE": ("IScaleLayer", ("mode",), ("shift", "scale", "power")),
    "POOLING": ("IPoolingLayer", ("type", "window_size_nd", "stride_nd"), ()),
    "ACTIVATION": ("IActivationLayer", ("type",), ()),
    "ELEMENTWISE": ("IElementWiseLayer", ("op",), ()),
    "UNARY": ("IUnaryLayer", ("op",), ()),
    "MATRIX_MULTIPLY": ("IMatrixMultiplyLayer", ("op0", "op1"), ()),
    "REDUCE": ("IReduceLayer", ("op", "axes", "keep_dims"), ()),
    "SOFTMAX": ("ISoftMaxLayer", ("axes",), ()),
    "TOPK": ("ITopKLayer", ("op", "k", "axes"), ()),
    "EINSUM": ("IEinsumLayer", ("equation",), ()),
    "RESIZE": ("IResizeLayer", ("resize_mode", "scales"), ()),
    "GATHER": ("IGatherLayer", ("axis", "mode"), ()),
}


def _tensor(tensor: ITensor | None) -> tuple[Any, ...]:
    return () if tensor is None else (tensor.name, str(tensor.dtype), _shape(tensor))


def _add_weights(content: _Content, weights: Any) -> int:
    """Take in an array; give the number of its values."""
    try:
        data = memoryview(weights).cast("B")
    except (TypeError, ValueError):  # none, or of a type that numpy does not have
        content.add_text(f"{type(weights).__name__} {getattr(weights, 'size', 0)}")
        return int(getattr(weights, "size", 0))
    content.add_blocks(len(data), lambda at, count: bytes(data[at : at + count]))
    return int(weights.size)


def _computing(network: INetworkDefinition) -> int:
    """Count the layers that are no constants."""
    layers = int(network.num_layers)
    constants = 0
    constant = None
    for index in range(min(layers, _MOST_LAYERS)):
        kind = network.get_layer(index).type
        if constant is None:
            constant = type(kind).CONSTANT
        # Asking the bindings for a name takes ten times as long.
        constants += kind == constant
    return layers - constants


def digest_of_options(options: BuildOptions) -> str:
    """Give one text for the options that have an influence on how long a build takes.

    Of a function of the user's what counts is its code and the values that it refers to, as they
    are now; one that cannot be looked into makes the text a unique one.
    """
    values = (
        sorted(_plain(profile) for profile in options.profiles),
        sorted(options.flags),
        options.strongly_typed,
        sorted(options.network_flags),
        options.optimization_level,
        options.workspace,
        sorted(_file(path) for path in options.plugins),
        fingerprint(options.configure),
        fingerprint(options.config),
    )
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _file(path: Path) -> tuple[str, int]:
    try:
        return path.name, path.stat().st_size
    except OSError:
        return path.name, -1


def _plain(profile: Any) -> list[tuple[str, tuple[Any, ...]]]:
    return sorted((name, tuple(shapes)) for name, shapes in profile.items())


def _shape(tensor: ITensor) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except (ValueError, RuntimeError):  # of unknown rank
        return ()


class _Content:
    """A hash of a model's content: all of it, or of much content blocks that are spread over it."""

    def __init__(self) -> None:
        self._seen = hashlib.sha256()
        self._left = _MOST_READ // _BLOCK
        self._files: set[str] = set()

    def add_text(self, text: str) -> None:
        """Take in a text."""
        self._seen.update(text.encode("utf-8", "surrogatepass"))

    def add_file(self, path: Path) -> None:
        """Take in a file, once under whatever name; past the budget its size only.

        Raises
        ------
        OSError
            It cannot be read.
        """
        real = os.path.realpath(path)
        if real in self._files or len(self._files) >= _MOST_FILES:
            return
        self._files.add(real)
        with open(real, "rb") as file:  # noqa: PTH123 - no path any more
            self.add_blocks(os.fstat(file.fileno()).st_size, _reader(file))

    def add_blocks(self, size: int, read: Callable[[int, int], bytes]) -> None:
        """Take in what ``read`` gives of ``size`` bytes."""
        self._seen.update(size.to_bytes(8, "little"))
        blocks = -(-size // _BLOCK)
        # Half of what is left: the next file is to have something, too.
        most = min(blocks, max(self._left // 2, min(self._left, 1)))
        self._left -= most
        for number in range(most):
            at = number * (blocks - 1) // (most - 1) if most > 1 else 0
            self._seen.update(read(at * _BLOCK, _BLOCK))

    @property
    def digest(self) -> str:
        """The hash so far."""
        return self._seen.hexdigest()[:32]


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    return read
