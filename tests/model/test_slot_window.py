"""The window of exact tokens before the slots, against an independent loop. A stream: test_slot_options.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rfa.model.attention.reference import banded_attention, windowed_attention
from rfa.model.dynamics import Dynamics
from rfa.model.language import SlotState
from rfa.model.layers import PROCESS_GATE_SCALE
from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag
from rfa.model.recurrence.window import empty_ring, window_scan
from tests.model.test_slot_options import model_of, tokens_of
from tests.model.test_slots import lag_of, make, relative
from tests.rounding import assert_within_rounding, relative_error

WINDOWS = [1, 4, 16]


def dynamics_of(parameters, width):
    """Heads that share nu, tau and gamma² with the slots; the first does not decay."""
    heads = len(parameters.nu)
    mu = torch.linspace(0, 0.3, heads, dtype=torch.float64)
    return Dynamics(
        mu=mu.to(parameters.nu.dtype),
        omega=torch.zeros(heads, width // 2, dtype=torch.float64),
        sigma2=torch.linspace(0.1, 0.4, heads, dtype=torch.float64).to(parameters.nu.dtype),
        eta2=(parameters.residual_noise - parameters.gamma2).abs() + 0.1,
        gamma2=parameters.gamma2,
        nu=parameters.nu,
        tau=parameters.tau,
    )


def loop_oracle(tokens, means, precisions, parameters, lag, dynamics, window, at_rest):
    """A list of recent tokens, slots that take what falls off it, and one softmax over both: scalar by scalar."""
    q, k, v, pi, noise = (x.double().numpy() for x in tokens)
    decay, nu, _, exponent, residual_noise, gamma2, tau, delta = (x.double().numpy() for x in parameters)
    far, late = (x.double().numpy() for x in lag)
    mu, sigma2, eta2 = (x.double().numpy() for x in (dynamics.mu, dynamics.sigma2, dynamics.eta2))
    kappa = dynamics.kappa.double().numpy()
    batch, length, heads, width = q.shape
    out, evidence, log_norm = np.zeros_like(q), np.zeros(q.shape[:3]), np.zeros(q.shape[:3])
    m, p = means.double().numpy().copy(), precisions.double().numpy().copy()
    for b in range(batch):
        for h in range(heads):
            nothing = (np.zeros(width), np.zeros(width), np.zeros(len(p[b, h])), at_rest[h].numpy())
            ring = [nothing] * window
            for t in range(length):
                ring.append((k[b, t, h], v[b, t, h], pi[b, t, h], noise[b, t, h]))
                oldest = ring.pop(0)
                z = np.concatenate(oldest[:2])
                logits, values = [], []
                for s in range(len(p[b, h])):
                    start = decay[h, s] * m[b, h, s]
                    prior = decay[h, s] ** 2 / p[b, h, s] + oldest[3][s]
                    r2 = np.sum((z[:width] - start[:width]) ** 2)
                    w = (1 + r2 / (nu[h] * (prior + residual_noise[h]))) ** -exponent[h]
                    p[b, h, s] = 1 / prior + w * oldest[2][s]
                    m[b, h, s] = start + delta[h] * w * oldest[2][s] / p[b, h, s] * (z - start)
                    seen = far[h, s] * m[b, h, s]
                    spread = far[h, s] ** 2 / p[b, h, s] + late[h, s] + gamma2[h]
                    x = np.sum((q[b, t, h] - seen[:width]) ** 2) / (nu[h] * spread)
                    logits.append(tau[h] * (-math.log(spread) - parameters.kappa[h].item() * math.log1p(x)))
                    values.append(seen[width:])
                    evidence[b, t, h] += 1 / (1 + x) / spread
                for age, (key, value, _, _) in enumerate(reversed(ring)):
                    if age > t:
                        continue
                    e = math.exp(-mu[h] * age)
                    grown = (1 - e * e) / (2 * mu[h]) if mu[h] > 0 else age
                    spread = sigma2[h] * grown + eta2[h] * e * e + gamma2[h]
                    x = np.sum((q[b, t, h] - e * key) ** 2) / (nu[h] * spread)
                    logits.append(tau[h] * (-math.log(spread) - kappa[h] * math.log1p(x)))
                    values.append(e * value)
                    evidence[b, t, h] += 1 / (1 + x) / spread
                total = sum(math.exp(value) for value in logits)
                log_norm[b, t, h] = math.log(total)
                out[b, t, h] = sum(math.exp(a) / total * value for a, value in zip(logits, values, strict=True))
    return out, log_norm, evidence, m, p


def problem(window, length=23, dtype=torch.float64):
    shape = (2, length, 3, 4, 4)
    tokens, means, precisions, parameters = make(*shape, dtype=dtype)
    at_rest = torch.linspace(0.05, 0.3, 12, dtype=torch.float64).reshape(3, 4)
    ring = empty_ring(window, at_rest.to(dtype), 8).expand(2, -1, -1, -1)
    return tokens, means, precisions, parameters, lag_of(parameters, window, dtype), ring, at_rest


def run(tokens, means, precisions, ring, parameters, lag, **options):
    return window_scan(
        tokens, means, precisions, ring, parameters, dynamics_of(parameters, tokens.k.shape[-1]), lag=lag, **options
    )


@pytest.mark.parametrize("window", [*WINDOWS, 40])
def test_window_and_slots_match_the_loop(window):
    """In blocks and in one softmax with the slots; the last window is longer than the sequence."""
    tokens, means, precisions, parameters, lag, ring, at_rest = problem(window)
    dynamics = dynamics_of(parameters, 8)
    expected = loop_oracle(tokens, means, precisions, parameters, lag, dynamics, window, at_rest)
    readout, m, p, after = run(tokens, means, precisions, ring, parameters, lag)
    for actual, target in zip((*readout, m, p), expected, strict=True):
        assert relative(actual, target) <= 1e-12
    newest = torch.cat([tokens.k, tokens.v, tokens.measurement, tokens.process], -1)[:, -min(window, 23) :]
    assert torch.equal(after[:, -newest.shape[1] :], newest)


@pytest.mark.parametrize("window", [*WINDOWS, 40])
def test_all_pairs_at_once_are_the_blocks(window):
    """Both round the same sums; the tables of the blocks are looked up, the others' are computed."""
    tokens, _, _, parameters, _, ring, _ = problem(window)
    seen = torch.cat([ring, torch.cat(tokens[1:], -1)], dim=1)[:, 1:]
    k, v, measurement = seen[..., :8], seen[..., 8:16], seen[..., 16]
    arguments = tokens.q, k, v, dynamics_of(parameters, 8)
    is_token = measurement[..., 0] > 0
    banded, whole = (
        attention(*arguments, window=window, is_token=is_token) for attention in (banded_attention, windowed_attention)
    )
    for found, expected in zip(whole, banded, strict=True):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [4, *(pytest.param(window, marks=pytest.mark.slow) for window in (1, 16))])
