"""The next tokens of many streams of a decoder at once, as many of each as there are: prompts, and steps by attention.

On a GPU the tokens lie side by side, `[T, …]`, through products that sum each row in an order of its own
(`product_triton`), and the fused attention over pages (`attention.pages`) or the scan of the slots: nine launches a
layer, however many streams, and a stream's bits do not depend on the others. Elsewhere, and for models that
the kernels do not run, streams go one by one, as `Decoder.extend` and `Decoder.prefill` have them: the reference.

No gradients: the caller holds `torch.no_grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rfa.model.attention.pages import PAGE_KEYS, KeyPages, PagedHeads, Pieces, paged_attention, places_of
from rfa.model.attention.validation import fused_refusal
from rfa.model.config import Mode
from rfa.model.decoder import NORM_EPS, Decoder
from rfa.model.language import StepOutput
from rfa.model.recurrence.slots import is_on_gpu, slot_scan, triton_refusal
from rfa.model.recurrence.slots_reference import SlotInputs


@dataclass(frozen=True)
class Ragged:
    """Tokens of S streams, one stream behind the other.

    Attributes:
        tokens, positions: `[T]` int64.
        counts: tokens of each stream, at least one.
        begins: position of the first of them.
    """

    tokens: Tensor
    positions: Tensor
    counts: list[int]
    begins: list[int]

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], begins: Sequence[int], device: torch.device) -> Ragged:
        """From the tokens of each stream and the position of the first of them."""
        counts = [len(piece) for piece in tokens]
        positions = [first + index for first, count in zip(begins, counts, strict=True) for index in range(count)]
        together = torch.tensor([[token for piece in tokens for token in piece], positions], device=device)
        return cls(together[0], together[1], counts, list(begins))

    @property
    def totals(self) -> list[int]:
        """Keys of each stream, those of its tokens included."""
        return [begin + count for begin, count in zip(self.begins, self.counts, strict=True)]

    @property
    def last(self) -> Tensor:
        """Where in T each stream ends, `[S]` int64."""
        return torch.tensor([end - 1 for end in accumulate(self.counts)], device=self.tokens.device)

    def pieces(self, pages: Sequence[Sequence[int]]) -> tuple[Pieces, Tensor]:
        """The tokens as queries behind their keys, and the row `[T]` of each in the pools.

        Args:
            pages: of each stream, in order, for all its keys.
        """
        totals, device = self.totals, self.tokens.device
        held = [own[: -(-total // PAGE_KEYS)] for own, total in zip(pages, totals, strict=True)]
        most = max(map(len, held))
        table = torch.tensor([[*own, *[0] * (most - len(own))] for own in held], dtype=torch.int32, device=device)
        stream = torch.tensor([row for row, count in enumerate(self.counts) for _ in range(count)], device=device)
        places = table[stream, self.positions // PAGE_KEYS].long() * PAGE_KEYS + self.positions % PAGE_KEYS
        starts = [[0, *accumulate(lengths)] for lengths in (self.counts, totals)]
        both = torch.tensor(starts, dtype=torch.int32, device=device)
        return Pieces(both[0], both[1], KeyPages(table, sum(totals), max(totals)), max(self.counts)), places

    def rows(self) -> Tensor:
        """The place of each token in `[S, longest]`, `[T]` int64."""
        longest = max(self.counts)
        places = [row * longest + index for row, count in enumerate(self.counts) for index in range(count)]
        return torch.tensor(places, device=self.tokens.device)


class RaggedDecoder:
    """What a decoder does with many streams at once.

    Attributes:
        attention_refusal, scan_refusal: why the kernels of a GPU do not run its modes, or None.
        cache_dtype: of the pools of keys and values.
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

    def extend(
        self, ragged: Ragged, pages: Sequence[Sequence[int]], keys: Tensor, values: Tensor, noise: Tensor
    ) -> StepOutput:
        """Tokens in attention mode, exact over the keys before them; their keys and values are written to the pages.

        Args:
            pages: of each stream, for the keys that it has and these tokens.
            keys, values: pools `[L, pages · PAGE_KEYS, H, 2D]`.
            noise: `[S, H, 2D]` for the last token of each stream.

        Returns:
            outputs of the last tokens, a row a stream.
        """
        if self.attention_refusal is not None:
            return self._extend_each(ragged, pages, keys, values, noise)
        from rfa.model.ragged_triton import arrange_for_pages

        config = self._decoder.config
        pieces, places = ragged.pieces(pages)
        residual = _Residual(self._decoder, "attention", ragged)
        for index, layer in enumerate(residual.layers):
            joint = residual.joint(index)
            q = arrange_for_pages(
                joint, residual.turn, keys[index], values[index], places, is_unit=config.unit_norm,
                turns_values=config.rotate_values,
            )  # fmt: skip
            is_last = layer is residual.layers[-1]
            result = paged_attention(q, keys[index], values[index], self._heads[index], pieces)
            if not is_last:
                residual.mix(index, result.out, joint, is_turned=config.rotate_values)
        last = ragged.last
        return residual.conclude(last, result.out[last], result.precision[last], joint, noise, config.rotate_values)

    def prefill(self, ragged: Ragged, means: Tensor, precisions: Tensor) -> tuple[StepOutput, Tensor, Tensor]:
        """Tokens in recurrent mode, from slots `[L, S, H, slots, 4D]`, `[L, S, H, slots]` to slots.

        Returns:
            outputs of the last tokens, a row a stream, without noise; means and precisions.
        """
        if self.scan_refusal is not None:
            return self._prefill_each(ragged, means, precisions)
        from rfa.model.decoder_triton import Gates
        from rfa.model.ragged_triton import arrange_for_slots

        shape = len(ragged.counts), max(ragged.counts)
        lengths, rows = torch.tensor(ragged.counts, device=means.device), ragged.rows()
        residual = _Residual(self._decoder, "recurrent", ragged)
        after = []
        for index, layer in enumerate(residual.layers):
            joint = residual.joint(index)
            held = layer.held
            gates = Gates(held.gate_bias, layer.dynamics.eta2, held.own_process, layer.output_gate_bias)
            tokens = arrange_for_slots(joint, residual.turn, gates, rows, shape)
            readout, *slots = slot_scan(
                tokens, means[index], precisions[index], held.parameters,
                inner=self._decoder.config.inner, lengths=lengths,
            )  # fmt: skip
            after.append(slots)
            if layer is not residual.layers[-1]:
                residual.mix(index, readout.out.flatten(0, 1), joint, is_turned=True, rows=rows)
        last = ragged.last
        out, precision = (part.flatten(0, 1)[rows[last]] for part in (readout.out, readout.precision))
        output = residual.conclude(last, out, precision, joint, None, True)
        after_means, after_precisions = (torch.stack(part) for part in zip(*after, strict=True))
        return output, after_means, after_precisions

    def _extend_each(
        self, ragged: Ragged, pages: Sequence[Sequence[int]], keys: Tensor, values: Tensor, noise: Tensor
    ) -> StepOutput:
        outputs = []
        parts = zip(ragged.tokens.split(ragged.counts), ragged.begins, pages, noise[:, None], strict=True)
        for tokens, begin, own, sample in parts:
            held = torch.tensor(own, device=keys.device)
            places = places_of(held, torch.arange(begin + len(tokens), device=keys.device))
            before, own_places = places.split([begin, len(tokens)])
            output, new_keys, new_values = self._decoder.extend(
                tokens, begin, keys[:, before].transpose(1, 2), values[:, before].transpose(1, 2), sample
            )
            keys[:, own_places], values[:, own_places] = new_keys.transpose(1, 2), new_values.transpose(1, 2)
            outputs.append(output)
        return _joined(outputs)

    def _prefill_each(self, ragged: Ragged, means: Tensor, precisions: Tensor) -> tuple[StepOutput, Tensor, Tensor]:
        found = [
            self._decoder.prefill(tokens, begin, means[:, row], precisions[:, row])
            for row, (tokens, begin) in enumerate(zip(ragged.tokens.split(ragged.counts), ragged.begins, strict=True))
        ]
        outputs, after_means, after_precisions = zip(*found, strict=True)
        return _joined(outputs), torch.stack(after_means, 1), torch.stack(after_precisions, 1)


