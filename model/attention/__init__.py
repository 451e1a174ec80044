"""Robust Filter Attention over sequences."""
