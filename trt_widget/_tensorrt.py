"""What the TensorRT packages are to the type checker; at run time there is nothing here.

The types of TensorRT's objects are those of full TensorRT 10, which has stubs: they are imported
from ``tensorrt``, under ``TYPE_CHECKING`` only. TensorRT for RTX and TensorRT 11 have the same
classes, without stubs; where they differ in what this package uses, it says so at the place. To
whoever has no stubs all of it is ``Any``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tensorrt

    class FullTensorRT(Protocol):
        """What this package uses of a TensorRT package; the check below is on the stubs."""

        Builder: type[tensorrt.Builder]
        BuilderFlag: type[tensorrt.BuilderFlag]
        IBuilderConfig: type[tensorrt.IBuilderConfig]
        ILogger: type[tensorrt.ILogger]
        INetworkDefinition: type[tensorrt.INetworkDefinition]
        IProgressMonitor: type[tensorrt.IProgressMonitor]
        MemoryPoolType: type[tensorrt.MemoryPoolType]
        NetworkDefinitionCreationFlag: type[tensorrt.NetworkDefinitionCreationFlag]
        OnnxParser: type[tensorrt.OnnxParser]
        Runtime: type[tensorrt.Runtime]

        def get_plugin_registry(self) -> tensorrt.IPluginRegistry:
            """Give the registry of plugins; a package built without plugins may lack it."""

        def init_libnvinfer_plugins(self, logger: tensorrt.ILogger | None, namespace: str) -> bool:
            """Register TensorRT's own plugins; a package built without them lacks it."""

    _: FullTensorRT = tensorrt

    class TensorRT(FullTensorRT, tensorrt.ISymExpr):
        """Either package: what only one of them has is asked for before it is used.

        No TensorRT module is an ``ISymExpr``, a class that has nothing of its own. Without the
        stubs it is ``Any``, and so everything that somebody asks of the module is, too.
        """

        #: Of TensorRT for RTX only, which has no stubs; ``target=`` is refused for the other one.
        ComputeCapability: Any
