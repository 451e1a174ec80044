"""The capped IRKF with a dense covariance, for a linear SDE that is observed through any matrix.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + b + e,  E[e eᵀ] = R

The SDE is discretised in `eigenpairs.py` and `modes.py`.

Update. With S = C P Cᵀ + R of the d components that are present, the weight is w = min(1, (nu + d) / (nu + r'S⁻¹r)). r
is the innovation in the first pass and the posterior residual in later passes. The measurement noise becomes R / w
(docs/MATH.md §2, rule "capped"). The Joseph form keeps the covariance positive in float32.

Jump detection (`Suspicion`). A robust filter treats a true jump of the state as outliers and follows the jump late. The
filter can therefore track an alternative mean, which is the state after a jump to the last observation. Both means
predict the next observation. The log ratio of their Student-t densities is the evidence for a jump, in units of one
observation that agrees with the alternative:

    evidence = max(0, evidence + min(1, (nu + d)/2 · [log(1 + e'S⁻¹e / nu) - log(1 + (e - u)'S⁻¹(e - u) / nu)] / A))

where e is the innovation and u the innovation of the alternative. If the fraction of outliers is e^-A, an observation
is worth at most A nats, which explains the minimum. When the evidence reaches N - 1 (N observations agree, including
the first), P is enlarged so that the update restarts from the observation. Neither density includes missing components.

Learned noise (rule "learned"). Student-t noise is normal noise whose variance has a random factor. The filter learns
the probability of each factor s_k of a grid:

    g_k ∝ counts_k N(e; 0, C P Cᵀ + s_k R)          counts = KEPT_PRIOR · prior + seen
                                                    seen ← (seen + g) min(1, MEMORY / their sum)
    posterior = mean and covariance of the mixture, with weights g, of the Kalman updates with s_k R

This is a first-order generalised pseudo-Bayes filter with the quasi-Bayes rule of Smith and Makov (1978). The largest
factor is at least e'S⁻¹e. The retained prior keeps the filter robust, because the weights of large factors would
otherwise vanish in quiet periods. If the complete prior is on s = 1, this is the Kalman filter. Variation that is not
modelled is attributed to noise, so this rule needs a more accurate Q than the capped rule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.recurrence.inverse import spd_inverse
from rfa.runtime.filters.robust_constants import (
    AGREEMENT,
    KEPT_PRIOR,
    LARGEST_FACTOR,
    LARGEST_NIS,
    LEAST_SHARE,
    MEMORY,
    OPEN_NOISE,
)


class Sensor(NamedTuple):
    """Observation model with matrix C `[P, n]`, offset b `[P]` and noise covariance R `[..., P, P]`."""

    matrix: Tensor
    offset: Tensor
    noise: Tensor

    def scaled(self, factor: Tensor) -> Sensor:
        """Return the observation model with its noise covariance multiplied by `factor` `[B]`."""
        return self._replace(noise=self.noise * factor[..., None, None])


class Robustness(NamedTuple):
    """Parameters that determine the robust weight of observations.

    Attributes:
        inverse_nu: 1/nu, `[1]`. 0 gives the Kalman filter.
        inner: Number of reweighting passes K.
        contamination, outlier_scale: Fraction and scale of outliers in the predictive density.
        patience: Number N of agreeing observations that make a jump. It requires 1/nu > 0.
        factors, prior_counts: Factors by which R is multiplied, and their prior counts, `[K]`, for learned noise.
        passes: Number of passes for each observation, `[...]`, from 1 to K. If None, it is K.
    """

    inverse_nu: Tensor
    inner: int
    contamination: Tensor
    outlier_scale: Tensor
    patience: int | None = None
    factors: Tensor | None = None
    prior_counts: Tensor | None = None
    passes: Tensor | None = None


class Suspicion(NamedTuple):
    """Possible jump of the state to the mean plus `offset` `[..., n]`. The evidence for it, `[..., 1]`, is in units of
    observations."""

    offset: Tensor
    evidence: Tensor


class LearnedNoise(NamedTuple):
    """State of the rule that learns the noise: the factors `[K]` by which R is multiplied, the number of observations
    assigned to each factor `[..., K]`, and the prior counts `[K]`."""

    factors: Tensor
    counts: Tensor
    prior: Tensor


class DenseUpdate(NamedTuple):
    """Result of updating the state with an observation.

    Args:
        mean, covariance: Posterior mean and covariance, `[..., n]` and `[..., n, n]`.
        weight, nis, log_likelihood: Robust weight, normalised innovation squared and log-likelihood, `[...]`.
        innovation: Innovation, `[..., P]`, which is 0 for missing components.
        innovation_covariance: Covariance of the innovation of all components, `[..., P, P]`.
        prior_covariance: Prior covariance, `[..., n, n]`, which is enlarged at a jump. nis, log_likelihood and
            innovation_covariance do not include the enlargement.
    """

    mean: Tensor
    covariance: Tensor
    weight: Tensor
    innovation: Tensor
    innovation_covariance: Tensor
    nis: Tensor
    log_likelihood: Tensor
    prior_covariance: Tensor
    suspicion: Suspicion | None
    noise_counts: Tensor | None


def propagate(mean: Tensor, covariance: Tensor, f: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean `[..., n]` and the covariance `[..., n, n]` after a transition with matrix `f` and process noise
    `q`."""
    return (f @ mean[..., None])[..., 0], f @ covariance @ f.mT + q


