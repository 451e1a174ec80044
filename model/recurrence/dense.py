"""The capped IRKF with a dense covariance: exact for any diagonalisable linear SDE, observed through any matrix.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + b + e,  E[e eᵀ] = R

Exact discretisation over a lag, from the eigenpairs A = V diag(l) V⁻¹ in real arithmetic (complex numbers as two
real tensors, so
that the same lines run in an ONNX graph):

    F(lag) = V e^{l lag} V⁻¹          Q(lag) = V [ Q̃_jk (e^{(l_j + l_k*) lag} - 1) / (l_j + l_k*) ] Vᴴ,  Q̃ = V⁻¹ Q V⁻ᴴ

Update: with S = C P Cᵀ + R of the components present, d of them, the weight is w = min(1, (nu + d) / (nu + r'S⁻¹r))
with r the
innovation in the first pass and the posterior residual afterwards; the measurement noise becomes R / w (math page
§2, rule "capped").
Joseph form, so that float32 keeps the covariance positive. Units: state as given by the model, lag in time units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# |l_j + l_k*| below which the integral over the lag is the lag itself.
RESONANCE = 1e-9


class Modes(NamedTuple):
    """Eigenpairs of A and the process noise in their coordinates, real and imaginary parts.

    rate `[n]`; basis V, dual V⁻¹ and noise V⁻¹ Q V⁻ᴴ `[n, n]`.
    """

    rate_re: Tensor
    rate_im: Tensor
    basis_re: Tensor
    basis_im: Tensor
    dual_re: Tensor
    dual_im: Tensor
    noise_re: Tensor
    noise_im: Tensor


class Sensor(NamedTuple):
    """Observation model: matrix C `[P, n]`, offset b `[P]`, noise R `[..., P, P]`."""

    matrix: Tensor
    offset: Tensor
    noise: Tensor


class Robustness(NamedTuple):
    """inverse_nu 1/nu `[1]` (0 = Kalman), passes K, and the share and size of outliers in the predictive density."""

    inverse_nu: Tensor
    inner: int
    contamination: Tensor
    outlier_scale: Tensor


class DenseUpdate(NamedTuple):
    """mean `[..., n]`, covariance `[..., n, n]`, weight, nis and log_likelihood `[...]`, innovation `[..., P]` (0
    where missing),
    innovation_covariance `[..., P, P]` of all components."""

    mean: Tensor
    covariance: Tensor
    weight: Tensor
    innovation: Tensor
    innovation_covariance: Tensor
    nis: Tensor
    log_likelihood: Tensor


def transition(modes: Modes, lag: Tensor) -> tuple[Tensor, Tensor]:
    """F(lag) and Q(lag), `[..., n, n]` for a lag `[...]` >= 0."""
    growth = torch.exp(modes.rate_re * lag[..., None])
    turn = modes.rate_im * lag[..., None]
    e_re, e_im = (growth * torch.cos(turn))[..., None, :], (growth * torch.sin(turn))[..., None, :]
    f = (modes.basis_re * e_re - modes.basis_im * e_im) @ modes.dual_re
    f = f - (modes.basis_re * e_im + modes.basis_im * e_re) @ modes.dual_im

    sum_re = modes.rate_re[:, None] + modes.rate_re[None, :]
    sum_im = modes.rate_im[:, None] - modes.rate_im[None, :]
    size2 = sum_re.square() + sum_im.square()
    span = lag[..., None, None]
    half = torch.sin(sum_im * span / 2)
    # e^z - 1 without cancellation: expm1(a) cos b - 2 sin²(b/2), and e^a sin b.
    top_re = torch.expm1(sum_re * span) * torch.cos(sum_im * span) - 2 * half.square()
    top_im = torch.exp(sum_re * span) * torch.sin(sum_im * span)
    is_resonant = size2 < RESONANCE**2
    safe = torch.where(is_resonant, torch.ones_like(size2), size2)
    phi_re = torch.where(is_resonant, span, (top_re * sum_re + top_im * sum_im) / safe)
    phi_im = torch.where(is_resonant, torch.zeros_like(span), (top_im * sum_re - top_re * sum_im) / safe)

    g_re = modes.noise_re * phi_re - modes.noise_im * phi_im
    g_im = modes.noise_re * phi_im + modes.noise_im * phi_re
    x_re = modes.basis_re @ g_re - modes.basis_im @ g_im
    x_im = modes.basis_re @ g_im + modes.basis_im @ g_re
    q = x_re @ modes.basis_re.mT + x_im @ modes.basis_im.mT
    return f, (q + q.mT) / 2


def propagate(mean: Tensor, covariance: Tensor, f: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[..., n]` and covariance after a transition."""
    return (f @ mean[..., None])[..., 0], f @ covariance @ f.mT + q


