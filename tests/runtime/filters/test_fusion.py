"""Fusion of posteriors against a Kalman filter that sees every sensor, and against what errors may share."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.runtime.filters.fusion import Gaussian, fuse, intersect, intersection_weights
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import filterpy_filter, float64_filter

DRIFT = np.kron([[0.0, 1.0], [0.0, 0.0]], np.eye(2))
NOISE = scipy.linalg.block_diag(np.zeros((2, 2)), [[0.4, 0.1], [0.1, 0.8]])
PRIOR = np.diag([4.0, 4.0, 2.0, 2.0])
# Two radars: one sees both positions, the other a mixture of position and speed.
SENSORS = (np.eye(4)[:2], np.array([[1.0, -0.5, 0.0, 0.3]]))
ERRORS = (np.array([[0.5, 0.2], [0.2, 0.9]]), np.array([[0.3]]))
COUNT = 25


def filtered(sensor: int, process_noise: np.ndarray, times, y, seen) -> tuple[list[Gaussian], list[Gaussian]]:
    """Predictions and posteriors of one sensor's own filter."""
    values = {
        "drift": DRIFT, "process_noise": process_noise, "measurement_noise": ERRORS[sensor],
        "observation": SENSORS[sensor], "initial_covariance": PRIOR,
    }  # fmt: skip
    config = LinearFilterConfig.from_dict({**{name: x.tolist() for name, x in values.items()}, "nu": None})
    model = float64_filter(config)
    output, _ = model(*(torch.from_numpy(x)[None] for x in (y, seen * 1.0, times)))
    pairs = (
        (output.predicted_mean, output.predicted_covariance), (output.state_mean, output.state_covariance),
    )  # fmt: skip
    predicted, posterior = (
        [Gaussian(mean[0, i].numpy(), covariance[0, i].numpy()) for i in range(COUNT)] for mean, covariance in pairs
    )
    return predicted, posterior


def make_data(seed: int = 0):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.4, COUNT))
    y = [rng.normal(size=(COUNT, len(error))).cumsum(0) for error in ERRORS]
    seen = [rng.random(values.shape) > 0.3 for values in y]
    seen[0][4] = seen[1][4] = False
    return times, y, seen


def joint(process_noise: np.ndarray, times, y, seen) -> tuple[np.ndarray, np.ndarray]:
    """filterpy's filter of both sensors at once."""
    return filterpy_filter(
        times, np.concatenate(y, axis=1), np.concatenate(seen, axis=1),
        lambda lag: van_loan(DRIFT, process_noise, lag), np.concatenate(SENSORS), scipy.linalg.block_diag(*ERRORS),
        PRIOR,
    )  # fmt: skip


def predicted_from(posterior: Gaussian, lag: float, process_noise: np.ndarray) -> Gaussian:
    f, q = van_loan(DRIFT, process_noise, lag)
    return Gaussian(f @ posterior.mean, f @ posterior.covariance @ f.T + q)


def test_fusing_at_every_observation_is_the_filter_of_all_sensors() -> None:
    """Filters that never hear of each other; what they learned at each observation goes to a third."""
    times, y, seen = make_data()
    tracks = [filtered(i, NOISE, times, y[i], seen[i]) for i in range(2)]
    means, covariances = joint(NOISE, times, y, seen)
    fused = Gaussian(np.zeros(4), PRIOR)
    for i in range(COUNT):
        prior = predicted_from(fused, times[i] - times[i - 1], NOISE) if i else fused
        fused = fuse([posterior[i] for _, posterior in tracks], prior, [predicted[i] for predicted, _ in tracks])
        assert np.abs(fused.mean - means[i]).max() <= 1e-8
        assert np.abs(fused.covariance - covariances[i]).max() <= 1e-8


def test_without_process_noise_it_is_enough_to_fuse_at_the_end() -> None:
    quiet = np.zeros((4, 4))
    times, y, seen = make_data(1)
    last = [filtered(i, quiet, times, y[i], seen[i])[1][-1] for i in range(2)]
    means, covariances = joint(quiet, times, y, seen)
    fused = fuse(last, predicted_from(Gaussian(np.zeros(4), PRIOR), times[-1] - times[0], quiet))
    assert np.abs(fused.mean - means[-1]).max() <= 1e-7
    assert np.abs(fused.covariance - covariances[-1]).max() <= 1e-8


def test_shared_process_noise_makes_late_fusion_too_sure_and_intersection_not() -> None:
    """Why the page says to fuse at every observation."""
    times, y, seen = make_data(2)
    last = [filtered(i, NOISE, times, y[i], seen[i])[1][-1] for i in range(2)]
    _, covariances = joint(NOISE, times, y, seen)
    late = fuse(last, predicted_from(Gaussian(np.zeros(4), PRIOR), times[-1] - times[0], NOISE))
    assert np.linalg.eigvalsh(late.covariance - covariances[-1]).min() < -1e-3
    assert np.linalg.eigvalsh(intersect(last).covariance - covariances[-1]).min() >= -1e-9


def spd(rng: np.random.Generator, n: int) -> np.ndarray:
    factor = rng.normal(size=(n, n))
    return factor @ factor.T + 0.1 * np.eye(n)


