"""Runtime on a GPU. Only the files in this directory import torch and the model, and only if a GPU is requested."""
