"""Calibrate the `precision` of a filter, so that the mean of precision × error² is 1.

    precision = 1 / (v a(gain) b(surprise))

v is the model's variance of the state, averaged over components like the squared error. a and b are piecewise linear
functions, which are constant beyond their first and last point. Their arguments are:

    gain       ratio of the traces of the state covariance and the innovation covariance
    surprise   running mean of the novelty, which is high after observations that the model did not expect

With V = v a b, both tables are fitted so that Σ (error² / V - 1) h_i = 0 over simulated data for every point i. The hat
function h_i is 1 at point i and 0 at the other points. For heavy-tailed errors, 1 / precision exceeds the square of the
half-width that covers 68 % of them.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray

# Number of initial steps of a stream that are ignored because they depend on the prior. At most half of the stream is
# ignored.
BURN_IN = 50
# The points of the tables are quantiles of the novelties, and one gain per octave. If the gains are nearly constant,
# there is one point.
SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)
TURNS, PACE = 200, 0.7
LEAST = 1e-6


class _Lines:
    """A piecewise linear table that is being fitted. For each row of the data, it stores the two points of the table
    around the argument of the row."""

    def __init__(self, feature: Array, places: Array) -> None:
        self.places, self.factors = places, np.ones(len(places))
        inside = np.clip(feature, places[0], places[-1])
        self._low = np.clip(np.searchsorted(places, inside, side="right") - 1, 0, max(len(places) - 2, 0))
        self._high = np.minimum(self._low + 1, len(places) - 1)
        width = places[self._high] - places[self._low]
        self._share = np.divide(inside - places[self._low], width, out=np.zeros_like(inside), where=width > 0)

    def values(self) -> Array:
        """Return the value of the table for each row."""
        found: Array = (1 - self._share) * self.factors[self._low] + self._share * self.factors[self._high]
        return found

    def improve(self, ratio: Array) -> None:
        """Perform one iteration towards Σ (ratio - 1) h_i = 0. `ratio` was computed with the current table."""
        own = self.values()
        weighted, there = self._sums(ratio / own), self._sums(1 / own)
        moved = np.divide(weighted, there, out=np.ones_like(weighted), where=there > 0) ** PACE
        self.factors = np.maximum(self.factors * moved, LEAST)

    def _sums(self, values: Array) -> Array:
        size = len(self.places)
        low: Array = np.bincount(self._low, values * (1 - self._share), size)
        return low + np.bincount(self._high, values * self._share, size)


def precision_tables(ratio: Array, gain: Array, surprise: Array) -> dict[str, list[float]]:
    """Fit the tables of one mode, and return a mapping from names to tables.

    Args:
        ratio: Squared error divided by the model's variance, after every observation, `[B, N]`.
        gain, surprise: Arguments of the tables at each observation, `[B, N]`.
    """
    begin = min(BURN_IN, ratio.shape[1] // 2)
    rows, gains, surprises = (array[:, begin:].astype(np.float64).ravel() for array in (ratio, gain, surprise))
    least, most = np.quantile(np.maximum(gains, LEAST), (SHARES[0], 1 - SHARES[0])).tolist()
    octaves = round(math.log2(most / least))
    places = np.geomspace(least, most, octaves + 1) if octaves else np.array([np.median(gains)])
    tables = _Lines(gains, places), _Lines(surprises, np.unique(np.quantile(surprises, SHARES)))
    for _ in range(TURNS):
        for table in tables:
            table.improve(rows / (tables[0].values() * tables[1].values()))
    # Only the product matters, so the first table is normalised to mean 1.
    middle = tables[0].values().mean()
    by_gain, by_surprise = tables[0].factors / middle, tables[1].factors * middle
    return {
        "gain": tables[0].places.tolist(), "by_gain": by_gain.tolist(),
        "surprise": tables[1].places.tolist(), "by_surprise": by_surprise.tolist(),
    }  # fmt: skip