@pytest.mark.parametrize("weights", [None, [0.3, 0.7]])
def test_an_intersection_is_never_too_sure_whatever_the_errors_share(weights) -> None:
    """The true error of the fused mean for every kind of correlation, a full one included."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        first, second = (Gaussian(np.zeros(3), spd(rng, 3)) for _ in range(2))
        fused = intersect([first, second], weights)
        # The mean is linear in the two means: its matrices, column by column.
        gains = [
            np.stack([intersect([Gaussian(a, first.covariance), Gaussian(b, second.covariance)], weights).mean
                      for a, b in zip(*vectors, strict=True)], axis=1)
            for vectors in ((np.eye(3), np.zeros((3, 3))), (np.zeros((3, 3)), np.eye(3)))
        ]  # fmt: skip
        assert np.allclose(sum(gains), np.eye(3), atol=1e-9)
        roots = [np.linalg.cholesky(g.covariance) for g in (first, second)]
        for _ in range(10):
            rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0] * rng.choice([1.0, 1.0, 0.5])
            shared = gains[0] @ roots[0] @ rotation @ roots[1].T @ gains[1].T
            actual = (
                shared + shared.T + sum(g @ p.covariance @ g.T for g, p in zip(gains, (first, second), strict=True))
            )
            assert np.linalg.eigvalsh(fused.covariance - actual).min() >= -1e-8


@pytest.mark.parametrize(
    ("count", "size", "spread"), [(2, 1, 1.0), (2, 4, 1e6), (5, 3, 1e3), (8, 6, 1.0), (8, 2, 1e12)]
)
def test_no_weights_could_do_better(count: int, size: int, spread: float) -> None:
    """The certificate of the optimum (Kiefer and Wolfowitz, 1960): tr(P Pi⁻¹) <= n for every one, and what is above n
    bounds what the determinant's logarithm could still gain. The search ends within a nat's 1e-9 for each weight."""
    rng = np.random.default_rng(6)
    for _ in range(5):
        scales = spread ** rng.uniform(-0.5, 0.5, count)
        given = [Gaussian(rng.normal(size=size), scale * spd(rng, size)) for scale in scales]
        weights = intersection_weights(given)
        fused = intersect(given, weights)
        gains = [np.trace(fused.covariance @ np.linalg.inv(one.covariance)) - size for one in given]
        assert max(gains) <= 1e-7
        assert min(weights) >= 0 and abs(sum(weights) - 1) <= 1e-12


def test_a_prior_that_all_share_counts_once() -> None:
    """P⁻¹ = P1⁻¹ + P2⁻¹ + P3⁻¹ - 2 P0⁻¹, a batch at a time."""
    rng = np.random.default_rng(5)
    prior = Gaussian(rng.normal(size=(4, 3)), np.stack([spd(rng, 3) for _ in range(4)]))
    evidence = [(rng.normal(size=(4, 3)), np.stack([spd(rng, 3) for _ in range(4)])) for _ in range(3)]

    def update(given: Gaussian, parts) -> Gaussian:
        information = np.linalg.inv(given.covariance) + sum(np.linalg.inv(r) for _, r in parts)
        weighted = sum((np.linalg.inv(r) @ z[..., None])[..., 0] for z, r in parts)
        covariance = np.linalg.inv(information)
        start = (np.linalg.inv(given.covariance) @ given.mean[..., None])[..., 0]
        return Gaussian((covariance @ (start + weighted)[..., None])[..., 0], covariance)

    fused = fuse([update(prior, [part]) for part in evidence], prior)
    expected = update(prior, evidence)
    assert np.allclose(fused.mean, expected.mean, atol=1e-9)
    assert np.allclose(fused.covariance, expected.covariance, atol=1e-9)


ONE = Gaussian(np.zeros(2), np.eye(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([ONE, ONE], Gaussian(np.zeros(2), 0.5 * np.eye(2))), r"posteriors\[0\] is less certain"),
        (([Gaussian(np.zeros(3), np.eye(3))], ONE), r"posteriors\[0\]: .* must be \[..., 2\]"),
        (([Gaussian(np.zeros(2), np.diag([1.0, 0.0]))], ONE), r"posteriors\[0\].covariance must be positive"),
        (([Gaussian(np.array([0.0, np.nan]), np.eye(2))], ONE), r"posteriors\[0\]: mean and covariance must be finite"),
        (([ONE], Gaussian(np.zeros(2), np.full((2, 2), np.nan))), "prior: mean and covariance must be finite"),
        (([ONE], Gaussian(np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]]))), "prior.covariance must be symmetric"),
        (([ONE], ONE, [ONE, ONE]), "own_priors must contain one prior per posterior"),
        (([ONE], None, [ONE]), "own_priors requires prior"),
        (([ONE], ONE, [Gaussian(np.zeros(2), -np.eye(2))]), r"own_priors\[0\].covariance"),
    ],
)
def test_what_cannot_be_fused_is_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        fuse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "must not be empty"),
        (([ONE, ONE], [0.5, 0.6]), "that sum to 1"),
        (([ONE, ONE], [1.0]), "2 non-negative"),
        (([ONE, ONE], [1.5, -0.5]), "non-negative"),
        (([ONE, Gaussian(np.zeros(3), np.eye(3))],), r"posteriors\[1\]"),
        (([Gaussian(np.zeros((4, 2)), np.stack([np.eye(2)] * 4))] * 2,), "mean must be"),
    ],
)
def test_what_cannot_be_intersected_is_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        intersect(*arguments)
