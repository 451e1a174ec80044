"""Measurements of `rfa eval`."""
