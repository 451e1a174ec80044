"""Forecasts of public series."""
