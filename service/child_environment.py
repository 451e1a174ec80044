"""What the processes that a server starts find in their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import rfa

# For what numpy and the tokenizers call: more would fight over the cores of the other processes.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited`, with one thread for each numeric library unless it says otherwise, and a path to this very `rfa`."""
    modules = [str(Path(str(rfa.__file__)).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**ONE_THREAD, **inherited, "PYTHONPATH": os.pathsep.join(filter(None, modules))}
