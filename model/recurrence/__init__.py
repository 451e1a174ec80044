"""Recurrent forms of Robust Filter Attention: the IRKF, and gated memory slots for language models."""
