"""Train a language model, both modes from the start: the loss is the mean of the cross-entropies of the modes
trained, weighed by `recurrent_share`. How the weights move is `rfa.training.optimiser`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from rfa.fitting.stopping import StopSignals
from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig, Mode
from rfa.training.corpus import Blocks, Corpus, file_hashes, prepare_corpus, split_files
from rfa.training.device import choose_device
from rfa.training.optimiser import Optimiser, OptimiserConfig
from rfa.training.plot import METRICS_FILE, plot_metrics
from rfa.training.provenance import provenance
from rfa.training.resuming import LEFT, PROGRESS_FILE, REQUEST_FILE, check_request, written_whole

CONFIGS = Path(__file__).parent / "configs"
# Overrides of a size config, by the name that math and papers give the model.
VARIANTS_FILE = CONFIGS / "variants.json"
OPTIMISER_FILE = "optimiser.safetensors"
TOKENIZER_FILE = "tokenizer.json"
RECORD_FILE = "train.json"
VALIDATION_TOKENS = 65_536


@dataclass(frozen=True)
class TrainingConfig(OptimiserConfig):
    """How to train. `modes` empty = all modes of the model.

    recurrent_from: share of the steps before the recurrent mode joins the attention mode; 0 = both from the start.
    recurrent_share: weight of the recurrent mode's loss where both are trained; the attention mode has the rest.
    compile: in training, the eager attention goes through torch.compile.
    """

    batch: int = 16
    context: int = 256
    modes: tuple[Mode, ...] = ()
    recurrent_from: float = 0.0
    recurrent_share: float = 0.5
    seed: int = 0
    validate_every: int = 250
    precision: str = "bf16"
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "modes", tuple(self.modes))
        for name in ("batch", "context", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.recurrent_from < 1:
            raise ValueError(f"recurrent_from must be in [0, 1), got {self.recurrent_from}")
        if self.recurrent_from and self.modes and set(self.modes) != {"attention", "recurrent"}:
            raise ValueError(f"recurrent_from is of a run of both modes, got modes {list(self.modes)}")
        if not 0 < self.recurrent_share < 1:
            raise ValueError(f"recurrent_share must be between 0 and 1; modes choose one alone: {self.recurrent_share}")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision must be 'bf16' or 'fp32', got {self.precision!r}")


@dataclass(frozen=True)
class LanguageRun:
    """A training config file: the model and the training."""

    model: LanguageModelConfig
    training: TrainingConfig

    def to_dict(self) -> dict[str, Any]:
        """As a config file has it."""
        return {"model": self.model.to_dict(), "training": self.training.to_dict()}

    @classmethod
    def from_file(cls, path: Path, variant: str | None = None) -> LanguageRun:
        """The config of `path`, changed by what a variant of `variants.json` overrides.

        Raises:
            ValueError: unknown sections, keys, values or variant; lists what is known.
        """
        document = json.loads(path.read_text())
        unknown = set(document) - {"model", "training"}
        if unknown:
            raise ValueError(f"{path.name} has unknown sections {sorted(unknown)}; it takes model and training")
        overrides = load_variants()[check_variant(variant)] if variant is not None else {}
        return cls(
            LanguageModelConfig.from_dict({**document["model"], **overrides.get("model", {})}),
            TrainingConfig.from_dict({**document["training"], **overrides.get("training", {})}),
        )


def load_variants() -> dict[str, dict[str, Any]]:
    """name → title, and overrides of a size config's model and training."""
    variants: dict[str, dict[str, Any]] = json.loads(VARIANTS_FILE.read_text())
    return variants


def check_variant(name: str) -> str:
    """`name`, if there is such a variant."""
    available = load_variants()
    if name not in available:
        raise ValueError(f"no variant {name!r}; known are {list(available)}")
    return name


def find_config(name: str) -> Path:
    """A config by path, or by the name of one that comes with the package.

    Raises:
        FileNotFoundError: neither exists; lists the names that do.
    """
    for candidate in (Path(name), CONFIGS / f"{name}.json"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"no config {name!r}; known are {sorted(path.stem for path in CONFIGS.glob('*.json') if path != VARIANTS_FILE)}"
    )


