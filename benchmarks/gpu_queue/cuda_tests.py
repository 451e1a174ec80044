"""Run the tests that need a GPU, with one process per file, all at once, so that their kernels compile in parallel.

pytest's workers would first compile kernels that only CPU tests use.
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
# Report skipped tests: without a GPU all of them are skipped.
OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "--durations=5", "-m", "", "-rs")


def run_file(file: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a file in a process, and return the output of pytest and its exit code."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, file]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def run_tests(files: Sequence[str]) -> int:
    """Run the tests and print the output of each file. Returns 0 if all passed."""
    codes = []
    with ThreadPoolExecutor(len(files)) as pool:
        for file, ended in zip(files, pool.map(run_file, files), strict=True):
            codes.append(ended.returncode)
            print(f"{file}: exit code {ended.returncode}\n{ended.stdout}", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(run_tests(REHEARSED_TESTS if "--rehearse" in sys.argv else CUDA_TESTS))
