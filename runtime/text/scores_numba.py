"""Log normalisers and scores of rows of logits on one CPU core. They are computed in two passes over each row."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from rfa.runtime.compiling import kernel_jit, run_with_locks
from rfa.runtime.text import math_numba
from rfa.runtime.text.math_numba import ONE, ZERO, exp

# Columns of the result.
NORMALISER, CALIBRATED, ENTROPY, TAIL, RANK = range(5)
# Number of terms that are summed in float32 before they are added to a float64 sum.
BLOCK = 256
_SIGNATURE = "void(float32[:,::1], int64[::1], float32, float64[:,::1])"


@kernel_jit(math_numba, fastmath={"reassoc", "contract", "nsz"})
def score_rows(logits, tokens, temperature, out):
    """Compute the scores of one token per row, as `scores.py` defines them.

    Args:
        logits: Logits, `[N, V]`.
        tokens: Tokens, `[N]`.
        temperature: Calibrated temperature.
        out: Output, `[N, 5]`: the log normalisers of logits and of logits / temperature, the entropy, the tail and the
            rank. The normalisers of a row that contains a non-finite number are not finite.
    """
    is_scaled = temperature != ONE
    for i in range(logits.shape[0]):
        row = logits[i]
        token = tokens[i]
        own, top = row[token], row[0]
        for j in range(row.size):
            top = max(top, row[j])
        warm_top = top / temperature
        total = moment = calibrated = tail = above = equal = np.float64(0)
        for start in range(0, row.size, BLOCK):
            part_total = part_moment = part_calibrated = part_tail = part_above = part_equal = ZERO
            for j in range(start, min(start + BLOCK, row.size)):
                value = row[j]
                away = value - top
                weight = exp(away)
                warm = exp(value / temperature - warm_top) if is_scaled else weight
                part_total += weight
                part_moment += weight * away
                part_calibrated += warm
                part_tail += warm if value <= own else ZERO
                part_above += ONE if value > own else ZERO
                part_equal += ONE if value == own else ZERO
            total += part_total
            moment += part_moment
            calibrated += part_calibrated
            tail += part_tail
            above += part_above
            equal += part_equal
        if equal > 1:  # ties are ordered by index
            for j in range(token):
                above += row[j] == own
        out[i, 0] = np.float64(top) + math.log(total)
        out[i, 1] = np.float64(warm_top) + math.log(calibrated)
        out[i, 2] = max(math.log(total) - moment / total, 0.0)
        out[i, 3] = min(tail / calibrated, 1.0)
        out[i, 4] = 1 + above


@functools.cache
def compile_kernels() -> None:
    """Compile the kernel, or load it from the cache on disk, once per process."""
    run_with_locks([(sys.modules[__name__], _compile)])


@functools.cache  # threads that call at the same time enter one after another
def _compile() -> None:
    kernel: Any = score_rows
    kernel.compile(_SIGNATURE)
    kernel.disable_compile()
