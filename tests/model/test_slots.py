"""Gated slots: against an independent loop, against a Kalman filter, and the compiled scan against the eager one."""

import math

import numpy as np
import pytest
import torch

from model.recurrence.slots import slot_scan
from model.recurrence.slots_reference import SlotInputs, SlotParameters, slot_scan_reference, slot_step

SHAPES = [(2, 7, 3, 5, 4), (1, 33, 2, 16, 6), (3, 1, 1, 1, 2)]


def make(batch, length, heads, slots, complex_dims, dtype=torch.float64, seed=0):
    """Random tokens, state and parameters; drawn in float64 so that dtypes share their values."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def uniform(low, high, *shape):
        return (low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    width = 2 * complex_dims
    tokens = SlotInputs(
        normal(batch, length, heads, width),
        normal(batch, length, heads, width),
        normal(batch, length, heads, width),
        uniform(0.1, 3.0, batch, length, heads, slots),
        uniform(0.01, 0.3, batch, length, heads, slots),
    )
    parameters = SlotParameters(
        decay=uniform(0.5, 1.0, heads, slots),
        nu=uniform(3, 9, heads),
        kappa=uniform(1, 2, heads),
        weight_exponent=uniform(0.3, 2, heads),
        residual_noise=uniform(0.5, 2, heads),
        gamma2=uniform(0.1, 1, heads),
        tau=uniform(0.5, 2, heads),
        delta=uniform(0.5, 1, heads),
    )
    return tokens, normal(batch, heads, slots, 2 * width), uniform(0.3, 2, batch, heads, slots), parameters


def loop_oracle(tokens, means, precisions, parameters, inner):
    """math.md's slot filter, scalar by scalar; shares nothing with the implementation."""
    q, k, v, pi, noise = (tensor.double().numpy() for tensor in tokens)
    decay, nu, kappa, exponent, residual_noise, gamma2, tau, delta = (p.double().numpy() for p in parameters)
    m, p = means.double().numpy().copy(), precisions.double().numpy().copy()
    batch, length, heads, width = q.shape
    out = np.zeros_like(q)
    log_norm, evidence = np.zeros(q.shape[:3]), np.zeros(q.shape[:3])
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                z = np.concatenate([k[b, t, h], v[b, t, h]])
                logits = []
                for s in range(p.shape[2]):
                    start = decay[h, s] * m[b, h, s]
                    prior = 1.0 / (decay[h, s] ** 2 / p[b, h, s] + noise[b, t, h, s])
                    mean = start
                    for _ in range(inner):
                        r2 = sum((k[b, t, h, d] - mean[d]) ** 2 for d in range(width))
                        w = (1 + r2 / (nu[h] * (1 / prior + residual_noise[h]))) ** (-exponent[h])
                        posterior = prior + w * pi[b, t, h, s]
                        mean = start + delta[h] * w * pi[b, t, h, s] / posterior * (z - start)
                    m[b, h, s], p[b, h, s] = mean, posterior
                    spread = 1 / posterior + gamma2[h]
                    x = sum((q[b, t, h, d] - mean[d]) ** 2 for d in range(width)) / (nu[h] * spread)
                    logits.append(tau[h] * (-math.log(spread) - kappa[h] * math.log(1 + x)))
                    evidence[b, t, h] += 1 / (1 + x) / spread
                total = sum(math.exp(value) for value in logits)
                log_norm[b, t, h] = math.log(total)
                for s, value in enumerate(logits):
                    out[b, t, h] += math.exp(value) / total * m[b, h, s, width:]
    return out, log_norm, evidence, m, p


def relative(actual, expected):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("inner", [1, 3])
def test_reference_matches_the_loop(shape, inner):
    tokens, means, precisions, parameters = make(*shape)
    expected = loop_oracle(tokens, means, precisions, parameters, inner)
    readout, m, p = slot_scan_reference(tokens, means, precisions, parameters, inner=inner)
    for actual, wanted in zip((*readout, m, p), expected, strict=True):
        assert relative(actual, wanted) <= 1e-12


def test_unit_weight_is_a_kalman_filter():
    """With kappa' = 0 and delta = 1 one slot is a scalar-covariance Kalman filter with time-varying noises."""
    tokens, means, precisions, parameters = make(1, 40, 1, 1, 3)
    parameters = parameters._replace(weight_exponent=torch.zeros(1).double(), delta=torch.ones(1).double())
    _, m, p = slot_scan_reference(tokens, means, precisions, parameters)
    z = torch.cat([tokens.k, tokens.v], -1)[0, :, 0].numpy()
    f = float(parameters.decay)
    mean, cov = means[0, 0, 0].numpy(), 1 / float(precisions)
    for t in range(40):
        mean, cov = f * mean, f * cov * f + float(tokens.process[0, t])
        innovation_cov = cov + 1 / float(tokens.measurement[0, t])
        gain = cov / innovation_cov
        mean, cov = mean + gain * (z[t] - mean), (1 - gain) * cov
    assert relative(m[0, 0, 0], mean) <= 1e-12
    assert abs(float(p) * cov - 1) <= 1e-12


