"""CUDA graphs. A replay launches all kernels of a graph at once, which is faster than launching them from Python, and
allocates no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
WARM_UP = 2  # runs before a capture, because libraries allocate memory and choose kernels in the first run


class GraphMemory:
    """Captures graphs that use the same memory. Only one graph may run at a time, and its output must be read before
    the next one runs."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()

    def capture(self, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Capture the launches of `compute`. Return the graph and its output, which every replay overwrites."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UP):
                compute()
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU, because a bundle is reloaded while the old one serves requests.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            output = compute()
        return graph, output
