"""Measure perplexity and bits per byte of language models on a test text, by mode and context length.

Windows do not overlap, and each starts without context. All lengths score the same tokens. Bits per byte can be
compared between models with different vocabularies, and with compressors.

`evaluate_passes` compares the numbers of reweighting passes K of the recurrent mode. The cost is the CPU time of the
compiled decoder, which processes recurrent streams on a CPU.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tqdm import tqdm

from rfa.model.decoder_constants import decoder_constants
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.text.compiled_decoder import CompiledDecoder, Slots
from rfa.runtime.text.config import Mode
from rfa.training.corpus import END_OF_TEXT, encode_files

LENGTHS = (256, 1024, 4096)
# Number of rounds in the measurement of costs, tokens of the prompt, and decoded tokens in a round.
ROUNDS, PROMPT_TOKENS, STEPS = 30, 256, 20
# Number of tokens per batch, to bound the memory of the logits.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """Score of a model on a text, in one mode and with one context length.

    Attributes:
        mode: Mode of the model.
        length: Number of tokens per window.
        tokens: Number of scored tokens.
        nats_per_token, perplexity: Mean loss, and its exponential.
        bits_per_byte: Mean loss in bits per byte of the text.
    """

    mode: str
    length: int
    tokens: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True)
class PassesScore:
    """Quality and cost of the recurrent mode with a number of reweighting passes.

    Attributes:
        passes: Number of reweighting passes.
        score: Score on the test text.
        prompt_us, step_us: Microseconds of CPU time per token on one core, in a prompt and in decoding one stream. None
            if compiled code does not support the model.
    """

    passes: int
    score: Score
    prompt_us: float | None
    step_us: float | None


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of bytes of each token, `[V]`. The end-of-text token has no bytes."""
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
        model: The language model.
        tokens: Token ids of the text, `[T]`.
        length: Number of tokens per window. Windows start without context.
        mode: Mode of the model.
        scored: Number of predictions that are scored at the end of each window, which is also the distance between the
            starts of windows. By default all predictions are scored, and windows do not overlap.
        first: Index of the token before the first scored token. It must be at least `length - scored`, so that the
            first window starts within the text.
    """
    model.mode = mode
    scored = scored or length
    start = first + scored - length
    count = (len(tokens) - 1 - first) // scored
    if start < 0:
        raise ValueError(
            f"windows of {length} tokens, {scored} of them scored, require first >= {length - scored}, got {first}"
        )
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
    """Return the `Score` that summarises the losses of the scored tokens.

    Args:
        losses: Loss of each scored token, in nats.
        targets: Token ids of the scored tokens.
        sizes: Number of bytes of each token of the vocabulary, `[V]`.
        mode, length: Mode of the model, and number of tokens per window.
    """
    total = float(losses.sum())
    nats = total / losses.size
    bits = total / math.log(2) / float(sizes[targets].sum())
    return Score(mode, length, losses.size, nats, math.exp(nats), bits)


def evaluate_model(
    path: Path, files: list[Path], *, lengths: tuple[int, ...] = LENGTHS, limit: int | None = None
) -> list[Score]:
    """Score a run or bundle on text files in all its modes, and return one score per mode and context length.

    Args:
        path: Directory of a run or bundle with tokenizer.json.
        files: Text files.
        lengths: Context lengths. The number of scored tokens is a multiple of the longest one.
        limit: Maximum number of tokens to score.

    Raises:
        ValueError: If the text or the limit is shorter than the longest context.
    """
    model: LanguageModel = load_model(path)
    tokens, sizes = _test_tokens(path, files, max(lengths), limit)
    targets = np.asarray(tokens[1:], np.int64)
    return [
        score(window_losses(model, tokens, length, mode), targets, sizes, mode, length)
        for mode in model.config.modes
        for length in lengths
    ]


def evaluate_passes(
    path: Path, files: list[Path], *, length: int = LENGTHS[-1], limit: int | None = None
) -> list[PassesScore]:
    """Score the recurrent mode of a run or bundle with each number of reweighting passes, and measure its cost. Return
    one score per number of passes.

    Args:
        path, files, limit: See `evaluate_model`.
        length: Context length.

    Raises:
        ValueError: If the text or the limit is shorter than the context, or the model has no recurrent mode.
    """
    model: LanguageModel = load_model(path)
    if "recurrent" not in model.config.modes:
        raise ValueError(f"a {model.config.mixer} model has no recurrent mode, so it has no reweighting passes")
    tokens, sizes = _test_tokens(path, files, length, limit)
    targets, most = np.asarray(tokens[1:], np.int64), model.config.inner
    costs = _costs(model, targets)
    found = []
    for passes in range(1, most + 1):
        model.passes = passes
        scored = score(window_losses(model, tokens, length, "recurrent"), targets, sizes, "recurrent", length)
        found.append(PassesScore(passes, scored, *costs.get(passes, (None, None))))
    return found


def _test_tokens(path: Path, files: list[Path], longest: int, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the test text and the size of each token of the vocabulary in bytes. The number of tokens is
    one more than a multiple of `longest`."""
    if limit is not None and limit < longest:
        raise ValueError(f"--limit {limit} is less than the longest context; it must be at least {longest}")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = encode_files(tokenizer, files)
    usable = min(len(tokens) - 1, limit or len(tokens)) // longest * longest
    if usable == 0:
        raise ValueError(f"the text has {len(tokens)} tokens, but the longest context needs {longest + 1}")
    return tokens[: usable + 1], token_bytes(tokenizer)


@torch.no_grad()
def _costs(model: LanguageModel, tokens: np.ndarray) -> dict[int, tuple[float, float]]:
    """Return the microseconds per token of a prompt, and of a decoding step of one stream, for each number of passes.

    Each round measures all numbers of passes, so that changes in the speed of the machine affect all of them. The
    results are medians.
    """
    config = model.config
    if config.innovation != "key" or config.window or config.confidence != "none":
        return {}
    weights = {name: tensor.cpu().numpy() for name, tensor in model.state_dict().items()}
    constants = {name: tensor.cpu().numpy() for name, tensor in decoder_constants(model).items()}
    decoder, start = CompiledDecoder(weights, constants), model.init_state(2)
    slots = Slots(start.means.cpu().numpy().copy(), start.precisions.cpu().numpy().copy())
    noise = np.zeros((1, config.n_heads, 2 * config.head_dim), np.float32)
    rows, prompt = (np.array([0]), np.array([1])), np.resize(tokens, PROMPT_TOKENS)
    samples: dict[int, list[tuple[float, float]]] = {passes: [] for passes in range(1, config.inner + 1)}
    for _ in range(ROUNDS):
        for passes, times in samples.items():
            begun = time.thread_time()
            decoder.prefill(prompt, 0, slots, 0, 1, passes=passes)
            read = time.thread_time()
            for step in range(STEPS):
                position = np.array([PROMPT_TOKENS + step])
                decoder.step(prompt[step : step + 1], position, noise, slots, *rows, passes=np.array([passes]))
            times.append((read - begun, time.thread_time() - read))
    return {
        passes: (1e6 * float(prompts) / PROMPT_TOKENS, 1e6 * float(steps) / STEPS)
        for passes, times in samples.items()
        for prompts, steps in [np.median(times, axis=0)]
    }
