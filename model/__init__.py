"""Robust Filter Attention, its recurrent twins, and the networks built on them."""

from typing import TYPE_CHECKING, Any

from model.attention.api import robust_filter_attention
from model.attention.reference import AttentionResult
from model.checkpoint import load_model
from model.dynamics import Dynamics
from model.recurrence.irkf import IRKFState, irkf_scan, irkf_step

if TYPE_CHECKING:
    from model.recurrence.dense_numba import LinearStream as LinearStream
    from model.recurrence.dense_numba import filter_streams as filter_streams

__all__ = [
    "AttentionResult",
    "Dynamics",
    "IRKFState",
    "irkf_scan",
    "irkf_step",
    "load_model",
    "robust_filter_attention",
]


def __getattr__(name: str) -> Any:
    """`LinearStream` and `filter_streams`, which need numba, are imported when they are asked for."""
    if name in ("LinearStream", "filter_streams"):
        from model.recurrence import dense_numba

        return getattr(dense_numba, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
