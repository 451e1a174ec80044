"""Experiments with models of any series: what they are trained on, and how well they do."""
