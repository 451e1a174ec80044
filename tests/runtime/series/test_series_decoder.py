"""The compiled series network: as exact as torch's float32, with the constants of its modules."""

import numpy as np
import pytest
import torch

from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import PATCH, SeriesConfig
from rfa.runtime.series.constants import series_constants
from rfa.runtime.series.decoder_numba import FARTHEST_QUANTILE, SeriesDecoder
from rfa.runtime.series.leads import lead_table
from rfa.runtime.text.decoder_numba import HEAD_CONSTANTS
from tests.model.test_series_network import SMALL, inputs, network

CONFIGS = [SMALL, SeriesConfig(d_model=64, n_layers=3, n_heads=4, head_dim=8, n_slots=8, mlp_ratio=3)]


def decoder_of(model):
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return SeriesDecoder.of(weights)


def begun(decoder, streams):
    parts = decoder.initial_means, decoder.initial_precisions
    return tuple(np.repeat(part[None], streams, 0) for part in parts)


def asked_rows(asked):
    return np.concatenate([asked.paths.numpy(), lead_table()[asked.leads.numpy()]], -1)


@pytest.mark.parametrize("config", CONFIGS, ids=["small", "wide"])
def test_it_is_the_network_token_by_token(config):
    torch.manual_seed(3)
    model = SeriesNetwork(config).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    tokens, _, asked = inputs(3, 6, 5)
    lags = np.array([16, 16, 3, 16, 1, 9])
    ends = torch.from_numpy(np.cumsum(lags)).expand(3, 6)
    with torch.no_grad():
        whole = model(tokens, ends, asked)
        # What rounding every number that a layer begins from does to the result: rounding inside does as much, layer
        # by layer, product by product.
        rounded = [tokens * (1 + 6e-8 * torch.randn_like(tokens)) for _ in range(8)]
        moved = max(float((model(other, ends, asked) - whole).abs().max()) for other in rounded)
    decoder = decoder_of(model)
    means, precisions = begun(decoder, 3)
    rows = asked_rows(asked)
    found = []
    for i in range(6):
        lag = np.full(3, lags[i])
        states = decoder.forward(
            np.ascontiguousarray(tokens[:, i].numpy()), np.full(3, ends[0, i]), lag, means, precisions
        )
        quantiles = decoder.quantiles(
            states, np.repeat(np.arange(3), 5), np.ascontiguousarray(rows[:, i].reshape(15, -1))
        )
        found.append(quantiles.reshape(3, 5, -1))
    products = 6 * config.n_layers + 6
    bounded = whole.clamp(-FARTHEST_QUANTILE, FARTHEST_QUANTILE).numpy()
    assert np.abs(np.arcsinh(np.stack(found, 1)) - bounded).max() <= products * moved


def test_the_constants_are_those_of_the_modules():
    model = network()
    found = series_constants({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    lags = torch.arange(1, PATCH + 1)[None] / PATCH
    with torch.no_grad():
        for index, block in enumerate(model.blocks):
            dynamics = block.mixer.dynamics()
            parameters = block.mixer.slot_parameters(dynamics, lags)
            for name in HEAD_CONSTANTS:
                expected = dynamics.eta2 if name == "eta2" else getattr(parameters, name)
                np.testing.assert_allclose(found[name][index], expected.numpy(), rtol=1e-5)
            np.testing.assert_allclose(found["decay"][index], parameters.decay[0].numpy(), rtol=1e-5)
            own = block.mixer.own_process(lags[..., None, None])[0]
            np.testing.assert_allclose(found["own_process"][index], own.numpy(), rtol=1e-4)
            np.testing.assert_allclose(found["omega"], dynamics.omega.numpy(), rtol=1e-12)
            for name, part in zip(("initial_means", "initial_precisions"), block.mixer.initial_state(), strict=True):
                np.testing.assert_allclose(found[name][index], part.numpy(), rtol=1e-5)
