"""Rules for alarms beside that of the value: against plain Python, and their laws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from rfa.runtime.filters.auto import AutoRuntime
from rfa.runtime.uncertainty import rules
from rfa.runtime.uncertainty.alarms import Alarm, Rule, alarm
from rfa.runtime.uncertainty.lengths import COUNT, FARTHEST
from rfa.runtime.uncertainty.mute import Mute
from rfa.runtime.uncertainty.rules import GAP, STANDSTILL, STRETCH, AlarmState
from rfa.runtime.uncertainty.stretch import FIRST_SIZE, LARGEST_SIZE
from tests.inlined import callable_from_python
from tests.runtime.uncertainty.rules_reference import Lengths, Recurrence, Stretch

Array = np.ndarray
explained_share = callable_from_python(rules.explained_share)
update_rules = callable_from_python(rules.update_rules)
MINUTE, DAY = 60.0, 86_400.0
MONDAY = 1_767_571_200.0
ROWS_OF_DAY = 144


class Observation(NamedTuple):
    stream: int
    time: float
    value: Array


class Posterior(NamedTuple):
    innovation: Array
    innovation_covariance: Array


class Spec(NamedTuple):
    muted: Array
    muted_weekly: Array
    muted_offsets: Array


class Work(NamedTuple):
    is_scored: Array
    periods: Array
    tails: Array
    least: Array
    components: Array


class Followed(NamedTuple):
    explained: Array
    tails: Array
    state: AlarmState


def run(times: Array, values: Array, deviations: Array, p: Array, step: float, mute: Mute | None = None) -> Followed:
    """The rules of one column, whose pointwise tail probabilities are given."""
    state = AlarmState(*(np.zeros((1, *field.shape), field.dtype) for field in rules.alarm_fields(1).values()))
    work = Work(np.zeros(1, bool), np.zeros(1), np.zeros(4), np.zeros(4), np.zeros(4, np.int64))
    found = Followed(np.zeros(len(times)), np.zeros((len(times), 4)), state)
    spec, covariance = Spec(*(mute or Mute()).arrays()), np.ones((1, 1))
    for t, time in enumerate(times.tolist()):
        observation, posterior = Observation(0, time, values[t : t + 1]), Posterior(deviations[t : t + 1], covariance)
        work.is_scored[0] = t > 0 and values[t] == values[t]
        share = explained_share(state, observation, posterior, work.is_scored, time, step, work.periods)
        update_rules(state, observation, posterior, time, step, p[t], share > 0, spec, work)
        found.explained[t], found.tails[t] = share, work.tails
    return found


def noise(rows: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(rows)


def recurring(rows: int) -> tuple[Array, Array, Array]:
    """Times with gaps, rounded values that repeat, and deviations that recur each day."""
    rng = np.random.default_rng(5)
    times = MONDAY + 600.0 * np.arange(rows) + 1200.0 * np.cumsum(rng.random(rows) < 0.01)
    values, deviations = np.round(rng.normal(size=rows)), rng.standard_normal(rows)
    deviations[np.isclose(times % DAY, 3600.0, atol=900)] += 9.0
    deviations[np.isclose(times % DAY, 10_800.0, atol=300)] -= 9.0
    return times, values, deviations


def test_they_are_those_of_plain_python() -> None:
    rows = 20 * ROWS_OF_DAY
    times, values, deviations = recurring(rows)
    p = np.where(np.abs(deviations) > 1.5, 1e-3, 0.5)
    found = run(times, values, deviations, p, 600.0)
    recurrence, runs, gaps, stretch, length = Recurrence(600.0), Lengths(), Lengths(), Stretch(600.0), 0
    any_still, any_follows, size, deviating = False, False, 0.0, 0
    for t in range(rows):
        is_large = t > 0 and abs(deviations[t]) * np.sqrt(2 / np.pi) > rules.ORDINARY_SIZE * size
        follows = t > 0 and recurrence.follows(times[t], deviations[t])
        any_follows, recurred = any_follows or follows, recurrence.recurred
        share = recurs = recurrence.share(times[t], deviations[t]) if is_large else 0.0
        if follows:
            recurrence.recurred = recurred
        if is_large and (follows or (not share and stretch.is_usual(values[t], times[t], deviations[t]))):
            share = max(share, rules.USUAL)
        assert found.explained[t] == share
        is_still = False
        if t and values[t] == values[t - 1]:
            singles, pairs = runs.lengths.count(1), runs.lengths.count(2)
            is_still = singles >= rules.FEWEST and ((pairs + 1) / (singles + 1)) ** length <= rules.STILL
            length += 1
        else:
            runs.longest, length = max(runs.longest, length), 1
        any_still = any_still or is_still
        standstill = runs.tail(length)
        repeats = t - runs.lengths[:-1].count(1) - (length - 1)
        is_on = t - (length - 1) >= rules.FEWEST and repeats <= rules.OFTEN * (t - (length - 1)) and length > 1
        assert found.tails[t, STANDSTILL] == pytest.approx(standstill if is_on else 1.0)
        if t:
            gap = (times[t] - times[t - 1]) / 600.0
            probability = gaps.tail(gap)
            gaps.longest = max(gaps.longest, gap)
            assert found.tails[t, GAP] == pytest.approx(probability if gap > rules.SHORTEST_GAP else 1.0)
            tail = min(1.0, stretch.probability(values[t], times[t], deviations[t], follows))
            recurs = recurs or (follows and share)
            assert found.tails[t, STRETCH] == pytest.approx(1.0 if recurs else tail, rel=1e-2)
            if not is_still:
                largest = LARGEST_SIZE * size * np.sqrt(np.pi / 2) if size else FIRST_SIZE
                size += (min(abs(deviations[t]), largest) - size) / (deviating + 1)
                deviating += 1
        change = values[t] - values[t - 1]
        if t and p[t] <= 4 * 600 / DAY:
            recurrence.add(times[t], deviations[t])
        elif t and abs(change) * np.sqrt(2 / np.pi) > rules.ORDINARY_SIZE * size:
            recurrence.add_again(times[t], change)
    assert any_still and any_follows and (found.explained > 0).any()
    assert (found.tails[:, [STANDSTILL, GAP]] < 1).any(axis=0).all()


def nightly(days: int, sizes: Array, *, jitter: int = 1) -> tuple[Array, Array, Array]:
    """Times and deviations of rows ten minutes apart with a job each night, and the row that each begins at."""
    rng = np.random.default_rng(1)
    deviations, begins = noise(days * ROWS_OF_DAY), np.zeros(days, int)
    for day in range(days):
        begins[day] = day * ROWS_OF_DAY + 20 + int(rng.integers(-jitter, jitter + 1))
        deviations[begins[day] : begins[day] + 4] += sizes[day]
    return 600.0 * np.arange(len(deviations)), deviations, begins


def test_what_came_on_three_days_is_not_rare_on_the_fourth() -> None:
    """Two occurrences are not sufficient, and a deviation that is twice as large is still rare."""
    sizes = np.full(12, 12.0)
    sizes[8], sizes[10] = 30.0, 0.0
    times, deviations, begins = nightly(12, sizes)
    p = np.where(np.abs(deviations) > 5, 1e-5, 0.5)
    found = run(times, noise(len(times)), deviations, p, 600.0)
    share = np.array([found.explained[begin : begin + 4].min() for begin in begins])
    assert (share[[0, 1, 2, 8, 10]] == 0).all() and (share[[3, 4, 5, 6, 7, 9, 11]] >= 0.75).all()
    elsewhere = found.explained.copy()
    for begin in begins:
        elsewhere[begin - 3 : begin + 7] = 0.0
    assert not elsewhere.any()


def test_what_follows_a_recurring_deviation_is_not_rare_until_its_usual_end() -> None:
    """Jobs of ten rows, whose end is a deviation, too. A deviation twice as large as the job is still rare."""
    begins, deviations = 20 + ROWS_OF_DAY * np.arange(9), noise(9 * ROWS_OF_DAY)
    lengths = np.array([10, 9, 11, 10, 8, 10, 10, 10, 10])
    deviations[begins], deviations[begins + lengths] = 12.0, -12.0
    inside, large, after, opposite = begins[5] + 5, begins[6] + 5, begins[7] + 30, begins[8] + 3
    deviations[[inside, large, after, opposite]] = 8.0, 24.0, 8.0, -8.0
    p = np.where(np.abs(deviations) > 5, 1e-5, 0.5)
    found = run(600.0 * np.arange(len(p)), noise(len(p)), deviations, p, 600.0)
    assert (found.explained[[inside, opposite]] >= rules.USUAL).all()
    assert not found.explained[[large, after]].any()
    assert (found.explained[(begins + lengths)[3:]] >= rules.USUAL).all()


def test_a_job_of_working_days_is_not_rare_after_a_weekend() -> None:
    times = MONDAY + 600.0 * np.arange(12 * ROWS_OF_DAY)
    deviations = noise(len(times))
    begins = 20 + ROWS_OF_DAY * np.array([0, 1, 2, 3, 4, 7, 8])
    deviations[begins] = 12.0
    weekend = 20 + 5 * ROWS_OF_DAY
    found = run(times, noise(len(times)), deviations, np.where(deviations > 5, 1e-5, 0.5), 600.0)
    assert (found.explained[begins[3:]] > 0).all() and not found.explained[[*begins[:3], weekend]].any()


@pytest.mark.parametrize(("minutes", "is_explained"), [(8, True), (15, False)])
def test_a_job_may_begin_ten_minutes_late(minutes: int, is_explained: bool) -> None:
    """Of minutes. The largest distance of TOLERANCE rows would be two minutes and a half."""
    times, deviations = MINUTE * np.arange(5 * 1440), noise(5 * 1440)
    begins = 180 + 1440 * np.arange(5)
    begins[4] += minutes
    deviations[begins] = 12.0
    found = run(times, noise(len(times)), deviations, np.where(deviations > 5, 1e-5, 0.5), MINUTE)
    assert (found.explained[begins[4]] > 0) == is_explained


def test_larger_errors_of_forecasts_of_ordinary_values_are_a_stretch() -> None:
    """As in a cycle of another shape."""
    deviations = noise(6_000)
    deviations[5_000:5_030] *= 4.0
    found = run(600.0 * np.arange(6_000), noise(6_000, 4), deviations, np.full(6_000, 0.5), 600.0)
    tails = found.tails[:, STRETCH]
    assert tails[5_000:5_030].min() < 2e-4 <= tails[4_000:5_000].min()


def test_single_spikes_do_not_hide_a_level_that_lasts() -> None:
    values = noise(6_000)
    values[np.random.default_rng(2).random(6_000) < 0.004] += 40.0
    values[5_500:5_560] += 2.0
    found = run(MONDAY + 600.0 * np.arange(6_000), values, values, np.full(6_000, 0.5), 600.0)
    tails = found.tails[:, STRETCH]
    assert tails[5_500:5_516].min() < 1e-5 and (tails[3_000:5_500] < 1e-4).sum() <= 3


def test_a_gap_in_a_maintenance_window_is_none_and_is_not_counted() -> None:
    times = MINUTE * np.concatenate([np.arange(1_000), np.arange(1_100, 2_000)])
    values = noise(len(times))
    plain = run(times, values, values, np.ones(len(times)), MINUTE)
    muted = run(times, values, values, np.ones(len(times)), MINUTE, Mute.of([[1_010 * MINUTE, 1_090 * MINUTE]]))
    assert plain.tails[1_000, GAP] == pytest.approx(1 / (FARTHEST * 1_000)) and muted.tails[1_000, GAP] == 1.0
    assert plain.state.lengths[0, 0, 1, COUNT] == muted.state.lengths[0, 0, 1, COUNT] + 1


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("Asia/Tokyo", 9), ("Europe/Berlin", 1)])
def test_weekly_windows_follow_the_day_of_the_week(zone: str, hours: int) -> None:
    """1970-01-05 was a Monday; a window on Sunday night lasts into Monday."""
    monday = 4 * DAY - 3600.0 * hours
    times = monday + 3600.0 * np.array([-2.0, -0.01, 1.0, 1.99, 2.0, 24 * 5 + 22.5, 24 * 6 + 22.0])
    mute = Mute.of(["sun 22:00-02:00", "sat 22:00-23:00"], zone)
    assert mute.covers(times).tolist() == [True, True, True, True, False, True, True]
    assert (
        Mute.of(["mon-fri 00:00-01:00"], zone).covers(monday + DAY * np.arange(7)).tolist() == [True] * 5 + [False] * 2
    )


def raised(values: Array, options: Alarm) -> Array:
    """Rules by which rows are alarms, -1 for none, with `auto`."""
    steps = (
        AutoRuntime.of(1).filter(list(map(float, range(len(values)))), values[:, None].tolist(), alarm=options).steps
    )
    codes = {"value": 0, "stretch": 1, "standstill": 2, "gap": 3}
    return np.array([-1 if step.raised is None else codes[step.raised.rule] for step in steps])


def simulated(kind: str, rows: int) -> Array:
    rng = np.random.default_rng(8)
    shapes = {
        "normal": rng.standard_normal(rows),
        "heavy tails": rng.standard_t(3, rows),
        "random walk": rng.standard_normal(rows).cumsum(),
        "counter": np.round(15 + rng.standard_normal(rows)).cumsum(),
        "Poisson": rng.poisson(5.0, rows).astype(float),
        "seasonal": 5 * np.sin(2 * np.pi * np.arange(rows) / 48) + rng.standard_normal(rows),
    }
    return shapes[kind]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "random walk", "counter", "Poisson", "seasonal"])
def test_all_rules_together_keep_to_the_rate(kind: str) -> None:
    """At most 1.5 times of it, and four deviations of a count."""
    rows = 12_000
    values = simulated(kind, rows)
    for rate in (1e-2, 1e-3):
        count, expected = int((raised(values, alarm(rate))[500:] >= 0).sum()), rate * (rows - 500)
        assert count <= 1.5 * expected + 4 * np.sqrt(1.5 * expected)


def test_a_stuck_sensor_a_stretch_and_the_largest_value_by_far_are_alarms() -> None:
    values = simulated("normal", 6_000)
    values[3_000:3_060] *= 2.5
    values[4_000], values[5_000:5_100] = 25.0, values[5_000]
    found = raised(values, alarm(1e-3))
    assert found[4_000] == 0 and STANDSTILL in found[5_001:5_006]
    stretched = np.flatnonzero(raised(values, alarm(1e-3, rules=["stretch"])) == STRETCH)
    assert ((stretched >= 3_000) & (stretched < 3_060)).any() and len(stretched) < 100


@pytest.mark.parametrize("change", ["weekday as weekend", "job that does not run", "lower level"])
def test_a_change_that_the_forecast_follows_is_an_alarm_soon(change: str) -> None:
    """Of ten-minute rows, in the third week."""
    times = MONDAY + 600.0 * np.arange(18 * ROWS_OF_DAY)
    hours, is_weekend = times % DAY / 3600, (times // DAY + 3) % 7 >= 5
    office = np.where((hours >= 8) & (hours < 18), 100.0, 0.0)
    values, day = 2 * noise(len(times)), 16 * ROWS_OF_DAY
    if change == "weekday as weekend":
        begin, is_off = day + 8 * 6, is_weekend | (times >= times[day])
        values += np.where(is_off, 20.0, 20.0 + office * np.minimum(1, (hours - 8) / 3))
    elif change == "job that does not run":
        begin = day + 3 * 6
        values += np.where((hours >= 3) & (hours < 3.5) & (np.arange(len(times)) < day), 40.0, 0.0)
    else:
        begin = day + 10 * 6
        values += 0.4 * office
        values[begin:] -= 12.0
    found = AutoRuntime.of(1).filter(times.tolist(), values[:, None].tolist(), alarm=alarm("1/day", rules=["stretch"]))
    rows = np.array([row for row, step in enumerate(found.steps) if step.raised is not None])
    assert ((rows >= begin) & (rows < begin + 12)).any()
    assert ((rows >= 3 * ROWS_OF_DAY) & (rows < begin)).sum() < 25


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rule", "share"), [("standstill", 0.0), ("stretch", 0.3)])
def test_a_day_of_hourly_counts_without_its_season_is_an_alarm(rule: Rule, share: float, seed: int) -> None:
    """In the third week of a business that closes at night, of which each day has only 18 values."""
    hours = np.arange(24 * 24)
    of_day, is_lost = hours % 24, hours // 24 == 18
    usual = np.interp(of_day, [6, 13, 18, 23], [6.0, 36.0, 45.0, 10.0])
    entries = np.random.default_rng(seed).poisson(np.where(is_lost, share, 1.0) * usual)
    values, times = np.where(of_day < 6, np.nan, entries), MONDAY + 3600.0 * hours
    found = AutoRuntime.of(1).filter(times.tolist(), values[:, None].tolist(), alarm=alarm("1/week", rules=[rule]))
    raised = np.array([step.raised is not None for step in found.steps])
    assert raised[is_lost].any() and raised[hours // 24 < 18].sum() <= 3


@pytest.mark.parametrize("rows", [100, 500, 2_000])
def test_a_standstill_teaches_nothing_of_the_noise(rows: int) -> None:
    """The change that ends it is ordinary, and a value 25 deviations off is an alarm soon after and later."""
    values = np.random.default_rng(rows).standard_normal(rows + 5_000)
    end = 2_000 + rows
    values[2_000:end] = values[2_000]
    values[end + 30], values[end + 600] = 25.0, 25.0
    found = AutoRuntime.of(1).filter(list(map(float, range(len(values)))), values[:, None].tolist()).steps
    p = np.array([1 - (step.anomaly or 0.0) for step in found])
    assert p[end] > 1e-3 and np.median(p[end : end + 20]) > 0.1
    assert p[end + 30] < 1e-3 and p[end + 600] < 1e-3


def test_a_constant_never_stands_still() -> None:
    values = np.full(3_000, 4.0)
    values[1_000::500] = 5.0
    assert not (raised(values, alarm(1e-2)) == STANDSTILL).any()


def test_a_larger_deviation_never_scores_lower() -> None:
    """Of the last of 300 values, with the same values before it."""
    before = simulated("heavy tails", 300)
    runtime, times = AutoRuntime.of(1), list(map(float, range(301)))
    scores = []
    for last in (0.5, 2.0, 4.0, 8.0, 20.0, 1e3, 1e6):
        values = [*before.tolist(), before.mean() + last]
        scores.append(runtime.filter(times, [[value] for value in values]).steps[-1].anomaly)
    assert None not in scores and scores == sorted(filter(None, scores))
