"""Launch parameters of the fused kernels of attention: one frozen table, nothing is tuned while requests wait.

Chosen by compilation ahead of time: no 16-bit entry of 64 or 128 reals spills in its main loop. An architecture that is
not listed takes the nearest lower one, a width the next larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

PassName = Literal[
    "forward",
    "forward_precision",
    "forward_far",
    "forward_precision_far",
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


# (pass, capability, bits of the inputs) → {largest width: launch}
_TABLE: dict[tuple[PassName, tuple[int, int], int], dict[int, Launch]] = {
    ("forward", (8, 0), 16): {64: Launch(128, 64, 8, 2), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
    ("forward", (9, 0), 16): {64: Launch(128, 64, 8, 2), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
    # A sum more per row: other blocks do without spills.
    ("forward_precision", (8, 0), 16): {
        64: Launch(128, 32, 8, 3),
        128: Launch(128, 32, 8, 3),
        256: Launch(64, 32, 8, 2),
    },
    ("forward_precision", (9, 0), 16): {
        64: Launch(128, 64, 8, 3),
        128: Launch(128, 32, 8, 3),
        256: Launch(64, 32, 8, 2),
    },
    # The far field's step at the end likewise.
    ("forward_far", (8, 0), 16): {64: Launch(128, 64, 8, 2), 128: Launch(128, 16, 8, 3), 256: Launch(64, 32, 8, 2)},
    ("forward_far", (9, 0), 16): {64: Launch(128, 64, 8, 2), 128: Launch(128, 32, 8, 3), 256: Launch(64, 32, 8, 2)},
    ("forward_precision_far", (8, 0), 16): {
        64: Launch(128, 32, 8, 3),
        128: Launch(128, 16, 8, 3),
        256: Launch(64, 32, 8, 2),
    },
    ("forward_precision_far", (9, 0), 16): {
        64: Launch(128, 64, 8, 2),
        128: Launch(128, 32, 8, 3),
        256: Launch(64, 32, 8, 2),
    },
    ("forward", (8, 0), 32): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 4, 1), 256: Launch(16, 16, 4, 1)},
    ("forward_precision", (8, 0), 32): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 4, 1), 256: Launch(16, 16, 4, 1)},
    ("forward_far", (8, 0), 32): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 4, 1), 256: Launch(16, 16, 4, 1)},
    ("forward_precision_far", (8, 0), 32): {
        64: Launch(32, 32, 4, 1),
        128: Launch(32, 32, 4, 1),
        256: Launch(16, 16, 4, 1),
    },
    ("backward_rows", (8, 0), 16): {64: Launch(128, 32, 8, 2), 128: Launch(128, 16, 8, 2), 256: Launch(64, 16, 4, 1)},
    ("backward_rows", (9, 0), 16): {64: Launch(128, 32, 8, 2), 128: Launch(128, 32, 8, 2), 256: Launch(64, 16, 4, 1)},
    ("backward_rows", (8, 0), 32): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 4, 1), 256: Launch(16, 16, 4, 1)},
    # With the gradient of precision: more sums, so other blocks or another stage do without spills.
    ("backward_rows_precision", (8, 0), 16): {
        64: Launch(128, 32, 8, 2),
        128: Launch(128, 16, 8, 3),
        256: Launch(64, 16, 4, 1),
    },
    ("backward_rows_precision", (9, 0), 16): {
        64: Launch(64, 32, 8, 3),
        128: Launch(128, 32, 8, 2),
        256: Launch(64, 16, 4, 1),
    },
    ("backward_rows_precision", (8, 0), 32): {
        64: Launch(32, 32, 4, 1),
        128: Launch(32, 32, 4, 1),
        256: Launch(16, 16, 4, 1),
    },
    ("backward_columns", (8, 0), 16): {
        64: Launch(32, 128, 8, 2),
        128: Launch(16, 128, 8, 2),
        256: Launch(16, 64, 4, 1),
    },
    ("backward_columns", (9, 0), 16): {
        64: Launch(32, 128, 8, 2),
        128: Launch(16, 128, 8, 2),
        256: Launch(16, 64, 4, 1),
    },
    ("backward_columns", (8, 0), 32): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 4, 1), 256: Launch(16, 16, 4, 1)},
}


def launch(pass_name: PassName, device_capability: tuple[int, int], width: int, dtype: torch.dtype) -> Launch:
    """The entry for `width` reals of `dtype` on a device of `device_capability`."""
    bits = torch.finfo(dtype).bits
    known = [architecture for name, architecture, entry in _TABLE if (name, entry) == (pass_name, bits)]
    # A device older than all of them takes the oldest: it refuses by itself what it cannot do.
    architecture = max((a for a in known if a <= device_capability), default=min(known))
    by_width = _TABLE[pass_name, architecture, bits]
    return by_width[min(limit for limit in by_width if limit >= width)]
