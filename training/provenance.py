"""Record how a result was made: hashes of the data, code version, library versions and machine."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from rfa.measured import git_commit
from rfa.training.corpus import file_hashes


def provenance(files: list[Path], device: torch.device) -> dict[str, Any]:
    """Return the provenance for the record of a run. It contains file names without directories."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "data": file_hashes(files),
        "commit": git_commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": name,
    }