class _Residual:
    """The residual stream of tokens side by side, and the layers of a mode around their mixers."""

    def __init__(self, decoder: Decoder, mode: Mode, ragged: Ragged) -> None:
        from rfa.model import decoder_triton

        self._decoder = decoder
        stack = decoder.stack(mode)
        self.layers = stack.layers
        self._norm = stack.norm
        self._x, self.turn = decoder_triton.begin(
            ragged.tokens, ragged.positions, decoder.embedding, decoder.scale, decoder.omega.double()
        )

    def joint(self, index: int) -> Tensor:
        """What all projections of a layer give, `[T, 3 · H · 2D + …]`."""
        from rfa.model.product_triton import Norm, product

        readout = self.layers[index].readout
        return product(self._x, readout.mix_in, Norm(readout.mixer_norm, NORM_EPS))

    def mix(self, index: int, out: Tensor, joint: Tensor, *, is_turned: bool, rows: Tensor | None = None) -> None:
        """Go on with what the mixer of a layer gave, to the end of the layer."""
        from rfa.model.product_triton import Norm, add_product, product
        from rfa.model.ragged_triton import settle

        layer, dtype = self.layers[index], self._decoder.dtype
        mixed = settle(out, self.turn if is_turned else None, self._output_gates(index, joint), dtype, rows)
        add_product(self._x, mixed, layer.readout.mix_out)
        norm = Norm(layer.readout.feed_forward_norm, NORM_EPS)
        add_product(self._x, product(self._x, layer.up, norm, with_gelu=True), layer.down)

    def conclude(
        self, last: Tensor, out: Tensor, precision: Tensor, joint: Tensor, noise: Tensor | None, is_turned: bool
    ) -> StepOutput:
        """The outputs of the last tokens `[S]`, of which alone the rest of the last layer is computed.

        Args:
            out, precision: of the last layer's mixer for these tokens, `[S, H, 2D]` and `[S, H]`.
            joint: of the last layer, for all tokens.
        """
        from rfa.model.decoder_triton import Turned
        from rfa.model.product_triton import Norm, product
        from rfa.model.ragged_triton import settle

        layer = self.layers[-1]
        latent = out
        if is_turned:
            turn = Turned(*(part[last] for part in self.turn))
            latent = settle(out, turn, None, torch.float32).reshape(out.shape)
        if noise is not None:
            latent = latent + noise * torch.sqrt((1 / precision + layer.dynamics.gamma2) / 2)[..., None]
        self._x = self._x[last]
        self.mix(len(self.layers) - 1, latent.contiguous(), joint[last], is_turned=False)
        logits = product(self._x, self._decoder.embedding, Norm(self._norm, NORM_EPS))
        return StepOutput(logits, torch.log(precision).mean(-1), latent)

    def _output_gates(self, index: int, joint: Tensor) -> tuple[Tensor, Tensor] | None:
        bias = self.layers[index].output_gate_bias
        return None if bias is None else (joint[:, -len(bias) :], bias)


