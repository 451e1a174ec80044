"""The PyTorch series network, for training and for forecasting many rows at once."""
