"""Runtime on a GPU. Only these files of the runtime import torch and the model, and only if a GPU is requested."""
