"""Models of many series: a calendar is found where there is one, and filters use what was fitted."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rfa.data import Series
from rfa.fitting.calendar import LEAST_DAYS, days_for, fit_pattern
from rfa.fitting.column_models import StructuralConfig
from rfa.fitting.fit import fit_series
from rfa.fitting.progress import SavedFits
from rfa.runtime.filters.calendar import Calendar
from rfa.runtime.filters.compiled_system import SystemRuntime
from rfa.runtime.filters.fitted import Models
from rfa.runtime.filters.system import System

FAST = StructuralConfig(max_harmonics=2, max_free_modes=1, iterations=25)
ZONE = "America/New_York"
HOLIDAYS = ("2024-02-19", "2024-05-27", "2024-07-04")


def pattern_of(local):
    """A weekly pattern by the clock on the wall: evenings, but no workday at the weekend and on holidays."""
    hour = local.hour + local.minute / 60
    is_off = local.weekday() >= 5 or local.date().isoformat() in HOLIDAYS
    return 3 * np.exp(-(((hour - 19) / 2) ** 2)) + (0 if is_off else 5 * np.exp(-(((hour - 8) / 1.5) ** 2)))


def weekly(days=140, noise=0.3, seed=0):
    """An hourly series around 100, and its pattern."""
    rng = np.random.default_rng(seed)
    times = datetime(2024, 1, 1, tzinfo=ZoneInfo(ZONE)).timestamp() + 3600.0 * np.arange(24 * days)
    shape = np.array([pattern_of(datetime.fromtimestamp(t, ZoneInfo(ZONE))) for t in times])
    level = np.zeros(len(times))
    for i in range(1, len(times)):
        level[i] = 0.9 * level[i - 1] + noise * rng.normal()
    values = 100 + 10 * (shape + level + noise * rng.normal(size=len(times)))
    return Series(times, values[:, None], ("y",), clock="t", is_dated=True), shape


@pytest.mark.parametrize("holidays", [HOLIDAYS, ()])
def test_a_pattern_is_found_through_gaps_and_lost_days(holidays):
    series, shape = weekly()
    y = (series.values[:, 0] - 100) / 10
    rng = np.random.default_rng(1)
    y[rng.random(len(y)) < 0.1] = np.nan
    y[24 * 30 : 24 * 32] -= 8.0  # a storm
    days = days_for(series.times, len(y), ZONE, holidays)
    assert days is not None and days.slots == 24 and days.types == 7 + bool(holidays)
    pattern = fit_pattern(series.times, y, days)
    found = Calendar(days, pattern.reshape(1, days.types, 24)).at(series.times)[:, 0]
    listed = [datetime.fromtimestamp(t, ZoneInfo(ZONE)).date().isoformat() in HOLIDAYS for t in series.times]
    off = np.where(listed if not holidays else False, 0.0, found - shape)
    # What is left has a spread of 0.3 / sqrt(1 - 0.81) = 0.7 and lasts hours; twenty of each weekday.
    assert np.sqrt(np.mean(off**2)) < 0.35
    # Spring forward is in March: the pattern keeps the hour.
    summer = series.times > datetime(2024, 3, 12, tzinfo=UTC).timestamp()
    assert np.sqrt(np.mean(off[summer] ** 2)) < 0.35


def test_a_calendar_needs_days_and_rows_that_are_close():
    times = weekly(days=60)[0].times
    assert days_for(times, 24 * (LEAST_DAYS - 1), ZONE, ()) is None
    found = days_for(times, 24 * LEAST_DAYS, ZONE, HOLIDAYS)
    # None of the holidays lies in the first three weeks.
    assert found is not None and found.types == 7
    assert days_for(times[::48], len(times[::48]), ZONE, ()) is None
    daily = days_for(times[::24], len(times[::24]), ZONE, ())
    assert daily is not None and daily.slots == 1
    quick = days_for(times[0] + np.arange(0, 30 * 86400, 60.0), 30 * 1440, ZONE, ())
    assert quick is not None and quick.slots == 48


def day_ahead(system, series, first):
    """Mean absolute error of forecasts 24 rows ahead from row `first` on, and of the value a week before."""
    y = series.values[:, 0]
    runtime = SystemRuntime(System.from_document(system))
    result = runtime.filter(list(series.times), [[v] for v in y], horizon=[24 * 3600.0])
    ahead = np.array([step.forecast[0].mean[0] for step in result.steps])
    target = np.arange(first + 24, len(y))
    return np.abs(y[target] - ahead[target - 24]).mean(), np.abs(y[target] - y[target - 168]).mean()


def part_of(series, rows):
    return replace(series, times=series.times[rows], values=series.values[rows])


@pytest.fixture(scope="module")
def fitted():
    series, _ = weekly(days=200)
    first = 150 * 24
    flat = Series(series.times[:400], np.random.default_rng(0).normal(size=(400, 1)), ("y",), is_dated=True)
    given = {("city",): part_of(series, slice(0, first)), ("noise",): flat, ("short",): part_of(series, slice(0, 20))}
    return series, first, fit_series(given, zone=ZONE, holidays=HOLIDAYS, config=FAST)


def test_a_calendar_is_chosen_where_there_is_one(fitted):
    series, first, models = fitted
    assert list(models) == ["city", "noise"] and list(models.failed) == ["short"]
    assert "a structural model needs" in models.failed["short"]
    assert "calendar" in models["city"] and "calendar" not in models["noise"]
    assert models["city"]["calendar"]["zone"] == ZONE and models["city"]["calendar"]["holidays"] == list(HOLIDAYS)
    own, naive = day_ahead(models["city"], series, first)
    # A day ahead all of the rest is unknown; a week's difference has its variance twice.
    assert own < 0.8 * naive


def test_models_go_to_a_file_and_back(fitted, tmp_path):
    models = fitted[2]
    models.save(tmp_path / "models.json")
    again = Models.load(tmp_path / "models.json")
    assert dict(again) == dict(models) and again.fits == models.fits
    for text, message in (
        ("[", "not a JSON document"),
        ("{}", "does not contain fitted models"),
        ('{"series": {}}', "does not contain fitted models"),
        ('{"series": {"a": {"A": 1}}}', r"bad\.json, series 'a': system\.A"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            Models.load(tmp_path / "bad.json")


def test_several_columns_and_one_series():
    series, _ = weekly(days=10)
    both = replace(series, values=np.hstack([series.values, series.values**2]), names=("a", "b"))
    models = fit_series({(): both}, config=FAST)
    assert list(models) == ["a", "b"] and not models.failed
    keyed = fit_series({("k",): both}, config=FAST)
    assert list(keyed) == ["k / a", "k / b"] and keyed["k / a"] == models["a"]


def test_what_is_asked_wrongly_is_said():
    series, _ = weekly(days=5)
    for wrong, message in (
        ({"zone": "Mars"}, "zone must be"),
        ({"holidays": ["Christmas"]}, "holidays must be dates"),
        ({"country": "XX"}, "country 'XX'"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_series({(): series}, config=FAST, **wrong)
    with pytest.raises(ValueError, match="the series must have dates as times"):
        fit_series({(): replace(series, is_dated=False)}, config=FAST, country="US")
    with pytest.raises(ValueError, match="has 7 values"):
        fit_series({(): part_of(series, slice(0, 10))}, config=FAST)
    with pytest.raises(ValueError, match="there are no series to fit"):
        fit_series({}, config=FAST)


def test_holidays_of_a_country_reach_beyond_the_data():
    series, _ = weekly(days=100)
    listed = fit_series({(): series}, zone=ZONE, country="US", config=FAST)["y"]["calendar"]["holidays"]
    assert {"2024-07-04", "2030-12-25"} <= set(listed) and "2050-12-25" not in listed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full(60, 5.0), "'y' is constant"),
        (1e13 + np.arange(60.0), r"column 'y' contains values larger than 1e\+12 in magnitude"),
        (1e-300 * np.arange(60.0), "'y' varies by less than 1e-60"),
        (np.array([1.0, np.nan]), "'y' has 1 value in the training part"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_reason(values, message):
    with pytest.raises(ValueError, match=message):
        fit_series({(): Series(np.arange(float(len(values))), values[:, None], ("y",))})


def test_units_change_nothing_but_the_units():
    values = np.random.default_rng(0).normal(size=200).cumsum()
    one, small, large = (
        fit_series({(): Series(np.arange(200.0), scale * values[:, None], ("y",))}, config=FAST)["y"]
        for scale in (1.0, 2.0**-60, 2.0**30)
    )
    for other, scale in ((small, 2.0**-60), (large, 2.0**30)):
        np.testing.assert_array_equal(other["A"], one["A"])
        np.testing.assert_array_equal(other["R"], scale**2 * np.array(one["R"]))


def test_days_before_calendars_have_seasons():
    series, _ = weekly(days=400)
    daily = replace(series, times=series.times[8::24] - 86_400.0 * 7 * 5_000, values=series.values[8::24])
    found = fit_series({(): daily}, config=FAST)
    assert "calendar" not in found["y"] and "season 7" in found.fits["y"]["structure"]


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"a": 1}\n', b"[]\n", b"\xff\xfe\n", b'{"name": "b", "found"'])
def test_what_is_kept_ends_where_it_cannot_be_read(tmp_path, line):
    kept = SavedFits(tmp_path / "kept", "asked", [np.arange(3.0)])
    kept.add("a", {"x": 1})
    with (tmp_path / "kept").open("ab") as file:
        file.write(line + b'{"name": "c", "found": {}}\n' * (line[-1:] == b"\n"))
    again = SavedFits(tmp_path / "kept", "asked", [np.arange(3.0)])
    assert again.get("a") == {"x": 1} and len(again) == 1
    again.add("b", {"x": 2})
    third = SavedFits(tmp_path / "kept", "asked", [np.arange(3.0)])
    assert [third.get(name) for name in "abc"] == [{"x": 1}, {"x": 2}, None]
