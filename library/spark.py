"""Filter streams with keys on Spark. `SeriesProcessor` is a processor for `transformWithState`. It needs pyspark
(`rfa-server[spark]`).

Spark keeps the state of each series in its state store and commits it with the offsets of the micro-batch. If a batch
fails or is killed, its rows are therefore not counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, StructField, StructType

from rfa.library.table import FIELDS, TableColumns, TableFilter

_STATE = StructType([StructField("state", BinaryType())])


class SeriesProcessor(StatefulProcessor):  # type: ignore[misc]
    """Filters the rows of each key of a stream. The rows of a micro-batch are sorted by time.

    Args:
        schema: Schema of the rows, `df.schema`.
        key, time, values, fields, tz, options: See `rfa.filter_table`.

    Attributes:
        output: Schema of the output, for `outputStructType`.
    """

    def __init__(
        self, schema: StructType, *, key: Sequence[str] | str, time: str, values: Sequence[str] | str = (),
        fields: Sequence[str] = FIELDS, tz: str = "UTC", **options: Any,
    ) -> None:  # fmt: skip
        from pyspark.sql.pandas.types import to_arrow_schema

        keys, chosen = ((one,) if isinstance(one, str) else tuple(one) for one in (key, values))
        self._schema = to_arrow_schema(schema)
        self._columns = TableColumns(keys, time, chosen, fields=tuple(fields), tz=tz).of(self._schema)
        self._options = {**options, "limit": 1}
        self._work: TableFilter | None = None
        self.output = from_arrow_schema(
            TableFilter(self._columns, **self._options).filter(self._schema.empty_table()).schema
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_work": None}  # the worker creates it again

    def init(self, handle: Any) -> None:
        """Initialise the processor. Spark calls this method."""
        self._state = handle.getValueState("filter", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Filter the rows of one key in a micro-batch. Spark calls this method."""
        if self._work is None:
            self._work = TableFilter(self._columns, **self._options)
        streams, columns = self._work.streams, self._columns
        streams.remove(list(streams))
        table = pa.Table.from_pylist([row.asDict() for row in rows], self._schema)
        table = table.sort_by([(columns.time, "ascending")])
        if self._state.exists():
            streams.restore(self._work.keys(table)[0], bytes(self._state.get()[0]))
        found = self._work.filter(table)
        if len(streams):
            self._state.update((streams.state(next(iter(streams))),))
        for row in found.to_pylist():
            yield Row(**row)
