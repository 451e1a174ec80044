"""Train a deep filter, fit a structural filter, or write the run of a linear filter, with `rfa train filter`.

A deep filter is trained on noisy measurements without true states (`rfa.training.deep`). A structural filter is fitted
to a CSV file by maximum likelihood (`rfa.fitting.column_models`) and saved as a linear filter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tqdm import tqdm

from rfa.fitting.column_models import SHARES, StructuralConfig, fit_structural
from rfa.fitting.progress import SavedFits
from rfa.model.batch import Batch
from rfa.model.checkpoint import save_checkpoint
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import StateFilter
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.training.corpus import file_hashes
from rfa.training.deep import DeepTrainer, FilterTrainingConfig, deep_config
from rfa.training.provenance import provenance
from rfa.training.recorded import load_recorded
from rfa.training.resuming import LEFT, REQUEST_FILE
from rfa.training.series import calibration_windows, split, windows
from rfa.training.simulate import NOISE_SETTINGS, Disturbance, simulate_oscillator

SIMULATED = "simulate:oscillator"
VALIDATION_FILE = "validation.safetensors"
RECORD_FILE = "train.json"
# File with the finished columns of a structural fit in progress.
FITTED_FILE = "fitted.jsonl"
# Seeds of the simulated splits. Tests and benchmarks use other seeds.
SEEDS = {"train": 1, "validation": 2}
VALIDATION_SEQUENCES = 480
# Longest season, in steps, that is used as a horizon of the calibration. Calibration windows contain few forecasts over
# longer horizons.
LONGEST_LEAD = 48
DISTURBANCES = (
    Disturbance(),
    Disturbance(outliers=0.05),
    Disturbance(missing=0.15),
    Disturbance(outliers=0.05, missing=0.15, is_irregular=True),
)


FAMILIES = ("linear", "structural", "deep")


@dataclass(frozen=True)
class FilterRun:
    """Content of a configuration file for training or fitting a filter.

    Attributes:
        family: "linear", "structural" or "deep".
        model: Section that describes the model.
        training: Training settings. They are only used for the family "deep".
    """

    family: str
    model: dict[str, Any]
    training: FilterTrainingConfig

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FilterRun:
        unknown = set(document) - {"family", "model", "training"}
        if unknown:
            raise ValueError(
                f"the config has unknown sections {sorted(unknown)}; the valid sections are family, model and training"
            )
        family = document.get("family", "deep")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        if family == "structural" and "training" in document:
            raise ValueError("a structural config has no training section; its model section describes the fit")
        return cls(
            family, dict(document.get("model", {})), FilterTrainingConfig.from_dict(document.get("training", {}))
        )

    @classmethod
    def from_file(cls, path: str | Path) -> FilterRun:
        return cls.from_dict(json.loads(Path(path).read_text()))


@dataclass(frozen=True)
class FilterData:
    """Data for training a filter: training and validation batches from one source, and the files of the source."""

    train: Batch
    validation: Batch
    files: tuple[Path, ...]


def simulated(count: int, length: int, seed: int, settings: tuple[tuple[float, float], ...] = NOISE_SETTINGS) -> Batch:
    """Simulate the oscillator with the given noise settings, and return a batch. Each entry of DISTURBANCES applies to
    an equal share of the sequences."""
    size = max(len(settings), count // len(DISTURBANCES))
    parts = [
        simulate_oscillator(size, length, settings=settings, disturbance=d, seed=seed * 100 + i)
        for i, d in enumerate(DISTURBANCES)
    ]
    return joined(parts)


def joined(parts: Sequence[Batch]) -> Batch:
    """Concatenate batches of sequences of equal length. Each batch must contain the true states."""
    truth = [part.truth for part in parts if part.truth is not None]
    return Batch(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.observations for part in parts]),
        np.concatenate(truth),
    )


def save_batch(path: Path, batch: Batch) -> None:
    """Write a batch to a file, which `rfa export` reads for the calibration."""
    tensors = {"times": batch.times, "observations": batch.observations}
    if batch.truth is not None:
        tensors["truth"] = batch.truth
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)


def load_data(source: str, config: FilterTrainingConfig) -> FilterData:
    """Load data from a CSV file. If `source` is "simulate:oscillator", simulate the data instead."""
    if source == SIMULATED:
        parts = (("train", config.sequences), ("validation", VALIDATION_SEQUENCES))
        train, validation = (simulated(n, config.length, SEEDS[name], config.noise_settings) for name, n in parts)
        return FilterData(train, validation, ())
    if source.startswith("simulate:"):
        raise ValueError(f"unknown simulation {source!r}; the only one is {SIMULATED!r}")
    series = load_recorded(source)
    train_part, validation_part, _ = split(series)
    return FilterData(windows(train_part, config.length), windows(validation_part, config.length), (Path(source),))


def train_filter(
    config: str | Path | FilterRun,
    data: str,
    out: str | Path,
    *,
    report: Callable[[dict[str, float]], None] | None = None,
    show_progress: bool = True,
) -> StateFilter:
    """Train a deep filter, fit a structural filter, or build a linear filter. Write the run of the filter, and return
    the filter.

    The files are config.json, model.safetensors, validation.safetensors, train.json, and metrics.jsonl for deep
    filters. An interrupted training of a deep filter is resumed. A finished run is returned unchanged, or continued if
    the configuration has more steps.

    Args:
        config: Path of a configuration file, or the content of such a file.
        data: Path of a CSV file, or "simulate:oscillator". For linear filters, the data are used only for the
            calibration at export.
        out: Directory of the run.
        report: Function that is called with every line of metrics.jsonl.
        show_progress: Whether to show a progress bar.

    Raises:
        ValueError: If the data do not match the configuration, or the directory contains another run.
        Stopped: If a signal arrived. The run is saved; repeat the call to continue it.
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
    if run.family != "deep" and (directory / REQUEST_FILE).is_file():
        raise ValueError(f"{directory} contains a trained run; choose another --out")
    if run.family == "linear":
        linear = LinearFilter(LinearFilterConfig.from_dict(run.model))
        size = source.train.observations.shape[-1]
        if linear.observation_size != size:
            raise ValueError(
                f"the observation matrix has {linear.observation_size} rows, but the data have {size} columns; "
                "it must have one row for each column"
            )
        return _written(directory, "linear", linear, record, source.validation)
    return _train_deep(run, source, data, directory, record, report=report, show_progress=show_progress)


