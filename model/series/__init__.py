"""Series network in PyTorch, for training and for forecasting many rows at once."""
