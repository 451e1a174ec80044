"""Perplexity and bits per byte of language models on a test text, by mode and context length.

Windows do not overlap, and each starts without context. All lengths score the same tokens. Bits per byte compare models
with different vocabularies, and compressors.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tqdm import tqdm

from rfa.measured import origin, write_result
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.text.config import Mode
from rfa.training.corpus import END_OF_TEXT, encode_files, file_hashes, split_files
from rfa.training.evaluate.baselines import compressor_bits_per_byte, unigram

LENGTHS = (256, 1024, 4096)
# Tokens of a batch, to bound the memory of logits.
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """nats per token, its perplexity, bits per byte of the text, and the number of tokens scored."""

    mode: str
    length: int
    tokens: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of each token, `[V]`: byte-level BPE has a character per byte; end-of-text has none."""
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
    """Nats of every scored token, `[windows, scored]`.

    Args:
        length: tokens of a window, which starts without context.
        scored: predictions scored at the end of each window, and step between windows; default: all, without overlap.
        first: index of the last token before the first scored one; the first window starts in the text.
    """
    model.mode = mode
    scored = scored or length
    start = first + scored - length
    count = (len(tokens) - 1 - first) // scored
    if start < 0:
        raise ValueError(f"a window of {length} tokens that scores {scored} needs first >= {length - scored}")
    if count < 1:
        raise ValueError(f"the text has {len(tokens)} tokens, one window needs {start + length + 1}")
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
    """Aggregate the losses of the scored `targets` (ids, same count)."""
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
        lengths: context lengths; scored tokens are cut to a multiple of the longest.
        limit: most tokens to score.

    Raises:
        ValueError: the text or the limit is shorter than the longest context.
    """
    if limit is not None and limit < max(lengths):
        raise ValueError(f"--limit {limit} is less than the longest context; it must be at least {max(lengths)}")
    model: LanguageModel = load_model(path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = encode_files(tokenizer, files)
    usable = min(len(tokens) - 1, limit or len(tokens)) // max(lengths) * max(lengths)
    if usable == 0:
        raise ValueError(f"the text has {len(tokens)} tokens; the longest context needs {max(lengths) + 1}")
    tokens = tokens[: usable + 1]
    sizes, targets = token_bytes(tokenizer), np.asarray(tokens[1:], np.int64)
    return [
        score(window_losses(model, tokens, length, mode), targets, sizes, mode, length)
        for mode in model.config.modes
        for length in lengths
    ]


def evaluate_baselines(tokenizer_file: Path, data: Path) -> dict[str, Any]:
    """Unigram over the same tokens, and compressors on the same bytes."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    train, test = (encode_files(tokenizer, split_files(data, split)) for split in ("train", "test"))
    sizes = token_bytes(tokenizer)
    seen, text = (b"".join(path.read_bytes() for path in split_files(data, split)) for split in ("train", "test"))
    nats, bits = unigram(train, test, tokenizer.get_vocab_size(), int(sizes[np.asarray(test, np.int64)].sum()))
    return {
        "unigram": {"nats_per_token": nats, "perplexity": math.exp(nats), "bits_per_byte": bits},
        "gzip": {"bits_per_byte": compressor_bits_per_byte(text, "gzip")},
        "xz": {"bits_per_byte": compressor_bits_per_byte(text, "xz")},
        # With the training text of the models as prefix; takes minutes.
        "xz_after_train": {"bits_per_byte": compressor_bits_per_byte(text, "xz", prefix=seen)},
    }


def report(models: dict[str, Path], data: Path, *, limit: int | None = None) -> dict[str, Any]:
    """Scores of every model in every mode and length, and baselines with the first model's tokenizer."""
    files = split_files(data, "test")
    first = next(iter(models.values()))
    return {
        **origin("python -m rfa.training.evaluate.language"),
        "data": file_hashes(files),
        "models": {
            name: {
                "parameters": sum(parameter.numel() for parameter in load_model(path).parameters()),
                "scores": [asdict(row) for row in evaluate_model(path, files, limit=limit)],
            }
            for name, path in models.items()
        },
        "baselines": evaluate_baselines(first / "tokenizer.json", data),
    }


def main() -> None:
    """`python -m rfa.training.evaluate.language books=bundles/books rope=runs/books_rope --data CORPUS --out FILE`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=DIR", help="a run or a bundle; the first one's tokenizer")
    parser.add_argument("--data", type=Path, required=True, help="corpus folder with train and test")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, help="score at most so many tokens")
    arguments = parser.parse_args()
    pairs = [model.partition("=") for model in arguments.models]
    if not all(name and path for name, _, path in pairs):
        parser.error("give every model as NAME=DIR")
    models = {name: Path(path) for name, _, path in pairs}
    write_result(arguments.out, report(models, arguments.data, limit=arguments.limit))


if __name__ == "__main__":
    main()
