"""Run a language model with CPU tensors, with the same calls as a server on a GPU.

Under `rfa.model.placement.simulated_gpu`, these calls launch the kernels of the server, so that other code can
intercept the launches. Otherwise, they run the eager code that is the reference for the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.attention.pages import PAGE_KEYS, places_of
from rfa.model.decoder import Decoder, SlotPool
from rfa.model.draw import Distribution, Drawn, draw
from rfa.model.language import LanguageModel, StepOutput
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged

# Dtypes of the matrices. GPU servers use bfloat16, and float32 for the golden outputs at load.
DTYPES = (torch.bfloat16, torch.float32)


class Cache(NamedTuple):
    """Cache of one stream in attention mode: its keys and values, `[L, n, H, 2D]` each."""

    keys: Tensor
    values: Tensor


class ServedPasses:
    """Runs prefill, step, attention and sampling of a model in one dtype.

    Args:
        model: Model on the CPU, in float32.
        dtype: Dtype of the matrices.

    Attributes:
        has_slots: Whether the kernels support the recurrent mode.
        has_attention: Whether the kernels support the attention mode.

    Raises:
        ValueError: If no decoder supports the model.
    """

    def __init__(self, model: LanguageModel, dtype: torch.dtype) -> None:
        self.model, self.decoder = model, Decoder(model, dtype)
        self._ragged = RaggedDecoder(self.decoder)
        self.has_slots = self._ragged.scan_refusal is None
        self.has_attention = self._ragged.attention_refusal is None

    def prefill(
        self, pieces: Sequence[Sequence[int]], begins: Sequence[int], slots: SlotPool
    ) -> tuple[StepOutput, SlotPool]:
        """Process the next tokens of B streams in recurrent mode.

        Args:
            pieces: New tokens of each stream.
            begins: Position of the first new token of each stream.
            slots: Memory slots before the tokens, `[L, B, …]`.

        Returns:
            Output for the last token of each stream, and the memory slots after it.
        """
        output, means, precisions = self._ragged.prefill(Ragged.of(pieces, begins, torch.device("cpu")), *slots)
        return output, SlotPool(means, precisions)

    def step(
        self, tokens: Sequence[int], positions: Sequence[int], noise: Tensor, slots: SlotPool
    ) -> tuple[StepOutput, SlotPool]:
        """Process one token of B streams in recurrent mode. Return the output, and the memory slots after the token.

        Args:
            tokens, positions: Token of each stream, and its position.
            noise: Standard normal noise times the requested scale, `[B, H, 2D]`.
            slots: Memory slots before the token, `[L, B, …]`. They are not modified.
        """
        pool = SlotPool(*(part.clone() for part in slots))
        # As in serving, the tensors are contiguous and the noise is not aligned.
        rows = list(range(len(tokens)))
        token, position, source, target = torch.tensor([list(tokens), list(positions), rows, rows]).unbind()
        unaligned = noise.new_empty(1 + noise.numel())[1:].reshape(noise.shape).copy_(noise)
        output, _ = self.decoder.step_between(token, position, unaligned, pool, source, target)
        return output, pool

    def extend(
        self, pieces: Sequence[Sequence[int]], held: Sequence[Cache], noise: Tensor
    ) -> tuple[StepOutput, list[Cache]]:
        """Process the next tokens of B streams in attention mode.

        Args:
            pieces: New tokens of each stream.
            held: Cache of each stream.
            noise: Standard normal noise times the requested scale, `[B, H, 2D]`.

        Returns:
            Output for the last token of each stream, and the keys and values of its new tokens.
        """
        begins = [cache.keys.shape[1] for cache in held]
        totals = [begin + len(piece) for begin, piece in zip(begins, pieces, strict=True)]
        counts = [-(-total // PAGE_KEYS) for total in totals]
        # Pages are in descending order, so that none is adjacent to its predecessor.
        free = iter(reversed(range(sum(counts))))
        pages = [[next(free) for _ in range(count)] for count in counts]
        layers, _, heads, width = held[0].keys.shape
        keys, values = (
            torch.zeros(layers, sum(counts) * PAGE_KEYS, heads, width, dtype=self._ragged.cache_dtype) for _ in range(2)
        )
        places = [places_of(torch.tensor(own), torch.arange(total)) for own, total in zip(pages, totals, strict=True)]
        for cache, own, begin in zip(held, places, begins, strict=True):
            keys[:, own[:begin]], values[:, own[:begin]] = (part.to(keys.dtype) for part in cache)
        output = self._ragged.extend(Ragged.of(pieces, begins, torch.device("cpu")), pages, keys, values, noise)
        new = [own[begin:] for own, begin in zip(places, begins, strict=True)]
        return output, [Cache(keys[:, own].float(), values[:, own].float()) for own in new]

    def draw(self, output: StepOutput, is_filtered: bool) -> Drawn:
        """Sample the next token of each row from the outputs. If `is_filtered` is true, top_p and top_k apply to the
        first row."""
        rows, vocabulary = output.logits.shape
        ones = torch.ones(rows)
        top_p, last_place = torch.full((rows,), math.inf, dtype=torch.float64), torch.full((rows,), vocabulary - 1)
        if is_filtered:
            top_p[0], last_place[0] = 0.9, vocabulary // 2
        given = Distribution(top_p, 0.5 * ones.double(), last_place, ones, torch.ones(1))
        drawn = Drawn.empty(rows, output.logits.device)
        draw(output, ones, given, drawn, is_filtered=is_filtered)
        return drawn

    def empty_cache(self) -> Cache:
        """Return an empty cache for a stream without tokens."""
        config = self.decoder.config
        return Cache(*(torch.zeros(config.n_layers, 0, config.n_heads, 2 * config.head_dim) for _ in range(2)))

    def silence(self, streams: int) -> Tensor:
        """Return noise that consists of zeros for B streams, `[B, H, 2D]`."""
        return torch.zeros(streams, self.decoder.config.n_heads, 2 * self.decoder.config.head_dim)


def initial_slots(model: LanguageModel, streams: int) -> SlotPool:
    """Return the memory slots of B streams before their first token."""
    state = model.init_state(streams)
    return SlotPool(*(part.transpose(0, 1).contiguous() for part in (state.means, state.precisions)))
