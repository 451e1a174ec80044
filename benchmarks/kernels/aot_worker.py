"""A process that compiles kernels and prints one row of JSON per line.

    python -m rfa.benchmarks.kernels.aot_worker MODULE NAME@ARCHITECTURE …

MODULE has `build(name, architecture) -> KernelCase`.
"""

from __future__ import annotations

import importlib
import json
import sys

from rfa.benchmarks.kernels.aot_compile import compile_case

if __name__ == "__main__":
    build = importlib.import_module(sys.argv[1]).build
    for entry in sys.argv[2:]:
        name, _, number = entry.rpartition("@")
        architecture = int(number)
        row = {"kernel": name, "architecture": architecture, **compile_case(build(name, architecture), architecture)}
        print(json.dumps(row), flush=True)
