"""Where the time of a call goes on a GPU: its kernels and copies by torch's profiler, as the driver tells them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Of a name: those of templates are pages long.
LETTERS = 60


def kernel_rows(call: Callable[[], object], *, calls: int = 10) -> list[dict[str, Any]]:
    """Each kernel of a call with its launches and µs a call, the longest first; without a GPU there are none."""
    if not torch.cuda.is_available():
        return []
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return by_kernel(profiled.events() or (), calls)


def by_kernel(events: Iterable[Any], calls: int) -> list[dict[str, Any]]:
    """The rows of what the profiler saw of so many calls."""
    launches, us = Counter[str](), Counter[str]()
    for event in events:
        if event.device_type == DeviceType.CUDA:
            launches[event.name[:LETTERS]] += 1
            us[event.name[:LETTERS]] += event.device_time
    return [
        {"kernel": name, "launches": launches[name] / calls, "us": round(spent / calls, 2)}
        for name, spent in us.most_common()
    ]
