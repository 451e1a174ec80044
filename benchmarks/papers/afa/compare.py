"""`rfa bench afa`: Adaptive Filter Attention §4.3; one layer learns a noisy oscillator from its measurements.

An AFA layer, and one and two layers of softmax attention, learn to predict the next measurement at each noise setting;
errors on unseen series are compared with the exact Kalman filter's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from rfa.benchmarks.filters.oscillator import rmse
from rfa.benchmarks.papers.afa.figures import Trajectory, draw_trajectories
from rfa.benchmarks.papers.afa.layer import AFAConfig, AFAFilter, Filtered
from rfa.benchmarks.papers.afa.rivals import SoftmaxPredictor, euler_moves, kalman_estimates
from rfa.benchmarks.papers.afa.scores import (
    Z90,
    frequencies,
    learned_eigenvalues,
    spread_of_evidence,
)
from rfa.benchmarks.papers.afa.training import PredictorTraining, train_predictor
from rfa.measured import origin, write_result
from rfa.model.batch import Batch
from rfa.training.simulate import NOISE_SETTINGS, STEP, STEPS_PER_MEASUREMENT, simulate_oscillator

INTERVAL = STEP * STEPS_PER_MEASUREMENT
SOFTMAX_LAYERS = (1, 2)
# Series of each simulated split, per setting.
SEEDS = {"train": 60_000, "calibration": 61_000, "test": 95_000}
# The figure shows the first test series that starts at least this far from the origin.
SHOWN_FROM = 3.0


@dataclass(frozen=True)
class AfaPlan:
    """Sizes of the experiment. The defaults are the paper's where it states them."""

    training: PredictorTraining = field(default_factory=PredictorTraining)
    d_model: int = 128
    length: int = 100
    sequences: int = 2048
    test_sequences: int = 256
    seeds: tuple[int, ...] = (0, 1)

    @property
    def steps(self) -> int:
        return self.training.steps * (len(self.seeds) + len(SOFTMAX_LAYERS)) * len(NOISE_SETTINGS)


@dataclass(frozen=True)
class Data:
    """Series of one setting."""

    train: Batch
    calibration: Batch
    test: Batch


@dataclass(frozen=True)
class Shown:
    """Values that the figure needs of a setting: the first seed's model, its data, and `_spread` of both."""

    model: AFAFilter
    data: Data
    spread: np.ndarray


def _data(index: int, plan: AfaPlan) -> Data:
    def series(name: str, count: int) -> Batch:
        return simulate_oscillator(
            count, plan.length, settings=(NOISE_SETTINGS[index],), seed=SEEDS[name] + index, steps="euler"
        )

    counts = plan.sequences, plan.test_sequences, plan.test_sequences
    return Data(*(series(name, count) for name, count in zip(SEEDS, counts, strict=True)))


def _learn(
    build: Callable[[], nn.Module], data: Data, plan: AfaPlan, seed: int, visit: Callable[[int, nn.Module], None]
) -> Any:
    torch.manual_seed(seed)
    model = build()
    train_predictor(model, data.train.observations, data.train.times[0], replace(plan.training, seed=seed), visit=visit)
    return model.eval()


@torch.no_grad()
def _predict(model: nn.Module, batch: Batch) -> Any:
    return model(torch.from_numpy(batch.observations).float(), torch.from_numpy(batch.times[0]))


def squared_error(prediction: np.ndarray, target: np.ndarray) -> float:
    """Return the mean squared error per component of predictions of the second and later rows."""
    return float(np.mean((prediction[:, :-1] - target[:, 1:]) ** 2))


def _spread(model: AFAFilter, batch: Batch) -> np.ndarray:
    """Return a, b of the variance a / precision + b of the next measurement."""
    found: Filtered = _predict(model, batch)
    error2 = (found.prediction[:, :-1].numpy() - batch.observations[:, 1:]) ** 2
    return spread_of_evidence(found.precision[:, :-1, 0].numpy().ravel(), error2.mean(-1).ravel())


def _deviation(found: Filtered, spread: np.ndarray) -> np.ndarray:
    """Return the standard deviation of the next measurement, `[B, N, 1]`."""
    return np.sqrt(spread[0] / found.precision.numpy() + spread[1])