def _train_deep(
    run: FilterRun,
    source: FilterData,
    data: str,
    directory: Path,
    record: dict[str, Any],
    *,
    report: Callable[[dict[str, float]], None] | None,
    show_progress: bool,
) -> StateFilter:
    """Train a deep filter to its last step, and return the filter. If the directory contains an unfinished run, the run
    is resumed."""
    config = deep_config(run.model, source.train)
    origin = file_hashes(list(source.files)) or data
    is_recorded = bool(source.files)
    trainer = DeepTrainer(
        directory, config, run.training, source.train, source.validation, origin, is_recorded=is_recorded
    )
    finished = directory / RECORD_FILE
    if trainer.is_extended:
        finished.unlink(missing_ok=True)  # it describes weights that will change
    if trainer.step == trainer.steps and finished.is_file():
        tqdm.write(LEFT.format(directory), file=sys.stderr)
        return trainer.model.eval()
    trainer.train(report, show_progress)
    record |= {
        "seconds": round(trainer.seconds, 1),
        "steps": run.training.steps,
        "extended_at": trainer.extended_at,
    }
    return _written(directory, "deep", trainer.model, record, source.validation)


def _written(
    directory: Path, family: str, model: StateFilter, record: dict[str, Any], validation: Batch
) -> StateFilter:
    """Write a finished run, including its validation data for the calibration, and return the filter."""
    save_checkpoint(directory, family, model)
    save_batch(directory / VALIDATION_FILE, validation)
    (directory / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")
    return model.eval()


def _fit_structural(run: FilterRun, data: str, directory: Path, show_progress: bool) -> StateFilter:
    if data.startswith("simulate:"):
        raise ValueError(f"a structural model must be fitted to a CSV file, not to {data!r}")
    config = StructuralConfig.from_dict(run.model)
    train, validation, _ = split(load_recorded(data))
    arrays = (part for piece in (train, validation) for part in (piece.times, piece.values))
    kept = SavedFits(directory / FITTED_FILE, [asdict(config), *train.names], arrays)
    with tqdm(total=len(train.names), disable=not show_progress, bar_format=SHARES) as bar:

        def advance(line: str, share: float) -> None:
            bar.set_postfix_str(line, refresh=False)
            bar.update(share)

        found = fit_structural(train, validation, config, report=advance, saved=kept)
    model = LinearFilter(found.config)
    longest = max(found.seasons, default=0.0)
    record = {
        "data": data,
        # Seasons that export calibrates in addition to the default horizons.
        "leads": sorted({round(period) for period in found.seasons if period <= LONGEST_LEAD}),
        "columns": found.columns,
        "joint": found.joint,
        "provenance": provenance([Path(data)], torch.device("cpu")),
    }
    windowed = calibration_windows(validation, model.state_size, longest)
    written = _written(directory, "linear", model, record, windowed)
    kept.remove()
    return written
