"""Golden outputs: small inputs, the outputs that the exporter saw, and the check that every load repeats.

golden.json is `{"cases": [case, …]}`; cases run in order. A case:

    {"graph": "step", "inputs": {name: source}, "outputs": {name: expected}, "absolute": 1e-4, "relative": 1e-4}

    source     {"dtype", "shape", "values": [flat list]}        the array itself
               {"dtype", "shape", "fill": 0}                    a constant array
               {"tensor": "initial.means"}                      a tensor of model.safetensors, a batch of one in front
               {"case": 0, "output": "next_means"}              what an earlier case gave
    expected   {"shape", "indices": [flat indices], "values"}   sampled values
               and optionally "argmax": [index of each row]     the largest along the last axis

A float agrees if it is within absolute + relative · |value|, anything else if it is equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ABSOLUTE = 1e-4
RELATIVE = 1e-4
# Values of one output that golden.json keeps.
SAMPLES = 24
# A winner is kept as expected only if it leads by this many tolerances: another CPU must not turn a tie.
SAFE_MARGIN = 10.0


class GoldenMismatch(ValueError):
    """A graph gave something else than golden.json expects, or golden.json is malformed."""


class Session(Protocol):
    """What is needed of an onnxruntime.InferenceSession."""

    def get_outputs(self) -> Any: ...

    def run(self, output_names: list[str] | None, inputs: dict[str, np.ndarray]) -> Any: ...


@dataclass(frozen=True)
class Stored:
    """An input taken from model.safetensors, with a batch of one in front."""

    tensor: str


@dataclass(frozen=True)
class Earlier:
    """An input that is the output of an earlier case."""

    case: int
    output: str


@dataclass(frozen=True)
class Filled:
    """An input of one value everywhere."""

    shape: tuple[int, ...]
    value: float = 0.0
    dtype: str = "float32"


Source = np.ndarray | Stored | Earlier | Filled


class GoldenRecorder:
    """Runs cases at export and records what golden.json needs.

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
        """Run one case and keep samples of every output; of `argmax` outputs also the winners that lead clearly."""
        sources = {name: _encode_source(source) for name, source in inputs.items()}
        arrays = {name: _decode_source(source, self._weights, self._outputs) for name, source in sources.items()}
        outputs = _run(self._sessions, graph, arrays)
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
        """Content of golden.json; `notes` are kept beside the cases."""
        return {"cases": self._cases, **notes}


@dataclass(frozen=True)
class RecordedCase:
    case: int
    outputs: dict[str, np.ndarray]


def run_golden(golden: Mapping[str, Any], sessions: Mapping[str, Session], weights: Mapping[str, np.ndarray]) -> int:
    """Run every case and compare; returns how many values were compared.

    Raises:
        GoldenMismatch: with case, graph, output, and the largest difference.
    """
    compared = 0
    outputs: list[dict[str, np.ndarray]] = []
    cases = golden.get("cases")
    if not isinstance(cases, list) or not cases:
        raise GoldenMismatch("has no cases")
    for i, case in enumerate(cases):
        try:
            arrays = {name: _decode_source(source, weights, outputs) for name, source in case["inputs"].items()}
            outputs.append(_run(sessions, case["graph"], arrays))
            for name, expected in case["outputs"].items():
                where = f"case {i}, {case['graph']}.{name}"
                compared += _compare(outputs[-1][name], expected, case["absolute"], case["relative"], where)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise GoldenMismatch(f"case {i} is malformed: {type(error).__name__} {error}") from None
    return compared


def _run(sessions: Mapping[str, Session], graph: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = sessions[graph]
    names = [node.name for node in session.get_outputs()]
    try:
        results = session.run(names, arrays)
    except Exception as error:  # the runtime's exceptions share no base class of their own
        raise GoldenMismatch(f"{graph} does not run: {str(error)[:200]}") from None
    return dict(zip(names, results, strict=True))


def _encode_source(source: Source) -> dict[str, Any]:
    if isinstance(source, Stored):
        return {"tensor": source.tensor}
    if isinstance(source, Earlier):
        return {"case": source.case, "output": source.output}
    if isinstance(source, Filled):
        return {"dtype": source.dtype, "shape": list(source.shape), "fill": source.value}
    return {"dtype": str(source.dtype), "shape": list(source.shape), "values": source.ravel().tolist()}


def _decode_source(
    source: Mapping[str, Any], weights: Mapping[str, np.ndarray], outputs: list[dict[str, np.ndarray]]
) -> np.ndarray:
    if "tensor" in source:
        return weights[source["tensor"]][None]
    if "case" in source:
        return outputs[source["case"]][source["output"]]
    if "fill" in source:
        return np.full(source["shape"], source["fill"], source["dtype"])
    return np.array(source["values"], source["dtype"]).reshape(source["shape"])


def _sample(output: np.ndarray) -> dict[str, Any]:
    flat = output.ravel()
    indices = np.unique(np.linspace(0, max(flat.size - 1, 0), min(SAMPLES, flat.size)).astype(int))
    return {"shape": list(output.shape), "indices": indices.tolist(), "values": flat[indices].tolist()}


def _leads(output: np.ndarray, absolute: float, relative: float) -> bool:
    top = np.sort(output, axis=-1)[..., -2:]
    return bool((top[..., 1] - top[..., 0] > SAFE_MARGIN * (absolute + relative * np.abs(top[..., 1]))).all())


def _compare(actual: np.ndarray, expected: Mapping[str, Any], absolute: float, relative: float, where: str) -> int:
    if list(actual.shape) != expected["shape"]:
        raise GoldenMismatch(f"{where} has shape {list(actual.shape)}, expected {expected['shape']}")
    values = np.asarray(expected["values"], actual.dtype).astype(np.float64)
    found = actual.ravel()[expected["indices"]].astype(np.float64)
    allowed = absolute + relative * np.abs(values) if actual.dtype.kind == "f" else 0.0
    difference = np.abs(found - values)
    # A NaN is never within the tolerance.
    if not (difference <= allowed).all():
        raise GoldenMismatch(
            f"{where} differs by {np.nanmax(difference, initial=0):.3g}, allowed {np.max(allowed):.3g}"
        )
    if "argmax" in expected and actual.argmax(-1).ravel().tolist() != expected["argmax"]:
        raise GoldenMismatch(f"{where} has another winner than expected")
    return len(values)
