"""What may start CUDA, crash, or hold memory, in a process of its own: see ``device.probe``.

Prints one line of JSON. Of ``trt_widget`` it uses the list of GPUs only: what TensorRT can do is
asked of TensorRT alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from typing import Any

import numpy as np

from tests import models
from tests.gpu.device import MIB, Cuda, CudaError
from trt_widget.backend import cuda_library, gpus

#: The pieces in which memory is taken at first; each refusal halves it, down to the smallest.
_FIRST_PIECE = 8 * 1024 * MIB
_LAST_PIECE = MIB


def main() -> None:
    """Do what the command line says."""
    command, *arguments = sys.argv[1:]
    if command == "hold":
        hold(arguments[0])
        return
    found = {"gpu": look, "abilities": try_tensorrt, "run": infer}[command](*arguments)
    print(json.dumps(found), flush=True)


# ---- the GPU ------------------------------------------------------------------------------------


def look() -> dict[str, Any]:
    """Describe the first GPU, or give the one reason why there is none to be used."""
    import ctypes

    library = cuda_library()
    if library is None:
        return {"reason": "no NVIDIA driver here: its library (libcuda.so.1) is not to be found"}
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    needed = _cuda_of_tensorrt()
    code = library.cuInit(0)
    if version.value < needed:
        return {
            "reason": f"the NVIDIA driver is too old: it serves CUDA {_dotted(version.value)}, and "
            f"TensorRT was made for {_dotted(needed)}"
        }
    found = gpus()
    if code != 0 or not found:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f", with CUDA_VISIBLE_DEVICES={visible!r}"
        return {
            "reason": f"the NVIDIA driver offers none here: cuInit answered {code}, and there are "
            f"{len(found)} GPUs{hidden}"
        }
    gpu = found[0]
    return {
        "name": gpu.name,
        "capability": gpu.compute_capability,
        "uuid": gpu.uuid,
        "memory": gpu.memory,
        "cuda": version.value,
    }


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _cuda_of_tensorrt() -> int:
    """Give the version of CUDA that the installed TensorRT-RTX was made for, as the driver does.

    Its libraries come in a package that has it in its name; 0 where that is not so.
    """
    for package in importlib.metadata.distributions():
        match = re.fullmatch(r"tensorrt[-_]rtx[-_]cu(\d+)(?:[-_]libs)?", package.name or "")
        if match is not None:
            return int(match[1]) * 1000
    return 0


# ---- TensorRT alone -----------------------------------------------------------------------------


def try_tensorrt(target: str) -> dict[str, Any]:
    """Build a tiny engine for a target, load it, and make it ready to run.

    Parameters
    ----------
    target
        ``"current"``, or ``"default"``: none is set.
    """
    import tensorrt_rtx as trt

    words: list[str] = []
    logger = _listen(trt, words)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(models.mlp().SerializeToString())
    config = builder.create_builder_config()
    refused = refusal(config, trt.ComputeCapability.CURRENT) if target == "current" else ""
    engine = None if refused else builder.build_serialized_network(network, config)
    found: dict[str, Any] = {
        "accepted": not refused,
        "refused": refused,
        "built": engine is not None,
    }
    found["build_words"] = list(words)
    words.clear()
    loaded = None
    if engine is not None:
        loaded = trt.Runtime(logger).deserialize_cuda_engine(engine)
    ready = loaded.create_execution_context() if loaded is not None else None
    return {**found, "loaded": loaded is not None, "ready": ready is not None, "run_words": words}


def refusal(config: Any, capability: Any) -> str:
    """Set a target in a config; give how that is refused, or "" where it is not."""
    try:
        config.num_compute_capabilities = 1
        answer = config.set_compute_capability(capability, 0)
    except Exception as error:  # noqa: BLE001 - whatever the bindings raise is their answer
        return f"raised {type(error).__name__}: {error}"
    return "" if answer else f"answered {answer}"


def for_this_gpu(_builder: Any, _network: Any, config: Any) -> None:
    """Be the ``configure=`` that asks TensorRT for this GPU, past what the package knows of it.

    Here, since a child process imports the module of such a function: that of a test would import
    ``tests.conftest``, which hides all GPUs.
    """
    import tensorrt_rtx as trt

    refused = refusal(config, trt.ComputeCapability.CURRENT)
    if refused:
        raise ValueError(refused)


def _listen(trt: Any, words: list[str]) -> Any:
    """Make a logger that keeps warnings and errors."""
    serious = trt.ILogger.Severity.WARNING

    class Logger(trt.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            if severity <= serious:
                words.append(f"{severity.name}: {message}")

    return Logger()


def infer(engine_file: str, input_file: str, output_file: str) -> dict[str, Any]:
    """Run an engine of one input and one output once; describe it."""
    import tensorrt_rtx as trt

    words: list[str] = []
    logger = _listen(trt, words)
    runtime = trt.Runtime(logger)
    with open(engine_file, "rb") as file:  # noqa: PTH123 - a plain name
        engine = runtime.deserialize_cuda_engine(file.read())
    context = engine.create_execution_context() if engine is not None else None
    if engine is None or context is None:
        return {"ran": False, "words": words}
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    (given,) = (n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
    (taken,) = (n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT)
    value = np.load(input_file)
    result = np.full(tuple(engine.get_tensor_shape(taken)), np.nan, np.float32)
    cuda = Cuda()
    addresses = {given: cuda.allocate(value.nbytes), taken: cuda.allocate(result.nbytes)}
    cuda.upload(addresses[given], value)
    cuda.upload(addresses[taken], result)  # so that what is not written is seen
    for name, address in addresses.items():
        assert context.set_tensor_address(name, address)
    ran = bool(context.execute_async_v3(cuda.make_stream()))
    cuda.synchronize()
    cuda.download(result, addresses[taken])
    np.save(output_file, result)
    return {
        "ran": ran,
        "words": words,
        "layers": engine.num_layers,
        "tensors": {
            name: [
                engine.get_tensor_mode(name).name,
                engine.get_tensor_dtype(name).name,
                list(engine.get_tensor_shape(name)),
            ]
            for name in names
        },
    }


# ---- memory -------------------------------------------------------------------------------------


def hold(what: str) -> None:
    """Hold a CUDA context, and all memory but so many bytes, until standard input ends."""
    cuda = Cuda()
    if what != "context":
        leave, piece = int(what), _FIRST_PIECE
        while piece >= _LAST_PIECE:
            spare = cuda.free_and_total()[0] - leave
            try:
                if piece <= spare:
                    cuda.allocate(piece)
                    continue
            except CudaError as error:
                if error.code != Cuda.OUT_OF_MEMORY:
                    raise
            piece //= 2
    free, total = cuda.free_and_total()
    print(json.dumps({"free": free, "total": total}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
