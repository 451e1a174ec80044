"""Presets of linear systems. The matrices of one dimension are computed from a few parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
# Ratio of the variances of an unknown state and of its measurement. A larger value would lose digits in the first
# update.
DIFFUSE: Final = 1e12


class Preset(NamedTuple):
    """A preset of a linear system.

    Attributes:
        needed: Names of the required parameters.
        others: Other parameters with their defaults.
        states: Description of the states.
    """

    needed: tuple[str, ...]
    others: Mapping[str, float | int]
    states: str


PRESETS: Final[Mapping[str, Preset]] = {
    "level": Preset(("process_noise", "measurement_noise"), {}, "a random-walk level"),
    "trend": Preset(
        ("process_noise", "slope_noise", "measurement_noise"), {"damping": 0.0}, "a random-walk level and slope"
    ),
    "constant_velocity": Preset(("process_noise", "measurement_noise"), {}, "position and velocity"),
    "constant_acceleration": Preset(
        ("process_noise", "measurement_noise"), {}, "position, velocity and acceleration"
    ),
    "oscillator": Preset(
        ("period", "process_noise", "measurement_noise"), {"damping": 0.0}, "the two phases of an oscillation"
    ),
    "seasonal": Preset(
        ("period", "process_noise", "measurement_noise"), {"harmonics": 3, "season_noise": 0.0},
        "a random-walk level and two phases of each harmonic",
    ),
}  # fmt: skip
# Parameters that must be positive. The others may be zero.
POSITIVE: Final = frozenset({"measurement_noise", "period"})


class Block(NamedTuple):
    """Matrices of one dimension of a preset: A, the diagonal of Q, the row of C, and the diagonal of a diffuse P0. P0
    is None if there is a stationary covariance."""

    drift: Array
    noise: Array
    sensor: Array
    prior: Array | None


def block(whole: Mapping[str, Any]) -> Block:
    """Return the matrices of one dimension of a preset, given a document with all fields of the preset."""
    name, noise = whole["preset"], whole["process_noise"]
    wide = DIFFUSE * whole["measurement_noise"]
    if name == "level":
        return Block(np.zeros((1, 1)), np.array([noise]), np.array([1.0]), np.array([wide]))
    if name == "oscillator":
        turn = _rotation(2 * math.pi / whole["period"], whole["damping"])
        prior = None if whole["damping"] else np.full(2, wide)
        return Block(turn, np.full(2, noise), np.array([1.0, 0.0]), prior)
    if name == "seasonal":
        count = 2 * whole["harmonics"]
        drift = np.zeros((1 + count, 1 + count))
        for k in range(1, whole["harmonics"] + 1):
            drift[2 * k - 1 : 2 * k + 1, 2 * k - 1 : 2 * k + 1] = _rotation(2 * math.pi * k / whole["period"], 0.0)
        sensor = np.array([1.0, *([1.0, 0.0] * whole["harmonics"])])
        return Block(drift, np.array([noise, *[whole["season_noise"]] * count]), sensor, np.full(1 + count, wide))
    order = {"trend": 2, "constant_velocity": 2, "constant_acceleration": 3}[name]
    drift, sensor = np.eye(order, k=1), np.eye(order)[0]
    noises = np.zeros(order)
    noises[-1] = noise
    if name == "trend":
        drift[1, 1] = -whole["damping"]
        noises[:] = noise, whole["slope_noise"]
    return Block(drift, noises, sensor, wide / _natural_time(whole, order) ** (2.0 * np.arange(order)))


def _rotation(omega: float, damping: float) -> Array:
    return np.array([[-damping, -omega], [omega, -damping]])


def _natural_time(whole: Mapping[str, Any], order: int) -> float:
    """Return the time after which the process noise of the state is as large as the measurement noise. It is the scale
    of the slopes."""
    noise = whole["slope_noise" if whole["preset"] == "trend" else "process_noise"]
    if noise > 0:
        return float((whole["measurement_noise"] / noise) ** (1 / (2 * order - 1)))
    if whole["process_noise"] > 0:
        return float(whole["measurement_noise"] / whole["process_noise"])
    return math.inf
