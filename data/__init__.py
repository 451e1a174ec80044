"""Read recorded series from files and tables into times and numbers, and write times back in the format of the
input."""

from rfa.data.frame import Frame, ReadOptions, read_all, read_frame
from rfa.data.horizon import future_times, usual_lag, usual_step
from rfa.data.loading import load_series, load_table
from rfa.data.series import Key, Series, key_name
from rfa.data.table import Table
from rfa.data.write_times import write_clock

__all__ = [
    "Frame",
    "Key",
    "ReadOptions",
    "Series",
    "Table",
    "future_times",
    "key_name",
    "load_series",
    "load_table",
    "read_all",
    "read_frame",
    "usual_lag",
    "usual_step",
    "write_clock",
]
