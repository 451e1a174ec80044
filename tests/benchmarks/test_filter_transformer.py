"""The rival of the filter table: its gain is the best constant one, and it stays where the theorem puts it."""

import numpy as np
import pytest
import scipy.linalg

from rfa.benchmarks.filters.transformer import EPSILON, constant_gain, transformer_filter
from rfa.training.simulate import NOISE_SETTINGS, OSCILLATOR_DRIFT, discretise, simulate_oscillator


def test_over_a_long_series_the_best_constant_gain_is_the_stationary_kalman_gain():
    f, q = discretise(OSCILLATOR_DRIFT, 0.1)
    q, noise = 0.5 * q, np.diag([0.5, 2.0])
    predicted = scipy.linalg.solve_discrete_are(f.T, np.eye(2), q, noise)
    expected = predicted @ np.linalg.inv(predicted + noise)
    found = constant_gain(f, q, noise, predicted - expected @ predicted, 400)
    # The error is flat at its minimum: a gradient of 1e-5, BFGS's rule, over a curvature of order one.
    assert np.abs(found - expected).max() <= 1e-3


@pytest.mark.parametrize("setting", NOISE_SETTINGS)
def test_it_stays_within_epsilon_of_its_kalman_filter_and_beats_the_measurements(setting):
    sigma2, eta2 = setting
    batch = simulate_oscillator(40, 60, settings=(setting,), seed=3)
    f, q = discretise(OSCILLATOR_DRIFT, 0.1)
    rival = transformer_filter(batch.observations, f, sigma2 * q, eta2 * np.eye(2), 4.0 * np.eye(2))
    assert np.linalg.norm(rival.means - rival.linear, axis=-1).max() <= EPSILON
    error, raw = np.mean((rival.means - batch.truth) ** 2), np.mean((batch.observations - batch.truth) ** 2)
    assert error < 0.7 * raw