def gradients(scan, tokens, means, precisions, parameters, weight):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in (*tokens, means, precisions, *parameters)]
    readout, m, p = scan(SlotInputs(*leaves[:5]), leaves[5], leaves[6], SlotParameters(*leaves[7:]))
    loss = (readout.out * weight.to(readout.out.dtype)).sum()
    return [*readout, m, p], torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_scan_matches_reference(shape):
    """Outputs, states and every gradient: error against float64 at most twice that of eager float32 (plus one
    rounding).
    """
    weight = torch.randn(shape[0], shape[1], shape[2], 2 * shape[4], generator=torch.Generator().manual_seed(1))
    exact = gradients(slot_scan_reference, *make(*shape), weight)
    eager = gradients(slot_scan_reference, *make(*shape, dtype=torch.float32), weight)
    fused = gradients(lambda *a: slot_scan(*a, impl="numba"), *make(*shape, dtype=torch.float32), weight)
    epsilon = torch.finfo(torch.float32).eps
    names = [
        "out",
        "log_norm",
        "precision",
        "means",
        "precisions",
        *SlotInputs._fields,
        "m0",
        "p0",
        *SlotParameters._fields,
    ]
    for name, f, e, x in zip(
        names, [*fused[0], *fused[1]], [*eager[0], *eager[1]], [*exact[0], *exact[1]], strict=True
    ):
        scale = float(x.detach().norm())
        if scale == 0:  # one slot: the softmax over slots has no gradient
            assert float(f.norm()) <= 1e-6, name
            continue
        # Rounding accumulates over the sum of N·S·D terms of a parameter gradient.
        rounding = epsilon * math.sqrt(shape[1] * shape[3] * shape[4])
        assert relative(f, x) <= 2 * relative(e, x) + rounding, name


def test_segments_continue_the_scan():
    tokens, means, precisions, parameters = make(2, 24, 2, 4, 4, dtype=torch.float32)
    for impl in ("reference", "numba"):
        whole, m, p = slot_scan(tokens, means, precisions, parameters, impl=impl)
        parts, state = [], (means, precisions)
        for start, stop in ((0, 1), (1, 11), (11, 24)):
            segment = SlotInputs(*(tensor[:, start:stop] for tensor in tokens))
            readout, *state = slot_scan(segment, *state, parameters, impl=impl)
            parts.append(readout.out)
        assert torch.equal(torch.cat(parts, 1), whole.out), impl
        assert torch.equal(state[0], m) and torch.equal(state[1], p), impl


def test_batch_composition_changes_nothing():
    tokens, means, precisions, parameters = make(5, 9, 2, 4, 4, dtype=torch.float32)
    whole, m, _ = slot_scan(tokens, means, precisions, parameters)
    for rows in ([0], [3, 1], [4, 2, 0]):
        part = SlotInputs(*(tensor[rows] for tensor in tokens))
        readout, m_part, _ = slot_scan(part, means[rows], precisions[rows], parameters)
        assert torch.equal(readout.out, whole.out[rows]) and torch.equal(m_part, m[rows])


def test_outlier_moves_a_robust_slot_less():
    tokens, means, precisions, parameters = make(1, 1, 1, 1, 4)
    far = tokens._replace(k=tokens.k + 50, v=tokens.v + 50)
    plain = parameters._replace(weight_exponent=torch.zeros(1).double())

    def shift(chosen):
        _, m, _ = slot_step(SlotInputs(*(x[:, 0] for x in far)), means, precisions, chosen)
        return float((m - parameters.decay * means).norm())

    assert shift(parameters) < 0.2 * shift(plain)


def test_refusals_name_what_was_expected():
    tokens, means, precisions, parameters = make(2, 4, 2, 3, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"means must have shape \[2, 2, 3, 8\], got \[2, 2, 3, 7\]"):
        slot_scan(tokens, means[..., :-1], precisions, parameters)
    with pytest.raises(ValueError, match="impl='numba' cannot run this: it runs inner=1, got inner=2"):
        slot_scan(tokens, means, precisions, parameters, inner=2, impl="numba")
    with pytest.raises(ValueError, match="float64"):
        slot_scan(*make(2, 4, 2, 3, 2), impl="numba")
    with pytest.raises(ValueError, match="impl must be"):
        slot_scan(tokens, means, precisions, parameters, impl="cuda")
    with pytest.raises(ValueError, match="at least one token"):
        slot_scan(SlotInputs(*(x[:, :0] for x in tokens)), means, precisions, parameters)