def test_gradients_are_those_of_the_eager_scan(window):
    """Float32 against the eager float64, through both parts of the softmax."""
    names = (*SlotInputs._fields, "means", "precisions", *(f"lag.{name}" for name in SlotLag._fields))

    def gradients(dtype, impl):
        tokens, means, precisions, parameters, lag, ring, _ = problem(window, dtype=dtype)
        leaves = [x.detach().clone().requires_grad_() for x in (*tokens, means, precisions, *lag)]
        readout, *_ = run(SlotInputs(*leaves[:5]), *leaves[5:7], ring, parameters, SlotLag(*leaves[7:]), impl=impl)
        weight = torch.randn(readout.out.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        return torch.autograd.grad((readout.out * weight).sum(), leaves)

    exact = gradients(torch.float64, "reference")

    def errors(impl):
        found = gradients(torch.float32, impl)
        return {name: relative_error(actual, target) for name, actual, target in zip(names, found, exact, strict=True)}

    assert_within_rounding(errors("numba"), lambda: errors("reference"), torch.float32)


@torch.no_grad()
def test_slots_are_read_across_the_window() -> None:
    """The transport e^{-mu_s W}, the noise of W tokens, and a ring at rest, from the model's own parameters."""
    model = model_of(window=16)
    mixer = model.blocks[0].mixer
    steady = torch.nn.functional.softplus(mixer.dynamics.process_raw)[:, None] + 1e-6
    once = steady * (1 - torch.exp(-2 * mixer.slot_log_mu.exp()))
    assert torch.allclose(mixer.initial_ring()[3, :, -5:], once + PROCESS_GATE_SCALE)
    noise, spread = torch.zeros_like(steady), torch.exp(-mixer.slot_log_mu.exp()).square()
    for _ in range(16):
        noise = spread * noise + once
    assert torch.allclose(mixer.own_process(16), noise, rtol=1e-4)


def test_refusals() -> None:
    model, plain = model_of(window=4), model_of()
    tokens = tokens_of()
    with pytest.raises(ValueError, match="the model has a window of 4 tokens, but the ring in the state has 0"):
        model.step(tokens[:, 0], SlotState(*model.init_state(2)[:3]))
    with pytest.raises(ValueError, match="the model has a window of 0 tokens, but the ring in the state has 4"):
        plain.step(tokens[:, 0], model.init_state(2))
    with pytest.raises(ValueError, match="window must be an integer >= 0, got -1"):
        model_of(window=-1)
    with pytest.raises(ValueError, match=r"a window requires .*got .*kernel 'gaussian'"):
        model_of(window=4, kernel="gaussian")
    with pytest.raises(ValueError, match="n_slots 0"):
        model_of(window=4, n_slots=0)
