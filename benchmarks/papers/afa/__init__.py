"""Adaptive Filter Attention as published, with tests of its claims."""
