"""Attention matrices of trained models (RFA F.3, figures 11 to 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfa.benchmarks.figures import MANY, panels, save
from rfa.model.attention.reference import relative_attention
from rfa.model.dynamics import decay
from rfa.model.language import LanguageModel
from rfa.model.mixing import PairMixer, Pairs

# Decades below the largest weight of a map that its colours show.
DECADES = 4.0
PIXELS = 128


@torch.no_grad()
def last_weights(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return the attention weights `[H, N, N]` of the last layer for tokens `[N]`.

    The weights of RFA are those before the decay, as in the paper.
    """
    blocks: Any = model.blocks
    hidden: Tensor = model.embedding(tokens[None]) * model.config.d_model**0.5
    for block in blocks[:-1]:
        mixed = block.mixer.attention(block.mixer_norm(hidden), with_precision=False)
        hidden = block.finish(hidden, mixed.out, "attention")
    mixer, x = blocks[-1].mixer, blocks[-1].mixer_norm(hidden)
    heads, length = model.config.n_heads, len(tokens)
    index = torch.arange(length)
    # Values that tell the keys apart: what is read of them are the weights.
    values = torch.eye(length, dtype=torch.float64)[None, :, None].expand(1, length, heads, length)
    if isinstance(mixer, PairMixer):
        q, k, _ = (part.double() for part in mixer.rows(x, index[None]))
        found: Tensor = mixer.read(q, k, values, Pairs(index[None], index[None]), with_precision=False)[0]
        return found[0].transpose(0, 1)
    dynamics = mixer.dynamics().to(torch.float64)
    q, k, _ = (part.double() for part in mixer.rotated(x, mixer.phase(index), "attention"))
    result = relative_attention(q, k, values, dynamics, kernel=model.config.kernel, prior=model.config.prior)
    return result.out[0].transpose(0, 1) / decay(dynamics.mu, (index[:, None] - index).clamp_min(0))


def pooled(weights: np.ndarray) -> np.ndarray:
    """Return a matrix of PIXELS², of the largest weight in each of its cells."""
    side = len(weights) // PIXELS
    cells: np.ndarray = weights[: side * PIXELS, : side * PIXELS].reshape(PIXELS, side, PIXELS, side).max((1, 3))
    return cells


def draw_maps(models: dict[str, LanguageModel], tokens: Tensor, path: Path) -> None:
    """Draw a row of heads for each model, on a logarithmic scale."""
    heads = next(iter(models.values())).config.n_heads
    figure, grid = panels(len(models), heads, (1.35 * heads, 1.5 * len(models)))
    for number, (row, (name, model)) in enumerate(zip(grid, models.items(), strict=True)):
        for head, (axes, weights) in enumerate(zip(row, last_weights(model, tokens).numpy(), strict=True)):
            shown = np.log10(np.maximum(pooled(weights), 1e-30))
            axes.imshow(shown, cmap="magma", vmin=shown.max() - DECADES, vmax=shown.max(), interpolation="nearest")
            axes.set(xticks=[], yticks=[], title="" if number else f"head {head + 1}")
            axes.title.set_fontsize(7)
        row[0].set_ylabel(name, fontsize=8)
    save(figure, path, MANY)
