"""A simulated vehicle that is steered through waypoints by its estimate of where it is.

    position' = velocity,   velocity' = -drag velocity + u + noise,   measured is the position, sometimes wrongly

At each step the plan from the estimate to the next waypoints is made anew, and its first input is held until the next
step. The filter runs on what is left of the measurements after the known effect of the inputs: covariances do not
depend on a deterministic input (AFA B.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import expm

from rfa.benchmarks.papers.control.closed_form import Controller, Plant, Waypoints
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import Token
from rfa.runtime.filters.linear_config import LinearFilterConfig

Pilot = Literal["truth", "robust", "kalman", "measurement"]
PILOTS: tuple[Pilot, ...] = ("truth", "robust", "kalman", "measurement")
# Seconds from a waypoint to the next, and between measurements; number of waypoints that a plan looks ahead; weight of
# the squared distance to a waypoint, where an input of 1 m/s² costs 1 per second.
LEG, STEP, AHEAD, WEIGHT = 4.0, 0.2, 3, 30.0
# Drag in 1/s, process and measurement noise (metres and seconds), and degrees of freedom of the robust filter.
DRAG, PROCESS, MEASUREMENT, OUTLIER_SCALE, NU = 0.4, 0.1, 0.25, 20.0, 5.0


@dataclass(frozen=True)
class Course:
    """The waypoints in metres, and the proportion of measurements whose noise is OUTLIER_SCALE times as large."""

    waypoints: tuple[tuple[float, float], ...] = (
        (6, 4), (12, -2), (18, 5), (24, 0), (18, -5), (12, 3), (6, -4), (0, 0),
    )  # fmt: skip
    outliers: float = 0.1

    @property
    def steps(self) -> int:
        return round(len(self.waypoints) * LEG / STEP)

    @property
    def plant(self) -> Plant:
        drift, push = np.zeros((4, 4)), np.zeros((4, 2))
        drift[:2, 2:], drift[2:, 2:], push[2:] = np.eye(2), -DRAG * np.eye(2), np.eye(2)
        return Plant(drift, push, np.eye(2))


class Run(NamedTuple):
    """states, estimates `[N + 1, B, 4]`; measurements, inputs `[N, B, 2]`; the paths planned by the first vehicle."""

    states: np.ndarray
    estimates: np.ndarray
    measurements: np.ndarray
    inputs: np.ndarray
    plans: list[np.ndarray]


def _rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())


class Estimator:
    """The state of B vehicles from their positions, robust with nu or as a Kalman filter."""

    def __init__(self, course: Course, vehicles: int, nu: float | None) -> None:
        config = LinearFilterConfig(
            drift=_rows(course.plant.drift),
            process_noise=_rows(np.diag([0, 0, PROCESS, PROCESS])),
            measurement_noise=_rows(MEASUREMENT * np.eye(2)),
            observation=_rows(np.eye(2, 4)),
            initial_covariance=_rows(0.01 * np.eye(4)),
            nu=nu,
        )
        torch.set_default_dtype(torch.float64)
        try:
            self._filter = LinearFilter(config)
        finally:
            torch.set_default_dtype(torch.float32)
        self._state, self._step = self._filter.init_state(vehicles), STEP
        self.present = torch.ones(vehicles, 2, dtype=torch.float64)

    @torch.no_grad()
    def update(self, value: np.ndarray) -> np.ndarray:
        """Return the states `[B, 4]` after measurements `[B, 2]`."""
        count = torch.ones(len(value), dtype=torch.float64)
        token = Token(torch.from_numpy(value), self.present, self._step * count, count)
        _, self._state = self._filter.step(token, self._state)
        mean: np.ndarray = self._state["mean"].numpy()
        return mean


def drive(course: Course, pilot: Pilot, vehicles: int, seed: int) -> Run:
    """Drive vehicles from the origin. The same seed has the same noises for every pilot."""
    rng = np.random.default_rng(seed)
    plant, controller = course.plant, Controller(course.plant)
    held = expm(np.block([[plant.drift, plant.control], [np.zeros((2, 6))]]) * STEP)
    move, push = held[:4, :4], held[:4, 4:]
    spread = _process(course)
    estimator = Estimator(course, vehicles, NU if pilot == "robust" else None)
    steered = np.zeros((vehicles, 4))  # the effect of the inputs alone
    states, estimates = [np.zeros((vehicles, 4))], [np.zeros((vehicles, 4))]
    measurements, inputs, plans = [], [], []
    for i in range(course.steps):
        plan = controller.plan(estimates[-1], next_waypoints(course, i * STEP))
        u = plan.control(0.0)
        plans.append(np.stack([plan.state(t)[0, :2] for t in np.linspace(0, plan.waypoints.times[-1], 25)]))
        states.append(states[-1] @ move.T + u @ push.T + rng.normal(size=(vehicles, 4)) @ spread.T)
        far = np.where(rng.random((vehicles, 1)) < course.outliers, OUTLIER_SCALE, 1.0)
        z = states[-1][:, :2] + far * np.sqrt(MEASUREMENT) * rng.normal(size=(vehicles, 2))
        steered = steered @ move.T + u @ push.T
        if pilot == "truth":
            found = states[-1]
        elif pilot == "measurement":  # with the velocity that the last one predicted
            found = np.concatenate([z, (estimates[-1] @ move.T + u @ push.T)[:, 2:]], axis=-1)
        else:
            found = steered + estimator.update(z - steered[:, :2])
        estimates.append(found)
        measurements.append(z)
        inputs.append(u)
    return Run(np.stack(states), np.stack(estimates), np.stack(measurements), np.stack(inputs), plans)


def _process(course: Course) -> np.ndarray:
    """Return a root of the covariance of the process noise of a step, `[4, 4]`, by Van Loan's exponential."""
    a, q = course.plant.drift, np.diag([0, 0, PROCESS, PROCESS])
    found = expm(np.block([[-a, q], [np.zeros((4, 4)), a.T]]) * STEP)
    covariance = found[4:, 4:].T @ found[:4, 4:]
    root: np.ndarray = np.linalg.cholesky((covariance + covariance.T) / 2)
    return root


def next_waypoints(course: Course, now: float) -> Waypoints:
    """Return the next waypoints, at times from now; the last of them all is a weighted stop."""
    times = LEG * np.arange(1, len(course.waypoints) + 1) - now
    coming = np.flatnonzero(times > STEP / 2)[:AHEAD]
    targets = np.array(course.waypoints, float)[coming]
    return Waypoints(times[coming], np.eye(2, 4), targets, np.full(targets.shape, WEIGHT))


def scores(course: Course, run: Run) -> dict[str, float]:
    """Return the RMS distance to the waypoints, the fraction of them missed by 1 m, and the cost of the inputs."""
    at = np.arange(1, len(course.waypoints) + 1) * round(LEG / STEP)
    miss = np.linalg.norm(run.states[at, :, :2] - np.array(course.waypoints)[:, None], axis=-1)
    error = np.linalg.norm((run.estimates - run.states)[1:, :, :2], axis=-1)
    return {
        "distance": float(np.sqrt(np.mean(miss**2))),
        "missed": float(np.mean(miss > 1.0)),
        "position_rmse": float(np.sqrt(np.mean(error**2))),
        "energy": float(np.mean(np.sum(run.inputs**2, axis=(0, 2))) * STEP),
    }
