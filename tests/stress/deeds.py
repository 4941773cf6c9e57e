"""What is done to a builder from inside: by ``configure=``, so in the child process itself."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Deed:
    """A ``configure=`` that lets something happen, at once or while TensorRT builds.

    Parameters
    ----------
    kind
        The name of a method.
    delay
        Seconds from now until it happens.
    number
        What the deed needs: an exit code, a size in bytes.
    descendant
        Whether to start a process first that inherits every descriptor and stays.
    """

    kind: str = "nothing"
    delay: float = 0.0
    number: int = 0
    descendant: bool = False

    def __call__(self, *_: Any) -> None:
        if self.descendant:
            subprocess.Popen(["sleep", "300"], close_fds=False)
        if self.kind == "nothing":
            return
        if self.delay == 0.0:
            getattr(self, self.kind)()
        else:
            threading.Thread(target=self._later, daemon=True).start()

    def _later(self) -> None:
        time.sleep(self.delay)
        getattr(self, self.kind)()

    def exit(self) -> None:
        """Leave without a word."""
        os._exit(self.number)

    def close_pipes(self) -> None:
        """Close the pipes to the kernel, but for standard error."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - changes meanwhile
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - as above
                if int(name) > 2 and target.startswith("pipe:"):
                    os.close(int(name))

    def close_everything(self) -> None:
        """Close every descriptor, also TensorRT's own."""
        os.closerange(0, 1024)

    def limit_memory(self) -> None:
        """Allow this much more address space than there is now."""
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a device
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + self.number, hard))

    def eat_memory(self) -> None:
        """Take all memory that a limit allows, in ever smaller pieces, and keep it."""
        self.limit_memory()
        kept = []
        size = 1 << 24
        while size > 1 << 12:
            try:
                kept.append(bytearray(size))
            except MemoryError:  # noqa: PERF203 - it is what is waited for
                size //= 2
        time.sleep(300)

    def limit_files(self) -> None:
        """Let no file be larger: writing more is an EFBIG, as on a disk with a quota."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.number, hard))
