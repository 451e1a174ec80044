"""Counts of a run: latencies, replies, failures and wrong replies, with examples of the last two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rfa.benchmarks.load.histogram import Histogram

MAX_SLICES = 120
MAX_EXAMPLES = 10


@dataclass(frozen=True)
class Window:
    """The start of a run on the monotonic clock, and its measured part."""

    start: float
    warmup_seconds: float
    seconds: float
    measured_from: float = field(init=False)
    end: float = field(init=False)  # nothing is sent after this time

    def __post_init__(self) -> None:
        # Stored, because every observation reads them several times.
        object.__setattr__(self, "measured_from", self.start + self.warmup_seconds)
        object.__setattr__(self, "end", self.measured_from + self.seconds)

    def measures(self, due: float) -> bool:
        """Return whether a request due at that time is measured."""
        return self.measured_from <= due < self.end


class Tally:
    """Latencies and counts of the measured part; failures and wrong replies of the whole run.

    A latency starts when its request is due rather than when it is sent, which avoids coordinated omission.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.slice_seconds = max(1.0, window.seconds / MAX_SLICES)
        self.slices = max(1, int(window.seconds / self.slice_seconds))
        self.histograms: dict[str, Histogram] = {}
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.examples: list[str] = []

    def latency(self, metric: str, due: float, seconds: float) -> None:
        """Record a latency of a request due at `due`."""
        if not self.window.measures(due):
            return
        histogram = self.histograms.get(metric)
        if histogram is None:
            histogram = self.histograms[metric] = Histogram(self.slices, self.slice_seconds)
        histogram.record(due - self.window.measured_from, seconds)

    def count(self, name: str, due: float, amount: int = 1) -> None:
        """Count a request due at `due`."""
        if self.window.measures(due):
            self.counts[name] += amount

    def error(self, kind: str) -> None:
        """Record the failure of a request or stream."""
        self.errors[kind] += 1

    def mistake(self, kind: str, example: str) -> None:
        """Record a wrong reply."""
        self.wrong[kind] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{kind}: {example}")

    def to_document(self) -> dict[str, Any]:
        """Return the tally as JSON, for the process that adds the tallies up."""
        return {
            "histograms": {name: histogram.to_document() for name, histogram in self.histograms.items()},
            "counts": dict(self.counts),
            "errors": dict(self.errors),
            "wrong": dict(self.wrong),
            "examples": self.examples,
        }

    @classmethod
    def from_documents(cls, window: Window, documents: Iterable[dict[str, Any]]) -> Tally:
        """Return the sum of the tallies of several generators."""
        parts = list(documents)
        merged = cls(window)
        for name in sorted({name for part in parts for name in part["histograms"]}):
            merged.histograms[name] = Histogram.from_documents(
                part["histograms"][name] for part in parts if name in part["histograms"]
            )
        for part in parts:
            merged.counts.update(part["counts"])
            merged.errors.update(part["errors"])
            merged.wrong.update(part["wrong"])
            merged.examples += part["examples"][: MAX_EXAMPLES - len(merged.examples)]
        return merged
