"""Structural models: likelihood and gradient against other code, recovery of parameters, the run and its export."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from rfa.data import Series, load_series
from rfa.export.filter_export import export_filter
from rfa.fitting.column_models import StructuralConfig, fit_structural, joint_config
from rfa.fitting.joint import Robust, joint_log_likelihood
from rfa.fitting.maximum_likelihood import (
    Column,
    Fit,
    Likelihood,
    Limits,
    fit_column,
    fit_structure,
    make_column,
    standard_errors,
)
from rfa.fitting.progress import SavedFits
from rfa.fitting.scan import SEGMENT, scan_series
from rfa.fitting.seasons import candidate_periods, strongest_rate
from rfa.fitting.structural_model import (
    Structure,
    matrices,
    parameters,
    raw_bounds,
    raw_start,
    sensor,
)
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.training.filter import FilterRun, train_filter
from rfa.training.series import split
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import float64_filter

RICH = Structure(has_trend=True, seasons=((24.0, 2), (60.0, 1)), relaxations=1, cycles=1)
DAMPED = Structure(level="damped", relaxations=2)
LIMITS = Limits(harmonics=2, free_modes=1, iterations=60, inner=3)


def random_raw(structure, seed=0):
    """Raw parameters inside the bounds, away from the edges."""
    rng = np.random.default_rng(seed)
    low, high = np.array(raw_bounds(structure)).T
    return low + (high - low) * rng.uniform(0.35, 0.65, len(low))


def system(structure, raw):
    return matrices(structure, raw, step=1.0, center=0.0, spread=1.0)


# Rows of several segments of the gradient, the last not full.
ROWS = 2 * SEGMENT + 16


def irregular(n=ROWS, seed=1):
    """Times, values with gaps."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0, n))
    y = np.cumsum(rng.normal(size=n)) / 3
    y[rng.random(n) < 0.2] = np.nan
    return times, y


def column(y, times=None):
    """A column to train on as a whole, not normalised: center 0 and spread 1."""
    times = np.arange(len(y), dtype=float) if times is None else times
    lags, step = np.unique(np.diff(times, prepend=times[0]), return_inverse=True)
    return Column("y", y, step, lags, len(y), 0.0, 1.0, 1.0)


@pytest.mark.parametrize("structure", [RICH, DAMPED])
def test_gaussian_likelihood_is_that_of_statsmodels_with_missing_values(structure):
    raw = random_raw(structure)
    times, y = irregular()
    found = system(structure, raw)
    model = KalmanFilter(k_endog=1, k_states=len(found.drift))
    model.bind(y)
    model["design"], model["obs_cov"] = found.sensor[None], np.array([[found.variance]])
    model["obs_intercept"], model["selection"] = np.array([found.offset]), np.eye(len(found.drift))
    steps = [van_loan(found.drift, found.process, lag) for lag in np.diff(times)] + [(np.eye(len(found.drift)),) * 2]
    model["transition"] = np.stack([f for f, _ in steps], axis=-1)
    model["state_cov"] = np.stack([q for _, q in steps], axis=-1)
    model.initialize_known(np.zeros(len(found.drift)), found.prior)
    expected = model.filter().llf_obs

    likelihood = Likelihood(column(y, times), structure, 3)
    plain = likelihood.system.measurement(raw, 3)._replace(inverse_nu=0.0, contamination=0.0)
    scan = scan_series(y, likelihood.column.step, likelihood.system.tables(raw), plain)
    assert np.abs(scan.log_likelihood - expected).max() <= 1e-8


@pytest.mark.parametrize("inner", [1, 3])
def test_robust_likelihood_and_weights_are_those_of_the_served_filter(inner):
    raw = random_raw(RICH)
    times, y = irregular()
    y[30] += 15
    found = system(RICH, raw)
    values = dict(zip(parameters(RICH), raw, strict=True))
    robust = {
        "nu": math.exp(-values["inverse_nu"]),
        "contamination": math.exp(values["contamination"]),
        "outlier_scale": math.exp(values["outlier_scale"]),
    }
    config = joint_config([found], np.eye(1), "nothing", robust, inner)
    # The fit knows no jumps of the state, which the served filter follows.
    model = float64_filter(replace(config, reacquire=None))
    seen = np.isfinite(y)
    output, _ = model(
        torch.from_numpy(np.where(seen, y, 0.0))[None, :, None],
        torch.from_numpy(seen * 1.0)[None, :, None],
        torch.from_numpy(times)[None],
    )
    scan = Likelihood(column(y, times), RICH, inner).scan(raw, len(y))
    assert scan.weight.min() < 0.5
    # Rounding of some 80 steps of about 10 states.
    assert np.abs(scan.log_likelihood - output.log_likelihood[0].numpy() * seen).max() <= 1e-9
    assert np.abs(scan.weight - np.where(seen, output.weight[0].numpy(), 1.0)).max() <= 1e-9


