"""States of simulated systems: the exact filter is exact, and nobody is told more than the measurements."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.series import states


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, states.Observed]:
    monkeypatch.setattr(states, "STREAMS", 6)
    monkeypatch.setattr(states, "ROWS", 500)
    return states.systems(np.random.default_rng(0))


def test_the_exact_filter_knows_how_far_off_it_is(few: dict[str, states.Observed]) -> None:
    """90 % of 1,800 correlated states; a filter that knows the system is off by less than the measurements."""
    for name in ("oscillator", "constant velocity", "level"):
        found = states.scored(few[name], system=few[name].system)
        assert 0.85 < found["inside"] < 0.95, name
        assert found["error"] < 0.8, name
        assert found["error"] < states.scored(few[name], model="auto")["error"], name


def test_systems_are_what_they_are_called(few: dict[str, states.Observed]) -> None:
    for one in few.values():
        assert one.truth.shape == one.measured.shape == (6, 500)
        assert np.isfinite(one.truth).all()
    oscillator = few["oscillator"].truth
    lagged = (oscillator[:, 40:] * oscillator[:, :-40]).mean() / (oscillator**2).mean()
    opposite = (oscillator[:, 20:] * oscillator[:, :-20]).mean() / (oscillator**2).mean()
    assert lagged > 0.4 and opposite < -0.4
    assert (np.sign(few["Lorenz"].truth).std(axis=1) > 0).all()
    assert np.abs(np.diff(few["robot"].truth, axis=1)).max() <= 0.5
