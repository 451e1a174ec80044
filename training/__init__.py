"""Train runs from data, and evaluate runs and bundles."""
