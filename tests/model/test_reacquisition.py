"""Re-acquisition after a jump of the state, against its definition written with other formulas and other libraries."""

import numpy as np
import pytest
import scipy.stats
import torch

from tests.model.observed_oscillator import PRIOR, SENSORS, build, check_absent_components, discretise, follow, observed
from tests.model.oracles import capped_update

# Partly absent are only the two of "both states" and the many of the last.
FEWER = [pytest.param(name, marks=() if name == "both states" else pytest.mark.slow) for name in SENSORS]


def by_definition(times, y, seen, sensor, *, nu=4.0, inner=3, patience=6):
    """The filter with the rows that were seen cut out of every matrix; evidence by scipy's Student-t densities.

    Means, covariances, evidence after every observation, and where the state jumped.
    """
    matrix, noise = SENSORS[sensor]
    mean, covariance, offset, evidence = np.zeros(2), PRIOR, np.zeros(2), 0.0
    means, covariances, evidences, jumps = [], [], [], []
    for i in range(len(y)):
        if i:
            f, q = discretise(times[i] - times[i - 1])
            mean, covariance, offset = f @ mean, f @ covariance @ f.T + q, f @ offset
        rows = np.flatnonzero(seen[i])
        is_jump = False
        if len(rows):
            c, r = matrix[rows], noise[np.ix_(rows, rows)]
            e, u, s = y[i][rows] - c @ mean, c @ offset, c @ covariance @ c.T + r
            density = {
                name: scipy.stats.multivariate_t.logpdf(e, at, s, nu) for name, at in (("rival", u), ("own", 0 * u))
            }
            evidence = max(0.0, evidence + min(1.0, (density["rival"] - density["own"]) / np.log(20)))
            is_jump = evidence >= patience - 1
            share = np.trace(np.linalg.solve(s, s - r)) / len(rows)
            wide = max(1.0, 100 * (1 - share) / share) * covariance
            gain = wide @ c.T @ np.linalg.inv(c @ wide @ c.T + r)
            if evidence <= 0 and u @ np.linalg.solve(s, u) >= 1:
                offset = np.zeros(2)
            rival = mean + offset + gain @ (e - c @ offset)
            prior = wide if is_jump else covariance
            mean, covariance = capped_update(mean, prior, e, c, r, nu, inner)
            offset = np.zeros(2) if is_jump else rival - mean
            evidence = 0.0 if is_jump else evidence
        means.append(mean)
        covariances.append(covariance)
        evidences.append(evidence)
        jumps.append(is_jump)
    return np.array(means), np.array(covariances), np.array(evidences), np.array(jumps)


def jumping_data(sensor: str, seed: int = 0, n: int = 90):
    """Irregular times, a quarter of the components missing, one observation without any, and two jumps of the state."""
    jumps = dict.fromkeys((30, 60), np.array([40.0, -25.0]))
    return observed(np.random.default_rng(seed), sensor, n, jumps=jumps)


@pytest.mark.parametrize("sensor", list(SENSORS))
def test_every_number_is_that_of_the_definition(sensor):
    times, y, seen = jumping_data(sensor)
    means, covariances, evidence, jumps = by_definition(times, y, seen, sensor)
    outputs, states = follow(build(sensor), times, y, seen)
    assert jumps.sum() >= 2
    assert max(np.abs(s["mean"][0].numpy() - m).max() for s, m in zip(states, means, strict=True)) < 1e-7
    assert max(np.abs(s["covariance"][0].numpy() - p).max() for s, p in zip(states, covariances, strict=True)) < 1e-7
    assert np.abs(np.array([float(s["jump_evidence"]) for s in states]) - evidence).max() < 1e-7
    # Sensors beyond the states can contradict each other, so not all of what was seen need be used.
    assert min(float(o.weight) for o, is_jump in zip(outputs, jumps, strict=True) if is_jump) > 0.9


@pytest.mark.parametrize("sensor", FEWER)
def test_absent_components_leave_no_trace(sensor):
    check_absent_components(build(sensor), *jumping_data(sensor, seed=3))


def test_a_gap_neither_confirms_nor_clears():
    times, y, seen = jumping_data("both states")
    seen[:] = True
    seen[34:38] = False
    _, states = follow(build(), times, np.where(seen, y, 0.0), seen)
    evidence = [float(state["jump_evidence"]) for state in states]
    assert evidence[33] > 1
    assert evidence[33:38] == [evidence[33]] * 5
    f, _ = discretise(times[37] - times[33])
    carried = f @ states[33]["jump_offset"][0].numpy()
    assert np.abs(states[37]["jump_offset"][0].numpy() - carried).max() < 1e-9
    assert evidence[38] > evidence[37] or evidence[38] == 0.0


