"""Adaptive Filter Attention as published, against what it claims."""
