"""Reading recorded series from files and tables into times and numbers, and writing times back in the same form."""

from rfa.data.frame import Key, key_name, read_frame
from rfa.data.horizon import future_times, usual_lag, usual_step
from rfa.data.loading import load_series, load_table
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.write_times import write_clock

__all__ = [
    "Key",
    "Series",
    "Table",
    "future_times",
    "key_name",
    "load_series",
    "load_table",
    "read_frame",
    "usual_lag",
    "usual_step",
    "write_clock",
]
