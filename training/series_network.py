"""Train the series network on synthetic series, with the pinball loss of quantiles on an asinh scale."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from rfa.fitting.interrupts import StopSignals
from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import BASE_PATHS, LEVELS, REACH
from rfa.runtime.text.config import Mode
from rfa.training.corpus import file_hashes
from rfa.training.device import choose_device, uses_bfloat16
from rfa.training.optimiser import Optimiser, rate_factor
from rfa.training.plot import METRICS_FILE
from rfa.training.provenance import provenance
from rfa.training.resuming import (
    LEFT,
    OPTIMISER_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
    atomic_checkpoint,
    check_request,
    copy_checkpoint,
    has_checkpoint,
    remaining_state,
)
from rfa.training.schedule import Scheduled
from rfa.training.series_batches import (
    NEAR_LEADS,
    Cells,
    Recorded,
    SeriesBatch,
    feed,
    on_device,
    synthetic_batch,
    to_device,
)
from rfa.training.series_config import SeriesRun

RECORD_FILE = "train.json"
BAR = "{l_bar}{bar}| {elapsed}<{remaining}, {postfix}"
# The number of series is the same for every batch size, so that losses are comparable.
VALIDATION_BATCHES, VALIDATION_SERIES = 8, 64
# Number of steps after which the losses are read from the GPU. Each read waits for the GPU.
CHECK_EVERY = 25
# Tokens contain sums of REACH differences in float32, each of which is at most twice the largest value.
LARGEST = float(np.finfo(np.float32).max) / (2 * REACH)
# Index of the simple forecast that repeats the last value, and smallest loss of this forecast. Losses are not compared
# with a smaller loss.
LAST_VALUE, SMALLEST_NAIVE = BASE_PATHS - 1, 1e-3
NINETY = (LEVELS.index(0.05), LEVELS.index(0.95))


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, device=device)


def pinball(quantiles: Tensor, batch: SeriesBatch) -> Tensor:
    """Return the pinball loss at every horizon, averaged over the levels of the quantiles, `[B, N, K]`."""
    levels = _levels(quantiles.device)
    off = batch.targets[..., None] - quantiles.float()
    return torch.maximum(levels * off, (levels - 1) * off).mean(-1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean, or 0 if all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1)


def freeze_shared(model: SeriesNetwork, modes: tuple[Mode, ...]) -> None:
    """Freeze the parameters that both modes share if only the attention mode is trained."""
    if modes == ("attention",):
        for name, parameter in model.named_parameters():
            owner = model.get_submodule(name.rpartition(".")[0])
            parameter.requires_grad_(name.endswith(".weight") and hasattr(owner, "recurrent_weight"))


@torch.no_grad()
def validate(model: SeriesNetwork, batches: Sequence[SeriesBatch], mode: Mode) -> dict[str, float]:
    """Return the mean loss and the coverage of 90 % intervals, at near and at distant horizons. Also return the
    geometric mean over series of the ratio of the loss to that of repeating the last value."""
    model.eval()
    model.mode = mode
    losses, inside, weights, ratios = [], [], [], []
    for batch in batches:
        quantiles = model(batch.tokens, batch.ends, batch.asked)
        low, high = (quantiles[..., index] for index in NINETY)
        is_there = batch.weights
        loss = pinball(quantiles, batch)
        naive = (batch.targets - batch.asked.paths[..., LAST_VALUE]).abs() / 2
        losses.append(loss.flatten(0, 1))
        inside.append(((low <= batch.targets) & (batch.targets <= high)).float().flatten(0, 1))
        weights.append(is_there.flatten(0, 1))
        ratios.append(torch.stack([(part * is_there).sum((1, 2)) / is_there.sum((1, 2)) for part in (loss, naive)]))
    model.train()
    found = {}
    for name, leads in (("near", slice(None, NEAR_LEADS)), ("far", slice(NEAR_LEADS, None))):
        for what, parts in (("loss", losses), ("inside90", inside)):
            mean = weighted_mean(torch.cat(parts)[..., leads], torch.cat(weights)[..., leads])
            found[f"{name}_{what}"] = round(float(mean), 5)
    loss, naive = torch.cat(ratios, 1)
    moves = naive > SMALLEST_NAIVE  # false where nothing was observed
    ratio = (loss[moves] / naive[moves]).clamp(min=SMALLEST_NAIVE).log().mean().exp()
    return found | {"over_naive": round(float(ratio), 5)}


@dataclass
class SeriesTrainer(Scheduled):
    """Trains the series network, and stores its progress.

    Attributes:
        run: Configuration of the run.
        out: Directory of the run.
        begin_from: Network with the initial weights. If None, the weights are random.
        own: Series of the user, which are used in addition to synthetic ones.
        data: Hashes of the files of these series.
        device: Device on which the network is trained.
        copy_to: Directory that gets a copy of each checkpoint.
        step: Number of completed steps.
        seconds: Duration of the completed steps.
        smooth: Running mean of the training loss.
        model: Network that is being trained.
        optimiser: Optimiser of the network.

    Raises:
        ValueError: If the directory contains a run with another configuration or other data, or a damaged checkpoint.
    """

    run: SeriesRun
    out: Path
    begin_from: SeriesNetwork | None = None
    own: Recorded | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    copy_to: Path | None = None
    step: int = 0
    seconds: float = 0.0
    smooth: float = math.nan
    model: SeriesNetwork = field(init=False)
    optimiser: Optimiser = field(init=False)
    _forward: Any = field(init=False)  # the network, or its compiled version
    _losses: list[Tensor] = field(default_factory=list, init=False)  # losses of the last steps, not yet checked

    def __post_init__(self) -> None:
        config = self.run.training
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.model = SeriesNetwork(self.run.model)
        if is_resumed := has_checkpoint(self.out):
            self._check_request()
            self.model = load_run(self.out)
        elif self.begin_from is not None:
            self.model.load_state_dict(self.begin_from.state_dict())
        self.model.to(self.device).train()
        freeze_shared(self.model, config.modes)
        self._forward = torch.compile(self.model) if config.compile else self.model
        self.optimiser = Optimiser(self.model, config)
        if is_resumed:
            progress = json.loads((self.out / PROGRESS_FILE).read_text())
            self.step, self.seconds, self.smooth = progress["step"], progress["seconds"], progress["smooth"]
            self.optimiser.load_state(load_file(self.out / OPTIMISER_FILE))

    def _check_request(self) -> None:
        document = json.loads((self.out / REQUEST_FILE).read_text())
        earlier, requested = (
            {
                **run.model.to_dict(),
                **run.training.to_dict(),
                "workers": None,
                "data": data,
            }  # settings that do not change the result
            for run, data in ((SeriesRun.from_dict(document), document["data"]), (self.run, self.data))
        )
        check_request(self.out, requested, earlier)

    @property
    def averaged(self) -> SeriesNetwork:
        return cast(SeriesNetwork, self.optimiser.averaged)

    @property
    def series(self) -> int:
        """Number of synthetic series that have been used so far."""
        return self.step * self.run.training.batch

    def save(self) -> None:
        """Save the model, the optimiser, the progress and the request. A resumed run gives the same results, bit for
        bit, as an uninterrupted one."""
        self.check_losses()
        progress = {"step": self.step, "seconds": self.seconds, "smooth": self.smooth}
        request = {"data": self.data, **self.run.to_dict()}
        with atomic_checkpoint(self.out) as folder:
            save_checkpoint(folder, "series", self.averaged)
            save_file(self.optimiser.state(), folder / OPTIMISER_FILE)
            (folder / PROGRESS_FILE).write_text(json.dumps(progress) + "\n")
            (folder / REQUEST_FILE).write_text(json.dumps(request, indent=2) + "\n")
        (self.out / RECORD_FILE).unlink(missing_ok=True)  # it describes the previous weights
        if self.copy_to is not None:
            copy_checkpoint(self.out, self.copy_to)

    def update(self, batch: SeriesBatch) -> Tensor:
        """Perform one optimiser step. Return the mean loss over the modes, without waiting for a GPU."""
        config = self.run.training
        self.optimiser.zero_grad()
        parts = [(batch, 1.0)]
        if self.own is not None:
            own = to_device(self.own.batch(config.seed, config.batch, self.step), self.device)
            parts = [(batch, 1 - config.own_share), (own, config.own_share)]
        total = torch.zeros((), device=self.device)
        for mode, (part, share) in itertools.product(config.modes, parts):
            self.model.mode = mode
            with torch.autocast(self.device.type, torch.bfloat16, enabled=uses_bfloat16(config.precision, self.device)):
                quantiles = self._forward(part.tokens, part.ends, part.asked)
            loss = weighted_mean(pinball(quantiles, part), part.weights) * share / len(config.modes)
            loss.backward()
            total += loss.detach()
        self._losses.append(total)
        self.optimiser.step(self.position)
        self.step += 1
        if self.device.type == "cpu" or len(self._losses) >= CHECK_EVERY:
            self.check_losses()
        return total

    def check_losses(self) -> None:
        """Wait for the losses of the last steps, and check them.

        Raises:
            FloatingPointError: If a loss is not finite.
        """
        losses = torch.stack(self._losses).tolist() if self._losses else []
        self._losses.clear()
        for step, loss in enumerate(losses, self.step - len(losses)):
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {step}; {remaining_state(self.out)}")
            self.smooth = loss if math.isnan(self.smooth) else 0.98 * self.smooth + 0.02 * loss

    def validate(self, fixed: Sequence[SeriesBatch], mode: Mode) -> dict[str, float]:
        """Return the results of `validate` on synthetic series and on the held-out parts of the user's series."""
        found = validate(self.averaged, fixed, mode)
        if self.own is not None:
            own = validate(self.averaged, [to_device(self.own.held_out(), self.device)], mode)
            found |= {f"own_{name}": value for name, value in own.items()}
        return found

    def train(self) -> dict[str, dict[str, float]]:
        """Train to the last step or minute, and return the final validation.

        Raises:
            Stopped: If a signal arrived. The current step is saved.
            FloatingPointError: If the training diverged. The last checkpoint is intact.
        """
        config = self.run.training
        fixed = [
            to_device(
                synthetic_batch(0, min(config.batch, VALIDATION_SERIES), config.tokens, index, "validation"),
                self.device,
            )
            for index in range(VALIDATION_BATCHES)
        ]
        batches = self._batches()
        validation: dict[str, dict[str, float]] = {}
        with (
            StopSignals() as signals,
            (self.out / METRICS_FILE).open("a") as metrics,
            tqdm(total=config.steps, initial=round(self.position), bar_format=BAR) as bar,
        ):
            started = time.perf_counter()
            while not self.is_finished:
                self.update(next(batches))
                now = time.perf_counter()
                self.seconds += now - started
                started = now
                bar.set_postfix_str(self.progress_line(), refresh=False)
                bar.update(round(self.position) - bar.n)
                if self.step % config.validate_every == 0 or self.is_finished:
                    validation = {mode: self.validate(fixed, mode) for mode in config.modes}
                    row = {"step": self.step, "series": self.series, "seconds": round(self.seconds, 1)}
                    self.save()
                    metrics.write(json.dumps({**row, "train": round(self.smooth, 5), "valid": validation}) + "\n")
                    metrics.flush()
                    started = time.perf_counter()
                if not self.is_finished:
                    signals.check(int(self.position), config.steps, self.save)
        return validation or {mode: self.validate(fixed, mode) for mode in config.modes}

    def _batches(self) -> Iterator[SeriesBatch]:
        config = self.run.training
        drawn = feed(
            config.seed,
            config.batch,
            config.tokens,
            first=self.step,
            workers=config.workers,
            is_pinned=self.device.type == "cuda",
        )
        return on_device(drawn, self.device)

    def progress_line(self) -> str:
        """Return the loss, learning rate and speed for the progress bar."""
        config = self.run.training
        rate = config.learning_rate * rate_factor(self.position, config)
        return f"loss {self.smooth:.4f}, rate {rate:.1e}, {self.series / max(self.seconds, 1e-9):,.0f} series/s"


