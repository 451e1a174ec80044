"""Process the next tokens of many decoder streams at once. They are chunks of prompts of any length, or steps in
attention mode.

On a GPU, the tokens `[T, …]` of all streams are processed together: by matrix products with a fixed summation order
(`product_triton`), and by fused paged attention (`attention.pages`) or the slot scan. There are eight launches per
layer. The results of a stream do not depend on the other streams, bit for bit. On other devices, streams are processed
one by one with the reference implementations `Decoder.extend` and `Decoder.prefill`. The decoder must be used under
`torch.no_grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rfa.model.attention.pages import PAGE_KEYS, PagedHeads, paged_attention, places_of
from rfa.model.attention.validation import fused_refusal
from rfa.model.decoder import Decoder
from rfa.model.decoder_layers import NORM_EPS
from rfa.model.language import StepOutput
from rfa.model.packed import Packed
from rfa.model.ragged_layout import PagedTokens, PageList, Ragged, SlotTokens, pack_for_pages, pack_for_slots
from rfa.model.recurrence.slots import is_on_gpu, slot_scan, triton_refusal
from rfa.model.recurrence.slots_reference import SlotInputs, SlotOptions, SlotReadout
from rfa.runtime.text.config import Mode

if TYPE_CHECKING:
    from rfa.model.ragged_triton import LastTokens

__all__ = ["Ragged", "RaggedDecoder"]


class RaggedDecoder:
    """Decodes many streams at once.

    Attributes:
        attention_refusal, scan_refusal: Reason why the GPU kernels do not support attention mode and recurrent mode.
            None if they do.
        cache_dtype: Dtype of the pools of keys and values.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.attention_refusal = _attention_refusal(decoder)
        self.scan_refusal = _scan_refusal(decoder)
        self.cache_dtype = torch.float32 if self.attention_refusal else decoder.dtype
        if self.attention_refusal is None:
            from rfa.model.attention.triton import stack_heads

            layers, config = decoder.stack("attention").layers, decoder.config
            self._heads = [
                PagedHeads(
                    stack_heads(layer.dynamics), 2 * config.head_dim, decoder.dtype, config.kernel,
                    with_precision=layer is layers[-1],
                )
                for layer in layers
            ]  # fmt: skip

    def tables(self, longest: int) -> list[tuple[Tensor, ...]]:
        """Return the tables over lags of each layer, for at least `longest` keys. Captured CUDA graphs contain the
        addresses of the tables, so the tables must stay allocated while the graphs are used."""
        return [heads.distances(longest) for heads in self._heads]

    def extend(
        self, ragged: Ragged, pages: Sequence[Sequence[int]], keys: Tensor, values: Tensor, noise: Tensor
    ) -> StepOutput:
        """Process tokens in attention mode and write their keys and values to the pages.

        Args:
            ragged: The tokens.
            pages: Page indices of each stream. They have space for its cached keys and for the new tokens.
            keys, values: Pools, `[L, pages · PAGE_KEYS, H, 2D]`.
            noise: Scaled standard normal numbers for the last token of each stream, `[S, H, 2D]`.

        Returns:
            The outputs of the last token of each stream, one row per stream.
        """
        return self.extend_and_check(ragged, pages, keys, values, noise)[0]

    def extend_and_check(
        self, ragged: Ragged, pages: Sequence[PageList], keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[StepOutput, Tensor]:
        """Process tokens like `extend`. Return the outputs, and a tensor `[S]` float32 that is 1 if all new keys and
        values of a stream are finite and 0 otherwise."""
        if self.attention_refusal is not None:
            return self._extend_each(ragged, pages, keys, values, noise)
        totals = ragged.totals
        most = -(-max(totals) // PAGE_KEYS)
        packed = Packed(PagedTokens.fields(len(ragged.tokens), len(totals), most), ragged.device)
        pack_for_pages(ragged, pages, 0, packed.arrays)
        packed.send()
        batch = PagedTokens.of(packed.tensors, sum(totals), max(totals), max(ragged.counts))
        return self.extend_batch(batch, keys, values, noise)

    def extend_batch(
        self, batch: PagedTokens, keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[StepOutput, Tensor]:
        """Process tokens on the device, and return the same values as `extend_and_check`.

        Launches depend only on shapes and on the counts in `batch.pieces`, so a CUDA graph can capture them. Outputs of
        padding are undefined.
        """
        from rfa.model.decoder_triton import Outcome
        from rfa.model.ragged_triton import LastTokens

        config, layers = self._decoder.config, self._decoder.stack("attention").layers
        sizes = len(batch.last), len(layers), config.n_heads, 2 * config.head_dim
        outcome = Outcome.empty(*sizes, batch.tokens.device)
        residual, joint, q = self._keep(batch, keys, values, outcome.broken)
        result = paged_attention(q, keys[-1], values[-1], self._heads[-1], batch.pieces)
        last_tokens = LastTokens(batch.last, result.precision, noise, layers[-1].dynamics.gamma2, outcome)
        return residual.finish_last(result.out, joint, last_tokens, is_turned=config.rotate_values)

    def write_batch(self, batch: PagedTokens, keys: Tensor, values: Tensor) -> Tensor:
        """Compute the keys and values of prompt tokens and write them to the pages, without computing outputs.

        Returns:
            Flags `[L, S, H]` int32, which are 1 if a key or value is not finite and 0 otherwise.
        """
        config = self._decoder.config
        broken = batch.last.new_empty((config.n_layers, len(batch.last), config.n_heads), dtype=torch.int32)
        self._keep(batch, keys, values, broken)
        return broken

    def _keep(
        self, batch: PagedTokens, keys: Tensor, values: Tensor, broken: Tensor
    ) -> tuple[_Residual, Tensor, Tensor]:
        """Write keys and values to the pages. Return the residual stream, the joint product, and the queries of the
        last layer."""
        from rfa.model.ragged_triton import Watch, arrange_for_pages

        config = self._decoder.config
        residual = _Residual(self._decoder, "attention", batch.tokens, batch.positions)
        broken.zero_()
        for index, layer in enumerate(residual.layers):
            joint = residual.joint(index)
            q = arrange_for_pages(
                joint, residual.turn, keys[index], values[index], batch.places, Watch(batch.streams, broken[index]),
                is_unit=config.unit_norm, turns_values=config.rotate_values,
            )  # fmt: skip
            if layer is not residual.layers[-1]:
                out = paged_attention(q, keys[index], values[index], self._heads[index], batch.pieces).out
                residual.mix(index, out, joint, is_turned=config.rotate_values)
        return residual, joint, q

    def prefill(self, ragged: Ragged, means: Tensor, precisions: Tensor) -> tuple[StepOutput, Tensor, Tensor]:
        """Process tokens in recurrent mode.

        Args:
            ragged: The tokens.
            means, precisions: Slots before the tokens, `[L, S, H, slots, 4D]` and `[L, S, H, slots]`.

        Returns:
            The outputs of the last tokens without noise, one row per stream, and the means and precisions after the
            tokens.
        """
        if self.scan_refusal is not None:
            return self._prefill_each(ragged, means, precisions)
        from rfa.model.decoder_triton import Outcome
        from rfa.model.ragged_triton import LastTokens

        config, streams, longest = self._decoder.config, len(ragged.counts), max(ragged.counts)
        packed = Packed(SlotTokens.fields(len(ragged.tokens), streams), ragged.device)
        pack_for_slots(ragged, longest, packed.arrays)
        packed.send()
        batch = SlotTokens.of(packed.tensors, longest)
        residual, joint, readout, after_means, after_precisions = self._scan(batch, means, precisions)
        # There are no flags for layers, because the caller checks that the slots are finite.
        outcome = Outcome.empty(streams, 0, config.n_heads, 2 * config.head_dim, means.device)
        last_tokens = LastTokens(batch.last, readout.precision, None, residual.layers[-1].dynamics.gamma2, outcome)
        output, _ = residual.finish_last(readout.out.flatten(0, 1), joint, last_tokens, is_turned=True, rows=batch.rows)
        return output, after_means, after_precisions

    def scan_batch(self, batch: SlotTokens, means: Tensor, precisions: Tensor) -> tuple[Tensor, Tensor]:
        """Process prompt tokens on the device without computing outputs. Return the means and precisions after the
        tokens.

        Launches depend only on the numbers of tokens and streams, so a CUDA graph can capture them.
        """
        _, _, _, *after = self._scan(batch, means, precisions)
        return after[0], after[1]

    def _scan(
        self, batch: SlotTokens, means: Tensor, precisions: Tensor
    ) -> tuple[_Residual, Tensor, SlotReadout, Tensor, Tensor]:
        """Process all layers up to the mixer of the last layer. Return the residual stream, the joint product, the
        readout, the means and the precisions."""
        from rfa.model.decoder_triton import Gates
        from rfa.model.ragged_triton import arrange_for_slots

        residual = _Residual(self._decoder, "recurrent", batch.tokens, batch.positions)
        shape, after = (len(batch.counts), batch.longest), []
        for index, layer in enumerate(residual.layers):
            joint = residual.joint(index)
            tokens = arrange_for_slots(joint, residual.turn, Gates.of(layer), batch.rows, shape)
            readout, *slots = slot_scan(
                tokens, means[index], precisions[index], layer.required_slots.parameters,
                inner=self._decoder.config.inner, lengths=batch.counts,
            )  # fmt: skip
            after.append(slots)
            if layer is not residual.layers[-1]:
                residual.mix(index, readout.out.flatten(0, 1), joint, is_turned=True, rows=batch.rows)
        after_means, after_precisions = (torch.stack(part) for part in zip(*after, strict=True))
        return residual, joint, readout, after_means, after_precisions

    def _extend_each(
        self, ragged: Ragged, pages: Sequence[PageList], keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[StepOutput, Tensor]:
        outputs, finite = [], []
        parts = zip(_each(ragged), ragged.begins, pages, noise[:, None], strict=True)
        for tokens, begin, own, sample in parts:
            places = places_of(
                torch.tensor(own, device=keys.device), torch.arange(begin + len(tokens), device=keys.device)
            )
            before, own_places = places.split([begin, len(tokens)])
            output, new_keys, new_values = self._decoder.extend(
                tokens, begin, keys[:, before].transpose(1, 2), values[:, before].transpose(1, 2), sample
            )
            keys[:, own_places], values[:, own_places] = new_keys.transpose(1, 2), new_values.transpose(1, 2)
            outputs.append(output)
            finite.append(torch.stack([part.isfinite().all() for part in (new_keys, new_values)]).all())
        return _joined(outputs), torch.stack(finite).float()

    def _prefill_each(self, ragged: Ragged, means: Tensor, precisions: Tensor) -> tuple[StepOutput, Tensor, Tensor]:
        found = [
            self._decoder.prefill(tokens, begin, means[:, row], precisions[:, row])
            for row, (tokens, begin) in enumerate(zip(_each(ragged), ragged.begins, strict=True))
        ]
        outputs, after_means, after_precisions = zip(*found, strict=True)
        return _joined(outputs), torch.stack(after_means, 1), torch.stack(after_precisions, 1)


class _Residual:
    """Residual stream of packed tokens, with the operations of all layers of a mode except their mixers."""

    def __init__(self, decoder: Decoder, mode: Mode, tokens: Tensor, positions: Tensor) -> None:
        from rfa.model import decoder_triton

        self._decoder = decoder
        stack = decoder.stack(mode)
        self.layers = stack.layers
        self._norm = stack.norm
        self._x, self.turn = decoder_triton.begin(
            tokens, positions, decoder.embedding, decoder.scale, decoder.omega.double()
        )

    def joint(self, index: int) -> Tensor:
        """Return the joint product of the projections of a layer, `[T, 3 · H · 2D + …]`."""
        from rfa.model.decoder_triton import joint_product

        return joint_product(self._x, self.layers[index])

    def mix(self, index: int, out: Tensor, joint: Tensor, *, is_turned: bool, rows: Tensor | None = None) -> None:
        """Complete a layer. `out` is the output of its mixer."""
        from rfa.model.ragged_triton import leave_frame

        turn = self.turn if is_turned else None
        self._finish(index, leave_frame(out, turn, self._output_gates(index, joint), self._decoder.dtype, rows))

    def _finish(self, index: int, mixed: Tensor) -> None:
        from rfa.model.decoder_triton import finish_layer

        finish_layer(self._x, mixed, self.layers[index])

    def finish_last(
        self, out: Tensor, joint: Tensor, last: LastTokens, *, is_turned: bool, rows: Tensor | None = None
    ) -> tuple[StepOutput, Tensor]:
        """Complete the last layer. Return the outputs of the last tokens of S streams, and a tensor `[S]` float32 that
        is 1 if all checked values of a stream are finite and 0 otherwise.

        After the mixer, the last layer is computed only for the last tokens.
        """
        from rfa.model.decoder_triton import compute_logits
        from rfa.model.product_triton import Norm
        from rfa.model.ragged_triton import leave_frame

        index, turn = len(self.layers) - 1, self.turn if is_turned else None
        mixed = leave_frame(out, turn, self._output_gates(index, joint), self._decoder.dtype, rows, last)
        if len(last.places) < len(self._x):  # otherwise, the last tokens are all tokens, in order
            self._x = self._x[last.places]
        self._finish(index, mixed)
        norm = Norm(self._norm, NORM_EPS)
        logits, log_precision, is_finite = compute_logits(self._x, norm, self._decoder.embedding, last.outcome)
        return StepOutput(logits, log_precision, last.outcome.latent), is_finite

    def _output_gates(self, index: int, joint: Tensor) -> tuple[Tensor, Tensor] | None:
        bias = self.layers[index].output_gate_bias
        return None if bias is None else (joint[:, -len(bias) :], bias)


def _attention_refusal(decoder: Decoder) -> str | None:
    """Return the reason why the fused kernels do not support the attention of a decoder on its device, or None if they
    do."""
    if not is_on_gpu(decoder.embedding):
        return "it requires a GPU"
    if decoder.config.prior != "lyapunov":
        return f"it requires prior 'lyapunov', got {decoder.config.prior!r}"
    device, width = decoder.device, 2 * decoder.config.head_dim
    layers = decoder.stack("attention").layers
    refusals = (fused_refusal(device, decoder.dtype, width, dynamics=layer.dynamics) for layer in layers)
    return next(filter(None, refusals), None)


def _scan_refusal(decoder: Decoder) -> str | None:
    """Return the reason why the GPU kernels do not support the memory slots of a decoder, or None if they do."""
    config, device = decoder.config, decoder.device
    heads, slots, width = config.n_heads, config.n_slots, 2 * config.head_dim
    if not slots:
        return "the model has no memory slots"
    means = torch.zeros(1, heads, slots, 2 * width, device=device)
    if not is_on_gpu(means):
        return "it requires a GPU"
    vectors, gates = torch.zeros(1, 1, heads, width, device=device), torch.zeros(1, 1, heads, slots, device=device)
    tokens = SlotInputs(vectors, vectors, vectors, gates, gates)
    return triton_refusal(tokens, means, gates[0], SlotOptions(config.inner, config.innovation), with_gradients=False)


def _each(ragged: Ragged) -> Sequence[Tensor]:
    """Split packed tokens into the tokens of each stream."""
    return torch.from_numpy(ragged.tokens).to(ragged.device).split(ragged.counts)


def _joined(outputs: Sequence[StepOutput]) -> StepOutput:
    return StepOutput(*(torch.cat(parts) for parts in zip(*outputs, strict=True)))
