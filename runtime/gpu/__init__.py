"""The runtime on a GPU. Only these files import torch and the model, and only on request."""
