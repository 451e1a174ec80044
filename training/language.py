"""Train a language model. The loss is the mean of the cross-entropies of its modes, weighted by `recurrent_share`."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from rfa.fitting.interrupts import StopSignals
from rfa.model.checkpoint import WEIGHTS_FILE, load_run, save_checkpoint
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.text.config import Mode
from rfa.training.corpus import Blocks, Corpus, file_hashes, prepare_corpus, split_files, trained_splits
from rfa.training.device import choose_device, uses_bfloat16
from rfa.training.documents import FIELD
from rfa.training.language_config import LanguageRun, find_config
from rfa.training.language_losses import Loss, compiled_cross_entropy, cross_entropy, has_compiler, validation_loss
from rfa.training.optimiser import Optimiser
from rfa.training.plot import METRICS_FILE, plot_metrics
from rfa.training.processes import ALONE, Processes, gathered, joined_processes
from rfa.training.provenance import provenance
from rfa.training.resuming import LEFT, PROGRESS_FILE, REQUEST_FILE, atomic_checkpoint, check_request
from rfa.training.schedule import Scheduled
from rfa.training.sequences import are_sequences, event_tokenizer
from rfa.training.tensorboard import write_events
from rfa.training.warm_start import start_from

OPTIMISER_FILE = "optimiser.safetensors"
TOKENIZER_FILE = "tokenizer.json"
RECORD_FILE = "train.json"
VALIDATION_TOKENS = 65_536


@dataclass
class Trainer(Scheduled):
    """Trains a language model, and stores its progress.

    Attributes:
        run, corpus, out, device: Configuration, data, directory and device of the run.
        step, seconds: Number and duration of the completed steps.
        smooth: Running mean of the training loss of each mode.
        extended_at: Total numbers of steps before each extension of the run. At these steps, the learning rate changed
            abruptly.
        processes: Processes that train the model.
        begin_from: Model with whose weights a new run starts. If None, the weights are random.
        model, optimiser: Model that is being trained, and its optimiser.
    """

    run: LanguageRun
    corpus: Corpus
    out: Path
    device: torch.device
    step: int = 0
    seconds: float = 0.0
    smooth: dict[str, float] = field(default_factory=dict)
    extended_at: list[int] = field(default_factory=list)
    processes: Processes = ALONE
    begin_from: LanguageModel | None = None
    model: LanguageModel = field(init=False)
    optimiser: Optimiser = field(init=False)
    _compiled_loss: Loss | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        torch.manual_seed(self.run.training.seed)
        self.model = LanguageModel(self.run.model).to(self.device)
        is_resumed = (self.out / PROGRESS_FILE).is_file()
        if is_resumed:
            self.model = load_run(self.out).to(self.device)
        elif self.begin_from is not None:
            start_from(self.model, self.begin_from)
        self.model.train()
        if self.is_sharded:
            self.processes.shard(self.model)
        self.optimiser = Optimiser(self.model, self.run.training)
        if self.run.training.compile:
            if self.device.type != "cpu":
                self.model.compile_attention()
            elif has_compiler():
                self._compiled_loss = compiled_cross_entropy()
            else:
                warnings.warn("training is up to twice as slow without a C++ compiler; install g++", stacklevel=2)
        if is_resumed:
            progress = json.loads((self.out / PROGRESS_FILE).read_text())
            self.step, self.seconds = progress["step"], progress["seconds"]
            # Progress files of some versions lack these fields.
            self.smooth, self.extended_at = progress.get("smooth", {}), progress.get("extended_at", [])
            self.optimiser.load_state(load_file(self.out / OPTIMISER_FILE))

    @property
    def is_sharded(self) -> bool:
        """Whether each process stores only a part of the weights."""
        return self.run.training.fsdp and self.processes.count > 1

    @property
    def averaged(self) -> LanguageModel:
        """Model that is validated and saved. It is the running average of the weights if the configuration enables this
        average, and otherwise the trained model."""
        return cast(LanguageModel, self.optimiser.averaged)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Decoding modes that the run trains."""
        return self.run.training.modes or self.run.model.modes

    @property
    def modes_now(self) -> tuple[Mode, ...]:
        """Decoding modes that are trained at the current step."""
        config = self.run.training
        return self.modes if self.position >= config.recurrent_from * config.steps else ("attention",)

    @property
    def shares(self) -> dict[Mode, float]:
        """Weight of the loss of each mode at this step. The weights sum to one."""
        if len(self.modes_now) == 1:
            return dict.fromkeys(self.modes_now, 1.0)
        recurrent = self.run.training.recurrent_share
        return {"attention": 1 - recurrent, "recurrent": recurrent}

    def save(self) -> None:
        """Save the model, the optimiser and the progress. A resumed run gives the same results, bit for bit, as an
        uninterrupted one."""
        model, state = self.averaged, self.optimiser.state()
        if self.is_sharded:
            weights, state = gathered(model.state_dict()), gathered(state)
            model = LanguageModel(self.run.model)
            model.load_state_dict(weights)
        if not self.processes.is_first:
            return
        progress = {
            "step": self.step, "seconds": self.seconds, "smooth": self.smooth, "extended_at": self.extended_at,
        }  # fmt: skip
        with atomic_checkpoint(self.out) as folder:
            save_checkpoint(folder, "language", model)
            save_file(state, folder / OPTIMISER_FILE)
            (folder / PROGRESS_FILE).write_text(json.dumps(progress) + "\n")

    def extend(self, earlier_steps: int) -> None:
        """Continue a finished run of `earlier_steps` steps. Its record is removed, because the weights will change."""
        self.extended_at.append(earlier_steps)
        (self.out / RECORD_FILE).unlink(missing_ok=True)
        self.save()

    def update(self, inputs: Tensor, targets: Tensor, loss_of: Loss) -> dict[str, float]:
        """Perform one optimiser step, and return the loss of each mode. `inputs` and `targets` are token
        ids `[B, N]`."""
        config, parts = self.run.training, self.run.training.accumulation
        self.optimiser.zero_grad()
        self.model.passes = config.passes_of(self.step, self.run.model.inner)
        losses: dict[str, float] = dict.fromkeys(self.modes_now, 0.0)
        bfloat16 = uses_bfloat16(config.precision, self.device)
        for part in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            for mode in self.modes_now:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
                    tokens, following = (self._windows(rows, mode) for rows in part)
                    loss = loss_of(self.model, tokens, following, mode)
                # There is one backward pass per mode, so that only the activations of one mode are in memory.
                (loss * (self.shares[mode] / parts)).backward()
                losses[mode] += float(loss.detach()) / parts
        if not self.is_sharded:
            self.processes.average(self.model)
        losses = self.processes.mean(losses)
        if not all(math.isfinite(loss) for loss in losses.values()):
            raise FloatingPointError(f"the loss is {losses} at step {self.step}; the last checkpoint is intact")
        self.optimiser.step(self.position)
        self.step += 1
        return losses

    def _windows(self, rows: Tensor, mode: Mode) -> Tensor:
        """Split the rows `[B, N]` of a batch into the windows `[B', N']` of a mode."""
        config = self.run.training
        if config.own_rows and len(self.modes_now) == 2:
            recurrent = min(max(1, round(config.recurrent_share * len(rows))), len(rows) - 1)
            rows = rows[:recurrent] if mode == "recurrent" else rows[recurrent:]
        return rows.reshape(-1, config.context_of(mode))

    def validate(self) -> dict[str, float]:
        tokens, context = self.corpus.tokens("valid"), self.run.training.context_of
        self.averaged.passes = self.run.model.inner
        return {
            mode: validation_loss(self.averaged, tokens, context(mode), mode, VALIDATION_TOKENS) for mode in self.modes
        }

    def train(self) -> dict[str, float]:
        """Train to the last step, and return the final validation losses.

        Raises:
            Stopped: If a signal arrived. The current step is saved.
        """
        config = self.run.training
        blocks = Blocks(self.corpus.tokens("train"), config.context, config.batch, config.seed)
        validation: dict[str, float] = {}
        with (
            StopSignals() as signals,
            (self.out / METRICS_FILE if self.processes.is_first else Path(os.devnull)).open("a") as metrics,
            tqdm(total=config.steps, initial=round(self.position)) as bar,
        ):
            while not self.is_finished:
                started = time.perf_counter()
                inputs, targets = (self._own_rows(part) for part in blocks[self.step])
                losses = self.update(inputs, targets, self._compiled_loss or cross_entropy)
                self.seconds += time.perf_counter() - started
                for mode, loss in losses.items():
                    self.smooth[mode] = loss if mode not in self.smooth else 0.98 * self.smooth[mode] + 0.02 * loss
                bar.update(round(self.position) - bar.n)
                bar.set_postfix({mode: f"{loss:.3f}" for mode, loss in self.smooth.items()})
                if self.step % config.validate_every == 0 or self.is_finished:
                    validation = self.validate()
                    metrics.write(json.dumps(self._row(validation)) + "\n")
                    metrics.flush()
                    if self.processes.is_first:
                        write_events(self.out, self._row(validation))
                    self.save()
                signals.received = self.processes.largest(signals.received or 0) or None
                signals.check(round(self.position), config.steps, self.save)
        return validation or self.validate()

    def _own_rows(self, batch: np.ndarray) -> Tensor:
        return self.processes.rows(torch.from_numpy(batch)).to(self.device)

    def _row(self, validation: dict[str, float]) -> dict[str, Any]:
        """Return the next line of the metrics file."""
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
    field: str = FIELD,
    minutes: float | None = None,
    begin_from: Path | None = None,
) -> dict[str, Any]:
    """Train a language model on a corpus. If the run directory contains an unfinished run, it is resumed.

    A finished run is returned unchanged, or continued if the configuration has more steps.

    Args:
        config: Name of a packaged configuration, or path of a JSON file.
        data: Corpus: a directory that contains train and valid, a directory of files, or a file (`corpus.py`).
        out: Run directory for weights, tokenizer, metrics and record.
        variant: Name of a variant in `variants.json`.
        seed, steps, minutes: Values that replace those of the configuration.
        corpus_dir: Directory for the tokenised corpus, which runs may share. The default is inside `out`.
        device: "auto", "cpu" or "cuda".
        field: Field of the text in JSONL, Parquet and Arrow files.
        begin_from: Run or bundle whose weights and tokenizer a new run starts with.

    Returns:
        Record of the run, with validation losses, tokens seen, seconds and provenance.

    Raises:
        ValueError: If `out` contains another run, the text has too few tokens, or the device does not exist.
        Stopped: If a signal arrived. The run is saved; repeat the call to continue it.
    """
    path = find_config(config)
    run = LanguageRun.from_file(path, variant)
    given = {"seed": seed, "steps": steps, "minutes": minutes}
    overrides: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    run = replace(run, training=replace(run.training, **overrides))
    if are_sequences(files := split_files(data, "train")):
        run = replace(run, model=replace(run.model, vocab_size=event_tokenizer(files).get_vocab_size()))
    chosen = choose_device(device)
    with joined_processes() as processes:
        names = {"config_name": path.stem, "variant": variant}
        source = Source(data, field, corpus_dir or out / "corpus", begin_from)
        return _train(run, source, out, chosen, processes, **names)


