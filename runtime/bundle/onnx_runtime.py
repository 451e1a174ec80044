"""ONNX Runtime without telemetry; import it from here: `from rfa.runtime.bundle.onnx_runtime import ort`.

The build from PyPI sends telemetry to mobile.events.data.microsoft.com from threads of its own, and stores a database
under ~/.cache/Microsoft. It reads its environment at import; `disable_telemetry_events()` afterwards does not stop it.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

__all__ = ["ort"]
