"""A decode step of the paper's model by the clock: bytes, launches in a CUDA graph, and each kernel's own chain.

One stream of the packaged config `paper` (6 layers, 19.4 M parameters), as `rfa bench decode --device cuda` times it:
the token in, the next token drawn, one graph. Its kernels wait for each other, and each takes

    gap + max(bytes / bandwidth, trips · latency + instructions of a warp · clocks an instruction)

trips: round trips that follow from one another, to L2, where what the kernel before wrote and the state still are; the
first of a product goes to memory, for its weights. A warp with little company issues an instruction every clock if none
waits for another (bound), every fourth if each waits for the one before (serial: the latency of arithmetic since
Volta), and here every second (assumed). Products are the library's, whose code is not here: as many instructions as it
takes to sum K numbers by warps, 32 a product of 16 numbers, and one more trip for the parts of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rfa.bench.cost_machine import Machine
from rfa.bench.cost_model import KINDS, Estimate
from rfa.bench.gpus import Gpu
from rfa.model.config import LanguageModelConfig
from rfa.training.language import LanguageRun, find_config

CONFIG = "paper"
CLOCKS_OF_AN_INSTRUCTION = Estimate(1.0, 2.0, 4.0)
BAR = 100.0
# Round trips one after the other, the store not counted: indices, then what they name, then what goes with it.
TRIPS = {"begin_kernel": 2, "slots_kernel": 2, "add_norm_kernel": 1, "gelu_kernel": 1, "outcome_kernel": 1}
PRODUCT_TRIPS = 2
# The draw of a greedy row: round trips, and bytes a token of the vocabulary, of its three kernels.
DRAWING = {"extent_kernel": (1, 4.0), "weigh_kernel": (2, 12.0), "draw_kernel": (3, 0.0)}
# Sixteen warps share four schedulers, as long as two instructions of a lone warp.
DRAW_COMPANY = 2.0


@dataclass(frozen=True)
class Launches:
    """`count` kernels that move so many bytes each, after `trips` round trips, the first to memory if they have
    weights, by a warp's so many instructions."""

    name: str
    count: int
    moved: float
    trips: int
    instructions: float
    has_weights: bool = False

    def seconds(self, gpu: Gpu) -> Estimate:
        """All of them, one behind the other."""
        waiting = (self.trips * gpu.l2_clocks + self.has_weights * (gpu.memory_clocks - gpu.l2_clocks)) / gpu.hertz
        chain = CLOCKS_OF_AN_INSTRUCTION.times(self.instructions / gpu.hertz)
        moving = self.moved / gpu.memory
        one = Estimate(
            gpu.gap + moving,
            gpu.gap + max(moving, waiting + chain.predicted),
            gpu.gap + moving + waiting + chain.serial,
        )
        return one.times(self.count)


def config() -> LanguageModelConfig:
    """Of the model."""
    return LanguageRun.from_file(find_config(CONFIG)).model


def launches_of(call: str, architecture: int) -> list[Any]:
    """Recorded launches of the step's own kernels."""
    import torch

    from rfa.bench.aot_shapes import build
    from rfa.model import decoder_triton as kernels
    from rfa.model.draw import Distribution, Drawn
    from rfa.model.draw_triton import draw_by_kernel
    from rfa.model.kernel_launches import recorded_launches
    from rfa.model.language import StepOutput

    model = config()
    d, heads, width = model.d_model, model.n_heads, 2 * model.head_dim
    x, norm = torch.zeros(1, d), torch.ones(d)
    with recorded_launches(architecture) as launches:
        kernels.begin(
            torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64),
            torch.zeros(model.vocab_size, d, dtype=torch.bfloat16), 1.0, norm,
            torch.zeros(heads, model.head_dim, dtype=torch.float64), 1e-6,
        )  # fmt: skip
        kernels.add_norm(x, x.clone(), norm, torch.bfloat16, 1e-6)
        kernels.gelu(torch.zeros(1, 4 * d), torch.bfloat16)
        kernels.concluded(kernels.Outcome.empty(1, model.n_layers, heads, width, x.device))
        one = torch.ones(1)
        output = StepOutput(torch.zeros(1, model.vocab_size), one, torch.zeros(1, heads, width))
        given = Distribution(one.double(), one.double(), one.long(), one, one)
        draw_by_kernel(output, one, given, Drawn.empty(1, x.device))
    return [build(f"slot step {model.n_slots}×{width}", architecture).launch, *launches]


def step(machines: Sequence[Machine]) -> list[Launches]:
    """What a step launches, in the order of the source but for repetitions."""
    model = config()
    d, layers, reals = model.d_model, model.n_layers, 2 * model.n_heads * model.head_dim
    joint = 3 * reals + 2 * model.n_heads * model.n_slots
    state = 2 * 4 * model.n_heads * model.n_slots * (4 * model.head_dim + 1)
    products = {
        "joint product": (layers, joint, d), "output product": (layers, d, reals), "up product": (layers, 4 * d, d),
        "down product": (layers, d, 4 * d), "vocabulary product": (1, model.vocab_size, d),
    }  # fmt: skip
    counts = {"begin_kernel": 1, "slots_kernel": layers, "add_norm_kernel": 2 * layers, "gelu_kernel": layers,
              "outcome_kernel": 1}  # fmt: skip
    moved = {"slots_kernel": state}
    issued = {machine.kernel: sum(machine.whole.values()) for machine in machines}
    own = [
        Launches(name, count, moved.get(name, 4 * 4 * d), TRIPS[name], issued[name]) for name, count in counts.items()
    ]
    library = [
        Launches(name, count, 2.0 * n * k, PRODUCT_TRIPS, 32.0 * k / 16, True)
        for name, (count, n, k) in products.items()
    ]
    drawing = [_draw(machine, model.vocab_size) for machine in machines if machine.kernel in DRAWING]
    return [*own, *library, *drawing]


def _draw(machine: Machine, vocabulary: int) -> Launches:
    """A kernel of the draw of a row."""
    trips, moved = DRAWING[machine.kernel]
    # A greedy row goes through the last of the loops alone, for one block: those before it search.
    instructions = sum(machine.whole.values()) - sum(sum(loop.values()) for loop in machine.inner[:-1])
    return Launches(machine.kernel, 1, moved * vocabulary, trips, DRAW_COMPANY * instructions)


def step_row(machines: Sequence[Machine], gpu: Gpu) -> dict[str, Any]:
    """A step on a part."""
    found = step(machines)
    total = Estimate(0, 0, 0)
    for one in found:
        total += one.seconds(gpu)
    launches = sum(one.count for one in found)
    return {
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "launches": launches,
        "microseconds": {name: round(1e6 * getattr(total, name), 1) for name in KINDS},
        "gaps_us": round(1e6 * launches * gpu.gap, 1),
        "bytes_us": round(1e6 * sum(one.count * one.moved for one in found) / gpu.memory, 1),
        "kernels": {one.name: round(1e6 * one.seconds(gpu).predicted, 1) for one in found},
    }
