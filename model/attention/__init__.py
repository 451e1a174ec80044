"""Robust Filter Attention over a sequence."""
