"""`inverse.spd_inverse` as a loop in an exported graph.

Unrolled, a sweep is 25 nodes: four [n, n] inverses at n = 25 are 2,500 nodes, which take minutes to export. Here each
is one Scan over the rows of the identity, with the same results as unrolled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op


def scanned_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and log determinant of a symmetric positive definite `[..., p, p]`."""
    size = matrix.shape[-1]

    def sweep(state: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        unit_row, unit_column = unit[None, :], unit[:, None]
        row = (state * unit_column).sum(-2, keepdim=True)
        column = (state * unit_row).sum(-1, keepdim=True)
        pivot = (row * unit_row).sum(-1, keepdim=True)
        inside = (state - column * row / pivot) * ((1 - unit_row) * (1 - unit_column))
        edges = (1 - unit_row) * unit_column * row / pivot - (1 - unit_column) * unit_row * column / pivot
        return inside + edges + unit_row * unit_column / pivot, torch.log(pivot[..., 0, 0])

    units = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    # Not `scan`, which compiles the sweep first, 0.5 s each.
    swept, logs = scan_op(sweep, [matrix.contiguous()], [units], ())
    return (swept + swept.mT) / 2, logs.sum(0)