class Source(NamedTuple):
    """Inputs of a run: corpus, field of its text, directory for the tokens, and run or bundle with the initial
    weights."""

    data: Path
    field: str
    tokens: Path
    begin_from: Path | None = None


def _train(
    run: LanguageRun,
    source: Source,
    out: Path,
    device: torch.device,
    processes: Processes,
    **names: str | None,
) -> dict[str, Any]:
    """Train on the rows of each batch that belong to this process, and return the record of the run."""
    if run.training.batch % (run.training.accumulation * processes.count):
        raise ValueError(f"batch must be a multiple of accumulation times {processes.count}, the number of processes")
    if run.training.minutes is not None and processes.count > 1:
        raise ValueError("minutes requires one process, because the clocks of processes differ; set steps instead")
    out.mkdir(parents=True, exist_ok=True)
    request, finished = out / REQUEST_FILE, out / RECORD_FILE
    is_extended = request.is_file() and _is_extended(out, run)
    if finished.is_file() and request.is_file() and not is_extended:
        return _finished(out, source.data)
    # The first process prepares the corpus. The others wait, then read it.
    if not processes.is_first:
        processes.wait()
    _save_tokenizer(out, corpus := _corpus(run, source, names["config_name"]))
    if processes.is_first:
        processes.wait()
    earlier = None if source.begin_from is None else load_model(source.begin_from)
    trainer = Trainer(run, corpus, out, device, processes=processes, begin_from=earlier)
    if is_extended:
        trainer.extend(json.loads(request.read_text())["training"]["steps"])
    processes.wait()  # the first process writes the request below, which the others must have read above
    if processes.is_first:
        request.write_text(json.dumps(run.to_dict(), indent=2) + "\n")
    record = _record(trainer, trainer.train(), source, **names)
    if processes.is_first:
        finished.write_text(json.dumps(record, indent=2) + "\n")
        plot_metrics(out)
    return record


