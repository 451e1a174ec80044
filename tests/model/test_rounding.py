"""The tolerance of the faster paths: its draws keep the bounds they state, its sums err as sums do, and it can fail."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.api import robust_filter_attention
from rfa.model.attention.reference import AttentionResult
from tests.matching import assert_matches_reference
from tests.rounding import Rounding

TRIALS = 2000
reference = partial(robust_filter_attention, impl="reference")


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def drawn(function, *arguments, seed=0):
    with Rounding(seed):
        return function(*arguments)


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