def has_compiler() -> bool:
    """Whether torch.compile finds what it needs on a CPU: the compiler that CXX names, or g++, or clang++."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def cross_entropy(model: LanguageModel, inputs: Tensor, targets: Tensor, mode: Mode) -> Tensor:
    """Mean nats per token in one mode."""
    model.mode = mode
    logits = model(inputs, with_precision=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def validation_loss(model: LanguageModel, tokens: np.ndarray, context: int, mode: Mode, limit: int) -> float:
    """Mean nats per token over non-overlapping windows of the first `limit` tokens."""
    model.eval()
    count = min(len(tokens) - 1, limit) // context
    if count < 1:
        raise ValueError(f"the validation split has {len(tokens)} tokens, one window needs {context + 1}")
    window = torch.from_numpy(np.asarray(tokens[: count * context + 1], np.int64))
    inputs, targets = window[:-1].reshape(count, context), window[1:].reshape(count, context)
    device = model.embedding.weight.device
    rows = max(1, 4096 // context)
    total = 0.0
    for i in range(0, count, rows):
        batch = inputs[i : i + rows].to(device)
        total += float(cross_entropy(model, batch, targets[i : i + rows].to(device), mode)) * len(batch)
    model.train()
    return total / count


@dataclass
class Trainer:
    """One run: a model, how it moves, and where it stands.

    smooth: running mean of each mode's training loss.
    extended_at: numbers of steps that were asked for before, and got more: there the schedule jumped.
    """

    run: LanguageRun
    corpus: Corpus
    out: Path
    device: torch.device
    step: int = 0
    seconds: float = 0.0
    smooth: dict[str, float] = field(default_factory=dict)
    extended_at: list[int] = field(default_factory=list)
    model: LanguageModel = field(init=False)
    optimiser: Optimiser = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.run.training.seed)
        self.model = LanguageModel(self.run.model).to(self.device)
        is_resumed = (self.out / PROGRESS_FILE).is_file()
        if is_resumed:
            self.model = load_run(self.out).to(self.device)
        self.model.train()
        self.optimiser = Optimiser(self.model, self.run.training)
        if self.run.training.compile:
            if has_compiler():
                self.model.compile_attention()
            else:
                warnings.warn("no C++ compiler found: attention is trained eagerly, up to twice as slow", stacklevel=2)
        if is_resumed:
            progress = json.loads((self.out / PROGRESS_FILE).read_text())
            self.step, self.seconds = progress["step"], progress["seconds"]
            # What runs of earlier versions do not tell.
            self.smooth, self.extended_at = progress.get("smooth", {}), progress.get("extended_at", [])
            self.optimiser.load_state(load_file(self.out / OPTIMISER_FILE))

    @property
    def averaged(self) -> LanguageModel:
        """What is validated and saved: the running average of the model, if the config wants one."""
        return cast(LanguageModel, self.optimiser.averaged)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Those that the finished model is for."""
        return self.run.training.modes or self.run.model.modes

    @property
    def modes_now(self) -> tuple[Mode, ...]:
        """Those that this step trains."""
        config = self.run.training
        return self.modes if self.step >= config.recurrent_from * config.steps else ("attention",)

    @property
    def shares(self) -> dict[Mode, float]:
        """Weight of each mode's loss at this step; they add up to one."""
        if len(self.modes_now) == 1:
            return dict.fromkeys(self.modes_now, 1.0)
        recurrent = self.run.training.recurrent_share
        return {"attention": 1 - recurrent, "recurrent": recurrent}

    def save(self) -> None:
        """Model, optimiser and progress: the run continues from here bit for bit."""
        progress = {
            "step": self.step, "seconds": self.seconds, "smooth": self.smooth, "extended_at": self.extended_at,
        }  # fmt: skip
        with written_whole(self.out) as folder:
            save_checkpoint(folder, "language", self.averaged)
            save_file(self.optimiser.state(), folder / OPTIMISER_FILE)
            (folder / PROGRESS_FILE).write_text(json.dumps(progress) + "\n")

    def update(self, inputs: Tensor, targets: Tensor, loss_of: Callable[..., Tensor]) -> dict[str, float]:
        """One optimiser step; returns the loss of each mode."""
        config = self.run.training
        self.optimiser.zero_grad()
        losses: dict[str, float] = {}
        for mode in self.modes_now:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                loss = loss_of(self.model, inputs, targets, mode)
            # One backward pass per mode: the activations of only one are alive.
            (loss * self.shares[mode]).backward()
            losses[mode] = float(loss.detach())
        if not all(math.isfinite(loss) for loss in losses.values()):
            raise FloatingPointError(f"the loss is {losses} at step {self.step}; the last checkpoint is intact")
        self.optimiser.step(self.step)
        self.step += 1
        return losses

    def validate(self) -> dict[str, float]:
        tokens, context = self.corpus.tokens("valid"), self.run.training.context
        return {mode: validation_loss(self.averaged, tokens, context, mode, VALIDATION_TOKENS) for mode in self.modes}

    def train(self) -> dict[str, float]:
        """Run to the last step; returns the final validation losses.

        Raises:
            Stopped: a signal came; the step that it came in is saved.
        """
        config = self.run.training
        blocks = Blocks(self.corpus.tokens("train"), config.context, config.batch, config.seed)
        validation: dict[str, float] = {}
        with (
            StopSignals() as signals,
            (self.out / METRICS_FILE).open("a") as metrics,
            tqdm(total=config.steps, initial=self.step) as bar,
        ):
            while self.step < config.steps:
                started = time.perf_counter()
                inputs, targets = (torch.from_numpy(part).to(self.device) for part in blocks[self.step])
                losses = self.update(inputs, targets, cross_entropy)
                self.seconds += time.perf_counter() - started
                for mode, loss in losses.items():
                    self.smooth[mode] = loss if mode not in self.smooth else 0.98 * self.smooth[mode] + 0.02 * loss
                bar.update()
                bar.set_postfix({mode: f"{loss:.3f}" for mode, loss in self.smooth.items()})
                if self.step % config.validate_every == 0 or self.step == config.steps:
                    validation = self.validate()
                    metrics.write(json.dumps(self._row(validation)) + "\n")
                    metrics.flush()
                    self.save()
                signals.check(self.step, config.steps, self.save)
        return validation or self.validate()

    def _row(self, validation: dict[str, float]) -> dict[str, Any]:
        """A line of the metrics file."""
        return {
            "step": self.step,
            "tokens": self.step * self.run.training.batch * self.run.training.context,
            "seconds": round(self.seconds, 1),
            "train": self.smooth,
            "valid": validation,
        }


