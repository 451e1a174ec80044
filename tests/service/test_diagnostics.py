"""Warnings: rare for sound replies, given for failed ones; and coverage at each horizon, counted again from replies."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from rfa.runtime.filters.auto import AutoRuntime
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.outputs import ComponentChecks, FilterWarning, ForecastChecks, LeadChecks
from rfa.runtime.uncertainty.alarms import count_alarms
from rfa.runtime.uncertainty.diagnostics import ENOUGH, FALSE_WARNINGS, diagnose
from rfa.runtime.uncertainty.forecast_checks import columns, summarise
from tests.service.live import answer, serving
from tests.service.test_columns import arrow, send


class Model(NamedTuple):
    name: str
    suits_any: bool
    farthest: float = math.inf


AUTO, LINEAR, NETWORK = Model("auto", True), Model("linear", False), Model("series", True, 768)
LEVELS = (0.5, 0.8, 0.9, 0.95)


def checked(
    coverage: float, scored: int, outliers: int = 0, leads: Sequence[LeadChecks] = (), each: Sequence[float] = ()
) -> ForecastChecks:
    """As of `scored` observations of one component, or of so many in each component that has a share of its own."""
    components = [ComponentChecks(scored, {"0.9": share}) for share in each]
    return ForecastChecks(
        scored * max(len(each), 1), {"0.9": coverage, "0.95": 0.99}, 0.1, 0.025, 1.0, [0] * 10, [scored, *[0] * 7],
        None, outliers, list(leads), components,
    )  # fmt: skip


def ahead(steps: float, coverage: float | None, scored: int) -> LeadChecks:
    return LeadChecks(60 * steps, steps, scored, {"0.9": coverage})


def codes(found: list[FilterWarning]) -> list[tuple[str, float | None]]:
    return [(warning.code, warning.horizon) for warning in found]


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        (checked(0.9, 5000, 5), []),
        (checked(0.881, 5000, 5), []),
        (checked(0.879, 5000, 5), [("low_coverage", None)]),
        (checked(0.879, ENOUGH), [("low_coverage", None)]),
        (checked(0.879, ENOUGH - 1), []),
        (checked(0.7, 20), []),
        (checked(0.6, 20), [("low_coverage", None)]),
        (checked(0.3, 20), [("low_coverage", None)]),
        (checked(0.0, 19), []),
        (checked(0.99, 5000), [("high_coverage", None)]),
        (checked(1.0, 60), []),
        (checked(1.0, 120), [("high_coverage", None)]),
        (checked(0.9, 5000, 600), [("many_outliers", None)]),
        (checked(0.9, 20, 4), []),
        (checked(0.9, 900, 0, [ahead(12, 0.871, 880), ahead(48, 0.869, 500)]), [("low_coverage", 2880)]),
        (checked(0.9, 900, 0, [ahead(12, 0.931, 880), ahead(48, None, 0)]), [("high_coverage", 720)]),
        (checked(0.9, 580, 0, [ahead(12, 0.9, 560), ahead(48, 0.86, 260)]), []),
        # 400 values 12 rows ahead say no more than 70 that are apart.
        (checked(0.9, 420, 0, [ahead(12, 0.82, 400)]), []),
        (checked(0.9, 420, 0, [ahead(12, 0.75, 400)]), [("low_coverage", 720)]),
        (checked(0.9, 420, 0, [ahead(2, 0.75, 400)]), [("low_coverage", 120)]),
        (checked(0.8, 900, 0, [ahead(1, 0.8, 900)]), [("low_coverage", None)]),
    ],
)
def test_failures_are_reported(checks: ForecastChecks, expected: list[tuple[str, float | None]]) -> None:
    assert codes(diagnose(LINEAR, checks)) == expected


def test_a_column_that_fails_is_named() -> None:
    """Though all together are as they should be."""
    (warning,) = diagnose(AUTO, checked(0.91, 900, each=[0.9] * 8 + [1.0, 0.9]))
    assert (warning.code, warning.components) == ("high_coverage", [8])
    assert warning.message.startswith("100.0 % of the values of column 9 of 10 were inside their 90 % interval one row")
    low, high = diagnose(AUTO, checked(0.91, 900, each=[0.5, 0.9, *[0.99] * 8]))
    named = diagnose(AUTO, checked(0.91, 900, each=[0.5, 0.9]), names=("left", "right"))
    assert named[0].message.startswith("50.0 % of the values of column 'left' were inside their 90 % interval")
    assert (low.code, low.components, high.components) == ("low_coverage", [0], list(range(2, 10)))
    assert high.message.startswith("99.0 % of the values of columns 3, 4, 5, 6, 7, 8, … of 10 were inside")
    (all_,) = diagnose(AUTO, checked(0.85, 900, each=[0.885] * 5 + [0.885]))
    assert (all_.code, all_.components) == ("low_coverage", None)


@pytest.mark.parametrize(("expected", "is_reported"), [(450, False), (451, True), (900, True)])
def test_a_rate_for_most_rows_is_reported(expected: float, is_reported: bool) -> None:
    checks = replace(checked(0.9, 900), alarms=count_alarms(900, expected, expected))
    for model in (AUTO, LINEAR, NETWORK):
        assert [one.code for one in diagnose(model, checks)] == ["many_alarms"] * is_reported
    assert diagnose(AUTO, replace(checked(0.9, 900), alarms=count_alarms(5, 5, 5))) == []


def test_a_warning_says_what_was_found_and_what_to_try() -> None:
    leads = [ahead(12, 0.5, 9000)]
    (low,) = diagnose(AUTO, checked(0.9, 9000, leads=leads))
    (named,) = diagnose(LINEAR, checked(0.9, 9000, leads=leads))
    assert low.message.startswith("50.0 % of 9,000 values were inside their 90 % interval 12 rows ahead; ")
    assert "rfa train filter" in low.message and "omit the model" in named.message


@pytest.mark.parametrize("scored", [10, 60, 120, 300, pytest.param(ENOUGH - 1, marks=pytest.mark.slow)])
def test_chance_alone_is_rarely_reported(scored: int) -> None:
    """Of intervals that cover what they should, every value by itself, by the binomial."""
    probability = math.fsum(
        math.comb(scored, inside) * 0.9**inside * 0.1 ** (scored - inside)
        for inside in range(scored + 1)
        if diagnose(AUTO, checked(inside / scored, scored))
    )
    assert probability <= FALSE_WARNINGS


def test_nearly_exact_forecasts_have_wide_intervals() -> None:
    exact = replace(checked(0.999, 900, leads=[ahead(12, 0.999, 880)]), pit=[0, 0, 0, 0, 300, 300, 300, 0, 0, 0])
    assert diagnose(AUTO, exact) == []
    low = replace(exact, coverage={"0.9": 0.5}, leads=[])
    assert codes(diagnose(AUTO, low)) == [("low_coverage", None)]


def sound(kind: str, rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=rows)
    made = {
        "white": noise, "walk": noise.cumsum(), "heavy": rng.standard_t(3, size=rows),
        "season": 10 * np.sin(2 * np.pi * np.arange(rows) / 24) + noise,
        "counts": rng.poisson(4, size=rows).astype(float),
    }  # fmt: skip
    return made[kind]


def filtered(values: np.ndarray, horizon: tuple[float, ...], times: np.ndarray | None = None) -> ForecastChecks:
    table = values.reshape(len(values), -1)
    times = np.arange(float(len(values))) if times is None else times
    found = AutoRuntime.of(table.shape[1]).filter(times.tolist(), table.tolist(), horizon=horizon)
    return summarise(found.tally, LEVELS, table.shape[1], horizon, is_fresh=True)


@pytest.mark.parametrize("kind", ["white", "walk", "heavy", "season", "counts"])
def test_what_is_sound_is_not_doubted(kind: str) -> None:
    """However short it is. At 48 steps one of 14 walks of 1,100 rows does fail the bar itself."""
    for seed in range(12):
        for rows in (20, 60, 150, 400, 900):
            assert diagnose(AUTO, filtered(sound(kind, rows, seed), (12.0, 48.0))) == [], (seed, rows)


# Coverage by lead.


def outputs_of(found: FilteredSequence, name: str) -> np.ndarray:
    return np.concatenate([getattr(piece.outputs, name) for piece in found.pieces])


def recount(
    bands: np.ndarray, values: np.ndarray, lead: int, begin: int, stride: int = 1
) -> tuple[int, dict[str, float]]:
    """How many values, and which share of them by level, are inside the interval of the forecast that was made `lead`
    rows before, of every so many-th forecast from row `begin` on; bands `[rows, levels, P, 2]`."""
    made = np.arange(len(values) - lead)
    made = made[(made >= begin) & (made % stride == 0)]
    after = values[made + lead][:, None]
    inside = (bands[made, ..., 0] <= after) & (after <= bands[made, ..., 1])
    seen = int((~np.isnan(values[made + lead])).sum())
    return seen, {f"{level:g}": int(inside[:, i].sum()) / seen for i, level in enumerate(LEVELS)}


@pytest.mark.parametrize(("step", "level"), [(1.0, 0.0), (300.0, 1e9), (86_400.0, 0.0)])
def test_coverage_of_auto_is_what_its_forecasts_came_to(step: float, level: float) -> None:
    """Every forecast of up to 32 steps from the second row on, for from there on the clock is known; of 48 steps every
    other one."""
    rng = np.random.default_rng(2)
    values = np.stack([rng.normal(size=900).cumsum(), 10 + rng.normal(size=900)], axis=1)
    values[rng.random(values.shape) < 0.05] = np.nan
    values += level  # of a counter, whose last digits are no float32
    rows = [[None if value != value else value for value in row] for row in values.tolist()]  # noqa: PLR0124
    leads = {1: 1, 12: 1, 24: 1, 48: 2}
    horizon = tuple(lead * step for lead in leads)
    found = AutoRuntime.of(2).filter((step * np.arange(900)).tolist(), rows, horizon=horizon, levels=LEVELS)
    checks = summarise(found.tally, LEVELS, 2, horizon, is_fresh=True)
    for column, (lead, stride) in enumerate(leads.items()):
        got, bands = checks.leads[column], outputs_of(found, "bands")[:, column]
        scored, coverage = recount(bands, values, lead, 1, stride)
        assert (got.horizon, got.steps, got.scored) == (horizon[column], lead, scored)
        assert got.coverage == pytest.approx(coverage, rel=1e-12)
    for a in range(2):
        own, bands = checks.components[a], outputs_of(found, "bands")[:, 0]
        scored, coverage = recount(bands[:, :, a : a + 1], values[:, a : a + 1], 1, 0)
        assert own.scored == scored and own.coverage == pytest.approx(coverage, rel=1e-12, abs=1.001 / scored)
    assert sum(component.scored for component in checks.components) == checks.scored


def test_sums_are_the_same_however_a_series_is_cut() -> None:
    """Forecasts that wait in the state count where their time comes."""
    values, horizon, runtime = sound("season", 700, 4)[:, None], (3.0, 30.0), AutoRuntime.of(1)
    times = np.arange(700.0)
    whole = runtime.filter(times.tolist(), values.tolist(), horizon=horizon)
    sums, state = np.zeros(columns(len(LEVELS), 2, 1)), None
    for part in (slice(0, 1), slice(1, 40), slice(40, 411), slice(411, 700)):
        found = runtime.filter(times[part].tolist(), values[part].tolist(), horizon=horizon, state=state)
        sums, state = sums + found.tally, runtime.unpack(runtime.pack(found.state))
    counts = np.delete(np.arange(len(sums)), 1)  # all but the sum of weighted nis, whose order differs
    np.testing.assert_array_equal(sums[counts], whole.tally[counts])
    assert whole.tally[columns(len(LEVELS))] == 700 - 4


# Through the doors.


@pytest.mark.anyio
async def test_every_form_of_a_reply_warns_alike() -> None:
    rows, horizon = [[1.03**k] for k in range(300)], [1.0, 12.0]
    body: dict[str, Any] = {"observations": rows, "horizon": horizon, "seed": 1}
    async with serving("linear") as client:
        whole = await answer(client, body)
        lines = (await client.post("/filter", json={**body, "stream": True})).text.splitlines()
        events = await client.post("/filter", json={**body, "stream": True}, headers={"Accept": "text/event-stream"})
        column = {"y": [row[0] for row in rows]}
        by_column = await answer(client, {"values": column, "horizon": horizon, "seed": 1, "fields": ["mean"]})
        arrow_reply = await send(client, arrow(column), horizon="1.0,12.0", seed=1)
        metrics = (await client.get("/metrics")).text
    table = pa.ipc.open_stream(arrow_reply.content).read_all()
    others = (
        json.loads(lines[-1]), json.loads(events.text.split("\n\n")[-2].removeprefix("data: ")), by_column,
        json.loads(table.schema.metadata[b"rfa"]),
    )  # fmt: skip
    for other in others:
        assert (other["calibration"], other["warnings"]) == (whole["calibration"], whole["warnings"])
    found = {warning["code"] for warning in whole["warnings"]}
    assert found and [lead["scored"] for lead in whole["calibration"]["leads"]] == [298, 287]
    for code in found:
        assert f'rfa_filter_warnings_total{{code="{code}",model_name="auto"}} 5.0' in metrics


@pytest.mark.anyio
async def test_a_short_series_is_reported() -> None:
    """Where it comes whole: what goes on from a state was longer."""
    body: dict[str, Any] = {"observations": [[120.4], [118.9], [123], None, [121.7], [260]], "return_state": True}
    async with serving("linear") as client:
        whole = await answer(client, body)
        lines = (await client.post("/filter", json={**body, "stream": True})).text.splitlines()
        more = await answer(client, {"observations": [[122]], "times": [6], "state": whole["state"]})
        other = await answer(client, {"observations": [[1.0, 0.2]], "model": "linear"})
    assert [warning["code"] for warning in whole["warnings"]] == ["few_rows"]
    assert json.loads(lines[-1])["warnings"] == whole["warnings"]
    assert more["warnings"] == other["warnings"] == []
