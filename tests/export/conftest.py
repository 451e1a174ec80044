"""One small language model, trained by nobody, exported once for the tests of this folder."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rfa.export.bundle import Bundle, open_bundle
from rfa.export.language_export import export_language
from rfa.model.checkpoint import save_checkpoint
from rfa.model.config import LanguageModelConfig
from rfa.model.language import LanguageModel

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "


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


def write_run(directory: Path, seed: int = 0) -> Path:
    """A run directory as training leaves it; random weights, with learned-looking noises and norms."""
    torch.manual_seed(seed)
    directory.mkdir(parents=True)
    tokenizer = _tokenizer()
    config = LanguageModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=24,
        n_layers=2,
        n_heads=2,
        head_dim=6,
        n_slots=3,
        mlp_ratio=2,
        own_readout=True,
        output_gate=True,
    )
    model = LanguageModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_checkpoint(directory, "language", model)
    tokenizer.save(str(directory / "tokenizer.json"))
    record = {
        "config": {"model": config.to_dict(), "training": {"steps": 0, "context": 32}},
        "validation_loss": {"attention": 5.0, "recurrent": 5.0},
        "bytes_per_token": {"train": 3.0, "valid": 3.0},
        "tokens": 0,
        "seconds": 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": {"text.txt": "0" * 64},
        "commit": None,
        "versions": {"torch": torch.__version__},
        "device": "cpu",
    }
    (directory / "train.json").write_text(json.dumps(record))
    (directory / "corpus").mkdir()
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, 2000).astype(np.uint16)
    np.save(directory / "corpus" / "valid.npy", ids)
    return directory


@pytest.fixture(scope="session")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(scope="session")
def language_bundle(language_run: Path, of_all_workers: Path) -> Bundle:
    """Exported by the worker that needs it first: the tracer takes longer than all the tests of the bundle together."""
    path = of_all_workers / "exported" / "small"
    with (of_all_workers / "exported.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back with the file, also by a process that dies
        return open_bundle(path) if path.exists() else export_language(language_run, path, window=32)
