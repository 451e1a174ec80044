"""The decode step at one batch size: fixed places for what goes in and what comes out, and on a GPU one CUDA graph.

A graph reads and writes the same addresses every time, hence the fixed places, and hence one step at a time: the caller
holds a lock. The next tokens are chosen in it. There are two: with the search for where top_k and top_p end, and
without.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.model.decoder import Decoder
from rfa.model.language import StepOutput
from rfa.model.packed import Fields, Packed
from rfa.runtime.gpu.draw import TokenDraw
from rfa.runtime.gpu.graph import GraphRoom
from rfa.runtime.gpu.pool import DevicePool, Rows
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws

Array = NDArray[np.float32]


class StepResult(NamedTuple):
    """Of every row: logits `[B, V]`, log_precision `[B]`, latent `[B, H, 2D]`, is_finite `[B]` (the new slots)."""

    logits: Array
    log_precision: Array
    latent: Array
    is_finite: NDArray[np.bool_]


class StepRunner:
    """Steps of `size` rows, of which some may be padding.

    Args:
        decoder: the model.
        pool: has at least `size` rows for padding.
        size: rows.
        with_graph: capture a CUDA graph; only on a GPU.
    """

    def __init__(self, decoder: Decoder, pool: DevicePool, size: int, *, with_graph: bool) -> None:
        config, device = decoder.config, decoder.device
        self._decoder, self._pool = decoder, pool
        self._latent_shape = (config.n_heads, 2 * config.head_dim)
        self._padding = _padding(pool, size)
        fields: Fields = {
            "numbers": (torch.int64, (4, size)),  # tokens, positions, rows to read, rows to write
            "noise": (torch.float32, (size, *self._latent_shape)),
        }
        self._given = Packed({**fields, **TokenDraw.given_fields(size)}, device)
        self._draw = TokenDraw(size, config.vocab_size, self._given, device)
        # By whether rows are filtered.
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, StepOutput]] = {}
        self._lay(self._padding[:, :0], np.empty((0, *self._latent_shape), dtype=np.float32), Draws([], np.float32(1)))
        if with_graph:
            room = GraphRoom()
            for is_filtered in (False, True):
                self._graphs[is_filtered] = room.capture(partial(self._compute, is_filtered=is_filtered))

    def run(self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array) -> StepResult:
        """One token of n <= size streams: slots are read from rows `sources` of the pool and written to `targets`."""
        draws = Draws([Choice()] * len(tokens), np.float32(1))
        output = self._advance(tokens, positions, sources, targets, noise, draws)
        _, is_finite = self._draw.read(draws, output)
        logits, log_precision, latent = (part[: len(tokens)].cpu().numpy() for part in output)
        return StepResult(logits, log_precision, latent, is_finite)

    def draw(
        self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """`run`, of which what is drawn comes to the host, and not the logits; and of every row whether its new slots
        are finite."""
        return self._draw.read(draws, self._advance(tokens, positions, sources, targets, noise, draws))

    def _advance(
        self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array, draws: Draws
    ) -> StepOutput:
        self._lay(np.stack([tokens, positions, sources, targets]), noise, draws)
        return self.step(is_filtered=draws.are_filtered)

    def step(self, *, is_filtered: bool) -> StepOutput:
        """The step of what was laid last, on the device; its output, until the next one."""
        if not self._graphs:
            return self._compute(is_filtered=is_filtered)
        graph, output = self._graphs[is_filtered]
        graph.replay()
        return output

    def _lay(self, numbers: Rows, noise: Array, draws: Draws) -> None:
        """Give the device the inputs of n <= size rows, and padding for the others."""
        count, given = numbers.shape[1], self._given.arrays
        given["numbers"][:, :count], given["numbers"][:, count:] = numbers, self._padding[:, count:]
        given["noise"][:count], given["noise"][count:] = noise, 0
        self._draw.lay(draws)
        self._given.send()

    @torch.no_grad()
    def _compute(self, *, is_filtered: bool) -> StepOutput:
        """The step, and the choice of the next tokens."""
        tokens, positions, sources, targets = self._given.tensors["numbers"].unbind()
        output, is_finite = self._decoder.step_between(
            tokens, positions, self._given.tensors["noise"], self._pool.slots, sources, targets
        )
        self._draw.compute(output, is_finite, is_filtered=is_filtered)
        return output


def _padding(pool: DevicePool, size: int) -> Rows:
    """Tokens, positions, rows to read and rows to write `[4, size]` of a batch of nothing but padding."""
    nothing = np.zeros(size, dtype=np.int64)
    return np.stack([nothing, nothing, nothing + pool.initial_row, pool.padding_rows[:size]])
