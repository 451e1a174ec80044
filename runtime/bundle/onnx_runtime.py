"""ONNX Runtime without telemetry. Import it from here: `from rfa.runtime.bundle.onnx_runtime import ort`.

The build from PyPI starts threads that send telemetry to mobile.events.data.microsoft.com, and stores a database under
~/.cache/Microsoft. It reads its environment at import; a later `disable_telemetry_events()` does not stop it.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

__all__ = ["ort"]
