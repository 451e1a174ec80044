"""Read labelled time windows of known anomalies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from rfa.data import Key, load_table
from rfa.data.clock import read_clock

BEGIN, END = "from", "to"
MOST_WINDOWS: Final = 100_000


@dataclass(frozen=True)
class Windows:
    """Labelled windows of all series or of single series.

    Attributes:
        spans: First and last time of each window, in the units of the series, `[W, 2]`.
        labels: Other values of each window, by column. Values in a key column of the data select the series of the
            window. An empty value selects all series.
        matched: Indices of the windows that have matched a series so far.
    """

    spans: np.ndarray
    labels: Sequence[Mapping[str, str]]
    matched: set[int] = field(default_factory=set)

    def of(self, by: Sequence[str], key: Key) -> list[tuple[float, float]]:
        """Return the windows of the series with the given key, sorted by time. Overlapping windows are merged."""
        own = dict(zip(by, map(str, key), strict=True))
        found: list[tuple[float, float]] = []
        for k, (begin, end) in sorted(enumerate(self.spans.tolist()), key=lambda each: each[1]):
            if any(own.get(name, cell) != cell for name, cell in self.labels[k].items()):
                continue
            self.matched.add(k)
            if found and begin <= found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((begin, end))
        return found

    def unmatched(self) -> tuple[str, ...]:
        """Return a description of each window that matches no series. Call this after `of` was called for all series.

        Raises:
            ValueError: If no window matches a series.
        """
        names = tuple(
            f"window {k + 1}" + "".join(f", {name} {cell}" for name, cell in labels.items())
            for k, labels in enumerate(self.labels)
            if k not in self.matched
        )
        if len(names) == len(self.spans):
            raise ValueError(f"no window matches a series; compare the keys of the series with those of {names[0]}")
        return names


def read_windows(source: str | Path | Sequence[Sequence[float]], tz: str) -> Windows:
    """Read windows from pairs of times, or from a file with the columns `from` and `to`.

    Args:
        source: Pairs of times, or a file. Key columns in the file restrict windows to single series.
        tz: Time zone of dates without a time zone.

    Raises:
        ValueError: If a column is missing, a cell is not a time, or a window ends before it starts.
        OSError: If the file cannot be read.
    """
    if not isinstance(source, str | Path):
        spans = np.array(source, np.float64).reshape(-1, 2)
        return Windows(_checked(spans), [{}] * len(spans))
    columns = load_table(source).columns
    for name in (BEGIN, END):
        if name not in columns:
            raise ValueError(f"{source}: the columns {BEGIN} and {END} are required, got {', '.join(columns)}")
    rows = np.arange(1, len(columns[BEGIN]) + 1)
    if not 0 < len(rows) <= MOST_WINDOWS:
        raise ValueError(f"{source}: must contain 1 to {MOST_WINDOWS:,} windows, got {len(rows):,}")
    ends = [
        read_clock(columns[name], name, zone=tz, time_format=None, rows=rows).seconds(slice(None))
        for name in (BEGIN, END)
    ]
    names = [name for name in columns if name not in (BEGIN, END)]
    cells = [columns[name].to_pylist() for name in names]
    labels = [
        {name: str(cell) for name, cell in zip(names, row, strict=True) if cell not in (None, "")}
        for row in (zip(*cells, strict=True) if names else [()] * len(rows))
    ]
    return Windows(_checked(np.stack(ends, axis=1)), labels)


def _checked(spans: np.ndarray) -> np.ndarray:
    for row in np.flatnonzero(~(spans[:, 0] <= spans[:, 1]))[:1].tolist():
        raise ValueError(
            f"window {row + 1} ends before it starts: it goes from {spans[row, 0]:.12g} to {spans[row, 1]:.12g}"
        )
    return spans
