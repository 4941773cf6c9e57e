"""What all tests need."""

from __future__ import annotations

import os

# The tests say what happens on a machine without a GPU; tests/gpu is for one with.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
