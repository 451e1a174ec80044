"""Compute `inverse.spd_inverse` as a loop in an exported graph.

An unrolled sweep has 25 nodes, so four inverses with n = 25 have 2,500 nodes and take minutes to export. Here, each
inverse is one Scan node over the rows of the identity matrix. The results are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op


def scanned_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse and log determinant of a symmetric positive definite matrix `[..., p, p]`."""
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
    # `scan_op` is called directly, because `scan` would compile the sweep first, which takes 0.5 s.
    swept, logs = scan_op(sweep, [matrix.contiguous()], [units], ())
    return (swept + swept.mT) / 2, logs.sum(0)
