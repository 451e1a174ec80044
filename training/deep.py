"""Train a deep filter. The nominal filter is trained first. Then the head is trained in both modes, so that both modes
share one set of weights.

The loss is the negative one-step predictive log-likelihood of noisy measurements. Outliers and gaps are added to the
inputs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from rfa.fitting.interrupts import StopSignals
from rfa.model.batch import Batch
from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter, mean_per_component
from rfa.runtime.text.config import StrictConfig
from rfa.training.optimiser import load_moments, moments
from rfa.training.resuming import PROGRESS_FILE, REQUEST_FILE, atomic_checkpoint, check_request
from rfa.training.simulate import NOISE_SETTINGS

METRICS_FILE = "metrics.jsonl"
OPTIMISER_FILE = "optimiser.safetensors"
# Key of the random generator in the optimiser file.
DRAWS = "draws"


@dataclass(frozen=True)
class FilterTrainingConfig(StrictConfig):
    """Settings for training a deep filter. The learning rates are the peaks of a cosine schedule with 5 % warm-up, one
    per phase.

    Attributes:
        steps: Number of steps of the second phase, which trains the head in both modes.
        batch: Number of sequences per step.
        length: Number of observations per sequence.
        learning_rate: Peak learning rate.
        nominal_steps: Number of steps of the first phase, which trains the nominal filter.
        clip: Maximum norm of the gradient.
        seed: Random seed.
        validate_every: Number of steps between two validations.
        sequences: Number of training sequences.
        outliers, missing: Fractions of the rows of recorded data that are replaced by outliers, and that are removed.
            Simulated data already contain outliers and gaps.
        noise_settings: Pairs (sigma², eta²) of the simulated systems.
    """

    steps: int = 600
    batch: int = 48
    length: int = 96
    learning_rate: float = 4e-3
    nominal_steps: int = 150
    clip: float = 1.0
    seed: int = 0
    validate_every: int = 50
    sequences: int = 4096
    outliers: float = 0.02
    missing: float = 0.05
    noise_settings: tuple[tuple[float, float], ...] = NOISE_SETTINGS

    def __post_init__(self) -> None:
        settings = tuple((float(sigma2), float(eta2)) for sigma2, eta2 in self.noise_settings)
        object.__setattr__(self, "noise_settings", settings)
        for name in ("steps", "batch", "length", "validate_every", "sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.outliers < 1 or not 0 <= self.missing < 1:
            raise ValueError(f"outliers and missing must be in [0, 1), got {self.outliers} and {self.missing}")


def deep_config(values: Mapping[str, Any], train: Batch) -> DeepFilterConfig:
    """Return the configuration of a deep filter. The number of columns and the time unit, which is the median time
    step, are taken from the data.

    Raises:
        ValueError: If the number of columns in the configuration differs from that of the data.
    """
    lags = np.diff(train.times, axis=1)
    step = float(np.median(lags[lags > 0])) if (lags > 0).any() else 1.0
    columns = train.observations.shape[-1]
    config = DeepFilterConfig.from_dict({"observation_size": columns, "time_unit": step, **values})
    if config.observation_size != columns:
        raise ValueError(f"observation_size is {config.observation_size}, but the data have {columns} columns")
    return config


@dataclass
class DeepTrainer:
    """Trains a deep filter. If the directory `out` contains an unfinished run, it is resumed.

    Args:
        data: Source of the batches, as stored in the request file. It consists of hashes of files, or is the name of a
            simulation.
        is_recorded: Whether the batches come from files. Training then adds outliers and gaps.
        extended_at: Total numbers of steps before each extension of the run. At these steps, the learning rate changed
            abruptly to the new schedule.

    Raises:
        ValueError: If the directory contains another run.
    """

    out: Path
    model_config: DeepFilterConfig
    training: FilterTrainingConfig
    train_part: Batch
    validation: Batch
    data: Any
    is_recorded: bool
    step: int = 0
    seconds: float = 0.0
    extended_at: list[int] = field(default_factory=list)
    is_extended: bool = False
    model: DeepFilter = field(init=False)
    optimiser: torch.optim.Adam = field(init=False)
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        request, progress = self.out / REQUEST_FILE, self.out / PROGRESS_FILE
        if request.is_file():
            self._check(json.loads(request.read_text()))
        torch.manual_seed(self.training.seed)
        self.generator = torch.Generator().manual_seed(self.training.seed)
        if is_resumed := request.is_file() and progress.is_file():
            self.model = load_run(self.out).train()
        else:
            self.model = DeepFilter(self.model_config)
            _normalise(self.model, self.train_part)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=self.training.learning_rate, betas=(0.9, 0.98))
        if is_resumed:
            where = json.loads(progress.read_text())
            self.step, self.seconds = where["step"], where["seconds"]
            self.extended_at = where["extended_at"] + self.extended_at
            tensors = load_file(self.out / OPTIMISER_FILE)
            self.generator.set_state(tensors.pop(DRAWS))
            load_moments(self.model, [self.optimiser], tensors)

    def _check(self, found: dict[str, Any]) -> None:
        """Raise a ValueError if the directory contains another run. Also determine whether this run extends the run in
        the directory."""
        if not {"data", "model", "training"} <= set(found):
            raise ValueError(f"{self.out} contains a different kind of run; choose another --out")
        earlier = FilterTrainingConfig.from_dict(found["training"])
        requested = {**self.model_config.to_dict(), **self.training.to_dict(), "data": self.data}
        model = DeepFilterConfig.from_dict(found["model"]).to_dict()
        self.is_extended = check_request(self.out, requested, {**model, **earlier.to_dict(), "data": found["data"]})
        if self.is_extended:
            self.extended_at = [earlier.steps]

    @property
    def steps(self) -> int:
        """Total number of steps of both phases."""
        return self.training.nominal_steps + self.training.steps

    def save(self) -> None:
        """Save the model, the optimiser and the progress. A resumed run gives the same results, bit for bit, as an
        uninterrupted one."""
        tensors = {name: tensor.contiguous() for name, tensor in moments(self.model, [self.optimiser]).items()}
        progress = {"step": self.step, "seconds": self.seconds, "extended_at": self.extended_at}
        with atomic_checkpoint(self.out) as folder:
            save_checkpoint(folder, "deep", self.model)
            save_file(tensors | {DRAWS: self.generator.get_state()}, folder / OPTIMISER_FILE)
            (folder / PROGRESS_FILE).write_text(json.dumps(progress) + "\n")

    def train(self, report: Callable[[dict[str, float]], None] | None, show_progress: bool) -> DeepFilter:
        """Train to the last step, and return the filter.

        Args:
            report: Function that is called with every line of the metrics file.
            show_progress: Whether to show a progress bar.

        Raises:
            Stopped: If a signal arrived. The current step is saved.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        if self.is_extended:
            self.save()
        request = {"data": self.data, "model": self.model_config.to_dict(), "training": self.training.to_dict()}
        (self.out / REQUEST_FILE).write_text(json.dumps(request, indent=2) + "\n")
        y, present, times = self.train_part.tensors()
        with (
            StopSignals() as signals,
            (self.out / METRICS_FILE).open("a" if self.step else "w") as metrics,
            tqdm(total=self.steps, initial=self.step, disable=not show_progress, unit="step") as bar,
        ):
            while self.step < self.steps:
                started = time.monotonic()
                loss = self.update(y, present, times)
                self.seconds += time.monotonic() - started
                bar.update()
                if self.step % self.training.validate_every == 0 or self.step == self.steps:
                    line = {"step": self.step, "train": loss, **_validate(self.model, self.validation)}
                    metrics.write(json.dumps(line) + "\n")
                    metrics.flush()
                    self.save()
                    bar.set_postfix({key: f"{value:.3f}" for key, value in line.items() if key != "step"})
                    if report is not None:
                        report(line)
                signals.check(self.step, self.steps, self.save)
        return self.model

    def update(self, y: Tensor, present: Tensor, times: Tensor) -> float:
        """Perform one optimiser step on observations `y`, and return the loss.

        Args:
            y: Observations, `[B, N, P]`.
            present: 1 for observed components and 0 for missing ones, `[B, N, P]`.
            times: Times of the rows, `[B, N]`.
        """
        config = self.training
        with_blocks = self.step >= config.nominal_steps
        for group in self.optimiser.param_groups:
            group["lr"] = config.learning_rate * _schedule(self.step, config)
        rows = torch.randint(len(y), (config.batch,), generator=self.generator)
        batch = y[rows], present[rows]
        if self.is_recorded:
            batch = _disturb(*batch, self.model.get_buffer("scale"), config, self.generator)
        loss, _ = _loss(self.model, *batch, times[rows], with_blocks=with_blocks)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        self.step += 1
        return float(loss.detach())


