"""The forecasts that calibration scores, against forecasts made one by one."""

import numpy as np
import pytest
import torch

from rfa.export import filter_calibration
from rfa.export.filter_calibration import calibrate, evaluate
from rfa.model.batch import Batch
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import Token
from rfa.runtime.filters.linear_config import LinearFilterConfig

CONFIG = LinearFilterConfig(
    drift=((-0.2, -1.0), (1.0, -0.1)),
    process_noise=((0.3, 0.1), (0.1, 0.4)),
    measurement_noise=((0.5, 0.0), (0.0, 0.7)),
)


def batch_of(is_regular):
    rng = np.random.default_rng(0)
    steps = np.full((3, 40), 0.5) if is_regular else rng.exponential(0.5, (3, 40))
    observations = rng.normal(size=(3, 40, 2))
    observations[rng.random((3, 40, 2)) < 0.2] = np.nan
    return Batch(np.cumsum(steps, axis=1), observations)


@pytest.mark.parametrize("is_regular", [True, False])
@pytest.mark.parametrize("numbers", [1, 500, 10**6])
def test_forecasts_are_those_of_every_origin(monkeypatch, is_regular, numbers):
    """Made together, as many origins at a time as may be: one, a few, all."""
    monkeypatch.setattr(filter_calibration, "FORECAST_NUMBERS", numbers)
    model, batch = LinearFilter(CONFIG).eval(), batch_of(is_regular)
    found = evaluate(model, batch, "recurrent", (1, 3, 7))
    expected = np.full((2, 3, 3, 40, 2), np.nan)
    y, times = torch.from_numpy(batch.observations).float(), torch.from_numpy(batch.times)
    state = model.init_state(3)
    with torch.no_grad():
        for i in range(40):
            lag = (times[:, i] - times[:, max(i - 1, 0)]).float()
            _, state = model.step(Token(y[:, i].nan_to_num(), y[:, i].isfinite().float(), lag, torch.ones(3)), state)
            for k, lead in enumerate((1, 3, 7)):
                if i + lead < 40:
                    mean, covariance = model.forecast(state, (times[:, i + lead] - times[:, i]).float()[:, None])
                    expected[0, k, :, i + lead] = mean[:, 0]
                    expected[1, k, :, i + lead] = torch.diagonal(covariance[:, 0], dim1=-2, dim2=-1).sqrt()
    for part, target in zip((found.forecast_mean, found.forecast_deviation), expected, strict=True):
        # float32, sums in another order.
        assert np.allclose(part, target, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_further_leads_are_calibrated_beside_the_usual_ones():
    document = calibrate(LinearFilter(CONFIG).eval(), batch_of(True), (1, 2, 24))
    assert document["recurrent"]["forecast"]["horizons"] == [0.5, 1.0, 12.0]
    assert len(document["recurrent"]["forecast"]["multipliers"]) == 3
