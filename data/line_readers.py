"""List the readers of text that is not a table with separators, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from rfa.data.attributes import read_series_lines
from rfa.data.fit_csv import read_fit
from rfa.data.json_values import Rows
from rfa.data.labelled_lines import read_access_log, read_fields, read_labelled, read_proxy_log, read_records
from rfa.data.line_protocol import read_points
from rfa.data.log_lines import read_log
from rfa.data.named_lines import read_frames, read_named_values
from rfa.data.nmea import read_sentences
from rfa.data.nmon import read_snapshots
from rfa.data.number_lines import read_number_lines
from rfa.data.statements import read_statement

# Each reader returns None for text in another format.
READERS: Final[tuple[Callable[[str], Rows | None], ...]] = (
    read_fit, read_statement, read_frames, read_sentences, read_snapshots, read_fields, read_points, read_records,
    read_access_log, read_proxy_log, read_labelled, read_named_values, read_number_lines, read_log,
    partial(read_number_lines, needs_decimals=False), read_series_lines,
)  # fmt: skip
