"""Structural models fitted to a series by maximum likelihood, without torch."""
