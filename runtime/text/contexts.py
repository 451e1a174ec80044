"""Contexts of streams. A context is the state of a model after the tokens of a stream, and can be updated with more
tokens.

A recurrent context consists of a few memory slots per head, of constant size, in a pool. An attention context is a
cache of rotated keys and values with a capacity in tokens. The graph reads only its valid part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.pool import DoubleBufferedPool, StatePool

Array = NDArray[np.float32]


class StepOutput(NamedTuple):
    """Outputs of the model for the last token of each row."""

    logits: Array  # [B, V]
    log_precision: Array  # [B]
    latent: Array  # [B, H, 2D]


class Context(Protocol):
    """State of a model after the tokens of a stream. The owner must release it exactly once."""

    position: int  # number of processed tokens

    def fork(self) -> Context:
        """Return an independent copy, which can be continued separately."""

    def release(self) -> None:
        """Free the memory of the context."""


class Advance(Protocol):
    """An update of a context with more tokens. It takes effect when it is committed."""

    def is_finite(self) -> bool:
        """Return whether all numbers of the new state are finite."""

    def commit(self) -> None:
        """Apply the update to its context."""


@dataclass(frozen=True)
class CheckedAdvance:
    """An update whose new numbers have been checked. `finite` states whether all of them are finite."""

    finite: bool = field(kw_only=True)

    def is_finite(self) -> bool:
        return self.finite


class SlotContext:
    """Recurrent context of one stream. It consists of a few memory slots per head, stored in a slot of the model's
    pool.

    Args:
        pool: Pool of the model.
        position: Number of processed tokens.
        passes: Number of reweighting passes K for the next tokens. It is not part of the state.
    """

    def __init__(self, pool: StatePool, position: int = 0, passes: int = 1) -> None:
        self.pool = pool
        self.slot = pool.acquire()
        self.position = position
        self.passes = passes

    def fork(self) -> SlotContext:
        """Return an independent copy."""
        twin = SlotContext(self.pool, self.position, self.passes)
        self.pool.copy(self.slot, twin.slot)
        return twin

    def release(self) -> None:
        """Release the pool slot of the context."""
        self.pool.release(self.slot)

    def read(self) -> dict[str, Array]:
        """Return the means `[L, H, S, 4D]` and the precisions `[L, H, S]`. For a model with a window, also return its
        ring `[L, W, H, 4D + 2S]`."""
        return self.pool.read(self.slot)

    def write(self, state: Mapping[str, Array]) -> None:
        """Set the arrays that `read` returns."""
        self.pool.write(self.slot, state)


@dataclass(frozen=True)
class SlotAdvance:
    """An update of a `SlotContext`, which consists of its new memory slots."""

    context: SlotContext
    state: dict[str, Array]
    tokens: int

    def is_finite(self) -> bool:
        """Return whether all numbers of the memory slots are finite."""
        return all(bool(np.isfinite(part).all()) for part in self.state.values())

    def commit(self) -> None:
        """Write the memory slots to the context."""
        self.context.write(self.state)
        self.context.position += self.tokens


@dataclass(frozen=True)
class BufferedAdvance(CheckedAdvance):
    """An update of a `SlotContext`, whose new memory slots are in the unused row of its pool slot. The update is valid
    until the next step of the context."""

    context: SlotContext
    pool: DoubleBufferedPool
    tokens: int

    def commit(self) -> None:
        """Make the row with the new memory slots the current one."""
        self.pool.swap(self.context.slot)
        self.context.position += self.tokens


@dataclass
class CacheContext:
    """Attention context of one stream. Rows from index `position` on are free."""

    keys: Array  # [L, H, C, 2D]
    values: Array  # [L, H, C, 2D]
    position: int = 0

    @staticmethod
    def grown(rows: Array, capacity: int) -> Array:
        """Return a copy with `capacity` rows. Free rows are zero and are never read."""
        larger = np.zeros((*rows.shape[:2], capacity, rows.shape[3]), dtype=rows.dtype)
        larger[:, :, : rows.shape[2]] = rows
        return larger

    def fork(self) -> CacheContext:
        """Return an independent copy."""
        capacity, rows = self.keys.shape[2], slice(self.position)
        keys, values = (self.grown(part[:, :, rows], capacity) for part in (self.keys, self.values))
        return CacheContext(keys, values, self.position)

    def release(self) -> None:
        """Free the memory of the cache."""
        del self.keys, self.values

    def extend(self, new_keys: Array, new_values: Array) -> None:
        """Append rows `[L, H, n, 2D]` to the valid part, in a larger array if necessary."""
        end = self.position + new_keys.shape[2]
        if end > self.keys.shape[2]:
            capacity = 1 << (end - 1).bit_length()
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)
        self.keys[:, :, self.position : end] = new_keys
        self.values[:, :, self.position : end] = new_values
        self.position = end


@dataclass(frozen=True)
class CacheAdvance(CheckedAdvance):
    """An update of a `CacheContext`, which consists of new rows of keys and values."""

    context: CacheContext
    keys: Array  # [L, H, n, 2D]
    values: Array  # [L, H, n, 2D]

    def commit(self) -> None:
        """Append the rows to the cache."""
        self.context.extend(self.keys, self.values)
