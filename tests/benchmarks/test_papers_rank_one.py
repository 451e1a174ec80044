"""Laws of directed noise: the closed form, its inverse, the radial drift, and Propositions 1 and 2 of AFA B.7."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize

from rfa.benchmarks.papers.rank_one import DirectedNoise, covariance, heads_of, precision

NOISE = DirectedNoise(0.7, 0.4, 1.5, -0.6)


def skew(size, seed=0):
    half = np.random.default_rng(seed).standard_normal((size, size))
    return half - half.T


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("lag", [0.0, 0.01, 2.5])
def test_the_covariance_is_the_integral_over_the_noise_that_moves_with_the_flow(mu, lag):
    drift, p = -mu * np.eye(4) + skew(4), np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0][0]

    def carried(spread, excess, direction, time):
        move = scipy.linalg.expm(drift * time)
        return move @ (spread * (np.eye(4) + excess * np.outer(direction, direction))) @ move.T

    def direction(time):
        """p, which is p at the end, `time` before the end."""
        return scipy.linalg.expm(-skew(4) * time) @ p

    grown = scipy.integrate.quad_vec(
        lambda time: carried(NOISE.sigma2, NOISE.process_excess, direction(time), time), 0, lag, epsabs=1e-13
    )[0]
    expected = grown + carried(NOISE.eta2, NOISE.measurement_excess, direction(lag), lag)
    found = covariance(NOISE, mu, lag, p)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(precision(NOISE, mu, lag, p), np.linalg.inv(expected), rtol=0, atol=1e-11)


def test_equal_noises_have_no_direction():
    plain = DirectedNoise(0.7, 0.4, 0.0, 0.0)
    np.testing.assert_array_equal(covariance(plain, 0.1, 1.0, np.eye(3)[0]), covariance(plain, 0.1, 1.0, np.eye(3)[2]))


def test_a_radius_under_tangential_noise_grows():
    """E|x + dx| - |x| = (D - 1) s_t dt / (2 |x|) + O(dt²): the paper's 5.1 has 0, as if u^T P_T u were tr P_T."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    weights, m, s_r, s_t = weights / weights.sum(), 1.7, 0.9, 0.5
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1)
    mass = np.einsum("i,j,k->ijk", weights, weights, weights)
    growth = []
    for dt in (1e-3, 1e-4):
        step = grid * np.sqrt(dt * np.array([s_r, s_t, s_t]))
        growth.append((mass * (np.linalg.norm(step + np.array([m, 0, 0]), axis=-1) - m)).sum() / dt)
    assert growth[1] == pytest.approx(2 * s_t / (2 * m), rel=1e-3)
    assert abs(growth[1] - 2 * s_t / (2 * m)) < 0.2 * abs(growth[0] - 2 * s_t / (2 * m))


def test_proposition_1_holds_for_equal_decays_only():
    """A product of blocks scales all channels alike: with one decay a block is exact, with two none comes near."""
    basis, time = np.random.default_rng(2).standard_normal((3, 3)), 1.5

    def flow(rates):
        return basis @ np.diag(np.exp(rates * time)) @ np.linalg.inv(basis)

    def blocks(decays, frequencies, step):
        return flow_of([decay + 1j * row for decay, row in zip(decays, frequencies, strict=True)], step)

    def flow_of(rates, step):
        result = np.eye(3, dtype=complex)
        for rate in rates:
            result = basis @ np.diag(np.exp(rate * step)) @ np.linalg.inv(basis) @ result
        return result

    frequencies = np.array([0.4, -0.4, 2.0])
    alike = flow(-0.3 + 1j * frequencies)
    np.testing.assert_allclose(blocks([-0.1, -0.5], [frequencies] * 2, time / 2), alike, rtol=0, atol=1e-12)
    unlike = flow(np.array([-0.1, -0.1, -2.0]) + 1j * frequencies)

    def distance(values):
        rows = np.split(values[4:], 4)
        made = blocks(values[:4], rows, time / 4)
        return np.abs(np.diag(np.linalg.inv(basis) @ (made - unlike) @ basis)).max()

    start = np.random.default_rng(0).standard_normal(16)
    best = scipy.optimize.minimize(distance, start, method="Powell", options={"maxiter": 5}).fun
    bound = (np.exp(-0.1 * time) - np.exp(-2.0 * time)) / 2
    assert best >= bound * (1 - 1e-9)


def test_proposition_2_a_head_for_each_dimension_makes_any_covariance():
    root = np.random.default_rng(3).standard_normal((5, 5))
    target = root @ root.T + 0.1 * np.eye(5)
    directions, radial, tangential = heads_of(target)
    assert (radial > 0).all() and (tangential > 0).all()
    made = sum(
        covariance(DirectedNoise(0.0, t, 0.0, r / t - 1), 0.0, 0.0, u)
        for u, r, t in zip(directions, radial, tangential, strict=True)
    )
    np.testing.assert_allclose(made, target, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-12)