def _normalise(model: DeepFilter, batch: Batch) -> None:
    """Set the centre and scale of each column to its median and interquartile scale, which are robust to outliers."""
    flat = batch.observations.reshape(-1, batch.observations.shape[-1])
    if not np.isfinite(flat).any(axis=0).all():
        raise ValueError("a column of the training data has no values")
    low, middle, high = np.nanpercentile(flat, [25, 50, 75], axis=0)
    spread = np.where(high > low, (high - low) / 1.349, np.nanstd(flat, axis=0))
    model.get_buffer("center").copy_(torch.from_numpy(middle))
    model.get_buffer("scale").copy_(torch.from_numpy(np.where(spread > 0, spread, 1.0)))


def _loss(
    model: DeepFilter, y: Tensor, present: Tensor, times: Tensor, *, with_blocks: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the current phase, and the negative log-likelihood per component of the nominal filter and, if
    `with_blocks`, of the head in both modes.

    The loss is that of the nominal filter or, if `with_blocks`, the mean over both modes of the head.
    """
    lags = torch.diff(times, dim=1, prepend=times[:, :1]).float()
    ones = torch.ones_like(lags)
    # The nominal filter gets no gradient while the blocks are trained, because the head trains its parameters.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not with_blocks):
        tokens, nominal = model.nominal_scan(y, present, lags, ones)
    parts = {"nominal": -mean_per_component(nominal, present)}
    if with_blocks:
        both = torch.cat([model.context(tokens, times, "attention"), model.context(tokens, times, "recurrent")])
        head = model.head_scan(y.repeat(2, 1, 1), present.repeat(2, 1, 1), lags.repeat(2, 1), ones.repeat(2, 1), both)
        for name, log_likelihood in zip(("attention", "recurrent"), head.chunk(2), strict=True):
            parts[name] = -mean_per_component(log_likelihood, present)
    trained = [part for name, part in parts.items() if (name == "nominal") != with_blocks]
    return torch.stack(trained).mean(), parts


def _disturb(
    y: Tensor, present: Tensor, scale: Tensor, config: FilterTrainingConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the observations and their presence after random rows of recorded data were removed and outliers were
    added."""
    kept = (torch.rand(y.shape[:2], generator=generator) >= config.missing).float()[..., None]
    hit = (torch.rand(y.shape[:2], generator=generator) < config.outliers).float()[..., None]
    present = present * kept
    return (y + hit * 5 * scale * torch.randn(y.shape, generator=generator)) * present, present


def _schedule(step: int, config: FilterTrainingConfig) -> float:
    """Return the factor on the peak learning rate. It increases over the first 5 % of each phase, and then decays to
    2 % along a cosine."""
    is_nominal = step < config.nominal_steps
    length = config.nominal_steps if is_nominal else config.steps
    position = step if is_nominal else step - config.nominal_steps
    warmup = max(1, length // 20)
    if position < warmup:
        return (position + 1) / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (position - warmup) / max(1, length - warmup)))


@torch.no_grad()
def _validate(model: DeepFilter, batch: Batch) -> dict[str, float]:
    y, present, times = batch.tensors()
    _, parts = _loss(model, y[:240], present[:240], times[:240], with_blocks=True)
    return {f"validation_{name}": float(value) for name, value in parts.items()}
