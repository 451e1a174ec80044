"""The GPU on which a result is measured, and the error if there is none."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from rfa.runtime.gpu.device import gpu_refusal


class NoGpuError(RuntimeError):
    """A measurement needs a GPU, and there is none."""

    exit_code = 2


def require_gpu() -> torch.device:
    """Return the current CUDA device."""
    reason = gpu_refusal()
    if reason is not None:
        raise NoGpuError(
            f"this measurement needs {reason}; `rfa bench aot` is what can be known of the kernels without one"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    return found.stdout.split("\n")[0].strip() or None if found.returncode == 0 else None


def gpu_hardware(device: torch.device) -> dict[str, Any]:
    """Return device, driver, versions and date of a measurement."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": version("triton"),
        "date": datetime.now(UTC).date().isoformat(),
    }
