"""Structural models: parameters, standard errors, modes and periods are recovered from simulated series."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rfa.data import load_series
from rfa.fitting.maximum_likelihood import (
    fit_column,
    fit_structure,
    make_column,
    standard_errors,
)
from rfa.fitting.seasons import candidate_periods, strongest_rate
from rfa.fitting.structural_model import (
    Structure,
    parameters,
    raw_start,
)
from tests.fitting.structural_models import LIMITS, column, system
from tests.model.joint_gaussian import van_loan


def simulate(structure, values, n, seed=0):
    """A path of the system, by Cholesky factors of the doubled exponential's noise."""
    rng = np.random.default_rng(seed)
    raw = raw_start(structure, values)
    found = system(structure, raw)
    f, q = van_loan(found.drift, found.process, 1.0)
    factor = np.linalg.cholesky(q + 1e-15 * np.eye(len(q)))
    state = np.sqrt(np.diag(found.prior)) * rng.normal(size=len(q))
    y = np.empty(n)
    for i in range(n):
        state = f @ state + factor @ rng.normal(size=len(q))
        y[i] = found.offset + found.sensor @ state + math.sqrt(found.variance) * rng.normal()
    return y


TRUTH = {
    "noise": 0.05, "level_noise": 0.002, "relaxation0_noise": 0.1, "relaxation0_decay": 0.3,
    "season0_decay": 0.01, "harmonic0_noise": 0.004,
}  # fmt: skip


# Every kind of mode: a level that decays, a season and a cycle.
MODES = Structure(level="damped", seasons=((12.0, 1),), cycles=1)
MODES_TRUTH = {
    "offset": 0.5, "noise": 0.1, "level_noise": 0.02, "level_decay": 0.02, "season0_decay": 0.01,
    "harmonic0_noise": 0.01, "cycle0_noise": 0.05, "cycle0_decay": 0.05, "cycle0_omega": 1.3,
}  # fmt: skip


def holed_csv(path, y, share, seed=0):
    """A CSV of a value per hour, with empty cells."""
    holes = np.random.default_rng(seed).random(len(y)) < share
    lines = [f"{3600 * i},{'' if hole else repr(float(v))}" for i, (v, hole) in enumerate(zip(y, holes, strict=True))]
    path.write_text("t,y\n" + "\n".join(lines) + "\n")
    return path


def test_parameters_are_recovered_within_their_standard_errors_from_a_csv_with_holes(tmp_path):
    """Decays, frequency, noises and the offset, with 30 % of the values missing."""
    series = load_series(holed_csv(tmp_path / "data.csv", simulate(MODES, MODES_TRUTH, 4000, seed=5), 0.3))
    assert 0.28 < np.isnan(series.values).mean() < 0.32
    observed = column(series.values[:, 0], series.times / 3600)
    fit = fit_structure(observed, MODES, LIMITS, {"cycle0_omega": 1.2})
    found, errors = fit.values(), standard_errors(observed, fit, LIMITS.inner)
    z = {name: (found[name] - truth) / errors[name] for name, truth in MODES_TRUTH.items()}
    # Nine normal z: all below 3.5 but once in 240; and the errors are small enough for that to say something.
    assert max(map(abs, z.values())) < 3.5, z
    assert max(errors[name] / truth for name, truth in MODES_TRUTH.items()) < 0.6
    assert errors["cycle0_omega"] < 0.01
    # Clean data: hardly an outlier, little reason to weigh.
    assert found["contamination"] < 0.05


def test_standard_errors_are_the_spread_over_repeated_data():
    """The oracle is a second way to the same number: fit many series of one system."""
    structure, truth = Structure(level="damped"), {"noise": 0.1, "level_noise": 0.1, "level_decay": 0.05}
    estimates, reported = [], []
    for seed in range(REPEATS):
        made = column(simulate(structure, truth, 800, seed=100 + seed))
        fit = fit_structure(made, structure, LIMITS, truth)
        errors, values = standard_errors(made, fit, LIMITS.inner), fit.values()
        estimates.append([math.log(values[name]) for name in truth])
        reported.append([errors[name] / values[name] for name in truth])
    spread = np.std(estimates, axis=0, ddof=1)
    # A standard deviation of so many normal numbers is known to 1 / sqrt(2 n); four of these.
    assert np.abs(np.log(spread / np.median(reported, axis=0))).max() < 4 / math.sqrt(2 * REPEATS)
    off = np.mean(estimates, axis=0) - np.log(list(truth.values()))
    assert (np.abs(off) < 4 * spread / math.sqrt(REPEATS) + BIAS).all()


REPEATS = 20
# Maximum likelihood is biased by about the squared relative error.
BIAS = 0.05


def test_what_the_data_do_not_tell_has_no_standard_error():
    made = column(simulate(Structure(), {"noise": 0.1, "level_noise": 0.01}, 600, seed=3))
    fit = fit_structure(made, Structure(relaxations=1), LIMITS)
    errors = standard_errors(made, fit, LIMITS.inner)
    assert errors["noise"] is not None
    # Normal data: no reason to weigh, so nu is at the end of its range; and nothing says how large an outlier would be.
    assert errors["inverse_nu"] is None and errors["outlier_scale"] is None