def afa_row(model: AFAFilter, data: Data, spread: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the results and learned parameters of one trained layer."""
    found: Filtered = _predict(model, data.test)
    prediction, truth = found.prediction.numpy(), np.asarray(data.test.truth)
    error = np.abs(prediction[:, :-1] - data.test.observations[:, 1:])
    scalars = model.layer.dynamics()
    return {
        "seed": seed,
        "loss": squared_error(prediction, data.test.observations),
        "prediction_rmse": squared_error(prediction, truth) ** 0.5,
        "state_rmse": rmse(found.estimate.numpy(), truth),
        "coverage_90": float(np.mean(error <= Z90 * _deviation(found, spread)[:, :-1])),
        "eigenvalues": learned_eigenvalues(model, INTERVAL),
        **{name: float(getattr(scalars, name).detach()[0]) for name in ("mu", "sigma2", "eta2", "gamma2", "tau")},
        **frequencies(model),
    }


def run_setting(index: int, plan: AfaPlan, tick: Callable[[], object]) -> tuple[dict[str, Any], Shown]:
    """Return the row of one noise setting and the values for its figures."""
    sigma2, eta2 = NOISE_SETTINGS[index]
    data = _data(index, plan)
    config = AFAConfig(observation_size=2, d_model=plan.d_model, head_dim=plan.d_model, step=INTERVAL)

    def visit(step: int, model: nn.Module) -> None:
        if step:
            tick()

    models = [_learn(lambda: AFAFilter(config), data, plan, seed, visit) for seed in plan.seeds]
    spreads = [_spread(model, data.calibration) for model in models]
    afa = [afa_row(*one) for one in zip(models, repeat(data), spreads, plan.seeds)]
    softmax = {}
    for layers in SOFTMAX_LAYERS:

        def build(layers: int = layers) -> nn.Module:
            return SoftmaxPredictor(2, d_model=plan.d_model, layers=layers, length=plan.length)

        softmax[layers] = _learn(build, data, plan, plan.seeds[0], visit)
    observations, truth = data.test.observations, np.asarray(data.test.truth)
    means, ahead = kalman_estimates(observations, sigma2, eta2)
    losses = {
        "kalman": squared_error(ahead, observations),
        **{
            f"softmax, {layers} layer{'s' * (layers > 1)}": squared_error(
                _predict(model, data.test)[0].numpy(), observations
            )
            for layers, model in softmax.items()
        },
        "last measurement": squared_error(observations, observations),
        "zero": squared_error(np.zeros_like(observations), observations),
    }
    row = {
        "sigma2": sigma2,
        "eta2": eta2,
        "loss": losses,
        "prediction_rmse": {"kalman": squared_error(ahead, truth) ** 0.5},
        "state_rmse": {"kalman": rmse(means, truth), "raw": rmse(observations, truth)},
        "afa": afa,
    }
    return row, Shown(models[0], data, spreads[0])


def draw(shown: Sequence[Shown], path: Path) -> None:
    """Draw one test series of each setting."""
    panels = []
    for (sigma2, eta2), case in zip(NOISE_SETTINGS, shown, strict=True):
        test = case.data.test
        k = int(np.argmax(np.linalg.norm(np.asarray(test.truth)[:, 0], axis=-1) > SHOWN_FROM))
        found: Filtered = _predict(case.model, test)
        # A prediction is for the next measurement.
        predicted, deviation = found.prediction[k].numpy(), _deviation(found, case.spread)[k, :, 0]
        panels.append(
            Trajectory(
                f"σ² = {sigma2:g}, η² = {eta2:g}",
                test.times[k],
                np.asarray(test.truth)[k],
                test.observations[k],
                np.concatenate([np.full((1, 2), np.nan), predicted[:-1]]),
                np.concatenate([[np.nan], deviation[:-1]]),
            )
        )
    draw_trajectories(panels, path, width=Z90)


def write_afa(out: Path, figures: Path, plan: AfaPlan | None = None) -> dict[str, Any]:
    """Run the experiment and write its figures and document."""
    plan = plan or AfaPlan()
    start, rows, shown = time.monotonic(), [], []
    with tqdm(total=plan.steps, unit="step", disable=None) as bar:
        for index in range(len(NOISE_SETTINGS)):
            row, case = run_setting(index, plan, bar.update)
            rows.append(row)
            shown.append(case)
    document = {
        **origin("rfa bench afa"),
        "seconds": round(time.monotonic() - start, 1),
        "plan": asdict(plan),
        "true_eigenvalues": _true_eigenvalues(),
        "rows": rows,
    }
    draw(shown, figures / "afa-trajectories.png")
    write_result(out, document)
    return document


def _true_eigenvalues() -> list[list[float]]:
    """Return [real, imaginary] of the eigenvalues of the Euler-discretised system, per unit of time."""
    rates = np.log(np.linalg.eigvals(euler_moves(0.0)[0]).astype(complex)) / INTERVAL
    return sorted([float(rate.real), float(rate.imag)] for rate in rates)