def _corpus(run: LanguageRun, source: Source, config_name: str | None) -> Corpus:
    """Return the tokenised corpus. Its vocabulary must have the configured size, which export requires."""
    tokenizer = None if source.begin_from is None else Tokenizer.from_file(str(source.begin_from / TOKENIZER_FILE))
    corpus = prepare_corpus(source.data, source.tokens, run.model.vocab_size, source.field, tokenizer)
    if (found := corpus.tokenizer.get_vocab_size()) != run.model.vocab_size:
        raise ValueError(
            f"{config_name}: vocab_size is {run.model.vocab_size}, but the training text has {found} tokens; train "
            "on more text, or set vocab_size to this number"
        )
    return corpus


def _record(trainer: Trainer, validation: dict[str, float], source: Source, **names: str | None) -> dict[str, Any]:
    run = trainer.run
    began = {} if source.begin_from is None else {"from": file_hashes([source.begin_from / WEIGHTS_FILE])}
    return {
        "config": run.to_dict(),
        **names,
        **began,
        "validation_loss": validation,
        "bytes_per_token": trainer.corpus.bytes_per_token,
        "tokens": trainer.step * run.training.batch * run.training.context,
        "seconds": round(trainer.seconds, 1),
        "extended_at": trainer.extended_at,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        **provenance(_read_files(source.data), trainer.device),
    }


