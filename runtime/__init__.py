"""Run a model on numbers or tokens, without torch."""
