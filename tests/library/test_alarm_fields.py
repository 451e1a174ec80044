"""The fields of an alarm have the forecast of the score."""

from __future__ import annotations

import numpy as np

import rfa


def test_an_innovation_is_by_the_forecast_of_the_mixture() -> None:
    """That which the row before gives for one row ahead, to a tenth of a standard deviation."""
    rng, rows = np.random.default_rng(4), 400
    values = 20 + 5 * np.sin(2 * np.pi * np.arange(rows) / 24) + rng.standard_normal(rows)
    stream, differences, expected = rfa.Stream(horizon=[1.0]), [], None
    for t, value in enumerate(values.tolist()):
        step = stream.update(float(t), value)
        if expected is not None and t > 100:
            assert step.innovation is not None and step.innovation[0] is not None
            differences.append(value - step.innovation[0] - expected)
        expected = step.forecast[0].median[0]
    assert np.abs(differences).mean() < 0.1
