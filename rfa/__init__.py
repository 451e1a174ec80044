"""Robust Filter Attention: attention that is state estimation, its recurrent twins, and what serves them.

Names are imported when they are asked for. `filter`, `forecast`, `detect` and `Stream` come with
`pip install rfa-server`, and are fast with `rfa-server[fast]` (numba); `LinearFilterConfig`, `LinearStream` and
`filter_streams` need that; `fit` comes with `rfa-server[fit]`; the others come with `rfa-server[gpu]` or
`rfa-server[train]` (torch).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rfa.model.loading import load_model
    from rfa.library.filtering import Detection, detect, filter, forecast
    from rfa.library.fitting import fit
    from rfa.library.stream import Stream
    from rfa.model.attention.api import robust_filter_attention
    from rfa.model.attention.reference import AttentionResult
    from rfa.model.dynamics import Dynamics
    from rfa.runtime.filters.fitted import Models
    from rfa.runtime.filters.linear_config import LinearFilterConfig as LinearFilterConfig
    from rfa.runtime.filters.dense_numba import LinearStream as LinearStream
    from rfa.runtime.filters.dense_numba import filter_streams as filter_streams
    from rfa.model.recurrence.irkf import IRKFState, irkf_scan, irkf_step

__all__ = [
    "AttentionResult",
    "Detection",
    "Dynamics",
    "IRKFState",
    "Models",
    "Stream",
    "detect",
    "filter",
    "fit",
    "forecast",
    "irkf_scan",
    "irkf_step",
    "load_model",
    "robust_filter_attention",
]

_HOMES = {
    "AttentionResult": "rfa.model.attention.reference",
    "Detection": "rfa.library.filtering",
    "Dynamics": "rfa.model.dynamics",
    "IRKFState": "rfa.model.recurrence.irkf",
    "LinearFilterConfig": "rfa.runtime.filters.linear_config",
    "LinearStream": "rfa.runtime.filters.dense_numba",
    "Models": "rfa.runtime.filters.fitted",
    "Stream": "rfa.library.stream",
    "detect": "rfa.library.filtering",
    "filter": "rfa.library.filtering",
    "fit": "rfa.library.fitting",
    "forecast": "rfa.library.filtering",
    "filter_streams": "rfa.runtime.filters.dense_numba",
    "irkf_scan": "rfa.model.recurrence.irkf",
    "irkf_step": "rfa.model.recurrence.irkf",
    "load_model": "rfa.model.loading",
    "robust_filter_attention": "rfa.model.attention.api",
}
# What `rfa-server[fit]` brings.
OF_FITTING = {"numba", "scipy", "threadpoolctl"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if name == "fit" and error.name in OF_FITTING:
            raise ImportError(f"rfa.fit needs {error.name}: pip install 'rfa-server[fit]'") from None
        if error.name != "torch":
            raise
        raise ImportError(f"rfa.{name} needs torch: pip install 'rfa-server[train]', or 'rfa-server[gpu]'") from None
    globals()[name] = value
    return value
