"""Malicious graphs: a graph of a bundle changed to read files, run without end, exhaust memory or mislead a parser.

Each is a function from the step graph of a filter, as parsed by `onnx`, to bytes. They are rejected before a runtime
reads them. `trial_graphs` has those that are well-formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from tests.soak.bundles.graph_parts import (
    FLOAT,
    HUGE,
    PLACES,
    Mutation,
    body,
    constant,
    edited,
    external,
    external_at,
    field,
    in_graph,
    loop,
    moved_placeholder,
    placeholder,
    repeating,
    rewired,
    scan,
    second_place,
    value,
    varint,
    with_nodes,
)


def padded_tag(model: ModelProto) -> bytes:
    """Return the location in a field whose number has five bytes: a parser that counts bytes reads another field."""
    entry = field(1, b"location") + field(2, PLACES["absolute"].encode())
    tensor = field(1, 2) + field(2, FLOAT) + field(8, b"stolen") + field(13, entry, tag_width=5) + field(14, 1)
    return in_graph(model, field(5, tensor))


def long_tag(model: ModelProto) -> bytes:
    """Return a field number beyond 32 bits, of which a runtime may keep the low bits."""
    entry = field(1, b"location") + field(2, PLACES["absolute"].encode())
    tensor = field(1, 2) + field(2, FLOAT) + field(8, b"stolen") + varint((1 << 35) | 13 << 3 | 2) + varint(len(entry))
    return in_graph(model, field(5, tensor + entry + field(14, 1)))


def padded_size(model: ModelProto) -> bytes:
    tensor = constant("spare", [1.0], np.float32).SerializeToString()
    return in_graph(model, field(5, tensor, size_width=5))


def out_of_order(model: ModelProto) -> bytes:
    """Return the nodes after the outputs, which parsers may read differently."""
    return in_graph(model, field(1, helper.make_node("Identity", ["dt"], ["spare"]).SerializeToString()))


def second_graph(model: ModelProto) -> bytes:
    """Return a second graph, which protocol buffers merge into the first."""
    more = GraphProto(initializer=[external("stolen", PLACES["absolute"])])
    return model.SerializeToString() + field(7, more.SerializeToString())


def second_name(model: ModelProto) -> bytes:
    """Return the name twice: parsers may use the first or the last."""
    tensor = external("stolen", PLACES["absolute"]).SerializeToString()
    return in_graph(model, field(5, tensor + field(8, placeholder(model).name.encode())))


def second_location_flag(model: ModelProto) -> bytes:
    tensor = external("stolen", PLACES["absolute"]).SerializeToString()
    return in_graph(model, field(5, tensor + field(14, 0)))


def shadowed(with_input: bool) -> Mutation:
    """Return an inner graph with a constant or an input that shadows a name of the outer graph."""

    def mutate(model: ModelProto) -> bytes:
        name = placeholder(model).name
        inner = body(
            helper.make_node("ReduceSum", [name], ["inner"], keepdims=0),
            helper.make_node("Identity", ["row"], ["carried"]),
            inputs=[value("row", []), *([value(name, [2])] if with_input else [])],
            outputs=[value("carried", []), *([value("inner", [])])][:1],
            constants=() if with_input else (external(name, PLACES["absolute"]),),
        )
        node = scan(inner, ["dt"], ["rows"])
        return with_nodes(node, result="rows")(model)

    return mutate


def taken_name(model: ModelProto) -> bytes:
    model.graph.initializer.append(constant(model.graph.input[0].name, [[0.0, 0.0]], np.float32))
    return model.SerializeToString()


def same_constant_twice(model: ModelProto) -> bytes:
    model.graph.initializer.append(
        external(placeholder(model).name, PLACES["absolute"], tuple(placeholder(model).dims))
    )
    return model.SerializeToString()


def same_result_twice(model: ModelProto) -> bytes:
    model.graph.node.append(helper.make_node("Identity", ["dt"], [model.graph.node[0].output[0]]))
    return model.SerializeToString()


NESTED = 12


def nested_scans(depth: int) -> Mutation:
    def mutate(model: ModelProto) -> bytes:
        inner = repeating("row0", "out0")
        for i in range(1, depth):
            rows, out = f"row{i}", f"out{i}"
            inner = body(scan(inner, [rows], [out]), inputs=[value(rows, ["n"])], outputs=[value(out, ["n"])])
        return with_nodes(scan(inner, ["dt"], ["rows"]), result="rows")(model)

    return mutate


def nested_bytes(model: ModelProto) -> bytes:
    """Return graphs in attributes of nodes of graphs, deeper than a parser's stack."""
    data = b""
    for _ in range(20_000):
        data = field(1, field(5, field(6, data)))
    return in_graph(model, data)


