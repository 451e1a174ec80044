"""Alarms over HTTP: at the rate that was asked for, in whatever form and in whatever pieces a series comes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.uncertainty.alarms import NEVER, SHARES, Alarm, alarm, count_alarms
from tests.service.live import answer, serving

pytestmark = pytest.mark.anyio
COUNT, SPIKES, BURN_IN = 3_000, (1_000, 1_003, 2_000, 2_500), 200
RATE = 0.01


@pytest.fixture(scope="module")
def series() -> list[list[float] | None]:
    """A noisy level of 50; its spikes go up, down, up, down, and some values are missing."""
    rng = np.random.default_rng(11)
    values = 50 + rng.standard_normal(COUNT)
    values[list(SPIKES)] += 20 * np.array([1, -1, 1, -1])
    return [None if i % 97 == 5 else [float(value)] for i, value in enumerate(values)]


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving("linear") as client:
        yield client


def asked(series: list[Any], **rule: Any) -> dict[str, Any]:
    return {"model": "auto", "observations": series, "fields": ["anomaly", "alarm", "raised"], "seed": 1, "alarm": rule}


async def raised(client: httpx.AsyncClient, series: list[Any], **rule: Any) -> list[int]:
    found = await answer(client, asked(series, **rule))
    flags = [step["alarm"] for step in found["steps"]]
    assert [flag is None for flag in flags] == [value is None for value in series]
    counted = found["calibration"]["alarms"]
    assert (counted["observations"], counted["raised"]) == (len(flags) - flags.count(None), flags.count(True))
    return [index for index, flag in enumerate(flags) if flag]


async def test_alarms_are_as_rare_as_was_asked_for_and_counted(series: list[Any]) -> None:
    async with serving("linear") as client:
        found = await answer(client, asked(series, rate=RATE))
        outputs = found["calibration"]["alarms"]
        metrics = (await client.get("/metrics")).text
        plain = await answer(client, {**asked(series), "alarm": None})
    flags = [step["alarm"] for step in found["steps"]]
    seen = COUNT - flags.count(None)
    assert outputs["expected"] == pytest.approx(RATE * seen) and outputs["rate"] == outputs["raised"] / seen
    assert outputs["bound"][0] < outputs["rate"] < outputs["bound"][1]
    assert all(flags[spike] for spike in SPIKES)
    # 28 are expected; the factor that is promised, and four deviations of a count.
    count = sum(flag is True for flag in flags[BURN_IN:])
    assert 28 / 1.5 - 21 <= count <= 1.5 * 28 + 21
    for step in found["steps"]:
        raised_by = step["raised"]
        assert (raised_by is not None) == (step["alarm"] is True)
        if raised_by is not None:
            # The rule of the value has the shares of rules that cannot raise an alarm yet.
            share = 1.0 if raised_by["rule"] == "value" else SHARES[raised_by["rule"]]
            assert raised_by["probability"] <= RATE * share
        assert step["alarm"] is not False or 1 - step["anomaly"] > SHARES["value"] * RATE
    assert sum(one["alarms"] for one in found["incidents"]) == outputs["raised"] and not found["omitted_incidents"]
    assert set(SPIKES) & {one["index"] for one in found["incidents"]}
    assert {step["alarm"] for step in plain["steps"]} == {None} and plain["calibration"]["alarms"] is None
    assert [step["anomaly"] for step in plain["steps"]] == [step["anomaly"] for step in found["steps"]]
    for name, value in (("filter_alarms", outputs["raised"]), ("filter_alarm_observations", seen)):
        assert f'rfa_{name}_total{{model_name="auto"}} {float(value)}' in metrics
    scores = [step["anomaly"] for step in found["steps"] if step["anomaly"] is not None]
    assert f'rfa_filter_scored_observations_total{{model_name="auto"}} {float(len(scores))}' in metrics
    for level in (0.5, 0.9, 0.99, 0.999):
        inside = float(sum(score <= level for score in scores))
        assert f'rfa_filter_inside_observations_total{{level="{level}",model_name="auto"}} {inside}' in metrics


async def test_direction_deviation_range_and_quiet_narrow_them(client: httpx.AsyncClient, series: list[Any]) -> None:
    both = await raised(client, series, rate=RATE)
    up, down = [await raised(client, series, rate=RATE, direction=way) for way in ("up", "down")]
    far = await raised(client, series, rate=RATE, min_deviation=10)
    calm = await raised(client, series, rate=RATE, min_deviation=10, quiet=50)
    outside = await raised(client, series, rate=1e-9, range=[40, None])
    assert sorted(up + down) == both and {1_000, 2_000} <= set(up) and {1_003, 2_500} <= set(down)
    # After a spike of 20 the level is off by some.
    assert set(SPIKES) <= set(far) <= set(both) and len(far) <= len(SPIKES) + 4
    assert calm == [1_000, 2_000, 2_500]
    assert outside == [1_003, 2_500]


async def test_pieces_columns_and_a_rate_per_time_say_the_same(client: httpx.AsyncClient, series: list[Any]) -> None:
    """A state carries what was learned and how long it is quiet; 864 a day of one a second are one in a hundred."""
    rule, times = {"rate": "864/day", "quiet": 40}, list(range(COUNT))
    whole = await raised(client, series, rate=RATE, quiet=40)
    first = await answer(client, {**asked(series[:1_002], **rule), "times": times[:1_002], "return_state": True})
    rest = await answer(client, {**asked(series[1_002:], **rule), "times": times[1_002:], "state": first["state"]})
    columns = {"y": [None if value is None else value[0] for value in series]}
    body = {"model": "auto", "times": times, "values": columns, "fields": ["alarm"], "alarm": rule}
    in_columns = (await answer(client, body))["columns"]["alarm"]
    steps = [*first["steps"], *rest["steps"]]
    assert [i for i, step in enumerate(steps) if step["alarm"]] == whole
    assert [i for i, flag in enumerate(in_columns) if flag] == whole


@pytest.mark.parametrize(
    ("rule", "param"),
    [
        ({"rate": 0}, "alarm.rate"),
        ({"rate": 0.51}, "alarm.rate"),
        ({"rate": "1/decade"}, "alarm.rate"),
        ({"rate": 0.1, "rules": ["value", "other"]}, "alarm.rules[1]"),
        ({"rate": 0.1, "mute": ["sat 25:00-26:00"]}, "alarm.mute[0]"),
        ({"rate": 0.1, "mute": ["sat 22:00-23:30"]}, "alarm.mute"),  # the times are not given
        ({"rate": "nan/day"}, "alarm.rate"),
        ({"rate": "00.0/hour"}, "alarm.rate"),  # else nothing would be told of a range either
        ({"rate": "\N{ARABIC-INDIC DIGIT ONE}/day"}, "alarm.rate"),
        ({"rate": "1/day"}, "alarm.rate"),  # the times are not given
        ({"rate": True}, "alarm.rate"),
        ({}, "alarm.rate"),
        ({"rate": 0.1, "direction": "left"}, "alarm.direction"),
        ({"rate": 0.1, "min_deviation": -1}, "alarm.min_deviation"),
        ({"rate": 0.1, "range": [2, 1]}, "alarm.range"),
        ({"rate": 0.1, "range": [2]}, "alarm.range"),
        ({"rate": 0.1, "quiet": -1}, "alarm.quiet"),
        ({"rate": 0.1, "threshold": 0.9}, "alarm.threshold"),
    ],
)
async def test_what_is_no_rule_is_refused_by_name(client: httpx.AsyncClient, rule: dict[str, Any], param: str) -> None:
    response = await client.post("/filter", json=asked([[1.0]], **rule))
    assert response.status_code == 422 and response.json()["error"]["param"] == param


async def test_a_new_stream_does_not_begin_with_an_alarm(client: httpx.AsyncClient) -> None:
    """Of forty streams at one in a hundred and in a thousand, their first ten observations: the scale of a metric is a
    guess there. A spike at the fiftieth is one."""
    rng = np.random.default_rng(2)
    early, found_spikes = [], 0
    for _ in range(40):
        values = rng.standard_t(3, 60)
        values[50] = 100.0
        series = [[float(value)] for value in values]
        rare = await raised(client, series, rate=0.001)
        early += [index for index in rare if index < 80 and index != 50]
        found_spikes += 50 in rare
        found = await raised(client, series, rate=RATE)
        assert 50 in found and not [index for index in found if index < 10]
    # 2,400 ordinary observations: 2.4 alarms are expected, and more than 7 have a probability of 0.3 %.
    assert len(early) <= 7 and min(early, default=10) >= 10
    assert found_spikes >= 10  # errors of a t distribution with 3 degrees of freedom are often a third as large


def test_a_rate_per_time_is_one_per_second() -> None:
    assert Alarm() == NEVER and not NEVER.rule.rate and not NEVER.rule.per_time
    assert alarm("1/day").rule.per_time == pytest.approx(1 / 86_400) and alarm("0.5 / hour").rule.per_time == 0.5 / 3600
    assert alarm("1/year").rule.per_time == pytest.approx(1 / (365.25 * 86_400), rel=1e-3)
    assert alarm("0.01").rule == alarm(0.01).rule
    assert alarm("2/month").rule.per_time == pytest.approx(24 / (365.28 * 86_400), rel=1e-3)
    assert alarm(0.01, range=(None, 3)).rule.high == 3 and alarm(0.01, range=(None, 3)).rule.low == -math.inf
    assert alarm(0.01, rules=["standstill", "gap"]).rule.shares == (0.0, 0.0, 0.5, 0.5)


def test_the_bound_is_that_of_wilson() -> None:
    """Of Agresti and Coull (1998), for 2 of 10: from 0.057 to 0.510."""
    outputs = count_alarms(10, 0.5, 2)
    assert outputs is not None and outputs.bound == pytest.approx((0.0567, 0.5098), abs=1e-3)
    assert count_alarms(0, 0, 0) is None
