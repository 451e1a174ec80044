"""Train a predictor of the next noisy measurement with squared error.

Adaptive Filter Attention §4.3. A predictor has `forward(observations [B, N, P], times [N])`, whose first output is the
prediction of the next observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.afa.layer import AdaptiveParameters
from rfa.runtime.text.config import StrictConfig


@dataclass(frozen=True)
class PredictorTraining(StrictConfig):
    """Training settings: Adam, one cosine cycle with warm-up to `learning_rate`, or to `dynamics_rate` for the scalars
    of the dynamics. Each step uses `batch` sequences, drawn by `seed`.
    """

    steps: int = 300
    batch: int = 32
    learning_rate: float = 5e-3
    dynamics_rate: float = 1e-2
    clip: float = 1.0
    seed: int = 0


def prediction_loss(prediction: Tensor, observations: Tensor) -> Tensor:
    """Return the mean squared error per component of the predictions of the second and later observations."""
    return (prediction[:, :-1] - observations[:, 1:]).square().mean()


def _groups(model: nn.Module, config: PredictorTraining) -> list[dict[str, Any]]:
    scalars = [p for module in model.modules() if isinstance(module, AdaptiveParameters) for p in module.parameters()]
    observed = {id(parameter) for parameter in scalars}
    weights = [parameter for parameter in model.parameters() if id(parameter) not in observed]
    groups = [{"params": weights, "lr": config.learning_rate}, {"params": scalars, "lr": config.dynamics_rate}]
    return [group for group in groups if group["params"]]


def train_predictor(
    model: nn.Module,
    observations: np.ndarray,
    times: np.ndarray,
    config: PredictorTraining,
    *,
    visit: Callable[[int, nn.Module], None] | None = None,
) -> list[float]:
    """Train in place on sequences `[S, N, P]` at `times` `[N]`, and return the loss of every step.

    visit: called with the number of completed steps, from 0, and the model.
    """
    data, stamps = torch.from_numpy(observations).float(), torch.from_numpy(times)
    generator = torch.Generator().manual_seed(config.seed)
    groups = _groups(model, config)
    optimiser = torch.optim.Adam(groups)
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=config.steps + 1, cycle_momentum=False)
    losses = []
    for step in range(config.steps):
        if visit is not None:
            visit(step, model)
        batch = data[torch.randint(len(data), (config.batch,), generator=generator)]
        loss = prediction_loss(model(batch, stamps)[0], batch)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss is {losses[-1]} at step {step}")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimiser.step()
        schedule.step()
    if visit is not None:
        visit(config.steps, model)
    return losses
