"""Parts of the NAB corpus, and the threshold with the highest score over it. See `rfa.library.nab`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rfa.library.nab import Labelled, Profile, check_scores, count_windows, detect, normalised, score_changes

# A threshold that no score reaches.
NEVER = math.inf


def earlier(series: Labelled, share: float) -> Labelled:
    """Return the first `share` of the rows with the windows inside. It ends before a window that crosses its end."""
    end = int(share * series.length)
    inside = tuple(window for window in series.windows if window[1] < end)
    cut = [first for first, last in series.windows if first < end <= last]
    return replace(series, length=min([end, *cut]), windows=inside)


def score(corpus: Sequence[Labelled], anomalies: Sequence[np.ndarray], threshold: float, profile: Profile) -> float:
    """Return the normalised score of a corpus at one threshold."""
    total = sum(detect(*pair, threshold, profile).score for pair in zip(corpus, anomalies, strict=True))
    return normalised(corpus, total, profile)


def best_threshold(
    corpus: Sequence[Labelled], anomalies: Sequence[np.ndarray], profile: Profile
) -> tuple[float, float]:
    """Return the threshold with the highest score over the corpus, by the public rules, and that score."""
    pairs = [(series, check_scores(series, anomaly)) for series, anomaly in zip(corpus, anomalies, strict=True)]
    levels = np.concatenate([scores[series.start :] for series, scores in pairs])
    changes = np.concatenate([score_changes(series, scores, profile) for series, scores in pairs])
    order = np.argsort(-levels, kind="stable")
    levels = levels[order]
    null = -profile.miss * sum(count_windows(series) for series in corpus)
    totals = null + np.cumsum(changes[order])
    is_last = np.append(np.diff(levels) < 0, True)
    thresholds, totals = np.append(NEVER, levels[is_last]), np.append(null, totals[is_last])
    best = int(np.argmax(totals))
    return float(thresholds[best]), normalised(corpus, float(totals[best]), profile)
