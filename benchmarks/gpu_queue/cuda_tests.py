"""The tests that need a GPU, a process a file, all at once: they compile on a core each.

Not pytest's own workers: with these the suite compiles first what only the tests of a processor need.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

CUDA_TESTS: Final = (
    "tests/service/test_torch_cuda.py",
    "tests/model/test_product_triton.py",
    "tests/model/test_draw_triton.py",
    "tests/training/test_series_training.py::test_a_gpu_trains_and_a_cpu_goes_on",
)
REHEARSED_TESTS: Final = ("tests/model/test_series_network.py",)
# Skipped tests are named: on a machine without a GPU all are.
OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "--durations=5", "-m", "", "-rs")


def run_file(file: str) -> subprocess.CompletedProcess[str]:
    """Its tests in a process; what pytest printed and its exit code."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, file]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def run_tests(files: Sequence[str]) -> int:
    """Run them, and print what each said; 0 if all passed."""
    codes = []
    with ThreadPoolExecutor(len(files)) as pool:
        for file, ended in zip(files, pool.map(run_file, files), strict=True):
            codes.append(ended.returncode)
            print(f"{file}: exit code {ended.returncode}\n{ended.stdout}", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(run_tests(REHEARSED_TESTS if "--rehearse" in sys.argv else CUDA_TESTS))
