"""Read requests from Arrow streams, and write replies as Arrow streams. The media type is
`application/vnd.apache.arrow.stream`.

An Arrow stream contains columns of numbers. The query string contains the other fields of the JSON body, and is
validated in the same way. Compressed messages are rejected before they are decoded, because they could unpack to any
size. pyarrow checks everything else.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from fastapi import Request, Response

from rfa.service.body import BodyLimits, BodyReader, StrictJSONRoute, ValidatedRequest, hold, require_uncompressed
from rfa.service.disconnect import unless_disconnected
from rfa.service.errors import InvalidRequest
from rfa.service.json_cost import series_limits
from rfa.service.long_format import MOST_KEYS, Groups, Keys, group, is_text, text_bytes
from rfa.service.memory import Lease, lease_of
from rfa.service.setting_groups import LimitSettings
from rfa.service.validation import check_lengths, validated

ARROW: Final = "application/vnd.apache.arrow.stream"
ARROW_BODY: Final = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": (
            "Uncompressed record batches with one column of numbers per component, in the order of the components. "
            "There may be a time column, which contains timestamps or is named times, time, timestamp or t. The other "
            "fields of the JSON body are sent as query parameters, as in `?model=metrics&levels=0.5,0.9`. With `by`, "
            "the rows belong to several series, and the rows of each series must be in order. In this case, there may "
            "be a text column `state` with a state from which each series continues."
        ),
    }
}
# Names of a time column with numbers. A column of timestamps can have any name; it becomes seconds since 1970.
TIME_COLUMNS: Final = ("times", "time", "timestamp", "t")
LISTS: Final = frozenset({"levels", "horizon", "fields"})
TEXTS: Final = frozenset({"model", "state"})  # never parsed as JSON
# Query parameter with the key columns of a body in long format.
BY: Final = "by"
BY_PARAMETER: Final = {
    "name": BY,
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "example": "sensor",
    "description": (
        "Names of the key columns of an Arrow stream, separated by commas. Rows with the same keys belong to the same "
        "series. Keys are texts, integers, booleans or dates."
    ),
}
NUMBER_BYTES: Final = 8
# Memory in bytes per row for key codes and row numbers, while rows are grouped.
GROUPING_BYTES: Final = 48
# Memory in bytes per series, and per column of a series, which is a view.
SERIES_BYTES, VIEW_BYTES = 512, 192
# Field numbers in Arrow's Message.fbs.
_MESSAGE_HEADER: Final = 2
_DICTIONARY_BATCH_DATA: Final = 1
_RECORD_BATCH_COMPRESSION: Final = 3
# Columns of every reply in long format.
RESERVED: Final = frozenset({"index", "t", "state", "error"})
STATE: Final = "state"


def request_is_arrow(request: Request) -> bool:
    """Return whether the body and the reply of a request are Arrow streams."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower() == ARROW


class ArrowRoute(StrictJSONRoute):
    """Route that accepts a JSON body, or an Arrow stream as the body and a query string."""

    def limits(self, settings: LimitSettings) -> BodyLimits:
        return BodyLimits(settings.max_series_bytes, series_limits(settings))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle_json, handle = super().get_route_handler(), self.plain_handler()
        model: Any = self.body_field.field_info.annotation if self.body_field else None

        async def read_then_handle(request: Request) -> Response:
            if not request_is_arrow(request):
                return await handle_json(request)
            require_uncompressed(request.headers.get("content-encoding"))
            state = request.app.state
            document = await _decoded(request, state.settings.limits)
            document |= _options(request, document)
            check_lengths(document, state.settings.limits)
            found = await state.cooperative.run(partial(validated, model, document, "The query"), is_long=True)
            return await handle(ValidatedRequest(request, found))

        return read_then_handle


