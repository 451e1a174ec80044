"""Code version and libraries that wrote a bundle."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from rfa.measured import git_commit

LIBRARIES = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy", "safetensors")


def export_provenance() -> dict[str, Any]:
    """Commit of the working tree (marked if changed, None outside a checkout) and library versions."""
    return {
        "commit": git_commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    }
