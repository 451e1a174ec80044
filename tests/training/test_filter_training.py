"""Simulation, CSV reading and the training loop."""

import json
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.data import load_series
from rfa.fitting.interrupts import Stopped
from rfa.model.checkpoint import load_run
from rfa.training.deep import DeepTrainer
from rfa.training.filter import FilterRun, load_data, train_filter
from rfa.training.language_config import find_config
from rfa.training.series import split, windows
from rfa.training.simulate import OSCILLATOR_DRIFT, Disturbance, discretise, simulate_oscillator
from tests.training.stopping import stop_at

SMALL = {
    "family": "deep",
    "model": {"d_model": 8, "n_heads": 2, "head_dim": 2, "n_layers": 1},
    "training": {"steps": 6, "nominal_steps": 24, "batch": 12, "length": 16, "sequences": 60, "validate_every": 15,
                 "learning_rate": 0.02},
}  # fmt: skip


def test_drift_is_the_published_one_and_discretisation_is_exact():
    basis = np.array([[1 - 1j, 1 + 1j], [1, 1]])
    assert np.allclose(basis @ np.diag([-0.1 - 1j, -0.1 + 1j]) @ np.linalg.inv(basis), OSCILLATOR_DRIFT)
    f, q = discretise(OSCILLATOR_DRIFT, 0.7)
    assert np.allclose(f, scipy.linalg.expm(0.7 * OSCILLATOR_DRIFT))
    grid = (np.arange(20_000) + 0.5) * 0.7 / 20_000
    parts = np.array([scipy.linalg.expm(OSCILLATOR_DRIFT * s) for s in grid[::100]])
    assert np.allclose(q, 0.7 * np.mean(parts @ parts.transpose(0, 2, 1), 0), rtol=2e-2)


def test_simulation_has_the_stated_noises_outliers_gaps_and_times():
    batch = simulate_oscillator(300, 40, settings=((0.3, 0.5),), seed=1)
    error = batch.observations - batch.truth
    assert abs(error.var() - 0.5) < 0.02
    disturbed = simulate_oscillator(
        300, 40, settings=((0.3, 0.5),), disturbance=Disturbance(outliers=0.05, missing=0.2, is_irregular=True), seed=1
    )
    gone = np.isnan(disturbed.observations).all(-1)
    assert abs(gone.mean() - 0.2) < 0.02
    size = np.nanvar(disturbed.observations - disturbed.truth)
    assert abs(size - 0.5 * (0.95 + 5)) < 0.6
    assert np.diff(disturbed.times, axis=1).std() > 0.05
    euler = simulate_oscillator(400, 30, settings=((0.3, 0.5),), steps="euler", seed=2)
    exact = simulate_oscillator(400, 30, settings=((0.3, 0.5),), seed=3)
    assert np.allclose(np.cov(euler.truth[:, -1].T), np.cov(exact.truth[:, -1].T), rtol=0.35, atol=0.6)
    again = simulate_oscillator(300, 40, settings=((0.3, 0.5),), seed=1)
    assert np.array_equal(batch.observations, again.observations)


def test_splits_are_in_order_of_time(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a\n" + "\n".join(str(i) for i in range(100)) + "\n")
    train, validation, test = split(load_series(path))
    assert train.times.max() < validation.times.min() and validation.times.max() < test.times.min()
    assert windows(train, 20).times.shape == (5, 20)


def test_training_lowers_the_validation_loss_and_the_run_loads(tmp_path):
    lines = []
    model = train_filter(
        FilterRun.from_dict(SMALL), "simulate:oscillator", tmp_path, report=lines.append, show_progress=False
    )
    assert lines[-1]["validation_nominal"] < lines[0]["validation_nominal"]
    recorded = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert recorded == lines
    again = load_run(tmp_path)
    assert again.config == model.config
    assert all((a == b).all() for a, b in zip(again.parameters(), model.parameters(), strict=True))


@pytest.fixture
def series(tmp_path):
    """A file with gaps, of which training disturbs the inputs: the draws must go on, too."""
    rng = np.random.default_rng(0)
    rows = [f"{0.5 * i},{'' if i % 7 == 0 else rng.normal()},{rng.normal() + 50}" for i in range(200)]
    (tmp_path / "series.csv").write_text("t,a,b\n" + "\n".join(rows) + "\n")
    return str(tmp_path / "series.csv")


def train(source, out, steps=4, **training):
    """In 8 steps of the nominal filter, and these of the head."""
    run = FilterRun.from_dict(SMALL)
    short = {"nominal_steps": 8, "batch": 4, "length": 8, "validate_every": 6}
    run = replace(run, training=replace(run.training, steps=steps, **short, **training))
    return train_filter(run, source, out, show_progress=False)


@pytest.mark.parametrize(
    ("step", "number"), [(5, signal.SIGINT), pytest.param(10, signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_stopped_run_ends_as_if_it_had_not_been(series, tmp_path, monkeypatch, request, step, number):
    """In either phase: of the nominal filter, and of the head."""
    # A run in the background of a script is born deaf to SIGINT, and training leaves it so.
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(series, whole)
    stop_at(step, DeepTrainer, monkeypatch, number)
    with pytest.raises(Stopped, match=f"{number.name}: stopped and saved at step {step} of 12"):
        train(series, cut)
    assert json.loads((cut / "progress.json").read_text())["step"] == step
    train(series, cut)
    for name in ("model.safetensors", "metrics.jsonl", "validation.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_finished_run_is_left_and_goes_on_with_more_steps(series, tmp_path):
    out = tmp_path / "run"
    model = train(series, out)
    assert model.config.time_unit == 0.5 and abs(float(model.center[1]) - 50) < 1
    before = {path: path.read_bytes() for path in out.iterdir()}
    again = train(series, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    train(series, out, steps=8)
    record = json.loads((out / "train.json").read_text())
    assert (record["steps"], record["extended_at"]) == (8, [4])
    lines = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == [6, 12, 16]
    with pytest.raises(ValueError, match=r"it differs in learning_rate, steps"):
        train(series, out, learning_rate=0.01)
    with pytest.raises(ValueError, match=r"it differs in data"):
        train("simulate:oscillator", out, steps=8)
    with pytest.raises(ValueError, match="contains a trained run"):
        train_filter(FilterRun.from_file(find_config("linear")), "simulate:oscillator", out)


def test_unknown_sections_sources_and_keys_are_refused():
    with pytest.raises(ValueError, match="colour"):
        FilterRun.from_dict({"colour": 1})
    with pytest.raises(ValueError, match="colour"):
        FilterRun.from_dict({"training": {"colour": 1}})
    with pytest.raises(ValueError, match="simulate:other"):
        load_data("simulate:other", FilterRun.from_dict(SMALL).training)
