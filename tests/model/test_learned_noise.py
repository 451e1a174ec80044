"""The rule that learns the tails of the noise, against its definition in loops over scipy's normal densities."""

import numpy as np
import pytest
import scipy.stats
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.model.recurrence import dense
from rfa.runtime.filters.robust_constants import NOISE_FACTORS, PRIOR_COUNTS
from tests.model.observed_oscillator import PRIOR, SENSORS, build, check_absent_components, discretise, follow, observed


def learning(sensor: str = "both states", dtype: torch.dtype = torch.float64, **changes: object) -> LinearFilter:
    """The filter that learns the noise, and follows no jump."""
    return build(sensor, dtype, **{"rule": "learned", "reacquire": None, **changes})


def by_definition(times, y, seen, sensor, counts):
    """One Kalman update for each factor with the rows that were seen cut out, and the mixture of all of them."""
    matrix, noise = SENSORS[sensor]
    mean, covariance, kept = np.zeros(2), PRIOR, 0.1 * counts
    rows_of = []
    for i in range(len(y)):
        if i:
            f, q = discretise(times[i] - times[i - 1])
            mean, covariance = f @ mean, f @ covariance @ f.T + q
        rows = np.flatnonzero(seen[i])
        if len(rows):
            c, r, value = matrix[rows], noise[np.ix_(rows, rows)], y[i][rows]
            e, nominal = value - c @ mean, c @ covariance @ c.T + r
            factors = [*NOISE_FACTORS[:-1], max(NOISE_FACTORS[-1], e @ np.linalg.solve(nominal, e))]
            logs, means, covariances = [], [], []
            for factor, count in zip(factors, counts, strict=True):
                s = c @ covariance @ c.T + factor * r
                gain = np.linalg.solve(s, c @ covariance).T
                logs.append(np.log(count) + scipy.stats.multivariate_normal.logpdf(value, c @ mean, s))
                means.append(mean + gain @ e)
                covariances.append(covariance - gain @ c @ covariance)
            shares = np.exp(np.array(logs) - np.logaddexp.reduce(logs))
            # The second moment less the square of the first.
            second = sum(g * (p + np.outer(m, m)) for g, m, p in zip(shares, means, covariances, strict=True))
            mean = sum(g * m for g, m in zip(shares, means, strict=True))
            covariance = second - np.outer(mean, mean)
            learned = counts + shares - kept
            counts = kept + learned * min(1.0, dense.MEMORY / learned.sum())
        rows_of.append((mean, covariance, counts))
    return (np.array(x) for x in zip(*rows_of, strict=True))


def make_data(sensor: str, seed: int = 0, n: int = 80):
    """Irregular times, a quarter of the components missing, one observation without any, some outliers."""
    times, y, seen = observed(np.random.default_rng(seed), sensor, n, outliers=0.15)
    # Beyond the widest factor of the grid.
    y[n // 2] += 400.0
    return times, y, seen


def gap(found, expected, field: str = "state_mean") -> float:
    """Largest difference of two runs."""
    pairs = zip(found, expected, strict=True)
    return max(float((getattr(a, field) - getattr(b, field)).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("sensor", list(SENSORS))
def test_every_number_is_that_of_the_definition(sensor, monkeypatch):
    # Soon enough for the counts to be faded here.
    monkeypatch.setattr(dense, "MEMORY", 30.0)
    times, y, seen = make_data(sensor)
    means, covariances, counts = by_definition(times, y, seen, sensor, np.array(PRIOR_COUNTS))
    outputs, states = follow(learning(sensor), times, y, seen)
    assert max(np.abs(s["mean"][0].numpy() - m).max() for s, m in zip(states, means, strict=True)) < 1e-7
    assert max(np.abs(s["covariance"][0].numpy() - p).max() for s, p in zip(states, covariances, strict=True)) < 1e-7
    assert max(np.abs(s["noise_counts"][0].numpy() - c).max() for s, c in zip(states, counts, strict=True)) < 1e-7
    assert counts[-1].sum() == pytest.approx(30.0 + 0.1 * sum(PRIOR_COUNTS))
    weights = [float(output.weight) for output in outputs]
    assert min(weights) < 0.05 and max(weights) > 0.9


def test_the_prior_is_noise_as_said_and_student_t_noise():
    """Shares of the factors are probabilities of nu over a chi-square, by the density of the logarithm at each."""
    logs = np.log(NOISE_FACTORS)
    widths = np.gradient(logs)
    density = scipy.stats.invgamma.pdf(NOISE_FACTORS, 2.5 / 2, scale=2.5 / 2) * NOISE_FACTORS * widths
    expected = 2.0 * density / density.sum() + 8.0 * (np.array(NOISE_FACTORS) == 1)
    # Rounded to three digits.
    assert np.abs(np.array(PRIOR_COUNTS) - expected).max() < 1e-3


def test_noise_as_said_is_the_kalman_filter():
    times, y, seen = make_data("both states")
    kalman, _ = follow(build(nu=None, rule="capped", reacquire=None), times, y, seen)
    model = learning()
    model.get_buffer("prior_noise_counts").copy_(torch.tensor(NOISE_FACTORS) == 1)
    found, _ = follow(model, times, y, seen)
    assert gap(found, kalman) < 1e-9 and gap(found, kalman, "state_covariance") < 1e-9


@pytest.mark.parametrize(
    "sensor", [pytest.param(name, marks=() if name == "both states" else pytest.mark.slow) for name in SENSORS]
)
def test_absent_components_leave_no_trace(sensor):
    check_absent_components(learning(sensor), *make_data(sensor, seed=3))


@pytest.mark.parametrize("size", [1e3, 1e9])
def test_what_is_far_away_has_no_influence(size):
    times, y, seen = make_data("both states", n=30)
    seen[:] = True
    y = np.clip(y, -5, 5)
    spiked = y.copy()
    spiked[20] += size
    for dtype in (torch.float64, torch.float32):
        model = learning(dtype=dtype)
        expected, _ = follow(model, times, y, np.where(np.arange(30)[:, None] == 20, 0.0, seen), dtype)
        found, states = follow(model, times, spiked, seen, dtype)
        # A deviation of the prediction times the innovation's own count of deviations, over its square.
        assert float((found[20].state_mean - expected[20].state_mean).abs().max()) < 10 / size + 1e-3
        assert bool(torch.isfinite(states[-1]["covariance"]).all())


def test_float32_keeps_the_covariance_positive_after_a_vague_prior():
    times, y, seen = make_data("one sensor")
    model = learning("one sensor", torch.float32, initial_covariance=1e6 * np.eye(2))
    _, states = follow(model, times, y, seen, torch.float32)
    assert min(float(torch.linalg.eigvalsh(s["covariance"].double()).min()) for s in states) > 0


def test_a_jump_is_followed_while_the_noise_is_learned():
    rng = np.random.default_rng(2)
    y = 0.7 * rng.standard_normal((120, 2))
    y[60:] += 50.0
    still = {"drift": -1e-3 * np.eye(2), "process_noise": 0.02 * np.eye(2), "measurement_noise": 0.5 * np.eye(2)}
    for patience, followed in ((6, True), (None, False)):
        outputs, _ = follow(learning(reacquire=patience, **still), np.arange(120) * 1.0, y, np.ones_like(y))
        after = np.array([float((output.mean - 50).abs().max()) for output in outputs[66:]])
        assert (after.max() < 5) == followed and (after[0] < 5) == followed


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(ValueError, match="rule must be one of"):
        learning(rule="paper")
