"""Gated slots: against an independent loop, against a Kalman filter, and the compiled scan against the eager one."""

import math

import numba
import numpy as np
import pytest
import torch

from rfa.model.recurrence.slots import call_untraced, slot_scan
from rfa.model.recurrence.slots_reference import (
    SlotInputs,
    SlotLag,
    SlotOptions,
    SlotParameters,
    slot_scan_reference,
    slot_step,
)

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


def lag_of(parameters, tokens_behind=3.0, dtype=torch.float64):
    """Slots that lag behind the query by some tokens, each with a decay and a steady variance of its own."""
    table = parameters.decay.shape[-2:]
    rates = torch.linspace(0.05, 0.6, table.numel(), dtype=torch.float64).reshape(table)
    transport = torch.exp(-rates * tokens_behind)
    return SlotLag(transport.to(dtype), (0.4 * (1 - transport.square())).to(dtype))


def loop_oracle(tokens, means, precisions, parameters, inner, innovation="key", lag=None):
    """The slot filter of docs/MATH.md §2, scalar by scalar; shares nothing with the implementation."""
    q, k, v, pi, noise = (tensor.double().numpy() for tensor in tokens)
    decay, nu, kappa, exponent, residual_noise, gamma2, tau, delta = (p.double().numpy() for p in parameters)
    far, late = (np.ones_like(decay), np.zeros_like(decay)) if lag is None else (x.double().numpy() for x in lag)
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
                    part = range(width) if innovation == "key" else range(width, 2 * width)
                    for _ in range(inner):
                        r2 = sum((z[d] - mean[d]) ** 2 for d in part)
                        w = (1 + r2 / (nu[h] * (1 / prior + residual_noise[h]))) ** (-exponent[h])
                        posterior = prior + w * pi[b, t, h, s]
                        mean = start + delta[h] * w * pi[b, t, h, s] / posterior * (z - start)
                    m[b, h, s], p[b, h, s] = mean, posterior
                    spread = far[h, s] ** 2 / posterior + late[h, s] + gamma2[h]
                    x = sum((q[b, t, h, d] - far[h, s] * mean[d]) ** 2 for d in range(width)) / (nu[h] * spread)
                    logits.append(tau[h] * (-math.log(spread) - kappa[h] * math.log(1 + x)))
                    evidence[b, t, h] += 1 / (1 + x) / spread
                total = sum(math.exp(value) for value in logits)
                log_norm[b, t, h] = math.log(total)
                for s, value in enumerate(logits):
                    out[b, t, h] += math.exp(value) / total * far[h, s] * m[b, h, s, width:]
    return out, log_norm, evidence, m, p


def relative(actual, expected):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("innovation", ["key", "value"])
@pytest.mark.parametrize("is_late", [False, True], ids=["here", "late"])
def test_reference_matches_the_loop(shape, inner, innovation, is_late):
    tokens, means, precisions, parameters = make(*shape)
    rule = {"inner": inner, "innovation": innovation, "lag": lag_of(parameters) if is_late else None}
    expected = loop_oracle(tokens, means, precisions, parameters, **rule)
    readout, m, p = slot_scan_reference(tokens, means, precisions, parameters, SlotOptions(**rule))
    for actual, target in zip((*readout, m, p), expected, strict=True):
        assert relative(actual, target) <= 1e-12


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


LEAVES = [*SlotInputs._fields, "initial means", "initial precisions", *SlotParameters._fields, *SlotLag._fields]


