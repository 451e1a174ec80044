"""Recurrent forms of Robust Filter Attention: the IRKF and its gated slots for language."""