def train_language(
    config: str,
    data: Path,
    out: Path,
    *,
    variant: str | None = None,
    seed: int | None = None,
    steps: int | None = None,
    corpus_dir: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Train a language model on a corpus folder into a run directory; a directory with progress is resumed.

    A finished run is left as it is; with more steps it goes on, the schedule of the rates then being that of the new
    number.

    Args:
        config: name of a packaged config or path of a JSON file.
        data: corpus folder with train and valid.
        out: run directory: config.json, model.safetensors, tokenizer.json, metrics.jsonl and its plot, train.json.
        variant: name in `variants.json`.
        seed, steps: instead of the config's.
        corpus_dir: where the tokenised corpus is kept, for several runs; default: in `out`.
        device: auto, cpu or cuda.

    Returns:
        the run's record: validation losses, tokens seen, seconds, provenance.

    Raises:
        ValueError: the directory holds a run of another config or of other text, the text is too little for so many
            tokens, or there is no such device.
        Stopped: a signal came; the run is saved, and the same call goes on.
    """
    path = find_config(config)
    run = LanguageRun.from_file(path, variant)
    training = run.training
    seed, steps = training.seed if seed is None else seed, training.steps if steps is None else steps
    run = replace(run, training=replace(training, seed=seed, steps=steps))
    chosen = choose_device(device)
    out.mkdir(parents=True, exist_ok=True)
    request, finished = out / REQUEST_FILE, out / RECORD_FILE
    is_extended = request.is_file() and _is_extended(out, run)
    if finished.is_file() and request.is_file() and not is_extended:
        return _finished(out, data)
    corpus = prepare_corpus(data, corpus_dir or out / "corpus", run.model.vocab_size)
    if (found := corpus.tokenizer.get_vocab_size()) != run.model.vocab_size:  # export would refuse it after training
        raise ValueError(
            f"{path.name}: vocab_size is {run.model.vocab_size}, and the training text gives {found} tokens: "
            "train on more text, or with that vocab_size"
        )
    _keep_tokenizer(out, corpus)
    trainer = Trainer(run, corpus, out, chosen)
    if is_extended:
        trainer.extended_at.append(json.loads(request.read_text())["training"]["steps"])
        finished.unlink(missing_ok=True)  # it is not of the weights to come
        trainer.save()
    request.write_text(json.dumps(run.to_dict(), indent=2) + "\n")
    validation = trainer.train()
    record = {
        "config": run.to_dict(),
        "config_name": path.stem,
        "variant": variant,
        "validation_loss": validation,
        "bytes_per_token": corpus.bytes_per_token,
        "tokens": trainer.step * run.training.batch * run.training.context,
        "seconds": round(trainer.seconds, 1),
        "extended_at": trainer.extended_at,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        **provenance(_read_files(data), chosen),
    }
    finished.write_text(json.dumps(record, indent=2) + "\n")
    plot_metrics(out)
    return record


def _is_extended(out: Path, run: LanguageRun) -> bool:
    """Whether the run that is there asked for fewer steps, and for nothing else.

    By value, not by text: a run goes on after the config has grown a field that its request does not name.
    """
    found = LanguageRun.from_file(out / REQUEST_FILE)
    requested, earlier = ({**part.model.to_dict(), **part.training.to_dict()} for part in (run, found))
    return check_request(out, requested, earlier)


def _read_files(data: Path) -> list[Path]:
    return [*split_files(data, "train"), *split_files(data, "valid")]


def _finished(out: Path, data: Path) -> dict[str, Any]:
    """The record of a run that has nothing left to do."""
    record: dict[str, Any] = json.loads((out / RECORD_FILE).read_text())
    if record["data"] != file_hashes(_read_files(data)):
        raise ValueError(f"{out} holds a run that was trained on other text than {data}; choose another --out")
    tqdm.write(LEFT.format(out), file=sys.stderr)
    return record


def _keep_tokenizer(out: Path, corpus: Corpus) -> None:
    """Write the tokenizer, which a run that has begun must not change."""
    path, text = out / TOKENIZER_FILE, corpus.tokenizer.to_str(pretty=True)
    if (out / PROGRESS_FILE).is_file() and path.is_file() and json.loads(path.read_text()) != json.loads(text):
        raise ValueError(f"{out} holds a run that began with other text; choose another --out")
    path.write_text(text)
