"""Launches of attention whose cost is modelled, and the iterations of each CTA through each loop.

Causal, 16,384 tokens and 2,048 dimensions as in `rfa bench kernel`: B = 16,384 / N, H = 2,048 / W. A quarter of the
heads does not decay. The last loop of the forward pass, a fallback, does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

TOKENS, HIDDEN = 16_384, 2048
LENGTHS = (512, 16_384)
WIDTHS = (64, 128)
PASSES = ("forward", "backward")
# Multiples of the forward pass's matrix work.
WORK = {"forward": 1.0, "backward": 2.5}
# Distances whose table the kernel rejects: 1 for 45 of 48 heads of the benchmark's dynamics, else 0.
EXACT_DISTANCES = 1
ZERO_DECAY = 0.25
TERMS = 16  # of the product that gives log V
MARKS_OF_A_TURN = 128


class Shape(NamedTuple):
    """One call: B sequences of N tokens, H heads of width W."""

    width: int
    length: int

    @property
    def batch(self) -> int:
        return TOKENS // self.length

    @property
    def heads(self) -> int:
        return HIDDEN // self.width

    def flop(self, pass_name: str) -> float:
        """Return the matrix work, two products of half the pairs: 4 B H N² W / 2, times the factor of the pass."""
        return WORK[pass_name] * 2 * self.batch * self.heads * self.length**2 * self.width


@dataclass(frozen=True)
class SourceLoop:
    """A loop of the source: scores per iteration, multiply-accumulates per score, bytes from L2 per iteration."""

    name: str
    scores: int
    work: int
    copied: float


@dataclass(frozen=True)
class Kernel:
    """A kernel as its source describes it.

    Args:
        loops: Loops with products, in order.
        turns: Iterations of each loop, per CTA in launch order.
        trips: Other round trips of a CTA to L2, the first to memory.
        moved: Bytes to and from memory.
    """

    loops: Sequence[SourceLoop]
    turns: Sequence[Sequence[float]]
    trips: float
    moved: float = 0.0


def launches_of(call: str, architecture: int) -> list[Any]:
    """Return recorded launches of a call in bfloat16, without precision and without the gradient of mu.

    `call` is "forward 64" as shipped, or "forward 64 128-64-8-3" with other blocks, warps and stages (backward: rows,
    then columns).
    """
    import torch

    from rfa.model.attention import triton_backward, triton_forward
    from rfa.model.attention.call import AttentionCall
    from rfa.model.attention.launch import Launch
    from rfa.model.kernel_launches import recorded_launches

    pass_name, width, *others = call.split()
    first, second, *_ = [*(Launch(*map(int, one.split("-"))) for one in others), None, None]
    q, k, v = (torch.zeros(1, 1024, 2, int(width), dtype=torch.bfloat16) for _ in range(3))
    heads, statistic = torch.ones(2, 6), torch.zeros(1, 1024, 2)
    arguments = AttentionCall(q, k, v, heads, with_precision=False, needs_decay=False)
    with recorded_launches(architecture) as launches:
        if pass_name == "forward":
            triton_forward.forward(arguments, blocks=first)
        else:
            gradients = triton_backward.OutputGradients(q, statistic, None)
            triton_backward.backward(gradients, arguments, q, statistic, row_blocks=first, column_blocks=second)
    return launches


def kernel_of(name: str, constants: dict[str, int], shape: Shape, pass_name: str) -> Kernel:
    """Return the source description of a compiled kernel."""
    return _KERNELS[pass_name, name](constants, shape)


def _forward(c: dict[str, int], shape: Shape) -> Kernel:
    bm, bn, w = c["BM"], c["BN"], shape.width
    copied = 2 * bn * w * 2 + 4 * bn * 4
    near, far = 2 * w, 2 * w + TERMS
    table = copied + TERMS * bn * 2
    loops = [
        SourceLoop("masked", bm * bn, near, copied),
        SourceLoop("exact", bm * bn, near, copied),
        SourceLoop("light", bm * bn, far, table),
        SourceLoop("distant", bm * bn, far, table),
        SourceLoop("fallback", bm * bn, near, copied),
    ]
    turns = []
    for _ in range(shape.batch):
        for head in range(shape.heads):
            for block in reversed(range(shape.length // bm)):
                earlier = block * bm // bn
                exact = min(earlier, EXACT_DISTANCES)
                light = earlier - exact if head < ZERO_DECAY * shape.heads else 0
                turns.append((bm // bn, exact, light, earlier - exact - light, 0))
    # Queries and scalars, the scalars again before three of the loops, and marks.
    marks = shape.length / bn / 2 / MARKS_OF_A_TURN
    return Kernel(loops, turns, 4 + marks, moved=4 * 2 * TOKENS * HIDDEN)


def _rows(c: dict[str, int], shape: Shape) -> Kernel:
    bm, bn, bd, w = c["BM"], c["BN"], c["BD"], shape.width
    loops = [
        SourceLoop("diagonal", bm * bd, 3 * w, 4 * bd * w),
        SourceLoop("main", bm * bn, 3 * w, 4 * bn * w),
    ]
    ctas = [
        ((block * bm + bm - earlier * bn) / bd, earlier)
        for block in reversed(range(shape.length // bm))
        for earlier in [(block * bm + 1) // bn]
    ]
    return Kernel(loops, ctas * (shape.heads * shape.batch), 2, moved=5 * 2 * TOKENS * HIDDEN)


def _columns(c: dict[str, int], shape: Shape) -> Kernel:
    bm, bn, w = c["BM"], c["BN"], shape.width
    loops = [SourceLoop(name, bm * bn, 4 * w, 4 * bm * w) for name in ("diagonal", "main")]
    ctas = []
    for block in range(shape.length // bn):
        first = block * bn // bm
        near = -(-(block * bn + bn - 1) // bm)
        ctas.append((near - first, shape.length // bm - near))
    return Kernel(loops, ctas * (shape.heads * shape.batch), 2, moved=6 * 2 * TOKENS * HIDDEN)


def _small(ctas: int, moved: float) -> Kernel:
    return Kernel((), [()] * ctas, 2, moved)


def _describe(numbers: int, inputs: int, block: str) -> Callable[[dict[str, int], Shape], Kernel]:
    def kernel(c: dict[str, int], shape: Shape) -> Kernel:
        count = TOKENS * shape.heads
        return _small(count // c[block], 2 * inputs * TOKENS * HIDDEN + 4 * numbers * count)

    return kernel


def _table(c: dict[str, int], shape: Shape) -> Kernel:
    ctas = shape.length // c["BN"] * shape.heads
    return _small(ctas, ctas * TERMS * c["BN"] * 2)


_KERNELS: dict[tuple[str, str], Callable[[dict[str, int], Shape], Kernel]] = {
    ("forward", "_columns_kernel"): _describe(4, 1, "BN"),
    ("forward", "table_kernel"): _table,
    ("forward", "_forward_kernel"): _forward,
    ("backward", "_describe_keys"): _describe(7, 1, "BN"),
    ("backward", "_describe_queries"): _describe(9, 3, "BM"),
    ("backward", "_rows_kernel"): _rows,
    ("backward", "_columns_kernel"): _columns,
}
