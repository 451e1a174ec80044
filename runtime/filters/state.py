"""The states of a filter's streams: fresh, in the seats of a pool, and as bytes that outlive the process."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.steps import CLOCK
from rfa.runtime.pool import PoolSlot, StateField, StatePool

Array = np.ndarray
# What states of filters begin with: of this version and of those before it.
STATE_FAMILY = b"RFA"
_HEADER = struct.Struct("<5sQQddd")  # magic, seed, count, time, surprise, step


@dataclass(frozen=True)
class FilterState:
    """A stream between two observations.

    Attributes:
        tensors: the filter's own state, without batch.
        time: of the last observation; meaningless at count 0.
        count: observations so far.
        surprise: running surprise, which the confidence is read from.
        adaptive: what the stream taught its forecast intervals and its anomaly score, by name of the field.
        seed: of the samples.
        step: typical lag; 0 before the first.
    """

    tensors: dict[str, Array]
    time: float
    count: int
    surprise: float
    adaptive: dict[str, Array]
    seed: int = 0
    step: float = 0.0


class FilterStates:
    """What a filter knows of its states.

    Args:
        magic: what the states of a runtime begin with: its name and the version of their form.
        initial: the filter's state before the first observation, without batch, in its order.
        fields: of that.
        adaptive: fields of what a stream teaches.
    """

    def __init__(
        self,
        magic: bytes,
        initial: Mapping[str, Array],
        fields: Mapping[str, StateField],
        adaptive: Mapping[str, StateField],
    ) -> None:
        self._magic = magic
        self._initial = dict(initial)
        self._names = list(initial)
        self._adaptive = tuple(adaptive)
        self.state_fields: dict[str, StateField] = {
            **fields,
            **CLOCK,
            **adaptive,
        }
        self._packed = {name: self.state_fields[name] for name in (*self._names, *adaptive)}
        self.state_bytes: int = _HEADER.size + sum(map(_size_of, self._packed.values()))

    def start(self, seed: int = 0) -> FilterState:
        """The state before the first observation."""
        tensors = {name: array.copy() for name, array in self._initial.items()}
        untaught = {name: np.zeros(*self.state_fields[name]) for name in self._adaptive}
        return FilterState(tensors, 0.0, 0, 0.0, untaught, seed)

    def put(self, pool: StatePool, seat: PoolSlot, state: FilterState) -> None:
        """Set a seat to a state."""
        clock = {"clock.time": state.time, "clock.count": state.count, "clock.surprise": state.surprise}
        clock["clock.step"] = state.step
        pool.write(seat, {**state.tensors, **clock, **state.adaptive})

    def get(self, pool: StatePool, seat: PoolSlot, seed: int) -> FilterState:
        """The state in a seat."""
        values = pool.read(seat)
        return FilterState(
            {name: values[name] for name in self._names},
            float(values["clock.time"]),
            int(values["clock.count"]),
            float(values["clock.surprise"]),
            {name: values[name] for name in self._adaptive},
            seed,
            float(values["clock.step"]),
        )

    def pack(self, state: FilterState) -> bytes:
        """`state_bytes` little-endian bytes: magic, seed, count, time, surprise, step, then the tensors in the
        manifest's order and the adaptive fields in theirs, each in its own type."""
        held = {**state.tensors, **state.adaptive}
        body = b"".join(
            held[name].astype(np.dtype(field.dtype).newbyteorder("<")).tobytes() for name, field in self._packed.items()
        )
        header = self._magic, state.seed & (2**64 - 1), state.count, state.time, state.surprise, state.step
        return _HEADER.pack(*header) + body

    def unpack(self, data: bytes) -> FilterState:
        """The inverse of `pack`.

        Raises:
            InvalidInput: not a state of this filter.
        """
        if data.startswith(STATE_FAMILY) and not data.startswith(self._magic):
            raise _invalid_state(
                "was made by another version of the server or on another runtime of it, and cannot go on here: "
                "begin anew without it"
            )
        if len(data) != self.state_bytes or not data.startswith(self._magic):
            raise _invalid_state("is not a state of this filter")
        _, seed, count, time, surprise, step = _HEADER.unpack_from(data)
        held, position = {}, _HEADER.size
        for name, field in self._packed.items():
            kind = np.dtype(field.dtype)
            values = np.frombuffer(data, kind.newbyteorder("<"), math.prod(field.shape), position)
            held[name] = values.astype(kind).reshape(field.shape)
            position += values.nbytes
        if not (all(map(math.isfinite, (time, surprise, step))) and all(np.isfinite(x).all() for x in held.values())):
            raise _invalid_state("holds a value that is not finite")
        if count >= 2**63:
            raise _invalid_state("holds more steps than a stream can have")
        adaptive = {name: held.pop(name) for name in self._adaptive}
        return FilterState(held, time, count, surprise, adaptive, seed, step)


def _invalid_state(reason: str) -> InvalidInput:
    return InvalidInput(f"state {reason}", param="state", code="state_invalid")


def _size_of(field: StateField) -> int:
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize
