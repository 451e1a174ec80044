"""How the first rows of `auto` are measured."""

from __future__ import annotations

import numpy as np

from rfa.benchmarks.filters.auto_few import AFTER, LENGTH, LONGEST_LEAD, SERIES, Simulated, kinds, measure, table


def test_kinds_are_whole() -> None:
    found = dict(kinds(np.random.default_rng(0)))
    assert len(found) == 12
    for one in found.values():
        assert one.values.shape == one.level.shape == (SERIES, LENGTH + LONGEST_LEAD)
        assert np.isfinite(one.values).all()


def test_what_comes_true_is_counted_and_what_does_not() -> None:
    rows = LENGTH + LONGEST_LEAD
    still = np.full((3, rows), 5.0)
    leaps = still.copy()
    leaps[:, AFTER[-1]] = 1e9  # the row after the last one that is looked at
    found = measure(Simulated(still, still)), measure(Simulated(leaps, still))
    assert (found[0].inside == 1).all() and found[0].outliers.sum() == 0
    assert (found[1].inside[0, :-1] == 1).all() and (found[1].inside[0, -1] == 0).all()
    assert (found[1].inside[1:] == 1).all()
    assert (found[1].outliers[:-1] == 0).all() and found[1].outliers[-1] >= 100 / (LENGTH - AFTER[-1])
    assert "12 ahead, 90% interval" in table({"still": found[0], "leaps": found[1]})
