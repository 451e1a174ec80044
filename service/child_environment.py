"""Environment variables and resource limits of subprocesses."""

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
GPUS, NO_GPU = "CUDA_VISIBLE_DEVICES", "-1"
# Numeric libraries and tokenizers use one thread. More threads would compete with the other processes.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def child_environment(inherited: Mapping[str, str], gpu: int | None = None) -> dict[str, str]:
    """Return the environment variables of a subprocess.

    PYTHONPATH is set so that the subprocess imports this `rfa`. Numeric libraries use one thread, unless `inherited`
    sets another number.

    Args:
        inherited: Variables of the parent to pass on.
        gpu: Index of the only GPU to make visible, among the GPUs that `inherited` makes visible. If it is None, the
            same GPUs are visible.
    """
    modules = [str(Path(str(rfa.__file__)).parent.parent), os.environ.get("PYTHONPATH", "")]
    given = {**ONE_THREAD, **inherited, "PYTHONPATH": os.pathsep.join(filter(None, modules))}
    if gpu is not None:
        names = inherited[GPUS].split(",") if inherited.get(GPUS) else None
        given[GPUS] = str(gpu) if names is None else names[gpu].strip() if gpu < len(names) else NO_GPU
    return given


def end_with_parent() -> None:
    """Make the operating system kill this process when its parent exits. This has an effect only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_resources(*, seconds: float, memory_bytes: int, open_files: int) -> None:
    """Limit the resources of this process, before it reads untrusted data. Afterwards, the process cannot write files.

    Args:
        seconds: Limit on the processor time after this call, in seconds.
        memory_bytes: Limit on the total memory without mapped files, in bytes.
        open_files: Maximum number of open files.
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
        with contextlib.suppress(ValueError):  # the kernel does not support this limit
            resource.setrlimit(kind, (most, most))


def data_bytes() -> int:
    """Return the memory of this process that RLIMIT_DATA limits, in bytes. Return 0 if the system does not report
    it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return 1024 * int(line.split()[1])
    return 0
