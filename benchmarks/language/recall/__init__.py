"""Experiments on the recall of a state of constant size."""
