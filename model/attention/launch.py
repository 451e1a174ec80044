"""Launch parameters of the fused kernels of attention: one frozen table, nothing is tuned while requests wait.

Chosen by compilation ahead of time, for none has run on a GPU. No 16-bit entry of 64 or 128 reals spills in its main
loop or asks for more shared memory than a program may have (`bench/aot.py` has the limits and the test). Among those,
what `rfa bench cost` predicts to be fastest: a model of issue and latency over all loops, not the count of one. With
two stages the copies of a turn begin when the turn before ends, and every turn waits for L2; with three they begin a
turn earlier, for up to a tenth more instructions.

An architecture that is not listed takes the nearest lower one, a width the next larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

PassName = Literal[
    "forward",
    "forward_precision",
    "backward_rows",
    "backward_rows_precision",
    "backward_columns",
]


@dataclass(frozen=True)
class Launch:
    """Blocks of `block_m` queries by `block_n` keys, warps per program, stages of the pipeline of loads."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# pass → {capability: {largest width: launch}}, of inputs of 16 bits.
_HALF: dict[PassName, dict[tuple[int, int], dict[int, Launch]]] = {
    "forward": {
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        (10, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 64, 8, 3), 256: Launch(64, 32, 8, 2)},
        (12, 0): {64: Launch(128, 64, 8, 2), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # A sum more per row.
    "forward_precision": {
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        (10, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        (12, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    "backward_rows": {
        (8, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        (9, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 16, 4, 1)},
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        (12, 0): {64: Launch(128, 32, 8, 2), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    # With the gradient of precision: more sums.
    "backward_rows_precision": {
        (8, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        (9, 0): {64: Launch(64, 32, 8, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        (12, 0): {64: Launch(128, 16, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    "backward_columns": {
        (8, 0): {64: Launch(32, 128, 8, 3), 128: Launch(16, 128, 8, 3), 256: Launch(16, 64, 4, 1)},
    },
}
# Products of float32 keep whole rows of both factors in registers: few scores a thread, or they go to the stack.
_FLOAT32: dict[int, Launch] = {64: Launch(32, 32, 8, 1), 128: Launch(32, 32, 8, 1), 256: Launch(16, 16, 4, 1)}


def launch(pass_name: PassName, device_capability: tuple[int, int], width: int, dtype: torch.dtype) -> Launch:
    """The entry for `width` reals of `dtype` on a device of `device_capability`."""
    if dtype == torch.float32:
        by_width = _FLOAT32
    else:
        known = _HALF[pass_name]
        # A device older than all of them takes the oldest: it refuses by itself what it cannot do.
        by_width = known[max((a for a in known if a <= device_capability), default=min(known))]
    return by_width[min(limit for limit in by_width if limit >= width)]
