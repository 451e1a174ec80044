"""Export torch modules as ONNX graphs without weights.

While a graph is simplified, its weights are inputs, so that their values are not folded into the graph. In the stored
graph, they are external constants, whose values `rfa.runtime.bundle.bundle.open_session` provides when the graph is
loaded. The graphs of two models with the same configuration are byte for byte the same.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxscript.optimizer
import torch
from onnx import TensorProto
from onnxscript import opset18
from torch import Tensor, nn

from rfa.runtime.bundle.bundle import Graph, Initializer
from rfa.runtime.bundle.graph_check import EXTERNAL_LOCATION, MAX_EMBEDDED_BYTES

TRANSPOSED_SUFFIX = ".T"
# The opset version that the exporter writes before it converts. Its types do not allow Python numbers and lists as
# constants.
OPSET: Any = opset18


def export_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    prefix: str = "",
) -> Graph:
    """Export `module(*inputs)` as an ONNX graph with named inputs and outputs.

    Operators are not decomposed into simpler ones before their translation, because that would take half of the time.

    Args:
        module: Module to export.
        inputs: Mapping from names to example arguments of `forward`, in order. Variable dimensions must be at least 2
            and all different. The graph is traced for sizes that are not smaller. ONNX operators accept
            smaller ones too.
        outputs: Names for the items of the tuple that `forward` returns.
        dynamic: Names of the variable dimensions of each input. Dimensions with equal names have equal sizes.
        prefix: Prefix of the module's `state_dict` names that is absent in model.safetensors, such as "model.".

    Returns:
        The graph, and the tensors of the `state_dict` that it uses.

    Raises:
        ValueError: If a large constant remains in the graph, or an operator changes its input in place.
        torch.onnx.OnnxExporterError: If an operator has no translation.
    """
    least = {name: inputs[key].shape[dim] for key, dims in dynamic.items() for dim, name in dims.items()}
    sizes = {name: torch.export.Dim(name, min=size) for name, size in least.items()}
    shapes = tuple({dim: sizes[name] for dim, name in dynamic.get(key, {}).items()} for key in inputs)
    options = {"input_names": list(inputs), "output_names": list(outputs), "dynamic_shapes": shapes}
    with _quiet(), torch.no_grad():
        program = _program(module.eval(), tuple(inputs.values()), options)
        weights = _weights_to_inputs(program.model, set(module.state_dict()))
        onnxscript.optimizer.optimize(program.model)
    model = onnx_ir.serde.serialize_model(program.model)
    _inputs_to_constants(model.graph, weights, prefix)
    transposed = _separate_transposed(model.graph)
    _strip(model)
    _check_embedded(model)
    names = sorted(x.name for x in model.graph.initializer if x.data_location == TensorProto.EXTERNAL)
    entries = (
        Initializer(name, name.removesuffix(TRANSPOSED_SUFFIX), True) if name in transposed
        else Initializer(name, name, False)
        for name in names
    )  # fmt: skip
    return Graph(model.SerializeToString(deterministic=True), tuple(entries))


def name_inputs(module: nn.Module, names: Iterable[str]) -> None:
    """Give a module with a variadic `forward` a signature with named parameters. The exporter needs these names."""
    variadic = module.forward

    def forward(*tensors: Tensor) -> Any:
        return variadic(*tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name.replace(".", "_"), kind) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module.forward = forward


def _program(module: nn.Module, examples: tuple[Tensor, ...], options: dict[str, Any]) -> torch.onnx.ONNXProgram:
    source = _captured(module, examples, options["dynamic_shapes"])
    fixed: dict[str, Any] = {"dynamo": True, "optimize": False, "verbose": False, "custom_translation_table": TABLE}
    program: torch.onnx.ONNXProgram | None = torch.onnx.export(source, **options, **fixed)
    if program is None:
        raise ValueError("the ONNX exporter returned no graph")
    return program


def _captured(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[dict[int, Any], ...]
) -> torch.export.ExportedProgram:
    """Return the traced program of a module. The exporter translates this program without decomposing it."""
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    parts = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for part in parts for node in part.graph.nodes}
    for part in parts:
        part.graph.eliminate_dead_code()
    for target in targets:
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            raise ValueError(f"{target} changes a tensor in place, which ONNX graphs do not support")
    program.run_decompositions = lambda _table=None: program  # type: ignore[method-assign]
    return program


def _exact_scalar(
    value: float, dtype: int = TensorProto.FLOAT, layout: str = "", device: str = "", pin_memory: bool = False
) -> Any:
    """Convert a Python number to a constant without rounding it to float32.

    The translation of the exporter rounds to float32. With 2 pi rounded to float32, the phase at position 10^6 has an
    error of 0.03 rad.
    """
    array = np.array(value, onnx_ir.DataType(dtype).numpy())
    return OPSET.Constant(value=onnx.numpy_helper.from_array(array))


def _square(self: Any) -> Any:
    return OPSET.Mul(self, self)


def _subtract_from(self: Any, other: float, alpha: float = 1) -> Any:
    return OPSET.Sub(other, OPSET.Mul(self, alpha) if alpha != 1 else self)


def _transpose(self: Any) -> Any:
    *others, row, column = range(len(self.shape))
    return OPSET.Transpose(self, perm=[*others, column, row])


def _reverse_axes(self: Any) -> Any:
    return OPSET.Transpose(self, perm=list(reversed(range(len(self.shape)))))


def _and(self: Any, other: Any) -> Any:
    return OPSET.And(self, other)


def _or(self: Any, other: Any) -> Any:
    return OPSET.Or(self, other)


def _cast(
    self: Any, dtype: int, non_blocking: bool = False, copy: bool = False, memory_format: str | None = None
) -> Any:
    return OPSET.Cast(self, to=dtype)


def _eye(n: int, dtype: int = TensorProto.FLOAT, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
    return OPSET.EyeLike(OPSET.ConstantOfShape(OPSET.Constant(value_ints=[n, n])), dtype=dtype)


def _diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    if (offset, dim1, dim2) != (0, -2, -1):
        raise ValueError("diag_embed can be exported to ONNX only with offset=0, dim1=-2 and dim2=-1")
    is_diagonal = OPSET.Cast(_eye(self.shape[-1]), to=TensorProto.BOOL)
    return OPSET.Where(is_diagonal, OPSET.Unsqueeze(self, [-2]), OPSET.CastLike(0.0, self))


def _rms_norm(self: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if len(normalized_shape) != 1 or weight is None or eps is None:
        raise ValueError("rms_norm can be exported to ONNX only for the last dimension, with weight and eps")
    mean = OPSET.ReduceMean(OPSET.Mul(self, self), [-1], keepdims=1)
    normed = OPSET.Mul(self, OPSET.Reciprocal(OPSET.Sqrt(OPSET.Add(mean, eps))))
    return OPSET.Mul(normed, weight)


def _difference(self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n != 1 or append is not None:
        raise ValueError("diff can be exported to ONNX only with n=1 and without append")
    joined = self if prepend is None else OPSET.Concat(prepend, self, axis=dim)
    later = OPSET.Slice(joined, [1], [np.iinfo(np.int64).max], [dim])
    return OPSET.Sub(later, OPSET.Slice(joined, [0], [-1], [dim]))


# Translations of operators that the exporter would decompose, and a replacement for one of its translations.
TABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scalar_tensor.default: _exact_scalar,
    torch.ops.aten.square.default: _square,
    torch.ops.aten.rsub.Scalar: _subtract_from,
    torch.ops.aten.mT.default: _transpose,
    torch.ops.aten.numpy_T.default: _reverse_axes,
    torch.ops.aten.__and__.Tensor: _and,
    torch.ops.aten.__or__.Tensor: _or,
    torch.ops.aten.to.dtype: _cast,
    torch.ops.aten.eye.default: _eye,
    torch.ops.aten.diag_embed.default: _diag_embed,
    torch.ops.aten.diff.default: _difference,
    torch.ops.aten.rms_norm.default: _rms_norm,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings of the exporter about its own deprecated calls and about torchvision."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _weights_to_inputs(model: onnx_ir.Model, names: set[str]) -> set[str]:
    """Convert weights to inputs, so that the optimiser does not see their values."""
    found = names & set(model.graph.initializers)
    for name in sorted(found):
        value = model.graph.initializers.pop(name)
        value.const_value = None
        model.graph.inputs.append(value)
    return found


def _inputs_to_constants(graph: onnx.GraphProto, weights: set[str], prefix: str) -> None:
    """Convert the used weights to constants without values, named as in model.safetensors. Remove the unused
    weights."""
    used = {name for part in _graphs(graph) for node in part.node for name in node.input}
    kept = []
    for value in graph.input:
        if value.name not in weights:
            kept.append(value)
        elif value.name in used:
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            graph.initializer.append(_without_data(value.name.removeprefix(prefix), kind.elem_type, shape))
    _rename(graph, {name: name.removeprefix(prefix) for name in weights})
    del graph.input[:]
    graph.input.extend(kept)


def _without_data(name: str, kind: int, shape: Sequence[int]) -> TensorProto:
    tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=EXTERNAL_LOCATION)
    return tensor


def _separate_transposed(graph: onnx.GraphProto) -> set[str]:
    """Add a separate constant for the transposed use of a tied weight, such as the output layer of a tied embedding.
    Return the names of the added constants.

    At load, the runtime transposes a weight only once if all of its uses are transposed.
    """
    uses = Counter(name for part in _graphs(graph) for node in part.node for name in node.input)
    shapes = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
    made: set[str] = set()
    for node in list(graph.node):
        is_turn = node.op_type == "Transpose" and [list(a.ints) for a in node.attribute] == [[1, 0]]
        flag = next((a for a in node.attribute if a.name == "transB" and a.i == 1), None)
        source = node.input[0] if is_turn else node.input[1] if node.op_type == "Gemm" and flag is not None else None
        if source not in shapes or uses[source] < 2:
            continue
        turned = f"{source}{TRANSPOSED_SUFFIX}"
        if turned not in made:
            original = shapes[source]
            graph.initializer.append(_without_data(turned, original.data_type, list(reversed(original.dims))))
            made.add(turned)
        if is_turn:
            _rename(graph, {node.output[0]: turned})
            graph.node.remove(node)
        else:
            node.input[1] = turned
            node.attribute.remove(flag)
    return made


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs nested in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for part in _graphs(graph):
        for node in part.node:
            for i, name in enumerate(node.input):
                if name in names:
                    node.input[i] = names[name]


def _strip(model: onnx.ModelProto) -> None:
    """Remove stack traces, paths and inferred types, which make up most of the size of a graph."""
    messages: list[Any] = [model, *_graphs(model.graph)]
    for message in messages:
        del message.metadata_props[:]
        message.doc_string = ""
    model.producer_name, model.producer_version = "", ""
    for graph in _graphs(model.graph):
        graph.name = "graph"
        del graph.value_info[:]
        parts: list[Any] = [*graph.node, *graph.input, *graph.output, *graph.initializer]
        for part in parts:
            del part.metadata_props[:]
            part.doc_string = ""


def _check_embedded(model: onnx.ModelProto) -> None:
    for graph in _graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() > MAX_EMBEDDED_BYTES:
                raise ValueError(
                    f"the constant {tensor.name!r} of {tensor.ByteSize()} bytes was left in the graph instead of the "
                    "weights file"
                )
