"""Train a deep filter, fit a structural one, or write the run of a linear one: what `rfa train filter` does.

The loss is the negative one-step predictive log-likelihood of noisy measurements (no true states). Of a deep filter:
first of the nominal filter alone, then of the head, averaged over both modes, so that one set of weights serves
attention and recurrence; inputs get outliers and gaps while training. A structural filter is fitted to a CSV by maximum
likelihood (`rfa.training.structural`) and becomes a linear filter: what reads its run knows only that.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor
from tqdm import tqdm

from rfa.data import load_series
from rfa.model.batch import Batch
from rfa.model.checkpoint import save_checkpoint
from rfa.model.config import StrictConfig
from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter, mean_per_component
from rfa.model.linear_config import LinearFilterConfig
from rfa.model.linear_filter import LinearFilter
from rfa.model.metric_filter import MetricFilter, MetricFilterConfig
from rfa.model.state_filter import StateFilter
from rfa.training.metric import load_metrics
from rfa.training.provenance import provenance
from rfa.training.series import split, windows
from rfa.training.simulate import NOISE_SETTINGS, Disturbance, simulate_level, simulate_oscillator
from rfa.training.structural import StructuralConfig, calibration_windows, fit_structural

SIMULATED = "simulate:oscillator"
METRICS_FILE = "metrics.jsonl"
VALIDATION_FILE = "validation.safetensors"
# Of metrics: data with a truth.
SIMULATED_FILE = "simulated.safetensors"
SIMULATED_METRICS, SIMULATED_ROWS = 100, 300
RECORD_FILE = "train.json"
# Seeds of the simulated splits; tests and the bench use others.
SEEDS = {"train": 1, "validation": 2}
VALIDATION_SEQUENCES = 480
# Steps: a longer season leaves few forecasts in a calibration window.
LONGEST_LEAD = 48
DISTURBANCES = (
    Disturbance(),
    Disturbance(outliers=0.05),
    Disturbance(missing=0.15),
    Disturbance(outliers=0.05, missing=0.15, is_irregular=True),
)


@dataclass(frozen=True)
class FilterTrainingConfig(StrictConfig):
    """How to train. The learning rate is the peak of a cosine with 5 % warm-up, one for the nominal steps and one for
    the rest.

    outliers, missing: shares of training inputs disturbed on recorded data (simulated data bring their own).
    noise_settings: (sigma², eta²) of the simulated systems.
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
            raise ValueError("outliers and missing must be in [0, 1)")


FAMILIES = ("linear", "structural", "metric", "deep")


@dataclass(frozen=True)
class FilterRun:
    """A config file: family ("linear", "structural", "metric" or "deep"), model, and training but for "structural"."""

    family: str
    model: dict[str, Any]
    training: FilterTrainingConfig

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FilterRun:
        unknown = set(document) - {"family", "model", "training"}
        if unknown:
            raise ValueError(f"the config has unknown sections {sorted(unknown)}; it takes family, model and training")
        family = document.get("family", "deep")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        if family == "structural" and "training" in document:
            raise ValueError("a structural config takes no section training: its model section says how to fit")
        return cls(
            family, dict(document.get("model", {})), FilterTrainingConfig.from_dict(document.get("training", {}))
        )

    @classmethod
    def from_file(cls, path: str | Path) -> FilterRun:
        return cls.from_dict(json.loads(Path(path).read_text()))


@dataclass(frozen=True)
class FilterData:
    """Training and validation batches of one source."""

    train: Batch
    validation: Batch
    files: tuple[Path, ...]


def simulated(count: int, length: int, seed: int, settings: tuple[tuple[float, float], ...] = NOISE_SETTINGS) -> Batch:
    """Sequences of the oscillator at the noise settings, a quarter of them under each disturbance."""
    size = max(len(settings), count // len(DISTURBANCES))
    parts = [
        simulate_oscillator(size, length, settings=settings, disturbance=d, seed=seed * 100 + i)
        for i, d in enumerate(DISTURBANCES)
    ]
    return joined(parts)


def joined(parts: Sequence[Batch]) -> Batch:
    """Batches of one length, of which all have a truth."""
    truth = [part.truth for part in parts if part.truth is not None]
    return Batch(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.observations for part in parts]),
        np.concatenate(truth),
    )


