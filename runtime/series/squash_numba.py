"""The function asinh, which maps numbers of any size to inputs of the series network."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from rfa.runtime.compiling import inline_jit

# From this size on, sqrt(x² + 1) is x in float64, and x² may be infinite.
LARGE = 1e8


@inline_jit
def squash(x):
    """Return asinh(x) of a float64 as a float32. This takes half the time of the library function, and differs from it
    by a few units in the last place of a float64 of size 1."""
    size = abs(x)
    root = math.sqrt(size * size + 1) if size < LARGE else size
    return np.float32(math.copysign(math.log(size + root), x))
