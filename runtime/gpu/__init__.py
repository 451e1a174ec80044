"""The runtime on a GPU. Only these files of the runtime import torch and the model, and only on request."""
