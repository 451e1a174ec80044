"""Robust Filter Attention: attention that estimates states, its recurrent form, and a server.

Names are imported on first use. `filter`, `filter_table`, `filter_batches`, `forecast`, `detect`, `backtest`, `Stream`
and `Streams` come with `pip install rfa-server`, `fit` with `rfa-server[fit]`; all other names need torch, which
`rfa-server[gpu]` or `rfa-server[train]` installs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rfa.model.loading import load_model
    from rfa.library.backtest import Backtest, backtest
    from rfa.library.filtering import Detection, detect, filter, forecast
    from rfa.library.fitting import fit
    from rfa.library.many import Streams
    from rfa.library.stream import Stream
    from rfa.library.table import filter_batches, filter_table
    from rfa.runtime.errors import RefusedRow
    from rfa.model.attention.api import robust_filter_attention
    from rfa.model.attention.reference import AttentionResult
    from rfa.model.dynamics import Dynamics
    from rfa.runtime.filters.fitted import Models
    from rfa.model.recurrence.irkf import IRKFState, irkf_scan, irkf_step

__all__ = [
    "AttentionResult",
    "Backtest",
    "Detection",
    "Dynamics",
    "IRKFState",
    "Models",
    "RefusedRow",
    "Stream",
    "Streams",
    "backtest",
    "detect",
    "filter",
    "filter_batches",
    "filter_table",
    "fit",
    "forecast",
    "irkf_scan",
    "irkf_step",
    "load_model",
    "robust_filter_attention",
]

_HOMES = {
    "AttentionResult": "rfa.model.attention.reference",
    "Backtest": "rfa.library.backtest",
    "Detection": "rfa.library.filtering",
    "Dynamics": "rfa.model.dynamics",
    "IRKFState": "rfa.model.recurrence.irkf",
    "Models": "rfa.runtime.filters.fitted",
    "RefusedRow": "rfa.runtime.errors",
    "Stream": "rfa.library.stream",
    "Streams": "rfa.library.many",
    "backtest": "rfa.library.backtest",
    "detect": "rfa.library.filtering",
    "filter": "rfa.library.filtering",
    "filter_batches": "rfa.library.table",
    "filter_table": "rfa.library.table",
    "fit": "rfa.library.fitting",
    "forecast": "rfa.library.filtering",
    "irkf_scan": "rfa.model.recurrence.irkf",
    "irkf_step": "rfa.model.recurrence.irkf",
    "load_model": "rfa.model.loading",
    "robust_filter_attention": "rfa.model.attention.api",
}
# Packages of `rfa-server[fit]`.
FIT_PACKAGES = {"scipy", "threadpoolctl"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if name == "fit" and error.name in FIT_PACKAGES:
            raise ImportError(f"rfa.fit needs {error.name}; install it with pip install 'rfa-server[fit]'") from None
        if error.name != "torch":
            raise
        raise ImportError(
            f"rfa.{name} needs torch; install it with pip install 'rfa-server[train]' or 'rfa-server[gpu]'"
        ) from None
    globals()[name] = value
    return value
