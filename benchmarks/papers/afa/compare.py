"""The experiment of Adaptive Filter Attention §4.3: one layer learns a noisy oscillator from its measurements alone.

    rfa bench afa       writes results/afa.json and docs/figures/afa-*.png, minutes on one core

At each noise setting an AFA layer, and one and two layers of softmax attention, learn to predict the next measurement.
Their errors stand beside the exact Kalman filter's, the floor, on series that none of them has seen. What the layer
learned of the system, and what the paper's pictures show of it, is measured in `rfa.benchmarks.papers.afa.scores`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from rfa.benchmarks.filters.oscillator import rmse
from rfa.benchmarks.papers.afa.figures import Clouds, Trajectory, draw_attention, draw_clouds, draw_trajectories
from rfa.benchmarks.papers.afa.layer import AFAConfig, AFAFilter, Filtered
from rfa.benchmarks.papers.afa.rivals import SoftmaxPredictor, euler_moves, kalman_estimates
from rfa.benchmarks.papers.afa.scores import (
    Z90,
    attention_by_lag,
    cloud_errors,
    clouds,
    frequencies,
    ideal_clouds,
    learned_eigenvalues,
    spread_of_evidence,
)
from rfa.benchmarks.papers.afa.training import PredictorTraining, train_predictor
from rfa.measured import origin, write_result
from rfa.model.batch import Batch
from rfa.training.simulate import NOISE_SETTINGS, STEP, STEPS_PER_MEASUREMENT, simulate_oscillator

INTERVAL = STEP * STEPS_PER_MEASUREMENT
SOFTMAX_LAYERS = (1, 2)
# Series of the simulated splits, one of each per setting.
SEEDS = {"train": 60_000, "calibration": 61_000, "test": 95_000}
# Queries to which keys are carried, and shares of the training after which the pictures are taken.
CLOUD_ROWS = (0.3, 0.5, 0.7, 0.95)
STAGES = {"early": 0.05, "midway": 0.25, "trained": 1.0}
# The settings of the clouds (no process noise) and of the attention matrices.
CLOUD_SETTING, ATTENTION_SETTING = 0, 1
# The pictures show the first test series that starts this far from the origin.
SHOWN_FROM = 3.0


@dataclass(frozen=True)
class AfaPlan:
    """Sizes of the experiment; the defaults are the paper's, where it has them."""

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
    """The series of a setting."""

    train: Batch
    calibration: Batch
    test: Batch


@dataclass(frozen=True)
class Shown:
    """What the pictures need of a setting: the first seed's model at each stage, the softmax layers, the series."""

    stages: dict[str, AFAFilter]
    softmax: dict[int, SoftmaxPredictor]
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
    """Mean squared error per component of predictions of the second and every later row."""
    return float(np.mean((prediction[:, :-1] - target[:, 1:]) ** 2))


def _spread(model: AFAFilter, batch: Batch) -> np.ndarray:
    """a, b of the variance a / precision + b of the next measurement."""
    found: Filtered = _predict(model, batch)
    error2 = (found.prediction[:, :-1].numpy() - batch.observations[:, 1:]) ** 2
    return spread_of_evidence(found.precision[:, :-1, 0].numpy().ravel(), error2.mean(-1).ravel())


def _deviation(found: Filtered, spread: np.ndarray) -> np.ndarray:
    """Of the measurement after each, `[B, N, 1]`."""
    return np.sqrt(spread[0] / found.precision.numpy() + spread[1])


def afa_row(model: AFAFilter, data: Data, spread: np.ndarray, seed: int) -> dict[str, Any]:
    """What one trained layer reaches and has learned."""
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


def run_setting(index: int, plan: AfaPlan, tick: Callable[[], None]) -> tuple[dict[str, Any], Shown]:
    """The row of one noise setting, and what its pictures need."""
    sigma2, eta2 = NOISE_SETTINGS[index]
    data = _data(index, plan)
    config = AFAConfig(observation_size=2, d_model=plan.d_model, head_dim=plan.d_model, step=INTERVAL)
    stages: dict[str, AFAFilter] = {}

    def visit(step: int, model: nn.Module) -> None:
        if step:
            tick()
        for name, share in STAGES.items():
            if isinstance(model, AFAFilter) and name not in stages and step >= share * plan.training.steps:
                stages[name] = deepcopy(model).eval()

    afa = []
    for seed in plan.seeds:
        model = _learn(lambda: AFAFilter(config), data, plan, seed, visit)
        afa.append(afa_row(model, data, _spread(model, data.calibration), seed))
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
    return row, Shown(stages, softmax, data, _spread(stages["trained"], data.calibration))


def _rows(plan: AfaPlan) -> tuple[int, ...]:
    return tuple(int(share * (plan.length - 1)) for share in CLOUD_ROWS)


def picture_scores(shown: Sequence[Shown], plan: AfaPlan) -> dict[str, Any]:
    """Numbers of the clouds and of the attention matrices."""
    case, rows = shown[CLOUD_SETTING], _rows(plan)
    truth = np.asarray(case.data.test.truth)
    f, _ = euler_moves(NOISE_SETTINGS[CLOUD_SETTING][0])
    ideal = cloud_errors(ideal_clouds(case.data.test, f, rows), truth, rows)
    found = {
        name: cloud_errors(clouds(model, case.data.test, rows), truth, rows) for name, model in case.stages.items()
    }
    attention = {
        name: attention_by_lag(weights, INTERVAL)
        for name, weights in _matrices(shown[ATTENTION_SETTING], slice(None)).items()
    }
    return {"clouds": {**found, "true dynamics": ideal}, "attention": attention}


