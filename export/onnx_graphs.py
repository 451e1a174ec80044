"""torch modules → ONNX graphs without weights.

The graph is made from the module's structure alone: weights become inputs while it is simplified, so that nothing
derived from their values can be folded in, and constants with an external place when it is stored.
`rfa.runtime.bundle.bundle.open_session` supplies them at load, where ONNX Runtime folds and re-packs them. Two models
of one configuration give the same bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# The version that the exporter writes and then raises: later ones have attributes that say nothing new. Its types do
# not know that Python's numbers and lists become constants.
OPSET: Any = opset18


def export_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    prefix: str = "",
    decompose: bool = True,
) -> Graph:
    """Export `module(*inputs)` with named inputs and outputs.

    Args:
        inputs: example arguments of `forward`, by name and in its order; varying dims at least 2, all different.
        outputs: names of the flat tuple that `forward` returns.
        dynamic: per input, which dims vary and what they are called; the same name means the same size.
        prefix: what this module's `state_dict` puts before the names of model.safetensors, for example "model.".
        decompose: whether the module has operators that must be taken apart. The exporter traces all of it again for
            that, through AOT autograd: half of its time. Without, it has a translation of each, with those of `PLAIN`.

    Returns:
        the graph, and which tensors it needs: those of the `state_dict` that it uses.

    Raises:
        ValueError: a constant too large to be anything but a weight is left in the graph, or an operator that is not
            taken apart changes its input.
        torch.onnx.OnnxExporterError: an operator has no translation.
    """
    sizes = {name: torch.export.Dim(name) for dims in dynamic.values() for name in dims.values()}
    shapes = tuple({dim: sizes[name] for dim, name in dynamic.get(key, {}).items()} for key in inputs)
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": list(outputs), "dynamic_shapes": shapes}
    options |= {"dynamo": True, "optimize": False, "verbose": False}
    with _quiet(), torch.no_grad():
        examples = tuple(inputs.values())
        if decompose:
            program = torch.onnx.export(module.eval(), examples, **options, custom_translation_table=EXACT)
        else:
            captured = _captured(module.eval(), examples, shapes)
            program = torch.onnx.export(captured, **options, custom_translation_table=EXACT | PLAIN)
        if program is None:
            raise ValueError("the exporter returned no graph")
        weights = _weights_to_inputs(program.model, set(module.state_dict()))
        onnxscript.optimizer.optimize(program.model)
    model = onnx_ir.serde.serialize_model(program.model)
    _inputs_to_constants(model.graph, weights, prefix)
    transposed = _separate_transposed(model.graph)
    _strip(model)
    _check_embedded(model)
    entries = [
        Initializer(
            tensor.name, tensor.name.removesuffix(TRANSPOSED_SUFFIX) if is_transposed else tensor.name, is_transposed
        )
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for is_transposed in [tensor.name in transposed]
    ]
    return Graph(model.SerializeToString(deterministic=True), tuple(sorted(entries, key=lambda entry: entry.name)))


def _captured(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[dict[int, Any], ...]
) -> torch.export.ExportedProgram:
    """A program that the exporter translates as it was captured."""
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    parts = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for part in parts for node in part.graph.nodes}
    for target in targets:
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            raise ValueError(f"{target} changes a tensor in place, and in a graph nothing does")
    program.run_decompositions = lambda _table=None: program  # type: ignore[method-assign]
    return program


def _exact_scalar(
    value: float, dtype: int = TensorProto.FLOAT, layout: str = "", device: str = "", pin_memory: bool = False
) -> Any:
    """A Python number as a constant of the wanted type.

    The exporter's own translation goes through float32, also for float64: 2 pi loses half its digits, and with them a
    wrapped phase loses 0.03 rad at position 10^6.
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


def _cast(
    self: Any, dtype: int, non_blocking: bool = False, copy: bool = False, memory_format: str | None = None
) -> Any:
    return OPSET.Cast(self, to=dtype)


def _eye(n: int, dtype: int = TensorProto.FLOAT, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
    return OPSET.EyeLike(OPSET.ConstantOfShape(OPSET.Constant(value_ints=[n, n])), dtype=dtype)


def _diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    if (offset, dim1, dim2) != (0, -2, -1):
        raise ValueError("only a matrix of the last two dimensions, with its own diagonal, is translated")
    is_diagonal = OPSET.Cast(_eye(self.shape[-1]), to=TensorProto.BOOL)
    return OPSET.Where(is_diagonal, OPSET.Unsqueeze(self, [-2]), OPSET.CastLike(0.0, self))


def _difference(self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n != 1 or append is not None:
        raise ValueError("only first differences, with nothing at the end, are translated")
    joined = self if prepend is None else OPSET.Concat(prepend, self, axis=dim)
    later = OPSET.Slice(joined, [1], [np.iinfo(np.int64).max], [dim])
    return OPSET.Sub(later, OPSET.Slice(joined, [0], [-1], [dim]))


# Instead of the exporter's own; and what it would take apart.
EXACT: dict[Callable[..., Any], Callable[..., Any]] = {torch.ops.aten.scalar_tensor.default: _exact_scalar}
PLAIN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.square.default: _square,
    torch.ops.aten.rsub.Scalar: _subtract_from,
    torch.ops.aten.mT.default: _transpose,
    torch.ops.aten.numpy_T.default: _reverse_axes,
    torch.ops.aten.__and__.Tensor: _and,
    torch.ops.aten.to.dtype: _cast,
    torch.ops.aten.eye.default: _eye,
    torch.ops.aten.diag_embed.default: _diag_embed,
    torch.ops.aten.diff.default: _difference,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about its own deprecated calls and about torchvision; nothing there is ours to act on."""
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
    """Make the weights inputs, so that their values are unknown to the optimiser."""
    found = names & set(model.graph.initializers)
    for name in sorted(found):
        value = model.graph.initializers.pop(name)
        value.const_value = None
        model.graph.inputs.append(value)
    return found


def _inputs_to_constants(graph: onnx.GraphProto, weights: set[str], prefix: str) -> None:
    """Make them constants again, named as in model.safetensors, without values; unused ones vanish."""
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
    """Give a tied weight's transposed use a constant of its own (the vocabulary head beside the embedding).

    A weight that is only used transposed is left as it is: the runtime turns it once, at load.
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
    """A graph and all graphs nested in it."""
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
    """Drop stack traces, paths and inferred types: ten times the size of what computes."""
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
                raise ValueError(f"constant {tensor.name!r} of {tensor.ByteSize()} bytes is left in the graph")
