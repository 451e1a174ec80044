"""Record golden outputs during export. `rfa.runtime.bundle.golden` defines their format and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.bundle.golden import ABSOLUTE, RELATIVE, Session, decode_source, run_graph

# Number of stored values per output.
SAMPLES = 24
# The argmax is recorded only if its value exceeds all others by this many tolerances, because other CPUs may swap two
# outputs that are nearly equal.
SAFE_MARGIN = 10.0


class Stored(NamedTuple):
    """An input that is a tensor of model.safetensors. A batch dimension of one is added."""

    tensor: str


class Earlier(NamedTuple):
    """An input that is an output of an earlier case."""

    case: int
    output: str


class Filled(NamedTuple):
    """An input whose elements all have the same value."""

    shape: tuple[int, ...]
    value: float = 0.0
    dtype: str = "float32"


Source = np.ndarray | Stored | Earlier | Filled


class GoldenRecorder:
    """Runs cases during export, and collects them for golden.json.

    recorder = GoldenRecorder(sessions, weights)
    first = recorder.run("step", {"token": np.array([5]), "means": Stored("initial.means"), …})
    recorder.run("step", {"token": np.array([7]), "means": Earlier(first.case, "next_means"), …})
    write_bundle(…, golden=recorder.document())
    """

    def __init__(self, sessions: Mapping[str, Session], weights: Mapping[str, np.ndarray]) -> None:
        self._sessions, self._weights = sessions, weights
        self._cases: list[dict[str, Any]] = []
        self._outputs: list[dict[str, np.ndarray]] = []

    def run(
        self,
        graph: str,
        inputs: Mapping[str, Source],
        *,
        absolute: float = ABSOLUTE,
        relative: float = RELATIVE,
        argmax: tuple[str, ...] = (),
    ) -> RecordedCase:
        """Run a case, record samples of its outputs, and return the recorded case.

        Args:
            graph: Name of the graph.
            inputs: Mapping from names to inputs of the graph.
            absolute, relative: Tolerances of the check, absolute and relative to the magnitude of a value.
            argmax: Names of outputs whose argmax is also recorded, if it exceeds the second largest value by
                `SAFE_MARGIN` tolerances.
        """
        sources = {name: _encode_source(source) for name, source in inputs.items()}
        arrays = {name: decode_source(source, self._weights, self._outputs) for name, source in sources.items()}
        outputs = run_graph(self._sessions, graph, arrays)
        expected = {}
        for name, output in outputs.items():
            expected[name] = _sample(output)
            if name in argmax and _leads(output, absolute, relative):
                expected[name]["argmax"] = output.argmax(-1).ravel().tolist()
        case = {"graph": graph, "inputs": sources, "outputs": expected, "absolute": absolute, "relative": relative}
        self._cases.append(case)
        self._outputs.append(outputs)
        return RecordedCase(len(self._cases) - 1, outputs)

    def document(self, **notes: Any) -> dict[str, Any]:
        """Return the content of golden.json, which consists of the recorded cases and of the fields in `notes`."""
        return {"cases": self._cases, **notes}


class RecordedCase(NamedTuple):
    """The index of a recorded case, and a mapping from names to its outputs."""

    case: int
    outputs: dict[str, np.ndarray]


def _encode_source(source: Source) -> dict[str, Any]:
    if isinstance(source, Stored):
        return {"tensor": source.tensor}
    if isinstance(source, Earlier):
        return {"case": source.case, "output": source.output}
    if isinstance(source, Filled):
        return {"dtype": source.dtype, "shape": list(source.shape), "fill": source.value}
    return {"dtype": str(source.dtype), "shape": list(source.shape), "values": source.ravel().tolist()}


def _sample(output: np.ndarray) -> dict[str, Any]:
    flat = output.ravel()
    indices = np.unique(np.linspace(0, max(flat.size - 1, 0), min(SAMPLES, flat.size)).astype(int))
    return {"shape": list(output.shape), "indices": indices.tolist(), "values": flat[indices].tolist()}


def _leads(output: np.ndarray, absolute: float, relative: float) -> bool:
    top = np.sort(output, axis=-1)[..., -2:]
    return bool((top[..., 1] - top[..., 0] > SAFE_MARGIN * (absolute + relative * np.abs(top[..., 1]))).all())
