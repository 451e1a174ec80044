"""Robust Filter Attention, its recurrences, and the networks built on them, in PyTorch."""
