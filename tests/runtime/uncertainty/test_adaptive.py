"""Adaptive intervals: the published recursion, its bound against any data, nested, the same however a stream is cut."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import EMPTY, GAMMA, INFINITE, MAX_PENDING, TOLERANCE
from rfa.runtime.uncertainty.forecast_checks import summarise
from rfa.runtime.uncertainty.interface import Row
from tests.runtime.uncertainty.adaptive_reference import Adaptive, Horizons, adapt_half_widths
from tests.soak.courses import as_sent

BUNDLES = Path(__file__).parents[3] / "bundles"
LEVELS = (0.5, 0.8, 0.9, 0.95)
RATES = 1 - np.array(LEVELS)
MULTIPLIERS = [0.68, 1.3, 1.7, 2.1]
# float32 keeps v to half a unit in the last place of numbers below 2, at every step.
ROUNDING = 2.0**-24


def fresh(size: int = 1) -> Adaptive:
    """A stream of one horizon."""
    return Adaptive(Horizons([1.0]), size, RATES)


def step(stream: Adaptive, scores: np.ndarray, scored: np.ndarray | None = None) -> np.ndarray:
    is_scored = np.ones(scores.shape, bool) if scored is None else scored
    return stream.score_step(np.array(MULTIPLIERS), scores, is_scored)


@pytest.fixture(scope="module", params=["linear", "oscillator"])
def runtime(request: Any) -> FilterRuntime:
    return FilterRuntime(open_bundle(BUNDLES / request.param))


@pytest.fixture(scope="module")
def linear() -> FilterRuntime:
    return FilterRuntime(open_bundle(BUNDLES / "linear"))


# The recursion.


def test_it_is_adaptive_conformal_inference() -> None:
    """One series of one level at a time, in the symbols of Gibbs and Candès: alpha_t falls after a miss."""
    rng = np.random.default_rng(0)
    scores = np.abs(rng.standard_normal((3, 2, 1500)))
    scores[1, :, 500:] *= 6
    scores[2] = np.where(rng.random((2, 1500)) < 0.05, 1e9, scores[2])
    scored = rng.random(scores.shape) < 0.8
    streams = [fresh(2) for _ in range(3)]
    for row, stream in enumerate(streams):
        for t in range(1500):
            step(stream, scores[row, :, t], scored[row, :, t])
    for row, component in np.ndindex(3, 2):
        target = [1 - level for level in LEVELS]
        alpha = list(target)
        for at in np.flatnonzero(scored[row, component]):
            half = 0.0
            for k in range(4):
                v = target[k] - alpha[k]
                bounded = min(max(v, -0.5), 0.98)
                half = max(half, MULTIPLIERS[k] * ((1 + bounded) / (1 - bounded)) ** 3)
                is_missed = scores[row, component, at] > half
                error = 0 if v >= 1 else 1 if v <= -0.5 else int(is_missed)
                alpha[k] = alpha[k] + GAMMA * (target[k] - error)
        expected = np.array(target) - alpha
        assert np.abs(streams[row].shift[0, component] - expected).max() < 1500 * ROUNDING


@given(
    plan=st.lists(st.sampled_from(["hit", "missed", "zero", "huge", "between", "nothing"]), min_size=1, max_size=60),
    repeat=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_no_data_break_the_bound(plan: list[str], repeat: int) -> None:
    """The adversary sees each interval before it chooses."""
    stream = fresh()
    errors: list[list[bool]] = []
    sent = 0
    for move in plan * repeat:
        width = adapt_half_widths(np.array(MULTIPLIERS), stream.shift[0, 0])
        score = {"hit": width[0] / 2, "missed": width[-1] * 2, "huge": 1e30, "between": width[2]}.get(move, 0.0)
        before = stream.shift[0, 0].copy()
        step(stream, np.array([score]), np.array([move != "nothing"]))
        if move == "nothing":
            assert np.array_equal(stream.shift[0, 0], before)
            continue
        sent += 1
        errors.append([(score > w or v <= -0.5) and v < 1 for w, v in zip(width, before, strict=True)])
    if sent:
        gap = np.abs(np.mean(errors, axis=0) - RATES)
        assert (gap <= (1 + GAMMA) / (GAMMA * sent) + ROUNDING / GAMMA).all()


@given(st.lists(st.floats(-0.6, 1.1), min_size=4, max_size=4))
def test_widths_are_nested_finite_and_positive(shift: list[float]) -> None:
    widths = adapt_half_widths(np.array(MULTIPLIERS), np.array(shift, np.float32))
    assert (np.diff(widths) >= 0).all()
    assert (widths > 0).all() and (widths < 1e7).all()
    assert np.array_equal(adapt_half_widths(np.array(MULTIPLIERS), np.zeros(4, np.float32)), MULTIPLIERS)


# Longer leads: one stream of one component, its forecasts 0 with the multipliers as half widths.


class Stream:
    """A stream of one component whose every row is forecast `lead` steps ahead; v is that of the lead."""

    def __init__(self, lead: float, *, horizon: float | None = None) -> None:
        self.horizons = Horizons([1.0, lead])
        self.horizon = lead if horizon is None else horizon
        self.adaptive = Adaptive(self.horizons, 1, RATES)
        self.before: float | None = None

    @property
    def shift(self) -> np.ndarray:
        v: np.ndarray = self.adaptive.shift[1, 0]
        return v

    @property
    def pending(self) -> list[float]:
        """Times of the forecasts that wait."""
        return sorted(due for due, _, _ in self.adaptive.pending.values())

    def observe(self, t: float, y: float) -> np.ndarray:
        """The half widths of the forecast made at t."""
        lag = 0.0 if self.before is None else t - self.before
        self.before = t
        self.adaptive.score_pending(t, lag, np.array([y]))
        width = adapt_half_widths(np.array(MULTIPLIERS), self.shift)
        self.adaptive.store(1, self.horizon, t + self.horizon, np.zeros(1), width[None])
        return width


def test_places_and_rates_go_by_the_first_horizon() -> None:
    horizons = Horizons([0.1 * (1 - 1e-15), 0.2, 0.5, 1.0, 2.0, 16.8])
    assert horizons.pending_count.tolist() == [2, 5, 10, 20, MAX_PENDING]
    assert horizons.gamma.tolist() == [GAMMA, GAMMA, GAMMA, GAMMA, 1 / 80, 1 / (4 * MAX_PENDING)]
    assert horizons.pending_horizon.tolist() == [1] * 2 + [2] * 5 + [3] * 10 + [4] * 20 + [5] * MAX_PENDING
    assert np.allclose(horizons.tolerance, [0.01] * 2 + [0.025] * 5 + [0.05] * 62, rtol=1e-12)


@pytest.mark.parametrize("lead", [2, 24, 32])
@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5, 1 / 3])
def test_every_forecast_of_a_regular_stream_is_scored(lead: int, phase: float) -> None:
    """The recursion written down once more: each row is held against the forecast of `lead` rows before."""
    rng = np.random.default_rng(lead)
    y = 2.5 * rng.standard_normal(400)
    stream, v, gamma = Stream(float(lead)), np.zeros(4), min(0.025, 0.25 / lead)
    widths = []
    for i in range(400):
        if i >= lead:
            v += gamma * ((abs(y[i]) > widths[i - lead]) - RATES)
        widths.append(np.maximum.accumulate(MULTIPLIERS * ((1 + v) / (1 - v)) ** 3))
        assert np.allclose(stream.observe(0.3 * (i + phase) / 0.3, y[i]), widths[i], rtol=1e-3)
        assert len(stream.pending) == min(i + 1, lead)
    assert np.abs(stream.shift - v).max() < 400 * ROUNDING
    assert v.min() > 2 * gamma


@pytest.mark.parametrize(
    ("lead", "horizon", "cadence"), [(24, 24, 0.5), (24, 24, 0.25), (20, 24, 1.0), (168, 168, 1.0)]
)
def test_where_places_are_few_the_whole_day_is_scored(lead: int, horizon: int, cadence: float) -> None:
    """A faster stream, a horizon beyond the lead, a lead of more steps than there are places."""
    stream, days = Stream(float(lead), horizon=float(horizon)), 35
    scored: list[float] = []
    for t in np.arange(0, days * 24, cadence).tolist():
        before, waiting = stream.shift.copy(), stream.pending
        stream.observe(t, 0.0)
        assert (stream.shift != before).all() if t in waiting else np.array_equal(stream.shift, before)
        assert len(stream.pending) <= min(lead, MAX_PENDING)
        scored += [t] * (t in waiting)
    # One in each step of the places, and no hole in the day: every hour, or every one that steps of 1.2 h can hold.
    step = max(1.0, horizon / min(lead, MAX_PENDING))
    assert len(scored) >= 0.95 * (days * 24 - horizon) / math.ceil(step)
    assert max(np.diff(scored)) <= 2 * math.ceil(step)
    hours = sorted({t % 24 for t in scored})
    assert max(np.diff([*hours, hours[0] + 24])) <= (2 if horizon == 24 else 1)


@pytest.mark.parametrize("cadence", [1.0, 0.5, 0.0625])
def test_only_the_observation_that_is_due_scores(cadence: float) -> None:
    """A twentieth of 24 h is more than an hour, and more than the lags of a faster stream."""
    stream = Stream(24.0)
    for t in [0.0, *np.arange(23, 24, cadence).tolist()]:
        stream.observe(t, 9.0)
        assert not stream.shift.any() and 24.0 in stream.pending
    stream.observe(24.0, 9.0)
    assert (stream.shift > 0).all() and 24.0 not in stream.pending


@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(["hit", "missed", "huge", "between", "zero"]), st.sampled_from([0.25, 1.0, 1.0, 2.0])
        ),
        min_size=1,
        max_size=20,
    ),
    repeat=st.integers(1, 20),
    lead=st.sampled_from([2, 5, 24, 100]),
)
@example(plan=[("huge", 1.0)], repeat=150, lead=5)
@example(plan=[("zero", 1.0)], repeat=150, lead=5)
@settings(max_examples=25, deadline=None)
def test_no_data_break_the_bound_of_a_longer_lead(plan: list[tuple[str, float]], repeat: int, lead: int) -> None:
    """The adversary sees what waits and chooses when to observe and what: |mean err − rate| ≤ (1 + h γ) / (γ T)."""
    stream = Stream(float(lead))
    made: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    errors: list[list[bool]] = []
    places, gamma, t = min(lead, MAX_PENDING), float(stream.horizons.gamma[1]), 0.0
    for move, lag in plan * repeat:
        t += lag
        width = adapt_half_widths(np.array(MULTIPLIERS), stream.shift)
        y = {"hit": width[0] / 2, "missed": 2 * width[-1], "huge": 1e30, "between": width[2]}.get(move, 0.0)
        near = min(TOLERANCE * lead, 0.5, lag / 2)
        for due in stream.pending:
            if abs(due - t) <= near:
                w, v = made[due]
                errors.append([(y > a or b <= EMPTY) and b < INFINITE for a, b in zip(w, v, strict=True)])
        made[t + lead] = stream.observe(t, y).astype(np.float32), stream.shift.copy()
    if errors:
        gap = np.abs(np.mean(errors, axis=0) - RATES)
        assert (gap <= (1 + places * gamma) / (gamma * len(errors)) + ROUNDING / gamma).all()
        total = gamma * (np.array(errors) - RATES).sum(axis=0)
        assert np.allclose(stream.shift, total, atol=len(errors) * ROUNDING)


# In the runtime.


def regular(seed: int, count: int, scale: float = 1.0) -> tuple[list[float], list[Any]]:
    """A stream on a grid with gaps, so that forecasts meet their observations; noise `scale` times the model's."""
    rng = np.random.default_rng(seed)
    phase = rng.uniform(0, 6)
    times = [0.1 * i for i in range(count)]
    values: list[Any] = []
    for t in times:
        y = [2 * math.cos(t + phase), math.sin(t + phase)] + scale * math.sqrt(0.5) * rng.standard_normal(2)
        values.append(None if rng.random() < 0.1 else [None if rng.random() < 0.1 else float(x) for x in y])
    return times, values


