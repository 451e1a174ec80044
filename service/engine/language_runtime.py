"""A language bundle as functions on numpy arrays: start, prefill, step, in both decoding modes.

The recurrent context of a stream is a few filter slots per head, of constant size. The attention context is a cache of
rotated keys and values, which grows by doubling so that its cost is amortised; the graph reads only its valid part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from export.bundle import Bundle
from service.engine.language_state import unusable_state
from service.engine.sampling import log_softmax
from service.engine.text import Vocabulary

Array = NDArray[np.float32]
Decode = Literal["recurrent", "attention"]
SMALLEST_CACHE = 64
LONGEST_STREAM = 1 << 53  # positions are exact in float64 up to here
_POSITION = np.dtype("<u8")
_FLOAT = np.dtype("<f4")


class StepOutput(NamedTuple):
    """Of the last token of each row."""

    logits: Array  # [B, V]
    log_precision: Array  # [B]
    latent: Array  # [B, H, 2D]


@dataclass(frozen=True)
class SlotContext:
    """Recurrent context of one stream. Immutable: a step makes a new one, so a fork shares it."""

    means: Array  # [L, H, S, 4D]
    precisions: Array  # [L, H, S]
    position: int

    def fork(self) -> SlotContext:
        """An independent continuation from here."""
        return self

    def is_finite(self) -> bool:
        """False when the filter has broken down."""
        return bool(np.isfinite(self.means).all() and np.isfinite(self.precisions).all())


@dataclass
class CacheContext:
    """Attention context of one stream; rows beyond `position` are free."""

    keys: Array  # [L, H, C, 2D]
    values: Array  # [L, H, C, 2D]
    position: int

    def fork(self) -> CacheContext:
        """An independent continuation from here."""
        return CacheContext(self.keys.copy(), self.values.copy(), self.position)

    def is_finite(self) -> bool:
        """False when a row that later tokens will read is broken."""
        last = slice(max(self.position - 1, 0), self.position)
        return bool(np.isfinite(self.keys[:, :, last]).all() and np.isfinite(self.values[:, :, last]).all())

    def extended(self, new_keys: Array, new_values: Array) -> CacheContext:
        """This context with rows `[L, H, n, 2D]` written behind its valid part, in a larger array if need be."""
        count = new_keys.shape[2]
        end = self.position + count
        keys, values = self.keys, self.values
        if end > keys.shape[2]:
            capacity = 1 << (end - 1).bit_length()
            keys, values = _grown(keys, capacity), _grown(values, capacity)
        keys[:, :, self.position : end] = new_keys
        values[:, :, self.position : end] = new_values
        return CacheContext(keys, values, end)


Context = SlotContext | CacheContext


class Language(Protocol):
    """What the engine needs of a language model; tests put small hand-made ones here."""

    name: str
    vocabulary: Vocabulary
    latent_shape: tuple[int, int]
    context_bytes: int  # at most, of a packed context

    def start(self, decode: Decode) -> Any:
        """Context of a stream that has seen nothing."""

    def prefill(self, context: Any, tokens: Sequence[int]) -> Any:
        """The context after `tokens`."""

    def step(self, contexts: Sequence[Any], tokens: Sequence[int], noise: Array) -> tuple[StepOutput, list[Any]]:
        """One token in each of B streams of one decoding mode; `noise` `[B, H, 2D]`, zeros for the mean."""

    def confidence(self, logits: Array, decode: Decode) -> NDArray[np.float64]:
        """Calibrated probabilities `[B, V]` that a token is the right next one."""

    def pack(self, context: Any) -> bytes:
        """A recurrent context as bytes, the same for equal contexts."""

    def unpack(self, data: bytes) -> Any:
        """Inverse of `pack`.

        Raises:
            InvalidRequest: these bytes are no context of this model (`state_invalid`).
        """


class LanguageRuntime:
    """A language bundle on ONNX Runtime, one thread per call.

    Raises:
        ValueError: when the bundle's parts do not fit each other.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.name = bundle.name
        self.vocabulary = Vocabulary(bundle.read("tokenizer.json").decode())
        weights = bundle.weights()
        self._initial_means = weights["initial.means"]
        self._initial_precisions = weights["initial.precisions"]
        layers, heads, _, width = self._initial_means.shape
        self.latent_shape = (heads, width // 2)
        self._empty_cache = np.zeros((layers, heads, SMALLEST_CACHE, width // 2), dtype=np.float32)
        self.context_bytes = _POSITION.itemsize + _FLOAT.itemsize * (
            self._initial_means.size + self._initial_precisions.size
        )
        self._temperatures: dict[str, float] = bundle.calibration["temperature"]
        self._step = bundle.session("step")
        self._prefill = bundle.session("prefill")
        self._attention = bundle.session("attention")

    def start(self, decode: Decode) -> Context:
        """Context of a stream that has seen nothing."""
        if decode == "recurrent":
            return SlotContext(self._initial_means, self._initial_precisions, 0)
        return CacheContext(np.zeros_like(self._empty_cache), np.zeros_like(self._empty_cache), 0)

    def prefill(self, context: Context, tokens: Sequence[int]) -> Context:
        """The context after `tokens`."""
        row = np.asarray([tokens], dtype=np.int64)
        if isinstance(context, CacheContext):
            silent = np.zeros((1, *self.latent_shape), dtype=np.float32)
            return self._extend(context, row, silent)[1]
        _, _, _, means, precisions = self._prefill.run(
            ["logits", "log_precision", "latent", "next_means", "next_precisions"],
            {
                "tokens": row,
                "length": np.asarray([len(tokens)], dtype=np.int64),
                "position": np.asarray([context.position], dtype=np.int64),
                "means": context.means[None],
                "precisions": context.precisions[None],
            },
        )
        return SlotContext(means[0], precisions[0], context.position + len(tokens))

    def step(
        self, contexts: Sequence[Context], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[Context]]:
        """One token in each of B streams; attention streams, whose caches differ in size, go one by one."""
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        if len(slots) == len(contexts):
            return self._step_slots(slots, tokens, noise)
        results = [
            self._extend(context, np.asarray([[token]], dtype=np.int64), noise[row : row + 1])
            for row, (context, token) in enumerate(zip(contexts, tokens, strict=True))
            if isinstance(context, CacheContext)
        ]
        outputs = [np.concatenate(parts) for parts in zip(*(output for output, _ in results), strict=True)]
        return StepOutput(*outputs), [context for _, context in results]

    def confidence(self, logits: Array, decode: Decode) -> NDArray[np.float64]:
        """Calibrated probabilities `[B, V]`: the softmax at the mode's temperature, fitted on validation data."""
        probabilities: NDArray[np.float64] = np.exp(log_softmax(logits / np.float32(self._temperatures[decode])))
        return probabilities

    def pack(self, context: Context) -> bytes:
        """Position, means and precisions, little-endian."""
        if not isinstance(context, SlotContext):
            raise TypeError("only a recurrent context can be packed")
        position = np.array(context.position, dtype=_POSITION).tobytes()
        return position + context.means.astype(_FLOAT).tobytes() + context.precisions.astype(_FLOAT).tobytes()

    def unpack(self, data: bytes) -> Context:
        """Inverse of `pack`; see `Language`."""
        if len(data) != self.context_bytes:
            raise unusable_state()
        position = int(np.frombuffer(data, _POSITION, 1)[0])
        numbers = np.frombuffer(data, _FLOAT, offset=_POSITION.itemsize).astype(np.float32)
        means, precisions = np.split(numbers, [self._initial_means.size])
        context = SlotContext(
            means.reshape(self._initial_means.shape), precisions.reshape(self._initial_precisions.shape), position
        )
        if position > LONGEST_STREAM or not context.is_finite() or precisions.min() < 0:
            raise unusable_state()
        return context

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[Context]]:
        logits, log_precision, latent, means, precisions = self._step.run(
            ["logits", "log_precision", "latent", "next_means", "next_precisions"],
            {
                "token": np.asarray(tokens, dtype=np.int64),
                "position": np.asarray([context.position for context in contexts], dtype=np.int64),
                "noise": noise,
                "means": np.stack([context.means for context in contexts]),
                "precisions": np.stack([context.precisions for context in contexts]),
            },
        )
        advanced: list[Context] = [
            SlotContext(means[row].copy(), precisions[row].copy(), context.position + 1)
            for row, context in enumerate(contexts)
        ]
        return StepOutput(logits, log_precision, latent), advanced

    def _extend(
        self, context: CacheContext, tokens: NDArray[np.int64], noise: Array
    ) -> tuple[StepOutput, CacheContext]:
        logits, log_precision, latent, keys, values = self._attention.run(
            ["logits", "log_precision", "latent", "new_keys", "new_values"],
            {
                "tokens": tokens,
                "position": np.asarray([context.position], dtype=np.int64),
                "keys": context.keys[None],
                "values": context.values[None],
                "noise": noise,
            },
        )
        return StepOutput(logits, log_precision, latent), context.extended(keys[0], values[0])


def _grown(rows: Array, capacity: int) -> Array:
    """A copy with room for `capacity` rows; free rows are zero, which is finite and never read."""
    larger = np.zeros((*rows.shape[:2], capacity, rows.shape[3]), dtype=rows.dtype)
    larger[:, :, : rows.shape[2]] = rows
    return larger
