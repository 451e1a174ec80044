"""Predictions, smoothing and samples against brute-force conditioning of the joint Gaussian."""

import cmath
import math

import numpy as np
import torch

from rfa.benchmarks.papers.theory.uncertainty import (
    calibrated_evidence,
    latent_sample,
    predict,
    predictive_variance,
    rts_smoother,
    sample_trajectories,
)
from rfa.model.dynamics import Dynamics
from rfa.model.recurrence.irkf import irkf_scan

MU, OMEGA, SIGMA2, ETA2 = 0.2, 1.1, 0.5, 0.3
RATE = complex(-MU, OMEGA)


def make_dynamics() -> Dynamics:
    one = torch.ones(1, dtype=torch.float64)
    return Dynamics(MU * one, OMEGA * one[None], SIGMA2 * one, ETA2 * one, 0 * one, math.inf * one, one)


def filtered(n: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(n, generator=generator, dtype=torch.float64).cumsum(0)
    v = torch.randn(1, n, 1, 2, generator=generator, dtype=torch.float64)
    means, precisions, _ = irkf_scan(v, make_dynamics(), times=times)
    return v, times, means, precisions


def posterior(v: torch.Tensor, times: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the whole complex path given every measurement, under a flat prior of the first state.

    The precision matrix of the path is assembled from its transitions: no recursion.
    """
    n = len(times)
    z = (v[0, :, 0, 0] + 1j * v[0, :, 0, 1]).numpy()
    information = np.eye(n, dtype=complex) / ETA2
    for i, lag in enumerate(torch.diff(times).tolist()):
        f, q = cmath.exp(RATE * lag), SIGMA2 * (1 - math.exp(-2 * MU * lag)) / (2 * MU)
        row = np.zeros(n, dtype=complex)
        row[i], row[i + 1] = -f, 1
        information += np.outer(row.conj(), row) / q
    covariance = np.linalg.inv(information)
    return covariance @ (z / ETA2), covariance


def test_smoother_is_the_posterior_of_the_whole_path():
    v, times, means, precisions = filtered()
    expected, covariance = posterior(v, times)
    smoothed, variances = rts_smoother(means, precisions, make_dynamics(), times)
    assert np.abs(smoothed[0, :, 0, 0].numpy() - expected.real).max() < 1e-10
    assert np.abs(smoothed[0, :, 0, 1].numpy() - expected.imag).max() < 1e-10
    assert np.abs(variances[0, :, 0].numpy() - np.diag(covariance).real).max() < 1e-10


def test_trajectories_have_the_moments_of_the_posterior():
    v, times, means, precisions = filtered(5)
    expected, covariance = posterior(v, times)
    count = 20_000
    samples = sample_trajectories(
        means.expand(count, -1, -1, -1), precisions.expand(count, -1, -1), make_dynamics(), times,
        torch.Generator().manual_seed(1),
    )  # fmt: skip
    z = (samples[:, :, 0, 0] + 1j * samples[:, :, 0, 1]).numpy()
    spread = np.sqrt(np.diag(covariance).real / count)
    assert (np.abs(z.mean(0) - expected) < 5 * spread).all()
    centred = z - expected
    sampled = centred.T @ centred.conj() / count
    assert np.abs(sampled - covariance).max() < 0.04 * np.abs(covariance).max()


def test_predictions_are_the_conditional_moments():
    v, times, means, precisions = filtered()
    lag = 0.8
    mean, variance = predict(means[:, -1], precisions[:, -1], make_dynamics(), lag)
    path, covariance = posterior(v, times)
    f = cmath.exp(RATE * lag)
    expected = abs(f) ** 2 * covariance[-1, -1].real + SIGMA2 * (1 - abs(f) ** 2) / (2 * MU)
    assert abs(complex(mean[0, 0, 0], mean[0, 0, 1]) - f * path[-1]) < 1e-10
    assert abs(float(variance) - expected) < 1e-10
    assert abs(float(predictive_variance(precisions[:, -1], make_dynamics(), lag)) - expected - ETA2) < 1e-10


def test_latent_samples_split_the_variance_over_real_and_imaginary_parts():
    mean = torch.tensor([[1.0, -2.0]], dtype=torch.float64).expand(50_000, 1, 2)
    precision, gamma2 = torch.full((50_000, 1), 4.0, dtype=torch.float64), torch.tensor([0.15], dtype=torch.float64)
    samples = latent_sample(mean, precision, gamma2, torch.Generator().manual_seed(2))
    assert torch.allclose(samples.mean(0), mean[0], atol=0.01)
    assert torch.allclose(samples.var(0), torch.full((1, 2), 0.2, dtype=torch.float64), rtol=0.03)


def test_evidence():
    assert torch.allclose(calibrated_evidence(torch.tensor(6.0), torch.tensor(6.0)), torch.tensor(4.0))
    assert float(calibrated_evidence(torch.tensor(6.0), torch.tensor(math.inf))) == 6.0
