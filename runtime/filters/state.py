"""States of the streams of a filter: initial states, states in a pool, and states as bytes."""

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
# First bytes of every state of a filter, in any version.
STATE_FAMILY = b"RFA"
_HEADER = struct.Struct("<5sQQddd")  # magic, seed, count, time, surprise, step


@dataclass(frozen=True)
class FilterState:
    """State of a stream between two observations.

    Attributes:
        tensors: State of the filter itself, without batch dimension.
        time: Time of the last observation. It has no meaning if `count` is 0.
        count: Number of observations.
        surprise: Running mean of the novelty of the observations, from which the confidence is computed.
        adaptive: State of the conformal intervals and the anomaly score, by field.
        seed: Seed of the samples.
        step: Typical time step. It is 0 before the second observation.
    """

    tensors: dict[str, Array]
    time: float
    count: int
    surprise: float
    adaptive: dict[str, Array]
    seed: int = 0
    step: float = 0.0


class FilterStates:
    """Creates, stores and packs the states of a filter.

    Args:
        magic: First bytes of a packed state, which identify the runtime and the version of the format.
        initial: State of the filter itself before the first observation, without batch dimension, in the order of
            packing.
        fields: Fields of the state of the filter itself.
        adaptive: Fields of the adaptive state.
    """

    def __init__(
        self, magic: bytes, initial: Mapping[str, Array],
        fields: Mapping[str, StateField], adaptive: Mapping[str, StateField],
    ) -> None:  # fmt: skip
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
        """Return the state of a stream before its first observation."""
        tensors = {name: array.copy() for name, array in self._initial.items()}
        adaptive = {name: np.zeros(*self.state_fields[name]) for name in self._adaptive}
        return FilterState(tensors, 0.0, 0, 0.0, adaptive, seed)

    def put(self, pool: StatePool, slot: PoolSlot, state: FilterState) -> None:
        """Write a state to a pool slot."""
        clock = {"clock.time": state.time, "clock.count": state.count, "clock.surprise": state.surprise}
        clock["clock.step"] = state.step
        pool.write(slot, {**state.tensors, **clock, **state.adaptive})

    def get(self, pool: StatePool, slot: PoolSlot, seed: int) -> FilterState:
        """Return the state in a pool slot."""
        values = pool.read(slot)
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
        """Return a state as `state_bytes` little-endian bytes.

        They contain magic, seed, count, time, surprise, step, the tensors in the order of the manifest, and the
        adaptive fields, each with its own type.
        """
        fields = {**state.tensors, **state.adaptive}
        body = b"".join(
            fields[name].astype(np.dtype(field.dtype).newbyteorder("<")).tobytes()
            for name, field in self._packed.items()
        )
        header = self._magic, state.seed & (2**64 - 1), state.count, state.time, state.surprise, state.step
        return _HEADER.pack(*header) + body

    def unpack(self, data: bytes) -> FilterState:
        """Return the state that packed bytes contain.

        Raises:
            InvalidInput: If the bytes are not a state of this filter.
        """
        if data.startswith(STATE_FAMILY) and not data.startswith(self._magic):
            raise _invalid_state(
                "was created by another version of the server or on another runtime and cannot be continued here; "
                "start a new stream without it"
            )
        if len(data) != self.state_bytes or not data.startswith(self._magic):
            raise _invalid_state("belongs to another model or is truncated; pass a state that this model returned")
        _, seed, count, time, surprise, step = _HEADER.unpack_from(data)
        fields, position = {}, _HEADER.size
        for name, field in self._packed.items():
            kind = np.dtype(field.dtype)
            values = np.frombuffer(data, kind.newbyteorder("<"), math.prod(field.shape), position)
            fields[name] = values.astype(kind).reshape(field.shape)
            position += values.nbytes
        if not (all(map(math.isfinite, (time, surprise, step))) and all(np.isfinite(x).all() for x in fields.values())):
            raise _invalid_state("contains a value that is not finite")
        if count >= 2**63:
            raise _invalid_state("contains more steps than a stream supports")
        adaptive = {name: fields.pop(name) for name in self._adaptive}
        return FilterState(fields, time, count, surprise, adaptive, seed, step)


def _invalid_state(reason: str) -> InvalidInput:
    return InvalidInput(f"state {reason}", param="state", code="state_invalid")


def _size_of(field: StateField) -> int:
    return math.prod(field.shape) * np.dtype(field.dtype).itemsize
