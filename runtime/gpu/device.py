"""Check whether torch can use the GPU of this process."""

from __future__ import annotations


def gpu_refusal() -> str | None:
    """Return the reason why torch cannot use a GPU, and how to fix this. Return None if torch can use a GPU."""
    try:
        import torch
    except ImportError:
        return "torch, which is not installed (in a checkout: pip install -e '.[gpu,fast]')"
    if torch.version.cuda is None:
        return (
            f"torch with CUDA, but torch {torch.__version__} was built without it; install the build for your CUDA "
            "version from pytorch.org"
        )
    if not torch.cuda.is_available():
        return (
            f"an NVIDIA GPU, but torch {torch.__version__} does not find one, or not the selected one; check how many "
            "nvidia-smi lists, and whether the container has access to them (docker run --gpus all)"
        )
    return None
