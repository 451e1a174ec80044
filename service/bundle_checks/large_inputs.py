"""Run the golden cases of a bundle in large batches, and its graphs with the longest inputs.

Golden cases have one row and a few tokens. With larger inputs, a graph may exhaust the memory, run forever, or mix the
rows of a batch. Array sizes depend only on input sizes (`rfa.runtime.bundle.graph_check`), so the largest inputs show
the maximum cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, BundleError
from rfa.runtime.bundle.golden import GoldenMismatch, loosen, run_golden
from rfa.runtime.bundle.manifest import GraphSpec
from rfa.runtime.filters.graph_steps import ROW_COUNTS

# Batch sizes by graph. Prompts are read one at a time.
ROWS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "filter": {"step": ROW_COUNTS, "prefill": (16, 64), "forecast": (16, 64)},
    "lm": {"step": (2, 24)},
}
# Largest size of each named dimension.
LONGEST: Mapping[str, Mapping[str, int]] = {
    "filter": {"cache": 1024, "horizon": 256},
    "lm": {"length": 64, "capacity": 4096},
}
# Relative tolerance: matrix products of another size add their terms in another order.
TOLERANCE = 1e-3
TOKENS = "length"  # input with the number of prompt tokens


def check_large_inputs(bundle: Bundle, sessions: Mapping[str, Any]) -> None:
    """Check that each row of a batch reproduces the golden outputs, and that the graphs run with the longest inputs.

    Args:
        sessions: Mapping from names of graphs to sessions.

    Raises:
        BundleError: If a row differs, or the runtime fails.
    """
    counts = ROWS[bundle.kind]
    most = max(map(len, counts.values()))
    loose = loosen(bundle.golden, TOLERANCE)
    for k in range(most):
        rows = {graph: sizes[min(k, len(sizes) - 1)] for graph, sizes in counts.items()}
        batched: dict[str, Any] = {
            name: _BatchedSession(session, rows.get(name, 1)) for name, session in sessions.items()
        }
        try:
            run_golden(loose, batched, bundle.weights())
        except GoldenMismatch as error:
            raise BundleError(f"golden.json: a case failed when it was repeated in a batch: {error}") from None
    for name, graph in bundle.manifest.graphs.items():
        _run_longest(graph, sessions[name], LONGEST[bundle.kind])


class _BatchedSession:
    """Session that runs a batch of `count` copies of one row, and returns one row of each output."""

    def __init__(self, session: Any, count: int) -> None:
        self._session = session
        self._count = count
        self._batched = {
            node.name for node in (*session.get_inputs(), *session.get_outputs()) if node.shape[:1] == ["batch"]
        }

    def get_outputs(self) -> Any:
        """Return a description of each output of the graph."""
        return self._session.get_outputs()

    def run(self, output_names: list[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph. For each output, return the row of the batch that differs most from the first row."""
        batch = {name: self._repeat(name, array) for name, array in inputs.items()}
        outputs = self._session.run(output_names, batch)
        return [self._most_different(name, array) for name, array in zip(output_names, outputs, strict=True)]

    def _repeat(self, name: str, array: np.ndarray) -> np.ndarray:
        return np.repeat(array, self._count, axis=0) if name in self._batched and len(array) == 1 else array

    def _most_different(self, name: str, array: np.ndarray) -> np.ndarray:
        if name not in self._batched:
            return array
        if len(array) != self._count:
            raise ValueError(f"output {name} has {len(array)} rows instead of {self._count}")
        distance = (
            np.abs(np.subtract(array, array[:1], dtype=np.float64)).reshape(len(array), -1).max(axis=1, initial=0)
        )
        worst = int(np.argmax(np.nan_to_num(distance, nan=np.inf)))
        return array[worst : worst + 1]


def _run_longest(graph: GraphSpec, session: Any, longest: Mapping[str, int]) -> None:
    # All inputs are 1, which is a valid token, position, time step and noise.
    inputs = {}
    for spec in graph.inputs:
        shape = tuple(1 if dim == "batch" else longest[dim] if isinstance(dim, str) else dim for dim in spec.shape)
        inputs[spec.name] = np.ones(shape, spec.dtype)
    if TOKENS in inputs:
        inputs[TOKENS][:] = longest[TOKENS]
    try:
        session.run(None, inputs)
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise BundleError(f"{graph.file} fails with long inputs: {str(error)[:200]}") from None
