"""Float64 loops over complex numbers of the papers' further mixers, one token and one channel at a time.

Written from the formulas; they know nothing of the package but the names of its weights.
"""

from __future__ import annotations

import math

import numpy as np

from tests.model.oracles import to_complex, to_real
from tests.model.variant_loops import decays, frequencies, projected, sigmoid, softmax, softplus


def mixed(name, weights, x, heads):
    """out `[B, N, d]`, log_precision `[B, N, H]`, latent `[B, N, H, 2D]` of one mixer of the variant `name`."""
    weights = {key: np.asarray(value, np.float64) for key, value in weights.items()}
    x = np.asarray(x, np.float64)
    if name.startswith("stack"):
        return stacked(weights, x, heads, passes=int(name[-1]))
    q, k, v = (projected(weights, part, x, heads) for part in ("query", "key", "value"))
    latent, evidence = np.zeros_like(v), np.zeros(v.shape[:3])
    for b, h in np.ndindex(len(x), heads):
        head = Head(name, weights, h, heads, v.shape[-1])
        system = unrolled if name.startswith("unrolled") else {"t": tensor, "p": polar, "A": transformer}[name[0]]
        latent[b, :, h], evidence[b, :, h] = system(head, q[b, :, h], k[b, :, h], v[b, :, h])
    latent = to_real(latent)
    return latent.reshape(*x.shape[:2], -1) @ weights["output.weight"].T, np.log(evidence), latent


class Head:
    """The numbers of one head: frequencies, initial decay, and parameters by name."""

    def __init__(self, name, weights, head, heads, dims):
        self.name, self.head, self.dims = name, head, dims
        self.omega = np.array(frequencies("M2", heads, dims)[head])
        self.start = decays("AFA", heads, dims)[head]
        self.weights = weights

    def raw(self, name):
        return self.weights[name][self.head]

    def scalar(self, name):
        return softplus(float(self.raw(name)))

    def turned(self, z, lag):
        return np.exp(1j * self.omega * lag) * z

    def adaptive(self, name):
        """mu, V(lag) and tau of an AFA kernel."""
        mu = self.start * self.raw(f"{name}.alpha") ** 2
        steady, eta2, gamma2, tau = (self.scalar(f"{name}.{part}_raw") for part in ("process", "eta2", "gamma2", "tau"))

        def variance(lag):
            kept = math.exp(-2 * mu * lag)
            return steady * (1 - kept) + eta2 * kept + gamma2

        return mu, variance, tau


def inner(a, b):
    """The real inner product."""
    return np.vdot(a, b).real


def unit(z):
    return z / max(np.linalg.norm(z), 1e-6)


def step_from(u, t, is_geodesic):
    if not is_geodesic:
        return unit(u + t)
    angle = max(np.linalg.norm(t), 1e-6)
    return math.cos(angle) * u + math.sin(angle) / angle * t


def average(scores, values):
    return sum(w * value for w, value in zip(softmax(scores), values, strict=True))


def polar(head, q, k, v):
    """Algorithm 2 with the directions of 5.3, token by token."""
    (mu_r, v_r, tau_r), (mu_t, v_t, tau_t) = head.adaptive("dynamics.radial"), head.adaptive("dynamics.tangential")
    share, latent, evidence = sigmoid(float(head.raw("delta"))), np.zeros_like(v), np.zeros(len(v))
    for i in range(len(v)):
        u, radial, tangential, lengths, tangents = unit(v[i]), [], [], [], []
        for j in range(i + 1):
            lag = i - j
            there, near = head.turned(k[j], lag), head.turned(v[j], lag)
            off = q[i] - math.exp(-mu_r * lag) * there
            radial.append(v_r(lag) + inner(u, off) ** 2)
            off = q[i] - math.exp(-mu_t * lag) * there
            across = off - inner(u, off) * u
            tangential.append(v_t(lag) + inner(across, across))
            lengths.append(math.exp(-mu_r * lag) * inner(u, near))
            tangents.append(math.exp(-mu_t * lag) * (near - inner(u, near) * u))
        length = average([-tau_r * math.log(part) for part in radial], lengths)
        tangent = average([-tau_t * math.log(part) for part in tangential], tangents)
        state = length * step_from(u, tangent / np.linalg.norm(v[i]), head.name == "polar")
        latent[i] = math.exp(-mu_t) * head.turned((1 - share) * v[i] + share * state, 1)
        evidence[i] = sum(1 / part for part in tangential)
    return latent, evidence


