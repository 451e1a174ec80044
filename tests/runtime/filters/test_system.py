"""Documents of systems: what they mean, held against other libraries, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from filterpy.common import Q_continuous_white_noise, Q_discrete_white_noise

from rfa.runtime.filters.fitted import are_models, system_for
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.sampled import drift_of, gathered, moved, noise_rate
from rfa.runtime.filters.spectrum import spectrum
from rfa.runtime.filters.system import MOST_STATES, InvalidSystem, System
from tests.model.joint_gaussian import van_loan
from tests.model.test_modes import DRIFTS, make_noise

VELOCITY: dict[str, Any] = {"A": [[0, 1], [0, 0]], "Q": [[0, 0], [0, 0.1]], "C": [[1, 0]], "R": 0.25, "P0": 100}
NOISES = {"process_noise": 0.1, "measurement_noise": 0.25}
DAMPED = {"A": [[-1, 1], [0, -1]], "Q": 1, "C": [[1, 0]], "R": 1}


def sampled(config: LinearFilterConfig, lag: float) -> tuple[np.ndarray, np.ndarray]:
    return van_loan(np.array(config.drift), np.array(config.process_noise), lag)


# From samples to continuous time.


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("lag", [0.01, 0.3, 1.0, 2.0])
def test_a_sampled_system_is_had_back(name: str, lag: float) -> None:
    """The tolerance is the rounding of F, Q and the basis, times what a logarithm of this lag amplifies it by."""
    drift, noise = DRIFTS[name], make_noise(len(DRIFTS[name]))
    transition, gained = van_loan(drift, noise, lag)
    found = drift_of(transition, lag)
    rounding = 1e-11 * max(1.0, np.abs(drift).max())
    np.testing.assert_allclose(found, drift, atol=rounding, rtol=0)
    np.testing.assert_allclose(found, scipy.linalg.logm(transition) / lag, atol=1e-6, rtol=0)
    np.testing.assert_allclose(noise_rate(spectrum(found), gained, lag), noise, atol=1e-10 * noise.max(), rtol=0)
    modes = spectrum(drift)
    np.testing.assert_allclose(moved(modes, lag), transition, atol=1e-12, rtol=1e-10)
    np.testing.assert_allclose(gathered(modes, noise, lag), gained, atol=1e-12 * np.abs(gained).max(), rtol=1e-10)


def test_a_matrix_per_step_is_the_system_between_the_steps() -> None:
    """Half a step twice is one step, of a document that was given by the step."""
    step = {"F": [[1, 0.5], [0, 1]], "dt": 0.5, "Q": Q_continuous_white_noise(2, 0.5, 0.1).tolist()}
    found = System.from_document({**step, "H": [[1, 0]], "R": 0.25, "P0": 100}).config
    np.testing.assert_allclose(found.drift, VELOCITY["A"], atol=1e-14)
    np.testing.assert_allclose(found.process_noise, VELOCITY["Q"], atol=1e-15)
    for lag in (0.25, 0.5, 3.0):
        expected = [[1, lag], [0, 1]], Q_continuous_white_noise(2, lag, 0.1)
        for got, want in zip(sampled(found, lag), expected, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-13)


@pytest.mark.parametrize("noise", ["full", "of one state"])
def test_noise_per_step_comes_back_to_rounding(noise: str) -> None:
    drift = scipy.linalg.block_diag([[0, 1], [0, -0.3]], [[-0.1, -2], [2, -0.1]])
    rate = make_noise(4) if noise == "full" else np.diag([0, 0.2, 0, 0])
    transition, gained = van_loan(drift, rate, 0.7)
    document = {"F": transition.tolist(), "dt": 0.7, "Q": gained.tolist(), "R": 1, "P0": 10}
    back = sampled(System.from_document(document).config, 0.7)
    np.testing.assert_allclose(back[0], transition, atol=1e-12)
    np.testing.assert_allclose(back[1], gained, atol=1e-12 * np.abs(gained).max())


# Presets.


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize(("preset", "order"), [("level", 1), ("constant_velocity", 2), ("constant_acceleration", 3)])
def test_presets_of_motion_are_those_of_filterpy(preset: str, order: int, dimensions: int) -> None:
    found = System.from_document({"preset": preset, "dimensions": dimensions, **NOISES}).config
    lag = 0.7
    transition, noise = sampled(found, lag)
    one = np.eye(dimensions)
    powers = [lag**k / np.prod(np.arange(1.0, k + 1)) for k in range(order)]
    expected = sum(power * np.eye(order, k=k) for k, power in enumerate(powers))
    # filterpy has no order 1: a random walk's variance grows by its density.
    gained = Q_continuous_white_noise(order, lag, 0.1) if order > 1 else np.array([[0.1 * lag]])
    np.testing.assert_allclose(transition, np.kron(one, expected), atol=1e-14)
    np.testing.assert_allclose(noise, np.kron(one, gained), atol=1e-14)
    np.testing.assert_array_equal(found.measurement_noise, 0.25 * one)
    np.testing.assert_array_equal(found.observation, np.kron(one, np.eye(order)[0]))


def test_an_oscillator_comes_back_after_its_period() -> None:
    found = System.from_document({"preset": "oscillator", "period": 12, "damping": 0.05, **NOISES}).config
    transition, _ = sampled(found, 12.0)
    np.testing.assert_allclose(transition, np.exp(-0.6) * np.eye(2), atol=1e-13)
    assert found.initial_covariance is None  # the stationary one
    free = System.from_document({"preset": "oscillator", "period": 12, **NOISES}).config
    assert free.initial_covariance is not None


def test_a_season_is_a_sum_of_its_harmonics_on_a_level() -> None:
    document = {"preset": "seasonal", "period": 24, "harmonics": 4, "season_noise": 0.001, **NOISES}
    found = System.from_document(document).config
    transition, noise = sampled(found, 24.0)
    np.testing.assert_allclose(transition, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(noise, np.diag([2.4, *[0.024] * 8]), atol=1e-12)
    # Seen from the first phases, it is a level and cosines.
    state, row = np.array([5.0, *[1.0, 0.0] * 4]), np.array(found.observation)[0]
    for lag in (1.0, 7.3):
        expected = 5 + sum(np.cos(2 * np.pi * k * lag / 24) for k in range(1, 5))
        assert row @ sampled(found, lag)[0] @ state == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("preset", ["constant_velocity", "constant_acceleration", "trend"])
def test_a_prior_that_knows_nothing_has_no_units(preset: str) -> None:
    """In minutes and millimetres the same prior is another number."""
    time, length = 60.0, 1000.0
    order = 3 if preset == "constant_acceleration" else 2
    more, other = ({"slope_noise": 0.1}, {"slope_noise": 0.1 * length**2 * time**3}) if preset == "trend" else ({}, {})
    noise = 0.1 * length**2 * time ** (1 if preset == "trend" else 2 * order - 1)
    here = System.from_document({"preset": preset, **NOISES, **more}).config.initial_covariance
    there = System.from_document(
        {"preset": preset, "process_noise": noise, "measurement_noise": 0.25 * length**2, **other}
    ).config.initial_covariance
    units = length * time ** np.arange(order)
    np.testing.assert_allclose(np.array(there), np.array(here) * np.outer(units, units), rtol=1e-12)


# Documents.


def test_one_system_has_one_name_however_it_is_spelt() -> None:
    plain = System.from_document(VELOCITY)
    other = {**VELOCITY, "H": np.array([[1, 0]]), "R": [[0.25]], "nu": 7, "x0": None, "P0": 100 * np.eye(2)}
    del other["C"]
    assert System.from_document(other).digest == plain.digest
    assert System.from_document(json.loads(json.dumps(plain.document))).digest == plain.digest
    assert plain.name == f"system:{plain.digest[:8]}"
    for changed in ({"R": 0.26}, {"nu": None}, {"reacquire": None}, {"offset": [0.0]}):
        assert System.from_document({**VELOCITY, **changed}).digest != plain.digest


@pytest.mark.parametrize("nu", [None, 5.0])
def test_a_config_becomes_a_document_and_comes_back(nu: float | None) -> None:
    config = LinearFilterConfig(
        DAMPED["A"], np.eye(2), [[1.0]], [[1, 0.5]], offset=(3.0,), nu=nu, inner=2, initial_mean=(1.0, 2.0),
        contamination=0.01, outlier_scale=4.0, reacquire=None,
    )  # fmt: skip
    assert System.of(config).config == config
    learned = LinearFilterConfig(DAMPED["A"], np.eye(2), np.eye(2), rule="learned")
    with pytest.raises(InvalidSystem, match="rule 'learned'"):
        System.of(learned)


def test_a_column_has_its_system_among_models() -> None:
    level = {"preset": "level", **NOISES}
    many = {"series": {"a": level, "b": VELOCITY, "b / x": level}}
    assert are_models(many) and not are_models(level)
    found = {
        ("b", "", True): VELOCITY, ("x", "b", True): VELOCITY, ("x", "b", False): level, ("a", "", False): level
    }  # fmt: skip
    for (column, key, is_only), document in found.items():
        assert system_for(many, column, key, is_only=is_only).digest == System.from_document(document).digest
    assert system_for({"series": {"b / x": level}}, "x", "b").digest == System.from_document(level).digest
    with pytest.raises(InvalidSystem, match="contains systems for 'a', 'b', 'b / x', but none for 'c'"):
        system_for(many, "c")
    for broken in ({"series": {}}, {"series": 3}, {"series": {"a": level}, "more": 1}):
        with pytest.raises(InvalidSystem, match=r"system\.series must contain"):
            system_for(broken, "a")


REFUSED: list[tuple[Any, str, str]] = [
    (3, "system", "must be an object"),
    ({}, "system.A", "or F with dt is required"),
    ({**VELOCITY, "F": [[1]], "dt": 1}, "system.A", "set only one of them"),
    ({**VELOCITY, "dt": 1}, "system.dt", "time step of F"),
    ({**VELOCITY, "H": [[1, 0]]}, "system.H", "and C are names of the same"),
    ({**VELOCITY, "period": 3}, "system.period", "is not a field of a system"),
    ({**VELOCITY, "Q": None}, "system.Q", "is required"),
    ({**VELOCITY, "A": [[0, 1]]}, "system.A", r"must have shape \[1, 1\]"),
    ({**VELOCITY, "A": [[0, 1], [0]]}, "system.A", "rows of equal length"),
    ({**VELOCITY, "A": [[0, True], [0, 0]]}, "system.A", "must contain numbers"),
    ({**VELOCITY, "A": [[0.0] * 65] * 65}, "system.A", f"at most {MOST_STATES}"),
    ({**VELOCITY, "A": [[0, float("nan")], [0, 0]]}, "system.A", "must contain numbers"),
    ({**VELOCITY, "A": [[0.1, 1], [0, 0]]}, "system.A", "is unstable: an eigenvalue has real part 0.1"),
    ({"A": (np.eye(16, k=1) - np.eye(16)), "Q": 1, "R": 1}, "system.A", "has nearly equal eigenvalues"),
    ({**VELOCITY, "Q": [[1, 2], [2, 1]]}, "system.Q", "positive semidefinite"),
    ({**VELOCITY, "Q": [[1, 0.5], [0, 1]]}, "system.Q", "symmetric"),
    ({**VELOCITY, "C": [[1]]}, "system.C", r"must have shape \[any, 2\]"),
    ({**VELOCITY, "R": 0}, "system.R", "positive definite"),
    ({**VELOCITY, "P0": None}, "system.P0", "is required, because A has an undamped mode.*A number is multiplied"),
    ({**VELOCITY, "P0": "wide"}, "system.P0", "must be a number"),
    ({**VELOCITY, "x0": [1]}, "system.x0", "a list of 2 numbers"),
    ({**VELOCITY, "offset": [1, 2]}, "system.offset", "a list of 1 numbers"),
    ({**VELOCITY, "nu": 2}, "system.nu", "must be > 2 or null"),
    ({**VELOCITY, "passes": 0}, "system.passes", "from 1 to 64"),
    ({**VELOCITY, "reacquire": 1}, "system.reacquire", "from 2"),
    ({**VELOCITY, "contamination": 1}, "system.contamination", r"in \[0, 1\)"),
    ({"preset": "level"}, "system.process_noise", "because the state of the preset 'level' is a random-walk level"),
    ({"preset": "pendulum"}, "system.preset", "must be one of level, trend"),
    ({"preset": "level", "period": 3, **NOISES}, "system.period", "is not a field of the preset 'level'"),
    ({"preset": "level", "process_noise": -1, "measurement_noise": 1}, "system.process_noise", "0 or more"),
    ({"preset": "level", "process_noise": 1, "measurement_noise": 0}, "system.measurement_noise", "above 0"),
    ({"preset": "constant_velocity", "process_noise": 0, "measurement_noise": 1}, "system.P0", "is required if"),
    ({"preset": "constant_velocity", "dimensions": 33, **NOISES}, "system.dimensions", "give 66 states"),
    ({"preset": "level", "dimensions": 65, **NOISES}, "system.dimensions", "from 1 to 64"),
    ({"preset": "seasonal", "period": 24, "harmonics": 32, **NOISES}, "system.harmonics", "give 65 states"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "field", "reason"), REFUSED, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named(document: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidSystem, match=reason) as refused:
        System.from_document(document)
    assert refused.value.field == field
    assert str(refused.value).startswith(field + " ")


STEP = {"dt": 0.5, "H": [[1, 0]], "R": 1, "P0": 1}


@pytest.mark.parametrize(
    ("transition", "noise", "field", "reason"),
    [
        ([[1, 0.5], [0, -0.8]], 1, "system.F", "has the negative eigenvalue -0.8"),
        ([[1, 0.5], [0, 0]], 1, "system.F", "is singular"),
        ([[1.1, 0.5], [0, 0.3]], 1, "system.F", "is unstable"),
        ([[1, 0.5], [0, 1]], Q_discrete_white_noise(2, 0.5).tolist(), "system.Q", "continuous-time system with this F"),
        ([[1, 0.5], [0, 1]], [[1, 2], [2, 1]], "system.Q", "positive semidefinite"),
        ([[1, 0.5], [0, 1]], [[1, 2], [0, 1]], "system.Q", "symmetric"),
    ],
)
def test_what_has_no_continuous_time_is_refused(transition: Any, noise: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidSystem, match=reason) as refused:
        System.from_document({"F": transition, "Q": noise, **STEP})
    assert refused.value.field == field


def test_a_turn_per_step_is_the_slowest_that_it_can_be() -> None:
    """Of the many that show the same samples, that below half a turn a step."""
    angle = 3.0
    turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    found = System.from_document({"F": turn, "Q": 0.1, **STEP}).config
    np.testing.assert_allclose(found.drift, [[0, -6], [6, 0]], atol=1e-12)
