"""F and Q of defective drifts against the matrix exponential and Van Loan; filters on them against other libraries."""

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.model.recurrence import modes
from rfa.model.recurrence.eigenpairs import Eigenpairs
from rfa.model.recurrence.modes import Chains, backward, seen_from_now, transition
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.spectrum import EXTRA_NODES, mode_arrays, spectrum, stationary, threshold
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import float64_filter

VELOCITY = np.array([[0.0, 1.0], [0.0, 0.0]])
ACCELERATION = np.diag([1.0, 1.0], 1)
PLANE = np.kron(VELOCITY, np.eye(2))
DAMPED_CHAIN = np.array([[-0.7, 1.0], [0.0, -0.7]])
TURN = np.array([[0.0, -1.3], [1.3, 0.0]])


def similar(matrix: np.ndarray, seed: int = 0) -> np.ndarray:
    """The same system in other coordinates, so that no structure is left to see; condition about 10."""
    rng = np.random.default_rng(seed)
    change = np.linalg.qr(rng.normal(size=matrix.shape))[0] @ np.diag(np.geomspace(1, 10, len(matrix)))
    return change @ matrix @ np.linalg.inv(change)


def blocks(*parts: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.linalg.block_diag(*parts))


DRIFTS = {
    "constant velocity": VELOCITY,
    "constant velocity, states swapped": VELOCITY[::-1, ::-1],
    "constant velocity in the plane": PLANE,
    "constant acceleration": ACCELERATION,
    "level, slope and a season": blocks(VELOCITY, TURN),
    "damped chain": DAMPED_CHAIN,
    "undamped chain of rotations": blocks(TURN, TURN) + np.diag([1.0, 1.0], 2),
    "damped chain of rotations": blocks(TURN, TURN) + np.diag([1.0, 1.0], 2) - 0.4 * np.eye(4),
    "velocity, a chain and a decay": blocks(VELOCITY, DAMPED_CHAIN, [[-2.0]]),
    "nearly equal rates": np.array([[-0.5, 1.0], [0.0, -0.5 - 1e-6]]),
    "velocity in other coordinates": similar(PLANE),
    "acceleration in other coordinates": similar(ACCELERATION),
    "mixture in other coordinates": similar(blocks(VELOCITY, DAMPED_CHAIN, [[-2.0]])),
}
LAGS = (0.0, 1e-6, 0.01, 0.3, 1.0, 2.9, 7.0, 31.0, 400.0)


def make_noise(n: int, seed: int = 1) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(n, n))
    return np.asarray(factor @ factor.T)


def built(drift: np.ndarray, noise: np.ndarray, dtype=torch.float64):
    found = spectrum(drift)
    kind = Eigenpairs if found.terms == 1 else Chains
    arrays = mode_arrays(found, noise)
    return kind(*(torch.tensor(arrays[name], dtype=dtype) for name in kind._fields))


def gap(found: torch.Tensor, expected: np.ndarray, floor: float = 1e-300) -> float:
    """Largest difference relative to the largest entry. F starts at 1, so 1 is the floor of its size."""
    return float(np.abs(found.double().numpy() - expected).max() / max(np.abs(expected).max(), floor))


@pytest.mark.parametrize("name", DRIFTS)
def test_transition_is_the_matrix_exponential_and_van_loans_integral(name):
    drift = DRIFTS[name]
    noise = make_noise(len(drift))
    found = built(drift, noise)
    assert isinstance(found, Chains)
    f, q = transition(found, torch.tensor(LAGS, dtype=torch.float64))
    for i, lag in enumerate(LAGS):
        expected_f, expected_q = van_loan(drift, noise, lag)
        assert gap(f[i], scipy.linalg.expm(drift * lag), 1.0) <= 1e-10, lag
        assert gap(q[i], expected_q) <= 1e-10, lag
        assert gap(f[i], expected_f, 1.0) <= 1e-10, lag


@pytest.mark.parametrize("name", DRIFTS)
def test_float32_loses_no_more_than_its_rounding(name):
    """Rounding of 2^-24 per operation, grown by the condition of V on either side; some ten operations a path. The
    angle of a rotation, and the decay, carry their own error: rate times lag."""
    drift = DRIFTS[name]
    noise = make_noise(len(drift))
    found = spectrum(drift)
    lags = torch.tensor(LAGS, dtype=torch.float32)
    f, q = transition(built(drift, noise, torch.float32), lags)
    back = backward(built(drift, noise, torch.float32), lags)
    for i, lag in enumerate(lags.double().tolist()):
        growth = 1 + float(np.abs(found.rates).max()) * lag
        bound = 16 * 2**-24 * np.linalg.cond(found.basis) ** 2 * growth
        expected_f, expected_q = van_loan(drift, noise, lag)
        assert gap(f[i], expected_f, 1.0) <= bound, lag
        assert gap(q[i], expected_q) <= bound, lag
        if lag * max(-found.rates.real.min(), 0) < 12:
            assert gap(back[i], np.linalg.inv(expected_f)) <= bound, lag


@pytest.mark.parametrize("drift", [similar(blocks(TURN, [[-0.4]]) - 0.2 * np.eye(3)), blocks([[0.0]], TURN), PLANE])
def test_what_an_earlier_observation_sees_of_now(drift):
    n = len(drift)
    noise, matrix = make_noise(n), np.random.default_rng(5).normal(size=(2, n))
    modes_ = built(drift, noise)
    lags = torch.tensor([[0.0, 0.3], [2.0, 9.0]], dtype=torch.float64)
    seen, process = seen_from_now(modes_, torch.tensor(matrix), lags)
    for place in np.ndindex(2, 2):
        f, q = van_loan(drift, noise, float(lags[place]))
        expected = matrix @ np.linalg.inv(f)
        assert gap(seen[place], expected) < 1e-11
        assert gap(process[place], expected @ q @ expected.T, 1.0) < 1e-10


