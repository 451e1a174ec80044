"""Training of runs from data, and evaluation of runs and bundles."""
