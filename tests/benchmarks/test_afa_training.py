"""Training of the AFA layer: it learns, repeatably, and says when it cannot."""

import numpy as np
import pytest
import torch

from rfa.benchmarks.papers.afa.layer import AFAConfig, AFAFilter
from rfa.benchmarks.papers.afa.training import PredictorTraining, prediction_loss, train_predictor
from rfa.training.simulate import simulate_oscillator

CONFIG = AFAConfig(observation_size=2, d_model=8, head_dim=8, step=0.1)


def trained(steps, visit=None, seed=0):
    batch = simulate_oscillator(64, 30, settings=((0.0, 1.0),), seed=5, steps="euler")
    torch.manual_seed(seed)
    model = AFAFilter(CONFIG)
    training = PredictorTraining(steps=steps, batch=16, learning_rate=5e-3, dynamics_rate=1e-2, seed=seed)
    losses = train_predictor(model, batch.observations, batch.times[0], training, visit=visit)
    return model, losses, batch


def test_it_beats_the_last_measurement():
    """The last measurement's squared error is at least twice the noise's variance of one; nothing can be below that."""
    _, losses, batch = trained(150)
    last = np.mean(np.diff(batch.observations, axis=1) ** 2)
    assert last > 2
    assert np.mean(losses[-10:]) < 0.8 * last < np.mean(losses[:3])


def test_training_is_repeatable_and_reports_every_step():
    seen = []
    first, losses, _ = trained(5, visit=lambda step, _: seen.append(step))
    again, repeated, _ = trained(5)
    assert seen == list(range(6)) and losses == repeated
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_loss_is_of_the_next_measurement():
    observations = torch.randn(3, 6, 2)
    exact = torch.cat([observations[:, 1:], torch.full((3, 1, 2), 1e6)], dim=1)
    assert float(prediction_loss(exact, observations)) == 0
    assert float(prediction_loss(exact + 0.5, observations)) == pytest.approx(0.25)
