"""Latencies in bounded memory: logarithmic bins per time slice.

A bin is `RESOLUTION` wide relative to its value, so a percentile is at most that much too high; the maximum is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

RESOLUTION = 0.01
SMALLEST_SECONDS = 1e-6
LARGEST_SECONDS = 1e4
_LOG_RATIO = math.log1p(RESOLUTION)
BINS = math.ceil(math.log(LARGEST_SECONDS / SMALLEST_SECONDS) / _LOG_RATIO) + 2
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}


def bin_of(seconds: float) -> int:
    """Return the index of the bin of a latency. The first bin holds all latencies below a microsecond."""
    if seconds <= SMALLEST_SECONDS:
        return 0
    return min(BINS - 1, 1 + int(math.log(seconds / SMALLEST_SECONDS) / _LOG_RATIO))


# Upper edges of the bins in seconds.
UPPER_EDGES = SMALLEST_SECONDS * np.exp(_LOG_RATIO * np.arange(BINS))


class Histogram:
    """Counts per time slice of `slice_seconds` and bin. Later times are counted in the last slice."""

    def __init__(self, slices: int, slice_seconds: float) -> None:
        self.slice_seconds = slice_seconds
        self.counts = np.zeros((slices, BINS), np.int64)
        self.largest = 0.0

    def record(self, since_start: float, seconds: float) -> None:
        """Count one latency of a request that was due `since_start` seconds into the run."""
        position = min(max(int(since_start / self.slice_seconds), 0), len(self.counts) - 1)
        self.counts[position, bin_of(seconds)] += 1
        self.largest = max(self.largest, seconds)

    @property
    def total(self) -> int:
        """Return the number of recorded latencies."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> float:
        """Return the seconds that `percent` % of the latencies do not exceed, or NaN if empty."""
        return _percentile(self.counts.sum(axis=0), percent, self.largest)

    def summary_ms(self) -> dict[str, float | int] | None:
        """Return count, percentiles and maximum in milliseconds, or None if empty."""
        if not self.total:
            return None
        percentiles = {name: round(1e3 * self.percentile(percent), 4) for name, percent in PERCENTILES.items()}
        return {"count": self.total, **percentiles, "max": round(1e3 * self.largest, 4)}

    def over_time(self, percent: float) -> list[float]:
        """Return the percentile of every slice in seconds, NaN for empty slices."""
        return [_percentile(row, percent, self.largest) for row in self.counts]

    def to_document(self) -> dict[str, Any]:
        """Return the non-empty bins as JSON."""
        slices, bins = np.nonzero(self.counts)
        return {
            "slices": len(self.counts),
            "slice_seconds": self.slice_seconds,
            "largest": self.largest,
            "cells": [slices.tolist(), bins.tolist(), self.counts[slices, bins].tolist()],
        }

    @classmethod
    def from_documents(cls, documents: Iterable[dict[str, Any]]) -> Histogram:
        """Return the sum of histograms with the same layout."""
        merged: Histogram | None = None
        for document in documents:
            if merged is None:
                merged = cls(document["slices"], document["slice_seconds"])
            elif (len(merged.counts), merged.slice_seconds) != (document["slices"], document["slice_seconds"]):
                raise ValueError("histograms with different time slices cannot be added")
            slices, bins, counts = document["cells"]
            np.add.at(merged.counts, (slices, bins), counts)
            merged.largest = max(merged.largest, document["largest"])
        if merged is None:
            raise ValueError("no histogram to add")
        return merged


def _percentile(counts: np.ndarray, percent: float, largest: float) -> float:
    cumulative = np.cumsum(counts)
    if not cumulative[-1]:
        return math.nan
    rank = max(1, math.ceil(percent / 100 * cumulative[-1]))
    return min(float(UPPER_EDGES[np.searchsorted(cumulative, rank)]), largest)
