"""``python -m trt_widget``: the command line."""

from __future__ import annotations

import sys

from trt_widget.cli import main

if __name__ == "__main__":
    sys.exit(main())
