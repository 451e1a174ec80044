"""Robust Filter Attention, its recurrent twins, and the networks built on them."""

from model.attention.api import robust_filter_attention
from model.attention.reference import AttentionResult
from model.checkpoint import load_model
from model.dynamics import Dynamics
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
