"""ONNX Runtime without telemetry. Import it with `from rfa.runtime.bundle.onnx_runtime import ort`.

The build on PyPI starts threads that send telemetry to mobile.events.data.microsoft.com, and stores a database in the
directory .cache/Microsoft of the user. The setting must be in the environment before the import; a later call of
`disable_telemetry_events()` does not stop the threads.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

__all__ = ["ort"]
