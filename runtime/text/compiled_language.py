"""Run a language model from a bundle in compiled code on one CPU core. It is several times as fast as ONNX Runtime.

Recurrent streams run on `compiled_decoder.py`, where the bits of a row do not depend on the batch size. Attention
streams run on the ONNX graph of the bundle. Packed states have the same bytes as on the other runtimes. Constants that
torch computes from the weights are part of the bundle (decoder.safetensors).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, LanguageConfig
from rfa.runtime.golden import reproduce
from rfa.runtime.pool import DoubleBufferedPool, PoolSlot, StateField
from rfa.runtime.text.compiled_decoder import CompiledDecoder, Slots
from rfa.runtime.text.contexts import Array, BufferedAdvance, Context, SlotContext, StepOutput
from rfa.runtime.text.decoder_numba import compile_kernels
from rfa.runtime.text.language import CpuLanguage

__all__ = ["CompiledLanguageRuntime", "HostPool", "compile_kernels", "refusal", "reproduce_golden"]


class HostPool(DoubleBufferedPool):
    """A pool of recurrent contexts in the memory of this process.

    Args:
        means: Shape of the means of the memory slots, (L, H, S, 4D).
        precisions: Shape of the precisions of the memory slots, (L, H, S).
        capacity: Number of slots.
    """

    def __init__(self, means: tuple[int, ...], precisions: tuple[int, ...], capacity: int) -> None:
        shapes = {"means": means, "precisions": precisions}
        super().__init__(capacity, {name: StateField((2, *shape), np.float32) for name, shape in shapes.items()})
        self.slots = Slots(*(self.arrays[name].reshape(-1, *shape) for name, shape in shapes.items()))

    def read(self, slot: PoolSlot) -> dict[str, NDArray[np.float32]]:
        """Return copies of the means and precisions of a pool slot."""
        row = self.current_rows([slot])[0]
        return {name: part[row].copy() for name, part in self.slots._asdict().items()}

    def write(self, slot: PoolSlot, values: Mapping[str, Array | float]) -> None:
        """Set the means and precisions of a pool slot."""
        row = self.current_rows([slot])[0]
        for name, value in values.items():
            getattr(self.slots, name)[row] = value

    def copy(self, source: PoolSlot, target: PoolSlot) -> None:
        """Copy a pool slot to another one."""
        self.write(target, self.read(source))


class CompiledLanguageRuntime(CpuLanguage):
    """A language model from a bundle, which runs in compiled code. Each call uses one thread.

    Args:
        bundle: Bundle of kind "lm".
        streams: Maximum number of recurrent contexts that exist at the same time.

    Raises:
        ValueError: If compiled code does not support the bundle (`refusal`).
    """

    runtime = "compiled"
    scores_in_one_pass = True

    def __init__(self, bundle: Bundle, *, streams: int = 64) -> None:
        reason = refusal(bundle)
        if reason is not None:
            raise ValueError(f"bundle {bundle.name!r} cannot be run by the compiled runtime: {reason}")
        super().__init__(bundle)
        self._decoder = CompiledDecoder(bundle.weights(), bundle.constants() or {})
        self._pool = HostPool(self.initial["means"].shape, self.initial["precisions"].shape, streams)
        self.pool = self._pool

    def read_prompts(
        self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]
    ) -> tuple[StepOutput, list[BufferedAdvance]]:
        """Process a part of the prompt of each of B recurrent streams. Return the outputs of the last tokens, and the
        updates of the contexts."""
        found = [self._read(*one, outputs=1) for one in zip(contexts, pieces, strict=True)]
        outputs = [output for output, _ in found if output is not None]
        joined = StepOutput(*(np.concatenate(parts) for parts in zip(*outputs, strict=True)))
        return joined, [advance for _, advance in found]

    def logits_of(self, context: Context, tokens: Sequence[int]) -> tuple[Array, bool]:
        """See `Language`. The tokens of a recurrent stream are processed at once, with the same results as `step`, bit
        for bit."""
        if not isinstance(context, SlotContext):
            return super().logits_of(context, tokens)
        output, advance = self._read(context, tokens, outputs=len(tokens))
        advance.commit()
        return output.logits, advance.is_finite()  # type: ignore[union-attr]

    def _prefill_slots(self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]) -> list[BufferedAdvance]:
        return [self._read(*one, outputs=0)[1] for one in zip(contexts, pieces, strict=True)]

    def _read(
        self, context: SlotContext, tokens: Sequence[int], *, outputs: int
    ) -> tuple[StepOutput | None, BufferedAdvance]:
        (source,), (target,) = (rows([context.slot]) for rows in (self._pool.current_rows, self._pool.next_rows))
        row = np.asarray(tokens, dtype=np.int64)
        output, is_finite = self._decoder.prefill(
            row, context.position, self._pool.slots, source, target, passes=context.passes, outputs=outputs
        )
        advance = BufferedAdvance(context, self._pool, len(tokens), finite=is_finite)
        return output, advance

    def _step_slots(
        self, contexts: Sequence[SlotContext], tokens: Sequence[int], noise: Array
    ) -> tuple[StepOutput, list[BufferedAdvance]]:
        pool_slots = [context.slot for context in contexts]
        output, finite = self._decoder.step(
            np.asarray(tokens, dtype=np.int64),
            np.asarray([context.position for context in contexts], dtype=np.int64),
            noise,
            self._pool.slots,
            self._pool.current_rows(pool_slots),
            self._pool.next_rows(pool_slots),
            passes=np.asarray([context.passes for context in contexts], dtype=np.int64),
        )
        advances = [
            BufferedAdvance(context, self._pool, 1, finite=bool(is_finite))
            for context, is_finite in zip(contexts, finite, strict=True)
        ]
        return output, advances


def reproduce_golden(bundle: Bundle, runtime: CompiledLanguageRuntime | None = None) -> int:
    """Run the golden cases of a bundle in compiled code, and return the number of compared values.

    Args:
        bundle: Bundle of the model.
        runtime: Runtime of this bundle. By default, a new one for one stream.

    Raises:
        BundleError: If an output differs by more than the tolerance of its case.
    """
    chosen = runtime or CompiledLanguageRuntime(bundle, streams=1)
    return reproduce(chosen, bundle, chosen.attention, where="the compiled runtime")


def refusal(bundle: Bundle) -> str | None:
    """Return the reason why compiled code does not support a bundle, or None if it supports the bundle."""
    if (reason := model_refusal(bundle.language)) is not None:
        return reason
    if bundle.constants() is None:
        return f"it does not contain {CONSTANTS_FILE}; export it again with `rfa export`"
    return None


def model_refusal(config: LanguageConfig) -> str | None:
    """Return the reason why compiled code does not support a model, or None if it supports the model."""
    if not config.has_slots:
        return "it has no memory slots, and only ONNX Runtime supports attention without them"
    if config.window:
        return f"it has window={config.window}, but only window=0 is supported"
    if config.innovation != "key":
        return f"it has innovation={config.innovation!r}, but only 'key' is supported"
    return None
