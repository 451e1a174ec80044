"""Anybody's recorded series: files and tables as people have them, read into times and numbers, and written again."""

from rfa.data.frame import Key, key_name, read_frame
from rfa.data.future import times_ahead, usual_lag, usual_step
from rfa.data.load import load_series, load_table
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.written import write_clock

__all__ = [
    "Key",
    "Series",
    "Table",
    "key_name",
    "load_series",
    "load_table",
    "read_frame",
    "times_ahead",
    "usual_lag",
    "usual_step",
    "write_clock",
]
