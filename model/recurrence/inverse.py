"""Invert small symmetric positive definite matrices by sweeps, because ONNX supports neither inverses nor Cholesky
factors.

The sweeps are implemented in four forms: unrolled, for gradients and small graphs; in place, without gradients; as a
loop, for exported graphs (`scanned_inverse.py`); and in closed form for 2 × 2 matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Maximum number of sweeps that an exported graph unrolls. Larger matrices use a loop.
MOST_UNROLLED = 4


def _inverse_2x2(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse and the log determinant of 2 × 2 matrices. The closed form takes a fifth of the operations of
    a sweep."""
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    # The Schur complement avoids the cancellation of a d - b² for nearly collinear components.
    schur = d - b * b / a
    corner = 1 / schur
    off = -b / a * corner
    top = 1 / a - b / a * off
    inverse = torch.stack([torch.stack([top, off], -1), torch.stack([off, corner], -1)], -2)
    return inverse, torch.log(a) + torch.log(schur)


def spd_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse and log determinant of a symmetric positive definite matrix `[..., p, p]`."""
    size = matrix.shape[-1]
    if size == 1:  # a sweep would square the number, which may overflow
        return 1 / matrix, torch.log(matrix[..., 0, 0])
    if size == 2:
        return _inverse_2x2(matrix)
    if size > MOST_UNROLLED and torch.compiler.is_exporting():
        # This is imported here, because only the exporter needs this part of torch.
        from rfa.model.recurrence.scanned_inverse import scanned_inverse

        return scanned_inverse(matrix)
    if size > MOST_UNROLLED and not matrix.requires_grad and not torch.compiler.is_compiling():
        return _swept_in_place(matrix)
    log_det = torch.zeros_like(matrix[..., 0, 0])
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for k in range(size):
        pivot = matrix[..., k : k + 1, k : k + 1]
        row, column = matrix[..., k : k + 1, :], matrix[..., :, k : k + 1]
        unit_row, unit_column = eye[k : k + 1], eye[:, k : k + 1]
        # The entries outside row and column k are updated first, then the row, the column and the pivot.
        inside = (matrix - column * row / pivot) * ((1 - unit_row) * (1 - unit_column))
        edges = (1 - unit_row) * unit_column * row / pivot - (1 - unit_column) * unit_row * column / pivot
        matrix = inside + edges + unit_row * unit_column / pivot
        log_det = log_det + torch.log(pivot[..., 0, 0])
    return (matrix + matrix.mT) / 2, log_det


def _swept_in_place(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `spd_inverse`, computed without gradients and with less memory traffic."""
    swept, outer = matrix.clone(), torch.empty_like(matrix)
    log_det = torch.zeros_like(matrix[..., 0, 0])
    for k in range(matrix.shape[-1]):
        pivot = swept[..., k : k + 1, k : k + 1].clone()
        row, column = swept[..., k : k + 1, :].clone(), swept[..., :, k : k + 1].clone()
        swept -= torch.mul(column, row, out=outer).div_(pivot)
        swept[..., k : k + 1, :] = row / pivot
        swept[..., :, k : k + 1] = -column / pivot
        swept[..., k : k + 1, k : k + 1] = 1 / pivot
        log_det += torch.log(pivot[..., 0, 0])
    return (swept + swept.mT) / 2, log_det
