"""Parts of malicious graphs: the encoding of protocol buffers, nodes, and functions that change a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Mutation = Callable[[ModelProto], bytes]
HUGE = 1 << 40
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
# A file that exists on every machine in the three ways to name it, and other values of a path.
SECRET = "etc/hostname"
PLACES = {
    "absolute": f"/{SECRET}",
    "above": f"../../../../../../{SECRET}",
    "dotted": f"./../../../../../../{SECRET}",
    "empty": "",
    "nowhere": "weights.bin",
    "folder": ".",
    "zeros": "/dev/zero",
    "environment": "/proc/self/environ",
    "nul": f"model.safetensors\0/{SECRET}",
    "memory": "*/_ORT_MEM_ADDR_/*",
    "uri": f"file:///{SECRET}",
}


def varint(value: int, width: int = 0) -> bytes:
    """Encode a number in at least `width` bytes. Additional bytes are padding, which most parsers accept."""
    out = bytearray()
    while value > 0x7F or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, payload: bytes | int, *, tag_width: int = 0, size_width: int = 0) -> bytes:
    """Encode a number or bytes as a field."""
    if isinstance(payload, int):
        return varint(number << 3, tag_width) + varint(payload)
    return varint(number << 3 | 2, tag_width) + varint(len(payload), size_width) + payload


def in_graph(model: ModelProto, extra: bytes) -> bytes:
    """Return the model with additional bytes at the end of its graph."""
    graph = model.graph.SerializeToString() + extra
    model.ClearField("graph")
    return model.SerializeToString() + field(7, graph)


def constant(name: str, value: object, dtype: type = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def external(name: str, location: str, shape: tuple[int, ...] = (2,), **more: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def value(name: str, shape: list[int | str], dtype: int = FLOAT) -> object:
    return helper.make_tensor_value_info(name, dtype, shape)


def into_output(model: ModelProto, name: str) -> None:
    """Add a number to the first output, so that a value read by the graph would appear there."""
    output = model.graph.output[0].name
    for node in model.graph.node:
        for i, found in enumerate(node.output):
            if found == output:
                node.output[i] = "before"
        for i, found in enumerate(node.input):
            if found == output:
                node.input[i] = "before"
    model.graph.node.append(helper.make_node("Add", ["before", name], [output]))


def with_nodes(*nodes: NodeProto, constants: tuple[TensorProto, ...] = (), result: str = "result") -> Mutation:
    """Compute an additional value, reduce it to a number, and add it to the first output."""

    def mutate(model: ModelProto) -> bytes:
        for i, tensor in enumerate(constants):
            model.graph.initializer.insert(i, tensor)
        model.graph.node.extend(nodes)
        model.graph.node.append(helper.make_node("ReduceSum", [result], ["reduced"], keepdims=0))
        into_output(model, "reduced")
        return model.SerializeToString()

    return mutate


def body(
    *nodes: NodeProto, inputs: list[Any], outputs: list[Any], constants: tuple[TensorProto, ...] = ()
) -> GraphProto:
    return helper.make_graph(list(nodes), "body", inputs, outputs, list(constants))


def repeating(inner: str = "row", outer: str = "same") -> GraphProto:
    """Return the body of a Scan that repeats its rows."""
    return body(helper.make_node("Identity", [inner], [outer]), inputs=[value(inner, [])], outputs=[value(outer, [])])


def scan(inner: GraphProto, inputs: list[str], outputs: list[str], scanned: int = 1) -> NodeProto:
    return helper.make_node("Scan", inputs, outputs, body=inner, num_scan_inputs=scanned)


def loop(trips: list[TensorProto], condition: bool) -> Mutation:
    """Return a Loop whose condition always holds."""
    inner = body(
        helper.make_node("Identity", ["keep"], ["kept"]),
        helper.make_node("Add", ["carried", "carried"], ["doubled"]),
        inputs=[value("i", [], INT64), value("keep", [], BOOL), value("carried", [])],
        outputs=[value("kept", [], BOOL), value("doubled", [])],
    )
    trip = trips[0].name if trips else ""
    node = helper.make_node("Loop", [trip, "go", "one"], ["result"], body=inner)
    return with_nodes(node, constants=(*trips, constant("go", condition, np.bool_), constant("one", 1, np.float32)))


def edited(change: Callable[[ModelProto], object]) -> Mutation:
    def mutate(model: ModelProto) -> bytes:
        change(model)
        return model.SerializeToString()

    return mutate


def rewired(change: Callable[[bytes], bytes]) -> Mutation:
    return lambda model: change(model.SerializeToString())


def external_at(location: str, **more: Any) -> Mutation:
    def mutate(model: ModelProto) -> bytes:
        model.graph.initializer.append(external("stolen", location, **more))
        model.graph.node.append(helper.make_node("ReduceSum", ["stolen"], ["reduced"], keepdims=0))
        into_output(model, "reduced")
        return model.SerializeToString()

    return mutate


def moved_placeholder(location: str) -> Mutation:
    """Return a constant of the manifest with another location, so that parsers may disagree on its file."""

    def mutate(model: ModelProto) -> bytes:
        tensor = placeholder(model)
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
        return model.SerializeToString()

    return mutate


def placeholder(model: ModelProto) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL)


def second_place(first: str, second: str) -> Mutation:
    def change(model: ModelProto) -> None:
        tensor = placeholder(model)
        del tensor.external_data[:]
        for location in (first, second):
            tensor.external_data.add(key="location", value=location)

    return edited(change)
