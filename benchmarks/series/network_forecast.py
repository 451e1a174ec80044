"""Forecasts of the series network from the shipped weights, without adaptation."""

from __future__ import annotations

import functools

import numpy as np
import torch

from rfa.model.loading import model_of
from rfa.model.series.network import LeadQueries, SeriesNetwork
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.config import LEVELS, PATCH

Array = np.ndarray
# The context in cells: the recurrent mode remembers no more.
CONTEXT = 8_192
NINE = [LEVELS.index(round(q / 10, 1)) for q in range(1, 10)]
# The 50 % interval uses two quantiles, the others one each.
ENDS = [((4, 5), (9, 10)), ((3,), (11,)), ((2,), (12,)), ((1,), (13,)), ((0,), (14,))]


@functools.lru_cache(1)
def shipped() -> SeriesNetwork:
    """Load the network of the shipped bundle on one core."""
    torch.set_num_threads(1)
    model: SeriesNetwork = model_of(open_bundle(BUNDLE_ROOT / "series"))
    return model


@torch.no_grad()
def forecast(values: Array, horizon: int, mode: str = "recurrent") -> tuple[Array, Array]:
    """Return nine quantiles `[h, 9]` and intervals `[h, 5, 2]` of 50, 80, 90, 95 and 99 % for a series without gaps.

    Attention mode omits the first rows if they do not fill a patch.
    """
    model = shipped()
    model.mode = "attention" if mode == "attention" else "recurrent"
    history = np.asarray(values, np.float64)[-CONTEXT:]
    rest = len(history) % PATCH
    if mode == "attention":
        history = history[rest:]
        rest = 0
    ends = np.array([*range(PATCH, len(history) + 1, PATCH), *([len(history)] if rest else [])])
    leads = np.arange(1, horizon + 1)
    count = len(ends)
    requested = np.ones((count, horizon), np.int64)
    requested[-1] = leads
    tokens = SeriesTokens.allocate(requested.shape)
    describe(history, ends, requested, tokens)
    states = model.states(torch.from_numpy(tokens.features)[None], torch.from_numpy(ends)[None])[:, -1:]
    last = LeadQueries(
        torch.from_numpy(leads)[None, None], torch.from_numpy(tokens.paths[-1])[None, None],
    )  # fmt: skip
    output = tokens.centres[-1] + tokens.scales[-1] * np.sinh(model.head(states, last)[0, 0].double().numpy())
    sides = [[output[:, list(low)].mean(1), output[:, list(high)].mean(1)] for low, high in ENDS]
    return output[:, NINE], np.array(sides).transpose(2, 0, 1)
