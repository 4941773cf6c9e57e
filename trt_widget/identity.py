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

from trt_widget._onnx import summarize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from trt_widget.options import BuildOptions

__all__ = ["NetworkIdentity", "digest_of_options", "identify_model", "identify_network"]

# More than that of a file is not read: blocks spread over it, its length and its name's end stand
# for the rest. Two versions of the same weights take the same time to build anyway.
_MOST_READ: Final = 64 * 1024 * 1024
_BLOCK: Final = 1024 * 1024
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


def identify_model(model: Path | bytes, network: Any) -> NetworkIdentity | None:
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
        seen = hashlib.sha256()
        if isinstance(model, bytes):
            _add_blocks(seen, len(model), lambda at, count: model[at : at + count])
        else:
            _add_file(seen, model)
            for location in summary.locations:
                seen.update(location.encode("utf-8", "surrogatepass"))
                with contextlib.suppress(OSError):
                    _add_file(seen, model.parent / location)
    except OSError:
        return None
    size = {
        "layers": network.num_layers,
        "computing": _computing(network),
        "operators": summary.operators,
        "kinds": summary.kinds,
        "parameters": summary.parameters,
    }
    return NetworkIdentity(seen.hexdigest()[:32], {name: float(n) for name, n in size.items()})


def identify_network(network: Any) -> NetworkIdentity:
    """Identify a network that the user's own code has made, by its layers and their outputs."""
    seen = hashlib.sha256()
    layers = int(network.num_layers)
    for index in range(min(layers, _MOST_LAYERS)):
        layer = network.get_layer(index)
        outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
        shapes = [(str(tensor.dtype), _shape(tensor)) for tensor in outputs if tensor is not None]
        seen.update(repr((layer.name, layer.type.name, shapes)).encode("utf-8", "surrogatepass"))
    size = {"layers": float(layers), "computing": float(_computing(network))}
    return NetworkIdentity(f"{layers}-{seen.hexdigest()[:32]}", size)


def _computing(network: Any) -> int:
    """Count the layers that are no constants; some microseconds a layer."""
    layers = int(network.num_layers)
    kinds = (network.get_layer(index).type.name for index in range(min(layers, _MOST_LAYERS)))
    return layers - sum(1 for kind in kinds if kind == "CONSTANT")


def digest_of_options(options: BuildOptions) -> str:
    """Give one text for the options that have an influence on how long a build takes.

    Of a function of the user's what counts is its code, not where it was defined.
    """
    values = (
        sorted(_plain(profile) for profile in options.profiles),
        sorted(options.flags),
        options.strongly_typed,
        sorted(options.network_flags),
        options.optimization_level,
        options.workspace,
        sorted(path.name for path in options.plugins),
        _code(options.configure),
        _code(options.config),
    )
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(profile: Any) -> list[tuple[str, tuple[Any, ...]]]:
    return sorted((name, tuple(shapes)) for name, shapes in profile.items())


def _code(function: Callable[..., object] | None) -> str:
    if function is None:
        return ""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{type(function).__module__}.{type(function).__qualname__}"
    # Constants that are code have an address in their text.
    constants = [value for value in code.co_consts if not hasattr(value, "co_code")]
    return repr((code.co_code, code.co_names, constants))


def _shape(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except (ValueError, RuntimeError):  # of unknown rank
        return ()


def _add_file(seen: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        _add_blocks(seen, os.fstat(file.fileno()).st_size, _reader(file))


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    return read


def _add_blocks(seen: hashlib._Hash, size: int, read: Callable[[int, int], bytes]) -> None:
    """Hash all of it, or of something large as many blocks as :data:`_MOST_READ` allows."""
    seen.update(size.to_bytes(8, "little"))
    blocks = -(-size // _BLOCK)
    most = _MOST_READ // _BLOCK
    chosen = range(blocks)
    if blocks > most:
        chosen = [number * (blocks - 1) // (most - 1) for number in range(most)]  # type: ignore[assignment]
    for number in chosen:
        seen.update(read(number * _BLOCK, _BLOCK))
