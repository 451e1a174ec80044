"""ONNX Runtime, which everything of ours imports from here: `from rfa.runtime.bundle.onnx_runtime import ort`.

As it comes from PyPI it reports to its makers: it keeps a database under ~/.cache/Microsoft, and threads of its own ask
name servers for mobile.events.data.microsoft.com and send there what it counted. It reads its environment when it is
imported, and `disable_telemetry_events()` afterwards does not stop it.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

__all__ = ["ort"]