def save_batch(path: Path, batch: Batch) -> None:
    """A batch as a file that export reads."""
    tensors = {"times": batch.times, "observations": batch.observations}
    if batch.truth is not None:
        tensors["truth"] = batch.truth
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)


def load_data(source: str, config: FilterTrainingConfig) -> FilterData:
    """A CSV path, a folder of one-column CSVs (for "metric"), or "simulate:oscillator"."""
    if source == SIMULATED:
        parts = (("train", config.sequences), ("validation", VALIDATION_SEQUENCES))
        train, validation = (simulated(n, config.length, SEEDS[name], config.noise_settings) for name, n in parts)
        return FilterData(train, validation, ())
    if source.startswith("simulate:"):
        raise ValueError(f"unknown simulation {source!r}; known is {SIMULATED!r}")
    if Path(source).is_dir():
        return FilterData(*load_metrics(Path(source), config.length))
    series = load_series(source)
    train_part, validation_part, _ = split(series)
    return FilterData(windows(train_part, config.length), windows(validation_part, config.length), (Path(source),))


def _normalise(model: DeepFilter, batch: Batch) -> None:
    """Median and interquartile scale per column: outliers do not move them."""
    flat = batch.observations.reshape(-1, batch.observations.shape[-1])
    if not np.isfinite(flat).any(axis=0).all():
        raise ValueError("a column of the training part has no value at all")
    low, middle, high = np.nanpercentile(flat, [25, 50, 75], axis=0)
    spread = np.where(high > low, (high - low) / 1.349, np.nanstd(flat, axis=0))
    model.get_buffer("center").copy_(torch.from_numpy(middle))
    model.get_buffer("scale").copy_(torch.from_numpy(np.where(spread > 0, spread, 1.0)))


