"""What the processes that a server starts find in their environment, and that they end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import rfa

PR_SET_PDEATHSIG = 1
# For what numpy and the tokenizers call: more would fight over the cores of the other processes.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited`, with one thread for each numeric library unless it says otherwise, and a path to this very `rfa`."""
    modules = [str(Path(str(rfa.__file__)).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**ONE_THREAD, **inherited, "PYTHONPATH": os.pathsep.join(filter(None, modules))}


def end_with_parent() -> None:
    """Let the kernel, if it is Linux, kill this process when its parent dies, however that dies and whatever hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