def _attention_refusal(decoder: Decoder) -> str | None:
    """Why the fused kernels cannot run the attention of a decoder where it is, or None."""
    if not is_on_gpu(decoder.embedding):
        return "it runs on a GPU"
    if decoder.config.prior != "lyapunov":
        return f"it knows the prior 'lyapunov', got {decoder.config.prior!r}"
    device, width = decoder.device, 2 * decoder.config.head_dim
    layers = decoder.stack("attention").layers
    refusals = (fused_refusal(device, decoder.dtype, width, dynamics=layer.dynamics) for layer in layers)
    return next(filter(None, refusals), None)


def _scan_refusal(decoder: Decoder) -> str | None:
    """Why the scan of a GPU cannot run the slots of a decoder, or None."""
    config, device = decoder.config, decoder.device
    heads, slots, width = config.n_heads, config.n_slots, 2 * config.head_dim
    if not slots:
        return "it has no slots"
    means = torch.zeros(1, heads, slots, 2 * width, device=device)
    if not is_on_gpu(means):
        return "it runs on a GPU"
    vectors, gates = torch.zeros(1, 1, heads, width, device=device), torch.zeros(1, 1, heads, slots, device=device)
    tokens = SlotInputs(vectors, vectors, vectors, gates, gates)
    return triton_refusal(tokens, means, gates[0], config.inner, config.innovation, with_gradients=False)


def _joined(outputs: Sequence[StepOutput]) -> StepOutput:
    return StepOutput(*(torch.cat(parts) for parts in zip(*outputs, strict=True)))