def _loss(
    model: DeepFilter, y: Tensor, present: Tensor, times: Tensor, *, with_blocks: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean negative log-likelihood per component over the parts, and the parts."""
    lags = torch.diff(times, dim=1, prepend=times[:, :1]).float()
    ones = torch.ones_like(lags)
    # With the blocks the nominal filter is only read: its parameters are the head's, and learn there.
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
    """Recorded data: drop rows, and add outliers to the inputs."""
    kept = (torch.rand(y.shape[:2], generator=generator) >= config.missing).float()[..., None]
    hit = (torch.rand(y.shape[:2], generator=generator) < config.outliers).float()[..., None]
    present = present * kept
    return (y + hit * 5 * scale * torch.randn(y.shape, generator=generator)) * present, present


def train_filter(
    config: str | Path | FilterRun,
    data: str,
    out: str | Path,
    *,
    report: Callable[[dict[str, float]], None] | None = None,
    show_progress: bool = True,
) -> StateFilter:
    """Train (deep), fit (structural) or build (linear) a filter and write its run: config.json, model.safetensors,
    validation.safetensors, train.json, of a deep one metrics.jsonl and of a metric one simulated.safetensors.

    Args:
        config: a config file, or its content.
        data: path of a CSV, or "simulate:oscillator". A linear filter uses it for calibration at export only.
        report: called with every line of metrics.jsonl.
    """
    run = config if isinstance(config, FilterRun) else FilterRun.from_file(config)
    directory = Path(out)
    if run.family == "structural":
        return _fit_structural(run, data, directory, show_progress)
    directory.mkdir(parents=True, exist_ok=True)
    source = load_data(data, run.training)
    record: dict[str, Any] = {
        "data": data,
        "length": run.training.length,
        "provenance": provenance(list(source.files), torch.device("cpu")),
    }
    if run.family == "linear":
        linear = LinearFilter(LinearFilterConfig.from_dict(run.model))
        size = source.train.observations.shape[-1]
        if linear.observation_size != size:
            raise ValueError(f"the matrices observe {linear.observation_size} components, the data have {size}")
        return _written(directory, "linear", linear, record, source.validation)
    if run.family == "metric":
        metric = MetricFilter(MetricFilterConfig.from_dict(run.model))
        return _written(directory, "metric", metric, record, source.validation, _simulated_metrics(metric.config))
    model, seconds = _train_deep(run, source, directory, report, show_progress)
    record |= {"seconds": round(seconds, 1), "steps": run.training.steps}
    return _written(directory, "deep", model, record, source.validation)


def _simulated_metrics(config: MetricFilterConfig) -> Batch:
    """Recorded metrics have no truth; these have, half of them with the outliers that the filter allows for."""
    parts = [
        simulate_level(
            SIMULATED_METRICS, SIMULATED_ROWS, config.process, outliers=share, outlier_scale=config.outlier_scale,
            seed=SEEDS["validation"] * 100 + i,
        )
        for i, share in enumerate((0.0, config.contamination))
    ]  # fmt: skip
    return joined(parts)


def _written(
    directory: Path,
    family: str,
    model: StateFilter,
    record: dict[str, Any],
    validation: Batch,
    simulated_metrics: Batch | None = None,
) -> StateFilter:
    """A finished run, with what export calibrates on."""
    save_checkpoint(directory, family, model)
    for file, batch in ((VALIDATION_FILE, validation), (SIMULATED_FILE, simulated_metrics)):
        if batch is not None:
            save_batch(directory / file, batch)
    (directory / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")
    return model.eval()


def _fit_structural(run: FilterRun, data: str, directory: Path, show_progress: bool) -> StateFilter:
    if data.startswith("simulate:"):
        raise ValueError(f"a structural model is fitted to a CSV, not to {data!r}")
    config = StructuralConfig.from_dict(run.model)
    train, validation, _ = split(load_series(data))
    with tqdm(disable=not show_progress, unit="fit") as bar:

        def advance(line: str) -> None:
            bar.set_postfix_str(line)
            bar.update()

        found = fit_structural(train, validation, config, report=advance)
    model = LinearFilter(found.config)
    longest = max(found.seasons, default=0.0)
    record = {
        "data": data,
        # Steps ahead that export calibrates beside the usual ones: a season, the horizon that users ask for.
        "leads": sorted({round(period) for period in found.seasons if period <= LONGEST_LEAD}),
        "columns": found.columns,
        "joint": found.joint,
        "provenance": provenance([Path(data)], torch.device("cpu")),
    }
    windowed = calibration_windows(validation, model.state_size, longest)
    return _written(directory, "linear", model, record, windowed)


def _model_config(run: FilterRun, train: Batch) -> DeepFilterConfig:
    """The config with what the data say filled in: number of columns and the median step."""
    lags = np.diff(train.times, axis=1)
    step = float(np.median(lags[lags > 0])) if (lags > 0).any() else 1.0
    known = {"observation_size": train.observations.shape[-1], "time_unit": step}
    return DeepFilterConfig.from_dict({**known, **run.model})


def _train_deep(
    run: FilterRun,
    source: FilterData,
    directory: Path,
    report: Callable[[dict[str, float]], None] | None,
    show_progress: bool,
) -> tuple[DeepFilter, float]:
    config = run.training
    torch.manual_seed(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    model = DeepFilter(_model_config(run, source.train))
    if model.observation_size != source.train.observations.shape[-1]:
        raise ValueError(
            f"observation_size is {model.observation_size}, the data have {source.train.observations.shape[-1]}"
        )
    _normalise(model, source.train)
    y, present, times = source.train.tensors()
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))
    total = config.nominal_steps + config.steps
    start = time.monotonic()
    with (
        (directory / METRICS_FILE).open("w") as metrics,
        tqdm(total=total, disable=not show_progress, unit="step") as bar,
    ):
        for step in range(total):
            with_blocks = step >= config.nominal_steps
            rate = _schedule(step, config)
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * rate
            rows = torch.randint(len(y), (config.batch,), generator=generator)
            batch = y[rows], present[rows]
            if source.files:
                batch = _disturb(*batch, model.get_buffer("scale"), config, generator)
            loss, _ = _loss(model, *batch, times[rows], with_blocks=with_blocks)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            if bool(torch.isfinite(norm)):
                optimiser.step()
            bar.update()
            if (step + 1) % config.validate_every == 0 or step + 1 == total:
                line = {"step": step + 1, "train": float(loss.detach()), **_validate(model, source.validation)}
                metrics.write(json.dumps(line) + "\n")
                metrics.flush()
                bar.set_postfix({key: f"{value:.3f}" for key, value in line.items() if key != "step"})
                if report is not None:
                    report(line)
    return model, time.monotonic() - start


def _schedule(step: int, config: FilterTrainingConfig) -> float:
    """Warm-up over 5 %, then a cosine to 2 %; one for the nominal phase, one for the rest."""
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


__all__ = ["FilterRun", "FilterTrainingConfig", "load_data", "simulated", "train_filter"]
