"""The public scoring rules of the Numenta Anomaly Benchmark (NAB).

Source: Lavin and Ahmad, Evaluating Real-time Anomaly Detection Algorithms (2015), and the benchmark's scorer. A row is
a detection if its anomaly score is at least the threshold, which is the same for the whole corpus. With

    s(y) = 2 / (1 + e^{5 y}) - 1,   s = -1 from y = 3 on

    in a window    the earliest detection scores A_TP s(y) / s(-1) with y = -(right - i + 1) / width; a miss costs A_FN
    outside        every detection costs A_FP s(y), y = (i - right) / (width - 1) after the last window before it, and
                   y = 3 if there is none
    probation      the first min(floor(0.15 N), 750) rows are not scored

the sum S over the series is scaled to 100 (S - S_null) / (S_perfect - S_null). S_null = -A_FN W is the sum without
detections and S_perfect = A_TP W the best possible sum, where W is the number of windows that contain a scored row. For
a subset of the corpus, W is smaller, so its score cannot be compared with that of the whole corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

SLOPE = 5.0
FAR_BEHIND = 3.0
PROBATION_SHARE, PROBATION_ROWS = 0.15, 750


class Profile(NamedTuple):
    """Scoring profile of NAB: the weights of a detected window, a missed window and a false alarm."""

    hit: float
    miss: float
    false_alarm: float


PROFILES = {
    "standard": Profile(1.0, 1.0, 0.11),
    "low_fp": Profile(1.0, 1.0, 0.22),
    "low_fn": Profile(1.0, 2.0, 0.11),
}


@dataclass(frozen=True)
class Labelled:
    """A series with labelled windows.

    Attributes:
        name: Name of the series.
        length: Number of rows.
        windows: First and last row of each window.
        start: First row that is scored.
    """

    name: str
    length: int
    windows: tuple[tuple[int, int], ...]
    start: int

    def __post_init__(self) -> None:
        edges = [edge for window in self.windows for edge in window]
        if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] < self.length):
            raise ValueError(f"{self.name}: windows must be sorted and lie within the {self.length} rows of the series")


class Detected(NamedTuple):
    """Detections in one series at one threshold.

    Attributes:
        windows, found: Number of windows that contain a scored row, and number of these windows that contain a
            detection.
        false_alarms: Number of detections outside windows.
        score: Sum S, not scaled.
    """

    windows: int
    found: int
    false_alarms: int
    score: float


def probation(length: int) -> int:
    """Return the number of rows at the start of a series that are not scored."""
    return min(math.floor(PROBATION_SHARE * length), PROBATION_ROWS)


def labelled(name: str, length: int, windows: Sequence[tuple[int, int]]) -> Labelled:
    """Return a series with its windows and the probation period of the benchmark."""
    return Labelled(name, length, tuple(windows), probation(length))


def scaled_sigmoid(position: np.ndarray) -> np.ndarray:
    """Return s, defined in the module docstring, for positions relative to a window."""
    near = np.minimum(position, FAR_BEHIND)
    return np.where(position >= FAR_BEHIND, -1.0, 2 / (1 + np.exp(SLOPE * near)) - 1)


def row_weights(series: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of a detection at each row, without the weights of a profile, and the index of its window.

    The score is in (0, 1] inside a window and in [-1, 0) outside. The index is -1 outside.
    """
    weight, window = np.full(series.length, -1.0), np.full(series.length, -1)
    for number, (first, last) in enumerate(series.windows):
        width = last - first + 1
        inside, behind = np.arange(width), np.arange(1, series.length - last)
        weight[first : last + 1] = scaled_sigmoid((inside - width) / width) / scaled_sigmoid(np.array(-1.0))
        window[first : last + 1] = number
        weight[last + 1 :] = scaled_sigmoid(behind / (width - 1)) if width > 1 else -1.0
    return weight, window


def score_changes(series: Labelled, anomaly: np.ndarray, profile: Profile) -> np.ndarray:
    """Return the increase of S, `[length - start]`, when the threshold is lowered to the anomaly score of each scored
    row.

    Only the best detection in a window is scored. Inside a window, the increase is the improvement over the rows with
    higher anomaly scores.
    """
    weight, window = row_weights(series)
    change = np.where(window < 0, profile.false_alarm * weight, 0.0)
    for number in range(len(series.windows)):
        rows = np.flatnonzero(window == number)
        rows = rows[rows >= series.start]
        rows = rows[np.argsort(-anomaly[rows], kind="stable")]
        best = np.maximum.accumulate(profile.hit * weight[rows])
        change[rows] = np.diff(best, prepend=-profile.miss)
    return change[series.start :]


def check_scores(series: Labelled, anomaly: np.ndarray) -> np.ndarray:
    """Check that there is a finite anomaly score for each row of a series, and return the scores.

    Raises:
        ValueError: If there are too few scores, or a score is not finite.
    """
    scores = np.asarray(anomaly, np.float64)
    if len(scores) < series.length:
        raise ValueError(f"{series.name}: expected at least {series.length} anomaly scores, got {len(scores)}")
    if not np.isfinite(scores[: series.length]).all():
        raise ValueError(f"{series.name}: the anomaly scores must be finite")
    return scores[: series.length]


def count_windows(series: Labelled) -> int:
    """Return the number of windows that contain a scored row."""
    return sum(last >= series.start for _, last in series.windows)


def normalised(corpus: Sequence[Labelled], total: float, profile: Profile) -> float:
    """Return the sum S, `total`, on a scale from 0 to 100. The score without detections is 0. The score of a detection
    at the first scored row of every window, without false alarms, is 100."""
    count = sum(count_windows(series) for series in corpus)
    if not count:
        raise ValueError("no window contains a scored row")
    null = -profile.miss * count
    return 100 * (total - null) / (profile.hit * count - null)


def detect(series: Labelled, anomaly: np.ndarray, threshold: float, profile: Profile) -> Detected:
    """Find the rows whose anomaly score reaches a threshold, and score them."""
    scores = check_scores(series, anomaly)
    hit = scores >= threshold
    hit[: series.start] = False
    _, window = row_weights(series)
    change = score_changes(series, scores, profile)
    count = count_windows(series)
    found = len(set(window[hit & (window >= 0)].tolist()))
    total = -profile.miss * count + float(change[hit[series.start :]].sum())
    return Detected(count, found, int((hit & (window < 0)).sum()), total)