def _quadratic(matrix: Tensor, x: Tensor) -> Tensor:
    return (x * (matrix @ x[..., None])[..., 0]).sum(-1)


def predictive_log_density(nis: Tensor, log_det: Tensor, count: Tensor, robustness: Robustness) -> Tensor:
    """Return log[(1 - c) N(e; 0, S) + c N(e; 0, k² S)] of `count` components, where `nis` is e'S⁻¹e and `log_det` is
    log det S. The density is Gaussian if c = 0."""
    base = -0.5 * (nis + log_det + count * math.log(2 * math.pi))
    k = robustness.outlier_scale
    wide = base + 0.5 * nis * (1 - 1 / k.square()) - count * torch.log(k)
    c = robustness.contamination
    # log(0) does not have a finite gradient, so c must be > 0 if it is learned.
    inlier, outlier = base + torch.log1p(-c), wide + torch.log(c.clamp(min=1e-30))
    # ONNX does not have logaddexp, which the exporter converts to log(exp + exp), and this is -inf beyond 90 sigma.
    both = torch.maximum(inlier, outlier) + torch.log1p(torch.exp(-(inlier - outlier).abs()))
    return torch.where(c > 0, both, base)


class Evidence(NamedTuple):
    """Result of one step of the test for jumps.

    Args:
        offset: Difference between the alternative and the prior mean, `[..., n]`.
        evidence, is_jump: Evidence for a jump, and whether there is one, `[...]`.
        growth: Factor of the prior covariance at a jump, `[...]`.
        inverse: Inverse of the innovation covariance at a jump, `[..., P, P]`.
    """

    offset: Tensor
    evidence: Tensor
    is_jump: Tensor
    growth: Tensor
    inverse: Tensor


class _Innovation(NamedTuple):
    """Quantities of the observed components, in the notation of the module.

    For missing components, values are 0 and the noise covariance has 1 on its diagonal.

    Attributes:
        value, present: Innovation e and presence, `[..., P]` each.
        matrix: C, `[..., P, n]`.
        cross: P Cᵀ, `[..., n, P]`.
        signal, noise, inverse: C P Cᵀ, R and S⁻¹, `[..., P, P]` each.
        nis: e'S⁻¹e, `[...]`.
    """

    value: Tensor
    present: Tensor
    matrix: Tensor
    cross: Tensor
    signal: Tensor
    noise: Tensor
    inverse: Tensor
    nis: Tensor


def weigh_jump(suspicion: Suspicion, seen: _Innovation, robustness: Robustness) -> Evidence:
    """Return the evidence of an observation for a jump. `suspicion.offset` must be predicted to the time of the
    observation."""
    if robustness.patience is None:
        raise ValueError("patience must be set if suspicion is set")
    expected = (seen.matrix @ suspicion.offset[..., None])[..., 0]
    nu, count = 1 / robustness.inverse_nu, seen.present.sum(-1)

    def neg_log_density(nis: Tensor) -> Tensor:
        return 0.5 * (nu + count) * torch.log1p(nis.clamp(max=LARGEST_NIS) / nu)

    nats = neg_log_density(seen.nis) - neg_log_density(_quadratic(seen.inverse, seen.value - expected))
    evidence = (suspicion.evidence[..., 0] + (nats / AGREEMENT).clamp(max=1)).clamp(min=0)

    # The covariance of the alternative is that of the filter, enlarged until the measurement noise is negligible, so it
    # follows every observation.
    share = (seen.inverse * seen.signal).sum((-2, -1)) / count.clamp(min=1)
    share = share.clamp(min=LEAST_SHARE)
    growth = ((1 - share) / (OPEN_NOISE * share)).clamp(min=1)
    inverse, _ = spd_inverse(growth[..., None, None] * seen.signal + seen.noise)
    # If the alternative differs from the prediction and predicted the observation less well, it is reset to the filter.
    is_refuted = (evidence <= 0) & (_quadratic(seen.inverse, expected) >= 1)
    kept = torch.where(is_refuted[..., None], torch.zeros_like(suspicion.offset), suspicion.offset)
    rest = seen.value - (seen.matrix @ kept[..., None])[..., 0]
    moved = growth[..., None] * (seen.cross @ (inverse @ rest[..., None]))[..., 0]
    return Evidence(kept + moved, evidence, evidence >= robustness.patience - 1, growth, inverse)


