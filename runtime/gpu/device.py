"""Check whether torch can use the GPU of this process."""

from __future__ import annotations


def gpu_refusal() -> str | None:
    """Return the reason why torch cannot use a GPU and what to do about it, or None if it can."""
    try:
        import torch
    except ImportError:
        return "torch, which is not installed: in a checkout pip install -e '.[gpu,fast]'"
    if torch.version.cuda is None:
        return (
            f"torch with CUDA, and torch {torch.__version__} is built without: install the build for your CUDA version "
            "from pytorch.org"
        )
    if not torch.cuda.is_available():
        return (
            f"an NVIDIA GPU, and torch {torch.__version__} finds none, or not the one that is meant: see how many "
            "nvidia-smi lists, and whether the container was given them (docker run --gpus all)"
        )
    return None