async def _decoded(request: Request, settings: LimitSettings) -> dict[str, Any]:
    """Decode the body to a document of fields. For a body in long format, also store the keys for `keys_of`."""
    lease, by, reader = lease_of(request), _keys_asked(request), BodyReader.of(request)
    if not by:
        body = await reader.read_bytes(settings.max_body_bytes)
        decode = partial(decode_arrow, body, settings, lease)
        found: dict[str, Any] = await request.app.state.cooperative.run(decode, is_long=True)
        return found
    body = await reader.read_bytes(settings.max_arrow_bytes)
    # Decode in a thread, because it takes long and the libraries release the interpreter lock.
    decoding = asyncio.to_thread(decode_series, body, by, settings, lease)
    found, request.scope["state"]["keys"] = await unless_disconnected(request, decoding)
    return found


def keys_of(request: Request) -> Keys | None:
    """Return the keys of the series in a body in long format, or None if the body contains a single series."""
    keys: Keys | None = request.scope["state"].get("keys")
    return keys


def check_apart(keys: Keys, columns: Collection[str]) -> None:
    """Check that no key column has the same name as a column of the reply. Raise InvalidRequest if one has."""
    for name in keys.columns:
        if name in columns:
            message = (
                f"by must not name {name}, which is also a column of the reply; rename the column, or select other "
                "`fields`"
            )
            raise InvalidRequest(message, param=BY, code="no_key")


def _keys_asked(request: Request) -> list[str]:
    asked = request.query_params.getlist(BY)
    if len(asked) > 1:
        raise InvalidRequest(f"the query contains {BY} twice; remove one of them.", param=BY, code="duplicate")
    return [name for text in asked for name in text.split(",")]


