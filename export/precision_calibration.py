"""How far off a filter's state is, beside what its model says: the calibration of `precision`.

    precision = 1 / (v a(gain) b(surprise))        so that the mean of precision × (error)² is 1

v is the mean over the components of the model's variances of the state, the squared error is meant the same way. a and
b are tables of what every filter knows after an observation,

    gain       trace of the state's covariance over that of the innovation's: how much of what is not known of the next
               observation is not known of the state
    surprise   its running surprise, which is high while observations have not fitted

linear between their places and constant beyond. With V = v a b and the hat functions h_i of the places, they solve

    Σ (error² / V - 1) h_i = 0

for both tables, over simulated data, so that their sum, too, is 0. It is a statement about squares: where errors have
heavy tails, 1 / precision is more than the square of a width that holds 68 % of them.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray

# Steps at the start of a stream that are left out, at most half of it: there the prior speaks, or a scale is learned.
BURN_IN = 50
# Places of the tables: shares of the surprises, and a gain an octave. Gains that hardly differ get one place: what they
# differ by is this observation's doing, and speaks of the data that they were seen on.
SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)
TURNS, PACE = 200, 0.7
LEAST = 1e-6


class _Lines:
    """A table in the making: places, and for each row of data the two beside it."""

    def __init__(self, feature: Array, places: Array) -> None:
        self.places, self.factors = places, np.ones(len(places))
        inside = np.clip(feature, places[0], places[-1])
        self._low = np.clip(np.searchsorted(places, inside, side="right") - 1, 0, max(len(places) - 2, 0))
        self._high = np.minimum(self._low + 1, len(places) - 1)
        width = places[self._high] - places[self._low]
        self._share = np.divide(inside - places[self._low], width, out=np.zeros_like(inside), where=width > 0)

    def values(self) -> Array:
        """For every row."""
        found: Array = (1 - self._share) * self.factors[self._low] + self._share * self.factors[self._high]
        return found

    def improve(self, ratio: Array) -> None:
        """Towards Σ (ratio - 1) h_i = 0, where the ratio is that of this table as it is."""
        own = self.values()
        weighted, there = self._sums(ratio / own), self._sums(1 / own)
        moved = np.divide(weighted, there, out=np.ones_like(weighted), where=there > 0) ** PACE
        self.factors = np.maximum(self.factors * moved, LEAST)

    def _sums(self, values: Array) -> Array:
        size = len(self.places)
        low: Array = np.bincount(self._low, values * (1 - self._share), size)
        return low + np.bincount(self._high, values * self._share, size)


def precision_tables(ratio: Array, gain: Array, surprise: Array) -> dict[str, list[float]]:
    """The tables of one mode.

    Args:
        ratio: squared error over the model's variance, after every observation `[B, N]`.
        gain, surprise: what is known then, `[B, N]`.
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
    # Only their product counts: the first is 1 on the mean of the rows.
    middle = tables[0].values().mean()
    by_gain, by_surprise = tables[0].factors / middle, tables[1].factors * middle
    return {
        "gain": tables[0].places.tolist(), "by_gain": by_gain.tolist(),
        "surprise": tables[1].places.tolist(), "by_surprise": by_surprise.tolist(),
    }  # fmt: skip
