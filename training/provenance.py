"""Where a result comes from: data hashes, code version, library versions, machine."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from training.corpus import file_hashes


def git_commit() -> str | None:
    """The commit of the working tree, with a mark if it has changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def provenance(files: list[Path], device: torch.device) -> dict[str, Any]:
    """What a run's record says of its origin; file names without their folders."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "data": file_hashes(files),
        "commit": git_commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": name,
    }
