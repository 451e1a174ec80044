"""What an ONNX file refers to, read from its bytes before any runtime sees them.

Serving has no `onnx` package, and ONNX Runtime follows external data while it parses. So this walks the protocol-buffer
wire format itself, only as deep as needed: operator domains, external tensors, embedded initialisers, functions.
Field numbers: onnx.proto (IR version 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from export.manifest import BundleError

MAX_DEPTH = 24

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Sub-messages that can lead to a node or a tensor: message → field number → message.
_CHILDREN = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "initializer", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "initializer": {13: "entry"},
    "tensor": {13: "entry"},
}


@dataclass
class GraphFacts:
    """What was found: operator domains ("" is the standard one), external initialisers and the place each one names."""

    domains: set[str] = field(default_factory=set)
    external: dict[str, str] = field(default_factory=dict)
    has_functions: bool = False
    has_other_external_data: bool = False


def inspect_onnx(data: bytes, file: str) -> GraphFacts:
    """Walk a model.

    Raises:
        BundleError: bytes that are no protocol buffer, or nesting beyond MAX_DEPTH.
    """
    facts = GraphFacts()
    try:
        _walk(memoryview(data), "model", facts, 0)
    except (ValueError, IndexError) as error:
        raise BundleError(f"{file}: not an ONNX model: {error}") from None
    return facts


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _varint(view, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(view):
            raise ValueError("a field runs past the end")
        yield number, view[at : at + size]
        at += size


def _string(value: int | memoryview) -> str:
    if isinstance(value, int):
        raise ValueError("a number where a string belongs")
    return bytes(value).decode("utf-8")


def _walk(view: memoryview, message: str, facts: GraphFacts, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if message == "initializer":
        _initializer(view, facts)
    for number, value in _fields(view):
        if (message, number) in (("node", 7), ("opset", 1)):
            facts.domains.add(_string(value))
        child = _CHILDREN.get(message, {}).get(number)
        if child is None:
            continue
        if isinstance(value, int):
            raise ValueError("a number where a message belongs")
        if child == "function":
            facts.has_functions = True
        elif child == "entry":
            facts.has_other_external_data |= message == "tensor"
        elif child in ("training", "sparse"):
            raise ValueError(f"{child} data has no place in a bundle")
        else:
            _walk(value, child, facts, depth + 1)


def _initializer(view: memoryview, facts: GraphFacts) -> None:
    name, place, is_external = "", "", False
    for number, value in _fields(view):
        if number == 8:
            name = _string(value)
        elif number == 14:
            is_external = value != 0
        elif number == 13 and not isinstance(value, int):
            is_external = True
            entry = {key: _string(text) for key, text in _fields(value) if key in (1, 2)}
            place = entry.get(2, "") if entry.get(1) == "location" else "an unknown key"
    if is_external:
        facts.external[name] = place
