"""Least-energy control through waypoints, in closed form in the eigenbasis of the drift.

Source: Racioppo, Attention as an Adaptive Filter, B.5. For x' = A x + B u, the cost of waypoints r_k at t_k is

    J = Σ_k |C x(t_k) - r_k|²_{q_k} + ∫ u' R u dt,     q_k = inf: a constraint

With A = S diag(l) S⁻¹ and M = S⁻¹ B R⁻¹ B' S⁻*, the Gramian and its response between two times are quotients:

    W(t) = S [M_jk (e^{(l_j + l_k*) t} - 1) / (l_j + l_k*)] S*
    K(s, t) = e^{A (s - m)} W(m) e^{A' (t - m)},   m = min(s, t)

The optimal input is a combination of the waypoints' responses:

    (C K C' + 1/q) p = r - C e^{A t} x0,    J = p · (r - C e^{A t} x0)
    u(s) = R⁻¹ B' Σ_{t_k > s} e^{A' (t_k - s)} C' p_k

One waypoint of the full state is the paper's e0, G = W Q_f and (I + G)⁻¹; a mode with |b|², q, r of its own is `blend`.
Units: A 1/time, R cost per time of a unit input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Largest condition number of the eigenvectors. Above it the drift is taken for defective.
LARGEST_CONDITION = 1e10


class Plant(NamedTuple):
    """A `[n, n]`, diagonalisable; B `[n, m]`; R `[m, m]`, positive definite."""

    drift: np.ndarray
    control: np.ndarray
    cost: np.ndarray


class Waypoints(NamedTuple):
    """times `[K]` > 0; outputs C `[P, n]`; targets `[K, P]`; weights `[K, P]` > 0, inf for a constraint."""

    times: np.ndarray
    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


def _growth(exponent: np.ndarray, time: float) -> np.ndarray:
    """Return (e^{exponent time} - 1) / exponent, time where exponent = 0."""
    is_zero = np.abs(exponent) * max(time, 1.0) < 1e-12
    return np.where(is_zero, time, np.expm1(exponent * time) / np.where(is_zero, 1.0, exponent))


class Controller:
    """Plans for one plant. The eigenbasis is computed once.

    Raises:
        ValueError: The drift has no eigenbasis.
    """

    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self._rates, self._basis = np.linalg.eig(plant.drift)
        if np.linalg.cond(self._basis) > LARGEST_CONDITION:
            raise ValueError("drift must have an eigenbasis: add a small damping")
        self._inverse = np.linalg.inv(self._basis)
        pushed = self._inverse @ plant.control
        self._pairs = pushed @ np.linalg.solve(plant.cost, pushed.conj().T)

    def move(self, time: float) -> np.ndarray:
        """Return e^{A time} `[n, n]`."""
        moved: np.ndarray = ((self._basis * np.exp(self._rates * time)) @ self._inverse).real
        return moved

    def response(self, s: float, t: float) -> np.ndarray:
        """Return K(s, t) `[n, n]`: how the input that pulls at t moves the state at s."""
        first = min(s, t)
        gramian = self._pairs * _growth(self._rates[:, None] + self._rates.conj(), first)
        inner = np.exp(self._rates * (s - first))[:, None] * gramian * np.exp(self._rates.conj() * (t - first))
        found: np.ndarray = (self._basis @ inner @ self._basis.conj().T).real
        return found

    def plan(self, start: np.ndarray, waypoints: Waypoints) -> Plan:
        """Plan from states `[..., n]` at time 0."""
        times, c, targets, weights = waypoints
        size = len(times) * len(c)
        pulled = np.block([[c @ self.response(s, t) @ c.T for t in times] for s in times])
        free = np.stack([start @ (c @ self.move(t)).T for t in times], axis=-2)
        missing = (targets - free).reshape(*start.shape[:-1], size)
        pull = np.linalg.solve(pulled + np.diag(1 / weights.ravel()), missing[..., None])[..., 0]
        return Plan(self, start, waypoints, pull.reshape(free.shape), np.sum(pull * missing, axis=-1))


class Plan(NamedTuple):
    """An optimal control: the waypoints' pulls p `[..., K, P]` and the cost J `[...]`."""

    controller: Controller
    start: np.ndarray
    waypoints: Waypoints
    pull: np.ndarray
    cost: np.ndarray

    def _sum(self, parts: list[np.ndarray]) -> np.ndarray:
        """Sum matrices `[a, P]`, one per waypoint, over their pulls."""
        return np.einsum("kap,...kp->...a", np.stack(parts), self.pull)

    def control(self, time: float) -> np.ndarray:
        """Return u `[..., m]` at the given time."""
        plant, c = self.controller.plant, self.waypoints.outputs
        back = np.linalg.solve(plant.cost, plant.control.T)
        times = self.waypoints.times
        moves = [back @ self.controller.move(t - time).T if t > time else 0 * back for t in times]
        return self._sum([move @ c.T for move in moves])

    def state(self, time: float) -> np.ndarray:
        """Return x `[..., n]` under the plan at the given time."""
        c = self.waypoints.outputs
        pulled = self._sum([self.controller.response(time, t) @ c.T for t in self.waypoints.times])
        moved: np.ndarray = self.start @ self.controller.move(time).T + pulled
        return moved


def blend(rate: np.ndarray, stiffness: np.ndarray, time: float) -> np.ndarray:
    """Return beta of the paper's step x⁺ = (1 - beta) e^{rate time} x + beta x_ref, per mode.

    Args:
        rate: Complex rates lambda, `[D]`.
        stiffness: c_qr = q_f |lambda_B|² / r `[D]`; inf for a constraint.
    """
    grown = _growth(2 * rate.real, time)
    return 1 / (1 + 1 / (stiffness * grown))
