"""The model `auto`: its laws, and that its intervals come true on any clock."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.auto import MOST_COLUMNS, AutoRuntime
from rfa.runtime.filters.auto_layout import FEWEST_SLOTS, LAGS_AT_ONCE, UNKNOWN_VARIANCE
from rfa.runtime.filters.auto_season_numba import dominant_period as inlined_dominant_period
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.series.update_numba import UNKNOWN_VARIANCE as SERIES_UNKNOWN_VARIANCE
from rfa.runtime.uncertainty.forecast_checks import INSIDE, OUTLIERS, SCORED
from tests.inlined import callable_from_python

dominant_period = callable_from_python(inlined_dominant_period)

ROWS = 3000
# Of the miss rate of 90 % intervals over thousands of rows, one step ahead and more.
NEAR, FAR = 0.02, 0.03


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def walk(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    return 100 + random(seed).normal(size=rows).cumsum()


def seasonal(rows: int = ROWS, period: float = 37) -> np.ndarray:
    return 10 * np.sin(2 * np.pi * np.arange(rows) / period) + random().normal(size=rows)


def run(times: np.ndarray, values: np.ndarray, horizon: tuple[float, ...] = (), **more: object) -> FilteredSequence:
    table = values.reshape(len(times), -1)
    rows = [[None if value != value else value for value in row] for row in table.tolist()]  # noqa: PLR0124
    return AutoRuntime.of(table.shape[1]).filter(times.tolist(), rows, horizon=horizon, **more)  # type: ignore[arg-type]


def output(found: FilteredSequence, name: str) -> np.ndarray:
    return np.concatenate([getattr(piece.outputs, name) for piece in found.pieces])


def inside(found: FilteredSequence, times: np.ndarray, values: np.ndarray, column: int, lead: float) -> float:
    """Share of the values inside the 90 % interval of their forecast, whatever the filter says of itself."""
    ends = output(found, "bands")[:, column, 1, 0]
    near = 0.5 * np.median(np.diff(times))
    target = np.searchsorted(times, times + lead - near)
    made = np.flatnonzero(target < len(times))
    made = made[np.abs(times[target[made]] - times[made] - lead) <= near]
    after = values[target[made]]
    assert len(made) >= 500
    return float(np.mean((ends[made, 0] <= after) & (after <= ends[made, 1])))


def test_a_column_that_has_shown_nothing_is_unknown() -> None:
    """It is at 0 with a deviation of a million until its first value, as with the network; smoothed, as it was then."""
    assert UNKNOWN_VARIANCE == SERIES_UNKNOWN_VARIANCE
    values = np.stack([1e-9 * walk(60), walk(60)], axis=1)
    late = values.copy()
    late[:5, 1] = np.nan
    found, alone = (run(np.arange(60.0), rows, (1.0, 4.0), smooth=True) for rows in (late, values[:, 0]))
    assert (output(found, "mean")[:5, 1] == 0).all() and (output(found, "std")[:5, 1] == 1e6).all()
    assert (output(found, "moments")[:5, :, 0, 1] == 0).all() and (output(found, "moments")[:5, :, 1, 1] == 1e6).all()
    assert (output(found, "std")[5:, 1] < 100).all() and output(found, "mean")[5, 1] == late[5, 1]
    assert found.smoothed is not None and alone.smoothed is not None
    smoothed = np.array([step.mean for step in found.smoothed])
    np.testing.assert_allclose(smoothed[:5, 1], smoothed[5, 1], rtol=1e-6)
    # What is known of the other column, in whatever unit, is as if it came alone.
    np.testing.assert_allclose(smoothed[:, 0], [step.mean[0] for step in alone.smoothed], rtol=1e-9)


def test_a_shift_of_time_changes_nothing() -> None:
    times, values = 60.0 * np.arange(600), seasonal(600)
    here, there = run(times, values, (60.0, 720.0)), run(times + 86_400 * 19_000 + 7_200, values, (60.0, 720.0))
    for name in ("mean", "std", "bands", "anomaly", "nis"):
        np.testing.assert_array_equal(output(here, name), output(there, name))


def test_units_change_nothing_but_the_units() -> None:
    times, values = np.arange(600.0), seasonal(600)
    small, large = run(times, values, (1.0, 12.0)), run(8 * times, 1024 * values, (8.0, 96.0))
    for name in ("mean", "std", "bands", "innovation"):  # the step is known from the second row on
        np.testing.assert_array_equal(1024 * output(small, name)[1:], output(large, name)[1:])
    np.testing.assert_array_equal(output(small, "anomaly"), output(large, "anomaly"))


def test_columns_are_filtered_each_by_itself() -> None:
    times, values = np.arange(500.0), np.stack([walk(500), seasonal(500)], axis=1)
    values[40:60, 1] = np.nan
    both = run(times, values, (1.0, 5.0))
    for a in range(2):
        alone = run(times, values[:, a], (1.0, 5.0))
        for name in ("mean", "std", "innovation", "interval"):
            np.testing.assert_array_equal(output(both, name)[..., a : a + 1, :] if name == "interval" else
                                          output(both, name)[..., a : a + 1], output(alone, name))  # fmt: skip


@pytest.mark.parametrize("cut", [1, 17, 700, 1100])
def test_a_stream_that_was_saved_goes_on_as_if_it_had_not(cut: int) -> None:
    times, values, runtime = 1800.0 * np.arange(1300), seasonal(1300, 48), AutoRuntime.of(1)
    whole = run(times, values, (1800.0, 86_400.0))
    first = run(times[:cut], values[:cut], (1800.0, 86_400.0))
    state = runtime.unpack(runtime.pack(first.state))
    second = run(times[cut:], values[cut:], (1800.0, 86_400.0), state=state)
    for name in ("mean", "std", "bands", "anomaly"):
        np.testing.assert_array_equal(np.concatenate([output(first, name), output(second, name)]), output(whole, name))
    assert runtime.pack(second.state) == runtime.pack(whole.state)


def clocks() -> dict[str, np.ndarray]:
    return {
        "index": np.arange(float(ROWS)),
        "seconds": 1.7e9 + np.arange(float(ROWS)),
        "days": 86_400.0 * np.arange(float(ROWS)),
    }


def kinds() -> dict[str, np.ndarray]:
    changing = np.exp(np.cumsum(0.02 * random(3).normal(size=ROWS)))
    return {
        "walk": walk(),
        "white": random(1).normal(size=ROWS),
        "counts": random(2).poisson(4, size=ROWS).astype(float),
        "season": seasonal(),
        "prices": 100 * np.exp(np.cumsum(0.01 * changing * random(4).normal(size=ROWS))),
        "heavy": random(5).standard_t(3, size=ROWS),
    }


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("clock", clocks())
def test_intervals_come_true_on_any_clock(clock: str, kind: str) -> None:
    times, values = clocks()[clock], kinds()[kind]
    step = times[1] - times[0]
    leads = tuple(count * step for count in (1, 12, 48))
    found = run(times, values, leads)
    assert found.tally[INSIDE][2] / found.tally[SCORED] == pytest.approx(0.9, abs=NEAR)
    for column, lead in enumerate(leads):
        assert inside(found, times, values, column, lead) == pytest.approx(0.9, abs=FAR if column else NEAR)


def test_intervals_come_true_where_lags_are_random() -> None:
    lags = random(6).exponential(60, size=ROWS)
    times = lags.cumsum()
    values = np.cumsum(np.sqrt(lags) * random(7).normal(size=ROWS))
    step = float(np.median(lags))
    leads = tuple(count * step for count in (1, 12, 48))
    found = run(times, values, leads)
    assert found.tally[INSIDE][2] / found.tally[SCORED] == pytest.approx(0.9, abs=NEAR)
    for column, lead in enumerate(leads):
        assert inside(found, times, values, column, lead) == pytest.approx(0.9, abs=FAR if column else NEAR)


@pytest.mark.parametrize(("step", "period"), [(1.0, 37), (1800.0, 48), (3600.0, 168)])
def test_a_season_is_found(step: float, period: int) -> None:
    """By its times where it is a day's or a week's, else by itself."""
    times, values = step * np.arange(float(ROWS)), seasonal(period=period)
    ahead = period // 2
    found = output(run(times, values, (ahead * step,)), "moments")[:, 0, 0, 0]
    late = slice(ROWS // 2, -ahead)
    error = np.abs(values[ahead:] - found[:-ahead])[late].mean()
    assert error < 1.25 * np.sqrt(2 / np.pi)  # of the noise alone: 0.8
    assert error < 0.15 * np.abs(values[ahead:] - values[:-ahead])[late].mean()


def test_a_period_is_not_seen_in_noise() -> None:
    def found(values: np.ndarray) -> float:
        return float(dominant_period(np.concatenate([values, np.full(LAGS_AT_ONCE, 7.0)]), len(values)))

    assert found(random().normal(size=600)) == 0
    assert found(np.full(600, 3.0)) < FEWEST_SLOTS
    assert found(seasonal(600)) == pytest.approx(37, abs=1)


@pytest.mark.parametrize("values", [[5.0], [5.0, 6.0], [5.0, 5.0, 5.0], [None, None, 3.0], [0.0, 0.0, 1e-9]])
def test_few_rows_are_enough(values: list[float | None]) -> None:
    found = AutoRuntime.of(1).filter(range(len(values)), [[value] for value in values], horizon=(1.0, 1e9), samples=2)
    assert np.isfinite(output(found, "moments")).all() and found.steps[-1].samples.shape == (2, 1)


def shares_inside(values: np.ndarray, after: int) -> tuple[np.ndarray, float]:
    """Of many series `[N, rows]`, how often the next value is inside its 50, 90 and 99 % intervals after so many rows;
    and how many of them were called outliers up to there."""
    levels, inside, outliers = (0.5, 0.9, 0.99), np.zeros(3), 0.0
    for series in values:
        found = run(np.arange(float(after)), series[:after], (1.0,), levels=levels)
        ends = output(found, "bands")[-1, 0, :, 0]
        inside += (ends[:, 0] <= series[after]) & (series[after] <= ends[:, 1])
        outliers += found.tally[OUTLIERS]
    return inside / len(values), outliers / len(values)


@pytest.mark.parametrize("after", [2, *(pytest.param(after, marks=pytest.mark.slow) for after in (3, 5)), 10])
@pytest.mark.parametrize("kind", [pytest.param("white", marks=pytest.mark.slow), "walk"])
def test_intervals_hold_on_the_first_rows(kind: str, after: int) -> None:
    """At any scale and offset: the scale is learned from so few errors, which the interval must allow for."""
    series = 600
    noise = random(after).normal(size=(series, after + 1))
    values = 1000 + 0.01 * (noise.cumsum(axis=1) if kind == "walk" else noise)
    found, outliers = shares_inside(values, after)
    level = np.array([0.5, 0.9, 0.99])
    # Three deviations of what chance makes of so many series, and a hundredth or two of its own.
    assert (found > level - 3 * np.sqrt(level * (1 - level) / series) - [0.06, 0.015, 0.01]).all()
    assert outliers < 0.01 * after


def test_a_jump_widens_the_interval_of_a_young_stream() -> None:
    """Whether it is an outlier or a new level: both are inside, and a missing value does not make it surer."""
    values = [120.4, 118.9, 123, None, 121.7, 260, None]
    found = AutoRuntime.of(1).filter(range(len(values)), [[value] for value in values], horizon=(1.0,), levels=(0.9,))
    for row in (5, 6):
        low, high = found.steps[row].interval["0.9"][0]
        assert low < 120 and high > 260
    low, high = found.steps[4].forecast[0].interval["0.9"][0]
    assert 105 < low < 118 and 124 < high < 140
    assert found.steps[6].std[0] >= found.steps[5].std[0]


@pytest.mark.parametrize("values", [[5.0, 5, 5, 6], [3.0, 9, 4], [21.4, 21.4, 21.4, 21.5, 21.9], [0.0, 0, 1, 0, 0, 3]])
def test_of_few_values_none_is_an_outlier(values: list[float]) -> None:
    found = run(np.arange(float(len(values))), np.array(values))
    assert found.tally[OUTLIERS] == 0


@pytest.mark.parametrize(("noise", "rows"), [(0.0, 3), (1e-9, 20), (1e-3, 20)])
def test_a_column_that_stood_still_is_followed(noise: float, rows: int) -> None:
    """At once, or where it had a noise once a step is no outlier any more."""
    values = np.where(np.arange(600) < 400, 0.0, 7.0) + noise * random().normal(size=600)
    found = run(np.arange(600.0), values, (1.0,))
    assert abs(output(found, "moments")[400 + rows, 0, 0, 0] - 7) < 1
    assert output(found, "nis").max() <= 1e6 * (1 + 1e-9) and found.log_likelihood > -1e6


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"up to {MOST_COLUMNS} columns")):
        AutoRuntime.of(MOST_COLUMNS + 1)
    with pytest.raises(InvalidInput, match='does not support the mode "attention"'):
        AutoRuntime.of(1).filter([0.0], [[1.0]], mode="attention")
    with pytest.raises(InvalidInput, match="does not support inputs"):
        AutoRuntime.of(1).check_input(AutoRuntime.of(1).readout((0.9,), (), 0).options.alarm, None, is_given=True)