def _inverse_2x2(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The closed form: a fifth of the operations of the sweeps, and most systems have two components."""
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    # The Schur complement keeps the digits that a d - b² loses when the components are nearly collinear.
    schur = d - b * b / a
    corner = 1 / schur
    off = -b / a * corner
    top = 1 / a - b / a * off
    inverse = torch.stack([torch.stack([top, off], -1), torch.stack([off, corner], -1)], -2)
    return inverse, torch.log(a) + torch.log(schur)


def spd_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and log determinant of a symmetric positive definite `[..., p, p]`, by sweeps over a fixed small p.

    (There is no inverse or Cholesky operator in ONNX; p is the number of observed components.)
    """
    size = matrix.shape[-1]
    if size == 2:
        return _inverse_2x2(matrix)
    log_det = torch.zeros_like(matrix[..., 0, 0])
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for k in range(size):
        pivot = matrix[..., k : k + 1, k : k + 1]
        row, column = matrix[..., k : k + 1, :], matrix[..., :, k : k + 1]
        unit_row, unit_column = eye[k : k + 1], eye[:, k : k + 1]
        # Every entry outside row and column k; then the row, the column and the pivot itself.
        inside = (matrix - column * row / pivot) * ((1 - unit_row) * (1 - unit_column))
        edges = (1 - unit_row) * unit_column * row / pivot - (1 - unit_column) * unit_row * column / pivot
        matrix = inside + edges + unit_row * unit_column / pivot
        log_det = log_det + torch.log(pivot[..., 0, 0])
    return (matrix + matrix.mT) / 2, log_det


def _quadratic(matrix: Tensor, x: Tensor) -> Tensor:
    return (x * (matrix @ x[..., None])[..., 0]).sum(-1)


def predictive_log_density(nis: Tensor, log_det: Tensor, count: Tensor, robustness: Robustness) -> Tensor:
    """log[(1 - c) N(e; 0, S) + c N(e; 0, k² S)] of `count` components with e'S⁻¹e = nis; Gaussian at c = 0."""
    base = -0.5 * (nis + log_det + count * math.log(2 * math.pi))
    k = robustness.outlier_scale
    wide = base + 0.5 * nis * (1 - 1 / k.square()) - count * torch.log(k)
    c = robustness.contamination
    # log(c) of c = 0 is -inf, which logaddexp takes; its gradient would not be finite, so c > 0 wherever it is learned.
    return torch.where(c > 0, torch.logaddexp(base + torch.log1p(-c), wide + torch.log(c.clamp(min=1e-30))), base)


def dense_update(
    mean: Tensor, covariance: Tensor, observation: Tensor, present: Tensor, sensor: Sensor, robustness: Robustness
) -> DenseUpdate:
    """Condition on an observation `[..., P]` of which the components with `present` = 1 were seen (0 = ignored)."""
    full_cross = covariance @ sensor.matrix.mT
    full = sensor.matrix @ full_cross
    innovation_covariance = full + sensor.noise
    predicted = (sensor.matrix @ mean[..., None])[..., 0] + sensor.offset
    innovation = present * (observation - predicted)

    both = present[..., :, None] * present[..., None, :]
    absent = torch.diag_embed(1 - present)
    signal, noise = both * full, both * sensor.noise + absent
    inverse, log_det = spd_inverse(signal + noise)
    nis = _quadratic(inverse, innovation)
    count = present.sum(-1)
    weight = torch.ones_like(nis)
    weighted, gate = inverse, nis
    for i in range(robustness.inner):
        if i > 0:
            weighted, _ = spd_inverse(signal + noise / weight[..., None, None])
            residual = (noise / weight[..., None, None] @ (weighted @ innovation[..., None]))[..., 0]
            gate = _quadratic(inverse, residual)
        weight = ((1 + count * robustness.inverse_nu) / (1 + gate * robustness.inverse_nu)).clamp(max=1)
    noise = noise / weight[..., None, None]
    weighted, _ = spd_inverse(signal + noise)
    matrix = present[..., :, None] * sensor.matrix
    gain = full_cross * present[..., None, :] @ weighted
    keep = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device) - gain @ matrix
    posterior = keep @ covariance @ keep.mT + gain @ noise @ gain.mT
    return DenseUpdate(
        mean=mean + (gain @ innovation[..., None])[..., 0],
        covariance=(posterior + posterior.mT) / 2,
        weight=weight,
        innovation=innovation,
        innovation_covariance=innovation_covariance,
        nis=nis,
        log_likelihood=predictive_log_density(nis, log_det, count, robustness),
    )
