"""Evaluate runs and bundles, with `rfa eval`."""
