"""The same plan as a quadratic program of cvxpy, with inputs that are constant over short steps."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from rfa.benchmarks.papers.control.closed_form import Controller, Waypoints


class Solution(NamedTuple):
    """Inputs `[steps, m]`, cost J and seconds to build and solve."""

    inputs: np.ndarray
    cost: float
    seconds: float


def solve(controller: Controller, start: np.ndarray, waypoints: Waypoints, steps: int) -> Solution:
    """Solve for `steps` constant inputs until the last waypoint; waypoints must be at ends of steps."""
    import cvxpy
    from scipy.linalg import expm

    began = time.perf_counter()
    plant, last = controller.plant, float(waypoints.times[-1])
    step = last / steps
    n, m = plant.control.shape
    move = controller.move(step)
    # The response to a constant input, by the exponential of the drift with the input as a state.
    held = np.zeros((n + m, n + m))
    held[:n, :n], held[:n, n:] = plant.drift * step, plant.control * step
    push = expm(held)[:n, n:]
    states, inputs = cvxpy.Variable((steps + 1, n)), cvxpy.Variable((steps, m))
    costs: list[Any] = [step * cvxpy.quad_form(u, plant.cost) for u in inputs]
    limits: list[Any] = [states[0] == start, states[1:] == states[:-1] @ move.T + inputs @ push.T]
    for t, target, weight in zip(waypoints.times, waypoints.targets, waypoints.weights, strict=True):
        reached = waypoints.outputs @ states[round(t / step)]
        if np.isinf(weight).all():
            limits.append(reached == target)
        else:
            costs.append(cvxpy.sum(cvxpy.multiply(weight, cvxpy.square(reached - target))))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(costs)), limits)
    problem.solve(solver=cvxpy.CLARABEL)
    return Solution(inputs.value, float(problem.value), time.perf_counter() - began)
