"""Golden cases again with as many rows, and inputs as long, as are served at most.

Golden outputs are of one row and a few tokens. A graph may give them and still take all memory, never end, or let rows
see each other, as soon as there are more. The sizes of what it computes follow from those of its inputs
(`rfa.runtime.bundle.graph_check`), so that a trial with the largest shows it. What it costs is bounded by the process
that tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, BundleError
from rfa.runtime.bundle.golden import GoldenMismatch, loosen, run_golden
from rfa.runtime.bundle.manifest import GraphSpec
from rfa.runtime.filters.graph_steps import ROW_COUNTS

# Rows of a batch, by graph: prompts are read one at a time.
ROWS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "filter": {"step": ROW_COUNTS, "prefill": (16, 64), "forecast": (16, 64)},
    "lm": {"step": (2, 24)},
}
# Tokens of a piece of a prompt, rows of a cache, horizons: by the names of the dimensions.
LONGEST: Mapping[str, Mapping[str, int]] = {
    "filter": {"cache": 1024, "horizon": 256},
    "lm": {"length": 64, "capacity": 4096},
}
# Another kernel of a matrix product sums in another order.
TOLERANCE = 1e-3
TOKENS = "length"  # of a prompt: as many as there are


def try_wide(bundle: Bundle, sessions: Mapping[str, Any]) -> None:
    """Run the golden cases with more rows, which must all give what one row gave, and once with the longest inputs.

    Raises:
        BundleError: a row gives something else, or the runtime gives up.
    """
    counts = ROWS[bundle.kind]
    most = max(map(len, counts.values()))
    loose = loosen(bundle.golden, TOLERANCE)
    for turn in range(most):
        rows = {graph: given[min(turn, len(given) - 1)] for graph, given in counts.items()}
        widened: dict[str, Any] = {name: _WideSession(session, rows.get(name, 1)) for name, session in sessions.items()}
        try:
            run_golden(loose, widened, bundle.weights())
        except GoldenMismatch as error:
            raise BundleError(f"golden.json in a batch of rows: {error}") from None
    for name, graph in bundle.manifest.graphs.items():
        _run_longest(graph, sessions[name], LONGEST[bundle.kind])


class _WideSession:
    """A session that is asked for one row and runs many of it.

    Args:
        count: rows.
    """

    def __init__(self, session: Any, count: int) -> None:
        self._session = session
        self._count = count
        self._batched = {
            node.name for node in (*session.get_inputs(), *session.get_outputs()) if node.shape[:1] == ["batch"]
        }

    def get_outputs(self) -> Any:
        """As of the session."""
        return self._session.get_outputs()

    def run(self, output_names: list[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The row that differs most from the first, of each output; the first if none does."""
        widened = {name: self._widened(name, array) for name, array in inputs.items()}
        found = self._session.run(output_names, widened)
        return [self._worst(name, array) for name, array in zip(output_names, found, strict=True)]

    def _widened(self, name: str, array: np.ndarray) -> np.ndarray:
        return np.repeat(array, self._count, axis=0) if name in self._batched and len(array) == 1 else array

    def _worst(self, name: str, array: np.ndarray) -> np.ndarray:
        if name not in self._batched:
            return array
        if len(array) != self._count:
            raise ValueError(f"{name} has {len(array)} rows for {self._count}")
        distance = (
            np.abs(np.subtract(array, array[:1], dtype=np.float64)).reshape(len(array), -1).max(axis=1, initial=0)
        )
        worst = int(np.argmax(np.nan_to_num(distance, nan=np.inf)))
        return array[worst : worst + 1]


def _run_longest(graph: GraphSpec, session: Any, longest: Mapping[str, int]) -> None:
    """One row of the longest inputs: of ones, which is a token, a position, a lag and a noise."""
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
    except Exception as error:  # the runtime's exceptions share no base class of their own
        raise BundleError(f"{graph.file}: does not run with long inputs: {str(error)[:200]}") from None
