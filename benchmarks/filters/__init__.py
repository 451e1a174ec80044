"""Filters compared with exact and public ones: accuracy, intervals, baselines."""
