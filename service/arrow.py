"""Arrow streams beside JSON: columns of numbers in, columns out (`application/vnd.apache.arrow.stream`).

What JSON has as fields stands in the query of the URL, and is validated by the same model. A body is taken apart
message by message: what is compressed is refused before anything is unpacked, for its size would be whatever it says,
and so is what holds no numbers. pyarrow checks the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from fastapi import Request, Response

from rfa.service.body import StrictJSONRoute, ValidatedRequest, read_bytes, require_uncompressed
from rfa.service.errors import InvalidRequest
from rfa.service.memory import lease_of
from rfa.service.validation import check_lengths, validated

ARROW: Final = "application/vnd.apache.arrow.stream"
ARROW_BODY: Final = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "A stream of record batches, uncompressed: a column of numbers for each component, in order, "
        "and a clock: a column of timestamps, or named times, time, timestamp or t. The other fields of the JSON "
        "body stand in the query, as `?model=metrics&levels=0.5,0.9`.",
    }
}
# A column of one of these names, or of timestamps, is the clock; seconds since 1970 where it is of timestamps.
CLOCKS: Final = ("times", "time", "timestamp", "t")
LISTS: Final = frozenset({"levels", "horizon", "fields"})
TEXTS: Final = frozenset({"model", "state"})  # whatever they look like
# Of memory for each byte of a body: its copy, its columns, and their numbers as objects.
BYTES_PER_BYTE: Final = 12
_RECORD_BATCH_COMPRESSION: Final = 3  # the field's place in Arrow's Message.fbs
_MESSAGE_HEADER: Final = 2


def request_is_arrow(request: Request) -> bool:
    """Whether the body is an Arrow stream, and the answer is to be one."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower() == ARROW


class ArrowRoute(StrictJSONRoute):
    """A route that takes its model as JSON, or as an Arrow stream and a query."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle_json, handle = super().get_route_handler(), self.plain_handler()
        model: Any = self.body_field.field_info.annotation if self.body_field else None

        async def read_then_handle(request: Request) -> Response:
            if not request_is_arrow(request):
                return await handle_json(request)
            require_uncompressed(request.headers.get("content-encoding"))
            state, lease = request.app.state, lease_of(request)
            body = await read_bytes(request, state.settings, lease)
            lease.grow(BYTES_PER_BYTE * len(body))
            document = await state.turns.take(partial(decode_arrow, body), is_long=True)
            document |= _options(request, document)
            check_lengths(document, state.settings)
            found = await state.turns.take(partial(validated, model, document, "The query"), is_long=True)
            return await handle(ValidatedRequest(request, found))

        return read_then_handle


def _options(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
    """The query as the fields of the document: numbers and words as in JSON, lists with commas.

    Raises:
        InvalidRequest: a field stands there twice, or in the body, too.
    """
    options: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name in options or name in body:
            place = "in the query twice" if name in options else "in the query and in the body"
            raise InvalidRequest(f"{name} stands {place}.", param=name, code="duplicate")
        if name in LISTS:
            options[name] = [_value(part) for part in text.split(",")]
        else:
            options[name] = text if name in TEXTS else _value(text)
    return options


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def decode_arrow(body: bytes) -> dict[str, Any]:
    """`values`, and `times` where a column is the clock, as lists with None where missing.

    Raises:
        InvalidRequest: it is no Arrow stream of numbers.
    """
    try:
        table = pa.Table.from_batches(list(_batches(body)))
        table.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        reason = str(error).split("\n")[0][:120]
        raise InvalidRequest(f"The body must be an Arrow stream of numbers: {reason}", code="invalid_arrow") from None
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidRequest("The body has two columns of one name.", param="values", code="duplicate")
    columns = dict(zip(table.column_names, table.columns, strict=True))
    clock = next((name for name, column in columns.items() if _is_clock(name, column.type)), None)
    document: dict[str, Any] = {"values": {name: _numbers(name, x) for name, x in columns.items() if name != clock}}
    if clock is not None:
        document["times"] = _numbers(clock, columns[clock])
    return document


def _is_clock(name: str, kind: Any) -> bool:
    return pa.types.is_timestamp(kind) or name.lower() in CLOCKS


def _batches(body: bytes) -> Iterator[Any]:
    messages = iter(pa.ipc.MessageReader.open_stream(body))
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise ValueError("it does not begin with a schema")
    schema = pa.ipc.read_schema(first)
    for message in messages:
        if message.type != "record batch":
            raise ValueError(f"a message of type {message.type}, where numbers belong")
        if _is_compressed(message.metadata.to_pybytes()):
            raise ValueError("its batches must not be compressed")
        yield pa.ipc.read_record_batch(message, schema)
    yield pa.RecordBatch.from_pylist([], schema)  # so that there is a table without any


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch says how its body is compressed; see Message.fbs of Arrow."""
    (message,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, message, _MESSAGE_HEADER)
    if header is None:
        raise ValueError("a message without header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _RECORD_BATCH_COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None where it is not set."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else None


def _numbers(name: str, column: Any) -> list[float | None]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        ticks = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        column = pa.compute.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), float(ticks))
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidRequest(f"values.{name} must hold numbers, not {kind}", param=f"values.{name}", code="not_numbers")
    values: list[float | None] = column.cast(pa.float64(), safe=False).to_numpy().tolist()
    if column.null_count or any(value != value for value in values):  # noqa: PLR0124
        values = [None if value != value else value for value in values]  # type: ignore[comparison-overlap]  # noqa: PLR0124
    return values


def encode_arrow(columns: Mapping[str, np.ndarray], summary: bytes) -> bytes:
    """Columns as one stream; NaN is null. `summary` goes to the metadata of the schema, as `rfa`."""
    arrays = [pa.array(np.ascontiguousarray(column), from_pandas=True) for column in columns.values()]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={b"rfa": summary})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
