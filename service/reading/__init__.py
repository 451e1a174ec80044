"""Reads uploaded files in a subprocess."""