@pytest.mark.parametrize("structure", [RICH, DAMPED])
@pytest.mark.parametrize("inner", [1, 3])
def test_gradient_is_the_slope_of_the_likelihood(structure, inner):
    times, y = irregular()
    y[30] += 15
    likelihood = Likelihood(column(y, times), structure, inner)
    raw = random_raw(structure, seed=3)
    _, slope = likelihood.loss(raw)
    # Central differences: truncation ~ h² and rounding ~ 1e-15 / h are both below 1e-9 at h = 1e-5.
    h = 1e-5
    for i in range(len(raw)):
        ahead, behind = raw.copy(), raw.copy()
        ahead[i] += h
        behind[i] -= h
        numeric = (likelihood.loss(ahead)[0] - likelihood.loss(behind)[0]) / (2 * h)
        assert abs(slope[i] - numeric) <= 1e-7 * max(1, np.abs(slope).max()), list(parameters(structure))[i]


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


def two_columns(correlation, n=500, seed=0):
    """Two local levels whose measurement noises correlate, some components missing."""
    rng = np.random.default_rng(seed)
    mix = np.linalg.cholesky(np.array([[1, correlation], [correlation, 1]]))
    values = np.cumsum(0.1 * rng.normal(size=(n, 2)), axis=0) + 0.5 * rng.normal(size=(n, 2)) @ mix.T
    values[rng.random((n, 2)) < 0.15] = np.nan
    return Series(np.arange(float(n)), values * np.array([1.0, 30.0]) + np.array([0.0, 500.0]), ("a", "b"))


def two_fits(series, structures):
    """Columns of a series, and parameters of them that nobody fitted."""
    columns = [make_column(name, series.times, series.values[:, i], 80) for i, name in enumerate(series.names)]
    return columns, [Fit(one, random_raw(one, seed=i), 0.0, 0.0) for i, one in enumerate(structures)]


def config_of(columns, fits, correlation, robust, inner):
    systems = [
        matrices(fit.structure, fit.raw, step=column.time_step, center=column.center, spread=column.spread)
        for column, fit in zip(columns, fits, strict=True)
    ]
    return joint_config(systems, correlation, "measurement and level", robust, inner)


PAIRS = [(Structure(relaxations=1), DAMPED), (RICH, Structure(has_trend=True)), (DAMPED, RICH)]


@pytest.mark.parametrize("structures", PAIRS)
def test_partial_rows_count_in_the_joint_likelihood(structures):
    series = two_columns(0.7, 120)
    series.times[60:] += 0.5
    columns, fits = two_fits(series, structures)
    correlation = np.array([[1, 0.7], [0.7, 1]])
    gaussian = {"nu": None, "contamination": 0.0, "outlier_scale": 10.0}
    config = config_of(columns, fits, correlation, gaussian, 1)
    n = len(config.drift)
    model = KalmanFilter(k_endog=2, k_states=n)
    model.bind(series.values)
    steps = [van_loan(np.array(config.drift), np.array(config.process_noise), lag) for lag in np.diff(series.times)]
    steps.append((np.eye(n),) * 2)
    model["design"], model["obs_cov"] = np.array(config.observation), np.array(config.measurement_noise)
    model["obs_intercept"], model["selection"] = np.array(config.offset), np.eye(n)
    model["transition"] = np.stack([f for f, _ in steps], axis=-1)
    model["state_cov"] = np.stack([q for _, q in steps], axis=-1)
    model.initialize_known(np.zeros(n), np.array(config.initial_covariance))
    expected = model.filter().llf_obs
    partial = np.isfinite(series.values).sum(1) == 1
    assert partial.sum() > 10
    found = joint_log_likelihood(columns, fits, (correlation, correlation), Robust(0.0, 0.0, 10.0, 1), 40)
    assert abs(found - expected[40:].sum()) <= 1e-8 * len(expected)
    assert abs(config.process_noise[0][structures[0].state_size]) > 0


