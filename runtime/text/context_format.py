"""Binary format of a recurrent text context. All runtimes use this format.

    position u64 | arrays of the model's state, float32

Numbers are little-endian and not padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.errors import invalid_state
from rfa.runtime.text.contexts import StepOutput

LONGEST_STREAM = 1 << 53  # float64 represents all positions up to this one exactly
_POSITION = np.dtype("<u8")
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class ContextFormat:
    """Converts the contexts of a model to bytes and back.

    Args:
        shapes: Mapping from names of arrays to shapes: "means", "precisions" and further state in the order of the
            manifest.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Number of bytes of a packed context."""
        return _POSITION.itemsize + _FLOAT.itemsize * sum(map(math.prod, self.shapes.values()))

    def pack(self, position: int, state: Mapping[str, NDArray[np.float32]]) -> bytes:
        """Return the context in the format of this module."""
        numbers = b"".join(state[name].astype(_FLOAT).tobytes() for name in self.shapes)
        return np.array(position, dtype=_POSITION).tobytes() + numbers

    def unpack(self, data: bytes) -> tuple[int, dict[str, NDArray[np.float32]]]:
        """Parse a packed context.

        Returns:
            The position and the arrays of the state.

        Raises:
            InvalidInput: If the bytes are not a context of this shape (code `state_invalid`).
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
    """Return the output of one row as bytes: logits, log precision and latent, in little-endian float32."""
    return b"".join(np.asarray(part[0], _FLOAT).tobytes() for part in output)


def unpack_output(data: bytes, vocabulary: int, latent_shape: tuple[int, int]) -> StepOutput:
    """Return the output of one row that `pack_output` converted to bytes.

    Raises:
        InvalidInput: If the bytes are not an output of this shape (code `state_invalid`).
    """
    if len(data) != output_bytes(vocabulary, latent_shape):
        raise invalid_state()
    numbers = np.frombuffer(data, _FLOAT).astype(np.float32)[None]
    return StepOutput(
        numbers[:, :vocabulary], numbers[:, vocabulary], numbers[:, vocabulary + 1 :].reshape(1, *latent_shape)
    )


def output_bytes(vocabulary: int, latent_shape: tuple[int, int]) -> int:
    """Return the size of a packed output in bytes."""
    return _FLOAT.itemsize * (vocabulary + 1 + math.prod(latent_shape))
