"""Copies in compiled loops. Slice assignment compiles slowly in numba (about 1 s per kernel)."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from rfa.runtime.compiling import inline_jit


@inline_jit
def copy3(source, target):
    """Copy an array of three dimensions."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            for k in range(source.shape[2]):
                target[i, j, k] = source[i, j, k]


@inline_jit
def copy2(source, target):
    """Copy an array of two dimensions."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@inline_jit
def copy1(source, target):
    """Copy an array of one dimension."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@inline_jit
def clear(target):
    """Set an array of two dimensions to 0."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] = 0.0
