"""Golden outputs of a bundle, which are the outputs that the exporter computed for small inputs. They are compared
whenever a bundle is loaded.

golden.json is `{"cases": [case, …]}`. Cases run in order. A case is

    {"graph": "step", "inputs": {name: source}, "outputs": {name: expected}, "absolute": 1e-4, "relative": 1e-4}

    source     {"dtype", "shape", "values": [flat list]}        an array
               {"dtype", "shape", "fill": 0}                    a constant array
               {"tensor": "initial.means"}                      a tensor of model.safetensors, as a batch of one
               {"case": 0, "output": "next_means"}              an output of an earlier case
    expected   {"shape", "indices": [flat indices], "values"}   sampled values
               and optionally "argmax": [index of each row]     index of the maximum along the last axis

Floats must agree within absolute + relative · |value|. Values of other types must be equal. Tolerances are at most
MAX_TOLERANCE. The cases include every graph with all of its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from rfa.runtime.bundle.documents import BundleError, Strict, read_document
from rfa.runtime.bundle.manifest import GraphSpec, TensorSpec

ABSOLUTE = 1e-4
RELATIVE = 1e-4
MAX_TOLERANCE = 1e-3
GOLDEN_FILE = "golden.json"
# Limits on the numbers per input and on the number of cases, because cases run whenever a bundle is loaded.
MAX_NUMBERS = 1 << 22
MAX_CASES = 256
Size = Annotated[int, Field(ge=0, le=MAX_NUMBERS)]
Shape = Annotated[list[Size], Field(max_length=16)]
Dtype = Literal["float64", "float32", "int64", "int32", "bool"]
# Numbers must be finite in float32, because no difference from infinity is finite.
Number = bool | Annotated[int | float, Field(ge=-3e38, le=3e38)]


class GoldenMismatch(ValueError):
    """Raised if an output differs from golden.json, or if golden.json is malformed."""


class _Sized(Strict):
    dtype: Dtype
    shape: Shape

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if math.prod(self.shape) > MAX_NUMBERS:
            raise ValueError(f"shape has more than {MAX_NUMBERS} numbers")
        return self


class _ValuesSource(_Sized):
    values: Annotated[list[Number], Field(max_length=MAX_NUMBERS)]

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if len(self.values) != math.prod(self.shape):
            raise ValueError("the number of values must match shape")
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
            raise ValueError("indices, values and shape do not match")
        return self


class _Case(Strict):
    graph: str
    inputs: dict[str, _ValuesSource | _FillSource | _TensorSource | _EarlierSource]
    outputs: dict[str, _Expected]
    absolute: Annotated[float, Field(ge=0, le=MAX_TOLERANCE)]
    relative: Annotated[float, Field(ge=0, le=MAX_TOLERANCE)]


class _Golden(Strict):
    cases: Annotated[list[_Case], Field(min_length=1, max_length=MAX_CASES)]
    # Notes for a language model: the prompt, and its continuation in each mode.
    prompt: list[Size] | None = None
    continuation: dict[str, list[Size]] | None = None


def check_golden_document(
    document: Mapping[str, Any],
    graphs: Mapping[str, GraphSpec],
    tensors: Mapping[str, TensorSpec],
    vocab_size: int | None,
) -> None:
    """Check that each case matches the interface of its graph, and that the cases use all graphs.

    Args:
        document: Content of golden.json.
        graphs: Mapping from names of graphs to interfaces.
        tensors: Mapping from names to tensors of model.safetensors.
        vocab_size: Vocabulary size of a language model. None for other models.

    Raises:
        BundleError: If a case does not match, or no case uses a graph. The message names the case or the graph.
    """
    golden = read_document(_Golden, document, GOLDEN_FILE)
    for i, case in enumerate(golden.cases):
        try:
            _check_case(case, golden.cases[:i], graphs, tensors, vocab_size)
        except ValueError as error:
            raise BundleError(f"{GOLDEN_FILE}: case {i}: {error}") from None
    unused = sorted(graphs.keys() - {case.graph for case in golden.cases})
    if unused:
        raise BundleError(f"{GOLDEN_FILE}: no case uses the graph {unused[0]!r}")


def _check_case(
    case: _Case,
    earlier: list[_Case],
    graphs: Mapping[str, GraphSpec],
    tensors: Mapping[str, TensorSpec],
    vocab_size: int | None,
) -> None:
    graph = graphs.get(case.graph)
    if graph is None:
        raise ValueError(f"the case runs graph {case.graph[:80]!r}, which is not in the bundle")
    if set(case.inputs) != {spec.name for spec in graph.inputs}:
        raise ValueError(f"the inputs do not match the interface of {case.graph}")
    if set(case.outputs) != {spec.name for spec in graph.outputs}:
        raise ValueError(f"the outputs do not match the interface of {case.graph}")
    for spec in graph.inputs:
        source = case.inputs[spec.name]
        dtype, shape = _form(source, earlier, graphs, tensors)
        if dtype != spec.dtype or not _fits(shape, spec.shape):
            raise ValueError(f"{spec.name} is {dtype}{list(shape)}, expected {spec.dtype}{list(spec.shape)}")
        if vocab_size is not None and spec.name in ("token", "tokens") and not _are_tokens(source, vocab_size):
            raise ValueError(f"{spec.name} contains a token outside the vocabulary of {vocab_size} tokens")
    for spec in graph.outputs:
        if not _fits(case.outputs[spec.name].shape, spec.shape):
            raise ValueError(
                f"{spec.name} has shape {list(case.outputs[spec.name].shape)}, expected {list(spec.shape)}"
            )


def _form(
    source: Any, earlier: list[_Case], graphs: Mapping[str, GraphSpec], tensors: Mapping[str, TensorSpec]
) -> tuple[str, tuple[int | str, ...]]:
    """Return the dtype and the shape of the array that a source in golden.json describes."""
    if isinstance(source, _TensorSource):
        found = tensors.get(source.tensor)
        if found is None:
            raise ValueError(f"an input refers to tensor {source.tensor[:80]!r}, which is not in the bundle")
        return found.dtype, (1, *found.shape)
    if isinstance(source, _EarlierSource):
        outputs = earlier[source.case].outputs if source.case < len(earlier) else {}
        if source.output not in outputs:
            raise ValueError(
                f"an input refers to output {source.output[:80]!r} of case {source.case}, "
                "but this case is not earlier or has no such output"
            )
        specs = {spec.name: spec for spec in graphs[earlier[source.case].graph].outputs}
        return specs[source.output].dtype, tuple(outputs[source.output].shape)
    return source.dtype, tuple(source.shape)


def _are_tokens(source: Any, vocab_size: int) -> bool:
    return isinstance(source, _ValuesSource) and all(0 <= token < vocab_size for token in source.values)


def _fits(shape: Any, declared: tuple[int | str, ...]) -> bool:
    return len(shape) == len(declared) and all(
        isinstance(dim, str) or dim == size for size, dim in zip(shape, declared, strict=True)
    )


class Session(Protocol):
    """Interface of a session: the methods of onnxruntime.InferenceSession that this module calls."""

    def get_outputs(self) -> Any: ...

    def run(self, output_names: list[str] | None, inputs: dict[str, np.ndarray]) -> Any: ...


def loosen(golden: Mapping[str, Any], tolerance: float) -> dict[str, Any]:
    """Return the cases with tolerances of at least `tolerance`, absolute and relative, and without argmax."""
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
    """Run every case and return the number of compared values.

    Raises:
        GoldenMismatch: If an output differs by more than its tolerance, or a case cannot run. The message names the
            case, the graph, the output and the largest difference.
    """
    compared = 0
    outputs: list[dict[str, np.ndarray]] = []
    cases = golden.get("cases")
    if not isinstance(cases, list) or not cases:
        raise GoldenMismatch("the document contains no cases")
    for i, case in enumerate(cases):
        try:
            arrays = {name: decode_source(source, weights, outputs) for name, source in case["inputs"].items()}
            outputs.append(run_graph(sessions, case["graph"], arrays))
            for name, expected in case["outputs"].items():
                where = f"case {i}, {case['graph']}.{name}"
                compared += _compare(outputs[-1][name], expected, case["absolute"], case["relative"], where)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise GoldenMismatch(f"case {i} is malformed: {type(error).__name__} {error}") from None
    return compared


def run_graph(sessions: Mapping[str, Session], graph: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph, and return a mapping from names to its outputs."""
    session = sessions[graph]
    names = [node.name for node in session.get_outputs()]
    try:
        results = session.run(names, arrays)
    except Exception as error:  # the runtime's exceptions have no common base class
        raise GoldenMismatch(f"{graph} failed to run: {str(error)[:200]}") from None
    return dict(zip(names, results, strict=True))


