"""The capped IRKF with a dense covariance: exact for any diagonalisable linear SDE, observed through any matrix.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + b + e,  E[e eᵀ] = R

Exact discretisation over a lag, from the eigenpairs A = V diag(l) V⁻¹ in real arithmetic (complex numbers as two
real tensors, so
that the same lines run in an ONNX graph):

    F(lag) = V e^{l lag} V⁻¹          Q(lag) = V [ Q̃_jk (e^{(l_j + l_k*) lag} - 1) / (l_j + l_k*) ] Vᴴ,  Q̃ = V⁻¹ Q V⁻ᴴ

Update: with S = C P Cᵀ + R of the components present, d of them, the weight is w = min(1, (nu + d) / (nu + r'S⁻¹r))
with r the
innovation in the first pass and the posterior residual afterwards; the measurement noise becomes R / w (docs/MATH.md
§2, rule "capped"). Joseph form, so that float32 keeps the covariance positive. Units: state as given by the model, lag
in time units.

Re-acquisition (`Suspicion`). A robust filter takes a true jump of the state for outliers and follows it late. Beside
the mean it can carry a rival: where the state would be, had it jumped to what was seen last. Both predict the next
observation, and the log ratio of their Student-t densities is evidence for a jump, counted in observations that agree:

    evidence = max(0, evidence + min(1, (nu + d)/2 · [log(1 + e'S⁻¹e / nu) - log(1 + (e - u)'S⁻¹(e - u) / nu)] / A))

with e the innovation and u the rival's. The minimum is for outliers that happen to be alike: at a share of e^-A each
one is worth A nats at most. When it reaches N - 1 (N observations agree, the first of them included) P is enlarged, so
that the update starts again from the observation. A component that was not seen is in neither density.

Learned noise (rule "learned"). Student-t noise is a normal one whose variance is multiplied by a random factor; the
capped rule knows one law of it. Here the shares of the factors s_k of a grid are learned with the state:

    g_k ∝ counts_k N(e; 0, C P Cᵀ + s_k R)          counts = KEPT_PRIOR · prior + seen
                                                    seen ← (seen + g) min(1, MEMORY / their sum)
    posterior = the mixture, by g, of the Kalman updates with s_k R: its mean and its covariance

(a generalised pseudo-Bayes filter of first order, its shares by the quasi-Bayes rule of Smith and Makov, 1978). The
widest factor is at least e'S⁻¹e. What is kept of the prior keeps the filter robust: a share that nothing speaks for
would sink without end, and the first outlier after a long quiet time would be believed. With the whole prior on s = 1
it is the Kalman filter. Whatever the model does not explain is taken for noise: it needs a process noise Q that is
about right more than the capped rule does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.recurrence.inverse import spd_inverse
from rfa.runtime.filters.noise_law import (
    AGREEMENT,
    KEPT_PRIOR,
    LARGEST_FACTOR,
    LARGEST_NIS,
    LEAST_SHARE,
    MEMORY,
    OPEN_NOISE,
)

# |l_j + l_k*| below which the integral over the lag is the lag itself.
RESONANCE = 1e-9


class Eigenpairs(NamedTuple):
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
    """inverse_nu 1/nu `[1]` (0 = Kalman), passes K, the share and size of outliers in the predictive density, and N:
    how many observations that agree make a jump (needed with a `Suspicion`, which needs 1/nu > 0); factors `[K]` on R
    where the noise is learned, and its prior_counts `[K]`; passes `[...]` of each observation, 1 to K, if not all K."""

    inverse_nu: Tensor
    inner: int
    contamination: Tensor
    outlier_scale: Tensor
    patience: int | None = None
    factors: Tensor | None = None
    prior_counts: Tensor | None = None
    passes: Tensor | None = None


class Suspicion(NamedTuple):
    """That the state jumped: offset `[..., n]` of the rival from the mean, evidence `[..., 1]` in observations."""

    offset: Tensor
    evidence: Tensor


class LearnedNoise(NamedTuple):
    """Factors `[K]` on R, how many observations were made with each, `[..., K]`, and how many the prior has, `[K]`."""

    factors: Tensor
    counts: Tensor
    prior: Tensor


class DenseUpdate(NamedTuple):
    """mean `[..., n]`, covariance `[..., n, n]`, weight, nis and log_likelihood `[...]`, innovation `[..., P]` (0
    where missing), innovation_covariance `[..., P, P]` of all components, prior_covariance `[..., n, n]` that was
    conditioned (enlarged after a jump; nis, log_likelihood and innovation_covariance are predictions from before)."""

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


def transition(drift: Eigenpairs, lag: Tensor) -> tuple[Tensor, Tensor]:
    """F(lag) and Q(lag), `[..., n, n]` for a lag `[...]` >= 0."""
    f = propagator(drift, drift.rate_re, drift.rate_im, lag)
    return f, from_basis(drift.basis_re, drift.basis_im, *modal_noise(drift, lag))


def propagator(drift: Eigenpairs, rate_re: Tensor, rate_im: Tensor, lag: Tensor) -> Tensor:
    """V e^{rate lag} V⁻¹, for the rates of the drift or those against the time."""
    e_re, e_im = exponentials(rate_re, rate_im, lag)
    f = (drift.basis_re * e_re - drift.basis_im * e_im) @ drift.dual_re
    return f - (drift.basis_re * e_im + drift.basis_im * e_re) @ drift.dual_im


def exponentials(rate_re: Tensor, rate_im: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """e^{rate lag}, real and imaginary part `[..., 1, n]`: a factor for every column."""
    growth = torch.exp(rate_re * lag[..., None])
    turn = rate_im * lag[..., None]
    return (growth * torch.cos(turn))[..., None, :], (growth * torch.sin(turn))[..., None, :]


def from_basis(basis_re: Tensor, basis_im: Tensor, g_re: Tensor, g_im: Tensor) -> Tensor:
    """V G Vᴴ of a Hermitian G, `[..., n, n]`, symmetric to the last bit."""
    x_re = basis_re @ g_re - basis_im @ g_im
    x_im = basis_re @ g_im + basis_im @ g_re
    q = x_re @ basis_re.mT + x_im @ basis_im.mT
    return (q + q.mT) / 2


def modal_noise(drift: Eigenpairs, lag: Tensor) -> tuple[Tensor, Tensor]:
    """V⁻¹ Q(lag) V⁻ᴴ, real and imaginary part `[..., n, n]`."""
    sum_re = drift.rate_re[:, None] + drift.rate_re[None, :]
    sum_im = drift.rate_im[:, None] - drift.rate_im[None, :]
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

    return (
        drift.noise_re * phi_re - drift.noise_im * phi_im,
        drift.noise_re * phi_im + drift.noise_im * phi_re,
    )


def propagate(mean: Tensor, covariance: Tensor, f: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[..., n]` and covariance after a transition."""
    return (f @ mean[..., None])[..., 0], f @ covariance @ f.mT + q


