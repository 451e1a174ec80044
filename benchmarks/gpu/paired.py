"""Paired timings on a GPU: cases alternate in one process, so that a change of clocks affects all of them.

A sample is the time between two CUDA events around one call. Before it the L2 cache is overwritten, then the device
idles for longer than the host needs for a call, so that the host's part of a launch is excluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

QUANTILES = {"p20": 0.2, "p50": 0.5, "p80": 0.8}
# Time limit of slow cases, and minimum number of rounds.
SECONDS, FEWEST_ROUNDS = 2.0, 5
# Larger than the L2 cache of current GPUs.
CACHE_BYTES = 256 * 2**20
# Idle time relative to the host's time for a call, and its upper limit, because a call that waits for the device takes
# as long as that.
HEAD_START, LONGEST_START = 1.5, 0.02
# Upper estimate of a GPU's clock frequency.
CYCLES = 2e9

Timer = Callable[[Callable[[], object]], float]


@dataclass
class EventTimer:
    """Times calls in milliseconds by CUDA events. `repeats` consecutive calls form a sample with their mean time.

    Args:
        is_flushing: Flush the cache and exclude the host's part. Otherwise calls follow one another as in a loop.
    """

    repeats: int = 1
    is_flushing: bool = True
    _cache: torch.Tensor = field(init=False)
    _host: dict[int, float] = field(init=False, default_factory=dict)  # seconds of each call, by its id

    def __post_init__(self) -> None:
        self._cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, call: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if self.is_flushing:
            self._cache.zero_()
            ahead = min(HEAD_START * self._host.get(id(call), LONGEST_START), LONGEST_START)
            torch.cuda._sleep(int(CYCLES * ahead))
        start.record()
        begun = time.perf_counter()
        for _ in range(self.repeats):
            call()
        self._host[id(call)] = max(time.perf_counter() - begun, self._host.get(id(call), 0.0))
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / self.repeats


def host_clock(call: Callable[[], object]) -> float:
    """Return milliseconds of a call on the host's clock. The call waits for its result."""
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)


def interleaved(
    cases: Mapping[str, Callable[[], object]], timer: Timer, *, rounds: int, warmups: int = 3, label: str = "rounds",
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:  # fmt: skip
    """Return samples of each case, one per round, `rounds` or as many as fit into SECONDS.

    The order rotates, so that no case always follows the same one.
    """
    for call in cases.values():
        for _ in range(warmups):
            call()
    order = list(cases)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    begun = clock()
    for i in tqdm(range(rounds), desc=label, leave=False):
        if i >= FEWEST_ROUNDS and clock() - begun > SECONDS:
            break
        shift = i % len(order)
        for name in order[shift:] + order[:shift]:
            samples[name].append(timer(cases[name]))
    return samples


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """Return p20, p50 and p80 in milliseconds."""
    return {f"{name}_ms": round(float(np.quantile(samples, q)), 5) for name, q in QUANTILES.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over the rounds of ours / theirs in the same round."""
    if len(ours) != len(theirs):
        raise ValueError(f"paired samples must be equally many, got {len(ours)} and {len(theirs)}")
    return float(np.median(np.asarray(ours) / np.asarray(theirs)))


@dataclass(frozen=True)
class Bar:
    """A bound on a measured ratio: at most `limit`, or at least if `is_minimum`."""

    name: str
    limit: float
    actual: float | None
    is_minimum: bool = False

    @property
    def is_met(self) -> bool:
        """Return whether the limit is met. Return False without a measurement."""
        if self.actual is None or not np.isfinite(self.actual):
            return False
        return self.actual >= self.limit if self.is_minimum else self.actual <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "bar": self.limit,
            "kind": "at least" if self.is_minimum else "at most",
            "actual": None if self.actual is None else round(self.actual, 4),
            "met": self.is_met,
        }
