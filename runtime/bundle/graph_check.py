"""Check an ONNX graph in a bundle.

A graph uses only the operators below, which are those of the exporters of this package. None of them reads a file,
generates random numbers, contains strings or calls functions. Each name refers to one value in the whole file,
including inner graphs, and is defined before it is used. Constants are either small and stored in the graph, or
placeholders for tensors of the bundle, which `open_session` provides.

Sizes are computed from the shapes of the inputs and from constants, never from values. Where a tensor may be larger
than its inputs, its size is computed by sums only. The required memory is therefore independent of values, and a run
with the largest inputs shows the maximum. The only loop is Scan, which has one iteration per item of its input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.manifest import Dtype, GraphSpec, Initializer, TensorSpec
from rfa.runtime.bundle.onnx_wire import Message, decode

IR_VERSION = 10
OPSET = 20
MAX_GRAPH_BYTES = 16 << 20
MAX_NODES = 1 << 15
MAX_NAME = 200
MAX_RANK = 16
# Constants that depend on the configuration (frequencies, masks) are stored in the graph. Weights must not be.
MAX_EMBEDDED_BYTES = 1 << 18
# Location of the placeholders. Nothing is read from this file.
EXTERNAL_LOCATION = "model.safetensors"
PLACEHOLDER = [{"key": "location", "value": EXTERNAL_LOCATION}]
EXTERNAL = 1

# Numbers of onnx.TensorProto.DataType and onnx.AttributeProto.AttributeType.
ELEMENTS: dict[int, Dtype] = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
ITEM_BYTES = {"float32": 4, "int32": 4, "int64": 8, "bool": 1, "float64": 8}
Attribute = Literal["f", "i", "s", "g", "ints"]
ATTRIBUTE_TYPES: dict[Attribute, int] = {"f": 1, "i": 2, "s": 3, "g": 5, "ints": 7}
_NONE: dict[str, Attribute] = {}
_AXIS: dict[str, Attribute] = {"axis": "i"}
_REDUCE: dict[str, Attribute] = {"keepdims": "i", "noop_with_empty_axes": "i"}
# Attributes of each operator.
OPERATORS: dict[str, dict[str, Attribute]] = {
    **dict.fromkeys(
        (
            "Abs", "Add", "And", "Clip", "ConstantOfShape", "Cos", "Div", "Equal", "Exp", "Expand", "Greater",
            "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Not",
            "Or", "Pow", "Range", "Reciprocal", "Round", "Sigmoid", "Sin", "Slice", "Softplus", "Sqrt", "Squeeze",
            "Sub", "Tanh", "Unsqueeze", "Where",
        ),
        _NONE,
    ),
    **dict.fromkeys(("Concat", "Gather", "Softmax"), _AXIS),
    **dict.fromkeys(("ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _REDUCE),
    "Cast": {"to": "i"},
    "EyeLike": {"k": "i", "dtype": "i"},
    "GatherND": {"batch_dims": "i"},
    "Gelu": {"approximate": "s"},
    "Gemm": {"alpha": "f", "beta": "f", "transA": "i", "transB": "i"},
    "LayerNormalization": {"axis": "i", "epsilon": "f", "stash_type": "i"},
    "Reshape": {"allowzero": "i"},
    "Scan": {"body": "g", "num_scan_inputs": "i", "scan_input_directions": "ints", "scan_output_directions": "ints"},
    "Shape": {"end": "i", "start": "i"},
    "Split": {"axis": "i", "num_outputs": "i"},
    "Transpose": {"perm": "ints"},
}  # fmt: skip
# Inputs of each operator that determine the size of its output. Outputs of GROWING operators may be larger than their
# inputs, so the sizes must be sums of sizes and constants.
GROWING: dict[str, slice] = {"ConstantOfShape": slice(0, None), "Expand": slice(1, None), "Range": slice(0, None)}
KEEPING: dict[str, slice] = dict.fromkeys(("Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"), slice(1, None))
SUMMING = {"Add", "Concat", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class GraphInterface:
    """Inputs and outputs of a graph."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def read_graph(
    data: bytes, file: str, initializers: Sequence[Initializer], tensors: Mapping[str, TensorSpec]
) -> GraphInterface:
    """Decode a graph, check it, and return its interface.

    Args:
        data: Encoded ONNX model.
        file: Name of the file, for error messages.
        initializers: Placeholders that the graph must contain. Other placeholders are rejected.
        tensors: Mapping from names to tensors of the bundle. A placeholder has the dtype and shape of its tensor.

    Raises:
        BundleError: If the graph is rejected. The message names the file and the reason.
    """
    if len(data) > MAX_GRAPH_BYTES:
        raise BundleError(
            f"{file}: the size is {len(data)} bytes, but without weights at most {MAX_GRAPH_BYTES} are allowed"
        )
    model = decode(data, file)  # the bytes equal the encoding of the model
    try:
        interface = _Checker(initializers, tensors).model(model)
    except ValueError as error:
        raise BundleError(f"{file}: {error}") from None
    return interface