@pytest.mark.parametrize("inner", [1, 3])
def test_the_robust_joint_likelihood_is_that_of_the_served_filter(inner):
    series = two_columns(0.7, 120)
    series.values[50] += 40.0
    columns, fits = two_fits(series, PAIRS[1])
    correlation = np.array([[1, 0.7], [0.7, 1]])
    config = config_of(columns, fits, correlation, {"nu": 4.0, "contamination": 0.05, "outlier_scale": 4.0}, inner)
    # The fit knows no jumps of the state, which the served filter follows.
    model = float64_filter(replace(config, reacquire=None))
    seen = np.isfinite(series.values)
    output, _ = model(
        torch.from_numpy(np.where(seen, series.values, 0.0))[None],
        torch.from_numpy(seen * 1.0)[None],
        torch.from_numpy(series.times)[None],
    )
    assert output.weight.min() < 0.5
    expected = float((output.log_likelihood[0].numpy() * seen.any(1))[40:].sum())
    found = joint_log_likelihood(columns, fits, (correlation, correlation), Robust(0.25, 0.05, 4.0, inner), 40)
    assert abs(found - expected) <= 1e-8 * len(seen)


def test_a_fit_that_was_stopped_goes_on_with_the_columns_that_are_left(tmp_path):
    train, validation, _ = split(two_columns(0.0))
    config = StructuralConfig(seasons=(), max_free_modes=1, iterations=30)
    whole = fit_structural(train, validation, config)

    def kept(asked="this"):
        return SavedFits(tmp_path / "run" / "fitted.jsonl", asked, [train.values])

    class Stopped(Exception):
        pass

    def stop(line, share):
        if line.startswith("b") and len(kept()):
            raise Stopped

    with pytest.raises(Stopped):
        fit_structural(train, validation, config, report=stop, saved=kept())
    assert len(kept()) == 1 and kept().get("a") is not None
    with kept().path.open("a") as file:  # the machine stopped in the middle of a line
        file.write('{"name": "b", "fou')
    lines = []
    again = fit_structural(
        train, validation, config, report=lambda line, share: lines.append((line, share)), saved=kept()
    )
    assert again.config == whole.config
    assert [line for line, _ in lines if line.startswith("a")] == ["a: loaded from an earlier fit"]
    assert sum(share for _, share in lines) == pytest.approx(2)
    assert len(kept()) == 2 and len(kept("other")) == 0


def test_columns_share_noise_only_where_it_helps():
    limits = StructuralConfig(seasons=(), max_free_modes=0, iterations=30)
    for correlation, expected in ((0.8, True), (0.0, False)):
        train, validation, _ = split(two_columns(correlation))
        found = fit_structural(train, validation, limits)
        assert (found.joint["shared_noise"] != "nothing") == expected, found.joint
        if expected:
            noise = np.array(found.config.measurement_noise)
            assert 0.5 < noise[0, 1] / math.sqrt(noise[0, 0] * noise[1, 1]) < 0.95


