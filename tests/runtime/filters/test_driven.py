"""The response to a held input, against the exponential of the system with its input as states more."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

from rfa.runtime.filters.driven import HeldInput

DRIFTS = {
    "oscillator": [[0.9, -2.0], [1.0, -1.1]],
    "velocity": [[0.0, 1.0], [0.0, 0.0]],
    "acceleration": [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
    "slow and fast": [[-1e-3, 0.2], [0.0, -40.0]],
    "chain that decays": [[-0.5, 1.0], [0.0, -0.5]],
    "still": [[0.0]],
}


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("lag", [0.0, 1e-9, 0.01, 0.7, 3.0, 50.0])
def test_moves_are_those_of_the_exponential(name: str, lag: float) -> None:
    drift = np.array(DRIFTS[name])
    n = len(drift)
    whole = expm(np.block([[drift, np.eye(n)], [np.zeros((n, 2 * n))]]) * lag)
    f, g = HeldInput(drift).moves(lag)
    scale = 1 + np.abs(whole).max()
    assert np.abs(f - whole[:n, :n]).max() <= 1e-12 * scale
    assert np.abs(g - whole[:n, n:]).max() <= 1e-12 * scale


def test_an_input_that_is_held_longer_is_held_twice() -> None:
    held = HeldInput(np.array(DRIFTS["oscillator"]))
    (f1, g1), (f2, g2), (f3, g3) = (held.moves(lag) for lag in (0.4, 0.9, 1.3))
    assert np.abs(f2 @ f1 - f3).max() <= 1e-14
    assert np.abs(f2 @ g1 + g2 - g3).max() <= 1e-14