def transformer(head, q, k, v):
    """Algorithm 3."""
    (mu_r, v_r, tau_r), (mu_t, v_t, tau_t) = head.adaptive("dynamics.radial"), head.adaptive("dynamics.tangential")
    first, second = head.weights["gain"][:, head.head]
    latent, evidence = np.zeros_like(v), np.zeros(len(v))
    for i in range(len(v)):
        magnitudes, directions, lengths, turns = [], [], [], []
        for j in range(i + 1):
            lag = i - j
            gap = np.linalg.norm(q[i]) - math.exp(-mu_r * lag) * np.linalg.norm(k[j])
            magnitudes.append(-tau_r * math.log(v_r(lag) + gap**2))
            lengths.append(math.exp(-mu_r * lag) * np.linalg.norm(v[j]))
            off = first * unit(q[i]) - math.exp(-mu_t * lag) * first * unit(head.turned(k[j], lag))
            directions.append(v_t(lag) + inner(off, off))
            turns.append(math.exp(-mu_t * lag) * unit(head.turned(v[j], lag)))
        towards = average([-tau_t * math.log(part) for part in directions], turns)
        length = average(magnitudes, lengths) / math.sqrt(2 * head.dims)
        latent[i] = length * second * unit(unit(v[i]) + towards)
        evidence[i] = sum(1 / part for part in directions)
    return latent, evidence


