"""What a language model must beat: a unigram over the same tokens, and general-purpose compressors on the same
bytes.
"""

from __future__ import annotations

import gzip
import lzma
import math
from typing import Literal

import numpy as np


def unigram(train: np.ndarray, test: np.ndarray, vocab_size: int, test_bytes: int) -> tuple[float, float]:
    """Add-one unigram fitted on train, scored on test.

    Args:
        train, test: token ids.
        test_bytes: bytes the test tokens stand for.

    Returns:
        nats per token, bits per byte.
    """
    counts = np.bincount(np.asarray(train, np.int64), minlength=vocab_size) + 1.0
    log_probability = np.log(counts / counts.sum())
    total = -float(log_probability[np.asarray(test, np.int64)].sum())
    return total / len(test), total / math.log(2) / test_bytes


def compressor_bits_per_byte(text: bytes, name: Literal["gzip", "xz"]) -> float:
    """Bits per byte of the whole text at the highest level."""
    if not text:
        raise ValueError("the text is empty")
    packed = gzip.compress(text, 9, mtime=0) if name == "gzip" else lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    return 8 * len(packed) / len(text)