def _is_extended(out: Path, run: LanguageRun) -> bool:
    """Return whether the run in `out` differs from `run` only in having fewer steps. The parsed values are compared,
    because the request files of some versions lack fields."""
    found = LanguageRun.from_file(out / REQUEST_FILE)
    requested, earlier = ({**part.model.to_dict(), **part.training.to_dict()} for part in (run, found))
    return check_request(out, requested, earlier)


def _read_files(data: Path) -> list[Path]:
    return [file for split in trained_splits(data) for file in split_files(data, split)]


def _finished(out: Path, data: Path) -> dict[str, Any]:
    """Return the record of a finished run."""
    record: dict[str, Any] = json.loads((out / RECORD_FILE).read_text())
    if record["data"] != file_hashes(_read_files(data)):
        raise ValueError(
            f"{out} contains a run that was trained on files other than those in {data}; choose another --out"
        )
    tqdm.write(LEFT.format(out), file=sys.stderr)
    return record


def _save_tokenizer(out: Path, corpus: Corpus) -> None:
    """Write the tokenizer. If the directory contains an unfinished run, its tokenizer must be the same."""
    path, text = out / TOKENIZER_FILE, corpus.tokenizer.to_str(pretty=True)
    if (out / PROGRESS_FILE).is_file() and path.is_file() and json.loads(path.read_text()) != json.loads(text):
        raise ValueError(f"{out} contains a run that was started with different text; choose another --out")
    path.write_text(text)
