"""The AFA experiment, shortened: every figure is there, and the picture; the references against other code."""

import json

import numpy as np
import pytest
import torch

from rfa.benchmarks.papers.afa.compare import AfaPlan, write_afa
from rfa.benchmarks.papers.afa.layer import AFAConfig, AFAFilter
from rfa.benchmarks.papers.afa.rivals import euler_moves, kalman_estimates
from rfa.benchmarks.papers.afa.scores import (
    frequencies,
    learned_eigenvalues,
)
from rfa.benchmarks.papers.afa.training import PredictorTraining
from rfa.benchmarks.results_page.page import tables_of
from rfa.training.simulate import simulate_oscillator
from tests.model.oracles import filterpy_filter


def test_the_whole_experiment_in_small(tmp_path):
    plan = AfaPlan(
        PredictorTraining(steps=20, batch=4), d_model=4, length=24, sequences=8, test_sequences=6, seeds=(0,)
    )
    document = write_afa(tmp_path / "afa.json", tmp_path / "figures", plan)
    written = json.loads((tmp_path / "afa.json").read_text())
    assert written["rows"] == document["rows"] and len(written["rows"]) == 3
    for row in document["rows"]:
        assert row["loss"]["kalman"] < min(run["loss"] for run in row["afa"])
        assert row["state_rmse"]["kalman"] < row["state_rmse"]["raw"]
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["afa-trajectories.png"]
    assert "AFA" in tables_of("afa", document)[2]


def test_the_floor_is_the_kalman_filter_of_the_euler_steps():
    batch = simulate_oscillator(2, 30, settings=((0.3, 0.5),), seed=4, steps="euler")
    f, q = euler_moves(0.3)
    means, ahead = kalman_estimates(batch.observations, 0.3, 0.5)
    for row in range(2):
        y = batch.observations[row]
        expected, _ = filterpy_filter(
            batch.times[row], y, np.ones_like(y, bool), lambda _: (f, q), np.eye(2), 0.5 * np.eye(2), 4 * np.eye(2)
        )
        assert np.abs(means[row] - expected).max() <= 1e-9
        assert np.abs(ahead[row] - expected @ f.T).max() <= 1e-9


def test_euler_moves_are_those_of_the_simulation():
    f, _ = euler_moves(0.0)
    batch = simulate_oscillator(3, 5, settings=((0.0, 1.0),), seed=1, steps="euler")
    assert np.allclose(batch.truth[:, 1:], batch.truth[:, :-1] @ f.T, atol=1e-12)
    f, q = euler_moves(0.5)
    noisy = simulate_oscillator(20_000, 2, settings=((0.5, 1.0),), seed=2, steps="euler")
    left = noisy.truth[:, 1] - noisy.truth[:, 0] @ f.T
    # Six standard errors of a covariance of 20,000 draws.
    assert np.abs(left.T @ left / 20_000 - q).max() <= 6 * np.sqrt(2 / 20_000) * q.max()


def one_pair(mu, omega):
    """A layer whose transport is a multiple of one matrix exponential with the eigenvalues -mu ± i omega."""
    model = AFAFilter(AFAConfig(observation_size=2, d_model=2, head_dim=2, step=0.1)).double()
    with torch.no_grad():
        model.layer.scalars.alpha.fill_(mu**0.5)
        model.layer.scalars.frequency.fill_(omega)
        model.layer.value.weight.zero_()
        model.layer.output.weight.zero_()
        basis = model.embedding.T.double()
        model.layer.value.weight[0], model.layer.value.weight[2] = basis[0], basis[1]
        model.layer.output.weight[:, 0], model.layer.output.weight[:, 2] = 2 * basis[0], 2 * basis[1]
    return model


def test_learned_eigenvalues_are_those_of_the_transport():
    model = one_pair(0.3, 1.7)
    assert np.allclose(learned_eigenvalues(model, 0.1), [[-0.3, -1.7], [-0.3, 1.7]], atol=1e-5)
    assert frequencies(model) == pytest.approx({"mean_omega": 1.7, "near_share": 0.0})
    assert frequencies(one_pair(0.3, 1.1)) == pytest.approx({"mean_omega": 1.1, "near_share": 1.0})
