"""Control in closed form, against quadrature, a dense program and cvxpy."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from rfa.benchmarks.papers.control.closed_form import Controller, Plant, Waypoints, blend
from rfa.benchmarks.papers.control.vehicle import PILOTS, Course, drive, scores

DRIFT = np.array([[0, 0, 1.0, 0], [0, 0, 0, 1], [-0.3, 0.1, -0.5, 0.2], [0, 0, 0, -0.4]])
PUSH = np.array([[0, 0], [0, 0], [1.0, 0.2], [0, 2]])
COST = np.array([[0.5, 0.1], [0.1, 1.0]])
START = np.array([1.0, -1.0, 0.2, 0.0])


def waypoints(weight=3.0):
    c = np.eye(2, 4)
    return Waypoints(np.array([1.0, 2.5, 4.0]), c, np.array([[0, 1.0], [2, 0], [1, 1]]), np.full((3, 2), weight))


def gramian(s, t):
    """∫_0^min e^{A(s-z)} B R⁻¹ B' e^{A'(t-z)} dz by Gauss and Legendre."""
    nodes, shares = np.polynomial.legendre.leggauss(40)
    end, total = min(s, t), np.zeros((4, 4))
    for node, share in zip(nodes, shares, strict=True):
        z = end * (node + 1) / 2
        total += share * end / 2 * expm(DRIFT * (s - z)) @ PUSH @ np.linalg.inv(COST) @ PUSH.T @ expm(DRIFT.T * (t - z))
    return total


def test_moves_and_responses_are_the_integrals():
    controller = Controller(Plant(DRIFT, PUSH, COST))
    assert np.abs(controller.move(1.7) - expm(1.7 * DRIFT)).max() <= 1e-12
    for s, t in ((0.4, 0.4), (0.7, 2.0), (2.0, 0.7), (3.0, 3.0)):
        expected = gramian(s, t)
        assert np.abs(controller.response(s, t) - expected).max() <= 1e-12 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("weight", [3.0, np.inf])
def test_the_plan_is_that_of_a_dense_solution(weight):
    """p from a loop over waypoints with integrals by quadrature; the state follows the differential equation."""
    controller, given = Controller(Plant(DRIFT, PUSH, COST)), waypoints(weight)
    plan = controller.plan(START, given)
    c, size = given.outputs, 6
    pulled, missing = np.zeros((size, size)), np.zeros(size)
    for i, s in enumerate(given.times):
        missing[2 * i : 2 * i + 2] = given.targets[i] - c @ expm(DRIFT * s) @ START
        for j, t in enumerate(given.times):
            pulled[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = c @ gramian(s, t) @ c.T
    p = np.linalg.solve(pulled + np.eye(size) / weight, missing)
    assert np.abs(plan.pull.ravel() - p).max() <= 1e-12 * np.abs(p).max() * np.linalg.cond(pulled)
    assert plan.cost == pytest.approx(p @ missing, rel=1e-11)
    x, before = START, 0.0
    for time in given.times:  # the input jumps at waypoints

        def slope(t, x, last=time - 1e-12):
            return DRIFT @ x + PUSH @ plan.control(min(t, last))

        found = solve_ivp(slope, (before, time), x, "DOP853", rtol=1e-12, atol=1e-13)
        x, before = found.y[:, -1], time
        assert np.abs(plan.state(time) - x).max() <= 1e-9


def test_constraints_are_reached_and_weights_go_towards_them():
    controller = Controller(Plant(DRIFT, PUSH, COST))
    hard = controller.plan(START, waypoints(np.inf))
    reached = np.stack([waypoints().outputs @ hard.state(t) for t in waypoints().times])
    assert np.abs(reached - waypoints().targets).max() <= 1e-12 * 100
    costs = [float(controller.plan(START, waypoints(w)).cost) for w in (0.1, 1.0, 1e3, 1e9)]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(float(hard.cost), rel=1e-6)


def test_no_other_input_costs_less():
    """The cost of plans of perturbed pulls, by quadrature of their inputs."""
    controller, given = Controller(Plant(DRIFT, PUSH, COST)), waypoints()
    plan = controller.plan(START, given)

    def cost(one):
        total, before = 0.0, 0.0
        nodes, shares = np.polynomial.legendre.leggauss(30)
        for time in given.times:
            for node, share in zip(nodes, shares, strict=True):
                u = one.control(before + (time - before) * (node + 1) / 2)
                total += share * (time - before) / 2 * u @ COST @ u
            before = time
        miss = np.stack([given.outputs @ one.state(t) for t in given.times]) - given.targets
        return total + float(np.sum(given.weights * miss**2))

    assert cost(plan) == pytest.approx(float(plan.cost), rel=1e-10)
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert cost(plan._replace(pull=plan.pull + 0.1 * rng.normal(size=plan.pull.shape))) > float(plan.cost)


@pytest.mark.parametrize("rate", [-0.3 + 1.2j, 0.4 - 2j, 1.5j])
@pytest.mark.parametrize("weight", [0.7, np.inf])
def test_a_mode_is_the_papers_blend(rate, weight):
    """A complex mode as a rotation of the plane, pushed in both directions."""
    size, r, time = 0.8, 0.5, 1.3
    drift = np.array([[rate.real, -rate.imag], [rate.imag, rate.real]])
    controller = Controller(Plant(drift, size * np.eye(2), r * np.eye(2)))
    start, target = np.array([1.0, 2.0]), np.array([-0.5, 0.3])
    given = Waypoints(np.array([time]), np.eye(2), target[None], np.full((1, 2), weight))
    share = blend(np.array([rate]), np.array([weight * size**2 / r]), time)[0]
    expected = (1 - share) * np.exp(rate * time) * complex(*start) + share * complex(*target)
    found = controller.plan(start, given).state(time)
    assert abs(complex(*found) - expected) <= 1e-12


def test_many_starts_are_each_alone():
    controller, starts = Controller(Plant(DRIFT, PUSH, COST)), np.stack([START, 2 * START, np.zeros(4)])
    many = controller.plan(starts, waypoints())
    for i, start in enumerate(starts):
        alone = controller.plan(start, waypoints())
        assert np.abs(many.control(0.3)[i] - alone.control(0.3)).max() <= 1e-12
        assert np.abs(many.state(3.0)[i] - alone.state(3.0)).max() <= 1e-12


def test_a_drift_without_an_eigenbasis_is_refused():
    with pytest.raises(ValueError, match="eigenbasis"):
        Controller(Plant(np.array([[0, 1.0], [0, 0]]), np.eye(2), np.eye(2)))


@pytest.mark.parametrize("weight", [3.0, np.inf])
def test_cvxpy_comes_to_the_same(weight):
    """Its inputs are constant over steps, so it costs more: by a quarter as much with half the step."""
    pytest.importorskip("cvxpy")
    from rfa.benchmarks.papers.control.rival import solve

    controller = Controller(Plant(DRIFT, PUSH, COST))
    best = float(controller.plan(START, waypoints(weight)).cost)
    excess = [solve(controller, START, waypoints(weight), steps).cost - best for steps in (40, 80)]
    assert 0 < excess[0] < 0.01 * best
    assert excess[1] / excess[0] == pytest.approx(0.25, abs=0.03)


def test_outliers_cost_a_robust_pilot_little():
    """The same noises for each pilot. The one that knows its state comes within centimetres."""
    course = Course(waypoints=((6, 4), (12, -2)), outliers=0.2)
    found = {pilot: scores(course, drive(course, pilot, 8, seed=0)) for pilot in PILOTS}
    assert found["truth"]["position_rmse"] == 0
    assert found["truth"]["distance"] < 0.3
    assert found["robust"]["position_rmse"] < found["kalman"]["position_rmse"] / 3
    assert found["robust"]["energy"] < found["kalman"]["energy"] / 2