def csv_of(path, n=400, seed=0):
    """Two hourly columns with a daily season, gaps and an outlier."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    a = 20 + np.cumsum(0.1 * rng.normal(size=n)) + 2 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.normal(size=n)
    b = 1000 + 50 * rng.normal(size=n)
    a[100] += 40
    lines = ["date,a,b"]
    for i in range(n):
        day, hour = divmod(i, 24)
        cells = ["" if rng.random() < 0.1 else f"{x:.4f}" for x in (a[i], b[i])]
        lines.append(f"2024-{1 + day // 28:02d}-{1 + day % 28:02d}T{hour:02d}:00:00+00:00,{','.join(cells)}")
    path.write_text("\n".join(lines) + "\n")


RUN = FilterRun.from_dict(
    {"family": "structural", "model": {"max_harmonics": 1, "max_free_modes": 1, "iterations": 25}}
)


@pytest.mark.slow
def test_a_run_is_exported_and_served(tmp_path):
    csv_of(tmp_path / "data.csv")
    model = train_filter(RUN, str(tmp_path / "data.csv"), tmp_path / "run", show_progress=False)
    assert model.observation_size == 2
    assert model.config.offset[1] == pytest.approx(1000, abs=100)
    runtime = FilterRuntime(open_bundle(export_filter(tmp_path / "run", tmp_path / "bundle").path))
    rng = np.random.default_rng(0)
    hours = 3600.0 * np.arange(200)
    rows: list[list[float | None]] = [
        [20 + 2 * math.sin(2 * math.pi * i / 24) + 0.3 * rng.normal(), 1000 + 50 * rng.normal()] for i in range(200)
    ]
    rows[50][0], rows[60] = None, [None, None]
    result = runtime.filter(list(hours), rows, horizon=[24 * 3600.0])
    values = np.array([[np.nan if x is None else x for x in row] for row in rows])
    seen = np.isfinite(values)
    with torch.no_grad():
        output, state = model(
            torch.from_numpy(np.where(seen, values, 0.0)).float()[None],
            torch.from_numpy(seen).float()[None],
            torch.from_numpy(hours)[None],
        )
        ahead, _ = model.forecast({k: v for k, v in state.items() if k != "time"}, torch.tensor([24 * 3600.0]))
    means = np.array([step.mean for step in result.steps])
    # float32 on both sides, against the noise of each column.
    assert np.abs((means - output.mean[0].numpy()) / np.array([0.3, 50])).max() < 1e-2
    served = np.array(result.steps[-1].forecast[0].mean)
    assert np.abs((served - ahead[0, 0].numpy()) / np.array([0.3, 50])).max() < 1e-2
    # A day ahead the season stands where it stood.
    assert abs(served[0] - (20 + 2 * math.sin(2 * math.pi * 223 / 24))) < 1.5


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (lambda i: ("1.5" if i < 190 else f"{i % 3}", f"{i % 7}"), "column 'a' is constant in the training part"),
        (lambda i: (f"{i % 3}" if i > 190 else "", f"{i % 7}"), "column 'a' has no values in the training part"),
        (lambda i: (f"{i % 7}" if i % 10 == 0 else "", f"{i % 7}"), "column 'a' has 12 values .* needs 40"),
        (lambda i: (f"{i % 5}" if i < 120 else "", f"{i % 7}"), "column 'a' has no values in the validation part"),
    ],
)
def test_columns_that_cannot_be_fitted_are_refused(tmp_path, cells, message):
    rows = [",".join((str(i), *cells(i))) for i in range(200)]
    (tmp_path / "data.csv").write_text("t,a,b\n" + "\n".join(rows) + "\n")
    with pytest.raises(ValueError, match=message):
        train_filter(RUN, str(tmp_path / "data.csv"), tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()


def test_too_few_rows_and_bad_configs_are_refused(tmp_path):
    (tmp_path / "data.csv").write_text("a\n" + "\n".join(str(i % 3) for i in range(30)) + "\n")
    with pytest.raises(ValueError, match="has 18 values in the training part; a structural model needs 40"):
        train_filter(RUN, str(tmp_path / "data.csv"), tmp_path / "run", show_progress=False)
    with pytest.raises(ValueError, match="fitted to a CSV"):
        train_filter(RUN, "simulate:oscillator", tmp_path / "run", show_progress=False)
    with pytest.raises(ValueError, match="no training section"):
        FilterRun.from_dict({"family": "structural", "training": {}})
    for key, value in (
        ("seasons", "daily"), ("seasons", [0.0]), ("seasons", 24), ("max_harmonics", 0), ("iterations", True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=key):
            StructuralConfig.from_dict({key: value})
    with pytest.raises(ValueError, match="harmonies"):
        StructuralConfig.from_dict({"harmonies": 1})
    with pytest.raises(ValueError, match="longer than two time steps"):
        fit_structural(*split(two_columns(0.0))[:2], StructuralConfig(seasons=(1.5,)))


def test_structure_counts_its_states_and_shares_frequencies_once():
    shared = Structure(seasons=((24.0, 2), (168.0, 14)), relaxations=1, cycles=1)
    # Of the weekly harmonics the 7th and the 14th are the daily ones.
    assert len(shared.harmonics()) == 2 + 12
    assert shared.state_size == len(sensor(shared)) == 1 + 1 + 2 * (14 + 1)
    assert len(Structure(seasons=((4.0, 5),)).harmonics()) == 1
    with pytest.raises(ValueError, match="random_walk"):
        Structure(level="damped", has_trend=True)
    assert isinstance(LinearFilterConfig.from_dict(
        joint_config([system(shared, raw_start(shared))], np.eye(1), "nothing",
                     {"nu": None, "contamination": 0.0, "outlier_scale": 10.0}, 1).to_dict()
    ), LinearFilterConfig)  # fmt: skip