def _quadratic(matrix: Tensor, x: Tensor) -> Tensor:
    return (x * (matrix @ x[..., None])[..., 0]).sum(-1)


def predictive_log_density(nis: Tensor, log_det: Tensor, count: Tensor, robustness: Robustness) -> Tensor:
    """log[(1 - c) N(e; 0, S) + c N(e; 0, k² S)] of `count` components with e'S⁻¹e = nis; Gaussian at c = 0."""
    base = -0.5 * (nis + log_det + count * math.log(2 * math.pi))
    k = robustness.outlier_scale
    wide = base + 0.5 * nis * (1 - 1 / k.square()) - count * torch.log(k)
    c = robustness.contamination
    # log(c) of c = 0 is -inf and its gradient not finite, so c > 0 wherever it is learned.
    inlier, outlier = base + torch.log1p(-c), wide + torch.log(c.clamp(min=1e-30))
    # logaddexp, written out: ONNX has none, and its exporter's log(exp + exp) is -inf beyond some 90 sigma.
    both = torch.maximum(inlier, outlier) + torch.log1p(torch.exp(-(inlier - outlier).abs()))
    return torch.where(c > 0, both, base)


class Evidence(NamedTuple):
    """One step of the `Suspicion`: offset `[..., n]` of the rival from the mean before the observation, evidence and
    is_jump `[...]`; growth `[...]` of the prior covariance by a jump, and the inverse `[..., P, P]` of the innovation
    covariance with it."""

    offset: Tensor
    evidence: Tensor
    is_jump: Tensor
    growth: Tensor
    inverse: Tensor


