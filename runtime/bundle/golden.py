"""Golden outputs: small inputs, the outputs that the exporter saw, and the check that every load repeats.

golden.json is `{"cases": [case, …]}`; cases run in order. A case:

    {"graph": "step", "inputs": {name: source}, "outputs": {name: expected}, "absolute": 1e-4, "relative": 1e-4}

    source     {"dtype", "shape", "values": [flat list]}        the array itself
               {"dtype", "shape", "fill": 0}                    a constant array
               {"tensor": "initial.means"}                      a tensor of model.safetensors, a batch of one in front
               {"case": 0, "output": "next_means"}              what an earlier case gave
    expected   {"shape", "indices": [flat indices], "values"}   sampled values
               and optionally "argmax": [index of each row]     the largest along the last axis

A float agrees if it is within absolute + relative · |value|, anything else if it is equal. The tolerances are at most
MAX_TOLERANCE, and every graph occurs with each of its outputs: else the check would show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from rfa.runtime.bundle.documents import BundleError, Strict, read_document
from rfa.runtime.bundle.manifest import GraphSpec, TensorSpec

ABSOLUTE = 1e-4
RELATIVE = 1e-4
# Values of one output that golden.json keeps.
SAMPLES = 24
# A winner is kept as expected only if it leads by this many tolerances: another CPU must not turn a tie.
SAFE_MARGIN = 10.0


MAX_TOLERANCE = 1e-3
GOLDEN_FILE = "golden.json"
# Numbers of one input, and cases: they are small, and are computed at every load.
MAX_NUMBERS = 1 << 22
MAX_CASES = 256
Size = Annotated[int, Field(ge=0, le=MAX_NUMBERS)]
Shape = Annotated[list[Size], Field(max_length=16)]
Dtype = Literal["float64", "float32", "int64", "int32", "bool"]
# What a float32 holds, so that none becomes infinite, from which nothing differs.
Number = bool | Annotated[int | float, Field(ge=-3e38, le=3e38)]


class GoldenMismatch(ValueError):
    """A graph gave something else than golden.json expects, or golden.json is malformed."""


class _Sized(Strict):
    dtype: Dtype
    shape: Shape

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if math.prod(self.shape) > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS} numbers")
        return self


class _ValuesSource(_Sized):
    values: Annotated[list[Number], Field(max_length=MAX_NUMBERS)]

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if len(self.values) != math.prod(self.shape):
            raise ValueError("values and shape differ")
        return self


class _FillSource(_Sized):
    fill: Number


class _TensorSource(Strict):
    tensor: str


class _EarlierSource(Strict):
    case: Annotated[int, Field(ge=0, lt=MAX_CASES)]
    output: str


class _Expected(Strict):
    shape: Shape
    indices: Annotated[list[Size], Field(min_length=1, max_length=1 << 16)]
    values: Annotated[list[Number], Field(max_length=1 << 16)]
    argmax: list[Size] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.indices) != len(self.values) or max(self.indices) >= math.prod(self.shape):
            raise ValueError("indices, values and shape differ")
        return self


class _Case(Strict):
    graph: str
    inputs: dict[str, _ValuesSource | _FillSource | _TensorSource | _EarlierSource]
    outputs: dict[str, _Expected]
    absolute: Annotated[float, Field(ge=0, le=MAX_TOLERANCE)]
    relative: Annotated[float, Field(ge=0, le=MAX_TOLERANCE)]


class _Golden(Strict):
    cases: Annotated[list[_Case], Field(min_length=1, max_length=MAX_CASES)]
    # Notes of a language model: the tokens that were read, and those that followed in each mode.
    prompt: list[Size] | None = None
    continuation: dict[str, list[Size]] | None = None


def check_golden_document(
    document: Mapping[str, Any],
    graphs: Mapping[str, GraphSpec],
    tensors: Mapping[str, TensorSpec],
    vocab_size: int | None,
) -> None:
    """Whether every case can be run, asks for something, and gives the graphs what they take.

    Args:
        vocab_size: of a language model; its tokens are below.

    Raises:
        BundleError: names the case and the reason.
    """
    golden = read_document(_Golden, document, GOLDEN_FILE)
    for i, case in enumerate(golden.cases):
        try:
            _check_case(case, golden.cases[:i], graphs, tensors, vocab_size)
        except ValueError as error:
            raise BundleError(f"{GOLDEN_FILE}: case {i}: {error}") from None
    silent = sorted(graphs.keys() - {case.graph for case in golden.cases})
    if silent:
        raise BundleError(f"{GOLDEN_FILE}: no case runs the graph {silent[0]!r}")


def _check_case(
    case: _Case,
    earlier: list[_Case],
    graphs: Mapping[str, GraphSpec],
    tensors: Mapping[str, TensorSpec],
    vocab_size: int | None,
) -> None:
    graph = graphs.get(case.graph)
    if graph is None:
        raise ValueError("runs a graph that the bundle has not")
    if set(case.inputs) != {spec.name for spec in graph.inputs}:
        raise ValueError(f"inputs are not those of {case.graph}")
    if set(case.outputs) != {spec.name for spec in graph.outputs}:
        raise ValueError(f"outputs are not those of {case.graph}")
    for spec in graph.inputs:
        source = case.inputs[spec.name]
        dtype, shape = _form(source, earlier, graphs, tensors)
        if dtype != spec.dtype or not _fits(shape, spec.shape):
            raise ValueError(f"{spec.name} is {dtype}{list(shape)}, the graph takes {spec.dtype}{list(spec.shape)}")
        if vocab_size is not None and spec.name in ("token", "tokens") and not _are_tokens(source, vocab_size):
            raise ValueError(f"{spec.name} has a token that the model has not")
    for spec in graph.outputs:
        if not _fits(case.outputs[spec.name].shape, spec.shape):
            raise ValueError(f"{spec.name} has another shape than the graph gives")


def _form(
    source: Any, earlier: list[_Case], graphs: Mapping[str, GraphSpec], tensors: Mapping[str, TensorSpec]
) -> tuple[str, tuple[int | str, ...]]:
    """Dtype and shape of an input."""
    if isinstance(source, _TensorSource):
        found = tensors.get(source.tensor)
        if found is None:
            raise ValueError("takes a tensor that the bundle has not")
        return found.dtype, (1, *found.shape)
    if isinstance(source, _EarlierSource):
        outputs = earlier[source.case].outputs if source.case < len(earlier) else {}
        if source.output not in outputs:
            raise ValueError("takes what no earlier case gave")
        specs = {spec.name: spec for spec in graphs[earlier[source.case].graph].outputs}
        return specs[source.output].dtype, tuple(outputs[source.output].shape)
    return source.dtype, tuple(source.shape)


def _are_tokens(source: Any, vocab_size: int) -> bool:
    return isinstance(source, _ValuesSource) and all(0 <= token < vocab_size for token in source.values)


def _fits(shape: Any, wanted: tuple[int | str, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        isinstance(dim, str) or dim == size for size, dim in zip(shape, wanted, strict=True)
    )


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
    """A case that was added: its number, for the inputs of later ones, and what the graph gave, by name."""

    case: int
    outputs: dict[str, np.ndarray]


def loosened(golden: Mapping[str, Any], tolerance: float) -> dict[str, Any]:
    """The cases with room for `tolerance`, absolute and relative; with it, a lead may turn around."""
    cases = []
    for case in golden["cases"]:
        outputs = {
            name: {part: value for part, value in expected.items() if part != "argmax"}
            for name, expected in case["outputs"].items()
        }
        wider = {name: max(case[name], tolerance) for name in ("absolute", "relative")}
        cases.append({**case, **wider, "outputs": outputs})
    return {"cases": cases}


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
