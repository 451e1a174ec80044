"""A launch of a kernel, recorded without a GPU, compiled for one, and what its machine code takes.

The launch is recorded from the launcher itself: its arguments, block sizes, warps and stages are the shipped ones, and
so is what the compiler specialises on (pointers and numbers divisible by 16, ones). Nothing of this works under
TRITON_INTERPRET, where kernels are never compiled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rfa.bench.sass import main_loop, parse

THREADS_OF_A_WARP = 32
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
# Loads and stores of local memory: what spilled registers turn into.
SPILLS = ("LDL", "STL")


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel as one launch uses it.

    signature: parameter → type ("*bf16", "i32", "constexpr"); constexprs and attributes by position in the signature;
    options: num_warps, num_stages and the rest.
    """

    function: Any
    signature: Mapping[str, str]
    constexprs: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class KernelCase:
    """A launch, and what one turn of its main loop stands for.

    scores: pairs of tokens in a block (block_m · block_n), or what the kernel is counted in instead. work_per_score:
    multiply-accumulates by matrix instructions for each; 0 for a kernel without matrix products.
    """

    launch: KernelLaunch
    block: tuple[int, ...]
    scores: int
    work_per_score: float


@contextmanager
def recorded_launches(architecture: int) -> Iterator[list[KernelLaunch]]:
    """Within it, kernels are not run: what they were launched with goes into the list.

    Args:
        architecture: compute capability as one number: 80, 90.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    backend = make_backend(GPUTarget("cuda", architecture, THREADS_OF_A_WARP))
    launches: list[KernelLaunch] = []

    def record(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        # What JITFunction.run does before it compiles.
        bind = create_function_from_signature(function.signature, function.params, backend)
        bound, specialization, options = bind(*args, **kwargs)
        options, signature, constexprs, attributes = function._pack_args(
            backend, kwargs, bound, specialization, options
        )
        launches.append(KernelLaunch(function, signature, constexprs, attributes, dict(options.__dict__)))

    with mock.patch.object(JITFunction, "run", record):
        yield launches


def compile_case(case: KernelCase, architecture: int) -> dict[str, Any]:
    """Compile, take apart, measure: a row of the table.

    Raises:
        ValueError: the machine code has no loop that does a turn's work.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch = case.launch
    source = ASTSource(
        fn=launch.function,
        signature=dict(launch.signature),
        constexprs=dict(launch.constexprs),
        attrs=dict(launch.attributes),
    )
    target = GPUTarget("cuda", architecture, THREADS_OF_A_WARP)
    compiled = triton.compile(source, target=target, options=dict(launch.options))
    warps = int(launch.options["num_warps"])
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        registers, stack = _resources(_tool("cuobjdump", "-res-usage", str(cubin)), compiled.metadata.name)
        text = _tool("nvdisasm", "-c", str(cubin))
    found = main_loop(text, case.work_per_score * case.scores / warps)
    per_score = THREADS_OF_A_WARP * warps / case.scores / found.turns
    instructions, _ = parse(text)
    return {
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


def _resources(report: str, kernel: str) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, of the function `kernel`."""
    _, _, after = report.partition(f"Function {kernel}:")
    found = RESOURCES.search(after)
    if found is None:
        raise ValueError(f"cuobjdump reports no resources of {kernel}: {report[:200]!r}")
    return int(found[1]), int(found[2])


def _tool(name: str, *arguments: str) -> str:
    """Output of a binary tool that comes with Triton."""
    from triton import knobs

    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
