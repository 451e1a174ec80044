"""Malicious graphs that are well-formed, and are rejected when a process with limits runs them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import helper

from tests.soak.bundles.graph_parts import (
    HUGE,
    Mutation,
    body,
    constant,
    repeating,
    scan,
    value,
    with_nodes,
)


def expanded(count: int, *, steps: bool = False) -> Mutation:
    """Expand a constant to `count` numbers and sum them; with `steps`, one after another in a Scan."""
    constants = (constant("one", [1.0], np.float32), constant("count", [count]), constant("zero", 0.0, np.float32))
    nodes = [helper.make_node("Expand", ["one", "count"], ["many"])]
    if not steps:
        return with_nodes(*nodes, constants=constants, result="many")
    inner = body(
        helper.make_node("Add", ["sum", "number"], ["added"]),
        inputs=[value("sum", []), value("number", [])],
        outputs=[value("added", [])],
    )
    nodes.append(scan(inner, ["zero", "many"], ["result"]))
    return with_nodes(*nodes, constants=constants)


def outer_products(times: int) -> Mutation:
    """Add a dimension of the batch size each time: nothing for one row, all memory for 24."""
    nodes = []
    for i in range(times):
        nodes += [
            helper.make_node("Unsqueeze", ["dt" if i == 0 else f"power{i - 1}", "last"], [f"column{i}"]),
            helper.make_node("Mul", [f"column{i}", "dt"], [f"power{i}"]),
        ]
    return with_nodes(*nodes, constants=(constant("last", [-1]),), result=f"power{times - 1}")


FOR_THE_TRIAL: Mapping[str, Mutation] = {
    "memory, stretched constant": expanded(HUGE),
    "memory, stretched beyond 64 bits": with_nodes(
        helper.make_node("Expand", ["one", "count"], ["result"]),
        constants=(constant("one", [1.0], np.float32), constant("count", [1 << 62, 1 << 62])),
    ),
    "memory, ConstantOfShape": with_nodes(
        helper.make_node("ConstantOfShape", ["count"], ["result"]), constants=(constant("count", [HUGE, HUGE]),)
    ),
    "memory, Range": with_nodes(
        helper.make_node("Range", ["from", "end", "by"], ["result"]),
        constants=tuple(constant(name, number) for name, number in (("from", 0), ("end", HUGE), ("by", 1))),
        result="result",
    ),
    "memory, outer products of the batch": outer_products(10),
    "endless, a Scan over millions": expanded(1 << 25, steps=True),
    "crash, Split into a billion": with_nodes(
        helper.make_node("Split", ["dt"], ["result"], axis=0, num_outputs=1 << 30),
    ),
    "crash, axis out of range": with_nodes(helper.make_node("Softmax", ["dt"], ["result"], axis=1 << 40)),
    "crash, permutation out of range": with_nodes(helper.make_node("Transpose", ["dt"], ["result"], perm=[1 << 40])),
    "crash, directions out of range": with_nodes(
        helper.make_node(
            "Scan", ["dt"], ["result"], num_scan_inputs=1, scan_input_directions=[1 << 40],
            body=repeating(),
        ),
    ),
    "crash, more scanned than given": with_nodes(scan(repeating(), ["dt"], ["result"], scanned=1 << 40)),
    "crash, gather out of range": with_nodes(
        helper.make_node("Gather", ["dt", "far"], ["result"], axis=0), constants=(constant("far", [HUGE]),)
    ),
    "crash, batch dimensions": with_nodes(
        helper.make_node("GatherND", ["dt", "far"], ["result"], batch_dims=1 << 40), constants=(constant("far", [[0]]),)
    ),
    "wrong, rows see each other": with_nodes(
        helper.make_node("ReduceSum", ["dt"], ["all"], keepdims=1),
        helper.make_node("Sub", ["all", "dt"], ["result"]),  # zero for a single row
    ),
    "wrong, another result": with_nodes(helper.make_node("Cos", ["dt"], ["result"])),
    "wrong, no number": with_nodes(
        helper.make_node("Log", ["less"], ["result"]), constants=(constant("less", [-1.0], np.float32),)
    ),
}  # fmt: skip
