"""Train the series network on synthetic series: pinball loss of quantiles at leads, on the scale of asinh."""

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

from rfa.fitting.stopping import StopSignals
from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import LEVELS, PATHS, REACH, SeriesConfig
from rfa.runtime.text.config import Mode, StrictConfig
from rfa.training.corpus import file_hashes
from rfa.training.device import choose_device
from rfa.training.optimiser import Optimiser, OptimiserConfig, rate_factor
from rfa.training.plot import METRICS_FILE
from rfa.training.provenance import provenance
from rfa.training.resuming import (
    LEFT,
    OPTIMISER_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
    check_request,
    copy_checkpoint,
    has_checkpoint,
    what_is_left,
    written_whole,
)
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

RECORD_FILE = "train.json"
BAR = "{l_bar}{bar}| {elapsed}<{remaining}, {postfix}"
# As many series whatever the batch, so that losses compare.
VALIDATION_BATCHES, VALIDATION_SERIES = 8, 64
LOOK_EVERY = 25
# Tokens sum up differences at `REACH` cells in float32; none is more than twice the largest value.
LARGEST = float(np.finfo(np.float32).max) / (2 * REACH)
# The path of the last value, and the least loss of it that another is compared to.
LAST_VALUE, SMALLEST_NAIVE = PATHS - 1, 1e-3
NINETY = (LEVELS.index(0.05), LEVELS.index(0.95))


@dataclass(frozen=True)
class SeriesTrainingConfig(OptimiserConfig):
    """How to train.

    batch: series of a step. tokens: of each series, a patch apart. modes: those that this run trains; with the
        attention mode alone, what both modes share stays as it is.
    own_share: of the loss, where series of one's own are given: the rest is of synthetic ones, which keep what was
        learned of others.
    workers: processes that draw series. threads: of the process that trains.
    minutes: of training, after which the run ends; the rates then go by time, not by steps. None: `steps` end it.
    compile: the network goes through torch.compile.
    """

    batch: int = 64
    tokens: int = 128
    modes: tuple[Mode, ...] = ("recurrent",)
    seed: int = 0
    validate_every: int = 500
    precision: str = "bf16"
    own_share: float = 0.5
    workers: int = 1
    threads: int = 1
    minutes: float | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "modes", tuple(self.modes))
        for name in ("batch", "tokens", "validate_every", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision must be 'bf16' or 'fp32', got {self.precision!r}")
        if not 0 < self.own_share <= 1:
            raise ValueError(f"own_share must be in (0, 1], got {self.own_share}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive, got {self.minutes}")


@dataclass(frozen=True)
class SeriesRun(StrictConfig):
    """A training config file: the network and the training."""

    model: SeriesConfig
    training: SeriesTrainingConfig

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), "training": self.training.to_dict()}

    @classmethod
    def from_file(cls, path: Path) -> SeriesRun:
        """The config of `path`.

        Raises:
            ValueError: unknown sections, keys or values.
        """
        document = json.loads(path.read_text())
        unknown = set(document) - {"model", "training"}
        if unknown:
            raise ValueError(f"{path.name} has unknown sections {sorted(unknown)}; it takes model and training")
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SeriesRun:
        """Of its sections model and training; what else it has is not the config's."""
        return cls(SeriesConfig.from_dict(document["model"]), SeriesTrainingConfig.from_dict(document["training"]))


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, device=device)