def giant_constant(dims: list[int]) -> Mutation:
    def change(model: ModelProto) -> None:
        model.graph.initializer.append(TensorProto(name="giant", data_type=FLOAT, dims=dims, raw_data=b"\0" * 4))

    return edited(change)


def by_value(model: ModelProto) -> bytes:
    """Return a size of 1 for the recorded inputs and 10^12 for a long lag."""
    constants = (
        constant("long", [1e6], np.float32), constant("few", [1]), constant("many", [HUGE]),
        constant("one", [1.0], np.float32),
    )  # fmt: skip
    nodes = (
        helper.make_node("Greater", ["dt", "long"], ["is_long"]),
        helper.make_node("Where", ["is_long", "many", "few"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["result"]),
    )
    return with_nodes(*nodes, constants=constants)(model)


def many_nodes(model: ModelProto) -> bytes:
    for i in range((1 << 15) + 1):
        model.graph.node.add(op_type="Identity", input=["dt"], output=[f"copy{i}"])
    return model.SerializeToString()


KINDS = ("sequence", "optional", "map", "sparse", "untyped", "shapeless")


def listed(**fields: object) -> Mutation:
    """Return a constant whose numbers are not in its raw data."""
    return edited(lambda model: model.graph.initializer.add(name="listed", **fields))


def long_type(model: ModelProto) -> bytes:
    """Return a type of 33 bits, of which a runtime keeps 32: float."""
    return in_graph(model, field(5, field(2, (1 << 32) + FLOAT) + field(8, b"odd") + field(9, b"abcd")))


def input_of(kind: str) -> Mutation:
    def change(model: ModelProto) -> None:
        added = model.graph.input.add(name="odd")
        if kind == "sequence":
            added.type.sequence_type.elem_type.tensor_type.elem_type = FLOAT
        elif kind == "optional":
            added.type.optional_type.elem_type.tensor_type.elem_type = FLOAT
        elif kind == "map":
            added.type.map_type.key_type = TensorProto.INT64
            added.type.map_type.value_type.tensor_type.elem_type = FLOAT
        elif kind == "sparse":
            added.type.sparse_tensor_type.elem_type = FLOAT
        elif kind == "untyped":
            added.type.tensor_type.elem_type = 0
        else:
            added.type.tensor_type.elem_type = FLOAT  # without a shape

    return edited(change)


def function(recursive: bool) -> Mutation:
    def change(model: ModelProto) -> None:
        found = model.functions.add(name="Again", domain="mine", input=["x"], output=["y"])
        found.opset_import.add(domain="", version=20)
        inner = "Again" if recursive else "Identity"
        found.node.add(op_type=inner, domain="mine" if recursive else "", input=["x"], output=["y"])
        model.opset_import.add(domain="mine", version=1)
        model.graph.node.add(op_type="Again", domain="mine", input=["dt"], output=["again"])

    return edited(change)


def in_domain(domain: str, operator: str, *, is_imported: bool) -> Mutation:
    def change(model: ModelProto) -> None:
        model.graph.node.add(op_type=operator, domain=domain, input=["dt"], output=["foreign"])
        if is_imported:
            model.opset_import.add(domain=domain, version=1)

    return edited(change)


def operator(name: str, inputs: list[str], **attributes: Any) -> Mutation:
    return edited(lambda model: model.graph.node.append(helper.make_node(name, inputs, ["extra"], **attributes)))


def attribute(change: Callable[[AttributeProto], object]) -> Mutation:
    def mutate(model: ModelProto) -> None:
        node = next(node for node in model.graph.node if node.attribute)
        change(node.attribute[0])

    return edited(mutate)


def _sparse(model: ModelProto) -> None:
    model.graph.sparse_initializer.add(dims=[HUGE]).values.CopyFrom(constant("sparse", [1.0], np.float32))


def _training(model: ModelProto) -> None:
    model.training_info.add().algorithm.CopyFrom(GraphProto(initializer=[external("stolen", PLACES["absolute"])]))


def _no_outputs(model: ModelProto) -> None:
    del model.graph.output[:]


def _uncomputed(model: ModelProto) -> None:
    model.graph.output[0].name = "nothing"


def _cycle(model: ModelProto) -> None:
    model.graph.node.add(op_type="Identity", input=["b"], output=["a"])
    model.graph.node.add(op_type="Identity", input=["a"], output=["b"])


def _two_sizes(model: ModelProto) -> bytes:
    dim = field(1, 2) + field(2, b"batch")
    info = field(1, field(1, FLOAT) + field(2, field(1, dim)))
    return in_graph(model, field(11, field(1, b"odd") + field(2, info)))


def _opset(version: int) -> Mutation:
    def change(model: ModelProto) -> None:
        model.opset_import[0].version = version

    return edited(change)


def _ir(version: int) -> Mutation:
    def change(model: ModelProto) -> None:
        model.ir_version = version

    return edited(change)


IF = with_nodes(
    helper.make_node(
        "If", ["go"], ["result"],
        then_branch=body(
            helper.make_node("Identity", ["stolen"], ["then"]), inputs=[], outputs=[value("then", [2])],
            constants=(external("stolen", PLACES["absolute"]),),
        ),
        else_branch=body(helper.make_node("Identity", ["dt"], ["else"]), inputs=[], outputs=[value("else", [2])]),
    ),
    constants=(constant("go", True, np.bool_),),
)  # fmt: skip
FOR_THE_READER: Mapping[str, Mutation] = {
    **{f"external data, {name}": external_at(place) for name, place in PLACES.items()},
    "external data, right place with an offset": external_at("model.safetensors", offset="0", length="8"),
    "external data, a constant that nobody supplies": external_at("model.safetensors"),
    "external data, supplied constant from elsewhere": moved_placeholder(PLACES["absolute"]),
    "external data, right place first": second_place("model.safetensors", PLACES["absolute"]),
    "external data, right place last": second_place(PLACES["absolute"], "model.safetensors"),
    "external data, in a Constant": operator("Constant", [], value=external("c", PLACES["absolute"])),
    "external data, in ConstantOfShape": operator("ConstantOfShape", ["dt"], value=external("c", PLACES["absolute"])),
    "external data, in a branch": IF,
    "external data, in training": edited(_training),
    "bytes, five-byte tag": padded_tag,
    "bytes, tag of 36 bits": long_tag,
    "bytes, padded size": padded_size,
    "bytes, fields out of order": out_of_order,
    "bytes, second graph": second_graph,
    "bytes, second name": second_name,
    "bytes, second flag": second_location_flag,
    "bytes, unknown field": rewired(lambda data: data + field(999, b"more")),
    "bytes, unknown field of the graph": lambda model: in_graph(model, field(77, b"more")),
    "bytes, group": rewired(lambda data: data + bytes([(30 << 3) | 3, (30 << 3) & 0x7F | 4])),
    "bytes, cut off": rewired(lambda data: data[:-7]),
    "bytes, longer": rewired(lambda data: data + b"\0"),
    "bytes, none": rewired(lambda _: b""),
    "bytes, another format": rewired(lambda data: b"\x18\0\0\0ORTM" + data),
    "bytes, an archive": rewired(lambda data: b"PK\3\4" + data),
    "bytes, no text": lambda model: in_graph(model, field(5, field(2, FLOAT) + field(8, b"\xff\xfe"))),
    "bytes, nested deep": nested_bytes,
    "names, shadowed by an inner constant": shadowed(False),
    "names, shadowed by an inner input": shadowed(True),
    "names, constant named as an input": taken_name,
    "names, constant twice": same_constant_twice,
    "names, result twice": same_result_twice,
    "names, nul": edited(lambda model: model.graph.initializer.append(constant("a\0b", [1]))),
    "names, none": edited(lambda model: model.graph.initializer.append(constant("", [1]))),
    "names, long": edited(lambda model: model.graph.initializer.append(constant("n" * 100_000, [1]))),
    "endless, Loop": loop([], True),
    "endless, Loop of many trips": loop([constant("trips", (1 << 63) - 1)], True),
    "endless, Scan in Scan": nested_scans(2),
    "endless, nested Scans": nested_scans(NESTED),
    "memory, size from values": by_value,
    "memory, ConstantOfShape from values": with_nodes(
        helper.make_node("Cast", ["dt"], ["count"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["count"], ["result"]),
    ),
    "memory, Range from values": with_nodes(
        helper.make_node("ReduceSum", ["dt"], ["end"], keepdims=0),
        helper.make_node("Range", ["from", "end", "by"], ["result"]),
        constants=(constant("from", 0.0, np.float32), constant("by", 1e-9, np.float32)),
    ),
    "memory, giant constant": giant_constant([HUGE]),
    "memory, product beyond 64 bits": giant_constant([1 << 62, 1 << 62, 4]),
    "memory, negative size": giant_constant([-1]),
    "memory, product back to 1": giant_constant([1 << 32, 1 << 32, 1]),
    "memory, size that shrinks as others grow": with_nodes(
        helper.make_node("Shape", ["dt"], ["rows"]),
        helper.make_node("Sub", ["many", "rows"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["result"]),
        constants=(constant("many", [1 << 20]), constant("one", [1.0], np.float32)),
    ),
    "memory, size of one number of rows": with_nodes(
        helper.make_node("Shape", ["dt"], ["rows"]),
        helper.make_node("Equal", ["rows", "trap"], ["is_trap"]),
        helper.make_node("Where", ["is_trap", "many", "few"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["result"]),
        constants=(
            constant("trap", [17]), constant("many", [HUGE]), constant("few", [1]), constant("one", [1.0], np.float32),
        ),
    ),
    "memory, Tile": operator("Tile", ["dt", "dt"]),
    "memory, sparse constant": edited(_sparse),
    "memory, many nodes": many_nodes,
    "types, string constant": listed(data_type=8, string_data=[b"s"]),
    "types, Cast to string": operator("Cast", ["dt"], to=TensorProto.STRING),
    "types, half": edited(lambda model: model.graph.initializer.append(constant("h", [1], np.float16))),
    "types, of 33 bits": long_type,
    "types, listed floats": listed(data_type=FLOAT, float_data=[1.0]),
    **{f"types, {kind} input": input_of(kind) for kind in KINDS},
    "types, both size and name": _two_sizes,
    "types, one more input": edited(lambda model: model.graph.input.append(value("more", [1]))),
    "types, an attribute of another type": attribute(lambda found: setattr(found, "type", AttributeProto.GRAPH)),
    "types, an attribute by reference": attribute(lambda found: setattr(found, "ref_attr_name", "outer")),
    "types, an unknown attribute": attribute(lambda found: setattr(found, "name", "unknown")),
    "code, function": function(False),
    "code, recursive function": function(True),
    "code, com.microsoft": in_domain("com.microsoft", "FusedGelu", is_imported=True),
    "code, domain of nobody": in_domain("mine", "Run", is_imported=False),
    "code, ai.onnx.ml": in_domain("ai.onnx.ml", "LabelEncoder", is_imported=True),
    "code, ai.onnx by its long name": in_domain("ai.onnx", "Identity", is_imported=True),
    "code, training operators": in_domain("ai.onnx.preview.training", "Adam", is_imported=True),
    "code, random numbers": operator("RandomNormal", [], shape=[2]),
    "code, sequences": operator("SequenceConstruct", ["dt"]),
    "code, text": operator("StringNormalizer", ["dt"]),
    "code, images": operator("ImageDecoder", ["dt"]),
    "code, empty operator": operator("", ["dt"]),
    "code, other operator set": _opset(22),
    "code, operator set of the future": _opset(1 << 40),
    "code, operator set twice": edited(lambda model: model.opset_import.add(domain="", version=9)),
    "code, other version": _ir(99),
    "form, metadata": edited(lambda model: model.metadata_props.add(key="k", value="v")),
    "form, metadata of a node": edited(lambda model: model.graph.node[0].metadata_props.add(key="k", value="v")),
    "form, notes": edited(lambda model: setattr(model.graph, "doc_string", "n" * 1000)),
    "form, quantisation": edited(lambda model: model.graph.quantization_annotation.add(tensor_name="dt")),
    "form, inferred types": edited(lambda model: model.graph.value_info.append(value("dt", ["batch"]))),
    "form, no graph": edited(lambda model: model.ClearField("graph")),
    "form, no outputs": edited(_no_outputs),
    "form, output never computed": edited(_uncomputed),
    "form, cycle": edited(_cycle),
    "form, input never computed": operator("Identity", ["nobody"]),
}  # fmt: skip
