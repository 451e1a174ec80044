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


# pass → {capability: {largest width: launch}}, of inputs of 16 bits. Above each, microseconds of the kernel by the
# model of `rfa bench cost`, at 64 reals; at 128: of 16,384 tokens of 2,048 reals, in sequences of 512 and in one.
_HALF: dict[PassName, dict[tuple[int, int], dict[int, Launch]]] = {
    "forward": {
        # A100: 567 and 10,242; 491 and 10,034.
        # H100: 311 and 4,225; 204 and 2,977.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 370 and 3,430; 218 and 2,038.
        (10, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 64, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 412 and 8,963; 383 and 8,840.
        (12, 0): {64: Launch(128, 64, 8, 2), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # A sum more per row.
    "forward_precision": {
        # A100: 581 and 10,259; 494 and 10,037.
        # H100: 352 and 5,425; 223 and 3,479.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 422 and 6,121; 248 and 3,505.
        (10, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 400 and 8,490; 385 and 8,842.
        (12, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    "backward_rows": {
        # A100: 1,182 and 22,647; 872 and 19,944.
        (8, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # Three stages spill here.
        (8, 9): {64: Launch(128, 32, 8, 2), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: 611 and 10,967; 374 and 6,666.
        (9, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 16, 4, 1)},
        # B200: 988 and 18,994; 594 and 11,533.
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 673 and 14,489; 577 and 14,003.
        (12, 0): {64: Launch(128, 32, 8, 2), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    # With the gradient of precision: more sums.
    "backward_rows_precision": {
        # A100: 1,219 and 23,548; 879 and 19,950.
        (8, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # Three stages spill here.
        (8, 9): {64: Launch(128, 32, 8, 2), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: not modelled; 413 and 7,397.
        (9, 0): {64: Launch(64, 32, 8, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        # B200: 999 and 19,243; 600 and 11,666.
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 670 and 15,321; 579 and 14,005.
        (12, 0): {64: Launch(128, 16, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    "backward_columns": {
        # A100: 915 and 21,065; 923 and 21,743.
        # H100: 436 and 8,214; 350 and 6,876.
        # B200: 419 and 6,750; 302 and 5,663.
        # RTX 5090: 667 and 16,122; 695 and 16,821.
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
