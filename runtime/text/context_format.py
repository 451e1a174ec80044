"""The recurrent context of a text as bytes, the same for all runtimes.

    position u64 | the parts of the model's state, float32

Little-endian, no padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.errors import invalid_state
from rfa.runtime.text.contexts import StepOutput

LONGEST_STREAM = 1 << 53  # positions are exact in float64 up to here
_POSITION = np.dtype("<u8")
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class ContextFormat:
    """Packs and unpacks the contexts of one model.

    Args:
        shapes: of the parts, by name: "means", "precisions", and what else the bundle's manifest lists, in its order.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Bytes of every context."""
        return _POSITION.itemsize + _FLOAT.itemsize * sum(map(math.prod, self.shapes.values()))

    def pack(self, position: int, state: Mapping[str, NDArray[np.float32]]) -> bytes:
        """The layout above, little-endian."""
        numbers = b"".join(state[name].astype(_FLOAT).tobytes() for name in self.shapes)
        return np.array(position, dtype=_POSITION).tobytes() + numbers

    def unpack(self, data: bytes) -> tuple[int, dict[str, NDArray[np.float32]]]:
        """Inverse of `pack`.

        Raises:
            InvalidInput: these bytes are no context of this shape (`state_invalid`).
        """
        if len(data) != self.size:
            raise invalid_state()
        position = int(np.frombuffer(data, _POSITION, 1)[0])
        numbers = np.frombuffer(data, _FLOAT, offset=_POSITION.itemsize).astype(np.float32)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), np.split(numbers, ends[:-1]), strict=True)
        state = {name: part.reshape(shape) for (name, shape), part in parts}
        if position > LONGEST_STREAM or not np.isfinite(numbers).all() or state["precisions"].min() < 0:
            raise invalid_state()
        return position, state


def pack_output(output: StepOutput) -> bytes:
    """The output of one row: logits, log precision and latent, float32, little-endian."""
    return b"".join(np.asarray(part[0], _FLOAT).tobytes() for part in output)


def unpack_output(data: bytes, vocabulary: int, latent_shape: tuple[int, int]) -> StepOutput:
    """Inverse of `pack_output`.

    Raises:
        InvalidInput: these bytes are no output of this shape (`state_invalid`).
    """
    if len(data) != output_bytes(vocabulary, latent_shape):
        raise invalid_state()
    numbers = np.frombuffer(data, _FLOAT).astype(np.float32)[None]
    return StepOutput(
        numbers[:, :vocabulary], numbers[:, vocabulary], numbers[:, vocabulary + 1 :].reshape(1, *latent_shape)
    )


def output_bytes(vocabulary: int, latent_shape: tuple[int, int]) -> int:
    """Bytes of `pack_output`."""
    return _FLOAT.itemsize * (vocabulary + 1 + math.prod(latent_shape))
