"""Which code and which libraries wrote a bundle."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy", "safetensors")


def export_provenance() -> dict[str, Any]:
    """Commit of the working tree (marked if it has changes, None outside a checkout) and library versions."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    here = Path(__file__).parent
    described = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return {
        "commit": described.stdout.strip() if described.returncode == 0 else None,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    }
