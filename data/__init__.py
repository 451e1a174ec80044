"""Anybody's recorded series: files as people have them, read into times and numbers."""

from rfa.data.load import load_series
from rfa.data.series import Series

__all__ = ["Series", "load_series"]
