"""Compile a kernel launch for an absent GPU and analyse its machine code.

The launch is recorded from the launcher itself (`rfa.model.kernel_launches`). Kernels are not compiled under
TRITON_INTERPRET.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.benchmarks.kernels.sass import main_loop, parse
from rfa.export.kernel_compile import compile_launch, resources, tool
from rfa.model.kernel_launches import THREADS_OF_A_WARP, KernelLaunch

# Loads and stores of local memory, which spilled registers use.
SPILLS = ("LDL", "STL")


@dataclass(frozen=True)
class KernelCase:
    """A launch, with scores, multiply-accumulates per score and depth of the products of an iteration."""

    launch: KernelLaunch
    block: tuple[int, ...]
    scores: int
    work_per_score: float
    depth: int = 0


def compile_case(case: KernelCase, architecture: int) -> dict[str, Any]:
    """Compile and analyse a launch, and return a row of the table."""
    launch = case.launch
    compiled = compile_launch(launch, architecture)
    warps = int(launch.options["num_warps"])
    registers, stack = resources(compiled.asm["cubin"], compiled.metadata.name)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        text = tool("nvdisasm", "-c", str(cubin))
    found = main_loop(text, case.work_per_score * case.scores / warps, case.depth)
    per_score = THREADS_OF_A_WARP * warps / case.scores / found.turns
    instructions, _ = parse(text)
    row = {
        "registers": registers,
        "stack_bytes": stack,
        "spills": sum(instruction.opcode.split(".")[0] in SPILLS for instruction in instructions),
        "loop_spills": found.loop.count(*SPILLS),
        "shared_bytes": int(compiled.metadata.shared),
        "instructions_per_score": round(per_score * found.loop.issued, 2),
        "mufu_per_score": round(per_score * found.loop.count("MUFU"), 2),
        "warps": warps,
        "stages": int(launch.options["num_stages"]),
        "block": list(case.block),
    }
    if not case.work_per_score:
        # Each turn waits for the previous one, so latency counts as well as work.
        row |= {
            "instructions": found.loop.issued,
            "barriers": found.loop.count("BAR"),
            "shuffles": found.loop.count("SHFL"),
        }
    return row
