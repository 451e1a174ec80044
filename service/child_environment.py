"""What the processes that a server starts find in their environment, that they end with it, and what bounds them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import rfa

PR_SET_PDEATHSIG = 1
# For what numpy and the tokenizers call: more would fight over the cores of the other processes.
GPUS, NO_GPU = "CUDA_VISIBLE_DEVICES", "-1"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def child_environment(inherited: Mapping[str, str], gpu: int | None = None) -> dict[str, str]:
    """`inherited`, with one thread for each numeric library unless it says otherwise, and a path to this very `rfa`.

    Args:
        gpu: of those that `inherited` lets be seen, the only one that the process sees; None leaves that as it is. One
            that is not there is none.
    """
    modules = [str(Path(str(rfa.__file__)).parent.parent), os.environ.get("PYTHONPATH", "")]
    given = {**ONE_THREAD, **inherited, "PYTHONPATH": os.pathsep.join(filter(None, modules))}
    if gpu is not None:
        names = inherited[GPUS].split(",") if inherited.get(GPUS) else None
        given[GPUS] = str(gpu) if names is None else names[gpu].strip() if gpu < len(names) else NO_GPU
    return given


def end_with_parent() -> None:
    """Let the kernel, if it is Linux, kill this process when its parent dies, however that dies and whatever hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(*, seconds: float, memory_bytes: int, open_files: int) -> None:
    """Bound this process by the kernel from here on, where what it reads is a stranger's.

    Args:
        seconds: of the processor, beside what was used so far.
        memory_bytes: that it may hold in all, what is mapped from files aside.
        open_files: at most; it writes none.
    """
    end_with_parent()
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: math.ceil(used.ru_utime + used.ru_stime + seconds),
        resource.RLIMIT_DATA: memory_bytes,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(ValueError):  # a kernel without such a limit
            resource.setrlimit(kind, (most, most))


def held_data_bytes() -> int:
    """What RLIMIT_DATA counts of this process now; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return 1024 * int(line.split()[1])
    return 0
