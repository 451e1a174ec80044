"""One token mixer of every model of the papers as a float64 loop over tokens, by the name of the model.

Written from the formulas over complex numbers; it knows nothing of the package but the names of its weights. Positions
enter by their difference alone, so what agrees with it does not change under a shift of time.
"""

from __future__ import annotations

import math

import numpy as np

from tests.model.oracles import to_complex, to_real

# What the papers put where: RoPE's bank, RFA's whole bank in every head, none; the banded bank of SC-RFA otherwise.
ROPE, WHOLE, STILL = {"B1", "B3"}, {"M1"}, {"B2", "M2.5"}
FLOOR = 1e-6


def softplus(raw):
    return math.log1p(math.exp(raw)) + FLOOR


def paired(bank):
    """omega, -omega, …"""
    return [sign * omega for omega in bank for sign in (1, -1)]


def frequencies(name, heads, dims):
    """`[H][D]`; within a band from slow to fast."""
    if name in STILL:
        return [[0.0] * dims for _ in range(heads)]
    if name in ROPE:
        return [[10000 ** (-n / dims) for n in range(dims)] for _ in range(heads)]
    if name in WHOLE:
        return [paired([10000 ** (-n / (dims / 2)) for n in range(dims // 2)]) for _ in range(heads)]
    size = heads * dims // 2
    bank = sorted(10000 ** (-n / size) for n in range(size))
    return [paired(bank[h * dims // 2 : (h + 1) * dims // 2]) for h in range(heads)]


def decays(name, heads, dims):
    """b times the fastest frequency of the band, zero for the slowest quarter of the heads but in AFA, where a decay is
    learned from here on; B1, B2 and M2.6 have none.

    To float32, as the package keeps them.
    """
    if name in {"M2.6", "B1", "B2"}:
        return [0.0] * heads
    damping = 5.0 if name == "M3" else 0.05
    if name.startswith("M2-b"):
        damping = float(name.removeprefix("M2-b"))
    banded = frequencies("M2", heads, dims)
    still = 0 if name == "AFA" else heads // 4
    return [0.0 if h < still else float(np.float32(damping * max(banded[h]))) for h in range(heads)]


def grown(mu, lag):
    return lag if mu == 0 else (1 - math.exp(-2 * mu * lag)) / (2 * mu)


def projected(weights, name, x, heads):
    """`[B, N, d]` → complex `[B, N, H, D]`."""
    bias = weights.get(f"drift.{name}", 0.0)
    return to_complex((x @ weights[f"{name}.weight"].T + bias).reshape(*x.shape[:2], heads, -1))


def mixed(weights, name, x, heads):
    """out `[B, N, d]`, log_precision `[B, N, H]`, latent `[B, N, H, 2D]` of one mixer of the model `name`."""
    weights = {key: np.asarray(value, np.float64) for key, value in weights.items()}
    x = np.asarray(x, np.float64)
    q, k, v = (projected(weights, part, x, heads) for part in ("query", "key", "value"))
    row = {"B": softmax_row, "M": robust_row, "A": adaptive_row, "R": radial_row}[name[0]]
    latent, log_precision = np.zeros_like(v), np.zeros(v.shape[:3])
    magnitude2 = (np.abs(v) ** 2).sum((2, 3))
    for b, i, h in np.ndindex(v.shape[:3]):
        token = Row(name, weights, q[b, : i + 1, h], k[b, : i + 1, h], v[b, : i + 1, h], magnitude2[b], h, heads)
        latent[b, i, h], log_precision[b, i, h] = row(token)
    latent = to_real(latent)
    out = latent.reshape(*x.shape[:2], -1) @ weights["output.weight"].T + weights.get("drift.output", 0.0)
    return out, log_precision, latent


class Row:
    """The queries, keys and values `[i + 1, D]` of one head up to token i, and the head's numbers."""

    def __init__(self, name, weights, q, k, v, magnitude2, head, heads):
        dims = v.shape[1]
        self.name, self.q, self.k, self.v, self.magnitude2 = name, q[-1], k, v, magnitude2
        self.head, self.heads, self.dims, self.last = head, heads, dims, len(v) - 1
        self.omega = np.array(frequencies(name, heads, dims)[head])
        self.mu = decays(name, heads, dims)[head]
        self.raw = {key.removeprefix("dynamics."): value[head] for key, value in weights.items() if value.ndim == 1}

    def scalar(self, name):
        return softplus(self.raw[name])

    @property
    def noises(self):
        """sigma² (sigma²/(2 mu) is learned where mu > 0), eta², gamma²."""
        if self.name == "M2.6":
            return 0.0, 0.0, self.scalar("gamma2_raw")
        process = self.scalar("process_raw") * (2 * self.mu if self.mu > 0 else 1)
        return process, self.scalar("eta2_raw"), self.scalar("gamma2_raw")

    def variance(self, lag):
        sigma2, eta2, gamma2 = self.noises
        return sigma2 * grown(self.mu, lag) + eta2 * math.exp(-2 * self.mu * lag) + gamma2

    @property
    def student(self):
        """nu and kappa."""
        nu = 2 + self.dims * self.scalar("nu_raw")
        return nu, (nu + self.dims) / self.dims

    def turned(self, vector, lag):
        return np.exp(1j * self.omega * lag) * vector

    def past(self):
        """j and the lag of every key."""
        return [(j, self.last - j) for j in range(self.last + 1)]


def softmax(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def softmax_row(row):
    """B1 to B4. RoPE turns q and k forward, and values not at all; a dot product carries no evidence."""
    scores = []
    for j, lag in row.past():
        score = np.vdot(row.turned(row.q, lag), row.k[j]).real / math.sqrt(2 * row.dims)
        if row.name == "B2":
            score -= 2 ** (-8 * (row.head + 1) / row.heads) * lag
        scores.append(math.exp(-row.mu * lag) * score)
    return sum(w * value for w, value in zip(softmax(scores), row.v, strict=True)), 0.0


def robust_row(row):
    """M1 and M2 with its ablations and extensions: transport, score, and decay after the softmax."""
    (nu, kappa), tau, (_, eta2, gamma2) = row.student, row.scalar("tau_raw"), row.noises
    scores, values, evidence = [], [], 0.0
    for j, lag in row.past():
        # A horizon counts for decay and variance, and not for rotations, which the output projection absorbs.
        ahead = lag + (row.name == "M2-ahead")
        q, k, keep = row.q, row.k[j], math.exp(-row.mu * ahead)
        if row.name == "M2.6":
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
        residual2 = np.sum(np.abs(q - keep * row.turned(k, lag)) ** 2)
        prior = 1 / (eta2 + gamma2 if row.name == "M2.2" else row.variance(ahead))
        scale = 1 / (eta2 + gamma2) if row.name in {"M2.2", "M2.3"} else prior
        if row.name in {"M2.1", "M2.6"}:
            weight = math.exp(-scale * residual2 / nu)
            scores.append(tau * (math.log(prior) - scale * residual2 / nu))
        else:
            weight = 1 / (1 + scale * residual2 / nu)
            scores.append(tau * (math.log(prior) - kappa * math.log(1 + scale * residual2 / nu)))
        evidence += weight * prior
        values.append(keep * (row.v[j] if row.name == "M2.4" else row.turned(row.v[j], lag)))
    mean = sum(w * value for w, value in zip(softmax(scores), values, strict=True))
    return fused(row, mean, evidence), math.log(evidence)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def fused(row, mean, evidence):
    """The estimate and the token's own value, by one of the confidence gates."""
    if "confidence.scale" not in row.raw:
        return mean
    scale, offset = row.raw["confidence.scale"], row.raw["confidence.offset"]
    if row.name == "M2-linear":
        share = sigmoid(row.raw["confidence.delta_raw"])
        return (1 - share) * sigmoid(scale * evidence - offset) * mean + share * row.v[-1]
    gate = evidence**scale / (evidence**scale + math.exp(offset))
    return gate * mean + (1 - gate) * row.v[-1]


def adaptive_row(row):
    """AFA: rational weights, the token's own value mixed in, and one step ahead."""
    row.mu, tau = row.mu * row.raw["alpha"] ** 2, row.scalar("tau_raw")
    inverse, values = [], []
    for j, lag in row.past():
        keep = math.exp(-row.mu * lag)
        inverse.append(row.variance(lag) + np.sum(np.abs(row.q - keep * row.turned(row.k[j], lag)) ** 2))
        values.append(keep * row.turned(row.v[j], lag))
    total = sum(part**-tau for part in inverse)
    mean = sum(part**-tau / total * value for part, value in zip(inverse, values, strict=True))
    share = 1 / (1 + math.exp(-row.raw["delta"]))
    fused = (1 - share) * row.v[-1] + share * mean
    return math.exp(-row.mu) * row.turned(fused, 1), math.log(sum(1 / part for part in inverse))


def radial_row(row):
    """RT: directions weighed by their angular precision; the part of the mean across the token's own direction."""
    (nu, kappa), tau, eps = row.student, row.scalar("tau_raw"), 1e-6
    q, k, v = (part / np.maximum(np.linalg.norm(part, axis=-1, keepdims=True), 1e-6) for part in (row.q, row.k, row.v))
    scores, values, evidence = [], [], 0.0
    for j, lag in row.past():
        reach2 = row.magnitude2[j] * math.exp(-2 * row.mu * lag)
        angle = row.variance(0) / (row.magnitude2[row.last] + eps) + row.variance(lag) / (reach2 + eps)
        precision = 1 / (angle + row.scalar("floor_raw"))
        distance = precision * (2 - 2 * np.vdot(q, row.turned(k[j], lag)).real) / nu
        scores.append(tau * (math.log(precision) - kappa * math.log(1 + distance)))
        values.append(row.turned(v[j], lag))
        evidence += precision / (1 + distance)
    mean = sum(w * value for w, value in zip(softmax(scores), values, strict=True))
    return mean - np.vdot(v[-1], mean).real * v[-1], math.log(evidence)
