"""Choose the device for training and evaluation."""

from __future__ import annotations

import torch

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """Return the device for the option `--device`. "auto" selects the GPU if there is one, otherwise the CPU.

    Raises:
        ValueError: If the name is not one of `DEVICES`, or torch cannot use a GPU.
    """
    if name not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        reason = "finds no NVIDIA GPU" if torch.version.cuda else "is built without CUDA"
        raise ValueError(f"--device cuda: torch {torch.__version__} {reason}; use --device cpu")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")