def gradients(impl, tokens, means, precisions, parameters, weights, rule):
    """Read-out, final state and the gradients of a loss on the read-out and its log_norm."""
    lag = lag_of(parameters, dtype=tokens.k.dtype)
    leaves = [leaf.detach().clone().requires_grad_() for leaf in (*tokens, means, precisions, *parameters, *lag)]
    readout, m, p = slot_scan(
        SlotInputs(*leaves[:5]),
        *leaves[5:7],
        SlotParameters(*leaves[7:15]),
        lag=SlotLag(*leaves[15:]),
        impl=impl,
        **rule,
    )
    on_out, on_norm = (weight.to(readout.out.dtype) for weight in weights)
    loss = (readout.out * on_out).sum() + (readout.log_norm * on_norm).sum()
    return [*readout, m, p, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


def with_own_lags(tokens, parameters):
    """The same slots over tokens whose lags differ, from none to three."""
    batch, length = tokens.k.shape[:2]
    lags = torch.rand(batch, length, 1, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3
    return parameters._replace(decay=(parameters.decay.double() ** lags).to(parameters.decay.dtype))


def made(shape, dtype, exponent, are_apart=False):
    """What `make` makes, with another exponent of the weight if there is one, and lags of the tokens' own."""
    *arguments, parameters = make(*shape, dtype=dtype)
    if are_apart:
        parameters = with_own_lags(arguments[0], parameters)
    if exponent is not None:
        parameters = parameters._replace(weight_exponent=torch.full_like(parameters.weight_exponent, exponent))
    return *arguments, parameters


def assert_as_exact_as_eager(shape, impl, rule, exponent=None, are_apart=False):
    """Outputs, states and every gradient: error against float64 at most twice that of eager float32 (plus one
    rounding).
    """
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(*shape[:3], 2 * shape[4], generator=generator), torch.randn(*shape[:3], generator=generator)
    double, single = (
        (*made(shape, dtype, exponent, are_apart), weights, rule) for dtype in (torch.float64, torch.float32)
    )
    results = gradients(impl, *single), gradients("reference", *single), gradients("reference", *double)
    epsilon = torch.finfo(torch.float32).eps
    names = ["out", "log_norm", "precision", "means", "precisions", *LEAVES]
    for name, found, eager, exact in zip(names, *results, strict=True):
        # Rounding accumulates over the sum of B·N·S·D terms of a parameter gradient, and along the chain of K passes.
        rounding = epsilon * math.sqrt(shape[0] * shape[1] * shape[3] * shape[4]) * rule.get("inner", 1)
        if float(exact.detach().norm()) == 0:
            assert float(found.norm()) <= 1e-6, name
            continue
        assert relative(found, exact) <= 2 * relative(eager, exact) + rounding, name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("inner", [1, 2, 3])
@pytest.mark.parametrize("innovation", ["key", "value"])
def test_compiled_scan_matches_reference(shape, inner, innovation):
    assert_as_exact_as_eager(shape, "numba", {"inner": inner, "innovation": innovation})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_scan_of_weight_one_matches_reference(shape):
    assert_as_exact_as_eager(shape, "numba", {}, exponent=0.0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_scan_of_own_lags_matches_reference(shape):
    assert_as_exact_as_eager(shape, "numba", {}, are_apart=True)


def test_reference_of_own_lags_steps_by_each():
    tokens, means, precisions, parameters = make(2, 6, 2, 3, 4)
    apart = with_own_lags(tokens, parameters)
    whole, m, p = slot_scan_reference(tokens, means, precisions, apart)
    state = means, precisions
    for i in range(6):
        one = parameters._replace(decay=apart.decay[0, i])
        part = SlotInputs(*(x[:1, i] for x in tokens))
        readout, *state = slot_step(part, *(x[:1] for x in state), one)
        assert torch.equal(readout.out, whole.out[:1, i])
    assert torch.equal(state[0], m[:1]) and torch.equal(state[1], p[:1])


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize("lengths", [[5, 0, 9, 1, 8], [0, 0, 0, 0, 0]], ids=str)
def test_rows_of_different_lengths_are_each_row_alone(impl, lengths):
    """Bit for bit, and whatever is behind them; there the read-outs are 0."""
    tokens, means, precisions, parameters = make(5, 9, 2, 4, 4, dtype=torch.float32)
    counts = torch.tensor(lengths)
    is_behind = (torch.arange(9) >= counts[:, None])[..., None, None]
    poisoned = SlotInputs(*(x.masked_fill(is_behind, torch.nan) for x in tokens))
    readout, m, p = slot_scan(poisoned, means, precisions, parameters, inner=2, lengths=counts.int(), impl=impl)
    for b, length in enumerate(lengths):
        row = slice(b, b + 1)
        expected = means[row], precisions[row]
        if length:
            own = SlotInputs(*(x[row, :length] for x in tokens))
            alone, *expected = slot_scan(own, *expected, parameters, inner=2, impl=impl)
            assert all(torch.equal(x[row, :length], y) for x, y in zip(readout, alone, strict=True))
        assert torch.equal(m[row], expected[0]) and torch.equal(p[row], expected[1])
        assert not any(part[row, length:].any() for part in readout)


@pytest.mark.parametrize("are_apart", [False, True], ids=["one", "own"])
def test_compiled_gradients_of_rows_of_different_lengths(are_apart):
    rule = {"inner": 2, "lengths": torch.tensor([4, 7])}
    assert_as_exact_as_eager((2, 7, 3, 5, 4), "numba", rule, are_apart=are_apart)


@pytest.mark.slow  # compiles a parallel function with numba, changed seldom
def test_a_compiled_function_may_be_the_first_to_call_a_kernel():
    @numba.njit(parallel=True)
    def doubled(values):
        out = np.empty_like(values)
        for i in numba.prange(len(values)):
            out[i] = 2 * values[i]
        return out

    def kernel(values):
        return torch.from_numpy(doubled(values.numpy()))

    compiled = torch.compile(lambda values: call_untraced(kernel, values + 1) - 1, backend="eager")
    torch.testing.assert_close(compiled(torch.arange(3.0)), torch.tensor([1.0, 3.0, 5.0]))


def test_refusals_name_what_was_expected():
    tokens, means, precisions, parameters = make(2, 4, 2, 3, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"means must have shape \[2, 2, 3, 8\], got \[2, 2, 3, 7\]"):
        slot_scan(tokens, means[..., :-1], precisions, parameters)
    with pytest.raises(ValueError, match=r"decay must have shape \[2, 4, 2, 3\], got \[2, 3, 2, 3\]"):
        slot_scan(tokens, means, precisions, parameters._replace(decay=parameters.decay.expand(2, 3, 2, 3)))
    with pytest.raises(ValueError, match=r"innovation must be one of .*, got 'query'"):
        slot_scan(tokens, means, precisions, parameters, innovation="query")
    with pytest.raises(ValueError, match="float64"):
        slot_scan(*make(2, 4, 2, 3, 2), impl="numba")
    with pytest.raises(ValueError, match="impl must be"):
        slot_scan(tokens, means, precisions, parameters, impl="cuda")
    for lengths, reason in {
        (4,): r"lengths must have shape \[2\], got \[1\]",
        (4.0, 1.0): "lengths must be int32 or int64, got torch.float32",
        (4, 5): r"lengths must be between 0 and 4, the number of tokens, got \[4, 5\]",
        (-1, 4): r"lengths must be between 0 and 4, the number of tokens, got \[-1, 4\]",
    }.items():
        with pytest.raises(ValueError, match=reason):
            slot_scan(tokens, means, precisions, parameters, lengths=torch.tensor(lengths))
    with pytest.raises(ValueError, match="at least one token"):
        slot_scan(SlotInputs(*(x[:, :0] for x in tokens)), means, precisions, parameters)
