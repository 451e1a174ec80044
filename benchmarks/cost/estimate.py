"""Time of a compiled kernel on a GPU: loops of its machine code, matched with those of its source, in the cost model.

Both list the loops with matrix products in the same order. Their number, and the work of an iteration if known, must
agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from rfa.benchmarks.cost.calls import Kernel, SourceLoop
from rfa.benchmarks.cost.gpus import Gpu
from rfa.benchmarks.cost.machine import Machine, MachineLoop
from rfa.benchmarks.cost.model import BARRIER_CLOCKS, PRODUCT_CLOCKS, Estimate, Turn, of_kernel, pipes


def turn_of(machine: Machine, found: MachineLoop, source: SourceLoop, gpu: Gpu) -> Turn:
    """Return what an iteration of a loop requires of an SM."""
    work = source.scores * source.work
    passes = 1.0
    if found.matrix_work:
        passes = found.matrix_work * machine.warps / work
        if abs(passes - round(passes)) > 0.01 or passes < 0.99:
            raise ValueError(f"{machine.kernel}, loop {source.name}: {passes:.3f} times the source's matrix work")
    rate = gpu.tensor * (gpu.mma_sync if any(name.startswith("HMMA") for name in found.opcodes) else 1.0)
    clocks = {name: value / passes for name, value in pipes(found.opcodes, machine.warps, gpu).items()}
    pipe = max(clocks, key=lambda name: clocks[name])
    others = max(value for name, value in clocks.items() if name != "mufu")
    barriers = sum(count for name, count in found.opcodes.items() if name.startswith("BAR")) / passes
    return Turn(
        tensor=2 * work / rate,
        vector=clocks[pipe],
        in_line=clocks["mufu"] + others,
        pipe=pipe,
        l2=source.copied / gpu.l2_bytes,
        fixed=BARRIER_CLOCKS * barriers + 2 * PRODUCT_CLOCKS,
        latency=gpu.l2_clocks,
        ahead=(found.ahead or 0.0) / passes if found.ahead is not None else 0.0,
    )


def estimate(machine: Machine, source: Kernel, gpu: Gpu) -> tuple[Estimate, list[Turn]]:
    """Return the seconds of a kernel, and its iterations."""
    if len(machine.loops) != len(source.loops):
        raise ValueError(f"{machine.kernel} has {len(machine.loops)} loops with products, not {len(source.loops)}")
    resident = gpu.resident(machine.registers, machine.shared_bytes, machine.warps)
    turns = [turn_of(machine, *pair, gpu) for pair in zip(machine.loops, source.loops, strict=True)]
    each = [turn.clocks(resident) for turn in turns]
    shares = [sum(own[i] > 0 for own in source.turns) / len(source.turns) for i in range(len(turns))]
    once = max(pipes(_outside(machine, shares), machine.warps, gpu).values())
    trips = source.trips + sum(shares)
    waiting = gpu.memory_clocks + (trips - 1) * gpu.l2_clocks
    beside = Estimate(once, resident * once + waiting, resident * once + waiting)
    found = of_kernel(source.turns, each, beside, resident, gpu.sms).times(1 / gpu.hertz)
    moved = source.moved / gpu.memory
    return Estimate(*(max(moved, own) for own in (found.bound, found.predicted, found.serial))), turns


def _outside(machine: Machine, shares: Sequence[float]) -> dict[str, float]:
    """Return instructions of a warp outside the loops with products, weighted by how often CTAs run them."""
    left: dict[str, float] = dict(machine.whole)
    for loop, share in zip(machine.loops, shares, strict=True):
        for name, count in loop.opcodes.items():
            left[name] -= count
        for name, count in loop.around.items():
            left[name] -= (1 - share) * count
    return left
