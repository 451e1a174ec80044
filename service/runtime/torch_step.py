"""The decode step at one batch size: fixed places for what goes in and what comes out, and on a GPU one CUDA graph.

A replayed graph launches all kernels of all layers at once and allocates nothing; launched one by one from Python they
would take longer than they run. A graph reads and writes the same addresses every time, hence the fixed places, and
hence one step at a time: the caller holds a lock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.decoder import Decoder
from rfa.service.runtime.torch_pool import DevicePool, Rows

Array = NDArray[np.float32]
WARM_UP = 2  # runs before a graph is captured: libraries allocate and choose kernels in the first


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
        self._numbers = torch.tensor(self._padding, device=device)  # tokens, positions, rows to read, rows to write
        self._noise = torch.zeros((size, *self._latent_shape), device=device)
        # What is copied to and from a GPU goes through pinned memory, which it reads by itself.
        self._host_numbers = _host(self._numbers)
        self._host_noise = _host(self._noise)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output = self._compute()
        self._host_output = _host(self._output)
        if with_graph:
            self._capture()

    def run(self, tokens: Rows, positions: Rows, sources: Rows, targets: Rows, noise: Array) -> StepResult:
        """One token of n <= size streams: slots are read from rows `sources` of the pool and written to `targets`."""
        count = len(tokens)
        numbers, padded_noise = self._host_numbers.numpy(), self._host_noise.numpy()
        numbers[:, :count] = tokens, positions, sources, targets
        numbers[:, count:] = self._padding[:, count:]
        padded_noise[:count], padded_noise[count:] = noise, 0
        self._numbers.copy_(self._host_numbers, non_blocking=True)
        self._noise.copy_(self._host_noise, non_blocking=True)
        if self._graph is None:
            self._output = self._compute()
        else:
            self._graph.replay()
        self._host_output.copy_(self._output)  # waits for the device
        return self._split(self._host_output.numpy()[:count].copy())

    @torch.no_grad()
    def _compute(self) -> Tensor:
        """`[size, V + 1 + H · 2D + 1]`: the outputs of each row side by side, for one copy to the host."""
        tokens, positions, sources, targets = self._numbers.unbind()
        slots = self._pool.slots
        for part in slots:
            part.index_copy_(1, targets, part.index_select(1, sources))
        output = self._decoder.step(tokens, positions, self._noise, slots, targets)
        finite = [part.index_select(1, targets).isfinite().transpose(0, 1).flatten(1).all(1) for part in slots]
        is_finite = torch.stack(finite).all(0)[:, None]
        parts = (output.logits, output.log_precision[:, None], output.latent.flatten(1), is_finite.float())
        return torch.cat(parts, dim=1)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._compute()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the GPU: bundles are loaded anew while the old ones serve.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = self._compute()

    def _split(self, output: Array) -> StepResult:
        vocabulary = self._decoder.config.vocab_size
        latent = output[:, vocabulary + 1 : -1].reshape(len(output), *self._latent_shape)
        return StepResult(output[:, :vocabulary], output[:, vocabulary], latent, output[:, -1] == 1)


def _padding(pool: DevicePool, size: int) -> Rows:
    """Tokens, positions, rows to read and rows to write `[4, size]` of a batch of nothing but padding."""
    nothing = np.zeros(size, dtype=np.int64)
    return np.stack([nothing, nothing, nothing + pool.initial_row, pool.padding_rows[:size]])


def _host(like: Tensor) -> Tensor:
    """Memory of the host for a copy of a tensor."""
    return torch.zeros(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
