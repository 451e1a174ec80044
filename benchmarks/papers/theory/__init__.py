"""Statements of the papers as code."""
