"""Robust Filter Attention, its recurrent twins, and the networks built on them.

Names are imported when they are asked for: the compiled parts need numba and no torch, everything else the reverse.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.attention.api import robust_filter_attention
    from model.attention.reference import AttentionResult
    from model.checkpoint import load_model
    from model.dynamics import Dynamics
    from model.recurrence.dense_numba import LinearStream as LinearStream
    from model.recurrence.dense_numba import filter_streams as filter_streams
    from model.recurrence.irkf import IRKFState, irkf_scan, irkf_step

__all__ = [
    "AttentionResult",
    "Dynamics",
    "IRKFState",
    "irkf_scan",
    "irkf_step",
    "load_model",
    "robust_filter_attention",
]

_HOMES = {
    "AttentionResult": "model.attention.reference",
    "Dynamics": "model.dynamics",
    "IRKFState": "model.recurrence.irkf",
    "LinearStream": "model.recurrence.dense_numba",
    "filter_streams": "model.recurrence.dense_numba",
    "irkf_scan": "model.recurrence.irkf",
    "irkf_step": "model.recurrence.irkf",
    "load_model": "model.checkpoint",
    "robust_filter_attention": "model.attention.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