def test_coverage_holds_where_the_noise_is_not_the_model_s(linear: FilterRuntime) -> None:
    """Per component and level, within the bound; the bundle's own intervals are far outside of it."""
    times, values = regular(1, 900, scale=2.5)
    result = linear.filter(times, values, levels=LEVELS, horizon=(0.1,))
    start = linear.filter(times[:1], values[:1], levels=LEVELS, horizon=(0.1,)).steps[0].forecast[0]
    for k in range(2):
        kept, bare = [], []
        for before, value in zip(result.steps, values[1:], strict=False):
            if value is None or value[k] is None:
                continue
            point = before.forecast[0]
            error = abs(value[k] - point.mean[k])
            kept.append([low <= value[k] <= high for low, high in (point.interval[f"{x:g}"][k] for x in LEVELS)])
            bare.append(
                [
                    error <= (high - low) / 2 / start.std[k] * point.std[k]
                    for low, high in (start.interval[f"{x:g}"][k] for x in LEVELS)
                ]
            )
        bound = (1 + GAMMA) / (GAMMA * len(kept))
        assert (np.abs(np.mean(kept, 0) - LEVELS) <= bound).all()
        assert (np.abs(np.mean(bare, 0) - LEVELS) > bound).all()


def test_a_forecast_whose_time_passes_unobserved_is_dropped(linear: FilterRuntime) -> None:
    first = linear.filter([0.0, 0.1], [[1.0, 1.0], [1.0, 1.0]], horizon=(0.5,))
    assert np.count_nonzero(first.state.adaptive["adaptive.radius"][2:7, 0, -1]) == 2
    shift = first.state.adaptive["adaptive.shift"][2]
    for t, value in ((0.45, [9.0, 9.0]), (0.65, [9.0, 9.0]), (0.5, None)):
        after = linear.filter([t], [value], state=first.state).state.adaptive
        assert np.array_equal(after["adaptive.shift"][2], shift)
        assert np.count_nonzero(after["adaptive.radius"][2:7, 0, -1]) == {0.45: 2, 0.65: 0, 0.5: 1}[t]
    met = linear.filter([0.5], [[9.0, None]], state=first.state).state.adaptive["adaptive.shift"][2]
    assert (met[0] > shift[0]).all() and np.array_equal(met[1], shift[1])


