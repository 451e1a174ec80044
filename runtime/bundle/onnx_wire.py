"""Decode the protocol buffers of an ONNX model to nested messages, and encode such messages.

Each model has exactly one valid encoding. Other fields and wire types are errors, as are bytes that differ from the
encoding of their content (unordered or repeated fields, padded numbers, packed lists). Therefore the runtime cannot
read anything that was not checked.

Field numbers follow onnx.proto (IR version 10). Only fields that the exporters of this package write are allowed.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

from rfa.runtime.bundle.documents import BundleError

Kind = Literal["int", "float", "text", "bytes", "message"]
# Fields by name. A value is an int, a float, a str, bytes or another message, or a list of them if the field is
# repeated.
Message = dict[str, Any]

MAX_DEPTH = 16

_VARINT, _LENGTH, _FIXED32 = 0, 2, 5
_WIRE: dict[Kind, int] = {"int": _VARINT, "float": _FIXED32, "text": _LENGTH, "bytes": _LENGTH, "message": _LENGTH}
_TEXT: Kind = "text"


class Field(NamedTuple):
    """A field of a message. `message` is the type of a nested message."""

    name: str
    kind: Kind
    message: str = ""
    is_repeated: bool = False


def _many(name: str, message: str) -> Field:
    return Field(name, "message", message, True)


_DOC = Field("doc_string", _TEXT)
SCHEMA: dict[str, dict[int, Field]] = {
    "model": {
        1: Field("ir_version", "int"),
        2: Field("producer_name", _TEXT),
        3: Field("producer_version", _TEXT),
        6: _DOC,
        7: Field("graph", "message", "graph"),
        8: _many("opset_import", "opset"),
    },
    "opset": {1: Field("domain", _TEXT), 2: Field("version", "int")},
    "graph": {
        1: _many("node", "node"),
        2: Field("name", _TEXT),
        5: _many("initializer", "tensor"),
        10: _DOC,
        11: _many("input", "value"),
        12: _many("output", "value"),
    },
    "node": {
        1: Field("input", _TEXT, is_repeated=True),
        2: Field("output", _TEXT, is_repeated=True),
        3: Field("name", _TEXT),
        4: Field("op_type", _TEXT),
        5: _many("attribute", "attribute"),
        6: _DOC,
        7: Field("domain", _TEXT),
    },
    "attribute": {
        1: Field("name", _TEXT),
        2: Field("f", "float"),
        3: Field("i", "int"),
        4: Field("s", "bytes"),
        6: Field("g", "message", "graph"),
        8: Field("ints", "int", is_repeated=True),
        20: Field("type", "int"),
    },
    "tensor": {
        1: Field("dims", "int", is_repeated=True),
        2: Field("data_type", "int"),
        8: Field("name", _TEXT),
        9: Field("raw_data", "bytes"),
        12: _DOC,
        13: _many("external_data", "entry"),
        14: Field("data_location", "int"),
    },
    "entry": {1: Field("key", _TEXT), 2: Field("value", _TEXT)},
    "value": {1: Field("name", _TEXT), 2: Field("type", "message", "type"), 3: _DOC},
    "type": {1: Field("tensor_type", "message", "tensor_type")},
    "tensor_type": {1: Field("elem_type", "int"), 2: Field("shape", "message", "shape")},
    "shape": {1: _many("dim", "dim")},
    "dim": {1: Field("dim_value", "int"), 2: Field("dim_param", _TEXT)},
}


def decode(data: bytes, file: str) -> Message:
    """Decode the bytes of a model, and return the nested messages.

    Args:
        data: Encoded model.
        file: Name of the file, for error messages.

    Raises:
        BundleError: If the bytes are not a protocol buffer in canonical form, a field is not supported, or messages are
            nested deeper than MAX_DEPTH.
    """
    try:
        model = _Reader(data).message("model", 0, len(data), 0)
        if encode(model) != data:
            raise ValueError(
                "the file is not in canonical form (fields are out of order or repeated, or numbers are padded)"
            )
    except (ValueError, IndexError, struct.error) as error:
        raise BundleError(f"{file}: the file is not a valid ONNX model for a bundle: {str(error)[:200]}") from None
    return model


def encode(model: Message) -> bytes:
    """Return the bytes of a model, given its nested messages."""
    out = bytearray()
    _write(out, model, "model")
    return bytes(out)


# Fields by tag. The tag precedes each field, and contains its number and wire type.
_BY_TAG = {
    kind: {number << 3 | _WIRE[field.kind]: field for number, field in fields.items()}
    for kind, fields in SCHEMA.items()
}
_ORDERED = {kind: sorted(fields.items()) for kind, fields in _BY_TAG.items()}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def message(self, kind: str, at: int, end: int, depth: int) -> Message:
        """Return the fields of the message in data[at:end]."""
        if depth > MAX_DEPTH:
            raise ValueError(f"messages are nested deeper than {MAX_DEPTH} levels")
        fields = _BY_TAG[kind]
        found: Message = {}
        while at < end:
            tag, at = self._number(at, end)
            field = fields.get(tag)
            if field is None:
                raise ValueError(f"field {tag >> 3} of wire type {tag & 7} is not allowed in a {kind}")
            value, at = self._value(field, at, end, depth)
            if field.is_repeated:
                found.setdefault(field.name, []).append(value)
            else:
                found[field.name] = value  # a repeated field fails the comparison of the encodings
        return found

    def _value(self, field: Field, at: int, end: int, depth: int) -> tuple[Any, int]:
        if field.kind == "int":
            number, at = self._number(at, end)
            return number - (1 << 64) if number >> 63 else number, at
        size, at = (4, at) if field.kind == "float" else self._number(at, end)
        after = at + size
        if after > end:
            raise ValueError(f"{field.name} extends past the end of the file")
        if field.kind == "message":
            return self.message(field.message, at, after, depth + 1), after
        part = self._data[at:after]
        if field.kind == "float":
            return struct.unpack("<f", part)[0], after
        return (part.decode("utf-8") if field.kind == "text" else part), after

    def _number(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._data[at]
            at += 1
            if byte < 0x80:
                return value | byte << shift, at  # more than 64 bits fail the comparison of the encodings
            value |= (byte & 0x7F) << shift
            shift += 7
        raise ValueError("a number is truncated or longer than 64 bits")


def _write(out: bytearray, message: Message, kind: str) -> None:
    for tag, field in _ORDERED[kind]:
        if field.name in message:
            value = message[field.name]
            for item in value if field.is_repeated else (value,):
                _write_number(out, tag)
                _write_value(out, item, field)


def _write_value(out: bytearray, value: Any, field: Field) -> None:
    if field.kind == "int":
        _write_number(out, value & 0xFFFF_FFFF_FFFF_FFFF)
        return
    if field.kind == "float":
        out += struct.pack("<f", value)
        return
    if field.kind == "message":
        part = bytearray()
        _write(part, value, field.message)
    else:
        part = value.encode("utf-8") if field.kind == "text" else value
    _write_number(out, len(part))
    out += part


def _write_number(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
