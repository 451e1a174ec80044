"""Filters of grids with row and column dynamics (AFA B.6)."""
