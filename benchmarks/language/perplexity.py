"""Perplexity of language models and of baselines on a test text: results/language.json.

python -m rfa.benchmarks.language.perplexity NAME=DIR … --data CORPUS --out FILE
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.language.baselines import compressor_bits_per_byte, unigram
from rfa.measured import origin
from rfa.model.loading import load_model
from rfa.training.corpus import encode_files, file_hashes, split_files
from rfa.training.evaluate.language import evaluate_model, evaluate_passes, token_bytes


def evaluate_baselines(tokenizer_file: Path, data: Path) -> dict[str, Any]:
    """Score a unigram over the same tokens and compressors on the same bytes."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    train, test = (encode_files(tokenizer, split_files(data, split)) for split in ("train", "test"))
    sizes = token_bytes(tokenizer)
    seen, text = (b"".join(path.read_bytes() for path in split_files(data, split)) for split in ("train", "test"))
    nats, bits = unigram(train, test, tokenizer.get_vocab_size(), int(sizes[np.asarray(test, np.int64)].sum()))
    return {
        "unigram": {"nats_per_token": nats, "perplexity": math.exp(nats), "bits_per_byte": bits},
        "gzip": {"bits_per_byte": compressor_bits_per_byte(text, "gzip")},
        "xz": {"bits_per_byte": compressor_bits_per_byte(text, "xz")},
        # The prefix is the training text of the models; this takes minutes.
        "xz_after_train": {"bits_per_byte": compressor_bits_per_byte(text, "xz", prefix=seen)},
    }


def report(models: dict[str, Path], data: Path, *, limit: int | None = None) -> dict[str, Any]:
    """Score every model in every mode and length, with each number of reweighting passes if it has several, and
    baselines with the tokenizer of the first model."""
    files = split_files(data, "test")
    first = next(iter(models.values()))
    return {
        **origin("python -m rfa.benchmarks.language.perplexity"),
        "data": file_hashes(files),
        "models": {
            name: {
                "parameters": sum(parameter.numel() for parameter in load_model(path).parameters()),
                "scores": [asdict(row) for row in evaluate_model(path, files, limit=limit)],
                "passes": _passes(path, files, limit),
            }
            for name, path in models.items()
        },
        "baselines": evaluate_baselines(first / "tokenizer.json", data),
    }


def _passes(path: Path, files: list[Path], limit: int | None) -> list[dict[str, Any]]:
    """Compare the numbers of reweighting passes of a model, if there are several."""
    if not load_model(path).config.takes_passes:
        return []
    return [asdict(row) for row in evaluate_passes(path, files, limit=limit)]


def main() -> None:
    """Write the report; see the module's docstring."""
    options = parser(__doc__, "language", needs_data=True)
    options.add_argument("models", nargs="+", metavar="NAME=DIR", help="a run or a bundle; the first one's tokenizer")
    options.add_argument("--limit", type=int, help="maximum number of scored tokens")
    given = options.parse_args()
    pairs = [model.partition("=") for model in given.models]
    if not all(name and path for name, _, path in pairs):
        options.error("give every model as NAME=DIR")
    finish("language", given.out, report({name: Path(path) for name, _, path in pairs}, given.data, limit=given.limit))


if __name__ == "__main__":
    main()
