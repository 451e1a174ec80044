"""The fused kernels compiled without a GPU: registers, spills, shared memory, instructions per score.

Each shape of `aot_shapes.py` is compiled for five architectures. The committed table is a regression test: a change
that needs more of anything fails until the table is updated. On sm_100 instructions are those of the busiest warp.
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
# Architectures that launches are chosen for, and the bytes of shared memory that one of a kernel's programs may have
# there: "maximum amount of shared memory per thread block" of the CUDA C++ programming guide's table of capabilities.
SHARED_LIMITS = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
ARCHITECTURES = tuple(SHARED_LIMITS)
RESULT = RESULTS / "aot.json"
Row = dict[str, Any]

# What may not grow. One compiler gives the same figures every time.
MEASURED = (
    "registers",
    "stack_bytes",
    "spills",
    "loop_spills",
    "shared_bytes",
    "instructions_per_score",
    "mufu_per_score",
)
# Of a turn and warp, of the recurrences' kernels alone.
OF_A_TURN = ("instructions", "barriers", "shuffles")
# Bars of the forward pass at 64 reals without the precision output. Its instructions have none: twelve a score of the
# main loop would have forbidden a third stage, whose prefetch is worth more; `rfa bench cost` judges all loops instead.
BAR_KERNEL = "forward 64 bf16"
BARS = {"mufu_per_score": 2.5}
# Bars of the kernels of a scan that go from token to token: two thirds of what a turn once was, and no sum over warps.
SCAN_KERNELS = ("slot scan", "slot values")
SCAN_BARS = {"instructions": 359, "barriers": 2, "shuffles": 6}


class GrownError(ValueError):
    """A kernel takes more than the committed table says, or than there is."""


def shipped() -> list[str]:
    """Names of all shipped shapes."""
    return list(importlib.import_module(SHAPES).NAMES)


def compile_rows(
    names: Sequence[str],
    architectures: Sequence[int] = ARCHITECTURES,
    *,
    module: str = SHAPES,
    jobs: int | None = None,
    triton: Path | None = None,
) -> list[Row]:
    """A row per kernel and architecture, compiled by `jobs` processes (default: one per core).

    triton: a folder with another Triton than the environment's.
    """
    entries = [f"{name}@{architecture}" for name in names for architecture in architectures]
    rows = compiled_apart(["rfa.benchmarks.kernels.aot_worker", module], entries, jobs=jobs, triton=triton)
    return [rows[entry] for entry in entries]


def compiler(triton: Path | None) -> str:
    """Version of the Triton in a folder, or of the environment's."""
    if triton is None:
        return version("triton")
    for found in distributions(name="triton", path=[str(triton)]):
        return found.version
    raise ValueError(f"no Triton is installed in {triton}")


def document(rows: Sequence[Row], triton: Path | None = None) -> dict[str, Any]:
    """A result file. The compiler's version belongs to it: another one allots registers otherwise."""
    return {
        "commit": git_commit(),
        "triton": compiler(triton),
        "rows": list(rows),
        "bars": bars(rows),
    }


def bars(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What the kernels must keep to on every architecture, whatever the committed table says."""
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
    """What got worse against the committed document, a line each; only where the compiler is that of the document."""
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
    """What no launch may do, a line each: spill in the main loop (before and behind it that costs a few clocks, once),
    or ask for more shared memory than there is, which fails.
    """
    problems = []
    for row in rows:
        where, limit = f"{row['kernel']}, sm_{row['architecture']}", SHARED_LIMITS[row["architecture"]]
        if row["loop_spills"]:
            problems.append(f"{where}: {row['loop_spills']} spills in the main loop")
        if row["shared_bytes"] > limit:
            problems.append(f"{where}: {row['shared_bytes']} bytes of shared memory, a program has {limit} at most")
    return problems
