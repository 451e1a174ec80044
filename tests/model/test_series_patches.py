"""The series network over all tokens of a piece at once, beside the compiled one token by token."""

import numpy as np
import pytest
import torch

from rfa.model.recurrence import slots
from rfa.model.series.network import SeriesNetwork
from rfa.model.series.patches import PatchNetwork, PatchTokens, whole_patches
from rfa.runtime.series.config import FEATURES, PATCH
from rfa.runtime.series.decoder_numba import QUERY_FEATURES, SeriesDecoder
from tests.small_series import SMALL

# Two orders of the sum of a row of the longest matrix, in each of the eleven products between a token and its state.
ROUNDING = 11 * FEATURES * 2.0**-24


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return SeriesNetwork(SMALL).eval()


def tokens_of(columns):
    """Random tokens at the cells that each column has, in turns, and where its whole patches are."""
    rng = np.random.default_rng(0)
    of = np.repeat(np.arange(len(columns)), [len(cells) for cells in columns])
    ends = np.concatenate(columns)
    order = np.argsort(ends, kind="stable")
    of, ends = of[order], ends[order]
    before, whole, counts = whole_patches(of, ends % PATCH == 0, len(columns))
    numbers = rng.standard_normal((len(ends), FEATURES)).astype(np.float32)
    return PatchTokens(*map(torch.from_numpy, (numbers, ends, (ends - 1) % PATCH + 1, of, before, whole, counts)))


def one_by_one(network, tokens, columns):
    decoder = SeriesDecoder.of({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    means = np.repeat(decoder.initial_means[None], columns, 0).copy()
    precisions = np.repeat(decoder.initial_precisions[None], columns, 0).copy()
    states = np.empty((len(tokens.ends), decoder.width), np.float32)
    for i, own in enumerate(tokens.column.tolist()):
        numbers, ends, lags = (part[i : i + 1].numpy() for part in tokens[:3])
        slots_of = means[own : own + 1].copy(), precisions[own : own + 1].copy()
        states[i] = decoder.forward(numbers, ends, lags, *slots_of)[0]
        if ends[0] % PATCH == 0:
            means[own], precisions[own] = slots_of[0][0], slots_of[1][0]
    return decoder, states, means, precisions


def assert_at_once_is_one_by_one(network, columns):
    """States, slots and quantiles, of tokens at the cells that each column has."""
    tokens = tokens_of(columns)
    at_once = PatchNetwork(network)
    means, precisions = (part.repeat(len(columns), *[1] * (part.dim() - 1)) for part in at_once.initial)
    found = at_once.states(tokens, means, precisions)
    decoder, *expected_slots = one_by_one(network, tokens, len(columns))
    for one, other in zip(found, expected_slots, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=ROUNDING, atol=ROUNDING * np.abs(other).max())
    rng = np.random.default_rng(1)
    of, asked = rng.integers(0, len(tokens.ends), 30), rng.standard_normal((30, QUERY_FEATURES)).astype(np.float32)
    outputs = at_once.quantiles(found[0], torch.from_numpy(of), torch.from_numpy(asked)).numpy()
    expected = decoder.quantiles(expected_slots[0], of, asked)
    np.testing.assert_allclose(outputs, expected, rtol=ROUNDING, atol=ROUNDING * np.abs(expected).max())


def test_a_piece_at_once_is_its_tokens_one_by_one(network):
    """Of a column that begins, one that went on and has no whole patch, and one that jumps over cells."""
    assert_at_once_is_one_by_one(network, [np.arange(1, 36), np.arange(21, 31), np.array([16, 32, 47, 48, 49, 64])])


@pytest.mark.parametrize("begun", [2**24, 2**30])
def test_phases_of_cells_that_float32_does_not_hold(network, begun):
    assert_at_once_is_one_by_one(network, [begun + np.arange(1, 20)])


def test_the_steps_of_tokens_by_the_kernel(network, monkeypatch):
    monkeypatch.setattr(slots, "is_on_gpu", lambda _: True)
    assert_at_once_is_one_by_one(network, [np.arange(14, 20), np.array([48])])