def test_a_stream_on_a_grid_is_the_same_in_any_batch_and_from_any_cut(runtime: FilterRuntime) -> None:
    """With forecasts that wait across the cuts, neighbours that ask for other leads, and states that were packed."""
    times, values = regular(4, 120, scale=2)
    options: dict[str, Any] = {"levels": (0.6, 0.9), "horizon": (0.1, 0.7, 2.0)}
    whole = runtime.filter(times, values, **options)
    assert np.count_nonzero(whole.state.adaptive["adaptive.radius"][..., 0, -1]) >= 2
    steps, state = [], runtime.start()
    for begin, end in ((0, 1), (1, 30), (30, 77), (77, 120)):
        part = runtime.filter(times[begin:end], values[begin:end], state=state, **options)
        steps += part.steps
        state = runtime.unpack(runtime.pack(part.state))
    assert as_sent(steps) == as_sent(whole.steps)
    assert runtime.pack(state) == runtime.pack(whole.state)

    pool = StatePool(runtime.state_fields, 30)
    handles = [pool.acquire() for _ in range(30)]
    for handle in handles:
        runtime.put(pool, handle, runtime.start())
    others = [runtime.readout((0.9,), horizon, 0) for horizon in ((), (0.2,), (0.5, 1.0), (0.1, 0.7, 2.0))]
    mine = runtime.readout(options["levels"], options["horizon"], 0)
    rng = np.random.default_rng(0)
    crowded = []
    for t, value in zip(times, values, strict=True):
        count = int(rng.integers(30))
        rows = [
            Row(handles[1 + i], t, rng.normal(size=2).tolist(), 1.0, others[rng.integers(4)], 0) for i in range(count)
        ]
        place = int(rng.integers(count + 1))
        rows.insert(place, Row(handles[0], t, value, 1.0, mine, 0))
        stepped = runtime.advance(pool, rows)[place]
        assert stepped is not None
        crowded.append(stepped.step)
    assert as_sent(crowded) == as_sent(whole.steps)
    assert runtime.pack(runtime.get(pool, handles[0], 0)) == runtime.pack(whole.state)