def test_nu_tells_heavy_tails_from_normal_ones():
    """nu is the filter's: which weights predict best. Student-t noise of 3 degrees asks for low ones."""
    found = {}
    for name in ("normal", "heavy"):
        rng = np.random.default_rng(8)
        level = np.cumsum(0.1 * rng.normal(size=3000))
        noise = rng.normal(size=3000) if name == "normal" else rng.standard_t(3, size=3000)
        y = level + 0.5 * noise
        y[rng.random(3000) < 0.3] = np.nan
        made = column(y)
        fit = fit_structure(made, Structure(), LIMITS)
        found[name] = fit.values()["inverse_nu"], standard_errors(made, fit, LIMITS.inner)["inverse_nu"]
    heavy, error = found["heavy"]
    assert abs(heavy - 1 / 3) < 3 * error and error < 0.15
    assert found["normal"][0] < 0.05


@pytest.mark.parametrize("cycles", [0, 1, 2])
def test_the_number_of_modes_is_found(cycles):
    structure = Structure(relaxations=1, cycles=cycles)
    truth = {
        "noise": 0.2, "level_noise": 0.002, "relaxation0_noise": 0.05, "relaxation0_decay": 0.3,
        "cycle0_noise": 0.02, "cycle0_decay": 0.03, "cycle0_omega": 0.9,
        "cycle1_noise": 0.02, "cycle1_decay": 0.03, "cycle1_omega": 1.9,
    }  # fmt: skip
    observed = {name: value for name, value in truth.items() if name in parameters(structure)}
    y = simulate(structure, observed, 2400, seed=11)
    y[np.random.default_rng(1).random(len(y)) < 0.3] = np.nan
    fit = fit_column(make_column("y", np.arange(2400.0), y, 1600), [], replace(LIMITS, free_modes=4))
    assert fit.structure.cycles == cycles
    rates = sorted(value for name, value in fit.values().items() if name.endswith("omega"))
    assert np.abs(np.array(rates) - [0.9, 1.9][:cycles]).max(initial=0.0) < 0.03


def test_a_cycle_is_looked_for_where_the_innovations_have_power():
    rng = np.random.default_rng(2)
    places = np.flatnonzero(rng.random(3000) > 0.3).astype(float)
    for omega in (0.3, 1.4, 2.6):
        series = np.cos(omega * places + 1) + rng.normal(size=len(places))
        assert abs(strongest_rate(places, series) - omega) < 0.05
    assert strongest_rate(np.cumsum(rng.exponential(20.0, 300)), rng.normal(size=300)) is None


def test_search_finds_the_season_and_no_more():
    structure = Structure(seasons=((12.0, 1),), relaxations=0)
    y = simulate(structure, {**TRUTH, "noise": 0.2}, 1200, seed=7)
    made = make_column("y", np.arange(1200.0), y, 900)
    fit = fit_column(made, [12.0], LIMITS)
    assert [season[0] for season in fit.structure.seasons] == [12.0]
    none = fit_column(
        make_column("y", np.arange(600.0), np.random.default_rng(0).normal(size=600), 450), [12.0], LIMITS
    )
    assert none.structure.seasons == () and not none.structure.has_trend and none.structure.cycles == 0
    assert all({"structure", "validation", "seconds"} == set(line) for line in fit.tried)


def test_periods_are_found_where_they_are_and_nowhere_else():
    rng = np.random.default_rng(0)
    t = np.arange(4000.0)
    walk = np.cumsum(rng.normal(size=4000)) * 0.2
    daily = 2 * np.sin(2 * np.pi * t / 24) + 1.5 * np.sin(4 * np.pi * t / 24 + 1)
    weekly = 2 * np.sin(2 * np.pi * t / 168 + 2)
    y = walk + daily + weekly + rng.normal(size=4000)
    y[rng.random(4000) < 0.1] = np.nan
    assert sorted(candidate_periods(3600 * t, y)) == [24.0, 168.0]
    # Sharp patterns may show in high harmonics only.
    high = sum(np.sin(2 * np.pi * k * t / 24 + k) for k in (5, 7, 11))
    assert candidate_periods(t, walk + high + rng.normal(size=4000)) == [24.0]
    # One line is a period of its own, not the fourth harmonic of another.
    assert candidate_periods(t, walk + 2 * np.sin(2 * np.pi * t / 9)) == [9.0]
    assert candidate_periods(t, walk) == [] and candidate_periods(t, rng.normal(size=4000)) == []
    # The peak lies below the fewest cycles of a season.
    assert candidate_periods(t[:60], 20 + 5 * np.sin(t[:60] / 4)) == []
    # No grid: nothing is claimed.
    assert candidate_periods(np.cumsum(rng.exponential(1.0, 4000)), y) == []