def check_graph(data: bytes, spec: GraphSpec, tensors: Mapping[str, TensorSpec]) -> GraphInterface:
    """Read a graph with `read_graph`, and compare its interface with the manifest.

    Raises:
        BundleError: If the graph is rejected. The message names the file and the reason.
    """
    found = read_graph(data, spec.file, spec.initializers, tensors)
    for side, declared, actual in (("inputs", spec.inputs, found.inputs), ("outputs", spec.outputs, found.outputs)):
        if declared != actual:
            extra, missing = (_describe(set(one) - set(two)) for one, two in ((actual, declared), (declared, actual)))
            raise BundleError(
                f"{spec.file}: the {side} do not match the manifest; only in the graph: {extra}; only in the "
                f"manifest: {missing}"
            )
    return found


class _Checker:
    """Checks a model in one pass. Its methods raise ValueError if the model is invalid."""

    def __init__(self, initializers: Sequence[Initializer], tensors: Mapping[str, TensorSpec]) -> None:
        self._supplied = {entry.name: entry for entry in initializers}
        self._tensors = tensors
        self._placeholders: set[str] = set()
        self._names: set[str] = set()  # names of values anywhere in the file
        self._visible: set[str] = set()  # names that are usable at this point
        self._sizes: set[str] = set()  # names of sizes, computed from shapes and constants only
        self._sums: set[str] = set()  # names of sizes that are computed by sums only
        self._nodes = 0

    def model(self, model: Message) -> GraphInterface:
        if model.get("ir_version") != IR_VERSION:
            raise ValueError(f"the IR version is {model.get('ir_version')}, but it must be {IR_VERSION}")
        opsets = [(entry.get("domain", ""), entry.get("version")) for entry in model.get("opset_import", [])]
        if opsets != [("", OPSET)]:
            foreign = [domain for domain, _ in opsets if domain]
            detail = (
                f"the graph uses operators outside the standard set: {foreign[:3]}"
                if foreign
                else f"the operator sets are {opsets}"
            )
            raise ValueError(f"{detail}, but a bundle must use version {OPSET} of the standard operators")
        _check_empty(model, "producer_name", "producer_version", "doc_string")
        if "graph" not in model:
            raise ValueError("the model has no graph")
        graph = model["graph"]
        inputs = tuple(self._declared(value) for value in graph.get("input", []))
        for constant in graph.get("initializer", []):
            self._constant(constant)
        if self._placeholders != set(self._supplied):
            differing = sorted(self._placeholders ^ set(self._supplied))
            raise ValueError(f"the constants differ from those that the manifest provides in {differing[:5]}")
        self._body(graph, is_inner=False)
        return GraphInterface(inputs, tuple(_interface(value) for value in graph.get("output", [])))

    def _declared(self, value: Message) -> TensorSpec:
        spec = _interface(value)
        self._define(spec.name)
        return spec

    def _body(self, graph: Message, *, is_inner: bool) -> None:
        _name(graph.get("name"), "a graph")
        _check_empty(graph, "doc_string")
        for node in graph.get("node", []):
            self._node(node, is_inner=is_inner)
        outputs = [value.get("name", "") for value in graph.get("output", [])]
        if not outputs or len(set(outputs)) != len(outputs):
            raise ValueError("a graph has no outputs, or an output is repeated")
        for name in outputs:
            if name not in self._visible:
                raise ValueError(f"output {name[:80]!r} is never computed")

    def _node(self, node: Message, *, is_inner: bool) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ValueError(f"the graph has more than {MAX_NODES} nodes")
        _check_empty(node, "doc_string")
        operator = node.get("op_type", "")
        if node.get("domain"):
            raise ValueError(f"the graph uses operators outside the standard set: {[node['domain'][:80]]}")
        if operator not in OPERATORS:
            raise ValueError(f"operator {operator[:80]!r} is not allowed in a bundle")
        if is_inner and operator == "Scan":
            raise ValueError("a Scan node inside a Scan node is not allowed")
        if "name" in node:
            _name(node["name"], "a node")
        inputs = node.get("input", [])
        for name in inputs:
            if name and name not in self._visible:  # an empty name is a missing optional input
                raise ValueError(f"{operator} uses {name[:80]!r} before it is computed")
        self._check_sizes(operator, inputs)
        inner = self._attributes(operator, node.get("attribute", []))
        if inner is not None:
            self._inner(inner)
        used = [name for name in inputs if name]
        is_size = operator == "Shape" or (operator != "Scan" and all(name in self._sizes for name in used))
        is_sum = operator == "Shape" or (operator in SUMMING and all(name in self._sums for name in used))
        for name in filter(None, node.get("output", [])):
            self._define(name)
            self._sizes |= {name} if is_size else set()
            self._sums |= {name} if is_sum else set()

    def _check_sizes(self, operator: str, inputs: Sequence[str]) -> None:
        for sizes, allowed in ((GROWING, self._sums), (KEEPING, self._sizes)):
            for name in inputs[sizes[operator]] if operator in sizes else ():
                if name and name not in allowed:
                    raise ValueError(
                        f"input {name[:80]!r} of {operator} sets a size, so it must not depend on the values of tensors"
                    )

    def _attributes(self, operator: str, attributes: Sequence[Message]) -> Message | None:
        """Check the attributes of a node, and return its inner graph. Return None if it has no inner graph."""
        allowed, seen, inner = OPERATORS[operator], set(), None
        for attribute in attributes:
            name = attribute.get("name", "")
            if name not in allowed or name in seen:
                raise ValueError(f"{operator} has attribute {name[:80]!r}, which is unknown or repeated")
            seen.add(name)
            kind = allowed[name]
            if set(attribute) - {"name", "type", kind} or attribute.get("type") != ATTRIBUTE_TYPES[kind]:
                raise ValueError(f"{operator}.{name} must be stored in the field {kind!r} and in no other field")
            value = attribute.get(kind)
            if kind == "g":
                inner = value
            elif operator == "Cast" and value not in ELEMENTS:
                raise ValueError(f"Cast to type {value} is not allowed; allowed are {', '.join(ELEMENTS.values())}")
        if operator == "Scan" and inner is None:
            raise ValueError("a Scan node has no body")
        return inner

    def _inner(self, graph: Message) -> None:
        """Check an inner graph. It may use names that were defined before it."""
        if graph.get("initializer"):
            raise ValueError("a subgraph contains constants, which only the main graph may contain")
        visible, sizes, sums = set(self._visible), set(self._sizes), set(self._sums)
        for value in graph.get("input", []):
            self._declared(value)
        self._body(graph, is_inner=True)
        for value in graph.get("output", []):
            _interface(value)
        self._visible, self._sizes, self._sums = visible, sizes, sums

    def _define(self, name: str) -> None:
        _name(name, "a value")
        if name in self._names:
            raise ValueError(f"two values are named {name[:80]!r}")
        self._names.add(name)
        self._visible.add(name)

    def _constant(self, tensor: Message) -> None:
        name = tensor.get("name", "")
        self._define(name)
        _check_empty(tensor, "doc_string")
        dtype, shape = ELEMENTS.get(tensor.get("data_type", 0)), tuple(tensor.get("dims", []))
        if dtype is None or len(shape) > MAX_RANK or any(size < 0 for size in shape):
            raise ValueError(
                f"constant {name!r} has type {tensor.get('data_type')} and shape {list(shape)[:MAX_RANK]}; allowed are "
                f"the types {', '.join(ELEMENTS.values())}, and at most {MAX_RANK} dimensions of known size"
            )
        if "external_data" in tensor or tensor.get("data_location", 0):
            self._placeholder(tensor, name, dtype, shape)
            return
        size, expected = len(tensor.get("raw_data", b"")), math.prod(shape) * ITEM_BYTES[dtype]
        if size != expected or size > MAX_EMBEDDED_BYTES:
            raise ValueError(
                f"constant {name!r} contains {size} bytes, but {expected} are expected and at most "
                f"{MAX_EMBEDDED_BYTES} are allowed"
            )
        self._sizes.add(name)
        self._sums.add(name)

    def _placeholder(self, tensor: Message, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        is_plain = tensor.get("external_data") == PLACEHOLDER and tensor.get("data_location") == EXTERNAL
        if not is_plain or "raw_data" in tensor:
            raise ValueError("a constant refers to external data, which is not allowed in a bundle")
        self._placeholders.add(name)
        entry = self._supplied.get(name)
        if entry is None:
            return  # reported together with all constants that differ
        source = self._tensors.get(entry.tensor)
        if source is None:
            raise ValueError(f"constant {name!r} needs tensor {entry.tensor!r}, which is not in {EXTERNAL_LOCATION}")
        expected = source.shape[::-1] if entry.transposed else source.shape
        if (dtype, shape) != (source.dtype, expected):
            found, stored = f"{dtype}{list(shape)}", f"{source.dtype}{list(expected)}"
            raise ValueError(f"constant {name!r} is {found}, but its tensor {entry.tensor!r} is {stored}")


def _interface(value: Message) -> TensorSpec:
    """Return the name, dtype and shape of an input or output. Each dimension is a size or a name."""
    name = _name(value.get("name"), "an input or output")
    _check_empty(value, "doc_string")
    tensor = value.get("type", {}).get("tensor_type", {})
    dtype, dims = ELEMENTS.get(tensor.get("elem_type", 0)), tensor.get("shape", {}).get("dim", [])
    if dtype is None or "shape" not in tensor or len(dims) > MAX_RANK:
        raise ValueError(f"{name} has no valid type or shape")
    return TensorSpec(name, dtype, tuple(_dimension(name, dim) for dim in dims))


def _describe(specs: Collection[TensorSpec]) -> str:
    """Describe the first few tensors in an error message."""
    named = sorted(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)
    return ", ".join(named[:3])[:150] if named else "none"


def _dimension(name: str, dim: Message) -> int | str:
    if len(dim) != 1:
        raise ValueError(f"{name} has a dimension without a size or a name")
    if "dim_param" in dim:
        return _name(dim["dim_param"], "a dimension")
    size: int = dim["dim_value"]
    if not 0 <= size < 1 << 31:
        raise ValueError(f"{name} has a dimension of size {size}, but sizes must be between 0 and {(1 << 31) - 1}")
    return size


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{what} must have a name of 1 to {MAX_NAME} printable ASCII characters")
    return value


def _check_empty(message: Message, *names: str) -> None:
    """Check that documentation fields are empty."""
    for name in names:
        if message.get(name):
            raise ValueError(f"{name} must be empty")
