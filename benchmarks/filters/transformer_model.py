"""The Transformer filter: one softmax attention head over a filter's own estimates. It approximates a Kalman filter.

Source: Transformer Filter (after Goel and Bartlett); docs/MATH.md §7. A Kalman filter of constant gain is the recursion
x*_i = M x*_{i-1} + K y_i: with M = (I - K C) A and the filter's gain it filters, with M = A - K C, the predictor's gain
and y one step late it predicts. The Transformer filter takes that step from its own last estimate and averages its last
m steps:

    x̃_i = M x̂_{i-1} + K y_i
    x̂_n = Σ_i a_i x̃_i,     a = softmax_i(-beta |x̃_i - x̃_n|²),     i = n - m + 1 … n

    -|u - v|² = φ(u)ᵀ D φ(v),     φ(x) = (1, x, x ⊗ x)

so a is the softmax of one head with queries beta Dᵀ φ and keys φ: a Gaussian kernel smoother. With M = Q Λ Q⁻¹,

    beta >= m² |Q|² |Q⁻¹|² / (2 e epsilon² (1 - max |Λ|)²)   ⇒   |x̂_n - x*_n| <= epsilon   for every n and every data.

Computed in float64: φᵀ D φ is a small difference of large numbers, and does not tell steps apart that differ by
less than about 1e-7 |x̃|.
"""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor, nn

# Eigenvectors this badly conditioned are treated as dependent.
MAX_CONDITION = 1e8


def quadratic_features(x: Tensor) -> Tensor:
    """Return φ(x) = (1, x, x ⊗ x) of vectors `[..., n]`, `[..., 1 + n + n²]`."""
    pairs = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs], dim=-1)


def distance_form(size: int) -> Tensor:
    """Return D with φ(u)ᵀ D φ(v) = -|u - v|², `[1 + n + n², 1 + n + n²]` float64."""
    eye = torch.eye(size, dtype=torch.float64)
    form = torch.zeros(1 + size + size * size, 1 + size + size * size, dtype=torch.float64)
    form[1 + size :, 0] = -eye.flatten()
    form[1 : 1 + size, 1 : 1 + size] = 2 * eye
    form[0, 1 + size :] = -eye.flatten()
    return form


def sufficient_beta(closed_loop: Tensor, *, window: int, epsilon: float) -> float:
    """Return the least beta with estimates within epsilon of the filter with the matrix `closed_loop` `[n, n]`."""
    if window < 1 or not epsilon > 0:
        raise ValueError(f"window must be >= 1 and epsilon > 0, got {window} and {epsilon}")
    rates, basis = torch.linalg.eig(closed_loop.to(torch.float64))
    slowest = float(rates.abs().max())
    if slowest >= 1:
        raise ValueError(f"closed_loop must have eigenvalues within the unit circle, got one of modulus {slowest:.6g}")
    condition = float(torch.linalg.cond(basis))
    if not condition < MAX_CONDITION:
        raise ValueError("closed_loop must have a basis of eigenvectors")
    return (window * condition / (epsilon * (1 - slowest))) ** 2 / (2 * math.e)


class TransformerFilter(nn.Module):
    """See the module docstring.

    Args:
        closed_loop: M `[n, n]`.
        gain: K `[n, P]`.
        window: Number of estimates m in a window.
        beta: Inverse temperature. Infinity is the Kalman filter.
    """

    closed_loop: Tensor
    gain: Tensor
    form: Tensor

    def __init__(self, closed_loop: Tensor, gain: Tensor, *, window: int, beta: float) -> None:
        super().__init__()
        size = closed_loop.shape[0]
        if closed_loop.shape != (size, size) or gain.dim() != 2 or gain.shape[0] != size:
            raise ValueError(
                f"closed_loop must be [n, n] and gain [n, P], got {list(closed_loop.shape)} and {list(gain.shape)}"
            )
        if window < 1:
            raise ValueError(f"window must be >= 1, got {window}")
        if not (beta >= 0 and math.isfinite(beta)):
            raise ValueError(f"beta must be finite and >= 0, got {beta}")
        self.window, self.beta = window, beta
        self.register_buffer("closed_loop", closed_loop.to(torch.float64))
        self.register_buffer("gain", gain.to(torch.float64))
        self.register_buffer("form", distance_form(size), persistent=False)

    def forward(self, observations: Tensor, start: Tensor | None = None) -> Tensor:
        """Return estimates `[B, N, n]` float64 after each observation `[B, N, P]`, from `start` `[B, n]` or zero."""
        if observations.dim() != 3 or observations.shape[2] != self.gain.shape[1]:
            raise ValueError(f"observations must be [B, N, {self.gain.shape[1]}], got {list(observations.shape)}")
        batch, size = observations.shape[0], self.gain.shape[0]
        estimate = self.gain.new_zeros(batch, size) if start is None else start.to(torch.float64)
        if estimate.shape != (batch, size):
            raise ValueError(f"start must be [{batch}, {size}], got {list(estimate.shape)}")
        inputs = observations.to(torch.float64) @ self.gain.T
        steps: deque[Tensor] = deque(maxlen=self.window)
        estimates = []
        for i in range(inputs.shape[1]):
            steps.append(estimate @ self.closed_loop.T + inputs[:, i])
            estimate = self._attend(torch.stack(tuple(steps), dim=1))
            estimates.append(estimate)
        return torch.stack(estimates, dim=1)

    def _attend(self, steps: Tensor) -> Tensor:
        """Attend over the steps `[B, m, n]` of a window, from its last one."""
        keys = quadratic_features(steps)
        query = self.beta * keys[:, -1] @ self.form
        weights = torch.softmax((keys @ query[..., None])[..., 0], dim=-1)
        return (weights[..., None] * steps).sum(1)