class _Innovation(NamedTuple):
    """Of the components present (the others are 0, and 1 in the noise's diagonal): value and present `[..., P]`, C
    `[..., P, n]`, P Cᵀ `[..., n, P]`, C P Cᵀ and R `[..., P, P]`, S⁻¹ and e'S⁻¹e of the value e."""

    value: Tensor
    present: Tensor
    matrix: Tensor
    cross: Tensor
    signal: Tensor
    noise: Tensor
    inverse: Tensor
    nis: Tensor


def weigh_jump(suspicion: Suspicion, seen: _Innovation, robustness: Robustness) -> Evidence:
    """What an observation says for a jump; `suspicion.offset` is carried to its time."""
    if robustness.patience is None:
        raise ValueError("patience must be given with a suspicion")
    expected = (seen.matrix @ suspicion.offset[..., None])[..., 0]
    nu, count = 1 / robustness.inverse_nu, seen.present.sum(-1)

    def surprise(nis: Tensor) -> Tensor:
        return 0.5 * (nu + count) * torch.log1p(nis.clamp(max=LARGEST_NIS) / nu)

    nats = surprise(seen.nis) - surprise(_quadratic(seen.inverse, seen.value - expected))
    evidence = (suspicion.evidence[..., 0] + (nats / AGREEMENT).clamp(max=1)).clamp(min=0)

    # The rival goes to every observation: its covariance is the filter's, so enlarged that noise hardly counts.
    share = (seen.inverse * seen.signal).sum((-2, -1)) / count.clamp(min=1)
    share = share.clamp(min=LEAST_SHARE)
    growth = ((1 - share) / (OPEN_NOISE * share)).clamp(min=1)
    inverse, _ = spd_inverse(growth[..., None, None] * seen.signal + seen.noise)
    # One that was told from the filter's own prediction and did worse starts again from the filter.
    is_refuted = (evidence <= 0) & (_quadratic(seen.inverse, expected) >= 1)
    kept = torch.where(is_refuted[..., None], torch.zeros_like(suspicion.offset), suspicion.offset)
    rest = seen.value - (seen.matrix @ kept[..., None])[..., 0]
    moved = growth[..., None] * (seen.cross @ (inverse @ rest[..., None]))[..., 0]
    return Evidence(kept + moved, evidence, evidence >= robustness.patience - 1, growth, inverse)


class _Conditioned(NamedTuple):
    """The Kalman update with one measurement noise: step `[..., n]` of the mean, covariance `[..., n, n]`, e'S⁻¹e and
    log det S `[...]`."""

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
    """min(1, (nu + d) / (nu + r'S⁻¹r)), of d components and their squared distance."""
    return ((1 + count * inverse_nu) / (1 + distance * inverse_nu)).clamp(max=1)


def in_pass(i: int, robustness: Robustness, found: Tensor, before: Tensor) -> Tensor:
    """What pass i (from 0) found, or what was known before it where an observation has no more than i passes."""
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
    """Step of the mean, covariance, weight, and the counts of the noise's factors after the observation."""

    step: Tensor
    covariance: Tensor
    weight: Tensor
    counts: Tensor