def decode_source(
    source: Mapping[str, Any], weights: Mapping[str, np.ndarray], outputs: list[dict[str, np.ndarray]]
) -> np.ndarray:
    """Return the array that a source in golden.json describes.

    Args:
        source: Input of a case in golden.json.
        weights: Mapping from names to tensors of model.safetensors.
        outputs: For each earlier case, a mapping from names to outputs.
    """
    if "tensor" in source:
        return weights[source["tensor"]][None]
    if "case" in source:
        return outputs[source["case"]][source["output"]]
    if "fill" in source:
        return np.full(source["shape"], source["fill"], source["dtype"])
    return np.array(source["values"], source["dtype"]).reshape(source["shape"])


def _compare(actual: np.ndarray, expected: Mapping[str, Any], absolute: float, relative: float, where: str) -> int:
    if list(actual.shape) != expected["shape"]:
        raise GoldenMismatch(f"{where} has shape {list(actual.shape)}, expected {expected['shape']}")
    values = np.asarray(expected["values"], actual.dtype).astype(np.float64)
    found = actual.ravel()[expected["indices"]].astype(np.float64)
    allowed = absolute + relative * np.abs(values) if actual.dtype.kind == "f" else 0.0
    difference = np.abs(found - values)
    if not (difference <= allowed).all():  # also for NaN
        raise GoldenMismatch(
            f"{where} differs by {np.nanmax(difference, initial=0):.3g}, but at most {np.max(allowed):.3g} is allowed"
        )
    if "argmax" in expected and actual.argmax(-1).ravel().tolist() != expected["argmax"]:
        raise GoldenMismatch(f"{where} does not have the expected argmax")
    return len(values)
