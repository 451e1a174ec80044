"""Small untrained language models as runs and bundles, for tests of export and service."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rfa.export.language_export import export_language
from rfa.model.checkpoint import save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.text.config import LanguageModelConfig

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "
SIZE: dict[str, Any] = {"d_model": 24, "n_layers": 2, "n_heads": 2, "head_dim": 6, "n_slots": 3, "mlp_ratio": 2}
BOTH: dict[str, Any] = {"own_readout": True, "output_gate": True}
# One layer, because each is traced anew for three graphs; the model of BOTH has two.
PASSES: dict[str, Any] = {**BOTH, "n_layers": 1, "inner": 3}
# Options of a model without slots, with the Student-t kernel.
ATTENTION_ONLY: dict[str, Any] = {
    "n_slots": 0, "prior": "additive", "rotate_values": False, "unit_norm": True, "learned_decay": True,
    "output_gate": True,
}  # fmt: skip


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT * 3], trainer)
    return tokenizer


def write_run(directory: Path, model: dict[str, Any], tokens: int = 2000) -> Path:
    """Write a run directory as training does, with random weights and non-trivial noises and norms.

    Args:
        model: Changes of the configuration `SIZE`.
        tokens: Tokens of the validation split.
    """
    torch.manual_seed(0)
    directory.mkdir(parents=True)
    tokenizer = _tokenizer()
    config = LanguageModelConfig(vocab_size=tokenizer.get_vocab_size(), **{**SIZE, **model})
    made = LanguageModel(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_checkpoint(directory, "language", made)
    tokenizer.save(str(directory / "tokenizer.json"))
    record = {
        "config": {"model": config.to_dict(), "training": {"steps": 0, "context": 32}},
        "validation_loss": dict.fromkeys(config.modes, 5.0),
        "bytes_per_token": {"train": 3.0, "valid": 3.0},
        "tokens": 0,
        "seconds": 0.0,
        "parameters": sum(parameter.numel() for parameter in made.parameters()),
        "data": {"text.txt": "0" * 64},
        "commit": None,
        "versions": {"torch": torch.__version__},
        "device": "cpu",
    }
    (directory / "train.json").write_text(json.dumps(record))
    (directory / "corpus").mkdir()
    ids = np.random.default_rng(0).integers(0, config.vocab_size, tokens).astype(np.uint16)
    np.save(directory / "corpus" / "valid.npy", ids)
    return directory


def made_once(home: Path, name: str, make: Callable[[Path], Bundle]) -> Bundle:
    """Return a bundle that is expensive to make. The first process that needs it makes it."""
    path = home / "exported" / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also if the process dies
        return open_bundle(path) if path.exists() else make(path)


def exported(home: Path, name: str, model: dict[str, Any]) -> Bundle:
    """Export the bundle of a small model.

    Args:
        home: The fixture `bundle_cache`.
    """
    run = home / "runs" / name

    def export(path: Path) -> Bundle:
        shutil.rmtree(run, ignore_errors=True)  # of a process that died
        return export_language(write_run(run, model), path, window=32)

    return made_once(home, name, export)