def _matrices(case: Shown, series: slice) -> dict[str, np.ndarray]:
    """Attention weights `[B, N, N]` of the layers that the paper shows."""
    test = case.data.test
    y = torch.from_numpy(test.observations[series]).float()
    with torch.no_grad():
        softmax = case.softmax[SOFTMAX_LAYERS[-1]](y, torch.from_numpy(test.times[0]))[1]
        afa = case.stages["trained"].attention(y, torch.from_numpy(test.times[0]))
    named = {f"softmax, layer {k + 1} of {len(softmax)}": weights.numpy() for k, weights in enumerate(softmax)}
    return {**named, "AFA, its one layer": afa[:, 0].numpy()}


def _shown_series(batch: Batch) -> int:
    return int(np.argmax(np.linalg.norm(np.asarray(batch.truth)[:, 0], axis=-1) > SHOWN_FROM))


def draw(shown: Sequence[Shown], plan: AfaPlan, folder: Path) -> list[Path]:
    """The three pictures, of one test series of each setting."""
    panels = []
    for (sigma2, eta2), case in zip(NOISE_SETTINGS, shown, strict=True):
        test = case.data.test
        k = _shown_series(test)
        found: Filtered = _predict(case.stages["trained"], test)
        # A prediction belongs to the measurement after its own.
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
    paths = [folder / f"afa-{name}.png" for name in ("trajectories", "clouds", "attention")]
    draw_trajectories(panels, paths[0], width=Z90)
    case, rows = shown[CLOUD_SETTING], _rows(plan)
    k = _shown_series(case.data.test)
    truth = np.asarray(case.data.test.truth)[k]
    stages = [
        Clouds(
            f"{name}, {max(1, round(STAGES[name] * plan.training.steps))} steps",
            truth,
            rows,
            [points[k] for points in clouds(model, case.data.test, rows)],
        )
        for name, model in case.stages.items()
    ]
    draw_clouds(stages, paths[1])
    k = _shown_series(shown[ATTENTION_SETTING].data.test)
    matrices = _matrices(shown[ATTENTION_SETTING], slice(k, k + 1))
    draw_attention({name: weights[0] for name, weights in matrices.items()}, paths[2])
    return paths


def write_afa(out: Path, figures: Path, plan: AfaPlan | None = None) -> dict[str, Any]:
    """Run the experiment, write its figures and its document."""
    plan = plan or AfaPlan()
    start, rows, shown = time.monotonic(), [], []
    with tqdm(total=plan.steps, unit="step", disable=None) as bar:

        def tick() -> None:
            bar.update()

        for index in range(len(NOISE_SETTINGS)):
            row, case = run_setting(index, plan, tick)
            rows.append(row)
            shown.append(case)
    document = {
        **origin("rfa bench afa"),
        "seconds": round(time.monotonic() - start, 1),
        "plan": asdict(plan),
        "true_eigenvalues": _true_eigenvalues(),
        "rows": rows,
        **picture_scores(shown, plan),
    }
    draw(shown, plan, figures)
    write_result(out, document)
    return document


def _true_eigenvalues() -> list[list[float]]:
    """[real, imaginary] of the system in its Euler steps, per time."""
    rates = np.log(np.linalg.eigvals(euler_moves(0.0)[0]).astype(complex)) / INTERVAL
    return sorted([float(rate.real), float(rate.imag)] for rate in rates)


def markdown(document: dict[str, Any]) -> list[str]:
    """Tables of the losses and of the eigenvalues."""
    names = list(document["rows"][0]["loss"])
    lines = ["| σ², η² | AFA | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 2)]
    for row in document["rows"]:
        cells = " | ".join(f"{row['loss'][name]:.3f}" for name in names)
        afa = " ".join(f"{run['loss']:.3f}" for run in row["afa"])
        lines.append(f"| {row['sigma2']:g}, {row['eta2']:g} | {afa} | {cells} |")
    lines += ["", "| σ², η² | state RMSE | Kalman | raw | eigenvalues | in 90 % |", "|" + "---|" * 6]
    for row in document["rows"]:
        for run in row["afa"]:
            rates = ", ".join(f"{real:.3f} {imaginary:+.3f}i" for real, imaginary in run["eigenvalues"])
            rmses = f"{run['state_rmse']:.3f} | {row['state_rmse']['kalman']:.3f} | {row['state_rmse']['raw']:.3f}"
            lines.append(f"| {row['sigma2']:g}, {row['eta2']:g} | {rmses} | {rates} | {100 * run['coverage_90']:.1f} |")
    true = ", ".join(f"{real:.3f} {imaginary:+.3f}i" for real, imaginary in document["true_eigenvalues"])
    points = ", ".join(
        f"{name} {value['points']:.3f} (centres {value['centres']:.3f})" for name, value in document["clouds"].items()
    )
    lines += ["", f"true eigenvalues {true}; clouds to the truth: {points}"]
    for name, scores in document["attention"].items():
        lines.append(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return lines
