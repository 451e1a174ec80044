"""CUDA graphs: a replayed one launches all its kernels at once and allocates nothing; launched one by one from Python
they would take longer than they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
WARM_UP = 2  # runs before a graph is captured: libraries allocate and choose kernels in the first


class GraphRoom:
    """Where graphs are captured, and the memory that they work in together: one of them runs at a time, and what it
    leaves is read before another does."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()

    def capture(self, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """A graph of what `compute` launches, and what it gives: every replay writes that anew, in its place."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UP):
                compute()
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the GPU: bundles are loaded anew while the old ones serve.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            left = compute()
        return graph, left
