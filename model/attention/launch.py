"""Table of launch parameters of the attention kernels.

Kernels with the entries for 16-bit inputs and heads of 64 or 128 dimensions neither spill registers in the main loop
nor exceed the shared memory of a program (`rfa bench aot` tests this). The sm_90 entries were the fastest on an H200;
the others are the fastest in the cost model of `rfa bench cost`. Architectures without an entry use that of the next
older architecture, and widths without an entry that of the next larger width.
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
    """Launch parameters of an attention kernel.

    Attributes:
        block_m, block_n: Block sizes over queries and over keys.
        num_warps: Number of warps per program.
        num_stages: Number of pipeline stages for loads.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# pass → {capability: {largest width: launch}} for 16-bit inputs. The comments give times in microseconds from the cost
# model, for 16,384 tokens of 2,048 dimensions in sequences of 512 and in one sequence; first at width 64, then at 128.
_HALF: dict[PassName, dict[tuple[int, int], dict[int, Launch]]] = {
    "forward": {
        # Machine code for sm_80 also runs on 8.6 and 8.9. On an A100, 64 × 64 with 4 warps (526 and 10,263) and 128 ×
        # 64 (468 and 9,533) are faster, but need more shared memory than the other GPUs have. A100: 568 and 10,243; 491
        # and 10,034. RTX 4090: 489 and 10,432; 453 and 9,967.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # At width 128, this is 13 % faster on an H200 than 128 × 64 with 8 warps, unlike in the cost model.
        # H100: 270 and 3,900; 189 and 3,089.
        (9, 0): {128: Launch(64, 32, 4, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 331 and 2,957; 207 and 2,044.
        (10, 0): {64: Launch(64, 64, 4, 3), 128: Launch(128, 64, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 374 and 8,694; 383 and 8,840.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # To compute the precision, one more sum per row is needed.
    "forward_precision": {
        # A100: 580 and 10,258; 494 and 10,037.
        # RTX 4090: 494 and 10,437; 454 and 9,967.
        (8, 0): {64: Launch(128, 64, 8, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # H100: 310 and 5,099; 196 and 3,168.
        (9, 0): {128: Launch(64, 32, 4, 3), 256: Launch(64, 32, 8, 2)},
        # B200: 403 and 5,371; 235 and 3,016.
        (10, 0): {128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
        # RTX 5090: 376 and 8,696; 385 and 8,842.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 2), 256: Launch(64, 32, 8, 2)},
    },
    # The gradient of precision takes up to 5 % more time.
    "backward_rows": {
        # A100: 743 and 16,525; 751 and 17,416.
        # RTX 4090: 616 and 15,033; 668 and 15,566.
        (8, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: 398 and 7,954; 269 and 5,105.
        # B200: 344 and 6,290; 207 and 3,722.
        (9, 0): {128: Launch(64, 32, 4, 3), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 495 and 12,227; 544 and 13,043.
        (12, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    # These kernels also compute the gradient of mu. The times include the gradient of precision.
    "backward_rows_decay": {
        # A100: 1,033 and 23,841; 834 and 17,934.
        # RTX 4090: 679 and 16,568; 685 and 15,783.
        (8, 0): {64: Launch(64, 16, 4, 3), 128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
        # H100: 496 and 10,264; 384 and 6,778.
        (9, 0): {64: Launch(64, 32, 4, 3), 128: Launch(128, 32, 8, 3), 256: Launch(64, 16, 4, 1)},
        # B200: 1,179 and 27,169; 654 and 14,384.
        (10, 0): {64: Launch(64, 32, 8, 3), 128: Launch(64, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
        # RTX 5090: 641 and 14,216; 557 and 13,224.
        (12, 0): {128: Launch(128, 16, 8, 3), 256: Launch(64, 16, 4, 1)},
    },
    "backward_columns": {
        # A100: 829 and 20,343; 922 and 21,523.
        # RTX 4090: 759 and 19,504; 852 and 19,973.
        (8, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 128, 8, 3), 256: Launch(16, 64, 4, 1)},
        # At width 128, this is 14 % faster on an H200 than two stages, unlike in the cost model.
        # H100: 367 and 7,342; 291 and 5,828.
        (9, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 64, 4, 3), 256: Launch(16, 64, 4, 1)},
        # B200: 335 and 6,168; 210 and 3,915.
        (10, 0): {64: Launch(32, 64, 4, 3), 128: Launch(32, 64, 4, 2), 256: Launch(16, 64, 4, 1)},
        # RTX 5090: 609 and 15,863; 694 and 16,735.
        (12, 0): {64: Launch(32, 64, 4, 3), 128: Launch(16, 128, 8, 3), 256: Launch(16, 64, 4, 1)},
    },
}
# float32 products keep whole rows of both factors in registers, so blocks have few scores per thread.
_FLOAT32: dict[int, Launch] = {128: Launch(32, 32, 8, 1), 256: Launch(16, 16, 4, 1)}


def launch(pass_name: PassName, device_capability: tuple[int, int], width: int, dtype: torch.dtype) -> Launch:
    """Return the launch parameters of a kernel.

    Args:
        pass_name: Name of the kernel in the table.
        device_capability: Compute capability of the device.
        width: Number of real dimensions per head.
        dtype: Dtype of the inputs.
    """
    if dtype == torch.float32:
        by_width = _FLOAT32
    else:
        by_capability = _HALF[pass_name]
        # Devices older than all entries use the oldest entry.
        by_width = by_capability[max((a for a in by_capability if a <= device_capability), default=min(by_capability))]
    return by_width[min(limit for limit in by_width if limit >= width)]
