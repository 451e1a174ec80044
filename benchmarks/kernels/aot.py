"""The fused kernels compiled without a GPU: registers, spills, shared memory, instructions per score.

Each shape of `aot_shapes.py` is compiled for five architectures. The committed table is a regression test: a change
that needs more of any resource fails until the table is updated. On sm_100 instructions are those of the busiest warp.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

from rfa.benchmarks.kernels.compile_apart import compiled_apart
from rfa.measured import RESULTS, git_commit

SHAPES = "rfa.benchmarks.kernels.aot_shapes"
# Architectures with chosen launch sizes, and the largest shared memory of a program in bytes: "maximum amount of shared
# memory per thread block" in the table of capabilities of the CUDA C++ programming guide.
SHARED_LIMITS = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
ARCHITECTURES = tuple(SHARED_LIMITS)
RESULT = RESULTS / "aot.json"
Row = dict[str, Any]

# Figures that may not grow. They are deterministic for one compiler.
MEASURED = (
    "registers",
    "stack_bytes",
    "spills",
    "loop_spills",
    "shared_bytes",
    "instructions_per_score",
    "mufu_per_score",
)
# Figures per turn and warp, of recurrence kernels only.
OF_A_TURN = ("instructions", "barriers", "shuffles")
# Requirements of the forward pass at 64 reals without the precision output. Instructions have no requirement: twelve a
# score would exclude a third stage, whose prefetch gains more. `rfa bench cost` estimates all loops instead.
BAR_KERNEL = "forward 64 bf16"
BARS = {"mufu_per_score": 2.5}
# Requirements of scan kernels that go from token to token: two thirds of the first version's, and no sum over warps.
SCAN_KERNELS = ("slot scan", "slot values")
SCAN_BARS = {"instructions": 359, "barriers": 2, "shuffles": 6}


class GrownError(ValueError):
    """A kernel uses more than the committed table allows, or than the hardware has."""


def shipped() -> list[str]:
    """Return the names of all shipped shapes."""
    return list(importlib.import_module(SHAPES).NAMES)


def compile_rows(
    names: Sequence[str],
    architectures: Sequence[int] = ARCHITECTURES,
    *,
    module: str = SHAPES,
    jobs: int | None = None,
    triton: Path | None = None,
) -> list[Row]:
    """Compile with `jobs` processes (default: one per core), and return a row per kernel and architecture.

    triton: a folder with another Triton than that of the environment.
    """
    entries = [f"{name}@{architecture}" for name in names for architecture in architectures]
    rows = compiled_apart(["rfa.benchmarks.kernels.aot_worker", module], entries, jobs=jobs, triton=triton)
    return [rows[entry] for entry in entries]


def compiler(triton: Path | None) -> str:
    """Return the version of the Triton in a folder or in the environment."""
    if triton is None:
        return version("triton")
    for found in distributions(name="triton", path=[str(triton)]):
        return found.version
    raise ValueError(f"no Triton is installed in {triton}")


def document(rows: Sequence[Row], triton: Path | None = None) -> dict[str, Any]:
    """Return the result document with the compiler's version, because versions allocate registers differently."""
    return {
        "commit": git_commit(),
        "triton": compiler(triton),
        "rows": list(rows),
        "bars": bars(rows),
    }


def bars(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the requirements on the kernels for every architecture, independent of the committed table."""
    verdicts = [
        {
            "name": "spills in the main loops at the shipped shapes",
            "bar": 0,
            "actual": sum(row["loop_spills"] for row in rows),
        }
    ]
    for architecture in dict.fromkeys(row["architecture"] for row in rows):
        most = max(row["shared_bytes"] for row in rows if row["architecture"] == architecture)
        name = f"KiB of shared memory of a program, sm_{architecture}"
        verdicts.append({"name": name, "bar": SHARED_LIMITS[architecture] / 1024, "actual": most / 1024})
    for row in rows:
        if row["kernel"] == BAR_KERNEL:
            verdicts += [
                {"name": f"{name} of {BAR_KERNEL}, sm_{row['architecture']}", "bar": bar, "actual": row[name]}
                for name, bar in BARS.items()
            ]
    if scans := [row for row in rows if row["kernel"].rsplit(" ", 1)[0] in SCAN_KERNELS]:
        verdicts += [
            {
                "name": f"{name} of a turn and warp of the slots' scan",
                "bar": bar,
                "actual": max(row[name] for row in scans),
            }
            for name, bar in SCAN_BARS.items()
        ]
    return [{**verdict, "met": verdict["actual"] <= verdict["bar"]} for verdict in verdicts]


def grown(rows: Sequence[Row], committed: Mapping[str, Any], triton: Path | None = None) -> list[str]:
    """Return a line for each figure that grew against the committed document, if that is of the same compiler."""
    before = {(row["kernel"], row["architecture"]): row for row in committed["rows"]}
    problems = []
    for row in rows:
        where = f"{row['kernel']}, sm_{row['architecture']}"
        committed_row = before.get((row["kernel"], row["architecture"]))
        if committed_row is None:
            problems.append(f"{where}: not in the committed table")
        elif committed["triton"] == compiler(triton):
            worse = [
                name for name in (*MEASURED, *OF_A_TURN) if name in committed_row and row[name] > committed_row[name]
            ]
            problems += [f"{where}: {name} grew from {committed_row[name]} to {row[name]}" for name in worse]
    return problems


def refused(rows: Sequence[Row]) -> list[str]:
    """Return a line for each invalid launch: spills in the main loop, or more shared memory than the hardware has.

    Spills outside the main loop cost a few cycles once and are allowed.
    """
    problems = []
    for row in rows:
        where, limit = f"{row['kernel']}, sm_{row['architecture']}", SHARED_LIMITS[row["architecture"]]
        if row["loop_spills"]:
            problems.append(f"{where}: {row['loop_spills']} spills in the main loop")
        if row["shared_bytes"] > limit:
            problems.append(f"{where}: {row['shared_bytes']} bytes of shared memory, a program has {limit} at most")
    return problems