@pytest.mark.parametrize("count", [1, 3, 5, 15])
def test_integrals_on_both_sides_of_the_threshold(count):
    """Against adaptive quadrature, over the half plane of what can be asked, near the threshold and away from it."""
    terms = (count + 1) // 2
    nodes = torch.from_numpy(built_nodes(terms))
    reach = threshold(count)
    rng = np.random.default_rng(0)
    size = np.concatenate([reach * np.array([0, 0.01, 0.5, 0.999, 1.001, 1.5, 4]), rng.uniform(0, 30, 9)])
    for x in size * np.exp(1j * rng.uniform(np.pi / 2, 3 * np.pi / 2, len(size))):
        # One cluster pair with l + l* = 2 Re l, so give the other one the imaginary part.
        rates = torch.tensor([[x.real, 0.0], [x.imag, 0.0]], dtype=torch.float64)
        blank = torch.zeros(0)
        chain = Chains(*rates, *[blank] * 9, nodes[:, 0], nodes[:, 1:])
        re, im = modes._integrals(chain, torch.tensor(1.0, dtype=torch.float64))
        for m in range(count):
            expected = quadrature(m, x)
            assert abs(complex(re[m, 0, 1], im[m, 0, 1]) - expected) <= 1e-12 / max(1, abs(x)), (m, x)


def built_nodes(terms: int) -> np.ndarray:
    count = 2 * terms - 1
    nodes, weights = np.polynomial.legendre.leggauss(int(threshold(count)) + EXTRA_NODES)
    nodes, weights = (nodes + 1) / 2, weights / 2
    return np.concatenate([nodes[:, None], weights[:, None] * nodes[:, None] ** np.arange(count)], axis=1)


def quadrature(m: int, x: complex) -> complex:
    def integral(part) -> float:
        return scipy.integrate.quad(lambda s: s**m * part(np.exp(x * s)), 0, 1, epsabs=2e-14, epsrel=1e-11, limit=200)[
            0
        ]

    return complex(integral(np.real), integral(np.imag))


def test_very_long_lags_of_a_damped_chain_reach_the_stationary_covariance_in_float32():
    drift = blocks(DAMPED_CHAIN, [[-0.01]]) - np.diag([0, 0, 0.2])
    noise = make_noise(3)
    chain = built(drift, noise, torch.float32)
    f, q = transition(chain, torch.tensor([1e3, 1e9, 1e20]))
    expected = scipy.linalg.solve_continuous_lyapunov(drift, -noise)
    assert gap(torch.from_numpy(stationary(spectrum(drift), noise)), expected) <= 1e-12
    for i in range(3):
        assert gap(q[i], expected) <= 1e-5
        assert float(f[i].abs().max()) <= 1e-30


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        # A tide of 23 days on a clock of seconds: nearly a constant velocity, and not one.
        ([[0.0, 1.0], [-1e-11, 0.0]], "units of time"),
        ([[0.0, 1.0], [0.0, -1e-6]], "nearly equal eigenvalues"),
        ([[0.3, 1.0], [0.0, 0.3]], "unstable"),
    ],
)
def test_what_cannot_be_represented_is_refused(drift, message):
    with pytest.raises(ValueError, match=message):
        spectrum(np.array(drift))


# Filters.

Q_LEVEL, R, PRIOR = 0.4, np.array([[0.5, 0.1], [0.1, 0.7]]), np.diag([4.0, 4.0, 2.0, 2.0])
NOISE = np.diag([0.0, 0.0, Q_LEVEL, 2 * Q_LEVEL])
SENSOR = np.array([[1.0, 0.0, 0.0, 0.0], [0.3, 1.0, 0.0, 0.0]])


def build(**changes) -> LinearFilter:
    values = {
        "drift": PLANE.tolist(), "process_noise": NOISE.tolist(), "measurement_noise": R.tolist(),
        "observation": SENSOR.tolist(), "nu": None, "initial_covariance": PRIOR.tolist(), **changes,
    }  # fmt: skip
    return float64_filter(LinearFilterConfig.from_dict(values))


def make_data(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lags = rng.exponential(0.3, n)
    lags[n // 2] = 9.0
    seen = rng.random((n, 2)) > 0.25
    seen[n // 3] = False
    return np.cumsum(lags), np.cumsum(rng.normal(size=(n, 2)), axis=0), seen


def test_attention_on_constant_velocity_is_weighted_least_squares():
    """Without process noise the batch estimate is the regression line through the prior: F(-lag) at work."""
    times, y, seen = make_data(n=14, seed=3)
    model = build(process_noise=np.zeros((4, 4)).tolist(), inner=1)
    model.mode = "attention"
    output, _ = model(*(torch.from_numpy(x)[None] for x in (y, seen * 1.0, times)))
    information = np.linalg.inv(PRIOR)
    evidence = np.zeros(4)
    for i in range(14):
        rows = np.flatnonzero(seen[i])
        design = (SENSOR @ scipy.linalg.expm(PLANE * (times[i] - times[0])))[rows]
        weight = np.linalg.inv(R[np.ix_(rows, rows)]) if len(rows) else np.zeros((0, 0))
        information = information + design.T @ weight @ design
        evidence = evidence + design.T @ weight @ y[i, rows]
        now = scipy.linalg.expm(PLANE * (times[i] - times[0])) @ np.linalg.solve(information, evidence)
        assert np.abs(output.state_mean[0, i].numpy() - now).max() <= 1e-8
