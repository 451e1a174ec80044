"""The tolerance of the faster paths: its draws keep the bounds they state, its sums err as sums do, and it can fail."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.api import robust_filter_attention
from rfa.model.attention.reference import AttentionResult
from tests.matching import assert_matches_reference
from tests.rounding import ARITHMETIC, FUNCTION, SHARED, Rounding, allowed_errors, relative_error

U = 2.0**-24
TRIALS = 2000
reference = partial(robust_filter_attention, impl="reference")


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def drawn(function, *arguments, seed=0):
    with Rounding(seed):
        return function(*arguments)


@pytest.mark.parametrize(
    ("function", "bound"),
    [
        (lambda x: x + 3, ARITHMETIC),
        (lambda x: x * x, ARITHMETIC),
        (torch.reciprocal, ARITHMETIC),
        (torch.exp, FUNCTION + SHARED),
        (torch.log, FUNCTION + SHARED),
        (torch.log1p, FUNCTION + SHARED),
        (lambda x: torch.softmax(x, 0), FUNCTION + SHARED),
    ],
)
def test_draws_fill_their_bounds(function, bound):
    x = numbers(TRIALS, dtype=torch.float32).abs() + 0.5
    plain = function(x)
    errors = torch.stack([((drawn(function, x, seed=s).double() - plain) / plain).abs() / U for s in range(8)])
    # The sum of result and draw is rounded once more.
    assert 0.8 * bound <= errors.max() <= bound + 1


def test_gradients_are_drawn_too_and_seeds_repeat():
    def gradient(seed):
        x = numbers(9, dtype=torch.float32).requires_grad_()
        return drawn(lambda: torch.autograd.grad(x.exp().sum(), x)[0], seed=seed)

    assert torch.equal(gradient(1), gradient(1)) and not torch.equal(gradient(1), gradient(2))


@pytest.mark.parametrize(
    "function",
    [torch.t, torch.neg, torch.relu, lambda x: x[1:], lambda x: torch.cat([x, x]), lambda x: x.double().float()],
)
def test_numbers_that_only_move_stay(function):
    x = numbers(3, 4, dtype=torch.float32)
    assert torch.equal(drawn(function, x), function(x))


def test_infinities_stay():
    x = torch.tensor([-math.inf, 0.0, math.inf])
    assert torch.equal(drawn(lambda x: x - 1, x).isinf(), x.isinf())
    assert drawn(lambda x: torch.logsumexp(x, -1), torch.tensor([-math.inf, 1.0])).sub(1).abs() <= 8 * U


def one_behind_the_other(terms):
    total = terms[:, 0]
    for column in terms.unbind(1)[1:]:
        total = total + column
    return total


def over_a_tree(terms):
    while terms.shape[1] > 1:
        terms = terms[:, ::2] + terms[:, 1::2]
    return terms[:, 0]


@pytest.mark.parametrize("mean", [0.0, 1.0], ids=["cancelling", "of one sign"])
@pytest.mark.parametrize(
    ("sum_of", "modelled"),
    [
        (over_a_tree, lambda terms: terms.sum(1)),
        (one_behind_the_other, lambda terms: (terms[:, None] @ torch.ones(256, 1)).flatten()),
    ],
    ids=["tree", "product"],
)
def test_sums_err_as_derived(sum_of, modelled, mean):
    """Float32 sums of 256 terms, taken as the derivation takes them: no worse than its draws, and no better than half.

    A rounding is u of the next power of two below, half to all of u: of its square 0.3 to 1, on average over 0.5.
    """
    terms = (numbers(TRIALS, 256) + mean).float()
    exact = terms.double().sum(1)
    actual = (sum_of(terms).double() - exact).norm()
    draws = drawn(modelled, terms).double() - modelled(terms)
    assert 0.5 * draws.norm() <= actual <= draws.norm()


def small():
    return rfa_inputs(1, 40, 3, 8, dtype=torch.float32, irregular=True)


def test_the_tolerance_is_a_few_roundings():
    """Of well-conditioned inputs no result may be off by 64 units of round-off."""
    inputs = small()
    exact = reference(*inputs.to(torch.float64)[:4], times=inputs.times)

    def errors():
        found = reference(*inputs[:4], times=inputs.times)
        return {name: relative_error(x, getattr(exact, name)) for name, x in found._asdict().items()}

    assert all(5 * U < allowed < 64 * U for allowed in allowed_errors(errors, torch.float32).values())


def with_scalar_off(name, q, k, v, dynamics, **options):
    """One number of each head off by 5e-6, a few times what is allowed."""
    return reference(q, k, v, replace(dynamics, **{name: (1 + 5e-6) * getattr(dynamics, name)}), **options)


def without_a_key(q, k, v, dynamics, times):
    """The last query does not see the first key: one pair of 820."""
    whole, rest = (
        reference(q, k, v, dynamics, times=times),
        reference(q[:, 1:], k[:, 1:], v[:, 1:], dynamics, times=times[:, 1:]),
    )
    return AttentionResult(*(torch.cat([x[:, :-1], y[:, -1:]], 1) for x, y in zip(whole, rest, strict=True)))


def without_a_decay(q, k, v, dynamics, times):
    """The value of one pair is not shrunk on its way to the query."""
    whole = reference(q, k, v, dynamics, times=times)
    is_key = torch.arange(v.shape[1])[:, None, None] == 30
    carried = reference(q, k, torch.where(is_key, v, 0), dynamics, times=times).out[:, -1:]
    growth = torch.expm1(dynamics.mu * (times[:, -1:] - times[:, 30:31])[..., None]).to(v.dtype)
    return whole._replace(out=torch.cat([whole.out[:, :-1], whole.out[:, -1:] + growth[..., None] * carried], 1))


def with_a_gradient_off(q, k, v, dynamics, times):
    """What flows back to one query is off by a part in 10,000."""
    scale = torch.ones(q.shape[1], dtype=q.dtype)
    scale[20] += 1e-4
    q.register_hook(lambda gradient: gradient * scale[:, None, None])
    return reference(q, k, v, dynamics, times=times)


@pytest.mark.parametrize(
    "attention",
    [
        *(partial(with_scalar_off, name) for name in ("mu", "sigma2", "eta2", "gamma2", "nu", "tau")),
        without_a_key,
        without_a_decay,
        with_a_gradient_off,
    ],
)
def test_small_mistakes_are_caught(attention):
    with pytest.raises(AssertionError, match="relative error"):
        assert_matches_reference(lambda *inputs, kernel, times: attention(*inputs, times=times), small())


def test_the_eager_code_itself_passes():
    assert_matches_reference(reference, small())
