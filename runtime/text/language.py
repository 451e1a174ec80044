"""Run the language model of a bundle on NumPy arrays, in all of its decoding modes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.batching import Run, agreeing_sizes
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.bundle.token_confidence import TokenConfidence
from rfa.runtime.choices import Mode
from rfa.runtime.outputs import GpuKernels
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.text.context_format import ContextFormat
from rfa.runtime.text.contexts import (
    Advance,
    Array,
    CacheAdvance,
    CacheContext,
    Context,
    SlotAdvance,
    SlotContext,
    StepOutput,
)
from rfa.runtime.text.incremental import Vocabulary
from rfa.runtime.text.sampling import DrawnToken, Draws, drawn_tokens
from rfa.runtime.text.scores_numba import compile_kernels

SMALLEST_CACHE = 64
# Batches of a multiple of this size have no remaining rows, which some kernels sum in another order.
EVEN_ROWS = 8


class ExampleRows(NamedTuple):
    """Fixed inputs of a step of B streams, with which batch sizes are compared."""

    tokens: NDArray[np.int64]  # [B]
    positions: NDArray[np.int64]  # [B]
    noise: Array  # [B, H, 2D]
    state: dict[str, Array]  # arrays `[B, …]`


class Language(ABC):
    """A language model from a bundle, on any runtime.

    Args:
        bundle: Bundle of kind "lm".

    Attributes:
        runtime: Name of the runtime: "onnx", "compiled" or "torch".
        modes: Decoding modes. The last one is the default.
        pool: Pool of recurrent contexts. It is not used by a model without recurrent mode.
        initial: State of a recurrent context before its first token, as a mapping from names to arrays.
        passes: Range of the number of reweighting passes K that recurrent contexts may use.
        context_bytes: Maximum size of a packed context.
        cache_bytes: Main memory per token of an attention context.
        prefill_tokens: Maximum number of prompt tokens, of all prompts together, that are processed at once. It is
            large enough to be efficient and small enough not to stall running streams.
        prefill_rows: Maximum number of prompts that are processed at once.
        scores_in_one_pass: Whether `logits_of` processes all tokens of a recurrent stream at once, as fast as
            `prefill`.
        kernels: Origin of the GPU kernels.
        golden_values: Number of golden output values that were reproduced at loading.
        name: Name of the bundle.
        vocabulary: Texts of the tokens.
        latent_shape: Shape of the latent of the last layer, `[H, 2D]`.
    """

    runtime: str
    pool: StatePool
    prefill_tokens = 64
    prefill_rows = 1
    scores_in_one_pass = False
    kernels: GpuKernels | None = None
    golden_values = 0

    def __init__(self, bundle: Bundle) -> None:
        compile_kernels()
        self.name = bundle.name
        self.vocabulary = Vocabulary(bundle.read("tokenizer.json").decode())
        config = bundle.language
        self.modes = config.modes
        weights = bundle.weights()
        self.initial: dict[str, Array] = {part.name: weights[f"initial.{part.name}"] for part in config.state()}
        self.latent_shape = (config.n_heads, 2 * config.head_dim)
        self.passes = PassesRange.of(bundle)
        self._layers = config.n_layers
        self._format = ContextFormat({name: part.shape for name, part in self.initial.items()})
        self.context_bytes = self._format.size if self.initial else 0
        self.cache_bytes = 0
        self._confidence = {
            mode: TokenConfidence.of(bundle.calibration, mode) for mode in bundle.calibration["temperature"]
        }

    @property
    def default_mode(self) -> Mode:
        """Decoding mode of requests that do not name one. It is "recurrent" if the bundle supports this mode."""
        return self.modes[-1]

    def start(
        self, mode: Mode, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
    ) -> Context:
        """Return the context of a stream without tokens.

        Args:
            mode: Decoding mode.
            capacity: Number of tokens for which an attention stream reserves memory. The memory grows if there are more
                tokens.
            forks: Number of continuations that will be forked from it.
            common: Number of tokens that it will contain when it is forked.
            passes: Number of reweighting passes K of a recurrent stream. None selects the default of the model.

        Raises:
            ValueError: If the bundle does not support this mode.
            InvalidInput: If the model does not support this number of passes.
            CapacityError: If there is not enough free memory.
        """
        if mode not in self.modes:
            raise ValueError(f"bundle {self.name!r} supports the modes {self.modes}, got {mode!r}")
        if mode == "attention":
            return self._start_attention(capacity, forks, common)
        context = SlotContext(self.pool, passes=self.passes.checked(passes, self.name))
        context.write(self.initial)
        return context

    def fits(self, capacity: int, streams: int, common: int) -> bool:
        """Return whether memory without other streams has enough space for attention streams of the given capacity.

        Args:
            capacity: Number of tokens of each stream.
            streams: Number of streams, which continue one stream of `common` tokens.
            common: Number of tokens that the streams have in common.
        """
        return True

    def prefill(self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]]) -> Sequence[Advance]:
        """Process several tokens of each of B streams, and return the updates of their contexts. All streams must have
        the same decoding mode."""
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        if len(slots) == len(contexts):
            return self._prefill_slots(slots, pieces)
        noise = np.zeros((len(contexts), *self.latent_shape), dtype=np.float32)
        return self.extend(contexts, pieces, noise)[1]

    def step(
        self, contexts: Sequence[Context], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, Sequence[Advance]]:
        """Process one token of each of B streams. Return the outputs, and the updates of the contexts. All streams must
        have the same decoding mode. `noise` has shape `[B, H, 2D]` and is zero for the mean."""
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        if len(slots) == len(contexts):
            return self._step_slots(slots, tokens, noise)
        return self.extend(contexts, [[token] for token in tokens], noise)

    def peek(self, context: Context, token: int) -> tuple[StepOutput, Advance]:
        """Return the output after a token of one stream, computed without noise, and the update of the context, which
        need not be committed."""
        output, (advance,) = self.step([context], [token], np.zeros((1, *self.latent_shape), np.float32))
        return output, advance

    def logits_of(self, context: Context, tokens: Sequence[int]) -> tuple[Array, bool]:
        """Process several tokens of one stream, and update its context.

        Returns:
            The logits `[N, V]` after each token, with the same bits as `step`, and whether the new context is finite.
        """
        rows, is_finite = [], True
        for token in tokens:
            output, advance = self.peek(context, token)
            rows.append(output.logits)
            is_finite &= advance.is_finite()
            advance.commit()
        return np.concatenate(rows), is_finite

    def draw(
        self, contexts: Sequence[Context], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], Sequence[Advance]]:
        """Process one token of each stream as `step` does, and choose the next tokens from the logits. Return the
        chosen tokens, and the updates of the contexts."""
        output, advances = self.step(contexts, tokens, noise)
        return drawn_tokens(*output, draws), advances

    @abstractmethod
    def extend(
        self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[StepOutput, Sequence[Advance]]:
        """Process several tokens of each of B attention streams. Return the outputs of the last tokens, and the updates
        of the contexts. `noise` has shape `[B, H, 2D]`."""

    @abstractmethod
    def _start_attention(self, capacity: int, forks: int, common: int) -> Context:
        """Return an empty attention context."""

    @abstractmethod
    def _prefill_slots(self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]) -> Sequence[Advance]:
        """Process several tokens of each recurrent stream, and return the updates of the contexts. `prefill` calls this
        method."""

    @abstractmethod
    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, Sequence[Advance]]:
        """Process one token of each recurrent stream. Return the outputs, and the updates of the contexts. `step` calls
        this method."""

    def example(self, rows: int) -> ExampleRows:
        """Return fixed example inputs for `agreeing_sizes`. All rows differ."""
        draw = np.random.Generator(np.random.Philox(0))
        tokens = draw.integers(0, len(self.vocabulary), rows)
        positions = draw.integers(0, 1000, rows)
        noise = draw.standard_normal((rows, *self.latent_shape), dtype=np.float32)
        state = {name: np.repeat(part[None], rows, axis=0) for name, part in self.initial.items()}
        state["means"] += draw.standard_normal(state["means"].shape, dtype=np.float32)
        return ExampleRows(tokens, positions, noise, state)

    def confidence(self, mode: Mode) -> TokenConfidence:
        """Return the calibration of token probabilities in a mode."""
        return self._confidence[mode]

    def pack(self, context: Context) -> bytes:
        """Return a recurrent context in the format of `context_format`. Equal contexts result in equal bytes."""
        if not isinstance(context, SlotContext):
            raise TypeError("only a context of the recurrent mode can be packed")
        return self._format.pack(context.position, context.read())

    def unpack(self, data: bytes, passes: int | None = None) -> SlotContext:
        """Return the recurrent context that `pack` converted to bytes.

        Args:
            data: Bytes that `pack` returned.
            passes: Number of passes. See `start`. The bytes do not depend on it, so a context can continue with a
                different number.

        Raises:
            InvalidInput: If the bytes are not a context of this model (code `state_invalid`), or the model does not
                support this number of passes.
        """
        position, state = self._format.unpack(data)
        context = SlotContext(self.pool, position, self.passes.checked(passes, self.name))
        context.write(state)
        return context


class CpuLanguage(Language):
    """A language model from a bundle, on a CPU. Attention streams run on the bundle's graph. Subclasses run recurrent
    streams."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.cache_bytes = 2 * self._layers * math.prod(self.latent_shape) * np.dtype(np.float32).itemsize
        self.attention = bundle.session("attention")

    def _start_attention(self, capacity: int, forks: int, common: int) -> CacheContext:
        heads, width = self.latent_shape
        # Zeros take no memory until they are overwritten.
        shape = self._layers, heads, max(capacity, SMALLEST_CACHE), width
        return CacheContext(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def extend(
        self, contexts: Sequence[Context], pieces: Sequence[Sequence[int]], noise: Array
    ) -> tuple[StepOutput, list[CacheAdvance]]:
        """Process several tokens of each of B attention streams. Return the outputs of the last tokens, and the updates
        of the contexts. Streams are processed one by one, because their caches have different sizes."""
        results = [
            self._extend_cache(context, piece, noise[row : row + 1])
            for row, (context, piece) in enumerate(zip(contexts, pieces, strict=True))
            if isinstance(context, CacheContext)
        ]
        outputs = [np.concatenate(parts) for parts in zip(*(output for output, _ in results), strict=True)]
        return StepOutput(*outputs), [advance for _, advance in results]

    def _extend_cache(
        self, context: CacheContext, tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, CacheAdvance]:
        logits, log_precision, latent, keys, values = self.attention.run(
            ["logits", "log_precision", "latent", "new_keys", "new_values"],
            {
                "tokens": np.asarray([tokens], dtype=np.int64),
                "position": np.asarray([context.position], dtype=np.int64),
                "keys": context.keys[None],
                "values": context.values[None],
                "noise": noise,
            },
        )
        finite = bool(np.isfinite(keys).all() and np.isfinite(values).all())
        return StepOutput(logits, log_precision, latent), CacheAdvance(context, keys[0], values[0], finite=finite)


class LanguageRuntime(CpuLanguage):
    """A language model from a bundle, on ONNX Runtime. Each call uses one thread.

    Args:
        bundle: Bundle of kind "lm".
        streams: Maximum number of recurrent contexts that exist at the same time.
        max_rows: Maximum number of rows of a step.

    Raises:
        ValueError: If parts of the bundle are inconsistent.
    """

    runtime = "onnx"

    def __init__(self, bundle: Bundle, *, streams: int = 64, max_rows: int = 24) -> None:
        super().__init__(bundle)
        fields = {name: StateField(part.shape, np.float32) for name, part in self.initial.items()}
        self.pool = StatePool(fields, streams)
        if "recurrent" in self.modes:
            self._step = bundle.session("step")
            self._prefill = bundle.session("prefill")
            largest = -(-max_rows // EVEN_ROWS) * EVEN_ROWS
            self.batch_sizes = agreeing_sizes(self._probe(largest), range(1, largest + 1), max_rows)

    def _prefill_slots(self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]) -> list[SlotAdvance]:
        return [self._read_piece(context, piece) for context, piece in zip(contexts, pieces, strict=True)]

    def _read_piece(self, context: SlotContext, tokens: Sequence[int]) -> SlotAdvance:
        after = self._prefill.run(
            [f"next_{name}" for name in self.initial],
            {
                "tokens": np.asarray([tokens], dtype=np.int64),
                "length": np.asarray([len(tokens)], dtype=np.int64),
                "position": np.asarray([context.position], dtype=np.int64),
                **self._passes_of([context]),
                **{name: part[None] for name, part in context.read().items()},
            },
        )
        state = {name: part[0] for name, part in zip(self.initial, after, strict=True)}
        return SlotAdvance(context, state, len(tokens))

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[SlotAdvance]]:
        count = len(contexts)
        # Padding rows repeat the first stream. Their results are discarded.
        order = np.arange(self.batch_sizes.padded(count))
        order[count:] = 0
        rows = self.pool.rows([context.slot for context in contexts])[order]
        logits, log_precision, latent, *after = self._run_step(
            np.asarray(tokens, dtype=np.int64)[order],
            np.asarray([context.position for context in contexts], dtype=np.int64)[order],
            noise[order],
            {name: part[order] for name, part in self._passes_of(contexts).items()}
            | {name: part[rows] for name, part in self.pool.arrays.items()},
        )
        named = dict(zip(self.initial, after, strict=True))
        advances = [
            SlotAdvance(context, {name: part[row] for name, part in named.items()}, 1)
            for row, context in enumerate(contexts)
        ]
        return StepOutput(logits[:count], log_precision[:count], latent[:count]), advances

    def _passes_of(self, contexts: Sequence[SlotContext]) -> dict[str, NDArray[np.int64]]:
        """Return the graph input with the number of passes of each stream. The result is empty for a model with K
        = 1."""
        if not self.passes.are_chosen:
            return {}
        return {"passes": np.asarray([context.passes for context in contexts], dtype=np.int64)}

    def _run_step(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], noise: Array, rest: Mapping[str, NDArray[Any]]
    ) -> list[Array]:
        """Run the graph of a step, and return its outputs. `rest` contains the state and, if the graph has this input,
        the numbers of passes."""
        outputs: list[Array] = self._step.run(
            [*StepOutput._fields, *(f"next_{name}" for name in self.initial)],
            {"token": tokens, "position": positions, "noise": noise, **rest},
        )
        return outputs

    def _probe(self, rows: int) -> Run:
        example = self.example(rows)
        inputs: dict[str, NDArray[Any]] = dict(example.state)
        if self.passes.are_chosen:
            inputs["passes"] = np.arange(rows) % self.passes.most + 1

        def run(chosen: NDArray[np.int64]) -> list[Array]:
            return self._run_step(
                example.tokens[chosen],
                example.positions[chosen],
                example.noise[chosen],
                {name: part[chosen] for name, part in inputs.items()},
            )

        return run
