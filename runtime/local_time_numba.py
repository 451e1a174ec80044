"""Compute local time in compiled code from the UTC offsets of a request (`rfa.data.utc_offsets`)."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from rfa.runtime.compiling import inline_jit


@inline_jit
def utc_offset(utc_offsets, t):
    """Return local time minus UTC at time t, according to `OutputSpec.utc_offsets`. Return 0 if there are no
    offsets."""
    if len(utc_offsets) == 0:
        return 0.0
    low, high = 0, len(utc_offsets)
    while high - low > 1:
        middle = (low + high) // 2
        if utc_offsets[middle, 0] <= t:
            low = middle
        else:
            high = middle
    return utc_offsets[low, 1]
