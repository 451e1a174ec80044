"""Perplexity and bits per byte of language models on a test text, by mode and context length.

Windows do not overlap, and each starts without context. All lengths score the same tokens. Bits per byte can be
compared between models with different vocabularies, and with compressors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tqdm import tqdm

from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.text.config import Mode
from rfa.training.corpus import END_OF_TEXT, encode_files

LENGTHS = (256, 1024, 4096)
# Number of tokens per batch, to bound the memory of the logits.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """Score of a model on a text, in one mode and with one context length.

    Attributes:
        mode, length: mode, and number of tokens per window.
        tokens: number of tokens scored.
        nats_per_token, perplexity: mean loss, and its exponential.
        bits_per_byte: mean loss in bits per byte of the text.
    """

    mode: str
    length: int
    tokens: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of bytes of each token, `[V]`. It is one per character of the byte-level BPE, and zero for
    end-of-text.
    """
    sizes = np.zeros(tokenizer.get_vocab_size(), np.int64)
    for token, index in tokenizer.get_vocab().items():
        sizes[index] = 0 if token == END_OF_TEXT else len(token)
    return sizes


@torch.no_grad()
def window_losses(
    model: LanguageModel,
    tokens: np.ndarray,
    length: int,
    mode: Mode,
    *,
    scored: int | None = None,
    first: int = 0,
) -> np.ndarray:
    """Return the loss in nats of every scored token, `[windows, scored]`.

    Args:
        length: number of tokens per window. Windows start without context.
        scored: number of predictions that are scored at the end of each window, which is also the step between windows.
            By default all are scored, without overlap.
        first: index of the token before the first scored token. It must be at least `length - scored`, so that the
            first window starts within the text.
    """
    model.mode = mode
    scored = scored or length
    start = first + scored - length
    count = (len(tokens) - 1 - first) // scored
    if start < 0:
        raise ValueError(f"a window of {length} tokens that scores {scored} needs first >= {length - scored}")
    if count < 1:
        raise ValueError(f"the text has {len(tokens)} tokens, but one window needs {start + length + 1}")
    device = model.embedding.weight.device
    ids = torch.from_numpy(np.asarray(tokens[start : start + length + (count - 1) * scored + 1], np.int64))
    windows = ids.unfold(0, length + 1, scored)  # [windows, length + 1]
    rows = max(1, BATCH_TOKENS // length)
    losses = []
    for i in tqdm(range(0, count, rows), desc=f"{mode} {length}", leave=False):
        batch = windows[i : i + rows].to(device)
        logits = model(batch[:, :-1], with_precision=False).logits[:, -scored:]
        target = batch[:, -scored:]
        nats = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        losses.append(nats.reshape(target.shape).cpu())
    return torch.cat(losses).numpy().astype(np.float64)


def score(losses: np.ndarray, targets: np.ndarray, sizes: np.ndarray, mode: str, length: int) -> Score:
    """Aggregate the losses of the scored `targets` (token ids)."""
    total = float(losses.sum())
    nats = total / losses.size
    bits = total / math.log(2) / float(sizes[targets].sum())
    return Score(mode, length, losses.size, nats, math.exp(nats), bits)


def evaluate_model(
    path: Path, files: list[Path], *, lengths: tuple[int, ...] = LENGTHS, limit: int | None = None
) -> list[Score]:
    """Score a run or bundle on text files in all its modes.

    Args:
        path: run or bundle directory with tokenizer.json.
        lengths: context lengths. The scored tokens are truncated to a multiple of the longest one.
        limit: maximum number of tokens to score.

    Raises:
        ValueError: If the text or the limit is shorter than the longest context.
    """
    if limit is not None and limit < max(lengths):
        raise ValueError(f"--limit {limit} is less than the longest context; it must be at least {max(lengths)}")
    model: LanguageModel = load_model(path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = encode_files(tokenizer, files)
    usable = min(len(tokens) - 1, limit or len(tokens)) // max(lengths) * max(lengths)
    if usable == 0:
        raise ValueError(f"the text has {len(tokens)} tokens, but the longest context needs {max(lengths) + 1}")
    tokens = tokens[: usable + 1]
    sizes, targets = token_bytes(tokenizer), np.asarray(tokens[1:], np.int64)
    return [
        score(window_losses(model, tokens, length, mode), targets, sizes, mode, length)
        for mode in model.config.modes
        for length in lengths
    ]
