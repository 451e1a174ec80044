"""Series networks, and series that pass through them, for the tests of the runtime."""

import numpy as np
import torch

from rfa.model.series.network import SeriesNetwork
from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StatePool
from rfa.runtime.series.decoder_numba import SeriesDecoder
from tests.model.test_series_network import SMALL

HORIZON = (1.0, 3.0, 24.0, 90.0)


def network(config=SMALL):
    torch.manual_seed(0)
    model = SeriesNetwork(config).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def decoder(model):
    return SeriesDecoder.of({name: tensor.numpy() for name, tensor in model.state_dict().items()})


def season(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    return 50 + 3 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.standard_normal(rows)


def filtered(model, times, values, state=None, horizon=HORIZON):
    """The columns of the outputs, and the state after them."""
    rows = [None if row is None else np.atleast_1d(row).tolist() for row in values]
    found = model.filter(np.asarray(times, float).tolist(), rows, horizon=horizon, levels=(0.5, 0.9), state=state)
    parts = [piece.outputs for piece in found.pieces]
    names = [name for name in parts[0]._fields if name != "tally"]
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, found.state


def same(one, other, rows=slice(None)):
    return all(np.array_equal(one[name][rows], other[name], equal_nan=True) for name in other)


def irregular(rows=300):
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.choice([0.3, 1.0, 1.0, 1.0, 2.0, 40.0], rows, p=[0.1, 0.4, 0.2, 0.2, 0.08, 0.02]))
    values = season(rows).tolist()
    for row in rng.integers(0, rows, 40):
        values[row] = None
    return times, values


def one_by_one(runtime, series, levels=(0.5, 0.9)):
    """Several streams in one pool, a row of each at a time."""
    pool = StatePool(runtime.state_fields, 8)
    slots = [pool.acquire() for _ in series]
    for slot in slots:
        runtime.put(pool, slot, runtime.start())
    readout = runtime.readout(levels, HORIZON, 0)
    found = []
    for row in range(len(series[0][0])):
        batch = Batch(
            pool.rows(slots), np.array([times[row] for times, _ in series]),
            np.array([[np.nan if values[row] is None else values[row]] for _, values in series]), np.ones(len(series)),
        )  # fmt: skip
        found.append(runtime.steps.advance(pool, batch, readout, traced=False)[0])
    return [
        {name: np.stack([getattr(part, name)[i] for part in found]) for name in found[0]._fields if name != "tally"}
        for i in range(len(series))
    ]
