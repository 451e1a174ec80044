"""Experiments with the series models: training data and accuracy."""
