"""Choose the device and the precision for training and evaluation."""

from __future__ import annotations

import torch

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "bf16", "fp32")


def choose_device(name: str) -> torch.device:
    """Return the device for the option `--device`. "auto" selects the GPU if there is one, and otherwise the CPU.

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


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Return whether matrix products are computed in bfloat16 on `device` for a setting of `PRECISIONS`.

    "auto" selects bfloat16 where the hardware multiplies it. Other processors emulate it, more than ten times more
    slowly than float32.
    """
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
