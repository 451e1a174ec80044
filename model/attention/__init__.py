"""Robust Filter Attention over sequences, as a reference implementation and as Triton kernels."""
