"""Fit structural models to series by maximum likelihood, without torch."""
