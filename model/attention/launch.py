"""Launch parameters of the attention kernels: a fixed table, without tuning at run time.

No 16-bit entry of 64 or 128 reals spills registers in its main loop or exceeds the shared memory of a program
(`rfa bench aot` tests this). For sm_90 the fastest on an H200 of 27 November 2026; for others the best by the model of
`rfa bench cost`. Programs of four warps run two to an SM. Where one runs alone, three stages start the copies a turn
earlier than two.

An architecture that is not listed takes the next lower one, a width the next larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

PassName = Literal[
    "forward",
    "forward_precision",
    "backward_rows",
    "backward_rows_decay",
    "backward_columns",
]


@dataclass(frozen=True)
class Launch:
    """Blocks of `block_m` queries by `block_n` keys, warps per program, stages of the pipeline of loads."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# pass → {capability: {largest width: launch}} for inputs of 16 bits. Comments: microseconds by the model of `rfa bench
# cost` at 64 reals; at 128, for 16,384 tokens of 2,048 reals, in sequences of 512 and in one.
_HALF: dict[PassName, dict[tuple[int, int], dict[int, Launch]]] = {
    "forward": {
        # Machine code for sm_80 serves 8.0 to 8.9, so they share an entry. An A100 alone would take 64 × 64 by 4 warps
        # (526 and 10,263) and 128 × 64 (468 and 9,533), which need more memory than the others have. A100: 568 and
        # 10,243; 491 and 10,034. RTX 4090: 489 and 10,432; 453 and 9,967.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # At 128 reals faster by 13 % on an H200 than 128 × 64 by 8 warps, though not by the model.
        # H100: 270 and 3,900; 189 and 3,089.
        (9, 0): {64: Launch(64, 32, 4, 3), 128: Launch(64, 32, 4, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 331 and 2,957; 207 and 2,044.
        (10, 0): {64: Launch(64, 64, 4, 3), 128: Launch(128, 64, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 374 and 8,694; 383 and 8,840.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # One more sum per row.
    "forward_precision": {
        # A100: 580 and 10,258; 494 and 10,037.
        # RTX 4090: 494 and 10,437; 454 and 9,967.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # H100: 310 and 5,099; 196 and 3,168.
        (9, 0): {64: Launch(64, 32, 4, 3), 128: Launch(64, 32, 4, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 403 and 5,371; 235 and 3,016.
        (10, 0): {64: Launch(128, 32, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 376 and 8,696; 385 and 8,842.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # With the gradient of precision up to 5 % longer.
    "backward_rows": {
        # A100: 743 and 16,525; 751 and 17,416.
        # RTX 4090: 616 and 15,033; 668 and 15,566.
        (8, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: 398 and 7,954; 269 and 5,105.
        # B200: 344 and 6,290; 207 and 3,722.
        (9, 0): {64: Launch(64, 32, 4, 3), 128: Launch(64, 32, 4, 3), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 495 and 12,227; 544 and 13,043.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    # With the gradient of mu; figures with that of precision.
    "backward_rows_decay": {
        # A100: 1,033 and 23,841; 834 and 17,934.
        # RTX 4090: 679 and 16,568; 685 and 15,783.
        (8, 0): {64: Launch(64, 16, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: 496 and 10,264; 384 and 6,778.
        (9, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 16, 4, 1)},
        # B200: 1,179 and 27,169; 654 and 14,384.
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 641 and 14,216; 557 and 13,224.
        (12, 0): {64: Launch(128, 16, 8, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    "backward_columns": {
        # A100: 829 and 20,343; 922 and 21,523.
        # RTX 4090: 759 and 19,504; 852 and 19,973.
        (8, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 128, 8, 3), 256: Launch(16, 64, 4, 1)},
        # At 128 reals faster by 14 % on an H200 than two stages, though not by the model.
        # H100: 367 and 7,342; 291 and 5,828.
        (9, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 64, 4, 3), 256: Launch(16, 64, 4, 1)},
        # B200: 335 and 6,168; 210 and 3,915.
        (10, 0): {64: Launch(32, 64, 4, 3), 128: Launch(32, 64, 4, 2), 256: Launch(16, 64, 4, 1)},
        # RTX 5090: 609 and 15,863; 694 and 16,735.
        (12, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 128, 8, 3), 256: Launch(16, 64, 4, 1)},
    },
}
# Products of float32 keep whole rows of both factors in registers, so a thread has few scores.
_FLOAT32: dict[int, Launch] = {64: Launch(32, 32, 8, 1), 128: Launch(32, 32, 8, 1), 256: Launch(16, 16, 4, 1)}


def launch(pass_name: PassName, device_capability: tuple[int, int], width: int, dtype: torch.dtype) -> Launch:
    """The entry for `width` reals of `dtype` on a device of `device_capability`."""
    if dtype == torch.float32:
        by_width = _FLOAT32
    else:
        by_capability = _HALF[pass_name]
        # An older device takes the oldest entry.
        by_width = by_capability[max((a for a in by_capability if a <= device_capability), default=min(by_capability))]
    return by_width[min(limit for limit in by_width if limit >= width)]