def channel(head, name, c, lag):
    """E and P of one channel; the process variance of structured noise by its integral."""
    pick = {part: softplus(float(head.raw(f"dynamics.{name}.{part}_raw")[c // 2])) for part in ("mu", "process")}
    eta2, gamma2 = (softplus(float(head.raw(f"dynamics.{name}.{part}_raw")[c // 2])) for part in ("eta2", "gamma2"))
    steady = pick["process"]
    mu = pick["mu"] * (head.scalar("dynamics.step_raw") if head.name == "tensor-floor" else 1.0)
    if head.name == "tensor-separable":
        limit = steady + gamma2
        ratio = (eta2 - steady) / limit
        return math.exp(-mu * lag), (1 - ratio / (1 + ratio) * math.exp(-2 * mu * lag / (1 + ratio))) / limit
    process = steady * (1 - math.exp(-2 * mu * lag))
    if head.name == "tensor-structured":
        share = math.tanh(head.raw(f"dynamics.{name}.share_raw")[c // 2])
        rho, psi = (softplus(float(head.raw(f"dynamics.{name}.{part}_raw")[c // 2])) for part in ("rho", "psi"))
        # ∫ e^{-2 mu (lag - t)} 2 mu steady share e^{-rho t} cos(psi t) dt, by parts.
        a = 2 * mu - rho
        end = math.exp(-rho * lag) * (a * math.cos(psi * lag) + psi * math.sin(psi * lag))
        process += 2 * mu * steady * share * (end - a * math.exp(-2 * mu * lag)) / (a * a + psi * psi)
    return math.exp(-mu * lag), 1 / (process + eta2 * math.exp(-2 * mu * lag) + gamma2)


def tensor(head, q, k, v):
    """Every pair of tokens and every channel apart."""
    own = "value" if head.name == "tensor-separate" else "match"
    nu, tau = 2 + head.dims * head.scalar("dynamics.nu_raw"), head.scalar("dynamics.tau_raw")
    kappa = (nu + head.dims) / head.dims
    step = head.scalar("dynamics.step_raw") if head.name == "tensor-floor" else 1.0
    floor = head.scalar("dynamics.floor_raw") if head.name == "tensor-floor" else 0.0
    latent, evidence = np.zeros_like(v), np.zeros(len(v))
    for i in range(len(v)):
        scores, values = np.zeros((head.dims, i + 1)), np.zeros((head.dims, i + 1), complex)
        for j in range(i + 1):
            lag, distance2 = i - j, 0.0
            for c in range(head.dims):
                kept, precision = channel(head, "match", c, lag)
                turn = np.exp(1j * head.omega[c] * step * lag)
                distance2 += precision * abs(q[i, c] - (kept + floor) * turn * k[j, c]) ** 2
            for c in range(head.dims):
                kept, precision = channel(head, own, c, lag)
                scores[c, j] = tau * (math.log(precision) - kappa * math.log(1 + distance2 / nu))
                values[c, j] = kept * np.exp(1j * head.omega[c] * step * lag) * v[j, c]
                evidence[i] += precision / (1 + distance2 / nu) / head.dims
        latent[i] = [average(list(scores[c]), list(values[c])) for c in range(head.dims)]
    return latent, evidence


def unrolled(head, q, k, v):
    """Algorithm 4 in the frame at rest."""
    mu, variance, tau = head.adaptive("dynamics")
    passes = 1 if head.name == "unrolled-key" else int(head.name[-1])
    sigma2 = 2 * mu * head.scalar("dynamics.process_raw")
    noise, share = variance(1), sigmoid(float(head.raw("delta")))
    mean, precision, latent, evidence = v[0], 1 / noise, np.zeros_like(v), np.zeros(len(v))
    for i in range(len(v)):
        mean = head.turned(mean, 1 if i else 0) * math.exp(-mu)
        precision = 1 / (math.exp(-2 * mu) / precision + sigma2)
        for _ in range(passes):
            off = v[i] - mean
            if head.name == "unrolled-key":
                off = q[i] - to_complex(head.weights["value_key"][head.head] @ to_real(mean))
            weight = 1 / (1 + (precision + 1 / noise) * inner(off, off))
            precision += math.exp(tau * weight) / noise
            mean = mean + share * weight * (v[i] - mean) / (precision * noise)
        latent[i], evidence[i] = mean, precision
    return latent, evidence


def stacked(weights, x, heads, passes):
    """Passes of RFA on the state itself."""
    state = x
    for step in range(passes):
        scale = np.sqrt(np.mean(state**2, -1, keepdims=True) + 1e-6)
        rows = [
            projected(weights, part, state / scale * weights["norm.weight"], heads)
            for part in ("query", "key", "value")
        ]
        latent, evidence = np.zeros_like(rows[2]), np.zeros(rows[2].shape[:3])
        for b, i, h in np.ndindex(evidence.shape):
            latent[b, i, h], evidence[b, i, h] = refined(weights, rows, b, i, h, step)
        flat = to_real(latent)
        state = state + flat.reshape(*x.shape[:2], -1) @ weights["output.weight"].T
    return state - x, np.log(evidence), flat


def refined(weights, rows, b, i, h, step):
    """Estimate, damping and gated prediction of one token in one head."""
    q, k, v = (part[b, :, h] for part in rows)
    heads, dims = rows[0].shape[2:]
    omega, mu = np.array(frequencies("M2", heads, dims)[h]), decays("M2", heads, dims)[h]
    raw = {
        part: softplus(float(weights[f"dynamics.{part}_raw"][h])) for part in ("process", "eta2", "gamma2", "nu", "tau")
    }
    nu = 2 + dims * raw["nu"]
    scores, values, evidence = [], [], 0.0
    for j in range(i + 1):
        lag = i - j
        kept, turn = math.exp(-mu * lag), np.exp(1j * omega * lag)
        process = raw["process"] * (1 - kept**2 if mu > 0 else lag)
        precision = 1 / (process + raw["eta2"] * kept**2 + raw["gamma2"])
        distance2 = precision * np.sum(np.abs(q[i] - kept * turn * k[j]) ** 2) / nu
        scores.append(raw["tau"] * (math.log(precision) - (nu + dims) / dims * math.log(1 + distance2)))
        values.append(kept * turn * v[j])
        evidence += precision / (1 + distance2)
    share = sigmoid(float(weights["delta"][h]))
    estimate = (1 - share) * v[i] + share * average(scores, values)
    gate = sigmoid(float(weights["gate"][step, h]))
    return (1 - gate) * estimate + gate * math.exp(-mu) * np.exp(1j * omega) * estimate, evidence
