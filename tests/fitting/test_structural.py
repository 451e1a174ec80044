"""Structural models: likelihood and gradient against other code, the joint likelihood, the run and its export."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from rfa.data import Series
from rfa.export.filter_export import export_filter
from rfa.fitting.column_models import StructuralConfig, fit_structural, joint_config
from rfa.fitting.joint import joint_log_likelihood
from rfa.fitting.maximum_likelihood import (
    Fit,
    Likelihood,
    make_column,
)
from rfa.fitting.progress import SavedFits
from rfa.fitting.scan import Robust, scan_series
from rfa.fitting.structural_model import (
    Structure,
    matrices,
    parameters,
    raw_start,
    sensor,
)
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.training.filter import FilterRun, train_filter
from rfa.training.series import split
from tests.fitting.structural_models import DAMPED, RICH, column, irregular, random_raw, system
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import float64_filter


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
    measurement = likelihood.system.measurement(raw, 3)
    plain = measurement._replace(robust=measurement.robust._replace(inverse_nu=0.0, contamination=0.0))
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
