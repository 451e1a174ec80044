"""Baselines of a language model: a unigram over the same tokens, and compressors on the same bytes."""

from __future__ import annotations

import gzip
import lzma
import math
from typing import Literal

import numpy as np

Compressor = Literal["gzip", "xz"]

# Window of each in bytes: RFC 1951, and the dictionary of xz at its highest preset.
WINDOWS: dict[Compressor, int] = {"gzip": 32 * 1024, "xz": 64 * 1024 * 1024}


def unigram(train: np.ndarray, test: np.ndarray, vocab_size: int, test_bytes: int) -> tuple[float, float]:
    """Return nats per token and bits per byte of an add-one unigram fitted on `train` and scored on `test`.

    With an empty `train` every token is equally likely. test_bytes: bytes of the test text.
    """
    train, test = np.asarray(train, np.int64), np.asarray(test, np.int64)
    if not test.size or test_bytes < 1:
        raise ValueError(f"the test text is empty: {test.size} tokens, {test_bytes} bytes")
    for name, ids in (("train", train), ("test", test)):
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ValueError(f"{name} ids must be in [0, {vocab_size}), got {ids.min()} to {ids.max()}")
    counts = np.bincount(train, minlength=vocab_size) + 1.0
    log_probability = np.log(counts / counts.sum())
    total = -float(log_probability[test].sum())
    return total / len(test), total / math.log(2) / test_bytes


def compressor_bits_per_byte(text: bytes, name: Compressor, *, prefix: bytes = b"") -> float:
    """Return bits per byte of the compressed text at the highest level.

    With `prefix`, the size is the growth of the compressed file when `text` is appended.
    """
    if not text:
        raise ValueError("the text is empty")
    context = prefix[-WINDOWS[name] :]
    before = len(_compressed(context, name)) if context else 0
    return 8 * (len(_compressed(context + text, name)) - before) / len(text)


def _compressed(text: bytes, name: Compressor) -> bytes:
    if name == "gzip":
        return gzip.compress(text, 9, mtime=0)
    return lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
