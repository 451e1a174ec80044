"""Predicted speed of the fused kernels on GPUs, from their machine code: `rfa bench cost`.

FlashAttention-2's TFLOP/s (causal halved) are read from the charts in github.com/Dao-AILab/flash-attention at 16,384
tokens. The value for backward at 512 is the difference of the other two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rfa.benchmarks.cost import check as cost_check
from rfa.benchmarks.cost.calls import HIDDEN, LENGTHS, PASSES, TOKENS, WIDTHS, Shape, kernel_of
from rfa.benchmarks.cost.estimate import estimate
from rfa.benchmarks.cost.gpus import ARCHITECTURES, GPUS, Gpu
from rfa.benchmarks.cost.machine import Call, Machine, compile_calls
from rfa.benchmarks.cost.model import KINDS, Estimate, Turn
from rfa.measured import RESULTS, git_commit, write_result

RESULT = RESULTS / "cost.json"
Row = dict[str, Any]
# (GPU, pass) → {(width, tokens): TFLOP/s}
FLASH: dict[tuple[str, str], dict[tuple[int, int], float]] = {
    ("H100", "forward"): {(64, 512): 180, (64, 16_384): 299, (128, 512): 191, (128, 16_384): 335},
    ("H100", "backward"): {(64, 512): 130, (64, 16_384): 290, (128, 512): 154, (128, 16_384): 322},
}
# Largest allowed time relative to FlashAttention-2 on an H100 at 16,384 tokens.
BARS = {("forward", 64): 1.0, ("forward", 128): 0.8, ("backward", 64): 1.3, ("backward", 128): 1.3}
BAR_GPU = "H100"


def row(pass_name: str, shape: Shape, call: Call, gpu: Gpu) -> Row:
    """Return the row of a call: its kernels in sequence with the gap before each. Failed kernels are omitted."""
    total, parts, main = Estimate(0, 0, 0), {}, None
    for machine in call.kernels:
        source = kernel_of(machine.kernel, dict(machine.constants), shape, pass_name)
        found, turns = estimate(machine, source, gpu)
        total += found + Estimate(0, gpu.gap, gpu.gap)
        parts[machine.kernel.strip("_")] = round(found.predicted * 1e6, 1)
        if turns and (main is None or found.predicted > main[0]):
            counts = [sum(own[i] for own in source.turns) for i in range(len(turns))]
            busiest = max(range(len(turns)), key=lambda i: counts[i] * turns[i].clocks(1).predicted)
            main = (found.predicted, machine, source.loops[busiest].name, turns[busiest])
    assert main is not None
    _, machine, loop, turn = main
    return {
        "pass": pass_name,
        "width": shape.width,
        "length": shape.length,
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "launch": [_launch(m) for m in call.kernels if m.loops],
        "microseconds": _three(total.times(1e6), 1),
        "tflops": _three(Estimate(*(shape.flop(pass_name) / own / 1e12 for own in _tuple(total))), 0),
        **_beside_flash(pass_name, shape, total, gpu),
        "kernels": parts,
        "refused": list(call.refused),
        "bound_by": _bound_by(turn, gpu.resident(machine.registers, machine.shared_bytes, machine.warps)),
        "loop": f"{machine.kernel.strip('_')}: {loop}",
        "turn": {
            "tensor": round(turn.tensor), "vector": round(turn.vector), "pipe": turn.pipe, "l2": round(turn.l2),
            "wait": round(turn.wait), "ahead": turn.ahead,
        },
    }  # fmt: skip


def _tuple(found: Estimate) -> tuple[float, float, float]:
    return found.bound, found.predicted, found.serial


def _three(found: Estimate, digits: int) -> dict[str, float]:
    return {name: round(getattr(found, name), digits) for name in KINDS}


def _launch(machine: Machine) -> list[int]:
    return [machine.constants["BM"], machine.constants["BN"], machine.warps, machine.stages]


def _beside_flash(pass_name: str, shape: Shape, found: Estimate, gpu: Gpu) -> Row:
    flash = FLASH.get((gpu.name, pass_name), {}).get((shape.width, shape.length))
    if flash is None:
        return {"over_flash": None}
    seconds = shape.flop(pass_name) / flash / 1e12
    return {"over_flash": _three(found.times(1 / seconds), 2)}


def _bound_by(turn: Turn, resident: int) -> str:
    """Return the busiest unit, or waiting where the SM stalls for longer."""
    idle = turn.wait - (resident - 1) * turn.busy
    return "waiting" if idle > turn.clocks(resident).bound else turn.bound_by


def rows(calls: Mapping[str, Call]) -> list[Row]:
    """Return rows of every pass, width and length on every GPU with a compiled architecture."""
    found = []
    for gpu in GPUS.values():
        for pass_name in PASSES:
            for width in WIDTHS:
                entry = f"{pass_name} {width}@{gpu.architecture}"
                if entry in calls:
                    found += [row(pass_name, Shape(width, length), calls[entry], gpu) for length in LENGTHS]
    return found


def entries() -> list[str]:
    """Return all calls on all architectures."""
    calls = [f"{name} {width}" for name in PASSES for width in WIDTHS]
    return [f"{call}@{number}" for number in ARCHITECTURES for call in calls]


def document(calls: Mapping[str, Call]) -> Row:
    """Return the document."""
    found = rows(calls)
    return {
        "commit": git_commit(),
        "triton": version("triton"),
        "plan": {"tokens": TOKENS, "hidden": HIDDEN, "lengths": list(LENGTHS), "dtype": "bfloat16"},
        "gpus": [asdict(gpu) for gpu in GPUS.values()],
        "rows": found,
        "check": cost_check.checked(calls),
        "bars": bars(found),
    }


def bars(found: Sequence[Row]) -> list[Row]:
    """Return the targets with the predictions. `least` and `most` are the bounds of the model."""
    verdicts = []
    for row_ in found:
        bar = BARS.get((row_["pass"], row_["width"]))
        if bar is not None and (row_["gpu"], row_["length"]) == (BAR_GPU, max(LENGTHS)):
            over = row_["over_flash"]
            name = f"{row_['pass']}, {row_['width']} reals, over FlashAttention-2"
            verdicts.append({"name": name, "bar": bar, "actual": over["predicted"], "least": over["bound"],
                             "most": over["serial"]})  # fmt: skip
    return [{**verdict, "met": verdict["actual"] <= verdict["bar"]} for verdict in verdicts]


def write_cost(path: Path, architectures: Sequence[int] | None = None) -> Row:
    """Compile all calls, model them, and write the document."""
    every = [*entries(), *cost_check.entries()]
    chosen = [entry for entry in every if architectures is None or int(entry.rpartition("@")[2]) in architectures]
    found = document(compile_calls(chosen))
    write_result(path, found)
    return found