def test_levels_between_the_calibrated_ones_stay_nested(linear: FilterRuntime) -> None:
    levels = (0.3, 0.5, 0.6, 0.8, 0.85, 0.9, 0.93, 0.95, 0.99)
    times, values = regular(5, 200, scale=4)
    for step in linear.filter(times, values, levels=levels, horizon=(0.1, 0.3, 2.0)).steps:
        for point in step.forecast:
            for k in range(2):
                lows, highs = np.array([point.interval[f"{level:g}"][k] for level in levels]).T
                assert (np.diff(lows) <= 1e-12).all() and (np.diff(highs) >= -1e-12).all()


# What is told about it.


def test_the_summary_is_what_the_replies_say(linear: FilterRuntime) -> None:
    """Coverage and PIT counted again from the intervals that were sent, weighted NIS from the steps."""
    levels = (0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 0.95)
    times, values = regular(6, 300, scale=1.5)
    result = linear.filter(times, values, levels=levels, horizon=(0.1,))
    inside, pit, nis, bins = np.zeros(4), np.zeros(10), [], np.zeros(8)
    scored = 0
    for before, step, value in zip(result.steps, result.steps[1:], values[1:], strict=False):
        seen = [] if value is None else [k for k in range(2) if value[k] is not None]
        point = before.forecast[0]
        for k in seen:
            scored += 1
            bands = {level: point.interval[f"{level:g}"][k] for level in levels}
            inside += [bands[level][0] <= value[k] <= bands[level][1] for level in LEVELS]
            edges = [bands[x][0] for x in (0.8, 0.6, 0.4, 0.2)] + [point.mean[k]]
            edges += [bands[x][1] for x in (0.2, 0.4, 0.6, 0.8)]
            pit[sum(value[k] > edge for edge in edges)] += 1
        if seen:
            nis.append(step.weight * step.nis / len(seen))
            bins[sum(nis[-1] > edge for edge in (0.1, 0.25, 0.5, 1, 2, 4, 8))] += 1
    checks = summarise(result.tally, linear.levels, 2, (0.1,), is_fresh=True)
    assert checks.scored == scored
    assert checks.coverage == {f"{level:g}": share for level, share in zip(LEVELS, (inside / scored), strict=True)}
    assert checks.pit == pit.tolist()
    assert checks.weighted_nis_bins == bins.tolist() and np.count_nonzero(bins) > 5
    assert checks.weighted_nis == pytest.approx(np.mean(nis), rel=1e-12)
    assert checks.bound == pytest.approx(2 * 1.025 / (0.025 * scored))
    continued = summarise(result.tally, linear.levels, 2, (0.1,), is_fresh=False)
    assert continued.bound == pytest.approx(2 * 1.525 / (0.025 * scored))
    # A float32 nis of these sizes is right to a few units in its last place; the mean is far from 1 if it is not used.
    assert 0.5 < checks.weighted_nis < 2.5


def test_confidence_is_what_comes_true(linear: FilterRuntime) -> None:
    """The share inside the 0.9 interval, with noise that the bundle was not calibrated for."""
    said, came = [], []
    for seed in range(6):
        times, values = regular(100 + seed, 400, scale=2)
        steps = linear.filter(times, values, levels=(0.9,), horizon=(0.1,)).steps
        for before, value in zip(steps, values[1:], strict=False):
            for k, y in enumerate(value or ()):
                if y is not None:
                    low, high = before.forecast[0].interval["0.9"][k]
                    said.append(before.confidence)
                    came.append(low <= y <= high)
    # About 3,900 outcomes: three standard errors are 0.0145; at the start the intervals are still too narrow.
    assert abs(np.mean(said) - np.mean(came)) < 0.0145 + 0.01
