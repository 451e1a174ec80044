"""A decode step of the paper's model by the clock: bytes, launches in a CUDA graph, and each kernel's own chain.

One stream of the packaged config `paper` (6 layers, 19.4 M parameters), as `rfa bench decode --device cuda` times it:
the token in, the next token drawn, one graph. Its kernels, recorded from the step itself, wait for each other, and each
takes

    gap + max(bytes / bandwidth, rounds · trips · latency + bytes of an SM / its share of L2's + chain)
    chain = instructions of a warp · clocks an instruction · max(rounds, warps of an SM / 8)

trips: round trips that follow from one another, to L2, where what the kernel before wrote and the state still are; the
first of a product goes to memory, for its weights, which it asks for before all else. rounds: programs of an SM one
behind the other, where its registers and shared memory do not hold all at a time. A warp with little company issues an
instruction every clock if none waits for another (bound), every fourth if each waits for the one before (serial: the
latency of arithmetic since Volta), and here every second (assumed): eight warps on an SM are little company, two a
scheduler. An SM gets its bytes at the rate that it has when all of them ask.

Of the draw, the instructions are those of a row at a temperature: a greedy one goes round the quotients, half of what
`weigh_kernel` has and an eighth of `draw_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rfa.benchmarks.cost.gpus import Gpu
from rfa.benchmarks.cost.machine import Machine
from rfa.benchmarks.cost.model import KINDS, Estimate
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language import LanguageRun, find_config

CONFIG = "paper"
CLOCKS_OF_AN_INSTRUCTION = Estimate(1.0, 2.0, 4.0)
LITTLE_COMPANY = 8  # warps
BAR = 100.0
# Round trips one after the other, the store not counted: indices, then what they name, then what goes with it. A
# product asks for its rows beside its weights; what the logits' first program tells of a row is asked for behind them.
TRIPS = {
    "begin_kernel": 2, "slots_kernel": 2, "product_kernel": 1, "logits_kernel": 1, "extent_kernel": 1,
    "weigh_kernel": 2, "draw_kernel": 3,
}  # fmt: skip
WITH_WEIGHTS = ("product_kernel", "logits_kernel")
# Of a row that is not filtered: these read its logits, a block a program, the last one block and what they leave of
# each: two extents of 4 bytes and three sums of 8.
BY_BLOCK = ("extent_kernel", "weigh_kernel")
LEFT_OF_A_BLOCK = 2 * 4.0 + 3 * 8.0


@dataclass(frozen=True)
class Launches:
    """`count` kernels of so many programs of `warps`.

    moved: bytes of a kernel, read and written; read: bytes that a program waits for, after `trips` round trips, the
    first to memory if they have weights; instructions: of a warp.
    """

    name: str
    count: int
    moved: float
    trips: int
    instructions: float
    has_weights: bool = False
    programs: int = 1
    read: float = 0.0
    warps: int = 1
    registers: int = 32
    shared_bytes: int = 0

    def seconds(self, gpu: Gpu) -> Estimate:
        """All of them, one behind the other."""
        share = -(-self.programs // gpu.sms)
        rounds = -(-share // gpu.resident(self.registers, self.shared_bytes, self.warps))
        latency = self.trips * gpu.l2_clocks + self.has_weights * (gpu.memory_clocks - gpu.l2_clocks)
        waiting = (rounds * latency + share * self.read / gpu.l2_bytes) / gpu.hertz
        turns = max(rounds, share * self.warps / LITTLE_COMPANY)
        chain = CLOCKS_OF_AN_INSTRUCTION.times(turns * self.instructions / gpu.hertz)
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
    """Recorded launches of a step, each kernel once."""
    import torch

    from rfa.export.served_passes import ServedPasses, initial_slots
    from rfa.model.kernel_launches import recorded_launches
    from rfa.model.language import LanguageModel

    model = LanguageModel(config())
    with recorded_launches(architecture) as launches, torch.no_grad():
        passes = ServedPasses(model, torch.bfloat16)
        output, _ = passes.step([0], [1], passes.silence(1), initial_slots(model, 1))
        passes.draw(output, False)
    return list({(launch.call.name, repr(launch.constexprs)): launch for launch in launches}.values())


def step(machines: Sequence[Machine]) -> list[Launches]:
    """What a step launches, in the order of the source but for repetitions."""
    model = config()
    return [_launches(machine, model) for machine in machines]


def _launches(machine: Machine, model: LanguageModelConfig) -> Launches:
    constants, name = machine.constants, machine.kernel
    count, programs, issued = 1, 1, float(sum(machine.whole.values()))
    moved = read = 4.0 * 4 * model.d_model
    if name in WITH_WEIGHTS:
        count = model.n_layers if name == "product_kernel" else 1
        programs = -(-constants["COLUMNS"] // constants["BN"])
        moved = 2.0 * constants["COLUMNS"] * constants["FACTORS"]
        # The row, and the norm's weights or what is there before the sum.
        read = constants["FACTORS"] * (2.0 * constants["BN"] + 8)
    elif name == "slots_kernel":
        count = 1 if constants["IS_LAST"] else model.n_layers - 1
        programs, read = model.n_heads, 4.0 * model.n_slots * (4 * model.head_dim + 1)
        moved = 2 * programs * read
    elif name in BY_BLOCK:
        moved = 4.0 * model.vocab_size
        programs, read = -(-model.vocab_size // constants["BLOCK"]), 4.0 * constants["BLOCK"]
    elif name == "draw_kernel":
        moved = read = 4.0 * constants["BLOCK"] + LEFT_OF_A_BLOCK * -(-model.vocab_size // constants["BLOCK"])
    told = f"product {constants['FACTORS']}×{constants['COLUMNS']}" if name == "product_kernel" else name
    return Launches(
        told, count, moved, TRIPS[name], issued, name in WITH_WEIGHTS, programs, read,
        machine.warps, machine.registers, machine.shared_bytes,
    )  # fmt: skip


def step_row(machines: Sequence[Machine], gpu: Gpu) -> dict[str, Any]:
    """A step on a part."""
    found = step(machines)
    total, kernels = Estimate(0, 0, 0), dict.fromkeys((one.name for one in found), 0.0)
    for one in found:
        total += one.seconds(gpu)
        kernels[one.name] += 1e6 * one.seconds(gpu).predicted
    launches = sum(one.count for one in found)
    return {
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "launches": launches,
        "microseconds": {name: round(1e6 * getattr(total, name), 1) for name in KINDS},
        "gaps_us": round(1e6 * launches * gpu.gap, 1),
        "bytes_us": round(1e6 * sum(one.count * one.moved for one in found) / gpu.memory, 1),
        "kernels": {name: round(own, 1) for name, own in kernels.items()},
    }
