"""An untrained run of a tiny language model with its own tokenizer and text."""

from __future__ import annotations

from pathlib import Path

import torch

from rfa.model.checkpoint import save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.corpus import train_tokenizer

TEXT = "the cat sat on the mat — naïve. " * 60


def make_run(directory: Path, inner: int = 1) -> Path:
    """Write `text.txt`, `tokenizer.json` and the model into a folder, which is returned."""
    (directory / "text.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = train_tokenizer([directory / "text.txt"], 280)
    tokenizer.save(str(directory / "tokenizer.json"))
    torch.manual_seed(0)
    config = LanguageModelConfig(
        tokenizer.get_vocab_size(), d_model=16, n_layers=1, n_heads=2, head_dim=4, n_slots=2, inner=inner
    )
    save_checkpoint(directory, "language", LanguageModel(config))
    return directory