def _mix(prior: Tensor, seen: _Innovation, noise: LearnedNoise, is_jump: Tensor | None) -> _Mixed:
    """Moments of the mixture over the noise's factors; what completes a jump is taken with R as it is."""
    is_widest = noise.factors >= noise.factors.amax(-1, keepdim=True)
    wide_enough = torch.maximum(noise.factors, seen.nis[..., None].clamp(max=LARGEST_FACTOR))
    factors = torch.where(is_widest, wide_enough, noise.factors)  # [..., K]
    # The 1 of an absent component in the noise's diagonal is no noise, and not scaled.
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
    # Counts from elsewhere may lie below it.
    learned = (noise.counts + share - kept).clamp(min=0)
    counts = kept + (MEMORY / learned.sum(-1, keepdim=True).clamp(min=MEMORY)) * learned
    return _Mixed(
        step,
        (share[..., None, None] * spread).sum(-3),
        (share / factors).sum(-1).clamp(max=1),
        torch.where(seen.present.amax(-1, keepdim=True) > 0, counts, noise.counts),
    )


def dense_update(
    mean: Tensor,
    covariance: Tensor,
    observation: Tensor,
    present: Tensor,
    sensor: Sensor,
    robustness: Robustness,
    suspicion: Suspicion | None = None,
    noise_counts: Tensor | None = None,
) -> DenseUpdate:
    """Condition on an observation `[..., P]` of which the components with `present` = 1 were seen (0 = ignored).

    Args:
        suspicion: that the state jumped, with its offset carried to the observation's time; None = no re-acquisition.
        noise_counts: `[..., K]` of the factors of `robustness`; None = rule "capped".
    """
    full_cross = covariance @ sensor.matrix.mT
    full = sensor.matrix @ full_cross
    innovation_covariance = full + sensor.noise
    predicted = (sensor.matrix @ mean[..., None])[..., 0] + sensor.offset
    # Selected, not multiplied: what stands in an absent component may be NaN.
    innovation = torch.where(present > 0, observation - predicted, torch.zeros_like(predicted))

    both = present[..., :, None] * present[..., None, :]
    absent = torch.diag_embed(1 - present)
    signal, noise = both * full, both * sensor.noise + absent
    inverse, log_det = spd_inverse(signal + noise)
    nis = _quadratic(inverse, innovation)
    log_likelihood = predictive_log_density(nis, log_det, present.sum(-1), robustness)
    matrix, cross = present[..., :, None] * sensor.matrix, full_cross * present[..., None, :]
    seen, found = _Innovation(innovation, present, matrix, cross, signal, noise, inverse, nis), None
    if suspicion is not None:
        found = weigh_jump(suspicion, seen, robustness)
        is_jump = found.is_jump[..., None, None]
        growth = torch.where(is_jump, found.growth[..., None, None], torch.ones_like(signal[..., :1, :1]))
        covariance = growth * covariance
        inverse = torch.where(is_jump, found.inverse, inverse)
        seen = seen._replace(
            cross=growth * cross, signal=growth * signal, inverse=inverse, nis=_quadratic(inverse, innovation)
        )
    if noise_counts is None:
        weight = _capped_weight(seen, robustness)
        rest = seen.noise / weight[..., None, None]
        step, posterior, *_ = _condition(covariance, matrix, seen.cross, seen.signal, rest, innovation)
    else:
        if robustness.factors is None or robustness.prior_counts is None:
            raise ValueError("factors and prior_counts must be given with noise_counts")
        learned = LearnedNoise(robustness.factors, noise_counts, robustness.prior_counts)
        is_a_jump = None if found is None else found.is_jump
        step, posterior, weight, noise_counts = _mix(covariance, seen, learned, is_a_jump)
    return DenseUpdate(
        mean=mean + step,
        covariance=(posterior + posterior.mT) / 2,
        weight=weight,
        innovation=innovation,
        innovation_covariance=innovation_covariance,
        nis=nis,
        log_likelihood=log_likelihood,
        prior_covariance=covariance,
        suspicion=None if found is None else _carry(found, step),
        noise_counts=noise_counts,
    )


def _carry(found: Evidence, step: Tensor) -> Suspicion:
    """The suspicion after the filter's own step; none once it has jumped."""
    offset = torch.where(found.is_jump[..., None], torch.zeros_like(step), found.offset - step)
    evidence = torch.where(found.is_jump, torch.zeros_like(found.evidence), found.evidence)
    return Suspicion(offset, evidence[..., None])
