"""The accuracy tables on small sizes: references against other libraries, settings against their definitions."""

import filterpy.kalman
import numpy as np
import pytest
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from rfa.benchmarks.filters.accuracy import Rule, run_model, score, squares
from rfa.benchmarks.filters.references import Estimate, Innovation, gate, run_kalman, student
from rfa.benchmarks.filters.settings import rotation, tracking


def statsmodels_run(case, row):
    """Filtered means and covariances of one stream; NaN components are left out one by one."""
    p, n = case.matrix.shape
    model = KalmanFilter(k_endog=p, k_states=n)
    model.bind(case.observations[row])
    f, q = case.transition[0, 0], case.process[0, 0]
    model["design"], model["obs_cov"], model["selection"] = case.matrix, case.noise, np.eye(n)
    model["transition"], model["state_cov"] = f, q
    # Its first observation is not preceded by a step.
    model.initialize_known(f @ case.mean, f @ case.covariance @ f.T + q)
    found = model.filter()
    return found.filtered_state.T, np.moveaxis(found.filtered_state_cov, -1, 0)


def test_the_kalman_filter_of_the_bench_is_that_of_statsmodels():
    case = tracking("30 % missing", 2, 40, 3)
    found = run_kalman(case)
    for row in range(2):
        mean, covariance = statsmodels_run(case, row)
        assert np.abs(found.mean[row] - mean).max() <= 1e-8
        assert np.abs(found.covariance[row] - covariance).max() <= 1e-8


def test_the_oracle_uses_the_noise_and_the_matrix_of_every_observation():
    for case in (tracking("5 % x10", 1, 60, 4), tracking("mixture", 1, 60, 4)):
        kf = filterpy.kalman.KalmanFilter(dim_x=4, dim_z=2)
        kf.x, kf.P, kf.F, kf.Q = case.mean[:, None], case.covariance, case.transition[0, 0], case.process[0, 0]
        assert case.noise_factor.max() > 1 or case.matrix_factor.max() > 1
        means = []
        for i in range(60):
            kf.predict()
            kf.update(
                case.observations[0, i][:, None],
                R=case.noise * case.noise_factor[0, i],
                H=case.matrix * case.matrix_factor[0, i],
            )
            means.append(kf.x[:, 0])
        assert np.abs(run_kalman(case, knows_noise=True).mean[0] - means).max() <= 1e-8


@pytest.mark.parametrize(
    "case",
    [tracking("30 % missing, 5 % x10", 3, 50, 5), rotation("30 % missing, 5 % x10", 3, 50, 5)],
    ids=["tracking", "rotation"],
)
def test_without_robustness_the_model_is_the_kalman_filter(case):
    """Also where the model makes its transitions itself from a drift and times."""
    expected, found = run_kalman(case), run_model(case, Rule(nu=None))
    # The model's prior has a variance of 1e-9 where the case starts from a known state.
    assert np.abs(found.mean - expected.mean).max() <= 1e-6
    assert np.abs(found.covariance - expected.covariance).max() <= 1e-6


def test_disturbances_have_the_size_and_the_share_they_are_named_for():
    n = 40 * 500
    for name, scale in (("5 % x10", 10), ("5 % x20", 20)):
        case = tracking(name, 40, 500, 1)
        # A share of 0.05 in n draws; six standard errors.
        assert abs(np.mean(case.noise_factor > 1) - 0.05) < 6 * np.sqrt(0.05 * 0.95 / n)
        residual = case.observations - case.truth[..., :2]
        for is_outlier, variance in ((case.noise_factor > 1, 10.0 * scale**2), (case.noise_factor == 1, 10.0)):
            count = 2 * is_outlier.sum()
            assert np.mean(residual[is_outlier] ** 2) == pytest.approx(variance, rel=6 * np.sqrt(2 / count))
    missing = np.isnan(tracking("30 % missing", 40, 500, 1).observations)
    assert abs(missing.mean() - 0.3) < 6 * np.sqrt(0.3 * 0.7 / (2 * n))
    assert (missing[..., 0] != missing[..., 1]).any()
    turning = np.isnan(rotation("30 % missing, 5 % x10", 40, 100, 1).observations)
    assert turning.any() and (turning == turning[..., :1]).all()
    student = tracking("Student-t", 40, 500, 1)
    # 1 / gamma(nu/2, rate nu/2): the median of the t distribution's mixing variance at 2.01 degrees of freedom.
    assert np.median(student.noise_factor) == pytest.approx(1.44, rel=0.05)


def test_scores_of_given_errors():
    case = tracking("clean", 30, 200, 6)
    rng = np.random.default_rng(0)
    deviation = np.array([1.0, 2.0, 3.0, 4.0])
    covariance = np.broadcast_to(np.diag(deviation**2), (30, 200, 4, 4))
    estimate = Estimate(case.truth + deviation * rng.standard_normal(case.truth.shape), covariance)
    found = score(case, estimate, {"half": squares(case, estimate) / 4})
    n = 4 * 30 * 200
    # Paired with half its own error, the ratio has no variance. A square of a normal has variance 2 deviation⁴: the
    # root mean of n / 4 pairs of them, of deviations 1 and 2, has a relative error of sqrt(1.36 / n).
    assert found["over_half"] == pytest.approx([1.0, 0.0], abs=1e-12)
    assert found["rmse_error"] == pytest.approx(found["rmse"] * np.sqrt(1.36 / n), rel=0.5)
    assert found["rmse"] == pytest.approx(np.sqrt(2.5), rel=6 / np.sqrt(n))
    assert found["nees"] == pytest.approx(1.0, rel=6 * np.sqrt(2 / n))
    # The entropy of the four normals.
    assert found["nll"] == pytest.approx(np.log(24) + 2 * np.log(2 * np.pi * np.e), rel=0.01)
    for level, share in found["coverage"].items():
        assert abs(share - float(level)) < 6 * np.sqrt(0.25 / n)
        expected = np.sqrt(float(level) * (1 - float(level)) / n)
        assert found["coverage_error"][level] == pytest.approx(expected, rel=0.5)
    assert found["width90"] == pytest.approx(2 * 1.6449 * 1.5, rel=1e-4)


def test_the_rivals_weigh_as_they_are_defined():
    error = np.array([[3.0, 4.0], [0.3, 0.4]])
    noise = np.broadcast_to(2.0 * np.eye(2), (2, 2, 2))
    certain = Innovation(error, np.zeros((2, 2, 2)), noise, np.array([2, 2]))
    # A state that is known leaves the innovation as the residual: (3 + 2) / (3 + 25 / 2) and (3 + 2) / (3 + 0.25 / 2).
    assert student(3.0)(certain) == pytest.approx([5 / 15.5, 5 / 3.125])
    vague = certain._replace(signal=6.0 * np.eye(2) + 0 * noise)
    assert gate(3.0)(vague)[0] < 1e-6 and gate(3.2)(vague)[0] == 1.0
    # The fixed point of a scalar equation, at three of its iterates: w ← 5 / (3 + (2 / w)² / (6 + 2 / w)² · 25 / 2).
    weight = 1.0
    for _ in range(3):
        weight = 5 / (3 + (2 / weight / (6 + 2 / weight)) ** 2 * 25 / 2)
    assert student(3.0)(vague)[0] == pytest.approx(weight)