def test_a_component_that_is_seen_in_turn_with_another_can_jump_alone():
    rng = np.random.default_rng(5)
    n = 160
    level = np.zeros((n, 2))
    level[80:, 0] = 30.0
    y = level + 0.7 * rng.standard_normal((n, 2))
    seen = np.arange(n)[:, None] % 2 == np.arange(2)
    still = {"drift": -1e-3 * np.eye(2), "process_noise": 0.01 * np.eye(2), "measurement_noise": 0.5 * np.eye(2)}
    error = {}
    for patience in (6, None):
        outputs, _ = follow(build(reacquire=patience, **still), np.arange(n) * 1.0, y, seen)
        # Six observations of the component that jumped, which take eleven steps, and some to average.
        error[patience] = [float((outputs[i].mean - torch.from_numpy(level[i])).abs().max()) for i in range(94, 110)]
    assert max(error[6]) < 3.0
    assert min(error[None]) > 6.0


def random_walk(jump: float = 0.0, n: int = 120, streams: int = 60, seed: int = 8):
    """Levels and observations `[streams, n]`, R = 1, Q = 0.02 per step; the level jumps at 60."""
    rng = np.random.default_rng(seed)
    level = np.cumsum(np.sqrt(0.02) * rng.standard_normal((streams, n)), axis=1)
    level[:, 60:] += jump
    return level, level + rng.standard_normal((streams, n))


def level_filter(y, **changes):
    """Means `[streams, n]` of the model, and the last state."""
    config = {"drift": [[0.0]], "process_noise": [[0.02]], "measurement_noise": [[1.0]], "observation": [[1.0]]}
    model = build(initial_covariance=[[1.0]], **config, **changes)
    values = torch.from_numpy(y)[..., None]
    times = torch.arange(y.shape[1], dtype=torch.float64).expand(len(y), -1)
    output, state = model(values, torch.ones_like(values), times)
    return output.mean[..., 0].numpy(), state


def median_delay(mean, level):
    """Steps from 60 until the error is below 2 for three steps."""
    good = np.abs(mean - level)[:, 60:] < 2
    run = good[:, :-2] & good[:, 1:-1] & good[:, 2:]
    return float(np.median(np.where(run.any(1), run.argmax(1), 999)))


@pytest.mark.parametrize("jump", [8.0, *(pytest.param(jump, marks=pytest.mark.slow) for jump in (20.0, 200.0))])
def test_a_jump_is_followed_within_twice_the_kalman_filter_s_delay(jump):
    level, y = random_walk(jump)
    delay = {name: median_delay(level_filter(y, reacquire=n)[0], level) for name, n in (("with", 6), ("without", None))}
    kalman = median_delay(level_filter(y, nu=None, reacquire=None)[0], level)
    assert delay["with"] <= 2 * kalman
    assert delay["without"] > delay["with"]


def test_isolated_spikes_change_nothing():
    """Bit for bit: the rule is silent where there is nothing to follow."""
    _, y = random_walk()
    y[:, 20:110:9] += np.random.default_rng(1).choice([-1.0, 1.0], (60, 10)) * 15
    y[:, 50] += 1e4
    with_rule, _ = level_filter(y)
    without, _ = level_filter(y, reacquire=None)
    assert np.array_equal(with_rule, without)


def test_patience_is_the_number_of_observations_that_agree():
    """A jump of 200 noise deviations: each observation says all that it may, and the n-th is followed."""
    level, y = random_walk(200.0)
    for patience in (2, 3, 6):
        error = np.abs(level_filter(y, reacquire=patience)[0] - level)
        # Noise may have left a stream some evidence before the jump.
        assert np.mean(error[:, 60 + patience - 2] > 50) >= 0.9
        # A hundredth of the jump stays, more where the level was known well; and four deviations of the noise.
        assert (error[:, 60 + patience - 1] < 12).all()


def test_the_covariance_before_a_jump_s_observation_is_the_enlarged_one():
    """What a smoother goes back through: it must not smooth the jump away."""
    times, y, seen = jumping_data("both states")
    *_, jumps = by_definition(times, y, seen, "both states")
    outputs, _ = follow(build(), times, y, seen)
    noise = SENSORS["both states"][1]
    for output, is_jump in zip(outputs, jumps, strict=True):
        stated = output.innovation_covariance[0].numpy() - noise
        assert np.allclose(output.predicted_covariance[0].numpy(), stated) != is_jump


@pytest.mark.parametrize("value", [1, 0, 2.5, True, "6"])
def test_a_patience_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="reacquire"):
        build(reacquire=value)