class _Conditioned(NamedTuple):
    """Result of a Kalman update.

    Attributes:
        step: Change of the mean, `[..., n]`.
        covariance: Posterior covariance, `[..., n, n]`.
        nis, log_det: e'S⁻¹e and log det S, `[...]` each.
    """

    step: Tensor
    covariance: Tensor
    nis: Tensor
    log_det: Tensor


def _condition(
    prior: Tensor, matrix: Tensor, cross: Tensor, signal: Tensor, noise: Tensor, innovation: Tensor
) -> _Conditioned:
    inverse, log_det = spd_inverse(signal + noise)
    gain = cross @ inverse
    keep = torch.eye(prior.shape[-1], dtype=prior.dtype, device=prior.device) - gain @ matrix
    posterior = keep @ prior @ keep.mT + gain @ noise @ gain.mT
    step = (gain @ innovation[..., None])[..., 0]
    return _Conditioned(step, posterior, _quadratic(inverse, innovation), log_det)


def robust_weight(count: Tensor | float, distance: Tensor, inverse_nu: Tensor) -> Tensor:
    """Return the weight min(1, (nu + d) / (nu + r'S⁻¹r)), where `count` is d, `distance` is r'S⁻¹r, and `inverse_nu` is
    1/nu."""
    return ((1 + count * inverse_nu) / (1 + distance * inverse_nu)).clamp(max=1)


def in_pass(i: int, robustness: Robustness, found: Tensor, before: Tensor) -> Tensor:
    """Return the result of pass i (counted from 0). For observations with at most i passes, return that of the previous
    pass."""
    if (passes := robustness.passes) is None or i == 0:
        return found
    return torch.where(passes[(..., *[None] * (found.dim() - passes.dim()))] > i, found, before)


def _capped_weight(seen: _Innovation, robustness: Robustness) -> Tensor:
    count, gate, weight = seen.present.sum(-1), seen.nis, torch.ones_like(seen.nis)
    for i in range(robustness.inner):
        if i > 0:
            noise = seen.noise / weight[..., None, None]
            weighted, _ = spd_inverse(seen.signal + noise)
            residual = (noise @ (weighted @ seen.value[..., None]))[..., 0]
            gate = _quadratic(seen.inverse, residual)
        weight = in_pass(i, robustness, robust_weight(count, gate, robustness.inverse_nu), weight)
    return weight


class _Mixed(NamedTuple):
    """Result of an update with learned noise: step of the mean, covariance, robust weight, and counts of the
    factors."""

    step: Tensor
    covariance: Tensor
    weight: Tensor
    counts: Tensor


def _mix(prior: Tensor, seen: _Innovation, noise: LearnedNoise, is_jump: Tensor | None) -> _Mixed:
    """Return the moments of the mixture over noise factors. For an observation that completes a jump, the factor is
    1."""
    is_widest = noise.factors >= noise.factors.amax(-1, keepdim=True)
    wide_enough = torch.maximum(noise.factors, seen.nis[..., None].clamp(max=LARGEST_FACTOR))
    factors = torch.where(is_widest, wide_enough, noise.factors)  # [..., K]
    # The 1 on the diagonal of a missing component is not noise and must not be scaled.
    absent = torch.diag_embed(1 - seen.present)
    scaled = factors[..., None, None] * (seen.noise - absent)[..., None, :, :] + absent[..., None, :, :]
    matrix, cross, signal = (x[..., None, :, :] for x in (seen.matrix, seen.cross, seen.signal))
    found = _condition(prior[..., None, :, :], matrix, cross, signal, scaled, seen.value[..., None, :])
    share = torch.softmax(torch.log(noise.counts) - 0.5 * (found.nis + found.log_det), dim=-1)
    if is_jump is not None:
        share = torch.where(is_jump[..., None], (noise.factors == 1).to(share.dtype), share)
    step = (share[..., None] * found.step).sum(-2)
    apart = found.step - step[..., None, :]
    spread = found.covariance + apart[..., :, None] * apart[..., None, :]
    kept = KEPT_PRIOR * noise.prior
    # Counts in stored states may be smaller than the retained prior.
    learned = (noise.counts + share - kept).clamp(min=0)
    counts = kept + (MEMORY / learned.sum(-1, keepdim=True).clamp(min=MEMORY)) * learned
    return _Mixed(
        step,
        (share[..., None, None] * spread).sum(-3),
        (share / factors).sum(-1).clamp(max=1),
        torch.where(seen.present.amax(-1, keepdim=True) > 0, counts, noise.counts),
    )