def _options(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query parameters as fields of the document. Values are written as in JSON, or as words without quotes.
    The items of lists are separated by commas."""
    options: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name in options or name in body:
            place = "twice in the query" if name in options else "both in the query and in the body"
            raise InvalidRequest(f"{name} is set {place}; set it only once.", param=name, code="duplicate")
        if name in LISTS:
            options[name] = [_value(part) for part in text.split(",")]
        elif name != BY:
            options[name] = text if name in TEXTS else _value(text)
    return options


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def decode_arrow(body: bytes, settings: LimitSettings, lease: Lease) -> dict[str, Any]:
    """Decode an Arrow stream with one series to a document with the fields `values` and, if there is a time column,
    `times`. The arrays are float64, and NaN marks a missing value.

    Args:
        lease: Memory lease, which grows by the memory of the arrays.

    Raises:
        InvalidRequest: If the body is not an Arrow stream of numbers, or contains too many numbers.
        PayloadTooLarge, Overloaded: If there is not enough memory for the arrays.
    """
    table = _read_table(body)
    names = table.column_names
    clock = _time_column(table, names)
    check_lengths({"values": {name: range(table.num_rows) for name in names if name != clock}}, settings)
    hold(lease, NUMBER_BYTES * table.num_rows * len(names))
    columns = {name: _numbers(name, table[name]) for name in names}
    times = columns.pop(clock, None)
    return {"values": columns} if times is None else {"values": columns, "times": times}


def decode_series(body: bytes, by: Sequence[str], settings: LimitSettings, lease: Lease) -> tuple[dict[str, Any], Keys]:
    """Decode an Arrow stream in long format to a document with the field `series`, and return the keys of the series.

    The series are named "0", "1", …, and each is a document as returned by `decode_arrow`. If there is a text column
    `state`, each series continues from its first non-null value.

    Args:
        by: Names of the key columns.
        lease: Memory lease, which grows by the memory of the series.

    Raises:
        InvalidRequest: If the body is not an Arrow stream of numbers and keys, or contains too many rows or series.
        PayloadTooLarge, Overloaded: If there is not enough memory for the series.
    """
    table = _read_table(body)
    names = [name for name in table.column_names if name not in by]
    if len(by) > MOST_KEYS or len(names) + len(by) != table.num_columns or RESERVED & set(by):
        reserved = ", ".join(sorted(RESERVED))
        message = f"by must name 1 to {MOST_KEYS} columns of the body; the names {reserved} are reserved"
        raise InvalidRequest(message, param=BY, code="no_key")
    if not 0 < table.num_rows <= settings.max_arrow_observations:
        limit = settings.max_arrow_observations
        raise InvalidRequest(f"The body must contain 1 to {limit} rows on this server.", code="too_large")
    values_bytes = NUMBER_BYTES * table.num_rows * len(names)
    hold(lease, 2 * values_bytes + GROUPING_BYTES * table.num_rows)
    keys, groups = group(table, by, settings.max_series, len(body))
    states = _states(table[STATE], groups, len(body)) if STATE in names and is_text(table[STATE].type) else None
    if states is not None:
        names.remove(STATE)
    hold(lease, len(groups) * (SERIES_BYTES + VIEW_BYTES * len(names)))
    parts = {name: groups.parts(_numbers(name, table[name])) for name in names}
    times = parts.pop(_time_column(table, names), None)
    found: dict[str, Any] = {}
    for k in range(len(groups)):
        one: dict[str, Any] = {"values": {name: part[k] for name, part in parts.items()}}
        found[str(k)] = one
        if times is not None:
            one["times"] = times[k]
        if states is not None:
            one["state"] = states[k]
    lease.shrink(values_bytes + GROUPING_BYTES * table.num_rows)
    return {"series": found}, keys


def _states(column: Any, groups: Groups, most_bytes: int) -> list[str | None]:
    if sum(map(text_bytes, column.chunks)) > most_bytes:
        message = f"the decoded texts of column {STATE} must have at most {most_bytes} bytes; send fewer rows"
        raise InvalidRequest(message, param=STATE, code="too_large")
    rows = groups.first_rows(column.is_valid().to_numpy())
    return [None if row is None else column[row].as_py() for row in rows]


def _read_table(body: bytes) -> Any:
    """Read an Arrow stream as a table with distinct column names. If possible, the table shares the memory of the
    body."""
    try:
        _check_messages(body)
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        reason = str(error).split("\n")[0][:120]
        raise InvalidRequest(f"The body is not a valid Arrow stream: {reason}", code="invalid_arrow") from None
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidRequest(
            "The body contains two columns with the same name; rename one of them.", param="values", code="duplicate"
        )
    return table


def _time_column(table: Any, names: Sequence[str]) -> str | None:
    return next((name for name in names if _is_time_column(name, table[name].type)), None)


def _is_time_column(name: str, kind: Any) -> bool:
    return pa.types.is_timestamp(kind) or name.lower() in TIME_COLUMNS


def _check_messages(body: bytes) -> None:
    """Reject messages with compressed batches before they are decoded."""
    messages = iter(pa.ipc.MessageReader.open_stream(body))
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise ValueError("the first message is not a schema")
    for message in messages:
        if message.type not in ("record batch", "dictionary"):
            raise ValueError(f"a message has the type {message.type} instead of record batch")
        if _is_compressed(message.metadata.to_pybytes(), is_dictionary=message.type == "dictionary"):
            raise ValueError("the record batches must not be compressed")


def _is_compressed(metadata: bytes, *, is_dictionary: bool) -> bool:
    """Return whether the record batch of a message is compressed, according to Arrow's Message.fbs. A message with a
    dictionary contains its record batch one level deeper."""
    (message,) = struct.unpack_from("<I", metadata)
    batch = _table(metadata, message, _MESSAGE_HEADER)
    if is_dictionary:
        batch = _table(metadata, batch, _DICTIONARY_BATCH_DATA)
    return _field(metadata, batch, _RECORD_BATCH_COMPRESSION) is not None


def _table(data: bytes, table: int, number: int) -> int:
    """Return the offset of the table that a field of a flatbuffers table refers to."""
    place = _field(data, table, number)
    if place is None:
        raise ValueError("a message is incomplete")
    (offset,) = struct.unpack_from("<I", data, place)
    found: int = place + offset
    return found


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffers table, or None if the field is not set."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else None


def _numbers(name: str, column: Any) -> np.ndarray:
    kind = column.type
    if pa.types.is_timestamp(kind):
        ticks = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        column = pa.compute.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), float(ticks))
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        message = f"values.{name} must contain numbers, not {kind}; if it is a key column, add it to `by`"
        raise InvalidRequest(message, param=f"values.{name}", code="not_numbers")
    values: np.ndarray = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def encode_arrow(columns: Mapping[str, np.ndarray], summary: bytes) -> bytes:
    """Encode columns as an Arrow stream. NaN becomes null. `summary` is stored in the metadata `rfa` of the schema."""
    arrays = [_column(column) for column in columns.values()]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={b"rfa": summary})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class SeriesWriter:
    """Writes an Arrow stream with several series. Each series is one record batch.

    The first columns are the keys. The metadata `rfa` of a batch is JSON with the results for the whole series. The
    batch of a failed series is one row with its keys and error.

    Args:
        columns: Empty columns of a reply, which define the names and types.
        has_states: Whether to add a column for states. A state is stored in the last row of its series.
    """

    def __init__(self, keys: Keys, columns: Mapping[str, np.ndarray], *, has_states: bool) -> None:
        self._keys = keys
        self._columns = {name: pa.from_numpy_dtype(column.dtype) for name, column in columns.items()}
        fields = [*keys.fields, *(pa.field(name, kind) for name, kind in self._columns.items())]
        self._texts = ("state", "error") if has_states else ("error",)
        self._schema = pa.schema([*fields, *(pa.field(name, pa.string()) for name in self._texts)])
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def begin(self) -> bytes:
        """Return the bytes with which the stream begins, which contain the schema."""
        return self._written()

    def add(self, series: int, columns: Mapping[str, np.ndarray], state: str | None, summary: bytes) -> bytes:
        """Return the bytes of the batch of a series. Columns of the stream that are not in `columns` are null."""
        rows = len(next(iter(columns.values())))
        if state is not None and not rows:
            return self._batch(series, 1, {}, {"state": state}, summary)
        return self._batch(series, rows, columns, {"state": state}, summary)

    def add_failed(self, series: int, error: bytes) -> bytes:
        """Return the bytes of the batch of a failed series. It contains an error instead of numbers."""
        return self._batch(series, 1, {}, {"error": error.decode()}, error)

    def end(self, summary: bytes) -> bytes:
        """Return the bytes of an empty batch with the metadata `summary`, and of the end of the stream."""
        nothing = pa.record_batch([pa.nulls(0, field.type) for field in self._schema], schema=self._schema)
        self._writer.write_batch(nothing, custom_metadata={b"rfa": summary})
        self._writer.close()
        return self._written()

    def _batch(
        self, series: int, rows: int, columns: Mapping[str, np.ndarray], texts: Mapping[str, str | None], summary: bytes
    ) -> bytes:
        arrays = self._keys.repeated(series, rows)
        for name, kind in self._columns.items():
            column = columns.get(name)
            arrays.append(pa.nulls(rows, kind) if column is None else _column(column))
        for name in self._texts:
            text = texts.get(name)
            missing = pa.nulls(rows if text is None else rows - 1, pa.string())
            arrays.append(missing if text is None else pa.concat_arrays([missing, pa.array([text], pa.string())]))
        batch = pa.record_batch(arrays, schema=self._schema)
        self._writer.write_batch(batch, custom_metadata={b"rfa": summary})
        return self._written()

    def _written(self) -> bytes:
        written = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return written


def _column(column: np.ndarray) -> Any:
    # pyarrow converts NaN to null. NumPy finds out faster whether there is any NaN.
    return pa.array(np.ascontiguousarray(column), from_pandas=bool(np.isnan(column).any()))
