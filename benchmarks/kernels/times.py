"""Time of the kernels and copies of a call on a GPU, from torch's profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Maximum length of a name: names of templates are pages long.
LETTERS = 60


def kernel_rows(call: Callable[[], object], *, calls: int = 10) -> list[dict[str, Any]]:
    """Return each kernel of a call with launches and µs per call, the longest first. Empty without a GPU."""
    if not torch.cuda.is_available():
        return []
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return by_kernel(profiled.events() or (), calls)


def by_kernel(events: Iterable[Any], calls: int) -> list[dict[str, Any]]:
    """Convert a profile of several calls to rows."""
    launches, us = Counter[str](), Counter[str]()
    for event in events:
        if event.device_type == DeviceType.CUDA:
            launches[event.name[:LETTERS]] += 1
            us[event.name[:LETTERS]] += event.device_time
    return [
        {"kernel": name, "launches": launches[name] / calls, "us": round(spent / calls, 2)}
        for name, spent in us.most_common()
    ]