def _check_sizes(own: Sequence[Cells]) -> None:
    largest = max((float(np.nanmax(np.abs(one.values))) for one in own), default=0.0)
    if largest > LARGEST:
        raise ValueError(
            f"the series contain a value of magnitude {largest:g}, but the network supports at most {LARGEST:.0e}; "
            "use a larger unit, or leave that column out"
        )


def train_series(
    run: SeriesRun,
    out: Path,
    *,
    begin_from: SeriesNetwork | None = None,
    own: Sequence[Cells] = (),
    files: Sequence[Path] = (),
    device: str = "cpu",
    copy_to: Path | None = None,
) -> dict[str, Any]:
    """Train a series network. An interrupted run is resumed, and a finished run is returned unchanged.

    Args:
        run: Configuration of the network and the training.
        out: Directory of the run.
        begin_from: Network with the initial weights. If None, the weights are random.
        own: Series to train on in addition to synthetic ones.
        files: Files of these series, for the record.
        device: "auto", "cpu" or "cuda".
        copy_to: Directory that gets a copy of each checkpoint.

    Returns:
        The record of the run, with validation losses, number of series, seconds and provenance.

    Raises:
        ValueError: If the directory contains a run with another configuration or other data, or a damaged checkpoint;
            if values are too large; or if the device does not exist.
        FloatingPointError: If the training diverged. The last checkpoint is intact.
        Stopped: If a signal arrived. The run is saved; repeat the call to continue it.
    """
    _check_sizes(own)
    chosen = choose_device(device)
    out.mkdir(parents=True, exist_ok=True)
    recorded = Recorded(own, run.training.tokens) if own else None
    trainer = SeriesTrainer(run, out, begin_from, recorded, file_hashes(list(files)), chosen, copy_to)
    finished = out / RECORD_FILE
    if trainer.is_finished and (earlier := _record(finished, trainer.series)) is not None:
        tqdm.write(LEFT.format(out), file=sys.stderr)
        return earlier
    validation = trainer.train()
    record = {
        "config": run.to_dict(),
        "validation": validation,
        "series": trainer.series,
        "seconds": round(trainer.seconds, 1),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        **provenance(list(files), chosen),
    }
    finished.write_text(json.dumps(record, indent=2) + "\n")
    return record


def _record(path: Path, series: int) -> dict[str, Any] | None:
    """Return the record of a run with the given number of series, or None if it is missing or incomplete."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_whole = isinstance(record, dict) and record.keys() >= {"validation", "series", "seconds", "parameters"}
    return record if is_whole and record["series"] == series else None
