"""Decoding step for one batch size, with static buffers and, on a GPU, CUDA graphs.

A graph reads and writes the same addresses at every replay, so the caller must hold a lock during a step. It includes
the sampling of the next tokens. There are two graphs, one with and one without the search for top_k and top_p.
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
from rfa.runtime.gpu.graph import GraphMemory
from rfa.runtime.gpu.pool import DevicePool, Rows
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws

Array = NDArray[np.float32]


class StepResult(NamedTuple):
    """Result of a step for B rows.

    Attributes:
        logits: Logits, `[B, V]`.
        log_precision: Log precision, `[B]`.
        latent: Latent of the last layer, `[B, H, 2D]`.
        is_finite: Whether the new state is finite, `[B]`.
    """

    logits: Array
    log_precision: Array
    latent: Array
    is_finite: NDArray[np.bool_]


class StepRunner:
    """Runs decoding steps for a batch of `size` rows. Unused rows are padding.

    Args:
        decoder: The model.
        pool: Pool with at least `size` padding rows.
        size: Number of rows.
        with_graph: Whether to capture a CUDA graph, which requires a GPU.
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
        self._inputs = Packed({**fields, **TokenDraw.input_fields(size)}, device)
        self._draw = TokenDraw(size, config.vocab_size, self._inputs, device)
        # The keys are values of `is_filtered`.
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, StepOutput]] = {}
        self._set_inputs(
            self._padding[:, :0], np.empty((0, *self._latent_shape), dtype=np.float32), Draws([], np.float32(1))
        )
        if with_graph:
            memory = GraphMemory()
            for is_filtered in (False, True):
                self._graphs[is_filtered] = memory.capture(partial(self._compute, is_filtered=is_filtered))

    def run(self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array) -> StepResult:
        """Process one token of each stream, and return the results on the host.

        Args:
            tokens, positions: Token of each stream, and its position. There are at most `size` streams.
            sources: Rows of the pool that contain the states before the tokens.
            targets: Rows of the pool to which the new states are written.
            noise: Noise for the latent samples, `[n, H, 2D]`.
        """
        draws = Draws([Choice()] * len(tokens), np.float32(1))
        output = self._advance(tokens, positions, sources, targets, noise, draws)
        _, is_finite = self._draw.read(draws, output)
        logits, log_precision, latent = (part[: len(tokens)].cpu().numpy() for part in output)
        return StepResult(logits, log_precision, latent, is_finite)

    def draw(
        self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """Process tokens as `run` does, and sample the next tokens. Return the sampled tokens on the host, and whether
        the new state of each row is finite."""
        return self._draw.read(draws, self._advance(tokens, positions, sources, targets, noise, draws))

    def _advance(
        self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array, draws: Draws
    ) -> StepOutput:
        self._set_inputs(np.stack([tokens, positions, sources, targets]), noise, draws)
        return self.step(is_filtered=draws.are_filtered)

    def step(self, *, is_filtered: bool) -> StepOutput:
        """Run the step with the inputs that were set last, and return its output. The output is on the device and valid
        until the next step."""
        if not self._graphs:
            return self._compute(is_filtered=is_filtered)
        graph, output = self._graphs[is_filtered]
        graph.replay()
        return output

    def _set_inputs(self, numbers: Rows, noise: Array, draws: Draws) -> None:
        """Copy the inputs of n <= size rows to the device, and fill the other rows with padding."""
        count, arrays = numbers.shape[1], self._inputs.arrays
        arrays["numbers"][:, :count], arrays["numbers"][:, count:] = numbers, self._padding[:, count:]
        arrays["noise"][:count], arrays["noise"][count:] = noise, 0
        self._draw.set_inputs(draws)
        self._inputs.send()

    @torch.no_grad()
    def _compute(self, *, is_filtered: bool) -> StepOutput:
        """Run the step and sample the next tokens. Return the output of the step, which is on the device."""
        tokens, positions, sources, targets = self._inputs.tensors["numbers"].unbind()
        output, is_finite = self._decoder.step_between(
            tokens, positions, self._inputs.tensors["noise"], self._pool.slots, sources, targets
        )
        self._draw.compute(output, is_finite, is_filtered=is_filtered)
        return output


def _padding(pool: DevicePool, size: int) -> Rows:
    """Return the tokens, positions, rows to read and rows to write for padding rows, `[4, size]`."""
    nothing = np.zeros(size, dtype=np.int64)
    return np.stack([nothing, nothing, nothing + pool.initial_row, pool.padding_rows[:size]])