def dense_update(
    mean: Tensor, covariance: Tensor, observation: Tensor, present: Tensor, sensor: Sensor, robustness: Robustness, *,
    suspicion: Suspicion | None = None, noise_counts: Tensor | None = None,
) -> DenseUpdate:  # fmt: skip
    """Return the result of updating the state with an observation `[..., P]`. Components with `present` = 0 are
    ignored.

    Args:
        mean, covariance: Predicted state, `[..., n]` and `[..., n, n]`.
        observation, present: Observation, and 1 for each observed component and 0 for the others, `[..., P]`.
        sensor: Observation model.
        robustness: Parameters of the robust weights.
        suspicion: State of the test for jumps, with the offset at the time of the observation. If None, there is no
            test.
        noise_counts: Counts of the factors of `robustness`, `[..., K]`. If None, the rule is "capped".
    """
    seen, innovation_covariance, log_likelihood = _innovation(
        mean, covariance, observation, present, sensor, robustness
    )
    nis, found = seen.nis, None
    if suspicion is not None:
        found = weigh_jump(suspicion, seen, robustness)
        covariance, seen = _enlarged(covariance, seen, found)
    if noise_counts is None:
        weight = _capped_weight(seen, robustness)
        noise = seen.noise / weight[..., None, None]
        step, posterior, *_ = _condition(covariance, seen.matrix, seen.cross, seen.signal, noise, seen.value)
    else:
        if robustness.factors is None or robustness.prior_counts is None:
            raise ValueError("factors and prior_counts must be set if noise_counts is set")
        learned = LearnedNoise(robustness.factors, noise_counts, robustness.prior_counts)
        step, posterior, weight, noise_counts = _mix(
            covariance, seen, learned, None if found is None else found.is_jump
        )
    return DenseUpdate(
        mean=mean + step,
        covariance=(posterior + posterior.mT) / 2,
        weight=weight,
        innovation=seen.value,
        innovation_covariance=innovation_covariance,
        nis=nis,
        log_likelihood=log_likelihood,
        prior_covariance=covariance,
        suspicion=None if found is None else _carry(found, step),
        noise_counts=noise_counts,
    )


def _innovation(
    mean: Tensor, covariance: Tensor, observation: Tensor, present: Tensor, sensor: Sensor, robustness: Robustness
) -> tuple[_Innovation, Tensor, Tensor]:
    """Return the innovation, its covariance for all components, and its predictive log density."""
    full_cross = covariance @ sensor.matrix.mT
    full = sensor.matrix @ full_cross
    innovation_covariance = full + sensor.noise
    predicted = (sensor.matrix @ mean[..., None])[..., 0] + sensor.offset
    # Values are selected rather than multiplied by 0, because a missing component may be NaN.
    value = torch.where(present > 0, observation - predicted, torch.zeros_like(predicted))
    both = present[..., :, None] * present[..., None, :]
    absent = torch.diag_embed(1 - present)
    signal, noise = both * full, both * sensor.noise + absent
    inverse, log_det = spd_inverse(signal + noise)
    nis = _quadratic(inverse, value)
    log_likelihood = predictive_log_density(nis, log_det, present.sum(-1), robustness)
    matrix, cross = present[..., :, None] * sensor.matrix, full_cross * present[..., None, :]
    seen = _Innovation(value, present, matrix, cross, signal, noise, inverse, nis)
    return seen, innovation_covariance, log_likelihood


def _enlarged(covariance: Tensor, seen: _Innovation, found: Evidence) -> tuple[Tensor, _Innovation]:
    """Return the prior covariance and the innovation. If the observation completes a jump, both use the enlarged prior
    covariance.
    """
    is_jump = found.is_jump[..., None, None]
    growth = torch.where(is_jump, found.growth[..., None, None], torch.ones_like(seen.signal[..., :1, :1]))
    covariance = growth * covariance
    inverse = torch.where(is_jump, found.inverse, seen.inverse)
    cross, signal = growth * seen.cross, growth * seen.signal
    return covariance, seen._replace(cross=cross, signal=signal, inverse=inverse, nis=_quadratic(inverse, seen.value))


def _carry(found: Evidence, step: Tensor) -> Suspicion:
    """Return the state of the test for jumps after the step of the filter. A jump resets the test."""
    offset = torch.where(found.is_jump[..., None], torch.zeros_like(step), found.offset - step)
    evidence = torch.where(found.is_jump, torch.zeros_like(found.evidence), found.evidence)
    return Suspicion(offset, evidence[..., None])
