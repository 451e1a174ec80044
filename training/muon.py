"""Muon in float32. Processors without hardware support for bfloat16 compute in bfloat16 more than ten times more
slowly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Return U S' Vᵀ, where U S Vᵀ is the singular value decomposition of `matrix` and all singular values S' are about
    1. The method is the Newton-Schulz iteration (Jordan et al. 2024)."""
    a, b, c = coefficients
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Float32Muon(torch.optim.Muon):
    """Muon in float32, with adjust_lr_fn "match_rms_adamw" and Nesterov momentum. Its state has the same names as that
    of `torch.optim.Muon`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(momentum, group["momentum"])
                update = orthogonalised(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                rate = group["lr"] * 0.2 * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)
