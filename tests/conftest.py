"""What all tests need."""

from __future__ import annotations

import os

#: Which GPUs were to be seen before; tests/gpu takes it back.
CUDA_BEFORE = os.environ.get("CUDA_VISIBLE_DEVICES")
# The tests say what happens on a machine without a GPU; tests/gpu is for one with.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Builds of the tests are no experience; a test of the history names a file of its own.
os.environ["TRT_WIDGET_HISTORY"] = "off"
# Nor is one answered by what an earlier one has built; a test of the engine cache names a folder.
os.environ["TRT_WIDGET_ENGINES"] = "off"

pytest_plugins = ("tests.stacks",)
