"""The notebook's view of a build: :class:`BuildWidget`."""

from trt_widget.widget.build_widget import BuildWidget

__all__ = ["BuildWidget"]