def pinball(quantiles: Tensor, batch: SeriesBatch) -> Tensor:
    """The mean over levels of ρ(z - q), at every lead `[B, N, K]`."""
    levels = _levels(quantiles.device)
    off = batch.targets[..., None] - quantiles.float()
    return torch.maximum(levels * off, (levels - 1) * off).mean(-1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Of values where something came."""
    return (values * weights).sum() / weights.sum().clamp(min=1)


def moved(model: SeriesNetwork, modes: tuple[Mode, ...]) -> None:
    """Let only those parameters have gradients that a run of `modes` trains."""
    if modes == ("attention",):
        for name, parameter in model.named_parameters():
            owner = model.get_submodule(name.rpartition(".")[0])
            parameter.requires_grad_(name.endswith(".weight") and hasattr(owner, "recurrent_weight"))


@torch.no_grad()
def validate(model: SeriesNetwork, batches: Sequence[SeriesBatch], mode: Mode) -> dict[str, float]:
    """Mean losses near and far, the share inside 90 % intervals, and the loss over that of the last value: geometric
    means over series."""
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
    moves = naive > SMALLEST_NAIVE  # false where nothing came
    ratio = (loss[moves] / naive[moves]).clamp(min=SMALLEST_NAIVE).log().mean().exp()
    return found | {"over_naive": round(float(ratio), 5)}


@dataclass
class SeriesTrainer:
    """One run: a network, how it moves, and where it stands.

    own: series of one's own, to train on beside synthetic ones. begin_from: the first weights; None: drawn ones.
    data: what they are from, as a request tells it: the hashes of the files. device: where the network is trained.
    copy_to: a folder that gets each checkpoint as well, from which the run goes on when `out` is lost.

    Raises:
        ValueError: the directory holds a run of another config or of other data, or a checkpoint that is damaged.
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
    _forward: Any = field(init=False)  # the network, or what torch.compile makes of it
    _losses: list[Tensor] = field(default_factory=list, init=False)  # of the last steps, not yet looked at

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
        moved(self.model, config.modes)
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
            }  # does not change the result
            for run, data in ((SeriesRun.from_dict(document), document["data"]), (self.run, self.data))
        )
        check_request(self.out, requested, earlier)

    @property
    def averaged(self) -> SeriesNetwork:
        return cast(SeriesNetwork, self.optimiser.averaged)

    @property
    def series(self) -> int:
        """Synthetic ones that it has seen."""
        return self.step * self.run.training.batch

    @property
    def position(self) -> float:
        """Where the schedule of the rates is, in steps; by time it is a share of them all."""
        config = self.run.training
        return self.step if config.minutes is None else config.steps * min(self.seconds / (60 * config.minutes), 1.0)

    @property
    def is_finished(self) -> bool:
        return self.position >= self.run.training.steps

    def save(self) -> None:
        """Model, optimiser, progress and request: the run continues from here bit for bit."""
        self.look()
        progress = {"step": self.step, "seconds": self.seconds, "smooth": self.smooth}
        request = {"data": self.data, **self.run.to_dict()}
        with written_whole(self.out) as folder:
            save_checkpoint(folder, "series", self.averaged)
            save_file(self.optimiser.state(), folder / OPTIMISER_FILE)
            (folder / PROGRESS_FILE).write_text(json.dumps(progress) + "\n")
            (folder / REQUEST_FILE).write_text(json.dumps(request, indent=2) + "\n")
        (self.out / RECORD_FILE).unlink(missing_ok=True)  # it is of other weights
        if self.copy_to is not None:
            copy_checkpoint(self.out, self.copy_to)

    def update(self, batch: SeriesBatch) -> Tensor:
        """One optimiser step; returns the mean loss of the modes, which on a GPU nobody has waited for."""
        config = self.run.training
        self.optimiser.zero_grad()
        parts = [(batch, 1.0)]
        if self.own is not None:
            own = to_device(self.own.batch(config.seed, config.batch, self.step), self.device)
            parts = [(batch, 1 - config.own_share), (own, config.own_share)]
        total = torch.zeros((), device=self.device)
        for mode, (part, share) in itertools.product(config.modes, parts):
            self.model.mode = mode
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                quantiles = self._forward(part.tokens, part.ends, part.asked)
            loss = weighted_mean(pinball(quantiles, part), part.weights) * share / len(config.modes)
            loss.backward()
            total += loss.detach()
        self._losses.append(total)
        self.optimiser.step(self.position)
        self.step += 1
        if self.device.type == "cpu" or len(self._losses) >= LOOK_EVERY:
            self.look()
        return total

    def look(self) -> None:
        """Wait for the losses of the last steps.

        Raises:
            FloatingPointError: one of them is not finite.
        """
        losses = torch.stack(self._losses).tolist() if self._losses else []
        self._losses.clear()
        for step, loss in enumerate(losses, self.step - len(losses)):
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {step}; {what_is_left(self.out)}")
            self.smooth = loss if math.isnan(self.smooth) else 0.98 * self.smooth + 0.02 * loss

    def validate(self, fixed: Sequence[SeriesBatch], mode: Mode) -> dict[str, float]:
        """Of synthetic series, and of what is held out of one's own."""
        found = validate(self.averaged, fixed, mode)
        if self.own is not None:
            own = validate(self.averaged, [to_device(self.own.held_out(), self.device)], mode)
            found |= {f"own_{name}": value for name, value in own.items()}
        return found

    def train(self) -> dict[str, dict[str, float]]:
        """Run to the last step, or to the last minute; returns the final validation.

        Raises:
            Stopped: a signal came; the step that it came in is saved.
            FloatingPointError: it diverged; the last checkpoint is intact.
        """
        config, version = self.run.training, self.run.model.version
        fixed = [
            to_device(
                synthetic_batch(0, min(config.batch, VALIDATION_SERIES), config.tokens, index, "validation", version),
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
                bar.set_postfix_str(self.told(), refresh=False)
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
            version=self.run.model.version,
            is_pinned=self.device.type == "cuda",
        )
        return on_device(drawn, self.device)

    def told(self) -> str:
        """The line of progress: loss, rate and speed."""
        config = self.run.training
        rate = config.learning_rate * rate_factor(self.position, config)
        return f"loss {self.smooth:.4f}, rate {rate:.1e}, {self.series / max(self.seconds, 1e-9):,.0f} series/s"


def _check_sizes(own: Sequence[Cells]) -> None:
    largest = max((float(np.nanmax(np.abs(one.values))) for one in own), default=0.0)
    if largest > LARGEST:
        raise ValueError(
            f"the series to train on reach {largest:g}, and the network has room for values up to {LARGEST:.0e}: "
            "tell them in a larger unit, or leave that column out"
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
    """Train into a run directory; one with progress is resumed, a finished one left as it is; with more steps it goes
    on.

    Args:
        begin_from: whose weights are the first ones; None: drawn ones.
        own: series to train on beside synthetic ones. files: where they are from, for the record.
        device: auto, cpu or cuda. copy_to: a folder that gets each checkpoint as well.

    Returns:
        the run's record: validation losses, series seen, seconds, provenance.

    Raises:
        ValueError: the directory holds a run of another config or of other data, or a checkpoint that is damaged; or
            the network has no room for so large values; or there is no such device.
        FloatingPointError: the training diverged; the last checkpoint is intact.
        Stopped: a signal came; the run is saved, and the same call goes on.
    """
    _check_sizes(own)
    chosen = choose_device(device)
    out.mkdir(parents=True, exist_ok=True)
    recorded = Recorded(own, run.training.tokens, run.model.version) if own else None
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
    """What a run that has seen so many series tells; None where it ended before that was written whole."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_whole = isinstance(record, dict) and record.keys() >= {"validation", "series", "seconds", "parameters"}
    return record if is_whole and record["series"] == series else None
