"""A CUDA driver of our own, compiled: it notes who starts CUDA in which process, and does nothing.

It is no stand-in for a GPU: by default ``cuInit`` answers that there is none. What it shows is how
often and when CUDA would be started, which a machine without a driver cannot show.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + 1e-9 * at.tv_nsec;
}

int cuInit(unsigned flags) {
    Dl_info caller;
    int known = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname;
    const char *name = known ? strrchr(caller.dli_fname, '/') : 0;
    double begun = now();
    usleep(atoi(getenv("CUINIT_MS")) * 1000);
    FILE *file = fopen(getenv("CUINIT_NOTED"), "a");
    fprintf(file, "%d %s %.6f %.6f\n", getpid(), name ? name + 1 : "?", begun, now());
    fclose(file);
    return atoi(getenv("CUINIT_ANSWER"));
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, "compiled", size);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 9; return 0; }
"""
#: CUDA_ERROR_NO_DEVICE, and that all is well: then there is one device, called "compiled".
NO_DEVICE, ONE_DEVICE = 100, 0


class Started(NamedTuple):
    """One call of ``cuInit``; the times are those of ``time.perf_counter()`` on Linux."""

    pid: int
    caller: str
    begun: float
    ended: float


class Driver:
    """The compiled driver; programs that are run with :attr:`environ` find it."""

    def __init__(self, folder: Path, *, answer: int = NO_DEVICE, milliseconds: int = 0) -> None:
        self._noted = folder / "noted"
        source = folder / "libcuda.c"
        source.write_text(_SOURCE)
        library = folder / "libcuda.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "CUINIT_NOTED": str(self._noted),
            "CUINIT_ANSWER": str(answer),
            "CUINIT_MS": str(milliseconds),
        }

    def started(self) -> list[Started]:
        """Give all calls of ``cuInit`` so far."""
        if not self._noted.exists():
            return []
        lines = [line.split() for line in self._noted.read_text().splitlines()]
        return [Started(int(pid), who, float(a), float(b)) for pid, who, a, b in lines]
