"""Compute the loss of a language model, in training and on validation text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.language import LanguageModel
from rfa.runtime.text.config import Mode

Loss = Callable[[LanguageModel, Tensor, Tensor, Mode], Tensor]


def has_compiler() -> bool:
    """Return whether torch.compile finds a C++ compiler, which is the value of CXX, g++ or clang++."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def cross_entropy(model: LanguageModel, inputs: Tensor, targets: Tensor, mode: Mode) -> Tensor:
    """Return the mean loss in nats per token in one mode."""
    model.mode = mode
    return _mean_loss(model, inputs, targets)


def _mean_loss(model: LanguageModel, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs, with_precision=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compiled_cross_entropy() -> Loss:
    """Return `cross_entropy`, compiled for training."""
    compiled = torch.compile(_mean_loss)

    def loss(model: LanguageModel, inputs: Tensor, targets: Tensor, mode: Mode) -> Tensor:
        model.mode = mode
        found: Tensor = compiled(model, inputs, targets)
        return found

    return loss


@torch.no_grad()
def validation_loss(model: LanguageModel, tokens: np.ndarray, context: int, mode: Mode, limit: int) -> float:
    """Return the mean loss in nats per token over non-overlapping windows of the first `limit` tokens."""
    model.eval()
    count = min(len(tokens) - 1, limit) // context
    if count < 1:
        raise ValueError(f"the validation split has {len(tokens)} tokens, but one window needs {context + 1}")
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
